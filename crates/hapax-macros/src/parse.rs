//! From the struct under `#[derive(State)]` to what its attributes say.
//!
//! Invariant: everything that can't become a state is refused here, all at once and with the fix, so that
//! generating code can't fail.

use crate::{fields::Field, rename::Serde};
use syn::{
    Data, DeriveInput, Error, ExprPath, Fields, FieldsNamed, Ident, LitInt, Path, Result, Visibility,
    meta::ParseNestedMeta, parse_quote, spanned::Spanned,
};

/// A struct that can become a state.
pub(crate) struct Input {
    pub(crate) ident: Ident,
    pub(crate) vis: Visibility,
    /// Where the `hapax` crate is.
    pub(crate) hapax: Path,
    pub(crate) version: Option<u32>,
    pub(crate) upgrade: Option<ExprPath>,
    pub(crate) fields: Vec<Field>,
}

impl Input {
    pub(crate) fn of(input: &DeriveInput) -> Result<Self> {
        let named = named_fields(input)?;
        refuse_generics(input)?;
        let container = Container::of(input)?;
        let style = Serde::of(&input.attrs)?.rename_all;
        let mut fields = Vec::new();
        let mut errors: Option<Error> = None;
        for field in &named.named {
            match (Field::of(field, style), &mut errors) {
                (Ok(field), _) => fields.push(field),
                (Err(error), Some(errors)) => errors.combine(error),
                (Err(error), errors) => *errors = Some(error),
            }
        }
        match errors {
            Some(errors) => Err(errors),
            None => Ok(Self {
                ident: input.ident.clone(),
                vis: input.vis.clone(),
                hapax: container.hapax.unwrap_or_else(|| parse_quote!(::hapax)),
                version: container.version,
                upgrade: container.upgrade,
                fields,
            }),
        }
    }
}

fn named_fields(input: &DeriveInput) -> Result<&FieldsNamed> {
    let why = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => return Ok(fields),
            Fields::Unnamed(_) => {
                "a state's fields need names, since nodes write them by name; use `{ name: … }`"
            }
            Fields::Unit => "a state needs named fields; write `struct Name {}` if it has none yet",
        },
        Data::Enum(_) => {
            "a state is a struct, since nodes write single fields of it; put the enum into a field of one"
        }
        Data::Union(_) => "a state is a struct with named fields; a union cannot be stored",
    };
    Err(Error::new(input.ident.span(), why))
}

fn refuse_generics(input: &DeriveInput) -> Result<()> {
    if input.generics.params.is_empty() {
        return Ok(());
    }
    let why = "a state has no generics: what is stored must have one shape; use concrete types";
    Err(Error::new(input.generics.span(), why))
}

#[derive(Default)]
struct Container {
    hapax: Option<Path>,
    version: Option<u32>,
    upgrade: Option<ExprPath>,
}

impl Container {
    fn of(input: &DeriveInput) -> Result<Self> {
        let mut container = Self::default();
        for attr in input.attrs.iter().filter(|a| a.path().is_ident("state")) {
            attr.parse_nested_meta(|meta| container.option(&meta))?;
        }
        match (&container.upgrade, container.version) {
            (Some(upgrade), None | Some(1)) => Err(Error::new(
                upgrade.span(),
                "there is nothing to upgrade from before version 2; add `version = 2`",
            )),
            _ => Ok(container),
        }
    }

    fn option(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let twice =
            |said: bool| if said { Err(meta.error("this is said twice; remove one")) } else { Ok(()) };
        if meta.path.is_ident("crate") {
            twice(self.hapax.is_some())?;
            self.hapax = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("version") {
            twice(self.version.is_some())?;
            self.version = Some(version(&meta.value()?.parse()?)?);
        } else if meta.path.is_ident("upgrade") {
            twice(self.upgrade.is_some())?;
            self.upgrade = Some(meta.value()?.parse()?);
        } else {
            return Err(
                meta.error("unknown option; a state takes `version = 2`, `upgrade = path`, `crate = path`")
            );
        }
        Ok(())
    }
}

fn version(literal: &LitInt) -> Result<u32> {
    match literal.base10_parse() {
        Ok(version) if version > 0 => Ok(version),
        _ => Err(Error::new(literal.span(), "versions are counted from 1, up to 4294967295")),
    }
}

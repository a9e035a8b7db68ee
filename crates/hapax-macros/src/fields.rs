//! One field of a state, as its attributes describe it.
//!
//! Invariant: a [`Field`] is free of contradictions; whatever is wrong with its attributes was refused here.

use crate::rename::{Serde, Style};
use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{
    Attribute, Error, ExprPath, GenericArgument, Ident, PathArguments, Result, Type, ext::IdentExt,
    meta::ParseNestedMeta, spanned::Spanned,
};

/// One field of a state.
pub(crate) struct Field {
    /// Its name as it stands in the struct, perhaps raw.
    pub(crate) ident: Ident,
    /// Its name in deltas.
    pub(crate) name: String,
    /// Its name in the stored JSON.
    pub(crate) json: String,
    pub(crate) ty: Type,
    pub(crate) reducer: Reducer,
    pub(crate) secret: bool,
    /// The user's own doc comments, repeated on the builder.
    pub(crate) docs: Vec<Attribute>,
}

/// How the field takes a delta: the macro's side of `hapax::state::Reducer`.
pub(crate) enum Reducer {
    Last,
    Append,
    Extend,
    Sum,
    Min,
    Max,
    Union,
    Merge,
    Crdt,
    Custom { path: ExprPath, ordered: bool },
}

impl Reducer {
    /// The built-in reducer of that name.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "last" => Self::Last,
            "append" => Self::Append,
            "extend" => Self::Extend,
            "sum" => Self::Sum,
            "min" => Self::Min,
            "max" => Self::Max,
            "union" => Self::Union,
            "merge" => Self::Merge,
            "crdt" => Self::Crdt,
            _ => return None,
        })
    }
}

/// A builder of that name would hide the method that every delta has.
const RESERVED: [&str; 4] = ["goto", "stop", "fork", "clone"];

impl Field {
    pub(crate) fn of(field: &syn::Field, style: Option<Style>) -> Result<Self> {
        let ident = field.ident.clone().ok_or_else(|| Error::new(field.span(), "a field needs a name"))?;
        let name = ident.unraw().to_string();
        if RESERVED.contains(&name.as_str()) {
            let why = format!(
                "the builder of this field would hide the delta's own `{name}()`; \
                 give the field another name (`#[serde(rename = {name:?})]` keeps the stored one)"
            );
            return Err(Error::new(ident.span(), why));
        }
        refuse_hash_sets(&field.ty)?;
        let serde = Serde::of(&field.attrs)?;
        let json = serde.rename.or_else(|| Some(style?.apply(&name))).unwrap_or_else(|| name.clone());
        let options = Options::of(&field.attrs)?;
        let docs = field.attrs.iter().filter(|a| a.path().is_ident("doc")).cloned().collect();
        let secret = options.secret;
        Ok(Self { ident, name, json, ty: field.ty.clone(), reducer: options.reducer()?, secret, docs })
    }

    /// Errors about this field's type point at it; names in the code that they stand in resolve as usual.
    pub(crate) fn span(&self) -> Span {
        Span::call_site().located_at(self.ty.span())
    }

    /// `U` of a field that is written as `Option<U>`.
    pub(crate) fn optional(&self) -> Option<&Type> {
        let Type::Path(path) = &self.ty else { return None };
        let last = path.path.segments.last().filter(|segment| segment.ident == "Option")?;
        let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
        match arguments.args.first()? {
            GenericArgument::Type(inner) => Some(inner),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Options {
    reducer: Option<Reducer>,
    ordered: Option<Span>,
    secret: bool,
}

impl Options {
    fn of(attrs: &[Attribute]) -> Result<Self> {
        let mut options = Self::default();
        for attr in attrs.iter().filter(|a| a.path().is_ident("state")) {
            attr.parse_nested_meta(|meta| options.option(&meta))?;
        }
        Ok(options)
    }

    fn option(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "secret" if self.secret => Err(meta.error("`secret` is said twice; remove one")),
            "secret" => {
                self.secret = true;
                Ok(())
            }
            "ordered" => {
                self.ordered = Some(meta.path.span());
                Ok(())
            }
            "reduce" => {
                let path = meta.value()?.parse()?;
                self.reduce(meta, Reducer::Custom { path, ordered: false })
            }
            "version" | "upgrade" | "crate" => {
                Err(meta.error(format!("`{name}` belongs to the whole state; move it above the struct")))
            }
            _ => match Reducer::named(&name) {
                Some(reducer) => self.reduce(meta, reducer),
                None => Err(meta.error(
                    "unknown option; a field takes one of `last`, `append`, `extend`, `sum`, `min`, `max`, \
                     `union`, `merge`, `crdt`, `reduce = path` (perhaps with `ordered`), and `secret`",
                )),
            },
        }
    }

    fn reduce(&mut self, meta: &ParseNestedMeta<'_>, reducer: Reducer) -> Result<()> {
        match self.reducer.replace(reducer) {
            None => Ok(()),
            Some(_) => Err(meta.error("a field has one reducer; remove this one or the one before it")),
        }
    }

    fn reducer(self) -> Result<Reducer> {
        match (self.reducer, self.ordered) {
            (Some(Reducer::Custom { path, .. }), ordered) => {
                Ok(Reducer::Custom { path, ordered: ordered.is_some() })
            }
            (_, Some(span)) => Err(Error::new(
                span,
                "`ordered` is a promise about a reducer of your own; add `reduce = path`, or remove it",
            )),
            (reducer, None) => Ok(reducer.unwrap_or(Reducer::Last)),
        }
    }
}

/// A `HashSet` is written in another order by every process, so one state would have many digests.
fn refuse_hash_sets(ty: &Type) -> Result<()> {
    match find(ty.to_token_stream(), "HashSet") {
        None => Ok(()),
        Some(span) => Err(Error::new(
            span,
            "a `HashSet` has another order in every process, so its state would never compare equal; \
             use a `BTreeSet`",
        )),
    }
}

fn find(tokens: TokenStream, name: &str) -> Option<Span> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(ident) if ident == name => Some(ident.span()),
        TokenTree::Group(group) => find(group.stream(), name),
        _ => None,
    })
}

//! The names that serde gives to fields: `rename` and `rename_all`, as far as they concern what is stored.
//!
//! Invariant: for the same attributes the result is the key that `#[derive(Serialize)]` writes.

use syn::{Attribute, Error, Expr, LitStr, Result, Token, meta::ParseNestedMeta, token};

/// What serde does with one struct or field.
#[derive(Default)]
pub(crate) struct Serde {
    /// `rename`, for writing.
    pub(crate) rename: Option<String>,
    /// `rename_all`, for writing.
    pub(crate) rename_all: Option<Style>,
}

impl Serde {
    /// Reads the `#[serde(…)]` attributes; refuses those that keep a field out of the stored JSON.
    pub(crate) fn of(attrs: &[Attribute]) -> Result<Self> {
        let mut serde = Self::default();
        for attr in attrs.iter().filter(|a| a.path().is_ident("serde")) {
            attr.parse_nested_meta(|meta| serde.option(&meta))?;
        }
        Ok(serde)
    }

    fn option(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let is = |name| meta.path.is_ident(name);
        if is("rename") {
            self.rename = written(meta)?.map(|name| name.value());
        } else if is("rename_all") {
            self.rename_all = written(meta)?.map(|style| Style::of(&style)).transpose()?;
        } else if is("skip") || is("skip_serializing") || is("skip_deserializing") {
            let why =
                "a skipped field is lost at the first crash; remove `skip`, or keep the value in the app";
            return Err(meta.error(why));
        } else if is("flatten") {
            let why = "a flattened field has no name in the stored state; store it under its own name";
            return Err(meta.error(why));
        } else {
            pass_over(meta)?;
        }
        Ok(())
    }
}

/// The name for writing, in `x = "name"` or `x(serialize = "name", …)`.
fn written(meta: &ParseNestedMeta<'_>) -> Result<Option<LitStr>> {
    if meta.input.peek(Token![=]) {
        return Ok(Some(meta.value()?.parse()?));
    }
    let mut name = None;
    meta.parse_nested_meta(|inner| {
        let value = inner.value()?.parse::<LitStr>()?;
        if inner.path.is_ident("serialize") {
            name = Some(value);
        }
        Ok(())
    })?;
    Ok(name)
}

fn pass_over(meta: &ParseNestedMeta<'_>) -> Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<Expr>()?;
    } else if meta.input.peek(token::Paren) {
        meta.parse_nested_meta(|inner| pass_over(&inner))?;
    }
    Ok(())
}

/// How `rename_all` spells a field.
#[derive(Clone, Copy)]
pub(crate) enum Style {
    /// `lowercase` and `snake_case`, which leave a field as it is.
    AsWritten,
    Upper,
    Pascal,
    Camel,
    Kebab,
    UpperKebab,
}

impl Style {
    fn of(name: &LitStr) -> Result<Self> {
        Ok(match name.value().as_str() {
            "lowercase" | "snake_case" => Self::AsWritten,
            "UPPERCASE" | "SCREAMING_SNAKE_CASE" => Self::Upper,
            "PascalCase" => Self::Pascal,
            "camelCase" => Self::Camel,
            "kebab-case" => Self::Kebab,
            "SCREAMING-KEBAB-CASE" => Self::UpperKebab,
            _ => return Err(Error::new(name.span(), "serde knows no such style")),
        })
    }

    /// The field's name in the stored JSON.
    pub(crate) fn apply(self, field: &str) -> String {
        match self {
            Self::AsWritten => field.to_owned(),
            Self::Upper => field.to_ascii_uppercase(),
            Self::Pascal => pascal(field),
            Self::Camel => {
                let pascal = pascal(field);
                let head = pascal.chars().next().map_or(0, char::len_utf8);
                pascal[..head].to_ascii_lowercase() + &pascal[head..]
            }
            Self::Kebab => field.replace('_', "-"),
            Self::UpperKebab => field.to_ascii_uppercase().replace('_', "-"),
        }
    }
}

fn pascal(field: &str) -> String {
    let mut name = String::new();
    let mut capital = true;
    for letter in field.chars() {
        if letter == '_' {
            capital = true;
        } else {
            name.push(if capital { letter.to_ascii_uppercase() } else { letter });
            capital = false;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_style_spells_as_serde_does() {
        let spelled = |style: Style| style.apply("first_name2");
        assert_eq!(spelled(Style::AsWritten), "first_name2");
        assert_eq!(spelled(Style::Upper), "FIRST_NAME2");
        assert_eq!(spelled(Style::Pascal), "FirstName2");
        assert_eq!(spelled(Style::Camel), "firstName2");
        assert_eq!(spelled(Style::Kebab), "first-name2");
        assert_eq!(spelled(Style::UpperKebab), "FIRST-NAME2");
    }
}

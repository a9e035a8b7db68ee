//! What a store's options have in common, whatever the server.

/// Refuses a prefix that would need quotes in a table's name.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_plain = prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_plain && !prefix.is_empty() {
        return Ok(());
    }
    Err(format!("`{prefix}` can't begin a table's name"))
}

/// An address without its user, password and options.
pub(crate) fn hidden(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "the server".into() };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{}", rest.split('?').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(hidden("mysql://me:p@ss@db:3306/orders?x=secret"), "mysql://db:3306/orders");
        assert_eq!(hidden("me:secret@db"), "the server");
    }

    #[test]
    fn a_prefix_is_letters_digits_and_underscores() {
        assert!(check_prefix("shop_7_").is_ok());
        assert!(["", "a`b", "a-b", "a b"].iter().all(|prefix| check_prefix(prefix).is_err()));
    }
}

//! What a store's options have in common, whatever the server.

/// What names of tables and their indexes leave of a name that a server takes.
const LONGEST_PREFIX: usize = 32;

/// Refuses a prefix that would need quotes in a table's name, or whose case a server may or may not heed.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_plain = prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let begins_well = prefix.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if is_plain && begins_well && prefix.len() <= LONGEST_PREFIX {
        return Ok(());
    }
    Err(format!(
        "`{prefix}` can't begin a table's name: use lower-case letters, digits and `_`, {LONGEST_PREFIX} of them at the most, \
         and no digit first"
    ))
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
    fn a_prefix_is_lower_case_letters_digits_and_underscores() {
        assert!(["shop_7_", "_", &"a".repeat(32)].iter().all(|prefix| check_prefix(prefix).is_ok()));
        let long = "a".repeat(33);
        let bad = ["", "a`b", "a-b", "a b", "Foo_", "1_", "ä_", &long];
        assert!(bad.iter().all(|prefix| check_prefix(prefix).is_err()));
    }
}

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

/// An address under the scheme by which its driver knows it; schemes are the same in any case. Refuses what no driver reads
/// as it was meant.
pub(crate) fn understood(url: &str, scheme: &str) -> Result<String, String> {
    let (_, rest) = url.split_once("://").ok_or_else(|| format!("it begins with no {scheme}://"))?;
    if rest.contains('#') {
        return Err("it holds a `#`, behind which nothing is read: write it as %23".into());
    }
    Ok(format!("{scheme}://{rest}"))
}

/// Refuses an address whose password would be cut.
pub(crate) fn check_password(url: &str) -> Result<(), String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.matches('@').count() > 1 {
        return Err("its user or password holds an `@`, which ends them: write it as %40".into());
    }
    Ok(())
}

/// Refuses an address whose password would be taken for a port or a database.
#[cfg(any(feature = "mysql", test))]
pub(crate) fn check_path(url: &str) -> Result<(), String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = rest.split('?').next().and_then(|rest| rest.split_once('/'));
    if path.is_some_and(|(_, path)| path.contains('@')) {
        return Err("an `@` follows a `/`, which ends user and password: write them as %40 and %2F".into());
    }
    Ok(())
}

/// An address without its user, password and options.
pub(crate) fn hidden(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "the server".into() };
    if rest.find('?').is_some_and(|options| rest.rfind('@').is_some_and(|end| options < end)) {
        // The password may be on either side.
        return format!("{scheme}://…");
    }
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let hosts = rest.split(['/', '?']).next().unwrap_or_default();
    let is_port = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let is_host = |host: &str| match host.rsplit_once(']') {
        Some((_, port)) => is_port(port.trim_start_matches(':')),
        None => host.split_once(':').is_none_or(|(_, port)| is_port(port)) && !host.contains('%'),
    };
    if !hosts.split(',').all(is_host) {
        // A password without the `@` that ends it.
        return format!("{scheme}://…");
    }
    format!("{scheme}://{}", rest.split('?').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(hidden("mysql://me:p@ss@db:3306/orders?x=secret"), "mysql://db:3306/orders");
        assert_eq!(hidden("me:secret@db"), "the server");
        assert_eq!(hidden("mysql://me:sec?ret@db/orders"), "mysql://…");
        assert_eq!(hidden("postgres://db/orders?password=sec@ret"), "postgres://…");
        assert_eq!(hidden("postgres://me:secret"), "postgres://…");
        assert_eq!(hidden("mysql://me:secret%40127.0.0.1:3306/orders"), "mysql://…");
        assert_eq!(
            hidden("postgres://me:x@[::1]:5432,db-2:5433/orders"),
            "postgres://[::1]:5432,db-2:5433/orders"
        );
    }

    #[test]
    fn what_would_be_read_as_something_else_is_refused_with_how_to_write_it() {
        let refused = |url| understood(url, "postgres").unwrap_err();
        let cut = check_password("postgres://me:p@ss@db/orders").unwrap_err();
        assert!(cut.contains("%40"), "{cut}");
        let cut = check_path("mysql://me:p/ss@db/orders").unwrap_err();
        assert!(cut.contains("%2F"), "{cut}");
        assert!(refused("postgres://me:p#ss@db/orders").contains("%23"));
        assert!(refused("postgres://db/orders#runs").contains("%23"));
        let fine = "postgres://me:p%40ss%23@db/orders?options=@";
        check_password(fine).unwrap();
        check_path(fine).unwrap();
        assert_eq!(understood(&fine.replace("postgres:", "PostgreSQL:"), "postgres").unwrap(), fine);
    }

    #[test]
    fn a_prefix_is_lower_case_letters_digits_and_underscores() {
        assert!(["shop_7_", "_", &"a".repeat(32)].iter().all(|prefix| check_prefix(prefix).is_ok()));
        let long = "a".repeat(33);
        let bad = ["", "a`b", "a-b", "a b", "Foo_", "1_", "ä_", &long];
        assert!(bad.iter().all(|prefix| check_prefix(prefix).is_err()));
    }
}

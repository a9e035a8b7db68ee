//! Databases and statements, through the clients that come with the servers.

use crate::ServerError;
use crate::process::{run, with_clean_environment};
use crate::programs::{MARIADB, PSQL};
use crate::server::random;

/// How long a client waits for a server that doesn't answer.
const CONNECT_TIMEOUT_SECONDS: &str = "10";

/// Makes an empty database with a name of its own on the server of a URL, and gives its URL. It is gone with the server.
///
/// ```no_run
/// use hapax_servers::{Postgres, fresh_database};
///
/// let server = Postgres::start()?;
/// assert_ne!(fresh_database(&server.url())?, fresh_database(&server.url())?);
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
///
/// # Errors
///
/// [`ServerError::BadUrl`] when it isn't of this form, [`ServerError::Failed`] when the server refuses.
pub fn fresh_database(base_url: &str) -> Result<String, ServerError> {
    let name = format!("test_{:016x}", random());
    let url = Url::parse(base_url)?.with_database(&name);
    sql(base_url, &format!("CREATE DATABASE {name}"))?;
    Ok(url)
}

/// Executes one statement with the server's own client. Rows are lines, their columns parted by `|`.
///
/// ```
/// use hapax_servers::{ServerError, sql};
///
/// assert!(matches!(sql("sqlite://a.db", "SELECT 1"), Err(ServerError::BadUrl(_))));
/// ```
///
/// # Errors
///
/// [`ServerError::BadUrl`] when the URL is of neither kind, [`ServerError::Failed`] with the client's words when the
/// server refuses, [`ServerError::Missing`] when the client isn't installed.
pub fn sql(url: &str, statement: &str) -> Result<String, ServerError> {
    let parsed = Url::parse(url)?;
    let answer = match parsed.scheme {
        "mysql" => mariadb(&parsed, statement)?.replace('\t', "|"),
        "postgres" | "postgresql" => psql(url, statement)?,
        _ => return Err(ServerError::BadUrl(url.to_owned())),
    };
    Ok(answer.trim_end().to_owned())
}

fn psql(url: &str, statement: &str) -> Result<String, ServerError> {
    let mut client = with_clean_environment(&PSQL.path()?);
    client.env("PGCONNECT_TIMEOUT", CONNECT_TIMEOUT_SECONDS);
    run(client.args(["-X", "-A", "-t", "-q", "-d", url, "-c", statement]))
}

/// The client of MariaDB knows no URLs.
fn mariadb(url: &Url<'_>, statement: &str) -> Result<String, ServerError> {
    let mut client = with_clean_environment(&MARIADB.path()?);
    client.args(["--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp"]);
    client.arg(format!("--connect-timeout={CONNECT_TIMEOUT_SECONDS}"));
    let (user, password) = url.account.split_once(':').unwrap_or((url.account, ""));
    let (host, port) = url.address.split_once(':').unwrap_or((url.address, "3306"));
    client.args(["--user", user, "--host", host, "--port", port, "--execute", statement]);
    if !password.is_empty() {
        // Not as an argument, which everyone on the machine can read.
        client.env("MYSQL_PWD", password);
    }
    run(client.arg(url.database))
}

/// Schemes of servers, of which some have databases and some hand on messages.
const SCHEMES: [&str; 7] = ["postgres", "postgresql", "mysql", "redis", "nats", "amqp", "http"];

/// The parts of a server's URL: `scheme://account@address/database?options`.
#[derive(Debug, PartialEq)]
pub(crate) struct Url<'a> {
    scheme: &'a str,
    account: &'a str,
    address: &'a str,
    database: &'a str,
    /// With the question mark, or empty.
    options: &'a str,
}

impl<'a> Url<'a> {
    pub(crate) fn parse(url: &'a str) -> Result<Self, ServerError> {
        let bad = || ServerError::BadUrl(url.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (rest, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (account, address) = authority.rsplit_once('@').unwrap_or(("", authority));
        if address.is_empty() || !SCHEMES.contains(&scheme) {
            return Err(bad());
        }
        Ok(Url { scheme, account, address, database, options })
    }

    /// The URL of another database on the same server.
    pub(crate) fn with_database(&self, database: &str) -> String {
        Url { database, ..*self }.text()
    }

    /// The URL of the same database through another address.
    pub(crate) fn with_address(&self, address: &str) -> String {
        Url { address, ..*self }.text()
    }

    fn text(&self) -> String {
        let Url { scheme, account, address, database, options } = self;
        let at = if account.is_empty() { "" } else { "@" };
        format!("{scheme}://{account}{at}{address}/{database}{options}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_all_but_what_is_changed() {
        let url = Url::parse("mysql://me:a@b@host:33/one?x=/y").unwrap();
        assert_eq!(url.with_database("two"), "mysql://me:a@b@host:33/two?x=/y");
        assert_eq!(url.with_address("127.0.0.1:9"), "mysql://me:a@b@127.0.0.1:9/one?x=/y");
        assert_eq!(Url::parse("postgresql://host").unwrap().with_database("a"), "postgresql://host/a");
    }

    #[test]
    fn what_is_no_url_of_a_server_is_refused() {
        for bad in ["host:5432", "sqlite://a", "postgres:///a", ""] {
            assert!(matches!(Url::parse(bad), Err(ServerError::BadUrl(url)) if url == bad), "{bad}");
        }
    }
}

//! `hapax top`: the runs, workers and messages of a store, as they move.

use crate::{
    failure::Failure,
    session::Session,
    top::{self, Title, View},
};
use clap::Args;
use std::{
    env,
    io::{self, IsTerminal},
    time::Duration,
};

const AFTER_HELP: &str = "\
Everything is read from the store, which is never written to: it sees workers on any machine, and what nobody works on. Rates \
come from two looks. Runs that were parked at both aren't seen to step between them; a rate with a ≥ was too much to count.

Keys: q quits, p pauses, tab moves between panes, the arrows scroll, s sorts runs (busiest, or longest without a change), \
? helps.

Without a terminal it is as with --once. With --json it writes an object for each look until it is interrupted.

Examples:
  hapax top
  hapax top --interval 5s
  hapax top --once
  hapax top --json | jq '.outbox.lag_ms'
  hapax top --json --once | jq '.runs.in_doubt.count'";

/// Watch runs, workers and the outbox, live
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Top {
    /// How long from one look to the next, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Print one frame, or one object, and exit
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let view = View::new(title(session), self.interval, session.out.paints());
        if session.out.is_json() {
            return top::stream(session, view, self.once).await;
        }
        let is_screen = io::stdout().is_terminal() && io::stdin().is_terminal();
        let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        if self.once || !is_screen || is_dumb {
            return top::once(session, view).await;
        }
        top::show(session, view).await
    }
}

/// What is looked at. A program of a user's own opens its store by itself, and need not say which.
fn title(session: &Session<'_>) -> Title {
    let value = |name: &str| {
        let found = session.address.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned())
    };
    Title {
        store: value("HAPAX_STORE").map(|url| without_password(&url)).unwrap_or_default(),
        namespace: value("HAPAX_NAMESPACE").unwrap_or_default(),
    }
}

/// An address as others may read it over one's shoulder: without the password, and without what follows a `?`.
fn without_password(url: &str) -> String {
    let before = |text: &str, ends: &[char]| text.split(ends).next().unwrap_or(text).to_owned();
    let Some((scheme, rest)) = url.split_once("://") else { return before(url, &['?']) };
    // A password may hold any character, so it ends at the last `@`.
    let Some((user, place)) = rest.rsplit_once('@') else { return before(url, &['?']) };
    format!("{scheme}://{}@{}", before(user, &[':', '?']), before(place, &['?']))
}

/// From a tenth of a second to a day.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!("`{text}` is not a time between two looks; use such as 500ms, 1s or 5m, from 100ms to 24h")
    };
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    let millis = millis.filter(|millis| (100..=86_400_000).contains(millis)).ok_or_else(wrong)?;
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_neither_nothing_nor_for_ever() {
        assert_eq!(parse_interval("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_interval("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["", "1", "s", "0s", "99ms", "25h", "1 s", "-1s", "1d", "99999999999999999999s", "1é"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://ada:s3c@ret@db/orders?sslpassword=x", "postgres://ada@db/orders"),
            ("postgres://me:s3c?r3t@db/orders", "postgres://me@db/orders"),
            ("postgres://db/orders?user=me@home:x", "postgres://db/orders@home:x"),
            ("mysql://db/orders", "mysql://db/orders"),
            ("sqlite:orders.db", "sqlite:orders.db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}

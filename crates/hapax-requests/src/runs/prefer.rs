//! How long a client wants to wait: the header `Prefer` of RFC 7240.

use http::{HeaderMap, HeaderValue};
use std::time::Duration;

/// What a client prefers. What isn't understood is ignored, as the RFC wants it; of what is said twice, the first counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Preference {
    /// It doesn't want to wait.
    respond_async: bool,
    /// It wants to wait so many seconds.
    wait: Option<u64>,
}

impl Preference {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut preference = Self::default();
        let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
        for word in values.flat_map(|value| value.split(',')) {
            // Parameters come behind a semicolon, and none is known.
            let word = word.split(';').next().unwrap_or_default().trim();
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("respond-async") {
                preference.respond_async = true;
            } else if name.eq_ignore_ascii_case("wait") && preference.wait.is_none() {
                preference.wait = value.parse().ok();
            }
        }
        preference
    }

    /// How long a run is waited for. Both together mean: so long, then answer that it is under way.
    pub(super) fn limit(self, by_default: Duration, longest: Duration) -> Duration {
        match (self.wait, self.respond_async) {
            (Some(seconds), _) => Duration::from_secs(seconds).min(longest),
            (None, true) => Duration::ZERO,
            (None, false) => by_default,
        }
    }

    /// What was heeded, for the header `Preference-Applied`.
    pub(super) fn applied(self, longest: Duration) -> Option<HeaderValue> {
        let wait = self.wait.filter(|seconds| Duration::from_secs(*seconds) <= longest);
        let words: Vec<String> = self
            .respond_async
            .then(|| "respond-async".to_owned())
            .into_iter()
            .chain(wait.map(|seconds| format!("wait={seconds}")))
            .collect();
        (!words.is_empty()).then(|| HeaderValue::from_str(&words.join(", ")).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Preference {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("prefer", HeaderValue::from_str(value).unwrap());
        }
        Preference::of(&headers)
    }

    #[test]
    fn a_preference_is_read_as_the_rfc_has_it() {
        let both = Preference { respond_async: true, wait: Some(10) };
        for values in [
            &["respond-async, wait=10"][..],
            &["Respond-Async", "WAIT = \"10\"; x=y"],
            &["foo, wait=10, wait=3, respond-async"],
        ] {
            assert_eq!(of(values), both, "{values:?}");
        }
        for values in [&[][..], &["wait"], &["wait=soon"], &["wait=-1"], &["return=minimal"], &[""], &[",;="]]
        {
            assert_eq!(of(values), Preference::default(), "{values:?}");
        }
    }

    #[test]
    fn nobody_waits_longer_than_the_service_allows() {
        let [usual, longest] = [2, 30].map(Duration::from_secs);
        let limit = |value| of(&[value]).limit(usual, longest).as_secs();
        assert_eq!((limit(""), limit("respond-async"), limit("wait=5")), (2, 0, 5));
        assert_eq!((limit("wait=60"), limit("respond-async, wait=5")), (30, 5));
        assert_eq!(of(&["wait=60"]).applied(longest), None);
        assert_eq!(of(&["wait=5, respond-async"]).applied(longest).unwrap(), "respond-async, wait=5");
    }
}

//! Names that live in the store: checked once, when they enter.
//!
//! Invariant: a value of these types is 1..=255 bytes of UTF-8 without control characters, so that no
//! other place has to ask.

use crate::limits::MAX_ID_BYTES;
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Why a name was refused.
///
/// ```
/// use hapax_core::id::NodeId;
/// let refused = NodeId::new("").unwrap_err();
/// assert_eq!((refused.what, refused.why), ("node id", "is empty"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {shown:?} {why}; use 1 to {MAX_ID_BYTES} bytes of UTF-8 without control characters")]
pub struct InvalidId {
    /// What the name was for: `run id`, `node id`, …
    pub what: &'static str,
    /// The offending name, cut to a readable length.
    pub shown: String,
    /// What is wrong with it.
    pub why: &'static str,
}

fn check(what: &'static str, name: &str) -> Result<(), InvalidId> {
    let why = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_ID_BYTES {
        "is too long"
    } else if name.chars().any(char::is_control) {
        "holds a control character"
    } else {
        return Ok(());
    };
    Err(InvalidId { what, shown: name.chars().take(60).collect(), why })
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            #[doc = concat!("Checks and takes a ", $what, ".")]
            pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidId> {
                check($what, name.as_ref())?;
                Ok(Self(name.as_ref().into()))
            }

            /// The name itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(name: String) -> Result<Self, InvalidId> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type!(
    /// A tenant: leads every primary key and enters every key that leaves the process.
    ///
    /// ```
    /// use hapax_core::id::Namespace;
    /// assert_eq!(Namespace::default().as_str(), "default");
    /// assert!(Namespace::new("").is_err());
    /// ```
    Namespace, "namespace"
);
name_type!(
    /// One execution of a graph.
    ///
    /// ```
    /// use hapax_core::id::RunId;
    /// assert_eq!(RunId::new("order-42").unwrap().as_str(), "order-42");
    /// assert!(RunId::new("two\nlines").is_err());
    /// ```
    RunId, "run id"
);
name_type!(
    /// A node of a graph, by the name that the store keeps.
    ///
    /// ```
    /// use hapax_core::id::NodeId;
    /// let node: NodeId = serde_json::from_str(r#""charge""#)?;
    /// assert_eq!(node, NodeId::new("charge")?);
    /// assert!(serde_json::from_str::<NodeId>(r#""""#).is_err(), "what is read is checked like what is given");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    NodeId, "node id"
);

impl Default for Namespace {
    fn default() -> Self {
        Self("default".into())
    }
}

/// Names a run in a store: the tenant and the run.
///
/// ```
/// use hapax_core::id::{Namespace, RunId, RunKey};
/// let key = RunKey { namespace: Namespace::new("shop")?, run: RunId::new("order-42")? };
/// assert_eq!(key.to_string(), "shop/order-42");
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RunKey {
    /// The tenant.
    pub namespace: Namespace,
    /// The run.
    pub run: RunId,
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace == Namespace::default() {
            write!(f, "{}", self.run)
        } else {
            write!(f, "{}/{}", self.namespace, self.run)
        }
    }
}

/// Checks a name that is not kept as a type of its own.
///
/// ```
/// assert!(hapax_core::id::check_name("label", "before the sale").is_ok());
/// assert!(hapax_core::id::check_name("label", "").is_err());
/// ```
pub fn check_name(what: &'static str, name: &str) -> Result<(), InvalidId> {
    check(what, name)
}

/// Checks one tag: key and value are names like any other.
///
/// ```
/// assert!(hapax_core::id::check_tag("customer", "42").is_ok());
/// assert!(hapax_core::id::check_tag("customer", "4\n2").is_err());
/// ```
pub fn check_tag(key: &str, value: &str) -> Result<(), InvalidId> {
    check("tag key", key)?;
    check("tag value", value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_out_of_bounds_are_refused() {
        assert_eq!(RunId::new("").unwrap_err().why, "is empty");
        assert_eq!(RunId::new("a\u{7f}").unwrap_err().why, "holds a control character");
        assert_eq!(NodeId::new("é".repeat(128)).unwrap_err().why, "is too long");
        assert!(NodeId::new("x".repeat(255)).is_ok());
        assert!(serde_json::from_str::<RunId>("\"a\\u0000\"").is_err());
    }
}

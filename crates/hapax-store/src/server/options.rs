//! How a server is used, whichever it is.

use super::Isolation;
use crate::codec::Codec;

/// What the options of all servers have in common.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) prefix: String,
    pub(crate) sessions: usize,
    pub(crate) isolation: Isolation,
    pub(crate) allow_unsafe: bool,
    pub(crate) must_exist: bool,
    pub(crate) codec: Codec,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "hapax_".into(),
            sessions: 16,
            isolation: Isolation::default(),
            allow_unsafe: false,
            must_exist: false,
            codec: Codec::default(),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .field("sessions", &self.sessions)
            .field("isolation", &self.isolation)
            .field("allow_unsafe", &self.allow_unsafe)
            .field("must_exist", &self.must_exist)
            .field("payload_codec", &self.codec.0.is_some())
            .finish()
    }
}

/// The methods that set them, of options whose field `shared` has them.
macro_rules! shared_options {
    () => {
        /// What the names of the tables begin with; `hapax_` by default. Lower-case letters, digits and `_`, 32 at the most.
        #[must_use]
        pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
            self.shared.prefix = prefix.into();
            self
        }

        /// Sessions at the most; 16 by default.
        #[must_use]
        pub fn sessions(mut self, most: usize) -> Self {
            self.shared.sessions = most.max(1);
            self
        }

        /// What transactions see of each other.
        #[must_use]
        pub fn isolation(mut self, isolation: Isolation) -> Self {
            self.shared.isolation = isolation;
            self
        }

        /// Warns about a server that may lose what it has committed, and uses it nevertheless.
        #[must_use]
        pub fn allow_unsafe(mut self, allow: bool) -> Self {
            self.shared.allow_unsafe = allow;
            self
        }

        /// Refuses a database without our tables, instead of making them.
        #[must_use]
        pub fn must_exist(mut self, must_exist: bool) -> Self {
            self.shared.must_exist = must_exist;
            self
        }

        /// Encrypts, or otherwise changes, what is stored of states, frontiers, journal entries, letters and messages.
        #[must_use]
        pub fn payload_codec(mut self, codec: Arc<dyn PayloadCodec>) -> Self {
            self.shared.codec = Codec(Some(codec));
            self
        }
    };
}
pub(crate) use shared_options;

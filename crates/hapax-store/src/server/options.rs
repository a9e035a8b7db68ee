//! How a server is used, whichever it is.

use super::{Isolation, RIGHTS};
use crate::{codec::Codec, error::StoreError};
use hapax_core::error::code;
use std::time::Duration;

/// Longer than a server of ours lets a statement run: who is slow and lives says so itself.
const ANSWER_LIMIT: Duration = Duration::from_secs(65);

/// What the options of all servers have in common.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) prefix: String,
    pub(crate) sessions: usize,
    pub(crate) answer_limit: Duration,
    pub(crate) isolation: Isolation,
    pub(crate) allow_unsafe: bool,
    pub(crate) must_exist: bool,
    pub(crate) allow_read_only: bool,
    pub(crate) codec: Codec,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "hapax_".into(),
            sessions: 16,
            answer_limit: ANSWER_LIMIT,
            isolation: Isolation::default(),
            allow_unsafe: false,
            must_exist: false,
            allow_read_only: false,
            codec: Codec::default(),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .field("sessions", &self.sessions)
            .field("answer_limit", &self.answer_limit)
            .field("isolation", &self.isolation)
            .field("allow_unsafe", &self.allow_unsafe)
            .field("must_exist", &self.must_exist)
            .field("allow_read_only", &self.allow_read_only)
            .field("payload_codec", &self.codec.hook.is_some())
            .field("blobs_over", &self.codec.aside)
            .field("resting", &self.codec.resting)
            .finish()
    }
}

impl Options {
    /// What a look at the server found; one that takes no writes may do.
    pub(crate) fn admit(&self, checked: Result<(), StoreError>) -> Result<(), StoreError> {
        match checked {
            Err(StoreError::Open { code: code::READ_ONLY, .. }) if self.allow_read_only => Ok(()),
            checked => checked,
        }
    }

    /// What is done with each table.
    pub(crate) fn rights(&self) -> &'static [&'static str] {
        if self.allow_read_only { &RIGHTS[..1] } else { &RIGHTS }
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

        /// How long an answer may take before its connection is given up; 65 s by default, a little longer than the
        /// server lets a statement run.
        #[must_use]
        pub fn answer_limit(mut self, limit: std::time::Duration) -> Self {
            self.shared.answer_limit = limit;
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

        /// Takes a server that takes no writes as well, and a user who may only read: whatever only looks at runs works
        /// there, and everything else fails.
        #[must_use]
        pub fn allow_read_only(mut self, allow: bool) -> Self {
            self.shared.allow_read_only = allow;
            self
        }

        /// Encrypts, or otherwise changes, what is stored of states, frontiers, journal entries, letters and messages.
        #[must_use]
        pub fn payload_codec(mut self, codec: Arc<dyn PayloadCodec>) -> Self {
            self.shared.codec.hook = Some(codec);
            self
        }

        /// Stores payloads of more bytes than this beside their rows, in a table of their own; 64 KiB is a good measure. By
        /// default all are in their rows.
        #[must_use]
        pub fn blobs_over(mut self, bytes: usize) -> Self {
            self.shared.codec.aside = Some(bytes);
            self
        }

        /// Lets what lies beside its row rest in an object store once its run is quiet: what is larger than 64 KiB, unless
        /// [`blobs_over`](Self::blobs_over) says otherwise.
        #[must_use]
        pub fn resting(mut self, resting: $crate::depot::Resting) -> Self {
            self.shared.codec.rest_in(resting);
            self
        }
    };
}
pub(crate) use shared_options;

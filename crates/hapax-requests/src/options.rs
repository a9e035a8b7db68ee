//! What every layer can be told, whatever its protocol.

use std::time::Duration;

/// A lease must leave time for heartbeats.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(30);

/// The methods that all layers have.
macro_rules! common_options {
    () => {
        /// The tenant; `default` by default.
        #[must_use]
        pub fn namespace(self, namespace: hapax_core::id::Namespace) -> Self {
            self.with(|policy| policy.namespace = namespace)
        }

        /// Which requests need a key. By default it is [`KeyRule::of_method`](crate::KeyRule::of_method) of HTTP's verbs,
        /// and for gRPC [`KeyRule::of_grpc`](crate::KeyRule).
        #[must_use]
        pub fn key_rule(
            self,
            rule: impl Fn(&http::request::Parts) -> crate::KeyRule + Send + Sync + 'static,
        ) -> Self {
            self.with(|policy| policy.key_rule = std::sync::Arc::new(rule))
        }

        /// What a request gets whose key is being executed; a refusal at once by default.
        #[must_use]
        pub fn on_conflict(self, on_conflict: crate::OnConflict) -> Self {
            self.with(|policy| policy.on_conflict = on_conflict)
        }

        /// How long the store may take to decide about a claim; 10 seconds by default. Then the client is refused as if the
        /// store were down, and nothing is executed: a claim that is granted later all the same ends with its lease.
        #[must_use]
        pub fn store_patience(self, patience: std::time::Duration) -> Self {
            self.with(|policy| policy.store_patience = patience)
        }

        /// How long a crash keeps a key busy; 30 seconds by default, and at least 30 milliseconds. A handler may take
        /// longer: a heartbeat comes three times in it.
        #[must_use]
        pub fn lease(self, lease: std::time::Duration) -> Self {
            self.with(|policy| policy.lease = lease.max(crate::options::SHORTEST_LEASE))
        }

        /// How long an answer is kept; a day by default.
        #[must_use]
        pub fn expiry(self, expiry: std::time::Duration) -> Self {
            self.with(|policy| policy.expiry = expiry)
        }

        /// The largest body of a request with a key; 1 MiB by default. A larger one is refused.
        #[must_use]
        pub fn max_request_bytes(self, limit: usize) -> Self {
            self.with(|policy| policy.max_request_bytes = limit)
        }

        /// The largest answer that is kept, with its kept headers; 1 MiB by default, and
        /// [`MAX_RESPONSE_BYTES`](hapax_core::limits::MAX_RESPONSE_BYTES) at the most. When a handler gives a larger one
        /// its work is done: everybody is told that, and it isn't done again.
        #[must_use]
        pub fn max_response_bytes(self, limit: usize) -> Self {
            self.with(|policy| policy.max_response_bytes = limit)
        }

        /// How often each decision was made, by all services of this layer.
        pub fn stats(&self) -> crate::Stats {
            self.policy.counters.snapshot()
        }
    };
}
pub(crate) use common_options;

//! A sink that prints.

use super::{Delivery, Sink, SinkError};
use futures::future::BoxFuture;
use std::io::Write;

/// Prints each message as a line of JSON on standard output.
///
/// See [`Delivered`](super::Delivered) for an example.
#[derive(Debug, Clone, Copy, Default)]
pub struct StdoutSink;

impl Sink for StdoutSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let line = message.line()?;
            let print = move || {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(&line).and_then(|()| stdout.flush())
            };
            // A reader may be slow: its pace is no other task's business.
            tokio::task::spawn_blocking(print)
                .await
                .map_err(SinkError::unavailable)?
                .map_err(SinkError::unavailable)
        })
    }
}

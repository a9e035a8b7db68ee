//! A sink that prints.

use super::{Delivery, Sink, SinkError};
use futures::future::BoxFuture;
use std::io::Write;

/// Prints each message as a line of JSON on standard output.
///
/// ```
/// use hapax::outbox::{Delivery, Sink, StdoutSink};
/// # use hapax::core::{id::{Namespace, RunId, RunKey}, json::Json};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// # let (id, topic, key) = ("msg:3b0f".into(), "orders".into(), String::new());
/// # let message = Delivery { id, topic, key, payload: Json::of("paid")?, run, step: 1, refused: 0, event_source: None };
/// // {"id":"msg:3b0f","topic":"orders","key":"","payload":"paid","namespace":"default","run":"order-42","step":1}
/// assert!(StdoutSink.publish(&message).await.is_ok(), "somebody reads our output");
/// # Ok(())
/// # }
/// ```
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

//! Sets telemetry up for an engine, and ends it.

use crate::{
    endpoint::Endpoint,
    numbers::Numbers,
    otlp,
    queue::{Export, Exporting, Queue, SpanCounts},
    sample::Sampler,
    spans::Spans,
};
use hapax::{Coded, Engine};
use hapax_core::error::{Code, code};
use opentelemetry_sdk::{Resource, resource::ResourceBuilder, trace::SpanExporter};
use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

/// Spans that wait for their export at the most.
const QUEUE: usize = 16_384;
/// How often spans are exported that aren't many.
const EVERY: Duration = Duration::from_secs(1);

/// Why telemetry can't be set up.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::Coded;
/// let engine = hapax::Engine::open("memory:").await?;
/// let error = hapax_telemetry::Telemetry::builder().metrics("nowhere").start(&engine).await.unwrap_err();
/// assert_eq!(error.code(), "HX0141");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It can't be as it is asked for.
    #[error("telemetry can't be set up: {0}")]
    Invalid(String),
    /// The engine refused it.
    #[error(transparent)]
    Engine(#[from] hapax::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Error::Invalid(_) => code::TELEMETRY,
            Error::Engine(error) => error.code(),
        }
    }
}

/// Telemetry to be.
///
/// ```
/// use hapax_telemetry::Telemetry;
/// use std::time::Duration;
/// let telemetry = Telemetry::builder()
///     .service_name("orders")
///     .otlp("https://collector.example:4317")
///     .sample_ratio(0.1)
///     .export_every(Duration::from_secs(5));
/// # drop(telemetry);
/// ```
#[must_use = "it does nothing until it is started"]
pub struct Builder {
    service_name: Option<String>,
    way: Way,
    metrics: Option<String>,
    sample_ratio: f64,
    queue: usize,
    every: Duration,
}

/// Makes an exporter once it is known what is traced.
type Made = Box<dyn FnOnce(&Resource) -> Arc<dyn Export> + Send>;

/// Where spans go.
enum Way {
    Nowhere,
    Otlp(String),
    Own(Made),
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses may hold passwords.
        f.write_str("Builder")
    }
}

impl Builder {
    /// What the service is called in traces. Default: what `OTEL_SERVICE_NAME` says, else `hapax`.
    pub fn service_name(mut self, name: &str) -> Self {
        self.service_name = Some(name.into());
        self
    }

    /// Sends spans to a collector that speaks OTLP. An address without a path is spoken to in gRPC
    /// (`http://127.0.0.1:4317`), one with a path in HTTP with protobuf (`http://127.0.0.1:4318/v1/traces`).
    pub fn otlp(mut self, url: &str) -> Self {
        self.way = Way::Otlp(url.into());
        self
    }

    /// Hands spans to an exporter of your own.
    pub fn exporter(mut self, mut exporter: impl SpanExporter + 'static) -> Self {
        self.way = Way::Own(Box::new(move |resource| {
            exporter.set_resource(resource);
            Arc::new(exporter)
        }));
        self
    }

    /// Serves metrics at this address, under `/metrics`; a mere port is one of this machine alone.
    pub fn metrics(mut self, address: &str) -> Self {
        self.metrics = Some(address.into());
        self
    }

    /// How many runs are traced, from 0 to 1: the same ones in every process. Default: all.
    pub fn sample_ratio(mut self, ratio: f64) -> Self {
        self.sample_ratio = ratio;
        self
    }

    /// How many spans may wait for their export; what is more is dropped. Default: 16,384.
    pub fn queue(mut self, spans: usize) -> Self {
        self.queue = spans;
        self
    }

    /// How often spans are exported that aren't many. Default: every second.
    pub fn export_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Begins. A collector needn't be there yet.
    pub async fn start(self, engine: &Engine) -> Result<Telemetry, Error> {
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(Error::Invalid(format!("a ratio is from 0 to 1, not {}", self.sample_ratio)));
        }
        if self.every.is_zero() || self.queue == 0 {
            return Err(Error::Invalid("spans need a queue, and some time in it".into()));
        }
        let resource = resource(self.service_name);
        let exporter = match self.way {
            Way::Nowhere => None,
            Way::Otlp(url) => Some(otlp::exporter(&url, &resource)?),
            Way::Own(make) => Some(make(&resource)),
        };
        let queue = Arc::new(Queue::new(self.queue));
        let endpoint = match &self.metrics {
            None => None,
            Some(address) => {
                let sampler = Sampler::start(engine.clone());
                let numbers = Numbers::new(engine.clone(), sampler.samples(), queue.clone());
                Some((Endpoint::open(address, numbers).await?, sampler))
            }
        };
        let exporting = match exporter {
            None => None,
            Some(exporter) => {
                engine.watch(Arc::new(Spans::new(queue.clone(), self.sample_ratio)))?;
                Some(Exporting::start(queue.clone(), exporter, self.every))
            }
        };
        Ok(Telemetry { queue, exporting, endpoint })
    }
}

fn resource(service_name: Option<String>) -> Resource {
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
    let name = service_name.or_else(|| (!named).then(|| "hapax".to_owned()));
    let resource = Resource::builder();
    name.into_iter().fold(resource, ResourceBuilder::with_service_name).build()
}

/// Telemetry of an engine. Dropped, it ends, and what it hasn't exported is lost: see [`Telemetry::shutdown`].
///
/// It holds the engine, as every handle of it does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let engine = hapax::Engine::open("memory:").await?;
/// let telemetry = hapax_telemetry::Telemetry::builder().metrics("127.0.0.1:0").start(&engine).await?;
/// engine.shutdown(std::time::Duration::from_secs(1)).await;
/// telemetry.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropped, it ends"]
pub struct Telemetry {
    queue: Arc<Queue>,
    exporting: Option<Exporting>,
    endpoint: Option<(Endpoint, Sampler)>,
}

impl Telemetry {
    /// Begins to say what there shall be.
    pub fn builder() -> Builder {
        Builder {
            service_name: None,
            way: Way::Nowhere,
            metrics: None,
            sample_ratio: 1.0,
            queue: QUEUE,
            every: EVERY,
        }
    }

    /// Where the metrics are served, if they are.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(|(endpoint, _)| endpoint.address)
    }

    /// What became of the spans so far.
    pub fn spans(&self) -> SpanCounts {
        self.queue.counts()
    }

    /// Exports what is queued now, if the collector takes it.
    pub async fn flush(&self) {
        if let Some(exporting) = &self.exporting {
            exporting.flush().await;
        }
    }

    /// Exports what is queued, and ends. Shut the engine down first, so that its last spans are among them. A collector that
    /// doesn't answer holds it up for ten seconds at the most.
    pub async fn shutdown(self) {
        self.flush().await;
    }
}

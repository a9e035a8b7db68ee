//! The ways to a collector: OTLP in gRPC, or in HTTP with protobuf.

use crate::{queue::Export, telemetry::Error};
use opentelemetry_otlp::{
    SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig, tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::{Resource, trace::SpanExporter as _};
use reqwest::Url;
use std::{sync::Arc, time::Duration};

/// How long a batch may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An exporter to this address.
pub(crate) fn exporter(url: &str, resource: &Resource) -> Result<Arc<dyn Export>, Error> {
    // What is wrong with an address is said without it: it may hold a password.
    let address = Url::parse(url).map_err(|error| invalid(&format!("the collector's URL: {error}")))?;
    if !matches!(address.scheme(), "http" | "https") || !address.has_host() {
        return Err(invalid("the collector's URL is neither `http:` nor `https:`"));
    }
    let exporter = if address.path() == "/" { grpc(&address) } else { http(&address) };
    let mut exporter = exporter.map_err(|_| invalid("the collector's URL can't be used"))?;
    exporter.set_resource(resource);
    Ok(Arc::new(exporter))
}

fn invalid(what: &str) -> Error {
    Error::Invalid(what.into())
}

fn grpc(address: &Url) -> Result<SpanExporter, Box<dyn std::error::Error>> {
    let builder = SpanExporter::builder().with_tonic().with_endpoint(address.as_str()).with_timeout(TIMEOUT);
    let builder = match address.scheme() {
        "https" => builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots()),
        _ => builder,
    };
    Ok(builder.build()?)
}

fn http(address: &Url) -> Result<SpanExporter, Box<dyn std::error::Error>> {
    let client = reqwest::Client::builder().timeout(TIMEOUT).build()?;
    let builder = SpanExporter::builder().with_http().with_http_client(client);
    Ok(builder.with_endpoint(address.as_str()).with_timeout(TIMEOUT).build()?)
}

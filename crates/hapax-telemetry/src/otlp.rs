//! The ways to a collector: OTLP in gRPC, or in HTTP with protobuf.

use crate::{queue::Export, telemetry::Error};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use opentelemetry_otlp::{
    SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
    tonic_types::{metadata::MetadataMap, transport::ClientTlsConfig},
};
use opentelemetry_sdk::{Resource, trace::SpanExporter as _};
use percent_encoding::percent_decode_str;
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
    let (address, login) = without_login(address);
    let exporter = if address.path() == "/" { grpc(&address, login) } else { http(&address, login) };
    let mut exporter = exporter.map_err(|_| invalid("the collector's URL can't be used"))?;
    exporter.set_resource(resource);
    Ok(Arc::new(exporter))
}

fn invalid(what: &str) -> Error {
    Error::Invalid(what.into())
}

/// The address, and the header that says who asks. Beneath us addresses are logged, headers aren't.
fn without_login(mut address: Url) -> (Url, Option<String>) {
    let (user, password) = (address.username().to_owned(), address.password().map(str::to_owned));
    // Only URLs without a host refuse.
    let _ = address.set_username("").and_then(|()| address.set_password(None));
    if user.is_empty() && password.is_none() {
        return (address, None);
    }
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let login = format!("{}:{}", decoded(&user), decoded(password.as_deref().unwrap_or_default()));
    (address, Some(format!("Basic {}", BASE64_STANDARD.encode(login))))
}

type Built = Result<SpanExporter, Box<dyn std::error::Error>>;

fn grpc(address: &Url, login: Option<String>) -> Built {
    let builder = SpanExporter::builder().with_tonic().with_endpoint(address.as_str()).with_timeout(TIMEOUT);
    let builder = match address.scheme() {
        "https" => builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots()),
        _ => builder,
    };
    let mut metadata = MetadataMap::new();
    if let Some(login) = login {
        metadata.insert("authorization", login.parse()?);
    }
    Ok(builder.with_metadata(metadata).build()?)
}

fn http(address: &Url, login: Option<String>) -> Built {
    let client = reqwest::Client::builder().timeout(TIMEOUT).build()?;
    let builder = SpanExporter::builder().with_http().with_http_client(client);
    let headers = login.into_iter().map(|login| ("authorization".to_owned(), login)).collect();
    Ok(builder.with_headers(headers).with_endpoint(address.as_str()).with_timeout(TIMEOUT).build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leaves_the_address_for_a_header() {
        let address = Url::parse("http://me:p%40ss@127.0.0.1:4318/v1/traces").unwrap();
        let (address, login) = without_login(address);
        assert_eq!(address.as_str(), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(login.as_deref(), Some("Basic bWU6cEBzcw=="));
    }
}

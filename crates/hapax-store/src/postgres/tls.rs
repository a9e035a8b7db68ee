//! How a session is encrypted, and who looks at the server's certificate.
//!
//! Invariant: that the server has the key of its certificate is checked in every mode; what the certificate says, as far
//! as the mode demands.

use crate::server::tls::{Mode, Tls, is_another_name};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

/// What encrypts the sessions of a store.
pub(super) fn connector(tls: &Tls) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Verifier::new(tls, provider.clone())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Asks as much as a mode demands.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    by_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(tls: &Tls, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let chain = match tls.mode {
            Mode::Disable | Mode::Prefer | Mode::Require => None,
            Mode::VerifyCa | Mode::VerifyFull => {
                let authorities = Arc::new(authorities(tls));
                let built =
                    WebPkiServerVerifier::builder_with_provider(authorities, provider.clone()).build();
                Some(built.map_err(|error| error.to_string())?)
            }
        };
        Ok(Self { chain, by_name: tls.mode == Mode::VerifyFull, provider })
    }
}

/// Those whose signature under a certificate counts.
fn authorities(tls: &Tls) -> RootCertStore {
    let mut store = RootCertStore::empty();
    match &tls.root {
        Some(pem) => {
            let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
            store.add_parsable_certificates(certificates);
        }
        None => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    store
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name comes last: all else is fine.
            Err(Error::InvalidCertificate(reason)) if !self.by_name && is_another_name(&reason) => {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

//! TLS: whom a client trusts.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use std::net::{TcpListener, TcpStream};

/// A server with a certificate of its own authority, and that authority's certificate as PEM.
fn over_tls() -> (Server, String) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().signed_by(&key, &authority).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .unwrap();
    let config = Arc::new(config);
    let accept = move |stream: TcpStream| {
        let connection = ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (Server::over(listener, "https", accept, |_, _| ok("sealed")), authority.pem())
}

#[tokio::test]
async fn an_authority_of_ones_own_is_trusted_when_it_is_named() {
    let (server, authority) = over_tls();
    let url = server.url("/x");
    let client = Client::builder().no_proxy().no_system_roots().root_certificate(&authority).build().unwrap();
    let request = move || Request::post(&url);
    assert_eq!(outcome(1, sends_with(&client, request)).await.unwrap().log, ["200 sealed"]);
    assert!(server.received()[0].key().starts_with("fx:"));
}

#[tokio::test]
async fn nothing_is_sent_to_a_server_that_is_not_trusted() {
    let (server, _) = over_tls();
    let (_, another) = over_tls();
    let url = server.url("/x");
    let client = Client::builder().no_proxy().no_system_roots().root_certificate(&another).build().unwrap();
    let request = move || Request::post(&url).kind(WriteAtMostOnce);
    let (engine, _, status) = stands(2, sends_with(&client, request)).await;
    let Status::Failed { error: failure } = status else { panic!("in doubt, or worse: {status:?}") };
    assert!(failure.to_string().contains("certificate"), "{failure}");
    assert!(journal(&engine.store()).await.contains(r#""unsent":true"#));
    assert_eq!((server.count(), server.connections()), (0, 2));
}

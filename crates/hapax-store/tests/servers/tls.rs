//! Encryption: each mode does what users of the server's own clients expect of it.

use crate::both::{Kind, on_both, sql};
use hapax_core::error::code;
use hapax_servers::{MariaDb, Postgres, fresh_database};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

on_both! {
    every_mode_connects_where_it_may,
    a_server_that_is_another_is_refused,
    a_server_without_encryption_is_refused_where_it_is_demanded,
}

/// The files of a server, whose certificate is for `localhost`, and of two authorities, one of which signed it.
struct Files {
    folder: TempDir,
}

impl Files {
    fn make() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // The server has another account.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a folder of ours");
        let files = Self { folder };
        let authority = authority();
        fs::write(files.path("ca.pem"), authority.pem()).expect("a file");
        fs::write(files.path("other-ca.pem"), self::authority().pem()).expect("a file");
        let key = KeyPair::generate().expect("a key");
        let certificate =
            CertificateParams::new(["localhost".into()]).expect("a name").signed_by(&key, &authority);
        for (name, pem) in
            [("cert.pem", certificate.expect("a certificate").pem()), ("key.pem", key.serialize_pem())]
        {
            let path = files.path(name);
            fs::write(&path, pem).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a file of ours");
            if rustix::process::geteuid().is_root() {
                chown(&path, Some(65534), Some(65534)).expect("a file of ours");
            }
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate")
}

/// A server with encryption, the URL of a database by the name on its certificate, and what keeps both.
fn encrypted(kind: Kind, files: &Files) -> (String, Box<dyn std::any::Any>) {
    let (cert, key) = (files.path("cert.pem"), files.path("key.pem"));
    let (url, keep): (_, Box<dyn std::any::Any>) = match kind {
        Kind::Postgres => {
            let [cert, key] =
                [("ssl_cert_file", &cert), ("ssl_key_file", &key)].map(|(name, path)| setting(name, path));
            let server = Postgres::start_with(&["ssl=on", &cert, &key]).expect("a server");
            (server.url(), Box::new(server))
        }
        Kind::MySql => {
            let [cert, key] =
                [("ssl-cert", &cert), ("ssl-key", &key)].map(|(name, path)| setting(name, path));
            let server = MariaDb::start_with(&[&cert, &key]).expect("a server");
            (server.url(), Box::new(server))
        }
    };
    (fresh_database(&url).expect("a database").replace("127.0.0.1", "localhost"), keep)
}

fn setting(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// A URL with a mode and, where one is named, a file of authorities.
fn with(kind: Kind, url: &str, mode: usize, root: Option<&Path>) -> String {
    let postgres = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];
    let mysql = ["DISABLED", "PREFERRED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"];
    let mode = kind.pick(format!("sslmode={}", postgres[mode]), format!("ssl-mode={}", mysql[mode]));
    let root = root.map(|path| format!("&{}={}", kind.pick("sslrootcert", "ssl-ca"), path.display()));
    format!("{url}?{mode}{}", root.unwrap_or_default())
}

const DISABLE: usize = 0;
const ALLOW: usize = 1;
const PREFER: usize = 2;
const REQUIRE: usize = 3;
const VERIFY_CA: usize = 4;
const VERIFY_FULL: usize = 5;

/// How many encrypted sessions there are, or have been.
fn encrypted_sessions(kind: Kind, url: &str) -> u32 {
    let statement = kind.pick(
        "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name = 'hapax'",
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Ssl_finished_accepts'",
    );
    sql(url, statement).parse().expect("a number")
}

async fn every_mode_connects_where_it_may(kind: Kind) {
    let files = Files::make();
    let (url, _server) = encrypted(kind, &files);
    let ca = files.path("ca.pem");
    let mut stores = vec![];
    for (mode, root, is_encrypted) in [
        (DISABLE, None, false),
        (ALLOW, None, true),
        (PREFER, None, true),
        (REQUIRE, None, true),
        (REQUIRE, Some(&*ca), true),
        (VERIFY_CA, Some(&*ca), true),
        (VERIFY_FULL, Some(&*ca), true),
    ] {
        // Whoever asks may be counted as well.
        let [first, before] = [(); 2].map(|()| encrypted_sessions(kind, &url));
        let store = kind.store(&with(kind, &url, mode, root)).await;
        store.health().await.expect("an answer");
        assert_eq!(encrypted_sessions(kind, &url) - before > before - first, is_encrypted, "mode {mode}");
        stores.push(store);
    }
    let (said, code) = kind.refusal(&format!("{url}?{}=perhaps", kind.pick("sslmode", "ssl-mode"))).await;
    assert!(code == code::BAD_URL && said.contains("must be one of"), "{said}");
}

async fn a_server_that_is_another_is_refused(kind: Kind) {
    let files = Files::make();
    let (url, _server) = encrypted(kind, &files);
    let (ca, other) = (files.path("ca.pem"), files.path("other-ca.pem"));
    let root = kind.pick("sslrootcert=", "ssl-ca=");
    for (mode, root_file) in [
        (VERIFY_CA, Some(&*other)),
        (VERIFY_FULL, Some(&*other)),
        (VERIFY_CA, None),
        (REQUIRE, Some(&*other)),
    ] {
        let (said, code) = kind.refusal(&with(kind, &url, mode, root_file)).await;
        assert!(code == code::CANNOT_OPEN && said.contains(root), "{said}");
    }
    // The certificate is for a name, and the address has a number.
    let by_number = url.replace("localhost", "127.0.0.1");
    let (said, code) = kind.refusal(&with(kind, &by_number, VERIFY_FULL, Some(&ca))).await;
    assert!(code == code::CANNOT_OPEN && said.contains("use a name that it is for"), "{said}");
    kind.store(&with(kind, &by_number, VERIFY_CA, Some(&ca))).await;
}

async fn a_server_without_encryption_is_refused_where_it_is_demanded(kind: Kind) {
    let url = kind.database();
    for mode in [REQUIRE, VERIFY_CA, VERIFY_FULL] {
        let (said, code) = kind.refusal(&with(kind, &url, mode, None)).await;
        let cure =
            kind.pick("turn it on (ssl = on), or allow less with sslmode=prefer", "ssl-mode=PREFERRED");
        assert!(
            code == code::CANNOT_OPEN && said.contains("it takes no TLS") && said.contains(cure),
            "{said}"
        );
    }
    for mode in [DISABLE, PREFER] {
        kind.store(&with(kind, &url, mode, None)).await;
    }
}

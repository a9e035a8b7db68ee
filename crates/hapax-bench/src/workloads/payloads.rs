//! Stores whose payloads are encrypted, or lie beside their rows.

use crate::{Result, args::Payloads};
use hapax::store::{
    Store,
    codec::{Encrypted, Keyring},
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    sqlite::{SqliteOptions, SqliteStore},
};
use std::sync::Arc;

/// As good as any: nobody measures what it hides.
const KEY: &str = "bench:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Options of any store, as the payloads want them.
macro_rules! with {
    ($options:ty, $payloads:expr) => {{
        let mut options = <$options>::default();
        if let Some(bytes) = $payloads.blobs_over {
            options = options.blobs_over(bytes);
        }
        if $payloads.encrypted {
            options = options.payload_codec(Arc::new(Encrypted::new(Keyring::parse(KEY)?)));
        }
        options
    }};
}

pub(super) async fn open(url: &str, payloads: Payloads) -> Result<Arc<dyn Store>> {
    Ok(match url.split_once(':') {
        Some(("sqlite", path)) => SqliteStore::open(path, with!(SqliteOptions, payloads)).await?,
        Some(("postgres" | "postgresql", _)) => {
            PostgresStore::open(url, with!(PostgresOptions, payloads)).await?
        }
        Some(("mysql" | "mariadb", _)) => MySqlStore::open(url, with!(MySqlOptions, payloads)).await?,
        _ => return Err(format!("{url} stores no payloads").into()),
    })
}

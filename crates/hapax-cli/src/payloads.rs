//! What the environment says of how payloads are stored, for every command that opens a store: under which keys, and where
//! large ones rest.
//!
//! Invariant: a program that was built without what the environment asks for refuses it, instead of going on without.

use crate::{
    failure::Failure,
    keys::{self, Keyed},
};
use hapax_core::error::{Coded, code};
#[cfg(feature = "mysql")]
use hapax_store::mysql::MySqlOptions;
#[cfg(feature = "postgres")]
use hapax_store::postgres::PostgresOptions;
use hapax_store::{SqliteOptions, codec::PayloadCodec, depot::Resting};
use std::{env, ffi::OsStr, sync::Arc};

/// How payloads are stored.
#[derive(Clone, Default)]
pub(crate) struct Payloads {
    codec: Option<Arc<dyn PayloadCodec>>,
    resting: Option<Resting>,
}

impl Payloads {
    /// As the environment says.
    pub(crate) fn from_env(keyed: &Keyed) -> Result<Self, Failure> {
        let named = env::var_os("HAPAX_OBJECTS").filter(|address| !address.is_empty());
        Ok(Self { codec: keys::codec(keyed)?, resting: named.map(|address| resting(&address)).transpose()? })
    }

    /// A store's options with them.
    pub(crate) fn met_by<O: Stored>(self, mut options: O) -> O {
        if let Some(codec) = self.codec {
            options = options.codec(codec);
        }
        if let Some(resting) = self.resting {
            options = options.resting(resting);
        }
        options
    }
}

/// Options of a store that stores payloads.
pub(crate) trait Stored: Sized {
    fn codec(self, codec: Arc<dyn PayloadCodec>) -> Self;
    fn resting(self, resting: Resting) -> Self;
}

macro_rules! stored {
    ($($options:ty),*) => {$(
        impl Stored for $options {
            fn codec(self, codec: Arc<dyn PayloadCodec>) -> Self {
                self.payload_codec(codec)
            }
            fn resting(self, resting: Resting) -> Self {
                <$options>::resting(self, resting)
            }
        }
    )*};
}
stored!(SqliteOptions);
#[cfg(feature = "postgres")]
stored!(PostgresOptions);
#[cfg(feature = "mysql")]
stored!(MySqlOptions);

fn resting(address: &OsStr) -> Result<Resting, Failure> {
    let address = address.to_str().ok_or_else(|| {
        let told = format!("the address {address:?} in HAPAX_OBJECTS is not UTF-8");
        Failure::coded(code::BAD_DEPOT, told)
    })?;
    Resting::at(address).map_err(|error| Failure::coded(error.code(), error.to_string()))
}

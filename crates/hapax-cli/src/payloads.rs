//! What the environment says of how payloads are stored, for every command that opens a store: under which keys, which are
//! large, and where those rest.
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

/// Of how many bytes a payload is large, unless the environment says otherwise.
const LARGE: usize = 64 * 1024;

/// How payloads are stored.
#[derive(Clone, Default)]
pub(crate) struct Payloads {
    /// What has more bytes is stored beside its row.
    over: Option<usize>,
    codec: Option<Arc<dyn PayloadCodec>>,
    resting: Option<Resting>,
}

impl Payloads {
    /// As the environment says.
    pub(crate) fn from_env(keyed: &Keyed) -> Result<Self, Failure> {
        let named = env::var_os("HAPAX_OBJECTS").filter(|address| !address.is_empty());
        let resting = named.map(|address| resting(&address)).transpose()?;
        Ok(Self { over: Some(over()?), codec: keys::codec(keyed)?, resting })
    }

    /// A store's options with them.
    pub(crate) fn met_by<O: Stored>(self, mut options: O) -> O {
        if let Some(bytes) = self.over {
            options = options.over(bytes);
        }
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
    fn over(self, bytes: usize) -> Self;
    fn codec(self, codec: Arc<dyn PayloadCodec>) -> Self;
    fn resting(self, resting: Resting) -> Self;
}

macro_rules! stored {
    ($($options:ty),*) => {$(
        impl Stored for $options {
            fn over(self, bytes: usize) -> Self {
                self.blobs_over(bytes)
            }
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

fn over() -> Result<usize, Failure> {
    let Some(set) = env::var_os("HAPAX_BLOBS_OVER").filter(|bytes| !bytes.is_empty()) else {
        return Ok(LARGE);
    };
    let bytes = set.to_str().and_then(|bytes| bytes.parse().ok());
    bytes.ok_or_else(|| {
        let refused = Failure::usage(format!("HAPAX_BLOBS_OVER is {set:?}, and no number of bytes"));
        refused.cured_by(format!("HAPAX_BLOBS_OVER={LARGE}, or leave it out"))
    })
}

fn resting(address: &OsStr) -> Result<Resting, Failure> {
    let address = address.to_str().ok_or_else(|| {
        let told = format!("the address {address:?} in HAPAX_OBJECTS is not UTF-8");
        Failure::coded(code::BAD_DEPOT, told)
    })?;
    Resting::at(address).map_err(|error| Failure::coded(error.code(), error.to_string()))
}

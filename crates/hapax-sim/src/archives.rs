//! Large payloads under kills: scrolls that are read from outside page by page, each page a large result, and bound into a
//! large state.
//!
//! Invariant: what a scroll comes to depends on its number alone.

use hapax::{
    core::key::sha256,
    prelude::*,
    store::{
        Store, StoreError,
        codec::{Encrypted, Keyring},
        depot::{Folder, From, Resting},
        mysql::{MySqlOptions, MySqlStore},
        postgres::{PostgresOptions, PostgresStore},
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use serde::{Deserialize, Serialize};
use std::{path::Path, sync::Arc, time::Duration};

/// Pages of a scroll.
pub const PAGES: u32 = 6;
/// Bytes of a page: more than are kept in a row.
const PAGE_BYTES: usize = 20_000;
/// What is larger lies beside its row.
const BLOBS_OVER: usize = 2_000;

/// Two keys, in the form in which they are given to a process.
pub const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// The other one.
pub const NEW: &str = "new:HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";

/// A scroll.
#[derive(State, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scroll {
    /// Its number.
    pub number: u32,
    /// Its pages, as they were read.
    #[state(append)]
    pub pages: Vec<String>,
}

/// A page: letters that don't compress, the same for everyone who reads it.
pub fn page(number: u32, page: u32) -> String {
    let blocks = (0_u32..).map(|block| sha256(format!("{number} {page} {block}").as_bytes()).to_string());
    blocks.flat_map(String::into_bytes).map(char::from).take(PAGE_BYTES).collect()
}

/// A scroll as it must be in the end.
pub fn whole(number: u32) -> Scroll {
    Scroll { number, pages: (0..PAGES).map(|at| page(number, at)).collect() }
}

const READ: Node = Node::new("read");

async fn read(mut ctx: hapax::Ctx<Scroll>) -> hapax::Result<ScrollDelta> {
    let scroll = ctx.state();
    let (number, at) = (scroll.number, scroll.pages.len() as u32);
    let fetch = async |_: hapax::Call| Ok::<_, std::convert::Infallible>(page(number, at));
    let text = ctx.effect("page", Read, &(number, at), fetch).await?;
    Ok(Scroll::delta().pages(text))
}

/// The graph.
pub fn graph() -> Graph<Scroll> {
    let more = |scroll: &Scroll| (scroll.pages.len() as u32) < PAGES;
    Graph::new("archives", 1, READ)
        .node(READ, read)
        .edge_if(READ, READ, "more", more)
        .edge_if(READ, END, "all", move |scroll: &Scroll| !more(scroll))
        .node(END, end)
}

const END: Node = Node::new("end");

async fn end(_: hapax::Ctx<Scroll>) -> ScrollDelta {
    Scroll::delta()
}

/// The store at an address, encrypted under the first of these keys, with large payloads beside their rows, which rest in a
/// folder of objects as soon as somebody looks. Those that nothing refers to stay for so long.
pub async fn open(
    url: &str,
    keys: &str,
    objects: &Path,
    grace: Duration,
) -> Result<Arc<dyn Store>, StoreError> {
    let codec = Arc::new(Encrypted::new(Keyring::parse(keys).expect("keys of ours")));
    let resting = Resting::new(Folder::open(objects).expect("a folder")).after(Duration::ZERO).grace(grace);
    Ok(match url.split_once(':') {
        Some(("sqlite", path)) => {
            let options =
                SqliteOptions::default().payload_codec(codec).blobs_over(BLOBS_OVER).resting(resting);
            SqliteStore::open(path, options).await?
        }
        Some(("postgres", _)) => {
            let options =
                PostgresOptions::default().payload_codec(codec).blobs_over(BLOBS_OVER).resting(resting);
            PostgresStore::open(url, options).await?
        }
        _ => {
            let options =
                MySqlOptions::default().payload_codec(codec).blobs_over(BLOBS_OVER).resting(resting);
            MySqlStore::open(url, options).await?
        }
    })
}

/// Brings everything to rest, and ends what nothing refers to.
pub async fn rest_all(store: &Arc<dyn Store>) -> Result<(), StoreError> {
    let (mut from, mut moved) = (From::default(), false);
    loop {
        let looked = store.rest(from).await?;
        assert_eq!(looked.failed, Vec::<String>::new());
        moved |= looked.rested + looked.deleted > 0;
        match looked.next {
            Some(next) => from = next,
            None if !moved => return Ok(()),
            None => (from, moved) = (From::default(), false),
        }
    }
}

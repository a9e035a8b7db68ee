//! The user's databases: where they are, and how a transaction's outcome is known in each.
//!
//! Invariant: users and passwords stay here. What is journaled, logged or shown of a database is its name, and where it is when it can't be used.

use crate::gate::lock;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use hapax_store::db::{self, DatabaseOptions};
use hapax_store::db::{Database, DbError, Strategy};
use std::{
    collections::BTreeMap,
    env, fmt,
    sync::{Arc, Mutex},
};
use tokio::sync::OnceCell;

/// What an address in the environment is called: `HAPAX_DB_SHOP` for the database `shop`.
const VARIABLE: &str = "HAPAX_DB_";

/// The databases of an engine, opened when they are first used.
#[derive(Clone, Default)]
pub(crate) struct Databases {
    known: Arc<Mutex<BTreeMap<String, Arc<Known>>>>,
}

struct Known {
    url: String,
    open: OnceCell<Arc<dyn Database>>,
    /// That it can be marked, or asked, is found out once.
    marked: OnceCell<()>,
    asked: OnceCell<()>,
}

impl fmt::Debug for Databases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.known).keys()).finish()
    }
}

/// A database that is ready for a transaction.
pub(super) struct Ready {
    pub(super) database: Arc<dyn Database>,
    pub(super) strategy: Strategy,
}

impl Databases {
    pub(crate) fn add(&self, name: &str, url: &str) {
        let url = url.to_owned();
        let known = Known { url, open: OnceCell::new(), marked: OnceCell::new(), asked: OnceCell::new() };
        lock(&self.known).insert(name.to_owned(), Arc::new(known));
    }

    /// The database, open.
    pub(crate) async fn get(&self, name: &str) -> Result<Arc<dyn Database>, DbError> {
        let known = self.known(name)?;
        known.open.get_or_try_init(|| open(&known.url)).await.cloned()
    }

    fn known(&self, name: &str) -> Result<Arc<Known>, DbError> {
        let variable = format!("{VARIABLE}{}", name.to_ascii_uppercase().replace('-', "_"));
        if !lock(&self.known).contains_key(name)
            && let Ok(url) = env::var(&variable)
        {
            self.add(name, &url);
        }
        let known = lock(&self.known).get(name).cloned();
        known.ok_or_else(|| {
            let why = format!(
                "no database is registered under this name: set {variable}, or call `Builder::database(\"{name}\", url)`"
            );
            DbError::Unusable { what: name.to_owned(), why }
        })
    }

    /// The database, ready for a transaction whose outcome is known as is asked for, or by the first way that can be had.
    pub(super) async fn ready(&self, name: &str, asked: Option<Strategy>) -> Result<Ready, DbError> {
        let (database, known) = (self.get(name).await?, self.known(name)?);
        let marked = || known.marked.get_or_try_init(|| database.prepare());
        let answers = || known.asked.get_or_try_init(|| database.prepare_introspection());
        let strategy = match asked {
            Some(Strategy::Introspection) => {
                answers().await?;
                Strategy::Introspection
            }
            Some(Strategy::Marker) => {
                marked().await?;
                Strategy::Marker
            }
            _ => match marked().await {
                Ok(()) => Strategy::Marker,
                Err(unmarked @ DbError::Unusable { .. }) => {
                    answers().await.map_err(|_| unmarked)?;
                    Strategy::Introspection
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Ready { database, strategy })
    }
}

async fn open(url: &str) -> Result<Arc<dyn Database>, DbError> {
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    match &*scheme {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(
            db::SqliteDatabase::open_with(
                std::path::Path::new(&url["sqlite:".len()..]),
                &DatabaseOptions::default(),
            )
            .await?,
        )),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            Ok(Arc::new(db::PostgresDatabase::open_with(url, &DatabaseOptions::default()).await?))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            Ok(Arc::new(db::MySqlDatabase::open_with(url, &DatabaseOptions::default()).await?))
        }
        _ => {
            let why = "its address begins with sqlite:, postgres:// or mysql://, and the crate's feature of that name is on";
            Err(DbError::Unusable { what: "a database".into(), why: why.into() })
        }
    }
}

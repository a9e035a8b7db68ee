//! The user's databases: where they are, and how a transaction's outcome is known in each.
//!
//! Invariant: users and passwords stay here. What is journaled, logged or shown of a database is its name, and where it is when it can't be used.

use crate::gate::lock;
use hapax_core::{
    commit::{Append, Epoch},
    id::{Namespace, RunId, RunKey},
    journal::{Entry, JournalRow},
    key::Digest,
    order::PathHash,
};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use hapax_store::db::{self, DatabaseOptions};
use hapax_store::{
    Store,
    db::{Database, DbError, Isolation, Kind, Strategy, TxOptions},
};
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
    /// Whether it is the one in which the runs are, and lets this user write to them.
    own: OnceCell<Own>,
}

/// How a database stands to that of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    /// It is another.
    No,
    /// It is the same, and this user may not write to the runs.
    Shut,
    Open,
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
        let (open, marked, asked, own) = (OnceCell::new(), OnceCell::new(), OnceCell::new(), OnceCell::new());
        let known = Known { url, open, marked, asked, own };
        lock(&self.known).insert(name.to_owned(), Arc::new(known));
    }

    /// The database, open.
    pub(crate) async fn get(&self, name: &str) -> Result<Arc<dyn Database>, DbError> {
        let known = self.known(name)?;
        known.open.get_or_try_init(|| open(&known.url)).await.cloned()
    }

    /// Whether there is any that transactions could have been in.
    pub(crate) fn are_any(&self) -> bool {
        !lock(&self.known).is_empty()
            || env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with(VARIABLE))
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
    pub(super) async fn ready(
        &self,
        name: &str,
        store: &dyn Store,
        asked: Option<Strategy>,
        isolation: Isolation,
    ) -> Result<Ready, DbError> {
        let (database, known) = (self.get(name).await?, self.known(name)?);
        let own = *known.own.get_or_try_init(|| own(&*database, store)).await?;
        let is_shared_file = own != Own::No && database.kind() == Kind::Sqlite;
        let may_ride = own == Own::Open && (is_shared_file || !database.fails_if_changed(isolation));
        let marked = || known.marked.get_or_try_init(|| database.prepare());
        let answers = || known.asked.get_or_try_init(|| database.prepare_introspection());
        let strategy = match asked {
            Some(Strategy::CoCommit) if own != Own::Open => {
                return Err(unusable(&*database, NOT_OWN));
            }
            Some(Strategy::CoCommit) => Strategy::CoCommit,
            Some(_) if is_shared_file => return Err(unusable(&*database, SHARED_FILE)),
            None if may_ride => Strategy::CoCommit,
            None if is_shared_file => {
                return Err(DbError::Away("the runs in this file can't be written to".into()));
            }
            Some(Strategy::Introspection) => {
                answers().await?;
                Strategy::Introspection
            }
            Some(Strategy::Marker) => {
                marked().await?;
                Strategy::Marker
            }
            None => match marked().await {
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

/// What is said where a transaction can't write to the runs.
const NOT_OWN: &str = "co-commit is asked for, and the runs aren't in this database, or its user lacks rights to their tables: \
     see docs/guide/transactions.md";
/// What is said of another strategy in the file of the runs.
const SHARED_FILE: &str = "the runs are in this file, which takes one writer at a time: leave the strategy open, or use a file of its own";

fn unusable(database: &dyn Database, why: &str) -> DbError {
    DbError::Unusable { what: database.what().to_owned(), why: why.to_owned() }
}

/// How a database stands to that of the runs.
async fn own(database: &dyn Database, store: &dyn Store) -> Result<Own, DbError> {
    let ours = store.identity().await.map_err(|error| DbError::Away(error.to_string()))?;
    let Some(ours) = ours else { return Ok(Own::No) };
    match database.identity().await {
        Ok(theirs) if theirs == ours => may_write(database, store).await,
        Err(DbError::Away(why)) => Err(DbError::Away(why)),
        _ => Ok(Own::No),
    }
}

/// Whether this user may write to the runs: tried for one that isn't there, and undone.
async fn may_write(database: &dyn Database, store: &dyn Store) -> Result<Own, DbError> {
    let away = |error: &dyn fmt::Display| DbError::Away(error.to_string());
    let run = RunKey { namespace: Namespace::default(), run: RunId::new("*").map_err(|error| away(&error))? };
    let (base, path_hash, entry) = (Digest([0; 32]), PathHash(0), Entry::Took { letter: 0 });
    let rows = vec![JournalRow { seq: 0, base, step: 0, path_hash, entry }];
    let epoch = Epoch { counter: 0, nonce: 0 };
    // A number that no row has.
    let nothing = Append { run, epoch, first_seq: i64::MAX.unsigned_abs(), rows, unless_cancelled: true };
    let statements = store.within(&nothing).await.map_err(|error| away(&error))?;
    let mut tx = database.begin(&TxOptions::default()).await?;
    let tried = tx.ride(&statements).await;
    tx.rollback().await?;
    match tried {
        Ok(_) => Ok(Own::Open),
        Err(DbError::Away(why) | DbError::Again(why)) => Err(DbError::Away(why)),
        Err(error) => {
            tracing::warn!(database = database.what(), %error, "transactions can't write to the runs");
            Ok(Own::Shut)
        }
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

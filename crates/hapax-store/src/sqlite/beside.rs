//! A table of a file beside those of runs, on a connection of its own.
//!
//! Invariant: whatever writes is one IMMEDIATE transaction, on the one connection that does so.

use super::{
    SqliteOptions,
    connection::{self, Place},
    error::{Refusal, all_runs, cannot_open, commit_left_nothing, nothing_written, unreadable},
};
use crate::{clock::Clock, error::StoreError};
use hapax_core::id::Namespace;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;

/// A table and how it is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// What is in it, for people.
    pub(super) holds: &'static str,
    pub(super) schema: &'static str,
}

/// A file that has the table.
pub(super) struct Beside {
    writer: Arc<Mutex<Connection>>,
    /// Whoever writes waits here, in the order of coming.
    turn: Arc<Semaphore>,
    pub(super) clock: Clock,
    pub(super) place: Place,
}

impl Beside {
    /// Opens a file, and creates it with its table where there is none.
    pub(super) async fn open(
        path: impl AsRef<Path>,
        options: SqliteOptions,
        table: Table,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        blocking(move || Ok(Self::open_blocking(&path, options, table)?)).await
    }

    fn open_blocking(path: &Path, options: SqliteOptions, table: Table) -> Result<Self, Refusal> {
        let place = Place::new(path);
        if options.must_exist {
            connection::check_holds(&place, table.holds, |file| file.table_exists(None, table.name))?;
        }
        let opened = connection::open_with(&place, options.allow_network_fs, |connection| {
            let made = connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|tx| {
                tx.execute_batch(table.schema)?;
                tx.commit()
            });
            made.map_err(|error| cannot_open(&place.shown(), &error))
        })?;
        let (writer, turn) = (Arc::new(Mutex::new(opened)), Arc::new(Semaphore::new(1)));
        Ok(Self { writer, turn, clock: options.clock, place })
    }

    /// Does `work` in a transaction that writes, and commits it.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, i64) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn =
            self.turn.clone().acquire_owned().await.map_err(|error| StoreError::Retry(error.into()))?;
        let (writer, clock) = (self.writer.clone(), self.clock.clone());
        blocking(move || {
            let _turn = turn;
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            let tx = writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(undone)?;
            // The time of whoever waited for the lock is that of its end.
            let answer = work(&tx, clock.now_us()).map_err(undone)?;
            committed(tx)?;
            Ok(answer)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(StoreError::Retry(error.into())))
}

/// An error after which nothing of the transaction is in the file.
pub(super) fn undone(error: rusqlite::Error) -> StoreError {
    unreadable(error, &all_runs(&Namespace::default()))
}

pub(super) fn committed(tx: Transaction<'_>) -> Result<(), StoreError> {
    tx.commit().map_err(|error| match commit_left_nothing(&error) {
        true => nothing_written(&Arc::new(error), &all_runs(&Namespace::default())),
        false => StoreError::Unknown(error.into()),
    })
}

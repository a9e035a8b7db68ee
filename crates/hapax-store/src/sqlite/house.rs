//! How runs leave and enter a file.
//!
//! Invariant: what arrives is written behind an update of the run's own row that demanded the mover's epoch, as every write
//! is; and a family is shut, closed and opened in one transaction.

use super::{
    SqliteStore, blobs,
    commit::insert_checkpoint,
    error::{damaged, unreadable},
    flow, journal,
    lease::{Leases, holder, new_nonce},
    mailbox, outbox, read,
    runs::{delete_rows, found, wrong_status},
    writer::{Halt, Outcome, Tx},
};
use crate::{
    codec::Codec,
    error::StoreError,
    flow::stored_terms,
    house::{
        Fragment, Head, House, Image, Left, Piece, Sender, Sign, Step, Stop, arrives_over, awaited, cleared,
        closed, given_up, gone, leaving, look_again, may_leave,
        packed::{Load, Packed, pack_all},
        still_here, taken_back, tells_no_more,
    },
    outbox::OutboxRecord,
    prepare::row_sum,
    store::{Answer, RunRecord},
};
use hapax_core::{
    commit::{Epoch, Standing, Status},
    id::{RunId, RunKey},
};
use rusqlite::{Connection, params};
use std::{collections::BTreeMap, sync::Arc};

/// Rows that are read at once.
const PAGE: usize = 256;

fn send_image(connection: &Connection, codec: &Codec, key: &RunKey, sender: &mut Sender) -> Result<(), Stop> {
    let unreadable = |error| unreadable(error, key);
    let record = read::run(connection, key).map_err(unreadable)?;
    let record = record.ok_or_else(|| StoreError::NotFound { run: key.clone() })?;
    sender.head_blocking(Head::of(record)?)?;
    let mut after = 0;
    loop {
        let letters = mailbox::all(connection, codec, key, after, PAGE).map_err(unreadable)?;
        let Some(last) = letters.last() else { break };
        after = last.number;
        letters.into_iter().try_for_each(|letter| sender.push_blocking(Piece::Letter(letter)))?;
    }
    let mut from = 0;
    loop {
        let rows = journal::read(connection, codec, key, from, PAGE).map_err(unreadable)?;
        let Some(last) = rows.last() else { break };
        from = last.seq + 1;
        rows.into_iter().try_for_each(|row| sender.push_blocking(Piece::Row(row.into())))?;
    }
    let mut after = None;
    loop {
        let messages = outbox::of_run(connection, codec, key, after, PAGE).map_err(unreadable)?;
        let Some(last) = messages.last() else { break };
        after = Some(last.place);
        messages.into_iter().try_for_each(|message| sender.push_blocking(Piece::Message(message.into())))?;
    }
    send_steps(connection, codec, key, sender)
}

fn send_steps(connection: &Connection, codec: &Codec, key: &RunKey, sender: &mut Sender) -> Result<(), Stop> {
    read::each_checkpoint(connection, codec, key, (0, usize::MAX), |checkpoint, next_seq| {
        let (step, pages) = (checkpoint.step, checkpoint.pages.len() as u32);
        sender.push_blocking(Piece::Checkpoint(Box::new(Step::of(key, checkpoint, next_seq)?)))?;
        for page in 1..pages {
            let items = read::read_page(connection, codec, key, step, page)?;
            sender.push_blocking(Piece::Page(Fragment { step, page, items }))?;
        }
        Ok(true)
    })
}

/// The family of a run, by name; empty: there is no such run.
fn family(connection: &Connection, key: &RunKey) -> rusqlite::Result<Vec<RunRecord>> {
    let beside = |run: RunId| RunKey { namespace: key.namespace.clone(), run };
    let Some(mut root) = read::run(connection, key)? else { return Ok(vec![]) };
    let mut found = BTreeMap::new();
    while let Some(parent) = root.parent.clone()
        && let Some(parent) = read::run(connection, &beside(parent))?
        && found.insert(root.key.clone(), root.clone()).is_none()
    {
        root = parent;
    }
    let mut at = vec![root];
    found.clear();
    while let Some(record) = at.pop() {
        let mut statement = connection
            .prepare_cached("SELECT run_id FROM hapax_runs WHERE namespace = ?1 AND parent = ?2")?;
        let place = params![key.namespace.as_str(), record.key.run.as_str()];
        let children = statement.query_map(place, |row| row.get::<_, String>(0))?;
        let children = children.collect::<rusqlite::Result<Vec<_>>>()?;
        found.insert(record.key.clone(), record);
        for child in children {
            let child = RunId::new(child).map_err(|error| damaged(error.to_string()))?;
            at.extend(read::run(connection, &beside(child))?.filter(|run| !found.contains_key(&run.key)));
        }
    }
    Ok(found.into_values().collect())
}

/// The family of a run that must be there.
fn whole_family<T>(tx: &Tx<'_>, key: &RunKey) -> Result<Vec<RunRecord>, Halt<T>> {
    let family = family(tx.connection, key)?;
    if family.is_empty() {
        return Err(StoreError::NotFound { run: key.clone() }.into());
    }
    Ok(family)
}

fn leave(tx: &Tx<'_>, leases: &Leases, key: &RunKey, to: &str) -> Outcome<Vec<Left>> {
    let family = still_here(whole_family(tx, key)?, key)?;
    for record in &family {
        if may_leave(record, to)?
            && let Some(held) = holder(tx, leases, &record.key)?
        {
            return Err(held.into());
        }
    }
    let shut = |record| shut(tx, record, to);
    Ok(family.into_iter().map(shut).collect::<rusqlite::Result<_>>()?)
}

/// Nobody takes the run up, and no relay its messages.
fn shut(tx: &Tx<'_>, record: RunRecord, to: &str) -> rusqlite::Result<Left> {
    let status = leaving(&record, to);
    let RunRecord { key, epoch, .. } = record;
    let epoch = Epoch { counter: epoch.counter + 1, nonce: new_nonce() };
    tx.execute(
        "UPDATE hapax_runs SET epoch = ?3, nonce = ?4, owner = NULL, lease_until = 0, lease_ttl = 0, \
         status = 'leaving', status_json = ?5, cancel_requested = 0, wake_at = NULL, wake_letters = NULL \
         WHERE namespace = ?1 AND run_id = ?2",
        params![
            key.namespace.as_str(),
            key.run.as_str(),
            epoch.counter.cast_signed(),
            epoch.nonce.to_be_bytes(),
            status.to_json().as_str(),
        ],
    )?;
    tx.execute(
        "DELETE FROM hapax_channels WHERE namespace = ?1 AND run_id = ?2",
        params![key.namespace.as_str(), key.run.as_str()],
    )?;
    Ok((key, epoch))
}

fn stay(tx: &Tx<'_>, key: &RunKey) -> Outcome<Vec<Left>> {
    let family = still_here(whole_family(tx, key)?, key)?;
    if let Some(other) = family.iter().find(|run| !matches!(run.status, Status::Leaving { .. })) {
        return Err(wrong_status(other.clone()).into());
    }
    let mut stays = vec![];
    for record in family {
        let key = record.key.clone();
        let epoch = Epoch { counter: record.epoch.counter + 1, nonce: new_nonce() };
        let sql = "UPDATE hapax_runs SET epoch = ?3, nonce = ?4 WHERE namespace = ?1 AND run_id = ?2";
        let (counter, nonce) = (epoch.counter.cast_signed(), epoch.nonce.to_be_bytes());
        tx.execute(sql, params![key.namespace.as_str(), key.run.as_str(), counter, nonce])?;
        settle_down(tx, record)?;
        flow::stay(tx, &key)?;
        stays.push((key, epoch));
    }
    Ok(stays)
}

/// The run goes on here, as it stood.
fn settle_down(tx: &Tx<'_>, record: RunRecord) -> rusqlite::Result<()> {
    let (Status::Leaving { was, .. } | Status::Arriving { was, .. }) = record.status else { return Ok(()) };
    let Standing { status, cancel_requested, wake } = *was;
    tx.execute(
        "UPDATE hapax_runs SET status = ?3, status_json = ?4, cancel_requested = ?5, wake_at = ?6, wake_letters = ?7 \
         WHERE namespace = ?1 AND run_id = ?2",
        params![
            record.key.namespace.as_str(),
            record.key.run.as_str(),
            status.word(),
            status.to_json().as_str(),
            cancel_requested,
            wake.at_us,
            mailbox::subjects_json(&wake.letters),
        ],
    )?;
    tx.execute(
        "INSERT INTO hapax_channels (namespace, run_id, topic, due_at) \
         SELECT DISTINCT namespace, run_id, topic, ?3 FROM hapax_outbox WHERE namespace = ?1 AND run_id = ?2 \
         AND status <> 'sent' AND status = 'pending' ON CONFLICT DO NOTHING",
        params![record.key.namespace.as_str(), record.key.run.as_str(), tx.now],
    )?;
    Ok(())
}

fn close(tx: &Tx<'_>, family: &[Left], to: &str) -> Outcome<()> {
    for (key, epoch) in family {
        let Some(record) = read::run(tx.connection, key)? else { return Err(fenced(tx, key)?.into()) };
        change(tx, (key, *epoch), ("leaving", &closed(&record, *epoch, to)?), *epoch)?;
    }
    Ok(())
}

fn take_back(tx: &Tx<'_>, family: &[Left]) -> Outcome<()> {
    for (key, epoch) in family {
        let Some(record) = read::run(tx.connection, key)? else { return Err(fenced(tx, key)?.into()) };
        let later = Epoch { counter: epoch.counter + 1, nonce: new_nonce() };
        change(tx, (key, *epoch), ("moved", &taken_back(&record, *epoch)?), later)?;
    }
    Ok(())
}

/// Gives a run another status, and maybe another epoch, in place of these.
fn change<T>(
    tx: &Tx<'_>,
    (key, epoch): (&RunKey, Epoch),
    (before, after): (&str, &Status),
    later: Epoch,
) -> Result<(), Halt<T>> {
    let met = tx.execute(
        "UPDATE hapax_runs SET status = ?6, status_json = ?7, epoch = ?8, nonce = ?9 WHERE namespace = ?1 AND run_id = ?2 \
         AND status = ?3 AND epoch = ?4 AND nonce = ?5",
        params![
            key.namespace.as_str(),
            key.run.as_str(),
            before,
            epoch.counter.cast_signed(),
            epoch.nonce.to_be_bytes(),
            after.word(),
            after.to_json().as_str(),
            later.counter.cast_signed(),
            later.nonce.to_be_bytes(),
        ],
    )?;
    if met == 1 { Ok(()) } else { Err(fenced(tx, key)?.into()) }
}

fn fenced(tx: &Tx<'_>, key: &RunKey) -> rusqlite::Result<StoreError> {
    let owner = read::run(tx.connection, key)?.map(|record| record.epoch);
    Ok(StoreError::Fenced { run: key.clone(), owner })
}

fn clear(tx: &Tx<'_>, key: &RunKey, epoch: Epoch, forget: bool) -> Outcome<()> {
    let word = cleared(found(tx, key)?, epoch)?;
    delete_rows(tx, key)?;
    if !forget {
        insert_row(tx, &word)?;
    }
    Ok(())
}

fn arrive(tx: &Tx<'_>, head: Head, epoch: Epoch) -> Outcome<()> {
    let mut new = head.arriving(epoch);
    if let Some(there) = read::run(tx.connection, &new.key)? {
        new = arrives_over(new, &there)?;
        delete_rows(tx, &new.key)?;
    }
    Ok(insert_row(tx, &new)?)
}

/// A row that nobody holds, as it is.
fn insert_row(tx: &Tx<'_>, record: &RunRecord) -> rusqlite::Result<()> {
    let (namespace, run) = (record.key.namespace.as_str(), record.key.run.as_str());
    tx.execute(
        "INSERT INTO hapax_runs (namespace, run_id, graph, fingerprint, input, status, status_json, step_id, digest, \
         next_seq, epoch, nonce, owner, lease_until, lease_ttl, cancel_requested, used_us, created_at, updated_at, parent, \
         terms, rank) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, NULL, 0, 0, 0, ?13, ?14, ?15, ?16, ?17, ?14 - ?18)",
        params![
            namespace,
            run,
            &*record.graph,
            record.fingerprint.0,
            record.input.0,
            record.status.word(),
            record.status.to_json().as_str(),
            record.step.cast_signed(),
            record.digest.0,
            record.next_seq.cast_signed(),
            record.epoch.counter.cast_signed(),
            record.epoch.nonce.to_be_bytes(),
            record.used_us.cast_signed(),
            record.created_at_us,
            record.updated_at_us,
            record.parent.as_ref().map(RunId::as_str),
            stored_terms(&record.terms),
            record.terms.head_start_us(),
        ],
    )?;
    for (key, value) in &record.tags {
        let sql = "INSERT INTO hapax_tags (namespace, tag_key, tag_value, run_id) VALUES (?1, ?2, ?3, ?4)";
        tx.execute(sql, params![namespace, key, value, run])?;
    }
    Ok(())
}

/// Demands that the run arrives under this epoch.
fn is_arriving(tx: &Tx<'_>, key: &RunKey, epoch: Epoch) -> rusqlite::Result<bool> {
    let met = tx.execute(
        "UPDATE hapax_runs SET lease_until = 0 WHERE namespace = ?1 AND run_id = ?2 AND status = 'arriving' \
         AND epoch = ?3 AND nonce = ?4",
        params![
            key.namespace.as_str(),
            key.run.as_str(),
            epoch.counter.cast_signed(),
            epoch.nonce.to_be_bytes()
        ],
    )?;
    Ok(met == 1)
}

fn unpack(tx: &Tx<'_>, key: &RunKey, epoch: Epoch, load: &Load) -> Outcome<()> {
    if !is_arriving(tx, key, epoch)? {
        return Err(fenced(tx, key)?.into());
    }
    load.pieces.iter().try_for_each(|piece| put(tx, key, piece))?;
    Ok(blobs::insert(tx, key, &load.blobs)?)
}

/// Writes a piece.
fn put(tx: &Tx<'_>, key: &RunKey, piece: &Packed) -> rusqlite::Result<()> {
    let (namespace, run) = (key.namespace.as_str(), key.run.as_str());
    match piece {
        Packed::Letter(letter, payload) => {
            let sql = "INSERT INTO hapax_letters (namespace, run_id, number, letter_id, subject, payload, sent_at, taken) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
            let (number, subject) = (letter.number.cast_signed(), &*letter.subject);
            let values =
                params![namespace, run, number, letter.id, subject, payload, letter.sent_at_us, letter.taken];
            tx.execute(sql, values)?;
        }
        Packed::Row(row, entry) => {
            let sum = row_sum(row.seq, &row.base, row.step, row.path_hash, entry);
            let (seq, step, path) =
                (row.seq.cast_signed(), row.step.cast_signed(), row.path_hash.0.cast_signed());
            tx.execute(journal::ROW, params![namespace, run, seq, row.base.0, step, path, entry, sum])?;
        }
        Packed::Message(record, payload) => put_message(tx, record, payload)?,
        Packed::Checkpoint(packed) => {
            insert_checkpoint(tx, key, &packed.checkpoint, &packed.parts, packed.next_seq)?;
        }
        Packed::Page { step, page, items } => {
            let sql = "INSERT INTO hapax_frontier (namespace, run_id, step_id, page, items) VALUES (?1, ?2, ?3, ?4, ?5)";
            tx.execute(sql, params![namespace, run, step.cast_signed(), page, items])?;
        }
    }
    Ok(())
}

fn put_message(tx: &Tx<'_>, record: &OutboxRecord, payload: &[u8]) -> rusqlite::Result<()> {
    let OutboxRecord { run, place, message, state, attempts, error, written_at_us } = record;
    tx.execute(
        "INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, status, attempts, error, \
         written_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        params![
            run.namespace.as_str(),
            run.run.as_str(),
            place.step.cast_signed(),
            place.position,
            message.topic,
            message.key,
            payload,
            state.word(),
            attempts,
            error,
            written_at_us,
        ],
    )?;
    Ok(())
}

fn give_up(tx: &Tx<'_>, key: &RunKey, epoch: Epoch) -> Outcome<()> {
    if is_arriving(tx, key, epoch)? {
        let word = given_up(found(tx, key)?);
        delete_rows(tx, key)?;
        word.map_or(Ok(()), |word| insert_row(tx, &word))?;
    }
    Ok(())
}

fn open(tx: &Tx<'_>, family: &[Left]) -> Outcome<()> {
    for (key, epoch) in family {
        let there = read::run(tx.connection, key)?;
        let mut record = there.ok_or_else(|| gone(key))?;
        if !matches!(record.status, Status::Arriving { .. }) {
            continue;
        }
        if record.epoch != *epoch {
            return Err(StoreError::Fenced { run: key.clone(), owner: Some(record.epoch) }.into());
        }
        let latest = tx.one(
            "SELECT 1 FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND digest = ?4",
            params![key.namespace.as_str(), key.run.as_str(), record.step.cast_signed(), record.digest.0],
            |_| Ok(()),
        )?;
        if latest.is_none() {
            return Err(StoreError::CopyDiffers {
                run: key.clone(),
                what: "its latest step is missing".into(),
            }
            .into());
        }
        for child in awaited(&record) {
            if tells_no_more(read::run(tx.connection, &child)?.as_ref()) {
                look_again(&mut record);
            }
        }
        settle_down(tx, record)?;
        flow::move_in(tx, key)?;
    }
    Ok(())
}

fn plate(tx: &Tx<'_>, write: Option<&str>, over: Option<&str>) -> Outcome<Sign> {
    let has_runs = tx.one("SELECT 1 FROM hapax_runs LIMIT 1", (), |_| Ok(()))?.is_some();
    match (write.filter(|_| !has_runs), over) {
        (None, _) => 0,
        (Some(write), None) => tx.execute(
            "INSERT INTO hapax_shards (namespace, plate) VALUES ('', ?1) ON CONFLICT DO NOTHING",
            params![write],
        )?,
        (Some(write), Some(over)) => tx.execute(
            "UPDATE hapax_shards SET plate = ?1 WHERE namespace = '' AND plate = ?2",
            params![write, over],
        )?,
    };
    let said = tx.one("SELECT plate FROM hapax_shards WHERE namespace = ''", (), |row| row.get(0))?;
    Ok(Sign { said, has_runs })
}

impl House for SqliteStore {
    fn plate(&self, write: Option<String>, over: Option<String>) -> Answer<'_, Sign> {
        Box::pin(async move {
            let about = super::all_runs(&hapax_core::id::Namespace::default());
            self.queue.call(about, move |tx| plate(tx, write.as_deref(), over.as_deref())).await
        })
    }

    fn image(&self, run: RunKey) -> Answer<'_, Image> {
        Box::pin(async move {
            let (mut sender, parts) = Sender::new();
            let (readers, codec) = (self.readers.clone(), self.codec.clone());
            tokio::spawn(async move {
                let key = run.clone();
                let read = move |connection: &Connection| {
                    let sent = send_image(connection, &codec, &key, &mut sender);
                    sender.end_blocking(sent);
                    Ok(())
                };
                // What goes wrong before it is read drops the sender, which the receiver notices.
                readers.read(run, read).await
            });
            Image::of(parts).await
        })
    }

    fn family(&self, run: RunKey) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let read = |connection: &_, _: &_, run: &RunKey| {
                let found = family(connection, run).map_err(|error| unreadable(error, run))?;
                Ok(found.into_iter().map(|record| record.key).collect())
            };
            self.read(run, read).await
        })
    }

    fn leave(&self, run: RunKey, to: Arc<str>) -> Answer<'_, Vec<Left>> {
        Box::pin(async move {
            let leases = self.leases.clone();
            self.queue.call(run.clone(), move |tx| leave(tx, &leases, &run, &to)).await
        })
    }

    fn stay(&self, run: RunKey) -> Answer<'_, Vec<Left>> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| stay(tx, &run)).await })
    }

    fn close(&self, family: Vec<Left>, to: Arc<str>) -> Answer<'_, ()> {
        Box::pin(async move {
            let Some((first, _)) = family.first() else { return Ok(()) };
            self.queue.call(first.clone(), move |tx| close(tx, &family, &to)).await
        })
    }

    fn take_back(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move {
            let Some((first, _)) = family.first() else { return Ok(()) };
            self.queue.call(first.clone(), move |tx| take_back(tx, &family)).await
        })
    }

    fn clear(&self, run: RunKey, epoch: Epoch, forget: bool) -> Answer<'_, ()> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| clear(tx, &run, epoch, forget)).await })
    }

    fn arrive(&self, head: Head, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(async move {
            self.encoders.forget(&head.key());
            self.queue.call(head.key(), move |tx| arrive(tx, head.clone(), epoch)).await
        })
    }

    fn unpack(&self, run: RunKey, epoch: Epoch, pieces: Vec<Piece>) -> Answer<'_, ()> {
        Box::pin(async move {
            let load = pack_all(&run, epoch, pieces, &self.codec)?;
            self.queue.call(run.clone(), move |tx| unpack(tx, &run, epoch, &load)).await
        })
    }

    fn give_up(&self, run: RunKey, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| give_up(tx, &run, epoch)).await })
    }

    fn open(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move {
            let Some((first, _)) = family.first() else { return Ok(()) };
            self.queue.call(first.clone(), move |tx| open(tx, &family)).await
        })
    }
}

//! How runs leave and enter a database.
//!
//! Invariant: what arrives is written behind an update of the run's own row that demanded the mover's epoch, as every write
//! is; and a family is shut, closed and opened in one transaction that has locked its rows.

use super::{
    ServerStore, blobs, call,
    commit::{NewCheckpoint, checkpoint_rows},
    error::{Halt, Outcome, undone},
    flow, journal,
    lease::{Overlong, holder, new_nonce},
    look, mailbox, outbox,
    read::{self, RECORD},
    runs::{delete_rows, found_locked, wrong_status},
    sql::{Fault, Inserts, Session, Value, insert, one, values},
    writer::Tx,
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
    prepare::row_sum,
    sharded::partition,
    store::{Answer, Hint, RunRecord},
};
use hapax_core::{
    commit::{Epoch, Standing, Status},
    id::{RunId, RunKey},
};
use std::{collections::BTreeMap, sync::Arc};

/// Rows that are read at once.
const PAGE: usize = 256;

async fn send_image(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    sender: &mut Sender,
) -> Result<(), Stop> {
    let failed = |fault| undone(fault, key);
    let record = read::run(session, key).await.map_err(failed)?;
    let record = record.ok_or_else(|| StoreError::NotFound { run: key.clone() })?;
    sender.head(Head::of(record)?).await?;
    let mut after = 0;
    loop {
        let letters = mailbox::all(session, codec, key, after, PAGE).await.map_err(failed)?;
        let Some(last) = letters.last() else { break };
        after = last.number;
        for letter in letters {
            sender.push(Piece::Letter(letter)).await?;
        }
    }
    let mut from = 0;
    loop {
        let rows = journal::read(session, codec, key, from, PAGE).await.map_err(failed)?;
        let Some(last) = rows.last() else { break };
        from = last.seq + 1;
        for row in rows {
            sender.push(Piece::Row(row.into())).await?;
        }
    }
    let mut after = None;
    loop {
        let messages = outbox::of_run(session, codec, key, after, PAGE).await.map_err(failed)?;
        let Some(last) = messages.last() else { break };
        after = Some(last.place);
        for message in messages {
            sender.push(Piece::Message(message.into())).await?;
        }
    }
    send_steps(session, codec, key, sender).await
}

async fn send_steps(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    sender: &mut Sender,
) -> Result<(), Stop> {
    let sql = "SELECT min(step_id), max(step_id) FROM hapax_checkpoints WHERE namespace = ? AND run_id = ?";
    let row = one(session, sql, values![key.namespace.as_str(), key.run.as_str()]).await;
    let ends =
        row.and_then(|row| row.map_or(Ok((None, None)), |row| Ok((row.maybe_int(0)?, row.maybe_int(1)?))));
    let (Some(first), Some(last)) = ends.map_err(|fault| undone(fault, key))? else { return Ok(()) };
    for step in first.cast_unsigned()..=last.cast_unsigned() {
        let missing = || StoreError::Corrupt {
            run: key.clone(),
            step: Some(step),
            what: "its checkpoint is missing".into(),
        };
        let (checkpoint, next_seq) =
            read::checkpoint(session, codec, key, step).await?.ok_or_else(missing)?;
        let pages = checkpoint.pages.len() as u32;
        sender.push(Piece::Checkpoint(Box::new(Step::of(key, checkpoint, next_seq)?))).await?;
        for page in 1..pages {
            let items = read::read_page(session, codec, key, step, page).await?;
            sender.push(Piece::Page(Fragment { step, page, items })).await?;
        }
    }
    Ok(())
}

/// A run's row, locked where it is to be changed.
async fn record(session: &mut dyn Session, key: &RunKey, lock: &str) -> Result<Option<RunRecord>, Fault> {
    let sql = format!("SELECT {RECORD} FROM hapax_runs WHERE namespace = ? AND run_id = ?{lock}");
    let row = one(session, &sql, values![key.namespace.as_str(), key.run.as_str()]).await?;
    row.map(|row| read::record(&row, &key.namespace)).transpose()
}

/// The family of a run, by name, without its tags; empty: there is no such run.
async fn family(session: &mut dyn Session, key: &RunKey, lock: &str) -> Result<Vec<RunRecord>, Fault> {
    let beside = |run: RunId| RunKey { namespace: key.namespace.clone(), run };
    let Some(mut root) = record(session, key, lock).await? else { return Ok(vec![]) };
    let mut found = BTreeMap::new();
    while let Some(parent) = root.parent.clone()
        && let Some(parent) = record(session, &beside(parent), lock).await?
        && found.insert(root.key.clone(), root.clone()).is_none()
    {
        root = parent;
    }
    let mut at = vec![root];
    found.clear();
    while let Some(parent) = at.pop() {
        let sql = format!("SELECT run_id FROM hapax_runs WHERE namespace = ? AND parent = ?{lock}");
        let rows = session.rows(&sql, values![key.namespace.as_str(), parent.key.run.as_str()]).await?;
        found.insert(parent.key.clone(), parent);
        for row in &rows {
            let child = beside(RunId::new(row.text(0)?)?);
            if !found.contains_key(&child) {
                at.extend(record(session, &child, lock).await?);
            }
        }
    }
    Ok(found.into_values().collect())
}

/// The family of a run that must be there, locked.
async fn whole_family<T>(tx: &mut Tx<'_>, key: &RunKey) -> Result<Vec<RunRecord>, Halt<T>> {
    let family = family(tx.session, key, " FOR UPDATE").await?;
    if family.is_empty() {
        return Err(StoreError::NotFound { run: key.clone() }.into());
    }
    Ok(family)
}

async fn leave(tx: &mut Tx<'_>, overlong: &Overlong, key: &RunKey, to: &str) -> Outcome<Vec<Left>> {
    let family = still_here(whole_family(tx, key).await?, key)?;
    for record in &family {
        if may_leave(record, to)?
            && let Some(held) = holder(tx, overlong, &record.key).await?
        {
            return Err(held.into());
        }
    }
    let mut left = vec![];
    for record in family {
        left.push(shut(tx, record, to).await?);
    }
    Ok(left)
}

/// Nobody takes the run up, and no relay its messages.
async fn shut(tx: &mut Tx<'_>, record: RunRecord, to: &str) -> Result<Left, Fault> {
    let status = leaving(&record, to);
    let RunRecord { key, epoch, .. } = record;
    let epoch = Epoch { counter: epoch.counter + 1, nonce: new_nonce() };
    let place = values![key.namespace.as_str(), key.run.as_str()];
    tx.execute(
        "UPDATE hapax_runs SET epoch = ?, nonce = ?, owner = NULL, lease_until = 0, lease_ttl = 0, ready_at = NULL, \
         status = 'leaving', status_json = ?, cancel_requested = 0, wake_at = NULL, wake_letters = NULL \
         WHERE namespace = ? AND run_id = ?",
        &[values![epoch.counter, &epoch.nonce.to_be_bytes(), status.to_json().as_str()], &place[..]].concat(),
    )
    .await?;
    tx.execute("DELETE FROM hapax_channels WHERE namespace = ? AND run_id = ?", place).await?;
    Ok((key, epoch))
}

async fn stay(tx: &mut Tx<'_>, key: &RunKey) -> Outcome<Vec<Left>> {
    let family = still_here(whole_family(tx, key).await?, key)?;
    if let Some(other) = family.iter().find(|run| !matches!(run.status, Status::Leaving { .. })) {
        return Err(wrong_status(other.clone()).into());
    }
    let mut stays = vec![];
    for record in family {
        let key = record.key.clone();
        let epoch = Epoch { counter: record.epoch.counter + 1, nonce: new_nonce() };
        let sql = "UPDATE hapax_runs SET epoch = ?, nonce = ? WHERE namespace = ? AND run_id = ?";
        let nonce = epoch.nonce.to_be_bytes();
        tx.execute(sql, values![epoch.counter, &nonce, key.namespace.as_str(), key.run.as_str()]).await?;
        settle_down(tx, record).await?;
        flow::stay(tx, &key).await?;
        stays.push((key, epoch));
    }
    Ok(stays)
}

/// The run goes on here, as it stood.
async fn settle_down(tx: &mut Tx<'_>, record: RunRecord) -> Result<(), Fault> {
    let key = record.key;
    let (Status::Leaving { was, .. } | Status::Arriving { was, .. }) = record.status else { return Ok(()) };
    let Standing { status, cancel_requested, wake } = *was;
    let ready = !status.is_final() && (status.is_runnable() || cancel_requested);
    let letters = mailbox::subjects_json(&wake.letters);
    tx.execute(
        "UPDATE hapax_runs SET ready_at = CASE WHEN ? = 1 THEN {now} ELSE ? END, status = ?, status_json = ?, \
         cancel_requested = ?, wake_at = ?, wake_letters = ? WHERE namespace = ? AND run_id = ?",
        values![
            ready,
            wake.at_us,
            status.word(),
            status.to_json().as_str(),
            cancel_requested,
            wake.at_us,
            letters.as_deref(),
            key.namespace.as_str(),
            key.run.as_str(),
        ],
    )
    .await?;
    let sql =
        "SELECT DISTINCT topic FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND status = 'pending'";
    for topic in tx.rows(sql, values![key.namespace.as_str(), key.run.as_str()]).await? {
        outbox::open_channel(tx, &key, topic.text(0)?).await?;
    }
    if ready {
        tx.hints.push(Hint::Ready(key.namespace));
    }
    Ok(())
}

async fn close(tx: &mut Tx<'_>, family: &[Left], to: &str) -> Outcome<()> {
    for (key, epoch) in family {
        let Some(record) = record(tx.session, key, " FOR UPDATE").await? else {
            return Err(fenced(tx, key).await?.into());
        };
        change(tx, (key, *epoch), ("leaving", &closed(&record, *epoch, to)?), *epoch).await?;
    }
    Ok(())
}

async fn take_back(tx: &mut Tx<'_>, family: &[Left]) -> Outcome<()> {
    for (key, epoch) in family {
        let Some(record) = record(tx.session, key, " FOR UPDATE").await? else {
            return Err(fenced(tx, key).await?.into());
        };
        let later = Epoch { counter: epoch.counter + 1, nonce: new_nonce() };
        change(tx, (key, *epoch), ("moved", &taken_back(&record, *epoch)?), later).await?;
    }
    Ok(())
}

/// Gives a run another status, and maybe another epoch, in place of these.
async fn change<T>(
    tx: &mut Tx<'_>,
    (key, epoch): (&RunKey, Epoch),
    (before, after): (&str, &Status),
    later: Epoch,
) -> Result<(), Halt<T>> {
    let met = tx
        .execute(
            "UPDATE hapax_runs SET status = ?, status_json = ?, epoch = ?, nonce = ? WHERE namespace = ? AND run_id = ? \
             AND status = ? AND epoch = ? AND nonce = ?",
            values![
                after.word(),
                after.to_json().as_str(),
                later.counter,
                &later.nonce.to_be_bytes(),
                key.namespace.as_str(),
                key.run.as_str(),
                before,
                epoch.counter,
                &epoch.nonce.to_be_bytes(),
            ],
        )
        .await?;
    if met == 1 { Ok(()) } else { Err(fenced(tx, key).await?.into()) }
}

async fn fenced(tx: &mut Tx<'_>, key: &RunKey) -> Result<StoreError, Fault> {
    let owner = record(tx.session, key, "").await?.map(|record| record.epoch);
    Ok(StoreError::Fenced { run: key.clone(), owner })
}

async fn clear(tx: &mut Tx<'_>, key: &RunKey, epoch: Epoch, forget: bool) -> Outcome<()> {
    found_locked(tx, key).await?;
    let record =
        read::run(tx.session, key).await?.ok_or_else(|| StoreError::NotFound { run: key.clone() })?;
    let word = cleared(record, epoch)?;
    delete_rows(tx, key).await?;
    if !forget {
        insert_row(tx, &word).await?;
    }
    Ok(())
}

async fn arrive(tx: &mut Tx<'_>, head: &Head, epoch: Epoch) -> Outcome<()> {
    let mut new = head.clone().arriving(epoch);
    if let Some(there) = record(tx.session, &new.key, " FOR UPDATE").await? {
        new = arrives_over(new, &there)?;
        delete_rows(tx, &new.key).await?;
    }
    // Another may make room for it just now.
    Ok(insert_row(tx, &new).await.map_err(Fault::taken_is_again)?)
}

/// A row that nobody holds, as it is.
async fn insert_row(tx: &mut Tx<'_>, record: &RunRecord) -> Result<(), Fault> {
    let (namespace, run) = (record.key.namespace.as_str(), record.key.run.as_str());
    tx.execute(
        "INSERT INTO hapax_runs (namespace, run_id, part, graph, fingerprint, input, status, status_json, step_id, digest, \
         next_seq, epoch, nonce, lease_until, lease_ttl, cancel_requested, used_us, created_at, updated_at, parent, terms, \
         head_start) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?)",
        values![
            namespace,
            run,
            partition(&record.key.run),
            &*record.graph,
            &record.fingerprint.0,
            &record.input.0,
            record.status.word(),
            record.status.to_json().as_str(),
            record.step,
            &record.digest.0,
            record.next_seq,
            record.epoch.counter,
            &record.epoch.nonce.to_be_bytes(),
            record.used_us,
            record.created_at_us,
            record.updated_at_us,
            record.parent.as_ref().map(RunId::as_str),
            stored_terms(&record.terms).as_deref(),
            record.terms.head_start_us(),
        ],
    )
    .await?;
    let tag = |(key, value): (&'_ String, &'_ String)| {
        [namespace.to_owned(), key.clone(), value.clone(), run.to_owned()]
    };
    for [namespace, key, value, run] in record.tags.iter().map(tag) {
        let sql = "INSERT INTO hapax_tags (namespace, tag_key, tag_value, run_id) VALUES (?, ?, ?, ?)";
        tx.execute(sql, values![&*namespace, &*key, &*value, &*run]).await?;
    }
    Ok(())
}

/// Demands that the run arrives under this epoch, and locks its row.
async fn is_arriving(tx: &mut Tx<'_>, key: &RunKey, epoch: Epoch) -> Result<bool, Fault> {
    let met = tx
        .execute(
            "UPDATE hapax_runs SET lease_until = 0 WHERE namespace = ? AND run_id = ? AND status = 'arriving' \
             AND epoch = ? AND nonce = ?",
            values![key.namespace.as_str(), key.run.as_str(), epoch.counter, &epoch.nonce.to_be_bytes()],
        )
        .await?;
    Ok(met == 1)
}

async fn unpack(tx: &mut Tx<'_>, key: &RunKey, epoch: Epoch, load: &Load) -> Outcome<()> {
    if !is_arriving(tx, key, epoch).await? {
        return Err(fenced(tx, key).await?.into());
    }
    let sums: Vec<[u8; 8]> = load.pieces.iter().map(sum).collect();
    for table in rows(key, &load.pieces, &sums) {
        insert(tx.session, &table).await?;
    }
    Ok(blobs::insert(tx, key, &load.blobs).await?)
}

/// The checksum of a journal row; of nothing else.
fn sum(piece: &Packed) -> [u8; 8] {
    match piece {
        Packed::Row(row, entry) => row_sum(row.seq, &row.base, row.step, row.path_hash, entry),
        _ => [0; 8],
    }
}

/// The rows of pieces.
fn rows<'p>(key: &'p RunKey, pieces: &'p [Packed], sums: &'p [[u8; 8]]) -> Vec<Inserts<'p>> {
    let table = |into, row| Inserts { into, row, end: "", rows: vec![] };
    let mut letters = table(
        "INSERT INTO hapax_letters (namespace, run_id, number, letter_id, subject, payload, sent_at, taken)",
        "(?, ?, ?, ?, ?, ?, ?, ?)",
    );
    let mut journal = table(
        "INSERT INTO hapax_journal (namespace, run_id, seq, base, step_id, path_hash, entry, row_sum)",
        "(?, ?, ?, ?, ?, ?, ?, ?)",
    );
    let mut messages = table(
        "INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, status, attempts, \
         error, written_at)",
        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    );
    let mut pages =
        table("INSERT INTO hapax_frontier (namespace, run_id, step_id, page, items)", "(?, ?, ?, ?, ?)");
    let mut steps = vec![];
    for (piece, sum) in pieces.iter().zip(sums) {
        let mut row: Vec<Value<'p>> = values![key.namespace.as_str(), key.run.as_str()].to_vec();
        match piece {
            Packed::Letter(letter, payload) => {
                row.extend_from_slice(values![letter.number, letter.id.as_str(), &*letter.subject, payload]);
                row.extend_from_slice(values![letter.sent_at_us, letter.taken]);
                letters.rows.push(row);
            }
            Packed::Row(entry, bytes) => {
                row.extend_from_slice(values![entry.seq, &entry.base.0, entry.step, entry.path_hash.0]);
                row.extend_from_slice(values![bytes, sum]);
                journal.rows.push(row);
            }
            Packed::Message(record, payload) => {
                let (place, message) = (record.place, &record.message);
                row.extend_from_slice(values![place.step, u64::from(place.position), message.topic.as_str()]);
                row.extend_from_slice(values![message.key.as_str(), payload, record.state.word()]);
                row.push(u64::from(record.attempts).into());
                row.push(Value::Blob(record.error.as_deref().map(str::as_bytes)));
                row.push(record.written_at_us.into());
                messages.rows.push(row);
            }
            Packed::Checkpoint(step) => steps.push(NewCheckpoint {
                run: key,
                checkpoint: &step.checkpoint,
                parts: &step.parts,
                next_seq: step.next_seq,
            }),
            Packed::Page { step, page, items } => {
                row.extend_from_slice(values![*step, u64::from(*page), items]);
                pages.rows.push(row);
            }
        }
    }
    [letters, journal, messages, pages]
        .into_iter()
        .chain(checkpoint_rows(&steps))
        .filter(|table| !table.rows.is_empty())
        .collect()
}

async fn give_up(tx: &mut Tx<'_>, key: &RunKey, epoch: Epoch) -> Outcome<()> {
    if is_arriving(tx, key, epoch).await? {
        let arriving = read::run(tx.session, key).await?;
        let word = arriving.and_then(given_up);
        delete_rows(tx, key).await?;
        if let Some(word) = word {
            insert_row(tx, &word).await?;
        }
    }
    Ok(())
}

async fn open(tx: &mut Tx<'_>, family: &[Left]) -> Outcome<()> {
    for (key, epoch) in family {
        let there = record(tx.session, key, " FOR UPDATE").await?;
        let mut there = there.ok_or_else(|| gone(key))?;
        if !matches!(there.status, Status::Arriving { .. }) {
            continue;
        }
        if there.epoch != *epoch {
            return Err(StoreError::Fenced { run: key.clone(), owner: Some(there.epoch) }.into());
        }
        let latest = tx
            .one(
                "SELECT 1 FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id = ? AND digest = ?",
                values![key.namespace.as_str(), key.run.as_str(), there.step, &there.digest.0],
            )
            .await?;
        if latest.is_none() {
            return Err(StoreError::CopyDiffers {
                run: key.clone(),
                what: "its latest step is missing".into(),
            }
            .into());
        }
        for child in awaited(&there) {
            // Locked, so that it doesn't end unheard meanwhile.
            if tells_no_more(record(tx.session, &child, " FOR UPDATE").await?.as_ref()) {
                look_again(&mut there);
            }
        }
        settle_down(tx, there).await?;
        flow::move_in(tx, key).await?;
    }
    Ok(())
}

async fn plate(tx: &mut Tx<'_>, write: Option<&str>, over: Option<&str>) -> Outcome<Sign> {
    let said = "SELECT plate FROM hapax_shards WHERE namespace = ''";
    let has_runs = tx.one("SELECT 1 FROM hapax_runs LIMIT 1", &[]).await?.is_some();
    match (write.filter(|_| !has_runs), over) {
        (None, _) => {}
        (Some(write), None) => {
            if tx.one(said, &[]).await?.is_none() {
                let sql = "INSERT INTO hapax_shards (namespace, plate) VALUES ('', ?)";
                // Another was faster: what it said counts.
                tx.execute(sql, values![write.as_bytes()]).await.map_err(Fault::taken_is_again)?;
            }
        }
        (Some(write), Some(over)) => {
            let sql = "UPDATE hapax_shards SET plate = ? WHERE namespace = '' AND plate = ?";
            tx.execute(sql, values![write.as_bytes(), over.as_bytes()]).await?;
        }
    }
    // What another has said meanwhile is behind the snapshot of a transaction that has one.
    let said = if over.is_some() { format!("{said} FOR UPDATE") } else { said.to_owned() };
    let row = tx.one(&said, &[]).await?;
    let said =
        row.map(|row| row.blob(0).map(|said| String::from_utf8_lossy(said).into_owned())).transpose()?;
    Ok(Sign { said, has_runs })
}

impl House for ServerStore {
    fn plate(&self, write: Option<String>, over: Option<String>) -> Answer<'_, Sign> {
        Box::pin(async move {
            let about = super::all_runs(&hapax_core::id::Namespace::default());
            call!(self, &about, |tx| plate(tx, write.as_deref(), over.as_deref()))
        })
    }

    fn image(&self, run: RunKey) -> Answer<'_, Image> {
        Box::pin(async move {
            let (mut sender, parts) = Sender::new();
            let (sessions, codec) = (self.sessions.clone(), self.codec.clone());
            tokio::spawn(async move {
                let sent = read_image(&Looking { sessions }, &codec, &run, &mut sender).await;
                sender.end(sent).await;
            });
            Image::of(parts).await
        })
    }

    fn family(&self, run: RunKey) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let found = look!(self, &run, |session| family(session, &run, ""));
            let found = found.map_err(|fault| undone(fault, &run))?;
            Ok(found.into_iter().map(|record| record.key).collect())
        })
    }

    fn leave(&self, run: RunKey, to: Arc<str>) -> Answer<'_, Vec<Left>> {
        Box::pin(async move { call!(self, &run, |tx| leave(tx, &self.overlong, &run, &to)) })
    }

    fn stay(&self, run: RunKey) -> Answer<'_, Vec<Left>> {
        Box::pin(async move { call!(self, &run, |tx| stay(tx, &run)) })
    }

    fn close(&self, family: Vec<Left>, to: Arc<str>) -> Answer<'_, ()> {
        Box::pin(async move {
            let Some((first, _)) = family.first() else { return Ok(()) };
            call!(self, first, |tx| close(tx, &family, &to))
        })
    }

    fn take_back(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move {
            let Some((first, _)) = family.first() else { return Ok(()) };
            call!(self, first, |tx| take_back(tx, &family))
        })
    }

    fn clear(&self, run: RunKey, epoch: Epoch, forget: bool) -> Answer<'_, ()> {
        Box::pin(async move { call!(self, &run, |tx| clear(tx, &run, epoch, forget)) })
    }

    fn arrive(&self, head: Head, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(async move {
            let run = head.key();
            self.encoders.forget(&run);
            call!(self, &run, |tx| arrive(tx, &head, epoch))
        })
    }

    fn unpack(&self, run: RunKey, epoch: Epoch, pieces: Vec<Piece>) -> Answer<'_, ()> {
        Box::pin(async move {
            let load = pack_all(&run, epoch, pieces, &self.codec)?;
            call!(self, &run, |tx| unpack(tx, &run, epoch, &load))
        })
    }

    fn give_up(&self, run: RunKey, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(async move { call!(self, &run, |tx| give_up(tx, &run, epoch)) })
    }

    fn open(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move {
            let Some((first, _)) = family.first() else { return Ok(()) };
            call!(self, first, |tx| open(tx, &family))
        })
    }
}

/// What is needed to read beside the store, which may be gone before the reading ends.
struct Looking {
    sessions: super::pool::Sessions,
}

async fn read_image(store: &Looking, codec: &Codec, run: &RunKey, sender: &mut Sender) -> Result<(), Stop> {
    look!(store, run, |session| send_image(session, codec, run, sender))
}

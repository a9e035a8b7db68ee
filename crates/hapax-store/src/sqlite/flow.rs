//! Flow control: slots, queues and names, and the transaction that hands them on.
//!
//! Invariant: a slot's primary key is its concurrency key and its number. The writer is alone in its transaction, so what it
//! reads of a queue is so until it commits.

use super::{
    SqliteStore, blobs,
    commit::insert_checkpoint,
    error::{all_runs, damaged, unreadable},
    read, runs,
    writer::{Halt, Outcome, Tx},
};
use crate::{
    check::check_new_run,
    clock::Clock,
    error::StoreError,
    flow::{
        Flow, Holder, KeyRecord, KeyView, NameKind, NameRecord, RESTED_US, Replaced, Seen, Spread,
        SpreadPage, Stands, WALK, bucket, is_spread, keeps_name, let_go, may_be_replaced, moved_in, names_of,
        next_token, read_terms, stored_terms, waits_anew, waits_for_key, walks,
    },
    prepare::Birth,
    store::{Answer, Created, NewRun, RunRecord},
};
use hapax_core::{
    commit::Status,
    flow::{Key, Rate, Reservation, Terms},
    id::{Namespace, RunId, RunKey},
    limits::FLOW_PAGE,
};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;

/// Of a run `r` and what `h` has: the run isn't over, and it is its own, not that of an earlier life under the same name.
const LIVES: &str = "r.status NOT IN ('succeeded', 'failed', 'cancelled', 'moved') AND instr(coalesce(r.terms, ''), h.token) > 0";

/// What can be settled where it is asked: the run under a name.
pub(super) type Met = Result<(), Halt<Created>>;

/// Meets the terms of a run that was just inserted.
pub(super) fn meet_terms(tx: &Tx<'_>, new: &NewRun) -> Met {
    if new.terms.is_plain() {
        return Ok(());
    }
    let mut terms = new.terms.clone();
    if let Some(holder) = name_holder(tx, &new.key, &terms)? {
        return Err(Halt::Settle(Ok(Created::Exists(Box::new(holder)))));
    }
    if let Some(rate) = terms.rate.as_ref().filter(|_| terms.not_before_us.is_none()) {
        terms.not_before_us = Some(reserve(tx, &new.key.namespace, rate)?.at_us);
    }
    if let Some(calm) = &terms.debounce {
        terms.not_before_us = Some(calm.due_us(tx.now, tx.now));
    }
    take_names(tx, &new.key, &terms)?;
    Ok(admit(tx, &new.key, &terms)?)
}

/// The run that lives under a name that a run asks for.
fn name_holder(tx: &Tx<'_>, run: &RunKey, terms: &Terms) -> rusqlite::Result<Option<RunRecord>> {
    for (kind, name) in names_of(terms) {
        let holder = tx.one(
            "SELECT run_id FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND name = ?3 AND run_id <> ?4",
            params![run.namespace.as_str(), kind.word(), name, run.run.as_str()],
            |row| row.get::<_, String>(0),
        )?;
        let Some(holder) = holder else { continue };
        let record = read::run(tx.connection, &beside(run, &holder)?)?;
        if let Some(record) = record.filter(|record| keeps_name(kind, record)) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

fn beside(run: &RunKey, id: &str) -> rusqlite::Result<RunKey> {
    let run_id = RunId::new(id).map_err(|error| damaged(error.to_string()))?;
    Ok(RunKey { namespace: run.namespace.clone(), run: run_id })
}

fn take_names(tx: &Tx<'_>, run: &RunKey, terms: &Terms) -> rusqlite::Result<()> {
    for (kind, name) in names_of(terms) {
        tx.execute(
            "INSERT INTO hapax_flow_names (namespace, kind, name, run_id, token, at_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
             ON CONFLICT (namespace, kind, name) DO UPDATE SET run_id = ?4, token = ?5, at_us = ?6",
            params![run.namespace.as_str(), kind.word(), name, run.run.as_str(), terms.token, tx.now],
        )?;
    }
    Ok(())
}

/// Parks a run until it has its slots and its time, or lets it go; and writes its terms down.
fn admit(tx: &Tx<'_>, run: &RunKey, terms: &Terms) -> rusqlite::Result<()> {
    let (namespace, id) = (run.namespace.as_str(), run.run.as_str());
    tx.execute(
        "UPDATE hapax_runs SET terms = ?3, rank = created_at - ?4 WHERE namespace = ?1 AND run_id = ?2",
        params![namespace, id, stored_terms(terms), terms.head_start_us()],
    )?;
    let waits = !terms.keys.is_empty();
    let (status, wake_at) = if waits { (waits_for_key(), None) } else { let_go(terms, tx.now) };
    if terms.parks() {
        stands(tx, run, &status, wake_at)?;
    }
    set_out(tx, run, terms)
}

/// Sends a run to its keys: to all of them here, or from one database to the next.
fn set_out(tx: &Tx<'_>, run: &RunKey, terms: &Terms) -> rusqlite::Result<()> {
    if !walks(terms) {
        return enrol(tx, run, terms).map(drop);
    }
    tx.execute(
        "INSERT INTO hapax_flow_names (namespace, kind, name, run_id, token, at_us) VALUES (?1, ?2, ?3, ?3, ?4, ?5) \
         ON CONFLICT (namespace, kind, name) DO UPDATE SET token = ?4, at_us = ?5",
        params![run.namespace.as_str(), WALK, run.run.as_str(), terms.token, tx.now],
    )?;
    Ok(())
}

fn stands(tx: &Tx<'_>, run: &RunKey, status: &Status, wake_at: Option<i64>) -> rusqlite::Result<()> {
    tx.execute(
        "UPDATE hapax_runs SET status = ?3, status_json = ?4, wake_at = ?5, updated_at = ?6 \
         WHERE namespace = ?1 AND run_id = ?2",
        params![
            run.namespace.as_str(),
            run.run.as_str(),
            status.word(),
            status.to_json().as_str(),
            wake_at,
            tx.now
        ],
    )?;
    Ok(())
}

/// A failed run that goes on takes what it held again; an error when its name is another's now.
pub(super) fn readmit(tx: &Tx<'_>, record: &RunRecord) -> Outcome<()> {
    if !record.terms.holds() {
        return Ok(());
    }
    free_all(tx, &record.key)?;
    let terms = record.terms.clone().again(next_token(&record.terms.token));
    if let Some(holder) = name_holder(tx, &record.key, &terms)? {
        let name = terms.singleton.unwrap_or_default();
        return Err(StoreError::NameTaken { name, holder: holder.key.run }.into());
    }
    take_names(tx, &record.key, &terms)?;
    Ok(admit(tx, &record.key, &terms)?)
}

/// Frees what a run has of an earlier life and nobody has given back yet: it must not wait for itself.
fn free_all(tx: &Tx<'_>, run: &RunKey) -> rusqlite::Result<()> {
    let mut statement = tx.connection.prepare_cached(
        "SELECT token FROM hapax_flow_slots WHERE namespace = ?1 AND run_id = ?2 \
         UNION SELECT token FROM hapax_flow_queue WHERE namespace = ?1 AND run_id = ?2",
    )?;
    let tokens = statement.query_map(params![run.namespace.as_str(), run.run.as_str()], |row| row.get(0))?;
    for token in tokens.collect::<rusqlite::Result<Vec<String>>>()? {
        release(tx, run, &token)?;
    }
    Ok(())
}

/// A run that stays after all may have been given its slots while it was shut.
pub(super) fn stay(tx: &Tx<'_>, run: &RunKey) -> rusqlite::Result<()> {
    let Some(record) = read::run(tx.connection, run)? else { return Ok(()) };
    if record.status != waits_for_key() || walks(&record.terms) {
        return Ok(());
    }
    let held = tx.one(
        "SELECT count(*) FROM hapax_flow_slots WHERE namespace = ?1 AND run_id = ?2 AND token = ?3",
        params![run.namespace.as_str(), run.run.as_str(), record.terms.token],
        |row| row.get::<_, i64>(0),
    )?;
    if held == Some(record.terms.keys.len() as i64) { wake(tx, run) } else { Ok(()) }
}

/// A run that came from another store takes here what it held there. A name that is another's here stays so.
pub(super) fn move_in(tx: &Tx<'_>, run: &RunKey) -> rusqlite::Result<()> {
    let Some(record) = read::run(tx.connection, run)? else { return Ok(()) };
    if record.status.is_final() || !record.terms.holds() {
        return Ok(());
    }
    free_all(tx, run)?;
    let terms = moved_in(record.terms);
    if name_holder(tx, run, &terms)?.is_none() {
        take_names(tx, run, &terms)?;
    }
    tx.execute(
        "UPDATE hapax_runs SET terms = ?3 WHERE namespace = ?1 AND run_id = ?2",
        params![run.namespace.as_str(), run.run.as_str(), stored_terms(&terms)],
    )?;
    if waits_anew(&record.status, &terms) {
        stands(tx, run, &waits_for_key(), None)?;
    }
    set_out(tx, run, &terms)
}

/// Takes a run's place in the queue of its first key, unless it has it.
fn enrol(tx: &Tx<'_>, run: &RunKey, terms: &Terms) -> rusqlite::Result<Vec<RunKey>> {
    let Some((first, rest)) = terms.keys.split_first() else { return Ok(vec![]) };
    let held = tx.one(
        "SELECT 1 FROM hapax_flow_slots WHERE namespace = ?1 AND run_id = ?2 AND flow_key = ?3 AND token = ?4",
        params![run.namespace.as_str(), run.run.as_str(), first.name, terms.token],
        |_| Ok(()),
    )?;
    if held.is_some() {
        return Ok(if rest.is_empty() { vec![run.clone()] } else { vec![] });
    }
    let rank = tx.now.saturating_sub(terms.head_start_us());
    queue(tx, run, rank, &terms.token, first, rest)?;
    hand_out(tx, &run.namespace, [first.name.clone()].into())
}

/// Takes a place in a queue. One that the run has keeps its turn, unless it is of an earlier life under the same name.
fn queue(tx: &Tx<'_>, run: &RunKey, rank: i64, token: &str, key: &Key, rest: &[Key]) -> rusqlite::Result<()> {
    tx.execute(
        "INSERT INTO hapax_flow_queue (namespace, flow_key, run_id, position, most, token, rest) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (namespace, flow_key, run_id) DO UPDATE \
         SET position = ?4, most = ?5, token = ?6, rest = ?7 WHERE token <> ?6",
        params![
            run.namespace.as_str(),
            key.name,
            run.run.as_str(),
            rank,
            key.most,
            token,
            serde_json::to_string(rest).map_err(|error| damaged(error.to_string()))?,
        ],
    )?;
    Ok(())
}

/// Gives what is free of these keys to those who wait longest. Keys are taken in one order, so the work ends.
fn hand_out(tx: &Tx<'_>, namespace: &Namespace, mut keys: BTreeSet<String>) -> rusqlite::Result<Vec<RunKey>> {
    let mut free = vec![];
    while let Some(key) = keys.pop_first() {
        while let Some(place) = next_of(tx, namespace, &key)? {
            match place.rest.split_first() {
                Some((next, rest)) => {
                    queue(tx, &place.run, place.rank, &place.token, next, rest)?;
                    keys.insert(next.name.clone());
                }
                // Whether a run has all of its slots that are spread, no database knows by itself.
                None if is_spread(&place.token) => free.push(place.run),
                None => {
                    wake(tx, &place.run)?;
                    free.push(place.run);
                }
            }
        }
    }
    Ok(free)
}

/// Whose turn it is.
struct Place {
    run: RunKey,
    rank: i64,
    most: u32,
    token: String,
    rest: Vec<Key>,
}

/// The first who waits, and whether its place is its own.
fn first_of(tx: &Tx<'_>, namespace: &Namespace, key: &str) -> rusqlite::Result<Option<(Place, bool)>> {
    let sql = format!(
        "SELECT h.run_id, position, most, token, rest, r.run_id IS NOT NULL FROM (SELECT run_id, position, most, token, rest \
         FROM hapax_flow_queue WHERE namespace = ?1 AND flow_key = ?2 ORDER BY position, run_id LIMIT 1) AS h \
         LEFT JOIN hapax_runs AS r ON r.namespace = ?1 AND r.run_id = h.run_id AND {LIVES}"
    );
    tx.one(&sql, params![namespace.as_str(), key], |row| {
        let run = RunId::new(row.get_ref(0)?.as_str()?).map_err(|error| damaged(error.to_string()))?;
        let rest = serde_json::from_str(row.get_ref(4)?.as_str()?);
        let place = Place {
            run: RunKey { namespace: namespace.clone(), run },
            rank: row.get(1)?,
            most: row.get(2)?,
            token: row.get(3)?,
            rest: rest.map_err(|error| damaged(format!("the keys of a run cannot be read: {error}")))?,
        };
        // Of runs that are spread this database can't tell.
        let lives = is_spread(&place.token) || row.get(5)?;
        Ok((place, lives))
    })
}

fn leave_queue(tx: &Tx<'_>, run: &RunKey, key: &str) -> rusqlite::Result<()> {
    tx.execute(
        "DELETE FROM hapax_flow_queue WHERE namespace = ?1 AND flow_key = ?2 AND run_id = ?3",
        params![run.namespace.as_str(), key, run.run.as_str()],
    )?;
    Ok(())
}

/// Gives a slot to the first who waits, if one is free for it. A place that a run has left behind is nobody's turn.
fn next_of(tx: &Tx<'_>, namespace: &Namespace, key: &str) -> rusqlite::Result<Option<Place>> {
    let first = loop {
        match first_of(tx, namespace, key)? {
            Some((place, true)) => break place,
            Some((left, false)) => leave_queue(tx, &left.run, key)?,
            None => return Ok(None),
        }
    };
    let mut statement = tx.connection.prepare_cached(
        "SELECT slot FROM hapax_flow_slots WHERE namespace = ?1 AND flow_key = ?2 ORDER BY slot",
    )?;
    let taken = statement.query_map(params![namespace.as_str(), key], |row| row.get(0))?;
    let taken = taken.collect::<rusqlite::Result<Vec<u32>>>()?;
    let Some(slot) = Key::new(key, first.most).free_slot(&taken) else { return Ok(None) };
    let (id, of) = (first.run.run.as_str(), namespace.as_str());
    tx.execute(
        "INSERT INTO hapax_flow_slots (namespace, flow_key, slot, run_id, token, most, since) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![of, key, slot, id, first.token, first.most, tx.now],
    )?;
    leave_queue(tx, &first.run, key)?;
    Ok(Some(first))
}

/// A run that has all of its slots goes on.
fn wake(tx: &Tx<'_>, run: &RunKey) -> rusqlite::Result<()> {
    let json = tx.one(
        "SELECT terms FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2 AND status_json = ?3",
        params![run.namespace.as_str(), run.run.as_str(), waits_for_key().to_json().as_str()],
        |row| row.get::<_, Option<String>>(0),
    )?;
    let Some(json) = json else { return Ok(()) };
    let (status, wake_at) = let_go(&read_terms(json.as_deref()).map_err(damaged)?, tx.now);
    stands(tx, run, &status, wake_at)
}

/// Lets a run go that has all of its slots under a token. One that moves goes on when it has settled.
fn arrived(tx: &Tx<'_>, run: &RunKey, token: &str) -> rusqlite::Result<bool> {
    let Some(record) = read::run(tx.connection, run)? else { return Ok(false) };
    if record.terms.token != token || record.status.is_moving() {
        return Ok(false);
    }
    tx.execute(
        "DELETE FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND name = ?3 AND token = ?4",
        params![run.namespace.as_str(), WALK, run.run.as_str(), token],
    )?;
    wake(tx, run)?;
    Ok(record.status == waits_for_key())
}

/// Frees what a run has taken under a token, and hands it on. Also a place in a queue: those behind it may go where it could not.
fn release(tx: &Tx<'_>, run: &RunKey, token: &str) -> rusqlite::Result<Vec<RunKey>> {
    let ours = params![run.namespace.as_str(), run.run.as_str(), token];
    let mut statement = tx.connection.prepare_cached(
        "SELECT flow_key FROM hapax_flow_slots WHERE namespace = ?1 AND run_id = ?2 AND token = ?3 \
         UNION SELECT flow_key FROM hapax_flow_queue WHERE namespace = ?1 AND run_id = ?2 AND token = ?3",
    )?;
    let keys =
        statement.query_map(ours, |row| row.get(0))?.collect::<rusqlite::Result<BTreeSet<String>>>()?;
    for sql in [
        "DELETE FROM hapax_flow_slots WHERE namespace = ?1 AND run_id = ?2 AND token = ?3",
        "DELETE FROM hapax_flow_queue WHERE namespace = ?1 AND run_id = ?2 AND token = ?3",
        "DELETE FROM hapax_flow_names WHERE namespace = ?1 AND run_id = ?2 AND token = ?3",
    ] {
        tx.execute(sql, ours)?;
    }
    hand_out(tx, &run.namespace, keys)
}

fn reserve(tx: &Tx<'_>, namespace: &Namespace, rate: &Rate) -> rusqlite::Result<Reservation> {
    let (of, kind, name) = (namespace.as_str(), NameKind::Rate.word(), bucket(rate));
    let arrival = tx.one(
        "SELECT at_us FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND name = ?3",
        params![of, kind, name],
        |row| row.get(0),
    )?;
    let reserved = rate.reserve(arrival, tx.now);
    tx.execute(
        "INSERT INTO hapax_flow_names (namespace, kind, name, at_us) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (namespace, kind, name) DO UPDATE SET at_us = ?4",
        params![of, kind, name, reserved.arrival_us],
    )?;
    Ok(reserved)
}

fn replace(tx: &Tx<'_>, birth: &Birth) -> Outcome<Replaced> {
    let (new, key) = (&birth.run, &birth.run.key);
    let Some(calm) = &new.terms.debounce else { return Ok(Replaced::TooLate) };
    let first = tx.one(
        "SELECT at_us FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND name = ?3 AND run_id = ?4",
        params![key.namespace.as_str(), NameKind::Debounce.word(), calm.name, key.run.as_str()],
        |row| row.get::<_, i64>(0),
    )?;
    let (Some(first), Some(record)) = (first, read::run(tx.connection, key)?) else {
        return Ok(Replaced::TooLate);
    };
    if !may_be_replaced(&record, new)? {
        return Ok(Replaced::TooLate);
    }
    runs::demand_key(tx, &record)?;
    let due = calm.due_us(first, tx.now);
    let terms = Terms { not_before_us: Some(due), ..record.terms };
    for sql in [
        "DELETE FROM hapax_frontier WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_keys WHERE namespace = ?1 AND run_id = ?2",
    ] {
        tx.execute(sql, params![key.namespace.as_str(), key.run.as_str()])?;
    }
    insert_checkpoint(tx, key, &new.checkpoint, &birth.parts, 0)?;
    blobs::insert(tx, key, &birth.blobs)?;
    blobs::sweep(tx, key)?;
    tx.execute(
        "UPDATE hapax_runs SET fingerprint = ?3, input = ?4, digest = ?5, wake_at = ?6, terms = ?7, updated_at = ?8 \
         WHERE namespace = ?1 AND run_id = ?2",
        params![
            key.namespace.as_str(),
            key.run.as_str(),
            new.fingerprint.0,
            new.input.0,
            new.checkpoint.digest.0,
            due,
            stored_terms(&terms),
            tx.now
        ],
    )?;
    Ok(Replaced::Done)
}

/// What runs had that are over or gone or have another token.
struct LeftBehind {
    of: Vec<(RunKey, String)>,
    /// How far it was looked among places and names; `None`: to the end.
    until: Option<String>,
}

/// Looks at all slots, and at a page of the places in queues and of the names, of runs behind one. Of slots and places that
/// are spread this database can't tell.
fn left_behind(connection: &Connection, namespace: &Namespace, behind: &str) -> rusqlite::Result<LeftBehind> {
    let until = end_of_page(connection, namespace, behind, ["hapax_flow_queue", "hapax_flow_names"])?;
    let within = match until {
        Some(_) => "namespace = ?1 AND run_id > ?3 AND run_id <= ?4",
        None => "namespace = ?1 AND run_id > ?3 AND ?4 IS NULL",
    };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT h.run_id, h.token FROM \
         (SELECT run_id, token FROM hapax_flow_slots WHERE namespace = ?1 AND token NOT LIKE 'spread:%' \
          UNION SELECT run_id, token FROM hapax_flow_queue WHERE {within} AND token NOT LIKE 'spread:%' \
          UNION SELECT run_id, token FROM hapax_flow_names WHERE {within}) AS h \
         LEFT JOIN hapax_runs AS r ON r.namespace = ?1 AND r.run_id = h.run_id AND {LIVES} \
         WHERE r.run_id IS NULL LIMIT ?2",
    ))?;
    let rows = statement.query_map(params![namespace.as_str(), FLOW_PAGE as i64, behind, until], |row| {
        let run = RunId::new(row.get_ref(0)?.as_str()?).map_err(|error| damaged(error.to_string()))?;
        Ok((RunKey { namespace: namespace.clone(), run }, row.get(1)?))
    })?;
    let of = rows.collect::<Result<_, _>>()?;
    Ok(LeftBehind { of, until })
}

/// The run that a page of either table ends with; `None`: there are no more rows than that in either.
fn end_of_page(
    connection: &Connection,
    namespace: &Namespace,
    behind: &str,
    tables: [&str; 2],
) -> rusqlite::Result<Option<String>> {
    let last = |table: &str| {
        format!(
            "SELECT run_id FROM (SELECT run_id FROM {table} WHERE namespace = ?1 AND run_id > ?2 \
             ORDER BY run_id LIMIT 1 OFFSET ?3)"
        )
    };
    let sql = format!("SELECT min(run_id) FROM ({} UNION ALL {})", last(tables[0]), last(tables[1]));
    let page = params![namespace.as_str(), behind, FLOW_PAGE as i64 - 1];
    connection.prepare_cached(&sql)?.query_row(page, |row| row.get(0))
}

/// Whether a bucket has been full for long.
fn has_rested(connection: &Connection, namespace: &Namespace, now: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND at_us < ?3 LIMIT 1";
    let before = now - RESTED_US;
    connection.prepare_cached(sql)?.exists(params![namespace.as_str(), NameKind::Rate.word(), before])
}

/// Forgets buckets that have been full for long.
fn forget_rested(tx: &Tx<'_>, namespace: &Namespace) -> Outcome<()> {
    tx.execute(
        "DELETE FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND at_us < ?3",
        params![namespace.as_str(), NameKind::Rate.word(), tx.now - RESTED_US],
    )?;
    Ok(())
}

fn keys(connection: &Connection, namespace: &Namespace) -> rusqlite::Result<Vec<KeyRecord>> {
    let mut statement = connection.prepare_cached(
        "SELECT flow_key, sum(held), max(most), sum(1 - held) FROM \
         (SELECT flow_key, most, 1 AS held FROM hapax_flow_slots WHERE namespace = ?1 \
          UNION ALL SELECT flow_key, most, 0 FROM hapax_flow_queue WHERE namespace = ?1) \
         GROUP BY flow_key ORDER BY flow_key",
    )?;
    let rows = statement.query_map(params![namespace.as_str()], |row| {
        let count = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok(KeyRecord { name: row.get(0)?, held: count(1)?, most: row.get(2)?, waiting: count(3)? })
    })?;
    rows.collect()
}

fn key(connection: &Connection, namespace: &Namespace, name: &str) -> rusqlite::Result<KeyView> {
    let id = |text: String| RunId::new(text).map_err(|error| damaged(error.to_string()));
    let mut statement = connection.prepare_cached(
        "SELECT slot, run_id, since FROM hapax_flow_slots WHERE namespace = ?1 AND flow_key = ?2 ORDER BY slot",
    )?;
    let held = statement.query_map(params![namespace.as_str(), name], |row| {
        Ok(Holder { slot: row.get(0)?, run: id(row.get(1)?)?, since_us: row.get(2)? })
    })?;
    let held = held.collect::<rusqlite::Result<_>>()?;
    let mut statement = connection.prepare_cached(
        "SELECT run_id FROM hapax_flow_queue WHERE namespace = ?1 AND flow_key = ?2 ORDER BY position, run_id LIMIT ?3",
    )?;
    let waiting =
        statement.query_map(params![namespace.as_str(), name, FLOW_PAGE as i64], |row| id(row.get(0)?))?;
    Ok(KeyView { held, waiting: waiting.collect::<rusqlite::Result<_>>()? })
}

fn names(connection: &Connection, namespace: &Namespace) -> rusqlite::Result<Vec<NameRecord>> {
    let mut statement = connection.prepare_cached(
        "SELECT kind, name, run_id, at_us FROM hapax_flow_names WHERE namespace = ?1 AND kind <> ?2 \
         ORDER BY kind, name",
    )?;
    let rows = statement.query_map(params![namespace.as_str(), WALK], |row| {
        let word: String = row.get(0)?;
        let kind = NameKind::from_word(&word).ok_or_else(|| damaged(format!("a name is a `{word}`")))?;
        let run = row.get::<_, Option<String>>(2)?.map(RunId::new).transpose();
        let run = run.map_err(|error| damaged(error.to_string()))?;
        Ok(NameRecord { kind, name: row.get(1)?, run, at_us: row.get(3)? })
    })?;
    rows.collect()
}

fn holder(
    connection: &Connection,
    namespace: &Namespace,
    kind: NameKind,
    name: &str,
) -> rusqlite::Result<Option<RunId>> {
    let sql = "SELECT run_id FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND name = ?3";
    let which = params![namespace.as_str(), kind.word(), name];
    let run =
        connection.prepare_cached(sql)?.query_row(which, |row| row.get::<_, Option<String>>(0)).optional()?;
    run.flatten().map(RunId::new).transpose().map_err(|error| damaged(error.to_string()))
}

/// The runs whose slots are spread, in a page of all that there are behind one.
fn spread(
    connection: &Connection,
    namespace: &Namespace,
    seen: Seen,
    behind: &str,
) -> rusqlite::Result<SpreadPage> {
    match seen {
        Seen::Walking => walking(connection, namespace, behind),
        Seen::Holding => holding(connection, namespace, behind),
    }
}

/// A run that walks has a row of its own name.
fn walking(connection: &Connection, namespace: &Namespace, behind: &str) -> rusqlite::Result<SpreadPage> {
    let mut statement = connection.prepare_cached(
        "SELECT name, token FROM hapax_flow_names WHERE namespace = ?1 AND kind = ?2 AND name > ?3 \
         ORDER BY name LIMIT ?4",
    )?;
    let which = params![namespace.as_str(), WALK, behind, FLOW_PAGE as i64];
    let runs = statement.query_map(which, spread_run)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let until = runs.get(FLOW_PAGE - 1).map(|last| last.run.clone());
    Ok(SpreadPage { runs, until })
}

/// The page is one of all slots and places: those that are spread may be few, and behind many others.
fn holding(connection: &Connection, namespace: &Namespace, behind: &str) -> rusqlite::Result<SpreadPage> {
    let tables = ["hapax_flow_slots", "hapax_flow_queue"];
    let until = end_of_page(connection, namespace, behind, tables)?;
    let within = match until {
        Some(_) => "namespace = ?1 AND run_id > ?2 AND run_id <= ?3",
        None => "namespace = ?1 AND run_id > ?2 AND ?3 IS NULL",
    };
    let here = |table| format!("SELECT run_id, token FROM {table} WHERE {within} AND token LIKE 'spread:%'");
    let sql = format!("{} UNION {} ORDER BY run_id, token", here(tables[0]), here(tables[1]));
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![namespace.as_str(), behind, until], spread_run)?;
    let runs = rows.collect::<rusqlite::Result<_>>()?;
    let until = until.map(RunId::new).transpose().map_err(|error| damaged(error.to_string()))?;
    Ok(SpreadPage { runs, until })
}

fn spread_run(row: &rusqlite::Row<'_>) -> rusqlite::Result<Spread> {
    let run = RunId::new(row.get_ref(0)?.as_str()?).map_err(|error| damaged(error.to_string()))?;
    Ok(Spread { run, token: row.get(1)? })
}

/// Where runs stand that live here, and under which tokens they wait.
fn standing(
    connection: &Connection,
    namespace: &Namespace,
    runs: &[RunId],
) -> rusqlite::Result<Vec<(Spread, Stands)>> {
    let mut found = vec![];
    let mut queued = connection
        .prepare_cached("SELECT run_id, token FROM hapax_flow_queue WHERE namespace = ?1 AND run_id = ?2")?;
    for run in runs {
        let key = RunKey { namespace: namespace.clone(), run: run.clone() };
        if let Some(record) = read::run(connection, &key)? {
            let one = Spread { run: run.clone(), token: record.terms.token };
            found.push((one, crate::flow::stands(&record.status)));
        }
        for place in queued.query_map(params![namespace.as_str(), run.as_str()], spread_run)? {
            found.push((place?, Stands::Queued));
        }
    }
    Ok(found)
}

impl SqliteStore {
    /// Reads flow control in one snapshot.
    async fn read_flow<T: Send + 'static>(
        &self,
        namespace: Namespace,
        read: impl FnOnce(&Connection, &Namespace) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let about = all_runs(&namespace);
        let read = move |connection: &Connection, _: &_, about: &RunKey| {
            read(connection, &namespace).map_err(|error| unreadable(error, about))
        };
        self.read(about, read).await
    }
}

impl Flow for SqliteStore {
    fn enrol(&self, run: RunKey, terms: Terms) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let terms = terms.in_order();
            terms.check().map_err(StoreError::Terms)?;
            self.queue.call(run.clone(), move |tx| Ok(enrol(tx, &run, &terms)?)).await
        })
    }

    fn release(&self, run: RunKey, token: String) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| Ok(release(tx, &run, &token)?)).await })
    }

    fn reserve(&self, namespace: Namespace, rate: Rate) -> Answer<'_, Reservation> {
        Box::pin(async move {
            rate.check().map_err(StoreError::Terms)?;
            let about = all_runs(&namespace);
            self.queue.call(about, move |tx| Ok(reserve(tx, &namespace, &rate)?)).await
        })
    }

    fn clock(&self, _: &str) -> Clock {
        self.clock.clone()
    }

    fn replace(&self, run: NewRun) -> Answer<'_, Replaced> {
        Box::pin(async move {
            check_new_run(&run)?;
            let birth = Birth::of(run, &self.codec)?;
            self.queue.call(birth.run.key.clone(), move |tx| replace(tx, &birth)).await
        })
    }

    fn sweep(&self, namespace: Namespace) -> Answer<'_, u64> {
        Box::pin(async move {
            // Mostly there is nothing: then nobody waits for the file.
            let (now, behind) = (self.clock.now_us(), self.swept.until(&namespace));
            let read = move |connection: &Connection, namespace: &Namespace| {
                Ok((left_behind(connection, namespace, &behind)?, has_rested(connection, namespace, now)?))
            };
            let (left, rested) = self.read_flow(namespace.clone(), read).await?;
            if rested {
                let of = namespace.clone();
                self.queue.call(all_runs(&namespace), move |tx| forget_rested(tx, &of)).await?;
            }
            let count = left.of.len();
            for (run, token) in left.of {
                self.queue.call(run.clone(), move |tx| Ok(release(tx, &run, &token)?)).await?;
            }
            // There may be more in this page.
            if count < FLOW_PAGE {
                self.swept.goes_on(&namespace, left.until);
            }
            Ok(count as u64)
        })
    }

    fn keys(&self, namespace: Namespace) -> Answer<'_, Vec<KeyRecord>> {
        Box::pin(self.read_flow(namespace, keys))
    }

    fn key(&self, namespace: Namespace, name: String) -> Answer<'_, KeyView> {
        Box::pin(self.read_flow(namespace, move |connection, namespace| key(connection, namespace, &name)))
    }

    fn names(&self, namespace: Namespace) -> Answer<'_, Vec<NameRecord>> {
        Box::pin(self.read_flow(namespace, names))
    }

    fn holder(&self, namespace: Namespace, kind: NameKind, name: String) -> Answer<'_, Option<RunId>> {
        Box::pin(self.read_flow(namespace, move |connection, of| holder(connection, of, kind, &name)))
    }

    fn let_go(&self, run: RunKey, token: String) -> Answer<'_, bool> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| Ok(arrived(tx, &run, &token)?)).await })
    }

    fn spread(&self, namespace: Namespace, seen: Seen, behind: Option<RunId>) -> Answer<'_, SpreadPage> {
        let read = move |connection: &Connection, of: &Namespace| {
            spread(connection, of, seen, behind.as_ref().map_or("", RunId::as_str))
        };
        Box::pin(self.read_flow(namespace, read))
    }

    fn standing(&self, namespace: Namespace, runs: Vec<RunId>) -> Answer<'_, Vec<(Spread, Stands)>> {
        Box::pin(self.read_flow(namespace, move |connection, of| standing(connection, of, &runs)))
    }
}

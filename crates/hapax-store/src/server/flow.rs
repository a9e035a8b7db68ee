//! Flow control: slots, queues and names, and the transaction that hands them on.
//!
//! Invariant: a slot's primary key is its concurrency key and its number. Whoever changes a key's slots or its queue holds the
//! key's own row, so that a run that comes and a slot that goes never miss each other. Names are locked before keys, and a
//! key's row before that of any run that waits for it.

mod left;

use self::left::{left_behind, spread, standing};
use super::{
    ServerStore, ask, blobs, call,
    commit::{NewCheckpoint, insert_checkpoint},
    error::{Halt, Outcome, all_runs},
    look, read, runs,
    sql::{Fault, Row, Session, one, values},
    writer::Tx,
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
    store::{Answer, Created, Hint, NewRun, RunRecord},
};
use hapax_core::{
    canary,
    commit::Status,
    flow::{Key, Rate, Reservation, Terms},
    id::{Namespace, RunId, RunKey},
    limits::FLOW_PAGE,
};
use std::collections::BTreeSet;

/// The kind of a row that stands for a concurrency key: whoever holds it may change the key's slots and its queue.
const KEY: &str = "key";

/// Of a run `r` and what `h` has: the run isn't over, and it is its own, not that of an earlier life under the same name.
const LIVES: &str = "r.status NOT IN ('succeeded', 'failed', 'cancelled', 'moved') \
                     AND POSITION(h.token IN COALESCE(r.terms, '')) > 0";

/// A name's row, locked.
struct Named {
    run: Option<RunId>,
    at_us: i64,
    now_us: i64,
}

/// Locks a name's row, and makes it where there is none.
async fn lock_name(tx: &mut Tx<'_>, namespace: &Namespace, kind: &str, name: &str) -> Result<Named, Fault> {
    let sql = "SELECT run_id, at_us, {now} FROM hapax_flow_names WHERE namespace = ? AND kind = ? AND name = ? FOR UPDATE";
    let which = values![namespace.as_str(), kind, name];
    let row = match tx.one(sql, which).await? {
        Some(row) => row,
        None => {
            let insert = "INSERT INTO hapax_flow_names (namespace, kind, name, at_us) VALUES (?, ?, ?, 0)";
            // Another was faster, whom a transaction that began before doesn't see.
            tx.execute(insert, which).await.map_err(Fault::taken_is_again)?;
            tx.one(sql, which).await?.ok_or_else(|| Fault::Again("a name was there and is gone".into()))?
        }
    };
    let run = row.maybe_text(0)?.map(RunId::new).transpose()?;
    Ok(Named { run, at_us: row.int(1)?, now_us: row.int(2)? })
}

/// Meets the terms of a run that was just inserted.
pub(super) async fn meet_terms(tx: &mut Tx<'_>, new: &NewRun) -> Outcome<Created> {
    let mut terms = new.terms.clone();
    if let Some(holder) = take_names(tx, &new.key, &terms).await? {
        return Err(Halt::Settle(Ok(Created::Exists(Box::new(holder)))));
    }
    if let Some(rate) = terms.rate.as_ref().filter(|_| terms.not_before_us.is_none()) {
        terms.not_before_us = Some(reserve(tx, &new.key.namespace, rate).await?.at_us);
    }
    if let Some(calm) = &terms.debounce {
        let now = now(tx).await?;
        terms.not_before_us = Some(calm.due_us(now, now));
    }
    admit(tx, &new.key, &terms).await?;
    Ok(Created::New(None))
}

async fn now(tx: &mut Tx<'_>) -> Result<i64, Fault> {
    tx.one("SELECT {now}", values![])
        .await?
        .map_or(Err(Fault::damage("a server without a clock")), |row| row.int(0))
}

/// Takes the names that a run asks for; answers the run that lives under one of them.
async fn take_names(tx: &mut Tx<'_>, run: &RunKey, terms: &Terms) -> Result<Option<RunRecord>, Fault> {
    for (kind, name) in names_of(terms) {
        let named = lock_name(tx, &run.namespace, kind.word(), name).await?;
        if let Some(id) = named.run.filter(|id| *id != run.run)
            && let Some(record) =
                read::run(tx.session, &RunKey { namespace: run.namespace.clone(), run: id }).await?
            && keeps_name(kind, &record)
        {
            return Ok(Some(record));
        }
        tx.execute(
            "UPDATE hapax_flow_names SET run_id = ?, token = ?, at_us = {now} WHERE namespace = ? AND kind = ? AND name = ?",
            values![run.run.as_str(), terms.token.as_str(), run.namespace.as_str(), kind.word(), name],
        )
        .await?;
    }
    Ok(None)
}

/// Parks a run until it has its slots and its time, or lets it go; and writes its terms down.
async fn admit(tx: &mut Tx<'_>, run: &RunKey, terms: &Terms) -> Result<(), Fault> {
    let (json, head_start) = (stored_terms(terms), terms.head_start_us());
    tx.execute(
        "UPDATE hapax_runs SET terms = ?, head_start = ?, ready_at = CASE WHEN owner IS NULL THEN {now} - ? ELSE ready_at END \
         WHERE namespace = ? AND run_id = ?",
        values![json.as_deref(), head_start, head_start, run.namespace.as_str(), run.run.as_str()],
    )
    .await?;
    if !terms.keys.is_empty() {
        stands(tx, run, &waits_for_key(), None).await?;
        set_out(tx, run, terms).await?;
    } else if terms.parks() {
        let (status, wake_at) = let_go(terms, now(tx).await?);
        stands(tx, run, &status, wake_at).await?;
    }
    Ok(())
}

/// Sends a run to its keys: to all of them here, or from one database to the next.
async fn set_out(tx: &mut Tx<'_>, run: &RunKey, terms: &Terms) -> Result<(), Fault> {
    if !walks(terms) {
        return take_place(tx, run, terms).await.map(drop);
    }
    let (of, id) = (run.namespace.as_str(), run.run.as_str());
    lock_name(tx, &run.namespace, WALK, id).await?;
    tx.execute(
        "UPDATE hapax_flow_names SET run_id = ?, token = ?, at_us = {now} WHERE namespace = ? AND kind = ? AND name = ?",
        values![id, terms.token.as_str(), of, WALK, id],
    )
    .await?;
    Ok(())
}

/// Where a run stands that nobody holds, and when it may be taken up.
async fn stands(tx: &mut Tx<'_>, run: &RunKey, status: &Status, wake_at: Option<i64>) -> Result<(), Fault> {
    let json = status.to_json();
    tx.execute(
        "UPDATE hapax_runs SET status = ?, status_json = ?, wake_at = ?, updated_at = {now}, \
         ready_at = CASE WHEN cancel_requested = 1 THEN {now} WHEN ? = 1 THEN {now} - head_start ELSE ? END \
         WHERE namespace = ? AND run_id = ?",
        values![
            status.word(),
            json.as_str(),
            wake_at,
            *status == Status::Pending,
            wake_at,
            run.namespace.as_str(),
            run.run.as_str()
        ],
    )
    .await?;
    tx.hints.push(Hint::Ready(run.namespace.clone()));
    Ok(())
}

/// A failed run that goes on takes what it held again; an error when its name is another's now.
pub(super) async fn readmit(tx: &mut Tx<'_>, record: &RunRecord) -> Outcome<()> {
    if !record.terms.holds() {
        return Ok(());
    }
    let terms = record.terms.clone().again(next_token(&record.terms.token));
    // Before any key, as whoever starts a run.
    if let Some(holder) = take_names(tx, &record.key, &terms).await? {
        let name = terms.singleton.unwrap_or_default();
        return Err(StoreError::NameTaken { name, holder: holder.key.run }.into());
    }
    free_all(tx, &record.key).await?;
    Ok(admit(tx, &record.key, &terms).await?)
}

/// Frees what a run has of an earlier life and nobody has given back yet: it must not wait for itself.
async fn free_all(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let ours = values![run.namespace.as_str(), run.run.as_str()];
    let sql = "SELECT token FROM hapax_flow_slots WHERE namespace = ? AND run_id = ? AND most > 0 \
               UNION SELECT token FROM hapax_flow_queue WHERE namespace = ? AND run_id = ? AND most > 0";
    for row in tx.rows(sql, &[*ours, *ours].concat()).await? {
        release(tx, run, row.text(0)?).await?;
    }
    Ok(())
}

/// A run that stays after all may have been given its slots while it was shut.
pub(super) async fn stay(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let Some(record) = read::run(tx.session, run).await? else { return Ok(()) };
    if record.status != waits_for_key() || walks(&record.terms) {
        return Ok(());
    }
    let sql =
        "SELECT slot FROM hapax_flow_slots WHERE namespace = ? AND run_id = ? AND token = ? AND most > 0";
    let held = values![run.namespace.as_str(), run.run.as_str(), record.terms.token.as_str()];
    let has_all = tx.rows(sql, held).await?.len() == record.terms.keys.len();
    if has_all { wake(tx, run).await } else { Ok(()) }
}

/// A run that came from another store takes here what it held there. A name that is another's here stays so.
pub(super) async fn move_in(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let Some(record) = read::run(tx.session, run).await? else { return Ok(()) };
    if record.status.is_final() || !record.terms.holds() {
        return Ok(());
    }
    let terms = moved_in(record.terms);
    // Whoever has the name keeps it.
    take_names(tx, run, &terms).await?;
    free_all(tx, run).await?;
    let json = stored_terms(&terms);
    tx.execute(
        "UPDATE hapax_runs SET terms = ? WHERE namespace = ? AND run_id = ?",
        values![json.as_deref(), run.namespace.as_str(), run.run.as_str()],
    )
    .await?;
    if waits_anew(&record.status, &terms) {
        stands(tx, run, &waits_for_key(), None).await?;
    }
    set_out(tx, run, &terms).await
}

/// Takes a run's place in the queue of its first key, unless it has it.
async fn enrol(tx: &mut Tx<'_>, run: &RunKey, terms: &Terms) -> Outcome<Vec<RunKey>> {
    let Some((first, rest)) = terms.keys.split_first() else { return Ok(vec![]) };
    lock_name(tx, &run.namespace, KEY, &first.name).await?;
    let held = tx
        .one(
            "SELECT 1 FROM hapax_flow_slots WHERE namespace = ? AND run_id = ? AND flow_key = ? AND token = ? AND most > 0",
            values![run.namespace.as_str(), run.run.as_str(), first.name.as_str(), terms.token.as_str()],
        )
        .await?;
    match held {
        Some(_) if rest.is_empty() => Ok(vec![run.clone()]),
        Some(_) => Ok(vec![]),
        None => Ok(take_place(tx, run, terms).await?),
    }
}

/// Takes the place of a run that has none.
async fn take_place(tx: &mut Tx<'_>, run: &RunKey, terms: &Terms) -> Result<Vec<RunKey>, Fault> {
    let Some((first, rest)) = terms.keys.split_first() else { return Ok(vec![]) };
    let Named { now_us, .. } = lock_name(tx, &run.namespace, KEY, &first.name).await?;
    let rank = now_us.saturating_sub(terms.head_start_us());
    queue(tx, run, rank, &terms.token, first, rest).await?;
    hand_out(tx, &run.namespace, [first.name.clone()].into()).await
}

/// Takes a place in a queue. One that the run has keeps its turn, unless it is of an earlier life under the same name.
async fn queue(
    tx: &mut Tx<'_>,
    run: &RunKey,
    rank: i64,
    token: &str,
    key: &Key,
    rest: &[Key],
) -> Result<(), Fault> {
    let sql = format!(
        "INSERT INTO hapax_flow_queue (namespace, flow_key, run_id, position, most, token, rest) \
         VALUES (?, ?, ?, ?, ?, ?, ?){}",
        tx.session.unless_there()
    );
    let rest = serde_json::to_string(rest).map_err(|error| Fault::damage(error.to_string()))?;
    let (of, name, id, most) =
        (run.namespace.as_str(), key.name.as_str(), run.run.as_str(), u64::from(key.most));
    let is_new = tx.execute(&sql, values![of, name, id, rank, most, token, rest.as_str()]).await? > 0;
    if !is_new {
        let sql = "UPDATE hapax_flow_queue SET position = ?, most = ?, token = ?, rest = ? \
                   WHERE namespace = ? AND flow_key = ? AND run_id = ? AND token <> ?";
        tx.execute(sql, values![rank, most, token, rest.as_str(), of, name, id, token]).await?;
    }
    Ok(())
}

/// Gives what is free of these keys, whose rows are locked, to those who wait longest. Keys are taken in one order, so the
/// work ends.
async fn hand_out(
    tx: &mut Tx<'_>,
    namespace: &Namespace,
    mut keys: BTreeSet<String>,
) -> Result<Vec<RunKey>, Fault> {
    let mut free = vec![];
    while let Some(key) = keys.pop_first() {
        while let Some(place) = next_of(tx, namespace, &key).await? {
            match place.rest.split_first() {
                Some((next, rest)) => {
                    lock_name(tx, namespace, KEY, &next.name).await?;
                    queue(tx, &place.run, place.rank, &place.token, next, rest).await?;
                    keys.insert(next.name.clone());
                }
                // Whether a run has all of its slots that are spread, no database knows by itself.
                None if is_spread(&place.token) => free.push(place.run),
                None => {
                    wake(tx, &place.run).await?;
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
    most: u64,
    token: String,
    rest: Vec<Key>,
}

impl Place {
    fn read(row: &Row, namespace: &Namespace) -> Result<Self, Fault> {
        let rest = serde_json::from_str(row.text(4)?);
        Ok(Self {
            run: RunKey { namespace: namespace.clone(), run: RunId::new(row.text(0)?)? },
            rank: row.int(1)?,
            most: row.count(2)?,
            token: row.text(3)?.to_owned(),
            rest: rest
                .map_err(|error| Fault::damage(format!("the keys of a run cannot be read: {error}")))?,
        })
    }
}

/// The first who waits, and whether its place is its own.
async fn first_of(tx: &mut Tx<'_>, namespace: &Namespace, key: &str) -> Result<Option<(Place, bool)>, Fault> {
    let sql = format!(
        "SELECT h.run_id, h.position, h.most, h.token, h.rest, r.run_id FROM (SELECT run_id, position, most, token, rest \
         FROM hapax_flow_queue WHERE namespace = ? AND flow_key = ? ORDER BY position, run_id LIMIT 1) h \
         LEFT JOIN hapax_runs r ON r.namespace = ? AND r.run_id = h.run_id AND {LIVES}"
    );
    let of = namespace.as_str();
    let Some(row) = tx.one(&sql, values![of, key, of]).await? else { return Ok(None) };
    let place = Place::read(&row, namespace)?;
    // Of runs that are spread this database can't tell.
    let lives = is_spread(&place.token) || row.maybe_text(5)?.is_some();
    Ok(Some((place, lives)))
}

async fn leave_queue(tx: &mut Tx<'_>, run: &RunKey, key: &str) -> Result<(), Fault> {
    let sql = "DELETE FROM hapax_flow_queue WHERE namespace = ? AND flow_key = ? AND run_id = ?";
    tx.execute(sql, values![run.namespace.as_str(), key, run.run.as_str()]).await.map(drop)
}

/// Gives a slot to the first who waits, if one is free for it. A place that a run has left behind is nobody's turn. A key that
/// nobody holds or waits for is forgotten.
async fn next_of(tx: &mut Tx<'_>, namespace: &Namespace, key: &str) -> Result<Option<Place>, Fault> {
    let of = namespace.as_str();
    let first = loop {
        match first_of(tx, namespace, key).await? {
            Some((place, true)) => break Some(place),
            Some((left, false)) => leave_queue(tx, &left.run, key).await?,
            None => break None,
        }
    };
    let sql = "SELECT slot FROM hapax_flow_slots WHERE namespace = ? AND flow_key = ? ORDER BY slot";
    let rows = tx.rows(sql, values![of, key]).await?;
    let small = |value: i64| u32::try_from(value).map_err(|_| Fault::damage(format!("slot {value}")));
    let taken = rows.iter().map(|row| small(row.int(0)?)).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = first else {
        if taken.is_empty() {
            let sql = "DELETE FROM hapax_flow_names WHERE namespace = ? AND kind = ? AND name = ?";
            tx.execute(sql, values![of, KEY, key]).await?;
        }
        return Ok(None);
    };
    let most = u32::try_from(first.most).unwrap_or(u32::MAX);
    let Some(slot) = Key::new(key, most).free_slot(&taken) else { return Ok(None) };
    let id = first.run.run.as_str();
    tx.execute(
        "INSERT INTO hapax_flow_slots (namespace, flow_key, slot, run_id, token, most, since) \
         VALUES (?, ?, ?, ?, ?, ?, {now})",
        values![of, key, u64::from(slot), id, first.token.as_str(), first.most],
    )
    .await
    .map_err(Fault::taken_is_again)?;
    leave_queue(tx, &first.run, key).await?;
    Ok(Some(first))
}

/// A run that has all of its slots goes on. Its row is locked wherever the run stands: one that stays after all may have
/// looked for its slots already, and waits again as soon as that is committed.
async fn wake(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let sql =
        "SELECT status_json, terms, {now} FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE";
    let Some(row) = tx.one(sql, values![run.namespace.as_str(), run.run.as_str()]).await? else {
        return Ok(());
    };
    let waits = row.text(0).is_ok_and(|status| status == waits_for_key().to_json().as_str());
    if !waits {
        return Ok(());
    }
    let terms = read_terms(row.maybe_text(1)?).map_err(Fault::damage)?;
    let (status, wake_at) = let_go(&terms, row.int(2)?);
    stands(tx, run, &status, wake_at).await
}

/// Lets a run go that has all of its slots under a token. One that moves goes on when it has settled.
async fn arrived(tx: &mut Tx<'_>, run: &RunKey, token: &str) -> Outcome<bool> {
    let (of, id) = (run.namespace.as_str(), run.run.as_str());
    let lock = "SELECT 1 FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE";
    tx.one(lock, values![of, id]).await?;
    let Some(record) = read::run(tx.session, run).await? else { return Ok(false) };
    if record.terms.token != token || record.status.is_moving() {
        return Ok(false);
    }
    let sql = "DELETE FROM hapax_flow_names WHERE namespace = ? AND kind = ? AND name = ? AND token = ?";
    tx.execute(sql, values![of, WALK, id, token]).await?;
    wake(tx, run).await?;
    Ok(record.status == waits_for_key())
}

/// Frees what a run has taken under a token, and hands it on. Names first, since whoever starts a run takes them before its
/// keys: a singleton that is started again just as it ends waits for this, and not this for it.
async fn release(tx: &mut Tx<'_>, run: &RunKey, token: &str) -> Result<Vec<RunKey>, Fault> {
    let (of, id) = (run.namespace.as_str(), run.run.as_str());
    let sql = "DELETE FROM hapax_flow_names WHERE namespace = ? AND run_id = ? AND token = ?";
    tx.execute(sql, values![of, id, token]).await?;
    let keys = lock_keys(tx, run, token).await?;
    for key in &keys {
        // Of the keys that are locked, and no other: nobody would look who waits for that one.
        for table in ["hapax_flow_slots", "hapax_flow_queue"] {
            let sql = format!(
                "DELETE FROM {table} WHERE namespace = ? AND flow_key = ? AND run_id = ? AND token = ?"
            );
            tx.execute(&sql, values![of, key.as_str(), id, token]).await?;
        }
    }
    hand_out(tx, &run.namespace, keys).await
}

/// Locks the keys of which a run has a slot or waits for one under a token. While a key was waited for, whoever had it may
/// have given the run its slot and a place at the next one; so until there is none that isn't locked.
async fn lock_keys(tx: &mut Tx<'_>, run: &RunKey, token: &str) -> Result<BTreeSet<String>, Fault> {
    let ours = values![run.namespace.as_str(), run.run.as_str(), token];
    let sql = "SELECT flow_key FROM hapax_flow_slots WHERE namespace = ? AND run_id = ? AND token = ? AND most > 0 \
               UNION SELECT flow_key FROM hapax_flow_queue WHERE namespace = ? AND run_id = ? AND token = ? AND most > 0";
    let mut locked = BTreeSet::new();
    loop {
        let rows = tx.rows(sql, &[*ours, *ours].concat()).await?;
        let keys =
            rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect::<Result<BTreeSet<_>, Fault>>()?;
        let more: Vec<_> = keys.into_iter().filter(|key| !locked.contains(key)).collect();
        if more.is_empty() || !locked.is_empty() && canary::on("keys_read_once") {
            return Ok(locked);
        }
        for key in more {
            lock_name(tx, &run.namespace, KEY, &key).await?;
            locked.insert(key);
        }
    }
}

async fn reserve(tx: &mut Tx<'_>, namespace: &Namespace, rate: &Rate) -> Result<Reservation, Fault> {
    let (kind, name) = (NameKind::Rate.word(), bucket(rate));
    let Named { at_us, now_us, .. } = lock_name(tx, namespace, kind, &name).await?;
    let reserved = rate.reserve(Some(at_us), now_us);
    tx.execute(
        "UPDATE hapax_flow_names SET at_us = ? WHERE namespace = ? AND kind = ? AND name = ?",
        values![reserved.arrival_us, namespace.as_str(), kind, name.as_str()],
    )
    .await?;
    Ok(reserved)
}

async fn replace(tx: &mut Tx<'_>, birth: &Birth) -> Outcome<Replaced> {
    let (new, key) = (&birth.run, &birth.run.key);
    let Some(calm) = &new.terms.debounce else { return Ok(Replaced::TooLate) };
    let named = lock_name(tx, &key.namespace, NameKind::Debounce.word(), &calm.name).await?;
    if named.run.as_ref() != Some(&key.run) {
        return Err(Halt::Settle(Ok(Replaced::TooLate)));
    }
    let record = runs::found_locked(tx, key).await?;
    if !may_be_replaced(&record, new)? {
        return Err(Halt::Settle(Ok(Replaced::TooLate)));
    }
    runs::demand_key(tx, &record).await?;
    let due = calm.due_us(named.at_us, named.now_us);
    let terms = stored_terms(&Terms { not_before_us: Some(due), ..record.terms });
    let (namespace, id) = (key.namespace.as_str(), key.run.as_str());
    for sql in [
        "DELETE FROM hapax_frontier WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_checkpoints WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_keys WHERE namespace = ? AND run_id = ?",
    ] {
        tx.execute(sql, values![namespace, id]).await?;
    }
    let checkpoint = &new.checkpoint;
    insert_checkpoint(tx.session, NewCheckpoint { run: key, checkpoint, parts: &birth.parts, next_seq: 0 })
        .await?;
    blobs::insert(tx, key, &birth.blobs).await?;
    blobs::sweep(tx, key).await?;
    tx.execute(
        "UPDATE hapax_runs SET fingerprint = ?, input = ?, digest = ?, wake_at = ?, ready_at = ?, terms = ?, \
         updated_at = {now} WHERE namespace = ? AND run_id = ?",
        values![
            &new.fingerprint.0,
            &new.input.0,
            &checkpoint.digest.0,
            due,
            due,
            terms.as_deref(),
            namespace,
            id
        ],
    )
    .await?;
    Ok(Replaced::Done)
}

/// Whether a bucket has been full for long.
async fn rested(session: &mut dyn Session, namespace: &Namespace) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM hapax_flow_names WHERE namespace = ? AND kind = ? AND at_us < {now} - ? LIMIT 1";
    let which = values![namespace.as_str(), NameKind::Rate.word(), RESTED_US];
    Ok(one(session, sql, which).await?.is_some())
}

/// Forgets buckets that have been full for long.
async fn forget_rested(tx: &mut Tx<'_>, namespace: &Namespace) -> Outcome<()> {
    let sql = "DELETE FROM hapax_flow_names WHERE namespace = ? AND kind = ? AND at_us < {now} - ?";
    tx.execute(sql, values![namespace.as_str(), NameKind::Rate.word(), RESTED_US]).await?;
    Ok(())
}

async fn keys(session: &mut dyn Session, namespace: &Namespace) -> Result<Vec<KeyRecord>, Fault> {
    let counts = |table: &str| {
        format!("SELECT flow_key, count(*), max(most) FROM {table} WHERE namespace = ? GROUP BY flow_key")
    };
    let mut keys = std::collections::BTreeMap::<String, KeyRecord>::new();
    for (table, held) in [("hapax_flow_slots", true), ("hapax_flow_queue", false)] {
        for row in session.rows(&counts(table), values![namespace.as_str()]).await? {
            let name = row.text(0)?.to_owned();
            let none = KeyRecord { name: name.clone(), held: 0, most: 0, waiting: 0 };
            let record = keys.entry(name).or_insert(none);
            let count = if held { &mut record.held } else { &mut record.waiting };
            *count = row.count(1)?;
            record.most = record.most.max(u32::try_from(row.count(2)?).unwrap_or(u32::MAX));
        }
    }
    Ok(keys.into_values().collect())
}

async fn key(session: &mut dyn Session, namespace: &Namespace, name: &str) -> Result<KeyView, Fault> {
    let mut view = KeyView::default();
    let sql =
        "SELECT slot, run_id, since FROM hapax_flow_slots WHERE namespace = ? AND flow_key = ? ORDER BY slot";
    for row in session.rows(sql, values![namespace.as_str(), name]).await? {
        let slot = u32::try_from(row.count(0)?).unwrap_or(u32::MAX);
        view.held.push(Holder { slot, run: RunId::new(row.text(1)?)?, since_us: row.int(2)? });
    }
    let sql = "SELECT run_id FROM hapax_flow_queue WHERE namespace = ? AND flow_key = ? ORDER BY position, run_id LIMIT ?";
    for row in session.rows(sql, values![namespace.as_str(), name, FLOW_PAGE]).await? {
        view.waiting.push(RunId::new(row.text(0)?)?);
    }
    Ok(view)
}

async fn names(session: &mut dyn Session, namespace: &Namespace) -> Result<Vec<NameRecord>, Fault> {
    let sql = "SELECT kind, name, run_id, at_us FROM hapax_flow_names WHERE namespace = ? AND kind NOT IN (?, ?) \
               ORDER BY kind, name";
    let rows = session.rows(sql, values![namespace.as_str(), KEY, WALK]).await?;
    let name = |row: &Row| {
        let word = row.text(0)?;
        let kind = NameKind::from_word(word).ok_or_else(|| Fault::damage(format!("a name is a `{word}`")))?;
        let run = row.maybe_text(2)?.map(RunId::new).transpose()?;
        Ok(NameRecord { kind, name: row.text(1)?.to_owned(), run, at_us: row.int(3)? })
    };
    rows.iter().map(name).collect()
}

async fn holder(
    session: &mut dyn Session,
    namespace: &Namespace,
    kind: NameKind,
    name: &str,
) -> Result<Option<RunId>, Fault> {
    let sql = "SELECT run_id FROM hapax_flow_names WHERE namespace = ? AND kind = ? AND name = ?";
    let Some(row) = one(session, sql, values![namespace.as_str(), kind.word(), name]).await? else {
        return Ok(None);
    };
    Ok(row.maybe_text(0)?.map(RunId::new).transpose()?)
}

impl ServerStore {
    async fn sweep_flow(&self, namespace: Namespace) -> Result<u64, StoreError> {
        let about = all_runs(&namespace);
        let behind = self.swept.until(&namespace);
        let left = ask!(self, &about, |session| left_behind(session, &namespace, &behind))?;
        for (run, token) in &left.of {
            call!(self, run, |tx| async { Ok(release(tx, run, token).await?) })?;
        }
        // There may be more in this page.
        if left.of.len() < FLOW_PAGE {
            self.swept.goes_on(&namespace, left.until);
        }
        if ask!(self, &about, |session| rested(session, &namespace))? {
            call!(self, &about, |tx| forget_rested(tx, &namespace))?;
        }
        Ok(left.of.len() as u64)
    }
}

impl Flow for ServerStore {
    fn enrol(&self, run: RunKey, terms: Terms) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let terms = terms.in_order();
            terms.check().map_err(StoreError::Terms)?;
            call!(self, &run, |tx| enrol(tx, &run, &terms))
        })
    }

    fn release(&self, run: RunKey, token: String) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move { call!(self, &run, |tx| async { Ok(release(tx, &run, &token).await?) }) })
    }

    fn reserve(&self, namespace: Namespace, rate: Rate) -> Answer<'_, Reservation> {
        Box::pin(async move {
            rate.check().map_err(StoreError::Terms)?;
            let about = all_runs(&namespace);
            call!(self, &about, |tx| async { Ok(reserve(tx, &namespace, &rate).await?) })
        })
    }

    fn clock(&self, _: &str) -> Clock {
        self.clock.clone()
    }

    fn replace(&self, run: NewRun) -> Answer<'_, Replaced> {
        Box::pin(async move {
            check_new_run(&run)?;
            let birth = Birth::of(run, &self.codec)?;
            let replaced = call!(self, &birth.run.key, |tx| replace(tx, &birth));
            match replaced {
                Err(StoreError::NotFound { .. }) => Ok(Replaced::TooLate),
                replaced => replaced,
            }
        })
    }

    fn sweep(&self, namespace: Namespace) -> Answer<'_, u64> {
        Box::pin(self.sweep_flow(namespace))
    }

    fn keys(&self, namespace: Namespace) -> Answer<'_, Vec<KeyRecord>> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            let read = look!(self, &about, |session| keys(session, &namespace));
            read.map_err(|fault| super::undone(fault, &about))
        })
    }

    fn key(&self, namespace: Namespace, name: String) -> Answer<'_, KeyView> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            let read = look!(self, &about, |session| key(session, &namespace, &name));
            read.map_err(|fault| super::undone(fault, &about))
        })
    }

    fn names(&self, namespace: Namespace) -> Answer<'_, Vec<NameRecord>> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            ask!(self, &about, |session| names(session, &namespace))
        })
    }

    fn holder(&self, namespace: Namespace, kind: NameKind, name: String) -> Answer<'_, Option<RunId>> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            ask!(self, &about, |session| holder(session, &namespace, kind, &name))
        })
    }

    fn let_go(&self, run: RunKey, token: String) -> Answer<'_, bool> {
        Box::pin(async move { call!(self, &run, |tx| arrived(tx, &run, &token)) })
    }

    fn spread(&self, namespace: Namespace, seen: Seen, behind: Option<RunId>) -> Answer<'_, SpreadPage> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            let behind = behind.as_ref().map_or("", RunId::as_str);
            ask!(self, &about, |session| spread(session, &namespace, seen, behind))
        })
    }

    fn standing(&self, namespace: Namespace, runs: Vec<RunId>) -> Answer<'_, Vec<(Spread, Stands)>> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            ask!(self, &about, |session| standing(session, &namespace, &runs))
        })
    }
}

//! What sweeps look at: what runs have left behind, and the runs whose slots are spread over several databases.
//!
//! Invariant: a look is bounded by what is read, not by what is found: it ends with a page, and the next one goes on behind it.

use super::LIVES;
use crate::{
    flow::{Seen, Spread, SpreadPage, Stands, WALK},
    server::{
        read,
        sql::{Fault, Row, Session, Value, one, places, values},
    },
};
use hapax_core::{
    id::{Namespace, RunId, RunKey},
    limits::FLOW_PAGE,
};

/// Runs that are asked for in one statement.
const TOGETHER: usize = 100;

/// What runs had that are over or gone or have another token.
pub(super) struct LeftBehind {
    pub(super) of: Vec<(RunKey, String)>,
    /// How far it was looked among places and names; `None`: to the end.
    pub(super) until: Option<String>,
}

/// Looks at all slots, and at a page of the places in queues and of the names, of runs behind one. Of slots and places that
/// are spread this database can't tell.
pub(super) async fn left_behind(
    session: &mut dyn Session,
    namespace: &Namespace,
    behind: &str,
) -> Result<LeftBehind, Fault> {
    let of = namespace.as_str();
    let tables = ["hapax_flow_queue WHERE most > 0", "hapax_flow_names WHERE run_id IS NOT NULL"];
    let until = end_of_page(session, of, behind, tables).await?;
    let (within, page) = page(of, behind, until.as_deref());
    let sql = format!(
        "SELECT h.run_id, h.token FROM \
         (SELECT run_id, token FROM hapax_flow_slots WHERE namespace = ? AND token NOT LIKE 'spread:%' \
          UNION SELECT run_id, token FROM hapax_flow_queue WHERE {within} AND most > 0 AND token NOT LIKE 'spread:%' \
          UNION SELECT run_id, token FROM hapax_flow_names WHERE {within}) h \
         LEFT JOIN hapax_runs r ON r.namespace = ? AND r.run_id = h.run_id AND {LIVES} \
         WHERE r.run_id IS NULL LIMIT ?"
    );
    let all = [&values![of][..], &page[..], &page[..], &values![of, FLOW_PAGE][..]].concat();
    let held = |row: &Row| {
        let run = RunKey { namespace: namespace.clone(), run: RunId::new(row.text(0)?)? };
        Ok::<_, Fault>((run, row.text(1)?.to_owned()))
    };
    let of = session.rows(&sql, &all).await?.iter().map(held).collect::<Result<_, _>>()?;
    Ok(LeftBehind { of, until })
}

/// What is behind one run and not behind another, as a condition and its values.
fn page<'v>(of: &'v str, behind: &'v str, until: Option<&'v str>) -> (&'static str, Vec<Value<'v>>) {
    let within = match until {
        Some(_) => "namespace = ? AND run_id > ? AND run_id <= ?",
        None => "namespace = ? AND run_id > ?",
    };
    (within, [of, behind].into_iter().chain(until).map(Value::from).collect())
}

/// The run that a page of either table ends with; `None`: there are no more rows than that in either.
async fn end_of_page(
    session: &mut dyn Session,
    of: &str,
    behind: &str,
    tables: [&str; 2],
) -> Result<Option<String>, Fault> {
    let last = |table: &str| {
        format!(
            "SELECT run_id FROM (SELECT run_id FROM {table} AND namespace = ? AND run_id > ? \
             ORDER BY run_id LIMIT 1 OFFSET ?) AS page"
        )
    };
    let sql = format!("{} UNION ALL {} ORDER BY run_id LIMIT 1", last(tables[0]), last(tables[1]));
    let page = values![of, behind, FLOW_PAGE - 1];
    let end = one(session, &sql, &[*page, *page].concat()).await?;
    end.map(|row| Ok(row.text(0)?.to_owned())).transpose()
}

/// The runs whose slots are spread, in a page of all that there are behind one.
pub(super) async fn spread(
    session: &mut dyn Session,
    namespace: &Namespace,
    seen: Seen,
    behind: &str,
) -> Result<SpreadPage, Fault> {
    match seen {
        Seen::Walking => walking(session, namespace, behind).await,
        Seen::Holding => holding(session, namespace, behind).await,
    }
}

/// A run that walks has a row of its own name.
async fn walking(
    session: &mut dyn Session,
    namespace: &Namespace,
    behind: &str,
) -> Result<SpreadPage, Fault> {
    let sql = "SELECT name, token FROM hapax_flow_names WHERE namespace = ? AND kind = ? AND name > ? ORDER BY name LIMIT ?";
    let rows = session.rows(sql, values![namespace.as_str(), WALK, behind, FLOW_PAGE]).await?;
    let runs = rows.iter().map(spread_run).collect::<Result<Vec<_>, _>>()?;
    let until = runs.get(FLOW_PAGE - 1).map(|last| last.run.clone());
    Ok(SpreadPage { runs, until })
}

/// The page is one of all slots and places: those that are spread may be few, and behind many others.
async fn holding(
    session: &mut dyn Session,
    namespace: &Namespace,
    behind: &str,
) -> Result<SpreadPage, Fault> {
    let of = namespace.as_str();
    let tables = ["hapax_flow_slots WHERE most > 0", "hapax_flow_queue WHERE most > 0"];
    let until = end_of_page(session, of, behind, tables).await?;
    let (within, page) = page(of, behind, until.as_deref());
    let here =
        |table: &str| format!("SELECT run_id, token FROM {table} AND {within} AND token LIKE 'spread:%'");
    let sql = format!("{} UNION {} ORDER BY run_id, token", here(tables[0]), here(tables[1]));
    let rows = session.rows(&sql, &[&page[..], &page[..]].concat()).await?;
    let runs = rows.iter().map(spread_run).collect::<Result<_, _>>()?;
    Ok(SpreadPage { runs, until: until.map(RunId::new).transpose()? })
}

fn spread_run(row: &Row) -> Result<Spread, Fault> {
    Ok(Spread { run: RunId::new(row.text(0)?)?, token: row.text(1)?.to_owned() })
}

/// Where runs stand that live here, and under which tokens they wait.
pub(super) async fn standing(
    session: &mut dyn Session,
    namespace: &Namespace,
    runs: &[RunId],
) -> Result<Vec<(Spread, Stands)>, Fault> {
    let mut found = vec![];
    for some in runs.chunks(TOGETHER) {
        // As many places each time, so that there is one statement to keep.
        let names = some.iter().chain(std::iter::repeat(&some[0])).take(TOGETHER).map(RunId::as_str);
        let mut which = values![namespace.as_str()].to_vec();
        which.extend(names.map(Value::from));
        let places = places(TOGETHER);
        let sql =
            format!("SELECT {} FROM hapax_runs WHERE namespace = ? AND run_id IN {places}", read::RECORD);
        for row in session.rows(&sql, &which).await? {
            let record = read::record(&row, namespace)?;
            let one = Spread { run: record.key.run, token: record.terms.token };
            found.push((one, crate::flow::stands(&record.status)));
        }
        let sql = format!(
            "SELECT run_id, token FROM hapax_flow_queue WHERE namespace = ? AND run_id IN {places} AND most > 0"
        );
        for row in session.rows(&sql, &which).await? {
            found.push((spread_run(&row)?, Stands::Queued));
        }
    }
    Ok(found)
}

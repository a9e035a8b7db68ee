//! The store's own rows as the last statement of a user's transaction.
//!
//! Invariant: the rows are selected from what the fence has updated, and the fence meets nothing where our transaction is
//! over, so that nothing of it can take effect by itself. From then on others wait for the run's row: a session that stands
//! still is ended as soon as one of the store's would be.

use crate::{
    db::{Statement, marker::OPEN},
    server::journal::TYPES,
};
use hapax_core::canary;

/// How long its session may stand still from then on.
const HURRY: &str = "set_config('idle_in_transaction_session_timeout', '60s', true) <> ''";

/// The fence and what follows it, with the first of the rows in one statement.
pub(in crate::postgres) fn together(statements: Vec<Statement>) -> Vec<Statement> {
    let mut statements = statements.into_iter();
    let Some(mut fence) = statements.next() else { return vec![] };
    let hurry = if canary::on("rides_stand_still") { "true" } else { HURRY };
    fence.sql = format!("{} AND {OPEN} AND {hurry}", fence.sql);
    if let Some(rows) = statements.next() {
        let row = format!("({})", TYPES.map(|kind| format!("?::{kind}")).join(", "));
        let all = vec![row; rows.values.len() / TYPES.len()].join(", ");
        let into = rows.sql.split(" VALUES ").next().unwrap_or_default();
        fence.sql = format!(
            "WITH fence AS ({} RETURNING 1) {into} SELECT v.* FROM (VALUES {all}) AS v CROSS JOIN fence",
            fence.sql
        );
        fence.values.extend(rows.values);
    }
    std::iter::once(fence).chain(statements).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Value;

    #[test]
    fn rows_come_from_what_the_fence_has_met() {
        let statement = |sql: &str, values: usize| Statement {
            sql: sql.into(),
            values: vec![Value::Null; values],
            must_meet: sql.starts_with("UPDATE"),
        };
        let rows = statement("INSERT INTO j (a) VALUES (?), (?)", 16);
        let ridden =
            together(vec![statement("UPDATE r SET n = ? WHERE m = ?", 2), rows.clone(), rows.clone()]);
        let sql = &ridden[0].sql;
        assert!(sql.starts_with("WITH fence AS (UPDATE r SET n = ? WHERE m = ? AND coalesce("), "{sql}");
        assert!(sql.contains("RETURNING 1) INSERT INTO j (a) SELECT v.* FROM (VALUES (?::text, "), "{sql}");
        assert_eq!((sql.matches('?').count(), ridden[0].values.len(), ridden[0].must_meet), (18, 18, true));
        assert_eq!(ridden[1], rows);
    }
}

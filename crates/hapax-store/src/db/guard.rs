//! Which statements a transaction may hold: none that ends it, or leads out of it.
//!
//! Invariant: pure, and asked before a statement is sent. What the server commits by itself is refused by a list of
//! what is allowed where the servers' own lists of what commits grow with every version (MySQL), and by a list of
//! what is refused elsewhere.

use super::{Kind, marker};
use hapax_core::canary;
use sqlparser::{
    dialect::{Dialect, MySqlDialect, PostgreSqlDialect, SQLiteDialect},
    tokenizer::{Token, Tokenizer},
};

/// Why a statement may not run in a transaction.
///
/// ```
/// use hapax_store::db::Refused;
/// assert!(Refused::Control("COMMIT".into()).to_string().starts_with("`COMMIT` is transaction control"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It begins, ends or splits the transaction.
    #[error(
        "`{0}` is transaction control: a transaction of Hapax begins and ends by itself; nest with `tx.savepoint`"
    )]
    Control(String),
    /// The server would commit before or after it.
    #[error(
        "`{0}` commits the transaction by itself on MySQL and MariaDB, or may: do it outside of the transaction"
    )]
    Commits(String),
    /// It leads to something that the transaction doesn't hold.
    #[error("`{0}` leads out of the transaction's database or changes its session")]
    LeadsOut(String),
    /// It is about the markers of transactions.
    #[error("the table `{0}` is Hapax's own")]
    Ours(String),
    /// It writes to a table that doesn't roll back.
    #[error("`{0}` doesn't roll back: ALTER TABLE {0} ENGINE=InnoDB")]
    Stays(String),
    /// It can't be told what it is.
    #[error("this is no statement: {0}")]
    Unreadable(String),
}

/// Settings of PostgreSQL on which it rests whether a COMMIT's answer is true.
const RELIED_ON: [&str; 4] = [
    "SYNCHRONOUS_COMMIT",
    "CLIENT_MIN_MESSAGES",
    "IDLE_IN_TRANSACTION_SESSION_TIMEOUT",
    "TRANSACTION_READ_ONLY",
];

/// Questions to SQLite that change nothing, whatever they are given.
const ASKS_ABOUT: [&str; 10] = [
    "TABLE_INFO",
    "TABLE_XINFO",
    "TABLE_LIST",
    "INDEX_LIST",
    "INDEX_INFO",
    "INDEX_XINFO",
    "FOREIGN_KEY_LIST",
    "FOREIGN_KEY_CHECK",
    "INTEGRITY_CHECK",
    "QUICK_CHECK",
];

/// Words by which a session may keep something beyond its transaction: tables, statements, locks.
const KEPT: [&str; 10] = [
    "TEMP",
    "TEMPORARY",
    "PREPARE",
    "DECLARE",
    "GET_LOCK",
    "PG_ADVISORY_LOCK",
    "PG_ADVISORY_LOCK_SHARED",
    "PG_TRY_ADVISORY_LOCK",
    "PG_TRY_ADVISORY_LOCK_SHARED",
    "DBLINK_CONNECT",
];

/// What is known of a statement that may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Its session may keep something of it, so nobody else gets that session.
    pub(crate) stains: bool,
}

/// Refuses what may not run in a transaction.
pub(crate) fn check(kind: Kind, sql: &str) -> Result<Allowed, Refused> {
    if canary::on("guard_sleeps") {
        return Ok(Allowed { stains: false });
    }
    let words = Words::read(kind, sql)?;
    let first = words.at(0);
    let shown = || [words.at(0), words.at(1)].join(" ").trim().to_owned();
    let is_control = match first {
        "BEGIN" | "START" | "COMMIT" | "END" | "ABORT" | "ROLLBACK" | "SAVEPOINT" | "RELEASE" | "XA" => true,
        "PREPARE" => words.at(1) == "TRANSACTION",
        "SET" => words.any("AUTOCOMMIT") || words.any("TRANSACTION"),
        _ => false,
    };
    if is_control {
        return Err(Refused::Control(shown()));
    }
    let leads_out = match kind {
        Kind::Postgres => match first {
            "DISCARD" | "RESET" | "LISTEN" | "UNLISTEN" => true,
            "SET" => match words.at(1) {
                "CONSTRAINTS" => false,
                // Of a name in quotes nothing is known.
                "LOCAL" => RELIED_ON.contains(&words.at(2)) || words.at(2).is_empty(),
                _ => true,
            },
            _ => words.any("SET_CONFIG"),
        },
        Kind::Sqlite => match first {
            "ATTACH" | "DETACH" | "VACUUM" => true,
            "PRAGMA" => !words.only_ask(),
            _ => false,
        },
        Kind::MySql => first == "SET" || words.follow("INTO", "OUTFILE") || words.follow("INTO", "DUMPFILE"),
    };
    if leads_out {
        return Err(Refused::LeadsOut(shown()));
    }
    if kind == Kind::MySql && !words.stay_in_mysql() {
        return Err(Refused::Commits(shown()));
    }
    Ok(Allowed { stains: KEPT.iter().any(|word| words.any(word)) })
}

/// The words of a statement in capitals, and its dots; of what is quoted, and of other signs, only the place is left.
struct Words(Vec<String>);

impl Words {
    fn read(kind: Kind, sql: &str) -> Result<Self, Refused> {
        // MySQL runs what stands in such a comment.
        if kind == Kind::MySql && (sql.contains("/*!") || sql.contains("/*M!")) {
            return Err(Refused::Commits("/*! … */".into()));
        }
        let mut words = vec![];
        for token in tokens(kind, sql)? {
            match token {
                Token::Word(word) if word.value.eq_ignore_ascii_case(marker::TABLE) => {
                    return Err(Refused::Ours(word.value));
                }
                Token::Word(word) if word.quote_style.is_none() || word.value == "set_config" => {
                    words.push(word.value.to_uppercase());
                }
                Token::Whitespace(_) => {}
                Token::Period => words.push(".".into()),
                _ => words.push(String::new()),
            }
        }
        // A statement may stand in brackets.
        let from = words.iter().position(|word| !word.is_empty());
        let from = from.ok_or_else(|| Refused::Unreadable(sql.trim().to_owned()))?;
        Ok(Self(words.split_off(from)))
    }

    fn at(&self, index: usize) -> &str {
        self.0.get(index).map_or("", String::as_str)
    }

    fn any(&self, sought: &str) -> bool {
        self.0.iter().any(|word| word == sought)
    }

    fn follow(&self, first: &str, second: &str) -> bool {
        self.0.windows(2).any(|words| words[0] == first && words[1] == second)
    }

    /// Whether a PRAGMA changes nothing: one of those that only look, or any that is given nothing.
    fn only_ask(&self) -> bool {
        let (name, rest) = match &self.0[1..] {
            [_, dot, name, rest @ ..] if dot == "." => (name.as_str(), rest),
            [name, rest @ ..] => (name.as_str(), rest),
            [] => return false,
        };
        let acts = ["OPTIMIZE", "INCREMENTAL_VACUUM", "WAL_CHECKPOINT", "SHRINK_MEMORY"].contains(&name);
        ASKS_ABOUT.contains(&name) || rest.is_empty() && !acts
    }

    /// Whether MySQL and MariaDB neither commit nor run something that might.
    fn stay_in_mysql(&self) -> bool {
        match self.at(0) {
            "SELECT" | "INSERT" | "UPDATE" | "DELETE" | "REPLACE" | "WITH" | "VALUES" | "TABLE" | "DO"
            | "SHOW" | "DESCRIBE" | "DESC" | "EXPLAIN" => true,
            "LOAD" => self.at(1) == "DATA",
            "CREATE" | "DROP" => self.at(1) == "TEMPORARY",
            _ => false,
        }
    }
}

fn tokens(kind: Kind, sql: &str) -> Result<Vec<Token>, Refused> {
    let tokens = Tokenizer::new(dialect(kind), sql).tokenize();
    tokens.map_err(|error| Refused::Unreadable(error.to_string()))
}

fn dialect(kind: Kind) -> &'static dyn Dialect {
    match kind {
        Kind::Postgres => &PostgreSqlDialect {},
        Kind::MySql => &MySqlDialect {},
        Kind::Sqlite => &SQLiteDialect {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: Kind, sql: &str) -> bool {
        check(kind, sql).is_err()
    }

    #[test]
    fn transaction_control_is_refused_everywhere() {
        let statements = [
            "BEGIN",
            "begin work",
            "START TRANSACTION",
            "COMMIT",
            "commit and chain",
            "END",
            "ROLLBACK",
            "ROLLBACK TO x",
            "SAVEPOINT x",
            "RELEASE SAVEPOINT x",
            "/* hello */ COMMIT",
            "-- hello\n commit",
            " ; COMMIT",
        ];
        for kind in [Kind::Postgres, Kind::MySql, Kind::Sqlite] {
            for sql in statements {
                assert!(refused(kind, sql), "{kind:?}: {sql}");
            }
        }
        assert!(refused(Kind::Postgres, "PREPARE TRANSACTION 'x'"));
        assert!(refused(Kind::MySql, "XA START 'x'"));
        assert!(
            refused(Kind::MySql, "SET autocommit = 1")
                && refused(Kind::MySql, "SET @@session.autocommit = 1")
        );
    }

    #[test]
    fn what_mysql_commits_by_itself_is_refused() {
        for sql in [
            "CREATE TABLE t (n int)",
            "DROP TABLE t",
            "ALTER TABLE t ADD m int",
            "TRUNCATE t",
            "RENAME TABLE t TO u",
            "CALL p()",
            "LOCK TABLES t WRITE",
            "UNLOCK TABLES",
            "ANALYZE TABLE t",
            "OPTIMIZE TABLE t",
            "FLUSH TABLES",
            "GRANT SELECT ON t TO u",
            "PREPARE s FROM 'COMMIT'",
            "EXECUTE s",
            "EXECUTE IMMEDIATE 'COMMIT'",
            "SET STATEMENT max_statement_time = 1 FOR COMMIT",
            "SELECT 1 /*! ; COMMIT */",
            "/*M!100100 COMMIT */",
            "BEGIN NOT ATOMIC COMMIT; END",
            "INSTALL PLUGIN p SONAME 's'",
            "HANDLER t OPEN",
        ] {
            assert!(refused(Kind::MySql, sql), "{sql}");
        }
    }

    #[test]
    fn what_a_transaction_is_for_is_allowed() {
        for sql in [
            "SELECT 1",
            "(SELECT 1)",
            "INSERT INTO t VALUES (1)",
            "UPDATE t SET n = n - 1 WHERE name = 'COMMIT'",
            "DELETE FROM t",
            "WITH x AS (SELECT 1) SELECT * FROM x",
            "SELECT \"commit\" FROM t",
        ] {
            for kind in [Kind::Postgres, Kind::MySql, Kind::Sqlite] {
                assert!(!refused(kind, sql), "{kind:?}: {sql}");
            }
        }
        assert!(
            !refused(Kind::Postgres, "CREATE TABLE t (n int)")
                && !refused(Kind::Postgres, "SELECT $$COMMIT$$")
        );
        assert!(
            !refused(Kind::Postgres, "SET CONSTRAINTS ALL DEFERRED")
                && !refused(Kind::Postgres, "SET LOCAL x.y = 1")
        );
        assert!(!refused(
            Kind::Postgres,
            "SELECT a @> '{}', a ->> 'b', a ? 'c', a #>> '{x}', $1::xid8 FROM t"
        ));
        assert!(!refused(Kind::MySql, "CREATE TEMPORARY TABLE t (n int)"));
        assert!(!refused(
            Kind::MySql,
            "INSERT INTO t SET n = ?, m = @x ON DUPLICATE KEY UPDATE n = VALUES(n) # why"
        ));
        assert!(!refused(Kind::Sqlite, "INSERT OR REPLACE INTO t VALUES (?1, :two, @three, $four)"));
    }

    #[test]
    fn what_leads_out_of_the_transaction_is_refused() {
        for sql in [
            "ATTACH 'x' AS y",
            "DETACH y",
            "VACUUM",
            "VACUUM INTO 'x'",
            "PRAGMA synchronous = OFF",
            "PRAGMA main.journal_mode(delete)",
            "PRAGMA user_version = 7",
            "PRAGMA wal_checkpoint",
            "PRAGMA query_only(0)",
        ] {
            assert!(refused(Kind::Sqlite, sql), "{sql}");
        }
        for sql in [
            "PRAGMA table_info(t)",
            "PRAGMA main.index_list(t)",
            "PRAGMA user_version",
            "pragma main.page_count",
        ] {
            assert!(!refused(Kind::Sqlite, sql), "{sql}");
        }
        for sql in [
            "SET search_path = x",
            "SET SESSION search_path = x",
            "RESET ALL",
            "DISCARD TEMP",
            "LISTEN x",
            "SET LOCAL synchronous_commit = off",
            "SET LOCAL \"synchronous_commit\" = off",
            "SELECT pg_catalog.\"set_config\"('synchronous_commit', 'off', true)",
            "SELECT set_config('synchronous_commit', 'off', true)",
            "SET LOCAL client_min_messages = error",
        ] {
            assert!(refused(Kind::Postgres, sql), "{sql}");
        }
        for sql in ["SET sql_mode = ''", "SET @x = 1", "USE other", "SELECT 1 INTO OUTFILE 'x'"] {
            assert!(refused(Kind::MySql, sql), "{sql}");
        }
        for kind in [Kind::Postgres, Kind::MySql, Kind::Sqlite] {
            assert!(matches!(check(kind, "DELETE FROM Hapax_Transactions"), Err(Refused::Ours(_))));
            assert!(refused(kind, "") && refused(kind, "  -- nothing"));
        }
    }

    /// A comment that one server reads to its end and another doesn't hides nothing.
    #[test]
    fn nothing_hides_behind_a_comment() {
        assert!(refused(Kind::Postgres, "/* /* SELECT */ SELECT */ COMMIT"));
        assert!(refused(Kind::MySql, "/* /* */ COMMIT") && refused(Kind::Sqlite, "/* /* */ COMMIT"));
        assert!(refused(Kind::MySql, "# SELECT\nCOMMIT") && refused(Kind::MySql, "-- SELECT\nCOMMIT"));
    }

    #[test]
    fn what_a_session_keeps_is_noticed() {
        let stains = |kind, sql| check(kind, sql).unwrap().stains;
        assert!(stains(Kind::Postgres, "CREATE TEMP TABLE t (n int)"));
        assert!(
            stains(Kind::Postgres, "SELECT pg_advisory_lock(1)")
                && stains(Kind::MySql, "SELECT get_lock('a', 1)")
        );
        assert!(!stains(Kind::Postgres, "INSERT INTO t VALUES ('TEMP')"));
    }
}

//! Triggers of MySQL that fail at a chosen change.

use hapax_store::conformance::Fired;

fn sql(url: &str, statements: &str) -> String {
    hapax_servers::sql(url, statements).expect("a statement")
}

/// Counts the rows that are changed in every table, and fails at the chosen one. The counter's table has no transactions,
/// so that what is undone stays counted.
pub(crate) fn make(url: &str) {
    let mut script = "CREATE TABLE changes (n BIGINT NOT NULL, fails BIGINT NOT NULL) ENGINE=MyISAM;
        INSERT INTO changes VALUES (0, 0);
        DELIMITER //
        CREATE PROCEDURE fail() BEGIN
            UPDATE changes SET n = n + 1;
            IF EXISTS (SELECT 1 FROM changes WHERE n = fails) THEN
                SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a fault of the test';
            END IF;
        END//
        DELIMITER ;\n"
        .to_owned();
    for table in
        ["runs", "keys", "checkpoints", "frontier", "journal", "outbox", "channels", "letters", "schedules"]
    {
        for change in ["INSERT", "UPDATE", "DELETE"] {
            script.push_str(&format!(
                "CREATE TRIGGER {table}_{change} AFTER {change} ON hapax_{table} FOR EACH ROW CALL fail();\n"
            ));
        }
    }
    sql(url, &script);
}

/// Makes the server fail at the n-th row from now that is changed.
pub(crate) fn fail_at(url: &str, n: u64) -> Fired {
    sql(url, &format!("UPDATE changes SET n = 0, fails = {}", n + 1));
    let url = url.to_owned();
    Box::new(move || {
        let changes = sql(&url, "SELECT n FROM changes; UPDATE changes SET fails = 0");
        changes.parse::<u64>().is_ok_and(|changes| changes > n)
    })
}

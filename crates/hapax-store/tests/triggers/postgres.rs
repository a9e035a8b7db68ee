//! Triggers of PostgreSQL that fail at a chosen change.

use hapax_store::conformance::Fired;

/// Counts the changes to every table, also those that one statement makes, and fails at the chosen one.
const TRIGGERS: &str = "
CREATE SEQUENCE IF NOT EXISTS changes;
CREATE TABLE IF NOT EXISTS fails (at BIGINT NOT NULL);
CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('changes') = (SELECT at FROM fails) THEN RAISE EXCEPTION 'a fault of the test'; END IF;
    RETURN NULL;
END $$;
DO $$
DECLARE t TEXT;
BEGIN
    FOREACH t IN ARRAY ARRAY['runs', 'keys', 'checkpoints', 'frontier', 'journal', 'outbox', 'channels', 'letters', 'schedules'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER fail AFTER INSERT OR UPDATE OR DELETE ON hapax_%s EXECUTE FUNCTION fail()', t);
    END LOOP;
END $$;
";

/// Makes the server fail at the n-th change from now.
pub(crate) fn fail_at(url: &str, n: u64) -> Fired {
    let sql = |sql: &str| hapax_servers::sql(url, sql).expect("a statement");
    sql(&format!(
        "{TRIGGERS} DELETE FROM fails; INSERT INTO fails VALUES ({}); SELECT setval('changes', 1, false)",
        n + 1
    ));
    let url = url.to_owned();
    Box::new(move || {
        let sql = "DELETE FROM fails; SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM changes";
        let changes = hapax_servers::sql(&url, sql).expect("a statement");
        changes.lines().last().and_then(|line| line.parse::<u64>().ok()).is_some_and(|changes| changes > n)
    })
}

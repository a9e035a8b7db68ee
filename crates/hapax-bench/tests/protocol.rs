//! The driver speaks its protocol: `BEGIN`, then `RESULT {json}` with figures that fit the workload.

use hapax_bench::report::{BEGIN, Report};
use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Output},
};

fn call(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax-bench"));
    command.args(line.split(' ')).output().expect("the driver starts")
}

/// Runs a workload; its lines are `BEGIN` and the report.
fn report(line: &str) -> Report {
    let output = call(line);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{line}: {complained}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{line}: {said}");
    assert_eq!(lines[0], BEGIN, "{line}");
    let report = Report::parse(lines[1]).unwrap_or_else(|| panic!("{line}: {said}"));
    assert!(report.wall_s > 0.0 && report.cpu_s > 0.0 && report.client_peak_rss > 0, "{line}: {report:?}");
    assert!(report.p50_ms <= report.p99_ms, "{line}: {report:?}");
    report
}

/// The stores of each test: one in memory, one in a file, with both durabilities.
fn stores(folder: &Path) -> Vec<String> {
    let file = |name: &str| format!("--store sqlite:{}", folder.join(name).display());
    vec![
        "--store memory: --threads 1".into(),
        format!("{} --durability strict", file("strict.db")),
        format!("{} --durability pipelined --threads 2", file("pipelined.db")),
    ]
}

#[test]
fn every_workload_reports_the_steps_it_was_asked_for() {
    for (workload, steps, executed) in [
        ("w1 30", 30, 30),
        ("w2 6 5 3", 30, 30),
        ("w3 40", 40, 40),
        ("w4a 9 5000", 9, 9),
        ("w4b 9 5000", 9, 9),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for store in stores(folder.path()) {
            let report = report(&format!("{store} {workload}"));
            assert_eq!((report.steps, report.executed), (steps, executed), "{store} {workload}");
            assert!(report.extra_u64("transactions").unwrap() > 0, "{store} {workload}");
            assert!(report.extra.contains_key("latency") && report.extra.contains_key("unit"));
        }
    }
}

#[test]
fn commands_to_agents_and_snapshots_are_reported() {
    for (workload, steps) in [
        ("agent-pipe 30", 30),
        ("agent-cached 30", 30),
        ("agent-commands 8 1", 8),
        ("agent-commands 8 4", 8),
        ("snapshot 120 cold", 10),
        ("snapshot 120 warm", 10),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let report = report(&format!("{} {workload}", stores(folder.path())[2]));
        assert_eq!((report.steps, report.executed), (steps, steps), "{workload}");
    }
}

#[test]
fn a_strict_step_has_a_commit_and_a_sync_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(&format!("{} w1 20", stores(folder.path())[1]));
    assert!(report.extra_u64("transactions").unwrap() > 20);
    assert_eq!(report.extra_u64("fsyncs"), Some(21), "the start of the run, and its steps");
}

#[test]
fn pipelined_steps_share_syncs_and_memory_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let fsyncs = |store: &str| report(&format!("{store} w1 300")).extra_u64("fsyncs").unwrap();
    let stores = stores(folder.path());
    assert_eq!(fsyncs(&stores[0]), 0);
    assert!((1..150).contains(&fsyncs(&stores[2])));
}

#[test]
fn several_processes_can_use_one_database() {
    let folder = tempfile::tempdir().unwrap();
    let store = &stores(folder.path())[2];
    assert_eq!(report(&format!("{store} fill 3 20")).steps, 60);
    assert_eq!(report(&format!("{store} w2 4 5 2")).executed, 20);
    assert_eq!(report(&format!("{store} w2 4 5 2")).executed, 20);
}

#[test]
fn all_runs_of_a_store_move_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    report(&format!("--store {} fill 3 5", file("old.db")));
    let moves = format!("--store {} migrate {}", file("new.db"), file("old.db"));
    let moved = report(&moves);
    assert_eq!((moved.steps, moved.executed), (3, 3));
    assert!(moved.extra_u64("transactions").unwrap() > 0 && moved.extra_u64("fsyncs").unwrap() > 0);
}

#[test]
fn a_killed_run_goes_on_and_no_committed_step_is_executed_again() {
    for durability in ["strict", "pipelined"] {
        let folder = tempfile::tempdir().unwrap();
        let (db, file) = (folder.path().join("runs.db"), folder.path().join("executed.txt"));
        let store = format!("--store sqlite:{} --durability {durability}", db.display());
        let killed = call(&format!("{store} w5 60 {} 30", file.display()));
        assert_eq!(killed.status.signal(), Some(9));
        let first_life = fs::read_to_string(&file).unwrap();
        assert_eq!(first_life.lines().count(), 30);
        let report = report(&format!("{store} w5resume 60 {}", file.display()));
        let extra = |name: &str| report.extra_u64(name).unwrap();
        assert_eq!((report.steps, extra("committed_executed_twice")), (60, 0));
        assert_eq!(report.executed + extra("committed_before"), 60);
        if durability == "strict" {
            assert_eq!((extra("committed_before"), extra("executed_twice")), (29, 1));
        }
    }
}

#[test]
fn a_body_leaves_its_step_process_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("executed.txt");
    report(&format!("--store memory: w5 5 {}", file.display()));
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<Vec<u64>> =
        text.lines().map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect()).collect();
    assert_eq!(lines.iter().map(|line| line[0]).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(lines.iter().all(|line| line.len() == 3 && line[1] == lines[0][1]));
    assert!(lines.is_sorted_by_key(|line| line[2]));
}

#[test]
fn limits_report_what_they_wrote() {
    let folder = tempfile::tempdir().unwrap();
    for (name, workload, steps, commits) in
        [("a", "limit-fsync 5", 5, 5), ("b", "limit-rows 4 10", 40, 4), ("c", "limit-steps 4 3", 12, 4)]
    {
        let report = report(&format!("--store sqlite:{} {workload}", folder.path().join(name).display()));
        assert_eq!((report.steps, report.extra_u64("transactions")), (steps, Some(commits)), "{workload}");
        assert_eq!(report.extra_u64("fsyncs"), Some(commits), "{workload}: each commit is synced");
    }
}

#[test]
fn transfers_are_made_with_and_without_an_engine_and_the_money_is_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let [postgres, mysql] = [hapax_servers::postgres().unwrap(), hapax_servers::mysql().unwrap()];
    for (store, how, trips) in [
        (file("bare"), "bare", None),
        (file("marker"), "marker", None),
        (file("co-commit"), "co-commit", None),
        (postgres, "bare", Some(7.0)),
        (mysql, "bare", Some(7.0)),
    ] {
        let report = report(&format!("--store {store} transfers 12 3 {how}"));
        assert_eq!((report.steps, report.executed), (12, 12), "{store} {how}");
        let counted = report.extra.get("round_trips").map(|trips| trips.as_f64().unwrap());
        assert_eq!(counted, trips, "{store} {how}");
    }
}

#[test]
fn the_outcome_of_a_transfer_costs_round_trips() {
    let marker = report(&format!("--store {} transfers 12 3 marker", hapax_servers::postgres().unwrap()));
    let asked =
        report(&format!("--store {} transfers 12 3 introspection", hapax_servers::postgres().unwrap()));
    let trips = |report: &Report| report.extra["round_trips"].as_f64().unwrap();
    assert!(7.0 < trips(&marker) && trips(&marker) < trips(&asked), "{marker:?} {asked:?}");
}

#[test]
fn a_call_that_is_not_understood_is_answered_with_the_usage() {
    let output = call("--store memory: w9");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no workload `w9`"));
}

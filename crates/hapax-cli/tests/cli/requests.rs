//! Requests of a service, seen and decided by the stock program beside it.

use crate::common::{Said, said, shop, stock, url};
use hapax::Engine;
use hapax_core::{
    id::Namespace,
    json::Json,
    key::sha256,
    request::{Completion, Lease, RecoveryPoint, RequestHash, RequestId},
};
use hapax_store::requests::{Begun, Claim, Finished, RequestStore, SqliteRequests};
use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};
use tempfile::TempDir;

const CHARGES: &str = "POST /charges";

/// A service's database, and the service.
struct Service {
    folder: TempDir,
    store: Arc<SqliteRequests>,
}

impl Service {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteRequests::open(folder.path().join("shop.db"), Default::default()).await.unwrap();
        Self { folder, store }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    fn hapax(&self, args: &[&str]) -> Said {
        let mut command = stock(args);
        command.env("HAPAX_STORE", url(&self.path()));
        said(command)
    }

    async fn begin(&self, claim: &Claim) -> Lease {
        match self.store.begin(claim).await.unwrap() {
            Begun::Execute(lease) => lease,
            other => panic!("it is new: {other:?}"),
        }
    }

    async fn ended(&self, claim: &Claim, end: &Completion) {
        let lease = self.begin(claim).await;
        assert_eq!(self.store.finish(&lease, end).await.unwrap(), Finished::Done);
    }
}

fn claim_of(principal: &str, key: &str) -> Claim {
    let id = RequestId::new(Namespace::default(), principal, CHARGES, key).unwrap();
    Claim { lease: Duration::from_secs(3600), ..Claim::new(id, RequestHash(sha256(key.as_bytes()))) }
}

fn claim(key: &str) -> Claim {
    claim_of("ada", key)
}

/// One of each kind; each is kept a little shorter than the one before, so that the order of a list is known.
async fn busy() -> Service {
    let service = Service::open().await;
    let kept = |hours: u64, claim: Claim| Claim { expiry: Duration::from_secs(3600 * hours), ..claim };
    let mut paid = Completion::succeeded(201, br#"{"charge": "ch_1", "cents": 42.00}"#);
    paid.response_headers = vec![
        ("content-type".into(), b"application/json".into()),
        ("set-cookie".into(), b"session=s3cret".into()),
    ];
    service.ended(&kept(90, claim("paid")), &paid).await;
    let refused = Completion::failed_final(402, "no \u{1b}[31mcover", "the handler answered 402");
    service.ended(&kept(80, claim("refused")), &refused).await;
    service.ended(&kept(70, claim("failed")), &Completion::failed_retryable(503, "the bank is closed")).await;
    service.ended(&kept(60, claim("blob")), &Completion::succeeded(200, [0xff, 0])).await;
    let lease = service.begin(&kept(50, claim_of("bob", "under way"))).await;
    let point = RecoveryPoint::new("reserved", Json::of(&("shelf", 7)).unwrap()).unwrap();
    assert_eq!(service.store.set_point(&lease, &point).await.unwrap(), Finished::Done);
    service.begin(&Claim { lease: Duration::ZERO, ..kept(40, claim("dead")) }).await;
    service
}

/// Puts a word for what differs from one execution to the next.
fn steady(text: &str) -> String {
    let mut steady = String::new();
    for line in text.lines() {
        let word = line.split_whitespace().next().unwrap_or_default();
        match word {
            "begun" | "claimed" | "expires" => steady.push_str(&format!("{word:<9} [time]")),
            "lease" if line.ends_with("left") => steady.push_str("lease     [time] left"),
            _ => {
                let line =
                    (0..60).fold(line.to_owned(), |line, n| line.replace(&format!(" {n}s ago"), " Ns ago"));
                // What is left of an hour.
                steady.push_str(
                    &(3000..=3600).fold(line, |line, n| line.replace(&format!(" {n}s "), " NNNNs ")),
                );
            }
        }
        steady.push('\n');
    }
    steady
}

fn steady_json(mut value: serde_json::Value) -> String {
    let request = &mut value["request"];
    for field in ["begun_at", "claimed_at", "expires_at", "sequence", "lease_left_ms"] {
        if !request[field].is_null() {
            request[field] = "[redacted]".into();
        }
    }
    serde_json::to_string_pretty(&value).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_listed_by_what_is_asked_for() {
    let service = busy().await;
    insta::assert_snapshot!("requests_list", steady(&service.hapax(&["requests", "list"]).ok()));
    let keys = |args: &[&str]| {
        let listed = service.hapax(&[&["requests", "list", "--json"][..], args].concat()).json();
        let listed = listed["requests"].as_array().unwrap().clone();
        listed.iter().map(|one| one["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&["--principal", "bob"]), ["under way"]);
    assert_eq!(keys(&["--method", "POST /refunds"]), [""; 0]);
    assert_eq!(keys(&["--status", "in-progress"]), ["under way", "dead"]);
    assert_eq!(keys(&["--status", "failed-final", "--status", "failed-retryable"]), ["refused", "failed"]);
    assert_eq!(
        keys(&["--status", "IN_PROGRESS", "--status", "Failed_Final"]),
        ["refused", "under way", "dead"]
    );
    assert_eq!(keys(&["--namespace", "elsewhere"]), [""; 0]);
    let two = service.hapax(&["requests", "list", "--limit", "2", "--json"]).json();
    assert_eq!((two["requests"].as_array().unwrap().len(), &two["more"]), (2, &true.into()));
    assert_eq!(two["requests"][0]["status"], "SUCCEEDED");
    let cut = service.hapax(&["requests", "list", "--limit", "2"]);
    assert_eq!((cut.code, cut.err.as_str()), (0, "--limit 2 is reached: there are more\n"));
    assert!(service.hapax(&["requests", "list", "--limit", "0"]).fails(2).starts_with("error[HX0060]"));
    assert!(service.hapax(&["requests", "list", "--status", "done"]).fails(2).contains("in-progress"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_very_long_key_is_cut_in_the_table_alone() {
    let (service, long) = (Service::open().await, format!("first-{}-last", "k".repeat(240)));
    service.begin(&claim_of(&long, &long)).await;
    let table = service.hapax(&["requests", "list"]).ok();
    assert!(table.lines().all(|line| line.len() < 200), "{table}");
    assert_eq!((table.matches("first-k").count(), table.matches("k-last").count()), (2, 2), "{table}");
    let json = service.hapax(&["requests", "list", "--json"]).json();
    let one = &json["requests"][0];
    assert_eq!((one["key"].as_str(), one["principal"].as_str()), (Some(&*long), Some(&*long)));
    assert!(service.hapax(&["requests", "show", &long, CHARGES, &long]).ok().contains(&long));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_shown_with_its_answer_and_how_far_it_came() {
    let service = busy().await;
    let show = |principal, key| steady(&service.hapax(&["requests", "show", principal, CHARGES, key]).ok());
    for key in ["paid", "refused", "failed", "blob", "dead"] {
        insta::assert_snapshot!(format!("requests_show_{key}"), show("ada", key));
    }
    insta::assert_snapshot!("requests_show_under_way", show("bob", "under way"));
    let json = |principal, key| {
        steady_json(service.hapax(&["requests", "show", principal, CHARGES, key, "--json"]).json())
    };
    insta::assert_snapshot!("requests_show_paid_json", json("ada", "paid"));
    insta::assert_snapshot!("requests_show_blob_json", json("ada", "blob"));
    insta::assert_snapshot!("requests_show_under_way_json", json("bob", "under way"));
    let lease = service.hapax(&["requests", "show", "bob", CHARGES, "under way", "--json"]).json();
    let left = lease["request"]["lease_left_ms"].as_u64().unwrap();
    assert!((1..=3_600_000).contains(&left), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_secret_is_not_printed() {
    let service = busy().await;
    let lease = service.begin(&claim("nonce")).await;
    let shown = [&["--json"][..], &[]].map(|flag| {
        let show = |key| service.hapax(&[&["requests", "show", "ada", CHARGES, key][..], flag].concat()).ok();
        show("paid") + &show("nonce")
    });
    let nonce = [format!("{:x}", lease.token.nonce), lease.token.nonce.to_string()];
    for secret in nonce.iter().map(String::as_str).chain(["s3cret"]) {
        assert!(!shown.concat().contains(secret), "{secret}: {shown:?}");
    }
    for args in [&["requests", "list"][..], &["requests", "sweep"]] {
        let mut command = stock(args);
        command.env("HAPAX_STORE", "postgres://ada:s3cret@127.0.0.1:1/shop");
        let error = said(command).err;
        assert!(error.starts_with("error[HX") && !error.contains("s3cret"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_fences_who_executes_and_says_what_it_did() {
    let service = busy().await;
    let lease = service.begin(&claim("hangs")).await;
    let release = |key, flags: &[&str]| {
        service.hapax(&[&["requests", "release", "ada", CHARGES, key][..], flags].concat())
    };
    assert_eq!(release("hangs", &[]).ok(), "hangs was in progress; it may be tried again\n");
    assert_eq!(
        service.store.finish(&lease, &Completion::succeeded(201, "late")).await.unwrap(),
        Finished::Stale
    );
    let again = release("hangs", &[]);
    assert_eq!((again.code, again.out.as_str()), (1, "hangs wasn't in progress: it is failed-retryable\n"));
    assert_eq!(again.err, "");
    let begun = service.store.reacquire(&claim("hangs")).await.unwrap();
    assert!(matches!(begun, Begun::Execute(lease) if lease.attempt == 2));
    let json = release("hangs", &["--json"]).json();
    assert_eq!((&json["released"], &json["status"]), (&true.into(), &"FAILED_RETRYABLE".into()));
    let over = release("paid", &["--json"]);
    assert_eq!(over.code, 1);
    assert!(over.out.contains(r#""released":false,"status":"SUCCEEDED""#), "{}", over.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_exist_has_a_code_and_a_cure() {
    let service = busy().await;
    for action in ["show", "release"] {
        for (args, code) in [
            (["ada", CHARGES, "nope"], 1),
            (["bob", CHARGES, "paid"], 1),
            (["ada", "POST /refunds", "paid"], 1),
            (["ada", CHARGES, ""], 2),
        ] {
            let error = service.hapax(&[&["requests", action][..], &args].concat()).fails(code);
            let expected = if code == 1 { "error[HX0110]: there is no request " } else { "error[HX0001]" };
            assert!(error.starts_with(expected) && error.contains("\n  cure: "), "{error}");
        }
        let elsewhere = ["requests", action, "ada", CHARGES, "paid", "--namespace", "elsewhere"];
        assert!(service.hapax(&elsewhere).fails(1).starts_with("error[HX0110]"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_deletes_what_has_expired_and_tells_before() {
    let service = busy().await;
    for number in 0..1203 {
        let fleeting = Claim { expiry: Duration::ZERO, ..claim(&format!("old {number}")) };
        service.ended(&fleeting, &Completion::succeeded(200, [])).await;
    }
    let sweep = |flags: &[&str]| service.hapax(&[&["requests", "sweep"][..], flags].concat());
    assert_eq!(sweep(&["--dry-run"]).ok(), "would delete 1203 expired requests\n");
    let some = sweep(&["--dry-run", "--limit", "3", "--json"]).ok();
    assert_eq!(some, "{\"v\":1,\"dry_run\":true,\"deleted\":3,\"left\":1200}\n");
    assert_eq!(sweep(&["--limit", "2"]).ok(), "deleted 2 expired requests; 1201 more have expired\n");
    assert_eq!(sweep(&["--json"]).ok(), "{\"v\":1,\"dry_run\":false,\"deleted\":1201,\"left\":0}\n");
    assert_eq!(sweep(&[]).ok(), "deleted 0 expired requests\n");
    let left = service.hapax(&["requests", "list", "--json"]).json();
    assert_eq!(left["requests"].as_array().unwrap().len(), 6, "what hasn't expired is kept");
    assert!(sweep(&["--limit", "0"]).fails(2).starts_with("error[HX0060]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_table_is_made_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let sweep = || {
        let mut command = stock(&["requests", "sweep", "--store"]);
        command.arg(url(&path));
        said(command).fails(3)
    };
    let error = sweep();
    assert!(error.starts_with("error[HX0047]") && error.contains("there is no such file"), "{error}");
    assert!(!path.exists());
    let engine = Engine::open(&format!("sqlite:{}", path.display())).await.unwrap();
    engine.register(shop(), Arc::default()).await.unwrap();
    let error = sweep();
    assert!(error.starts_with("error[HX0047]") && error.contains("holds no requests of Hapax"), "{error}");
    assert!(error.contains("is made by the service that takes them"), "{error}");
    engine.shutdown(Duration::from_secs(5)).await;
    let file = rusqlite::Connection::open(&path).unwrap();
    assert!(!file.table_exists(None, "hapax_requests").unwrap());
    assert!(said(stock(&["requests", "list"])).fails(2).starts_with("error[HX0060]: no store is named"));
    let elsewhere = said(stock(&["requests", "list", "--store", "redis://localhost"])).fails(2);
    assert!(elsewhere.starts_with("error[HX0050]"), "{elsewhere}");
}

/// Its engine doesn't know where the requests are, so they are named.
#[tokio::test(flavor = "multi_thread")]
async fn a_users_own_program_sees_requests_too() {
    let service = busy().await;
    let store = format!("sqlite:{}", service.path().display());
    for (store, code) in [(store.as_str(), ExitCode::SUCCESS), ("sqlite:nowhere.db", ExitCode::from(3))] {
        let engine = Engine::open("memory:").await.unwrap();
        let done = hapax_cli::run_from(engine, ["shop", "requests", "list", "--store", store]).await;
        assert_eq!(done, code, "{store}");
    }
}

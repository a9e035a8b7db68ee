//! What a run did, on the screen and in a browser.

use crate::common::{
    Shop,
    desk::{Desk, Note, WORK},
};
use hapax::{EffectKind::Write, Graph};
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{FileTypeExt, PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use tokio::sync::Notify;

/// A name that would be a program, if a page took it for more than text.
const HOSTILE: &str = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";

/// Chromium, with a profile of its own.
fn browser(profile: &Path) -> Command {
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]);
    command.arg(format!("--user-data-dir={}", profile.display())).stderr(Stdio::null());
    command
}

#[tokio::test]
async fn a_history_tells_steps_calls_and_changes() {
    let shop = Shop::with_history().await;
    let told = shop.hapax(&["history", "order-1"]).ok();
    assert!(told.starts_with("order-1  orders  succeeded"), "{told}");
    let account = shop.hapax(&["history", "order-1", "--json"]).json();
    let steps = account["steps"].as_array().unwrap();
    assert_eq!(account["step"].as_u64().unwrap() as usize, steps.len());
    assert!(steps.iter().all(|step| step["committed"] == true && step["items"] != 0), "{account}");
    assert!(steps.iter().any(|step| !step["changes"].as_array().unwrap().is_empty()), "{account}");
    for step in steps {
        assert!(told.contains(step["nodes"][0].as_str().unwrap()), "{told}");
    }
    for most in [1, 2, steps.len(), steps.len() + 1] {
        let latest = shop.hapax(&["history", "order-1", "--steps", &most.to_string(), "--json"]).json();
        let first = steps.len().saturating_sub(most);
        assert_eq!(latest["untold"].as_u64().unwrap() as usize, first);
        assert_eq!(latest["steps"].as_array().unwrap()[..], steps[first..], "the latest {most}");
    }
    let failed = shop.hapax(&["history", "order-2"]).ok();
    assert!(failed.contains("not committed"), "{failed}");
    shop.hapax(&["history", "nope"]).fails(1);
}

#[tokio::test]
async fn a_page_shows_a_run_in_a_browser_and_is_text_whatever_the_run_holds() {
    let shop = Shop::open().await;
    shop.finish(HOSTILE, HOSTILE).await;
    let folder = tempfile::tempdir().unwrap();
    let (page, picture) = (folder.path().join("run.html"), folder.path().join("run.png"));
    let written = shop.hapax(&["history", HOSTILE, "--html", page.to_str().unwrap()]).ok();
    assert!(written.contains("run.html"), "{written}");
    let address = format!("file://{}", page.display());
    let dumped =
        browser(folder.path()).args(["--dump-dom", &address]).output().expect("chromium is installed");
    let seen = String::from_utf8(dumped.stdout).unwrap();
    let title = seen.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next()).unwrap();
    assert!(title.starts_with("&lt;script&gt;document.title="), "{title}");
    assert!(!seen.contains("<script") && !seen.contains("<img"), "the run's own text is no markup");
    for part in ["id=\"graph\"", "id=\"steps\"", "id=\"state\"", "<svg", "<details", "class=\"change plus\""]
    {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    let shot = format!("--screenshot={}", picture.display());
    browser(folder.path()).args([&shot, "--window-size=1200,1600", &address]).output().unwrap();
    let bytes = fs::read(picture).unwrap();
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "it isn't blank: {} bytes", bytes.len());
}

#[tokio::test]
async fn a_page_that_cannot_be_written_leaves_what_was_there() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere/run.html");
    let error = shop.hapax(&["history", "order-1", "--html", nowhere.to_str().unwrap()]).fails(2);
    assert!(error.contains("can't be written") && error.contains("cure: name a file in a folder"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_long_value_is_cut_and_says_how_much_is_missing() {
    let shop = Shop::open().await;
    shop.finish("order-1", &"é".repeat(50_000)).await;
    let page = shop.hapax(&["history", "order-1", "--html", "-"]).ok();
    assert!(page.contains(" more characters</pre>") && page.chars().count() < 80_000, "{}", page.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_timer_says_until_when() {
    let desk = Desk::open().await;
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<()> {
        Ok(ctx.sleep(Duration::from_hours(48)).await?)
    }
    let run = desk.parked(Graph::new("notes", 1, WORK).node(WORK, work)).await;
    let call = desk.hapax(&["history", "note-1", "--json"]).json()["steps"][0]["calls"][0].clone();
    assert!(call["due_us"].as_i64() > call["began_us"].as_i64(), "{call}");
    let told = desk.hapax(&["history", "note-1"]).ok();
    let page = desk.hapax(&["history", "note-1", "--html", "-"]).ok();
    for text in [told, page] {
        assert!(text.contains("until 2") && !text.contains("not known"), "{text}");
    }
    run.cancel().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_call_is_under_way_as_long_as_its_run_is() {
    static CALLED: Notify = Notify::const_new();
    let desk = Desk::open().await;
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<()> {
        let never = async |_: hapax::Call| {
            CALLED.notify_one();
            std::future::pending::<Result<(), std::io::Error>>().await
        };
        Ok(ctx.effect("send", Write, &1, never).await?)
    }
    let flow = desk.engine.register(Graph::new("notes", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("note-1", Note::default()).await.unwrap();
    CALLED.notified().await;
    let told = || desk.hapax(&["history", "note-1"]).ok();
    let page = || desk.hapax(&["history", "note-1", "--html", "-"]).ok();
    assert!(told().contains("under way") && page().contains("class=\"bar going\""), "{}", told());
    run.cancel().await.unwrap();
    // A cancelled run has no result.
    let _ = run.wait().await;
    assert!(told().contains("its end is not known") && page().contains("class=\"bar open\""), "{}", told());
}

#[tokio::test]
async fn a_page_keeps_who_may_read_the_one_that_it_replaces() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    fs::write(&page, "before").unwrap();
    for mode in [0o600, 0o664] {
        fs::set_permissions(&page, Permissions::from_mode(mode)).unwrap();
        shop.hapax(&["history", "order-1", "--html", page.to_str().unwrap()]).ok();
        assert_eq!(fs::metadata(&page).unwrap().permissions().mode() & 0o777, mode);
    }
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!"));
}

#[tokio::test]
async fn marks_of_direction_are_seen_in_a_page_and_turn_nothing_around() {
    let shop = Shop::open().await;
    shop.finish("order-\u{202e}24", "anvil\u{2066}").await;
    let page = shop.hapax(&["history", "order-\u{202e}24", "--html", "-"]).ok();
    assert!(!page.contains(['\u{202e}', '\u{2066}']), "{page}");
    assert!(page.contains("order-\\u{202e}24") && page.contains("anvil\\u{2066}"), "{page}");
}

#[tokio::test]
async fn a_page_goes_where_a_link_leads_and_replaces_no_pipe() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let written = |name: &str| shop.hapax(&["history", "order-1", "--html", at(name).to_str().unwrap()]).ok();
    fs::write(at("page.html"), "before").unwrap();
    symlink("page.html", at("link.html")).unwrap();
    symlink("new.html", at("link-to-nothing.html")).unwrap();
    for (link, file) in [("link.html", "page.html"), ("link-to-nothing.html", "new.html")] {
        written(link);
        assert!(at(link).is_symlink(), "{link}");
        assert!(fs::read_to_string(at(file)).unwrap().starts_with("<!"), "{file}");
    }

    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let mut reader =
        Command::new("cat").arg(at("pipe")).stdout(File::create(at("read.html")).unwrap()).spawn().unwrap();
    written("pipe");
    let is_pipe = fs::metadata(at("pipe")).unwrap().file_type().is_fifo();
    if !is_pipe {
        reader.kill().unwrap();
    }
    reader.wait().unwrap();
    assert!(is_pipe);
    assert!(fs::read_to_string(at("read.html")).unwrap().ends_with("</html>\n"));

    let page = shop.hapax(&["history", "order-1", "--html", "-"]).ok();
    assert!(page.starts_with("<!") && page.ends_with("</html>\n"), "a page and nothing else: {page}");
}

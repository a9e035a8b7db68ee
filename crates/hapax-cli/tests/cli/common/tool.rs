//! A user's own program: every subcommand, with the code of its graphs behind it.
//!
//! A test binary plays that program itself: started again with `HAPAX_TOOL` set, its test `tool` runs the commands of its
//! environment over the shop's graph.

use super::{Order, Said, Shop, World, changed_shop, clean_env, said, shop};
use hapax::{Engine, Graph, Node, Options, State};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::{
    env, fs,
    io::{BufRead, BufReader, Lines},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitCode, Stdio},
    sync::Arc,
};

/// Separates the test harness's own words from the program's.
const MARK: &str = "=== the program's own words ===\n";

/// What a test named `tool` is to do: nothing, unless it is the program.
pub(crate) fn play() {
    let Ok(args) = env::var("HAPAX_TOOL") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let code = runtime.block_on(async {
        let is_set = |name| env::var_os(name).is_some();
        let options = Options::default().finds_work(is_set("HAPAX_TOOL_FINDS_WORK"));
        let url = env::var("HAPAX_TOOL_STORE").or_else(|_| env::var("HAPAX_STORE")).unwrap();
        let engine = Engine::builder().options(options).open(&url).await.unwrap();
        if is_set("HAPAX_TOOL_EARLIER") {
            let only = Node::new("only");
            let earlier = Graph::new("orders", 9, only).node(only, earlier_node);
            engine.register(earlier, ()).await.unwrap();
        }
        if !is_set("HAPAX_TOOL_HOLDS_NOTHING") {
            let graph = if is_set("HAPAX_TOOL_CHANGED") { changed_shop() } else { shop() };
            engine.register(graph, Arc::new(World::default())).await.unwrap();
        }
        if is_set("HAPAX_TOOL_SWEEPS") {
            let only = Node::new("only");
            engine.register(Graph::new("sweep", 1, only).node(only, only_node), ()).await.unwrap();
        }
        print!("{MARK}");
        hapax_cli::run_from(engine, ["shop"].into_iter().chain(args.split_whitespace())).await
    });
    // An exit code can only be printed or returned by `main`, and that is the harness's.
    let code = (0..=u8::MAX).find(|n| format!("{:?}", ExitCode::from(*n)) == format!("{code:?}"));
    std::process::exit(code.expect("a code of a byte").into());
}

async fn only_node(_: hapax::Ctx<Order>) {}

/// Orders of another shape, in which no card is secret.
#[derive(State, Clone, Default, Serialize, Deserialize)]
struct OpenOrder {
    card: String,
    sku: String,
}

async fn earlier_node(_: hapax::Ctx<OpenOrder>) {}

pub(crate) fn tool_on(shop: &Shop, args: &str) -> Said {
    tool_with(shop, args, &[])
}

pub(crate) fn tool_with(shop: &Shop, args: &str, env: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["tool", "--exact", "--nocapture", "--test-threads=1"]);
    clean_env(&mut command);
    command.env("HAPAX_TOOL", args).env("HAPAX_TOOL_STORE", shop.url());
    command.envs(env.iter().copied());
    let mut said = said(command);
    said.out = said.out.split_once(MARK).expect("the program began").1.to_owned();
    said
}

/// The program as a worker, which ends with the test.
pub(crate) struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) fn start(url: &str, args: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["tool", "--exact", "--nocapture", "--test-threads=1"]);
        clean_env(&mut command);
        command.env("HAPAX_TOOL", args).env("HAPAX_TOOL_STORE", url);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line with this in it.
    pub(crate) fn until(&mut self, part: &str) -> String {
        let found = self.lines.by_ref().map(Result::unwrap).find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("it never said `{part}`"))
    }

    /// Asks it to stop, and waits until it has; its exit code.
    pub(crate) fn stop(mut self) -> i32 {
        self.signal(Signal::TERM);
        self.until("stopped");
        self.exit_code()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it has ended.
    pub(crate) fn exit_code(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program as a file that others can start, with these variables set.
pub(crate) fn installed(folder: &Path, name: &str, env: &[(&str, &str)]) -> PathBuf {
    let exe = env::current_exe().unwrap();
    let set: String = env.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let text = format!(
        "{set}export HAPAX_TOOL=\"$*\"\n\
         said=$('{}' tool --exact --nocapture --test-threads=1)\n\
         code=$?\n\
         printf '%s\\n' \"${{said#*words ===}}\"\n\
         exit $code\n",
        exe.display()
    );
    script(folder, name, &text)
}

/// A program of a few lines.
pub(crate) fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

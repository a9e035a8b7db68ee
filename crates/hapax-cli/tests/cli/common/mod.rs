//! A shop with runs that went well, failed and are under way, and the binary that looks at them.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod desk;
pub(crate) mod till;
pub(crate) mod tool;

use hapax::{
    EffectKind::Write, Engine, Flow, Graph, Node, NodeError, Options, Outcome, RouteExt as _, StartOptions,
    State, core::id::Namespace,
};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tempfile::TempDir;
use tokio::sync::Notify;

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) sku: String,
    pub(crate) cents: u64,
    #[state(sum)]
    pub(crate) tax: u64,
    #[state(append)]
    pub(crate) log: Vec<String>,
    #[state(secret)]
    pub(crate) card: String,
    pub(crate) receipt: Option<String>,
}

/// What the nodes need: whether the card is declined, and when the parcel may leave.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) declined: AtomicBool,
    pub(crate) parcel: Notify,
    pub(crate) waits: Notify,
}

type Ctx = hapax::Ctx<Order, Arc<World>>;

const RESERVE: Node = Node::new("reserve");
const FRAUD: Node<String> = Node::new("fraud");
const TAX: Node<u64> = Node::new("tax");
const CHARGE: Node = Node::new("charge");
const SHIP: Node = Node::new("ship");
const HOLD: Node = Node::new("hold");

async fn reserve(ctx: Ctx) -> Outcome<Order> {
    let order = ctx.state();
    Order::delta().log("reserved").fork([FRAUD.with(order.sku.clone()), TAX.with(order.cents)])
}

async fn fraud(_: Ctx, _sku: String) -> OrderDelta {
    Order::delta().log("not fraud").card("4242")
}

async fn tax(_: Ctx, cents: u64) -> OrderDelta {
    Order::delta().tax(cents / 5)
}

async fn charge(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let (order, world) = (ctx.state(), ctx.app());
    if world.declined.load(Ordering::SeqCst) && order.sku == "bomb" {
        return Err(NodeError::new("card \u{1b}[31mdeclined").fatal());
    }
    let cents = order.cents + order.tax;
    let answer = async |_: hapax::Call| Ok::<_, std::io::Error>(format!("{cents} cents"));
    Ok(Order::delta().receipt(ctx.effect("charge", Write, &cents, answer).await?))
}

async fn ship(ctx: Ctx) -> OrderDelta {
    if ctx.state().sku == "slow" {
        ctx.app().waits.notify_one();
        ctx.app().parcel.notified().await;
    }
    Order::delta().log("shipped")
}

async fn hold(_: Ctx) {}

async fn higher_tax(_: Ctx, cents: u64) -> OrderDelta {
    Order::delta().tax(cents / 4)
}

pub(crate) fn shop() -> Graph<Order, Arc<World>> {
    shop_with(|graph| graph.node(TAX, tax))
}

/// The same shape with other code in it.
pub(crate) fn changed_shop() -> Graph<Order, Arc<World>> {
    shop_with(|graph| graph.node(TAX, higher_tax))
}

fn shop_with(
    taxed: impl Fn(Graph<Order, Arc<World>>) -> Graph<Order, Arc<World>>,
) -> Graph<Order, Arc<World>> {
    taxed(Graph::new("orders", 1, RESERVE).node(RESERVE, reserve).node(FRAUD, fraud))
        .node(CHARGE, charge)
        .node(SHIP, ship)
        .node(HOLD, hold)
        .join((FRAUD, TAX), CHARGE)
        .edge_if(CHARGE, SHIP, "in stock", |order: &Order| order.cents > 0)
        .edge_if(CHARGE, HOLD, "sold out", |order: &Order| order.cents == 0)
}

/// A store in a folder of its own, with the engine that works on it.
pub(crate) struct Shop {
    folder: TempDir,
    pub(crate) engine: Engine,
    pub(crate) orders: Flow<Order, Arc<World>>,
    pub(crate) world: Arc<World>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let world = Arc::new(World::default());
        world.declined.store(true, Ordering::SeqCst);
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        let engine = Engine::open(&url).await.unwrap();
        let orders = engine.register(shop(), world.clone()).await.unwrap();
        Self { folder, engine, orders, world }
    }

    /// A shop with a run that went well and one that failed.
    pub(crate) async fn with_history() -> Self {
        let shop = Self::open().await;
        shop.finish("order-1", "anvil").await;
        shop.finish("order-2", "bomb").await;
        shop
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    pub(crate) async fn start(&self, run: &str, sku: &str) -> hapax::Run<Order> {
        let order = Order { sku: sku.into(), cents: 4200, card: "4111".into(), ..Order::default() };
        let options = StartOptions::default().tag("customer", "42");
        self.orders.start_with(run, order, options).await.unwrap()
    }

    /// Runs to the end, whichever it is.
    pub(crate) async fn finish(&self, run: &str, sku: &str) {
        // A failed run is a result here.
        let _ = self.start(run, sku).await.wait().await;
    }

    /// A run whose last node waits until the test ends it.
    pub(crate) async fn in_flight(&self, run: &str) -> hapax::Run<Order> {
        let handle = self.start(run, "slow").await;
        self.world.waits.notified().await;
        handle
    }

    /// The shop's graph on an engine that looks for no work.
    pub(crate) async fn reopened(&self) -> Flow<Order, Arc<World>> {
        let options = Options::default().finds_work(false);
        let url = format!("sqlite:{}", self.path().display());
        let engine = Engine::builder().options(options).open(&url).await.unwrap();
        engine.register(shop(), self.world.clone()).await.unwrap()
    }

    /// The stock binary on this store.
    pub(crate) fn hapax(&self, args: &[&str]) -> Said {
        said(self.command(args))
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = stock(args);
        command.env("HAPAX_STORE", url(&self.path()));
        command
    }
}

pub(crate) fn url(path: &Path) -> std::ffi::OsString {
    let mut url = std::ffi::OsString::from("sqlite:");
    url.push(path);
    url
}

/// The stock binary, with nothing of this environment that it would heed.
pub(crate) fn stock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.args(args);
    clean_env(&mut command);
    command
}

pub(crate) fn clean_env(command: &mut Command) {
    for name in [
        "HAPAX_STORE",
        "HAPAX_NAMESPACE",
        "HAPAX_KEYS",
        "HAPAX_KEYS_FILE",
        "HAPAX_BLOBS_OVER",
        "HAPAX_OBJECTS",
        "COLUMNS",
        "NO_COLOR",
    ] {
        command.env_remove(name);
    }
}

/// A terminal of that size: its user's side, and the program's.
pub(crate) fn new_terminal(rows: u16, columns: u16) -> (File, File) {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let screen = File::from(screen);
    resize(&screen, rows, columns);
    let name = ptsname(&screen, vec![]).unwrap().into_string().unwrap();
    (screen, File::options().read(true).write(true).open(name).unwrap())
}

pub(crate) fn resize(screen: &File, rows: u16, columns: u16) {
    tcsetwinsize(screen, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// What a process said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn said(mut command: Command) -> Said {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

impl Said {
    /// The answer of a command that must succeed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        let value: serde_json::Value = serde_json::from_str(&self.ok()).unwrap();
        assert_eq!(value["v"], 1);
        value
    }

    /// Failed with this exit code, and said nothing on stdout.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{}", self.err);
        self.err
    }
}

/// Puts a word for what differs from one execution to the next.
pub(crate) fn steady(text: &str) -> String {
    let mut steady = String::new();
    for line in text.lines() {
        let word = line.split_whitespace().next().unwrap_or_default();
        match word {
            "created" | "changed" | "began" | "since" if line.contains('T') => {
                steady.push_str(&format!("{word:<8} [time]"));
            }
            "held" => steady.push_str("held by  [engine] (epoch 1)"),
            _ => steady.push_str(
                &(0..60).fold(line.to_owned(), |line, n| line.replace(&format!(" {n}s ago"), " Ns ago")),
            ),
        }
        steady.push('\n');
    }
    steady
}

/// The same for JSON.
pub(crate) fn steady_json(mut value: serde_json::Value) -> String {
    fn walk(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map.iter_mut() {
                    match key.as_str() {
                        "created_at" | "updated_at" | "began_at" | "since" | "at_us" | "used_us"
                        | "owner"
                            if !value.is_null() =>
                        {
                            *value = "[redacted]".into();
                        }
                        _ => walk(value),
                    }
                }
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut value);
    serde_json::to_string_pretty(&value).unwrap()
}

/// A namespace other than the default one.
pub(crate) fn elsewhere() -> Options {
    Options::default().namespace(Namespace::new("elsewhere").unwrap())
}

//! The process that the user started: runs the bank, and one worker after the other, whom it kills as planned.

use super::{
    Place, clock,
    ledger::{Allow, Limits, Notice},
    picture::{Kill, Picture, Scene},
    plan::{Aim, Moment, plan},
    process::Process,
    tally::Done,
    worker::Report,
};
use crate::signals::EndRequests;
use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// Longer than anything here takes: after this silence something is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is to be shown.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) orders: u32,
    pub(super) kills: u32,
    pub(super) seed: u64,
    pub(super) place: Place,
    /// The first part of every run's name.
    pub(super) batch: String,
    /// For the ledger's socket and log.
    pub(super) folder: PathBuf,
}

impl Setup {
    fn socket(&self) -> PathBuf {
        self.folder.join("ledger.sock")
    }

    /// Whether an order is one of this demo's.
    pub(super) fn is_ours(&self, order: &str) -> bool {
        order.rsplit_once('-').is_some_and(|(batch, _)| batch == self.batch)
    }

    /// The ledger's log.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("ledger.log")
    }
}

/// Something that reached the supervisor.
#[derive(Debug)]
enum Heard {
    /// From the ledger; `None`: it is gone.
    Ledger(Option<Notice>),
    /// From the worker of this life; `None`: it is gone.
    Worker(u32, Option<Report>),
    /// Ctrl-C, or a request to end.
    Interrupted,
}

/// Why the show was broken off.
#[derive(Debug)]
pub(super) enum Broken {
    /// By the user.
    Interrupted,
    /// By something that should not happen; with the code of the worker's error, when it said one.
    Failed(String, Option<String>),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string(), None)
    }
}

/// Pays all orders through all kills. Answers what was done, and the last scene.
pub(super) fn supervise(setup: &Setup, picture: Picture) -> Result<(Done, Scene), Broken> {
    let began = clock::now();
    let mut supervisor = Supervisor::new(setup, picture)?;
    let aims = plan(setup.seed, setup.orders, setup.kills);
    for (life, aim) in (1..).zip(aims.into_iter().map(Some).chain([None])) {
        supervisor.live(life, aim)?;
    }
    let took = clock::since(began);
    let Supervisor { ledger, scene, .. } = supervisor;
    ledger.end()?;
    let kills = u32::try_from(scene.kills.len()).unwrap_or(u32::MAX);
    Ok((Done { kills, took }, scene))
}

struct Supervisor<'s> {
    setup: &'s Setup,
    inbox: Receiver<Heard>,
    outbox: Sender<Heard>,
    ledger: Process,
    picture: Picture,
    scene: Scene,
    /// Which worker is at work, counted from 1.
    life: u32,
    /// The latest worker of whom nothing more will be heard.
    gone: u32,
    /// When the latest kill struck, until its worker's successor has taken over.
    struck: Option<Instant>,
    /// Why the worker couldn't go on, and its code.
    broke: Option<(String, Option<String>)>,
    done: bool,
}

impl<'s> Supervisor<'s> {
    fn new(setup: &'s Setup, picture: Picture) -> Result<Self, Broken> {
        let (outbox, inbox) = channel();
        hear_interrupts(outbox.clone())?;
        let hears = outbox.clone();
        let args: [(&str, OsString); 2] =
            [("--socket", setup.socket().into()), ("--log", setup.log().into())];
        let ledger = Process::start("ledger", args, move |notice| {
            // Nobody listens any more once the show is over.
            let _ = hears.send(Heard::Ledger(notice));
        })?;
        let scene = Scene::new(setup.orders, setup.kills, setup.seed, ledger.id());
        let mut supervisor = Self {
            setup,
            inbox,
            outbox,
            ledger,
            picture,
            scene,
            life: 0,
            gone: 0,
            struck: None,
            broke: None,
            done: false,
        };
        supervisor.wait_for(|heard| matches!(heard, Heard::Ledger(Some(Notice::Ready))))?;
        supervisor.picture.begin(&supervisor.scene);
        Ok(supervisor)
    }

    /// One life of a worker: until the kill that is planned, or else until all orders are paid.
    fn live(&mut self, life: u32, aim: Option<Aim>) -> Result<(), Broken> {
        self.life = life;
        let worker = self.start_worker(life, aim)?;
        let due = aim.and_then(|aim| aim.after()).map(|after| clock::now() + after);
        let dies_upon_answer = dies_upon_answer(aim);
        loop {
            match self.hear(due)? {
                None => return self.kill(worker, Kill::AnyMoment),
                Some(Heard::Ledger(Some(Notice::Called { life: of, order, answered: false, .. })))
                    if of == life =>
                {
                    return self.kill(worker, Kill::Between(order));
                }
                Some(Heard::Worker(of, None)) if of == life && dies_upon_answer => {
                    return self.kill(worker, Kill::Upon);
                }
                Some(Heard::Worker(of, None)) if of == life => return self.ended(worker, aim),
                Some(_) => {}
            }
        }
    }

    fn start_worker(&mut self, life: u32, aim: Option<Aim>) -> Result<Process, Broken> {
        // One order stays without its answer until the last kill has struck: so none comes too late.
        let keys = self.setup.orders as usize - 1;
        // Who is to die upon an answer must get one, unless all are given but that one.
        let charges = |aim: Aim| if dies_upon_answer(Some(aim)) { usize::MAX } else { aim.charges };
        let limits = aim.map(|aim| Limits { charges: charges(aim), keys });
        self.ledger.tell(&Allow { life, limits })?;
        self.wait_for(|heard| matches!(heard, Heard::Ledger(Some(Notice::Allowed(of))) if *of == life))?;
        let args: [(&str, OsString); 7] = [
            ("--store", self.setup.place.store.clone()),
            ("--namespace", self.setup.place.namespace.to_string().into()),
            ("--ledger", self.setup.socket().into()),
            ("--batch", self.setup.batch.clone().into()),
            ("--orders", self.setup.orders.to_string().into()),
            ("--life", life.to_string().into()),
            ("--dies-upon-answer", dies_upon_answer(aim).to_string().into()),
        ];
        let hears = self.outbox.clone();
        let worker = Process::start("worker", args, move |report| {
            // Nobody listens any more once the show is over.
            let _ = hears.send(Heard::Worker(life, report));
        })?;
        self.scene.began(worker.id());
        self.picture.draw(&self.scene);
        Ok(worker)
    }

    fn kill(&mut self, worker: Process, kill: Kill) -> Result<(), Broken> {
        let struck = clock::now();
        if !worker.kill()? {
            // What it said last may not have been heard yet.
            while self.gone != self.life {
                self.hear(None)?;
            }
            return Err(self.failed("the worker ended before it was killed"));
        }
        self.struck = Some(struck);
        self.scene.killed(kill);
        self.picture.killed(&self.scene);
        Ok(())
    }

    fn ended(&mut self, worker: Process, aim: Option<Aim>) -> Result<(), Broken> {
        match (worker.end()?, aim) {
            (true, None) if self.done => Ok(()),
            _ => Err(self.failed("the worker ended by itself")),
        }
    }

    /// What is to blame: what the worker said last, else this.
    fn failed(&mut self, what: &str) -> Broken {
        let (why, code) = self.broke.take().unwrap_or_else(|| (what.to_owned(), None));
        Broken::Failed(why, code)
    }

    fn wait_for(&mut self, awaited: impl Fn(&Heard) -> bool) -> Result<(), Broken> {
        loop {
            if self.hear(None)?.as_ref().is_some_and(&awaited) {
                return Ok(());
            }
        }
    }

    /// The next thing that is heard, or `None` when it is time.
    fn hear(&mut self, due: Option<Instant>) -> Result<Option<Heard>, Broken> {
        let wait = due.map_or(PATIENCE, |due| due.saturating_duration_since(clock::now()));
        match self.inbox.recv_timeout(wait) {
            Ok(Heard::Interrupted) => Err(Broken::Interrupted),
            Ok(Heard::Ledger(None)) => Err(self.failed("the ledger ended by itself")),
            Ok(heard) => {
                self.note(&heard);
                Ok(Some(heard))
            }
            Err(_) if due.is_some() => Ok(None),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(self.failed(&format!("nothing happened for {PATIENCE:?}")))
            }
        }
    }

    /// Keeps the picture up to date.
    fn note(&mut self, heard: &Heard) {
        match heard {
            Heard::Ledger(Some(Notice::Called { order, cents, applied, .. }))
                if self.setup.is_ours(order) =>
            {
                self.scene.called(order, *cents, *applied);
            }
            Heard::Worker(life, Some(Report::Claimed)) if *life == self.life => {
                if let Some(struck) = self.struck.take() {
                    self.scene.recovered(clock::since(struck));
                }
            }
            Heard::Worker(_, Some(Report::Finished(number))) => self.scene.finished(*number),
            Heard::Worker(_, Some(Report::Failed(error))) => self.scene.failed(error),
            Heard::Worker(_, Some(Report::Broke { message, code })) => {
                self.broke = Some((message.clone(), Some(code.clone())));
            }
            Heard::Worker(_, Some(Report::Done)) => self.done = true,
            Heard::Worker(life, None) => self.gone = *life,
            _ => return,
        }
        self.picture.draw(&self.scene);
    }
}

fn dies_upon_answer(aim: Option<Aim>) -> bool {
    aim.is_some_and(|aim| aim.moment == Moment::UponAnAnswer)
}

/// Passes Ctrl-C, a request to end and the loss of the terminal on, so that the children are ended and the folder is
/// removed.
fn hear_interrupts(outbox: Sender<Heard>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut requests = {
        let _entered = runtime.enter();
        EndRequests::hear()?
    };
    thread::spawn(move || {
        runtime.block_on(requests.next());
        // Nobody listens any more once the show is over.
        let _ = outbox.send(Heard::Interrupted);
    });
    Ok(())
}

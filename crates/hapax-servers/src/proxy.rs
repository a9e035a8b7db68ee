//! A proxy between a client and a server that counts what passes and loses or holds it on cue.
//!
//! It knows no protocol. Two threads carry each connection, one for each direction. What they may pass on is decided under
//! one lock: all that arrives after a method of [`Proxy`] has returned is treated as it demands.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::ServerError;
use crate::database::Url;

/// What passed or was lost since the proxy started.
///
/// ```
/// use hapax_servers::{Counts, Proxy};
///
/// let proxy = Proxy::start("127.0.0.1:5432".parse().unwrap())?;
/// assert_eq!(proxy.counts(), Counts::default());
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often a server answered after a client had spoken: the round trips. A greeting is none.
    pub turns: u64,
    /// How often something arrived from a client, about once for each of its writes.
    pub flushes: u64,
    /// The bytes from clients.
    pub bytes_up: u64,
    /// The bytes from the server.
    pub bytes_down: u64,
    /// The bytes of both that were swallowed.
    pub bytes_lost: u64,
}

/// A TCP proxy on a free port of 127.0.0.1. It ends, and cuts its connections, when dropped.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// use hapax_servers::Proxy;
///
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let proxy = Proxy::start(server.local_addr()?)?;
/// let mut client = TcpStream::connect(proxy.address())?;
/// let (mut served, _) = server.accept()?;
///
/// // The request arrives, and its answer is lost: the client can't know whether it was done.
/// proxy.swallow_replies(1);
/// client.write_all(b"commit")?;
/// served.read_exact(&mut [0; 6])?;
/// served.write_all(b"done")?;
/// proxy.wait_for_loss();
/// proxy.cut();
/// assert_eq!(client.read(&mut [0; 4])?, 0);
/// assert_eq!(proxy.counts().turns, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    state: Mutex<State>,
    /// Something was lost, held or released.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    hold: Option<Hold>,
    /// Requests and answers that began since the fault was set.
    requests: u64,
    answers: u64,
    counts: Counts,
    /// What was lost when the fault was set.
    lost_before: u64,
    connections: Vec<Connection>,
    next_id: u64,
    is_closed: bool,
}

/// Both ends of a connection, and who spoke last on it.
#[derive(Debug)]
struct Connection {
    id: u64,
    ends: [TcpStream; 2],
    client_spoke: bool,
    /// Whether one of its directions has ended.
    is_half_closed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum Fault {
    #[default]
    None,
    Requests {
        from: u64,
    },
    Replies {
        from: u64,
    },
}

/// A message that is to be held.
#[derive(Debug)]
struct Hold {
    /// By these words of a request it is known.
    words: Vec<u8>,
    /// The request itself, or what answers it.
    direction: Direction,
    /// The connection on which the words were said.
    on: Option<u64>,
    is_held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Direction {
    Up,
    Down,
}

impl Proxy {
    /// Listens on a free port and passes everything to and from `to`.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// assert!(proxy.address().ip().is_loopback());
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Io`] when no port is free.
    pub fn start(to: SocketAddr) -> Result<Self, ServerError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ServerError::io("open a port"))?;
        let address = listener.local_addr().map_err(ServerError::io("name a port"))?;
        let shared = Arc::new(Shared { to, state: Mutex::default(), changed: Condvar::new() });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Ok(Proxy { shared, address, acceptor: Some(acceptor) })
    }

    /// Where clients connect to.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// assert!(std::net::TcpStream::connect(proxy.address()).is_ok());
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a database, by way of the proxy.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// let url = proxy.url("postgres://me@127.0.0.1:5432/data")?;
    /// assert_eq!(url, format!("postgres://me@{}/data", proxy.address()));
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::BadUrl`] when it is none.
    pub fn url(&self, database: &str) -> Result<String, ServerError> {
        Ok(Url::parse(database)?.with_address(&self.address.to_string()))
    }

    /// From now on everything passes again. A connection that lost something is of no more use; [`cut`](Self::cut) it.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// proxy.swallow_replies(1);
    /// proxy.pass();
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    pub fn pass(&self) {
        self.set(Fault::None);
    }

    /// From the `from`-th answer on, counted from now and over all connections, nothing that the server says arrives,
    /// while what clients send still does. An answer is all that the server says until a client speaks again; `1` is the
    /// next one, and `0` loses also a greeting or the rest of an answer that has begun.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// proxy.swallow_replies(1);
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    pub fn swallow_replies(&self, from: u64) {
        self.set(Fault::Replies { from });
    }

    /// From the `from`-th request on, counted from now and over all connections, nothing that clients send arrives. A
    /// request is all that a client says until the server answers; `1` is the next one, and `0` loses also the rest of a
    /// request that has begun.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// proxy.swallow_requests(1);
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    pub fn swallow_requests(&self, from: u64) {
        self.set(Fault::Requests { from });
    }

    /// Waits until something was swallowed since the fault was set; for ever when there is none.
    ///
    /// ```
    /// # use std::io::Write;
    /// # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let proxy = hapax_servers::Proxy::start(server.local_addr()?)?;
    /// proxy.swallow_requests(1);
    /// std::net::TcpStream::connect(proxy.address())?.write_all(b"lost")?;
    /// proxy.wait_for_loss();
    /// assert_eq!(proxy.counts().bytes_lost, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for_loss(&self) {
        let nothing = |state: &mut State| state.counts.bytes_lost == state.lost_before;
        let waited = self.shared.changed.wait_while(self.shared.state(), nothing);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The next request with these words is held, and with it whatever its client says afterwards, until it is
    /// [released](Self::release). Other connections aren't.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use std::net::{TcpListener, TcpStream};
    /// # let server = TcpListener::bind("127.0.0.1:0")?;
    /// let proxy = hapax_servers::Proxy::start(server.local_addr()?)?;
    /// proxy.hold_request("commit");
    /// let mut client = TcpStream::connect(proxy.address())?;
    /// client.write_all(b"commit")?;
    /// proxy.wait_for_hold();
    /// // It is on its way for as long as one likes.
    /// proxy.release();
    /// let (mut served, _) = server.accept()?;
    /// served.read_exact(&mut [0; 6])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold_request(&self, words: &str) {
        self.hold(words, Direction::Up);
    }

    /// The next request with these words arrives, and what the server says on its connection from then on is held until it
    /// is [released](Self::release).
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use std::net::{TcpListener, TcpStream};
    /// # let server = TcpListener::bind("127.0.0.1:0")?;
    /// let proxy = hapax_servers::Proxy::start(server.local_addr()?)?;
    /// proxy.hold_reply("commit");
    /// let mut client = TcpStream::connect(proxy.address())?;
    /// client.write_all(b"commit")?;
    /// let (mut served, _) = server.accept()?;
    /// served.read_exact(&mut [0; 6])?;
    /// served.write_all(b"done")?;
    /// proxy.wait_for_hold();
    /// proxy.release();
    /// client.read_exact(&mut [0; 4])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold_reply(&self, words: &str) {
        self.hold(words, Direction::Down);
    }

    /// Waits until the message that is to be held is there; for ever when it never comes.
    ///
    /// ```
    /// # use std::{io::Write, net::{TcpListener, TcpStream}};
    /// # let server = TcpListener::bind("127.0.0.1:0")?;
    /// let proxy = hapax_servers::Proxy::start(server.local_addr()?)?;
    /// proxy.hold_request("commit");
    /// TcpStream::connect(proxy.address())?.write_all(b"commit")?;
    /// proxy.wait_for_hold();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for_hold(&self) {
        let not_yet = |state: &mut State| state.hold.as_ref().is_some_and(|hold| !hold.is_held);
        let waited = self.shared.changed.wait_while(self.shared.state(), not_yet);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets what is held go on, and holds nothing more.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// proxy.hold_request("commit");
    /// proxy.release();
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    pub fn release(&self) {
        self.shared.state().hold = None;
        self.shared.changed.notify_all();
    }

    fn hold(&self, words: &str, direction: Direction) {
        let words = words.as_bytes().to_vec();
        self.shared.state().hold = Some(Hold { words, direction, on: None, is_held: false });
    }

    /// Cuts all connections that are there now. New ones are treated as the last fault demands.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// proxy.cut();
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    pub fn cut(&self) {
        for connection in self.shared.state().connections.drain(..) {
            connection.cut();
        }
    }

    /// What passed or was lost so far. What a client has received is counted.
    ///
    /// ```
    /// let proxy = hapax_servers::Proxy::start("127.0.0.1:5432".parse().unwrap())?;
    /// let before = proxy.counts();
    /// assert_eq!(proxy.counts().turns - before.turns, 0);
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        state.fault = fault;
        (state.requests, state.answers) = (0, 0);
        state.lost_before = state.counts.bytes_lost;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.release();
        // The acceptor waits for a connection, and this is one.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            // Had it panicked, its message would have been printed.
            let _ = acceptor.join();
        }
        self.cut();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while what arrived on a connection is held.
    fn pass_hold(&self, id: u64, direction: Direction, said: &[u8]) {
        let mut state = self.state();
        if !state.holds(id, direction, said) {
            return;
        }
        self.changed.notify_all();
        let held = |state: &mut State| state.hold.as_ref().is_some_and(|hold| hold.on == Some(id));
        state = self.changed.wait_while(state, held).unwrap_or_else(PoisonError::into_inner);
        drop(state);
    }
}

impl State {
    /// Counts what arrived on a connection, and says whether it may go on.
    fn admit(&mut self, id: u64, direction: Direction, bytes: usize) -> bool {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else {
            return false;
        };
        let client_speaks = direction == Direction::Up;
        let is_turned = std::mem::replace(&mut connection.client_spoke, client_speaks) != client_speaks;
        let bytes = bytes as u64;
        if client_speaks {
            self.requests += u64::from(is_turned);
            self.counts.flushes += 1;
            self.counts.bytes_up += bytes;
        } else {
            self.answers += u64::from(is_turned);
            self.counts.turns += u64::from(is_turned);
            self.counts.bytes_down += bytes;
        }
        let is_lost = match self.fault {
            Fault::None => false,
            Fault::Requests { from } => client_speaks && self.requests >= from,
            Fault::Replies { from } => !client_speaks && self.answers >= from,
        };
        self.counts.bytes_lost += if is_lost { bytes } else { 0 };
        !is_lost
    }

    /// Whether what arrived on a connection is to be held.
    fn holds(&mut self, id: u64, direction: Direction, said: &[u8]) -> bool {
        let Some(hold) = &mut self.hold else { return false };
        if hold.on.is_none() && direction == Direction::Up {
            let has_words = said.windows(hold.words.len()).any(|part| part == hold.words);
            hold.on = has_words.then_some(id);
        }
        let is_held = hold.on == Some(id) && hold.direction == direction;
        hold.is_held |= is_held;
        is_held
    }

    /// A direction of a connection has ended; with the second one the connection is forgotten.
    fn end_direction(&mut self, id: u64) {
        let was_half_closed =
            |connection: &mut Connection| std::mem::replace(&mut connection.is_half_closed, true);
        self.connections.retain_mut(|connection| connection.id != id || !was_half_closed(connection));
    }
}

impl Connection {
    fn cut(&self) {
        for end in &self.ends {
            // One that is closed already is cut.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.state().is_closed {
            return;
        }
        // Whatever keeps a connection from being made, the client sees it closed.
        let _ = client.and_then(|client| connect(client, shared));
    }
}

fn connect(client: TcpStream, shared: &Arc<Shared>) -> std::io::Result<()> {
    let server = TcpStream::connect(shared.to)?;
    for end in [&client, &server] {
        end.set_nodelay(true)?;
    }
    let ends = [client.try_clone()?, server.try_clone()?];
    let id = {
        let mut state = shared.state();
        let id = state.next_id;
        state.next_id += 1;
        state.connections.push(Connection { id, ends, client_spoke: false, is_half_closed: false });
        id
    };
    carry_on_thread(shared, id, Direction::Up, client.try_clone()?, server.try_clone()?);
    carry_on_thread(shared, id, Direction::Down, server, client);
    Ok(())
}

fn carry_on_thread(shared: &Arc<Shared>, id: u64, direction: Direction, from: TcpStream, to: TcpStream) {
    let shared = Arc::clone(shared);
    thread::spawn(move || carry(&shared, id, direction, from, to));
}

/// Carries one direction of a connection until its end; then the other side is told that no more comes.
fn carry(shared: &Shared, id: u64, direction: Direction, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut state = shared.state();
        if !state.admit(id, direction, length) {
            shared.changed.notify_all();
            continue;
        }
        drop(state);
        shared.pass_hold(id, direction, &buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other side may have closed before.
    let _ = to.shutdown(Shutdown::Write);
    shared.state().end_direction(id);
}

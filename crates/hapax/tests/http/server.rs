//! The other side: a server over real sockets that does what a test wants of it, and notes what it was sent.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A request as it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").expect("a key")
    }
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Writes these bytes and waits for the next request.
    Raw(Vec<u8>),
    /// Writes these bytes, then some more for as long as somebody reads them.
    Endless(Vec<u8>),
    /// Writes these bytes and closes the connection.
    Cut(Vec<u8>),
    /// Says nothing, and keeps the connection.
    Silence,
}

/// An answer with its status, headers and body.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut text = format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    Reply::Raw(text.into())
}

pub(crate) fn ok(body: &str) -> Reply {
    answer(200, &[], body)
}

type Behaviour = Arc<dyn Fn(usize, &Received) -> Reply + Send + Sync>;

/// A server that listens until the process ends.
#[derive(Clone)]
pub(crate) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    log: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
    /// Readers of an endless answer that went away.
    cut_off: super::Signal,
    heard: super::Signal,
}

/// How a connection becomes a stream of plain bytes.
pub(crate) trait Accept: Fn(TcpStream) -> io::Result<Self::Stream> + Send + Sync + 'static {
    type Stream: Read + Write;
}

impl<S: Read + Write, F: Fn(TcpStream) -> io::Result<S> + Send + Sync + 'static> Accept for F {
    type Stream = S;
}

impl Server {
    /// Answers the n-th request, counted from 0, as the function says.
    pub(crate) fn new(behave: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::over(TcpListener::bind("127.0.0.1:0").unwrap(), "http", Ok, behave)
    }

    pub(crate) fn over(
        listener: TcpListener,
        scheme: &'static str,
        accept: impl Accept,
        behave: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let server = Self {
            address: listener.local_addr().unwrap(),
            scheme,
            log: Arc::default(),
            connections: Arc::default(),
            cut_off: super::Signal::default(),
            heard: super::Signal::default(),
        };
        let (ours, behave, accept): (_, Behaviour, _) = (server.clone(), Arc::new(behave), Arc::new(accept));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (server, behave, accept) = (ours.clone(), behave.clone(), accept.clone());
                server.connections.fetch_add(1, Ordering::SeqCst);
                // A client that goes away is the client's affair.
                thread::spawn(move || accept(stream?).and_then(|stream| server.serve(stream, &behave)));
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.log.lock().unwrap().len()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits for the next request that wasn't waited for.
    pub(crate) async fn heard(&self) {
        self.heard.take().await;
    }

    /// Waits until the reader of an endless answer has gone away.
    pub(crate) async fn cut_off(&self) {
        self.cut_off.take().await;
    }

    fn serve(&self, stream: impl Read + Write, behave: &Behaviour) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(request) = receive(&mut stream)? {
            let reply = {
                let mut log = self.log.lock().unwrap();
                log.push(request.clone());
                behave(log.len() - 1, &request)
            };
            self.heard.give();
            let out = stream.get_mut();
            match reply {
                Reply::Raw(bytes) => out.write_all(&bytes)?,
                Reply::Cut(bytes) => return out.write_all(&bytes),
                Reply::Silence => loop {
                    thread::park();
                },
                Reply::Endless(bytes) => {
                    let mut written = out.write_all(&bytes);
                    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
                    while written.is_ok() {
                        written = out.write_all(chunk.as_bytes());
                    }
                    self.cut_off.give();
                    return written;
                }
            }
        }
        Ok(())
    }
}

/// The next request of a connection, unless it was closed.
fn receive(stream: &mut impl BufRead) -> io::Result<Option<Received>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let mut headers = vec![];
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    let mut received = Received { method, target, headers, body: vec![] };
    let length = received.header("content-length").map_or(0, |length| length.parse().unwrap());
    received.body.resize(length, 0);
    stream.read_exact(&mut received.body)?;
    Ok(Some(received))
}

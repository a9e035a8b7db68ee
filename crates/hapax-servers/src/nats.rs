//! NATS with JetStream, whose streams keep what they confirmed.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::ServerError;
use crate::folder::Folder;
use crate::programs::NATS;
use crate::server::{Extras, Kind, Server};

/// How long a server may take to greet whoever has connected.
const GREETING: Duration = Duration::from_secs(10);

static KIND: Kind =
    Kind { name: "NATS", program: NATS, args, url: |port| format!("nats://127.0.0.1:{port}"), where_is_data };

/// A NATS server of one's own, with JetStream. It leads to [`Server`], which has what all kinds can.
///
/// ```no_run
/// let mut server = hapax_servers::Nats::start()?;
/// assert!(server.url().starts_with("nats://127.0.0.1:"));
/// server.restart()?; // its streams are still there
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
#[derive(Debug)]
pub struct Nats(Server);

impl Nats {
    /// Starts a server, and waits until it answers.
    ///
    /// ```no_run
    /// let server = hapax_servers::Nats::start()?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] names the package when NATS isn't installed, [`ServerError::NotReady`] has the log of one
    /// that doesn't come up.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(&[])
    }

    /// The same with arguments of its own.
    ///
    /// ```no_run
    /// let server = hapax_servers::Nats::start_with(&["--user", "me", "--pass", "secret"])?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn start_with(settings: &[&str]) -> Result<Self, ServerError> {
        let folder = Folder::new()?;
        folder.add("data")?;
        let args = settings.iter().map(OsString::from).collect();
        Server::start(&KIND, folder, Extras { args, disk: None }).map(Nats)
    }
}

impl Deref for Nats {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for Nats {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

/// Its name is the folder of its data: a server tells its name to everyone.
fn args(folder: &Folder, port: u16) -> Vec<OsString> {
    let data = folder.data().into_os_string();
    let settings = ["--addr", "127.0.0.1", "--jetstream", "--port"].map(OsString::from);
    let place = [port.to_string().into(), "--store_dir".into(), data.clone(), "--name".into(), data];
    settings.into_iter().chain(place).collect()
}

/// The name in the greeting: `INFO {"server_name":"…",…}`.
fn where_is_data(url: &str) -> Result<String, ServerError> {
    let greet = || {
        let stream = TcpStream::connect(url.trim_start_matches("nats://"))?;
        stream.set_read_timeout(Some(GREETING))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    let greeting: String = greet().map_err(ServerError::io("be greeted by NATS"))?;
    let name = greeting.split_once(r#""server_name":""#).and_then(|(_, rest)| rest.split_once('"'));
    Ok(name.map(|(name, _)| name.to_owned()).unwrap_or_default())
}

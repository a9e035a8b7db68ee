//! RabbitMQ, with the daemon that Erlang's nodes find each other by.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::Duration;

use crate::ServerError;
use crate::folder::{Folder, PREFIX};
use crate::programs::{ENV, EPMD, RABBITMQ};
use crate::server::{Extras, Kind, Server};

/// How long a server may take to greet whoever has connected.
const GREETING: Duration = Duration::from_secs(10);

/// A client's first words in AMQP 0-9-1.
const HELLO: &[u8] = b"AMQP\0\0\x09\x01";

/// Erlang would start the daemon by itself, but as one that outlives it and us. So it is a child of the server's.
const WITH_DAEMON: &str = r#""$1" -port "$ERL_EPMD_PORT" -address 127.0.0.1 & exec "$0""#;

static KIND: Kind = Kind {
    name: "RabbitMQ",
    program: ENV,
    args,
    url: |port| format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
    where_is_data,
};

/// A RabbitMQ server of one's own. It leads to [`Server`], which has what all kinds can.
///
/// ```no_run
/// let mut server = hapax_servers::RabbitMq::start()?;
/// assert!(server.url().starts_with("amqp://guest:guest@127.0.0.1:"));
/// server.restart()?; // its durable queues are still there
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
#[derive(Debug)]
pub struct RabbitMq(Server);

impl RabbitMq {
    /// Starts a server, and waits until it answers; that takes about sixteen seconds.
    ///
    /// ```no_run
    /// let server = hapax_servers::RabbitMq::start()?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] names the package when RabbitMQ isn't installed, [`ServerError::NotReady`] has the log of one
    /// that doesn't come up.
    pub fn start() -> Result<Self, ServerError> {
        let (program, daemon) = (RABBITMQ.path()?, EPMD.path()?);
        let folder = Folder::new()?;
        folder.add("data")?;
        folder.write("plugins", "[].\n")?;
        let script = ["sh", "-c", WITH_DAEMON].map(OsString::from);
        let args = script.into_iter().chain([program.into(), daemon.into()]).collect();
        Server::start(&KIND, folder, Extras { args, disk: None }).map(RabbitMq)
    }
}

impl Deref for RabbitMq {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for RabbitMq {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

/// Its settings, for `env`. All of its ports are on 127.0.0.1, and all that it writes is in the folder.
fn args(folder: &Folder, port: u16) -> Vec<OsString> {
    let place = |name: &str| folder.path().join(name).display().to_string();
    let settings = [
        ("RABBITMQ_NODENAME", format!("{}@localhost", node(folder.path()))),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_DIST_PORT", (port + 1).to_string()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
        ("ERL_EPMD_PORT", (port + 2).to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_MNESIA_BASE", place("data")),
        ("RABBITMQ_LOG_BASE", place("logs")),
        ("RABBITMQ_LOGS", "-".into()),
        ("RABBITMQ_PID_FILE", place("pid")),
        ("RABBITMQ_HOME_DIR", place("")),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".into()),
        ("RABBITMQ_CONFIG_FILE", place("config")),
        ("RABBITMQ_ADVANCED_CONFIG_FILE", place("advanced")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", place("plugins")),
        ("RABBITMQ_GENERATED_CONFIG_DIR", place("generated")),
    ];
    settings.iter().map(|(name, value)| format!("{name}={value}").into()).collect()
}

/// The name of a node: that of its folder, which no other has.
fn node(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A server greets with the name of its node, from which its folder is known.
fn where_is_data(url: &str) -> Result<String, ServerError> {
    let address =
        url.split_once('@').and_then(|(_, rest)| rest.split_once('/')).map_or(url, |(address, _)| address);
    let greet = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(GREETING))?;
        stream.write_all(HELLO)?;
        let mut greeting = [0; 2048];
        let length = stream.read(&mut greeting)?;
        Ok(String::from_utf8_lossy(&greeting[..length]).into_owned())
    };
    let greeting: String = greet().map_err(ServerError::io("be greeted by RabbitMQ"))?;
    let named = greeting.split_once("cluster_name").and_then(|(_, rest)| rest.split_once(PREFIX));
    let name = named.and_then(|(_, rest)| rest.split_once('@')).map(|(name, _)| name).unwrap_or_default();
    let folder = std::env::temp_dir().join(format!("{PREFIX}{name}"));
    Ok(folder.join("data").display().to_string())
}

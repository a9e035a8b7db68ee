//! The smallest client there is: what it costs is in every figure, so it must cost little.

use crate::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const BODY: &str = r#"{"account":"acct_1F3k2L9xYzQ","cents":4200,"currency":"eur"}"#;

/// A connection that is kept, as clients do.
pub(super) struct Connection {
    stream: TcpStream,
    /// What came and wasn't read.
    read: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(4096) })
    }

    /// Asks for a charge; whether the answer was given before.
    pub(super) async fn ask(&mut self, key: &str) -> Result<bool> {
        let request = format!(
            "POST /charges HTTP/1.1\r\nhost: localhost\r\nidempotency-key: \"{key}\"\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        let (head, rest) = self.head().await?;
        if !head.starts_with("http/1.1 201 ") {
            return Err(format!("it isn't charged: {head}").into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.ok_or("an answer of no length")?.parse()?;
        while self.read.len() < rest + length {
            self.more().await?;
        }
        self.read.drain(..rest + length);
        Ok(head.contains("\nidempotency-replayed: true"))
    }

    /// The head of an answer, in small letters, and where its body begins.
    async fn head(&mut self) -> Result<(String, usize)> {
        loop {
            if let Some(end) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok((String::from_utf8_lossy(&self.read[..end]).to_lowercase(), end + 4));
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err("the service hung up".into()),
            _ => Ok(()),
        }
    }
}

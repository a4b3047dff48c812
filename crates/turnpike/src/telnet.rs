//! The telnet interface: the shell's commands and MoonRoute's, over TCP, within the router.
//!
//! ```text
//!   client -- TCP --> session (tokio) -- line --> thread: Engine -- Unix socket --> API, owner
//!          <--------- encode <- chunks, a bounded channel <--+
//! ```
//!
//! A session is a client of the API like any other, so that it cannot delay the owner more than
//! others can: a client that does not read blocks its own command at a full channel, and is
//! disconnected after the idle time.
//!
//! Telnet has neither passwords nor encryption: a session may change everything, as root may by the
//! Unix socket. A client on this machine has to be one of the allowed users ([`control::gate`]). No
//! command of a session reads a file, as it would have the router's permissions, and a session that
//! receives HTTP is ended: any web page can make a browser send its lines here.

mod protocol;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use control::config;
use control::gate::Gate;
use router::TelnetSessions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::commands::moonroute::Staged;
use crate::shell::engine::{Engine, Then};
use protocol::{Decoder, Heard, LINE_MAX, encode};

const PROMPT: &[u8] = b"% ";

/// Chunks of an answer that are queued between its command and the client.
const CHUNKS: usize = 4;

/// Size of a chunk in bytes.
const CHUNK: usize = 16 << 10;

/// Most lines that a client may send ahead of their answers.
const AHEAD: usize = 256;

/// Creates the service of this listener with these settings, for commands to the router at this
/// socket.
///
/// # Errors
/// A user is unknown, or the kernel does not report the users of sockets.
pub fn open(
    listener: StdListener,
    settings: &config::Telnet,
    socket: &Path,
) -> Result<TelnetSessions> {
    let gate = Gate::open("telnet", &settings.users, None)?;
    let engine = Arc::new(Engine::new(socket).for_telnet(Staged::default()));
    let telnet = Telnet { listener, gate, engine, settings: settings.clone() };
    Ok(Box::pin(telnet.serve()))
}

/// A service.
struct Telnet {
    listener: StdListener,
    gate: Gate,
    engine: Arc<Engine>,
    settings: config::Telnet,
}

impl Telnet {
    /// Serves clients for ever.
    async fn serve(self) {
        let Self { listener, mut gate, engine, settings } = self;
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!("telnet: {error}"),
        };
        let places = Arc::new(Semaphore::new(settings.sessions));
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("telnet: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            if let Err(refusal) = admit(&mut gate, &stream, peer) {
                // A new connection's buffer has room for this; the connection is closed in any
                // case.
                let _ = stream.try_write(&encode(format!("{refusal}\n").as_bytes()));
                continue;
            }
            let Ok(place) = places.clone().try_acquire_owned() else {
                let full = format!("{} sessions are open; try later\n", settings.sessions);
                let _ = stream.try_write(&encode(full.as_bytes()));
                continue;
            };
            tracing::info!("telnet: {peer} connected");
            let session = Session::new(stream, engine.clone(), settings.idle);
            tokio::spawn(async move {
                let end = session.converse().await;
                tracing::info!("telnet: {peer} {}", end.unwrap_or_else(|error| error.to_string()));
                drop(place);
            });
        }
    }
}

/// Checks whether this client may have a session. The reason of a refusal is for the client and the
/// log.
fn admit(gate: &mut Gate, stream: &TcpStream, peer: SocketAddr) -> Result<(), String> {
    let local = stream.local_addr().map_err(|error| error.to_string());
    let admitted =
        local.and_then(|local| gate.admit(local, peer).map_err(|refusal| refusal.to_string()));
    admitted.inspect_err(|reason| gate.log(peer, reason))
}

/// Returns true for the first line of an HTTP request (RFC 9112 3), or the header that each has. No
/// command matches.
fn is_http(line: &str) -> bool {
    let version = line.trim_end().rsplit(' ').next().unwrap_or_default();
    version.starts_with("HTTP/")
        || line.get(..5).is_some_and(|head| head.eq_ignore_ascii_case("host:"))
}

/// The session of a client.
struct Session {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    decoder: Decoder,
    /// Input received but not handled yet.
    waiting: VecDeque<Heard>,
    /// True if the client has closed its sending side.
    ended: bool,
    engine: Arc<Engine>,
    idle: Duration,
}

type Ran = JoinHandle<Result<Then>>;

impl Session {
    fn new(stream: TcpStream, engine: Arc<Engine>, idle: Duration) -> Self {
        let (read, write) = stream.into_split();
        let (decoder, waiting) = (Decoder::default(), VecDeque::new());
        Self { read, write, decoder, waiting, ended: false, engine, idle }
    }

    /// Answers lines until the client disconnects; returns the reason.
    async fn converse(mut self) -> io::Result<String> {
        let version = env!("CARGO_PKG_VERSION");
        let hello = format!("Turnpike {version}; help lists the commands, quit leaves\n");
        self.send(hello.as_bytes()).await?;
        self.send(PROMPT).await?;
        loop {
            let Some(heard) = self.waiting.pop_front() else {
                match timeout(self.idle, self.listen()).await {
                    Ok(heard) => heard?,
                    Err(_) => {
                        self.send(b"\nidle for too long\n").await?;
                        return Ok("was idle for too long".to_owned());
                    }
                }
                continue;
            };
            match heard {
                Heard::Line(line) if is_http(&line) => {
                    self.send(b"this is telnet, not HTTP\n").await?;
                    return Ok("speaks HTTP; ended".to_owned());
                }
                Heard::Line(line) => {
                    if self.run(line).await? == Then::Quit {
                        return Ok("has left".to_owned());
                    }
                }
                Heard::TooLong => {
                    let message = format!("a line has at most {LINE_MAX} bytes\n");
                    self.send(message.as_bytes()).await?;
                }
                Heard::Answer(bytes) => {
                    self.send_raw(&bytes).await?;
                    continue;
                }
                Heard::Interrupt => self.send(b"\n").await?,
                Heard::End => return Ok("has left".to_owned()),
            }
            self.send(PROMPT).await?;
        }
    }

    /// Receives input. A client that has closed its sending side may still read.
    async fn listen(&mut self) -> io::Result<()> {
        let mut bytes = [0; 1024];
        let count = self.read.read(&mut bytes).await?;
        self.waiting.extend(self.decoder.read(&bytes[..count]));
        if count == 0 {
            self.ended = true;
            self.waiting.push_back(Heard::End);
        }
        Ok(())
    }

    /// Runs a line in a thread of its own, and sends its output as it is written. An interrupt ends
    /// the command at its next output.
    async fn run(&mut self, line: String) -> io::Result<Then> {
        let (out, mut chunks) = mpsc::channel(CHUNKS);
        let engine = self.engine.clone();
        let ran: Ran = spawn_blocking(move || {
            let mut out = Chunks { out, chunk: Vec::with_capacity(CHUNK) };
            let then = engine.run(&line, &mut out);
            // Fails only when the receiver is closed.
            let _ = out.flush();
            then
        });
        loop {
            tokio::select! {
                chunk = chunks.recv() => match chunk {
                    Some(chunk) => self.send(&chunk).await?,
                    None => break,
                },
                heard = self.listen(), if !self.ended && self.waiting.len() < AHEAD => {
                    heard?;
                    if self.waiting.contains(&Heard::Interrupt) {
                        // Lines typed before it are discarded as well.
                        self.waiting.clear();
                        chunks.close();
                        while chunks.try_recv().is_ok() {}
                        self.send(b"\n").await?;
                        break;
                    }
                }
            }
        }
        self.report(ran.await).await
    }

    async fn report(&mut self, ran: Result<Result<Then>, JoinError>) -> io::Result<Then> {
        let message = match ran {
            Ok(Ok(then)) => return Ok(then),
            Ok(Err(error)) => format!("{error:#}\n"),
            Err(error) => format!("a defect, please report: {error}\n"),
        };
        self.send(message.as_bytes()).await?;
        Ok(Then::GoOn)
    }

    async fn send(&mut self, text: &[u8]) -> io::Result<()> {
        self.send_raw(&encode(text)).await
    }

    async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        let late = |_| io::Error::other("does not read");
        timeout(self.idle, self.write.write_all(bytes)).await.map_err(late)?
    }
}

/// Collects a command's output in chunks, and blocks when the client is slow.
struct Chunks {
    out: mpsc::Sender<Vec<u8>>,
    chunk: Vec<u8>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.chunk);
        self.out.blocking_send(chunk).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::is_http;

    #[test]
    fn http_is_known_by_its_first_lines() {
        for line in [
            "GET / HTTP/1.1",
            "POST /x y HTTP/1.0",
            "Host: 127.0.0.1:2323",
            "host:x",
            "PRI * HTTP/2.0",
        ] {
            assert!(is_http(line), "{line}");
        }
        for line in ["", "show ports", "show routes | grep HTTP", "hostile", "Ho", "é HTT"] {
            assert!(!is_http(line), "{line}");
        }
    }
}

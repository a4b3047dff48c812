//! Serves the API on a Unix socket. Each connection is a task of its own; every request goes as a
//! message to the router's owner, who answers when it has time.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use super::{Answer, Request};

/// The longest request line, in bytes.
const LINE_MAX: u64 = 64 * 1024;

/// A request on its way to the owner, and the way back.
pub struct Question {
    /// What was asked.
    pub request: Request,
    /// Where the answer goes; the asker may be gone.
    pub answer: oneshot::Sender<Answer>,
}

/// The socket, bound and not yet served; its file goes when this is dropped.
pub struct Socket {
    listener: StdListener,
    path: PathBuf,
}

impl Socket {
    /// Binds the socket. A file left by a router that is gone is replaced; a socket that answers
    /// belongs to a running router, and is an error.
    pub fn bind(path: &Path) -> Result<Self> {
        let shown = path.display();
        match StdStream::connect(path) {
            Ok(_) => bail!(
                "socket {shown}: a router is running there already; stop it or choose another --socket"
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => remove_stale(path)?,
        }
        // Bound under another name, restricted, then renamed: at no time can others open it.
        let draft = path.with_extension(format!("{}.new", std::process::id()));
        let listener = StdListener::bind(&draft).with_context(|| {
            format!("socket {shown}: cannot be made; choose a --socket in a directory that exists")
        })?;
        let finish = || -> io::Result<()> {
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            fs::rename(&draft, path)
        };
        if let Err(error) = finish() {
            let _ = fs::remove_file(&draft);
            return Err(error).with_context(|| format!("socket {shown}: cannot be made"));
        }
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Accepts connections for ever, sending their requests to `questions`.
    pub async fn serve(self, questions: mpsc::Sender<Question>) -> Result<()> {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(converse(stream, questions.clone()));
                }
                Err(error) => {
                    tracing::warn!("socket {}: {error}", self.path.display());
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn remove_stale(path: &Path) -> Result<()> {
    let shown = path.display();
    let kind = fs::symlink_metadata(path).with_context(|| format!("socket {shown}"))?.file_type();
    if !kind.is_socket() {
        bail!("socket {shown}: a file that is not a socket; remove it or choose another --socket");
    }
    fs::remove_file(path).with_context(|| format!("socket {shown}: cannot remove the stale one"))
}

/// Answers one client's lines until it goes.
async fn converse(stream: UnixStream, questions: mpsc::Sender<Question>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        match (&mut read).take(LINE_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let too_long = line.len() as u64 == LINE_MAX && line.last() != Some(&b'\n');
        let answer = if too_long {
            Answer::Error(format!("the request is longer than {LINE_MAX} bytes"))
        } else {
            respond(&line, &questions).await
        };
        let mut text = serde_json::to_vec(&answer).unwrap_or_default();
        text.push(b'\n');
        if write.write_all(&text).await.is_err() || too_long {
            return;
        }
    }
}

async fn respond(line: &[u8], questions: &mpsc::Sender<Question>) -> Answer {
    let request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => return Answer::Error(format!("the request cannot be read: {error}")),
    };
    let (answer, wait) = oneshot::channel();
    let gone = || Answer::Error("the router is shutting down".to_owned());
    if questions.send(Question { request, answer }).await.is_err() {
        return gone();
    }
    wait.await.unwrap_or_else(|_| gone())
}

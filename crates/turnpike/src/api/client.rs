//! Asks a running router.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Answer, Request};

/// Sends one request to the router behind this socket and returns its report.
pub fn ask(socket: &Path, request: &Request) -> Result<Value> {
    let mut stream = UnixStream::connect(socket).with_context(|| {
        format!(
            "socket {}: cannot reach a router; is `turnpike run` up, and with the same --socket?",
            socket.display()
        )
    })?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).context("the router closed the connection")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).context("the router closed the connection")?;
    if answer.is_empty() {
        bail!("the router closed the connection without an answer; is it shutting down?");
    }
    match serde_json::from_str(&answer).context("the answer is not one of this version")? {
        Answer::Ok(report) => Ok(report),
        Answer::Error(message) => bail!("{message}"),
    }
}

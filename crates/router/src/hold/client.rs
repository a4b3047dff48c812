//! A router's side of its holder.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::SockType;
use rustix::event::{PollFd, PollFlags, poll};

use super::channel::{Channel, Message};
use crate::server::{bind_private, remove_stale};

/// Longest time that a router waits for its holder, which has no other work.
const PATIENCE: Duration = Duration::from_secs(5);

/// Descriptors by their names.
pub type Named = Vec<(String, OwnedFd)>;

/// A router's connection to the holder.
#[derive(Debug)]
pub struct Holder {
    channel: Channel,
    process: u32,
    /// The process, if this router has started it.
    child: Option<Child>,
}

impl Holder {
    /// Connects to the holder that listens there, and takes over its descriptors. `None` if there
    /// is none.
    ///
    /// # Errors
    /// The listening process is not trusted, or does not answer.
    pub fn find(path: &Path) -> Result<Option<(Self, Named)>> {
        let what = || format!("holder {}", path.display());
        let channel = match Channel::connect(path, PATIENCE) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound) => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused) => {
                remove_stale(path, "--socket")?;
                return Ok(None);
            }
            result => result.with_context(what)?,
        };
        let mut held = Vec::new();
        let process = loop {
            match channel.receive() {
                Ok((Some(Message::Held(name)), Some(descriptor))) => held.push((name, descriptor)),
                Ok((Some(Message::All(process)), _)) => break process,
                Ok(_) => {}
                // It was just ending.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error).with_context(what),
            }
        };
        Ok(Some((Self { channel, process, child: None }, held)))
    }

    /// Starts a holder that listens there and holds for this many seconds. Messages sent before it
    /// runs wait for it.
    ///
    /// # Errors
    /// No socket or process can be created.
    pub fn start(path: &Path, seconds: u64) -> Result<Self> {
        let what = || format!("holder {}: cannot be started", path.display());
        if fs::symlink_metadata(path).is_ok() {
            remove_stale(path, "--socket")?;
        }
        let listener = bind_private(path, SockType::SeqPacket).with_context(what)?;
        let child = spawn(path, listener, seconds).with_context(what)?;
        let channel = Channel::connect(path, PATIENCE).with_context(what)?;
        Ok(Self { channel, process: child.id(), child: Some(child) })
    }

    /// Returns its process number.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Sends it a message.
    ///
    /// # Errors
    /// It has ended or does not read.
    pub fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.channel.send(message, descriptor)
    }

    /// Sends it a request, and waits for the confirmation.
    ///
    /// # Errors
    /// It has ended or does not answer.
    pub fn ask(&self, message: &Message) -> io::Result<()> {
        let name = match message {
            Message::Forget(name) => name.as_str(),
            _ => "",
        };
        self.send(message, None)?;
        loop {
            if matches!(self.channel.receive()?, (Some(Message::Done(done)), _) if done == name) {
                return Ok(());
            }
        }
    }

    /// Returns a descriptor for [`wait_for_end`].
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub fn life(&self) -> io::Result<OwnedFd> {
        self.channel.share()
    }

    /// Reaps the process after its end.
    pub fn bury(&mut self) {
        if let Some(child) = &mut self.child {
            // It has ended, or is about to.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns true if a process listens there.
pub fn is_served(path: &Path) -> bool {
    Channel::connect(path, PATIENCE).is_ok()
}

/// Waits for the end of the holder that sent this descriptor.
pub fn wait_for_end(life: &OwnedFd) {
    loop {
        let mut fds = [PollFd::new(life, PollFlags::RDHUP)];
        match poll(&mut fds, None) {
            Ok(_) if fds[0].revents().is_empty() => {}
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Starts the same program, whatever its name, and even if its file has been replaced.
fn spawn(path: &Path, listener: OwnedFd, seconds: u64) -> io::Result<Child> {
    let path: PathBuf = std::path::absolute(path)?;
    // The holder must not inherit the devices, memory and locks of a router that has ended.
    dpdk::close_on_exec()?;
    Command::new("/proc/self/exe")
        .arg0("turnpike")
        .args(["hold", "--seconds", &seconds.to_string(), "--started-by-router", "--holder-socket"])
        .arg(path)
        .stdin(Stdio::from(listener))
        // A reader of the router's output must not have to wait for the holder's end.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        // Variables of a service manager, for the router only.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_FDNAMES")
        .spawn()
}

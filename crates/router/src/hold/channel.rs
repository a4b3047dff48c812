//! The connection between a router and its holder: messages of one line, each with a descriptor at most.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg, sockopt,
};

/// Longest message, in bytes: a word and a name.
const LONGEST: usize = 256;

/// Messages between router and holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Router: hold this descriptor under this name, replacing one of the same name.
    Keep(String),
    /// Router: release this one. Answered by [`Self::Done`].
    Forget(String),
    /// Router: after a router's end hold everything for this many seconds.
    Hold(u64),
    /// Router: it is working; only its end starts the clock of [`Self::Hold`].
    Ready,
    /// Router: it ends for good; release everything. Answered by [`Self::Done`].
    Stopping,
    /// Holder: this descriptor is held under this name.
    Held(String),
    /// Holder: end of the list of held descriptors; the holder's process number.
    All(u32),
    /// Holder: the request has been carried out.
    Done(String),
}

impl Message {
    fn text(&self) -> String {
        match self {
            Self::Keep(name) => format!("keep {name}"),
            Self::Forget(name) => format!("forget {name}"),
            Self::Hold(seconds) => format!("hold {seconds}"),
            Self::Ready => "ready".to_owned(),
            Self::Stopping => "stopping".to_owned(),
            Self::Held(name) => format!("held {name}"),
            Self::All(process) => format!("all {process}"),
            Self::Done(name) => format!("done {name}"),
        }
    }

    /// Parses a message; `None` for one of another version.
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let name = || Some(rest.to_owned()).filter(|name| !name.is_empty());
        match word {
            "keep" => Some(Self::Keep(name()?)),
            "forget" => Some(Self::Forget(name()?)),
            "hold" => Some(Self::Hold(rest.parse().ok()?)),
            "ready" => Some(Self::Ready),
            "stopping" => Some(Self::Stopping),
            "held" => Some(Self::Held(name()?)),
            "all" => Some(Self::All(rest.parse().ok()?)),
            "done" => Some(Self::Done(rest.to_owned())),
            _ => None,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Creates a channel over a connected socket, with a limit to the time that one end waits for
    /// the other.
    ///
    /// # Errors
    /// The other end belongs to another user, other than root.
    pub fn over(socket: OwnedFd, patience: Duration) -> io::Result<Self> {
        let peer = sockopt::socket_peercred(&socket)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!("it belongs to process {} of another user", peer.pid),
            ));
        }
        for which in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, which, Some(patience))?;
        }
        Ok(Self(socket))
    }

    /// Connects to the listening process.
    ///
    /// # Errors
    /// No process listens there, or another user's.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::over(socket, patience)
    }

    /// Sends a message, with a descriptor if there is one.
    ///
    /// # Errors
    /// The other end is closed, or does not read.
    pub fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            rights.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let text = message.text();
        let text = [IoSlice::new(text.as_bytes())];
        sendmsg(&self.0, &text, &mut rights, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message and its descriptor; the message is `None` if it is of another
    /// version.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`]: the other end is closed. [`ErrorKind::WouldBlock`]: no message
    /// in time.
    pub fn receive(&self) -> io::Result<(Option<Message>, Option<OwnedFd>)> {
        let mut text = [0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut text)];
        let received = recvmsg(&self.0, &mut parts, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
        let descriptor = rights.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        if received.bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let whole = !received.flags.contains(ReturnFlags::TRUNC);
        let message = text.get(..received.bytes).filter(|_| whole).and_then(Message::parse);
        Ok((message, descriptor))
    }

    /// Returns another descriptor of the connection.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the holder's socket for the router with this socket.
pub fn holder_socket(router: &Path) -> PathBuf {
    let mut path = router.as_os_str().to_owned();
    path.push(".hold");
    path.into()
}

//! Notifications of the interfaces that ports are made of: their state, appearance and removal.
//!
//! These are interfaces of the router's own network namespace; host interfaces, perhaps in another
//! namespace, are followed by `model.rs`.

use std::io;

use tokio::io::unix::AsyncFd;

use super::message::{IFF_RUNNING, IFF_UP, Malformed, Message, Messages, RTM_NEWNETCONF, Raw};
use super::socket::{Received, Socket, group};
use super::worker::watch_readable;

/// Receive buffer for one datagram; a link with all its statistics takes some kilobytes.
const BUFFER: usize = 64 * 1024;

/// Bytes of notifications that the kernel stores, enough for some thousand interfaces.
const RECEIVE_BUFFER: usize = 4 << 20;

/// A notification about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkNotification {
    /// The interface exists.
    Is {
        /// Its number.
        index: u32,
        /// Its current name.
        name: String,
        /// True if it is up and its link is up.
        running: bool,
    },
    /// The interface was removed, or moved to another network namespace.
    Gone {
        /// Its number.
        index: u32,
    },
    /// The kernel's settings of some interfaces have changed: forwarding, the check of reverse paths.
    Settings,
    /// Notifications were lost: all interfaces have to be examined.
    Lost,
}

/// Receiver of notifications about interfaces.
#[derive(Debug)]
pub struct LinkWatch {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl LinkWatch {
    /// Opens the watch in the calling thread's network namespace, within a runtime.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(group::LINK | group::IPV4_NETCONF | group::IPV6_NETCONF)?;
        socket.set_receive_buffer(RECEIVE_BUFFER)?;
        Ok(Self { socket: watch_readable(socket)?, buffer: vec![0; BUFFER] })
    }

    /// Waits for notifications; those of one datagram are returned together.
    ///
    /// # Errors
    /// The kernel's error; nothing more is received then.
    pub async fn notifications(&mut self) -> io::Result<Vec<LinkNotification>> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.get_inner().receive(&mut self.buffer, false)? {
                Received::Nothing => ready.clear_ready(),
                Received::Truncated | Received::Overrun => return Ok(vec![LinkNotification::Lost]),
                Received::Bytes(length) => {
                    let notifications = read(&self.buffer[..length]);
                    if !notifications.is_empty() {
                        return Ok(notifications);
                    }
                }
            }
        }
    }
}

fn read(bytes: &[u8]) -> Vec<LinkNotification> {
    let one = |message: Result<Raw<'_>, Malformed>| {
        // A malformed message may have concerned any interface.
        let Ok(raw) = message else { return Some(LinkNotification::Lost) };
        if raw.kind == RTM_NEWNETCONF {
            return Some(LinkNotification::Settings);
        }
        match Message::parse(&raw) {
            Ok(Message::Link(link)) if Message::is_delete(raw.kind) => {
                Some(LinkNotification::Gone { index: link.index })
            }
            Ok(Message::Link(link)) => {
                let running = link.flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING;
                Some(LinkNotification::Is { index: link.index, name: link.name?, running })
            }
            Ok(_) => None,
            Err(_) => Some(LinkNotification::Lost),
        }
    };
    Messages(bytes).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::{RTM_DELLINK, RTM_NEWLINK};

    /// Returns a message about an interface, of this family, as the kernel writes it.
    fn message(kind: u16, family: u8, index: u32, flags: u32, name: &str) -> Vec<u8> {
        let mut body = vec![family, 0, 1, 0];
        body.extend(index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend(u32::MAX.to_ne_bytes());
        body.extend((4 + name.len() as u16 + 1).to_ne_bytes());
        body.extend(3u16.to_ne_bytes());
        body.extend(name.as_bytes());
        body.push(0);
        body.resize(body.len().next_multiple_of(4), 0);
        let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn interfaces_run_only_when_they_are_up_and_have_a_link() {
        let is = |flags, running| {
            let expected = LinkNotification::Is { index: 7, name: "eth1".into(), running };
            assert_eq!(read(&message(RTM_NEWLINK, 0, 7, flags, "eth1")), [expected], "{flags:#x}");
        };
        is(IFF_UP | IFF_RUNNING | 0x1_0000, true);
        is(IFF_UP, false);
        is(IFF_RUNNING, false);
    }

    #[test]
    fn what_comes_and_goes_is_told_and_a_bridge_s_words_are_not() {
        let mut bytes = message(RTM_DELLINK, 0, 9, IFF_UP | IFF_RUNNING, "eth2");
        // AF_BRIDGE: the interface leaves a bridge, but is not removed.
        bytes.extend(message(RTM_DELLINK, 7, 10, 0, "eth3"));
        bytes.extend(message(RTM_NEWLINK, 0, 11, 0, "eth4"));
        let new = LinkNotification::Is { index: 11, name: "eth4".into(), running: false };
        assert_eq!(read(&bytes), [LinkNotification::Gone { index: 9 }, new]);
        assert_eq!(read(&bytes[..20]), [LinkNotification::Lost]);
    }

    #[test]
    fn changed_settings_are_told_without_their_values() {
        assert_eq!(read(&message(RTM_NEWNETCONF, 2, 0, 0, "")), [LinkNotification::Settings]);
    }
}

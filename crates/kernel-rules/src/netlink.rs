//! Netlink: sockets, dumps, messages and attributes. Crate `control` has netlink too, for routes by the million, but
//! it needs DPDK.
//!
//! No length is trusted: a message or attribute whose length leads out of its buffer ends the buffer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{NlaBuffer, NlasIterator};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink, XFRM};
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

const HEADER: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Types below are those of netlink itself.
const NLMSG_MIN_TYPE: u16 = 16;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;

/// Flags of `nla_type` beside the number: nested, and in network byte order.
const NLA_TYPE_MASK: u16 = 0x3FFF;

/// Largest datagram of a dump or notification (the kernel's `NLMSG_GOODSIZE` is at most 32 KiB).
const BUFFER: usize = 1 << 16;

/// Bytes of notifications that the kernel stores.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Time until a dump that the kernel does not continue is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most datagrams of notifications that are read at once.
const DATAGRAMS: u32 = 1024;

/// Number of attempts at a dump of objects that change meanwhile.
const ATTEMPTS: u32 = 8;

/// A family of netlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Links, routing rules, routes, qdiscs.
    Route,
    /// nftables, netfilter's hooks.
    Netfilter,
    /// IPsec policies.
    Xfrm,
}

/// A netlink socket of the calling thread's network namespace.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// Opens a socket that receives the notifications of these groups, a bit for each.
    pub fn open(family: Family, groups: u32) -> io::Result<Self> {
        let protocol = match family {
            // `NETLINK_ROUTE` is number 0, the default.
            Family::Route => None,
            Family::Netfilter => Some(NETFILTER),
            Family::Xfrm => Some(XFRM),
        };
        let (domain, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let fd = socket_with(domain, SocketType::RAW, flags, protocol)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        // Without the privilege to exceed the system's limit, the limit applies.
        if groups != 0 && set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER).is_err() {
            set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
        }
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self(fd))
    }

    /// Reads notifications that are there, a bounded number of datagrams; `each` gets every message.
    ///
    /// # Errors
    /// `ENOBUFS`: notifications were lost. Others: the socket is of no more use.
    pub fn drain(&self, buffer: &mut Vec<u8>, mut each: impl FnMut(&Raw<'_>)) -> io::Result<()> {
        buffer.resize(BUFFER, 0);
        for _ in 0..DATAGRAMS {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match recv(&self.0, &mut buffer[..], flags) {
                // Longer than the buffer: its end was lost.
                Ok((kept, length)) if length > kept => return Err(Errno::NOBUFS.into()),
                Ok((length, _)) => messages(&buffer[..length]).for_each(|raw| each(&raw)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            return match recv(&self.0, &mut buffer[..], RecvFlags::TRUNC) {
                Ok((kept, length)) if length > kept => {
                    Err(io::Error::other("a netlink message longer than 64 KiB"))
                }
                Ok((length, _)) => Ok(length),
                Err(Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// A connection for requests.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    sequence: u32,
}

impl Connection {
    /// Opens a connection.
    pub fn open(family: Family) -> io::Result<Self> {
        Ok(Self { socket: Socket::open(family, 0)?, sequence: 0 })
    }

    /// Returns all objects that the kernel sends for a request, as `read` reads them. Where they change meanwhile, the
    /// dump is repeated.
    ///
    /// # Errors
    /// The kernel refuses, or they change all the time.
    pub fn dump<T>(
        &mut self,
        request: &Request,
        mut read: impl FnMut(&Raw<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..ATTEMPTS {
            let mut all = Vec::new();
            match self.exchange(request, NLM_F_DUMP, |raw| all.extend(read(raw))) {
                Ok(Outcome::Complete) => return Ok(all),
                Ok(Outcome::Interrupted) => {}
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("it changes all the time"))
    }

    /// Returns the one object that the kernel sends for a request.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ask<T>(
        &mut self,
        request: &Request,
        read: impl Fn(&Raw<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut one = None;
        self.exchange(request, 0, |raw| one = read(raw))?;
        Ok(one)
    }

    /// Has the kernel do what a request says.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn order(&mut self, request: &Request) -> io::Result<()> {
        self.exchange(request, NLM_F_ACK, |_| {}).map(drop)
    }

    fn exchange(
        &mut self,
        request: &Request,
        flags: u16,
        mut each: impl FnMut(&Raw<'_>),
    ) -> io::Result<Outcome> {
        self.sequence += 1;
        send(&self.socket.0, &request.bytes(flags, self.sequence), SendFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        let mut outcome = Outcome::Complete;
        loop {
            let length = self.socket.receive(&mut buffer)?;
            for raw in messages(&buffer[..length]).filter(|raw| raw.sequence == self.sequence) {
                if raw.flags & NLM_F_DUMP_INTR != 0 {
                    outcome = Outcome::Interrupted;
                }
                match raw.kind {
                    NLMSG_ERROR | NLMSG_DONE => return raw.error().map_or(Ok(outcome), Err),
                    kind if kind < NLMSG_MIN_TYPE => {}
                    _ => {
                        each(&raw);
                        if flags == 0 {
                            return Ok(outcome);
                        }
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Outcome {
    Complete,
    /// Objects changed during the dump.
    Interrupted,
}

/// A request under construction.
#[derive(Clone, Debug)]
pub struct Request {
    kind: u16,
    body: Vec<u8>,
}

impl Request {
    /// Begins a request with its fixed part.
    pub fn new(kind: u16, fixed: &[u8]) -> Self {
        Self { kind, body: fixed.to_vec() }
    }

    /// Adds an attribute; values have a few bytes.
    #[must_use]
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.body.extend_from_slice(&length.to_ne_bytes());
        self.body.extend_from_slice(&kind.to_ne_bytes());
        self.body.extend_from_slice(value);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn bytes(&self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(HEADER + self.body.len()).unwrap_or(u32::MAX);
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A message with its payload still to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`.
    pub sequence: u32,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

impl<'a> Raw<'a> {
    /// Splits the payload into its fixed part of `N` bytes and its attributes.
    pub fn split<const N: usize>(&self) -> Option<(&'a [u8; N], Attributes<'a>)> {
        let (fixed, rest) = self.payload.split_first_chunk::<N>()?;
        Some((fixed, Attributes(rest)))
    }

    /// Returns the error that the message reports, if any.
    fn error(&self) -> Option<io::Error> {
        let code = self.payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
        (code < 0).then(|| io::Error::from_raw_os_error(code.saturating_neg()))
    }
}

/// Returns the messages of a buffer.
pub fn messages(mut buffer: &[u8]) -> impl Iterator<Item = Raw<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(buffer, 0)? as usize;
        let message = buffer.get(..length).filter(|_| length >= HEADER)?;
        buffer = buffer.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Raw {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
            payload: &message[HEADER..],
        })
    })
}

/// Returns the native 16-bit number at this place.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the native 32-bit number at this place.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Attributes, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns them.
    pub fn iter(self) -> impl Iterator<Item = Attribute<'a>> {
        let read = |nla: NlaBuffer<&'a [u8]>| {
            let (kind, length) = (nla.kind() & NLA_TYPE_MASK, usize::from(nla.length()));
            Attribute { kind, value: nla.into_inner().get(4..length).unwrap_or_default() }
        };
        NlasIterator::new(self.0).map_while(Result::ok).map(read)
    }

    /// Returns the first one of a kind.
    pub fn get(self, kind: u16) -> Option<Attribute<'a>> {
        self.iter().find(|attribute| attribute.kind == kind)
    }

    /// Returns the attributes within the first one of a kind; none if it is absent.
    pub fn nested(self, kind: u16) -> Attributes<'a> {
        self.get(kind).map_or(Attributes(&[]), Attribute::nested)
    }

    /// Returns the text of the first one of a kind; the empty one if it is absent.
    pub fn text(self, kind: u16) -> String {
        self.get(kind).map_or_else(String::new, Attribute::text)
    }
}

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// `nla_type`, without flags.
    pub kind: u16,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Reads a text, which ends with a zero byte.
    pub fn text(self) -> String {
        let bytes = self.value.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// Reads a native byte.
    pub fn u8(self) -> Option<u8> {
        self.value.first().copied()
    }

    /// Reads a native 32-bit number.
    pub fn u32(self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    /// Reads a 32-bit number in network byte order.
    pub fn be32(self) -> Option<u32> {
        self.value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Reads a 64-bit number in network byte order.
    pub fn be64(self) -> Option<u64> {
        self.value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// Reads attributes.
    pub fn nested(self) -> Attributes<'a> {
        Attributes(self.value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_and_attributes_are_read_as_they_are_written() {
        let request = Request::new(18, &[7; 4]).attribute(3, b"eth0\0").attribute(4, &[1, 0, 0, 0]);
        let mut bytes = request.bytes(NLM_F_DUMP, 9);
        bytes.extend(request.bytes(0, 10));
        let all: Vec<Raw<'_>> = messages(&bytes).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].kind, all[0].flags, all[0].sequence), (18, 0x301, 9));
        let (fixed, attributes) = all[1].split::<4>().unwrap();
        assert_eq!(fixed, &[7; 4]);
        assert_eq!(attributes.text(3), "eth0");
        assert_eq!(attributes.get(4).and_then(Attribute::u32), Some(1));
        assert!(attributes.get(5).is_none());
        assert!(all[0].split::<40>().is_none());
    }

    #[test]
    fn a_truncated_message_ends_the_buffer() {
        let bytes = Request::new(18, &[7; 4]).attribute(3, b"eth0\0").bytes(0, 9);
        assert_eq!(messages(&bytes[..bytes.len() - 1]).count(), 0);
        assert_eq!(messages(&[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_crash(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for raw in messages(&bytes) {
                if let Some((_, attributes)) = raw.split::<4>() {
                    attributes.iter().for_each(|one| drop((one.text(), one.be64(), one.u32())));
                }
            }
        }
    }
}

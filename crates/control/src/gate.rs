//! Admission of peers to a TCP port of the router: telnet and FPM have no passwords.
//!
//! The kernel reports the user of a connection's other end if that is on this machine
//! (sock_diag(7)). root, the router's own user and the configured users are admitted. A peer on
//! another machine has no user here: it is admitted if the router listens on an address that other
//! machines can reach.
//!
//! ```text
//!   accept -> admit -+- from another machine: admitted, unless the router listens on loopback only
//!                    +- socket found: its user is asked for
//!                    +- socket gone, or held by no process: refused
//! ```
//!
//! The last line matters: the kernel reports uid 0 for a socket that no process holds any more, so
//! a client that sends its lines and closes immediately would be taken for root.
//!
//! The messages are two structures of fixed size, read and written here like all other netlink of this crate.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use nix::unistd::{Group, Uid, User};

use crate::netlink::message::{AF_INET, AF_INET6, HEADER, NLM_F_REQUEST, NLMSG_ERROR};
use crate::netlink::{self, Received, Socket};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`: both the request and its answer.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const IPPROTO_TCP: u8 = 6;

/// States of a TCP socket, `net/tcp_states.h`.
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;

/// `struct inet_diag_sockid`: ports, addresses, interface, cookie.
const SOCKID: usize = 48;
/// `INET_DIAG_NOCOOKIE` twice: any socket with these addresses.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// `struct inet_diag_req_v2` before its socket, and `struct inet_diag_msg`, with offsets of its fields.
const REQUEST_HEAD: usize = 8;
const ANSWER: usize = 72;
const ANSWER_SOCKID: usize = 4;
const ANSWER_UID: usize = 64;
const ANSWER_INODE: usize = 68;

/// Time between two log lines about refused peers.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Bounds the rate of log lines that clients cause: one a second.
#[derive(Debug, Default)]
pub struct LogLimit {
    logged: Option<Instant>,
    /// Lines left out since.
    unlogged: u64,
}

impl LogLimit {
    /// Returns a remark for the end of the line, if it may be written now.
    pub fn admit(&mut self) -> Option<String> {
        if self.logged.is_some_and(|logged| logged.elapsed() < LOG_EVERY) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(Instant::now());
        Some(match std::mem::take(&mut self.unlogged) {
            0 => String::new(),
            count => format!(" ({count} more since the last such line)"),
        })
    }
}

/// User of FRR's daemons in the packages of all distributions.
pub const FRR: &str = "frr";

/// Admission control of a TCP port.
#[derive(Debug)]
pub struct Gate {
    /// The statement that configures the port, as named in messages: `telnet`.
    what: &'static str,
    allowed: BTreeSet<u32>,
    diag: Socket,
    sequence: u32,
    refusals: LogLimit,
}

/// Reason why a peer is not admitted.
#[derive(Debug)]
pub enum Refusal {
    /// The user is not an allowed one.
    User {
        /// Its number.
        uid: u32,
        /// The statement that can allow it.
        what: &'static str,
        /// The allowed users.
        allowed: BTreeSet<u32>,
    },
    /// The connection was closed before its user was determined.
    Closed,
    /// The kernel's answer failed.
    Unknown(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User { uid, what, allowed } => {
                let allowed: Vec<_> = allowed.iter().map(|&uid| user_name(uid)).collect();
                write!(
                    f,
                    "user {} is not allowed here; allowed: {}; others by turnpike.{what} {{ users = {{ … }} }}",
                    user_name(*uid),
                    allowed.join(", ")
                )
            }
            Self::Closed => f.write_str("closed before its user was known"),
            Self::Unknown(error) => write!(f, "the kernel does not tell its user: {error}"),
        }
    }
}

/// One end of a TCP connection, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    state: u8,
    uid: u32,
    /// True if a process holds it, so that `uid` is that of the process.
    held: bool,
}

impl Gate {
    /// Opens a gate for listeners in the calling thread's network namespace that admits root, the
    /// router's own user and `users`.
    ///
    /// # Errors
    /// A user is unknown, or the kernel does not report the users of sockets.
    pub fn open(
        what: &'static str,
        users: &[String],
        usual: Option<&str>,
    ) -> Result<Self, netlink::Error> {
        let error = |error| netlink::Error::Socket { what: what.to_owned(), error };
        let mut allowed = BTreeSet::from([0, Uid::effective().as_raw()]);
        allowed.extend(usual.and_then(|name| uid_of(name).ok()));
        for user in users {
            allowed.insert(uid_of(user).map_err(|reason| error(io::Error::other(reason)))?);
        }
        let diag = Socket::diag().and_then(|socket| socket.set_timeout(1).map(|()| socket));
        let diag = diag.map_err(|cause| {
            let reason = format!("the kernel does not tell the users of sockets: {cause}");
            error(io::Error::new(cause.kind(), reason))
        })?;
        Ok(Self { what, allowed, diag, sequence: 0, refusals: LogLimit::default() })
    }

    /// Checks whether the peer of a connection accepted at `local` is admitted.
    ///
    /// # Errors
    /// The peer is refused.
    pub fn admit(&mut self, local: SocketAddr, peer: SocketAddr) -> Result<(), Refusal> {
        match self.find(peer, local).map_err(Refusal::Unknown)? {
            Some(end) if end.held && self.allowed.contains(&end.uid) => Ok(()),
            Some(end) if end.held => {
                let allowed = self.allowed.clone();
                Err(Refusal::User { uid: end.uid, what: self.what, allowed })
            }
            Some(_) => Err(Refusal::Closed),
            None if is_of_this_machine(local, peer).map_err(Refusal::Unknown)? => {
                Err(Refusal::Closed)
            }
            None => Ok(()),
        }
    }

    /// Returns the user at the other end of a connection accepted at `local`.
    ///
    /// # Errors
    /// It is on another machine, or closed before its user was known.
    pub fn user(&mut self, local: SocketAddr, peer: SocketAddr) -> Result<u32, Refusal> {
        match self.find(peer, local).map_err(Refusal::Unknown)? {
            Some(end) if end.held => Ok(end.uid),
            _ => Err(Refusal::Closed),
        }
    }

    /// Returns true if a connection accepted at `local` is still open at both ends, as far as TCP
    /// can tell.
    pub fn is_open(&mut self, local: SocketAddr, peer: SocketAddr) -> bool {
        // If the kernel's answer fails, the connection counts as open.
        self.find(local, peer).map_or(true, |end| end.is_some_and(|end| end.state == ESTABLISHED))
    }

    /// Logs that a peer was refused, at a limited rate.
    pub fn log(&mut self, peer: SocketAddr, refusal: &dyn fmt::Display) {
        let Some(unlogged) = self.refusals.admit() else { return };
        tracing::warn!("{}: connection from {peer} refused: {refusal}{unlogged}", self.what);
    }

    /// Finds the TCP socket of this namespace with this address, connected to that one.
    fn find(&mut self, address: SocketAddr, to: SocketAddr) -> io::Result<Option<End>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.diag.send(&request(self.sequence, address, to))?;
        let mut buffer = [0; 512];
        loop {
            match self.diag.receive(&mut buffer, true)? {
                Received::Bytes(length) => {
                    let answer = &buffer[..length];
                    if answer.get(8..12) == Some(&self.sequence.to_ne_bytes()[..]) {
                        return read_answer(answer, address, to);
                    }
                }
                Received::Nothing => return Err(io::ErrorKind::TimedOut.into()),
                Received::Truncated | Received::Overrun => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
    }
}

/// Returns the number of a user given by name or number.
///
/// # Errors
/// There is no such user; the text names it and a remedy.
pub fn uid_of(user: &str) -> Result<u32, String> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    let found = User::from_name(user).map_err(|error| format!("user \"{user}\": {error}"))?;
    found.map(|user| user.uid.as_raw()).ok_or_else(|| {
        format!("user \"{user}\" unknown; `getent passwd` lists those there are; a number such as \"1000\" will do")
    })
}

/// Returns the number of a group: as given, or looked up by name.
///
/// # Errors
/// There is no such group, or the list of groups cannot be read.
pub fn gid_of(group: &str) -> Result<u32, String> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    let found = Group::from_name(group).map_err(|error| format!("group \"{group}\": {error}"))?;
    found.map(|group| group.gid.as_raw()).ok_or_else(|| {
        format!("group \"{group}\" unknown; `getent group` lists those there are; a number such as \"1000\" will do")
    })
}

/// Returns `nobody (uid 65534)`, or the number alone.
pub fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        _ => format!("uid {uid}"),
    }
}

/// Returns true for the address of a peer on the same machine, even if its socket is closed
/// already.
fn is_of_this_machine(local: SocketAddr, peer: SocketAddr) -> io::Result<bool> {
    let address = peer.ip().to_canonical();
    if address.is_loopback() || address == local.ip().to_canonical() {
        return Ok(true);
    }
    let ours = nix::ifaddrs::getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(ours.into_iter().any(|ours| ours == address))
}

/// Builds `struct inet_diag_req_v2` after its header, for one socket.
fn request(sequence: u32, address: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let v4 = address.ip().to_canonical().is_ipv4();
    let length = (HEADER + REQUEST_HEAD + SOCKID) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([if v4 { AF_INET } else { AF_INET6 }, IPPROTO_TCP, 0, 0]);
    // Sockets in any state.
    bytes.extend([0xff; 4]);
    bytes.extend(address.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(octets(address.ip()));
    bytes.extend(octets(to.ip()));
    bytes.extend(scope(address).max(scope(to)).to_ne_bytes());
    bytes.extend(NO_COOKIE);
    bytes
}

/// Returns the interface of a link-local address; 0: any.
fn scope(address: SocketAddr) -> u32 {
    if let SocketAddr::V6(v6) = address { SocketAddrV6::scope_id(&v6) } else { 0 }
}

/// Returns an address as four words in network byte order; IPv4 in the first.
fn octets(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
    }
}

/// Parses the socket in an answer; `None` if it is not one with these addresses.
fn read_answer(bytes: &[u8], address: SocketAddr, to: SocketAddr) -> io::Result<Option<End>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4).ok_or_else(invalid)?;
        bytes.try_into().map(u32::from_ne_bytes).map_err(|_| invalid())
    };
    let kind = bytes.get(4..6).ok_or_else(invalid)?;
    if kind == NLMSG_ERROR.to_ne_bytes() {
        let error = io::Error::from_raw_os_error((word(HEADER)? as i32).wrapping_neg());
        return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    }
    let answer = bytes.get(HEADER..HEADER + ANSWER).ok_or_else(invalid)?;
    let [family, state, ..] = *answer else { return Err(invalid()) };
    let id = &answer[ANSWER_SOCKID..];
    let ports = [address.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let same = id[..4] == ports
        && address_of(family, &id[4..20]) == Some(address.ip().to_canonical())
        && address_of(family, &id[20..36]) == Some(to.ip().to_canonical());
    // If no socket is connected, the kernel answers with the listener of that port.
    if !same || state == LISTEN {
        return Ok(None);
    }
    let (uid, inode) = (word(HEADER + ANSWER_UID)?, word(HEADER + ANSWER_INODE)?);
    Ok(Some(End { state, uid, held: inode != 0 }))
}

fn address_of(family: u8, octets: &[u8]) -> Option<IpAddr> {
    if family == AF_INET {
        return Some(IpAddr::from(<[u8; 4]>::try_from(octets.get(..4)?).ok()?));
    }
    Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?).to_canonical())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    fn gate() -> Gate {
        Gate::open("telnet", &[], None).unwrap()
    }

    /// Returns a connection from both sides, and its addresses: the listener's, the client's.
    fn connection(listen: &str, to: &str) -> (TcpStream, TcpStream, SocketAddr, SocketAddr) {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((to, port)).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let local = server.local_addr().unwrap();
        (server, client, local, peer)
    }

    #[test]
    fn the_user_of_a_peer_is_known_in_every_family() {
        for (listen, to) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            let (_server, _client, local, peer) = connection(listen, to);
            let mut gate = gate();
            let found = gate.find(peer, local).unwrap();
            let uid = Uid::effective().as_raw();
            assert_eq!(found, Some(End { state: ESTABLISHED, uid, held: true }), "{listen} {to}");
            assert!(gate.admit(local, peer).is_ok(), "{listen} {to}");
            gate.allowed.clear();
            let refusal = gate.admit(local, peer).unwrap_err();
            assert!(matches!(refusal, Refusal::User { uid: of, .. } if of == uid), "{refusal}");
        }
    }

    /// The kernel reports uid 0 for a socket that its process has closed.
    #[test]
    fn a_peer_that_has_closed_is_nobody() {
        let (mut server, mut client, local, peer) = connection("127.0.0.1:0", "127.0.0.1");
        let mut gate = gate();
        client.write_all(b"route add\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert!(gate.admit(local, peer).is_ok(), "it has only said that it sends no more");
        drop(client);
        assert!(matches!(gate.admit(local, peer), Err(Refusal::Closed)));
        let mut sent = String::new();
        server.read_to_string(&mut sent).unwrap();
        assert_eq!(sent, "route add\n", "it could have been obeyed");
        drop(server);
        assert!(matches!(gate.admit(local, peer), Err(Refusal::Closed)), "its socket is gone");
    }

    /// The kernel finds the listener if it finds no connection.
    #[test]
    fn a_listener_is_no_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, other) = (listener.local_addr().unwrap(), "127.0.0.1:9".parse().unwrap());
        assert_eq!(gate().find(at, other).unwrap(), None);
        assert!(matches!(gate().admit(other, at), Err(Refusal::Closed)));
    }

    #[test]
    fn a_peer_on_another_machine_has_no_user() {
        let (local, peer) = ("240.0.0.1:2323".parse().unwrap(), "240.0.0.2:40000".parse().unwrap());
        assert!(gate().admit(local, peer).is_ok());
        let itself = "240.0.0.1:40000".parse().unwrap();
        assert!(matches!(gate().admit(local, itself), Err(Refusal::Closed)));
    }

    #[test]
    fn a_connection_is_open_until_one_end_closes() {
        let (server, client, local, peer) = connection("127.0.0.1:0", "127.0.0.1");
        let mut gate = gate();
        assert!(gate.is_open(local, peer));
        drop(client);
        assert!(!gate.is_open(local, peer));
        drop(server);
        assert!(!gate.is_open(local, peer));
    }

    #[test]
    fn users_are_names_or_numbers() {
        assert_eq!((uid_of("root"), uid_of("4242")), (Ok(0), Ok(4242)));
        let error = uid_of("nobody-of-that-name").unwrap_err();
        assert!(error.starts_with("user \"nobody-of-that-name\" unknown; "), "{error}");
        let gate = Gate::open("telnet", &["4242".to_owned()], Some("root")).unwrap();
        assert!(gate.allowed.contains(&4242));
        let error = Gate::open("telnet", &["no such".to_owned()], None).unwrap_err().to_string();
        assert!(error.starts_with("telnet: user \"no such\" unknown"), "{error}");
    }

    #[test]
    fn answers_that_are_cut_short_are_errors() {
        let address = "127.0.0.1:1".parse().unwrap();
        let mut answer = request(7, address, address);
        answer.resize(HEADER + ANSWER, 0);
        for length in 0..answer.len() {
            assert!(read_answer(&answer[..length], address, address).is_err(), "{length}");
        }
        assert_eq!(read_answer(&answer, address, address).unwrap(), None);
    }
}

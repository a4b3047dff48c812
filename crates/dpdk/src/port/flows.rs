//! Flows of the kernel's connection tracking, for accelerated interfaces that take nothing else.
//!
//! ```text
//!   interface -- XDP program: finds the flow, translates --> AF_XDP socket --> forwarder --> slow path
//!       |                                                                                        |
//!       +--> kernel: conntrack, rules, NAT --> interface                Returner: translates back +
//!                                                 | FlowTap: confirms
//! ```
//!
//! The process tells which flows there are ([`Flows::put`]): each direction is an entry of its own. The kernel tells which
//! of them pass its rules. A packet socket on each accelerated interface ([`FlowTap`]) has a program, `flows.bpf.c`, that
//! sees what the kernel sends, behind its last hook, and the interface by which it received that. Such a packet *confirms*
//! its direction, and packets by the same interface are taken from then on. [`Flows::doubt`] makes all confirmations
//! invalid, so that a flow which the kernel lets pass no more is never taken again. FIN and RST do the same for theirs.
//!
//! VLAN devices are interfaces as well: the XDP program knows the one of a tag by its settings of VLANs, and packets with
//! another tag are none of the flow. The socket is that of the interface below, which sends the packets of its VLAN devices.
//!
//! Checksums change by what addresses and ports change them (RFC 1624), which is the same for all packets of a flow and is
//! computed here.

use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::accelerate::{Loaded, monotonic, problem};
use super::bpf::{Map, Mapped};
use crate::Errno;

/// The program as clang has compiled it.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flows.bpf.o"));

/// Most flows. A full table is 130 MiB of the kernel's memory, an empty one 16 MiB.
const FLOWS_MOST: u32 = 1 << 19;

/// Addresses, ports and protocol of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The source address.
    pub source: IpAddr,
    /// The destination address, of the same family.
    pub destination: IpAddr,
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
    /// TCP or UDP, by its number.
    pub protocol: u8,
}

impl Tuple {
    /// Returns that of answers.
    #[must_use]
    pub fn inverse(self) -> Self {
        let Self { source, destination, source_port, destination_port, protocol } = self;
        Self {
            source: destination,
            destination: source,
            source_port: destination_port,
            destination_port: source_port,
            protocol,
        }
    }

    fn key(&self) -> Key {
        Key {
            source: padded(self.source),
            destination: padded(self.destination),
            source_port: self.source_port.to_be_bytes(),
            destination_port: self.destination_port.to_be_bytes(),
            protocol: self.protocol,
            family: if self.source.is_ipv4() { 4 } else { 6 },
            unused: [0; 2],
        }
    }
}

fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(four) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&four.octets());
            bytes
        }
        IpAddr::V6(six) => six.octets(),
    }
}

/// `struct tuple`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    source: [u8; 16],
    destination: [u8; 16],
    source_port: [u8; 2],
    destination_port: [u8; 2],
    protocol: u8,
    family: u8,
    unused: [u8; 2],
}

/// `struct flow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    source: [u8; 16],
    destination: [u8; 16],
    source_port: [u8; 2],
    destination_port: [u8; 2],
    address_change: u16,
    change: u16,
    ingress: u32,
    translates: u8,
    ended: u8,
    unused: [u8; 2],
    confirmed: u64,
    last: u64,
}

const _: () = assert!(size_of::<Key>() == 40 && size_of::<Entry>() == 64);

impl Entry {
    /// Returns the entries of a flow's directions, with their keys.
    fn of_both(original: Tuple, reply: Tuple) -> [(Key, Self); 2] {
        [(original, reply.inverse()), (reply, original.inverse())].map(|(received, sent)| {
            let key = received.key();
            (key, Self::new(&key, &sent.key()))
        })
    }

    /// Returns the entry of packets that are received as one tuple and sent as another.
    fn new(received: &Key, sent: &Key) -> Self {
        let addresses = |of: &Key| sum(&of.source) + sum(&of.destination);
        let ports = |of: &Key| sum(&of.source_port) + sum(&of.destination_port);
        let address_change = changed(addresses(received), addresses(sent));
        let all = |of: &Key| addresses(of) + ports(of);
        Self {
            source: sent.source,
            destination: sent.destination,
            source_port: sent.source_port,
            destination_port: sent.destination_port,
            address_change,
            change: changed(all(received), all(sent)),
            translates: (received != sent).into(),
            ..Self::default()
        }
    }
}

/// Returns the sum of 16-bit words in the order of bytes of this machine, as the programs read them.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|word| u32::from(u16::from_ne_bytes([word[0], word[1]]))).sum()
}

/// Returns what is added to the complement of a checksum so that words with one sum become those with another.
fn changed(before: u32, after: u32) -> u16 {
    folded(u32::from(!folded(before)) + u32::from(folded(after)))
}

fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The table of flows of all accelerated interfaces of the process.
#[derive(Debug)]
pub struct Flows {
    map: Map<Key, Entry>,
    since_map: Map<u32, u64>,
    since: Mapped,
}

static FLOWS: Mutex<Weak<Flows>> = Mutex::new(Weak::new());

impl Flows {
    /// Returns the process's, which is empty at first and goes with its last user. Until [`Self::doubt`] no packet
    /// confirms a flow.
    ///
    /// # Errors
    /// The kernel makes no map.
    pub fn shared() -> Result<Arc<Self>, Errno> {
        let mut known = FLOWS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flows) = known.upgrade() {
            return Ok(flows);
        }
        let flows = Arc::new(Self::new()?);
        *known = Arc::downgrade(&flows);
        Ok(flows)
    }

    fn new() -> Result<Self, Errno> {
        let since_map = Map::mapped_number()?;
        let since = since_map.map_number()?;
        since.number().store(u64::MAX, Ordering::Relaxed);
        Ok(Self { map: Map::hash(2 * FLOWS_MOST)?, since_map, since })
    }

    /// Returns the maps by their names in the programs.
    pub(super) fn maps(&self) -> [(&'static std::ffi::CStr, BorrowedFd<'_>); 2] {
        let (flows, since) = (self.map.descriptor(), self.since_map.descriptor());
        [(c"flows", flows.as_fd()), (c"flows_since", since.as_fd())]
    }

    /// Adds a flow by the packets of both directions as they are received. Packets of a direction are taken when the
    /// kernel has let one pass.
    ///
    /// # Errors
    /// There is no room.
    pub fn put(&self, original: Tuple, reply: Tuple) -> Result<(), Errno> {
        for (key, entry) in Entry::of_both(original, reply) {
            if let Err(errno) = self.map.put(&key, &entry) {
                self.remove(original, reply);
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Takes no packet of a flow any more. Those that were taken can still be returned until [`Self::remove`].
    pub fn end(&self, original: Tuple, reply: Tuple) {
        for (key, entry) in Entry::of_both(original, reply) {
            self.map.put(&key, &Entry { ended: 1, ..entry }).ok();
        }
    }

    /// Removes a flow.
    pub fn remove(&self, original: Tuple, reply: Tuple) {
        for direction in [original, reply] {
            self.map.remove(&direction.key()).ok();
        }
    }

    /// Returns the time since the last packet of a flow that was taken, of any direction, to within a fifteenth of a second;
    /// `None`: none was.
    pub fn quiet(&self, original: Tuple, reply: Tuple) -> Option<Duration> {
        let last = |of: Tuple| self.map.get(&of.key()).unwrap_or_default().last;
        let last = Some(last(original).max(last(reply))).filter(|last| *last != 0)?;
        Some(monotonic().saturating_sub(Duration::from_nanos(last)))
    }

    /// Returns the number of flows that there is room for.
    pub fn most(&self) -> u64 {
        FLOWS_MOST.into()
    }

    /// Takes no packet from now on unless the kernel lets one of the same direction pass, after this time.
    pub fn doubt(&self, time: Duration) {
        let since = monotonic().saturating_add(time).as_nanos() as u64;
        self.since.number().store(since, Ordering::Relaxed);
    }
}

/// A packet socket by which the flows that the kernel sends on an interface are confirmed. It receives no packet.
#[derive(Debug)]
pub struct FlowTap {
    _socket: OwnedFd,
}

impl FlowTap {
    /// Begins to confirm flows on the interface with this number in the network namespace of the calling thread, and on
    /// its VLANs in a map by identifier.
    ///
    /// # Errors
    /// The kernel refuses the program or the socket.
    pub(super) fn open(
        interface: u32,
        flows: &Flows,
        vlans: BorrowedFd<'_>,
    ) -> Result<Self, String> {
        let maps = flows.maps().into_iter().chain([(c"vlans", vlans)]);
        let loaded = Loaded::new(OBJECT, maps)?;
        let program = loaded.program(c"turnpike_confirm")?;
        drop(loaded);
        let socket = packet_socket().map_err(|errno| problem("opening a packet socket", errno))?;
        attach(&socket, &program).map_err(|errno| problem("attaching it to a socket", errno))?;
        bind(&socket, interface).map_err(|errno| problem("binding a packet socket", errno))?;
        Ok(Self { _socket: socket })
    }
}

/// Opens a packet socket with Ethernet headers, which receives nothing until it is bound.
fn packet_socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a system call without memory.
    let socket = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: a descriptor that the kernel has just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn attach(socket: &OwnedFd, program: &OwnedFd) -> Result<(), Errno> {
    let (number, size) = (program.as_raw_fd(), size_of::<c_int>() as libc::socklen_t);
    let (socket, level, option) = (socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF);
    // SAFETY: a number and its length.
    let result =
        unsafe { libc::setsockopt(socket, level, option, (&raw const number).cast(), size) };
    Errno::result(result).map(drop)
}

/// Binds a socket to all packets of an interface: those that the kernel sends are shown to such sockets only.
fn bind(socket: &OwnedFd, interface: u32) -> Result<(), Errno> {
    // SAFETY: zeros are a value of the structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface.cast_signed();
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: an address of the family and its length.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests;

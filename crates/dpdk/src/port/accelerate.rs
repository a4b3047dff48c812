//! Accelerated interfaces: kernel interfaces that stay the kernel's, of whose packets the port receives those that are
//! only to be forwarded.
//!
//! ```text
//!   interface -- XDP program --+-- redirect --> AF_XDP socket of the queue --> forwarder
//!                              +-- pass --> kernel                                |
//!                                             ^------ Returner <-- slow path <----+ what it does not forward
//! ```
//!
//! The programs are `accelerate.bpf.c`. The first is attached by a BPF link, which the kernel removes with the process,
//! before DPDK's driver makes its sockets; the driver's library finds it and attaches none of its own. Sockets leave the
//! program's map when they are closed. So a process that is killed leaves nothing behind. That takes the kernel some time,
//! on a busy machine a second or two; without a [`Lease`] that the process renews nothing is taken meanwhile.
//!
//! A frame that the process has received and does not forward is *returned*: the kernel runs the second program over it
//! in live mode (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18), whose verdict lets it enter the stack as received by the
//! interface. The kernel resolves the neighbour, sends the ICMP error, or forwards it, and no packet is answered twice.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_void};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::bpf::{self, Map, Mapped};
use super::flows::{FlowTap, Flows};
use super::in_kernel::{self, KernelTables};
use super::libbpf::{Libbpf, errno};
use crate::Errno;

/// The programs as clang has compiled them.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/accelerate.bpf.o"));

/// Most prefixes of a family.
const PREFIXES_MOST: u32 = 1 << 21;

/// Outcome of the program for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To the port.
    Redirected,
    /// To the kernel, since the queue has no socket of the port.
    NoSocket,
    /// To the kernel, since forwarding is off or the port is not ready.
    Off,
    /// To the kernel, since the process has not renewed its lease in time: it is ended or stopped, or one of its threads has
    /// no processor.
    Stalled,
    /// To the kernel: a frame for another MAC, a group or all.
    OtherMac,
    /// To the kernel: neither IPv4 nor IPv6, or with a tag of no known VLAN.
    OtherType,
    /// To the kernel: no valid header, or the frame is shorter than its packet.
    Malformed,
    /// To the kernel: IPv4 options or an IPv6 hop-by-hop header.
    Options,
    /// To the kernel: the TTL or hop limit ends here.
    Ttl,
    /// To the kernel: source or destination is one that routers do not forward.
    Addresses,
    /// To the kernel: longer than the least MTU of the accelerated interfaces.
    TooLong,
    /// To the kernel: an own address, or its route does not lead over accelerated interfaces.
    Route,
    /// To the kernel: no such route leads to the source, which may be a reason to drop the packet.
    Source,
    /// Returned to the kernel by the port, which received it first; with [`KernelTables`] left to it by the program, since
    /// its neighbour is not resolved or it leaves by the interface that it came from.
    Returned,
    /// To the kernel: the sender has left the checksum of TCP or UDP to its device. Only with [`KernelTables`].
    Checksum,
    /// To the kernel: the outgoing interface takes no frames of programs, or is not ready. Only with [`KernelTables`].
    NoWay,
    /// Redirected, and not sent: the outgoing interface has refused it. Only with [`KernelTables`].
    Unsent,
    /// To the kernel: where flows are followed, it is of none that the kernel lets pass.
    NoFlow,
    /// Dropped: returned when its flow had ended.
    Ended,
    /// To the kernel: received by a port of a bond that is a spare, or not ready. Only with [`KernelTables`].
    BondPort,
}

impl Outcome {
    /// All, in the program's order.
    pub const ALL: [Self; 20] = [
        Self::Redirected,
        Self::NoSocket,
        Self::Off,
        Self::Stalled,
        Self::OtherMac,
        Self::OtherType,
        Self::Malformed,
        Self::Options,
        Self::Ttl,
        Self::Addresses,
        Self::TooLong,
        Self::Route,
        Self::Source,
        Self::Returned,
        Self::Checksum,
        Self::NoWay,
        Self::Unsent,
        Self::NoFlow,
        Self::Ended,
        Self::BondPort,
    ];

    /// Returns its name for operators.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redirected => "accelerated",
            Self::NoSocket => "no-socket",
            Self::Off => "off",
            Self::Stalled => "stalled",
            Self::OtherMac => "other-mac",
            Self::OtherType => "other-type",
            Self::Malformed => "malformed",
            Self::Options => "options",
            Self::Ttl => "ttl",
            Self::Addresses => "addresses",
            Self::TooLong => "too-long",
            Self::Route => "route",
            Self::Source => "source",
            Self::Returned => "returned",
            Self::Checksum => "checksum",
            Self::NoWay => "no-way",
            Self::Unsent => "unsent",
            Self::NoFlow => "no-flow",
            Self::Ended => "flow-ended",
            Self::BondPort => "bond-port",
        }
    }
}

/// Packets that an accelerated interface takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The destination MAC.
    pub mac: [u8; 6],
    /// The longest IP packet in bytes.
    pub longest: u16,
    /// True for IPv4.
    pub ip4: bool,
    /// True for IPv6.
    pub ip6: bool,
    /// True if checksums of received packets may be left to a device.
    pub partial_checksums: bool,
    /// The number as a way out of [`KernelTables`].
    pub way: u16,
    /// The kernel's number of the interface or VLAN device.
    pub device: u32,
}

/// `struct settings`.
#[repr(C)]
struct Settings {
    mac: [u8; 6],
    longest: u16,
    ip4: u8,
    ip6: u8,
    generic: u8,
    interface: u8,
    flows: u8,
    partial: u8,
    way: u16,
    device: u32,
    bond: u8,
    unused: [u8; 3],
}

const _: () = assert!(size_of::<Settings>() == 24);

/// `struct key4`.
#[repr(C)]
#[derive(Debug)]
struct Key4 {
    bits: u32,
    address: [u8; 4],
}

/// `struct key6`.
#[repr(C)]
#[derive(Debug)]
struct Key6 {
    bits: u32,
    address: [u8; 16],
}

/// The prefixes by which the programs of all accelerated interfaces decide: the longest that contains a destination
/// answers for it, and without any its packets are the kernel's.
#[derive(Debug)]
pub struct Prefixes {
    four: Map<Key4, u8>,
    six: Map<Key6, u8>,
    lease: Lease,
}

/// The time until which the programs of all accelerated interfaces take packets, which the process renews.
#[derive(Clone, Debug)]
pub struct Lease {
    map: Arc<Map<u32, u64>>,
    end: Arc<Mapped>,
}

impl Lease {
    fn new() -> Result<Self, Errno> {
        let map = Map::mapped_number()?;
        let end = Arc::new(map.map_number()?);
        Ok(Self { map: Arc::new(map), end })
    }

    /// Extends it to so long from now.
    pub fn renew(&self, time: Duration) {
        let end = monotonic().saturating_add(time).as_nanos() as u64;
        self.end.number().store(end, Ordering::Relaxed);
    }

    /// Ends it now.
    pub fn end(&self) {
        self.end.number().store(0, Ordering::Relaxed);
    }
}

static PREFIXES: Mutex<Weak<Prefixes>> = Mutex::new(Weak::new());

impl Prefixes {
    /// Returns the process's, which are empty at first and go with their last user.
    ///
    /// # Errors
    /// The kernel makes no map.
    pub fn shared() -> Result<Arc<Self>, Errno> {
        let mut known = PREFIXES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prefixes) = known.upgrade() {
            return Ok(prefixes);
        }
        let (four, six) =
            (Map::longest_prefix(PREFIXES_MOST)?, Map::longest_prefix(PREFIXES_MOST)?);
        let prefixes = Arc::new(Self { four, six, lease: Lease::new()? });
        *known = Arc::downgrade(&prefixes);
        Ok(prefixes)
    }

    /// Returns the lease of the process.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Sets the answer for a prefix: true if packets to it are forwarded.
    ///
    /// # Errors
    /// There is no room.
    pub fn set(&self, address: IpAddr, bits: u8, forwards: bool) -> Result<(), Errno> {
        let (bits, value) = (u32::from(bits), u8::from(forwards));
        match address {
            IpAddr::V4(of) => self.four.put(&Key4 { bits, address: of.octets() }, &value),
            IpAddr::V6(of) => self.six.put(&Key6 { bits, address: of.octets() }, &value),
        }
    }

    /// Returns the maps that the programs share, by name.
    fn maps(&self) -> [(&'static CStr, BorrowedFd<'_>); 3] {
        [
            (c"prefixes4", self.four.descriptor().as_fd()),
            (c"prefixes6", self.six.descriptor().as_fd()),
            (c"lease", self.lease.map.descriptor().as_fd()),
        ]
    }

    /// Returns true if packets to this address are forwarded.
    pub fn forwards(&self, address: IpAddr) -> bool {
        let answer = match address {
            IpAddr::V4(of) => self.four.get(&Key4 { bits: 32, address: of.octets() }),
            IpAddr::V6(of) => self.six.get(&Key6 { bits: 128, address: of.octets() }),
        };
        answer.is_ok_and(|forwards| forwards != 0)
    }

    /// Removes the answer for a prefix; a shorter one answers from then on.
    ///
    /// # Errors
    /// There is none.
    pub fn remove(&self, address: IpAddr, bits: u8) -> Result<(), Errno> {
        let bits = u32::from(bits);
        match address {
            IpAddr::V4(of) => self.four.remove(&Key4 { bits, address: of.octets() }),
            IpAddr::V6(of) => self.six.remove(&Key6 { bits, address: of.octets() }),
        }
    }
}

/// Programs with their maps, loaded.
pub(super) struct Loaded {
    libbpf: Libbpf,
    object: NonNull<c_void>,
}

impl Loaded {
    /// Loads an object with these maps of the process in the place of its own.
    pub(super) fn new<'m>(
        bytes: &'static [u8],
        shared: impl Iterator<Item = (&'static CStr, BorrowedFd<'m>)>,
    ) -> Result<Self, String> {
        let libbpf = Libbpf::find().ok_or("libbpf 0.8 or newer is missing")?;
        let options = ptr::null();
        // SAFETY: the object lies in memory that stays; null means no options.
        let object = unsafe { (libbpf.open)(bytes.as_ptr().cast(), bytes.len(), options) };
        let object = NonNull::new(object).ok_or_else(|| problem("opening", Errno::last()))?;
        let loaded = Self { libbpf, object };
        for (name, map) in shared {
            let place = loaded.find_map(name)?;
            // SAFETY: a map of the object, and a descriptor that libbpf duplicates.
            errno(unsafe { (libbpf.reuse)(place.as_ptr(), map.as_raw_fd()) })
                .map_err(|errno| problem("sharing maps", errno))?;
        }
        // SAFETY: the object is open.
        errno(unsafe { (libbpf.load)(object.as_ptr()) }).map_err(|errno| match errno {
            Errno::EPERM => {
                "the kernel lets this user load none: it takes root, or CAP_BPF, CAP_NET_ADMIN and \
                             CAP_SYS_ADMIN"
                    .to_owned()
            }
            errno => problem("loading", errno),
        })?;
        Ok(loaded)
    }

    fn find_map(&self, name: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the object is open; a C string.
        let map = unsafe { (self.libbpf.find_map)(self.object.as_ptr(), name.as_ptr()) };
        NonNull::new(map).ok_or_else(|| problem("finding maps", Errno::ENOENT))
    }

    /// Returns a map.
    ///
    /// # Safety
    /// The program declares it with these types.
    pub(super) unsafe fn map<K, V>(&self, name: &CStr) -> Result<Map<K, V>, String> {
        let map = self.find_map(name)?;
        // SAFETY: a map of the object, which keeps the descriptor open while it is duplicated.
        let descriptor = unsafe { BorrowedFd::borrow_raw((self.libbpf.map)(map.as_ptr())) };
        let own = descriptor.try_clone_to_owned();
        let own = own.map_err(|_| problem("finding maps", Errno::last()))?;
        // SAFETY: by the caller.
        Ok(unsafe { Map::of(own) })
    }

    pub(super) fn program(&self, name: &CStr) -> Result<OwnedFd, String> {
        // SAFETY: the object is loaded; a C string. libbpf answers with null, or with what lives as long as it.
        let program = unsafe { (self.libbpf.find_program)(self.object.as_ptr(), name.as_ptr()) };
        let program = NonNull::new(program).ok_or_else(|| problem("loading", Errno::ENOENT))?;
        // SAFETY: a program of the object, which keeps the descriptor open while it is duplicated.
        let descriptor = unsafe { BorrowedFd::borrow_raw((self.libbpf.program)(program.as_ptr())) };
        descriptor.try_clone_to_owned().map_err(|_| problem("loading", Errno::last()))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the object has no other user.
        unsafe { (self.libbpf.close)(self.object.as_ptr()) };
    }
}

pub(super) fn problem(step: &str, errno: Errno) -> String {
    format!("the XDP program: {step}: {errno}")
}

/// Loads the programs of an accelerated interface.
pub(super) fn load(prefixes: &Prefixes, flows: Option<&Flows>) -> Result<Loaded, String> {
    Loaded::new(OBJECT, prefixes.maps().into_iter().chain(flows.into_iter().flat_map(Flows::maps)))
}

/// The number of programs that were attached.
static ATTACHED: AtomicU64 = AtomicU64::new(0);

/// The programs of an accelerated interface, attached. Dropping it gives all packets to the kernel.
pub struct Acceleration {
    /// Detaches the program when it is closed.
    _link: OwnedFd,
    returns: OwnedFd,
    interface: u32,
    number: u64,
    generic: Option<String>,
    settings: Map<u32, Settings>,
    /// Those of VLANs, by identifier.
    vlans: Entries<Settings>,
    outcomes: Map<u32, u64>,
    _prefixes: Arc<Prefixes>,
    /// The flows whose packets alone are taken.
    flows: Option<Arc<Flows>>,
    /// The tables by which the program forwards itself, and the number of its interface there.
    forwards: Option<(Arc<KernelTables>, u8)>,
    /// Frames that were not sent for an earlier program of this number.
    unsent_before: u64,
    /// Of a bond: the ports whose frames it looks at, by the kernel's numbers.
    bond_ports: Option<Entries<u8>>,
}

/// A map of programs, and the keys that it has.
struct Entries<V> {
    map: Map<u32, V>,
    known: Mutex<BTreeSet<u32>>,
}

impl<V> Entries<V> {
    fn new(map: Map<u32, V>) -> Self {
        Self { map, known: Mutex::default() }
    }

    /// Has these values in the map, and none of other keys.
    fn replace(&self, wanted: &BTreeMap<u32, V>) -> Result<(), Errno> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let others: Vec<u32> =
            known.iter().copied().filter(|key| !wanted.contains_key(key)).collect();
        for key in others {
            self.map.remove(&key)?;
            known.remove(&key);
        }
        for (&key, value) in wanted {
            self.map.put(&key, value)?;
            known.insert(key);
        }
        Ok(())
    }
}

impl Acceleration {
    /// Attaches the program to an interface. Until [`Self::take`] all packets are the kernel's. With `in_kernel` it is the
    /// one that forwards itself, and this the number of its interface in [`KernelTables`]; `flows`: it takes packets of
    /// [`Flows`] only.
    ///
    /// # Errors
    /// The reason; the interface is as before.
    pub(super) fn attach(
        name: &str,
        interface: u32,
        (in_kernel, flows): (Option<u8>, bool),
        is_bond: bool,
    ) -> Result<Self, String> {
        let no_maps = |errno| problem("making maps", errno);
        let prefixes = Prefixes::shared().map_err(no_maps)?;
        let flows = flows.then(Flows::shared).transpose().map_err(no_maps)?;
        let forwards = match in_kernel {
            None => None,
            Some(number) => Some((KernelTables::shared().map_err(no_maps)?, number)),
        };
        let unsent_before = match &forwards {
            None => 0,
            Some((tables, number)) => tables.unsent(*number).map_err(no_maps)?,
        };
        let loaded = match &forwards {
            None => load(&prefixes, flows.as_deref())?,
            Some((tables, _)) => {
                Loaded::new(in_kernel::OBJECT, prefixes.maps().into_iter().chain(tables.maps()))?
            }
        };
        // SAFETY: so `accelerate.bpf.h` declares them.
        let (settings, vlans, outcomes) =
            unsafe { (loaded.map(c"settings")?, loaded.map(c"vlans")?, loaded.map(c"outcomes")?) };
        // SAFETY: so `in_kernel.bpf.c` declares it.
        let bond_ports =
            is_bond.then(|| unsafe { loaded.map(c"bond_ports") }.map(Entries::new)).transpose()?;
        let name_of_program =
            if forwards.is_some() { c"turnpike_forward" } else { c"xsk_def_prog" };
        let (program, returns) =
            (loaded.program(name_of_program)?, loaded.program(c"turnpike_return")?);
        // With its descriptors of maps.
        drop(loaded);
        let (link, generic) = attach(name, interface, &program)?;
        if let (true, Some(why)) = (is_bond, &generic) {
            // The kernel's stack takes the tags from frames before it runs the program of a bond.
            return Err(format!(
                "{name} is a bond, whose mode and all ports' drivers must take XDP programs: {why}"
            ));
        }
        let accelerated = Self {
            _link: link,
            returns,
            interface,
            number: ATTACHED.fetch_add(1, Ordering::Relaxed),
            generic,
            settings,
            vlans: Entries::new(vlans),
            outcomes,
            _prefixes: prefixes,
            flows,
            forwards,
            unsent_before,
            bond_ports,
        };
        accelerated.take(&Taken::default()).map_err(|errno| problem("settings", errno))?;
        bpf::examine_live(interface).map_err(|errno| {
            format!(
                "the kernel takes no frames back, for which it must be Linux 5.18 or newer \
                 (BPF_F_TEST_XDP_LIVE_FRAMES): {errno}"
            )
        })?;
        Ok(accelerated)
    }

    /// Returns a number that no other of this process has, before or after.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Opens a packet socket by which flows that leave by this interface, or by its VLANs of [`Self::take_vlans`], are
    /// confirmed; `None` where it does not follow flows.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn flow_tap(&self) -> Result<Option<FlowTap>, String> {
        let open =
            |flows| FlowTap::open(self.interface, flows, self.vlans.map.descriptor().as_fd());
        self.flows.as_deref().map(open).transpose()
    }

    /// Returns the reason for which the kernel's stack, not the interface's driver, runs the program; `None`: the driver
    /// runs it.
    pub fn generic(&self) -> Option<&str> {
        self.generic.as_deref()
    }

    /// Takes these packets from now on, as long as there is a [`Lease`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take(&self, wanted: &Taken) -> Result<(), Errno> {
        self.settings.put(&0, &self.settings(wanted))
    }

    /// Takes these packets of VLANs from now on, by identifier, and none of others.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take_vlans(&self, wanted: &BTreeMap<u16, Taken>) -> Result<(), Errno> {
        let of = |(id, wanted): (&u16, &Taken)| (u32::from(*id), self.settings(wanted));
        self.vlans.replace(&wanted.iter().map(of).collect())
    }

    fn settings(&self, wanted: &Taken) -> Settings {
        let Taken { mac, longest, ip4, ip6, partial_checksums, way, device } = *wanted;
        let (ip4, ip6, partial) = (ip4.into(), ip6.into(), partial_checksums.into());
        let (generic, flows) = (self.generic.is_some().into(), self.flows.is_some().into());
        // A program that forwards itself knows the MTU of each way out.
        let (longest, interface) = match &self.forwards {
            None => (longest, 0),
            Some((_, number)) => (u16::MAX, *number),
        };
        let (bond, unused) = (self.bond_ports.is_some().into(), [0; 3]);
        Settings {
            mac,
            longest,
            ip4,
            ip6,
            generic,
            interface,
            flows,
            partial,
            way,
            device,
            bond,
            unused,
        }
    }

    /// Looks at frames of these ports of a bond from now on, by the kernel's numbers, and at none of others.
    pub(super) fn take_bond_ports(&self, ports: &BTreeSet<u32>) -> Result<(), Errno> {
        let wanted = ports.iter().map(|port| (*port, 1)).collect();
        self.bond_ports.as_ref().map_or(Ok(()), |known| known.replace(&wanted))
    }

    /// Returns the tables by which its program forwards itself; `None`: it takes packets for the port.
    pub fn tables(&self) -> Option<&KernelTables> {
        self.forwards.as_ref().map(|(tables, _)| &**tables)
    }

    /// Returns the kernel's number of the interface.
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Returns the packets of each outcome, in the order of [`Outcome::ALL`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn counts(&self) -> Result<[u64; Outcome::ALL.len()], Errno> {
        let mut counts = [0; Outcome::ALL.len()];
        for (outcome, count) in counts.iter_mut().enumerate() {
            *count = self.outcomes.get_all(&(outcome as u32))?.iter().sum();
        }
        if let Some((tables, number)) = &self.forwards {
            counts[Outcome::Unsent as usize] = tables.unsent(*number)? - self.unsent_before;
        }
        Ok(counts)
    }

    /// Returns a way to return frames of this interface to the kernel.
    ///
    /// # Errors
    /// There is no descriptor for it.
    pub fn returner(&self) -> Result<Returner, String> {
        let program = self.returns.try_clone();
        let program = program.map_err(|error| format!("the XDP program: {error}"))?;
        Ok(Returner { program, interface: self.interface })
    }
}

/// Returns the time of the clock that the programs read.
pub(super) fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer; every kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns frames that an interface has received to the kernel.
#[derive(Debug)]
pub struct Returner {
    program: OwnedFd,
    interface: u32,
}

impl Returner {
    /// Returns the kernel's number of the interface.
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Lets the kernel receive a frame on the interface.
    ///
    /// # Errors
    /// The kernel refuses: `EINVAL` and `ENODEV` if the interface has vanished.
    pub fn give(&self, frame: &[u8]) -> Result<(), Errno> {
        bpf::run_live(&self.program, self.interface, frame)
    }
}

/// Attaches a program in the interface's driver, else in the kernel's stack with the reason.
fn attach(
    name: &str,
    interface: u32,
    program: &OwnedFd,
) -> Result<(OwnedFd, Option<String>), String> {
    const DRIVER: u32 = 1 << 2;
    const GENERIC: u32 = 1 << 1;
    let link = |flags| bpf::link_xdp(program, interface, flags);
    let refused = |errno| match errno {
        Errno::EBUSY | Errno::EEXIST => format!(
            "{name} has an XDP program already, which would not see its packets any more; remove it: ip link set {name} \
             xdp off"
        ),
        errno => format!("no XDP program can be attached to {name}: {errno}"),
    };
    match link(DRIVER) {
        Ok(link) => Ok((link, None)),
        Err(errno @ (Errno::EBUSY | Errno::EEXIST | Errno::EPERM)) => Err(refused(errno)),
        Err(native) => {
            let link = link(GENERIC).map_err(refused)?;
            Ok((link, Some(format!("its driver takes no XDP program: {native}"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = Outcome::ALL.map(Outcome::name).into();
        assert_eq!(names.len(), Outcome::ALL.len());
    }
}

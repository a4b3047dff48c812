//! The control queue of an AF_XDP port: control traffic is sorted out in the kernel, before it can be lost in
//! the ring of a socket that is not emptied in time.
//!
//! An AF_XDP socket receives from the one queue of its interface to which it is bound. A second one on the same queue
//! has to share the rings by which buffers are given to the kernel and come back, which one thread alone may use, so
//! DPDK's driver has no such sockets, and forwarders share nothing. So control traffic takes the other way out of an
//! XDP program, into the kernel, where a DPDK device of the driver AF_PACKET takes it from the same interface, with
//! rings and buffers of its own. A filter of traffic control keeps it from the host's stack. The way costs a copy and
//! the kernel's work on a packet, which control traffic can afford.
//!
//! ```text
//!   interface -- XDP program --+-- redirect --> AF_XDP socket of the queue --> forwarder
//!                (rules)       +-- pass --> AF_PACKET socket --> control forwarder
//!                                       \-> traffic control: drop
//! ```
//!
//! The program is `control.bpf.c`. It takes the place of the one that DPDK's driver has attached, uses its map of
//! sockets, and gives the place back before the driver closes. Rules are entries of its maps and change while packets
//! arrive.
//!
//! The functions of libbpf are those of the library that DPDK's driver has loaded (`libbpf.rs`).

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use wire::pattern::{Addresses, Masked, Pattern, Traffic, Upper};

use super::bpf::xdp_program;
use super::libbpf::{AttachOptions, Libbpf, errno};
use crate::Errno;

/// The program as clang has compiled it.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/control.bpf.o"));

/// Ways in which an XDP program is attached: as the interface's driver can, in its driver, by the kernel's stack.
const MODES: [u32; 3] = [0, 1 << 2, 1 << 1];

/// Attaches only in place of the program that is named.
const XDP_FLAGS_REPLACE: u32 = 1 << 4;

const BPF_NOEXIST: u64 = 1;

/// Destinations that have rules for all of them, by their first address: the groups of a link and link-local addresses.
const OF_LINKS_4: (u32, u32) = (0xe000_0000, 24);
const OF_LINKS_6: [(u128, u32); 2] = [(0xff02 << 112, 16), (0xfe80 << 112, 10)];

/// The form of a rule, as in `control.bpf.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Form {
    EtherType,
    Protocol,
    Icmp,
    To,
    From,
    Flow,
}

/// `struct key`: the fields of a rule in network byte order; those that its form does not name are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct Key {
    source: [u8; 16],
    destination: [u8; 16],
    ethertype: [u8; 2],
    from: [u8; 2],
    to: [u8; 2],
    protocol: u8,
    form: Form,
}

const _: () = assert!(size_of::<Key>() == 40);

/// `struct destination`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct Destination {
    address: [u8; 16],
    ethertype: [u8; 2],
}

const _: () = assert!(size_of::<Destination>() == 18);

/// `struct count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Count {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Key {
    /// Makes the key of a rule for this traffic.
    ///
    /// # Errors
    /// The field by which the program has no form of rules.
    fn of(traffic: &Traffic) -> Result<Self, &'static str> {
        match traffic {
            Traffic::EtherType(ethertype) => Ok(Self {
                source: [0; 16],
                destination: [0; 16],
                ethertype: ethertype.to_be_bytes(),
                from: [0; 2],
                to: [0; 2],
                protocol: 0,
                form: Form::EtherType,
            }),
            Traffic::Ip(pattern) => Self::of_pattern(pattern),
        }
    }

    fn of_pattern(pattern: &Pattern) -> Result<Self, &'static str> {
        if pattern.class.mask != 0 || pattern.ttl.mask != 0 {
            return Err("the XDP program has no rules for a traffic class or a time to live");
        }
        let protocol = pattern.protocol.ok_or("the XDP program has no rules for all protocols")?;
        let (ethertype, source, destination) = addresses(&pattern.addresses)?;
        let (form, from, to) = upper(pattern.upper)?;
        match (form, source) {
            (Form::Flow, None) => Err("the XDP program has no rules for two ports from any source"),
            (Form::Flow, Some(_)) | (_, None) => Ok(Self {
                source: source.unwrap_or_default(),
                destination,
                ethertype: ethertype.to_be_bytes(),
                from: from.to_be_bytes(),
                to: to.to_be_bytes(),
                protocol,
                form,
            }),
            (_, Some(_)) => Err("the XDP program has rules for a source only with both ports"),
        }
    }

    /// Returns the destination, by which the program sees that it need not look further; `None`: it is no IP packet's.
    fn destination(&self) -> Option<Destination> {
        let Self { destination: address, ethertype, form, .. } = *self;
        (form != Form::EtherType).then_some(Destination { address, ethertype })
    }
}

/// Ethertype, source if there is one, and destination.
type Ends = (u16, Option<[u8; 16]>, [u8; 16]);

fn addresses(addresses: &Addresses) -> Result<Ends, &'static str> {
    const SOURCE: &str = "the XDP program has rules for one source or all of them";
    const DESTINATION: &str =
        "the XDP program has rules for one destination, 224.0.0.0/24, ff02::/16 and fe80::/10";
    let wide = |value: u32| {
        let mut address = [0; 16];
        address[..4].copy_from_slice(&value.to_be_bytes());
        address
    };
    match *addresses {
        Addresses::Ip4 { source, destination } => {
            let source = exact(source.value, source.mask, u32::MAX).ok_or(SOURCE)?;
            let of_link = (destination.value, destination.mask.leading_ones()) == OF_LINKS_4;
            let is_known = destination.mask == u32::MAX || of_link;
            let destination = is_known.then_some(destination.value).ok_or(DESTINATION)?;
            Ok((ETHERTYPE_IPV4, source.map(wide), wide(destination)))
        }
        Addresses::Ip6 { source, destination } => {
            let source = exact(source.value, source.mask, u128::MAX).ok_or(SOURCE)?;
            let of_link = (destination.value, destination.mask.leading_ones());
            let is_known = destination.mask == u128::MAX || OF_LINKS_6.contains(&of_link);
            let destination = is_known.then_some(destination.value).ok_or(DESTINATION)?;
            Ok((ETHERTYPE_IPV6, source.map(u128::to_be_bytes), destination.to_be_bytes()))
        }
    }
}

/// Returns the value if all of its bits are compared, and none if no bit is; `None` if some are.
fn exact<T: PartialEq + Default>(value: T, mask: T, all: T) -> Option<Option<T>> {
    if mask == T::default() { Some(None) } else { (mask == all).then_some(Some(value)) }
}

/// Returns the form of a rule, the source port and the destination port or the type.
fn upper(upper: Upper) -> Result<(Form, u16, u16), &'static str> {
    match upper {
        Upper::Any => Ok((Form::Protocol, 0, 0)),
        Upper::Icmp(kind) => Ok((Form::Icmp, 0, kind.into())),
        Upper::Ports { from, to, flags } => {
            if flags.mask != 0 {
                return Err("the XDP program has no rules for TCP flags");
            }
            let port = |port: Masked<u16>| exact(port.value, port.mask, u16::MAX);
            match (port(from), port(to)) {
                (Some(None), Some(None)) => Ok((Form::Protocol, 0, 0)),
                (Some(None), Some(Some(to))) => Ok((Form::To, 0, to)),
                (Some(Some(from)), Some(None)) => Ok((Form::From, from, 0)),
                (Some(Some(from)), Some(Some(to))) => Ok((Form::Flow, from, to)),
                _ => Err("the XDP program has rules for one port or all of them"),
            }
        }
    }
}

/// The program with its maps, loaded. Dropping it unloads it unless it is attached.
struct Loaded {
    libbpf: Libbpf,
    object: NonNull<c_void>,
    program: RawFd,
    destinations: RawFd,
    rules: RawFd,
}

// SAFETY: libbpf's object is used to close it, by its owner; all else are descriptors.
unsafe impl Send for Loaded {}
// SAFETY: as above: shared users pass descriptors and keys of their own to the kernel.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// Loads the program, which redirects packets by the map of sockets with this descriptor.
    fn new(sockets: RawFd) -> Result<Self, String> {
        let libbpf = Libbpf::find().ok_or("libbpf 0.8 or newer is missing")?;
        let options = ptr::null();
        // SAFETY: the object lies in memory that stays; null means no options.
        let object = unsafe { (libbpf.open)(OBJECT.as_ptr().cast(), OBJECT.len(), options) };
        let object = NonNull::new(object).ok_or_else(|| problem("opening", Errno::last()))?;
        let mut loaded = Self { libbpf, object, program: -1, destinations: -1, rules: -1 };
        // SAFETY: the object is open, and null asks for its first program; libbpf answers with null, or with
        // what lives as long as the object.
        unsafe {
            let map = |name: &CStr| (libbpf.find_map)(object.as_ptr(), name.as_ptr());
            check("taking the driver's map", (libbpf.reuse)(map(c"xsks_map"), sockets))?;
            check("loading", (libbpf.load)(object.as_ptr()))?;
            let program = (libbpf.first_program)(object.as_ptr(), ptr::null_mut());
            loaded.program = check("loading", (libbpf.program)(program))?;
            loaded.destinations = check("making maps", (libbpf.map)(map(c"destinations")))?;
            loaded.rules = check("making maps", (libbpf.map)(map(c"rules")))?;
        }
        Ok(loaded)
    }

    fn put<K, V>(&self, map: RawFd, key: &K, value: &V, flags: u64) -> Result<(), Errno> {
        let (key, value) = (ptr::from_ref(key).cast(), ptr::from_ref(value).cast());
        // SAFETY: a map of the object, and a key and a value as `control.bpf.c` declares them.
        errno(unsafe { (self.libbpf.put)(map, key, value, flags) })
    }

    fn delete<K>(&self, map: RawFd, key: &K) -> Result<(), Errno> {
        // SAFETY: a map of the object, and a key as `control.bpf.c` declares it.
        errno(unsafe { (self.libbpf.delete)(map, ptr::from_ref(key).cast()) })
    }

    fn count(&self, key: &Key) -> Result<Count, Errno> {
        let mut count = Count::default();
        let place = ptr::from_mut(&mut count).cast();
        // SAFETY: the map of rules, a key, and room for a value.
        errno(unsafe { (self.libbpf.get)(self.rules, ptr::from_ref(key).cast(), place) })?;
        Ok(count)
    }

    /// Attaches a program to an interface in place of another. Returns the kernel's number of it.
    fn exchange(&self, interface: u32, old: RawFd, new: RawFd) -> Result<u32, Errno> {
        let options = AttachOptions { size: size_of::<AttachOptions>(), old, rest: 0 };
        let attach = |mode| {
            let flags = mode | XDP_FLAGS_REPLACE;
            // SAFETY: descriptors of programs, and the options for the call.
            errno(unsafe { (self.libbpf.attach)(interface as c_int, new, flags, &options) })
        };
        // If no mode is that of the other program, the first error is the most useful.
        let others = |errno| MODES[1..].iter().find_map(|&mode| attach(mode).ok()).ok_or(errno);
        attach(MODES[0]).or_else(others)?;
        xdp_program(interface).ok_or(Errno::ENOENT)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the object has no other user.
        unsafe { (self.libbpf.close)(self.object.as_ptr()) };
    }
}

fn check(step: &str, result: c_int) -> Result<c_int, String> {
    if result < 0 { Err(problem(step, Errno::from_raw(-result))) } else { Ok(result) }
}

fn problem(step: &str, errno: Errno) -> String {
    format!("the XDP program of the control queue: {step}: {errno}")
}

/// The program of an interface. Dropping it gives the interface back the program that was there before.
pub(super) struct ControlProgram {
    loaded: Loaded,
    interface: u32,
    before: OwnedFd,
    /// The kernel's number of the program.
    number: u32,
    held: Mutex<Held>,
}

/// The rules of a program.
#[derive(Default)]
struct Held {
    keys: BTreeMap<u64, Key>,
    /// Rules for each destination.
    destinations: BTreeMap<Destination, usize>,
    next: u64,
}

impl ControlProgram {
    /// Attaches the program to an interface in place of that of the AF_XDP driver, whose map of
    /// sockets has this descriptor. Without rules every packet takes its former path.
    ///
    /// # Errors
    /// The step that failed; the interface has its program as before.
    pub(super) fn attach(interface: u32, sockets: RawFd) -> Result<Self, String> {
        let loaded = Loaded::new(sockets)?;
        let number = xdp_program(interface).ok_or("the interface has no XDP program")?;
        // SAFETY: a number; the kernel makes a descriptor, or returns an error.
        let before = unsafe { (loaded.libbpf.attached)(number) };
        check("finding the driver's", before)?;
        // SAFETY: the descriptor that the kernel has just made for us.
        let before = unsafe { OwnedFd::from_raw_fd(before) };
        let number = loaded
            .exchange(interface, before.as_raw_fd(), loaded.program)
            .map_err(|errno| problem("attaching", errno))?;
        Ok(Self { loaded, interface, before, number, held: Mutex::default() })
    }

    /// Returns the kernel's number of the program.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule and returns its number.
    ///
    /// # Errors
    /// The reason why there is no rule for this traffic: the program has no such form, or no room.
    pub(super) fn add(&self, traffic: &Traffic) -> Result<u64, (Errno, String)> {
        let key = Key::of(traffic).map_err(|why| (Errno::EINVAL, why.to_owned()))?;
        let failed = |errno: Errno| (errno, "the XDP program has no room for the rule".to_owned());
        let mut held = self.lock();
        self.loaded.put(self.loaded.rules, &key, &Count::default(), BPF_NOEXIST).map_err(failed)?;
        if let Some(destination) = key.destination() {
            let rules = held.destinations.entry(destination).or_default();
            *rules += 1;
            if *rules == 1
                && let Err(errno) =
                    self.loaded.put(self.loaded.destinations, &destination, &1_u8, 0)
            {
                held.destinations.remove(&destination);
                let _ = self.loaded.delete(self.loaded.rules, &key);
                return Err(failed(errno));
            }
        }
        let number = held.next;
        held.next += 1;
        held.keys.insert(number, key);
        Ok(number)
    }

    /// Removes a rule; `None` if there is none with this number.
    pub(super) fn remove(&self, number: u64) -> Option<Result<(), Errno>> {
        let mut held = self.lock();
        let key = *held.keys.get(&number)?;
        if let Err(errno) = self.loaded.delete(self.loaded.rules, &key) {
            return Some(Err(errno));
        }
        held.keys.remove(&number);
        if let Some(destination) = key.destination()
            && let Some(rules) = held.destinations.get_mut(&destination)
        {
            *rules -= 1;
            if *rules == 0 {
                held.destinations.remove(&destination);
                // An entry that stays costs its packets some look-ups.
                let _ = self.loaded.delete(self.loaded.destinations, &destination);
            }
        }
        Some(Ok(()))
    }

    /// Returns the count of a rule's packets; `None` if there is none with this number.
    pub(super) fn count(&self, number: u64) -> Option<Result<Count, Errno>> {
        let held = self.lock();
        Some(self.loaded.count(held.keys.get(&number)?))
    }
}

impl Drop for ControlProgram {
    fn drop(&mut self) {
        // The interface may have vanished, or have another program by now; then this fails and changes nothing.
        let before = self.before.as_raw_fd();
        let _ = self.loaded.exchange(self.interface, self.loaded.program, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESTINATION: [u8; 4] = [10, 0, 1, 1];

    fn pattern(bits: u32, upper: Upper) -> Pattern {
        let mask = u32::MAX << (32 - bits);
        let destination = Masked { value: u32::from_be_bytes(DESTINATION) & mask, mask };
        Pattern {
            addresses: Addresses::Ip4 { source: Masked::default(), destination },
            class: Masked::default(),
            ttl: Masked::default(),
            protocol: Some(6),
            whole: true,
            upper,
        }
    }

    fn ports(from: Masked<u16>, to: Masked<u16>) -> Upper {
        Upper::Ports { from, to, flags: Masked::default() }
    }

    #[test]
    fn a_pattern_is_a_key_of_one_form() {
        let (any, bgp) = (Masked::default(), Masked::exactly(179));
        for (upper, form, from, to) in [
            (ports(any, bgp), Form::To, 0, 179),
            (ports(bgp, any), Form::From, 179, 0),
            (Upper::Icmp(8), Form::Icmp, 0, 8),
            (Upper::Any, Form::Protocol, 0, 0),
        ] {
            let key = Key::of(&Traffic::Ip(pattern(32, upper))).unwrap();
            assert_eq!((key.form, key.protocol), (form, 6));
            assert_eq!((key.from, key.to), (u16::to_be_bytes(from), u16::to_be_bytes(to)));
            assert_eq!((&key.destination[..4], key.ethertype), (&DESTINATION[..], [8, 0]));
        }
        let arp = Key::of(&Traffic::EtherType(0x806)).unwrap();
        assert_eq!((arp.form, arp.ethertype, arp.destination()), (Form::EtherType, [8, 6], None));
    }

    #[test]
    fn a_pattern_without_a_form_is_refused() {
        let (any, bgp) = (Masked::default(), Masked::exactly(179));
        let one = Masked { value: 16, mask: 0xfff0 };
        let class = Pattern { class: Masked { value: 1, mask: 1 }, ..pattern(32, Upper::Any) };
        for (pattern, word) in [
            (pattern(24, Upper::Any), "one destination"),
            (pattern(32, ports(any, one)), "one port"),
            (pattern(32, ports(bgp, bgp)), "any source"),
            (Pattern { protocol: None, ..pattern(32, Upper::Any) }, "all protocols"),
            (class, "traffic class"),
        ] {
            let refused = Key::of(&Traffic::Ip(pattern)).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }
}

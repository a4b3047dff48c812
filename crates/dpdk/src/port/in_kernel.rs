//! Forwarding by the XDP programs of accelerated interfaces themselves: no sockets, no forwarders, no copies.
//!
//! ```text
//!   interface -- XDP program --+-- redirect by devmap --> interface
//!                    ^         +-- pass --> kernel
//!                    | reads
//!              KernelTables <-- RIB: FIBs, next hops; owner: ways out
//! ```
//!
//! The tables are BPF maps that the process has mapped, so a change is a store. They have the layout of the router's own
//! tables, by which their writers, orders of writes and tests are the same. The program is `in_kernel.bpf.c`.
//!
//! A piece of a table, or a number, is used for something else only when no program that has seen it runs any more:
//! [`KernelTables::wait_for_programs`]. The kernel waits for its programs (an RCU grace period) when a map of maps changes,
//! so that a process that returns from the call knows that all programs see the change.
//!
//! Redirected frames that no interface has sent are counted by programs of two tracepoints (`unsent.bpf.c`); where the kernel
//! has none they are not counted, as [`KernelTables::uncounted`] says.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::accelerate::{Loaded, problem};
use super::bpf::{self, Map};
use crate::Errno;

/// The program, and those of the tracepoints, as clang has compiled them.
pub(super) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/in_kernel.bpf.o"));
static UNSENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/unsent.bpf.o"));

/// Most ports: their numbers are smaller.
const PORTS: usize = 64;

/// Most ways out, which are ports and VLANs on them: their numbers are smaller.
pub const WAYS: usize = 1 << 13;

const FIRST4: usize = 1 << 24;
const LONG4: usize = 1 << 23;
const DIRECT6: usize = 1 << 18;
const NODES6: usize = 1 << 20;
const LEAVES6: usize = 1 << 22;
const NEXT_HOPS: usize = 1 << 15;
const MEMBERS: usize = 1 << 18;
const WORDS: usize = 2;

/// `struct line`, `struct line32`: bytes of a line.
const LINE: usize = 64;

/// A way out as the program reads it, `struct way`.
type Way = [AtomicU64; 2];

/// An interface as a way out: a port, or a VLAN on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayOut {
    /// The number of the port, and the kernel's of its interface.
    pub port: (u8, u32),
    /// The identifier of the VLAN.
    pub vlan: Option<u16>,
    /// Its own MAC.
    pub mac: [u8; 6],
    /// The longest IP packet in bytes.
    pub mtu: u16,
    /// True if the port's driver sends frames of programs that run in drivers.
    pub native: bool,
}

impl WayOut {
    /// Returns the words of `struct way`.
    fn words(self) -> [u64; 2] {
        let [a, b, c, d, e, f] = self.mac;
        let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let vlan = self.vlan.map_or(0, |id| u64::from(id) << VLAN_SHIFT | 1 << TAGGED_SHIFT);
        let port = u64::from(self.native) | u64::from(self.port.0) << PORT_SHIFT | vlan;
        [mac | u64::from(self.mtu) << 48, port]
    }
}

/// Of the second word of `struct way`.
const PORT_SHIFT: u32 = 8;
const VLAN_SHIFT: u32 = 16;
const TAGGED_SHIFT: u32 = 32;

/// A map with lines of elements, or with elements of eight bytes and multiples.
type Table = Map<u32, [u8; LINE]>;

/// The descriptors of the maps, by their names in the program.
struct Maps {
    tables: Vec<(&'static CStr, OwnedFd)>,
    devices: Map<u32, u32>,
    /// One for each processor.
    unsent: Map<u32, u64>,
    /// Frames that are open on a processor, `struct open`.
    open: Map<u32, u64>,
    /// Changed only to wait for programs.
    outer: Map<u32, u32>,
    inner: Map<u32, u64>,
}

/// The tables of the process's programs. Their memory stays until the process ends.
pub struct KernelTables {
    maps: Maps,
    /// Attached programs that count what was not sent, or the reason why there are none.
    counting: Result<[OwnedFd; 2], String>,
    ways: &'static [Way],
    words: &'static [AtomicU64],
    /// IPv4: an entry for each /24.
    pub first4: &'static [AtomicU16],
    /// IPv4: groups of 256 entries.
    pub long4: &'static [AtomicU16],
    /// IPv6: an entry for each value of the first 18 bits.
    pub direct6: &'static [AtomicU32],
    /// IPv6: nodes, of which only the first [`Self::nodes_shared`] are read by programs.
    pub nodes6: &'static [[AtomicU64; 3]],
    /// IPv6: leaves, of which only the first [`Self::leaves_shared`] are read by programs.
    pub leaves6: &'static [AtomicU16],
    /// Next hops, by number.
    pub next_hops: &'static [AtomicU64],
    /// Members of groups of next hops.
    pub members: &'static [AtomicU16],
}

static SHARED: Mutex<Option<Arc<KernelTables>>> = Mutex::new(None);

/// Words of `enum word`.
const SEED: usize = 0;
const SOME_STAY: usize = 1;

impl KernelTables {
    /// Returns the tables of the process, which are empty at first: no packet has a route.
    ///
    /// # Errors
    /// The kernel makes no maps, or has no memory for them.
    pub fn shared() -> Result<Arc<Self>, Errno> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tables) = &*shared {
            return Ok(tables.clone());
        }
        let tables = Arc::new(Self::new()?);
        *shared = Some(tables.clone());
        Ok(tables)
    }

    fn new() -> Result<Self, Errno> {
        const DEVMAP: u32 = 14;
        const ARRAY_OF_MAPS: u32 = 12;
        const PERCPU_ARRAY: u32 = 6;
        const ARRAY: u32 = 2;
        let mut tables = Vec::new();
        // SAFETY: atomics, of which `in_kernel.bpf.c` declares the maps.
        let (first4, long4, direct6, leaves6, members, next_hops, words) = unsafe {
            (
                table(&mut tables, c"tbl24", FIRST4, FIRST4)?,
                table(&mut tables, c"tbl_long", LONG4, LONG4)?,
                table(&mut tables, c"direct6", DIRECT6, DIRECT6)?,
                table(&mut tables, c"leaves6", LEAVES6, LEAVES_SPACE)?,
                table(&mut tables, c"members", MEMBERS, MEMBERS)?,
                table(&mut tables, c"next_hops", NEXT_HOPS, NEXT_HOPS)?,
                table(&mut tables, c"words", WORDS, WORDS)?,
            )
        };
        // SAFETY: arrays of atomics, as above.
        let (nodes6, ways) = unsafe {
            (
                table(&mut tables, c"nodes6", NODES6, NODES_SPACE)?,
                table(&mut tables, c"ways", WAYS, WAYS)?,
            )
        };
        let inner = Map::create(ARRAY, 1, 0, 0)?;
        let maps = Maps {
            tables,
            devices: Map::create(DEVMAP, PORTS as u32, 0, 0)?,
            unsent: Map::create(PERCPU_ARRAY, PORTS as u32, 0, 0)?,
            open: Map::create(PERCPU_ARRAY, 1, 0, 0)?,
            outer: Map::create(ARRAY_OF_MAPS, 1, 0, inner.descriptor().as_raw_fd() as u32)?,
            inner,
        };
        let counting = count_unsent(&maps);
        Ok(Self {
            maps,
            counting,
            ways,
            words,
            first4,
            long4,
            direct6,
            nodes6,
            leaves6,
            next_hops,
            members,
        })
    }

    /// Returns the number of IPv6 nodes that programs read.
    pub fn nodes_shared(&self) -> usize {
        NODES6
    }

    /// Returns the number of IPv6 leaves that programs read.
    pub fn leaves_shared(&self) -> usize {
        LEAVES6
    }

    /// Returns the reason why frames that were not sent are not counted; `None`: they are.
    pub fn uncounted(&self) -> Option<&str> {
        self.counting.as_ref().err().map(String::as_str)
    }

    /// Waits until no program runs any more that has begun before the call: some milliseconds.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn wait_for_programs(&self) -> Result<(), Errno> {
        let inner = self.maps.inner.descriptor().as_raw_fd() as u32;
        self.maps.outer.put(&0, &inner)
    }

    /// Sets the seed of flow hashes.
    pub fn set_seed(&self, seed: u64) {
        self.words[SEED].store(seed, Ordering::Release);
    }

    /// Has programs ask [`Prefixes`](super::accelerate::Prefixes) for each destination, or not.
    pub fn set_some_stay(&self, on: bool) {
        self.words[SOME_STAY].store(on.into(), Ordering::Release);
    }

    /// Sets the way out of this number, or removes it: packets by it are the kernel's from now on. VLANs have no way out
    /// without their port's.
    ///
    /// # Errors
    /// The kernel refuses; there is no way by the interface then.
    pub fn set_way(&self, number: usize, way: Option<WayOut>) -> Result<(), Errno> {
        let Some([frame, port]) = self.ways.get(number) else { return Err(Errno::EINVAL) };
        // Until all of it is there, packets are the kernel's.
        frame.store(0, Ordering::Release);
        let Some(way) = way else {
            // Ways by VLANs, whose numbers are greater, have no device of their own.
            if number >= PORTS {
                return Ok(());
            }
            return match self.maps.devices.remove(&(number as u32)) {
                Err(Errno::ENOENT) | Ok(()) => Ok(()),
                other => other,
            };
        };
        if way.vlan.is_none() {
            self.maps.devices.put(&(number as u32), &way.port.1)?;
        }
        let words = way.words();
        if ![0, words[1]].contains(&port.swap(words[1], Ordering::AcqRel)) {
            // For programs that have read the first word of another interface before.
            self.wait_for_programs()?;
        }
        frame.store(words[0], Ordering::Release);
        Ok(())
    }

    /// Returns the frames that the interface of this number has received and none has sent.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn unsent(&self, number: u8) -> Result<u64, Errno> {
        Ok(self.maps.unsent.get_all(&number.into())?.iter().sum())
    }

    /// Returns the maps that the program shares, by name.
    pub(super) fn maps(&self) -> impl Iterator<Item = (&'static CStr, BorrowedFd<'_>)> {
        let tables = self.maps.tables.iter().map(|(name, map)| (*name, map.as_fd()));
        let Maps { devices, open, .. } = &self.maps;
        tables.chain([
            (c"devices", devices.descriptor().as_fd()),
            (c"open", open.descriptor().as_fd()),
        ])
    }
}

/// Elements of crate fib's structure, whose arrays have a fixed length: the rest is address space.
const NODES_SPACE: usize = 1 << 22;
const LEAVES_SPACE: usize = 1 << 25;

/// Creates a map of elements and maps it for the life of the process, followed by private memory for the elements up to
/// `space`.
///
/// # Safety
/// `T` is an atomic or an array of them, and any bytes are one.
unsafe fn table<T>(
    tables: &mut Vec<(&'static CStr, OwnedFd)>,
    name: &'static CStr,
    elements: usize,
    space: usize,
) -> Result<&'static [T], Errno> {
    const ARRAY: u32 = 2;
    const MMAPABLE: u32 = 1 << 10;
    let bytes = elements * size_of::<T>();
    // Elements of a map are as long as a multiple of eight bytes, so that smaller ones lie in lines.
    let map = match size_of::<T>() {
        8 => Map::<u32, u64>::create(ARRAY, elements as u32, MMAPABLE, 0)?.into_descriptor(),
        16 => Map::<u32, [u64; 2]>::create(ARRAY, elements as u32, MMAPABLE, 0)?.into_descriptor(),
        24 => Map::<u32, [u64; 3]>::create(ARRAY, elements as u32, MMAPABLE, 0)?.into_descriptor(),
        _ => Table::create(ARRAY, (bytes / LINE) as u32, MMAPABLE, 0)?.into_descriptor(),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let place =
        unsafe { libc::mmap(ptr::null_mut(), space * size_of::<T>(), access, private, -1, 0) };
    if place == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    let shared = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: replaces the beginning of the mapping just made, which nobody uses yet.
    let mapped = unsafe { libc::mmap(place, bytes, access, shared, map.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        let errno = Errno::last();
        // SAFETY: the mapping just made, which nobody uses.
        unsafe { libc::munmap(place, space * size_of::<T>()) };
        return Err(errno);
    }
    tables.push((name, map));
    // SAFETY: mapped with this length, at a page, until the process ends; by the caller, any bytes are a `T`, and others
    // that write there are no data race, as all access is atomic.
    Ok(unsafe { std::slice::from_raw_parts(place.cast(), space) })
}

/// Attaches the programs that count what is not sent.
fn count_unsent(maps: &Maps) -> Result<[OwnedFd; 2], String> {
    let shared =
        [(c"unsent", maps.unsent.descriptor().as_fd()), (c"open", maps.open.descriptor().as_fd())];
    let loaded = Loaded::new(UNSENT, shared.into_iter())?;
    let attach = |name, tracepoint| {
        let program = loaded.program(name)?;
        bpf::attach_tracepoint(&program, tracepoint).map_err(|errno| problem("attaching", errno))
    };
    Ok([
        attach(c"turnpike_devmap", c"xdp_devmap_xmit")?,
        attach(c"turnpike_refused", c"xdp_redirect_err")?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_two_words() {
        let mac = [1, 2, 3, 4, 5, 6];
        let way = WayOut { port: (9, 7), vlan: None, mac, mtu: 0x1234, native: true };
        assert_eq!(way.words(), [0x1234_0605_0403_0201, 0x0901]);
        let tagged = WayOut { vlan: Some(0xabc), native: false, ..way };
        assert_eq!(tagged.words(), [0x1234_0605_0403_0201, 0x1_0abc_0900]);
    }
}

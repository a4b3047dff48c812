//! Frames and bytes of interfaces that several threads count.
//!
//! Each counting unit (a step of a forwarder, a slow path worker) has a block of its own, with a counter for each
//! interface. Readers get the sum, which stays when a unit ends.

use std::sync::{Arc, Mutex};

use crate::counters::Traffic;
use crate::interface::{InterfaceId, MAX_INTERFACES};
use crate::lock::lock;

/// Frames of each interface, by its number; one thread counts.
pub(crate) type Block = Arc<[Traffic]>;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum([u64; 2]);

impl Sum {
    fn of(traffic: &Traffic) -> Self {
        Self([traffic.packets.get(), traffic.bytes.get()])
    }

    fn with(self, other: Self) -> Self {
        Self([self.0[0].wrapping_add(other.0[0]), self.0[1].wrapping_add(other.0[1])])
    }

    fn without(self, other: Self) -> Self {
        Self([self.0[0].wrapping_sub(other.0[0]), self.0[1].wrapping_sub(other.0[1])])
    }
}

/// The blocks of one direction.
struct Blocks {
    /// Counts of blocks that are no longer used.
    past: [Sum; MAX_INTERFACES],
    /// Counts of former interfaces of the same numbers.
    former: [Sum; MAX_INTERFACES],
    live: Vec<Block>,
}

impl Blocks {
    fn new() -> Box<Self> {
        let none = [Sum::default(); MAX_INTERFACES];
        Box::new(Self { past: none, former: none, live: Vec::new() })
    }

    fn add(&mut self, interfaces: usize) -> Block {
        for retired in self.live.extract_if(.., |block| Arc::strong_count(block) == 1) {
            for (past, traffic) in self.past.iter_mut().zip(&*retired) {
                *past = past.with(Sum::of(traffic));
            }
        }
        let block: Block = (0..interfaces).map(|_| Traffic::default()).collect();
        self.live.push(block.clone());
        block
    }

    fn all(&self, interface: InterfaceId) -> Sum {
        let index = interface.index();
        let live = self.live.iter().filter_map(|block| block.get(index));
        live.fold(self.past[index], |sum, traffic| sum.with(Sum::of(traffic)))
    }

    fn get(&self, interface: InterfaceId) -> [u64; 2] {
        self.all(interface).without(self.former[interface.index()]).0
    }

    fn forget(&mut self, interface: InterfaceId) {
        self.former[interface.index()] = self.all(interface);
    }
}

/// Received frames and bytes, then sent ones, of an interface; without tags and FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceTraffic {
    /// Received frames.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Sent frames.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

/// The counts of all units, of both directions.
pub(crate) struct TrafficTable {
    rx: Mutex<Box<Blocks>>,
    tx: Mutex<Box<Blocks>>,
}

impl Default for TrafficTable {
    fn default() -> Self {
        let blocks = || Mutex::new(Blocks::new());
        Self { rx: blocks(), tx: blocks() }
    }
}

impl TrafficTable {
    /// Returns a block for received frames of the interfaces below this number.
    pub(crate) fn rx(&self, interfaces: usize) -> Block {
        lock(&self.rx).add(interfaces)
    }

    /// Returns a block for sent frames of the interfaces below this number.
    pub(crate) fn tx(&self, interfaces: usize) -> Block {
        lock(&self.tx).add(interfaces)
    }

    /// Returns the counts of an interface.
    pub(crate) fn get(&self, interface: InterfaceId) -> InterfaceTraffic {
        let [rx_packets, rx_bytes] = lock(&self.rx).get(interface);
        let [tx_packets, tx_bytes] = lock(&self.tx).get(interface);
        InterfaceTraffic { rx_packets, rx_bytes, tx_packets, tx_bytes }
    }

    /// Resets the counters of an interface: its number is going to be another's.
    pub(crate) fn forget(&self, interface: InterfaceId) {
        lock(&self.rx).forget(interface);
        lock(&self.tx).forget(interface);
    }
}

/// Counts so many frames, with so many bytes together, of an interface.
#[inline(always)]
pub(crate) fn count(block: &Block, interface: InterfaceId, (frames, bytes): (u32, u64)) {
    if let Some(traffic) = block.get(interface.index()) {
        traffic.packets.add(frames.into());
        traffic.bytes.add(bytes);
    }
}

/// Frames of one interface that counters get together, when a frame of another comes and when this is dropped.
pub(crate) struct Tally<'a> {
    block: &'a Block,
    interface: usize,
    packets: u64,
    bytes: u64,
}

impl<'a> Tally<'a> {
    #[inline(always)]
    pub(crate) fn new(block: &'a Block) -> Self {
        Self { block, interface: 0, packets: 0, bytes: 0 }
    }

    /// Counts a frame.
    #[inline(always)]
    pub(crate) fn add(&mut self, interface: usize, bytes: usize) {
        if interface != self.interface {
            self.flush();
            self.interface = interface;
        }
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    #[inline(always)]
    fn flush(&mut self) {
        if let Some(traffic) = self.block.get(self.interface) {
            traffic.packets.add(std::mem::take(&mut self.packets));
            traffic.bytes.add(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Tally<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.flush();
    }
}

//! Multicast routes: from a source and a group to the interfaces that have receivers.
//!
//! A packet to a group is forwarded by the entry of its source and group, (S,G), or of the group
//! alone, (*,G). The entry has the required ingress interface (the reverse path check of RFC 1112's
//! routers and of PIM, RFC 7761 4.2) and the egress interfaces, each with the TTL that a packet
//! must exceed.
//!
//! The table is replaced as a whole by its one owner and read by forwarders, once for each batch that has
//! multicast packets. An entry's counters move to the next table.

use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hashbrown::HashMap;

use crate::interface::{InterfaceId, InterfaceSet};

/// The counters of an entry. Several forwarders may count, but rarely two at once, because all
/// packets of an entry that are forwarded arrive on one interface.
#[derive(Debug, Default)]
pub struct MulticastCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    wrong_interface: AtomicU64,
    /// True if the next packet is for the kernel.
    sample: AtomicBool,
    /// True if the next packet from a wrong interface is for the kernel.
    sample_wrong_interface: AtomicBool,
}

impl MulticastCounters {
    /// Returns the number of forwarded packets, each counted once.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Their bytes, without Ethernet headers.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of packets from other interfaces than the entry's.
    pub fn wrong_interface(&self) -> u64 {
        self.wrong_interface.load(Ordering::Relaxed)
    }

    /// Passes the next packet of either kind to the slow path, so that the kernel and its routing
    /// daemon see that the source is still active, and on which interface.
    pub fn sample(&self) {
        self.sample.store(true, Ordering::Relaxed);
        self.sample_wrong_interface.store(true, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_wrong_interface(&self) {
        self.wrong_interface.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true once after each [`Self::sample`].
    pub(crate) fn wants_packet(&self) -> bool {
        self.sample.load(Ordering::Relaxed) && self.sample.swap(false, Ordering::Relaxed)
    }

    /// Returns true once after each [`Self::sample`].
    pub(crate) fn wants_wrong_interface(&self) -> bool {
        let gate = &self.sample_wrong_interface;
        gate.load(Ordering::Relaxed) && gate.swap(false, Ordering::Relaxed)
    }
}

/// An entry of the table.
#[derive(Clone, Debug)]
pub struct MulticastRoute {
    /// The required ingress interface.
    pub from: InterfaceId,
    /// The egress interfaces, each with the TTL that a packet must exceed, in ascending order of these TTLs.
    to: Box<[(InterfaceId, u8)]>,
    /// Its counters.
    pub counters: Arc<MulticastCounters>,
}

impl MulticastRoute {
    /// Creates an entry with this ingress interface and these egress interfaces, each with the TTL
    /// that a packet must exceed on arrival. An interface never sends its own packets back, even if
    /// it is in both.
    pub fn new(
        from: InterfaceId,
        to: impl IntoIterator<Item = (InterfaceId, u8)>,
        counters: Arc<MulticastCounters>,
    ) -> Self {
        // Every packet must exceed 1, or it may not be forwarded.
        let to = to.into_iter().map(|(interface, ttl)| (interface, ttl.max(1)));
        let mut to: Vec<_> = to.filter(|&(interface, _)| interface != from).collect();
        to.sort_unstable_by_key(|&(interface, ttl)| (interface, u8::MAX - ttl));
        to.dedup_by_key(|&mut (interface, _)| interface);
        to.sort_by_key(|&(_, ttl)| ttl);
        Self { from, to: to.into(), counters }
    }

    /// Returns the number of egress interfaces of a packet with this TTL or hop limit.
    fn count(&self, ttl: u8) -> u16 {
        self.to.partition_point(|&(_, threshold)| ttl > threshold) as u16
    }

    /// Returns the egress interfaces of a packet with this TTL or hop limit.
    pub fn interfaces(&self, ttl: u8) -> InterfaceSet {
        self.first(self.count(ttl)).collect()
    }

    pub(crate) fn first(&self, count: u16) -> impl Iterator<Item = InterfaceId> {
        self.to.iter().take(count.into()).map(|&(interface, _)| interface)
    }
}

/// An entry's decision on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replication {
    /// The egress interfaces of the packet, possibly none.
    Interfaces(InterfaceSet),
    /// The packet arrived on the wrong interface.
    WrongInterface,
    /// The owner of the entry requested the packet.
    Sample,
}

/// The same for the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The packet leaves by this number of the entry's first interfaces.
    First(u16),
    WrongInterface,
    Sample,
}

impl MulticastRoute {
    /// Decides on a packet received on this interface with this TTL or hop limit.
    pub(crate) fn decide(&self, from: InterfaceId, ttl: u8) -> Decision {
        let counters = &self.counters;
        if self.from != from {
            counters.count_wrong_interface();
            let wanted = counters.wants_wrong_interface();
            return if wanted { Decision::Sample } else { Decision::WrongInterface };
        }
        if counters.wants_packet() {
            return Decision::Sample;
        }
        Decision::First(self.count(ttl))
    }
}

/// The egress interfaces of a packet to a group: the first ones of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receivers {
    ip6: bool,
    entry: u32,
    count: u16,
}

impl Receivers {
    /// No interface.
    pub const NONE: Self = Self { ip6: false, entry: 0, count: 0 };

    /// Of an IPv4 packet, or an IPv6 packet.
    pub(crate) fn new(ip6: bool, entry: u32, count: u16) -> Self {
        Self { ip6, entry, count }
    }
}

/// The entries of one family.
#[derive(Debug)]
pub struct Groups<A> {
    entries: Vec<MulticastRoute>,
    exact: HashMap<(A, A), u32>,
    any_source: HashMap<A, u32>,
}

impl<A> Default for Groups<A> {
    fn default() -> Self {
        Self { entries: Vec::new(), exact: HashMap::new(), any_source: HashMap::new() }
    }
}

impl<A: Copy + Eq + Hash> Groups<A> {
    /// Adds an entry, for any source if none is given; one of the same source and group is
    /// replaced.
    pub fn insert(&mut self, source: Option<A>, group: A, route: MulticastRoute) {
        let entry = self.entries.len() as u32;
        self.entries.push(route);
        match source {
            Some(source) => self.exact.insert((source, group), entry),
            None => self.any_source.insert(group, entry),
        };
    }

    /// Returns the entry for a packet: that of its source, else that of its group.
    pub fn find(&self, source: A, group: A) -> Option<&MulticastRoute> {
        self.find_entry(source, group).map(|(_, route)| route)
    }

    /// Like [`Self::find`], with the entry's number.
    pub(crate) fn find_entry(&self, source: A, group: A) -> Option<(u32, &MulticastRoute)> {
        let entry = self.exact.get(&(source, group)).or_else(|| self.any_source.get(&group))?;
        self.entries.get(*entry as usize).map(|route| (*entry, route))
    }
}

/// All entries of a router.
#[derive(Debug, Default)]
pub struct MulticastRoutes {
    /// IPv4.
    pub ip4: Groups<Ipv4Addr>,
    /// IPv6.
    pub ip6: Groups<Ipv6Addr>,
}

impl MulticastRoutes {
    /// Returns the egress interfaces of a packet.
    pub(crate) fn receivers(&self, receivers: Receivers) -> impl Iterator<Item = InterfaceId> {
        let entries = if receivers.ip6 { &self.ip6.entries } else { &self.ip4.entries };
        let route = entries.get(receivers.entry as usize);
        route.into_iter().flat_map(move |route| route.first(receivers.count))
    }
}

/// The present entries.
#[derive(Debug, Default)]
pub struct MulticastTable(ArcSwap<MulticastRoutes>);

impl MulticastTable {
    /// Replaces all entries. Each batch sees the previous or the new ones.
    pub fn publish(&self, routes: MulticastRoutes) {
        self.0.store(Arc::new(routes));
    }

    /// Returns the decision of the entry for a packet, for the slow path; `None` without an entry.
    /// Counts the packet, of so many bytes, for the entry.
    pub fn replicate(
        &self,
        (source, group): (IpAddr, IpAddr),
        (from, ttl): (InterfaceId, u8),
        bytes: usize,
    ) -> Option<Replication> {
        let routes = self.read();
        let route = match (source, group) {
            (IpAddr::V4(source), IpAddr::V4(group)) => routes.ip4.find(source, group),
            (IpAddr::V6(source), IpAddr::V6(group)) => routes.ip6.find(source, group),
            _ => None,
        }?;
        Some(match route.decide(from, ttl) {
            Decision::WrongInterface => Replication::WrongInterface,
            Decision::Sample => Replication::Sample,
            Decision::First(count) => {
                if count > 0 {
                    route.counters.count(1, bytes as u64);
                }
                Replication::Interfaces(route.first(count).collect())
            }
        })
    }

    /// Returns the entries without waiting.
    pub(crate) fn read(&self) -> Arc<MulticastRoutes> {
        self.0.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u16) -> InterfaceId {
        InterfaceId::new(index).unwrap()
    }

    #[test]
    fn a_ttl_must_exceed_each_interface_s_threshold_and_one() {
        let to = [(1, 0), (2, 16), (8191, 1), (0, 0)].map(|(index, ttl)| (interface(index), ttl));
        let route = MulticastRoute::new(interface(0), to, Arc::default());
        let indexes = |ttl| -> Vec<_> {
            route.interfaces(ttl).interfaces().map(InterfaceId::index).collect()
        };
        assert_eq!(indexes(1), [] as [usize; 0]);
        assert_eq!(indexes(2), [1, 8191]);
        assert_eq!(indexes(16), [1, 8191]);
        assert_eq!(indexes(17), [1, 2, 8191], "never by the interface it came from");
    }

    #[test]
    fn the_source_s_entry_goes_before_the_group_s() {
        let route = |n| MulticastRoute::new(interface(n), [], Arc::default());
        let address = |n| Ipv4Addr::from_bits(n);
        let mut groups = Groups::default();
        groups.insert(None, address(9), route(1));
        groups.insert(Some(address(5)), address(9), route(2));
        let from = |source, group| {
            groups.find(address(source), address(group)).map(|route| route.from.index())
        };
        assert_eq!((from(5, 9), from(6, 9), from(5, 8)), (Some(2), Some(1), None));
    }

    #[test]
    fn the_slow_path_is_told_the_same() {
        let table = MulticastTable::default();
        let mut routes = MulticastRoutes::default();
        let counters: Arc<MulticastCounters> = Arc::default();
        let route = MulticastRoute::new(interface(0), [(interface(1), 8)], counters.clone());
        let (source, group) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(239, 1, 1, 1));
        routes.ip4.insert(None, group, route);
        table.publish(routes);
        let ask =
            |from, ttl| table.replicate((source.into(), group.into()), (interface(from), ttl), 50);
        assert_eq!(ask(0, 9), Some(Replication::Interfaces([interface(1)].into_iter().collect())));
        assert_eq!(ask(0, 8), Some(Replication::Interfaces(InterfaceSet::EMPTY)));
        assert_eq!(ask(1, 9), Some(Replication::WrongInterface));
        assert_eq!(table.replicate((group.into(), source.into()), (interface(0), 9), 50), None);
        assert_eq!((counters.packets(), counters.bytes(), counters.wrong_interface()), (1, 50, 1));
        counters.sample();
        assert_eq!((ask(0, 9), ask(1, 9)), (Some(Replication::Sample), Some(Replication::Sample)));
    }

    #[test]
    fn a_sample_is_taken_once() {
        let counters = MulticastCounters::default();
        assert!(!counters.wants_packet());
        counters.sample();
        assert!(counters.wants_packet() && !counters.wants_packet());
        assert!(counters.wants_wrong_interface() && !counters.wants_wrong_interface());
    }
}

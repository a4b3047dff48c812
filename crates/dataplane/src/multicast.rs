//! Multicast routes: from a source and a group to the ports that have receivers.
//!
//! A packet to a group is forwarded by the entry of its source and group, (S,G), or of the group
//! alone, (*,G). The entry names the port that such packets must come from (the reverse path check of
//! RFC 1112's routers and of PIM, RFC 7761 4.2) and the ports that they leave by, each with the TTL
//! that a packet must exceed.
//!
//! The table is replaced as a whole by its one owner and read by forwarders, once for each batch
//! that has multicast packets. What counts an entry's packets goes on in the next table.

use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use hashbrown::HashMap;

use crate::port::{MAX_PORTS, PortId};

/// A set of ports; bit `i` stands for the port with index `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortSet(u64);

const _: () = assert!(MAX_PORTS == u64::BITS as usize, "a PortSet has a bit for each port");

impl PortSet {
    /// No port.
    pub const EMPTY: Self = Self(0);

    /// Whether the port is in it.
    pub fn contains(self, port: PortId) -> bool {
        self.0 >> port.index() & 1 != 0
    }

    /// Takes a port out, or puts it in.
    pub fn set(&mut self, port: PortId, member: bool) {
        self.0 = self.0 & !(1 << port.index()) | u64::from(member) << port.index();
    }

    /// How many ports there are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The ports by their indexes.
    pub fn ports(self) -> impl Iterator<Item = PortId> {
        crate::mask::Mask(self.0).slots().filter_map(|index| PortId::new(index as u16))
    }
}

impl Extend<PortId> for PortSet {
    fn extend<I: IntoIterator<Item = PortId>>(&mut self, ports: I) {
        ports.into_iter().for_each(|port| self.set(port, true));
    }
}

impl FromIterator<PortId> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortId>>(ports: I) -> Self {
        let mut set = Self::EMPTY;
        set.extend(ports);
        set
    }
}

/// What an entry has seen. Several forwarders may count; seldom two at once, because all packets of an
/// entry that are forwarded come from one port.
#[derive(Debug, Default)]
pub struct MulticastCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    wrong_port: AtomicU64,
    /// The next packet is for the kernel.
    sample: AtomicBool,
    /// The next packet from a wrong port is for the kernel.
    sample_wrong_port: AtomicBool,
}

impl MulticastCounters {
    /// Packets that were forwarded, each counted once.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Their bytes, without Ethernet headers.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Packets that came from another port than they must.
    pub fn wrong_port(&self) -> u64 {
        self.wrong_port.load(Ordering::Relaxed)
    }

    /// Lets the slow path have the next packet of either kind, so that the kernel and its routing
    /// daemon see that the source sends still, and where from.
    pub fn sample(&self) {
        self.sample.store(true, Ordering::Relaxed);
        self.sample_wrong_port.store(true, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_wrong_port(&self) {
        self.wrong_port.fetch_add(1, Ordering::Relaxed);
    }

    /// True once after each [`Self::sample`].
    pub(crate) fn wants_packet(&self) -> bool {
        self.sample.load(Ordering::Relaxed) && self.sample.swap(false, Ordering::Relaxed)
    }

    /// True once after each [`Self::sample`].
    pub(crate) fn wants_wrong_port(&self) -> bool {
        let gate = &self.sample_wrong_port;
        gate.load(Ordering::Relaxed) && gate.swap(false, Ordering::Relaxed)
    }
}

/// An entry of the table.
#[derive(Clone, Debug)]
pub struct MulticastRoute {
    /// Where its packets must come from.
    pub from: PortId,
    /// Where they leave.
    to: PortSet,
    /// Ports of `to` that packets leave by only with a TTL above this.
    thresholds: Box<[(PortId, u8)]>,
    /// What it has seen.
    pub counters: Arc<MulticastCounters>,
}

impl MulticastRoute {
    /// Packets from this port leave by those, each with the TTL that a packet must exceed as it
    /// comes. A port never sends what came from it, even if it is in both.
    pub fn new(
        from: PortId,
        to: impl IntoIterator<Item = (PortId, u8)>,
        counters: Arc<MulticastCounters>,
    ) -> Self {
        let to: Vec<_> = to.into_iter().filter(|&(port, _)| port != from).collect();
        Self {
            from,
            to: to.iter().map(|&(port, _)| port).collect(),
            // Every packet must exceed 1, or it may not be forwarded.
            thresholds: to.into_iter().filter(|&(_, ttl)| ttl > 1).collect(),
            counters,
        }
    }

    /// The ports that a packet leaves by which comes with this TTL or hop limit.
    pub fn ports(&self, ttl: u8) -> PortSet {
        if ttl <= 1 {
            return PortSet::EMPTY;
        }
        let mut ports = self.to;
        for &(port, threshold) in &self.thresholds {
            if ttl <= threshold {
                ports.0 &= !(1 << port.index());
            }
        }
        ports
    }
}

/// What an entry says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// It leaves by these ports; there may be none.
    Ports(PortSet),
    /// It came from another port than it must.
    WrongPort,
    /// The owner of the entry wants to see it.
    Sample,
}

impl MulticastRoute {
    /// What becomes of a packet that came by this port with this TTL or hop limit.
    pub(crate) fn decide(&self, from: PortId, ttl: u8) -> Replication {
        let counters = &self.counters;
        if self.from != from {
            counters.count_wrong_port();
            let wanted = counters.wants_wrong_port();
            return if wanted { Replication::Sample } else { Replication::WrongPort };
        }
        if counters.wants_packet() {
            return Replication::Sample;
        }
        Replication::Ports(self.ports(ttl))
    }
}

/// The entries of one family.
#[derive(Debug)]
pub struct Groups<A> {
    exact: HashMap<(A, A), MulticastRoute>,
    any_source: HashMap<A, MulticastRoute>,
}

impl<A> Default for Groups<A> {
    fn default() -> Self {
        Self { exact: HashMap::new(), any_source: HashMap::new() }
    }
}

impl<A: Copy + Eq + Hash> Groups<A> {
    /// Puts an entry, of any source if there is none; one of the same source and group is replaced.
    pub fn insert(&mut self, source: Option<A>, group: A, route: MulticastRoute) {
        match source {
            Some(source) => self.exact.insert((source, group), route),
            None => self.any_source.insert(group, route),
        };
    }

    /// The entry for a packet: that of its source, else that of its group.
    pub fn find(&self, source: A, group: A) -> Option<&MulticastRoute> {
        self.exact.get(&(source, group)).or_else(|| self.any_source.get(&group))
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

/// The entries as they are now.
#[derive(Debug, Default)]
pub struct MulticastTable(ArcSwap<MulticastRoutes>);

impl MulticastTable {
    /// Replaces all entries. Each batch sees those before or those after.
    pub fn publish(&self, routes: MulticastRoutes) {
        self.0.store(Arc::new(routes));
    }

    /// What the entry for a packet says of it, for the slow path; `None` without an entry. Counts the
    /// packet, of so many bytes, for the entry.
    pub fn replicate(
        &self,
        (source, group): (IpAddr, IpAddr),
        (from, ttl): (PortId, u8),
        bytes: usize,
    ) -> Option<Replication> {
        let routes = self.read();
        let route = match (source, group) {
            (IpAddr::V4(source), IpAddr::V4(group)) => routes.ip4.find(source, group),
            (IpAddr::V6(source), IpAddr::V6(group)) => routes.ip6.find(source, group),
            _ => None,
        }?;
        let replication = route.decide(from, ttl);
        if matches!(replication, Replication::Ports(ports) if !ports.is_empty()) {
            route.counters.count(1, bytes as u64);
        }
        Some(replication)
    }

    /// The entries, without waiting for anybody.
    pub(crate) fn read(&self) -> Guard<Arc<MulticastRoutes>> {
        self.0.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(index: u16) -> PortId {
        PortId::new(index).unwrap()
    }

    fn indexes(set: PortSet) -> Vec<usize> {
        set.ports().map(PortId::index).collect()
    }

    #[test]
    fn sets_hold_every_port() {
        let set: PortSet = [port(63), port(0), port(5), port(0)].into_iter().collect();
        assert_eq!((set.len(), indexes(set)), (3, vec![0, 5, 63]));
        assert!(set.contains(port(63)) && !set.contains(port(1)));
        assert!(PortSet::EMPTY.is_empty() && !set.is_empty());
    }

    #[test]
    fn a_ttl_must_exceed_each_port_s_threshold_and_one() {
        let to = [(port(1), 0), (port(2), 16), (port(3), 1), (port(0), 0)];
        let route = MulticastRoute::new(port(0), to, Arc::default());
        assert_eq!(indexes(route.ports(1)), [] as [usize; 0]);
        assert_eq!(indexes(route.ports(2)), [1, 3]);
        assert_eq!(indexes(route.ports(16)), [1, 3]);
        assert_eq!(indexes(route.ports(17)), [1, 2, 3], "never by the port it came from");
    }

    #[test]
    fn the_source_s_entry_goes_before_the_group_s() {
        let route = |n| MulticastRoute::new(port(n), [], Arc::default());
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
        let route = MulticastRoute::new(port(0), [(port(1), 8)], counters.clone());
        let (source, group) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(239, 1, 1, 1));
        routes.ip4.insert(None, group, route);
        table.publish(routes);
        let ask = |from, ttl| table.replicate((source.into(), group.into()), (port(from), ttl), 50);
        assert_eq!(ask(0, 9), Some(Replication::Ports([port(1)].into_iter().collect())));
        assert_eq!(ask(0, 8), Some(Replication::Ports(PortSet::EMPTY)));
        assert_eq!(ask(1, 9), Some(Replication::WrongPort));
        assert_eq!(table.replicate((group.into(), source.into()), (port(0), 9), 50), None);
        assert_eq!((counters.packets(), counters.bytes(), counters.wrong_port()), (1, 50, 1));
        counters.sample();
        assert_eq!((ask(0, 9), ask(1, 9)), (Some(Replication::Sample), Some(Replication::Sample)));
    }

    #[test]
    fn a_sample_is_taken_once() {
        let counters = MulticastCounters::default();
        assert!(!counters.wants_packet());
        counters.sample();
        assert!(counters.wants_packet() && !counters.wants_packet());
        assert!(counters.wants_wrong_port() && !counters.wants_wrong_port());
    }
}

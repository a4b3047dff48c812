//! The router's own addresses and networks, and the choice of source addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::interface::{InterfaceId, VrfId};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use wire::MacAddr;
use wire::address::{ALL_NODES, ALL_ROUTERS, link_local, solicited_node};
use wire::dhcp::ALL_RELAYS;

use crate::bucket::TokenBucket;
use crate::{InterfaceConfig, InterfaceSettings, relay, source};

/// Minimum MTU of an IPv6 link (RFC 8200, 5).
pub(crate) const IPV6_LEAST_MTU: u16 = 1280;

/// `fe80::`: a router of the link (RFC 4291, 2.6.1).
const LINK_ANYCAST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);

/// `ff05::2`: all routers of the site, which a router must join too (RFC 4291, 2.8).
const ALL_SITE_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2);

/// An interface with its addresses, sorted by family. One whose MTU is too small for IPv6 (RFC
/// 8200, 5) has no IPv6 addresses, regardless of the configuration, and does not support IPv6.
#[derive(Clone)]
pub(crate) struct Interface {
    pub id: InterfaceId,
    pub name: String,
    pub mac: MacAddr,
    pub mtu: u16,
    pub v4: Vec<Ipv4Net>,
    /// Global addresses.
    pub v6: Vec<Ipv6Net>,
    /// The link-local address used as source.
    pub link_local: Ipv6Addr,
    /// Further link-local addresses, which an administrator gave the host interface.
    pub more_link_local: Vec<Ipv6Addr>,
    /// Addresses that may not be used: duplicate address detection is not finished, or has found a duplicate (RFC
    /// 4862, 5.4).
    tentative: Vec<Ipv6Addr>,
    /// True if the kernel is the host on this interface.
    pub host: bool,
    /// True if it has no link.
    pub is_loopback: bool,
    pub settings: InterfaceSettings,
    /// True if this engine handles the interface's neighbours.
    pub owned: bool,
    /// Rates of relayed DHCP messages: of clients, and to them.
    pub request_rate: Arc<TokenBucket>,
    pub reply_rate: Arc<TokenBucket>,
}

impl Interface {
    fn new(config: &InterfaceConfig) -> Self {
        let mut interface = Self {
            id: config.id,
            name: config.name.clone(),
            mac: config.mac,
            mtu: config.mtu,
            v4: Vec::new(),
            v6: Vec::new(),
            link_local: link_local(config.mac),
            more_link_local: Vec::new(),
            tentative: Vec::new(),
            host: config.host,
            is_loopback: config.is_loopback,
            settings: config.settings.clone(),
            owned: config.owned,
            request_rate: Arc::new(TokenBucket::new(relay::RATE, relay::RATE)),
            reply_rate: Arc::new(TokenBucket::new(relay::RATE, relay::RATE)),
        };
        interface.set_addresses(&config.addresses);
        interface
    }

    pub(crate) fn set_addresses(&mut self, addresses: &[IpNet]) {
        let (mut v4, mut v6, mut local) = (Vec::new(), Vec::new(), Vec::new());
        for address in addresses {
            match *address {
                IpNet::V4(net) => v4.push(net),
                IpNet::V6(net) if net.addr().is_unicast_link_local() => local.push(net.addr()),
                IpNet::V6(net) => v6.push(net),
            }
        }
        (self.v4, self.v6) = (v4, v6);
        self.link_local = link_local(self.mac);
        if !local.is_empty() && !local.contains(&self.link_local) {
            self.link_local = local[0];
        }
        local.retain(|&address| address != self.link_local);
        self.more_link_local = local;
    }

    /// Makes all IPv6 addresses tentative, or none; returns those that are.
    pub(crate) fn set_tentative(&mut self, all: bool) -> &[Ipv6Addr] {
        self.tentative = if all { self.assigned_v6().collect() } else { Vec::new() };
        &self.tentative
    }

    /// Allows the use of an address that was tentative.
    pub(crate) fn confirm(&mut self, address: Ipv6Addr) {
        self.tentative.retain(|&other| other != address);
    }

    /// Returns true for an address that is not yet known to be unique on the link.
    pub(crate) fn is_tentative(&self, address: Ipv6Addr) -> bool {
        self.tentative.contains(&address)
    }

    /// Returns true if the link has at least the minimum MTU of IPv6.
    pub(crate) fn speaks_v6(&self) -> bool {
        self.mtu >= IPV6_LEAST_MTU
    }

    pub(crate) fn has_v4(&self, address: Ipv4Addr) -> bool {
        self.v4.iter().any(|net| net.addr() == address)
    }

    /// Returns true for an IPv6 address of the interface, the link-local ones included.
    pub(crate) fn has_v6(&self, address: Ipv6Addr) -> bool {
        self.v6_addresses().any(|own| own == address)
    }

    /// Returns true for the subnet-router anycast address of one of its networks (RFC 4291, 2.6.1), of which
    /// `fe80::/64` is one. A /127 network has none (RFC 6164, 5).
    pub(crate) fn has_anycast(&self, address: Ipv6Addr) -> bool {
        self.anycast().any(|anycast| anycast == address)
    }

    fn anycast(&self) -> impl Iterator<Item = Ipv6Addr> {
        let nets = self.v6.iter().filter(|net| net.prefix_len() < 127).map(Ipv6Net::network);
        std::iter::once(LINK_ANYCAST).chain(nets).filter(|_| self.speaks_v6())
    }

    fn has_link_local(&self, address: Ipv6Addr) -> bool {
        address.is_unicast_link_local() && self.has_v6(address)
    }

    /// Returns true for the broadcast address of one of its networks.
    pub(crate) fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        self.v4.iter().any(|net| net.prefix_len() < 31 && net.broadcast() == address)
    }

    /// Returns true if the address can be a host on this interface's network.
    pub(crate) fn is_on_link(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.iter().any(|net| {
                net.contains(&address) && !is_edge(net, address) && net.addr() != address
            }),
            IpAddr::V6(address) if address.is_multicast() || !self.speaks_v6() => false,
            IpAddr::V6(address) => {
                !self.has_v6(address)
                    && !self.has_anycast(address)
                    && (address.is_unicast_link_local()
                        || self.v6.iter().any(|net| net.contains(&address)))
            }
        }
    }

    /// Returns the multicast groups of this interface that are reported to multicast routers: all but `ff02::1`,
    /// which is never reported (RFC 3810, 6).
    pub(crate) fn reported_groups(&self) -> Vec<Ipv6Addr> {
        if !self.speaks_v6() {
            return Vec::new();
        }
        let mut groups = vec![ALL_ROUTERS, ALL_SITE_ROUTERS];
        groups.extend(self.settings.relay.iter().any(IpAddr::is_ipv6).then_some(ALL_RELAYS));
        groups.extend(self.assigned_v6().chain(self.anycast()).map(solicited_node));
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    pub(crate) fn has_joined(&self, group: Ipv6Addr) -> bool {
        group == ALL_NODES || self.reported_groups().contains(&group) || self.proxies(group)
    }

    /// Returns true for a solicited-node group of an address for which the interface answers. Such groups are many,
    /// so they are not reported to multicast routers.
    fn proxies(&self, group: Ipv6Addr) -> bool {
        self.settings.proxy.iter().any(|net| match net {
            IpNet::V6(net) => {
                // A group has the low 24 bits of its addresses (RFC 4291, 2.7.1).
                let low = u128::from(group) & 0xff_ffff;
                let address = (u128::from(net.network()) & !0xff_ffff) | low;
                let host = u128::from(net.hostmask());
                let within = (address & !host) == u128::from(net.network());
                self.speaks_v6() && within && group == solicited_node(address.into())
            }
            IpNet::V4(_) => false,
        })
    }

    /// Iterates over the IPv6 addresses that may be used, the link-local address first.
    pub(crate) fn v6_addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.assigned_v6().filter(|&address| !self.is_tentative(address))
    }

    /// Returns the link-local address used as source, if it may be used.
    pub(crate) fn usable_link_local(&self) -> Option<Ipv6Addr> {
        Some(self.link_local).filter(|&address| !self.is_tentative(address))
    }

    /// Iterates over all IPv6 addresses, also those that may not be used.
    pub(crate) fn assigned_v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        let link_local = std::iter::once(self.link_local).chain(self.more_link_local.clone());
        let all = link_local.chain(self.v6.iter().map(|net| net.addr()));
        all.filter(|_| self.speaks_v6())
    }

    /// Selects the source for packets to `towards`: the address in the same network, else the first.
    pub(crate) fn source_v4(&self, towards: Ipv4Addr) -> Option<Ipv4Addr> {
        let best = self.v4.iter().find(|net| net.contains(&towards));
        best.or(self.v4.first()).map(|net| net.addr())
    }

    /// Selects the source for packets to `towards` (RFC 6724, 5): a global address, or the link-local address for
    /// a link-local destination and on an interface without global addresses.
    pub(crate) fn source_v6(&self, towards: Ipv6Addr) -> Ipv6Addr {
        if towards.is_unicast_link_local() {
            return self.link_local;
        }
        source::select(self.usable_v6(), towards).unwrap_or(self.link_local)
    }

    /// Iterates over the global addresses that may be used.
    fn usable_v6(&self) -> impl Iterator<Item = Ipv6Net> {
        let speaks = self.speaks_v6();
        let usable = move |net: &&Ipv6Net| speaks && !self.is_tentative(net.addr());
        self.v6.iter().filter(usable).copied()
    }
}

/// Returns true for a network's own and its broadcast address; a /31 and a /32 have neither (RFC 3021).
fn is_edge(net: &Ipv4Net, address: Ipv4Addr) -> bool {
    net.prefix_len() < 31 && (address == net.broadcast() || address == net.network())
}

/// All interfaces.
#[derive(Clone)]
pub(crate) struct Interfaces(Vec<Interface>);

impl Interfaces {
    pub(crate) fn new(configs: &[InterfaceConfig]) -> Self {
        Self(configs.iter().map(Interface::new).collect())
    }

    /// Takes over the interfaces that another engine owns, as that one knows them.
    pub(crate) fn join(&mut self, other: &Self) {
        for owned in other.0.iter().filter(|interface| interface.owned) {
            if let Some(own) = self.get_mut(owned.id) {
                own.clone_from(owned);
            }
        }
    }

    /// Owns these interfaces from now on, and no others.
    pub(crate) fn own(&mut self, is_owned: &impl Fn(InterfaceId) -> bool) {
        self.0.iter_mut().for_each(|interface| interface.owned = is_owned(interface.id));
    }

    /// Adds an interface, or replaces the one with its number.
    pub(crate) fn put(&mut self, config: &InterfaceConfig) {
        self.remove(config.id);
        let place = self.0.partition_point(|other| other.id < config.id);
        self.0.insert(place, Interface::new(config));
    }

    pub(crate) fn remove(&mut self, id: InterfaceId) {
        self.0.retain(|interface| interface.id != id);
    }

    pub(crate) fn get(&self, id: InterfaceId) -> Option<&Interface> {
        // Most numbers are positions; after a removal the number is searched.
        let direct = self.0.get(id.index()).filter(|interface| interface.id == id);
        direct.or_else(|| self.0.iter().find(|interface| interface.id == id))
    }

    pub(crate) fn get_mut(&mut self, id: InterfaceId) -> Option<&mut Interface> {
        self.0.iter_mut().find(|interface| interface.id == id)
    }

    /// Returns true if the interface has a host interface.
    pub(crate) fn is_host(&self, id: InterfaceId) -> bool {
        self.get(id).is_some_and(|interface| interface.host)
    }

    /// Returns true if this engine handles the interface's neighbours.
    pub(crate) fn is_owned(&self, id: InterfaceId) -> bool {
        self.get(id).is_some_and(|interface| interface.owned)
    }

    /// Returns the VRF of an interface.
    pub(crate) fn vrf_of(&self, id: InterfaceId) -> VrfId {
        self.get(id).map_or(VrfId::DEFAULT, |interface| interface.settings.vrf)
    }

    /// Iterates over the interfaces in the VRF of `id`.
    pub(crate) fn beside(&self, id: InterfaceId) -> impl Iterator<Item = &Interface> {
        let vrf = self.vrf_of(id);
        self.0.iter().filter(move |interface| interface.settings.vrf == vrf)
    }

    /// Returns the smallest MTU of all interfaces.
    pub(crate) fn smallest_mtu(&self) -> u16 {
        self.0.iter().map(|interface| interface.mtu).min().unwrap_or(0)
    }

    /// Returns true if no "unreachable" errors are sent on the interface.
    pub(crate) fn keeps_unreachables(&self, id: InterfaceId) -> bool {
        self.get(id).is_some_and(|interface| !interface.settings.unreachables)
    }

    /// Returns true for the subnet-router anycast address of a network on any interface of the VRF of `from`, and
    /// of the link of `from`.
    pub(crate) fn is_anycast(&self, address: IpAddr, from: InterfaceId) -> bool {
        match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                self.get(from).is_some_and(|interface| interface.has_anycast(address))
            }
            IpAddr::V6(address) => {
                self.beside(from).any(|interface| interface.has_anycast(address))
            }
        }
    }

    /// Returns true for a link-local address of another host on the interface's link.
    pub(crate) fn is_neighbours_link_local(&self, address: IpAddr, id: InterfaceId) -> bool {
        let IpAddr::V6(v6) = address else { return false };
        v6.is_unicast_link_local()
            && self.get(id).is_some_and(|interface| {
                interface.is_on_link(address) && interface.assigned_v6().all(|own| own != v6)
            })
    }

    /// Returns true for any address of the router to which packets received on `from` may be sent: all global
    /// addresses of its VRF, on any interface (weak host model, RFC 1122, 3.3.4.2, as is usual for routers), and
    /// the link-local addresses of that interface.
    pub(crate) fn is_own(&self, address: IpAddr, from: InterfaceId) -> bool {
        match address {
            IpAddr::V4(address) => self.beside(from).any(|interface| interface.has_v4(address)),
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                self.get(from).is_some_and(|interface| interface.has_link_local(address))
            }
            IpAddr::V6(address) => self.beside(from).any(|interface| interface.has_v6(address)),
        }
    }

    /// Returns true for the broadcast address of a network on any interface of the VRF of `from`.
    pub(crate) fn is_directed_broadcast(&self, address: Ipv4Addr, from: InterfaceId) -> bool {
        self.beside(from).any(|interface| interface.is_broadcast(address))
    }

    /// Returns true for the first address of an IPv4 network of this interface, except a /31 or /32.
    pub(crate) fn is_all_zeros(&self, id: InterfaceId, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        let zeros = |net: &Ipv4Net| net.prefix_len() < 31 && net.network() == address;
        self.get(id).is_some_and(|interface| interface.v4.iter().any(zeros))
    }

    /// Returns true for the first address of a network on any interface of the VRF of `from`, the old form of its
    /// broadcast address.
    pub(crate) fn is_any_all_zeros(&self, address: Ipv4Addr, from: InterfaceId) -> bool {
        self.beside(from).any(|interface| self.is_all_zeros(interface.id, address.into()))
    }

    /// Iterates over the interfaces in the VRF of `id`, loopbacks first: their addresses stand for the router.
    fn loopbacks_and_others(&self, id: InterfaceId) -> impl Iterator<Item = &Interface> {
        let loopbacks = self.beside(id).filter(|interface| interface.is_loopback);
        loopbacks.chain(self.beside(id).filter(|interface| !interface.is_loopback))
    }

    /// Selects the source for a packet to an IPv4 address, about one that was received on `from`: an address of
    /// that interface, else one of its VRF, of a loopback if there is one (RFC 1812, 4.2.2.2: the router's identifier).
    pub(crate) fn source_v4(&self, from: InterfaceId, towards: Ipv4Addr) -> Option<Ipv4Addr> {
        let own = self.get(from).and_then(|interface| interface.source_v4(towards));
        let mut all = self.loopbacks_and_others(from);
        own.or_else(|| all.find_map(|interface| interface.source_v4(towards)))
    }

    /// Selects the source for a packet to an IPv6 address, about one that was received on `from`: the best global
    /// address of that interface, which makes it informative (RFC 4443, 2.2), else the best of its VRF's loopbacks, else of
    /// its VRF; a link-local one only if the packet stays on that link.
    pub(crate) fn source_v6(&self, from: InterfaceId, towards: Ipv6Addr) -> Option<Ipv6Addr> {
        self.source_v6_among(from, towards, |_| true)
    }

    /// Like [`Self::source_v6`], for a packet whose answer is for the router: an address that no kernel has too.
    pub(crate) fn source_v6_without_host(
        &self,
        from: InterfaceId,
        towards: Ipv6Addr,
    ) -> Option<Ipv6Addr> {
        self.source_v6_among(from, towards, |interface| !interface.host)
    }

    fn source_v6_among(
        &self,
        from: InterfaceId,
        towards: Ipv6Addr,
        is_candidate: impl Fn(&Interface) -> bool,
    ) -> Option<Ipv6Addr> {
        let own = self.get(from)?;
        let source = own.source_v6(towards);
        if own.has_v6(source)
            && (!source.is_unicast_link_local() || towards.is_unicast_link_local())
        {
            return Some(source);
        }
        let select = |loopbacks: bool| {
            let is_one = |interface: &&Interface| {
                is_candidate(interface) && (interface.is_loopback || !loopbacks)
            };
            let candidates = self.beside(from).filter(is_one);
            source::select(candidates.flat_map(Interface::usable_v6), towards)
        };
        select(true).or_else(|| select(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u16, addresses: &[&str]) -> InterfaceConfig {
        InterfaceConfig {
            id: InterfaceId::new(index).unwrap(),
            name: format!("p{index}"),
            mac: MacAddr([2, 0, 0, 0, 0, index as u8]),
            mtu: 1500,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            host: false,
            is_loopback: false,
            settings: InterfaceSettings::default(),
            owned: true,
        }
    }

    #[test]
    fn an_address_is_the_router_s_own_in_the_vrf_of_its_interface_alone() {
        let in_vrf = |index, vrf, addresses: &[&str]| {
            let settings = InterfaceSettings { vrf: VrfId::new(vrf), ..Default::default() };
            InterfaceConfig { settings, ..interface(index, addresses) }
        };
        let interfaces = Interfaces::new(&[
            in_vrf(0, 0, &["10.0.0.1/24", "fd00::1/64"]),
            in_vrf(1, 1, &["10.0.0.9/24", "fd00::9/64"]),
            in_vrf(2, 1, &["10.1.0.1/24", "fd01::1/64"]),
            in_vrf(3, 2, &[]),
        ]);
        let own = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            (0..4)
                .map(|from| interfaces.is_own(address, InterfaceId::new(from).unwrap()))
                .collect::<Vec<_>>()
        };
        for address in ["10.0.0.1", "fd00::1"] {
            assert_eq!(own(address), vec![true, false, false, false], "{address}");
        }
        for address in ["10.0.0.9", "fd00::9", "10.1.0.1", "fd01::1"] {
            assert_eq!(own(address), vec![false, true, true, false], "{address}");
        }
        let [first, last] = [0, 3].map(|index| InterfaceId::new(index).unwrap());
        let (broadcast, zeros) = (Ipv4Addr::new(10, 1, 0, 255), Ipv4Addr::new(10, 1, 0, 0));
        for (from, expected) in [(1, true), (2, true), (0, false), (3, false)] {
            let from = InterfaceId::new(from).unwrap();
            assert_eq!(interfaces.is_directed_broadcast(broadcast, from), expected);
            assert_eq!(interfaces.is_any_all_zeros(zeros, from), expected);
            assert_eq!(interfaces.is_anycast("fd01::".parse().unwrap(), from), expected);
        }
        assert_eq!(interfaces.source_v4(last, Ipv4Addr::new(10, 0, 0, 2)), None);
        assert_eq!(interfaces.source_v6(last, "fd00::2".parse().unwrap()), None);
        assert!(interfaces.source_v4(first, Ipv4Addr::new(10, 1, 0, 2)).is_some());
    }

    #[test]
    fn new_addresses_replace_all_old_ones() {
        let mut interfaces = Interfaces::new(&[interface(0, &["10.0.0.1/24", "fd00::1/64"])]);
        let change = |interfaces: &mut Interfaces, addresses: &[&str]| {
            let nets: Vec<IpNet> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            interfaces.get_mut(InterfaceId::FIRST).unwrap().set_addresses(&nets);
        };
        let own = |interfaces: &Interfaces, address: &str| {
            interfaces.is_own(address.parse().unwrap(), InterfaceId::FIRST)
        };
        change(&mut interfaces, &["10.9.0.1/16", "fe80::9/64", "fe80::a/64", "fd09::1/64"]);
        for address in ["10.9.0.1", "fe80::9", "fe80::a", "fd09::1"] {
            assert!(own(&interfaces, address), "{address}");
        }
        for address in ["10.0.0.1", "fd00::1", "fe80::ff:fe00:0"] {
            assert!(!own(&interfaces, address), "{address}");
        }
        assert!(
            interfaces.is_directed_broadcast(Ipv4Addr::new(10, 9, 255, 255), InterfaceId::FIRST)
        );
        let towards = |interfaces: &Interfaces, to: &str| {
            interfaces.source_v6(InterfaceId::FIRST, to.parse().unwrap()).unwrap().to_string()
        };
        assert_eq!(towards(&interfaces, "2001:db8::1"), "fd09::1");
        assert_eq!(towards(&interfaces, "fe80::77"), "fe80::9");
        change(&mut interfaces, &["fe80::9/64", "fe80::ff:fe00:0/64"]);
        assert_eq!(towards(&interfaces, "fe80::77"), "fe80::ff:fe00:0", "its MAC's comes first");
        change(&mut interfaces, &[]);
        assert!(own(&interfaces, "fe80::ff:fe00:0") && !own(&interfaces, "fe80::9"));
    }

    #[test]
    fn link_local_addresses_belong_to_their_port_and_global_ones_to_the_router() {
        let interfaces =
            Interfaces::new(&[interface(0, &["fd00::1/64"]), interface(1, &["10.0.0.1/24"])]);
        let first = InterfaceId::FIRST;
        let second = InterfaceId::new(1).unwrap();
        assert!(interfaces.is_own("fd00::1".parse().unwrap(), second));
        assert!(interfaces.is_own("10.0.0.1".parse().unwrap(), first));
        assert!(interfaces.is_own("fe80::ff:fe00:1".parse().unwrap(), second));
        assert!(!interfaces.is_own("fe80::ff:fe00:1".parse().unwrap(), first));
    }

    #[test]
    fn a_network_has_edges_but_for_31_and_32() {
        let interfaces =
            Interfaces::new(&[interface(0, &["10.0.0.1/24", "10.1.0.0/31", "10.2.0.0/32"])]);
        let only = interfaces.get(InterfaceId::FIRST).unwrap();
        let on_link = |text: &str| only.is_on_link(text.parse().unwrap());
        assert!(on_link("10.0.0.2") && on_link("10.1.0.1"));
        assert!(!on_link("10.0.0.0") && !on_link("10.0.0.255") && !on_link("10.0.0.1"));
        let zeros = |text: &str| interfaces.is_all_zeros(InterfaceId::FIRST, text.parse().unwrap());
        assert!(
            zeros("10.0.0.0") && !zeros("10.0.0.1") && !zeros("10.1.0.0") && !zeros("10.2.0.0")
        );
        assert!(!on_link("10.2.0.0") && !on_link("10.0.1.2"));
        assert!(interfaces.is_directed_broadcast(Ipv4Addr::new(10, 0, 0, 255), InterfaceId::FIRST));
        assert!(!interfaces.is_directed_broadcast(Ipv4Addr::new(10, 1, 0, 1), InterfaceId::FIRST));
        assert!(!interfaces.is_directed_broadcast(Ipv4Addr::new(10, 2, 0, 0), InterfaceId::FIRST));
    }

    #[test]
    fn a_network_has_an_anycast_address_but_for_127_and_128() {
        let addresses = ["fd00::1/64", "fd01::1/127", "fd02::/128", "fd03::1:1/112"];
        let interfaces = Interfaces::new(&[interface(0, &addresses), interface(1, &[])]);
        let anycast = |text: &str| interfaces.is_anycast(text.parse().unwrap(), InterfaceId::FIRST);
        assert!(anycast("fd00::") && anycast("fd03::1:0") && anycast("fe80::"));
        assert!(!anycast("fd01::") && !anycast("fd02::") && !anycast("fd00::1"));
        let only = interfaces.get(InterfaceId::FIRST).unwrap();
        assert!(!only.is_on_link("fd00::".parse().unwrap()), "it is no neighbour");
        assert!(only.has_joined(solicited_node("fd03::1:0".parse().unwrap())));
    }

    #[test]
    fn a_port_whose_mtu_is_too_small_has_no_ipv6() {
        let mut small = interface(0, &["10.0.0.1/24", "fd00::1/64"]);
        small.mtu = 1279;
        let interfaces = Interfaces::new(&[small, interface(1, &["fd01::1/64"])]);
        let first = interfaces.get(InterfaceId::FIRST).unwrap();
        for own in ["fd00::1", "fe80::ff:fe00:0", "fd00::"] {
            let own: IpAddr = own.parse().unwrap();
            assert!(
                !interfaces.is_own(own, InterfaceId::FIRST)
                    && !interfaces.is_anycast(own, InterfaceId::FIRST),
                "{own}"
            );
        }
        assert_eq!((first.v6_addresses().count(), first.reported_groups().len()), (0, 0));
        assert!(!first.is_on_link("fd00::2".parse().unwrap()));
        assert!(first.is_on_link("10.0.0.2".parse().unwrap()));
        let source = interfaces.source_v6(InterfaceId::FIRST, "fd00::2".parse().unwrap());
        assert_eq!(source.unwrap().to_string(), "fd01::1");
    }

    #[test]
    fn the_source_is_of_the_senders_network_then_of_the_port_then_any() {
        let interfaces = Interfaces::new(&[
            interface(0, &["10.0.0.1/24", "10.1.0.1/24", "fd00::1/64", "fd01::1/64"]),
            interface(1, &["10.2.0.1/24", "fd02::1/64"]),
            interface(2, &[]),
            interface(3, &["fd03::1/64", "2001:db8:3::1/64"]),
        ]);
        let v4 = |from, to: &str| {
            interfaces
                .source_v4(InterfaceId::new(from).unwrap(), to.parse().unwrap())
                .unwrap()
                .to_string()
        };
        assert_eq!(v4(0, "10.1.0.9"), "10.1.0.1");
        assert_eq!(v4(0, "192.0.2.1"), "10.0.0.1");
        assert_eq!(v4(2, "192.0.2.1"), "10.0.0.1");
        let v6 = |from, to: &str| {
            interfaces
                .source_v6(InterfaceId::new(from).unwrap(), to.parse().unwrap())
                .unwrap()
                .to_string()
        };
        assert_eq!(v6(0, "fd01::9"), "fd01::1");
        assert_eq!(v6(1, "2001:db8::1"), "fd02::1");
        assert_eq!(v6(3, "2001:db8::1"), "2001:db8:3::1", "RFC 6724: the destination's label");
        assert_eq!(v6(3, "fd09::1"), "fd03::1");
        assert_eq!(v6(2, "2001:db8::1"), "2001:db8:3::1");
        assert_eq!(v6(1, "fe80::9"), "fe80::ff:fe00:1");
    }

    #[test]
    fn without_an_address_of_its_own_an_interface_has_a_loopback_s() {
        let loopback = |addresses: &[&str]| {
            let config = interface(9, addresses);
            InterfaceConfig { is_loopback: true, ..config }
        };
        let interfaces = Interfaces::new(&[
            interface(0, &["10.0.0.1/24", "2001:db8:1::1/64"]),
            interface(1, &[]),
            loopback(&["192.0.2.9/32", "fd09::9/128"]),
        ]);
        let (first, bare) = (InterfaceId::FIRST, InterfaceId::new(1).unwrap());
        let v4 = |from| interfaces.source_v4(from, Ipv4Addr::new(198, 51, 100, 1)).unwrap();
        assert_eq!(
            [v4(first), v4(bare)],
            [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 9)]
        );
        // Although the other address is nearer to the destination.
        let v6 = |from| {
            interfaces.source_v6(from, "2001:db8:1::7".parse().unwrap()).unwrap().to_string()
        };
        assert_eq!([v6(first), v6(bare)], ["2001:db8:1::1", "fd09::9"]);
        // Only one without IPv6 addresses: those of others.
        let interfaces = Interfaces::new(&[
            interface(0, &["2001:db8:1::1/64"]),
            interface(1, &[]),
            loopback(&["192.0.2.9/32"]),
        ]);
        assert_eq!(
            interfaces.source_v6(bare, "fd00::7".parse().unwrap()).unwrap().to_string(),
            "2001:db8:1::1"
        );
    }
}

//! The router's own addresses, as used by steps that check sources.
//!
//! No other host may send from them, so a packet with such a source is forged or has looped (RFC
//! 1812 5.3.7, RFC 2827); the same applies to a broadcast address of the ingress network. One
//! owner, the RIB, publishes them; forwarders read them by plain loads.
//!
//! Nearly all sources are others. Two tables of 256 bytes detect that by the first and the last
//! byte of a source: each address sets the same bit in its place of both, and a source whose places
//! have no bit in common is none of them. The few others are looked up.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use arc_swap::ArcSwap;
use ipnet::IpNet;

use crate::interface::{InterfaceId, InterfaceSet, VrfId};

/// Set for sources that must be checked regardless of the router's addresses.
const ALWAYS: u8 = 0x80;

/// The other bits of a hint, assigned to addresses in turn.
const BITS: u8 = 7;

/// First bytes of sources in 240/4 that may be hosts. Those with 255 are checked in any case, for the broadcast address.
const CLASS_E: RangeInclusive<u8> = 240..=254;

/// A fast check by two bytes that a source is not one of the router's addresses.
#[derive(Debug)]
pub(crate) struct Hints {
    first: [AtomicU8; 256],
    last: [AtomicU8; 256],
}

impl Hints {
    fn new(unusual: impl Fn(u8) -> bool) -> Self {
        let first = |byte: usize| if unusual(byte as u8) { ALWAYS } else { 0 };
        Self {
            first: std::array::from_fn(|byte| AtomicU8::new(first(byte))),
            last: std::array::from_fn(|_| AtomicU8::new(ALWAYS)),
        }
    }

    /// Returns 0 if a source with these first and last bytes is ordinary, and not the router's.
    #[inline(always)]
    pub(crate) fn of(&self, first: u8, last: u8) -> u8 {
        let load = |byte: &AtomicU8| byte.load(Ordering::Relaxed);
        load(&self.first[usize::from(first)]) & load(&self.last[usize::from(last)])
    }

    /// Has sources with this first byte checked, or not, regardless of the router's addresses.
    fn set_unusual(&self, first: u8, on: bool) {
        let hint = &self.first[usize::from(first)];
        let others = hint.load(Ordering::Relaxed) & !ALWAYS;
        hint.store(if on { others | ALWAYS } else { others }, Ordering::Relaxed);
    }

    /// Replaces the hints by those of these addresses, given by their first and last bytes.
    fn publish(&self, addresses: &[(u8, u8)]) {
        let bit = |&(first, last): &(u8, u8)| 1u8 << ((first ^ last) % BITS);
        for byte in 0..=u8::MAX {
            let of = |places: fn(&(u8, u8)) -> u8| {
                let here = addresses.iter().filter(|pair| places(pair) == byte);
                here.fold(0, |bits, pair| bits | bit(pair))
            };
            let place = usize::from(byte);
            let always = self.first[place].load(Ordering::Relaxed) & ALWAYS;
            self.first[place].store(always | of(|pair| pair.0), Ordering::Relaxed);
            self.last[place].store(ALWAYS | of(|pair| pair.1), Ordering::Relaxed);
        }
    }
}

/// The owner of a source address that hosts on a link may not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The router.
    Router,
    /// All hosts of the ingress network.
    Network,
}

#[derive(Debug, Default)]
struct Known {
    /// The interfaces on whose networks an address is the broadcast address; none for an own
    /// address.
    addresses: HashMap<(VrfId, IpAddr), Option<InterfaceSet>>,
    /// The interfaces in other VRFs than the default one.
    vrfs: HashMap<InterfaceId, VrfId>,
}

impl Known {
    fn add(&mut self, interface: InterfaceId, vrf: VrfId, net: &IpNet) {
        if let Some(broadcast) = broadcast(net) {
            let interfaces =
                self.addresses.entry((vrf, broadcast.into())).or_insert(Some(InterfaceSet::EMPTY));
            interfaces.iter_mut().for_each(|interfaces| interfaces.set(interface, true));
        }
        self.addresses.insert((vrf, net.addr()), None);
    }

    /// The VRF of an interface.
    fn vrf_of(&self, interface: InterfaceId) -> VrfId {
        self.vrfs.get(&interface).copied().unwrap_or_default()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct OwnAddresses {
    pub(crate) ip4: Hints,
    pub(crate) ip6: Hints,
    known: ArcSwap<Known>,
    class_e: AtomicBool,
}

impl OwnAddresses {
    /// No address yet. `class_e`: sources in 240/4 are those of hosts.
    pub fn new(class_e: bool) -> Self {
        let unusual4 = |first: u8| match first {
            0 | 127 | 224..=239 | 255 => true,
            first if CLASS_E.contains(&first) => !class_e,
            _ => false,
        };
        Self {
            ip4: Hints::new(unusual4),
            // Loopback, mapped and unspecified addresses begin with 0; link-local and multicast
            // ones with fe and ff.
            ip6: Hints::new(|first| matches!(first, 0 | 0xfe | 0xff)),
            known: ArcSwap::default(),
            class_e: AtomicBool::new(class_e),
        }
    }

    /// Returns true if sources in 240/4 count as hosts.
    pub fn class_e(&self) -> bool {
        self.class_e.load(Ordering::Relaxed)
    }

    /// Has sources in 240/4 count as hosts, or as none. To be called by the thread that publishes addresses.
    pub fn accept_class_e(&self, on: bool) {
        self.class_e.store(on, Ordering::Relaxed);
        CLASS_E.for_each(|first| self.ip4.set_unusual(first, !on));
    }

    /// Replaces all addresses: those of interfaces with their VRFs and networks, and those of VRFs
    /// that are on no interface. Link-local addresses are left out: they are not unique to the
    /// router.
    pub fn publish<'a>(
        &self,
        interfaces: impl IntoIterator<Item = (InterfaceId, VrfId, &'a [IpNet])>,
        others: impl IntoIterator<Item = (VrfId, IpAddr)>,
    ) {
        let mut known = Known::default();
        for (interface, vrf, nets) in interfaces {
            if vrf != VrfId::DEFAULT {
                known.vrfs.insert(interface, vrf);
            }
            let nets = nets.iter().filter(|net| !is_link_local(net.addr()));
            nets.for_each(|net| known.add(interface, vrf, net));
        }
        known.addresses.extend(others.into_iter().map(|address| (address, None)));
        let (mut four, mut six) = (Vec::new(), Vec::new());
        for (_, address) in known.addresses.keys() {
            match address {
                IpAddr::V4(address) => four.push((address.octets()[0], address.octets()[3])),
                IpAddr::V6(address) => six.push((address.octets()[0], address.octets()[15])),
            }
        }
        self.known.store(known.into());
        self.ip4.publish(&four);
        self.ip6.publish(&six);
    }

    /// The router's addresses in a VRF, ascending.
    pub fn all(&self, vrf: VrfId) -> Vec<IpAddr> {
        let known = self.known.load();
        let own = known.addresses.iter().filter(|(key, of)| key.0 == vrf && of.is_none());
        let mut all: Vec<_> = own.map(|(key, _)| key.1).collect();
        all.sort_unstable();
        all
    }

    /// Returns the owner of a packet's source that no host may use on this interface; `None`: a
    /// host's address. The router's addresses in other VRFs than the interface's count as hosts'
    /// here.
    pub fn owner(&self, source: IpAddr, from: InterfaceId) -> Option<Owner> {
        let known = self.known.load();
        match known.addresses.get(&(known.vrf_of(from), source))? {
            None => Some(Owner::Router),
            Some(interfaces) => interfaces.contains(from).then_some(Owner::Network),
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// The broadcast address of an IPv4 network that has one (RFC 3021).
fn broadcast(net: &IpNet) -> Option<Ipv4Addr> {
    match net {
        IpNet::V4(net) if net.prefix_len() < 31 => Some(net.broadcast()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u16) -> InterfaceId {
        InterfaceId::new(index).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// 10.0.1.1/24 and 2001:db8::1/64 on interface 0, 10.0.2.1/31 on interface 1, 192.0.2.77 on none.
    fn example() -> OwnAddresses {
        let own = OwnAddresses::new(false);
        let nets =
            |texts: &[&str]| texts.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNet>>();
        let first = nets(&["10.0.1.1/24", "2001:db8::1/64", "fe80::1/64"]);
        let second = nets(&["10.0.2.1/31"]);
        let vrf = VrfId::DEFAULT;
        let interfaces = [(interface(0), vrf, &first[..]), (interface(1), vrf, &second[..])];
        own.publish(interfaces, [(vrf, ip("192.0.2.77"))]);
        own
    }

    fn hint(own: &OwnAddresses, address: &str) -> bool {
        match ip(address) {
            IpAddr::V4(a) => own.ip4.of(a.octets()[0], a.octets()[3]) != 0,
            IpAddr::V6(a) => own.ip6.of(a.octets()[0], a.octets()[15]) != 0,
        }
    }

    #[test]
    fn own_addresses_are_the_router_s_on_every_port_and_broadcasts_the_network_s_on_its_own() {
        let own = example();
        for address in ["10.0.1.1", "10.0.2.1", "192.0.2.77", "2001:db8::1"] {
            assert!(hint(&own, address), "{address}");
            for from in [interface(0), interface(1)] {
                assert_eq!(own.owner(ip(address), from), Some(Owner::Router), "{address}");
            }
        }
        let all = ["10.0.1.1", "10.0.2.1", "192.0.2.77", "2001:db8::1"].map(ip);
        assert_eq!(own.all(VrfId::DEFAULT), all);
        assert!(own.all(VrfId::new(1)).is_empty());
        assert!(hint(&own, "10.0.1.255"));
        assert_eq!(own.owner(ip("10.0.1.255"), interface(0)), Some(Owner::Network));
        assert_eq!(own.owner(ip("10.0.1.255"), interface(1)), None);
        for address in ["10.0.1.2", "10.0.2.0", "2001:db8::2", "2001:db8::", "fe80::1"] {
            assert_eq!(own.owner(ip(address), interface(0)), None, "{address}");
        }
    }

    #[test]
    fn an_address_of_one_vrf_is_a_host_s_in_another() {
        let own = OwnAddresses::new(false);
        let nets = |text: &str| [text.parse::<IpNet>().unwrap()];
        let (same, blue) = (nets("10.0.1.1/24"), nets("10.0.1.7/24"));
        own.publish(
            [(interface(0), VrfId::DEFAULT, &same[..]), (interface(1), VrfId::new(1), &blue[..])],
            [(VrfId::DEFAULT, ip("192.0.2.77"))],
        );
        let owner = |address: &str, from| own.owner(ip(address), interface(from));
        assert_eq!((owner("10.0.1.1", 0), owner("10.0.1.1", 1)), (Some(Owner::Router), None));
        assert_eq!((owner("10.0.1.7", 0), owner("10.0.1.7", 1)), (None, Some(Owner::Router)));
        assert_eq!((owner("192.0.2.77", 0), owner("192.0.2.77", 1)), (Some(Owner::Router), None));
        for from in [0, 1] {
            assert_eq!(owner("10.0.1.255", from), Some(Owner::Network));
        }
    }

    #[test]
    fn most_sources_need_no_look() {
        let own = example();
        for address in ["10.0.1.2", "10.0.1.254", "11.0.1.1", "198.51.100.9", "2001:db8::2"] {
            assert!(!hint(&own, address), "{address}");
        }
        for address in
            ["0.0.0.0", "127.0.0.1", "224.0.0.1", "250.0.0.1", "::1", "fe80::2", "ff02::1"]
        {
            assert!(hint(&own, address), "{address}");
        }
        assert!(!hint(&OwnAddresses::new(true), "250.0.0.1"));
        assert!(hint(&OwnAddresses::new(true), "255.0.0.1"));
    }

    #[test]
    fn class_e_is_accepted_and_refused_beside_the_router_s_addresses() {
        let own = example();
        own.publish([], [(VrfId::DEFAULT, ip("250.0.0.1"))]);
        for accepted in [true, false, true] {
            own.accept_class_e(accepted);
            assert_eq!(own.class_e(), accepted);
            for address in ["240.0.0.9", "250.0.0.2", "254.255.255.254"] {
                assert_eq!(hint(&own, address), !accepted, "{address}");
            }
            assert!(hint(&own, "250.0.0.1") && hint(&own, "255.0.0.9") && hint(&own, "239.0.0.1"));
            own.publish([], [(VrfId::DEFAULT, ip("250.0.0.1"))]);
            assert_eq!(hint(&own, "250.0.0.2"), !accepted, "addresses do not change it");
        }
    }

    #[test]
    fn what_was_published_before_is_forgotten() {
        let own = example();
        own.publish([], []);
        for address in ["10.0.1.1", "192.0.2.77", "10.0.1.255", "2001:db8::1"] {
            assert!(
                !hint(&own, address) && own.owner(ip(address), interface(0)).is_none(),
                "{address}"
            );
        }
        assert!(hint(&own, "127.0.0.1") && hint(&own, "::1"));
    }
}

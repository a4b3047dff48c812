//! Multicast filters: each port's device passes on the groups that the port needs, and no others.
//!
//! Needed are the groups of the router itself (all nodes, all routers, solicited nodes of its IPv6 addresses) and those
//! that the kernel has joined on the port's host interface, for routing daemons and for itself. All multicasts are
//! needed where packets to groups are forwarded from, where a host interface takes all (a multicast routing daemon),
//! and where configured. The needed groups are compared with the device's from time to time, as the kernel sends no
//! notifications of groups that it joins.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use control::config::Interface;
use dpdk::{MulticastFilter, Multicasts};
use ipnet::IpNet;
use wire::MacAddr;
use wire::address::{
    ALL_NODES, ALL_ROUTERS, link_local, multicast_mac_v4, multicast_mac_v6, solicited_node,
};
use wire::dhcp::ALL_RELAYS;
use wire::lacp::SLOW_GROUP;

use super::super::ports::OpenPort;
use super::Owner;

/// `224.0.0.1` and `224.0.0.2`: all systems, all routers (RFC 1112, RFC 1256).
const IP4_GROUPS: [Ipv4Addr; 2] = [Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(224, 0, 0, 2)];

/// `ff05::2`: all routers of the site (RFC 4291, 2.7.1).
const ALL_SITE_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2);

/// The multicasts that a port is to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedMulticasts {
    /// All of them.
    All(Why),
    /// Those to these groups.
    Groups(BTreeSet<MacAddr>),
}

/// The reason for which a port is to receive all multicasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// By configuration.
    Configured,
    /// Packets to groups that come in by it are forwarded.
    Forwarded,
    /// Its host interface takes all.
    Host,
    /// Solicitations for other hosts' addresses are answered: each has a group of its own.
    Proxied,
    /// The kernel's list of groups cannot be read.
    Unknown,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configured => "the configuration asks for them",
            Self::Forwarded => "multicasts from it are forwarded",
            Self::Host => "its host interface takes all",
            Self::Proxied => "solicitations for other hosts are answered",
            Self::Unknown => "the groups of its host interface cannot be read",
        })
    }
}

impl Owner {
    /// Has each device pass on the multicasts that its port needs now.
    pub(super) fn filter_multicasts(&mut self) {
        let needed: Vec<_> =
            self.devices.ports.iter().map(|open| (open.id, self.needed(open))).collect();
        for (open, (id, wanted)) in self.devices.ports.iter_mut().zip(needed) {
            debug_assert_eq!(open.id, id);
            if open.multicasts.as_ref() != Some(&wanted) {
                ask(open, &wanted);
                open.multicasts = Some(wanted);
            }
        }
    }

    /// The multicasts that a port needs.
    fn needed(&self, open: &OpenPort) -> WantedMulticasts {
        use WantedMulticasts::{All, Groups};
        let configured = self.configurations.current.port(open.id);
        if configured.is_some_and(|port| port.all_multicast) {
            return All(Why::Configured);
        }
        if self.routing.groups.come_by(open.id.into()) {
            return All(Why::Forwarded);
        }
        if self.routing.sources.takes_all_multicasts(open.id.into()) {
            return All(Why::Host);
        }
        let proxied = |id| self.configurations.current.interface(id).is_some_and(proxies_v6);
        if proxied(open.id.into()) {
            return All(Why::Proxied);
        }
        let known = self.routing.rib.interface(open.id.into());
        let addresses = known.map_or(&open.addresses, |port| &port.addresses);
        let mut groups = own_groups(open.info.mac, addresses);
        if self.bond_of(open.id).is_some() {
            groups.insert(SLOW_GROUP);
        }
        for upper in self.uppers_of(open.id) {
            if self.routing.groups.come_by(upper.id) {
                return All(Why::Forwarded);
            }
            if self.routing.sources.takes_all_multicasts(upper.id) {
                return All(Why::Host);
            }
            if proxied(upper.id) {
                return All(Why::Proxied);
            }
            let known = self.routing.rib.interface(upper.id);
            let addresses = known.map_or(&upper.addresses, |known| &known.addresses);
            groups.extend(own_groups(upper.info.mac, addresses));
        }
        let interface = |id| self.configurations.current.interface(id);
        let mut all = self.uppers_of(open.id).map(|upper| upper.id).chain([open.id.into()]);
        if all.any(|id| interface(id).is_some_and(relays_v6)) {
            groups.insert(multicast_mac_v6(ALL_RELAYS));
        }
        let of_uppers = self.uppers_of(open.id).filter_map(|upper| upper.host.as_ref());
        for host in open.host.iter().chain(of_uppers) {
            match host.groups() {
                Ok(joined) => groups.extend(joined),
                Err(_) => return All(Why::Unknown),
            }
        }
        Groups(groups)
    }
}

/// Returns true if the interface relays DHCPv6.
fn relays_v6(interface: &Interface) -> bool {
    interface.settings.relay.iter().any(|server| server.is_ipv6())
}

/// Returns true if the interface answers neighbour solicitations for other hosts.
fn proxies_v6(interface: &Interface) -> bool {
    interface.settings.proxy.iter().any(|net| net.addr().is_ipv6())
}

/// Sets a device's filter; a device that does not take the list passes on all.
fn ask(open: &OpenPort, wanted: &WantedMulticasts) {
    let name = &open.name;
    let multicasts = match wanted {
        WantedMulticasts::All(_) => Multicasts::All,
        WantedMulticasts::Groups(groups) => {
            Multicasts::Groups(groups.iter().map(|group| group.0).collect())
        }
    };
    let was_refused = matches!(open.port.multicast_filter(), MulticastFilter::Refused(..));
    match open.port.set_multicasts(&multicasts) {
        Ok(MulticastFilter::Refused(count, errno)) if !was_refused => tracing::info!(
            "port \"{name}\": {} takes no list of {count} groups ({errno}) and passes on all multicasts",
            open.device
        ),
        Ok(_) => {}
        Err(errno) => tracing::warn!(
            "port \"{name}\": {} does not pass on all multicasts: {errno}; routing daemons and IPv6 may \
             miss some",
            open.device
        ),
    }
}

/// The groups of a port with these addresses that the router itself is in.
fn own_groups(mac: MacAddr, addresses: &[IpNet]) -> BTreeSet<MacAddr> {
    let solicited = addresses.iter().flat_map(|net| match net {
        // A network has an anycast address, too (RFC 4291, 2.6.1).
        IpNet::V6(net) => vec![solicited_node(net.addr()), solicited_node(net.network())],
        IpNet::V4(_) => Vec::new(),
    });
    // `fe80::` is the link's anycast address.
    let link = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
    let link = [link, link_local(mac)].map(solicited_node);
    let ip6 = [ALL_NODES, ALL_ROUTERS, ALL_SITE_ROUTERS].into_iter().chain(link);
    let ip6 = ip6.into_iter().chain(solicited).map(multicast_mac_v6);
    IP4_GROUPS.map(multicast_mac_v4).into_iter().chain(ip6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_is_in_the_groups_of_its_addresses() {
        let addresses = ["10.0.1.1/24", "fd00:1::1/64"].map(|net| net.parse().unwrap());
        let groups = own_groups(MacAddr([2, 0, 0, 0, 1, 0x2a]), &addresses);
        let expected = [
            "01:00:5e:00:00:01",
            "01:00:5e:00:00:02",
            "33:33:00:00:00:01",
            // ff02::2 and ff05::2
            "33:33:00:00:00:02",
            "33:33:ff:00:00:00",
            "33:33:ff:00:00:01",
            "33:33:ff:00:01:2a",
        ];
        assert_eq!(groups.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }
}

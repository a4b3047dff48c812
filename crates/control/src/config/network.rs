//! Parsing of addresses and networks, and the port of a next hop.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dataplane::interface::VrfId;
use ipnet::IpNet;

/// Parses `ADDRESS/LENGTH`; the error names the fault and the right notation.
pub(super) fn parse_prefix(text: &str, example: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        let length = if address.is_ipv4() { 24 } else { 64 };
        return Err(format!("prefix length missing; write \"{address}/{length}\", for example"));
    }
    text.parse().map_err(|_| format!("not an IP prefix; write it as {example}"))
}

/// Returns the reason why no host can have this address, if there is one. Link-local addresses are
/// valid; those in 240.0.0.0/4 are valid for a router that accepts them.
pub fn not_a_host(address: IpAddr, class_e: bool) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => match v4.octets() {
            [0, ..] => Some("in 0.0.0.0/8, \"this network\" (RFC 1122)"),
            [127, ..] => Some("a loopback address"),
            [224..=239, ..] => Some("a multicast address"),
            [255, 255, 255, 255] => Some("the broadcast address"),
            [240..=255, ..] if !class_e => Some(
                "in 240.0.0.0/4, reserved (RFC 1112) unless turnpike.forwarding { class_e = true }",
            ),
            _ => None,
        },
        IpAddr::V6(v6) if v6.is_unspecified() => Some("the unspecified address"),
        IpAddr::V6(v6) if v6.is_loopback() => Some("the loopback address"),
        IpAddr::V6(v6) if v6.is_multicast() => Some("a multicast address"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("an IPv4-mapped address"),
        IpAddr::V6(_) => None,
    }
}

/// Returns the reason why a host cannot have an address in its own network, if there is one: it is
/// the network's own or its broadcast address.
///
/// Point-to-point networks have no such addresses: /31 (RFC 3021), /127 (RFC 6164), /32, /128.
pub(super) fn names_the_network(address: IpAddr, network: &IpNet) -> Option<&'static str> {
    if network.max_prefix_len() - network.prefix_len() < 2 {
        return None;
    }
    if address == network.network() {
        let v4 = address.is_ipv4();
        return Some(if v4 {
            "the network's own address"
        } else {
            "the network's subnet-router anycast address (RFC 4291 2.6.1)"
        });
    }
    (address.is_ipv4() && address == network.broadcast())
        .then_some("the network's broadcast address")
}

/// Returns true for `fe80::/10`.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Location of a gateway; `P` identifies ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<P> {
    /// On one of this port's networks.
    Network(P),
    /// On this port's link, but on none of its networks: the port was given with the gateway.
    Link(P),
    /// On no port's network: another route resolves it.
    Elsewhere,
}

/// Reason why an address cannot be a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGateway<P> {
    /// No host can have this address; the kind of address.
    NotAHost(&'static str),
    /// It is the router's own address on this port.
    Own(P),
    /// It is link-local, and no port was given.
    LinkLocal,
    /// It is the address of this network or its broadcast address; the kind of address.
    NamesTheNetwork(&'static str, IpNet),
    /// It is on this network, which belongs to another port than the given one.
    OtherPort(P, IpNet),
}

/// Locates a gateway, by the same rule for the configuration and commands. `networks` are the
/// ports' own addresses with the lengths of their networks, `named` is the port given with the
/// gateway, `class_e` is true if hosts may have addresses in 240.0.0.0/4.
///
/// # Errors
/// The reason why it cannot be a gateway.
pub fn place_of_gateway<P: Copy + PartialEq>(
    networks: impl Iterator<Item = (P, IpNet)> + Clone,
    via: IpAddr,
    named: Option<P>,
    class_e: bool,
) -> Result<Place<P>, NoGateway<P>> {
    if let Some(reason) = not_a_host(via, class_e) {
        return Err(NoGateway::NotAHost(reason));
    }
    if let Some((port, _)) = networks.clone().find(|(_, net)| net.addr() == via) {
        return Err(NoGateway::Own(port));
    }
    if is_link_local(via) {
        return named.map(Place::Network).ok_or(NoGateway::LinkLocal);
    }
    // The smallest network that contains it; among equal ones that of the given port.
    let holding = networks
        .filter(|(_, net)| net.contains(&via))
        .max_by_key(|(port, net)| (net.prefix_len(), named == Some(*port)));
    let Some((port, net)) = holding else {
        return Ok(named.map_or(Place::Elsewhere, Place::Link));
    };
    if let Some(reason) = names_the_network(via, &net) {
        return Err(NoGateway::NamesTheNetwork(reason, net.trunc()));
    }
    match named {
        Some(named) if named != port => Err(NoGateway::OtherPort(port, net.trunc())),
        _ => Ok(Place::Network(port)),
    }
}

/// One address of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connected {
    /// The port's position.
    pub(super) port: usize,
    /// The port's VRF.
    pub(super) vrf: VrfId,
    /// The line of the address.
    pub(super) line: usize,
    /// The own address with its network's length.
    pub(super) net: IpNet,
}

/// All networks of ports, by VRF.
#[derive(Debug, Default)]
pub(super) struct Networks(BTreeMap<VrfId, Vec<Connected>>);

impl Networks {
    /// Returns the networks of a VRF.
    pub(super) fn of(&self, vrf: VrfId) -> impl Iterator<Item = &Connected> + Clone {
        self.0.get(&vrf).into_iter().flatten()
    }

    /// Returns the networks of all VRFs.
    pub(super) fn all(&self) -> impl Iterator<Item = &Connected> {
        self.0.values().flatten()
    }

    /// Adds a network.
    pub(super) fn add(&mut self, new: Connected) {
        self.0.entry(new.vrf).or_default().push(new);
    }

    /// Returns the port address of a VRF that equals this address, if there is one.
    pub(super) fn own(&self, vrf: VrfId, address: IpAddr) -> Option<&Connected> {
        self.of(vrf).find(|connected| connected.net.addr() == address)
    }
}

/// Checks the name of a network namespace: as used by `ip netns`, or an absolute path.
pub(super) fn netns_name(name: &str) -> Result<(), &'static str> {
    let path = name.starts_with('/');
    match name {
        "" | "." | ".." => Err("not a name; write it as `ip netns list` shows it"),
        _ if name.contains('\0') => Err("has a zero byte in it"),
        _ if !path && name.contains('/') => {
            Err("neither a name nor an absolute path; write it as `ip netns list` shows it")
        }
        _ => Ok(()),
    }
}

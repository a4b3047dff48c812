//! Routes for a part of the packets to a prefix (by TOS, by source), and routes that encapsulate.
//!
//! The kernel may have a million routes, so that a dump takes about a second: they are read for reports alone. A fast path
//! follows the kernel's routes anyway, and leaves the prefixes of these to the kernel by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ipnet::IpNet;

use crate::finding::{Action, Family, Finding, Kind, Packets, Place};
use crate::netlink::{Attribute, Connection, Raw, Request, u16_at, u32_at};
use crate::rules::address;

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_GETNEXTHOP: u16 = 106;

/// Bytes of `struct rtmsg`.
const FIXED: usize = 12;
/// Bytes of `struct nhmsg`.
const NEXTHOP_FIXED: usize = 8;
/// Bytes of `struct rtnexthop`.
const HOP_FIXED: usize = 8;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_MULTIPATH: u16 = 9;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_NH_ID: u16 = 30;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_ENCAP_TYPE: u16 = 7;
const RTM_F_CLONED: u32 = 0x200;

/// Bytes of `struct nexthop_grp`.
const MEMBER: usize = 8;

/// Most routes in a finding as examples.
const EXAMPLES: usize = 4;

/// Reason why a route is not one for all packets to its prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Special {
    Tos(u8),
    From(IpNet),
    Encapsulates(&'static str),
}

/// A route of that kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub to: IpNet,
    pub special: Special,
}

/// The nexthop objects that encapsulate, with the way they do.
#[derive(Debug, Default)]
struct Nexthops {
    encapsulating: BTreeMap<u32, &'static str>,
    groups: BTreeMap<u32, Vec<u32>>,
}

impl Nexthops {
    /// Adds an object of `RTM_NEWNEXTHOP`.
    fn add(&mut self, raw: &Raw<'_>) -> Option<()> {
        let (_, attributes) =
            raw.split::<NEXTHOP_FIXED>().filter(|_| raw.kind == RTM_NEWNEXTHOP)?;
        let id = attributes.get(NHA_ID).and_then(Attribute::u32)?;
        if let Some(encapsulation) = encapsulation(attributes.get(NHA_ENCAP_TYPE)) {
            self.encapsulating.insert(id, encapsulation);
        }
        if let Some(group) = attributes.get(NHA_GROUP) {
            let members = group.value.chunks_exact(MEMBER).filter_map(|member| u32_at(member, 0));
            self.groups.insert(id, members.collect());
        }
        Some(())
    }

    fn encapsulation(&self, id: u32) -> Option<&'static str> {
        let members = self.groups.get(&id).into_iter().flatten();
        members.chain([&id]).find_map(|id| self.encapsulating.get(id).copied())
    }
}

/// Reads the routes that are not for all packets to their prefix, and those that encapsulate.
///
/// # Errors
/// The kernel refuses.
pub fn read(connection: &mut Connection) -> io::Result<BTreeSet<Route>> {
    let mut nexthops = Nexthops::default();
    let request = Request::new(RTM_GETNEXTHOP, &[0; NEXTHOP_FIXED]);
    let read = connection.dump(&request, |raw| nexthops.add(raw));
    // Kernels before 5.3 have no such objects.
    let nexthops = read.map_or_else(|_| Nexthops::default(), |_| nexthops);
    let mut routes = BTreeSet::new();
    for family in Family::BOTH {
        let mut fixed = [0; FIXED];
        fixed[0] = family.number();
        routes.extend(
            connection.dump(&Request::new(RTM_GETROUTE, &fixed), |raw| of(raw, &nexthops))?,
        );
    }
    Ok(routes)
}

/// Reads a route; `None` for one for all packets to its prefix.
fn of(raw: &Raw<'_>, nexthops: &Nexthops) -> Option<Route> {
    let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == RTM_NEWROUTE)?;
    let family = Family::of(fixed[0])?;
    if u32_at(fixed, 8)? & RTM_F_CLONED != 0 {
        return None;
    }
    let (mut to, mut from, mut encaps) = (None, None, None);
    for attribute in attributes.iter() {
        match attribute.kind {
            RTA_DST => to = address(attribute.value),
            RTA_SRC => from = address(attribute.value),
            RTA_ENCAP_TYPE => encaps = encapsulation(Some(attribute)),
            RTA_MULTIPATH => encaps = encaps.or_else(|| of_hops(attribute.value)),
            RTA_NH_ID => encaps = encaps.or_else(|| nexthops.encapsulation(attribute.u32()?)),
            _ => {}
        }
    }
    let special = match (encaps, fixed[3], fixed[2]) {
        (Some(encapsulation), ..) => Special::Encapsulates(encapsulation),
        (None, tos, 0) if tos != 0 => Special::Tos(tos),
        (None, _, length) if length != 0 => Special::From(net(family, from, length)?),
        _ => return None,
    };
    Some(Route { to: net(family, to, fixed[1])?, special })
}

/// Returns the encapsulation of the first next hop that has one.
fn of_hops(mut bytes: &[u8]) -> Option<&'static str> {
    loop {
        let length = usize::from(u16_at(bytes, 0)?);
        let hop = bytes.get(..length).filter(|_| length >= HOP_FIXED)?;
        let attributes = Attribute { kind: 0, value: &hop[HOP_FIXED..] }.nested();
        if let Some(encapsulation) = encapsulation(attributes.get(RTA_ENCAP_TYPE)) {
            return Some(encapsulation);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn net(family: Family, address: Option<std::net::IpAddr>, length: u8) -> Option<IpNet> {
    let unspecified = match family {
        Family::Ip4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
        Family::Ip6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    IpNet::new(address.unwrap_or(unspecified), length).ok()
}

/// Returns the name of `LWTUNNEL_ENCAP_*`.
fn encapsulation(attribute: Option<Attribute<'_>>) -> Option<&'static str> {
    Some(match u16_at(attribute?.value, 0)? {
        0 => return None,
        1 => "mpls",
        2 => "ip",
        3 => "ila",
        4 => "ip6",
        5 => "seg6",
        6 => "bpf",
        7 => "seg6local",
        8 => "rpl",
        9 => "ioam6",
        10 => "xfrm",
        _ => "unknown",
    })
}

/// Reads dumps of nexthop objects and routes.
#[cfg(test)]
pub fn of_dumps<'m>(
    objects: impl Iterator<Item = Raw<'m>>,
    routes: impl Iterator<Item = Raw<'m>>,
) -> BTreeSet<Route> {
    let mut nexthops = Nexthops::default();
    objects.for_each(|raw| {
        nexthops.add(&raw);
    });
    routes.filter_map(|raw| of(&raw, &nexthops)).collect()
}

/// Returns the findings: one for each reason and family.
pub fn findings(routes: &BTreeSet<Route>) -> Vec<Finding> {
    let of = |family: Family| {
        routes.iter().filter(move |route| route.to.addr().is_ipv4() == (family == Family::Ip4))
    };
    let both = Family::BOTH.into_iter().flat_map(|family| {
        let (encaps, parts): (Vec<&Route>, Vec<&Route>) =
            of(family).partition(|route| matches!(route.special, Special::Encapsulates(_)));
        let encaps = finding(Kind::Encapsulation, family, &encaps, "encapsulate");
        encaps.into_iter().chain(finding(
            Kind::Routes,
            family,
            &parts,
            "are for a part of the packets to their prefix",
        ))
    });
    both.collect()
}

fn finding(kind: Kind, family: Family, routes: &[&Route], effect: &str) -> Option<Finding> {
    let examples: Vec<String> = routes.iter().take(EXAMPLES).map(|route| text(route)).collect();
    let count = routes.len();
    if count == 0 {
        return None;
    }
    let message = format!(
        "{} routes that {effect}: {count} ({}{}); packets to their prefixes stay with the kernel",
        family.name(),
        examples.join(", "),
        if count > EXAMPLES { ", …" } else { "" },
    );
    let to: BTreeSet<IpNet> = routes.iter().map(|route| route.to).collect();
    let packets = Packets::To(to.into_iter().collect());
    Some(Finding::new(
        kind,
        Place::Routes { family, examples, count },
        packets,
        Action::Stay,
        message,
    ))
}

fn text(route: &Route) -> String {
    let to = route.to;
    match &route.special {
        Special::Tos(tos) => format!("{to} tos {tos:#x}"),
        Special::From(from) => format!("{to} from {from}"),
        Special::Encapsulates(how) => format!("{to} encap {how}"),
    }
}

//! Interfaces: kinds, masters, devices on top of them, XDP programs.

use std::collections::BTreeMap;

use crate::Options;
use crate::finding::{Action, Finding, Kind, Packets, Place};
use crate::netlink::{Attribute, Raw, Request, u16_at, u32_at};
use crate::xdp::{self, Name};

pub const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;

/// Bytes of `struct ifinfomsg`.
const FIXED: usize = 16;

// `linux/if_link.h`.
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

const BOND: &str = "bond";
const MACVLAN_MODE_PASSTHRU: u32 = 8;
/// `linux/if_arp.h`.
const ARPHRD_ETHER: u16 = 1;
const IFF_UP: u32 = 1;

/// Most names in a message.
const NAMES: usize = 8;

/// An XDP program of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its number.
    pub id: u32,
    /// `native`, `generic`, `offloaded`.
    pub mode: &'static str,
    /// Its name, once it has been read.
    pub name: Name,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `ARPHRD_*`.
    pub hardware: u16,
    /// `IFF_*`.
    pub flags: u32,
    /// Kind of virtual device: `veth`, `bridge`; empty: a NIC.
    pub kind: String,
    pub master: Option<u32>,
    /// The interface that it is on, if that is of this namespace.
    pub parent: Option<u32>,
    pub macvlan_mode: Option<u32>,
    pub programs: Vec<Program>,
}

impl Link {
    /// Reads `RTM_NEWLINK`.
    pub fn read(raw: &Raw<'_>) -> Option<Self> {
        let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == RTM_NEWLINK)?;
        let info = attributes.nested(IFLA_LINKINFO);
        let data = info.nested(IFLA_INFO_DATA);
        let kind = info.text(IFLA_INFO_KIND);
        let is_elsewhere = attributes.get(IFLA_LINK_NETNSID).is_some();
        let number = |kind| attributes.get(kind).and_then(Attribute::u32);
        Some(Self {
            index: u32_at(fixed, 4)?,
            name: attributes.text(IFLA_IFNAME),
            hardware: u16_at(fixed, 2)?,
            flags: u32_at(fixed, 8)?,
            macvlan_mode: matches!(kind.as_str(), "macvlan" | "macvtap")
                .then(|| data.get(IFLA_MACVLAN_MODE).and_then(Attribute::u32))
                .flatten(),
            kind,
            master: number(IFLA_MASTER).filter(|&index| index != 0),
            parent: number(IFLA_LINK).filter(|&index| index != 0 && !is_elsewhere),
            programs: programs(attributes.nested(IFLA_XDP)),
        })
    }
}

fn programs(xdp: crate::netlink::Attributes<'_>) -> Vec<Program> {
    let id = |kind| xdp.get(kind).and_then(Attribute::u32).filter(|&id| id != 0);
    let by_mode = [
        (IFLA_XDP_DRV_PROG_ID, "native"),
        (IFLA_XDP_SKB_PROG_ID, "generic"),
        (IFLA_XDP_HW_PROG_ID, "offloaded"),
    ];
    let programs = by_mode.into_iter().filter_map(|(kind, mode)| Some(program(id(kind)?, mode)));
    let programs: Vec<Program> = programs.collect();
    if !programs.is_empty() {
        return programs;
    }
    // Kernels before 4.20 have one number only.
    let mode = match xdp.get(IFLA_XDP_ATTACHED).and_then(Attribute::u8) {
        Some(1) => "native",
        Some(3) => "offloaded",
        _ => "generic",
    };
    id(IFLA_XDP_PROG_ID).map(|id| program(id, mode)).into_iter().collect()
}

fn program(id: u32, mode: &'static str) -> Program {
    Program { id, mode, name: Name::default() }
}

/// Returns the request for all interfaces.
pub fn request() -> Request {
    Request::new(RTM_GETLINK, &[0; FIXED])
}

/// The interfaces of the namespace, and those to be accelerated among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    pub by_index: BTreeMap<u32, Link>,
    /// The names of those to be accelerated, in the order given.
    pub wanted: Vec<String>,
}

impl Links {
    pub fn new(links: Vec<Link>, wanted: &[String]) -> Self {
        let by_index = links.into_iter().map(|link| (link.index, link)).collect();
        let mut names: Vec<String> = Vec::new();
        for name in wanted {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Self { by_index, wanted: names }
    }

    fn find(&self, name: &str) -> Option<&Link> {
        self.by_index.values().find(|link| link.name == name)
    }

    /// Reads the names of the programs on interfaces to be accelerated.
    pub fn name_programs(&mut self) {
        let wanted = &self.wanted;
        for link in self.by_index.values_mut().filter(|link| wanted.contains(&link.name)) {
            for program in &mut link.programs {
                program.name = Name::read(program.id, link.index);
            }
        }
    }

    /// Returns the interfaces to be accelerated that exist.
    pub fn taken(&self) -> impl Iterator<Item = &Link> {
        self.wanted.iter().filter_map(|name| self.find(name))
    }

    /// Returns the interfaces to be accelerated that packets are routed over: without the ports of bonds among them.
    pub fn routed(&self) -> impl Iterator<Item = &Link> {
        self.taken().filter(|link| !self.is_bond_port(link))
    }

    /// Returns true for a port of a bond that is to be accelerated.
    fn is_bond_port(&self, link: &Link) -> bool {
        let master = link.master.and_then(|index| self.by_index.get(&index));
        master.is_some_and(|master| master.kind == BOND && self.is_taken(&master.name))
    }

    /// Returns true if this is the name of an interface to be accelerated.
    pub fn is_taken(&self, name: &str) -> bool {
        self.wanted.iter().any(|wanted| wanted == name)
    }

    /// Returns true if this is the index of an interface to be accelerated.
    pub fn is_taken_index(&self, index: u32) -> bool {
        self.taken().any(|link| link.index == index)
    }

    fn known(&self) -> String {
        let ethernet = self.by_index.values().filter(|link| link.hardware == ARPHRD_ETHER);
        some(ethernet.map(|link| link.name.as_str()))
    }

    /// Returns the findings.
    pub fn findings(&self, options: &Options) -> Vec<Finding> {
        let of_wanted = self.wanted.iter().flat_map(|name| match self.find(name) {
            Some(link) => self.of_link(link, options),
            None => vec![self.absent(name)],
        });
        of_wanted.chain(self.others()).collect()
    }

    fn absent(&self, name: &str) -> Finding {
        let message = format!(
            "interface {name} not found in this network namespace; known: {}",
            self.known()
        );
        Finding::refuse(Kind::Interface, at(name), Packets::All, message, "name another")
    }

    fn of_link(&self, link: &Link, options: &Options) -> Vec<Finding> {
        if link.hardware != ARPHRD_ETHER {
            let message = format!("interface {} has no Ethernet frames", link.name);
            return vec![refuse(Kind::Interface, link, message, "leave it out")];
        }
        let own = own_kind(link, options).into_iter();
        let is_known = options.bonds && self.is_bond_port(link);
        let master = link.master.filter(|_| !is_known).map(|index| self.of_master(link, index));
        let programs =
            link.programs.iter().filter(|program| !options.own_programs.contains(&program.id));
        let programs = programs.map(|program| of_program(link, program));
        own.chain(master).chain(programs).chain(self.on_top(link)).collect()
    }

    fn of_master(&self, link: &Link, index: u32) -> Finding {
        let (name, kind) = match self.by_index.get(&index) {
            Some(master) => (master.name.clone(), master.kind.as_str()),
            None => (format!("number {index}"), "unknown"),
        };
        let of = &link.name;
        match kind {
            "vrf" => refuse(
                Kind::Vrf,
                link,
                format!("{of} is in VRF {name}, whose table the programs do not have"),
                &format!("take it out: ip link set {of} nomaster, or leave it out"),
            ),
            BOND | "team" => refuse(
                Kind::Bond,
                link,
                format!("{of} is a member of {kind} {name}, whose packets it carries"),
                &format!(
                    "take it out: ip link set {of} nomaster; or, of a bond, accelerate {name} --in-kernel"
                ),
            ),
            "bridge" => refuse(
                Kind::Bridge,
                link,
                format!("{of} is a port of bridge {name}, which decides about its frames"),
                &format!("take it out: ip link set {of} nomaster"),
            ),
            _ => refuse(
                Kind::Bridge,
                link,
                format!("{of} belongs to {name} ({kind}), which takes its frames"),
                &format!("take it out of {name}"),
            ),
        }
    }

    /// Returns the findings about devices that get frames of this one before IP does.
    fn on_top(&self, link: &Link) -> Vec<Finding> {
        let above = self.by_index.values().filter(|above| above.parent == Some(link.index));
        above.filter_map(|above| of_device_above(link, above)).collect()
    }

    /// Returns the finding about the interfaces that are not to be accelerated.
    fn others(&self) -> Option<Finding> {
        let is_other = |link: &&Link| {
            link.flags & IFF_UP != 0 && link.name != "lo" && !self.is_taken(&link.name)
        };
        let others: Vec<&Link> = self.by_index.values().filter(is_other).collect();
        let first = others.first()?;
        let names = some(others.iter().map(|link| link.name.as_str()));
        let message =
            format!("packets from and to other interfaces ({names}) stay with the kernel");
        let all = others.iter().map(|link| link.name.clone()).collect();
        let packets = Packets::ReceivedOn(all);
        Some(Finding::new(Kind::Interface, at(&first.name), packets, Action::Stay, message))
    }
}

/// Returns the finding about devices that are no place for a program of their own.
fn own_kind(link: &Link, options: &Options) -> Option<Finding> {
    let (name, kind) = (&link.name, link.kind.as_str());
    match kind {
        BOND if options.bonds => None,
        BOND => Some(refuse(
            Kind::Bond,
            link,
            format!("{name} is a bond: AF_XDP sockets get no packets of its members by it"),
            "accelerate --in-kernel takes bonds; else leave it out",
        )),
        "team" => Some(refuse(
            Kind::Bond,
            link,
            format!("{name} is a team: XDP programs get no packets of its members by it"),
            "leave it out",
        )),
        "bridge" => Some(refuse(
            Kind::Bridge,
            link,
            format!("{name} is a bridge, whose frames have passed its ports' rules already"),
            "leave it out",
        )),
        _ => None,
    }
}

fn of_program(link: &Link, program: &Program) -> Finding {
    let (message, way_out) = xdp::words(&link.name, program);
    refuse(Kind::Xdp, link, message, &way_out)
}

fn of_device_above(link: &Link, above: &Link) -> Option<Finding> {
    let (name, on_top, kind) = (&link.name, &above.name, above.kind.as_str());
    match kind {
        "ipvlan" | "ipvtap" => Some(refuse(
            Kind::Macvlan,
            link,
            format!(
                "{kind} {on_top} takes packets for its addresses from {name}, with the MAC of {name}"
            ),
            &format!("remove {on_top}, or leave {name} out"),
        )),
        "macvlan" | "macvtap" if above.macvlan_mode == Some(MACVLAN_MODE_PASSTHRU) => Some(refuse(
            Kind::Macvlan,
            link,
            format!("{kind} {on_top} takes all packets of {name} (mode passthru)"),
            &format!("remove {on_top}, or leave {name} out"),
        )),
        "macvlan" | "macvtap" => {
            let message =
                format!("packets for the MAC of {kind} {on_top} on {name} stay with the kernel");
            Some(Finding::new(Kind::Macvlan, at(on_top), on(on_top), Action::Stay, message))
        }
        _ => None,
    }
}

fn at(name: &str) -> Place {
    Place::Interface { name: name.to_owned() }
}

fn on(name: &str) -> Packets {
    Packets::ReceivedOn(vec![name.to_owned()])
}

fn refuse(kind: Kind, link: &Link, message: String, way_out: &str) -> Finding {
    Finding::refuse(kind, at(&link.name), on(&link.name), message, way_out)
}

/// Returns the first of these names, and the number of the others.
pub fn some<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown = names.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, master: Option<u32>) -> Link {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        Link { index, name, kind, master, hardware: ARPHRD_ETHER, ..Link::default() }
    }

    #[test]
    fn a_bond_is_accelerated_with_its_ports_or_refused() {
        let all = || vec![link(2, "lag", BOND, None), link(3, "eth0", "", Some(2))];
        let of = |names: &[&str], bonds| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let links = Links::new(all(), &names);
            let options = Options { bonds, ..Options::default() };
            let routed: Vec<_> = links.routed().map(|link| link.name.clone()).collect();
            (
                links.findings(&options).iter().filter(|of| of.action == Action::Refuse).count(),
                routed,
            )
        };
        let lag = vec!["lag".to_owned()];
        assert_eq!(of(&["lag", "eth0"], true), (0, lag.clone()));
        assert_eq!(of(&["lag"], false), (1, lag));
        assert_eq!(of(&["eth0"], true), (1, vec!["eth0".to_owned()]), "a port alone");
    }
}

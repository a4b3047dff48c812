//! The pattern of an IP router: addresses, routes and neighbours instead of a graph.
//!
//! ```text
//!  FromDevice -> Classifier --ARP request--> ARPResponder -> ToDevice
//!                           --ARP reply----> Tee -> [1]ARPQuerier, ToHost
//!                           --IP-----------> Paint -> Strip(14) -> CheckIPHeader -> TABLE
//!                           --else---------> Discard
//!  TABLE[k] -> DropBroadcasts -> PaintTee -> IPGWOptions -> FixIPSrc -> DecIPTTL -> IPFragmenter -> ARPQuerier
//!           -> ToDevice;       the second outputs -> ICMPError -> TABLE
//!  TABLE[0] -> ToHost
//! ```
//!
//! This is the configuration of Click's paper, and of the files derived from it: everything in it is a part of Turnpike,
//! which its default graph and its slow path do. So the file is read for what is particular to it:
//!
//! | element | becomes |
//! |---|---|
//! | `ARPQuerier(IP, ETH)` in front of a device | the address and the MAC of its port |
//! | `ARPResponder(IP ETH, NET ETH)` | likewise; `proxy` for networks |
//! | route to an output with a device | the port's network, if it contains the address; else a route |
//! | route to `ToHost`, `ICMPPingResponder` and the like | the router's own address |
//! | route to `Discard` | a route that drops |
//! | `SetIPAddress(ADDRESS)` in front of an `ARPQuerier` | the gateway of the routes to this output |
//! | `EtherEncap(0x0800, SRC, DST)` in place of `ARPQuerier` | a static neighbour with this MAC |
//! | `PaintTee` with `ICMPError(…, redirect)` | `redirects` of the port |
//! | `IPFragmenter(MTU)`, `IPOutputCombo(…, MTU)` | the port's `mtu`, if it is not 1500 |
//!
//! Elements of some classes may be between those of the pattern: they become steps of the default graph, see
//! `graph/splice.rs`. Any other one is an error, as its work would not be done.

mod input;
mod output;
mod print;
mod reading;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::Ipv4Addr;

use ::click::{Error, Errors};
use ipnet::Ipv4Net;

use super::elements::{LOOKUPS, Route, Step, device, is_shaper, routes};
use super::graph::{Devices, Part, devices, lock_notes};
use super::handlers::{Become, Becomes};
use super::lua::Statements;
use super::net::Net;

/// Classes that only an IP router has.
const OF_ROUTERS: [&str; 7] = [
    "ARPQuerier",
    "ICMPError",
    "IPGWOptions",
    "IPFragmenter",
    "IPOutputCombo",
    "IPInputCombo",
    "FixIPSrc",
];

/// Classes on the path to the table whose work is done anyway.
const INPUT: [&str; 12] = [
    "Paint",
    "Strip",
    "CheckIPHeader",
    "CheckIPHeader2",
    "MarkIPHeader",
    "GetIPAddress",
    "IPInputCombo",
    "HostEtherFilter",
    "Null",
    "Counter",
    "Print",
    "IPPrint",
];

/// Likewise behind the table.
const OUTPUT: [&str; 12] = [
    "DropBroadcasts",
    "FixIPSrc",
    "DecIPTTL",
    "IPGWOptions",
    "PaintTee",
    "Paint",
    "Null",
    "Counter",
    "Print",
    "IPPrint",
    "Unqueue",
    "CheckIPHeader",
];

/// Classes that become steps: in front of the table, and between it and the `ARPQuerier`s.
const STEPS: [&str; 19] = [
    "IPFilter",
    "IPClassifier",
    "Classifier",
    "CheckPaint",
    "PaintSwitch",
    "Switch",
    "StaticSwitch",
    "RoundRobinSwitch",
    "RandomSwitch",
    "HashSwitch",
    "StrideSwitch",
    "RandomSample",
    "RatedSplitter",
    "BandwidthRatedSplitter",
    "CheckLength",
    "CheckTCPHeader",
    "CheckUDPHeader",
    "CheckICMPHeader",
    "SetIPDSCP",
];

/// Likewise, behind an `ARPQuerier`: they hold packets, or choose where these are held. Few packets of the slow path pass
/// them, so none is here to refuse packets.
const STEPS_IN_FRONT_OF_DEVICES: [&str; 14] = [
    "RED",
    "DelayShaper",
    "DelayUnqueue",
    "RoundRobinSched",
    "SimpleRoundRobinSched",
    "PrioSched",
    "SimplePrioSched",
    "DRRSched",
    "StrideSched",
    "PullSwitch",
    "Classifier",
    "IPClassifier",
    "PaintSwitch",
    "HashSwitch",
];

/// Classes that take packets for the router itself.
const LOCAL: [&str; 7] = [
    "ToHost",
    "ToHostSniffers",
    "KernelTun",
    "KernelTap",
    "ICMPPingResponder",
    "IPReassembler",
    "IPClassifier",
];

/// Classes that have an effect that Turnpike shows by its own counters.
const SHOWN: [&str; 4] = ["Counter", "AverageCounter", "Print", "IPPrint"];

/// Returns true for a configuration with a routing table and a router's elements around it.
pub(super) fn is_one(net: &Net<'_>) -> bool {
    !net.of_class(&LOOKUPS).is_empty() && !net.of_class(&OF_ROUTERS).is_empty()
}

/// Converts such a configuration; returns what each element becomes.
pub(super) fn convert(net: &Net<'_>, statements: &mut Statements) -> Result<Becomes, Errors> {
    let tables = net.of_class(&LOOKUPS);
    let Some(&table) = tables.first() else { return Ok(Becomes::new()) };
    if let Some(&second) = tables.get(1) {
        return Err(net.error(second, "a second routing table is not supported yet").into());
    }
    let devices = devices(net)?;
    let mut router = Router::new(net, table);
    let routes = routes(net, table).map_err(|message| net.error(table, &message))?;
    let mut errors = Vec::new();
    let mut keep = |found: Result<(), Error>| errors.extend(found.err());
    for &from in devices.values().flat_map(|device| &device.from) {
        keep(router.input(from));
    }
    let mut ways = Vec::new();
    for output in 0..net.outputs(table) {
        match router.output(output) {
            Ok(way) => ways.push(way),
            Err(error) => {
                keep(Err(error));
                ways.push(TableOutput::Local);
            }
        }
    }
    for route in routes.iter().filter(|route| route.output >= ways.len()) {
        let message = format!("route {}: output {} leads nowhere", route.prefix, route.output);
        keep(Err(net.error(table, &message)));
    }
    // What is local is known when all ports are.
    for route in routes.iter().filter(|route| route.output < ways.len()) {
        if matches!(ways[route.output], TableOutput::Local) && !router.may_be_local(route.prefix) {
            let message = format!(
                "route {}: a network of only the router's own addresses is not supported yet; name the \
                 addresses, or lead it to Discard",
                route.prefix
            );
            errors.push(net.error(table, &message));
        }
    }
    router.take_macs();
    errors.extend(router.unlike(&routes));
    Errors::check(errors)?;
    router.others()?;
    router.notes(&routes, &ways, statements);
    router.print(&devices, &routes, &ways, statements);
    let mut becomes = router.part(&devices, &routes).splice(net, &devices, statements)?;
    lock_notes(net, statements);
    router.left_out(&becomes, statements);
    if !router.has_steps_behind {
        router.becomes(&devices, &ways, &mut becomes);
    }
    Ok(becomes)
}

/// The destination of an output of the table.
enum TableOutput {
    /// By the device of this name.
    Device(String, Hop),
    Local,
    Drop,
    /// Refused with an ICMP error, by a route with this setting.
    Refuse(&'static str),
}

/// The next hop of packets that leave by a device.
enum Hop {
    /// The gateway of their route, or their destination.
    Own,
    /// That of this address.
    Gateway(Ipv4Addr),
    /// That with this MAC.
    Mac(String),
}

/// What the file says of a device.
#[derive(Default)]
struct Port {
    address: Option<Ipv4Addr>,
    mac: Option<String>,
    proxy: Vec<Ipv4Net>,
    mtu: Option<i64>,
    redirects: bool,
}

struct Router<'a> {
    net: &'a Net<'a>,
    table: usize,
    /// Elements that are part of the pattern, or become steps.
    reached: HashSet<usize>,
    /// By device.
    ports: BTreeMap<String, Port>,
    /// Elements that become steps.
    steps: HashSet<usize>,
    /// Some of them are between the table and an `ARPQuerier`, or `ToHost`.
    has_steps_behind: bool,
    /// Elements of devices to which packets come without a decremented TTL.
    without_ttl: BTreeSet<usize>,
    /// Those with devices, not yet ports.
    part: Part,
    /// Addresses and MACs that must be the router's.
    own: Vec<(usize, Own)>,
}

/// Something of an element that must be as with the rest of the router.
enum Own {
    Address(Ipv4Addr),
    /// The address is a broadcast address of a network.
    Broadcast(Ipv4Addr),
    /// The MAC is that of a device.
    Mac(String, String),
}

impl<'a> Router<'a> {
    fn new(net: &'a Net<'a>, table: usize) -> Self {
        let (reached, part) = (HashSet::from([table]), Part::default());
        let (ports, steps, own) = (BTreeMap::new(), HashSet::new(), Vec::new());
        Self {
            net,
            table,
            reached,
            ports,
            steps,
            has_steps_behind: false,
            without_ttl: BTreeSet::new(),
            part,
            own,
        }
    }

    fn device(&self, element: usize) -> Result<String, Error> {
        device(self.net, element).map_err(|why| self.net.error(element, &why))
    }

    fn foreign(&self, element: usize) -> Error {
        let message = "it is no part of an IP router as Turnpike knows it, and is not supported here yet; \
                       docs/click.md shows the pattern";
        self.net.error(element, message)
    }

    /// Notes elements without effect.
    fn left_out(&self, becomes: &Becomes, statements: &mut Statements) {
        for number in self.net.of_class(&SHOWN) {
            let is_step = becomes.get(&number).is_some_and(|of| of.step.is_some());
            if self.reached.contains(&number) && !is_step {
                let of = self.net.element(number);
                statements.note(format!(
                    "{}: element \"{}\" ({}) is left out; turnpike show graph and show counters count the packets",
                    of.place, of.name, of.class
                ));
            }
        }
    }

    /// Refuses elements with packets that are not part of the pattern.
    fn others(&self) -> Result<(), Errors> {
        let mut errors = Vec::new();
        for number in
            (0..self.net.flat.elements.len()).filter(|number| !self.reached.contains(number))
        {
            let class = self.net.class(number);
            let has_packets =
                self.net.targets(number).next().is_some() || !self.net.sources(number).is_empty();
            if has_packets && !matches!(class, "Idle" | "Discard") && !self.is_unfed(number) {
                errors.push(self.foreign(number));
            }
        }
        Errors::check(errors)
    }

    /// Notes what is done otherwise than Click does it.
    fn notes(&self, routes: &[Route], ways: &[TableOutput], statements: &mut Statements) {
        let place = &self.net.element(self.table).place;
        if let Some(host) = self.net.of_class(&["ToHost", "ToHostSniffers"]).first() {
            let place = &self.net.element(*host).place;
            statements.note(format!(
                "{place}: packets for the router are answered by Turnpike itself; with host = true of a port they go to \
                 the kernel"
            ));
        } else if ways.iter().any(|way| matches!(way, TableOutput::Local)) {
            statements.note(format!(
                "{place}: packets for the router are answered by Turnpike itself, not dropped"
            ));
        }
        let own = |route: &&Route| {
            route.prefix.prefix_len() == 32
                && matches!(ways[route.output], TableOutput::Drop | TableOutput::Refuse(_))
                && self.ports.values().any(|port| port.address == Some(route.prefix.addr()))
        };
        for route in routes.iter().filter(own).filter(|route| !self.has_steps(route.output)) {
            let address = route.prefix.addr();
            statements.note(format!(
                "{place}: packets to {address}, an address of the router, are answered by Turnpike itself, not dropped"
            ));
        }
        for element in &self.without_ttl {
            let of = self.net.element(*element);
            statements.note(format!(
                "{}: packets to \"{}\" pass no DecIPTTL; their TTL is decremented all the same",
                of.place, of.name
            ));
        }
        if !self.part.steps_out.is_empty() {
            statements.note(format!(
                "{place}: elements behind ARPQuerier see no packets of the router itself, and none that have waited for a \
                 neighbour's MAC"
            ));
        }
        if self.has_steps_behind {
            let name = &self.net.element(self.table).name;
            statements.note(format!(
                "{place}: handlers of \"{name}\" do not change its routes, as elements behind it depend on them"
            ));
        }
    }

    /// Returns true if elements behind an output of the table become steps.
    fn has_steps(&self, output: usize) -> bool {
        !self.part.direct.contains(&(self.table, output))
    }

    /// The MAC of a port that no other element has said.
    fn take_macs(&mut self) {
        for (_, own) in &self.own {
            if let Own::Mac(device, mac) = own {
                let port = self.ports.entry(device.clone()).or_default();
                port.mac.get_or_insert_with(|| mac.clone());
            }
        }
    }

    /// Errors about what should be the router's own, and is not.
    fn unlike(&self, routes: &[Route]) -> Vec<Error> {
        let error = |(element, own): &(usize, Own)| {
            let message = match own {
                Own::Address(address) => {
                    let is_own = self.ports.values().any(|port| port.address == Some(*address));
                    (!is_own).then(|| format!("{address} is no address of the router"))
                }
                Own::Broadcast(address) => (!self.is_broadcast(*address, routes)).then(|| {
                    format!(
                        "source {address}: here it refuses broadcast addresses of the router's networks only; use \
                         IPFilter for others"
                    )
                }),
                Own::Mac(device, mac) => {
                    let of = self.ports.get(device).and_then(|port| port.mac.as_ref());
                    (of != Some(mac)).then(|| {
                        format!("{mac} is not the MAC of \"{device}\", which takes frames to its own only")
                    })
                }
            };
            message.map(|message| self.net.error(*element, &message))
        };
        self.own.iter().filter_map(error).collect()
    }

    /// The part that becomes steps, by ports.
    fn part(&mut self, devices: &Devices, routes: &[Route]) -> Part {
        let part = std::mem::take(&mut self.part);
        let ports = |of: Vec<(usize, String)>| {
            let port =
                |(element, device): (usize, String)| (element, devices[&device].port.clone());
            of.into_iter().map(port).collect::<Vec<_>>()
        };
        let inward = ports(part.inward);
        let has_steps = !self.steps.is_empty();
        let steps_in = inward.iter().filter(|_| has_steps).map(|(_, port)| port.clone()).collect();
        let sorter =
            self.has_steps_behind.then(|| Step::sorter(routes, self.net.outputs(self.table)));
        let mut direct = part.direct;
        direct.insert((self.table, self.net.outputs(self.table)));
        Part {
            inward,
            outward: ports(part.outward),
            quiet: part.quiet,
            led: part.led,
            direct,
            table: Some((self.table, sorter)),
            steps_in,
            steps_out: part.steps_out.iter().map(|device| devices[device].port.clone()).collect(),
        }
    }

    /// The table becomes the RIB, whose routes lead to these ports.
    fn becomes(&self, devices: &Devices, ways: &[TableOutput], becomes: &mut Becomes) {
        let way = |way: &TableOutput| match way {
            TableOutput::Device(name, _) => devices[name].port.clone(),
            TableOutput::Local => "local".to_owned(),
            TableOutput::Drop | TableOutput::Refuse(_) => "drop".to_owned(),
        };
        let ways = ways.iter().map(way).collect();
        becomes.insert(self.table, Become { ways, ..Become::default() });
    }

    /// Returns true if no packets reach an element.
    fn is_unfed(&self, element: usize) -> bool {
        let mut open = vec![element];
        let mut seen = HashSet::new();
        while let Some(at) = open.pop() {
            if !seen.insert(at) {
                continue;
            }
            let sources = self.net.sources(at);
            if sources.is_empty() && self.net.class(at) != "Idle" {
                return false;
            }
            open.extend(sources.iter().map(|&(from, _)| from));
        }
        true
    }
}

/// Returns true for elements that hold packets in front of a device, or choose where these are held.
fn is_in_front_of_device(class: &str) -> bool {
    is_shaper(class) || STEPS_IN_FRONT_OF_DEVICES.contains(&class)
}

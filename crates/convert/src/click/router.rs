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
//! An element that is no part of the pattern is an error, as its work would not be done.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use ::click::args::Args;
use ::click::text::{first_word, split_words};
use ::click::{Error, Errors};
use ipnet::Ipv4Net;

use ::click::kinds;
use ::click::names::Scope;

use super::arguments;
use super::elements::{LOOKUPS, Route, Step, device, is_shaper, routes};
use super::graph::{Devices, Part, devices, lock_notes};
use super::handlers::{Become, Becomes};
use super::lua::{Statements, Value};
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
    errors.extend(router.unlike(&routes));
    Errors::check(errors)?;
    router.others(statements)?;
    router.notes(&routes, &ways, statements);
    router.print(&devices, &routes, &ways, statements);
    let mut becomes = router.part(&devices, &routes).splice(net, &devices, statements)?;
    lock_notes(net, statements);
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
        Self { net, table, reached, ports, steps, has_steps_behind: false, without_ttl: BTreeSet::new(), part, own }
    }

    /// Follows packets from a device to the table.
    fn input(&mut self, from: usize) -> Result<(), Error> {
        self.reached.insert(from);
        let device = self.device(from)?;
        self.ports.entry(device.clone()).or_default();
        self.part.inward.push((from, device.clone()));
        // Packets are known to be IP behind the first classifier.
        let mut open = vec![(from, 0, false)];
        while let Some((at, output, is_ip)) = open.pop() {
            let Some((next, _)) = self.net.target(at, output) else {
                if self.steps.contains(&at) {
                    continue;
                }
                return Err(self.net.error(at, "its packets lead nowhere"));
            };
            if self.net.class(next) == "ICMPError" {
                self.refused_by((at, output), next)?;
                continue;
            }
            // Another device's packets came by, as far as the table.
            if next == self.table || !self.reached.insert(next) {
                continue;
            }
            match self.net.class(next) {
                "Classifier" if !is_ip => {
                    let ip = self.classifier(next, &device)?;
                    self.part.quiet.insert(next, ip);
                    open.push((next, ip, true));
                }
                class if INPUT.contains(&class) || SHOWN.contains(&class) => {
                    self.known(next)?;
                    if class == "HostEtherFilter" {
                        let mac = self.first_mac(next)?;
                        let port = self.ports.entry(device.clone()).or_default();
                        port.mac.get_or_insert_with(|| mac.clone());
                        self.own.push((next, Own::Mac(device.clone(), mac)));
                    }
                    let is_framed = matches!(class, "HostEtherFilter" | "Null" | "Paint");
                    let is_ip = is_ip || !is_framed && !SHOWN.contains(&class);
                    open.push((next, 0, is_ip));
                }
                class if is_ip && STEPS.contains(&class) => {
                    self.steps.insert(next);
                    open.extend(self.net.targets(next).map(|(output, _)| (next, output, true)));
                }
                "Discard" | "Idle" if self.steps.contains(&at) => {}
                _ => return Err(self.foreign(next)),
            }
        }
        Ok(())
    }

    /// Leads packets that an element refuses to the step that answers as the `ICMPError` there does.
    fn refused_by(&mut self, (at, output): (usize, usize), next: usize) -> Result<(), Error> {
        if !self.steps.contains(&at) {
            return Err(self.foreign(next));
        }
        self.reached.insert(next);
        match self.icmp_error(next)? {
            (UNREACHABLE, 9 | 10 | 13) => {
                self.part.led.insert((at, output), "prohibit".to_owned());
                self.back(next)
            }
            _ => Err(self.net.error(
                next,
                "of packets that an element refuses only unreachable with filterprohibited is supported",
            )),
        }
    }

    /// Follows an ICMP error back to the table, or to a device.
    fn back(&mut self, from: usize) -> Result<(), Error> {
        let mut at = from;
        while let Some((next, _)) = self.net.target(at, 0) {
            let class = self.net.class(next);
            if next == self.table || !self.reached.insert(next) || class == "Discard" {
                break;
            }
            let is_part = SHOWN.contains(&class)
                || matches!(class, "Null" | "EtherEncap" | "ARPQuerier" | "ICMPError")
                || self.net.is_queue(next)
                || self.net.is_to_device(next);
            if !is_part {
                return Err(self.foreign(next));
            }
            at = next;
        }
        Ok(())
    }

    /// Follows all outputs of a classifier but that of IP packets, which it returns.
    fn classifier(&mut self, classifier: usize, device: &str) -> Result<usize, Error> {
        let mut ip = None;
        for (output, pattern) in self.net.element(classifier).arguments.iter().enumerate() {
            let words = split_words(pattern);
            match words.first().copied() {
                Some("12/0800") if words.len() == 1 => ip = Some(output),
                Some("12/0806") => self.arp(classifier, output, device)?,
                Some("-") => self.rest(classifier, output)?,
                _ => {
                    let message = format!(
                        "pattern \"{pattern}\": in front of a routing table only 12/0800, 12/0806 with more bytes, and - are \
                         supported"
                    );
                    return Err(self.net.error(classifier, &message));
                }
            }
        }
        ip.ok_or_else(|| {
            self.net.error(classifier, "no pattern 12/0800 leads IP packets to the table")
        })
    }

    /// Follows ARP: to responders and queriers, and to the host.
    fn arp(&mut self, from: usize, output: usize, device: &str) -> Result<(), Error> {
        let mut open = vec![(from, output)];
        while let Some((at, output)) = open.pop() {
            let Some((next, _)) = self.net.target(at, output) else { continue };
            let is_new = self.reached.insert(next);
            match self.net.class(next) {
                "ARPResponder" => self.responder(next, device)?,
                "ARPQuerier" => {}
                "Tee" if is_new => open.extend((0..self.net.outputs(next)).map(|k| (next, k))),
                "Tee" | "Discard" | "Idle" => {}
                class if SHOWN.contains(&class) || self.net.is_queue(next) || class == "Null" => {
                    if is_new {
                        open.push((next, 0));
                    }
                }
                _ if self.net.is_to_device(next) => {}
                class if LOCAL.contains(&class) => {}
                _ => return Err(self.foreign(next)),
            }
        }
        Ok(())
    }

    /// Follows packets of other protocols, which must be dropped.
    fn rest(&mut self, from: usize, output: usize) -> Result<(), Error> {
        let mut at = (from, output);
        while let Some((next, _)) = self.net.target(at.0, at.1) {
            if !self.reached.insert(next) {
                break;
            }
            match self.net.class(next) {
                "Discard" | "Idle" | "ToHost" | "ToHostSniffers" => return Ok(()),
                class if SHOWN.contains(&class) || class == "Null" => at = (next, 0),
                _ => return Err(self.foreign(next)),
            }
        }
        Ok(())
    }

    /// Reads the addresses of an `ARPResponder`, and follows its answers.
    fn responder(&mut self, element: usize, device: &str) -> Result<(), Error> {
        for argument in self.net.element(element).arguments.clone() {
            let mut words = split_words(&argument);
            let last = words.last().copied().unwrap_or_default();
            let mac = arguments::mac(last, &self.net.scope(element)).map_err(|why| {
                self.net.error(element, &format!("argument \"{argument}\": {why}"))
            })?;
            if words.len() > 1 {
                words.pop();
            }
            let port = self.ports.entry(device.to_owned()).or_default();
            port.mac.get_or_insert(mac);
            for word in words {
                let net = arguments::net(word, &self.net.scope(element)).map_err(|why| {
                    self.net.error(element, &format!("argument \"{argument}\": {why}"))
                })?;
                if net.prefix_len() == 32 && port.address.is_none_or(|own| own == net.addr()) {
                    port.address = Some(net.addr());
                } else {
                    port.proxy.push(net.trunc());
                }
            }
        }
        self.answers((element, 0))
    }

    /// Follows answers to a device.
    fn answers(&mut self, from: (usize, usize)) -> Result<(), Error> {
        let mut at = from;
        while let Some((next, _)) = self.net.target(at.0, at.1) {
            let (is_new, class) = (self.reached.insert(next), self.net.class(next));
            if self.net.is_to_device(next) || class == "Discard" || !is_new {
                return Ok(());
            }
            let is_part = self.net.is_queue(next)
                || SHOWN.contains(&class)
                || matches!(class, "Null" | "Unqueue");
            // Packets from the table pass it as well: see `output`.
            if is_in_front_of_device(class) && self.net.sources(next).len() == 1 {
                self.reached.remove(&next);
                return Ok(());
            }
            if !is_part {
                return Err(self.foreign(next));
            }
            at = (next, 0);
        }
        Ok(())
    }

    /// Follows packets from an output of the table.
    fn output(&mut self, output: usize) -> Result<TableOutput, Error> {
        let mut open = vec![(self.table, output, false)];
        let (mut path, mut seen) = (Path::default(), HashSet::new());
        while let Some((at, from, is_framed)) = open.pop() {
            let Some((next, _)) = self.net.target(at, from) else {
                path.is_dropped = true;
                continue;
            };
            self.reached.insert(next);
            let class = self.net.class(next);
            if class == "ICMPError" {
                self.refused((at, from), next, &mut path)?;
                continue;
            }
            if matches!(class, "ARPQuerier" | "EtherEncap") || self.is_local(next) {
                self.part.led.insert((at, from), "ip4-lookup".to_owned());
            }
            if !seen.insert(next) {
                continue;
            }
            match class {
                "Discard" | "Idle" => path.is_dropped = true,
                _ if self.net.is_to_device(next) => self.to_device(next, &mut path)?,
                _ if self.is_local(next) => {
                    self.local(next)?;
                    path.is_local = true;
                }
                "ARPQuerier" | "EtherEncap" => {
                    if class == "ARPQuerier" {
                        self.querier(next, &mut path)?;
                    } else {
                        path.encap = Some(self.encap(next)?);
                    }
                    path.framed_by.push(next);
                    self.errors_of(next)?;
                    open.push((next, 0, true));
                }
                _ if SHOWN.contains(&class)
                    || OUTPUT.contains(&class)
                    || matches!(class, "IPFragmenter" | "IPOutputCombo" | "SetIPAddress")
                    || self.net.is_queue(next) =>
                {
                    self.passed(next, is_framed, &mut path)?;
                    open.push((next, 0, is_framed));
                }
                _ if !is_framed && STEPS.contains(&class) => {
                    self.steps.insert(next);
                    self.has_steps_behind = true;
                    path.has_steps = true;
                    let outputs = self.net.outputs(next).max(1);
                    open.extend((0..outputs).rev().map(|output| (next, output, false)));
                }
                _ if is_framed && is_in_front_of_device(class) => {
                    self.steps.insert(next);
                    path.is_held = true;
                    let outputs = self.net.outputs(next).max(1);
                    open.extend((0..outputs).rev().map(|output| (next, output, true)));
                }
                _ => return Err(self.foreign(next)),
            }
        }
        if !path.has_steps {
            self.part.direct.insert((self.table, output));
        }
        self.end(output, path)
    }

    /// Reads an element that is part of the pattern.
    fn passed(&mut self, element: usize, is_framed: bool, path: &mut Path) -> Result<(), Error> {
        let class = self.net.class(element);
        match class {
            "PaintTee" => {
                path.redirects |= self.net.target(element, 1).is_some();
                self.read(element, |args| {
                    args.required("COLOR", kinds::integer(0..=255))?;
                    args.optional("ANNO", kinds::word).map(drop)
                })?;
            }
            "IPFragmenter" => path.mtu = Some(self.mtu(element)?),
            "IPOutputCombo" => {
                let (address, mtu) = self.combo(element)?;
                (path.address, path.mtu) = (Some(address), Some(mtu));
                path.redirects |= self.net.target(element, 1).is_some();
            }
            "SetIPAddress" => {
                path.gateway = Some(self.read(element, |args| args.required("IPADDR", kinds::ip4))?);
            }
            "IPGWOptions" | "FixIPSrc" => {
                let keyword = if class == "FixIPSrc" { "IPADDR" } else { "MYADDR" };
                let address = self.read(element, |args| {
                    let address = args.required(keyword, kinds::ip4)?;
                    if keyword == "MYADDR" {
                        args.optional("OTHERADDRS", kinds::raw)?;
                    }
                    Ok(address)
                })?;
                self.own.push((element, Own::Address(address)));
            }
            "Print" | "IPPrint" => path.is_printed = true,
            _ => {}
        }
        path.decrements |= matches!(class, "DecIPTTL" | "IPOutputCombo");
        let may_hold = is_framed && (self.net.is_queue(element) || class == "Unqueue");
        if !SHOWN.contains(&class) && !may_hold {
            self.known(element)?;
        }
        self.errors_of(element)
    }

    /// An element that becomes nothing, as it is done anyway.
    fn known(&mut self, element: usize) -> Result<(), Error> {
        let class = self.net.class(element);
        // Colours mean something to others than `PaintTee` only if there are such.
        let has_colours = !self.net.of_class(&["CheckPaint", "PaintSwitch"]).is_empty();
        if SHOWN.contains(&class) || class == "Paint" && has_colours {
            return Ok(());
        }
        self.part.quiet.insert(element, 0);
        if class == "IPInputCombo" {
            self.read(element, |args| {
                args.required("COLOR", kinds::integer(0..=255))?;
                args.optional("BADSRC", kinds::raw).map(drop)?;
                args.ignore(&["INTERFACES", "GOODDST"]);
                Ok(())
            })?;
        }
        for broadcast in self.bad_sources(element)? {
            self.own.push((element, Own::Broadcast(broadcast)));
        }
        Ok(())
    }

    /// The sources that a check of headers refuses, but for those that nobody has.
    fn bad_sources(&self, element: usize) -> Result<Vec<Ipv4Addr>, Error> {
        let mut bad = Vec::new();
        if !matches!(self.net.class(element), "CheckIPHeader" | "CheckIPHeader2" | "IPInputCombo") {
            return Ok(bad);
        }
        for argument in &self.net.element(element).arguments {
            let (keyword, list) = first_word(argument);
            let list = if keyword == "BADSRC" { list } else { argument };
            if keyword == "GOODDST" {
                let message = "GOODDST is not supported here: packets to the router have any source but its own";
                return Err(self.net.error(element, message));
            }
            if keyword == "INTERFACES" {
                let nets = split_words(list).into_iter();
                let nets = nets.filter_map(|word| arguments::net(word, &self.net.scope(element)).ok());
                bad.extend(nets.filter(|net| net.prefix_len() < 32).map(|net| net.broadcast()));
            } else if !matches!(keyword, "OFFSET" | "VERBOSE" | "DETAILS" | "CHECKSUM") {
                let words = arguments::unquoted(list);
                let words = split_words(&words).into_iter();
                bad.extend(words.filter_map(|word| arguments::address(word, &self.net.scope(element)).ok()));
            }
        }
        Ok(bad)
    }

    /// The device of packets from an output of the table.
    fn to_device(&self, element: usize, path: &mut Path) -> Result<(), Error> {
        let device = self.device(element)?;
        if let Some((_, other)) = path.to.as_ref().filter(|(_, other)| *other != device) {
            let message = format!(
                "one output of the table leads to the devices \"{other}\" and \"{device}\", which is not supported \
                 yet"
            );
            return Err(self.net.error(element, &message));
        }
        path.to.get_or_insert((element, device));
        Ok(())
    }

    /// The destination to which a path from an output of the table leads.
    fn end(&mut self, output: usize, path: Path) -> Result<TableOutput, Error> {
        if let Some((element, device)) = path.to.clone() {
            if path.is_local {
                let message = format!("output {output} of the table leads to it and to the router itself");
                return Err(self.net.error(element, &message));
            }
            self.part.outward.extend(path.framed_by.iter().map(|&by| (by, device.clone())));
            if path.is_held {
                if path.is_dropped && !path.has_steps {
                    let message = "elements between it and ARPQuerier refuse packets; put them in front of ARPQuerier";
                    return Err(self.net.error(element, message));
                }
                self.part.steps_out.insert(device);
            }
            return self.sent(element, path);
        }
        let is_shown = path.encap.is_some() || path.is_printed && !path.has_steps;
        Ok(match path.refuse {
            _ if path.is_local || path.is_dropped && is_shown => TableOutput::Local,
            Some(setting) if !path.has_steps => TableOutput::Refuse(setting),
            _ if path.is_dropped || path.refuse.is_some() => TableOutput::Drop,
            _ => {
                let message = format!("packets of output {output} pass elements again and again");
                return Err(self.net.error(self.table, &message));
            }
        })
    }

    /// An ICMP error for packets of an output of the table, or for those that an element refuses.
    fn refused(
        &mut self,
        (at, from): (usize, usize),
        next: usize,
        path: &mut Path,
    ) -> Result<(), Error> {
        if self.steps.contains(&at) {
            path.is_dropped = true;
            return self.refused_by((at, from), next);
        }
        path.refuse = match self.icmp_error(next)? {
            (UNREACHABLE, 0 | 1) => Some("unreachable"),
            (UNREACHABLE, 9 | 10 | 13) => Some("prohibit"),
            _ => {
                let message = "behind a table only unreachable is supported, with net, host or filterprohibited";
                return Err(self.net.error(next, message));
            }
        };
        self.back(next)
    }

    /// The type and the code of an `ICMPError`, whose source must be the router.
    fn icmp_error(&mut self, element: usize) -> Result<(u8, u8), Error> {
        let (source, kind) = self.read(element, |args| {
            let source = args.required("SRC", kinds::ip4)?;
            let kind = args.required("TYPE", icmp_type)?;
            let code = args.optional("CODE", |text: &str, _: &Scope<'_>| icmp_code(kind, text))?;
            // They are not answered anyway.
            args.optional("BADADDRS", kinds::raw)?;
            args.ignore(&["MTU", "SET_FIX_ANNO"]);
            Ok((source, (kind, code.unwrap_or(0))))
        })?;
        self.own.push((element, Own::Address(source)));
        Ok(kind)
    }

    /// Follows the second outputs, which lead to `ICMPError`s.
    fn errors_of(&mut self, element: usize) -> Result<(), Error> {
        let class = self.net.class(element);
        if matches!(class, "Print" | "IPPrint") {
            return Ok(());
        }
        for output in 1..self.net.outputs(element) {
            // Requests of a querier have an output of their own.
            if class == "ARPQuerier" {
                self.answers((element, output))?;
                continue;
            }
            let mut at = (element, output);
            while let Some((next, _)) = self.net.target(at.0, at.1) {
                self.reached.insert(next);
                match self.net.class(next) {
                    "ICMPError" => {
                        self.expected_error(next, class, output)?;
                        self.back(next)?;
                        break;
                    }
                    "Discard" | "Idle" => break,
                    shown if SHOWN.contains(&shown) || shown == "Null" => at = (next, 0),
                    _ => return Err(self.foreign(next)),
                }
            }
        }
        Ok(())
    }

    /// Checks that an ICMP error is the one that Turnpike sends for packets of an element's output.
    fn expected_error(&mut self, error: usize, of: &str, output: usize) -> Result<(), Error> {
        let found = self.icmp_error(error)?;
        let expected = match (of, output) {
            ("PaintTee", _) | ("IPOutputCombo", 1) => (5, 1),
            ("IPGWOptions", _) | ("IPOutputCombo", 2) => (12, 0),
            ("DecIPTTL", _) | ("IPOutputCombo", 3) => (11, 0),
            ("IPFragmenter", _) | ("IPOutputCombo", 4) => (UNREACHABLE, 4),
            _ => return Err(self.foreign(error)),
        };
        if found != expected {
            let message = format!(
                "type {} with code {} in place of type {} with code {}, which is sent here and cannot be changed",
                found.0, found.1, expected.0, expected.1
            );
            return Err(self.net.error(error, &message));
        }
        Ok(())
    }

    /// Returns true for elements that take packets for the router.
    fn is_local(&self, element: usize) -> bool {
        let class = self.net.class(element);
        // A classifier that refuses some packets is a step.
        let refuses = || {
            let count = self.net.element(element).arguments.len();
            (0..count).any(|output| {
                let to = self.net.target(element, output);
                to.is_none_or(|(to, _)| matches!(self.net.class(to), "Discard" | "Idle" | "ICMPError"))
            })
        };
        LOCAL.contains(&class) && (class != "IPClassifier" || !refuses() && self.leads_home(element))
    }

    /// Returns true if all packets of a classifier are for the router.
    fn leads_home(&self, classifier: usize) -> bool {
        self.net.targets(classifier).all(|(_, (mut to, _))| {
            for _ in 0..self.net.flat.elements.len() {
                let class = self.net.class(to);
                if LOCAL.contains(&class) {
                    return true;
                }
                let next = self.net.target(to, 0);
                match next {
                    Some((next, _)) if matches!(class, "EtherEncap" | "Null") || SHOWN.contains(&class) => to = next,
                    _ => return false,
                }
            }
            false
        })
    }

    /// Reads the arguments of an element whose work Turnpike does for packets to the router.
    fn read_local(&self, element: usize) -> Result<(), Error> {
        let class = self.net.class(element);
        // Tunnels and classifiers have arguments that mean nothing here.
        if matches!(class, "KernelTun" | "KernelTap" | "IPClassifier" | "EtherEncap" | "Discard") {
            return Ok(());
        }
        if SHOWN.contains(&class) || class == "Null" {
            return Ok(());
        }
        self.read(element, |args| {
            if class.starts_with("ToHost") {
                args.optional("DEVNAME", kinds::raw)?;
                args.ignore(&["TYPE", "SNIFFERS"]);
            }
            if class == "IPReassembler" {
                args.ignore(&["HIMEM", "MAX_MTU_ANNO"]);
            }
            Ok(())
        })
    }

    /// Follows packets for the router itself.
    fn local(&mut self, from: usize) -> Result<(), Error> {
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            self.read_local(at)?;
            let targets: Vec<usize> = self.net.targets(at).map(|(_, (to, _))| to).collect();
            for next in targets {
                let class = self.net.class(next);
                if next == self.table {
                    continue;
                }
                let is_part = LOCAL.contains(&class)
                    || SHOWN.contains(&class)
                    || matches!(class, "Discard" | "Null" | "EtherEncap");
                if !is_part {
                    return Err(self.foreign(next));
                }
                if self.reached.insert(next) {
                    open.push(next);
                }
            }
        }
        Ok(())
    }

    /// Reads the arguments of an element, all of them.
    fn read<T>(
        &self,
        element: usize,
        read: impl FnOnce(&mut Args<'_>) -> Result<T, String>,
    ) -> Result<T, Error> {
        let mut args = self.net.args(element);
        let value = read(&mut args).and_then(|value| args.finish().map(|()| value));
        value.map_err(|why| self.net.error(element, &why))
    }

    fn querier(&mut self, element: usize, path: &mut Path) -> Result<(), Error> {
        let (address, mac) = self.read(element, |args| {
            args.ignore(&OF_QUERIERS);
            let (address, own) = args.required("IP", addresses)?;
            let mac = args.optional("ETH", arguments::mac)?.or(own);
            Ok((address, mac.ok_or("argument ETH is missing")?))
        })?;
        (path.address, path.mac) = (Some(address), Some(mac));
        Ok(())
    }

    /// The addresses of an Ethernet header in front of IP packets.
    fn encap(&self, element: usize) -> Result<(String, String), Error> {
        self.read(element, |args| {
            args.required("ETHERTYPE", kinds::integer(0x0800..=0x0800))?;
            Ok((args.required("SRC", arguments::mac)?, args.required("DST", arguments::mac)?))
        })
    }

    /// The MAC of an element that has it as its first argument.
    fn first_mac(&self, element: usize) -> Result<String, Error> {
        let mac = self.net.args(element).required("ETHER", arguments::mac);
        mac.map_err(|why| self.net.error(element, &why))
    }

    fn sent(&mut self, element: usize, path: Path) -> Result<TableOutput, Error> {
        let device = self.device(element)?;
        let port = self.ports.entry(device.clone()).or_default();
        if let (Some(known), Some(address)) = (port.address, path.address)
            && known != address
        {
            let message = format!("device \"{device}\" has two addresses: {known} and {address}");
            return Err(self.net.error(element, &message));
        }
        if !path.decrements {
            self.without_ttl.insert(element);
        }
        let (source, mac) = path.encap.unzip();
        if mac.is_none() && path.mac.is_none() {
            let message = "no ARPQuerier or EtherEncap is in front of it";
            return Err(self.net.error(element, message));
        }
        port.address = port.address.or(path.address);
        port.mac = port.mac.take().or(path.mac).or(source);
        port.mtu = port.mtu.or(path.mtu);
        port.redirects |= path.redirects;
        let gateway = path.gateway.map_or(Hop::Own, Hop::Gateway);
        Ok(TableOutput::Device(device, mac.map_or(gateway, Hop::Mac)))
    }

    fn device(&self, element: usize) -> Result<String, Error> {
        device(self.net, element).map_err(|why| self.net.error(element, &why))
    }

    /// The MTU of an `IPFragmenter`.
    fn mtu(&self, element: usize) -> Result<i64, Error> {
        self.read(element, |args| {
            let mtu = args.required("MTU", arguments::number)?;
            if args.optional("HONOR_DF", kinds::boolean)? == Some(false) {
                return Err("HONOR_DF false is not supported: RFC 791 forbids to fragment these".to_owned());
            }
            args.optional("VERBOSE", kinds::boolean)?;
            args.ignore(&["HEADROOM"]);
            Ok(mtu)
        })
    }

    /// Address and MTU of an `IPOutputCombo`.
    fn combo(&self, element: usize) -> Result<(Ipv4Addr, i64), Error> {
        self.read(element, |args| {
            args.required("COLOR", kinds::integer(0..=255))?;
            Ok((args.required("IPADDR", kinds::ip4)?, args.required("MTU", arguments::number)?))
        })
    }

    fn foreign(&self, element: usize) -> Error {
        let message = "it is no part of an IP router as Turnpike knows it, and is not supported here yet; \
                       docs/click.md shows the pattern";
        self.net.error(element, message)
    }

    /// Refuses elements with packets that are not part of the pattern, and notes those without effect.
    fn others(&self, statements: &mut Statements) -> Result<(), Errors> {
        let mut errors = Vec::new();
        for number in 0..self.net.flat.elements.len() {
            let element = self.net.element(number);
            let class = self.net.class(number);
            let place = &element.place;
            if self.reached.contains(&number) {
                if SHOWN.contains(&class) && self.steps.is_empty() {
                    statements.note(format!(
                        "{place}: element \"{}\" ({class}) is left out; turnpike show graph and show counters count the \
                         packets",
                        element.name
                    ));
                }
                continue;
            }
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
            let port = |(element, device): (usize, String)| (element, devices[&device].port.clone());
            of.into_iter().map(port).collect::<Vec<_>>()
        };
        let inward = ports(part.inward);
        let has_steps = !self.steps.is_empty();
        let steps_in = inward.iter().filter(|_| has_steps).map(|(_, port)| port.clone()).collect();
        let sorter = self.has_steps_behind.then(|| Step::sorter(routes, self.net.outputs(self.table)));
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

    fn print(
        &self,
        devices: &Devices,
        routes: &[Route],
        ways: &[TableOutput],
        statements: &mut Statements,
    ) {
        for (name, device) in devices {
            let default = Port::default();
            let port = self.ports.get(name).unwrap_or(&default);
            let mut settings = vec![("device", Value::text(name))];
            if let Some(mac) = &port.mac {
                settings.push(("mac", Value::text(mac)));
            }
            let addresses = self.addresses(name, port, routes, ways);
            if !addresses.is_empty() {
                settings.push(("address", Value::List(addresses)));
            }
            if let Some(mtu) = port.mtu.filter(|&mtu| mtu != 1500) {
                settings.push(("mtu", Value::Number(mtu)));
            }
            if port.redirects {
                settings.push(("redirects", Value::Flag(true)));
            }
            if !port.proxy.is_empty() {
                let nets = port.proxy.iter().map(ToString::to_string).collect();
                settings.push(("proxy", Value::List(nets)));
            }
            if device.promiscuous {
                settings.push(("promiscuous", Value::Flag(true)));
            }
            statements.statement(("port", &device.port), &settings, device.line);
        }
        let line = self.net.line(self.table);
        let mut neighbours = HashSet::new();
        for route in routes {
            self.route(route, devices, (ways, line), &mut neighbours, statements);
        }
    }

    /// The address of a device with the length of its network, and further addresses of the router.
    fn addresses(
        &self,
        name: &str,
        port: &Port,
        routes: &[Route],
        ways: &[TableOutput],
    ) -> Vec<String> {
        let Some(address) = port.address else { return Vec::new() };
        let connected = routes.iter().filter(|route| {
            route.gateway.is_none()
                && route.prefix.contains(&address)
                && matches!(&ways[route.output], TableOutput::Device(device, Hop::Own) if device == name)
        });
        let length = connected.map(|route| route.prefix.prefix_len()).max();
        // Behind a fixed MAC there is no network whose hosts the router could ask for.
        let is_fixed = ways
            .iter()
            .any(|way| matches!(way, TableOutput::Device(device, Hop::Mac(_)) if device == name));
        let said = || if is_fixed { None } else { self.said_length(address) };
        let length = length.or_else(said).unwrap_or(32);
        let mut with_address = self.ports.iter().filter(|(_, port)| port.address.is_some());
        let is_first = with_address.next().is_some_and(|(first, _)| first == name);
        let others = routes.iter().filter(|route| {
            is_first
                && route.prefix.prefix_len() == 32
                && matches!(ways[route.output], TableOutput::Local)
        });
        let others = others.map(|route| route.prefix.addr()).filter(|&other| {
            let is_known = |port: &Port| port.address == Some(other);
            !self.ports.values().any(is_known) && !self.is_broadcast(other, routes)
        });
        let others: Vec<_> = others.map(|other| format!("{other}/32")).collect();
        [vec![format!("{address}/{length}")], others].concat()
    }

    /// Returns true for addresses of the router itself, and for networks whose packets none but the router takes.
    fn may_be_local(&self, prefix: Ipv4Net) -> bool {
        let first = prefix.network();
        prefix.prefix_len() == 32
            || first.is_multicast()
            || first.is_loopback()
            || self.ports.values().any(|port| port.address.is_some_and(|own| prefix.contains(&own)))
    }

    /// The length of a network with this address among the `INTERFACES` of `CheckIPHeader`.
    fn said_length(&self, address: Ipv4Addr) -> Option<u8> {
        let checks = self.net.of_class(&["CheckIPHeader", "CheckIPHeader2", "IPInputCombo"]);
        let nets = checks.iter().flat_map(|&check| {
            let lists =
                self.net.element(check).arguments.iter().map(|argument| first_word(argument));
            let words = lists.filter(|(keyword, _)| *keyword == "INTERFACES");
            let words = words.flat_map(|(_, list)| split_words(list));
            words.filter_map(move |word| arguments::net(word, &self.net.scope(check)).ok())
        });
        nets.filter(|net| net.contains(&address)).map(|net| net.prefix_len()).max()
    }

    /// Returns true for an address of all hosts, or for the first or last one of a network.
    fn is_broadcast(&self, address: Ipv4Addr, routes: &[Route]) -> bool {
        let ends = |net: Ipv4Net| {
            net.prefix_len() < 32 && (net.network() == address || net.broadcast() == address)
        };
        address.is_broadcast()
            || address.is_unspecified()
            || routes.iter().any(|route| ends(route.prefix))
            || self.ports.values().any(|port| {
                let length = port.address.and_then(|own| self.said_length(own));
                let net = port.address.zip(length);
                net.and_then(|(own, length)| Ipv4Net::new(own, length).ok()).is_some_and(ends)
            })
    }

    fn route(
        &self,
        route: &Route,
        devices: &Devices,
        (ways, line): (&[TableOutput], usize),
        neighbours: &mut HashSet<(String, String)>,
        statements: &mut Statements,
    ) {
        let prefix = route.prefix.to_string();
        let statement = match &ways[route.output] {
            TableOutput::Local => return,
            TableOutput::Drop => vec![("blackhole", Value::Flag(true))],
            // Without a route the error is that a network cannot be reached.
            TableOutput::Refuse("unreachable") if route.prefix.prefix_len() == 0 => return,
            TableOutput::Refuse(setting) => vec![(*setting, Value::Flag(true))],
            TableOutput::Device(name, Hop::Mac(mac)) => {
                let port = &devices[name].port;
                let via = stand_in(mac).to_string();
                if neighbours.insert((name.clone(), mac.clone())) {
                    let settings = [("port", Value::text(port)), ("mac", Value::text(mac))];
                    statements.statement(("neighbour", &via), &settings, line);
                }
                vec![("via", Value::Text(via)), ("port", Value::text(port))]
            }
            TableOutput::Device(name, Hop::Gateway(gateway)) => {
                let port = &devices[name].port;
                vec![("via", Value::Text(gateway.to_string())), ("port", Value::text(port))]
            }
            TableOutput::Device(name, Hop::Own) => {
                let port = &devices[name].port;
                let own = self.ports.get(name).and_then(|port| port.address);
                match route.gateway {
                    Some(gateway) => {
                        vec![("via", Value::Text(gateway.to_string())), ("port", Value::text(port))]
                    }
                    // The port's own network.
                    None if own.is_some_and(|own| route.prefix.contains(&own)) => return,
                    None => vec![("port", Value::text(port))],
                }
            }
        };
        statements.statement(("route", &prefix), &statement, line);
    }
}

/// What the elements between the table and a device say.
#[derive(Default)]
struct Path {
    address: Option<Ipv4Addr>,
    mac: Option<String>,
    mtu: Option<i64>,
    redirects: bool,
    /// Source and destination.
    encap: Option<(String, String)>,
    is_printed: bool,
    decrements: bool,
    /// The element of the device, and the device.
    to: Option<(usize, String)>,
    is_local: bool,
    /// Some of the packets are dropped.
    is_dropped: bool,
    /// The setting of a route whose packets are refused.
    refuse: Option<&'static str>,
    /// Elements that prepend Ethernet headers.
    framed_by: Vec<usize>,
    /// There are elements that become steps: in front of these, and behind them.
    has_steps: bool,
    is_held: bool,
    /// The destination annotation that all packets get.
    gateway: Option<Ipv4Addr>,
}

/// The addresses of a name that has both; of an IP address, with or without a prefix length, that one only.
fn addresses(text: &str, scope: &Scope<'_>) -> Result<(Ipv4Addr, Option<String>), String> {
    let address = kinds::ip4(text, scope);
    let address = address.or_else(|why| arguments::net(text, scope).map(|net| net.addr()).map_err(|_| why))?;
    Ok((address, arguments::mac(text, scope).ok()))
}

/// Keywords of `ARPQuerier` whose subject is Turnpike's own business.
const OF_QUERIERS: [&str; 7] = [
    "CAPACITY",
    "ENTRY_CAPACITY",
    "ENTRY_PACKET_CAPACITY",
    "CAPACITY_SLIM_FACTOR",
    "TIMEOUT",
    "POLL_TIMEOUT",
    "BROADCAST_POLL",
];

/// Returns true for elements that hold packets in front of a device, or choose where these are held.
fn is_in_front_of_device(class: &str) -> bool {
    is_shaper(class) || STEPS_IN_FRONT_OF_DEVICES.contains(&class)
}

/// The ICMP type "destination unreachable" (RFC 792).
const UNREACHABLE: u8 = 3;

/// ICMP types by Click's names.
const ICMP_TYPES: [(&str, u8); 5] = [
    ("unreachable", UNREACHABLE),
    ("sourcequench", 4),
    ("redirect", 5),
    ("timeexceeded", 11),
    ("parameterproblem", 12),
];

/// ICMP codes by type and Click's names.
const ICMP_CODES: [(u8, &str, u8); 23] = [
    (UNREACHABLE, "net", 0),
    (UNREACHABLE, "host", 1),
    (UNREACHABLE, "protocol", 2),
    (UNREACHABLE, "port", 3),
    (UNREACHABLE, "needfrag", 4),
    (UNREACHABLE, "srcroutefail", 5),
    (UNREACHABLE, "netunknown", 6),
    (UNREACHABLE, "hostunknown", 7),
    (UNREACHABLE, "isolated", 8),
    (UNREACHABLE, "netprohibited", 9),
    (UNREACHABLE, "hostprohibited", 10),
    (UNREACHABLE, "tosnet", 11),
    (UNREACHABLE, "toshost", 12),
    (UNREACHABLE, "filterprohibited", 13),
    (UNREACHABLE, "hostprecedence", 14),
    (UNREACHABLE, "precedencecutoff", 15),
    (5, "net", 0),
    (5, "host", 1),
    (11, "transit", 0),
    (11, "reassembly", 1),
    (12, "erroratptr", 0),
    (12, "missingopt", 1),
    (12, "length", 2),
];

fn icmp_type(text: &str, scope: &Scope<'_>) -> Result<u8, String> {
    let named = ICMP_TYPES.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    named.map_or_else(|| kinds::integer(0..=u8::MAX)(text, scope), Ok)
}

fn icmp_code(of: u8, text: &str) -> Result<u8, String> {
    let named = ICMP_CODES.iter().find(|(kind, name, _)| *kind == of && *name == text);
    let number = named.map(|(_, _, number)| *number).or_else(|| text.parse().ok());
    number.ok_or_else(|| format!("\"{text}\": expected an ICMP code of type {of}"))
}

/// The address that stands for a gateway of which only the MAC is known: its link-local one.
fn stand_in(mac: &str) -> Ipv6Addr {
    let bytes: Vec<u8> =
        mac.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0];
    if let [a, b, c, d, e, f] = bytes[..] {
        octets[8..11].copy_from_slice(&[a ^ 2, b, c]);
        octets[13..].copy_from_slice(&[d, e, f]);
    }
    octets.into()
}

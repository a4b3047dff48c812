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

use std::collections::{BTreeMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use ::click::text::{first_word, split_words};
use ::click::{Error, Errors};
use ipnet::Ipv4Net;

use ::click::kinds;
use ::click::names::Scope;

use super::arguments;
use super::elements::{LOOKUPS, Route, device, routes};
use super::graph::{Devices, devices};
use super::handlers::{Become, Becomes, by_devices};
use super::lua::{Statements, Value};
use super::net::Net;

/// Classes that only an IP router has.
const OF_ROUTERS: [&str; 8] = [
    "ARPQuerier",
    "ARPQuerier2",
    "ICMPError",
    "IPGWOptions",
    "IPFragmenter",
    "IPOutputCombo",
    "IPInputCombo",
    "FixIPSrc",
];

/// Classes on the path to the table whose work is done anyway.
const INPUT: [&str; 13] = [
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
    "AverageCounter",
];

/// Likewise behind the table.
const OUTPUT: [&str; 13] = [
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
    "AverageCounter",
    "Unqueue",
    "CheckIPHeader",
];

/// Classes that take packets for the router itself.
const LOCAL: [&str; 8] = [
    "ToHost",
    "ToHostSniffers",
    "KernelTun",
    "KernelTap",
    "KernelTunnel",
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
    let mut router = Router { net, table, reached: HashSet::from([table]), ports: BTreeMap::new() };
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
    Errors::check(errors)?;
    router.others(statements)?;
    router.print(&devices, &routes, &ways, statements);
    Ok(router.becomes(&devices, &ways))
}

/// The destination of an output of the table.
enum TableOutput {
    /// By the device of this name.
    Device(String, Hop),
    Local,
    Drop,
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
    /// Elements that are part of the pattern.
    reached: HashSet<usize>,
    /// By device.
    ports: BTreeMap<String, Port>,
}

impl Router<'_> {
    /// Follows packets from a device to the table.
    fn input(&mut self, from: usize) -> Result<(), Error> {
        self.reached.insert(from);
        let device = self.device(from)?;
        self.ports.entry(device.clone()).or_default();
        let mut at = from;
        let mut output = 0;
        loop {
            let Some((next, _)) = self.net.target(at, output) else {
                return Err(self.net.error(at, "its packets lead nowhere"));
            };
            if next == self.table {
                return Ok(());
            }
            if !self.reached.insert(next) {
                // Another device's packets came by, as far as the table.
                return Ok(());
            }
            output = match self.net.class(next) {
                "Classifier" => self.classifier(next, &device)?,
                class if INPUT.contains(&class) => 0,
                _ => return Err(self.foreign(next)),
            };
            at = next;
        }
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
                "ARPQuerier" | "ARPQuerier2" => {}
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
        self.answers(element)
    }

    /// Follows answers to a device.
    fn answers(&mut self, from: usize) -> Result<(), Error> {
        let mut at = from;
        while let Some((next, _)) = self.net.target(at, 0) {
            let (is_new, class) = (self.reached.insert(next), self.net.class(next));
            if self.net.is_to_device(next) || class == "Discard" || !is_new {
                return Ok(());
            }
            if !self.net.is_queue(next)
                && !SHOWN.contains(&class)
                && class != "Null"
                && class != "Unqueue"
            {
                return Err(self.foreign(next));
            }
            at = next;
        }
        Ok(())
    }

    /// Follows packets from an output of the table.
    fn output(&mut self, output: usize) -> Result<TableOutput, Error> {
        let (mut at, mut from) = (self.table, output);
        let (mut path, mut seen) = (Path::default(), HashSet::new());
        while let Some((next, _)) = self.net.target(at, from) {
            self.reached.insert(next);
            if !seen.insert(next) {
                return Err(self.net.error(next, "packets pass it again and again"));
            }
            let class = self.net.class(next);
            match class {
                "PaintTee" => path.redirects |= self.net.target(next, 1).is_some(),
                "IPFragmenter" | "CheckLength" => path.mtu = Some(self.mtu(next)?),
                "IPOutputCombo" => {
                    let (address, mtu) = self.combo(next)?;
                    (path.address, path.mtu) = (Some(address), Some(mtu));
                    path.redirects |= self.net.target(next, 1).is_some();
                }
                "ARPQuerier" | "ARPQuerier2" => self.querier(next, &mut path)?,
                "EtherEncap" => path.encap = Some(self.encap(next)?),
                "SetIPAddress" => {
                    let gateway = self.net.args(next).required("IPADDR", kinds::ip4);
                    path.gateway = Some(gateway.map_err(|why| self.net.error(next, &why))?);
                }
                "Discard" | "Idle" => {
                    let is_local = path.encap.is_some() || path.is_printed;
                    return Ok(if is_local { TableOutput::Local } else { TableOutput::Drop });
                }
                _ if self.net.is_to_device(next) => return self.sent(next, path),
                _ if LOCAL.contains(&class) => {
                    self.local(next)?;
                    return Ok(TableOutput::Local);
                }
                _ if SHOWN.contains(&class) => {
                    path.is_printed |= matches!(class, "Print" | "IPPrint");
                }
                _ if OUTPUT.contains(&class) || self.net.is_queue(next) => {}
                _ => return Err(self.foreign(next)),
            }
            self.errors_of(next)?;
            (at, from) = (next, 0);
        }
        Ok(TableOutput::Drop)
    }

    /// Follows the second outputs, which lead to `ICMPError`s.
    fn errors_of(&mut self, element: usize) -> Result<(), Error> {
        if matches!(self.net.class(element), "Print" | "IPPrint") {
            return Ok(());
        }
        for output in 1..self.net.outputs(element) {
            let mut at = (element, output);
            while let Some((next, _)) = self.net.target(at.0, at.1) {
                let class = self.net.class(next);
                if next == self.table || !self.reached.insert(next) || class == "Discard" {
                    break;
                }
                let is_part = class == "ICMPError"
                    || SHOWN.contains(&class)
                    || matches!(class, "Null" | "ICMPSendPings" | "EtherEncap" | "ARPQuerier")
                    || self.net.is_queue(next)
                    || self.net.is_to_device(next);
                if !is_part {
                    return Err(self.foreign(next));
                }
                at = (next, 0);
            }
        }
        Ok(())
    }

    /// Follows packets for the router itself.
    fn local(&mut self, from: usize) -> Result<(), Error> {
        let mut open = vec![from];
        while let Some(at) = open.pop() {
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

    fn querier(&mut self, element: usize, path: &mut Path) -> Result<(), Error> {
        let mut args = self.net.args(element);
        let read = args.required("IP", addresses).and_then(|(address, own)| {
            let mac = args.optional("ETH", arguments::mac)?.or(own);
            Ok((address, mac.ok_or("argument ETH is missing")?))
        });
        let (address, mac) = read.map_err(|why| self.net.error(element, &why))?;
        (path.address, path.mac) = (Some(address), Some(mac));
        Ok(())
    }

    /// The addresses of an Ethernet header in front of IP packets.
    fn encap(&self, element: usize) -> Result<(String, String), Error> {
        let mut args = self.net.args(element);
        let macs = args.required("ETHERTYPE", kinds::raw).and_then(|_| {
            Ok((args.required("SRC", arguments::mac)?, args.required("DST", arguments::mac)?))
        });
        macs.map_err(|why| self.net.error(element, &why))
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

    /// The MTU of an element that has it as its first argument.
    fn mtu(&self, element: usize) -> Result<i64, Error> {
        let mtu = self.net.args(element).required("MTU", arguments::number);
        mtu.map_err(|why| self.net.error(element, &why))
    }

    /// Address and MTU of an `IPOutputCombo`.
    fn combo(&self, element: usize) -> Result<(Ipv4Addr, i64), Error> {
        let mut args = self.net.args(element);
        let read = args.required("COLOR", kinds::raw).and_then(|_| {
            Ok((args.required("IPADDR", kinds::ip4)?, args.required("MTU", arguments::number)?))
        });
        read.map_err(|why| self.net.error(element, &why))
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
                if SHOWN.contains(&class) {
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
        if let Some(host) = self.net.of_class(&["ToHost", "ToHostSniffers"]).first() {
            let place = &self.net.element(*host).place;
            statements.note(format!(
                "{place}: packets for the router are answered by Turnpike itself; with host = true of a port they go to \
                 the kernel"
            ));
        }
        Errors::check(errors)
    }

    /// Devices and `ARPQuerier`s become ports; the table becomes the RIB, whose routes lead to these ports.
    fn becomes(&self, devices: &Devices, ways: &[TableOutput]) -> Becomes {
        let mut becomes = by_devices(self.net, devices);
        let way = |way: &TableOutput| match way {
            TableOutput::Device(name, _) => devices[name].port.clone(),
            TableOutput::Local => "local".to_owned(),
            TableOutput::Drop => "drop".to_owned(),
        };
        let ways = ways.iter().map(way).collect();
        becomes.insert(self.table, Become { ways, ..Become::default() });
        becomes
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
    /// The destination annotation that all packets get.
    gateway: Option<Ipv4Addr>,
}

/// The addresses of a name that has both; of an IP address that one only.
fn addresses(text: &str, scope: &Scope<'_>) -> Result<(Ipv4Addr, Option<String>), String> {
    Ok((kinds::ip4(text, scope)?, arguments::mac(text, scope).ok()))
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

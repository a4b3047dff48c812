//! Packets from the table: to devices, and to the router itself.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use ::click::Error;
use ::click::kinds;

use super::reading::UNREACHABLE;
use super::{Hop, LOCAL, OUTPUT, Own, Router, SHOWN, STEPS, TableOutput, is_in_front_of_device};

/// What the elements between the table and a device say.
#[derive(Default)]
pub(super) struct Path {
    pub(super) address: Option<Ipv4Addr>,
    pub(super) mac: Option<String>,
    pub(super) mtu: Option<i64>,
    pub(super) redirects: bool,
    /// Source and destination.
    pub(super) encap: Option<(String, String)>,
    pub(super) is_printed: bool,
    pub(super) decrements: bool,
    /// The element of the device, and the device.
    pub(super) to: Option<(usize, String)>,
    pub(super) is_local: bool,
    /// Some of the packets are dropped.
    pub(super) is_dropped: bool,
    /// The setting of a route whose packets are refused.
    pub(super) refuse: Option<&'static str>,
    /// Elements that prepend Ethernet headers.
    pub(super) framed_by: Vec<usize>,
    /// There are elements that become steps: in front of these, and behind them.
    pub(super) has_steps: bool,
    pub(super) is_held: bool,
    /// The destination annotation that all packets get.
    pub(super) gateway: Option<Ipv4Addr>,
}

impl Router<'_> {
    /// Follows packets from an output of the table.
    pub(super) fn output(&mut self, output: usize) -> Result<TableOutput, Error> {
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
    pub(super) fn passed(
        &mut self,
        element: usize,
        is_framed: bool,
        path: &mut Path,
    ) -> Result<(), Error> {
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
                path.gateway =
                    Some(self.read(element, |args| args.required("IPADDR", kinds::ip4))?);
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

    /// The device of packets from an output of the table.
    pub(super) fn to_device(&self, element: usize, path: &mut Path) -> Result<(), Error> {
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
    pub(super) fn end(&mut self, output: usize, path: Path) -> Result<TableOutput, Error> {
        if let Some((element, device)) = path.to.clone() {
            if path.is_local {
                let message =
                    format!("output {output} of the table leads to it and to the router itself");
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
    pub(super) fn refused(
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
        self.part.led.insert((at, from), "ip4-lookup".to_owned());
        self.back(next)
    }

    /// Follows the second outputs, which lead to `ICMPError`s.
    pub(super) fn errors_of(&mut self, element: usize) -> Result<(), Error> {
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
    pub(super) fn expected_error(
        &mut self,
        error: usize,
        of: &str,
        output: usize,
    ) -> Result<(), Error> {
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
    pub(super) fn is_local(&self, element: usize) -> bool {
        let class = self.net.class(element);
        // A classifier that refuses some packets is a step.
        let refuses = || {
            let count = self.net.element(element).arguments.len();
            (0..count).any(|output| {
                let to = self.net.target(element, output);
                to.is_none_or(|(to, _)| {
                    matches!(self.net.class(to), "Discard" | "Idle" | "ICMPError")
                })
            })
        };
        LOCAL.contains(&class)
            && (class != "IPClassifier" || !refuses() && self.leads_home(element))
    }

    /// Returns true if all packets of a classifier are for the router.
    pub(super) fn leads_home(&self, classifier: usize) -> bool {
        self.net.targets(classifier).all(|(_, (mut to, _))| {
            for _ in 0..self.net.flat.elements.len() {
                let class = self.net.class(to);
                if LOCAL.contains(&class) {
                    return true;
                }
                let next = self.net.target(to, 0);
                match next {
                    Some((next, _))
                        if matches!(class, "EtherEncap" | "Null") || SHOWN.contains(&class) =>
                    {
                        to = next
                    }
                    _ => return false,
                }
            }
            false
        })
    }

    /// Follows packets for the router itself.
    pub(super) fn local(&mut self, from: usize) -> Result<(), Error> {
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

    pub(super) fn sent(&mut self, element: usize, path: Path) -> Result<TableOutput, Error> {
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
}

//! Packets from devices: to the table, to ARP responders and queriers.

use ::click::Error;
use ::click::text::split_words;

use super::super::arguments;
use super::reading::UNREACHABLE;
use super::{INPUT, LOCAL, Own, Router, SHOWN, STEPS, is_in_front_of_device};

impl Router<'_> {
    /// Follows packets from a device to the table.
    pub(super) fn input(&mut self, from: usize) -> Result<(), Error> {
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
    pub(super) fn refused_by(
        &mut self,
        (at, output): (usize, usize),
        next: usize,
    ) -> Result<(), Error> {
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
    pub(super) fn back(&mut self, from: usize) -> Result<(), Error> {
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
    pub(super) fn classifier(&mut self, classifier: usize, device: &str) -> Result<usize, Error> {
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
    pub(super) fn arp(&mut self, from: usize, output: usize, device: &str) -> Result<(), Error> {
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
    pub(super) fn rest(&mut self, from: usize, output: usize) -> Result<(), Error> {
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
    pub(super) fn responder(&mut self, element: usize, device: &str) -> Result<(), Error> {
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
    pub(super) fn answers(&mut self, from: (usize, usize)) -> Result<(), Error> {
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
}

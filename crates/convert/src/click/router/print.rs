//! Ports, routes and neighbours of an IP router, as statements.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ::click::text::{first_word, split_words};
use ipnet::Ipv4Net;

use super::super::arguments;
use super::super::elements::Route;
use super::super::graph::Devices;
use super::super::lua::{Statements, Value};
use super::{Hop, Port, Router, TableOutput};

impl Router<'_> {
    pub(super) fn print(
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
    pub(super) fn addresses(
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
    pub(super) fn may_be_local(&self, prefix: Ipv4Net) -> bool {
        let first = prefix.network();
        prefix.prefix_len() == 32
            || first.is_multicast()
            || first.is_loopback()
            || self.ports.values().any(|port| port.address.is_some_and(|own| prefix.contains(&own)))
    }

    /// The length of a network with this address among the `INTERFACES` of `CheckIPHeader`.
    pub(super) fn said_length(&self, address: Ipv4Addr) -> Option<u8> {
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
    pub(super) fn is_broadcast(&self, address: Ipv4Addr, routes: &[Route]) -> bool {
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

    pub(super) fn route(
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

//! The report of a trace: each step's decision, and the changes that it made to the packet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use acl::{Family, Key};
use api::report::{Trace, TracedPacket, TracedStep};
use control::config::action_name;
use dataplane::features::Feature;
use dataplane::filters::{FILTER_IN, FILTER_OUT};
use dataplane::graph::Target;
use dataplane::interface::InterfaceId;
use dataplane::next_hop::NextHop;
use dataplane::trace::{At, NO_INTERFACE, Sighting};
use dataplane::watch::StepOutcome;
use wire::MacAddr;
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6};

use super::super::Owner;
use super::super::filter_log::label;
use super::target;

/// Fields of a frame that steps change.
#[derive(Debug, Default, PartialEq, Eq)]
struct Headers {
    macs: Option<(MacAddr, MacAddr)>,
    ip: Option<(Family, Key)>,
}

impl Headers {
    fn of(sighting: &Sighting) -> Self {
        let frame = sighting.head();
        let mac = |from: usize| Some(MacAddr(frame.get(from..from + 6)?.try_into().ok()?));
        let macs = mac(0).zip(mac(6));
        let interface = sighting.interface.index() as u16;
        let ip = match ethertype(frame) {
            Some(ETHERTYPE_IPV4) => {
                Some((Family::Ip4, Key::of_ip4(frame, sighting.length, interface)))
            }
            Some(ETHERTYPE_IPV6) => {
                Some((Family::Ip6, Key::of_ip6(frame, sighting.length, interface)))
            }
            _ => None,
        };
        Self { macs, ip }
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let (family, key) = self.ip.as_ref()?;
        Some((key.source(*family), key.destination(*family)))
    }
}

fn ethertype(frame: &[u8]) -> Option<u16> {
    let bytes = frame.get(ETHERNET_LEN - 2..ETHERNET_LEN)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

impl Owner {
    /// The report of these sightings.
    pub(super) fn trace_report(&self, seen: Vec<Sighting>, lost: u64) -> Trace {
        let mut packets: BTreeMap<u32, Vec<Sighting>> = BTreeMap::new();
        for sighting in seen {
            packets.entry(sighting.packet).or_default().push(sighting);
        }
        let packets = packets.into_values().filter_map(|seen| self.traced(&seen)).collect();
        Trace { packets, lost }
    }

    fn traced(&self, seen: &[Sighting]) -> Option<TracedPacket> {
        let (first, last) = (seen.first()?, seen.last()?);
        let steps =
            seen.windows(2).filter_map(|pair| self.traced_step(&pair[0], &pair[1])).collect();
        Some(TracedPacket {
            forwarder: first.forwarder,
            interface: self.interface_name(first.interface),
            packet: self.packet_in_words(first),
            length: first.length,
            steps,
            end: self.end(last),
        })
    }

    fn packet_in_words(&self, sighting: &Sighting) -> String {
        let interface = self.interface_name(sighting.interface);
        match Headers::of(sighting) {
            Headers { ip: Some((family, key)), .. } => acl::packet::write(family, &key, &interface),
            Headers { macs: Some((to, from)), .. } => {
                let ethertype = ethertype(sighting.head()).unwrap_or(0);
                format!("ethertype {ethertype:#06x} {from} > {to} in {interface}")
            }
            _ => format!("frame of {} bytes in {interface}", sighting.length),
        }
    }

    fn traced_step(&self, before: &Sighting, after: &Sighting) -> Option<TracedStep> {
        let At::Step { place, way } = after.at else { return None };
        let shape = after.shape.steps.get(place)?;
        let output = match way {
            StepOutcome::Output(output) => {
                shape.outputs.get(output).map_or("none", |(name, _)| name)
            }
            StepOutcome::Kept => "kept",
            StepOutcome::Lost => "none",
        };
        let mut notes = self.decisions(&shape.kind, before, after);
        notes.extend(self.changes(before, after));
        Some(TracedStep { step: shape.name.clone(), output: output.to_owned(), notes })
    }

    /// The packet's fate after its last step.
    fn end(&self, last: &Sighting) -> String {
        let out = || self.name_of_number(last.out_interface);
        match target(last) {
            Some(Target::Transmit) => format!("sent on {}", out()),
            Some(Target::Replicate) => "replicated to its group's receivers".to_owned(),
            Some(Target::SlowPath(reason)) => format!("to the slow path: {}", reason.name()),
            Some(Target::Drop(reason)) => format!("dropped: {}", reason.name()),
            Some(Target::Step(_)) => "on its way".to_owned(),
            None => match last.at {
                At::Step { way: StepOutcome::Kept, .. } => {
                    "kept by the step, which sends it later".to_owned()
                }
                At::Step { .. } => "lost: the step gave it to none of its outputs".to_owned(),
                At::Entry => "on its way".to_owned(),
            },
        }
    }

    fn name_of_number(&self, interface: u16) -> String {
        let known = InterfaceId::new(interface).filter(|_| interface != NO_INTERFACE);
        known.map_or_else(|| "no interface".to_owned(), |id| self.interface_name(id))
    }

    /// The route, and the filter's rule, that decided.
    fn decisions(&self, kind: &str, before: &Sighting, after: &Sighting) -> Vec<String> {
        let mut notes = Vec::new();
        if kind.ends_with("-filter-in") {
            notes.extend(self.rule_met(FILTER_IN, before.interface, before));
        }
        if kind.ends_with("-filter-out")
            && let Some(out) = InterfaceId::new(before.out_interface)
        {
            notes.extend(self.rule_met(FILTER_OUT, out, before));
        }
        let is_lookup = matches!(kind, "ip4-lookup" | "ip6-lookup");
        if is_lookup {
            notes.extend(self.route_taken(after));
        }
        if is_lookup || after.hop != before.hop {
            notes.push(self.next_hop(after.hop));
        } else if after.out_interface != before.out_interface {
            notes.push(format!("leaves by {}", self.name_of_number(after.out_interface)));
        }
        notes
    }

    /// The rule of an interface's filter that a packet meets; `None` for filters that look at connections: the packet's
    /// is not known any more.
    fn rule_met(&self, side: Feature, of: InterfaceId, packet: &Sighting) -> Option<String> {
        let infos = self.routing.tables.interfaces.get();
        let number = usize::from(infos.get(of.index())?.features.get(side));
        let table = self.filtering.filters.tables.get(number.checked_sub(1)?)?.as_ref()?;
        let name = &table.spec().filter.name;
        if table.spec().asks_for_state() {
            return Some(format!("filter \"{name}\""));
        }
        let (family, key) = Headers::of(packet).ip?;
        let filter = &table.spec().filter;
        let decides = |place: &usize| filter.rules[*place].action.is_terminal();
        let place = self.rules_met(filter, family, &key).pop().filter(decides);
        let rule = label(table, place.unwrap_or(filter.rules.len()));
        let action = match place {
            Some(place) => self.action_of(table.spec(), place),
            None => action_name(filter.default).to_owned(),
        };
        Some(format!("filter \"{name}\": {rule}: {action}"))
    }

    fn route_taken(&self, packet: &Sighting) -> Option<String> {
        let vrf = self.routing.rib.interface(packet.interface)?.vrf;
        let (_, to) = Headers::of(packet).addresses()?;
        Some(match self.routing.rib.lookup(vrf, to) {
            Some(found) => {
                let route = self.route(&found.route);
                format!("route {} ({})", route.prefix, route.source)
            }
            None => format!("no route to {to}"),
        })
    }

    fn next_hop(&self, hop: NextHop) -> String {
        let name = |id| self.interface_name(id);
        match hop {
            NextHop::NoRoute => "no next hop".to_owned(),
            NextHop::Local => "for the router itself".to_owned(),
            NextHop::Multicast => "for a group".to_owned(),
            NextHop::Blackhole => "blackhole".to_owned(),
            NextHop::Martian => "a martian destination".to_owned(),
            NextHop::Prohibited => "prohibited".to_owned(),
            NextHop::Unreachable => "unreachable".to_owned(),
            NextHop::Glean { interface } => {
                format!("on the network of {}, MAC unknown", name(interface))
            }
            NextHop::Unresolved { interface } => {
                format!("gateway on {}, MAC unknown", name(interface))
            }
            NextHop::Forward { interface, mac } => format!("next hop {mac} on {}", name(interface)),
            NextHop::Group { len, .. } => format!("one of {len} paths"),
        }
    }

    /// The differences between two sightings of a packet.
    fn changes(&self, before: &Sighting, after: &Sighting) -> Vec<String> {
        let mut notes = Vec::new();
        if after.interface != before.interface {
            notes.push(format!("received on {}", self.interface_name(after.interface)));
        }
        if let Some(mark) = after.mark.filter(|_| after.mark != before.mark) {
            notes.push(format!("mark {mark}"));
        }
        let fresh = after.categories & !before.categories;
        let names = &self.configurations.current.categories;
        let named = names.iter().enumerate().filter(|(number, _)| fresh >> number & 1 == 1);
        notes.extend(named.map(|(_, name)| format!("category {name}")));
        notes.extend(header_changes(&Headers::of(before), &Headers::of(after)));
        if after.length != before.length {
            notes.push(format!("length {} → {}", before.length, after.length));
        }
        notes
    }
}

fn header_changes(before: &Headers, after: &Headers) -> Vec<String> {
    let mut notes = Vec::new();
    if let (Some((_, old)), Some((_, new))) = (&before.ip, &after.ip) {
        let mut number = |what: &str, old: u16, new: u16| {
            if old != new {
                notes.push(format!("{what} {old} → {new}"));
            }
        };
        number("ttl", old.ttl().into(), new.ttl().into());
        number("dscp", old.dscp().into(), new.dscp().into());
        number("source port", old.from_port(), new.from_port());
        number("destination port", old.to_port(), new.to_port());
    }
    if let (Some((from, to)), Some(new)) = (before.addresses(), after.addresses()) {
        let sides = [("source", from, new.0), ("destination", to, new.1)];
        let other = sides.into_iter().filter(|(_, old, new)| old != new);
        notes.extend(other.map(|(what, old, new)| format!("{what} {old} → {new}")));
    }
    if let (true, Some((to, from))) = (before.macs != after.macs, after.macs) {
        notes.push(format!("from {from} to {to}"));
    }
    notes
}

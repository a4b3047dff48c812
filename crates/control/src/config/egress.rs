//! Queues in software: those of ports, and those of the VLANs on them.

use dataplane::interface::InterfaceId;
use dataplane::transmit::QueueConfig;
use dataplane::transmit::shape::Shape;
use dataplane::vlan::Tags;

use super::{Config, Interface, Port};

/// A queue in software and the rate of packets that leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareQueue {
    /// The interface with the settings. Those of a bond apply to all its ports together.
    pub interface: InterfaceId,
    /// Its length and discipline.
    pub queue: QueueConfig,
    /// Its rate.
    pub shape: Option<Shape>,
}

impl SoftwareQueue {
    /// Returns that of an interface, if it has either setting: with a rate it has a queue.
    fn of(id: InterfaceId, interface: &Interface) -> Option<Self> {
        let Interface { queue, shape, .. } = interface;
        let has_either = queue.is_some() || shape.is_some();
        let (queue, shape) = (queue.unwrap_or_default(), *shape);
        has_either.then_some(Self { interface: id, queue, shape })
    }
}

/// The queues in software before a port's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressQueues {
    /// The queue of packets that belong to no other one. Its rate is that of all packets.
    pub rest: SoftwareQueue,
    /// Those of VLANs; a VLAN stands before those inside it.
    pub vlans: Vec<(Tags, SoftwareQueue)>,
}

impl EgressQueues {
    /// Returns the largest number of packet buffers in them, for each forwarder.
    pub fn buffers(&self) -> usize {
        let of_vlans = self.vlans.iter().map(|(_, of)| of.queue.buffers_of_vlan());
        self.rest.queue.buffers() + of_vlans.sum::<usize>()
    }

    /// Iterates over all.
    pub fn all(&self) -> impl Iterator<Item = SoftwareQueue> {
        [self.rest].into_iter().chain(self.vlans.iter().map(|(_, of)| *of))
    }
}

impl Config {
    /// Returns the queues in software of a port; `None`: its device's ring only.
    pub fn egress_queues(&self, port: &Port) -> Option<EgressQueues> {
        let bond = port.bond.and_then(|id| self.bond(id));
        let (id, interface) = match bond {
            Some(bond) => (bond.id, &bond.interface),
            None => (port.id.into(), &port.interface),
        };
        let rest = SoftwareQueue::of(id, interface);
        let own = |vlan: &super::Vlan| {
            let queue = SoftwareQueue::of(vlan.id, &vlan.interface)?;
            let on_wire = self.on_wire(vlan).filter(|wire| wire.lower == id)?;
            Some((on_wire.tags, queue))
        };
        let mut vlans: Vec<_> = self.vlans.iter().filter_map(own).collect();
        vlans.sort_by_key(|(tags, _)| tags.inner.is_some());
        let nothing = SoftwareQueue { interface: id, queue: QueueConfig::default(), shape: None };
        let rest = rest.or((!vlans.is_empty()).then_some(nothing))?;
        Some(EgressQueues { rest, vlans })
    }

    /// Returns all queues in software, each once.
    pub fn software_queues(&self) -> Vec<SoftwareQueue> {
        let mut all = Vec::new();
        for queues in self.ports.iter().filter_map(|port| self.egress_queues(port)) {
            // The ports of a bond have the same ones.
            let is_known =
                all.iter().any(|of: &SoftwareQueue| of.interface == queues.rest.interface);
            all.extend(queues.all().filter(|_| !is_known));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use dataplane::catalogue::Catalogue;
    use dataplane::transmit::{Discipline, LENGTH};

    use super::super::{Limits, parse};
    use super::*;

    fn read(more: &str) -> Config {
        let text = format!(
            "local turnpike = require 'turnpike'
             turnpike.port 'a' {{ device = 'eth0' }}
             turnpike.port 'b' {{ device = 'eth1' }}
             turnpike.port 'c' {{ device = 'eth2', queue = {{ length = 7 }} }}\n{more}"
        );
        parse("t.lua".as_ref(), &text, Limits::default(), &Catalogue::default()).unwrap()
    }

    #[test]
    fn a_port_has_the_queues_of_its_vlans_and_a_vlan_comes_before_those_inside_it() {
        let config = read(
            "turnpike.vlan 'c.5.6' { parent = 'c.5', id = 6, queue = { length = 3 } }
             turnpike.vlan 'c.5' { parent = 'c', id = 5, shape = '1mbit' }
             turnpike.vlan 'c.8' { parent = 'c', id = 8 }
             turnpike.vlan 'a.1' { parent = 'a', id = 1, shape = '2mbit' }",
        );
        let of = |at: usize| config.egress_queues(&config.ports[at]);
        let names = |queues: &EgressQueues| -> Vec<_> {
            let name = |of: SoftwareQueue| config.interfaces().find(|(id, ..)| *id == of.interface);
            queues.all().filter_map(name).map(|(_, name, _)| name.to_owned()).collect()
        };
        let c = of(2).unwrap();
        assert_eq!(names(&c), ["c", "c.5", "c.5.6"]);
        assert_eq!((c.rest.queue.length, c.rest.shape), (7, None));
        let [(outer, five), (both, six)] = &c.vlans[..] else { unreachable!() };
        assert_eq!((outer.outer.id, outer.inner, five.queue.length), (5, None, LENGTH));
        assert_eq!(five.shape.map(|shape| shape.rate), Some(125_000));
        assert_eq!((both.inner.map(|tag| tag.id), six.shape), (Some(6), None));
        assert_eq!(c.buffers(), 7 + 256 + 128 + 1000 + 256 + 3 + 3);
        let a = of(0).unwrap();
        assert_eq!(
            (names(&a), a.rest.queue.discipline),
            (vec!["a".into(), "a.1".into()], Discipline::Fifo)
        );
        assert_eq!(of(1), None);
    }

    #[test]
    fn the_ports_of_a_bond_have_its_queues() {
        let config = read(
            "turnpike.bond 'lag' { ports = { 'a', 'b' }, shape = '1gbit' }
             turnpike.vlan 'lag.5' { parent = 'lag', id = 5, queue = {} }",
        );
        let [a, b] = [0, 1].map(|at: usize| config.egress_queues(&config.ports[at]).unwrap());
        assert_eq!(a, b);
        assert_eq!(a.rest.interface, config.bonds[0].id);
        assert_eq!(a.vlans[0].1.interface, config.vlans[0].id);
        let all: Vec<_> = config.software_queues().iter().map(|of| of.interface.index()).collect();
        assert_eq!(all, [64, 65, 2]);
    }
}

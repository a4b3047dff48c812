//! The machine, and the place of ports and forwarders on it.

use std::collections::BTreeMap;

use api::report::topology::{
    Cache, Core, Forwarder, Hugepages, Node, Queue, Topology, TopologyPort,
};
use control::config::Device;
use machine::Machine;
use machine::cpu::{self, Cpus};
use machine::memory::NodeMemory;

use super::Owner;

/// The router's part of `show topology`. The machine's is some thousand files of the kernel on a large one,
/// which would hold the owner up: another thread reads them.
pub struct Placement {
    /// Ports whose nodes are not known yet, with their devices.
    ports: Vec<(TopologyPort, Option<Device>)>,
    /// The cores of the forwarders.
    cores: Vec<usize>,
}

impl Owner {
    /// The ports and forwarders as they are now.
    pub(super) fn placement(&self) -> Placement {
        let ports = self.devices.ports.iter().map(|port| {
            let wanted = self.configurations.current.port(port.id);
            let shown = TopologyPort {
                name: port.name.clone(),
                device: port.device.clone(),
                driver: port.port.driver().to_owned(),
                node: None,
                rx: self
                    .forwarding
                    .wiring
                    .iter()
                    .flat_map(|wiring| wiring.receivers(port.id))
                    .copied()
                    .collect(),
                tx_queues: port.queues.1,
            };
            (shown, wanted.map(|wanted| wanted.device.clone()))
        });
        Placement {
            ports: ports.collect(),
            cores: self
                .forwarding
                .wiring
                .iter()
                .flat_map(|wiring| wiring.seats())
                .map(|seat| seat.core)
                .collect(),
        }
    }
}

impl Placement {
    /// The machine with the router on it.
    pub fn on(self, machine: &Machine) -> Topology {
        let (cpus, memory) = (machine.cpus(), machine.memory());
        let port = |(port, device): (TopologyPort, Option<Device>)| {
            let node = device.and_then(|device| machine.node_of(&device));
            TopologyPort { node, ..port }
        };
        let ports: Vec<_> = self.ports.into_iter().map(port).collect();
        let forwarders = self.cores.into_iter().enumerate();
        let forwarders = forwarders.map(|(number, core)| forwarder(number, core, &cpus, &ports));
        Topology {
            nodes: cpus.nodes.keys().map(|&number| node(number, &cpus, &memory)).collect(),
            forwarders: forwarders.collect(),
            ports,
        }
    }
}

fn forwarder(number: usize, core: usize, cpus: &Cpus, ports: &[TopologyPort]) -> Forwarder {
    let queues = ports.iter().flat_map(|port| {
        let served = port.rx.iter().enumerate().filter(|(_, server)| **server == number);
        served.map(|(queue, _)| Queue { port: port.name.clone(), queue })
    });
    Forwarder { forwarder: number, core, node: cpus.node_of(core), queues: queues.collect() }
}

fn node(number: usize, cpus: &Cpus, memory: &BTreeMap<usize, NodeMemory>) -> Node {
    let memory = memory.get(&number).cloned().unwrap_or_default();
    let hugepages = memory.hugepages.into_iter();
    let node = &cpus.nodes[&number];
    // Each physical core once, by its first thread.
    let cores = node.cores.iter().filter_map(|core| Some((core, cpus.cores.get(core)?)));
    let cores = cores.filter(|(thread, core)| core.siblings.first() == Some(thread));
    Node {
        node: number,
        memory_kb: memory.total_kb,
        free_kb: memory.free_kb,
        hugepages: hugepages
            .map(|(size_kb, pages)| Hugepages { size_kb, total: pages.total, free: pages.free })
            .collect(),
        distances: node.distances.clone(),
        cores: cores.map(|(_, core)| physical(core)).collect(),
    }
}

fn physical(core: &cpu::Core) -> Core {
    let cache = |cache: &cpu::Cache| Cache {
        level: cache.level,
        size_kb: cache.size_kb,
        cores: cache.cores.iter().copied().collect(),
    };
    Core {
        threads: core.siblings.iter().copied().collect(),
        package: core.package,
        caches: core.caches.iter().map(cache).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::testing::Tree;

    #[test]
    fn ports_and_forwarders_are_placed() {
        let tree = Tree::two_nodes();
        tree.pci("0000:83:00.0", Some("vfio-pci"), "1");
        let port = |name: &str, rx: &[usize]| TopologyPort {
            name: name.to_owned(),
            device: String::new(),
            driver: String::new(),
            node: None,
            rx: rx.to_vec(),
            tx_queues: 2,
        };
        let pci = (port("left", &[1, 0, 1]), Some(Device::Pci("0000:83:00.0".to_owned())));
        let gone = (port("right", &[0]), None);
        let topology = Placement { ports: vec![pci, gone], cores: vec![1, 5] }.on(&tree.machine());
        let nodes: Vec<_> = topology.ports.iter().map(|port| port.node).collect();
        assert_eq!((nodes, topology.nodes.len()), (vec![Some(1), None], 2));
        let forwarders = topology.forwarders.iter().map(|one| {
            let queues = one.queues.iter().map(|queue| format!("{} {}", queue.port, queue.queue));
            (one.forwarder, one.core, one.node, queues.collect::<Vec<_>>().join(","))
        });
        let expected = [(0, 1, Some(0), "left 1,right 0"), (1, 5, Some(1), "left 0,left 2")];
        let expected =
            expected.map(|(number, core, node, queues)| (number, core, node, queues.to_owned()));
        assert_eq!(forwarders.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_node_has_each_physical_core_once() {
        let tree = Tree::two_nodes();
        let machine = tree.machine();
        let node = node(1, &machine.cpus(), &machine.memory());
        assert_eq!((node.memory_kb, node.free_kb), (Some(32 << 20), Some(16 << 20)));
        assert_eq!(node.hugepages[0], Hugepages { size_kb: 2048, total: 1024, free: 1000 });
        assert_eq!((node.distances.as_slice(), node.cores.len()), (&[21, 10][..], 4));
        let core = &node.cores[2];
        assert_eq!((core.threads.as_slice(), core.package), (&[6, 14][..], Some(1)));
        assert_eq!((core.caches[2].level, core.caches[2].cores.len()), (3, 8));
    }
}

//! NUMA nodes, cores, SMT siblings and caches.
//!
//! A *core* is, as in configurations, what Linux counts as a CPU: a thread of a physical core.

use std::collections::{BTreeMap, BTreeSet};

use super::{Machine, numbered};

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus {
    /// NUMA nodes by number; only node 0 if the kernel reports none.
    pub nodes: BTreeMap<usize, Node>,
    /// Online cores, by number.
    pub cores: BTreeMap<usize, Core>,
}

/// A NUMA node: cores with the memory that is nearest to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its online cores; none for a node of memory only.
    pub cores: BTreeSet<usize>,
    /// Distances to the nodes in the order of their numbers; its own is usually 10.
    pub distances: Vec<usize>,
}

/// A core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its NUMA node.
    pub node: usize,
    /// Its socket, if the kernel reports it.
    pub package: Option<usize>,
    /// Threads of the same physical core, including itself.
    pub siblings: BTreeSet<usize>,
    /// Its caches except instruction caches, the nearest first.
    pub caches: Vec<Cache>,
}

/// A cache of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u8,
    /// Kilobytes.
    pub size_kb: usize,
    /// The cores that share it.
    pub cores: BTreeSet<usize>,
}

impl Machine {
    /// Returns the nodes and cores.
    pub fn cpus(&self) -> Cpus {
        let online = self.list("/sys/devices/system/cpu/online").unwrap_or_default();
        let nodes = self.nodes(&online);
        let node_of = |core: usize| {
            let node = nodes.iter().find(|(_, node)| node.cores.contains(&core));
            node.map_or(0, |(&number, _)| number)
        };
        let cores = online.iter().map(|&core| (core, self.core(core, node_of(core)))).collect();
        Cpus { nodes, cores }
    }

    fn nodes(&self, online: &BTreeSet<usize>) -> BTreeMap<usize, Node> {
        const NODES: &str = "/sys/devices/system/node";
        let numbers = self.names(NODES).into_iter().filter_map(|name| numbered(&name, "node"));
        let node = |number: usize| {
            let base = format!("{NODES}/node{number}");
            let cores = self.list(&format!("{base}/cpulist")).unwrap_or_default();
            let distances = self.read(&format!("{base}/distance")).unwrap_or_default();
            let distances = distances.split_whitespace().filter_map(|text| text.parse().ok());
            let cores = cores.intersection(online).copied().collect();
            (number, Node { cores, distances: distances.collect() })
        };
        let nodes: BTreeMap<usize, Node> = numbers.map(node).collect();
        if nodes.is_empty() {
            // A kernel without NUMA.
            return BTreeMap::from([(0, Node { cores: online.clone(), distances: vec![10] })]);
        }
        nodes
    }

    fn core(&self, core: usize, node: usize) -> Core {
        let base = format!("/sys/devices/system/cpu/cpu{core}");
        let siblings = self.list(&format!("{base}/topology/thread_siblings_list"));
        let mut siblings = siblings.unwrap_or_default();
        siblings.insert(core);
        let package = self.number(&format!("{base}/topology/physical_package_id"));
        Core { node, package, siblings, caches: self.caches(&format!("{base}/cache")) }
    }

    fn caches(&self, base: &str) -> Vec<Cache> {
        let cache = |name: &String| {
            numbered(name, "index")?;
            let read = |file: &str| self.read(&format!("{base}/{name}/{file}"));
            if read("type")? == "Instruction" {
                return None;
            }
            Some(Cache {
                level: read("level")?.parse().ok()?,
                size_kb: kilobytes(&read("size")?)?,
                cores: self.list(&format!("{base}/{name}/shared_cpu_list"))?,
            })
        };
        let mut caches: Vec<_> = self.names(base).iter().filter_map(cache).collect();
        caches.sort_by_key(|cache| cache.level);
        caches
    }
}

impl Cpus {
    /// Returns the node of a core; `None` for a core that is not online.
    pub fn node_of(&self, core: usize) -> Option<usize> {
        self.cores.get(&core).map(|core| core.node)
    }

    /// Returns the other threads of the same physical core.
    pub fn siblings(&self, core: usize) -> impl Iterator<Item = usize> + '_ {
        let siblings = self.cores.get(&core).into_iter().flat_map(|core| core.siblings.iter());
        siblings.copied().filter(move |&sibling| sibling != core)
    }

    /// Returns the first thread of each physical core, by number.
    pub fn physical(&self) -> BTreeSet<usize> {
        self.cores.values().filter_map(|core| core.siblings.first().copied()).collect()
    }

    /// Returns true if the machine has memory that is farther from some cores than from others.
    pub fn is_numa(&self) -> bool {
        self.nodes.len() > 1
    }
}

/// Parses `32K`, `2M`.
fn kilobytes(text: &str) -> Option<usize> {
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let factor = match unit {
        "K" => 1,
        "M" => 1 << 10,
        "G" => 1 << 20,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    fn set(cores: &[usize]) -> BTreeSet<usize> {
        cores.iter().copied().collect()
    }

    #[test]
    fn nodes_siblings_and_caches_are_read() {
        let cpus = Tree::two_nodes().machine().cpus();
        assert_eq!(cpus.nodes.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(cpus.nodes[&1].cores, set(&[4, 5, 6, 7, 12, 13, 14, 15]));
        assert_eq!(cpus.nodes[&1].distances, [21, 10]);
        assert_eq!((cpus.cores.len(), cpus.node_of(13), cpus.node_of(16)), (16, Some(1), None));
        assert_eq!(cpus.siblings(5).collect::<Vec<_>>(), [13]);
        assert_eq!((cpus.physical(), cpus.is_numa()), (set(&[0, 1, 2, 3, 4, 5, 6, 7]), true));
        let core = &cpus.cores[&9];
        assert_eq!((core.package, core.siblings.clone()), (Some(0), set(&[1, 9])));
        let levels: Vec<_> = core
            .caches
            .iter()
            .map(|cache| (cache.level, cache.size_kb, cache.cores.len()))
            .collect();
        assert_eq!(levels, [(1, 48, 2), (2, 2048, 2), (3, 32 << 10, 8)]);
    }

    #[test]
    fn cores_that_are_off_are_left_out() {
        let tree = Tree::two_nodes();
        tree.write("sys/devices/system/cpu/online", "0-3");
        let cpus = tree.machine().cpus();
        assert_eq!((cpus.cores.len(), cpus.nodes[&1].cores.len()), (4, 0));
    }

    #[test]
    fn without_numa_there_is_one_node() {
        let tree = Tree::new(&[("sys/devices/system/cpu/online", "0-1")]);
        let cpus = tree.machine().cpus();
        assert_eq!((cpus.nodes.len(), cpus.is_numa(), cpus.node_of(1)), (1, false, Some(0)));
        assert_eq!(cpus.siblings(1).count(), 0);
        assert!(cpus.cores[&0].caches.is_empty());
        let nothing = Tree::new(&[]).machine().cpus();
        assert!(nothing.cores.is_empty() && nothing.node_of(0).is_none());
    }

    #[test]
    fn sizes_have_units() {
        let sizes = ["48K", "32M", "1G", "12", "K", "", "99999999999999999999M"].map(kilobytes);
        assert_eq!(sizes, [Some(48), Some(32 << 10), Some(1 << 20), None, None, None, None]);
    }
}

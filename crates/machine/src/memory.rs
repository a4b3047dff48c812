//! Memory and hugepages, by NUMA node.

use std::collections::BTreeMap;

use super::{Machine, numbered};

/// The memory of a NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// Kilobytes of memory, if the kernel reports it.
    pub total_kb: Option<usize>,
    /// Kilobytes of free memory.
    pub free_kb: Option<usize>,
    /// Hugepages by size in kilobytes.
    pub hugepages: BTreeMap<usize, Hugepages>,
}

/// Hugepages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hugepages {
    /// Reserved.
    pub total: usize,
    /// Free ones.
    pub free: usize,
}

impl Machine {
    /// Returns the memory of each node; a kernel without NUMA has one node, 0.
    pub fn memory(&self) -> BTreeMap<usize, NodeMemory> {
        const NODES: &str = "/sys/devices/system/node";
        let numbers = self.names(NODES).into_iter().filter_map(|name| numbered(&name, "node"));
        let node = |number: usize| {
            let base = format!("{NODES}/node{number}");
            let meminfo = self.read(&format!("{base}/meminfo")).unwrap_or_default();
            let of_node = |line| meminfo_line(&meminfo, line);
            let memory = NodeMemory {
                total_kb: of_node("MemTotal:"),
                free_kb: of_node("MemFree:"),
                hugepages: self.hugepages(&format!("{base}/hugepages")),
            };
            (number, memory)
        };
        let nodes: BTreeMap<_, _> = numbers.map(node).collect();
        if nodes.is_empty() {
            let total_kb = self.meminfo("MemTotal:");
            let free_kb = self.meminfo("MemFree:");
            let hugepages = self.hugepages("/sys/kernel/mm/hugepages");
            return BTreeMap::from([(0, NodeMemory { total_kb, free_kb, hugepages })]);
        }
        nodes
    }

    /// Returns the kilobytes, or pages, of a line of `/proc/meminfo`, such as `MemAvailable:`.
    pub fn meminfo(&self, line: &str) -> Option<usize> {
        meminfo_line(&self.read("/proc/meminfo")?, line)
    }

    fn hugepages(&self, base: &str) -> BTreeMap<usize, Hugepages> {
        let size = |name: &String| {
            let size_kb = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let size_kb = Some(size_kb).filter(|&size| size > 0)?;
            let number = |file: &str| self.number(&format!("{base}/{name}/{file}"));
            let (total, free) = (number("nr_hugepages")?, number("free_hugepages")?);
            Some((size_kb, Hugepages { total, free }))
        };
        self.names(base).iter().filter_map(size).collect()
    }
}

/// Returns the number after a line's name, which follows `Node 0` in the files of nodes.
fn meminfo_line(text: &str, name: &str) -> Option<usize> {
    let number = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == name)?;
        words.next()?.parse().ok()
    };
    text.lines().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    #[test]
    fn nodes_have_memory_and_hugepages() {
        let memory = Tree::two_nodes().machine().memory();
        let node = &memory[&1];
        assert_eq!((node.total_kb, node.free_kb), (Some(32 << 20), Some(16 << 20)));
        assert_eq!(node.hugepages[&2048], Hugepages { total: 1024, free: 1000 });
        assert_eq!(node.hugepages[&(1 << 20)], Hugepages::default());
    }

    #[test]
    fn without_numa_the_machine_is_one_node() {
        let tree = Tree::new(&[
            ("proc/meminfo", "MemTotal:  100 kB\nMemFree:  60 kB\nHugePages_Total:  3\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "2"),
            ("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "many"),
        ]);
        let memory = tree.machine().memory();
        assert_eq!(
            (memory.len(), memory[&0].total_kb, memory[&0].free_kb),
            (1, Some(100), Some(60))
        );
        assert_eq!(memory[&0].hugepages, [(2048, Hugepages { total: 3, free: 2 })].into());
        assert_eq!(tree.machine().meminfo("HugePages_Total:"), Some(3));
        assert_eq!(tree.machine().meminfo("None:"), None);
    }
}

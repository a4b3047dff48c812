//! Machines made of files, for tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use super::Machine;

/// A file system with the files of a machine.
pub struct Tree(TempDir);

impl Tree {
    /// Creates a tree with these files.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| tree.write(path, text));
        tree
    }

    /// Creates two nodes of four cores with two threads each: threads `n` and `n + 8` share a core,
    /// the cores of a node its L3 cache; memory and hugepages on both nodes.
    pub fn two_nodes() -> Self {
        let tree = Self::new(&[
            ("sys/devices/system/cpu/online", "0-15"),
            ("sys/devices/system/cpu/isolated", ""),
            ("sys/devices/system/cpu/nohz_full", "(null)"),
            ("sys/devices/system/node/online", "0-1"),
            ("proc/sys/kernel/osrelease", "6.1.0-41-amd64\n"),
            ("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-6.1.0-41-amd64 root=/dev/sda1 ro quiet\n"),
        ]);
        for node in 0..2 {
            let (first, last) = (4 * node, 4 * node + 3);
            let cores = format!("{first}-{last},{}-{}", first + 8, last + 8);
            let base = format!("sys/devices/system/node/node{node}");
            tree.write(&format!("{base}/cpulist"), &cores);
            let distance = if node == 0 { "10 21" } else { "21 10" };
            tree.write(&format!("{base}/distance"), distance);
            let meminfo =
                format!("Node {node} MemTotal:  33554432 kB\nNode {node} MemFree:  16777216 kB\n");
            tree.write(&format!("{base}/meminfo"), &meminfo);
            tree.hugepages(node, 2048, 1024, 1000);
            tree.hugepages(node, 1_048_576, 0, 0);
            for thread in (first..=last).chain(first + 8..=last + 8) {
                tree.core(thread, node, &cores);
            }
        }
        tree
    }

    fn core(&self, thread: usize, node: usize, of_node: &str) {
        let base = format!("sys/devices/system/cpu/cpu{thread}");
        let siblings = format!("{},{}", thread % 8, thread % 8 + 8);
        self.write(&format!("{base}/topology/thread_siblings_list"), &siblings);
        self.write(&format!("{base}/topology/physical_package_id"), node.to_string());
        for (index, level, kind, size, shared) in [
            (0, 1, "Data", "48K", siblings.as_str()),
            (1, 1, "Instruction", "32K", &siblings),
            (2, 2, "Unified", "2048K", &siblings),
            (3, 3, "Unified", "32M", of_node),
        ] {
            let cache = format!("{base}/cache/index{index}");
            self.write(&format!("{cache}/level"), level.to_string());
            self.write(&format!("{cache}/type"), kind);
            self.write(&format!("{cache}/size"), size);
            self.write(&format!("{cache}/shared_cpu_list"), shared);
        }
    }

    /// Reserves hugepages of one size on a node, of which some are free.
    pub fn hugepages(&self, node: usize, size_kb: usize, total: usize, free: usize) {
        let base = format!("sys/devices/system/node/node{node}/hugepages/hugepages-{size_kb}kB");
        self.write(&format!("{base}/nr_hugepages"), total.to_string());
        self.write(&format!("{base}/free_hugepages"), free.to_string());
    }

    /// Adds a PCI device with this driver on this node.
    pub fn pci(&self, address: &str, driver: Option<&str>, node: &str) {
        let base = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{base}/numa_node"), node);
        self.write(&format!("{base}/class"), "0x020000");
        if let Some(driver) = driver {
            self.link(&format!("{base}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
        }
    }

    /// Adds an IOMMU group with the kind of its domain and these devices.
    pub fn group(&self, number: usize, kind: &str, addresses: &[&str]) {
        let base = format!("sys/kernel/iommu_groups/{number}");
        self.write(&format!("{base}/type"), format!("{kind}\n"));
        for address in addresses {
            self.write(&format!("{base}/devices/{address}"), "");
            let link = format!("sys/bus/pci/devices/{address}/iommu_group");
            self.link(&link, &format!("../../../kernel/iommu_groups/{number}"));
        }
    }

    /// Writes a file, with its directories.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Removes a file or a directory.
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// Creates a symbolic link, whose target need not exist.
    pub fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    /// Returns all files.
    pub fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut directories = vec![self.0.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => directories.push(entry.path()),
                    kind if kind.is_file() => {
                        let path = entry.path();
                        let path = path.strip_prefix(self.0.path()).unwrap();
                        files.push(path.to_string_lossy().into_owned());
                    }
                    _ => {}
                }
            }
        }
        files.sort_unstable();
        files
    }

    /// Returns the machine.
    pub fn machine(&self) -> Machine {
        Machine::at(self.0.path())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }
}

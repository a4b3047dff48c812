//! Data about the machine: nodes, cores, caches, memory, the kernel and its modules, from `/sys`
//! and `/proc`.
//!
//! No function fails: an absent file, of which containers and virtual machines have many, or one
//! with unexpected contents gives `None` or an empty list, and the caller reports "cannot tell".
//!
//! ```text
//!   cores.rs    cores of forwarders and of everything else, and keeping threads there
//!   cpu.rs      NUMA nodes, cores, SMT siblings, caches         Cpus
//!   memory.rs   memory and hugepages by node                    NodeMemory
//!   nic.rs      driver and node of a network device             Nic
//!   pci.rs      NICs on the PCI bus, their groups and users     PciNic
//!   network.rs  interfaces, addresses, sessions                 Network
//!   tasks.rs    threads, and what else cores do             Task, CoreInterruptions
//!   kernel.rs   release, command line, modules, limits
//! ```
#![forbid(unsafe_code)]

pub mod bind;
pub mod cores;
pub mod cpu;
pub mod kernel;
pub mod memory;
pub mod network;
pub mod nic;
pub mod pci;
pub mod place;
pub mod tasks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::sync::OnceLock;

use control::cores::parse_cores;

/// Most bytes that are read of one file: `/proc/cpuinfo` of a large machine has a megabyte.
const MOST: u64 = 16 << 20;

/// A machine, given by the root of its file system.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    /// Of [`pci`], read when first asked for.
    pci_modules: OnceLock<Vec<pci::Alias>>,
}

impl Machine {
    /// Returns the machine that the program runs on.
    pub fn here() -> Self {
        Self::at("/")
    }

    /// Returns a machine whose `/sys` and `/proc` are below this directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), pci_modules: OnceLock::new() }
    }

    /// Returns the path of a file of the machine.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the text of a file, without white space around it.
    pub fn read(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.path(path)).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the number in a file.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// Returns the list of cores or nodes in a file: `0-3,8`, or empty.
    pub fn list(&self, path: &str) -> Option<BTreeSet<usize>> {
        parse_list(&self.read(path)?)
    }

    /// Returns the set of cores in a file with a mask: `ff,fffffff0`.
    pub fn mask(&self, path: &str) -> Option<BTreeSet<usize>> {
        parse_mask(&self.read(path)?)
    }

    /// Returns the names in a directory, sorted; none if it is absent.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the numbers of an interface's receive and transmit queues; 0 if it is absent.
    pub fn queues(&self, interface: &str) -> (usize, usize) {
        let queues = self.names(&format!("/sys/class/net/{interface}/queues"));
        let count = |start: &str| queues.iter().filter(|queue| queue.starts_with(start)).count();
        (count("rx-"), count("tx-"))
    }

    /// Returns the last component of a symbolic link's target.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the whole target of a symbolic link.
    pub fn target(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.path(path)).ok()?.to_string_lossy().into_owned())
    }

    /// Returns true for a file, false for a directory.
    pub fn is_file(&self, path: &str) -> bool {
        self.path(path).is_file()
    }

    /// Returns true if the file or directory exists.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}

/// Parses a list in the kernel's notation; `(null)` means empty.
pub fn parse_list(text: &str) -> Option<BTreeSet<usize>> {
    match text.trim() {
        "" | "(null)" => Some(BTreeSet::new()),
        text => parse_cores(text).ok().map(BTreeSet::from_iter),
    }
}

/// Formats numbers in the notation of the kernel and the configuration: `0-3,8`.
pub fn list_text<'a>(numbers: impl IntoIterator<Item = &'a usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |&(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// Parses a mask in the kernel's notation: hexadecimal words of 32 bits, the highest first.
fn parse_mask(text: &str) -> Option<BTreeSet<usize>> {
    const WORD: usize = 32;
    let mut cores = BTreeSet::new();
    for (number, word) in text.trim().rsplit(',').enumerate() {
        let word = u32::from_str_radix(word, 16).ok()?;
        cores.extend((0..WORD).filter(|bit| word >> bit & 1 == 1).map(|bit| WORD * number + bit));
    }
    Some(cores)
}

/// Formats a set of cores as a mask in the kernel's notation.
pub fn mask_text(cores: &BTreeSet<usize>) -> String {
    const WORD: usize = 32;
    let words = cores.last().map_or(0, |last| last / WORD) + 1;
    let word = |number: usize| {
        let bits = (0..WORD).filter(|bit| cores.contains(&(WORD * number + bit)));
        bits.fold(0_u32, |word, bit| word | 1 << bit)
    };
    let rest: String =
        (0..words - 1).rev().map(|number| format!(",{:08x}", word(number))).collect();
    format!("{:x}{rest}", word(words - 1))
}

/// Returns the number after a prefix: `cpu12`.
fn numbered(name: &str, prefix: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::Tree;
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        let set = |numbers: &[usize]| Some(numbers.iter().copied().collect::<BTreeSet<_>>());
        assert_eq!(parse_list("0-3,8\n"), set(&[0, 1, 2, 3, 8]));
        assert_eq!((parse_list(""), parse_list("(null)")), (set(&[]), set(&[])));
        assert_eq!(parse_list("all"), None);
        assert_eq!(list_text(&parse_list("0-3,5,8-9").unwrap()), "0-3,5,8-9");
        assert_eq!(list_text(&[]), "");
    }

    #[test]
    fn masks_are_read_and_written_as_the_kernel_does() {
        let set = |numbers: &[usize]| numbers.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(parse_mask("3\n"), Some(set(&[0, 1])));
        assert_eq!(parse_mask("00000001,80000000"), Some(set(&[31, 32])));
        assert_eq!((parse_mask("x"), parse_mask("1ffffffff")), (None, None));
        assert_eq!(mask_text(&set(&[31, 32])), "1,80000000");
        assert_eq!(mask_text(&set(&[])), "0");
    }

    #[test]
    fn what_is_absent_is_none() {
        let tree = Tree::new(&[("sys/a/b", "7\n")]);
        tree.link("sys/a/driver", "../../bus/drivers/e1000e");
        let machine = tree.machine();
        assert_eq!(
            (machine.number::<u8>("/sys/a/b"), machine.number::<u8>("/sys/a")),
            (Some(7), None)
        );
        assert_eq!(machine.link("/sys/a/driver").as_deref(), Some("e1000e"));
        assert_eq!((machine.link("/sys/a/b"), machine.read("/none")), (None, None));
        assert_eq!(machine.names("/sys/a"), ["b", "driver"]);
        assert!(
            machine.names("/none").is_empty() && !machine.has("/none") && machine.has("/sys/a")
        );
    }

    proptest! {
        #[test]
        fn any_list_survives_being_written(numbers in prop::collection::btree_set(0_usize..4096, 0..50)) {
            prop_assert_eq!(parse_list(&list_text(&numbers)), Some(numbers));
        }

        #[test]
        fn any_mask_survives_being_written(cores in prop::collection::btree_set(0_usize..300, 0..50)) {
            prop_assert_eq!(parse_mask(&mask_text(&cores)), Some(cores));
        }

        #[test]
        fn no_text_makes_a_list_panic(text in "[0-9,\\- a(\u{0}]{0,20}") {
            let _ = (parse_list(&text), parse_mask(&text));
        }
    }
}

//! Drivers of virtual devices, as DPDK's libraries name them.
//!
//! A driver's library has a text for tools, which `dpdk-pmdinfo` reads: `PMD_INFO_STRING= {"name": "net_tap", …`.
//! DPDK itself can be queried only once it has started.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::path::Path;

use dpdk_sys as sys;
use memchr::memmem;

const MARK: &[u8] = b"PMD_INFO_STRING= {\"name\": \"";

/// Most bytes read of one library.
const MOST: u64 = 64 << 20;

/// Returns the names with which virtual devices can begin; none if DPDK's libraries are not found, or have no such
/// text.
pub fn virtual_drivers() -> BTreeSet<String> {
    virtual_drivers_of("librte_net_")
}

/// Like [`virtual_drivers`], of event devices.
pub(crate) fn event_drivers() -> BTreeSet<String> {
    virtual_drivers_of("librte_event_")
}

fn virtual_drivers_of(libraries: &str) -> BTreeSet<String> {
    let place =
        CStr::from_bytes_until_nul(sys::RTE_EAL_PMD_PATH).ok().and_then(|path| path.to_str().ok());
    place.map_or_else(BTreeSet::new, |path| virtual_drivers_in(Path::new(path), libraries))
}

fn virtual_drivers_in(directory: &Path, libraries: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let libraries =
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(libraries));
    // A library has links of several names.
    let files: BTreeSet<_> =
        libraries.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect();
    let small = files.iter().filter(|file| file.metadata().is_ok_and(|found| found.len() <= MOST));
    let texts = small.filter_map(|file| fs::read(file).ok());
    texts.flat_map(|bytes| names(&bytes)).collect()
}

/// Returns the drivers of virtual devices in a library: unlike others they have no PCI devices.
fn names(bytes: &[u8]) -> Vec<String> {
    let name = |at: usize| {
        let text = bytes[at + MARK.len()..].split(|&byte| byte == 0).next()?;
        let text = String::from_utf8_lossy(text);
        let (name, what) = text.split_once('"')?;
        what.contains("\"pci_ids\": []").then(|| name.to_owned())
    };
    memmem::find_iter(bytes, MARK).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_named_by_their_libraries() {
        let taps = b"P PMD_INFO_STRING= {\"name\": \"net_tap\", \"pci_ids\": []}\0x\
            PMD_INFO_STRING= {\"name\": \"net_tun\", \"params\": \"iface=<>\", \"pci_ids\": []}\0";
        assert_eq!(names(taps), ["net_tap", "net_tun"]);
        let nic = b"PMD_INFO_STRING= {\"name\": \"net_ixgbe\", \"pci_ids\": [[32902, 4278]]}\0";
        assert!(names(nic).is_empty(), "it is a driver of PCI devices");
        assert!(names(b"PMD_INFO_STRING= {\"name\": \"net_c").is_empty());
        assert!(virtual_drivers_in(Path::new("/nonexistent"), "librte_net_").is_empty());
    }

    /// Checks the drivers that the scenarios use, where DPDK has its drivers in libraries.
    #[test]
    fn this_dpdk_has_the_drivers_that_the_router_uses() {
        let found = virtual_drivers();
        for name in ["net_af_packet", "net_af_xdp", "net_tap", "net_null"] {
            assert!(found.is_empty() || found.contains(name), "{name}: {found:?}");
        }
    }
}

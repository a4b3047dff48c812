//! Virtual MACs: further addresses at which an interface receives frames, those of redundancy protocols.
//!
//! A router that is master of a virtual router (VRRP, RFC 5798) receives what hosts send to the virtual router's MAC,
//! and routes it like frames to its own; a backup drops such frames (RFC 5798, 6.4.2). Which addresses an interface
//! has changes with each election, so forwarders look here, and only for frames that are not to the interface's own MAC.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use wire::MacAddr;

use crate::head::mac_bits;
use crate::interface::InterfaceId;

/// Most virtual MACs of a router.
pub const VIRTUAL_MACS_MOST: usize = 256;

/// The virtual MACs of all interfaces. One thread sets them while forwarders read.
#[derive(Debug)]
pub struct VirtualMacs {
    /// See [`packed`]; 0 for none.
    entries: [AtomicU64; VIRTUAL_MACS_MOST],
    /// Entries in use are below this.
    end: AtomicUsize,
}

impl Default for VirtualMacs {
    fn default() -> Self {
        let entries = [const { AtomicU64::new(0) }; VIRTUAL_MACS_MOST];
        Self { entries, end: AtomicUsize::new(0) }
    }
}

/// An address, as [`mac_bits`] returns it, and above it the interface's number.
fn packed(interface: InterfaceId, address: u64) -> u64 {
    address | ((interface.index() as u64) << 48)
}

impl VirtualMacs {
    /// Replaces all of them; those that stay are there all the time. Returns the number of those for which there is
    /// no room.
    pub fn set(&self, wanted: &[(InterfaceId, MacAddr)]) -> usize {
        let mut missing: Vec<u64> =
            wanted.iter().map(|&(interface, mac)| packed(interface, mac_bits(&mac.0))).collect();
        missing.sort_unstable();
        missing.dedup();
        for entry in &self.entries {
            let value = entry.load(Ordering::Relaxed);
            match missing.binary_search(&value) {
                Ok(at) => drop(missing.remove(at)),
                Err(_) => entry.store(0, Ordering::Relaxed),
            }
        }
        let free = self.entries.iter().filter(|entry| entry.load(Ordering::Relaxed) == 0);
        let mut missing = missing.into_iter();
        for (entry, value) in free.zip(&mut missing) {
            entry.store(value, Ordering::Relaxed);
        }
        let used = |entry: &AtomicU64| entry.load(Ordering::Relaxed) != 0;
        let end = self.entries.iter().rposition(used).map_or(0, |last| last + 1);
        self.end.store(end, Ordering::Release);
        missing.len()
    }

    /// Returns true if an interface has this address, as [`mac_bits`] returns it.
    #[inline]
    pub(crate) fn contain(&self, interface: InterfaceId, address: u64) -> bool {
        let end = self.end.load(Ordering::Acquire).min(VIRTUAL_MACS_MOST);
        let wanted = packed(interface, address);
        self.entries[..end].iter().any(|entry| entry.load(Ordering::Relaxed) == wanted)
    }

    /// Returns true if there is any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.end.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn mac(last: u8) -> MacAddr {
        MacAddr([0, 0, 0x5e, 0, 1, last])
    }

    proptest! {
        #[test]
        fn those_that_were_set_last_are_there(
            sets in prop::collection::vec(prop::collection::btree_set((0u16..3, 0u8..4), 0..9), 1..6)
        ) {
            let macs = VirtualMacs::default();
            for set in sets {
                let wanted: BTreeSet<_> = set.into_iter().collect();
                let id = |number| InterfaceId::new(number).unwrap();
                let list: Vec<_> = wanted.iter().map(|&(on, last)| (id(on), mac(last))).collect();
                prop_assert_eq!(macs.set(&list), 0);
                prop_assert_eq!(macs.any(), !wanted.is_empty());
                for on in 0..3 {
                    for last in 0..4 {
                        let there = macs.contain(id(on), mac_bits(&mac(last).0));
                        prop_assert_eq!(there, wanted.contains(&(on, last)));
                    }
                }
            }
        }
    }

    #[test]
    fn those_beyond_the_most_are_counted() {
        let macs = VirtualMacs::default();
        let many: Vec<_> = (0..300u16)
            .map(|n| (InterfaceId::FIRST, MacAddr([0, 0, 0x5e, 0, (n >> 8) as u8, n as u8])))
            .collect();
        assert_eq!(macs.set(&many), 300 - VIRTUAL_MACS_MOST);
        assert_eq!(macs.set(&[]), 0);
        assert!(!macs.any());
    }
}

//! Receive filter of a device: frames for some addresses, or all. Multicasts have a filter of their own, see
//! `multicast.rs`.
//!
//! A device receives frames for its own address. For another one, that address first replaces its own, or is
//! added to it, before the device is made promiscuous: frames for others cost a forwarder as much as frames
//! that it forwards.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;

use dpdk_sys as sys;

use super::{Attached, Port, PortConfig};
use crate::{Device, Errno, Error};

/// Receive filter as configured in a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    /// The device's own address.
    pub(super) own: [u8; 6],
    /// True if another address replaces it.
    replaced: bool,
    /// True if its reception of all multicasts can be switched.
    pub(super) has_multicasts: bool,
    /// Note for the operator.
    pub(super) note: Option<String>,
}

impl Filter {
    /// Restores the device's own address.
    pub(super) fn undo(&self, id: u16) {
        if self.replaced {
            let mut own = sys::rte_ether_addr { addr_bytes: self.own };
            // SAFETY: the port exists; an address for the call. A device that refuses is reset by its next
            // user.
            unsafe { sys::rte_eth_dev_default_mac_addr_set(id, &mut own) };
        }
    }
}

impl Attached {
    /// Configures the filter of a started device as the port needs it.
    pub(super) fn set_filter(&self, config: &PortConfig) -> Result<Filter, Error> {
        // Until the needed groups are known. A driver without a filter returns an error; for a kernel
        // interface `KernelInterface::take_over` has done it.
        // SAFETY: the port exists.
        let result = unsafe { sys::rte_eth_allmulticast_enable(self.id) };
        let is_kernel = matches!(config.device, Device::Kernel(_));
        if result != -libc::ENOTSUP {
            self.check(config, "receiving all multicasts", result)?;
        }
        let has_multicasts = is_kernel || result != -libc::ENOTSUP;
        let mut filter = Filter { own: address(self.id), has_multicasts, ..Filter::default() };
        let other = config.mac.filter(|mac| *mac != filter.own);
        let all = match other {
            _ if config.promiscuous => true,
            None => false,
            // The kernel's interface keeps its address, which only the host changes.
            Some(_) if is_kernel => true,
            Some(mac) => {
                filter.replaced = self.replace_address(mac);
                !filter.replaced && !self.add_address(mac)
            }
        };
        if all {
            // SAFETY: the port exists.
            let result = unsafe { sys::rte_eth_promiscuous_enable(self.id) };
            self.check(config, "receiving frames for other MAC addresses", result)?;
        }
        if all && !config.promiscuous {
            let device = self.device.to_string_lossy();
            filter.note = Some(format!(
                "{device} takes no MAC address but its own, and receives all frames (promiscuous)"
            ));
        }
        Ok(filter)
    }

    fn replace_address(&self, mac: [u8; 6]) -> bool {
        let mut mac = sys::rte_ether_addr { addr_bytes: mac };
        // SAFETY: the port exists; an address for the call.
        unsafe { sys::rte_eth_dev_default_mac_addr_set(self.id, &mut mac) == 0 }
    }

    fn add_address(&self, mac: [u8; 6]) -> bool {
        let mut mac = sys::rte_ether_addr { addr_bytes: mac };
        // SAFETY: the port exists; an address for the call; no pool of a device with virtual machines.
        unsafe { sys::rte_eth_dev_mac_addr_add(self.id, &mut mac, 0) == 0 }
    }
}

impl Port {
    /// Makes the device receive frames to these addresses besides its own. A device without room for one receives
    /// all frames from then on.
    ///
    /// # Errors
    /// The device neither accepts an address nor receives all frames.
    pub fn set_addresses(&self, wanted: &BTreeSet<[u8; 6]>) -> Result<(), Errno> {
        if let Some(kernel) = &self.open.kernel {
            return kernel.set_addresses(wanted);
        }
        let mut state = self.state();
        if self.open.started.list_by_address(wanted, &mut state.addresses).is_ok() {
            return Ok(());
        }
        // SAFETY: the port is open.
        let result = unsafe { sys::rte_eth_promiscuous_enable(self.id()) };
        if result < 0 {
            return Err(Errno::from_raw(-result));
        }
        state.addresses.clone_from(wanted);
        Ok(())
    }

    /// Returns true if the device receives frames for all addresses.
    pub fn is_promiscuous(&self) -> bool {
        // SAFETY: the port is open.
        unsafe { sys::rte_eth_promiscuous_get(self.id()) == 1 }
    }
}

/// Returns the address that a device has now.
fn address(id: u16) -> [u8; 6] {
    let mut mac = MaybeUninit::<sys::rte_ether_addr>::zeroed();
    // SAFETY: the port exists; the function writes an address, or nothing and fails, and zeros are an
    // address too.
    unsafe {
        sys::rte_eth_macaddr_get(id, mac.as_mut_ptr());
        mac.assume_init().addr_bytes
    }
}

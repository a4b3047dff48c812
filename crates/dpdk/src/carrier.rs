//! The carrier of a kernel interface.

use crate::Errno;
use crate::interface::Interface;

const ETHTOOL_GLINK: u32 = 0x0a;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Reads the carrier of a kernel interface, as its driver has it.
///
/// `IFF_RUNNING` and notifications by netlink follow up to a second later: the kernel reports changes of links in
/// batches (`net/core/link_watch.c`). A request waits for the kernel's lock of network configuration, which other
/// processes may hold for milliseconds.
#[derive(Debug)]
pub struct Carrier(Interface);

impl Carrier {
    /// Reads that of the interface of this name, in the caller's network namespace.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn of(name: &str) -> Result<Self, Errno> {
        Interface::new(name).map(Self)
    }

    pub(crate) fn of_interface(interface: &Interface) -> Result<Self, Errno> {
        interface.try_clone().map(Self)
    }

    /// Returns true if the interface is up and has a carrier. An interface that was removed has none; that of a driver
    /// that does not know is taken from its flags.
    pub fn is_up(&self) -> bool {
        let mut value = Value { command: ETHTOOL_GLINK, data: 0 };
        match self.0.ethtool(&mut value) {
            Ok(()) => value.data != 0,
            Err(_) => self.0.is_running(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_a_carrier_and_an_unknown_interface_has_none() {
        let up = Interface::new("lo").unwrap().is_running();
        assert_eq!(Carrier::of("lo").unwrap().is_up(), up);
        assert!(!Carrier::of("turnpike-none").unwrap().is_up());
    }
}

//! Events of devices: a link change, a removed device, or a device that must be set up anew.
//!
//! ```text
//!   NIC -- interrupt --> DPDK's interrupt thread -- a bit, a wake-up --> owner of the ports
//! ```
//!
//! DPDK calls back on a thread of its own, on which no operation on the device is allowed. The callbacks set
//! one bit per port and write to one descriptor, on which the owner waits like on a socket; they allocate
//! nothing and never block.

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dpdk_sys as sys;

use super::port_of;
use crate::eal::Eal;
use crate::wait::eventfd;
use crate::{Device, Errno, Error};

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The link may have changed.
    Link,
    /// The device is being removed, or is already removed: close the port.
    Removed,
    /// The device was reset externally and does nothing until it is opened anew.
    Reset,
}

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEvent {
    /// The port's number in DPDK, [`Port::id`](super::Port::id).
    pub port: u16,
    /// The kind of event.
    pub what: Happening,
}

/// Bits of ports with events, by kind.
struct Hub {
    signal: OwnedFd,
    links: AtomicU64,
    removed: AtomicU64,
    reset: AtomicU64,
}

const _: () = assert!(sys::RTE_MAX_ETHPORTS <= u64::BITS, "a bit for each port");

/// Static, since DPDK calls back until the process ends.
static HUB: OnceLock<Hub> = OnceLock::new();

impl Hub {
    fn new() -> Result<Self, Errno> {
        let signal = eventfd()?;
        let none = || AtomicU64::new(0);
        Ok(Self { signal, links: none(), removed: none(), reset: none() })
    }

    fn bits(&self, what: Happening) -> &AtomicU64 {
        match what {
            Happening::Link => &self.links,
            Happening::Removed => &self.removed,
            Happening::Reset => &self.reset,
        }
    }

    fn set(&self, port: u16, what: Happening) {
        let Some(bit) = 1u64.checked_shl(port.into()) else { return };
        self.bits(what).fetch_or(bit, Ordering::Release);
        let one = 1u64;
        // SAFETY: a descriptor of ours and eight bytes. If the counter is full, it is readable already.
        unsafe { libc::write(self.signal.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    fn take(&self) -> Vec<DeviceEvent> {
        let mut count = 0u64;
        // Before the bits: a thread that sets one after they are read makes the descriptor readable again.
        // SAFETY: a descriptor of ours and room for eight bytes; it does not block.
        unsafe { libc::read(self.signal.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        let mut events = Vec::new();
        for what in [Happening::Removed, Happening::Reset, Happening::Link] {
            let bits = self.bits(what).swap(0, Ordering::Acquire);
            let ports = (0..u64::BITS as u16).filter(|port| bits >> port & 1 == 1);
            events.extend(ports.map(|port| DeviceEvent { port, what }));
        }
        events
    }
}

/// The events of all devices of the process, for the owner of the ports. Its descriptor is readable when there
/// are some.
#[derive(Clone, Copy)]
pub struct DeviceEvents(&'static Hub);

impl DeviceEvents {
    /// Registers with DPDK. Events of every port are received from now on, including ports opened later.
    ///
    /// # Errors
    /// [`Error::Events`] with the step that failed.
    pub fn listen(_eal: &Eal) -> Result<Self, Error> {
        let failed = |step| move |errno| Error::Events { step, errno };
        if let Some(hub) = HUB.get() {
            return Ok(Self(hub));
        }
        let hub = Hub::new().map_err(failed("making an eventfd"))?;
        let hub = HUB.get_or_init(|| hub);
        let check = |result: i32| if result < 0 { Err(Errno::from_raw(-result)) } else { Ok(()) };
        for event in [
            sys::RTE_ETH_EVENT_INTR_LSC,
            sys::RTE_ETH_EVENT_INTR_RMV,
            sys::RTE_ETH_EVENT_INTR_RESET,
        ] {
            let all = sys::RTE_ETH_ALL as u16;
            // SAFETY: the EAL is up; the function has the right type and is static.
            let result = unsafe {
                sys::rte_eth_dev_callback_register(all, event, Some(on_port), ptr::null_mut())
            };
            check(result).map_err(failed("registering for events of ports"))?;
        }
        // The request to release a device that vfio drives arrives by this, without the monitor below.
        // SAFETY: the EAL is up; no name means all devices; the function has the right type and is static.
        let result = unsafe {
            sys::rte_dev_event_callback_register(ptr::null(), Some(on_device), ptr::null_mut())
        };
        check(result).map_err(failed("registering for events of devices"))?;
        Ok(Self(hub))
    }

    /// Monitors the kernel for devices that vanish under a UIO driver, without a request before, and makes
    /// DPDK map memory in the place of their registers, so that threads that read them just then get invalid
    /// data instead of SIGBUS.
    ///
    /// # Errors
    /// [`Error::Events`] with the step that failed.
    pub fn monitor(&self) -> Result<(), Error> {
        let check = |step, result: i32| match result {
            0.. => Ok(()),
            code => Err(Error::Events { step, errno: Errno::from_raw(-code) }),
        };
        // SAFETY: the EAL is up.
        check("handling access to vanished devices", unsafe {
            sys::rte_dev_hotplug_handle_enable()
        })?;
        // SAFETY: the EAL is up.
        check("listening for devices that vanish", unsafe { sys::rte_dev_event_monitor_start() })
    }

    /// Returns the events since the last call, removals first.
    pub fn take(&self) -> Vec<DeviceEvent> {
        self.0.take()
    }
}

impl AsFd for DeviceEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.signal.as_fd()
    }
}

impl AsRawFd for DeviceEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.0.signal.as_raw_fd()
    }
}

/// Returns true if a device reports changes of its link. Drivers do not report when its interrupts could not
/// be enabled, and then repeat for ever the state that they found first; so only interrupts that are known to
/// arrive are relied upon.
pub(super) fn has_link_interrupts(device: &Device, info: &sys::rte_eth_dev_info) -> bool {
    // SAFETY: null, or the flags of a device that exists, which are kept as long as it is attached.
    let flags = unsafe { info.dev_flags.as_ref() };
    flags.is_some_and(|flags| flags & sys::SHIM_DEV_INTR_LSC != 0)
        && device.has_message_interrupts()
}

/// Called by DPDK's interrupt thread.
extern "C" fn on_port(
    port: u16,
    event: sys::rte_eth_event_type,
    _argument: *mut c_void,
    _answer: *mut c_void,
) -> i32 {
    let what = match event {
        sys::RTE_ETH_EVENT_INTR_RMV => Happening::Removed,
        sys::RTE_ETH_EVENT_INTR_RESET => Happening::Reset,
        _ => Happening::Link,
    };
    if let Some(hub) = HUB.get() {
        hub.set(port, what);
    }
    0
}

/// Called by DPDK's interrupt thread.
extern "C" fn on_device(
    name: *const c_char,
    event: sys::rte_dev_event_type,
    _argument: *mut c_void,
) {
    if event != sys::RTE_DEV_EVENT_REMOVE || name.is_null() {
        return;
    }
    // SAFETY: DPDK passes the device's name, a C string that lives for the call.
    let port = port_of(unsafe { CStr::from_ptr(name) });
    if let (Some(hub), Some(port)) = (HUB.get(), port) {
        hub.set(port, Happening::Removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if the descriptor is readable.
    fn is_readable(hub: &Hub) -> bool {
        let fd = hub.signal.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that lives for the call, which does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn events_of_a_port_are_told_once_however_often_they_came() {
        let hub = Hub::new().unwrap();
        assert!(!is_readable(&hub) && hub.take().is_empty());
        hub.set(3, Happening::Link);
        hub.set(3, Happening::Link);
        hub.set(31, Happening::Removed);
        // No port has such a number.
        hub.set(64, Happening::Reset);
        assert!(is_readable(&hub));
        let removed = DeviceEvent { port: 31, what: Happening::Removed };
        let link = DeviceEvent { port: 3, what: Happening::Link };
        assert_eq!(hub.take(), [removed, link]);
        assert!(!is_readable(&hub) && hub.take().is_empty());
    }
}

//! Receive interrupts: descriptors that report packets in a receive queue.
//!
//! | driver | descriptor | armed |
//! |---|---|---|
//! | `net_af_xdp`, `net_af_packet` | the queue's socket | always |
//! | `net_tap` | the queue's `/dev/net/tun` | always |
//! | those of NICs behind vfio-pci with MSI-X | an eventfd of the queue's vector | by `rte_eth_dev_rx_intr_enable` before each wait |
//! | others: `net_null`, `net_ring`, `net_pcap`, `net_memif` (which tells its peer to send no interrupts) | none | |
//!
//! A socket is readable as long as it has packets. An eventfd counts interrupts and is emptied after each wait.
//! `net_e1000_em` is among the others: it never clears the cause of a receive interrupt, and the next one may not
//! arrive.

use std::os::fd::{BorrowedFd, RawFd};

use dpdk_sys as sys;

use crate::Device;

/// The way in which a receive queue reports packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    /// The descriptor is readable while there are packets.
    Level(RawFd),
    /// The device writes to the descriptor at the next packet once armed.
    Armed(RawFd),
}

/// The interrupts of a port, by receive queue; empty if the device has none, or they are not used.
#[derive(Debug, Default)]
pub(crate) struct RxInterrupts(Vec<Interrupt>);

/// Returns true if a device is to be configured with receive interrupts. NICs are if they have a vector for each
/// interrupt: with fewer vectors the link interrupt would lose its own.
pub(super) fn are_wanted(device: &Device, driver: &str) -> bool {
    driver == "net_tap" || driver != "net_e1000_em" && device.has_message_interrupts()
}

impl RxInterrupts {
    /// Creates the interrupts of queues with these sockets.
    pub(super) fn of_sockets(sockets: Vec<RawFd>) -> Self {
        Self(sockets.into_iter().map(Interrupt::Level).collect())
    }

    /// Creates those of a started device that was configured with interrupts; none unless all queues have one.
    pub(super) fn of_device(port: u16, queues: u16, driver: &str) -> Self {
        let of_queue = |queue| {
            // SAFETY: the port is started and has this queue.
            let descriptor = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue) };
            if descriptor < 0 {
                return None;
            }
            if driver == "net_tap" {
                return Some(Interrupt::Level(descriptor));
            }
            // SAFETY: as above; no thread receives from the queue yet.
            let works = unsafe {
                sys::rte_eth_dev_rx_intr_enable(port, queue) == 0
                    && sys::rte_eth_dev_rx_intr_disable(port, queue) == 0
            };
            works.then_some(Interrupt::Armed(descriptor))
        };
        let all: Option<Vec<_>> = (0..queues).map(of_queue).collect();
        Self(all.unwrap_or_default())
    }

    /// Returns true if this many queues have interrupts.
    pub(super) fn has_all(&self, queues: usize) -> bool {
        queues > 0 && self.0.len() >= queues
    }

    /// Returns the descriptor of a queue, which is open as long as the port.
    pub(crate) fn descriptor(&self, queue: u16) -> Option<BorrowedFd<'_>> {
        let (Interrupt::Level(descriptor) | Interrupt::Armed(descriptor)) =
            *self.0.get(usize::from(queue))?;
        // SAFETY: the driver closes it when the port is closed, which has this value.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Returns true if the device itself has to report a queue's packets.
    pub(crate) fn is_armed(&self, queue: u16) -> bool {
        matches!(self.0.get(usize::from(queue)), Some(Interrupt::Armed(_)))
    }

    /// Makes the device report the next packet of a queue.
    pub(crate) fn arm(&self, port: u16, queue: u16) {
        if let Some(Interrupt::Armed(_)) = self.0.get(usize::from(queue)) {
            // SAFETY: the port is started and has this queue. A device that refuses has been excluded by `of_device`.
            unsafe { sys::rte_eth_dev_rx_intr_enable(port, queue) };
        }
    }

    /// Undoes [`Self::arm`], and clears its reports.
    pub(crate) fn disarm(&self, port: u16, queue: u16) {
        if let Some(&Interrupt::Armed(descriptor)) = self.0.get(usize::from(queue)) {
            let mut count = 0u64;
            // SAFETY: the port is started and has this queue; an eventfd that does not block, and room for
            // its eight bytes.
            unsafe {
                sys::rte_eth_dev_rx_intr_disable(port, queue);
                libc::read(descriptor, (&raw mut count).cast(), size_of::<u64>());
            }
        }
    }
}

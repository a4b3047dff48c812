//! All notifications about the ports' devices, in one place to wait at.
//!
//! ```text
//!   DPDK's interrupt thread -- eventfd ---+
//!   the kernel -- rtnetlink --------------+--> Watch --> Owner: links.rs, hotplug.rs, health.rs
//!   the kernel's log -- /dev/kmsg --------+
//!   threads that close and open devices --+
//! ```

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use control::config::Config;
use control::netlink::{LinkNotification, LinkWatch};
use dataplane::port::PortId;
use dpdk::{DeviceEvent, DeviceEvents};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::super::prepare::Reopened;
use super::faults::KernelLog;

/// A notification about ports.
pub enum PortNotification {
    /// From devices.
    Devices(Vec<DeviceEvent>),
    /// From the kernel, about its interfaces.
    Links(Vec<LinkNotification>),
    /// From the kernel's log: the PCI addresses of devices that were refused access to memory, one for each refusal.
    Faults(Vec<String>),
    /// The kernel interface of a port has a carrier or has none.
    Carrier(PortId, bool),
    /// The device of a port that was lost is closed.
    Closed(PortId),
    /// The device of a port that was lost was opened again for this configuration, or could not be.
    Reopened(PortId, Arc<Config>, Result<Box<Reopened>>),
}

/// Receives all notifications.
pub struct Watch {
    devices: AsyncFd<DeviceEvents>,
    /// `None` if the kernel's notifications have failed.
    links: Option<LinkWatch>,
    /// `None` if the kernel's log cannot be read: in a container, say.
    faults: Option<KernelLog>,
    helpers: mpsc::UnboundedReceiver<PortNotification>,
}

impl Watch {
    /// Opens a watch over these devices and helpers, and the kernel in the caller's network namespace; within a
    /// runtime.
    ///
    /// # Errors
    /// The step that failed.
    pub fn open(
        devices: DeviceEvents,
        helpers: mpsc::UnboundedReceiver<PortNotification>,
    ) -> Result<Self> {
        let devices = when_readable(devices).context("events of devices")?;
        let links = LinkWatch::open().context("notifications of the kernel's interfaces")?;
        let faults = KernelLog::open();
        if let Err(error) = &faults {
            tracing::debug!("DMA faults are not counted: /dev/kmsg: {error}");
        }
        Ok(Self { devices, links: Some(links), faults: faults.ok(), helpers })
    }

    /// Returns true if the kernel reports changes of interfaces; if not, they are polled.
    pub fn has_link_notifications(&self) -> bool {
        self.links.is_some()
    }

    /// The next notification.
    pub async fn next(&mut self) -> PortNotification {
        let Self { devices, links, faults, helpers } = self;
        tokio::select! {
            biased;
            Ok(mut ready) = devices.readable() => {
                ready.clear_ready();
                PortNotification::Devices(devices.get_ref().take())
            }
            notifications = next_notifications(links) => PortNotification::Links(notifications),
            Some(notification) = helpers.recv() => notification,
            refused = next_faults(faults) => PortNotification::Faults(refused),
        }
    }
}

async fn next_notifications(watch: &mut Option<LinkWatch>) -> Vec<LinkNotification> {
    let Some(links) = watch else { return std::future::pending().await };
    match links.notifications().await {
        Ok(notifications) => notifications,
        Err(error) => {
            tracing::error!(
                "notifications of the kernel's interfaces: {error}; they are asked for instead"
            );
            *watch = None;
            vec![LinkNotification::Lost]
        }
    }
}

async fn next_faults(log: &mut Option<KernelLog>) -> Vec<String> {
    let Some(kernel) = log else { return std::future::pending().await };
    match kernel.faults().await {
        Ok(refused) => refused,
        Err(error) => {
            tracing::warn!("DMA faults are not counted any more: /dev/kmsg: {error}");
            *log = None;
            Vec::new()
        }
    }
}

/// Registers a descriptor with the runtime for readability.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for descriptors that change; these own theirs"
)]
pub fn when_readable<T: AsRawFd>(of: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(of, Interest::READABLE)
}

//! Ports whose device is taken away while they forward, and put back.
//!
//! ```text
//!   lost:   link down -> disconnected -> device closed (a thread) -+
//!                                                                  v
//!                        connected, link up <- opened (a thread) <- absent: its device is awaited
//! ```
//!
//! The port's routes, addresses and host interface stay, without link, as if the cable were unplugged.
//! The kernel reports returning interfaces; other devices are looked for now and then. A device that was reset from
//! outside is closed and opened in the same way, and so is an interface whose MAC address was changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::config::{self, Config};
use control::netlink::{KernelOrder, LinkNotification};
use dataplane::port::PortId;
use dpdk::{DeviceEvent, Happening};
use tokio::sync::mpsc;

use super::super::host::HostInterface;
use super::super::ports::{Known, OpenPort};
use super::super::prepare::Reopened;
use super::super::virtuals::Hosts;
use super::Owner;
use super::watch::PortNotification;

/// Interval of looking for a device without notifications.
const LOOK: Duration = Duration::from_millis(200);

/// Pause after a failure to open a device: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A port without its device.
pub(super) struct Absent {
    /// Its host interface, kept for it.
    pub(super) host: Option<HostInterface>,
    /// Its last state, for reports.
    pub(super) last: Option<Last>,
    /// A thread closes or opens its device.
    busy: bool,
    next: Instant,
    pause: Duration,
    /// The last logged error.
    said: Option<String>,
}

/// A port as it was when it lost its device.
pub(super) struct Last {
    pub(super) known: Known,
    pub(super) counted: [u64; 4],
    /// The kernel's driver of a PCI device.
    driver: Option<String>,
}

impl Absent {
    /// Creates one for a port whose device is not open.
    pub(super) fn new(host: Option<HostInterface>, last: Option<Last>) -> Self {
        Self { host, last, busy: false, next: Instant::now(), pause: PAUSES.0, said: None }
    }

    fn wait(&mut self) {
        self.busy = false;
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}

/// The ports without their devices, and the way back from the threads that close and open them.
pub(super) struct Absentees {
    pub(super) ports: BTreeMap<PortId, Absent>,
    /// Ports that could not be disconnected: why they are to be, and when that is tried again.
    stuck: BTreeMap<PortId, (String, Instant)>,
    helpers: mpsc::UnboundedSender<PortNotification>,
}

impl Absentees {
    /// Creates an empty one, and the receiver of the threads' reports.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<PortNotification>) {
        let (helpers, words) = mpsc::unbounded_channel();
        (Self { ports: BTreeMap::new(), stuck: BTreeMap::new(), helpers }, words)
    }

    /// Returns the way for reports of other threads about ports.
    pub(super) fn helpers(&self) -> mpsc::UnboundedSender<PortNotification> {
        self.helpers.clone()
    }

    pub(super) fn contain(&self, id: PortId) -> bool {
        self.ports.contains_key(&id)
    }
}

impl Owner {
    /// Handles a notification about ports.
    pub(super) async fn on_port_event(&mut self, notification: PortNotification) {
        match notification {
            PortNotification::Devices(events) => {
                for event in events {
                    self.on_device_event(event).await;
                }
            }
            PortNotification::Links(notifications) => {
                for notification in notifications {
                    self.on_link_notification(notification).await;
                }
                // Their MTU, or a setting of the kernel's.
                self.look_at_accelerated();
            }
            PortNotification::Carrier(id, up) if self.devices.ports.get(id).is_some() => {
                self.device_link(id, up)
            }
            PortNotification::Carrier(..) => {}
            PortNotification::Faults(devices) => self.note_faults(&devices),
            PortNotification::Closed(id) => {
                if let Some(absent) = self.devices.absentees.ports.get_mut(&id) {
                    absent.busy = false;
                    // A PCI device whose removal was requested is present for a moment longer.
                    absent.next = Instant::now() + LOOK;
                    if !self.is_pci(id) {
                        self.look_for(id);
                    }
                }
            }
            PortNotification::Reopened(id, base, outcome) => self.reopened(id, base, outcome).await,
        }
    }

    async fn on_device_event(&mut self, DeviceEvent { port, what }: DeviceEvent) {
        let open = self.devices.ports.iter().find(|open| open.port.id() == port);
        let Some((id, device)) = open.map(|open| (open.id, open.device.clone())) else { return };
        match what {
            Happening::Link => self.look_at_change(id),
            Happening::Removed => {
                self.lose(id, &format!("its device {device} is taken away")).await
            }
            Happening::Reset => self.lose(id, &format!("its device {device} was reset")).await,
        }
    }

    async fn on_link_notification(&mut self, notification: LinkNotification) {
        match notification {
            LinkNotification::Is { index, name, running } => {
                let Some(open) = self.devices.ports.iter().find(|open| open.is_interface(index))
                else {
                    return self.look_for_interface(&name);
                };
                let (id, device) = (open.id, &open.device);
                if *device == name {
                    self.device_link(id, running);
                    self.look_at_interface(id).await;
                } else {
                    let why = format!("its device {device} is called {name} now");
                    self.lose(id, &why).await;
                    self.look_for_interface(&name);
                }
            }
            LinkNotification::Gone { index } => {
                let open = self.devices.ports.iter().find(|open| open.is_interface(index));
                if let Some((id, device)) = open.map(|open| (open.id, open.device.clone())) {
                    self.lose(id, &format!("its device {device} is gone")).await;
                }
            }
            LinkNotification::Settings => {}
            LinkNotification::Lost => self.look_at_interfaces().await,
        }
    }

    /// Looks at all interfaces of the kernel: notifications were lost.
    async fn look_at_interfaces(&mut self) {
        let is_gone = |open: &&OpenPort| {
            open.interface().is_some_and(|index| dpdk::interface_index(&open.device) != Some(index))
        };
        let gone: Vec<_> = self
            .devices
            .ports
            .iter()
            .filter(is_gone)
            .map(|open| (open.id, open.device.clone()))
            .collect();
        for (id, device) in gone {
            self.lose(id, &format!("its device {device} is gone")).await;
        }
        let all = self.devices.ports.iter().filter(|open| open.interface().is_some());
        let all: Vec<_> = all.map(|open| open.id).collect();
        all.into_iter().for_each(|id| self.look_at_change(id));
        let absent: Vec<_> = self.devices.absentees.ports.keys().copied().collect();
        absent.into_iter().for_each(|id| self.look_for(id));
        self.follow_interfaces().await;
    }

    /// Looks for changes of the kernel interfaces that ports are made of.
    pub(super) async fn follow_interfaces(&mut self) {
        let all = self.devices.ports.iter().filter(|open| open.interface().is_some());
        let all: Vec<_> = all.map(|open| open.id).collect();
        for id in all {
            self.look_at_interface(id).await;
        }
    }

    /// Follows an interface's MTU. A port with another MAC is opened anew: steps, filters and neighbours
    /// know it by its address.
    async fn look_at_interface(&mut self, id: PortId) {
        self.follow_mtu(id);
        let Some(open) = self.devices.ports.get(id) else { return };
        if let Some(mac) = open.port.changed_mac() {
            let (now, had) = (wire::MacAddr(mac), wire::MacAddr(open.port.mac()));
            let why =
                format!("its device {} has the MAC address {now} now, had {had}", open.device);
            self.lose(id, &why).await;
        }
    }

    /// Closes a port whose device was removed, or must be released, and awaits the device.
    async fn lose(&mut self, id: PortId, why: &str) {
        let Some(open) = self.devices.ports.get(id) else { return };
        let Some(wanted) = self.configurations.current.port(id).cloned() else { return };
        let last = Last {
            known: Known { info: open.info, device_mac: wire::MacAddr(open.port.mac()) },
            counted: open.counted,
            driver: open.driver.clone(),
        };
        // First of all, so that no packet takes a path that has ended.
        self.quiet(id);
        self.routing.sources.order(KernelOrder::SetCarrier { port: id.into(), up: false });
        let name = &wanted.name;
        tracing::warn!(
            "port \"{name}\": down, {why}; it is opened again when {} is there",
            wanted.device
        );
        match self.detach(&wanted).await {
            Ok(gone) => {
                self.devices.absentees.stuck.remove(&id);
                let mut absent = Absent::new(gone.host, Some(last));
                absent.busy = true;
                self.devices.absentees.ports.insert(id, absent);
                let (kept, helpers) = (gone.kept, self.devices.absentees.helpers.clone());
                // Closing takes its time, with a device that does not answer.
                tokio::task::spawn_blocking(move || {
                    drop(kept);
                    // The owner may have ended.
                    let _ = helpers.send(PortNotification::Closed(id));
                });
            }
            Err(error) => {
                tracing::error!("{error:#}; tried again");
                let later = Instant::now() + PAUSES.1;
                self.devices.absentees.stuck.insert(id, (why.to_owned(), later));
            }
        }
    }

    /// A port without its device, whose configuration or device may have changed: see whether it can be
    /// opened. To be called from time to time.
    pub(super) async fn look_for_absent(&mut self) {
        let now = Instant::now();
        let due = self.devices.absentees.ports.iter().filter(|(_, absent)| absent.next <= now);
        let due: Vec<_> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.look_for(id));
        let stuck = self.devices.absentees.stuck.iter().filter(|(_, (_, at))| *at <= now);
        let stuck: Vec<_> = stuck.map(|(id, (why, _))| (*id, why.clone())).collect();
        for (id, why) in stuck {
            self.devices.absentees.stuck.remove(&id);
            self.lose(id, &why).await;
        }
    }

    fn is_pci(&self, id: PortId) -> bool {
        let port = self.configurations.current.port(id);
        port.is_some_and(|port| matches!(port.device, config::Device::Pci(_)))
    }

    fn look_for_interface(&mut self, name: &str) {
        let is_it = |port: &&config::Port| matches!(&port.device, config::Device::Kernel(device) if device == name);
        let port = self.configurations.current.ports.iter().find(is_it).map(|port| port.id);
        if let Some(id) = port {
            self.look_for(id);
        }
    }

    /// Has an absent port opened if its device is there.
    fn look_for(&mut self, id: PortId) {
        let base = self.configurations.current.clone();
        let Some(absent) = self.devices.absentees.ports.get_mut(&id).filter(|absent| !absent.busy)
        else {
            return;
        };
        absent.next = Instant::now() + LOOK;
        let Some(wanted) = base.port(id) else { return };
        if !is_there(&wanted.device) {
            return;
        }
        absent.busy = true;
        let driver = absent.last.as_ref().and_then(|last| last.driver.clone());
        let (preparation, known) =
            (self.configurations.preparation(), self.configurations.known.clone());
        let helpers = self.devices.absentees.helpers.clone();
        tokio::task::spawn_blocking(move || {
            let outcome = preparation.reopen(&base, &known, id, driver.as_deref()).map(Box::new);
            // The owner may have ended.
            let _ = helpers.send(PortNotification::Reopened(id, base, outcome));
        });
    }

    async fn reopened(&mut self, id: PortId, base: Arc<Config>, outcome: Result<Box<Reopened>>) {
        let Some(absent) = self.devices.absentees.ports.get_mut(&id) else { return };
        if !Arc::ptr_eq(&base, &self.configurations.current) {
            // Opened for a configuration that has changed meanwhile.
            drop(outcome);
            absent.busy = false;
            return self.look_for(id);
        }
        let name = base.port(id).map_or_else(|| id.to_string(), |port| port.name.clone());
        let error = match outcome {
            Ok(reopened) => match self.let_return(&base, id, *reopened).await {
                Ok(()) => {
                    tracing::info!("port \"{name}\": its device is back");
                    self.configurations.known = self.known();
                    // It may have changed while it was being opened.
                    return self.look_at_interface(id).await;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        let absent =
            self.devices.absentees.ports.entry(id).or_insert_with(|| Absent::new(None, None));
        absent.wait();
        let words = format!("{error:#}");
        if absent.said.as_ref() != Some(&words) {
            tracing::warn!(
                "port \"{name}\": its device is there and cannot be opened; tried again: {words}"
            );
            absent.said = Some(words);
        }
    }

    async fn let_return(&mut self, base: &Config, id: PortId, reopened: Reopened) -> Result<()> {
        let Reopened { opened, graphs, infos } = reopened;
        if !graphs.is_empty() {
            self.exchange_all(base, graphs, Some(infos.clone()), (None, Vec::new())).await?;
        }
        let wanted = base.port(id).context("no such port")?;
        let Some(Absent { host, last, .. }) = self.devices.absentees.ports.remove(&id) else {
            return Ok(());
        };
        self.return_port(wanted, opened, host).await?;
        if base.virtuals().next().is_some() {
            // The device may have another MAC.
            self.enter_virtuals(base, &infos, &mut Hosts::new()).await?;
        }
        if let (Some(last), Some(open)) =
            (last, self.devices.ports.iter_mut().find(|open| open.id == id))
        {
            open.counted = last.counted;
        }
        Ok(())
    }

    /// Returns the data of each port, including those that wait for their device.
    pub(super) fn known(&self) -> BTreeMap<PortId, Known> {
        let absent = self.devices.absentees.ports.iter();
        let absent = absent.filter_map(|(id, absent)| Some((*id, absent.last.as_ref()?.known)));
        let mut all: BTreeMap<_, _> = absent.collect();
        all.extend(self.devices.ports.known());
        all
    }
}

/// Returns true if a device is present, or if its presence cannot be checked.
fn is_there(device: &config::Device) -> bool {
    match device {
        config::Device::Kernel(name) => dpdk::interface_exists(name),
        config::Device::Pci(address) => Path::new("/sys/bus/pci/devices").join(address).exists(),
        config::Device::Vdev(_) => true,
    }
}

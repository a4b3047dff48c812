//! Links: what the devices say, and what is said of the host interfaces.
//!
//! Packets can leave by a port when its device has a link and nobody has set its host interface
//! down. A device that loses its link takes the carrier from its host interface, so that routing
//! daemons see it.
//!
//! A port's MTU is the least of three: what it was opened for, its kernel interface's, its host
//! interface's. The host interface follows the kernel interface's.

use control::netlink::KernelOrder;
use dataplane::port::PortId;
use dpdk::LinkWatch;
use slowpath::Command;

use super::super::ports::OpenPort;
use super::Owner;

/// A port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The device has one.
    device: bool,
    /// The host interface is up, or there is none.
    host: bool,
    /// What the host interface's MTU was, in bytes; 0 without one.
    mtu: u16,
    /// What the MTU of the device's kernel interface was; none before it is looked at, or without one.
    device_mtu: Option<u16>,
}

impl Default for Link {
    fn default() -> Self {
        Self { device: true, host: true, mtu: 0, device_mtu: None }
    }
}

impl Link {
    /// Of a port that is not connected.
    pub(super) fn down() -> Self {
        Self::default().without_device()
    }

    /// The same without the device's.
    pub(super) fn without_device(self) -> Self {
        Self { device: false, device_mtu: None, ..self }
    }

    /// The MTU of a port that was opened for one.
    fn mtu(self, opened: u16) -> u16 {
        let host = Some(self.mtu).filter(|&mtu| mtu != 0);
        [host, self.device_mtu].into_iter().flatten().fold(opened, u16::min)
    }

    fn up(self) -> bool {
        self.device && self.host
    }
}

impl Owner {
    /// Looks at all devices, as nothing was said of them yet.
    pub(super) fn look_at_all(&mut self) {
        let all: Vec<_> = self.ports.iter().map(|open| open.id).collect();
        all.into_iter().for_each(|id| self.look_at_change(id));
    }

    /// Looks at devices that do not say when their link changes; without `kernel_tells` interfaces of the
    /// kernel are such. Of a device with interrupts this reads what its driver has noted and asks the
    /// device nothing: some drivers (DPDK 22.11's TAP) note a change and tell nobody.
    pub(super) fn poll_devices(&mut self, kernel_tells: bool) {
        let is_mute = |open: &&OpenPort| match open.port.link_watch() {
            LinkWatch::Kernel(_) => !kernel_tells,
            LinkWatch::Interrupt | LinkWatch::Nobody => true,
        };
        let mute: Vec<_> = self.ports.iter().filter(is_mute).map(|open| open.id).collect();
        mute.into_iter().for_each(|id| self.look_at_change(id));
    }

    /// Looks at a device whose link may have changed.
    pub(super) fn look_at_change(&mut self, id: PortId) {
        if let Some(up) = self.ports.get(id).map(|open| open.port.link().up) {
            self.device_link(id, up);
            self.follow_mtu(id);
        }
    }

    /// A device has a link or has none.
    pub(super) fn device_link(&mut self, id: PortId, up: bool) {
        let old = self.links[id.index()];
        if old.device != up {
            self.set_link(id, Link { device: up, ..old });
            self.sources.order(KernelOrder::SetCarrier { port: id, up });
        }
    }

    /// Nothing is to leave by a port until its link is looked at again. Its host interface keeps its
    /// carrier: routing daemons need not know of a moment.
    pub(super) fn quiet(&mut self, id: PortId) {
        let link = &mut self.links[id.index()];
        let was_up = link.up();
        link.device = false;
        if was_up {
            self.rib.set_link(id, false);
            self.orders.tell(&Command::PortLink { port: id, up: false });
        }
    }

    /// Looks at a port's device, whatever was known of it.
    pub(super) fn look_at_link(&mut self, id: PortId) {
        let Some(open) = self.ports.get(id) else { return };
        let device = open.port.link().up;
        self.set_link(id, Link { device, ..self.links[id.index()] });
        self.sources.order(KernelOrder::SetCarrier { port: id, up: device });
        self.follow_mtu(id);
    }

    /// The host interface of a port is up or down, and takes packets of this size.
    pub(super) fn host_link(&mut self, port: PortId, admin_up: bool, mtu: u16) {
        let old = self.links[port.index()];
        self.set_link(port, Link { host: admin_up, mtu, ..old });
        if mtu != 0 && mtu != old.mtu {
            self.put_mtu(port);
        }
    }

    /// The MTU of a device's kernel interface may have changed.
    pub(super) fn follow_mtu(&mut self, id: PortId) {
        let Some(open) = self.ports.get(id) else { return };
        let Some(now) = open.port.follow_mtu() else { return };
        let (name, device, opened) = (&open.name, &open.device, open.port.mtu());
        let link = &mut self.links[id.index()];
        let (host, before) = (link.mtu, link.device_mtu.replace(now).unwrap_or(opened));
        if now > opened && now != before {
            tracing::info!(
                "port \"{name}\": its device {device} has an MTU of {now} now; the port keeps {opened}, \
                 which it was opened for; write mtu = {now} to change that"
            );
        }
        let (before, now) = (before.min(opened), now.min(opened));
        if now == before {
            return;
        }
        tracing::info!("port \"{name}\": MTU {now}, was {before}: that of its device {device}");
        // The kernel is to send nothing larger by it than leaves, and again what leaves again.
        if host > now || host == before {
            self.sources.order(KernelOrder::SetMtu { port: id, mtu: now });
        }
        self.put_mtu(id);
    }

    /// Tells everybody a port's MTU.
    fn put_mtu(&mut self, port: PortId) {
        let opened = self.ports.get(port).map_or(u16::MAX, |open| open.port.mtu());
        let mtu = self.links[port.index()].mtu(opened);
        self.rib.set_mtu(port, mtu);
        self.orders.tell(&Command::Mtu { port, mtu });
    }

    fn set_link(&mut self, port: PortId, new: Link) {
        let name = self.port_name(port);
        let old = std::mem::replace(&mut self.links[port.index()], new);
        if old.up() == new.up() {
            return;
        }
        // First of all: no packet is to take a way that has ended.
        self.rib.set_link(port, new.up());
        self.orders.tell(&Command::PortLink { port, up: new.up() });
        let reason = match (new.device, new.host) {
            (true, true) => "up",
            (false, _) => "down, its device has no link",
            (true, false) => "down, its host interface is",
        };
        tracing::info!("port \"{name}\": {reason}");
    }
}

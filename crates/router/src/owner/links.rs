//! Links of devices and of host interfaces.
//!
//! Packets can leave by a port while its device has a link and its host interface is not set down. A device that loses
//! its link takes the carrier from its host interface, so that routing daemons see it.
//!
//! A port's MTU is the least of three: the one it was opened for, its kernel interface's, its host interface's. The
//! host interface follows the kernel interface's.

use control::netlink::{Departure, KernelOrder};
use dataplane::interface::InterfaceId;
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
    /// State of the host interface; up if there is none, and before the kernel's first notification.
    host: HostLink,
    /// Last MTU of the host interface, in bytes; 0 without one.
    mtu: u16,
    /// Last MTU of the device's kernel interface; `None` before the first look, or without one.
    device_mtu: Option<u16>,
}

/// State of a host interface in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLink {
    /// True unless it was set down.
    pub admin_up: bool,
    /// True if it has carrier.
    pub carrier: bool,
    /// The reason for which it is missing.
    pub gone: Option<Departure>,
}

impl HostLink {
    const UP: Self = Self { admin_up: true, carrier: true, gone: None };
    /// Of one that the kernel's listener has not found yet.
    pub(super) const AWAITED: Self =
        Self { admin_up: false, carrier: false, gone: Some(Departure::Awaited) };

    /// For an operator: a word, and the reason unless it is up. `device`: the port's device, if it has one, has a
    /// link.
    fn state(self, device: Option<bool>) -> (&'static str, Option<&'static str>) {
        let gone = self.gone.map(|how| match how {
            Departure::Removed => "removed in the kernel",
            Departure::Moved => "moved to another network namespace",
            Departure::Renamed => "renamed in the kernel",
            Departure::Awaited => "not made in the kernel yet",
        });
        match (gone, device) {
            (Some(why), _) => ("gone", Some(why)),
            (None, _) if !self.admin_up => ("down", Some("set down in the kernel")),
            (None, _) if self.carrier => ("up", None),
            (None, None) => ("no carrier", Some("the port's device is gone")),
            (None, Some(false)) => ("no carrier", Some("the port's device has no link")),
            (None, Some(true)) => ("no carrier", Some("taken away in the kernel")),
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self { device: true, host: HostLink::UP, mtu: 0, device_mtu: None }
    }
}

impl Link {
    /// Of a port that is not connected.
    pub(super) fn down() -> Self {
        Self::default().without_device()
    }

    /// Of a VLAN whose host interface is the kernel's VLAN device, before it is known to exist.
    pub(super) fn awaited() -> Self {
        Self { host: HostLink::AWAITED, ..Self::down() }
    }

    /// The same without the device's.
    pub(super) fn without_device(self) -> Self {
        Self { device: false, device_mtu: None, ..self }
    }

    /// The MTU of a port that was opened for one.
    pub(super) fn mtu(self, opened: u16) -> u16 {
        let host = Some(self.mtu).filter(|&mtu| mtu != 0);
        [host, self.device_mtu].into_iter().flatten().fold(opened, u16::min)
    }

    /// Returns true if its device has a link.
    pub(super) fn has_device(self) -> bool {
        self.device
    }

    pub(super) fn up(self) -> bool {
        self.device && self.host.admin_up
    }
}

impl Owner {
    /// Looks at all devices, of which there were no notifications yet.
    pub(super) fn look_at_all(&mut self) {
        let all: Vec<_> =
            self.devices.ports.iter().map(|open| (open.id, open.host.is_some())).collect();
        for (id, has_host) in all {
            match has_host {
                // An interface that was held has the carrier that it had at the end of the router before.
                true => self.look_at_link(id),
                false => self.look_at_change(id),
            }
        }
    }

    /// Looks at devices that do not report changes of their link; without `kernel_tells`, kernel interfaces are among
    /// them. For a device with interrupts this reads the state kept by its driver and does not access the device: some
    /// drivers (DPDK 22.11's TAP) record a change without an event.
    pub(super) fn poll_devices(&mut self, kernel_tells: bool) {
        let is_mute = |open: &&OpenPort| match open.port.link_watch() {
            LinkWatch::Kernel(_) => !kernel_tells,
            LinkWatch::Interrupt | LinkWatch::Nobody => true,
        };
        let mute: Vec<_> = self.devices.ports.iter().filter(is_mute).map(|open| open.id).collect();
        mute.into_iter().for_each(|id| self.look_at_change(id));
    }

    /// Takes VLANs down whose host interface is the kernel's VLAN device, until it is known to exist.
    pub(super) fn await_kernel_devices(&mut self) {
        let all = self.devices.virtuals.values().filter(|open| open.kernel_device().is_some());
        for id in all.map(|open| open.id).collect::<Vec<_>>() {
            self.host_link(id, HostLink::AWAITED, 0);
        }
    }

    /// Looks at a device whose link may have changed.
    pub(super) fn look_at_change(&mut self, id: PortId) {
        if let Some(up) = self.devices.ports.get(id).map(|open| open.port.link().up) {
            self.device_link(id, up);
            self.follow_mtu(id);
        }
    }

    /// A device has a link or has none.
    pub(super) fn device_link(&mut self, id: PortId, up: bool) {
        self.lower_link(id.into(), up);
    }

    /// An interface's device, or its port, has a link or has none.
    pub(super) fn lower_link(&mut self, id: InterfaceId, up: bool) {
        let old = self.devices.links[id.index()];
        if old.device != up {
            self.set_link(id, Link { device: up, ..old });
            let upper = self.devices.virtuals.get(&id);
            // The kernel sets its own VLAN device's carrier; orders for one that does not exist would wait in the place
            // of others.
            if upper.is_none_or(|upper| upper.kernel_device().is_none()) {
                self.routing.sources.order(KernelOrder::SetCarrier { port: id, up });
            }
        }
    }

    /// The links of the VLANs on a port or bond follow that one's, and a bond's those of its ports.
    pub(super) fn follow_lower(&mut self, id: InterfaceId) {
        if let Some(bond) = id.port().and_then(|port| self.bond_of(port)) {
            return self.follow_bond(bond);
        }
        let up = self.devices.links[id.index()].up();
        for vlan in self.vlans_of(id) {
            self.lower_link(vlan, up);
        }
    }

    /// Takes a port's link down until its device is looked at again. Its host interface keeps its carrier: routing
    /// daemons need not notice a moment.
    pub(super) fn quiet(&mut self, id: PortId) {
        let port = InterfaceId::from(id);
        for id in self.vlans_of(port).into_iter().chain([port]) {
            let link = &mut self.devices.links[id.index()];
            let was_up = link.up();
            link.device = false;
            if was_up {
                self.routing.rib.set_link(id, false);
                self.slow_path.orders.send(&Command::PortLink { interface: id, up: false });
            }
        }
        if let Some(bond) = self.bond_of(id) {
            self.follow_bond(bond);
        }
    }

    /// Looks at a port's device, and applies its state even if it is the same as before.
    pub(super) fn look_at_link(&mut self, id: PortId) {
        let Some(open) = self.devices.ports.get(id) else { return };
        let device = open.port.link().up;
        self.set_link(id.into(), Link { device, ..self.devices.links[id.index()] });
        self.routing.sources.order(KernelOrder::SetCarrier { port: id.into(), up: device });
        self.follow_mtu(id);
    }

    /// Returns the state of a port's host interface, for reports.
    pub(super) fn host_state(&self, id: InterfaceId) -> (&'static str, Option<&'static str>) {
        let device = match id.port() {
            Some(port) => self.devices.ports.get(port).map(|open| open.port.link().up),
            None => Some(self.devices.links[id.index()].device),
        };
        self.devices.links[id.index()].host.state(device)
    }

    /// Sets the state and MTU of an interface's host interface.
    pub(super) fn host_link(&mut self, id: InterfaceId, host: HostLink, mtu: u16) {
        let old = self.devices.links[id.index()];
        self.set_link(id, Link { host, mtu, ..old });
        if mtu != 0 && mtu != old.mtu {
            self.put_mtu(id);
        }
    }

    /// The MTU of a device's kernel interface may have changed.
    pub(super) fn follow_mtu(&mut self, id: PortId) {
        let Some(open) = self.devices.ports.get(id) else { return };
        let Some(now) = open.port.follow_mtu() else { return };
        let (name, device, opened) = (&open.name, &open.device, open.port.mtu());
        let link = &mut self.devices.links[id.index()];
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
        // The host interface follows down, and up again if it had followed before.
        if host > now || host == before {
            self.routing.sources.order(KernelOrder::SetMtu { port: id.into(), mtu: now });
        }
        self.put_mtu(id.into());
        for (upper, least) in self.uppers_with_mtu(id, now) {
            self.devices.links[upper.index()].device_mtu = Some(least);
            self.put_mtu(upper);
        }
    }

    /// Returns the bonds and VLANs on a port, with the least MTU of the devices below each; the port's is `now`.
    fn uppers_with_mtu(&self, port: PortId, now: u16) -> Vec<(InterfaceId, u16)> {
        let bond = self.bond_of(port).and_then(|id| self.devices.bonds.get(&id));
        let others = bond.into_iter().flat_map(|bond| &bond.wanted.ports);
        let least = others
            .filter_map(|port| self.devices.links[port.index()].device_mtu)
            .fold(now, u16::min);
        self.uppers_of(port).map(|upper| (upper.id, least)).collect()
    }

    /// Passes an interface's MTU to the RIB and the slow path.
    fn put_mtu(&mut self, id: InterfaceId) {
        let of_upper = self.devices.virtuals.get(&id).map(|upper| upper.info.mtu);
        let of_port = || Some(self.devices.ports.get(id.port()?)?.port.mtu());
        let opened = of_upper.or_else(of_port).unwrap_or(u16::MAX);
        let mtu = self.devices.links[id.index()].mtu(opened);
        self.routing.rib.set_mtu(id, mtu);
        self.slow_path.orders.send(&Command::Mtu { interface: id, mtu });
    }

    fn set_link(&mut self, id: InterfaceId, new: Link) {
        let kind = self.devices.virtuals.get(&id).map_or("port", |upper| upper.kind);
        let name = self.interface_name(id);
        let old = std::mem::replace(&mut self.devices.links[id.index()], new);
        if old.up() == new.up() {
            return;
        }
        // First of all, so that no packet takes a path that has ended.
        self.routing.rib.set_link(id, new.up());
        self.slow_path.orders.send(&Command::PortLink { interface: id, up: new.up() });
        let reason = match (new.device, new.host.state(Some(true)).1) {
            _ if new.up() => "up".to_owned(),
            (false, _) if kind == "vlan" => "down, its port or bond is".to_owned(),
            (false, _) if kind == "bond" => "down, too few of its ports are active".to_owned(),
            (false, _) => "down, its device has no link".to_owned(),
            (true, why) => format!("down, its host interface is: {}", why.unwrap_or("down")),
        };
        tracing::info!("{kind} \"{name}\": {reason}");
        self.follow_lower(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_interface_that_is_not_up_has_a_reason() {
        let state = |admin_up, carrier, gone, device| {
            let (word, why) = HostLink { admin_up, carrier, gone }.state(device);
            format!("{word}: {}", why.unwrap_or("-"))
        };
        assert_eq!(state(true, true, None, Some(true)), "up: -");
        assert_eq!(state(false, false, None, Some(false)), "down: set down in the kernel");
        assert_eq!(state(true, false, None, Some(true)), "no carrier: taken away in the kernel");
        assert_eq!(
            state(true, false, None, Some(false)),
            "no carrier: the port's device has no link"
        );
        assert_eq!(state(true, false, None, None), "no carrier: the port's device is gone");
        for (how, why) in [
            (Departure::Removed, "removed in the kernel"),
            (Departure::Moved, "moved to another network namespace"),
            (Departure::Renamed, "renamed in the kernel"),
            (Departure::Awaited, "not made in the kernel yet"),
        ] {
            assert_eq!(state(false, false, Some(how), Some(true)), format!("gone: {why}"));
        }
    }
}

//! Bonds, VLANs and loopbacks that are added, changed and removed while the router runs.
//!
//! ```text
//!   new:      slow path -> RIB, link down -> host interface -> link as the ports'
//!   changed:  host interface detached and changed -> slow path, RIB -> host interface attached
//!   removed:  (no route leads there) -> host interface detached -> RIB, slow path
//! ```
//!
//! Forwarders have the graphs of the new interfaces before that. A VLAN's link follows that of its port or bond, and a
//! bond's those of its ports (`bonds.rs`); a loopback's is up.

use anyhow::Result;
use control::config::{Config, Virtual};
use control::netlink::KernelOrder;
use dataplane::bond::BondTable;
use dataplane::interface::{InterfaceId, InterfaceInfo};
use dataplane::port::PortId;

use super::super::host::HostInterface;
use super::super::virtuals::{self, Hosts, OpenVirtual};
use super::Owner;
use super::links::Link;

impl Owner {
    /// Starts new bonds and VLANs of a configuration, and changes others. Takes host interfaces from `hosts`, and puts those
    /// there that none of them uses any more.
    ///
    /// # Errors
    /// A host interface cannot be changed, or the RIB refuses an address.
    pub(super) async fn enter_virtuals(
        &mut self,
        config: &Config,
        infos: &[InterfaceInfo],
        hosts: &mut Hosts,
    ) -> Result<()> {
        self.slow_path.orders.vlans();
        for wanted in config.virtuals() {
            let Some(&info) = infos.get(wanted.id.index()) else { continue };
            if self.is_as_wanted(config, wanted, info) {
                continue;
            }
            let is_new = !self.devices.virtuals.contains_key(&wanted.id);
            // Of another kind than the one it has.
            let ready = hosts.remove(&wanted.id);
            if !is_new {
                self.put_host_aside(wanted.id, hosts).await;
            }
            let mut host = match &wanted.interface.host {
                Some(_) => ready.or_else(|| hosts.remove(&wanted.id)),
                None => None,
            };
            if let (Some(host), Some(settings)) = (&mut host, &wanted.interface.host) {
                host.change(info.mac, info.mtu)?;
                host.set_segmentation(settings.segmentation)?;
            }
            self.enter_virtual(config, wanted, info, host, is_new)?;
        }
        self.follow_hosts(config)?;
        for loopback in &config.loopbacks {
            self.lower_link(loopback.id, true);
        }
        self.configure_bonds(config);
        for port in self.devices.ports.iter().map(|port| port.id).collect::<Vec<_>>() {
            self.follow_lower(port.into());
        }
        for bond in self.devices.bonds.keys().copied().collect::<Vec<_>>() {
            self.follow_lower(bond);
        }
        Ok(())
    }

    fn is_as_wanted(&self, config: &Config, wanted: Virtual<'_>, info: InterfaceInfo) -> bool {
        let segmentation = wanted.interface.host.as_ref().map(|host| host.segmentation);
        self.devices.virtuals.get(&wanted.id).is_some_and(|open| {
            let host = open.host.as_ref().map(|host| host.segmentation);
            (open.info.mac, open.info.mtu, host) == (info.mac, info.mtu, segmentation)
                && open.kernel_device() == config.kernel_device(wanted.id).as_ref()
                && open.lower == config.vlan(wanted.id).and_then(|vlan| config.carrier(vlan))
        })
    }

    fn enter_virtual(
        &mut self,
        config: &Config,
        wanted: Virtual<'_>,
        info: InterfaceInfo,
        host: Option<HostInterface>,
        is_new: bool,
    ) -> Result<()> {
        let id = wanted.id;
        let Some(mut open) = OpenVirtual::new(config, wanted, info, host.as_ref()) else {
            return Ok(());
        };
        if let Some(known) = self.routing.rib.interface(id) {
            open.addresses.clone_from(&known.addresses);
        }
        self.slow_path.orders.port(&open.in_slow_path(wanted));
        self.routing.tables.mtus.open(id, info.mtu);
        let link = &mut self.devices.links[id.index()];
        *link = match open.kernel_device() {
            Some(_) if is_new => Link::awaited(),
            Some(_) => link.without_device(),
            None => Link::down(),
        };
        if is_new {
            self.routing.tables.vlans.forget(id);
            let entry = open.in_rib();
            self.routing.rib.batch(|rib| rib.add_interface(entry))?;
        } else {
            self.routing.rib.set_device(id, info.mac, info.mtu);
        }
        self.routing.rib.set_link(id, false);
        if let Some(host) = host {
            self.devices.opener.keep_host(&host);
            self.slow_path.orders.attach_host(id, host);
            for &address in &wanted.interface.addresses {
                self.routing.sources.order(KernelOrder::AddAddress { port: id, address });
            }
        }
        self.devices.virtuals.insert(id, open);
        Ok(())
    }

    async fn put_host_aside(&mut self, id: InterfaceId, hosts: &mut Hosts) {
        if let Some(link) = self.slow_path.orders.disconnect(id).await {
            hosts.insert(id, link.interface);
        }
    }

    /// Removes bonds and VLANs that a configuration does not have; puts their host interfaces into `hosts`.
    pub(super) async fn leave_virtuals(
        &mut self,
        config: &Config,
        hosts: &mut Hosts,
    ) -> Result<()> {
        let removed: Vec<_> = self
            .devices
            .virtuals
            .keys()
            .copied()
            .filter(|id| config.virtual_interface(*id).is_none())
            .collect();
        for id in removed {
            self.put_host_aside(id, hosts).await;
            self.devices.virtuals.remove(&id);
            self.forget_bond(id);
            self.forget_interface(id);
        }
        self.follow_hosts(config)
    }

    /// Removes unused host interfaces from the kernel.
    pub(super) fn remove_hosts(&self, hosts: Hosts) {
        hosts.into_values().for_each(|host| self.devices.opener.remove_host(host));
    }

    /// Restores the bonds and VLANs of a configuration after a failed change.
    pub(super) async fn take_back_virtuals(&mut self, base: &Config, mut hosts: Hosts) {
        let mut infos = Vec::new();
        for (id, known) in &self.configurations.known {
            infos.resize(infos.len().max(id.index() + 1), InterfaceInfo::NONE);
            infos[id.index()] = known.info;
        }
        let added = virtuals::add_infos(base, &mut infos);
        let bonds = self.routing.tables.shared.get::<BondTable>();
        bonds.set(virtuals::bonds(base, &infos));
        self.routing.tables.vlans.set(virtuals::vlans(base, &infos, &bonds.get()).into());
        let entered = self.enter_virtuals(base, &infos, &mut hosts).await;
        let left = self.leave_virtuals(base, &mut hosts).await;
        if let Err(error) = added.and(entered).and(left) {
            tracing::error!("bonds and VLANs cannot be put back as they were: {error:#}");
        }
        hosts.values().for_each(|host| self.devices.opener.give_up_host(host));
    }

    /// Returns the VLANs on a port or bond, whose links and MTUs follow the other's.
    pub(super) fn vlans_of(&self, lower: InterfaceId) -> Vec<InterfaceId> {
        let on_it = self.devices.virtuals.values().filter(|of| of.lower == Some(lower));
        on_it.map(|of| of.id).collect()
    }

    /// Returns the bonds and VLANs whose frames come and go by this port.
    pub(super) fn uppers_of(&self, port: PortId) -> impl Iterator<Item = &OpenVirtual> {
        let (own, bond) = (InterfaceId::from(port), self.bond_of(port));
        self.devices.virtuals.values().filter(move |of| {
            let carrier = of.lower.unwrap_or(of.id);
            carrier == own || Some(carrier) == bond
        })
    }
}

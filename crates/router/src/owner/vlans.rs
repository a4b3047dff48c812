//! VLANs that are added, changed and removed while the router runs.
//!
//! ```text
//!   new:      slow path -> RIB, link down -> host interface -> link as the port's
//!   changed:  host interface detached and changed -> slow path, RIB -> host interface attached
//!   removed:  (no route leads there) -> host interface detached -> RIB, slow path
//! ```
//!
//! Forwarders have the graphs of the new VLANs before that. A VLAN's link follows that of its port.

use anyhow::Result;
use control::config::{self, Config};
use control::netlink::KernelOrder;
use dataplane::interface::{InterfaceId, InterfaceInfo};
use dataplane::port::PortId;

use super::super::host::HostInterface;
use super::super::vlans::{self, Hosts, OpenVlan};
use super::Owner;
use super::links::Link;

impl Owner {
    /// Starts new VLANs of a configuration, and changes others. Takes host interfaces from `hosts`, and puts those
    /// there that no VLAN uses any more.
    ///
    /// # Errors
    /// A host interface cannot be changed, or the RIB refuses an address.
    pub(super) async fn enter_vlans(
        &mut self,
        config: &Config,
        infos: &[InterfaceInfo],
        hosts: &mut Hosts,
    ) -> Result<()> {
        self.slow_path.orders.vlans();
        for wanted in &config.vlans {
            let Some(&info) = infos.get(wanted.id.index()) else { continue };
            if self.is_as_wanted(config, wanted, info) {
                continue;
            }
            let is_new = !self.devices.vlans.contains_key(&wanted.id);
            if !is_new {
                self.put_host_aside(wanted.id, hosts).await;
            }
            let mut host = match &wanted.interface.host {
                Some(_) => hosts.remove(&wanted.id),
                None => None,
            };
            if let (Some(host), Some(settings)) = (&mut host, &wanted.interface.host) {
                host.change(info.mac, info.mtu)?;
                host.set_segmentation(settings.segmentation)?;
            }
            self.enter_vlan(config, wanted, info, host, is_new)?;
        }
        self.follow_hosts(config)?;
        for port in self.devices.ports.iter().map(|port| port.id).collect::<Vec<_>>() {
            self.follow_port(port);
        }
        Ok(())
    }

    fn is_as_wanted(&self, config: &Config, wanted: &config::Vlan, info: InterfaceInfo) -> bool {
        let host = wanted.interface.host.is_some();
        self.devices.vlans.get(&wanted.id).is_some_and(|open| {
            (open.info.mac, open.info.mtu, open.host.is_some()) == (info.mac, info.mtu, host)
                && Some(open.port) == vlans::port_of(config, wanted)
        })
    }

    fn enter_vlan(
        &mut self,
        config: &Config,
        wanted: &config::Vlan,
        info: InterfaceInfo,
        host: Option<HostInterface>,
        is_new: bool,
    ) -> Result<()> {
        let id = wanted.id;
        let Some(mut open) = OpenVlan::new(config, wanted, info, host.as_ref()) else {
            return Ok(());
        };
        if let Some(known) = self.routing.rib.interface(id) {
            open.addresses.clone_from(&known.addresses);
        }
        self.slow_path.orders.port(&open.in_slow_path(wanted));
        self.routing.tables.mtus.open(id, info.mtu);
        self.devices.links[id.index()] = Link::down();
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
        self.devices.vlans.insert(id, open);
        Ok(())
    }

    async fn put_host_aside(&mut self, id: InterfaceId, hosts: &mut Hosts) {
        if let Some(link) = self.slow_path.orders.disconnect(id).await {
            hosts.insert(id, link.interface);
        }
    }

    /// Removes VLANs that a configuration does not have; puts their host interfaces into `hosts`.
    pub(super) async fn leave_vlans(&mut self, config: &Config, hosts: &mut Hosts) -> Result<()> {
        let removed: Vec<_> =
            self.devices.vlans.keys().copied().filter(|id| config.vlan(*id).is_none()).collect();
        for id in removed {
            self.put_host_aside(id, hosts).await;
            self.devices.vlans.remove(&id);
            self.forget_interface(id);
        }
        self.follow_hosts(config)
    }

    /// Removes unused host interfaces from the kernel.
    pub(super) fn remove_hosts(&self, hosts: Hosts) {
        hosts.into_values().for_each(|host| self.devices.opener.remove_host(host));
    }

    /// Restores the VLANs of a configuration after a failed change.
    pub(super) async fn take_back_vlans(&mut self, base: &Config, mut hosts: Hosts) {
        let mut infos = Vec::new();
        for (id, known) in &self.configurations.known {
            infos.resize(infos.len().max(id.index() + 1), InterfaceInfo::NONE);
            infos[id.index()] = known.info;
        }
        let added = vlans::add_infos(base, &mut infos);
        self.routing.tables.vlans.set(vlans::table(base, &infos).into());
        let entered = self.enter_vlans(base, &infos, &mut hosts).await;
        let left = self.leave_vlans(base, &mut hosts).await;
        if let Err(error) = added.and(entered).and(left) {
            tracing::error!("VLANs cannot be put back as they were: {error:#}");
        }
        hosts.values().for_each(|host| self.devices.opener.give_up_host(host));
    }

    /// Returns the VLANs of a port, whose links and MTUs follow the port's.
    pub(super) fn vlans_of(&self, port: PortId) -> Vec<InterfaceId> {
        self.devices.vlans.values().filter(|vlan| vlan.port == port).map(|vlan| vlan.id).collect()
    }
}

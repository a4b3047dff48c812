//! Other network namespaces for host interfaces, and for all that is followed of the kernel.
//!
//! ```text
//!   opened beside those in use:  host interfaces in the new namespace      (prepared: may fail)
//!   -> workers exchange host interfaces -> the kernel's listener moves, sets addresses, resolves neighbours
//!   -> everything is read there, the rest is withdrawn -> host interfaces in the namespace before are removed
//! ```
//!
//! All host interfaces outside the namespaces of VRFs move together. Ports stay connected, with their addresses and
//! resolved neighbours: forwarded packets do not notice.
//!
//! A host interface that moves into the namespace of a VRF, or out of it, moves alone, as its port has other routes
//! from then on. Another thread listens to the kernel there, which knows neither its neighbours nor its state, and so it
//! is down until that thread has found it. Other ports do not notice.

use control::config::{Config, Interface};
use control::fpm::Entrance;
use control::netlink::{KernelOrder, Seat};
use dataplane::interface::InterfaceId;
use tokio::sync::oneshot;

use super::super::host::{HostInterface, HostView};
use super::super::virtuals::Hosts;
use super::Owner;
use super::links::HostLink;

impl Owner {
    /// Has interfaces use these host interfaces, and follows the kernel and zebra in the namespace that a configuration
    /// names, if that is another.
    pub(super) async fn move_hosts(
        &mut self,
        (base, config): (&Config, &Config),
        hosts: Hosts,
        entrance: &mut Option<Entrance>,
    ) {
        let space = |config: &Config, id| config.interface(id).and_then(Interface::space);
        let (hosts, of_vrfs): (Hosts, Hosts) =
            hosts.into_iter().partition(|(id, _)| space(base, *id) == space(config, *id));
        let former = self.move_between_vrfs(config, of_vrfs).await;
        self.remove_former(former, None);
        if !hosts.is_empty() || self.routing.sources.is_elsewhere(config) {
            self.move_together(config, hosts, entrance).await;
        }
    }

    /// Has interfaces use these host interfaces, each of which another of the kernel's listeners follows than the one
    /// before. Returns those before.
    async fn move_between_vrfs(&mut self, config: &Config, hosts: Hosts) -> Vec<HostInterface> {
        let mut former = Vec::new();
        for (id, host) in hosts {
            let HostView { netns, kernel_device, .. } = host.view();
            former.extend(self.replace_host(id, host).await);
            let place =
                netns.map_or("the router's namespace".to_owned(), |of| of.display().to_string());
            tracing::info!("host interface {}: in {place}", self.interface_name(id));
            // With the neighbours: they are resolved by the other kernel.
            self.host_link(id, HostLink::AWAITED, 0);
            self.routing.sources.all_multicast.set(id, false);
            self.slow_path.orders.all_multicast(id, false);
            // The kernel's own device is where the operator makes it.
            if kernel_device.is_some() {
                continue;
            }
            let addresses = config.interface(id).map(|of| of.addresses.clone());
            for address in addresses.into_iter().flatten() {
                self.routing.sources.order(KernelOrder::AddAddress { port: id, address });
            }
            let up = self.devices.links[id.index()].has_device();
            self.routing.sources.order(KernelOrder::SetCarrier { port: id, up });
        }
        former
    }

    /// Moves all that is in no namespace of a VRF.
    async fn move_together(
        &mut self,
        config: &Config,
        hosts: Hosts,
        entrance: &mut Option<Entrance>,
    ) {
        let (mut former, mut seats) = (Vec::new(), Vec::new());
        for (port, host) in hosts {
            let HostView { index, kernel_device, .. } = host.view();
            let addresses = config.interface(port).map(|of| of.addresses.clone());
            // The kernel's own device is where the operator makes it.
            if kernel_device.is_none() {
                seats.push(Seat { port, index, addresses: addresses.unwrap_or_default() });
            }
            former.extend(self.replace_host(port, host).await);
        }
        let ports: Vec<_> = seats.iter().map(|seat| seat.port).collect();
        let moved = self.routing.sources.move_to(config, seats, entrance.take());
        self.routing.groups.follow(self.routing.sources.groups());
        for port in ports {
            if !self.devices.links[port.index()].has_device() {
                self.routing.sources.order(KernelOrder::SetCarrier { port, up: false });
            }
        }
        let place = config.interfaces().find_map(|(.., of)| of.host.as_ref()?.netns.as_deref());
        tracing::info!("host interfaces: in {}", place.unwrap_or("the router's namespace"));
        let moved = moved.unwrap_or_else(|error| {
            tracing::error!("host interfaces: {error:#}");
            None
        });
        self.remove_former(former, moved);
    }

    /// Removes former host interfaces beside the owner's work, once this channel is closed.
    fn remove_former(&self, former: Vec<HostInterface>, moved: Option<oneshot::Receiver<()>>) {
        if former.is_empty() {
            return;
        }
        let opener = self.devices.opener.clone();
        let removal = opener.begin_removal();
        tokio::spawn(async move {
            if let Some(moved) = moved {
                // It is only ever closed.
                let _ = moved.await;
            }
            let remove = move || former.into_iter().for_each(|host| opener.remove_host(host));
            let _ = tokio::task::spawn_blocking(remove).await;
            drop(removal);
        });
    }

    /// Has an interface use this host interface; returns the one before.
    async fn replace_host(
        &mut self,
        id: InterfaceId,
        host: HostInterface,
    ) -> Option<HostInterface> {
        self.devices.opener.keep_host(&host);
        let view = host.view();
        let absent = id.port().and_then(|port| self.devices.absentees.ports.get_mut(&port));
        if let Some(absent) = absent {
            return absent.host.replace(host);
        }
        if let Some(open) = self.devices.virtuals.get_mut(&id) {
            open.host = Some(view.clone());
        }
        for open in self.devices.ports.iter_mut().filter(|open| Some(open.id) == id.port()) {
            open.host = Some(view.clone());
        }
        self.slow_path.orders.replace_host(id, host).await
    }
}

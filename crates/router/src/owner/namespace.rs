//! Another network namespace for the host interfaces and for all that is followed of the kernel.
//!
//! ```text
//!   opened beside those in use:  host interfaces in the new namespace      (prepared: may fail)
//!   -> workers exchange host interfaces -> the kernel's listener moves, sets addresses, resolves neighbours
//!   -> everything is read there, the rest is withdrawn -> host interfaces in the namespace before are removed
//! ```
//!
//! Ports stay connected, with their addresses and resolved neighbours: forwarded packets do not notice.

use control::config::Config;
use control::fpm::Entrance;
use control::netlink::{KernelOrder, Seat};
use dataplane::interface::InterfaceId;

use super::super::host::{HostInterface, HostView};
use super::super::virtuals::Hosts;
use super::Owner;

impl Owner {
    /// Has interfaces use these host interfaces, and follows the kernel and zebra in the namespace that a configuration
    /// names, if that is another.
    pub(super) async fn move_hosts(
        &mut self,
        config: &Config,
        hosts: Hosts,
        entrance: &mut Option<Entrance>,
    ) {
        if hosts.is_empty() && !self.routing.sources.is_elsewhere(config) {
            return;
        }
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

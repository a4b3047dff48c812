//! Multicast routes: those of the configuration and those of the kernel, put together for the
//! forwarders.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::report::{Multicast, MulticastPort};
use control::config;
use control::netlink::{KernelGroup, KernelGroups};
use dataplane::interface::InterfaceId;
use dataplane::multicast::{MulticastCounters, MulticastRoute, MulticastRoutes};
use dataplane::tables::Tables;
use tokio::sync::watch;

use super::Owner;

/// The key of an entry: group and source.
type Key = (IpAddr, Option<IpAddr>);

/// An entry, of either origin.
#[derive(Clone, Debug)]
struct Entry {
    from: InterfaceId,
    to: Vec<(InterfaceId, u8)>,
    /// It is from the kernel, not from the configuration.
    kernel: bool,
}

/// The multicast routes of a router.
pub struct Groups {
    configured: Vec<config::MulticastRoute>,
    kernel: Option<watch::Receiver<KernelGroups>>,
    tables: Arc<Tables>,
    /// As they were published last, in order.
    entries: Vec<(Key, Entry, Arc<MulticastCounters>)>,
}

impl Groups {
    /// Publishes those of the configuration; the kernel's are followed if there is a listener.
    pub fn new(
        configured: Vec<config::MulticastRoute>,
        kernel: Option<watch::Receiver<KernelGroups>>,
        tables: Arc<Tables>,
    ) -> Self {
        let mut groups = Self { configured, kernel, tables, entries: Vec::new() };
        groups.publish();
        groups
    }

    /// Until the kernel's have changed.
    pub(super) async fn changed(&mut self) {
        if let Some(kernel) = &mut self.kernel
            && kernel.changed().await.is_ok()
        {
            return;
        }
        // They have no source that could change them, or no longer.
        std::future::pending().await
    }

    /// Brings what there is now to the forwarders. Entries keep their counts. If both have an
    /// entry, the configuration's holds.
    pub(super) fn publish(&mut self) {
        let kernel = self.kernel.as_mut().map(|kernel| kernel.borrow_and_update().clone());
        let wanted = merge(&self.configured, kernel.as_deref().map_or(&[], Vec::as_slice));
        let counted: HashMap<Key, Arc<MulticastCounters>> =
            self.entries.drain(..).map(|(key, _, counters)| (key, counters)).collect();
        let mut routes = MulticastRoutes::default();
        for (key, entry) in wanted {
            let counters = counted.get(&key).cloned().unwrap_or_default();
            let route = MulticastRoute::new(entry.from, entry.to.iter().copied(), counters.clone());
            match key {
                (IpAddr::V4(group), source) => {
                    routes.ip4.insert(source.and_then(ip4), group, route);
                }
                (IpAddr::V6(group), source) => {
                    routes.ip6.insert(source.and_then(ip6), group, route);
                }
            }
            self.entries.push((key, entry, counters));
        }
        self.tables.multicast.publish(routes);
    }

    /// Returns true if packets to groups that are received by a port are forwarded.
    pub(super) fn come_by(&self, port: InterfaceId) -> bool {
        self.entries.iter().any(|(_, entry, _)| entry.from == port)
    }

    /// The configuration says others from now on.
    pub(super) fn configure(&mut self, configured: &[config::MulticastRoute]) {
        self.configured = configured.to_vec();
        self.publish();
    }

    /// Follows the kernel's from now on, or no longer.
    pub(super) fn follow(&mut self, kernel: Option<watch::Receiver<KernelGroups>>) {
        self.kernel = kernel;
        self.publish();
    }

    /// Gives the kernel a packet of each of its entries: it reports active senders to the routing
    /// daemon, which otherwise would remove the entry.
    pub(super) fn sample(&self) {
        for (_, _, counters) in self.entries.iter().filter(|(_, entry, _)| entry.kernel) {
            counters.sample();
        }
    }
}

fn ip4(address: IpAddr) -> Option<std::net::Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn ip6(address: IpAddr) -> Option<std::net::Ipv6Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    }
}

/// Both, in order; if both have an entry, the configuration's.
fn merge(configured: &[config::MulticastRoute], kernel: &[KernelGroup]) -> Vec<(Key, Entry)> {
    let configured = configured.iter().map(|route| {
        let entry = Entry { from: route.from, to: route.to.clone(), kernel: false };
        ((route.group, route.source), entry)
    });
    let kernel = kernel.iter().map(|group| {
        let entry = Entry { from: group.from, to: group.to.clone(), kernel: true };
        ((group.group, group.source), entry)
    });
    let mut entries: Vec<_> = configured.chain(kernel).collect();
    // Stable, so the configuration's stay first.
    entries.sort_by_key(|(key, _)| *key);
    entries.dedup_by_key(|(key, _)| *key);
    entries
}

impl Owner {
    /// The multicast routes as `show multicast` has them.
    pub(super) fn multicast(&self) -> Vec<Multicast> {
        let entry = |((group, source), entry, counters): &(Key, Entry, Arc<MulticastCounters>)| {
            let to = |&(port, ttl): &(InterfaceId, u8)| MulticastPort {
                port: self.interface_name(port),
                ttl,
            };
            Multicast {
                group: *group,
                source: *source,
                origin: if entry.kernel { "kernel" } else { "configuration" }.to_owned(),
                from: self.interface_name(entry.from),
                to: entry.to.iter().map(to).collect(),
                packets: counters.packets(),
                bytes: counters.bytes(),
                wrong_port: counters.wrong_interface(),
            }
        };
        self.routing.groups.entries.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_goes_before_the_kernel() {
        let port = |n| InterfaceId::new(n).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let configured = |group: &str, source: Option<&str>| config::MulticastRoute {
            line: 1,
            group: ip(group),
            source: source.map(ip),
            from: port(0),
            to: vec![(port(1), 1)],
        };
        let kernel = |group: &str, source: &str| KernelGroup {
            group: ip(group),
            source: Some(ip(source)),
            from: port(2),
            to: Vec::new(),
        };
        let merged = merge(
            &[configured("239.1.1.2", Some("10.0.1.2")), configured("239.1.1.1", None)],
            &[kernel("239.1.1.1", "10.0.1.2"), kernel("239.1.1.2", "10.0.1.2")],
        );
        let seen: Vec<_> = merged
            .iter()
            .map(|((group, source), entry)| (group.to_string(), source.is_some(), entry.kernel))
            .collect();
        assert_eq!(
            seen,
            [
                ("239.1.1.1".to_owned(), false, false),
                ("239.1.1.1".to_owned(), true, true),
                ("239.1.1.2".to_owned(), true, false),
            ]
        );
    }
}

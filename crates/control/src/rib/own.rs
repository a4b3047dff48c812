//! The routes that follow from the interfaces: connected networks, own addresses, broadcast addresses.
//!
//! | address of an interface | routes |
//! |---|---|
//! | 10.0.1.1/24 | 10.0.1.0/24 connected, 10.0.1.1/32 and 10.0.1.255/32 local |
//! | 192.0.2.0/31, 192.0.2.9/32 | no broadcast address (RFC 3021); a /32 has no network |
//! | 2001:db8::1/64 | the network, the address, and the subnet-router anycast address 2001:db8:: |
//! | 198.51.100.1/24 of a loopback | as above, but the network is unreachable |
//! | fe80::1/64 | none: fe80::/10 is local on every interface, and never forwarded |
//!
//! The metric of such a route is its interface's number, so that several interfaces may be on one
//! network: the first whose link is up receives the packets.

use std::collections::BTreeSet;

use super::next_hops::Referrer;
use super::*;

/// Metric of local routes that belong to no interface.
const NO_PORT: u64 = u64::MAX;

/// The router's own addresses, besides those of interfaces.
#[derive(Default)]
pub(super) struct Locals {
    /// Those that are on no interface.
    addresses: BTreeSet<(VrfId, IpAddr)>,
    /// All own addresses, as read by the forwarders.
    own: Option<Arc<OwnAddresses>>,
}

impl Rib {
    /// Returns the present interfaces.
    pub fn interfaces(&self) -> &[RibInterface] {
        &self.interfaces
    }

    /// Returns the interface with this number.
    pub fn interface(&self, id: InterfaceId) -> Option<&RibInterface> {
        self.interfaces.iter().find(|interface| interface.id == id)
    }

    /// Adds an interface whose link is up, with the routes that follow from it. A loopback has no link. An interface of the
    /// same number is replaced.
    ///
    /// # Errors
    /// There is no room for its routes; the interface is added nevertheless, without them.
    pub fn add_interface(&mut self, interface: RibInterface) -> Result<(), Error> {
        self.change(|rib| {
            let (id, addresses) = (interface.id, interface.addresses.clone());
            rib.remove_interface(id);
            rib.hops.set_link(id, Some(!interface.is_loopback));
            rib.interfaces.push(RibInterface { addresses: Vec::new(), ..interface });
            // The interface's own reference, so that an address never waits for a number.
            let prefix = addresses.first().map_or_else(IpNet::default, IpNet::trunc);
            rib.hops
                .glean(id, Referrer::Other)
                .map_err(|refused| refuse(Subject::Route(prefix), refused))?;
            rib.put_addresses(id, &addresses);
            Ok(())
        })
    }

    /// Removes an interface and the routes that follow from it; returns false if there is none.
    /// Other routes over it are dead until there is one of this number again.
    pub fn remove_interface(&mut self, id: InterfaceId) -> bool {
        self.change(|rib| {
            let Some(at) = rib.interfaces.iter().position(|interface| interface.id == id) else {
                return false;
            };
            rib.put_addresses(id, &[]);
            rib.interfaces.remove(at);
            rib.neighbours.forget(id);
            rib.hops.set_link(id, None);
            if let Some(glean) = rib.hops.glean_of(id) {
                rib.hops.release(glean, Referrer::Other);
            }
            true
        })
    }

    /// Sets an interface's own addresses. Routes that follow from addresses it keeps are not
    /// changed.
    ///
    /// # Errors
    /// There is no room for a route that follows from them.
    pub fn set_addresses(
        &mut self,
        interface: InterfaceId,
        addresses: &[IpNet],
    ) -> Result<(), Error> {
        self.checked(None, |rib| {
            rib.put_addresses(interface, addresses);
            Ok(())
        })
    }

    /// Sets the MAC and MTU of an interface's new device.
    pub fn set_device(&mut self, interface: InterfaceId, mac: MacAddr, mtu: u16) {
        if let Some(known) = self.interfaces.iter_mut().find(|known| known.id == interface) {
            (known.mac, known.mtu) = (mac, mtu);
        }
    }

    /// Sets an interface's MTU.
    pub fn set_mtu(&mut self, interface: InterfaceId, mtu: u16) {
        if let Some(known) = self.interfaces.iter_mut().find(|known| known.id == interface) {
            known.mtu = mtu;
        }
    }

    /// Sets the link state of an interface: true if packets can leave by it. When the call returns,
    /// no packet takes a path over a dead interface while its route has another; the time it takes
    /// depends on the next hops over the interface, not on the routes. Routes without a live path
    /// are replaced by others piece by piece, see [`Self::is_busy`]; until then their packets have
    /// no route.
    pub fn set_link(&mut self, interface: InterfaceId, up: bool) {
        let is_loopback = self.interface(interface).is_some_and(|known| known.is_loopback);
        if self.hops.has_interface(interface) && !is_loopback {
            self.change(|rib| rib.hops.set_link(interface, Some(up)));
        }
    }

    /// Publishes the router's own addresses there from now on.
    pub fn share_addresses(&mut self, own: Arc<OwnAddresses>) {
        self.locals.own = Some(own);
        self.publish_class_e();
        self.publish_addresses();
    }

    /// Tells forwarders whether hosts may have addresses in 240/4.
    pub(super) fn publish_class_e(&self) {
        self.locals.own.iter().for_each(|own| own.accept_class_e(self.class_e));
    }

    fn publish_addresses(&self) {
        let Some(own) = &self.locals.own else { return };
        let interfaces = self
            .interfaces
            .iter()
            .map(|interface| (interface.id, interface.vrf, interface.addresses.as_slice()));
        own.publish(interfaces, self.locals.addresses.iter().copied());
    }

    /// Adds an address or prefix of a VRF that is the router's own without being on an interface.
    ///
    /// # Errors
    /// It is in 240.0.0.0/4, which is not accepted: the address is used when it is. Or there is no room for the
    /// route.
    pub fn add_local(&mut self, vrf: VrfId, prefix: IpNet) -> Result<(), Error> {
        self.checked(None, |rib| {
            rib.put_own(vrf, prefix.trunc(), RouteSource::Local, NO_PORT, LOCAL);
            Ok(())
        })?;
        // Addresses within a larger prefix may be hosts behind the kernel.
        if prefix.prefix_len() == prefix.max_prefix_len()
            && self.locals.addresses.insert((vrf, prefix.addr()))
        {
            self.publish_addresses();
        }
        match self.is_withheld(vrf, &prefix.trunc()) {
            true => Err(Error::NotAccepted { prefix }),
            false => Ok(()),
        }
    }

    /// Reverts [`Self::add_local`]; returns false if there was none.
    pub fn remove_local(&mut self, vrf: VrfId, prefix: IpNet) -> bool {
        if prefix.prefix_len() == prefix.max_prefix_len()
            && self.locals.addresses.remove(&(vrf, prefix.addr()))
        {
            self.publish_addresses();
        }
        self.change(|rib| rib.take_own(vrf, prefix.trunc(), RouteSource::Local, NO_PORT))
    }

    /// Removes all addresses and prefixes of a VRF that are on no interface.
    pub(super) fn remove_locals(&mut self, vrf: VrfId) {
        self.locals.addresses.retain(|(of, _)| *of != vrf);
        self.change(|rib| {
            rib.take_in(vrf, |c| c.source == RouteSource::Local && c.metric == NO_PORT);
        });
        self.publish_addresses();
    }

    pub(super) fn put_addresses(&mut self, id: InterfaceId, addresses: &[IpNet]) {
        let Some(interface) = self.interfaces.iter_mut().find(|known| known.id == id) else {
            return;
        };
        let before = std::mem::replace(&mut interface.addresses, addresses.to_vec());
        let (vrf, is_loopback) = (interface.vrf, interface.is_loopback);
        let (before, after) = (own_routes(&before), own_routes(addresses));
        let metric = id.index() as u64;
        for &(prefix, source) in after.difference(&before) {
            let hop = match source {
                RouteSource::Connected if is_loopback => Some(UNREACHABLE),
                RouteSource::Connected => self.hops.glean(id, Referrer::Other).ok(),
                _ => Some(LOCAL),
            };
            if let Some(hop) = hop {
                self.put_own(vrf, prefix, source, metric, hop);
            }
        }
        for &(prefix, source) in before.difference(&after) {
            self.take_own(vrf, prefix, source, metric);
        }
        self.publish_addresses();
    }

    /// Adds a route of the RIB's own; the candidate takes over the caller's reference to the hop.
    pub(super) fn put_own(
        &mut self,
        vrf: VrfId,
        prefix: IpNet,
        source: RouteSource,
        metric: u64,
        hop: u16,
    ) {
        self.put(vrf, prefix, Candidate { source, metric, hop, generation: 0 });
    }

    pub(super) fn take_own(
        &mut self,
        vrf: VrfId,
        prefix: IpNet,
        source: RouteSource,
        metric: u64,
    ) -> bool {
        self.take(vrf, prefix, |candidate| candidate.source == source && candidate.metric == metric)
            > 0
    }
}

/// Returns the routes that follow from addresses.
fn own_routes(addresses: &[IpNet]) -> BTreeSet<(IpNet, RouteSource)> {
    let mut routes = BTreeSet::new();
    let forwarded =
        |net: &&IpNet| !matches!(net, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
    for net in addresses.iter().filter(forwarded) {
        let local = local_addresses(net).into_iter();
        routes.extend(local.map(|address| (IpNet::from(address), RouteSource::Local)));
        if net.prefix_len() < net.max_prefix_len() {
            routes.insert((net.trunc(), RouteSource::Connected));
        }
    }
    routes
}

/// Returns the addresses of an interface's network that are the router's own.
fn local_addresses(net: &IpNet) -> Vec<IpAddr> {
    let mut addresses = vec![net.addr()];
    let hosts = net.max_prefix_len() - net.prefix_len();
    // /31, /127 and host addresses have no address of the network itself (RFC 3021, RFC 6164).
    if hosts >= 2 {
        addresses.push(match net {
            IpNet::V4(net) => net.broadcast().into(),
            // A router has the subnet-router anycast address of its networks (RFC 4291 2.6.1).
            IpNet::V6(net) => net.network().into(),
        });
    }
    addresses
}

//! Accelerated interfaces whose XDP programs forward themselves: the ways out, and destinations that are the kernel's.
//!
//! The programs read the RIB's own tables (`in_kernel.rs`), so no route, next hop or neighbour passes through here. What
//! the tables do not have is set at each look: the MAC, MTU and number of each interface and VLAN, as long as it can send.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use control::netlink::netdev;
use control::rib::Rib;
use dataplane::interface::InterfaceId;
use dataplane::port::PortId;
use dpdk::{Errno, KernelTables, Prefixes, WayOut};
use ipnet::IpNet;

use super::super::ports::OpenPort;

/// A VLAN on a port as a way out.
pub(super) struct VlanWay {
    pub(super) interface: InterfaceId,
    /// The identifier in its tag.
    pub(super) id: u16,
    pub(super) mtu: u16,
}

/// The ways out that the programs have.
pub(super) struct Ways {
    tables: Arc<KernelTables>,
    set: BTreeMap<InterfaceId, WayOut>,
    /// Reasons why no packet leaves by a port.
    closed: BTreeMap<PortId, String>,
}

impl Ways {
    /// Begins with no way out, and with prefixes by which no destination is the kernel's.
    pub(super) fn new(prefixes: &Prefixes) -> Result<Self, Errno> {
        let tables = KernelTables::shared()?;
        for everything in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            prefixes.set(everything, 0, true)?;
        }
        if let Some(why) = tables.uncounted() {
            tracing::warn!(
                "accelerate: redirected packets that are not sent are not counted: {why}"
            );
        }
        Ok(Self { tables, set: BTreeMap::new(), closed: BTreeMap::new() })
    }

    /// Leaves these destinations to the kernel; `changed`: those that were left to it or not before.
    pub(super) fn stay(
        &self,
        prefixes: &Prefixes,
        (changed, stay): (&BTreeSet<IpNet>, &BTreeSet<IpNet>),
        refused: &mut BTreeSet<IpNet>,
    ) {
        for net in changed {
            // The prefix of all destinations stays.
            let (address, bits, forwards) = (net.addr(), net.prefix_len(), !stay.contains(net));
            let done = match forwards && bits > 0 {
                true => prefixes.remove(address, bits),
                false => prefixes.set(address, bits, forwards),
            };
            match done {
                Ok(()) | Err(Errno::ENOENT) => _ = refused.remove(net),
                Err(errno) => {
                    tracing::error!(
                        "accelerate: {net}: the XDP programs have no room for it: {errno}"
                    );
                    refused.insert(*net);
                }
            }
        }
        self.tables.set_some_stay(!stay.is_empty());
    }

    /// Sets the ways out by these ports, with their MTU, and by the VLANs on them, and removes all others.
    pub(super) fn follow(&mut self, ports: &[(&OpenPort, u16, Vec<VlanWay>)]) {
        let mut wanted = BTreeMap::new();
        let mut closed = BTreeMap::new();
        for (open, mtu, vlans) in ports {
            let Some(acceleration) = open.port.acceleration() else { continue };
            let (native, mac) = (sends_frames(&open.name), open.port.mac());
            let port = (open.id.index() as u8, acceleration.interface());
            let way = WayOut { port, vlan: None, mac, mtu: *mtu, native };
            wanted.insert(open.id.into(), way);
            wanted.extend(vlans.iter().map(|vlan| {
                (vlan.interface, WayOut { vlan: Some(vlan.id), mtu: vlan.mtu, ..way })
            }));
            if !native && acceleration.generic().is_none() {
                closed.insert(open.id, cannot_send(&open.name));
            }
        }
        let gone: Vec<InterfaceId> =
            self.set.keys().filter(|id| !wanted.contains_key(id)).copied().collect();
        for id in gone {
            self.set(id, None);
        }
        for (id, way) in wanted {
            self.set(id, Some(way));
        }
        for (_, why) in closed.iter().filter(|(id, _)| !self.closed.contains_key(id)) {
            tracing::warn!("accelerate: {why}; packets that leave by it stay with the kernel");
        }
        self.closed = closed;
    }

    fn set(&mut self, id: InterfaceId, way: Option<WayOut>) {
        if self.set.get(&id) == way.as_ref() {
            return;
        }
        self.set.remove(&id);
        match self.tables.set_way(id.index(), way) {
            Ok(()) => _ = way.map(|way| self.set.insert(id, way)),
            // The interface has just vanished, as its port will notice.
            Err(Errno::EINVAL) => {}
            Err(errno) => {
                tracing::error!("accelerate: the way out by interface {}: {errno}", id.index())
            }
        }
    }

    /// Returns the reason why no packet leaves by a port; `None`: they do.
    pub(super) fn closed(&self, id: PortId) -> Option<&str> {
        self.closed.get(&id).map(String::as_str)
    }

    /// Waits until no program has a packet any more that it took before the call.
    pub(super) fn wait(&self) {
        if let Err(errno) = self.tables.wait_for_programs() {
            tracing::error!("accelerate: waiting for XDP programs: {errno}");
        }
    }
}

/// Returns the reason for which the tables do not have all of the RIB's routes.
pub(super) fn missing(rib: &Rib) -> Option<String> {
    let summary = rib.summary();
    let missing = summary.pending + summary.waiting;
    (missing > 0)
        .then(|| format!("the tables of the XDP programs have no room for {missing} routes"))
}

/// Returns true if an interface's driver sends frames that programs in drivers have redirected.
fn sends_frames(name: &str) -> bool {
    matches!(netdev::xdp(name), Ok(Some(xdp)) if xdp.transmit)
}

fn cannot_send(name: &str) -> String {
    format!(
        "{name}: its driver sends no frames of XDP programs; if it is veth, have its other end receive them: ethtool -K \
         PEER gro on"
    )
}

//! Destinations of routes, stored once for all routes that lead the same way.

use std::collections::HashMap;
use std::net::IpAddr;

use dataplane::interface::{InterfaceId, VrfId};
use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::ReplacePolicy;
use crate::netlink::message::{
    Hop, Hops, RTN_ANYCAST, RTN_BLACKHOLE, RTN_BROADCAST, RTN_LOCAL, RTN_PROHIBIT, RTN_THROW,
    RTN_UNREACHABLE, RTPROT_KERNEL,
};
use crate::rib::{Path, RouteKind, WEIGHT_MOST};

/// Properties of routes besides prefix, table and metric; the kernel's `fib_info`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InfoKey {
    pub(super) ipv6: bool,
    pub(super) kind: u8,
    pub(super) protocol: u8,
    pub(super) scope: u8,
    /// True for the network of an own address, which the RIB derives from the address.
    pub(super) connected: bool,
    pub(super) source: Option<IpAddr>,
    pub(super) nexthop: Option<u32>,
    pub(super) hops: Hops,
}

impl InfoKey {
    /// Returns true if IPv6 routes with one prefix and metric are the paths of one route.
    pub(super) fn joins(&self) -> bool {
        self.ipv6
            && self.nexthop.is_none()
            && self.hops.iter().all(|hop| hop.via.is_some())
            && !self.hops.is_empty()
    }
}

/// Result of resolving an info for the RIB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// Nothing is reported: the RIB derives it.
    Silent,
    /// The machine itself answers for the prefix.
    Local,
    /// The search ends in this table and continues in the next.
    Throw,
    Route(RouteKind),
}

#[derive(Debug)]
pub(super) struct Info {
    pub(super) key: InfoKey,
    /// A bit for each of the first 64 hops that is not used although its link is up.
    pub(super) dead: u64,
    pub(super) resolved: Resolved,
    /// The earlier result, while the routes with this info are being reported again.
    pub(super) previous: Option<Resolved>,
    /// True if the kernel has dropped the routes with this info, without a message.
    pub(super) dying: bool,
    references: u32,
}

/// The properties of an interface on which routes depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The port whose host interface it is.
    pub(crate) port: Option<InterfaceId>,
    /// True if it is administratively up.
    pub(crate) up: bool,
}

/// All interfaces by index.
pub(crate) type InterfaceMap = HashMap<u32, Interface>;

/// All infos.
#[derive(Debug, Default)]
pub(super) struct Infos {
    all: Vec<Option<Info>>,
    free: Vec<u32>,
    numbers: HashMap<InfoKey, u32, RandomState>,
    by_nexthop: HashMap<u32, SmallVec<[u32; 1]>>,
    /// The last one used: most routes have the same info as the route before.
    last: Option<u32>,
}

impl Infos {
    /// Returns the number of an info, which is created if it is new: `resolve` gives its result.
    pub(super) fn intern(
        &mut self,
        key: InfoKey,
        resolve: impl FnOnce(&InfoKey) -> Resolved,
    ) -> u32 {
        if let Some(last) = self.last
            && self.all[last as usize].as_ref().is_some_and(|info| info.key == key)
        {
            return last;
        }
        if let Some(&number) = self.numbers.get(&key) {
            self.last = Some(number);
            return number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() as u32 - 1
        });
        let resolved = resolve(&key);
        if let Some(nexthop) = key.nexthop {
            self.by_nexthop.entry(nexthop).or_default().push(number);
        }
        self.numbers.insert(key.clone(), number);
        let (previous, dying, dead, references) = (None, false, 0, 0);
        self.all[number as usize] = Some(Info { key, dead, resolved, previous, dying, references });
        self.last = Some(number);
        number
    }

    /// Returns the number of an existing info.
    pub(super) fn find(&self, key: &InfoKey) -> Option<u32> {
        let last = self.last.filter(|last| self.get(*last).key == *key);
        last.or_else(|| self.numbers.get(key).copied())
    }

    pub(super) fn get(&self, number: u32) -> &Info {
        self.all[number as usize].as_ref().expect("held as long as a route refers to it")
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut Info {
        self.all[number as usize].as_mut().expect("held as long as a route refers to it")
    }

    /// Returns its present result, which differs from [`Self::sent`] while its routes are reported
    /// again.
    pub(super) fn resolved(&self, number: u32) -> &Resolved {
        &self.get(number).resolved
    }

    /// Returns the result last reported for its routes.
    pub(super) fn sent(&self, number: u32) -> &Resolved {
        let info = self.get(number);
        info.previous.as_ref().unwrap_or(&info.resolved)
    }

    pub(super) fn refer(&mut self, number: u32) {
        self.get_mut(number).references += 1;
    }

    /// Removes one reference. The info is freed by [`Self::sweep`].
    pub(super) fn release(&mut self, number: u32) {
        self.get_mut(number).references -= 1;
    }

    /// Frees an info without references.
    pub(super) fn sweep(&mut self, number: u32) {
        let Some(info) = self.all[number as usize].take_if(|info| info.references == 0) else {
            return;
        };
        self.numbers.remove(&info.key);
        self.free.push(number);
        if self.last == Some(number) {
            self.last = None;
        }
        if let Some(nexthop) = info.key.nexthop
            && let Some(list) = self.by_nexthop.get_mut(&nexthop)
        {
            list.retain(|other| *other != number);
            if list.is_empty() {
                self.by_nexthop.remove(&nexthop);
            }
        }
    }

    /// Returns the infos over a nexthop object.
    pub(super) fn over(&self, nexthop: u32) -> SmallVec<[u32; 1]> {
        self.by_nexthop.get(&nexthop).cloned().unwrap_or_default()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Info)> {
        let numbered = self.all.iter_mut().enumerate();
        numbered.filter_map(|(number, info)| Some((number as u32, info.as_mut()?)))
    }
}

/// Resolves a route with these attributes. `nexthop` resolves a nexthop object.
pub(super) fn resolve(
    policy: ReplacePolicy,
    key: &InfoKey,
    dead: u64,
    interfaces: &InterfaceMap,
    nexthop: impl FnOnce(u32) -> RouteKind,
) -> Resolved {
    let on_port = |hop: &Hop| interfaces.get(&hop.interface).is_some_and(|i| i.port.is_some());
    let by_address = key.protocol == RTPROT_KERNEL && key.hops.iter().any(on_port);
    match key.kind {
        RTN_LOCAL | RTN_BROADCAST if by_address => Resolved::Silent,
        RTN_LOCAL | RTN_BROADCAST | RTN_ANYCAST => Resolved::Local,
        RTN_THROW => Resolved::Throw,
        RTN_BLACKHOLE => Resolved::Route(RouteKind::Blackhole),
        RTN_UNREACHABLE => Resolved::Route(RouteKind::Unreachable),
        RTN_PROHIBIT => Resolved::Route(RouteKind::Prohibited),
        _ => match key.nexthop {
            Some(id) => Resolved::Route(nexthop(id)),
            None if key.connected && by_address => Resolved::Silent,
            None => match followed(policy, &key.hops, interfaces) {
                None => Resolved::Route(unicast(&key.hops, dead, interfaces)),
                Some(hops) if hops.is_empty() => Resolved::Silent,
                Some(hops) => Resolved::Route(unicast(&hops, 0, interfaces)),
            },
        },
    }
}

/// Returns the hops without those over unknown interfaces; `None` if all hops are kept, as the
/// kernel's always are: it reports its interfaces before its routes. The interfaces in zebra's
/// messages may be wrong.
pub(super) fn followed(
    policy: ReplacePolicy,
    hops: &[Hop],
    interfaces: &InterfaceMap,
) -> Option<Hops> {
    let known = |hop: &&Hop| hop.interface == 0 || interfaces.contains_key(&hop.interface);
    let all = policy == ReplacePolicy::Kernel || hops.iter().all(|hop| known(&hop));
    (!all).then(|| hops.iter().filter(known).copied().collect())
}

fn unicast(hops: &[Hop], dead: u64, interfaces: &InterfaceMap) -> RouteKind {
    // A hop that is dead because its link is down stays: the RIB tracks the link, and removes and
    // restores the path without every route being reported again.
    let used = |(place, hop): &(usize, &Hop)| {
        let dead = *place < 64 && dead >> place & 1 != 0;
        !dead || interfaces.get(&hop.interface).is_none_or(|interface| !interface.up)
    };
    let alive: SmallVec<[Hop; 4]> = hops.iter().enumerate().filter(used).map(|(_, h)| *h).collect();
    let hops = if alive.is_empty() { hops } else { &alive[..] };
    paths(hops, interfaces).map_or(RouteKind::Host, RouteKind::Unicast)
}

/// Returns the paths of hops; `None` if one of them needs the kernel: over an interface that is not
/// a port, or into a tunnel.
pub(super) fn paths(hops: &[Hop], interfaces: &InterfaceMap) -> Option<Vec<Path>> {
    let most = u32::from(WEIGHT_MOST);
    let heaviest = hops.iter().map(|hop| hop.weight).max().unwrap_or(1).max(most);
    hops.iter()
        .map(|hop| {
            let port = match hop.interface {
                0 => None,
                index => Some(interfaces.get(&index)?.port?),
            };
            let weight = (u64::from(hop.weight) * u64::from(most) / u64::from(heaviest)).max(1);
            let (via, weight, on_link) = (hop.via, weight as u16, hop.on_link);
            let path = Path { interface: port, via, vrf: VrfId::DEFAULT, weight, on_link };
            (!hop.encap && (port.is_some() || hop.via.is_some())).then_some(path)
        })
        .collect()
}

//! Effects of a route message on the routes of its prefix: the kernel's own rules.
//!
//! IPv4 (`fib_table_insert`, `fib_table_delete` of net/ipv4/fib_trie.c): one prefix and metric may
//! have several routes that differ otherwise. A new one is inserted before them; with `NLM_F_APPEND`
//! it is appended to them, with `NLM_F_REPLACE` it replaces the first.
//!
//! IPv6 (`fib6_add_rt2node` of net/ipv6/ip6_fib.c): routes over gateways with one prefix and metric
//! are the paths of one route, and the message of each contains all of them. The kernel removes
//! paths one at a time. `NLM_F_REPLACE` replaces a route of the same sort, over gateways or not; if
//! there is none, the first of the other sort.

use super::info::{InfoKey, Infos};
use super::table::{List, Variant};
use crate::netlink::message::{NLM_F_APPEND, NLM_F_REPLACE};

/// Origin of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A notification, with these flags.
    Notification(u16),
    /// In a dump of all routes.
    Dump,
    /// From a source that has one route for each prefix.
    Only,
}

/// Adds a route, whose info exists in `infos` already.
pub(super) fn add(list: &mut List, new: Variant, arrival: Arrival, mark: u8, infos: &Infos) {
    let same_metric = |v: &Variant| v.metric == new.metric;
    if arrival == Arrival::Only {
        *list = List::from_slice(&[new]);
        return;
    }
    if let Some(at) = list.iter().position(|v| same_metric(v) && v.info() == new.info()) {
        list[at] = new;
        return;
    }
    let joins = infos.get(new.info()).key.joins();
    let kin = |v: &Variant| same_metric(v) && infos.get(v.info()).key.joins() == joins;
    let ipv6 = infos.get(new.info()).key.ipv6;
    let replaced = match arrival {
        Arrival::Dump => list.iter().position(|v| same_metric(v) && v.mark() != mark),
        Arrival::Notification(flags) if flags & NLM_F_REPLACE != 0 => {
            let kin = list.iter().position(kin).filter(|_| ipv6);
            kin.or_else(|| list.iter().position(same_metric))
        }
        Arrival::Notification(_) if joins => list.iter().position(kin),
        _ => None,
    };
    if let Some(at) = replaced {
        list[at] = new;
        return;
    }
    let behind = match arrival {
        Arrival::Notification(flags) => ipv6 || flags & NLM_F_APPEND != 0,
        Arrival::Dump | Arrival::Only => true,
    };
    let at = list.iter().position(|v| match behind {
        true => v.metric > new.metric,
        false => v.metric >= new.metric,
    });
    list.insert(at.unwrap_or(list.len()), new);
}

/// Action for a message that removes a route.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// There is no such route.
    Unknown,
    /// The route at this place is removed.
    Whole(usize),
    /// The route at this place loses paths and becomes this.
    Paths(usize, InfoKey),
}

/// Finds the route to be removed.
pub(super) fn find(list: &[Variant], metric: u32, gone: &InfoKey, infos: &Infos) -> Removal {
    let key = |v: &Variant| &infos.get(v.info()).key;
    let exact = list.iter().position(|v| v.metric == metric && key(v) == gone);
    if let Some(at) = exact {
        return Removal::Whole(at);
    }
    if gone.joins() {
        let kin = list.iter().position(|v| v.metric == metric && key(v).joins());
        let Some(at) = kin else { return Removal::Unknown };
        let mut left = key(&list[at]).clone();
        left.hops.retain(|hop| {
            !gone.hops.iter().any(|g| g.interface == hop.interface && g.via == hop.via)
        });
        return match left.hops.len() {
            0 => Removal::Whole(at),
            len if len == key(&list[at]).hops.len() => Removal::Unknown,
            _ => Removal::Paths(at, left),
        };
    }
    // The same route, described differently.
    let alike = |v: &Variant| {
        let key = key(v);
        (v.metric, key.kind, key.nexthop, &key.hops)
            == (metric, gone.kind, gone.nexthop, &gone.hops)
    };
    list.iter().position(alike).map_or(Removal::Unknown, Removal::Whole)
}

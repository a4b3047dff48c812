//! `ip4-policy-route`, `ip6-policy-route`: packets whose route a filter's rule overrides.
//!
//! Take valid packets. A rule gives a next hop or a VRF (see [`Target`]); the packet goes to that
//! next hop, or by the route to its destination in that VRF. Sets [`Batch::next_hop`],
//! [`Batch::hop`] and [`Batch::out_interface`] of these packets as the lookups do.
//!
//! | output | packets |
//! |---|---|
//! | `lookup` | not overridden; or for the router itself or a group, with options, or to a named next hop without a live path |
//! | the other outputs of a lookup | as in `resolve.rs` |
//!
//! Packets for the router itself are found by a lookup in their own VRF: a rule for all packets of a network does
//! not cut its hosts off from their gateway.
//!
//! The steps are in the graph only if the inward filter of an interface has such a rule.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::resolve::{self, look_up, resolve};
use super::{ip4_lookup, ip6_lookup};
use crate::batch::Batch;
use crate::features::Feature;
use crate::filters::Target;
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::interface::VrfId;
use crate::mask::Mask;
use crate::next_hop::NextHop;
use crate::reason::{DropReason, PuntReason};
use crate::tables::{Fibs, Tables};

/// True if the inward filter of an interface has a rule that overrides routes.
pub const POLICY_ROUTE: Feature = Feature::number("policy_route", 4);

const LOOKUP: usize = 0;

/// The first output of the lookup.
const OF_LOOKUP: usize = 1;

/// `lookup`, then the lookups' outputs in the order of `resolve.rs`, as far as unicast packets without options
/// use them.
const fn outputs() -> [Output; OF_LOOKUP + resolve::MULTICAST] {
    [
        Output::next("lookup"),
        Output::next("forward"),
        Output::Punt(PuntReason::Local),
        Output::Punt(PuntReason::NoRoute),
        Output::Punt(PuntReason::Prohibited),
        Output::Punt(PuntReason::Unreachable),
        Output::Punt(PuntReason::Glean),
        Output::Punt(PuntReason::Unresolved),
        Output::Punt(PuntReason::Scope),
        Output::Drop(DropReason::Blackhole),
        Output::Drop(DropReason::MartianDestination),
        Output::Drop(DropReason::L2Broadcast),
    ]
}

pub(super) const OUTPUTS: &[Output] = &outputs();

/// An address family that packets are routed by.
trait Routed {
    type Bits: Copy + Default;
    fn destination(batch: &Batch, slot: usize) -> Self::Bits;

    fn look_up(fibs: &Fibs, addresses: &[Self::Bits], answers: &mut [u16]);
}

impl Routed for Ipv4Addr {
    type Bits = u32;

    fn destination(batch: &Batch, slot: usize) -> u32 {
        ip4_lookup::destination(batch, slot)
    }

    fn look_up(fibs: &Fibs, addresses: &[u32], answers: &mut [u16]) {
        fibs.fib4.lookup_batch(addresses, answers);
    }
}

impl Routed for Ipv6Addr {
    type Bits = u128;

    fn destination(batch: &Batch, slot: usize) -> u128 {
        ip6_lookup::destination(batch, slot)
    }

    fn look_up(fibs: &Fibs, addresses: &[u128], answers: &mut [u16]) {
        fibs.fib6.lookup_batch(addresses, answers);
    }
}

/// The target of a rule's packets.
enum Redirect {
    NextHop(Arc<AtomicU16>),
    Vrf(VrfId),
}

/// See the module's documentation. `A`: the packets' family.
struct PolicyRoute<A> {
    tables: Arc<Tables>,
    /// By the filters' numbers less one.
    redirects: Vec<Vec<Redirect>>,
    family: std::marker::PhantomData<fn() -> A>,
}

/// `ip4-policy-route`.
pub(super) fn ip4(tables: &Arc<Tables>) -> Box<dyn Step> {
    Box::new(PolicyRoute::<Ipv4Addr>::new(tables))
}

/// `ip6-policy-route`.
pub(super) fn ip6(tables: &Arc<Tables>) -> Box<dyn Step> {
    Box::new(PolicyRoute::<Ipv6Addr>::new(tables))
}

impl<A: Routed> PolicyRoute<A> {
    fn new(tables: &Arc<Tables>) -> Self {
        let redirect = |target: &Target| match target {
            Target::NextHop(name) => Redirect::NextHop(tables.named_hops.number(name)),
            Target::Vrf(vrf) => Redirect::Vrf(*vrf),
        };
        let filters = tables.filters.get();
        let of_filter = filters.tables.iter().map(|table| {
            let targets = table.iter().flat_map(|table| &table.spec().targets);
            targets.map(redirect).collect()
        });
        let redirects = of_filter.collect();
        Self { tables: tables.clone(), redirects, family: std::marker::PhantomData }
    }

    fn redirect(&self, (filter, target): (u8, u8)) -> Option<&Redirect> {
        self.redirects.get(usize::from(filter).wrapping_sub(1))?.get(usize::from(target))
    }

    /// Returns the packets in transit: not for the router, a group, or a martian destination.
    fn in_transit(&self, batch: &mut Batch, packets: Mask) -> Mask {
        let mut rest = packets;
        while let Some((vrf, of_vrf)) = batch.first_of_vrf(rest) {
            let fibs = self.tables.vrf(vrf);
            look_up(batch, of_vrf, A::destination, |addresses, answers| {
                A::look_up(fibs, addresses, answers);
            });
            rest = rest.without(of_vrf);
        }
        packets.filter(|slot| {
            let hop = NextHop::from(self.tables.next_hops.get(batch.next_hop[slot]));
            !matches!(hop, NextHop::Local | NextHop::Multicast | NextHop::Martian)
        })
    }

    /// Writes the numbers of the next hops given by rules; returns the packets that rules send to
    /// VRFs.
    fn give_named(&self, batch: &mut Batch, packets: Mask) -> Mask {
        packets.filter(|slot| match self.redirect(batch.steering.target(slot)) {
            Some(Redirect::NextHop(number)) => {
                batch.next_hop[slot] = number.load(Ordering::Acquire);
                false
            }
            Some(Redirect::Vrf(_)) => true,
            // Missing filter: a defect, which must not send packets anywhere.
            None => false,
        })
    }

    fn look_up_in_vrfs(&self, batch: &mut Batch, packets: Mask) {
        let vrf_of = |batch: &Batch, slot| match self.redirect(batch.steering.target(slot)) {
            Some(Redirect::Vrf(vrf)) => *vrf,
            _ => VrfId::DEFAULT,
        };
        let mut rest = packets;
        while let Some(first) = rest.slots().next() {
            let vrf = vrf_of(batch, first);
            let same = rest.filter(|slot| vrf_of(batch, slot) == vrf);
            look_up(batch, same, A::destination, |addresses, answers| {
                A::look_up(self.tables.vrf(vrf), addresses, answers);
            });
            rest = rest.without(same);
        }
    }
}

impl<A: Routed> Step for PolicyRoute<A> {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let steered = (input & batch.steering.packets()).without(batch.options);
        out[LOOKUP] = input;
        if steered.is_empty() {
            return;
        }
        let steered = self.in_transit(batch, steered);
        let in_vrfs = self.give_named(batch, steered);
        self.look_up_in_vrfs(batch, in_vrfs);
        let mut found = [Mask::EMPTY; MAX_OUTPUTS];
        let Tables { next_hops, flows, .. } = &*self.tables;
        resolve(batch, steered, next_hops, flows, &mut found);
        // A next hop without a path gives the same result as a missing route; then the packet takes
        // its ordinary route.
        let lost = found[resolve::NO_ROUTE].without(in_vrfs);
        found[resolve::NO_ROUTE] = found[resolve::NO_ROUTE].without(lost);
        out[LOOKUP] = input.without(steered) | lost | found[resolve::MULTICAST];
        out[OF_LOOKUP..OUTPUTS.len()].copy_from_slice(&found[..resolve::MULTICAST]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::{FilterSpec, FilterTable, Filters};
    use crate::tables::VrfTables;
    use crate::testing::{FrameBuilder, Sorted, TestTables, run_step_on};

    fn to(net: usize) -> Vec<u8> {
        FrameBuilder::ip4().destination4(&format!("10.0.{net}.1")).udp(1, 2, b"x").build()
    }

    /// Returns the number that [`TestTables::every_kind`] has for 10.0.N.0/24.
    fn number(tables: &Tables, net: u8) -> u16 {
        let mut answers = [0];
        let address = u32::from_be_bytes([10, 0, net, 1]);
        tables.vrf(VrfId::DEFAULT).fib4.lookup_batch(&[address], &mut answers);
        answers[0]
    }

    /// VRF 1 drops 10.0.6.0/24, which the default one forwards; filter 2 has two targets.
    fn tables() -> Arc<Tables> {
        let mut tables = Tables::clone(&TestTables::every_kind());
        let default = tables.vrf(VrfId::DEFAULT).clone();
        let mut fib4 = fib::new_ipv4(fib::Algorithm::Reference, Box::new(fib::NoReaders)).unwrap();
        fib4.insert("10.0.6.0/24".parse().unwrap(), crate::next_hop::BLACKHOLE).unwrap();
        let fib6 = default.fib6.clone();
        tables.vrfs = Arc::new(VrfTables::new(default));
        tables.vrfs.add(VrfId::new(1), Fibs { fib4: fib4.reader(), fib6 });
        let filter = acl::Filter { name: "f".into(), rules: vec![], default: acl::Action::Accept };
        let targets = vec![Target::NextHop("backup".into()), Target::Vrf(VrfId::new(1))];
        let spec = FilterSpec { filter, treatments: vec![], targets };
        let table = Arc::new(FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap());
        tables.filters.set(Filters {
            tables: vec![None, Some(table)],
            flows: None,
            ..Filters::default()
        });
        Arc::new(tables)
    }

    /// Sends every packet but the last to the target.
    fn run(tables: &Arc<Tables>, nets: &[usize], target: u8) -> Sorted {
        let frames: Vec<_> = nets.iter().map(|net| to(*net)).collect();
        let steer = |batch: &mut Batch| {
            (0..nets.len() - 1).for_each(|slot| batch.steering.add(slot, 2, target));
        };
        run_step_on(&mut *ip4(tables), &frames, steer).0
    }

    #[test]
    fn packets_go_to_the_next_hop_that_a_rule_names_while_it_has_a_path() {
        let tables = tables();
        // No route, a blackhole, forwarded, the router's own, a group; and one that no rule
        // matches.
        let nets = [0, 2, 6, 1, 10, 6];
        let all: Vec<usize> = (0..6).collect();
        assert_eq!(run(&tables, &nets, 0)["lookup"], all, "nobody has said where");
        tables.named_hops.set([("backup", number(&tables, 6))].into_iter());
        let result = run(&tables, &nets, 0);
        assert_eq!((&result["forward"], &result["lookup"]), (&vec![0, 1, 2], &vec![3, 4, 5]));
        tables.named_hops.set([("backup", number(&tables, 8))].into_iter());
        assert_eq!(run(&tables, &nets, 0)["unresolved"], [0, 1, 2]);
    }

    #[test]
    fn packets_are_looked_up_in_the_vrf_that_a_rule_names() {
        let tables = tables();
        let result = run(&tables, &[0, 6, 1, 6], 1);
        assert_eq!(result["no-route"], [0]);
        assert_eq!(result["blackhole"], [1]);
        assert_eq!(result["lookup"], [2, 3]);
    }

    #[test]
    fn packets_with_options_and_unknown_targets_stay() {
        let tables = tables();
        tables.named_hops.set([("backup", number(&tables, 6))].into_iter());
        let frames = [to(6), to(2), to(2)];
        let (result, _) = run_step_on(&mut *ip4(&tables), &frames, |batch| {
            batch.steering.add(0, 2, 7);
            batch.steering.add(1, 2, 0);
            batch.steering.add(2, 2, 0);
            batch.options = Mask(0b100);
        });
        // The first packet has its own route's next hop, as from the lookup.
        assert_eq!((&result["forward"], &result["lookup"]), (&vec![0, 1], &vec![2]));
    }
}

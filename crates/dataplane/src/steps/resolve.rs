//! Resolution of a next hop's number to the packet's output; shared by both lookups.
//!
//! | output | packets |
//! |---|---|
//! | `forward` | the next hop is a neighbour whose MAC is known |
//! | `multicast` | to a group (RFC 1812 5.2.4.4: see `multicast.rs`) |
//! | punt `local` | the router's own addresses, broadcast |
//! | punt `no-route`, `prohibited`, `unreachable` | refused; the slow path sends an error |
//! | punt `glean` | the destination is on a connected network, its MAC is unknown |
//! | punt `unresolved` | the gateway's MAC is unknown |
//! | punt `scope` | IPv6: a link-local source, the destination is not the router (RFC 4291 2.5.6; it may be forwarded within its link, RFC 4007 9) |
//! | punt `ip4-options`, `hop-by-hop` | [`Batch::options`], regardless of the destination (RFC 1812 5.2.4.1, RFC 8200 4.3) |
//! | drop `blackhole` | the route is a blackhole |
//! | drop `martian-destination` | RFC 1812 5.3.7, RFC 4291 2.5.2 and 2.5.3 |
//! | drop `l2-broadcast` | to be forwarded, but received as link-layer broadcast (RFC 1812 5.3.4) |
//!
//! Among equal-cost paths the flow hash of the packet selects, so that a flow keeps its path.

use crate::batch::{BATCH_MAX, Batch};
use crate::flow::FlowHash;
use crate::graph::{Output, Outputs};
use crate::head::ETHERNET;
use crate::mask::Mask;
use crate::next_hop::{NextHop, NextHopTable};
use crate::reason::{DropReason, PuntReason};

pub(super) const FORWARD: usize = 0;
const LOCAL: usize = 1;
pub(super) const NO_ROUTE: usize = 2;
const PROHIBITED: usize = 3;
const UNREACHABLE: usize = 4;
pub(super) const GLEAN: usize = 5;
pub(super) const UNRESOLVED: usize = 6;
pub(super) const SCOPE: usize = 7;
const BLACKHOLE: usize = 8;
const MARTIAN_DESTINATION: usize = 9;
pub(super) const L2_BROADCAST: usize = 10;
pub(super) const MULTICAST: usize = 11;
pub(super) const OPTIONS: usize = 12;

/// The outputs of both lookups.
const fn outputs(options: PuntReason) -> [Output; 13] {
    [
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
        Output::next("multicast"),
        Output::Punt(options),
    ]
}

pub(super) const OUTPUTS4: &[Output] = &outputs(PuntReason::Ip4Options);
pub(super) const OUTPUTS6: &[Output] = &outputs(PuntReason::HopByHop);

/// Looks up the destinations of `input` with `lookup` (addresses in, next-hop numbers out) and
/// stores the numbers. Slots outside the mask are skipped, so that a mixed batch costs only the
/// packets of the mask.
pub(super) fn look_up<A: Copy + Default>(
    batch: &mut Batch,
    input: Mask,
    destination: impl Fn(&Batch, usize) -> A,
    lookup: impl FnOnce(&[A], &mut [u16]),
) {
    let mut addresses = [A::default(); BATCH_MAX];
    let addresses = gather(batch, input, destination, &mut addresses);
    if let Some(count) = input.as_first() {
        lookup(addresses, &mut batch.next_hop[..count]);
        return;
    }
    let mut answers = [0; BATCH_MAX];
    lookup(addresses, &mut answers);
    for (slot, answer) in input.slots().zip(answers) {
        batch.next_hop[slot] = answer;
    }
}

/// Collects the destinations of `input`.
#[inline(always)]
pub(super) fn gather<'a, A>(
    batch: &Batch,
    input: Mask,
    destination: impl Fn(&Batch, usize) -> A,
    addresses: &'a mut [A; BATCH_MAX],
) -> &'a [A] {
    let mut count = 0;
    input.for_each(|slot| {
        addresses[count % BATCH_MAX] = destination(batch, slot);
        count += 1;
    });
    &addresses[..count]
}

/// Punts packets with options to the slow path; returns the others.
#[inline(always)]
pub(super) fn without_options(batch: &Batch, input: Mask, out: &mut Outputs) -> Mask {
    out[OPTIONS] = input & batch.options;
    input.without(batch.options)
}

/// Sorts the packets of `input` by the meaning of their next-hop numbers, and stores the meaning
/// and the egress port.
pub(super) fn resolve(
    batch: &mut Batch,
    input: Mask,
    table: &NextHopTable,
    flows: &FlowHash,
    out: &mut Outputs,
) {
    let mut forward = read_hops(batch, input, table);
    let groups = input.without(forward).filter(|i| batch.hop[i].is_group());
    if !groups.is_empty() {
        choose_paths(batch, groups, table, flows);
        forward |= read_hops(batch, groups, table);
    }
    out[FORWARD] = forward;
    let unusual = input.without(forward) | (forward & (batch.link_multicast | batch.link_scope));
    if !unusual.is_empty() {
        sort_unusual(batch, unusual, out);
    }
}

/// Reads the meaning of each packet's next hop; returns those to forward.
#[inline(always)]
fn read_hops(batch: &mut Batch, slots: Mask, table: &NextHopTable) -> Mask {
    slots.filter(|i| {
        let hop = table.get(batch.next_hop[i]);
        batch.hop[i] = hop;
        batch.out_interface[i] = hop.interface_index();
        hop.is_forward()
    })
}

fn choose_paths(batch: &mut Batch, groups: Mask, table: &NextHopTable, flows: &FlowHash) {
    if !flows.is_usual() {
        return choose_paths_by_fields(batch, groups, table, flows);
    }
    for i in groups.slots() {
        let hash = flows.of_frame(batch.frame(i));
        batch.next_hop[i] = table.select(batch.hop[i], hash);
    }
}

#[cold]
fn choose_paths_by_fields(batch: &mut Batch, groups: Mask, table: &NextHopTable, flows: &FlowHash) {
    for i in groups.slots() {
        let hash = flows.of_path(batch.frame(i).get(ETHERNET..).unwrap_or_default());
        batch.next_hop[i] = table.select(batch.hop[i], hash);
    }
}

fn sort_unusual(batch: &Batch, unusual: Mask, out: &mut Outputs) {
    for i in unusual.slots() {
        let bit = Mask::when(true, i);
        let leaves = match NextHop::from(batch.hop[i]) {
            NextHop::Local => LOCAL,
            NextHop::Multicast => MULTICAST,
            NextHop::Blackhole => BLACKHOLE,
            NextHop::Martian => MARTIAN_DESTINATION,
            _ if batch.link_multicast.has(i) => L2_BROADCAST,
            _ if batch.link_scope.has(i) => SCOPE,
            NextHop::Prohibited => PROHIBITED,
            NextHop::Unreachable => UNREACHABLE,
            NextHop::Glean { .. } => GLEAN,
            NextHop::Unresolved { .. } => UNRESOLVED,
            NextHop::Forward { .. } => FORWARD,
            // A group never contains a group; if it did, it would have no route.
            NextHop::NoRoute | NextHop::Group { .. } => NO_ROUTE,
        };
        out[FORWARD] = out[FORWARD].without(bit);
        out[leaves] |= bit;
    }
}

//! `ip4-reverse-path`, `ip6-reverse-path`: reverse path checks of source addresses.
//!
//! Takes valid packets. Looks up their sources as `ip4-lookup` looks up destinations. The check is
//! a setting of the ingress port:
//!
//! | `reverse_path` | passes |
//! |---|---|
//! | not given | every packet |
//! | `"loose"` | if a route leads to the source, by any port (RFC 3704 2.4) |
//! | `"strict"` | if the best route to the source, or one of equal cost, leaves by this port (2.2) |
//!
//! | output | packets |
//! |---|---|
//! | `ok` | the check succeeds |
//! | drop `reverse-path` | the others |
//!
//! A blackhole route makes a source fail both, which can block an attack by its sources (RFC 5635).
//! The router's own addresses and the broadcast addresses of its networks fail `"strict"` (RFC 1812
//! 5.3.7). A default route counts like any other. IPv6 sources of link scope, `fe80::/10` and `::`,
//! pass: they belong to the ingress port (see [`Batch::link_scope`]).
//!
//! The steps are in the graph only if a port enables them (RFC 1812 5.3.8: off by default).

use std::sync::Arc;

use crate::batch::{BATCH_MAX, Batch, Group};
use crate::features::Feature;
use crate::graph::{Output, Outputs, Step};
use crate::interface::{InterfaceId, VrfId};
use crate::mask::Mask;
use crate::next_hop::{NextHop, Packed};
use crate::reason::DropReason;
use crate::tables::Tables;

const OK: usize = 0;
const FAILED: usize = 1;

/// The required reachability of the sources of a port's packets, by the values of [`ReversePath`].
pub const REVERSE_PATH: Feature = Feature::new("reverse_path", 0, &["any", "loose", "strict"]);

/// Values of [`REVERSE_PATH`] (RFC 3704).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReversePath {
    /// Any source is accepted.
    Any = 0,
    /// A route must lead to the source, by any port (RFC 3704 2.4).
    Loose = 1,
    /// The best route to the source, or one of equal cost, must leave by the packet's ingress port
    /// (RFC 3704 2.2).
    Strict = 2,
}

const STRICT: u8 = ReversePath::Strict as u8;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok"), Output::Drop(DropReason::ReversePath)];

/// See the module's documentation.
pub struct Ip4ReversePath {
    tables: Arc<Tables>,
}

impl Ip4ReversePath {
    /// Looks sources up in these tables.
    pub fn new(tables: Arc<Tables>) -> Self {
        Self { tables }
    }
}

impl Step for Ip4ReversePath {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let tables = &*self.tables;
        out[OK] = passing(batch, input, tables, source4, |vrf, addresses, answers| {
            tables.vrf(vrf).fib4.lookup_batch(addresses, answers);
        });
        out[FAILED] = input.without(out[OK]);
    }
}

/// See the module's documentation.
pub struct Ip6ReversePath {
    tables: Arc<Tables>,
}

impl Ip6ReversePath {
    /// Looks sources up in these tables.
    pub fn new(tables: Arc<Tables>) -> Self {
        Self { tables }
    }
}

impl Step for Ip6ReversePath {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let tables = &*self.tables;
        let of_link = input & batch.link_scope;
        let elsewhere = input.without(of_link);
        let passing = passing(batch, elsewhere, tables, source6, |vrf, addresses, answers| {
            tables.vrf(vrf).fib6.lookup_batch(addresses, answers);
        });
        out[OK] = of_link | passing;
        out[FAILED] = elsewhere.without(passing);
    }
}

/// Returns the packets of `input` whose sources pass their interface's check.
fn passing<A: Copy + Default>(
    batch: &Batch,
    input: Mask,
    tables: &Tables,
    source: impl Fn(&Batch, usize) -> A,
    lookup: impl Fn(VrfId, &[A], &mut [u16]),
) -> Mask {
    batch.by_interface(input).fold(Mask::EMPTY, |passing, group| {
        passing | group_passing(batch, &group, tables, &source, &lookup)
    })
}

fn group_passing<A: Copy + Default>(
    batch: &Batch,
    group: &Group,
    tables: &Tables,
    source: impl Fn(&Batch, usize) -> A,
    lookup: impl Fn(VrfId, &[A], &mut [u16]),
) -> Mask {
    let Group { interface, info, packets: input } = *group;
    let asked = info.features.get(REVERSE_PATH);
    if asked == ReversePath::Any as u8 {
        return input;
    }
    let mut addresses = [A::default(); BATCH_MAX];
    let mut answers = [0; BATCH_MAX];
    let mut count = 0;
    for (address, slot) in addresses.iter_mut().zip(input.slots()) {
        *address = source(batch, slot);
        count += 1;
    }
    lookup(info.vrf, &addresses[..count], &mut answers[..count]);
    let mut passing = Mask::EMPTY;
    for (&answer, slot) in answers[..count].iter().zip(input.slots()) {
        let hop = tables.next_hops.get(answer);
        let passes = match asked {
            STRICT => leaves_by(tables, hop, interface),
            _ => is_route(hop),
        };
        passing |= Mask::when(passes, slot);
    }
    passing
}

/// Returns true if the route leaves by the interface.
#[inline]
fn leaves_by(tables: &Tables, hop: Packed, interface: InterfaceId) -> bool {
    match hop.is_forward() {
        true => usize::from(hop.interface_index()) == interface.index(),
        false => tables.next_hops.leads_by(hop, interface),
    }
}

/// Returns true if the next hop is a usable route.
#[inline]
fn is_route(hop: Packed) -> bool {
    hop.is_forward()
        || matches!(
            NextHop::from(hop),
            NextHop::Group { .. }
                | NextHop::Glean { .. }
                | NextHop::Unresolved { .. }
                | NextHop::Local
        )
}

fn source4(batch: &Batch, slot: usize) -> u32 {
    u32::from_be_bytes(batch.ip4(slot).source_address)
}

fn source6(batch: &Batch, slot: usize) -> u128 {
    u128::from_be_bytes(batch.ip6(slot).source_address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::port::PortId;
    use crate::testing::{FrameBuilder, TestTables, run_step_on};

    /// Runs packets whose sources have the N-th kind of next hop (see [`TestTables::every_kind`])
    /// through a step, from a port; returns the kinds that pass.
    fn pass(step: &mut dyn Step, frames: &[Vec<u8>], port: u16, asked: ReversePath) -> Vec<usize> {
        let (result, _) = run_step_on(step, frames, |batch| {
            batch.in_port = PortId::new(port).unwrap();
            batch.own.features = Features::NONE.with(REVERSE_PATH, asked as u8);
        });
        result["ok"].clone()
    }

    fn ip4() -> (Ip4ReversePath, Vec<Vec<u8>>) {
        let from = |n| FrameBuilder::ip4().source4(&format!("10.0.{n}.1")).udp(1, 2, b"x").build();
        (Ip4ReversePath::new(TestTables::every_kind()), (0..10).map(from).collect())
    }

    fn ip6() -> (Ip6ReversePath, Vec<Vec<u8>>) {
        let from =
            |n| FrameBuilder::ip6().source6(&format!("2001:db8:{n}::1")).udp(1, 2, b"x").build();
        (Ip6ReversePath::new(TestTables::every_kind()), (0..10).map(from).collect())
    }

    #[test]
    fn strict_asks_for_the_port_the_packet_came_from() {
        let (mut step, frames) = ip4();
        assert_eq!(pass(&mut step, &frames, 3, ReversePath::Strict), [6, 7, 8, 9]);
        assert_eq!(pass(&mut step, &frames, 4, ReversePath::Strict), [9], "one of two paths");
        assert_eq!(pass(&mut step, &frames, 0, ReversePath::Strict), [0; 0]);
        let (mut step, frames) = ip6();
        assert_eq!(pass(&mut step, &frames, 3, ReversePath::Strict), [6, 7, 8, 9]);
        assert_eq!(pass(&mut step, &frames, 4, ReversePath::Strict), [9]);
    }

    #[test]
    fn loose_asks_for_any_route_that_leads_somewhere() {
        let (mut step, frames) = ip4();
        assert_eq!(pass(&mut step, &frames, 0, ReversePath::Loose), [1, 6, 7, 8, 9]);
        let (mut step, frames) = ip6();
        assert_eq!(pass(&mut step, &frames, 0, ReversePath::Loose), [1, 6, 7, 8, 9]);
    }

    #[test]
    fn a_port_that_asks_for_nothing_takes_everything() {
        let (mut step, frames) = ip4();
        assert_eq!(pass(&mut step, &frames, 0, ReversePath::Any).len(), 10);
    }

    #[test]
    fn sources_of_the_link_pass() {
        let (mut step, _) = ip6();
        let from = |source| FrameBuilder::ip6().source6(source).udp(1, 2, b"x").build();
        let frames = [from("fe80::1"), from("::"), from("3fff::1")];
        let (result, _) = run_step_on(&mut step, &frames, |batch| {
            batch.link_scope = Mask(0b011);
            batch.own.features = Features::NONE.with(REVERSE_PATH, STRICT);
        });
        assert_eq!(result["ok"], [0, 1]);
        assert_eq!(result["reverse-path"], [2]);
    }
}

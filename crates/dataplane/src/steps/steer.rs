//! A named next hop: sends packets to it regardless of their destination (policy routing).
//!
//! Takes valid packets of the family of its gateway. The control plane resolves and tracks the next hop as
//! that of a static route: several paths share the flows, and lost ones are left out. Sets
//! [`Batch::next_hop`], [`Batch::hop`] and [`Batch::out_interface`].
//!
//! | output | packets |
//! |---|---|
//! | `forward` | the next hop is a neighbour whose MAC is known |
//! | `down` | the next hop has no live path: its ports are down, or its gateways have no route |
//! | punt `glean`, `unresolved`, `scope` | as in a lookup, see `resolve.rs` |
//! | punt `ip4-options`, `hop-by-hop` | as in a lookup; the slow path forwards them by their destination |
//! | drop `l2-broadcast` | to be forwarded, but received as link-layer broadcast (RFC 1812 5.3.4) |

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::resolve;
use crate::batch::{Batch, ETHERNET};
use crate::catalogue::{Facts, MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::{DropReason, PuntReason};
use crate::tables::Tables;

const OUTPUTS: &[Output] = &[
    Output::next("forward"),
    Output::next("down"),
    Output::Punt(PuntReason::Glean),
    Output::Punt(PuntReason::Unresolved),
    Output::Punt(PuntReason::Scope),
    Output::Drop(DropReason::L2Broadcast),
    Output::Punt(PuntReason::Ip4Options),
    Output::Punt(PuntReason::HopByHop),
];

/// Returns the step of a named next hop, for packets with these facts.
pub fn named_hop(name: &str, requires: Facts) -> StepSpec {
    let of = name.to_owned();
    let make = move |make: &MakeContext<'_>| -> Box<dyn Step> {
        let tables = make.tables.clone();
        Box::new(Steer { number: tables.named_hops.number(&of), tables })
    };
    StepSpec::new(name, OUTPUTS, make).requires(requires).provides(&[("forward", Facts::ROUTED)])
}

/// See the module's documentation.
struct Steer {
    number: Arc<AtomicU16>,
    tables: Arc<Tables>,
}

impl Step for Steer {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let options = input & batch.options;
        out[6] = options.filter(|i| batch.head(i)[ETHERNET] >> 4 == 4);
        out[7] = options.without(out[6]);
        let input = input.without(options);
        let number = self.number.load(Ordering::Acquire);
        for i in input.slots() {
            batch.next_hop[i] = number;
        }
        let mut found = [Mask::EMPTY; MAX_OUTPUTS];
        resolve::resolve(batch, input, &self.tables.next_hops, &self.tables.flows, &mut found);
        out[0] = found[resolve::FORWARD];
        out[2] = found[resolve::GLEAN];
        out[3] = found[resolve::UNRESOLVED];
        out[4] = found[resolve::SCOPE];
        out[5] = found[resolve::L2_BROADCAST];
        out[1] = out[2..6].iter().fold(input.without(out[0]), |rest, &mask| rest.without(mask));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::interface::VrfId;
    use crate::testing::{FrameBuilder, TestTables, run_step, run_step_on};

    /// The numbers that [`TestTables::every_kind`] has for 10.0.N.0/24.
    const FORWARD: usize = 6;
    const GLEAN: usize = 7;
    const UNRESOLVED: usize = 8;
    const GROUP: usize = 9;

    fn step(tables: &Arc<Tables>) -> Box<dyn Step> {
        let mut catalogue = Catalogue::default();
        catalogue.add(named_hop("b", Facts::VALID)).unwrap();
        let context = MakeContext { name: "b", args: &Default::default(), tables, ports: &[] };
        catalogue.find("b").unwrap().make(&context).unwrap()
    }

    /// The number of a route's next hop.
    fn number(tables: &Tables, net: usize) -> u16 {
        let mut answers = [0];
        tables
            .vrf(VrfId::DEFAULT)
            .fib4
            .lookup_prefetched(&[u32::from_be_bytes([10, 0, net as u8, 1])], &mut answers);
        answers[0]
    }

    #[test]
    fn packets_go_where_the_name_says_whatever_their_destination() {
        let tables = TestTables::every_kind();
        let mut step = step(&tables);
        // 10.0.2.0/24 is a blackhole, which the step does not look up.
        let frames: Vec<_> = (0..64u16)
            .map(|port| FrameBuilder::ip4().destination4("10.0.2.1").udp(port, 9, b"x").build())
            .collect();
        let all: Vec<usize> = (0..64).collect();
        assert_eq!(run_step(&mut *step, &frames).0["down"], all, "nobody has said where");
        for (net, output) in
            [(FORWARD, "forward"), (GLEAN, "glean"), (UNRESOLVED, "unresolved"), (GROUP, "forward")]
        {
            tables.named_hops.set([("b", number(&tables, net))].into_iter());
            assert_eq!(run_step(&mut *step, &frames).0[output], all, "{net}");
        }
        let (_, batch) = run_step(&mut *step, &frames);
        let first = batch.out_interface.iter().filter(|&&port| port == 3).count();
        assert!((16..=48).contains(&first), "{first} of 64 flows on the first path");
        // A group whose paths are all dead has no route.
        tables.named_hops.set([("other", number(&tables, FORWARD))].into_iter());
        assert_eq!(run_step(&mut *step, &frames).0["down"], all);
    }

    #[test]
    fn a_broadcast_frame_is_not_sent_on() {
        let tables = TestTables::every_kind();
        let mut step = step(&tables);
        tables.named_hops.set([("b", number(&tables, FORWARD))].into_iter());
        let frames = [FrameBuilder::ip4().build(), FrameBuilder::ip4().build()];
        let (result, _) = run_step_on(&mut *step, &frames, |b| b.link_multicast = Mask(0b10));
        assert_eq!((&result["forward"], &result["l2-broadcast"]), (&vec![0], &vec![1]));
    }
}

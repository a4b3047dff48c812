//! `ip6-lookup`: finds the route of each packet.
//!
//! Takes valid IPv6 packets; the same as `ip4-lookup` for the other family. A packet whose source must not
//! leave its link is not forwarded: see [`Batch::link_scope`] and the table of outputs in `resolve.rs`.

use std::sync::Arc;

use super::resolve::{OUTPUTS6, look_up, resolve, without_options};
use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::tables::Tables;

/// See the module's documentation.
pub struct Ip6Lookup {
    tables: Arc<Tables>,
}

impl Ip6Lookup {
    /// Looks up in these tables.
    pub fn new(tables: Arc<Tables>) -> Self {
        Self { tables }
    }
}

impl Step for Ip6Lookup {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS6
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let input = without_options(batch, input, out);
        let tables = &*self.tables;
        let mut rest = input;
        while let Some((vrf, packets)) = batch.first_of_vrf(rest) {
            look_up(batch, packets, destination, |addresses, answers| {
                tables.vrf(vrf).fib6.lookup_batch(addresses, answers);
            });
            rest = rest.without(packets);
        }
        resolve(batch, input, &tables.next_hops, &tables.flows, out);
    }
}

pub(super) fn destination(batch: &Batch, slot: usize) -> u128 {
    u128::from_be_bytes(batch.ip6(slot).destination_address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, TestTables, run_step, run_step_on};

    fn to(address: &str) -> Vec<u8> {
        FrameBuilder::ip6().destination6(address).udp(1, 2, b"x").build()
    }

    #[test]
    fn routes_are_found() {
        let mut step = Ip6Lookup::new(TestTables::every_kind());
        let frames = [to("2001:db8:6::1"), to("2001:db8:1::1"), to("2001:db8:7::1"), to("3fff::1")];
        let (result, batch) = run_step(&mut step, &frames);
        assert_eq!(result["forward"], [0]);
        assert_eq!(result["local"], [1]);
        assert_eq!(result["glean"], [2]);
        assert_eq!(result["no-route"], [3]);
        assert_eq!(batch.out_interface[0], 3);
    }

    #[test]
    fn link_scope_sources_reach_only_the_router() {
        let mut step = Ip6Lookup::new(TestTables::every_kind());
        let frames = [to("2001:db8:6::1"), to("2001:db8:1::1"), to("3fff::1")];
        let (result, _) = run_step_on(&mut step, &frames, |b| b.link_scope = Mask(7));
        assert_eq!(result["scope"], [0, 2]);
        assert_eq!(result["local"], [1]);
    }
}

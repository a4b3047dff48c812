//! `ip4-mtu`, `ip6-mtu`: checks that the packet fits the egress link.
//!
//! Takes packets with [`Batch::out_interface`] set and link padding cut off.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | not longer than the egress port's MTU |
//! | punt `too-big` | longer: the slow path fragments (IPv4 without DF) or reports it to the sender; every IPv6 packet to a link with an MTU below 1280 bytes |
//!
//! A batch whose longest frame fits all ports needs no further check.
//!
//! Sources: RFC 1812 4.2.2.7, RFC 1191 4, RFC 8201 4, RFC 8200 5.

use std::sync::Arc;

use crate::batch::{Batch, ETHERNET};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::PuntReason;
use crate::tables::Tables;

const OK: usize = 0;
const TOO_BIG: usize = 1;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok"), Output::Punt(PuntReason::TooBig)];

/// See the module's documentation. `IP6`: the packets are IPv6.
pub struct Mtu<const IP6: bool> {
    tables: Arc<Tables>,
}

impl<const IP6: bool> Mtu<IP6> {
    /// Reads the MTU of a port from these tables.
    pub fn new(tables: &Arc<Tables>) -> Self {
        Self { tables: tables.clone() }
    }
}

impl<const IP6: bool> Step for Mtu<IP6> {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let mtus = self.tables.mtus.family(IP6);
        let longest = batch.lens().iter().fold(0, |longest, &len| longest.max(len));
        if usize::from(longest) <= usize::from(mtus.least()) + ETHERNET {
            out[OK] = input;
            return;
        }
        let fits = input
            .filter(|i| batch.len(i) <= usize::from(mtus.of(batch.out_interface[i])) + ETHERNET);
        out[OK] = fits;
        out[TOO_BIG] = input.without(fits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::InterfaceId;
    use crate::testing::{FrameBuilder, TestTables, run_step_on};

    #[test]
    fn the_limit_is_the_egress_ports() {
        let frame = |payload: usize| FrameBuilder::ip4().payload(&vec![0; payload]).build();
        let frames = [frame(1480), frame(1481), frame(980), frame(981), frame(10)];
        let mut step = Mtu::<false>::new(&TestTables::every_kind());
        // Ports 0 to 3 have an MTU of 1500, port 4 of 1000; the absence of port 9 is detected
        // later.
        let (result, _) = run_step_on(&mut step, &frames, |batch| {
            batch.out_interface[..5].copy_from_slice(&[0, 0, 4, 4, 9]);
        });
        assert_eq!(result["ok"], [0, 2, 4]);
        assert_eq!(result["too-big"], [1, 3]);
    }

    #[test]
    fn no_ipv6_goes_to_a_link_that_is_too_small_for_it() {
        let tables = TestTables::every_kind();
        let mut step = Mtu::<true>::new(&tables);
        let frame = FrameBuilder::ip6().payload(&[0; 10]).build();
        for (mtu, output) in [(1000, "too-big"), (1279, "too-big"), (1280, "ok"), (0, "too-big")] {
            tables.mtus.set(InterfaceId::new(3).unwrap(), mtu);
            let (result, _) = run_step_on(&mut step, std::slice::from_ref(&frame), |batch| {
                batch.out_interface[0] = 3;
            });
            assert_eq!(result[output], [0], "{mtu}");
        }
        // Also as the initial value: port 4 has 1000.
        let mut step = Mtu::<true>::new(&TestTables::every_kind());
        let (result, _) = run_step_on(&mut step, &[frame], |batch| batch.out_interface[0] = 4);
        assert_eq!(result["too-big"], [0]);
    }

    #[test]
    fn a_new_mtu_holds_for_the_next_packet() {
        let tables = TestTables::every_kind();
        let mut step = Mtu::<false>::new(&tables);
        let frame = FrameBuilder::ip4().payload(&[0; 1000]).build();
        for (mtu, output) in [(1020, "ok"), (1019, "too-big"), (9000, "ok")] {
            tables.mtus.set(InterfaceId::new(3).unwrap(), mtu);
            let (result, _) = run_step_on(&mut step, std::slice::from_ref(&frame), |batch| {
                batch.out_interface[0] = 3;
            });
            assert_eq!(result[output], [0], "{mtu}");
        }
    }
}

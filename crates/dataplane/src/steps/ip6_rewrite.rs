//! `ip6-rewrite`: rewrites the received frame for transmission.
//!
//! Takes packets to be forwarded, with [`Batch::hop`] set and a hop limit of at least 2. Writes the
//! next hop's MAC and the egress port's into the Ethernet header and decrements the hop limit
//! (RFC 8200 3). IPv6 has no header checksum to correct.
//!
//! | output | packets |
//! |---|---|
//! | `transmit` | all |

use std::sync::Arc;

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::head::ip6_mut;
use crate::mask::Mask;
use crate::tables::{EgressMacs, Tables};

pub(super) const OUTPUTS: &[Output] = &[Output::next("transmit")];

/// See the module's documentation.
#[derive(Debug)]
pub struct Ip6Rewrite {
    macs: EgressMacs,
}

impl Ip6Rewrite {
    /// Knows the MAC of every port.
    pub fn new(tables: &Arc<Tables>) -> Self {
        Self { macs: EgressMacs::new(&tables.interfaces.get()) }
    }
}

impl Step for Ip6Rewrite {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        input.for_each(|i| {
            let (hop, port) = (batch.hop[i], batch.out_interface[i]);
            let head = batch.head_mut(i);
            self.macs.write(head, hop, port);
            let ip = ip6_mut(head);
            ip.hop_limit = ip.hop_limit.wrapping_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, NEIGHBOUR_MAC, TestTables, port_mac, run_step_on};

    #[test]
    fn macs_and_hop_limit_change_and_nothing_else() {
        let tables = TestTables::every_kind();
        let sent = FrameBuilder::ip6().ttl(64).udp(1, 2, b"payload").build();
        let mut step = Ip6Rewrite::new(&tables);
        let (result, batch) = run_step_on(&mut step, std::slice::from_ref(&sent), |batch| {
            batch.hop[0] = tables.next_hops.get(16);
            batch.out_interface[0] = 3;
        });
        let expected = FrameBuilder::ip6()
            .destination_mac(NEIGHBOUR_MAC)
            .source_mac(port_mac(3))
            .ttl(63)
            .udp(1, 2, b"payload")
            .build();
        assert_eq!(result["transmit"], [0]);
        assert_eq!(batch.frame(0), expected);
    }
}

//! `ip4-prefetch`: prefetches the memory that `ip4-lookup` will read.
//!
//! Takes IPv4 packets, valid or not. The FIB's data for a destination is often in no near cache,
//! and arrives during the steps in between if it is prefetched before them. The step is optional: a
//! graph without it is only slower. (IPv6 has none: of its lookup's loads, the first is the
//! smallest part.)
//!
//! | output | packets |
//! |---|---|
//! | `next` | all |

use std::sync::Arc;

use super::ip4_lookup::destination;
use super::resolve::gather;
use crate::batch::{BATCH_MAX, Batch};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::tables::Tables;

pub(super) const OUTPUTS: &[Output] = &[Output::next("next")];

/// See the module's documentation.
pub struct Ip4Prefetch {
    tables: Arc<Tables>,
}

impl Ip4Prefetch {
    /// Prefetches from these tables.
    pub fn new(tables: &Arc<Tables>) -> Self {
        Self { tables: tables.clone() }
    }
}

impl Step for Ip4Prefetch {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        // Packets of other VRFs are looked up without a prefetch.
        let Some((vrf, packets)) = batch.first_of_vrf(input) else { return };
        let mut addresses = [0; BATCH_MAX];
        let addresses = gather(batch, packets, destination, &mut addresses);
        self.tables.vrf(vrf).fib4.prefetch_batch(addresses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, TestTables, run_step};

    #[test]
    fn all_packets_go_on_as_they_came() {
        let frames = ["0.0.0.0", "10.0.6.1", "255.255.255.255"]
            .map(|address| FrameBuilder::ip4().destination4(address).build());
        let mut step = Ip4Prefetch::new(&TestTables::every_kind());
        let (result, batch) = run_step(&mut step, &frames);
        assert_eq!(result["next"], [0, 1, 2]);
        assert_eq!([0, 1, 2].map(|slot| batch.frame(slot)), [&frames[0], &frames[1], &frames[2]]);
    }
}

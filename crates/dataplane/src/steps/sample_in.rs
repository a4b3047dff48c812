//! `sample-in`: samples received frames for exporters (sFlow, IPFIX).
//!
//! Takes every frame that a port receives, before all steps but `mirror-in`: as it came from the wire, with its tags, also
//! if a later step drops it. Frames continue unchanged.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | all |
//!
//! A sample is a copy of the frame's first bytes in a record of a bounded stock (`samples.rs`); one that finds no free
//! record is counted. The step is in the default graph only if a port's packets are sampled.

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::samples::{SampleTable, Sampler};
use crate::tables::Tables;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok")];

/// See the module's documentation.
pub struct SampleIn(Vec<Sampler>);

impl SampleIn {
    /// Creates it for the samplings in these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(tables.shared.get::<SampleTable>().samplers(dpdk::tsc()))
    }
}

impl Step for SampleIn {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        let port = batch.in_port;
        self.0.iter_mut().for_each(|sampler| sampler.sample(batch, input, port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::PortId;
    use crate::samples::Sampling;
    use crate::testing::{FrameBuilder, TestTables, run_step};

    #[test]
    fn frames_are_sampled_and_continue() {
        let tables = TestTables::every_kind();
        let table = tables.shared.get::<SampleTable>();
        let ports = [PortId::FIRST].into_iter().collect();
        table.set(vec![Sampling { name: "a".into(), ports, rate: 1, keep: 64 }]);
        let mut step = SampleIn::new(&tables);
        let frames = [FrameBuilder::ip4().build(), vec![0; 14]];
        let (result, _) = run_step(&mut step, &frames);
        assert_eq!(result["ok"], [0, 1]);
        assert_eq!(table.stock("a").records.waiting(), 2);
    }
}

//! `egress-switch`: sorts packets by the port that sends them.
//!
//! Takes routed packets. Those that leave by a VLAN or a bond of a port are not the port's own.
//!
//! | output | packets |
//! |---|---|
//! | a name of `ports` | leave by this port |
//! | `others` | leave by any other interface |
//!
//! ```lua
//! turnpike.graph:insert_after("ip4-rewrite.transmit", { "egress-switch", ports = { "left" } })
//! turnpike.graph:path("egress-switch.left", { "queue", rate = "10mbit" }, { "to-port", port = "left" }, "transmit")
//! ```

use crate::batch::Batch;
use crate::catalogue::{Facts, MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Args, Kind, Param};
use crate::port::MAX_PORTS;

pub(super) fn spec() -> StepSpec {
    let ports = Param::new("ports", Kind::Ports, "ports with an output");
    StepSpec::new("egress-switch", &[], make)
        .outputs_by(outputs)
        .requires(Facts::ROUTED)
        .param(ports)
}

fn outputs(args: &Args) -> Vec<Output> {
    let names = args.texts("ports").iter().map(|name| Output::Next(name.clone().into()));
    std::iter::once(Output::next("others")).chain(names).collect()
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let mut way = [0; MAX_PORTS];
    for (output, name) in (1..).zip(context.args.texts("ports")) {
        if let Some(port) = context.port(name) {
            way[port.index()] = output;
        }
    }
    Box::new(EgressSwitch { outputs: outputs(context.args), way })
}

struct EgressSwitch {
    outputs: Vec<Output>,
    /// The output of the packets of each port.
    way: [u8; MAX_PORTS],
}

impl Step for EgressSwitch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let way = self.way.get(usize::from(batch.out_interface[slot]));
            out[usize::from(way.copied().unwrap_or(0))] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{list, make};
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn packets_go_by_the_port_that_sends_them() {
        let mut step = make("egress-switch", &[("ports", list(&["right", "unknown", "left"]))]);
        let frames = vec![FrameBuilder::ip4().build(); 4];
        let (result, _) = run_step_on(&mut *step, &frames, |batch| {
            batch.out_interface[..4].copy_from_slice(&[1, 0, 3, u16::MAX]);
        });
        assert_eq!((&result["right"], &result["left"]), (&vec![0], &vec![1]));
        assert_eq!(result["others"], [2, 3]);
    }
}

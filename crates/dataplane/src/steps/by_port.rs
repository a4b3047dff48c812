//! `by-port`: the first step if ports have their own graphs.
//!
//! Takes every frame.
//!
//! | output | packets |
//! |---|---|
//! | `others` | received on a port without a graph of its own |
//! | a port's name, or several joined by `+` | received there |

use crate::batch::Batch;
use crate::catalogue::StepSpec;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::port::{MAX_PORTS, PortId};

/// See the module's documentation.
#[derive(Debug)]
pub struct ByPort {
    outputs: Vec<Output>,
    /// The output of each port's packets.
    way: [u8; MAX_PORTS],
}

impl ByPort {
    /// The spec of one whose outputs have these names; the packets of `ports[k]` take output `k + 1`.
    pub(crate) fn spec(names: &[String], ports: Vec<Vec<PortId>>) -> StepSpec {
        let outputs: Vec<_> = names.iter().map(|name| Output::Next(name.clone().into())).collect();
        let of = outputs.clone();
        StepSpec::new("by-port", &outputs, move |_| Box::new(Self::new(of.clone(), &ports)))
    }

    /// The packets of `ports[k]` take output `k + 1`.
    pub fn new(outputs: Vec<Output>, ports: &[Vec<PortId>]) -> Self {
        let mut way = [0; MAX_PORTS];
        for (k, ports) in (1..).zip(ports) {
            ports.iter().for_each(|port| way[port.index()] = k);
        }
        Self { outputs, way }
    }
}

impl Step for ByPort {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        // A batch is of one port.
        out[usize::from(self.way[batch.in_port.index()])] = input;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn a_batch_goes_where_its_port_s_do() {
        const OUTPUTS: &[Output] = &[Output::next("others"), Output::next("a"), Output::next("b")];
        let port = |n| PortId::new(n).unwrap();
        let mut step = ByPort::new(OUTPUTS.to_vec(), &[vec![port(2)], vec![port(0), port(63)]]);
        for (n, output) in [(0, "b"), (1, "others"), (2, "a"), (63, "b")] {
            let frames = [FrameBuilder::ip4().build()];
            let (result, _) = run_step_on(&mut step, &frames, |batch| batch.in_port = port(n));
            assert_eq!(result[output], [0], "port {n}");
        }
    }
}

//! `by-port`: the first step where ports have graphs of their own.
//!
//! Takes every frame.
//!
//! | output | packets |
//! |---|---|
//! | `others` | received on a port without a graph of its own |
//! | a port's name, or several joined by `+` | received there |

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::port::{MAX_PORTS, PortId};

/// See the module's documentation.
#[derive(Debug)]
pub struct ByPort {
    outputs: &'static [Output],
    /// The output of each port's packets.
    way: [u8; MAX_PORTS],
}

impl ByPort {
    /// The packets of `ports[k]` take output `k + 1`.
    pub fn new(outputs: &'static [Output], ports: &[Vec<PortId>]) -> Self {
        let mut way = [0; MAX_PORTS];
        for (k, ports) in (1..).zip(ports) {
            ports.iter().for_each(|port| way[port.index()] = k);
        }
        Self { outputs, way }
    }
}

impl Step for ByPort {
    fn outputs(&self) -> &'static [Output] {
        self.outputs
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
        const OUTPUTS: &[Output] = &[Output::Next("others"), Output::Next("a"), Output::Next("b")];
        let port = |n| PortId::new(n).unwrap();
        let mut step = ByPort::new(OUTPUTS, &[vec![port(2)], vec![port(0), port(63)]]);
        for (n, output) in [(0, "b"), (1, "others"), (2, "a"), (63, "b")] {
            let frames = [FrameBuilder::ip4().build()];
            let (result, _) = run_step_on(&mut step, &frames, |batch| batch.in_port = port(n));
            assert_eq!(result[output], [0], "port {n}");
        }
    }
}

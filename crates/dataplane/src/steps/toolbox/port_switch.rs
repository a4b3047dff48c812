//! `port-switch`: sorts frames by the port that received them.
//!
//! Takes every frame.
//!
//! | output | packets |
//! |---|---|
//! | a name of `ports` | received by this port |
//! | `others` | received by any other port |
//!
//! ```lua
//! turnpike.graph = turnpike.new_graph { "port-switch", ports = { "left", "right" } }
//! ```

use super::super::by_port::ByPort;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Step};
use crate::params::{Args, Kind, Param};

pub(super) fn spec() -> StepSpec {
    let ports = Param::new("ports", Kind::Ports, "ports with an output");
    StepSpec::new("port-switch", &[], make).outputs_by(outputs).param(ports)
}

fn outputs(args: &Args) -> Vec<Output> {
    let names = args.texts("ports").iter().map(|name| Output::Next(name.clone().into()));
    std::iter::once(Output::next("others")).chain(names).collect()
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let ports = context.args.texts("ports").iter();
    let ports: Vec<Vec<_>> = ports.map(|name| context.port(name).into_iter().collect()).collect();
    Box::new(ByPort::new(outputs(context.args), &ports))
}

#[cfg(test)]
mod tests {
    use super::super::{list, make};
    use crate::port::PortId;
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn frames_go_by_the_name_of_their_port() {
        let mut step = make("port-switch", &[("ports", list(&["right", "unknown"]))]);
        for (number, output) in [(0, "others"), (1, "right")] {
            let port = PortId::new(number).unwrap();
            let frames = [FrameBuilder::ip4().build()];
            let (result, _) = run_step_on(&mut *step, &frames, |batch| batch.in_port = port);
            assert_eq!(result[output], [0], "{number}");
        }
    }
}

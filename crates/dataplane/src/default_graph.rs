//! The default graph: the path of a packet, top to bottom.
//!
//! A path begins at an output, `STEP.OUTPUT`, and continues by the main output of each step that it names. A step that
//! its [`StepSpec`](crate::catalogue::StepSpec) makes conditional is left out if no port has the feature. Punts to the
//! slow path and drops do not appear here because each step declares its own; `turnpike show graph` draws everything,
//! and `turnpike show graph --lua` prints the same as a configuration may change it.

use std::sync::Arc;

use crate::builder::GraphBuilder;
use crate::catalogue::Catalogue;
use crate::graph::Graph;
use crate::params::Args;
use crate::plan::{NewStep, Plan, PlanError, Successor};
use crate::tables::Tables;

const FIRST: &str = "mirror-in";

const PATHS: [(&str, &[&str]); 7] = [
    ("mirror-in.ok", &["sample-in", "bond-input", "vlan-input", "classify"]),
    (
        "classify.ip4",
        &[
            "ip4-prefetch",
            "ip4-checksum-offload",
            "ip4-validate",
            "ip4-reverse-path",
            "ip4-filter-in",
            "ip4-policy-route",
            "ip4-lookup",
            "ip4-ttl",
            "ip4-filter-out",
            "ip4-redirect",
            "ip4-mtu",
            "ip4-rewrite",
            "vlan-output",
            "bond-output",
            "transmit",
        ],
    ),
    (
        "classify.ip6",
        &[
            "ip6-checksum-offload",
            "ip6-validate",
            "ip6-reverse-path",
            "ip6-filter-in",
            "ip6-policy-route",
            "ip6-lookup",
            "ip6-hop-limit",
            "ip6-filter-out",
            "ip6-redirect",
            "ip6-mtu",
            "ip6-rewrite",
            "vlan-output",
            "bond-output",
            "transmit",
        ],
    ),
    ("ip4-policy-route.forward", &["ip4-ttl"]),
    ("ip6-policy-route.forward", &["ip6-hop-limit"]),
    ("ip4-lookup.multicast", &["ip4-multicast", "replicate"]),
    ("ip6-lookup.multicast", &["ip6-multicast", "replicate"]),
];

/// The graph that forwarders run by default.
///
/// # Errors
/// The catalogue lacks one of its steps.
pub fn default_plan(catalogue: &Catalogue) -> Result<Plan, PlanError> {
    let mut plan = Plan::new();
    add(&mut plan, catalogue, FIRST)?;
    for (from, path) in PATHS {
        let mut from = from;
        for &name in path {
            let successor = Successor::read(name);
            if matches!(successor, Successor::Step(_)) && !plan.has(name) {
                add(&mut plan, catalogue, name)?;
            }
            plan.lead(from, &successor, None)?;
            from = name;
        }
    }
    Ok(plan)
}

fn add(plan: &mut Plan, catalogue: &Catalogue, name: &str) -> Result<(), PlanError> {
    let unknown = || PlanError::new(None, format!("step \"{name}\": not in the catalogue"));
    let spec = catalogue.find(name).ok_or_else(unknown)?;
    plan.add(&NewStep { only_if: spec.feature(), ..NewStep::of(spec, Args::default(), None) })
}

/// The default graph for a router of these tables.
///
/// # Errors
/// As [`default_plan`].
pub fn default_graph(tables: &Arc<Tables>) -> Result<Graph, PlanError> {
    default_steps(tables)?.build()
}

/// The default graph before it is built, for callers that add their own steps.
///
/// # Errors
/// As [`default_plan`].
pub fn default_steps(tables: &Arc<Tables>) -> Result<GraphBuilder, PlanError> {
    let catalogue = Catalogue::default();
    GraphBuilder::of(&default_plan(&catalogue)?, &catalogue, tables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::features::Features;
    use crate::graph::{Ends, Target};
    use crate::interface::InterfaceInfo;
    use crate::mask::Mask;
    use crate::reason::{DropReason, PuntReason};
    use crate::steps::{REDIRECTS, REVERSE_PATH};
    use crate::testing::{FrameBuilder, TestTables, batch_of};

    fn run(frames: &[Vec<u8>]) -> (Ends, Graph, Batch) {
        let mut graph = default_graph(&TestTables::every_kind()).unwrap();
        let mut batch = batch_of(frames);
        let ends = graph.run(&mut batch);
        (ends, graph, batch)
    }

    #[test]
    fn a_mixed_batch_is_sorted_and_counted() {
        let to4 = |address| FrameBuilder::ip4().destination4(address).udp(1, 2, b"x");
        let to6 = |address| FrameBuilder::ip6().destination6(address).udp(1, 2, b"x");
        let (ends, graph, batch) = run(&[
            to4("10.0.6.1").build(),
            to6("2001:db8:6::1").build(),
            to4("10.0.6.1").ttl(1).build(),
            to6("2001:db8:6::1").ttl(1).build(),
            to4("10.0.2.1").build(),
            to4("10.0.1.1").ttl(1).build(),
            vec![0; 20],
        ]);
        assert_eq!(ends.transmit, Mask(0b11));
        assert_eq!(ends.slow_path, Mask(0b10_1100));
        assert_eq!(ends.drop, Mask(0b101_0000));
        assert_eq!(graph.punt_reason(2), PuntReason::Ttl);
        assert_eq!(graph.punt_reason(3), PuntReason::Ttl);
        assert_eq!(graph.punt_reason(5), PuntReason::Local);
        assert_eq!(batch.head(0)[22], 63);
        assert_eq!(batch.head(1)[21], 63);
        assert_eq!(batch.head(2)[22], 1, "punted as it was received");
    }

    #[test]
    fn every_packet_of_any_batch_ends_exactly_once() {
        let mut random = 1u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        };
        for _ in 0..200 {
            let frames: Vec<Vec<u8>> = (0..64)
                .map(|n| {
                    let mut frame = if n % 2 == 0 {
                        FrameBuilder::ip4().destination4("10.0.6.1").udp(1, 2, b"x").build()
                    } else {
                        FrameBuilder::ip6().destination6("2001:db8:6::1").build()
                    };
                    for _ in 0..next() % 4 {
                        let at = usize::from(next()) % frame.len();
                        frame[at] = next();
                    }
                    frame.truncate(usize::from(next()).max(1));
                    frame
                })
                .collect();
            let (ends, graph, _) = run(&frames);
            assert_eq!(ends.transmit | ends.slow_path | ends.drop, Mask::first(64));
            assert_eq!(ends.transmit.count() + ends.slow_path.count() + ends.drop.count(), 64);
            let leaving: u64 = graph
                .shape()
                .steps
                .iter()
                .flat_map(|step| (step.first_edge..).zip(&step.outputs))
                .filter(|(_, (_, target))| !matches!(target, Target::Step(_)))
                .map(|(edge, _)| graph.counters().get(edge))
                .sum();
            assert_eq!(leaving, 64);
        }
    }

    #[test]
    fn no_step_of_the_default_graph_can_be_forgotten_in_the_picture() {
        let graph = default_graph(&TestTables::every_kind()).unwrap();
        let names: Vec<_> = graph.shape().steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names[0], "classify");
        assert_eq!(names.len(), 16);
        let drops = graph.shape().steps.iter().flat_map(|step| &step.outputs);
        assert!(drops.clone().any(|(_, to)| *to == Target::Drop(DropReason::Ip4Checksum)));
    }

    /// Returns the graph for ports with these settings.
    fn graph_for(ask: impl FnOnce(&mut [InterfaceInfo])) -> crate::graph::Graph {
        let tables = TestTables::every_kind();
        let mut ports = tables.interfaces.get();
        ask(&mut ports);
        tables.interfaces.set(ports);
        default_graph(&tables).unwrap()
    }

    #[test]
    fn sources_are_looked_up_only_if_a_port_asks_for_it() {
        let graph = graph_for(|ports| ports[4].features = Features::NONE.with(REVERSE_PATH, 1));
        let names: Vec<_> = graph.shape().steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names.len(), 18);
        assert!(names.contains(&"ip4-reverse-path") && names.contains(&"ip6-reverse-path"));
    }

    #[test]
    fn first_hops_are_looked_at_only_if_a_port_redirects() {
        let graph = graph_for(|ports| ports[1].features = Features::NONE.with(REDIRECTS, 1));
        let names: Vec<_> = graph.shape().steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names.len(), 18);
        assert!(names.contains(&"ip4-redirect") && names.contains(&"ip6-redirect"));
    }
}

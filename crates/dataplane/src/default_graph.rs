//! The default graph: where a packet goes.
//!
//! This function is the whole packet path, top to bottom, for tests and benchmarks. Routers run what
//! their configuration says, which begins with the same path in Lua (`default_graph.lua` in crate
//! `control`); a test there compares both, so a change of one needs the other. Punts to the slow path and
//! drops do not appear here because each step declares its own; `turnpike show graph` draws everything.

use std::sync::Arc;

use crate::graph::{Graph, GraphBuilder, GraphError};
use crate::interface::ReversePath;
use crate::steps::{
    Classify, CompleteChecksum, Ip4Lookup, Ip4Multicast, Ip4Prefetch, Ip4ReversePath, Ip4Rewrite,
    Ip4Ttl, Ip4Validate, Ip6HopLimit, Ip6Lookup, Ip6Multicast, Ip6ReversePath, Ip6Rewrite,
    Ip6Validate, Mtu, Redirect,
};
use crate::tables::Tables;

/// Builds the graph that forwarders run unless the configuration says otherwise.
pub fn default_graph(tables: &Arc<Tables>) -> Result<Graph, GraphError> {
    default_steps(tables)?.build()
}

/// The default graph before it is built, for whoever adds steps of their own. The steps that look at
/// sources, and those that find out who is to be redirected, are in it if a port asks for them.
pub fn default_steps(tables: &Arc<Tables>) -> Result<GraphBuilder, GraphError> {
    let ports = tables.interfaces.get();
    let redirects = ports.iter().any(|port| port.redirects);
    let by_source = ports.iter().any(|port| port.reverse_path != ReversePath::Any);
    let mut graph = GraphBuilder::new();

    graph.add("classify", Classify)?;

    graph.add("ip4-prefetch", Ip4Prefetch::new(tables))?;
    graph.add("ip4-checksum-offload", CompleteChecksum)?;
    if tables.own.class_e() {
        graph.add("ip4-validate", Ip4Validate::<true>::new(&tables.own))?;
    } else {
        graph.add("ip4-validate", Ip4Validate::<false>::new(&tables.own))?;
    }
    if by_source {
        graph.add("ip4-reverse-path", Ip4ReversePath::new(tables.clone()))?;
    }
    graph.add("ip4-lookup", Ip4Lookup::new(tables.clone()))?;
    graph.add("ip4-ttl", Ip4Ttl)?;
    if redirects {
        graph.add("ip4-redirect", Redirect::new(tables))?;
    }
    graph.add("ip4-mtu", Mtu::<false>::new(tables))?;
    graph.add("ip4-rewrite", Ip4Rewrite::new(tables))?;

    graph.add("ip6-checksum-offload", CompleteChecksum)?;
    graph.add("ip6-validate", Ip6Validate::new(&tables.own))?;
    if by_source {
        graph.add("ip6-reverse-path", Ip6ReversePath::new(tables.clone()))?;
    }
    graph.add("ip6-lookup", Ip6Lookup::new(tables.clone()))?;
    graph.add("ip6-hop-limit", Ip6HopLimit)?;
    if redirects {
        graph.add("ip6-redirect", Redirect::new(tables))?;
    }
    graph.add("ip6-mtu", Mtu::<true>::new(tables))?;
    graph.add("ip6-rewrite", Ip6Rewrite::new(tables))?;

    graph.add("ip4-multicast", Ip4Multicast::new(tables))?;
    graph.add("ip6-multicast", Ip6Multicast::new(tables))?;

    graph.connect("classify", "ip4", "ip4-prefetch")?;
    graph.connect("ip4-prefetch", "next", "ip4-checksum-offload")?;
    graph.connect("ip4-checksum-offload", "next", "ip4-validate")?;
    if by_source {
        graph.connect("ip4-validate", "ok", "ip4-reverse-path")?;
        graph.connect("ip4-reverse-path", "ok", "ip4-lookup")?;
    } else {
        graph.connect("ip4-validate", "ok", "ip4-lookup")?;
    }
    graph.connect("ip4-lookup", "forward", "ip4-ttl")?;
    if redirects {
        graph.connect("ip4-ttl", "ok", "ip4-redirect")?;
        graph.connect("ip4-redirect", "ok", "ip4-mtu")?;
    } else {
        graph.connect("ip4-ttl", "ok", "ip4-mtu")?;
    }
    graph.connect("ip4-mtu", "ok", "ip4-rewrite")?;
    graph.transmit("ip4-rewrite", "transmit")?;

    graph.connect("classify", "ip6", "ip6-checksum-offload")?;
    graph.connect("ip6-checksum-offload", "next", "ip6-validate")?;
    if by_source {
        graph.connect("ip6-validate", "ok", "ip6-reverse-path")?;
        graph.connect("ip6-reverse-path", "ok", "ip6-lookup")?;
    } else {
        graph.connect("ip6-validate", "ok", "ip6-lookup")?;
    }
    graph.connect("ip6-lookup", "forward", "ip6-hop-limit")?;
    if redirects {
        graph.connect("ip6-hop-limit", "ok", "ip6-redirect")?;
        graph.connect("ip6-redirect", "ok", "ip6-mtu")?;
    } else {
        graph.connect("ip6-hop-limit", "ok", "ip6-mtu")?;
    }
    graph.connect("ip6-mtu", "ok", "ip6-rewrite")?;
    graph.transmit("ip6-rewrite", "transmit")?;

    graph.connect("ip4-lookup", "multicast", "ip4-multicast")?;
    graph.replicate("ip4-multicast", "replicate")?;
    graph.connect("ip6-lookup", "multicast", "ip6-multicast")?;
    graph.replicate("ip6-multicast", "replicate")?;

    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::graph::{Ends, Target};
    use crate::interface::InterfaceInfo;
    use crate::mask::Mask;
    use crate::reason::{DropReason, PuntReason};
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

    /// The graph where ports ask for something.
    fn graph_for(ask: impl FnOnce(&mut [InterfaceInfo])) -> crate::graph::Graph {
        let tables = TestTables::every_kind();
        let mut ports = tables.interfaces.get();
        ask(&mut ports);
        tables.interfaces.set(ports);
        default_graph(&tables).unwrap()
    }

    #[test]
    fn sources_are_looked_up_only_if_a_port_asks_for_it() {
        let graph = graph_for(|ports| ports[4].reverse_path = ReversePath::Loose);
        let names: Vec<_> = graph.shape().steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names.len(), 18);
        assert!(names.contains(&"ip4-reverse-path") && names.contains(&"ip6-reverse-path"));
    }

    #[test]
    fn first_hops_are_looked_at_only_if_a_port_redirects() {
        let graph = graph_for(|ports| ports[1].redirects = true);
        let names: Vec<_> = graph.shape().steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names.len(), 18);
        assert!(names.contains(&"ip4-redirect") && names.contains(&"ip6-redirect"));
    }
}

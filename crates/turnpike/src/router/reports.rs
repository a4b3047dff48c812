//! Adds up what the units counted, into the reports of the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::counters::ForwarderCounters;
use dataplane::graph::{EdgeCounters, Shape, Target};
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::reason::DropReason;

use super::slow_worker::SlowCounters;
use crate::api::report::{Counters, Edge, Graph, Step};

/// The counters of one forwarder.
pub struct ForwarderView {
    /// Outside the graph.
    pub counters: Arc<ForwarderCounters>,
    /// On the graph's edges.
    pub edges: Arc<EdgeCounters>,
}

/// The counters of all units.
pub struct Ledger {
    /// One for each forwarder.
    pub forwarders: Vec<ForwarderView>,
    /// The slow path's.
    pub slow: Arc<SlowCounters>,
    /// The form of the graph, the same for all forwarders.
    pub shape: Arc<Shape>,
}

impl Ledger {
    /// Where every packet went.
    pub fn counters(&self) -> Counters {
        let sum = |of: fn(&ForwarderCounters) -> u64| -> u64 {
            self.forwarders.iter().map(|forwarder| of(&forwarder.counters)).sum()
        };
        let received = sum(|counters| ports().map(|port| counters.rx(port).packets.get()).sum());
        let sent = sum(|counters| ports().map(|port| counters.tx(port).packets.get()).sum());
        let punted = sum(|counters| counters.punted.get());
        let handed_over = sum(|counters| counters.handed_over.get());
        let taken_in = sum(|counters| counters.taken_in.get());
        let held = sum(|counters| counters.held.get());
        let slow = &self.slow;
        let to_slow_path = punted.saturating_sub(slow.taken.get());
        let to_forwarders = (slow.injected.get() + handed_over).saturating_sub(taken_in);
        let in_flight = to_slow_path + slow.held.get() + to_forwarders + held;
        let dropped = self.drops();
        let dropped_total = dropped.values().sum();
        // What the kernel sends by host interfaces is the router's own as well.
        let originated = slow.originated.get() + slow.from_host.get();
        let to_host = slow.to_host.get();
        let entered = received + originated;
        let left = sent + to_host + dropped_total + in_flight;
        Counters {
            received,
            originated,
            sent,
            to_host,
            dropped,
            dropped_total,
            in_flight,
            unaccounted: entered.wrapping_sub(left) as i64,
        }
    }

    fn drops(&self) -> BTreeMap<String, u64> {
        let mut drops = [0; DropReason::COUNT];
        for &reason in DropReason::ALL {
            let outside = |view: &ForwarderView| view.counters.drops.get(reason);
            drops[reason.index()] += self.slow.drops.get(reason);
            drops[reason.index()] += self.forwarders.iter().map(outside).sum::<u64>();
        }
        for step in &self.shape.steps {
            for (edge, (_, target)) in (step.first_edge..).zip(&step.outputs) {
                if let Target::Drop(reason) = target {
                    drops[reason.index()] += self.edge(edge);
                }
            }
        }
        DropReason::ALL.iter().map(|r| (r.name().to_owned(), drops[r.index()])).collect()
    }

    fn edge(&self, edge: usize) -> u64 {
        self.forwarders.iter().map(|forwarder| forwarder.edges.get(edge)).sum()
    }

    /// The graph with the packets on its edges.
    pub fn graph(&self) -> Graph {
        let steps = &self.shape.steps;
        let mut incoming = vec![0; steps.len()];
        let batches = |view: &ForwarderView| -> u64 {
            ports().map(|port| view.counters.rx(port).packets.get()).sum()
        };
        incoming[0] = self.forwarders.iter().map(batches).sum();
        let mut report = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            let mut outputs = Vec::new();
            for (edge, (name, target)) in (step.first_edge..).zip(&step.outputs) {
                let packets = self.edge(edge);
                let to = match target {
                    Target::Step(next) => {
                        incoming[*next] += packets;
                        steps[*next].name.clone()
                    }
                    Target::Transmit => "transmit".to_owned(),
                    Target::SlowPath(_) => "slow-path".to_owned(),
                    Target::Drop(_) => "drop".to_owned(),
                };
                outputs.push(Edge { name: (*name).to_owned(), to, packets });
            }
            report.push(Step { name: step.name.clone(), packets: incoming[place], outputs });
        }
        Graph { steps: report }
    }

    /// Packets and bytes received and sent by a port, in this order.
    pub fn traffic(&self, port: PortId) -> [u64; 4] {
        let mut sums = [0; 4];
        for view in &self.forwarders {
            let (rx, tx) = (view.counters.rx(port), view.counters.tx(port));
            for (sum, counter) in
                sums.iter_mut().zip([&rx.packets, &rx.bytes, &tx.packets, &tx.bytes])
            {
                *sum += counter.get();
            }
        }
        sums
    }
}

fn ports() -> impl Iterator<Item = PortId> {
    (0..MAX_PORTS as u16).filter_map(PortId::new)
}

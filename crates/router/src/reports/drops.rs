//! Dropped packets by step and reason. A step's drops are the packets on the edges of its drop outputs, so the
//! packet path counts nothing more; parts of the router outside the graph count by themselves.

use std::collections::BTreeMap;

use dataplane::counters::Drops;
use dataplane::graph::{GraphCounters, Shape, Target};
use dataplane::reason::{DropOrigin, DropReason};

/// Dropped packets by step, or another origin, and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropTally(BTreeMap<(String, DropReason), u64>);

impl DropTally {
    /// The drops of the steps of a graph of this form, as these forwarders counted them; reasons that a
    /// step declares are present at 0.
    pub fn of_steps<'a>(
        shape: &Shape,
        forwarders: impl Iterator<Item = &'a GraphCounters> + Clone,
    ) -> Self {
        let mut tally = Self::default();
        for step in &shape.steps {
            for (edge, (_, target)) in (step.first_edge..).zip(&step.outputs) {
                if let Target::Drop(reason) = *target {
                    let packets = forwarders.clone().map(|edges| edges.get(edge)).sum();
                    tally.add(&step.name, reason, packets);
                }
            }
        }
        tally
    }

    /// Adds the drops that a unit counted for an origin outside the graph.
    pub fn add_origin(&mut self, origin: DropOrigin, drops: &Drops) {
        for &reason in DropReason::ALL {
            let packets = drops.get(reason);
            if packets > 0 {
                self.add(origin.name(), reason, packets);
            }
        }
    }

    /// Adds the counts of another tally that are not 0.
    pub fn merge(&mut self, other: &Self) {
        for ((step, reason), &packets) in other.0.iter().filter(|&(_, &packets)| packets > 0) {
            self.add(step, *reason, packets);
        }
    }

    fn add(&mut self, step: &str, reason: DropReason, packets: u64) {
        *self.0.entry((step.to_owned(), reason)).or_default() += packets;
    }

    /// The sums of all reasons.
    pub fn by_reason(&self) -> BTreeMap<String, u64> {
        let all = DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), 0));
        let mut sums: BTreeMap<_, _> = all.collect();
        for ((_, reason), packets) in &self.0 {
            *sums.entry(reason.name().to_owned()).or_default() += packets;
        }
        sums
    }

    /// The counts of each step or other origin, by reason.
    pub fn by_step(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut steps: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for ((step, reason), &packets) in &self.0 {
            steps.entry(step.clone()).or_default().insert(reason.name().to_owned(), packets);
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use dataplane::counters::DropsByOrigin;
    use dataplane::drop_watch::Dropped;
    use dataplane::interface::InterfaceId;

    use super::*;

    #[test]
    fn steps_and_other_parts_that_drop_for_one_reason_are_told_apart() {
        let mut tally = DropTally::default();
        tally.add("inward", DropReason::Filtered, 3);
        tally.add("outward", DropReason::Filtered, 0);
        let (router_filter, origin) = (DropsByOrigin::default(), DropOrigin::ToRouter);
        let drop = Dropped::received(origin, DropReason::Filtered, InterfaceId::FIRST);
        (0..5).for_each(|_| router_filter.lose(&drop, std::iter::empty));
        tally.add_origin(origin, router_filter.of(origin));
        let one = |packets| [("filtered".to_owned(), packets)].into();
        let by_step = [("inward", one(3)), ("outward", one(0)), ("to-router", one(5))];
        assert_eq!(tally.by_step(), by_step.map(|(step, drops)| (step.to_owned(), drops)).into());
        let sums = tally.by_reason();
        assert_eq!((sums.len(), sums["filtered"], sums["shed"]), (DropReason::COUNT, 8, 0));
    }

    #[test]
    fn counts_of_former_graphs_stay_without_their_zeros() {
        let (mut now, mut former) = (DropTally::default(), DropTally::default());
        now.add("classify", DropReason::Runt, 1);
        former.add("classify", DropReason::Runt, 2);
        former.add("removed", DropReason::ByStep, 4);
        former.add("removed", DropReason::StepFailed, 0);
        now.merge(&former);
        let by_step = now.by_step();
        assert_eq!(by_step["classify"]["runt"], 3);
        assert_eq!(by_step["removed"], [("by-step".to_owned(), 4)].into());
    }
}

//! Which forwarder serves which queue of a port: numbers only.
//!
//! A port has at best one receive and one transmit queue for each forwarder. Where it has fewer,
//! its queues go to the forwarders in turn, beginning with a different one for each port, and a
//! forwarder without a transmit queue hands its packets over to the one that owns the port's first.

use dataplane::port::PortId;

/// How a port's queues are served.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// The forwarder that sends what others hand over and what the slow path has.
    pub home: usize,
    /// The forwarder of each receive queue.
    pub rx: Vec<usize>,
    /// The transmit queue of each forwarder, if there is one for it.
    pub tx: Vec<Option<usize>>,
}

impl Layout {
    /// For a port with so many receive and transmit queues, at least one each, and so many forwarders.
    pub fn new(port: PortId, rx: usize, tx: usize, forwarders: usize) -> Self {
        let home = port.index() % forwarders;
        let mut own = vec![None; forwarders];
        for queue in 0..tx.min(forwarders) {
            own[(home + queue) % forwarders] = Some(queue);
        }
        Self { home, rx: (0..rx).map(|queue| (home + queue) % forwarders).collect(), tx: own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(port: u16, rx: usize, tx: usize, forwarders: usize) -> Layout {
        Layout::new(PortId::new(port).unwrap(), rx, tx, forwarders)
    }

    #[test]
    fn each_forwarder_has_a_queue_where_there_are_enough() {
        let Layout { home, rx, tx } = layout(4, 3, 3, 3);
        assert_eq!((home, rx, tx), (1, vec![1, 2, 0], vec![Some(2), Some(0), Some(1)]));
    }

    #[test]
    fn few_queues_begin_with_another_forwarder_for_each_port() {
        let at_0 = Layout { home: 0, rx: vec![0], tx: vec![Some(0), None] };
        let at_1 = Layout { home: 1, rx: vec![1], tx: vec![None, Some(0)] };
        assert_eq!(
            [layout(0, 1, 1, 2), layout(1, 1, 1, 2), layout(2, 1, 1, 2)],
            [at_0, at_1, layout(0, 1, 1, 2)]
        );
    }

    #[test]
    fn every_receive_queue_is_served_and_no_transmit_queue_twice() {
        for (port, rx, tx, forwarders) in [(0, 5, 5, 2), (3, 1, 4, 3), (7, 8, 1, 4), (1, 2, 3, 1)] {
            let Layout { home, rx: by, tx: own } = layout(port, rx, tx, forwarders);
            assert_eq!(by.len(), rx);
            assert!(by.iter().all(|&forwarder| forwarder < forwarders) && home < forwarders);
            let mut queues: Vec<_> = own.iter().flatten().copied().collect();
            queues.sort_unstable();
            assert_eq!(queues, (0..tx.min(forwarders)).collect::<Vec<_>>());
            assert!(own[home].is_some(), "who sends for others has a queue");
        }
    }
}

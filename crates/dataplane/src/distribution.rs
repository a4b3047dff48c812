//! Distribution: one burst per port that fills until it is worth sending.
//!
//! A batch leaves the graph with its packets bound for any ports. Each is appended to its port's
//! burst, without a branch per packet; a burst is sent when it reaches its maximum size, or when
//! its oldest packet has waited for the flush timeout, or when the forwarder has nothing else to
//! do. A forwarder sends by transmit queues of its own; where a device has too few, one forwarder
//! owns the queue and the others hand their packets over by a ring:
//!
//! ```text
//!  graph --+--> burst of port 0 --> transmit queue
//!          +--> burst of port 1 --> ring --> the forwarder that owns port 1's queue
//! ```

use std::time::Duration;

use dpdk::{Burst, PacketList, Producer, TxQueue};

use crate::batch::BATCH_MAX;
use crate::counters::ForwarderCounters;
use crate::mask::Mask;
use crate::port::PortId;
use crate::reason::DropReason;

/// The largest transmit burst that can be configured.
pub const TX_BURST_MAX: usize = 128;

/// When a burst is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxConfig {
    /// Packets that make a burst full, 1 to [`TX_BURST_MAX`].
    pub burst: usize,
    /// The longest that a packet waits for others to join it.
    pub flush: Duration,
}

impl Default for TxConfig {
    fn default() -> Self {
        Self { burst: 32, flush: Duration::from_micros(50) }
    }
}

/// How a forwarder reaches a port.
pub enum TxPath {
    /// By a transmit queue of its own.
    Queue(TxQueue),
    /// By the forwarder at the other end of this ring.
    Handover(Producer),
}

struct PortTx {
    id: PortId,
    path: TxPath,
    /// When the burst's oldest packet came, in TSC cycles; meaningful while the burst has packets.
    since: u64,
}

/// The transmit side of one forwarder.
pub struct Distribution {
    ports: Vec<PortTx>,
    bursts: Vec<PacketList>,
    burst: usize,
    flush_cycles: u64,
    hands_over: bool,
}

impl Distribution {
    /// `paths` has one entry for each port, in the order of their indexes.
    pub fn new(paths: Vec<(PortId, TxPath)>, config: TxConfig) -> Self {
        let cycles = dpdk::tsc_hz() as f64 * config.flush.as_secs_f64();
        Self {
            bursts: paths.iter().map(|_| PacketList::new()).collect(),
            hands_over: paths.iter().any(|(_, path)| matches!(path, TxPath::Handover(_))),
            ports: paths.into_iter().map(|(id, path)| PortTx { id, path, since: 0 }).collect(),
            burst: config.burst.clamp(1, TX_BURST_MAX),
            flush_cycles: cycles as u64,
        }
    }

    /// Takes the packets of `mask` out of `packets`, each to the burst of the port `out_port` says,
    /// and sends the bursts that are full. `now` in TSC cycles.
    pub(crate) fn accept(
        &mut self,
        packets: &mut Burst,
        mask: Mask,
        out_port: &[u16; BATCH_MAX],
        now: u64,
        counters: &ForwarderCounters,
    ) {
        if self.hands_over {
            // The forwarder that receives a packet by a ring learns the port from its tag.
            for slot in mask.slots() {
                packets.set_tag(slot, u64::from(out_port[slot]));
            }
        }
        self.start_clocks(now);
        let homeless = packets.append_to(mask.0, out_port, &mut self.bursts);
        if homeless != 0 {
            counters.drops.add(DropReason::PortDown, packets.free(homeless) as u64);
        }
        for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
            if burst.len() >= self.burst {
                port.send(burst, self.burst, counters);
                port.since = now;
            }
        }
    }

    /// An empty burst that fills now has its oldest packet now.
    fn start_clocks(&mut self, now: u64) {
        for (port, burst) in self.ports.iter_mut().zip(&self.bursts) {
            if burst.is_empty() {
                port.since = now;
            }
        }
    }

    /// Sends the bursts whose oldest packet has waited long enough.
    pub(crate) fn flush_due(&mut self, now: u64, counters: &ForwarderCounters) {
        for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
            if !burst.is_empty() && now.wrapping_sub(port.since) >= self.flush_cycles {
                port.send(burst, 1, counters);
                port.since = now;
            }
        }
    }

    /// Sends everything that waits.
    pub(crate) fn flush(&mut self, counters: &ForwarderCounters) {
        for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
            if !burst.is_empty() {
                port.send(burst, 1, counters);
            }
        }
    }

    /// Packets that wait in bursts.
    pub(crate) fn held(&self) -> usize {
        self.bursts.iter().map(PacketList::len).sum()
    }

    /// Drops what could not be sent, at the end.
    pub(crate) fn shut_down(&mut self, counters: &ForwarderCounters) {
        self.flush(counters);
        for burst in &mut self.bursts {
            counters.drops.add(DropReason::Shutdown, burst.free_tail(0) as u64);
        }
    }
}

impl PortTx {
    /// Sends from the burst as long as it has at least `least` packets and the queue takes them.
    /// What a full queue refuses waits for the next round; what exceeds one maximal burst beyond
    /// that is dropped, newest first.
    fn send(&mut self, burst: &mut PacketList, least: usize, counters: &ForwarderCounters) {
        match &mut self.path {
            TxPath::Queue(queue) => {
                while burst.len() >= least.max(1) {
                    let sent = queue.send(burst, TX_BURST_MAX);
                    counters.drops.add(DropReason::MultiSegment, sent.refused as u64);
                    if sent.packets == 0 {
                        break;
                    }
                    let tx = counters.tx(self.id);
                    tx.packets.add(sent.packets as u64);
                    tx.bytes.add(sent.bytes);
                }
                if burst.len() > TX_BURST_MAX {
                    let dropped = burst.free_tail(TX_BURST_MAX);
                    counters.drops.add(DropReason::TxFull, dropped as u64);
                }
            }
            TxPath::Handover(ring) => {
                counters.handed_over.add(ring.send(burst) as u64);
                let dropped = burst.free_tail(0);
                counters.drops.add(DropReason::HandoverFull, dropped as u64);
            }
        }
    }
}

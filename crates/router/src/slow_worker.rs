//! A slow path worker's thread: carries packets between the rings, its engine and the kernel. The
//! engine does the work and knows none of them, nor a clock.
//!
//! ```text
//!   forwarders --- a ring for each class --> +---------+
//!                                            | engine  | ---> inject rings ---> forwarders
//!   other workers --- packets waiting   ---> +---------+ ---> other workers
//!                     for a neighbour here        |
//!   forwarders <-- priority rings <-------- host interfaces (kernel)
//! ```
//!
//! Each port has one worker, which owns its neighbours, its host interface and its announcements;
//! with one worker that is all ports. State that the engines must agree on (rates of errors and classes) is
//! shared; all other work on another worker's port is sent to it as a message. In each round every
//! class has its turns (`turns.rs`), then what the kernel sends: a flood of packets that cannot be
//! forwarded delays a routing protocol by a fraction of a millisecond.
//!
//! | file | concern |
//! |---|---|
//! | `turns.rs` | order of classes: rates and weights |
//! | `outbox.rs` | destinations of results |
//! | `learner.rs` | flows that the host begins |
//! | `orders.rs` | the owner's orders, and their recipients |
//! | `events.rs` | events for the owner |
//! | `threads.rs` | the threads of workers |
//! | `regroup.rs` | the making of workers, and another number of them |

mod events;
mod learner;
mod orders;
mod outbox;
mod regroup;
#[cfg(test)]
mod tests;
mod threads;
mod turns;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dataplane::drop_watch::Dropped;
use dataplane::interface::InterfaceId;
use dataplane::quarantine::{Quarantine, guard};
use dataplane::reason::{DropOrigin, DropReason, Punt, PuntClass};
use dataplane::steps::RedirectGates;
use dpdk::Mbuf;
use outbox::{Handoff, take_crash_frames};
use slowpath::{Command, SlowPath};
use tokio::sync::oneshot;

use super::wiring::{HostLink, WorkerEnds};

pub use events::{EventReceiver, EventSender, EventView, event_channel};
pub use learner::{LearnedFlows, Learner, LearnerShared, learned_flows};
pub use orders::{Connections, Order, OrderQueue, Orders, order_queue};
pub use outbox::{Frame, HandoffQueue, Outbox, SlowCounters, handoff_queues};
pub use regroup::{Common, by_worker, places, regroup};
pub use threads::SlowThreads;
pub use turns::{ClassRates, PuntScheduler};

/// Messages of other workers that are looked at before packets have their turn.
const MAIL_TURN: usize = 256;

/// Orders obeyed before packets have their turn.
const ORDER_TURN: usize = 1024;

/// The longest sleep of a worker with nothing to do that cannot block, since packets wait for a rate, or the
/// kernel's for a ring.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// A worker that has slept for so long at once and can block does so.
const PATIENCE: Duration = Duration::from_micros(40);

/// The time between two looks of the engine at its timers.
const TICK: Duration = Duration::from_millis(10);

/// The same while the worker blocks and no packet waits for a neighbour. Other timers count seconds.
const IDLE_TICK: Duration = Duration::from_millis(100);

/// Everything the thread owns.
pub struct SlowWorker {
    /// The protocols.
    pub engine: SlowPath<Frame>,
    /// Packets that forwarders punt.
    pub turns: PuntScheduler,
    /// Destinations of the engine's results.
    pub outbox: Outbox,
    /// The owner's orders.
    pub orders: OrderQueue,
    /// Reports that no reference into the tables is held.
    pub quiescent: dpdk::qsbr::Reader,
    /// The quarantine for packets over which the engine panics.
    pub quarantine: Quarantine,
    /// Time 0 of all engines.
    pub start: Instant,
    /// Where it goes, if it is to leave its thread.
    pub leaving: Option<oneshot::Sender<SlowWorker>>,
}

impl SlowWorker {
    /// Runs until `stop` is set, then drops what it holds; or until it is to leave, then finishes what forwarders have
    /// punted and keeps the rest.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.quiescent.online();
        let start = self.start;
        let mut next_tick = Duration::ZERO;
        let mut sleep = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) && self.leaving.is_none() {
            self.quiescent.quiescent();
            let now = start.elapsed();
            let found = self.round(now);
            let tick = now >= next_tick;
            if tick {
                self.guarded(None, |engine, outbox| engine.tick(now, outbox));
                self.outbox.tables.shared.get::<RedirectGates>().open();
                next_tick = now + TICK;
            }
            if tick || found > 0 {
                self.outbox.counters.held.set(self.engine.held() as u64);
            }
            if found > 0 {
                sleep = Duration::ZERO;
            } else if sleep < PATIENCE || !self.block(start, stop) {
                sleep = (sleep * 2).clamp(Duration::from_micros(5), LONGEST_SLEEP);
                self.outbox.wait(sleep);
            }
        }
        if self.leaving.is_some() {
            self.take_beyond(0, start.elapsed());
            self.outbox.flush_hosts();
        } else {
            self.shut_down();
        }
        self.quiescent.offline();
    }

    /// Blocks until there is work for the worker, or the engine's timers are to be checked. Returns false
    /// if it cannot block, because work waits here that rings no doorbell.
    fn block(&mut self, start: Instant, stop: &AtomicBool) -> bool {
        let doorbell = self.outbox.handoff_queue.doorbell().clone();
        doorbell.listen();
        let empty = self.turns.listen(&doorbell) && self.outbox.has_room();
        // Work that arrived before it listened has rung no doorbell.
        let found = self.round(start.elapsed());
        if empty && found == 0 && !stop.load(Ordering::Relaxed) {
            self.quiescent.offline();
            self.outbox.wait(if self.engine.held() > 0 { TICK } else { IDLE_TICK });
            self.quiescent.online();
        }
        self.turns.ignore();
        doorbell.ignore();
        empty
    }

    /// Gives every input one turn; returns the number of items handled.
    fn round(&mut self, now: Duration) -> usize {
        let found = self.take_orders(now) + self.take_mail(now) + self.take_punted(now);
        self.outbox.flush_hosts();
        found + self.outbox.take_from_hosts()
    }

    fn take_orders(&mut self, now: Duration) -> usize {
        let mut found = 0;
        while found < ORDER_TURN
            && let Some(order) = self.orders.take()
        {
            found += 1;
            match order {
                Order::Engine(command) => self.command(command, now),
                Order::AllMulticast { port, on } => {
                    if let Some(link) = self.outbox.host(port) {
                        link.interface.take_all_multicasts(on);
                    }
                }
                Order::Connect { port, sender, host } => self.outbox.connect(port, sender, host),
                Order::Vlans => self.outbox.follow_vlans(),
                Order::Tables(tables) => self.outbox.tables = tables,
                Order::AttachHost { interface, host } => {
                    let link = HostLink { interface: *host, priority: None };
                    self.outbox.attach_host(interface, link);
                }
                Order::ReplaceHost { interface, host, answer } => {
                    // An interface whose asker has ended stays in the kernel, as all do then.
                    let _ = answer.send(self.outbox.replace_host(interface, *host));
                }
                Order::Disconnect { port, answer } => {
                    // The asker may have ended, and the interface is dropped then.
                    let _ = answer.send(self.outbox.disconnect(port));
                }
                Order::Halt { halted, go } => self.halt(halted, &go, now),
                Order::Leave(to) => self.leaving = Some(to),
                Order::Weights(limits) => self.turns.set_weights(&limits),
                Order::Bonds(answer) => {
                    // The asker may have ended.
                    let _ = answer.send(self.engine.bonds());
                }
                Order::Neighbours(answer) => {
                    // The asker may have ended.
                    let _ = answer.send(self.engine.neighbours(now));
                }
            }
        }
        found
    }

    /// Halts until it is released, or the releasing end is dropped.
    fn halt(
        &mut self,
        halted: oneshot::Sender<()>,
        go: &mpsc::Receiver<Connections>,
        now: Duration,
    ) {
        self.quiescent.offline();
        let _ = halted.send(());
        let connections = go.recv();
        self.quiescent.online();
        if let Ok(connections) = connections {
            self.reconnect(connections, now);
        }
    }

    /// Continues with other forwarders. Packets punted by removed forwarders are taken at once.
    fn reconnect(&mut self, connections: Connections, now: Duration) {
        let Connections { senders, more, forwarders } = connections;
        for WorkerEnds { punted, injector } in more {
            self.turns.add(punted);
            self.outbox.injectors.push(injector);
        }
        for (port, sender) in senders {
            self.outbox.senders[port.index()] = Some(sender);
        }
        self.take_beyond(forwarders, now);
        self.outbox.injectors.truncate(forwarders);
    }

    /// Takes everything from the forwarders beyond so many, which punt nothing here any more.
    fn take_beyond(&mut self, forwarders: usize, now: Duration) {
        while let Some((class, packet)) = self.turns.pop_beyond(forwarders) {
            self.outbox.counters.taken[class.index()].add(1);
            self.packet(packet, now);
        }
    }

    fn command(&mut self, command: Command, now: Duration) {
        let command = match command {
            // The forwarders' steps and the engine are to cut at the same length, and a device
            // sends nothing that is longer than what it was opened for.
            Command::Mtu { interface: port, mtu } => {
                Command::Mtu { interface: port, mtu: self.outbox.tables.mtus.set(port, mtu) }
            }
            other => other,
        };
        self.guarded(None, |engine, outbox| engine.command(command, now, outbox));
    }

    /// Lets the engine do something. If it panics over it, the packets that it had in hand are put
    /// aside and counted; its state stays, and it continues with the next.
    fn guarded(
        &mut self,
        port: Option<InterfaceId>,
        work: impl FnOnce(&mut SlowPath<Frame>, &mut Outbox),
    ) {
        let (engine, outbox) = (&mut self.engine, &mut self.outbox);
        if let Err(message) = guard(|| work(engine, outbox)) {
            self.put_aside(port, &message);
        }
    }

    #[cold]
    fn put_aside(&self, port: Option<InterfaceId>, message: &str) {
        let frames = take_crash_frames();
        let (why, from) = (DropReason::Quarantined, port.unwrap_or(InterfaceId::FIRST));
        let drop = Dropped::received(DropOrigin::SlowPath, why, from);
        let drops = &self.outbox.counters.drops;
        frames.iter().for_each(|frame| drops.lose(&drop, || std::iter::once(&frame[..])));
        if frames.is_empty() {
            // No packet's fault, but it must be heard of.
            self.quarantine.put(port, message, &[]);
        }
        for frame in frames {
            self.quarantine.put(port, message, &frame);
        }
    }

    /// Takes what other workers have for neighbours on this one's ports.
    fn take_mail(&mut self, now: Duration) -> usize {
        for found in 0..MAIL_TURN {
            let Some(handoff) = self.outbox.handoff_queue.take() else { return found };
            self.outbox.counters.handoffs_taken.add(handoff.packets());
            let Handoff { to, waiting } = handoff;
            self.guarded(Some(to.0), |engine, outbox| engine.take_over(to, waiting, now, outbox));
        }
        MAIL_TURN
    }

    fn take_punted(&mut self, now: Duration) -> usize {
        let mut found = 0;
        for &class in PuntClass::ALL {
            for _ in 0..self.turns.grant(class, now) {
                let Some(packet) = self.turns.pop(class) else { break };
                self.outbox.counters.taken[class.index()].add(1);
                self.packet(packet, now);
                found += 1;
            }
        }
        found
    }

    fn packet(&mut self, packet: Mbuf, now: Duration) {
        // The engine reads packets in one piece.
        let packet = match self.outbox.buffers.in_one(packet) {
            Ok(packet) => packet,
            Err(packet) => return self.outbox.counters.discard(packet, DropReason::MultiSegment),
        };
        match Punt::from_tag(packet.tag()) {
            // The kernel answers, resolves and forwards what forwarders do not finish.
            Some(punt) if self.outbox.returns(punt.interface) => {
                self.outbox.give(punt.interface, packet);
            }
            Some(punt) => {
                let packet = Frame::new(packet);
                self.guarded(Some(punt.port.into()), |engine, outbox| {
                    engine.packet(packet, punt, now, outbox);
                });
            }
            // Only forwarders fill these rings, and they tag what they put in.
            None => self.outbox.counters.discard(packet, DropReason::StepLost),
        }
    }

    /// Drops what waits, by name. To be called again when the other workers have ended, for what
    /// they sent meanwhile.
    pub fn shut_down(&mut self) {
        let counters = self.outbox.counters.clone();
        for &class in PuntClass::ALL {
            while let Some(packet) = self.turns.pop(class) {
                counters.taken[class.index()].add(1);
                counters.discard(packet, DropReason::Shutdown);
            }
        }
        while let Some(handoff) = self.outbox.handoff_queue.take() {
            counters.handoffs_taken.add(handoff.packets());
            counters.drop_handoff(handoff, DropReason::Shutdown);
        }
        self.engine.shutdown(&mut self.outbox);
        counters.held.set(0);
    }
}

//! Intake of a forwarder: its receive sources, their turns, and its waiting.
//!
//! # Turns
//!
//! In a round each source has a turn, in which at most a quota Q of packets is taken from it; a
//! round takes at most a budget B. A round that uses up its budget ends, and the next continues
//! where it ended. Sources with more packets than their turns permit thus share the forwarder in
//! the ratio of their quotas, and the others get all they need: weighted max-min fairness. Every
//! packet received is forwarded at once, so excess packets are lost in the receive queue, before
//! any work is spent on them, except for the few that `shed.rs` examines to save network control.
//!
//! Rings with packets to be sent (from the slow path, from other forwarders) are sources like receive queues.
//! Packets from the kernel are taken before them, a quota for each port and round: see `distribution.rs`.
//!
//! # Waiting
//!
//! ```text
//!              packets                        a window without packets
//!        +-------------------> polling ---------------------------------+
//!        |                                                              v
//!     blocked <------------ armed, one more round finds nothing <---- armed
//!   (epoll_wait)                                                        |
//!        |                                   it finds something         |
//!        +--> polling <-------------------------------------------------+
//! ```
//!
//! | `wait` | a forwarder without packets |
//! |---|---|
//! | `poll` | polls |
//! | `adaptive` | polls for a window, then blocks |
//! | `interrupt` | blocks |
//! | `moderated` | sleeps for a time, then blocks |
//!
//! The forwarder for control traffic blocks at once, regardless of the settings of its ports: it
//! shares its core.
//!
//! The window of `adaptive` follows the traffic, as KVM's halt polling does: it doubles, up to
//! [`WINDOW_MOST`], when a block was shorter than that, so that polling would have found the packet; after
//! a longer block it is [`WINDOW_LEAST`] again. Under load no system call is made.
//!
//! `moderated` does what NICs call interrupt moderation (`ethtool -C rx-usecs`), for devices that cannot: wake-ups are at
//! least the time of [`Polling::moderation`] apart, and packets that arrive meanwhile are taken together. The first
//! packet after a pause waits for nothing.
//!
//! A forwarder blocks only if every receive queue has a descriptor that wakes it. If one has none
//! (a virtual device, a NIC without interrupts) it sleeps for 2 to 50 us at a time. It does so as
//! well while packets wait for a transmit queue, and, for up to [`FRUITLESS_MOST`] at a time, when
//! a descriptor repeatedly signals packets where there are none.

use std::time::Duration;

use dpdk::{Consumer, RxQueue};

use crate::interface::InterfaceInfo;
use crate::mask::BATCH_MAX;
use crate::port::{MAX_PORTS, PortId};
use crate::shed::{Backlog, Shedding};
use crate::spread::{Input, Spread};

/// Packets of a turn by default.
pub const QUOTA: u16 = BATCH_MAX as u16;

/// The largest quota that can be configured, in packets.
pub const QUOTA_MOST: u16 = 4096;

/// Packets of a round by default.
pub const BUDGET: u16 = 512;

/// The window of [`Wait::Adaptive`] after a long block.
pub const WINDOW_LEAST: Duration = Duration::from_micros(20);

/// The longest window of [`Wait::Adaptive`].
pub const WINDOW_MOST: Duration = Duration::from_micros(100);

/// The time between two wake-ups of [`Wait::Moderated`] by default.
pub const MODERATION: Duration = Duration::from_micros(50);

/// Rounds without a packet before the first sleep of a forwarder that cannot block.
const SPIN_ROUNDS: u32 = 200;

/// The first sleep of a forwarder that cannot block; each next one is twice as long.
const FIRST_SLEEP: Duration = Duration::from_micros(2);

/// The longest sleep of a forwarder that cannot block.
const LONGEST_SLEEP: Duration = Duration::from_micros(50);

/// The longest block of a forwarder that a NIC wakes: the longest wait of a packet whose interrupt is lost.
pub const LOOK: Duration = Duration::from_millis(100);

/// The longest sleep while a descriptor reports packets that do not exist.
pub const FRUITLESS_MOST: Duration = Duration::from_millis(1);

/// Consecutive wake-ups without a packet after which descriptors are ignored until packets arrive.
const FRUITLESS: u32 = 8;

/// The behaviour of a forwarder without packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Polls, and never sleeps.
    Poll,
    /// Polls for a window that follows the traffic, then blocks.
    #[default]
    Adaptive,
    /// Blocks at once.
    Interrupt,
    /// Sleeps for a set time, then blocks.
    Moderated,
}

impl Wait {
    /// All, most eager first.
    pub const ALL: [Self; 4] = [Self::Poll, Self::Adaptive, Self::Interrupt, Self::Moderated];

    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Adaptive => "adaptive",
            Self::Interrupt => "interrupt",
            Self::Moderated => "moderated",
        }
    }
}

/// The polling of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPolling {
    /// The waiting of forwarders that receive from it.
    pub wait: Wait,
    /// Packets of a turn, 1 to [`QUOTA_MOST`].
    pub quota: u16,
}

impl Default for PortPolling {
    fn default() -> Self {
        Self { wait: Wait::default(), quota: QUOTA }
    }
}

/// The polling of all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polling {
    /// The waiting of forwarders that have no receive queue.
    pub wait: Wait,
    /// Packets of a round, at least 1.
    pub budget: u16,
    /// Least time between two wake-ups of [`Wait::Moderated`].
    pub moderation: Duration,
    /// Overload control: the packets to drop when more arrive than can be forwarded.
    pub shed: Shedding,
    /// By the ports' indexes.
    pub ports: Box<[PortPolling; MAX_PORTS]>,
}

impl Default for Polling {
    fn default() -> Self {
        let ports = Box::new([PortPolling::default(); MAX_PORTS]);
        let (wait, budget, moderation) = (Wait::default(), BUDGET, MODERATION);
        Self { wait, budget, moderation, shed: Shedding::OFF, ports }
    }
}

impl Polling {
    /// Returns the quota of a source of this port, or of one without a port.
    pub(crate) fn quota(&self, port: Option<PortId>) -> usize {
        port.map_or(QUOTA, |port| self.ports[port.index()].quota).max(1).into()
    }

    /// Returns the waiting of a forwarder that receives from these ports: the most eager one.
    pub fn wait_of(&self, ports: impl Iterator<Item = PortId>) -> Wait {
        let impatience = |wait: &Wait| Wait::ALL.iter().position(|one| one == wait);
        ports.map(|port| self.ports[port.index()].wait).min_by_key(impatience).unwrap_or(self.wait)
    }
}

/// A receive queue, or a ring in its place, and its port.
pub struct RxSource {
    /// The port.
    pub port: PortId,
    /// Facts about the interface for steps.
    pub info: InterfaceInfo,
    /// The queue or ring, this forwarder's own.
    pub input: Input,
    /// Packets taken from it at once, 1 to [`BATCH_MAX`]; a quota is taken in several bursts.
    pub burst: usize,
    /// Gives received packets to other forwarders.
    pub spread: Option<Spread>,
    /// The lag of its forwarder.
    pub(crate) backlog: Backlog,
}

impl RxSource {
    /// A receive queue whose packets this forwarder keeps.
    pub fn of_queue(port: PortId, info: InterfaceInfo, queue: RxQueue) -> Self {
        Self {
            port,
            info,
            input: Input::Queue(queue),
            burst: BATCH_MAX,
            spread: None,
            backlog: Backlog::default(),
        }
    }

    /// A ring of packets that another forwarder has received and spread.
    pub fn of_ring(port: PortId, info: InterfaceInfo, ring: Consumer) -> Self {
        Self {
            port,
            info,
            input: Input::Ring(ring),
            burst: BATCH_MAX,
            spread: None,
            backlog: Backlog::default(),
        }
    }
}

/// Gives each source the new facts about its port's own interface, and the batch those about all;
/// returns the previous ones in their place.
pub(crate) fn exchange_infos(
    sources: &mut [RxSource],
    known: &mut Vec<InterfaceInfo>,
    infos: &mut [InterfaceInfo],
) {
    // The capacity suffices for all: see `Forwarder::new`.
    known.resize(infos.len().max(known.len()), InterfaceInfo::NONE);
    let mut before = [None; MAX_PORTS];
    for source in sources {
        let index = source.port.index();
        if let Some(new) = infos.get(index) {
            // A port may have several queues here, with the same facts.
            before[index].get_or_insert(source.info);
            source.info = *new;
        }
    }
    std::iter::zip(infos.iter_mut(), known).for_each(|(info, known)| std::mem::swap(info, known));
    for (info, before) in infos.iter_mut().zip(before) {
        *info = before.unwrap_or(*info);
    }
}

/// The turns of sources, weighted round robin with a budget.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundRobin {
    /// The source of the next turn.
    next: usize,
    /// Packets left of its quota, if the budget ended its turn; else 0.
    left: usize,
}

impl RoundRobin {
    /// One round: gives each of so many sources a turn, beginning where the last round ended, until `budget`
    /// packets have been taken. `quota` returns the packets of a source's turn; `serve` takes at most so many
    /// from it, and fewer only if it has no more. Returns the packets of the round.
    #[inline]
    pub(crate) fn round<C>(
        &mut self,
        context: &mut C,
        (sources, budget): (usize, usize),
        quota: impl Fn(&C, usize) -> usize,
        mut serve: impl FnMut(&mut C, usize, usize) -> usize,
    ) -> usize {
        if self.next >= sources {
            *self = Self::default();
        }
        let mut found = 0;
        for _ in 0..sources {
            let quota = if self.left > 0 { self.left } else { quota(context, self.next) };
            let most = quota.min(budget - found);
            let taken = serve(context, self.next, most);
            found += taken;
            if taken == most && most < quota {
                self.left = quota - most;
                break;
            }
            self.left = 0;
            self.next = if self.next + 1 < sources { self.next + 1 } else { 0 };
            if found >= budget {
                break;
            }
        }
        found
    }
}

/// The next action of an idle forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Another round.
    Poll,
    /// Sleep; the sources wait.
    Sleep(Duration),
    /// Block until a source wakes the forwarder.
    Block,
}

/// The way in which a forwarder without packets waits.
#[derive(Debug)]
pub(crate) struct Idle {
    wait: Wait,
    /// True if every receive queue can wake a blocking forwarder.
    can_block: bool,
    /// TSC cycles per second.
    hz: u64,
    /// Rounds without packets since the last one with packets.
    rounds: u32,
    /// The end of the first of them, in TSC cycles.
    since: u64,
    /// The window of [`Wait::Adaptive`], in TSC cycles.
    window: u64,
    /// The first sleep of [`Wait::Moderated`].
    moderation: Duration,
    sleep: Duration,
    /// Wake-ups by a descriptor since the last packet.
    fruitless: u32,
}

impl Idle {
    pub(crate) fn new() -> Self {
        let hz = dpdk::tsc_hz();
        let window = cycles(WINDOW_LEAST, hz);
        let (rounds, since, sleep, fruitless) = (0, 0, FIRST_SLEEP, 0);
        Self {
            wait: Wait::default(),
            can_block: false,
            hz,
            rounds,
            since,
            window,
            moderation: MODERATION,
            sleep,
            fruitless,
        }
    }

    /// Sets other sources, or other settings; `moderation`: see [`Polling`].
    pub(crate) fn set(&mut self, (wait, moderation): (Wait, Duration), can_block: bool) {
        (self.wait, self.moderation, self.can_block) = (wait, moderation, can_block);
        self.found();
    }

    /// Records a round with packets.
    #[inline(always)]
    pub(crate) fn found(&mut self) {
        self.rounds = 0;
        self.fruitless = 0;
        self.sleep = FIRST_SLEEP;
    }

    /// Returns the next action after a round without packets that ended now.
    pub(crate) fn rest(&mut self, now: u64) -> Rest {
        if self.rounds == 0 {
            self.since = now;
        }
        self.rounds = self.rounds.saturating_add(1);
        let is_trusted = self.fruitless < FRUITLESS;
        match self.wait {
            Wait::Poll => Rest::Poll,
            _ if !self.can_block && self.rounds < SPIN_ROUNDS => Rest::Poll,
            _ if !self.can_block => self.sleep(LONGEST_SLEEP),
            _ if !is_trusted => self.sleep(FRUITLESS_MOST),
            Wait::Adaptive if now.wrapping_sub(self.since) < self.window => Rest::Poll,
            Wait::Moderated if self.rounds == 1 => Rest::Sleep(self.moderation),
            _ => Rest::Block,
        }
    }

    /// Returns a short sleep instead of a block, since a transmit queue is full.
    pub(crate) fn short_sleep(&mut self) -> Duration {
        match self.sleep(LONGEST_SLEEP) {
            Rest::Sleep(sleep) => sleep,
            Rest::Poll | Rest::Block => FIRST_SLEEP,
        }
    }

    fn sleep(&mut self, longest: Duration) -> Rest {
        let sleep = self.sleep.min(longest);
        self.sleep = (self.sleep * 2).min(longest);
        Rest::Sleep(sleep)
    }

    /// Records a block of so many TSC cycles, whether a descriptor or a ring ended it (`by_packets`), and
    /// whether a descriptor did (`by_descriptor`).
    pub(crate) fn woke(&mut self, blocked: u64, by_packets: bool, by_descriptor: bool) {
        let most = cycles(WINDOW_MOST, self.hz);
        if by_packets {
            self.window = match blocked < most {
                true => (self.window * 2).min(most),
                false => cycles(WINDOW_LEAST, self.hz),
            };
        }
        self.fruitless = if by_descriptor { self.fruitless.saturating_add(1) } else { 0 };
        self.rounds = 0;
    }
}

fn cycles(time: Duration, hz: u64) -> u64 {
    (hz as f64 * time.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources with numbers of packets, and the packets taken from each.
    struct Queues {
        waiting: Vec<u64>,
        taken: Vec<u64>,
    }

    impl Queues {
        fn new(waiting: &[u64]) -> Self {
            Self { waiting: waiting.to_vec(), taken: vec![0; waiting.len()] }
        }

        fn serve(&mut self, source: usize, most: usize) -> usize {
            let count = self.waiting[source].min(most as u64);
            self.waiting[source] -= count;
            self.taken[source] += count;
            count as usize
        }

        fn round(&mut self, turns: &mut RoundRobin, quotas: &[usize], budget: usize) -> usize {
            let sources = self.waiting.len();
            turns.round(self, (sources, budget), |_, source| quotas[source], Self::serve)
        }
    }

    /// The weighted max-min shares of a capacity, packet by packet: each packet is granted to the
    /// source with the smallest share for its weight among those that have more.
    fn fair(demands: &[u64], weights: &[usize], capacity: u64) -> Vec<u64> {
        let mut shares = vec![0u64; demands.len()];
        for _ in 0..capacity {
            let wants = (0..shares.len()).filter(|&source| shares[source] < demands[source]);
            let least = |&one: &usize, &other: &usize| {
                let (a, b) =
                    (shares[one] * weights[other] as u64, shares[other] * weights[one] as u64);
                a.cmp(&b)
            };
            let Some(next) = wants.min_by(least) else { break };
            shares[next] += 1;
        }
        shares
    }

    #[test]
    fn equal_quotas_share_evenly_and_the_order_is_no_advantage() {
        // The budget ends each round in the middle of a turn.
        let (mut queues, mut turns) = (Queues::new(&[1000; 3]), RoundRobin::default());
        let rounds: Vec<_> = (0..3).map(|_| queues.round(&mut turns, &[64; 3], 100)).collect();
        assert_eq!((rounds, &queues.taken), (vec![100; 3], &vec![128, 108, 64]));
        for _ in 0..3 {
            queues.round(&mut turns, &[64; 3], 100);
        }
        assert_eq!(queues.taken, [216, 192, 192]);
    }

    #[test]
    fn a_source_that_is_empty_has_its_turn_and_costs_none_of_the_budget() {
        let (mut queues, mut turns) = (Queues::new(&[0, 70, 0]), RoundRobin::default());
        assert_eq!(queues.round(&mut turns, &[64; 3], 512), 64);
        assert_eq!(queues.round(&mut turns, &[64; 3], 512), 6);
        assert_eq!(queues.round(&mut turns, &[64; 3], 512), 0);
        assert_eq!(Queues::new(&[]).round(&mut turns, &[], 512), 0);
    }

    #[test]
    fn fewer_sources_than_before_are_served_from_the_first_on() {
        let mut turns = RoundRobin { next: 7, left: 5 };
        let mut queues = Queues::new(&[10, 10]);
        assert_eq!(queues.round(&mut turns, &[4, 4], 512), 8);
        assert_eq!(queues.taken, [4, 4]);
    }

    proptest::proptest! {
        /// After any number of rounds each source has its weighted max-min share of all packets taken, give or
        /// take a turn; no round takes more than its budget, or less while there is more and turns are left.
        #[test]
        fn shares_are_max_min_fair(
            sources in proptest::collection::vec((0_u64..3000, 1_usize..200), 1..8),
            budget in 1_usize..600,
            rounds in 1_usize..60,
        ) {
            let (demands, quotas): (Vec<u64>, Vec<usize>) = sources.into_iter().unzip();
            let (mut queues, mut turns) = (Queues::new(&demands), RoundRobin::default());
            let mut all = 0;
            for _ in 0..rounds {
                let before = queues.waiting.clone();
                let found = queues.round(&mut turns, &quotas, budget);
                proptest::prop_assert!(found <= budget);
                let granted: usize =
                    before.iter().zip(&quotas).map(|(&has, &quota)| quota.min(has as usize)).sum();
                // The rest of a turn may be a source's only one in a round.
                let most = quotas.iter().max().copied().unwrap_or(0);
                proptest::prop_assert!(found + most >= granted.min(budget));
                all += found as u64;
            }
            let shares = fair(&demands, &quotas, all);
            for (source, (&taken, &share)) in queues.taken.iter().zip(&shares).enumerate() {
                let quota = quotas[source] as u64;
                let turn = 2 * quota;
                proptest::prop_assert!(
                    taken + turn >= share && taken <= share + turn,
                    "source {source} of {demands:?} by {quotas:?}, budget {budget}: {:?}, fair {shares:?}",
                    queues.taken
                );
            }
        }

        /// However small the budget, each source that has packets has had some after its part of rounds.
        #[test]
        fn no_source_starves(
            quotas in proptest::collection::vec(1_usize..300, 1..10),
            budget in 1_usize..100,
        ) {
            let (mut queues, mut turns) = (Queues::new(&vec![1 << 40; quotas.len()]), RoundRobin::default());
            let circle = quotas.iter().sum::<usize>().div_ceil(budget) + quotas.len();
            for _ in 0..circle {
                queues.round(&mut turns, &quotas, budget);
            }
            proptest::prop_assert!(queues.taken.iter().all(|&taken| taken > 0), "{:?}", queues.taken);
        }
    }

    fn idle(wait: Wait, can_block: bool) -> Idle {
        let mut idle = Idle::new();
        idle.set((wait, MODERATION), can_block);
        idle
    }

    #[test]
    fn polling_never_rests_and_interrupts_rest_at_once() {
        let mut poll = idle(Wait::Poll, true);
        assert!((0..10_000).all(|round| poll.rest(round << 30) == Rest::Poll));
        assert_eq!(idle(Wait::Interrupt, true).rest(0), Rest::Block);
    }

    #[test]
    fn moderated_sleeps_once_after_packets() {
        let mut idle = idle(Wait::Moderated, true);
        for _ in 0..3 {
            assert_eq!(idle.rest(0), Rest::Sleep(MODERATION));
            assert_eq!(idle.rest(0), Rest::Block);
            assert_eq!(idle.rest(0), Rest::Block);
            idle.found();
        }
        idle.set((Wait::Moderated, Duration::from_micros(7)), true);
        assert_eq!(idle.rest(0), Rest::Sleep(Duration::from_micros(7)));
    }

    #[test]
    fn the_window_follows_the_traffic() {
        let mut idle = idle(Wait::Adaptive, true);
        let (least, most) = (cycles(WINDOW_LEAST, idle.hz), cycles(WINDOW_MOST, idle.hz));
        let window = |idle: &mut Idle| {
            idle.found();
            assert_eq!(idle.rest(1000), Rest::Poll);
            (0..=most).find(|&later| idle.rest(1000 + later) == Rest::Block).unwrap()
        };
        assert_eq!(window(&mut idle), least);
        idle.woke(most - 1, true, true);
        assert_eq!(window(&mut idle), least * 2);
        (0..10).for_each(|_| idle.woke(0, true, false));
        assert_eq!(window(&mut idle), most);
        idle.woke(u64::MAX, false, false);
        assert_eq!(window(&mut idle), most, "an order says nothing of the traffic");
        idle.woke(most, true, true);
        assert_eq!(window(&mut idle), least);
    }

    #[test]
    fn a_source_without_a_descriptor_makes_it_sleep_shortly() {
        for wait in [Wait::Adaptive, Wait::Interrupt, Wait::Moderated] {
            let mut idle = idle(wait, false);
            let spins = (1..).take_while(|_| idle.rest(0) == Rest::Poll).count();
            assert_eq!(spins, SPIN_ROUNDS as usize - 1);
            let sleeps: Vec<_> = (0..6).map(|_| idle.rest(0)).collect();
            let micros = [4, 8, 16, 32, 50, 50];
            assert_eq!(sleeps, micros.map(|us| Rest::Sleep(Duration::from_micros(us))));
            idle.found();
            assert_eq!(idle.rest(0), Rest::Poll);
        }
    }

    #[test]
    fn a_descriptor_that_lies_is_not_trusted_until_packets_come() {
        let mut idle = idle(Wait::Interrupt, true);
        for _ in 0..FRUITLESS {
            assert_eq!(idle.rest(0), Rest::Block);
            idle.woke(0, true, true);
        }
        let sleeps: Vec<_> = (0..20).map(|_| idle.rest(0)).collect();
        assert_eq!(sleeps.last(), Some(&Rest::Sleep(FRUITLESS_MOST)));
        idle.found();
        assert_eq!(idle.rest(0), Rest::Block);
    }

    #[test]
    fn the_least_patient_port_decides() {
        let mut polling = Polling::default();
        let ids = [0, 1, 2].map(|number| PortId::new(number).unwrap());
        let wait = |polling: &Polling, ports: &[PortId]| polling.wait_of(ports.iter().copied());
        polling.wait = Wait::Interrupt;
        assert_eq!(wait(&polling, &[]), Wait::Interrupt);
        polling.ports[1].wait = Wait::Interrupt;
        assert_eq!(wait(&polling, &ids[1..2]), Wait::Interrupt);
        polling.ports[2].wait = Wait::Moderated;
        assert_eq!(wait(&polling, &ids[1..]), Wait::Interrupt);
        assert_eq!(wait(&polling, &ids[..2]), Wait::Adaptive);
        polling.ports[2].wait = Wait::Poll;
        assert_eq!(wait(&polling, &ids), Wait::Poll);
    }
}

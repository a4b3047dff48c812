//! Moves receive queues from busy forwarders to idle ones, and flows from busy queues to idle ones.
//!
//! Once a second the load of each queue is estimated: a forwarder's busy time, divided by the packets of its ports, and
//! evenly between queues of one port that it has. Queues move (see `wiring/moves.rs`) when in [`LOOKS`] looks in
//! sequence one forwarder is busy for more than [`BUSY`] of the time, and moving them would take at least [`GAIN`] from
//! it. Then nothing moves for a rest, which doubles with each move that soon follows another: traffic that changes
//! faster than queues move does not cause moves all the time.
//!
//! If no queue can move because a single one is too much, entries of the device's RSS table move from it to a queue of
//! the same port that a less busy forwarder has: so many that the loads would be equal if all entries were alike. They
//! are not (one flow may outweigh all others), so the loads are compared again after the rest.
//!
//! Packets of one queue of a port without such a table stay with one forwarder: `spread = "software"` divides them.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use control::config::Config;
use dataplane::port::{PortId, RssTable};

use super::super::ports::Ports;
use super::super::wiring::{Move, Wiring};
use super::Owner;
use super::load::Loads;

/// A forwarder that is less busy than this has time enough, in percent.
const BUSY: f64 = 60.0;

/// The least that a move takes from the busiest forwarder, in percent of its core.
const GAIN: f64 = 10.0;

/// Looks in sequence that find the same forwarder too busy.
const LOOKS: u32 = 3;

/// The shortest rest after a move.
const REST: Duration = Duration::from_secs(10);

/// The longest rest after a move.
const REST_MOST: Duration = Duration::from_secs(320);

/// A receive queue and the load that it causes.
#[derive(Clone, Debug, PartialEq)]
struct QueueLoad {
    port: PortId,
    queue: usize,
    forwarder: usize,
    /// Percent of a core.
    percent: f64,
    /// Forwarders that it may go to.
    ways: Vec<usize>,
}

/// The moves that take most from the busiest forwarder, one after the other. `busy`: percent, by forwarder.
fn plan(mut queues: Vec<QueueLoad>, mut busy: Vec<f64>) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for _ in 0..queues.len() {
        let all = busy.iter().copied().enumerate();
        let Some((busiest, most)) = all.max_by(|one, other| one.1.total_cmp(&other.1)) else {
            break;
        };
        let outcome = |place: usize, to: usize| {
            let QueueLoad { percent, .. } = queues[place];
            (most - percent).max(busy[to] + percent)
        };
        let own = (0..queues.len()).filter(|&place| queues[place].forwarder == busiest);
        let choices = own.flat_map(|place| queues[place].ways.iter().map(move |&to| (place, to)));
        let best = choices
            .filter(|&(_, to)| to != busiest)
            .map(|(place, to)| (outcome(place, to), place, to))
            .min_by(|one, other| one.0.total_cmp(&other.0));
        let Some((after, place, to)) = best else { break };
        if most < BUSY || after > most - GAIN {
            break;
        }
        let QueueLoad { port, queue, percent, .. } = queues[place];
        busy[busiest] -= percent;
        busy[to] += percent;
        queues[place].forwarder = to;
        match moves.iter_mut().find(|one| (one.port, one.queue) == (port, queue)) {
            Some(one) => one.to = to,
            None => moves.push(Move { port, queue, from: busiest, to }),
        }
    }
    moves.retain(|one| one.from != one.to);
    moves
}

/// Entries of a port's RSS table that go from one queue to another.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shift {
    port: PortId,
    from: usize,
    to: usize,
    /// The part of the entries of `from`, 0 to 1.
    part: f64,
}

/// The shift that takes most from the busiest forwarder. `busy`: percent, by forwarder; `has_table`: of which ports
/// entries may move.
fn plan_shift(
    queues: &[QueueLoad],
    busy: &[f64],
    has_table: impl Fn(PortId) -> bool,
) -> Option<Shift> {
    let of = |forwarder: usize| busy.get(forwarder).copied().unwrap_or_default();
    let all = busy.iter().copied().enumerate();
    let (busiest, most) = all.max_by(|one, other| one.1.total_cmp(&other.1))?;
    if most < BUSY {
        return None;
    }
    let own = queues.iter().filter(|one| one.forwarder == busiest && has_table(one.port));
    let pairs = own.flat_map(|from| {
        let of_port = queues.iter().filter(|one| one.port == from.port);
        of_port.filter(|one| one.forwarder != busiest).map(move |to| (from, to))
    });
    let percent = |&(from, to): &(&QueueLoad, &QueueLoad)| {
        ((most - of(to.forwarder)) / 2.0).min(from.percent)
    };
    let best = pairs.max_by(|one, other| percent(one).total_cmp(&percent(other)))?;
    let percent = percent(&best);
    let (from, to) = best;
    (percent >= GAIN).then_some(Shift {
        port: from.port,
        from: from.queue,
        to: to.queue,
        part: percent / from.percent,
    })
}

/// Returns the table after a shift, and the number of entries moved: at least one moves, and one stays. The choice
/// differs from one `attempt` to the next, so that a heavy flow is separated from the others.
fn shifted(table: &[u16], shift: &Shift, attempt: u64) -> Option<(Vec<u16>, usize)> {
    let (from, to) = (u16::try_from(shift.from).ok()?, u16::try_from(shift.to).ok()?);
    let mut own: Vec<_> = (0..table.len()).filter(|&place| table[place] == from).collect();
    let count = own.len();
    if count < 2 {
        return None;
    }
    own.rotate_left(attempt as usize % count);
    let moved = ((shift.part * count as f64).round() as usize).clamp(1, count - 1);
    let mut new = table.to_vec();
    // Evenly spaced: neighbouring entries of a fresh table are of neighbouring queues.
    for (number, place) in own.into_iter().enumerate() {
        if (number + 1) * moved / count > number * moved / count {
            new[place] = to;
        }
    }
    Some((new, moved))
}

/// The configuration leaves a port's table to the router.
fn has_even_table(config: &Config, port: PortId) -> bool {
    let rss = config.port(port).map(|port| port.queues.rss.as_ref());
    rss.is_some_and(|rss| rss.is_none_or(|rss| rss.table == RssTable::Even))
}

/// State of earlier looks and moves.
#[derive(Default)]
pub(super) struct Balance {
    /// Looks in sequence that found one too busy.
    looks: u32,
    rest: Duration,
    /// The last move.
    moved: Option<Instant>,
    /// Queues that have moved so far.
    pub(super) moves: u64,
    /// Entries of RSS tables that have moved so far.
    pub(super) entries: u64,
}

impl Balance {
    /// Returns true if it is time to move queues; `wanted`: there is a move to make.
    fn is_time(&mut self, wanted: bool, now: Instant) -> bool {
        if self.moved.is_some_and(|moved| now.duration_since(moved) < self.rest) {
            return false;
        }
        self.looks = if wanted { self.looks + 1 } else { 0 };
        self.looks >= LOOKS
    }

    fn has_moved(&mut self, queues: usize, now: Instant) {
        // A move soon after the rest of the one before.
        let soon = self.moved.is_some_and(|moved| now.duration_since(moved) < 2 * self.rest);
        self.rest = if soon { (2 * self.rest).min(REST_MOST) } else { REST };
        (self.looks, self.moved) = (0, Some(now));
        self.moves += queues as u64;
    }
}

/// Returns the load of each queue of these ports for its forwarder. Queues for control traffic stay where they are.
fn queue_loads(wiring: &Wiring, ports: &Ports, loads: &Loads, forwarders: usize) -> Vec<QueueLoad> {
    let of_port = |port: PortId| {
        let served = wiring.receivers(port);
        let free = wiring.is_movable(port);
        let to_forward = served.iter().enumerate().filter(move |(_, at)| **at < forwarders);
        to_forward.map(move |(queue, &forwarder)| {
            let beside = served.iter().filter(|&&other| other == forwarder).count();
            let part = loads.part_of(port, forwarder) / beside as f64;
            let near = wiring.is_near(port, forwarder);
            let may_go = |&to: &usize| free && (!near || wiring.is_near(port, to));
            let ways = (0..forwarders).filter(may_go).collect();
            QueueLoad { port, queue, forwarder, percent: loads.percent(forwarder) * part, ways }
        })
    };
    ports.iter().flat_map(|port| of_port(port.id)).collect()
}

impl Owner {
    /// Moves queues if it is time; to be called after each look at the loads.
    pub(super) async fn rebalance(&mut self) {
        let Some(wiring) = &self.forwarding.wiring else { return };
        let forwarders = wiring.forwarders();
        let busy: Vec<_> =
            (0..forwarders).map(|forwarder| self.forwarding.loads.percent(forwarder)).collect();
        let config = &self.configurations.current;
        if !config.forwarders.rebalance {
            self.forwarding.balance.looks = 0;
            return;
        }
        let queues = queue_loads(wiring, &self.devices.ports, &self.forwarding.loads, forwarders);
        let moves = plan(queues.clone(), busy.clone());
        let has_table = |port| wiring.spreads_by_device(port) && has_even_table(config, port);
        let shift = plan_shift(&queues, &busy, has_table).filter(|_| moves.is_empty());
        if !self.forwarding.balance.is_time(!moves.is_empty() || shift.is_some(), Instant::now()) {
            return;
        }
        match shift {
            Some(shift) => self.move_entries(shift, &busy).await,
            None => self.move_queues(moves, &busy).await,
        }
    }

    /// Moves entries of a table. A device without one, or whose queue has one entry left, is left in peace until the
    /// next rest is over.
    async fn move_entries(&mut self, shift: Shift, busy: &[f64]) {
        let Shift { port, from, to, .. } = shift;
        let Some(open) = self.devices.ports.iter().find(|open| open.id == port) else { return };
        let (device, name) = (open.port.clone(), open.name.clone());
        let table = shifted(&device.rss_table(), &shift, self.forwarding.balance.entries);
        let Some((table, count)) = table else {
            return self.forwarding.balance.has_moved(0, Instant::now());
        };
        let size = usize::from(device.descriptors().0);
        let write = || {
            device.set_rss_table(&table).map_err(|errno| anyhow!("{}: {errno}", device.driver()))
        };
        let outcome = self
            .with_wiring(async |wiring: &mut Wiring| {
                wiring.move_entries((port, from, size), write).await
            })
            .await;
        self.forwarding.balance.has_moved(0, Instant::now());
        let most = busy.iter().copied().fold(0.0, f64::max);
        match outcome {
            Ok(pause) => {
                self.forwarding.balance.entries += count as u64;
                tracing::info!(
                    "port \"{name}\": {count} entries of its RSS table go from receive queue {from}, whose forwarder is \
                     busy {most:.0} %, to {to}; it was not served for {} us",
                    pause.as_micros()
                );
            }
            Err(error) => {
                tracing::warn!("port \"{name}\": the RSS table stays as it is: {error:#}");
            }
        }
    }

    async fn move_queues(&mut self, moves: Vec<Move>, busy: &[f64]) {
        let outcome =
            self.with_wiring(async |wiring: &mut Wiring| wiring.move_queues(&moves).await).await;
        self.forwarding
            .balance
            .has_moved(if outcome.is_ok() { moves.len() } else { 0 }, Instant::now());
        match outcome {
            Ok(pause) => self.say_moved(&moves, busy, pause),
            Err(error) => tracing::warn!("queues stay with their forwarders: {error:#}"),
        }
    }

    fn say_moved(&self, moves: &[Move], busy: &[f64], pause: Duration) {
        for &Move { port, queue, from, to } in moves {
            let name = self
                .devices
                .ports
                .iter()
                .find(|open| open.id == port)
                .map_or("", |open| &open.name);
            let percent = |forwarder: usize| busy.get(forwarder).copied().unwrap_or_default();
            tracing::info!(
                "port \"{name}\": receive queue {queue} goes from forwarder {from} (busy {:.0} %) to forwarder {to} \
                 ({:.0} %); its port was not served for {} us",
                percent(from),
                percent(to),
                pause.as_micros()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u16) -> PortId {
        PortId::new(number).unwrap()
    }

    fn load(port: u16, forwarder: usize, percent: f64, ways: &[usize]) -> QueueLoad {
        QueueLoad { port: id(port), queue: 0, forwarder, percent, ways: ways.to_vec() }
    }

    fn busy(queues: &[QueueLoad], forwarders: usize) -> Vec<f64> {
        let mut busy = vec![0.0; forwarders];
        queues.iter().for_each(|queue| busy[queue.forwarder] += queue.percent);
        busy
    }

    #[test]
    fn a_queue_goes_where_it_takes_most_from_the_busiest() {
        let queues = vec![
            load(0, 0, 20.0, &[0, 1, 2]),
            load(1, 0, 40.0, &[0, 1, 2]),
            load(2, 0, 30.0, &[0, 1, 2]),
            load(3, 1, 30.0, &[0, 1, 2]),
        ];
        let busy = busy(&queues, 3);
        assert_eq!(plan(queues, busy), [Move { port: id(1), queue: 0, from: 0, to: 2 }]);
    }

    #[test]
    fn nothing_moves_without_need_gain_or_leave() {
        let all = [0, 1];
        for (queues, why) in [
            (vec![load(0, 0, 30.0, &all), load(1, 0, 25.0, &all)], "there is time enough"),
            (vec![load(0, 0, 100.0, &all)], "the other would have it all"),
            (vec![load(0, 0, 94.0, &all), load(1, 0, 6.0, &all)], "it would gain six percent"),
            (vec![load(0, 0, 50.0, &[0]), load(1, 0, 50.0, &[])], "they have to stay"),
        ] {
            let busy = busy(&queues, 2);
            assert_eq!(plan(queues, busy), [], "{why}");
        }
    }

    fn queue(queue: usize, forwarder: usize, percent: f64) -> QueueLoad {
        QueueLoad { queue, ..load(0, forwarder, percent, &[]) }
    }

    #[test]
    fn entries_go_to_the_queue_of_the_least_busy_so_that_both_have_as_much() {
        let queues = [queue(0, 0, 90.0), queue(1, 1, 40.0), queue(2, 2, 10.0)];
        let shift = Shift { port: id(0), from: 0, to: 2, part: 40.0 / 90.0 };
        assert_eq!(plan_shift(&queues, &[90.0, 40.0, 10.0], |_| true), Some(shift));
        assert_eq!(plan_shift(&queues, &[90.0, 40.0, 10.0], |_| false), None, "no table");
        assert_eq!(plan_shift(&queues, &[59.0, 0.0, 0.0], |_| true), None, "there is time enough");
        assert_eq!(plan_shift(&queues, &[90.0, 80.0, 75.0], |_| true), None, "seven percent");
        // The other port's queue is what keeps it busy.
        let small = [queue(0, 0, 5.0), queue(1, 1, 0.0), load(1, 0, 90.0, &[])];
        assert_eq!(plan_shift(&small, &[95.0, 0.0], |port| port == id(0)), None);
    }

    #[test]
    fn the_part_of_a_queue_s_entries_moves_and_one_stays() {
        let table: Vec<u16> = (0..128).map(|place| place % 2).collect();
        let shift = |part| Shift { port: id(0), from: 0, to: 1, part };
        for (part, count) in [(0.5, 32), (0.01, 1), (1.0, 63)] {
            let (new, moved) = shifted(&table, &shift(part), 0).unwrap();
            assert_eq!(moved, count);
            assert_eq!(new.iter().filter(|&&queue| queue == 0).count(), 64 - count);
            let changed = (0..128).filter(|&place| new[place] != table[place]);
            assert!(changed.clone().all(|place| table[place] == 0) && changed.count() == count);
        }
        let moved = |attempt| shifted(&table, &shift(0.1), attempt).unwrap().0;
        assert_ne!(moved(0), moved(1), "other entries");
        assert_eq!(shifted(&[1, 0, 1], &shift(0.5), 0), None, "the last one stays");
        assert_eq!(shifted(&[], &shift(0.5), 0), None);
    }

    #[test]
    fn rests_grow_while_moves_follow_each_other() {
        let (mut balance, start) = (Balance::default(), Instant::now());
        let mut moved = Vec::new();
        for second in 0..1000 {
            let now = start + Duration::from_secs(second);
            if balance.is_time(!(100..=900).contains(&second), now) {
                moved.push(second);
                balance.has_moved(1, now);
            }
        }
        assert_eq!(moved, [2, 14, 36, 78, 903, 915, 937, 979]);
        assert_eq!(balance.moves, 8);
    }

    #[test]
    fn a_look_without_need_begins_anew() {
        let (mut balance, now) = (Balance::default(), Instant::now());
        let times =
            [true, true, false, true, true, true].map(|wanted| balance.is_time(wanted, now));
        assert_eq!(times, [false, false, false, false, false, true]);
    }

    proptest! {
        #[test]
        fn moves_lower_the_maximum_and_each_queue_stays_one(
            queues in prop::collection::vec((0usize..4, 0.0..40.0f64, 0usize..16), 0..12)
        ) {
            let queues: Vec<_> = (0..).zip(queues).map(|(port, (forwarder, percent, ways))| {
                let ways: Vec<_> = (0..4).filter(|way| ways >> way & 1 == 1).collect();
                load(port, forwarder, percent, &ways)
            }).collect();
            let before = busy(&queues, 4);
            let moves = plan(queues.clone(), before.clone());
            let mut after = queues.clone();
            for one in &moves {
                let queue = &mut after[one.port.index()];
                prop_assert_eq!(queue.forwarder, one.from);
                prop_assert!(queue.ways.contains(&one.to));
                queue.forwarder = one.to;
            }
            let most = |queues: &[QueueLoad]| busy(queues, 4).into_iter().fold(0.0, f64::max);
            let (first, last) = (most(&queues), most(&after));
            prop_assert!(moves.is_empty() || first >= BUSY);
            // Two that are equally busy are relieved one after the other, or one of them alone.
            prop_assert!(last <= first + 1e-9);
            let unique = |other: &&Move| moves.iter().filter(|one| one.port == other.port).count() == 1;
            prop_assert!(moves.iter().all(|one| unique(&one)));
            // No single move is left that would have been worth it.
            let rest = busy(&after, 4);
            let most = (0..4).max_by(|&a, &b| rest[a].total_cmp(&rest[b])).unwrap_or(0);
            if rest[most] >= BUSY && moves.len() < queues.len() {
                for queue in after.iter().filter(|queue| queue.forwarder == most) {
                    for &to in queue.ways.iter().filter(|&&to| to != most) {
                        let then = (rest[most] - queue.percent).max(rest[to] + queue.percent);
                        prop_assert!(then > rest[most] - GAIN - 1e-9);
                    }
                }
            }
        }
    }
}

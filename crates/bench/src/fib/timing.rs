//! Measurement of lookups: turns, rounds, and the treatment of disturbances.
//!
//! In a *turn* one structure, by one of its methods, looks up one pattern's addresses: once to
//! bring its table into the caches, once timed. The timed pass is divided into slices of 2,048
//! lookups, and the turn's figure is the median slice, so that an interruption by another process
//! affects slices and not the turn. In a *round* everything takes its turn; over the rounds the
//! median and the minimum are reported.
//!
//! The `shared` pattern works on packets before each batch ([`PacketWork`]) and times the batch
//! alone, between ordered readings of the clock whose own cost is subtracted.

use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::Range;

use anyhow::{Context, Result};
use dpdk::{Mbuf, Mempool, MempoolConfig};

use super::contender::{BATCH, Contender};
use crate::meter::{Meter, median};
use crate::workload::pattern::{Addresses, Pattern};
use crate::workload::routes::Family;

/// Lookups of a slice.
const SLICE: usize = 2048;
/// Slower structures look up fewer addresses a turn, so that a turn takes about this many cycles.
const TURN_CYCLES: u64 = 150_000_000;
/// Lookups of a turn of the `shared` pattern, whose packet work takes most of the time.
const SHARED_LOOKUPS: usize = 1 << 17;
/// Lookups that bring the table into the outer caches before such a turn, in lengths of a turn.
const WARM_UP: usize = 8;

/// Measurements of one lookup method with one pattern.
#[derive(Debug)]
pub struct Series {
    /// Index of the structure.
    pub contender: usize,
    /// Index of the method in the structure's list.
    pub method: usize,
    /// The pattern.
    pub pattern: Pattern,
    /// Lookups of a turn.
    lookups: usize,
    /// Cycles per lookup of each round.
    pub cycles: Vec<f64>,
    /// Instructions per lookup of each round, if the machine counts them.
    pub instructions: Vec<f64>,
    /// Mispredicted branches per lookup of each round, if the machine counts them.
    pub branch_misses: Vec<f64>,
}

/// Measures every method of every structure with every pattern by turns, `rounds` times.
pub fn measure<A: Family>(
    contenders: &mut [Box<dyn Contender<A>>],
    patterns: &[(Pattern, Addresses<A>)],
    rounds: usize,
    work: &mut PacketWork,
) -> Result<Vec<Series>> {
    let mut series = plan(contenders, patterns)?;
    let mut meter = Meter::new();
    for round in 0..rounds {
        for at in there_and_back(series.len(), round) {
            let series = &mut series[at];
            let (_, addresses) = patterns
                .iter()
                .find(|(pattern, _)| *pattern == series.pattern)
                .context("every series has its addresses")?;
            let contender = &mut *contenders[series.contender];
            contender.select(series.method)?;
            let range = part(addresses.len(), series.lookups, round);
            match series.pattern {
                Pattern::Shared => {
                    series.cycles.push(shared_turn(contender, addresses, range, work));
                }
                _ => turn(contender, addresses, range, &mut meter, series),
            }
        }
    }
    Ok(series)
}

/// Returns the order of a round: even rounds go forward, odd ones backward, so that none always
/// follows the one that leaves the caches in the best or the worst state for it.
fn there_and_back(turns: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..turns).map(move |at| if round.is_multiple_of(2) { at } else { turns - 1 - at })
}

/// Returns the turns of a round. Adjacent turns look up the same pattern, so that ratios between
/// structures come from the same moment.
fn plan<A: Family>(
    contenders: &mut [Box<dyn Contender<A>>],
    patterns: &[(Pattern, Addresses<A>)],
) -> Result<Vec<Series>> {
    let mut series = Vec::new();
    for (pattern, addresses) in patterns {
        for (index, contender) in contenders.iter_mut().enumerate() {
            for method in 0..contender.methods().len() {
                contender.select(method)?;
                let mut lookups = affordable(&mut **contender, addresses);
                if *pattern == Pattern::Shared {
                    lookups = lookups.min(SHARED_LOOKUPS);
                }
                series.push(Series {
                    contender: index,
                    method,
                    pattern: *pattern,
                    lookups,
                    cycles: Vec::new(),
                    instructions: Vec::new(),
                    branch_misses: Vec::new(),
                });
            }
        }
    }
    Ok(series)
}

/// Returns the number of addresses that a structure can look up in a turn: all, if it is fast.
fn affordable<A: Family>(contender: &mut dyn Contender<A>, addresses: &Addresses<A>) -> usize {
    let trial = SLICE.min(addresses.len());
    let start = dpdk::tsc();
    contender.lookup(addresses, 0..trial);
    let cycles = (dpdk::tsc() - start).max(1);
    let lookups = TURN_CYCLES.saturating_mul(trial as u64) / cycles;
    let whole_slices = lookups as usize / SLICE * SLICE;
    whole_slices.max(SLICE).min(addresses.len())
}

/// Returns the part of the addresses that a round looks up: each round the next.
fn part(all: usize, lookups: usize, round: usize) -> Range<usize> {
    let parts = (all / lookups.max(1)).max(1);
    let start = round % parts * lookups;
    start..(start + lookups).min(all)
}

/// Makes one warm-up pass and one timed pass.
fn turn<A: Family>(
    contender: &mut dyn Contender<A>,
    addresses: &Addresses<A>,
    range: Range<usize>,
    meter: &mut Meter,
    series: &mut Series,
) {
    contender.lookup(addresses, range.clone());
    let mut slices = Vec::with_capacity(range.len() / SLICE + 1);
    let cost = meter.measure(|| {
        for start in range.clone().step_by(SLICE) {
            let slice = start..(start + SLICE).min(range.end);
            let lookups = slice.len() as f64;
            let before = dpdk::tsc();
            contender.lookup(addresses, slice);
            slices.push((dpdk::tsc() - before) as f64 / lookups);
        }
        range.len() as u64
    });
    series.cycles.push(middle(slices));
    series.instructions.extend(cost.instructions);
    series.branch_misses.extend(cost.branch_misses);
}

/// Times batches with packet work between them; returns the median over slices of the batches'
/// mean.
fn shared_turn<A: Family>(
    contender: &mut dyn Contender<A>,
    addresses: &Addresses<A>,
    range: Range<usize>,
    work: &mut PacketWork,
) -> f64 {
    contender.lookup(addresses, 0..addresses.len().min(range.len() * WARM_UP));
    let overhead = clock_overhead();
    let (mut slices, mut spent, mut done) = (Vec::new(), 0.0, 0);
    for start in range.clone().step_by(BATCH) {
        let batch = start..(start + BATCH).min(range.end);
        done += batch.len();
        work.touch();
        // A router has just read the addresses from the packets.
        addresses.read(batch.clone());
        let before = dpdk::tsc_ordered();
        contender.lookup(addresses, batch);
        spent += (dpdk::tsc_ordered() - before) as f64 - overhead;
        if done >= SLICE || start + BATCH >= range.end {
            slices.push(spent / done as f64);
            (spent, done) = (0.0, 0);
        }
    }
    // In the first quarter the caches are not yet in the state that packets leave.
    slices.drain(..slices.len() / 4);
    middle(slices)
}

/// Returns the cycles between two ordered readings of the clock with nothing between them.
fn clock_overhead() -> f64 {
    let pair = |_| {
        let before = dpdk::tsc_ordered();
        (dpdk::tsc_ordered() - before) as f64
    };
    middle((0..1001).map(pair).collect())
}

/// Returns the median of unsorted values; NaN if there are none.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    median(&values).unwrap_or(f64::NAN)
}

/// A router's work on packets between two lookups, in its effect on caches.
///
/// Each batch has 64 packet buffers, of 16,384 that are used by turns like those of a NIC's rings:
/// of each, the descriptor and the first two cache lines of the packet are read, and the Ethernet
/// header is rewritten.
pub struct PacketWork {
    packets: VecDeque<Mbuf>,
}

impl PacketWork {
    /// Number of buffers, used by turns.
    const BUFFERS: usize = 16_384;
    /// Packets between two batches of lookups.
    const PACKETS: usize = 64;
    /// Megabytes of DPDK's memory taken by the buffers.
    pub const MEGABYTES: usize = 16_384 * 2560 / 1_000_000 + 1;

    /// Allocates the buffers.
    pub fn new(eal: &dpdk::Eal) -> Result<Self> {
        let config = MempoolConfig {
            name: "bench".into(),
            count: Self::BUFFERS,
            cache: 0,
            data_room: 2048,
            node: None,
        };
        let pool = Mempool::new(eal, &config)?;
        let packets: Option<_> = (0..Self::BUFFERS).map(|_| pool.copy_of(&[0; 128])).collect();
        Ok(Self { packets: packets.context("a new pool has all its packets")? })
    }

    /// Works on the next packets.
    fn touch(&mut self) {
        for _ in 0..Self::PACKETS {
            let Some(mut packet) = self.packets.pop_front() else { return };
            let data = packet.data_mut();
            if let [first, .., last] = data {
                *first = first.wrapping_add(black_box(*last));
            }
            self.packets.push_back(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fib::Algorithm;

    use super::*;
    use crate::fib::contender::House;
    use crate::workload::pattern::addresses;

    #[test]
    fn parts_come_by_turns_and_stay_inside() {
        assert_eq!(part(10_000, 10_000, 3), 0..10_000);
        assert_eq!(part(10_000, 4000, 0), 0..4000);
        assert_eq!(part(10_000, 4000, 1), 4000..8000);
        assert_eq!(part(10_000, 4000, 2), 0..4000);
    }

    #[test]
    fn odd_rounds_go_back() {
        assert_eq!(there_and_back(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(there_and_back(3, 1).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn the_middle_ignores_a_disturbed_slice() {
        assert_eq!(middle(vec![7.0, 900.0, 6.0, 7.5, 6.5]), 7.0);
        assert!(middle(Vec::new()).is_nan());
    }

    #[test]
    fn every_way_takes_its_turn_in_every_round() {
        let routes = fib::synthetic::ipv4(500, 20);
        let readers = dpdk::qsbr::Qsbr::new(1);
        let mut contenders: Vec<Box<dyn Contender<Ipv4Addr>>> = Vec::new();
        for algorithm in [Algorithm::Poptrie, Algorithm::Reference] {
            let mut house = House::new(algorithm, &readers).unwrap();
            house.build(&routes).unwrap();
            contenders.push(Box::new(house));
        }
        let patterns = [Pattern::Random, Pattern::Shared]
            .map(|pattern| (pattern, addresses(pattern, &routes, 3 * SLICE + 5)));
        let mut work = PacketWork { packets: VecDeque::new() };
        let all = measure(&mut contenders, &patterns, 5, &mut work).unwrap();
        let turns: Vec<_> =
            all.iter().map(|series| (series.contender, series.method, series.pattern)).collect();
        let (random, shared) = (Pattern::Random, Pattern::Shared);
        let expected = [
            (0, 0, random),
            (0, 1, random),
            (1, 0, random),
            (0, 0, shared),
            (0, 1, shared),
            (1, 0, shared),
        ];
        assert_eq!(turns, expected);
        for series in &all {
            assert_eq!(series.cycles.len(), 5);
            assert!(series.cycles.iter().all(|cycles| cycles.is_finite()), "{series:?}");
        }
        let of = |at: usize| all[at].cycles.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(of(2) > 3.0 * of(0), "the reference is slow: {} and {}", of(2), of(0));
    }
}

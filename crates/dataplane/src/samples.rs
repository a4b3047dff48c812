//! Samples of received packets for exporters: one of so many, at random, of chosen ports.
//!
//! ```text
//!   port --> sample-in --> the graph
//!               |
//!               +--> a Stock of records --> the exporter's thread
//! ```
//!
//! A [`Sampling`] has a name, by which its exporter finds its [`Stock`]. The number of packets between two samples is
//! random with a geometric distribution, so each packet is sampled with the same probability, independently of all
//! others; a forwarder decides once for each sample and only counts down in between. The settings are those of graphs
//! that are made; stocks stay when graphs are exchanged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::batch::Batch;
use crate::counters::Counter;
use crate::features::Feature;
use crate::lock::lock;
use crate::mask::Mask;
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::records::{Records, keep};
use crate::vlan::{Tag, TagProtocol};

/// Ports with samples ask for the step `sample-in` by this.
pub const SAMPLES: Feature = Feature::number("samples", 15);

/// Most bytes of a frame that a sample has.
pub const KEEP_MOST: usize = 256;

/// Records of a stock: samples of a tenth of a second at 40,000 a second.
const RECORDS: usize = 4096;

/// The bytes of a frame in front of its first tag.
const ADDRESSES: usize = wire::ethernet::ADDRESSES_LEN;

/// A setting of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Its name.
    pub name: String,
    /// The ports whose packets are sampled.
    pub ports: PortSet,
    /// One of so many packets is, from 1 on.
    pub rate: u32,
    /// Bytes of each frame that are kept, at most [`KEEP_MOST`].
    pub keep: usize,
}

/// A sampled packet.
#[derive(Debug)]
pub struct Sample {
    /// The port that received it.
    pub port: PortId,
    /// One of so many packets was sampled.
    pub rate: u32,
    /// The length of the frame, with a tag that the device removed.
    pub length: usize,
    /// Its first bytes.
    pub frame: Vec<u8>,
}

/// Counters of a forwarder for a sampling.
struct Counts {
    /// Packets that could have been sampled, by port.
    seen: [Counter; MAX_PORTS],
    /// Sampled ones.
    sampled: Counter,
}

impl Default for Counts {
    fn default() -> Self {
        Self { seen: std::array::from_fn(|_| Counter::default()), sampled: Counter::default() }
    }
}

/// The counters in use, and the sums of those that were.
struct AllCounts {
    past: Counts,
    live: Vec<Arc<Counts>>,
}

/// The samples of a sampling, whatever graphs forwarders have.
pub struct Stock {
    /// The records.
    pub records: Records<Sample>,
    counts: Mutex<AllCounts>,
}

impl Default for Stock {
    fn default() -> Self {
        let record = || Sample {
            port: PortId::FIRST,
            rate: 1,
            length: 0,
            frame: Vec::with_capacity(KEEP_MOST),
        };
        let counts = AllCounts { past: Counts::default(), live: Vec::new() };
        Self { records: Records::new(RECORDS, record), counts: Mutex::new(counts) }
    }
}

impl Stock {
    /// Returns the number of packets of a port that could have been sampled.
    pub fn seen(&self, port: PortId) -> u64 {
        self.sum(|counts| &counts.seen[port.index()])
    }

    /// Returns the number of samples taken, those lost for lack of a record included.
    pub fn sampled(&self) -> u64 {
        self.sum(|counts| &counts.sampled)
    }

    fn sum(&self, of: impl Fn(&Counts) -> &Counter) -> u64 {
        let AllCounts { past, live } = &*lock(&self.counts);
        of(past).get() + live.iter().map(|counts| of(counts).get()).sum::<u64>()
    }

    /// Returns counters for a forwarder.
    fn join(&self) -> Arc<Counts> {
        let AllCounts { past, live } = &mut *lock(&self.counts);
        for retired in live.extract_if(.., |counts| Arc::strong_count(counts) == 1) {
            past.sampled.add(retired.sampled.get());
            past.seen.iter().zip(&retired.seen).for_each(|(sum, seen)| sum.add(seen.get()));
        }
        let counts = Arc::<Counts>::default();
        live.push(counts.clone());
        counts
    }
}

/// The samplings of graphs that are being made, and all stocks.
#[derive(Default)]
pub struct SampleTable {
    current: Mutex<Vec<Sampling>>,
    stocks: Mutex<BTreeMap<String, Arc<Stock>>>,
}

impl SampleTable {
    /// Sets the samplings of graphs that are made from now on.
    pub fn set(&self, samplings: Vec<Sampling>) {
        *lock(&self.current) = samplings;
    }

    /// Returns the samples of the sampling with this name.
    pub fn stock(&self, name: &str) -> Arc<Stock> {
        lock(&self.stocks).entry(name.to_owned()).or_default().clone()
    }

    /// Returns a sampler for a forwarder of each sampling.
    pub(crate) fn samplers(&self, seed: u64) -> Vec<Sampler> {
        let current = lock(&self.current).clone();
        let sampler = |(number, sampling): (u64, Sampling)| {
            let stock = self.stock(&sampling.name);
            Sampler::new(sampling, stock, fastrand::Rng::with_seed(seed.wrapping_add(number)))
        };
        (0..).zip(current).map(sampler).collect()
    }
}

/// Samples the packets of a forwarder.
pub(crate) struct Sampler {
    sampling: Sampling,
    stock: Arc<Stock>,
    counts: Arc<Counts>,
    random: fastrand::Rng,
    /// Packets before the next sample.
    skip: u32,
}

impl Sampler {
    fn new(sampling: Sampling, stock: Arc<Stock>, random: fastrand::Rng) -> Self {
        let mut sampler = Self { sampling, counts: stock.join(), stock, random, skip: 0 };
        sampler.skip = sampler.next();
        sampler
    }

    /// Returns the number of packets before a sample, if each is sampled with probability `1 / rate`.
    fn next(&mut self) -> u32 {
        let (chance, missed) = (1.0 / f64::from(self.sampling.rate), 1.0 - self.random.f64());
        // Saturates.
        (missed.ln() / (-chance).ln_1p()) as u32
    }

    /// Samples some of a port's packets.
    #[inline]
    pub(crate) fn sample(&mut self, batch: &mut Batch, packets: Mask, port: PortId) {
        if !self.sampling.ports.contains(port) {
            return;
        }
        let count = packets.count();
        self.counts.seen[port.index()].add(count.into());
        if self.skip >= count {
            self.skip -= count;
            return;
        }
        self.sample_some(batch, packets, port);
    }

    /// Samples at least one of the packets.
    #[cold]
    fn sample_some(&mut self, batch: &mut Batch, packets: Mask, port: PortId) {
        for slot in packets.slots() {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.skip = self.next();
            self.take(batch, slot, port);
        }
    }

    fn take(&self, batch: &mut Batch, slot: usize, port: PortId) {
        self.counts.sampled.add(1);
        let Some(mut record) = self.stock.records.free() else { return };
        let (removed, len) = (batch.burst.removed_tag(slot), batch.len(slot));
        let (first, rest) = batch.frame_and_rest(slot);
        let (addresses, behind) = first.split_at(ADDRESSES.min(first.len()));
        // The kind of a removed tag is unknown.
        let tag = removed.map(|control| {
            let [a, b, ..] = Tag { protocol: TagProtocol::Dot1q, id: 0, priority: 0 }.bytes();
            let [c, d] = control.to_be_bytes();
            [a, b, c, d]
        });
        let tag: &[u8] = tag.as_ref().map_or(&[], |tag| tag);
        let Sample { frame, .. } = &mut *record;
        frame.clear();
        let parts = [addresses, tag, behind].into_iter().chain(rest);
        keep(frame, self.sampling.keep, parts);
        (record.port, record.rate, record.length) = (port, self.sampling.rate, len + tag.len());
        self.stock.records.put(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, batch_of};

    fn table(samplings: &[(&str, u32, usize)]) -> SampleTable {
        let table = SampleTable::default();
        let sampling = |&(name, rate, keep): &(&str, u32, usize)| Sampling {
            name: name.to_owned(),
            ports: [PortId::FIRST].into_iter().collect(),
            rate,
            keep,
        };
        table.set(samplings.iter().map(sampling).collect());
        table
    }

    fn run(samplers: &mut [Sampler], frames: &[Vec<u8>], port: PortId) {
        let mut batch = batch_of(frames);
        let packets = batch.packets();
        samplers.iter_mut().for_each(|sampler| sampler.sample(&mut batch, packets, port));
    }

    fn taken(stock: &Stock) -> Vec<(usize, Vec<u8>)> {
        let next = || {
            let record = stock.records.take()?;
            let found = (record.length, record.frame.clone());
            stock.records.give_back(record);
            Some(found)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn each_packet_has_the_same_chance() {
        let (table, frames) = (table(&[("a", 10, 64)]), vec![FrameBuilder::ip4().build(); 61]);
        let (mut samplers, stock) = (table.samplers(7), table.stock("a"));
        let mut at = [0_u32; 61];
        for _ in 0..2000 {
            let mut batch = batch_of(&frames);
            (0..frames.len()).for_each(|slot| batch.head_mut(slot)[0] = slot as u8);
            let packets = batch.packets();
            samplers[0].sample(&mut batch, packets, PortId::FIRST);
            taken(&stock).iter().for_each(|(_, frame)| at[usize::from(frame[0])] += 1);
        }
        let (all, of_one) = (122_000.0_f64, 2000.0_f64);
        let within =
            |count: u64, of: f64| (count as f64 - of / 10.0).abs() < 6.0 * (of * 0.1 * 0.9).sqrt();
        assert!(within(stock.sampled(), all), "{}", stock.sampled());
        assert!(at.iter().all(|&count| within(count.into(), of_one)), "{at:?}");
        assert_eq!((stock.seen(PortId::FIRST), stock.records.lost()), (122_000, 0));
    }

    #[test]
    fn a_sample_has_the_first_bytes_and_the_removed_tag() {
        let frame = FrameBuilder::ip4().udp(1, 2, &[7; 400]).build();
        let table = table(&[("a", 1, 100), ("b", 1, KEEP_MOST)]);
        let mut samplers = table.samplers(1);
        let mut batch = batch_of(&[frame.clone(), frame.clone()]);
        batch.burst.say_removed(1, 0x6005);
        for sampler in &mut samplers {
            sampler.sample(&mut batch, Mask(0b11), PortId::FIRST);
        }
        let tagged = [&frame[..12], &[0x81, 0, 0x60, 5], &frame[12..]].concat();
        for (name, keep) in [("a", 100), ("b", KEEP_MOST)] {
            let expected =
                [(frame.len(), frame[..keep].to_vec()), (tagged.len(), tagged[..keep].to_vec())];
            assert_eq!(taken(&table.stock(name)), expected);
        }
    }

    #[test]
    fn stocks_are_bounded_and_outlive_their_samplers() {
        let (table, frames) = (table(&[("a", 1, 64)]), vec![vec![0; 60]; 64]);
        let (mut samplers, stock) = (table.samplers(1), table.stock("a"));
        for _ in 0..RECORDS / 64 + 1 {
            run(&mut samplers, &frames, PortId::FIRST);
        }
        assert_eq!((stock.records.waiting(), stock.records.lost()), (RECORDS, 64));
        drop(samplers);
        let mut samplers = table.samplers(2);
        // Another port's packets.
        run(&mut samplers, &frames, PortId::new(1).unwrap());
        assert_eq!(taken(&stock).len(), RECORDS);
        run(&mut samplers, &frames[..1], PortId::FIRST);
        assert_eq!((taken(&stock).len(), stock.sampled()), (1, (RECORDS + 65) as u64));
        assert_eq!(stock.seen(PortId::new(1).unwrap()), 0);
    }
}

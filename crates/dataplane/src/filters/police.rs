//! Policing of a rule's traffic: one token bucket, or one per source; or two, for three colours (RFC 2697, RFC
//! 2698, both colour-blind and colour-aware).
//!
//! A bucket is the time at which it would be full again (the generic cell rate algorithm, ITU-T I.371 annex A),
//! so that taking from it is one exchange of a word, and a full bucket is the same as an unused one. That
//! bounds the memory of rates by source: a table has room for [`SourceLengths::most`] buckets; a new source
//! replaces a full bucket of its line or, if none is full, the one nearest to full. An attacker with more sources
//! than that gets a burst for each, as any new source does; sources that stay below their rate lose nothing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Mark;
use crate::bucket;
use crate::flow::fold;

/// The rate limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Police {
    /// Packets, or bytes of IP packets, per second.
    pub rate: u64,
    /// Packets or bytes at once, at least 1.
    pub burst: u64,
    /// True if bytes are counted.
    pub bytes: bool,
    /// Lengths of sources with a rate each; `None`: all packets of the rule share it.
    pub per_source: Option<SourceLengths>,
    /// A second burst that classifies packets above the first; `None`: these are dropped.
    pub colours: Option<Colours>,
}

/// The second bucket of a three-colour meter, and the treatment of its colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colours {
    /// The second bucket.
    pub meter: Meter,
    /// The mark of yellow packets.
    pub yellow: Mark,
    /// The mark of red packets; `None`: they are dropped.
    pub red: Option<Mark>,
    /// The colours with which packets arrive, in colour-aware mode; `None`: colour-blind.
    pub aware: Option<Precolours>,
}

/// Colours of arriving packets, by DSCP (RFC 2697 2, RFC 2698 2); all others are green.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precolours {
    yellow: u64,
    red: u64,
}

impl Precolours {
    /// The drop precedences of assured forwarding (RFC 2597 6): `afx2` is yellow, `afx3` red.
    pub const ASSURED: Self = Self {
        yellow: 1 << 12 | 1 << 20 | 1 << 28 | 1 << 36,
        red: 1 << 14 | 1 << 22 | 1 << 30 | 1 << 38,
    };

    /// Returns those of yellow and red DSCPs, each of 0 to 63; `None`: one is in both lists.
    pub fn new(yellow: &[u8], red: &[u8]) -> Option<Self> {
        let bits = |list: &[u8]| list.iter().fold(0, |bits, &dscp| bits | 1u64 << (dscp & 63));
        let (yellow, red) = (bits(yellow), bits(red));
        (yellow & red == 0).then_some(Self { yellow, red })
    }

    #[inline]
    fn of(self, dscp: u8) -> Colour {
        match (self.yellow >> (dscp & 63) & 1, self.red >> (dscp & 63) & 1) {
            (_, 1) => Colour::Red,
            (1, _) => Colour::Yellow,
            _ => Colour::Green,
        }
    }
}

/// As `aware` for those of assured forwarding, else with their DSCPs: `aware yellow 10,12 red 14`.
impl fmt::Display for Precolours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aware")?;
        if *self == Self::ASSURED {
            return Ok(());
        }
        for (name, bits) in [("yellow", self.yellow), ("red", self.red)] {
            let own = (0..64).filter(|dscp| bits >> dscp & 1 == 1);
            let own: Vec<String> = own.map(|dscp| dscp.to_string()).collect();
            if !own.is_empty() {
                write!(f, " {name} {}", own.join(","))?;
            }
        }
        Ok(())
    }
}

/// The second bucket of a meter with three colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meter {
    /// RFC 2697: a burst, in packets or bytes, filled by the overflow of the first bucket.
    SingleRate {
        /// EBS.
        excess: u64,
    },
    /// RFC 2698: a bucket with a rate of its own, which every packet takes from.
    TwoRates {
        /// PIR, in packets or bytes per second; at least the rate.
        peak: u64,
        /// PBS, in packets or bytes.
        burst: u64,
    },
}

/// A meter's colour of a packet (RFC 2697 3, RFC 2698 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Within the rate and its burst.
    Green = 0,
    /// Within the second bucket.
    Yellow = 1,
    /// Above both.
    Red = 2,
}

impl Police {
    /// Returns true if packets of this colour are dropped.
    pub(super) fn drops(&self, colour: Colour) -> bool {
        colour == Colour::Red && self.colours.is_none_or(|colours| colours.red.is_none())
    }

    /// The colour of a packet as it arrives; `dscp` is asked for in colour-aware mode only.
    #[inline]
    pub(super) fn precolour(&self, dscp: impl FnOnce() -> u8) -> Colour {
        let aware = self.colours.and_then(|colours| colours.aware);
        aware.map_or(Colour::Green, |aware| aware.of(dscp()))
    }

    /// The mark of packets of this colour.
    pub(super) fn mark(&self, colour: Colour) -> Mark {
        match (self.colours, colour) {
            (None, _) | (_, Colour::Green) => Mark::NONE,
            (Some(of), Colour::Yellow) => of.yellow,
            (Some(of), Colour::Red) => of.red.unwrap_or_default(),
        }
    }
}

/// Sources of a rule for each of which there is room, by default: 4 MiB.
pub const SOURCES: u32 = 1 << 18;

/// The lengths of the source prefixes that count as one source, and the number of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLengths {
    /// Of 32.
    pub ip4: u8,
    /// Of 128.
    pub ip6: u8,
    /// Sources for which there is room, a power of two.
    pub most: u32,
}

impl SourceLengths {
    /// Bytes of a table for so many sources.
    pub fn bytes(self) -> u64 {
        u64::from(self.most) / WAYS as u64 * size_of::<Line>() as u64
    }
}

/// Hosts of IPv4, networks of IPv6: a host can use any address of its network.
impl Default for SourceLengths {
    fn default() -> Self {
        Self { ip4: 32, ip6: 64, most: SOURCES }
    }
}

/// As configurations write it: `1000 pps, burst 100`.
impl fmt::Display for Police {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, burst, bytes, per_source, colours } = self;
        let sources = |most: u32| match most {
            SOURCES => String::new(),
            _ => format!(" of {most}"),
        };
        let per = per_source
            .map(|of| format!(" per source/{}/{}{}", of.ip4, of.ip6, sources(of.most)))
            .unwrap_or_default();
        let amount = |of: u64| if *bytes { format!("{} bit", of * 8) } else { of.to_string() };
        let speed = |of: u64| if *bytes { amount(of) } else { format!("{of} pps") };
        write!(f, "{}{per}, burst {}", speed(*rate), amount(*burst))?;
        let Some(Colours { meter, yellow, red, aware }) = colours else { return Ok(()) };
        match *meter {
            Meter::SingleRate { excess } => write!(f, ", excess {}", amount(excess))?,
            Meter::TwoRates { peak, burst } => {
                write!(f, ", peak {}, peak burst {}", speed(peak), amount(burst))?;
            }
        }
        let yellow = if *yellow == Mark::NONE { "pass".to_owned() } else { yellow.to_string() };
        write!(
            f,
            ", yellow {yellow}, red {}",
            red.map_or("drop".to_owned(), |red| red.to_string())
        )?;
        aware.map_or(Ok(()), |aware| write!(f, ", {aware}"))
    }
}

/// The meter of a rule, shared by all forwarders.
pub(super) struct Policer {
    rate: Rate,
    second: Option<Second>,
    buckets: Buckets,
}

enum Buckets {
    One(Bucket),
    BySource(Sources),
}

/// The times at which a rule's bucket, or a source's, is full again, and the second one of a meter
/// with colours: the peak's (RFC 2698), or both of a single rate (RFC 2697).
#[derive(Default)]
struct Bucket {
    full_at: AtomicU64,
    second: AtomicU64,
}

/// The second bucket's depth, and its rate if it has one of its own.
enum Second {
    /// The overflow of the first bucket fills this one, so both together are a bucket of that rate whose
    /// deficit is the sum of theirs.
    Shared { depth: u64 },
    /// A bucket with its own rate.
    Peak(Rate),
}

impl Policer {
    /// `tsc_hz`: cycles of the time-stamp counter per second; `seed`: a random number of the
    /// router.
    pub fn new(police: Police, tsc_hz: u64, seed: u64) -> Self {
        let buckets = match police.per_source {
            None => Buckets::One(Bucket::default()),
            Some(lengths) => {
                Buckets::BySource(Sources::new(lengths, seed, police.colours.is_some()))
            }
        };
        let meter = police.colours.map(|colours| colours.meter);
        let second = meter.map(|meter| match meter {
            Meter::SingleRate { excess } => {
                let rate = Rate::new(Police { burst: excess, ..police }, tsc_hz);
                Second::Shared { depth: rate.depth }
            }
            Meter::TwoRates { peak, burst } => {
                Second::Peak(Rate::new(Police { rate: peak, burst, ..police }, tsc_hz))
            }
        });
        Self { rate: Rate::new(police, tsc_hz), second, buckets }
    }

    /// Charges so many packets of any source, with so many bytes together, if the rate is one for all sources, has no
    /// colours and admits all of them; else charges nothing and returns false.
    #[inline]
    pub fn admits_all(&self, packets: usize, bytes: usize, now: u64) -> bool {
        let (Self { rate, second: None, .. }, Buckets::One(bucket)) = (self, &self.buckets) else {
            return false;
        };
        let cost = rate.cost_of(if rate.bytes { bytes } else { packets });
        bucket::take(&bucket.full_at, cost, rate.depth, now).is_ok()
    }

    /// The rates of sources, if each has its own and there are no colours.
    #[inline]
    pub fn by_source(&self) -> Option<BySource<'_>> {
        match (&self.buckets, &self.second) {
            (Buckets::BySource(sources), None) => Some(BySource { rate: &self.rate, sources }),
            _ => None,
        }
    }

    /// Charges a packet of this length, in bytes, and source at `now`, and returns its colour: green or red,
    /// or with a second bucket also yellow.
    #[inline]
    pub fn admits(&self, source: SourceKey, length: usize, now: u64) -> Colour {
        self.colour(source, (length, Colour::Green), now)
    }

    /// [`Self::admits`] for a packet that arrives with a colour, which can only become worse (RFC 2697 3, RFC 2698 3).
    #[inline]
    pub fn colour(&self, source: SourceKey, (length, before): (usize, Colour), now: u64) -> Colour {
        if before == Colour::Red {
            return before;
        }
        let is_green = before == Colour::Green;
        let (full_at, second) = match &self.buckets {
            Buckets::One(Bucket { full_at, second }) => (full_at, second),
            Buckets::BySource(sources) => sources.bucket(sources.tag(source), now),
        };
        let Self { rate, second: meter, .. } = self;
        match meter {
            None if rate.take(full_at, length, now) => Colour::Green,
            None => Colour::Red,
            Some(Second::Peak(peak)) => match peak.take(second, length, now) {
                false => Colour::Red,
                true if is_green && rate.take(full_at, length, now) => Colour::Green,
                true => Colour::Yellow,
            },
            Some(Second::Shared { depth }) => {
                rate.share((full_at, second), *depth, (length, is_green), now)
            }
        }
    }
}

/// The rates of sources, charged in two steps: what the first returns for a source, the second takes, when the memory
/// that it needs has come.
#[derive(Clone, Copy)]
pub(super) struct BySource<'a> {
    rate: &'a Rate,
    sources: &'a Sources,
}

impl BySource<'_> {
    /// Has the processor fetch the bucket of a source. Returns the source's tag.
    #[inline(always)]
    pub fn fetch(self, source: SourceKey) -> u64 {
        let tag = self.sources.tag(source);
        dpdk::prefetch(&raw const *self.sources.line(tag));
        tag
    }

    /// Charges a packet of this length, in bytes, of the source with this tag; returns true if its rate admits it.
    #[inline(always)]
    pub fn admits(self, tag: u64, length: usize, now: u64) -> bool {
        self.rate.take(self.sources.bucket(tag, now).0, length, now)
    }
}

/// The source address of a packet.
#[derive(Clone, Copy, Debug)]
pub enum SourceKey {
    /// IPv4.
    Ip4(u32),
    /// IPv6.
    Ip6(u128),
}

struct Rate {
    /// TSC cycles for a packet or a byte, times 2^[`SHIFT`].
    cost: u64,
    /// TSC cycles that a burst takes.
    depth: u64,
    bytes: bool,
    /// True if a packet longer than the burst passes when the bucket is full; otherwise no such
    /// packet could ever pass. Meters with colours are not lenient.
    lenient: bool,
}

/// Fraction bits of [`Rate::cost`].
const SHIFT: u32 = 16;

impl Rate {
    fn new(police: Police, tsc_hz: u64) -> Self {
        let cycles = |amount: u64, shift: u32| {
            let cycles = ((u128::from(amount) * u128::from(tsc_hz)) << shift)
                / u128::from(police.rate.max(1));
            u64::try_from(cycles).unwrap_or(u64::MAX)
        };
        let (cost, depth) = (cycles(1, SHIFT), cycles(police.burst, 0));
        Self { cost, depth, bytes: police.bytes, lenient: police.colours.is_none() }
    }

    /// TSC cycles for a packet of this length.
    #[inline]
    fn cost(&self, length: usize) -> u64 {
        self.cost_of(if self.bytes { length } else { 1 })
    }

    /// TSC cycles for so many packets or bytes.
    #[inline]
    fn cost_of(&self, amount: usize) -> u64 {
        ((u128::from(self.cost) * amount as u128) >> SHIFT) as u64
    }

    #[inline]
    fn take(&self, full_at: &AtomicU64, length: usize, now: u64) -> bool {
        let cost = self.cost(length);
        let depth = if self.lenient { self.depth.max(cost) } else { self.depth };
        bucket::take(full_at, cost, depth, now).is_ok()
    }

    /// Takes a green packet from the first bucket or, if that has too little, and a yellow one from the second one of
    /// `depth`, which the overflow of the first fills (RFC 2697 3). `both` is full when both are. Of two concurrent forwarders
    /// one may see the other's taking from the first bucket only: the second is then one packet off.
    fn share(
        &self,
        (first, both): (&AtomicU64, &AtomicU64),
        depth: u64,
        (length, is_green): (usize, bool),
        now: u64,
    ) -> Colour {
        let cost = self.cost(length);
        if is_green && self.take(first, length, now) {
            let taken = |both: u64| Some(both.max(now) + cost);
            let _ = both.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
            return Colour::Green;
        }
        let taken = |both: u64| {
            let missing = both.max(now).saturating_sub(first.load(Ordering::Relaxed).max(now));
            (missing + cost <= depth).then_some(both.max(now) + cost)
        };
        match both.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken) {
            Ok(_) => Colour::Yellow,
            Err(_) => Colour::Red,
        }
    }
}

/// Buckets among which a source is placed: a cache line.
const WAYS: usize = 4;

struct Sources {
    lengths: SourceLengths,
    seed: u64,
    lines: Box<[Line]>,
    /// Second buckets, in the order of lines and ways; none without colours.
    seconds: Box<[AtomicU64]>,
}

#[derive(Default)]
#[repr(align(64))]
struct Line {
    /// Hashes of the sources; sources with equal hashes share a bucket.
    tags: [AtomicU64; WAYS],
    full_at: [AtomicU64; WAYS],
}

impl Sources {
    fn new(lengths: SourceLengths, seed: u64, has_seconds: bool) -> Self {
        let most = lengths.most.max(WAYS as u32).next_power_of_two() as usize;
        let lines = dpdk::on_huge_pages(most / WAYS, |_| Line::default());
        let seconds = if has_seconds { most } else { 0 };
        Self { lengths, seed, lines, seconds: (0..seconds).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The buckets of the source with this tag; without colours there is no second one, and it is the first. Two forwarders that see
    /// a new source at the same moment may take two, which gives it one burst more.
    #[inline]
    fn bucket(&self, tag: u64, now: u64) -> (&AtomicU64, &AtomicU64) {
        let place = self.place(tag);
        let line = &self.lines[place];
        let second = |way: usize| self.seconds.get(place * WAYS + way);
        let of = |way: usize| (&line.full_at[way], second(way).unwrap_or(&line.full_at[way]));
        let tags = line.tags.iter();
        if let Some(way) = tags.clone().position(|known| known.load(Ordering::Relaxed) == tag) {
            return of(way);
        }
        let full_at = |way: &usize| {
            let (first, second) = of(*way);
            first.load(Ordering::Relaxed).max(second.load(Ordering::Relaxed))
        };
        let way = (0..WAYS).min_by_key(full_at).unwrap_or(0);
        let (first, second) = of(way);
        first.store(now, Ordering::Relaxed);
        second.store(now, Ordering::Relaxed);
        line.tags[way].store(tag, Ordering::Relaxed);
        (first, second)
    }

    #[inline]
    fn place(&self, tag: u64) -> usize {
        // The number of lines is a power of two.
        (tag >> 32) as usize & self.lines.len().wrapping_sub(1)
    }

    #[inline]
    fn line(&self, tag: u64) -> &Line {
        &self.lines[self.place(tag)]
    }

    /// A hash that outsiders cannot predict.
    #[inline]
    fn tag(&self, source: SourceKey) -> u64 {
        let SourceLengths { ip4, ip6, most: _ } = self.lengths;
        match source {
            SourceKey::Ip4(address) => {
                let kept = u64::from(address) >> (32 - u32::from(ip4.min(32)));
                fold(fold(self.seed, kept), 4)
            }
            SourceKey::Ip6(address) => {
                let kept = address.checked_shr(128 - u32::from(ip6.min(128))).unwrap_or(0);
                fold(fold(fold(self.seed, (kept >> 64) as u64), kept as u64), 6)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: SourceKey = SourceKey::Ip4(0);

    fn policer(rate: u64, burst: u64, bytes: bool, per_source: Option<SourceLengths>) -> Policer {
        Policer::new(Police { rate, burst, bytes, per_source, colours: None }, 1_000_000, 7)
    }

    fn passes(policer: &Policer, source: SourceKey, length: usize, now: u64) -> bool {
        policer.admits(source, length, now) == Colour::Green
    }

    #[test]
    fn a_policer_passes_its_rate_and_its_burst() {
        let policer = policer(1000, 10, false, None);
        let passed = |from: u64, count: u64, step: u64| {
            (0..count).filter(|n| passes(&policer, ANY, 60, from + n * step)).count()
        };
        assert_eq!(passed(1_000_000, 50, 0), 10, "the burst");
        // A packet takes 1,000 cycles; they come every 500, the first when the bucket is empty.
        assert_eq!(passed(1_000_000, 200, 500), 99);
        assert_eq!(passed(9_000_000, 50, 0), 10, "full again");
    }

    #[test]
    fn bytes_are_counted_where_the_rate_is_of_bytes() {
        let bytes = policer(1000, 1500, true, None);
        let admits = |length, now| passes(&bytes, ANY, length, now);
        assert!(admits(1500, 0) && !admits(1, 0) && admits(1, 1000));
        // A packet longer than the burst passes when the bucket is full; otherwise none of its kind
        // could.
        assert!(admits(9000, 10_000_000) && !admits(1, 10_000_000));
    }

    #[test]
    fn each_source_has_the_rate() {
        let lengths = SourceLengths { ip4: 24, ..SourceLengths::default() };
        let policer = policer(1000, 10, false, Some(lengths));
        let passed =
            |source: SourceKey, now| (0..50).filter(|_| passes(&policer, source, 60, now)).count();
        assert_eq!(passed(SourceKey::Ip4(0x0a00_0001), 0), 10);
        assert_eq!(passed(SourceKey::Ip4(0x0a00_00ff), 0), 0, "of the same network");
        assert_eq!(passed(SourceKey::Ip4(0x0a00_0100), 0), 10, "of another");
        let net = 0x2001_0db8_u128 << 96;
        assert_eq!(passed(SourceKey::Ip6(net | 1), 0), 10);
        assert_eq!(passed(SourceKey::Ip6(net | 2), 0), 0);
        assert_eq!(passed(SourceKey::Ip6(net | 1 << 64), 0), 10);
        assert_eq!(passed(SourceKey::Ip4(0x0a00_0001), 5000), 5, "five packets' time later");
    }

    #[test]
    fn one_length_of_nothing_is_one_source() {
        let none = policer(1000, 10, false, Some(SourceLengths { ip4: 0, ip6: 0, most: SOURCES }));
        let passed = |source| (0..50).filter(|_| passes(&none, source, 60, 0)).count();
        assert_eq!((passed(SourceKey::Ip4(1)), passed(SourceKey::Ip4(u32::MAX))), (10, 0));
        assert_eq!((passed(SourceKey::Ip6(1)), passed(SourceKey::Ip6(u128::MAX))), (10, 0));
    }

    #[test]
    fn many_sources_do_not_push_out_one_that_is_over_its_rate() {
        let policer = policer(1, 100, false, Some(SourceLengths::default()));
        let greedy = SourceKey::Ip4(0xc000_0201);
        assert_eq!((0..200).filter(|_| passes(&policer, greedy, 60, 0)).count(), 100);
        // As many sources as the table has room for, one packet each: their buckets are nearer to
        // full.
        for source in 0..SOURCES {
            assert!(passes(&policer, SourceKey::Ip4(source), 60, 0), "{source}");
        }
        assert!(!passes(&policer, greedy, 60, 0));
    }

    #[test]
    fn a_million_sources_each_pass() {
        let policer = policer(1000, 1, false, Some(SourceLengths::default()));
        let mut refused = 0;
        for (now, source) in (0..).step_by(10).zip(0..1_000_000u32) {
            refused += u32::from(!passes(&policer, SourceKey::Ip4(source), 60, now));
        }
        assert_eq!(refused, 0);
    }

    /// The meters as their RFCs write them, in tokens of a byte or a packet: colour-aware; colour-blind is the same for
    /// green packets. Each test packet takes a whole number of tokens, and time advances by that of one token.
    struct Reference {
        meter: Meter,
        sizes: [u64; 2],
        tokens: [u64; 2],
    }

    impl Reference {
        fn new(burst: u64, meter: Meter) -> Self {
            let second = match meter {
                Meter::SingleRate { excess } => excess,
                Meter::TwoRates { burst, .. } => burst,
            };
            Self { meter, sizes: [burst, second], tokens: [burst, second] }
        }

        /// Advances by the time of one token at the rate, which is that of `peak` tokens at the peak rate.
        fn tick(&mut self, peak: u64) {
            let Self { meter, sizes: [cbs, second], tokens: [c, other] } = self;
            match meter {
                Meter::SingleRate { .. } if *c < *cbs => *c += 1,
                Meter::SingleRate { .. } => *other = (*other + 1).min(*second),
                Meter::TwoRates { .. } => {
                    *c = (*c + 1).min(*cbs);
                    *other = (*other + peak).min(*second);
                }
            }
        }

        /// Section 3 of both, for a packet that arrives with a colour.
        fn packet(&mut self, size: u64, before: Colour) -> Colour {
            let [c, other] = &mut self.tokens;
            match self.meter {
                Meter::SingleRate { .. } => {
                    if before == Colour::Green && *c >= size {
                        *c -= size;
                        Colour::Green
                    } else if before != Colour::Red && *other >= size {
                        *other -= size;
                        Colour::Yellow
                    } else {
                        Colour::Red
                    }
                }
                Meter::TwoRates { .. } => {
                    if before == Colour::Red || *other < size {
                        Colour::Red
                    } else if before == Colour::Yellow || *c < size {
                        *other -= size;
                        Colour::Yellow
                    } else {
                        *other -= size;
                        *c -= size;
                        Colour::Green
                    }
                }
            }
        }
    }

    /// Cycles of a token of the rate: 1,000 of them in a second of a million.
    const TOKEN: u64 = 1000;

    proptest::proptest! {
        #[test]
        fn colours_are_those_of_the_rfcs(
            (burst, second) in (1..2000u64, 1..2000u64),
            // Cycles of a token are a whole number.
            peak in proptest::sample::select(vec![1u64, 2, 4, 5]),
            (two_rates, per_source, is_aware) in proptest::prelude::any::<(bool, bool, bool)>(),
            packets in proptest::collection::vec((0..300u64, 1..1500u64, 0..64u8), 1..300),
        ) {
            let meter = match two_rates {
                false => Meter::SingleRate { excess: second },
                true => Meter::TwoRates { peak: peak * 1000, burst: second },
            };
            let dscps = |from: u8, to: u8| (from..to).collect::<Vec<_>>();
            // A third of all DSCPs has each colour.
            let aware = Precolours::new(&dscps(20, 40), &dscps(40, 64)).filter(|_| is_aware);
            let colours = Some(Colours { meter, yellow: Mark::NONE, red: None, aware });
            let per_source = per_source.then(SourceLengths::default);
            let police = Police { rate: 1000, burst, bytes: true, per_source, colours };
            let policer = Policer::new(police, 1_000_000, 7);
            let mut reference = Reference::new(burst, meter);
            let mut now = 1_000_000_000;
            for (place, (pause, size, dscp)) in packets.into_iter().enumerate() {
                (0..pause).for_each(|_| reference.tick(peak));
                now += pause * TOKEN;
                let wanted = match dscp {
                    _ if !is_aware => Colour::Green,
                    0..20 => Colour::Green,
                    20..40 => Colour::Yellow,
                    _ => Colour::Red,
                };
                let before = police.precolour(|| dscp);
                proptest::prop_assert_eq!(before, wanted);
                let found = policer.colour(ANY, (size as usize, before), now);
                proptest::prop_assert_eq!(found, reference.packet(size, before), "packet {}", place);
                proptest::prop_assert!(found as u8 >= before as u8, "no colour becomes better");
            }
        }
    }

    #[test]
    fn dscps_have_colours() {
        let of = |aware: Precolours| (0..64).map(move |dscp| (dscp, aware.of(dscp)));
        let with = |aware, colour| -> Vec<u8> {
            of(aware).filter(|(_, of)| *of == colour).map(|(dscp, _)| dscp).collect()
        };
        assert_eq!(with(Precolours::ASSURED, Colour::Yellow), [12, 20, 28, 36]);
        assert_eq!(with(Precolours::ASSURED, Colour::Red), [14, 22, 30, 38]);
        let own = Precolours::new(&[63, 0], &[1]).unwrap();
        assert_eq!((with(own, Colour::Yellow), with(own, Colour::Red)), (vec![0, 63], vec![1]));
        assert_eq!(own.to_string(), "aware yellow 0,63 red 1");
        assert_eq!(Precolours::ASSURED.to_string(), "aware");
        assert_eq!(Precolours::new(&[1, 2], &[2]), None);
    }

    #[test]
    fn a_table_has_room_for_as_many_sources_as_are_wanted() {
        let lengths = |most| SourceLengths { most, ..SourceLengths::default() };
        for (most, lines) in [(1024, 256), (1 << 20, 1 << 18), (SOURCES, 1 << 16)] {
            let sources = Sources::new(lengths(most), 7, true);
            assert_eq!((sources.lines.len(), sources.seconds.len()), (lines, most as usize));
            assert_eq!(lengths(most).bytes(), 64 * lines as u64);
            let places: Vec<_> =
                (0..4096).map(|n| sources.place(sources.tag(SourceKey::Ip4(n)))).collect();
            assert!(places.iter().all(|place| *place < lines));
        }
        let police = Police {
            rate: 10,
            burst: 1,
            bytes: false,
            per_source: Some(lengths(1 << 20)),
            colours: None,
        };
        assert_eq!(police.to_string(), "10 pps per source/32/64 of 1048576, burst 1");
    }

    #[test]
    fn a_policer_with_colours_says_what_they_are() {
        let colours = |meter, yellow, red: Option<Mark>| {
            let aware = red.map(|_| Precolours::ASSURED);
            Some(Colours { meter, yellow, red, aware })
        };
        let dscp = |dscp| Mark { dscp: Some(dscp), class: None };
        let police = Police {
            rate: 1000,
            burst: 10,
            bytes: false,
            per_source: None,
            colours: colours(Meter::SingleRate { excess: 20 }, dscp(12), None),
        };
        assert_eq!(police.to_string(), "1000 pps, burst 10, excess 20, yellow dscp 12, red drop");
        let two = Meter::TwoRates { peak: 2000, burst: 30 };
        let police =
            Police { bytes: true, colours: colours(two, Mark::NONE, Some(dscp(14))), ..police };
        assert_eq!(
            police.to_string(),
            "8000 bit, burst 80 bit, peak 16000 bit, peak burst 240 bit, yellow pass, red dscp 14, aware"
        );
    }
}

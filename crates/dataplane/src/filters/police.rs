//! How much of a rule's traffic passes: one token bucket, or one for each source.
//!
//! A bucket is the time at which it would be full again (the generic cell rate algorithm, ITU-T I.371 annex
//! A), so that taking from it is one exchange of a word, and one that is full again says no more than one
//! that has never been used. That is what bounds the memory of rates by source: a table has room for
//! [`SOURCES`] buckets, a new source takes the place of a full one, and where none of its line is full, of
//! the one that is the nearest to it. Who sends from more sources than that gets a burst for each, as any new
//! source does; sources that stay below their rate lose nothing by it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow::fold;

/// How much of a rule's traffic passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Police {
    /// Packets, or bytes of IP packets, per second.
    pub rate: u64,
    /// Packets or bytes at once, at least 1.
    pub burst: u64,
    /// Counted in bytes.
    pub bytes: bool,
    /// Each source has the rate; `None`: all packets of the rule share it.
    pub per_source: Option<SourceLengths>,
}

/// The bits of a source address that tell sources apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLengths {
    /// Of 32.
    pub ip4: u8,
    /// Of 128.
    pub ip6: u8,
}

/// Hosts of IPv4, networks of IPv6: a host has as many addresses of its network as it likes.
impl Default for SourceLengths {
    fn default() -> Self {
        Self { ip4: 32, ip6: 64 }
    }
}

/// As configurations write it: `1000 pps, burst 100`.
impl fmt::Display for Police {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, burst, bytes, per_source } = self;
        let per = per_source
            .map(|SourceLengths { ip4, ip6 }| format!(" per source/{ip4}/{ip6}"))
            .unwrap_or_default();
        match bytes {
            true => write!(f, "{} bit{per}, burst {} bit", rate * 8, burst * 8),
            false => write!(f, "{rate} pps{per}, burst {burst}"),
        }
    }
}

/// What takes packets from the rate of a rule; shared by all forwarders.
pub(super) struct Policer {
    rate: Rate,
    buckets: Buckets,
}

enum Buckets {
    One(AtomicU64),
    BySource(Sources),
}

impl Policer {
    /// `tsc_hz`: cycles of the time-stamp counter in a second; `seed`: chosen anew by each router.
    pub fn new(police: Police, tsc_hz: u64, seed: u64) -> Self {
        let buckets = match police.per_source {
            None => Buckets::One(AtomicU64::new(0)),
            Some(lengths) => Buckets::BySource(Sources::new(lengths, seed)),
        };
        Self { rate: Rate::new(police, tsc_hz), buckets }
    }

    /// Takes a packet of this length, in bytes, and source from what there is at `now`; false if that is not
    /// enough.
    #[inline]
    pub fn admits(&self, source: Source, length: usize, now: u64) -> bool {
        match &self.buckets {
            Buckets::One(full_at) => self.rate.take(full_at, length, now),
            Buckets::BySource(sources) => self.rate.take(sources.bucket(source, now), length, now),
        }
    }
}

/// The source address of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Source {
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
        Self { cost: cycles(1, SHIFT), depth: cycles(police.burst, 0), bytes: police.bytes }
    }

    #[inline]
    fn take(&self, full_at: &AtomicU64, length: usize, now: u64) -> bool {
        let amount = if self.bytes { length as u128 } else { 1 };
        let cost = ((u128::from(self.cost) * amount) >> SHIFT) as u64;
        let taken = |full_at: u64| {
            let next = full_at.max(now) + cost;
            (next - now <= self.depth.max(cost)).then_some(next)
        };
        full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

/// Buckets of a table of sources: 4 MiB.
const SOURCES: usize = 1 << 18;

/// Buckets among which a source has its own: a cache line.
const WAYS: usize = 4;

struct Sources {
    lengths: SourceLengths,
    seed: u64,
    lines: Box<[Line]>,
}

#[derive(Default)]
#[repr(align(64))]
struct Line {
    /// Hashes of the sources; a source that meets another's by chance shares its bucket.
    tags: [AtomicU64; WAYS],
    full_at: [AtomicU64; WAYS],
}

impl Sources {
    fn new(lengths: SourceLengths, seed: u64) -> Self {
        let lines = (0..SOURCES / WAYS).map(|_| Line::default()).collect();
        Self { lengths, seed, lines }
    }

    /// The bucket of a source. Two forwarders that see a new source at the same moment may take two, which
    /// gives it one burst more.
    #[inline]
    fn bucket(&self, source: Source, now: u64) -> &AtomicU64 {
        let tag = self.tag(source);
        let line = &self.lines[(tag >> 32) as usize % self.lines.len()];
        let tags = line.tags.iter();
        if let Some(way) = tags.clone().position(|known| known.load(Ordering::Relaxed) == tag) {
            return &line.full_at[way];
        }
        let full_at = |way: &usize| line.full_at[*way].load(Ordering::Relaxed);
        let way = (0..WAYS).min_by_key(full_at).unwrap_or(0);
        line.full_at[way].store(now, Ordering::Relaxed);
        line.tags[way].store(tag, Ordering::Relaxed);
        &line.full_at[way]
    }

    /// A hash that nobody outside can foresee.
    #[inline]
    fn tag(&self, source: Source) -> u64 {
        let SourceLengths { ip4, ip6 } = self.lengths;
        match source {
            Source::Ip4(address) => {
                let kept = u64::from(address) >> (32 - u32::from(ip4.min(32)));
                fold(fold(self.seed, kept), 4)
            }
            Source::Ip6(address) => {
                let kept = address.checked_shr(128 - u32::from(ip6.min(128))).unwrap_or(0);
                fold(fold(fold(self.seed, (kept >> 64) as u64), kept as u64), 6)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Source = Source::Ip4(0);

    fn policer(rate: u64, burst: u64, bytes: bool, per_source: Option<SourceLengths>) -> Policer {
        Policer::new(Police { rate, burst, bytes, per_source }, 1_000_000, 7)
    }

    #[test]
    fn a_policer_passes_its_rate_and_its_burst() {
        let policer = policer(1000, 10, false, None);
        let passed = |from: u64, count: u64, step: u64| {
            (0..count).filter(|n| policer.admits(ANY, 60, from + n * step)).count()
        };
        assert_eq!(passed(1_000_000, 50, 0), 10, "the burst");
        // A packet takes 1,000 cycles; they come every 500, the first when the bucket is empty.
        assert_eq!(passed(1_000_000, 200, 500), 99);
        assert_eq!(passed(9_000_000, 50, 0), 10, "full again");
    }

    #[test]
    fn bytes_are_counted_where_the_rate_is_of_bytes() {
        let bytes = policer(1000, 1500, true, None);
        let admits = |length, now| bytes.admits(ANY, length, now);
        assert!(admits(1500, 0) && !admits(1, 0) && admits(1, 1000));
        // One that is longer than the burst passes when the bucket is full, or none of its kind ever would.
        assert!(admits(9000, 10_000_000) && !admits(1, 10_000_000));
    }

    #[test]
    fn each_source_has_the_rate() {
        let lengths = SourceLengths { ip4: 24, ip6: 64 };
        let policer = policer(1000, 10, false, Some(lengths));
        let passed =
            |source: Source, now| (0..50).filter(|_| policer.admits(source, 60, now)).count();
        assert_eq!(passed(Source::Ip4(0x0a00_0001), 0), 10);
        assert_eq!(passed(Source::Ip4(0x0a00_00ff), 0), 0, "of the same network");
        assert_eq!(passed(Source::Ip4(0x0a00_0100), 0), 10, "of another");
        let net = 0x2001_0db8_u128 << 96;
        assert_eq!(passed(Source::Ip6(net | 1), 0), 10);
        assert_eq!(passed(Source::Ip6(net | 2), 0), 0);
        assert_eq!(passed(Source::Ip6(net | 1 << 64), 0), 10);
        assert_eq!(passed(Source::Ip4(0x0a00_0001), 5000), 5, "five packets' time later");
    }

    #[test]
    fn one_length_of_nothing_is_one_source() {
        let none = policer(1000, 10, false, Some(SourceLengths { ip4: 0, ip6: 0 }));
        let passed = |source| (0..50).filter(|_| none.admits(source, 60, 0)).count();
        assert_eq!((passed(Source::Ip4(1)), passed(Source::Ip4(u32::MAX))), (10, 0));
        assert_eq!((passed(Source::Ip6(1)), passed(Source::Ip6(u128::MAX))), (10, 0));
    }

    #[test]
    fn many_sources_do_not_push_out_one_that_is_over_its_rate() {
        let policer = policer(1, 100, false, Some(SourceLengths::default()));
        let greedy = Source::Ip4(0xc000_0201);
        assert_eq!((0..200).filter(|_| policer.admits(greedy, 60, 0)).count(), 100);
        // As many as the table has room for, one packet each: buckets that are nearer to full than its own.
        for source in 0..SOURCES as u32 {
            assert!(policer.admits(Source::Ip4(source), 60, 0), "{source}");
        }
        assert!(!policer.admits(greedy, 60, 0));
    }

    #[test]
    fn a_million_sources_each_pass() {
        let policer = policer(1000, 1, false, Some(SourceLengths::default()));
        let mut refused = 0;
        for (now, source) in (0..).step_by(10).zip(0..1_000_000u32) {
            refused += u32::from(!policer.admits(Source::Ip4(source), 60, now));
        }
        assert_eq!(refused, 0);
    }
}

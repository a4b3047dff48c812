//! Patterns of addresses that are looked up or sent to, and their order.
//!
//! | pattern | addresses |
//! |---|---|
//! | `in-table` | a random prefix of the table, random host bits |
//! | `random` | anywhere: all of IPv4, 2000::/3 in IPv6 |
//! | `zipf` | 100,000 in-table addresses; the k-th most frequent comes with probability ~ 1/k |
//! | `flows` | 64 in-table addresses, at random |
//! | `shared` | as `in-table`, with packet work between the batches that evicts the caches |

use std::collections::HashSet;
use std::fmt;
use std::hint::black_box;
use std::ops::Range;

use clap::ValueEnum;
use fib::Bits;
use fib::synthetic::Random;
use serde::Serialize;

use super::routes::{Family, Routes};

/// Distinct addresses of `zipf`.
const ZIPF: usize = 100_000;
/// Distinct addresses of `flows`.
const FLOWS: usize = 64;

/// A pattern, see the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A random prefix of the table, random host bits
    InTable,
    /// Anywhere: all of IPv4, 2000::/3 in IPv6
    Random,
    /// 100,000 in-table addresses with Zipf's frequencies, exponent 1
    Zipf,
    /// 64 in-table addresses
    Flows,
    /// In-table, with packet work between the batches
    Shared,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 5] = [Self::InTable, Self::Random, Self::Zipf, Self::Flows, Self::Shared];
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InTable => "in-table",
            Self::Random => "random",
            Self::Zipf => "zipf",
            Self::Flows => "flows",
            Self::Shared => "shared",
        })
    }
}

/// Addresses to look up, in the format of our tables and in that of DPDK's: each structure reads
/// the one that it would get from a packet's header directly.
pub struct Addresses<A: Family> {
    /// For our tables.
    pub bits: Vec<A::Bits>,
    /// For DPDK's tables.
    pub wire: Vec<A::Wire>,
}

impl<A: Family> Addresses<A> {
    /// Creates both formats.
    pub fn new(bits: Vec<A::Bits>) -> Self {
        let wire = bits.iter().map(|&bits| A::wire(bits)).collect();
        Self { bits, wire }
    }

    /// Brings a part of both formats into the first-level cache.
    pub fn read(&self, range: Range<usize>) {
        self.bits[range.clone()].iter().for_each(|&bits| _ = black_box(bits));
        self.wire[range].iter().for_each(|&wire| _ = black_box(wire));
    }

    /// Returns the number of addresses.
    pub fn len(&self) -> usize {
        self.bits.len()
    }
}

/// Returns `count` addresses of a pattern. The same arguments give the same addresses.
pub fn addresses<A: Family>(pattern: Pattern, routes: &Routes<A>, count: usize) -> Addresses<A> {
    Addresses::new(draw(pattern, routes, count, &mut Random::new(0x7061_7474 + pattern as u64)))
}

/// Returns `count` addresses of a pattern, drawn with these random numbers.
pub fn draw<A: Family>(
    pattern: Pattern,
    routes: &Routes<A>,
    count: usize,
    random: &mut Random,
) -> Vec<A::Bits> {
    match pattern {
        Pattern::InTable | Pattern::Shared => {
            (0..count).map(|_| in_table(routes, random)).collect()
        }
        Pattern::Random => (0..count).map(|_| A::global(random)).collect(),
        Pattern::Zipf => {
            let flows = distinct(routes, ZIPF, random);
            let sampler = Zipf::new(flows.len());
            (0..count).map(|_| flows[sampler.draw(random)]).collect()
        }
        Pattern::Flows => {
            let flows = distinct(routes, FLOWS, random);
            (0..count).map(|_| flows[random.below(flows.len() as u64) as usize]).collect()
        }
    }
}

/// Returns an address in a random prefix of the table.
pub fn in_table<A: Family>(routes: &Routes<A>, random: &mut Random) -> A::Bits {
    let (prefix, _) = routes[random.below(routes.len() as u64) as usize];
    prefix.bits() | (A::any(random) & !A::Bits::mask(prefix.len()))
}

/// Returns `count` different in-table addresses, fewer if the table hardly has as many.
fn distinct<A: Family>(routes: &Routes<A>, count: usize, random: &mut Random) -> Vec<A::Bits> {
    let (mut seen, mut found) = (HashSet::new(), Vec::with_capacity(count));
    for _ in 0..20 * count {
        if found.len() == count {
            break;
        }
        let address = in_table(routes, random);
        if seen.insert(address) {
            found.push(address);
        }
    }
    found
}

/// Draws ranks 0, 1, 2, ... with probabilities in proportion to 1, 1/2, 1/3, ...
pub struct Zipf {
    /// Sums of the probabilities up to each rank, unscaled.
    sums: Vec<f64>,
}

impl Zipf {
    /// Creates a distribution of this many ranks.
    pub fn new(ranks: usize) -> Self {
        let mut sum = 0.0;
        let add = |rank: usize| {
            sum += 1.0 / rank as f64;
            sum
        };
        Self { sums: (1..=ranks).map(add).collect() }
    }

    /// Returns the next rank.
    pub fn draw(&self, random: &mut Random) -> usize {
        let total = self.sums.last().copied().unwrap_or_default();
        // 53 bits: the precision of a double.
        let point = (random.word() >> 11) as f64 / (1u64 << 53) as f64 * total;
        self.sums.partition_point(|&sum| sum <= point).min(self.sums.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn routes() -> Routes<Ipv4Addr> {
        fib::synthetic::ipv4(2000, 50)
    }

    #[test]
    fn in_table_addresses_have_a_route_and_use_all_prefixes() {
        let routes = routes();
        for pattern in [Pattern::InTable, Pattern::Zipf, Pattern::Flows, Pattern::Shared] {
            for &bits in &addresses(pattern, &routes, 300).bits {
                let address = Ipv4Addr::from(bits);
                assert!(routes.iter().any(|(prefix, _)| prefix.contains(address)), "{pattern}");
            }
        }
        let two = vec![
            ("11.0.0.0/8".parse().unwrap(), 1),
            ("12.0.0.0/24".parse::<fib::Prefix<Ipv4Addr>>().unwrap(), 2),
        ];
        let all = addresses(Pattern::InTable, &two, 10_000).bits;
        let in_first = all.iter().filter(|&&bits| bits >> 24 == 11).count();
        assert!((4700..5300).contains(&in_first), "prefixes count, not addresses: {in_first}");
        let hosts: HashSet<u32> = all.iter().filter(|&&b| b >> 24 == 12).copied().collect();
        assert_eq!(hosts.len(), 256);
    }

    #[test]
    fn random_addresses_spread_over_the_whole_space() {
        let all = addresses(Pattern::Random, &routes(), 4096).bits;
        let tops: HashSet<u32> = all.iter().map(|bits| bits >> 24).collect();
        assert_eq!(tops.len(), 256);
        let v6 = addresses::<Ipv6Addr>(Pattern::Random, &fib::synthetic::ipv6(10, 5), 100);
        assert!(v6.bits.iter().all(|bits| bits >> 125 == 1));
        assert_eq!(v6.wire[3], v6.bits[3].to_be_bytes());
    }

    #[test]
    fn flows_are_64() {
        let all = addresses(Pattern::Flows, &routes(), 10_000).bits;
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 64);
        let host = vec![("11.0.0.1/32".parse::<fib::Prefix<Ipv4Addr>>().unwrap(), 1)];
        assert_eq!(addresses(Pattern::Flows, &host, 10).bits, [0x0b00_0001; 10]);
    }

    #[test]
    fn zipf_frequencies_fall_with_the_rank() {
        let all = addresses(Pattern::Zipf, &routes(), 200_000).bits;
        let mut counts: HashMap<u32, f64> = HashMap::new();
        all.iter().for_each(|&bits| *counts.entry(bits).or_default() += 1.0);
        let mut counts: Vec<f64> = counts.into_values().collect();
        counts.sort_by(|a, b| b.total_cmp(a));
        // The sum of 1/k up to 100,000 is 12.09.
        let share = counts[0] / 200_000.0;
        assert!((0.075..0.091).contains(&share), "{share}");
        let ratio = counts[0] / counts[9];
        assert!((8.5..11.5).contains(&ratio), "{ratio}");
        assert!(counts.len() > 30_000, "{}", counts.len());
    }

    #[test]
    fn patterns_are_reproducible_and_differ() {
        let routes = routes();
        let bits = |pattern| addresses(pattern, &routes, 100).bits;
        assert_eq!(bits(Pattern::InTable), bits(Pattern::InTable));
        assert_ne!(bits(Pattern::InTable), bits(Pattern::Shared));
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for pattern in Pattern::ALL {
            assert_eq!(Pattern::from_str(&pattern.to_string(), false), Ok(pattern));
            let json = serde_json::to_string(&pattern).unwrap();
            assert_eq!(json, format!("\"{pattern}\""));
        }
    }
}

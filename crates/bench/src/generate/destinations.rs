//! Destinations of generated packets.
//!
//! | text | destinations |
//! |---|---|
//! | `10.0.0.1` | one |
//! | `random:20@10.0.0.0` | the low 20 bits of the address are random, different for each packet |
//! | `table:FILE`, `table:synthetic:N` | a random prefix of the table, random host bits |
//! | `zipf:FILE`, `zipf:synthetic:N` | 100,000 addresses of the table; the k-th comes with probability ~ 1/k |
//! | `flows:64@10.0.0.0/16` | 64 addresses of the prefix, in turn |
//!
//! `table6` and `zipf6` use the table's IPv6 prefixes, `table` and `zipf` those of IPv4.
//! Destinations of `table`, `zipf` and `flows` are drawn before the first packet is sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use fib::synthetic::Random;
use ipnet::IpNet;

use crate::workload::pattern::{self, Pattern};
use crate::workload::routes::{self, Family};

/// Number of addresses drawn from a table, a power of two.
const DRAWN: usize = 1 << 20;
/// Most flows.
const FLOWS_MOST: usize = 1 << 24;

/// A destination pattern in the notation of the command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// Always this address.
    One(IpAddr),
    /// This address with its low bits random.
    Random {
        /// Number of random bits.
        bits: u32,
        /// The other bits.
        base: IpAddr,
    },
    /// Addresses in a table.
    Table {
        /// A file, or `synthetic:N`.
        table: String,
        /// True for IPv6.
        six: bool,
        /// True for a Zipf distribution.
        zipf: bool,
    },
    /// This many addresses of a prefix, by turns.
    Flows {
        /// Number of addresses.
        count: usize,
        /// Their prefix.
        prefix: IpNet,
    },
}

impl FromStr for Spec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((kind, rest)) = text.split_once(':').filter(|(kind, _)| {
            matches!(*kind, "random" | "table" | "table6" | "zipf" | "zipf6" | "flows")
        }) else {
            let known = "an address, random:BITS@ADDRESS, table:FILE, zipf:FILE, flows:N@PREFIX";
            return Ok(Self::One(
                text.parse().with_context(|| format!("destination {text}: write {known}"))?,
            ));
        };
        match kind {
            "random" => random(rest),
            "flows" => flows(rest),
            _ => Ok(Self::Table {
                table: rest.to_owned(),
                six: kind.ends_with('6'),
                zipf: kind.starts_with("zipf"),
            }),
        }
        .with_context(|| format!("destination {text}"))
    }
}

fn random(text: &str) -> Result<Spec> {
    let (bits, base) = text.split_once('@').context("write random:BITS@ADDRESS")?;
    let base: IpAddr = base.parse().with_context(|| format!("{base} is not an address"))?;
    let bits = bits.parse().with_context(|| format!("{bits} is not a number of bits"))?;
    let most = if base.is_ipv4() { 32 } else { 64 };
    ensure!(bits <= most, "{bits} bits: at most {most} of an address of this family");
    Ok(Spec::Random { bits, base })
}

fn flows(text: &str) -> Result<Spec> {
    let (count, prefix) = text.split_once('@').context("write flows:N@PREFIX")?;
    let count = count.parse().with_context(|| format!("{count} is not a number of flows"))?;
    let prefix: IpNet = prefix.parse().with_context(|| format!("{prefix} is not a prefix"))?;
    ensure!((1..=FLOWS_MOST).contains(&count), "{count} flows: 1 to {FLOWS_MOST}");
    let room = prefix.max_prefix_len() - prefix.prefix_len();
    ensure!(room >= 32 || count <= 1 << room, "{prefix} has fewer than {count} addresses");
    Ok(Spec::Flows { count, prefix })
}

/// A source of destinations.
pub struct Destinations {
    random: Random,
    kind: Kind,
}

enum Kind {
    /// A base to which random bits are added.
    Masked { base: u128, mask: u64 },
    /// A list, used by turns.
    List { list: Vec<u128>, next: usize },
}

impl Destinations {
    /// Creates the source; lists are drawn now. The same seed gives the same destinations.
    pub fn new(spec: &Spec, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let kind = match spec {
            Spec::One(address) => Kind::List { list: vec![bits(*address)], next: 0 },
            Spec::Random { bits: count, base } => {
                let mask = (1u64.checked_shl(*count).unwrap_or(0)).wrapping_sub(1);
                Kind::Masked { base: bits(*base) & !u128::from(mask), mask }
            }
            Spec::Flows { count, prefix } => {
                let first = bits(prefix.network());
                Kind::List { list: (0..*count as u128).map(|flow| first + flow).collect(), next: 0 }
            }
            Spec::Table { table, six, zipf } => {
                let pattern = if *zipf { Pattern::Zipf } else { Pattern::InTable };
                let list = if *six {
                    in_table::<Ipv6Addr>(table, pattern, &mut random)?
                } else {
                    in_table::<Ipv4Addr>(table, pattern, &mut random)?
                };
                Kind::List { list, next: 0 }
            }
        };
        Ok(Self { random, kind })
    }

    /// Returns the next address; an IPv4 address is in the low 32 bits.
    #[inline]
    pub fn next(&mut self) -> u128 {
        match &mut self.kind {
            Kind::Masked { base, mask } => *base | u128::from(self.random.word() & *mask),
            Kind::List { list, next } => {
                let address = list[*next];
                *next = if *next + 1 < list.len() { *next + 1 } else { 0 };
                address
            }
        }
    }
}

impl Spec {
    /// Returns true if the addresses are IPv6.
    pub fn is_six(&self) -> bool {
        match self {
            Self::One(address) | Self::Random { base: address, .. } => address.is_ipv6(),
            Self::Flows { prefix, .. } => prefix.addr().is_ipv6(),
            Self::Table { six, .. } => *six,
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns addresses in a table, drawn by a pattern.
fn in_table<A: Family>(table: &str, pattern: Pattern, random: &mut Random) -> Result<Vec<u128>>
where
    A::Bits: Into<u128>,
{
    let routes = routes::load::<A>("table", table, 1)?;
    let drawn = pattern::draw(pattern, &routes, DRAWN, random);
    Ok(drawn.into_iter().map(Into::into).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    fn take(text: &str, count: usize) -> Vec<u128> {
        let mut destinations = Destinations::new(&text.parse().unwrap(), 1).unwrap();
        (0..count).map(|_| destinations.next()).collect()
    }

    #[test]
    fn one_address_stays() {
        assert_eq!(take("10.0.0.1", 3), [0x0a00_0001; 3]);
        assert_eq!(take("2001:db8::1", 2), [0x2001_0db8_u128 << 96 | 1; 2]);
    }

    #[test]
    fn random_bits_are_random_and_the_others_stay() {
        let all: BTreeSet<_> = take("random:8@10.1.2.3", 10_000).into_iter().collect();
        assert_eq!(all.len(), 256);
        assert!(all.iter().all(|address| address >> 8 == 0x0a_0102));
        let six = take("random:64@2001:db8::", 100);
        assert!(six.iter().all(|address| address >> 64 == 0x2001_0db8_0000_0000));
        assert!(six.iter().map(|address| *address as u64).collect::<BTreeSet<_>>().len() == 100);
    }

    #[test]
    fn flows_come_in_turn() {
        assert_eq!(
            take("flows:3@10.0.0.0/24", 5).iter().map(|a| a & 0xff).collect::<Vec<_>>(),
            [0, 1, 2, 0, 1]
        );
    }

    #[test]
    fn tables_give_addresses_in_their_prefixes() {
        let routes = fib::synthetic::ipv4(500, 1);
        for pattern in ["table:synthetic:500", "zipf:synthetic:500"] {
            for address in take(pattern, 200) {
                let address = Ipv4Addr::from_bits(address as u32);
                assert!(routes.iter().any(|(prefix, _)| prefix.contains(address)), "{pattern}");
            }
        }
        let mut counts = HashMap::new();
        take("zipf:synthetic:500", 100_000)
            .iter()
            .for_each(|a| *counts.entry(*a).or_insert(0u32) += 1);
        let most = counts.values().max().copied().unwrap_or(0);
        assert!((7_000..10_000).contains(&most), "the first of Zipf's has 1/12: {most}");
        assert!(take("table6:synthetic:50", 10).iter().all(|address| address >> 125 == 1));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let error = |text: &str| format!("{:#}", text.parse::<Spec>().unwrap_err());
        assert!(error("10.0.0").contains("destination 10.0.0: write an address"));
        assert!(error("random:33@10.0.0.0").contains("33 bits: at most 32"));
        assert!(error("flows:300@10.0.0.0/24").contains("fewer than 300 addresses"));
        assert!(error("flows:0@10.0.0.0/24").contains("0 flows"));
        assert!(Destinations::new(&"table:/no/such".parse().unwrap(), 1).is_err());
    }
}

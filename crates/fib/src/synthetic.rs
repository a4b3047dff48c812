//! Synthetic tables that resemble the Internet's.
//!
//! For benchmarks and tests on machines without a routing table. Prefix lengths are distributed
//! as in the tables of public route collectors; about half of the prefixes nest in a shorter one;
//! prefixes cluster in a part of the /16s (IPv4) or under few /16s (IPv6), as allocation made
//! them; neighbours often share the next hop, and few next hops carry most routes. The same
//! arguments give the same table on every machine.
//!
//! ```
//! let routes = fib::synthetic::ipv4(1000, 200);
//! assert_eq!(routes.len(), 1000);
//! assert!(routes.iter().all(|&(_, next_hop)| (1..=200).contains(&next_hop)));
//! assert_eq!(routes, fib::synthetic::ipv4(1000, 200));
//! ```

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::{Ipv4Addr, Ipv6Addr},
};

use crate::{Address, Bits, MAX_NEXT_HOP, NextHopId, Prefix};

/// A reproducible stream of random numbers (SplitMix64, Steele et al., OOPSLA 2014). Published figures are of tables
/// and rules made from it, so it must not change with the version of a library.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a stream; each seed gives another.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// Returns true in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns an element of a list, which must not be empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    /// Returns the next 128 bits.
    pub fn wide(&mut self) -> u128 {
        u128::from(self.word()) << 64 | u128::from(self.word())
    }
}

/// A family's shape.
struct Shape {
    /// Share of each prefix length, in thousandths.
    lengths: &'static [(u8, u64)],
    /// Number of /16s that hold routes, and their choice.
    nets: u64,
    net: fn(&mut Random) -> u32,
    /// Share of the prefixes that nest in a shorter one of the table, in thousandths.
    nested: u64,
}

/// RouteViews, 2014 (512,621 prefixes), including the few longer than /24.
const IPV4: Shape = Shape {
    lengths: &[
        (8, 1),
        (11, 1),
        (12, 1),
        (13, 1),
        (14, 2),
        (15, 3),
        (16, 25),
        (17, 14),
        (18, 23),
        (19, 49),
        (20, 70),
        (21, 73),
        (22, 113),
        (23, 92),
        (24, 525),
        (25, 2),
        (26, 2),
        (27, 1),
        (30, 1),
        (32, 1),
    ],
    nets: 28_000,
    net: |random| 256 + random.below(0xdf00) as u32,
    nested: 520,
};

/// RouteViews, 2015, moved towards the /44s and /40s of recent years.
const IPV6: Shape = Shape {
    lengths: &[
        (20, 1),
        (24, 1),
        (28, 3),
        (29, 31),
        (30, 4),
        (31, 3),
        (32, 220),
        (33, 11),
        (34, 8),
        (35, 9),
        (36, 48),
        (38, 7),
        (40, 70),
        (42, 8),
        (44, 80),
        (46, 14),
        (47, 7),
        (48, 440),
        (56, 7),
        (64, 17),
        (126, 8),
        (128, 2),
    ],
    nets: 70,
    net: |random| {
        // The regional registries' blocks: 2001::, 2400:: to 240f::, 2600::, 2800::, 2a00::, 2c0f::.
        let blocks = [0x2001, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00];
        blocks[random.below(6) as usize] + random.below(16) as u32
    },
    nested: 500,
};

/// Generates `routes` IPv4 routes (fewer if more than some millions do not fit) to next hops 1 to
/// `next_hops`, in address order.
pub fn ipv4(routes: usize, next_hops: NextHopId) -> Vec<(Prefix<Ipv4Addr>, NextHopId)> {
    generate(&IPV4, routes, next_hops, |random| random.word() as u32)
}

/// Generates `routes` IPv6 routes to next hops 1 to `next_hops`, in address order.
pub fn ipv6(routes: usize, next_hops: NextHopId) -> Vec<(Prefix<Ipv6Addr>, NextHopId)> {
    generate(&IPV6, routes, next_hops, Random::wide)
}

fn generate<A: Address>(
    shape: &Shape,
    routes: usize,
    next_hops: NextHopId,
    bits: fn(&mut Random) -> A::Bits,
) -> Vec<(Prefix<A>, NextHopId)> {
    let mut random = Random::new(0x7075_726e);
    let nets: Vec<u32> = (0..shape.nets).map(|_| (shape.net)(&mut random)).collect();
    let mut table: BTreeMap<Prefix<A>, NextHopId> = BTreeMap::new();
    let mut made: Vec<Prefix<A>> = Vec::with_capacity(routes);
    let next_hops = u64::from(next_hops.clamp(1, MAX_NEXT_HOP));
    let mut attempts = 0;
    while made.len() < routes && attempts < 40 * routes + 1000 {
        attempts += 1;
        let len = length(shape, &mut random);
        let inside = outer(&made, len, shape, &mut random);
        let tail = bits(&mut random);
        let address = match inside {
            Some(outer) => outer.bits() | (tail & !A::Bits::mask(outer.len())),
            None => {
                let net = nets[random.below(nets.len() as u64) as usize];
                A::Bits::place(net, 0, 16) | (tail & !A::Bits::mask(16))
            }
        };
        let prefix = Prefix::covering(A::from(address), len);
        if let Entry::Vacant(place) = table.entry(prefix) {
            place.insert(next_hop(prefix, next_hops, &mut random));
            made.push(prefix);
        }
    }
    table.into_iter().collect()
}

fn length(shape: &Shape, random: &mut Random) -> u8 {
    let total = shape.lengths.iter().map(|&(_, share)| share).sum();
    let mut at = random.below(total);
    for &(len, share) in shape.lengths {
        if at < share {
            return len;
        }
        at -= share;
    }
    shape.lengths[0].0
}

/// Chooses a prefix of the table for the next one to nest in, or none.
fn outer<A: Address>(
    made: &[Prefix<A>],
    len: u8,
    shape: &Shape,
    random: &mut Random,
) -> Option<Prefix<A>> {
    if random.below(1000) >= shape.nested {
        return None;
    }
    let mut tries = (0..8).filter_map(|_| made.get(random.below(made.len() as u64) as usize));
    tries.find(|outer| outer.len() < len).copied()
}

/// Two of three routes have the next hop of their neighbourhood; small numbers are the most
/// frequent.
fn next_hop<A: Address>(prefix: Prefix<A>, next_hops: u64, random: &mut Random) -> NextHopId {
    let place = match random.below(3) {
        0 => random.word(),
        _ => {
            let neighbourhood = prefix.bits().slice(0, 20.min(prefix.len()));
            Random::new(u64::from(neighbourhood)).word()
        }
    };
    // The product of two uniform numbers leans towards zero.
    let (a, b) = (place >> 32, place & 0xffff_ffff);
    (((u128::from(a * b) * u128::from(next_hops)) >> 64) + 1) as NextHopId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_reproducible_sorted_and_of_the_size_asked_for() {
        let size = if cfg!(miri) { 200 } else { 20_000 };
        let routes = ipv4(size, 100);
        assert_eq!(routes.len(), size);
        assert!(routes.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(routes, ipv4(size, 100));
        let routes = ipv6(size, 100);
        assert_eq!(routes.len(), size);
        assert!(routes.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs a hundred thousand routes, and no unsafe code")]
    fn lengths_and_nesting_look_like_the_internets() {
        let routes = ipv4(100_000, 200);
        let share = |len: u8| routes.iter().filter(|(p, _)| p.len() == len).count() as f64 / 1e5;
        assert!((0.45..0.6).contains(&share(24)), "{}", share(24));
        assert!((0.08..0.14).contains(&share(22)), "{}", share(22));
        let nested = routes.windows(2).filter(|w| w[0].0.contains(w[1].0.address())).count();
        assert!(nested > 20_000, "{nested}");
        assert!(routes.iter().any(|&(_, next_hop)| next_hop > 100));
    }
}

//! Sets of numbers as ranges, for the allowed values of a field and their complement.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A set of numbers: ranges in order, with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// Creates the set of the numbers in these ranges, which may overlap; empty ones add nothing.
    pub fn new(ranges: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|(low, high)| low <= high).collect();
        sorted.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (low, high) in sorted {
            match joined.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => joined.push((low, high)),
            }
        }
        Self(joined)
    }

    /// Creates the set of one number.
    pub fn one(number: u128) -> Self {
        Self(vec![(number, number)])
    }

    /// Creates the set of all numbers up to `most`.
    pub fn all(most: u128) -> Self {
        Self(vec![(0, most)])
    }

    /// Creates the set of the addresses of a prefix.
    pub fn of_net(net: &IpNet) -> Self {
        match net {
            IpNet::V4(net) => {
                Self(vec![(net.network().to_bits().into(), net.broadcast().to_bits().into())])
            }
            IpNet::V6(net) => Self(vec![(net.network().to_bits(), net.broadcast().to_bits())]),
        }
    }

    /// Returns the ranges, in order.
    pub fn ranges(&self) -> &[(u128, u128)] {
        &self.0
    }

    /// Iterates over the numbers of a small set.
    pub fn numbers(&self) -> impl Iterator<Item = u128> {
        self.0.iter().flat_map(|&(low, high)| low..=high)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, number: u128) -> bool {
        self.0.iter().any(|&(low, high)| (low..=high).contains(&number))
    }

    /// Returns the intersection.
    pub fn and(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(&&(low, high)), Some(&&(from, to))) = (left.peek(), right.peek()) {
            if low.max(from) <= high.min(to) {
                both.push((low.max(from), high.min(to)));
            }
            if high < to {
                left.next()
            } else {
                right.next()
            };
        }
        Self(both)
    }

    /// Returns the union.
    pub fn or(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).copied())
    }

    /// Returns the numbers up to `most` that are not in the set.
    pub fn not(&self, most: u128) -> Self {
        let (mut rest, mut next) = (Vec::new(), Some(0));
        for &(low, high) in &self.0 {
            if let Some(start) = next.filter(|&start| start < low) {
                rest.push((start, (low - 1).min(most)));
            }
            next = high.checked_add(1);
        }
        rest.extend(next.filter(|&start| start <= most).map(|start| (start, most)));
        Self(rest)
    }

    /// Returns true if all of the set is in `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        self.and(other) == *self
    }

    /// Returns the IPv4 addresses as prefixes.
    pub fn ip4_nets(&self) -> Vec<IpNet> {
        let net = |(low, length): (u128, u8)| {
            let net = Ipv4Net::new(Ipv4Addr::from_bits(low as u32), length);
            IpNet::V4(net.unwrap_or_default())
        };
        self.prefixes(32).map(net).collect()
    }

    /// Returns the IPv6 addresses as prefixes.
    pub fn ip6_nets(&self) -> Vec<IpNet> {
        let net = |(low, length)| {
            IpNet::V6(Ipv6Net::new(Ipv6Addr::from_bits(low), length).unwrap_or_default())
        };
        self.prefixes(128).map(net).collect()
    }

    /// Returns first address and length of the fewest prefixes of `width` bits.
    fn prefixes(&self, width: u32) -> impl Iterator<Item = (u128, u8)> {
        self.0.iter().flat_map(move |&(low, high)| {
            let mut next = Some(low);
            std::iter::from_fn(move || {
                let start = next.filter(|&start| start <= high)?;
                let mut free = start.trailing_zeros().min(width);
                // The largest aligned block that ends within the range.
                while last_of(start, free) > high {
                    free -= 1;
                }
                next = last_of(start, free).checked_add(1);
                Some((start, (width - free) as u8))
            })
        })
    }
}

/// Returns the last number of the block that begins at `start` and has `free` bits.
fn last_of(start: u128, free: u32) -> u128 {
    start | 1u128.checked_shl(free).map_or(u128::MAX, |block| block - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set() -> impl Strategy<Value = Ranges> {
        prop::collection::vec((0u128..64, 0u128..64), 0..5).prop_map(Ranges::new)
    }

    proptest! {
        /// Compares with sets of numbers, one by one.
        #[test]
        fn sets_are_what_their_numbers_say(one in set(), other in set()) {
            for number in 0..64 {
                let (left, right) = (one.has(number), other.has(number));
                prop_assert_eq!(one.and(&other).has(number), left && right);
                prop_assert_eq!(one.or(&other).has(number), left || right);
                prop_assert_eq!(one.not(63).has(number), !left);
            }
            prop_assert_eq!(one.is_within(&other), one.numbers().all(|number| other.has(number)));
            prop_assert_eq!(one.not(63).not(63), one.clone());
            let prefixes: Vec<_> = one.prefixes(6).map(|(low, length)| (low, last_of(low, 6 - u32::from(length)))).collect();
            prop_assert_eq!(Ranges::new(prefixes.iter().copied()), one);
            prop_assert!(prefixes.is_sorted());
        }
    }

    #[test]
    fn the_ends_of_address_space_are_prefixes() {
        let net: IpNet = "10.0.0.0/8".parse().unwrap();
        let rest = Ranges::of_net(&net).not(u32::MAX.into()).ip4_nets();
        let shown: Vec<_> = rest.iter().map(ToString::to_string).collect();
        let wanted = [
            "0.0.0.0/5",
            "8.0.0.0/7",
            "11.0.0.0/8",
            "12.0.0.0/6",
            "16.0.0.0/4",
            "32.0.0.0/3",
            "64.0.0.0/2",
            "128.0.0.0/1",
        ];
        assert_eq!(shown, wanted);
        assert_eq!(Ranges::all(u128::MAX).ip6_nets(), ["::/0".parse().unwrap()]);
        assert_eq!(Ranges::all(u32::MAX.into()).ip4_nets(), ["0.0.0.0/0".parse().unwrap()]);
        assert!(Ranges::all(u128::MAX).not(u128::MAX).is_empty());
    }
}

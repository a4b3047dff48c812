//! Conversion of a composite's leaves to its entry in the next-hop table.
//!
//! | leaves | entry |
//! |---|---|
//! | none | no route |
//! | one, which is resolved, or needs no resolution | a copy of the leaf's: as fast as the leaf |
//! | one that waits for its MAC | a group with this member, whose number the slow path has |
//! | several | a group whose places contain each leaf as often as its weight |
//!
//! A group keeps its places for its lifetime, and places are written while forwarders read them.
//! Any mixture of old and new leaves that a forwarder may find is right: each was a path of the
//! group just now, and its number has a meaning until a grace period after the group has released
//! it. So the loss of a path needs no allocation that could fail. Places past the group's length
//! are written too, for forwarders that still hold a longer length.
//!
//! A resilient group has a fixed number of places, its buckets. When leaves change, buckets of
//! remaining leaves stay, except those in excess of the leaf's new share: a lost path moves only
//! its own flows, and one that returns takes only its share.
//!
//! A routing daemon makes another group of the remaining paths, which has no memory of the one before. With buckets for all
//! groups, each bucket belongs to the leaf with the highest score for it (rendezvous hashing), whatever else is in the group:
//! groups that share leaves agree about their buckets, and a lost path moves only its own flows. Shares are then right on
//! average.

use std::collections::BTreeMap;

use dataplane::next_hop::{FIRST_DYNAMIC, NO_ROUTE, NextHop};

use super::{GROUP_PLACES_MOST, Hop, Meaning, NextHops, Weighted};

impl NextHops {
    /// Writes the table's entry of a number according to its leaves.
    pub(super) fn publish(&mut self, id: u16) {
        let entry = self.entry(id);
        if NextHop::from(self.table.get(id)) != entry {
            self.table.set(id, entry);
        }
    }

    /// Writes the entries of the composites that are copies of a leaf's entry.
    pub(super) fn publish_copies(&mut self, leaf: u16) {
        let mut above = self.hop(leaf).map_or_else(Vec::new, |hop| hop.parents.clone());
        while let Some(id) = above.pop() {
            let Some(hop) = self.hop(id) else { continue };
            if matches!(hop.leaves[..], [(only, _)] if only == leaf) {
                above.extend_from_slice(&hop.parents);
                self.publish(id);
            }
        }
    }

    fn entry(&mut self, id: u16) -> NextHop {
        let live = self.is_live(id);
        let Some(hop) = self.hop(id) else { return NextHop::NoRoute };
        match hop.meaning {
            _ if !live => NextHop::NoRoute,
            Meaning::Glean(interface) => NextHop::Glean { interface },
            Meaning::Gateway { interface, mac: Some(mac), .. } => {
                NextHop::Forward { interface, mac }
            }
            Meaning::Gateway { interface, mac: None, .. } => NextHop::Unresolved { interface },
            _ => {
                let leaves = hop.leaves.clone();
                let spread = self.spread(id, &leaves);
                match leaves[..] {
                    [(only, _)] => self.copy(only).unwrap_or(spread),
                    _ => spread,
                }
            }
        }
    }

    /// Returns a leaf's entry, if it has the same meaning under another number.
    fn copy(&self, leaf: u16) -> Option<NextHop> {
        let entry = NextHop::from(self.table.get(leaf));
        let by_number = matches!(entry, NextHop::Unresolved { .. });
        (leaf < FIRST_DYNAMIC || !by_number).then_some(entry)
    }

    /// Fills a composite's places with its leaves.
    fn spread(&mut self, id: u16, leaves: &[Weighted]) -> NextHop {
        self.fit_places(id, leaves);
        let Some(Hop { meaning, places, .. }) = self.hops[usize::from(id)].as_deref_mut() else {
            return NextHop::NoRoute;
        };
        let (first, count) = *places;
        if let Meaning::Object { buckets: Some(buckets), .. } = meaning
            && buckets.len() <= count as usize
        {
            rebalance(buckets, leaves);
            self.table.set_members(first, buckets);
            return NextHop::Group { first, len: buckets.len() as u16 };
        }
        if let Some(len) = self.buckets.filter(|&len| leaves.len() > 1 && u32::from(len) <= count) {
            let slots: Vec<u16> = (0..len).map(|bucket| highest(bucket, leaves)).collect();
            self.table.set_members(first, &slots);
            return NextHop::Group { first, len };
        }
        let shares = apportion(leaves, count).into_iter();
        let mut slots: Vec<u16> =
            shares.flat_map(|(leaf, share)| std::iter::repeat_n(leaf, share as usize)).collect();
        let len = slots.len();
        for at in len..count as usize {
            slots.push(slots[at - len]);
        }
        self.table.set_members(first, &slots);
        NextHop::Group { first, len: len as u16 }
    }

    /// Allocates as many places for a composite as its leaves' weights need, if there is room; else
    /// it keeps its places, and the weights are rounded.
    fn fit_places(&mut self, id: u16, leaves: &[Weighted]) {
        let total: u64 = leaves.iter().map(|&(_, weight)| u64::from(weight)).sum();
        let of_all = self.buckets.filter(|_| leaves.len() > 1);
        let Some(hop) = self.hop(id) else { return };
        let wanted = match &hop.meaning {
            Meaning::Object { buckets: Some(buckets), .. } => buckets.len() as u32,
            _ if of_all.is_some() => of_all.map_or(0, u32::from),
            _ => total.min(GROUP_PLACES_MOST.into()) as u32,
        };
        if wanted <= hop.places.1 {
            return;
        }
        let Ok(first) = self.take_places(wanted) else { return };
        if let Some(hop) = self.hop_mut(id) {
            let old = std::mem::replace(&mut hop.places, (first, wanted));
            self.retire_places(old);
        }
    }
}

/// Divides weights by their greatest common divisor.
pub(super) fn reduce(leaves: &mut [Weighted]) {
    let divisor = leaves.iter().fold(0, |divisor, &(_, weight)| gcd(divisor, weight.into())).max(1);
    leaves.iter_mut().for_each(|leaf| leaf.1 = (u64::from(leaf.1) / divisor) as u32);
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Largest denominator of shares that are computed exactly.
const FINEST: u64 = 1 << 20;

/// Returns the leaves of several members in ascending order, each member's leaves sharing the
/// member's weight.
pub(super) fn merge(members: &[(u32, &[Weighted])]) -> Vec<Weighted> {
    let sum = |leaves: &[Weighted]| leaves.iter().map(|&(_, w)| u64::from(w)).sum::<u64>().max(1);
    // A common multiple of all sums, so that every share is a whole number.
    let common = members.iter().try_fold(1u64, |common, (_, leaves)| {
        let sum = sum(leaves);
        let next = common / gcd(common, sum) * sum;
        (next <= FINEST).then_some(next)
    });
    let common = common.unwrap_or(FINEST);
    let mut shares: BTreeMap<u16, u64> = BTreeMap::new();
    for (weight, leaves) in members {
        let sum = sum(leaves);
        for &(leaf, part) in *leaves {
            // At most 2^15 * 2^20 * 2^20.
            let share = u64::from(*weight) * u64::from(part) * common / sum;
            *shares.entry(leaf).or_default() += share.max(1);
        }
    }
    let divisor = shares.values().fold(0, |divisor, &share| gcd(divisor, share)).max(1);
    shares.values_mut().for_each(|share| *share /= divisor);
    // So that parts of a later merge stay below 2^20.
    let total: u64 = shares.values().sum();
    let scale = |share: u64| match total <= FINEST {
        true => share,
        false => (u128::from(share) * u128::from(FINEST) / u128::from(total)) as u64,
    };
    shares.into_iter().map(|(leaf, share)| (leaf, scale(share).max(1) as u32)).collect()
}

/// Returns the number of places of each leaf out of `count`: exactly its weight if they suffice,
/// else in proportion, at least one as long as there are places.
pub(super) fn apportion(leaves: &[Weighted], count: u32) -> Vec<Weighted> {
    let total: u64 = leaves.iter().map(|&(_, weight)| u64::from(weight)).sum();
    if total <= count.into() {
        return leaves.to_vec();
    }
    proportion(leaves, count)
}

/// Divides all of `count` places by the largest remainders.
fn proportion(leaves: &[Weighted], count: u32) -> Vec<Weighted> {
    let leaves = &leaves[..leaves.len().min(count as usize)];
    let total: u64 = leaves.iter().map(|&(_, weight)| u64::from(weight)).sum::<u64>().max(1);
    // One place each, the others by weight.
    let rest = u64::from(count) - leaves.len() as u64;
    let part = |weight: u32| (u64::from(weight) * rest / total, u64::from(weight) * rest % total);
    let mut shares: Vec<Weighted> =
        leaves.iter().map(|&(leaf, weight)| (leaf, 1 + part(weight).0 as u32)).collect();
    let given: u64 = shares.iter().map(|&(_, share)| u64::from(share)).sum();
    let mut order: Vec<usize> = (0..leaves.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(part(leaves[at].1).1), at));
    for &at in order.iter().cycle().take((u64::from(count) - given) as usize) {
        shares[at].1 += 1;
    }
    shares
}

/// Returns the leaf with the highest score for a bucket; a leaf wins as often as its weight says.
fn highest(bucket: u16, leaves: &[Weighted]) -> u16 {
    let score = |&(leaf, weight): &Weighted| {
        // SplitMix64's finalizer.
        let mut bits =
            (u64::from(bucket) << 16 | u64::from(leaf)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        // Uniform in (0, 1).
        let uniform = ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -f64::from(weight) / uniform.ln()
    };
    let best = leaves.iter().max_by(|a, b| score(a).total_cmp(&score(b)));
    best.map_or(NO_ROUTE, |&(leaf, _)| leaf)
}

/// Gives each leaf its share of the buckets and moves as few buckets as possible.
fn rebalance(buckets: &mut [u16], leaves: &[Weighted]) {
    if leaves.is_empty() {
        return;
    }
    let mut left: BTreeMap<u16, u32> =
        proportion(leaves, buckets.len() as u32).into_iter().collect();
    for bucket in buckets.iter_mut() {
        match left.get_mut(bucket) {
            Some(share) if *share > 0 => *share -= 1,
            _ => *bucket = NO_ROUTE,
        }
    }
    let mut lacking =
        left.into_iter().flat_map(|(leaf, share)| std::iter::repeat_n(leaf, share as usize));
    for bucket in buckets.iter_mut().filter(|bucket| **bucket == NO_ROUTE) {
        *bucket = lacking.next().unwrap_or(leaves[0].0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_share_their_weight_among_their_leaves() {
        // One half to leaf 20; the other half: two thirds to 21, one third to 22.
        let merged = merge(&[(1, &[(20, 1)]), (1, &[(22, 1), (21, 2)])]);
        assert_eq!(merged, [(20, 3), (21, 2), (22, 1)]);
        // A leaf found twice has the sum of both shares.
        assert_eq!(merge(&[(1, &[(20, 1)]), (3, &[(20, 1), (21, 1)])]), [(20, 5), (21, 3)]);
        assert_eq!(merge(&[]), []);
        // Shares too fine to be exact are approximately in proportion.
        let primes = [997, 991, 983, 977, 971].map(|prime| vec![(30, prime - 1), (31, 1)]);
        let members: Vec<_> = primes.iter().map(|leaves| (1, &leaves[..])).collect();
        let fine = merge(&members);
        assert!(fine[0].1 / fine[1].1 > 900 && fine[0].1 / fine[1].1 < 1100, "{fine:?}");
    }

    #[test]
    fn places_are_in_proportion() {
        assert_eq!(apportion(&[(20, 1), (21, 3)], 4), [(20, 1), (21, 3)]);
        assert_eq!(apportion(&[(20, 1), (21, 3)], 8), [(20, 1), (21, 3)]);
        assert_eq!(apportion(&[(20, 100), (21, 300)], 8), [(20, 3), (21, 5)]);
        assert_eq!(apportion(&[(20, 1), (21, 5000)], 4), [(20, 1), (21, 3)]);
        assert_eq!(apportion(&[(20, 1), (21, 1), (22, 1)], 2), [(20, 1), (21, 1)]);
    }

    #[test]
    fn a_lost_leaf_moves_its_own_buckets_only_and_takes_back_its_share() {
        let mut buckets = vec![NO_ROUTE; 12];
        rebalance(&mut buckets, &[(20, 1), (21, 1), (22, 1)]);
        let of = |buckets: &[u16], leaf| buckets.iter().filter(|&&b| b == leaf).count();
        assert_eq!([20, 21, 22].map(|leaf| of(&buckets, leaf)), [4, 4, 4]);
        let before = buckets.clone();
        rebalance(&mut buckets, &[(20, 1), (22, 1)]);
        assert_eq!([20, 21, 22].map(|leaf| of(&buckets, leaf)), [6, 0, 6]);
        for (before, after) in before.iter().zip(&buckets) {
            assert!(*before == 21 || before == after);
        }
        let before = buckets.clone();
        rebalance(&mut buckets, &[(20, 1), (21, 1), (22, 1)]);
        assert_eq!([20, 21, 22].map(|leaf| of(&buckets, leaf)), [4, 4, 4]);
        let moved = before.iter().zip(&buckets).filter(|(before, after)| before != after).count();
        assert_eq!(moved, 4);
    }

    #[test]
    fn groups_that_share_leaves_agree_about_their_buckets() {
        let of = |leaves: &[Weighted]| (0..1024).map(|b| highest(b, leaves)).collect::<Vec<_>>();
        let all = of(&[(20, 1), (21, 1), (22, 1), (23, 1)]);
        let share = |buckets: &[u16], leaf| buckets.iter().filter(|&&b| b == leaf).count();
        for leaf in 20..24 {
            // 256, and four standard deviations of 14.
            assert!((200..312).contains(&share(&all, leaf)), "{leaf}: {}", share(&all, leaf));
        }
        let fewer = of(&[(20, 1), (21, 1), (23, 1)]);
        for (all, fewer) in all.iter().zip(&fewer) {
            assert!(*all == 22 || all == fewer, "a flow of a remaining path has moved");
        }
        // Its flows go to all others.
        assert!([20, 21, 23].iter().all(|&leaf| share(&fewer, leaf) > share(&all, leaf) + 40));
        let weighted = of(&[(20, 3), (21, 1)]);
        assert!((700..836).contains(&share(&weighted, 20)), "{}", share(&weighted, 20));
        assert_eq!(highest(0, &[]), NO_ROUTE);
    }
}

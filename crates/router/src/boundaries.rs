//! The prefixes at which the treatment of packets changes, for the XDP programs of accelerated interfaces.
//!
//! A program asks for each packet whether its route leads over accelerated interfaces. A full table in the program would
//! cost each packet the walk through it. Most prefixes are treated as the shorter ones around them: only those that
//! differ from the next shorter prefix of the FIB are *boundaries*, and the longest boundary that contains an address
//! decides for it. Outside all boundaries packets are not forwarded.
//!
//! ```text
//!   FIB                             boundaries
//!   0.0.0.0/0       forwarded       0.0.0.0/0       forwarded
//!   10.0.1.0/24     forwarded
//!   10.0.1.1/32     own address     10.0.1.1/32     other
//!   10.9.0.0/16     by wg0          10.9.0.0/16     other
//!   10.9.7.0/24     forwarded       10.9.7.0/24     forwarded
//! ```
//!
//! The changes of an update are in an order in which no packet is taken for forwarded meanwhile that is not: first the
//! boundaries of other treatment, last the removals.
//!
//! Without a default route nearly every prefix is a boundary, and a full table takes the owner many turns: the boundaries
//! are made by a [`Walk`] in the order of prefixes, while the FIB changes before and behind it. Changed prefixes are
//! *pending* until [`Boundaries::follow`]. For these the boundaries still have the former treatment, which is as good as
//! the FIB's own: a prefix without a boundary was treated as what is around it. So any number of changes is followed one by
//! one, in any order, each as if it were the only one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ipnet::IpNet;

/// A FIB, as far as boundaries depend on it.
pub trait Treatments {
    /// Returns true if packets are forwarded by exactly this prefix, false if they are not; `None` if it is not there.
    fn of(&self, prefix: IpNet) -> Option<bool>;
    /// Returns the first prefix after all addresses of this one, or, with `within`, the first one that this one contains.
    fn next(&self, prefix: IpNet, within: bool) -> Option<IpNet>;
}

/// A change of a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Packets are forwarded from here on, or not.
    Set(IpNet, bool),
    /// It is none any more.
    Remove(IpNet),
}

/// The progress of a walk through a FIB.
#[derive(Debug, Default)]
pub struct Walk {
    /// The prefixes that contain the last one, and that one, the shortest first.
    around: Vec<(IpNet, bool)>,
}

impl Walk {
    /// Returns the prefix that was walked to last; `None` at first.
    pub fn last(&self) -> Option<IpNet> {
        self.around.last().map(|(prefix, _)| *prefix)
    }

    /// Walks to the next prefix. Returns true if its treatment differs from that of the next shorter one.
    fn step(&mut self, prefix: IpNet, forwards: bool) -> bool {
        while self.around.pop_if(|(outer, _)| !outer.contains(&prefix)).is_some() {}
        let differs = self.around.last().is_some_and(|(_, outer)| *outer) != forwards;
        self.around.push((prefix, forwards));
        differs
    }
}

/// The FIB as the boundaries have it: of pending prefixes the former treatment.
struct Known<'a, F> {
    fib: &'a F,
    pending: &'a BTreeSet<IpNet>,
    boundaries: &'a BTreeMap<IpNet, bool>,
}

impl<F: Treatments> Treatments for Known<'_, F> {
    fn of(&self, prefix: IpNet) -> Option<bool> {
        match self.pending.contains(&prefix) {
            true => self.boundaries.get(&prefix).copied(),
            false => self.fib.of(prefix),
        }
    }

    fn next(&self, prefix: IpNet, within: bool) -> Option<IpNet> {
        let (mut place, mut within) = (prefix, within);
        loop {
            let start = if within { place } else { last_address(place) };
            let pending = self.pending.range((Bound::Excluded(start), Bound::Unbounded)).next();
            let found = self.fib.next(place, within).into_iter().chain(pending.copied()).min()?;
            if self.of(found).is_some() {
                return Some(found);
            }
            // A pending one that was not there: those within it are next.
            (place, within) = (found, true);
        }
    }
}

/// The boundaries of both families.
#[derive(Debug, Default)]
pub struct Boundaries(BTreeMap<IpNet, bool>);

impl Boundaries {
    /// Returns their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes up the next prefix of a FIB, in their order; returns the change if it is a boundary.
    pub fn add(&mut self, walk: &mut Walk, prefix: IpNet, forwards: bool) -> Option<Change> {
        let is_boundary = walk.step(prefix, forwards);
        is_boundary.then(|| {
            self.0.insert(prefix, forwards);
            Change::Set(prefix, forwards)
        })
    }

    /// Follows a change of one prefix in the FIB, while those `pending` have changed as well and are followed later.
    /// Returns the changes in the order in which they are to be made.
    pub fn follow(
        &mut self,
        prefix: IpNet,
        fib: &impl Treatments,
        pending: &BTreeSet<IpNet>,
    ) -> Vec<Change> {
        let before = self.decide(prefix);
        let around = {
            let known = Known { fib, pending, boundaries: &self.0 };
            shorter(prefix).find_map(|outer| known.of(outer)).unwrap_or(false)
        };
        let own = fib.of(prefix);
        let now = own.unwrap_or(around);
        let mut changes = Vec::new();
        self.settle(prefix, own.filter(|own| *own != around), &mut changes);
        if now != before {
            self.settle_within(prefix, now, (fib, pending), &mut changes);
        }
        changes.sort_by_key(|change| match change {
            Change::Set(_, false) => 0,
            // A prefix that is forwarded from now on, before those within it.
            Change::Set(of, true) => 1 + u32::from(of.prefix_len()),
            Change::Remove(_) => 1000,
        });
        changes
    }

    /// Settles the prefixes right within one that is treated otherwise now.
    fn settle_within(
        &mut self,
        prefix: IpNet,
        now: bool,
        (fib, pending): (&impl Treatments, &BTreeSet<IpNet>),
        changes: &mut Vec<Change>,
    ) {
        let (mut place, mut within) = (prefix, true);
        loop {
            let known = Known { fib, pending, boundaries: &self.0 };
            let Some(inner) = known.next(place, within).filter(|inner| prefix.contains(inner))
            else {
                return;
            };
            let wanted = known.of(inner).filter(|of| *of != now);
            self.settle(inner, wanted, changes);
            (place, within) = (inner, false);
        }
    }

    /// Returns the answer for all addresses of a prefix that no longer boundary decides.
    fn decide(&self, prefix: IpNet) -> bool {
        let own = self.0.get(&prefix).copied();
        own.or_else(|| shorter(prefix).find_map(|outer| self.0.get(&outer).copied()))
            .unwrap_or(false)
    }

    /// Makes a prefix a boundary, or none.
    fn settle(&mut self, prefix: IpNet, wanted: Option<bool>, changes: &mut Vec<Change>) {
        match wanted {
            Some(forwards) if self.0.insert(prefix, forwards) != Some(forwards) => {
                changes.push(Change::Set(prefix, forwards));
            }
            None if self.0.remove(&prefix).is_some() => changes.push(Change::Remove(prefix)),
            _ => {}
        }
    }
}

/// Returns the place of the last address of a prefix in the order of prefixes.
pub fn last_address(prefix: IpNet) -> IpNet {
    IpNet::new_assert(prefix.broadcast(), prefix.max_prefix_len())
}

/// Returns the prefixes that contain this one, the longest first.
fn shorter(prefix: IpNet) -> impl Iterator<Item = IpNet> {
    (0..prefix.prefix_len()).rev().map(move |bits| IpNet::new_assert(prefix.addr(), bits).trunc())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Fib = BTreeMap<IpNet, bool>;

    impl Treatments for Fib {
        fn of(&self, prefix: IpNet) -> Option<bool> {
            self.get(&prefix).copied()
        }

        fn next(&self, prefix: IpNet, within: bool) -> Option<IpNet> {
            let start = if within { prefix } else { last_address(prefix) };
            self.range((Bound::Excluded(start), Bound::Unbounded)).next().map(|(net, _)| *net)
        }
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    /// The boundaries of a FIB that does not change.
    fn of(fib: impl IntoIterator<Item = (IpNet, bool)>) -> Boundaries {
        let (mut boundaries, mut walk) = (Boundaries::default(), Walk::default());
        for (prefix, forwards) in fib {
            boundaries.add(&mut walk, prefix, forwards);
        }
        boundaries
    }

    fn none() -> BTreeSet<IpNet> {
        BTreeSet::new()
    }

    fn change(fib: &mut Fib, prefix: IpNet, treatment: Option<bool>) {
        match treatment {
            Some(forwards) => _ = fib.insert(prefix, forwards),
            None => _ = fib.remove(&prefix),
        }
    }

    fn make(kernel: &mut Fib, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Set(net, forwards) => _ = kernel.insert(net, forwards),
                Change::Remove(net) => _ = kernel.remove(&net),
            }
        }
    }

    /// The answer for a host, by the longest of some prefixes.
    fn answer(prefixes: &Fib, host: IpNet) -> bool {
        let own = prefixes.get(&host).copied();
        own.or_else(|| shorter(host).find_map(|outer| prefixes.get(&outer).copied()))
            .unwrap_or(false)
    }

    #[test]
    fn a_full_table_by_accelerated_interfaces_is_one_boundary() {
        let more = (0..=255).map(|third| (net(&format!("198.51.{third}.0/24")), true));
        let all = [(net("0.0.0.0/0"), true)].into_iter().chain(more);
        let boundaries = of(all.chain([(net("198.51.255.1/32"), false)]));
        let expected = [(net("0.0.0.0/0"), true), (net("198.51.255.1/32"), false)];
        assert_eq!(boundaries.0, expected.into());
    }

    #[test]
    fn a_default_route_that_leaves_elsewhere_keeps_the_others() {
        let mut fib: Fib = [
            (net("0.0.0.0/0"), true),
            (net("10.0.0.0/8"), true),
            (net("10.0.0.1/32"), false),
            (net("192.0.2.0/24"), false),
        ]
        .into();
        let mut boundaries = of(fib.clone());
        fib.insert(net("0.0.0.0/0"), false);
        let changes = boundaries.follow(net("0.0.0.0/0"), &fib, &none());
        let expected = [
            Change::Set(net("10.0.0.0/8"), true),
            Change::Remove(net("0.0.0.0/0")),
            Change::Remove(net("192.0.2.0/24")),
        ];
        assert_eq!(changes, expected);
        fib.remove(&net("0.0.0.0/0"));
        assert_eq!(boundaries.follow(net("0.0.0.0/0"), &fib, &none()), []);
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        let v4 = (0_u32..16, 28_u8..=32).prop_map(|(low, bits)| {
            IpNet::new_assert(std::net::Ipv4Addr::from(0x0a00_0000 | low).into(), bits).trunc()
        });
        let v6 = (0_u128..8, 125_u8..=128).prop_map(|(low, bits)| {
            IpNet::new_assert(std::net::Ipv6Addr::from(0xfd_u128 << 120 | low).into(), bits).trunc()
        });
        prop_oneof![v4, v6, Just(net("0.0.0.0/0")), Just(net("::/0"))]
    }

    fn hosts() -> impl Iterator<Item = IpNet> {
        let v4 = (0..16).map(|low| net(&format!("10.0.0.{low}/32")));
        let v6 = (0..8).map(|low| net(&format!("fd00::{low}/128")));
        v4.chain(v6).chain([net("192.0.2.1/32"), net("2001:db8::1/128")])
    }

    proptest! {
        #[test]
        fn boundaries_decide_as_the_fib_does(
            changes in prop::collection::vec((prefix(), prop::option::of(any::<bool>())), 1..40),
        ) {
            let mut fib = Fib::new();
            let mut boundaries = Boundaries::default();
            let mut kernel = Fib::new();
            for (prefix, treatment) in changes {
                let old = fib.clone();
                change(&mut fib, prefix, treatment);
                for step in boundaries.follow(prefix, &fib, &none()) {
                    make(&mut kernel, vec![step]);
                    for host in hosts() {
                        // Meanwhile nothing is forwarded that is not before or after.
                        let may = answer(&old, host) || answer(&fib, host);
                        prop_assert!(may || !answer(&kernel, host), "{host} within {prefix}");
                    }
                }
                for host in hosts() {
                    prop_assert_eq!(answer(&kernel, host), answer(&fib, host), "{}", host);
                }
                let anew = of(fib.clone());
                prop_assert_eq!(&boundaries.0, &anew.0);
                prop_assert_eq!(&boundaries.0, &kernel);
            }
        }

        #[test]
        fn changes_are_followed_in_any_order_also_those_during_the_walk(
            first in prop::collection::btree_map(prefix(), any::<bool>(), 0..20),
            changes in prop::collection::vec((prefix(), prop::option::of(any::<bool>())), 0..20),
            backwards in any::<bool>(),
            walked in 0_usize..20,
        ) {
            let mut fib: Fib = first;
            let (mut boundaries, mut walk) = (Boundaries::default(), Walk::default());
            let mut kernel = Fib::new();
            let (mut changes, mut pending) = (changes.into_iter(), BTreeSet::new());
            let mut place = None;
            for number in 0.. {
                let after = place.map_or(Bound::Unbounded, Bound::Excluded);
                let Some((net, forwards)) = fib.range((after, Bound::Unbounded)).next() else { break };
                let (net, forwards) = (*net, *forwards);
                make(&mut kernel, boundaries.add(&mut walk, net, forwards).into_iter().collect());
                prop_assert_eq!(walk.last(), Some(net));
                place = Some(net);
                if number >= walked && let Some((prefix, treatment)) = changes.next() {
                    change(&mut fib, prefix, treatment);
                    pending.insert(prefix);
                }
            }
            for (prefix, treatment) in changes {
                change(&mut fib, prefix, treatment);
                pending.insert(prefix);
            }
            while let Some(prefix) =
                if backwards { pending.pop_last() } else { pending.pop_first() }
            {
                make(&mut kernel, boundaries.follow(prefix, &fib, &pending));
            }
            prop_assert_eq!(&boundaries.0, &of(fib).0);
            prop_assert_eq!(&boundaries.0, &kernel);
        }
    }
}

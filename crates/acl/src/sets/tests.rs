use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fib::{Epochs, NoReaders};
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::{Action, BATCH, Classifier, Family, Fields, Filter, Key, Matches, Rule, walk_from};

fn no_readers() -> Sets {
    Sets::new(|| Box::new(NoReaders)).unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn named(name: &str) -> Vec<String> {
    vec![name.to_owned()]
}

#[test]
fn an_address_is_in_the_sets_of_all_prefixes_around_it() {
    let mut sets = no_readers();
    let [a, b] = ["a", "b"].map(|name| sets.add_set(name).unwrap());
    assert_eq!(sets.add_set("a"), Some(a));
    let readers = sets.readers();
    let in_sets = |address: &str| ["a", "b"].map(|name| readers.hold(&named(name), ip(address)));
    assert_eq!(in_sets("10.1.2.3"), [false; 2]);
    assert_eq!(sets.add(a, net("10.1.2.3/32")), Ok(true));
    assert_eq!(sets.add(a, net("10.1.2.3/32")), Ok(false), "it is there");
    assert_eq!(sets.add(b, net("10.1.0.0/16")), Ok(true));
    assert_eq!(sets.add(b, net("2001:db8::/32")), Ok(true));
    assert_eq!(in_sets("10.1.2.3"), [true, true]);
    assert_eq!(in_sets("10.1.2.4"), [false, true]);
    assert_eq!(in_sets("2001:db8::1"), [false, true]);
    let all: Vec<_> = sets.elements(b).collect();
    assert_eq!(all, [net("10.1.0.0/16"), net("2001:db8::/32")]);
    assert_eq!(sets.remove(b, net("10.1.0.0/16")), Ok(true));
    assert_eq!(sets.remove(b, net("10.1.0.0/16")), Ok(false), "it is not there");
    assert_eq!(in_sets("10.1.2.3"), [true, false]);
    sets.remove_set(a).unwrap();
    assert_eq!(in_sets("10.1.2.3"), [false, false]);
    assert_eq!(sets.names().collect::<Vec<_>>(), ["b"]);
    assert!(readers.hold(&["c".into(), "b".into()], ip("2001:db8::1")), "one of several");
}

#[test]
fn there_are_so_many_sets() {
    let mut sets = no_readers();
    for number in 0..SETS_MAX {
        let set = sets.add_set(&number.to_string()).unwrap();
        sets.add(set, net("0.0.0.0/0")).unwrap();
    }
    assert_eq!(sets.add_set("one too many"), None);
    let readers = sets.readers();
    assert!(readers.hold(&named("63"), ip("192.0.2.1")));
    sets.remove_set(sets.find("7").unwrap()).unwrap();
    assert!(sets.add_set("another").is_some());
    assert!(!sets.readers().hold(&named("another"), ip("192.0.2.1")));
}

/// Few bits differ, so that prefixes nest.
fn nets() -> impl Strategy<Value = IpNet> {
    let v4 = (select(vec![0u32, 1, 0x8000_0000, 0xffff_ffff, 0x0a00_0000, 0x0a00_0100]), 0u8..=32);
    let v6 = (select(vec![0u128, 1, 1 << 127, u128::MAX, 0x2001_0db8 << 96]), 0u8..=128);
    let v4 = v4
        .prop_map(|(bits, len)| IpNet::new(Ipv4Addr::from_bits(bits).into(), len).unwrap().trunc());
    let v6 = v6
        .prop_map(|(bits, len)| IpNet::new(Ipv6Addr::from_bits(bits).into(), len).unwrap().trunc());
    prop_oneof![v4, v6]
}

proptest! {
    #[test]
    fn any_changes_leave_what_a_list_of_elements_says(
        changes in vec((any::<bool>(), 0usize..4, nets()), 1..120),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut sets = no_readers();
        let ids = names.map(|name| sets.add_set(name).unwrap());
        let mut list = BTreeSet::new();
        for (adds, set, net) in changes {
            let changed = match adds {
                true => (sets.add(ids[set], net).unwrap(), list.insert((set, net))),
                false => (sets.remove(ids[set], net).unwrap(), list.remove(&(set, net))),
            };
            prop_assert_eq!(changed.0, changed.1);
        }
        let readers = sets.readers();
        for (_, net) in &list {
            for address in [net.network(), net.broadcast()] {
                for (set, name) in names.iter().enumerate() {
                    let held = list.iter().any(|(of, net)| *of == set && net.contains(&address));
                    prop_assert_eq!(readers.hold(&named(name), address), held, "{} in {}", address, name);
                }
            }
        }
        for (set, id) in ids.into_iter().enumerate() {
            let own: Vec<_> = list.iter().filter(|(of, _)| *of == set).map(|(_, net)| *net).collect();
            let elements: BTreeSet<_> = sets.elements(id).collect();
            prop_assert_eq!(elements, own.into_iter().collect::<BTreeSet<_>>());
        }
    }
}

/// Thousands of classes are used and released, far more than exist at a time.
#[test]
fn classes_are_used_again() {
    let mut sets = no_readers();
    let ids: Vec<_> = (0..16).map(|n: u32| sets.add_set(&n.to_string()).unwrap()).collect();
    for round in 0..70_000u32 {
        let of = |n: usize| round >> n & 1 != 0;
        for (n, id) in ids.iter().enumerate() {
            match of(n) {
                true => sets.add(*id, net("192.0.2.1/32")).unwrap(),
                false => sets.remove(*id, net("192.0.2.1/32")).unwrap(),
            };
        }
    }
    let readers = sets.readers();
    let last = 69_999u32;
    for n in 0..16u32 {
        assert_eq!(readers.hold(&named(&n.to_string()), ip("192.0.2.1")), last >> n & 1 != 0);
    }
}

/// An address is in its set at each lookup, and never in a set that it was not added to.
#[test]
fn readers_see_no_set_that_nobody_put_an_address_into() {
    let epochs = Epochs::default();
    let mut sets = Sets::new(|| Box::new(epochs.clone())).unwrap();
    let [stays, comes, never] = ["stays", "comes", "never"].map(|name| sets.add_set(name).unwrap());
    sets.add(stays, net("10.0.0.0/8")).unwrap();
    sets.add(never, net("192.0.2.0/24")).unwrap();
    let (readers, reader) = (sets.readers(), epochs.register());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let looks = std::thread::spawn(move || {
        let mut looks = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            for host in 0..64u32 {
                let address = Ipv4Addr::from_bits(0x0a01_0200 + host).into();
                assert!(readers.hold(&named("stays"), address));
                assert!(!readers.hold(&named("never"), address));
                looks += 1;
            }
            reader.quiescent();
        }
        looks
    });
    for round in 0..20_000u32 {
        let host = IpNet::new(Ipv4Addr::from_bits(0x0a01_0200 + round % 64).into(), 32).unwrap();
        sets.add(comes, host).unwrap();
        sets.add(never, net("192.0.2.128/25")).unwrap();
        sets.remove(comes, host).unwrap();
        sets.remove(never, net("192.0.2.128/25")).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(looks.join().unwrap() > 0);
}

fn rule(from_set: &[&str], to_set: &[&str], action: Action) -> Rule {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let matches = Matches { from_set: list(from_set), to_set: list(to_set), ..Matches::default() };
    Rule { name: None, line: 1, matches, action }
}

#[test]
fn rules_follow_the_sets_without_being_made_anew() {
    let mut sets = no_readers();
    let [a, b] = ["a", "b"].map(|name| sets.add_set(name).unwrap());
    let mut rules = vec![
        rule(&["a", "b"], &["b"], Action::Drop),
        rule(&["a"], &[], Action::Continue),
        rule(&[], &["a"], Action::Drop),
        rule(&["b"], &[], Action::Accept),
        rule(&["nobody"], &[], Action::Drop),
    ];
    for size in [0, 100, 600] {
        let fill = Matches { protocol: vec![200], ..Matches::default() };
        let fill = Rule { name: None, line: 1, matches: fill, action: Action::Drop };
        rules.splice(0..0, std::iter::repeat_n(fill, size));
        let filter = Filter { name: "f".into(), rules: rules.clone(), default: Action::Drop };
        let classifier = Classifier::<Ipv4Addr>::new(&filter, &sets.readers()).unwrap();
        let keys: Vec<Key> = (0..BATCH as u128)
            .map(|n| Key {
                source: 0x0a00_0000 + n / 8,
                destination: 0x0a00_0000 + n % 8,
                ..Key::default()
            })
            .collect();
        let mut fields = Fields::default();
        keys.iter().for_each(|key| fields.push(key));
        let look = |sets: &Sets| {
            let (readers, mut found) = (sets.readers(), [0; BATCH]);
            classifier.classify(&fields, &mut found);
            for (place, (key, found)) in keys.iter().zip(found).enumerate() {
                let walked = |first| {
                    let rule = walk_from(&filter, &readers, (Family::Ip4, key), first);
                    rule.unwrap_or(filter.rules.len())
                };
                assert_eq!(found as usize, walked(0), "{key:?}");
                let next = classifier.next(&fields, place, found) as usize;
                assert_eq!(next, walked(found as usize + 1), "{key:?}");
            }
        };
        look(&sets);
        sets.add(a, net("10.0.0.2/31")).unwrap();
        sets.add(b, net("10.0.0.4/30")).unwrap();
        look(&sets);
        sets.add(b, net("10.0.0.3/32")).unwrap();
        look(&sets);
        for (set, element) in [(a, "10.0.0.2/31"), (b, "10.0.0.4/30"), (b, "10.0.0.3/32")] {
            assert_eq!(sets.remove(set, net(element)), Ok(true));
        }
        look(&sets);
    }
}

#[test]
fn too_many_lists_are_named() {
    let rules = (0..9).map(|n| rule(&[&format!("set{n}")], &[], Action::Drop)).collect();
    let filter = Filter { name: "f".into(), rules, default: Action::Accept };
    let error = Classifier::<Ipv4Addr>::check(&filter).unwrap_err().to_string();
    assert_eq!(
        error,
        "filter \"f\": 9 different lists in from_set for IPv4, at most 8: use the same lists in several rules, or \
         split the filter"
    );
}

/// More single hosts than the fast table has room for; lookups find each of them meanwhile.
#[test]
fn many_hosts_move_to_another_table() {
    let mut sets = no_readers();
    let a = sets.add_set("a").unwrap();
    let readers = sets.readers();
    let host = |n: u32| Ipv4Addr::from_bits(0x0a00_0000 + n * 256);
    for n in 0..40_000 {
        sets.add(a, IpNet::from(IpAddr::from(host(n)))).unwrap();
        for other in [0, n / 2, n] {
            assert!(readers.hold(&named("a"), host(other).into()), "{other} of {n}");
        }
        assert!(!readers.hold(&named("a"), host(n + 1).into()));
    }
    for n in 0..40_000 {
        sets.remove(a, IpNet::from(IpAddr::from(host(n)))).unwrap();
        assert!(!readers.hold(&named("a"), host(n).into()));
    }
}

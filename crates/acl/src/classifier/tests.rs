use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::{Action, Key, Matches, Rule, SetReaders, State, generate, walk, walk_from};

/// Compares all results with the walk's.
fn compare<A: FilterAddress>(filter: &Filter, keys: &[Key]) {
    let classifier = Classifier::<A>::new(filter, &SetReaders::none()).unwrap();
    let mut fields = Fields::default();
    let mut found = [0; BATCH];
    // Batches of all lengths.
    let mut rest = keys;
    for length in (1..=BATCH).cycle() {
        let (batch, behind) = rest.split_at(length.min(rest.len()));
        fields.clear();
        batch.iter().for_each(|key| fields.push(key));
        classifier.classify(&fields, &mut found);
        for (key, found) in batch.iter().zip(found) {
            let walked = walk(filter, A::OF, key).unwrap_or(filter.rules.len());
            assert_eq!(found as usize, walked, "{} {key:?}", filter.name);
        }
        // The next match is checked for one packet of each batch.
        if let Some(key) = batch.last() {
            let place = batch.len() - 1;
            let walked =
                walk_from(filter, &SetReaders::none(), (A::OF, key), found[place] as usize + 1);
            let next = classifier.next(&fields, place, found[place]);
            let walked = walked.unwrap_or(filter.rules.len());
            assert_eq!(next as usize, walked, "{} {key:?}", filter.name);
        }
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
}

fn generated<A: FilterAddress>(kind: generate::Kind, size: usize, seed: u64) {
    let filter = generate::rules(kind, A::OF, size, seed);
    let packets = generate::packets(&filter, A::OF, 3000, seed);
    let keys: Vec<Key> = packets.iter().map(|packet| packet.key(A::OF)).collect();
    compare::<A>(&filter, &keys);
}

#[test]
fn made_up_filters_of_all_sizes_are_walked_right() {
    for kind in generate::Kind::ALL {
        for size in [0, 1, 10, 63, 64, 65, 255, 256, 257, 700, 5000, 20_000] {
            generated::<Ipv4Addr>(kind, size, size as u64);
        }
        for size in [10, 64, 300, 5000] {
            generated::<Ipv6Addr>(kind, size, size as u64);
        }
    }
}

fn rule(matches: Matches) -> Rule {
    Rule { name: None, line: 1, matches, action: Action::Accept }
}

#[test]
fn long_lists_of_prefixes_cost_no_rules() {
    let nets = |first: u32, step: u32| {
        (0..100_000u32).map(move |n| {
            ipnet::IpNet::from(std::net::IpAddr::from(Ipv4Addr::from_bits(
                first.wrapping_add(n * step),
            )))
        })
    };
    let from = Matches { from: nets(0x0100_0001, 40_503).collect(), ..Matches::default() };
    let to = Matches { to: nets(0x0b00_0000, 7).collect(), ..Matches::default() };
    let filter =
        Filter { name: "sets".into(), rules: vec![rule(from), rule(to)], default: Action::Drop };
    let key = |source: u32, destination: u32| Key {
        source: source.into(),
        destination: destination.into(),
        ..Key::default()
    };
    let keys: Vec<Key> = (0..2000)
        .map(|n| key(0x0100_0001 + n * 40_503 * (n % 3), 0x0b00_0000 + n * 7 + n % 2))
        .collect();
    compare::<Ipv4Addr>(&filter, &keys);
}

/// If the first rule asks for the state and fits all packets, no other is looked at.
#[test]
fn one_packet_without_the_first_rule_s_state_is_found_anywhere_in_a_batch() {
    let first = Matches { state: vec![State::Established, State::Related], ..Matches::default() };
    let second = Matches { to: vec!["192.0.2.0/24".parse().unwrap()], ..Matches::default() };
    let filter = Filter {
        name: "states".into(),
        rules: vec![rule(first), rule(second)],
        default: Action::Drop,
    };
    let classifier = Classifier::<Ipv4Addr>::new(&filter, &SetReaders::none()).unwrap();
    let mut fields = Fields::default();
    let destinations = [0xc000_0201u32, 0xc633_6401].map(u128::from);
    for count in 1..=BATCH {
        for new in (0..count).map(Some).chain([None]) {
            fields.clear();
            for place in 0..count {
                let destination = destinations[place % 2];
                fields.push(&Key { destination, protocol: 17, ..Key::default() });
                if new != Some(place) {
                    fields.set_state(place, State::Established);
                }
            }
            let mut found = [9; BATCH];
            classifier.classify(&fields, &mut found);
            for (place, found) in found.iter().enumerate().take(count) {
                let expected = if new == Some(place) { 1 + place as u32 % 2 } else { 0 };
                assert_eq!(*found, expected, "packet {place} of {count}, {new:?} is new");
            }
        }
    }
}

#[test]
fn what_is_too_large_is_named() {
    let many = |count: u32| {
        let one = |n: u32| {
            let address = std::net::IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + n));
            rule(Matches { from: vec![address.into()], ..Matches::default() })
        };
        Filter { name: "big".into(), rules: (0..count).map(one).collect(), default: Action::Drop }
    };
    let said = |filter| Classifier::<Ipv4Addr>::check(&filter).unwrap_err().to_string();
    assert_eq!(
        said(many(65_537)),
        "filter \"big\": 65537 rules for IPv4, at most 65536: split it, or join rules that differ in a list"
    );
    assert_eq!(
        said(many(40_000)),
        "filter \"big\": 32768 different source addresses for IPv4, at most 32767: addresses that the same \
         rules are about belong into one list"
    );
    Classifier::<Ipv6Addr>::check(&many(65_537)).unwrap();
}

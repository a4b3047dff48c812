//! The oracle: rules compared with a packet one by one, straight from [`Matches`].
//!
//! Slow and obviously correct; it shares nothing with the compiler.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{Family, Filter, Key, Matches, SetReaders};

/// Returns the index of the first rule of `filter` that matches a packet of `family`, without sets.
pub fn walk(filter: &Filter, family: Family, key: &Key) -> Option<usize> {
    walk_from(filter, &SetReaders::none(), (family, key), 0)
}

/// Like [`walk`], from rule `first` on: for packets that a rule lets continue.
pub fn walk_from(
    filter: &Filter,
    sets: &SetReaders,
    (family, key): (Family, &Key),
    first: usize,
) -> Option<usize> {
    let holds = |matches: &Matches| {
        set_holds(matches, sets, family, key)
            && ip_holds(matches, family, key)
            && upper_holds(matches, key)
    };
    (first..filter.rules.len()).find(|&at| holds(&filter.rules[at].matches))
}

fn set_holds(matches: &Matches, sets: &SetReaders, family: Family, key: &Key) -> bool {
    let holds = |names: &[String], address: IpAddr| names.is_empty() || sets.hold(names, address);
    holds(&matches.from_set, key.source(family)) && holds(&matches.to_set, key.destination(family))
}

fn ip_holds(matches: &Matches, family: Family, key: &Key) -> bool {
    matches.ethertype.is_empty()
        && matches.family.is_none_or(|wanted| wanted == family)
        && one_of(&matches.from, |net: &IpNet| net.contains(&key.source(family)))
        && one_of(&matches.to, |net: &IpNet| net.contains(&key.destination(family)))
        && one_of(&matches.from_mac, |mac| *mac == key.from_mac())
        && one_of(&matches.to_mac, |mac| *mac == key.to_mac())
        && one_of(&matches.priority, |&priority| priority == key.priority())
        && one_of(&matches.protocol, |&protocol| protocol == key.protocol())
        && matches.fragment.is_none_or(|wanted| wanted == key.is_fragment())
        && matches.later.is_none_or(|wanted| wanted == key.is_later_fragment())
        && one_of(&matches.dscp, |&dscp| dscp == key.dscp())
        && matches.ttl.as_ref().is_none_or(|ttl| ttl.contains(&key.ttl()))
        && matches.length.as_ref().is_none_or(|length| length.contains(&key.length()))
        && one_of(&matches.interface, |&interface| interface == key.interface())
        && one_of(&matches.state, |&state| state == key.state())
        && one_of(&matches.routing, |kind| key.routing_types().contains(kind))
        && one_of(&matches.extension, |&extension| key.has_extension(extension))
}

fn upper_holds(matches: &Matches, key: &Key) -> bool {
    let wanted = !matches.from_port.is_empty()
        || !matches.to_port.is_empty()
        || !matches.icmp.is_empty()
        || matches.flags.is_some();
    if wanted && !key.has_upper_layer() {
        return false;
    }
    one_of(&matches.from_port, |ports| ports.contains(&key.from_port()))
        && one_of(&matches.to_port, |ports| ports.contains(&key.to_port()))
        && one_of(&matches.icmp, |&kind| kind == key.icmp_type())
        && matches.flags.is_none_or(|bits| key.flags() & bits.mask == bits.value)
}

fn one_of<T>(list: &[T], holds: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, Ipv6Addr},
        ops::RangeInclusive,
    };

    use proptest::{
        collection::vec, option, prelude::*, sample::select, test_runner::TestCaseError,
    };

    use wire::MacAddr;

    use super::*;
    use crate::{
        Action, BATCH, Bits, Classifier, Extension, Fields, FilterAddress, Rule, State,
        key::{FRAGMENT, Headers, LATER, NO_UPPER, mac_number},
        rte, warnings,
    };

    const MACS: [MacAddr; 3] =
        [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([0xff; 6])];

    /// Types of routing headers.
    const ROUTING: [u8; 3] = [0, 4, 253];

    const STATES: [State; 3] = [State::New, State::Established, State::Related];

    /// Addresses of few values, so that rules and packets meet.
    fn address(family: Family) -> impl Strategy<Value = Vec<u8>> {
        let length = if family == Family::Ip4 { 4 } else { 16 };
        vec(select(vec![0u8, 0, 0, 1, 128, 255]), length)
    }

    fn net(family: Family) -> impl Strategy<Value = IpNet> {
        let most = if family == Family::Ip4 { 32u8 } else { 128 };
        (address(family), 0..=most).prop_map(move |(bytes, length)| {
            let net = match family {
                Family::Ip4 => IpNet::new(<[u8; 4]>::try_from(bytes).unwrap().into(), length),
                Family::Ip6 => IpNet::new(<[u8; 16]>::try_from(bytes).unwrap().into(), length),
            };
            net.unwrap().trunc()
        })
    }

    fn nets() -> impl Strategy<Value = Vec<IpNet>> {
        vec(prop_oneof![net(Family::Ip4), net(Family::Ip6)], 0..4)
    }

    fn port() -> impl Strategy<Value = u16> {
        select(vec![0u16, 1, 2, 3, 22, 255, 256, 257, 1023, 1024, 65534, 65535])
    }

    fn range<T: Copy + Ord + std::fmt::Debug>(
        of: impl Strategy<Value = T> + Clone,
    ) -> impl Strategy<Value = RangeInclusive<T>> {
        (of.clone(), of).prop_map(|(one, other)| one.min(other)..=one.max(other))
    }

    fn ports() -> impl Strategy<Value = Vec<RangeInclusive<u16>>> {
        let some = vec(range(select(vec![0u16, 1, 2, 3, 22, 255, 256, 1024, 65535])), 1..4);
        prop_oneof![3 => Just(Vec::new()), 1 => some]
    }

    fn protocol() -> impl Strategy<Value = u8> {
        select(vec![6u8, 6, 17, 1, 58])
    }

    /// Half of the lists are empty.
    fn few<T: std::fmt::Debug + Clone + 'static>(
        values: &[T],
    ) -> impl Strategy<Value = Vec<T>> + use<T> {
        prop_oneof![Just(Vec::new()), vec(select(values.to_vec()), 1..4)]
    }

    fn flags() -> impl Strategy<Value = Option<Bits>> {
        let bits = (any::<u8>(), select(vec![0x02u8, 0x12, 0x10, 0x01]));
        option::weighted(0.2, bits.prop_map(|(value, mask)| Bits { value: value & mask, mask }))
    }

    fn matches() -> impl Strategy<Value = Matches> {
        let family = option::weighted(0.2, select(Family::ALL.to_vec()));
        let ip =
            (family, nets(), nets(), few(&[6u8, 17, 1, 58]), option::weighted(0.2, any::<bool>()));
        let upper = (ports(), ports(), flags(), few(&[0u8, 8, 128]));
        let ttl = option::weighted(0.2, range(0u8..5));
        let length = option::weighted(0.2, range(select(vec![0u16, 40, 576, 1500, 65535])));
        let macs = (few(&MACS), few(&MACS), few(&[0u8, 5, 7]));
        let later = option::weighted(0.2, any::<bool>());
        let headers = (few(&ROUTING), few(&Extension::ALL), later);
        let rest =
            (few(&[0u8, 1, 46, 63]), ttl, length, few(&[1u16, 2, 3]), few(&STATES), macs, headers);
        (ip, upper, rest).prop_map(|(ip, upper, rest)| {
            let (family, from, to, protocol, fragment) = ip;
            let (from_port, to_port, flags, icmp) = upper;
            let (dscp, ttl, length, interface, state, macs, headers) = rest;
            let (from_mac, to_mac, priority) = macs;
            let (routing, extension, later) = headers;
            Matches {
                family,
                ethertype: Vec::new(),
                from,
                to,
                from_set: Vec::new(),
                to_set: Vec::new(),
                from_mac,
                to_mac,
                priority,
                protocol,
                from_port,
                to_port,
                flags,
                icmp,
                fragment,
                later,
                dscp,
                ttl,
                length,
                interface,
                state,
                routing,
                extension,
            }
        })
    }

    fn filter() -> impl Strategy<Value = Filter> {
        let action = select(vec![Action::Accept, Action::Drop, Action::Continue]);
        let make = |(matches, action)| Rule { name: None, line: 1, matches, action };
        let rule = (sparse(), action).prop_map(make).boxed();
        // Within a word of the classifier, and beyond.
        prop_oneof![4 => vec(rule.clone(), 0..12), 1 => vec(rule, 60..300)]
            .prop_map(|rules| Filter { name: "random".into(), rules, default: Action::Drop })
    }

    /// Rules with few conditions, so that they match.
    fn sparse() -> impl Strategy<Value = Matches> {
        (matches(), any::<u16>()).prop_map(|(full, keep)| {
            let kept = |bit: u32| keep >> bit & 1 == 1;
            let none = Matches::default();
            Matches {
                family: full.family,
                // Such a rule matches no IP packet, regardless of its other conditions.
                ethertype: if keep % 8 == 0 { vec![0x88cc] } else { none.ethertype },
                from: if kept(0) { full.from } else { none.from },
                to: if kept(1) { full.to } else { none.to },
                from_set: none.from_set,
                to_set: none.to_set,
                from_mac: if kept(2) && kept(9) { full.from_mac } else { none.from_mac },
                to_mac: if kept(3) && kept(10) { full.to_mac } else { none.to_mac },
                priority: if kept(4) && kept(11) { full.priority } else { none.priority },
                protocol: if kept(2) { full.protocol } else { none.protocol },
                from_port: if kept(3) { full.from_port } else { none.from_port },
                to_port: if kept(4) { full.to_port } else { none.to_port },
                flags: if kept(5) { full.flags } else { none.flags },
                icmp: if kept(6) { full.icmp } else { none.icmp },
                fragment: if kept(7) { full.fragment } else { none.fragment },
                later: if kept(7) { full.later } else { none.later },
                dscp: if kept(8) && kept(9) { full.dscp } else { none.dscp },
                ttl: if kept(10) { full.ttl } else { none.ttl },
                length: if kept(11) { full.length } else { none.length },
                interface: if kept(12) && kept(13) { full.interface } else { none.interface },
                state: if kept(14) && kept(15) { full.state } else { none.state },
                routing: if kept(0) && kept(14) { full.routing } else { none.routing },
                extension: if kept(1) && kept(15) { full.extension } else { none.extension },
            }
        })
    }

    fn key(family: Family) -> impl Strategy<Value = Key> {
        let fragment = select(vec![0, 0, 0, FRAGMENT, NO_UPPER, FRAGMENT | LATER | NO_UPPER]);
        let icmp = select(vec![0u8, 8, 128]);
        let bytes = (protocol(), any::<u8>(), icmp, select(vec![0u8, 1, 46, 63]), 0u8..5, fragment);
        let words =
            (select(vec![40u16, 576, 1500]), 1u16..4, port(), port(), select(STATES.to_vec()));
        let macs = (select(MACS.to_vec()), select(MACS.to_vec()), select(vec![0u8, 0, 5, 7]));
        (bytes, words, address(family), address(family), macs, headers(family)).prop_map(
            move |(bytes, words, from, to, macs, headers)| {
                let mut fragment = bytes.5;
                if bytes.0 == [58, 1][family as usize] {
                    // The other family's ICMP.
                    fragment |= NO_UPPER;
                }
                let address = |bytes: Vec<u8>| {
                    bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
                };
                Key {
                    source: address(from),
                    destination: address(to),
                    ports: [words.2, words.3],
                    length: words.0,
                    interface: words.1,
                    protocol: bytes.0,
                    flags: bytes.1,
                    icmp_type: bytes.2,
                    dscp: bytes.3,
                    ttl: bytes.4,
                    fragment,
                    state: words.4,
                    macs: [macs.1, macs.0].map(mac_number),
                    priority: macs.2,
                    headers,
                }
            },
        )
    }

    /// Up to three extension headers of an IPv6 packet.
    fn headers(family: Family) -> impl Strategy<Value = Headers> {
        let number = select(vec![0u8, 43, 43, 43, 44, 51, 60]);
        vec((number, select(ROUTING.to_vec())), 0..4).prop_map(move |chain| {
            let chain = if family == Family::Ip4 { Vec::new() } else { chain };
            chain.into_iter().fold(Headers::default(), Headers::with)
        })
    }

    fn compare(filter: &Filter, family: Family, keys: &[Key]) -> Result<(), TestCaseError> {
        match family {
            Family::Ip4 => classify::<Ipv4Addr>(filter, keys)?,
            Family::Ip6 => classify::<Ipv6Addr>(filter, keys)?,
        }
        if filter.asks_for_macs() || filter.asks_for_headers() || filter.asks_for_priorities() {
            // DPDK's entries do not support them.
            return Ok(());
        }
        let compiled = rte::compile(filter, family).unwrap();
        for key in keys {
            let walked = walk(filter, family, key);
            let found = compiled.find(&rte::bytes(key, family));
            prop_assert_eq!(found, walked.map(|at| at as u32), "{:?}", key);
        }
        Ok(())
    }

    fn classify<A: FilterAddress>(filter: &Filter, keys: &[Key]) -> Result<(), TestCaseError> {
        let classifier = Classifier::<A>::new(filter, &SetReaders::none()).unwrap();
        let mut fields = Fields::default();
        fields.want(filter);
        keys.iter().for_each(|key| fields.push(key));
        let mut found = [0; BATCH];
        classifier.classify(&fields, &mut found);
        for (key, &found) in keys.iter().zip(&found) {
            let walked = walk(filter, A::OF, key).unwrap_or(filter.rules.len());
            prop_assert_eq!(found as usize, walked, "{:?}", key);
        }
        for (place, (key, &found)) in keys.iter().zip(&found).enumerate() {
            let mut reached = found;
            while (reached as usize) < filter.rules.len() {
                let walked =
                    walk_from(filter, &SetReaders::none(), (A::OF, key), reached as usize + 1);
                reached = classifier.next(&fields, place, reached);
                let walked = walked.unwrap_or(filter.rules.len());
                prop_assert_eq!(reached as usize, walked, "{:?}", key);
            }
        }
        Ok(())
    }

    /// Returns the rules reached by following those that let packets continue.
    fn reached(filter: &Filter, family: Family, key: &Key) -> Vec<usize> {
        let mut reached = Vec::new();
        let mut first = 0;
        while let Some(at) = walk_from(filter, &SetReaders::none(), (family, key), first) {
            reached.push(at);
            if filter.rules[at].action.is_terminal() {
                break;
            }
            first = at + 1;
        }
        reached
    }

    proptest! {
        #[test]
        fn entries_find_the_rule_that_the_walk_finds(
            filter in filter(),
            keys4 in vec(key(Family::Ip4), 40),
            keys6 in vec(key(Family::Ip6), 40),
        ) {
            compare(&filter, Family::Ip4, &keys4)?;
            compare(&filter, Family::Ip6, &keys6)?;
        }

        #[test]
        fn no_packet_reaches_a_rule_that_is_warned_of(
            filter in filter(),
            keys4 in vec(key(Family::Ip4), 40),
            keys6 in vec(key(Family::Ip6), 40),
        ) {
            let warned: Vec<usize> = warnings(&filter).iter().filter_map(|w| w.rule()).collect();
            for key in &keys4 {
                let reached = reached(&filter, Family::Ip4, key);
                prop_assert!(!reached.iter().any(|at| warned.contains(at)), "{key:?}");
            }
            for key in &keys6 {
                let reached = reached(&filter, Family::Ip6, key);
                prop_assert!(!reached.iter().any(|at| warned.contains(at)), "{key:?}");
            }
        }
    }

    fn one(matches: Matches) -> Filter {
        let rule = Rule { name: None, line: 1, matches, action: Action::Accept };
        Filter { name: "one".into(), rules: vec![rule], default: Action::Drop }
    }

    #[test]
    fn prefixes_of_the_other_family_do_not_hold() {
        let from = vec!["::/0".parse().unwrap()];
        let filter = one(Matches { from, ..Matches::default() });
        let key = Key::default();
        assert_eq!(walk(&filter, Family::Ip4, &key), None);
        assert_eq!(walk(&filter, Family::Ip6, &key), Some(0));
    }

    #[test]
    fn rules_with_ports_do_not_hold_without_an_upper_layer() {
        let filter =
            one(Matches { protocol: vec![6], to_port: vec![0..=65535], ..Matches::default() });
        let whole = Key { protocol: 6, ..Key::default() };
        assert_eq!(walk(&filter, Family::Ip4, &whole), Some(0));
        let later = Key { fragment: FRAGMENT | LATER | NO_UPPER, ..whole };
        assert_eq!(walk(&filter, Family::Ip4, &later), None);
        let by_protocol = one(Matches { protocol: vec![6], ..Matches::default() });
        assert_eq!(walk(&by_protocol, Family::Ip4, &later), Some(0));
    }

    #[test]
    fn a_rule_with_a_routing_type_holds_for_any_of_several_headers() {
        let filter = one(Matches { routing: vec![0], ..Matches::default() });
        let of = |chain: &[(u8, u8)]| {
            let headers = chain.iter().copied().fold(Headers::default(), Headers::with);
            walk(&filter, Family::Ip6, &Key { headers, ..Key::default() })
        };
        assert_eq!((of(&[]), of(&[(43, 4)])), (None, None));
        assert_eq!((of(&[(43, 0)]), of(&[(0, 0), (43, 4), (43, 0)])), (Some(0), Some(0)));
    }

    #[test]
    fn the_walk_goes_on_behind_a_rule() {
        let mut filter = one(Matches::default());
        filter.rules.push(filter.rules[0].clone());
        let key = Key::default();
        assert_eq!(walk_from(&filter, &SetReaders::none(), (Family::Ip4, &key), 1), Some(1));
        assert_eq!(walk_from(&filter, &SetReaders::none(), (Family::Ip4, &key), 2), None);
    }
}

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::next_hop::{NextHop, NextHopTable};
use crate::testing::FrameBuilder;

const FLOWS: u32 = 10_000;

fn hash(seed: u64, change: impl FnOnce(&mut FlowFields)) -> FlowHash {
    let mut fields = FlowFields::default();
    change(&mut fields);
    FlowHash::new(seed).with_fields(fields)
}

/// The packet of a frame.
fn packet(frame: FrameBuilder) -> Vec<u8> {
    frame.build()[ETHERNET..].to_vec()
}

fn udp4(from: &str, to: &str, sport: u16, dport: u16) -> Vec<u8> {
    packet(FrameBuilder::ip4().source4(from).destination4(to).udp(sport, dport, b"data"))
}

fn udp6(from: &str, to: &str, sport: u16, dport: u16) -> Vec<u8> {
    packet(FrameBuilder::ip6().source6(from).destination6(to).udp(sport, dport, b"data"))
}

/// Flow `number` of many, of either family in turn, between hosts of two networks.
fn flow(number: u32) -> Vec<u8> {
    let (host, port) = (1 + number % 250, 1024 + (number * 7 % 60_000) as u16);
    match number % 2 {
        0 => udp4(&format!("10.1.0.{host}"), "10.2.0.1", port, 443),
        _ => udp6(&format!("fd00:1::{host:x}"), "fd00:2::1", port, 443),
    }
}

/// Chi-square of these counts against equal ones.
fn chi_square(counts: &[u32]) -> f64 {
    let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
}

/// The limit that a random choice exceeds once in a million times (by Wilson and Hilferty).
fn limit(paths: usize) -> f64 {
    let freedom = (paths - 1) as f64;
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + 4.753 * part.sqrt()).powi(3)
}

/// The paths of flows at a router with this hash and so many paths.
fn paths(hash: FlowHash, flows: &[Vec<u8>], count: u16) -> Vec<u16> {
    let table = NextHopTable::new();
    let group = NextHop::Group { first: 0, len: count };
    assert!(table.set_members(0, &(0..count).collect::<Vec<_>>()));
    flows.iter().map(|packet| table.select(group.into(), hash.of_path(packet))).collect()
}

/// Chi-square of the second tier's paths for the flows that each path of the first tier brings it: the largest.
fn worst_of_second(first: FlowHash, second: FlowHash, count: u16) -> f64 {
    let flows: Vec<_> = (0..FLOWS).map(flow).collect();
    let of_first = paths(first, &flows, count);
    let of_path = |path: u16| {
        let here = flows.iter().zip(&of_first).filter(|(_, of)| **of == path);
        let here: Vec<_> = here.map(|(flow, _)| flow.clone()).collect();
        let mut counts = vec![0; count.into()];
        paths(second, &here, count).iter().for_each(|&path| counts[usize::from(path)] += 1);
        chi_square(&counts)
    };
    (0..count).map(of_path).fold(0.0, f64::max)
}

/// All choices of fields that have the ports of these flows.
fn choices() -> [FlowFields; 4] {
    let usual = FlowFields::default();
    [
        usual,
        FlowFields { symmetric: true, ..usual },
        FlowFields { flow_label: true, ..usual },
        FlowFields { inner: true, ..usual },
    ]
}

#[test]
fn a_second_tier_with_the_same_seed_is_polarised() {
    let same = worst_of_second(FlowHash::new(1), FlowHash::new(1), 4);
    assert!(same > 1000.0, "the test does not see polarisation: {same}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(16)))]

    #[test]
    fn two_tiers_are_not_polarised(seed: u64, other: u64, count in 2u16..=16, choice in 0usize..4) {
        prop_assume!(seed != other);
        let fields = choices()[choice];
        let [first, second] = [seed, other].map(|seed| FlowHash::new(seed).with_fields(fields));
        let found = worst_of_second(first, second, count);
        prop_assert!(found < limit(count.into()), "{found} of {}", limit(count.into()));
    }

    /// As operators number their routers.
    #[test]
    fn seeds_in_a_row_are_not_polarised(seed in 0u64..1000, count in 2u16..=16, symmetric: bool) {
        let fields = FlowFields { symmetric, ..FlowFields::default() };
        let [first, second] = [seed, seed + 1].map(|seed| FlowHash::new(seed).with_fields(fields));
        let found = worst_of_second(first, second, count);
        prop_assert!(found < limit(count.into()), "{found} of {}", limit(count.into()));
    }

    #[test]
    fn any_bytes_have_a_hash(bytes in prop::collection::vec(any::<u8>(), 0..120), protocol in 0usize..5) {
        let hash = hash(1, |fields| fields.inner = true);
        let mut packet = packet(FrameBuilder::ip4().protocol([4, 41, 47, 17, 6][protocol]).payload(&bytes));
        hash.of_path(&packet);
        hash.of_path(&bytes);
        if let Some(to) = packet.get_mut(22..24) {
            to.copy_from_slice(&[VXLAN, GENEVE, GTP_U][protocol % 3].to_be_bytes());
        }
        hash.of_path(&packet);
    }
}

#[test]
fn both_directions_have_one_hash_if_that_is_asked_for() {
    let symmetric = hash(5, |fields| fields.symmetric = true);
    for (there, back) in [
        (udp4("10.0.0.1", "10.0.0.2", 1000, 53), udp4("10.0.0.2", "10.0.0.1", 53, 1000)),
        (udp6("fd00::1", "fd00:1::2", 1000, 53), udp6("fd00:1::2", "fd00::1", 53, 1000)),
        (udp4("10.0.0.1", "10.0.0.1", 1000, 53), udp4("10.0.0.1", "10.0.0.1", 53, 1000)),
    ] {
        assert_eq!(symmetric.of_path(&there), symmetric.of_path(&back));
        assert_ne!(FlowHash::new(5).of_path(&there), FlowHash::new(5).of_path(&back));
    }
    let [a, b] = [1000, 1001].map(|port| udp4("10.0.0.1", "10.0.0.2", port, 53));
    assert_ne!(symmetric.of_path(&a), symmetric.of_path(&b), "ports count still");
    // The ports belong to their ends.
    let [a, b] = [(1, 2), (2, 1)].map(|(sport, dport)| udp4("10.0.0.1", "10.0.0.2", sport, dport));
    assert_ne!(symmetric.of_path(&a), symmetric.of_path(&b));
}

#[test]
fn without_ports_hosts_have_one_path() {
    let hosts = hash(5, |fields| fields.ports = false);
    let of = |port| hosts.of_path(&udp4("10.0.0.1", "10.0.0.2", port, 53));
    assert_eq!(of(1), of(2));
    assert_ne!(of(1), hosts.of_path(&udp4("10.0.0.1", "10.0.0.3", 1, 53)));
}

#[test]
fn the_flow_label_counts_if_that_is_asked_for() {
    let labelled = |label: u8| {
        let mut packet = udp6("fd00::1", "fd00::2", 1, 2);
        packet[3] = label;
        packet
    };
    let by_label = hash(5, |fields| fields.flow_label = true);
    assert_ne!(by_label.of_path(&labelled(1)), by_label.of_path(&labelled(2)));
    assert_eq!(FlowHash::new(5).of_path(&labelled(1)), FlowHash::new(5).of_path(&labelled(2)));
    let mut other_class = labelled(1);
    other_class[0] |= 0x0f;
    other_class[1] |= 0xf0;
    assert_eq!(
        by_label.of_path(&other_class),
        by_label.of_path(&labelled(1)),
        "the traffic class is no label"
    );
}

/// A tunnel's packet around this one, of every kind.
fn tunnels(inner: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let is_ip6 = inner[0] >> 4 == 6;
    let ether = if is_ip6 { TYPE_IPV6 } else { TYPE_IPV4 }.to_be_bytes();
    let frame = |tag: &[u8]| [&[0; 12][..], tag, &ether, inner].concat();
    let protocol = if is_ip6 { IPV6 } else { IPV4 };
    let ip =
        |protocol, payload: &[u8]| packet(FrameBuilder::ip4().protocol(protocol).payload(payload));
    let udp = |port: u16, payload: Vec<u8>| packet(FrameBuilder::ip4().udp(50_000, port, &payload));
    let geneve = |options: u8| {
        let options = vec![0; usize::from(options) * 4];
        [&[options.len() as u8 / 4, 0, 0x65, 0x58, 0, 0, 1, 0], &options[..], &frame(&[])].concat()
    };
    vec![
        ("IP in IP", ip(protocol, inner)),
        ("IP in IPv6", packet(FrameBuilder::ip6().protocol(protocol).payload(inner))),
        ("GRE", ip(GRE, &[&[0, 0], &ether, inner].concat())),
        ("GRE, all options", ip(GRE, &[&[0xb0, 0], &ether, &[7; 12][..], inner].concat())),
        ("GRE, bridged", ip(GRE, &[&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1], &frame(&[])[..]].concat())),
        ("VXLAN", udp(VXLAN, [&[8, 0, 0, 0, 0, 0, 7, 0], &frame(&[])[..]].concat())),
        (
            "VXLAN, tagged",
            udp(VXLAN, [&[8, 0, 0, 0, 0, 0, 7, 0], &frame(&[0x81, 0, 0, 5])[..]].concat()),
        ),
        ("Geneve", udp(GENEVE, geneve(0))),
        ("Geneve, options", udp(GENEVE, geneve(3))),
        ("GTP-U", udp(GTP_U, [&[0x30, 255, 0, 0, 0, 0, 0, 1], inner].concat())),
        (
            "GTP-U, sequence",
            udp(GTP_U, [&[0x32, 255, 0, 0, 0, 0, 0, 1, 0, 9, 0, 0], inner].concat()),
        ),
        (
            "GTP-U, extension",
            udp(GTP_U, [&[0x34, 255, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 9, 0], inner].concat()),
        ),
        (
            "VXLAN in IP in IP",
            ip(IPV4, &udp(VXLAN, [&[8, 0, 0, 0, 0, 0, 7, 0], &frame(&[])[..]].concat())),
        ),
    ]
}

#[test]
fn the_headers_in_a_tunnel_count_if_that_is_asked_for() {
    let inner = hash(5, |fields| fields.inner = true);
    for packets in [
        [1, 2].map(|port| udp4("192.0.2.1", "192.0.2.2", port, 53)),
        [1, 2].map(|port| udp6("2001:db8::1", "2001:db8::2", port, 53)),
    ] {
        let plain = packets.each_ref().map(|packet| inner.of_path(packet));
        for ((name, one), (_, two)) in tunnels(&packets[0]).into_iter().zip(tunnels(&packets[1])) {
            assert_eq!([&one, &two].map(|packet| inner.of_path(packet)), plain, "{name}");
            let usual = FlowHash::new(5);
            assert_eq!(usual.of_path(&one), usual.of_path(&two), "{name}");
        }
    }
}

#[test]
fn tunnels_that_cannot_be_read_count_themselves() {
    let inner = hash(5, |fields| fields.inner = true);
    let flow = |port| udp4("192.0.2.1", "192.0.2.2", port, 53);
    for (name, whole) in tunnels(&flow(1)).into_iter().filter(|(name, _)| *name != "IP in IPv6") {
        let mut fragment = whole.clone();
        fragment[6] |= 0x20;
        let mut later = fragment.clone();
        later[7] = 9;
        assert_eq!(inner.of_path(&fragment), inner.of_path(&later), "{name}");
        assert_ne!(inner.of_path(&fragment), inner.of_path(&whole), "{name}");
    }
    // Version 1 of GRE, PPTP's, has another header.
    let pptp = |port| {
        packet(
            FrameBuilder::ip4()
                .protocol(GRE)
                .payload(&[&[0x20, 1, 8, 0, 0, 0, 0, 0], &flow(port)[..]].concat()),
        )
    };
    assert_eq!(inner.of_path(&pptp(1)), inner.of_path(&pptp(2)));
    // ARP in VXLAN.
    let arp = |last: u8| {
        let frame =
            [&[8, 0, 0, 0, 0, 0, 7, 0][..], &[0; 12], &[8, 6], &[0x45; 28], &[last]].concat();
        packet(FrameBuilder::ip4().udp(50_000, VXLAN, &frame))
    };
    assert_eq!(inner.of_path(&arp(1)), inner.of_path(&arp(2)));
    let hashes: BTreeSet<_> = (1..50).map(|port| inner.of_path(&flow(port))).collect();
    assert_eq!(hashes.len(), 49);
}

use super::*;
use wire::MacAddr;

use crate::generate::{Kind, Packet, packets, rules};
use crate::{Rule, walk};

const IP4: Family = Family::Ip4;
const IP6: Family = Family::Ip6;

fn drop(matches: Matches) -> Rule {
    Rule { name: None, line: 1, matches, action: Action::Drop }
}

fn filter(rules: Vec<Rule>) -> Filter {
    Filter { name: "f".into(), rules, default: Action::Accept }
}

fn alone(matches: Matches) -> Offload {
    offload(&filter(vec![drop(matches)]), |_| Treated::default(), &Port::default()).remove(0)
}

/// The effects of a rule with `log`, or of one without.
fn logged(is_logged: bool) -> Treated {
    Treated { by_software: is_logged.then_some("log"), steers: false }
}

fn udp(to_port: Vec<RangeInclusive<u16>>) -> Matches {
    Matches { protocol: vec![17], to_port, ..Matches::default() }
}

fn net(text: &str) -> Vec<IpNet> {
    vec![text.parse().unwrap()]
}

#[test]
fn lists_become_combinations() {
    let matches = Matches {
        family: Some(IP4),
        from: ["10.0.0.0/8", "192.0.2.0/24", "10.1.0.0/16"].map(|n| n.parse().unwrap()).into(),
        protocol: vec![6, 17],
        to_port: vec![22..=22, 80..=81],
        dscp: vec![0, 46],
        ..Matches::default()
    };
    let Offload { patterns, kept, .. } = alone(matches);
    // A prefix within another one adds no pattern; a range of two is one mask.
    assert_eq!((patterns.len(), kept), (2 * 2 * 2 * 2, vec![]));
    assert!(patterns.iter().all(|pattern| pattern.whole && pattern.class.mask == 0xfc));
}

#[test]
fn ranges_become_masks() {
    let masks = |range: RangeInclusive<u16>, bits| -> Vec<(u16, u16)> {
        split(&range, bits).iter().map(|masked| (masked.value, masked.mask)).collect()
    };
    assert_eq!(masks(0..=65535, 16), [(0, 0)]);
    assert_eq!(masks(1024..=65535, 16).len(), 6);
    assert_eq!(masks(65535..=65535, 16), [(65535, 65535)]);
    assert_eq!(masks(80..=81, 16), [(80, 0xfffe)]);
    assert_eq!(masks(0..=254, 8).len(), 8);
    for range in [1..=65534, 8000..=8100, 0..=0, 5..=7] {
        let masks = split(&range, 16);
        for value in 0..=u16::MAX {
            let fitting = masks.iter().filter(|of| value & of.mask == of.value).count();
            assert_eq!(fitting, usize::from(range.contains(&value)), "{value} {range:?}");
        }
    }
}

#[test]
fn ipv6_without_a_protocol_is_left_for_tcp_and_udp() {
    let Offload { patterns, kept, .. } =
        alone(Matches { from: net("2001:db8::/32"), ..Matches::default() });
    let protocols: Vec<_> = patterns.iter().map(|pattern| pattern.protocol).collect();
    assert_eq!((protocols, kept), (vec![Some(6), Some(17)], vec![]));
}

#[test]
fn neighbour_discovery_fits_no_pattern() {
    let icmp6 =
        |icmp: Vec<u8>, ttl| Matches { protocol: vec![58], icmp, ttl, ..Matches::default() };
    assert_eq!(alone(icmp6(vec![128], None)).patterns[0].ttl, Masked::default());
    let limits = |offload: &Offload| offload.patterns.iter().all(|pattern| pattern.ttl.mask != 0);
    let all = alone(icmp6(vec![], None));
    // IPv4 may have the number, too.
    assert_eq!(all.patterns.len(), 1 + 8);
    assert!(limits(&alone(icmp6(vec![128, 135], None))));
    let only = alone(icmp6(vec![135], Some(255..=255)));
    assert_eq!((only.patterns, only.kept), (vec![], vec![(IP6, Kept::Discovery)]));
}

#[test]
fn what_devices_do_not_look_at_stays() {
    let reason = |matches: Matches| {
        alone(matches).kept.into_iter().map(|(_, kept)| kept).collect::<Vec<_>>()
    };
    let fragments = Matches { fragment: Some(true), ..Matches::default() };
    assert_eq!(reason(fragments), [Kept::Condition("fragments"), Kept::Condition("fragments")]);
    let known = Matches { state: vec![crate::State::New], family: Some(IP4), ..Matches::default() };
    assert_eq!(reason(known), [Kept::Condition("connections")]);
    let short = Matches { length: Some(0..=64), family: Some(IP4), ..Matches::default() };
    assert_eq!(reason(short), [Kept::Condition("lengths")]);
    let lite = Matches { protocol: vec![17, 136], family: Some(IP4), ..udp(vec![1..=1]) };
    assert_eq!(reason(lite), [Kept::Ports(136)]);
    let behind = Matches { protocol: vec![44], family: Some(IP6), ..Matches::default() };
    assert_eq!(reason(behind), [Kept::Extension]);
    let many = Matches { family: Some(IP4), from_port: vec![1..=65534], ..udp(vec![1..=65534]) };
    assert_eq!(reason(many), [Kept::Many(900)]);
    let hosts = (0..70).map(|n| format!("10.0.{n}.1/32").parse().unwrap()).collect();
    assert_eq!(reason(Matches { from: hosts, ..Matches::default() }), [Kept::Many(70)]);
    for said in [Kept::Many(900), Kept::Ports(136), Kept::Earlier("rule 2".into())] {
        assert!(!said.to_string().is_empty());
    }
}

#[test]
fn a_rule_behind_one_that_may_fit_first_stays() {
    let accept =
        |matches| Rule { action: Action::Accept, name: Some("dns".into()), ..drop(matches) };
    let rules = vec![
        accept(Matches { from: net("10.0.0.0/8"), ..udp(vec![53..=53]) }),
        drop(udp(vec![1..=100])),
        drop(udp(vec![100..=200])),
        drop(Matches { from: net("11.0.0.0/8"), ..Matches::default() }),
        drop(Matches { from: net("10.0.0.0/8"), fragment: Some(true), ..Matches::default() }),
        drop(Matches { from: net("10.0.0.0/8"), protocol: vec![6], ..Matches::default() }),
    ];
    let offloads = offload(&filter(rules), |at| logged(at == 5), &Port::default());
    let first = |at: usize| Kept::Earlier(format!("rule {at} \"dns\""));
    assert_eq!(offloads[1].kept, [(IP4, first(1))], "IPv6 goes");
    assert!(!offloads[1].patterns.is_empty());
    assert_eq!((&offloads[2].kept, &offloads[3].kept), (&vec![], &vec![]));
    assert_eq!(offloads[4].kept, [(IP4, Kept::Condition("fragments"))], "and hinders nobody");
    assert_eq!(offloads[5].kept, [(IP4, Kept::Treated("log"))]);
}

#[test]
fn rules_of_other_ports_do_not_count() {
    let other = Matches { interface: vec![4], ..Matches::default() };
    let accept = Rule { action: Action::Accept, ..drop(other) };
    let here = Matches { interface: vec![1, 3], ..udp(vec![9..=9]) };
    let rules = vec![accept, drop(here), drop(Matches { interface: vec![2], ..udp(vec![9..=9]) })];
    let port = Port { interface: 3, ..Port::default() };
    let offloads = offload(&filter(rules), |_| Treated::default(), &port);
    assert_eq!((offloads[1].patterns.len(), &offloads[1].kept), (2, &vec![]));
    assert_eq!(offloads[2].kept, [(IP4, Kept::OtherPorts), (IP6, Kept::OtherPorts)]);
}

#[test]
fn packets_that_are_not_filtered_fit_no_pattern() {
    let asks =
        Matches { from: net("0.0.0.0/32"), to: net("255.255.255.255/32"), ..udp(vec![67..=67]) };
    let port = Port { unfiltered: vec![(asks, "DHCP")], ..Port::default() };
    let rules = vec![drop(udp(vec![])), drop(udp(vec![53..=53]))];
    let offloads = offload(&filter(rules), |_| Treated::default(), &port);
    assert_eq!(offloads[0].kept, [(IP4, Kept::Unfiltered("DHCP"))]);
    assert_eq!(offloads[1].kept, []);
}

#[test]
fn a_large_filter_is_compared_within_bounds() {
    let rule = |(at, action)| Rule { action, ..drop(udp(vec![at..=at])) };
    let accepts = (0..2000).map(|at| (at, Action::Accept));
    let rules = accepts.chain((2000..4000).map(|at| (at, Action::Drop))).map(rule).collect();
    let offloads = offload(&filter(rules), |_| Treated::default(), &Port::default());
    let far = offloads.iter().filter(|of| of.kept.contains(&(IP4, Kept::Far))).count();
    assert_eq!(far, 2000 - BUDGET / 2000);
}

/// The tags of a VLAN's frames, and those of one within it.
const OUTER: Tag = Tag { protocol: 0x88a8, control: Masked { value: 5, mask: ID } };
const INNER: Tag = Tag { protocol: 0x8100, control: Masked { value: 7, mask: ID } };

#[test]
fn macs_priorities_and_the_interface_s_tags_are_part_of_patterns() {
    let links = |matches: Matches, tags| {
        let port = Port { tags, ..Port::default() };
        let mut offload =
            offload(&filter(vec![drop(matches)]), |_| Treated::default(), &port).remove(0);
        assert_eq!(offload.all().count(), offload.links.len() * 2, "of UDP, in both families");
        std::mem::take(&mut offload.links)
    };
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let tags = |matches, of| links(matches, of).iter().map(|link| link.tags).collect::<Vec<_>>();
    for of in [Tags::Any, Tags::None, Tags::One(INNER), Tags::Two(OUTER, INNER)] {
        assert_eq!(tags(udp(vec![]), of), [of]);
    }
    let from_mac = vec![mac(2), mac(1), mac(2)];
    let macs = Matches { from_mac, to_mac: vec![mac(3)], ..udp(vec![]) };
    let link = |source| Link { source, destination: Some(mac(3)), tags: Tags::None };
    assert_eq!(links(macs, Tags::None), [link(Some(mac(1))), link(Some(mac(2)))]);
    let of_class = |priority: &[u8]| Matches { priority: priority.to_vec(), ..udp(vec![]) };
    let with = |tag: Tag, value, mask| Tag { control: Masked { value, mask }, ..tag };
    // Priority tags, and for priority 0 no tag.
    let own = [with(INNER, 0, 0xefff), with(INNER, 0xa000, 0xefff)].map(Tags::One);
    assert_eq!(tags(of_class(&[5, 0]), Tags::Any), [own[0], own[1], Tags::None]);
    assert_eq!(tags(of_class(&[5]), Tags::None), [own[1]]);
    let one = Tags::One(with(INNER, 0xa007, 0xefff));
    assert_eq!(tags(of_class(&[5]), Tags::One(INNER)), [one]);
    let two = Tags::Two(with(OUTER, 0x6005, 0xefff), INNER);
    assert_eq!(tags(of_class(&[3]), Tags::Two(OUTER, INNER)), [two], "that of the outer one");
}

#[test]
fn combinations_of_macs_count_as_device_rules() {
    let macs = |count| (0..count).map(|last| MacAddr([2, 0, 0, 0, 0, last])).collect::<Vec<_>>();
    let kept = |matches| alone(matches).kept.first().map(|(_, kept)| kept.clone());
    let of = |from, to| Matches { from_mac: macs(from), to_mac: macs(to), ..udp(vec![1..=1]) };
    assert_eq!((kept(of(8, 8)), kept(of(9, 8))), (None, Some(Kept::Many(72))));
    let two_ports = Matches { to_port: vec![1..=1, 9..=9], ..of(33, 0) };
    assert_eq!(kept(two_ports), Some(Kept::Many(66)));
    let frame = Matches { ethertype: vec![7, 8], from_mac: macs(33), ..Matches::default() };
    assert_eq!(kept(frame), Some(Kept::Many(66)));
}

/// Two rules in one, and now and then a condition more.
fn richer(filter: &mut Filter, seed: u64) {
    let others: Vec<Matches> = filter.rules.iter().map(|rule| rule.matches.clone()).collect();
    for (at, rule) in filter.rules.iter_mut().enumerate() {
        let other = &others[(at * 7 + seed as usize) % others.len()];
        let own = &mut rule.matches;
        if !own.from.is_empty() && !other.from.is_empty() {
            own.from.extend(&other.from);
        }
        if !own.to_port.is_empty() && !other.to_port.is_empty() {
            own.to_port.extend(other.to_port.clone());
        }
        match at % 9 {
            0 => own.ttl = Some(3..=200),
            1 => own.dscp = vec![0, 46],
            2 => own.fragment = Some(false),
            3 => own.fragment = Some(true),
            4 => own.interface = vec![1, 2],
            5 => own.priority = vec![0, 5],
            6 => own.from_mac = vec![MacAddr([2, 0, 0, 0, 0, 2])],
            7 => own.priority = vec![5],
            _ => {}
        }
    }
}

/// Returns the frame as it is on the wire of an interface whose frames have these tags, and its priority.
fn tagged(frame: &[u8], tags: Tags, at: usize) -> (u8, Vec<u8>) {
    let priority = [0, 5, 3][at / 8 % 3];
    let bytes = |tag: Tag, priority: u8| {
        let control = tag.control.value | u16::from(priority) << 13;
        [tag.protocol.to_be_bytes(), control.to_be_bytes()].concat()
    };
    let tags = match tags {
        Tags::Any | Tags::None if priority == 0 => Vec::new(),
        Tags::Any | Tags::None => [&[0x81, 0][..], &[priority << 5, 0]].concat(),
        Tags::One(tag) => bytes(tag, priority),
        Tags::Two(outer, inner) => [bytes(outer, priority), bytes(inner, 6)].concat(),
    };
    (priority, [&frame[..12], &tags, &frame[12..]].concat())
}

/// Makes fragments, neighbour discovery and extension headers of some frames.
fn other_than_usual(packet: &mut Packet, family: Family, at: usize) {
    let frame = &mut packet.frame;
    match (family, at % 8) {
        (Family::Ip4, 1) => frame[20] |= 0x20,
        (Family::Ip4, 3) => frame[21] |= 9,
        (Family::Ip6, 1) => {
            (frame[20], frame[21], frame[54]) = (58, 255, 135);
        }
        (Family::Ip6, 3) => frame[20] = 44,
        (Family::Ip6, 5) => frame[20] = 60,
        _ => {}
    }
}

/// The filter would drop every packet that a device drops; and some packets match.
#[test]
fn devices_drop_what_the_filter_drops() {
    let (mut fitting, mut kept) = (0, 0);
    for (kind, family) in Kind::ALL.into_iter().flat_map(|kind| Family::ALL.map(|of| (kind, of))) {
        for seed in 0..4 {
            let mut filter = rules(kind, family, 200, seed);
            if seed % 2 == 1 {
                richer(&mut filter, seed);
            }
            let tags = [Tags::Any, Tags::None, Tags::One(INNER), Tags::Two(OUTER, INNER)];
            let port = Port {
                interface: 1,
                tags: tags[(seed as usize + kind as usize) % 4],
                ..Port::default()
            };
            let offloads = offload(&filter, |at| logged(at.is_multiple_of(13)), &port);
            kept += offloads.iter().filter(|offload| !offload.kept.is_empty()).count();
            for (at, mut packet) in packets(&filter, family, 4000, seed).into_iter().enumerate() {
                packet.interface = 1;
                other_than_usual(&mut packet, family, at);
                packet.frame[11] = at as u8 % 3;
                let (priority, frame) = tagged(&packet.frame, port.tags, at);
                let key = packet.key(family).with_priority(priority);
                let fits = |offload: &Offload| offload.all().any(|frames| frames.fits(&frame));
                let Some(rule) = offloads.iter().position(fits) else { continue };
                fitting += 1;
                let decided = walk(&filter, family, &key).expect("it fits the device's rule");
                assert_eq!(filter.rules[decided].action, Action::Drop, "{rule} {decided} {key:?}");
                assert!(decided <= rule && !decided.is_multiple_of(13), "{rule} {decided}");
                let only = Filter { rules: vec![filter.rules[rule].clone()], ..filter.clone() };
                assert_eq!(walk(&only, family, &key), Some(0), "{rule} {key:?}");
                let discovery = family == IP6 && packet.frame[20] == 58 && packet.frame[21] == 255;
                assert!(!discovery || !(133..=137).contains(&packet.frame[54]));
            }
        }
    }
    assert!(fitting > 2000 && kept > 1000, "{fitting} {kept}");
}

#[test]
fn rules_that_select_a_forwarder_are_for_the_device_too() {
    let accept = |port, action| Rule { action, ..drop(udp(vec![port..=port])) };
    let rules = vec![
        accept(1, Action::Accept),
        accept(2, Action::Accept),
        accept(3, Action::Continue),
        drop(udp(vec![2..=2])),
        accept(1, Action::Accept),
        drop(udp(vec![4..=4])),
        Rule { action: Action::Reject, ..drop(udp(vec![5..=5])) },
    ];
    // The second and third one select forwarders whatever else they do; so does one that lets nothing pass, without
    // effect.
    let treated = |at| match at {
        1 | 2 | 4 => Treated { by_software: Some("log"), steers: true },
        6 => Treated { by_software: None, steers: true },
        _ => Treated::default(),
    };
    let dhcp = (udp(vec![2..=2]), "DHCP");
    let port = Port { unfiltered: vec![dhcp], ..Port::default() };
    let offloads = offload(&filter(rules), treated, &port);
    let said: Vec<_> = offloads
        .iter()
        .map(|of| (of.steers, of.patterns.len(), of.kept.first().map(|(_, kept)| kept.clone())))
        .collect();
    let earlier = |rule: &str| Some(Kept::Earlier(rule.to_owned()));
    assert_eq!(
        said,
        [
            (false, 0, Some(Kept::Action)),
            // Exempt from the filter, but not from the choice.
            (true, 2, None),
            (true, 2, None),
            // The device would drop what the rule before it lets pass.
            (false, 0, earlier("rule 2")),
            // Packets of the first rule would go to the wrong forwarder.
            (true, 0, earlier("rule 1")),
            (false, 2, None),
            (false, 0, Some(Kept::Action)),
        ]
    );
}

/// Frames from a MAC.
fn from_mac_only() -> Matches {
    Matches { from_mac: vec![MacAddr([2; 6])], ..Matches::default() }
}

#[test]
fn rules_for_other_frames_are_offloaded_by_their_ethertypes() {
    let of = |ethertype: &[u16], action| {
        let matches = Matches { ethertype: ethertype.to_vec(), ..Matches::default() };
        Rule { action, ..drop(matches) }
    };
    let mut from_mac = of(&[7], Action::Drop);
    from_mac.matches.from_mac = from_mac_only().from_mac;
    let mut priority = of(&[7], Action::Drop);
    priority.matches.priority = vec![5];
    let mut other_mac = of(&[8], Action::Accept);
    other_mac.matches.from_mac = vec![MacAddr([4; 6])];
    let mut same_mac = of(&[8], Action::Drop);
    same_mac.matches.from_mac = vec![MacAddr([4; 6])];
    let mut elsewhere = of(&[1], Action::Accept);
    elsewhere.matches.interface = vec![5];
    let rules = vec![
        elsewhere,
        of(&[1, 2], Action::Drop),
        of(&[3], Action::Accept),
        of(&[3, 4], Action::Drop),
        of(&[5], Action::Accept),
        of(&[6], Action::Drop),
        of(&[6], Action::Drop),
        from_mac,
        priority,
        of(&[5], Action::Drop),
        other_mac,
        Rule {
            matches: Matches { ethertype: vec![8], ..from_mac_only() },
            ..of(&[8], Action::Drop)
        },
        same_mac,
    ];
    let treated = |at| match at {
        4 => Treated { by_software: Some("police"), steers: true },
        at => logged(at == 5),
    };
    let port = Port { interface: 3, ..Port::default() };
    let offloads = offload(&filter(rules), treated, &port);
    let said: Vec<_> = offloads
        .iter()
        .map(|of| (of.steers, &of.frames[..], of.kept.first().map(|(_, kept)| kept.clone())))
        .collect();
    let earlier = |rule: &str| Some(Kept::Earlier(rule.to_owned()));
    let none: &[u16] = &[];
    assert_eq!(
        said,
        [
            (false, none, Some(Kept::OtherPorts)),
            (false, &[1, 2], None),
            (false, none, Some(Kept::Action)),
            (false, none, earlier("rule 3")),
            (true, &[5], None),
            (false, none, Some(Kept::Treated("log"))),
            (false, none, earlier("rule 6")),
            (false, &[7], None),
            (false, &[7], None),
            (false, none, earlier("rule 5")),
            (false, none, Some(Kept::Action)),
            (false, &[8], None),
            (false, none, earlier("rule 11")),
        ]
    );
    assert!(offloads.iter().all(|of| of.patterns.is_empty() && of.kept.len() != 1));
}

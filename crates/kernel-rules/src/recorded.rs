//! Dumps of a kernel (Linux 6.18), recorded by `recorded/record.py`, and what is read from them.

use proptest::prelude::*;

use crate::finding::{Action, Family, Finding, Kind, Packets};
use crate::links::{Link, Links};
use crate::netlink::{Raw, messages};
use crate::nft::{self, Base, ChainName, TableFamily, Tables, Texts};
use crate::rules::{self, RoutingRule};
use crate::tc::{Filter, Qdisc, Tc};
use crate::xfrm::{Policies, Policy};
use crate::{Exceptions, Options, routes};

const LINKS: &[u8] = include_bytes!("../recorded/links.bin");
const RULES: [&[u8]; 2] =
    [include_bytes!("../recorded/rules4.bin"), include_bytes!("../recorded/rules6.bin")];
const ROUTES: [&[u8]; 2] =
    [include_bytes!("../recorded/routes4.bin"), include_bytes!("../recorded/routes6.bin")];
const NEXTHOPS: &[u8] = include_bytes!("../recorded/nexthops.bin");
const QDISCS: &[u8] = include_bytes!("../recorded/qdiscs.bin");
const FILTERS: &[u8] = include_bytes!("../recorded/filters.bin");
const POLICIES: &[u8] = include_bytes!("../recorded/policies.bin");
const CHAINS: &[u8] = include_bytes!("../recorded/chains.bin");
const NFTABLES: &[u8] = include_bytes!("../recorded/nftables.bin");

fn read<T>(bytes: &[u8], read: impl FnMut(Raw<'_>) -> Option<T>) -> Vec<T> {
    messages(bytes).filter_map(read).collect()
}

fn links(wanted: &[&str]) -> Links {
    let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
    Links::new(read(LINKS, |raw| Link::read(&raw)), &wanted)
}

fn destinations() -> Options {
    let exceptions = Exceptions { destinations: true, sources: false };
    Options { exceptions, ..Options::default() }
}

/// Returns kind, action and text of each finding.
fn brief(findings: Vec<Finding>) -> Vec<(Kind, Action, String)> {
    findings
        .into_iter()
        .map(|finding| (finding.kind, finding.action, finding.to_string()))
        .collect()
}

/// Returns the text of each finding with this action.
fn texts(findings: Vec<Finding>, action: Action) -> Vec<String> {
    brief(findings).into_iter().filter(|(_, of, _)| *of == action).map(|(.., text)| text).collect()
}

#[test]
fn interfaces_with_masters_and_devices_above_are_found() {
    let found = brief(links(&["v0", "v1", "lo", "br0", "absent"]).findings(&Options::default()));
    let text = |text: &str| text.to_owned();
    assert_eq!(
        found,
        [
            (
                Kind::Macvlan,
                Action::Stay,
                text("packets for the MAC of macvlan m0 on v0 stay with the kernel")
            ),
            (
                Kind::Bridge,
                Action::Refuse,
                text(
                    "v1 is a port of bridge br0, which decides about its frames; take it out: ip link set v1 nomaster, or say \
                     --bypass bridge"
                )
            ),
            (
                Kind::Interface,
                Action::Refuse,
                text("interface lo has no Ethernet frames; leave it out")
            ),
            (
                Kind::Bridge,
                Action::Refuse,
                text(
                    "br0 is a bridge, whose frames have passed its ports' rules already; leave it out, or say --bypass bridge"
                )
            ),
            (
                Kind::Interface,
                Action::Refuse,
                text(
                    "interface absent not found in this network namespace; known: v1, v0, w1, w0, br0, m0; name another"
                )
            ),
            (
                Kind::Interface,
                Action::Stay,
                text("packets from and to other interfaces (w1, w0) stay with the kernel")
            ),
        ]
    );
    assert_eq!(
        links(&["v0", "w0", "w1"]).findings(&Options::default()).len(),
        1,
        "nothing but the MACVLAN"
    );
}

fn routing_rules() -> Vec<RoutingRule> {
    RULES.iter().flat_map(|bytes| read(bytes, |raw| RoutingRule::read(&raw))).collect()
}

#[test]
fn routing_rules_are_read_as_ip_rule_shows_them() {
    let texts: Vec<(u32, String)> =
        routing_rules().iter().map(|rule| (rule.priority, rule.text())).collect();
    let expected = [
        (0, "from all lookup local"),
        (100, "from 10.0.0.0/8 to 10.7.0.0/16 lookup 100"),
        (
            200,
            "not from 10.1.0.0/16 iif v0 tos 0x8 fwmark 0x1/0xf uidrange dport 22-23 ipproto 6 lookup 300 \
             suppress_prefixlength 0",
        ),
        (300, "from all oif v0 blackhole"),
        (400, "from all lookup 50"),
        (500, "from all goto 32766"),
        (1000, "from all lookup [l3mdev-table]"),
        (32766, "from all lookup main"),
        (32767, "from all lookup default"),
        (0, "from all lookup local"),
        (600, "from all to 2001:db8::/32 prohibit"),
        (32766, "from all lookup main"),
    ];
    let expected: Vec<(u32, String)> =
        expected.into_iter().map(|(priority, text)| (priority, text.to_owned())).collect();
    assert_eq!(texts, expected);
}

#[test]
fn routing_rules_are_followed_excepted_or_refused() {
    let of = |options: &Options| {
        let found = rules::findings(&routing_rules(), &links(&["v0", "w0"]), options);
        let brief = |finding: &Finding| {
            let number = finding.message.split(' ').nth(2).unwrap_or_default().parse::<u32>();
            (number.unwrap(), finding.action)
        };
        found.iter().map(brief).collect::<Vec<_>>()
    };
    let (note, follow, stay, refuse) = (Action::Note, Action::Follow, Action::Stay, Action::Refuse);
    let expected = [
        (100, stay),
        (200, refuse),
        (300, note),
        (400, follow),
        (500, refuse),
        (1000, follow),
        (600, stay),
    ];
    assert_eq!(of(&destinations()), expected);
    let unable = [
        (100, refuse),
        (200, refuse),
        (300, note),
        (400, follow),
        (500, refuse),
        (1000, follow),
        (600, refuse),
    ];
    assert_eq!(of(&Options::default()), unable);
}

#[test]
fn without_a_rule_for_table_main_nothing_is_accelerated() {
    let mut rules = routing_rules();
    rules.retain(|rule| rule.family != Family::Ip6 || rule.priority != 32766);
    let found = texts(rules::findings(&rules, &links(&["v0"]), &destinations()), Action::Refuse);
    let expected = "IPv6 has no rule that leads to table main; add it: ip -6 rule add lookup main, or say --bypass rules";
    assert_eq!(found.last().map(String::as_str), Some(expected));
}

#[test]
fn routes_for_a_part_of_the_packets_stay_with_the_kernel() {
    let special =
        routes::of_dumps(messages(NEXTHOPS), ROUTES.iter().flat_map(|bytes| messages(bytes)));
    let findings = routes::findings(&special);
    assert_eq!(
        texts(findings.clone(), Action::Stay),
        [
            "IPv4 routes that encapsulate: 3 (10.6.0.0/16 encap ip, 10.8.0.0/16 encap ip, 10.10.0.0/16 encap ip); packets to \
             their prefixes stay with the kernel",
            "IPv4 routes that are for a part of the packets to their prefix: 1 (10.5.0.0/16 tos 0x8); packets to their \
             prefixes stay with the kernel",
            "IPv6 routes that encapsulate: 1 (2001:db8::/32 encap seg6); packets to their prefixes stay with the kernel",
            "IPv6 routes that are for a part of the packets to their prefix: 1 (2001:db8:1::/48 from 2001:db8:2::/48); \
             packets to their prefixes stay with the kernel",
        ]
    );
    let Packets::To(prefixes) = &findings[0].packets else { panic!("{findings:?}") };
    assert_eq!(prefixes.len(), 3);
}

#[test]
fn qdiscs_that_shape_and_filters_are_refused() {
    let tc = Tc {
        qdiscs: read(QDISCS, |raw| Qdisc::read(&raw)),
        filters: read(FILTERS, |raw| Filter::read(&raw, 4, false)),
        ..Tc::default()
    };
    // The filter and its hash table, without the head of the list.
    assert_eq!(tc.filters.len(), 2);
    let links = links(&["v0", "w0"]);
    let w0 = links.by_index.values().find(|link| link.name == "w0").unwrap().index;
    let filters = tc.filters.iter().map(|filter| Filter { interface: w0, ..filter.clone() });
    let mut filters: Vec<Filter> = filters.collect();
    filters.sort();
    filters.dedup();
    let tc = Tc { filters, ..tc };
    assert_eq!(
        texts(tc.findings(&links), Action::Refuse),
        [
            "qdisc htb 1: of v0 would not see accelerated packets, which leave behind it; remove it: tc qdisc del dev v0 \
             root, or say --bypass tc",
            "tc filter u32, preference 7 at egress of w0 would not see accelerated packets; remove it: tc filter del dev w0 \
             egress pref 7, or say --bypass tc",
        ]
    );
}

#[test]
fn policies_of_forwarded_packets_are_found() {
    let policies = read(POLICIES, |raw| Policy::read(&raw));
    let policies = Policies { policies, blocks_by_default: true };
    let found = brief(policies.findings(&destinations()));
    let actions: Vec<(Action, bool)> =
        found.iter().map(|(_, action, text)| (*action, text.contains("10.1.0.0/16"))).collect();
    // Those of direction `in` and of an XFRM interface concern no forwarded packet.
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(actions.iter().filter(|one| **one == (Action::Stay, true)).count(), 1);
    let refused = texts(policies.findings(&destinations()), Action::Refuse);
    assert!(
        refused
            .iter()
            .any(|text| text.contains("from 2001:db8::/32 to ::/0 proto 17 dir out priority 0")),
        "{refused:?}"
    );
    assert!(refused.iter().any(|text| text.contains("priority 9 block")), "{refused:?}");
    assert!(refused.iter().any(|text| text.contains("without an IPsec policy")), "{refused:?}");
}

fn tables() -> Tables {
    let mut tables = Tables { bases: read(CHAINS, |raw| Base::read(&raw)), ..Tables::default() };
    for (name, rule) in read(NFTABLES, |raw| nft::read_rule(&raw)) {
        tables.rules.entry(name).or_default().push(rule);
    }
    tables
}

#[test]
fn chains_on_the_way_of_forwarded_packets_are_found_with_their_effects() {
    let tables = tables();
    let effective = tables.effective(&links(&["v0", "w0"]), &Texts::new());
    let names: Vec<&str> = effective.iter().map(|one| one.base.name.chain.as_str()).collect();
    assert_eq!(names, ["forward", "postrouting", "ingress"]);
    let forward = &effective[0];
    assert!(
        forward.effects.drops
            && forward.effects.tracks
            && forward.effects.counts
            && forward.effects.changes
    );
    assert!(forward.effects.maps && !forward.effects.translates);
    // All seven, for the policy, and two of the chain that it leads to.
    assert_eq!(forward.rules.len(), 9);
    assert_eq!(forward.rules[forward.named].number, 4, "{:?}", forward.rules);
    assert_eq!(effective[1].finding(&links(&["v0", "w0"]), false).kind, Kind::Nat);
    let ingress = effective[2].finding(&links(&["v0", "w1"]), false);
    assert_eq!(ingress.packets, Packets::ReceivedOn(vec!["v0".into()]));
}

#[test]
fn each_rule_has_its_own_effects() {
    let tables = tables();
    let name = |chain: &str| ChainName {
        family: TableFamily::Inet,
        table: "filter".into(),
        chain: chain.into(),
    };
    let of = |chain: &str| {
        let rules = tables.rules[&name(chain)].iter();
        let flags = rules.map(|rule| {
            let effects = &rule.effects;
            let flags = [
                (effects.drops, 'd'),
                (effects.changes, 'c'),
                (effects.tracks, 't'),
                (effects.counts, 'n'),
                (effects.maps, 'm'),
                (!effects.jumps.is_empty(), 'j'),
            ];
            flags.iter().filter(|(is, _)| *is).map(|(_, letter)| letter).collect::<String>()
        });
        flags.collect::<Vec<_>>()
    };
    assert_eq!(of("forward"), ["", "j", "m", "n", "c", "c", "c"]);
    assert_eq!(of("lan"), ["d", "t"]);
    assert_eq!(of("harmless"), [""]);
    assert!(tables.tracks());
}

#[test]
fn rules_for_each_packet_are_obstacles_of_flows_unless_established_ones_do_not_meet_them() {
    let mut tables = tables();
    let links = links(&["v0", "w0"]);
    let name =
        ChainName { family: TableFamily::Inet, table: "filter".into(), chain: "forward".into() };
    let found = |tables: &Tables| -> Vec<(Kind, Action, Option<String>)> {
        let effective = tables.effective(&links, &Texts::new());
        let of = |one: &nft::Effective<'_>| {
            let finding = one.finding_of_flows(&links, tables);
            let part = tables.obstacle(one.base).map(|of| format!("{} {}", of.number, of.part));
            (finding.kind, finding.action, part)
        };
        effective.iter().map(of).collect()
    };
    let follow = |kind| (kind, Action::Follow, None);
    let refuse = |part: &str| (Kind::Nftables, Action::Refuse, Some(part.to_owned()));
    let (nat, ingress) = (follow(Kind::Nat), follow(Kind::Nftables));
    // "limit rate 5/second accept", "meta mark set 1", then the MSS of SYN packets, which are none of a flow's.
    assert_eq!(found(&tables), [refuse("4 limit"), nat.clone(), ingress.clone()]);
    let remove = |tables: &mut Tables, index: usize| {
        drop(tables.rules.get_mut(&name).unwrap().remove(index))
    };
    remove(&mut tables, 3);
    assert_eq!(found(&tables)[0], refuse("4 meta"));
    remove(&mut tables, 3);
    assert_eq!(found(&tables)[0], refuse("5 dynset"));
    // "ct state established accept" in front of it.
    let lan = ChainName { chain: "lan".into(), ..name.clone() };
    let accept = tables.rules[&lan][1].clone();
    tables.rules.get_mut(&name).unwrap().insert(0, accept.clone());
    assert_eq!(found(&tables), [follow(Kind::Nftables), nat, ingress]);
    // In front of connection tracking it accepts nothing.
    let base = tables.bases.iter_mut().find(|base| base.name == name).unwrap();
    (base.hook, base.priority) = ("prerouting", -300);
    let base = base.clone();
    assert_eq!(tables.obstacle(&base).map(|of| of.number), Some(6));
    let behind = Base { priority: -150, ..base };
    assert_eq!(tables.obstacle(&behind), None);
    // A set whose elements come and go.
    tables.rules.insert(name.clone(), vec![tables.rules[&name][3].clone()]);
    assert_eq!(tables.obstacle(&behind), None);
    let set = tables.rules[&name][0].met[1].sets[0].clone();
    tables.mark_volatile(&[(TableFamily::Inet, "filter".into(), set)]);
    assert_eq!(tables.obstacle(&behind).unwrap().part, "a set with timeouts");
}

#[test]
fn only_interfaces_of_a_chain_are_concerned() {
    let tables = tables();
    let names = |wanted: &[&str]| -> Vec<String> {
        let effective = tables.effective(&links(wanted), &Texts::new());
        effective
            .iter()
            .filter(|one| one.base.hook == "ingress")
            .map(|one| one.base.name.chain.clone())
            .collect()
    };
    assert_eq!(names(&["w1"]), ["other"]);
    assert_eq!(names(&["v1"]), [""; 0]);
}

proptest! {
    /// A dump with bytes changed, or cut, is read or not, without a crash.
    #[test]
    fn no_dump_is_a_crash(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..20), cut in any::<u16>()) {
        let options = destinations();
        for dump in [LINKS, RULES[0], RULES[1], ROUTES[0], ROUTES[1], NEXTHOPS, QDISCS, FILTERS, POLICIES, CHAINS, NFTABLES] {
            let mut bytes = dump.to_vec();
            for (at, byte) in &changes {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *byte;
            }
            bytes.truncate(bytes.len() - usize::from(cut) % (bytes.len() / 4));
            let links = Links::new(read(&bytes, |raw| Link::read(&raw)), &["v0".to_owned()]);
            links.findings(&options);
            rules::findings(&read(&bytes, |raw| RoutingRule::read(&raw)), &links, &options);
            routes::findings(&routes::of_dumps(messages(&bytes), messages(&bytes)));
            let qdiscs = read(&bytes, |raw| Qdisc::read(&raw));
            let filters = read(&bytes, |raw| Filter::read(&raw, 1, true));
            Tc { qdiscs, filters, ..Tc::default() }.findings(&links);
            let policies = read(&bytes, |raw| Policy::read(&raw));
            Policies { policies, blocks_by_default: false }.findings(&options);
            let mut tables = Tables { bases: read(&bytes, |raw| Base::read(&raw)), ..Tables::default() };
            tables.rules.extend(read(&bytes, |raw| nft::read_rule(&raw)).into_iter().map(|(name, rule)| (name, vec![rule])));
            tables.effective(&links, &Texts::new());
            messages(&bytes).for_each(|raw| drop(crate::hooks::Hook::read(&raw, "ip", "forward")));
        }
    }
}

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use dataplane::catalogue::Catalogue;
use dataplane::flows::FlowSettings;
use dataplane::port::MAX_PORTS;
use dataplane::reason::PuntClass;
use proptest::prelude::*;

use super::super::{Limits, parse};
use super::*;
use crate::netlink::FoundVlan;

const PORTS: &str = "local turnpike = require 'turnpike'\n\
    turnpike.port 'a' { device = 'eth0', address = '10.0.1.1/24' }\n\
    turnpike.port 'b' { device = 'eth1', address = '10.0.2.1/24' }\n";

fn read(text: &str) -> Config {
    let catalogue = Catalogue::default();
    parse(Path::new("r.lua"), text, Limits::default(), &catalogue).unwrap()
}

fn with(text: &str) -> Config {
    read(&format!("{PORTS}{text}"))
}

/// Returns the changed settings, as lines.
fn settings(old: &str, new: &str) -> Vec<String> {
    let diff = Diff::between(&with(old), &with(new));
    let none = || "-".to_owned();
    let line = |s: &Setting| {
        let (from, to) = (s.from.clone().unwrap_or_else(none), s.to.clone().unwrap_or_else(none));
        format!("{}: {from} => {to}{}", s.what, if s.is_live() { "" } else { " (restart)" })
    };
    diff.settings.iter().map(line).collect()
}

#[test]
fn lines_comments_and_order_are_no_difference() {
    let old = with("turnpike.route '10.3.0.0/16' { via = '10.0.1.2' }\nturnpike.tx { burst = 8 }");
    let new = with(
        "-- a comment\nturnpike.tx { burst = 8 }\n\nturnpike.route '10.3.0.0/16' { via = '10.0.1.2' }",
    );
    let diff = Diff::between(&old, &new);
    assert!(diff.is_empty() && !diff.graph, "{diff:?}");
}

#[test]
fn ports_in_another_order_are_the_same_ports() {
    let rest = "turnpike.route '10.3.0.0/16' { via = '10.0.1.2' }\n\
        turnpike.route '10.4.0.0/16' { port = 'b' }\n\
        turnpike.neighbour '10.0.2.9' { port = 'b', mac = '02:00:00:00:00:09' }\n\
        turnpike.multicast '239.1.1.1' { from = 'a', to = { 'b' } }\n\
        turnpike.graph:on_port 'b'";
    let turned = "local turnpike = require 'turnpike'\n\
        turnpike.port 'b' { device = 'eth1', address = '10.0.2.1/24' }\n\
        turnpike.port 'a' { device = 'eth0', address = '10.0.1.1/24' }\n";
    let old = with(rest);
    let mut new = read(&format!("{turned}{rest}"));
    assert!(!Diff::between(&old, &new).is_empty(), "numbers differ before they are aligned");
    new.align(&old).unwrap();
    let diff = Diff::between(&old, &new);
    assert!(diff.is_empty(), "{diff:?}");
    assert_eq!(new.ports[0].name, "a");
}

/// Returns the names of the ports by their numbers, and the port of the route to 10.9.0.0/16.
fn numbered(config: &Config) -> (String, InterfaceId) {
    let RouteKind::Unicast(paths) = &config.routes[0].kind else { panic!("{:?}", config.routes) };
    (config.port_names().join(" "), paths[0].interface.unwrap())
}

#[test]
fn ports_keep_their_numbers_and_new_ones_take_free_ones() {
    let with_ports = |names: &[&str], to: &str| {
        let port = |name: &&str| format!("turnpike.port '{name}' {{ device = 'eth-{name}' }}\n");
        let ports: String = names.iter().map(port).collect();
        let text = format!("local turnpike = require 'turnpike'\n{ports}");
        read(&format!("{text}turnpike.route '10.9.0.0/16' {{ port = '{to}' }}"))
    };
    let mut before = with_ports(&["a", "b", "c"], "b");
    assert_eq!(numbered(&before), ("a b c".into(), InterfaceId::new(1).unwrap()));
    for (names, to, expected, number) in [
        // The number of a removed port is free only for the next change.
        (&["d", "c", "a"][..], "d", "a  c d", 3),
        (&["e", "d", "c", "a"], "e", "a e c d", 1),
        (&["e"], "e", " e", 1),
        (&["f", "g", "e"], "g", "f e g", 2),
    ] {
        let mut after = with_ports(names, to);
        after.align(&before).unwrap();
        assert_eq!(numbered(&after), (expected.into(), InterfaceId::new(number).unwrap()));
        let found = after.port(PortId::new(number).unwrap()).map(|port| port.name.as_str());
        assert_eq!(found, Some(to));
        before = after;
    }
    let many: Vec<String> = (0..MAX_PORTS - 2).map(|n| format!("p{n}")).collect();
    let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut full = with_ports(&many, "p0");
    let error = full.align(&before).unwrap_err();
    assert!(error.starts_with("port \"p61\": exceeds 64 ports together with"), "{error}");
    many.pop();
    with_ports(&many, "p0").align(&before).unwrap();
}

#[test]
fn a_file_is_the_same_however_it_was_named() {
    let text = format!("{PORTS}turnpike.import {{ file = 'table.gz', via = '10.0.1.2' }}");
    let parse = |file: &Path| parse(file, &text, Limits::default(), &Catalogue::default()).unwrap();
    let relative = parse(Path::new("r.lua"));
    let here = std::path::absolute("r.lua").unwrap();
    assert!(Diff::between(&relative, &parse(&here)).is_empty());
    assert!(!Diff::between(&relative, &parse(Path::new("/elsewhere/r.lua"))).is_empty());
}

#[test]
fn every_kind_of_setting_is_compared() {
    let port = |setting: &str| {
        format!("turnpike.port 'c' {{ device = 'eth2', address = '10.0.3.1/24', {setting} }}")
    };
    for (old, new, expected) in [
        (port(""), port("mtu = 9000"), "port \"c\": mtu: the device's => 9000"),
        (port(""), port("ttl_security = 1"), "port \"c\": ttl_security: none => 1"),
        (port("redirects = true"), port(""), "port \"c\": redirects: true => false"),
        (
            port("reverse_path = 'loose'"),
            port("reverse_path = 'strict'"),
            "port \"c\": reverse_path: loose => strict",
        ),
        (
            "turnpike.neighbour '10.0.2.9' { port = 'b', mac = '02:00:00:00:00:09' }".to_owned(),
            String::new(),
            "neighbour 10.0.2.9 on port \"b\": 02:00:00:00:00:09 => -",
        ),
        (
            String::new(),
            "turnpike.multicast '239.1.1.1' { from = 'a', to = { 'b' } }".to_owned(),
            "multicast 239.1.1.1 from any: - => a -> b",
        ),
        (
            String::new(),
            "turnpike.slowpath { classes = { errors = { rate = 7 } } }".to_owned(),
            "slowpath: classes.errors.rate: 50000 => 7",
        ),
        (
            "turnpike.forwarders { cores = '0' }".to_owned(),
            "turnpike.forwarders { cores = '0-1' }".to_owned(),
            "cores: forward: 0 => 0, 1",
        ),
        (
            String::new(),
            "turnpike.forwarders { wait = 'interrupt' }".to_owned(),
            "forwarders: wait: adaptive => interrupt",
        ),
        (
            "turnpike.forwarders { budget = 100 }".to_owned(),
            String::new(),
            "forwarders: budget: 100 => 512",
        ),
        (
            "turnpike.forwarders { rebalance = false }".to_owned(),
            String::new(),
            "forwarders: rebalance: false => true",
        ),
        (
            "turnpike.forwarders { shed = { percent = 5 } }".to_owned(),
            String::new(),
            "forwarders: shed: percent: 5 => 3",
        ),
        (
            "turnpike.forwarders { shed = { keep = { 'control', 'voice' } } }".to_owned(),
            "turnpike.forwarders { shed = { keep = 'video' } }".to_owned(),
            "forwarders: shed: keep: control, voice => video",
        ),
        (
            "turnpike.forwarders { mode = 'events' }".to_owned(),
            "turnpike.forwarders { mode = 'events', order = 'atomic' }".to_owned(),
            "forwarders: order: ordered => atomic",
        ),
        (
            "turnpike.forwarders { learned_flows = 0 }".to_owned(),
            String::new(),
            "forwarders: learned_flows: 0 => 256",
        ),
        (
            String::new(),
            "turnpike.command 'x' { help = 'A', run = print }".to_owned(),
            "command \"x\": - => A",
        ),
        (
            "turnpike.command 'x' { run = print }".to_owned(),
            "turnpike.command 'x' { run = error }".to_owned(),
            "commands in Lua: the script's text: as it is => another",
        ),
        (
            "turnpike.telnet {}".to_owned(),
            "turnpike.telnet { idle_s = 5 }".to_owned(),
            "telnet: idle_s: 600 => 5",
        ),
        (
            "turnpike.metrics {}".to_owned(),
            "turnpike.metrics { socket = '/m' }".to_owned(),
            "metrics: socket: /run/turnpike-metrics.sock => /m",
        ),
        (
            "turnpike.sflow { collector = '192.0.2.9', sample = 9 }".to_owned(),
            "turnpike.sflow { collector = '192.0.2.9', sample = 9, interfaces = 'b' }".to_owned(),
            "sflow: interfaces: all => b",
        ),
        (
            "turnpike.api { listen = '127.0.0.1:1', socket = '/run/turnpike-api.sock' }".to_owned(),
            "turnpike.api { token_file = '/t', listen = '127.0.0.1:1', socket = '/run/turnpike-api.sock' }".to_owned(),
            "api: token_file: none => /t",
        ),
        (
            "turnpike.api { listen = '127.0.0.1:1', certificate = '/c', key = '/k' }".to_owned(),
            "turnpike.api { listen = '127.0.0.1:1', certificate = '/c', key = '/other' }".to_owned(),
            "api: key: /k => /other",
        ),
        (
            "turnpike.metrics { listen = '127.0.0.1:1', certificate = '/c', key = '/k' }".to_owned(),
            "turnpike.metrics { listen = '127.0.0.1:1', certificate = '/c', key = '/k', client_ca = '/a' }".to_owned(),
            "metrics: client_ca: none => /a",
        ),
        (
            "turnpike.api {}".to_owned(),
            "turnpike.api { dashboard = true }".to_owned(),
            "api: dashboard: false => true",
        ),
        (
            "turnpike.access { read = { 'a' } }".to_owned(),
            "turnpike.access { read = { 'a', 'group:b' } }".to_owned(),
            "access: read: user a => user a, group b",
        ),
    ] {
        let lines = settings(&old, &new);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with(expected), "{lines:?}");
    }
}

#[test]
fn a_control_queue_is_a_setting_of_each_port_too() {
    let lines = settings("", "turnpike.forwarders { control_queue = true }");
    let expected = ["port \"a\": ", "port \"b\": ", "forwarders: "]
        .map(|place| format!("{place}control_queue: false => true"));
    assert_eq!(lines, expected);
}

#[test]
fn steps_are_shown_where_they_stand() {
    let lines = settings(
        "",
        "turnpike.graph:insert_after('ip4-validate', { 'ip4-ttl', as = 'early-ttl' })",
    );
    let expected = [
        "graph: ip4-validate.ok: \"ip4-reverse-path\" => \"early-ttl\"",
        "graph: step \"early-ttl\": - => { \"ip4-ttl\", as = \"early-ttl\" }",
        "graph: early-ttl.ok: - => \"ip4-reverse-path\"",
    ];
    for line in expected {
        assert!(lines.iter().any(|found| found == line), "{line} is missing in {lines:?}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
}

#[test]
fn other_offloads_open_the_port_again() {
    let port = |offloads: &str| {
        read(&PORTS.replacen("{ device", &format!("{{ offloads = {{ {offloads} }}, device"), 1))
    };
    let (old, new) = (port("vlan = false"), port("scatter = true, vlan = false"));
    let diff = Diff::between(&old, &new);
    let [setting] = &diff.settings[..] else { panic!("{diff:?}") };
    assert_eq!(setting.what, "port \"a\": offloads");
    assert_eq!(setting.from.as_deref(), Some("vlan false"));
    assert_eq!(setting.to.as_deref(), Some("vlan false, scatter true"));
    assert!(setting.is_live() && diff.reopens(setting));
    assert_eq!(diff.ports.changed.len(), 1);
    let unsaid = Diff::between(&with(""), &port("vlan = true"));
    assert_eq!(unsaid.settings[0].from.as_deref(), Some("those of the device that help"));
    assert!(Diff::between(&old, &port("vlan = false")).is_empty());
}

#[test]
fn a_script_with_steps_counts_as_a_whole() {
    let script = |extra: &str| {
        format!(
            "{PORTS}{extra}\nlocal s = turnpike.step 's' {{ process = function(b, m) return m end }}\n\
             turnpike.graph:insert_after('ip4-validate', s)"
        )
    };
    let (plain, other) = (read(&script("")), read(&script("local answer = 42")));
    assert!(!Diff::between(&plain, &read(&script(""))).graph);
    let diff = Diff::between(&plain, &other);
    assert!(diff.graph && diff.settings.len() == 1 && diff.settings[0].is_live(), "{diff:?}");
    // One with steps and one without: the comparison of graphs reports it.
    assert!(Diff::between(&with(""), &plain).graph);
}

/// Routes by their identity.
type ByKey = BTreeMap<(IpNet, u32), (RouteKind, Option<u16>)>;

fn by_key(routes: &[Route]) -> ByKey {
    let entry = |r: &Route| {
        ((r.prefix, r.metric), (r.kind.clone(), r.resilient.map(|resilient| resilient.buckets)))
    };
    routes.iter().map(entry).collect()
}

fn statements() -> impl Strategy<Value = String> {
    let route = (0u8..6, 0u32..2, 0usize..4).prop_map(|(net, metric, kind)| {
        let kind = [
            "via = '10.0.1.2'",
            "via = { '10.0.1.2', '10.0.2.2' }",
            "via = { '10.0.1.2', '10.0.2.2' }, resilient = true",
            "blackhole = true",
        ][kind];
        (
            (net, metric),
            format!("turnpike.route '10.{}.0.0/16' {{ metric = {metric}, {kind} }}\n", net + 10),
        )
    });
    let other = proptest::sample::subsequence(
        vec![
            "turnpike.tx { burst = 8 }\n",
            "turnpike.icmp { ttl = 9 }\n",
            "turnpike.graph:remove 'ip4-mtu'\n",
            "turnpike.slowpath { retries = 5 }\n",
            "turnpike.neighbour '10.0.2.9' { port = 'b', mac = '02:00:00:00:00:09' }\n",
        ],
        0..=5,
    );
    (proptest::collection::btree_map(0..12u8, route, 0..8), other).prop_map(|(routes, other)| {
        let routes: BTreeMap<_, _> = routes.into_values().collect();
        routes.into_values().chain(other.into_iter().map(str::to_owned)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(4),
        ..ProptestConfig::default()
    })]

    /// Applying the differences to the old configuration gives the new one; there are no further
    /// ones.
    #[test]
    fn the_difference_leads_from_one_to_the_other(old in statements(), new in statements()) {
        let (old, new) = (with(&old), with(&new));
        let diff = Diff::between(&old, &new);
        let mut routes = by_key(&old.routes);
        for route in &diff.routes.removed {
            prop_assert!(routes.remove(&(route.prefix, route.metric)).is_some());
        }
        for (was, is) in &diff.routes.changed {
            prop_assert_ne!(by_key(std::slice::from_ref(was)), by_key(std::slice::from_ref(is)));
            prop_assert!(routes.remove(&(was.prefix, was.metric)).is_some());
            routes.extend(by_key(std::slice::from_ref(is)));
        }
        let before = routes.len();
        routes.extend(by_key(&diff.routes.added));
        prop_assert_eq!(routes.len(), before + diff.routes.added.len());
        prop_assert_eq!(routes, by_key(&new.routes));

        let map = |config: &Config| -> BTreeMap<String, String> {
            let entries = settings::list(config, diff.all_names());
            entries.into_iter().map(|entry| (entry.what, entry.value)).collect()
        };
        let mut settings = map(&old);
        for Setting { what, from, to, .. } in &diff.settings {
            prop_assert_eq!(settings.get(what), from.as_ref());
            prop_assert_ne!(from, to);
            match to {
                Some(value) => settings.insert(what.clone(), value.clone()),
                None => settings.remove(what),
            };
        }
        prop_assert_eq!(settings, map(&new));
        prop_assert_eq!(Diff::between(&old, &new).is_empty(), Diff::between(&new, &old).is_empty());
    }
}

/// A port with only the required settings, and a change of each of its settings.
const PORT: &str = "device = 'eth0'";
const CHANGES: &[(&str, &str)] = &[
    ("device", "device = 'eth7'"),
    ("driver", "driver = 'af_packet'"),
    ("accelerate", "device = 'a', accelerate = true"),
    ("take_over", "take_over = true"),
    ("vrf", "vrf = 'blue'"),
    ("address", "address = '10.0.9.1/24'"),
    ("mac", "mac = '02:00:00:00:00:09'"),
    ("mtu", "mtu = 1400"),
    ("rx_queues", "rx_queues = 1"),
    ("tx_queues", "tx_queues = 1"),
    ("rx_descriptors", "rx_descriptors = 512"),
    ("tx_descriptors", "tx_descriptors = 512"),
    ("rx_burst", "rx_burst = 9"),
    ("quota", "quota = 9"),
    ("wait", "wait = 'poll'"),
    ("rx_thresholds", "rx_thresholds = { free = 1 }"),
    ("tx_thresholds", "tx_thresholds = { free = 1 }"),
    ("rx_cores", "rx_cores = { 1, 2 }"),
    ("tx_cores", "tx_cores = { 1, 2 }"),
    ("rss", "rss = { symmetric = true }"),
    ("filter inward", "filter = 'f'"),
    ("filter outward", "filter = { outward = 'f' }"),
    ("filter hardware", "filter = { inward = 'f', hardware = true }"),
    ("spread", "spread = 'software'"),
    ("control_queue", "control_queue = false"),
    ("queue", "queue = { length = 7 }"),
    ("shape", "shape = '1mbit'"),
    ("offloads", "offloads = { vlan = false }"),
    ("link", "link = { speed = '10G' }"),
    ("promiscuous", "promiscuous = true"),
    ("all_multicast", "all_multicast = true"),
    ("host", "host = true"),
    ("host segmentation", "host = { segmentation = false }"),
    ("host vlans", "host = { vlans = 'kernel' }"),
    ("reverse_path", "reverse_path = 'loose'"),
    ("unreachables", "unreachables = false"),
    ("redirects", "redirects = true"),
    ("ttl_security", "ttl_security = 254"),
    ("dad", "dad = 2"),
    ("unnumbered", "unnumbered = 'lo0'"),
    ("proxy", "proxy = '192.0.2.0/24'"),
    ("dhcp_relay", "address = '10.0.9.1/24', dhcp_relay = '192.0.2.7'"),
    ("advertise", "address = 'fd00::1/64', advertise = true"),
    ("router_discovery", "address = '10.0.9.1/24', router_discovery = true"),
    // Settings of which some changes reopen the port and others do not.
    ("rss", "rss = { fields = 'l3' }"),
    ("spread", "rx_queues = 1, spread = 'software'"),
    ("rx_burst", "rx_burst = 8"),
];

#[test]
fn a_port_is_reopened_for_settings_that_say_so_and_for_no_others() {
    let with = |port: &str| {
        read(&format!(
            "local turnpike = require 'turnpike'\nturnpike.forwarders {{ cores = '1,2', control_queue = true }}\n\
             turnpike.filter 'f' {{ default = 'drop' }}\n\
             turnpike.vrf 'blue' {{}}\n\
             turnpike.loopback 'lo0' {{ address = '10.0.255.1/32', host = false }}\n\
             turnpike.port 'a' {{ {port} }}\n"
        ))
    };
    let mut known: BTreeSet<String> = BTreeSet::new();
    for &(setting, change) in CHANGES {
        let is_whole = ["device", "accelerate"].contains(&setting);
        let port = if is_whole { change.to_owned() } else { format!("{PORT}, {change}") };
        let mut diff = Diff::between(&with(PORT), &with(&port));
        // The kernel is a source of routes then.
        diff.settings.retain(|of| setting != "accelerate" || of.port.is_some());
        let reopens = |setting: &Setting| {
            matches!(setting.effect, Effect::Reopen | Effect::ReopenHost) && diff.reopens(setting)
        };
        let changed = !diff.ports.changed.is_empty();
        assert_eq!(changed, diff.settings.iter().any(reopens), "{change}: {:?}", diff.settings);
        assert!(
            diff.settings.iter().all(|setting| setting.port.as_deref() == Some("a")),
            "{diff:?}"
        );
        let what = format!("port \"a\": {setting}");
        assert!(diff.settings.iter().any(|setting| setting.what == what), "{change}: {diff:?}");
        known.insert(what);
    }
    let all: BTreeSet<String> = settings::of_port(&with("device = 'eth0', host = true").ports[0])
        .into_iter()
        .map(|entry| entry.what)
        .collect();
    assert_eq!(known, all, "a change of each setting");
}

#[test]
fn another_namespace_of_host_interfaces_opens_no_port() {
    let with = |host: &str| {
        read(&format!(
            "local turnpike = require 'turnpike'\n\
             turnpike.port 'a' {{ device = 'eth0', host = {host} }}\n\
             turnpike.vlan 'a.7' {{ parent = 'a', id = 7, host = {host} }}\n\
             turnpike.port 'b' {{ device = 'eth1' }}\n\
             turnpike.bond 'c' {{ ports = {{ 'b' }}, host = {host} }}\n"
        ))
    };
    let effects = |from: &str, to: &str| {
        let diff = Diff::between(&with(from), &with(to));
        let opened = [!diff.ports.is_empty(), !diff.vlans.is_empty(), !diff.bonds.is_empty()];
        (diff.settings.iter().map(|setting| setting.effect).collect::<Vec<_>>(), opened)
    };
    let moved = vec![Effect::Live(Unit::Namespace); 3];
    for (from, to) in [("true", "{ netns = 'b' }"), ("{ netns = 'b' }", "{ netns = 'c' }")] {
        assert_eq!(effects(from, to), (moved.clone(), [false; 3]), "{from} -> {to}");
        assert_eq!(effects(to, from), (moved.clone(), [false; 3]), "{to} -> {from}");
    }
    for (from, to) in [("false", "true"), ("{ netns = 'b' }", "false")] {
        assert_eq!(effects(from, to), (vec![Effect::ReopenHost; 3], [true; 3]), "{from} -> {to}");
    }
    let finds = vec![Effect::Live(Unit::Vlans); 3];
    assert_eq!(effects("true", "{ vlans = 'kernel' }"), (finds, [false; 3]));
}

#[test]
fn settings_of_found_vlans_are_none_of_statements() {
    let with = |more: &str, found: &[(&str, u16)]| {
        let mut config = read(&format!(
            "local turnpike = require 'turnpike'\n\
             turnpike.filter 'f' {{ default = 'drop' }}\n\
             turnpike.port 'lan' {{ device = 'eth0', host = {{ vlans = 'kernel' }}, {more}\n"
        ));
        let device = |&(name, id): &(&str, u16)| FoundVlan {
            name: name.to_owned(),
            parent: "lan".to_owned(),
            protocol: 0x8100,
            id,
            is_plain: true,
            vrf: None,
            space: None,
        };
        let devices: Vec<_> = found.iter().map(device).collect();
        config.set_found(config.find_vlans(&devices).vlans);
        config
    };
    let old = with("}", &[("stays", 10), ("goes", 11), ("taken", 12)]);
    let new = "filter = { inward = 'f' } } turnpike.vlan 'taken' { parent = 'lan', id = 12, host = 'kernel' }";
    let mut new = with(new, &[("stays", 10), ("comes", 13)]);
    new.align(&old).unwrap();
    let diff = Diff::between(&old, &new);
    let of = |settings: &mut dyn Iterator<Item = &Setting>| -> BTreeSet<String> {
        settings.filter_map(|setting| setting.port.clone()).collect()
    };
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let all = names(&["comes", "goes", "lan", "stays"]);
    assert_eq!(of(&mut diff.settings.iter()), all, "which the router needs");
    assert_eq!(of(&mut diff.stated()), names(&["lan"]));
}

#[test]
fn vrfs_keep_their_numbers_and_are_shown_by_their_names() {
    let text =
        |vrfs: &str, rest: &str| format!("local turnpike = require 'turnpike'\n{vrfs}\n{rest}");
    let blue = "turnpike.vrf 'blue' {}";
    let both = "turnpike.vrf 'green' {} turnpike.vrf 'blue' {}";
    let port = |vrf: &str| {
        format!("turnpike.port 'a' {{ device = 'eth0', address = '10.0.1.1/24', vrf = '{vrf}' }}\n")
    };
    let route = "turnpike.route '10.3.0.0/16' { via = '10.0.1.2', vrf = 'blue' }\n\
        turnpike.route '10.4.0.0/16' { via = '10.3.0.1', vrf = 'blue' }";
    let old = read(&text(blue, &format!("{}{route}", port("blue"))));
    let mut same = read(&text(both, &format!("{}{route}", port("blue"))));
    same.align(&old).unwrap();
    assert_eq!(same.vrf_names(), ["default", "blue", "green"]);
    let diff = Diff::between(&old, &same);
    assert!(diff.routes.is_empty(), "{diff:?}");
    let what: Vec<_> = diff.settings.iter().map(|s| (&*s.what, s.effect)).collect();
    assert_eq!(what, [("vrf \"green\"", Effect::Live(Unit::Vrfs))]);
    let described: Vec<_> = same.routes.iter().map(|route| diff.describe(route)).collect();
    assert_eq!(
        described,
        ["via 10.0.1.2 (a), vrf blue", "via 10.3.0.1 (recursive in blue), vrf blue"]
    );
    let mut moved = read(&text(both, &port("green")));
    moved.align(&old).unwrap();
    let diff = Diff::between(&old, &moved);
    assert_eq!(diff.routes.removed.len(), 2);
    let moved = diff.settings.iter().find(|setting| setting.what == "port \"a\": vrf").unwrap();
    assert_eq!((moved.from.as_deref(), moved.to.as_deref()), (Some("blue"), Some("green")));
    assert!(diff.ports.is_empty() && !diff.graph, "no device is closed");
    let many: String = (0..2100).map(|i| format!("turnpike.vrf 'v{i}' {{}}\n")).collect();
    let others: String = (0..2100).map(|i| format!("turnpike.vrf 'w{i}' {{}}\n")).collect();
    let (many, mut others) = (read(&text(&many, &port("v1"))), read(&text(&others, &port("w1"))));
    let refused = others.align(&many).unwrap_err();
    assert_eq!(
        refused,
        "vrf \"w1995\": exceeds 4095 VRFs together with the running configuration; remove some first"
    );
}

/// Statements of every kind, each setting with another value than by default.
fn every_statement() -> Vec<String> {
    let class =
        |class: &PuntClass| format!("{} = {{ rate = 9, weight = 3, queue = 16 }}", class.name());
    let classes = PuntClass::ALL.iter().map(class).collect::<Vec<_>>().join(", ");
    let mut timeouts = FlowSettings::default().timeouts;
    let timeouts = timeouts.named().map(|(key, _)| format!("{key} = 9")).join(", ");
    let fixed = [
        "cores { control = '0', forward = '1' }",
        "forwarding { class_e = true, resolve_via_default = false, resilient = { buckets = 9 }, \
         hash = { fields = 'l3', flow_label = true, inner = true, seed = 7 } }",
        "tx { burst = 8, flush_us = 8 }",
        "icmp { ttl = 9, echo = false }",
        "memory { mbufs = 4096, no_huge = true }",
        "fib { ipv4 = 'reference', ipv6 = 'reference' }",
        "log { level = 'debug' }",
        "quarantine { directory = '/q', packets = 9, mib = 9 }",
        "accelerate { bypass = { 'nftables' }, filters = 'kernel', vlans = false, flows = true }",
        "telnet { listen = '127.0.0.1:99', sessions = 9, idle_s = 9, users = { 'root' } }",
        "element 'e' { class = 'Switch', config = '1', inputs = { 'push' }, outputs = { 'push' }, \
         to = { '0 0 e' }, step = 'classify', counts = { 'classify.ip4' }, port = 'a', ways = { 'local', 'a' } }",
        "control_socket 'cs' { listen = '0.0.0.0:97', public = true, read_only = true, verbose = true, clients = 9, \
         idle_s = 9, users = { 'root' } }",
        "metrics { socket = '/m', group = 'root', listen = '127.0.0.1:97', certificate = '/c', key = '/k', \
         client_ca = '/dev/null' }",
        "api { socket = '/a', group = 'root', listen = '127.0.0.1:96', certificate = '/c', key = '/k', \
         client_ca = '/ca', token_file = '/t', dashboard = true }",
        "sflow { collector = '192.0.2.9', source = '192.0.2.1', interfaces = 'a', sample = 9, agent = '192.0.2.1', \
         header = 64, counters_s = 9 }",
        "ipfix { collector = '192.0.2.9', source = '192.0.2.1', interfaces = 'a', sample = 9, active_s = 9, \
         inactive_s = 9, domain = 9, flows = 99, templates_s = 9 }",
        "snmp { agentx = '/x' }",
        "access { group = 'root', read = { 'root' }, operate = { 'group:root' }, configure = { '0' } }",
        "routes_from { 'kernel', 'fpm', audit_s = 9, receive_buffer_mib = 9 }",
        "fpm { listen = '127.0.0.1:98', keep_s = 9, users = { 'root' } }",
        "command 'c' { help = 'c', run = function() return '' end }",
        "vrf 'v' {}",
        "neighbour '10.0.2.9' { port = 'b', mac = '02:00:00:00:00:09' }",
        "next_hop 'n' { via = '10.0.2.2' }",
        "prefix_set 's' { '10.9.0.0/16' }",
        "multicast '239.1.1.1' { from = 'a', to = { 'b' } }",
        "import { file = 'table', via = '10.0.1.2' }",
        "filter 'f' { default = 'drop' }",
        "vlan 'a.7' { parent = 'a', id = 7 }",
        "loopback 'lo0' { address = '10.0.255.1/32' }",
        "filter 'g' { { proto = 'udp', category = 'x' } } turnpike.forwarders { wait = 'poll', moderation_us = 70, \
         budget = 100, rebalance = false, control_queue = true, learned_flows = 9, \
         shed = { percent = 7, keep = { 'data' }, categories = { 'x' } }, mode = 'events', \
         device = 'event_dsw0', order = 'atomic', receive_core = 1, scheduler_core = 0 }",
    ];
    let made = [
        format!("flows {{ most = 4096, {timeouts} }}"),
        format!(
            "slowpath {{ neighbours = 9, queue = 9, retries = 9, timeout_s = 9, reassembly_s = 9, \
             workers = 2, icmp_rate = 9, icmp_burst = 9, icmp_prefix_rate = 9, \
             icmp_prefix_burst = 9, classes = {{ {classes} }} }}"
        ),
    ];
    fixed.map(str::to_owned).into_iter().chain(made).map(|of| format!("turnpike.{of}\n")).collect()
}

/// Returns the names of all settings but those of ports, bonds, VLANs and graphs.
fn listed(config: &Config) -> BTreeSet<String> {
    let names = (config.interface_names(), config.vrf_names());
    let entries = settings::list(config, Names { ports: &names.0, vrfs: &names.1 });
    let names = entries.into_iter().map(|entry| entry.what);
    let others = |what: &String| {
        !["port ", "bond ", "vlan ", "loopback ", "graph: "].iter().any(|of| what.starts_with(of))
    };
    names.filter(others).collect()
}

#[test]
fn a_change_of_each_setting_is_seen_and_has_an_effect() {
    let all = every_statement();
    let full = with(&all.concat());
    let mut seen = BTreeSet::new();
    for statement in &all {
        let mut rest = all.clone();
        rest.retain(|other| other != statement);
        // Its settings are those of the source.
        rest.retain(|other| !(statement.contains("routes_from") && other.contains("fpm {")));
        let mut without = with(&rest.concat());
        without.align(&full).unwrap();
        let diff = Diff::between(&without, &full);
        assert!(!diff.settings.is_empty(), "{statement}");
        let taken_up = diff.settings.iter().filter(|of| matches!(of.effect, Effect::Live(_)));
        assert_eq!(taken_up.count() > 0, !diff.units().is_empty(), "{statement}");
        seen.extend(diff.settings.into_iter().map(|setting| setting.what));
    }
    // Excludes flow labels, which are above.
    let symmetric = with("turnpike.forwarding { hash = { symmetric = true } }\n");
    seen.extend(Diff::between(&with(""), &symmetric).settings.into_iter().map(|of| of.what));
    // Excludes most others.
    let accelerated = |settings: &str| {
        read(&format!("require 'turnpike'.accelerate {{ 'a', 'b', {settings} }}\n"))
    };
    let plain = accelerated("vlans = false");
    let in_kernel = Diff::between(&plain, &accelerated("vlans = false, in_kernel = true"));
    assert!(in_kernel.settings.iter().all(|of| !of.is_live()));
    seen.extend(in_kernel.settings.into_iter().map(|of| of.what));
    let missed: Vec<_> = listed(&full).into_iter().filter(|what| !seen.contains(what)).collect();
    assert_eq!(missed, [""; 0], "give each setting above another value than by default");
}

#[test]
fn each_setting_of_a_bond_is_compared() {
    let ports = "turnpike.port 'c' { device = 'eth2' } turnpike.port 'd' { device = 'eth3' }";
    let bond = |settings: &str| with(&format!("{ports} turnpike.bond 'lag' {{ {settings} }}"));
    let plain = bond("ports = { 'c', 'd' }");
    for (settings, expected, opened_anew) in [
        ("ports = { 'c' }", "ports: c, d => c", true),
        ("ports = { 'd', 'c' }", "ports: c, d => d, c", true),
        ("ports = { 'c', 'd' }, mode = 'static'", "mode: lacp => static", false),
        ("ports = { 'c', 'd' }, hash = 'l2'", "hash: l3+l4 => l2", false),
        ("ports = { 'c', 'd' }, minimum_links = 2", "minimum_links: 1 => 2", false),
        ("ports = { 'c', 'd' }, maximum_links = 1", "maximum_links: all => 1", false),
        ("ports = { 'c', 'd' }, lacp = { rate = 'slow' }", "lacp rate: fast => slow", false),
        ("ports = { 'c', 'd' }, lacp = { passive = true }", "lacp passive: false => true", false),
        ("ports = { 'c', 'd' }, lacp = { priority = 7 }", "lacp priority: 32768 => 7", false),
        (
            "ports = { 'c', 'd' }, mac = '02:00:00:00:00:09'",
            "mac: the first port's => 02:00:00:00:00:09",
            true,
        ),
        ("ports = { 'c', 'd' }, mtu = 1400", "mtu: its ports' => 1400", true),
        ("ports = { 'c', 'd' }, address = '10.0.9.1/24'", "address: none => 10.0.9.1/24", false),
    ] {
        let diff = Diff::between(&plain, &bond(settings));
        let [setting] = &diff.settings[..] else { panic!("{settings}: {:?}", diff.settings) };
        let (from, to) = (setting.from.as_deref().unwrap(), setting.to.as_deref().unwrap());
        assert_eq!(
            format!("{}: {from} => {to}", setting.what),
            format!("bond \"lag\": {expected}")
        );
        assert!(setting.is_live() && !diff.is_empty());
        assert_eq!(diff.bonds.changed.len(), usize::from(opened_anew), "{settings}");
    }
    // A port that joins or leaves is opened anew.
    let diff = Diff::between(&plain, &bond("ports = { 'c' }"));
    assert_eq!(diff.ports.changed.iter().map(|(_, port)| &port.name).collect::<Vec<_>>(), ["d"]);
    let diff = Diff::between(&with(ports), &plain);
    assert_eq!((diff.bonds.added.len(), diff.ports.changed.len(), diff.graph), (1, 2, true));
    let diff = Diff::between(&plain, &with(ports));
    assert_eq!((diff.bonds.removed.len(), diff.ports.changed.len(), diff.graph), (1, 2, true));
}

#[test]
fn each_setting_of_a_vlan_is_compared() {
    let vlan = |settings: &str| {
        let more = "turnpike.vrf 'v' {} turnpike.filter 'f' { default = 'drop' }";
        with(&format!("{more} turnpike.vlan 'a.7' {{ {settings} }}"))
    };
    let plain = vlan("parent = 'a', id = 7");
    for (settings, expected) in [
        ("parent = 'b', id = 7", "parent: a => b"),
        ("parent = 'a', id = 8", "id: 7 => 8"),
        ("parent = 'a', id = 7, protocol = '802.1ad'", "protocol: 802.1q => 802.1ad"),
        ("parent = 'a', id = 7, priority = 3", "priority: 0 => 3"),
        ("parent = 'a', id = 7, mtu = 1400", "mtu: the parent's => 1400"),
        ("parent = 'a', id = 7, vrf = 'v'", "vrf: default => v"),
        ("parent = 'a', id = 7, address = '10.0.9.1/24'", "address: none => 10.0.9.1/24"),
        ("parent = 'a', id = 7, filter = 'f'", "filter inward: none => f"),
        ("parent = 'a', id = 7, filter = { outward = 'f' }", "filter outward: none => f"),
        ("parent = 'a', id = 7, unreachables = false", "unreachables: true => false"),
        ("parent = 'a', id = 7, dad = 3", "dad: 0 => 3"),
        ("parent = 'a', id = 7, redirects = true", "redirects: false => true"),
        ("parent = 'a', id = 7, reverse_path = 'strict'", "reverse_path: any => strict"),
    ] {
        let diff = Diff::between(&plain, &vlan(settings));
        let [setting] = &diff.settings[..] else { panic!("{settings}: {:?}", diff.settings) };
        let (from, to) = (setting.from.as_deref().unwrap(), setting.to.as_deref().unwrap());
        let line = format!("{}: {from} => {to}", setting.what);
        assert_eq!(line, format!("vlan \"a.7\": {expected}"));
        assert!(setting.is_live() && !diff.is_empty());
        assert!(diff.graph || !diff.units().is_empty(), "{settings}: nothing takes it up");
    }
    let host = |more: &str| vlan(&format!("parent = 'a', id = 7, host = {{ {more} }}"));
    let diff = Diff::between(&host(""), &host("segmentation = false"));
    let names: Vec<_> = diff.settings.iter().map(|setting| setting.what.as_str()).collect();
    assert_eq!(names, ["vlan \"a.7\": host segmentation"]);
}

#[test]
fn each_setting_of_a_loopback_is_compared() {
    let more = "turnpike.vrf 'v' {} turnpike.vlan 'a.7' { parent = 'a', id = 7 }";
    let loopback =
        |settings: &str| with(&format!("{more} turnpike.loopback 'lo0' {{ {settings} }}"));
    let plain = loopback("");
    for (settings, expected, opened_anew) in [
        ("address = '10.0.9.1/32'", "address: none => 10.0.9.1/32", 0),
        ("vrf = 'v'", "vrf: default => v", 0),
        ("host = true", "host: false => in the router's namespace", 1),
    ] {
        let diff = Diff::between(&plain, &loopback(settings));
        let [setting] = &diff.settings[..] else { panic!("{settings}: {:?}", diff.settings) };
        let (from, to) = (setting.from.as_deref().unwrap(), setting.to.as_deref().unwrap());
        let line = format!("{}: {from} => {to}", setting.what);
        assert_eq!(line, format!("loopback \"lo0\": {expected}"));
        assert!(setting.is_live() && !diff.is_empty());
        assert_eq!(diff.loopbacks.changed.len(), opened_anew, "{settings}");
    }
    // One that comes has no settings beside those written, and keeps its number beside others.
    let none = with(more);
    let mut two = with(&format!(
        "{more} turnpike.loopback 'new' {{}} turnpike.loopback 'lo0' {{ address = '10.0.9.1/32' }}"
    ));
    two.align(&plain).unwrap();
    let ids: Vec<_> = two.loopbacks.iter().map(|of| (of.id.index(), &*of.name)).collect();
    assert_eq!(ids, [(65, "lo0"), (66, "new")]);
    let diff = Diff::between(&none, &plain);
    assert_eq!((diff.loopbacks.added.len(), diff.settings.len(), diff.graph), (1, 0, true));
    let diff = Diff::between(&two, &none);
    assert_eq!(diff.loopbacks.removed.len(), 2);
    assert!(diff.settings.iter().all(|setting| diff.is_of_port(setting)), "{:?}", diff.settings);
}

#[test]
fn filters_of_vlans_keep_their_numbers() {
    let filters = |names: [&str; 2]| {
        let each = names.map(|name| format!("turnpike.filter '{name}' {{ default = 'drop' }}\n"));
        format!("{}turnpike.vlan 'a.7' {{ parent = 'a', id = 7, filter = 'y' }}", each.concat())
    };
    let old = with(&filters(["x", "y"]));
    let mut new = with(&filters(["y", "x"]));
    new.align(&old).unwrap();
    assert!(Diff::between(&old, &new).is_empty());
    let number = |config: &Config| config.vlans[0].interface.filter_in.clone().unwrap().number;
    assert_eq!(number(&new), number(&old));
}

#[test]
fn rules_that_differ_in_anything_are_a_change() {
    let actions = [
        "action = 'accept'",
        "action = 'drop'",
        "action = 'accept', category = 'x'",
        "action = 'accept', mark = { dscp = 'cs1' }",
        "action = 'accept', mark = { class = 'voice' }",
        "action = 'accept', mirror = 'b'",
        "action = 'accept', name = 'n'",
        "forwarder = 1",
        "forwarder = { 1, 2 }",
        "forwarder = { 1, 3 }",
        "police = '1mbit'",
        "police = { rate = '1mbit', burst = '2mbit' }",
        "police = '10kpps per source/24'",
        "police = '10kpps per source/32'",
        "police = { rate = '1mbit', excess = '1mbit' }",
        "police = { rate = '1mbit', excess = '2mbit' }",
        "police = { rate = '1mbit', peak = '2mbit' }",
        "police = { rate = '1mbit', excess = '1mbit', aware = true }",
        "police = { rate = '1mbit', excess = '1mbit', aware = { yellow = 10 } }",
        "police = { rate = '1mbit', excess = '1mbit', aware = { yellow = { 10, 12 } } }",
        "police = { rate = '1mbit', excess = '1mbit', aware = { red = 10 } }",
    ];
    let filter = |action: &str| {
        let forwarders = "turnpike.forwarders { cores = '0-3' }";
        format!("{forwarders}\nturnpike.filter 'f' {{ {{ proto = 'udp', {action} }} }}")
    };
    for (at, old) in actions.iter().enumerate() {
        assert_eq!(settings(&filter(old), &filter(old)), [] as [String; 0]);
        for new in &actions[at + 1..] {
            let changed = settings(&filter(old), &filter(new));
            assert!(changed.iter().all(|line| line.starts_with("filter \"f\"")), "{changed:?}");
            assert!(!changed.is_empty(), "{old} => {new}");
        }
    }
}

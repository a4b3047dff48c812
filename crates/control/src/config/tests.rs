//! Tests of the configuration as a whole: accepted texts, and the exact message of every refusal.

use std::path::Path;
use std::time::Duration;

use dataplane::interface::VrfId;
use dataplane::port::{Fec, Offload, Pause};
use dataplane::reason::PuntClass;
use ipnet::Ipv6Net;
use proptest::prelude::*;
use slowpath::{Advertise, Discovery, Preference, Prefix};

use super::*;

const PORTS: &str = r#"local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = { "10.0.1.1/24", "fd00:1::1/64" } }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
"#;

fn read(text: &str) -> Result<Config, ConfigErrors> {
    parse(Path::new("etc/router.lua"), text, Limits::default(), &Catalogue::default())
}

/// Returns the errors of a text, without the name of the file.
fn errors(text: &str) -> Vec<String> {
    let errors = read(text).expect_err("an error was expected").0;
    errors
        .iter()
        .map(|error| {
            assert_eq!(error.file, Path::new("etc/router.lua"));
            error.to_string().replacen("etc/router.lua:", "", 1).trim_start().to_owned()
        })
        .collect()
}

/// Returns the errors of statements on line 4, after two correct ports.
fn errors_below_ports(statement: &str) -> Vec<String> {
    errors(&format!("{PORTS}{statement}"))
}

/// Returns the errors of a single port statement on line 2.
fn port_errors(settings: &str) -> Vec<String> {
    errors(&format!("local turnpike = require \"turnpike\"\nturnpike.port \"left\" {settings}"))
}

#[test]
fn the_example_works_as_it_stands() {
    let text = include_str!("../../../../examples/two-hosts.lua");
    let config = read(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.ports.len(), 2);
    assert_eq!(config.ports[0].name, "left");
    assert_eq!(config.ports[0].device, Device::Kernel("tp-left".to_owned()));
    let addresses: Vec<IpNet> =
        vec!["10.0.1.1/24".parse().unwrap(), "fd00:1::1/64".parse().unwrap()];
    assert_eq!(config.ports[0].interface.addresses, addresses);
    let (left, right) = (InterfaceId::new(0).unwrap(), InterfaceId::new(1).unwrap());
    let path = |port, via: &str| rib::Path::over(port, via.parse().unwrap());
    assert_eq!(config.routes[0].kind, RouteKind::Unicast(vec![path(right, "10.0.2.2")]));
    assert_eq!(
        config.routes[1].kind,
        RouteKind::Unicast(vec![path(left, "10.0.1.2"), path(right, "10.0.2.2")])
    );
    assert_eq!(config.neighbours[0].port, right);
    assert_eq!(config.neighbours[0].mac, MacAddr([2, 0, 0, 0, 0, 9]));
    assert_eq!(config.cores.forward, [1]);
}

#[test]
fn every_setting_is_read() {
    let config = read(&format!(
        r#"{PORTS}
        turnpike.port "pci" {{ device = "03:00.1", address = "192.0.2.0/31", mac = "02:00:00:00:00:01",
            mtu = 9000, rx_queues = 2, offloads = {{ scatter = true, vlan = false }}, unreachables = false,
            redirects = true, dad = 2, promiscuous = true, all_multicast = true,
            link = {{ speed = "100M", duplex = "half", autoneg = false, pause = "rx", fec = "base-r" }} }}
        turnpike.port("tap", {{ device = "net_tap0,iface=tap0", driver = "af_packet" }})
        turnpike.route "0.0.0.0/0" {{ via = {{ {{ "10.0.1.2", weight = 3 }}, "10.0.2.2" }}, metric = 7 }}
        turnpike.route "2001:db8::/32" {{ via = "fe80::2", port = "right" }}
        turnpike.route "192.0.2.9" {{ prohibit = true }}
        turnpike.route "192.0.2.8" {{ unreachable = true, blackhole = false }}
        turnpike.import {{ file = "table.gz", via = {{ "10.0.1.2", "fd00:2::2" }} }}
        turnpike.tx {{ burst = 64, flush_us = 10 }}
        turnpike.quarantine {{ directory = "/srv/q", packets = 9, mib = 2 }}
        turnpike.slowpath {{ neighbours = 100, queue = 4, retries = 2, timeout_s = 60, workers = 3,
            icmp_rate = 50, icmp_burst = 5, icmp_prefix_rate = 0, icmp_prefix_burst = 1,
            classes = {{ errors = {{ rate = 900, weight = 3, queue = 32 }}, host = {{ weight = 40 }} }} }}
        turnpike.icmp {{ ttl = 255, echo = false }}
        turnpike.memory {{ mbufs = 4096, no_huge = true }}
        turnpike.fib {{ ipv4 = "reference" }}
        turnpike.log {{ level = "debug" }}"#
    ))
    .unwrap_or_else(|errors| panic!("{errors}"));
    let pci = &config.ports[2];
    assert_eq!(pci.device, Device::Pci("0000:03:00.1".to_owned()));
    assert_eq!((pci.mtu, pci.queues.rx), (Some(9000), Some(2)));
    assert_eq!(pci.offloads, [(Offload::Vlan, false), (Offload::Scatter, true)].into());
    assert!(config.ports[3].offloads.is_empty());
    assert_eq!(pci.mac, Some(MacAddr([2, 0, 0, 0, 0, 1])));
    assert!(
        !pci.interface.settings.unreachables && config.ports[3].interface.settings.unreachables
    );
    let redirects = |port: &Port| port.interface.features().has(dataplane::steps::REDIRECTS);
    assert!(redirects(pci) && !redirects(&config.ports[3]));
    let link = LinkWish {
        speed: Some(100),
        half_duplex: true,
        fixed: true,
        pause: Some(Pause::Rx),
        fec: Some(Fec::BaseR),
    };
    assert_eq!((pci.link, config.ports[3].link), (link, LinkWish::default()));
    assert!(pci.promiscuous && !config.ports[3].promiscuous);
    assert!(pci.all_multicast && !config.ports[3].all_multicast);
    assert_eq!((pci.interface.settings.dad, config.ports[3].interface.settings.dad), (2, 0));
    assert_eq!(config.icmp, Icmp { ttl: 255, echo: false, class_e: false });
    assert_eq!(config.ports[3].device, Device::Vdev("net_tap0,iface=tap0".to_owned()));
    assert_eq!(config.ports[3].driver, Some(Driver::AfPacket));
    let RouteKind::Unicast(paths) = &config.routes[0].kind else { panic!("{config:?}") };
    assert_eq!(paths.iter().map(|path| path.weight).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(config.routes[0].metric, 7);
    let RouteKind::Unicast(paths) = &config.routes[1].kind else { panic!("{config:?}") };
    assert_eq!(paths[0].interface, InterfaceId::new(1));
    assert_eq!(config.routes[2].kind, RouteKind::Prohibited);
    assert_eq!(config.routes[2].prefix.to_string(), "192.0.2.9/32");
    assert_eq!(config.routes[3].kind, RouteKind::Unreachable);
    assert_eq!(config.imports[0].file, Path::new("etc/table.gz"));
    assert_eq!((config.imports[0].via4.len(), config.imports[0].via6.len()), (1, 1));
    assert_eq!(config.tx, TxConfig { burst: 64, flush: Duration::from_micros(10) });
    let quarantine = Quarantine { directory: "/srv/q".into(), packets: 9, bytes: 2 << 20 };
    assert_eq!(config.quarantine, quarantine);
    assert_eq!(config.slowpath.limits.reachable, Duration::from_secs(60));
    let slowpath::Limits { icmp_rate, icmp_burst, icmp_prefix_rate, .. } = config.slowpath.limits;
    assert_eq!((config.slowpath.workers, icmp_rate, icmp_burst, icmp_prefix_rate), (3, 50, 5, 0));
    assert_eq!(config.slowpath.limits.icmp_prefix_burst, 1);
    let errors = ClassLimits { rate: 900, weight: 3, queue: 32 };
    let host = ClassLimits { weight: 40, ..PuntClass::Host.default_limits() };
    for (&class, limits) in PuntClass::ALL.iter().zip(config.slowpath.classes) {
        let expected = match class {
            PuntClass::Errors => errors,
            PuntClass::Host => host,
            other => other.default_limits(),
        };
        assert_eq!(limits, expected, "{}", class.name());
    }
    assert_eq!(config.memory, Memory { mbufs: Some(4096), no_huge: true });
    assert_eq!(config.fib.ipv4, Algorithm::Reference);
    assert_eq!(config.fib.ipv6, Algorithm::default());
    assert_eq!(config.log.level, Some("debug"));
}

#[test]
fn the_weight_of_a_class_may_be_called_share() {
    let class = |keys: &str| format!("turnpike.slowpath {{ classes = {{ link = {{ {keys} }} }} }}");
    let config = read(&format!("{PORTS}{}", class("share = 7"))).unwrap();
    assert_eq!(config.slowpath.classes[PuntClass::Link.index()].weight, 7);
    let expected = "4: slowpath: classes: link: share is another name of weight; leave it out";
    assert_eq!(errors_below_ports(&class("share = 7, weight = 8")), [expected]);
}

#[test]
fn a_script_may_compute() {
    let config = read(&format!(
        "{PORTS}for i = 1, 1000 do
            turnpike.route(string.format('100.%d.%d.0/24', math.floor(i / 256), bit.band(i, 255)))
            {{ via = '10.0.1.2' }}
        end"
    ));
    assert_eq!(config.unwrap().routes.len(), 1000);
}

/// The keys of a port, as errors list them.
const PORT_KEYS: &str = "known: device, accelerate, driver, take_over, vrf, address, unnumbered, mac, mtu, link, promiscuous, all_multicast, rx_queues, tx_queues, rx_descriptors, tx_descriptors, rx_burst, quota, wait, rx_thresholds, tx_thresholds, rx_cores, tx_cores, rss, spread, control_queue, queue, shape, offloads, host, filter, unreachables, ttl_security, dad, proxy, dhcp_relay, advertise, router_discovery, reverse_path, redirects";

#[test]
fn unknown_keys_of_ports_are_named_with_the_known_ones() {
    for (settings, expected) in [
        (
            r#"{ device = "a", adress = "10.0.1.1/24" }"#,
            r#"2: port "left": key "adress" unknown; did you mean "address"? "#,
        ),
        ("{ device = 'a',\n\n  colour = 'red' }", r#"4: port "left": key "colour" unknown; "#),
        ("{ 'a', device = 'b' }", r#"2: port "left": string "a" has no key; "#),
    ] {
        assert_eq!(port_errors(settings), [format!("{expected}{PORT_KEYS}")], "{settings}");
    }
}

#[test]
fn offloads_that_are_none_are_named_with_the_known_ones() {
    const KNOWN: &str =
        "known: rx_checksum, tx_checksum, segmentation, vlan, scatter, multi_segment, fast_free";
    for (offloads, expected) in [
        ("{ lro = true }", format!("key \"lro\" unknown; {KNOWN}")),
        ("{ 'vlan' }", format!("string \"vlan\" has no key; {KNOWN}")),
        ("{ scatter = 1 }", "scatter: expected true or false, got number 1".to_owned()),
        (
            "{ fast_free = true }",
            "fast_free cannot be had: a transmit queue sends packets of several pools, and packets that \
             others share; leave it out"
                .to_owned(),
        ),
    ] {
        let errors = port_errors(&format!("{{ device = 'a', offloads = {offloads} }}"));
        assert_eq!(errors, [format!("2: port \"left\": offloads: {expected}")]);
    }
    let errors = port_errors("{ device = 'a', offloads = true }");
    assert_eq!(errors, ["2: port \"left\": offloads: expected a table, got boolean true"]);
    let fine = read(
        "local turnpike = require 'turnpike'\nturnpike.port 'a' { device = 'a', offloads = { fast_free = false } }",
    );
    assert_eq!(fine.unwrap().ports[0].offloads, [(Offload::FastFree, false)].into());
}

#[test]
fn a_link_that_cannot_be_is_refused() {
    for (wish, expected) in [
        (
            "'1G'",
            "link: expected { speed = \"1G\", autoneg = false, pause = \"none\", fec = \"rs\" }, got",
        ),
        ("{ speed = '3G' }", "link: speed string \"3G\": unknown; known: 10M, 100M, 1G, 2.5G, "),
        ("{ speed = 1001 }", "link: speed number 1001: unknown; known: 10M, "),
        (
            "{ autoneg = false }",
            "link: autoneg = false: a link that does not negotiate needs its speed",
        ),
        (
            "{ speed = 1000, duplex = 'half' }",
            "link: duplex \"half\": only links of 10M and 100M have it",
        ),
        ("{ pause = 'both' }", "link: pause \"both\" unknown; known: none, rx, tx, full"),
        ("{ fec = true }", "link: fec: expected \"none\" or \"auto\" or \"base-r\" or \"rs\", got"),
    ] {
        let all = port_errors(&format!("{{ device = 'a', link = {wish} }}"));
        assert!(all.len() == 1 && all[0].contains(expected), "{wish}: {all:?}");
    }
    for good in ["{ speed = 1000 }", "{ speed = '10000', autoneg = false }", "{ fec = 'auto' }"] {
        let text = format!("turnpike.port 'a' {{ device = 'a', link = {good} }}");
        let config = read(&format!("local turnpike = require 'turnpike'\n{text}"));
        assert_ne!(config.unwrap().ports[0].link, LinkWish::default(), "{good}");
    }
}

#[test]
fn class_e_is_refused_unless_it_is_accepted() {
    let text = |forwarding: &str| {
        format!(
            "local turnpike = require 'turnpike'\n{forwarding}\n\
             turnpike.port 'a' {{ device = 'a', address = '240.0.1.1/24' }}\n\
             turnpike.route '250.0.0.0/8' {{ via = '240.0.1.2' }}\n\
             turnpike.neighbour '240.0.1.2' {{ mac = '02:00:00:00:00:09' }}"
        )
    };
    let accepted = read(&text("turnpike.forwarding { class_e = true }"));
    assert!(accepted.unwrap_or_else(|errors| panic!("{errors}")).forwarding.class_e);
    for forwarding in ["", "turnpike.forwarding { class_e = false }", "turnpike.forwarding {}"] {
        let errors = read(&text(forwarding)).unwrap_err().to_string();
        assert_eq!(errors.matches("class_e = true").count(), errors.lines().count(), "{errors}");
    }
    let everywhere = "turnpike.forwarding { class_e = true }\n\
                      turnpike.route '255.255.255.255' { blackhole = true }";
    let errors = read(&text(everywhere)).unwrap_err().to_string();
    assert!(errors.contains("255.255.255.255/32 (broadcast)"), "{errors}");
}

#[test]
fn servers_of_relay_agents_are_read() {
    let port = |settings: &str| {
        read(&format!(
            "local turnpike = require 'turnpike'\n\
             turnpike.port 'a' {{ device = 'a', {settings} }}"
        ))
    };
    let own = "address = '10.0.1.1/24'";
    let relays = |settings: &str| {
        let config =
            port(&format!("{own}, {settings}")).unwrap_or_else(|errors| panic!("{errors}"));
        let interface = &config.ports[0].interface;
        let servers: Vec<_> = interface.settings.relay.iter().map(ToString::to_string).collect();
        (servers, interface.features().has(DHCP_RELAY))
    };
    assert_eq!(relays(""), (vec![], false));
    assert_eq!(relays("dhcp_relay = '192.0.2.7'"), (vec!["192.0.2.7".to_owned()], true));
    assert_eq!(relays("dhcp_relay = { '2001:db8::7' }"), (vec!["2001:db8::7".to_owned()], false));
    let many: Vec<_> = (1..10).map(|i| format!("'192.0.2.{i}'")).collect();
    for (settings, part) in [
        ("dhcp_relay = true", "dhcp_relay: expected the address of a server such as \"192.0.2.7\""),
        ("dhcp_relay = '192.0.2.7/24'", "dhcp_relay: \"192.0.2.7/24\": not an IP address"),
        ("dhcp_relay = '224.0.0.1'", "dhcp_relay: \"224.0.0.1\": a multicast address"),
        ("dhcp_relay = 'fe80::1'", "dhcp_relay: \"fe80::1\": a link-local address"),
        ("dhcp_relay = '10.0.1.1'", "dhcp_relay: \"10.0.1.1\": the interface's own address"),
        ("dhcp_relay = { '::2', '::2' }", "dhcp_relay: \"::2\" given twice; remove one"),
        (
            "dhcp_relay = '::2', host = true",
            "dhcp_relay: on a port with a host interface the system's relay agents",
        ),
        (
            &format!("dhcp_relay = {{ {} }}", many.join(", ")),
            "dhcp_relay: 9 servers, 8 is the most",
        ),
    ] {
        let errors = port(&format!("{own}, {settings}")).unwrap_err().to_string();
        assert!(errors.contains(part), "{settings}: {errors}");
    }
    let errors = port("dhcp_relay = '192.0.2.7'").unwrap_err().to_string();
    assert!(errors.contains("\"192.0.2.7\": the interface has no IPv4 address"), "{errors}");
}

#[test]
fn prefixes_of_proxies_are_read() {
    let port = |settings: &str| {
        read(&format!(
            "local turnpike = require 'turnpike'\n\
             turnpike.port 'a' {{ device = 'a', address = '10.0.1.1/24', {settings} }}"
        ))
    };
    let proxy = |settings: &str| -> Vec<String> {
        let config = port(settings).unwrap_or_else(|errors| panic!("{errors}"));
        config.ports[0].interface.settings.proxy.iter().map(ToString::to_string).collect()
    };
    assert!(proxy("").is_empty());
    assert_eq!(proxy("proxy = '192.0.2.0/24'"), ["192.0.2.0/24"]);
    assert_eq!(proxy("proxy = { '0.0.0.0/0', '2001:db8::/64' }"), ["0.0.0.0/0", "2001:db8::/64"]);
    let many: Vec<_> = (0..65).map(|i| format!("'10.{i}.0.0/16'")).collect();
    for (settings, part) in [
        (
            "proxy = 5",
            "proxy: expected a prefix such as \"192.0.2.0/24\", or a list of them, got number 5",
        ),
        ("proxy = '192.0.2.1'", "proxy: \"192.0.2.1\": prefix length missing"),
        (
            "proxy = '192.0.2.1/24'",
            "proxy: \"192.0.2.1/24\": has host bits; write \"192.0.2.0/24\"",
        ),
        ("proxy = 'x'", "proxy: \"x\": not an IP prefix"),
        ("proxy = '224.0.0.0/4'", "proxy: \"224.0.0.0/4\": a multicast prefix"),
        ("proxy = 'fe80::/10'", "proxy: \"fe80::/10\": link-local addresses stay on their link"),
        ("proxy = { '::/0', '::/0' }", "proxy: \"::/0\" given twice; remove one"),
        (
            "proxy = '::/0', host = true",
            "proxy: on a port with a host interface the kernel answers",
        ),
        (&format!("proxy = {{ {} }}", many.join(", ")), "proxy: 65 prefixes, 64 is the most"),
    ] {
        let errors = port(settings).unwrap_err().to_string();
        assert!(errors.contains(part), "{settings}: {errors}");
    }
}

#[test]
fn router_discovery_is_read() {
    let port = |settings: &str| {
        let text = format!(
            "local turnpike = require 'turnpike'\n\
             turnpike.port 'a' {{ device = 'a', address = '10.0.1.1/24', {settings} }}"
        );
        read(&text)
    };
    let discovery = |settings: &str| {
        port(settings).unwrap_or_else(|errors| panic!("{errors}")).ports[0]
            .interface
            .settings
            .discovery
    };
    assert_eq!(discovery(""), None);
    assert_eq!(discovery("router_discovery = false"), None);
    assert_eq!(discovery("router_discovery = true"), Some(Discovery::default()));
    let short = discovery("router_discovery = { interval_s = 4 }").unwrap();
    assert_eq!((short.interval, short.least_interval), (secs(4), secs(3)));
    assert_eq!(short.lifetime, secs(12));
    let all = discovery(
        "router_discovery = { interval_s = 60, least_interval_s = 9, lifetime_s = 90, \
         preference = 'never', broadcast = true }",
    );
    let expected = Discovery {
        interval: secs(60),
        least_interval: secs(9),
        lifetime: secs(90),
        preference: i32::MIN,
        broadcast: true,
    };
    assert_eq!(all, Some(expected));
    for (settings, part) in [
        ("router_discovery = 5", "expected true, false or {"),
        ("router_discovery = { interval_s = 3 }", "a whole number from 4 to 1800"),
        ("router_discovery = { least_interval_s = 601 }", "a whole number from 3 to 600"),
        ("router_discovery = { lifetime_s = 599 }", "a whole number from 600 to 9000"),
        ("router_discovery = { preference = -1 }", "from 0 to 2147483647 or \"never\""),
        ("router_discovery = true, host = true", "with a host interface"),
    ] {
        let errors = port(settings).unwrap_err().to_string();
        assert!(errors.contains(part), "{settings}: {errors}");
    }
}

#[test]
fn advertisements_are_read() {
    let advertise = |settings: &str| {
        let text =
            format!("turnpike.port 'a' {{ device = 'a', address = 'fd00:1::1/64', {settings} }}");
        let config = read(&format!("local turnpike = require 'turnpike'\n{text}"));
        config.unwrap_or_else(|errors| panic!("{errors}")).ports[0]
            .interface
            .settings
            .advertise
            .clone()
    };
    assert_eq!(advertise(""), None);
    assert_eq!(advertise("advertise = false"), None);
    assert_eq!(advertise("advertise = true"), Some(Advertise::default()));
    let net = |text: &str| text.parse::<Ipv6Net>().unwrap();
    let short = advertise("advertise = { interval_s = 4, valid_s = 100 }").unwrap();
    assert_eq!((short.interval, short.least_interval), (secs(4), secs(3)));
    assert_eq!(short.lifetime, secs(12));
    let own = Prefix { valid: secs(100), preferred: secs(100), ..Prefix::new(net("fd00:1::/64")) };
    assert_eq!(short.prefixes, Some(vec![own]));
    let all = advertise(
        r#"advertise = { interval_s = 60, least_interval_s = 9, lifetime_s = 0, managed = true,
            other = true, preference = "low", hop_limit = 9, reachable_ms = 10, retransmit_ms = 20,
            mtu = 1400, dns = { "fd00::53" }, prefixes = { "2001:db8::/64",
            { "fd00:7::/48", valid_s = 4294967295, preferred_s = 7, on_link = false, autonomous = false } } }"#,
    );
    let prefixes = vec![
        Prefix::new(net("2001:db8::/64")),
        Prefix {
            valid: secs(4_294_967_295),
            preferred: secs(7),
            on_link: false,
            autonomous: false,
            ..Prefix::new(net("fd00:7::/48"))
        },
    ];
    let want = Advertise {
        interval: secs(60),
        least_interval: secs(9),
        lifetime: Duration::ZERO,
        managed: true,
        other: true,
        preference: Preference::Low,
        hop_limit: 9,
        reachable: Duration::from_millis(10),
        retransmit: Duration::from_millis(20),
        mtu: Some(1400),
        prefixes: Some(prefixes),
        dns: vec!["fd00::53".parse().unwrap()],
    };
    assert_eq!(all, Some(want));
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn advertisements_are_checked() {
    for (settings, expected) in [
        (
            "advertise = 5",
            "advertise: expected true, false or { interval_s = 600, lifetime_s = 1800, … }, got number 5",
        ),
        (
            "advertise = { mtu = 1200 }",
            "advertise: mtu: expected a whole number from 1280 to 9216, got number 1200",
        ),
        (
            "advertise = { interval_s = 3 }",
            "advertise: interval_s: expected a whole number from 4 to 1800, got number 3",
        ),
        (
            "advertise = { lifetime_s = 599 }",
            "advertise: lifetime_s: 599 is less than the interval of 600 seconds: hosts would lose the router; write 0 (no default router) or more than that",
        ),
        (
            "advertise = { valid_s = 5, preferred_s = 6 }",
            "advertise: preferred_s: 6 is more than valid_s, 5; write that or less",
        ),
        (
            "advertise = { prefixes = { { 'fd00::/64', valid = 5 } } }",
            "advertise: prefix \"fd00::/64\": key \"valid\" unknown; did you mean \"valid_s\"? known: valid_s, preferred_s, on_link, autonomous",
        ),
        (
            "advertise = { prefixes = 'fd00::1/64' }",
            "advertise: prefix \"fd00::1/64\" has host bits; write \"fd00::/64\"",
        ),
        (
            "advertise = { prefixes = 'fe80::/64' }",
            "advertise: prefix \"fe80::/64\" is none that is advertised",
        ),
        (
            "advertise = { prefixes = { 7 } }",
            "advertise: prefixes: expected a prefix such as \"fd00:1::/64\" or { \"fd00:1::/64\", valid_s = 86400 }, got number 7",
        ),
        (
            "advertise = { preference = 'best' }",
            "advertise: preference \"best\" unknown; known: high, medium, low",
        ),
        ("advertise = { dns = '10.0.0.1' }", "advertise: dns \"10.0.0.1\": not an IPv6 address"),
        (
            "advertise = { dns = '::1' }",
            "advertise: dns \"::1\": the loopback address, not a server's",
        ),
        (
            "host = true, advertise = true",
            "advertise: on a port with a host interface the kernel's programs advertise (radvd, FRR); write host = false, or leave it out",
        ),
        (
            "advertise = { dns = { 'fd00::1', 'fd00::2', 'fd00::3', 'fd00::4', 'fd00::5', 'fd00::6', 'fd00::7', 'fd00::8', 'fd00::9' } }",
            "advertise: dns: 9 given, 8 is the most; remove some",
        ),
        ("mtu = 1000, advertise = true", "advertise: a port with an MTU below 1280 speaks no IPv6"),
    ] {
        let errors = port_errors(&format!("{{ device = 'a', {settings} }}"));
        assert_eq!(errors, [format!("2: port \"left\": {expected}")], "{settings}");
    }
}

#[test]
fn ports_are_checked_setting_by_setting() {
    for (settings, expected) in [
        ("{ device = 5 }", r#"2: port "left": device: expected a device's name, got number 5"#),
        (
            "{ device = '' }",
            r#"2: port "left": device "": empty; write "eth0" (a kernel interface), "0000:03:00.0" (a PCI address) or "net_tap0,iface=tap0" (a DPDK device)"#,
        ),
        (
            "{ device = 'an-interface-that-is-long' }",
            r#"2: port "left": device "an-interface-that-is-long": 25 characters, an interface has at most 15; write "eth0" (a kernel interface), "0000:03:00.0" (a PCI address) or "net_tap0,iface=tap0" (a DPDK device)"#,
        ),
        (
            "{ device = 'a/b' }",
            r#"2: port "left": device "a/b": not a device's name; write "eth0" (a kernel interface), "0000:03:00.0" (a PCI address) or "net_tap0,iface=tap0" (a DPDK device)"#,
        ),
        (
            "{ device = 'a', driver = 'af_xpd' }",
            r#"2: port "left": driver "af_xpd" unknown; known: af_xdp, af_packet, vfio-pci, uio_pci_generic; leave it out for the best that works"#,
        ),
        (
            "{ device = '03:00.0', driver = 'af_xdp' }",
            r#"2: port "left": driver "af_xdp" is for kernel interfaces, and 0000:03:00.0 is a PCI address; write "vfio-pci" or "uio_pci_generic", or leave it out"#,
        ),
        (
            "{ device = 'net_tap0', driver = 'vfio-pci' }",
            r#"2: port "left": driver "vfio-pci" is for PCI NICs, and net_tap0 is a virtual device; leave it out"#,
        ),
        (
            "{ device = 'a', reverse_path = 'feasible' }",
            r#"2: port "left": reverse_path "feasible" unknown; known: loose, strict; leave it out for "any""#,
        ),
        (
            "{ device = 'a', mac = '02:00' }",
            r#"2: port "left": mac "02:00": not a MAC address; write it as 02:00:00:00:00:01"#,
        ),
        (
            "{ device = 'a', mac = '01:00:00:00:00:01' }",
            r#"2: port "left": mac "01:00:00:00:00:01" is not a unicast address; the first byte is even, as in 02:00:00:00:00:01"#,
        ),
        (
            "{ device = 'a', mtu = 'big' }",
            r#"2: port "left": mtu: expected a whole number from 68 to 9216, got string "big""#,
        ),
        (
            "{ device = 'a', mtu = 1500.5 }",
            r#"2: port "left": mtu: expected a whole number from 68 to 9216, got number 1500.5"#,
        ),
        (
            "{ device = 'a', mtu = 1000, address = 'fd00::1/64' }",
            r#"2: port "left": mtu 1000: a port with IPv6 addresses needs 1280 or more (RFC 8200 5)"#,
        ),
        (
            "{ device = 'a', address = true }",
            r#"2: port "left": address: expected an address such as "10.0.1.1/24", or a list of them, got boolean true"#,
        ),
    ] {
        assert_eq!(port_errors(settings), [expected], "{settings}");
    }
    assert_eq!(
        port_errors("{}"),
        [
            r#"2: port "left": device missing; write device = "eth0" (a kernel interface), "0000:03:00.0" (a PCI address) or "net_tap0,iface=tap0" (a DPDK device)"#
        ]
    );
}

#[test]
fn addresses_of_ports_are_hosts_addresses() {
    for (address, expected) in [
        ("10.0.1.300/24", r#"not an IP prefix; write it as "10.0.1.1/24" or "fd00:1::1/64""#),
        ("10.0.1.1/33", r#"not an IP prefix; write it as "10.0.1.1/24" or "fd00:1::1/64""#),
        ("10.0.1.1", r#"prefix length missing; write "10.0.1.1/24", for example"#),
        ("fd00::1", r#"prefix length missing; write "fd00::1/64", for example"#),
        (
            "10.0.1.0/24",
            "the network's own address, not a host's; use a host's address, 10.0.1.1/24 for example",
        ),
        (
            "10.0.1.255/24",
            "the network's broadcast address, not a host's; use a host's address, 10.0.1.1/24 for example",
        ),
        (
            "fd00::/64",
            "the network's subnet-router anycast address (RFC 4291 2.6.1), not a host's; use a host's address, fd00::1/64 for example",
        ),
        ("127.0.0.1/8", "a loopback address, not a port's; use a unicast address"),
        ("224.0.0.1/24", "a multicast address, not a port's; use a unicast address"),
        ("::ffff:10.0.0.1/120", "an IPv4-mapped address, not a port's; use a unicast address"),
        (
            "fe80::1/64",
            "the router makes its link-local addresses from the port's MAC; leave it out",
        ),
    ] {
        let settings = format!("{{ device = 'a', address = '{address}' }}");
        let expected = format!("2: port \"left\": address \"{address}\": {expected}");
        assert_eq!(port_errors(&settings), [expected]);
    }
    for address in ["10.0.1.0/31", "10.0.1.1/31", "10.0.1.0/32", "fd00::/127", "fd00::/128"] {
        let text = format!("require 'turnpike'.port 'p' {{ device = 'a', address = '{address}' }}");
        assert!(read(&text).is_ok(), "{address}");
    }
    // Networks of one port may overlap, those of different ports may not.
    let text =
        "require 'turnpike'.port 'p' { device = 'a', address = { '10.0.0.1/24', '10.0.0.2/16' } }";
    assert!(read(text).is_ok(), "{:?}", read(text));
    assert_eq!(
        port_errors("{ device = 'a', address = { '10.0.0.1/24', '10.0.0.1/16' } }"),
        [r#"2: port "left": address "10.0.0.1/16" given twice; remove one"#]
    );
}

#[test]
fn ports_do_not_contradict_each_other() {
    for (statement, expected) in [
        (
            r#"turnpike.port "left" { device = "a" }"#,
            r#"4: port "left": the name is taken by the port on line 2; give each port its own"#,
        ),
        (
            r#"turnpike.port "third" { device = "tp-left" }"#,
            r#"4: port "third": device "tp-left" is taken by port "left" on line 2; a device makes one port"#,
        ),
        (
            r#"turnpike.port "third" { device = "a", address = "10.0.1.129/25" }"#,
            r#"4: port "third": address "10.0.1.129/25" overlaps "10.0.1.1/24" of port "left" on line 2; give each a network of its own"#,
        ),
        (
            r#"turnpike.port "third" { device = "a", address = "10.0.2.1/24" }"#,
            r#"4: port "third": address "10.0.2.1/24" overlaps "10.0.2.1/24" of port "right" on line 3; give each a network of its own"#,
        ),
        (
            r#"turnpike.port "a-name-that-is-long" { device = "a" }"#,
            r#"4: port "a-name-that-is-long": the name has 19 characters, 15 is the most (the kernel's interface of the port has the same name); shorten it"#,
        ),
        (
            r#"turnpike.port "a b" { device = "a" }"#,
            r#"4: port "a b": not a name; begin with a letter or digit and use letters, digits, '-', '_' and '.'"#,
        ),
        (
            r#"turnpike.port "" { device = "a" }"#,
            r#"4: port "": not a name; begin with a letter or digit and use letters, digits, '-', '_' and '.'"#,
        ),
    ] {
        assert_eq!(errors_below_ports(statement), [expected], "{statement}");
    }
    let many = "local t = require 'turnpike'\nfor i = 1, 65 do\n t.port('p' .. i) { device = 'd' .. i } end";
    assert_eq!(errors(many), ["3: 65 ports, 64 is the most; remove some"]);
    assert_eq!(
        errors(""),
        [
            r#"no port: a router needs at least one; write turnpike.port "left" { device = "eth0", address = "10.0.1.1/24" }"#
        ]
    );
}

/// Returns the namespaces of the ports' host interfaces, "" for the router's own.
fn hosts(config: &Config) -> Vec<Option<&str>> {
    config
        .ports
        .iter()
        .map(|p| p.interface.host.as_ref().map(|host| host.netns.as_deref().unwrap_or("")))
        .collect()
}

#[test]
fn ports_have_a_host_interface_when_somebody_needs_it() {
    let config = |statement: &str| read(&format!("{PORTS}{statement}")).unwrap();
    assert_eq!(hosts(&config("")), [None, None]);
    assert_eq!(config("").fpm, None);
    let kernel = config("turnpike.routes_from { 'kernel' }");
    assert_eq!(hosts(&kernel), [Some(""), Some("")]);
    assert_eq!(kernel.routes_from.kernel, Some(KernelRoutes::default()));
    assert!(!kernel.routes_from.fpm && kernel.fpm.is_none());
    let third = "turnpike.port 'third' { device = 'x', host = false }\n\
                 turnpike.port 'fourth' { device = 'y', host = true }";
    assert_eq!(hosts(&config(third)), [None, None, None, Some("")]);
    let both = config(&format!("{third} turnpike.routes_from {{ 'fpm', 'kernel' }}"));
    assert_eq!(hosts(&both), [Some(""), Some(""), None, Some("")]);
    assert_eq!(both.fpm, Some(Fpm::default()));
    let named = config("turnpike.port 'x' { device = 'x', host = { netns = 'router' } }");
    let host = named.ports[2].interface.host.as_ref().unwrap();
    assert_eq!(host.netns_path(), Some("/run/netns/router".into()));
    let path = config("turnpike.port 'x' { device = 'y', host = { netns = '/proc/1/ns/net' } }");
    assert_eq!(
        path.ports[2].interface.host.as_ref().unwrap().netns_path(),
        Some("/proc/1/ns/net".into())
    );
    assert!(path.ports[2].interface.host.as_ref().unwrap().segmentation);
    let single = config(
        "turnpike.port 'x' { device = 'y', host = { segmentation = false } }\n\
         turnpike.port 'z' { device = 'w', host = true }",
    );
    let segmentation = |port: &Port| port.interface.host.as_ref().map(|host| host.segmentation);
    let segmentation: Vec<_> = single.ports.iter().map(segmentation).collect();
    assert_eq!(segmentation, [None, None, Some(false), Some(true)]);
}

#[test]
fn the_other_sources_settings_are_read() {
    let config = read(&format!(
        "{PORTS}turnpike.routes_from {{ 'kernel', 'fpm', audit_s = 0, receive_buffer_mib = 2 }}
         turnpike.fpm {{ listen = '[::1]:2621', keep_s = 7, users = 'zebra' }}"
    ))
    .unwrap();
    let kernel = KernelRoutes { audit: None, receive_buffer: 2 << 20 };
    assert_eq!(config.routes_from, RoutesFrom { kernel: Some(kernel), fpm: true });
    let (listen, keep) = ("[::1]:2621".parse().unwrap(), Duration::from_secs(7));
    let fpm = Fpm { listen, keep, users: vec!["zebra".to_owned()] };
    assert_eq!(config.fpm, Some(fpm));
}

#[test]
fn hosts_and_sources_are_checked() {
    for (statement, expected) in [
        (
            "turnpike.port 'x' { device = 'y', host = 'router' }",
            r#"port "x": host: expected true, false or { netns = "NAME", vlans = "kernel" }, got string "router""#,
        ),
        (
            "turnpike.port 'x' { device = 'y', host = { name = 'router' } }",
            r#"port "x": host: key "name" unknown; known: netns, segmentation, vlans"#,
        ),
        (
            "turnpike.port 'x' { device = 'y', host = { vlans = 'all' } }",
            r#"port "x": host: vlans: expected "kernel" or false, got string "all""#,
        ),
        (
            "turnpike.port 'x' { device = 'y', host = { segmentation = 'no' } }",
            r#"port "x": host: segmentation: expected true or false, got string "no""#,
        ),
        (
            "turnpike.port 'x' { device = 'y', host = { netns = 5 } }",
            r#"port "x": host: netns: expected a name, got number 5"#,
        ),
        (
            "turnpike.port 'x' { device = 'y', host = { netns = 'a/b' } }",
            r#"port "x": host: netns "a/b": neither a name nor an absolute path; write it as `ip netns list` shows it"#,
        ),
        (
            "turnpike.port 'x' { device = 'x', host = true }",
            r#"port "x": its host interface would have the name of its device, x; name the port otherwise, or put it elsewhere by host = { netns = "NAME" }, or write host = false"#,
        ),
        (
            "turnpike.port 'x' { device = 'y', host = { netns = 'a' } } turnpike.port 'z' { device = 'z1', host = true }",
            r#"port "z": host interface in the router's own namespace, but that of port "x" on line 4 in namespace "a"; all are in one network namespace, write the same host = { netns = "NAME" } in every port"#,
        ),
        (
            "turnpike.routes_from {}",
            r#"routes_from: names no source; write turnpike.routes_from { "kernel" }, { "fpm" } or both"#,
        ),
        (
            "turnpike.routes_from { 'kernal' }",
            r#"routes_from: source "kernal" unknown; did you mean "kernel"? known: kernel, fpm"#,
        ),
        (
            "turnpike.routes_from { 'kernel', 5 }",
            r#"routes_from: expected a source, got number 5; write turnpike.routes_from { "kernel" }, { "fpm" } or both"#,
        ),
        (
            "turnpike.routes_from { 'fpm', 'fpm' }",
            r#"routes_from: "fpm" given 2 times; once is enough"#,
        ),
        (
            "turnpike.routes_from { 'fpm', audit_s = 5 }",
            r#"routes_from: audit_s is about "kernel", which is not in the list"#,
        ),
        (
            "turnpike.routes_from { 'kernel', receive_buffer_mib = 0 }",
            "routes_from: receive_buffer_mib: expected a whole number from 1 to 1024, got number 0",
        ),
        (
            "turnpike.fpm { listen = '127.0.0.1:2620' }",
            r#"fpm: not used: turnpike.routes_from lacks "fpm"; add it there"#,
        ),
        (
            "turnpike.routes_from { 'fpm' } turnpike.fpm { listen = 'localhost' }",
            r#"fpm: listen "localhost": not an address with a port; write "127.0.0.1:2620" or "[::1]:2620""#,
        ),
        (
            "turnpike.routes_from { 'fpm' } turnpike.fpm { listen = '[::]:0' }",
            r#"fpm: listen "[::]:0": port 0 is none; 2620 is usual"#,
        ),
        (
            "turnpike.routes_from { 'kernel' } turnpike.routes_from { 'fpm' }",
            "routes_from: given on line 4 already; put everything in one",
        ),
    ] {
        assert_eq!(errors_below_ports(statement), [format!("4: {expected}")], "{statement}");
    }
}

#[test]
fn routes_lead_somewhere() {
    for (name, settings, expected) in [
        (
            "198.51.100.7/24",
            r#"{ via = "10.0.2.2" }"#,
            "host bits are set; the prefix is 198.51.100.0/24",
        ),
        (
            "abc",
            r#"{ via = "10.0.2.2" }"#,
            r#"not an IP prefix; write it as "198.51.100.0/24" or "2001:db8::/32""#,
        ),
        (
            "224.0.0.0/8",
            r#"{ via = "10.0.2.2" }"#,
            "lies in 224.0.0.0/4 (multicast), which is never forwarded; remove the route",
        ),
        (
            "0.0.0.0/0",
            "{}",
            "no next hop; write via = \"ADDRESS\", or one of blackhole, prohibit, unreachable = true",
        ),
        ("0.0.0.0/0", "{ via = {} }", "via is an empty list; name at least one next hop"),
        (
            "0.0.0.0/0",
            "{ via = 5 }",
            r#"via: expected an address such as "10.0.2.2", or a list of { "10.0.2.2", weight = 2 }, got number 5"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = 'x' }",
            r#"via "x": not an IP address; write it as "10.0.2.2" or "fd00:2::2""#,
        ),
        (
            "0.0.0.0/0",
            "{ via = '10.0.2.2', blackhole = true }",
            "via and blackhole exclude each other; keep one",
        ),
        (
            "0.0.0.0/0",
            "{ prohibit = true, unreachable = true }",
            "prohibit and unreachable exclude each other; keep one",
        ),
        (
            "0.0.0.0/0",
            "{ blackhole = 1, unreachable = true }",
            "blackhole: expected true or false, got number 1",
        ),
        (
            "0.0.0.0/0",
            "{ via = { '10.0.2.2', '10.0.2.2' } }",
            r#"via "10.0.2.2" given twice; for a larger share write { "10.0.2.2", weight = 2 }"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = { '10.0.2.2', weight = 2 } }",
            r#"via: weight belongs to one path; write via = { { "ADDRESS", weight = … }, … }"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = { { '10.0.2.2', weight = 0 } } }",
            r#"via "10.0.2.2": weight: expected a whole number from 1 to 256, got number 0"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = { { '10.0.2.2', wieght = 2 } } }",
            r#"via "10.0.2.2": key "wieght" unknown; did you mean "weight"? known: weight, port"#,
        ),
        (
            "0.0.0.0/0",
            "{ port = 'rigth' }",
            r#"port names port "rigth", unknown; did you mean "right"? ports: left, right"#,
        ),
        (
            "0.0.0.0/0",
            "{ port = 'right', blackhole = true }",
            "port and blackhole exclude each other; keep one",
        ),
        (
            "0.0.0.0/0",
            "{ blackhole = true, resilient = true }",
            "resilient needs several paths: write via",
        ),
        (
            "0.0.0.0/0",
            "{ via = '10.0.2.2', resilient = { buckets = 0 } }",
            "resilient: buckets: expected a whole number from 1 to 4096",
        ),
        (
            "0.0.0.0/0",
            "{ via = '10.0.2.2', resilient = 5 }",
            "resilient: expected true or { buckets = 1024 }, got number 5",
        ),
        (
            "0.0.0.0/0",
            "{ via = '10.0.9.2' }",
            r#"via "10.0.9.2" is unreachable: no port is on its network; add an address in 10.0.9.0/24, say, to a port, or use a next hop in 10.0.1.0/24 (port "left"), 10.0.2.0/24 (port "right")"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = '10.0.2.1' }",
            r#"via "10.0.2.1" is the router's own address (port "right", line 3); use the neighbour's"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = '10.0.2.255' }",
            r#"via "10.0.2.255" is the network's broadcast address of 10.0.2.0/24, not a host's"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = '224.0.0.9' }",
            r#"via "224.0.0.9" is a multicast address, not a next hop's; use the neighbour's unicast address"#,
        ),
        (
            "::/0",
            "{ via = 'fe80::2' }",
            r#"via "fe80::2" is link-local, every port has that network; say which with port = "NAME""#,
        ),
        (
            "::/0",
            "{ via = 'fe80::2', port = 'rigth' }",
            r#"via "fe80::2" names port "rigth", unknown; did you mean "right"? ports: left, right"#,
        ),
        (
            "::/0",
            "{ via = 'fd00:1::2', port = 'right' }",
            r#"via "fd00:1::2" is not on port "right" but on port "left" (fd00:1::/64); correct the port or leave it out"#,
        ),
        (
            "0.0.0.0/0",
            "{ via = '10.0.2.2', metric = -1 }",
            "metric: expected a whole number from 0 to 4294967295, got number -1",
        ),
    ] {
        let statement = format!("turnpike.route \"{name}\" {settings}");
        let expected = format!("4: route \"{name}\": {expected}");
        assert_eq!(errors_below_ports(&statement), [expected], "{statement}");
    }
}

/// Returns the paths of the routes after two correct ports.
fn paths(statements: &str) -> Vec<Vec<rib::Path>> {
    let config = read(&format!("{PORTS}{statements}")).unwrap_or_else(|errors| panic!("{errors}"));
    let paths = |route: Route| match route.kind {
        RouteKind::Unicast(paths) => paths,
        other => panic!("{other:?}"),
    };
    config.routes.into_iter().map(paths).collect()
}

#[test]
fn gateways_are_where_ports_and_routes_say() {
    let (left, right) = (InterfaceId::new(0).unwrap(), InterfaceId::new(1).unwrap());
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let routes = paths(
        "turnpike.route '10.9.0.0/16' { via = '10.0.2.2' }
         turnpike.route '198.51.100.0/24' { via = '10.9.0.1' }
         turnpike.route '203.0.113.0/24' { via = { '10.9.0.1', { '172.16.0.1', port = 'left', weight = 2 } } }
         turnpike.route '192.0.2.0/24' { via = 'fd00:2::2' }
         turnpike.route '192.0.2.0/25' { via = 'fe80::2', port = 'left' }
         turnpike.route '10.7.0.0/16' { port = 'left' }",
    );
    let expected = [
        vec![rib::Path::over(right, ip("10.0.2.2"))],
        vec![rib::Path::recursive(VrfId::DEFAULT, ip("10.9.0.1"))],
        vec![
            rib::Path::recursive(VrfId::DEFAULT, ip("10.9.0.1")),
            rib::Path { on_link: true, weight: 2, ..rib::Path::over(left, ip("172.16.0.1")) },
        ],
        vec![rib::Path::over(right, ip("fd00:2::2"))],
        vec![rib::Path::over(left, ip("fe80::2"))],
        vec![rib::Path::on_interface(left)],
    ];
    assert_eq!(routes, expected);
}

#[test]
fn routes_may_be_resilient() {
    let buckets = |settings: &str| {
        let text = format!("{PORTS}turnpike.route '::/0' {{ via = 'fd00:2::2'{settings} }}");
        read(&text).unwrap().routes[0].resilient.map(|resilient| resilient.buckets)
    };
    assert_eq!(buckets(""), None);
    assert_eq!(buckets(", resilient = false"), None);
    assert_eq!(buckets(", resilient = true"), Some(1024));
    assert_eq!(buckets(", resilient = { buckets = 64 }"), Some(64));
}

#[test]
fn gateways_that_lead_in_a_circle_are_reported() {
    let circle = "turnpike.route '10.8.0.0/16' { via = '10.9.0.1' }\n\
                  turnpike.route '10.9.0.0/16' { via = '10.8.0.1' }";
    let errors = errors_below_ports(circle);
    assert_eq!(
        errors,
        [
            r#"4: route "10.8.0.0/16": via "10.9.0.1" leads in a circle: 10.8.0.0/16 -> 10.9.0.0/16 -> 10.8.0.0/16; add a route to 10.8.0.1 by a gateway on a port's network"#,
            r#"5: route "10.9.0.0/16": via "10.8.0.1" leads in a circle: 10.9.0.0/16 -> 10.8.0.0/16 -> 10.9.0.0/16; add a route to 10.9.0.1 by a gateway on a port's network"#,
        ]
    );
    // The kernel or zebra may have a route that breaks the circle.
    for source in ["kernel", "fpm"] {
        let text = format!("{PORTS}{circle}\nturnpike.routes_from {{ '{source}' }}");
        assert!(read(&text).is_ok(), "{:?}", read(&text));
    }
    // A table may contain the route to a route's gateway, but not to its own.
    let table = "turnpike.import { file = 'x', via = '10.9.0.1' }";
    assert!(errors_below_ports(table)[0].contains("import: via \"10.9.0.1\" is unreachable"));
    let text = format!("{PORTS}turnpike.route '10.9.0.0/16' {{ via = '10.0.2.2' }}\n{table}");
    assert!(read(&text).is_ok(), "{:?}", read(&text));
    let text = format!(
        "{PORTS}turnpike.import {{ file = 'x', via = '10.0.2.2' }} turnpike.route '10.9.0.0/16' {{ via = '10.8.0.1' }}"
    );
    assert!(read(&text).is_ok(), "{:?}", read(&text));
}

#[test]
fn routes_are_counted_and_not_repeated() {
    let many = "local list = {}\nfor i = 1, 129 do list[i] = '10.0.2.' .. i + 1 end\n\
                turnpike.route '0.0.0.0/0' { via = list }";
    assert_eq!(
        errors_below_ports(many),
        [r#"6: route "0.0.0.0/0": via has 129 paths, 128 is the most; remove some"#]
    );
    let twice = "turnpike.route '0.0.0.0/0' { via = '10.0.2.2' }\n";
    assert_eq!(
        errors_below_ports(&twice.repeat(2)),
        [
            r#"5: route "0.0.0.0/0": given on line 4 already; put the paths in one list, or give the routes different metrics"#
        ]
    );
}

#[test]
fn errors_of_ports_do_not_make_errors_of_routes() {
    let text = r#"local turnpike = require "turnpike"
turnpike.port "left" { device = "a", adress = "10.0.1.1/24" }
turnpike.route "0.0.0.0/0" { via = "10.0.1.2" }
turnpike.neighbour "10.0.1.3" { port = "left", mac = "02:00:00:00:00:09" }"#;
    assert_eq!(errors(text).len(), 1, "{:?}", errors(text));
}

#[test]
fn neighbours_are_on_a_port() {
    let mac = "mac = '02:00:00:00:00:09'";
    for (name, settings, expected) in [
        (
            "x",
            format!("{{ port = 'left', {mac} }}"),
            r#"not an IP address; write it as "10.0.2.9" or "fd00:2::9""#,
        ),
        (
            "10.0.2.9",
            "{ port = 'right' }".to_owned(),
            r#"mac missing; write mac = "02:00:00:00:00:09""#,
        ),
        (
            "10.0.2.9",
            "{ port = 'right', mac = 5 }".to_owned(),
            "mac: expected a MAC address, got number 5",
        ),
        (
            "10.0.2.9",
            "{ port = 'right', mac = 'ff:ff:ff:ff:ff:ff' }".to_owned(),
            r#"mac "ff:ff:ff:ff:ff:ff" is not a host's; use a unicast address"#,
        ),
        (
            "10.0.2.9",
            format!("{{ port = 'righ', {mac} }}"),
            r#"names port "righ", unknown; did you mean "right"? ports: left, right"#,
        ),
        (
            "10.0.2.9",
            format!("{{ port = 'left', {mac} }}"),
            r#"the address is not on port "left" but on port "right" (10.0.2.0/24); correct the port or leave it out"#,
        ),
        (
            "10.0.2.1",
            format!("{{ {mac} }}"),
            r#"the address is the router's own address (port "right", line 3); use the neighbour's"#,
        ),
        ("fe80::9", format!("{{ {mac} }}"), r#"port missing; write port = "NAME""#),
        (
            "10.9.9.9",
            format!("{{ port = 'right', {mac} }}"),
            r#"the address is unreachable: no port is on its network; add an address in 10.9.9.0/24, say, to a port, or use a next hop in 10.0.1.0/24 (port "left"), 10.0.2.0/24 (port "right")"#,
        ),
    ] {
        let statement = format!("turnpike.neighbour \"{name}\" {settings}");
        let expected = format!("4: neighbour \"{name}\": {expected}");
        assert_eq!(errors_below_ports(&statement), [expected], "{statement}");
    }
    // A route to it leads to hosts on a port's link; of two, the longer is used.
    let linked = format!(
        "{PORTS}turnpike.route '10.9.0.0/16' {{ port = 'left' }}\n\
         turnpike.route '10.9.9.0/24' {{ port = 'right' }}\n\
         turnpike.neighbour '10.9.9.9' {{ {mac} }}\n\
         turnpike.neighbour '10.9.9.8' {{ port = 'left', {mac} }}"
    );
    let config = read(&linked).unwrap();
    let ports: Vec<_> = config.neighbours.iter().map(|neighbour| neighbour.port.index()).collect();
    assert_eq!(ports, [1, 0]);
    let via = "turnpike.route '10.9.9.0/24' { via = '10.0.2.9' }\n";
    let behind = format!("{via}turnpike.neighbour '10.9.9.9' {{ port = 'right', {mac} }}");
    assert!(errors_below_ports(&behind)[0].contains("is unreachable"));
    let dynamic = format!(
        "{PORTS}turnpike.routes_from {{ 'kernel' }}\n\
         turnpike.neighbour '10.9.9.9' {{ port = 'right', {mac} }}"
    );
    assert!(read(&dynamic).is_ok(), "the kernel may have its network");
    let twice = format!("turnpike.neighbour '10.0.2.9' {{ {mac} }}\n").repeat(2);
    assert_eq!(
        errors_below_ports(&twice),
        [r#"5: neighbour "10.0.2.9": given on line 4 already; remove one"#]
    );
}

#[test]
fn multicast_routes_name_ports() {
    let config = read(&format!(
        "{PORTS}turnpike.multicast '239.1.1.1' {{ from = 'left', to = {{ 'right' }} }}\n\
         turnpike.multicast '239.1.1.1' {{ source = '10.0.1.9', from = 'left', to = {{ {{ 'right', ttl = 16 }} }} }}\n\
         turnpike.multicast 'ff0e::1' {{ from = 'right', to = 'left' }}"
    ))
    .unwrap();
    let port = |n| InterfaceId::new(n).unwrap();
    let routes: Vec<_> = config
        .multicast
        .iter()
        .map(|route| (route.group.to_string(), route.source, route.from, route.to.clone()))
        .collect();
    let group = "239.1.1.1".to_owned();
    assert_eq!(
        routes,
        [
            (group.clone(), None, port(0), vec![(port(1), 1)]),
            (group, Some("10.0.1.9".parse().unwrap()), port(0), vec![(port(1), 16)]),
            ("ff0e::1".to_owned(), None, port(1), vec![(port(0), 1)]),
        ]
    );
}

#[test]
fn multicast_routes_that_lead_nowhere_are_refused() {
    const GOOD: &str = "{ from = 'left', to = 'right' }";
    for (name, settings, expected) in [
        ("10.0.1.1", GOOD, "not a group; groups are in 224.0.0.0/4 and ff00::/8"),
        ("224.0.0.5", GOOD, "this group stays on its link; it is never forwarded"),
        ("ff02::5", GOOD, "this group stays on its link; it is never forwarded"),
        ("all", GOOD, "not an IP address; write it as \"239.1.1.1\" or \"ff0e::101\""),
        (
            "239.1.1.1",
            "{ to = 'right' }",
            "from missing; write from = \"PORT\", where the packets come in",
        ),
        (
            "239.1.1.1",
            "{ from = 'left' }",
            "to missing; write to = { \"PORT\", … }, where the packets leave",
        ),
        (
            "239.1.1.1",
            "{ from = 'left', to = 'left' }",
            "to: port \"left\" is where the packets come in; remove it",
        ),
        (
            "239.1.1.1",
            "{ from = 'left', to = { 'right', 'right' } }",
            "to: port \"right\" is given twice; remove one",
        ),
        (
            "239.1.1.1",
            "{ from = 'left', to = { { 'right', tll = 2 } } }",
            "to \"right\": key \"tll\" unknown; did you mean \"ttl\"? known: ttl",
        ),
        (
            "239.1.1.1",
            "{ from = 'left', to = { { 'right', ttl = 256 } } }",
            "to \"right\": ttl: expected a whole number from 1 to 255, got number 256",
        ),
        (
            "239.1.1.1",
            "{ from = 'left', to = 5 }",
            "to: expected a port's name, or a list of names and { \"NAME\", ttl = 16 }, got number 5",
        ),
        (
            "239.1.1.1",
            "{ source = 'fd00::1', from = 'left', to = 'right' }",
            "source \"fd00::1\" is not of the group's family",
        ),
        (
            "239.1.1.1",
            "{ source = '239.1.1.2', from = 'left', to = 'right' }",
            "source \"239.1.1.2\" is a multicast address, which sends nothing",
        ),
    ] {
        let statement = format!("turnpike.multicast '{name}' {settings}");
        let expected = format!("4: multicast \"{name}\": {expected}");
        assert_eq!(errors_below_ports(&statement), [expected], "{statement}");
    }
    let unknown =
        errors_below_ports("turnpike.multicast '239.1.1.1' { from = 'left', to = 'rihgt' }");
    assert!(
        unknown[0].contains("to names port \"rihgt\"") && unknown[0].contains("right"),
        "{unknown:?}"
    );
    let twice =
        format!("turnpike.multicast '239.1.1.1' {GOOD}\nturnpike.multicast '239.1.1.1' {GOOD}");
    assert_eq!(
        errors_below_ports(&twice),
        [
            "5: multicast \"239.1.1.1\": given for this source on line 4 already; put the ports in one list"
        ]
    );
}

#[test]
fn the_other_statements_are_checked_too() {
    for (statement, expected) in [
        (
            "turnpike.import { via = '10.0.2.2' }",
            r#"import: file missing; write file = "table.dat.gz""#,
        ),
        (
            "turnpike.import { file = 'x' }",
            r#"import: via missing; write via = { "ADDRESS", … } to spread the table over"#,
        ),
        (
            "turnpike.import { file = 'x', via = '10.0.2.1' }",
            r#"import "x": via "10.0.2.1" is the router's own address (port "right", line 3); use the neighbour's"#,
        ),
        (
            "turnpike.forwarders { cores = '1,3-' }",
            r#"forwarders: cores "1,3-": "3-" is not a core or a range; write "1,3-5""#,
        ),
        (
            "turnpike.forwarders { cores = {} }",
            r#"forwarders: cores: expected cores such as "1,3-5", got a table"#,
        ),
        (
            "turnpike.forwarders { core = '1' }",
            r#"forwarders: key "core" unknown; did you mean "cores"? known: cores, wait, moderation_us, budget, rebalance, control_queue, learned_flows, shed, mode, device, order, receive_core, scheduler_core"#,
        ),
        (
            "turnpike.tx { burst = 65 }",
            "tx: burst: expected a whole number from 1 to 64, got number 65",
        ),
        (
            "turnpike.slowpath { queue = 0 }",
            "slowpath: queue: expected a whole number from 1 to 1024, got number 0",
        ),
        (
            "turnpike.quarantine { directory = \"here\" }",
            "quarantine: directory \"here\": not absolute; begin it with /",
        ),
        (
            "turnpike.slowpath { workers = 9 }",
            "slowpath: workers: expected a whole number from 1 to 8, got number 9",
        ),
        (
            "turnpike.slowpath { classes = { erors = {} } }",
            "slowpath: classes: key \"erors\" unknown; did you mean \"errors\"? known: neighbour, link, routing, host, resolve, fragment, options, errors",
        ),
        (
            "turnpike.slowpath { classes = { errors = { rate = 0 } } }",
            "slowpath: classes: errors: rate: expected a whole number from 1 to 100000000, got number 0",
        ),
        (
            "turnpike.slowpath { classes = { errors = 5 } }",
            "slowpath: classes: errors: expected a table, got number 5",
        ),
        (
            "turnpike.slowpath { classes = { 5 } }",
            "slowpath: classes: number 5 has no key; known: neighbour, link, routing, host, resolve, fragment, options, errors",
        ),
        (
            "turnpike.memory { no_huge = 'yes' }",
            r#"memory: no_huge: expected true or false, got string "yes""#,
        ),
        (
            "turnpike.fib { ipv4 = 'runmpa' }",
            r#"fib: ipv4: route table "runmpa" unknown; did you mean "runmap"? known: "#,
        ),
        (
            "turnpike.fib { ipv4 = 'dir-24-8', ipv6 = 'dir-24-8' }",
            "fib: ipv6: the dir-24-8 table does not hold IPv6; choose another for it",
        ),
        (
            "turnpike.log { level = 'warning' }",
            r#"log: level "warning" unknown; did you mean "warn"? known: error, warn, info, debug, trace"#,
        ),
    ] {
        let errors = errors_below_ports(statement);
        let expected = format!("4: {expected}");
        assert_eq!(errors.len(), 1, "{statement}: {errors:?}");
        // The list of route tables may grow.
        let whole = !expected.ends_with("known: ");
        assert!(
            if whole { errors[0] == expected } else { errors[0].starts_with(&expected) },
            "{}",
            errors[0]
        );
    }
    assert_eq!(
        errors_below_ports("turnpike.tx { burst = 1 }\nturnpike.tx { burst = 2 }"),
        ["5: tx: given on line 4 already; put everything in one"]
    );
}

#[test]
fn statements_that_are_not_understood_are_explained() {
    const KNOWN: &str = "known: port, accelerate, bond, vlan, loopback, route, neighbour, next_hop, prefix_set, filter, import, multicast, mirror, vrf, routes_from, fpm, cores, forwarders, forwarding, tx, slowpath, flows, icmp, memory, fib, log, quarantine, telnet, metrics, api, access, sflow, ipfix, snmp, element, control_socket, buckets, command, counter, counters, graph, hash, ip4, ip4_text, ip6, mac, mac_text, mask, new_graph, now, ports, prefix, set, step, table";
    for (statement, expected) in [
        ("turnpike.prot 'x' { 1 }", format!("turnpike.prot unknown; did you mean \"port\"? {KNOWN}")),
        ("turnpike.interface 'x' { 1 }", format!("turnpike.interface unknown; {KNOWN}")),
        ("turnpike.port 'x'", "port \"x\": settings missing; write turnpike.port \"x\" { … }".to_owned()),
        ("turnpike.port 'x' (5)", "port \"x\": expected a table of settings, got number 5; write turnpike.port \"NAME\" { … }".to_owned()),
        ("turnpike.port { device = 'a' }", "port: expected a name, got a table; write turnpike.port \"NAME\" { … }".to_owned()),
        ("turnpike.port()", "port: expected a name, got nothing; write turnpike.port \"NAME\" { … }".to_owned()),
        ("turnpike.tx(1)", "tx: expected a table of settings, got number 1; write turnpike.tx { … }".to_owned()),
        ("turnpike.port = 5", "turnpike.port cannot be assigned; statements are calls: turnpike.port \"NAME\" { … }".to_owned()),
        ("local p = turnpike.route '::/0' p { blackhole = true } p {}", "a statement got its settings twice; write it twice in full".to_owned()),
        ("foo.bar()", "attempt to index global 'foo' (a nil value); nothing before this line gives it a value".to_owned()),
        ("error('stop here')", "stop here".to_owned()),
        ("turnpike.port 'x' {", "unexpected symbol near '<eof>'".to_owned()),
        ("require 'socket'", "require: no module string \"socket\"; known: \"turnpike\"".to_owned()),
    ] {
        assert_eq!(errors_below_ports(statement), [format!("4: {expected}")], "{statement}");
    }
}

#[test]
fn all_errors_of_a_file_are_reported_at_once() {
    let text = format!(
        "{PORTS}turnpike.route '10.9.9.9/8' {{ via = '10.0.2.2' }}
turnpike.tx {{ burst = 0 }}
turnpike.route '0.0.0.0/0' {{ via = '10.9.9.9', merit = 3 }}"
    );
    let lines: Vec<_> = read(&text).unwrap_err().0.iter().map(|error| error.line).collect();
    assert_eq!(lines, [Some(4), Some(5), Some(6), Some(6)]);
}

#[test]
fn the_script_is_confined() {
    for name in [
        "io",
        "os",
        "debug",
        "package",
        "ffi",
        "jit",
        "coroutine",
        "dofile",
        "loadfile",
        "load",
        "loadstring",
        "getfenv",
        "setfenv",
        "newproxy",
        "collectgarbage",
        "module",
        "string.dump",
    ] {
        let text = format!("{PORTS}if {name} ~= nil then error('{name} is there') end");
        assert!(read(&text).is_ok(), "{name}: {:?}", read(&text));
    }
    // LuaJIT's other ways to its libraries.
    for module in ["ffi", "jit", "io", "os", "string.buffer", "jit.util", "table.clear"] {
        let text = format!("{PORTS}require '{module}'");
        assert!(read(&text).is_err(), "{module}");
    }
    let bytecode = "\u{1b}LJ\u{2}";
    assert!(
        read(bytecode).unwrap_err().to_string().contains("attempt to load a binary chunk"),
        "{:?}",
        read(bytecode)
    );
}

#[test]
fn a_loop_that_does_not_end_is_stopped() {
    let limits = Limits { time: Duration::from_millis(50), ..Limits::default() };
    for body in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() pcall(f) while true do end end f()",
        "local s = setmetatable({}, { __index = function(t, k) return t[k] end }) for i = 1, 1e12 do pcall(function() return s.x end) end",
        "for i = 1, 1e12 do turnpike.log {} end",
    ] {
        let text = format!("{PORTS}{body}");
        let errors = parse(Path::new("r.lua"), &text, limits, &Catalogue::default())
            .unwrap_err()
            .to_string();
        let line = text.lines().count();
        assert!(
            errors.contains(&format!("r.lua:{line}: the script ran longer than 0.05 s and was stopped; is there a loop that does not end?")),
            "{body}: {}",
            &errors[..errors.len().min(300)]
        );
    }
}

#[test]
fn a_script_that_takes_all_memory_is_stopped() {
    let limits = Limits { memory: 16 << 20, ..Limits::default() };
    for body in [
        "local s = 'x' while true do s = s .. s end",
        "local s = string.rep('x', 1e9)",
        "local t = {} while true do t[#t + 1] = {} end",
    ] {
        let text = format!("{PORTS}{body}");
        let errors = parse(Path::new("r.lua"), &text, limits, &Catalogue::default())
            .unwrap_err()
            .to_string();
        assert_eq!(
            errors,
            "r.lua: the script used more than 16 MiB of memory; make it smaller, or load large tables with turnpike.import",
            "{body}"
        );
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let error =
        load(Path::new("/nonexistent/router.lua"), &Catalogue::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "/nonexistent/router.lua: cannot be read: No such file or directory (os error 2)"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [0xff, 0xfe]).unwrap();
    let error = load(file.path(), &Catalogue::default()).unwrap_err().to_string();
    assert!(
        error
            .ends_with("cannot be read: not a text file in UTF-8; a configuration is a Lua script"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A configuration with random damage gives a configuration or errors with lines that exist.
    #[test]
    fn damaged_scripts_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..6)
    ) {
        let mut text: Vec<char> =
            include_str!("../../../../examples/two-hosts.lua").chars().collect();
        for (at, new) in changes {
            let at = at.index(text.len());
            text[at] = new;
        }
        let text: String = text.into_iter().collect();
        if let Err(errors) = read(&text) {
            prop_assert!(!errors.0.is_empty());
            // Lua ends a line at a carriage return, too.
            let lines = text.split(['\n', '\r']).count();
            prop_assert!(errors.0.iter().all(|e| e.line.is_none_or(|line| line <= lines)), "{errors}");
        }
    }
}

/// Returns the native graph of a configuration's plan, each step with the targets of its outputs.
fn compiled(text: &str) -> dataplane::graph::Shape {
    let mut text = text.to_owned();
    if !text.contains("turnpike.port") {
        text += "\nlocal turnpike = require 'turnpike' turnpike.port 'a' { device = 'a' }";
    }
    let config = read(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let tables = tables(&config);
    let names: Vec<_> = config.ports.iter().map(|port| port.name.clone()).collect();
    let graph = config.graphs.build(&Catalogue::default(), &tables, &names, &mut |_| None).unwrap();
    graph.shape().as_ref().clone()
}

fn tables(config: &Config) -> std::sync::Arc<dataplane::tables::Tables> {
    use dataplane::interface::{InterfaceInfo, InterfaceInfos, Mtus, VrfId};
    let info = |port: &Port| InterfaceInfo {
        mac: MacAddr::default(),
        mtu: 1500,
        vrf: VrfId::DEFAULT,
        partial_checksums: false,
        loses_tag_protocol: false,
        inserts_tags: false,
        host: false,
        features: port.interface.features(),
    };
    let ports: Vec<_> = config.ports.iter().map(info).collect();
    std::sync::Arc::new(dataplane::tables::Tables {
        named_hops: Default::default(),
        mirrors: Default::default(),
        vrfs: Arc::new(dataplane::tables::VrfTables::new(dataplane::tables::Fibs {
            fib4: fib::new_ipv4(Algorithm::Reference, Box::new(fib::NoReaders)).unwrap().reader(),
            fib6: fib::new_ipv6(Algorithm::Reference, Box::new(fib::NoReaders)).unwrap().reader(),
        })),
        next_hops: std::sync::Arc::new(dataplane::next_hop::NextHopTable::new()),
        filters: Arc::default(),
        multicast: Arc::default(),
        mtus: Arc::new(Mtus::new(&ports)),
        shared: Arc::default(),
        vlans: Arc::default(),
        interfaces: Arc::new(InterfaceInfos::new(ports)),
        flows: dataplane::flow::FlowHash::new(1),
        own: Arc::new(dataplane::own::OwnAddresses::new(false)),
    })
}

fn step_names(shape: &dataplane::graph::Shape) -> Vec<&str> {
    shape.steps.iter().map(|step| step.name.as_str()).collect()
}

#[test]
fn the_default_graph_is_the_data_plane_s() {
    for reverse_path in ["", ", reverse_path = 'strict'"] {
        for redirects in ["", ", redirects = true"] {
            let text = format!(
                "local turnpike = require 'turnpike'\n\
                 turnpike.port 'a' {{ device = 'a'{reverse_path}{redirects} }}"
            );
            let native = dataplane::default_graph(&tables(&read(&text).unwrap())).unwrap();
            assert_eq!(&compiled(&text), native.shape().as_ref(), "{text}");
        }
    }
}

/// The output of `turnpike show graph --lua` gives the same plan as a configuration without a
/// graph.
#[test]
fn the_default_graph_can_be_printed_and_read_again() {
    let printed = default_graph_in_lua(&Catalogue::default()).unwrap();
    let again = read(&format!("{PORTS}{printed}")).unwrap().graphs.main;
    let default = read(PORTS).unwrap().graphs.main;
    assert_eq!(again.described().collect::<Vec<_>>(), default.described().collect::<Vec<_>>());
    assert_eq!(again.to_string(), default.to_string());
    assert_eq!(compiled(&printed), compiled(""));
}

/// A catalogue with a step that has parameters.
fn with_parameters() -> Catalogue {
    use dataplane::catalogue::StepSpec;
    use dataplane::graph::Output;
    use dataplane::params::{Arg, Kind, Param};
    let mut catalogue = Catalogue::default();
    let floor = Param::new("floor", Kind::Integer(1..=255), "the lowest TTL that passes");
    let mode = Param::new("mode", Kind::Word(&["open", "closed"]), "its mode");
    let named = Param::new("to", Kind::Texts, "its further outputs").or(Arg::Texts(Vec::new()));
    let spec = StepSpec::described("floor", Vec::new()).param(floor.or(Arg::Integer(5)));
    let spec = spec.param(mode.or(Arg::Word("open"))).param(named).outputs_by(|args| {
        let Arg::Texts(names) = args.get("to") else { panic!("texts") };
        let further = names.iter().map(|name| Output::Next(name.clone().into()));
        std::iter::once(Output::next("next")).chain(further).collect()
    });
    catalogue.add(spec).unwrap();
    catalogue
}

fn read_with(text: &str, catalogue: &Catalogue) -> Result<Config, ConfigErrors> {
    parse(Path::new("router.lua"), &format!("{PORTS}{text}"), Limits::default(), catalogue)
}

#[test]
fn a_graph_gives_its_steps_arguments_and_is_printed_with_them() {
    let catalogue = with_parameters();
    let text = "local g = turnpike.graph\n\
        g:insert_after('ip4-validate', { 'floor', as = 'strict', floor = 64, to = { 'low', 'odd' } })\n\
        g:insert_after('ip4-lookup.forward', { 'floor', as = 'lax', mode = 'closed', when = 'redirects' })\n\
        g:insert_before('ip4-lookup', 'floor')\n\
        g:path('strict.low', 'prohibit') g:path('strict.odd', 'drop')";
    let plan = read_with(text, &catalogue).unwrap().graphs.main;
    let printed = plan.to_string();
    for written in [
        "{ \"floor\", as = \"strict\", floor = 64, to = { \"low\", \"odd\" } }",
        "{ \"floor\", as = \"lax\", mode = \"closed\", when = \"redirects\" }",
        "    \"floor\",",
    ] {
        assert!(printed.contains(written), "{written} in {printed}");
    }
    let again = format!("{printed}turnpike.graph = graph");
    let again = read_with(&again, &catalogue).unwrap().graphs.main;
    let sorted = |plan: &dataplane::plan::Plan| {
        plan.described().collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(sorted(&again), sorted(&plan));
    assert_eq!(again.to_string(), printed);
}

#[test]
fn a_step_of_another_crate_brings_a_setting_of_ports() {
    use dataplane::catalogue::StepSpec;
    use dataplane::features::Feature;
    use dataplane::graph::Output;
    let mut catalogue = Catalogue::default();
    let feature = Feature::new("sampling", 10, &["off", "some", "all"]);
    let spec = StepSpec::described("sample", vec![Output::next("next")]).present_if(feature);
    catalogue.add(spec).unwrap();
    let port = |setting: &str| {
        let text = format!(
            "turnpike.port 'third' {{ device = 'c', {setting} }}\n\
             turnpike.graph:insert_after('ip4-ttl', {{ 'sample', when = 'sampling' }})"
        );
        read_with(&text, &catalogue)
    };
    let config = port("sampling = 'all'").unwrap();
    assert_eq!(
        config.ports.iter().map(|port| port.interface.features().get(feature)).max(),
        Some(2)
    );
    let error = port("sampling = 'most'").unwrap_err().to_string();
    let known = "known: some, all; leave it out for \"off\"";
    assert_eq!(error, format!("router.lua:4: port \"third\": sampling \"most\" unknown; {known}"));
    let changed = Diff::between(&port("").unwrap(), &config);
    assert!(changed.graph, "the step is needed now");
    let setting = &changed.settings[0];
    assert_eq!((setting.from.as_deref(), setting.to.as_deref()), (Some("off"), Some("all")));
    let error = read(&format!("{PORTS}turnpike.port 'third' {{ device = 'c', sampling = 'all' }}"));
    assert!(error.unwrap_err().to_string().contains("key \"sampling\" unknown"));
}

#[test]
fn arguments_that_do_not_fit_are_named_with_their_line() {
    let catalogue = with_parameters();
    let error = |element: &str| {
        let text = format!("turnpike.graph:insert_after('ip4-ttl', {element})");
        read_with(&text, &catalogue).unwrap_err().to_string()
    };
    for (element, message) in [
        (
            "{ 'floor', flor = 3 }",
            "step \"floor\": flor: unknown; did you mean \"floor\"? known: floor, mode, to",
        ),
        (
            "{ 'floor', as = 'a', floor = 0, mode = 'ajar' }",
            "step \"a\": floor: expected a whole number from 1 to 255, got number 0; mode: expected \"open\" \
             or \"closed\", got string \"ajar\"",
        ),
        (
            "{ 'floor', to = { 'a', 3 } }",
            "step \"floor\": to: expected a list of texts, got a list of 2",
        ),
        (
            "{ 'floor', to = { a = 3 } }",
            "step \"floor\": to: expected a list of texts, got a table",
        ),
        ("{ 'ip4-ttl', as = 'x', floor = 3 }", "step \"x\": floor: it has no parameters"),
    ] {
        assert_eq!(error(element), format!("router.lua:4: graph: {message}"), "{element}");
    }
    assert_eq!(
        error("{\n'floor',\nmode = 'open',\nfloor = 0 }"),
        "router.lua:7: graph: step \"floor\": floor: expected a whole number from 1 to 255, got number 0"
    );
    assert!(error("{ 'floor', 3 }").contains("step \"floor\": a value has no key;"));
    assert!(error("{ 'floor', as = 3 }").contains("step \"floor\": as = number 3;"));
}

#[test]
fn a_graph_is_changed_by_the_script() {
    let shape = compiled(
        "local turnpike = require 'turnpike'\n\
         local graph = turnpike.graph\n\
         graph:remove('ip4-checksum-offload') graph:remove('ip4-prefetch')\n\
         graph:insert_after('classify.ip6', { 'ip6-hop-limit', as = 'early' })\n\
         graph:insert_before('ip6-mtu', { 'ip6-hop-limit', as = 'late' })\n\
         graph:path('ip6-rewrite', 'drop')",
    );
    assert!(!step_names(&shape).contains(&"ip4-checksum-offload"));
    let target = |step: &str, output: usize| {
        let step = shape.steps.iter().find(|found| found.name == step).unwrap();
        match step.outputs[output].1 {
            dataplane::graph::Target::Step(to) => shape.steps[to].name.clone(),
            end => format!("{end:?}"),
        }
    };
    assert_eq!(target("classify", 0), "ip4-validate");
    assert_eq!(target("classify", 1), "early");
    assert_eq!(target("early", 0), "ip6-checksum-offload");
    assert_eq!((target("ip6-hop-limit", 0), target("late", 0)), ("late".into(), "ip6-mtu".into()));
    assert_eq!(target("ip6-rewrite", 0), "Drop(ByStep)");
}

#[test]
fn a_port_can_have_a_graph_of_its_own() {
    let shape = compiled(&format!(
        "{PORTS}local g = turnpike.graph:on_port('left')\n\
         g:path('classify.ip6', 'drop')\n\
         g:remove('ip6-checksum-offload') g:remove('ip6-validate')\n\
         g:remove('ip6-reverse-path')\n\
         g:remove('ip6-lookup') g:remove('ip6-multicast') g:remove('ip6-hop-limit') g:remove('ip6-redirect')\n\
         g:remove('ip6-mtu') g:remove('ip6-rewrite')"
    ));
    let names = step_names(&shape);
    assert_eq!(names[0], "by-port");
    assert!(names.contains(&"left:ip4-lookup") && !names.contains(&"left:ip6-lookup"));
    assert!(names.contains(&"ip6-lookup"));
}

#[test]
fn what_is_wrong_with_a_graph_is_said_with_its_line() {
    let graph = |text: &str| errors_below_ports(&format!("local g = turnpike.graph\n{text}"));
    assert_eq!(
        graph("g:insert_after('ip4-validat', 'ip4-ttl')"),
        [
            "5: graph: step \"ip4-validat\" not found in the graph; did you mean \"ip4-validate\"? known: mirror-in, sample-in, bond-input, vlan-input, classify, ip4-prefetch, ip4-checksum-offload, \
          ip4-validate, ip4-reverse-path, ip4-filter-in, ip4-policy-route, ip4-lookup, ip4-ttl, ip4-filter-out, ip4-redirect, ip4-mtu, ip4-rewrite, vlan-output, \
          bond-output, ip6-checksum-offload, ip6-validate, ip6-reverse-path, ip6-filter-in, ip6-policy-route, ip6-lookup, ip6-hop-limit, ip6-filter-out, ip6-redirect, \
          ip6-mtu, ip6-rewrite, ip4-multicast, ip6-multicast"
        ]
    );
    let unknown = graph("g:insert_after('ip4-validate', 'ip4-tll')");
    assert!(
        unknown[0].starts_with("5: graph: step \"ip4-tll\" unknown; did you mean \"ip4-ttl\"?")
    );
    assert_eq!(
        graph("g:remove('ip4-multicast') g:remove('ip4-lookup')"),
        [
            "5: graph: \"ip4-mtu\" requires routed valid IPv4 packets, but \"ip4-ttl.ok\" provides valid IPv4 \
          packets"
        ]
    );
    assert_eq!(
        graph("g:path('ip4-ttl', 'ip4-checksum-offload')"),
        ["5: graph: step \"ip4-mtu\": no path leads to it; lead one there or remove it"]
    );
    assert_eq!(
        graph("g:insert_before('ip4-mtu', { 'ip4-ttl', ass = 'x' })"),
        ["5: graph: step \"ip4-ttl\": ass: it has no parameters"]
    );
    let when = graph("g:insert_before('ip4-mtu', { 'ip4-ttl', when = 'redirect' })");
    assert_eq!(
        when,
        [
            "5: graph: when = \"redirect\" unknown; did you mean \"redirects\"? known: mirror, samples, bonds, vlans, reverse_path, \
          filter_in, policy_route, redirects, filter_out"
        ]
    );
    assert_eq!(
        graph("turnpike.graph = 7"),
        ["5: turnpike.graph: number 7 is no graph; turnpike.new_graph makes one"]
    );
    let port = graph("g:on_port('lef')");
    assert_eq!(
        port,
        [
            "5: graph: on_port: names port \"lef\", unknown; did you mean \"left\"? ports: left, right"
        ]
    );
    assert_eq!(
        graph("g:on_port('left')\ng:on_port('left')"),
        ["6: graph: on_port: port \"left\" has a graph of line 5"]
    );
}

#[test]
fn a_step_that_can_drop_drops_when_it_is_disabled_unless_the_script_says_otherwise() {
    let policy = |settings: &str, path: &str| {
        let config = read(&format!(
            "{PORTS}local step = turnpike.step 'filter' {{ outputs = {{ 'next', 'bad' }}, {settings}\n\
             process = function(b, m) return m end }}\n\
             turnpike.graph:insert_after('ip4-validate', step)\n\
             turnpike.graph:path('filter.bad', '{path}')"
        ));
        config.unwrap_or_else(|errors| panic!("{errors}")).script.unwrap().steps[0].policy
    };
    assert_eq!(policy("", "drop"), ::script::Policy::Drop);
    assert_eq!(policy("on_failure = 'bypass',", "drop"), ::script::Policy::Bypass);
    assert_eq!(policy("", "ip4-lookup"), ::script::Policy::Bypass);
    assert_eq!(policy("on_failure = 'drop',", "ip4-lookup"), ::script::Policy::Drop);
}

#[test]
fn a_pattern_cannot_outlive_the_script_s_time() {
    let line = "local s = ('a'):rep(3000):find(('.-'):rep(8) .. 'b')";
    let errors = read(line).unwrap_err().to_string();
    assert!(errors.contains("takes too many steps on 3000 bytes"), "{errors}");
}

#[test]
fn steps_in_lua_are_described_and_their_mistakes_named() {
    let config = read(&format!(
        "{PORTS}turnpike.counter 'all' turnpike.counters('some', 4)\n\
         local step = turnpike.step 'mark' {{ outputs = {{ 'next', 'odd' }}, requires = 'valid-ip4', limit = 7,\n\
           on_failure = 'drop', budget_us = 2000, process = function(b, m) return m end }}\n\
         turnpike.graph:insert_after('ip4-validate', step)\n\
         turnpike.graph:path('mark.odd', 'drop')"
    ))
    .unwrap_or_else(|errors| panic!("{errors}"));
    let script = config.script.unwrap();
    let [step] = &script.steps[..] else { panic!("{:?}", script.steps) };
    assert_eq!((step.name.as_str(), step.limit, step.budget_us), ("mark", 7, 2000));
    assert_eq!(step.policy, ::script::Policy::Drop);
    assert_eq!(step.outputs, ["next", "odd"]);
    assert!(step.drops.is_empty());
    assert_eq!(script.counters.all().count(), 5);
    assert_eq!(config.graphs.main.kinds().filter(|kind| *kind == "mark").count(), 1);

    let step = |settings: &str| errors_below_ports(&format!("turnpike.step 'x' {settings}"));
    for (settings, message) in [
        ("{}", "process missing; write process = function(batch, mask) … end"),
        ("(7)", "expected a table of settings, got number 7"),
        ("{ process = 3 }", "key \"process\": expected a function, got number 3"),
        (
            "{ process = print, output = {} }",
            "key \"output\": unknown; did you mean \"outputs\"? known: outputs, drops, process, requires, \
             limit, on_failure, budget_us",
        ),
        ("{ process = print, outputs = {} }", "key \"outputs\": 1 to 15 names, each once"),
        (
            "{ process = print, outputs = { 'a', 'a' } }",
            "key \"outputs\": 1 to 15 names, each once",
        ),
        (
            "{ process = print, drops = { 'late', 'next' } }",
            "outputs and drops: 1 to 15 names together, each once",
        ),
        (
            "{ process = print, drops = 'late' }",
            "key \"drops\": expected a list of names, got string \"late\"",
        ),
        (
            "{ process = print, outputs = { 'a.b' } }",
            "key \"outputs\": string \"a.b\" is no name of an output",
        ),
        (
            "{ process = print, budget_us = 5 }",
            "key \"budget_us\": 5; a whole number from 1000 to 1000000000",
        ),
        (
            "{ process = print, on_failure = 'stop' }",
            "key \"on_failure\": expected \"bypass\" or \"drop\", got string \"stop\"",
        ),
    ] {
        assert_eq!(step(settings), [format!("4: step \"x\": {message}")], "{settings}");
    }
    let required = errors_below_ports(
        "local s = turnpike.step 'six' { requires = 'ip6', process = print }\n\
         turnpike.graph:insert_after('ip4-validate', s)",
    );
    assert_eq!(
        required,
        [
            "5: graph: \"six\" requires IPv6 packets, but \"ip4-validate.ok\" provides valid IPv4 packets"
        ]
    );
    let twice = errors_below_ports("turnpike.step 'ip4-ttl' { process = print }");
    assert_eq!(twice, ["4: step \"ip4-ttl\" exists already; choose another name"]);
    let counter = errors_below_ports("turnpike.counter 'a' turnpike.counters('a', 2)");
    assert_eq!(counter, ["4: counter \"a\": made with 1 elements already, now 2"]);
    assert!(
        errors_below_ports("turnpike.ip4 '1.2.3'")[0]
            .starts_with("4: turnpike.ip4: \"1.2.3\" is no")
    );
    assert!(read(PORTS).unwrap().script.is_none());
}

#[test]
fn buckets_and_tables_are_checked() {
    let good = read(&format!(
        "{PORTS}local a = turnpike.buckets 'a' {{ rate = 10 }} local b = turnpike.buckets 'a' {{ rate = 10 }}\n\
         local t = turnpike.table 't' {{ seconds = 60, size = 1024 }}\n\
         assert(turnpike.now() == 0 and turnpike.set {{ '10.0.0.0/8' }}:has(turnpike.ip4 '10.1.2.3'))\n\
         assert(turnpike.ports {{ 22, '80-90' }}:has(85) and turnpike.hash(1) ~= turnpike.hash(2))"
    ));
    assert!(good.is_ok(), "{}", good.unwrap_err());
    let wrong = |text: &str, message: &str| {
        assert_eq!(errors_below_ports(text), [format!("4: {message}")], "{text}");
    };
    wrong(
        "turnpike.buckets 'a' {}",
        "buckets \"a\": key \"rate\": NaN; a number above 0, up to 1000000000000",
    );
    wrong(
        "turnpike.buckets 'a' { rate = '1k' }",
        "buckets \"a\": key \"rate\": expected a number, got string \"1k\"",
    );
    wrong(
        "turnpike.buckets 'a' { rat = 1 }",
        "buckets \"a\": key \"rat\": unknown; did you mean \"rate\"? known: rate, burst, size",
    );
    wrong(
        "turnpike.table 't' { seconds = 1, size = 0.5 }",
        "table \"t\": key \"size\": 0; a whole number from 1 to 4194304",
    );
    wrong("turnpike.table 't' (7)", "table \"t\": expected a table of settings, got number 7");
    wrong(
        "turnpike.table 't' { seconds = 1 } turnpike.table 't' { seconds = 2 }",
        "table \"t\": made with other settings already",
    );
    wrong(
        "turnpike.table 't' { seconds = 1, size = 4194304 } turnpike.table 'u' { seconds = 1 }",
        "table \"u\": a script has 64 buckets and tables at most, with 4194304 entries together",
    );
    wrong(
        "turnpike.table {} { seconds = 1 }",
        "table: expected a name, got a table; write turnpike.table \"NAME\" { … }",
    );
}

#[test]
fn telnet_is_off_and_stays_on_this_machine() {
    let config = |text: &str| read(&format!("{PORTS}{text}")).unwrap();
    assert_eq!(config("").telnet, None);
    assert_eq!(config("turnpike.telnet {}").telnet, Some(Telnet::default()));
    assert!(Telnet::default().listen.ip().is_loopback());
    let settings = "listen = '[::1]:23', sessions = 3, idle_s = 60, users = { 'ops', '1000' }";
    let expected = Telnet {
        listen: "[::1]:23".parse().unwrap(),
        sessions: 3,
        idle: Duration::from_secs(60),
        users: vec!["ops".to_owned(), "1000".to_owned()],
    };
    assert_eq!(config(&format!("turnpike.telnet {{ {settings} }}")).telnet, Some(expected));
    let public = config("turnpike.telnet { listen = '0.0.0.0:23', public = true }").telnet;
    assert_eq!(public.unwrap().listen, "0.0.0.0:23".parse().unwrap());
    for (settings, expected) in [
        (
            "listen = '0.0.0.0:23'",
            "telnet: listen \"0.0.0.0:23\": others than this machine can reach it, and telnet has no \
             passwords; write public = true if that is meant, or listen = \"127.0.0.1:2323\"",
        ),
        (
            "listen = 'here'",
            "telnet: listen \"here\": not an address with a port; write \"127.0.0.1:2323\" or \"[::1]:2323\"",
        ),
        ("listen = '127.0.0.1:0'", "telnet: listen \"127.0.0.1:0\": port 0 is none; 2323 is usual"),
        (
            "users = 7",
            "telnet: users: expected users such as { \"operator\", \"1000\" }, got number 7",
        ),
        (
            "users = { '' }",
            "telnet: users: \"\" is no name; write users such as { \"operator\", \"1000\" }",
        ),
        ("sessions = 0", "telnet: sessions: expected a whole number from 1 to 1000, got number 0"),
    ] {
        let errors = errors_below_ports(&format!("turnpike.telnet {{ {settings} }}"));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].ends_with(expected), "{errors:?}");
    }
}

#[test]
fn control_sockets_stay_on_this_machine() {
    let sockets = |text: &str| read(&format!("{PORTS}{text}")).unwrap().control_sockets;
    assert_eq!(sockets(""), []);
    let text = "turnpike.control_socket 'tcp' { listen = '127.0.0.1:7777', users = { 'ops' }, idle_s = 60 }
        turnpike.control_socket 'unix' { unix = '/run/cs', read_only = true, verbose = true, clients = 3 }";
    let tcp = ControlSocket {
        line: 4,
        name: "tcp".to_owned(),
        listen: Listen::Tcp("127.0.0.1:7777".parse().unwrap()),
        read_only: false,
        verbose: false,
        clients: 16,
        idle: Duration::from_secs(60),
        users: vec!["ops".to_owned()],
    };
    let unix = ControlSocket {
        line: 5,
        name: "unix".to_owned(),
        listen: Listen::Unix("/run/cs".into()),
        read_only: true,
        verbose: true,
        clients: 3,
        idle: Duration::from_secs(600),
        users: Vec::new(),
    };
    assert_eq!(sockets(text), [tcp, unix]);
    for (settings, expected) in [
        ("", "write either listen = \"127.0.0.1:7777\" or unix = \"/run/click.sock\""),
        ("listen = '127.0.0.1:1', unix = '/run/x'", "or unix = \"/run/click.sock\""),
        ("listen = '0.0.0.0:1'", "public = true if that is meant, or listen = \"127.0.0.1:1\""),
        (
            "unix = 'cs'",
            "unix \"cs\": not an absolute path, and the router is in another directory",
        ),
        (
            "unix = '/run/x', users = { 'ops' }",
            "only users who may open the file can connect; leave it out",
        ),
        (
            "listen = '127.0.0.1:1', clients = 0",
            "expected a whole number from 1 to 1000, got number 0",
        ),
    ] {
        let errors = errors_below_ports(&format!("turnpike.control_socket 'cs' {{ {settings} }}"));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("4: control_socket \"cs\": ") && errors[0].ends_with(expected),
            "{errors:?}"
        );
    }
    let long = "x".repeat(100);
    for text in [
        format!("turnpike.control_socket 'a' {{ unix = '/{long}' }}"),
        "turnpike.control_socket 'a b' { unix = '/x' }".to_owned(),
        "turnpike.control_socket 'a' { unix = '/x' } turnpike.control_socket 'a' { unix = '/y' }"
            .to_owned(),
        "turnpike.control_socket 'a' { unix = '/x' } turnpike.control_socket 'b' { unix = '/x' }"
            .to_owned(),
    ] {
        assert_eq!(errors_below_ports(&text).len(), 1, "{text}");
    }
}

#[test]
fn elements_name_what_there_is() {
    let element = |settings: &str| format!("turnpike.element 'e' {{ class = 'C', {settings} }}");
    let config = read(&format!(
        "{PORTS}{}",
        element("step = 'classify', to = { '0 1 e' }, outputs = { 'push' }")
    ));
    let [element_e] = &config.unwrap().elements[..] else { panic!() };
    assert_eq!(element_e.to, [Wire { output: 0, input: 1, to: "e".to_owned() }]);
    for (settings, expected) in [
        ("step = 'x'", "step \"x\" is not in the graph; leave it out"),
        ("counts = { 'x.0' }", "counts: \"x.0\" is no output of a step of the graph"),
        ("port = 'x'", "port \"x\" unknown; known: left, right"),
        ("ways = { 'local', 'x' }", "port \"x\" unknown; known: left, right"),
        ("inputs = { 'up' }", "inputs: \"up\" unknown; known: push, pull, push~, pull~"),
        ("to = { '0 0 e' }", "to: \"0 0 e\": expected OUTPUT INPUT NAME"),
        ("outputs = { 'push' }, to = { '0 0 f' }", "to: no element \"f\""),
    ] {
        let errors = errors_below_ports(&element(settings));
        assert_eq!(errors, [format!("4: element \"e\": {expected}")], "{settings}");
    }
}

/// Settings of TLS, of files that are not there.
const TLS: &str = "certificate = '/none/c', key = '/none/k', client_ca = '/none/a'";

fn tls(has_ca: bool) -> Tls {
    let file = |path: &str| PemFile { path: path.into(), changed: None };
    let client_ca = has_ca.then(|| file("/none/a"));
    Tls { certificate: file("/none/c"), key: file("/none/k"), client_ca }
}

#[test]
fn metrics_are_off_and_stay_on_this_machine() {
    let config = |text: &str| read(&format!("{PORTS}{text}")).unwrap().metrics;
    assert_eq!(config(""), None);
    let usual = HttpListeners {
        socket: Some("/run/turnpike-metrics.sock".into()),
        ..HttpListeners::default()
    };
    assert_eq!(config("turnpike.metrics {}"), Some(usual.clone()));
    let group = Some("prometheus".to_owned());
    let with_group = HttpListeners { group: group.clone(), ..usual };
    assert_eq!(config("turnpike.metrics { group = 'prometheus' }"), Some(with_group));
    let listen = "127.0.0.1:9477".parse().ok();
    let tcp = HttpListeners { listen, ..HttpListeners::default() };
    assert_eq!(config("turnpike.metrics { listen = '127.0.0.1:9477' }"), Some(tcp));
    let listen = "[::]:97".parse().ok();
    let mut both = HttpListeners { socket: Some("/m".into()), group, listen, tls: None };
    let text = "{ socket = '/m', group = 'prometheus', listen = '[::]:97', public = true }";
    assert_eq!(config(&format!("turnpike.metrics {text}")), Some(both.clone()));
    // Clients with certificates are not the public.
    both.tls = Some(tls(true));
    let text = text.replace("public = true", TLS);
    assert_eq!(config(&format!("turnpike.metrics {text}")), Some(both));
    let long = format!("/{}", "x".repeat(90));
    let too_long =
        format!("metrics: socket \"{long}\": longer than 90 bytes; choose a shorter path");
    for (settings, expected) in [
        (
            "listen = '0.0.0.0:9477'",
            "metrics: listen \"0.0.0.0:9477\": others than this machine can reach it, and metrics have no \
             passwords; write public = true if that is meant, or listen = \"127.0.0.1:9477\"",
        ),
        (
            "listen = '0.0.0.0:9477', certificate = '/c', key = '/k'",
            "metrics: listen \"0.0.0.0:9477\": others than this machine can reach it, and metrics have no \
             passwords; write public = true if that is meant, or listen = \"127.0.0.1:9477\"",
        ),
        (
            "listen = 'here'",
            "metrics: listen \"here\": not an address with a port; write \"127.0.0.1:9477\" or \"[::1]:9477\"",
        ),
        (
            "socket = 'metrics.sock'",
            "metrics: socket \"metrics.sock\": no absolute path of a file; write one such as \
             \"/run/turnpike-metrics.sock\"",
        ),
        (&format!("socket = '{long}'"), &too_long),
        (
            "listen = '127.0.0.1:9477', group = 'prometheus'",
            "metrics: group: nothing has it without a socket; add socket, or leave it out",
        ),
    ] {
        let errors = errors_below_ports(&format!("turnpike.metrics {{ {settings} }}"));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].ends_with(expected), "{errors:?}");
    }
}

#[test]
fn the_api_is_off_and_stays_on_this_machine() {
    let config = |text: &str| read(&format!("{PORTS}{text}")).unwrap();
    assert_eq!((config("").api, config("").access), (None, None));
    let (group, token_file) = (Some("netops".to_owned()), Some("/t".into()));
    let at =
        HttpListeners { socket: Some("/run/turnpike-api.sock".into()), ..HttpListeners::default() };
    let usual = Api { at, token_file: None, dashboard: false };
    assert_eq!(config("turnpike.api {}").api, Some(usual));
    let (socket, listen) = (Some("/a".into()), "[::1]:97".parse().ok());
    let at = HttpListeners { socket, group: group.clone(), listen, tls: None };
    let mut full = Api { at, token_file, dashboard: true };
    let text = "{ socket = '/a', group = 'netops', listen = '[::1]:97', token_file = '/t', dashboard = true }";
    assert_eq!(config(&format!("turnpike.api {text}")).api, Some(full.clone()));
    // With TLS, and clients that say who they are, from everywhere.
    full.at.listen = "[::]:97".parse().ok();
    full.at.tls = Some(tls(false));
    let text = text.replace("[::1]", "[::]");
    let with_token =
        text.replace("token_file", "certificate = '/none/c', key = '/none/k', token_file");
    assert_eq!(config(&format!("turnpike.api {with_token}")).api, Some(full.clone()));
    (full.at.tls, full.token_file) = (Some(tls(true)), None);
    let text = text.replace("token_file = '/t'", TLS);
    let both = format!("turnpike.api {text} turnpike.access {{ read = {{ 'cert:alice' }} }}");
    let both = config(&both);
    assert_eq!(both.api, Some(full));
    let alice = Holder::Certificate("alice".to_owned());
    assert_eq!(both.access, Some(Access { read: vec![alice], ..Access::default() }));
    let holders = vec![Holder::User("alice".to_owned()), Holder::Group("1000".to_owned())];
    let roles = Access { group, read: holders, ..Access::default() };
    let text = "turnpike.access { group = 'netops', read = { 'alice', 'group:1000' } }";
    assert_eq!(config(text).access, Some(roles));
    for (statement, expected) in [
        (
            "api { listen = '0.0.0.0:8479' }",
            "api: listen \"0.0.0.0:8479\": others than this machine can reach it, and the API is not encrypted; add \
             certificate and key, or listen on \"127.0.0.1:8479\" and reach it by ssh -L",
        ),
        (
            "api { listen = '0.0.0.0:8479', certificate = '/c', key = '/k' }",
            "api: listen \"0.0.0.0:8479\": others than this machine can reach it, and nothing says who they are; add \
             client_ca or token_file, or listen on \"127.0.0.1:8479\"",
        ),
        (
            "api { listen = '127.0.0.1:1', certificate = '/c' }",
            "api: key missing: certificate is nothing without it; add key",
        ),
        (
            "api { listen = '127.0.0.1:1', client_ca = '/c' }",
            "api: certificate missing: client_ca is nothing without it; add certificate",
        ),
        (
            "api { listen = '127.0.0.1:1', certificate = '/c', key = '-----BEGIN PRIVATE KEY-----' }",
            "4: api: key: no absolute path of a file in PEM; its text is read from there",
        ),
        (
            "access { read = { 'cert:alice' } }",
            "access: read: \"cert:alice\": no client shows a certificate without turnpike.api { client_ca }",
        ),
        (
            "api { token_file = '/t' }",
            "api: token_file: clients of the socket need no token; add listen, or leave it out",
        ),
        (
            "api { listen = '127.0.0.1:1', token_file = 't' }",
            "api: token_file \"t\": no absolute path of a file",
        ),
        (
            "api { listen = '127.0.0.1:1', group = 'x' }",
            "api: group: nothing has it without a socket; add socket, or leave it out",
        ),
        ("access { wrong = { 'x' } }", "known: group, read, operate, configure"),
        (
            "access { read = { 'group:' } }",
            "access: read: a name is empty; write users, groups and names of certificates such as { \"alice\", \"1000\", \
             \"group:netops\", \"cert:alice\" }",
        ),
    ] {
        let errors = errors_below_ports(&format!("turnpike.{statement}"));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].ends_with(expected), "{errors:?}");
    }
}

#[test]
fn commands_are_described_once_and_in_full() {
    let text = "turnpike.command 'total' { help = 'All packets', run = function() end }";
    let command =
        |name: &str, help: &str| Command { line: 4, name: name.into(), help: help.into() };
    let read = |text: &str| read(&format!("{PORTS}{text}"));
    assert_eq!(read(text).unwrap().commands, [command("total", "All packets")]);
    for (text, expected) in [
        ("turnpike.command 'a b' { run = print }", "command \"a b\": a name begins with a letter"),
        ("turnpike.command 'a' {}", "command \"a\": run missing; write run = function(args)"),
        (
            "turnpike.command 'a' { run = 3 }",
            "command \"a\": run: expected a function, got number 3",
        ),
        (
            "turnpike.command 'a' { run = print, hepl = '' }",
            "command \"a\": key \"hepl\" unknown; did you mean \"help\"?",
        ),
        (
            "for _ = 1, 2 do turnpike.command 'a' { run = print } end",
            "command \"a\": given on line 4 already",
        ),
        ("turnpike.command 'a' (3)", "command \"a\": expected a table of settings, got number 3"),
    ] {
        let errors = errors_below_ports(text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].starts_with(&format!("4: {expected}")), "{errors:?}");
    }
}

/// A `print` function of the script runs while the graph is printed.
#[test]
fn a_print_of_the_scripts_own_may_change_the_graph() {
    let text = "local text\n\
                function print(t) text = t turnpike.graph:insert_after('ip4-ttl', { 'ip4-ttl', as = 'again' }) end\n\
                turnpike.graph:print()\n\
                assert(text:find('ip4-ttl', 1, true) and not text:find('again'))\n";
    let config = read(&format!("{PORTS}{text}")).unwrap();
    assert!(config.graphs.main.has("again"));
    for other in ["nil", "3", "setmetatable({}, { __call = function() error('no') end })"] {
        let errors = errors_below_ports(&format!("print = {other} turnpike.graph:print()"));
        assert_eq!(errors.len(), 1, "{errors:?}");
    }
}

#[test]
fn a_gateway_that_only_the_default_route_leads_to_is_doubted_or_refused() {
    let routes = "turnpike.route '0.0.0.0/0' { via = '10.0.1.2' }\n\
                  turnpike.route '198.51.100.0/24' { via = '172.16.0.1' }\n";
    let config = read(&format!("{PORTS}{routes}")).unwrap();
    let doubts = config.doubts();
    assert_eq!(doubts.len(), 1, "{doubts:?}");
    let expected = "route \"198.51.100.0/24\": via \"172.16.0.1\" is on no port's network, and only the default route";
    assert!(doubts[0].contains(expected), "{doubts:?}");
    let known = "turnpike.route '172.16.0.0/12' { via = '10.0.1.2' }\n";
    assert_eq!(read(&format!("{PORTS}{routes}{known}")).unwrap().doubts(), Vec::<String>::new());
    let strict = "turnpike.forwarding { resolve_via_default = false }\n";
    let errors = errors_below_ports(&format!("{routes}{strict}"));
    assert!(
        errors.len() == 1 && errors[0].contains("via \"172.16.0.1\" is unreachable"),
        "{errors:?}"
    );
    let config = read(&format!("{PORTS}{routes}{known}{strict}")).unwrap();
    assert!(!config.forwarding.resolve_via_default);
}

#[test]
fn paths_are_selected_by_the_chosen_fields() {
    let hash = |text: &str| {
        let text = format!("{PORTS}turnpike.forwarding {{ hash = {{ {text} }} }}\n");
        read(&text).map(|config| config.forwarding.hash)
    };
    let usual = PathHash::default();
    assert_eq!(hash("").unwrap(), usual);
    assert_eq!(hash("fields = 'l3+l4', inner = false").unwrap(), usual);
    let fields = FlowFields { ports: false, flow_label: true, inner: true, symmetric: false };
    let chosen = "fields = 'l3', flow_label = true, inner = true, seed = 4294967295";
    assert_eq!(hash(chosen).unwrap(), PathHash { seed: Some(u32::MAX), fields });
    let fields = FlowFields { symmetric: true, ..FlowFields::default() };
    assert_eq!(hash("symmetric = true, seed = 0").unwrap(), PathHash { seed: Some(0), fields });
    for (text, expected) in [
        ("fields = 'l4'", "fields \"l4\" unknown; known: l3, l3+l4"),
        ("seed = -1", "seed: expected a whole number from 0 to 4294967295"),
        ("symmetric = true, flow_label = true", "different flow labels; leave out flow_label"),
        ("fieldz = 'l3'", "key \"fieldz\" unknown"),
    ] {
        let errors = hash(text).unwrap_err().to_string();
        assert!(errors.contains(expected), "{text}: {errors}");
    }
}

const VRFS: &str = "local turnpike = require 'turnpike'
turnpike.vrf 'blue' { table = 100 }
turnpike.vrf 'red' {}
turnpike.port 'left' { device = 'a', address = '10.0.1.1/24', vrf = 'blue' }
turnpike.port 'right' { device = 'b', address = '10.0.1.1/24', vrf = 'red' }
turnpike.port 'plain' { device = 'c', address = '10.0.1.1/24' }
turnpike.routes_from { 'kernel' }
";

#[test]
fn ports_and_routes_are_in_vrfs() {
    let [none, blue, red] = [0, 1, 2].map(VrfId::new);
    let text = format!(
        "{VRFS}turnpike.route '192.0.2.0/24' {{ via = '10.0.1.2', vrf = 'blue' }}
         turnpike.route '192.0.2.0/24' {{ via = '10.0.1.2', vrf = 'red' }}
         turnpike.route '192.0.2.0/24' {{ via = '10.0.1.2', vrf = 'default' }}
         turnpike.route '198.51.100.0/24' {{ via = '10.0.1.2', vrf = 'red', next_hop_vrf = 'blue' }}
         turnpike.route '203.0.113.0/24' {{ via = '10.0.1.2', port = 'right' }}
         turnpike.route '10.9.0.0/16' {{ via = '172.16.0.1', vrf = 'red' }}
         turnpike.route '10.8.0.0/16' {{ port = 'left', vrf = 'red' }}
         turnpike.next_hop 'far' {{ via = '172.16.0.1', vrf = 'blue' }}
         turnpike.neighbour '10.0.1.9' {{ mac = '02:00:00:00:00:09', port = 'right' }}"
    );
    let config = read(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let vrfs: Vec<_> = config.vrfs.iter().map(|vrf| (vrf.id, &*vrf.name, vrf.table)).collect();
    assert_eq!(vrfs, [(blue, "blue", Some(100)), (red, "red", None)]);
    assert_eq!(
        config.ports.iter().map(|port| port.interface.settings.vrf).collect::<Vec<_>>(),
        [blue, red, none]
    );
    let [left, right, plain] = [0, 1, 2].map(|index| InterfaceId::new(index).unwrap());
    let over = |port| rib::Path::over(port, "10.0.1.2".parse().unwrap());
    let far = |vrf| rib::Path::recursive(vrf, "172.16.0.1".parse().unwrap());
    let routes: Vec<_> = (config.routes.into_iter())
        .map(|route| match route.kind {
            RouteKind::Unicast(paths) => (route.vrf, paths[0]),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (blue, over(left)),
        (red, over(right)),
        (none, over(plain)),
        (red, over(left)),
        (none, over(right)),
        (red, far(red)),
        (red, rib::Path::on_interface(left)),
    ];
    assert_eq!(routes, expected);
    assert_eq!(config.next_hops[0].paths, [far(blue)]);
    assert_eq!(config.neighbours[0].port, right);
}

#[test]
fn what_is_wrong_about_vrfs_is_named_with_its_way_out() {
    let below = |statement: &str| errors(&format!("{VRFS}{statement}"));
    for (statement, expected) in [
        ("turnpike.vrf 'default' {}", r#"8: vrf "default": is always there; choose another name"#),
        (
            "turnpike.vrf 'blue' {}",
            r#"8: vrf "blue": the name is taken by the VRF on line 2; choose another"#,
        ),
        (
            "turnpike.vrf 'a b' {}",
            r#"8: vrf "a b": not a name; begin with a letter or digit and use letters, digits, '-', '_' and '.', 15 characters at most"#,
        ),
        (
            "turnpike.vrf 'x' { table = 100 }",
            r#"8: vrf "x": table 100 is that of VRF "blue" on line 2; use another number"#,
        ),
        (
            "turnpike.vrf 'x' { table = 254 }",
            r#"8: vrf "x": table 254 is the kernel's for packets of no VRF; use another number"#,
        ),
        (
            "turnpike.vrf 'x' { tabel = 1 }",
            r#"8: vrf "x": key "tabel" unknown; did you mean "table"? known: table, namespace"#,
        ),
        (
            "turnpike.port 'p' { device = 'd', vrf = 'blu' }",
            r#"8: port "p": vrf "blu" unknown; did you mean "blue"? VRFs: default, blue, red"#,
        ),
        (
            "turnpike.port 'p' { device = 'd', vrf = 7 }",
            r#"8: port "p": vrf: expected a VRF's name, got number 7"#,
        ),
        (
            "turnpike.port 'p' { device = 'd', vrf = 'red', address = '10.0.1.129/25' }",
            r#"8: port "p": address "10.0.1.129/25" overlaps "10.0.1.1/24" of port "right" on line 5; give each a network of its own"#,
        ),
        (
            "turnpike.route '192.0.2.0/24' { via = '10.0.1.2', vrf = 'green' }",
            r#"8: route "192.0.2.0/24": vrf "green" unknown; VRFs: default, blue, red"#,
        ),
        (
            "turnpike.route '192.0.2.0/24' { blackhole = true, next_hop_vrf = 'red' }",
            r#"8: route "192.0.2.0/24": next_hop_vrf is about gateways, of which this route has none; leave it out"#,
        ),
        (
            "turnpike.route '192.0.2.0/24' { via = '10.0.1.1', vrf = 'red' }",
            r#"8: route "192.0.2.0/24": via "10.0.1.1" is the router's own address (port "right", line 5); use the neighbour's"#,
        ),
        (
            "turnpike.neighbour '10.0.1.9' { mac = '02:00:00:00:00:09' }",
            r#"8: neighbour "10.0.1.9": the address is on networks of VRFs "default" and "blue"; say which with port = "NAME""#,
        ),
    ] {
        assert_eq!(below(statement), [expected], "{statement}");
    }
    let twice = "turnpike.route '192.0.2.0/24' { via = '10.0.1.2', vrf = 'red' }\n".repeat(2);
    assert!(below(&twice)[0].starts_with("9: route \"192.0.2.0/24\": given on line 8 already"));
    let alone = VRFS.replace("turnpike.routes_from { 'kernel' }", "");
    assert_eq!(
        errors(&alone),
        [
            r#"2: vrf "blue": table needs a source in turnpike.routes_from; add one, or leave table out"#
        ]
    );
    let many = "local t = require 'turnpike'\nfor i = 1, 4096 do\n t.vrf('v' .. i) {} end\nt.port 'p' { device = 'd' }";
    assert_eq!(
        errors(many),
        ["3: vrf \"v4096\": there may be 4095 VRFs besides the default one; take one away"]
    );
}

#[test]
fn host_interfaces_are_in_the_namespace_of_their_vrf() {
    let text = "local turnpike = require 'turnpike'
turnpike.vrf 'blue' { namespace = 'b' }
turnpike.port 'left' { device = 'a', vrf = 'blue' }
turnpike.port 'right' { device = 'b', host = { netns = 'other' } }
turnpike.vlan 'left.7' { parent = 'left', id = 7, host = { netns = 'other' } }
turnpike.vlan 'left.8' { parent = 'left', id = 8, vrf = 'blue' }
turnpike.routes_from { 'kernel' }
";
    let config = read(text).unwrap_or_else(|errors| panic!("{errors}"));
    let places: Vec<_> = config
        .interfaces()
        .map(|(_, name, of)| (name, of.host.as_ref().and_then(|host| host.netns.as_deref())))
        .collect();
    let (blue, other) = (Some("b"), Some("other"));
    let expected = [("left", blue), ("right", other), ("left.7", other), ("left.8", blue)];
    assert_eq!(places, expected);
    let spaces: Vec<_> = config.interfaces().map(|(.., of)| of.space()).collect();
    let vrf = Some(config.vrfs[0].id);
    assert_eq!(spaces, [vrf, None, None, vrf]);
    for (from, to, expected) in [
        (
            "vrf = 'blue' }",
            "vrf = 'blue', host = { netns = 'c' } }",
            "3: port \"left\": host: netns: the host interfaces of VRF \"blue\" are in its namespace \"b\"; leave netns \
             out",
        ),
        (
            "namespace = 'b'",
            "namespace = 'other'",
            "2: vrf \"blue\": namespace \"other\" has the host interface of port \"right\" on line 4, which is in no VRF \
             with a namespace; use another namespace",
        ),
        (
            "namespace = 'b'",
            "namespace = 'b', table = 9",
            "2: vrf \"blue\": table: the VRF's routes are those of its namespace; take table or namespace away",
        ),
        (
            "turnpike.routes_from",
            "turnpike.vrf 'red' { namespace = 'b' } turnpike.routes_from",
            "7: vrf \"red\": namespace \"b\" is that of VRF \"blue\" on line 2; use another one",
        ),
    ] {
        assert_eq!(errors(&text.replacen(from, to, 1)), [expected], "{to}");
    }
    assert!(
        errors(&text.replace("'b' }\nturnpike.port", "'x/y' }\nturnpike.port"))[0]
            .contains("\"x/y\"")
    );
}

#[test]
fn a_gateway_is_sought_by_the_routes_of_its_vrf() {
    let alone = VRFS.replace(" table = 100 ", "").replace("turnpike.routes_from { 'kernel' }", "");
    let route = |vrf: &str, rest: &str| {
        format!(
            "turnpike.route '10.9.0.0/16' {{ via = '10.0.1.2', vrf = '{vrf}' }}\n\
                 turnpike.route '192.0.2.0/24' {{ via = '10.9.0.1', vrf = 'red'{rest} }}"
        )
    };
    assert!(read(&format!("{alone}{}", route("red", ""))).is_ok());
    let errors = errors(&format!("{alone}{}", route("blue", "")));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("9: route \"192.0.2.0/24\": via \"10.9.0.1\" is unreachable"));
    let leaks = route("blue", ", next_hop_vrf = 'blue'");
    assert!(read(&format!("{alone}{leaks}")).is_ok(), "{:?}", read(&format!("{alone}{leaks}")));
}

#[test]
fn a_rule_of_words_is_that_of_a_filter() {
    let config = read(PORTS).unwrap();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let spec = config.rule_of_words(&words(
        "proto=udp,tcp to_port=53,1024-2000 from=10.0.0.0/8 interface=right fragment=false",
    ));
    let filter = "turnpike.filter 'trace' { { proto = { 'udp', 'tcp' }, to_port = { 53, '1024-2000' }, \
                  from = '10.0.0.0/8', interface = 'right', fragment = false }, default = 'drop' }";
    let file = read(&format!("{PORTS}{filter}")).unwrap();
    assert_eq!(spec.unwrap().filter.rules[0].matches, file.filters[0].spec.filter.rules[0].matches);
    let flags = config.rule_of_words(&words("proto=tcp flags=syn,!ack")).unwrap();
    assert!(flags.filter.rules[0].matches.flags.is_some());
    for (text, error) in [
        ("name=x", "key \"name\" unknown"),
        ("action=drop", "key \"action\" unknown"),
        ("police=1kpps", "key \"police\" unknown"),
        ("state=new", "key \"state\" unknown"),
        ("proto", "\"proto\": expected KEY=VALUE"),
        ("from_set=none", "prefix_set \"none\" unknown"),
        ("from=10.0.0.1 to=::1", "no packet is both"),
    ] {
        let found = config.rule_of_words(&words(text)).unwrap_err();
        assert!(found.contains(error), "{text}: {found}");
    }
    let rule = config.rule_of_words(&words("family=ip4 interface=left")).unwrap();
    assert_eq!(rule.filter.rules[0].matches.interface, [0]);
}

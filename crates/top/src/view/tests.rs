use api::report::Status;
use serde_json::{Value as Json, json};

use super::*;

/// A sample taken so many milliseconds after the first.
pub fn sample(ms: u64, uptime_s: u64) -> Sample {
    let at = Duration::from_millis(ms);
    let counters = json!({
        "received": 0, "originated": 0, "replicated": 0, "sent": 0, "to_host": 0, "dropped": {}, "dropped_total": 0,
        "in_flight": 0, "unaccounted": 0,
    });
    Sample {
        status: Status { uptime_s, tsc_hz: 1000, version: "1".into(), ..Status::default() },
        counters: Timed { at, of: read(counters) },
        forwarders: Timed { at, ..Timed::default() },
        ports: Timed { at, ..Timed::default() },
        interfaces: None,
        flows: None,
        vrfs: None,
    }
}

fn read<T: serde::de::DeserializeOwned>(json: Json) -> T {
    serde_json::from_value(json).unwrap()
}

fn port(name: &str, [rx_packets, rx_bytes, missed]: [u64; 3], speed: u32) -> Port {
    read(json!({
        "name": name, "device": "d", "driver": "d", "mac": "m", "addresses": [], "link": "up", "link_by": "polled",
        "link_details": {"speed_mbps": speed, "promiscuous": false, "all_multicast": false, "groups": []},
        "mtu": 1500, "rx_queues": 1, "tx_queues": 1, "rx_packets": rx_packets, "rx_bytes": rx_bytes,
        "rx_missed": missed, "rx_nombuf": 0, "rx_errors": 0, "tx_packets": 0, "tx_bytes": 0, "tx_errors": 0,
        "dma_faults": 0,
    }))
}

fn interface(name: &str, parent: Option<&str>, [rx_packets, rx_bytes]: [u64; 2]) -> Interface {
    read(json!({
        "name": name, "kind": if parent.is_some() { "vlan" } else { "port" }, "parent": parent, "mac": "m",
        "addresses": [], "link": "up", "mtu": 1500, "rx_packets": rx_packets, "rx_bytes": rx_bytes, "tx_packets": 0,
        "tx_bytes": 0,
    }))
}

fn drops(sample: &mut Sample, drops: &[(&str, &str, u64)]) {
    for &(step, reason, count) in drops {
        let of = sample.counters.of.dropped_by_step.entry(step.into()).or_default();
        of.insert(reason.into(), count);
        sample.counters.of.dropped_total += count;
    }
}

fn view(samples: impl IntoIterator<Item = Sample>) -> View {
    let mut series = Series::default();
    samples.into_iter().for_each(|sample| series.push(sample, false));
    series.view().unwrap()
}

/// A table's rows in their usual order, as words.
fn rows(view: &View, panel: Panel) -> Vec<String> {
    let table = &view.tables[panel.index()];
    let rows = table.selected("", panel.usual_order());
    let line = |row: &&Row| row.values.iter().map(Value::shown).collect::<Vec<_>>().join("|");
    rows.iter().map(line).collect()
}

fn with_port(ms: u64, uptime_s: u64, counts: [u64; 3]) -> Sample {
    let mut sample = sample(ms, uptime_s);
    sample.ports.of = vec![port("wan", counts, 1000)];
    let interfaces = vec![
        interface("wan", None, [counts[0], counts[1]]),
        interface("wan.7", Some("wan"), [counts[0] / 2, counts[1] / 2]),
    ];
    sample.interfaces = Some(Timed { at: sample.ports.at, of: interfaces });
    sample
}

#[test]
fn rates_are_differences_by_the_time_between_samples() {
    let view = view([with_port(0, 5, [100, 6000, 3]), with_port(2000, 7, [1100, 106_000, 13])]);
    assert_eq!(
        rows(&view, Panel::Interfaces),
        // 500 frames of 100 bytes, with 24 more on the wire: 0.496 Mbit/s.
        ["wan|up|500|400k|0.0|0|0|0.0|5|0", "  wan.7|up|250|200k|-|0|0|-|-|-"]
    );
    assert_eq!(view.received.bits, Some(400_000.0));
}

#[test]
fn shares_count_the_wire_and_never_exceed_it() {
    // 125,000 frames of 976 bytes a second are 1 Gbit/s with what Ethernet adds.
    let view_of =
        |frames| view([with_port(0, 5, [0, 0, 0]), with_port(1000, 6, [frames, 976 * frames, 0])]);
    assert!(rows(&view_of(125_000), Panel::Interfaces)[0].contains("|100|"));
    assert!(rows(&view_of(62_500), Panel::Interfaces)[0].contains("|50.0|"));
    assert!(rows(&view_of(250_000), Panel::Interfaces)[0].contains("|100|"));
}

#[test]
fn a_first_sample_has_no_rates() {
    let view = view([with_port(0, 5, [100, 6000, 3])]);
    assert_eq!(rows(&view, Panel::Interfaces)[0], "wan|up|-|-|-|-|-|-|-|-");
    assert_eq!((view.received, view.drops), (Throughput::default(), None));
}

#[test]
fn counters_that_go_back_are_unknown_for_one_sample() {
    let mut samples = vec![with_port(0, 5, [100, 6000, 3]), with_port(1000, 6, [20, 9000, 3])];
    let first = view(samples.clone());
    assert_eq!(rows(&first, Panel::Interfaces)[0], "wan|up|-|-|-|-|-|-|0|0");
    assert_eq!(first.received.bits, None);
    samples.push(with_port(2000, 7, [30, 9100, 3]));
    assert_eq!(rows(&view(samples), Panel::Interfaces)[0], "wan|up|10|800|0.0|0|0|0.0|0|0");
}

#[test]
fn another_router_has_rates_of_its_own() {
    let (old, new) = (with_port(0, 50, [100, 6000, 3]), with_port(1000, 1, [200, 9000, 3]));
    // It is younger.
    let by_age = view([old.clone(), new]);
    assert_eq!(rows(&by_age, Panel::Interfaces)[0], "wan|up|-|-|-|-|-|-|-|-");
    // The connection was lost, and the router may have been another for long.
    let mut series = Series::default();
    series.push(old, true);
    series.push(with_port(90_000, 60, [200, 9000, 3]), true);
    assert_eq!(rows(&series.view().unwrap(), Panel::Interfaces)[0], "wan|up|-|-|-|-|-|-|-|-");
}

#[test]
fn another_configuration_goes_on_and_has_its_number_shown() {
    let (old, mut new) = (with_port(0, 5, [0, 0, 0]), with_port(1000, 6, [10, 1000, 0]));
    (new.status.configuration, new.status.unconfirmed) = (8, true);
    let mut added = port("lan", [500, 50_000, 0], 0);
    added.link = "down".into();
    new.ports.of.push(added);
    new.interfaces.as_mut().unwrap().of.push(interface("lan", None, [500, 50_000]));
    let view = view([old, new]);
    assert_eq!(view.title, "turnpike 1  up 00:00:06  configuration 8 (unconfirmed)");
    let rows = rows(&view, Panel::Interfaces);
    assert_eq!(
        (&*rows[0], &*rows[2]),
        ("wan|up|10|8.00k|0.0|0|0|0.0|0|0", "lan|up|-|-|-|-|-|-|-|-")
    );
    assert_eq!(view.received.bits, Some(8000.0));
}

#[test]
fn drops_are_listed_the_most_recent_first() {
    let mut samples = [sample(0, 1), sample(1000, 2), sample(3000, 4)];
    drops(&mut samples[0], &[("ttl", "old", 7), ("x", "often", 1), ("x", "seldom", 1)]);
    drops(&mut samples[1], &[("ttl", "old", 7), ("x", "often", 1), ("x", "seldom", 2)]);
    drops(&mut samples[2], &[("ttl", "old", 7), ("x", "often", 9), ("x", "seldom", 2)]);
    drops(&mut samples[2], &[("new", "now", 100), ("new", "never", 0)]);
    let view = view(samples);
    assert_eq!(
        rows(&view, Panel::Drops),
        ["50|0s|100|new|now", "4|0s|9|x|often", "0|2s|2|x|seldom", "0|-|7|ttl|old"]
    );
    assert_eq!(view.drops, Some(54.0));
}

#[test]
fn a_router_without_drops_says_so() {
    assert_eq!(
        view([sample(0, 1)]).tables[Panel::Drops.index()].note.as_deref(),
        Some("no packet was dropped")
    );
}

#[test]
fn forwarders_show_the_share_of_time_with_packets() {
    let with = |ms, busy_cycles, packets, bursts| {
        let waiting = json!({
            "wait": "poll", "without_interrupts": [], "blocking": false, "sleeps": 0, "blocks": 0, "blocked_ms": 0,
            "woken_by_receive": 0, "woken_by_ring": 0, "woken_by_control": 0,
        });
        let one = json!({
            "number": 0, "core": 3, "busy_percent": 99.0, "packets": packets, "bursts": bursts,
            "busy_cycles": busy_cycles, "idle_cycles": 0, "waiting": waiting, "spread_out": 0, "spread_in": 0,
            "rx": ["wan:0", "lan:0"], "tx": [],
        });
        let mut sample = sample(ms, ms / 1000);
        sample.forwarders.of.forwarders = vec![read(one)];
        sample
    };
    // 1000 cycles are a second: it blocked for most of the time, which counts neither as busy nor as idle.
    let view = view([with(0, 10, 0, 0), with(2000, 510, 960, 30)]);
    assert_eq!(rows(&view, Panel::Forwarders), ["0|3|25.0|480|32|poll|runs|0|wan:0 lan:0"]);
    let meter =
        Meter { name: "0".into(), busy: Some(0.25), packets: Some(480.0), fill: Some(32.0) };
    assert_eq!(view.meters, [meter]);
}

fn flow(from: &str, packets: u64, age_s: u64) -> Json {
    json!({
        "vrf": "default", "protocol": "udp", "from": from, "to": "10.0.2.2:53", "state": "assured",
        "packets_there": packets, "bytes_there": 100 * packets, "packets_back": packets, "bytes_back": 0,
        "age_s": age_s, "idle_s": 0,
    })
}

fn with_flows(ms: u64, room: usize, flows: Vec<Json>) -> Sample {
    let mut sample = sample(ms, ms / 1000);
    let total = flows.len();
    let of = json!({
        "room": room, "entered": 0, "pushed_out": 0, "refused": 0, "total": total, "flows": flows,
    });
    sample.flows = Some(Timed { at: sample.counters.at, of: read(of) });
    sample
}

#[test]
fn flows_are_sorted_by_their_rate() {
    let first = vec![flow("a:1", 1000, 60), flow("b:1", 10, 60)];
    let second =
        vec![flow("a:1", 1001, 61), flow("b:1", 20, 61), flow("c:1", 4, 0), flow("d:1", 99, 70)];
    let view = view([with_flows(0, 9, first), with_flows(1000, 9, second)]);
    assert_eq!(
        rows(&view, Panel::Flows),
        [
            "8.00k|20|udp|b:1|10.0.2.2:53|assured|1m|default",
            // It has begun since.
            "3.20k|8|udp|c:1|10.0.2.2:53|assured|0s|default",
            "800|2|udp|a:1|10.0.2.2:53|assured|1m|default",
            // It was there before, but not among those shown.
            "-|-|udp|d:1|10.0.2.2:53|assured|1m|default",
        ]
    );
}

#[test]
fn a_router_that_tracks_no_flows_says_why_there_are_none() {
    let note = |sample| view([sample]).tables[Panel::Flows.index()].note.clone().unwrap();
    assert!(note(with_flows(0, 0, vec![])).contains("no filter has a rule with `state`"));
    assert!(note(with_flows(0, 9, vec![])).contains("no flow is tracked now"));
    let view = view([sample(0, 0)]);
    let pending = |panel: Panel| view.tables[panel.index()].is_pending;
    assert_eq!(Panel::ALL.map(pending), [true, false, false, true, true]);
}

#[test]
fn routes_are_counted_by_vrf_family_and_source() {
    let with = |ms, changes: u64| {
        let vrf = json!({
            "name": "blue", "ports": [], "routes": {"ipv4": 5, "ipv6": 1}, "fib": {"ipv4": 4, "ipv6": 1},
            "sources": {"kernel": {"ipv4": 3, "ipv6": 0}, "fpm": {"ipv4": 2, "ipv6": 1}},
            "changes": {"ipv4": changes, "ipv6": 7},
        });
        let mut sample = sample(ms, ms / 1000);
        sample.vrfs = Some(Timed { at: sample.counters.at, of: vec![read(vrf)] });
        sample
    };
    assert_eq!(
        rows(&view([with(0, 10), with(500, 60)]), Panel::Routes),
        [
            "blue|ipv4|in use|4|100",
            "blue|ipv4|fpm|2|",
            "blue|ipv4|kernel|3|",
            "blue|ipv6|in use|1|0",
            "blue|ipv6|fpm|1|",
        ]
    );
}

#[test]
fn panels_are_read_by_their_names() {
    for panel in Panel::ALL {
        assert_eq!(panel.to_string().parse(), Ok(panel));
        assert_eq!(Panel::ALL[panel.index()], panel);
    }
    let unknown = "ports".parse::<Panel>().unwrap_err();
    assert_eq!(
        unknown,
        "no panel of this name; known: interfaces, forwarders, drops, flows, routes"
    );
}

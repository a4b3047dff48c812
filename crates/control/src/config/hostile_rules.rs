//! Filters and packets made from bytes, for tests: rules as a configuration has them, read by its reader, compiled, and
//! compared with the walk along the list of rules; and the rules that a device is given, compared with the filter.
//!
//! The bytes choose; the same bytes make the same rules and packets. Texts of bytes are among the values, so that many
//! rules are refused.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use acl::offload::{Port, Treated, offload};
use acl::{Action, BATCH, Classifier, Family, Fields, Filter, FilterAddress, Key, SetReaders};
use acl::{State, walk, walk_from};
use dataplane::catalogue::Catalogue;
use dataplane::filters::{FilterSpec, Treatment};
use wire::pattern::{Masked, Tag, Tags};

use super::{Config, ConfigErrors, Limits, parse};

/// Most rules of a filter: within a word of the classifier, and beyond.
const RULES: usize = 80;

/// A key and its values as Lua, the last of which is wrong.
type Values = (&'static str, &'static [&'static str]);

/// Keys that go with all others but those of IP packets with Ethertypes.
const OF_FRAMES: [Values; 4] = [
    ("from_mac", &["02:00:00:00:00:01", "02:00:00:00:00:02", "ff:ff:ff:ff:ff:ff", "x"]),
    ("to_mac", &["02:00:00:00:00:01", "02:00:00:00:00:03", "x"]),
    ("priority", &["0", "3", "5", "7", "8"]),
    ("interface", &["wan", "lan", "wan.7", "nowhere"]),
];

const OF_PACKETS: [Values; 11] = [
    (
        "from",
        &["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "2001:db8::/32", "0.0.0.0/0", "10.0.0.1/8"],
    ),
    ("to", &["10.0.0.0/8", "192.0.2.0/24", "2001:db8:1::/48", "255.255.255.255", "fe80::/129"]),
    ("dscp", &["ef", "0", "af11", "63", "64"]),
    ("ttl", &["1", "0-5", "255", "64-128", "256"]),
    ("length", &["60-100", "40", "46-9000", "65536"]),
    ("routing", &["0", "srh", "253", "x"]),
    ("extension", &["routing", "ah", "too-many", "fragment", "x"]),
    ("state", &["new", "established", "related", "x"]),
    ("family", &["ip4", "ip6", "ip5"]),
    ("from", &["10.1.2.3", "10.9.9.0/24", "::/0", "x"]),
    ("proto", &["tcp", "udp", "gre", "44", "icmp", "256"]),
];

const PORTS: [Values; 2] = [
    ("from_port", &["0", "22", "1024-65535", "65535", "80-79"]),
    ("to_port", &["53", "0-1023", "8000-8100", "22", "65536"]),
];

/// One of these makes a rule of packets with the header of their upper layer, or of other frames.
const KINDS: [(&str, &[Values]); 7] = [
    ("", &[]),
    ("", &[]),
    ("proto = { \"tcp\", \"udp\" }, ", &PORTS),
    ("proto = \"udp\", ", &PORTS),
    ("proto = \"tcp\", ", &[("flags", &["syn,!ack", "ack", "fin", "syn,!syn"])]),
    ("", &[("icmp", &["echo-request", "0", "135", "x"])]),
    ("", &[("icmp6", &["echo-request", "135", "router-advertisement", "x"])]),
];

const ETHERTYPES: Values = ("ethertype", &["lldp", "0x9000", "arp", "0x8100"]);

const FRAGMENTS: [&str; 4] = ["true", "false", "\"first\"", "\"later\""];

const ACTIONS: [&str; 6] = ["accept", "drop", "continue", "reject", "to-host", "no"];

const POLICES: [&str; 3] = [
    "\"10kpps per source/24\"",
    "{ rate = \"1mbit\", excess = \"1mbit\", aware = true }",
    "{ rate = \"1kpps\", peak = \"2kpps\", aware = { yellow = { 10, 12 }, red = \"cs1\" } }",
];

/// Bytes to choose by; zeros at their end.
struct Bytes<'b>(&'b [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let [first, rest @ ..] = self.0 else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    fn pick<'v, T>(&mut self, of: &'v [T]) -> &'v T {
        &of[self.below(of.len())]
    }

    fn is(&mut self, one_of: usize) -> bool {
        self.below(one_of) == 1
    }
}

/// Returns a configuration with a filter of rules.
pub fn hostile_rules(bytes: &[u8]) -> String {
    let mut bytes = Bytes(bytes);
    let mut text = String::from(
        "local turnpike = require \"turnpike\"\n\
         turnpike.port \"wan\" { device = \"net_null0\", filter = \"f\" }\n\
         turnpike.port \"lan\" { device = \"net_null1\" }\n\
         turnpike.vlan \"wan.7\" { parent = \"wan\", id = 7, filter = \"f\" }\n\
         turnpike.filter \"f\" {\n",
    );
    while !bytes.0.is_empty() && text.lines().count() < RULES {
        text += &rule(&mut bytes);
    }
    text += "}\n";
    text
}

fn rule(bytes: &mut Bytes<'_>) -> String {
    let mut text = String::from("  { ");
    if bytes.is(16) {
        text += &setting(bytes, &ETHERTYPES);
    } else {
        packets(bytes, &mut text);
    }
    if bytes.is(3) {
        let values = bytes.pick(&OF_FRAMES);
        text += &setting(bytes, values);
    }
    // The last one is no action.
    let action = if bytes.is(250) { "no" } else { ACTIONS[bytes.below(5)] };
    let _ = writeln!(text, "action = \"{action}\" }},");
    text
}

/// Adds conditions of IP packets, and what else is done with them.
fn packets(bytes: &mut Bytes<'_>, text: &mut String) {
    let (protocol, values) = bytes.pick(&KINDS);
    text.push_str(protocol);
    if let [_, ..] = values {
        let values = bytes.pick(values);
        *text += &setting(bytes, values);
    }
    // Keys of the same name as others are refused by no one: the last one counts.
    for _ in 0..bytes.below(3) {
        let count = if protocol.is_empty() && values.is_empty() { OF_PACKETS.len() } else { 2 };
        let values = bytes.pick(&OF_PACKETS[..count]);
        *text += &setting(bytes, values);
    }
    if bytes.is(12) {
        let _ = write!(text, "fragment = {}, ", bytes.pick(&FRAGMENTS));
    }
    if bytes.is(12) {
        let _ = write!(text, "police = {}, ", bytes.pick(&POLICES));
    }
    if bytes.is(16) {
        let _ = write!(text, "log = true, ");
    }
}

/// Returns a key with a value, or with a list where the reader takes one.
fn setting(bytes: &mut Bytes<'_>, (key, values): &Values) -> String {
    let single = ["flags", "ttl", "length", "family"].contains(key);
    let count = if single { 1 } else { 1 + bytes.below(3) };
    let list: Vec<String> = (0..count).map(|_| value(bytes, values)).collect();
    match single {
        true => format!("{key} = {}, ", list[0]),
        false => format!("{key} = {{ {} }}, ", list.join(", ")),
    }
}

/// Returns a known value, or now and then a wrong one or the text of some bytes.
fn value(bytes: &mut Bytes<'_>, known: &[&str]) -> String {
    match bytes.below(250) {
        1 => {
            let text: String =
                (0..bytes.below(12)).map(|_| format!("\\{:03}", bytes.byte())).collect();
            format!("\"{text}\"")
        }
        2 => format!("\"{}\"", known[known.len() - 1]),
        _ => format!("\"{}\"", known[bytes.below(known.len() - 1)]),
    }
}

fn read(text: &str) -> Result<Config, ConfigErrors> {
    parse(Path::new("fuzz"), text, Limits::default(), &Catalogue::default())
}

/// Reads the rules that these bytes make, and compares the compiled filter, and the rules for a device, with the list of
/// rules on packets of the same bytes. Returns true if the rules were not refused.
///
/// # Panics
/// They differ, or an error lacks its message.
pub fn check_rules(bytes: &[u8]) -> bool {
    let (rules, packets) = bytes.split_at(bytes.len() / 2);
    let text = hostile_rules(rules);
    let config = match read(&text) {
        Ok(config) => config,
        Err(errors) => {
            assert!(errors.0.iter().all(|error| !error.message.is_empty()), "{text}");
            return false;
        }
    };
    let spec = &config.filters[0].spec;
    let mut packets = Bytes(packets);
    for interface in config.interfaces().filter(|(_, name, _)| *name != "lan").map(|(id, ..)| id) {
        let number = interface.index() as u16;
        let tags = if interface.port().is_some() { Tags::None } else { Tags::One(TAG) };
        let frames: Vec<Frame> =
            (0..BATCH).map(|_| Frame::new(&mut packets, (number, tags))).collect();
        compare::<Ipv4Addr>(&spec.filter, &frames);
        compare::<Ipv6Addr>(&spec.filter, &frames);
        check_device(spec, &frames, &Port { interface: number, tags, ..Port::default() });
    }
    true
}

/// The tag of the VLAN.
const TAG: Tag = Tag { protocol: 0x8100, control: Masked { value: 7, mask: 0x0fff } };

struct Frame {
    /// Without tags.
    bytes: Vec<u8>,
    /// As it is on the wire.
    tagged: Vec<u8>,
    family: Family,
    key: Key,
}

impl Frame {
    fn new(bytes: &mut Bytes<'_>, (interface, tags): (u16, Tags)) -> Self {
        let family = *bytes.pick(&Family::ALL);
        let frame = frame(bytes, family);
        let priority = *bytes.pick(&[0u8, 0, 3, 5, 7]);
        let tag = |id: u16| {
            let control = u16::from(priority) << 13 | id;
            [&TAG.protocol.to_be_bytes()[..], &control.to_be_bytes()].concat()
        };
        let tag = match tags {
            Tags::One(own) => tag(own.control.value),
            _ if priority > 0 => tag(0),
            _ => Vec::new(),
        };
        let key = match family {
            Family::Ip4 => Key::of_ip4(&frame, frame.len(), interface),
            Family::Ip6 => Key::of_ip6(&frame, frame.len(), interface),
        };
        let state = *bytes.pick(&[State::New, State::New, State::Established, State::Related]);
        let tagged = [&frame[..12], &tag, &frame[12..]].concat();
        Self { bytes: frame, tagged, family, key: key.with_priority(priority).with_state(state) }
    }
}

/// Returns a frame of few values, so that rules match, with some bytes of its headers replaced.
fn frame(bytes: &mut Bytes<'_>, family: Family) -> Vec<u8> {
    let mut frame =
        vec![2, 0, 0, 0, 0, 1 + bytes.below(4) as u8, 2, 0, 0, 0, 0, 1 + bytes.below(3) as u8];
    let protocol = *bytes.pick(&[6u8, 17, 17, 1, 58, 47, 44, 43, 51]);
    let class = *bytes.pick(&[0u8, 46 << 2, 10 << 2, 0xff]);
    let ttl = *bytes.pick(&[64u8, 1, 255]);
    match family {
        Family::Ip4 => {
            frame.extend([0x08, 0, 0x45, class, 0, 46, 0, 0]);
            frame.extend(bytes.pick(&[[0u8, 0], [0, 0], [0x20, 0], [0, 9]]));
            frame.extend([ttl, protocol, 0, 0]);
            frame.extend(bytes.pick(&[[10u8, 1, 2, 3], [10, 9, 9, 9], [192, 0, 2, 1]]));
            frame.extend(bytes.pick(&[[10u8, 1, 2, 3], [192, 0, 2, 9], [255; 4]]));
        }
        Family::Ip6 => {
            frame.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0, 0, 26, protocol, ttl]);
            for last in [1, 2] {
                let site = [0x20, 0x01, 0x0d, 0xb8, 0, bytes.byte() % 3, 0, 0];
                frame.extend(site);
                frame.extend([0, 0, 0, 0, 0, 0, 0, last]);
            }
        }
    }
    let ports = [[0u8, 22], [0, 53], [0, 0], [0x1f, 0x50], [0xff, 0xff], [8, 0], [135, 0]];
    frame.extend([*bytes.pick(&ports), *bytes.pick(&ports)].concat());
    frame.extend([0; 8]);
    frame.extend([0x50, *bytes.pick(&[0x02, 0x12, 0x10, 0])]);
    frame.resize(80, 0);
    for _ in 0..bytes.below(3) {
        let place = 14 + bytes.below(48);
        frame[place] = bytes.byte();
    }
    // The lengths that validation has found right.
    frame[14] = [0x45, 0x60 | frame[14] & 0xf][family as usize];
    frame
}

/// The compiled filter finds the rules that the walk finds, and those after them.
fn compare<A: FilterAddress>(filter: &Filter, frames: &[Frame]) {
    let keys: Vec<&Key> = frames.iter().filter(|of| of.family == A::OF).map(|of| &of.key).collect();
    let none = SetReaders::none();
    let classifier = Classifier::<A>::new(filter, &none).expect("the reader has checked its size");
    let mut fields = Fields::default();
    fields.want(filter);
    keys.iter().for_each(|key| fields.push(key));
    let mut found = [0; BATCH];
    classifier.classify(&fields, &mut found);
    let end = filter.rules.len();
    for (place, (key, mut found)) in keys.into_iter().zip(found).enumerate() {
        let mut first = 0;
        loop {
            let walked = walk_from(filter, &none, (A::OF, key), first).unwrap_or(end);
            assert_eq!(found as usize, walked, "{key:?}\n{filter:?}");
            if walked == end {
                break;
            }
            first = walked + 1;
            found = classifier.next(&fields, place, found);
        }
    }
}

/// A device that has the rules that it can hold drops no packet that the filter does not drop.
fn check_device(spec: &FilterSpec, frames: &[Frame], port: &Port) {
    let treated = |rule: usize| {
        let Treatment { police, log, .. } = spec.treatments[rule];
        let what = police.map(|_| "police").or(log.then_some("log"));
        Treated { by_software: what, steers: false }
    };
    let offloads = offload(&spec.filter, treated, port);
    for frame in frames {
        let held = offloads.iter().position(|of| of.all().any(|one| one.fits(&frame.tagged)));
        let Some(held) = held else { continue };
        let discovery = frame.family == Family::Ip6
            && (frame.bytes[20], frame.bytes[21]) == (58, 255)
            && (133..=137).contains(&frame.bytes[54]);
        assert!(!discovery, "not filtered: {frame:?}", frame = frame.bytes);
        let decides = walk(&spec.filter, frame.family, &frame.key);
        let action = decides.map(|rule| spec.filter.rules[rule].action);
        assert_eq!(action, Some(Action::Drop), "rule {held} {decides:?} {:?}", frame.key);
        assert_eq!(decides.map(|rule| treated(rule).by_software), Some(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn compiled_filters_and_devices_decide_as_the_list_of_rules(
            bytes in proptest::collection::vec(0_u8.., 200..3000),
        ) {
            check_rules(&bytes);
        }
    }

    #[test]
    fn many_filters_are_read_and_held_by_devices() {
        let mut random = fib::synthetic::Random::new(7);
        let mut bytes = || (0..300).map(|_| random.word() as u8).collect::<Vec<_>>();
        let (mut read_ones, mut held) = (0, 0);
        for _ in 0..300 {
            let bytes = bytes();
            if !check_rules(&bytes) {
                continue;
            }
            read_ones += 1;
            let config = read(&hostile_rules(&bytes[..150])).unwrap();
            let rules = &config.filters[0].spec.filter;
            let offloads = offload(rules, |_| Treated::default(), &Port::default());
            held += offloads.iter().filter(|of| of.all().next().is_some()).count();
        }
        assert!(read_ones > 30 && held > 30, "{read_ones} {held}");
    }
}

//! Whole listings and their conversions. The listings were printed by nft 1.0.6 and iptables-save 1.8.9.

use std::fs;
use std::path::Path;

use convert::{Converted, Format, convert};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn converted(format: Format, file: &str) -> Converted {
    convert(format, file, &read(file)).unwrap()
}

/// Checks that the Lua of `file` is that in `wanted`.
fn check(format: Format, file: &str, wanted: &str) {
    let lua = converted(format, file).lua;
    if lua != read(wanted) {
        let place = lua.lines().zip(read(wanted).lines()).position(|(one, other)| one != other);
        panic!("{file} is not {wanted} from line {:?} on:\n{lua}", place.map(|line| line + 1));
    }
}

#[test]
fn nftables() {
    check(Format::Nftables, "nftables.txt", "nftables.lua");
}

#[test]
fn iptables() {
    check(Format::Iptables, "iptables.txt", "iptables.lua");
}

#[test]
fn text_and_json_say_the_same() {
    let rules = |file| {
        let converted = converted(Format::Nftables, file);
        let lines = converted.lua.lines().filter(|line| !line.trim_start().starts_with("--"));
        (lines.map(str::to_owned).collect::<Vec<_>>(), converted.left.len())
    };
    assert_eq!(rules("nftables.txt"), rules("nftables.json"));
}

/// A truncated listing is either an error or is read; it never panics.
#[test]
fn no_part_of_a_listing_is_a_crash() {
    let files = [
        (Format::Nftables, "nftables.txt"),
        (Format::Nftables, "nftables.json"),
        (Format::Iptables, "iptables.txt"),
    ];
    for (format, file) in files {
        let text = read(file);
        for (end, _) in text.char_indices().step_by(7) {
            drop(convert(format, file, &text[..end]));
            drop(convert(format, file, &text[end..]));
        }
    }
}

/// Rules of the Lua, without comments.
fn rules_of(converted: &Converted) -> Vec<&str> {
    let lines = converted.lua.lines().map(str::trim);
    lines.filter(|line| line.starts_with("{ ") || line.starts_with("default")).collect()
}

fn nft(hook: &str, rules: &str) -> Converted {
    let text = format!(
        "table inet f {{\n\tchain c {{\n\t\ttype filter hook {hook} priority filter; policy accept;\n{rules}\t}}\n}}\n"
    );
    convert(Format::Nftables, "rules", &text).unwrap()
}

#[test]
fn a_change_of_the_dscp_becomes_a_mark_and_packets_go_on() {
    let rules =
        "\t\tudp dport 53 ip dscp set cs1\n\t\tip6 dscp set 0x2e accept\n\t\ttcp dport 22 drop\n";
    let converted = nft("forward", rules);
    assert_eq!(
        rules_of(&converted),
        [
            "{ family = \"ip4\", proto = \"udp\", to_port = 53, mark = { dscp = 8 }, action = \"continue\" },",
            "{ family = \"ip6\", mark = { dscp = 46 }, action = \"continue\" },",
            "{ family = \"ip6\", action = \"accept\" },",
            "{ proto = \"tcp\", to_port = 22, action = \"drop\" },",
            "default = \"accept\",",
        ]
    );
    assert_eq!(converted.left, []);
    let json = r#"{"nftables": [
        {"chain": {"family": "inet", "table": "f", "name": "c", "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "f", "chain": "c", "handle": 3, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 53}},
            {"mangle": {"key": {"payload": {"protocol": "ip", "field": "dscp"}}, "value": "cs1"}}]}}]}"#;
    let json = convert(Format::Nftables, "rules", json).unwrap();
    assert_eq!(rules_of(&json)[0], rules_of(&converted)[0]);
    let mangle = "*mangle\n:FORWARD ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
        -A FORWARD -p udp -m udp --dport 53 -j DSCP --set-dscp 0x08\n\
        -A FORWARD -j MARK --set-xmark 0x1/0xffffffff\n\
        -A POSTROUTING -j DSCP --set-dscp 0x08\nCOMMIT\n\
        *filter\n:FORWARD DROP [0:0]\n-A FORWARD -p udp -j ACCEPT\nCOMMIT\n";
    let mangle = convert(Format::Iptables, "rules", mangle).unwrap();
    assert_eq!(
        rules_of(&mangle),
        [
            "{ family = \"ip4\", proto = \"udp\", to_port = 53, mark = { dscp = 8 }, action = \"continue\" },",
            "{ family = \"ip4\", proto = \"udp\", action = \"accept\" },",
            "{ family = \"ip4\", action = \"drop\" },",
            "{ family = \"ip6\", action = \"accept\" },",
            "default = \"drop\",",
        ]
    );
    let left: Vec<_> = mangle.left.iter().map(|left| (&*left.place, left.matters)).collect();
    assert_eq!(left, [("line 6", true), ("line 5", true)]);
}

#[test]
fn marks_that_a_filter_cannot_make_are_named() {
    for (hook, rules, reason) in [
        (
            "forward",
            "\t\tip dscp cs2 drop\n\t\tip dscp set cs1\n",
            "it changes the DSCP, which rules match",
        ),
        (
            "input",
            "\t\tip dscp set cs1\n\t\tudp dport 5 drop\n",
            "packets for the router are not marked",
        ),
        ("forward", "\t\tlimit rate 5/second ip dscp set cs1\n", "it marks packets within a rate"),
        ("forward", "\t\tip dscp set cs1 udp dport 5\n", "a condition behind its mark"),
        ("forward", "\t\tip ttl set 5\n", "\"ip ttl set 5\" has no counterpart"),
    ] {
        let converted = nft(hook, rules);
        let said: Vec<_> = converted.left.iter().filter(|left| left.matters).collect();
        assert!(said.len() == 1 && said[0].reason.contains(reason), "{rules}: {said:?}");
        assert!(!converted.lua.contains("mark = "), "{}", converted.lua);
    }
    let many: String =
        (1..=65).map(|port| format!("\t\tudp dport {port} ip dscp set cs1\n")).collect();
    let converted = nft("forward", &many);
    assert_eq!(converted.lua.matches("mark = ").count(), 64);
    assert!(
        converted.left[0].reason.contains("a filter may have 64 rules"),
        "{:?}",
        converted.left
    );
}

#[test]
fn fragments_are_told_apart() {
    let rules = "\t\tip frag-off & 0x1fff != 0 drop\n\t\tip frag-off & 0x1fff == 0 udp dport 5 drop\n\
        \t\tip frag-off & 0x3fff != 0 accept\n\t\tip frag-off & 0x2000 != 0 drop\n";
    let converted = nft("forward", rules);
    assert_eq!(
        rules_of(&converted),
        [
            "{ family = \"ip4\", fragment = \"later\", action = \"drop\" },",
            "{ family = \"ip4\", proto = \"udp\", to_port = 5, fragment = false, action = \"drop\" },",
            "{ family = \"ip4\", proto = \"udp\", to_port = 5, fragment = \"first\", action = \"drop\" },",
            "{ family = \"ip4\", fragment = true, action = \"accept\" },",
            "default = \"accept\",",
        ]
    );
    assert!(
        converted.left[0].reason.contains("of \"ip frag-off\" only & 0x3fff"),
        "{:?}",
        converted.left
    );
}

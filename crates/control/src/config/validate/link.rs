//! `link = { … }` of a port: speed, duplex, autonegotiation, flow control, error correction.

use dataplane::port::{Fec, LinkWish, Pause};

use super::super::value::{Fields, Value};

const EXPECTED: &str = "{ speed = \"1G\", autoneg = false, pause = \"none\", fec = \"rs\" }";
const KNOWN: &[&str] = &["speed", "duplex", "autoneg", "pause", "fec"];

/// Notations of speeds, with the speed in Mb/s.
const SPEEDS: &[(&str, u32)] = &[
    ("10M", 10),
    ("100M", 100),
    ("1G", 1000),
    ("2.5G", 2500),
    ("5G", 5000),
    ("10G", 10_000),
    ("20G", 20_000),
    ("25G", 25_000),
    ("40G", 40_000),
    ("50G", 50_000),
    ("56G", 56_000),
    ("100G", 100_000),
    ("200G", 200_000),
    ("400G", 400_000),
];

const PAUSES: &[(&str, Pause)] =
    &[("none", Pause::Off), ("rx", Pause::Rx), ("tx", Pause::Tx), ("full", Pause::Full)];

const FECS: &[(&str, Fec)] =
    &[("none", Fec::Off), ("auto", Fec::Auto), ("base-r", Fec::BaseR), ("rs", Fec::Rs)];

/// Reads the requested properties of a port's link. Only the device can tell whether it supports
/// them.
pub(super) fn read(fields: &mut Fields<'_, '_>) -> LinkWish {
    let Some(value) = fields.get("link") else { return LinkWish::default() };
    let Value::Table(table) = value else {
        fields.error("link", format!("link: expected {EXPECTED}, got {value}"));
        return LinkWish::default();
    };
    let mut fields = fields.nested("link", table, KNOWN);
    fields.refuse_items();
    let link = LinkWish {
        speed: speed(&mut fields),
        half_duplex: half_duplex(&mut fields),
        fixed: !fields.flag_or("autoneg", true),
        pause: one_of(&mut fields, "pause", PAUSES),
        fec: one_of(&mut fields, "fec", FECS),
    };
    if link.fixed && link.speed.is_none() {
        fields.error(
            "autoneg",
            "autoneg = false: a link that does not negotiate needs its speed; write speed = \"1G\"",
        );
    }
    if link.half_duplex && !matches!(link.speed, Some(10 | 100)) {
        fields.error("duplex", "duplex \"half\": only links of 10M and 100M have it; write speed = \"100M\", or leave it out");
    }
    link
}

fn speed(fields: &mut Fields<'_, '_>) -> Option<u32> {
    let value = fields.get("speed")?;
    let found = SPEEDS.iter().find(|(word, mbps)| match value {
        Value::Text(text) => text == word || *text == mbps.to_string(),
        other => super::super::value::whole_number(other, &(u64::from(*mbps)..=u64::from(*mbps)))
            .is_some(),
    });
    if found.is_none() {
        let words: Vec<_> = SPEEDS.iter().map(|(word, _)| *word).collect();
        fields.error(
            "speed",
            format!("speed {value}: unknown; known: {}, or the number of Mb/s", words.join(", ")),
        );
    }
    found.map(|(_, mbps)| *mbps)
}

fn half_duplex(fields: &mut Fields<'_, '_>) -> bool {
    one_of(fields, "duplex", &[("full", false), ("half", true)]).unwrap_or(false)
}

/// Reads one of these words and returns its value.
fn one_of<T: Copy>(fields: &mut Fields<'_, '_>, key: &str, all: &[(&str, T)]) -> Option<T> {
    let words: Vec<_> = all.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    let text = fields.text(key, &words.join(" or "))?;
    let found = all.iter().find(|(word, _)| *word == text);
    if found.is_none() {
        fields.error(
            key,
            format!("{key} \"{text}\" unknown; known: {}", words.join(", ").replace('"', "")),
        );
    }
    found.map(|(_, value)| *value)
}

//! The keys `queue` and `shape` of interfaces.

use dataplane::transmit::codel::CodelConfig;
use dataplane::transmit::drr::CLASSES;
use dataplane::transmit::frame::Class;
use dataplane::transmit::red::RedConfig;
use dataplane::transmit::shape::Shape;
use dataplane::transmit::{Discipline, LENGTH, LENGTH_MOST, QueueConfig, WEIGHTS};

use super::super::value::{Fields, Value};
use super::filters::amount;

/// Bytes of Ethernet in addition to an IP packet: header and tag.
const AROUND: u64 = 18;

/// Fraction of a second that a default burst lasts at the rate.
const BURST_PART: u64 = 250;

const KEYS: &[&str] = &[
    "length",
    "discipline",
    "min",
    "max",
    "percent",
    "ecn",
    "target_us",
    "interval_us",
    "weights",
];

/// Reads `queue = { length = 1000, discipline = "codel" }`.
pub(super) fn queue(fields: &mut Fields<'_, '_>) -> Option<QueueConfig> {
    let mut of = fields.table("queue", KEYS)?;
    let length = of.number("length", 1..=LENGTH_MOST.into()).unwrap_or(LENGTH.into()) as u32;
    let name = of.text("discipline", "\"fifo\", \"red\", \"codel\" or \"drr\"").unwrap_or("fifo");
    let (keys, discipline): (&[&str], _) = match name {
        "fifo" => (&[], Discipline::Fifo),
        "red" => (&["min", "max", "percent", "ecn"], red(&mut of, length)),
        "codel" => (&["target_us", "interval_us", "ecn"], codel(&mut of)),
        "drr" => (&["weights"], Discipline::Drr(weights(&mut of))),
        other => {
            let message = format!("discipline \"{other}\" unknown; known: fifo, red, codel, drr");
            of.error("discipline", message);
            return None;
        }
    };
    let foreign: Vec<_> = KEYS[2..].iter().copied().filter(|key| !keys.contains(key)).collect();
    of.refuse(&foreign, |key| {
        let owner = match key {
            "target_us" | "interval_us" => "codel",
            "weights" => "drr",
            "ecn" => "red and codel",
            _ => "red",
        };
        format!(
            "{key}: a setting of discipline {owner}, and the discipline is {name}; leave it out"
        )
    });
    Some(QueueConfig { length, discipline })
}

fn red(of: &mut Fields<'_, '_>, length: u32) -> Discipline {
    let most = of.number("max", 2..=LENGTH_MOST.into());
    let most = most.map_or((length / 2).max(2), |most| most as u32);
    let least = of.number("min", 1..=LENGTH_MOST.into());
    let least = least.map_or((most / 3).max(1), |least| least as u32);
    if least >= most || most > length {
        let message = format!(
            "min {least}, max {most}, length {length}: RED needs min below max, and max within the length"
        );
        of.error("max", message);
    }
    let percent = of.number("percent", 1..=100).unwrap_or(10) as u8;
    Discipline::Red(RedConfig { least, most, percent, ecn: of.flag_or("ecn", true) })
}

fn codel(of: &mut Fields<'_, '_>) -> Discipline {
    let default = CodelConfig::default();
    let micros = |of: &mut Fields<'_, '_>, key: &str, default: u32| {
        of.number(key, 1..=10_000_000).map_or(default, |micros| micros as u32)
    };
    let target_us = micros(of, "target_us", default.target_us);
    let interval_us = micros(of, "interval_us", default.interval_us);
    if target_us >= interval_us {
        let message = format!(
            "target_us {target_us}: not below interval_us {interval_us}; RFC 8289 recommends a twentieth of it"
        );
        of.error("target_us", message);
    }
    Discipline::Codel(CodelConfig { target_us, interval_us, ecn: of.flag_or("ecn", true) })
}

/// Reads `{ voice = 8, background = 1 }`; other classes keep their weights.
fn weights(of: &mut Fields<'_, '_>) -> [u8; CLASSES] {
    const NAMES: [&str; CLASSES] = ["voice", "video", "data", "default", "background"];
    let mut weights = WEIGHTS;
    if let Some(mut of) = of.table("weights", &NAMES) {
        for (weight, class) in weights.iter_mut().zip(&Class::ALL[1..]) {
            if let Some(number) = of.number(class.name(), 1..=255) {
                *weight = number as u8;
            }
        }
    }
    weights
}

/// Reads `shape = "95mbit"` or `{ rate = "95mbit", burst = "64kb", overhead = 24 }`.
pub(super) fn shape(fields: &mut Fields<'_, '_>, mtu: Option<u16>) -> Option<Shape> {
    const RATE: &str = "a rate as \"95mbit\"";
    let (rate, burst, overhead) = match fields.get("shape")? {
        Value::Text(rate) => (rate.clone(), None, 0),
        Value::Table(_) => {
            let mut of = fields.table("shape", &["rate", "burst", "overhead"])?;
            let rate = of.text("rate", RATE).map(str::to_owned);
            if rate.is_none() && of.get("rate").is_none() {
                of.error("rate", "rate missing; write rate = \"95mbit\"");
            }
            let burst = of.text("burst", "an amount as \"64kb\" or \"512kbit\"").map(str::to_owned);
            (rate?, burst, of.number("overhead", 0..=256).unwrap_or(0) as u32)
        }
        other => {
            fields.error("shape", format!("shape: expected {RATE}, got {other}"));
            return None;
        }
    };
    let shape = shape_of(&rate, burst.as_deref(), (overhead, mtu.unwrap_or(1500)));
    shape.map_err(|why| fields.error("shape", format!("shape: {why}"))).ok()
}

fn shape_of(rate: &str, burst: Option<&str>, (overhead, mtu): (u32, u16)) -> Result<Shape, String> {
    let Ok((rate_value, true)) = amount(rate, "pps") else {
        return Err(format!(
            "rate \"{rate}\" is no rate in bits; write it as 500kbit, 95mbit, 1gbit"
        ));
    };
    let frame = u64::from(mtu) + AROUND + u64::from(overhead);
    let burst = match burst {
        None => (rate_value / BURST_PART).max(2 * frame),
        Some(text) => bytes(text)?,
    };
    if burst < frame {
        return Err(format!(
            "burst of {burst} bytes is below one frame of {frame} (MTU {mtu}, Ethernet {AROUND}, overhead \
             {overhead}), which would never leave; write burst = \"{}b\" or more, or leave it out",
            2 * frame
        ));
    }
    Ok(Shape { rate: rate_value, burst, overhead })
}

/// Parses `64kb` or `512kbit`, in bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let (value, _) = amount(text, "b").map_err(|_| {
        format!("burst \"{text}\" is no amount; write it as 64kb (bytes) or 512kbit")
    })?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dataplane::catalogue::Catalogue;

    use super::super::super::{Config, ConfigErrors, Limits, Port, parse};
    use super::*;

    fn read(more: &str) -> Result<Config, ConfigErrors> {
        let text = format!(
            "local turnpike = require 'turnpike'\nturnpike.port 'wan' {{ device = 'eth0', {more} }}"
        );
        parse(Path::new("r.lua"), &text, Limits::default(), &Catalogue::default())
    }

    fn port(more: &str) -> Port {
        read(more).unwrap_or_else(|errors| panic!("{errors}")).ports.remove(0)
    }

    #[test]
    fn queues_have_disciplines_with_settings_of_their_own() {
        let queue = |text: &str| port(&format!("queue = {{ {text} }}")).interface.queue.unwrap();
        assert_eq!(port("mtu = 1500").interface.queue, None);
        assert_eq!(queue(""), QueueConfig::default());
        assert_eq!(queue("length = 7"), QueueConfig { length: 7, discipline: Discipline::Fifo });
        let red = RedConfig { least: 166, most: 500, percent: 10, ecn: true };
        assert_eq!(queue("discipline = 'red'").discipline, Discipline::Red(red));
        let red = RedConfig { least: 5, most: 15, percent: 50, ecn: false };
        let text = "discipline = 'red', min = 5, max = 15, percent = 50, ecn = false";
        assert_eq!(queue(text).discipline, Discipline::Red(red));
        let codel = CodelConfig { target_us: 1000, ..CodelConfig::default() };
        let text = "discipline = 'codel', target_us = 1000";
        assert_eq!(queue(text).discipline, Discipline::Codel(codel));
        let text = "discipline = 'drr', weights = { voice = 20, background = 2 }";
        assert_eq!(queue(text).discipline, Discipline::Drr([20, 6, 4, 4, 2]));
    }

    #[test]
    fn shapes_have_rates_and_bursts_of_a_frame_at_least() {
        let shape = |text: &str| port(&format!("shape = {text}")).interface.shape.unwrap();
        let plain = Shape { rate: 11_875_000, burst: 47_500, overhead: 0 };
        assert_eq!(shape("'95mbit'"), plain);
        let whole = Shape { rate: 11_875_000, burst: 64_000, overhead: 24 };
        assert_eq!(shape("{ rate = '95mbit', burst = '64kb', overhead = 24 }"), whole);
        assert_eq!(shape("{ rate = '95mbit', burst = '512kbit', overhead = 24 }"), whole);
        assert_eq!(shape("'8kbit'").burst, 2 * 1518);
    }

    #[test]
    fn errors_say_the_way_out() {
        for (more, message) in [
            (
                "queue = { discipline = 'fair' }",
                "queue: discipline \"fair\" unknown; known: fifo, red, codel, drr",
            ),
            (
                "queue = { target_us = 5 }",
                "queue: target_us: a setting of discipline codel, and the discipline is fifo; leave it out",
            ),
            (
                "queue = { discipline = 'red', min = 20, max = 10 }",
                "queue: min 20, max 10, length 1000: RED needs min below max, and max within the length",
            ),
            (
                "queue = { discipline = 'codel', target_us = 100000 }",
                "queue: target_us 100000: not below interval_us 100000; RFC 8289 recommends a twentieth of it",
            ),
            (
                "shape = { rate = '1mbit', burst = '1500b' }",
                "shape: burst of 1500 bytes is below one frame of 1518 (MTU 1500, Ethernet 18, overhead 0), which \
                 would never leave; write burst = \"3036b\" or more, or leave it out",
            ),
            (
                "shape = '100kpps'",
                "shape: rate \"100kpps\" is no rate in bits; write it as 500kbit, 95mbit, 1gbit",
            ),
            (
                "shape = { rate = '1mbit', burst = 'much' }",
                "shape: burst \"much\" is no amount; write it as 64kb (bytes) or 512kbit",
            ),
            ("shape = {}", "shape: rate missing; write rate = \"95mbit\""),
        ] {
            let found = read(more).err().map_or_else(String::new, |errors| errors.to_string());
            assert!(found.contains(&format!("port \"wan\": {message}")), "{more}: {found}");
        }
    }
}

//! The keys of `turnpike.port` that configure queues.

use dataplane::batch::BATCH_MAX;
use dataplane::polling::QUOTA_MOST;
use dataplane::port::{RssTable, Thresholds};

use super::super::queues::{Queues, Rss, RssFields, Spread};
use super::super::value::{Fields, Value, whole_number};
use super::super::{Cores, Driver, Forwarders, Port};
use super::{Context, rest};
use crate::cores::parse_cores;

/// Most queues of a port in each direction.
const QUEUES_MOST: u64 = 64;

/// Most descriptors of a queue: DPDK counts them with 16 bits.
const DESCRIPTORS_MOST: u64 = 32_768;

/// Length of an RSS key, which covers two IPv6 addresses, two ports and the 32 bits of the hash;
/// the longest in use has 52 bytes.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 40..=128;

pub(super) fn read(fields: &mut Fields<'_, '_>) -> Queues {
    let number = |fields: &mut Fields<'_, '_>, key: &str, most: u64| {
        fields.number(key, 1..=most).map(|number| number as u16)
    };
    let queues = Queues {
        rx: number(fields, "rx_queues", QUEUES_MOST),
        tx: number(fields, "tx_queues", QUEUES_MOST),
        rx_descriptors: number(fields, "rx_descriptors", DESCRIPTORS_MOST),
        tx_descriptors: number(fields, "tx_descriptors", DESCRIPTORS_MOST),
        rx_burst: number(fields, "rx_burst", BATCH_MAX as u64),
        quota: number(fields, "quota", QUOTA_MOST.into()),
        wait: rest::wait(fields),
        rx_thresholds: thresholds(
            fields,
            "rx_thresholds",
            &["prefetch", "host", "write_back", "free"],
        ),
        tx_thresholds: thresholds(
            fields,
            "tx_thresholds",
            &["prefetch", "host", "write_back", "free", "report"],
        ),
        rx_cores: cores(fields, "rx_cores"),
        tx_cores: cores(fields, "tx_cores"),
        rss: rss(fields),
        spread: spread(fields),
        control: fields.flag_or("control_queue", true),
    };
    check_numbers(fields, &queues);
    queues
}

fn check_numbers(fields: &mut Fields<'_, '_>, queues: &Queues) {
    let Queues { rx, tx, rx_cores, tx_cores, .. } = queues;
    for (key, of, count, cores) in
        [("rx_cores", "rx_queues", rx, rx_cores), ("tx_cores", "tx_queues", tx, tx_cores)]
    {
        if let Some(count) = count
            && cores.len() > usize::from(*count)
        {
            let message = format!(
                "{key} names {} cores for {count} queues; name at most {count}, or raise {of}",
                cores.len()
            );
            fields.error(key, message);
        }
    }
    let mut seen = Vec::new();
    for core in tx_cores {
        if seen.contains(&core) {
            fields.error(
                "tx_cores",
                format!(
                    "tx_cores names core {core} twice; a core has one transmit queue of a port"
                ),
            );
        }
        seen.push(core);
    }
    if let Some(tx) = tx
        && !tx_cores.is_empty()
        && usize::from(*tx) > tx_cores.len()
    {
        let (count, cores) = (*tx, tx_cores.len());
        fields.error(
            "tx_queues",
            format!("tx_queues {count}: tx_cores names {cores}, and each has one queue; leave tx_queues out"),
        );
    }
}

fn thresholds(
    fields: &mut Fields<'_, '_>,
    key: &str,
    known: &'static [&'static str],
) -> Thresholds {
    let Some(mut fields) = fields.table(key, known) else { return Thresholds::default() };
    let byte = |fields: &mut Fields<'_, '_>, key: &str| {
        fields.number(key, 0..=255).map(|number| number as u8)
    };
    Thresholds {
        prefetch: byte(&mut fields, "prefetch"),
        host: byte(&mut fields, "host"),
        write_back: byte(&mut fields, "write_back"),
        free: fields.number("free", 0..=DESCRIPTORS_MOST).map(|number| number as u16),
        report: known
            .contains(&"report")
            .then(|| fields.number("report", 1..=DESCRIPTORS_MOST))
            .flatten()
            .map(|number| number as u16),
    }
}

/// Reads `{ 1, 2, 1 }` in this order, `"1-3"`, or one core.
fn cores(fields: &mut Fields<'_, '_>, key: &str) -> Vec<usize> {
    if let Some(Value::Text(text)) = fields.get(key) {
        return parse_cores(text).unwrap_or_else(|reason| {
            fields.error(key, format!("{key} \"{text}\": {reason}"));
            Vec::new()
        });
    }
    let most = u64::from(u16::MAX);
    let expected = "cores such as { 1, 2 } or \"1-2\"";
    fields.numbers(key, 0..=most, expected).into_iter().map(|core| core as usize).collect()
}

fn spread(fields: &mut Fields<'_, '_>) -> Spread {
    match fields.text("spread", "\"hardware\" or \"software\"") {
        None | Some("hardware") => Spread::Hardware,
        Some("software") => Spread::Software,
        Some(other) => {
            let message = format!(
                "spread \"{other}\" unknown; known: hardware, software; leave it out for the device's queues"
            );
            fields.error("spread", message);
            Spread::Hardware
        }
    }
}

fn rss(fields: &mut Fields<'_, '_>) -> Option<Rss> {
    let mut fields = fields.table("rss", &["fields", "symmetric", "key", "table", "skip"])?;
    let hashed = hashed_fields(&mut fields);
    let symmetric = fields.flag("symmetric");
    let key = key(&mut fields);
    if symmetric && key.as_ref().is_some_and(|key| !Rss::is_symmetric(key)) {
        fields.error(
            "key",
            "key: not symmetric, its bytes are not two that repeat (6d:5a:6d:5a:…); leave it out, or symmetric",
        );
    }
    Some(Rss { fields: hashed, symmetric, key, table: table(&mut fields) })
}

fn hashed_fields(fields: &mut Fields<'_, '_>) -> RssFields {
    match fields.text("fields", "\"l3\" or \"l3+l4\"") {
        None | Some("l3+l4") => RssFields::L3L4,
        Some("l3") => RssFields::L3,
        Some(other) => {
            let message = format!(
                "fields \"{other}\" unknown; known: l3 (addresses), l3+l4 (and ports); symmetric = true for one \
                 hash in both directions"
            );
            fields.error("fields", message);
            RssFields::L3L4
        }
    }
}

fn key(fields: &mut Fields<'_, '_>) -> Option<Vec<u8>> {
    let text = fields.text("key", "bytes such as \"6d:5a:…\"")?;
    let byte = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
    let Some(key) = text.split(':').map(byte).collect::<Option<Vec<u8>>>() else {
        let message =
            format!("key \"{text}\": not bytes; write them as two digits each: 6d:5a:56:da:…");
        fields.error("key", message);
        return None;
    };
    if !KEY_BYTES.contains(&key.len()) {
        let message = format!(
            "key has {} bytes; write {} to {}, as many as the device has (turnpike show rss)",
            key.len(),
            KEY_BYTES.start(),
            KEY_BYTES.end()
        );
        fields.error("key", message);
        return None;
    }
    Some(key)
}

fn table(fields: &mut Fields<'_, '_>) -> RssTable {
    const EXPECTED: &str = "numbers of queues such as { 0, 1 }";
    let mut queues = |key: &str| -> Vec<u16> {
        let numbers = fields.numbers(key, 0..=QUEUES_MOST - 1, EXPECTED);
        numbers.into_iter().map(|queue| queue as u16).collect()
    };
    match (queues("table"), queues("skip")) {
        (pattern, skip) if pattern.is_empty() && skip.is_empty() => RssTable::Even,
        (pattern, skip) if skip.is_empty() => RssTable::Pattern(pattern),
        (pattern, skip) if pattern.is_empty() => RssTable::Skip(skip),
        (_, skip) => {
            fields
                .error("skip", "skip and table exclude each other; leave the queues out of table");
            RssTable::Skip(skip)
        }
    }
}

/// Removes control queues from ports with AF_PACKET, whose sockets receive all packets of their interface.
pub(super) fn settle_control(ports: &mut [Port], forwarders: &Forwarders) {
    for port in ports {
        let by_packet_sockets = port.driver == Some(Driver::AfPacket);
        port.queues.control &= forwarders.control_queue && !by_packet_sockets;
    }
}

/// Checks that cores that serve queues are forwarders' cores.
pub(super) fn check(context: &mut Context<'_>, ports: &[Port], forwarders: &Cores) {
    for port in ports {
        let Queues { rx_cores, tx_cores, .. } = &port.queues;
        for (key, cores) in [("rx_cores", rx_cores), ("tx_cores", tx_cores)] {
            let mut stray: Vec<_> =
                cores.iter().filter(|core| !forwarders.forward.contains(core)).collect();
            stray.dedup();
            let Some(core) = stray.first() else { continue };
            let known: Vec<_> = forwarders.forward.iter().map(ToString::to_string).collect();
            let way_out = match known.is_empty() {
                true => "write turnpike.cores { forward = \"…\" } with it".to_owned(),
                false => format!("the forwarders' cores are {}", known.join(", ")),
            };
            let line = context.source.line_of(port.line, key);
            let message =
                format!("port \"{}\": {key}: core {core} has no forwarder; {way_out}", port.name);
            context.errors.add(Some(line), message);
        }
    }
}

impl Fields<'_, '_> {
    /// Reads a whole number or a list of them; empty if the key is absent or wrong.
    fn numbers(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
        expected: &str,
    ) -> Vec<u64> {
        let items: &[Value] = match self.get(key) {
            None => return Vec::new(),
            Some(Value::Table(table)) if table.named.is_empty() && table.odd.is_empty() => {
                &table.list
            }
            Some(single) => std::slice::from_ref(single),
        };
        let numbers: Option<Vec<u64>> =
            items.iter().map(|item| whole_number(item, &range)).collect();
        numbers.unwrap_or_else(|| {
            let wrong = items.iter().find(|item| whole_number(item, &range).is_none());
            let got = wrong.map_or_else(String::new, ToString::to_string);
            let (first, last) = (range.start(), range.end());
            self.error(key, format!("{key}: expected {expected} ({first} to {last}), got {got}"));
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dataplane::catalogue::Catalogue;
    use dataplane::polling::Wait;

    use super::super::super::{Config, ConfigErrors, Diff, Limits, parse};
    use super::*;

    fn with(settings: &str, cores: &str) -> Result<Config, ConfigErrors> {
        let text = format!(
            "local turnpike = require 'turnpike'\n\
             turnpike.port 'wan' {{ device = 'eth0',\n{settings} }}\n\
             turnpike.forwarders {{ cores = {cores} }}"
        );
        parse(Path::new("r.lua"), &text, Limits::default(), &Catalogue::default())
    }

    fn queues(settings: &str) -> Queues {
        let config = with(settings, "'1-3'").unwrap_or_else(|errors| panic!("{errors}"));
        config.ports[0].queues.clone()
    }

    fn error(settings: &str) -> String {
        with(settings, "'1-3'").err().map_or_else(String::new, |errors| errors.to_string())
    }

    #[test]
    fn ports_have_a_control_queue_where_forwarders_ask_for_one_unless_by_af_packet() {
        let control = |forwarders: &str, port: &str| {
            let text = format!(
                "local turnpike = require 'turnpike'\nturnpike.forwarders {{ {forwarders} }}\n\
                 turnpike.port 'p' {{ {port} }}"
            );
            let (limits, catalogue) = (Limits::default(), Catalogue::default());
            let config = parse(Path::new("r.lua"), &text, limits, &catalogue).unwrap();
            config.ports[0].queues.control
        };
        let (on, nic) = ("control_queue = true", "device = '0000:03:00.0'");
        assert!(control(on, nic));
        assert!(!control("", nic));
        assert!(!control(on, "device = '0000:03:00.0', control_queue = false"));
        assert!(control(on, "device = 'eth0'"));
        assert!(!control(on, "device = 'eth0', driver = 'af_packet'"));
    }

    #[test]
    fn every_key_is_read() {
        let read = queues(
            "rx_queues = 4, tx_queues = 2, rx_descriptors = 2048, tx_descriptors = 512, rx_burst = 32,
             quota = 256, wait = 'interrupt',
             rx_thresholds = { prefetch = 8, host = 0, write_back = 4, free = 32 },
             tx_thresholds = { free = 64, report = 32 }, rx_cores = { 2, 1, 1 }, tx_cores = '1,3',
             rss = { fields = 'l3', symmetric = true, skip = 0 }, spread = 'software'",
        );
        let expected = Queues {
            rx: Some(4),
            tx: Some(2),
            rx_descriptors: Some(2048),
            tx_descriptors: Some(512),
            rx_burst: Some(32),
            quota: Some(256),
            wait: Some(Wait::Interrupt),
            rx_thresholds: Thresholds {
                prefetch: Some(8),
                host: Some(0),
                write_back: Some(4),
                free: Some(32),
                report: None,
            },
            tx_thresholds: Thresholds { free: Some(64), report: Some(32), ..Thresholds::default() },
            rx_cores: vec![2, 1, 1],
            tx_cores: vec![1, 3],
            rss: Some(Rss {
                fields: RssFields::L3,
                symmetric: true,
                key: None,
                table: RssTable::Skip(vec![0]),
            }),
            spread: Spread::Software,
            control: false,
        };
        assert_eq!(read, expected);
        assert_eq!(queues(""), Queues::default());
        let key = [0x6d, 0x5a].repeat(20);
        let text = super::super::super::key_text(&key);
        let rss =
            queues(&format!("rss = {{ symmetric = true, key = '{text}', table = {{ 0, 0, 1 }} }}"));
        let expected = Rss {
            key: Some(key),
            table: RssTable::Pattern(vec![0, 0, 1]),
            ..rss.rss.clone().unwrap()
        };
        assert_eq!(rss.rss, Some(expected));
    }

    #[test]
    fn cores_ask_for_as_many_queues_and_software_for_one() {
        let wish = |settings| (queues(settings).rx_wish(), queues(settings).tx_wish());
        assert_eq!(wish("rx_cores = { 1, 1, 2 }, tx_cores = 3"), (Some(3), Some(1)));
        assert_eq!(wish("rx_queues = 6, rx_cores = '1-2'"), (Some(6), None));
        assert_eq!(wish("spread = 'software'"), (Some(1), None));
        assert_eq!(wish(""), (None, None));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_the_way_out() {
        for (settings, expected) in [
            (
                "rx_queues = 2,\nrx_cores = { 1, 2, 3 }",
                "r.lua:4: port \"wan\": rx_cores names 3 cores for 2 queues; name at most 2, or raise rx_queues",
            ),
            (
                "rx_cores = { 1, 4 }",
                "r.lua:3: port \"wan\": rx_cores: core 4 has no forwarder; the forwarders' cores are 1, 2, 3",
            ),
            (
                "tx_cores = { 1, 1 }",
                "r.lua:3: port \"wan\": tx_cores names core 1 twice; a core has one transmit queue of a port",
            ),
            (
                "tx_queues = 3, tx_cores = { 1, 2 }",
                "r.lua:3: port \"wan\": tx_queues 3: tx_cores names 2, and each has one queue; leave tx_queues out",
            ),
            (
                "rx_cores = { 1, 'x' }",
                "r.lua:3: port \"wan\": rx_cores: expected cores such as { 1, 2 } or \"1-2\" (0 to 65535), got string \"x\"",
            ),
            (
                "quota = 4097",
                "r.lua:3: port \"wan\": quota: expected a whole number from 1 to 4096, got number 4097",
            ),
            (
                "wait = 'interupt'",
                "r.lua:3: port \"wan\": wait \"interupt\" unknown; known: poll, adaptive, interrupt, moderated",
            ),
            (
                "rx_burst = 65",
                "r.lua:3: port \"wan\": rx_burst: expected a whole number from 1 to 64, got number 65",
            ),
            (
                "rss = { fields = 'l4' }",
                "r.lua:3: port \"wan\": rss: fields \"l4\" unknown; known: l3 (addresses), l3+l4 (and ports); \
                 symmetric = true for one hash in both directions",
            ),
            (
                "rss = { key = '6d:5g' }",
                "r.lua:3: port \"wan\": rss: key \"6d:5g\": not bytes; write them as two digits each: 6d:5a:56:da:…",
            ),
            (
                "rss = { key = '6d:5a' }",
                "r.lua:3: port \"wan\": rss: key has 2 bytes; write 40 to 128, as many as the device has \
                 (turnpike show rss)",
            ),
            (
                "rss = { table = { 0 }, skip = { 1 } }",
                "r.lua:3: port \"wan\": rss: skip and table exclude each other; leave the queues out of table",
            ),
            (
                "rss = { table = { 64 } }",
                "r.lua:3: port \"wan\": rss: table: expected numbers of queues such as { 0, 1 } (0 to 63), got \
                 number 64",
            ),
            (
                "spread = 'kernel'",
                "r.lua:3: port \"wan\": spread \"kernel\" unknown; known: hardware, software; leave it out for the \
                 device's queues",
            ),
            (
                "rx_thresholds = { report = 3 }",
                "r.lua:3: port \"wan\": rx_thresholds: key \"report\" unknown; known: prefetch, host, write_back, \
                 free",
            ),
        ] {
            assert_eq!(error(settings), expected, "{settings}");
        }
        let plain = (1..=40).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
        let asymmetric = error(&format!("rss = {{ symmetric = true, key = '{plain}' }}"));
        assert!(asymmetric.contains("key: not symmetric"), "{asymmetric}");
        let chosen = with("rx_cores = 1", "nil").unwrap_err().to_string();
        assert!(chosen.contains("core 1 has no forwarder; write turnpike.cores"), "{chosen}");
    }

    #[test]
    fn sizes_open_the_port_again_and_maps_do_not() {
        let changes = |before: &str, after: &str| {
            let (before, after) = (with(before, "'1-3'").unwrap(), with(after, "'1-3'").unwrap());
            let diff = Diff::between(&before, &after);
            assert_eq!(diff.settings.len(), 1, "{:?}", diff.settings);
            assert!(diff.settings[0].is_live());
            (diff.ports.changed.len(), diff.reopens(&diff.settings[0]))
        };
        for (before, after) in [
            ("rx_cores = { 1, 2 }", "rx_cores = { 2, 1 }"),
            ("rx_burst = 8", "rx_burst = 9"),
            ("rss = { symmetric = true }", "rss = { symmetric = true, skip = { 0 } }"),
            ("", "rss = { fields = 'l3' }"),
            ("rx_queues = 1, spread = 'hardware'", "rx_queues = 1, spread = 'software'"),
        ] {
            assert_eq!(changes(before, after), (0, false), "{after}");
        }
        for (before, after) in [
            ("rx_cores = { 1, 2 }", "rx_cores = { 1, 2, 3 }"),
            ("rx_descriptors = 512", ""),
            ("", "tx_thresholds = { free = 1 }"),
            ("", "spread = 'software'"),
            ("rss = { symmetric = true }", ""),
        ] {
            assert_eq!(changes(before, after), (1, true), "{after}");
        }
    }
}

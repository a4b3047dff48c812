//! Forwarders, and the distribution of packets over them.

use std::collections::BTreeMap;
use std::time::Duration;

use api::report::{EventsReport, Forwarder, Forwarders, Rss};
use dataplane::words::count;
use machine::list_text;

use super::{columns, finish, right_align};

/// Formats one line a forwarder, then advice for the operator.
pub fn forwarders(report: &Forwarders) -> String {
    let mut table = columns(&[
        "forwarder",
        "core",
        "node",
        "busy",
        "packets",
        "bursts",
        "pool/packet",
        "spread out",
        "spread in",
        "receives",
        "sends",
    ]);
    for one in &report.forwarders {
        table.add_row([
            one.number.to_string(),
            if one.control { "control".to_owned() } else { one.core.to_string() },
            one.node.map_or_else(|| "-".to_owned(), |node| node.to_string()),
            format!("{:.0} %", one.busy_percent),
            one.packets.to_string(),
            one.bursts.to_string(),
            per_packet(one.pool_takes + one.pool_gives, one.packets),
            one.spread_out.to_string(),
            one.spread_in.to_string(),
            listed(&one.rx),
            listed(&one.tx),
        ]);
    }
    right_align(&mut table, 0..9);
    let advice = report.advice.iter().map(|sentence| format!("\n\n{sentence}"));
    let control = format!("\n\ncontrol: core {}", list_text(&report.control));
    let (waiting, interference) = (waiting(&report.forwarders), interference(&report.forwarders));
    let advice = advice.collect::<String>();
    let moved = match report.moved {
        0 => String::new(),
        1 => "\n\n1 receive queue went to a less busy forwarder".to_owned(),
        moved => format!("\n\n{moved} receive queues went to less busy forwarders"),
    };
    let entries = match report.moved_entries {
        0 => String::new(),
        entries => format!("\n\nRSS table entries that went to a less busy forwarder: {entries}"),
    };
    let events = report.events.as_ref().map_or_else(String::new, events);
    let rest = control + &events + &moved + &entries + &advice;
    finish(&table) + "\n\n" + &waiting + "\n\n" + &interference + &rest
}

fn per_packet(accesses: u64, packets: u64) -> String {
    match packets {
        0 => "-".to_owned(),
        packets => format!("{:.3}", accesses as f64 / packets as f64),
    }
}

/// Formats the event device as one sentence.
fn events(of: &EventsReport) -> String {
    let EventsReport {
        device,
        driver,
        order,
        queues,
        in_flight,
        returned,
        reordered,
        full,
        scheduler,
    } = of;
    let by = if *scheduler { "a thread of the router schedules" } else { "the device schedules" };
    format!(
        "\n\nevents: {device} ({driver}, {}, {by}), {order}: forwarder 0 receives and sends, the others forward\n\
         in flight {in_flight}, returned {returned}, reordered {reordered}, dropped because it was full {full}",
        count(*queues, "queue")
    )
}

/// Formats one line a forwarder.
fn waiting(forwarders: &[Forwarder]) -> String {
    let mut table = columns(&[
        "forwarder",
        "wait",
        "now",
        "sleeps",
        "blocks",
        "blocked",
        "by receive",
        "by ring",
        "by control",
    ]);
    for Forwarder { number, waiting, .. } in forwarders {
        let blocked = Duration::from_millis(waiting.blocked_ms);
        table.add_row([
            number.to_string(),
            waiting.wait.clone(),
            if waiting.blocking { "blocks" } else { "runs" }.to_owned(),
            waiting.sleeps.to_string(),
            waiting.blocks.to_string(),
            format!("{:.1} s", blocked.as_secs_f64()),
            waiting.woken_by_receive.to_string(),
            waiting.woken_by_ring.to_string(),
            waiting.woken_by_control.to_string(),
        ]);
    }
    right_align(&mut table, 3..9);
    finish(&table)
}

/// Formats the interruptions of forwarders' cores.
fn interference(forwarders: &[Forwarder]) -> String {
    let mut table = columns(&[
        "forwarder",
        "voluntary switches",
        "involuntary",
        "minor faults",
        "major",
        "ran",
        "waited",
        "interrupts",
        "stolen",
        "TLB shootdowns",
    ]);
    for (one, found) in forwarders.iter().filter_map(|one| Some((one, one.interference.as_ref()?)))
    {
        let seconds = |micros: u64| format!("{:.2} s", micros as f64 / 1e6);
        table.add_row([
            one.number.to_string(),
            found.voluntary_switches.to_string(),
            found.involuntary_switches.to_string(),
            found.minor_faults.to_string(),
            found.major_faults.to_string(),
            seconds(found.ran_us),
            seconds(found.waited_us),
            seconds(found.interrupts_us),
            seconds(found.stolen_us),
            found.tlb_shootdowns.to_string(),
        ]);
    }
    right_align(&mut table, 0..10);
    finish(&table)
}

fn listed(queues: &[String]) -> String {
    if queues.is_empty() { "-".to_owned() } else { queues.join(", ") }
}

/// Formats a few lines a port.
pub fn rss(ports: &[Rss]) -> String {
    ports.iter().map(port).collect::<Vec<_>>().join("\n\n")
}

fn port(rss: &Rss) -> String {
    let Rss { port, spread, function, fields, key, queues, control_queue, table } = rss;
    let control = control_queue.map(|queue| format!(", queue {queue} for control traffic"));
    let queues = count(*queues, "receive queue") + &control.unwrap_or_default();
    let Some(function) = function else {
        return format!("{port}: {queues}, no hash of the router's");
    };
    let mut lines = vec![format!("{port}: {function} in {spread}, {queues}")];
    if !fields.is_empty() {
        lines.push(format!("  fields  {}", fields.join(", ")));
    }
    if let Some(key) = key {
        lines.push(format!("  key     {key}"));
    }
    if table.is_empty() {
        lines.push("  table   not reported by the driver".to_owned());
        return lines.join("\n");
    }
    let entries: Vec<_> = table.iter().map(ToString::to_string).collect();
    for (row, entries) in entries.chunks(32).enumerate() {
        lines.push(format!("  {:<7} {}", if row == 0 { "table" } else { "" }, entries.join(" ")));
    }
    let mut counts = BTreeMap::new();
    table.iter().for_each(|to| *counts.entry(to).or_insert(0_usize) += 1);
    let what = if spread == "software" { "forwarder" } else { "queue" };
    let share = |(to, count): (&&u16, &usize)| {
        format!("{what} {to}: {:.1} %", 100.0 * *count as f64 / table.len() as f64)
    };
    lines.push(format!("  share   {}", counts.iter().map(share).collect::<Vec<_>>().join(", ")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::report::{Interference, Waiting};

    #[test]
    fn forwarders_are_a_table_with_advice_below() {
        let one = Forwarder {
            number: 0,
            core: 3,
            node: Some(1),
            busy_percent: 41.6,
            packets: 1200,
            pool_takes: 41,
            pool_gives: 19,
            bursts: 40,
            rx: vec!["wan:0".into(), "lan:1".into()],
            waiting: Waiting {
                wait: "adaptive".into(),
                blocking: true,
                blocks: 7,
                blocked_ms: 1250,
                woken_by_receive: 4,
                woken_by_ring: 2,
                woken_by_control: 1,
                ..Waiting::default()
            },
            ..Forwarder::default()
        };
        let interference = Interference {
            involuntary_switches: 31,
            waited_us: 1_250_000,
            tlb_shootdowns: 9,
            ..Interference::default()
        };
        let one = Forwarder { interference: Some(interference), ..one };
        let advice = vec!["Mend it.".into()];
        let report = Forwarders {
            forwarders: vec![one],
            control: vec![0, 2],
            moved: 2,
            moved_entries: 64,
            events: Some(EventsReport {
                device: "event_sw0".into(),
                driver: "event_sw".into(),
                order: "ordered".into(),
                queues: 6,
                scheduler: true,
                in_flight: 5,
                returned: 1000,
                ..EventsReport::default()
            }),
            advice,
        };
        let text = forwarders(&report);
        let line = text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
        let expected =
            ["0", "3", "1", "42", "%", "1200", "40", "0.050", "0", "0", "wan:0,", "lan:1", "-"];
        assert_eq!(line, expected);
        let line = text.lines().nth(4).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(line, ["0", "adaptive", "blocks", "0", "7", "1.2", "s", "4", "2", "1"]);
        let line = text.lines().nth(7).unwrap().split_whitespace().collect::<Vec<_>>();
        let expected =
            ["0", "0", "31", "0", "0", "0.00", "s", "1.25", "s", "0.00", "s", "0.00", "s", "9"];
        assert_eq!(line, expected);
        let end = "\n\ncontrol: core 0,2\n\nevents: event_sw0 (event_sw, 6 queues, a thread of the router schedules), ordered: forwarder 0 \
             receives and sends, the others forward\nin flight 5, returned 1000, reordered 0, dropped because it was full \
             0\n\n2 receive queues went to less busy forwarders\n\nRSS table entries that went to \
             a less busy forwarder: 64\n\nMend it.";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn rss_shows_the_share_of_each_queue() {
        let mut report = Rss {
            port: "wan".into(),
            spread: "hardware".into(),
            function: Some("toeplitz".into()),
            fields: vec!["ipv4".into()],
            key: Some("6d:5a".into()),
            queues: 2,
            control_queue: None,
            table: vec![0, 1, 1, 1],
        };
        assert_eq!(
            rss(&[report.clone()]),
            "wan: toeplitz in hardware, 2 receive queues\n  fields  ipv4\n  key     6d:5a\n  \
             table   0 1 1 1\n  share   queue 0: 25.0 %, queue 1: 75.0 %"
        );
        report.spread = "software".into();
        assert!(rss(&[report.clone()]).ends_with("forwarder 0: 25.0 %, forwarder 1: 75.0 %"));
        (report.function, report.control_queue) = (None, Some(1));
        let expected =
            "wan: 2 receive queues, queue 1 for control traffic, no hash of the router's";
        assert_eq!(rss(&[report]), expected);
    }
}

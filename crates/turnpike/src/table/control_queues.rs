//! Queues for control traffic.

use api::report::{ControlQueue, ControlRule};

use super::{columns, finish, right_align};

/// Formats a few lines a port.
pub fn control_queues(ports: &[ControlQueue]) -> String {
    ports.iter().map(port).collect::<Vec<_>>().join("\n\n")
}

fn port(of: &ControlQueue) -> String {
    let queue = |queue: Option<usize>| queue.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let mut text =
        format!("{}: receive queue {}, transmit queue {}", of.port, queue(of.rx), queue(of.tx));
    if let Some(sender) = of.sender {
        text += &format!("; forwarder {sender} sends for the slow path");
    }
    if let Some(why) = &of.why {
        text += &format!("\nno control traffic by a queue of its own: {why}");
    }
    if !of.rules.is_empty() {
        text += &format!("\n\n{}", rules(&of.rules));
    }
    let ControlQueue { flows, learned, aged, displaced, refused, unlearned, .. } = of;
    if of.rx.is_some() {
        text += &format!(
            "\n\nlearned flows: {} now, {learned} so far, {aged} aged, {displaced} displaced, {refused} refused, \
             {unlearned} too many",
            flows.len()
        );
    }
    for flow in flows {
        text += &format!("\n  {}, idle for {} s", flow.flow, flow.idle_s);
    }
    text
}

fn rules(rules: &[ControlRule]) -> String {
    let mut table = columns(&["packets", "rule", "in the device"]);
    for ControlRule { what, packets, why } in rules {
        table.add_row([
            packets.map_or_else(|| "-".to_owned(), |packets| packets.to_string()),
            what.clone(),
            why.as_ref().map_or_else(|| "yes".to_owned(), |why| format!("no: {why}")),
        ]);
    }
    right_align(&mut table, 0..1);
    finish(&table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::report::LearnedFlow;

    #[test]
    fn a_port_with_a_queue_shows_rules_and_flows_and_one_without_the_reason() {
        let rule = |what: &str, packets, why: Option<&str>| ControlRule {
            what: what.to_owned(),
            packets,
            why: why.map(str::to_owned),
        };
        let flow = LearnedFlow { flow: "tcp 10.0.1.1:9 > 10.0.1.2:179".into(), idle_s: 3 };
        let with = ControlQueue {
            port: "wan".into(),
            rx: Some(4),
            tx: Some(4),
            sender: Some(4),
            rules: vec![rule("ARP", Some(12), None), rule("LLDP", None, Some("full"))],
            flows: vec![flow],
            learned: 5,
            ..ControlQueue::default()
        };
        let without = ControlQueue {
            port: "lan".into(),
            sender: Some(0),
            why: Some("a kernel interface".into()),
            ..ControlQueue::default()
        };
        let text = control_queues(&[with, without]);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines[0],
            "wan: receive queue 4, transmit queue 4; forwarder 4 sends for the slow path"
        );
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["12", "ARP", "yes"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["-", "LLDP", "no:", "full"]);
        assert_eq!(
            lines[4],
            "learned flows: 1 now, 5 so far, 0 aged, 0 displaced, 0 refused, 0 too many"
        );
        assert_eq!(lines[5], "tcp 10.0.1.1:9 > 10.0.1.2:179, idle for 3 s");
        assert_eq!(
            lines[6],
            "lan: receive queue none, transmit queue none; forwarder 0 sends for the slow path"
        );
        assert_eq!(lines[7], "no control traffic by a queue of its own: a kernel interface");
    }
}

//! `turnpike trace`: the way of packets through the graph.

use std::time::Duration;

use anyhow::{Result, ensure};
use api::report::{Trace, TracedPacket};
use api::{Request, TraceRequest};
use clap::Args;

use super::sets::time;
use super::{Console, RouterArgs};

/// The longest wait for packets by default.
const PATIENCE: Duration = Duration::from_secs(10);

/// The packets to be traced.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// A rule of filters that selects packets, as proto=udp to_port=53 from=10.0.0.0/8; or a packet made by hand, as
    /// "udp 10.0.1.2:4000 > 10.0.2.2:53 in lan ttl 9", which is not sent
    words: Vec<String>,
    /// End after so many packets [default: 1]
    #[arg(long, short)]
    count: Option<u32>,
    /// End after this time: 90s, 15m or 1h [default: 10s]
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    time: Option<Duration>,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

impl TraceArgs {
    fn request(&self) -> Result<TraceRequest> {
        let words = self.words.join(" ");
        let is_packet = words.split_whitespace().any(|word| word == ">");
        let rule = words.split_whitespace().map(str::to_owned);
        ensure!(
            !is_packet || (self.count, self.time) == (None, None),
            "a packet made by hand is traced once and at once; leave --count and --for out"
        );
        Ok(TraceRequest {
            rule: if is_packet { Vec::new() } else { rule.collect() },
            packets: self.count.unwrap_or(1),
            packet: is_packet.then_some(words),
            seconds: self.time.unwrap_or(PATIENCE).as_secs(),
        })
    }
}

/// Traces packets and prints their ways.
pub fn trace(args: &TraceArgs, console: &mut Console<'_>) -> Result<()> {
    let request = Request::Trace(args.request()?);
    console.report(&request, |report| Ok(text(&serde_json::from_value(report)?)))
}

fn text(trace: &Trace) -> String {
    let mut text: Vec<_> = trace.packets.iter().map(of_packet).collect();
    if trace.packets.is_empty() {
        text.push("no such packet came".to_owned());
    }
    if trace.lost > 0 {
        text.push(format!("{} steps of packets are missing", trace.lost));
    }
    text.join("\n\n")
}

fn of_packet(packet: &TracedPacket) -> String {
    let TracedPacket { forwarder, packet, length, steps, end, interface: _ } = packet;
    let mut lines = vec![format!("{packet}: {length} bytes, forwarder {forwarder}")];
    let width = |of: fn(&api::report::TracedStep) -> &str| {
        steps.iter().map(|step| of(step).chars().count()).max().unwrap_or(0)
    };
    let (names, outputs) = (width(|step| &step.step), width(|step| &step.output));
    for step in steps {
        let notes = step.notes.join(", ");
        let line = format!("  {:names$}  {:outputs$}  {notes}", step.step, step.output);
        lines.push(line.trim_end().to_owned());
    }
    lines.push(format!("  {end}"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use api::report::TracedStep;

    use super::*;

    fn request(words: &[&str], count: Option<u32>) -> Result<TraceRequest> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let router = RouterArgs { socket: "s".into(), json: false };
        TraceArgs { words, count, time: None, router }.request()
    }

    #[test]
    fn an_arrow_makes_a_packet_of_words_and_else_they_are_a_rule() {
        let packet = ["udp 10.0.0.1 > 10.0.0.2", "in lan"];
        let made = request(&packet, None).unwrap();
        assert_eq!(made.packet.as_deref(), Some("udp 10.0.0.1 > 10.0.0.2 in lan"));
        assert_eq!((made.rule.len(), made.packets), (0, 1));
        let error = request(&packet, Some(5)).unwrap_err().to_string();
        assert!(error.contains("leave --count"), "{error}");
        let selected = request(&["proto=udp to_port=53", "ttl=1"], Some(5)).unwrap();
        assert_eq!((selected.packet, selected.packets), (None, 5));
        assert_eq!(selected.rule, ["proto=udp", "to_port=53", "ttl=1"]);
    }

    #[test]
    fn steps_are_in_columns() {
        let step = |step: &str, output: &str, notes: &[&str]| TracedStep {
            step: step.to_owned(),
            output: output.to_owned(),
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
        };
        let steps = vec![
            step("classify", "ip4", &[]),
            step("ip4-lookup", "forward", &["route 10.0.2.0/24 (connected)", "one of 2 paths"]),
        ];
        let packet = TracedPacket {
            forwarder: 1,
            interface: "lan".to_owned(),
            packet: "udp 10.0.0.1:1 > 10.0.0.2:2 in lan".to_owned(),
            length: 60,
            steps,
            end: "sent on wan".to_owned(),
        };
        let expected = "\
udp 10.0.0.1:1 > 10.0.0.2:2 in lan: 60 bytes, forwarder 1
  classify    ip4
  ip4-lookup  forward  route 10.0.2.0/24 (connected), one of 2 paths
  sent on wan

3 steps of packets are missing";
        assert_eq!(text(&Trace { packets: vec![packet], lost: 3 }), expected);
        assert_eq!(text(&Trace::default()), "no such packet came");
    }
}

//! Traces: forwarders get a watch, and their sightings become a report.
//!
//! ```text
//!   request -> a Trace for each forwarder (exchanged) -> sightings -> all packets through, or time over
//!           -> the traces are taken back -> report (`trace/report.rs`)
//! ```
//!
//! One trace at a time. A packet made by hand runs through the first forwarder's graph, with its tables, its Lua state
//! and its filters, and is not sent.

mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};
use api::{Answer, TraceRequest};
use dataplane::exchange::Replacement;
use dataplane::filters::FilterTable;
use dataplane::graph::Target;
use dataplane::interface::InterfaceId;
use dataplane::port::PortId;
use dataplane::trace::{At, Sighting, Sightings, Trace};
use dataplane::watch::{LOST, Made, Refusal, Watch, Watching};
use tokio::sync::oneshot;
use wire::ethernet::ETHERNET_LEN;

use super::super::wiring::Wiring;
use super::Owner;
use super::questions::reply;

/// Most packets of a trace.
const PACKETS_MOST: u32 = 1000;

/// Longest time of a trace: an hour.
const SECONDS_MOST: u64 = 3600;

/// Source MAC of packets made by hand, unless they say another: locally administered.
const SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// The trace under way, if there is one.
#[derive(Default)]
pub struct Tracing(Option<Running>);

struct Running {
    sightings: Arc<Sightings>,
    wanted: u32,
    until: Instant,
    asker: oneshot::Sender<Answer>,
    seen: Vec<Sighting>,
    /// Packets that have come to an end.
    ended: u32,
}

impl Running {
    /// Takes the sightings that have come.
    fn collect(&mut self) {
        while let Some(sighting) = self.sightings.take() {
            self.ended += u32::from(is_end(&sighting));
            self.seen.push(sighting);
        }
    }

    fn is_over(&self) -> bool {
        self.ended >= self.wanted || self.asker.is_closed() || Instant::now() >= self.until
    }
}

/// Returns true if the packet goes to no other step.
fn is_end(sighting: &Sighting) -> bool {
    !matches!(target(sighting), Some(Target::Step(_))) && sighting.at != At::Entry
}

/// The target of the output that a step gave the packet to; `None` at the entry, and for a lost packet.
fn target(sighting: &Sighting) -> Option<Target> {
    match sighting.at {
        At::Step { place, output } if output != LOST => {
            Some(sighting.shape.steps.get(place)?.outputs.get(output)?.1)
        }
        _ => None,
    }
}

impl Owner {
    /// Begins a trace; it is answered when it is over.
    pub(super) async fn begin_trace(
        &mut self,
        request: TraceRequest,
        asker: oneshot::Sender<Answer>,
    ) {
        match self.try_begin_trace(&request).await {
            Ok(sightings) => {
                let until = Instant::now() + Duration::from_secs(request.seconds);
                let wanted = if request.packet.is_some() { 1 } else { request.packets };
                let seen = Vec::new();
                let running = Running { sightings, wanted, until, asker, seen, ended: 0 };
                self.forwarding.tracing.0 = Some(running);
                self.look_at_trace().await;
            }
            Err(error) => reply(asker, Err::<(), _>(error)),
        }
    }

    async fn try_begin_trace(&mut self, request: &TraceRequest) -> Result<Arc<Sightings>> {
        ensure!(self.forwarding.tracing.0.is_none(), "another trace is under way; try again later");
        let TraceRequest { rule, packet, packets, seconds } = request;
        ensure!((1..=PACKETS_MOST).contains(packets), "{packets} packets: 1 to {PACKETS_MOST}");
        ensure!((1..=SECONDS_MOST).contains(seconds), "{seconds} seconds: 1 to {SECONDS_MOST}");
        ensure!(
            packet.is_none() || rule.is_empty(),
            "a packet made by hand is not selected by a rule"
        );
        let filter = self.trace_filter(rule)?;
        let sightings = Arc::new(Sightings::new(*packets, self.forwarding.ledger.places()));
        let made = packet.as_deref().map(|words| self.make_packet(words)).transpose()?;
        let trace = |number| -> Option<Box<dyn Watch>> {
            Some(Box::new(Trace::new(number, filter.clone(), sightings.clone())))
        };
        let mut watching: Vec<_> = match made {
            // Other forwarders would take the place of the packet.
            Some(made) => vec![Watching { watch: trace(0), made: Some(made) }],
            None => {
                let all = (0..self.forwarders()).map(trace);
                all.map(|watch| Watching { watch, made: None }).collect()
            }
        };
        watching.resize_with(self.forwarders(), Watching::default);
        let old = self.exchange_watches(watching).await?;
        let made = old.into_iter().find_map(|old| old.watching?.made);
        if let Some(Made { outcome: Err(refusal), .. }) = made {
            self.end_watches().await;
            bail!("{}", refused(refusal));
        }
        Ok(sightings)
    }

    /// The filter whose first rule selects packets; `None`: all are.
    fn trace_filter(&self, rule: &[String]) -> Result<Option<Arc<FilterTable>>> {
        if rule.is_empty() {
            return Ok(None);
        }
        let spec = self.configurations.current.rule_of_words(rule).map_err(Error::msg)?;
        let table = FilterTable::new(&spec, None, &self.filtering.sets.readers());
        Ok(Some(Arc::new(table.map_err(Error::msg)?)))
    }

    /// Makes a packet of words. It is received by the port that it names, or that carries the VLAN or bond that it names.
    fn make_packet(&self, words: &str) -> Result<Made> {
        let number = |name: &str| self.interface_number(name);
        let made = acl::packet::make(words, number).map_err(Error::msg)?;
        let interface = made.interface.and_then(InterfaceId::new);
        let interface = interface.context("the packet's interface is missing: add in INTERFACE")?;
        let infos = self.routing.tables.interfaces.get();
        let info = infos.get(interface.index()).context("the interface has no device now")?;
        let mut frame = made.bytes;
        for (place, mac) in [(0..6, info.mac.0), (6..12, SOURCE)] {
            if frame[place.clone()] == [0; 6] {
                frame[place].copy_from_slice(&mac);
            }
        }
        let (lower, tags) = self.way_in(interface);
        frame.splice(ETHERNET_LEN - 2..ETHERNET_LEN - 2, tags);
        let port = self.receiving_port(lower)?;
        Ok(Made { port, frame, outcome: Err(Refusal::NotYet) })
    }

    /// The interface that carries another one's frames, and their tags.
    fn way_in(&self, interface: InterfaceId) -> (InterfaceId, Vec<u8>) {
        let vlans = self.configurations.current.vlans_on_wire();
        match vlans.into_iter().find(|vlan| vlan.interface == interface) {
            Some(vlan) => {
                let tags = [Some(vlan.tags.outer), vlan.tags.inner];
                (vlan.lower, tags.into_iter().flatten().flat_map(|tag| tag.bytes()).collect())
            }
            None => (interface, Vec::new()),
        }
    }

    /// A port, or the first one of a bond.
    fn receiving_port(&self, interface: InterfaceId) -> Result<PortId> {
        let of_bond = || self.configurations.current.bond(interface)?.ports.first().copied();
        interface.port().or_else(of_bond).context("no port receives for the interface")
    }

    /// Looks at the trace under way, and answers it if it is over.
    pub(super) async fn look_at_trace(&mut self) {
        let Some(running) = &mut self.forwarding.tracing.0 else { return };
        running.collect();
        if !running.is_over() {
            return;
        }
        self.end_watches().await;
        let Some(mut running) = self.forwarding.tracing.0.take() else { return };
        running.collect();
        let report = self.trace_report(running.seen, running.sightings.lost());
        reply(running.asker, Ok(report));
    }

    /// Takes the watches back from all forwarders.
    async fn end_watches(&mut self) {
        let none = (0..self.forwarders()).map(|_| Watching::default()).collect();
        if let Err(error) = self.exchange_watches(none).await {
            tracing::warn!("the trace goes on without a reader: {error:#}");
        }
    }

    async fn exchange_watches(&mut self, watching: Vec<Watching>) -> Result<Vec<Replacement>> {
        let with = |watching| Replacement { watching: Some(watching), ..Replacement::default() };
        let replacements = watching.into_iter().map(with).collect();
        let exchange = async |wiring: &mut Wiring| wiring.exchanges.exchange(replacements).await;
        self.with_wiring(exchange).await
    }
}

/// Explains why a packet made by hand did not run.
fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotYet => "the forwarder did not take the packet: a defect, please report",
        Refusal::KeptBySteps => {
            "the graph has steps that keep packets and send them later; trace received packets, by a rule"
        }
        Refusal::NoBuffer => "no packet buffer is free; try again later",
        Refusal::Panic => "a step panicked over the packet: a defect, see the log",
    }
}

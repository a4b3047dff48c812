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

use anyhow::{Context, Error, Result, anyhow, ensure};
use api::{Answer, TraceRequest};
use dataplane::graph::Target;
use dataplane::interface::InterfaceId;
use dataplane::port::PortId;
use dataplane::trace::{At, Sighting, Sightings, Trace};
use dataplane::watch::{Made, Refusal, StepOutcome, Watch};
use tokio::sync::oneshot;
use wire::ethernet::ETHERNET_LEN;

use super::Owner;
use super::questions::reply;
use super::watches::Selecting;

/// Most packets of a trace.
const PACKETS_MOST: u32 = 1000;

/// Longest time of a trace: an hour.
const SECONDS_MOST: u64 = 3600;

/// Source MAC of packets made by hand, unless they say another: locally administered.
const SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// The trace under way.
pub struct Tracing {
    sightings: Arc<Sightings>,
    filter: Selecting,
    /// True if the one packet is made by hand: forwarders but the first would take its place.
    is_made: bool,
    wanted: u32,
    until: Instant,
    asker: oneshot::Sender<Answer>,
    seen: Vec<Sighting>,
    /// Packets that have come to an end.
    ended: u32,
}

impl Tracing {
    /// The watch of a forwarder.
    pub(super) fn watch(&self, forwarder: usize) -> Option<Box<dyn Watch>> {
        (forwarder == 0 || !self.is_made).then(|| -> Box<dyn Watch> {
            Box::new(Trace::new(forwarder, self.filter.clone(), self.sightings.clone()))
        })
    }

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

/// The target of the output that a step gave the packet to; `None` at the entry, and for a packet that has none.
fn target(sighting: &Sighting) -> Option<Target> {
    match sighting.at {
        At::Step { place, way: StepOutcome::Output(output) } => {
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
        let (filter, made) = match self.check_trace(&request) {
            Ok(wanted) => wanted,
            Err(error) => return reply(asker, Err::<(), _>(error)),
        };
        let is_made = made.is_some();
        let wanted = if is_made { 1 } else { request.packets };
        let sightings = Arc::new(Sightings::new(wanted, self.forwarding.ledger.places()));
        let until = Instant::now() + Duration::from_secs(request.seconds);
        let (seen, ended) = (Vec::new(), 0);
        let trace = Tracing { sightings, filter, is_made, wanted, until, asker, seen, ended };
        self.forwarding.observers.trace = Some(trace);
        let made = self.exchange_watches(made).await;
        let refused = match made {
            Ok(Some(Made { outcome: Err(refusal), .. })) => {
                self.watch_without_trace().await.map(|trace| (trace, anyhow!(refused(refusal))))
            }
            Ok(_) => None,
            Err(error) => self.forwarding.observers.trace.take().map(|trace| (trace, error)),
        };
        match refused {
            Some((trace, error)) => reply(trace.asker, Err::<(), _>(error)),
            None => self.look_at_trace().await,
        }
    }

    fn check_trace(&self, request: &TraceRequest) -> Result<(Selecting, Option<Made>)> {
        let TraceRequest { rule, packet, packets, seconds } = request;
        let is_free = self.forwarding.observers.trace.is_none();
        ensure!(is_free, "another trace is under way; try again later");
        ensure!((1..=PACKETS_MOST).contains(packets), "{packets} packets: 1 to {PACKETS_MOST}");
        ensure!((1..=SECONDS_MOST).contains(seconds), "{seconds} seconds: 1 to {SECONDS_MOST}");
        let is_one = packet.is_none() || rule.is_empty();
        ensure!(is_one, "a packet made by hand is not selected by a rule");
        let made = packet.as_deref().map(|words| self.make_packet(words)).transpose()?;
        Ok((self.selecting(rule)?, made))
    }

    /// Takes the trace back from all forwarders.
    async fn watch_without_trace(&mut self) -> Option<Tracing> {
        let trace = self.forwarding.observers.trace.take();
        self.watch_on().await;
        trace
    }

    /// Makes a packet of words. It is received by the port that it names, or that carries the VLAN or bond that it names.
    fn make_packet(&self, words: &str) -> Result<Made> {
        let number = |name: &str| self.interface_named(name).map(|id| id.index() as u16);
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
        let Some(trace) = &mut self.forwarding.observers.trace else { return };
        trace.collect();
        if !trace.is_over() {
            return;
        }
        let Some(mut trace) = self.watch_without_trace().await else { return };
        trace.collect();
        let report = self.trace_report(trace.seen, trace.sightings.lost());
        reply(trace.asker, Ok(report));
    }
}

/// Explains why a packet made by hand did not run.
fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotYet => "the forwarder did not take the packet: a defect, please report",
        Refusal::KeptBySteps => {
            "the graph has steps that keep packets and send them later; trace received packets, by a rule"
        }
        Refusal::NoBuffer => "no packet buffer is free for it; shorten it, or try again later",
        Refusal::Panic => {
            "a step panicked over the packet, which is in quarantine: a defect, please report it"
        }
    }
}

//! The IPFIX exporter.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use api::report;
use control::config;
use dataplane::samples::Stock;
use samples::flows::{Cache, End, Flow, Limits, Sampled};
use samples::headers;
use samples::ipfix;

use super::collectors::Collectors;
use super::sampling::{Packet, Packets};
use super::{OwnerLink, number_of};

/// Most flows that end in a tick; more end in the next ones.
const ENDED_MOST: usize = 4096;

/// Identifier of a VLAN in the control field of its tag.
const VLAN: u16 = 0xfff;

/// Exports flows.
pub struct Exporter {
    settings: config::Ipfix,
    packets: Packets,
    collectors: Collectors,
    cache: Cache,
    messages: ipfix::Exporter,
    /// Time of the next transmission of the templates.
    next: Instant,
    /// Samples that are no IP packets.
    ignored: u64,
    /// Flows sent.
    exported: u64,
}

fn limits(settings: &config::Ipfix) -> Limits {
    Limits {
        most: settings.flows,
        active_ms: settings.active.as_millis() as u64,
        inactive_ms: settings.inactive.as_millis() as u64,
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Exporter {
    /// Creates it for the samples of a stock.
    pub fn new(settings: &config::Ipfix, stock: Arc<Stock>) -> Self {
        let mut collectors = Collectors::default();
        collectors.follow(&settings.sampled.collectors, settings.sampled.source);
        Self {
            settings: settings.clone(),
            packets: Packets { stock, unrouted: 0 },
            collectors,
            cache: Cache::new(limits(settings)),
            messages: ipfix::Exporter::new(settings.domain),
            next: Instant::now(),
            ignored: 0,
            exported: 0,
        }
    }

    /// Uses other settings. Flows so far are exported.
    pub fn follow(&mut self, settings: &config::Ipfix) {
        self.end();
        self.collectors.follow(&settings.sampled.collectors, settings.sampled.source);
        self.cache = Cache::new(limits(settings));
        if settings.domain != self.settings.domain {
            self.messages = ipfix::Exporter::new(settings.domain);
        }
        self.settings = settings.clone();
        self.next = Instant::now();
    }

    /// Exports all flows.
    pub fn end(&mut self) {
        let flows = self.cache.drain();
        self.send(None, &flows);
    }

    /// Counts sampled packets, and sends flows that have ended.
    pub async fn work(&mut self, owner: &OwnerLink) {
        self.collectors.open();
        if self.next <= Instant::now() || self.collectors.take_new() {
            self.next = Instant::now() + self.settings.templates;
            self.send(Some(self.settings.sampled.sample), &[]);
        }
        let mut ended = Vec::new();
        for packet in self.packets.take(owner).await {
            ended.extend(self.count(&packet));
        }
        ended.append(&mut self.cache.ended(now_ms(), ENDED_MOST));
        self.send(None, &ended);
    }

    /// Counts a packet; returns the flow whose place it needed.
    fn count(&mut self, packet: &Packet) -> Option<(Flow, End)> {
        let Some(headers) = &packet.headers else {
            self.ignored += 1;
            return None;
        };
        let path = packet.path.unwrap_or_default();
        let is_found = packet.path.is_some();
        let sampled = Sampled {
            headers,
            input: if is_found { path.input } else { number_of(packet.port.into()) },
            vlan: headers::tag(&packet.frame).unwrap_or(0) & VLAN,
            route: path.route,
        };
        self.cache.count(&sampled, now_ms())
    }

    fn send(&mut self, rate: Option<u32>, flows: &[(Flow, End)]) {
        let now_s = (now_ms() / 1000) as u32;
        for message in self.messages.messages(now_s, rate, flows) {
            self.collectors.send(&message);
        }
        self.exported += flows.len() as u64;
    }

    /// Returns its state.
    pub fn report(&self) -> report::Exporter {
        report::Exporter {
            name: config::exports::IPFIX.to_owned(),
            sample: self.settings.sampled.sample,
            sampled: self.packets.stock.sampled(),
            lost: self.packets.stock.records.lost(),
            unrouted: self.packets.unrouted,
            ignored: self.ignored,
            exported: self.exported,
            counters: None,
            flows: Some(self.cache.len() as u64),
            collectors: self.collectors.report(),
        }
    }
}

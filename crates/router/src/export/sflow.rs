//! The sFlow exporter.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::report;
use control::config;
use dataplane::samples::Stock;
use samples::sflow::{Encoded, FlowSample, InterfaceCounters, Packer, counters, flow};

use super::collectors::Collectors;
use super::sampling::{Packet, Packets};
use super::{InterfaceRow, OwnerLink, number_of};

/// Time between two looks at the router's addresses.
const ADDRESSES: Duration = Duration::from_secs(60);

/// Exports samples of packets and counters.
pub struct Exporter {
    settings: config::Sflow,
    packets: Packets,
    collectors: Collectors,
    packer: Packer,
    since: Instant,
    /// The numbers of samples, by source.
    sequences: HashMap<u32, u32>,
    /// The same of counters' samples.
    counter_sequences: HashMap<u32, u32>,
    /// Time of the next look at the interfaces.
    next: Instant,
    /// Samples of packets sent.
    samples: u64,
    /// Samples of counters sent.
    counters: u64,
}

impl Exporter {
    /// Creates it for the samples of a stock.
    pub fn new(settings: &config::Sflow, stock: Arc<Stock>, since: Instant) -> Self {
        let agent = settings.agent.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let mut exporter = Self {
            settings: settings.clone(),
            packets: Packets { stock, unrouted: 0 },
            collectors: Collectors::default(),
            packer: Packer::new(agent),
            since,
            sequences: HashMap::new(),
            counter_sequences: HashMap::new(),
            next: Instant::now(),
            samples: 0,
            counters: 0,
        };
        exporter.follow(settings);
        exporter
    }

    /// Uses other settings.
    pub fn follow(&mut self, settings: &config::Sflow) {
        let sampled = &settings.sampled;
        self.collectors.follow(&sampled.collectors, sampled.source);
        self.settings = settings.clone();
        self.next = Instant::now();
    }

    fn uptime_ms(&self) -> u32 {
        // As all agents' it begins anew after 49 days.
        self.since.elapsed().as_millis() as u32
    }

    /// Sends what is there.
    pub async fn work(&mut self, owner: &OwnerLink) {
        if self.next <= Instant::now() {
            self.look_at_interfaces(owner).await;
        }
        for packet in self.packets.take(owner).await {
            let sample = self.sample(&packet);
            self.samples += 1;
            self.put(sample);
        }
        if let Some(datagram) = self.packer.finish(self.uptime_ms()) {
            self.collectors.send(&datagram);
        }
    }

    fn put(&mut self, sample: Encoded) {
        if let Some(datagram) = self.packer.put(sample, self.uptime_ms()) {
            self.collectors.send(&datagram);
        }
    }

    fn sample(&mut self, packet: &Packet) -> Encoded {
        let source = number_of(packet.port.into());
        let stock = &self.packets.stock;
        flow(&FlowSample {
            sequence: following(&mut self.sequences, source),
            source,
            rate: packet.rate,
            // Counters of the format begin anew after their last number.
            pool: stock.seen(packet.port) as u32,
            drops: stock.records.lost() as u32,
            input: source,
            length: packet.length,
            header: &packet.frame,
            tag: samples::headers::tag(&packet.frame),
            route: packet.path.map(|path| path.route),
        })
    }

    /// Sends the counters, if they are wanted, and finds the router's address.
    async fn look_at_interfaces(&mut self, owner: &OwnerLink) {
        self.next = Instant::now() + self.settings.counters.unwrap_or(ADDRESSES);
        let Some(rows) = owner.interfaces().await else { return };
        let agent = self.settings.agent.or_else(|| address(&rows)).or(self.settings.sampled.source);
        self.packer.set_agent(agent.unwrap_or(Ipv4Addr::UNSPECIFIED.into()));
        if self.settings.counters.is_none() {
            return;
        }
        for row in rows.iter().filter(|row| row.kind != config::LOOPBACK) {
            let sequence = following(&mut self.counter_sequences, row.number);
            self.counters += 1;
            self.put(counters(sequence, &counted(row)));
        }
    }

    /// Returns its state.
    pub fn report(&self) -> report::Exporter {
        report::Exporter {
            name: config::exports::SFLOW.to_owned(),
            sample: self.settings.sampled.sample,
            sampled: self.packets.stock.sampled(),
            lost: self.packets.stock.records.lost(),
            unrouted: self.packets.unrouted,
            ignored: 0,
            exported: self.samples,
            counters: Some(self.counters),
            flows: None,
            collectors: self.collectors.report(),
        }
    }
}

fn following(sequences: &mut HashMap<u32, u32>, source: u32) -> u32 {
    let sequence = sequences.entry(source).or_default();
    *sequence = sequence.wrapping_add(1);
    *sequence
}

/// Returns an address of the router: a loopback's, or any.
fn address(rows: &[InterfaceRow]) -> Option<IpAddr> {
    let all = || {
        let of_loopbacks = rows.iter().filter(|row| row.kind == config::LOOPBACK);
        of_loopbacks.chain(rows).flat_map(|row| &row.addresses).copied()
    };
    all().find(IpAddr::is_ipv4).or_else(|| all().next())
}

/// Returns the type of an interface by its statement (IANAifType-MIB).
pub fn kind(statement: &str) -> u32 {
    match statement {
        "bond" => 161,
        "vlan" => 135,
        config::LOOPBACK => 24,
        _ => samples::sflow::ETHERNET_CSMACD,
    }
}

fn counted(row: &InterfaceRow) -> InterfaceCounters {
    let device = row.device;
    InterfaceCounters {
        index: row.number,
        kind: kind(&row.kind),
        speed: u64::from(device.and_then(|of| of.speed_mbps).unwrap_or(0)) * 1_000_000,
        full_duplex: device.and_then(|of| of.full_duplex),
        admin_up: true,
        oper_up: row.link == "up",
        in_octets: row.rx_bytes,
        // Narrow counters begin anew after their last number.
        in_packets: row.rx_packets as u32,
        in_discards: device.map(|of| of.rx_missed as u32),
        in_errors: device.map(|of| of.rx_errors as u32),
        out_octets: row.tx_bytes,
        out_packets: row.tx_packets as u32,
        out_errors: device.map(|of| of.tx_errors as u32),
        promiscuous: device.is_some_and(|of| of.promiscuous),
    }
}

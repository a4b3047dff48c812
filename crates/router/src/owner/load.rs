//! Load of forwarders, the queues that they serve, and their cores.

use std::collections::BTreeMap;

use api::report::{EventsReport, Forwarder, Forwarders, InterfaceQueue, Rss, Waiting};
use control::config::{SoftwareQueue, key_text};
use dataplane::counters::ForwarderCounters;
use dataplane::polling::Wait;
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::reason::DropReason;
use machine::cores;
use machine::list_text;

use super::super::events::EventMode;
use super::super::ports::OpenPort;
use super::super::reports::ForwarderView;
use super::super::settings;
use super::super::wiring::Wiring;
use super::Owner;

/// A forwarder that is busier than this may have too much.
const MUCH: f64 = 20.0;

/// One that is less busy than this is idle.
const LITTLE: f64 = 5.0;

/// A forwarder's counters at a look, or their difference between two.
#[derive(Clone, Debug)]
struct Sample {
    /// Busy cycles.
    busy: u64,
    /// Idle cycles.
    idle: u64,
    /// Packets from other forwarders that software spread.
    spread_in: u64,
    /// Received packets, by the ports' indexes.
    received: [u64; MAX_PORTS],
}

impl Default for Sample {
    fn default() -> Self {
        Self { busy: 0, idle: 0, spread_in: 0, received: [0; MAX_PORTS] }
    }
}

impl Sample {
    fn of(counters: &ForwarderCounters) -> Self {
        let ports = (0..MAX_PORTS as u16).filter_map(PortId::new);
        let mut received = [0; MAX_PORTS];
        ports.for_each(|port| received[port.index()] = counters.rx(port).packets.get());
        let (busy, idle) = (counters.busy.get(), counters.idle.get());
        Self { busy, idle, spread_in: counters.spread_in.get(), received }
    }

    fn since(&self, before: &Self) -> Self {
        let received = |port: usize| self.received[port].saturating_sub(before.received[port]);
        Self {
            busy: self.busy.saturating_sub(before.busy),
            idle: self.idle.saturating_sub(before.idle),
            spread_in: self.spread_in.saturating_sub(before.spread_in),
            received: std::array::from_fn(received),
        }
    }
}

/// Load of forwarders between two looks.
#[derive(Default)]
pub(super) struct Loads {
    /// At the last look, by forwarder.
    last: Vec<Sample>,
    /// Between the one before and that.
    between: Vec<Sample>,
}

impl Loads {
    /// To be called from time to time.
    pub(super) fn look(&mut self, views: &[ForwarderView]) {
        self.take(views.iter().map(|view| Sample::of(&view.counters)).collect());
    }

    fn take(&mut self, now: Vec<Sample>) {
        self.last.resize_with(now.len(), Sample::default);
        self.between = now.iter().zip(&self.last).map(|(now, last)| now.since(last)).collect();
        self.last = now;
    }

    /// The part of the time in which a forwarder had packets, in percent.
    pub(super) fn percent(&self, forwarder: usize) -> f64 {
        let Some(&Sample { busy, idle, .. }) = self.between.get(forwarder) else { return 0.0 };
        if busy + idle == 0 { 0.0 } else { 100.0 * busy as f64 / (busy + idle) as f64 }
    }

    /// The part of a forwarder's packets that were received by this port, 0 to 1.
    pub(super) fn part_of(&self, port: PortId, forwarder: usize) -> f64 {
        let Some(Sample { spread_in, received, .. }) = self.between.get(forwarder) else {
            return 0.0;
        };
        let all = received.iter().sum::<u64>() + spread_in;
        received[port.index()] as f64 / all.max(1) as f64
    }
}

impl Owner {
    /// Returns the reports of all forwarders.
    pub(super) fn forwarder_reports(&self) -> Forwarders {
        let Some(wiring) = &self.forwarding.wiring else {
            return Forwarders::default();
        };
        let seats = wiring.seats();
        let report = |(number, view): (usize, &ForwarderView)| {
            let (counters, seat) = (&view.counters, seats.get(number)?);
            let received: u64 =
                self.devices.ports.iter().map(|port| counters.rx(port.id).packets.get()).sum();
            let (spread_out, spread_in) = (counters.spread_out.get(), counters.spread_in.get());
            let own = |queues: &[Option<usize>]| queues.get(number).copied().flatten();
            let rx = |port: &OpenPort| {
                let queues = wiring.receivers(port.id).iter().enumerate();
                let own = queues.filter(|(_, forwarder)| **forwarder == number);
                own.map(|(queue, _)| format!("{}:{queue}", port.name)).collect::<Vec<_>>()
            };
            let tx = |port: &OpenPort| {
                let queue = own(wiring.senders(port.id))?;
                Some(format!("{}:{queue}", port.name))
            };
            Some(Forwarder {
                number,
                core: seat.core,
                control: seat.is_control,
                node: seat.node,
                busy_percent: self.forwarding.loads.percent(number),
                packets: (received + spread_in).saturating_sub(spread_out),
                bursts: counters.batches(),
                pool_takes: counters.pool_takes.get(),
                pool_gives: counters.pool_gives.get(),
                busy_cycles: counters.busy.get(),
                idle_cycles: counters.idle.get(),
                waiting: self.waiting(wiring, number, counters),
                spread_out,
                spread_in,
                rx: self.devices.ports.iter().flat_map(rx).collect(),
                tx: self.devices.ports.iter().filter_map(tx).collect(),
                interference: self.interference(number),
            })
        };
        let forwarders: Vec<_> = self.forwarding.ledger.running().filter_map(report).collect();
        let (own, _) = forwarders.split_at(wiring.forwarders().min(forwarders.len()));
        // With an event device the first forwarder has other work than the rest.
        let uneven = uneven(own).filter(|_| wiring.events().is_none());
        let mut advice: Vec<_> = uneven.into_iter().collect();
        advice.extend(self.devices.ports.iter().filter_map(|port| self.distance(port)));
        advice.extend(self.devices.ports.iter().filter_map(|port| self.silence(port)));
        advice.extend(cores::sharing(&self.forwarding.cores));
        let scheduler = wiring.events().filter(|mode| mode.has_scheduler());
        let scheduler = scheduler.and_then(|mode| mode.settings.scheduler_core);
        advice.extend(scheduler.and_then(|core| beside(core, &self.forwarding.cores.forward)));
        advice.extend(forwarders.iter().filter_map(elsewhere));
        Forwarders {
            forwarders,
            control: self.forwarding.cores.control.clone(),
            moved: self.forwarding.balance.moves,
            moved_entries: self.forwarding.balance.entries,
            events: wiring.events().map(|mode| self.events_report(mode)),
            advice,
        }
    }

    /// Returns the report of the event device.
    fn events_report(&self, mode: &EventMode) -> EventsReport {
        let views = &self.forwarding.ledger.forwarders;
        let sum =
            |of: fn(&ForwarderCounters) -> u64| views.iter().map(|view| of(&view.counters)).sum();
        let device = &mode.device;
        EventsReport {
            device: device.name().to_owned(),
            driver: device.driver().to_owned(),
            order: device.order().name().to_owned(),
            queues: device.classes(),
            scheduler: mode.has_scheduler(),
            in_flight: device.in_flight(),
            returned: device.returned(),
            reordered: sum(|counters| counters.reordered.get()),
            full: sum(|counters| counters.drops.get(DropReason::EventDeviceFull)),
        }
    }

    /// The waiting of one forwarder.
    fn waiting(&self, wiring: &Wiring, number: usize, counters: &ForwarderCounters) -> Waiting {
        let settings = settings::of_forwarders(&self.configurations.current);
        let receives = |port: &&OpenPort| wiring.receivers(port.id).contains(&number);
        let ports = || self.devices.ports.iter().filter(receives);
        let is_control = wiring.seats().get(number).is_some_and(|seat| seat.is_control);
        let wait = match is_control {
            true => Wait::Interrupt,
            false => settings.polling.wait_of(ports().map(|port| port.id)),
        };
        let silent = ports().filter(|port| wait != Wait::Poll && !port.port.has_rx_interrupts());
        let blocked = counters.blocked.get() as f64 / dpdk::tsc_hz() as f64;
        Waiting {
            wait: wait.name().to_owned(),
            without_interrupts: silent.map(|port| port.name.clone()).collect(),
            blocking: counters.blocking.get() > 0,
            sleeps: counters.sleeps.get(),
            blocks: counters.blocks.get(),
            blocked_ms: (blocked * 1000.0) as u64,
            woken_by_receive: counters.woken_by_receive.get(),
            woken_by_ring: counters.woken_by_ring.get(),
            woken_by_control: counters.woken_by_control.get(),
        }
    }

    /// The interfaces' queues in software.
    pub(super) fn queue_reports(&self) -> Vec<InterfaceQueue> {
        let report = |of: SoftwareQueue| {
            let SoftwareQueue { interface, queue, shape } = of;
            InterfaceQueue {
                interface: self.interface_name(interface),
                queue: queue.to_string(),
                shape: shape.map(|shape| shape.to_string()),
                classes: self.forwarding.ledger.queue_classes(interface, queue.discipline),
            }
        };
        self.configurations.current.software_queues().into_iter().map(report).collect()
    }

    /// Returns the report of each port's spreading.
    pub(super) fn rss_reports(&self) -> Vec<Rss> {
        self.devices.ports.iter().map(|port| self.rss(port)).collect()
    }

    fn rss(&self, port: &OpenPort) -> Rss {
        let none = Rss {
            port: port.name.clone(),
            spread: "none".to_owned(),
            function: None,
            fields: Vec::new(),
            key: None,
            queues: port.queues.0,
            control_queue: control_queue(port),
            table: Vec::new(),
        };
        let Some(wiring) = &self.forwarding.wiring else { return none };
        let forwarders = wiring.forwarders();
        let plan = wiring.plan_of(port.id).and_then(|plan| plan.spread.as_ref());
        if let Some(software) = plan.filter(|_| forwarders > 1) {
            let names = match software.hashes_ports() {
                true => &["ipv4", "ipv4-tcp", "ipv4-udp", "ipv6", "ipv6-tcp", "ipv6-udp"][..],
                false => &["ipv4", "ipv6"][..],
            };
            return Rss {
                spread: "software".to_owned(),
                function: Some("toeplitz".to_owned()),
                fields: names.iter().map(|&name| name.to_owned()).collect(),
                key: Some(key_text(software.key())),
                table: software.table(forwarders).map(Vec::from).unwrap_or_default(),
                ..none
            };
        }
        let Some(hardware) = port.port.rss() else { return none };
        Rss {
            spread: "hardware".to_owned(),
            function: Some("toeplitz".to_owned()),
            fields: hardware.fields.into_iter().map(str::to_owned).collect(),
            key: hardware.key.as_deref().map(key_text),
            table: hardware.table,
            ..none
        }
    }

    /// Warns once of ports whose queues are served from another NUMA node than theirs.
    pub(crate) fn warn_of_distance(&mut self) {
        let told = |port: &OpenPort| Some((port.id, self.distance(port)?));
        let now: BTreeMap<_, _> = self.devices.ports.iter().filter_map(told).collect();
        for (port, sentence) in &now {
            if self.devices.distances.get(port) != Some(sentence) {
                tracing::warn!("{sentence}");
            }
        }
        self.devices.distances = now;
    }

    /// Logs, once for each port without receive interrupts, that its forwarder cannot block.
    pub(crate) fn warn_of_silence(&mut self) {
        let said = |port: &OpenPort| Some((port.id, self.silence(port)?));
        let now: BTreeMap<_, _> = self.devices.ports.iter().filter_map(said).collect();
        for (port, sentence) in &now {
            if !self.devices.silent.contains(port) {
                tracing::info!("{sentence}");
            }
        }
        self.devices.silent = now.into_keys().collect();
    }

    /// A port that cannot wake a forwarder although it should, in a sentence.
    fn silence(&self, port: &OpenPort) -> Option<String> {
        let settings = settings::of_forwarders(&self.configurations.current);
        let polls = settings.polling.wait_of([port.id].into_iter()) == Wait::Poll;
        (!polls && !port.port.has_rx_interrupts()).then(|| {
            format!(
                "port \"{}\" ({}) has no receive interrupts: its forwarder cannot block, and sleeps for up to \
                 50 us at a time, which takes some percent of a core",
                port.name,
                port.port.driver()
            )
        })
    }

    /// The queues of a port that are served from far, in a sentence.
    fn distance(&self, port: &OpenPort) -> Option<String> {
        let node = port.node?;
        let far = self.forwarding.wiring.as_ref()?.remote(port.id);
        let queues: Vec<_> =
            far.iter().map(|(queue, core)| format!("{queue} (core {core})")).collect();
        (!queues.is_empty()).then(|| {
            format!(
                "port \"{}\" is on NUMA node {node}, and its receive queues {} are served from another, which \
                 costs some dozens of nanoseconds a packet; forwarders on cores of node {node} mend it \
                 (turnpike.cores, rx_cores)",
                port.name,
                queues.join(", ")
            )
        })
    }
}

/// The receive queue of a port for control traffic.
pub(super) fn control_queue(port: &OpenPort) -> Option<usize> {
    port.port.control_queues().rx.then(|| port.queues.0 - 1)
}

/// A forwarder whose core the kernel has refused or taken away, in a sentence.
fn elsewhere(Forwarder { number, core, interference, .. }: &Forwarder) -> Option<String> {
    let allowed = &interference.as_ref()?.allowed;
    (allowed != &[*core]).then(|| {
        format!(
            "forwarder {number} runs on core {} instead of {core}, which is outside the process's cpuset; give it \
             the core (systemd: AllowedCPUs=), or name others in turnpike.cores {{ forward }}",
            list_text(allowed)
        )
    })
}

/// A forwarder that has much to do beside one that has nothing, in a sentence.
/// A sentence on a scheduler that shares the core of a worker; the receiver's, the first of these cores, it may share.
fn beside(scheduler: usize, cores: &[usize]) -> Option<String> {
    let (&receiver, workers) = cores.split_first()?;
    (scheduler != receiver && workers.contains(&scheduler)).then(|| {
        format!(
            "the scheduler of the event device shares core {scheduler} with a forwarder that runs the graph: each waits \
             for the other; give it a core of its own, or the receiver's: scheduler_core = {receiver}"
        )
    })
}

fn uneven(forwarders: &[Forwarder]) -> Option<String> {
    let by_load =
        |one: &&Forwarder, other: &&Forwarder| one.busy_percent.total_cmp(&other.busy_percent);
    let (idle, busy) = (forwarders.iter().min_by(by_load)?, forwarders.iter().max_by(by_load)?);
    if busy.busy_percent < MUCH || idle.busy_percent > LITTLE {
        return None;
    }
    let way_out = match busy.rx.len() {
        0 | 1 => {
            "more rx_queues on the port that is busy, else spread = \"software\", give it packets"
                .to_owned()
        }
        _ => format!("rx_cores moves one of the queues {} to it", busy.rx.join(", ")),
    };
    Some(format!(
        "forwarder {} (core {}) is busy {:.0} % of the time, forwarder {} (core {}) {:.0} %; {way_out}",
        busy.number, busy.core, busy.busy_percent, idle.number, idle.core, idle.busy_percent
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::report::Interference;

    fn forwarder(number: usize, busy_percent: f64, rx: &[&str]) -> Forwarder {
        let rx = rx.iter().map(|&queue| queue.to_owned()).collect();
        Forwarder { number, core: number + 1, busy_percent, rx, ..Forwarder::default() }
    }

    #[test]
    fn a_busy_forwarder_beside_an_idle_one_is_pointed_out_with_the_way_out() {
        let say = |busy, idle, rx: &[&str]| {
            uneven(&[forwarder(0, busy, rx), forwarder(1, idle, &[]), forwarder(2, 12.0, &[])])
        };
        assert_eq!(
            say(91.6, 0.4, &["wan:0", "lan:0"]).unwrap(),
            "forwarder 0 (core 1) is busy 92 % of the time, forwarder 1 (core 2) 0 %; rx_cores moves one of the \
             queues wan:0, lan:0 to it"
        );
        assert!(say(91.6, 0.4, &["wan:0"]).unwrap().contains("more rx_queues"));
        assert_eq!(say(15.0, 0.0, &["wan:0"]), None, "there is time enough");
        assert_eq!(say(90.0, 30.0, &["wan:0"]), None, "both work");
        assert_eq!(uneven(&[]), None);
    }

    #[test]
    fn a_forwarder_that_is_not_on_its_core_is_named() {
        let on = |allowed: &[usize]| {
            let interference =
                Some(Interference { allowed: allowed.to_vec(), ..Interference::default() });
            elsewhere(&Forwarder { interference, ..forwarder(0, 0.0, &[]) })
        };
        assert_eq!(on(&[1]), None);
        let said = on(&[0, 2]).unwrap();
        assert!(said.starts_with("forwarder 0 runs on core 0,2 instead of 1, which"), "{said}");
    }

    #[test]
    fn a_scheduler_on_a_worker_s_core_is_named() {
        assert_eq!(beside(3, &[1, 2, 4]), None, "a core of its own");
        assert_eq!(beside(1, &[1, 2, 4]), None, "the receiver's");
        assert_eq!(beside(1, &[1, 1, 2]), None, "which a worker shares as well");
        let said = beside(4, &[1, 2, 4]).unwrap();
        assert!(said.contains("shares core 4") && said.ends_with("scheduler_core = 1"), "{said}");
    }

    #[test]
    fn shares_are_those_since_the_last_look() {
        let mut loads = Loads::default();
        let sample = |[busy, idle]: [u64; 2]| Sample { busy, idle, ..Sample::default() };
        loads.take(vec![sample([100, 300])]);
        assert_eq!(loads.percent(0), 25.0);
        loads.take(vec![sample([190, 310]), sample([0, 0])]);
        assert_eq!((loads.percent(0), loads.percent(1), loads.percent(2)), (90.0, 0.0, 0.0));
    }

    #[test]
    fn packets_of_a_port_are_a_part_of_all_since_the_last_look() {
        let mut loads = Loads::default();
        let port = |number| PortId::new(number).unwrap();
        let mut sample = Sample::default();
        (sample.received[0], sample.received[1]) = (1000, 500);
        loads.take(vec![sample.clone()]);
        (sample.received[0], sample.received[1], sample.spread_in) = (1060, 520, 20);
        loads.take(vec![sample]);
        let parts = [0, 1, 2].map(|number| loads.part_of(port(number), 0));
        assert_eq!((parts, loads.part_of(port(0), 1)), ([0.6, 0.2, 0.0], 0.0));
    }
}

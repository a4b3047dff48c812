//! Queues of ports for control traffic, and the rules that lead to them: see [`super::super::control_rules`].
//!
//! The wanted rules follow the router's own addresses, including those configured in the kernel. They are compared with
//! the device's after each change of the configuration and from time to time, so a reopened device gets its rules.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::report::{ControlQueue, ControlRule, LearnedFlow};
use control::config::{self, Config, Driver};
use dataplane::own::OwnAddresses;
use dpdk::ControlQueues;

use super::super::control_rules::{HostFlow, Shown};
use super::super::ports::OpenPort;
use super::super::virtuals;
use super::Owner;
use super::turn::Turn;

/// The most that a change waits for devices to take rules; they get the rest behind it.
const PATIENCE: Duration = Duration::from_millis(20);

/// Flows of the host that are taken in at once.
const LESSONS: usize = 64;

impl Owner {
    /// Gives devices the rules for control traffic of the current configuration. To be called from time to time.
    pub(crate) fn steer_control(&mut self) {
        let turn = Turn::begin();
        let config = self.configurations.current.clone();
        self.steer(&config, || turn.has_time());
    }

    /// The same for a configuration that is about to be in force.
    pub(super) fn steer_control_for(&mut self, config: &Config) {
        let begin = Instant::now();
        self.steer(config, || begin.elapsed() < PATIENCE);
    }

    fn steer(&mut self, config: &Config, has_time: impl Fn() -> bool) {
        let learns = config.forwarders.control_queue && config.forwarders.learned_flows > 0;
        for open in self.devices.ports.iter_mut() {
            if !open.port.control_queues().rx {
                self.slow_path.learned.learning.set(open.id, false);
                continue;
            }
            let wanted = config.port(open.id).filter(|port| port.queues.control);
            match wanted {
                Some(port) => {
                    open.steered.follow(&own_addresses(config, port, &self.routing.tables.own))
                }
                None => open.steered.stop(),
            }
            go_on(open, &has_time);
            let learns = learns && wanted.is_some() && open.steered.refused().is_none();
            self.slow_path.learned.learning.set(open.id, learns);
        }
    }

    /// Takes in the flows that the host has begun. To be called often.
    pub(super) fn learn_flows(&mut self) {
        let (turn, now) = (Turn::begin(), Instant::now());
        let most = self.learned_most();
        for _ in 0..LESSONS {
            if !turn.has_time() {
                return;
            }
            let Some((port, flow)) = self.slow_path.learned.take() else { return };
            let open = self.devices.ports.iter_mut().find(|open| open.id == port);
            // The port was closed, or reopened without such a queue.
            let Some(open) = open.filter(|open| open.port.control_queues().rx) else { continue };
            open.steered.learn(&open.port, flow, most, now);
        }
    }

    /// Removes unused learned rules. To be called from time to time.
    pub(super) fn age_flows(&mut self) {
        let (most, now) = (self.learned_most(), Instant::now());
        for open in self.devices.ports.iter_mut() {
            open.steered.age(&open.port, most, now);
        }
    }

    /// Flows that a device is given at most.
    fn learned_most(&self) -> usize {
        self.configurations.current.forwarders.learned_flows.into()
    }

    /// The queues for control traffic, by port.
    pub(super) fn control_queue_reports(&self) -> Vec<ControlQueue> {
        self.devices.ports.iter().map(|open| self.control_queue(open)).collect()
    }

    fn control_queue(&self, open: &OpenPort) -> ControlQueue {
        let ControlQueues { rx, tx, why } = open.port.control_queues();
        let config = &self.configurations.current;
        let off = config.port(open.id).and_then(|port| off(config, port));
        let refused = open.steered.refused().map(|why| format!("{}: {why}", open.device));
        let rule = |Shown { what, packets, why }| ControlRule { what, packets, why };
        let flow = |(flow, idle): (HostFlow, Duration)| LearnedFlow {
            flow: flow.to_string(),
            idle_s: idle.as_secs(),
        };
        let counts = open.steered.counts();
        ControlQueue {
            port: open.name.clone(),
            rx: rx.then(|| open.queues.0 - 1),
            tx: tx.then(|| open.queues.1 - 1),
            sender: self.forwarding.wiring.as_ref().and_then(|wiring| wiring.sender(open.id)),
            why: off.or_else(|| why.clone()).or(refused),
            rules: open.steered.shown(&open.port).into_iter().map(rule).collect(),
            flows: open.steered.flows(Instant::now()).into_iter().map(flow).collect(),
            learned: counts.learned,
            aged: counts.aged,
            displaced: counts.displaced,
            refused: counts.refused,
            unlearned: self.slow_path.learned.learning.unlearned(open.id),
        }
    }
}

/// Returns the router's addresses in the VRFs of a port, its bond and its VLANs.
fn own_addresses(config: &Config, port: &config::Port, own: &OwnAddresses) -> Vec<IpAddr> {
    let uppers = virtuals::on_port(config, port);
    let mut vrfs: Vec<_> = uppers.map(|of| of.interface.settings.vrf).collect();
    vrfs.extend(port.bond.is_none().then_some(port.interface.settings.vrf));
    vrfs.sort_unstable();
    vrfs.dedup();
    let mut all: Vec<_> = vrfs.into_iter().flat_map(|vrf| own.all(vrf)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the reason for which a port has no queues for control traffic by configuration.
fn off(config: &Config, port: &config::Port) -> Option<String> {
    let why = match (config.forwarders.control_queue, port.driver, port.queues.control) {
        (false, ..) => "turnpike.forwarders { control_queue = true } is not set",
        (true, Some(Driver::AfPacket), _) => {
            "driver = \"af_packet\", whose sockets receive all packets of their interface; AF_XDP has a control queue"
        }
        (true, _, false) => "control_queue = false",
        (true, _, true) => return None,
    };
    Some(why.to_owned())
}

/// Gives a device its waiting rules, and logs the result.
fn go_on(open: &mut OpenPort, has_time: impl Fn() -> bool) {
    if !open.steered.is_busy() {
        return;
    }
    let (name, device) = (&open.name, &open.device);
    if let Some(why) = open.steered.go_on(&open.port, has_time) {
        tracing::error!(
            "port \"{name}\": {device} does not let go of rules for control traffic: {why}; tried again"
        );
    }
    if let Some(why) = open.steered.refused() {
        tracing::warn!(
            "port \"{name}\": no control traffic comes by its queue: {device}: {why}; forwarders receive it"
        );
    } else if let Some((held, wanted)) = open.steered.take_report() {
        let queue = open.queues.0 - 1;
        tracing::info!(
            "port \"{name}\": {held} of {wanted} rules of {device} lead control traffic to receive queue {queue}"
        );
    }
}

//! The owner: holds the RIB, handles events of the slow path and of route sources, requests of the API, and signals.
//!
//! ```text
//!   API clients --- Question ----+
//!   kernel, zebra - batches -----+
//!   slow path ----- Event -------+--> Owner (one task) --- Order --> slow path
//!   signals --- SignalRequest ---+        |    +---------- KernelOrder --> kernel
//!   links --- PortNotification --+
//!   every 10 ms --- tick --------+        +--> FIB, next-hop table (read by forwarders)
//! ```
//!
//! Everything runs on the main thread's tokio runtime, so nothing here is shared or locked. Each turn of the loop works
//! for some milliseconds at most ([`turn`]): one page of an answer, as many events or routes as there is time for. In
//! every turn signals and links come first and the API's tasks last; the order of the others is random, so that no
//! flood of one kind delays the others.
//!
//! All queues to the owner are bounded: events of neighbours are merged (`slow_worker/events.rs`), routes wait with
//! their sources, and while a worker has many orders no more routes are taken in.
//!
//! | file | concern |
//! |---|---|
//! | `initial.rs` | the configuration's RIB |
//! | `sources.rs`, `events.rs`, `limiter.rs` | events of the kernel and zebra |
//! | `turn.rs`, `clock.rs` | time limit of a turn; ticks |
//! | `watch.rs` | all notifications about devices |
//! | `links.rs` | changes of ports' links |
//! | `filters.rs` | the multicasts that devices pass on |
//! | `packet_filters.rs`, `hardware_filters.rs` | packet filters, and their rules in devices |
//! | `virtual_macs.rs` | virtual MACs of redundancy protocols |
//! | `control_queues.rs` | receive queues for control traffic, and the rules that lead to them |
//! | `flows.rs` | the flows of packet filters |
//! | `hotplug.rs` | devices that are taken away and put back |
//! | `health.rs`, `faults.rs` | ports in trouble, DMA faults |
//! | `questions.rs`, `flow.rs`, `topology.rs` | answers to the API |
//! | `changes.rs` | changes by commands |
//! | `commands.rs` | commands in Lua |
//! | `multicast.rs` | multicast routes |
//! | `fibs.rs` | route tables of another structure |
//! | `slow_path.rs` | another number of slow path workers |
//! | `accelerate.rs`, `accelerated_vlans.rs` | the packets that accelerated interfaces take from the kernel |
//! | `kernel_rules.rs`, `kernel_flows.rs` | the kernel's rules and flows, as they concern accelerated interfaces |
//! | `configurations.rs`, `apply.rs`, `history.rs` | changes to another configuration |
//! | `ports.rs` | ports that come, go and change |
//! | `meanwhile.rs` | other work while a change waits for forwarders |
//! | `load.rs` | load of forwarders, and their queues |
//! | `trace.rs`, `captures.rs`, `watches.rs` | traces and captures of packets |
//! | `api.rs` | the API over HTTP, roles of users |
//! | `exports.rs` | the thread of exporters: its settings, answers to it |
//! | `metrics.rs` | the state for scrapes of metrics |
//! | `state.rs` | what the owner holds, by concern |

mod accelerate;
mod accelerated_bonds;
mod accelerated_vlans;
mod api;
mod apply;
mod bonds;
mod captures;
mod changes;
mod clock;
mod commands;
mod configurations;
mod control_queues;
mod events;
mod exports;
mod faults;
mod fibs;
mod filter_log;
mod filters;
mod flow;
mod flows;
mod found_vlans;
mod handlers;
mod hardware_filters;
mod health;
mod history;
mod hotplug;
mod imports;
mod in_kernel;
mod initial;
mod interfaces;
mod interference;
mod kernel_flows;
mod kernel_rules;
mod limiter;
mod links;
mod load;
mod meanwhile;
mod metrics;
mod mirrors;
mod multicast;
mod namespace;
mod packet_filters;
mod ports;
mod prefix_sets;
mod questions;
mod rebalance;
mod slow_path;
mod sources;
mod state;
mod topology;
mod trace;
mod turn;
mod virtual_macs;
mod virtuals;
mod vrfs;
mod watch;
mod watches;

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::{Context, Result};
use control::netlink::KernelOrder;
use control::rib::{Error as RibError, Rib};
use dataplane::interface::InterfaceId;
use dataplane::words::count;
use nix::sys::signal::Signal;
use slowpath::Event;
use tokio::sync::mpsc;

use super::Listeners;
use super::export;
use super::last_resort::Course;
use super::manager::State;
use super::ports::{OpenPort, Ports};
use super::runtime;
use super::server::Service;
use super::signals::{SignalRequest, Signals};
use super::slow_worker::SlowWorker;
use super::wiring::Wiring;
use accelerate::Accelerated;
use clock::Clock;
use found_vlans::FoundVlans;
use handlers::Counts;
use meanwhile::{Inputs, Later};
use state::Serving;
use turn::Turn;
use watch::Watch;

pub use captures::CaptureAsker;
pub use configurations::Configurations;
pub use filters::WantedMulticasts;
pub use handlers::Edit;
pub use initial::{NewFibs, Readers, StaticRoutes, build_rib, new_fibs};
pub use multicast::Groups;
pub use sources::Sources;
pub use state::{Devices, Filtering, Forwarding, Routing, SlowPathLink};

/// Ticks between two looks at the RIB's deferred work, at devices that do not report changes of their link, and for
/// absent devices.
const SLOW_TICKS: u32 = 10;

/// Ticks between two looks at devices' counters.
const HEALTH_TICKS: u32 = 100;

/// Ticks between two packets of a multicast route that are copied to the kernel.
const SAMPLE_TICKS: u32 = 1000;

/// Ticks between two looks at the load of forwarders.
const LOAD_TICKS: u32 = 100;

/// Events of the slow path that change the RIB together.
const EVENTS: usize = 64;

/// The main thread's part of the router.
pub struct Owner {
    // Dropped before the devices whose queues it has.
    forwarding: Forwarding,
    devices: Devices,
    routing: Routing,
    slow_path: SlowPathLink,
    filtering: Filtering,
    configurations: Configurations,
    serving: Serving,
    counts: Counts,
    found_vlans: FoundVlans,
    accelerated: Accelerated,
    since: Instant,
}

impl Owner {
    /// Passes the RIB's commands to the slow path, and the configured addresses to the kernel.
    pub fn new(
        routing: Routing,
        devices: Devices,
        forwarding: Forwarding,
        slow_path: SlowPathLink,
        filtering: Filtering,
        configurations: Configurations,
    ) -> Self {
        filtering.sets.retain(&configurations.current.sets);
        let (serving, counts) = (Serving::default(), Counts::new());
        let mut owner = Self {
            routing,
            devices,
            forwarding,
            slow_path,
            filtering,
            configurations,
            serving,
            counts,
            found_vlans: FoundVlans::default(),
            accelerated: Accelerated::default(),
            since: Instant::now(),
        };
        owner.pass_commands();
        let of_ports = owner.devices.ports.iter().map(|port| (port.id.into(), &port.addresses));
        let of_virtuals = owner.devices.virtuals.values().map(|of| (of.id, &of.addresses));
        for (port, addresses) in of_ports.chain(of_virtuals) {
            for &address in addresses {
                owner.routing.sources.order(KernelOrder::AddAddress { port, address });
            }
        }
        let config = owner.configurations.current.clone();
        owner.configure_bonds(&config);
        owner
    }

    /// The forwarders and their connections; `None` never, but while the owner serves.
    pub fn wiring(&mut self) -> Option<&mut Wiring> {
        self.forwarding.wiring.as_mut()
    }

    /// Serves the API, telnet and metrics until a signal ends the router.
    pub fn serve(&mut self, listeners: Listeners, signals: Signals) -> Result<Option<Signal>> {
        let runtime = runtime::build("owner-aside", None)?;
        runtime.block_on(self.attend(listeners, signals))
    }

    async fn attend(&mut self, listeners: Listeners, signals: Signals) -> Result<Option<Signal>> {
        let course = signals.course().clone();
        self.begin_serving(listeners, signals).await?;
        let mut clock = Clock::start();
        let ended_by = loop {
            if let ControlFlow::Break(ended_by) = self.turn(&mut clock).await {
                break ended_by;
            }
            // The API's tasks run, and signals and sockets are looked at.
            tokio::task::yield_now().await;
        };
        self.end_serving(ended_by, &course);
        Ok(ended_by)
    }

    /// Starts the API, telnet and metrics, and follows signals, devices and interfaces.
    async fn begin_serving(&mut self, mut listeners: Listeners, signals: Signals) -> Result<()> {
        let (ask, questions) = mpsc::channel(16);
        listeners.socket.path().clone_into(&mut self.serving.socket);
        let (metrics, api) = (listeners.metrics.take(), listeners.api.take());
        self.serving.roles = listeners.roles.clone();
        let mut service = Service::start(listeners, ask)?;
        service.serve_scripts(&self.configurations.current.elements);
        self.serving.service = Some(service);
        let watch = self.watch()?;
        self.serving.inputs = Some(Inputs { signals: signals.wait(), watch, questions });
        self.follow_interfaces().await;
        self.serve_metrics(metrics);
        self.serve_api(api);
        let config = self.configurations.current.clone();
        self.serve_exports(&config);
        self.publish_metrics();
        Ok(())
    }

    /// One turn of the loop. Breaks, with the signal if there was one, when the router must end.
    async fn turn(&mut self, clock: &mut Clock) -> ControlFlow<Option<Signal>> {
        self.run_deferred().await;
        if self.serving.later.ended.is_some() {
            return ControlFlow::Break(self.serving.later.ended);
        }
        self.take_signals_and_links().await?;
        let busy = self.is_busy();
        let Some(Inputs { signals, watch, questions }) = &mut self.serving.inputs else {
            return ControlFlow::Break(None);
        };
        tokio::select! {
            request = signals.next() => self.on_signal(request)?,
            notification = watch.next() => self.on_port_event(notification).await,
            Some(question) = questions.recv() => self.answer(question).await,
            () = self.slow_path.events.ready() => self.take_events(),
            batch = self.routing.sources.receive() => self.take_in(batch),
            Some(job) = self.configurations.prepared() => {
                self.finish(job).await;
                self.follow_interfaces().await;
                self.filter_multicasts();
            }
            () = self.routing.groups.changed() => self.routing.groups.publish(),
            () = std::future::ready(()), if busy => self.work(),
            () = clock.tick() => self.on_tick(clock.count()).await?,
        }
        clock.end_turn();
        self.routing.sources.log_pending(&mut self.routing.rib);
        self.pass_commands();
        self.tell_manager();
        ControlFlow::Continue(())
    }

    /// Signals and links come first in every turn. Does not wait.
    async fn take_signals_and_links(&mut self) -> ControlFlow<Option<Signal>> {
        let Some(Inputs { signals, watch, .. }) = &mut self.serving.inputs else {
            return ControlFlow::Break(None);
        };
        tokio::select! {
            biased;
            request = signals.next() => self.on_signal(request)?,
            notification = watch.next() => self.on_port_event(notification).await,
            () = std::future::ready(()) => {}
        }
        ControlFlow::Continue(())
    }

    fn on_signal(&mut self, request: SignalRequest) -> ControlFlow<Option<Signal>> {
        match request {
            SignalRequest::End(signal) => return ControlFlow::Break(Some(signal)),
            SignalRequest::Reload => self.reload(),
        }
        ControlFlow::Continue(())
    }

    /// Ends the threads of the API, telnet and metrics.
    fn end_serving(&mut self, ended_by: Option<Signal>, course: &Course) {
        match ended_by {
            Some(signal) => tracing::info!("{signal}: stopping"),
            None => tracing::info!("stopping"),
        }
        self.serving.manager.stopping();
        course.enter("packets that accelerated interfaces have taken");
        self.leave_to_kernel();
        // Clients that wait for an answer get an error.
        self.serving.inputs = None;
        self.serving.later = Later::default();
        course.enter("the threads of the API, of exporters and of metrics");
        // It gets no more answers.
        self.serving.exports.take().into_iter().for_each(export::Service::end);
        self.serving.service = None;
        self.serving.metrics = None;
        self.serving.api = None;
        // The runtime waits for tasks that prepare changes.
        course.enter("what is prepared beside the owner");
    }

    /// Does what is due at this tick. Breaks if the router must end.
    async fn on_tick(&mut self, count: u32) -> ControlFlow<Option<Signal>> {
        self.follow_vlan_devices();
        self.watch_first_synchronisation();
        self.watch_confirmation();
        // Often: the next of several changes may need the memory of the one before.
        self.devices.opener.tidy(&self.routing.readers);
        self.drop_former_fibs();
        self.give_rules();
        self.learn_flows();
        self.look_at_trace().await;
        if count.is_multiple_of(accelerate::LOOK_TICKS) || self.accelerated.has_news() {
            self.look_at_accelerated();
        }
        if count.is_multiple_of(SAMPLE_TICKS) {
            self.routing.groups.sample();
        }
        if count.is_multiple_of(LOAD_TICKS) {
            self.forwarding.loads.look(&self.forwarding.ledger.forwarders);
            self.look_at_threads();
            self.rebalance().await;
            self.publish_metrics();
        }
        if count.is_multiple_of(HEALTH_TICKS) {
            self.sample_counts();
            self.examine();
            self.read_rules();
            self.age_flows();
            if let Some(thread) = self.dead_thread() {
                tracing::error!(
                    "{thread} has ended by itself, and its packets are lost; the router ends"
                );
                return ControlFlow::Break(None);
            }
        }
        if count.is_multiple_of(SLOW_TICKS) {
            self.on_slow_tick().await;
        }
        ControlFlow::Continue(())
    }

    async fn on_slow_tick(&mut self) {
        let kernel_notifies = self.has_link_notifications();
        self.poll_devices(kernel_notifies);
        if !kernel_notifies {
            self.follow_interfaces().await;
        }
        self.look_for_absent().await;
        self.filter_multicasts();
        self.follow_virtual_macs();
        self.follow_carriers();
        self.place_more();
        self.steer_control();
        self.routing.rib.tick();
        self.routing.sources.finish_audit(&mut self.routing.rib);
        self.forwarding.failures.look(self.forwarding.ledger.lua());
        self.log_filtered();
        self.log_printed();
        self.filtering.sets.expire(Instant::now());
    }

    /// Handles events and requests deferred during a change.
    async fn run_deferred(&mut self) {
        while let Some(notification) = self.serving.later.notification() {
            self.on_port_event(notification).await;
        }
        while let Some(question) = self.serving.later.question() {
            self.answer(question).await;
        }
        if self.serving.later.take_reload() {
            self.reload();
        }
    }

    /// Returns true if the kernel reports changes of interfaces.
    fn has_link_notifications(&self) -> bool {
        self.serving.inputs.as_ref().is_some_and(|inputs| inputs.watch.has_link_notifications())
    }

    /// Returns the name of a thread of the packet path that has ended without being stopped.
    fn dead_thread(&self) -> Option<String> {
        let forwarder = self
            .forwarding
            .wiring
            .as_ref()
            .and_then(Wiring::dead)
            .map(|number| format!("forwarder {number}"));
        let worker = || self.slow_path.threads.dead();
        forwarder.or_else(|| worker().map(|number| format!("slow path worker {number}")))
    }

    /// Starts the watch over devices, and reads their present state.
    fn watch(&mut self) -> Result<Watch> {
        let helpers = self.devices.helpers.take().context("devices are watched already")?;
        let watch = Watch::open(self.devices.events, helpers)?;
        let uio = |open: &OpenPort| open.driver.as_ref().is_some_and(|name| name.contains("uio"));
        if self.devices.ports.iter().any(uio)
            && let Err(error) = self.devices.events.monitor()
        {
            tracing::warn!("{error}; a device that is pulled out may end the router");
        }
        self.await_kernel_devices();
        self.look_at_all();
        Ok(watch)
    }

    /// Returns true if there is work, and room for its results.
    fn is_busy(&self) -> bool {
        self.routing.rib.is_busy()
            || self.routing.imports.is_busy()
            || self.filtering.sets.is_behind(&self.routing.rib)
            || self.accelerated.is_behind(&self.routing.rib)
            || (self.routing.sources.has_work() && self.slow_path.orders.have_room())
    }

    /// Does a part of the waiting work.
    fn work(&mut self) {
        if self.routing.rib.is_busy() {
            self.routing.rib.tick();
        }
        self.routing.imports.work(&mut self.routing.rib);
        let turn = turn::Turn::begin();
        self.filtering.sets.follow(&mut self.routing.rib, || turn.has_time());
        self.follow_boundaries(&turn);
        self.routing.sources.finish_audit(&mut self.routing.rib);
        if self.slow_path.orders.have_room() {
            self.apply_some();
        }
    }

    fn say_ready(&mut self) {
        self.devices.opener.ready();
        self.configurations.ready();
        tracing::info!("ready: {}", summary(&self.devices, &self.routing));
    }

    /// Tells the service manager what has changed, and that this loop turns.
    fn tell_manager(&mut self) {
        let Self { serving, configurations, devices, routing, .. } = self;
        let state = match serving.ready {
            false => State::Starting,
            true if configurations.are_changing() => State::Reloading,
            true => State::Ready,
        };
        let number = configurations.number();
        let refused = match configurations.is_refused() {
            true => ", the last good one: the file is refused",
            false => "",
        };
        serving.manager.tick(state, || match state {
            State::Starting => "starting".to_owned(),
            _ => format!("{}; configuration {number}{refused}", summary(devices, routing)),
        });
    }

    /// Passes the RIB's commands to the slow path.
    fn pass_commands(&mut self) {
        for command in self.routing.rib.drain_commands() {
            self.slow_path.orders.send(&command);
        }
    }

    /// Handles as many events of the slow path as there is time for.
    fn take_events(&mut self) {
        let turn = Turn::begin();
        while turn.has_time() {
            let events = self.slow_path.events.take(EVENTS);
            if events.is_empty() {
                return;
            }
            let rib = &mut self.routing.rib;
            let refused = rib.batch(|rib| learn_neighbours(rib, &events));
            for (port, address, error) in refused {
                let name = self.interface_name(port);
                self.routing.sources.warn(format_args!(
                    "port \"{name}\": neighbour {address}: {error}; the slow path serves it"
                ));
            }
            events.into_iter().for_each(|event| self.on_event(event));
        }
    }

    /// Handles an event other than those of a neighbour's MAC.
    fn on_event(&mut self, event: Event) {
        match event {
            // The RIB has handled them already.
            Event::NeighbourUp { .. } | Event::NeighbourDown { .. } => {}
            Event::AddressDuplicate { interface: port, address, mac } => {
                let name = self.interface_name(port);
                tracing::error!(
                    "port \"{name}\": {mac} has our address {address}; it is not used (RFC 4862 5.4.5)"
                );
            }
            Event::AdvertisementDiffers { interface: port, router, what } => {
                let name = self.interface_name(port);
                tracing::warn!(
                    "port \"{name}\": router {router} advertises another {what}; configure all routers of the \
                     link alike (RFC 4861 6.2.7)"
                );
            }
            Event::BondPort { bond, port, collecting, distributing } => {
                self.agreed(bond, port, (collecting, distributing));
            }
            Event::AddressConflict { interface: port, address, mac } => {
                let name = self.interface_name(port);
                tracing::warn!("port \"{name}\": {mac} uses our address {address} as well");
            }
            Event::Resolve { interface: port, address } => {
                self.routing.sources.order(KernelOrder::Resolve { port, address });
            }
        }
    }

    /// Starts slow path workers that have not begun.
    ///
    /// # Errors
    /// The system makes no threads.
    pub fn start_slow_path(&mut self, workers: Vec<SlowWorker>) -> Result<()> {
        let threads = &mut self.slow_path.threads;
        let idle = threads.idle(workers.len())?;
        threads.start(idle, workers);
        Ok(())
    }

    /// Ends the slow path's workers and returns them; false if one panicked.
    pub fn end_slow_path(&mut self, course: &Course) -> (Vec<SlowWorker>, bool) {
        self.slow_path.threads.stop();
        self.slow_path.orders.wake();
        self.slow_path.threads.end(course)
    }

    /// The ports, when nothing else is wanted any more.
    pub fn into_ports(self) -> Ports {
        self.devices.ports
    }

    /// The final report: the totals of all packets.
    pub fn farewell(&self) {
        let counters = self.forwarding.ledger.counters();
        tracing::info!(
            "received {} + originated {} + replicated {} = sent {} + to host {} + dropped {}",
            counters.received,
            counters.originated,
            counters.replicated,
            counters.sent,
            counters.to_host,
            counters.dropped_total
        );
        let balance = counters.unaccounted + counters.in_flight as i64;
        if balance != 0 {
            tracing::error!("{balance} packets unaccounted for: a defect, please report");
        }
    }
}

/// Ports and routes, in one line.
fn summary(devices: &Devices, routing: &Routing) -> String {
    let summary = routing.rib.summary();
    let ports = count(devices.ports.iter().count(), "port");
    format!("{ports}, {} IPv4 and {}", summary.fib4, count(summary.fib6, "IPv6 route"))
}

/// Brings what events say of neighbours into the RIB; returns those that it had no room for.
fn learn_neighbours(rib: &mut Rib, events: &[Event]) -> Vec<(InterfaceId, IpAddr, RibError)> {
    let mut refused = Vec::new();
    for event in events {
        match *event {
            Event::NeighbourUp { interface: port, address, mac } => {
                tracing::debug!("neighbour {address} on {port} is at {mac}");
                if let Err(error) = rib.neighbour_up(port, address, mac) {
                    refused.push((port, address, error));
                }
            }
            Event::NeighbourDown { interface: port, address } => {
                tracing::debug!("neighbour {address} on {port} is gone");
                rib.neighbour_down(port, address);
            }
            _ => {}
        }
    }
    refused
}

//! Adds up what the units counted, into the reports of the API.

mod drops;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::report::{self, Counters, Edge, Graph, Policing, Step};
use control::config;
use dataplane::counters::{
    ClassCounters, ClassQueueCounters, Counter, ForwarderCounters, QueueCounters,
};
use dataplane::exchange::Exchange;
use dataplane::graph::{GraphCounters, Shape, StepShape, Target};
use dataplane::interface::InterfaceId;
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::reason::{DropOrigin, DropReason, PuntClass};
use dataplane::transmit::Discipline;
use dataplane::transmit::frame::Class;

use script::CounterNames;

use self::drops::DropTally;
use super::graphs::LuaView;
use super::pulse::Watched;
use super::slow_worker::{ClassRates, EventView, SlowCounters};

/// The counters of one forwarder.
#[derive(Clone)]
pub struct ForwarderView {
    /// Outside the graph.
    pub counters: Arc<ForwarderCounters>,
    /// The way to it.
    pub exchange: Arc<Exchange>,
    /// On the graph's edges.
    pub edges: Arc<GraphCounters>,
    /// Of its Lua steps, if there are some.
    pub lua: Option<LuaView>,
    /// It has not ended.
    pub running: bool,
}

/// The counters of the slow path's workers.
#[derive(Clone)]
pub struct SlowViews {
    /// One for each worker.
    pub counters: Vec<Arc<SlowCounters>>,
    /// The rates that they share.
    pub rates: Arc<slowpath::Rates>,
    /// Those of the classes.
    pub class_rates: Arc<ClassRates>,
}

impl SlowViews {
    fn sum(&self, of: impl Fn(&SlowCounters) -> u64) -> u64 {
        self.counters.iter().map(|counters| of(counters)).sum()
    }
}

/// The counters of all units. A copy reads the same counters, as long as its units exist and have the same graphs.
#[derive(Clone)]
pub struct Ledger {
    /// One for each forwarder, also for those that have ended: their counts stay.
    pub forwarders: Vec<ForwarderView>,
    /// The slow path's.
    pub slow: SlowViews,
    /// Its events to the owner.
    pub events: EventView,
    /// Its limits.
    pub slowpath: config::Slowpath,
    /// The form of the graph, the same for all forwarders.
    pub shape: Arc<Shape>,
    /// The names of the counters that the configuration's steps have.
    pub script_counters: CounterNames,
    /// The counts of graphs that forwarders do not have any more.
    pub retired: Retired,
}

/// The counts of replaced graphs: counters never decrease.
#[derive(Clone, Default)]
pub struct Retired {
    drops: DropTally,
    /// Of steps of the configuration, by the names that they gave.
    steps: BTreeMap<String, u64>,
    /// Of steps themselves, by step and counter.
    own: BTreeMap<(String, &'static str), u64>,
    /// Of edges, by step and output.
    edges: Outputs,
}

/// Packets by step and output.
pub type Outputs = BTreeMap<(String, String), u64>;

/// The graphs' views and counts before forwarders got other graphs.
pub struct Former {
    shape: Arc<Shape>,
    views: Vec<(Arc<GraphCounters>, Option<LuaView>)>,
    script_counters: CounterNames,
    retired: Retired,
}

impl Ledger {
    /// Forwarders have other graphs, of this form, which have counted nothing when they began; what the
    /// old ones counted is kept. Returns what [`Self::put_back`] takes.
    pub fn replace_graphs(
        &mut self,
        shape: Arc<Shape>,
        views: Vec<(Arc<GraphCounters>, Option<LuaView>)>,
        script_counters: CounterNames,
    ) -> Former {
        let retired = self.retired.clone();
        self.retired.drops.merge(&self.drops_in(&self.forwarders));
        let counted: Vec<_> = self.all_step_counters().filter(|(_, count)| *count > 0).collect();
        self.retired.steps.extend(counted);
        for (key, count) in self.own_counters(&self.forwarders) {
            *self.retired.own.entry(key).or_default() += count;
        }
        let edges = self.outputs_of(&self.forwarders);
        add_up(&mut self.retired.edges, edges);
        let mut new = views.into_iter();
        let views = self.forwarders.iter_mut().map(|view| {
            // Those that have ended have no graph any more.
            let (edges, lua) = new.next().filter(|_| view.running).unwrap_or_default();
            let edges = std::mem::replace(&mut view.edges, edges);
            (edges, std::mem::replace(&mut view.lua, lua))
        });
        Former {
            views: views.collect(),
            shape: std::mem::replace(&mut self.shape, shape),
            script_counters: std::mem::replace(&mut self.script_counters, script_counters),
            retired,
        }
    }

    /// Gives forwarders their former graphs back, whose counts continue.
    pub fn put_back(&mut self, former: Former) {
        // Counts of the other graphs alone.
        self.retired = Retired::default();
        let drops = self.drops_in(&self.forwarders);
        let steps: Vec<_> = self.all_step_counters().collect();
        let own = self.own_counters(&self.forwarders);
        let edges = self.outputs_of(&self.forwarders);
        self.retired = former.retired;
        add_up(&mut self.retired.edges, edges);
        self.retired.drops.merge(&drops);
        for (name, own) in steps {
            *self.retired.steps.entry(name).or_default() += own;
        }
        for (key, own) in own {
            *self.retired.own.entry(key).or_default() += own;
        }
        for (view, (edges, lua)) in self.forwarders.iter_mut().zip(former.views) {
            (view.edges, view.lua) = (edges, lua);
        }
        (self.shape, self.script_counters) = (former.shape, former.script_counters);
    }

    /// The counters for the forwarder with this number: those of one that has ended continue.
    pub fn counters_of(&self, forwarder: usize) -> Arc<ForwarderCounters> {
        let ended = self.forwarders.get(forwarder);
        ended.map(|view| view.counters.clone()).unwrap_or_default()
    }

    /// Sets the number of forwarders, of which these are new. The graph counts of an ended forwarder
    /// are kept when another takes its number.
    pub fn set_forwarders(&mut self, count: usize, joined: Vec<ForwarderView>) {
        let first = count - joined.len();
        for (number, view) in (first..).zip(joined) {
            if number < self.forwarders.len() {
                self.retire(number);
                self.forwarders[number] = view;
            } else {
                self.forwarders.push(view);
            }
        }
        for view in self.forwarders.iter_mut().skip(count) {
            view.running = false;
        }
    }

    /// Keeps what a forwarder's graph counted.
    fn retire(&mut self, forwarder: usize) {
        let ended = std::slice::from_ref(&self.forwarders[forwarder]);
        let drops = self.drops_in(ended);
        let steps: Vec<_> = self.steps_of(ended).filter(|(_, count)| *count > 0).collect();
        let own = self.own_counters(ended);
        let edges = self.outputs_of(ended);
        add_up(&mut self.retired.edges, edges);
        for (key, count) in own {
            *self.retired.own.entry(key).or_default() += count;
        }
        self.retired.drops.merge(&drops);
        for (name, count) in steps {
            *self.retired.steps.entry(name).or_default() += count;
        }
    }

    /// Returns the totals of packets by destination.
    pub fn counters(&self) -> Counters {
        let sum = |of: fn(&ForwarderCounters) -> u64| -> u64 {
            self.forwarders.iter().map(|forwarder| of(&forwarder.counters)).sum()
        };
        let received = sum(|counters| ports().map(|port| counters.rx(port).packets.get()).sum());
        let sent = sum(|counters| ports().map(|port| counters.tx(port).packets.get()).sum());
        let punted = sum(|counters| counters.punted.get());
        let handed_over = sum(|counters| counters.handed_over.get());
        let taken_in = sum(|counters| counters.taken_in.get());
        let spread_out = sum(|counters| counters.spread_out.get());
        let spread_in = sum(|counters| counters.spread_in.get());
        let held = sum(|counters| counters.held.get());
        let slow = &self.slow;
        let taken = slow.sum(|slow| slow.taken.iter().map(Counter::get).sum());
        let to_slow_path = punted.saturating_sub(taken);
        let between_workers = slow
            .sum(|slow| slow.handoffs_sent.get())
            .saturating_sub(slow.sum(|s| s.handoffs_taken.get()));
        let injected = slow.sum(|slow| slow.injected.get());
        let to_forwarders = (injected + handed_over).saturating_sub(taken_in);
        let waiting = slow.sum(|slow| slow.held.get());
        let spread = spread_out.saturating_sub(spread_in);
        let in_flight = to_slow_path + between_workers + waiting + to_forwarders + spread + held;
        let drops = self.drops();
        let dropped = drops.by_reason();
        let dropped_total = dropped.values().sum();
        // Packets that the kernel sends by host interfaces are the router's own as well.
        let originated = slow.sum(|slow| slow.originated.get() + slow.from_host.get());
        let replicated = sum(|counters| counters.replicated.get());
        let to_host = slow.sum(|slow| slow.to_host.get());
        let entered = received + originated + replicated;
        let left = sent + to_host + dropped_total + in_flight;
        Counters {
            received,
            originated,
            replicated,
            sent,
            to_host,
            dropped,
            dropped_by_step: drops.by_step(),
            dropped_total,
            in_flight,
            steps: self.step_counters(),
            unaccounted: entered.wrapping_sub(left) as i64,
        }
    }

    /// All drops: in graphs, those of former ones included, and outside of them.
    fn drops(&self) -> DropTally {
        let mut drops = self.drops_in(&self.forwarders);
        drops.merge(&self.retired.drops);
        for view in &self.forwarders {
            for &origin in DropOrigin::ALL {
                drops.add_origin(origin, view.counters.drops.of(origin));
            }
        }
        for slow in &self.slow.counters {
            let origin = DropOrigin::SlowPath;
            drops.add_origin(origin, slow.drops.of(origin));
        }
        drops
    }

    /// Drops in the graphs that these forwarders have.
    fn drops_in(&self, views: &[ForwarderView]) -> DropTally {
        DropTally::of_steps(&self.shape, views.iter().map(|view| &*view.edges))
    }

    /// The forwarders that run, by their numbers.
    pub fn running(&self) -> impl Iterator<Item = (usize, &ForwarderView)> {
        self.forwarders.iter().enumerate().filter(|(_, view)| view.running)
    }

    /// The rounds of the forwarders that run, and the ways to wake them.
    pub fn watched(&self) -> impl Iterator<Item = Watched> {
        self.running().map(|(_, view)| (view.counters.clone(), view.exchange.clone()))
    }

    /// The Lua states of forwarders that run, by the forwarders' numbers.
    pub fn lua(&self) -> impl Iterator<Item = (usize, &LuaView)> {
        self.running().filter_map(|(n, view)| Some((n, view.lua.as_ref()?)))
    }

    /// Returns the counters of Lua steps; elements of arrays only if they are not 0.
    fn step_counters(&self) -> BTreeMap<String, u64> {
        let all = self.all_step_counters();
        all.filter(|(name, count)| *count > 0 || !name.ends_with(']')).collect()
    }

    /// Every counter of the configuration, with what former graphs counted under its name.
    fn all_step_counters(&self) -> impl Iterator<Item = (String, u64)> {
        self.steps_of(&self.forwarders).map(|(name, now)| {
            let before = self.retired.steps.get(&name).copied().unwrap_or_default();
            (name, now + before)
        })
    }

    /// Every counter of the configuration, as these forwarders have it, and what each of its steps dropped.
    fn steps_of(&self, views: &[ForwarderView]) -> impl Iterator<Item = (String, u64)> {
        let lua = || views.iter().filter_map(|view| view.lua.as_ref());
        let counters = self.script_counters.all();
        let counters = counters
            .map(move |(name, index)| (name, lua().map(|lua| lua.counters.get(index)).sum()));
        let drops = self.shape.steps.iter().flat_map(move |step| {
            let outputs = (step.first_edge..).zip(&step.outputs);
            let by_step = |(_, (_, target)): &(usize, &(String, Target))| {
                *target == Target::Drop(DropReason::ByStep)
            };
            outputs.filter(by_step).map(move |(edge, (output, _))| {
                let count = views.iter().map(|view| view.edges.get(edge)).sum();
                (format!("{}.{output}", step.name), count)
            })
        });
        counters.chain(drops)
    }

    /// The number of steps.
    pub fn places(&self) -> usize {
        self.shape.steps.len()
    }

    /// The counters that steps have themselves, as these forwarders have them, by step and counter.
    fn own_counters(&self, views: &[ForwarderView]) -> BTreeMap<(String, &'static str), u64> {
        let mut sums = BTreeMap::new();
        for (place, step) in self.shape.steps.iter().enumerate() {
            for (name, count) in views.iter().flat_map(|view| view.edges.of_step(place)) {
                *sums.entry((step.name.clone(), name)).or_default() += count;
            }
        }
        sums
    }

    /// The counts of steps by name.
    pub fn by_step(&self) -> StepCounts<'_> {
        let steps = self.shape.steps.iter().enumerate();
        StepCounts { ledger: self, places: steps.map(|(at, step)| (&*step.name, at)).collect() }
    }

    /// Packets by the present graph's steps and outputs, those of former graphs included.
    pub fn outputs(&self) -> Outputs {
        let mut all = self.outputs_of(&self.forwarders);
        for (key, packets) in &mut all {
            *packets += self.retired.edges.get(key).copied().unwrap_or_default();
        }
        all
    }

    fn outputs_of(&self, views: &[ForwarderView]) -> Outputs {
        let of_step = |step: &'_ StepShape| {
            let edges = (step.first_edge..).zip(&step.outputs);
            let counted = edges.map(|(edge, (output, _))| {
                let packets = views.iter().map(|view| view.edges.get(edge)).sum();
                ((step.name.clone(), output.clone()), packets)
            });
            counted.collect::<Vec<_>>()
        };
        self.shape.steps.iter().flat_map(of_step).collect()
    }

    /// Returns the report of each step.
    pub fn steps(&self) -> report::Steps {
        let graph = self.graph();
        let mut own: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for ((step, name), now) in self.own_counters(&self.forwarders) {
            let key = (step, name);
            let count = now + self.retired.own.get(&key).copied().unwrap_or_default();
            own.entry(key.0).or_default().insert(name.to_owned(), count);
        }
        let shape = &self.shape.steps;
        let lua = |name: &str| -> Option<report::LuaStep> {
            let mut sum = report::LuaStep::default();
            let mut found = false;
            for view in self.forwarders.iter().filter_map(|view| view.lua.as_ref()) {
                for (_, status) in view.steps.iter().filter(|(kind, _)| kind == name) {
                    let (failures, overruns) = status.failures();
                    found = true;
                    sum.failures += failures;
                    sum.overruns += overruns;
                    sum.dropped += status.dropped();
                    sum.disabled += usize::from(status.is_disabled());
                }
            }
            found.then_some(sum)
        };
        let step = |(step, shape): (Step, &StepShape)| report::StepState {
            lua: lua(&shape.kind),
            kind: shape.kind.clone(),
            counters: own.remove(&shape.name).unwrap_or_default(),
            name: step.name,
            packets: step.packets,
        };
        let compiler = |(forwarder, view): (usize, &LuaView)| {
            let [compiled, aborted, flushed] = view.jit.counts();
            report::Compiler {
                forwarder,
                compiled,
                aborted,
                flushed,
                last_abort: view.jit.last_abort(),
            }
        };
        report::Steps {
            steps: graph.steps.into_iter().zip(shape).map(step).collect(),
            compilers: self.lua().map(compiler).collect(),
        }
    }

    fn edge(&self, edge: usize) -> u64 {
        self.forwarders.iter().map(|forwarder| forwarder.edges.get(edge)).sum()
    }

    /// Returns the limits that protect the slow path, and the packets that they hold back.
    pub fn policing(&self) -> Policing {
        let class = |&class: &PuntClass| {
            let sum = |of: fn(&ClassCounters) -> u64| -> u64 {
                let views = self.forwarders.iter();
                views.map(|view| of(&view.counters.classes[class.index()])).sum()
            };
            // In this order, so that packets that move meanwhile cannot make the output exceed the input.
            let passed = self.slow.sum(|slow| slow.taken[class.index()].get());
            let (early, full) = (sum(|count| count.early.get()), sum(|count| count.full.get()));
            let offered = sum(|count| count.offered.get());
            let limits = self.slowpath.classes[class.index()];
            report::Class {
                name: class.name().to_owned(),
                rate: limits.rate,
                weight: limits.weight,
                queue: limits.queue,
                offered,
                passed,
                refused_early: early,
                refused_full: full,
                waiting: offered.saturating_sub(passed + early + full),
            }
        };
        let (suppressed, suppressed_by_prefix) = self.slow.rates.suppressed_errors();
        let events = self.events.counts();
        Policing {
            workers: self.slowpath.workers,
            classes: PuntClass::ALL.iter().map(class).collect(),
            icmp_errors: report::IcmpErrors {
                rate: self.slowpath.limits.icmp_rate,
                burst: self.slowpath.limits.icmp_burst,
                prefix_rate: self.slowpath.limits.icmp_prefix_rate,
                prefix_burst: self.slowpath.limits.icmp_prefix_burst,
                suppressed,
                suppressed_by_prefix,
            },
            events: report::Events {
                waiting: events.waiting,
                merged: events.merged,
                lost: events.lost,
            },
        }
    }

    /// The graph with the packets on its edges.
    pub fn graph(&self) -> Graph {
        let steps = &self.shape.steps;
        let mut incoming = vec![0; steps.len()];
        // Packets that the first step has handled since forwarders have this graph.
        incoming[0] = steps.first().map_or(0, |first| {
            (first.first_edge..).take(first.outputs.len()).map(|edge| self.edge(edge)).sum()
        });
        let mut report = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            let mut outputs = Vec::new();
            for (edge, (name, target)) in (step.first_edge..).zip(&step.outputs) {
                let packets = self.edge(edge);
                let to = match target {
                    Target::Step(next) => {
                        incoming[*next] += packets;
                        steps[*next].name.clone()
                    }
                    Target::Transmit => "transmit".to_owned(),
                    Target::Replicate => "replicate".to_owned(),
                    Target::SlowPath(_) => "slow-path".to_owned(),
                    Target::Drop(_) => "drop".to_owned(),
                };
                outputs.push(Edge { name: name.clone(), to, packets });
            }
            report.push(Step { name: step.name.clone(), packets: incoming[place], outputs });
        }
        Graph { steps: report }
    }

    /// The classes of an interface's queue in software.
    pub fn queue_classes(
        &self,
        interface: InterfaceId,
        discipline: Discipline,
    ) -> Vec<report::QueueClass> {
        let queues = self.forwarders.iter().flat_map(|view| view.counters.queues(interface));
        let queues: Vec<_> = queues.collect();
        let is_drr = matches!(discipline, Discipline::Drr(_));
        let there = |class: &&Class| is_drr || matches!(class, Class::Control | Class::Default);
        let report = |&class: &Class| {
            let name = if is_drr || class == Class::Control { class.name() } else { "others" };
            queue_class(&queues, class, name)
        };
        Class::ALL.iter().filter(there).map(report).collect()
    }

    /// Packets and bytes received and sent by a port, in this order.
    pub fn traffic(&self, port: PortId) -> [u64; 4] {
        let mut sums = [0; 4];
        for view in &self.forwarders {
            let (rx, tx) = (view.counters.rx(port), view.counters.tx(port));
            for (sum, counter) in
                sums.iter_mut().zip([&rx.packets, &rx.bytes, &tx.packets, &tx.bytes])
            {
                *sum += counter.get();
            }
        }
        sums
    }
}

/// A class of queues on several forwarders.
fn queue_class(queues: &[Arc<QueueCounters>], class: Class, name: &str) -> report::QueueClass {
    let of = || queues.iter().map(|counters| counters.class(class));
    let sum = |of_one: fn(&ClassQueueCounters) -> &Counter| -> u64 {
        of().map(|counters| of_one(counters).get()).sum()
    };
    let most = |of_one: fn(&ClassQueueCounters) -> &Counter| -> u64 {
        of().map(|counters| of_one(counters).get()).max().unwrap_or_default()
    };
    let micros =
        |cycles: u64| (u128::from(cycles) * 1_000_000 / u128::from(dpdk::tsc_hz().max(1))) as u64;
    report::QueueClass {
        name: name.to_owned(),
        waiting: sum(|of| &of.waiting),
        waiting_bytes: sum(|of| &of.waiting_bytes),
        most: most(|of| &of.most),
        sent: sum(|of| &of.sent),
        sent_bytes: sum(|of| &of.sent_bytes),
        full: sum(|of| &of.full),
        red: sum(|of| &of.red),
        codel: sum(|of| &of.codel),
        marked: sum(|of| &of.marked),
        delay_us: micros(most(|of| &of.delay)),
        delay_most_us: micros(most(|of| &of.delay_most)),
    }
}

/// Adds counts that are not 0.
fn add_up(sums: &mut Outputs, counts: Outputs) {
    for (key, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        *sums.entry(key).or_default() += count;
    }
}

/// Counts of steps so far, in former graphs as well.
pub struct StepCounts<'a> {
    ledger: &'a Ledger,
    /// The steps' places in the order of the present graph.
    places: HashMap<&'a str, usize>,
}

impl StepCounts<'_> {
    fn shape(&self, step: &str) -> Option<&StepShape> {
        self.ledger.shape.steps.get(*self.places.get(step)?)
    }

    /// Returns true for a step of this kind.
    pub fn is_of(&self, step: &str, kind: &str) -> bool {
        self.shape(step).is_some_and(|shape| shape.kind == kind)
    }

    /// The packets that took an output of a step.
    pub fn on_edge(&self, step: &str, output: &str) -> u64 {
        let retired = &self.ledger.retired.edges;
        let former = retired.get(&(step.to_owned(), output.to_owned()));
        let present = self.shape(step).and_then(|shape| {
            let at = shape.outputs.iter().position(|(name, _)| name == output)?;
            Some(self.ledger.edge(shape.first_edge + at))
        });
        former.copied().unwrap_or_default() + present.unwrap_or_default()
    }

    /// A counter of a step itself.
    pub fn own(&self, step: &str, counter: &'static str) -> u64 {
        let former = self.ledger.retired.own.get(&(step.to_owned(), counter));
        let present = self.places.get(step).into_iter().flat_map(|&place| {
            let views = self.ledger.forwarders.iter();
            views.flat_map(move |view| view.edges.of_step(place))
        });
        let present = present.filter(|(name, _)| *name == counter).map(|(_, count)| count);
        former.copied().unwrap_or_default() + present.sum::<u64>()
    }
}

fn ports() -> impl Iterator<Item = PortId> {
    (0..MAX_PORTS as u16).filter_map(PortId::new)
}

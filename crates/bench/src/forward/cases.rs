//! The cases, each a router, and the bare loop that they are compared with.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use acl::{Action, Family, Matches, State, generate};
use anyhow::{Context, Result, bail, ensure};
use dataplane::batch::BATCH_MAX;
use dataplane::bond::{BONDS, BondSpec, BondTable, Bonds, HashFields};
use dataplane::class;
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::{Schedulers, TxConfig};
use dataplane::features::Features;
use dataplane::filters::{
    FilterSpec, FilterTable, FilterTables, Filters, Gate, Police, SourceLengths, Treatment,
};
use dataplane::flow::FlowHash;
use dataplane::flows::{FlowSettings, FlowTable};
use dataplane::forwarder::{Forwarder, ForwarderParts, Settings};
use dataplane::interface::{InterfaceId, InterfaceInfo, InterfaceInfos, Mtus, VrfId};
use dataplane::next_hop::{FIRST_DYNAMIC, NextHop, NextHopTable};
use dataplane::polling::RxSource;
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::punts::{Punts, class_rings};
use dataplane::quarantine::Quarantine;
use dataplane::replicate::Replicator;
use dataplane::shared::Shared;
use dataplane::steps::FILTER_IN;
use dataplane::tables::{Fibs, Tables, VrfTables};
use dataplane::transmit::codel::CodelConfig;
use dataplane::transmit::red::RedConfig;
use dataplane::transmit::shape::{Bucket, Shape};
use dataplane::transmit::{Discipline, QueueConfig, Scheduler, WEIGHTS};
use dataplane::vlan::{Tag, TagDevices, Tags, VLANS, Vlan, VlanTable, Vlans};
use dataplane::wires::{Exit, Rewiring, TxPath, Wires};
use dpdk::WaitSet;
use dpdk::qsbr::Qsbr;
use dpdk::{Burst, PacketList, TxQueue};
use script::{JitStatus, StepStatus, Watchdog};
use wire::MacAddr;

use super::Bench;
use super::noop::Noop;
use super::steps::{Flushed, LUA_EMPTY, LUA_VOIP, MarkVoip, More, Rate, lua_step};
use crate::source::{self, Mix};
use crate::workload::routes::Routes;

/// The four routes of the small table.
pub const FOUR: [&str; 4] = ["0.0.0.0/2", "64.0.0.0/2", "128.0.0.0/2", "192.0.0.0/2"];

/// Number of next hops of the routes, spread by turns over the egress ports.
pub const NEXT_HOPS: u16 = 4;

/// A case.
#[derive(Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name in the results.
    pub name: &'static str,
    /// True if the tables are full ones with a default route each, false for [`FOUR`].
    pub full: bool,
    /// Number of egress ports.
    pub egress: usize,
    /// The received packets.
    pub mix: Mix,
    /// Extensions of its graph beyond the default steps.
    pub more: More,
}

/// All cases, those with the same source together.
pub const CASES: [Case; 29] = [
    Case { name: "4r1e", full: false, egress: 1, mix: Mix::V4, more: More::Nothing },
    Case { name: "noop", full: false, egress: 1, mix: Mix::V4, more: More::Noop },
    Case { name: "lua-empty", full: false, egress: 1, mix: Mix::V4, more: More::LuaEmpty },
    Case { name: "lua-voip", full: false, egress: 1, mix: Mix::V4, more: More::LuaVoip },
    Case { name: "lua-flushed", full: false, egress: 1, mix: Mix::V4, more: More::LuaFlushed },
    Case { name: "rust-voip", full: false, egress: 1, mix: Mix::V4, more: More::RustVoip },
    Case { name: "filter-10", full: false, egress: 1, mix: Mix::V4, more: More::Rules(10) },
    Case { name: "filter-1000", full: false, egress: 1, mix: Mix::V4, more: More::Rules(1000) },
    Case { name: "filter-10000", full: false, egress: 1, mix: Mix::V4, more: More::Rules(10_000) },
    Case { name: "filter-first", full: false, egress: 1, mix: Mix::V4, more: More::First(None) },
    Case {
        name: "filter-police",
        full: false,
        egress: 1,
        mix: Mix::V4,
        more: More::First(Some(Rate::Rule)),
    },
    Case { name: "filter-set", full: false, egress: 1, mix: Mix::V4, more: More::Set(100_000) },
    Case { name: "queue-fifo", full: false, egress: 1, mix: Mix::V4, more: More::Queue(FIFO) },
    Case { name: "queue-red", full: false, egress: 1, mix: Mix::V4, more: More::Queue(RED) },
    Case { name: "queue-codel", full: false, egress: 1, mix: Mix::V4, more: More::Queue(CODEL) },
    Case { name: "queue-drr", full: false, egress: 1, mix: Mix::V4, more: More::Queue(DRR) },
    Case { name: "queue-shape", full: false, egress: 1, mix: Mix::V4, more: More::Shape },
    Case { name: "4r4e", full: false, egress: 4, mix: Mix::V4, more: More::Nothing },
    Case { name: "full4", full: true, egress: 4, mix: Mix::V4, more: More::Nothing },
    Case { name: "vrf4", full: true, egress: 4, mix: Mix::V4, more: More::Vrf },
    Case { name: "bond4", full: true, egress: 4, mix: Mix::V4, more: More::Bond },
    Case { name: "vlan4", full: true, egress: 4, mix: Mix::Vlan, more: More::Vlans },
    Case { name: "qinq4", full: true, egress: 4, mix: Mix::QinQ, more: More::Vlans },
    Case { name: "vlan4-queues", full: true, egress: 4, mix: Mix::Vlan, more: More::VlanQueues },
    Case { name: "vlan4-device", full: true, egress: 4, mix: Mix::Stripped, more: More::Vlans },
    Case {
        name: "filter-sources",
        full: false,
        egress: 1,
        mix: Mix::Sources,
        more: More::First(Some(Rate::Source)),
    },
    Case { name: "filter-state", full: false, egress: 1, mix: Mix::Known, more: More::State },
    Case { name: "full6", full: true, egress: 4, mix: Mix::V6, more: More::Nothing },
    Case { name: "mixed", full: true, egress: 4, mix: Mix::Both, more: More::Nothing },
];

const FIFO: Discipline = Discipline::Fifo;
const RED: Discipline =
    Discipline::Red(RedConfig { least: 166, most: 500, percent: 10, ecn: true });
const CODEL: Discipline =
    Discipline::Codel(CodelConfig { target_us: 5_000, interval_us: 100_000, ecn: true });
const DRR: Discipline = Discipline::Drr(WEIGHTS);

/// A rate that no source reaches, to measure the cost of its bookkeeping.
const UNREACHED: Shape = Shape { rate: 125_000_000_000, burst: 64_000_000, overhead: 24 };

/// VLANs with queues on each port of [`More::VlanQueues`], one of which packets leave by.
const QUEUED_VLANS: u16 = 1000;

/// Returns the queues of a case's ports.
fn queues_of(case: &Case) -> Result<Schedulers> {
    let unreached = || (UNREACHED, Arc::new(Bucket::new(UNREACHED, dpdk::tsc_hz())));
    let (discipline, rate) = match case.more {
        More::Queue(discipline) => (discipline, None),
        More::Shape => (FIFO, Some(unreached())),
        More::VlanQueues => (FIFO, None),
        _ => return Ok(Vec::new()),
    };
    let config = QueueConfig { discipline, ..QueueConfig::default() };
    let scheduler = |port| {
        let mut scheduler = Scheduler::new(config, rate.clone(), Arc::default());
        if case.more == More::VlanQueues {
            for tags in case.mix.tags().into_iter().flat_map(neighbours) {
                scheduler.add(tags, config, Some(unreached()), Arc::default());
            }
        }
        Ok((port_id(port)?, Some(Box::new(scheduler))))
    };
    (0..case.egress).map(scheduler).collect()
}

/// Returns these tags and those of [`QUEUED_VLANS`] in all.
fn neighbours(tags: Tags) -> impl Iterator<Item = Tags> {
    let with = move |id| Tags { outer: Tag { id, ..tags.outer }, ..tags };
    let others = (1..).filter(move |id| *id != tags.outer.id);
    [tags].into_iter().chain(others.take(usize::from(QUEUED_VLANS) - 1).map(with))
}

/// Returns the cases with these names, or all but those of queues, bonds, VLANs, VRFs, rates and sets: a process has room for
/// 32 devices, and each case has its own.
///
/// # Errors
/// A name is not one of a case.
pub fn choose(only: &[String]) -> Result<Vec<&'static Case>> {
    if let Some(wrong) = only.iter().find(|name| CASES.iter().all(|case| case.name != **name)) {
        let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
        bail!("--case {wrong}: not found; known: {}", known.join(", "));
    }
    let is_apart = |case: &Case| {
        matches!(
            case.more,
            More::Queue(_)
                | More::Shape
                | More::Bond
                | More::Vlans
                | More::VlanQueues
                | More::Vrf
                | More::First(_)
                | More::Set(_)
        )
    };
    let wanted = |case: &&Case| match only {
        [] => !is_apart(case),
        names => names.iter().any(|name| name == case.name),
    };
    Ok(CASES.iter().filter(wanted).collect())
}

/// The routes of the full tables; empty if no case needs them.
#[derive(Default)]
pub struct FullTables {
    /// IPv4.
    pub v4: Routes<Ipv4Addr>,
    /// IPv6.
    pub v6: Routes<Ipv6Addr>,
}

/// Returns the index of a route's next hop among the [`NEXT_HOPS`], from 0.
pub fn way(next_hop: u16) -> u16 {
    (next_hop - 1) % NEXT_HOPS
}

/// The properties of all ports.
pub const PORT: InterfaceInfo = InterfaceInfo {
    mac: MacAddr(source::PORT_MAC),
    mtu: 1500,
    vrf: VrfId::DEFAULT,
    partial_checksums: false,
    loses_tag_protocol: false,
    inserts_tags: false,
    host: false,
    features: Features::NONE,
};

/// Returns the properties of the port that a case receives by.
fn ingress(case: &Case) -> InterfaceInfo {
    match case.more {
        More::Rules(_) | More::First(_) | More::Set(_) | More::State => {
            InterfaceInfo { features: Features::NONE.with(FILTER_IN, 1), ..PORT }
        }
        More::Vlans | More::VlanQueues => {
            InterfaceInfo { features: Features::NONE.with(VLANS, 1), ..PORT }
        }
        More::Bond => InterfaceInfo { features: Features::NONE.with(BONDS, 1), ..PORT },
        More::Vrf => InterfaceInfo { vrf: VRF, ..PORT },
        _ => PORT,
    }
}

/// The VRF of [`More::Vrf`].
const VRF: VrfId = VrfId::new(1);

/// Returns the VLANs of a case: one on each port, with the tags of the source's frames. That of the first port is
/// also the one by which packets come.
fn vlans_of(case: &Case) -> Result<Vec<Vlan>> {
    let Some(tags) = case.mix.tags() else { return Ok(Vec::new()) };
    let vlan = |index| Ok(Vlan { interface: vlan_id(index)?, lower: port_id(index)?.into(), tags });
    (0..case.egress).map(vlan).collect()
}

/// Sets the bond of [`More::Bond`]: all ports, all of them active. Returns its number.
fn set_bond(case: &Case, shared: &Shared) -> Result<InterfaceId> {
    let interface = vlan_id(0)?;
    let ports: Vec<_> = (0..case.egress).map(port_id).collect::<Result<_>>()?;
    let active = ports.iter().copied().collect();
    let table = shared.get::<BondTable>();
    let mac = MacAddr(source::PORT_MAC);
    table.set(vec![BondSpec { interface, mac, ports, fields: HashFields::default() }]);
    table.state(interface).set(active, active);
    Ok(interface)
}

/// Returns the number of the VLAN on a port.
fn vlan_id(port: usize) -> Result<InterfaceId> {
    InterfaceId::new((MAX_PORTS + port) as u16).with_context(|| format!("port {port}: no VLAN"))
}

/// Receives and sends, nothing else: the cost of input and output for every router.
pub struct BareLoop {
    tx: TxQueue,
    burst: Burst,
    list: PacketList,
    bursts: Bursts,
}

impl BareLoop {
    /// Creates a loop into a port of its own.
    pub fn new(bench: &Bench, bursts: Bursts) -> Result<Self> {
        Ok(Self { tx: bench.sink()?, burst: Burst::new(), list: PacketList::new(), bursts })
    }

    /// Forwards `packets`, or up to a burst more.
    #[inline(never)]
    pub fn turn(&mut self, source: &mut RxSource, packets: u64) -> u64 {
        let Bursts { rx, tx } = self.bursts;
        let mut done = 0;
        while done < packets {
            done += source.input.receive(&mut self.burst, rx) as u64;
            let all = self.burst.owned();
            self.burst.move_to(all, &mut self.list);
            while !self.list.is_empty() && self.tx.send(&mut self.list, tx).packets > 0 {}
        }
        done
    }
}

/// Packets received and sent at once.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    /// Received.
    pub rx: usize,
    /// Sent.
    pub tx: usize,
}

impl Default for Bursts {
    fn default() -> Self {
        Self { rx: BATCH_MAX, tx: TxConfig::default().burst }
    }
}

/// Status of a router's step in Lua.
struct LuaView {
    status: Arc<StepStatus>,
    jit: Arc<JitStatus>,
    _watchdog: Watchdog,
}

/// A router of one case. It has a source only while it is measured, as cases share sources.
pub struct Router {
    /// Its case.
    pub case: &'static Case,
    forwarder: Forwarder,
    counters: Arc<ForwarderCounters>,
    /// Packets received at once.
    rx_burst: usize,
    /// True if there are enough routes for packets to leave by all ports.
    spread: bool,
    lua: Option<LuaView>,
    /// Its filter, if it has one.
    filter: Option<Arc<FilterTable>>,
    /// The writers of the tables, which keep the tables alive.
    _writers: Option<Writers>,
}

impl Router {
    /// Creates a router with its tables.
    pub fn new(
        bench: &Bench,
        case: &'static Case,
        full: &FullTables,
        bursts: Bursts,
    ) -> Result<Self> {
        let (lookups, writers) = routes(case, full)?;
        let router = Self::with(bench, case, lookups, bursts)?;
        let few = 1..100;
        let spread = !case.full || !few.contains(&full.v4.len()) && !few.contains(&full.v6.len());
        Ok(Self { spread, _writers: Some(writers), ..router })
    }

    /// Creates a router that looks up in existing tables.
    pub fn with(
        bench: &Bench,
        case: &'static Case,
        lookups: Lookups,
        bursts: Bursts,
    ) -> Result<Self> {
        let tables = tables(case, lookups)?;
        let mut exits = Vec::new();
        for index in 0..case.egress {
            let mut sink = bench.sink()?;
            if case.mix.stripped().is_some() {
                sink.say_inserts();
            }
            let path = TxPath::Queue(sink);
            exits.push(Exit { path, ..Exit::none(port_id(index)?) });
        }
        let counters = Arc::new(ForwarderCounters::default());
        let rings = class_rings(bench.eal(), case.name, &class::default_limits())?.0;
        let mut steps = dataplane::default_steps(&tables)?;
        let mut lua = None;
        match case.more {
            // The filter's steps are among the default ones.
            More::Nothing
            | More::Rules(_)
            | More::First(_)
            | More::Set(_)
            | More::Queue(_)
            | More::Shape => {}
            More::Bond | More::Vlans | More::VlanQueues | More::Vrf => {}
            More::State => know_all(bench, case, &tables)?,
            More::Noop => steps.insert("noop", Noop, "ip4-rewrite")?,
            More::RustVoip => steps.insert("mark-voip", MarkVoip, "ip4-lookup")?,
            More::LuaEmpty | More::LuaVoip | More::LuaFlushed => {
                let text = if case.more == More::LuaEmpty { LUA_EMPTY } else { LUA_VOIP };
                let watchdog = Watchdog::start()?;
                let step = lua_step(text, &watchdog)?;
                lua = Some(LuaView { status: step.status(), jit: step.jit(), _watchdog: watchdog });
                match case.more {
                    More::LuaFlushed => {
                        steps.insert("lua", Flushed::from(step), "ip4-lookup")?;
                    }
                    _ => steps.insert("lua", step, "ip4-lookup")?,
                }
            }
        }
        let tx = TxConfig { burst: bursts.tx, ..TxConfig::default() };
        let settings = Settings { tx, ..Settings::default() };
        let mut forwarder = Forwarder::new(ForwarderParts {
            interfaces: tables.interfaces.get(),
            graph: steps.build()?,
            settings,
            replicator: Replicator::new(bench.pool()),
            punts: Punts::new(vec![rings], Arc::default(), 1),
            quiescent: Qsbr::new(1).register()?,
            counters: counters.clone(),
            quarantine: Quarantine::new().0,
            waiting: WaitSet::new()?,
        });
        let wires = Wires { exits, ..Wires::default() };
        forwarder.rewire(&mut Rewiring { wires, ..Rewiring::default() });
        forwarder.exchange_schedulers(&mut queues_of(case)?);
        let rx_burst = bursts.rx;
        let filter = tables.filters.get().tables.into_iter().flatten().next();
        Ok(Self { case, forwarder, counters, lua, filter, rx_burst, spread: true, _writers: None })
    }

    /// Replaces its sources, and returns the former ones.
    pub fn exchange(&mut self, mut sources: Vec<RxSource>) -> Vec<RxSource> {
        sources.iter_mut().for_each(|source| source.burst = self.rx_burst);
        // Cases share sources, but their ports have different features.
        let info = ingress(self.case);
        sources.iter_mut().for_each(|source| source.info = info);
        std::mem::swap(self.forwarder.sources_mut(), &mut sources);
        sources
    }

    /// Forwards `packets`, or up to a batch more. It must have a source.
    #[inline(never)]
    pub fn turn(&mut self, packets: u64) -> u64 {
        let mut done = 0;
        while done < packets {
            done += self.forwarder.round() as u64;
        }
        done
    }

    /// Runs one round; returns its number of packets.
    #[inline]
    pub fn round(&mut self) -> u64 {
        self.forwarder.round() as u64
    }

    /// Returns LuaJIT's work for its step in Lua, if it has one: the numbers of traces compiled,
    /// traces aborted, and flushes of all traces.
    pub fn traces(&self) -> Option<[u64; 3]> {
        Some(self.lua.as_ref()?.jit.counts())
    }

    /// Fails for a router that did not forward: all packets must have left, except those in bursts.
    pub fn check(&self) -> Result<()> {
        let name = self.case.name;
        if let Some(filter) = &self.filter {
            let looked_up: u64 = filter.hits().iter().map(|hits| hits.packets).sum();
            ensure!(looked_up > 0, "case {name}: no packet was looked up in its filter");
            let known = filter.hits().first().map_or(0, |first| first.packets);
            let by_first = matches!(self.case.more, More::State | More::First(_));
            ensure!(
                !by_first || known == looked_up,
                "case {name}: {known} of {looked_up} by the first rule"
            );
        }
        let failures = self.lua.as_ref().map_or(0, |lua| lua.status.failures().0);
        ensure!(failures == 0, "case {name}: its step failed {failures} times");
        let received = self.counters.rx(PortId::FIRST).packets.get();
        let mut sent = 0;
        for index in 0..self.case.egress {
            let port = self.counters.tx(port_id(index)?).packets.get();
            ensure!(port > 0 || !self.spread, "case {name}: nothing left by port {index}");
            sent += port;
        }
        let held = self.counters.held.get();
        ensure!(
            sent + held == received,
            "case {name}: {received} packets received, {sent} sent, {held} held: the rest was lost"
        );
        Ok(())
    }
}

/// Returns a port's number.
pub fn port_id(index: usize) -> Result<PortId> {
    PortId::new(index as u16).with_context(|| format!("port {index}: beyond the last"))
}

/// The writers of the tables of both families.
type Writers = (Box<dyn fib::Table<Ipv4Addr>>, Box<dyn fib::Table<Ipv6Addr>>);

/// The readers of the tables of both families.
pub type Lookups = (Arc<dyn fib::Lookup<Ipv4Addr>>, Arc<dyn fib::Lookup<Ipv6Addr>>);

/// Builds the route tables of a case.
fn routes(case: &Case, full: &FullTables) -> Result<(Lookups, Writers)> {
    let (mut fib4, mut fib6) = empty(case)?;
    if case.full {
        fib4.load(&mut with_default(&full.v4)?.into_iter())?;
        fib6.load(&mut with_default(&full.v6)?.into_iter())?;
    } else {
        for (prefix, id) in FOUR.iter().zip(FIRST_DYNAMIC..) {
            fib4.insert(prefix.parse()?, id)?;
        }
    }
    Ok(((fib4.reader(), fib6.reader()), (fib4, fib6)))
}

/// Makes the tables as the router does for a VRF, or for the default one.
fn empty(case: &Case) -> Result<Writers> {
    let grace = || -> Box<dyn fib::GracePeriod> { Box::new(fib::NoReaders) };
    let structure = fib::Algorithm::default();
    Ok(match case.more {
        More::Vrf => (
            fib::new_small_ipv4(structure, fib::SMALL_ROUTES, grace)?,
            fib::new_small_ipv6(structure, fib::SMALL_ROUTES, grace)?,
        ),
        _ => (fib::new_ipv4(structure, grace())?, fib::new_ipv6(structure, grace())?),
    })
}

/// Returns the routes with the available next hops, and a default route.
pub fn with_default<A: fib::Address>(full: &Routes<A>) -> Result<Routes<A>> {
    let any = fib::Prefix::new(A::from(Default::default()), 0)?;
    let all = full.iter().map(|&(prefix, hop)| (prefix, FIRST_DYNAMIC + way(hop)));
    Ok(all.chain([(any, FIRST_DYNAMIC)]).collect())
}

/// Returns a filter that accepts everything, with rules like those of access lists; the first rule
/// may be a special one.
fn filters_of(more: More) -> Result<Filters> {
    let count = if let More::Rules(count) = more { count } else { 10 };
    let mut filter = generate::rules(generate::Kind::Acl, Family::Ip4, count, 1);
    filter.default = Action::Accept;
    filter.rules.iter_mut().for_each(|rule| rule.action = Action::Accept);
    let mut flows = None;
    if more == More::State {
        filter.rules[0].matches = Matches { state: vec![State::Established], ..Matches::default() };
        let settings = FlowSettings::default();
        flows = Some(Arc::new(FlowTable::new(settings, dpdk::tsc_hz(), 1)));
    }
    let mut treatments = vec![Treatment::default(); count];
    let mut readers = acl::SetReaders::none();
    match more {
        More::First(rate) => {
            filter.rules[0].matches = Matches::default();
            treatments[0].police = rate.map(unreached);
        }
        More::Set(elements) => {
            let to_set = vec!["set".to_owned()];
            filter.rules[0].matches = Matches { to_set, ..Matches::default() };
            readers = set(elements)?;
        }
        _ => {}
    }
    let spec = FilterSpec { filter, treatments, targets: vec![] };
    Ok(Filters {
        tables: vec![Some(Arc::new(FilterTable::new(&spec, None, &readers)?))],
        flows,
        ..Filters::default()
    })
}

/// A rate that no packet exceeds.
fn unreached(rate: Rate) -> Police {
    let per_source = (rate == Rate::Source).then(SourceLengths::default);
    Police { rate: 1 << 40, burst: 1 << 40, bytes: false, per_source, colours: None }
}

/// A set of this many random prefixes, named `set`.
fn set(elements: usize) -> Result<acl::SetReaders> {
    let mut sets = acl::Sets::new(|| Box::new(fib::NoReaders))?;
    let set = sets.add_set("set").context("no set")?;
    let mut random = fib::synthetic::Random::new(4);
    for _ in 0..elements {
        let address = Ipv4Addr::from_bits(random.word() as u32);
        let length = 16 + (random.word() % 17) as u8;
        sets.add(set, ipnet::Ipv4Net::new_assert(address, length).trunc().into())?;
    }
    Ok(sets.readers())
}

/// Records the reverse flow of each packet of the source, so that the packets belong to known
/// connections.
fn know_all(bench: &Bench, case: &Case, tables: &Tables) -> Result<()> {
    tables.filters.use_next(&tables.interfaces.get());
    let mut gate = Gate::default();
    gate.follow(&tables.filters);
    let packets = bench.packets(case.mix).context("the source is there")?;
    for (head, _) in (0..).map_while(|index| packets.get(index)) {
        let mut frame = *head;
        let (source, destination) = frame[26..34].split_at_mut(4);
        source.swap_with_slice(destination);
        let (from, to) = frame[34..38].split_at_mut(2);
        from.swap_with_slice(to);
        gate.own(&frame[..source::FRAME], InterfaceId::FIRST, dpdk::tsc());
    }
    Ok(())
}

/// Builds the tables of a case's steps: its routes lead to [`NEXT_HOPS`] next hops, spread over the
/// egress ports.
fn tables(case: &Case, (fib4, fib6): Lookups) -> Result<Arc<Tables>> {
    let next_hops = NextHopTable::new();
    let (vlans, shared) = (vlans_of(case)?, Arc::<Shared>::default());
    let bond = if case.more == More::Bond { Some(set_bond(case, &shared)?) } else { None };
    for index in 0..NEXT_HOPS {
        let port = usize::from(index) % case.egress;
        let interface = match bond {
            Some(bond) => bond,
            None if vlans.is_empty() => port_id(port)?.into(),
            None => vlan_id(port)?,
        };
        let mac = MacAddr([2, 0, 0, 0, 1, index as u8]);
        next_hops.set(FIRST_DYNAMIC + index, NextHop::Forward { interface, mac });
    }
    let mut ports =
        vec![
            PORT;
            if vlans.is_empty() && bond.is_none() { case.egress } else { MAX_PORTS + case.egress }
        ];
    ports[0] = ingress(case);
    let filters = Arc::<FilterTables>::default();
    if matches!(case.more, More::Rules(_) | More::First(_) | More::Set(_) | More::State) {
        filters.set(filters_of(case.more)?);
    }
    let table = VlanTable::default();
    let inserting = if case.mix.stripped().is_some() { case.egress } else { 0 };
    let insert = (0..inserting).map(port_id).collect::<Result<_>>()?;
    let devices = TagDevices { insert, ..TagDevices::default() };
    table.set(Arc::new(Vlans::new(&vlans, devices, &Bonds::default())));
    let vrfs = VrfTables::new(Fibs { fib4: fib4.clone(), fib6: fib6.clone() });
    if case.more == More::Vrf {
        vrfs.add(VRF, Fibs { fib4, fib6 });
    }
    Ok(Arc::new(Tables {
        named_hops: Default::default(),
        mirrors: Default::default(),
        vrfs: Arc::new(vrfs),
        next_hops: Arc::new(next_hops),
        filters,
        multicast: Arc::default(),
        mtus: Arc::new(Mtus::new(&ports)),
        shared,
        vlans: Arc::new(table),
        interfaces: Arc::new(InterfaceInfos::new(ports)),
        flows: FlowHash::new(1),
        own: Arc::new(dataplane::own::OwnAddresses::new(false)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_cases_are_named() {
        let error = choose(&["4r1e".into(), "4r2e".into()]).err().unwrap().to_string();
        assert_eq!(
            error,
            "--case 4r2e: not found; known: 4r1e, noop, lua-empty, lua-voip, \
             lua-flushed, rust-voip, filter-10, filter-1000, filter-10000, \
             filter-first, filter-police, filter-set, queue-fifo, queue-red, queue-codel, queue-drr, queue-shape, 4r4e, full4, vrf4, bond4, vlan4, \
             qinq4, vlan4-queues, vlan4-device, filter-sources, filter-state, full6, mixed"
        );
        assert_eq!(choose(&[]).unwrap().len(), 14);
        let chosen = choose(&["mixed".into(), "4r1e".into()]).unwrap();
        assert_eq!(chosen.iter().map(|case| case.name).collect::<Vec<_>>(), ["4r1e", "mixed"]);
    }

    #[test]
    fn routes_spread_over_the_next_hops() {
        let ways: Vec<u16> = (1..=6).map(way).collect();
        assert_eq!(ways, [0, 1, 2, 3, 0, 1]);
    }
}

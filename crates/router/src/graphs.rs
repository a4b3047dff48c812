//! Makes each forwarder's copy of the graph, with its Lua steps, and logs their failures.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use acl::SetReaders;
use anyhow::{Context, Error, Result, anyhow};
use control::config::Config;
use dataplane::bond::BondTable;
use dataplane::catalogue::{Catalogue, Facts};
use dataplane::companions::Companions;
use dataplane::copy_filter::CopyFilter;
use dataplane::filters::{FilterTable, Filters};
use dataplane::flows::FlowTable;
use dataplane::graph::Graph;
use dataplane::interface::{InterfaceId, InterfaceInfo};
use dataplane::mirror_sessions::Sessions;
use dataplane::plan::Plans;
use dataplane::router_filter::RouterFilter;
use dataplane::samples::SampleTable;
use dataplane::shed_filter::ShedFilter;
use dataplane::spread_filter::SpreadFilter;
use dataplane::steps::named_hop;
use dataplane::tables::Tables;
use script::{
    ForwarderLua, JitStatus, LuaSteps, Peers, Policy, ScriptCounters, ScriptSource, SharedObjects,
    StepSettings, StepStatus, Watchdog,
};

use super::node_tables::NodeTables;
use super::sets::NamedSets;
use super::virtuals;

/// Between two reports of a step's failures.
const REPORT: Duration = Duration::from_secs(1);

/// The observable state of a forwarder's Lua steps.
#[derive(Clone)]
pub struct LuaView {
    /// Its script's counters.
    pub counters: Arc<ScriptCounters>,
    /// Status of its JIT compiler.
    pub jit: Arc<JitStatus>,
    /// Its steps by their names in the script; one that stands in the graph twice is here twice.
    pub steps: Vec<(String, Arc<StepStatus>)>,
}

/// A graph for a forwarder, and the view of its Lua state if it has one.
pub type ForwarderGraph = (Graph, Option<LuaView>);

/// Logs each Lua step's failure policy.
pub fn say_policies(config: &Config) {
    let steps = config.script.iter().flat_map(|script| &script.steps);
    steps.for_each(|step| tracing::info!("{}", policy(step)));
}

/// Describes the treatment of packets over which a step fails, and of all packets once it has failed too often.
fn policy(step: &StepSettings) -> String {
    let StepSettings { name, outputs, drops: _, limit, policy, budget_us: _ } = step;
    let each = format!("step \"{name}\": packets over which it fails are dropped (step-failed)");
    let then = match (limit, policy) {
        (0, _) => return format!("{each}; it is never disabled"),
        (_, Policy::Drop) => "fails closed: all are dropped".to_owned(),
        (_, Policy::Bypass) => {
            format!("fails open: all pass it by \"{}\"", outputs.first().map_or("", String::as_str))
        }
    };
    format!("{each}; disabled after {limit} failures, and {then}")
}

/// Makes graphs.
pub struct GraphMaker {
    catalogue: Catalogue,
    tables: NodeTables,
    /// Looks after all Lua steps, once there are some.
    watchdog: Option<Watchdog>,
    /// The filters that graphs were made with last.
    filters: Filters,
    /// The sets that filters name.
    sets: NamedSets,
    /// Objects shared by the Lua steps of all forwarders.
    shared: Arc<SharedObjects>,
}

impl GraphMaker {
    /// Of these steps, for these tables.
    pub fn new(catalogue: &Catalogue, tables: NodeTables, sets: NamedSets) -> Self {
        let filters = Filters::default();
        Self {
            catalogue: catalogue.clone(),
            tables,
            watchdog: None,
            filters,
            sets,
            shared: Arc::default(),
        }
    }

    /// The tables that graphs read.
    pub fn tables(&self) -> &NodeTables {
        &self.tables
    }

    /// Makes all graphs from now on for these tables, which differ from those before in their FIBs only.
    pub fn use_tables(&mut self, tables: NodeTables) {
        self.tables = tables;
    }

    /// A copy of the graph that the configuration describes for a forwarder on each of these cores, for ports
    /// like these.
    pub fn make_all(
        &mut self,
        cores: &[usize],
        config: &Config,
        ports: &[InterfaceInfo],
    ) -> Result<Vec<ForwarderGraph>> {
        let tables = self.tables.clone();
        self.make_all_for(&tables, cores, config, ports)
    }

    /// The same for these tables, which differ from the present ones in their FIBs only.
    pub fn make_all_for(
        &mut self,
        tables: &NodeTables,
        cores: &[usize],
        config: &Config,
        ports: &[InterfaceInfo],
    ) -> Result<Vec<ForwarderGraph>> {
        self.tables.common().interfaces.set(ports.to_vec());
        let bonds = self.tables.common().shared.get::<BondTable>();
        bonds.set(virtuals::bonds(config, ports));
        let vlans = virtuals::vlans(config, ports, &bonds.get());
        self.tables.common().vlans.set(Arc::new(vlans));
        self.tables.common().mirrors.set(Arc::new(self.mirror_sessions(config)));
        self.tables.common().shared.get::<SampleTable>().set(config.samplings());
        let sets = self.sets.declare(&config.sets)?;
        self.filters = filters(config, &self.filters, &sets)?;
        self.tables.common().filters.set(self.filters.clone());
        let mut catalogue = self.catalogue.clone();
        for hop in &config.next_hops {
            // Requirements were checked when the configuration was read.
            catalogue.add(named_hop(&hop.name, Facts::VALID)).map_err(Error::msg)?;
        }
        let peers = Arc::default();
        let make = |&core| self.make(tables.near(core), &catalogue, config, ports, &peers);
        let graphs: Result<_> = cores.iter().map(make).collect();
        peers.seal();
        graphs
    }

    /// The mirror sessions of a configuration. Steps in Lua, those of other crates and those that move data may write
    /// anywhere in a packet.
    fn mirror_sessions(&self, config: &Config) -> Sessions {
        let builtin = Catalogue::default();
        let is_hop = |kind: &str| config.next_hops.iter().any(|hop| hop.name == kind);
        let mut kinds = config.graphs.kinds();
        let writes = kinds.any(|kind| match builtin.find(kind) {
            Some(spec) => spec.is_moving_data(),
            None => !is_hop(kind),
        });
        let sessions = config.mirrors.iter().map(|mirror| {
            let mut session = mirror.session.clone();
            // A bond's packets are those of its ports.
            let ports = |id: InterfaceId| match config.bond(id) {
                Some(bond) => bond.ports.iter().map(|&port| port.into()).collect(),
                None => vec![id],
            };
            session.from = session.from.into_iter().flat_map(ports).collect();
            session
        });
        let tables = self.tables.common();
        Sessions::new(sessions.collect(), &tables.vlans.get(), writes)
            .with_tunnels(&tables.named_hops, &tables.mirrors.get())
    }

    /// One forwarder's copy.
    fn make(
        &mut self,
        tables: &Arc<Tables>,
        catalogue: &Catalogue,
        config: &Config,
        ports: &[InterfaceInfo],
        peers: &Arc<Peers>,
    ) -> Result<ForwarderGraph> {
        let plans = config.graphs.wanted_by(ports)?;
        let names = config.port_names();
        let (steps, view) = self.lua_steps(config, &plans, &names, peers)?;
        let mut graph = steps.build(&plans, catalogue, tables, &names)?;
        let has_virtuals = config.virtuals().next().is_some();
        graph.companions = Companions {
            router_filter: RouterFilter::of(tables),
            copy_filter: CopyFilter::of(tables),
            tagger: has_virtuals.then(|| Box::new(tables.tagger())),
            spread_filter: SpreadFilter::of(tables),
            shed_filter: ShedFilter::of(tables),
            mirror_output: tables.mirror_output(),
        };
        Ok((graph, view))
    }

    /// The Lua steps that the plans name, each as often as it stands there.
    fn lua_steps(
        &mut self,
        config: &Config,
        plans: &Plans,
        ports: &[String],
        peers: &Arc<Peers>,
    ) -> Result<(LuaSteps, Option<LuaView>)> {
        let Some(script) = &config.script else { return Ok((LuaSteps::default(), None)) };
        if self.watchdog.is_none() {
            self.watchdog = Some(Watchdog::start().context("the watchdog of Lua steps")?);
        }
        let Some(watchdog) = &self.watchdog else { return Ok((LuaSteps::default(), None)) };
        let file = config.file.display().to_string();
        let name =
            config.file.file_name().map_or(file.clone(), |name| name.to_string_lossy().into());
        let shared = &self.shared;
        let categories = &config.categories;
        let source =
            ScriptSource { text: &config.text, file: &name, ports, categories, shared, peers };
        let lua = ForwarderLua::load(&source, watchdog)
            .with_context(|| format!("{file}: the script cannot be run on a forwarder"))?;
        let (counters, jit) = (lua.counters(), lua.jit());
        let of = |kind: &str| script.steps.iter().find(|step| step.name == kind);
        let steps = lua.into_steps(plans.kinds().filter_map(of)).with_context(|| file.clone())?;
        let status = steps.status().map(|(name, status)| (name.to_owned(), status)).collect();
        let view = LuaView { counters, jit, steps: status };
        Ok((steps, Some(view)))
    }
}

/// The filters of a configuration by their numbers less one. Those that are as before stay; of others rules
/// that stay keep what they counted.
fn filters(config: &Config, before: &Filters, sets: &SetReaders) -> Result<Filters> {
    let most = config.filters.iter().map(|filter| usize::from(filter.number)).max().unwrap_or(0);
    let mut tables = vec![None; most];
    for filter in &config.filters {
        let name = filter.name();
        let mut known = before.tables.iter().flatten();
        let before = known.find(|table| table.spec().filter.name == name);
        let table = match before {
            Some(table) if *table.spec() == filter.spec => table.clone(),
            _ => {
                let made = FilterTable::new(&filter.spec, before.map(|table| &**table), sets);
                let file = config.file.display();
                Arc::new(made.map_err(|why| anyhow!("{file}:{}: {why}", filter.line))?)
            }
        };
        tables[usize::from(filter.number) - 1] = Some(table);
    }
    Ok(Filters { flows: flows(config, before), tables, categories: config.categories.clone() })
}

/// Returns the flow table, if a filter needs it; known flows stay, with changed settings too.
fn flows(config: &Config, before: &Filters) -> Option<Arc<FlowTable>> {
    config.filters.iter().any(|filter| filter.spec.asks_for_state()).then_some(())?;
    Some(match &before.flows {
        Some(flows) if flows.settings() == config.flows => flows.clone(),
        Some(flows) => Arc::new(FlowTable::like(flows, config.flows, dpdk::tsc())),
        None => {
            let seed = RandomState::new().hash_one(0);
            Arc::new(FlowTable::new(config.flows, dpdk::tsc_hz(), seed))
        }
    })
}

/// Writes failures of Lua steps to the log, each step's at most once a second.
#[derive(Default)]
pub struct FailureLog {
    last: HashMap<(usize, usize), Instant>,
    /// Steps already logged as disabled.
    told: Vec<(usize, usize)>,
}

impl FailureLog {
    /// Looks at the steps of all forwarders.
    pub fn look<'a>(&mut self, views: impl Iterator<Item = (usize, &'a LuaView)>) {
        for (forwarder, view) in views {
            for (place, (name, status)) in view.steps.iter().enumerate() {
                let key = (forwarder, place);
                if status.is_disabled() && !self.told.contains(&key) {
                    self.told.push(key);
                    let (failures, _) = status.failures();
                    tracing::error!(
                        "step \"{name}\" on forwarder {forwarder}: disabled after {failures} failures"
                    );
                }
                if self.last.get(&key).is_some_and(|last| last.elapsed() < REPORT) {
                    continue;
                }
                if let Some(failure) = status.take_failure() {
                    self.last.insert(key, Instant::now());
                    tracing::warn!(
                        "step \"{name}\" on forwarder {forwarder}, failure {}: {}",
                        failure.count,
                        failure.message
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_a_step_is_said_in_full() {
        let step = |limit, policy| {
            let outputs = vec!["next".to_owned(), "drop".to_owned()];
            self::policy(&StepSettings {
                name: "acl".to_owned(),
                outputs,
                drops: Vec::new(),
                limit,
                policy,
                budget_us: 9,
            })
        };
        let each = "step \"acl\": packets over which it fails are dropped (step-failed); ";
        let closed = "disabled after 100 failures, and fails closed: all are dropped";
        let open = "disabled after 100 failures, and fails open: all pass it by \"next\"";
        assert_eq!(step(100, Policy::Drop), format!("{each}{closed}"));
        assert_eq!(step(100, Policy::Bypass), format!("{each}{open}"));
        assert_eq!(step(0, Policy::Drop), format!("{each}it is never disabled"));
    }
}

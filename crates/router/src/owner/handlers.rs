//! Handlers of Click's elements, as `handlers.rs` declares them: read from counters, steps' arguments and the RIB.
//!
//! A write that changes an argument of a step, or routes, is a change of the configuration like `apply`, in all but two
//! things: only what it names is changed, whatever else the configuration has become meanwhile, and the history does
//! not have it. A later `apply` sets everything to what its file says.
//!
//! Counts are those of the ledger, which never decrease. To reset one means to subtract from then on what it was.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use api::change::{NeighbourAdd, NeighbourChange, NeighbourDel, PathSpec};
use api::report::{ClickElement, HandlerAnswer};
use api::{Answer, HandlerCall};
use control::config::{Config, Element, Route};
use control::rib::{RouteInfo, RouteKind, RouteSource, Target};
use dataplane::catalogue::Catalogue;
use dataplane::gauge::Gauges;
use dataplane::interface::VrfId;
use dataplane::params::{Arg, Given};
use dataplane::plan::Plan;
use ipnet::{IpNet, Ipv4Net};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::handlers::routes::{self, Entry, Verb};
use super::super::handlers::{self, Handler, Unit, What, said, status};
use super::super::reports::StepCounts;
use super::Owner;
use super::questions::{WORKERS_PATIENCE, reply};

/// Most routes that a table's handler writes.
const ROUTES_MOST: usize = 100_000;

/// Samples of counters that are kept, one a second.
const SAMPLES: usize = 2;

/// Time in which the answer to `stop` leaves before the router ends.
const FAREWELL: Duration = Duration::from_millis(50);

/// A change that a handler makes to the configuration.
#[derive(Clone, Debug)]
pub enum Edit {
    /// An argument of a step.
    Argument {
        /// The step.
        step: String,
        /// The parameter.
        key: &'static str,
        /// The value.
        value: Given,
    },
    /// Static routes, in place of those to the same prefixes.
    Routes {
        /// The destinations whose routes go.
        removed: Vec<Ipv4Net>,
        /// The routes that come.
        added: Vec<Route>,
    },
}

impl Edit {
    /// Makes the change.
    ///
    /// # Errors
    /// The step has gone, or the value does not fit.
    pub fn make(&self, config: &mut Config, catalogue: &Catalogue) -> Result<()> {
        match self {
            Self::Argument { step, key, value } => {
                let plans = &mut config.graphs;
                let others = plans.by_port.iter_mut().map(|(_, plan)| plan);
                let mut all = std::iter::once(&mut plans.main).chain(others);
                let plan = all.find(|plan| plan.has(step));
                let plan =
                    plan.ok_or_else(|| anyhow!("step \"{step}\": it is in the graph no more"))?;
                plan.set_argument(catalogue, step, (key, value.clone()))?;
            }
            Self::Routes { removed, added } => {
                config.routes.retain(|route| !is_to(route, removed));
                config.routes.extend(added.iter().cloned());
            }
        }
        Ok(())
    }
}

/// Returns true for a route that a table's handlers may change, to one of these.
fn is_to(route: &Route, prefixes: &[Ipv4Net]) -> bool {
    let prefix = |prefix: &Ipv4Net| IpNet::V4(*prefix) == route.prefix;
    route.vrf == VrfId::DEFAULT && route.metric == 0 && prefixes.iter().any(prefix)
}

/// Counts at a time.
#[derive(Clone, Copy, Debug)]
struct Base {
    packets: u64,
    bytes: u64,
    /// By the output that is a handler of its own.
    output: u64,
    at: Instant,
}

/// Packets and bytes of counters, by element.
struct Sample {
    at: Instant,
    counts: HashMap<String, (u64, u64)>,
}

/// Resets and samples of counts.
pub struct Counts {
    since: Instant,
    bases: HashMap<String, Base>,
    samples: VecDeque<Sample>,
}

impl Counts {
    /// Counts from now on.
    pub fn new() -> Self {
        Self { since: Instant::now(), bases: HashMap::new(), samples: VecDeque::new() }
    }

    fn base(&self, element: &Element) -> Base {
        let none = Base { packets: 0, bytes: 0, output: 0, at: self.since };
        self.bases.get(&element.name).copied().unwrap_or(none)
    }

    /// The oldest sample of an element, or the last reset.
    fn before(&self, element: &Element) -> (u64, u64, Instant) {
        let base = self.base(element);
        let sample = self.samples.iter().find_map(|sample| {
            let (packets, bytes) = sample.counts.get(&element.name)?;
            (sample.at > base.at).then_some((*packets, *bytes, sample.at))
        });
        sample.unwrap_or((base.packets, base.bytes, base.at))
    }

    /// Forgets elements that a configuration does not have, or counts otherwise.
    pub fn keep(&mut self, old: &Config, new: &Config) {
        let of = |config: &Config, name: &String| {
            let element = config.elements.iter().find(|element| element.name == *name);
            element.map(|element| (element.step.clone(), element.counts.clone()))
        };
        let stays = |name: &String| of(new, name).is_some() && of(old, name) == of(new, name);
        self.bases.retain(|name, _| stays(name));
        for sample in &mut self.samples {
            sample.counts.retain(|name, _| stays(name));
        }
    }
}

/// A value that is there at once, or the reason why there is none.
type Value = Result<String, String>;

impl Owner {
    /// Calls a handler; the answer comes at once or, from a change or a slow path worker, later.
    pub(super) fn call_handler(&mut self, call: HandlerCall, to: oneshot::Sender<Answer>) {
        let answer = match call {
            HandlerCall::CheckRead { handler } => self.check_handler(&handler, false),
            HandlerCall::CheckWrite { handler } => self.check_handler(&handler, true),
            HandlerCall::Read { handler: name, argument } => match self.find_handler(&name) {
                Err(unknown) => unknown,
                Ok((_, handler)) if !handler.reads => {
                    said(status::PERMISSION, format!("Handler '{name}' write-only"))
                }
                Ok((Some(element), Handler { what: What::ArpTable, .. })) => {
                    return self.read_arp_table(element.port, name, to);
                }
                Ok((element, handler)) => {
                    handlers::read(&name, self.read_handler(element.as_ref(), handler, &argument))
                }
            },
            HandlerCall::Write { handler: name, value } => match self.find_handler(&name) {
                Err(unknown) => unknown,
                Ok((_, handler)) if !handler.writes => {
                    said(status::PERMISSION, format!("Handler '{name}' read-only"))
                }
                Ok((element, handler)) => {
                    match self.write_handler(element.as_ref(), handler, &value) {
                        Ok(Some(edit)) => return self.make_edit(edit, name, to),
                        done => handlers::written(&name, done.map(drop)),
                    }
                }
            },
        };
        reply(to, Ok(answer));
    }

    /// The element and the handler of a name, or Click's error. The element's number, from 1, is a name as well.
    fn find_handler(
        &self,
        full: &str,
    ) -> Result<(Option<Element>, &'static Handler), HandlerAnswer> {
        let name = match full.split_once('.') {
            Some(("" | "0", name)) => name,
            _ => full,
        };
        let unknown = || said(status::NO_HANDLER, format!("No handler named '{full}'"));
        let Some((element, handler)) = name.split_once('.') else {
            let found = handlers::GLOBAL.iter().find(|handler| handler.name == name);
            return found.map(|handler| (None, handler)).ok_or_else(unknown);
        };
        let elements = &self.configurations.current.elements;
        let named = elements.iter().find(|known| known.name == element);
        let numbered = || elements.get(element.parse::<usize>().ok()?.checked_sub(1)?);
        let Some(element) = named.or_else(numbered) else {
            return Err(said(status::NO_ELEMENT, format!("No element named '{element}'")));
        };
        let found = handlers::of_class(&element.class).find(|known| known.name == handler);
        found.map(|handler| (Some(element.clone()), handler)).ok_or_else(unknown)
    }

    fn check_handler(&self, name: &str, is_write: bool) -> HandlerAnswer {
        let (verb, adjective) = if is_write { ("Write", "writable") } else { ("Read", "readable") };
        match self.find_handler(name) {
            Err(unknown) => unknown,
            Ok((_, handler)) if if is_write { handler.writes } else { handler.reads } => {
                said(status::OK, format!("{verb} handler '{name}' OK"))
            }
            Ok(_) => said(status::NO_HANDLER, format!("Handler '{name}' not {adjective}")),
        }
    }

    fn read_handler(&self, element: Option<&Element>, handler: &Handler, argument: &str) -> Value {
        let Some(element) = element else { return Ok(self.read_global(handler.what)) };
        let base = self.counts.base(element);
        Ok(match handler.what {
            What::Class => element.class.clone(),
            What::Name => element.name.clone(),
            What::Config => element.config.clone(),
            What::Ports => ports(element, &self.configurations.current.elements),
            What::Handlers => listed(handlers::of_class(&element.class)),
            What::Count => self.packets(element)?.saturating_sub(base.packets).to_string(),
            What::Bytes => self.bytes(element)?.saturating_sub(base.bytes).to_string(),
            What::Rate(unit) => self.rate(element, unit, self.counts.before(element))?,
            What::Average(unit) => self.rate(element, unit, (base.packets, base.bytes, base.at))?,
            What::Output(output) => {
                self.on_output(element, output)?.saturating_sub(base.output).to_string()
            }
            What::Length => self.length(element).0.to_string(),
            What::MostLength => self.length(element).1.to_string(),
            What::Capacity => self.capacity(element),
            What::Argument(key, form) => form.write(&self.argument(element, key)?),
            What::Table => lines(self.table(element)?.iter()),
            What::Lookup => self.look_up(element, argument)?,
            What::Address => self.address(element, handler.name)?,
            other => return Err(format!("{other:?}: it is no element's")),
        })
    }

    fn read_global(&self, what: What) -> String {
        let elements = &self.configurations.current.elements;
        match what {
            What::Version => format!("Turnpike {}", env!("CARGO_PKG_VERSION")),
            What::Driver => "userlevel".to_owned(),
            What::Config => configuration(elements),
            What::List => {
                let names = elements.iter().map(|element| &element.name);
                format!("{}\n{}", elements.len(), lines(names))
            }
            What::Classes => {
                let mut classes: Vec<_> = elements.iter().map(|element| &element.class).collect();
                classes.sort();
                classes.dedup();
                lines(classes.iter())
            }
            What::Handlers => listed(handlers::GLOBAL.iter()),
            _ => String::new(),
        }
    }

    /// Writes a handler: at once, or by the change that is returned.
    fn write_handler(
        &mut self,
        element: Option<&Element>,
        handler: &Handler,
        value: &str,
    ) -> Result<Option<Edit>, String> {
        let Some(element) = element else {
            stop();
            return Ok(None);
        };
        match handler.what {
            What::Reset => self.reset(element),
            What::Capacity => {
                let form = handlers::Form::Integer(1, 65_536);
                return self.set(element, "capacity", form.read(value, 0)?).map(Some);
            }
            What::Argument(key, form) => {
                let outputs = element.outputs.len();
                return self.set(element, key, form.read(value, outputs)?).map(Some);
            }
            What::Routes(verb) => return self.change_table(element, verb, value),
            What::ArpInsert => self.insert_neighbour(element, value)?,
            What::ArpDelete => self.forget_neighbour(element, value)?,
            other => return Err(format!("{other:?}: it is not written")),
        }
        Ok(None)
    }

    /// Why an element has no counts and no arguments.
    fn nothing(element: &Element) -> String {
        format!(
            "element \"{}\" ({}) has become no step: turnpike show click",
            element.name, element.class
        )
    }

    /// The plan with an element's step, and the step.
    fn step<'a>(&'a self, element: &'a Element) -> Result<(&'a Plan, &'a str), String> {
        let step = element.step.as_deref().ok_or_else(|| Self::nothing(element))?;
        let plans = &self.configurations.current.graphs;
        let mut all =
            std::iter::once(&plans.main).chain(plans.by_port.iter().map(|(_, plan)| plan));
        let plan = all.find(|plan| plan.has(step)).ok_or_else(|| Self::nothing(element))?;
        Ok((plan, step))
    }

    fn argument(&self, element: &Element, key: &str) -> Result<Arg, String> {
        let (plan, step) = self.step(element)?;
        let args = plan.step(step).map(|(_, args)| args);
        let arg = args.and_then(|args| args.find(key)).cloned();
        arg.ok_or_else(|| format!("step \"{step}\" has no parameter \"{key}\""))
    }

    fn set(&self, element: &Element, key: &'static str, value: Given) -> Result<Edit, String> {
        let (_, step) = self.step(element)?;
        Ok(Edit::Argument { step: step.to_owned(), key, value })
    }

    /// All packets that came to an element.
    fn packets(&self, element: &Element) -> Result<u64, String> {
        count(element, &self.forwarding.ledger.by_step()).ok_or_else(|| Self::nothing(element))
    }

    fn bytes(&self, element: &Element) -> Result<u64, String> {
        let (_, step) = self.step(element)?;
        Ok(self.forwarding.ledger.by_step().own(step, "bytes"))
    }

    fn on_output(&self, element: &Element, output: &str) -> Result<u64, String> {
        match self.step(element) {
            Ok((_, step)) => Ok(self.forwarding.ledger.by_step().on_edge(step, output)),
            // A queue in front of a device is the port's and drops nothing itself.
            Err(_) if output == "queue-full" => Ok(0),
            Err(why) => Err(why),
        }
    }

    /// What a counter counts a second since then.
    fn rate(
        &self,
        element: &Element,
        unit: Unit,
        (packets, bytes, since): (u64, u64, Instant),
    ) -> Value {
        let count = match unit {
            Unit::Packets => self.packets(element)?.saturating_sub(packets),
            Unit::Bytes => self.bytes(element)?.saturating_sub(bytes),
            Unit::Bits => 8 * self.bytes(element)?.saturating_sub(bytes),
        };
        let seconds = since.elapsed().as_secs_f64().max(1e-3);
        Ok(handlers::number(count as f64 / seconds))
    }

    fn reset(&mut self, element: &Element) {
        let outputs = handlers::of_class(&element.class).filter_map(|handler| match handler.what {
            What::Output(output) => Some(output),
            _ => None,
        });
        let output = outputs.filter_map(|output| self.on_output(element, output).ok()).sum();
        let packets = self.packets(element).unwrap_or_default();
        let bytes = self.bytes(element).unwrap_or_default();
        let base = Base { packets, bytes, output, at: Instant::now() };
        self.counts.bases.insert(element.name.clone(), base);
        if let Some(step) = &element.step {
            self.gauges().reset(step);
        }
    }

    /// Remembers the counters whose rate can be asked for.
    pub(super) fn sample_counts(&mut self) {
        let config = self.configurations.current.clone();
        if config.elements.is_empty() {
            return;
        }
        let is_rated = |element: &&Element| {
            let mut all = handlers::of_class(&element.class);
            element.step.is_some() && all.any(|handler| handler.what.is_rate())
        };
        let by_step = self.forwarding.ledger.by_step();
        let rated = config.elements.iter().filter(is_rated);
        let counts: HashMap<_, _> = rated
            .filter_map(|element| {
                let bytes = by_step.own(element.step.as_deref()?, "bytes");
                Some((element.name.clone(), (count(element, &by_step)?, bytes)))
            })
            .collect();
        if counts.is_empty() {
            return self.counts.samples.clear();
        }
        self.counts.samples.push_back(Sample { at: Instant::now(), counts });
        if self.counts.samples.len() > SAMPLES {
            self.counts.samples.pop_front();
        }
    }

    fn gauges(&self) -> std::sync::Arc<Gauges> {
        self.routing.tables.shared.get()
    }

    /// Packets that a queue holds, and the most it held.
    fn length(&self, element: &Element) -> (usize, usize) {
        element.step.as_ref().map_or((0, 0), |step| self.gauges().read(step))
    }

    /// Of a queue in front of a device, what its configuration says.
    fn capacity(&self, element: &Element) -> String {
        let said = || element.config.trim().trim_start_matches("CAPACITY ").to_owned();
        match self.argument(element, "capacity") {
            Ok(arg) => arg.to_string(),
            Err(_) if said().is_empty() => "1000".to_owned(),
            Err(_) => said(),
        }
    }

    fn address(&self, element: &Element, handler: &str) -> Value {
        use control::config::Listen;
        let sockets = &self.configurations.current.control_sockets;
        let socket = sockets.iter().find(|socket| socket.name == element.name);
        match socket.map(|socket| &socket.listen) {
            Some(Listen::Tcp(address)) if handler == "port" => Ok(address.port().to_string()),
            Some(Listen::Unix(path)) if handler == "filename" => Ok(path.display().to_string()),
            _ => Err(format!("element \"{}\": it has no {handler}", element.name)),
        }
    }

    /// The routes of a table: of its step, or of the RIB.
    fn table(&self, element: &Element) -> Result<Vec<Entry>, String> {
        if element.ways.is_empty() {
            let Arg::Texts(routes) = self.argument(element, "routes")? else {
                return Ok(Vec::new());
            };
            return routes.iter().map(|route| routes::entry(route, Verb::Add)).collect();
        }
        let all = self.routing.rib.routes_filtered(VrfId::DEFAULT, None, None, false);
        let is_meant = |route: &RouteInfo| {
            let is_own = matches!(route.source, RouteSource::Reserved | RouteSource::Neighbour);
            route.active && !is_own
        };
        let entry = |route: RouteInfo| self.entry(element, &route);
        Ok(all.filter(is_meant).filter_map(entry).take(ROUTES_MOST).collect())
    }

    /// A route of the RIB as one of the table.
    fn entry(&self, element: &Element, route: &RouteInfo) -> Option<Entry> {
        let IpNet::V4(prefix) = route.prefix else { return None };
        let way = |name: &str| element.ways.iter().position(|way| way == name);
        let by = |interface| way(&self.interface_name(interface));
        let (gateway, output) = match &route.target {
            Target::Unicast(paths) | Target::Group(_, paths) => {
                let path = paths.first()?;
                (path.via, path.interface.and_then(by))
            }
            Target::Connected(interface) => (None, by(*interface)),
            Target::Local | Target::Host => (None, way("local")),
            _ => (None, way("drop")),
        };
        let gateway =
            gateway.and_then(|via| if let IpAddr::V4(v4) = via { Some(v4) } else { None });
        Some(Entry { prefix, gateway, output })
    }

    fn look_up(&self, element: &Element, argument: &str) -> Value {
        let address: Ipv4Addr = argument.trim().parse().map_err(|_| "expected IP address")?;
        let found = if element.ways.is_empty() {
            let table = self.table(element)?;
            let matches = table.into_iter().filter(|entry| entry.prefix.contains(&address));
            matches.max_by_key(|entry| entry.prefix.prefix_len())
        } else {
            let found = self.routing.rib.lookup(VrfId::DEFAULT, address.into());
            found.and_then(|found| {
                let entry = self.entry(element, &found.route)?;
                // A neighbour's own route leads to it, not over it.
                let gateway = entry.gateway.filter(|gateway| *gateway != address);
                Some(Entry { gateway, ..entry })
            })
        };
        let Some(Entry { gateway, output, .. }) = found else { return Ok("-1".to_owned()) };
        let output = output.map_or_else(|| "-1".to_owned(), |output| output.to_string());
        Ok(gateway.map_or_else(|| output.clone(), |gateway| format!("{output} {gateway}")))
    }

    fn change_table(
        &self,
        element: &Element,
        verb: Option<Verb>,
        text: &str,
    ) -> Result<Option<Edit>, String> {
        let is_rib = !element.ways.is_empty();
        let before = if is_rib { self.static_entries(element) } else { self.table(element)? };
        let outputs = element.outputs.len();
        let after = routes::change(&before, outputs, verb, text)?;
        if before == after {
            return Ok(None);
        }
        if is_rib {
            return self.replace_routes(element, &before, &after).map(Some);
        }
        if let Some(entry) = after.iter().find(|entry| entry.gateway.is_some()) {
            return Err(format!("route '{entry}': a gateway has no effect without an ARPQuerier"));
        }
        let text = |entry: &Entry| {
            Given::Text(format!("{} {}", entry.prefix, entry.output.unwrap_or_default()))
        };
        self.set(element, "routes", Given::List(after.iter().map(text).collect())).map(Some)
    }

    /// The static routes of the configuration that the table's handlers can change.
    fn static_entries(&self, element: &Element) -> Vec<Entry> {
        let way = |name: &str| element.ways.iter().position(|way| way == name);
        let entry = |route: &Route| {
            let IpNet::V4(prefix) = route.prefix else { return None };
            if !is_to(route, &[prefix]) {
                return None;
            }
            let (gateway, output) = match &route.kind {
                RouteKind::Unicast(paths) => {
                    let path = paths.first()?;
                    let output = path.interface.and_then(|id| way(&self.interface_name(id)));
                    let gateway = path.via.and_then(|via| match via {
                        IpAddr::V4(v4) => Some(v4),
                        IpAddr::V6(_) => None,
                    });
                    (gateway, output)
                }
                _ => (None, way("drop")),
            };
            Some(Entry { prefix, gateway, output })
        };
        self.configurations.current.routes.iter().filter_map(entry).collect()
    }

    fn replace_routes(
        &self,
        element: &Element,
        before: &[Entry],
        after: &[Entry],
    ) -> Result<Edit, String> {
        let gone = before.iter().filter(|entry| !after.contains(entry));
        let come = after.iter().filter(|entry| !before.contains(entry));
        let added: Result<Vec<Route>, String> =
            come.map(|entry| self.route_of(element, entry)).collect();
        Ok(Edit::Routes { removed: gone.map(|entry| entry.prefix).collect(), added: added? })
    }

    fn route_of(&self, element: &Element, entry: &Entry) -> Result<Route, String> {
        let way = entry.output.and_then(|output| element.ways.get(output)).map(String::as_str);
        let kind = match way {
            None => return Err("bad OUTPUT".to_owned()),
            Some("local") => {
                return Err(format!(
                    "route '{entry}': its output leads to the router itself, whose addresses are its ports'"
                ));
            }
            Some("drop") => RouteKind::Blackhole,
            Some(port) => {
                let via = entry.gateway.map(IpAddr::V4);
                let spec = PathSpec { via, port: Some(port.to_owned()), weight: 1 };
                let path = self.path(VrfId::DEFAULT, &spec);
                RouteKind::Unicast(vec![path.map_err(|why| format!("route '{entry}': {why:#}"))?])
            }
        };
        let (vrf, prefix) = (VrfId::DEFAULT, IpNet::V4(entry.prefix));
        Ok(Route { line: element.line, vrf, prefix, kind, metric: 0, resilient: None })
    }

    /// Answers when the slow path's workers have.
    fn read_arp_table(&self, port: Option<String>, name: String, to: oneshot::Sender<Answer>) {
        let orders = self.slow_path.orders.clone();
        let interface = port.and_then(|port| self.port_named(&port).ok());
        tokio::spawn(async move {
            let table = match timeout(WORKERS_PATIENCE, orders.neighbours()).await {
                Ok(Some(table)) => Ok(table),
                _ => Err("a slow path worker does not answer; see the log".to_owned()),
            };
            let is_meant = |info: &slowpath::NeighbourInfo| {
                info.address.is_ipv4()
                    && interface.is_some_and(|port| info.interface == port.into())
            };
            let line = |info: slowpath::NeighbourInfo| {
                let mac = info.mac.map_or_else(
                    || "00-00-00-00-00-00".to_owned(),
                    |mac| mac.to_string().replace(':', "-").to_uppercase(),
                );
                let known = u8::from(info.mac.is_some());
                format!("{} {known} {mac} {:.3}", info.address, info.age.as_secs_f64())
            };
            let table = table.map(|table| lines(table.into_iter().filter(is_meant).map(line)));
            reply(to, Ok(handlers::read(&name, table)));
        });
    }

    fn insert_neighbour(&mut self, element: &Element, value: &str) -> Result<(), String> {
        let words: Vec<&str> = value.split_whitespace().collect();
        let [address, mac] = words[..] else { return Err("expected IP ETH".to_owned()) };
        let address = address.parse().map_err(|_| "IP: expected IP address")?;
        let (lladdr, port) = (mac.replace('-', ":"), port_of(element)?);
        let add = NeighbourAdd { address, lladdr, port };
        self.change_neighbour(NeighbourChange::Add(add)).map(drop).map_err(|why| format!("{why:#}"))
    }

    fn forget_neighbour(&mut self, element: &Element, value: &str) -> Result<(), String> {
        let address = value.trim().parse().map_err(|_| "IP: expected IP address")?;
        let del = NeighbourDel { address, port: port_of(element)? };
        self.change_neighbour(NeighbourChange::Del(del)).map(drop).map_err(|why| format!("{why:#}"))
    }

    /// The elements with what they have become.
    pub(super) fn click_elements(&self) -> Vec<ClickElement> {
        let by_step = self.forwarding.ledger.by_step();
        let report = |element: &Element| {
            let base = self.counts.base(element).packets;
            let handler = |handler: &Handler| (handler.name.to_owned(), handler.access());
            ClickElement {
                name: element.name.clone(),
                class: element.class.clone(),
                config: element.config.clone(),
                step: element.step.clone(),
                port: element.port.clone(),
                is_route_table: !element.ways.is_empty(),
                count: count(element, &by_step).map(|count| count.saturating_sub(base)),
                handlers: handlers::of_class(&element.class).map(handler).collect(),
            }
        };
        self.configurations.current.elements.iter().map(report).collect()
    }
}

/// All packets that came to an element.
fn count(element: &Element, by_step: &StepCounts<'_>) -> Option<u64> {
    let step = element.step.as_deref();
    // A counter counts by its own name, wherever its packets come from.
    if let Some(step) = step.filter(|step| by_step.is_of(step, "counter")) {
        return Some(by_step.own(step, "packets"));
    }
    let places = element.counts.iter().filter_map(|place| place.rsplit_once('.'));
    let sum = places.map(|(step, output)| by_step.on_edge(step, output)).sum();
    (step.is_some() || !element.counts.is_empty()).then_some(sum)
}

fn port_of(element: &Element) -> Result<String, String> {
    element.port.clone().ok_or_else(|| format!("element \"{}\" has no port", element.name))
}

/// A line each.
fn lines(items: impl Iterator<Item: std::fmt::Display>) -> String {
    items.map(|item| format!("{item}\n")).collect()
}

/// Names and access, as Click lists them.
fn listed<'a>(all: impl Iterator<Item = &'a Handler>) -> String {
    lines(all.map(|handler| format!("{}\t{}", handler.name, handler.access())))
}

/// The configuration in Click's language, without compound elements.
fn configuration(elements: &[Element]) -> String {
    let mut text = String::new();
    for Element { name, class, config, .. } in elements {
        text += &match config.is_empty() {
            true => format!("{name} :: {class};\n"),
            false => format!("{name} :: {class}({config});\n"),
        };
    }
    let wires = elements.iter().flat_map(|from| from.to.iter().map(move |wire| (from, wire)));
    for (from, wire) in wires {
        text += &format!("{} [{}] -> [{}] {};\n", from.name, wire.output, wire.input, wire.to);
    }
    text
}

/// The ports of an element, as Click lists them.
fn ports(element: &Element, all: &[Element]) -> String {
    let list = |directions: &[String], what: &str, ends: &dyn Fn(usize) -> Vec<String>| {
        let count = directions.len();
        let plural = if count == 1 { "" } else { "s" };
        let line = |(port, direction): (usize, &String)| {
            format!("{direction}\t-\t{}\n", ends(port).join(", "))
        };
        let all: String = directions.iter().enumerate().map(line).collect();
        format!("{count} {what}{plural}\n{all}")
    };
    let inputs = |port: usize| {
        let wires = all.iter().flat_map(|from| from.to.iter().map(move |wire| (from, wire)));
        let here = wires.filter(|(_, wire)| wire.to == element.name && wire.input == port);
        here.map(|(from, wire)| format!("{} [{}]", from.name, wire.output)).collect()
    };
    let outputs = |port: usize| {
        let here = element.to.iter().filter(|wire| wire.output == port);
        here.map(|wire| format!("{} [{}]", wire.to, wire.input)).collect()
    };
    list(&element.inputs, "input", &inputs) + &list(&element.outputs, "output", &outputs)
}

/// Ends the router as SIGTERM does, when the answer has left.
fn stop() {
    tracing::info!("handler stop: the router ends");
    tokio::spawn(async {
        tokio::time::sleep(FAREWELL).await;
        use nix::sys::signal::{Signal, kill};
        // A signal to the own process cannot be refused.
        let _ = kill(nix::unistd::getpid(), Signal::SIGTERM);
    });
}

//! Handlers of Click's elements, as `handlers.rs` declares them: read from counters, steps' arguments and the RIB.
//!
//! A write that changes an argument of a step, or routes, is a change of the configuration like `apply`, in all but two
//! things: only what it names is changed, whatever else the configuration has become meanwhile, and the history does
//! not have it. A later `apply` sets everything to what its file says.
//!
//! Counts are those of the ledger, which never decrease. To reset one means to subtract from then on what it was.

mod counts;
mod orders;
mod tables;
mod text;

use std::time::Duration;

use anyhow::{Result, anyhow};
use api::report::{ClickElement, HandlerAnswer};
use api::{Answer, HandlerCall};
use click::script::compute;
use control::config::{Config, Element, Route};
use dataplane::catalogue::Catalogue;
use dataplane::gauge::Gauges;
use dataplane::interface::VrfId;
use dataplane::params::{Arg, Given};
use dataplane::plan::Plan;
use dataplane::steps::{Dumps, OrderNumber, Sources, with_order_number};
use ipnet::{IpNet, Ipv4Net};
use tokio::sync::oneshot;

use super::super::handlers::{self, Handler, What, said, status};
use super::Owner;
use super::questions::reply;
pub use counts::Counts;
use counts::count;
use text::{configuration, lines, listed, ports};

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
    /// A number of a node in the order of a `schedule`.
    Node {
        /// The step.
        step: String,
        /// The node's label.
        label: String,
        /// The number.
        which: OrderNumber,
        /// Its value.
        value: String,
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
                plan_with(config, step)?.set_argument(catalogue, step, (key, value.clone()))?;
            }
            Self::Node { step, label, which, value } => {
                let plan = plan_with(config, step)?;
                let order = order_of(plan, step).unwrap_or_default();
                let changed = with_order_number(order, label, *which, value);
                let changed = changed.ok_or_else(|| {
                    anyhow!("step \"{step}\": its order has no \"{label}\" any more")
                })?;
                plan.set_argument(catalogue, step, ("order", Given::Text(changed)))?;
            }
            Self::Routes { removed, added } => {
                config.routes.retain(|route| !is_to(route, removed));
                config.routes.extend(added.iter().cloned());
            }
        }
        Ok(())
    }
}

/// The plan with a step.
fn plan_with<'a>(config: &'a mut Config, step: &str) -> Result<&'a mut Plan> {
    let plans = &mut config.graphs;
    let others = plans.by_port.iter_mut().map(|(_, plan)| plan);
    let mut all = std::iter::once(&mut plans.main).chain(others);
    let plan = all.find(|plan| plan.has(step));
    plan.ok_or_else(|| anyhow!("step \"{step}\": it is in the graph no more"))
}

/// The order of a step, if it is a `schedule`.
fn order_of<'a>(plan: &'a Plan, step: &str) -> Option<&'a str> {
    let (_, args) = plan.step(step).filter(|(kind, _)| *kind == "schedule")?;
    Some(args.text("order"))
}

/// Returns true for a route that a table's handlers may change, to one of these.
fn is_to(route: &Route, prefixes: &[Ipv4Net]) -> bool {
    let prefix = |prefix: &Ipv4Net| IpNet::V4(*prefix) == route.prefix;
    route.vrf == VrfId::DEFAULT && route.metric == 0 && prefixes.iter().any(prefix)
}

/// A value that is there at once, or the reason why there is none.
type Value = Result<String, String>;

impl Owner {
    /// Calls a handler; the answer comes at once or, from a change or a slow path worker, later.
    pub(super) fn call_handler(&mut self, call: HandlerCall, to: oneshot::Sender<Answer>) {
        let answer = match call {
            HandlerCall::Read { handler, .. } if self.exported(&handler).is_some() => {
                handlers::read(&handler, Ok(self.exported(&handler).unwrap_or_default()))
            }
            HandlerCall::CheckRead { handler } if self.exported(&handler).is_some() => {
                said(status::OK, format!("Read handler '{handler}' OK"))
            }
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
                Ok((Some(element), Handler { what: What::Script, name: of, .. })) => {
                    return self.call_script((&element.name, of, &argument), name, true, to);
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
                Ok((Some(element), Handler { what: What::Script, name: of, .. })) => {
                    return self.call_script((&element.name, of, &value), name, false, to);
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
        let found = handlers::of(element).find(|known| known.name == handler);
        found.map(|handler| (Some(element.clone()), handler)).ok_or_else(unknown)
    }

    /// The value of a variable that a script exports, by the name of its handler.
    fn exported(&self, name: &str) -> Option<String> {
        let (element, variable) = name.split_once('.')?;
        self.serving.service.as_ref()?.scripts().exported(element, variable)
    }

    /// Calls a handler of a script, which answers when it waits or ends.
    fn call_script(
        &self,
        (element, handler, text): (&str, &str, &str),
        name: String,
        is_read: bool,
        to: oneshot::Sender<Answer>,
    ) {
        let service = self.serving.service.as_ref().ok_or_else(|| "no scripts run".to_owned());
        let value = service.and_then(|service| service.scripts().call(element, handler, text));
        tokio::spawn(async move {
            let value = match value {
                Ok(value) => value.await.unwrap_or_else(|_| Err("the script has ended".to_owned())),
                Err(why) => Err(why),
            };
            let answer = match is_read {
                true => handlers::read(&name, value),
                false => handlers::written(&name, value.map(drop)),
            };
            reply(to, Ok(answer));
        });
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
            What::Handlers => listed(handlers::of(element)),
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
            What::Argument("rate", form) if self.is_in_order(element) => {
                self.node(element, OrderNumber::First, form)?
            }
            What::Argument(key, form) => form.write(&self.argument(element, key)?),
            What::Node(which, form) => self.node(element, which, form)?,
            What::Tickets(port) => self.tickets(element, port)?,
            What::HasMore => {
                let (_, step) = self.step(element)?;
                self.routing.tables.shared.get::<Dumps>().has_more(step).to_string()
            }
            What::MeterRate(unit) => self.meter_rate(element, unit)?,
            What::Meters(form) => self.meters(element, form)?,
            What::Table => lines(self.table(element)?.iter()),
            What::Lookup => self.look_up(element, argument)?,
            What::Compute => compute(handler.name, argument).unwrap_or(Ok(String::new()))?,
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
            let service = self.serving.service.as_ref();
            if !service.is_some_and(|service| service.scripts().intercepts_stop()) {
                stop();
            }
            return Ok(None);
        };
        match handler.what {
            What::Reset => self.reset(element),
            What::Capacity => {
                let form = handlers::Form::Integer(1, 65_536);
                return self.set(element, "capacity", form.read(value, 0)?).map(Some);
            }
            What::Empty => self.gauges().begin_anew(self.step(element)?.1),
            What::Restart => {
                // Packets may come at once.
                self.reset(element);
                let (_, step) = self.step(element)?;
                self.routing.tables.shared.get::<Sources>().begin_anew(step);
                // Without packets forwarders may sleep.
                self.pulse().wake();
            }
            What::Argument("rate", form) if self.is_in_order(element) => {
                return self.set_node(element, OrderNumber::First, form, value).map(Some);
            }
            What::Node(which, form) => return self.set_node(element, which, form, value).map(Some),
            What::Tickets(port) => return self.set_tickets(element, port, value).map(Some),
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
                handlers: handlers::of(element).map(handler).collect(),
            }
        };
        self.configurations.current.elements.iter().map(report).collect()
    }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use control::config::{Diff, Limits, parse};

    use super::*;

    fn config(text: &str) -> Config {
        let text = format!(
            "local turnpike = require 'turnpike'\n\
             turnpike.port 'a' {{ device = 'eth0', address = '10.0.1.1/24' }}\n{text}"
        );
        let parsed = parse(Path::new("t.lua"), &text, Limits::default(), &Catalogue::default());
        parsed.unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn changes(before: &Config, after: &Config) -> Vec<String> {
        Diff::between(before, after).settings.into_iter().map(|setting| setting.what).collect()
    }

    #[test]
    fn an_edit_changes_one_argument() {
        let step = "{ 'paint', as = 'p', colour = 3 }";
        let before = config(&format!("turnpike.graph:insert_after('ip4-validate', {step})"));
        let edit = |step: &str, key: &'static str, value: Given| {
            let mut after = before.clone();
            let edit = Edit::Argument { step: step.to_owned(), key, value };
            edit.make(&mut after, &Catalogue::default()).map(|()| after)
        };
        let after = edit("p", "colour", Given::Number(7.0)).unwrap();
        assert_eq!(after.graphs.main.step("p").unwrap().1.integer("colour"), 7);
        assert_eq!(changes(&before, &after), ["graph: step \"p\""]);
        for (step, key, value) in [
            ("q", "colour", Given::Number(7.0)),
            ("p", "color", Given::Number(7.0)),
            ("p", "colour", Given::Number(-1.0)),
            ("p", "colour", Given::Flag(true)),
        ] {
            assert!(edit(step, key, value).is_err(), "{step} {key}");
        }
        // A number of a node.
        let order = "{ 'schedule', as = 'q', order = 'prio(sh:rate(5pps, a[9]), b[9])' }";
        let before = config(&format!(
            "local g = turnpike.new_graph 'on-wire'\ng:path('on-wire.ok', {order}, 'drop')\ng:path('q.1', 'drop')\n\
             turnpike.graph = g"
        ));
        let node = |label: &str, value: &str| {
            let mut after = before.clone();
            let (step, label) = ("q".to_owned(), label.to_owned());
            let which = OrderNumber::First;
            let edit = Edit::Node { step, label, which, value: value.to_owned() };
            edit.make(&mut after, &Catalogue::default())?;
            Ok::<_, anyhow::Error>(order_of(&after.graphs.main, "q").unwrap().to_owned())
        };
        assert_eq!(node("sh", "7kpps").unwrap(), "prio(sh:rate(7kpps, a[9]), b[9])");
        assert!(node("sh", "fast").is_err() && node("other", "7pps").is_err());
        // One that would change the outputs.
        let step = "{ 'switch', as = 's', outputs = 1 }";
        let mut switch = config(&format!("turnpike.graph:insert_after('ip4-validate', {step})"));
        let outputs =
            Edit::Argument { step: "s".to_owned(), key: "outputs", value: Given::Number(2.0) };
        assert!(outputs.make(&mut switch, &Catalogue::default()).is_err());
    }

    #[test]
    fn an_edit_changes_the_routes_of_its_prefixes() {
        let route = |prefix: &str| format!("turnpike.route '{prefix}' {{ via = '10.0.1.2' }}\n");
        let metric = "turnpike.route '192.0.2.0/24' { via = '10.0.1.3', metric = 7 }\n";
        let two = ["192.0.2.0/24", "198.51.100.0/24"].map(route).concat();
        let mut before = config(&format!("{two}{metric}"));
        let added = config(&route("203.0.113.0/24")).routes;
        let edit = Edit::Routes { removed: vec!["192.0.2.0/24".parse().unwrap()], added };
        edit.make(&mut before, &Catalogue::default()).unwrap();
        let routes = before.routes.iter().map(|route| (route.prefix.to_string(), route.metric));
        let routes: Vec<_> = routes.collect();
        // That with a metric is another one.
        let expected = [("198.51.100.0/24", 0), ("192.0.2.0/24", 7), ("203.0.113.0/24", 0)];
        assert_eq!(routes, expected.map(|(prefix, metric)| (prefix.to_owned(), metric)));
    }
}

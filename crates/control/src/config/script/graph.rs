//! Graphs in the script: `turnpike.graph`, `turnpike.new_graph`, and their methods. The former
//! begins as a copy of the default plan of crate `dataplane`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use dataplane::catalogue::{Catalogue, StepSpec};
use dataplane::default_plan;
use dataplane::features::Feature;
use dataplane::params::{Args, Given};
use dataplane::plan::{NewStep, Plan, PlanError, Successor};
use mlua::{
    Function, Lua, MetaMethod, Table as LuaTable, UserData, UserDataMethods, Value as LuaValue,
    Variadic,
};

use super::super::error::{Collector, suggestion};
use super::super::source::ScriptLines;
use super::super::value::Value;
use super::{Shared, calling_line};

/// Returns the default graph as statements of a configuration, to be copied and changed.
///
/// # Errors
/// The catalogue lacks one of its steps.
pub fn default_graph_in_lua(catalogue: &Catalogue) -> Result<String, PlanError> {
    let plan = default_plan(catalogue)?;
    Ok(format!("local turnpike = require \"turnpike\"\n\n{plan}\nturnpike.graph = graph"))
}

/// The graphs of a script that has run.
pub(in super::super) struct Graphs {
    /// The catalogue of known steps.
    pub(in super::super) catalogue: Catalogue,
    pub(in super::super) main: Plan,
    /// Names of ports, the line of their statement, and their graph.
    pub(in super::super) by_port: Vec<(Vec<String>, usize, Plan)>,
}

type Handle = Rc<RefCell<Plan>>;

/// The graphs of a script in progress.
pub(super) struct Drafts {
    pub(super) catalogue: Catalogue,
    main: Handle,
    by_port: Vec<(Vec<String>, usize, Handle)>,
}

impl Drafts {
    /// Starts with the default graph as the main graph; adds an error if the catalogue lacks one of
    /// its steps.
    pub(super) fn new(catalogue: Catalogue, errors: &mut Collector) -> Self {
        let main = default_plan(&catalogue).unwrap_or_else(|error| {
            errors.add(None, format!("graph: {error}"));
            Plan::new()
        });
        Self { catalogue, main: Rc::new(RefCell::new(main)), by_port: Vec::new() }
    }

    pub(super) fn finish(&self) -> Graphs {
        let by_port = self
            .by_port
            .iter()
            .map(|(names, line, plan)| (names.clone(), *line, plan.borrow().clone()));
        Graphs {
            catalogue: self.catalogue.clone(),
            main: self.main.borrow().clone(),
            by_port: by_port.collect(),
        }
    }
}

/// A step created by the script, to be put into graphs.
pub(super) struct StepHandle(pub(super) String);

impl UserData for StepHandle {}

/// A graph as an object of the script.
struct Graph {
    plan: Handle,
    record: Shared,
}

/// Adds `new_graph` and `graph` to the module.
pub(super) fn add_to(lua: &Lua, module: &LuaTable, record: &Shared) -> mlua::Result<()> {
    module.set("new_graph", new_graph(lua, record)?)?;
    let plan = record.borrow().drafts.main.clone();
    module.set("graph", Graph { plan, record: record.clone() })
}

/// Handles `turnpike.graph = GRAPH`; returns false if the value is not a graph.
pub(super) fn replace(module: &LuaTable, value: &LuaValue, record: &Shared) -> mlua::Result<bool> {
    let Some(graph) = value.as_userdata().filter(|data| data.is::<Graph>()) else {
        return Ok(false);
    };
    record.borrow_mut().drafts.main = graph.borrow::<Graph>()?.plan.clone();
    module.set("graph", graph)?;
    Ok(true)
}

/// Handles `turnpike.new_graph "STEP"`: a graph with this first step.
fn new_graph(lua: &Lua, record: &Shared) -> mlua::Result<Function> {
    let record = record.clone();
    lua.create_function(move |lua, first: LuaValue| {
        let graph = Graph { plan: Handle::default(), record: record.clone() };
        graph.change(lua, |plan, found, line| {
            let wanted = found.element(plan, &first, line)?;
            match wanted {
                Element::New(new) => plan.add(&new.step(line)),
                Element::There(successor) => {
                    Err(error(line, format!("new_graph: \"{}\" is not a step", successor.name())))
                }
            }
        });
        Ok(graph)
    })
}

fn error(line: Option<usize>, message: String) -> PlanError {
    PlanError { line, message }
}

/// An element of a path or an insertion.
enum Element<'a> {
    /// A step that is in the graph, or an end.
    There(Successor),
    /// A step to be added.
    New(New<'a>),
}

struct New<'a> {
    name: String,
    spec: &'a StepSpec,
    args: Args,
    only_if: Option<Feature>,
}

impl<'a> New<'a> {
    fn step(&'a self, line: Option<usize>) -> NewStep<'a> {
        let new = NewStep::of(self.spec, self.args.clone(), line);
        NewStep { name: &self.name, only_if: self.only_if, ..new }
    }
}

/// Looks up names, and lines in the script's text.
struct Finder<'a>(&'a Catalogue, &'a str);

impl<'a> Finder<'a> {
    fn spec(&self, name: &str, line: Option<usize>) -> Result<&'a StepSpec, PlanError> {
        self.0.find(name).ok_or_else(|| {
            let known: Vec<&str> = self.0.names().collect();
            error(line, format!("step \"{name}\" unknown{}", suggestion(name, "known", &known)))
        })
    }

    fn feature(&self, name: &str, line: Option<usize>) -> Result<Feature, PlanError> {
        let features = self.0.features();
        features.iter().find(|feature| feature.name() == name).copied().ok_or_else(|| {
            let known: Vec<_> = features.iter().map(|feature| feature.name()).collect();
            error(line, format!("when = \"{name}\" unknown{}", suggestion(name, "known", &known)))
        })
    }

    /// Returns a step of this name without arguments.
    fn plain(&self, name: String, line: Option<usize>) -> Result<New<'a>, PlanError> {
        let spec = self.spec(&name, line)?;
        let args = self.arguments(spec, &BTreeMap::new(), &name, line)?;
        Ok(New { name, spec, args, only_if: None })
    }

    /// Reads a name, a step created by the script, or
    /// `{ STEP, as = "NAME", when = "SETTING", ARGUMENT = VALUE }`.
    fn element(
        &self,
        plan: &Plan,
        value: &LuaValue,
        line: Option<usize>,
    ) -> Result<Element<'a>, PlanError> {
        if let Some(name) = name_of(value) {
            let successor = Successor::read(&name);
            if !matches!(successor, Successor::Step(_)) || plan.has(&name) {
                return Ok(Element::There(successor));
            }
            return self.plain(name, line).map(Element::New);
        }
        self.new_step(value, line).map(Element::New)
    }

    /// Reads a step that is added even if there is one of its kind.
    fn new_step(&self, value: &LuaValue, line: Option<usize>) -> Result<New<'a>, PlanError> {
        let form = "a step is \"NAME\", a step made by turnpike.step, or \
                    { STEP, as = \"NAME\", when = \"SETTING\", ARGUMENT = VALUE }";
        let wrong = || error(line, format!("{} is no step; {form}", Value::from_lua(value)));
        if let Some(name) = name_of(value) {
            return self.plain(name, line);
        }
        let table = value.as_table().ok_or_else(wrong)?;
        let kind: LuaValue = table.raw_get(1).map_err(|_| wrong())?;
        let kind = name_of(&kind).ok_or_else(wrong)?;
        let Value::Table(settings) = Value::from_lua(value) else { return Err(wrong()) };
        let spec = self.spec(&kind, line)?;
        let (mut name, mut only_if, mut given) = (kind.clone(), None, BTreeMap::new());
        for (key, value) in &settings.named {
            match (key.as_str(), value) {
                ("as", Value::Text(text)) => name.clone_from(text),
                ("when", Value::Text(text)) => only_if = Some(self.feature(text, line)?),
                ("as" | "when", _) => {
                    return Err(error(line, format!("step \"{kind}\": {key} = {value}; {form}")));
                }
                _ => drop(given.insert(key.clone(), self::given(value))),
            }
        }
        if settings.list.len() > 1 || !settings.odd.is_empty() {
            return Err(error(line, format!("step \"{kind}\": a value has no key; {form}")));
        }
        let args = self.arguments(spec, &given, &name, line)?;
        Ok(New { name, spec, args, only_if })
    }

    /// Returns the arguments of a step in a graph. An error is reported for the line of the first
    /// of them.
    fn arguments(
        &self,
        spec: &StepSpec,
        given: &BTreeMap<String, Given>,
        name: &str,
        line: Option<usize>,
    ) -> Result<Args, PlanError> {
        Args::read(spec.params(), given).map_err(|wrong| {
            let source = ScriptLines::new(self.1);
            let lines = wrong.iter().filter_map(|(key, _)| Some(source.line_of(line?, key)));
            let messages: Vec<_> = wrong.iter().map(|(_, message)| message.as_str()).collect();
            error(lines.min(), format!("step \"{name}\": {}", messages.join("; ")))
        })
    }
}

fn given(value: &Value) -> Given {
    match value {
        Value::Bool(flag) => Given::Flag(*flag),
        Value::Number(number) => Given::Number(*number),
        Value::Text(text) => Given::Text(text.clone()),
        Value::Table(table) if table.named.is_empty() && table.odd.is_empty() => {
            Given::List(table.list.iter().map(given).collect())
        }
        Value::Table(_) => Given::Other("table"),
        Value::Other(name) => Given::Other(name),
    }
}

/// Returns the name of a step, given as text or as a handle.
fn name_of(value: &LuaValue) -> Option<String> {
    match value {
        LuaValue::String(text) => Some(text.to_string_lossy()),
        LuaValue::UserData(data) => data.borrow::<StepHandle>().ok().map(|handle| handle.0.clone()),
        _ => None,
    }
}

/// Reads a place: `STEP`, `STEP.OUTPUT`, or a step created by the script.
fn place(value: Option<&LuaValue>, line: Option<usize>) -> Result<String, PlanError> {
    value.and_then(name_of).ok_or_else(|| {
        let got = value.map_or_else(|| "nothing".to_owned(), |v| Value::from_lua(v).to_string());
        error(line, format!("expected \"STEP\" or \"STEP.OUTPUT\", got {got}"))
    })
}

impl Graph {
    /// Changes the plan; an error is recorded with the line of the call.
    fn change(
        &self,
        lua: &Lua,
        change: impl FnOnce(&mut Plan, &Finder<'_>, Option<usize>) -> Result<(), PlanError>,
    ) {
        let mut record = self.record.borrow_mut();
        let line = calling_line(lua);
        let finder = Finder(&record.drafts.catalogue, &record.text);
        let changed = change(&mut self.plan.borrow_mut(), &finder, line);
        if let Err(error) = changed {
            record.errors.add(error.line, format!("graph: {}", error.message));
        }
    }

    /// Handles `graph:path(FROM, STEP, …)`.
    fn path(&self, lua: &Lua, elements: &[LuaValue]) {
        self.change(lua, |plan, finder, line| {
            let mut from = place(elements.first(), line)?;
            for element in elements.iter().skip(1) {
                let successor = match finder.element(plan, element, line)? {
                    Element::There(successor) => successor,
                    Element::New(new) => {
                        plan.add(&new.step(line))?;
                        Successor::Step(new.name)
                    }
                };
                plan.lead(&from, &successor, line)?;
                from = successor.name().to_owned();
            }
            Ok(())
        });
    }

    fn insert(&self, lua: &Lua, arguments: &[LuaValue], before: bool) {
        self.change(lua, |plan, finder, line| {
            let at = place(arguments.first(), line)?;
            let new = finder.new_step(arguments.get(1).unwrap_or(&LuaValue::Nil), line)?;
            if before {
                plan.insert_before(&at, &new.step(line))
            } else {
                plan.insert_after(&at, &new.step(line))
            }
        });
    }

    /// Returns an independent copy of this graph.
    fn copy(&self) -> Self {
        let plan = Rc::new(RefCell::new(self.plan.borrow().clone()));
        Self { plan, record: self.record.clone() }
    }

    /// Handles `graph:on_port("NAME", …)`: a copy, for the packets of these ports.
    fn on_port(&self, lua: &Lua, names: &[LuaValue]) -> Self {
        let copy = self.copy();
        let line = calling_line(lua);
        let texts: Vec<String> = names.iter().filter_map(name_of).collect();
        let mut record = self.record.borrow_mut();
        if texts.is_empty() || texts.len() < names.len() {
            record.errors.add(line, "graph: on_port: expected names of ports, as text");
        } else {
            record.drafts.by_port.push((texts, line.unwrap_or(0), copy.plan.clone()));
        }
        copy
    }
}

impl UserData for Graph {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("path", |lua, graph, elements: Variadic<LuaValue>| {
            graph.path(lua, &elements);
            Ok(())
        });
        methods.add_method("add", |lua, graph, element: LuaValue| {
            graph.change(lua, |plan, finder, line| {
                let new = finder.new_step(&element, line)?;
                plan.add(&new.step(line))
            });
            Ok(())
        });
        methods.add_method("insert_after", |lua, graph, arguments: Variadic<LuaValue>| {
            graph.insert(lua, &arguments, false);
            Ok(())
        });
        methods.add_method("insert_before", |lua, graph, arguments: Variadic<LuaValue>| {
            graph.insert(lua, &arguments, true);
            Ok(())
        });
        methods.add_method("remove", |lua, graph, name: LuaValue| {
            graph.change(lua, |plan, _, line| plan.remove(&place(Some(&name), line)?, line));
            Ok(())
        });
        methods.add_method("copy", |_, graph, ()| Ok(graph.copy()));
        methods.add_method("on_port", |lua, graph, names: Variadic<LuaValue>| {
            Ok(graph.on_port(lua, &names))
        });
        methods.add_method("print", |lua, graph, ()| {
            let print: Function = lua.globals().get("print")?;
            // The script may have replaced `print` by a function that changes the graph.
            let text = graph.plan.borrow().to_string();
            print.call::<()>(text)
        });
        methods.add_meta_method(MetaMethod::ToString, |_, graph, ()| {
            Ok(graph.plan.borrow().to_string())
        });
    }
}

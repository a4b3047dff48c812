//! Steps in Lua: `turnpike.step`, and the counters, buckets and tables they use.
//!
//! The configuration only describes them; each forwarder runs the script once more and uses its own
//! functions from it (crate `script`).

use std::collections::BTreeSet;

use ::script::{Policy, SHARED_SIZE, SharedSettings, StepSettings};
use dataplane::catalogue::{Facts, StepSpec};
use dataplane::plan::Plans;
use mlua::{Function, Lua, Table as LuaTable, Value as LuaValue};

use super::super::error::suggestion;
use super::super::value::{Table, Value};
use super::graph::StepHandle;
use super::{Shared, calling_line};

/// Number of failures after which a step is disabled, by default.
const LIMIT: u64 = 100;

/// Longest call of a step in microseconds, by default.
const BUDGET_US: u64 = 5000;

/// Most outputs of a step in Lua.
const OUTPUTS_MAX: usize = 15;

const KNOWN: [&str; 7] =
    ["outputs", "drops", "process", "requires", "limit", "on_failure", "budget_us"];

/// A step as the script describes it.
#[derive(Debug)]
pub(in super::super) struct StepDraft {
    settings: StepSettings,
    /// True if the script sets the treatment of packets after the step is disabled.
    policy_given: bool,
}

impl StepDraft {
    /// Returns the step's settings in these graphs. By default, a step that can drop packets drops
    /// all of them once it is disabled: making a filter fail must not let packets through.
    pub(in super::super) fn settle(self, graphs: &Plans) -> StepSettings {
        let mut settings = self.settings;
        if !self.policy_given {
            let drops = !settings.drops.is_empty() || graphs.can_drop(&settings.name);
            settings.policy = if drops { Policy::Drop } else { Policy::Bypass };
        }
        settings
    }
}

/// Adds `step`, `counter`, `counters`, `buckets`, `table`, `now`, `mask` and the helpers to the module.
pub(super) fn add_to(lua: &Lua, module: &LuaTable, record: &Shared) -> mlua::Result<()> {
    lua.load(::script::HELPERS).set_name("=helpers.lua").call::<()>(module)?;
    module.set("step", step(lua, record)?)?;
    let one = record.clone();
    let counter = move |lua: &Lua, name: LuaValue| count(lua, &one, &name, 1.0);
    module.set("counter", lua.create_function(counter)?)?;
    let many = record.clone();
    let counters = move |lua: &Lua, (name, size): (LuaValue, f64)| count(lua, &many, &name, size);
    module.set("counters", lua.create_function(counters)?)?;
    module.set("buckets", shared(lua, record, "buckets", &["rate", "burst", "size"], buckets)?)?;
    module.set("table", shared(lua, record, "table", &["size", "seconds"], table)?)?;
    // Without a batch, the time is 0.
    module.set("now", lua.create_function(|_, ()| Ok(0))?)?;
    module.set("mask", lua.create_function(|lua, ()| lua.create_table())?)
}

/// Adds the step of `turnpike.next_hop "NAME" { … }`. It requires packets of the family of its
/// gateways; faults in these are found when the settings are read.
pub(super) fn add_next_hop(
    name: &str,
    settings: Option<&LuaValue>,
    line: Option<usize>,
    record: &Shared,
) {
    let requires = match settings.map(Value::from_lua) {
        Some(Value::Table(settings)) => match first_text(settings.named.get("via")) {
            Some(via) if via.contains(':') => Facts::IP6,
            Some(_) => Facts::IP4,
            None => Facts::FRAME,
        },
        _ => Facts::FRAME,
    };
    let spec = dataplane::steps::named_hop(name, requires.with(Facts::VALID));
    let mut record = record.borrow_mut();
    if let Err(message) = record.drafts.catalogue.add(spec) {
        record.errors.add(line, message);
    }
}

/// Returns a text, or the first one of a list.
fn first_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::Text(text) => Some(text.clone()),
        Value::Table(table) => first_text(table.list.first()),
        _ => None,
    }
}

/// Reads the numbers in an object's settings, by their names.
type ReadShared = fn(&dyn Fn(&str) -> Option<f64>) -> SharedSettings;

/// Reads token buckets; a missing number becomes an invalid one, which is reported.
fn buckets(number: &dyn Fn(&str) -> Option<f64>) -> SharedSettings {
    let rate = number("rate").unwrap_or(f64::NAN);
    let burst = number("burst").unwrap_or((rate / 10.0).max(1.0));
    SharedSettings::Buckets { rate, burst, size: size(number("size")) }
}

/// Reads a table whose entries expire; a missing number becomes an invalid one, which is reported.
fn table(number: &dyn Fn(&str) -> Option<f64>) -> SharedSettings {
    let seconds = number("seconds").unwrap_or(f64::NAN);
    SharedSettings::Table { size: size(number("size")), seconds }
}

/// Returns the size; 0, which is refused, if it is not a whole number.
fn size(given: Option<f64>) -> usize {
    match given {
        None => SHARED_SIZE,
        Some(number) if number.fract() == 0.0 => number as usize,
        Some(_) => 0,
    }
}

/// Handles `turnpike.buckets "NAME" { … }` and `turnpike.table "NAME" { … }`: checked here, created
/// by forwarders.
fn shared(
    lua: &Lua,
    record: &Shared,
    what: &'static str,
    known: &'static [&'static str],
    read: ReadShared,
) -> mlua::Result<Function> {
    let record = record.clone();
    lua.create_function(move |lua, name: LuaValue| {
        let (line, record) = (calling_line(lua), record.clone());
        let name = name_of(what, &name, line, &record);
        lua.create_function(move |lua, settings: LuaValue| {
            let mut record = record.borrow_mut();
            let read = read_shared(&Value::from_lua(&settings), known, read);
            let entered = read.and_then(|settings| record.enter_shared(&name, settings));
            if let Err(message) = entered {
                record.errors.add(line, format!("{what} \"{name}\": {message}"));
            }
            lua.create_table()
        })
    })
}

fn read_shared(
    settings: &Value,
    known: &[&str],
    read: ReadShared,
) -> Result<SharedSettings, String> {
    let Value::Table(settings) = settings else {
        return Err(format!("expected a table of settings, got {settings}"));
    };
    if !settings.list.is_empty() {
        return Err(format!("a value has no key; known: {}", known.join(", ")));
    }
    for (key, value) in &settings.named {
        if !known.contains(&key.as_str()) {
            return Err(format!("key \"{key}\": unknown{}", suggestion(key, "known", known)));
        }
        if !matches!(value, Value::Number(_)) {
            return Err(format!("key \"{key}\": expected a number, got {value}"));
        }
    }
    let number = |key: &str| match settings.named.get(key) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    };
    Ok(read(&number))
}

impl super::Record {
    /// Records an object shared by forwarders; the same object may be created again.
    fn enter_shared(&mut self, name: &str, settings: SharedSettings) -> Result<(), String> {
        match self.shared.get(name) {
            Some(known) if *known == settings => return Ok(()),
            Some(_) => return Err("made with other settings already".to_owned()),
            None => settings.check_beside(self.shared.values())?,
        }
        self.shared.insert(name.to_owned(), settings);
        Ok(())
    }
}

/// Registers a counter; steps add to another object, on their forwarder.
fn count(lua: &Lua, record: &Shared, name: &LuaValue, size: f64) -> mlua::Result<LuaTable> {
    let registered = match Value::from_lua(name) {
        Value::Text(name) => record.borrow_mut().counters.register(&name, size as usize),
        other => Err(format!("counter: expected a name, got {other}")),
    };
    if let Err(message) = registered {
        record.borrow_mut().errors.add(calling_line(lua), message);
    }
    lua.create_table()
}

/// Returns the name given to a function of the module; empty if it is wrong and was reported.
fn name_of(what: &str, name: &LuaValue, line: Option<usize>, record: &Shared) -> String {
    let other = match Value::from_lua(name) {
        Value::Text(name) => return name,
        other => other,
    };
    let message =
        format!("{what}: expected a name, got {other}; write turnpike.{what} \"NAME\" {{ … }}");
    record.borrow_mut().errors.add(line, message);
    String::new()
}

/// `turnpike.step "NAME" { … }`
fn step(lua: &Lua, record: &Shared) -> mlua::Result<Function> {
    let record = record.clone();
    lua.create_function(move |lua, name: LuaValue| {
        let line = calling_line(lua);
        let name = name_of("step", &name, line, &record);
        let record = record.clone();
        lua.create_function(move |_, settings: LuaValue| {
            let mut record = record.borrow_mut();
            let (step, requires, wrong) = read(&name, &Value::from_lua(&settings));
            for message in wrong {
                record.errors.add(line, format!("step \"{name}\": {message}"));
            }
            let spec = StepSpec::described(&name, step.settings.graph_outputs()).requires(requires);
            if let Err(message) = record.drafts.catalogue.add(spec) {
                record.errors.add(line, message);
            }
            record.steps.push(step);
            Ok(StepHandle(name.clone()))
        })
    })
}

/// Reads a step's settings; returns them with their faults.
fn read(name: &str, settings: &Value) -> (StepDraft, Facts, Vec<String>) {
    let mut policy_given = false;
    let mut step = StepSettings {
        name: name.to_owned(),
        outputs: vec!["next".to_owned()],
        drops: Vec::new(),
        limit: LIMIT,
        policy: Policy::Bypass,
        budget_us: BUDGET_US,
    };
    let (mut requires, mut wrong) = (Facts::FRAME, Vec::new());
    let Value::Table(settings) = settings else {
        let wrong = vec![format!("expected a table of settings, got {settings}")];
        return (StepDraft { settings: step, policy_given }, requires, wrong);
    };
    for (key, value) in &settings.named {
        let read = match (key.as_str(), value) {
            ("outputs", Value::Table(list)) => outputs(list).map(|list| step.outputs = list),
            ("drops", Value::Table(list)) => outputs(list).map(|list| step.drops = list),
            ("process", Value::Other("function")) => Ok(()),
            ("requires", Value::Text(kind)) => kind_of_packets(kind).map(|facts| requires = facts),
            ("limit", Value::Number(n)) => whole(*n, 0).map(|n| step.limit = n),
            ("budget_us", Value::Number(n)) => whole(*n, 1000).map(|n| step.budget_us = n),
            ("on_failure", Value::Text(word)) if word == "bypass" || word == "drop" => {
                step.policy = if word == "drop" { Policy::Drop } else { Policy::Bypass };
                policy_given = true;
                Ok(())
            }
            ("outputs" | "drops", _) => Err(format!("expected a list of names, got {value}")),
            ("process", _) => Err(format!("expected a function, got {value}")),
            ("requires", _) => Err(format!("expected a kind of packets as text, got {value}")),
            ("on_failure", _) => Err(format!("expected \"bypass\" or \"drop\", got {value}")),
            ("limit" | "budget_us", _) => Err(format!("expected a number, got {value}")),
            _ => Err(format!("unknown{}", suggestion(key, "known", &KNOWN))),
        };
        wrong.extend(read.err().map(|message| format!("key \"{key}\": {message}")));
    }
    if !settings.list.is_empty() {
        wrong.push(format!("a value has no key; known: {}", KNOWN.join(", ")));
    }
    let names: BTreeSet<_> = step.outputs.iter().chain(&step.drops).collect();
    let count = step.outputs.len() + step.drops.len();
    if count > OUTPUTS_MAX || names.len() < count {
        wrong.push(format!("outputs and drops: 1 to {OUTPUTS_MAX} names together, each once"));
    }
    if !settings.named.contains_key("process") {
        wrong.push("process missing; write process = function(batch, mask) … end".to_owned());
    }
    (StepDraft { settings: step, policy_given }, requires, wrong)
}

fn outputs(list: &Table) -> Result<Vec<String>, String> {
    let text = |value: &Value| match value {
        Value::Text(name) if !name.is_empty() && !name.contains('.') => Ok(name.clone()),
        other => Err(format!("{other} is no name of an output")),
    };
    let names: Vec<String> = list.list.iter().map(text).collect::<Result<_, _>>()?;
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if names.is_empty() || names.len() > OUTPUTS_MAX || sorted.len() < names.len() {
        return Err(format!("1 to {OUTPUTS_MAX} names, each once"));
    }
    Ok(names)
}

fn kind_of_packets(name: &str) -> Result<Facts, String> {
    let known = Facts::NAMED.map(|(name, _)| name);
    let found = Facts::NAMED.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, facts)| *facts)
        .ok_or_else(|| format!("\"{name}\" unknown{}", suggestion(name, "known", &known)))
}

fn whole(number: f64, least: u64) -> Result<u64, String> {
    const MOST: u64 = 1_000_000_000;
    if number.fract() != 0.0 || number < least as f64 || number > MOST as f64 {
        return Err(format!("{number}; a whole number from {least} to {MOST}"));
    }
    Ok(number as u64)
}

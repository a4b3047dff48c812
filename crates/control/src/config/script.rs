//! Runs the configuration script and records its statements, to be interpreted later.
//!
//! The script has the base library, `table`, `string`, `math` and `bit`, and `require "turnpike"`.
//! It cannot read or write files, run commands, or load machine code or bytecode. Time and memory
//! are limited, so that a mistake cannot hang or exhaust the machine.

pub mod commands;
mod graph;
mod steps;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use dataplane::catalogue::Catalogue;
use mlua::chunk::ChunkMode;
use mlua::{
    Function, HookTriggers, Lua, LuaOptions, StdLib, Table as LuaTable, Value as LuaValue,
    Variadic, VmState,
};
use nix::time::{ClockId, clock_gettime};

use ::script::{CounterNames, SharedSettings};

use super::Command;
use super::error::{Collector, did_you_mean, suggestion};
use super::value::{Table, Value};
use graph::Drafts;
pub(super) use graph::Graphs;
pub use graph::default_graph_in_lua;
pub(super) use steps::StepDraft;

/// Limits of a script, which is stopped when it exceeds them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most time of a processor.
    pub time: Duration,
    /// Most memory, in bytes.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(5), memory: 512 << 20 }
    }
}

/// Keyword of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Vrf,
    Port,
    Accelerate,
    Bond,
    Vlan,
    Loopback,
    Route,
    Neighbour,
    NextHop,
    PrefixSet,
    Filter,
    Import,
    Multicast,
    Mirror,
    RoutesFrom,
    Fpm,
    Cores,
    Forwarders,
    Forwarding,
    Tx,
    Slowpath,
    Flows,
    Icmp,
    Memory,
    Fib,
    Log,
    Quarantine,
    Telnet,
    Metrics,
    Api,
    Access,
    Sflow,
    Ipfix,
    Snmp,
    Element,
    ControlSocket,
}

impl Keyword {
    const ALL: [Self; 36] = [
        Self::Port,
        Self::Accelerate,
        Self::Bond,
        Self::Vlan,
        Self::Loopback,
        Self::Route,
        Self::Neighbour,
        Self::NextHop,
        Self::PrefixSet,
        Self::Filter,
        Self::Import,
        Self::Multicast,
        Self::Mirror,
        Self::Vrf,
        Self::RoutesFrom,
        Self::Fpm,
        Self::Cores,
        Self::Forwarders,
        Self::Forwarding,
        Self::Tx,
        Self::Slowpath,
        Self::Flows,
        Self::Icmp,
        Self::Memory,
        Self::Fib,
        Self::Log,
        Self::Quarantine,
        Self::Telnet,
        Self::Metrics,
        Self::Api,
        Self::Access,
        Self::Sflow,
        Self::Ipfix,
        Self::Snmp,
        Self::Element,
        Self::ControlSocket,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Vrf => "vrf",
            Self::Port => "port",
            Self::Accelerate => "accelerate",
            Self::Bond => "bond",
            Self::Vlan => "vlan",
            Self::Loopback => "loopback",
            Self::Route => "route",
            Self::Neighbour => "neighbour",
            Self::NextHop => "next_hop",
            Self::PrefixSet => "prefix_set",
            Self::Filter => "filter",
            Self::Import => "import",
            Self::Multicast => "multicast",
            Self::Mirror => "mirror",
            Self::RoutesFrom => "routes_from",
            Self::Fpm => "fpm",
            Self::Cores => "cores",
            Self::Forwarders => "forwarders",
            Self::Forwarding => "forwarding",
            Self::Tx => "tx",
            Self::Slowpath => "slowpath",
            Self::Flows => "flows",
            Self::Icmp => "icmp",
            Self::Memory => "memory",
            Self::Fib => "fib",
            Self::Log => "log",
            Self::Quarantine => "quarantine",
            Self::Telnet => "telnet",
            Self::Element => "element",
            Self::ControlSocket => "control_socket",
            Self::Metrics => "metrics",
            Self::Api => "api",
            Self::Access => "access",
            Self::Sflow => "sflow",
            Self::Ipfix => "ipfix",
            Self::Snmp => "snmp",
        }
    }

    /// Returns the term for the name in `turnpike.port "NAME" {…}`; `None` for statements without
    /// one.
    fn named_by(self) -> Option<&'static str> {
        match self {
            Self::Vrf
            | Self::Port
            | Self::Bond
            | Self::Vlan
            | Self::Loopback
            | Self::NextHop
            | Self::PrefixSet
            | Self::Mirror
            | Self::Element
            | Self::ControlSocket
            | Self::Filter => Some("NAME"),
            Self::Route => Some("PREFIX"),
            Self::Neighbour => Some("ADDRESS"),
            Self::Multicast => Some("GROUP"),
            _ => None,
        }
    }

    /// Returns true if its statements have names.
    pub(super) fn is_named(self) -> bool {
        self.named_by().is_some()
    }

    /// Returns the syntax of the statement.
    fn usage(self) -> String {
        match self.named_by() {
            Some(name) => format!("turnpike.{} \"{name}\" {{ … }}", self.name()),
            None => format!("turnpike.{} {{ … }}", self.name()),
        }
    }
}

/// One statement of a script, with the line of its call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    pub(super) keyword: Keyword,
    pub(super) line: usize,
    /// Empty for statements without a name.
    pub(super) name: String,
    pub(super) settings: Table,
}

/// Statements and objects recorded by the functions of the script.
struct Record {
    text: String,
    statements: Vec<Statement>,
    /// Named statements without settings so far: `turnpike.port "left"` alone is a mistake.
    waiting: Vec<(u64, Keyword, String, usize)>,
    next: u64,
    drafts: Drafts,
    steps: Vec<StepDraft>,
    counters: CounterNames,
    /// Objects shared by forwarders, by name.
    shared: BTreeMap<String, SharedSettings>,
    commands: Vec<Command>,
    errors: Collector,
}

type Shared = Rc<RefCell<Record>>;

/// Result of a script.
pub(super) struct Said {
    pub(super) statements: Vec<Statement>,
    pub(super) graphs: Graphs,
    /// Its steps and counters.
    pub(super) steps: Vec<StepDraft>,
    pub(super) counters: CounterNames,
    pub(super) commands: Vec<Command>,
    /// All errors found while it ran.
    pub(super) errors: Collector,
}

/// Runs the script; its graphs consist of the catalogue's steps.
pub(super) fn run(file: &Path, text: &str, limits: Limits, catalogue: &Catalogue) -> Said {
    let mut errors = Collector::new(file);
    let record = Rc::new(RefCell::new(Record {
        text: text.to_owned(),
        statements: Vec::new(),
        waiting: Vec::new(),
        next: 0,
        drafts: Drafts::new(catalogue.clone(), &mut errors),
        steps: Vec::new(),
        counters: CounterNames::default(),
        shared: BTreeMap::new(),
        commands: Vec::new(),
        errors,
    }));
    if let Err(error) = run_recorded(text, limits, &record) {
        let (line, message) = describe(&error, limits);
        record.borrow_mut().errors.add(line, message);
    }
    let mut record = record.borrow_mut();
    for (_, keyword, name, line) in std::mem::take(&mut record.waiting) {
        let message = format!(
            "{} \"{name}\": settings missing; write turnpike.{} \"{name}\" {{ … }}",
            keyword.name(),
            keyword.name(),
        );
        record.errors.add(Some(line), message);
    }
    Said {
        statements: std::mem::take(&mut record.statements),
        graphs: record.drafts.finish(),
        steps: std::mem::take(&mut record.steps),
        counters: std::mem::take(&mut record.counters),
        commands: std::mem::take(&mut record.commands),
        errors: std::mem::replace(&mut record.errors, Collector::new(file)),
    }
}

/// Runs a script without this module, which returns a table.
///
/// # Errors
/// The line and the error there.
pub(super) fn run_for_table(text: &str, limits: Limits) -> Result<Table, (Option<usize>, String)> {
    let run = || -> mlua::Result<Value> {
        let lua = sandbox()?;
        bound(&lua, limits)?;
        let chunk = lua.load(text).set_name("=script").set_mode(ChunkMode::Text);
        Ok(Value::from_lua(&chunk.eval::<LuaValue>()?))
    };
    match run() {
        Ok(Value::Table(table)) => Ok(table),
        Ok(other) => Err((None, format!("returns {other}; it must end with: return config"))),
        Err(error) => Err(describe(&error, limits)),
    }
}

fn run_recorded(text: &str, limits: Limits, record: &Shared) -> mlua::Result<()> {
    let lua = sandbox()?;
    let functions = lua.create_table()?;
    let module = module(&lua, &functions, record)?;
    lua.globals().set("require", require(&lua, module)?)?;
    bound(&lua, limits)?;
    // A name that starts with `=` is used as it is, so that an error reads `LINE: message`.
    lua.load(text).set_name("=script").set_mode(ChunkMode::Text).exec()
}

/// Returns an interpreter that can only compute.
fn sandbox() -> mlua::Result<Lua> {
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::BIT;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    restrict(&lua)?;
    Ok(lua)
}

fn bound(lua: &Lua, limits: Limits) -> mlua::Result<()> {
    lua.set_memory_limit(limits.memory)?;
    limit_time(lua, limits.time)
}

/// Removes functions that read files, load bytecode or reach into the interpreter, and limits the
/// cost of single library calls.
fn restrict(lua: &Lua) -> mlua::Result<()> {
    let globals = lua.globals();
    for name in [
        "dofile",
        "loadfile",
        "load",
        "loadstring",
        "collectgarbage",
        "gcinfo",
        "newproxy",
        "getfenv",
        "setfenv",
        "module",
        "coroutine",
        "jit",
    ] {
        globals.set(name, LuaValue::Nil)?;
    }
    let string: LuaTable = globals.get("string")?;
    string.set("dump", LuaValue::Nil)?;
    ::script::bound_libraries(lua, &string, &globals.get("table")?)
}

/// Stops the script at its deadline. The JIT compiler, which does not count instructions, is off
/// because its library is not loaded.
fn limit_time(lua: &Lua, time: Duration) -> mlua::Result<()> {
    const CHECK_EVERY: u32 = 10_000;
    let deadline = processor_time() + time;
    let late = move || processor_time() >= deadline || ::script::is_loading_stopped();
    lua.set_global_hook(HookTriggers::new().every_nth_instruction(CHECK_EVERY), move |lua, _| {
        if !late() {
            return Ok(VmState::Continue);
        }
        let line = running_line(lua).map_or_else(String::new, |line| line.to_string());
        let stop = move || mlua::Error::runtime(format!("{STOPPED} {line}"));
        let error = stop();
        // From now on every instruction fails: a script cannot survive its deadline by `pcall`.
        lua.set_global_hook(HookTriggers::new().every_nth_instruction(1), move |_, _| Err(stop()))?;
        Err(error)
    })
}

/// Returns the processor time that this thread has used. A script waits for nothing, and on a busy machine it has as
/// many instructions as on a quiet one.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Returns the line that the script is at, in its own text, even within a called function.
fn running_line(lua: &Lua) -> Option<usize> {
    const OTHERS: [&str; 3] = ["[C]", "turnpike", "helpers.lua"];
    let line = |frame: &mlua::debug::Debug<'_>| {
        let of_script = frame.source().short_src.is_some_and(|name| !OTHERS.contains(&&*name));
        frame.current_line().filter(|_| of_script)
    };
    (0..8).find_map(|level| lua.inspect_stack(level, line).flatten())
}

/// Marks the error that ends a script at its deadline; its line follows.
const STOPPED: &str = "turnpike: out of time at";

/// Returns `require`, which provides one module.
fn require(lua: &Lua, module: LuaTable) -> mlua::Result<Function> {
    lua.create_function(move |_, name: LuaValue| match &name {
        LuaValue::String(text) if text.to_string_lossy() == "turnpike" => Ok(module.clone()),
        other => {
            let name = Value::from_lua(other);
            Err(mlua::Error::runtime(format!("require: no module {name}; known: \"turnpike\"")))
        }
    })
}

/// Returns the table for `require "turnpike"`: a function for each keyword, and the graph.
fn module(lua: &Lua, functions: &LuaTable, record: &Shared) -> mlua::Result<LuaTable> {
    graph::add_to(lua, functions, record)?;
    steps::add_to(lua, functions, record)?;
    commands::add_to(lua, functions, record)?;
    for keyword in Keyword::ALL {
        let function = match keyword.named_by() {
            Some(_) => named_statement(lua, keyword, record)?,
            None => plain_statement(lua, keyword, record)?,
        };
        functions.set(keyword.name(), function)?;
    }
    let meta = lua.create_table()?;
    meta.set("__index", unknown_keyword(lua, functions.clone(), record)?)?;
    meta.set("__newindex", read_only(lua, functions.clone(), record)?)?;
    meta.set("__metatable", false)?;
    let module = lua.create_table()?;
    module.set_metatable(Some(meta))?;
    Ok(module)
}

/// Looks up a keyword. An unknown one is reported and replaced by a function that accepts anything,
/// so that the rest of the script is still read.
fn unknown_keyword(lua: &Lua, functions: LuaTable, record: &Shared) -> mlua::Result<Function> {
    let record = record.clone();
    let sink = lua
        .load("local function sink() return sink end return sink")
        .set_name("=turnpike")
        .eval::<Function>()?;
    lua.create_function(move |lua, (_, key): (LuaValue, LuaValue)| {
        let found: LuaValue = functions.raw_get(key.clone())?;
        if !found.is_nil() {
            return Ok(found);
        }
        let known = known_names(&functions);
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let message = match Value::from_lua(&key) {
            Value::Text(name) => {
                format!("turnpike.{name} unknown{}", suggestion(&name, "known", &known))
            }
            other => format!("turnpike[{other}] unknown; known: {}", known.join(", ")),
        };
        record.borrow_mut().errors.add(calling_line(lua), message);
        Ok(LuaValue::Function(sink.clone()))
    })
}

/// Returns the names in the module: the keywords of statements first, then all others by name.
fn known_names(functions: &LuaTable) -> Vec<String> {
    let statements: Vec<_> = Keyword::ALL.iter().map(|known| known.name().to_owned()).collect();
    let mut others: Vec<String> = functions
        .pairs::<String, LuaValue>()
        .filter_map(|pair| pair.ok().map(|(name, _)| name))
        .filter(|name| !statements.contains(name))
        .collect();
    others.sort_unstable();
    [statements, others].concat()
}

/// Rejects assignments to the module, except to the graph.
fn read_only(lua: &Lua, functions: LuaTable, record: &Shared) -> mlua::Result<Function> {
    let record = record.clone();
    lua.create_function(move |lua, (_, key, value): (LuaValue, LuaValue, LuaValue)| {
        if key.as_string().is_some_and(|key| key.to_string_lossy() == "graph") {
            if !graph::replace(&functions, &value, &record)? {
                let got = Value::from_lua(&value);
                let message =
                    format!("turnpike.graph: {got} is no graph; turnpike.new_graph makes one");
                record.borrow_mut().errors.add(calling_line(lua), message);
            }
            return Ok(());
        }
        let key = match Value::from_lua(&key) {
            Value::Text(name) => name,
            other => other.to_string(),
        };
        let known = Keyword::ALL.iter().map(|keyword| keyword.name());
        let usage = did_you_mean(&key, known)
            .and_then(|guess| Keyword::ALL.into_iter().find(|keyword| keyword.name() == guess))
            .map_or_else(|| "turnpike.port \"NAME\" { … }".to_owned(), Keyword::usage);
        let message = format!("turnpike.{key} cannot be assigned; statements are calls: {usage}");
        record.borrow_mut().errors.add(calling_line(lua), message);
        Ok(())
    })
}

/// Returns the line of the script that called the running function.
fn calling_line(lua: &Lua) -> Option<usize> {
    // A function called by another function of the host or by a tail call has no line itself.
    (1..8).find_map(|level| lua.inspect_stack(level, |frame| frame.current_line()).flatten())
}

/// `turnpike.forwarders { … }`
fn plain_statement(lua: &Lua, keyword: Keyword, record: &Shared) -> mlua::Result<Function> {
    let record = record.clone();
    lua.create_function(move |lua, arguments: Variadic<LuaValue>| {
        let line = calling_line(lua);
        let mut record = record.borrow_mut();
        match only_table(&arguments) {
            Ok(settings) => record.state(keyword, line, String::new(), settings),
            Err(got) => {
                let message = format!(
                    "{}: expected a table of settings, got {got}; write {}",
                    keyword.name(),
                    keyword.usage()
                );
                record.errors.add(line, message);
            }
        }
        Ok(())
    })
}

/// `turnpike.port "left" { … }`, which Lua reads as `turnpike.port("left")({ … })`. A call with
/// both arguments at once is accepted as well.
fn named_statement(lua: &Lua, keyword: Keyword, record: &Shared) -> mlua::Result<Function> {
    let record = record.clone();
    lua.create_function(move |lua, arguments: Variadic<LuaValue>| {
        let line = calling_line(lua);
        let ticket = record.borrow_mut().open(keyword, line, arguments.first());
        if arguments.len() > 1 {
            record.borrow_mut().close(ticket, line, &arguments[1..]);
        }
        let named =
            arguments.first().and_then(|name| name.as_string().map(|s| s.to_string_lossy()));
        let step = named.filter(|_| keyword == Keyword::NextHop);
        let record = record.clone();
        lua.create_function(move |lua, arguments: Variadic<LuaValue>| {
            let line = calling_line(lua);
            record.borrow_mut().close(ticket, line, &arguments);
            // A next hop is also a step.
            let Some(name) = &step else { return Ok(LuaValue::Nil) };
            steps::add_next_hop(name, arguments.first(), line, &record);
            Ok(LuaValue::UserData(lua.create_userdata(graph::StepHandle(name.clone()))?))
        })
    })
}

/// Returns the only argument if it is a table, or a description of the arguments.
fn only_table(arguments: &[LuaValue]) -> Result<Table, String> {
    match arguments {
        [] => Err("nothing".to_owned()),
        [one] => match Value::from_lua(one) {
            Value::Table(table) => Ok(table),
            other => Err(other.to_string()),
        },
        many => Err(format!("{} arguments", many.len())),
    }
}

impl Record {
    fn state(&mut self, keyword: Keyword, line: Option<usize>, name: String, settings: Table) {
        let line = line.unwrap_or(0);
        self.statements.push(Statement { keyword, line, name, settings });
    }

    /// Begins a named statement; returns its ticket, or `None` if the name is wrong and was
    /// reported.
    fn open(
        &mut self,
        keyword: Keyword,
        line: Option<usize>,
        name: Option<&LuaValue>,
    ) -> Option<u64> {
        match name.map(Value::from_lua) {
            Some(Value::Text(name)) => {
                self.next += 1;
                self.waiting.push((self.next, keyword, name, line.unwrap_or(0)));
                return Some(self.next);
            }
            other => {
                let got = other.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
                let (name, usage) = (keyword.name(), keyword.usage());
                self.errors.add(line, format!("{name}: expected a name, got {got}; write {usage}"));
            }
        }
        None
    }

    /// Completes a named statement with its settings.
    fn close(&mut self, ticket: Option<u64>, line: Option<usize>, arguments: &[LuaValue]) {
        let Some(ticket) = ticket else { return };
        // The statement without settings is nearly always the last one.
        let Some(at) = self.waiting.iter().rposition(|waiting| waiting.0 == ticket) else {
            self.errors.add(line, "a statement got its settings twice; write it twice in full");
            return;
        };
        let (_, keyword, name, first_line) = self.waiting.remove(at);
        match only_table(arguments) {
            Ok(settings) => self.state(keyword, Some(first_line), name, settings),
            Err(got) => {
                let (keyword, usage) = (keyword.name(), keyword.usage());
                let message = format!(
                    "{keyword} \"{name}\": expected a table of settings, got {got}; write {usage}"
                );
                self.errors.add(line, message);
            }
        }
    }
}

/// Returns the line and the message of an error that ended the script.
fn describe(error: &mlua::Error, limits: Limits) -> (Option<usize>, String) {
    let text = match error {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => {
            let most = limits.memory >> 20;
            return (
                None,
                format!(
                    "the script used more than {most} MiB of memory; make it smaller, or load large tables with turnpike.import"
                ),
            );
        }
        mlua::Error::CallbackError { cause, traceback } => {
            let (_, message) = describe(cause, limits);
            let line = traceback.lines().find_map(|line| split_line(line.trim()).0);
            return (line, message);
        }
        other => other.to_string(),
    };
    if let Some((_, behind)) = text.split_once(STOPPED) {
        let seconds = limits.time.as_secs_f64();
        let line = behind.split_whitespace().next().and_then(|line| line.parse().ok());
        return (
            line,
            format!(
                "the script ran longer than {seconds} s and was stopped; is there a loop that does not end?"
            ),
        );
    }
    let first = text.lines().next().unwrap_or_default();
    let first = first.strip_prefix("runtime error: ").unwrap_or(first);
    let first = first.strip_prefix("syntax error: ").unwrap_or(first);
    let (line, message) = split_line(first);
    (line, format!("{message}{}", ::script::way_out(message)))
}

/// Splits `script:3: message`, the interpreter's form.
fn split_line(text: &str) -> (Option<usize>, &str) {
    let Some((number, message)) =
        text.strip_prefix("script:").and_then(|rest| rest.split_once(':'))
    else {
        return (None, text);
    };
    match number.parse() {
        Ok(line) => (Some(line), message.trim_start()),
        Err(_) => (None, text),
    }
}

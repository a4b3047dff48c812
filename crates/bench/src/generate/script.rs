//! `turnpike generate --script FILE`: tests written in Lua, in the way of MoonGen.
//!
//! ```lua
//! local tester = require "tester"
//! local ports = tester.open { devices = { "eth1", "eth2" }, largest = 1518 }
//! local results = tester.trial {
//!     { from = 1, to = 2, mac = "02:00:00:00:00:01", destination = "10.0.2.2", rate = "1Mpps", seconds = 2 },
//!     { from = 2, to = 1, mac = "02:00:00:00:00:02", destination = "10.0.1.2", rate = 1e6, seconds = 2 },
//! }
//! print(tester.json(results))
//! ```
//!
//! | function | result |
//! |---|---|
//! | `open { devices, largest }` | opens devices, once; a list of `device` and `mac` |
//! | `trial { flow, … }` | sends the flows at the same time; the outcome of each, as `turnpike generate --json` has it |
//! | `search { highest, goals, trial, … }` | MLRsearch (RFC 9971): `lower`, `upper` and `conditional_throughput` for each goal |
//! | `json(value)` | the value as JSON |
//! | `arguments` | the arguments after `--` |
//!
//! A script can compute and send, and nothing else: it reads no files and starts no programs. Ctrl-C ends it.

use std::cell::RefCell;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use dpdk::BURST_MAX;
use mlua::chunk::ChunkMode;
use mlua::serde::SerializeOptions;
use mlua::{Function, HookTriggers, Lua, LuaOptions, LuaSerdeExt, StdLib, Table, Value, VmState};
use serde::{Deserialize, Serialize};

use super::{Flow, Full, Rate, Setup, Sizes, Stream, Tester, parse_mac};
use crate::mlr::{self, Goal};

/// Instructions of the script between two looks at Ctrl-C.
const CHECK_EVERY: u32 = 10_000;

/// Parameters that come from the command line.
pub struct Options<'a> {
    /// The script.
    pub file: &'a Path,
    /// Its arguments.
    pub arguments: &'a [String],
    /// The cores of the sender and the receiver.
    pub cores: &'a [usize],
    /// Seed of all random choices.
    pub seed: u64,
    /// True to use ordinary memory even if there are hugepages.
    pub no_huge: bool,
}

/// Runs a script; its output is what it prints. `stop` ends it.
pub fn run(options: &Options, stop: &Arc<AtomicBool>) -> Result<()> {
    let name = options.file.display();
    let text = fs::read(options.file).with_context(|| format!("--script {name}"))?;
    let lua = interpreter(stop).map_err(plain)?;
    let opened: Rc<RefCell<Option<Tester>>> = Rc::default();
    let module = module(&lua, options, &opened, stop).map_err(plain)?;
    let require = lua.create_function(move |_, name: String| match name.as_str() {
        "tester" => Ok(module.clone()),
        other => Err(mlua::Error::runtime(format!("no module \"{other}\"; known: \"tester\""))),
    });
    let set = require.and_then(|require| lua.globals().set("require", require));
    set.map_err(plain)?;
    let chunk = lua.load(text).set_name(format!("@{name}")).set_mode(ChunkMode::Text);
    chunk.exec().map_err(plain)
}

/// Returns an interpreter that can only compute, and that Ctrl-C stops.
fn interpreter(stop: &Arc<AtomicBool>) -> mlua::Result<Lua> {
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::BIT;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    for name in ["dofile", "loadfile", "load", "loadstring"] {
        lua.globals().set(name, Value::Nil)?;
    }
    let stop = stop.clone();
    // The JIT compiler, which counts no instructions, is off because its library is not loaded.
    lua.set_global_hook(HookTriggers::new().every_nth_instruction(CHECK_EVERY), move |lua, _| {
        if !stop.load(Ordering::Relaxed) {
            return Ok(VmState::Continue);
        }
        // From now on every instruction fails: a script cannot go on by `pcall`.
        let each = HookTriggers::new().every_nth_instruction(1);
        lua.set_global_hook(each, |_, _| Err(interrupted()))?;
        Err(interrupted())
    })?;
    Ok(lua)
}

fn interrupted() -> mlua::Error {
    mlua::Error::runtime("interrupted")
}

/// Returns the script's error without the interpreter's stack.
fn plain(error: mlua::Error) -> anyhow::Error {
    let text = error.to_string();
    let text = text.split("\nstack traceback").next().unwrap_or_default();
    anyhow!("{}", text.trim_start_matches("runtime error: ").trim_start_matches("syntax error: "))
}

/// Makes an error of a call the script's.
fn raise<T>(result: Result<T>) -> mlua::Result<T> {
    result.map_err(|error| mlua::Error::runtime(format!("{error:#}")))
}

/// Returns the table for `require "tester"`.
fn module(
    lua: &Lua,
    options: &Options,
    opened: &Rc<RefCell<Option<Tester>>>,
    stop: &Arc<AtomicBool>,
) -> mlua::Result<Table> {
    let module = lua.create_table()?;
    let (cores, seed, no_huge) = (options.cores.to_vec(), options.seed, options.no_huge);
    let tester = opened.clone();
    let open = move |lua: &Lua, given: Value| {
        let given: Devices = lua.from_value(given)?;
        let made = raise(given.open(&cores, seed, no_huge, &mut tester.borrow_mut()))?;
        to_lua(lua, &made)
    };
    module.set("open", lua.create_function(open)?)?;
    let (tester, stopped) = (opened.clone(), stop.clone());
    let trial = move |lua: &Lua, given: Value| {
        let given: Vec<FlowFields> = lua.from_value(given)?;
        let flows = given
            .into_iter()
            .enumerate()
            .map(|(number, flow)| flow.flow().with_context(|| format!("flow {}", number + 1)));
        let flows = raise(flows.collect::<Result<Vec<_>>>())?;
        let mut tester = tester.borrow_mut();
        let tester = tester.as_mut().context("no device is open; call tester.open first");
        let outcomes = raise(tester.and_then(|tester| tester.trial(&flows, &stopped)))?;
        if stopped.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        to_lua(lua, &outcomes)
    };
    module.set("trial", lua.create_function(trial)?)?;
    module.set("search", lua.create_function(search)?)?;
    let json = |lua: &Lua, value: Value| {
        let value: serde_json::Value = lua.from_value(value)?;
        raise(serde_json::to_string(&value).map_err(Into::into))
    };
    module.set("json", lua.create_function(json)?)?;
    module.set(
        "arguments",
        lua.create_sequence_from(options.arguments.iter().map(String::as_str))?,
    )?;
    Ok(module)
}

fn to_lua<T: Serialize>(lua: &Lua, value: &T) -> mlua::Result<Value> {
    // What is missing is nil, as scripts expect.
    lua.to_value_with(value, SerializeOptions::new().serialize_none_to_null(false))
}

/// Arguments of `open`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Devices {
    devices: Vec<String>,
    largest: Option<usize>,
}

/// A device as the script sees it.
#[derive(Serialize)]
struct Opened {
    device: String,
    mac: String,
}

impl Devices {
    fn open(
        self,
        cores: &[usize],
        seed: u64,
        no_huge: bool,
        tester: &mut Option<Tester>,
    ) -> Result<Vec<Opened>> {
        ensure!(tester.is_none(), "devices are open; tester.open is called once, with all of them");
        let largest = self.largest.unwrap_or(1518);
        let most = super::sizes::LARGEST;
        ensure!((64..=most).contains(&largest), "largest {largest}: 64 to {most} bytes");
        let devices: Vec<&str> = self.devices.iter().map(String::as_str).collect();
        let setup = Setup { devices: &devices, largest, cores, seed, no_huge };
        let made = tester.insert(Tester::open(&setup)?);
        let devices = self.devices.into_iter().zip(made.macs());
        Ok(devices.map(|(device, mac)| Opened { device, mac: mac.to_string() }).collect())
    }
}

/// A number, or a text in the notation of the command line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Quantity {
    Number(f64),
    Text(String),
}

/// One DSCP, or several by turns.
#[derive(Deserialize)]
#[serde(untagged)]
enum Dscp {
    One(u8),
    Several(Vec<u8>),
}

/// A flow as the script writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowFields {
    from: usize,
    to: Option<usize>,
    mac: String,
    destination: String,
    source: Option<String>,
    size: Option<Quantity>,
    dscp: Option<Dscp>,
    rate: Option<Quantity>,
    count: Option<u64>,
    seconds: Option<f64>,
    wait_ms: Option<u64>,
    full: Option<String>,
    burst: Option<usize>,
}

impl FlowFields {
    fn flow(self) -> Result<Flow> {
        let place = |name: &str, number: usize| {
            number.checked_sub(1).with_context(|| format!("{name} {number}: devices count from 1"))
        };
        let to = self.to.map(|to| place("to", to)).transpose()?;
        let (from, to_mac) = (place("from", self.from)?, parse_mac(&self.mac)?);
        let source = self.source.as_ref().map(|text| {
            text.parse::<IpAddr>().with_context(|| format!("source {text}: write an address"))
        });
        let source = source.transpose()?;
        Ok(Flow { from, to, to_mac, source, stream: self.stream()? })
    }

    fn stream(self) -> Result<Stream> {
        let rate = match self.rate {
            None => Rate::Most,
            Some(Quantity::Text(text)) => text.parse()?,
            Some(Quantity::Number(rate)) if rate > 0.0 && rate.is_finite() => Rate::Packets(rate),
            Some(Quantity::Number(rate)) => bail!("rate {rate}: must be above 0"),
        };
        let sizes: Sizes = match self.size {
            None => Sizes::one(super::smallest(false)),
            Some(Quantity::Text(text)) => text.parse()?,
            Some(Quantity::Number(size)) => size.to_string().parse()?,
        };
        let dscp = match self.dscp {
            None => vec![0],
            Some(Dscp::One(one)) => vec![one],
            Some(Dscp::Several(list)) => list,
        };
        ensure!(
            !dscp.is_empty() && dscp.iter().all(|&one| one < 64),
            "dscp: 0 to 63, at least one"
        );
        let full = self.full.as_deref().unwrap_or("lose");
        let full = Full::from_str(full, false).map_err(|_| anyhow!("full {full}: wait or lose"))?;
        let burst = self.burst.unwrap_or(32);
        ensure!((1..=BURST_MAX).contains(&burst), "burst {burst}: 1 to {BURST_MAX}");
        let seconds =
            self.seconds.unwrap_or(if self.count.is_some() { f64::INFINITY } else { 10.0 });
        ensure!(seconds > 0.0, "seconds {seconds}: must be above 0");
        let (count, wait_ms) = (self.count.unwrap_or(u64::MAX), self.wait_ms.unwrap_or(500));
        let to = self.destination.parse()?;
        Ok(Stream { rate, sizes, dscp, to, count, seconds, burst, full, wait_ms })
    }
}

/// A goal as the script writes it; what it leaves out is the search's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GoalFields {
    loss: f64,
}

/// Arguments of `search` but for the function.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchFields {
    highest: f64,
    goals: Vec<GoalFields>,
    seconds: Option<f64>,
    sum: Option<f64>,
    exceed: Option<f64>,
    width: Option<f64>,
}

/// Finds the highest load that meets each goal; `trial(load, seconds)` of the script returns the share lost.
fn search(lua: &Lua, given: Table) -> mlua::Result<Value> {
    let trial: Option<Function> = given.get("trial")?;
    let trial =
        raise(trial.context("trial: write function(load, seconds), which returns the share lost"))?;
    let fields = lua.create_table()?;
    for pair in given.pairs::<Value, Value>() {
        let (name, value) = pair?;
        if !value.is_function() {
            fields.set(name, value)?;
        }
    }
    let fields: SearchFields = lua.from_value(Value::Table(fields))?;
    let goals = raise(fields.goals())?;
    let found = mlr::search(fields.highest, &goals, |load, seconds| {
        let lost: f64 = trial.call((load, seconds)).map_err(plain)?;
        ensure!((0.0..=1.0).contains(&lost), "trial: returned {lost}; the share lost is 0 to 1");
        Ok(lost)
    });
    to_lua(lua, &raise(found)?)
}

impl SearchFields {
    fn goals(&self) -> Result<Vec<Goal>> {
        let final_trial = self.seconds.unwrap_or(1.0);
        let duration_sum = self.sum.unwrap_or(3.0 * final_trial);
        let exceed_ratio = self.exceed.unwrap_or(0.5);
        let width = self.width.unwrap_or(0.005);
        ensure!(self.highest > 0.0 && self.highest.is_finite(), "highest: must be above 0");
        ensure!(!self.goals.is_empty(), "goals: at least one, as in {{ {{ loss = 0 }} }}");
        ensure!(
            final_trial > 0.0 && duration_sum >= final_trial,
            "sum: at least one trial's seconds"
        );
        ensure!((0.0..1.0).contains(&exceed_ratio), "exceed {exceed_ratio}: 0 to below 1");
        ensure!(width > 1e-6 && width < 1.0, "width {width}: above 0.000001, below 1");
        let goal = |goal: &GoalFields| {
            ensure!((0.0..1.0).contains(&goal.loss), "loss {}: 0 to below 1", goal.loss);
            let (loss_ratio, initial_trial) = (goal.loss, final_trial / 4.0);
            Ok(Goal { loss_ratio, final_trial, initial_trial, duration_sum, exceed_ratio, width })
        };
        self.goals.iter().map(goal).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_text(text: &str) -> Result<()> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let arguments = ["7".to_owned()];
        let options = Options {
            file: file.path(),
            arguments: &arguments,
            cores: &[],
            seed: 1,
            no_huge: true,
        };
        run(&options, &Arc::default())
    }

    fn error(text: &str) -> String {
        let text = format!("local tester = require \"tester\"\n{text}");
        format!("{:#}", run_text(&text).unwrap_err())
    }

    #[test]
    fn a_search_calls_the_scripts_trials() {
        run_text(
            "local tester = require 'tester'
            local capacity, seconds = 600 + tester.arguments[1], 0
            local found = tester.search {
                highest = 1000, goals = { { loss = 0 }, { loss = 0.5 } }, width = 0.01,
                trial = function(load, time)
                    seconds = seconds + time
                    return math.max(0, 1 - capacity / load)
                end,
            }
            assert(#found == 2)
            assert(found[1].lower <= 607 and found[1].upper > 607 and found[1].upper < 620)
            assert(found[2].lower == 1000 and found[2].upper == nil)
            assert(seconds > 3, seconds)
            assert(tester.json(found):find('\"conditional_throughput\":', 1, true))",
        )
        .unwrap();
    }

    #[test]
    fn errors_have_the_line_and_the_way_out() {
        let file_and_line = |text: &str| text.split_once(":2: ").is_some();
        let unknown =
            error("tester.trial { { from = 1, mac = 'x', destination = '10.0.0.1', sise = 9 } }");
        assert!(
            unknown.contains("unknown field `sise`, expected one of `from`, `to`"),
            "{unknown}"
        );
        let flow = "from = 1, mac = '02:00:00:00:00:01', destination = '10.0.0.1'";
        for (text, part) in [
            (format!("tester.trial {{ {{ {flow} }} }}"), "no device is open; call tester.open first"),
            (format!("tester.trial {{ {{ {flow}, rate = '5' }} }}"), "flow 1: rate 5: unknown unit"),
            (format!("tester.trial {{ {{ {flow}, rate = -1 }} }}"), "flow 1: rate -1: must be above 0"),
            (format!("tester.trial {{ {{ {flow}, size = 63 }} }}"), "flow 1: size 63: 64 to 9218"),
            (format!("tester.trial {{ {{ {flow}, dscp = {{ 64 }} }} }}"), "flow 1: dscp: 0 to 63"),
            (format!("tester.trial {{ {{ {flow}, full = 'x' }} }}"), "flow 1: full x: wait or lose"),
            (format!("tester.trial {{ {{ {flow}, to = 0 }} }}"), "flow 1: to 0: devices count from 1"),
            ("tester.open { devices = {} }".into(), "0 devices: 1 to 64"),
            ("tester.search { highest = 1, goals = { { loss = 0 } } }".into(), "write function(load, seconds)"),
            (
                "tester.search { highest = 1, goals = { { loss = 0 } }, trial = function() return 2 end }".into(),
                "trial: returned 2",
            ),
            ("require 'os'".into(), "no module \"os\"; known: \"tester\""),
            ("io.open('/etc/passwd')".into(), "attempt to index global 'io'"),
            ("dofile('/etc/passwd')".into(), "attempt to call global 'dofile'"),
        ] {
            let error = error(&text);
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains("traceback"), "{error}");
        }
        let line = error("error('wrong')");
        assert!(file_and_line(&line) && line.ends_with("wrong"), "{line}");
        assert!(error("x = = 1").contains("unexpected symbol near '='"));
        assert!(format!("{:#}", run_text("\x1bLJ\x02").unwrap_err()).contains("binary"));
    }

    #[test]
    fn an_endless_script_is_interrupted() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(
            &mut file,
            b"while true do pcall(function() while true do end end) end",
        )
        .unwrap();
        let stop = Arc::new(AtomicBool::new(true));
        let options =
            Options { file: file.path(), arguments: &[], cores: &[], seed: 1, no_huge: true };
        let error = run(&options, &stop).unwrap_err().to_string();
        assert!(error.contains("interrupted"), "{error}");
    }
}

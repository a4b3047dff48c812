//! Commands in Lua: `turnpike.command "NAME" { help = "…", run = function(args) … end }`.
//!
//! The configuration only describes them. Each run begins with a new interpreter, in which the
//! script runs once more: nothing is left from earlier runs or shared with others, and the time of
//! a run is limited.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::serde::{DeserializeOptions, SerializeOptions};
use mlua::{Function, Lua, LuaSerdeExt, Table as LuaTable, Value as LuaValue};
use serde_json::Value as Json;

use super::super::Command;
use super::super::error::suggestion;
use super::super::value::Value;
use super::{Limits, Shared, bound, calling_line, describe, sandbox};

const KNOWN: [&str; 2] = ["help", "run"];

/// Longest name.
const NAME_MOST: usize = 32;

/// Most memory of a run, in bytes.
const MEMORY: usize = 256 << 20;

/// Adds `command` to the module.
pub(super) fn add_to(lua: &Lua, module: &LuaTable, record: &Shared) -> mlua::Result<()> {
    let record = record.clone();
    let command = lua.create_function(move |lua, name: LuaValue| {
        let line = calling_line(lua);
        let name = Value::from_lua(&name);
        let record = record.clone();
        lua.create_function(move |_, settings: LuaValue| {
            let mut record = record.borrow_mut();
            let (command, wrong) = read(&name, &Value::from_lua(&settings), line.unwrap_or(0));
            let what = format!("command \"{}\"", command.name);
            for message in wrong {
                record.errors.add(line, format!("{what}: {message}"));
            }
            if let Some(other) = record.commands.iter().find(|other| other.name == command.name) {
                let message = format!("{what}: given on line {} already", other.line);
                record.errors.add(line, message);
            }
            record.commands.push(command);
            Ok(())
        })
    })?;
    module.set("command", command)
}

/// Reads the description of a command; returns it with its faults.
fn read(name: &Value, settings: &Value, line: usize) -> (Command, Vec<String>) {
    let mut command = Command { line, name: String::new(), help: String::new() };
    let mut wrong = Vec::new();
    match name {
        Value::Text(name) => command.name.clone_from(name),
        other => wrong.push(format!("expected a name, got {other}")),
    }
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let first = command.name.starts_with(|c: char| c.is_ascii_alphabetic());
    if !first || command.name.len() > NAME_MOST || !command.name.chars().all(letter) {
        wrong.push(format!(
            "a name begins with a letter, has letters, digits, - and _, and at most {NAME_MOST} of them"
        ));
    }
    let Value::Table(settings) = settings else {
        wrong.push(format!("expected a table of settings, got {settings}"));
        return (command, wrong);
    };
    for (key, value) in &settings.named {
        match (key.as_str(), value) {
            ("help", Value::Text(help)) => command.help.clone_from(help),
            ("run", Value::Other("function")) => {}
            ("help", other) => wrong.push(format!("help: expected a text, got {other}")),
            ("run", other) => wrong.push(format!("run: expected a function, got {other}")),
            _ => wrong.push(format!("key \"{key}\" unknown{}", suggestion(key, "known", &KNOWN))),
        }
    }
    if !settings.named.contains_key("run") {
        wrong.push("run missing; write run = function(args) … end".to_owned());
    }
    (command, wrong)
}

/// A command to be run.
pub struct Call<'a> {
    /// The configuration's text.
    pub text: &'a str,
    /// Its file, for messages.
    pub file: &'a str,
    /// The command's name.
    pub name: &'a str,
    /// The arguments typed after it.
    pub arguments: &'a [String],
    /// Longest run.
    pub budget: Duration,
}

/// Runs a command and returns its text or table. `show` answers `turnpike.show`, which is called
/// with a name, or with a name and settings.
///
/// # Errors
/// The error raised, with a traceback, or the excess of its time.
pub fn run_command(
    call: &Call<'_>,
    show: impl Fn(Json) -> Result<Json, String> + 'static,
) -> Result<Json, String> {
    let limits = Limits { time: call.budget, memory: MEMORY };
    run(call, limits, show).map_err(|error| {
        let (line, message) = describe(&error, limits);
        let place = line.map_or_else(String::new, |line| format!("{}:{line}: ", call.file));
        let message = format!("{place}{message}");
        let trace = traceback(&error);
        format!("command \"{}\": {message}{trace}", call.name)
    })
}

fn run(
    call: &Call<'_>,
    limits: Limits,
    show: impl Fn(Json) -> Result<Json, String> + 'static,
) -> mlua::Result<Json> {
    let lua = sandbox()?;
    let printed = Rc::new(RefCell::new(String::new()));
    let runner = runner(&lua, call.name, show, &printed)?;
    bound(&lua, limits)?;
    let chunk = format!("={}", call.file);
    lua.load(call.text).set_name(chunk).set_mode(ChunkMode::Text).exec()?;
    let arguments = lua.create_sequence_from(call.arguments.iter().map(String::as_str))?;
    let returned = runner.call::<LuaValue>(arguments)?;
    let mut printed = std::mem::take(&mut *printed.borrow_mut());
    Ok(match returned {
        LuaValue::Table(_) => {
            let options = DeserializeOptions::new().deny_unsupported_types(false);
            lua.from_value_with(returned, options)?
        }
        LuaValue::Nil => Json::String(printed.trim_end().to_owned()),
        LuaValue::String(text) => Json::String(printed + &text.to_string_lossy()),
        other => {
            printed += &other.to_string()?;
            Json::String(printed)
        }
    })
}

/// Returns the function that runs the command after the script has run.
fn runner(
    lua: &Lua,
    name: &str,
    show: impl Fn(Json) -> Result<Json, String> + 'static,
    printed: &Rc<RefCell<String>>,
) -> mlua::Result<Function> {
    let helpers = lua.load(::script::HELPERS).set_name("=helpers.lua").into_function()?;
    let show =
        lua.create_function(move |lua, wanted: LuaValue| match show(lua.from_value(wanted)?) {
            Ok(report) => {
                let options = SerializeOptions::new().serialize_none_to_null(false);
                let options = options.serialize_unit_to_null(false);
                Ok((lua.to_value_with(&report, options)?, None))
            }
            Err(message) => Ok((LuaValue::Nil, Some(message))),
        })?;
    let printed = printed.clone();
    let write = lua.create_function(move |_, text: String| {
        printed.borrow_mut().push_str(&text);
        Ok(())
    })?;
    let prelude = lua.load(include_str!("commands.lua")).set_name("=commands.lua");
    prelude.call((name, helpers, show, write))
}

/// Returns the calls that led to an error, if it contains them.
fn traceback(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { traceback, .. } => traceback.clone(),
        other => other.to_string(),
    };
    let Some((_, trace)) = text.split_once("stack traceback:") else { return String::new() };
    format!("\nstack traceback:{}", trace.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of a command `t` with this body.
    fn run(body: &str, arguments: &[&str]) -> Result<Json, String> {
        let text = format!(
            "local turnpike = require \"turnpike\"\n\
             turnpike.port \"left\" {{ device = \"a\" }}\n\
             local seen = turnpike.counter \"seen\"\n\
             turnpike.graph:insert_after(\"ip4-ttl\", \"x\")\n\
             turnpike.command \"t\" {{ run = function(args)\n{body}\nend }}\n"
        );
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let budget = Duration::from_millis(300);
        let call = Call { text: &text, file: "r.lua", name: "t", arguments: &arguments, budget };
        run_command(&call, |wanted| match wanted {
            Json::String(name) => {
                Ok(serde_json::json!([{ "name": name, "packets": 3, "no": null }]))
            }
            other => Err(format!("not {other}")),
        })
    }

    #[test]
    fn arguments_come_in_and_texts_and_tables_go_out() {
        assert_eq!(run("return #args .. args[2]", &["a", "b"]).unwrap(), "2b");
        assert_eq!(run("print('a', 1) print(true) return 'end'", &[]).unwrap(), "a\t1\ntrue\nend");
        assert_eq!(run("print 'only'", &[]).unwrap(), "only");
        assert_eq!(run("return 3", &[]).unwrap(), "3");
        let table = serde_json::json!({ "a": [1, 2.5], "b": { "c": true } });
        assert_eq!(run("return { a = { 1, 2.5 }, b = { c = true } }", &[]).unwrap(), table);
        assert_eq!(
            run("return turnpike.ip4_text(turnpike.ip4('192.0.2.1'))", &[]).unwrap(),
            "192.0.2.1"
        );
    }

    #[test]
    fn the_routers_answers_are_tables() {
        let body = "local port = turnpike.show('ports')[1]\n\
                    return port.name .. port.packets + 1 .. tostring(port.no)";
        assert_eq!(run(body, &[]).unwrap(), "ports4nil");
        let error = run("return turnpike.show('route', { address = 'x' })", &[]).unwrap_err();
        assert!(error.contains("turnpike.show: not {\"route\":{\"address\":\"x\"}}"), "{error}");
        assert!(
            run("turnpike.show()", &[]).unwrap_err().contains("expected a name such as \"ports\"")
        );
    }

    #[test]
    fn errors_have_a_traceback() {
        let error = run("local function deep() error('no luck') end\ndeep()", &[]).unwrap_err();
        assert!(error.starts_with("command \"t\": r.lua:6: no luck\nstack traceback:"), "{error}");
        assert!(error.contains("r.lua:7: in function"), "{error}");
        assert!(
            run("return nothing.at.all", &[]).unwrap_err().contains("r.lua:6: attempt to index")
        );
    }

    #[test]
    fn a_command_that_does_not_end_is_stopped() {
        for body in [
            "while true do end",
            "while true do pcall(error) end",
            "return {}, (function() while true do end end)()",
        ] {
            let error = run(body, &[]).unwrap_err();
            assert!(error.contains("ran longer than 0.3 s and was stopped"), "{error}");
        }
        let hungry = run("local t = {} while true do t[#t + 1] = ('x'):rep(2^20) .. #t end", &[]);
        assert!(hungry.is_err());
    }

    #[test]
    fn it_can_compute_and_nothing_else() {
        for name in ["io", "os", "ffi", "jit", "debug", "package", "load", "dofile"] {
            assert_eq!(run(&format!("return type({name})"), &[]).unwrap(), "nil", "{name}");
        }
        assert!(run("require 'os'", &[]).unwrap_err().contains("no module \"os\""));
    }
}

//! Click configurations as plans: a text is refused with a place in it, or becomes a configuration of Turnpike, whose graph
//! is printed as Lua that is read as the same graph.
#![no_main]

use std::path::Path;

use control::config::{Config, ConfigErrors, Limits, parse};
use dataplane::catalogue::Catalogue;
use libfuzzer_sys::fuzz_target;

fn read(lua: &str) -> Result<Config, ConfigErrors> {
    parse(Path::new("fuzz"), lua, Limits::default(), &Catalogue::default())
}

fuzz_target!(|text: &str| {
    let converted = match convert::click::convert("fuzz", text) {
        Ok(converted) => converted,
        Err(errors) => {
            // Lines of the text may say which ones they are, also 0.
            return assert!(!errors.all().is_empty());
        }
    };
    assert_eq!(converted.lua.lines().count(), converted.lines.len());
    let Ok(config) = read(&converted.lua) else { return };
    let ports = converted.lua.lines().filter(|line| line.starts_with("turnpike.port "));
    let ports: String = ports.map(|line| format!("{line}\n")).collect();
    let graph = config.graphs.main.to_string();
    let again =
        format!("local turnpike = require \"turnpike\"\n{ports}{graph}turnpike.graph = graph\n");
    let again = read(&again).unwrap_or_else(|errors| panic!("{errors}\n{again}"));
    assert_eq!(again.graphs.main.to_string(), graph);
});

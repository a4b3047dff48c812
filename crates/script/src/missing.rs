//! Advice for a script that calls or reads an undefined name, for which the interpreter reports only "a
//! nil value".

use dataplane::words::did_you_mean;

/// Libraries and functions of Lua that configurations do not have, and the reason.
const ABSENT: [(&[&str], &str); 3] = [
    (
        &["os", "io", "package", "ffi"],
        "a configuration has no files, commands or environment; it describes the router and nothing else",
    ),
    (
        &["dofile", "loadfile", "load", "loadstring"],
        "a configuration is one file; `require` knows \"turnpike\" only",
    ),
    (
        &[
            "debug",
            "jit",
            "coroutine",
            "collectgarbage",
            "getfenv",
            "setfenv",
            "module",
            "newproxy",
        ],
        "a configuration does not reach into the interpreter",
    ),
];

/// Known globals.
const GLOBALS: [&str; 22] = [
    "assert",
    "bit",
    "error",
    "ipairs",
    "math",
    "next",
    "pairs",
    "pcall",
    "print",
    "rawequal",
    "rawget",
    "rawset",
    "require",
    "select",
    "setmetatable",
    "string",
    "table",
    "tonumber",
    "tostring",
    "type",
    "unpack",
    "xpcall",
];

/// Known fields of the libraries, and methods of graphs.
const FIELDS: [&str; 59] = [
    "concat",
    "insert",
    "maxn",
    "remove",
    "sort",
    "abs",
    "acos",
    "asin",
    "atan",
    "atan2",
    "ceil",
    "cos",
    "deg",
    "exp",
    "floor",
    "fmod",
    "huge",
    "log",
    "max",
    "min",
    "modf",
    "pi",
    "pow",
    "rad",
    "random",
    "sin",
    "sqrt",
    "tan",
    "byte",
    "char",
    "find",
    "format",
    "gmatch",
    "gsub",
    "len",
    "lower",
    "match",
    "rep",
    "reverse",
    "sub",
    "upper",
    "band",
    "bnot",
    "bor",
    "bswap",
    "bxor",
    "lshift",
    "rol",
    "ror",
    "rshift",
    "tobit",
    "tohex",
    "copy",
    "insert_after",
    "insert_before",
    "on_port",
    "path",
    "print",
    "replace",
];

/// Returns advice on an error message of the interpreter, to be appended to it; empty if there is none.
pub fn way_out(message: &str) -> String {
    let Some((kind, name)) = missing(message) else { return String::new() };
    if kind == "global" {
        if let Some((_, why)) = ABSENT.iter().find(|(names, _)| names.contains(&name)) {
            return format!("; {why}");
        }
        return match did_you_mean(name, GLOBALS) {
            Some(guess) => format!("; did you mean \"{guess}\"?"),
            None if name == "turnpike" => {
                "; write local turnpike = require \"turnpike\" above it".to_owned()
            }
            None => "; nothing before this line gives it a value".to_owned(),
        };
    }
    let guess = did_you_mean(name, FIELDS).filter(|_| kind == "field" || kind == "method");
    guess.map_or_else(String::new, |guess| format!("; did you mean \"{guess}\"?"))
}

/// Returns `global`, `field`, `method`, … and the name in `attempt to call global 'x' (a nil value)`.
fn missing(message: &str) -> Option<(&str, &str)> {
    let (_, rest) = message.split_once("attempt to ")?;
    let (rest, _) = rest.split_once(" (a nil value)")?;
    let (before, name) = rest.strip_suffix('\'')?.rsplit_once(" '")?;
    Some((before.rsplit(' ').next()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_has_a_way_out() {
        let said = |what: &str| way_out(&format!("attempt to {what} (a nil value)"));
        assert!(said("index global 'os'").contains("no files, commands or environment"));
        assert!(said("call global 'dofile'").contains("a configuration is one file"));
        assert_eq!(said("call global 'tostrin'"), "; did you mean \"tostring\"?");
        assert_eq!(said("index global 'stirng'"), "; did you mean \"string\"?");
        assert!(said("index global 'turnpike'").contains("require \"turnpike\""));
        assert!(said("index global 'ports_of_mine'").contains("gives it a value"));
        assert_eq!(said("call method 'instert_after'"), "; did you mean \"insert_after\"?");
        assert_eq!(said("call field 'isnert'"), "; did you mean \"insert\"?");
        assert_eq!(said("index local 'os'"), "");
        assert!(
            way_out("r.lua:3: attempt to index global 'io' (a nil value)").contains("no files")
        );
        assert_eq!(way_out("attempt to compare number with nil"), "");
    }
}

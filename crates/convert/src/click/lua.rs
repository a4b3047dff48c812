//! Statements of Turnpike, with the lines of the Click file behind them.

use std::fmt::{self, Write};

use super::Converted;

/// A value in Lua.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    Flag(bool),
    Text(String),
    List(Vec<String>),
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                write!(f, "{{ {} }}", texts.join(", "))
            }
        }
    }
}

/// Text as a string of Lua.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_ascii_control() => {
                let _ = write!(quoted, "\\{:03}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// A configuration under construction.
pub(super) struct Statements {
    lines: Vec<(String, Option<usize>)>,
    notes: Vec<String>,
}

impl Statements {
    pub(super) fn new(name: &str) -> Self {
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        let first = format!("-- From {name}, a configuration of Click.");
        let second = "local turnpike = require \"turnpike\"".to_owned();
        Self { lines: vec![(first, None), (second, None)], notes: Vec::new() }
    }

    /// Adds a line of Lua that stands for a line of the file.
    pub(super) fn add(&mut self, line: String, of: usize) {
        self.lines.push((line, Some(of)));
    }

    /// Adds `turnpike.KEYWORD "NAME" { … }`.
    pub(super) fn statement(
        &mut self,
        (keyword, name): (&str, &str),
        settings: &[(&str, Value)],
        of: usize,
    ) {
        let name = quoted(name);
        self.add(format!("turnpike.{keyword} {name} {{ {} }}", self::settings(settings)), of);
    }

    /// Adds a note about a part without effect.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn finish(self) -> Converted {
        let (lines, of): (Vec<String>, Vec<_>) = self.lines.into_iter().unzip();
        Converted { lua: lines.join("\n") + "\n", lines: of, notes: self.notes }
    }
}

/// Settings as the content of a table of Lua.
pub(super) fn settings(settings: &[(&str, Value)]) -> String {
    let settings = settings.iter().map(|(key, value)| format!("{key} = {value}"));
    settings.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_lua_reads_them() {
        let list = Value::List(vec!["a".to_owned(), "b\n".to_owned()]);
        let settings = [("x", Value::Number(-1)), ("y", list), ("z", Value::text("\"\\"))];
        let written = super::settings(&settings);
        assert_eq!(written, r#"x = -1, y = { "a", "b\010" }, z = "\"\\""#);
    }
}

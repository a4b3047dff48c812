//! Values of a configuration, independent of Lua, and the reader of a table's settings.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use super::error::{Collector, suggestion};
use super::source::ScriptLines;

/// Deepest nesting of tables: a filter's rule, its police, and in that lists of DSCPs by colour.
const MOST_NESTED: usize = 5;

/// A Lua value in a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Number(f64),
    Text(String),
    Table(Table),
    /// The name of a type that no setting has: function, userdata, …
    Other(&'static str),
}

/// A Lua table, with its list part separate from its named part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub(super) list: Vec<Value>,
    pub(super) named: BTreeMap<String, Value>,
    /// Keys that are neither text nor part of the list, as text.
    pub(super) odd: Vec<String>,
}

impl Value {
    /// Converts a Lua value. Metamethods are not called.
    pub(super) fn from_lua(value: &mlua::Value) -> Self {
        Self::from_lua_nested(value, MOST_NESTED)
    }

    fn from_lua_nested(value: &mlua::Value, nested: usize) -> Self {
        match value {
            mlua::Value::Boolean(value) => Self::Bool(*value),
            mlua::Value::Integer(value) => Self::Number(*value as f64),
            mlua::Value::Number(value) => Self::Number(*value),
            mlua::Value::String(text) => Self::Text(text.to_string_lossy()),
            mlua::Value::Table(_) if nested == 0 => Self::Other("table nested too deep"),
            mlua::Value::Table(table) => Self::Table(Table::from_lua(table, nested - 1)),
            other => Self::Other(other.type_name()),
        }
    }
}

impl Table {
    fn from_lua(table: &mlua::Table, nested: usize) -> Self {
        let mut result = Self::default();
        let length = table.raw_len();
        for pair in table.pairs::<mlua::Value, mlua::Value>() {
            let Ok((key, value)) = pair else { break };
            match &key {
                mlua::Value::String(name) => {
                    let value = Value::from_lua_nested(&value, nested);
                    result.named.insert(name.to_string_lossy(), value);
                }
                mlua::Value::Integer(index) if (1..=length as i64).contains(index) => {}
                other => result.odd.push(Value::from_lua_nested(other, 0).to_string()),
            }
        }
        for index in 1..=length {
            match table.raw_get::<mlua::Value>(index) {
                Ok(mlua::Value::Nil) | Err(_) => result.odd.push(format!("hole at {index}")),
                Ok(value) => result.list.push(Value::from_lua_nested(&value, nested)),
            }
        }
        result
    }
}

/// Type and value, as in error messages.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "boolean {value}"),
            Self::Number(value) => write!(f, "number {value}"),
            Self::Text(text) => write!(f, "string \"{text}\""),
            Self::Table(table) if table.named.is_empty() && !table.list.is_empty() => {
                write!(f, "a list of {}", table.list.len())
            }
            Self::Table(_) => f.write_str("a table"),
            Self::Other(name) => write!(f, "a {name}"),
        }
    }
}

/// Reads the settings of one statement from its table and reports errors in them.
pub(super) struct Fields<'a, 's> {
    /// The statement's name in messages: `port "left"`.
    what: String,
    line: usize,
    table: &'s Table,
    known: &'s [&'static str],
    source: &'a ScriptLines<'a>,
    errors: &'a mut Collector,
}

impl<'a, 's> Fields<'a, 's> {
    /// Starts reading; keys outside `known` are reported immediately.
    pub(super) fn new(
        what: String,
        line: usize,
        table: &'s Table,
        known: &'s [&'static str],
        source: &'a ScriptLines<'a>,
        errors: &'a mut Collector,
    ) -> Self {
        let mut fields = Self { what, line, table, known, source, errors };
        fields.report_unknown();
        fields
    }

    /// Returns the reader of a table within the statement; `what` is its name in messages.
    pub(super) fn nested<'b>(
        &'b mut self,
        what: &str,
        table: &'s Table,
        known: &'static [&'static str],
    ) -> Fields<'b, 's> {
        let what = format!("{}: {what}", self.what);
        Fields::new(what, self.line, table, known, self.source, self.errors)
    }

    /// Returns the values without a key, of a statement that is a list.
    pub(super) fn items(&self) -> &'s [Value] {
        &self.table.list
    }

    /// Reports values without a key, of a statement that allows none.
    pub(super) fn refuse_items(&mut self) {
        for value in &self.table.list {
            self.error("", format!("{value} has no key; known: {}", self.known.join(", ")));
        }
    }

    fn report_unknown(&mut self) {
        let table = self.table;
        for key in table.named.keys().filter(|key| !self.known.contains(&key.as_str())) {
            let message = format!("key \"{key}\" unknown{}", suggestion(key, "known", self.known));
            self.error(key, message);
        }
        for key in &table.odd {
            self.error("", format!("key {key} unknown; known: {}", self.known.join(", ")));
        }
    }

    /// Returns the line for an error about `key`.
    pub(super) fn line_of(&self, key: &str) -> usize {
        if key.is_empty() { self.line } else { self.source.line_of(self.line, key) }
    }

    /// Reports an error about a key; "" means the statement as a whole.
    pub(super) fn error(&mut self, key: &str, message: impl fmt::Display) {
        let line = self.line_of(key);
        self.errors.add(Some(line), format!("{}: {message}", self.what));
    }

    /// Reports each of these keys that is present, with the reason why it is not allowed here.
    pub(super) fn refuse(&mut self, keys: &[&str], why: impl Fn(&str) -> String) {
        for key in keys {
            if self.get(key).is_some() {
                self.error(key, why(key));
            }
        }
    }

    /// Returns the value of a key, if present.
    pub(super) fn get(&self, key: &str) -> Option<&'s Value> {
        debug_assert!(self.known.contains(&key), "{key} is not declared");
        self.table.named.get(key)
    }

    fn mismatch<T>(&mut self, key: &str, expected: impl fmt::Display, got: &Value) -> Option<T> {
        self.error(key, format!("{key}: expected {expected}, got {got}"));
        None
    }

    pub(super) fn text(&mut self, key: &str, expected: &str) -> Option<&'s str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            other => self.mismatch(key, expected, other),
        }
    }

    /// Returns true if the value of a key is a text that suits.
    pub(super) fn is_text(&self, key: &str, suits: impl Fn(&str) -> bool) -> bool {
        matches!(self.get(key), Some(Value::Text(text)) if suits(text))
    }

    /// Reads a switch that is off by default.
    pub(super) fn flag(&mut self, key: &str) -> bool {
        self.flag_or(key, false)
    }

    /// Reads a switch with a default.
    pub(super) fn flag_or(&mut self, key: &str, default: bool) -> bool {
        match self.get(key) {
            None => default,
            Some(Value::Bool(value)) => *value,
            Some(other) => self.mismatch(key, "true or false", other).unwrap_or(default),
        }
    }

    pub(super) fn number(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.get(key)?;
        if let Some(number) = whole_number(value, &range) {
            return Some(number);
        }
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.mismatch(key, expected, value)
    }

    /// Returns a reader of the table that is a key's value, with the keys that it may have.
    pub(super) fn table(
        &mut self,
        key: &str,
        known: &'static [&'static str],
    ) -> Option<Fields<'_, 's>> {
        let table = match self.get(key)? {
            Value::Table(table) => table,
            other => return self.mismatch(key, "a table", other),
        };
        let (what, line) = (format!("{}: {key}", self.what), self.line_of(key));
        let mut fields = Fields::new(what, line, table, known, self.source, self.errors);
        fields.refuse_items();
        Some(fields)
    }

    /// Returns the values of a key with one value or a list of them; none if it is absent.
    pub(super) fn values(&self, key: &str) -> &'s [Value] {
        match self.get(key) {
            None => &[],
            Some(Value::Table(table)) if table.named.is_empty() && table.odd.is_empty() => {
                &table.list
            }
            Some(single) => std::slice::from_ref(single),
        }
    }

    /// Reads a text or a list of texts; an empty vector if the key is absent or wrong.
    pub(super) fn texts(&mut self, key: &str, expected: &str) -> Vec<&'s str> {
        let items = self.values(key);
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Value::Text(text) => texts.push(text.as_str()),
                other => {
                    self.mismatch::<()>(key, expected, other);
                }
            }
        }
        texts
    }
}

/// Returns the number, if it is whole and within the range.
pub(super) fn whole_number(value: &Value, range: &RangeInclusive<u64>) -> Option<u64> {
    let Value::Number(number) = value else { return None };
    let whole = *number as u64;
    (whole as f64 == *number && range.contains(&whole)).then_some(whole)
}

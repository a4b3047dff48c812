//! Bounded versions of Lua's string functions that can exceed any time limit.
//!
//! A time limit takes effect between two instructions of a script, and a call into C is one instruction:
//! `("a"):rep(3000):find((".-"):rep(8) .. "b")` takes years in it. `find`, `match`, `gmatch` and `gsub`
//! here match the same patterns (Lua 5.1 reference manual, 5.4.1) and count their steps; a call that
//! exceeds the limit is an error. `table.sort` always compares by a function in Lua, so that the time limit
//! also applies during a sort.

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value};

/// Most steps of a call: a constant, and more for each byte of the subject.
const STEPS: u64 = 1_000_000;
const STEPS_PER_BYTE: u64 = 64;

/// Most captures of a pattern, as in Lua.
const CAPTURES_MAX: usize = 32;

/// Most items of a pattern that wait for the rest to match, as in Lua.
const DEPTH_MAX: usize = 200;

const ESCAPE: u8 = b'%';

/// Lua function that raises errors as text, which a step's own error handler can show, from a function's
/// results: true and its values, or false and a message.
const WRAP: &str = "
    local work = ...
    local function answer(fine, first, ...)
      if not fine then error(first, 3) end
      return first, ...
    end
    return function(...) return answer(work(...)) end";

const SORT: &str = "
    local sort = ...
    local function less(a, b) return a < b end
    return function(list, before) return sort(list, before or less) end";

/// Puts the bounded functions into the libraries `string` and `table` of a script.
///
/// # Errors
/// The state has no memory left.
pub fn install(lua: &Lua, string: &Table, table: &Table) -> mlua::Result<()> {
    string.set("find", function(lua, |lua, arguments| search(lua, arguments, true))?)?;
    string.set("match", function(lua, |lua, arguments| search(lua, arguments, false))?)?;
    string.set("gmatch", function(lua, gmatch)?)?;
    // The name of `gmatch` in Lua 5.0.
    string.set("gfind", Value::Nil)?;
    string.set("gsub", function(lua, gsub)?)?;
    let sort: Function = table.get("sort")?;
    table.set("sort", lua.load(SORT).set_name("=turnpike").call::<Function>(sort)?)
}

/// Makes a function for scripts; its errors are reported at the line of its caller.
fn function<A: FromLuaMulti, R: IntoLuaMulti>(
    lua: &Lua,
    mut work: impl FnMut(&Lua, A) -> mlua::Result<R> + 'static,
) -> mlua::Result<Function> {
    let work = lua.create_function_mut(move |lua, arguments: MultiValue| {
        let result = A::from_lua_multi(arguments, lua).and_then(|arguments| work(lua, arguments));
        match result.and_then(|result| result.into_lua_multi(lua)) {
            Ok(mut values) => {
                values.push_front(Value::Boolean(true));
                Ok(values)
            }
            Err(error) => (false, message(&error)).into_lua_multi(lua),
        }
    })?;
    lua.load(WRAP).set_name("=turnpike").call(work)
}

fn message(error: &mlua::Error) -> String {
    match error {
        mlua::Error::RuntimeError(message) => message.clone(),
        other => other.to_string(),
    }
}

/// The arguments of `find` and `match`: subject, pattern, start position, and true for a plain pattern.
type Search = (LuaString, LuaString, Option<i64>, Option<bool>);

fn search(
    lua: &Lua,
    (subject, pattern, init, plain): Search,
    find: bool,
) -> mlua::Result<MultiValue> {
    let (text, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let (text, pattern): (&[u8], &[u8]) = (&text, &pattern);
    let start = start_of(init, text.len());
    let place =
        |start: usize, end: usize| [Value::Integer(start as i64 + 1), Value::Integer(end as i64)];
    if find && (plain == Some(true) || !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))) {
        let found = memchr::memmem::find(&text[start..], pattern);
        let found = found.map(|at| place(start + at, start + at + pattern.len()));
        return Ok(found.map_or_else(nothing, |found| found.into_iter().collect()));
    }
    let mut matcher = Matcher::new(text, pattern);
    let Some((start, end)) = matcher.first(start)? else { return Ok(nothing()) };
    let mut values = Vec::new();
    if find {
        values.extend(place(start, end));
    }
    matcher.push_captures(lua, start, end, !find, &mut values)?;
    Ok(values.into_iter().collect())
}

fn nothing() -> MultiValue {
    [Value::Nil].into_iter().collect()
}

/// Returns the start of a search: positions count from 1, negative ones from the end.
fn start_of(init: Option<i64>, length: usize) -> usize {
    let length = length as i64;
    let init = init.unwrap_or(1);
    let start = if init < 0 { (length + init).max(0) } else { (init - 1).max(0) };
    start.min(length) as usize
}

fn gmatch(lua: &Lua, (subject, pattern): (LuaString, LuaString)) -> mlua::Result<Function> {
    let mut next = 0;
    function(lua, move |lua, ()| {
        let (text, pattern) = (subject.as_bytes(), pattern.as_bytes());
        let (text, pattern): (&[u8], &[u8]) = (&text, &pattern);
        let mut matcher = Matcher::new(text, pattern);
        while next <= text.len() {
            let start = next;
            matcher.captures.clear();
            // A ^ is not an anchor here, which would prevent the iteration, but matches itself.
            let Some(end) = matcher.run(start, 0)? else {
                next += 1;
                continue;
            };
            // After an empty match the next one begins a byte further on.
            next = if end == start { end + 1 } else { end };
            let mut values = Vec::new();
            matcher.push_captures(lua, start, end, true, &mut values)?;
            return Ok(values.into_iter().collect::<MultiValue>());
        }
        Ok(nothing())
    })
}

/// The arguments of `gsub`: subject, pattern, replacement, and the maximum number of replacements.
type Substitute = (LuaString, LuaString, Value, Option<i64>);

fn gsub(lua: &Lua, (subject, pattern, by, most): Substitute) -> mlua::Result<(LuaString, i64)> {
    if !matches!(
        by,
        Value::String(_)
            | Value::Integer(_)
            | Value::Number(_)
            | Value::Table(_)
            | Value::Function(_)
    ) {
        let kind = by.type_name();
        return Err(mlua::Error::runtime(format!(
            "bad argument #3 to 'gsub' (string/function/table expected, got {kind})"
        )));
    }
    let (text, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let (text, pattern): (&[u8], &[u8]) = (&text, &pattern);
    let (anchored, most) = (pattern.first() == Some(&b'^'), most.unwrap_or(i64::MAX));
    let mut matcher = Matcher::new(text, pattern);
    let (mut result, mut at, mut count) = (Vec::with_capacity(text.len()), 0, 0);
    while count < most {
        let end = matcher.at(at)?;
        if let Some(end) = end {
            count += 1;
            matcher.substitute(lua, at, end, &by, &mut result)?;
        }
        match end {
            Some(end) if end > at => at = end,
            _ if at < text.len() => {
                result.push(text[at]);
                at += 1;
            }
            _ => break,
        }
        if anchored {
            break;
        }
    }
    result.extend(text.get(at..).unwrap_or_default());
    Ok((lua.create_string(result)?, count))
}

/// A capture: its start and its extent.
#[derive(Clone, Copy)]
struct Capture {
    start: usize,
    extent: Extent,
}

#[derive(Clone, Copy, PartialEq)]
enum Extent {
    /// The closing parenthesis has not been reached.
    Open,
    /// `()`: the value is the position.
    Position,
    Bytes(usize),
}

/// A match of a pattern against a subject.
struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<Capture>,
    depth: usize,
    steps: u64,
}

type Matched = mlua::Result<Option<usize>>;

fn malformed<T>(why: &str) -> mlua::Result<T> {
    Err(mlua::Error::runtime(format!("malformed pattern ({why})")))
}

impl<'a> Matcher<'a> {
    fn new(text: &'a [u8], pattern: &'a [u8]) -> Self {
        let steps = STEPS + STEPS_PER_BYTE * text.len() as u64;
        Self { text, pattern, captures: Vec::new(), depth: 0, steps }
    }

    /// Returns start and end of the first match from `start` on.
    fn first(&mut self, start: usize) -> mlua::Result<Option<(usize, usize)>> {
        let anchored = self.pattern.first() == Some(&b'^');
        for at in start..=self.text.len() {
            if let Some(end) = self.at(at)? {
                return Ok(Some((at, end)));
            }
            if anchored {
                break;
            }
        }
        Ok(None)
    }

    /// Returns the end of a match that begins at `at`.
    fn at(&mut self, at: usize) -> Matched {
        self.captures.clear();
        self.run(at, usize::from(self.pattern.first() == Some(&b'^')))
    }

    /// Counts one step of the call's limit.
    fn step(&mut self) -> mlua::Result<()> {
        match self.steps.checked_sub(1) {
            Some(left) => self.steps = left,
            None => {
                return Err(mlua::Error::runtime(format!(
                    "pattern \"{}\" takes too many steps on {} bytes; use fewer of - * + in it, or a \
                     shorter text",
                    String::from_utf8_lossy(self.pattern),
                    self.text.len()
                )));
            }
        }
        Ok(())
    }

    /// Matches the pattern from `p` on at `at`.
    fn run(&mut self, at: usize, p: usize) -> Matched {
        if self.depth == DEPTH_MAX {
            return Err(mlua::Error::runtime("pattern too complex"));
        }
        self.depth += 1;
        let matched = self.items(at, p);
        self.depth -= 1;
        matched
    }

    fn items(&mut self, mut at: usize, mut p: usize) -> Matched {
        loop {
            self.step()?;
            let Some(&item) = self.pattern.get(p) else { return Ok(Some(at)) };
            let next = self.pattern.get(p + 1).copied();
            match (item, next) {
                (b'(', Some(b')')) => return self.open(at, p + 2, Extent::Position),
                (b'(', _) => return self.open(at, p + 1, Extent::Open),
                (b')', _) => return self.close(at, p + 1),
                (b'$', None) => return Ok((at == self.text.len()).then_some(at)),
                (ESCAPE, Some(b'b')) => match self.balanced(at, p + 2)? {
                    Some(end) => (at, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (ESCAPE, Some(b'f')) => {
                    let set = p + 2;
                    if self.pattern.get(set) != Some(&b'[') {
                        return malformed("missing '[' after '%f'");
                    }
                    let end = self.class_end(set)?;
                    let before = if at == 0 { 0 } else { self.text[at - 1] };
                    let here = self.text.get(at).copied().unwrap_or(0);
                    if self.in_set(before, set, end - 1) || !self.in_set(here, set, end - 1) {
                        return Ok(None);
                    }
                    p = end;
                }
                (ESCAPE, Some(digit)) if digit.is_ascii_digit() => match self.back(at, digit)? {
                    Some(end) => (at, p) = (end, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.class_end(p)?;
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if self.single(at, p, end)
                                && let Some(end) = self.run(at + 1, end + 1)?
                            {
                                return Ok(Some(end));
                            }
                            p = end + 1;
                        }
                        Some(b'*') => return self.most(at, p, end, 0),
                        Some(b'+') => return self.most(at, p, end, 1),
                        Some(b'-') => return self.least(at, p, end),
                        _ if self.single(at, p, end) => (at, p) = (at + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// Matches as many as there are, at least `least`, then fewer until the rest matches.
    fn most(&mut self, at: usize, p: usize, end: usize, least: usize) -> Matched {
        let mut count = 0;
        while self.single(at + count, p, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if count < least {
                return Ok(None);
            }
            if let Some(end) = self.run(at + count, end + 1)? {
                return Ok(Some(end));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    /// Matches none, then more until the rest matches.
    fn least(&mut self, mut at: usize, p: usize, end: usize) -> Matched {
        loop {
            if let Some(end) = self.run(at, end + 1)? {
                return Ok(Some(end));
            }
            if !self.single(at, p, end) {
                return Ok(None);
            }
            at += 1;
        }
    }

    fn open(&mut self, at: usize, p: usize, extent: Extent) -> Matched {
        if self.captures.len() == CAPTURES_MAX {
            return Err(mlua::Error::runtime("too many captures"));
        }
        let level = self.captures.len();
        self.captures.push(Capture { start: at, extent });
        let matched = self.run(at, p)?;
        if matched.is_none() {
            self.captures.truncate(level);
        }
        Ok(matched)
    }

    fn close(&mut self, at: usize, p: usize) -> Matched {
        let open = self.captures.iter().rposition(|capture| capture.extent == Extent::Open);
        let Some(level) = open else {
            return Err(mlua::Error::runtime("invalid pattern capture"));
        };
        self.captures[level].extent = Extent::Bytes(at - self.captures[level].start);
        let matched = self.run(at, p)?;
        if matched.is_none() {
            self.captures[level].extent = Extent::Open;
        }
        Ok(matched)
    }

    /// `%1`: matches the bytes of a capture again.
    fn back(&mut self, at: usize, digit: u8) -> Matched {
        let level = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let (start, length) = match self.captures.get(level) {
            Some(&Capture { start, extent: Extent::Bytes(length) }) => (start, length),
            Some(Capture { extent: Extent::Position, .. }) => return Ok(None),
            _ => {
                let message = format!("invalid capture index %{}", level.wrapping_add(1));
                return Err(mlua::Error::runtime(message));
            }
        };
        self.steps = self.steps.saturating_sub(length as u64);
        let (captured, rest) = (&self.text[start..start + length], &self.text[at..]);
        Ok(rest.starts_with(captured).then_some(at + length))
    }

    /// `%bxy`, its two bytes at `p`: matches from an x to the y that balances it.
    fn balanced(&mut self, at: usize, p: usize) -> Matched {
        let (Some(&open), Some(&close)) = (self.pattern.get(p), self.pattern.get(p + 1)) else {
            return Err(mlua::Error::runtime("unbalanced pattern"));
        };
        if self.text.get(at) != Some(&open) {
            return Ok(None);
        }
        let mut level = 1;
        for end in at + 1..self.text.len() {
            self.step()?;
            let byte = self.text[end];
            if byte == close {
                level -= 1;
                if level == 0 {
                    return Ok(Some(end + 1));
                }
            } else if byte == open {
                level += 1;
            }
        }
        Ok(None)
    }

    /// Returns the end of the single-byte item at `p`.
    fn class_end(&self, p: usize) -> mlua::Result<usize> {
        match self.pattern[p] {
            ESCAPE if p + 1 >= self.pattern.len() => malformed("ends with '%'"),
            ESCAPE => Ok(p + 2),
            b'[' => {
                let mut at = p + 1;
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A bracket in the first position is one of the set.
                loop {
                    match self.pattern.get(at) {
                        None => return malformed("missing ']'"),
                        Some(&ESCAPE) if at + 1 < self.pattern.len() => at += 2,
                        Some(_) => at += 1,
                    }
                    match self.pattern.get(at) {
                        None => return malformed("missing ']'"),
                        Some(b']') => return Ok(at + 1),
                        Some(_) => {}
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Returns true if the item from `p` to `end` matches the byte at `at`.
    fn single(&self, at: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(at) else { return false };
        match self.pattern[p] {
            b'.' => true,
            ESCAPE => in_class(byte, self.pattern[p + 1]),
            b'[' => self.in_set(byte, p, end - 1),
            other => byte == other,
        }
    }

    /// Returns true if the byte is in the set whose brackets are at `open` and `close`.
    fn in_set(&self, byte: u8, open: usize, close: usize) -> bool {
        let inverted = self.pattern[open + 1] == b'^';
        let mut at = open + 1 + usize::from(inverted);
        while at < close {
            let item = self.pattern[at];
            if item == ESCAPE {
                if in_class(byte, self.pattern[at + 1]) {
                    return !inverted;
                }
                at += 2;
            } else if self.pattern[at + 1] == b'-' && at + 2 < close {
                if (item..=self.pattern[at + 2]).contains(&byte) {
                    return !inverted;
                }
                at += 3;
            } else {
                if byte == item {
                    return !inverted;
                }
                at += 1;
            }
        }
        inverted
    }

    /// Pushes the captures of a match, or the match itself if the pattern has no captures and `whole` is
    /// true.
    fn push_captures(
        &self,
        lua: &Lua,
        start: usize,
        end: usize,
        whole: bool,
        values: &mut Vec<Value>,
    ) -> mlua::Result<()> {
        if self.captures.is_empty() && whole {
            values.push(Value::String(lua.create_string(&self.text[start..end])?));
        }
        for level in 0..self.captures.len() {
            values.push(self.capture(lua, level)?);
        }
        Ok(())
    }

    fn capture(&self, lua: &Lua, level: usize) -> mlua::Result<Value> {
        let Capture { start, extent } = self.captures[level];
        match extent {
            Extent::Open => Err(mlua::Error::runtime("unfinished capture")),
            Extent::Position => Ok(Value::Integer(start as i64 + 1)),
            Extent::Bytes(length) => {
                Ok(Value::String(lua.create_string(&self.text[start..start + length])?))
            }
        }
    }

    /// Adds the replacement of the match to `result`.
    fn substitute(
        &self,
        lua: &Lua,
        start: usize,
        end: usize,
        by: &Value,
        result: &mut Vec<u8>,
    ) -> mlua::Result<()> {
        let whole = &self.text[start..end];
        let value = match by {
            Value::Table(table) => table.get::<Value>(self.first_capture(lua, whole)?)?,
            Value::Function(function) => {
                let mut captures = Vec::new();
                self.push_captures(lua, start, end, true, &mut captures)?;
                function.call(captures.into_iter().collect::<MultiValue>())?
            }
            text => {
                let text = lua.coerce_string(text.clone())?;
                return match text {
                    Some(text) => self.expand(lua, whole, &text.as_bytes(), result),
                    None => Ok(()),
                };
            }
        };
        match value {
            Value::Nil | Value::Boolean(false) => result.extend(whole),
            other => match lua.coerce_string(other.clone())? {
                Some(text) => result.extend(&*text.as_bytes()),
                None => {
                    let kind = other.type_name();
                    let message = format!("invalid replacement value (a {kind})");
                    return Err(mlua::Error::runtime(message));
                }
            },
        }
        Ok(())
    }

    fn first_capture(&self, lua: &Lua, whole: &[u8]) -> mlua::Result<Value> {
        if self.captures.is_empty() {
            return Ok(Value::String(lua.create_string(whole)?));
        }
        self.capture(lua, 0)
    }

    /// Expands a replacement in which `%1` stands for a capture and `%0` for the match.
    fn expand(
        &self,
        lua: &Lua,
        whole: &[u8],
        text: &[u8],
        result: &mut Vec<u8>,
    ) -> mlua::Result<()> {
        let mut bytes = text.iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != ESCAPE {
                result.push(byte);
                continue;
            }
            match bytes.next() {
                Some(b'0') => result.extend(whole),
                Some(b'1') if self.captures.is_empty() => result.extend(whole),
                Some(digit @ b'1'..=b'9') => {
                    let level = usize::from(digit - b'1');
                    if level >= self.captures.len() {
                        let message = format!("invalid capture index %{}", level + 1);
                        return Err(mlua::Error::runtime(message));
                    }
                    match self.capture(lua, level)? {
                        Value::String(text) => result.extend(&*text.as_bytes()),
                        other => result.extend(other.to_string()?.as_bytes()),
                    }
                }
                Some(other) => result.push(other),
                None => {}
            }
        }
        Ok(())
    }
}

/// Returns true if the byte is in the class of a letter, `%a` and so on; any other character matches
/// itself.
fn in_class(byte: u8, class: u8) -> bool {
    let found = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        // With the vertical tab, which Rust's function leaves out.
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    found != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with LuaJIT's functions as `original`, and ours in `string` and `table`.
    fn state() -> Lua {
        let lua = Lua::new();
        lua.load(
            "original = {}
             for name, value in pairs(string) do original[name] = value end",
        )
        .exec()
        .unwrap();
        let library = |name: &str| lua.globals().get::<Table>(name).unwrap();
        install(&lua, &library("string"), &library("table")).unwrap();
        lua
    }

    /// Compares a call with LuaJIT's own, errors included: `arguments` is Lua text.
    fn compare(lua: &Lua, function: &str, arguments: &str) {
        let code = format!(
            "local function run(library)
               if '{function}' == 'gmatch' then
                 local found = {{}}
                 for a, b, c in library.gmatch({arguments}) do
                   found[#found + 1] = tostring(a) .. ',' .. tostring(b) .. ',' .. tostring(c)
                 end
                 return table.concat(found, ';')
               end
               local values = {{ library.{function}({arguments}) }}
               for k = 1, 40 do values[k] = tostring(values[k]) end
               return table.concat(values, '|')
             end
             local ok, theirs = pcall(run, original)
             local fine, ours = pcall(run, string)
             if not ok and not fine then return '' end
             if ok ~= fine or theirs ~= ours then
               return ('LuaJIT: %s %s, here: %s %s'):format(tostring(ok), tostring(theirs), tostring(fine), tostring(ours))
             end
             return ''"
        );
        let difference: String = lua.load(code).eval().unwrap();
        assert_eq!(difference, "", "{function}({arguments})");
    }

    #[test]
    fn they_find_what_luajit_finds() {
        let lua = state();
        let cases = [
            r#""hello world", "o w""#,
            r#""hello", "l+""#,
            r#""hello", "(h)(.)%2?(l*)""#,
            r#""  key = value ", "^%s*(%w+)%s*=%s*(.-)%s*$""#,
            r#""a.b.c", ".", 2, true"#,
            r#""a.b.c", "%.", -2"#,
            r#""THE (quick) fox", "%((%a+)%)""#,
            r#""f(a(b)c)d", "%b()""#,
            r#""THE (quick) fox", "%f[%a]%a+%f[%A]""#,
            r#""abc", "()b()""#,
            r#""abcabc", "(abc)%1""#,
            r#""x]y", "[]]""#,
            r#""x^y-z", "[%^%-]""#,
            r#""a-z", "[a%-z]+""#,
            r#""09af", "[0-9a-f]+""#,
            r#""", "^$""#,
            r#""abc", "", 10"#,
            r#""abc", "c", 3"#,
            r#""abc", "[a""#,
            r#""abc", "%""#,
            r#""abc", "(a""#,
            r#""abc", "a)""#,
            r#""abc", "%1""#,
            r#""aXb", "%u""#,
            r#""\0a", "%z""#,
            r#"12345, "%d""#,
            r#""a\nb", "a.b""#,
            r#""aaab", "a-b""#,
            r#""aaa", "a?a?a?a""#,
        ];
        for case in cases {
            compare(&lua, "find", case);
            compare(&lua, "match", case);
            let two = case.rsplit_once(", ").filter(|(_, last)| !last.starts_with('"'));
            compare(&lua, "gmatch", two.map_or(case, |(rest, _)| rest.trim_end_matches(", 2")));
        }
    }

    #[test]
    fn they_replace_as_luajit_does() {
        let lua = state();
        for case in [
            r#""hello world", "o", "0""#,
            r#""hello world", "(o)", "<%1%0>""#,
            r#""hello", "", "-""#,
            r#""hello", "l", { l = "L" }"#,
            r#""hello", "l", function(c) return c .. c end"#,
            r#""hello", "l", function() return false end"#,
            r#""hello", "(h)(e)", "%2%1""#,
            r#""hello", "h", "%9""#,
            r#""hello", "l", "x", 1"#,
            r#""hello", "^h", "j""#,
            r#""abc", "%w", "%%%0""#,
            r#""abc def", "%f[%w]%w+", string.upper"#,
            r#""abc", "b", 7"#,
            r#""abc", "()b", "%1""#,
            r#""abc", "b", true"#,
            r#""abc", "b", function() return {} end"#,
        ] {
            compare(&lua, "gsub", case);
        }
    }

    /// Random patterns and texts of a few letters: the results equal LuaJIT's.
    #[test]
    fn by_chance_they_do_as_luajit() {
        let lua = state();
        let items = [
            "a", "b", ".", "%a", "[ab]", "[^a]", "(", ")", "()", "*", "+", "-", "?", "^", "$",
            "%1", "%b()", "%f[a]", "%", "[", "]",
        ];
        let mut seed = 1_u64;
        let mut chance = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        for _ in 0..3000 {
            let pattern: String = (0..chance(7)).map(|_| items[chance(items.len())]).collect();
            let text: String = (0..chance(9)).map(|_| ["a", "b", "(", ")"][chance(4)]).collect();
            let arguments = format!("\"{text}\", \"{pattern}\"");
            compare(&lua, "find", &arguments);
            compare(&lua, "gmatch", &arguments);
            compare(&lua, "gsub", &format!("{arguments}, \"<%0>\""));
        }
    }

    #[test]
    fn what_takes_too_long_is_an_error() {
        let lua = state();
        for code in [
            r#"return ("a"):rep(3000):find((".-"):rep(8) .. "b")"#,
            r#"return ("a"):rep(30000):match(("a*"):rep(12) .. "b")"#,
            r#"return ("a"):rep(30000):gsub((".-"):rep(8) .. "b", "")"#,
            r#"for _ in ("a"):rep(30000):gmatch((".-"):rep(8) .. "b") do end"#,
            r#"return ("("):rep(100000):gsub("%b()", "")"#,
        ] {
            let error = lua.load(code).exec().unwrap_err().to_string();
            assert!(error.contains("takes too many steps on"), "{code}: {error}");
        }
        let deep = r#"return ("a"):rep(1000):find(("a?"):rep(1000) .. "b")"#;
        assert!(lua.load(deep).exec().unwrap_err().to_string().contains("pattern too complex"));
        // A long text alone is allowed.
        let long = r#"return select(2, ("line of words\n"):rep(100000):gsub("[^\n]+", ""))"#;
        assert_eq!(lua.load(long).eval::<i64>().unwrap(), 100_000);
    }

    #[test]
    fn a_sort_compares_in_lua() {
        let lua = state();
        let code =
            "local t = {3, 1, 2} table.sort(t) table.sort(t, function(a, b) return a > b end)
                    return t[1] .. t[2] .. t[3]";
        assert_eq!(lua.load(code).eval::<String>().unwrap(), "321");
    }
}

//! Lines of keys in the script.
//!
//! Lua provides the line of a call, not of each key in the call's table. If the table is written in
//! place, a small lexer finds the key after the call; for any other table the line of the call is
//! used.

/// The text of a configuration, for the search of lines.
#[derive(Debug)]
pub(super) struct ScriptLines<'a> {
    lines: Vec<&'a str>,
}

#[derive(Debug, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    Open,
    Close,
    Equals,
    Other,
}

impl<'a> ScriptLines<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { lines: text.split('\n').collect() }
    }

    /// Returns the line of `key` in the table written at the call on line `call`, or `call` itself.
    pub(super) fn line_of(&self, call: usize, key: &str) -> usize {
        let mut depth = 0u32;
        let mut opened = call;
        let mut candidate = None;
        for (line, token) in self.tokens(call) {
            let named = candidate.take();
            if depth == 0 && line > call && token != Token::Open {
                return call;
            }
            match token {
                Token::Open => {
                    if depth == 0 {
                        opened = line;
                    }
                    depth += 1;
                }
                Token::Close => {
                    depth = depth.saturating_sub(1);
                    // Further tables are searched only on the line of the call itself.
                    if depth == 0 && (opened > call || line > call) {
                        return call;
                    }
                }
                Token::Name(name) if depth == 1 && name == key => candidate = Some(line),
                Token::Equals => {
                    if let Some(line) = named {
                        return line;
                    }
                }
                Token::Name(_) | Token::Other => {}
            }
        }
        call
    }

    /// Returns the tokens with their lines, from the start of line `first` on. A table usually ends after a few of them.
    fn tokens(&self, first: usize) -> impl Iterator<Item = (usize, Token<'a>)> {
        /// No table written by hand is longer; limits the cost of a wrong guess.
        const MOST_LINES: usize = 500;
        let start = first.saturating_sub(1);
        let mut lines = self.lines.iter().enumerate().skip(start).take(MOST_LINES);
        let (mut line, mut rest, mut open_bracket) = (first, "", None);
        std::iter::from_fn(move || {
            loop {
                if let Some(token) = token(&mut rest, &mut open_bracket) {
                    return Some((line, token));
                }
                let (index, &text) = lines.next()?;
                (line, rest) = (index + 1, text);
            }
        })
    }
}

/// Takes the next token of the rest of a line, in front of which a long bracket may be open.
fn token<'a>(rest: &mut &'a str, open_bracket: &mut Option<usize>) -> Option<Token<'a>> {
    while !rest.is_empty() {
        if let Some(level) = *open_bracket {
            let close = rest.find(&long_close(level));
            if close.is_some() {
                *open_bracket = None;
            }
            *rest = close.map_or("", |at| &rest[at + level + 2..]);
            continue;
        }
        let (token, length) = match lex(rest) {
            Lexed::Comment => (None, rest.len()),
            Lexed::Long { level, length } => {
                *open_bracket = Some(level);
                (None, length)
            }
            Lexed::Space(length) => (None, length),
            Lexed::Token(token, length) => (Some(token), length),
        };
        *rest = &rest[length..];
        if token.is_some() {
            return token;
        }
    }
    None
}

enum Lexed<'a> {
    Comment,
    Long { level: usize, length: usize },
    Space(usize),
    Token(Token<'a>, usize),
}

fn long_close(level: usize) -> String {
    format!("]{}]", "=".repeat(level))
}

/// Returns the level of a long bracket `[[`, `[=[`, … at the start of the text.
fn long_open(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('[')?;
    let level = inner.bytes().take_while(|&b| b == b'=').count();
    inner[level..].starts_with('[').then_some(level)
}

/// Returns the first token of a text that is not empty and not inside a long bracket.
fn lex(text: &str) -> Lexed<'_> {
    if let Some(comment) = text.strip_prefix("--") {
        return match long_open(comment) {
            Some(level) => Lexed::Long { level, length: level + 4 },
            None => Lexed::Comment,
        };
    }
    if let Some(level) = long_open(text) {
        return Lexed::Long { level, length: level + 2 };
    }
    let Some(first) = text.chars().next() else { return Lexed::Comment };
    let width = first.len_utf8();
    match first {
        '{' => Lexed::Token(Token::Open, width),
        '}' => Lexed::Token(Token::Close, width),
        '=' if text.starts_with("==") => Lexed::Token(Token::Other, 2),
        '=' => Lexed::Token(Token::Equals, width),
        '"' | '\'' => Lexed::Token(Token::Other, string_length(text, first)),
        c if c.is_ascii_alphabetic() || c == '_' => {
            let end =
                text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
            Lexed::Token(Token::Name(&text[..end]), end)
        }
        c if c.is_whitespace() => Lexed::Space(width),
        _ => Lexed::Token(Token::Other, width),
    }
}

/// Returns the length of a quoted string with its quotes; the rest of the line if it does not end.
fn string_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"local turnpike = require "turnpike"
turnpike.port "left" {   -- mtu = 3
  device = "a = {",  --[[ mtu
  mtu = 1 ]] address = { mtu = 2,
    "x" },
  mtu == 5,
  mtu = 1500,
}
turnpike.port "right" { device = "b" } turnpike.port "third" { mtu = 4 }
turnpike.port "fourth"
{
  mac = "x", [==[ } ]==],
  rx_queues = 2 }
turnpike.port(name, settings)
turnpike.port "sixth" { mtu = 9 }
"#;

    #[test]
    fn a_key_is_found_in_the_table_of_its_call() {
        let source = ScriptLines::new(TEXT);
        assert_eq!(source.line_of(2, "device"), 3);
        assert_eq!(source.line_of(2, "address"), 4);
        assert_eq!(source.line_of(2, "mtu"), 7);
        assert_eq!(source.line_of(9, "mtu"), 9);
        assert_eq!(source.line_of(10, "rx_queues"), 13);
    }

    #[test]
    fn a_key_that_is_not_written_there_gets_the_line_of_the_call() {
        let source = ScriptLines::new(TEXT);
        assert_eq!(source.line_of(2, "mac"), 2);
        assert_eq!(source.line_of(14, "mtu"), 14);
        assert_eq!(source.line_of(99, "mtu"), 99);
    }
}

//! Substitutions in the texts of scripts: `$x`, `${x-default}`, `$(HANDLER ARGS)`.
//!
//! They are made outside of quotes and within double quotes, not within single quotes. A variable that is not set stays as
//! it is written. The values of handlers are not known here: an expansion takes them, in their order, from the answers so
//! far, and ends at the first one that is missing. It begins anew when there is one answer more.

use crate::text::{first_word, quote};

/// Most handlers in handlers' arguments.
const DEEPEST: usize = 16;

/// Longest text, in bytes.
pub(super) const LONGEST: usize = 256 << 10;

/// A call of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `ELEMENT.HANDLER`, or `HANDLER` of the script or of the router.
    pub handler: String,
    /// Text for it.
    pub argument: String,
}

impl Call {
    /// The call that a text is.
    pub(super) fn of(text: &str) -> Self {
        let (handler, argument) = first_word(text);
        Self { handler: handler.to_owned(), argument: argument.to_owned() }
    }
}

/// The reason for which an expansion is not done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It needs the value of a handler.
    Needs(Call),
    /// The text is too long, or too deep.
    TooLong,
}

/// Returns true for a character of a variable's name.
pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Values of variables, and the answers of handlers that have not been used yet.
pub(super) struct Expander<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    pub(super) answers: std::slice::Iter<'a, String>,
}

impl Expander<'_> {
    /// Replaces what is to be substituted.
    pub(super) fn expand(&mut self, text: &str) -> Result<String, Stopped> {
        self.at_depth(text, 0)
    }

    fn at_depth(&mut self, text: &str, depth: usize) -> Result<String, Stopped> {
        if depth > DEEPEST {
            return Err(Stopped::TooLong);
        }
        let bytes = text.as_bytes();
        let (mut out, mut copied, mut at, mut open) = (String::new(), 0, 0, None);
        while at < bytes.len() {
            match bytes[at] {
                b'\\' if open == Some(b'"') => at += 1,
                mark @ (b'"' | b'\'') if open.is_none() || open == Some(mark) => {
                    open = if open.is_none() { Some(mark) } else { None };
                }
                b'$' if open != Some(b'\'') => {
                    if let Some((value, end)) = self.substitute(text, at, depth)? {
                        out.push_str(&text[copied..at]);
                        out.push_str(&within(value, open));
                        (copied, at) = (end, end - 1);
                    }
                }
                _ => {}
            }
            if out.len() > LONGEST {
                return Err(Stopped::TooLong);
            }
            at += 1;
        }
        out.push_str(text.get(copied..).unwrap_or_default());
        Ok(out)
    }

    /// The value of what begins at a `$`, and the place behind it.
    fn substitute(
        &mut self,
        text: &str,
        at: usize,
        depth: usize,
    ) -> Result<Option<(String, usize)>, Stopped> {
        let rest = &text[at + 1..];
        match rest.as_bytes().first() {
            Some(b'(') => {
                let Some(length) = parenthesis(rest) else { return Ok(None) };
                let call = Call::of(&self.at_depth(&rest[1..length], depth + 1)?);
                let value = self.answers.next().cloned().ok_or(Stopped::Needs(call))?;
                Ok(Some((value, at + length + 2)))
            }
            Some(b'{') => {
                let Some(length) = rest.find('}') else { return Ok(None) };
                let inside = rest[1..length].trim();
                let (name, default) = inside.split_once('-').unzip();
                let value = (self.variable)(name.unwrap_or(inside));
                let value = value.or(default.map(str::to_owned));
                Ok(value.map(|value| (value, at + length + 2)))
            }
            Some(b'?' | b'#') => Ok((self.variable)(&rest[..1]).map(|value| (value, at + 2))),
            _ => {
                let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                let value = if length > 0 { (self.variable)(&rest[..length]) } else { None };
                Ok(value.map(|value| (value, at + 1 + length)))
            }
        }
    }
}

/// The place of the parenthesis that closes the first one.
fn parenthesis(text: &str) -> Option<usize> {
    let (mut depth, mut open, mut escaped) = (0usize, None, false);
    for (at, mark) in text.char_indices() {
        match mark {
            _ if escaped => escaped = false,
            '\\' if open == Some('"') => escaped = true,
            '"' | '\'' if open.is_none() => open = Some(mark),
            _ if open == Some(mark) => open = None,
            '(' if open.is_none() => depth += 1,
            ')' if open.is_none() => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// A value that is put within double quotes must not end them.
fn within(value: String, open: Option<u8>) -> String {
    if open != Some(b'"') {
        return value;
    }
    let quoted = quote(value.as_bytes());
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(text: &str, answers: &[&str]) -> Result<String, Stopped> {
        let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
        let variable = |name: &str| match name {
            "x" => Some("1 2".to_owned()),
            "q" => Some("\"y\"".to_owned()),
            "?" => Some("0".to_owned()),
            "long" => Some("z".repeat(100_000)),
            _ => None,
        };
        Expander { variable: &variable, answers: answers.iter() }.expand(text)
    }

    #[test]
    fn variables_are_replaced_where_click_does() {
        for (text, expected) in [
            ("$x ${x}y $none ${none-3} ${none}", "1 2 1 2y $none 3 ${none}"),
            ("'$x' \"$x $q\" \"\\$x\" $?", "'$x' \"1 2 \\\"y\\\"\" \"\\$x\" 0"),
            ("$ $( ${ $é ä$x", "$ $( ${ $é ä1 2"),
            ("it's $x", "it's $x"),
        ] {
            assert_eq!(expand(text, &[]).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn handlers_are_asked_one_after_the_other() {
        let needs = |handler: &str, argument: &str| {
            Err(Stopped::Needs(Call { handler: handler.into(), argument: argument.into() }))
        };
        let text = "$(add $(c.count) $x) and $(f \")\")";
        assert_eq!(expand(text, &[]), needs("c.count", ""));
        assert_eq!(expand(text, &["7"]), needs("add", "7 1 2"));
        assert_eq!(expand(text, &["7", "10"]), needs("f", "\")\""));
        assert_eq!(expand(text, &["7", "10", "z"]).unwrap(), "10 and z");
    }

    #[test]
    fn texts_are_bounded() {
        assert_eq!(expand("$long$long$long$long", &[]), Err(Stopped::TooLong));
        let deep = format!("{}x{}", "$(".repeat(40), ")".repeat(40));
        assert_eq!(expand(&deep, &[]), Err(Stopped::TooLong));
    }
}

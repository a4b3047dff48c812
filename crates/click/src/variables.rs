//! Variables: `$a`, `${a}`, `${a-default}`, `${a[2]}`.
//!
//! A variable is replaced in configuration strings, inside of double quotes too, but not inside of single quotes or
//! comments. One that is not defined stays as written. The value of a variable may contain variables.

use std::cell::Cell;
use std::rc::Rc;

use crate::text;

/// Depth of variables in the values of variables.
const DEEPEST: usize = 10;

/// The bytes that an expansion may still produce or read: variables in variables can double with each.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<usize>,
}

impl Budget {
    pub fn new(bytes: usize) -> Budget {
        Budget { left: Cell::new(bytes) }
    }

    pub fn spend(&self, bytes: usize) {
        self.left.set(self.left.get().saturating_sub(bytes));
    }

    pub fn is_spent(&self) -> bool {
        self.left.get() == 0
    }
}

/// Values of variables in a compound element, and those of the compounds around its declaration.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    depth: usize,
    variables: Vec<(String, String)>,
    around: Option<Rc<Scope>>,
}

impl Scope {
    /// The scope of an element whose class was declared at a depth, used in a scope.
    pub fn declared_at(depth: usize, used_in: &Rc<Scope>) -> Scope {
        let mut around = Some(used_in.clone());
        while around.as_ref().is_some_and(|scope| scope.depth >= depth) {
            around = around.and_then(|scope| scope.around.clone());
        }
        Scope { depth, variables: Vec::new(), around }
    }

    pub fn define(&mut self, name: &str, value: String) {
        match self.variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name.to_owned(), value)),
        }
    }

    /// Replaces the variables of a text.
    pub fn expand(&self, text: &str, budget: &Budget) -> String {
        if !text.contains('$') {
            budget.spend(text.len());
            return text.to_owned();
        }
        let expander = Expander { scope: self, budget };
        expander.expand(text, 0)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let own = self.variables.iter().find(|(known, _)| known == name);
        match own {
            Some((_, value)) => Some(value),
            None => self.around.as_ref()?.value(name),
        }
    }
}

struct Expander<'s> {
    scope: &'s Scope,
    budget: &'s Budget,
}

/// A variable in a text.
struct Reference<'t> {
    name: &'t str,
    braces: bool,
    end: usize,
}

impl Expander<'_> {
    fn expand(&self, text: &str, depth: usize) -> String {
        let bytes = text.as_bytes();
        let (mut at, mut copied, mut quote) = (0, 0, None);
        let mut out = String::new();
        while at < bytes.len() && !self.budget.is_spent() {
            match bytes[at] {
                b'\\' if quote == Some(b'"') => at += 1,
                mark @ (b'"' | b'\'') => quote = toggled(quote, mark),
                b'/' if quote.is_none() && text::is_comment(bytes, at) => {
                    at = text::skip_comment(bytes, at) - 1;
                }
                b'$' if quote != Some(b'\'') && depth <= DEEPEST => {
                    if let Some((reference, value)) = self.reference(text, at, depth) {
                        out.push_str(&text[copied..at]);
                        out.push_str(&in_quotes(value, quote));
                        copied = reference;
                        at = reference - 1;
                    }
                }
                _ => {}
            }
            at += 1;
        }
        out.push_str(text.get(copied..).unwrap_or_default());
        self.budget.spend(text.len() + out.len());
        out
    }

    /// Position behind the variable at a position, and its value.
    fn reference(&self, text: &str, at: usize, depth: usize) -> Option<(usize, String)> {
        let Reference { name, braces, end } = reference(text, at)?;
        let inner;
        let name = if braces && name.contains('$') {
            inner = self.expand(name, depth + 1);
            &inner
        } else {
            name
        };
        let value = if braces { self.parameter(name, depth) } else { self.variable(name, depth) };
        Some((end, value?))
    }

    fn variable(&self, name: &str, depth: usize) -> Option<String> {
        self.scope.value(name).map(|value| self.expand(value, depth + 1))
    }

    /// `NAME`, `NAME[WORD]`, `NAME-DEFAULT`
    fn parameter(&self, text: &str, depth: usize) -> Option<String> {
        let text = text.trim_start();
        let length = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at(length);
        let (word, rest) = word_number(rest.trim_start());
        match (self.variable(name, depth), word) {
            (Some(value), Some(word)) => {
                Some(text::split_words(&value).get(word).copied().unwrap_or_default().to_owned())
            }
            (Some(value), None) => Some(value),
            (None, _) => rest.strip_prefix('-').map(|default| self.expand(default, depth + 1)),
        }
    }
}

/// `[2]`, and the text behind it.
fn word_number(text: &str) -> (Option<usize>, &str) {
    let bracket = text.strip_prefix('[').and_then(|inside| inside.split_once(']'));
    match bracket.and_then(|(number, rest)| Some((number.trim().parse().ok()?, rest))) {
        Some((number, rest)) => (Some(number), rest.trim_start()),
        None => (None, text),
    }
}

fn reference(text: &str, at: usize) -> Option<Reference<'_>> {
    let rest = &text[at + 1..];
    if let Some(inside) = rest.strip_prefix('{') {
        let length = inside.find('}')?;
        return Some(Reference { name: &inside[..length], braces: true, end: at + length + 3 });
    }
    let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    let name = (length > 0).then(|| &rest[..length])?;
    Some(Reference { name, braces: false, end: at + 1 + length })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn toggled(quote: Option<u8>, mark: u8) -> Option<u8> {
    match quote {
        None => Some(mark),
        Some(open) if open == mark => None,
        open => open,
    }
}

/// A value that is put inside of double quotes must not end them.
fn in_quotes(value: String, quote: Option<u8>) -> String {
    if quote != Some(b'"') {
        return value;
    }
    let quoted = text::quote(value.as_bytes());
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        let mut scope = Scope::default();
        scope.define("a", "1 2  3".into());
        scope.define("b", "<$a>".into());
        scope.define("q", "\"x\"".into());
        scope.expand(text, &Budget::new(1 << 20))
    }

    #[test]
    fn variables_are_replaced_outside_of_single_quotes_and_comments() {
        assert_eq!(expanded("$a, ${a}x $b"), "1 2  3, 1 2  3x <1 2  3>");
        assert_eq!(
            expanded("'$a' /* $a */ \"\\$a $q\" // $a"),
            "'$a' /* $a */ \"\\$a \\\"x\\\"\" // $a"
        );
        assert_eq!(expanded("$none ${none} ${none-$a} $ ${a"), "$none ${none} 1 2  3 $ ${a");
        assert_eq!(expanded("${a[1]}${a[7]} ${ a }"), "2 1 2  3");
    }

    #[test]
    fn doubling_variables_stop_at_the_budget() {
        let mut scope = Scope::default();
        for level in 0..40 {
            scope.define(&format!("v{level}"), format!("$v{0}$v{0}", level + 1).repeat(100));
        }
        let budget = Budget::new(1 << 20);
        assert!(scope.expand("$v0", &budget).len() < 1 << 22);
        assert!(budget.is_spent());
    }
}

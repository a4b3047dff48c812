//! A configuration without compound elements.

use std::borrow::Cow;
use std::{fmt, slice};

use crate::error::Place;
use crate::grammar::is_config;
use crate::text::{join_arguments, quote, split_arguments};

/// A configuration of primitive elements and connections between their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flat {
    /// Elements in the order in which Click numbers them.
    pub elements: Vec<Element>,
    /// Connections, sorted by the output's element and port, then by the input's; no two are equal.
    pub connections: Vec<Connection>,
    /// Packages that the configuration requires.
    pub requirements: Vec<Requirement>,
}

/// A primitive element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its name; parts of compound elements are `compound/part`, elements without a name `Class@N`.
    pub name: String,
    /// Its class, as written.
    pub class: String,
    /// Its arguments: the configuration string split at commas, without comments.
    pub arguments: Vec<String>,
    /// Its configuration string, with variables substituted.
    pub config: String,
    /// Its declaration.
    pub place: Place,
}

/// A connection from an output to an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Number of the element in [`Flat::elements`], and of its output.
    pub from: (usize, usize),
    /// Number of the element in [`Flat::elements`], and of its input.
    pub to: (usize, usize),
    /// The arrow.
    pub place: Place,
}

/// `require(package "name")`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// `package`, or `compact_config`.
    pub kind: String,
    /// Name of the package.
    pub value: String,
}

impl Flat {
    /// Number of the element with a name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.elements.iter().position(|element| element.name == name)
    }

    /// Connections from an element's outputs, in their order.
    pub fn outputs(&self, element: usize) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(move |connection| connection.from.0 == element)
    }

    /// Connections to an element's inputs.
    pub fn inputs(&self, element: usize) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(move |connection| connection.to.0 == element)
    }
}

/// Click text: all declarations, then the connections.
impl fmt::Display for Flat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for requirement in &self.requirements {
            writeln!(f, "require({});", requirement)?;
        }
        for element in &self.elements {
            writeln!(f, "{element};")?;
        }
        for connection in &self.connections {
            let ((from, output), (to, input)) = (connection.from, connection.to);
            let (from, to) = (&self.elements[from].name, &self.elements[to].name);
            writeln!(f, "{from} [{output}] -> [{input}] {to};")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() && self.kind != "package" {
            return write!(f, "{}", self.kind);
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if self.value.is_empty() || !self.value.chars().all(is_plain) {
            return write!(f, "{} {}", self.kind, quote(self.value.as_bytes()));
        }
        write!(f, "{} {}", self.kind, self.value)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} :: {}", self.name, self.class)?;
        if self.config.is_empty() { Ok(()) } else { write!(f, "({})", self.readable_config()) }
    }
}

impl Element {
    /// The configuration string, such that it is read as the same arguments. Without its comments, a quote or bracket may
    /// be left open; an argument with such a one is quoted.
    fn readable_config(&self) -> Cow<'_, str> {
        let is_read = |text: &str, arguments: &[String]| {
            is_config(text) && split_arguments(text) == arguments
        };
        if is_read(&self.config, &self.arguments) {
            return Cow::Borrowed(&self.config);
        }
        let readable = |argument: &String| {
            let stays = argument.is_empty() || is_read(argument, slice::from_ref(argument));
            if stays { argument.clone() } else { quote(argument.as_bytes()) }
        };
        let arguments: Vec<String> = self.arguments.iter().map(readable).collect();
        Cow::Owned(join_arguments(&arguments))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{flatten, parse};

    /// A configuration as it is printed; `None` if it is none.
    fn printed(text: &str) -> Option<String> {
        Some(flatten(&parse("f", text).ok()?, &[]).ok()?.to_string())
    }

    #[test]
    fn arguments_that_would_not_be_read_back_are_quoted() {
        for (config, expected) in [
            (" #", r##"m :: Message("#");"##),
            ("a, (1, \"#\" 2)", r##"m :: Message(a, (1, "#" 2));"##),
            ("'it''s', \\<61 62>", r"m :: Message('it''s', \<61 62>);"),
        ] {
            let once = printed(&format!("m :: Message({config});")).unwrap();
            assert_eq!(once.trim_end(), expected);
            assert_eq!(printed(&once), Some(once));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn what_is_printed_is_read_back(config in r#"[a1<>"'/*,()#$\\ \n\r-]{0,16}"#, value in r#"[a"'<>(/*]{0,3}"#) {
            let text = format!("define($a {value}); m :: Message({config});");
            if let Some(once) = printed(&text) {
                prop_assert_eq!(printed(&once), Some(once));
            }
        }
    }
}

//! A configuration without compound elements.

use std::fmt;

use crate::error::Place;

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
        if self.value.is_empty() {
            return write!(f, "{}", self.kind);
        }
        write!(f, "{} {}", self.kind, self.value)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} :: {}", self.name, self.class)?;
        if self.config.is_empty() { Ok(()) } else { write!(f, "({})", self.config) }
    }
}

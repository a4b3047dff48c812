//! The syntax of a configuration, as read.
//!
//! Positions (`at`) are bytes of the text. The same name may mean a class or an element here; `router.rs` decides.

use std::sync::Arc;

use crate::source::Source;

/// A configuration as written: declarations, connections and compound elements.
#[derive(Clone, Debug)]
pub struct Ast {
    pub(crate) source: Source,
    pub(crate) statements: Vec<Statement>,
}

#[derive(Clone, Debug)]
pub(crate) enum Statement {
    /// Declarations and connections.
    Chain(Chain),
    /// `elementclass NAME …`
    Class { at: usize, name: String, class: Class },
    /// `require(…)`
    Require(Config),
    /// `define(…)`
    Define(Config),
}

/// Elements with arrows between them.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub links: Vec<Link>,
}

/// Elements separated by commas, and the arrow before them.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub arrow: Option<Arrow>,
    pub members: Vec<Member>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrow {
    pub at: usize,
    /// `=>`, which connects many outputs with many inputs.
    pub wide: bool,
}

/// `[INPUTS] SUBJECT :: CLASS(CONFIG) [OUTPUTS]`
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub at: usize,
    pub inputs: Option<PortList>,
    pub subject: Subject,
    /// Shared by all names of `a, b :: Class`.
    pub class: Option<Arc<Class>>,
    pub config: Option<Config>,
    pub outputs: Option<PortList>,
}

#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// An element, or a class of which an element without a name is made.
    Name(String),
    /// `{ … }`
    Compound(Arc<Class>),
    /// `( … )`
    Group(Vec<Statement>),
    /// The pseudoelement `input` or `output` of an arrow that begins or ends a compound element or group.
    Implicit(&'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct PortList {
    pub ports: Vec<usize>,
    /// `[]` and `[0,]`: as many as the other side has.
    pub open: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Class {
    Name {
        at: usize,
        name: String,
    },
    Compound {
        at: usize,
        variants: Vec<Variant>,
        /// `|| ...`: earlier declarations of the class remain.
        extends: bool,
    },
}

/// One of the alternatives, separated by `||`, of a compound element.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub at: usize,
    pub parameters: Vec<Parameter>,
    pub statements: Vec<Statement>,
}

/// `$NAME` or `KEYWORD $NAME`
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub at: usize,
    pub keyword: String,
    pub name: String,
}

/// The text between parentheses.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub at: usize,
    pub text: String,
}

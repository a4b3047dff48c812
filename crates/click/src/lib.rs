//! The language of Click configurations.
//!
//! ```text
//! text --parse--> Ast --flatten--> Flat --resolve--> Processing
//!                                  |
//!                                  +-- Args: an element's arguments, by name and type
//!                                  +-- Classifier, IpClassifier: packet expressions
//!                                  +-- Script, Machine: instructions that read and write handlers
//! ```
//!
//! [`parse`] reads one file; [`flatten`] expands compound elements, and leaves primitive elements and connections
//! between their ports; [`resolve`] decides of each port if packets are pushed or pulled through it. Nothing here does
//! I/O or knows of steps.
//!
//! ```
//! let ast = click::parse("example.click", "InfiniteSource -> q :: Queue(10) -> Discard;")?;
//! let flat = click::flatten(&ast, &[])?;
//! assert_eq!(flat.elements[1].name, "q");
//! click::resolve(&flat)?;
//! # Ok::<(), click::Errors>(())
//! ```

#![forbid(unsafe_code)]

pub mod args;
mod arguments;
pub mod classes;
pub mod classifier;
mod decision;
mod error;
mod flat;
mod flatten;
mod grammar;
pub mod ip;
pub mod kinds;
pub mod names;
mod primitive;
mod processing;
mod router;
pub mod script;
mod source;
mod syntax;
pub mod text;
mod variables;

use std::fmt;

pub use error::{Error, Errors, Place};
pub use flat::{Connection, Element, Flat, Requirement};
pub use flatten::flatten;
pub use grammar::{LONGEST, parse};
pub use processing::resolve;
pub use syntax::Ast;

/// Direction of the packets at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The upstream element gives packets when it has them.
    Push,
    /// The downstream element takes packets when it wants them.
    Pull,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Flow::Push { "push" } else { "pull" })
    }
}

/// Ports of an element, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Direction of each input.
    pub inputs: Vec<Flow>,
    /// Direction of each output.
    pub outputs: Vec<Flow>,
}

/// Directions of all ports of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processing {
    /// Ports of each element of the [`Flat`], by its number.
    pub elements: Vec<Ports>,
}

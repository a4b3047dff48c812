//! The language of Click configurations.
//!
//! ```text
//! text --parse--> Ast --flatten--> Flat --resolve--> Processing
//!                                  |
//!                                  +-- Args: an element's arguments, by name and type
//!                                  +-- Classifier, IpClassifier: packet expressions
//! ```
//!
//! [`parse`] reads one file; [`flatten`] expands compound elements, and leaves primitive elements and connections
//! between their ports; [`resolve`] decides of each port if packets are pushed or pulled through it. Nothing here does
//! I/O or knows of steps.
//!
//! ```
//! let ast = click::parse("example.click", "InfiniteSource -> q :: Queue(10) -> Discard;")?;
//! let flat = click::flatten(&ast, &[])?;
//! assert_eq!(flat.elements[0].name, "q");
//! click::resolve(&flat)?;
//! # Ok::<(), click::Errors>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod flat;

pub use error::{Error, Errors, Place};
pub use flat::{Connection, Element, Flat, Requirement};

/// Direction of the packets at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The upstream element gives packets when it has them.
    Push,
    /// The downstream element takes packets when it wants them.
    Pull,
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

//! Click configurations as configurations of Turnpike.
//!
//! ```text
//!  text --click::parse, flatten, resolve--> elements and connections   (crate click)
//!    net       the same as a graph: the target of each output
//!    elements  an element of a class -> steps of the graph
//!    pull      queues and the schedulers behind them -> one step each
//!    graph     all elements behind FromDevice -> turnpike.new_graph, graph:path(…)
//!    router    the pattern of an IP router -> addresses, routes, neighbours: the default graph forwards
//!    handlers  each element with what it has become, and the sockets by which its handlers are called
//!    lua       statements, with the line of the Click file behind each
//! ```
//!
//! A Click packet's data begin anywhere: `Strip` and `EtherEncap` move the beginning. Here a frame stays where it is, and
//! the *place* of the data in it is computed along the paths when the configuration is converted ([`elements::State`]).
//! Steps get it as their argument `offset`. Only a packet that leaves by a port with its data elsewhere is moved.
//!
//! A configuration with the elements of an IP router around one routing table becomes no graph at all. Its table, its
//! `ARPQuerier`s and its `ARPResponder`s say what the addresses and the routes are; the rest of it is what the default
//! graph and the slow path do (see `router.rs`).

mod arguments;
mod elements;
mod graph;
mod handlers;
mod lua;
mod net;
mod pull;
mod router;

use ::click::script::{CLASSES, Script};
use ::click::{Error, Errors};

use lua::Statements;
use net::{Net, first_place};

/// Most elements of a configuration.
const ELEMENTS_MOST: usize = 4096;

/// A converted configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The configuration in Lua.
    pub lua: String,
    /// The line of the Click file behind each line of it.
    pub lines: Vec<Option<usize>>,
    /// Parts of the file without effect, and what applies instead.
    pub notes: Vec<String>,
}

/// Converts a configuration; `name` is the name of its file.
///
/// # Errors
/// Everything that is no Click, or that Turnpike does not support.
pub fn convert(name: &str, text: &str) -> Result<Converted, Errors> {
    let flat = click::flatten(&click::parse(name, text)?, &[])?;
    if flat.elements.len() > ELEMENTS_MOST {
        let message = format!("{} elements; at most {ELEMENTS_MOST}", flat.elements.len());
        return Err(Error::new(&first_place(&flat), message).into());
    }
    let processing = click::resolve(&flat)?;
    let mut net = Net::new(&flat)?;
    let mut statements = Statements::new(name);
    let is_router = router::is_one(&net);
    net.has_host_devices = !is_router;
    handlers::scripts(&net)?;
    let becomes = if is_router {
        router::convert(&net, &mut statements)?
    } else {
        graph::convert(&net, &mut statements)?
    };
    handlers::sockets(&net, &mut statements)?;
    handlers::elements(&net, &processing, &becomes, &mut statements);
    Ok(statements.finish())
}

/// Checks the arguments of an element, as far as they are a script.
///
/// # Errors
/// The first fault.
pub fn check_script(class: &str, config: &str) -> Result<(), String> {
    if CLASSES.contains(&class) { Script::parse(class, config).map(drop) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

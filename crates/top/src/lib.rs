//! `turnpike top`: a live view of a running router, for terminals.
//!
//! ```text
//!   thread "ask" ---- Sample ----+
//!   thread "keys" --- key -------+--> the loop of interactive.rs: App --> draw.rs --> terminal
//!   thread "signals" - signal ---+
//! ```
//!
//! `sample.rs` asks the router, over one connection. `view.rs` makes tables with rates of two samples, without any I/O;
//! `app.rs` has the state that keys change; `draw.rs` writes both into a buffer. `batch.rs` prints the same tables as
//! text.
//!
//! One question has all counters of one moment, with the router's own time; only flows are another, as there may be
//! millions. Interfaces, routes by VRF and flows are asked for only while they are shown. The next question waits for five
//! times as long as the answer took, so that the owner of a busy router is asked less often.
#![forbid(unsafe_code)]

mod app;
mod batch;
mod draw;
mod interactive;
mod sample;
mod screen;
mod table;
mod text;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

pub use view::Panel;

/// The router, and the way to show it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The router's socket.
    pub socket: PathBuf,
    /// Time between two samples.
    pub delay: Duration,
    /// Prints text in place of using the terminal.
    pub batch: bool,
    /// Ends after so many samples.
    pub count: Option<u64>,
    /// The first panel; in a batch the only one.
    pub panel: Option<Panel>,
}

/// Shows the router until the user quits or the count is reached.
///
/// # Errors
/// No router can be reached, or there is no terminal.
pub fn run(options: &Options) -> Result<ExitCode> {
    match options.batch {
        true => batch::run(options).map(|()| ExitCode::SUCCESS),
        false => interactive::run(options),
    }
}

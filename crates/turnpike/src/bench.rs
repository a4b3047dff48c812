//! `turnpike bench`: measures this machine's Turnpike, in ratios that hold on a noisy machine.

mod forward;
mod meter;
mod source;

use anyhow::Result;
use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Cycles per packet of the forwarding path above a bare receive-transmit loop
    Forward(forward::ForwardArgs),
}

/// Measures and prints.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Forward(args) => forward::run(args),
    }
}

//! `turnpike bench`: measures this machine's Turnpike, in ratios that hold on a noisy machine.

mod fib;
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
    /// Cycles per route lookup of our structures and DPDK's; memory, build and update times
    Fib(fib::FibArgs),
}

/// Measures and prints.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Forward(args) => forward::run(args),
        Bench::Fib(args) => fib::run(args),
    }
}

//! `turnpike bench`: measures Turnpike on this machine, in ratios that hold on a noisy machine. `turnpike generate`:
//! sends packets at a rate, as the benchmark of RFC 2544 does.
#![forbid(unsafe_code)]

mod fib;
mod filter;
mod forward;
mod generate;
mod meter;
mod mlr;
mod plot;
mod progress;
mod rfc2544;
mod source;
mod sync;
mod workload;

use std::io::{self, ErrorKind, Write};

use anyhow::Result;
use clap::Subcommand;

pub use generate::{GenerateArgs, run as generate};

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Cycles per packet of the forwarding path above a bare receive-transmit loop
    Forward(forward::ForwardArgs),
    /// Cycles per route lookup of our structures and DPDK's; memory, build and update times
    Fib(fib::FibArgs),
    /// Cycles to find a packet's rule in a filter, by our classifier, DPDK's rte_acl and tuple-space search
    Filter(filter::FilterArgs),
    /// Throughput, latency, loss and bursts of the whole router, by RFC 2544 and RFC 5180
    Rfc2544(rfc2544::Rfc2544Args),
    /// Methods of publishing a route to forwarders: their cost, and the time until all use it
    Sync(sync::SyncArgs),
    /// Draw a figure that an experiment wrote as JSON
    Plot(plot::PlotArgs),
}

/// Runs a benchmark and prints its result.
///
/// # Errors
/// The measurement fails, or its result cannot be written.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Forward(args) => forward::run(args),
        Bench::Fib(args) => fib::run(args),
        Bench::Filter(args) => filter::run(args),
        Bench::Rfc2544(args) => rfc2544::run(args),
        Bench::Sync(args) => sync::run(args),
        Bench::Plot(args) => plot::run(args),
    }
}

/// Prints a result. A reader that closes the output early is not an error.
fn print(text: &str) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

//! The Turnpike software router: `turnpike run`, `check`, `devices`, `bind`, `plan`, `apply`, `show`, `route`, `neighbour`,
//! `shell`, `generate-table`, `bench`.
#![forbid(unsafe_code)]

mod api;
mod bench;
mod bind;
mod commands;
mod doctor;
mod generate;
mod grace;
mod hold;
mod machine;
mod picture;
mod processor;
mod progress;
mod router;
mod shell;
mod table;
mod telnet;
#[cfg(test)]
mod testing;
mod workload;
mod wrap;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dataplane::catalogue::{Catalogue, Entry};

use crate::commands::bind::{BindArgs, DevicesArgs, UnbindArgs};
use crate::commands::doctor::DoctorArgs;
use crate::commands::hold::HoldArgs;
use crate::commands::run::RunArgs;
use crate::commands::{Console, RouterCommand};

/// A software router: packets by DPDK, routes by a Lua file, the kernel or FRR
#[derive(Debug, Parser)]
#[command(name = "turnpike", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the router that a configuration describes, until SIGTERM or Ctrl-C
    Run(RunArgs),
    /// Hold the host interfaces of a router that is killed until it is started again; `run` starts this by itself
    Hold(HoldArgs),
    /// Say whether a configuration is right, without touching any device
    Check {
        #[command(flatten)]
        source: commands::check::SourceArgs,
        /// Leave out what depends on this machine: cores, devices
        #[arg(long)]
        offline: bool,
    },
    /// Examine this machine for what slows a router down or keeps it from starting; exits with 1 if it
    /// warns, with 2 if it finds an error
    Doctor(DoctorArgs),
    /// List NICs: drivers, NUMA nodes, IOMMU groups, interfaces, links, users
    Devices(DevicesArgs),
    /// Bind NICs to a driver by which DPDK can have them
    Bind(BindArgs),
    /// Give a NIC back to the kernel's driver
    Unbind(UnbindArgs),
    #[command(flatten)]
    Router(RouterCommand),
    /// Type commands to a running router, one after the other
    Shell(shell::ShellArgs),
    /// Write a made-up table with realistic prefix lengths, one PREFIX<TAB>AS a line
    GenerateTable {
        /// Number of IPv4 prefixes
        ipv4: usize,
        /// The file; compressed if its name ends in .gz
        file: PathBuf,
        /// Number of IPv6 prefixes
        #[arg(long, default_value_t = 0)]
        ipv6: usize,
    },
    /// Send packets at a rate, and say what comes back of them
    Generate(generate::GenerateArgs),
    /// Measure
    #[command(subcommand)]
    Bench(bench::Bench),
}

/// The data plane, for steps of other crates.
pub use dataplane;

/// The program `turnpike` with further steps in its catalogue: a router of one's own is a `main` that
/// calls this. See `examples/rust-step`.
pub fn main_with(steps: impl IntoIterator<Item = Entry>) -> ExitCode {
    let mut catalogue = Catalogue::default();
    for step in steps {
        if let Err(error) = catalogue.add(step) {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    match processor::check().and_then(|()| execute(Cli::parse().command, &catalogue)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command, catalogue: &Catalogue) -> Result<ExitCode> {
    match command {
        Command::Run(args) => commands::run::run(&args, catalogue),
        Command::Hold(args) => commands::hold::hold(&args),
        Command::Check { source, offline } => {
            print(&commands::check::check(&source, offline, catalogue)?)
        }
        Command::Doctor(args) => {
            let (report, code) = commands::doctor::doctor(&args, catalogue)?;
            print(&report)?;
            return Ok(code);
        }
        Command::Devices(args) => print(&commands::bind::devices(&args)?),
        Command::Bind(args) => print(&commands::bind::bind(&args)?),
        Command::Unbind(args) => print(&commands::bind::unbind(&args)?),
        Command::Router(command) => return ask(&command),
        Command::Shell(args) => shell::shell(&args),
        Command::GenerateTable { ipv4, file, ipv6 } => {
            print(&commands::generate::generate(ipv4, ipv6, &file)?)
        }
        Command::Generate(args) => generate::run(&args),
        Command::Bench(bench) => bench::run(&bench),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn ask(command: &RouterCommand) -> Result<ExitCode> {
    let args = command.router();
    let out = &mut std::io::stdout().lock();
    match command.execute(&mut Console { socket: &args.socket, json: args.json, out }) {
        Err(error) if commands::is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        other => other,
    }
}

/// Prints a report. A reader that has seen enough (`show routes | head`) is not an error.
fn print(report: &str) -> Result<()> {
    use std::io::{ErrorKind, Write};
    match writeln!(std::io::stdout(), "{report}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

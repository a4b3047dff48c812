//! The Turnpike software router: `turnpike run`, `accelerate`, `check`, `devices`, `bind`, `plan`, `apply`, `show`,
//! `route`, `neighbour`, `top`, `shell`, `convert`, `generate-table`, `bench`.
#![forbid(unsafe_code)]

mod commands;
mod doctor;
mod picture;
mod processor;
mod shell;
mod table;
mod telnet;
mod usage;
mod wrap;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Error, Result, anyhow};
use clap::{CommandFactory, Parser, Subcommand};
use dataplane::catalogue::{Catalogue, StepSpec};
use router::Program;

use crate::commands::accelerate::AccelerateArgs;
use crate::commands::bind::{BindArgs, DevicesArgs, UnbindArgs};
use crate::commands::doctor::DoctorArgs;
use crate::commands::hold::HoldArgs;
use crate::commands::pages::PagesArgs;
use crate::commands::run::RunArgs;
use crate::commands::{Console, JsonError, RouterCommand};

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
    /// Accelerate the forwarding between kernel interfaces, which stay the kernel's, until SIGTERM or Ctrl-C
    Accelerate(AccelerateArgs),
    /// Keep the host interfaces of a router across its restart; started by `run`
    Hold(HoldArgs),
    /// Check a configuration without touching any device
    Check {
        #[command(flatten)]
        source: commands::check::SourceArgs,
        /// Skip checks of this machine: cores, devices
        #[arg(long)]
        offline: bool,
    },
    /// Check this machine for settings that slow a router down or prevent its start; exits with 1 for warnings, with 2
    /// for errors
    Doctor(DoctorArgs),
    /// List NICs: driver, NUMA node, IOMMU group, interface, link, user
    Devices(DevicesArgs),
    /// Bind NICs to a driver that DPDK can use
    Bind(BindArgs),
    /// Return NICs to their kernel drivers
    Unbind(UnbindArgs),
    #[command(flatten)]
    Router(RouterCommand),
    /// Take the traffic off a running router: its routing daemon announces graceful shutdown and, once traffic has left,
    /// withdraws all routes
    Drain(commands::drain::DrainArgs),
    /// Give a drained router its traffic back
    Undrain(commands::drain::UndrainArgs),
    /// Copy packets of a running router into a pcapng file or a pipe, with the reason for which they were dropped
    Capture(commands::capture::CaptureArgs),
    /// Answer Wireshark, which starts this as an extcap program: interfaces of a running router, and their packets
    Extcap(commands::extcap::ExtcapArgs),
    /// Make a request to the API of a running router over HTTP, or print it for curl
    Api(commands::api::ApiArgs),
    /// Show the load, rates, drops, flows and routes of a running router, live
    Top(commands::top::TopArgs),
    /// Open a shell on a running router
    Shell(shell::ShellArgs),
    /// Convert rules of nftables or iptables to filters, or a configuration of Click; reports each rule that it leaves
    /// out and then exits with 1, or with 2 if the file cannot be read
    #[command(subcommand)]
    Convert(commands::convert::Convert),
    /// Print the configuration language as annotations for lua-language-server, by which editors complete and explain
    /// it, or write them beside configurations
    Annotations(commands::annotations::AnnotationsArgs),
    /// Generate a route table with realistic prefix lengths, one PREFIX<TAB>AS a line
    GenerateTable {
        /// Number of IPv4 prefixes
        ipv4: usize,
        /// The file; compressed if its name ends in .gz
        file: PathBuf,
        /// Number of IPv6 prefixes
        #[arg(long, default_value_t = 0)]
        ipv6: usize,
    },
    /// Send packets at a rate; report loss, delay and reordering
    Generate(bench::GenerateArgs),
    /// Run a benchmark
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Write manual pages and completions for shells, for a package
    #[command(hide = true)]
    Pages(PagesArgs),
}

/// The data plane, for steps of other crates.
pub use dataplane;

/// Runs the program `turnpike` with additional steps in its catalogue: a custom router is a `main`
/// that calls this. See `examples/rust-step`.
pub fn main_with(steps: impl IntoIterator<Item = StepSpec>) -> ExitCode {
    let mut catalogue = Catalogue::default();
    for step in steps {
        if let Err(error) = catalogue.add(step) {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    dpdk::log::listen(log_dpdk);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let program = Program { catalogue, commands: shell::engine::built_in(), telnet: telnet::open };
    match processor::check().and_then(|()| execute(cli.command, &program)) {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Passes DPDK's messages to the log if there is one.
fn log_dpdk(line: &str) {
    match tracing::dispatcher::has_been_set() {
        true => tracing::warn!("DPDK: {line}"),
        false => eprintln!("DPDK: {line}"),
    }
}

/// Reports errors of the command line; or shows the requested help.
fn refuse(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let mut root = Cli::command();
    root.build();
    let words: Vec<_> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    report(&anyhow!("{}", usage::said(error, &root, &words)));
    ExitCode::from(2)
}

/// Prints an error: on standard output if JSON was requested.
fn report(error: &Error) {
    let json = std::env::args_os().any(|word| word == "--json");
    let printed = match error.downcast_ref::<JsonError>() {
        Some(error) => print(&error.to_string()),
        None if json => print(&JsonError::of(&as_root(error)).to_string()),
        None => {
            eprintln!("{:#}", as_root(error));
            Ok(())
        }
    };
    // A failure of this cannot be reported.
    drop(printed);
}

/// Adds the advice to be root to the error, if the kernel refused an operation to this user.
fn as_root(error: &Error) -> Error {
    const REFUSALS: [&str; 2] = ["Permission denied", "Operation not permitted"];
    let text = format!("{error:#}");
    // Some causes are available as text only.
    let refused = REFUSALS.iter().any(|refusal| text.contains(refusal));
    let user = nix::unistd::geteuid();
    if !refused || user.is_root() || text.contains("as root") {
        return anyhow!("{text}");
    }
    anyhow!("{text}\nuser {user} may not do that; run it as root (sudo)")
}

fn execute(command: Command, program: &Program) -> Result<ExitCode> {
    match command {
        Command::Run(args) => commands::run::run(&args, program),
        Command::Accelerate(args) => commands::accelerate::accelerate(&args, program),
        Command::Hold(args) => commands::hold::hold(&args),
        Command::Check { source, offline } => {
            let (report, code) = commands::check::check(&source, offline, program)?;
            print(&report)?;
            return Ok(code);
        }
        Command::Doctor(args) => {
            let (report, code) = commands::doctor::doctor(&args, program)?;
            print(&report)?;
            return Ok(code);
        }
        Command::Devices(args) => print(&commands::bind::devices(&args)?),
        Command::Bind(args) => print(&commands::bind::bind(&args)?),
        Command::Unbind(args) => print(&commands::bind::unbind(&args)?),
        Command::Router(command) => return ask(&command),
        Command::Drain(args) => return commands::drain::drain(&args),
        Command::Undrain(args) => return commands::drain::undrain(&args),
        Command::Capture(args) => commands::capture::run(&args),
        Command::Extcap(args) => commands::extcap::run(&args),
        Command::Api(args) => match commands::api::run(&args) {
            Err(error) if commands::is_broken_pipe(&error) => Ok(()),
            other => other,
        },
        Command::Top(args) => return commands::top::run(args),
        Command::Shell(args) => shell::shell(&args),
        Command::Convert(convert) => return commands::convert::convert(&convert),
        Command::Annotations(args) => print(&commands::annotations::annotations(&args)?),
        Command::GenerateTable { ipv4, file, ipv6 } => {
            print(&commands::generate::generate(ipv4, ipv6, &file)?)
        }
        Command::Generate(args) => bench::generate(&args),
        Command::Bench(bench) => bench::run(&bench),
        Command::Pages(args) => commands::pages::pages(&args, &Cli::command()),
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

/// Prints a report. A reader that closes the output early (`show routes | head`) is not an error.
pub(crate) fn print(report: &str) -> Result<()> {
    use std::io::{ErrorKind, Write};
    match writeln!(std::io::stdout(), "{report}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

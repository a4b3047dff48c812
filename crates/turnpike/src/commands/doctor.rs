//! `turnpike doctor`: examines the machine for a configuration, without changing anything.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use control::config::{self, Acceleration, Config, Limits, Strictness};
use control::netlink::inventory::interfaces;
use control::netlink::netdev;
use kernel_rules::Kind;
use machine::bind::Binder;
use machine::{Machine, cores};
use router::acceleration::rules_options;
use router::{ConfigSource, Program};

use super::accelerate::with_others;
use super::check::LanguageArgs;
use crate::doctor::{DpdkVersions, Patient, Wanted, accelerate, examine, text};

/// The configuration to examine the machine for, and the form of the report.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DoctorArgs {
    #[command(subcommand)]
    subject: Option<Subject>,
    /// The configuration that is to run; a router with two ports unless given
    file: Option<PathBuf>,
    #[command(flatten)]
    language: LanguageArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Subjects of reports of their own.
#[derive(Debug, Subcommand)]
enum Subject {
    /// Examine interfaces that the kernel forwards between: packets that acceleration would take, those that stay with
    /// the kernel, and rules of the kernel for which it is refused
    Accelerate(AccelerateArgs),
}

/// The interfaces to be accelerated.
#[derive(Debug, Args)]
struct AccelerateArgs {
    /// Interfaces of this network namespace
    #[arg(required = true)]
    interfaces: Vec<String>,
    /// Kinds of rules that accelerated packets may bypass: nftables, iptables, nat, tc, rules, xfrm, …
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    bypass: Vec<Kind>,
    /// Look at the packets that they receive for so many seconds, to tell the share that would be taken
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    sample: Option<u64>,
    /// For forwarding by XDP programs in the kernel
    #[arg(long)]
    in_kernel: bool,
    /// For the acceleration of established flows only, as the kernel's connection tracking knows them
    #[arg(long, conflicts_with = "in_kernel")]
    flows: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A router with two ports, without further details.
const TWO_PORTS: &str = r#"
local turnpike = require "turnpike"
turnpike.port "one" { device = "net_null0" }
turnpike.port "two" { device = "net_null1" }
"#;

/// Returns the report, and the exit status: 2 with an error, 1 with a warning, else 0.
pub fn doctor(args: &DoctorArgs, program: &Program) -> Result<(String, ExitCode)> {
    if let Some(Subject::Accelerate(args)) = &args.subject {
        return of_acceleration(args);
    }
    let wanted = wanted(args, program)?;
    let machine = Machine::here();
    let patient = Patient {
        machine: &machine,
        cpus: machine.cpus(),
        wanted: &wanted,
        dpdk: DpdkVersions { built: dpdk::version_built(), running: dpdk::version() },
        xdp: &netdev::xdp,
    };
    let report = examine(&patient);
    let status = ExitCode::from(report.exit_status());
    let report = if args.json { serde_json::to_string_pretty(&report)? } else { text(&report) };
    Ok((report, status))
}

fn of_acceleration(args: &AccelerateArgs) -> Result<(String, ExitCode)> {
    let AccelerateArgs { in_kernel, flows, .. } = *args;
    let bypass = args.bypass.iter().copied().collect();
    let wanted = Acceleration { bypass, in_kernel, flows, ..Acceleration::default() };
    let names = with_others(&args.interfaces, &wanted, &interfaces()?);
    let inspection = kernel_rules::inspect(&names, &rules_options(&wanted))?;
    let (machine, sample) = (Machine::here(), args.sample.map(Duration::from_secs));
    let wanted = (&args.interfaces[..], in_kernel);
    let report = accelerate::examine(&machine, &netdev::xdp, wanted, &inspection, sample);
    let status = ExitCode::from(report.exit_status());
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)?,
        false => accelerate::text(&report),
    };
    Ok((text, status))
}

/// Returns the router's needs; a faulty file is reported like other problems.
fn wanted(args: &DoctorArgs, program: &Program) -> Result<Wanted> {
    let Some(file) = &args.file else { return without_file(program) };
    let source = ConfigSource { file: file.clone(), language: args.language.language() };
    let wanted = source.load(program).and_then(|(mut config, _)| {
        let resolved = Binder::here().resolve(&mut config);
        let vdevs = router::virtual_drivers(&config);
        let problems = config::check_machine(&config, vdevs, Strictness::New)
            .err()
            .map_or_else(Vec::new, |errors| errors.0);
        let problems = problems.iter().map(ToString::to_string);
        let problems = problems.chain(resolved.err().map(|error| error.to_string())).collect();
        Ok(Wanted { problems, ..of(&config)? })
    });
    wanted.or_else(|error| {
        let problems = vec![format!("{error:#}")];
        Ok(Wanted { file: Some(file.clone()), problems, ..without_file(program)? })
    })
}

fn without_file(program: &Program) -> Result<Wanted> {
    let config =
        config::parse(Path::new("doctor"), TWO_PORTS, Limits::default(), &program.catalogue);
    let config = config.map_err(|errors| anyhow!("{errors}"))?;
    Ok(Wanted { file: None, ports: Vec::new(), ..of(&config)? })
}

fn of(config: &Config) -> Result<Wanted> {
    let cores = cores::place(config)?.forward;
    Ok(Wanted::of(config, &cores, router::packet_memory(config, &cores)))
}

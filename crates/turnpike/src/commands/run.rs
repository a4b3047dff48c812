//! `turnpike run`: starts the router and keeps it running.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Error, Result, anyhow};
use api::DEFAULT_SOCKET;
use clap::Args;
use control::config::{self, Config, ConfigErrors, Device, Strictness};
use machine::bind::Binder;
use nix::errno::Errno;
use nix::sys::signal::SigSet;
use router::archive::{self, Claim, LastGood};
use router::hold;
use router::log;
use router::{Program, RunSettings};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::check::SourceArgs;

/// Options of `turnpike run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Path of the socket for `turnpike show`
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
    /// Seconds for which host interfaces are held after the router was killed, so that a new one
    /// takes them over with their carrier; 0: not held
    #[arg(long, default_value_t = hold::SECONDS, value_name = "SECONDS")]
    hold: u64,
    /// Keep configurations in this directory: the history survives a restart, and a start that fails is repeated with
    /// the last configuration that worked
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
    /// Start with the last good configuration of the directory; the reason for which the file is refused
    #[arg(long, hide = true, requires = "state")]
    refused: Option<String>,
}

/// Longest reason that is passed to the repeated start, in characters.
const REASON_MOST: usize = 4000;

/// Runs until a signal; an error is the reason why the router did not start or did not end cleanly. With a state
/// directory, a start that fails is repeated in this process with the last good configuration.
pub fn run(args: &RunArgs, program: &Program) -> Result<()> {
    let Some(directory) = &args.state else { return start(args, None, program) };
    let cores = sched_getaffinity(None)?;
    let claim = Claim::new(directory)?;
    let before = claim.last_good();
    let Err(error) = start(args, Some(claim), program) else { return Ok(()) };
    if let Some(refused) = &args.refused {
        return Err(error.context(format!(
            "the last good configuration is refused, too (the file: {refused})"
        )));
    }
    // If this start got as far, or has the same text, there is nothing else to start with.
    let after = archive::last_good(directory);
    let is_same = |good: &LastGood| {
        fs::read(&args.source.file).is_ok_and(|text| text == good.text.as_bytes())
    };
    match after {
        Some(good) if before.as_ref() == Some(&good) && !is_same(&good) => {
            Err(repeat(&format!("{error:#}"), &cores))
        }
        _ => Err(error),
    }
}

/// Replaces this process by a start with the last good configuration; returns only if it cannot.
fn repeat(reason: &str, cores: &CpuSet) -> Error {
    let reason: String = reason.chars().take(REASON_MOST).collect();
    let exec = || -> Result<Infallible> {
        // What the start did to this thread, the next one inherits.
        sched_setaffinity(None, cores)?;
        SigSet::empty().thread_set_mask()?;
        let mut words = env::args_os();
        let mut command = Command::new(env::current_exe()?);
        command.arg0(words.next().unwrap_or_default());
        Err(command.args(words).arg("--refused").arg(&reason).exec().into())
    };
    match exec() {
        Ok(never) => match never {},
        Err(error) => anyhow!("{reason}\nno start with the last good configuration: {error:#}"),
    }
}

/// Returns the configuration of the file, or the last good one if the file is refused, and warnings.
fn load(args: &RunArgs, state: Option<&Claim>, program: &Program) -> Result<(Config, Vec<String>)> {
    let Some(refused) = &args.refused else { return args.source.source().load(program) };
    let good = state.and_then(Claim::last_good);
    let good = good.context("there is no last good configuration")?;
    let (number, file) = (good.number, &args.source.file);
    let warning = format!(
        "the last good configuration, number {number}, is used in place of {}, which is refused: {refused}",
        file.display()
    );
    Ok((program.parse(&good.file, &good.text)?, vec![warning]))
}

/// Runs until a signal; an error is the reason why the router did not start or did not end cleanly.
fn start(args: &RunArgs, state: Option<Claim>, program: &Program) -> Result<()> {
    let source = args.source.source();
    let (mut config, warnings) = load(args, state.as_ref(), program)?;
    let binder = Binder::here();
    binder.resolve(&mut config)?;
    log::start(config.log.level);
    binder.give_back_left(&config);
    let devices = devices(&config);
    let vdevs = router::virtual_drivers(&config);
    let checked = config::check_machine(&config, vdevs, Strictness::Known);
    checked.map_err(|errors| match names_core(&errors, &config) {
        true => point_to_doctor(anyhow!("{errors}"), &args.source),
        false => anyhow!("{errors}"),
    })?;
    binder.check(&config, None).map_err(|error| point_to_doctor(error, &args.source))?;
    router::quarantine::examine(&config.quarantine.directory)?;
    let file = config.file.display();
    warnings
        .into_iter()
        .chain(binder.taken_over(&config))
        .for_each(|warning| tracing::warn!("{file}: {warning}"));
    config.doubts().iter().for_each(|doubt| tracing::warn!("{doubt}"));
    let no_huge = args.no_huge || config.memory.no_huge;
    let settings = RunSettings { no_huge, hold: args.hold, state, refused: args.refused.clone() };
    router::run(config, &source, program, &args.socket, settings).map_err(|error| {
        let of_machine = error.chain().any(|cause| is_of_machine(cause, &devices));
        if of_machine { point_to_doctor(error, &args.source) } else { error }
    })
}

/// The ports' devices by the ports' names.
type Devices = BTreeMap<String, Device>;

fn devices(config: &Config) -> Devices {
    config.ports.iter().map(|port| (port.name.clone(), port.device.clone())).collect()
}

/// Returns true if one of the errors is about a core.
fn names_core(errors: &ConfigErrors, config: &Config) -> bool {
    let lines = [config.cores.forward_line, config.cores.control_line];
    errors.0.iter().any(|error| error.line.is_some() && lines.contains(&error.line))
}

/// Returns true if the machine's set-up is the likely cause: its memory, a limit, the IOMMU, a
/// device's driver.
fn is_of_machine(error: &(dyn std::error::Error + 'static), devices: &Devices) -> bool {
    use dpdk::Error;
    const REFUSED: [Errno; 3] = [Errno::EPERM, Errno::EACCES, Errno::ENOMEM];
    match error.downcast_ref::<Error>() {
        Some(
            Error::EalInit { .. }
            | Error::PhysicalMemory { .. }
            | Error::Memory { .. }
            | Error::NoSuchCore { .. },
        ) => true,
        Some(Error::Port { port, errno, .. }) => match devices.get(port) {
            Some(Device::Pci(_)) => true,
            Some(Device::Kernel(_)) => REFUSED.contains(errno),
            // DPDK refuses invalid arguments of virtual devices with the same error numbers.
            Some(Device::Vdev(_)) | None => false,
        },
        _ => false,
    }
}

/// Adds a line to the error that points to `turnpike doctor`.
fn point_to_doctor(error: Error, source: &SourceArgs) -> Error {
    let option = source.language.option();
    anyhow!("{error:#}\nrun: turnpike doctor {option}{}", source.file.display())
}

#[cfg(test)]
mod tests {
    use dpdk::Error::{EalInit, Port, PortConfig};

    use super::super::check::LanguageArgs;
    use super::*;

    fn port(port: &str, errno: Errno) -> dpdk::Error {
        Port { port: port.to_owned(), step: "starting".to_owned(), errno }
    }

    #[test]
    fn errors_of_the_machine_point_to_the_doctor() {
        let devices = [
            ("wan", Device::Pci("0000:03:00.0".to_owned())),
            ("lan", Device::Kernel("eth1".to_owned())),
            ("tap", Device::Vdev("net_tap0".to_owned())),
        ];
        let devices = devices.map(|(name, device)| (name.to_owned(), device)).into();
        let of_machine = |error: dpdk::Error| is_of_machine(&error, &devices);
        assert!(of_machine(EalInit {
            memory: "none".to_owned(),
            errno: Errno::EINVAL,
            said: Vec::new(),
        }));
        assert!(of_machine(port("wan", Errno::ENODEV)) && of_machine(port("lan", Errno::EPERM)));
        assert!(!of_machine(port("lan", Errno::ENODEV)) && !of_machine(port("tap", Errno::EPERM)));
        assert!(!of_machine(PortConfig { port: "wan".to_owned(), problem: "MTU".to_owned() }));
        assert!(!is_of_machine(&std::io::Error::from_raw_os_error(Errno::EPERM as i32), &devices));
    }

    #[test]
    fn the_error_stays_and_a_line_follows() {
        let source = |moonroute, click| {
            let language = LanguageArgs { moonroute, click };
            SourceArgs { file: "r.conf".into(), language }
        };
        let error = |moonroute, click| {
            let error = anyhow!("core").context("port");
            point_to_doctor(error, &source(moonroute, click)).to_string()
        };
        assert_eq!(error(false, false), "port: core\nrun: turnpike doctor r.conf");
        assert_eq!(error(true, false), "port: core\nrun: turnpike doctor --moonroute r.conf");
        assert_eq!(error(false, true), "port: core\nrun: turnpike doctor --click r.conf");
    }
}

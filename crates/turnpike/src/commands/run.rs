//! `turnpike run`: starts the router and keeps it running.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow};
use api::DEFAULT_SOCKET;
use clap::Args;
use control::config::{self, Config, ConfigErrors, Device, Strictness};
use machine::bind::Binder;
use nix::errno::Errno;
use router::archive::{Claim, LastGood};
use router::hold;
use router::log;
use router::{ConfigSource, Program, RunSettings};

use super::accelerate;
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
    /// Keep configurations in this directory: the history survives a restart, and the last configuration that worked
    /// takes the place of a file that is refused
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
}

/// A configuration that this machine can run, as far as can be seen before DPDK begins.
struct Chosen {
    config: Config,
    warnings: Vec<String>,
    /// The reason for which it is not the file's.
    refused: Option<String>,
}

/// Runs until a signal; an error is the reason why the router did not start or did not end cleanly.
pub fn run(args: &RunArgs, program: &Program) -> Result<()> {
    log::start();
    let file = &args.source.file;
    let state = args.state.as_ref().map(|directory| Claim::new(directory, file)).transpose()?;
    let Chosen { config, warnings, refused } = choose(args, state.as_ref(), program)?;
    let shown = config.file.display();
    warnings.iter().for_each(|warning| tracing::warn!("{shown}: {warning}"));
    config.doubts().iter().for_each(|doubt| tracing::warn!("{doubt}"));
    let no_huge = args.no_huge || config.memory.no_huge;
    let settings = RunSettings { no_huge, hold: args.hold, state, refused };
    let devices = devices(&config);
    router::run(config, &args.source.source(), program, &args.socket, settings).map_err(|error| {
        let of_machine = error.chain().any(|cause| is_of_machine(cause, &devices));
        if of_machine { point_to_doctor(error, &args.source) } else { error }
    })
}

/// [`run`] with a configuration that has no file.
pub fn run_config(
    config: Config,
    source: &ConfigSource,
    program: &Program,
    socket: &Path,
    no_huge: bool,
) -> Result<()> {
    let config = examined(config, |errors, _| anyhow!("{errors}"))?;
    let no_huge = no_huge || config.memory.no_huge;
    // There are no host interfaces to be held.
    let settings = RunSettings { no_huge, hold: 0, state: None, refused: None };
    router::run(config, source, program, socket, settings)
}

/// Returns the file's configuration; or the last good one, if the file is refused or a start with it has failed.
fn choose(args: &RunArgs, state: Option<&Claim>, program: &Program) -> Result<Chosen> {
    let good = state.and_then(Claim::last_good);
    let failed = state.and_then(Claim::take_refusal).filter(|_| good.is_some());
    let file = match failed {
        Some(reason) => Err(anyhow!(reason)),
        None => checked(args, args.source.source().load(program)),
    };
    let error = match (file, &good) {
        (Err(error), Some(good)) if !is_text_of(good, &args.source.file) => error,
        (file, _) => return file,
    };
    let LastGood { number, file, text } = good.context("no last good configuration")?;
    let (refused, shown) = (format!("{error:#}"), args.source.file.display());
    tracing::error!(
        "{refused}\nthe last good configuration, number {number}, is used in place of {shown}"
    );
    let parsed = program.parse(&file, &text).map(|config| (config, Vec::new()));
    let chosen = checked(args, parsed).with_context(|| {
        format!("{refused}\nthe last good configuration, number {number}, is refused, too")
    })?;
    Ok(Chosen { refused: Some(refused), ..chosen })
}

/// Returns true if this is the file's text, with which another try ends alike.
fn is_text_of(good: &LastGood, file: &Path) -> bool {
    fs::read(file).is_ok_and(|text| text == good.text.as_bytes())
}

/// Compares a configuration with this machine.
fn checked(args: &RunArgs, loaded: Result<(Config, Vec<String>)>) -> Result<Chosen> {
    let (config, mut warnings) = loaded?;
    let config = examined(config, |errors, config| match names_core(errors, config) {
        true => point_to_doctor(anyhow!("{errors}"), &args.source),
        false => anyhow!("{errors}"),
    })?;
    let binder = Binder::here();
    binder.check(&config, None).map_err(|error| point_to_doctor(error, &args.source))?;
    router::quarantine::examine(&config.quarantine.directory)?;
    router::tls::examine(&config, None, Strictness::Known)?;
    warnings.extend(binder.taken_over(&config));
    Ok(Chosen { config, warnings, refused: None })
}

/// Compares a configuration with this machine, as far as no NIC is bound for that; `refused` makes the error.
fn examined(
    mut config: Config,
    refused: impl FnOnce(&ConfigErrors, &Config) -> Error,
) -> Result<Config> {
    log::set_level(config.log.level);
    let binder = Binder::here();
    binder.resolve(&mut config)?;
    binder.give_back_left(&config);
    let vdevs = router::virtual_drivers(&config);
    config::check_machine(&config, vdevs, Strictness::Known)
        .map_err(|errors| refused(&errors, &config))?;
    accelerate::check(&config)?;
    Ok(config)
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

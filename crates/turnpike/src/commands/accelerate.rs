//! `turnpike accelerate`: an existing Linux router forwards by Turnpike until the command ends.
//!
//! The command makes the configuration `turnpike.accelerate { … }` and runs it like `turnpike run`. Interfaces, addresses,
//! routes and neighbours stay the kernel's.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use api::{DEFAULT_SOCKET, Show, client, query};
use clap::Args;
use control::config::{self, Acceleration, Config};
use control::netlink::inventory::{Described, interfaces};
use control::netlink::netdev;
use kernel_rules::{Inspection, Kind};
use machine::Machine;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use router::acceleration::{
    BOND, Interface, VLAN, configuration, in_kernel_configuration, obstacles, rules_options,
};
use router::{ConfigSource, Language, Program};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::run;
use crate::table;

/// Kinds of devices whose packets have other ways than their own frames, and the reason for each.
const REFUSED_KINDS: [(&str, &str); 6] = [
    (BOND, "its frames are those of its ports, and only --in-kernel (in_kernel = true) takes them"),
    ("bridge", "it forwards frames by MAC"),
    ("openvswitch", "it forwards frames by flows"),
    ("team", "its frames are those of its ports"),
    ("vlan", "it is accelerated with the interface that it is on; name that"),
    ("vrf", "it has no frames"),
];

/// The longest wait of `--stop` for the end of the process.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Options of `turnpike accelerate`.
#[derive(Debug, Args)]
pub struct AccelerateArgs {
    /// Interfaces between which packets are forwarded; they stay the kernel's
    #[arg(required_unless_present_any = ["all", "status", "stop"], value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// All Ethernet interfaces that can be accelerated; the log names the others
    #[arg(long, conflicts_with_all = ["interfaces", "status", "stop"])]
    all: bool,
    /// Kinds of the kernel's rules that accelerated packets may bypass: nftables, tc, …
    #[arg(long, value_delimiter = ',', value_name = "KIND", conflicts_with_all = ["status", "stop"])]
    bypass: Vec<Kind>,
    /// Forward in the kernel, by the interfaces' XDP programs: no AF_XDP sockets, no cores for forwarders, no filters
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    in_kernel: bool,
    /// Accelerate established flows only, as the kernel's connection tracking knows them, with their NAT: the kernel's rules
    /// decide about the first packets of each
    #[arg(long, conflicts_with_all = ["status", "stop", "in_kernel"])]
    flows: bool,
    /// Show the interfaces that are accelerated, and their packets
    #[arg(long, conflicts_with_all = ["interfaces", "stop"])]
    status: bool,
    /// Stop; the kernel forwards on
    #[arg(long, conflicts_with = "interfaces")]
    stop: bool,
    /// Print JSON
    #[arg(long, requires = "status")]
    json: bool,
    /// Path of the socket for `--status`, `--stop` and `turnpike show`
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
}

/// Does what the options say.
pub fn accelerate(args: &AccelerateArgs, program: &Program) -> Result<()> {
    if args.status {
        return status(args);
    }
    if args.stop {
        return stop(&args.socket);
    }
    router::log::start();
    let names = if args.all { all(args.in_kernel)? } else { args.interfaces.clone() };
    let file = PathBuf::from("turnpike accelerate");
    let text = match args.in_kernel {
        true => in_kernel_configuration(&names, &args.bypass),
        false => with_forwarders(&names, args)?,
    };
    let config = program.parse(&file, &text)?;
    let source = ConfigSource { file, language: Language::Turnpike };
    run::run_config(config, &source, program, &args.socket, args.no_huge)
}

/// Returns the configuration of interfaces whose packets forwarders get, with the kernel's forward chains as filters.
fn with_forwarders(names: &[String], args: &AccelerateArgs) -> Result<String> {
    let bypass = args.bypass.iter().copied().collect();
    let wanted = Acceleration { bypass, flows: args.flows, ..Acceleration::default() };
    let inspection = inspect(names, &wanted)?;
    // Rules that filters cannot follow are named when the configuration is checked.
    let filters = kernel_rules::translate(&inspection).unwrap_or_default();
    if filters.rules > 0 {
        tracing::info!(
            "the kernel's forward chains are followed as filters; turnpike show filters has them"
        );
    }
    let machine = Machine::here();
    let queued =
        |name: &String| Interface { name: name.clone(), queues: machine.queues(name).0.max(1) };
    let interfaces: Vec<Interface> = names.iter().map(queued).collect();
    Ok(configuration(&interfaces, &args.bypass, args.flows, &filters))
}

/// Returns the interfaces that can be accelerated, and logs the others.
fn all(in_kernel: bool) -> Result<Vec<String>> {
    let all = interfaces().context("the kernel's interfaces")?;
    let mut names = Vec::new();
    for interface in all.iter().filter(|of| of.index != 1) {
        match obstacle(interface, in_kernel, &all) {
            None => names.push(interface.name.clone()),
            Some(why) => tracing::info!("{}: not accelerated: {why}", interface.name),
        }
    }
    ensure!(!names.is_empty(), "no interface can be accelerated; turnpike devices lists them");
    Ok(names)
}

/// Checks the interfaces that a configuration accelerates, as far as that is possible before they are opened.
///
/// # Errors
/// Those that cannot be accelerated, with the reasons, a line for each.
pub fn check(config: &Config) -> Result<()> {
    let accelerated: Vec<&config::Port> =
        config.ports.iter().filter(|port| port.accelerate).collect();
    if accelerated.is_empty() {
        return Ok(());
    }
    let all = interfaces().context("the kernel's interfaces")?;
    let Acceleration { in_kernel, flows, .. } = &config.acceleration;
    let problem = |port: &&config::Port| {
        let interface = all.iter().find(|of| of.name == port.name)?;
        let why = obstacle(interface, *in_kernel, &all)?;
        Some(format!("port \"{0}\": device {0} cannot be accelerated: {why}", port.name))
    };
    let mut problems: Vec<String> = accelerated.iter().filter_map(problem).collect();
    let names: Vec<String> = accelerated.iter().map(|port| port.name.clone()).collect();
    if *flows {
        problems.extend(kernel_rules::examine_connections().err().map(|error| error.to_string()));
    }
    let inspection =
        inspect(&with_others(&names, &config.acceleration, &all), &config.acceleration)?;
    problems.extend(obstacles(&inspection, config));
    if *in_kernel && let Some(name) = names.first() {
        problems.extend(too_old(netdev::xdp(name)));
    }
    if problems.is_empty() { Ok(()) } else { Err(anyhow!(problems.join("\n"))) }
}

/// Returns interfaces that are to be accelerated so, and with them those whose rules count for their packets: VLAN devices
/// that are accelerated with them, and ports of bonds.
pub fn with_others(names: &[String], of: &Acceleration, all: &[Described]) -> Vec<String> {
    let vlans = if of.leaves_vlans { Vec::new() } else { vlans_on(names, all) };
    let ports = if of.in_kernel { bond_ports_of(names, all) } else { Vec::new() };
    [names.to_vec(), vlans, ports].concat()
}

/// Returns the VLAN devices on these interfaces, and those on these, which are accelerated with them.
fn vlans_on(names: &[String], all: &[Described]) -> Vec<String> {
    let mut below: Vec<u32> =
        all.iter().filter(|of| names.contains(&of.name)).map(|of| of.index).collect();
    let mut found = Vec::new();
    // Frames have two tags at most.
    for _ in 0..2 {
        let is_on = |of: &&Described| {
            of.kind.as_deref() == Some(VLAN)
                && of.master.is_none()
                && of.below.is_some_and(|index| below.contains(&index))
        };
        let on: Vec<&Described> = all.iter().filter(is_on).collect();
        found.extend(on.iter().map(|of| of.name.clone()));
        below = on.iter().map(|of| of.index).collect();
    }
    found
}

/// Returns the ports of the bonds among these interfaces, whose rules count for the bonds' packets.
fn bond_ports_of(names: &[String], all: &[Described]) -> Vec<String> {
    let is_bond = |of: &&Described| of.kind.as_deref() == Some(BOND) && names.contains(&of.name);
    let bonds: Vec<u32> = all.iter().filter(is_bond).map(|of| of.index).collect();
    let is_port = |of: &&Described| of.master.is_some_and(|index| bonds.contains(&index));
    all.iter().filter(is_port).map(|of| of.name.clone()).collect()
}

fn inspect(names: &[String], of: &Acceleration) -> Result<Inspection> {
    kernel_rules::inspect_rules(names, &rules_options(of)).context("the kernel's rules")
}

/// Returns the reason why the kernel, which answered a question about XDP so, is too old for programs that forward
/// themselves: it does not say which interfaces send their frames, and drops those that none sends.
fn too_old(answer: std::io::Result<Option<netdev::Xdp>>) -> Option<String> {
    matches!(answer, Ok(None)).then(|| {
        "in_kernel takes Linux 6.3 or newer, which says which interfaces send frames of XDP programs; leave it out"
            .to_owned()
    })
}

/// Returns the reason why an interface, one of `all`, cannot be accelerated.
fn obstacle(interface: &Described, in_kernel: bool, all: &[Described]) -> Option<String> {
    let name = &interface.name;
    if !interface.is_ethernet {
        return Some("it has no Ethernet frames".to_owned());
    }
    if let Some(master) = interface.master {
        let master = all.iter().find(|of| of.index == master);
        let (kind, name) = master.map_or(("device", "another"), |of| {
            (of.kind.as_deref().unwrap_or("device"), of.name.as_str())
        });
        return Some(format!("it belongs to {kind} {name}, which has its packets"));
    }
    let kind = interface.kind.as_deref().unwrap_or_default();
    let is_refused = |refused: &str| refused == kind && !(in_kernel && kind == BOND);
    if let Some((_, why)) = REFUSED_KINDS.iter().find(|(refused, _)| is_refused(refused)) {
        return Some(format!("it is a {kind} device: {why}"));
    }
    let is_ipvlan = |of: &&Described| {
        of.below == Some(interface.index)
            && of.kind.as_deref().is_some_and(|kind| kind.starts_with("ipv"))
    };
    if let Some(upper) = all.iter().find(is_ipvlan) {
        return Some(format!(
            "{} device {} shares its MAC, and packets to that look like packets to be forwarded",
            upper.kind.as_deref().unwrap_or_default(),
            upper.name
        ));
    }
    (!interface.is_up).then(|| format!("it is down; set it up: ip link set {name} up"))
}

/// Prints the state of the running router.
fn status(args: &AccelerateArgs) -> Result<()> {
    let answer = client::query(&args.socket, &query::ACCELERATION, Show::Acceleration)?;
    match args.json {
        true => crate::print(&serde_json::to_string_pretty(&answer)?),
        false => crate::print(&table::acceleration(&answer)),
    }
}

/// Ends the router of this socket if it accelerates interfaces, and waits for its end.
fn stop(socket: &Path) -> Result<()> {
    let answer = client::query(socket, &query::ACCELERATION, Show::Acceleration)?;
    ensure!(
        !answer.interfaces.is_empty(),
        "the router of {} accelerates no interface; it is ended by the service manager or by SIGTERM",
        socket.display()
    );
    let stream = client::connect(socket)?;
    let number = socket_peercred(&stream).context("the router's process")?.pid;
    let named = || format!("the router's process {}", number.as_raw_nonzero());
    let process = pidfd_open(number, PidfdFlags::empty()).with_context(named)?;
    // A process that has ended leaves its number to another; the router still answers, so it is this one.
    client::query(socket, &query::ACCELERATION, Show::Acceleration)?;
    drop(stream);
    pidfd_send_signal(&process, Signal::TERM).with_context(named)?;
    let patience = PollTimeout::try_from(STOP_PATIENCE).unwrap_or(PollTimeout::MAX);
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    if poll(&mut ended, patience).context("waiting for the router's end")? == 0 {
        bail!("{} has not ended yet", named());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32) -> Described {
        let (is_ethernet, is_up) = (true, true);
        Described { name: name.to_owned(), index, is_ethernet, is_up, ..Described::default() }
    }

    #[test]
    fn a_kernel_that_says_nothing_about_xdp_is_too_old_to_forward_by_programs() {
        assert!(too_old(Ok(None)).unwrap().contains("Linux 6.3"));
        assert_eq!(too_old(Ok(Some(netdev::Xdp::default()))), None);
        assert_eq!(too_old(Err(std::io::ErrorKind::NotFound.into())), None, "reported as such");
    }

    #[test]
    fn interfaces_that_cannot_be_accelerated_have_a_reason() {
        let bridge = Described { kind: Some("bridge".to_owned()), ..interface("br0", 2) };
        let port = Described { master: Some(2), ..interface("eth1", 3) };
        let down = Described { is_up: false, ..interface("eth2", 4) };
        let tunnel = Described { is_ethernet: false, ..interface("wg0", 5) };
        let shared = interface("eth3", 6);
        let upper =
            Described { kind: Some("ipvlan".to_owned()), below: Some(6), ..interface("ipvl0", 7) };
        let all = [interface("eth0", 1), bridge, port, down, tunnel, shared, upper];
        let reasons: Vec<_> = all.iter().map(|of| obstacle(of, false, &all)).collect();
        assert_eq!(reasons[0], None);
        for (reason, words) in reasons[1..6].iter().zip([
            "it is a bridge device",
            "it belongs to bridge br0",
            "ip link set eth2 up",
            "no Ethernet",
            "ipvlan device ipvl0",
        ]) {
            let reason = reason.as_ref().unwrap();
            assert!(reason.contains(words), "{reason}");
        }
    }

    #[test]
    fn bonds_are_taken_in_the_kernel_alone_and_their_ports_never() {
        let bond = Described { kind: Some(BOND.to_owned()), ..interface("bond0", 2) };
        let port = Described { master: Some(2), ..interface("eth1", 3) };
        let all = [bond.clone(), port.clone(), interface("eth2", 4)];
        assert!(obstacle(&bond, false, &all).unwrap().contains("--in-kernel"));
        assert_eq!(obstacle(&bond, true, &all), None);
        for in_kernel in [false, true] {
            assert!(obstacle(&port, in_kernel, &all).unwrap().contains("belongs to bond bond0"));
        }
        let names = ["bond0".to_owned()];
        assert_eq!(bond_ports_of(&names, &all), ["eth1"]);
        assert!(bond_ports_of(&["eth2".to_owned()], &all).is_empty());
        let with = |in_kernel| {
            with_others(&names, &Acceleration { in_kernel, ..Acceleration::default() }, &all)
        };
        assert_eq!(
            (with(true).join(" "), with(false).join(" ")),
            ("bond0 eth1".into(), "bond0".into())
        );
    }
}

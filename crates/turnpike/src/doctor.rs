//! `turnpike doctor`: examines the machine for causes of slowness or failure of a router.
//!
//! A check is a function from a [`Patient`], the data about the machine and the router to run on
//! it, to [`Finding`]s. Checks of one subject share a file:
//!
//! ```text
//!   memory.rs      hugepages, memory, overcommitment, locked memory
//!   devices.rs     drivers, IOMMU, its groups, kernel modules
//!   cores.rs       isolation, tick, RCU, workqueues, SMT, the control plane's cores
//!   tasks.rs       other threads on forwarders' cores, and their cost
//!   power.rs       governor, turbo, idle states
//!   numa.rs        ports and forwarders on different nodes, balancing
//!   xdp.rs         AF_XDP, zero copy
//!   interrupts.rs  interrupts and receive steering (RPS) by core, irqbalance, ports without receive interrupts
//!   system.rs      configuration, versions, processor, privileges
//!
//!   accelerate.rs  a report of its own, for interfaces that stay with the kernel
//! ```
//!
//! The kernel's files are read by [`Machine`], so that tests can examine machines made of files. An
//! absent file results in a note, "cannot tell", never in an error.

pub mod accelerate;
mod control_queues;
mod cores;
mod devices;
mod gain;
mod interrupts;
mod memory;
mod mend;
mod numa;
mod power;
mod system;
mod tasks;
#[cfg(test)]
mod tests;
mod text;
mod xdp;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use control::config::{Config, Device, Driver};
use control::netlink::netdev::Xdp;
use dataplane::polling::Wait;
use machine::Machine;
use machine::cpu::Cpus;
use serde::Serialize;

pub use text::text;

/// The checks, in the order of execution.
const CHECKS: [fn(&Patient<'_>) -> Vec<Finding>; 35] = [
    system::configuration,
    system::versions,
    system::kernel,
    system::processor,
    system::privileges,
    memory::hugepages,
    memory::size,
    memory::overcommit,
    memory::locked,
    devices::drivers,
    devices::iommu,
    devices::interrupt_remapping,
    devices::groups,
    devices::modules,
    xdp::sockets,
    xdp::zero_copy,
    control_queues::ports,
    numa::ports,
    numa::balancing,
    cores::control_plane,
    cores::smt,
    cores::isolated,
    cores::tick,
    cores::rcu,
    cores::workqueues,
    tasks::processes,
    tasks::preemption,
    interrupts::affinity,
    interrupts::of_ports,
    interrupts::steering,
    interrupts::irqbalance,
    interrupts::receive,
    power::governor,
    power::turbo,
    power::idle_states,
];

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The value is correct.
    Ok,
    /// Information, or the value cannot be determined.
    Note,
    /// The router runs, but slower or less steadily than it could.
    Warning,
    /// The router does not start, or a port does not work.
    Error,
}

impl Severity {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// Returns the exit status of a process whose worst finding has it.
    fn exit_status(self) -> u8 {
        match self {
            Self::Ok | Self::Note => 0,
            Self::Warning => 1,
            Self::Error => 2,
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    /// Its weight.
    pub severity: Severity,
    /// The value found.
    pub found: String,
    /// The consequence for the router, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// Shell commands, or lines of the configuration, as a remedy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mend: Vec<String>,
}

impl Finding {
    fn new(check: &'static str, severity: Severity, found: impl Into<String>) -> Self {
        Self { check, severity, found: found.into(), cost: None, mend: Vec::new() }
    }

    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, found)
    }

    fn note(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Note, found)
    }

    fn warning(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, found)
    }

    fn error(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Error, found)
    }

    /// Returns the note that a required file is absent or unreadable.
    fn unknown(check: &'static str, file: &str) -> Self {
        Self::note(check, format!("cannot tell: {file} is absent or unreadable"))
    }

    fn hint(mut self, hint: &str) -> Self {
        self.found += &format!(" ({hint})");
        self
    }

    fn cost(mut self, cost: impl Into<String>) -> Self {
        self.cost = Some(cost.into());
        self
    }

    fn mend(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.mend.extend(commands);
        self
    }
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The configuration that the machine was examined for.
    pub file: Option<PathBuf>,
    /// The highest severity found.
    pub worst: Severity,
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns the process's exit status: 2 with an error, 1 with a warning, else 0.
    pub fn exit_status(&self) -> u8 {
        self.worst.exit_status()
    }
}

/// The router to be run: its needs of the machine.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Its configuration; none: a router with two ports by PCI or AF_XDP, without further details.
    pub file: Option<PathBuf>,
    /// Reasons why this machine cannot run it, or why the file cannot be read.
    pub problems: Vec<String>,
    /// Cores of its forwarders.
    pub cores: BTreeSet<usize>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Megabytes of packet memory at its start.
    pub memory_mb: usize,
    /// Megabytes of ordinary memory beyond that, for ports added later.
    pub later_mb: usize,
    /// True to use ordinary memory even if there are hugepages.
    pub no_huge: bool,
    /// True if ports are to have queues for control traffic.
    pub control_queues: bool,
}

/// A port of the router.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: Device,
    /// The driver in the configuration.
    pub driver: Option<Driver>,
    /// True if its forwarders block when they have no work.
    pub blocks: bool,
    /// Queue pairs for packets to be forwarded.
    pub queues: usize,
    /// True if it is to have a queue for control traffic.
    pub control_queue: bool,
}

/// Returns the queue pairs of a port: one for each forwarder unless the number is configured.
fn pairs(queues: &control::config::Queues, forwarders: usize) -> usize {
    let number = |wish: Option<u16>| wish.map(usize::from);
    match (number(queues.rx_wish()), number(queues.tx_wish())) {
        (None, None) => forwarders,
        (rx, tx) => rx.or(tx).unwrap_or(forwarders),
    }
}

impl Wanted {
    /// Returns the needs of a configuration with forwarders on these cores, and with this much
    /// memory (see [`router::packet_memory`]).
    pub fn of(config: &Config, cores: &[usize], (memory_mb, later_mb): (usize, usize)) -> Self {
        let port = |port: &control::config::Port| Port {
            name: port.name.clone(),
            device: port.device.clone(),
            driver: port.driver,
            blocks: port.queues.wait.unwrap_or(config.forwarders.wait) != Wait::Poll,
            queues: pairs(&port.queues, cores.len()),
            control_queue: port.queues.control,
        };
        Self {
            file: Some(config.file.clone()),
            problems: Vec::new(),
            cores: cores.iter().copied().collect(),
            ports: config.ports.iter().map(port).collect(),
            memory_mb,
            later_mb,
            no_huge: config.memory.no_huge,
            control_queues: config.forwarders.control_queue,
        }
    }

    /// Returns the PCI addresses with the names of their ports.
    fn pci(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ports.iter().filter_map(|port| match &port.device {
            Device::Pci(address) => Some((port.name.as_str(), address.as_str())),
            _ => None,
        })
    }

    /// Returns the kernel interfaces of ports.
    fn kernel_interfaces(&self) -> impl Iterator<Item = &str> {
        self.ports.iter().filter_map(|port| match &port.device {
            Device::Kernel(interface) => Some(interface.as_str()),
            _ => None,
        })
    }

    /// Returns the kernel interfaces with the names of their ports, except those configured for
    /// AF_PACKET.
    fn xdp(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ports.iter().filter_map(|port| match (&port.device, port.driver) {
            (Device::Kernel(_), Some(Driver::AfPacket)) => None,
            (Device::Kernel(interface), _) => Some((port.name.as_str(), interface.as_str())),
            _ => None,
        })
    }
}

/// DPDK's versions.
#[derive(Clone, Debug, Default)]
pub struct DpdkVersions {
    /// Version of the headers that the program was compiled with.
    pub built: String,
    /// Version of the libraries that it runs with.
    pub running: String,
}

/// Queries the kernel for XDP of an interface's driver; `None` if it is too old to report.
pub type AskXdp = dyn Fn(&str) -> io::Result<Option<Xdp>>;

/// Input of the checks.
pub struct Patient<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// Its processors.
    pub cpus: Cpus,
    /// The router to be run on it.
    pub wanted: &'a Wanted,
    /// DPDK's versions.
    pub dpdk: DpdkVersions,
    /// Queries the kernel for XDP of an interface's driver.
    pub xdp: &'a AskXdp,
}

impl Patient<'_> {
    /// Returns the cores without a forwarder.
    fn other_cores(&self) -> BTreeSet<usize> {
        let cores = self.cpus.cores.keys().copied();
        cores.filter(|core| !self.wanted.cores.contains(core)).collect()
    }
}

/// Makes all checks.
pub fn examine(patient: &Patient<'_>) -> Report {
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(patient)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let worst = findings.first().map_or(Severity::Ok, |finding| finding.severity);
    Report { file: patient.wanted.file.clone(), worst, findings }
}

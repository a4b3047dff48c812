//! Errors of the router's set-up. Nothing on the packet path returns an error.

use nix::errno::Errno;

/// Returns this thread's `rte_errno`.
pub(crate) fn dpdk_errno() -> Errno {
    // SAFETY: reads a per-thread integer.
    Errno::from_raw(unsafe { dpdk_sys::shim_errno() })
}

/// Formats lines as `; DPDK says: …`.
fn quoted(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("; DPDK says: {}", lines.join("; ")) }
}

/// Errors of the set-up: each names the thing, the value, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A process has one EAL, started once.
    #[error("DPDK's EAL was already started by this process, which can do so only once")]
    EalStarted,
    /// A driver has taken one of the flags in which packets have their class.
    #[error(
        "DPDK's EAL: a flag of packets for classes of traffic is taken by a driver ({0}); leave the last device out \
         that was added"
    )]
    TrafficClass(Errno),
    /// `rte_eal_init` refused.
    #[error("DPDK's EAL did not start ({memory}): {errno}{}", quoted(.said))]
    EalInit {
        /// The memory it was configured to use.
        memory: String,
        /// DPDK's error number.
        errno: Errno,
        /// DPDK's messages, line by line.
        said: Vec<String>,
    },
    /// Devices need physical addresses, which only hugepages have.
    #[error(
        "a PCI device without an IOMMU (uio_pci_generic, or vfio-pci in no-IOMMU mode) needs {mb} MB of \
         hugepages, which ordinary memory cannot replace ({why}); reserve them: echo {pages} > \
         /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", pages = mb.div_ceil(2)
    )]
    PhysicalMemory {
        /// Megabytes.
        mb: usize,
        /// Reason for not having hugepages.
        why: String,
    },
    /// An argument for the EAL holds a NUL byte.
    #[error("EAL argument {0:?} holds a NUL byte")]
    EalArgument(String),
    /// A core that this machine lacks or that this process may not use.
    #[error("core {core} does not exist or is not allowed to this process; allowed: {allowed}")]
    NoSuchCore {
        /// The requested core.
        core: usize,
        /// The cores available to this process.
        allowed: String,
    },
    /// The kernel lacks a feature.
    #[error("the kernel has no {what}: {errno}")]
    Unsupported {
        /// The system call.
        what: String,
        /// The kernel's error number.
        errno: Errno,
    },
    /// DPDK has no number left for another registered thread.
    #[error("the thread cannot be registered with DPDK: {0}")]
    RegisterThread(Errno),
    /// DPDK memory ran out, or a size is out of range.
    #[error("{what}: {errno}; the EAL has {memory}")]
    Memory {
        /// The object to be allocated.
        what: String,
        /// DPDK's error number.
        errno: Errno,
        /// The EAL's memory.
        memory: String,
    },
    /// A number in a configuration is out of range.
    #[error("{what} is {value}, which must be {range}")]
    OutOfRange {
        /// Meaning of the number.
        what: String,
        /// The number.
        value: usize,
        /// The valid range.
        range: String,
    },
    /// The text names no device on this machine.
    #[error("device {device} not found; known: {known}")]
    DeviceNotFound {
        /// The text.
        device: String,
        /// The existing kernel interfaces.
        known: String,
    },
    /// The text is not a device name.
    #[error("device {device:?} {problem}")]
    DeviceSyntax {
        /// The text.
        device: String,
        /// The fault, and the correct form.
        problem: String,
    },
    /// DPDK or the kernel refused a step of setting up a port.
    #[error("port {port:?}: {step}: {errno}")]
    Port {
        /// The port's name in the configuration.
        port: String,
        /// The step that failed.
        step: String,
        /// The error number.
        errno: Errno,
    },
    /// A port cannot have its configuration.
    #[error("port {port:?}: {problem}")]
    PortConfig {
        /// The port's name in the configuration.
        port: String,
        /// The conflict, and the way out.
        problem: String,
    },
    /// An event device cannot be used as configured.
    #[error("event device {device}: {problem}")]
    Event {
        /// Its name.
        device: String,
        /// The fault, and the way out.
        problem: String,
    },
    /// Device events cannot be received.
    #[error("events of devices: {step}: {errno}")]
    Events {
        /// The step that failed.
        step: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// A thread cannot wait for descriptors.
    #[error("{step}: {errno}")]
    Wait {
        /// The step that failed.
        step: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// A host interface cannot be created.
    #[error("host interface {name}: {problem}")]
    Tap {
        /// Its name.
        name: String,
        /// The failure, and the way out.
        problem: String,
    },
    /// DPDK refused a change of one of its route tables, or the table does not support the request.
    #[error("{table}: {problem}")]
    RouteTable {
        /// The table's type.
        table: String,
        /// The operation, DPDK's error, and the table's size.
        problem: String,
    },
}

//! Hugepages, memory, overcommitment, locked memory.

use std::collections::BTreeMap;

use machine::kernel::{Capability, Limit};
use machine::memory::{Hugepages, NodeMemory};

use super::{Finding, Patient, devices, mend};

/// Checks for free hugepages on the nodes of the forwarders.
pub fn hugepages(patient: &Patient<'_>) -> Vec<Finding> {
    let memory = patient.machine.memory();
    let Some(size_kb) = page_size(&memory, patient.wanted.memory_mb) else {
        return vec![Finding::unknown("hugepages", "/sys/devices/system/node/node*/hugepages")];
    };
    let free_mb = free_mb(&memory, size_kb);
    if patient.wanted.no_huge {
        let found =
            format!("{free_mb} MB are free, and the configuration asks for ordinary memory");
        return vec![Finding::note("hugepages", found).cost(ORDINARY)];
    }
    let shares = shares(patient, &memory).into_iter();
    let pages = Pages { memory, size_kb, free_mb };
    shares.map(|(node, needed_mb)| on_node(patient, &pages, node, needed_mb)).collect()
}

const ORDINARY: &str = "The router takes ordinary memory, in transparent huge pages as far as the kernel has some: else packets miss the TLB.";

/// Hugepages of the size that the router will use.
struct Pages {
    memory: BTreeMap<usize, NodeMemory>,
    size_kb: usize,
    /// Free megabytes on all nodes.
    free_mb: usize,
}

/// Returns the smallest size with enough free pages, like DPDK's choice; else the one with most
/// free memory; else 2 MB, or the nearest size.
fn page_size(memory: &BTreeMap<usize, NodeMemory>, needed_mb: usize) -> Option<usize> {
    let common = |size: &usize| memory.values().all(|node| node.hugepages.contains_key(size));
    let first = memory.values().next()?;
    let sizes: Vec<usize> = first.hugepages.keys().copied().filter(common).collect();
    let free = |size: usize| free_mb(memory, size);
    let enough = sizes.iter().copied().find(|&size| free(size) >= needed_mb);
    let most =
        || sizes.iter().copied().filter(|&size| free(size) > 0).max_by_key(|&size| free(size));
    let usual = || sizes.iter().copied().find(|&size| size >= 2048).or(sizes.last().copied());
    enough.or_else(most).or_else(usual)
}

/// Returns the free megabytes in pages of one size, on all nodes.
fn free_mb(memory: &BTreeMap<usize, NodeMemory>, size_kb: usize) -> usize {
    memory.values().map(|node| megabytes(size_kb, node.hugepages[&size_kb].free)).sum()
}

fn megabytes(size_kb: usize, pages: usize) -> usize {
    size_kb.saturating_mul(pages) / 1024
}

/// Returns the megabytes that the forwarders need on each node.
fn shares(patient: &Patient<'_>, memory: &BTreeMap<usize, NodeMemory>) -> BTreeMap<usize, usize> {
    let mut forwarders: BTreeMap<usize, usize> = BTreeMap::new();
    for node in patient.wanted.cores.iter().filter_map(|&core| patient.cpus.node_of(core)) {
        *forwarders.entry(node).or_default() += 1;
    }
    if forwarders.is_empty() {
        forwarders.extend(memory.keys().next().map(|&node| (node, 1)));
    }
    let all: usize = forwarders.values().sum();
    forwarders.retain(|node, _| memory.contains_key(node));
    let share = |count: usize| (patient.wanted.memory_mb * count).div_ceil(all);
    forwarders.into_iter().map(|(node, count)| (node, share(count))).collect()
}

fn on_node(patient: &Patient<'_>, pages: &Pages, node: usize, needed_mb: usize) -> Finding {
    const CHECK: &str = "hugepages";
    let size_kb = pages.size_kb;
    let Hugepages { total, free } = pages.memory[&node].hugepages[&size_kb];
    let free_mb = megabytes(size_kb, free);
    let found = format!(
        "node {node}: {free_mb} MB are free in pages of {}, {needed_mb} MB are needed",
        page_name(size_kb)
    );
    if free_mb >= needed_mb {
        return Finding::ok(CHECK, found);
    }
    let more = (needed_mb - free_mb).saturating_mul(1024).div_ceil(size_kb);
    let mend = reserve(patient, pages, node, total.saturating_add(more));
    if pages.free_mb >= patient.wanted.memory_mb {
        let cost =
            "Forwarders of the node work in another node's memory, which is slower to reach.";
        return Finding::warning(CHECK, found).cost(cost).mend(mend);
    }
    if devices::need_physical_addresses(patient) {
        let cost =
            "PCI ports without an IOMMU reach memory in hugepages only: the router does not start.";
        return Finding::error(CHECK, found).cost(cost).mend(mend);
    }
    Finding::warning(CHECK, found).cost(ORDINARY).mend(mend)
}

fn page_name(size_kb: usize) -> String {
    match size_kb {
        size if size >= 1 << 20 => format!("{} GB", size >> 20),
        size if size >= 1 << 10 => format!("{} MB", size >> 10),
        size => format!("{size} kB"),
    }
}

/// Returns the commands that reserve this many pages on a node, now and at each boot.
fn reserve(patient: &Patient<'_>, pages: &Pages, node: usize, count: usize) -> Vec<String> {
    let (size_kb, memory) = (pages.size_kb, &pages.memory);
    let directory = match patient.machine.has(&format!("/sys/devices/system/node/node{node}")) {
        true => format!("/sys/devices/system/node/node{node}/hugepages"),
        false => "/sys/kernel/mm/hugepages".to_owned(),
    };
    let mut commands =
        vec![format!("echo {count} > {directory}/hugepages-{size_kb}kB/nr_hugepages")];
    // The settings for the boot concern the usual size.
    let usual = patient.machine.meminfo("Hugepagesize:") == Some(size_kb);
    if usual && memory.len() == 1 {
        let setting = format!("vm.nr_hugepages = {count}");
        commands.push(format!("echo '{setting}' > /etc/sysctl.d/80-turnpike-hugepages.conf"));
    } else if usual {
        let of_node = |(&number, memory): (&usize, &NodeMemory)| {
            let count = if number == node { count } else { memory.hugepages[&size_kb].total };
            format!("{number}:{count}")
        };
        let counts: Vec<String> = memory.iter().map(of_node).collect();
        commands.extend(mend::boot_parameter(patient, "hugepages", &counts.join(",")));
    }
    commands
}

/// Checks the memory available to a router without hugepages.
pub fn size(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "memory";
    let (machine, wanted) = (patient.machine, patient.wanted);
    let Some(available) = machine.meminfo("MemAvailable:") else {
        return vec![Finding::unknown(CHECK, "/proc/meminfo")];
    };
    let available_mb = available / 1024;
    let found = format!(
        "{available_mb} MB are available; a router takes {} MB of packet memory",
        wanted.memory_mb
    );
    // Route tables, the program, and memory reserved for ports added later.
    const BESIDE_MB: usize = 512;
    if available_mb >= wanted.memory_mb + wanted.later_mb + BESIDE_MB {
        return vec![Finding::ok(CHECK, found)];
    }
    let fits = available_mb >= wanted.memory_mb;
    let finding = if fits { Finding::warning } else { Finding::error };
    let cost = match fits {
        true => "There may be no memory for route tables, or for ports that come later.",
        false => "Without hugepages, the router does not start or is killed for lack of memory.",
    };
    let mend = "turnpike.memory { mbufs = 16384 }    -- or stop other programs".to_owned();
    vec![finding(CHECK, found).cost(cost).mend([mend])]
}

/// Checks for strict accounting of memory that is only reserved.
pub fn overcommit(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "overcommit";
    const FILE: &str = "/proc/sys/vm/overcommit_memory";
    let (machine, wanted) = (patient.machine, patient.wanted);
    let Some(mode) = machine.number::<u8>(FILE) else {
        return vec![Finding::unknown(CHECK, FILE)];
    };
    if mode != 2 {
        return vec![Finding::ok(CHECK, format!("vm.overcommit_memory is {mode}"))];
    }
    let left = machine.meminfo("CommitLimit:").zip(machine.meminfo("Committed_AS:"));
    let Some((limit, committed)) = left else {
        return vec![Finding::unknown(CHECK, "/proc/meminfo")];
    };
    let left_mb = limit.saturating_sub(committed) / 1024;
    let needed_mb = wanted.memory_mb + wanted.later_mb;
    let found = format!(
        "vm.overcommit_memory is 2: {left_mb} MB may be reserved still, and the router reserves {needed_mb} MB \
         without hugepages"
    );
    if left_mb >= needed_mb {
        return vec![Finding::ok(CHECK, found)];
    }
    let cost = "DPDK does not start: its memory is refused.";
    vec![Finding::error(CHECK, found).cost(cost).mend(mend::sysctl("vm.overcommit_memory", 0))]
}

/// Checks the amount of memory that this process may lock.
pub fn locked(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "locked-memory";
    let machine = patient.machine;
    let (Some(privileged), Some(limit)) =
        (machine.may(Capability::IPC_LOCK), machine.locked_memory())
    else {
        return vec![Finding::unknown(CHECK, "/proc/self/status or /proc/self/limits")];
    };
    let bytes = match limit {
        _ if privileged => {
            return vec![Finding::ok(CHECK, "no limit: this process has CAP_IPC_LOCK")];
        }
        Limit::Unlimited => return vec![Finding::ok(CHECK, "no limit")],
        Limit::Bytes(bytes) => bytes,
    };
    let kilobytes = bytes / 1024;
    let found = format!("{kilobytes} kB may be locked by user {}", user(patient));
    const DISK: &str = "code that the kernel drops from memory makes packets wait for a disk.";
    let finding = if patient.wanted.pci().next().is_some() {
        let cost = format!(
            "PCI ports by vfio-pci do not start, for want of memory that devices can reach; {DISK}"
        );
        Finding::error(CHECK, found).cost(cost)
    } else {
        let cost =
            format!("AF_XDP may be refused its packet memory, and AF_PACKET is slower; {DISK}");
        Finding::warning(CHECK, found).cost(cost)
    };
    const UNIT: &str = "/etc/systemd/system/turnpike.service.d";
    vec![finding.mend([
        "ulimit -l unlimited    # in the shell of root that starts it; as a service:".to_owned(),
        format!("mkdir -p {UNIT}"),
        format!("printf '[Service]\\nLimitMEMLOCK=infinity\\n' > {UNIT}/memlock.conf"),
        "systemctl daemon-reload".to_owned(),
    ])]
}

fn user(patient: &Patient<'_>) -> String {
    patient.machine.user().map_or_else(|| "unknown".to_owned(), |user| user.to_string())
}

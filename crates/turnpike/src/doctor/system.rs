//! The configuration on this machine, versions, processor, privileges.

use machine::kernel::Capability;

use super::{Finding, Patient};
use crate::processor;

/// Oldest kernel with which the router is tested: Debian 12's.
const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// Checks for a valid configuration whose cores, devices and files exist.
pub fn configuration(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "configuration";
    let wanted = patient.wanted;
    if !wanted.problems.is_empty() {
        let problem = |text: &String| {
            let finding = Finding::error(CHECK, text.clone());
            finding.cost("The router does not start.")
        };
        return wanted.problems.iter().map(problem).collect();
    }
    let Some(file) = &wanted.file else {
        let found = "none given: examined for two ports and the default core";
        let finding = Finding::note(CHECK, found);
        return vec![finding.mend(["turnpike doctor FILE.lua".to_owned()])];
    };
    vec![Finding::ok(CHECK, format!("{}: right for this machine", file.display()))]
}

/// Checks the versions of the program and of DPDK.
pub fn versions(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "versions";
    let dpdk = &patient.dpdk;
    let found = format!("turnpike {}, {}", env!("CARGO_PKG_VERSION"), dpdk.running);
    if dpdk.built == dpdk.running {
        return vec![Finding::ok(CHECK, found)];
    }
    let found = format!("{found}; compiled with {}", dpdk.built);
    let cost =
        "Inlined functions are those of the other version; drivers are tested with their own.";
    vec![
        Finding::note(CHECK, found)
            .cost(cost)
            .mend(["make build    # compile it again".to_owned()]),
    ]
}

/// Checks the kernel's version.
pub fn kernel(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "kernel";
    let (release, version) = (patient.machine.release(), patient.machine.kernel_version());
    let (Some(release), Some(version)) = (release, version) else {
        return vec![Finding::unknown(CHECK, "/proc/sys/kernel/osrelease")];
    };
    let found = format!("Linux {release}");
    if version >= OLDEST_KERNEL {
        return vec![Finding::ok(CHECK, found)];
    }
    let (major, minor) = OLDEST_KERNEL;
    let cost = format!("The router is tested on Linux {major}.{minor} and later.");
    vec![Finding::note(CHECK, found).cost(cost)]
}

/// Reports the processor. One without the instructions for which the program was compiled has ended
/// it earlier, with a message.
pub fn processor(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "processor";
    let Some(info) = patient.machine.read("/proc/cpuinfo") else {
        return vec![Finding::unknown(CHECK, "/proc/cpuinfo")];
    };
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown model", |(_, model)| model.trim());
    let cores = patient.cpus.cores.len();
    let used: Vec<&str> = processor::used().collect();
    let used = if used.is_empty() { String::new() } else { format!("; has {}", used.join(", ")) };
    vec![Finding::ok(CHECK, format!("{model}, {cores} cores{used}"))]
}

/// Checks the privileges of this process, which are those of a router started by the same user.
pub fn privileges(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "privileges";
    let machine = patient.machine;
    let needed = [Capability::NET_ADMIN, Capability::NET_RAW, Capability::BPF];
    let has = |capability| {
        // Before Linux 5.8 there was one capability for both.
        let all = capability == Capability::BPF && machine.may(Capability::SYS_ADMIN)?;
        Some(all || machine.may(capability)?)
    };
    let held: Option<Vec<bool>> = needed.iter().map(|&capability| has(capability)).collect();
    let Some(held) = held else {
        return vec![Finding::unknown(CHECK, "/proc/self/status")];
    };
    let user = machine.user().map_or_else(|| "unknown".to_owned(), |user| user.to_string());
    let lacks: Vec<&str> =
        needed.iter().zip(held).filter(|(_, held)| !held).map(|(needed, _)| needed.name).collect();
    if lacks.is_empty() {
        return vec![Finding::ok(CHECK, format!("user {user} may run the router"))];
    }
    let cost =
        "Started by this user, the router gets no kernel interface; its limits are examined here.";
    let file = patient
        .wanted
        .file
        .as_ref()
        .map_or_else(String::new, |file| format!(" {}", file.display()));
    let again = format!("sudo turnpike doctor{file}");
    vec![
        Finding::warning(CHECK, format!("user {user} lacks {}", lacks.join(", ")))
            .cost(cost)
            .mend([again]),
    ]
}

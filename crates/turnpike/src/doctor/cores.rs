//! Isolation of the forwarders' cores, threads that share a physical core, and room for the control plane.

use std::collections::BTreeSet;

use machine::{list_text, mask_text, parse_list};

use super::{Finding, Patient, mend};

const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
const NOHZ_FULL: &str = "/sys/devices/system/cpu/nohz_full";

/// Returns the cores to isolate: those of the forwarders except the machine's first, on which Linux
/// must keep its time and do its own work.
fn to_isolate(patient: &Patient<'_>) -> BTreeSet<usize> {
    let first = patient.cpus.cores.keys().next();
    patient.wanted.cores.iter().copied().filter(|core| Some(core) != first).collect()
}

/// Checks a property that the forwarders' cores should have, given the cores that have it.
fn judge(
    patient: &Patient<'_>,
    check: &'static str,
    has: &BTreeSet<usize>,
    (good, bad, cost): (&str, &str, &str),
    mend: impl FnOnce(&str) -> Vec<String>,
) -> Vec<Finding> {
    let wanted = &patient.wanted.cores;
    let missing: BTreeSet<usize> = wanted.difference(has).copied().collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    if missing.is_empty() {
        return vec![Finding::ok(check, format!("{good}: {}", list_text(wanted)))];
    }
    let finding = Finding::warning(check, format!("{bad}: {}", list_text(&missing))).cost(cost);
    let isolate = to_isolate(patient);
    // Existing settings for other cores are kept.
    let all: BTreeSet<usize> = isolate.union(has).copied().collect();
    vec![match isolate.is_empty() {
        true => finding.mend(other_cores(patient)),
        false => finding.mend(mend(&list_text(&all))),
    }]
}

/// Returns the configuration of forwarders on better cores, if there are any.
fn other_cores(patient: &Patient<'_>) -> Option<String> {
    mend::better_cores(patient).map(|cores| mend::forwarders(&cores))
}

/// Checks for cores excluded from scheduling.
pub fn isolated(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "isolated-cores";
    let Some(isolated) = patient.machine.list(ISOLATED) else {
        return vec![Finding::unknown(CHECK, ISOLATED)];
    };
    let words = (
        "the scheduler leaves the forwarders' cores alone",
        "the scheduler may run anything on the forwarders' cores",
        "Another task on a forwarder's core holds its packets up for milliseconds.",
    );
    judge(patient, CHECK, &isolated, words, |cores| {
        mend::boot_parameter(patient, "isolcpus", &format!("managed_irq,domain,{cores}"))
    })
}

/// Checks for cores without a timer tick while one task runs.
pub fn tick(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "tick";
    let Some(quiet) = patient.machine.list(NOHZ_FULL) else {
        let hint = "the kernel needs CONFIG_NO_HZ_FULL";
        return vec![Finding::unknown(CHECK, NOHZ_FULL).hint(hint)];
    };
    let words = (
        "no timer tick on the forwarders' cores",
        "the timer ticks on the forwarders' cores",
        "Some microseconds at each tick, 100 to 1,000 times a second.",
    );
    judge(patient, CHECK, &quiet, words, |cores| mend::boot_parameter(patient, "nohz_full", cores))
}

/// Checks for cores whose RCU callbacks run elsewhere: by `rcu_nocbs`, and always without a tick.
pub fn rcu(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "rcu";
    let (machine, cpus) = (patient.machine, &patient.cpus);
    if !machine.has("/proc/cmdline") {
        return vec![Finding::unknown(CHECK, "/proc/cmdline")];
    }
    let value = machine.boot_parameter("rcu_nocbs").unwrap_or_default();
    let by_parameter = match value.as_str() {
        "all" => Some(cpus.cores.keys().copied().collect()),
        list => parse_list(list),
    };
    let Some(mut offloaded) = by_parameter else {
        return vec![Finding::note(
            CHECK,
            format!("cannot tell: rcu_nocbs={value} is not a list of cores"),
        )];
    };
    offloaded.extend(machine.list(NOHZ_FULL).unwrap_or_default());
    let words = (
        "RCU callbacks of the forwarders' cores run elsewhere",
        "RCU callbacks run on the forwarders' cores",
        "The kernel frees its memory there, some tens of microseconds at a time.",
    );
    judge(patient, CHECK, &offloaded, words, |cores| {
        mend::boot_parameter(patient, "rcu_nocbs", cores)
    })
}

/// Checks the kernel's deferred work, which runs on any core of a mask.
pub fn workqueues(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "workqueues";
    const MASK: &str = "/sys/devices/virtual/workqueue/cpumask";
    let forwarders = &patient.wanted.cores;
    let Some(allowed) = patient.machine.mask(MASK) else {
        return vec![Finding::unknown(CHECK, MASK)];
    };
    let found: BTreeSet<usize> = allowed.intersection(forwarders).copied().collect();
    if found.is_empty() {
        return vec![Finding::ok(CHECK, "none on the forwarders' cores")];
    }
    let others = patient.other_cores();
    let finding = Finding::warning(
        CHECK,
        format!("the kernel's workqueues may use the forwarders' cores: {}", list_text(&found)),
    );
    let finding = finding.cost(
        "Writing pages back and other work of the kernel takes a forwarder's core for a while.",
    );
    vec![match others.is_empty() {
        true => finding,
        false => finding.mend([format!("echo {} > {MASK}", mask_text(&others))]),
    }]
}

/// Checks for threads of one physical core shared by two forwarders, or by a forwarder and Linux.
pub fn smt(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "smt";
    let (cpus, forwarders) = (&patient.cpus, &patient.wanted.cores);
    let isolated = patient.machine.list(ISOLATED).unwrap_or_default();
    let (mut findings, mut free) = (Vec::new(), BTreeSet::new());
    for &core in forwarders {
        for sibling in cpus.siblings(core) {
            if forwarders.contains(&sibling) {
                // Once for each pair.
                findings.extend((core < sibling).then(|| two_forwarders(patient, core, sibling)));
            } else if !isolated.contains(&sibling) {
                free.insert(sibling);
            }
        }
    }
    if !free.is_empty() {
        let found = format!(
            "Linux may run anything on the siblings of forwarders' cores: {}",
            list_text(&free)
        );
        let cost = "The two threads share the core's units and caches: a busy sibling slows the forwarder to \
                    about two thirds.";
        let off =
            free.iter().map(|core| format!("echo 0 > /sys/devices/system/cpu/cpu{core}/online"));
        findings.push(Finding::warning(CHECK, found).cost(cost).mend(off));
    }
    if findings.is_empty() && !forwarders.is_empty() {
        findings.push(Finding::ok(CHECK, "each forwarder has a physical core to itself"));
    }
    findings
}

fn two_forwarders(patient: &Patient<'_>, core: usize, sibling: usize) -> Finding {
    let found =
        format!("forwarders on cores {core} and {sibling}, which are threads of one physical core");
    let cost = "Together they forward little more than one of them alone.";
    Finding::warning("smt", found).cost(cost).mend(other_cores(patient))
}

/// Checks for cores of everything but forwarders: slow path, routing daemons, the kernel.
pub fn control_plane(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "control-plane";
    let (forwarders, online) = (&patient.wanted.cores, &patient.cpus.cores);
    if online.is_empty() {
        return vec![Finding::unknown(CHECK, "/sys/devices/system/cpu/online")];
    }
    let left = patient.other_cores();
    if !left.is_empty() {
        return vec![Finding::ok(
            CHECK,
            format!("cores beside the forwarders': {}", list_text(&left)),
        )];
    }
    let cost = "Slow path, routing daemons and kernel take turns with forwarders, a few milliseconds each.";
    let found = format!("forwarders have every core: {}", list_text(forwarders));
    vec![Finding::warning(CHECK, found).cost(cost).mend(other_cores(patient))]
}

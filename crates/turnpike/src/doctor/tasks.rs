//! Other threads on the forwarders' cores, and their cost for running forwarders.

use std::collections::BTreeSet;

use machine::list_text;
use machine::tasks::{PREEMPTED_MOST, Task};

use super::{Finding, Patient};

/// Most processes listed in a finding.
const NAMED: usize = 5;

/// A thread and its process.
type Found = (usize, Task);

/// Returns true for the name of a running router's forwarder: the prefix and its number.
fn is_forwarder(task: &Task) -> bool {
    task.name.strip_prefix("forwarder-").is_some_and(|number| number.parse::<u16>().is_ok())
}

/// Checks for threads of other programs and the kernel that ran last on a forwarder's core and may
/// run there again.
pub fn processes(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "processes";
    let forwarders = &patient.wanted.cores;
    if forwarders.is_empty() {
        return Vec::new();
    }
    let all = patient.machine.tasks();
    if all.is_empty() {
        return vec![Finding::unknown(CHECK, "/proc")];
    }
    let ourselves = patient.machine.link("/proc/self").and_then(|process| process.parse().ok());
    let others = all.iter().filter(|(process, _)| Some(**process) != ourselves);
    let threads = others.flat_map(|(&process, threads)| {
        threads.iter().filter_map(move |thread| Some((process, patient.machine.task(thread)?)))
    });
    let there = |(_, task): &Found| {
        forwarders.contains(&task.core) && task.allowed.contains(&task.core) && !is_forwarder(task)
    };
    let (kernel, user): (Vec<Found>, Vec<Found>) =
        threads.filter(there).partition(|(_, task)| task.of_kernel);
    // The kernel binds some of its threads to each core, and these cannot be moved.
    let kernel: Vec<Found> =
        kernel.into_iter().filter(|(_, task)| task.allowed.len() > 1).collect();
    if user.is_empty() && kernel.is_empty() {
        return vec![Finding::ok(CHECK, "none but forwarders ran last on the forwarders' cores")];
    }
    let cost = "A thread that runs on a forwarder's core holds its packets up for milliseconds.";
    let mut findings = Vec::new();
    if !user.is_empty() {
        let finding = Finding::warning(CHECK, said("programs", &user)).cost(cost);
        findings.push(finding.mend(elsewhere(patient, &user)));
    }
    if !kernel.is_empty() {
        let finding = Finding::note(CHECK, said("the kernel's threads", &kernel)).cost(cost);
        findings.push(finding.mend(elsewhere(patient, &kernel)));
    }
    findings
}

/// Lists the names and numbers of some processes.
fn said(what: &str, found: &[Found]) -> String {
    let mut names: Vec<String> = Vec::new();
    for (process, task) in found {
        let name = format!("{} ({process})", task.name);
        // Of a process with many threads, only one is listed.
        if !names.iter().any(|known| known.ends_with(&format!("({process})"))) {
            names.push(name);
        }
    }
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    names.truncate(NAMED);
    format!("{what} that ran last on the forwarders' cores: {}{more}", names.join(", "))
}

/// Returns the commands that move processes to the other cores, until their restart.
fn elsewhere(patient: &Patient<'_>, found: &[Found]) -> Option<String> {
    let others = patient.other_cores();
    let processes: BTreeSet<usize> = found.iter().map(|(process, _)| *process).collect();
    let processes: Vec<String> = processes.iter().map(ToString::to_string).collect();
    (!others.is_empty()).then(|| {
        format!(
            "for p in {}; do taskset -acp {} $p; done    # for good: isolcpus, or AllowedCPUs= of their slices",
            processes.join(" "),
            list_text(&others)
        )
    })
}

/// Checks for forwarders of a running router that the scheduler has preempted too often.
pub fn preemption(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "preemption";
    let Some(now) = patient.machine.uptime() else {
        return vec![Finding::unknown(CHECK, "/proc/uptime")];
    };
    let threads = patient.machine.tasks().into_values().flatten();
    let forwarders: Vec<Task> =
        threads.filter_map(|thread| patient.machine.task(&thread)).filter(is_forwarder).collect();
    let rate = |task: &Task| {
        let lived = now.saturating_sub(task.began).as_secs_f64().max(1.0);
        task.involuntary as f64 / lived
    };
    let often: Vec<String> = forwarders
        .iter()
        .filter(|task| rate(task) > PREEMPTED_MOST)
        .map(|task| format!("{} (core {}) {:.0} times a second", task.name, task.core, rate(task)))
        .collect();
    if often.is_empty() {
        let found = match forwarders.len() {
            0 => "no router runs now".to_owned(),
            _ => format!("none above {PREEMPTED_MOST} times a second"),
        };
        return vec![Finding::ok(CHECK, found)];
    }
    let found = format!("other threads take the core from {}", often.join(", "));
    let cost =
        "Packets wait meanwhile, some milliseconds each time, and are lost where a queue is short.";
    let mend = "turnpike show forwarders    # what waits, and for how long; then mend processes, isolated-cores";
    vec![Finding::warning(CHECK, found).cost(cost).mend([mend.to_owned()])]
}

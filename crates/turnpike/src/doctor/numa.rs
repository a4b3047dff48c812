//! Ports and forwarders on different nodes.

use std::collections::BTreeSet;

use machine::list_text;

use super::{Finding, Patient, mend};

/// Checks for ports on another node than the forwarders.
pub fn ports(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "numa";
    let (cpus, wanted) = (&patient.cpus, patient.wanted);
    if !cpus.is_numa() {
        return vec![Finding::ok(CHECK, "one node")];
    }
    let port = |port: &super::Port| {
        let node = patient.machine.node_of(&port.device)?;
        let far: BTreeSet<usize> =
            wanted.cores.iter().copied().filter(|&core| cpus.node_of(core) != Some(node)).collect();
        let name = &port.name;
        if far.is_empty() {
            return Some(Finding::ok(
                CHECK,
                format!("port \"{name}\": on node {node} like its forwarders"),
            ));
        }
        let found = format!(
            "port \"{name}\": on node {node}; forwarders on other nodes: {}",
            list_text(&far)
        );
        let cost = "Each packet of these forwarders crosses the link between the nodes.";
        let near = mend::better_cores(patient).map(|cores| mend::forwarders(&cores));
        Some(Finding::warning(CHECK, found).cost(cost).mend(near))
    };
    wanted.ports.iter().filter_map(port).collect()
}

/// Checks the sampling of memory accesses, by which Linux moves tasks and memory between nodes.
pub fn balancing(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "numa-balancing";
    const FILE: &str = "/proc/sys/kernel/numa_balancing";
    if !patient.cpus.is_numa() {
        return Vec::new();
    }
    match patient.machine.number::<u8>(FILE) {
        None => vec![Finding::unknown(CHECK, FILE)],
        Some(0) => vec![Finding::ok(CHECK, "off")],
        Some(_) => {
            let cost = "The kernel unmaps memory to see who uses it: forwarders take page faults.";
            let off = mend::sysctl("kernel.numa_balancing", 0);
            vec![Finding::warning(CHECK, "on").cost(cost).mend(off)]
        }
    }
}

//! Interrupts on the forwarders' cores.

use std::collections::BTreeSet;

use control::config::Device;

use super::{Finding, Patient, Port, devices};
use crate::machine::{list_text, parse_list};

const IRQ: &str = "/proc/irq";

/// Interrupts of devices that forwarders' cores serve.
pub fn affinity(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "interrupts";
    let forwarders = &patient.wanted.cores;
    if forwarders.is_empty() {
        return Vec::new();
    }
    // 0 is the timer of the boot, which nobody can move.
    let numbers = patient.machine.names(IRQ).into_iter().filter_map(|name| name.parse().ok());
    let numbers: Vec<usize> = numbers.filter(|&number| number > 0).collect();
    if numbers.is_empty() {
        return vec![Finding::unknown(CHECK, IRQ)];
    }
    let served = |&number: &usize| !served_by(patient, number).is_disjoint(forwarders);
    let on_forwarders: BTreeSet<usize> = numbers.into_iter().filter(served).collect();
    if on_forwarders.is_empty() {
        return vec![Finding::ok(CHECK, "none on the forwarders' cores")];
    }
    let found = format!(
        "{} on the forwarders' cores: IRQ {}",
        on_forwarders.len(),
        list_text(&on_forwarders)
    );
    let cost = "Each one that comes stops a forwarder for some microseconds.";
    let finding = Finding::warning(CHECK, found).cost(cost);
    let cores = patient.cpus.cores.keys().copied();
    let others: BTreeSet<usize> = cores.filter(|core| !forwarders.contains(core)).collect();
    if others.is_empty() {
        return vec![finding];
    }
    let numbers: Vec<String> = on_forwarders.iter().map(ToString::to_string).collect();
    vec![finding.mend([format!(
        "for i in {}; do echo {} > {IRQ}/$i/smp_affinity_list; done",
        numbers.join(" "),
        list_text(&others)
    )])]
}

/// Cores that serve an interrupt that somebody handles.
fn served_by(patient: &Patient<'_>, number: usize) -> BTreeSet<usize> {
    let base = format!("{IRQ}/{number}");
    // A directory for each handler.
    let names = patient.machine.names(&base);
    let handled = names.iter().any(|name| !patient.machine.is_file(&format!("{base}/{name}")));
    let read = |file: &str| patient.machine.list(&format!("{base}/{file}"));
    if !handled {
        return BTreeSet::new();
    }
    let allowed = read("smp_affinity_list").unwrap_or_default();
    // Not every controller says which of the allowed cores it has chosen. One that is no longer allowed
    // is left at the next interrupt.
    match read("effective_affinity_list") {
        Some(chosen) if !chosen.is_empty() => chosen.intersection(&allowed).copied().collect(),
        _ => allowed,
    }
}

/// A daemon that puts interrupts on all cores that are not isolated.
pub fn irqbalance(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "irqbalance";
    let machine = patient.machine;
    let processes = machine.names("/proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
    let mut names = processes.filter_map(|process| machine.read(&format!("/proc/{process}/comm")));
    if !names.any(|name| name == "irqbalance") {
        return vec![Finding::ok(CHECK, "does not run")];
    }
    // By default it keeps away from isolated cores and those without a tick.
    let list = |file: &str| machine.list(file).unwrap_or_default();
    let mut avoided = list("/sys/devices/system/cpu/isolated");
    avoided.extend(list("/sys/devices/system/cpu/nohz_full"));
    if let Some(banned) = banned(&machine.read("/etc/default/irqbalance").unwrap_or_default()) {
        avoided = banned;
    }
    let wanted = &patient.wanted.cores;
    if wanted.is_subset(&avoided) {
        return vec![Finding::ok(CHECK, "keeps away from the forwarders' cores")];
    }
    let setting = format!("IRQBALANCE_BANNED_CPULIST={}", list_text(wanted.union(&avoided)));
    let cost = "It moves interrupts of any device to forwarders' cores, which stop for each one.";
    vec![Finding::warning(CHECK, "runs, and may use the forwarders' cores").cost(cost).mend([
        format!("echo {setting} >> /etc/default/irqbalance"),
        "systemctl restart irqbalance".to_owned(),
    ])]
}

/// Ports that cannot wake a forwarder that blocks.
pub fn receive(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "receive-interrupts";
    let ports: Vec<_> = patient.wanted.ports.iter().filter(|port| port.blocks).collect();
    if ports.is_empty() {
        return Vec::new();
    }
    let is_silent = |port: &&&Port| match &port.device {
        Device::Kernel(_) => false,
        Device::Vdev(device) => !device.starts_with("net_tap"),
        Device::Pci(address) => devices::driver_of(patient, address).as_deref() != Some("vfio-pci"),
    };
    let silent: Vec<_> = ports.iter().filter(is_silent).map(|port| port.name.as_str()).collect();
    if silent.is_empty() {
        return vec![Finding::ok(CHECK, "of all ports")];
    }
    let cost = "Their forwarders sleep for up to 50 us at a time when they have nothing to do, and do not block: \
                some percent of a core.";
    vec![Finding::note(CHECK, format!("not of {}", silent.join(", "))).cost(cost)]
}

/// The cores that irqbalance's settings keep it away from.
fn banned(settings: &str) -> Option<BTreeSet<usize>> {
    let value = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        parse_list(line.strip_prefix("IRQBALANCE_BANNED_CPULIST=")?.trim_matches('"'))
    };
    settings.lines().filter_map(value).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_setting_counts() {
        let set = |cores: &[usize]| Some(cores.iter().copied().collect());
        assert_eq!(banned("#IRQBALANCE_BANNED_CPULIST=1\n"), None);
        let twice = "IRQBALANCE_BANNED_CPULIST=1\nexport IRQBALANCE_BANNED_CPULIST=\"2-3\"\n";
        assert_eq!(banned(twice), set(&[2, 3]));
        assert_eq!(banned("IRQBALANCE_BANNED_CPULIST=all"), None);
    }
}

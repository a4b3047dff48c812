//! Interrupts on the forwarders' cores.

use std::collections::BTreeSet;

use control::config::Device;
use machine::{list_text, mask_text, parse_list};

use super::{Finding, Patient, Port, devices};

const IRQ: &str = "/proc/irq";

/// Checks for interrupts of devices that forwarders' cores serve.
pub fn affinity(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "interrupts";
    let forwarders = &patient.wanted.cores;
    if forwarders.is_empty() {
        return Vec::new();
    }
    // 0 is the boot timer, which cannot be moved.
    let numbers = patient.machine.names(IRQ).into_iter().filter_map(|name| name.parse().ok());
    let numbers: Vec<usize> = numbers.filter(|&number| number > 0).collect();
    if numbers.is_empty() {
        return vec![Finding::unknown(CHECK, IRQ)];
    }
    // Those of ports are to be on forwarders' cores: see `of_ports`.
    let of_ports: BTreeSet<usize> = interrupts_of_ports(patient).into_iter().collect();
    let served = |number: &usize| {
        !of_ports.contains(number) && !served_by(patient, *number).is_disjoint(forwarders)
    };
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
    let others = patient.other_cores();
    if others.is_empty() {
        return vec![finding];
    }
    vec![finding.mend([move_to(&on_forwarders, &others)])]
}

/// Returns the command that moves interrupts to these cores.
fn move_to(numbers: &BTreeSet<usize>, cores: &BTreeSet<usize>) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let (numbers, cores) = (numbers.join(" "), list_text(cores));
    format!("for i in {numbers}; do echo {cores} > {IRQ}/$i/smp_affinity_list; done")
}

/// Checks the interrupts of kernel interfaces that are ports. The kernel's part of receiving
/// (AF_XDP, AF_PACKET) runs on the core that serves them, which a flood overloads: it should be a
/// forwarder's.
pub fn of_ports(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "port-interrupts";
    let forwarders = &patient.wanted.cores;
    let numbers = interrupts_of_ports(patient);
    if numbers.is_empty() || forwarders.is_empty() {
        return Vec::new();
    }
    let on_control = |number: &usize| !served_by(patient, *number).is_subset(forwarders);
    let found: BTreeSet<usize> = numbers.into_iter().filter(on_control).collect();
    if found.is_empty() {
        return vec![Finding::ok(CHECK, "the forwarders' cores serve those of ports")];
    }
    let text = format!("cores of control serve interrupts of ports: IRQ {}", list_text(&found));
    let cost = "A flood on the port takes the core from routing daemons and slow path.";
    vec![Finding::warning(CHECK, text).cost(cost).mend([move_to(&found, forwarders)])]
}

/// Returns the numbers of the interrupts of kernel interfaces that are ports.
fn interrupts_of_ports(patient: &Patient<'_>) -> Vec<usize> {
    let of = |interface: &str| {
        // A virtio device's interrupts belong to its bus.
        ["device/msi_irqs", "device/../msi_irqs"].map(|place| {
            let names = patient.machine.names(&format!("/sys/class/net/{interface}/{place}"));
            names.into_iter().filter_map(|name| name.parse().ok()).collect::<Vec<usize>>()
        })
    };
    patient.wanted.kernel_interfaces().flat_map(of).flatten().collect()
}

/// Checks receive packet steering: interfaces whose packets the kernel handles on cores of the
/// other kind.
pub fn steering(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "receive-steering";
    const NET: &str = "/sys/class/net";
    let forwarders = &patient.wanted.cores;
    let interfaces = patient.machine.names(NET);
    if interfaces.is_empty() || forwarders.is_empty() {
        return Vec::new();
    }
    let others = patient.other_cores();
    let ports: BTreeSet<&str> = patient.wanted.kernel_interfaces().collect();
    let mut findings = Vec::new();
    for interface in &interfaces {
        let queues = patient.machine.names(&format!("{NET}/{interface}/queues"));
        let masks = queues.iter().filter(|queue| queue.starts_with("rx-")).filter_map(|queue| {
            patient.machine.mask(&format!("{NET}/{interface}/queues/{queue}/rps_cpus"))
        });
        let cores: BTreeSet<usize> = masks.flatten().collect();
        let is_port = ports.contains(interface.as_str());
        let (right, whose) =
            if is_port { (forwarders, "control's") } else { (&others, "forwarders'") };
        if cores.is_subset(right) {
            continue;
        }
        let wrong: BTreeSet<usize> = cores.difference(right).copied().collect();
        let text =
            format!("{interface}: the kernel receives on {whose} cores {}", list_text(&wrong));
        let cost = match is_port {
            true => "A flood on the port takes the core from routing daemons and slow path.",
            false => "Each packet of the interface stops a forwarder.",
        };
        findings.push(Finding::warning(CHECK, text).cost(cost).mend([format!(
            "for q in {NET}/{interface}/queues/rx-*; do echo {} > $q/rps_cpus; done",
            mask_text(right)
        )]));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "no interface's packets on cores of the other kind"));
    }
    findings
}

/// Returns the cores that serve an interrupt with a handler.
fn served_by(patient: &Patient<'_>, number: usize) -> BTreeSet<usize> {
    let base = format!("{IRQ}/{number}");
    // Each handler has a directory.
    let names = patient.machine.names(&base);
    let handled = names.iter().any(|name| !patient.machine.is_file(&format!("{base}/{name}")));
    let read = |file: &str| patient.machine.list(&format!("{base}/{file}"));
    if !handled {
        return BTreeSet::new();
    }
    let allowed = read("smp_affinity_list").unwrap_or_default();
    // Not every controller reports its choice of the allowed cores. A core that is no longer
    // allowed is changed at the next interrupt.
    match read("effective_affinity_list") {
        Some(chosen) if !chosen.is_empty() => chosen.intersection(&allowed).copied().collect(),
        _ => allowed,
    }
}

/// Checks for a daemon that moves interrupts to all cores that are not isolated.
pub fn irqbalance(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "irqbalance";
    let machine = patient.machine;
    let processes = machine.names("/proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
    let mut names = processes.filter_map(|process| machine.read(&format!("/proc/{process}/comm")));
    if !names.any(|name| name == "irqbalance") {
        return vec![Finding::ok(CHECK, "does not run")];
    }
    // By default it avoids isolated cores and those without a tick.
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

/// Checks for ports that cannot wake a blocking forwarder.
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

/// Returns the cores that irqbalance's settings exclude.
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

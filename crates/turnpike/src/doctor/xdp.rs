//! AF_XDP: support by the kernel and by the driver.

use super::{Finding, Patient, mend};

/// Checks for AF_XDP sockets of the kernel, and the compiler of their programs.
pub fn sockets(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "af-xdp";
    const PROTOCOLS: &str = "/proc/self/net/protocols";
    const COMPILER: &str = "/proc/sys/net/core/bpf_jit_enable";
    if patient.wanted.xdp().next().is_none() {
        return Vec::new();
    }
    let Some(protocols) = patient.machine.read(PROTOCOLS) else {
        return vec![Finding::unknown(CHECK, PROTOCOLS)];
    };
    if !protocols.lines().any(|line| line.starts_with("XDP ")) {
        let finding =
            Finding::warning(CHECK, "the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)");
        return vec![
            finding
                .cost("Kernel interfaces are ports by AF_PACKET, which is several times slower."),
        ];
    }
    // Absent if the compiler cannot be switched off.
    match patient.machine.number::<u8>(COMPILER) {
        Some(0) => {
            let finding = Finding::warning(CHECK, "BPF programs are interpreted");
            let cost =
                "The program that passes each packet to the router takes several times as long.";
            vec![finding.cost(cost).mend(mend::sysctl("net.core.bpf_jit_enable", 1))]
        }
        _ => vec![Finding::ok(CHECK, "the kernel has AF_XDP sockets")],
    }
}

/// Checks the drivers of kernel interfaces for XDP, and for AF_XDP without a copy.
pub fn zero_copy(patient: &Patient<'_>) -> Vec<Finding> {
    patient.wanted.xdp().map(|(port, interface)| of_interface(patient, port, interface)).collect()
}

fn of_interface(patient: &Patient<'_>, port: &str, interface: &str) -> Finding {
    const CHECK: &str = "zero-copy";
    let of_port = format!("port \"{port}\": {interface}");
    let xdp = match (patient.xdp)(interface) {
        Ok(Some(xdp)) => xdp,
        Ok(None) => {
            let found = format!("{of_port}: cannot tell: the kernel tells since Linux 6.3");
            return Finding::note(CHECK, found);
        }
        Err(error) => return Finding::note(CHECK, format!("{of_port}: cannot tell: {error}")),
    };
    if xdp.zero_copy {
        let segments =
            xdp.zero_copy_segments.map(|most| format!(", up to {most} buffers a packet"));
        return Finding::ok(
            CHECK,
            format!("{of_port}: its driver has it{}", segments.unwrap_or_default()),
        );
    }
    if xdp.native && xdp.redirect {
        let found = format!("{of_port}: its driver has XDP, but copies packets to AF_XDP");
        let cost = "The kernel copies each packet once each way.";
        return Finding::note(CHECK, found).cost(cost);
    }
    let found = format!("{of_port}: its driver has no XDP");
    let cost = "The kernel makes a socket buffer of each packet before AF_XDP or AF_PACKET gets it: several \
                times slower than a driver with XDP.";
    Finding::note(CHECK, found).cost(cost)
}

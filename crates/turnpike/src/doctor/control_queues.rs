//! Queues for control traffic: support by ports, as far as it is known before they are opened.

use control::config::{Device, Driver};

use super::{Finding, Patient, Port};

const CHECK: &str = "control-queues";

/// The first Linux with tcx, which keeps the host's stack from control traffic.
const TCX: (u32, u32) = (6, 6);

/// Checks the ports of a configuration with queues for control traffic; reports a configuration
/// without.
pub fn ports(patient: &Patient<'_>) -> Vec<Finding> {
    let wanted = patient.wanted;
    if !wanted.control_queues {
        let can = |port: &&Port| is_kernel(port) || matches!(port.device, Device::Pci(_));
        if !wanted.ports.iter().any(|port| can(&port)) {
            return Vec::new();
        }
        let found = "control traffic comes by the queues of all packets";
        let cost = "A flood that overflows a queue loses routing protocols' packets as well.";
        let mend = "turnpike.forwarders { control_queue = true }    -- in the configuration";
        return vec![Finding::note(CHECK, found).cost(cost).mend([mend.to_owned()])];
    }
    wanted.ports.iter().filter_map(|port| of_port(patient, port)).collect()
}

fn is_kernel(port: &Port) -> bool {
    matches!(port.device, Device::Kernel(_))
}

fn of_port(patient: &Patient<'_>, port: &Port) -> Option<Finding> {
    let name = &port.name;
    match &port.device {
        Device::Kernel(_) if port.driver == Some(Driver::AfPacket) => {
            let found = format!("port \"{name}\": by AF_PACKET, which has none");
            let mend = "driver = \"af_xdp\"    -- in the configuration, or no driver".to_owned();
            Some(Finding::note(CHECK, found).mend([mend]))
        }
        Device::Kernel(_) if !port.control_queue => None,
        Device::Kernel(interface) => Some(of_interface(patient, port, interface)),
        Device::Pci(_) if port.control_queue => {
            let found = format!("port \"{name}\": if its device has rules and an RSS table");
            Some(Finding::note(CHECK, found).mend(["turnpike show control-queues".to_owned()]))
        }
        _ => None,
    }
}

fn of_interface(patient: &Patient<'_>, port: &Port, interface: &str) -> Finding {
    let name = &port.name;
    if let Some((major, minor)) = patient.machine.kernel_version().filter(|found| *found < TCX) {
        let found = format!("port \"{name}\": Linux {major}.{minor} has no tcx, Linux 6.6 has");
        return Finding::warning(CHECK, found).cost("The port has no queue for control traffic.");
    }
    let (have, _) = patient.machine.queues(interface);
    if have > port.queues {
        let found = format!(
            "port \"{name}\": {interface} has {have} receive queues and the port uses {}",
            port.queues
        );
        let cost = "The port has no queue for control traffic: the host has the other queues.";
        let mend = format!("ethtool -L {interface} combined {}", port.queues);
        return Finding::warning(CHECK, found).cost(cost).mend([mend]);
    }
    Finding::ok(CHECK, format!("port \"{name}\": by an XDP program"))
}

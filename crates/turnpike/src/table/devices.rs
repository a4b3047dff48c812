//! `turnpike devices` as a table.

use machine::bind::list::{Devices, NetInterface, Nic, Other};

use super::{columns, finish};

/// Formats the NICs, a line each, then other kernel interfaces.
pub fn devices(devices: &Devices) -> String {
    let mut parts = vec![match devices.nics.is_empty() {
        true => "no NIC on the PCI bus".to_owned(),
        false => nics(&devices.nics),
    }];
    if !devices.interfaces.is_empty() {
        parts.push(interfaces(&devices.interfaces));
    }
    parts.join("\n\n")
}

fn nics(nics: &[Nic]) -> String {
    let mut table = columns(&[
        "pci",
        "driver",
        "others",
        "node",
        "group",
        "interface",
        "link",
        "speed",
        "mac",
        "used by",
        "model",
    ]);
    for nic in nics {
        let interface = nic.interfaces.first();
        let own = nic.driver.as_ref();
        let others = nic.drivers.iter().filter(|driver| Some(*driver) != own);
        let names: Vec<_> = nic.interfaces.iter().map(|interface| interface.name.clone()).collect();
        table.add_row(vec![
            nic.pci.clone(),
            or_dash(own.map(|driver| format!("{driver}{}", if nic.remembered { "*" } else { "" }))),
            or_dash(some(&others.cloned().collect::<Vec<_>>())),
            or_dash(nic.numa_node),
            group(nic),
            or_dash(some(&names)),
            or_dash(interface.map(|interface| interface.link)),
            speed(interface),
            or_dash(interface.and_then(|interface| interface.mac.clone())),
            used_by(&nic.used_by, nic.state),
            nic.model.clone(),
        ]);
    }
    let mut text = finish(&table);
    if nics.iter().any(|nic| nic.remembered) {
        text += "\n* bound whenever the machine starts";
    }
    text
}

/// Formats the number, and the other devices; those marked by `!` prevent binding the group to
/// vfio-pci.
fn group(nic: &Nic) -> String {
    let Some(number) = nic.iommu_group else { return "-".to_owned() };
    let mark = |other: &Other| if other.in_the_way { "!" } else { "" };
    let others: Vec<_> =
        nic.group_others.iter().map(|other| format!("{}{}", other.pci, mark(other))).collect();
    some(&others).map_or_else(|| number.to_string(), |others| format!("{number} with {others}"))
}

fn interfaces(interfaces: &[NetInterface]) -> String {
    let mut table = columns(&["interface", "link", "speed", "mac", "used by"]);
    for interface in interfaces {
        table.add_row(vec![
            interface.name.clone(),
            interface.link.to_owned(),
            speed(Some(interface)),
            or_dash(interface.mac.clone()),
            used_by(&interface.used_by, "-"),
        ]);
    }
    finish(&table)
}

fn used_by(users: &[String], state: &str) -> String {
    some(users).unwrap_or_else(|| state.to_owned())
}

fn speed(interface: Option<&NetInterface>) -> String {
    or_dash(
        interface.and_then(|interface| interface.speed_mbps).map(|speed| format!("{speed} Mb/s")),
    )
}

fn some(items: &[String]) -> Option<String> {
    (!items.is_empty()).then(|| items.join(", "))
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_anything_known_are_dashes() {
        let other = |pci: &str, in_the_way| Other { pci: pci.into(), driver: None, in_the_way };
        let eth1 = NetInterface {
            name: "eth1".into(),
            mac: Some("52:54:00:00:00:01".into()),
            link: "up",
            speed_mbps: Some(1000),
            used_by: Vec::new(),
        };
        let nics = vec![
            Nic {
                pci: "0000:03:00.0".into(),
                model: "Intel X".into(),
                driver: Some("e1000e".into()),
                drivers: vec!["e1000e".into(), "vfio-pci".into()],
                iommu_group: Some(7),
                group_others: vec![other("0000:03:00.1", true), other("0000:00:1c.0", false)],
                interfaces: vec![eth1.clone()],
                used_by: vec!["10.0.0.1/24 on eth1".into()],
                state: "kernel",
                remembered: true,
                ..Nic::default()
            },
            Nic { pci: "0000:04:00.0".into(), state: "free", ..Nic::default() },
        ];
        let text = devices(&Devices { nics, interfaces: vec![eth1] });
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(
            lines[1],
            [
                "0000:03:00.0",
                "e1000e*",
                "vfio-pci",
                "-",
                "7 with 0000:03:00.1!, 0000:00:1c.0",
                "eth1",
                "up",
                "1000 Mb/s",
                "52:54:00:00:00:01",
                "10.0.0.1/24 on eth1",
                "Intel X"
            ]
        );
        assert_eq!(lines[2], ["0000:04:00.0", "-", "-", "-", "-", "-", "-", "-", "-", "free"]);
        assert_eq!(lines[3], ["* bound whenever the machine starts"]);
        assert_eq!(lines[6], ["eth1", "up", "1000 Mb/s", "52:54:00:00:00:01", "-"]);
        assert_eq!(devices(&Devices::default()), "no NIC on the PCI bus");
    }
}

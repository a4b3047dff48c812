//! `show bonds` as a table.

use api::report::{Bond, BondPort};

use super::{columns, finish};

/// Formats one line a bond, followed by a line for each of its ports.
pub fn bonds(bonds: &[Bond]) -> String {
    let mut table = columns(&[
        "bond",
        "mode",
        "link",
        "state",
        "partner",
        "key",
        "lacpdus in",
        "lacpdus out",
        "malformed",
    ]);
    for bond in bonds {
        let active = bond.ports.iter().filter(|port| port.distributing).count();
        let sum = |of: fn(&BondPort) -> u64| bond.ports.iter().map(of).sum::<u64>().to_string();
        table.add_row([
            bond.name.clone(),
            format!("{}, {}", bond.mode, bond.hash),
            bond.link.clone(),
            format!("{active} of {} active, {} needed", bond.ports.len(), bond.minimum_links),
            bond.partner.clone().unwrap_or_else(|| "-".to_owned()),
            "-".to_owned(),
            sum(|port| port.lacpdus_in),
            sum(|port| port.lacpdus_out),
            sum(|port| port.malformed),
        ]);
        for port in &bond.ports {
            let partner = port.partner.as_ref();
            table.add_row([
                format!("  {}", port.name),
                String::new(),
                port.link.clone(),
                state(port),
                partner
                    .map_or_else(|| "-".to_owned(), |of| format!("{} port {}", of.system, of.port)),
                partner.map_or_else(|| "-".to_owned(), |of| of.key.to_string()),
                port.lacpdus_in.to_string(),
                port.lacpdus_out.to_string(),
                port.malformed.to_string(),
            ]);
        }
    }
    finish(&table)
}

/// The role of a port, and with LACP the state of its machines.
fn state(port: &BondPort) -> String {
    let active = match (port.collecting, port.distributing) {
        (true, true) => "active",
        (true, false) => "receives",
        _ if port.standby => "standby",
        _ => "inactive",
    };
    match (&port.mux, &port.receive) {
        _ if port.looped => format!("{active} (looped to this router)"),
        (Some(mux), Some(receive)) => format!("{active} ({mux}, partner {receive}{})", churn(port)),
        _ => active.to_owned(),
    }
}

/// The sides of a port that churn.
fn churn(port: &BondPort) -> &'static str {
    match (port.actor_churn, port.partner_churn) {
        (true, true) => ", both churn",
        (true, false) => ", actor churns",
        (false, true) => ", partner churns",
        (false, false) => "",
    }
}

#[cfg(test)]
mod tests {
    use api::report::LacpPartner;

    use super::*;

    #[test]
    fn each_port_of_a_bond_has_a_line() {
        let port = |name: &str, active, mux: Option<&str>| BondPort {
            name: name.to_owned(),
            link: "up".to_owned(),
            collecting: active,
            distributing: active,
            receive: mux.map(|_| "current".to_owned()),
            mux: mux.map(str::to_owned),
            selected: active,
            standby: !active,
            actor_churn: active,
            partner_churn: false,
            looped: false,
            partner: mux.map(|_| LacpPartner {
                system: "02:00:00:00:00:09".to_owned(),
                system_priority: 1,
                key: 17,
                port: 3,
                port_priority: 1,
                state: Vec::new(),
            }),
            lacpdus_in: 2,
            lacpdus_out: 3,
            malformed: 1,
            markers: 0,
        };
        let bond = Bond {
            name: "lag".to_owned(),
            mode: "lacp".to_owned(),
            hash: "l3+l4".to_owned(),
            link: "up".to_owned(),
            minimum_links: 1,
            maximum_links: Some(1),
            partner: Some("02:00:00:00:00:09".to_owned()),
            ports: vec![port("a", true, Some("distributing")), port("b", false, None)],
        };
        let text = bonds(&[bond]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(text.contains("1 of 2 active, 1 needed"), "{text}");
        assert!(text.contains("active (distributing, partner current, actor churns)"), "{text}");
        assert_eq!(lines[1][lines[1].len() - 3..], ["4", "6", "2"], "{text}");
        assert!(lines[2].contains(&"17") && lines[3].contains(&"standby"), "{text}");
    }
}

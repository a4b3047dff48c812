//! Reports as tables for people: columns of text, no frames, so that `grep` and `awk` work on them.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use dataplane::reason::DropReason;

use crate::api::report::{
    Counters, HostInterface, Neighbour, Port, ResolvedPath, Route, RouteAnswer,
};

fn columns(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.iter().map(|title| title.to_uppercase()));
    table
}

fn finish(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// One line a port, its addresses separated by commas.
pub fn ports(ports: &[Port]) -> String {
    let mut table = columns(&[
        "port",
        "device",
        "driver",
        "link",
        "mtu",
        "mac",
        "rx packets",
        "tx packets",
        "missed",
        "to host",
        "from host",
        "addresses",
    ]);
    for port in ports {
        let host = |of: fn(&HostInterface) -> u64| {
            port.host.as_ref().map_or_else(|| "-".to_owned(), |host| of(host).to_string())
        };
        table.add_row([
            port.name.clone(),
            port.device.clone(),
            port.driver.clone(),
            port.link.clone(),
            port.mtu.to_string(),
            port.mac.clone(),
            port.rx_packets.to_string(),
            port.tx_packets.to_string(),
            port.rx_missed.to_string(),
            host(|host| host.up_packets),
            host(|host| host.down_packets),
            port.addresses.join(", "),
        ]);
    }
    finish(&table)
}

/// One line a route.
pub fn routes(routes: &[Route]) -> String {
    let mut table = columns(&["prefix", "type", "source", "paths"]);
    for route in routes {
        let path = |path: &crate::api::report::Path| match path.via {
            Some(via) => format!("{via} ({})", path.port),
            None => path.port.clone(),
        };
        let paths: Vec<_> = route.paths.iter().map(path).collect();
        table.add_row([&route.prefix, &route.kind, &route.source, &paths.join(", ")]);
    }
    finish(&table)
}

/// The route, then one line a path.
pub fn route(answer: &RouteAnswer) -> String {
    let Some(prefix) = &answer.prefix else {
        return format!("{}: no route", answer.address);
    };
    let source = answer.source.as_deref().unwrap_or("?");
    let mut lines = vec![format!("{}: {prefix}, {}, from {source}", answer.address, answer.kind)];
    lines.extend(answer.paths.iter().map(path));
    lines.join("\n")
}

fn path(path: &ResolvedPath) -> String {
    let via = path.via.map_or_else(|| "directly connected".to_owned(), |via| format!("via {via}"));
    let mac = path.mac.as_deref().map_or_else(String::new, |mac| format!(" at {mac}"));
    format!("  {via}{mac} by port {}, {}", path.port, path.state)
}

/// One line a neighbour.
pub fn neighbours(neighbours: &[Neighbour]) -> String {
    let mut table = columns(&["address", "port", "mac", "state", "queued"]);
    for neighbour in neighbours {
        let state = if neighbour.is_static { "static".to_owned() } else { neighbour.state.clone() };
        table.add_row([
            neighbour.address.to_string(),
            neighbour.port.clone(),
            neighbour.mac.clone().unwrap_or_else(|| "-".to_owned()),
            state,
            neighbour.queued.to_string(),
        ]);
    }
    finish(&table)
}

/// Every drop reason, then the sum that must close.
pub fn counters(counters: &Counters) -> String {
    let mut table = columns(&["dropped because", "packets", "meaning"]);
    for &reason in DropReason::ALL {
        let packets = counters.dropped.get(reason.name()).copied().unwrap_or(0);
        table.add_row([reason.name(), &packets.to_string(), reason.help()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let verdict = match counters.unaccounted {
        0 => "the sum closes".to_owned(),
        n => format!("{n} unaccounted: packets are moving, ask again"),
    };
    format!(
        "{}\n\nreceived {} + originated {}\n  = sent {} + to host {} + dropped {} + in flight {}\n{verdict}",
        finish(&table),
        counters.received,
        counters.originated,
        counters.sent,
        counters.to_host,
        counters.dropped_total,
        counters.in_flight,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_reads_as_a_sentence() {
        let path = ResolvedPath {
            port: "right".into(),
            via: Some("10.0.2.2".parse().unwrap()),
            mac: Some("02:00:00:00:00:01".into()),
            state: "reachable".into(),
        };
        let answer = RouteAnswer {
            address: "192.0.2.1".parse().unwrap(),
            prefix: Some("192.0.2.0/24".into()),
            source: Some("static".into()),
            kind: "unicast".into(),
            paths: vec![path],
        };
        assert_eq!(
            route(&answer),
            "192.0.2.1: 192.0.2.0/24, unicast, from static\n  \
             via 10.0.2.2 at 02:00:00:00:00:01 by port right, reachable"
        );
    }

    #[test]
    fn counters_list_every_reason_and_the_verdict() {
        let text = |unaccounted| {
            counters(&Counters {
                received: 7,
                originated: 1,
                sent: 5,
                to_host: 1,
                dropped: [("runt".to_owned(), 2)].into(),
                dropped_total: 2,
                in_flight: 0,
                unaccounted,
            })
        };
        for reason in DropReason::ALL {
            assert!(text(0).contains(reason.name()));
        }
        assert!(text(0).ends_with("the sum closes"));
        assert!(text(-3).ends_with("-3 unaccounted: packets are moving, ask again"));
    }
}

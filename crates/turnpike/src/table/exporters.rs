//! Exporters of samples, and their collectors.

use api::report::{Collector, Exporter, Exporters, Snmp};

use super::{columns, finish, right_align};

/// Formats a line an exporter and a line a collector.
pub fn exporters(of: &Exporters) -> String {
    let Exporters { exporters, snmp } = of;
    if exporters.is_empty() && snmp.is_none() {
        return "nothing is exported; write turnpike.sflow { collector = \"ADDRESS\", sample = 1000 } or turnpike.ipfix"
            .to_owned();
    }
    let mut parts = Vec::new();
    if !exporters.is_empty() {
        parts = vec![lines(exporters), collectors(exporters)];
    }
    parts.extend(snmp.as_ref().map(agent));
    parts.join("\n\n")
}

fn agent(snmp: &Snmp) -> String {
    let Snmp { agentx, state, sessions, requests, last_error } = snmp;
    let mut table = columns(&["snmp agent", "state", "sessions", "requests", "last error"]);
    let error = last_error.clone().unwrap_or_else(|| "-".to_owned());
    table.add_row([
        agentx.clone(),
        state.clone(),
        sessions.to_string(),
        requests.to_string(),
        error,
    ]);
    right_align(&mut table, 2..4);
    finish(&table)
}

fn lines(exporters: &[Exporter]) -> String {
    let header = [
        "exporter", "sample", "sampled", "lost", "exported", "counters", "flows", "unrouted",
        "ignored",
    ];
    let or_none =
        |count: &Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let mut table = columns(&header);
    for exporter in exporters {
        let Exporter {
            name,
            sample,
            sampled,
            lost,
            exported,
            counters,
            flows,
            unrouted,
            ignored,
            ..
        } = exporter;
        table.add_row([
            name.clone(),
            format!("1/{sample}"),
            sampled.to_string(),
            lost.to_string(),
            exported.to_string(),
            or_none(counters),
            or_none(flows),
            unrouted.to_string(),
            ignored.to_string(),
        ]);
    }
    right_align(&mut table, 1..9);
    finish(&table)
}

fn collectors(exporters: &[Exporter]) -> String {
    let mut table = columns(&[
        "exporter",
        "collector",
        "datagrams",
        "bytes",
        "dropped",
        "errors",
        "last error",
    ]);
    for exporter in exporters {
        for Collector { address, datagrams, bytes, dropped, errors, last_error } in
            &exporter.collectors
        {
            table.add_row([
                exporter.name.clone(),
                address.clone(),
                datagrams.to_string(),
                bytes.to_string(),
                dropped.to_string(),
                errors.to_string(),
                last_error.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
    }
    right_align(&mut table, 2..6);
    finish(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exporter_and_each_collector_have_lines() {
        let collector = Collector {
            address: "192.0.2.9:6343".into(),
            datagrams: 5,
            bytes: 700,
            dropped: 1,
            errors: 2,
            last_error: Some("refused".into()),
        };
        let exporter = Exporter {
            name: "sflow".into(),
            sample: 1000,
            sampled: 9,
            lost: 3,
            unrouted: 0,
            ignored: 0,
            exported: 6,
            counters: Some(4),
            flows: None,
            collectors: vec![collector],
        };
        let snmp = Some(Snmp {
            agentx: "/m".into(),
            state: "ready".into(),
            sessions: 1,
            requests: 7,
            last_error: None,
        });
        let text = exporters(&Exporters { exporters: vec![exporter], snmp });
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines[1], "sflow 1/1000 9 3 6 4 - 0 0");
        assert_eq!(lines[4], "sflow 192.0.2.9:6343 5 700 1 2 refused");
        assert_eq!(lines[7], "/m ready 1 7 -");
        assert!(exporters(&Exporters::default()).contains("turnpike.sflow"));
    }
}

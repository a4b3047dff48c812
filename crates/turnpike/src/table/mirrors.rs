//! Mirror sessions.

use api::report::{Erspan, Mirror};

use super::{columns, finish, right_align};

/// Formats a line a session.
pub fn mirrors(mirrors: &[Mirror]) -> String {
    if mirrors.is_empty() {
        return "no packets are mirrored; write turnpike.mirror \"NAME\" { from = \"PORT\", to = \"PORT\" }"
            .to_owned();
    }
    let header =
        ["mirror", "from", "direction", "to", "sample", "vlan", "packets", "bytes", "dropped"];
    let mut table = columns(&header);
    for mirror in mirrors {
        let Mirror { name, from, direction, to, erspan, sample, vlan, packets, bytes, dropped } =
            mirror;
        let from = if from.is_empty() { "rules".to_owned() } else { from.join(",") };
        table.add_row([
            name.clone(),
            from,
            direction.clone(),
            erspan.as_ref().map_or_else(|| to.clone(), |erspan| analyser(to, erspan)),
            format!("1/{sample}"),
            vlan.map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
            packets.to_string(),
            bytes.to_string(),
            dropped.to_string(),
        ]);
    }
    right_align(&mut table, 4..9);
    finish(&table)
}

/// The address of an analyser behind routers, and the session's number there.
fn analyser(address: &str, erspan: &Erspan) -> String {
    let state = if erspan.reachable { "" } else { ", unreachable" };
    format!("{address} (erspan {}{state})", erspan.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_a_line() {
        let mirror = Mirror {
            name: "tap".into(),
            from: vec!["wan".into(), "lan.5".into()],
            direction: "both".into(),
            to: "span".into(),
            erspan: None,
            sample: 10,
            vlan: None,
            packets: 12,
            bytes: 1200,
            dropped: 3,
        };
        let tagged = Mirror { name: "rspan".into(), vlan: Some(999), ..mirror.clone() };
        let erspan =
            Erspan { source: "192.0.2.1".into(), id: 7, vrf: "default".into(), reachable: true };
        let far = Mirror {
            to: "198.51.100.9".into(),
            erspan: Some(erspan.clone()),
            from: vec![],
            ..mirror.clone()
        };
        let lost = Erspan { reachable: false, ..erspan };
        let lost = Mirror { erspan: Some(lost), ..far.clone() };
        let text = mirrors(&[mirror, tagged, far, lost]);
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines[0], "MIRROR FROM DIRECTION TO SAMPLE VLAN PACKETS BYTES DROPPED");
        assert_eq!(lines[1], "tap wan,lan.5 both span 1/10 - 12 1200 3");
        assert_eq!(lines[2], "rspan wan,lan.5 both span 1/10 999 12 1200 3");
        assert_eq!(lines[3], "tap rules both 198.51.100.9 (erspan 7) 1/10 - 12 1200 3");
        assert!(lines[4].contains("198.51.100.9 (erspan 7, unreachable)"), "{}", lines[4]);
        assert!(mirrors(&[]).contains("turnpike.mirror"));
    }
}

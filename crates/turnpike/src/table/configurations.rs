//! Changes of configurations, and their history.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::report::{ChangePlan, HistoryEntry, PlannedChange};
use dataplane::words::count;

use super::{columns, finish};

/// Formats one line a change: `+` is new, `-` is removed, `~` is changed.
pub fn plan(plan: &ChangePlan) -> String {
    if plan.changes.is_empty() {
        return "nothing would change".to_owned();
    }
    let mut lines: Vec<String> = plan.changes.iter().map(change).collect();
    let routes = plan.changes.iter().filter(|change| change.what.starts_with("route "));
    let all_routes = plan.routes.added + plan.routes.removed + plan.routes.changed;
    let hidden = all_routes - routes.count().min(all_routes);
    if hidden > 0 {
        let more = format!("… and {}; --all shows them", count(hidden, "more route"));
        lines.push(more);
    }
    let all = plan.changes.len() + hidden;
    let restart = plan.changes.iter().filter(|change| !change.live).count();
    let all = count(all, "change");
    lines.push(match restart {
        0 => format!("\n{all}, without a restart"),
        1 => format!("\n{all}, of which 1 needs a restart: apply refuses them all"),
        n => format!("\n{all}, of which {n} need a restart: apply refuses them all"),
    });
    lines.join("\n")
}

fn change(change: &PlannedChange) -> String {
    let PlannedChange { what, from, to, live, reopens, because } = change;
    let line = match (from, to) {
        (None, Some(to)) => format!("+ {what}: {to}"),
        (Some(from), None) => format!("- {what}: {from}"),
        (from, to) => {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            format!("~ {what}: {} -> {}", text(from), text(to))
        }
    };
    match (live, reopens) {
        (false, _) => match because {
            Some(why) => format!("{line}  [needs a restart: {why}]"),
            None => format!("{line}  [needs a restart]"),
        },
        (true, true) => format!("{line}  [closes the port and opens it again]"),
        (true, false) => line,
    }
}

/// Formats one line a configuration, the newest first.
pub fn history(entries: &[HistoryEntry]) -> String {
    let mut table = columns(&["number", "state", "age", "by", "changed", "file"]);
    for entry in entries.iter().rev() {
        let state = match (&entry.state, entry.confirm_s) {
            (Some(state), Some(seconds)) => format!("{state}, {seconds} s"),
            (state, _) => state.clone().unwrap_or_default(),
        };
        table.add_row([
            entry.number.to_string(),
            state,
            age(UNIX_EPOCH + Duration::from_secs(entry.time_s)),
            entry.origin.clone(),
            entry.summary.clone(),
            entry.file.clone(),
        ]);
    }
    finish(&table)
}

/// Formats the two largest units: `3d4h`, `2m10s`, `7s`.
fn age(then: SystemTime) -> String {
    let seconds = then.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::report::RouteChanges;

    fn planned(what: &str, from: Option<&str>, to: Option<&str>, live: bool) -> PlannedChange {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let reopens = live && what.ends_with("mtu");
        PlannedChange {
            what: what.to_owned(),
            from: owned(from),
            to: owned(to),
            live,
            reopens,
            because: (!live).then(|| "it is so".to_owned()),
        }
    }

    #[test]
    fn a_plan_says_what_is_new_gone_and_different_and_what_needs_a_restart() {
        let mut report = ChangePlan {
            file: "/r.lua".to_owned(),
            changes: vec![
                planned("graph: step \"x\"", Some("\"x\""), None, true),
                planned("memory: mbufs", Some("1500"), Some("9000"), false),
                planned("port \"a\": mtu", Some("1500"), Some("9000"), true),
                planned("route 10.0.0.0/8", None, Some("blackhole"), true),
            ],
            routes: RouteChanges { added: 5, removed: 0, changed: 1 },
            restart: true,
        };
        assert_eq!(
            plan(&report),
            "- graph: step \"x\": \"x\"\n\
             ~ memory: mbufs: 1500 -> 9000  [needs a restart: it is so]\n\
             ~ port \"a\": mtu: 1500 -> 9000  [closes the port and opens it again]\n\
             + route 10.0.0.0/8: blackhole\n\
             … and 5 more routes; --all shows them\n\n\
             9 changes, of which 1 needs a restart: apply refuses them all"
        );
        report.changes.drain(1..);
        report.routes = RouteChanges::default();
        assert!(plan(&report).ends_with("\n1 change, without a restart"), "{}", plan(&report));
        report.changes.clear();
        assert_eq!(plan(&report), "nothing would change");
    }

    #[test]
    fn ages_have_two_units() {
        let ago = |seconds| age(SystemTime::now() - Duration::from_secs(seconds));
        assert_eq!([ago(7), ago(130), ago(7500), ago(273_700)], ["7s", "2m10s", "2h5m", "3d4h"]);
    }
}

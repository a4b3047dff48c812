//! The changes to replay: from a file, or generated.
//!
//! A file has lines of `unix-time a|w PREFIX NEXTHOP`, `a` to announce, `w` to withdraw (whose next
//! hop may be left out); empty lines and those that begin with `;` or `#` are skipped; it may be
//! compressed by gzip. Only changes with an effect are replayed, as a RIB passes only those to its
//! FIB: no withdrawal of a missing route, no announcement of an existing one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fib::synthetic::Random;
use fib::{Change, MAX_NEXT_HOP, NextHopId, Prefix};
use flate2::read::MultiGzDecoder;
use ipnet::IpNet;

use crate::workload::routes::{Family, Routes};

/// Number of generated changes if the file has none.
const MADE_UP: usize = 20_000;

/// One line of a file of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The destination.
    pub net: IpNet,
    /// Its new next hop; none for a withdrawal.
    pub next_hop: Option<IpAddr>,
}

/// Reads a file of updates.
///
/// # Errors
/// The file cannot be read, or a line is not an update: the line's number and its fault.
pub fn read(file: &Path) -> Result<Vec<Update>> {
    let open = || -> std::io::Result<Box<dyn BufRead>> {
        let mut raw = BufReader::new(File::open(file)?);
        let compressed = raw.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        Ok(match compressed {
            true => Box::new(BufReader::new(MultiGzDecoder::new(raw))),
            false => Box::new(raw),
        })
    };
    let mut text = String::new();
    let read = open().and_then(|mut reader| reader.read_to_string(&mut text));
    read.with_context(|| format!("--updates {}: cannot be read", file.display()))?;
    let mut updates = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        let place = || format!("--updates {}: line {number}", file.display());
        updates.push(parse(line).with_context(place)?);
    }
    ensure!(!updates.is_empty(), "--updates {}: no updates in it", file.display());
    Ok(updates)
}

/// Parses one line.
fn parse(line: &str) -> Result<Update> {
    let mut words = line.split_whitespace();
    let mut word = |what: &str| {
        words.next().with_context(|| {
            format!("{line:?}: {what} is missing; expected UNIX-TIME a|w PREFIX NEXTHOP")
        })
    };
    let time = word("the time")?;
    ensure!(time.parse::<f64>().is_ok(), "{time:?} is not a time in seconds");
    let kind = word("a or w")?;
    let net = word("the prefix")?;
    let net: IpNet = net
        .parse()
        .ok()
        .with_context(|| format!("{net:?} is not a prefix; write ADDRESS/LENGTH"))?;
    ensure!(net.trunc() == net, "{net}: host bits are set; the prefix is {}", net.trunc());
    let next_hop = match kind {
        "a" => {
            let text = word("the next hop")?;
            Some(text.parse().ok().with_context(|| format!("{text:?} is not an address"))?)
        }
        "w" => None,
        _ => bail!("{kind:?}: expected a (announce) or w (withdraw)"),
    };
    Ok(Update { net, next_hop })
}

/// Changes that each have an effect on their table, and those that undo them.
pub struct ChangeList<A: Family> {
    /// The changes in order.
    pub changes: Vec<Change<A>>,
    /// The changes from the table after all changes back to the one before.
    pub undo: Vec<Change<A>>,
    /// Their source, for the report.
    pub source: String,
}

/// Returns the changes of one family: the file's, or generated ones if there are none. The file's
/// next hops get numbers above the table's, `next_hops`.
pub fn plan<A: Family>(
    routes: &Routes<A>,
    updates: &[Update],
    next_hops: NextHopId,
) -> ChangeList<A> {
    let changes = of_family::<A>(updates, next_hops);
    let all = changes.len();
    if all == 0 {
        let mut plan = effective(routes, churn(routes));
        plan.source = format!("{} changes, made up", plan.changes.len());
        return plan;
    }
    let mut plan = effective(routes, changes);
    plan.source = format!("{} changes, of {all} updates in the file", plan.changes.len());
    plan
}

/// Converts the updates of one family to changes.
fn of_family<A: Family>(updates: &[Update], next_hops: NextHopId) -> Vec<Change<A>> {
    let mut numbers: HashMap<IpAddr, NextHopId> = HashMap::new();
    let mut number = |address: IpAddr| {
        let room = usize::from(MAX_NEXT_HOP - next_hops).max(1);
        let next = MAX_NEXT_HOP.min(next_hops + 1 + (numbers.len() % room) as NextHopId);
        *numbers.entry(address).or_insert(next)
    };
    let of_family = |update: &Update| {
        let prefix = A::prefix(update.net)?;
        Some(match update.next_hop {
            Some(address) => Change::Insert { prefix, next_hop: number(address) },
            None => Change::Remove { prefix },
        })
    };
    updates.iter().filter_map(of_family).collect()
}

/// Generates changes, a third each: a route is removed, a removed one returns with another next
/// hop, a route changes its next hop.
fn churn<A: Family>(routes: &Routes<A>) -> Vec<Change<A>> {
    let mut random = Random::new(0x6368_7572);
    let mut away: Vec<(Prefix<A>, NextHopId)> = Vec::new();
    let other = |next_hop: NextHopId| next_hop % MAX_NEXT_HOP + 1;
    let mut changes = Vec::with_capacity(MADE_UP);
    for turn in 0..MADE_UP {
        let (prefix, next_hop) = routes[random.below(routes.len() as u64) as usize];
        changes.push(match turn % 3 {
            0 => {
                away.push((prefix, next_hop));
                Change::Remove { prefix }
            }
            1 if !away.is_empty() => {
                let (prefix, next_hop) = away.swap_remove(random.below(away.len() as u64) as usize);
                Change::Insert { prefix, next_hop: other(next_hop) }
            }
            _ => Change::Insert { prefix, next_hop: other(next_hop) },
        });
    }
    changes
}

/// Leaves out changes without effect, and finds those that undo the others.
fn effective<A: Family>(routes: &Routes<A>, all: Vec<Change<A>>) -> ChangeList<A> {
    let mut table: HashMap<Prefix<A>, NextHopId> = routes.iter().copied().collect();
    let (mut changes, mut undo) = (Vec::new(), Vec::new());
    for change in all {
        let prefix = change.prefix();
        let before = match change {
            Change::Insert { next_hop, .. } => match table.insert(prefix, next_hop) {
                Some(before) if before == next_hop => continue,
                before => before,
            },
            Change::Remove { .. } => match table.remove(&prefix) {
                None => continue,
                before => before,
            },
        };
        changes.push(change);
        undo.push(match before {
            Some(next_hop) => Change::Insert { prefix, next_hop },
            None => Change::Remove { prefix },
        });
    }
    undo.reverse();
    ChangeList { changes, undo, source: String::new() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn read_text(text: &str) -> Result<Vec<Update>, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("updates");
        std::fs::write(&file, text).unwrap();
        read(&file).map_err(|error| format!("{error:#}").replace(file.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn files_are_read_plain_and_compressed() {
        let text = "# made at an exchange\n\n1418774413 w 202.70.88.0/21 0.0.0.0\n\
                    1418774413.5 a 2001:db8::/32 2001:db8::1\n1418774414 w 10.0.0.0/8\n";
        let updates = read_text(text).unwrap();
        let expected = [
            Update { net: "202.70.88.0/21".parse().unwrap(), next_hop: None },
            Update {
                net: "2001:db8::/32".parse().unwrap(),
                next_hop: Some("2001:db8::1".parse().unwrap()),
            },
            Update { net: "10.0.0.0/8".parse().unwrap(), next_hop: None },
        ];
        assert_eq!(updates, expected);

        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("updates.gz");
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        std::fs::write(&file, gz.finish().unwrap()).unwrap();
        assert_eq!(read(&file).unwrap(), expected);
    }

    #[test]
    fn bad_lines_are_named_by_number_and_reason() {
        let error = |line: &str| read_text(&format!("1 w 10.0.0.0/8\n{line}\n")).unwrap_err();
        let start = "--updates FILE: line 2: ";
        for (line, reason) in [
            ("soon w 10.0.0.0/8", "\"soon\" is not a time in seconds"),
            ("1 x 10.0.0.0/8", "\"x\": expected a (announce) or w (withdraw)"),
            ("1 a 10.0.0.0 1.1.1.1", "\"10.0.0.0\" is not a prefix; write ADDRESS/LENGTH"),
            ("1 a 10.0.0.1/8 1.1.1.1", "10.0.0.1/8: host bits are set; the prefix is 10.0.0.0/8"),
            ("1 a 10.0.0.0/8 gw", "\"gw\" is not an address"),
            (
                "1 a 10.0.0.0/8",
                "\"1 a 10.0.0.0/8\": the next hop is missing; expected UNIX-TIME a|w PREFIX NEXTHOP",
            ),
            ("1", "\"1\": a or w is missing; expected UNIX-TIME a|w PREFIX NEXTHOP"),
        ] {
            assert_eq!(error(line), format!("{start}{reason}"));
        }
        assert_eq!(read_text("\n# nothing\n").unwrap_err(), "--updates FILE: no updates in it");
        let missing = read(Path::new("/no/such")).unwrap_err().to_string();
        assert_eq!(missing, "--updates /no/such: cannot be read");
    }

    fn apply(table: &mut BTreeMap<Prefix<Ipv4Addr>, NextHopId>, changes: &[Change<Ipv4Addr>]) {
        for change in changes {
            let changed = match *change {
                Change::Insert { prefix, next_hop } => {
                    table.insert(prefix, next_hop) != Some(next_hop)
                }
                Change::Remove { prefix } => table.remove(&prefix).is_some(),
            };
            assert!(changed, "{change:?} changes nothing");
        }
    }

    #[test]
    fn every_change_changes_something_and_undo_brings_back_the_table() {
        let routes = fib::synthetic::ipv4(500, 20);
        let updates: Vec<Update> = routes
            .iter()
            .flat_map(|&(prefix, _)| {
                let net = IpNet::V4(prefix.into());
                let via = |text: &str| Some(text.parse().unwrap());
                [via("1.1.1.1"), via("1.1.1.1"), via("2.2.2.2"), None, None]
                    .map(|next_hop| Update { net, next_hop })
            })
            .collect();
        let plan_of_file = plan(&routes, &updates, 20);
        assert_eq!(plan_of_file.changes.len(), 3 * routes.len());
        assert_eq!(plan_of_file.source, "1500 changes, of 2500 updates in the file");
        let prefix = routes[0].0;
        let expected = [
            Change::Insert { prefix, next_hop: 21 },
            Change::Insert { prefix, next_hop: 22 },
            Change::Remove { prefix },
        ];
        assert_eq!(plan_of_file.changes[..3], expected);

        let before: BTreeMap<_, _> = routes.iter().copied().collect();
        let made_up = plan::<Ipv4Addr>(&routes, &[], 20);
        assert!(made_up.changes.len() > MADE_UP / 2, "{}", made_up.source);
        for plan in [plan_of_file, made_up] {
            let mut table = before.clone();
            apply(&mut table, &plan.changes);
            assert_ne!(table, before);
            apply(&mut table, &plan.undo);
            assert_eq!(table, before);
        }
    }

    #[test]
    fn updates_of_the_other_family_are_passed_over() {
        let updates = [Update { net: "11.0.0.0/8".parse().unwrap(), next_hop: None }];
        let plan = plan::<Ipv6Addr>(&fib::synthetic::ipv6(50, 5), &updates, 5);
        assert!(plan.source.ends_with("made up"), "{}", plan.source);
    }

    #[test]
    fn next_hops_of_the_file_stay_in_range() {
        let update = |host: u32| Update {
            net: "11.0.0.0/8".parse().unwrap(),
            next_hop: Some(Ipv4Addr::from(host).into()),
        };
        let updates: Vec<Update> = (1..40_000).map(update).collect();
        for next_hops in [1, MAX_NEXT_HOP - 3, MAX_NEXT_HOP] {
            for change in of_family::<Ipv4Addr>(&updates, next_hops) {
                let Change::Insert { next_hop, .. } = change else { panic!("{change:?}") };
                assert!((1..=MAX_NEXT_HOP).contains(&next_hop), "{next_hop}");
            }
        }
    }
}

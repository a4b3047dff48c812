//! `turnpike bench filter --set N`: cost of adding and removing an element of a named set, and of
//! looking up a packet in the set, compared with a rule that lists the same prefixes.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use acl::{Action, BATCH, Classifier, Family, Fields, Filter, FilterAddress, Matches, Rule, Sets};
use anyhow::{Context, Result};
use fib::NoReaders;
use fib::synthetic::Random;
use ipnet::IpNet;
use serde::Serialize;

use super::super::meter::{self, Meter};

/// Number of elements that are removed and added again, one by one.
const CHANGES: usize = 10_000;

/// Number of different packets.
const PACKETS: usize = 1 << 16;

/// A kind of elements, and its costs.
#[derive(Debug, Serialize)]
pub(super) struct SetOutcome {
    /// Their prefixes' family and length.
    elements: String,
    count: usize,
    /// Time to add all of them to an empty set.
    load_ms: f64,
    /// Microseconds of one change: the median and the 99th percentile.
    change_us: [f64; 2],
    /// Cycles of the time-stamp counter per packet with a rule that uses the set; medians over the
    /// rounds.
    set_cycles: f64,
    /// The same with a rule that lists the elements.
    list_cycles: f64,
}

/// Measures sets of this many hosts and networks of both families. Half of the packets come from an
/// element.
pub(super) fn measure(count: usize, rounds: usize) -> Result<Vec<SetOutcome>> {
    Ok(vec![
        of::<Ipv4Addr>(count, 24, rounds)?,
        of::<Ipv4Addr>(count, 32, rounds)?,
        of::<Ipv6Addr>(count, 48, rounds)?,
        of::<Ipv6Addr>(count, 128, rounds)?,
    ])
}

fn of<A: FilterAddress>(count: usize, length: u8, rounds: usize) -> Result<SetOutcome> {
    let mut random = Random::new(7);
    let nets: Vec<IpNet> =
        (0..count).map(|_| net(address(A::OF, &mut random), length)).collect::<Result<_>>()?;
    let mut sets = Sets::new(|| Box::new(NoReaders))?;
    let set = sets.add_set("set").context("no set can be made")?;
    let start = Instant::now();
    for net in &nets {
        sets.add(set, *net)?;
    }
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let mut changes = Vec::new();
    for net in nets.iter().take(CHANGES) {
        let start = Instant::now();
        sets.remove(set, *net)?;
        let between = Instant::now();
        sets.add(set, *net)?;
        changes.extend([between - start, between.elapsed()].map(|time| time.as_secs_f64() * 1e6));
    }
    changes.sort_by(f64::total_cmp);
    let packets = packets::<A>(&nets, &mut random);
    let by_set = Matches { from_set: vec!["set".to_owned()], ..Matches::default() };
    let by_list = Matches { from: nets, ..Matches::default() };
    let classifiers = [by_set, by_list].map(|matches| {
        let rule = Rule { name: None, line: 0, matches, action: Action::Drop };
        let filter = Filter { name: "set".into(), rules: vec![rule], default: Action::Accept };
        Classifier::<A>::new(&filter, &sets.readers())
    });
    let [by_set, by_list] = classifiers;
    let (set_cycles, list_cycles) = rounds_of(rounds, &packets, &by_set?, &by_list?)?;
    let median = meter::median(&changes).context("no change was measured")?;
    Ok(SetOutcome {
        elements: format!("{} /{length}", A::OF),
        count,
        load_ms,
        change_us: [median, changes[changes.len() * 99 / 100]],
        set_cycles,
        list_cycles,
    })
}

/// Returns a random address; those of IPv6 are in 2000::/3.
fn address(family: Family, random: &mut Random) -> IpAddr {
    match family {
        Family::Ip4 => Ipv4Addr::from_bits(random.word() as u32).into(),
        Family::Ip6 => Ipv6Addr::from_bits(random.wide() >> 3 | 1 << 125).into(),
    }
}

fn net(address: IpAddr, length: u8) -> Result<IpNet> {
    Ok(IpNet::new(address, length)?.trunc())
}

fn packets<A: FilterAddress>(nets: &[IpNet], random: &mut Random) -> Vec<Fields<A>> {
    let mut batches = Vec::new();
    for batch in 0..PACKETS / BATCH {
        let mut fields = Fields::default();
        for place in 0..BATCH {
            let source = match place % 2 {
                0 => address(A::OF, random),
                _ => nets[(batch * BATCH + place) % nets.len()].addr(),
            };
            let packet = acl::packet::read(&format!("udp {source} > {source}"), |_| Ok(0));
            packet.iter().for_each(|(_, key)| fields.push(key));
        }
        batches.push(fields);
    }
    batches
}

/// Returns the medians of the cycles per packet of both classifiers, measured by turns.
fn rounds_of<A: FilterAddress>(
    rounds: usize,
    packets: &[Fields<A>],
    by_set: &Classifier<A>,
    by_list: &Classifier<A>,
) -> Result<(f64, f64)> {
    let (mut meter, mut found) = (Meter::new(), [0; BATCH]);
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (cycles, classifier) in all.iter_mut().zip([by_set, by_list]) {
            let turn = || {
                for fields in packets {
                    classifier.classify(fields, &mut found);
                    black_box(&found);
                }
                PACKETS as u64
            };
            cycles.push(meter.measure(turn).cycles);
        }
    }
    let [set, list] = all.map(|mut cycles| {
        cycles.sort_by(f64::total_cmp);
        meter::median(&cycles).context("no round was measured")
    });
    Ok((set?, list?))
}

/// Formats the outcomes as a table in Markdown.
pub(super) fn table(outcomes: &[SetOutcome]) -> String {
    let mut lines = vec![
        "one set: load in ms, a change in us (median, 99 %), cycles per packet by the set and by a list".to_owned(),
        "| elements | | load | change | 99 % | set | list |".to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    for SetOutcome { elements, count, load_ms, change_us, set_cycles, list_cycles } in outcomes {
        let [median, most] = change_us;
        lines.push(format!(
            "| {count} | {elements} | {load_ms:.0} | {median:.1} | {most:.1} | {set_cycles:.0} | {list_cycles:.0} |"
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kind_of_elements_is_measured() {
        let outcomes = super::measure(50, 2).unwrap();
        let table = super::table(&outcomes);
        assert_eq!(table.lines().count(), 3 + 4, "{table}");
        assert!(outcomes.iter().all(|of| of.set_cycles > 0.0 && of.list_cycles > 0.0), "{table}");
    }
}

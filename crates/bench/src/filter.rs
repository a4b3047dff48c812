//! `turnpike bench filter`: cost of finding a packet's rule, in our classifier, in DPDK's `rte_acl` and by tuple-space
//! search ([`tuples`]).
//!
//! The rules are generated in the manner of ClassBench ([`acl::generate`]): access lists, firewalls
//! and IP chains of several sizes. Half of the packets are random, half are made for a random rule.
//! All structures are first compared with the slow walk of the rules, then look up the same
//! packets by turns, 64 at a time, in one process on one core; the median and the minimum over the
//! rounds are reported. Only the lookup is timed, not the extraction of a packet's fields.

mod sets;
mod tuples;

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use acl::generate::{self, Kind};
use acl::{BATCH, Classifier, Family, Fields, Filter, FilterAddress, Key, rte};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use dpdk::Eal;
use dpdk::acl::{Acl, AclField, AclForm, AclMatch};
use serde::Serialize;

use self::tuples::{Search, Tuples};
use super::meter::{self, Meter, Place};
use super::progress;
use crate::workload::pattern::Zipf;

/// Number of different packets.
const PACKETS: usize = 1 << 16;

/// Number of packets that are compared with the walk.
const COMPARED: usize = 1 << 11;

/// The instructions of `rte_acl`'s lookups.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// The widest that the processor has
    Widest,
    /// Without vectors
    Scalar,
    /// Vectors of AVX2, as by DPDK's own choice
    Avx2,
    /// Vectors of AVX-512
    Avx512,
}

impl Form {
    /// Sets them, or the first of several that the processor has.
    fn set(self, acl: &mut Acl<{ rte::KEY }>) -> Result<(), dpdk::Error> {
        let forms: &[AclForm] = match self {
            Self::Widest => &[AclForm::Avx512, AclForm::Avx2, AclForm::Scalar],
            Self::Scalar => &[AclForm::Scalar],
            Self::Avx2 => &[AclForm::Avx2],
            Self::Avx512 => &[AclForm::Avx512],
        };
        let mut result = Ok(());
        for form in forms {
            result = acl.look_up_by(*form);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

/// Options of the measurement.
#[derive(Debug, Args)]
pub struct FilterArgs {
    /// Rules, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000, 10_000])]
    rules: Vec<usize>,
    /// Rounds in which every structure takes its turn
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Measure named sets of this many elements instead
    #[arg(long, value_name = "ELEMENTS", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    set: Option<u32>,
    /// Instructions of rte_acl's lookups
    #[arg(long, value_name = "FORM", default_value = "widest")]
    rte_acl: Form,
    #[command(flatten)]
    place: Place,
}

/// A line of the result.
#[derive(Debug, Serialize)]
struct Outcome {
    family: &'static str,
    kind: &'static str,
    rules: usize,
    /// Traffic pattern: `random`, or `zipf`, where the k-th most frequent packet has probability ~
    /// 1/k.
    traffic: &'static str,
    turnpike: Figures,
    /// `None` if the rules do not fit into it.
    rte_acl: Option<Figures>,
    /// `None` if the rules become too many entries.
    tuples: Option<Figures>,
}

/// Figures of one structure.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    /// Cycles of the time-stamp counter per packet, median over the rounds.
    cycles: f64,
    min: f64,
    build_ms: f64,
}

/// Runs the benchmark and prints its result.
pub fn run(args: &FilterArgs) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    meter::pin(args.place.core)?;
    if let Some(count) = args.set {
        let outcomes = sets::measure(count as usize, args.rounds)?;
        return match args.place.json {
            true => super::print(&serde_json::to_string_pretty(&outcomes)?),
            false => super::print(&sets::table(&outcomes)),
        };
    }
    let eal = args.place.eal(512)?;
    let progress = progress::bar((2 * 3 * args.rules.len()) as u64, "filter");
    let mut outcomes = Vec::new();
    for &rules in &args.rules {
        for kind in Kind::ALL {
            outcomes.extend(measure::<Ipv4Addr>(&eal, kind, rules, args)?);
            progress.inc(1);
            outcomes.extend(measure::<Ipv6Addr>(&eal, kind, rules, args)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    match args.place.json {
        true => super::print(&serde_json::to_string_pretty(&outcomes)?),
        false => super::print(&table(&outcomes)),
    }
}

/// The structures to compare with: `rte_acl`, and tuples.
type Peers<'a> = (Option<&'a Peer>, Option<&'a dyn Search>);

/// `rte_acl`, and its build time.
type Peer = (Acl<{ rte::KEY }>, f64);

/// Measures one set of rules with both kinds of traffic.
fn measure<A: FilterAddress>(
    eal: &Eal,
    kind: Kind,
    rules: usize,
    args: &FilterArgs,
) -> Result<Vec<Outcome>> {
    let filter = generate::rules(kind, A::OF, rules, 1);
    let start = Instant::now();
    let classifier = Classifier::<A>::new(&filter, &acl::SetReaders::none())?;
    let build_ms = start.elapsed().as_secs_f64() * 1e3;
    let mut peer = peer(eal, &filter, A::OF);
    if let Some((acl, _)) = &mut peer {
        args.rte_acl.set(acl)?;
    }
    let start = Instant::now();
    let tuples = Tuples::new(&filter, A::OF);
    let tuples_ms = start.elapsed().as_secs_f64() * 1e3;
    let packets = generate::packets(&filter, A::OF, PACKETS, 2);
    let keys: Vec<Key> = packets.iter().map(|packet| packet.key(A::OF)).collect();
    let zipf = Zipf::new(keys.len());
    let mut random = fib::synthetic::Random::new(3);
    let frequent = (0..PACKETS).map(|_| keys[zipf.draw(&mut random)]).collect();
    let mut outcomes = Vec::new();
    for (traffic, keys) in [("random", keys), ("zipf", frequent)] {
        let batches = Batches::<A>::new(&keys);
        let search = tuples.as_ref().map(|tuples| tuples.pack(&batches.bytes));
        let peers = (peer.as_ref(), search.as_deref());
        compare(&filter, &keys, &classifier, &batches, peers)?;
        let [own, others, by_tuples] = rounds_of(args.rounds, &classifier, &batches, peers);
        outcomes.push(Outcome {
            family: if A::OF == Family::Ip4 { "IPv4" } else { "IPv6" },
            kind: kind.name(),
            rules,
            traffic,
            turnpike: figures(own, build_ms)?,
            rte_acl: match &peer {
                Some((_, build_ms)) => Some(figures(others, *build_ms)?),
                None => None,
            },
            tuples: match &tuples {
                Some(_) => Some(figures(by_tuples, tuples_ms)?),
                None => None,
            },
        });
    }
    Ok(outcomes)
}

/// Builds the same rules in `rte_acl`, if they fit.
fn peer(eal: &Eal, filter: &Filter, family: Family) -> Option<Peer> {
    let start = Instant::now();
    let compiled = rte::compile(filter, family).ok()?;
    let field = |field: &rte::Field| AclField {
        by: match field.kind {
            rte::FieldKind::Mask => AclMatch::Prefix,
            rte::FieldKind::Range => AclMatch::Range,
            rte::FieldKind::Bitmask => AclMatch::Bits,
        },
        size: field.size,
        offset: field.offset,
        group: field.group,
    };
    let fields: Vec<_> = compiled.fields.iter().map(field).collect();
    let entries: Vec<_> =
        compiled.entries.into_iter().map(|entry| (entry.values, entry.rule + 1)).collect();
    let made = Acl::new(eal, &fields, &entries).ok()?;
    Some((made, start.elapsed().as_secs_f64() * 1e3))
}

/// Packets in the input format of each structure.
struct Batches<A: FilterAddress> {
    own: Vec<Fields<A>>,
    bytes: Vec<[u8; rte::KEY]>,
}

impl<A: FilterAddress> Batches<A> {
    fn new(keys: &[Key]) -> Self {
        let fields = |keys: &[Key]| {
            let mut fields = Fields::default();
            keys.iter().for_each(|key| fields.push(key));
            fields
        };
        Self {
            own: keys.chunks(BATCH).map(fields).collect(),
            bytes: keys.iter().map(|key| rte::bytes(key, A::OF)).collect(),
        }
    }
}

/// Fails if a structure finds other rules than the walk.
fn compare<A: FilterAddress>(
    filter: &Filter,
    keys: &[Key],
    classifier: &Classifier<A>,
    batches: &Batches<A>,
    (peer, search): Peers<'_>,
) -> Result<()> {
    let (mut own, mut others, mut by_tuples) = ([0; BATCH], [0; BATCH], [0; BATCH]);
    let groups = keys.chunks(BATCH).zip(&batches.own).zip(batches.bytes.chunks(BATCH));
    for (batch, ((keys, fields), bytes)) in groups.take(COMPARED / BATCH).enumerate() {
        classifier.classify(fields, &mut own);
        if let Some(search) = search {
            search.classify(batch, &mut by_tuples);
        }
        if let Some((peer, _)) = peer {
            peer.classify(bytes.iter(), &mut others);
        }
        for (place, key) in keys.iter().enumerate() {
            let walked = acl::walk(filter, A::OF, key).map(|rule| rule as u32);
            let found = Some(own[place]).filter(|rule| (*rule as usize) < filter.rules.len());
            ensure!(found == walked, "{}: rule {found:?} in place of {walked:?}", filter.name);
            let other = others[place].checked_sub(1);
            ensure!(
                peer.is_none() || other == walked,
                "{}: rte_acl's rule {other:?} in place of {walked:?}",
                filter.name
            );
            let other = by_tuples[place].checked_sub(1);
            ensure!(
                search.is_none() || other == walked,
                "{}: the tuples' rule {other:?} in place of {walked:?}",
                filter.name
            );
        }
    }
    Ok(())
}

/// Returns the cycles per packet of each round: ours, `rte_acl`'s, and those of tuple-space search.
fn rounds_of<A: FilterAddress>(
    rounds: usize,
    classifier: &Classifier<A>,
    batches: &Batches<A>,
    (peer, search): Peers<'_>,
) -> [Vec<f64>; 3] {
    let mut meter = Meter::new();
    let mut found = [0; BATCH];
    let (mut own, mut others, mut by_tuples) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let turn = || {
            for fields in &batches.own {
                classifier.classify(fields, &mut found);
                black_box(&found);
            }
            batches.bytes.len() as u64
        };
        own.push(meter.measure(turn).cycles);
        if let Some(search) = search {
            let turn = || {
                for batch in 0..batches.own.len() {
                    search.classify(batch, &mut found);
                    black_box(&found);
                }
                batches.bytes.len() as u64
            };
            by_tuples.push(meter.measure(turn).cycles);
        }
        let Some((peer, _)) = peer else { continue };
        let turn = || {
            for keys in batches.bytes.chunks(BATCH) {
                peer.classify(keys.iter(), &mut found);
                black_box(&found);
            }
            batches.bytes.len() as u64
        };
        others.push(meter.measure(turn).cycles);
    }
    [own, others, by_tuples]
}

fn figures(mut rounds: Vec<f64>, build_ms: f64) -> Result<Figures> {
    rounds.sort_by(f64::total_cmp);
    let cycles = meter::median(&rounds).context("no round was measured")?;
    Ok(Figures { cycles, min: rounds[0], build_ms })
}

fn table(outcomes: &[Outcome]) -> String {
    let mut lines = vec![
        "cycles per packet, median/minimum; build in ms".to_owned(),
        "| rules | kind | family | traffic | turnpike | build | rte_acl | build | ratio | tuples | build | ratio |"
            .to_owned(),
        "|---|---|---|---|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    for Outcome { family, kind, rules, traffic, turnpike, rte_acl, tuples } in outcomes {
        let cell = |figures: &Figures| {
            let Figures { cycles, min, build_ms } = figures;
            format!("{cycles:.0}/{min:.0} | {build_ms:.1}")
        };
        let peer = |of: &Option<Figures>| match of {
            None => "- | - | -".to_owned(),
            Some(of) => format!("{} | {:.2}", cell(of), turnpike.cycles / of.cycles),
        };
        let (own, acl, tuples) = (cell(turnpike), peer(rte_acl), peer(tuples));
        lines.push(format!(
            "| {rules} | {kind} | {family} | {traffic} | {own} | {acl} | {tuples} |"
        ));
    }
    lines.join("\n")
}

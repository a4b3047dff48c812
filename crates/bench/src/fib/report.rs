//! The figures, as text and JSON.

use std::collections::BTreeSet;

use fib::Algorithm;
use serde::Serialize;

use super::update_time::{Micros, Outcome};
use crate::meter::median;
use crate::workload::pattern::Pattern;

/// The figures of one lookup method with one pattern. Those of the structure (bytes, build,
/// updates) are repeated in each of its rows. Cycles are those of the time-stamp counter.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The structure, with the lookup method if there are several.
    pub structure: String,
    /// "IPv4" or "IPv6".
    pub family: &'static str,
    /// The pattern.
    pub pattern: Pattern,
    /// The lookup method, in words.
    pub lookup: String,
    /// Cycles per lookup: the median over the rounds.
    pub cycles_median: f64,
    /// The minimum over the rounds.
    pub cycles_min: f64,
    /// Cycles per lookup of each round.
    #[serde(skip)]
    pub rounds: Vec<f64>,
    /// Million lookups per second, by the median.
    pub mlps: f64,
    /// Instructions per lookup, if the machine counts them.
    pub instructions: Option<f64>,
    /// Mispredicted branches per lookup.
    pub branch_misses: Option<f64>,
    /// Bytes that lookups read.
    pub bytes: usize,
    /// Bytes that only the writer uses.
    pub writer_bytes: usize,
    /// Milliseconds to build the table of all routes: the median of the builds.
    pub build_ms: f64,
    /// Microseconds per change without a reader; none if changes fail.
    pub update_us_mean: Option<f64>,
    /// The median of these.
    pub update_us_p50: Option<f64>,
    /// The 99th percentile of these.
    pub update_us_p99: Option<f64>,
    /// The same with a reader on another core; none if the structure does not allow one.
    pub update_us_mean_reader: Option<f64>,
    /// The median of these.
    pub update_us_p50_reader: Option<f64>,
    /// The 99th percentile of these.
    pub update_us_p99_reader: Option<f64>,
}

impl Figures {
    /// Sets the update times.
    pub fn set_updates(&mut self, outcome: &Outcome) {
        let of = |micros: Option<Micros>, figure: fn(Micros) -> f64| micros.map(figure);
        let (alone, reader) = (outcome.alone, outcome.with_reader);
        self.update_us_mean = of(alone, |m| m.mean);
        self.update_us_p50 = of(alone, |m| m.p50);
        self.update_us_p99 = of(alone, |m| m.p99);
        self.update_us_mean_reader = of(reader, |m| m.mean);
        self.update_us_p50_reader = of(reader, |m| m.p50);
        self.update_us_p99_reader = of(reader, |m| m.p99);
    }
}

/// Returns the median and the minimum of a figure over the rounds.
pub fn median_and_min(mut rounds: Vec<f64>) -> (f64, f64) {
    rounds.sort_by(f64::total_cmp);
    (median(&rounds).unwrap_or(f64::NAN), rounds.first().copied().unwrap_or(f64::NAN))
}

/// Returns one family's tables as text.
pub fn tables(all: &[Figures], family: &str) -> String {
    let own: Vec<&Figures> = all.iter().filter(|f| f.family == family).collect();
    let mut names: Vec<&str> = own.iter().map(|f| f.structure.as_str()).collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    let patterns: Vec<Pattern> =
        Pattern::ALL.into_iter().filter(|p| own.iter().any(|f| f.pattern == *p)).collect();

    let mut lines = vec!["cycles per lookup, median/minimum".to_owned()];
    let cycles = |f: &Figures| format!("{:.1}/{:.1}", f.cycles_median, f.cycles_min);
    lines.extend(by_pattern(&own, &names, &patterns, cycles));
    lines.push("\nmillion lookups per second".to_owned());
    lines.extend(by_pattern(&own, &names, &patterns, |f| format!("{:.1}", f.mlps)));
    if own.iter().any(|f| f.instructions.is_some()) {
        lines.push("\ninstructions/wrongly predicted branches per lookup".to_owned());
        let events = |f: &Figures| match (f.instructions, f.branch_misses) {
            (Some(instructions), Some(misses)) => format!("{instructions:.1}/{misses:.2}"),
            _ => "-".to_owned(),
        };
        lines.extend(by_pattern(&own, &names, &patterns, events));
    }
    lines.push("\nmemory, build, microseconds per change (mean, median, 99 %)".to_owned());
    lines.extend(by_structure(&own, &names));
    lines.join("\n")
}

/// Returns one line a structure, one column a pattern.
fn by_pattern(
    own: &[&Figures],
    names: &[&str],
    patterns: &[Pattern],
    cell: impl Fn(&Figures) -> String,
) -> Vec<String> {
    let mut lines = vec![format!("{:<20}", "structure")];
    patterns.iter().for_each(|pattern| lines[0] += &format!("{pattern:>14}"));
    for name in names {
        let mut line = format!("{name:<20}");
        let mut how = "";
        for pattern in patterns {
            let figures = own.iter().find(|f| f.structure == *name && f.pattern == *pattern);
            line += &format!("{:>14}", figures.map_or_else(|| "-".to_owned(), |f| cell(f)));
            how = figures.map_or(how, |f| &f.lookup);
        }
        lines.push(format!("{line}  {how}"));
    }
    lines
}

/// Returns one line a structure: memory, build time, update times.
fn by_structure(own: &[&Figures], names: &[&str]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<20}{:>10}{:>12}{:>11}{:>27}{:>27}",
        "structure", "MB", "writer's MB", "build ms", "nobody looking up", "with a reader"
    )];
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    let times = |mean: Option<f64>, p50: Option<f64>, p99: Option<f64>| {
        let all = mean.zip(p50).zip(p99);
        all.map_or_else(
            || "-".to_owned(),
            |((mean, p50), p99)| format!("{mean:.2} {p50:.2} {p99:.2}"),
        )
    };
    for name in names {
        let Some(f) = own.iter().find(|f| f.structure == *name) else { continue };
        lines.push(format!(
            "{name:<20}{:>10.2}{:>12.2}{:>11.1}{:>27}{:>27}",
            megabytes(f.bytes),
            megabytes(f.writer_bytes),
            f.build_ms,
            times(f.update_us_mean, f.update_us_p50, f.update_us_p99),
            times(f.update_us_mean_reader, f.update_us_p50_reader, f.update_us_p99_reader),
        ));
    }
    lines
}

/// Targets of lookups: family, pattern, speed relative to Poptrie and to `rte_fib`.
const LOOKUP_MARKS: [(&str, Pattern, f64, f64); 6] = [
    ("IPv4", Pattern::InTable, 2.5, 1.5),
    ("IPv4", Pattern::Random, 1.6, 2.5),
    ("IPv4", Pattern::Zipf, 2.5, 1.0),
    ("IPv4", Pattern::Flows, 1.7, 0.7),
    ("IPv4", Pattern::Shared, 2.0, 1.3),
    ("IPv6", Pattern::InTable, 2.0, 1.5),
];

/// Compares the default structure with Poptrie and `rte_fib`, and with its targets.
pub fn marks(all: &[Figures]) -> String {
    let find = |family: &str, pattern: Option<Pattern>, name: &str| {
        all.iter().find(|f| {
            f.family == family && f.structure == name && pattern.is_none_or(|p| p == f.pattern)
        })
    };
    let mut lines = Vec::new();
    for (family, pattern, poptrie, fib) in LOOKUP_MARKS {
        let times = |rivals: &[&str]| {
            let of = |name: &&str| find(family, Some(pattern), name);
            let rivals: Vec<_> = rivals.iter().filter_map(of).collect();
            faster_by_rounds(of(&Algorithm::default().name())?, &rivals)
        };
        lines.extend(faster(&format!("{family} {pattern}"), family, times, (poptrie, fib)));
    }
    let ipv4 = |name: &str| find("IPv4", None, name);
    let times = |figure: &dyn Fn(&Figures) -> Option<f64>, rivals: &[&str]| {
        let of = |name: &str| ipv4(name).and_then(figure);
        let best = rivals.iter().filter_map(|name| of(name)).reduce(f64::min)?;
        Some(best / of(Algorithm::default().name())?)
    };
    let build = |f: &Figures| Some(f.build_ms);
    lines.extend(faster("IPv4 build", "IPv4", |rivals| times(&build, rivals), (25.0, 4.0)));
    // If no reader is allowed, the time without a reader, which is shorter.
    let update = |f: &Figures| f.update_us_mean_reader.or(f.update_us_mean);
    let what = "IPv4 update with a reader running";
    lines.extend(faster(what, "IPv4", |rivals| times(&update, rivals), (3.0, 1.0)));
    let bytes = |name: &str| ipv4(name).map(|f| f.bytes as f64);
    lines.extend(smaller("IPv4 memory", bytes, (2.2, 0.2)));
    if lines.is_empty() {
        return String::new();
    }
    let name = Algorithm::default();
    let mut text = vec![format!(
        "{name} in this run; for lookups the median of the rounds' ratios; marks are for a full table"
    )];
    text.extend(lines);
    if ipv4("rte_fib-2B").is_some_and(|f| f.update_us_mean_reader.is_none()) {
        text.push(
            "rte_fib must not be changed under a reader here: its update time is without one"
                .to_owned(),
        );
    }
    text.join("\n")
}

/// Returns the speed of a structure relative to the fastest of its rivals: compared within each
/// round, whose turns ran on the machine in the same state; the median over the rounds.
fn faster_by_rounds(own: &Figures, rivals: &[&Figures]) -> Option<f64> {
    let of_round = |(round, own): (usize, &f64)| {
        let best = rivals.iter().filter_map(|f| f.rounds.get(round).copied()).reduce(f64::min)?;
        Some(best / own)
    };
    let ratios: Vec<f64> = own.rounds.iter().enumerate().filter_map(of_round).collect();
    Some(median_and_min(ratios).0).filter(|ratio| !ratio.is_nan())
}

/// Returns `IPv4 in-table: 2.7x Poptrie (mark 2.5), 1.6x rte_fib (mark 1.5)`, or the parts for
/// which there are figures. `times` returns the speed of the default structure relative to the
/// fastest of these.
fn faster(
    what: &str,
    family: &str,
    times: impl Fn(&[&str]) -> Option<f64>,
    (poptrie, fib): (f64, f64),
) -> Option<String> {
    let against = |name: &str, rivals: &[&str], mark: f64| {
        let ratio = as_printed(times(rivals)?);
        let missed = if ratio < mark { ", missed" } else { "" };
        Some(format!("{ratio:.2}x {name} (mark {mark}{missed})"))
    };
    let (name, rivals) = match family {
        "IPv4" => ("rte_fib", ["rte_fib-2B", "rte_fib-4B"]),
        _ => ("rte_fib6", ["rte_fib6-2B", "rte_fib6-4B"]),
    };
    sentence(what, [against("Poptrie", &["poptrie"], poptrie), against(name, &rivals, fib)])
}

/// Returns `IPv4 memory: 2.1x Poptrie (mark at most 2.2), ...`.
fn smaller(
    what: &str,
    bytes: impl Fn(&str) -> Option<f64>,
    (poptrie, fib): (f64, f64),
) -> Option<String> {
    let own = bytes(Algorithm::default().name())?;
    let against = |row: &str, name: &str, mark: f64| {
        let ratio = as_printed(own / bytes(row)?);
        let missed = if ratio > mark { ", missed" } else { "" };
        Some(format!("{ratio:.2}x {name} (mark at most {mark}{missed})"))
    };
    let parts = [
        against("poptrie", "Poptrie", poptrie),
        against("rte_fib-2B", "rte_fib with 2-byte entries", fib),
    ];
    sentence(what, parts)
}

/// Rounds to the two digits that are printed, so that the printed value decides.
fn as_printed(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

fn sentence(what: &str, parts: [Option<String>; 2]) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("{what}: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(structure: &str, family: &'static str, pattern: Pattern, cycles: f64) -> Figures {
        Figures {
            structure: structure.into(),
            family,
            pattern,
            lookup: "batches of 32".into(),
            cycles_median: cycles,
            cycles_min: cycles - 1.0,
            rounds: vec![cycles - 1.0, cycles, 9.0 * cycles],
            mlps: 2000.0 / cycles,
            instructions: None,
            branch_misses: None,
            bytes: 1_000_000,
            writer_bytes: 500_000,
            build_ms: 10.0,
            update_us_mean: Some(0.5),
            update_us_p50: Some(0.4),
            update_us_p99: Some(1.5),
            update_us_mean_reader: None,
            update_us_p50_reader: None,
            update_us_p99_reader: None,
        }
    }

    #[test]
    fn json_has_the_keys_that_programs_read() {
        let mut row = figures("runmap", "IPv4", Pattern::InTable, 10.0);
        let micros = Micros { mean: 1.0, p50: 2.0, p99: 3.0 };
        row.set_updates(&Outcome { alone: Some(micros), with_reader: None });
        let json = serde_json::to_value(&row).unwrap();
        for (key, value) in [
            ("structure", serde_json::json!("runmap")),
            ("family", "IPv4".into()),
            ("pattern", "in-table".into()),
            ("cycles_median", 10.0.into()),
            ("cycles_min", 9.0.into()),
            ("mlps", 200.0.into()),
            ("bytes", 1_000_000.into()),
            ("build_ms", 10.0.into()),
            ("update_us_mean", 1.0.into()),
            ("update_us_p50", 2.0.into()),
            ("update_us_p99", 3.0.into()),
            ("update_us_mean_reader", serde_json::Value::Null),
        ] {
            assert_eq!(json[key], value, "{key}");
            assert!(json.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn medians_and_minima_over_rounds() {
        assert_eq!(median_and_min(vec![9.0, 7.0, 30.0]), (9.0, 7.0));
        assert!(median_and_min(Vec::new()).0.is_nan());
    }

    #[test]
    fn tables_have_a_line_a_structure_and_a_column_a_pattern() {
        let all = [
            figures("runmap", "IPv4", Pattern::InTable, 10.0),
            figures("runmap", "IPv4", Pattern::Zipf, 8.0),
            figures("poptrie", "IPv4", Pattern::InTable, 25.0),
            figures("runmap", "IPv6", Pattern::InTable, 77.0),
        ];
        let text = tables(&all, "IPv4");
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["structure", "in-table", "zipf"]);
        assert_eq!(words[2][..3], ["runmap", "10.0/9.0", "8.0/7.0"]);
        assert_eq!(words[3][..3], ["poptrie", "25.0/24.0", "-"]);
        let last = words.last().unwrap();
        assert_eq!(last[..], ["poptrie", "1.00", "0.50", "10.0", "0.50", "0.40", "1.50", "-"]);
        assert!(!text.contains("77.0"));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let with = |rounds: [f64; 3]| Figures {
            rounds: rounds.into(),
            ..figures("any", "IPv4", Pattern::Zipf, 1.0)
        };
        // The machine was slow in the second round, for all.
        let (own, first, second) =
            (with([5.0, 50.0, 5.0]), with([20.0, 150.0, 9.0]), with([10.0, 160.0, 10.0]));
        assert_eq!(faster_by_rounds(&own, &[&first, &second]), Some(2.0));
        assert_eq!(faster_by_rounds(&own, &[&first]), Some(3.0));
        assert_eq!(faster_by_rounds(&own, &[]), None);
    }

    #[test]
    fn marks_compare_with_the_best_of_each_rival() {
        let mut all = vec![
            figures("runmap", "IPv4", Pattern::InTable, 10.0),
            figures("poptrie", "IPv4", Pattern::InTable, 24.96),
            figures("rte_fib-2B", "IPv4", Pattern::InTable, 16.0),
            figures("rte_fib-4B", "IPv4", Pattern::InTable, 14.0),
            figures("rte_fib-2B-avx512", "IPv4", Pattern::InTable, 5.0),
            figures("runmap", "IPv6", Pattern::InTable, 50.0),
            figures("rte_fib6-4B", "IPv6", Pattern::InTable, 99.0),
        ];
        all[0].update_us_mean_reader = Some(0.25);
        all[0].bytes = 500_000;
        all[2].bytes = 10_000_000;
        let text = marks(&all);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = [
            "IPv4 in-table: 2.50x Poptrie (mark 2.5), 1.40x rte_fib (mark 1.5, missed)",
            "IPv6 in-table: 1.98x rte_fib6 (mark 1.5)",
            "IPv4 build: 1.00x Poptrie (mark 25, missed), 1.00x rte_fib (mark 4, missed)",
            "IPv4 update with a reader running: 2.00x Poptrie (mark 3, missed), 2.00x rte_fib (mark 1)",
            "IPv4 memory: 0.50x Poptrie (mark at most 2.2), \
             0.05x rte_fib with 2-byte entries (mark at most 0.2)",
            "rte_fib must not be changed under a reader here: its update time is without one",
        ];
        assert_eq!(lines, expected);
        assert_eq!(marks(&[]), "");
    }
}

//! `ip4-filter`, `ip6-filter`: a filter as a step at any place of a graph, with categories as outputs.
//!
//! Take valid packets. All of them are looked up in the configured filter given by the argument
//! `filter`, regardless of their interface. Packets that pass and are in one of the `categories`
//! leave by the output of the first of these, regardless of the filter that assigned it; other
//! categories are recorded as in any filter.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | accepted, and in none of the categories |
//! | one of each category's name | accepted, and in this category |
//! | the punts and drops of `ip4-filter-in` | as there |
//!
//! ```lua
//! graph:insert_after("ip4-validate", { "ip4-filter", as = "sort", filter = "kinds", categories = { "voice" } })
//! graph:path("sort.voice", "ip4-lookup")
//! ```
//!
//! Neighbour discovery of the link passes, as inward. Connections are not tracked here: the
//! configuration refuses filters with states, and with rules that send packets elsewhere.

use std::net::{Ipv4Addr, Ipv6Addr};

use acl::Family;

use super::filter::{OK, OUTPUTS, judge_all, mirror_of};
use crate::batch::Batch;
use crate::filters::{Counted, Direction, Filtered, Reader};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::head::is_neighbour_discovery;
use crate::mask::Mask;
use crate::mirror_sessions::Mirror;
use crate::params::{Arg, Args, Kind, Param};
use crate::tables::Tables;

/// Categories that a step may have as outputs.
const CATEGORIES_MAX: usize = MAX_OUTPUTS - OUTPUTS.len();

/// Returns true for the outputs that are not a category's, whose names categories must not have.
pub(super) fn is_taken(category: &str) -> bool {
    OUTPUTS.iter().any(|output| output.name() == category)
}

/// The parameters of both steps.
pub(super) fn params() -> [Param; 2] {
    [
        Param::new("filter", Kind::Text, "the name of a filter"),
        Param::new("categories", Kind::Texts, "those with an output").or(Arg::Texts(Vec::new())),
    ]
}

/// Returns the outputs of a step with these arguments.
pub(super) fn outputs(args: &Args) -> Vec<Output> {
    let categories = args.texts("categories").iter().take(CATEGORIES_MAX);
    let own = categories.map(|name| Output::Next(name.clone().into()));
    OUTPUTS.iter().cloned().chain(own).collect()
}

/// Returns the errors in a step's arguments that concern filters: `known` has the filters, each
/// with the categories of its rules.
pub fn check_filter_step(
    args: &Args,
    known: &[(&crate::filters::FilterSpec, Vec<&str>)],
) -> Result<(), String> {
    let name = args.text("filter");
    let names: Vec<_> = known.iter().map(|(spec, _)| spec.filter.name.as_str()).collect();
    let Some((spec, _)) = known.iter().find(|(spec, _)| spec.filter.name == name) else {
        let known = crate::words::suggestion(name, "filters", &names);
        return Err(format!("filter: \"{name}\" unknown{known}"));
    };
    let unfit = [
        (spec.asks_for_state(), "state"),
        (!spec.targets.is_empty(), "next_hop or vrf"),
        (spec.chooses_forwarders(), "forwarder"),
        (spec.filter.asks_for_ethertypes(), "ethertype"),
    ];
    if let Some((_, what)) = unfit.into_iter().find(|(has, _)| *has) {
        return Err(format!(
            "filter: \"{name}\" has rules with {what}, which only filters of ports have; name another"
        ));
    }
    let categories = args.texts("categories");
    if categories.len() > CATEGORIES_MAX {
        let count = categories.len();
        return Err(format!("categories: {count} are given; at most {CATEGORIES_MAX}"));
    }
    let mut all: Vec<&str> = known.iter().flat_map(|(_, of)| of).copied().collect();
    all.sort_unstable();
    all.dedup();
    for (place, category) in categories.iter().enumerate() {
        if categories[..place].contains(category) || is_taken(category) {
            return Err(format!(
                "categories: an output \"{category}\" is there already; leave it out"
            ));
        }
        if !all.contains(&category.as_str()) {
            let known = crate::words::suggestion(category, "categories of filters", &all);
            return Err(format!("categories: \"{category}\" unknown{known}"));
        }
    }
    Ok(())
}

/// See the module's documentation. `A`: the packets' family.
pub(super) struct FilterAt<A: Filtered> {
    filter: Option<Counted>,
    reader: Reader<A>,
    mirror: Option<Mirror>,
    outputs: Vec<Output>,
    /// The numbers of the categories with an output, in the outputs' order.
    categories: Vec<usize>,
}

impl<A: Filtered> FilterAt<A> {
    /// Makes the step with these arguments and the filters of these tables.
    pub fn new(tables: &Tables, args: &Args) -> Self {
        let all = tables.filters.get();
        let has_name = |table: &&std::sync::Arc<_>| -> bool {
            let table: &crate::filters::FilterTable = table;
            table.spec().filter.name == args.text("filter")
        };
        let filter = all.tables.iter().flatten().find(has_name).cloned();
        let number = |name: &String| all.categories.iter().position(|known| known == name);
        let outputs = outputs(args);
        let named = args.texts("categories").iter().take(outputs.len() - OUTPUTS.len());
        Self {
            reader: Reader::of(filter.iter().map(|table| &**table)),
            mirror: mirror_of(tables, Direction::In),
            // An unknown category has no packets.
            categories: named.map(|name| number(name).unwrap_or(usize::MAX)).collect(),
            filter: filter.map(Counted::new),
            outputs,
        }
    }
}

impl<A: Filtered> Step for FilterAt<A> {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let Self { filter, reader, mirror, categories, .. } = self;
        let discovery = match A::OF {
            Family::Ip4 => Mask::EMPTY,
            Family::Ip6 => input.filter(|slot| is_neighbour_discovery(batch.head(slot))),
        };
        let packets = input.without(discovery);
        let hidden = reader.read(batch, packets);
        let by = (reader, mirror.as_mut());
        let decided = judge_all(filter.as_ref(), by, batch, (packets, hidden), 0);
        let mut rest = decided[OK];
        for (out, category) in out[OUTPUTS.len()..].iter_mut().zip(categories) {
            let own = rest & batch.categories.packets(*category);
            rest = rest.without(own);
            *out |= own;
        }
        out[OK] |= rest | discovery;
        out.iter_mut().zip(decided).skip(OK + 1).for_each(|(out, packets)| *out |= packets);
    }
}

/// The step for IPv4.
pub(super) type Ip4FilterAt = FilterAt<Ipv4Addr>;

/// The step for IPv6.
pub(super) type Ip6FilterAt = FilterAt<Ipv6Addr>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use acl::{Action, Filter, Matches, Rule};

    use super::*;
    use crate::filters::{FilterSpec, FilterTable, Filters, Treatment};
    use crate::params::Given;
    use crate::testing::{FrameBuilder, TestTables, run_step_on};

    fn to(ports: std::ops::RangeInclusive<u16>, action: Action) -> Rule {
        let matches = Matches { protocol: vec![17], to_port: vec![ports], ..Matches::default() };
        Rule { name: None, line: 0, matches, action }
    }

    /// UDP to 53 and 54 is "a", to 54 and 55 "b"; 56 is dropped, 57 rejected.
    fn spec() -> FilterSpec {
        let rules = vec![
            to(53..=54, Action::Continue),
            to(54..=55, Action::Continue),
            to(56..=56, Action::Drop),
            to(57..=57, Action::Reject),
        ];
        let mut treatments = vec![Treatment::default(); 4];
        treatments[0].category = Some(0);
        treatments[1].category = Some(1);
        let filter = Filter { name: "f".into(), rules, default: Action::Accept };
        FilterSpec { filter, treatments, targets: vec![] }
    }

    fn args(filter: &str, categories: &[&str]) -> Args {
        let texts = categories.iter().map(|name| Given::Text((*name).into())).collect();
        let given = [("filter", Given::Text(filter.into())), ("categories", Given::List(texts))];
        let given: BTreeMap<_, _> =
            given.into_iter().map(|(name, given)| (name.to_owned(), given)).collect();
        Args::read(&params(), &given).unwrap()
    }

    fn sorted(ip6: bool, filter: &str, categories: &[&str]) -> BTreeMap<String, Vec<usize>> {
        let tables = TestTables::every_kind();
        let table = Arc::new(FilterTable::new(&spec(), None, &acl::SetReaders::none()).unwrap());
        let categories_known = vec!["a".into(), "b".into()];
        tables.filters.set(Filters {
            tables: vec![None, Some(table)],
            flows: None,
            categories: categories_known,
        });
        let frame = |port| {
            let frame = if ip6 { FrameBuilder::ip6() } else { FrameBuilder::ip4() };
            frame.udp(1, port, b"x").build()
        };
        let mut frames: Vec<_> = [53, 54, 55, 56, 57, 58].map(frame).into();
        let solicitation = FrameBuilder::ip6().protocol(58).payload(&[135, 0, 0, 0]).ttl(255);
        frames.extend(ip6.then(|| solicitation.build()));
        let args = args(filter, categories);
        let (result, _) = match ip6 {
            true => run_step_on(&mut Ip6FilterAt::new(&tables, &args), &frames, |_| {}),
            false => run_step_on(&mut Ip4FilterAt::new(&tables, &args), &frames, |_| {}),
        };
        result.taken()
    }

    fn of(expected: &[(&str, &[usize])]) -> BTreeMap<String, Vec<usize>> {
        expected.iter().map(|(name, slots)| ((*name).to_owned(), slots.to_vec())).collect()
    }

    #[test]
    fn packets_leave_by_the_first_of_their_categories() {
        let rest: [(&str, &[usize]); 3] = [("ok", &[5]), ("filtered", &[3]), ("reset", &[4])];
        let with = |own: &[(&'static str, &'static [usize])]| of(&[own, &rest].concat());
        assert_eq!(sorted(false, "f", &["a", "b"]), with(&[("a", &[0, 1]), ("b", &[2])]));
        assert_eq!(sorted(false, "f", &["b", "a"]), with(&[("a", &[0]), ("b", &[1, 2])]));
        let ok: (&str, &[usize]) = ("ok", &[0, 5]);
        assert_eq!(sorted(false, "f", &["b"]), of(&[ok, ("b", &[1, 2]), rest[1], rest[2]]));
        let ok: (&str, &[usize]) = ("ok", &[0, 1, 2, 5, 6]);
        assert_eq!(sorted(true, "f", &[]), of(&[ok, rest[1], rest[2]]), "discovery passes");
    }

    #[test]
    fn a_filter_that_is_not_there_lets_nothing_pass() {
        assert_eq!(sorted(false, "g", &["a"]), of(&[("filtered", &[0, 1, 2, 3, 4, 5])]));
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() {
        let fits = |args: &Args, spec: &FilterSpec| {
            check_filter_step(args, &[(spec, vec!["a", "b"])]).err().unwrap_or_default()
        };
        let spec = spec();
        assert_eq!(fits(&args("f", &["a", "b"]), &spec), "");
        for (filter, categories, said) in [
            ("g", &[][..], "filter: \"g\" unknown"),
            ("f", &["c"], "categories: \"c\" unknown"),
            ("f", &["a", "a"], "an output \"a\" is there already"),
            ("f", &["ok"], "an output \"ok\" is there already"),
            ("f", &["a"; 12], "12 are given; at most 11"),
        ] {
            let found = fits(&args(filter, categories), &spec);
            assert!(found.contains(said), "{found}");
        }
        let mut stateful = spec.clone();
        stateful.filter.rules[0].matches.state = vec![acl::State::New];
        assert!(fits(&args("f", &[]), &stateful).contains("has rules with state"));
        let mut choosing = spec.clone();
        choosing.treatments[0].forwarders = crate::filters::Forwarders::new(&[1]);
        assert!(fits(&args("f", &[]), &choosing).contains("has rules with forwarder"));
    }
}

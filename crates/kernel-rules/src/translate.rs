//! Forward chains as filters, by crate `convert`: rules that accept, drop and reject by addresses, ports, protocols and
//! interfaces. Rules that depend on connections or on numbers of packets need a state that the kernel has and filters
//! do not, and rules at other hooks change packets.

use std::fmt;

use convert::Format;
use serde::Serialize;

use crate::finding::{Finding, Kind};
use crate::iptables;
use crate::links::Links;
use crate::nft::{self, Base, Effective, Effects};
use crate::programs::Missing;
use crate::{Inspection, Options};

/// Filters in Lua that do what the kernel's forward chains do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filters {
    /// The filters: `turnpike.filter "forward" { … }`.
    pub lua: String,
    /// Their places.
    pub places: Vec<Place>,
    /// Number of the kernel's rules that they are made of.
    pub rules: usize,
}

/// The place of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Its name.
    pub filter: String,
    /// The interface for whose packets it is, as `outward`; `None`: all others.
    pub outward: Option<String>,
}

/// Reason against a translation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct WhyNot {
    /// The chain or rule.
    pub place: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

/// The result of a translation; `None` if there is nothing to translate, or it was not wanted.
pub type Translation = Option<Result<Filters, Vec<WhyNot>>>;

/// Returns the filters that do what the kernel's forward chains do; empty ones if those do nothing.
///
/// # Errors
/// The reasons why filters cannot do it. The findings of these chains refuse acceleration then.
pub fn translate(inspection: &Inspection) -> Result<Filters, Vec<WhyNot>> {
    inspection.translation.clone().unwrap_or_else(|| Ok(Filters::default()))
}

impl Effective<'_> {
    /// Returns true for a chain of the kind that filters are made of.
    pub fn is_filter(&self) -> bool {
        let Base { kind, hook, .. } = self.base;
        kind == "filter" && *hook == "forward" && !self.effects.translates
    }

    fn why_not(&self) -> Option<WhyNot> {
        let Base { name, hook, .. } = self.base;
        let place = format!("chain {} of table {} {}", name.chain, name.family.name(), name.table);
        let reason = match self.is_filter() {
            true => reason(&self.effects)?.to_owned(),
            false => format!("filters are for hook forward, not for {hook}"),
        };
        Some(WhyNot { place, reason })
    }

    fn kind(&self) -> Kind {
        self.finding(&Links::default(), false).kind
    }
}

fn reason(effects: &Effects) -> Option<&'static str> {
    if effects.translates {
        Some("it translates addresses")
    } else if effects.tracks {
        Some("it depends on connections, which the kernel alone knows")
    } else if effects.counts {
        Some("it depends on numbers of packets, which the kernel would count as well")
    } else if effects.changes {
        Some("it changes packets or sets")
    } else {
        None
    }
}

/// Translates the chains that are not bypassed.
pub fn rules(
    (tables, json): (&nft::Tables, &Result<String, Missing>),
    effective: &[Effective<'_>],
    legacy: &[iptables::Tables],
    options: &Options,
) -> Translation {
    let chains: Vec<&Effective<'_>> =
        effective.iter().filter(|one| !options.bypass.contains(&one.kind())).collect();
    let is_bypassed = |finding: &Finding| options.bypass.contains(&finding.kind);
    let legacy: Vec<&iptables::Tables> =
        legacy.iter().filter(|tables| !tables.findings(false).iter().all(is_bypassed)).collect();
    if chains.is_empty() && legacy.is_empty() {
        return None;
    }
    let mut why_not: Vec<WhyNot> = chains.iter().filter_map(|one| one.why_not()).collect();
    why_not.extend(legacy.iter().flat_map(|tables| of_legacy(tables, options)));
    if !chains.is_empty() && !legacy.is_empty() {
        let reason = "packets pass them and iptables, and filters have one list";
        why_not.push(WhyNot { place: "rules of nftables".into(), reason: reason.into() });
    }
    if !why_not.is_empty() {
        return Some(Err(why_not));
    }
    let of_legacy = legacy.iter().flat_map(|tables| tables.effective());
    let of_legacy = of_legacy.filter(iptables::Effective::is_filter).map(|one| one.rules.len());
    let count = chains.iter().map(|one| one.rules.len()).chain(of_legacy).sum();
    Some(match chains.is_empty() {
        true => {
            let listing: String = legacy.iter().map(|tables| tables.listing()).collect();
            convert(Format::Iptables, "iptables", &listing, count)
        }
        false => match nft::texts::listing(json, chains.iter().map(|one| one.base), tables) {
            Ok(listing) => convert(Format::Nftables, "nftables", &listing, count),
            Err(missing) => {
                Err(vec![WhyNot { place: "nftables".into(), reason: missing.to_string() }])
            }
        },
    })
}

fn of_legacy(tables: &iptables::Tables, options: &Options) -> Vec<WhyNot> {
    if let Err(missing) = &tables.rules {
        return vec![WhyNot { place: "iptables".into(), reason: missing.to_string() }];
    }
    let why_not = |one: iptables::Effective| {
        if one.is_nat() && options.bypass.contains(&Kind::Nat) {
            return None;
        }
        let reason = match one.is_filter() {
            true => reason(&one.effects)?.to_owned(),
            false => "filters are for chain FORWARD of table filter".to_owned(),
        };
        Some(WhyNot { place: format!("chain {} of table {}", one.chain, one.table), reason })
    };
    tables.effective().into_iter().filter_map(why_not).collect()
}

fn convert(
    format: Format,
    name: &str,
    listing: &str,
    rules: usize,
) -> Result<Filters, Vec<WhyNot>> {
    let converted = convert::convert(format, name, listing)
        .map_err(|error| vec![WhyNot { place: name.to_owned(), reason: error.to_string() }])?;
    let matters = converted.left.iter().filter(|left| left.matters);
    let why_not: Vec<WhyNot> = matters
        .map(|left| WhyNot {
            place: format!("{}: {}", left.place, left.text),
            reason: left.reason.clone(),
        })
        .collect();
    if !why_not.is_empty() {
        return Err(why_not);
    }
    let places = converted.forward.into_iter();
    let places =
        places.map(|place| Place { filter: place.filter, outward: place.outward }).collect();
    Ok(Filters { lua: converted.lua, places, rules })
}

//! The exchange of an imported table for another while the router runs.
//!
//! A table may have a million prefixes, so the exchange is done in pieces, each of which takes a fraction of a
//! millisecond. First come the new table's routes, each of which replaces the old route to its prefix; then the routes
//! that only the old table had are removed. So a prefix that both tables have is routed all the time.

use std::collections::HashMap;
use std::ops::Bound;
use std::path::Path;
use std::vec;

use dataplane::interface::VrfId;
use ipnet::IpNet;

use super::{ImportReport, Table, route};
use crate::config;
use crate::rib::{Rib, RouteSource, import_metric};

/// Prefixes of a piece.
const PIECE: usize = 512;

/// The routes of one import in a RIB on their way to those of another table, or of none.
#[derive(Debug)]
pub struct Exchange {
    /// The rank of the import, which distinguishes its routes from those of others.
    rank: u32,
    /// `None`: the import is removed, or all of its table is in the RIB.
    new: Option<New>,
    /// Prefixes whose routes stay, with their origin AS.
    keep: HashMap<IpNet, u32>,
    /// Prefixes from here on may have routes to be removed.
    from: Bound<IpNet>,
    /// Prefixes without a route of the import any more.
    removed: usize,
}

/// A table whose routes are being added.
#[derive(Debug)]
struct New {
    import: config::Import,
    entries: vec::IntoIter<(IpNet, u32)>,
    report: ImportReport,
}

/// State of an exchange after one of its pieces.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to do.
    More,
    /// The new table is in the RIB; routes of the old one may remain.
    Loaded(Box<ImportReport>),
    /// All is done; this many routes were removed.
    Done(usize),
}

impl Exchange {
    /// Creates an exchange for a table, spread over the gateways of an import of this rank.
    pub fn to_table(import: &config::Import, rank: u32, table: Table) -> Self {
        let (report, entries) = ImportReport::begin(import, table);
        let has_gateway =
            |(prefix, _): &(IpNet, u32)| !import.gateways(prefix.addr().is_ipv4()).is_empty();
        let keep = entries.iter().copied().filter(has_gateway).collect();
        let new = New { import: import.clone(), entries: entries.into_iter(), report };
        Self { new: Some(new), keep, ..Self::to_nothing(rank) }
    }

    /// Creates the removal of all routes of an import of this rank.
    pub fn to_nothing(rank: u32) -> Self {
        Self { rank, new: None, keep: HashMap::new(), from: Bound::Unbounded, removed: 0 }
    }

    /// Returns the rank of the import.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the file of the new table; `None` once it is in the RIB, or if there is none.
    pub fn file(&self) -> Option<&Path> {
        self.new.as_ref().map(|new| new.import.file.as_path())
    }

    /// Does one piece of the work.
    pub fn go_on(&mut self, rib: &mut Rib) -> Progress {
        match &mut self.new {
            Some(new) if new.entries.len() > 0 => {
                new.load(rib, self.rank);
                Progress::More
            }
            Some(_) => {
                self.new.take().map_or(Progress::More, |new| Progress::Loaded(Box::new(new.report)))
            }
            None => self.remove(rib),
        }
    }

    /// Removes old routes to the next prefixes.
    fn remove(&mut self, rib: &mut Rib) -> Progress {
        let (mut stale, mut seen, mut last) = (Vec::new(), 0, None);
        let mut more = false;
        for route in rib.routes_from(VrfId::DEFAULT, self.from) {
            if last != Some(route.prefix) {
                if seen == PIECE {
                    more = true;
                    break;
                }
                seen += 1;
                last = Some(route.prefix);
            }
            let of_import =
                route.source == RouteSource::Import && route.metric == u64::from(self.rank);
            let Some(origin) = route.origin_as.filter(|_| of_import) else { continue };
            let kept = self.keep.get(&route.prefix);
            if kept != Some(&origin) {
                stale.push((route.prefix, import_metric(self.rank, origin), kept.is_none()));
            }
        }
        self.removed += rib.batch(|rib| {
            let remove = |&(prefix, metric, is_gone): &(IpNet, u64, bool)| {
                rib.remove_one(VrfId::DEFAULT, prefix, RouteSource::Import, metric) && is_gone
            };
            stale.iter().map(remove).filter(|&gone| gone).count()
        });
        match last.filter(|_| more) {
            Some(last) => {
                self.from = Bound::Excluded(last);
                Progress::More
            }
            None => Progress::Done(self.removed),
        }
    }
}

impl New {
    /// Adds the routes of the next entries.
    fn load(&mut self, rib: &mut Rib, rank: u32) {
        let piece: Vec<_> = self.entries.by_ref().take(PIECE).collect();
        for ipv4 in [true, false] {
            let of_family = piece.iter().filter(|(prefix, _)| prefix.addr().is_ipv4() == ipv4);
            let gateways = self.import.gateways(ipv4);
            if gateways.is_empty() {
                self.report.leave_out(ipv4, of_family.count());
                continue;
            }
            let loaded =
                rib.load(of_family.map(|&(prefix, origin)| route(prefix, origin, gateways, rank)));
            self.report.count(ipv4, loaded);
        }
    }
}

#[cfg(test)]
mod tests;

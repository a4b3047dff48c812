//! Compares the routes held with a dump of all routes, without changing them.
//!
//! A route or a nexthop object that changes during the dump proves nothing and is left out.

use std::collections::{BTreeMap, HashSet};

use ipnet::IpNet;

use super::table::{Key, Key4, Key6, Table};
use super::{Of, Routes};
use crate::netlink::message::{NexthopMessage, RouteMessage};

/// Most differences that are stored one by one.
const REMEMBERED: usize = 100_000;

/// The differing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// A route by table, prefix and metric.
    Route(u32, IpNet, u32),
    /// A nexthop object by its number.
    Nexthop(u32),
}

/// Kind of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// The source has it, but it is not held.
    Missing,
    /// It is held, but the source does not have it.
    Stale,
    /// The source has it with another value.
    Other,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// Number of routes and objects of the source.
    pub(crate) compared: usize,
    /// The differences.
    pub(crate) found: BTreeMap<Subject, Difference>,
}

impl Differences {
    /// Keeps only differences that another comparison found too.
    pub(crate) fn confirmed_by(&mut self, other: &Self) {
        self.found.retain(|subject, _| other.found.contains_key(subject));
    }

    /// Returns the number of differences of a kind.
    pub(crate) fn count(&self, difference: Difference) -> usize {
        self.found.values().filter(|found| **found == difference).count()
    }

    /// Returns the first differences, in words.
    pub(crate) fn examples(&self, most: usize) -> Vec<String> {
        let words = |(subject, difference): (&Subject, &Difference)| {
            let what = match subject {
                Subject::Route(table, prefix, metric) => {
                    format!("route {prefix} metric {metric} of table {table}")
                }
                Subject::Nexthop(id) => format!("nexthop object {id}"),
            };
            let how = match difference {
                Difference::Missing => "is the kernel's and was not known",
                Difference::Stale => "was held and is not the kernel's",
                Difference::Other => "is another one with the kernel",
            };
            format!("{what} {how}")
        };
        self.found.iter().take(most).map(words).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Audit {
    touched: HashSet<(u32, IpNet)>,
    touched_nexthops: HashSet<u32>,
    differences: Differences,
}

impl Audit {
    pub(super) fn touch(&mut self, table: u32, prefix: IpNet) {
        self.touched.insert((table, prefix));
    }

    pub(super) fn touch_nexthop(&mut self, id: u32) {
        self.touched_nexthops.insert(id);
    }

    fn found(&mut self, subject: Subject, difference: Difference) {
        if self.differences.found.len() < REMEMBERED {
            self.differences.found.insert(subject, difference);
        }
    }
}

impl Routes {
    /// Begins a comparison.
    pub(crate) fn begin_audit(&mut self) {
        self.flush(None);
        self.next_mark();
        self.audit = Some(Audit::default());
    }

    /// Compares a route of the dump.
    pub(crate) fn compare(&mut self, m: &RouteMessage) {
        let Ok((key, _)) = self.info_key(m, false) else { return };
        let info = self.infos.find(&key);
        match m.prefix {
            IpNet::V4(net) => self.compare_in(Key4::new(net), m, info),
            IpNet::V6(net) => self.compare_in(Key6::new(net), m, info),
        }
    }

    fn compare_in<K: Of>(&mut self, key: K, m: &RouteMessage, info: Option<u32>) {
        let mark = self.mark;
        let list = K::of(self).table(m.table).get(key);
        let same = |at: &usize| list[*at].metric == m.metric;
        let exact = (0..list.len()).filter(same).find(|at| Some(list[*at].info()) == info);
        let seen = exact.or_else(|| (0..list.len()).find(same));
        if let Some(at) = seen {
            K::of(self).table(m.table).mark(key, at, mark);
        }
        let Some(audit) = &mut self.audit else { return };
        audit.differences.compared += 1;
        let difference = match (seen, exact) {
            (_, Some(_)) => return,
            (Some(_), None) => Difference::Other,
            (None, None) => Difference::Missing,
        };
        audit.found(Subject::Route(m.table, m.prefix, m.metric), difference);
    }

    /// Compares a nexthop object of the dump.
    pub(crate) fn compare_nexthop(&mut self, message: &NexthopMessage) {
        let mark = self.mark;
        let object = self.nexthops.all.get_mut(&message.id);
        let difference = match object {
            None => Some(Difference::Missing),
            Some(object) => {
                object.mark = mark;
                (object.nexthop != message.nexthop).then_some(Difference::Other)
            }
        };
        let Some(audit) = &mut self.audit else { return };
        audit.differences.compared += 1;
        if let Some(difference) = difference {
            audit.found(Subject::Nexthop(message.id), difference);
        }
    }

    /// Ends the comparison, after all changes during the dump have been reported.
    pub(crate) fn end_audit(&mut self) -> Differences {
        self.flush(None);
        let Some(mut audit) = self.audit.take() else { return Differences::default() };
        let mark = self.mark;
        stale(&self.v4.all, mark, &mut audit);
        stale(&self.v6.all, mark, &mut audit);
        for (&id, _) in self.nexthops.all.iter().filter(|(_, object)| object.mark != mark) {
            audit.found(Subject::Nexthop(id), Difference::Stale);
        }
        let Audit { touched, touched_nexthops, mut differences } = audit;
        differences.found.retain(|subject, _| match *subject {
            Subject::Route(table, prefix, _) => !touched.contains(&(table, prefix)),
            Subject::Nexthop(id) => !touched_nexthops.contains(&id),
        });
        differences
    }
}

fn stale<K: Key>(tables: &BTreeMap<u32, Table<K>>, mark: u8, audit: &mut Audit) {
    for (&id, table) in tables {
        for (key, list) in table.iter() {
            for variant in list.iter().filter(|variant| variant.mark() != mark) {
                let subject = Subject::Route(id, key.net(), variant.metric);
                audit.found(subject, Difference::Stale);
            }
        }
    }
}

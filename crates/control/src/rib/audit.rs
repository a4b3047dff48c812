//! The audit: compares the routes reported by a source with the candidates, these with the FIB
//! writer's routes, and those with the results of lookups. Every difference is a defect; it is
//! counted and repaired.
//!
//! ```text
//!   begin_audit -> audit_route, audit_group, for all that the source has
//!               -> end_audit -> a walk over all entries, a piece a tick -> take_findings
//! ```
//!
//! It is a resynchronisation that should change nothing: each route reported by the source is
//! marked with a new generation, and unmarked routes are stale.

use super::family::Fault;
use super::*;

/// Most differences that are described in words.
const EXAMPLES: usize = 5;

/// Prefixes processed by one piece of the walk.
const PIECE: usize = 8192;

/// Result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Routes and groups of the source that were missing in the RIB.
    pub missing: usize,
    /// Routes and groups of the RIB that the source does not have.
    pub stale: usize,
    /// Routes and groups that differed from the source's.
    pub different: usize,
    /// Prefixes forwarded otherwise than their best route requires.
    pub fib: usize,
    /// The first differences, in words.
    pub examples: Vec<String>,
}

impl Findings {
    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(text());
        }
    }
}

/// An audit in progress.
#[derive(Debug)]
pub(super) struct Audit {
    source: RouteSource,
    generation: u16,
    findings: Findings,
    /// Position of the walk; `None` until the source has reported everything.
    walk: Option<Walk>,
}

#[derive(Clone, Copy, Debug)]
enum Walk {
    Four(VrfId, Option<Prefix<Ipv4Addr>>),
    Six(VrfId, Option<Prefix<Ipv6Addr>>),
    Ended,
}

impl Rib {
    /// Begins an audit of a source; an unfinished one is abandoned.
    pub fn begin_audit(&mut self, source: RouteSource) {
        self.begin_resync(source);
        let generation = self.generations[source.index()];
        self.audit = Some(Audit { source, generation, findings: Findings::default(), walk: None });
    }

    /// Compares a route that the source reports.
    pub fn audit_route(&mut self, route: &Route) {
        self.change(|rib| rib.compare_route(route));
    }

    fn compare_route(&mut self, route: &Route) {
        let &Route { vrf, prefix, source, metric, ref kind } = route;
        let same = |c: &Candidate| c.source == source && c.metric == metric;
        let known = self.candidate(vrf, prefix, same);
        let generation = self.generation(source, vrf);
        let expected = self.check(route).and_then(|()| self.next_hop(prefix, kind));
        let found = match (known, expected) {
            (known, Ok(hop)) => {
                self.put(vrf, prefix, Candidate { source, metric, hop, generation });
                match known {
                    // There is room for it just now, or it was reported between two versions of its
                    // group.
                    Some(known) if known.hop == hop || is_waiting(&known) => return,
                    Some(known) if self.hops.is_gone(known.hop) => return,
                    other => other,
                }
            }
            (Some(known), Err(error)) if error.is_waiting() && is_waiting(&known) => {
                self.put(vrf, prefix, Candidate { generation, ..known });
                return;
            }
            // It was refused when first reported, too, or was removed with its group.
            (None, Err(error)) if !error.is_waiting() => return,
            (None, Err(Error::NoGroup { .. })) => return,
            (known, Err(_)) => {
                // It fails with the error matched here.
                let _ = self.put_route(route);
                known
            }
        };
        let Some(audit) = &mut self.audit else { return };
        let (count, how) = match found {
            None => (&mut audit.findings.missing, "was missing in the RIB"),
            Some(_) => (&mut audit.findings.different, "led elsewhere in the RIB"),
        };
        *count += 1;
        audit.findings.example(|| format!("route {prefix} metric {metric} {how}"));
    }

    /// Compares a group that the source reports.
    pub fn audit_group(&mut self, key: GroupKey, spec: GroupSpec) {
        let refused = self.check_group(Subject::Group(key), &spec).is_err();
        let known = self.groups.spec(&key).map(|known| *known == spec);
        // Lack of room is not a difference.
        let _ = self.change(|rib| rib.put_group(key, spec));
        let Some(audit) = self.audit.as_mut().filter(|_| !refused && known != Some(true)) else {
            return;
        };
        let (count, how) = match known {
            None => (&mut audit.findings.missing, "was missing in the RIB"),
            Some(_) => (&mut audit.findings.different, "was another one in the RIB"),
        };
        *count += 1;
        audit.findings.example(|| format!("nexthop group {} {how}", key.id));
    }

    /// Ends the report of the source; [`Self::tick`] does the rest.
    pub fn end_audit(&mut self) {
        if let Some(audit) = &mut self.audit {
            audit.walk = Some(Walk::Four(VrfId::DEFAULT, None));
        }
    }

    /// Returns the findings once the audit is complete. It is abandoned if its source has begun a
    /// resynchronisation in the meantime.
    pub fn take_findings(&mut self) -> Option<Findings> {
        let ended = |audit: &mut Audit| matches!(audit.walk, Some(Walk::Ended));
        self.audit.take_if(ended).map(|audit| audit.findings)
    }

    /// Returns true if the walk is not complete.
    pub(super) fn is_auditing(&self) -> bool {
        self.audit.as_ref().is_some_and(|a| matches!(a.walk, Some(Walk::Four(..) | Walk::Six(..))))
    }

    /// Does a piece of the walk. It waits while a sweep is running, which changes the routes.
    pub(super) fn audit_some(&mut self) {
        if !self.is_auditing() || self.vrfs.iter().any(Vrf::is_sweeping) {
            return;
        }
        let Some(Audit { source, generation, walk, .. }) = self.audit else { return };
        if self.generations[source.index()] != generation {
            self.audit = None;
            return;
        }
        let mut faults = Vec::new();
        let Some(Walk::Four(vrf, _) | Walk::Six(vrf, _)) = walk else { return };
        let of = (source, self.generation(source, vrf));
        let Vrf { v4, v6 } = &self.vrfs[vrf.index()];
        let next = match walk {
            Some(Walk::Four(_, from)) => match v4.audit(from, PIECE, of, &self.hops, &mut faults) {
                Some(last) => Walk::Four(vrf, Some(last)),
                None => Walk::Six(vrf, None),
            },
            Some(Walk::Six(_, from)) => match v6.audit(from, PIECE, of, &self.hops, &mut faults) {
                Some(last) => Walk::Six(vrf, Some(last)),
                None => match self.vrfs().find(|next| *next > vrf) {
                    Some(next) => Walk::Four(next, None),
                    None => Walk::Ended,
                },
            },
            _ => return,
        };
        // Routes of a namespace of its own are not part of the audit.
        if self.is_apart(source, vrf) {
            faults.retain(|fault| !matches!(fault, Fault::Stale(..)));
        }
        self.change(|rib| faults.into_iter().for_each(|fault| rib.mend(source, vrf, fault)));
        if let Some(audit) = &mut self.audit {
            audit.walk = Some(next);
        }
    }

    /// Counts a fault and repairs it.
    fn mend(&mut self, source: RouteSource, vrf: VrfId, fault: Fault) {
        let findings = match &mut self.audit {
            Some(audit) => &mut audit.findings,
            None => return,
        };
        match fault {
            Fault::Stale(prefix, metric) => {
                findings.stale += 1;
                findings.example(|| {
                    let name = source.name();
                    format!("route {prefix} metric {metric} was left over in the RIB from {name}")
                });
                self.take(vrf, prefix, |c| (c.source, c.metric) == (source, metric));
            }
            Fault::Fib(prefix, how) => {
                findings.fib += 1;
                findings.example(|| format!("FIB: {prefix} {how}"));
                let routes = &mut self.vrfs[vrf.index()];
                match prefix {
                    IpNet::V4(_) => routes.v4.repair(&prefix),
                    IpNet::V6(_) => routes.v6.repair(&prefix),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rib::tests::{interface, two_ports};

    fn via(prefix: &str, last: u8) -> Route {
        let path = Path::over(interface(0), IpAddr::from([10, 0, 1, last]));
        let kind = RouteKind::Unicast(vec![path]);
        Route {
            vrf: VrfId::DEFAULT,
            prefix: prefix.parse().unwrap(),
            source: RouteSource::Kernel,
            kind,
            metric: 7,
        }
    }

    /// Three routes of which one hides the first address of another, and one over a group.
    fn told() -> Vec<Route> {
        let mut told = vec![via("20.0.0.0/8", 2), via("20.0.0.0/24", 3), via("2001:db8::/32", 4)];
        let key = GroupKey::new(RouteSource::Kernel, 9);
        told.push(Route { kind: RouteKind::NextHopGroup(key), ..via("20.9.0.0/16", 2) });
        told
    }

    fn group(last: u8) -> (GroupKey, GroupSpec) {
        let paths = vec![Path::over(interface(1), IpAddr::from([10, 0, 2, last]))];
        (GroupKey::new(RouteSource::Kernel, 9), GroupSpec { paths, ..GroupSpec::default() })
    }

    fn rib() -> Rib {
        let mut rib = two_ports();
        let (key, spec) = group(2);
        rib.set_group(key, spec).unwrap();
        assert_eq!(rib.load(told()).refused, 0);
        rib
    }

    fn audit(rib: &mut Rib, routes: &[Route], last: u8) -> Findings {
        rib.begin_audit(RouteSource::Kernel);
        let (key, spec) = group(last);
        rib.batch(|rib| {
            rib.audit_group(key, spec);
            routes.iter().for_each(|route| rib.audit_route(route));
            rib.end_audit();
        });
        assert_eq!(rib.take_findings(), None, "the walk is to come");
        while rib.is_busy() {
            rib.tick();
        }
        rib.take_findings().expect("a complete audit")
    }

    #[test]
    fn what_is_as_it_should_be_is_left_alone() {
        let mut rib = rib();
        assert_eq!(audit(&mut rib, &told(), 2), Findings::default());
        // A route that waits for its group or was refused is no difference either.
        let key = GroupKey::new(RouteSource::Kernel, 77);
        let waits = Route { kind: RouteKind::NextHopGroup(key), ..via("30.0.0.0/8", 2) };
        let refused = via("127.0.0.0/9", 2);
        assert!(rib.add(waits.clone()).is_err() && rib.add(refused.clone()).is_err());
        let all = [told(), vec![waits, refused]].concat();
        assert_eq!(audit(&mut rib, &all, 2), Findings::default());
    }

    #[test]
    fn the_rib_becomes_what_the_source_says() {
        let mut rib = rib();
        let mut changed = told();
        changed[0] = via("20.0.0.0/8", 5);
        changed[1] = via("40.0.0.0/8", 3);
        let found = audit(&mut rib, &changed, 8);
        let counts = (found.missing, found.stale, found.different, found.fib);
        assert_eq!(counts, (1, 1, 2, 0), "{found:?}");
        assert!(found.examples.iter().any(|text| text.contains("20.0.0.0/24")), "{found:?}");
        assert_eq!(audit(&mut rib, &changed, 8), Findings::default(), "it was put right");
        assert_eq!(
            rib.lookup(VrfId::DEFAULT, [20, 0, 0, 1].into()).unwrap().route.prefix,
            changed[0].prefix
        );
    }

    #[test]
    fn the_fib_becomes_what_the_rib_says() {
        let of = |text: &str| Ipv4Addr::prefix(&text.parse().unwrap()).unwrap();
        let wrong = |rib: &mut Rib| {
            let found = audit(rib, &told(), 2);
            assert_eq!(audit(rib, &told(), 2), Findings::default(), "it was put right");
            let counts = (found.missing, found.stale, found.different);
            assert_eq!(counts, (0, 0, 0), "{found:?}");
            found.fib
        };
        let mut rib = rib();
        let hop = rib.fib_lookup(VrfId::DEFAULT, [20, 0, 0, 1].into());
        // A route that the FIB has lost, one that leads elsewhere, and one that no source has.
        rib.vrfs[0].v4.fib_for_test().remove(of("20.0.0.0/24"));
        assert_eq!(wrong(&mut rib), 1);
        assert_eq!(rib.fib_lookup(VrfId::DEFAULT, [20, 0, 0, 1].into()), hop);
        rib.vrfs[0].v4.fib_for_test().insert(of("20.0.0.0/8"), hop).unwrap();
        assert_eq!(wrong(&mut rib), 1);
        rib.vrfs[0].v4.fib_for_test().insert(of("20.9.0.0/24"), hop).unwrap();
        let found = audit(&mut rib, &told(), 2);
        assert_eq!(found.fib, 1, "{found:?}");
        assert!(found.examples[0].contains("20.9.0.0/16 was looked up"), "{found:?}");
    }

    #[test]
    fn a_source_that_begins_anew_ends_the_audit() {
        let mut rib = rib();
        rib.begin_audit(RouteSource::Kernel);
        rib.end_audit();
        rib.begin_resync(RouteSource::Kernel);
        rib.tick();
        assert_eq!(rib.take_findings(), None);
        assert_eq!(
            rib.routes_filtered(VrfId::DEFAULT, Some(RouteSource::Kernel), None, false).count(),
            4
        );
    }
}

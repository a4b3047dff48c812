//! Reports once more everything that was reported and not withdrawn, a piece at a time, so that it
//! can be compared with the RIB and FIB.
//!
//! Changes are reported in between. A route after the recall's position is reported as it is when
//! its turn comes; one before it was compared as it was then.

use super::info::Resolved;
use super::table::{Effect, Effects, Key, Key4, Key6, Tables, effects_alone};
use super::{Of, Routes, UNREACHABLE, in_vrf};
use crate::netlink::event::SourceEvent;
use crate::rib::GroupKey;
use dataplane::interface::VrfId;

/// Position of a recall; the default is its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recall(Place);

#[derive(Clone, Copy, Debug, Default)]
enum Place {
    /// Nexthop objects come first, as routes refer to them.
    #[default]
    Groups,
    /// IPv4: position of the table in the order, with those of VRFs last, and the last prefix
    /// reported.
    Four(usize, Option<Key4>),
    /// IPv6.
    Six(usize, Option<Key6>),
}

impl Routes {
    /// Reports the next routes, `most` or a few more. Returns the new position, `None` at the end.
    pub(crate) fn recall(&mut self, at: Recall, most: usize) -> Option<Recall> {
        self.flush(None);
        let next = match at.0 {
            Place::Groups => {
                let source = self.policy.source();
                let sent =
                    |(&id, spec)| SourceEvent::AuditGroup { key: GroupKey::new(source, id), spec };
                let all = self.nexthops.all.iter();
                self.out.extend(all.filter_map(|(id, o)| Some((id, o.sent.clone()?))).map(sent));
                Some(Place::Four(0, None))
            }
            Place::Four(table, after) => match self.recall_table(table, after, most) {
                Some((table, after)) => Some(Place::Four(table, after)),
                None => Some(Place::Six(0, None)),
            },
            Place::Six(table, after) => {
                self.recall_table(table, after, most).map(|(table, after)| Place::Six(table, after))
            }
        };
        next.map(Recall)
    }

    /// Reports the next routes of the table at this position. Returns the new position.
    fn recall_table<K: Of>(
        &mut self,
        place: usize,
        after: Option<K>,
        most: usize,
    ) -> Option<(usize, Option<K>)> {
        let source = self.policy.source();
        let tables = K::of(self);
        let of_vrf = |at: usize| tables.vrfs.iter().nth(at).map(|(id, vrf)| (*id, Some(*vrf)));
        let (id, vrf) = match tables.order.get(place) {
            Some(&id) => (id, None),
            None => of_vrf(place - tables.order.len())?,
        };
        let mut out = std::mem::take(&mut self.out);
        let (tables, infos) = K::split(self);
        let keys = tables.all.get(&id).map_or_else(Vec::new, |table| table.after(after, most));
        for &key in &keys {
            let effects: Effects = match vrf {
                Some(_) => tables
                    .all
                    .get(&id)
                    .map(|table| effects_alone(table.get(key), infos))
                    .unwrap_or_default(),
                None if told_before(tables, place, key) => continue,
                None => tables.effects(key, infos),
            };
            for (metric, effect) in effects {
                let resolved = match effect {
                    Effect::Info(number) => infos.resolved(number),
                    Effect::Unreachable => &UNREACHABLE,
                };
                let Resolved::Route(kind) = resolved else { continue };
                let vrf = vrf.unwrap_or(VrfId::DEFAULT);
                let (prefix, kind) = (key.net(), in_vrf(kind, vrf));
                let metric = metric.into();
                out.push(SourceEvent::AuditRoute { source, vrf, prefix, metric, kind });
            }
        }
        self.out = out;
        Some(match keys.last() {
            Some(&last) if keys.len() == most => (place, Some(last)),
            _ => (place + 1, None),
        })
    }
}

/// Returns true if an earlier table has the prefix, so that its effects were reported there.
fn told_before<K: Key>(tables: &Tables<K>, place: usize, key: K) -> bool {
    let earlier = tables.order[..place].iter().filter_map(|id| tables.all.get(id));
    earlier.into_iter().any(|table| !table.get(key).is_empty())
}

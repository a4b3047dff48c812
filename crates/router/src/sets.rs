//! The sets of prefixes that rules of filters name: the configuration's elements, those of commands, and the prefixes
//! of routes.
//!
//! Filters look packets up in one table of all sets, so adding or removing an element changes nothing else: no
//! filter is rebuilt, no graph exchanged. An element is in its set while the configuration has it or a command
//! has added it, for a time or until the router ends, or while a route to it is among those that the set follows.
//! The RIB records changed prefixes as long as a set follows routes; a set that begins to follow reads all of them
//! once, piece by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use acl::{SETS_MAX, SetError, SetId, SetReaders, Sets};
use anyhow::{Context, Result, anyhow, bail};
use control::config::{PrefixSet, SetRoutes};
use control::rib::Rib;
use dataplane::grace::Grace;
use dataplane::interface::VrfId;
use dataplane::lock::lock;
use dataplane::words::suggestion;
use dpdk::qsbr::Qsbr;
use ipnet::IpNet;

/// Prefixes compared at a time, in a fraction of a millisecond.
const PIECE: usize = 64;

/// See the module's documentation. Shared by the owner and the threads that build graphs.
#[derive(Clone)]
pub struct NamedSets(Arc<Mutex<State>>);

struct State {
    readers: Arc<Qsbr>,
    /// `None` until there is a set: the tables take memory.
    sets: Option<Sets>,
    kept: BTreeMap<String, Kept>,
    /// The position of the walk through all prefixes with routes; `None`: it has ended.
    walk: Option<(VrfId, Bound<IpNet>)>,
    /// Changed prefixes that have not been compared.
    changed: Vec<(VrfId, IpNet)>,
}

/// The elements of a set, by origin.
#[derive(Default)]
struct Kept {
    /// Filters of forwarders may name it. Otherwise it was declared for a change that may never be made.
    is_in_use: bool,
    configured: BTreeSet<IpNet>,
    /// Of commands, and until when.
    added: BTreeMap<IpNet, Option<Instant>>,
    /// The routes whose prefixes are elements, and these prefixes.
    follows: Option<SetRoutes>,
    routes: BTreeSet<IpNet>,
    /// True if a prefix was refused for lack of room, and that is logged.
    is_full: bool,
}

impl Kept {
    fn has(&self, net: &IpNet) -> bool {
        self.configured.contains(net) || self.added.contains_key(net) || self.routes.contains(net)
    }
}

/// A set, for reports.
pub struct Named {
    /// Its name.
    pub name: String,
    /// The configuration's elements.
    pub configured: Vec<IpNet>,
    /// Those of commands that the configuration does not have, and until when.
    pub added: Vec<(IpNet, Option<Instant>)>,
    /// Those of routes that neither has.
    pub routes: Vec<IpNet>,
}

impl NamedSets {
    /// No set yet; these threads look packets up.
    pub fn new(readers: &Arc<Qsbr>) -> Self {
        Self(Arc::new(Mutex::new(State {
            readers: readers.clone(),
            sets: None,
            kept: BTreeMap::new(),
            walk: None,
            changed: Vec::new(),
        })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut lock(&self.0))
    }

    /// Sets that are new get their numbers and their elements; no packet is looked up in them yet. Returns
    /// the tables for filters that are made now.
    ///
    /// # Errors
    /// There are too many, or there is no room.
    pub fn declare(&self, wanted: &[PrefixSet]) -> Result<SetReaders> {
        self.with(|state| {
            for set in wanted {
                if state.kept.get(&set.name).is_some_and(|kept| kept.is_in_use) {
                    continue;
                }
                if !state.kept.contains_key(&set.name) {
                    state.add_set(&set.name)?;
                }
                state.configure(set)?;
            }
            Ok(state.sets.as_ref().map_or_else(SetReaders::none, Sets::readers))
        })
    }

    /// The elements that the configuration has, of sets that have been declared.
    ///
    /// # Errors
    /// There is no room for one; those before it are there.
    pub fn configure(&self, wanted: &[PrefixSet]) -> Result<()> {
        self.with(|state| wanted.iter().try_for_each(|set| state.configure(set)))
    }

    /// A change was made or given up: forwarders have filters that name these sets, and no filter names others.
    pub fn retain(&self, wanted: &[PrefixSet]) {
        self.with(|state| {
            let is_wanted = |name: &String| wanted.iter().any(|set| set.name == *name);
            let gone: Vec<_> = state.kept.keys().filter(|name| !is_wanted(name)).cloned().collect();
            for name in gone {
                if let Err(error) = state.remove_set(&name) {
                    tracing::error!("prefix_set \"{name}\": stays: {error}");
                }
            }
            state.kept.values_mut().for_each(|kept| kept.is_in_use = true);
        });
    }

    /// Adds elements until a time, or until the router ends; how many were not there.
    ///
    /// # Errors
    /// There is no such set, or no room; then those before it are there.
    pub fn add(&self, name: &str, nets: &[IpNet], until: Option<Instant>) -> Result<usize> {
        self.with(|state| {
            let (sets, set, kept) = state.set(name)?;
            let mut added = 0;
            for net in nets {
                if !kept.has(net) {
                    added += 1;
                    sets.add(set, *net).with_context(|| net.to_string())?;
                }
                kept.added.insert(*net, until);
            }
            Ok(added)
        })
    }

    /// Takes elements away that [`Self::add`] has added; how many there were.
    ///
    /// # Errors
    /// There is no such set, or one of the elements is the configuration's: nothing has changed then.
    pub fn remove(&self, name: &str, nets: &[IpNet]) -> Result<usize> {
        self.with(|state| {
            let (_, _, kept) = state.set(name)?;
            if let Some(net) = nets.iter().find(|net| kept.configured.contains(net)) {
                bail!("{net} is in the configuration; take it away there, and apply it");
            }
            let there = nets.iter().filter(|net| kept.added.contains_key(net)).count();
            nets.iter().try_for_each(|net| state.forget(name, *net))?;
            Ok(there)
        })
    }

    /// Returns true if routes have changed that sets may follow.
    pub fn is_behind(&self, rib: &Rib) -> bool {
        rib.has_changes() || self.with(|state| state.walk.is_some() || !state.changed.is_empty())
    }

    /// Lets sets follow routes, as long as `has_time`; `rib` records changes while there are such sets.
    pub fn follow(&self, rib: &mut Rib, has_time: impl Fn() -> bool) {
        self.with(|state| {
            let is_followed = state.kept.values().any(|kept| kept.follows.is_some());
            rib.follow_changes(is_followed);
            state.changed.extend(rib.drain_changes());
            while !state.changed.is_empty() && has_time() {
                let some = state.changed.len().saturating_sub(PIECE);
                for (vrf, net) in state.changed.split_off(some) {
                    state.compare(rib, vrf, net);
                }
            }
            while state.walk.is_some() && has_time() {
                state.walk_on(rib);
            }
        });
    }

    /// Takes elements away whose time is over.
    pub fn expire(&self, now: Instant) {
        self.with(|state| {
            let is_over = |until: &Option<Instant>| until.is_some_and(|until| until <= now);
            let mut over = Vec::new();
            for (name, kept) in &state.kept {
                let nets = kept.added.iter().filter(|(_, until)| is_over(until));
                over.extend(nets.map(|(net, _)| (name.clone(), *net)));
            }
            for (name, net) in over {
                if let Err(error) = state.forget(&name, net) {
                    tracing::error!("prefix_set \"{name}\": {net} stays: {error}");
                }
            }
        });
    }

    /// All sets by their names.
    pub fn list(&self) -> Vec<Named> {
        self.with(|state| {
            let named = |(name, kept): (&String, &Kept)| {
                let own = kept.added.iter().filter(|(net, _)| !kept.configured.contains(net));
                let is_other =
                    |net: &&IpNet| !kept.configured.contains(net) && !kept.added.contains_key(net);
                Named {
                    name: name.clone(),
                    configured: kept.configured.iter().copied().collect(),
                    added: own.map(|(net, until)| (*net, *until)).collect(),
                    routes: kept.routes.iter().filter(is_other).copied().collect(),
                }
            };
            state.kept.iter().map(named).collect()
        })
    }

    /// Returns the tables in which packets are looked up now.
    pub fn readers(&self) -> SetReaders {
        self.with(|state| state.sets.as_ref().map_or_else(SetReaders::none, Sets::readers))
    }
}

impl State {
    fn add_set(&mut self, name: &str) -> Result<()> {
        if self.sets.is_none() {
            let readers = self.readers.clone();
            let sets = Sets::new(|| Box::new(Grace(readers.clone())));
            self.sets = Some(sets.context("the tables of sets cannot be made")?);
        }
        let added = self.sets.as_mut().and_then(|sets| sets.add_set(name));
        added.with_context(|| {
            format!("prefix_set \"{name}\": exceeds {SETS_MAX} sets together with the running configuration; remove some first")
        })?;
        self.kept.insert(name.to_owned(), Kept::default());
        Ok(())
    }

    fn set(&mut self, name: &str) -> Result<(&mut Sets, SetId, &mut Kept)> {
        let Self { sets, kept, .. } = self;
        let known: Vec<&str> = kept.keys().map(String::as_str).collect();
        let unknown = anyhow!("prefix_set \"{name}\": unknown{}", suggestion(name, "sets", &known));
        let set = sets.as_ref().and_then(|sets| sets.find(name));
        match (sets, set, kept.get_mut(name)) {
            (Some(sets), Some(set), Some(kept)) => Ok((sets, set, kept)),
            _ => Err(unknown),
        }
    }

    fn configure(&mut self, wanted: &PrefixSet) -> Result<()> {
        let named = || format!("prefix_set \"{}\"", wanted.name);
        let (sets, set, kept) = self.set(&wanted.name)?;
        for net in wanted.elements.difference(&kept.configured) {
            sets.add(set, *net).with_context(|| format!("{}: {net}", named()))?;
        }
        let mut gone: BTreeSet<IpNet> = &kept.configured - &wanted.elements;
        kept.configured.clone_from(&wanted.elements);
        let follows_others = kept.follows != wanted.routes;
        if follows_others {
            kept.follows.clone_from(&wanted.routes);
            gone.append(&mut kept.routes);
        }
        for net in gone.into_iter().filter(|net| !kept.has(net)) {
            sets.remove(set, net).with_context(|| format!("{}: {net}", named()))?;
        }
        if follows_others {
            self.walk = Some((VrfId::DEFAULT, Bound::Unbounded));
        }
        Ok(())
    }

    /// Compares the next prefixes of the RIB with the sets that follow routes.
    fn walk_on(&mut self, rib: &Rib) {
        let Some((vrf, start)) = self.walk else { return };
        let nets: Vec<IpNet> = rib.prefixes_from(vrf, start).take(PIECE).collect();
        nets.iter().for_each(|net| self.compare(rib, vrf, *net));
        let next = VrfId::new(vrf.index() as u16 + 1);
        self.walk = match nets.last() {
            Some(last) => Some((vrf, Bound::Excluded(*last))),
            None => (next.index() < rib.vrfs().len()).then_some((next, Bound::Unbounded)),
        };
    }

    /// Adds a prefix to the sets that follow a route to it, and removes it from the others.
    fn compare(&mut self, rib: &Rib, vrf: VrfId, net: IpNet) {
        if net.prefix_len() == 0 {
            return;
        }
        let Self { sets: Some(sets), kept, .. } = self else { return };
        for (name, kept) in kept {
            let Some(follows) = kept.follows.as_ref().filter(|follows| follows.vrf == vrf) else {
                continue;
            };
            let is_wanted =
                rib.has_route(vrf, net, |source, origin| follows.contains(source, origin));
            if is_wanted == kept.routes.contains(&net) {
                continue;
            }
            let Some(set) = sets.find(name) else { continue };
            let changed = match is_wanted {
                true => sets.add(set, net).map(|_| _ = kept.routes.insert(net)),
                false => {
                    kept.routes.remove(&net);
                    if kept.has(&net) { Ok(()) } else { sets.remove(set, net).map(drop) }
                }
            };
            match changed {
                Ok(()) => kept.is_full = false,
                Err(error) if !std::mem::replace(&mut kept.is_full, true) => {
                    tracing::error!("prefix_set \"{name}\": {net}, the prefix of a route: {error}");
                }
                Err(_) => {}
            }
        }
    }

    /// Takes an element of a command away, if there is one.
    fn forget(&mut self, name: &str, net: IpNet) -> Result<()> {
        let (sets, set, kept) = self.set(name)?;
        if let Some(until) = kept.added.remove(&net)
            && !kept.has(&net)
            && let Err(error) = sets.remove(set, net)
        {
            kept.added.insert(net, until);
            return Err(error.into());
        }
        Ok(())
    }

    fn remove_set(&mut self, name: &str) -> Result<(), SetError> {
        if let Some(sets) = &mut self.sets
            && let Some(set) = sets.find(name)
        {
            sets.remove_set(set)?;
        }
        self.kept.remove(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn set(name: &str, elements: &[&str]) -> PrefixSet {
        let elements = elements.iter().map(|net| net.parse().unwrap()).collect();
        PrefixSet { line: 1, name: name.to_owned(), elements, routes: None }
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|net| net.parse().unwrap()).collect()
    }

    /// The addresses of 10.0.0.0 to 10.0.0.9 that are in the set, by their last byte.
    fn held(sets: &NamedSets, name: &str) -> Vec<u8> {
        let readers = sets.readers();
        let is_held = |host: &u8| readers.hold(&[name.to_owned()], [10, 0, 0, *host].into());
        (0..10).filter(is_held).collect()
    }

    #[test]
    fn an_element_stays_while_the_configuration_or_a_command_wants_it() {
        let sets = NamedSets::new(&Qsbr::new(1));
        sets.declare(&[set("a", &["10.0.0.1/32", "10.0.0.2/32"])]).unwrap();
        assert_eq!(held(&sets, "a"), [1, 2]);
        assert_eq!(sets.add("a", &nets(&["10.0.0.2/32", "10.0.0.4/31"]), None).unwrap(), 1);
        sets.configure(&[set("a", &["10.0.0.1/32", "10.0.0.8/32"])]).unwrap();
        assert_eq!(held(&sets, "a"), [1, 2, 4, 5, 8]);
        let refused = sets.remove("a", &nets(&["10.0.0.4/31", "10.0.0.1/32"])).unwrap_err();
        assert!(
            refused.to_string().starts_with("10.0.0.1/32 is in the configuration"),
            "{refused}"
        );
        assert_eq!(held(&sets, "a"), [1, 2, 4, 5, 8]);
        assert_eq!(sets.remove("a", &nets(&["10.0.0.4/31", "10.0.0.7/32"])).unwrap(), 1);
        assert_eq!(held(&sets, "a"), [1, 2, 8]);
        let unknown = sets.add("nothing", &nets(&["10.0.0.0/8"]), None).unwrap_err().to_string();
        assert_eq!(unknown, "prefix_set \"nothing\": unknown; sets: a");
    }

    #[test]
    fn elements_with_a_time_go_by_themselves() {
        let sets = NamedSets::new(&Qsbr::new(1));
        sets.declare(&[set("a", &["10.0.0.1/32"])]).unwrap();
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        sets.add("a", &nets(&["10.0.0.1/32", "10.0.0.2/32"]), Some(at(5))).unwrap();
        sets.add("a", &nets(&["10.0.0.3/32"]), Some(at(9))).unwrap();
        sets.expire(at(4));
        assert_eq!(held(&sets, "a"), [1, 2, 3]);
        sets.expire(at(5));
        assert_eq!(held(&sets, "a"), [1, 3]);
        sets.add("a", &nets(&["10.0.0.3/32"]), None).unwrap();
        sets.expire(at(99));
        assert_eq!(held(&sets, "a"), [1, 3], "for good now");
    }

    #[test]
    fn sets_that_the_configuration_has_no_more_are_forgotten() {
        let sets = NamedSets::new(&Qsbr::new(1));
        let (a, b) = (set("a", &["10.0.0.1/32"]), set("b", &["10.0.0.0/30"]));
        sets.declare(&[a.clone(), b]).unwrap();
        sets.retain(std::slice::from_ref(&a));
        assert_eq!(sets.list().len(), 1);
        sets.declare(&[a.clone(), set("c", &["10.0.0.7/32"])]).unwrap();
        // The change was given up before it began; the next one has other elements.
        sets.declare(&[set("a", &[]), set("c", &["10.0.0.8/32"])]).unwrap();
        assert_eq!((held(&sets, "a"), held(&sets, "c")), (vec![1], vec![8]));
        let many: Vec<_> = (0..SETS_MAX).map(|n| set(&format!("s{n}"), &[])).collect();
        let error = sets.declare(&many).unwrap_err().to_string();
        assert!(error.contains("exceeds 64 sets"), "{error}");
    }
}

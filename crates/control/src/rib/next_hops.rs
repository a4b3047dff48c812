//! The next hops in use: their numbers, who refers to them, and when a number may be used again.
//!
//! A number is shared by everything that leads to the same place: all routes over one gateway,
//! all routes over one set of equal-cost paths, all connected networks of one port. It is counted
//! how many routes, groups and FIB entries refer to it. When the last one goes, the number keeps
//! its meaning until a grace period has passed, because a forwarder may still hold it from a
//! lookup; then it is free. The places of a group's members are treated the same way.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::next_hop::{FIRST_DYNAMIC, GROUP_MEMBERS, NEXT_HOPS, NextHop, NextHopTable};
use dataplane::port::PortId;
use fib::GracePeriod;
use wire::MacAddr;

use super::places::Places;
use super::{Path, ResolverCommand};

/// The most places that one group takes, after its weights have been reduced.
pub(super) const GROUP_PLACES_MOST: u32 = 4096;

/// Why there is no number for a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// All numbers are in use.
    Numbers,
    /// No range of this many places is free.
    Places(u32),
}

/// What a number stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meaning {
    Glean(PortId),
    Gateway { port: PortId, address: IpAddr },
    Group { members: Box<[u16]>, first: u32 },
}

#[derive(Debug)]
struct Entry {
    meaning: Meaning,
    /// Everything that refers to the number.
    references: u32,
    /// Those of the references that are routes over a gateway, themselves or by a group. The
    /// slow path knows the gateways of routes, not every neighbour that has a host route.
    routes: u32,
}

#[derive(Debug)]
enum Retired {
    Number(u16),
    Places { first: u32, count: u32 },
}

/// Who refers to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referrer {
    /// A route over a gateway, or a group.
    Route,
    /// A FIB entry or a neighbour's host route.
    Other,
}

/// The owner of the numbers; the only writer of the next-hop table.
pub(super) struct NextHops {
    table: Arc<NextHopTable>,
    grace: Box<dyn GracePeriod>,
    entries: Vec<Option<Entry>>,
    free: Vec<u16>,
    gleans: HashMap<PortId, u16>,
    gateways: HashMap<(PortId, IpAddr), u16>,
    groups: HashMap<Box<[u16]>, u16>,
    places: Places,
    retired: VecDeque<(u64, Retired)>,
    commands: Vec<ResolverCommand>,
}

impl NextHops {
    pub(super) fn new(table: Arc<NextHopTable>, grace: Box<dyn GracePeriod>) -> Self {
        Self {
            table,
            grace,
            entries: (0..NEXT_HOPS).map(|_| None).collect(),
            // Taken from the end: small numbers first, which share cache lines.
            free: (FIRST_DYNAMIC..NEXT_HOPS as u16).rev().collect(),
            gleans: HashMap::new(),
            gateways: HashMap::new(),
            groups: HashMap::new(),
            places: Places::new(GROUP_MEMBERS as u32),
            retired: VecDeque::new(),
            commands: Vec::new(),
        }
    }

    /// What the slow path has to learn since the last call.
    pub(super) fn drain_commands(&mut self) -> Vec<ResolverCommand> {
        std::mem::take(&mut self.commands)
    }

    pub(super) fn command(&mut self, command: ResolverCommand) {
        self.commands.push(command);
    }

    /// Numbers in use, numbers that wait for a grace period, places in use or waiting.
    pub(super) fn usage(&self) -> (usize, usize, usize) {
        let waiting = self.retired.iter().filter(|r| matches!(r.1, Retired::Number(_))).count();
        let all = NEXT_HOPS - usize::from(FIRST_DYNAMIC);
        let places = GROUP_MEMBERS - self.places.free() as usize;
        (all - self.free.len() - waiting, waiting, places)
    }

    /// The number for destinations on a port's networks, with one more reference.
    pub(super) fn glean(&mut self, port: PortId) -> Result<u16, Refused> {
        let id = match self.gleans.get(&port) {
            Some(&id) => id,
            None => {
                let id = self.allocate(Meaning::Glean(port), NextHop::Glean { port })?;
                self.gleans.insert(port, id);
                id
            }
        };
        self.retain(id, Referrer::Other);
        Ok(id)
    }

    /// The number of a gateway, with one more reference. `mac` is what is known of it.
    pub(super) fn gateway(
        &mut self,
        port: PortId,
        address: IpAddr,
        mac: Option<MacAddr>,
        referrer: Referrer,
    ) -> Result<u16, Refused> {
        let id = match self.gateways.get(&(port, address)) {
            Some(&id) => id,
            None => {
                let meaning = Meaning::Gateway { port, address };
                let id = self.allocate(meaning, gateway_hop(port, mac))?;
                self.gateways.insert((port, address), id);
                id
            }
        };
        self.retain(id, referrer);
        Ok(id)
    }

    /// The number that leads over these paths, with one more reference of a route.
    pub(super) fn over(
        &mut self,
        paths: &[Path],
        mac: impl Fn(PortId, IpAddr) -> Option<MacAddr>,
    ) -> Result<u16, Refused> {
        let mut members: Vec<(u16, u32)> = Vec::with_capacity(paths.len());
        for path in paths {
            let (Some(port), Some(via)) = (path.port, path.via) else { continue };
            match self.gateway(port, via, mac(port, via), Referrer::Route) {
                Ok(id) => members.push((id, u32::from(path.weight))),
                Err(refused) => {
                    self.release_members(&members);
                    return Err(refused);
                }
            }
        }
        if let [(id, _)] = members[..] {
            return Ok(id);
        }
        let group = match places_of(&members) {
            Ok(places) if places.first() == places.last() => Ok(places[0]),
            Ok(places) => self.group(places),
            Err(refused) => Err(refused),
        };
        if let Ok(id) = group {
            self.retain(id, Referrer::Route);
        }
        self.release_members(&members);
        group
    }

    fn release_members(&mut self, members: &[(u16, u32)]) {
        for &(id, _) in members {
            self.release(id, Referrer::Route);
        }
    }

    /// The group with these members in its places. A new one refers to its members.
    fn group(&mut self, members: Vec<u16>) -> Result<u16, Refused> {
        if let Some(&id) = self.groups.get(&members[..]) {
            return Ok(id);
        }
        let count = members.len() as u32;
        let first = self.take_places(count)?;
        let written = self.table.set_members(first, &members);
        debug_assert!(written, "the places are those of the table");
        let members: Box<[u16]> = members.into();
        let meaning = Meaning::Group { members: members.clone(), first };
        let hop = NextHop::Group { first, len: count as u16 };
        let id = match self.allocate(meaning, hop) {
            Ok(id) => id,
            Err(refused) => {
                // No number ever led to these places.
                self.places.give(first, count);
                return Err(refused);
            }
        };
        for &member in &members {
            self.retain(member, Referrer::Route);
        }
        self.groups.insert(members, id);
        Ok(id)
    }

    fn take_places(&mut self, count: u32) -> Result<u32, Refused> {
        if let Some(first) = self.places.take(count) {
            return Ok(first);
        }
        self.recycle();
        self.places.take(count).ok_or(Refused::Places(count))
    }

    /// A number with this meaning and no reference yet.
    fn allocate(&mut self, meaning: Meaning, hop: NextHop) -> Result<u16, Refused> {
        if self.free.is_empty() {
            self.recycle();
        }
        let id = self.free.pop().ok_or(Refused::Numbers)?;
        self.table.set(id, hop);
        self.entries[usize::from(id)] = Some(Entry { meaning, references: 0, routes: 0 });
        Ok(id)
    }

    /// One more reference to a number; the reserved ones are not counted.
    pub(super) fn retain(&mut self, id: u16, referrer: Referrer) {
        let Some(entry) = &mut self.entries[usize::from(id)] else { return };
        entry.references += 1;
        if referrer == Referrer::Route {
            entry.routes += 1;
            if let (1, &Meaning::Gateway { port, address }) = (entry.routes, &entry.meaning) {
                self.commands.push(ResolverCommand::NextHop { id, port, address });
            }
        }
    }

    /// One reference less; the last one retires the number.
    pub(super) fn release(&mut self, id: u16, referrer: Referrer) {
        let Some(entry) = &mut self.entries[usize::from(id)] else { return };
        entry.references -= 1;
        if referrer == Referrer::Route {
            entry.routes -= 1;
            if entry.routes == 0 && matches!(entry.meaning, Meaning::Gateway { .. }) {
                self.commands.push(ResolverCommand::RemoveNextHop { id });
            }
        }
        if entry.references == 0 {
            self.retire(id);
        }
    }

    fn retire(&mut self, id: u16) {
        let Some(entry) = self.entries[usize::from(id)].take() else { return };
        let token = self.grace.start();
        self.retired.push_back((token, Retired::Number(id)));
        match entry.meaning {
            Meaning::Glean(port) => {
                self.gleans.remove(&port);
            }
            Meaning::Gateway { port, address } => {
                self.gateways.remove(&(port, address));
            }
            Meaning::Group { members, first } => {
                let count = members.len() as u32;
                self.retired.push_back((token, Retired::Places { first, count }));
                self.groups.remove(&members);
                // A forwarder that still holds the group reads its members: they retire with a
                // later token, so they outlive it.
                for &member in &members {
                    self.release(member, Referrer::Route);
                }
            }
        }
    }

    /// Frees what no forwarder can hold any more; returns how many pieces still wait.
    pub(super) fn recycle(&mut self) -> usize {
        while let Some((token, _)) = self.retired.front() {
            if !self.grace.passed(*token) {
                break;
            }
            match self.retired.pop_front() {
                Some((_, Retired::Number(id))) => {
                    self.table.set(id, NextHop::NoRoute);
                    self.free.push(id);
                }
                Some((_, Retired::Places { first, count })) => self.places.give(first, count),
                None => break,
            }
        }
        self.retired.len()
    }

    /// Says what is known of a gateway; one store, however many routes lead over it.
    pub(super) fn resolve(&mut self, port: PortId, address: IpAddr, mac: Option<MacAddr>) {
        if let Some(&id) = self.gateways.get(&(port, address)) {
            self.table.set(id, gateway_hop(port, mac));
        }
    }

    /// The paths that a number leads over, weights reduced; empty for anything but gateways and
    /// groups.
    pub(super) fn paths(&self, id: u16) -> Vec<Path> {
        match self.entries[usize::from(id)].as_ref().map(|entry| &entry.meaning) {
            Some(&Meaning::Gateway { port, address }) => {
                vec![Path::over(port, address)]
            }
            Some(Meaning::Group { members, .. }) => members
                .chunk_by(|a, b| a == b)
                .flat_map(|same| {
                    let weight = same.len() as u16;
                    self.paths(same[0]).into_iter().map(move |path| Path { weight, ..path })
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The port whose networks the number stands for.
    pub(super) fn glean_port(&self, id: u16) -> Option<PortId> {
        match self.entries[usize::from(id)].as_ref()?.meaning {
            Meaning::Glean(port) => Some(port),
            _ => None,
        }
    }
}

fn gateway_hop(port: PortId, mac: Option<MacAddr>) -> NextHop {
    match mac {
        Some(mac) => NextHop::Forward { port, mac },
        None => NextHop::Unresolved { port },
    }
}

/// Each member as often as its weight says, weights reduced by their greatest common divisor, in
/// the order of the numbers so that equal sets of paths are one group. A member that is given
/// twice has the sum of its weights.
fn places_of(members: &[(u16, u32)]) -> Result<Vec<u16>, Refused> {
    let mut weights: BTreeMap<u16, u32> = BTreeMap::new();
    for &(id, weight) in members {
        *weights.entry(id).or_default() += weight;
    }
    let divisor = weights.values().fold(0, |divisor, &weight| gcd(divisor, weight)).max(1);
    let total: u32 = weights.values().map(|&weight| weight / divisor).sum();
    if total > GROUP_PLACES_MOST {
        return Err(Refused::Places(total));
    }
    let repeat = |(id, weight)| std::iter::repeat_n(id, (weight / divisor) as usize);
    Ok(weights.into_iter().flat_map(repeat).collect())
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

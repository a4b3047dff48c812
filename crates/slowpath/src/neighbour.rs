//! The neighbour table: the MAC of each neighbour, and the packets that wait for it.
//!
//! One table for ARP and ND, by RFC 4861, 7.3, which also fulfils the requirements of RFC 1122, 2.3.2 for ARP:
//! old entries are probed by unicast (2.3.2.1), requests for one address are at least a second apart
//! (2.3.2.1), packets are kept meanwhile (2.3.2.2).
//!
//! ```text
//!                 answer                       timer
//!   Incomplete ------------> Reachable -----------------------> Probing
//!       |                     ^     |                           |  |
//!       | no answer    answer |     | other MAC heard    answer |  | no answer
//!       v                     |     v                           |  v
//!     Failed                  +-- Stale --- timer --> Probing   |  (forgotten)
//!       | timer                                                 |
//!       v                                          Reachable <--+
//!   (forgotten)             Static: by configuration, no timers
//!                           Kernel: on an interface with a host interface, as long as the kernel says
//! ```
//!
//! Forwarders do not report their use of neighbours, so every known neighbour is probed when its
//! timer ends; one that does not answer is forgotten, and the next packet for it starts resolution
//! again. The table sends nothing itself: its return values tell the engine what to send.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::MacAddr;

pub(crate) use crate::Waiting;
use crate::random::Random;
use crate::{Limits, NeighbourInfo, NeighbourState, Time};

/// Key of a neighbour: the same address may exist on several interfaces (link-local ones).
pub(crate) type Key = (InterfaceId, IpAddr);

/// State of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Incomplete { tries: u8 },
    Reachable { mac: MacAddr },
    Stale { mac: MacAddr },
    Probing { mac: MacAddr, tries: u8 },
    Failed,
    Static { mac: MacAddr },
    Kernel { mac: MacAddr },
}

impl State {
    fn mac(self) -> Option<MacAddr> {
        match self {
            Self::Incomplete { .. } | Self::Failed => None,
            Self::Reachable { mac }
            | Self::Stale { mac }
            | Self::Probing { mac, .. }
            | Self::Static { mac }
            | Self::Kernel { mac } => Some(mac),
        }
    }

    /// Returns the rank of an entry among those that make room when the table is full; `None`: never evicted.
    /// `confirmed`: the neighbour has answered from its MAC.
    fn rank(self, confirmed: bool) -> Option<Rank> {
        match self {
            Self::Failed => Some(Rank::Failed),
            Self::Incomplete { .. } => Some(Rank::Incomplete),
            Self::Static { .. } | Self::Kernel { .. } => None,
            _ if confirmed => Some(Rank::Confirmed),
            _ => Some(Rank::Heard),
        }
    }

    fn public(self) -> NeighbourState {
        match self {
            Self::Incomplete { .. } => NeighbourState::Incomplete,
            Self::Reachable { .. } => NeighbourState::Reachable,
            Self::Stale { .. } => NeighbourState::Stale,
            Self::Probing { .. } => NeighbourState::Probing,
            Self::Failed => NeighbourState::Failed,
            Self::Static { .. } => NeighbourState::Static,
            Self::Kernel { .. } => NeighbourState::Kernel,
        }
    }
}

/// The order in which entries make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The neighbour does not answer.
    Failed,
    /// The neighbour was heard, and never answered: any host on the link can claim any address in this way.
    Heard,
    /// The neighbour is being resolved.
    Incomplete,
    /// The neighbour has answered.
    Confirmed,
}

/// The entries of one interface that may make room.
#[derive(Default)]
struct Evictable {
    /// The unconfirmed entries, best first.
    unconfirmed: BTreeSet<(Rank, u64, Key)>,
    /// The confirmed entries, oldest first.
    confirmed: BTreeSet<(u64, Key)>,
}

struct Entry<P> {
    state: State,
    /// True if the neighbour has answered from its current MAC.
    confirmed: bool,
    since: Time,
    deadline: Option<Time>,
    /// Grows with each new entry: the order of eviction.
    serial: u64,
    queue: VecDeque<Waiting<P>>,
}

/// Outcome of resolving the MAC for a packet or frame.
pub(crate) enum Resolution<P> {
    /// The MAC is known: send it.
    Ready(MacAddr, Waiting<P>),
    /// It waits. `ask`: send a first request.
    Waits { ask: bool },
    /// It cannot wait: the neighbour has failed, or there is no room.
    Refused(Waiting<P>, DropReason),
}

/// Evidence for a neighbour's MAC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The neighbour answered us: both directions work.
    Answered,
    /// The neighbour was heard: its MAC is known, but not whether it receives our packets.
    Heard,
}

/// Result of learning a MAC.
pub(crate) struct Learnt<P> {
    /// True if the MAC is new: report it to control.
    pub changed: bool,
    /// The packets that waited for it, in order.
    pub ready: Vec<Waiting<P>>,
}

/// Action that a timer requires.
pub(crate) enum Due<P> {
    /// Send a request by broadcast or to the group.
    Ask(Key),
    /// Send a request to the known MAC.
    Probe(Key, MacAddr),
    /// No answer; these packets waited.
    Unreachable(Vec<Waiting<P>>),
    /// A neighbour that was known ceased to answer.
    Lost(Key),
}

/// Selection of an interface's neighbours to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// Those learned here: the kernel withdraws the ones that it reported.
    Learned,
    /// Also those reported by the kernel.
    Told,
    /// All, also static ones.
    All,
}

/// An entry that was removed.
pub(crate) struct Removed<P> {
    pub key: Key,
    /// True if control holds its MAC.
    pub was_up: bool,
    pub queue: Vec<Waiting<P>>,
}

/// An entry on its way to another table.
pub(crate) struct Part<P> {
    key: Key,
    entry: Entry<P>,
}

/// The neighbour table.
pub(crate) struct Table<P> {
    entries: HashMap<Key, Entry<P>>,
    /// Every entry's deadline.
    timers: BTreeSet<(Time, Key)>,
    /// The entries that may make room, by interface.
    evictable: BTreeMap<InterfaceId, Evictable>,
    /// Entries with a MAC that had to make room, to be reported to control.
    evicted: Vec<Key>,
    /// Packets dropped to make room for others, with the reason; the engine collects them.
    displaced: Vec<(Waiting<P>, DropReason)>,
    serial: u64,
    /// Packets and frames in all queues.
    waiting: usize,
    /// Number of received packets among them.
    held: usize,
    limits: Limits,
    random: Random,
}

impl<P> Table<P> {
    /// Replaces the limits; entries beyond them expire with time.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub(crate) fn new(limits: Limits, random: Random) -> Self {
        Self {
            entries: HashMap::new(),
            timers: BTreeSet::new(),
            evictable: BTreeMap::new(),
            evicted: Vec::new(),
            displaced: Vec::new(),
            serial: 0,
            waiting: 0,
            held: 0,
            limits,
            random,
        }
    }

    /// Creates an empty one with the same limits.
    pub(crate) fn another(&mut self) -> Self {
        Self::new(self.limits, Random::new(self.random.next()))
    }

    /// Takes the entries of some interfaces out, in the order of their age, with what waits for them.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Vec<Part<P>> {
        let keys: Vec<Key> = self.entries.keys().copied().filter(|key| is_in(key.0)).collect();
        let take = |key: Key| {
            let entry = self.entries.remove(&key)?;
            self.forget_indexes(key, &entry);
            self.waiting -= entry.queue.len();
            self.held -= entry.queue.iter().map(is_received).sum::<usize>();
            Some(Part { key, entry })
        };
        let mut parts: Vec<_> = keys.into_iter().filter_map(take).collect();
        parts.sort_unstable_by_key(|part| (part.entry.since, part.entry.serial, part.key));
        parts
    }

    /// Adds entries of other interfaces, which keep their states and timers.
    pub(crate) fn join(&mut self, parts: Vec<Part<P>>) {
        for Part { key, mut entry } in parts {
            self.serial += 1;
            entry.serial = self.serial;
            self.waiting += entry.queue.len();
            self.held += entry.queue.iter().map(is_received).sum::<usize>();
            if let Some(deadline) = entry.deadline {
                self.timers.insert((deadline, key));
            }
            self.note_rank(key, entry.serial, entry.state.rank(entry.confirmed));
            self.entries.insert(key, entry);
        }
    }

    /// Returns the number of received packets that wait.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|&(time, _)| time)
    }

    /// Returns the MAC of a neighbour, if known.
    pub(crate) fn mac(&self, key: Key) -> Option<MacAddr> {
        self.entries.get(&key)?.state.mac()
    }

    /// Returns the state of a neighbour, if there is an entry.
    pub(crate) fn state(&self, key: Key) -> Option<NeighbourState> {
        Some(self.entries.get(&key)?.state.public())
    }

    /// Takes the packets dropped to make room since the last call.
    pub(crate) fn take_displaced(&mut self) -> Vec<(Waiting<P>, DropReason)> {
        std::mem::take(&mut self.displaced)
    }

    /// Takes the neighbours held by control that had to make room since the last call.
    pub(crate) fn take_evicted(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.evicted)
    }

    /// Finds the MAC for a packet or frame, or keeps it until the MAC is known.
    pub(crate) fn resolve(&mut self, key: Key, what: Waiting<P>, now: Time) -> Resolution<P> {
        match self.entries.get(&key).map(|entry| entry.state) {
            Some(State::Failed) => Resolution::Refused(what, DropReason::NeighbourFailed),
            Some(state) => match state.mac() {
                Some(mac) => Resolution::Ready(mac, what),
                None => self.enqueue(key, what, false),
            },
            None if self.create(key, State::Incomplete { tries: 1 }, now) => {
                self.enqueue(key, what, true)
            }
            None => Resolution::Refused(what, DropReason::NeighbourTableFull),
        }
    }

    /// Starts to resolve an address before it is needed; returns true if a request must be sent.
    pub(crate) fn start(&mut self, key: Key, now: Time) -> bool {
        !self.entries.contains_key(&key) && self.create(key, State::Incomplete { tries: 1 }, now)
    }

    /// Learns a MAC. `create`: also of a neighbour that is not in the table yet. `None` if the table does not
    /// take it: no entry, no room, or a static one.
    pub(crate) fn learn(
        &mut self,
        key: Key,
        mac: MacAddr,
        evidence: Evidence,
        create: bool,
        now: Time,
    ) -> Option<Learnt<P>> {
        let fresh = match evidence {
            Evidence::Answered => State::Reachable { mac },
            Evidence::Heard => State::Stale { mac },
        };
        let Some(old) = self.entries.get(&key).map(|entry| entry.state) else {
            return (create && self.create(key, fresh, now))
                .then_some(Learnt { changed: true, ready: Vec::new() });
        };
        if matches!(old, State::Static { .. }) {
            return None;
        }
        let changed = old.mac() != Some(mac);
        if changed || evidence == Evidence::Answered {
            self.set_confirmed(key, evidence == Evidence::Answered);
            self.set_state(key, fresh, now);
        }
        Some(Learnt { changed, ready: self.take_queue(key) })
    }

    /// Learns a neighbour that the kernel reported; `None` if the table does not take it: no room, or a static
    /// entry.
    pub(crate) fn learn_from_kernel(
        &mut self,
        key: Key,
        mac: MacAddr,
        now: Time,
    ) -> Option<Learnt<P>> {
        let old = self.entries.get(&key).map(|entry| entry.state);
        match old {
            None => {
                let created = self.create(key, State::Kernel { mac }, now);
                return created.then_some(Learnt { changed: true, ready: Vec::new() });
            }
            Some(State::Static { .. }) => return None,
            Some(_) => self.set_state(key, State::Kernel { mac }, now),
        }
        let changed = old.and_then(State::mac) != Some(mac);
        Some(Learnt { changed, ready: self.take_queue(key) })
    }

    /// Handles the kernel's loss of a neighbour's MAC, or its failure to resolve it.
    pub(crate) fn kernel_lost(&mut self, key: Key, now: Time) -> Option<Due<P>> {
        match self.entries.get(&key)?.state {
            State::Incomplete { .. } => {
                self.set_state(key, State::Failed, now);
                Some(Due::Unreachable(self.take_queue(key)))
            }
            State::Kernel { .. } => {
                self.remove(key);
                Some(Due::Lost(key))
            }
            _ => None,
        }
    }

    /// Schedules a probe of a reachable neighbour that may have another MAC (RFC 4861, 7.2.5, I).
    pub(crate) fn doubt(&mut self, key: Key, now: Time) {
        if let Some(State::Reachable { mac }) = self.entries.get(&key).map(|entry| entry.state) {
            self.set_state(key, State::Stale { mac }, now);
        }
    }

    /// Adds a static neighbour; the packets that waited are ready. Static entries may exceed the table's
    /// limit: the configuration limits them.
    pub(crate) fn add_static(&mut self, key: Key, mac: MacAddr, now: Time) -> Vec<Waiting<P>> {
        if self.entries.contains_key(&key) {
            self.set_state(key, State::Static { mac }, now);
        } else {
            self.insert(key, State::Static { mac }, now);
        }
        self.take_queue(key)
    }

    /// Removes one neighbour.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Removed<P>> {
        let queue = self.take_queue(key);
        let entry = self.entries.remove(&key)?;
        self.forget_indexes(key, &entry);
        Some(Removed { key, was_up: entry.state.mac().is_some(), queue })
    }

    /// Removes neighbours of an interface.
    pub(crate) fn flush(&mut self, interface: InterfaceId, what: Forgotten) -> Vec<Removed<P>> {
        let fits = |entry: &Entry<P>| match entry.state {
            State::Static { .. } => what == Forgotten::All,
            State::Kernel { .. } => what != Forgotten::Learned,
            _ => true,
        };
        let on_port = self.entries.iter().filter(|(key, entry)| key.0 == interface && fits(entry));
        let mut keys: Vec<Key> = on_port.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Takes all packets that wait, for shutdown.
    pub(crate) fn drain(&mut self) -> Vec<Waiting<P>> {
        let mut keys: Vec<Key> = self.entries.keys().copied().collect();
        keys.sort_unstable();
        keys.into_iter().flat_map(|key| self.take_queue(key)).collect()
    }

    /// Returns the next action that is due at `now`; call until `None`.
    pub(crate) fn due(&mut self, now: Time) -> Option<Due<P>> {
        loop {
            let &(time, key) = self.timers.first()?;
            if time > now {
                return None;
            }
            let state = self.entries.get(&key)?.state;
            match state {
                State::Incomplete { tries } if tries < self.limits.tries => {
                    self.set_state(key, State::Incomplete { tries: tries + 1 }, now);
                    return Some(Due::Ask(key));
                }
                State::Incomplete { .. } => {
                    self.set_state(key, State::Failed, now);
                    return Some(Due::Unreachable(self.take_queue(key)));
                }
                State::Reachable { mac } | State::Stale { mac } => {
                    self.set_state(key, State::Probing { mac, tries: 1 }, now);
                    return Some(Due::Probe(key, mac));
                }
                State::Probing { mac, tries } if tries < self.limits.tries => {
                    self.set_state(key, State::Probing { mac, tries: tries + 1 }, now);
                    return Some(Due::Probe(key, mac));
                }
                State::Probing { .. } => {
                    self.remove(key);
                    return Some(Due::Lost(key));
                }
                State::Failed | State::Static { .. } | State::Kernel { .. } => {
                    self.remove(key);
                }
            }
        }
    }

    /// Returns the table's content, sorted by interface and address.
    pub(crate) fn list(&self, now: Time) -> Vec<NeighbourInfo> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .map(|(&(interface, address), entry)| NeighbourInfo {
                address,
                interface,
                mac: entry.state.mac(),
                state: entry.state.public(),
                age: now.saturating_sub(entry.since),
                queued: entry.queue.len(),
                is_static: matches!(entry.state, State::Static { .. }),
            })
            .collect();
        all.sort_unstable_by_key(|info| (info.interface, info.address));
        all
    }

    /// Puts a packet or frame into an unresolved entry's queue; if that is full, its oldest one is dropped. If
    /// all queues together are full and this one is empty, the new one is dropped.
    fn enqueue(&mut self, key: Key, what: Waiting<P>, ask: bool) -> Resolution<P> {
        let Some(entry) = self.entries.get_mut(&key) else {
            return Resolution::Refused(what, DropReason::NeighbourFailed);
        };
        self.held += is_received(&what);
        entry.queue.push_back(what);
        let full = entry.queue.len() > self.limits.queue || self.waiting >= self.limits.held;
        let oldest = if full { entry.queue.pop_front() } else { None };
        self.held -= oldest.as_ref().map_or(0, is_received);
        self.displaced.extend(oldest.map(|what| (what, DropReason::NeighbourQueueFull)));
        self.waiting += usize::from(!full);
        Resolution::Waits { ask }
    }

    /// Takes the queue out of an entry.
    fn take_queue(&mut self, key: Key) -> Vec<Waiting<P>> {
        let Some(entry) = self.entries.get_mut(&key) else { return Vec::new() };
        let queue = std::mem::take(&mut entry.queue);
        self.waiting -= queue.len();
        self.held -= queue.iter().map(is_received).sum::<usize>();
        queue.into()
    }

    /// Makes an entry, evicting another one if the table is full; returns false if none may be evicted.
    fn create(&mut self, key: Key, state: State, now: Time) -> bool {
        if self.entries.len() >= self.limits.neighbours {
            let Some(victim) = self.victim(key.0, state) else { return false };
            if let Some(removed) = self.remove(victim) {
                let reason = DropReason::NeighbourTableFull;
                self.displaced.extend(removed.queue.into_iter().map(|what| (what, reason)));
                self.evicted.extend(removed.was_up.then_some(victim));
            }
        }
        self.insert(key, state, now);
        true
    }

    /// Selects the entry that makes room for another one on an interface, such that no interface's neighbours
    /// are evicted by those of another: the first of the interface with the most unconfirmed ones. Where all
    /// are confirmed, the oldest of the interface with the most, if that has more than this interface; but not
    /// for a neighbour that was only heard, which costs an attacker nothing.
    fn victim(&self, interface: InterfaceId, new: State) -> Option<Key> {
        let unconfirmed = self.evictable.values().max_by_key(|of| of.unconfirmed.len())?;
        if let Some(&(_, _, victim)) = unconfirmed.unconfirmed.first() {
            return Some(victim);
        }
        if matches!(new, State::Stale { .. }) {
            return None;
        }
        let own = self.evictable.get(&interface).map_or(0, |own| own.confirmed.len());
        let confirmed = self.evictable.values().max_by_key(|of| of.confirmed.len())?;
        let &(_, victim) = confirmed.confirmed.first()?;
        (confirmed.confirmed.len() > own + 1).then_some(victim)
    }

    /// Records whether a neighbour has answered from its MAC; its state is set afterwards.
    fn set_confirmed(&mut self, key: Key, confirmed: bool) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let before = std::mem::replace(&mut entry.confirmed, confirmed);
        let (serial, rank) = (entry.serial, entry.state.rank(before));
        self.drop_rank(key, serial, rank);
    }

    fn note_rank(&mut self, key: Key, serial: u64, rank: Option<Rank>) {
        let Some(rank) = rank else { return };
        let of = self.evictable.entry(key.0).or_default();
        match rank {
            Rank::Confirmed => of.confirmed.insert((serial, key)),
            _ => of.unconfirmed.insert((rank, serial, key)),
        };
    }

    fn drop_rank(&mut self, key: Key, serial: u64, rank: Option<Rank>) {
        let (Some(rank), Some(of)) = (rank, self.evictable.get_mut(&key.0)) else { return };
        match rank {
            Rank::Confirmed => of.confirmed.remove(&(serial, key)),
            _ => of.unconfirmed.remove(&(rank, serial, key)),
        };
    }

    fn insert(&mut self, key: Key, state: State, now: Time) {
        self.serial += 1;
        let serial = self.serial;
        let confirmed = matches!(state, State::Reachable { .. });
        let queue = VecDeque::new();
        let entry = Entry { state, confirmed, since: now, deadline: None, serial, queue };
        self.entries.insert(key, entry);
        self.set_state(key, state, now);
    }

    /// Changes an entry's state and with it its timer and its place in the order of eviction.
    fn set_state(&mut self, key: Key, state: State, now: Time) {
        let delay = match state {
            State::Incomplete { .. } | State::Probing { .. } => Some(self.limits.retry),
            // RFC 4861, 6.3.2: a random factor between 0.5 and 1.5, so that neighbours learned together are
            // not always probed together.
            State::Reachable { .. } => {
                let base = self.limits.reachable;
                Some(base / 2 + self.random.up_to(base))
            }
            State::Stale { .. } => Some(self.limits.probe_delay),
            State::Failed => Some(self.limits.failed),
            State::Static { .. } | State::Kernel { .. } => None,
        };
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if let Some(deadline) = entry.deadline {
            self.timers.remove(&(deadline, key));
        }
        if entry.state.public() != state.public() {
            entry.since = now;
        }
        let before = std::mem::replace(&mut entry.state, state).rank(entry.confirmed);
        let (serial, rank) = (entry.serial, state.rank(entry.confirmed));
        entry.deadline = delay.map(|delay| now.saturating_add(delay));
        if let Some(deadline) = entry.deadline {
            self.timers.insert((deadline, key));
        }
        self.drop_rank(key, serial, before);
        self.note_rank(key, serial, rank);
    }

    fn forget_indexes(&mut self, key: Key, entry: &Entry<P>) {
        if let Some(deadline) = entry.deadline {
            self.timers.remove(&(deadline, key));
        }
        self.drop_rank(key, entry.serial, entry.state.rank(entry.confirmed));
    }
}

/// Returns 1 for a received packet, 0 for a frame of the router's own.
fn is_received<P>(what: &Waiting<P>) -> usize {
    usize::from(matches!(what, Waiting::Received { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        A, B, Bench, GATEWAY, GLEAN_RIGHT, LEFT, Out, config, drops, icmp_type, ip, originated,
        right, secs, udp, v4, v6,
    };
    use crate::{Command, Config, Event};
    use dataplane::reason::PuntReason;
    use std::time::Duration;
    use wire::arp::{ArpMessage, REPLY};
    use wire::build::{self, Link};

    /// A packet from A to 10.0.2.`host`, numbered by its UDP length.
    fn packet(host: u8, number: usize) -> Vec<u8> {
        v4("10.0.1.2", &format!("10.0.2.{host}"), 17, &udp(number))
    }

    fn glean(bench: &mut Bench, host: u8, number: usize) -> Vec<Out> {
        bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, packet(host, number))
    }

    fn reply(bench: &mut Bench, host: u8, mac: MacAddr) -> Vec<Out> {
        let sender = (mac, format!("10.0.2.{host}").parse().unwrap());
        let target = (crate::testing::R, "10.0.2.1".parse().unwrap());
        let message = ArpMessage::new(REPLY, sender, target);
        let link = Link { destination: crate::testing::R, source: mac };
        bench.punt(PuntReason::Arp, right(), 0, build::arp(link, &message))
    }

    fn state(bench: &Bench, address: &str) -> Option<NeighbourState> {
        let all = bench.router.neighbours(bench.now);
        all.iter().find(|info| info.address == ip(address)).map(|info| info.state)
    }

    /// A router with A in its table, so that errors reach A at once.
    fn bench_with(config: Config) -> Bench {
        let mut bench = Bench::with(config);
        let command =
            Command::AddStaticNeighbour { interface: LEFT, address: ip("10.0.1.2"), mac: A };
        bench.command(command);
        bench.take();
        bench
    }

    #[test]
    fn packets_wait_and_leave_in_order() {
        let mut bench = bench_with(config());
        let outs = glean(&mut bench, 2, 1);
        let [request] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!((&request[..6], &request[38..42]), (&[0xff; 6][..], &[10, 0, 2, 2][..]));
        assert_eq!(glean(&mut bench, 2, 2), [], "one request for all");
        assert_eq!(glean(&mut bench, 2, 3), []);
        assert_eq!(bench.router.held(), 3);
        let outs = reply(&mut bench, 2, B);
        let up = Event::NeighbourUp { interface: right(), address: ip("10.0.2.2"), mac: B };
        assert_eq!(outs[0], Out::Event(up));
        let lengths: Vec<_> = outs
            .iter()
            .filter_map(|out| match out {
                Out::Forward(interface, frame) if *interface == right() && frame[..6] == B.0 => {
                    Some(frame.len() - 42)
                }
                _ => None,
            })
            .collect();
        assert_eq!(lengths, [1, 2, 3]);
        assert_eq!(bench.router.held(), 0);
        assert!(matches!(glean(&mut bench, 2, 4)[..], [Out::Forward(..)]), "known now");
        bench.assert_nothing_lost();
    }

    #[test]
    fn a_full_queue_drops_its_oldest() {
        let mut config = config();
        config.limits.queue = 2;
        let mut bench = bench_with(config);
        glean(&mut bench, 2, 1);
        assert_eq!(glean(&mut bench, 2, 2), []);
        assert_eq!(glean(&mut bench, 2, 3), [Out::Drop(DropReason::NeighbourQueueFull)]);
        let outs = reply(&mut bench, 2, B);
        let lengths: Vec<_> = outs
            .iter()
            .filter_map(|out| if let Out::Forward(_, f) = out { Some(f.len() - 42) } else { None })
            .collect();
        assert_eq!(lengths, [2, 3]);
        bench.assert_nothing_lost();
    }

    #[test]
    fn all_queues_together_have_a_bound() {
        let mut config = config();
        config.limits.held = 3;
        let mut bench = bench_with(config);
        glean(&mut bench, 2, 1);
        glean(&mut bench, 3, 1);
        glean(&mut bench, 4, 1);
        let outs = glean(&mut bench, 5, 1);
        assert_eq!(drops(&outs), [DropReason::NeighbourQueueFull]);
        assert_eq!(originated(&outs).len(), 1, "asked for all the same");
        assert_eq!(drops(&glean(&mut bench, 4, 2)), [DropReason::NeighbourQueueFull]);
        assert_eq!(bench.router.held(), 3);
        reply(&mut bench, 2, B);
        assert_eq!(glean(&mut bench, 5, 2), []);
        bench.assert_nothing_lost();
    }

    #[test]
    fn three_requests_a_second_apart_then_the_senders_are_told() {
        let mut bench = bench_with(config());
        assert_eq!(originated(&glean(&mut bench, 2, 1)).len(), 1);
        glean(&mut bench, 2, 2);
        assert_eq!(bench.pass(Duration::from_millis(999)), []);
        assert_eq!(originated(&bench.pass(Duration::from_millis(1))).len(), 1);
        assert_eq!(originated(&bench.pass(secs(1))).len(), 1);
        let outs = bench.pass(secs(1));
        assert_eq!(drops(&outs), [DropReason::NeighbourFailed; 2]);
        assert_eq!(originated(&outs).len(), 2);
        assert!(originated(&outs).iter().all(|f| icmp_type(f) == (3, 1)));
        // For a while no request is sent; senders get errors at once.
        let outs = glean(&mut bench, 2, 3);
        assert_eq!(drops(&outs), [DropReason::NeighbourFailed]);
        assert_eq!(icmp_type(originated(&outs)[0]), (3, 1));
        assert_eq!(state(&bench, "10.0.2.2"), Some(NeighbourState::Failed));
        assert_eq!(bench.pass(secs(3)), []);
        assert_eq!(state(&bench, "10.0.2.2"), None);
        let outs = glean(&mut bench, 2, 4);
        assert_eq!(originated(&outs)[0][12..14], [8, 6], "asked again");
        bench.assert_nothing_lost();
    }

    #[test]
    fn a_failed_neighbour_that_speaks_is_back() {
        let mut bench = bench_with(config());
        glean(&mut bench, 2, 1);
        bench.pass(secs(3));
        reply(&mut bench, 2, B);
        assert!(matches!(glean(&mut bench, 2, 2)[..], [Out::Forward(..)]));
    }

    #[test]
    fn ipv6_neighbours_that_fail_are_address_unreachable() {
        let mut bench = bench_with(config());
        let command =
            Command::AddStaticNeighbour { interface: LEFT, address: ip("fd00:1::2"), mac: A };
        bench.command(command);
        let frame = v6("fd00:1::2", "fd00:2::2", 17, &udp(1));
        bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, frame);
        let outs = bench.pass(secs(3));
        let last = *originated(&outs).last().unwrap();
        assert_eq!((icmp_type(last), &last[..6]), ((1, 3), &A.0[..]));
    }

    #[test]
    fn a_neighbour_is_probed_by_unicast_and_kept_when_it_answers() {
        let mut bench = bench_with(config());
        glean(&mut bench, 2, 1);
        reply(&mut bench, 2, B);
        assert_eq!(state(&bench, "10.0.2.2"), Some(NeighbourState::Reachable));
        assert_eq!(bench.pass(secs(14)), [], "reachable for 15 to 45 s");
        let mut probes = Vec::new();
        for _ in 0..3100 {
            probes.extend(bench.pass(Duration::from_millis(10)));
            if !probes.is_empty() {
                break;
            }
        }
        let [probe] = originated(&probes)[..] else { panic!("{probes:?}") };
        assert_eq!(probe[..6], B.0);
        assert_eq!(state(&bench, "10.0.2.2"), Some(NeighbourState::Probing));
        assert!(matches!(glean(&mut bench, 2, 2)[..], [Out::Forward(..)]), "used meanwhile");
        let outs = reply(&mut bench, 2, B);
        assert!(matches!(outs[..], [Out::ToHost(_)]), "no event: nothing changed");
        assert_eq!(state(&bench, "10.0.2.2"), Some(NeighbourState::Reachable));
    }

    #[test]
    fn a_neighbour_that_does_not_answer_probes_is_down() {
        let mut bench = bench_with(config());
        glean(&mut bench, 2, 1);
        reply(&mut bench, 2, B);
        let outs = bench.pass(secs(49));
        assert_eq!(originated(&outs).len(), 3);
        let down = Event::NeighbourDown { interface: right(), address: ip("10.0.2.2") };
        assert_eq!(outs.last(), Some(&Out::Event(down)));
        assert_eq!(state(&bench, "10.0.2.2"), None);
    }

    #[test]
    fn a_gateway_is_resolved_before_anything_needs_it() {
        let mut bench = bench_with(config());
        let gateway = ip("10.0.2.254");
        let command = Command::NextHop { id: GATEWAY, interface: right(), address: gateway };
        bench.command(command.clone());
        assert_eq!(originated(&bench.take())[0][38..42], [10, 0, 2, 254]);
        bench.command(command.clone());
        assert_eq!(bench.take(), [], "being resolved");
        let frame = v4("10.0.1.2", "198.51.100.1", 17, &udp(1));
        assert_eq!(bench.punt(PuntReason::Unresolved, LEFT, GATEWAY, frame), []);
        let outs = reply(&mut bench, 254, B);
        let up = Out::Event(Event::NeighbourUp { interface: right(), address: gateway, mac: B });
        assert_eq!(outs[0], up);
        assert!(matches!(&outs[1], Out::Forward(_, f) if f[30..34] == [198, 51, 100, 1]));
        bench.command(command);
        assert_eq!(bench.take(), [up], "told again");
    }

    #[test]
    fn commands_add_and_remove_neighbours() {
        let mut bench = bench_with(config());
        glean(&mut bench, 2, 1);
        let address = ip("10.0.2.2");
        bench.command(Command::AddStaticNeighbour { interface: right(), address, mac: B });
        assert!(matches!(bench.take()[..], [Out::Event(_), Out::Forward(..)]));
        let info = &bench.router.neighbours(bench.now)[1];
        assert!(info.is_static && info.mac == Some(B) && info.state == NeighbourState::Static);
        assert_eq!(bench.pass(secs(1000)), [], "no timers");
        bench.command(Command::RemoveNeighbour { interface: right(), address });
        let down = Event::NeighbourDown { interface: right(), address };
        assert_eq!(bench.take(), [Out::Event(down)]);
        glean(&mut bench, 2, 2);
        bench.command(Command::RemoveNeighbour { interface: right(), address });
        assert_eq!(bench.take(), [Out::Drop(DropReason::NeighbourFailed)]);
        bench.assert_nothing_lost();
    }

    #[test]
    fn a_link_that_goes_down_forgets_its_learned_neighbours() {
        let mut bench = bench_with(config());
        glean(&mut bench, 2, 1);
        reply(&mut bench, 2, B);
        glean(&mut bench, 3, 1);
        bench.command(Command::PortLink { interface: right(), up: false });
        let down = Event::NeighbourDown { interface: right(), address: ip("10.0.2.2") };
        let want = [Out::Event(down), Out::Drop(DropReason::NeighbourFailed)];
        assert_eq!(bench.take(), want);
        bench.command(Command::PortLink { interface: LEFT, up: false });
        assert_eq!(state(&bench, "10.0.1.2"), Some(NeighbourState::Static));
        assert_eq!(bench.router.next_deadline(), None);
        bench.command(Command::PortLink { interface: right(), up: true });
        assert!(!originated(&bench.pass(secs(0))).is_empty(), "announced again");
    }

    #[test]
    fn a_full_table_evicts_failed_then_unresolved_and_never_a_resolved_one() {
        let mut config = config();
        config.limits.neighbours = 3; // one is A
        let mut bench = bench_with(config);
        glean(&mut bench, 2, 1);
        bench.pass(secs(3));
        glean(&mut bench, 3, 1);
        assert_eq!(originated(&glean(&mut bench, 4, 1)).len(), 1);
        assert_eq!(state(&bench, "10.0.2.2"), None, "failed");
        let outs = glean(&mut bench, 5, 1);
        assert_eq!(drops(&outs), [DropReason::NeighbourTableFull]);
        assert_eq!(state(&bench, "10.0.2.3"), None, "the oldest unresolved");
        reply(&mut bench, 4, B);
        reply(&mut bench, 5, B);
        assert_eq!(glean(&mut bench, 6, 1), [Out::Drop(DropReason::NeighbourTableFull)]);
        assert_eq!(bench.router.neighbours(bench.now).len(), 3);
        bench.assert_nothing_lost();
    }

    /// A host that resolves the router's address and is thereby heard.
    fn ask(bench: &mut Bench, host: u8) -> Vec<Out> {
        let sender = (B, format!("10.0.2.{host}").parse().unwrap());
        let target = (MacAddr::default(), "10.0.2.1".parse().unwrap());
        let message = ArpMessage::new(wire::arp::REQUEST, sender, target);
        let link = Link { destination: MacAddr([0xff; 6]), source: B };
        bench.punt(PuntReason::Arp, right(), 0, build::arp(link, &message))
    }

    #[test]
    fn hosts_that_only_spoke_make_room_and_control_hears_of_it() {
        let mut config = config();
        config.limits.neighbours = 3; // one is A
        let mut bench = bench_with(config);
        ask(&mut bench, 2);
        ask(&mut bench, 3);
        let outs = ask(&mut bench, 4);
        let down = Event::NeighbourDown { interface: right(), address: ip("10.0.2.2") };
        assert!(outs.contains(&Out::Event(down)), "{outs:?}");
        // A confirmed neighbour stays, and one being resolved replaces one that was only heard.
        glean(&mut bench, 3, 1);
        reply(&mut bench, 3, B);
        glean(&mut bench, 5, 1);
        assert_eq!(state(&bench, "10.0.2.4"), None);
        ask(&mut bench, 6);
        assert_eq!(state(&bench, "10.0.2.3"), Some(NeighbourState::Reachable));
        bench.assert_nothing_lost();
    }

    fn learn(table: &mut Table<u32>, interface: InterfaceId, host: u8, evidence: Evidence) -> bool {
        let key = (interface, IpAddr::from([10, 0, 1, host]));
        table.learn(key, A, evidence, true, Time::ZERO).is_some()
    }

    fn on(table: &Table<u32>, interface: InterfaceId) -> usize {
        table.entries.keys().filter(|key| key.0 == interface).count()
    }

    #[test]
    fn a_port_s_flood_drives_out_its_own() {
        let limits = Limits { neighbours: 20, ..Limits::default() };
        let mut table: Table<u32> = Table::new(limits, Random::new(9));
        (0..5).for_each(|host| assert!(learn(&mut table, right(), host, Evidence::Heard)));
        (0..200).for_each(|host| assert!(learn(&mut table, LEFT, host, Evidence::Heard)));
        assert_eq!((on(&table, LEFT), on(&table, right())), (15, 5));
        // New neighbours on the other interface all find room, up to an equal share.
        (10..20).for_each(|host| assert!(learn(&mut table, right(), host, Evidence::Heard)));
        assert!((9..=11).contains(&on(&table, right())));
    }

    #[test]
    fn a_port_full_of_confirmed_neighbours_leaves_others_their_part() {
        let limits = Limits { neighbours: 20, ..Limits::default() };
        let mut table: Table<u32> = Table::new(limits, Random::new(9));
        (0..20).for_each(|host| assert!(learn(&mut table, LEFT, host, Evidence::Answered)));
        assert!(!learn(&mut table, LEFT, 20, Evidence::Answered), "its own are not driven out");
        assert!(!learn(&mut table, right(), 1, Evidence::Heard), "nor by one that only spoke");
        let answered = |host| learn(&mut table, right(), host, Evidence::Answered);
        assert_eq!((0..20).map(answered).filter(|&known| known).count(), 10);
        assert_eq!((on(&table, LEFT), on(&table, right())), (10, 10));
        assert_eq!(table.take_evicted().len(), 10);
    }

    #[test]
    fn shutdown_gives_back_what_waits() {
        let mut bench = bench_with(config());
        glean(&mut bench, 2, 1);
        glean(&mut bench, 3, 1);
        bench.router.shutdown(&mut bench.net);
        assert_eq!(drops(&bench.take()), [DropReason::Shutdown; 2]);
        assert_eq!(bench.router.held(), 0);
        bench.assert_nothing_lost();
    }

    #[test]
    fn indexes_and_counts_stay_in_step_with_the_entries() {
        let limits = Limits { neighbours: 8, held: 20, queue: 4, ..Limits::default() };
        let mut table: Table<u32> = Table::new(limits, Random::new(9));
        let mut random = Random::new(7);
        let mut now = Time::ZERO;
        for step in 0..20_000u32 {
            now += random.up_to(Duration::from_millis(300));
            let host = (random.next() % 20) as u8;
            let key = (LEFT, IpAddr::from([10, 0, 1, host]));
            match random.next() % 8 {
                0..4 => {
                    let what = match step % 3 {
                        0 => Waiting::Own(Vec::new()),
                        _ => Waiting::Received { packet: step, from: LEFT },
                    };
                    table.resolve(key, what, now);
                }
                4 => drop(table.learn(key, A, Evidence::Answered, true, now)),
                5 => drop(table.learn(key, B, Evidence::Heard, false, now)),
                6 => drop(table.remove(key)),
                _ => while table.due(now).is_some() {},
            }
            table.take_displaced();
            let queued: usize = table.entries.values().map(|entry| entry.queue.len()).sum();
            assert_eq!(table.waiting, queued);
            let queues = table.entries.values().flat_map(|entry| &entry.queue);
            let received = queues.filter(|what| matches!(what, Waiting::Received { .. }));
            assert_eq!(table.held(), received.count());
            assert!(queued <= 20 && table.entries.len() <= 8);
            let timed = table.entries.values().filter(|entry| entry.deadline.is_some()).count();
            assert_eq!(table.timers.len(), timed);
            let ranks = table.entries.values().filter_map(|e| e.state.rank(e.confirmed));
            let (confirmed, others): (Vec<_>, Vec<_>) =
                ranks.partition(|&rank| rank == Rank::Confirmed);
            let count =
                |of: fn(&Evictable) -> usize| table.evictable.values().map(of).sum::<usize>();
            assert_eq!(count(|of| of.confirmed.len()), confirmed.len());
            assert_eq!(count(|of| of.unconfirmed.len()), others.len());
            table.take_evicted();
            let known = table.entries.values().filter(|e| e.state.mac().is_some());
            assert!(known.into_iter().all(|entry| entry.queue.is_empty()));
        }
    }
}

//! Meaning of zebra's messages, and removal of the routes that a replay lacks. No input or output.

use std::collections::HashSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::netlink::message::{
    Hop, Malformed, Message, Messages, NLMSG_ERROR, Nexthop, RTM_DELROUTE, RTM_NEWNEXTHOP,
    RTM_NEWROUTE, RouteMessage,
};
use crate::netlink::routes::{Interface, ReplacePolicy, Routes, Skipped};
use crate::netlink::{Interfaces, SourceEvent};
use crate::rib::RouteSource;

/// Zebra pauses for a second when its buffer is full, so a longer silence ends a replay.
const SILENCE: Duration = Duration::from_secs(3);

/// Share of the held routes, in percent, from which a replay is that of a zebra that kept running
/// while disconnected. A replay with fewer is that of a restarted zebra.
const REPLAYED: usize = 90;

/// Errors that are logged one by one; further ones are only counted.
const SAID: u64 = 10;

/// State of the session with zebra.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No connection yet.
    Waiting,
    /// Zebra is replaying everything.
    Replay { since: Instant, last: Instant },
    /// All routes of zebra are held.
    Synchronised,
    /// Zebra is disconnected; its routes are kept until then.
    Away { until: Instant },
}

/// Zebra's routes.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) routes: Routes,
    pub(super) phase: Phase,
    pub(super) messages: u64,
    pub(super) errors: u64,
    pub(super) ignored: u64,
    pub(super) replays: u64,
    /// Routes held when the replay began.
    held: usize,
    /// Routes and objects of the replay so far.
    replayed: usize,
    keep: Duration,
    interfaces: Interfaces,
    said: HashSet<&'static str>,
}

impl Session {
    pub(super) fn new(keep: Duration) -> Self {
        Self {
            routes: Routes::new(ReplacePolicy::Fpm),
            phase: Phase::Waiting,
            messages: 0,
            errors: 0,
            ignored: 0,
            replays: 0,
            held: 0,
            replayed: 0,
            keep,
            interfaces: Interfaces::default(),
            said: HashSet::new(),
        }
    }

    /// Sets the mapping of interfaces to ports.
    pub(super) fn set_interfaces(&mut self, interfaces: &Interfaces) {
        for index in self.interfaces.by_index.keys() {
            if !interfaces.by_index.contains_key(index) {
                self.routes.set_interface(*index, None);
            }
        }
        for (&index, &port) in &interfaces.by_index {
            self.routes.set_interface(index, Some(Interface { port, up: true }));
        }
        self.routes.set_vrfs(&interfaces.vrfs);
        self.interfaces = interfaces.clone();
    }

    /// Handles a new connection: zebra begins its replay.
    pub(super) fn connected(&mut self, now: Instant) {
        self.held = self.routes.count();
        self.replayed = 0;
        self.routes.begin_sync();
        if self.phase == Phase::Waiting {
            self.routes.push(SourceEvent::ResyncBegin(RouteSource::Fpm));
        }
        self.phase = Phase::Replay { since: now, last: now };
    }

    /// Keeps routes for another time, from the next loss of the connection on.
    pub(super) fn set_keep(&mut self, keep: Duration) {
        self.keep = keep;
    }

    /// Withdraws everything.
    pub(super) fn withdraw(&mut self) {
        self.end_first_replay();
        self.routes.clear();
    }

    /// Handles the loss of zebra's connection.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.end_first_replay();
        self.phase = Phase::Away { until: now + self.keep };
    }

    fn end_first_replay(&mut self) {
        if matches!(self.phase, Phase::Replay { .. }) && self.replays == 0 {
            self.routes.push(SourceEvent::ResyncEnd(RouteSource::Fpm));
            self.replays = 1;
        }
    }

    /// Returns the time of the next action if nothing is received before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting | Phase::Synchronised => None,
            Phase::Away { until } => Some(until),
            Phase::Replay { since, last } if self.is_complete() => {
                Some((last + SILENCE).max(since + SILENCE))
            }
            Phase::Replay { since, last } => Some((last + SILENCE).max(since + self.keep)),
        }
    }

    /// Returns true if nearly as many routes have been replayed as were held.
    fn is_complete(&self) -> bool {
        self.replayed >= self.held * REPLAYED / 100
    }

    /// Does the actions that are due.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            Phase::Waiting | Phase::Synchronised => {}
            Phase::Away { .. } => {
                let count = self.routes.count();
                tracing::warn!("fpm: zebra did not come back; its {count} routes are withdrawn");
                self.routes.clear();
                self.phase = Phase::Synchronised;
            }
            Phase::Replay { .. } => {
                let gone = self.routes.end_sync();
                let count = self.routes.count();
                tracing::info!("fpm: zebra: {count} routes received; {gone} stale ones removed");
                let first = self.replays == 0;
                self.end_first_replay();
                self.replays += u64::from(!first);
                self.phase = Phase::Synchronised;
            }
        }
    }

    /// Handles the messages of a frame. Zebra changes a route by a deletion and an addition in one
    /// frame; between the two the route is never withdrawn.
    pub(super) fn take(&mut self, frame: &[u8], now: Instant) {
        let mut deleted: Option<RouteMessage> = None;
        for message in Messages(frame) {
            self.messages += 1;
            let raw = match message {
                Ok(raw) => raw,
                Err(error) => {
                    self.malformed(&error);
                    break;
                }
            };
            let message = match Message::parse(&raw) {
                Ok(message) => message,
                Err(error) => {
                    self.malformed(&error);
                    continue;
                }
            };
            let replaced = |old: &RouteMessage| {
                matches!(&message, Message::Route(new) if raw.kind == RTM_NEWROUTE
                    && (new.table, new.prefix) == (old.table, old.prefix))
            };
            if let Some(old) = deleted.take_if(|old| !replaced(old)) {
                self.route(true, old);
            }
            match message {
                Message::Route(route) if raw.kind == RTM_DELROUTE => deleted = Some(route),
                Message::Route(route) => {
                    deleted = None;
                    self.route(false, route);
                }
                Message::Nexthop(nexthop) if raw.kind == RTM_NEWNEXTHOP => {
                    if let Nexthop::Single(hop) = nexthop.nexthop {
                        self.check_interfaces(&format_args!("nexthop {}", nexthop.id), &[hop]);
                    }
                    let result = self.routes.set_nexthop(nexthop);
                    self.note(result);
                }
                Message::Nexthop(nexthop) => self.routes.remove_nexthop(nexthop.id),
                _ => self.ignored += 1,
            }
        }
        if let Some(old) = deleted {
            self.route(true, old);
        }
        if let Phase::Replay { last, .. } = &mut self.phase {
            *last = now;
        }
    }

    fn route(&mut self, gone: bool, route: RouteMessage) {
        self.replayed += usize::from(!gone);
        if !gone {
            self.check_interfaces(&format_args!("route {}", route.prefix), &route.hops);
        }
        let result = self.routes.on_notification(0, gone, route);
        self.note(result);
    }

    /// Counts and logs a next hop over an unknown interface. It is used once the interface appears,
    /// as zebra may learn of an interface earlier than the router.
    fn check_interfaces(&mut self, what: &dyn Display, hops: &[Hop]) {
        let known = |index| index == 0 || self.interfaces.by_index.contains_key(&index);
        let Some(hop) = hops.iter().find(|hop| !known(hop.interface)) else { return };
        self.errors += 1;
        if self.errors <= SAID {
            tracing::warn!(
                "fpm: {what}: there is no interface of index {} in the namespace of the host \
                 interfaces; this way is not used; run zebra and the listener in one namespace",
                hop.interface
            );
        }
    }

    fn malformed(&mut self, error: &Malformed) {
        self.errors += 1;
        if self.errors <= SAID {
            tracing::warn!("fpm: {error}; skipped");
        }
    }

    fn note(&mut self, result: Result<(), Skipped>) {
        match result {
            Ok(()) | Err(Skipped::Silently) => {}
            Err(Skipped::Ignored(what)) => {
                self.ignored += 1;
                if self.said.insert(what) {
                    tracing::warn!("fpm: {what} are not followed; said once");
                }
            }
            Err(Skipped::Wrong(what)) => {
                self.malformed(&Malformed::Value { kind: NLMSG_ERROR, what });
            }
        }
    }
}

//! The way of events from the slow path to the owner.
//!
//! Neither an attacker who makes neighbours appear and disappear nor a busy owner may cost memory
//! without bound, and no state that the owner needs may be lost. So neighbours are not queued
//! event by event: of each address only the latest state is kept, and one that appeared and disappeared before
//! the owner read it is discarded. There are at most as many as are in the neighbour tables and
//! known to the owner.
//!
//! ```text
//!   NeighbourUp, NeighbourDown --> by address, the latest ---+
//!                                                            +--> owner, some a turn
//!   BondPort -------------------> by port, the latest -------+
//!                                                            |
//!   all others --------> queue, at most OTHERS --------------+
//! ```
//!
//! Of the other events those beyond [`OTHERS`] are lost, and counted: requests to the kernel, which are
//! made again while the neighbour is wanted, and warnings.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use dataplane::interface::InterfaceId;
use dataplane::lock::lock;
use slowpath::Event;
use tokio::sync::Notify;
use wire::MacAddr;

/// Events other than of neighbours that wait for the owner.
const OTHERS: usize = 1024;

type Key = (InterfaceId, IpAddr);

/// Numbers of waiting and of discarded events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Wait for the owner.
    pub waiting: u64,
    /// Of neighbours: replaced by a later one of the same address.
    pub merged: u64,
    /// Others: there was no room.
    pub lost: u64,
}

#[derive(Default)]
struct Queue {
    /// The latest of each neighbour: its MAC, or `None` if it is down; with its place in the sequence.
    neighbours: HashMap<Key, (u64, Option<MacAddr>)>,
    /// The same neighbours in the sequence of their first events, regardless of later ones.
    sequence: BTreeMap<u64, Key>,
    next: u64,
    /// The neighbours that were reported to the owner as up.
    reported: HashSet<Key>,
    /// The latest of each port of a bond: collecting, distributing.
    bond_ports: BTreeMap<(InterfaceId, InterfaceId), (bool, bool)>,
    others: VecDeque<Event>,
    merged: u64,
    lost: u64,
}

impl Queue {
    fn put(&mut self, event: Event) {
        match event {
            Event::NeighbourUp { interface: port, address, mac } => {
                self.put_neighbour((port, address), Some(mac));
            }
            Event::NeighbourDown { interface: port, address } => {
                self.put_neighbour((port, address), None)
            }
            Event::BondPort { bond, port, collecting, distributing } => {
                self.bond_ports.insert((bond, port), (collecting, distributing));
            }
            _ if self.others.len() == OTHERS => self.lost += 1,
            other => self.others.push_back(other),
        }
    }

    fn put_neighbour(&mut self, key: Key, mac: Option<MacAddr>) {
        let waits = self.neighbours.get(&key).map(|waiting| waiting.0);
        self.merged += u64::from(waits.is_some());
        match waits {
            // The owner never heard that it was up.
            Some(place) if mac.is_none() && !self.reported.contains(&key) => {
                self.neighbours.remove(&key);
                self.sequence.remove(&place);
            }
            Some(place) => drop(self.neighbours.insert(key, (place, mac))),
            None if mac.is_none() && !self.reported.contains(&key) => {}
            None => {
                self.neighbours.insert(key, (self.next, mac));
                self.sequence.insert(self.next, key);
                self.next += 1;
            }
        }
    }

    fn take(&mut self, most: usize) -> Vec<Event> {
        let bond_ports = std::mem::take(&mut self.bond_ports).into_iter();
        let mut events: Vec<Event> = bond_ports
            .map(|((bond, port), (collecting, distributing))| Event::BondPort {
                bond,
                port,
                collecting,
                distributing,
            })
            .collect();
        let others = self.others.len().min(most.div_ceil(2));
        events.extend(self.others.drain(..others));
        while events.len() < most
            && let Some((_, key)) = self.sequence.pop_first()
        {
            let Some((_, mac)) = self.neighbours.remove(&key) else { continue };
            events.push(self.event(key, mac));
        }
        events
    }

    /// The event that the owner is to hear, noted.
    fn event(&mut self, (port, address): Key, mac: Option<MacAddr>) -> Event {
        match mac {
            Some(mac) => {
                self.reported.insert((port, address));
                Event::NeighbourUp { interface: port, address, mac }
            }
            None => {
                self.reported.remove(&(port, address));
                Event::NeighbourDown { interface: port, address }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.neighbours.is_empty() && self.bond_ports.is_empty() && self.others.is_empty()
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Notify,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A thread that panicked meanwhile left it as it was before or after an event.
        lock(&self.queue)
    }
}

/// A worker's end of the event channel.
#[derive(Clone)]
pub struct EventSender(Arc<Shared>);

/// The owner's end of the event channel.
pub struct EventReceiver(Arc<Shared>);

/// A view of the event channel's counts.
#[derive(Clone)]
pub struct EventView(Arc<Shared>);

/// The way from all workers to the owner.
pub fn event_channel() -> (EventSender, EventReceiver) {
    let shared = Arc::new(Shared::default());
    (EventSender(shared.clone()), EventReceiver(shared))
}

impl EventSender {
    /// Puts an event in. Never waits for the owner, but for the moment in which it takes some.
    pub fn send(&self, event: Event) {
        let was_empty = {
            let mut queue = self.0.queue();
            let was_empty = queue.is_empty();
            queue.put(event);
            was_empty
        };
        if was_empty {
            self.0.wake.notify_one();
        }
    }
}

impl EventReceiver {
    /// Waits until there are events. May be cancelled.
    pub async fn ready(&self) {
        while self.0.queue().is_empty() {
            self.0.wake.notified().await;
        }
    }

    /// Takes so many at most.
    pub fn take(&self, most: usize) -> Vec<Event> {
        self.0.queue().take(most)
    }

    /// A view of the counts.
    pub fn view(&self) -> EventView {
        EventView(self.0.clone())
    }
}

impl EventView {
    /// The counts now.
    pub fn counts(&self) -> EventCounts {
        let queue = self.0.queue();
        let waiting = (queue.neighbours.len() + queue.others.len()) as u64;
        EventCounts { waiting, merged: queue.merged, lost: queue.lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn address(host: u16) -> IpAddr {
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host])
    }

    fn up(host: u16, mac: MacAddr) -> Event {
        Event::NeighbourUp { interface: InterfaceId::FIRST, address: address(host), mac }
    }

    fn down(host: u16) -> Event {
        Event::NeighbourDown { interface: InterfaceId::FIRST, address: address(host) }
    }

    fn resolve(host: u16) -> Event {
        Event::Resolve { interface: InterfaceId::FIRST, address: address(host) }
    }

    fn send<const N: usize>(sender: &EventSender, events: [Event; N]) {
        events.into_iter().for_each(|event| sender.send(event));
    }

    #[test]
    fn the_latest_of_a_neighbour_is_heard_and_what_came_and_went_is_not() {
        let (sender, receiver) = event_channel();
        send(&sender, [up(1, MAC), up(2, MAC), down(2), up(1, OTHER)]);
        assert_eq!(receiver.take(10), [up(1, OTHER)]);
        // The owner knows 1, so it has to hear that it is down.
        send(&sender, [down(1), up(1, MAC), down(1)]);
        assert_eq!(receiver.take(10), [down(1)]);
        send(&sender, [up(1, MAC), down(1)]);
        assert_eq!(receiver.take(10), []);
        assert_eq!(receiver.view().counts(), EventCounts { waiting: 0, merged: 5, lost: 0 });
    }

    #[test]
    fn churn_that_nobody_hears_of_needs_no_room() {
        let (sender, receiver) = event_channel();
        for round in 0..1000u16 {
            (0..20).for_each(|host| sender.send(up(round % 50 * 20 + host, MAC)));
            (0..20).for_each(|host| sender.send(down(round % 50 * 20 + host)));
        }
        sender.send(up(7, MAC));
        assert_eq!(receiver.view().counts().waiting, 1);
        assert_eq!(receiver.take(10), [up(7, MAC)]);
    }

    #[test]
    fn other_events_have_a_bound_and_those_beyond_are_counted() {
        let (sender, receiver) = event_channel();
        let events = OTHERS as u16 + 5;
        (0..events).for_each(|host| sender.send(resolve(host)));
        sender.send(up(1, MAC));
        let counts = EventCounts { waiting: OTHERS as u64 + 1, merged: 0, lost: 5 };
        assert_eq!(receiver.view().counts(), counts);
        assert_eq!(
            receiver.take(3),
            [resolve(0), resolve(1), up(1, MAC)],
            "neither waits for the other"
        );
    }

    #[test]
    fn who_came_first_is_heard_first_whatever_came_of_it() {
        let (sender, receiver) = event_channel();
        send(&sender, [up(9, MAC), up(3, MAC), up(5, MAC), up(9, OTHER), down(3), up(3, OTHER)]);
        assert_eq!(receiver.take(2), [up(9, OTHER), up(5, MAC)]);
        assert_eq!(receiver.take(2), [up(3, OTHER)]);
    }

    #[tokio::test]
    async fn the_owner_is_woken() {
        let (sender, receiver) = event_channel();
        let sent = tokio::task::spawn_blocking(move || sender.send(up(1, MAC)));
        receiver.ready().await;
        assert_eq!(receiver.take(10), [up(1, MAC)]);
        sent.await.unwrap();
    }
}

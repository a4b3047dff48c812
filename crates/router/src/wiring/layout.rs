//! The assignment of ports' queues to forwarders: numbers only.
//!
//! Receive queues of all ports are dealt out together, so that no forwarder has two while another has
//! none:
//!
//! ```text
//!   1. queues whose core the configuration says, to that core
//!   2. queues of NICs on a NUMA node, to the forwarder there that has least
//!   3. all other queues, to the forwarder that has least
//!   4. while one forwarder has two queues more than another: one queue from the former to the latter
//! ```
//!
//! Step 4 gives up nearness for evenness: a packet that crosses to another node costs some dozens of
//! nanoseconds, a core without work the whole core.
//!
//! A forwarder has one transmit queue of a port if there are enough. If there are fewer, they go to
//! the forwarders that have least to do, and one without hands its packets over to the port's home, which
//! also sends what the slow path has.
//!
//! With an event device the first forwarder, the receiver, has all queues.
//!
//! A forwarder for control traffic, if there is one, has the last receive and transmit queue of each port that was
//! opened with queues for it, and no others; by that transmit queue it sends the slow path's packets, which so pass
//! no loaded forwarder.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use dataplane::port::PortId;

/// The assignment of a port's queues to forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The forwarder that sends what others hand over.
    pub home: usize,
    /// The forwarder that sends what the slow path and the kernel have: that for control traffic where it has a
    /// transmit queue, else the home.
    pub sender: usize,
    /// The forwarder for control traffic, the last of all, if there is one.
    pub control: Option<usize>,
    /// The forwarder of each receive queue.
    pub rx: Vec<usize>,
    /// The transmit queue of each forwarder, if there is one for it.
    pub tx: Vec<Option<usize>>,
    /// Received packets enter an event device.
    pub by_events: bool,
}

impl Layout {
    /// Forwarders of packets to be forwarded: all but that for control traffic.
    pub fn forwarders(&self) -> usize {
        self.control.unwrap_or(self.tx.len())
    }
}

/// A forwarder to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The core that it runs on; of that for control traffic the first one.
    pub core: usize,
    /// The NUMA node of that core, if it is known.
    pub node: Option<usize>,
    /// It is for control traffic.
    pub is_control: bool,
    /// It has the queues of all ports, and the others get their packets by an event device.
    pub is_receiver: bool,
}

/// Forwarders of packets to be forwarded: all but that for control traffic, which is the last.
pub fn forwarders(seats: &[Seat]) -> usize {
    control(seats).unwrap_or(seats.len())
}

/// The forwarder for control traffic.
pub fn control(seats: &[Seat]) -> Option<usize> {
    seats.iter().position(|seat| seat.is_control)
}

/// The queues that a port needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Receive queues, at least one beside that for control traffic.
    pub rx: usize,
    /// Transmit queues, at least one beside that for control traffic.
    pub tx: usize,
    /// The last receive queue is for control traffic.
    pub control_rx: bool,
    /// The last transmit queue is for control traffic.
    pub control_tx: bool,
    /// The NUMA node of its device, if it is known.
    pub node: Option<usize>,
    /// The cores that the configuration says.
    pub map: CoreMap,
}

/// Cores for the queues of a port; none where the router chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreMap {
    /// Of receive queues, queue 0 first, then again from the first.
    pub rx: Vec<usize>,
    /// Those that have a transmit queue.
    pub tx: Vec<usize>,
}

/// A receive queue on its way to a forwarder.
struct Card {
    port: PortId,
    queue: usize,
    node: Option<usize>,
    /// It stays with its forwarder.
    pinned: bool,
    seat: Option<usize>,
}

/// Deals all ports out to these forwarders, of which there is at least one.
pub fn deal(demands: &BTreeMap<PortId, Demand>, seats: &[Seat]) -> BTreeMap<PortId, Layout> {
    deal_beside(&BTreeMap::new(), demands, seats)
}

/// As [`deal`], beside ports that stay as they are.
pub fn deal_beside(
    settled: &BTreeMap<PortId, Layout>,
    demands: &BTreeMap<PortId, Demand>,
    seats: &[Seat],
) -> BTreeMap<PortId, Layout> {
    if seats.first().is_some_and(|seat| seat.is_receiver) {
        return demands.iter().map(|(&port, demand)| (port, by_receiver(demand, seats))).collect();
    }
    let control = control(seats);
    let seats = &seats[..forwarders(seats)];
    let mut table = Table { seats, cards: Vec::new(), loads: vec![Load::default(); seats.len()] };
    for (&port, layout) in settled {
        for (queue, &seat) in layout.rx.iter().enumerate().filter(|(_, seat)| **seat < seats.len())
        {
            table.add(Card { port, queue, node: None, pinned: true, seat: None }, Some(seat));
        }
    }
    let shared = |all: usize, has_own: bool| all - usize::from(has_own && control.is_some());
    for (&port, demand) in demands {
        for queue in 0..shared(demand.rx, demand.control_rx) {
            let seat = table.seat_of(&demand.map.rx, queue);
            let (node, pinned) = (demand.node, seat.is_some());
            table.add(Card { port, queue, node, pinned, seat: None }, seat);
        }
    }
    table.place_near();
    table.place_rest();
    table.even_out();
    let mut sending = vec![0; seats.len()];
    let mut homes = vec![0; seats.len()];
    for layout in settled.values() {
        homes[layout.home] += 1;
    }
    let mut layouts = BTreeMap::new();
    for (&port, demand) in demands {
        // That for control traffic has no card.
        let mut rx = vec![control.unwrap_or(0); demand.rx];
        for card in table.cards.iter().filter(|card| card.port == port) {
            rx[card.queue] = card.seat.unwrap_or(0);
        }
        let queues = shared(demand.tx, demand.control_tx);
        let mut tx = table.transmit(demand, queues, &mut sending);
        let owners = (0..seats.len()).filter(|&seat| tx[seat].is_some());
        let near = |seat: usize| usize::from(table.is_remote(seat, demand.node));
        let home = owners.min_by_key(|&seat| (homes[seat], near(seat), seat)).unwrap_or(0);
        homes[home] += 1;
        let own = demand.control_tx.then_some(queues).filter(|_| control.is_some());
        tx.extend(control.map(|_| own));
        let sender = control.filter(|_| own.is_some()).unwrap_or(home);
        layouts.insert(port, Layout { home, sender, control, rx, tx, by_events: false });
    }
    layouts
}

/// All queues to the first forwarder, but for those for control traffic.
fn by_receiver(demand: &Demand, seats: &[Seat]) -> Layout {
    let control = control(seats);
    let (mut rx, mut tx) = (vec![0; demand.rx], vec![None; seats.len()]);
    tx[0] = Some(0);
    let mut sender = 0;
    if let Some(control) = control {
        if let Some(last) = rx.last_mut().filter(|_| demand.control_rx) {
            *last = control;
        }
        if demand.control_tx {
            (tx[control], sender) = (Some(demand.tx - 1), control);
        }
    }
    Layout { home: 0, sender, control, rx, tx, by_events: true }
}

/// One of so many forwarders has at least two receive queues more than another.
pub fn is_uneven<'a>(layouts: impl Iterator<Item = &'a Layout>, forwarders: usize) -> bool {
    let mut loads = vec![0; forwarders];
    for layout in layouts {
        let served = layout.rx.iter().filter(|&&forwarder| forwarder < forwarders);
        served.for_each(|&forwarder| loads[forwarder] += 1);
    }
    let (least, most) = (loads.iter().min(), loads.iter().max());
    least.zip(most).is_some_and(|(least, most)| most - least > 1)
}

/// Receive queues that a forwarder has.
#[derive(Clone, Default)]
struct Load {
    all: usize,
    of_port: BTreeMap<PortId, usize>,
}

struct Table<'a> {
    seats: &'a [Seat],
    cards: Vec<Card>,
    /// By forwarder.
    loads: Vec<Load>,
}

impl Table<'_> {
    /// The forwarder that a map says for this queue.
    fn seat_of(&self, cores: &[usize], queue: usize) -> Option<usize> {
        let core = *cores.get(queue % cores.len().max(1))?;
        self.seats.iter().position(|seat| seat.core == core)
    }

    /// A card, and the forwarder that has it.
    fn add(&mut self, card: Card, seat: Option<usize>) {
        self.cards.push(card);
        if let Some(seat) = seat {
            self.give(self.cards.len() - 1, seat);
        }
    }

    /// Moves the card from its present forwarder to this one.
    fn give(&mut self, card: usize, seat: usize) {
        let card = &mut self.cards[card];
        if let Some(before) = card.seat.replace(seat) {
            let load = &mut self.loads[before];
            load.all -= 1;
            *load.of_port.entry(card.port).or_default() -= 1;
        }
        let load = &mut self.loads[seat];
        load.all += 1;
        *load.of_port.entry(card.port).or_default() += 1;
    }

    fn load(&self, seat: usize) -> usize {
        self.loads[seat].all
    }

    /// Forwarder and device are known to be on two nodes.
    fn is_remote(&self, seat: usize, node: Option<usize>) -> bool {
        matches!((self.seats[seat].node, node), (Some(seat), Some(device)) if seat != device)
    }

    /// Of these forwarders the one that has least, and of several the one that has least of this port.
    fn least(&self, seats: impl Iterator<Item = usize>, port: PortId) -> Option<usize> {
        seats.min_by_key(|&seat| {
            let of_port = self.loads[seat].of_port.get(&port).copied().unwrap_or_default();
            (self.load(seat), of_port, seat)
        })
    }

    fn place_near(&mut self) {
        for index in 0..self.cards.len() {
            let Card { port, node, seat: None, .. } = self.cards[index] else { continue };
            let near = |seat: &usize| node.is_some() && self.seats[*seat].node == node;
            if let Some(seat) = self.least((0..self.seats.len()).filter(near), port) {
                self.give(index, seat);
            }
        }
    }

    fn place_rest(&mut self) {
        for index in 0..self.cards.len() {
            let Card { port, seat: None, .. } = self.cards[index] else { continue };
            if let Some(seat) = self.least(0..self.seats.len(), port) {
                self.give(index, seat);
            }
        }
    }

    /// Each move lowers the sum of the squares of the loads, so this ends.
    fn even_out(&mut self) {
        while let Some((card, to)) = self.next_move() {
            self.give(card, to);
        }
    }

    /// The queue to be moved next, and to whom: from the forwarder with most of those that have one to
    /// give, preferably one that gets nearer to its device, or at least not farther.
    fn next_move(&self) -> Option<(usize, usize)> {
        let to = (0..self.seats.len()).min_by_key(|&seat| self.load(seat))?;
        let least = self.load(to);
        let movable = self.cards.iter().enumerate().filter_map(|(index, card)| {
            let from = card.seat.filter(|&from| !card.pinned && self.load(from) > least + 1)?;
            let far = |seat| i8::from(self.is_remote(seat, card.node));
            Some((far(to) - far(from), Reverse(self.load(from)), Reverse(index)))
        });
        movable.min().map(|(.., Reverse(card))| (card, to))
    }

    /// So many transmit queues of a port, by forwarder.
    fn transmit(
        &self,
        demand: &Demand,
        queues: usize,
        sending: &mut [usize],
    ) -> Vec<Option<usize>> {
        let mut own = vec![None; self.seats.len()];
        let mut owners: Vec<usize> = if demand.map.tx.is_empty() {
            (0..self.seats.len()).collect()
        } else {
            demand.map.tx.iter().filter_map(|core| self.seat_of(&[*core], 0)).collect()
        };
        if owners.is_empty() {
            owners = (0..self.seats.len()).collect();
        }
        if queues < owners.len() {
            // Sending for other forwarders counts as load.
            owners.sort_by_key(|&seat| {
                let far = usize::from(self.is_remote(seat, demand.node));
                (sending[seat] + self.load(seat), far, seat)
            });
            owners.truncate(queues);
            owners.iter().for_each(|&seat| sending[seat] += 1);
            owners.sort_unstable();
        }
        for (queue, seat) in owners.into_iter().enumerate() {
            own[seat] = Some(queue);
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(port: usize) -> PortId {
        PortId::new(port as u16).unwrap()
    }

    /// Forwarders on cores 10, 11, … of these nodes.
    fn seats(nodes: &[usize]) -> Vec<Seat> {
        let seat = |(index, &node)| Seat {
            core: 10 + index,
            node: Some(node),
            is_control: false,
            is_receiver: false,
        };
        nodes.iter().enumerate().map(seat).collect()
    }

    /// The same, and one for control traffic behind them.
    fn seats_with_control(nodes: &[usize]) -> Vec<Seat> {
        let control = Seat { core: 0, node: Some(0), is_control: true, is_receiver: false };
        seats(nodes).into_iter().chain([control]).collect()
    }

    fn demand(rx: usize, tx: usize, node: Option<usize>) -> Demand {
        Demand { rx, tx, node, ..Demand::default() }
    }

    /// The same, and a queue each way for control traffic.
    fn with_control(demand: Demand) -> Demand {
        let (rx, tx) = (demand.rx + 1, demand.tx + 1);
        Demand { rx, tx, control_rx: true, control_tx: true, ..demand }
    }

    fn all(demands: Vec<Demand>) -> BTreeMap<PortId, Demand> {
        demands.into_iter().enumerate().map(|(port, demand)| (id(port), demand)).collect()
    }

    fn rx(layouts: &BTreeMap<PortId, Layout>) -> Vec<Vec<usize>> {
        layouts.values().map(|layout| layout.rx.clone()).collect()
    }

    fn loads(layouts: &BTreeMap<PortId, Layout>, forwarders: usize) -> Vec<usize> {
        let mut loads = vec![0; forwarders];
        layouts.values().flat_map(|layout| &layout.rx).for_each(|&forwarder| loads[forwarder] += 1);
        loads
    }

    #[test]
    fn fifteen_forwarders_and_fifteen_queues_of_four_ports_leave_none_without_work() {
        let demands = all([4, 4, 4, 3].map(|rx| demand(rx, 15, None)).to_vec());
        let layouts = deal(&demands, &seats(&[0; 15]));
        assert_eq!(loads(&layouts, 15), [1; 15]);
    }

    #[test]
    fn equal_ports_have_equal_queues_on_equal_forwarders() {
        // So that a symmetric hash brings both directions of a flow to one forwarder.
        let layouts = deal(&all(vec![demand(2, 2, None); 3]), &seats(&[0; 2]));
        assert_eq!(rx(&layouts), vec![vec![0, 1]; 3]);
        let tx: Vec<_> = layouts.values().map(|layout| layout.tx.clone()).collect();
        assert_eq!(tx, vec![vec![Some(0), Some(1)]; 3]);
        let homes: Vec<_> = layouts.values().map(|layout| layout.home).collect();
        assert_eq!(homes, [0, 1, 0]);
    }

    #[test]
    fn queues_are_near_their_device_where_that_is_even() {
        let (first, second) = (demand(4, 4, Some(0)), demand(4, 4, Some(1)));
        let layouts = deal(&all(vec![second, first]), &seats(&[0, 0, 1, 1]));
        assert_eq!(rx(&layouts), [[2, 3, 2, 3], [0, 1, 0, 1]]);
        // An earlier port without a node leaves the near places to a later one that has only these.
        let demands = all(vec![demand(2, 2, None), demand(2, 2, Some(0))]);
        assert_eq!(rx(&deal(&demands, &seats(&[0, 0, 1, 1]))), [[2, 3], [0, 1]]);
    }

    #[test]
    fn no_forwarder_is_idle_while_a_nearer_one_has_two() {
        let layouts = deal(&all(vec![demand(4, 4, Some(1))]), &seats(&[0, 0, 1, 1]));
        assert_eq!(loads(&layouts, 4), [1; 4]);
        let home = layouts[&id(0)].home;
        assert_eq!(home, 2, "near the device");
    }

    #[test]
    fn a_map_is_followed_and_the_rest_made_even_around_it() {
        let map = CoreMap { rx: vec![12, 12, 10], tx: vec![11] };
        let pinned = Demand { map, ..demand(6, 3, Some(0)) };
        let layouts =
            deal(&all(vec![pinned, demand(1, 1, None), demand(3, 3, None)]), &seats(&[0; 3]));
        assert_eq!(layouts[&id(0)].rx, [2, 2, 0, 2, 2, 0]);
        assert_eq!(layouts[&id(0)].tx, [None, Some(0), None]);
        assert_eq!(layouts[&id(0)].home, 1);
        assert_eq!(loads(&layouts, 3), [3, 3, 4]);
    }

    #[test]
    fn few_transmit_queues_go_to_those_that_receive_least() {
        let layouts = deal(&all(vec![demand(2, 1, None), demand(1, 1, None)]), &seats(&[0; 4]));
        assert_eq!(rx(&layouts), [vec![0, 1], vec![2]]);
        let owner = |port: usize| layouts[&id(port)].tx.iter().position(Option::is_some);
        assert_eq!((owner(0), owner(1)), (Some(3), Some(0)));
    }

    #[test]
    fn a_port_that_comes_later_leaves_the_others_where_they_are() {
        let seats = seats(&[0; 3]);
        let settled = deal(&all(vec![demand(1, 1, None)]), &seats);
        let new = [(id(7), demand(2, 3, None))].into();
        let layouts = deal_beside(&settled, &new, &seats);
        assert_eq!(layouts.len(), 1);
        assert_eq!(layouts[&id(7)].rx, [1, 2]);
        assert_eq!(
            (settled[&id(0)].home, layouts[&id(7)].home),
            (1, 0),
            "who receives least sends"
        );
        let together: Vec<_> = settled.values().chain(layouts.values()).collect();
        assert!(!is_uneven(together.into_iter(), 3));
    }

    #[test]
    fn a_receiver_has_all_queues_but_those_for_control_traffic() {
        let mut seats = seats_with_control(&[0, 0, 0]);
        seats[0].is_receiver = true;
        let demands = all(vec![with_control(demand(2, 1, None)), demand(1, 3, None)]);
        let layouts = deal(&demands, &seats);
        assert_eq!(rx(&layouts), [vec![0, 0, 3], vec![0]]);
        let (with, without) = (&layouts[&id(0)], &layouts[&id(1)]);
        assert_eq!(with.tx, [Some(0), None, None, Some(1)]);
        assert_eq!(without.tx, [Some(0), None, None, None]);
        assert_eq!([with.sender, without.sender, with.home, without.home], [3, 0, 0, 0]);
        let settled = [(id(0), with.clone())].into();
        let later = deal_beside(&settled, &[(id(1), demand(1, 3, None))].into(), &seats);
        assert_eq!(later, [(id(1), without.clone())].into());
    }

    #[test]
    fn control_traffic_has_the_last_queues_and_nothing_else() {
        let demands = all(vec![with_control(demand(2, 2, None)), demand(2, 2, None)]);
        let layouts = deal(&demands, &seats_with_control(&[0, 0]));
        assert_eq!(rx(&layouts), [vec![0, 1, 2], vec![0, 1]]);
        let (with, without) = (&layouts[&id(0)], &layouts[&id(1)]);
        assert_eq!((&with.tx[..], with.sender), (&[Some(0), Some(1), Some(2)][..], 2));
        assert_eq!(
            (&without.tx[..], without.sender),
            (&[Some(0), Some(1), None][..], without.home)
        );
        assert!(with.home < 2 && without.home < 2, "it sends for no forwarder");
        assert_eq!((with.forwarders(), with.control), (2, Some(2)));
    }

    #[test]
    fn without_a_forwarder_for_control_its_queues_are_as_others() {
        let demands = all(vec![with_control(demand(1, 1, None))]);
        let layouts = deal(&demands, &seats(&[0, 0]));
        let layout = &layouts[&id(0)];
        assert_eq!((&layout.rx[..], &layout.tx[..]), (&[0, 1][..], &[Some(0), Some(1)][..]));
        assert_eq!((layout.sender, layout.control, layout.forwarders()), (layout.home, None, 2));
    }

    fn any_demand(cores: usize, nodes: usize) -> impl Strategy<Value = Demand> {
        let node = proptest::option::of(0..nodes);
        let core = 10..10 + cores;
        let maps = (
            proptest::collection::vec(core.clone(), 0..3),
            proptest::collection::btree_set(core, 0..3),
        );
        (1..9_usize, 1..9_usize, node, maps).prop_map(|(rx, tx, node, (to_rx, to_tx))| {
            let map = CoreMap { rx: to_rx, tx: to_tx.into_iter().collect() };
            Demand { rx, tx, node, map, ..Demand::default() }
        })
    }

    fn any_case() -> impl Strategy<Value = (Vec<usize>, Vec<Demand>)> {
        proptest::collection::vec(0..3_usize, 1..16).prop_flat_map(|nodes| {
            let ports = proptest::collection::vec(any_demand(nodes.len(), 3), 1..7);
            (Just(nodes), ports)
        })
    }

    proptest! {
        #[test]
        fn every_queue_is_served_once_and_maps_are_followed((nodes, demands) in any_case()) {
            let (seats, demands) = (seats(&nodes), all(demands));
            let layouts = deal(&demands, &seats);
            for (port, demand) in &demands {
                let Layout { home, rx, tx, .. } = &layouts[port];
                prop_assert_eq!(rx.len(), demand.rx);
                prop_assert!(rx.iter().all(|&forwarder| forwarder < seats.len()));
                for (queue, &forwarder) in rx.iter().enumerate().filter(|_| !demand.map.rx.is_empty()) {
                    let core = demand.map.rx[queue % demand.map.rx.len()];
                    prop_assert_eq!(seats[forwarder].core, core);
                }
                let mut queues: Vec<_> = tx.iter().flatten().copied().collect();
                queues.sort_unstable();
                let owners = if demand.map.tx.is_empty() { seats.len() } else { demand.map.tx.len() };
                prop_assert_eq!(queues, (0..demand.tx.min(owners)).collect::<Vec<_>>());
                prop_assert!(tx[*home].is_some(), "who sends for others has a queue");
                let stray = (0..seats.len()).find(|&forwarder| {
                    tx[forwarder].is_some()
                        && !demand.map.tx.is_empty()
                        && !demand.map.tx.contains(&seats[forwarder].core)
                });
                prop_assert_eq!(stray, None);
            }
        }

        #[test]
        fn a_forwarder_for_control_changes_nothing_for_the_others((nodes, demands) in any_case()) {
            let before = deal(&all(demands.clone()), &seats(&nodes));
            let demands = all(demands.into_iter().map(with_control).collect());
            for (port, layout) in deal(&demands, &seats_with_control(&nodes)) {
                let (before, last) = (&before[&port], nodes.len());
                prop_assert_eq!(layout.home, before.home);
                prop_assert_eq!((layout.sender, layout.rx.last()), (last, Some(&last)));
                prop_assert_eq!(&layout.rx[..layout.rx.len() - 1], &before.rx[..]);
                prop_assert_eq!(&layout.tx[..last], &before.tx[..]);
            }
        }

        #[test]
        fn loads_differ_by_one_at_most_and_nobody_is_idle_beside_two((nodes, demands) in any_case()) {
            let seats = seats(&nodes);
            let free = |demand: Demand| Demand { map: CoreMap::default(), ..demand };
            let layouts = deal(&all(demands.into_iter().map(free).collect()), &seats);
            let loads = loads(&layouts, seats.len());
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", loads);
            prop_assert!(!is_uneven(layouts.values(), seats.len()));
        }

        #[test]
        fn no_exchange_of_two_queues_brings_both_nearer((nodes, demands) in any_case()) {
            let seats = seats(&nodes);
            let free = |demand: Demand| Demand { map: CoreMap::default(), ..demand };
            let demands = all(demands.into_iter().map(free).collect());
            let layouts = deal(&demands, &seats);
            let placed: Vec<(Option<usize>, usize)> = layouts
                .iter()
                .flat_map(|(port, layout)| layout.rx.iter().map(|&at| (demands[port].node, at)))
                .collect();
            let far = |node: Option<usize>, at: usize| node.is_some() && seats[at].node != node;
            for &(one, at) in &placed {
                for &(other, there) in &placed {
                    let both_far = far(one, at) && far(other, there);
                    prop_assert!(!both_far || far(one, there) || far(other, at), "{:?}", placed);
                }
            }
        }
    }
}

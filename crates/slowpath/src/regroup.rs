//! Another number of engines for the same interfaces.
//!
//! ```text
//!   former engines --- state of each interface, datagrams ---> new engines, by owner
//!                 \--- what all know: addresses, gateways ---> each
//! ```
//!
//! All have executed the same commands, so what is known of interfaces is the same in all of them, except what only
//! their owners decide. Nothing is sent, forgotten or started over: timers run on.

use std::net::IpAddr;

use dataplane::interface::InterfaceId;

use crate::Packet;
use crate::engine::{Shared, SlowPath};
use crate::identification::Identifications;
use crate::random::Random;
use crate::redirect::Redirects;

/// The engine, by number, that each thing belongs to.
pub trait Owners {
    /// The owner of an interface.
    fn of_interface(&self, interface: InterfaceId) -> usize;

    /// The engine that reassembles datagrams between two addresses whose fragments come by this interface.
    fn of_datagram(&self, from: InterfaceId, addresses: (IpAddr, IpAddr)) -> usize;
}

impl<P: Packet> SlowPath<P> {
    /// Replaces engines that have executed the same commands by `count` others, to which `owners` deals out their
    /// interfaces. All their times are of the same start.
    pub fn regroup(former: Vec<Self>, count: usize, owners: &impl Owners) -> Vec<Self> {
        let mut former = former.into_iter();
        let Some(mut whole) = former.next() else { return Vec::new() };
        former.for_each(|other| whole.join(other));
        let mut all: Vec<_> = (1..count).map(|number| whole.part(number, owners)).collect();
        whole.shared.interfaces.own(&|id| owners.of_interface(id) == 0);
        all.insert(0, whole);
        all
    }

    /// Takes over everything of another engine.
    fn join(&mut self, mut other: Self) {
        self.shared.interfaces.join(&other.shared.interfaces);
        self.shared.table.join(other.shared.table.part(&|_| true));
        self.links.join(other.links);
        self.lacp.join(other.lacp);
        self.reassembly.join(other.reassembly.part(|_, _| true));
    }

    /// Splits off the engine with this number.
    fn part(&mut self, number: usize, owners: &impl Owners) -> Self {
        let is_in = |id| owners.of_interface(id) == number;
        let shared = &mut self.shared;
        let mut random = Random::new(shared.random.next());
        let mut part = Self {
            shared: Shared {
                interfaces: shared.interfaces.clone(),
                table: shared.table.another(),
                gateways: shared.gateways.clone(),
                identifications: Identifications::new(&mut random),
                rates: shared.rates.clone(),
                icmp: shared.icmp,
                flow: shared.flow,
                random,
            },
            links: self.links.part(&is_in),
            lacp: self.lacp.part(&is_in),
            reassembly: self.reassembly.another(),
            redirects: Redirects::new(),
        };
        part.shared.interfaces.own(&is_in);
        part.shared.table.join(shared.table.part(&is_in));
        let datagrams =
            self.reassembly.part(|from, addresses| owners.of_datagram(from, addresses) == number);
        part.reassembly.join(datagrams);
        part
    }
}

#[cfg(test)]
mod tests {
    use dataplane::reason::PuntReason;

    use super::*;
    use crate::testing::{
        B, Bench, GLEAN_RIGHT, LEFT, Out, R, config, fix_v4_checksum, ip, originated, right, secs,
        udp, v4,
    };
    use crate::{Advertise, Command, InterfaceSettings, LacpConfig, NeighbourState};

    /// The left interface is the first engine's, the right one and all datagrams are the last one's.
    struct Halves(usize);

    impl Owners for Halves {
        fn of_interface(&self, interface: InterfaceId) -> usize {
            if interface == LEFT { 0 } else { self.0 - 1 }
        }

        fn of_datagram(&self, _: InterfaceId, _: (IpAddr, IpAddr)) -> usize {
            self.0 - 1
        }
    }

    /// A ping to the left interface in two fragments.
    fn fragments() -> [Vec<u8>; 2] {
        let ping = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        [(0x2000, &ping[..8]), (0x0001, &ping[8..])].map(|(bits, part): (u16, &[u8])| {
            let mut frame = v4("10.0.1.2", "10.0.1.1", 1, part);
            frame[20..22].copy_from_slice(&bits.to_be_bytes());
            fix_v4_checksum(&mut frame);
            frame
        })
    }

    /// An engine with something of each kind under way.
    fn busy() -> Bench {
        let mut bench = Bench::with(config());
        let advertise = Some(Advertise::default());
        let settings = InterfaceSettings { advertise, ..InterfaceSettings::default() };
        bench.command(Command::Settings { interface: LEFT, settings });
        let lacp = LacpConfig {
            system: R,
            priority: 1,
            key: 1,
            fast: true,
            passive: false,
            maximum: 64,
            ports: vec![(right(), R)],
        };
        bench.command(Command::Lacp { bond: right(), config: Some(Box::new(lacp)) });
        bench.pass(secs(1));
        bench.command(Command::AddStaticNeighbour {
            interface: LEFT,
            address: ip("10.0.1.2"),
            mac: B,
        });
        bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, v4("10.0.1.2", "10.0.2.7", 17, &udp(9)));
        bench.local(fragments()[0].clone());
        bench.take();
        bench
    }

    /// Benches for these engines, and one that goes on for all.
    fn benches(routers: Vec<SlowPath<Vec<u8>>>, like: &Bench) -> Vec<Bench> {
        let bench = |router| Bench { router, now: like.now, ..Bench::with(config()) };
        routers.into_iter().map(bench).collect()
    }

    #[test]
    fn everything_goes_on_in_the_engine_that_it_belongs_to() {
        for count in [2, 3] {
            let mut before = busy();
            let deadline = before.router.next_deadline();
            let neighbours = before.router.neighbours(before.now);
            let spare = SlowPath::new(config());
            let whole = std::mem::replace(&mut before.router, spare);
            let all = SlowPath::regroup(vec![whole], count, &Halves(count));
            let mut all = benches(all, &before);
            assert_eq!(all.len(), count);
            let found: Vec<_> =
                all.iter().flat_map(|bench| bench.router.neighbours(bench.now)).collect();
            assert_eq!(found, neighbours);
            assert_eq!(all.iter().map(|bench| bench.router.held()).sum::<usize>(), 2);
            assert_eq!(all.iter().filter_map(|bench| bench.router.next_deadline()).min(), deadline);
            let bonds: Vec<_> = all.iter().map(|bench| bench.router.bonds().len()).collect();
            assert_eq!((bonds[0], bonds[count - 1], bonds.len()), (0, 1, count));
            // Neither announces anything anew.
            all.iter_mut().for_each(|bench| assert_eq!(bench.pass(secs(0)), []));
            // The packet that waits leaves, and the datagram becomes whole.
            let last = &mut all[count - 1];
            let (address, interface) = (ip("10.0.2.7"), right());
            last.command(Command::AddStaticNeighbour { interface, address, mac: B });
            assert!(matches!(last.take()[..], [Out::Event(_), Out::Forward(..)]));
            // Another one owns the neighbour that the answer goes to.
            let outs = last.local(fragments()[1].clone());
            assert!(outs.contains(&Out::HandOver(LEFT, ip("10.0.1.2"), true)), "{outs:?}");
            assert_eq!(last.router.held(), 0);
        }
    }

    #[test]
    fn one_engine_again_is_as_before() {
        let mut before = busy();
        let expected = (
            before.router.next_deadline(),
            before.router.neighbours(before.now),
            before.router.held(),
        );
        let spare = SlowPath::new(config());
        let whole = std::mem::replace(&mut before.router, spare);
        let halves = SlowPath::regroup(vec![whole], 2, &Halves(2));
        // Each knows the gateways, and the owner of one asks for it.
        let mut halves = benches(halves, &before);
        let (interface, address) = (right(), ip("10.0.2.77"));
        for (bench, asks) in halves.iter_mut().zip([0, 1]) {
            bench.command(Command::NextHop { id: 99, interface, address });
            assert_eq!(originated(&bench.take()).len(), asks);
            bench.command(Command::RemoveNeighbour { interface, address });
        }
        let halves = halves.into_iter().map(|bench| bench.router).collect();
        let mut whole = benches(SlowPath::regroup(halves, 1, &Halves(1)), &before).remove(0);
        let router = &whole.router;
        let found = (router.next_deadline(), router.neighbours(whole.now), router.held());
        assert_eq!(found, expected);
        assert_eq!((router.gateway(99), router.bonds().len()), (Some((interface, address)), 1));
        // Timers run: nobody answers for 10.0.2.7, and it fails.
        whole.pass(secs(10));
        let states = whole.router.neighbours(whole.now);
        let failed = states.iter().find(|info| info.address == ip("10.0.2.7"));
        assert!(failed.is_none_or(|info| info.state == NeighbourState::Failed), "{states:?}");
        // An advertisement and its successors still come by the left interface.
        assert!(whole.pass(secs(700)).iter().any(|out| matches!(out, Out::Originate(LEFT, _))));
    }
}

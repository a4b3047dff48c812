//! The slow path's engine by itself: whatever is punted for whatever reason, in whatever order with
//! commands and the time, every packet comes back once and what the engine makes is right.
//!
//! Here come packets, too, that the fast path would have dropped, and reasons that do not fit.
#![no_main]

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::Arbitrary;
use dataplane::reason::{Punt, PuntReason};
use dataplane::tables::Tables;
use libfuzzer_sys::fuzz_target;
use slowpath::Command;
use turnpike_fuzz::frame::Frame;
use turnpike_fuzz::world::{self, PORTS, World};

#[derive(Arbitrary, Debug)]
enum Event {
    Packet { frame: Frame, reason: u8, next_hop: u8, generation: bool },
    Pass { milliseconds: u16 },
    Order { kind: u8, port: u8, address: [u8; 2] },
}

#[derive(Arbitrary, Debug)]
struct Input {
    small: bool,
    events: Vec<Event>,
}

fn order(kind: u8, number: u8, [a, b]: [u8; 2]) -> Command {
    let number = u16::from(number) % PORTS;
    let interface = world::port(number).into();
    let address = match a % 2 {
        0 => [10, 0, number as u8 + 1, b].into(),
        _ => [0xfd00, number + 1, 0, 0, 0, 0, 0, u16::from(b)].into(),
    };
    let mac = wire::MacAddr([2, 0, 0, 0, 7, b]);
    match kind % 8 {
        0 => Command::NextHop { id: 40 + u16::from(b % 2), interface, address },
        1 => Command::RemoveNextHop { id: 40 + u16::from(b % 2) },
        2 => Command::AddStaticNeighbour { interface, address, mac },
        3 => Command::RemoveNeighbour { interface, address },
        4 => Command::PortLink { interface, up: b % 2 == 0 },
        5 => Command::KernelNeighbour { interface, address, mac: (b % 2 == 0).then_some(mac) },
        6 => Command::Addresses { interface, addresses: vec![address.into()] },
        _ => Command::RemoveNextHop { id: 999 },
    }
}

thread_local! {
    static TABLES: OnceCell<Arc<Tables>> = const { OnceCell::new() };
}

fuzz_target!(|input: Input| {
    let tables = TABLES.with(|tables| tables.get_or_init(world::tables).clone());
    let mut world = World::new(tables, false);
    let mut engine = world::engine::<Vec<u8>>(input.small, &mut world);
    let mut now = Duration::ZERO;
    let mut given = 0;
    for event in input.events.iter().take(100) {
        match event {
            Event::Packet { frame, reason, next_hop, generation } => {
                let reason = PuntReason::ALL[usize::from(*reason) % PuntReason::COUNT];
                // Those that the tables have, and some that they have not.
                let next_hop = u16::from(next_hop % 48);
                let port = world::port(frame.port());
                let punt = Punt {
                    reason,
                    port,
                    interface: port.into(),
                    next_hop,
                    generation: u16::from(*generation),
                };
                engine.packet(frame.bytes(), punt, now, &mut world);
                given += 1;
            }
            Event::Pass { milliseconds } => {
                let end = now + Duration::from_millis(u64::from(*milliseconds));
                while let Some(deadline) = engine.next_deadline().filter(|&time| time <= end) {
                    now = now.max(deadline);
                    engine.tick(now, &mut world);
                }
                now = end;
            }
            Event::Order { kind, port, address } => {
                engine.command(order(*kind, *port, *address), now, &mut world);
            }
        }
        assert_eq!(given, world.returned + engine.held(), "a packet was lost");
    }
    engine.shutdown(&mut world);
    assert_eq!((given, engine.held()), (world.returned, 0), "a packet was lost");
});

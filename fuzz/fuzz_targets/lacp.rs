//! LACP in the slow path's engine: whatever arrives on the ports of a bond, with whatever links and times, every packet
//! comes back, what is sent is a whole frame of the slow protocols, and no port sends that does not receive.
#![no_main]

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::Arbitrary;
use dataplane::reason::{Punt, PuntReason};
use dataplane::tables::Tables;
use libfuzzer_sys::fuzz_target;
use slowpath::{Command, LacpConfig};
use turnpike_fuzz::world::{self, World};
use wire::MacAddr;
use wire::lacp::{Lacpdu, Port};

#[derive(Arbitrary, Debug)]
struct Side {
    system: u8,
    key: u8,
    number: u8,
    state: u8,
}

#[derive(Arbitrary, Debug)]
enum Event {
    Pdu { port: bool, actor: Side, partner: Side },
    Bytes { port: bool, bytes: Vec<u8> },
    Link { port: bool, up: bool },
    Pass { milliseconds: u16 },
    Configure { fast: bool, passive: bool, single: bool },
}

fn side(of: &Side) -> Port {
    Port {
        system_priority: 0x8000.into(),
        system: MacAddr([2, 0, 0, 0, 0, of.system]),
        key: u16::from(of.key).into(),
        port_priority: 0x8000.into(),
        port: u16::from(of.number).into(),
        state: of.state,
    }
}

fn config(fast: bool, passive: bool, single: bool) -> Command {
    let ports = [1, 2].into_iter().take(if single { 1 } else { 2 });
    let port = |number| (world::port(number).into(), MacAddr(world::port_mac(number)));
    let config = LacpConfig {
        system: MacAddr([2, 0, 0, 0, 0, 1]),
        priority: 0x8000,
        key: 1,
        fast,
        passive,
        maximum: 64,
        ports: ports.map(port).collect(),
    };
    Command::Lacp { bond: world::port(0).into(), config: Some(Box::new(config)) }
}

thread_local! {
    static TABLES: OnceCell<Arc<Tables>> = const { OnceCell::new() };
}

fuzz_target!(|events: Vec<Event>| {
    let tables = TABLES.with(|tables| tables.get_or_init(world::tables).clone());
    let mut world = World::new(tables, false);
    let mut engine = world::engine::<Vec<u8>>(false, &mut world);
    let mut now = Duration::ZERO;
    let mut given = 0;
    engine.command(config(true, false, false), now, &mut world);
    for event in events.into_iter().take(100) {
        let received = match event {
            Event::Pdu { port, actor, partner } => {
                let pdu =
                    Lacpdu { actor: side(&actor), partner: side(&partner), collector_delay: 0 };
                Some((port, pdu.frame(MacAddr([2, 0, 0, 0, 7, 7]))))
            }
            Event::Bytes { port, bytes } => Some((port, bytes)),
            Event::Link { port, up } => {
                let interface = world::port(1 + u16::from(port)).into();
                engine.command(Command::PortLink { interface, up }, now, &mut world);
                None
            }
            Event::Pass { milliseconds } => {
                let end = now + Duration::from_millis(u64::from(milliseconds));
                while let Some(deadline) = engine.next_deadline().filter(|&time| time <= end) {
                    now = now.max(deadline);
                    engine.tick(now, &mut world);
                }
                now = end;
                None
            }
            Event::Configure { fast, passive, single } => {
                engine.command(config(fast, passive, single), now, &mut world);
                None
            }
        };
        if let Some((port, frame)) = received {
            let punt = Punt {
                reason: PuntReason::SlowProtocol,
                port: world::port(1 + u16::from(port)),
                interface: world::port(0).into(),
                next_hop: 0,
                generation: 0,
            };
            engine.packet(frame, punt, now, &mut world);
            given += 1;
        }
        assert_eq!(given, world.returned + engine.held(), "a packet was lost");
        let mut systems = BTreeMap::new();
        for port in engine.bonds().iter().flat_map(|bond| &bond.ports) {
            let in_use = port.mux == "collecting" || port.mux == "distributing";
            assert!(!in_use || port.selected || port.receive != "current", "{port:?}");
            if port.selected {
                let partner = port.partner.map(|partner| (partner.system.0, partner.key.get()));
                systems.insert(partner, port.port);
            }
        }
        assert!(systems.len() <= 1, "ports of two partners are one bond: {systems:?}");
    }
    engine.shutdown(&mut world);
});

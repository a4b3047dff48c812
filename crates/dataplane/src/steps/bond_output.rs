//! `bond-output`: selects the port of frames sent by bonds.
//!
//! Takes packets ready to be sent, with their VLAN tags. A packet whose egress interface is a bond
//! gets one of the bond's active ports, by a hash of the fields that the bond names: all packets of
//! a flow leave by one port, in order.
//!
//! | output | packets |
//! |---|---|
//! | `transmit` | all others |
//! | drop `bond-down` | no port of the bond is active, or the bond has been removed |
//!
//! Packets of the slow path and copies of multicast packets get their port when they are created.
//! The step is in the default graph only if there are bonds. It counts frames by bond (`show
//! interfaces`). Source: IEEE 802.1AX-2014 6.2.4 (frame distribution).

use crate::batch::Batch;
use crate::bond::{Selection, Spreader};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::DropReason;
use crate::tables::Tables;

const TRANSMIT: usize = 0;
const BOND_DOWN: usize = 1;

pub(super) const OUTPUTS: &[Output] =
    &[Output::next("transmit"), Output::Drop(DropReason::BondDown)];

/// See the module's documentation.
pub struct BondOutput(Spreader);

impl BondOutput {
    /// Creates it for the bonds in these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(Spreader::of(&tables.shared, tables.flows))
    }

    /// Selects the ports of frames of one bond, and counts them; returns those that no port takes.
    #[inline(always)]
    fn select(&self, batch: &mut Batch, frames: Mask, interface: u16) -> Mask {
        let Some(selection) = self.0.selection(interface) else { return frames };
        let quick = selection.may_be_quick(batch, frames);
        let mut others = frames.without(quick);
        for i in quick.slots() {
            match selection.quick(batch.head(i)) {
                Some(port) => batch.out_interface[i] = port.index() as u16,
                None => others |= Mask::when(true, i),
            }
        }
        let failed =
            if others.is_empty() { others } else { select_each(batch, others, &selection) };
        let sent = frames.without(failed);
        self.0.count(interface, (sent.count(), batch.bytes_of(sent)));
        failed
    }
}

/// Selects the ports of frames one by one, and returns those that no port takes.
#[inline(never)]
fn select_each(batch: &mut Batch, frames: Mask, selection: &Selection<'_>) -> Mask {
    frames.filter(|i| {
        let port = selection.port_of(batch.frame(i));
        if let Some(port) = port {
            batch.out_interface[i] = port.index() as u16;
        }
        port.is_none()
    })
}

impl Step for BondOutput {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let select = |batch: &mut Batch, frames, interface| self.select(batch, frames, interface);
        let failed = batch.by_virtual_egress(input, select);
        out[TRANSMIT] = input.without(failed);
        out[BOND_DOWN] = failed;
    }
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;

    use super::*;
    use crate::bond::{BondSpec, BondTable, HashFields};
    use crate::interface::InterfaceId;
    use crate::port::PortId;
    use crate::testing::{FrameBuilder, TestTables, run_step_on, tagged};

    /// Also a port that is not active, and frames of all kinds, among them one too short for its ports.
    #[test]
    fn frames_take_the_ports_that_copies_of_them_take() {
        let udp = |port| FrameBuilder::ip4().udp(port, 53, b"x").build();
        let mut frames: Vec<_> = (0..40).map(udp).collect();
        let changed = |at: usize, value: u8| {
            let mut frame = udp(77);
            frame[at] = value;
            frame
        };
        frames.extend([(14, 0x46), (20, 0x20), (23, 47), (13, 6)].map(|(at, to)| changed(at, to)));
        frames.push(udp(78)[..37].to_vec());
        frames.push(tagged(&udp(79), 0x8100, 5));
        frames.push(FrameBuilder::ip6().udp(80, 53, b"x").build());
        let id = InterfaceId::new(64).unwrap();
        for fields in HashFields::ALL {
            let tables = TestTables::every_kind();
            let table = tables.shared.get::<BondTable>();
            let ports = [1, 2, 3].map(|number| PortId::new(number).unwrap());
            let mac = MacAddr::default();
            table.set(vec![BondSpec { interface: id, mac, ports: ports.to_vec(), fields }]);
            let active = ports[1..].iter().copied().collect();
            table.state(id).set(active, active);
            let copies = Spreader::of(&tables.shared, tables.flows);
            let (result, batch) = run_step_on(&mut BondOutput::new(&tables), &frames, |batch| {
                batch.out_interface = [64; 64];
            });
            assert_eq!(result["transmit"].len(), frames.len());
            for (slot, frame) in frames.iter().enumerate() {
                let port = copies.exit(id, copies.hashes(frame)).unwrap().port;
                assert_eq!(usize::from(batch.out_interface[slot]), port.index(), "{fields} {slot}");
            }
        }
    }

    #[test]
    fn frames_of_bonds_leave_by_active_ports() {
        let tables = TestTables::every_kind();
        let table = tables.shared.get::<BondTable>();
        let port = |number| PortId::new(number).unwrap();
        let spec = |number, ports: [u16; 2]| BondSpec {
            interface: InterfaceId::new(number).unwrap(),
            mac: MacAddr::default(),
            ports: ports.map(port).to_vec(),
            fields: HashFields::L3L4,
        };
        table.set(vec![spec(64, [1, 2]), spec(66, [3, 4])]);
        let active = [port(2)].into_iter().collect();
        table.state(InterfaceId::new(64).unwrap()).set(active, active);
        let frames = vec![FrameBuilder::ip4().build(); 5];
        let (result, batch) = run_step_on(&mut BondOutput::new(&tables), &frames, |batch| {
            batch.out_interface[..5].copy_from_slice(&[1, 64, 66, 65, 64]);
        });
        assert_eq!(result["transmit"], [0, 1, 4]);
        assert_eq!(result["bond-down"], [2, 3]);
        assert_eq!([0, 1, 4].map(|slot| batch.out_interface[slot]), [1, 2, 2]);
        let sent = |number| table.traffic(InterfaceId::new(number).unwrap()).tx_packets;
        assert_eq!((sent(64), sent(66)), (2, 0));
    }
}

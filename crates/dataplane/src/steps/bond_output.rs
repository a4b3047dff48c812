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

use crate::batch::{BATCH_MAX, Batch};
use crate::bond::Spreader;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::port::MAX_PORTS;
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
}

impl Step for BondOutput {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let bonded = input.filter(|i| usize::from(batch.out_interface[i]) >= MAX_PORTS);
        let mut failed = Mask::EMPTY;
        let mut tally = self.0.tally();
        for i in bonded.slots() {
            let i = i & (BATCH_MAX - 1);
            let interface = batch.out_interface[i];
            match self.0.port_of(interface, batch.frame(i)) {
                Some(port) => {
                    batch.out_interface[i] = port.index() as u16;
                    tally.add(interface.into(), batch.len(i));
                }
                None => failed |= Mask::when(true, i),
            }
        }
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
    use crate::testing::{FrameBuilder, TestTables, run_step_on};

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

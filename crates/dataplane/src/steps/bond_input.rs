//! `bond-input`: assigns frames received by ports of bonds to the bonds.
//!
//! Takes every frame that a port receives. Later steps treat the frames of a bond's port as
//! received on the bond's interface, with its MAC, VRF and features.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | all others |
//! | punt `slow-protocol` | untagged frames of the slow protocols (Ethertype 0x8809), LACP among them, by a port of a bond |
//! | drop `bond-inactive` | the port does not collect: LACP has not agreed on it, or it is not the active one |
//!
//! The step is in the default graph only if there are bonds. It counts the frames of each bond,
//! those of its VLANs included (`show interfaces`). Source: IEEE 802.1AX-2014 6.2.3 (frame
//! collection) and 6.2.10 (the addresses of LACP); IEEE 802.3 Annex 57A.

use std::sync::Arc;

use crate::batch::Batch;
use crate::bond::{BondTable, Bonds};
use crate::graph::{Output, Outputs, Step};
use crate::head::ethernet;
use crate::mask::Mask;
use crate::reason::{DropReason, PuntReason};
use crate::tables::Tables;
use crate::traffic::{Block, count};

const OK: usize = 0;
const SLOW_PROTOCOL: usize = 1;
const INACTIVE: usize = 2;

pub(super) const OUTPUTS: &[Output] = &[
    Output::next("ok"),
    Output::Punt(PuntReason::SlowProtocol),
    Output::Drop(DropReason::BondInactive),
];

/// See the module's documentation.
pub struct BondInput {
    bonds: Arc<Bonds>,
    block: Block,
}

impl BondInput {
    /// Creates it for the bonds in these tables.
    pub fn new(tables: &Tables) -> Self {
        let table = tables.shared.get::<BondTable>();
        let bonds = table.get();
        Self { block: table.rx_block(&bonds), bonds }
    }
}

impl Step for BondInput {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let Some(bond) = self.bonds.of_port(batch.in_port) else {
            out[OK] = input;
            return;
        };
        batch.receive_on(bond.interface());
        let is_slow = |i| ethernet(batch.head(i)).ethertype.get() == wire::lacp::ETHERTYPE_SLOW;
        let (plain, mut any) = (input.without(batch.vlan_stripped()), false);
        plain.for_each(|i| any |= is_slow(i));
        let slow = match any {
            true => batch.at_least(plain.filter(is_slow), wire::ethernet::ETHERNET_LEN),
            false => Mask::EMPTY,
        };
        let others = input.without(slow);
        out[SLOW_PROTOCOL] = slow;
        if !bond.state().collects(batch.in_port) {
            out[INACTIVE] = others;
            return;
        }
        out[OK] = others;
        count(&self.block, bond.interface(), (others.count(), batch.bytes_of(others)));
    }
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;

    use super::*;
    use crate::bond::{BondSpec, HashFields};
    use crate::interface::{InterfaceId, InterfaceInfo};
    use crate::port::{PortId, PortSet};
    use crate::testing::{FrameBuilder, Sorted, TestTables, run_step_on, tagged};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x64]);

    /// Ports 1 and 2 are bond 64; port 2 does not collect.
    fn step() -> (BondInput, Arc<Tables>) {
        let tables = TestTables::every_kind();
        let interface = InterfaceId::new(64).unwrap();
        let port = |number| PortId::new(number).unwrap();
        let table = tables.shared.get::<BondTable>();
        let ports = vec![port(1), port(2)];
        table.set(vec![BondSpec { interface, mac: MAC, ports, fields: HashFields::L2 }]);
        table.state(interface).set([port(1)].into_iter().collect(), PortSet::EMPTY);
        (BondInput::new(&tables), tables)
    }

    fn frames() -> Vec<Vec<u8>> {
        let ip4 = FrameBuilder::ip4().build();
        let mut lacp = ip4.clone();
        lacp[12..14].copy_from_slice(&[0x88, 0x09]);
        vec![ip4.clone(), lacp.clone(), tagged(&ip4, 0x8100, 5), lacp[..13].to_vec()]
    }

    fn run(port: u16) -> (Sorted, Batch, Arc<Tables>) {
        let (mut step, tables) = step();
        let (result, batch) = run_step_on(&mut step, &frames(), |batch| {
            batch.in_port = PortId::new(port).unwrap();
            batch.interfaces = vec![InterfaceInfo::NONE; 65];
            batch.interfaces[64] = InterfaceInfo { mac: MAC, ..InterfaceInfo::NONE };
        });
        (result, batch, tables)
    }

    #[test]
    fn frames_of_a_bond_s_port_are_the_bond_s() {
        let (result, batch, tables) = run(1);
        assert_eq!((&result["ok"][..], &result["slow-protocol"][..]), (&[0, 2, 3][..], &[1][..]));
        assert_eq!([0, 1, 2].map(|slot| batch.interface(slot).index()), [64; 3]);
        assert_eq!((batch.own.mac, batch.info(2).mac), (MAC, MAC));
        let traffic =
            tables.shared.get::<BondTable>().traffic(InterfaceId::new(64).unwrap()).rx_packets;
        assert_eq!(traffic, 3);
    }

    #[test]
    fn a_port_that_does_not_collect_takes_lacp_only() {
        let (result, ..) = run(2);
        assert_eq!(result["bond-inactive"], [0, 2, 3]);
        assert_eq!(result["slow-protocol"], [1]);
    }

    #[test]
    fn frames_of_other_ports_pass_unchanged() {
        let (result, batch, _) = run(3);
        assert_eq!((result["ok"].len(), batch.interface(1).index()), (4, 3));
    }
}

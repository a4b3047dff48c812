//! `vlan-output`: adds the tags of frames sent by VLANs.
//!
//! Takes packets ready to be sent. A packet whose egress interface is a VLAN gets the VLAN's tags
//! and its port, or its bond, whose port `bond-output` selects.
//!
//! | output | packets |
//! |---|---|
//! | `transmit` | all others |
//! | drop `no-buffer` | the buffer has no room for the tags |
//! | drop `port-down` | the VLAN has been removed |
//!
//! Packets of the slow path and copies of multicast packets get their tags when they are created.
//! The step is in the default graph only if a port has VLANs. It counts frames by interface (`show
//! interfaces`). Source: IEEE 802.1Q 9.3 to 9.6, 802.1ad.

use crate::batch::{BATCH_MAX, Batch};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::port::MAX_PORTS;
use crate::reason::DropReason;
use crate::tables::Tables;
use crate::vlan::Tagger;

const TRANSMIT: usize = 0;
const NO_BUFFER: usize = 1;
const PORT_DOWN: usize = 2;

pub(super) const OUTPUTS: &[Output] = &[
    Output::next("transmit"),
    Output::Drop(DropReason::NoBuffer),
    Output::Drop(DropReason::PortDown),
];

/// See the module's documentation.
pub struct VlanOutput(Tagger);

impl VlanOutput {
    /// Creates it for the VLANs in these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(tables.tagger())
    }
}

impl Step for VlanOutput {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let tagged = input.filter(|i| usize::from(batch.out_interface[i]) >= MAX_PORTS);
        let mut failed = Mask::EMPTY;
        let mut tally = self.0.tally();
        for i in tagged.slots() {
            let interface = batch.out_interface[i & (BATCH_MAX - 1)];
            match self.0.tag_in(batch, i, interface, &mut tally) {
                Some(lower) => batch.out_interface[i & (BATCH_MAX - 1)] = lower.index() as u16,
                None => failed |= Mask::when(true, i),
            }
        }
        if !failed.is_empty() {
            failed = failed.filter(|i| !self.0.has_bond(batch.out_interface[i]));
            out[NO_BUFFER] = failed.filter(|i| self.0.has(batch.out_interface[i]));
            out[PORT_DOWN] = failed.without(out[NO_BUFFER]);
        }
        out[TRANSMIT] = input.without(failed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bond::Bonds;
    use crate::interface::InterfaceId;
    use crate::port::PortSet;
    use crate::testing::{FrameBuilder, TestTables, run_step_on, tagged};
    use crate::vlan::{Tag, TagProtocol, Tags, Vlan, Vlans};

    #[test]
    fn frames_get_the_tags_of_their_vlan_and_leave_by_its_port() {
        let tag = |protocol, id| Tag { protocol, id, priority: 3 };
        let (q, ad) = (tag(TagProtocol::Dot1q, 5), tag(TagProtocol::Dot1ad, 6));
        let vlan = |interface, outer, inner| Vlan {
            interface: InterfaceId::new(interface).unwrap(),
            lower: InterfaceId::new(2).unwrap(),
            tags: Tags { outer, inner },
        };
        let tables = TestTables::every_kind();
        let all = [vlan(64, q, None), vlan(70, ad, Some(q))];
        tables.vlans.set(Arc::new(Vlans::new(&all, PortSet::EMPTY, &Bonds::default())));
        let ip4 = FrameBuilder::ip4().build();
        let frames = vec![ip4.clone(); 5];
        let (result, batch) = run_step_on(&mut VlanOutput::new(&tables), &frames, |batch| {
            batch.out_interface[..5].copy_from_slice(&[1, 64, 70, 65, 64]);
            batch.burst.fill_headroom(4);
        });
        assert_eq!(result["transmit"], [0, 1, 2]);
        assert_eq!(result["port-down"], [3]);
        assert_eq!(result["no-buffer"], [4]);
        assert_eq!(batch.out_interface[..3], [1, 2, 2]);
        let q = tagged(&ip4, 0x8100, 0x6005);
        assert_eq!(
            [batch.frame(0), batch.frame(1), batch.frame(2)],
            [&ip4[..], &q, &tagged(&q, 0x88a8, 0x6006)]
        );
        let traffic = |n| tables.vlans.traffic(InterfaceId::new(n).unwrap()).tx_packets;
        assert_eq!((traffic(64), traffic(70), traffic(65)), (1, 1, 0));
    }
}

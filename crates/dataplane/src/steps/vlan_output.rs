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
//!
//! The frames of an interface are treated together: its tags are read once, and are one store a frame. Frames of further
//! interfaces, if a batch has many, are treated one by one.

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
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
        let tag = |batch: &mut Batch, frames, interface| self.0.tag_in(batch, frames, interface);
        let mut failed = batch.by_virtual_egress(input, tag);
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
    use crate::port::PortId;
    use crate::testing::{FrameBuilder, TestTables, run_step_on, tagged};
    use crate::vlan::{Tag, TagDevices, TagProtocol, Tags, Vlan, Vlans};

    #[test]
    fn frames_of_more_interfaces_than_are_treated_together_get_their_own_tags() {
        let vlan = |number: u16| Vlan {
            interface: InterfaceId::new(64 + number).unwrap(),
            lower: InterfaceId::new(number % 4).unwrap(),
            tags: Tags {
                outer: Tag { protocol: TagProtocol::Dot1q, id: 1 + number, priority: 0 },
                inner: None,
            },
        };
        let tables = TestTables::every_kind();
        let all: Vec<_> = (0..20).map(vlan).collect();
        tables.vlans.set(Arc::new(Vlans::new(&all, TagDevices::default(), &Bonds::default())));
        let ip4 = FrameBuilder::ip4().build();
        let (result, batch) =
            run_step_on(&mut VlanOutput::new(&tables), &vec![ip4.clone(); 60], |batch| {
                for slot in 0..60 {
                    batch.out_interface[slot] =
                        if slot % 7 == 3 { 2 } else { 64 + slot as u16 % 20 };
                }
            });
        assert_eq!(result["transmit"].len(), 60);
        for slot in 0..60 {
            let number = slot as u16 % 20;
            let (port, frame) = match slot % 7 {
                3 => (2, ip4.clone()),
                _ => (number % 4, tagged(&ip4, 0x8100, 1 + number)),
            };
            assert_eq!((batch.out_interface[slot], batch.frame(slot)), (port, &frame[..]));
        }
        let traffic = |n| tables.vlans.traffic(InterfaceId::new(n).unwrap());
        assert_eq!((traffic(64).tx_packets, traffic(83).tx_bytes), (3, 2 * ip4.len() as u64));
    }

    /// The device of port 2 inserts tags.
    #[test]
    fn one_customer_tag_is_left_to_a_device_that_inserts_it() {
        let tag = |protocol, id| Tag { protocol, id, priority: 3 };
        let (q, ad) = (tag(TagProtocol::Dot1q, 5), tag(TagProtocol::Dot1ad, 6));
        let vlan = |interface, lower, outer, inner| Vlan {
            interface: InterfaceId::new(interface).unwrap(),
            lower: InterfaceId::new(lower).unwrap(),
            tags: Tags { outer, inner },
        };
        let all = [
            vlan(64, 2, q, None),
            vlan(65, 3, q, None),
            vlan(66, 2, ad, None),
            vlan(67, 2, q, Some(q)),
        ];
        let insert = [PortId::new(2).unwrap()].into_iter().collect();
        let devices = TagDevices { insert, ..TagDevices::default() };
        let tables = TestTables::every_kind();
        tables.vlans.set(Arc::new(Vlans::new(&all, devices, &Bonds::default())));
        let ip4 = FrameBuilder::ip4().build();
        let (result, batch) =
            run_step_on(&mut VlanOutput::new(&tables), &vec![ip4.clone(); 4], |batch| {
                batch.out_interface[..4].copy_from_slice(&[64, 65, 66, 67]);
            });
        assert_eq!(result["transmit"], [0, 1, 2, 3]);
        assert_eq!(batch.out_interface[..4], [2, 3, 2, 2]);
        let requested = [0, 1, 2, 3].map(|slot| batch.burst.requested_tag(slot));
        assert_eq!(requested, [Some(0x6005), None, None, None]);
        let q = tagged(&ip4, 0x8100, 0x6005);
        let sent = [0, 1, 2, 3].map(|slot| batch.frame(slot).to_vec());
        let both = tagged(&q, 0x8100, 0x6005);
        assert_eq!(sent, [ip4.clone(), q, tagged(&ip4, 0x88a8, 0x6006), both]);
        let traffic = |n| tables.vlans.traffic(InterfaceId::new(n).unwrap());
        assert_eq!((traffic(64).tx_packets, traffic(64).tx_bytes), (1, ip4.len() as u64));
    }

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
        tables.vlans.set(Arc::new(Vlans::new(&all, TagDevices::default(), &Bonds::default())));
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

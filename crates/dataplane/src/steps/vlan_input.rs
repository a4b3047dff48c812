//! `vlan-input`: assigns tagged frames to their VLANs, and removes the tags.
//!
//! Takes every frame that a port receives. Later steps treat the frame as an untagged one of the
//! VLAN's interface. A frame with two tags belongs to the VLAN of both; if there is none, to that
//! of the outer tag, and the inner one stays in the frame.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | all; frames with tags of no VLAN on this port stay unchanged, and `classify` drops them as `vlan-unknown` |
//!
//! A tag that the device stripped is the outer one; its kind is unknown. Priority tags (VLAN 0)
//! belong to no VLAN: `classify` removes them. The step is in the default graph only if a port has
//! VLANs. It counts frames by interface (`show interfaces`). Source: IEEE 802.1Q 9.3 to 9.6,
//! 802.1ad.

use wire::ethernet::TAG_LEN;

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::head::bytes;
use crate::mask::Mask;
use crate::tables::Tables;
use crate::traffic::Tally;
use crate::vlan::{ID, Identity, OnPort, TagProtocol, Untagger, identity};

const OK: usize = 0;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok")];

/// See the module's documentation.
pub struct VlanInput(Untagger);

impl VlanInput {
    /// Creates it for the VLANs in these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(Untagger::of(&tables.vlans))
    }

    /// Assigns a frame whose outer tag the device stripped to its VLAN, as [`untag`] does.
    #[cold]
    fn untag_stripped(&self, batch: &mut Batch, slot: usize, vlans: OnPort<'_>) {
        let Some(control) = batch.stripped_tag(slot) else { return };
        let inner = || tag::<12>(batch, slot);
        let ingress = |protocol| vlans.ingress((protocol, control & ID), inner);
        let Some((interface, tags)) = TagProtocol::ALL.into_iter().find_map(ingress) else {
            return;
        };
        if tags == 1 || batch.remove_tags(slot, tags - 1) {
            batch.forget_stripped(slot);
            batch.set_interface(slot, interface);
            self.0.tally().add(interface.index(), batch.len(slot));
        }
    }
}

/// Assigns a tagged frame to its VLAN's interface, if there is one, and removes the tags.
#[inline(always)]
fn untag(batch: &mut Batch, slot: usize, vlans: OnPort<'_>, tally: &mut Tally<'_>) {
    let Some(outer) = tag::<12>(batch, slot) else { return };
    batch.keep_priority(slot);
    let Some((interface, tags)) = vlans.ingress(outer, || tag::<16>(batch, slot)) else { return };
    if batch.remove_tags(slot, tags) {
        batch.set_interface(slot, interface);
        tally.add(interface.index(), batch.len(slot));
    }
}

impl Step for VlanInput {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[OK] = input;
        let Some(vlans) = self.0.vlans.on(batch.in_port) else { return };
        let stripped = input & batch.vlan_stripped();
        let tagged = input.without(stripped).filter(|i| is_tag(bytes::<12, 2>(batch.head(i))));
        let mut tally = self.0.tally();
        for i in tagged.slots() {
            untag(batch, i, vlans, &mut tally);
        }
        // Also those whose tags stay: their packets are dropped, or `classify` removes a priority tag.
        batch.untagged |= tagged;
        drop(tally);
        for i in stripped.slots() {
            self.untag_stripped(batch, i, vlans);
        }
    }
}

/// Returns true for the Ethertype of a tag.
#[inline(always)]
fn is_tag(ethertype: [u8; 2]) -> bool {
    TagProtocol::of(u16::from_be_bytes(ethertype)).is_some()
}

/// Returns the tag at this place of a frame; `None` if there is none, or if the frame ends before the Ethertype after it.
#[inline(always)]
fn tag<const AT: usize>(batch: &Batch, slot: usize) -> Option<Identity> {
    let tag = identity(bytes::<AT, 4>(batch.head(slot)))?;
    (batch.len(slot) >= AT + TAG_LEN + 2).then_some(tag)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bond::Bonds;
    use crate::interface::InterfaceId;
    use crate::port::{PortId, PortSet};
    use crate::testing::{FrameBuilder, TestTables, run_step_on, tagged};
    use crate::vlan::{Tag, Tags, Vlan, Vlans};

    const Q: u16 = 0x8100;
    const AD: u16 = 0x88a8;

    /// On port 0: 64 is VLAN 5, 65 service VLAN 6, 66 VLAN 7 in service VLAN 6.
    fn step() -> (VlanInput, Arc<Tables>) {
        let tag = |protocol, id| Tag { protocol, id, priority: 0 };
        let (five, six) = (tag(TagProtocol::Dot1q, 5), tag(TagProtocol::Dot1ad, 6));
        let seven = Some(tag(TagProtocol::Dot1q, 7));
        let vlan = |interface, outer, inner| Vlan {
            interface: InterfaceId::new(interface).unwrap(),
            lower: InterfaceId::FIRST,
            tags: Tags { outer, inner },
        };
        let all = [vlan(64, five, None), vlan(65, six, None), vlan(66, six, seven)];
        let tables = TestTables::every_kind();
        tables.vlans.set(Arc::new(Vlans::new(&all, PortSet::EMPTY, &Bonds::default())));
        (VlanInput::new(&tables), tables)
    }

    #[test]
    fn tags_become_interfaces() {
        let ip4 = FrameBuilder::ip4().build();
        let frames = [
            ip4.clone(),
            tagged(&ip4, Q, 0xa005),
            tagged(&ip4, AD, 6),
            tagged(&tagged(&ip4, Q, 7), AD, 6),
            tagged(&tagged(&ip4, Q, 8), AD, 6),
            tagged(&ip4, Q, 6),
            tagged(&ip4, AD, 5),
            tagged(&ip4, Q, 0),
            tagged(&tagged(&ip4, Q, 5), Q, 0),
            tagged(&tagged(&tagged(&ip4, Q, 9), Q, 7), AD, 6),
        ];
        let (mut step, tables) = step();
        let (result, batch) = run_step_on(&mut step, &frames, |_| ());
        assert_eq!(result["ok"].len(), frames.len());
        let interfaces: Vec<_> =
            (0..frames.len()).map(|slot| batch.interface(slot).index()).collect();
        assert_eq!(interfaces, [0, 64, 65, 66, 65, 0, 0, 0, 0, 66]);
        assert_eq!([0, 1, 2].map(|slot| batch.priority(slot)), [0, 5, 0]);
        for slot in [0, 1, 2, 3] {
            assert_eq!(batch.frame(slot), ip4, "slot {slot}");
        }
        assert_eq!(batch.frame(4), tagged(&ip4, Q, 8));
        for slot in [5, 6, 7, 8] {
            assert_eq!(batch.frame(slot), frames[slot], "slot {slot} stays as it is");
        }
        assert_eq!(batch.frame(9), tagged(&ip4, Q, 9));
        let traffic = tables.vlans.traffic(InterfaceId::new(66).unwrap());
        assert_eq!((traffic.rx_packets, traffic.rx_bytes), (2, 2 * ip4.len() as u64 + 4));
    }

    #[test]
    fn frames_too_short_for_their_tags_stay_as_they_are() {
        let ip4 = FrameBuilder::ip4().build();
        let frames = [
            tagged(&ip4, Q, 5)[..17].to_vec(),
            tagged(&tagged(&ip4, Q, 7), AD, 6)[..21].to_vec(),
            tagged(&ip4, Q, 5)[..18].to_vec(),
        ];
        let (_, batch) = run_step_on(&mut step().0, &frames, |_| ());
        assert_eq!([0, 1, 2].map(|slot| batch.interface(slot).index()), [0, 65, 64]);
        assert_eq!((batch.frame(0), batch.len(1), batch.len(2)), (&frames[0][..], 17, 14));
    }

    #[test]
    fn a_stripped_tag_is_the_outer_one() {
        let ip4 = FrameBuilder::ip4().build();
        let frames = [ip4.clone(), ip4.clone(), tagged(&ip4, Q, 7), ip4.clone()];
        let (_, batch) = run_step_on(&mut step().0, &frames, |batch| {
            [5, 6, 6, 9]
                .into_iter()
                .enumerate()
                .for_each(|(slot, tag)| batch.burst.say_tag(slot, tag));
        });
        assert_eq!([0, 1, 2, 3].map(|slot| batch.interface(slot).index()), [64, 65, 66, 0]);
        assert_eq!(batch.vlan_stripped(), Mask(0b1000));
        assert_eq!(batch.frame(2), ip4);
    }

    #[test]
    fn another_port_has_no_vlans() {
        let frames = [tagged(&FrameBuilder::ip4().build(), Q, 5)];
        let (_, batch) = run_step_on(&mut step().0, &frames, |batch| {
            batch.in_port = PortId::new(1).unwrap();
        });
        assert_eq!((batch.interface(0).index(), batch.frame(0)), (1, &frames[0][..]));
    }
}

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
//!
//! The frames of a batch usually have the tags of the first one: a comparison of eight bytes tells, and the table is
//! read once for them. Then they are all on one interface, which is the batch's from there on, as if its port had no
//! VLANs. Of several interfaces, the first four are treated so, and the frames of others one by one.

use wire::ethernet::TAG_LEN;

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::head::bytes;
use crate::mask::Mask;
use crate::tables::Tables;
use crate::traffic::Tally;
use crate::vlan::{ID, Identity, OnPort, Pattern, TagProtocol, Untagger, identity};

const OK: usize = 0;

/// The interfaces of a batch whose frames are treated together. Each costs a look at all frames that are left.
const TOGETHER: usize = 4;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok")];

/// See the module's documentation.
pub struct VlanInput(Untagger);

impl VlanInput {
    /// Creates it for the VLANs in these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(Untagger::of(&tables.vlans))
    }

    /// Treats the frames with the tags of the first one together. Returns the others: all if that one has no tags of a
    /// VLAN.
    #[inline(always)]
    fn untag_alike(&self, batch: &mut Batch, frames: Mask, vlans: OnPort<'_>) -> Mask {
        let Some(first) = frames.slots().next() else { return frames };
        let Some(pattern) = vlans.pattern(batch.tag_bytes(first)) else { return frames };
        let difference = difference(batch, frames, pattern);
        let alike = if pattern.permits(difference) {
            frames
        } else {
            frames.filter(|i| pattern.fits(batch.tag_bytes(i)))
        };
        batch.keep_tags(alike, pattern.is_outer_same(difference));
        let untagged = batch.remove_tags_of(alike, pattern.tags);
        batch.set_interface_of(untagged, pattern.interface);
        self.0.count(pattern.interface, batch, untagged);
        // Those too short for their tags are among the others.
        frames.without(untagged)
    }

    /// Treats frames of several interfaces: those with the tags of many others together, the rest one by one.
    #[inline(never)]
    fn untag_mixed(&self, batch: &mut Batch, frames: Mask, vlans: OnPort<'_>) {
        let mut tagged = frames.filter(|i| is_tag(bytes::<12, 2>(batch.head(i))));
        // Also those whose tags stay: their packets are dropped, or `classify` removes a priority tag.
        batch.untagged |= tagged;
        for _ in 1..TOGETHER {
            tagged = self.untag_alike(batch, tagged, vlans);
        }
        let mut tally = self.0.tally();
        for i in tagged.slots() {
            untag(batch, i, vlans, &mut tally);
        }
    }

    /// Treats the frames from which the device stripped the same tag as from the first one together. Returns the others: all
    /// if the VLAN also depends on a tag that is still in the frame.
    #[inline(always)]
    fn assign_alike(&self, batch: &mut Batch, stripped: Mask, vlans: OnPort<'_>) -> Mask {
        let Some(first) = stripped.slots().next() else { return stripped };
        let id = stripped_id(batch, first);
        let Some(interface) = vlans.stripped(id) else { return stripped };
        let alike = if batch.stripped_difference(stripped, id) & ID == 0 {
            stripped
        } else {
            stripped.filter(|i| stripped_id(batch, i) == id)
        };
        batch.forget_stripped(alike);
        batch.set_interface_of(alike, interface);
        self.0.count(interface, batch, alike);
        stripped.without(alike)
    }

    /// Assigns frames from which the device stripped a tag to their VLANs: those with the tags of many others together,
    /// the rest one by one.
    #[inline(never)]
    fn assign_stripped(&self, batch: &mut Batch, mut stripped: Mask, vlans: OnPort<'_>) {
        for _ in 0..TOGETHER {
            stripped = self.assign_alike(batch, stripped, vlans);
        }
        for i in stripped.slots() {
            self.untag_stripped(batch, i, vlans);
        }
    }

    /// Assigns a frame whose outer tag the device stripped to its VLAN, as [`untag`] does.
    #[cold]
    fn untag_stripped(&self, batch: &mut Batch, slot: usize, vlans: OnPort<'_>) {
        let inner = || tag::<12>(batch, slot);
        let ingress = |protocol| vlans.ingress((protocol, stripped_id(batch, slot)), inner);
        let Some((interface, tags)) = TagProtocol::ALL.into_iter().find_map(ingress) else {
            return;
        };
        if tags == 1 || batch.remove_tags(slot, tags - 1) {
            batch.forget_stripped(Mask::when(true, slot));
            batch.set_interface(slot, interface);
            self.0.tally().add(interface.index(), batch.len(slot));
        }
    }
}

/// Returns all bits in which frames differ from a pattern. Costs less than a search for those that fit it.
#[inline(always)]
fn difference(batch: &Batch, frames: Mask, pattern: Pattern) -> u64 {
    let mut difference = 0;
    frames.for_each(|i| difference |= pattern.difference(batch.tag_bytes(i)));
    difference
}

/// Assigns a tagged frame to its VLAN's interface, if there is one, and removes the tags.
#[inline(always)]
fn untag(batch: &mut Batch, slot: usize, vlans: OnPort<'_>, tally: &mut Tally<'_>) {
    batch.keep_tag(slot);
    let Some(outer) = tag::<12>(batch, slot) else { return };
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
        let rest = self.untag_alike(batch, input.without(stripped), vlans);
        if !rest.is_empty() {
            self.untag_mixed(batch, rest, vlans);
        }
        if !stripped.is_empty() {
            self.assign_stripped(batch, stripped, vlans);
        }
    }
}

/// The VLAN's number in the tag that the device stripped from a frame; 0 for other frames.
#[inline(always)]
fn stripped_id(batch: &Batch, slot: usize) -> u16 {
    batch.stripped_tag(slot).unwrap_or(0) & ID
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
    use crate::interface::{InterfaceId, InterfaceInfo};
    use crate::port::PortId;
    use crate::testing::{FrameBuilder, TestTables, run_step_on, tagged};
    use crate::vlan::{Tag, TagDevices, Tags, Vlan, Vlans};

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
        tables.vlans.set(Arc::new(Vlans::new(&all, TagDevices::default(), &Bonds::default())));
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
    fn frames_of_one_vlan_have_its_interface_together() {
        let ip4 = FrameBuilder::ip4().build();
        let frame = |priority: u16| tagged(&tagged(&ip4, Q, 7), AD, priority << 13 | 6);
        let (mut step, tables) = step();
        let frames = [frame(0), frame(3), frame(7)];
        let (_, batch) = run_step_on(&mut step, &frames, |batch| {
            batch.interfaces = vec![InterfaceInfo::NONE; 67];
            batch.interfaces[66].mtu = 1234;
        });
        assert_eq!((batch.own.mtu, batch.interface(1).index()), (1234, 66));
        assert_eq!([0, 1, 2].map(|slot| batch.frame(slot)), [&ip4[..]; 3]);
        assert_eq!([0, 1, 2].map(|slot| batch.priority(slot)), [0, 3, 7]);
        let traffic = tables.vlans.traffic(InterfaceId::new(66).unwrap());
        assert_eq!((traffic.rx_packets, traffic.rx_bytes), (3, 3 * ip4.len() as u64));
    }

    #[test]
    fn priorities_are_kept_where_all_frames_have_one_and_where_some_stay() {
        let ip4 = FrameBuilder::ip4().build();
        let of = |frames: &[Vec<u8>]| {
            let (_, batch) = run_step_on(&mut many().0, frames, |_| ());
            (0..frames.len()).map(|slot| batch.priority(slot)).collect::<Vec<_>>()
        };
        let (five, other) = (tagged(&ip4, Q, 0xa005), tagged(&ip4, Q, 0x6006));
        assert_eq!(of(&vec![five.clone(); 3]), [5, 5, 5]);
        assert_eq!(of(&[five.clone(), ip4, five.clone(), other, five]), [5, 0, 5, 3, 5]);
    }

    /// On port 0: VLANs 1 to 6 are 64 to 69, 7 in VLAN 3 is 70, 8 in service VLAN 1 is 71.
    fn many() -> (VlanInput, Arc<Tables>) {
        let tag = |protocol, id| Tag { protocol, id, priority: 0 };
        let vlan = |number, outer, inner| Vlan {
            interface: InterfaceId::new(number).unwrap(),
            lower: InterfaceId::FIRST,
            tags: Tags { outer, inner },
        };
        let customer = |id| tag(TagProtocol::Dot1q, id);
        let mut all: Vec<_> = (1..=6).map(|id| vlan(63 + id, customer(id), None)).collect();
        all.push(vlan(70, customer(3), Some(customer(7))));
        all.push(vlan(71, tag(TagProtocol::Dot1ad, 1), Some(customer(8))));
        let tables = TestTables::every_kind();
        tables.vlans.set(Arc::new(Vlans::new(&all, TagDevices::default(), &Bonds::default())));
        (VlanInput::new(&tables), tables)
    }

    /// Packets and bytes that each VLAN of [`many`] has received.
    fn received(tables: &Tables) -> Vec<(u64, u64)> {
        let vlans = (64..72).map(|number| InterfaceId::new(number).unwrap());
        let traffic = vlans.map(|vlan| tables.vlans.traffic(vlan));
        traffic.map(|of| (of.rx_packets, of.rx_bytes)).collect()
    }

    /// The same as the batch shows it.
    fn in_batch(batch: &Batch, frames: usize) -> Vec<(u64, u64)> {
        let of = |number| (0..frames).filter(move |&slot| batch.interface(slot).index() == number);
        let sum = |number| of(number).map(|slot| batch.len(slot) as u64).sum();
        (64..72).map(|number| (of(number).count() as u64, sum(number))).collect()
    }

    proptest::proptest! {
        #[test]
        fn a_frame_s_vlan_does_not_depend_on_the_others(
            kinds in proptest::collection::vec((0usize..13, 0usize..3), 1..=64),
        ) {
            let ip4 = FrameBuilder::ip4().build();
            let (q, ad) = (|id| tagged(&ip4, Q, id), |id| tagged(&ip4, AD, id));
            let frame = |(kind, cut): (usize, usize)| {
                let frame = match kind {
                    0 => ip4.clone(),
                    1..=8 => q(kind as u16),
                    9 => tagged(&q(7), Q, 3),
                    10 => tagged(&q(8), AD, 1),
                    11 => tagged(&q(9), AD, 0xe001),
                    _ => ad(2),
                };
                let len = [frame.len(), 21, 17][if cut == 0 || kind % 4 != 1 { 0 } else { cut }];
                frame[..len].to_vec()
            };
            let frames: Vec<_> = kinds.into_iter().map(frame).collect();
            let (mut step, tables) = many();
            let (_, batch) = run_step_on(&mut step, &frames, |_| ());
            proptest::prop_assert_eq!(received(&tables), in_batch(&batch, frames.len()));
            for (slot, frame) in frames.iter().enumerate() {
                let (_, alone) = run_step_on(&mut step, std::slice::from_ref(frame), |_| ());
                proptest::prop_assert_eq!(batch.interface(slot), alone.interface(0));
                proptest::prop_assert_eq!(batch.frame(slot), alone.frame(0));
                proptest::prop_assert_eq!(batch.priority(slot), alone.priority(0));
            }
        }
    }

    proptest::proptest! {
        /// The same for tags that the device stripped, some of them with a tag behind them that counts.
        #[test]
        fn a_stripped_tag_s_vlan_does_not_depend_on_the_others(
            kinds in proptest::collection::vec((0u16..9, 0usize..3), 1..=64),
        ) {
            let ip4 = FrameBuilder::ip4().build();
            let frame = |inner: usize| [ip4.clone(), tagged(&ip4, Q, 7), tagged(&ip4, Q, 8)][inner].clone();
            let frames: Vec<_> = kinds.iter().map(|&(_, inner)| frame(inner)).collect();
            let (mut step, tables) = many();
            let strip = |batch: &mut Batch, slot: usize, tag: u16| {
                if tag > 0 {
                    batch.burst.say_tag(slot, tag);
                }
            };
            let (_, batch) = run_step_on(&mut step, &frames, |batch| {
                kinds.iter().enumerate().for_each(|(slot, &(tag, _))| strip(batch, slot, tag));
            });
            proptest::prop_assert_eq!(received(&tables), in_batch(&batch, frames.len()));
            for (slot, frame) in frames.iter().enumerate() {
                let set = |batch: &mut Batch| strip(batch, 0, kinds[slot].0);
                let (_, alone) = run_step_on(&mut step, std::slice::from_ref(frame), set);
                proptest::prop_assert_eq!(batch.interface(slot), alone.interface(0));
                proptest::prop_assert_eq!(batch.frame(slot), alone.frame(0));
                proptest::prop_assert_eq!(batch.vlan_stripped().has(slot), alone.vlan_stripped().has(0));
            }
        }
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

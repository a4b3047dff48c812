//! `on-wire`: restores frames as they were on the wire.
//!
//! Takes every frame, before the other steps of a graph that forwards frames unchanged. A tag that the device removed is
//! inserted again, and TCP and UDP checksums that the sender left to its device are completed (see
//! `complete_checksum.rs`): both are needed where no other step of the router knows of them. Sets
//! [`Batch::link_multicast`](crate::Batch::link_multicast).
//!
//! | output | packets |
//! |---|---|
//! | `ok` | as on the wire |
//! | drop `no-buffer` | without room for a tag |

use wire::checksum::complete_l4_checksum_in_parts;
use wire::ethernet::TAG_LEN;

use crate::batch::{Batch, ETHERNET};
use crate::catalogue::StepSpec;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::DropReason;

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::Drop(DropReason::NoBuffer)];

/// Ethertypes of VLAN tags.
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// Most tags that a checksum is looked for behind.
const TAGS_MOST: usize = 2;

pub(super) fn spec() -> StepSpec {
    StepSpec::new("on-wire", OUTPUTS, |_| Box::new(OnWire))
}

struct OnWire;

impl Step for OnWire {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        batch.link_multicast = input.filter(|slot| batch.head(slot)[0] & 1 != 0);
        for slot in (input & batch.vlan_stripped()).slots() {
            out[1] |= Mask::when(!restore_tag(batch, slot), slot);
        }
        out[0] = input.without(out[1]);
        if batch.own.partial_checksums {
            out[0].for_each(|slot| complete(batch, slot));
        }
    }
}

/// Inserts the tag that the device removed; false without room.
fn restore_tag(batch: &mut Batch, slot: usize) -> bool {
    let Some(control) = batch.stripped_tag(slot) else { return true };
    let [high, low] = control.to_be_bytes();
    batch.forget_stripped(Mask::when(true, slot));
    batch.insert_tags(slot, [TAGS[0][0], TAGS[0][1], high, low])
}

/// Completes the TCP or UDP checksum of an IP packet.
fn complete(batch: &mut Batch, slot: usize) {
    let whole = batch.len(slot);
    let (frame, rest) = batch.frame_and_rest(slot);
    let mut at = ETHERNET;
    for _ in 0..TAGS_MOST {
        let is_tag = frame.get(at - 2..at).is_some_and(|kind| TAGS.iter().any(|tag| tag == kind));
        at += if is_tag { TAG_LEN } else { 0 };
    }
    let is_ip = matches!(frame.get(at - 2..at), Some([0x08, 0x00] | [0x86, 0xdd]));
    if let (true, Some(packet)) = (is_ip, frame.get_mut(at..)) {
        complete_l4_checksum_in_parts(packet, whole.saturating_sub(at), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use crate::mask::Mask;
    use crate::testing::{FrameBuilder, ones_sum, run_step, run_step_on, tagged};

    /// A UDP packet, and the same with a checksum left to the device.
    fn right_and_partial() -> (Vec<u8>, Vec<u8>) {
        let right = FrameBuilder::ip4().udp(4000, 53, b"query").build();
        let mut partial = right.clone();
        let pseudo = ones_sum(&[&right[26..34], &[0, 17], &[0, 13]].concat());
        partial[40..42].copy_from_slice(&pseudo.to_be_bytes());
        (right, partial)
    }

    #[test]
    fn checksums_are_completed_behind_tags_too() {
        let (right, partial) = right_and_partial();
        assert_ne!(right, partial);
        let both = |frame: &[u8]| {
            [frame.to_vec(), tagged(frame, 0x8100, 7), tagged(&tagged(frame, 0x8100, 7), 0x88a8, 9)]
        };
        let (result, batch) = run_step(&mut *make("on-wire", &[]), &both(&partial));
        assert_eq!(result["ok"], [0, 1, 2]);
        for (slot, frame) in both(&right).iter().enumerate() {
            assert_eq!(batch.frame(slot), frame, "{slot}");
        }
        let arp = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&right[14..]).build();
        let (_, batch) = run_step(&mut *make("on-wire", &[]), std::slice::from_ref(&arp));
        assert_eq!((batch.frame(0), batch.link_multicast), (&arp[..], Mask(1)));
    }

    #[test]
    fn a_removed_tag_comes_back_if_there_is_room() {
        let (right, _) = right_and_partial();
        let (result, batch) =
            run_step_on(&mut *make("on-wire", &[]), &[right.clone(), right.clone()], |b| {
                b.burst.say_tag(0, 0x6007);
                b.burst.say_tag(1, 0x6007);
                b.burst.fill_headroom(1);
                b.burst.say_tag(1, 0x6007);
            });
        assert_eq!((&result["ok"], &result["no-buffer"]), (&vec![0], &vec![1]));
        assert_eq!(batch.frame(0), tagged(&right, 0x8100, 0x6007));
    }
}

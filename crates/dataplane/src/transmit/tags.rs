//! The queue of a frame by its VLAN tags.

use dpdk::Mbuf;
use wire::ethernet::{ADDRESSES_LEN, TAG_LEN};

use crate::vlan::{ID, Identity, Tag, TagProtocol, Tags, identity};

/// The queues of VLANs by their tags.
#[derive(Debug, Default)]
pub(super) struct ByTags(Vec<(u32, u16)>);

/// Set in a key's lower half if there is an inner tag.
const HAS_INNER: u32 = 1 << 15;

impl ByTags {
    pub(super) fn insert(&mut self, tags: Tags, place: u16) {
        let key = key(code_of(tags.outer), tags.inner.map(code_of));
        let at = self.0.partition_point(|(of, _)| *of < key);
        self.0.insert(at, (key, place));
    }

    /// Returns the queue for frames of the outer tag alone.
    pub(super) fn around(&self, tags: Tags) -> Option<u16> {
        tags.inner?;
        self.find(key(code_of(tags.outer), None))
    }

    /// Returns the queue of a packet: that of both its tags, else that of the outer one.
    #[inline]
    pub(super) fn of(&self, packet: &Mbuf) -> Option<u16> {
        if self.0.is_empty() {
            return None;
        }
        let (outer, inner) = tags_of(packet.data(), packet.requested_tag())?;
        let of_both = inner.and_then(|inner| self.find(key(outer, Some(inner))));
        of_both.or_else(|| self.find(key(outer, None)))
    }

    fn find(&self, key: u32) -> Option<u16> {
        let at = self.0.binary_search_by_key(&key, |(of, _)| *of).ok()?;
        self.0.get(at).map(|(_, place)| *place)
    }
}

fn key(outer: u16, inner: Option<u16>) -> u32 {
    u32::from(outer) << 16 | inner.map_or(0, |inner| HAS_INNER | u32::from(inner))
}

/// A tag's kind and identifier in 13 bits.
fn code((protocol, id): Identity) -> u16 {
    (protocol as u16) << 12 | id
}

fn code_of(tag: Tag) -> u16 {
    code((tag.protocol, tag.id))
}

/// Returns the codes of a frame's tags, the first of which its device may have to insert.
fn tags_of(frame: &[u8], requested: Option<u16>) -> Option<(u16, Option<u16>)> {
    let first = tag_at(frame, ADDRESSES_LEN);
    match requested {
        Some(control) => Some((code((TagProtocol::Dot1q, control & ID)), first)),
        None => Some((first?, tag_at(frame, ADDRESSES_LEN + TAG_LEN))),
    }
}

fn tag_at(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().copied().and_then(identity).map(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(protocol: TagProtocol, id: u16) -> Tag {
        Tag { protocol, id, priority: 5 }
    }

    fn frame(tags: &[Tag]) -> Vec<u8> {
        let tags = tags.iter().flat_map(|tag| tag.bytes());
        [0; ADDRESSES_LEN].into_iter().chain(tags).chain([8, 0, 0x45, 0]).collect()
    }

    #[test]
    fn tags_are_those_of_the_frame_after_that_of_the_device() {
        use TagProtocol::{Dot1ad, Dot1q};
        let (five, six) = (tag(Dot1q, 5), tag(Dot1ad, 6));
        let (of_five, of_six) = (code_of(five), code_of(six));
        assert_ne!(of_five, code_of(tag(Dot1ad, 5)));
        assert_eq!(tags_of(&frame(&[]), None), None);
        assert_eq!(tags_of(&frame(&[five]), None), Some((of_five, None)));
        assert_eq!(tags_of(&frame(&[six, five]), None), Some((of_six, Some(of_five))));
        assert_eq!(tags_of(&frame(&[]), Some(0xe005)), Some((of_five, None)));
        assert_eq!(tags_of(&frame(&[six]), Some(5)), Some((of_five, Some(of_six))));
        assert_eq!(tags_of(&frame(&[five])[..15], None), None, "cut short");
    }

    #[test]
    fn the_queue_of_both_tags_is_preferred_to_that_of_the_outer_one() {
        use TagProtocol::{Dot1ad, Dot1q};
        let mut by_tags = ByTags::default();
        let outer = Tags { outer: tag(Dot1ad, 7), inner: None };
        let both = Tags { inner: Some(tag(Dot1q, 8)), ..outer };
        assert_eq!(by_tags.around(both), None);
        by_tags.insert(outer, 1);
        by_tags.insert(both, 2);
        by_tags.insert(Tags { outer: tag(Dot1q, 1), inner: None }, 3);
        assert_eq!((by_tags.around(both), by_tags.around(outer)), (Some(1), None));
        let of = |tags: &[Tag]| {
            let packet = crate::testing::dpdk().1.copy_of(&frame(tags)).unwrap();
            by_tags.of(&packet)
        };
        assert_eq!(of(&[tag(Dot1ad, 7), tag(Dot1q, 8)]), Some(2));
        assert_eq!(of(&[tag(Dot1ad, 7), tag(Dot1q, 9)]), Some(1));
        assert_eq!(of(&[tag(Dot1ad, 7)]), Some(1));
        assert_eq!(of(&[tag(Dot1q, 7)]), None);
        assert_eq!(of(&[tag(Dot1q, 1)]), Some(3));
        assert_eq!(of(&[]), None);
    }
}

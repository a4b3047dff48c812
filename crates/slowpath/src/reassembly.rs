//! Reassembly of packets for the router: RFC 791, 3.2; RFC 1122, 3.3.2; RFC 1812, 4.2.2.8;
//! RFC 8200, 4.5 with RFC 5722 (overlaps) and RFC 3168, 5.3 (ECN).
//!
//! ```text
//!   fragment --> same addresses, protocol, identification?
//!                  | no                  | yes
//!                  v                     v
//!              a new datagram        overlaps another? --> all of it is dropped, and what comes later
//!                  |                     |
//!                  +----------+----------+
//!                             v
//!                    all there: the packet, as if it had come whole
//!                    time over: dropped; "time exceeded" code 1 if the first fragment is there
//! ```
//!
//! Memory is bounded: by a number of fragments in total and a number per datagram; when there is no
//! room, the oldest datagram is dropped. An exact duplicate of a fragment is dropped alone. The
//! received packets themselves wait, so that each is counted once, with the outcome of the whole
//! datagram.
//!
//! Drops: `local-fragment`, `reassembly-timeout`.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use dataplane::interface::{InterfaceId, VrfId};
use dataplane::reason::DropReason;
use wire::checksum::checksum;
use wire::ethernet::ETHERNET_LEN;
use wire::ip::{IPV6_LEN, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, PROTOCOL_HOP_BY_HOP};
use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::context::Context;
use crate::extension::{self, End};
use crate::icmp::{self, Error};
use crate::{Output, Packet, Time};

/// Most fragments of one datagram: the largest datagram in fragments of 576 bytes.
const PIECES: usize = 128;
/// The largest total length of IPv4 and payload length of IPv6.
const LENGTH_MOST: usize = 65_535;
/// The two bits of ECN in the second byte of IPv4, and in the traffic class of IPv6.
const CONGESTION_EXPERIENCED: u8 = 3;

/// Fields that all fragments of one datagram share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Hosts of two VRFs may have the same address.
    vrf: VrfId,
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// IPv4 only (RFC 791, 2.3).
    protocol: u8,
}

/// A fragment: the key of its datagram, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    key: Key,
    /// Position of its data in the datagram's data.
    start: usize,
    end: usize,
    more: bool,
    /// Offset of its data in the frame.
    data: usize,
    /// Length of the IP headers in front of the whole packet's data.
    headers: usize,
    /// IPv6: the next header of the fragment header, and the offset in the packet of the byte that
    /// will name it.
    next: Option<(u8, usize)>,
}

impl Piece {
    /// Sets the VRF that the fragment was received in.
    pub(crate) fn in_vrf(mut self, vrf: VrfId) -> Self {
        self.key.vrf = vrf;
        self
    }

    /// Reads an IPv4 fragment; `None` if its data exceeds the largest packet.
    pub(crate) fn v4(header: &Ipv4Header, length: usize) -> Option<Self> {
        let headers = header.header_len();
        let start = header.fragment_offset();
        let end = start + length.checked_sub(headers)?;
        let more = header.more_fragments();
        if end == start || (more && !end.is_multiple_of(8)) || headers + end > LENGTH_MOST {
            return None;
        }
        let key = Key {
            vrf: VrfId::DEFAULT,
            source: header.source().into(),
            destination: header.destination().into(),
            identification: header.identification.get().into(),
            protocol: header.protocol,
        };
        Some(Self { key, start, end, more, data: ETHERNET_LEN + headers, headers, next: None })
    }

    /// Reads an IPv6 fragment, whose fragment header is at `at`; the error is for its sender, if there
    /// is one (RFC 8200, 4.5).
    pub(crate) fn v6(header: &Ipv6Header, bytes: &[u8], at: End) -> Result<Self, Option<Error>> {
        let fragment = bytes.get(at.offset..).unwrap_or_default();
        let (fragment, data) = Ipv6FragmentHeader::ref_from_prefix(fragment).map_err(|_| None)?;
        let (start, more) = (fragment.fragment_offset(), fragment.more());
        if fragment.next_header == PROTOCOL_HOP_BY_HOP {
            // These options stand directly behind the IPv6 header, or are not supported (4.1).
            return Err(Some(Error::ProtocolUnreachable { pointer: at.offset as u32 }));
        }
        let end = start + data.len();
        if more && !data.len().is_multiple_of(8) {
            // The payload length is wrong.
            return Err(Some(Error::BadField { pointer: 4 }));
        }
        if at.offset - IPV6_LEN + end > LENGTH_MOST {
            return Err(Some(Error::BadField { pointer: at.offset as u32 + 2 }));
        }
        if start == 0 && !extension::is_complete_chain(fragment.next_header, data) {
            return Err(Some(Error::IncompleteChain));
        }
        if data.is_empty() {
            return Err(None);
        }
        let key = Key {
            vrf: VrfId::DEFAULT,
            source: header.source().into(),
            destination: header.destination().into(),
            identification: fragment.identification.get(),
            protocol: 0,
        };
        let data = ETHERNET_LEN + at.offset + size_of::<Ipv6FragmentHeader>();
        let next = Some((fragment.next_header, at.named_at));
        Ok(Self { key, start, end, more, data, headers: at.offset, next })
    }
}

/// An incomplete datagram.
struct Datagram<P> {
    serial: u64,
    deadline: Time,
    /// The interface on which the first fragment to arrive was received.
    from: InterfaceId,
    /// In the order of their data; no two overlap.
    pieces: Vec<(Piece, P)>,
    /// True if two fragments overlapped: further ones are dropped.
    poisoned: bool,
}

/// Outcome of a fragment.
pub(crate) enum Outcome<P> {
    /// It waits for other fragments.
    Waits,
    /// It completed a datagram: the frame as if received whole, and the packets of its fragments.
    Whole(Vec<u8>, Vec<P>),
    /// These packets cannot be used.
    Refused(Vec<P>),
}

/// A datagram that is still incomplete at its deadline.
struct Expired<P> {
    /// The interface that its fragments were received on.
    from: InterfaceId,
    /// Its first fragment, if that is there; an error goes to its sender.
    first: Option<P>,
    /// The other fragments.
    others: Vec<P>,
}

/// A datagram on its way to another table.
pub(crate) struct Part<P> {
    key: Key,
    datagram: Datagram<P>,
}

/// All incomplete datagrams.
pub(crate) struct Reassembly<P> {
    datagrams: HashMap<Key, Datagram<P>>,
    /// Keys of the datagrams by age, and so by deadline.
    ages: BTreeMap<u64, Key>,
    serial: u64,
    held: usize,
    most: usize,
    timeout: Duration,
}

impl<P: Packet> Reassembly<P> {
    /// Creates an empty table. `most`: fragments that wait at a time, in total; `timeout`: longest
    /// wait.
    pub(crate) fn new(most: usize, timeout: Duration) -> Self {
        let (datagrams, ages) = (HashMap::new(), BTreeMap::new());
        Self { datagrams, ages, serial: 0, held: 0, most, timeout }
    }

    /// Sets the longest time for which fragments wait, also of those that wait already.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        for datagram in self.datagrams.values_mut() {
            let begun = datagram.deadline.saturating_sub(self.timeout);
            datagram.deadline = begun.saturating_add(timeout);
        }
        self.timeout = timeout;
    }

    /// Creates an empty one with the same limits.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.most, self.timeout)
    }

    /// Takes datagrams out, the oldest first: those between addresses that were first received on an interface for
    /// which `is_in`.
    pub(crate) fn part(
        &mut self,
        is_in: impl Fn(InterfaceId, (IpAddr, IpAddr)) -> bool,
    ) -> Vec<Part<P>> {
        let ages: Vec<Key> = self.ages.values().copied().collect();
        let of =
            |key: &Key, datagram: &Datagram<P>| is_in(datagram.from, (key.source, key.destination));
        let wanted = ages
            .into_iter()
            .filter(|key| self.datagrams.get(key).is_some_and(|datagram| of(key, datagram)));
        let wanted: Vec<Key> = wanted.collect();
        let take = |key| Some(Part { key, datagram: self.remove(key)? });
        wanted.into_iter().filter_map(take).collect()
    }

    /// Adds datagrams, which keep their deadlines.
    pub(crate) fn join(&mut self, parts: Vec<Part<P>>) {
        for Part { key, mut datagram } in parts {
            self.serial += 1;
            datagram.serial = self.serial;
            self.held += datagram.pieces.len();
            self.ages.insert(self.serial, key);
            self.datagrams.insert(key, datagram);
        }
    }

    /// Returns the number of packets that wait.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns the deadline of the oldest datagram.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let (_, key) = self.ages.first_key_value()?;
        Some(self.datagrams.get(key)?.deadline)
    }

    /// Takes a fragment. Packets dropped to make room are added to `displaced`.
    pub(crate) fn add(
        &mut self,
        piece: Piece,
        packet: P,
        from: InterfaceId,
        now: Time,
        displaced: &mut Vec<P>,
    ) -> Outcome<P> {
        while self.held >= self.most {
            let Some(oldest) = self.ages.first_key_value().map(|(_, &key)| key) else { break };
            displaced.extend(self.remove(oldest).into_iter().flat_map(packets));
        }
        // Datagrams with overlaps hold no packet; their number is bounded as well.
        while self.ages.len() > self.most.max(1) {
            let Some(oldest) = self.ages.first_key_value().map(|(_, &key)| key) else { break };
            displaced.extend(self.remove(oldest).into_iter().flat_map(packets));
        }
        let datagram = self.datagrams.entry(piece.key).or_insert_with(|| {
            self.serial += 1;
            self.ages.insert(self.serial, piece.key);
            let deadline = now.saturating_add(self.timeout);
            Datagram { serial: self.serial, deadline, from, pieces: Vec::new(), poisoned: false }
        });
        if datagram.poisoned || datagram.is_known(&piece, &packet) {
            return Outcome::Refused(vec![packet]);
        }
        if datagram.contradicts(&piece) || datagram.pieces.len() >= PIECES {
            datagram.poisoned = true;
            let pieces = std::mem::take(&mut datagram.pieces);
            self.held -= pieces.len();
            let all = pieces.into_iter().map(|(_, packet)| packet);
            return Outcome::Refused(all.chain([packet]).collect());
        }
        let place = datagram.pieces.partition_point(|(other, _)| other.start < piece.start);
        datagram.pieces.insert(place, (piece, packet));
        self.held += 1;
        match datagram.whole() {
            Some(frame) => {
                let datagram = self.remove(piece.key);
                Outcome::Whole(frame, datagram.into_iter().flat_map(packets).collect())
            }
            None => Outcome::Waits,
        }
    }

    /// Drops the packets of datagrams that are not complete in time. Their sender gets an error if the first fragment
    /// is there (RFC 792, RFC 1122 3.3.2, RFC 8200 4.5).
    pub(crate) fn run(&mut self, context: &mut Context<'_, P, impl Output<P>>) {
        let reason = DropReason::ReassemblyTimeout;
        while let Some(Expired { from, first, others }) = self.due(context.now) {
            if let Some(first) = first {
                icmp::refuse(first, from, Error::ReassemblyExpired, reason, context);
            }
            others.into_iter().for_each(|packet| context.out.drop(packet, reason));
        }
    }

    /// Returns a datagram whose deadline has passed; call until `None`.
    fn due(&mut self, now: Time) -> Option<Expired<P>> {
        if self.next_deadline()? > now {
            return None;
        }
        let key = *self.ages.first_key_value()?.1;
        let datagram = self.remove(key)?;
        let from = datagram.from;
        let has_first = datagram.pieces.first().is_some_and(|(piece, _)| piece.start == 0);
        let mut others: Vec<P> = packets(datagram).collect();
        let first = has_first.then(|| others.remove(0));
        Some(Expired { from, first, others })
    }

    /// Takes all packets that wait, for shutdown.
    pub(crate) fn drain(&mut self) -> Vec<P> {
        let keys: Vec<Key> = self.ages.values().copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).flat_map(packets).collect()
    }

    fn remove(&mut self, key: Key) -> Option<Datagram<P>> {
        let datagram = self.datagrams.remove(&key)?;
        self.ages.remove(&datagram.serial);
        self.held -= datagram.pieces.len();
        Some(datagram)
    }
}

fn packets<P>(datagram: Datagram<P>) -> impl Iterator<Item = P> {
    datagram.pieces.into_iter().map(|(_, packet)| packet)
}

impl<P: Packet> Datagram<P> {
    /// Returns true for an exact duplicate of a fragment.
    fn is_known(&self, piece: &Piece, packet: &P) -> bool {
        self.pieces.iter().any(|(other, bytes)| {
            (other.start, other.end, other.more) == (piece.start, piece.end, piece.more)
                && data(other, bytes) == data(piece, packet)
        })
    }

    /// Returns true if the fragment overlaps another one, or disagrees about the end of the data.
    fn contradicts(&self, piece: &Piece) -> bool {
        self.pieces.iter().any(|(other, _)| {
            let overlaps = piece.start < other.end && other.start < piece.end;
            let beyond = (!other.more && piece.end > other.end)
                || (!piece.more && other.end > piece.end)
                || (!other.more && !piece.more);
            overlaps || beyond
        })
    }

    /// Returns the frame, if no fragment is missing.
    fn whole(&self) -> Option<Vec<u8>> {
        let mut end = 0;
        for (piece, _) in &self.pieces {
            if piece.start != end {
                return None;
            }
            end = piece.end;
        }
        let (first, packet) = self.pieces.first()?;
        if self.pieces.last()?.0.more {
            return None;
        }
        let mut frame = packet.bytes().get(..ETHERNET_LEN + first.headers)?.to_vec();
        for (piece, packet) in &self.pieces {
            frame.extend_from_slice(data(piece, packet));
        }
        let congested = self.pieces.iter().any(|(_, packet)| is_congested(packet.bytes()));
        finish(&mut frame[ETHERNET_LEN..], first, congested)?;
        Some(frame)
    }
}

/// Returns a fragment's data in its frame, without the link's padding behind it.
fn data<'a, P: Packet>(piece: &Piece, packet: &'a P) -> &'a [u8] {
    packet.bytes().get(piece.data..piece.data + piece.end - piece.start).unwrap_or_default()
}

fn is_congested(frame: &[u8]) -> bool {
    match frame.get(ETHERNET_LEN..) {
        Some(&[version, tos, ..]) if version >> 4 == 4 => {
            tos & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
        }
        Some(&[_, class_flow, ..]) => {
            class_flow >> 4 & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
        }
        _ => false,
    }
}

/// Turns the first fragment's headers into those of the whole packet.
fn finish(packet: &mut [u8], first: &Piece, congested: bool) -> Option<()> {
    let length = packet.len();
    match first.next {
        None => {
            let (header, _) = Ipv4Header::mut_from_prefix(packet).ok()?;
            header.total_length = U16::new(u16::try_from(length).ok()?);
            header.flags_fragment = U16::new(0);
            header.tos |= if congested { CONGESTION_EXPERIENCED } else { 0 };
            header.checksum = U16::new(0);
            let sum = checksum(packet.get(..first.headers)?);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some((next_header, named_at)) => {
            let (header, _) = Ipv6Header::mut_from_prefix(packet).ok()?;
            header.payload_length = U16::new(u16::try_from(length - IPV6_LEN).ok()?);
            packet[1] |= if congested { CONGESTION_EXPERIENCED << 4 } else { 0 };
            *packet.get_mut(named_at)? = next_header;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{LEFT, fix_v4_checksum, secs, udp, v4, v6};

    type Table = Reassembly<Vec<u8>>;

    fn table(most: usize) -> Table {
        Table::new(most, secs(60))
    }

    /// Builds a fragment of an IPv4 datagram with these bytes of data.
    fn part4(data: &[u8], start: usize, end: usize, more: bool) -> Vec<u8> {
        let mut frame = v4("10.0.1.2", "10.0.1.1", 17, &data[start..end]);
        let field = (start / 8) as u16 | if more { 0x2000 } else { 0 };
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        fix_v4_checksum(&mut frame);
        frame
    }

    /// The same for IPv6, with destination options before and behind the fragment header.
    fn part6(data: &[u8], start: usize, end: usize, more: bool) -> Vec<u8> {
        let offset = start as u16 | u16::from(more);
        let [high, low] = offset.to_be_bytes();
        let headers = [44, 0, 1, 4, 0, 0, 0, 0, 17, 0, high, low, 0, 0, 0, 9];
        v6("fd00:1::2", "fd00:1::1", 60, &[&headers[..], &data[start..end]].concat())
    }

    fn piece(frame: &[u8]) -> Piece {
        match crate::frame::IpPacket::parse(frame).unwrap() {
            crate::frame::IpPacket::V4 { header, bytes } => Piece::v4(header, bytes.len()).unwrap(),
            crate::frame::IpPacket::V6 { header, bytes } => {
                let end = extension::take(header.next_header, bytes).unwrap();
                assert_eq!(end.protocol, 44);
                Piece::v6(header, bytes, end).unwrap()
            }
        }
    }

    #[test]
    fn fragments_of_two_vrfs_are_of_two_datagrams() {
        let data = vec![7; 16];
        let frames = [part4(&data, 0, 8, true), part4(&data, 8, 16, false)];
        let mut table = Table::new(8, Duration::from_secs(30));
        let mut displaced = Vec::new();
        let mut add = |at: usize, vrf: u16| {
            let (frame, piece) = (frames[at].clone(), piece(&frames[at]).in_vrf(VrfId::new(vrf)));
            table.add(piece, frame, LEFT, Time::ZERO, &mut displaced)
        };
        assert!(matches!(add(0, 0), Outcome::Waits) && matches!(add(1, 1), Outcome::Waits));
        assert!(matches!(add(1, 0), Outcome::Whole(..)) && matches!(add(0, 1), Outcome::Whole(..)));
    }

    /// Returns the whole frame, if this fragment completes one; counts the refused packets.
    fn add(table: &mut Table, frame: Vec<u8>, refused: &mut usize) -> Option<(Vec<u8>, usize)> {
        let mut displaced = Vec::new();
        let outcome = table.add(piece(&frame), frame, LEFT, Time::ZERO, &mut displaced);
        assert_eq!(displaced, Vec::<Vec<u8>>::new());
        match outcome {
            Outcome::Waits => None,
            Outcome::Whole(frame, packets) => Some((frame, packets.len())),
            Outcome::Refused(packets) => {
                *refused += packets.len();
                None
            }
        }
    }

    proptest! {
        /// Any cuts, any order, any repetitions: the output is the input, once.
        #[test]
        fn fragments_in_any_order_make_the_datagram(
            length in 9usize..3000,
            cuts in prop::collection::vec(1usize..370, 0..12),
            order in any::<u64>(),
            repeated in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            padding in 0usize..20,
            ipv6 in any::<bool>(),
        ) {
            let data = udp(length - 8);
            let mut edges: Vec<usize> = cuts.iter().map(|c| c * 8).filter(|&c| c < length).collect();
            edges.extend([0, length]);
            edges.sort_unstable();
            edges.dedup();
            let make = if ipv6 { part6 } else { part4 };
            let mut parts: Vec<_> = edges
                .windows(2)
                .map(|edge| make(&data, edge[0], edge[1], edge[1] < length))
                .collect();
            // A single part is no fragment.
            prop_assume!(parts.len() > 1);
            let again: Vec<_> = repeated.iter().map(|index| index.get(&parts).clone()).collect();
            parts.extend(again);
            parts.sort_by_key(|part| crate::random::Random::new(
                order ^ part.iter().fold(0, |sum: u64, &b| sum.wrapping_mul(31) + u64::from(b))).next());
            let mut table = table(1000);
            let (mut refused, mut done) = (0, Vec::new());
            for mut part in parts.clone() {
                part.resize(part.len() + padding, 0xee);
                done.extend(add(&mut table, part, &mut refused));
            }
            prop_assert!(!done.is_empty());
            let want = if ipv6 {
                v6("fd00:1::2", "fd00:1::1", 60, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &data].concat())
            } else {
                v4("10.0.1.2", "10.0.1.1", 17, &data)
            };
            prop_assert_eq!(&done[0].0, &want);
            let used: usize = done.iter().map(|(_, packets)| packets).sum();
            prop_assert_eq!(used + refused + table.held(), parts.len());
        }
    }

    #[test]
    fn what_overlaps_is_dropped_and_what_comes_later_too() {
        let data = udp(100);
        for (first, second) in [((0, 48), (40, 108)), ((40, 108), (0, 48)), ((0, 48), (0, 40))] {
            let mut table = table(10);
            let mut refused = 0;
            for (start, end) in [first, second, (48, 108), (0, 48)] {
                let frame = part6(&data, start, end, end < 108);
                assert!(add(&mut table, frame, &mut refused).is_none(), "{first:?} {second:?}");
            }
            assert_eq!((refused, table.held()), (4, 0));
        }
    }

    #[test]
    fn two_ends_contradict_each_other() {
        let data = udp(100);
        for later in [part4(&data, 88, 96, false), part4(&data, 96, 104, true)] {
            let mut table = table(10);
            let mut refused = 0;
            add(&mut table, part4(&data, 40, 80, false), &mut refused);
            add(&mut table, later, &mut refused);
            assert_eq!(refused, 2);
        }
        let mut table = table(10);
        let mut refused = 0;
        add(&mut table, part4(&data, 80, 88, true), &mut refused);
        add(&mut table, part4(&data, 40, 80, false), &mut refused);
        assert_eq!(refused, 2, "an end before what came already");
    }

    #[test]
    fn the_oldest_datagram_makes_room() {
        let data = udp(100);
        let mut table = table(3);
        let other = |identification: u8| {
            let mut frame = part4(&data, 0, 48, true);
            frame[19] = identification;
            frame
        };
        let mut displaced = Vec::new();
        for identification in 1..=5 {
            let frame = other(identification);
            let now = Time::from_secs(identification.into());
            table.add(piece(&frame), frame, LEFT, now, &mut displaced);
        }
        assert_eq!(displaced, [other(1), other(2)]);
        assert_eq!((table.held(), table.next_deadline()), (3, Some(secs(63))));
        table.set_timeout(secs(5));
        assert_eq!(table.next_deadline(), Some(secs(8)), "of fragments that wait already");
        table.set_timeout(secs(60));
        assert_eq!(table.next_deadline(), Some(secs(63)));
        assert_eq!(table.drain(), [other(3), other(4), other(5)]);
        assert_eq!((table.held(), table.next_deadline()), (0, None));
    }

    #[test]
    fn a_datagram_has_so_many_fragments_at_most() {
        let data = udp(2000);
        let mut table = table(1000);
        let mut refused = 0;
        for n in 0..PIECES {
            add(&mut table, part4(&data, n * 8, n * 8 + 8, true), &mut refused);
        }
        assert_eq!((table.held(), refused), (PIECES, 0));
        add(&mut table, part4(&data, PIECES * 8, PIECES * 8 + 8, false), &mut refused);
        assert_eq!((table.held(), refused), (0, PIECES + 1));
    }

    #[test]
    fn what_misses_its_others_expires_with_or_without_its_first() {
        let data = udp(100);
        let mut table = table(10);
        let first = part4(&data, 0, 48, true);
        let mut second = part4(&data, 48, 96, true);
        table.add(piece(&first), first.clone(), LEFT, secs(1), &mut Vec::new());
        table.add(piece(&second), second.clone(), LEFT, secs(9), &mut Vec::new());
        second[19] = 99;
        table.add(piece(&second), second.clone(), LEFT, secs(2), &mut Vec::new());
        assert!(table.due(secs(60)).is_none());
        let expired = table.due(secs(61)).unwrap();
        assert_eq!((expired.first, expired.others.len()), (Some(first), 1));
        assert!(table.due(secs(61)).is_none());
        let expired = table.due(secs(62)).unwrap();
        assert_eq!((expired.first, expired.others), (None, vec![second]));
    }

    #[test]
    fn congestion_of_one_fragment_is_that_of_the_whole() {
        let data = udp(100);
        let mut table = table(10);
        let mut marked = part4(&data, 0, 48, true);
        marked[15] = 0b10;
        add(&mut table, marked, &mut 0);
        let mut marked = part4(&data, 48, 108, false);
        marked[15] = 0b11;
        assert_eq!(add(&mut table, marked, &mut 0).unwrap().0[15], 0b11);
        let mut marked = part6(&data, 0, 48, true);
        marked[15] = 0x20;
        add(&mut table, marked, &mut 0);
        let mut marked = part6(&data, 48, 108, false);
        marked[15] = 0x30;
        assert_eq!(add(&mut table, marked, &mut 0).unwrap().0[15], 0x30);
    }

    #[test]
    fn impossible_fragments_have_their_errors() {
        let refused = |offset_more: u16, next: u8, data: usize| {
            let [high, low] = offset_more.to_be_bytes();
            let headers = [next, 0, high, low, 0, 0, 0, 9];
            let frame = v6("fd00:1::2", "fd00:1::1", 44, &[&headers[..], &vec![0; data]].concat());
            let Ok(crate::frame::IpPacket::V6 { header, bytes }) =
                crate::frame::IpPacket::parse(&frame)
            else {
                panic!("not a packet")
            };
            Piece::v6(header, bytes, extension::take(44, bytes).unwrap()).unwrap_err()
        };
        assert_eq!(refused(1, 17, 20), Some(Error::BadField { pointer: 4 }));
        assert_eq!(refused(0xfff8, 17, 16), Some(Error::BadField { pointer: 42 }));
        assert_eq!(refused(1, 17, 0), Some(Error::IncompleteChain));
        assert_eq!(refused(1, 58, 0), Some(Error::IncompleteChain));
        assert_eq!(refused(8, 17, 0), None);
        assert_eq!(refused(1, 0, 8), Some(Error::ProtocolUnreachable { pointer: 40 }));
        let v4 = |field: u16, data: usize| {
            let mut frame = v4("10.0.1.2", "10.0.1.1", 17, &vec![0; data]);
            frame[20..22].copy_from_slice(&field.to_be_bytes());
            let (header, _) = Ipv4Header::ref_from_prefix(&frame[14..]).unwrap();
            Piece::v4(header, frame.len() - 14)
        };
        assert_eq!(v4(0x2000, 20), None, "not a multiple of 8");
        assert_eq!(v4(0x1fff, 20), None, "beyond the largest packet");
        assert_eq!(v4(0x1fff, 0), None);
        assert!(v4(0x0001, 20).is_some());
    }
}

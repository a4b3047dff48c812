//! Segmentation in software (GSO): the frames on the wire, made from one large frame of a kernel.
//!
//! [`Segments`] reads the headers once and gives for each segment the bytes it consists of ([`Piece::parts`]):
//! the caller copies them into a packet buffer, and [`Piece::finish`] writes there the fields that differ
//! between segments. So the data are copied once.
//!
//! | field | value |
//! |---|---|
//! | IPv4 total length, IPv6 payload length, UDP length | the segment's |
//! | IPv4 identification | the frame's, plus the segment's number |
//! | TCP sequence number | the frame's, plus the data before the segment |
//! | FIN, PSH | on the last segment only |
//! | CWR | on the first segment only (RFC 3168, 6.1.2) |
//! | checksums | complete |
//!
//! If the sending device writes checksums, [`Piece::finish_headers`] leaves them to it; if it segments,
//! [`Segments::in_groups`] makes pieces of several segments each, which the device splits.
//!
//! The pseudo-header's sum is taken from the checksum field, where the kernel put it, and not computed from the
//! addresses: after a routing header the two differ (RFC 8200, 8.1). Only the length in it changes.
//!
//! ```
//! use wire::offload::{NEEDS_CHECKSUM, NetHeader, segment::Segments};
//!
//! // A checksum over four bytes, to be stored in the last two of them.
//! let header = NetHeader {
//!     flags: NEEDS_CHECKSUM,
//!     checksum_start: 14.into(),
//!     checksum_offset: 2.into(),
//!     ..NetHeader::default()
//! };
//! let frame = [[0; 14].as_slice(), &[0x12, 0x34, 0, 0]].concat();
//! let mut segments = Segments::new(&header, &frame).unwrap();
//! let piece = segments.next().unwrap();
//! let mut packet = piece.parts(&frame).concat();
//! piece.finish(&mut packet);
//! assert_eq!(packet[16..], (!0x1234u16).to_be_bytes());
//! assert!(segments.next().is_none());
//! ```

use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use super::{
    NEEDS_CHECKSUM, NetHeader, SEGMENT_ECN, SEGMENT_NONE, SEGMENT_TCP4, SEGMENT_TCP6, SEGMENT_UDP,
    control,
};
use crate::checksum::{checksum, update};
use crate::ethernet::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN,
};
use crate::ip::{IPV4_MIN_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, PROTOCOL_TCP, PROTOCOL_UDP};
use crate::l4::{TCP_MIN_LEN, TcpHeader, UDP_LEN, UdpHeader};

/// Offsets of the checksums in their headers.
const TCP_CHECKSUM: usize = std::mem::offset_of!(TcpHeader, checksum);
const UDP_CHECKSUM: usize = std::mem::offset_of!(UdpHeader, checksum);

/// Error: the header does not fit its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The transport of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Positions of the headers of a frame that a device can complete: TCP or UDP immediately after IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Start of the IP header.
    pub ip: usize,
    /// Start of the transport header.
    pub l4: usize,
    /// Start of the data.
    pub data: usize,
    /// True for IPv6.
    pub ip6: bool,
    /// The protocol after IP.
    pub transport: Transport,
}

/// Positions of the headers of a frame to be segmented.
#[derive(Clone, Copy, Debug)]
struct Layout {
    transport: Transport,
    /// Start of the IP header.
    ip: usize,
    /// Start of the transport header.
    l4: usize,
    /// Bytes in front of the data.
    header_len: usize,
    /// Bytes of data in each segment but the last.
    size: usize,
    /// Bytes from the transport header to the end.
    l4_len: usize,
}

/// A checksum to be completed.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// First byte covered by the sum.
    start: usize,
    /// The field itself.
    at: usize,
    /// True for UDP, whose checksum is never 0 (RFC 768).
    udp: bool,
}

/// Iterator over the segments of a frame.
#[derive(Clone, Debug)]
pub struct Segments {
    layout: Option<Layout>,
    field: Option<Field>,
    /// Bytes in the frame.
    len: usize,
    /// First byte of data of the next segment.
    next: usize,
    /// Number of the next segment.
    number: u16,
    /// Segments in each piece but the last.
    group: u16,
    done: bool,
}

/// One segment.
#[derive(Clone, Debug)]
pub struct Piece {
    layout: Option<Layout>,
    field: Option<Field>,
    header: usize,
    data: Range<usize>,
    number: u16,
    last: bool,
}

impl Segments {
    /// Reads the headers of a frame.
    ///
    /// # Errors
    /// [`Malformed`]: the header has positions outside the frame, or a segmentation that does not fit it.
    pub fn new(header: &NetHeader, frame: &[u8]) -> Result<Self, Malformed> {
        let field = field(header, frame)?;
        let layout = match header.segmentation & !SEGMENT_ECN {
            SEGMENT_NONE => None,
            kind => Some(layout(kind, header, field.ok_or(Malformed)?, frame)?),
        };
        let len = frame.len();
        let next = layout.map_or(len, |layout| layout.header_len);
        Ok(Self { layout, field, len, next, number: 0, group: 1, done: false })
    }

    /// Returns the positions of the headers that a device must know to write the frame's checksum; `None` if
    /// no checksum is missing, or devices do not support frames of this kind.
    pub fn headers(&self, frame: &[u8]) -> Option<Headers> {
        let Field { start: l4, at, .. } = self.field?;
        let (ethertype, ip) = network(frame)?;
        let (protocol, ip6) = match ethertype {
            ETHERTYPE_IPV4 if is_behind_ip4(frame, ip, l4) => {
                (Ipv4Header::ref_from_prefix(&frame[ip..]).ok()?.0.protocol, false)
            }
            ETHERTYPE_IPV6 if l4 == ip + IPV6_LEN => {
                (Ipv6Header::ref_from_prefix(&frame[ip..]).ok()?.0.next_header, true)
            }
            _ => return None,
        };
        let (transport, header_len) = match (protocol, at - l4) {
            (PROTOCOL_TCP, TCP_CHECKSUM) => (Transport::Tcp, tcp_header_len(&frame[l4..])?),
            (PROTOCOL_UDP, UDP_CHECKSUM) => (Transport::Udp, UDP_LEN),
            _ => return None,
        };
        let fits = header_len >= UDP_LEN && l4 + header_len <= frame.len();
        let data = l4 + header_len;
        fits.then_some(Headers { ip, l4, data, ip6, transport })
    }

    /// Returns the data length of each segment, if a device can make the segments: for TCP without CWR, which
    /// devices treat differently.
    pub fn device_segment(&self, frame: &[u8]) -> Option<u16> {
        let layout = self.layout.filter(|layout| layout.transport == Transport::Tcp)?;
        let (header, _) = TcpHeader::ref_from_prefix(frame.get(layout.l4..)?).ok()?;
        let plain = header.offset_flags.get() & control::CWR == 0;
        plain.then_some(layout.size as u16)
    }

    /// Makes pieces of this many segments each, at least one, which a device splits.
    #[must_use]
    pub fn in_groups(mut self, segments: u16) -> Self {
        self.group = segments.max(1);
        self
    }

    /// Returns true if all segments were made.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

impl Iterator for Segments {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.done {
            return None;
        }
        let header = self.layout.map_or(self.len, |layout| layout.header_len);
        let size = self.layout.map_or(0, |layout| layout.size * usize::from(self.group));
        let data = self.next..self.len.min(self.next + size);
        let (layout, field, number) = (self.layout, self.field, self.number);
        (self.next, self.number) = (data.end, number.wrapping_add(self.group));
        self.done = data.end == self.len;
        Some(Piece { layout, field, header, data, number, last: self.done })
    }
}

fn field(header: &NetHeader, frame: &[u8]) -> Result<Option<Field>, Malformed> {
    if header.flags & NEEDS_CHECKSUM == 0 {
        return Ok(None);
    }
    let (start, offset) =
        (usize::from(header.checksum_start.get()), usize::from(header.checksum_offset.get()));
    let at = start + offset;
    if start < ETHERNET_LEN || at + 2 > frame.len() {
        return Err(Malformed);
    }
    Ok(Some(Field { start, at, udp: offset == UDP_CHECKSUM }))
}

fn layout(kind: u8, header: &NetHeader, field: Field, frame: &[u8]) -> Result<Layout, Malformed> {
    let (ethertype, ip) = network(frame).ok_or(Malformed)?;
    let l4 = field.start;
    let (transport, least, checksum) = match kind {
        SEGMENT_TCP4 | SEGMENT_TCP6 => (Transport::Tcp, TCP_MIN_LEN, TCP_CHECKSUM),
        SEGMENT_UDP => (Transport::Udp, UDP_LEN, UDP_CHECKSUM),
        _ => return Err(Malformed),
    };
    let fits = match ethertype {
        ETHERTYPE_IPV4 => kind != SEGMENT_TCP6 && is_behind_ip4(frame, ip, l4),
        ETHERTYPE_IPV6 => kind != SEGMENT_TCP4 && ip + IPV6_LEN <= l4,
        _ => false,
    };
    let l4_header = frame.get(l4..).ok_or(Malformed)?;
    let l4_header_len = match transport {
        Transport::Tcp => tcp_header_len(l4_header).ok_or(Malformed)?,
        Transport::Udp => UDP_LEN,
    };
    let (size, header_len) = (usize::from(header.segment_size.get()), l4 + l4_header_len);
    let l4_len = l4_header.len();
    if !fits
        || l4_len > usize::from(u16::MAX)
        || field.at != l4 + checksum
        || l4_header_len < least
        || header_len > frame.len()
        || size == 0
    {
        return Err(Malformed);
    }
    Ok(Layout { transport, ip, l4, header_len, size, l4_len })
}

/// Returns the ethertype after up to two VLAN tags, and the offset of the header that it names.
fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let ethertype = |at: usize| Some(U16::read_from_prefix(frame.get(at..)?).ok()?.0.get());
    let mut at = ETHERNET_LEN - 2;
    for _ in 0..2 {
        if matches!(ethertype(at)?, ETHERTYPE_VLAN | ETHERTYPE_QINQ) {
            at += 4;
        }
    }
    Some((ethertype(at)?, at + 2))
}

fn is_behind_ip4(frame: &[u8], ip: usize, l4: usize) -> bool {
    let header = frame.get(ip..).and_then(|bytes| Ipv4Header::ref_from_prefix(bytes).ok());
    header.is_some_and(|(header, _)| {
        header.header_len() >= IPV4_MIN_LEN && ip + header.header_len() == l4
    })
}

fn tcp_header_len(bytes: &[u8]) -> Option<usize> {
    let (header, _) = TcpHeader::ref_from_prefix(bytes).ok()?;
    Some(header.header_len())
}

impl Piece {
    /// Returns the segment's bytes in the frame: those in front of the data, and the data.
    pub fn parts<'a>(&self, frame: &'a [u8]) -> [&'a [u8]; 2] {
        [&frame[..self.header], &frame[self.data.clone()]]
    }

    /// Returns the length of the segment.
    #[expect(clippy::len_without_is_empty, reason = "it has headers")]
    pub fn len(&self) -> usize {
        self.header + self.data.len()
    }

    /// Returns the length of its data.
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// Completes the segment; `packet` holds its parts in order.
    pub fn finish(&self, packet: &mut [u8]) {
        self.finish_headers(packet);
        if let Some(field) = self.field {
            complete(field, packet);
        }
    }

    /// Completes the segment except for the transport checksum, whose field then holds the sum over the
    /// pseudo-header. `packet` holds at least the bytes in front of the data.
    pub fn finish_headers(&self, packet: &mut [u8]) {
        if let Some(layout) = &self.layout {
            self.set_lengths(layout, packet);
            self.set_transport(layout, packet);
        }
    }

    fn set_lengths(&self, layout: &Layout, packet: &mut [u8]) {
        let Some(ip) = packet.get_mut(layout.ip..) else { return };
        let len = (self.len() - layout.ip) as u16;
        if ip.first().is_some_and(|byte| byte >> 4 == 6) {
            if let Ok((header, _)) = Ipv6Header::mut_from_prefix(ip) {
                header.payload_length.set(len - IPV6_LEN as u16);
            }
            return;
        }
        let mut header_len = 0;
        if let Ok((header, _)) = Ipv4Header::mut_from_prefix(ip) {
            header_len = header.header_len();
            header.total_length.set(len);
            header.identification.set(header.identification.get().wrapping_add(self.number));
            header.checksum.set(0);
        }
        let sum = checksum(&ip[..header_len]);
        if let Ok((header, _)) = Ipv4Header::mut_from_prefix(ip) {
            header.checksum.set(sum);
        }
    }

    fn set_transport(&self, layout: &Layout, packet: &mut [u8]) {
        let Some(l4) = packet.get_mut(layout.l4..) else { return };
        let len = (self.len() - layout.l4) as u16;
        // The field holds the pseudo-header's sum with the whole frame's length in it.
        let resized = |field: &mut U16| field.set(!update(!field.get(), layout.l4_len as u16, len));
        match layout.transport {
            Transport::Tcp => {
                let Ok((header, _)) = TcpHeader::mut_from_prefix(l4) else { return };
                let before = (self.data.start - layout.header_len) as u32;
                header.sequence.set(header.sequence.get().wrapping_add(before));
                let mut flags = header.offset_flags.get();
                if !self.last {
                    flags &= !(control::FIN | control::PSH);
                }
                if self.number > 0 {
                    flags &= !control::CWR;
                }
                header.offset_flags.set(flags);
                resized(&mut header.checksum);
            }
            Transport::Udp => {
                let Ok((header, _)) = UdpHeader::mut_from_prefix(l4) else { return };
                header.length.set(len);
                resized(&mut header.checksum);
            }
        }
    }
}

/// Stores the checksum in the field, which holds the sum over the pseudo-header.
fn complete(field: Field, packet: &mut [u8]) {
    let Some(sum) = packet.get(field.start..).map(checksum) else { return };
    let sum = if sum == 0 && field.udp { 0xffff } else { sum };
    if let Some(Ok((at, _))) = packet.get_mut(field.at..).map(U16::mut_from_prefix) {
        at.set(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{ACK, CWR, ECE, FIN, PSH, RST, Sample, samples};
    use super::*;
    use proptest::prelude::*;

    fn header(sample: &Sample, size: usize) -> NetHeader {
        let kind = match (sample.udp, sample.v6) {
            (true, _) => SEGMENT_UDP,
            (false, false) => SEGMENT_TCP4,
            (false, true) => SEGMENT_TCP6,
        };
        let ecn = if sample.flags & CWR != 0 && !sample.udp { SEGMENT_ECN } else { 0 };
        NetHeader {
            flags: NEEDS_CHECKSUM,
            segmentation: if size == 0 { SEGMENT_NONE } else { kind | ecn },
            header_len: (sample.header_len() as u16).into(),
            segment_size: (size as u16).into(),
            checksum_start: (sample.l4() as u16).into(),
            checksum_offset: ((sample.field() - sample.l4()) as u16).into(),
        }
    }

    fn segments(header: &NetHeader, frame: &[u8]) -> Vec<Vec<u8>> {
        let finished = |piece: Piece| {
            let mut packet = piece.parts(frame).concat();
            assert_eq!(packet.len(), piece.len());
            piece.finish(&mut packet);
            packet
        };
        Segments::new(header, frame).unwrap().map(finished).collect()
    }

    fn expect(sample: &Sample, size: usize) {
        let expected: Vec<_> = sample.cut(size).iter().map(Sample::wire).collect();
        assert_eq!(segments(&header(sample, size), &sample.partial()), expected, "{sample:?}");
    }

    #[test]
    fn flags_stand_on_the_segment_they_belong_to() {
        for v6 in [false, true] {
            for flags in [ACK, ACK | PSH, ACK | FIN | PSH, ACK | CWR | ECE, RST | ACK] {
                expect(&Sample { v6, flags, data: vec![9; 301], ..Sample::default() }, 100);
            }
        }
    }

    #[test]
    fn numbers_wrap() {
        let (identification, sequence) = (0xfffe, 0xffff_ffc0);
        let data = vec![1; 400];
        expect(&Sample { identification, sequence, data, ..Sample::default() }, 100);
    }

    #[test]
    fn vlan_tags_and_udp_are_understood() {
        for tags in [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5]] {
            for (v6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
                let (tags, data) = (tags.to_vec(), (0..250).collect());
                expect(&Sample { tags, v6, udp, data, ..Sample::default() }, 60);
            }
        }
    }

    #[test]
    fn the_pseudo_header_is_the_kernels() {
        // After a routing header the sum's destination differs from the header's.
        let sample = Sample { v6: true, ..Sample::default() };
        let mut other = sample.clone();
        other.hosts[1] = 77;
        let mut frame = sample.partial();
        let field = sample.field();
        frame[field..field + 2].copy_from_slice(&other.pseudo_header().to_be_bytes());
        let made = segments(&header(&sample, 60), &frame);
        let expected: Vec<_> = other.cut(60).iter().map(Sample::wire).collect();
        for (made, expected) in made.iter().zip(&expected) {
            assert_eq!(made[field..], expected[field..]);
        }
    }

    /// The frames on the wire, where a device splits groups of segments as the kernel splits frames.
    fn by_device(header: &NetHeader, frame: &[u8], group: u16) -> Vec<Vec<u8>> {
        let pieces = Segments::new(header, frame).unwrap().in_groups(group);
        let cut = |piece: Piece| {
            let mut packet = piece.parts(frame).concat();
            piece.finish_headers(&mut packet);
            assert_eq!(packet.len() - piece.len(), 0);
            segments(header, &packet)
        };
        pieces.flat_map(cut).collect()
    }

    #[test]
    fn groups_that_a_device_cuts_become_the_same_frames() {
        for (v6, flags) in [(false, ACK | PSH | FIN), (true, ACK), (false, ACK | RST)] {
            let identification = 0xfffe;
            let data = (0..=255).cycle().take(1999).collect();
            let sample = Sample { v6, flags, identification, data, ..Sample::default() };
            let expected: Vec<_> = sample.cut(100).iter().map(Sample::wire).collect();
            for group in [0, 1, 2, 7, 20, 60] {
                let made = by_device(&header(&sample, 100), &sample.partial(), group);
                assert!(made == expected, "{sample:?} in groups of {group}");
            }
        }
    }

    #[test]
    fn what_a_device_completes_is_tcp_or_udp_behind_ip() {
        let headers = |sample: &Sample| {
            let frame = sample.partial();
            Segments::new(&header(sample, 0), &frame).unwrap().headers(&frame)
        };
        for (v6, udp, tags) in
            [(false, false, 0), (true, true, 4), (true, false, 8), (false, true, 0)]
        {
            let tags = [[0x81, 0, 0, 5]; 2].concat()[..tags].to_vec();
            let sample = Sample { v6, udp, tags, ..Sample::default() };
            let transport = if udp { Transport::Udp } else { Transport::Tcp };
            let expected = Headers {
                ip: sample.ip(),
                l4: sample.l4(),
                data: sample.header_len(),
                ip6: v6,
                transport,
            };
            assert_eq!(headers(&sample), Some(expected));
        }
        // Another protocol whose checksum is in the same place, and a checksum that is not missing.
        let sample = Sample { udp: true, ..Sample::default() };
        let mut frame = sample.partial();
        let plain = Segments::new(&NetHeader::default(), &frame).unwrap();
        assert_eq!(plain.headers(&frame), None);
        frame[sample.ip() + 9] = 33;
        let dccp = Segments::new(&header(&sample, 0), &frame).unwrap();
        assert_eq!(dccp.headers(&frame), None);
        // Inside a tunnel.
        let mut inner = header(&sample, 0);
        inner.checksum_start.set(inner.checksum_start.get() + 8);
        assert_eq!(Segments::new(&inner, &frame).unwrap().headers(&frame), None);
    }

    #[test]
    fn a_device_cuts_tcp_without_cwr() {
        let size = |sample: &Sample| {
            let frame = sample.partial();
            Segments::new(&header(sample, 50), &frame).unwrap().device_segment(&frame)
        };
        let tcp = Sample::default();
        assert_eq!(size(&tcp), Some(50));
        assert_eq!(size(&Sample { flags: ACK | CWR, ..tcp.clone() }), None);
        assert_eq!(size(&Sample { udp: true, ..tcp.clone() }), None);
        let frame = tcp.partial();
        let whole = Segments::new(&header(&tcp, 0), &frame).unwrap();
        assert_eq!(whole.device_segment(&frame), None, "nothing is to be cut");
    }

    #[test]
    fn one_frame_stays_one() {
        let sample = Sample { udp: true, ..Sample::default() };
        assert_eq!(segments(&header(&sample, 0), &sample.partial()), [sample.wire()]);
        // No checksum is left to the device.
        let any = vec![7; 60];
        assert_eq!(segments(&NetHeader::default(), &any), [any]);
    }

    #[test]
    fn a_udp_checksum_is_never_zero() {
        // Data of two bytes that make the sum zero.
        let mut sample = Sample { udp: true, data: vec![0, 0], ..Sample::default() };
        let wire = sample.wire();
        sample.data = wire[sample.field()..sample.field() + 2].to_vec();
        let made = segments(&header(&sample, 0), &sample.partial());
        assert_eq!(made[0][sample.field()..sample.field() + 2], [0xff, 0xff]);
    }

    #[test]
    fn headers_that_do_not_fit_their_frames_are_refused() {
        let sample = Sample::default();
        let (right, frame) = (header(&sample, 40), sample.partial());
        assert!(Segments::new(&right, &frame).is_ok());
        let wrong = [
            NetHeader { flags: 0, ..right },
            NetHeader { segment_size: 0.into(), ..right },
            NetHeader { segmentation: SEGMENT_TCP6, ..right },
            NetHeader { segmentation: SEGMENT_UDP, ..right },
            NetHeader { segmentation: 3, ..right },
            NetHeader { checksum_start: 0.into(), ..right },
            NetHeader { checksum_start: 38.into(), ..right },
            NetHeader { checksum_start: 0xffff.into(), ..right },
            NetHeader { checksum_offset: 6.into(), ..right },
            NetHeader { checksum_offset: 0xffff.into(), ..right },
        ];
        for header in wrong {
            assert_eq!(Segments::new(&header, &frame).unwrap_err(), Malformed, "{header:?}");
        }
        for len in 0..sample.header_len() {
            assert_eq!(Segments::new(&right, &frame[..len]).unwrap_err(), Malformed, "{len}");
        }
        let mut long = frame.clone();
        long.resize(sample.l4() + 0x10000, 0);
        assert_eq!(Segments::new(&right, &long).unwrap_err(), Malformed);
        let mut options = frame;
        options[sample.l4() + 12] = 0x40;
        assert_eq!(Segments::new(&right, &options).unwrap_err(), Malformed, "data offset 4");
    }

    proptest! {
        #[test]
        fn segments_are_what_each_would_have_been(
            sample in samples(), size in 1..1500usize, cwr in any::<bool>(), udp in any::<bool>(),
        ) {
            let flags = sample.flags | if cwr { CWR } else { 0 };
            expect(&Sample { flags, udp, ..sample }, size);
        }

        #[test]
        fn any_bytes_are_segmented_or_refused(
            header in any::<[u8; 10]>(),
            kind in prop::sample::select(vec![0u8, 1, 4, 5, 0x81]),
            start in 0..80u16,
            mut frame in prop::collection::vec(any::<u8>(), 0..200),
            ethertype in prop::sample::select(vec![[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]]),
            first in prop::sample::select(vec![0x45, 0x46, 0x4f, 0x60]),
        ) {
            if frame.len() > 14 {
                frame[12..14].copy_from_slice(&ethertype);
                frame[14] = first;
            }
            let mut header = NetHeader::read_from_bytes(&header).unwrap();
            (header.segmentation, header.checksum_start) = (kind, start.into());
            header.checksum_offset = (header.checksum_offset.get() % 20).into();
            if let Ok(made) = Segments::new(&header, &frame) {
                let mut data = 0;
                for piece in made {
                    let mut packet = piece.parts(&frame).concat();
                    piece.finish(&mut packet);
                    data += piece.data.len();
                }
                prop_assert!(data <= frame.len());
            }
        }
    }
}

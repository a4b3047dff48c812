//! Coalescing in software (GRO): one large TCP frame of several, so that a kernel processes it once.
//!
//! A [`Run`] is the beginning of such a frame. A frame joins it under the rules of Linux's GRO, so that
//! the receiver sees no difference:
//!
//! * same Ethernet header, addresses, ports, TTL, traffic class, flow label and DF; no IPv4 options, no
//!   IPv6 extension headers, no fragment, no padding;
//! * the next IPv4 identification, or, with DF, always the same one (RFC 6864);
//! * the next sequence number; acknowledgment, window, options and flags of the first frame, of flags
//!   only ACK and ECE, but FIN and PSH on the last;
//! * as much data as the first frame, less only in the last;
//! * a correct checksum.
//!
//! A run ends with a shorter segment, FIN or PSH, and then accepts no more. The frames stay with the caller,
//! which writes [`Run::header`] and then the data of each.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::{NEEDS_CHECKSUM, NetHeader, SEGMENT_TCP4, SEGMENT_TCP6, control};
use crate::checksum::{Checksum, checksum, pseudo_header_v4, pseudo_header_v6};
use crate::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader};
use crate::ip::{IPV4_DONT_FRAGMENT, IPV4_MIN_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, PROTOCOL_TCP};
use crate::l4::{TCP_MIN_LEN, TcpHeader};

/// Room for the longest headers: Ethernet, IPv6 and TCP with options.
const HEADER_MOST: usize = ETHERNET_LEN + IPV6_LEN + 60;

/// The longest IPv4 packet, and the longest payload of an IPv6 packet.
const LENGTH_MOST: usize = u16::MAX as usize;

/// Start of the IP header, after the Ethernet header.
const IP: usize = ETHERNET_LEN;

/// A frame with one whole TCP segment, its headers in the usual places.
#[derive(Clone, Copy, Debug)]
pub struct TcpFrame<'a> {
    bytes: &'a [u8],
    /// Start of the TCP header.
    l4: usize,
    /// Start of the data.
    data: usize,
    tcp: &'a TcpHeader,
}

impl<'a> TcpFrame<'a> {
    /// Reads a frame; `None` for any other frame, which is no error.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (ethernet, packet) = EthernetHeader::ref_from_prefix(bytes).ok()?;
        let l4 = match ethernet.ethertype.get() {
            ETHERTYPE_IPV4 => IP + ip4(packet)?,
            ETHERTYPE_IPV6 => IP + ip6(packet)?,
            _ => return None,
        };
        let (tcp, _) = TcpHeader::ref_from_prefix(&bytes[l4..]).ok()?;
        let data = l4 + tcp.header_len();
        let fits = tcp.header_len() >= TCP_MIN_LEN && data <= bytes.len();
        fits.then_some(Self { bytes, l4, data, tcp })
    }

    /// Returns the position of the data in the frame.
    pub fn data(&self) -> Range<usize> {
        self.data..self.bytes.len()
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.data
    }

    fn flags(&self) -> u16 {
        self.tcp.offset_flags.get() & control::ALL
    }

    /// Returns addresses and ports.
    fn flow(&self) -> [&'a [u8]; 2] {
        flow(self.bytes, self.l4)
    }

    /// Returns the IPv4 header.
    fn ip4(&self) -> Option<&'a Ipv4Header> {
        let header = Ipv4Header::ref_from_prefix(&self.bytes[IP..]).ok()?.0;
        (self.l4 == IP + IPV4_MIN_LEN).then_some(header)
    }

    fn has_right_checksum(&self) -> bool {
        let segment = &self.bytes[self.l4..];
        let mut sum = pseudo_header(self.bytes, self.l4, segment.len());
        sum.add(segment);
        sum.finish() == 0
    }
}

/// Returns the length in front of the TCP header of an IPv4 packet that may be coalesced.
fn ip4(packet: &[u8]) -> Option<usize> {
    let (header, _) = Ipv4Header::ref_from_prefix(packet).ok()?;
    let plain = header.version_ihl == 0x45
        && header.protocol == PROTOCOL_TCP
        && header.flags_fragment.get() & !IPV4_DONT_FRAGMENT == 0
        && usize::from(header.total_length.get()) == packet.len()
        && checksum(&packet[..IPV4_MIN_LEN]) == 0;
    plain.then_some(IPV4_MIN_LEN)
}

/// Returns the length in front of the TCP header of an IPv6 packet that may be coalesced.
fn ip6(packet: &[u8]) -> Option<usize> {
    let (header, payload) = Ipv6Header::ref_from_prefix(packet).ok()?;
    let plain = header.version() == 6
        && header.next_header == PROTOCOL_TCP
        && usize::from(header.payload_length.get()) == payload.len();
    plain.then_some(IPV6_LEN)
}

/// Returns addresses and ports of a frame whose TCP header is at `l4`.
fn flow(bytes: &[u8], l4: usize) -> [&[u8]; 2] {
    let addresses = if l4 == IP + IPV4_MIN_LEN { 8 } else { 32 };
    [&bytes[l4 - addresses..l4], &bytes[l4..l4 + 4]]
}

fn pseudo_header(bytes: &[u8], l4: usize, length: usize) -> Checksum {
    if let Ok((ip, _)) = Ipv4Header::ref_from_prefix(&bytes[IP..])
        && l4 == IP + IPV4_MIN_LEN
    {
        return pseudo_header_v4(ip.source(), ip.destination(), PROTOCOL_TCP, length as u16);
    }
    match Ipv6Header::ref_from_prefix(&bytes[IP..]) {
        Ok((ip, _)) => pseudo_header_v6(ip.source(), ip.destination(), PROTOCOL_TCP, length as u32),
        Err(_) => Checksum::new(),
    }
}

/// Consecutive frames of a TCP connection: at least one.
#[derive(Clone, Debug)]
pub struct Run {
    /// The first frame's headers.
    head: [u8; HEADER_MOST],
    l4: usize,
    head_len: usize,
    /// Bytes of data in the first frame.
    size: usize,
    /// Bytes of data in all frames.
    data: usize,
    frames: u16,
    next_sequence: u32,
    /// Increment of the IPv4 identification from frame to frame; `None` while the run has one frame.
    step: Option<u16>,
    /// FIN and PSH of the last frame.
    last_flags: u16,
    /// True if the run accepts no more frames.
    ended: bool,
}

impl Run {
    /// Starts a run with a frame, if others may join it.
    pub fn begin(frame: &TcpFrame<'_>) -> Option<Self> {
        let joinable = frame.flags() & !control::ECE == control::ACK
            && frame.len() > 0
            && frame.has_right_checksum();
        if !joinable {
            return None;
        }
        let mut head = [0; HEADER_MOST];
        head[..frame.data].copy_from_slice(&frame.bytes[..frame.data]);
        Some(Self {
            head,
            l4: frame.l4,
            head_len: frame.data,
            size: frame.len(),
            data: frame.len(),
            frames: 1,
            next_sequence: frame.tcp.sequence.get().wrapping_add(frame.len() as u32),
            step: None,
            last_flags: 0,
            ended: false,
        })
    }

    /// Returns true if a frame belongs to the same connection.
    pub fn is_flow_of(&self, frame: &TcpFrame<'_>) -> bool {
        self.l4 == frame.l4 && flow(&self.head, self.l4) == frame.flow()
    }

    /// Adds a frame; returns false and changes nothing if it cannot join this run.
    pub fn join(&mut self, frame: &TcpFrame<'_>) -> bool {
        let Some(step) = self.step_to(frame) else { return false };
        let limit = LENGTH_MOST - (self.head_len - IP);
        let fits = !self.ended
            && (1..=self.size).contains(&frame.len())
            && self.data + frame.len() <= limit
            && self.is_flow_of(frame)
            && self.has_headers_of(frame)
            && frame.has_right_checksum();
        if !fits {
            return false;
        }
        self.step = step;
        self.frames += 1;
        self.data += frame.len();
        self.next_sequence = self.next_sequence.wrapping_add(frame.len() as u32);
        self.last_flags = frame.flags() & (control::FIN | control::PSH);
        self.ended = self.last_flags != 0 || frame.len() < self.size;
        true
    }

    fn first(&self) -> Option<TcpFrame<'_>> {
        let bytes = &self.head[..self.head_len];
        let (tcp, _) = TcpHeader::ref_from_prefix(&bytes[self.l4..]).ok()?;
        Some(TcpFrame { bytes, l4: self.l4, data: self.head_len, tcp })
    }

    /// Returns the increment of the IPv4 identification with this frame; `None` if that forbids it to
    /// join.
    fn step_to(&self, frame: &TcpFrame<'_>) -> Option<Option<u16>> {
        let first = self.first()?;
        let (Some(first), Some(new)) = (first.ip4(), frame.ip4()) else {
            return Some(None);
        };
        let growth = new.identification.get().wrapping_sub(first.identification.get());
        let fixed = growth == 0 && new.dont_fragment() && self.step != Some(1);
        let grows = growth == self.frames && self.step != Some(0);
        if fixed { Some(Some(0)) } else { grows.then_some(Some(1)) }
    }

    /// Returns true if all fields that must match do.
    fn has_headers_of(&self, frame: &TcpFrame<'_>) -> bool {
        let Some(first) = self.first() else { return false };
        let ip = |bytes: &[u8]| match first.ip4() {
            // All but total length, identification and checksum.
            Some(_) => [
                [bytes[IP], bytes[IP + 1]],
                [bytes[IP + 6], bytes[IP + 7]],
                [bytes[IP + 8], bytes[IP + 9]],
            ],
            // All but the payload length.
            None => [
                [bytes[IP], bytes[IP + 1]],
                [bytes[IP + 2], bytes[IP + 3]],
                [bytes[IP + 6], bytes[IP + 7]],
            ],
        };
        let (tcp, new) = (first.tcp, frame.tcp);
        let flags = new.offset_flags.get() & !(control::FIN | control::PSH);
        first.bytes[..IP] == frame.bytes[..IP]
            && ip(first.bytes) == ip(frame.bytes)
            && new.sequence.get() == self.next_sequence
            && new.acknowledgment == tcp.acknowledgment
            && flags == tcp.offset_flags.get()
            && new.window == tcp.window
            && new.urgent == tcp.urgent
            && first.bytes[self.l4 + TCP_MIN_LEN..]
                == frame.bytes[frame.l4 + TCP_MIN_LEN..frame.data]
    }

    /// Returns the number of frames in the run.
    pub fn frames(&self) -> u16 {
        self.frames
    }

    /// Returns true if the run accepts no more frames.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the headers of the large frame: those in front of the data of all frames, and the device
    /// header. The checksum is left to the kernel, which skips it for packets that it consumes itself.
    pub fn header(&self) -> (NetHeader, Header) {
        let mut head = self.head;
        let l4_len = self.head_len - self.l4 + self.data;
        let ip_len = self.head_len - IP + self.data;
        let is_ip4 = self.l4 == IP + IPV4_MIN_LEN;
        if is_ip4 {
            set_ip4_length(&mut head[IP..], ip_len as u16);
        } else if let Ok((header, _)) = Ipv6Header::mut_from_prefix(&mut head[IP..]) {
            header.payload_length.set((ip_len - IPV6_LEN) as u16);
        }
        let sum = pseudo_header(&head, self.l4, l4_len).folded();
        if let Ok((tcp, _)) = TcpHeader::mut_from_prefix(&mut head[self.l4..]) {
            tcp.offset_flags.set(tcp.offset_flags.get() | self.last_flags);
            tcp.checksum.set(sum);
        }
        let header = NetHeader {
            flags: NEEDS_CHECKSUM,
            segmentation: if is_ip4 { SEGMENT_TCP4 } else { SEGMENT_TCP6 },
            header_len: (self.head_len as u16).into(),
            segment_size: (self.size as u16).into(),
            checksum_start: (self.l4 as u16).into(),
            checksum_offset: (std::mem::offset_of!(TcpHeader, checksum) as u16).into(),
        };
        (header, Header { bytes: head, len: self.head_len })
    }
}

fn set_ip4_length(bytes: &mut [u8], length: u16) {
    let Ok((header, _)) = Ipv4Header::mut_from_prefix(bytes) else { return };
    header.total_length.set(length);
    header.checksum.set(0);
    let sum = checksum(header.as_bytes());
    header.checksum.set(sum);
}

/// The headers of a large frame, up to its data.
#[derive(Clone, Debug)]
pub struct Header {
    bytes: [u8; HEADER_MOST],
    len: usize,
}

impl AsRef<[u8]> for Header {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{ACK, CWR, ECE, FIN, PSH, RST, SYN, Sample, URG, samples};
    use super::super::segment::Segments;
    use super::*;
    use proptest::prelude::*;

    /// The large frame as a caller passes it to the kernel.
    fn whole(run: &Run, frames: &[Vec<u8>]) -> (NetHeader, Vec<u8>) {
        let (header, head) = run.header();
        let mut whole = head.as_ref().to_vec();
        for frame in &frames[..usize::from(run.frames())] {
            whole.extend(&frame[TcpFrame::parse(frame).unwrap().data()]);
        }
        (header, whole)
    }

    fn begin(sample: &Sample) -> Option<Run> {
        Run::begin(&TcpFrame::parse(&sample.wire())?)
    }

    /// Returns true if the second frame joins the first.
    fn joins(first: &Sample, second: &Sample) -> bool {
        let frame = second.wire();
        let mut run = begin(first).expect("a frame that others may join");
        TcpFrame::parse(&frame).is_some_and(|frame| run.join(&frame))
    }

    fn pair() -> [Sample; 2] {
        let data = (0..200).collect();
        Sample { data, ..Sample::default() }.cut(100).try_into().unwrap()
    }

    #[test]
    fn a_frame_that_follows_joins_and_an_end_ends() {
        for v6 in [false, true] {
            let flags = ACK | ECE | PSH | FIN;
            let sample = Sample { v6, flags, data: vec![3; 350], ..Sample::default() };
            let frames: Vec<_> = sample.cut(100).iter().map(Sample::wire).collect();
            let mut run = Run::begin(&TcpFrame::parse(&frames[0]).unwrap()).unwrap();
            for frame in &frames[1..] {
                assert!(!run.has_ended() && run.join(&TcpFrame::parse(frame).unwrap()));
            }
            assert!(run.has_ended() && run.frames() == 4);
            assert_eq!(whole(&run, &frames).1, sample.partial());
            assert!(!run.join(&TcpFrame::parse(&after(&sample, 4).wire()).unwrap()));
        }
        // A shorter segment ends the run as well.
        let sample = Sample { flags: ACK, data: vec![3; 150], ..Sample::default() };
        let [first, short] = [0, 1].map(|n| sample.cut(100)[n].wire());
        let mut run = Run::begin(&TcpFrame::parse(&first).unwrap()).unwrap();
        assert!(run.join(&TcpFrame::parse(&short).unwrap()) && run.has_ended());
        assert!(!run.join(&TcpFrame::parse(&after(&sample, 2).wire()).unwrap()));
    }

    /// The sample that follows in every respect.
    fn after(sample: &Sample, frames: u16) -> Sample {
        Sample {
            sequence: sample.sequence + sample.data.len() as u32,
            identification: sample.identification + frames,
            flags: sample.flags & !(FIN | PSH),
            data: vec![5; 20],
            ..sample.clone()
        }
    }

    #[test]
    fn only_what_follows_joins() {
        let [first, second] = pair();
        assert!(joins(&first, &second));
        type Change = fn(&mut Sample);
        let changes: [(&str, Change); 16] = [
            ("a gap", |s| s.sequence += 1),
            ("old data", |s| s.sequence -= 100),
            ("another acknowledgment", |s| s.acknowledgment += 1),
            ("another window", |s| s.window += 1),
            ("other options", |s| s.options[11] += 1),
            ("fewer options", |s| s.options.truncate(8)),
            ("no data", |s| s.data.clear()),
            ("more data", |s| s.data.push(0)),
            ("another class", |s| s.class = 3),
            ("another TTL", |s| s.ttl = 63),
            ("without DF", |s| s.fragment = 0),
            ("an identification with a gap", |s| s.identification += 1),
            ("another port", |s| s.ports[0] += 1),
            ("another host", |s| s.hosts[0] += 1),
            ("another VLAN", |s| s.tags = vec![0x81, 0, 0, 1]),
            ("another family", |s| s.v6 = true),
        ];
        for (name, change) in changes {
            let mut other = second.clone();
            change(&mut other);
            assert!(!joins(&first, &other), "{name}");
        }
        for flags in [SYN, RST, URG, ECE, CWR, 0x100, 0x200] {
            let other = Sample { flags: ACK | flags, ..second.clone() };
            assert!(!joins(&first, &other), "{flags:#x}");
        }
        for flags in [PSH, FIN] {
            assert!(joins(&first, &Sample { flags: ACK | flags, ..second.clone() }));
        }
    }

    #[test]
    fn only_plain_data_begin() {
        for flags in [0, ACK | SYN, ACK | RST, ACK | URG, ACK | CWR, ACK | PSH, ACK | FIN, 0x110] {
            assert!(begin(&Sample { flags, ..Sample::default() }).is_none(), "{flags:#x}");
        }
        assert!(begin(&Sample { data: Vec::new(), ..Sample::default() }).is_none());
        assert!(begin(&Sample { flags: ACK | ECE, ..Sample::default() }).is_some());
        for fragment in [0x2000, 0x0001, 0x8000] {
            assert!(begin(&Sample { fragment, ..Sample::default() }).is_none());
        }
        assert!(begin(&Sample { udp: true, ..Sample::default() }).is_none());
        let mut padded = Sample { data: vec![1], options: Vec::new(), ..Sample::default() }.wire();
        assert!(TcpFrame::parse(&padded).is_some());
        padded.resize(60, 0);
        assert!(TcpFrame::parse(&padded).is_none());
    }

    #[test]
    fn without_df_identifications_grow_and_with_it_they_may_stay() {
        let [mut first, mut second] = pair();
        second.identification = first.identification;
        assert!(joins(&first, &second));
        (first.fragment, second.fragment) = (0, 0);
        assert!(!joins(&first, &second));
        // Not first one rule and then the other.
        let sample = Sample { data: vec![0; 300], ..Sample::default() };
        for ids in [[7, 8, 7], [7, 7, 8], [7, 7, 9]] {
            let mut frames = sample.cut(100);
            frames.iter_mut().zip(ids).for_each(|(frame, id)| frame.identification = id);
            let frames: Vec<_> = frames.iter().map(Sample::wire).collect();
            let [a, b, c] = [0, 1, 2].map(|n| TcpFrame::parse(&frames[n]).unwrap());
            let mut run = Run::begin(&a).unwrap();
            assert!(run.join(&b) && !run.join(&c), "{ids:?}");
        }
    }

    #[test]
    fn every_bit_is_guarded() {
        let [first, second] = pair();
        let frame = second.wire();
        let mut run = begin(&first).unwrap();
        for bit in 0..frame.len() * 8 {
            let mut wrong = frame.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let joined = TcpFrame::parse(&wrong).is_some_and(|frame| run.join(&frame));
            assert!(!joined, "bit {bit}");
        }
        let mut first = first.wire();
        *first.last_mut().unwrap() ^= 1;
        assert!(Run::begin(&TcpFrame::parse(&first).unwrap()).is_none());
    }

    #[test]
    fn no_run_is_longer_than_an_ip_packet() {
        for v6 in [false, true] {
            let sample = Sample { v6, data: vec![0; 70_000], ..Sample::default() };
            let frames: Vec<_> = sample.cut(1448).iter().map(Sample::wire).collect();
            let mut run = Run::begin(&TcpFrame::parse(&frames[0]).unwrap()).unwrap();
            let joined = |frame: &&Vec<u8>| run.join(&TcpFrame::parse(frame).unwrap());
            assert_eq!(1 + frames[1..].iter().take_while(joined).count(), 45);
            let (header, whole) = whole(&run, &frames);
            assert!(whole.len() - 14 <= 65_535);
            let again: usize = Segments::new(&header, &whole).unwrap().count();
            assert_eq!(again, 45);
        }
    }

    proptest! {
        #[test]
        fn segments_of_what_was_coalesced_are_what_came(sample in samples(), size in 1..1500usize) {
            let frames: Vec<_> = sample.cut(size).iter().map(Sample::wire).collect();
            let Some(mut run) = Run::begin(&TcpFrame::parse(&frames[0]).unwrap()) else {
                // One frame that ends the run itself.
                prop_assert!(frames.len() == 1);
                return Ok(());
            };
            for frame in &frames[1..] {
                prop_assert!(run.join(&TcpFrame::parse(frame).unwrap()));
            }
            let (header, whole) = whole(&run, &frames);
            prop_assert_eq!(&whole, &sample.partial());
            let segments = Segments::new(&header, &whole).unwrap().map(|piece| {
                let mut packet = piece.parts(&whole).concat();
                piece.finish(&mut packet);
                packet
            });
            prop_assert_eq!(segments.collect::<Vec<_>>(), frames);
        }

        #[test]
        fn any_bytes_are_read(
            mut frame in prop::collection::vec(any::<u8>(), 0..120),
            ethertype in prop::sample::select(vec![[0x08, 0x00], [0x86, 0xdd]]),
        ) {
            if frame.len() > 14 {
                frame[12..14].copy_from_slice(&ethertype);
                frame[14] = if ethertype[0] == 8 { 0x45 } else { 0x60 };
            }
            if let Some(read) = TcpFrame::parse(&frame) {
                prop_assert!(read.data().end == frame.len());
                Run::begin(&read);
            }
        }
    }
}

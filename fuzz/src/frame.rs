//! Frames as the fuzzer describes them: mostly right, with what it chooses wrong.
//!
//! Random bytes seldom pass the first check of a router. So a frame is described field by field,
//! its lengths and checksums are made right unless the fuzzer says otherwise, and single bytes are
//! changed at the end; wholly random frames are among them too.

use arbitrary::Arbitrary;

use crate::check::ones_sum;
use crate::world::{PORTS, port_mac};

/// Who is asked and asks: the router's addresses, hosts on its networks, routes of every kind, and
/// what must not be there.
const ADDRESSES4: [[u8; 4]; 28] = [
    [10, 0, 1, 1],
    [10, 0, 1, 2],
    [10, 0, 1, 7],
    [10, 0, 1, 0],
    [10, 0, 1, 255],
    [10, 0, 2, 2],
    [10, 0, 2, 9],
    [10, 0, 3, 2],
    [10, 0, 4, 2],
    [10, 0, 4, 99],
    [10, 0, 5, 2],
    [10, 0, 5, 3],
    [192, 0, 2, 9],
    [198, 51, 100, 1],
    [203, 0, 113, 5],
    [100, 64, 1, 1],
    [100, 64, 2, 1],
    [100, 64, 3, 1],
    [8, 8, 8, 8],
    [224, 0, 0, 1],
    [224, 0, 0, 5],
    [239, 1, 2, 3],
    [255, 255, 255, 255],
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [127, 0, 0, 1],
    [240, 0, 0, 1],
    [169, 254, 1, 1],
];

/// The same for IPv6.
const ADDRESSES6: [[u16; 8]; 24] = [
    [0xfd00, 1, 0, 0, 0, 0, 0, 1],
    [0xfd00, 1, 0, 0, 0, 0, 0, 2],
    [0xfd00, 1, 0, 0, 0, 0, 0, 7],
    [0xfd00, 1, 0, 0, 0, 0, 0, 0],
    [0xfd00, 2, 0, 0, 0, 0, 0, 2],
    [0xfd00, 3, 0, 0, 0, 0, 0, 2],
    [0xfd00, 4, 0, 0, 0, 0, 0, 2],
    [0xfd00, 4, 0, 0, 0, 0, 0, 9],
    [0xfd00, 5, 0, 0, 0, 0, 0, 2],
    [0x2001, 0xdb8, 1, 0, 0, 0, 0, 9],
    [0x2001, 0xdb8, 2, 0, 0, 0, 0, 9],
    [0x2001, 0xdb8, 3, 0, 0, 0, 0, 9],
    [0x2001, 0xdb8, 4, 0, 0, 0, 0, 9],
    [0x2001, 0xdb8, 5, 0, 0, 0, 0, 9],
    [0x2001, 0xdb8, 6, 0, 0, 0, 0, 9],
    [0x2001, 0xdb9, 0, 0, 0, 0, 0, 9],
    [0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 1],
    [0, 0, 0, 0, 0, 0xffff, 0x0a00, 0x0102],
    [0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1],
    [0xfe80, 0, 0, 0, 0, 0, 0, 0xa],
    [0xff02, 0, 0, 0, 0, 0, 0, 1],
    [0xff02, 0, 0, 0, 0, 1, 0xff00, 1],
    [0xff0e, 0, 0, 0, 0, 0, 0, 0x101],
];

/// What a frame is to be.
#[derive(Arbitrary, Clone, Debug)]
pub struct Frame {
    port: u8,
    to: To,
    body: Body,
    /// Bytes behind the packet.
    padding: u8,
    /// Bytes to be changed, by their place.
    edits: Vec<(u8, u8)>,
    cut: Option<u8>,
    /// Lengths and checksums are made right after the changes.
    repair: bool,
    /// VLAN tags on the wire, outer first.
    tags: Vec<Tag>,
}

#[derive(Arbitrary, Clone, Debug)]
struct Tag {
    is_service: bool,
    vlan: u8,
    priority: u8,
}

impl Tag {
    /// Its four bytes: an identifier from 1 to 8, as those of the VLANs.
    fn bytes(&self) -> [u8; 4] {
        let kind: [u8; 2] = if self.is_service { [0x88, 0xa8] } else { [0x81, 0] };
        [kind[0], kind[1], self.priority << 5, 1 + self.vlan % 8]
    }
}

#[derive(Arbitrary, Clone, Debug)]
enum To {
    Port,
    Broadcast,
    Group,
    Other,
}

#[derive(Arbitrary, Clone, Debug)]
enum Body {
    Ip4 {
        source: u8,
        destination: u8,
        ttl: Ttl,
        fragment: Option<u16>,
        options: Vec<u8>,
        load: Load,
    },
    Ip6 {
        source: u8,
        destination: u8,
        ttl: Ttl,
        headers: Vec<Header>,
        load: Load,
    },
    Arp {
        operation: u8,
        sender: u8,
        target: u8,
    },
    Tagged {
        ethertype: u16,
        data: Vec<u8>,
    },
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Clone, Debug)]
enum Ttl {
    Usual,
    Most,
    Any(u8),
}

/// An extension header.
#[derive(Arbitrary, Clone, Debug)]
enum Header {
    HopByHop(Vec<u8>),
    Destination(Vec<u8>),
    Routing { kind: u8, left: u8, more: u8 },
    Fragment { offset: u16, identification: u8 },
    Other { kind: u8, data: Vec<u8> },
}

#[derive(Arbitrary, Clone, Debug)]
enum Load {
    Udp {
        length: u16,
    },
    Tcp,
    Echo {
        length: u16,
    },
    /// An ICMP or ICMPv6 message; the checksum is made right.
    Icmp {
        kind: u8,
        code: u8,
        data: Vec<u8>,
    },
    Neighbour {
        kind: u8,
        target: u8,
        options: Vec<u8>,
    },
    Other {
        protocol: u8,
        data: Vec<u8>,
    },
}

impl Frame {
    /// The number of the port that it comes by.
    pub fn port(&self) -> u16 {
        u16::from(self.port) % PORTS
    }

    /// Its bytes, at most 2,000.
    pub fn bytes(&self) -> Vec<u8> {
        let to = match self.to {
            To::Port => port_mac(self.port()),
            To::Broadcast => [0xff; 6],
            To::Group => self.group(),
            To::Other => [2, 9, 9, 9, 9, 9],
        };
        let mut frame = to.to_vec();
        frame.extend([2, 0, 0, 0, 1 + self.port() as u8, 2]);
        self.body(&mut frame);
        for &(place, value) in &self.edits {
            if let Some(byte) = frame.get_mut(usize::from(place)) {
                *byte = value;
            }
        }
        if self.repair {
            repair(&mut frame);
        }
        frame.extend(std::iter::repeat_n(0xee, usize::from(self.padding % 64)));
        frame.truncate(self.cut.map_or(2000, usize::from));
        frame
    }

    /// Its bytes with up to three VLAN tags.
    pub fn on_wire(&self) -> Vec<u8> {
        let mut frame = self.bytes();
        if frame.len() >= 14 {
            let tags: Vec<u8> = self.tags.iter().take(3).flat_map(Tag::bytes).collect();
            frame.splice(12..12, tags);
        }
        frame
    }

    /// The MAC of the group that it is addressed to, if it is to one.
    fn group(&self) -> [u8; 6] {
        match self.body {
            Body::Ip4 { destination, .. } => {
                let [_, b, c, d] = address4(destination);
                [1, 0, 0x5e, b & 0x7f, c, d]
            }
            Body::Ip6 { destination, .. } => {
                let [.., a, b, c, d] = address6(destination);
                [0x33, 0x33, a, b, c, d]
            }
            _ => [1, 0x80, 0xc2, 0, 0, 0x0e],
        }
    }

    fn body(&self, frame: &mut Vec<u8>) {
        match &self.body {
            Body::Ip4 { source, destination, ttl, fragment, options, load } => {
                let (protocol, data) = load.bytes(false);
                let fragment = fragment.unwrap_or(0);
                frame.extend([8, 0]);
                let mut options = options.clone();
                options.truncate(40);
                options.resize(options.len().next_multiple_of(4), 0);
                frame.extend([0x45 + (options.len() / 4) as u8, 0, 0, 0, 0x12, 0x34]);
                frame.extend(fragment.to_be_bytes());
                frame.extend([ttl.number(), protocol, 0, 0]);
                frame.extend(address4(*source));
                frame.extend(address4(*destination));
                frame.extend(options);
                frame.extend(data);
                repair(frame);
            }
            Body::Ip6 { source, destination, ttl, headers, load } => {
                let (protocol, data) = load.bytes(true);
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol, ttl.number()]);
                frame.extend(address6(*source));
                frame.extend(address6(*destination));
                let mut chain = 20;
                for header in headers.iter().take(6) {
                    let (kind, mut bytes) = header.bytes();
                    bytes[0] = frame[chain];
                    frame[chain] = kind;
                    chain = frame.len();
                    frame.extend(bytes);
                }
                frame.extend(data);
                repair(frame);
            }
            Body::Arp { operation, sender, target } => {
                frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, *operation]);
                frame.extend([2, 0, 0, 0, 1 + self.port() as u8, 2]);
                frame.extend(address4(*sender));
                frame.extend([0; 6]);
                frame.extend(address4(*target));
            }
            Body::Tagged { ethertype, data } => {
                frame.extend(ethertype.to_be_bytes());
                frame.extend(data);
            }
            Body::Raw(data) => *frame = data.clone(),
        }
    }
}

/// The addresses repeat, so that any number names one.
fn address4(index: u8) -> [u8; 4] {
    ADDRESSES4[usize::from(index) % ADDRESSES4.len()]
}

fn address6(index: u8) -> [u8; 16] {
    let words = ADDRESSES6[usize::from(index) % ADDRESSES6.len()].map(u16::to_be_bytes);
    std::array::from_fn(|place| words[place / 2][place % 2])
}

impl Ttl {
    fn number(&self) -> u8 {
        match self {
            Self::Usual => 64,
            Self::Most => 255,
            Self::Any(ttl) => *ttl,
        }
    }
}

impl Header {
    /// Its number, and its bytes; the first is for the number of what follows.
    fn bytes(&self) -> (u8, Vec<u8>) {
        // A header of whole eighths, its length in the second byte.
        let framed = |data: &[u8]| {
            let mut bytes = vec![0, 0];
            bytes.extend(&data[..data.len().min(60)]);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes[1] = (bytes.len() / 8 - 1) as u8;
            bytes
        };
        match self {
            Self::HopByHop(data) => (0, framed(data)),
            Self::Destination(data) => (60, framed(data)),
            Self::Routing { kind, left, more } => {
                let addresses = usize::from(more % 3) * 16;
                let mut data = vec![*kind, *left, 0, 0, 0, 0];
                data.resize(6 + addresses, 0x20);
                (43, framed(&data))
            }
            Self::Fragment { offset, identification } => {
                let [high, low] = offset.to_be_bytes();
                (44, vec![0, 0, high, low, 0, 0, 0, *identification % 4])
            }
            Self::Other { kind, data } => (*kind, framed(data)),
        }
    }
}

impl Load {
    /// The protocol's number and the bytes.
    fn bytes(&self, ipv6: bool) -> (u8, Vec<u8>) {
        let icmp = if ipv6 { 58 } else { 1 };
        match self {
            Self::Udp { length } => {
                let length = length % 1600 + 8;
                let mut data = [4000, 5000, length, 0].map(u16::to_be_bytes).concat();
                data.resize(usize::from(length), 0x55);
                (17, data)
            }
            Self::Tcp => {
                let mut data = vec![0; 20];
                data[12] = 0x50;
                (6, data)
            }
            Self::Echo { length } => {
                let mut data = vec![if ipv6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1];
                data.resize(8 + usize::from(length % 1500), 0x66);
                (icmp, data)
            }
            Self::Icmp { kind, code, data } => {
                (icmp, [&[*kind, *code, 0, 0], &data[..data.len().min(600)]].concat())
            }
            Self::Neighbour { kind, target, options } => {
                let mut data = vec![133 + kind % 5, 0, 0, 0, 0, 0, 0, 0];
                data.extend(address6(*target));
                data.extend(&options[..options.len().min(64)]);
                (icmp, data)
            }
            Self::Other { protocol, data } => (*protocol, data.clone()),
        }
    }
}

/// Makes the lengths and checksums of an IP packet right, as far as its own fields say where they
/// are.
fn repair(frame: &mut [u8]) {
    match frame.get(12..14) {
        Some([8, 0]) if frame.len() >= 34 => repair4(frame),
        Some([0x86, 0xdd]) if frame.len() >= 54 => repair6(frame),
        _ => {}
    }
}

fn repair4(frame: &mut [u8]) {
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    let header = usize::from(frame[14] & 0xf) * 4;
    let end = 14 + header;
    if header < 20 || end > frame.len() {
        return;
    }
    frame[24..26].fill(0);
    let sum = !ones_sum(&[&frame[14..end]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let whole = frame[20] & 0x3f == 0 && frame[21] == 0;
    if frame[23] == 1 && whole && frame.len() >= end + 8 {
        frame[end + 2..end + 4].fill(0);
        let sum = !ones_sum(&[&frame[end..]]);
        frame[end + 2..end + 4].copy_from_slice(&sum.to_be_bytes());
    }
}

fn repair6(frame: &mut [u8]) {
    let length = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    let (mut next, mut at) = (frame[20], 54);
    while matches!(next, 0 | 43 | 60) && at + 8 <= frame.len() {
        next = frame[at];
        at += 8 + usize::from(frame[at + 1]) * 8;
    }
    if next == 58 && at + 8 <= frame.len() {
        frame[at + 2..at + 4].fill(0);
        let length = ((frame.len() - at) as u32).to_be_bytes();
        let sum = !ones_sum(&[&frame[22..54], &length, &[0, 0, 0, 58], &frame[at..]]);
        frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
    }
}

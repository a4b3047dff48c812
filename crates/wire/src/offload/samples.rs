//! Frames for tests, built from their fields by the RFCs' drawings: the oracle for the frames that
//! the neighbouring modules make. It shares no code with them.

use proptest::prelude::*;

/// Control bits.
pub(super) const FIN: u16 = 0x01;
pub(super) const SYN: u16 = 0x02;
pub(super) const RST: u16 = 0x04;
pub(super) const PSH: u16 = 0x08;
pub(super) const ACK: u16 = 0x10;
pub(super) const URG: u16 = 0x20;
pub(super) const ECE: u16 = 0x40;
pub(super) const CWR: u16 = 0x80;

/// A TCP segment or UDP datagram in a frame, field by field.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub tags: Vec<u8>,
    pub v6: bool,
    pub udp: bool,
    pub class: u8,
    pub identification: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub hosts: [u8; 2],
    pub ports: [u16; 2],
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u16,
    pub window: u16,
    pub options: Vec<u8>,
    pub data: Vec<u8>,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            v6: false,
            udp: false,
            class: 0,
            identification: 7,
            fragment: 0x4000,
            ttl: 64,
            hosts: [1, 2],
            ports: [40_000, 179],
            sequence: 1000,
            acknowledgment: 5000,
            flags: ACK,
            window: 512,
            options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            data: vec![0x5a; 100],
        }
    }
}

/// The one's complement sum, word by word.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    bytes.chunks(2).map(word).fold(0, |sum, word| (sum + word) % 0xffff) as u16
}

impl Sample {
    pub(super) fn ip(&self) -> usize {
        14 + self.tags.len()
    }

    pub(super) fn l4(&self) -> usize {
        self.ip() + if self.v6 { 40 } else { 20 }
    }

    pub(super) fn header_len(&self) -> usize {
        self.l4() + if self.udp { 8 } else { 20 + self.options.len() }
    }

    /// Returns the position of the checksum.
    pub(super) fn field(&self) -> usize {
        self.l4() + if self.udp { 6 } else { 16 }
    }

    fn address(&self, host: u8) -> Vec<u8> {
        let mut address = if self.v6 { vec![0xfd; 16] } else { vec![10, 0, 1, 0] };
        *address.last_mut().unwrap() = host;
        address
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        if self.udp {
            bytes.extend((8 + self.data.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
        } else {
            bytes.extend(self.sequence.to_be_bytes());
            bytes.extend(self.acknowledgment.to_be_bytes());
            let words = (20 + self.options.len() as u16) / 4;
            bytes.extend((words << 12 | self.flags).to_be_bytes());
            bytes.extend(self.window.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend(&self.options);
        }
        bytes.extend(&self.data);
        bytes
    }

    /// The sum over the pseudo-header.
    pub(super) fn pseudo_header(&self) -> u16 {
        let length = self.transport().len() as u32;
        let mut bytes = [self.address(self.hosts[0]), self.address(self.hosts[1])].concat();
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0, 0, if self.udp { 17 } else { 6 }]);
        sum(&bytes)
    }

    fn network(&self, length: usize) -> Vec<u8> {
        let protocol = if self.udp { 17 } else { 6 };
        let [source, destination] = self.hosts.map(|host| self.address(host));
        if self.v6 {
            let first = 6 << 28 | u32::from(self.class) << 20 | 0x54321;
            let mut bytes = first.to_be_bytes().to_vec();
            bytes.extend((length as u16).to_be_bytes());
            bytes.extend([protocol, self.ttl]);
            return [bytes, source, destination].concat();
        }
        let mut bytes = vec![0x45, self.class];
        bytes.extend((20 + length as u16).to_be_bytes());
        bytes.extend(self.identification.to_be_bytes());
        bytes.extend(self.fragment.to_be_bytes());
        bytes.extend([self.ttl, protocol, 0, 0]);
        bytes.extend([source, destination].concat());
        // No header has the sum 0: a remainder of 0 is the sum 0xffff.
        let checksum = match !sum(&bytes) {
            0xffff => 0,
            checksum => checksum,
        };
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    fn frame(&self, checksum: u16) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend(&self.tags);
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let transport = self.transport();
        frame.extend(self.network(transport.len()));
        frame.extend(transport);
        let field = self.field();
        frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    /// The frame on the wire.
    pub(super) fn wire(&self) -> Vec<u8> {
        let all = u32::from(self.pseudo_header()) + u32::from(sum(&self.transport()));
        // A remainder of 0 is the sum 0xffff here, because no word of a pseudo-header is 0.
        let checksum = !((all % 0xffff) as u16);
        let named = if checksum == 0xffff && !self.udp { 0 } else { checksum };
        self.frame(named)
    }

    /// The frame as a kernel leaves its checksum to the device.
    pub(super) fn partial(&self) -> Vec<u8> {
        self.frame(self.pseudo_header())
    }

    /// The segments of this size, each built separately.
    pub(super) fn cut(&self, size: usize) -> Vec<Self> {
        let count = self.data.len().div_ceil(size).max(1);
        let mut chunks = self.data.chunks(size);
        let mut before = 0;
        let segment = |number: usize| {
            let data = chunks.next().unwrap_or_default().to_vec();
            let mut flags = self.flags;
            if number + 1 < count {
                flags &= !(FIN | PSH);
            }
            if number > 0 {
                flags &= !CWR;
            }
            let sequence = self.sequence.wrapping_add(before as u32);
            before += data.len();
            let identification = self.identification.wrapping_add(number as u16);
            Self { data, flags, sequence, identification, ..self.clone() }
        };
        (0..count).map(segment).collect()
    }
}

/// Any TCP segment that a kernel may send whole.
pub(super) fn samples() -> impl Strategy<Value = Sample> {
    let ip = (any::<bool>(), any::<u8>(), any::<u16>(), any::<bool>(), 1..=255u8);
    let tcp = (any::<u32>(), any::<u32>(), any::<u16>(), 0..=10usize, any::<u16>());
    let data = prop::collection::vec(any::<u8>(), 1..3000);
    (ip, tcp, data).prop_map(|(ip, tcp, data)| {
        let (v6, class, identification, dont_fragment, ttl) = ip;
        let (sequence, acknowledgment, window, words, flags) = tcp;
        Sample {
            v6,
            class,
            identification,
            fragment: if dont_fragment { 0x4000 } else { 0 },
            ttl,
            sequence,
            acknowledgment,
            window,
            flags: ACK | flags & (FIN | PSH | ECE),
            options: vec![1; words * 4],
            data,
            ..Sample::default()
        }
    })
}

//! Helpers for unit tests of steps: frames, batches on real packet buffers, tables.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::{Index, RangeInclusive};
use std::sync::{Arc, OnceLock};

use dpdk::{Eal, EalConfig, Mempool, MempoolConfig};
use fib::{Algorithm, NoReaders};
use wire::MacAddr;

use crate::batch::{BATCH_MAX, Batch};
use crate::class::LEAST_TTL;
use crate::features::Features;
use crate::flow::FlowHash;
use crate::graph::{MAX_OUTPUTS, Output, Step};
use crate::interface::{InterfaceId, InterfaceInfo, InterfaceInfos, Mtus, VrfId};
use crate::mask::Mask;
use crate::next_hop::{self, NextHop, NextHopTable};
use crate::port::PortId;
use crate::tables::{Fibs, Tables, VrfTables};

/// The MAC of the ingress port of test batches.
pub const PORT_MAC: [u8; 6] = port_mac(0);

/// The MAC of the test tables' `Forward` next hops.
pub const NEIGHBOUR_MAC: [u8; 6] = [2, 0, 0, 0, 1, 0xfe];

/// The MAC of a test port.
pub const fn port_mac(port: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, port]
}

/// DPDK can be started only once in a process: all tests share it, without hugepages.
pub fn dpdk() -> &'static (Eal, Mempool) {
    static DPDK: OnceLock<(Eal, Mempool)> = OnceLock::new();
    DPDK.get_or_init(|| {
        let config =
            EalConfig { huge: dpdk::HugeMode::Never, memory_mb: 64, ..EalConfig::default() };
        let eal = Eal::init(&config).expect("DPDK starts without hugepages");
        let config = MempoolConfig {
            name: "test".into(),
            count: 8191,
            cache: 0,
            data_room: 2048,
            node: None,
        };
        let pool = Mempool::new(&eal, &config).expect("64 MB hold 8191 packets");
        (eal, pool)
    })
}

/// A batch with these frames in slots 0, 1, …
pub fn batch_of(frames: &[Vec<u8>]) -> Batch {
    let info = InterfaceInfo {
        mac: MacAddr(PORT_MAC),
        mtu: 1500,
        vrf: VrfId::DEFAULT,
        partial_checksums: true,
        loses_tag_protocol: false,
        inserts_tags: false,
        host: false,
        features: Features::NONE,
    };
    let mut batch = Batch::new(PortId::FIRST, info);
    for frame in frames {
        let mbuf = dpdk().1.copy_of(frame).expect("the pool has room");
        assert!(batch.burst.put(mbuf).is_ok(), "at most {BATCH_MAX} frames");
    }
    batch
}

/// [`batch_of`] with the frames in buffers of so many bytes, as a device delivers frames longer than its
/// buffers.
pub fn batch_in_segments(frames: &[Vec<u8>], segment: usize) -> Batch {
    let mut batch = batch_of(&[]);
    for frame in frames {
        let copy = |bytes| dpdk().1.copy_of(bytes).expect("the pool has room");
        let mut parts = frame.chunks(segment).map(copy);
        let mut mbuf = parts.next().expect("a frame");
        parts.for_each(|part| mbuf.chain(part).expect("not too many segments"));
        assert!(batch.burst.put(mbuf).is_ok(), "at most {BATCH_MAX} frames");
    }
    batch
}

/// All bytes of a packet, in however many buffers.
pub fn whole_frame(batch: &mut Batch, slot: usize) -> Vec<u8> {
    let (frame, rest) = batch.frame_and_rest(slot);
    let mut whole = frame.to_vec();
    rest.for_each(|part| whole.extend(part));
    whole
}

/// The slots by output.
#[derive(Debug)]
pub struct Sorted(BTreeMap<String, Vec<usize>>);

impl Sorted {
    /// The outputs that packets took.
    pub fn taken(self) -> BTreeMap<String, Vec<usize>> {
        self.0.into_iter().filter(|(_, slots)| !slots.is_empty()).collect()
    }
}

impl Index<&str> for Sorted {
    type Output = Vec<usize>;

    fn index(&self, output: &str) -> &Vec<usize> {
        self.0.get(output).unwrap_or_else(|| panic!("no output {output}; known: {:?}", self.0))
    }
}

/// A frame with a VLAN tag of this Ethertype and control information in front of its Ethertype.
pub fn tagged(frame: &[u8], ethertype: u16, control: u16) -> Vec<u8> {
    let tag = [ethertype.to_be_bytes(), control.to_be_bytes()].concat();
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// Runs a step over a batch of these frames; every frame must take exactly one output.
pub fn run_step(step: &mut dyn Step, frames: &[Vec<u8>]) -> (Sorted, Batch) {
    run_step_on(step, frames, |_| ())
}

/// Like [`run_step`], on a batch that `prepare` changed first.
pub fn run_step_on(
    step: &mut dyn Step,
    frames: &[Vec<u8>],
    prepare: impl FnOnce(&mut Batch),
) -> (Sorted, Batch) {
    let mut batch = batch_of(frames);
    prepare(&mut batch);
    (run_on(step, &mut batch), batch)
}

/// Runs a step over a batch.
pub fn run_on(step: &mut dyn Step, batch: &mut Batch) -> Sorted {
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    let input = batch.packets();
    step.process(batch, input, &mut out);
    let mut seen = Mask::EMPTY;
    for mask in out {
        assert!((seen & mask).is_empty(), "slots {:?} took two outputs", seen & mask);
        seen |= mask;
    }
    assert_eq!(seen, input, "every packet takes an output");
    let named =
        |(output, mask): (&Output, &Mask)| (output.name().to_owned(), mask.slots().collect());
    Sorted(step.outputs().iter().zip(&out).map(named).collect())
}

/// Builds frames for tests: a chain of settings, then [`FrameBuilder::build`].
#[derive(Clone, Debug)]
pub struct FrameBuilder {
    to: [u8; 6],
    from: [u8; 6],
    ethertype: u16,
    source: Vec<u8>,
    destination: Vec<u8>,
    tos: u8,
    ttl: u8,
    protocol: u8,
    options: Vec<u8>,
    payload: Vec<u8>,
}

#[allow(missing_docs, reason = "the names of header fields")]
impl FrameBuilder {
    pub fn ethernet(to: [u8; 6], ethertype: u16) -> Self {
        Self {
            to,
            from: [2, 0, 0, 0, 2, 1],
            ethertype,
            source: Vec::new(),
            destination: Vec::new(),
            tos: 0,
            ttl: 64,
            protocol: 17,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    pub fn ip4() -> Self {
        let mut frame = Self::ethernet(PORT_MAC, 0x0800);
        frame.source = vec![192, 0, 2, 1];
        frame.destination = vec![198, 51, 100, 1];
        frame
    }

    pub fn ip6() -> Self {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets().to_vec();
        let mut frame = Self::ethernet(PORT_MAC, 0x86dd);
        frame.source = address("2001:db8::1");
        frame.destination = address("2001:db8:ffff::1");
        frame
    }

    pub fn destination_mac(mut self, mac: [u8; 6]) -> Self {
        self.to = mac;
        self
    }

    pub fn source_mac(mut self, mac: [u8; 6]) -> Self {
        self.from = mac;
        self
    }

    pub fn destination4(mut self, address: &str) -> Self {
        self.destination = address.parse::<Ipv4Addr>().unwrap().octets().to_vec();
        self
    }

    pub fn destination6(mut self, address: &str) -> Self {
        self.destination = address.parse::<Ipv6Addr>().unwrap().octets().to_vec();
        self
    }

    pub fn source4(mut self, address: &str) -> Self {
        self.source = address.parse::<Ipv4Addr>().unwrap().octets().to_vec();
        self
    }

    pub fn source6(mut self, address: &str) -> Self {
        self.source = address.parse::<Ipv6Addr>().unwrap().octets().to_vec();
        self
    }

    pub fn protocol(mut self, protocol: u8) -> Self {
        self.protocol = protocol;
        self
    }

    /// The second byte of an IPv4 header: DSCP and ECN.
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// A UDP datagram with the right checksum.
    pub fn udp(mut self, source: u16, destination: u16, data: &[u8]) -> Self {
        let len = (data.len() + 8) as u16;
        let mut segment: Vec<u8> = [source, destination, len, 0].map(u16::to_be_bytes).concat();
        segment.extend(data);
        let pseudo = [&self.source[..], &self.destination, &[0, 17], &len.to_be_bytes(), &segment];
        let checksum = !ones_sum(&pseudo.concat());
        segment[6..8].copy_from_slice(&checksum.to_be_bytes());
        self.payload = segment;
        self
    }

    pub fn build(self) -> Vec<u8> {
        let mut frame = [&self.to[..], &self.from, &self.ethertype.to_be_bytes()].concat();
        match self.ethertype {
            0x0800 => {
                let header = 20 + self.options.len();
                let total = (header + self.payload.len()) as u16;
                frame.extend([0x40 | (header / 4) as u8, self.tos]);
                frame.extend(total.to_be_bytes());
                frame.extend([0x12, 0x34, 0, 0, self.ttl, self.protocol, 0, 0]);
                frame.extend(&self.source);
                frame.extend(&self.destination);
                frame.extend(&self.options);
                Self::fix_ip4_checksum(&mut frame);
            }
            0x86dd => {
                frame.extend([0x60, 0, 0, 0]);
                frame.extend((self.payload.len() as u16).to_be_bytes());
                frame.extend([self.protocol, self.ttl]);
                frame.extend(&self.source);
                frame.extend(&self.destination);
            }
            _ => {}
        }
        frame.extend(&self.payload);
        frame
    }

    /// Sets the right checksum in the IPv4 header of a frame, by the IHL in it.
    pub fn fix_ip4_checksum(frame: &mut [u8]) {
        let end = (14 + usize::from(frame[14] & 0xf) * 4).clamp(34, frame.len());
        frame[24..26].fill(0);
        let checksum = !ones_sum(&frame[14..end]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// RFC 1071, the slow and obvious way: the sum, not its complement.
pub fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A rule for UDP to these ports.
pub fn udp_to(ports: RangeInclusive<u16>, action: acl::Action) -> acl::Rule {
    let matches =
        acl::Matches { protocol: vec![17], to_port: vec![ports], ..acl::Matches::default() };
    acl::Rule { name: None, line: 0, matches, action }
}

/// Tables for tests of steps.
#[derive(Debug)]
pub struct TestTables;

impl TestTables {
    /// Five ports with an MTU of 1500, the fifth of 1000. `10.0.N.0/24` and `2001:db8:N::/48` have
    /// the N-th kind of next hop: 1 local, 2 blackhole, 3 martian, 4 prohibited, 5 unreachable, 6
    /// forward by port 3 (number 16), 7 glean, 8 unresolved (number 18), 9 two paths by ports 3 and
    /// 4, 10 multicast. Anything else has no route. Port 0 accepts near peers' protocols from TTL
    /// 250 on.
    pub fn every_kind() -> Arc<Tables> {
        let next_hops = NextHopTable::new();
        let interface = |n| InterfaceId::new(n).unwrap();
        let mac = MacAddr(NEIGHBOUR_MAC);
        next_hops.set(16, NextHop::Forward { interface: interface(3), mac });
        next_hops.set(17, NextHop::Glean { interface: interface(3) });
        next_hops.set(18, NextHop::Unresolved { interface: interface(3) });
        next_hops.set(19, NextHop::Group { first: 0, len: 2 });
        next_hops.set(20, NextHop::Forward { interface: interface(4), mac });
        assert!(next_hops.set_members(0, &[16, 20]));
        let ids = [
            next_hop::LOCAL,
            next_hop::BLACKHOLE,
            next_hop::MARTIAN,
            next_hop::PROHIBITED,
            next_hop::UNREACHABLE,
            16,
            17,
            18,
            19,
            next_hop::MULTICAST,
        ];
        let info = |n: u8| InterfaceInfo {
            mac: MacAddr(port_mac(n)),
            mtu: if n == 4 { 1000 } else { 1500 },
            vrf: VrfId::DEFAULT,
            partial_checksums: true,
            loses_tag_protocol: false,
            inserts_tags: false,
            host: false,
            features: Features::NONE.with(LEAST_TTL, if n == 0 { 250 } else { 0 }),
        };
        let ports: Vec<_> = (0..5).map(info).collect();
        let mut fib4 = fib::new_ipv4(Algorithm::Reference, Box::new(NoReaders)).unwrap();
        let mut fib6 = fib::new_ipv6(Algorithm::Reference, Box::new(NoReaders)).unwrap();
        for (n, id) in (1..).zip(ids) {
            fib4.insert(format!("10.0.{n}.0/24").parse().unwrap(), id).unwrap();
            fib6.insert(format!("2001:db8:{n}::/48").parse().unwrap(), id).unwrap();
        }
        Arc::new(Tables {
            named_hops: Default::default(),
            mirrors: Default::default(),
            vrfs: Arc::new(VrfTables::new(Fibs { fib4: fib4.reader(), fib6: fib6.reader() })),
            next_hops: Arc::new(next_hops),
            filters: Arc::default(),
            multicast: Arc::default(),
            mtus: Arc::new(Mtus::new(&ports)),
            shared: Arc::default(),
            vlans: Arc::default(),
            interfaces: Arc::new(InterfaceInfos::new(ports)),
            flows: FlowHash::new(1),
            own: Arc::new(crate::own::OwnAddresses::new(false)),
        })
    }
}

//! Packet processing by a device, or by the queue in its place: a TAP device of DPDK's, which checks and
//! writes checksums, segments and scatters, and a capture file, which does none of it. Need root.

#[allow(dead_code, reason = "these scenarios forward nothing between veth pairs")]
mod veth;

use std::time::{Duration, Instant};

use dpdk::{
    Burst, Device, Driver, Eal, Errno, HugeMode, Layers, Mbuf, Mempool, MempoolConfig,
    MulticastFilter, Multicasts, Offload, PacketList, Port, PortConfig, Transport, data_room,
};
use veth::{End, Wire, eal, ip, namespace, open_as, pool};

const IP4: [u8; 2] = [0x08, 0x00];
const UDP: Layers =
    Layers { link: 14, network: 20, ip6: false, transport: Transport::Udp, header: 8 };
const TCP: Layers = Layers { transport: Transport::Tcp, header: 20, ..UDP };

/// RFC 1071, word by word: the sum, not its complement.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum over the pseudo-header of an IPv4 packet.
fn pseudo_header(packet: &[u8]) -> u16 {
    let length = (packet.len() as u16 - 20).to_be_bytes();
    sum(&[&packet[12..20], &[0, packet[9]], &length].concat())
}

/// Returns true if the checksums of an IPv4 frame are correct.
fn is_right(frame: &[u8]) -> bool {
    let packet = &frame[14..];
    let whole = [&pseudo_header(packet).to_be_bytes()[..], &packet[20..]].concat();
    sum(&packet[..20]) == 0xffff && sum(&whole) == 0xffff
}

/// Builds an IPv4 frame whose transport checksum is left to the device, as Linux leaves it.
fn partial(protocol: u8, transport: &[u8], checksum_at: usize, data: &[u8]) -> Vec<u8> {
    let total = (20 + transport.len() + data.len()) as u16;
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &IP4, &[0x45, 0]].concat();
    frame.extend(total.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1]);
    let header = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame.extend(transport);
    frame.extend(data);
    let pseudo = pseudo_header(&frame[14..]).to_be_bytes();
    frame[34 + checksum_at..36 + checksum_at].copy_from_slice(&pseudo);
    frame
}

fn udp(data: &[u8]) -> Vec<u8> {
    let length = (8 + data.len() as u16).to_be_bytes();
    partial(17, &[0, 7, 0, 9, length[0], length[1], 0, 0], 6, data)
}

fn tcp(data: &[u8]) -> Vec<u8> {
    let header = [0, 7, 0, 9, 0, 0, 1, 0, 0, 0, 0, 0, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0];
    partial(6, &header, 16, data)
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// Copies the frame to buffers of this many bytes.
fn in_pieces(pool: &Mempool, frame: &[u8], piece: usize) -> Mbuf {
    let mut pieces = frame.chunks(piece).map(|bytes| pool.copy_of(bytes).unwrap());
    let mut packet = pieces.next().unwrap();
    pieces.for_each(|piece| packet.chain(piece).unwrap());
    packet
}

fn config(device: &str, wishes: &[(Offload, bool)]) -> PortConfig {
    let offloads = wishes.iter().copied().collect();
    PortConfig { offloads, ..PortConfig::new("p", Device::parse(device).unwrap()) }
}

/// Sends packets, and returns the number refused, including those that are too long.
fn send(end: &mut End, packets: Vec<Mbuf>) -> usize {
    let mut list = PacketList::new();
    packets.into_iter().for_each(|packet| list.push(packet).unwrap());
    let (mut refused, patience) = (0, Instant::now() + Duration::from_secs(30));
    while !list.is_empty() {
        assert!(Instant::now() < patience, "the device takes no packet for 30 s");
        let sent = end.tx.send(&mut list, 64);
        refused += sent.refused + sent.too_long;
    }
    refused
}

/// Receives the next IPv4 frames of the test on a wire.
fn expect(wire: &Wire, count: usize) -> Vec<Vec<u8>> {
    let (mut frames, patience) = (Vec::new(), Instant::now() + Duration::from_secs(3));
    while frames.len() < count {
        match wire.receive() {
            Some(frame) => frames.push(frame),
            None => assert!(Instant::now() < patience, "{} of {count} frames", frames.len()),
        }
    }
    frames
}

/// Receives the test's frames by a port, as far as they arrive within three seconds.
fn receive(end: &mut End, burst: &mut Burst, count: usize) {
    let patience = Instant::now() + Duration::from_secs(3);
    let mut none = Burst::new();
    while burst.len() < count && Instant::now() < patience {
        end.rx.receive(&mut none, 1);
        if let Some(packet) = none.take(0)
            && packet.data()[12..14] == IP4
        {
            burst.put(packet).unwrap();
        }
    }
}

#[test]
fn checksums_are_written_by_the_device_or_by_the_queue() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&[]);
    let pool = pool(eal, 2048);
    for (number, device_writes) in [(0, true), (1, false)] {
        let device = format!("net_tap{number},iface=tpt{number}");
        let mut end =
            open_as(eal, &pool, &config(&device, &[(Offload::TxChecksum, device_writes)]));
        assert_eq!(end.port.offloads().on(Offload::TxChecksum), device_writes);
        let wire = Wire::on(&format!("tpt{number}"), IP4);
        let frames = [udp(&data(99)), udp(b""), tcp(&data(100)), tcp(&data(999))];
        let layers = [UDP, UDP, TCP, TCP];
        let packets = frames.iter().zip(layers).map(|(frame, layers)| {
            // The TAP's driver computes a wrong sum if a segment of odd length is not the last.
            let piece = if device_writes { 78 } else { 77 };
            let mut packet = in_pieces(&pool, frame, if layers == UDP { 4096 } else { piece });
            assert!(packet.request_checksum(layers) && !is_right(frame));
            packet
        });
        assert_eq!(send(&mut end, packets.collect()), 0);
        for (sent, received) in frames.iter().zip(expect(&wire, frames.len())) {
            let what = format!("{} bytes, the device writes: {device_writes}", sent.len());
            assert_eq!((is_right(&received), received.len()), (true, sent.len()), "{what}");
        }
    }
    assert_eq!(pool.leaked(), 0);
}

#[test]
fn a_device_cuts_what_it_is_asked_to_and_nobody_else_does() {
    let (eal, _turn) = eal(HugeMode::Never);
    if !dpdk::version().starts_with("DPDK 22.") {
        // Its driver of later releases accepts no packet to be segmented, so the offload is off by default.
        println!("not tried with {}", dpdk::version());
        return;
    }
    namespace(&[]);
    let pool = pool(eal, 2048);
    for (number, cuts) in [(2, true), (3, false)] {
        let device = format!("net_tap{number},iface=tpt{number}");
        let wishes = [(Offload::TxChecksum, true), (Offload::Segmentation, cuts)];
        let mut end = open_as(eal, &pool, &config(&device, &wishes));
        let wire = Wire::on(&format!("tpt{number}"), IP4);
        let payload = data(6000);
        let mut packet = in_pieces(&pool, &tcp(&payload), 2000);
        assert!(packet.request_segmentation(TCP, 1400));
        assert_eq!(send(&mut end, vec![packet]), usize::from(!cuts));
        if cuts {
            let segments = expect(&wire, 5);
            assert!(segments.iter().all(|segment| is_right(segment)));
            let bytes: Vec<u8> = segments.iter().flat_map(|s| s[54..].to_vec()).collect();
            assert!(bytes == payload, "{} bytes", bytes.len());
        }
    }
    assert_eq!(pool.leaked(), 0);
}

#[test]
fn a_device_says_which_header_checksums_are_right() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&[]);
    let pool = pool(eal, 2048);
    let wishes = [(Offload::RxChecksum, true)];
    let mut end = open_as(eal, &pool, &config("net_tap4,iface=tpt4", &wishes));
    let wire = Wire::on("tpt4", IP4);
    let mut broken = udp(b"broken");
    broken[24] ^= 1;
    wire.send(&udp(b"right"));
    wire.send(&broken);
    let mut none = Burst::new();
    let mut said = Vec::new();
    let patience = Instant::now() + Duration::from_secs(3);
    while said.len() < 2 && Instant::now() < patience {
        if end.rx.receive(&mut none, 1) > 0 && none.head(0)[12..14] == IP4 {
            said.push((none.checksum_good(), none.checksum_bad()));
        }
        none.free(1);
    }
    assert_eq!(said, [(1, 0), (0, 1)]);
}

#[test]
fn frames_longer_than_a_buffer_are_scattered_and_gathered() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpu"]);
    let small = pool(eal, 2048);
    let large =
        MempoolConfig { count: 4095, cache: 0, data_room: data_room(9000), ..Default::default() };
    let large = Mempool::new(eal, &large).unwrap();
    let scatter = [(Offload::Scatter, true)];
    let mut scattering = open_as(eal, &small, &config("net_tap5,iface=tpt5", &scatter));
    assert!(scattering.port.offloads().on(Offload::Scatter));
    // Frames longer than its driver is configured for.
    ip("link set tpt5 mtu 9000");
    ip("link set tpu1 mtu 9000");
    // Like a device that accepts only one buffer.
    let single = PortConfig {
        mtu: Some(9000),
        driver: Some(Driver::AfPacket),
        ..config("tpu0", &[(Offload::MultiSegment, false)])
    };
    let mut single = open_as(eal, &large, &single);
    assert!(!single.port.supports_multi_segment());
    let (tap, to) = (Wire::on("tpt5", IP4), Wire::on("tpu1", IP4));
    let frames = [udp(&data(8972)), udp(&data(10)), udp(&data(2048)), udp(&data(2006))];
    frames.iter().for_each(|frame| tap.send(frame));
    let mut burst = Burst::new();
    receive(&mut scattering, &mut burst, frames.len());
    assert_eq!(burst.multi_segment(), 0b101, "those that a buffer does not hold");
    let lens = frames.each_ref().map(|frame| frame.len() as u16);
    assert_eq!(burst.lens()[..4], lens);
    let mut list = PacketList::new();
    burst.move_to(u64::MAX, &mut list);
    assert_eq!(single.tx.send(&mut list, 64).packets, 4, "in one buffer each");
    assert!(expect(&to, 4) == frames);
    // A device that accepts several buffers gets them as they are; a packet that fits no buffer of a port
    // that accepts one is refused.
    let frame = udp(&data(1400));
    assert_eq!(send(&mut scattering, vec![in_pieces(&small, &frame, 300)]), 0);
    assert!(expect(&tap, 1) == [frame]);
    let larger = udp(&data(20_000));
    assert_eq!(send(&mut single, vec![in_pieces(&small, &larger, 2000)]), 1);
    drop((scattering, single));
    assert_eq!((small.leaked(), large.leaked()), (0, 0));
}

#[test]
fn what_a_device_lacks_is_an_error_before_it_starts() {
    let (eal, _turn) = eal(HugeMode::Never);
    let pool = pool(eal, 2048);
    let problem = |eal: &Eal, config: &PortConfig| {
        Port::open(eal, config, &pool).map(drop).unwrap_err().to_string()
    };
    let wish = config("net_null7", &[(Offload::RxChecksum, true)]);
    assert_eq!(
        problem(eal, &wish),
        "port \"p\": offload rx_checksum = true: device net_null7 (net_null) lacks it; leave it out, or \
         write rx_checksum = false"
    );
    let wish = PortConfig {
        mtu: Some(9000),
        ..config("net_tap7,iface=tpt7", &[(Offload::Scatter, false)])
    };
    namespace(&[]);
    assert_eq!(
        problem(eal, &wish),
        "port \"p\": MTU 9000 needs packet buffers of 9022 bytes; they have 2048"
    );
    assert_eq!(pool.leaked(), 0);
    // The device is available again.
    let again = config("net_null7", &[(Offload::RxChecksum, false)]);
    assert!(!open_as(eal, &pool, &again).port.offloads().on(Offload::RxChecksum));
}

#[test]
fn a_device_takes_a_list_of_groups_or_passes_on_all() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpm"]);
    let pool = pool(eal, 2048);
    let groups = Multicasts::Groups([[0x01, 0, 0x5e, 0, 0, 5], [0x33, 0x33, 0, 0, 0, 1]].into());
    let Multicasts::Groups(list) = groups.clone() else { unreachable!() };
    let kernel = PortConfig { driver: Some(Driver::AfPacket), ..config("tpm0", &[]) };
    for config in [config("net_tap8,iface=tpt8", &[]), kernel] {
        let end = open_as(eal, &pool, &config);
        assert_eq!(end.port.multicast_filter(), MulticastFilter::All, "until somebody says which");
        let expected = MulticastFilter::Groups(list.clone());
        assert_eq!(end.port.set_multicasts(&groups), Ok(expected.clone()), "{}", config.device);
        assert_eq!(end.port.multicast_filter(), expected);
        assert_eq!(end.port.set_multicasts(&Multicasts::All), Ok(MulticastFilter::All));
    }
    let end = open_as(eal, &pool, &config("net_null8", &[]));
    let refused = MulticastFilter::Refused(2, Errno::ENOTSUP);
    assert_eq!(end.port.set_multicasts(&groups), Ok(refused.clone()), "its driver has no list");
    assert_eq!(end.port.multicast_filter(), refused);
}

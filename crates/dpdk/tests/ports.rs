//! Ports made from DPDK's virtual devices: packets received, sent, refused and returned.

use std::path::PathBuf;
use std::sync::OnceLock;

use dpdk::{
    Burst, Consumer, Device, Driver, Eal, EalConfig, Error, HugeMode, Link, Mbuf, Mempool,
    MempoolConfig, PacketList, Port, PortConfig, Producer, RssConfig, RssTable, RxQueue,
    SOURCE_HEAD, SourcePacket, SourcePackets, ThreadRegistration, Thresholds, TxQueue, qsbr,
};
use static_assertions::{assert_impl_all, assert_not_impl_any};

// Types for one thread at a time: they can be sent to another thread, but not shared with it.
assert_impl_all!(Mbuf: Send);
assert_impl_all!(Burst: Send);
assert_impl_all!(PacketList: Send);
assert_impl_all!(RxQueue: Send);
assert_impl_all!(TxQueue: Send);
assert_impl_all!(Producer: Send);
assert_impl_all!(Consumer: Send);
assert_impl_all!(qsbr::Reader: Send);
assert_not_impl_any!(Mbuf: Sync, Clone);
assert_not_impl_any!(Burst: Sync, Clone);
assert_not_impl_any!(PacketList: Sync, Clone);
assert_not_impl_any!(RxQueue: Sync, Clone);
assert_not_impl_any!(TxQueue: Sync, Clone);
assert_not_impl_any!(Producer: Sync, Clone);
assert_not_impl_any!(Consumer: Sync, Clone);
assert_not_impl_any!(qsbr::Reader: Sync, Clone);
// Types bound to their thread, and types that may be shared.
assert_not_impl_any!(ThreadRegistration: Send, Sync);
assert_impl_all!(Mempool: Send, Sync, Clone);
assert_impl_all!(Port: Send, Sync, Clone);
assert_impl_all!(qsbr::Qsbr: Send, Sync);

fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    let config = EalConfig { memory_mb: 256, huge: HugeMode::Never, ..EalConfig::default() };
    EAL.get_or_init(|| Eal::init(&config).unwrap())
}

fn pool(count: usize) -> Mempool {
    let config = MempoolConfig { count, cache: 0, ..MempoolConfig::default() };
    Mempool::new(eal(), &config).unwrap()
}

fn config(device: &str) -> PortConfig {
    PortConfig::new("p", Device::parse(device).unwrap())
}

fn open(device: &str, pool: &Mempool) -> (Port, RxQueue, TxQueue) {
    let (port, mut rx, mut tx) = Port::open(eal(), &config(device), pool).unwrap();
    (port, rx.remove(0), tx.remove(0))
}

fn problem(config: &PortConfig, pool: &Mempool) -> String {
    Port::open(eal(), config, pool).map(drop).unwrap_err().to_string()
}

/// A capture file with these frames (libpcap's format, little-endian, Ethernet).
fn pcap(name: &str, frames: &[Vec<u8>]) -> PathBuf {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(frame);
    }
    let path = std::env::temp_dir().join(format!("dpdk-ports-{name}-{}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The frames of a capture file.
fn frames(path: &PathBuf) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let (mut rest, mut frames) = (&bytes[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

#[test]
fn frames_go_through_unchanged_and_in_order() {
    let sent: Vec<Vec<u8>> = (0..200).map(|n| vec![n as u8; 14 + 7 * n]).collect();
    let (input, output) = (pcap("in", &sent), pcap("out", &[]));
    let pool = pool(1023);
    let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", input.display(), output.display());
    let (port, mut rx, mut tx) = open(&device, &pool);
    assert_eq!(port.driver(), "net_pcap");
    let (mut burst, mut list, mut total) = (Burst::new(), PacketList::new(), 0);
    loop {
        let count = rx.receive(&mut burst, 40);
        if count == 0 {
            break;
        }
        assert_eq!(rx.receive(&mut burst, 40), 0, "the burst is not empty");
        for slot in 0..count {
            assert_eq!(burst.frame(slot), sent[total + slot]);
            assert_eq!(burst.lens()[slot] as usize, sent[total + slot].len());
        }
        total += count;
        assert_eq!(burst.move_to(u64::MAX, &mut list), 0);
        let bytes = list.bytes();
        let outcome = tx.send(&mut list, 64);
        assert_eq!((outcome.packets, outcome.bytes, outcome.refused), (count, bytes, 0));
    }
    assert_eq!(total, 200);
    let stats = port.stats();
    assert_eq!((stats.ipackets, stats.opackets), (200, 200));
    assert_eq!(stats.obytes, sent.iter().map(|frame| frame.len() as u64).sum());
    drop((port, rx, tx));
    assert_eq!(pool.leaked(), 0);
    assert_eq!(frames(&output), sent);
    for path in [input, output] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn frames_in_several_segments_are_marked() {
    let sent = vec![vec![1; 100], vec![2; 5000], vec![3; 100]];
    let input = pcap("long", &sent);
    let pool = pool(63);
    let (_port, mut rx, _tx) = open(&format!("net_pcap1,rx_pcap={}", input.display()), &pool);
    let mut burst = Burst::new();
    let mut received = 0;
    while received < 3 {
        received += rx.receive(&mut burst, 64);
        let long = burst.multi_segment();
        if let Some(packet) = burst.take(long.trailing_zeros() as usize & 63).filter(|_| long != 0)
        {
            assert_eq!((packet.len(), packet.segments()), (5000, 3));
            assert!(packet.chunks().flatten().all(|&byte| byte == 2));
            received = 3;
        }
        burst.free(u64::MAX);
    }
    std::fs::remove_file(input).unwrap();
}

#[test]
fn what_a_device_does_not_take_stays_in_order() {
    let pool = pool(2047);
    let (_port, mut rx, mut tx) = open("net_ring0", &pool);
    // The ring device holds 1,023 packets and returns them on its receive side.
    let (mut list, mut next, mut sent) = (PacketList::new(), 0, 0);
    loop {
        while list.room() > 0 {
            let mut packet = pool.copy_of(&[0; 60]).unwrap();
            packet.set_tag(next);
            list.push(packet).unwrap();
            next += 1;
        }
        let outcome = tx.send(&mut list, 200);
        assert_eq!(outcome.bytes, 60 * outcome.packets as u64);
        sent += outcome.packets as u64;
        if outcome.packets < 200 {
            break;
        }
    }
    assert_eq!(sent, 1023);
    assert_eq!(tx.send(&mut list, usize::MAX).packets, 0);
    for tag in sent..next {
        assert_eq!(list.pop().unwrap().tag(), tag);
    }
    let (mut burst, mut tag) = (Burst::new(), 0);
    while rx.receive(&mut burst, 64) > 0 {
        for slot in 0..burst.len() {
            assert_eq!(burst.tag(slot), tag);
            tag += 1;
        }
        burst.free(u64::MAX);
    }
    assert_eq!((tag, pool.in_use()), (sent, 0));
}

#[test]
fn a_port_closes_with_its_last_queue() {
    let pool = pool(1023);
    let (port, mut rx, mut tx) = open("net_null0,size=60", &pool);
    assert!(port.link().up);
    drop(port);
    let mut burst = Burst::new();
    assert_eq!(rx.receive(&mut burst, 64), 64, "the queue keeps the port started");
    let mut list = PacketList::new();
    burst.move_to(u64::MAX, &mut list);
    assert_eq!(tx.send(&mut list, 64).packets, 64);
    drop(rx);
    let error = problem(&config("net_null0,size=60"), &pool);
    assert_eq!(error, "port \"p\": device net_null0 is in use by another port");
    drop(tx);
    let (port, ..) = open("net_null0,size=60", &pool);
    assert_eq!(port.driver(), "net_null");
    assert_eq!(pool.leaked(), 0);
}

#[test]
fn a_device_without_that_many_queues_says_how_many() {
    let pool = pool(1023);
    let wish = PortConfig { rx_queues: 4, tx_queues: 3, ..config("net_null1") };
    let (port, rx, tx) = Port::open(eal(), &wish, &pool).unwrap();
    let counts = (port.rx_queues(), port.tx_queues(), rx.len(), tx.len());
    assert_eq!(counts, (4, 3, 4, 3));
    assert_eq!((rx[3].index(), tx[2].index()), (3, 2));
    let wish = PortConfig { rx_queues: 4, tx_queues: 3, ..config("net_ring1") };
    let (port, rx, tx) = Port::open(eal(), &wish, &pool).unwrap();
    let (devices_rx, devices_tx) = (port.rx_queues(), port.tx_queues());
    assert_eq!((rx.len(), tx.len()), (devices_rx.into(), devices_tx.into()));
    assert!(devices_rx <= 4 && devices_tx <= 3);
}

#[test]
fn explicit_queues_and_sizes_are_taken_or_refused_with_the_way_out() {
    let pool = pool(1023);
    let wish = PortConfig { rx_desc: Some(512), tx_desc: Some(64), ..config("net_null4") };
    let (port, ..) = Port::open(eal(), &wish, &pool).unwrap();
    assert_eq!(port.descriptors(), (512, 64));
    assert!((1..=64).contains(&port.rx_burst()));
    let most = 2000;
    let wish = PortConfig { rx_queues: most, exact_rx_queues: true, ..config("net_null5") };
    let refused = problem(&wish, &pool);
    assert!(
        refused.starts_with("port \"p\": device net_null5: rx_queues 2000: it has "),
        "{refused}"
    );
    assert!(refused.ends_with(" at most; lower rx_queues, or leave it out"), "{refused}");
    let thresholds = Thresholds { free: Some(8), ..Thresholds::default() };
    let wish = PortConfig { rx_thresholds: thresholds, ..config("net_null5") };
    assert!(Port::open(eal(), &wish, &pool).is_ok(), "the name is free again");
}

fn rss(ports: bool, symmetric: bool, table: RssTable) -> Option<RssConfig> {
    Some(RssConfig { ports, symmetric, key: None, table })
}

#[test]
fn hash_and_table_are_written_read_and_changed() {
    let pool = pool(1023);
    let skip = rss(true, true, RssTable::Skip(vec![0]));
    let wish = PortConfig { rx_queues: 4, rss: skip, ..config("net_null6") };
    let (port, ..) = Port::open(eal(), &wish, &pool).unwrap();
    let has = port.rss().unwrap();
    assert_eq!(has.table, [1, 2, 3].into_iter().cycle().take(128).collect::<Vec<u16>>());
    assert_eq!(has.key, Some([0x6d, 0x5a].repeat(20)));
    assert!(has.fields.contains(&"ipv4-tcp") && has.fields.contains(&"ipv6-udp"), "{has:?}");
    let other = RssConfig {
        ports: false,
        symmetric: false,
        key: Some((0..40).collect()),
        table: RssTable::Pattern(vec![0, 0, 3]),
    };
    let wish = PortConfig { rss: Some(other), ..wish };
    port.set_rss(&wish).unwrap();
    let has = port.rss().unwrap();
    assert_eq!(has.table[..7], [0, 0, 3, 0, 0, 3, 0]);
    assert_eq!((has.key, has.fields.contains(&"ipv4-tcp")), (Some((0..40).collect()), false));
    let beyond = PortConfig { rss: rss(true, false, RssTable::Pattern(vec![4])), ..wish };
    let refused = port.set_rss(&beyond).unwrap_err().to_string();
    let expected =
        "port \"p\": device net_null6: rss: table: queue 4 is not there; the last one is 3";
    assert_eq!(refused, expected);
    assert_eq!(port.rss().unwrap().table[..3], [0, 0, 3], "as before");
}

#[test]
fn a_device_without_a_hash_says_so_and_leaves_nothing_behind() {
    let pool = pool(1023);
    let device = Device::Vdev { name: "net_ring2".into(), args: String::new() };
    let (wish, table) = (PortConfig::new("p", device), RssTable::Even);
    let (port, ..) = Port::open(eal(), &wish, &pool).unwrap();
    assert_eq!(port.rss(), None, "one queue");
    drop(port);
    let wish = PortConfig { rss: rss(true, false, RssTable::Skip(vec![0])), ..wish };
    let refused = problem(&wish, &pool);
    assert!(refused.contains("net_ring2: rss: table: it has none; leave"), "{refused}");
    let wish = PortConfig { rss: rss(true, false, table), ..wish };
    assert!(Port::open(eal(), &wish, &pool).is_ok(), "one queue needs no hash");
}

#[test]
fn what_does_not_fit_is_named_and_leaves_nothing_behind() {
    let pool = pool(63);
    let none = PortConfig { rx_queues: 0, ..config("net_null2") };
    assert_eq!(problem(&none, &pool), "port \"p\": needs at least one queue each way");
    let large = PortConfig { mtu: Some(9000), ..config("net_null2") };
    let words = "port \"p\": MTU 9000 needs packet buffers of 9022 bytes; they have 2048";
    assert_eq!(problem(&large, &pool), words);
    let forced = PortConfig { driver: Some(Driver::AfXdp), ..config("net_null2") };
    assert!(problem(&forced, &pool).contains("for kernel interfaces, not for net_null2"));
    let error = problem(&config("net_nosuchthing0"), &pool);
    assert!(
        error.starts_with("port \"p\": DPDK does not take device net_nosuchthing0: "),
        "{error}"
    );
    let error = Port::open(eal(), &config("net_pcap9,rx_pcap=/nonexistent"), &pool).map(drop);
    assert!(matches!(error, Err(Error::Port { .. })), "{error:?}");
    assert_eq!(pool.leaked(), 0);
    // The names are available again.
    assert_eq!(open("net_null2", &pool).0.mtu(), 1500);
}

#[test]
fn a_port_knows_its_address_and_link() {
    let pool = pool(63);
    let (port, ..) = open("net_null3", &pool);
    assert_ne!(port.mac(), [0; 6]);
    assert_eq!(port.link(), Link { up: true, speed_mbps: 10_000 });
    assert_eq!((port.name(), port.notes().len()), ("p", 0));
    assert!(!port.partial_checksums());
}

fn source(lens: &[u16]) -> std::sync::Arc<SourcePackets> {
    let packet = |(number, &len): (usize, &u16)| {
        let mut head = [number as u8; SOURCE_HEAD];
        head[12..14].copy_from_slice(&[0x08, 0x00]);
        let (is_verified, stripped) = (number == 1, (number == 2).then_some(0x6005));
        SourcePacket { head, len, is_verified, stripped }
    };
    SourcePackets::new(lens.iter().enumerate().map(packet)).unwrap()
}

#[test]
fn a_null_device_presents_packets_over_and_over() {
    let pool = pool(127);
    for _ in 0..2 {
        // The second device has the first one's number in DPDK, and must not have its packets.
        let (_port, mut rx, _tx) = open("net_null20,size=64", &pool);
        let mut burst = Burst::new();
        assert_eq!(rx.receive(&mut burst, 1), 1);
        assert_eq!(burst.frame(0).len(), 64);
        assert!(burst.frame(0).iter().all(|byte| *byte == 0));
        burst.free(burst.owned());
        let packets = source(&[60, 1500, 64]);
        assert!(rx.present(&packets));
        assert!(!rx.present(&packets), "it presents packets already");
        for round in 0..3 {
            assert_eq!(rx.receive(&mut burst, 5), 5);
            for slot in 0..5 {
                let number = (5 * round + slot) % 3;
                let (head, len) = packets.get(number).unwrap();
                assert_eq!(burst.frame(slot).len(), len);
                assert_eq!(burst.frame(slot)[..60], head[..60], "packet {number}");
                assert_eq!(burst.checksum_good() >> slot & 1 == 1, number == 1);
                assert_eq!(burst.stripped_tag(slot), (number == 2).then_some(0x6005));
            }
            assert_eq!(burst.frame(0)[0], (5 * round % 3) as u8);
            // A router changes headers: the next packet has them again as they were.
            (0..5).for_each(|slot| burst.frame_mut(slot).fill(0xff));
            burst.free(burst.owned());
        }
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn packets_are_not_presented_where_they_do_not_fit() {
    let pool = pool(127);
    let (_port, mut rx, _tx) = open("net_ring20", &pool);
    assert!(!rx.present(&source(&[60])), "not the null driver");
    let (_port, mut rx, _tx) = open("net_null21", &pool);
    assert!(!rx.present(&source(&[60, 2049])), "beyond the pool's room of 2048 bytes");
    assert!(rx.present(&source(&[60, 2048])));
    assert!(SourcePackets::new(std::iter::empty()).is_none());
}

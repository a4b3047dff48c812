//! Ports made from kernel interfaces, with DPDK in ordinary memory.

mod veth;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{fs, mem};

use dpdk::{
    Burst, Device, Driver, Eal, Error, HugeMode, Mempool, MempoolConfig, PacketList, Port,
    PortConfig, Sent,
};
use veth::{Wire, eal, ip, namespace, open, open_as, pass, pool, state};

/// `ETHTOOL_GTSO`: reads whether the interface sends super-frames. `ETHTOOL_GGRO`, `ETHTOOL_SGRO`: read and
/// set whether it merges received frames.
const TSO: u32 = 0x1e;
const GRO: u32 = 0x2b;
const GRO_ON: u32 = 0x2c;

/// Reads an offload of an interface, or turns it on.
fn offload(name: &str, command: u32) -> bool {
    let mut value = [command, 1];
    // SAFETY: zeros are a request; the kernel reads a name from it and writes the value it
    // points to, a command and a number.
    unsafe {
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
        let mut request: libc::ifreq = mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        let result = libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request);
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
    value[1] != 0
}

/// A number from the kernel's table of counters of this thread's network namespace.
fn counter(protocol: &str, name: &str) -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{protocol}: ")));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|word| word == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn af_xdp_forwards_between_veths() {
    veth::two_ports_forward(HugeMode::Never, Driver::AfXdp, "net_af_xdp");
}

#[test]
fn af_packet_forwards_between_veths() {
    veth::two_ports_forward(HugeMode::Never, Driver::AfPacket, "net_af_packet");
}

/// A thread that blocks is woken by a packet of a port of this driver, and by nothing else.
fn wakes(eal: &Eal, pool: &Mempool, driver: Driver) {
    const LONG: Duration = Duration::from_secs(20);
    namespace(&["tpw"]);
    // Only the test sends.
    fs::write("/proc/sys/net/ipv6/conf/tpw1/disable_ipv6", "1").unwrap();
    let mut end = open(eal, pool, "tpw0", Some(driver));
    assert!(end.port.has_rx_interrupts());
    let wire = Wire::new("tpw1");
    let mut set = dpdk::WaitSet::new().unwrap();
    set.watch(end.rx.descriptor()).unwrap();
    let mut burst = Burst::new();
    // Frames that the kernel itself sends on the interface.
    while set.wait(Some(Duration::from_millis(100))) {
        while end.rx.receive(&mut burst, 64) > 0 {
            burst.free(u64::MAX);
        }
    }
    for number in 0..100 {
        end.rx.arm();
        assert!(!set.wait(Some(Duration::ZERO)), "packet {number} is not there yet");
        std::thread::scope(|scope| {
            scope.spawn(|| wire.send(&veth::frame(number, 60)));
            assert!(set.wait(Some(LONG)));
        });
        end.rx.disarm();
        assert_eq!(end.rx.receive(&mut burst, 64), 1);
        assert!(burst.frame(0).ends_with(&veth::frame(number, 60)[14..]));
        burst.free(u64::MAX);
    }
    drop(end);
}

#[test]
fn a_packet_wakes_a_thread_that_blocks() {
    let (eal, _turn) = eal(HugeMode::Never);
    // The driver of AF_XDP may keep its pool until the process ends.
    let config = MempoolConfig { count: 5119, data_room: 2048, ..MempoolConfig::default() };
    let pool = Mempool::new(eal, &config).unwrap();
    wakes(eal, &pool, Driver::AfXdp);
    wakes(eal, &pool, Driver::AfPacket);
}

#[test]
fn af_xdp_is_the_first_choice() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpc"]);
    let pool = pool(eal, 2048);
    let end = open(eal, &pool, "tpc0", None);
    assert_eq!((end.port.driver(), end.port.notes()), ("net_af_xdp", &[][..]));
}

#[test]
fn af_packet_is_the_second_choice_and_says_why() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpd", "tpe"]);
    let pool = pool(eal, 9216);
    // AF_XDP accepts no frames larger than a page.
    ip("link set tpd1 mtu 9000");
    ip("link set tpe1 mtu 9000");
    let before = state("tpd0");
    let device = |name| Device::parse(name).unwrap();
    let config = PortConfig { mtu: Some(9000), ..PortConfig::new("left", device("tpd0")) };
    let mut left = open_as(eal, &pool, &config);
    let config = PortConfig { mtu: Some(9000), ..PortConfig::new("right", device("tpe0")) };
    let mut right = open_as(eal, &pool, &config);
    assert_eq!(left.port.driver(), "net_af_packet");
    let note = &left.port.notes()[0];
    assert!(note.starts_with("AF_PACKET, because AF_XDP failed: port \"left\": "), "{note}");
    assert_eq!(left.port.mtu(), 9000);
    pass(&Wire::new("tpd1"), &mut left.rx, &mut right.tx, &Wire::new("tpe1"), 9014);
    drop((left, right));
    assert_eq!(pool.leaked(), 0);
    assert_eq!(state("tpd0"), before);
}

#[test]
fn a_failed_af_xdp_leaves_nothing_behind() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpf"]);
    let (pool, before) = (pool(eal, 2048), state("tpf0"));
    let device = Device::parse("tpf0").unwrap();
    let config = PortConfig {
        driver: Some(Driver::AfXdp),
        mtu: Some(9000),
        ..PortConfig::new("left", device)
    };
    let error = Port::open(eal, &config, &pool).map(drop).unwrap_err();
    assert!(matches!(error, Error::PortConfig { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "port \"left\": MTU 9000 needs packet buffers of 9278 bytes; they have 2048"
    );
    assert_eq!((pool.leaked(), state("tpf0")), (0, before));
}

#[test]
fn with_af_packet_no_frame_is_larger_than_the_mtu() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpg"]);
    let pool = pool(eal, 2048);
    assert!(offload("tpg1", TSO), "a veth sends super-frames to begin with");
    offload("tpg0", GRO_ON);
    assert!(offload("tpg0", GRO));
    let end = open(eal, &pool, "tpg0", Some(Driver::AfPacket));
    assert!(!offload("tpg1", TSO) && !offload("tpg0", GRO));
    drop(end);
    assert!(offload("tpg1", TSO) && offload("tpg0", GRO), "both are as before");
}

#[test]
fn the_host_does_not_see_what_a_port_receives() {
    let (eal, _turn) = eal(HugeMode::Never);
    let echo = {
        // Ethernet and IPv4 headers and an ICMP echo request, to 10.99.0.1 from 10.99.0.2.
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0x66, 0x1b]);
        frame.extend([10, 99, 0, 2, 10, 99, 0, 1, 8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        frame
    };
    for driver in [Driver::AfXdp, Driver::AfPacket] {
        namespace(&["tph"]);
        ip("addr add 10.99.0.1/24 dev tph0");
        let pool = pool(eal, 2048);
        let end = open(eal, &pool, "tph0", Some(driver));
        let wire = Wire::new("tph1");
        wire.send(&echo);
        // Hiding packets from the host under AF_PACKET needs Linux 6.6; a port has a note if it cannot.
        let seen = end.port.notes().iter().any(|note| note.contains("stack sees the packets too"));
        assert_eq!(counter("Ip", "InReceives") > 0, seen, "{driver:?}");
        drop(end);
        ip("link set tph0 up");
        let (before, patience) =
            (counter("Ip", "InReceives"), Instant::now() + Duration::from_secs(2));
        while counter("Ip", "InReceives") == before {
            assert!(Instant::now() < patience, "the host sees it when the port is closed");
            wire.send(&echo);
        }
    }
}

#[test]
fn an_interface_is_opened_again_and_again() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpk"]);
    let before = state("tpk0");
    for _ in 0..3 {
        let pool = pool(eal, 2048);
        let end = open(eal, &pool, "tpk0", Some(Driver::AfXdp));
        assert_eq!(end.port.driver(), "net_af_xdp");
        drop(end);
        assert_eq!(pool.leaked(), 0);
    }
    assert_eq!(state("tpk0"), before);
}

/// An AF_XDP socket bound to the queue of an interface, with its memory.
struct Occupier {
    socket: OwnedFd,
    _memory: Box<Memory>,
}

#[repr(C, align(4096))]
struct Memory([u8; 4 * 4096]);

impl Occupier {
    fn of(name: &str) -> Self {
        let mut memory = Box::new(Memory([0; 4 * 4096]));
        let (name, entries) = (std::ffi::CString::new(name).unwrap(), 64u32);
        // SAFETY: plain system calls; their arguments live for the call, and the memory longer than the
        // socket.
        let socket = unsafe {
            let socket = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            let socket = OwnedFd::from_raw_fd(socket);
            let set = |option, value: *const libc::c_void, size| {
                let result =
                    libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, size);
                assert_eq!(result, 0, "{option}: {}", std::io::Error::last_os_error());
            };
            let start = (&raw mut memory.0) as u64;
            let umem = [start, 4 * 4096, 4096, 0];
            set(libc::XDP_UMEM_REG, umem.as_ptr().cast(), 32);
            for ring in
                [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING]
            {
                set(ring, (&raw const entries).cast(), 4);
            }
            let mut address: libc::sockaddr_xdp = mem::zeroed();
            address.sxdp_family = libc::AF_XDP as u16;
            address.sxdp_ifindex = libc::if_nametoindex(name.as_ptr());
            let size = mem::size_of_val(&address) as u32;
            let result = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size);
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            socket
        };
        Self { socket, _memory: memory }
    }
}

#[test]
fn a_queue_that_is_not_free_costs_no_packets() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpq"]);
    let config = MempoolConfig { count: 4095, cache: 64, ..Default::default() };
    let pool = Mempool::new(eal, &config).unwrap();
    ip("link set tpq0 up");
    let occupier = Occupier::of("tpq0");
    assert!(occupier.socket.as_raw_fd() >= 0);
    let device = Device::parse("tpq0").unwrap();
    let config = PortConfig { driver: Some(Driver::AfXdp), ..PortConfig::new("left", device) };
    // Each takes half of the pool.
    for _ in 0..3 {
        let error = Port::open(eal, &config, &pool).map(drop).unwrap_err().to_string();
        assert!(error.contains("setting up receive queue 0"), "{error}");
        assert_eq!(pool.leaked(), 0);
    }
    let all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!(all.len(), 4095);
    drop(all);
    drop(occupier);
    // The kernel frees the queue in the background.
    let patience = Instant::now() + Duration::from_secs(20);
    let end = loop {
        match Port::open(eal, &config, &pool) {
            Ok(opened) => break opened,
            Err(error) => assert!(Instant::now() < patience, "{error}"),
        }
    };
    drop(end);
    assert_eq!(pool.leaked(), 0);
}

#[test]
fn one_interface_is_one_port() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpi"]);
    let pool = pool(eal, 2048);
    let end = open(eal, &pool, "tpi0", None);
    let config = PortConfig::new("again", Device::parse("tpi0").unwrap());
    for driver in [Some(Driver::AfXdp), Some(Driver::AfPacket), None] {
        let config = PortConfig { driver, ..config.clone() };
        let error = Port::open(eal, &config, &pool).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("port \"again\": "), "{error}");
        assert!(error.contains("in use by another port"), "{error}");
    }
    assert!(end.port.link().up, "the first port goes on");
}

#[test]
fn packets_in_several_segments_do_not_reach_a_driver_that_takes_one() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpj"]);
    let pool = pool(eal, 2048);
    let small = MempoolConfig { count: 255, cache: 0, data_room: 768, ..Default::default() };
    let small = Mempool::new(eal, &small).unwrap();
    // Three frames of 100, 1,400 and 100 bytes; the second arrives in two segments.
    let path = std::env::temp_dir().join(format!("dpdk-segments-{}", std::process::id()));
    let mut capture = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        capture.extend(word.to_le_bytes());
    }
    for (number, len) in [(0, 100), (1, 1400), (2, 100)] {
        for word in [0, 0, len as u32, len as u32] {
            capture.extend(word.to_le_bytes());
        }
        capture.extend(veth::frame(number, len));
    }
    fs::write(&path, capture).unwrap();
    let source = format!("net_pcap0,rx_pcap={}", path.display());
    let device = Device::parse(&source).unwrap();
    let config = PortConfig { mtu: Some(700), ..PortConfig::new("source", device) };
    let mut source = open_as(eal, &small, &config);
    let mut sink = open(eal, &pool, "tpj0", Some(Driver::AfXdp));
    assert!(!sink.port.supports_multi_segment());

    let (mut burst, mut list) = (Burst::new(), PacketList::new());
    assert_eq!((source.rx.receive(&mut burst, 64), burst.multi_segment()), (3, 0b010));
    assert_eq!(burst.move_to(u64::MAX, &mut list), 0);
    // No buffer is free for a linear copy.
    let all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let sent = sink.tx.send(&mut list, 64);
    assert_eq!((sent.refused, sent.too_long), (1, 0));
    drop((all, list, source, sink));
    assert_eq!((pool.leaked(), small.leaked()), (0, 0));
    fs::remove_file(path).unwrap();
}

/// Sends frames of these lengths and returns the result.
fn send(end: &mut veth::End, pool: &Mempool, frames: &[Vec<u8>]) -> Sent {
    let mut list = PacketList::new();
    for frame in frames {
        list.push(pool.copy_of(frame).unwrap()).unwrap();
    }
    end.tx.send(&mut list, 64)
}

fn frames_longer_than_the_mtu(driver: Driver, name: &str) {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&[name]);
    let (pool, device) = (pool(eal, 2048), format!("{name}0"));
    let mut end = open(eal, &pool, &device, Some(driver));
    let of = |len| veth::frame(0, len);
    let tagged = |len| {
        let mut frame = veth::frame(0, len);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        frame
    };
    assert_eq!(end.port.follow_mtu(), Some(1500));
    let sent = send(&mut end, &pool, &[of(1514), of(1515), tagged(1518), tagged(1519)]);
    assert_eq!((sent.packets, sent.too_long, sent.refused), (2, 2, 0));
    ip(&format!("link set {device} mtu 1300"));
    assert_eq!((end.port.follow_mtu(), end.port.mtu()), (Some(1300), 1500));
    let sent = send(&mut end, &pool, &[of(60), of(1314), of(1315), of(1514)]);
    assert_eq!((sent.packets, sent.bytes, sent.too_long), (2, 1374, 2));
    // No more than it was opened for.
    ip(&format!("link set {device} mtu 1600"));
    assert_eq!((end.port.follow_mtu(), end.port.mtu()), (Some(1600), 1500));
    let sent = send(&mut end, &pool, &[of(1514), of(1515)]);
    assert_eq!((sent.packets, sent.too_long), (1, 1));
    assert_eq!(end.port.stats().oerrors, 0);
    // Frames that the kernel drops, since the other end has a smaller MTU, are errors.
    ip(&format!("link set {name}1 mtu 1000"));
    let wire = Wire::new(&format!("{name}1"));
    let sent = send(&mut end, &pool, &[of(1514), of(60), of(1100), of(61), of(62)]);
    assert_eq!((sent.packets, sent.too_long), (5, 0));
    let (mut received, patience) = (Vec::new(), Instant::now() + Duration::from_secs(5));
    while received.len() < 3 || end.port.stats().oerrors < 2 {
        end.tx.poll();
        received.extend(wire.receive().map(|frame| frame.len()));
        assert!(Instant::now() < patience, "{received:?} {:?}", end.port.stats());
    }
    assert_eq!(received, [60, 61, 62], "what follows a frame that is dropped");
    assert_eq!(end.port.changed_mac(), None);
    ip(&format!("link set {device} address 02:00:00:00:00:99"));
    assert_eq!(end.port.changed_mac(), Some([2, 0, 0, 0, 0, 0x99]));
    // Another interface of the same name does not count.
    ip(&format!("link delete {device}"));
    ip(&format!("link add {device} type veth peer name {name}1"));
    assert_eq!((end.port.changed_mac(), end.port.follow_mtu()), (None, None));
    drop(end);
    assert_eq!(pool.leaked(), 0);
}

#[test]
fn af_xdp_gets_no_frame_that_is_longer_than_the_mtu() {
    frames_longer_than_the_mtu(Driver::AfXdp, "tpm");
}

#[test]
fn af_packet_gets_no_frame_that_is_longer_than_the_mtu() {
    frames_longer_than_the_mtu(Driver::AfPacket, "tpn");
}

/// A fragment of an IPv4 datagram from this host to another.
fn fragment(host: u8, offset: u16, more: bool, len: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    let flags = (offset / 8) | if more { 0x2000 } else { 0 };
    frame.extend([0x45, 0]);
    frame.extend((len as u16 + 20).to_be_bytes());
    frame.extend([0, host]);
    frame.extend(flags.to_be_bytes());
    frame.extend([64, 17, 0, 0, 10, 0, 0, host, 10, 0, 9, 9]);
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend((0..len).map(|at| (at * 3) as u8 ^ host));
    frame
}

#[test]
fn af_packet_leaves_fragments_as_they_are_and_those_of_a_datagram_on_one_queue() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpp"]);
    let before = state("tpp0");
    for queues in [1, 3] {
        let pool = pool(eal, 2048);
        let mut config = PortConfig::new("left", Device::parse("tpp0").unwrap());
        config.driver = Some(Driver::AfPacket);
        (config.rx_queues, config.tx_queues) = (queues, queues);
        let (port, mut rx, tx) = Port::open(eal, &config, &pool).unwrap();
        let wire = Wire::new("tpp1");
        let mut sent: Vec<_> = (0..30)
            .map(|host| {
                let part = |n: u16| fragment(host, n * 1480, n < 5, 1480);
                (0..6).map(part).collect::<Vec<_>>()
            })
            .collect();
        sent.iter().flatten().for_each(|frame| wire.send(frame));
        let (mut burst, mut count) = (Burst::new(), 0);
        let mut received = vec![Vec::new(); rx.len()];
        let patience = Instant::now() + Duration::from_secs(5);
        while count < 180 && Instant::now() < patience {
            for (queue, frames) in rx.iter_mut().zip(&mut received) {
                let slots = queue.receive(&mut burst, 64);
                let all = (0..slots).map(|slot| burst.frame(slot).to_vec());
                frames.extend(
                    all.filter(|frame| frame[12..14] == [8, 0] && frame[30..32] == [10, 0]),
                );
                burst.free(u64::MAX);
            }
            count = received.iter().map(Vec::len).sum();
        }
        // Each arrived once, and the parts of one datagram in order on one queue.
        let used = received.iter().filter(|frames| !frames.is_empty()).count();
        assert!((used > 1) == (queues > 1), "{used} of {queues} queues");
        let mut whole: Vec<Vec<Vec<u8>>> = Vec::new();
        for frames in &mut received {
            frames.sort_by_key(|frame| frame[29]);
            whole.extend(frames.chunk_by(|a, b| a[29] == b[29]).map(<[_]>::to_vec));
        }
        whole.sort();
        sent.sort();
        assert_eq!(whole, sent, "{queues} queues");
        drop((port, rx, tx));
        assert_eq!((pool.leaked(), state("tpp0")), (0, before.clone()));
    }
}

#[test]
fn a_vanished_interface_takes_no_packets_with_it() {
    let (eal, _turn) = eal(HugeMode::Never);
    namespace(&["tpv"]);
    // A small one: this process has 512 MB for all its pools.
    let config = MempoolConfig { count: 4095, cache: 64, ..Default::default() };
    let pool = Mempool::new(eal, &config).unwrap();
    let mut end = open(eal, &pool, "tpv0", Some(Driver::AfXdp));
    let wire = Wire::new("tpv1");
    let mut burst = Burst::new();
    (0..5).for_each(|number| wire.send(&veth::frame(number, 60)));
    let patience = Instant::now() + Duration::from_secs(2);
    while end.rx.receive(&mut burst, 64) == 0 {
        assert!(Instant::now() < patience, "nothing is received");
    }
    burst.free(u64::MAX);
    ip("link delete tpv1");
    // Some wait elsewhere, for example for a neighbour on another port; they are still ours.
    let waiting: Vec<_> = (0..30).map(|n| pool.copy_of(&veth::frame(n, 60)).unwrap()).collect();
    let mut list = PacketList::new();
    for number in 0..50 {
        list.push(pool.copy_of(&veth::frame(number, 60)).unwrap()).unwrap();
    }
    assert_eq!(end.tx.send(&mut list, 64).packets, 50);
    drop(end);
    assert_eq!(pool.leaked(), 30, "packets that wait are not the port's");
    drop(waiting);
    assert_eq!(pool.leaked(), 0);
}

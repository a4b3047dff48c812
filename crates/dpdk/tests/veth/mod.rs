//! Scenarios for ports made from kernel interfaces: veth pairs in a network namespace of the
//! test's own thread, with packet sockets at the far ends. Need root.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, mem};

use dpdk::{
    Burst, Device, Driver, Eal, EalConfig, HugeMode, Mempool, MempoolConfig, PacketList, Port,
    PortConfig, RxQueue, TxQueue,
};

/// An experimental ethertype (IEEE 802), which the host's own packets do not have.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Returns the EAL of this process, and a guard that allows one scenario at a time.
pub fn eal(huge: HugeMode) -> (&'static Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { memory_mb: 640, huge, ..EalConfig::default() };
    (EAL.get_or_init(|| Eal::init(&config).unwrap()), turn)
}

pub fn pool(eal: &Eal, data_room: u16) -> Mempool {
    let config = MempoolConfig { count: 10_239, cache: 64, data_room, ..Default::default() };
    Mempool::new(eal, &config).unwrap()
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {words}");
}

/// Moves this thread to a network namespace of its own, which ends with it, and makes the veth
/// pairs `<name>0`, `<name>1` there.
pub fn namespace(pairs: &[&str]) {
    // SAFETY: no memory is involved.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "these tests make network namespaces and need root");
    for name in pairs {
        ip(&format!("link add {name}0 type veth peer name {name}1"));
        ip(&format!("link set {name}1 up"));
        // Once up and down, so that a later up and down leaves no trace.
        ip(&format!("link set {name}0 up"));
        ip(&format!("link set {name}0 down"));
    }
}

/// Returns the output of `ip` about an interface, and the settings that a port changes.
pub fn state(name: &str) -> String {
    let output = Command::new("ip").args(["-d", "-o", "link", "show", name]).output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap();
    for path in ["ipv6/conf/X/disable_ipv6", "ipv4/conf/X/forwarding", "ipv4/conf/X/arp_ignore"] {
        let path = format!("/proc/sys/net/{}", path.replace('X', name));
        text += &fs::read_to_string(path).unwrap();
    }
    text
}

/// A packet socket on an interface.
pub struct Wire(OwnedFd);

impl Wire {
    pub fn new(name: &str) -> Self {
        Self::on(name, ETHERTYPE)
    }

    /// Opens a socket for frames of this type only.
    pub fn on(name: &str, ethertype: [u8; 2]) -> Self {
        let protocol = u16::from_be_bytes(ethertype).to_be();
        let name = std::ffi::CString::new(name).unwrap();
        // SAFETY: plain system calls; the address lives for the call, and zeros are one.
        unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
            let socket = libc::socket(libc::AF_PACKET, kind, protocol.into());
            assert!(socket >= 0);
            let socket = OwnedFd::from_raw_fd(socket);
            let mut address: libc::sockaddr_ll = mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let size = mem::size_of_val(&address) as u32;
            let result = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size);
            assert_eq!(result, 0);
            Self(socket)
        }
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the frame lives for the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        // SAFETY: the buffer lives for the call, and its size is given.
        let size =
            unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(size).ok()?);
        Some(frame)
    }
}

/// Builds a frame of the experimental type, its bytes derived from its number.
pub fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(ETHERTYPE);
    frame.extend((14..len).map(|at| (at * 7 + number * 13) as u8));
    frame
}

/// An open port with one queue in each direction.
pub struct End {
    pub port: Port,
    pub rx: RxQueue,
    pub tx: TxQueue,
}

pub fn open(eal: &Eal, pool: &Mempool, name: &str, driver: Option<Driver>) -> End {
    let config = PortConfig { driver, ..PortConfig::new(name, Device::parse(name).unwrap()) };
    open_as(eal, pool, &config)
}

pub fn open_as(eal: &Eal, pool: &Mempool, config: &PortConfig) -> End {
    let (port, mut rx, mut tx) = Port::open(eal, config, pool).unwrap();
    End { port, rx: rx.remove(0), tx: tx.remove(0) }
}

/// Receives all waiting frames on one port and sends the frames of our type by the other.
pub fn forward(rx: &mut RxQueue, tx: &mut TxQueue) {
    let (mut burst, mut list) = (Burst::new(), PacketList::new());
    while rx.receive(&mut burst, 64) > 0 {
        let ours = (0..64).filter(|&slot| burst.head(slot)[12..14] == ETHERTYPE);
        let mask = ours.fold(0, |mask, slot| mask | 1 << slot);
        assert_eq!(burst.move_to(mask, &mut list), 0);
        burst.free(u64::MAX);
        let patience = Instant::now() + Duration::from_secs(2);
        while !list.is_empty() {
            tx.send(&mut list, 64);
            assert!(Instant::now() < patience, "{} packets could not be sent", list.len());
        }
    }
}

/// Sends frames of all lengths into one wire and expects the same, in order, at the other.
pub fn pass(from: &Wire, rx: &mut RxQueue, tx: &mut TxQueue, to: &Wire, longest: usize) {
    for number in 0..300 {
        let sent = frame(number, 60 + number * (longest - 60) / 299);
        from.send(&sent);
        let patience = Instant::now() + Duration::from_secs(2);
        let received = loop {
            forward(rx, tx);
            if let Some(frame) = to.receive() {
                break frame;
            }
            assert!(Instant::now() < patience, "frame {number} of {} bytes is lost", sent.len());
        };
        assert!(received == sent, "frame {number}: {} bytes, not {}", received.len(), sent.len());
    }
}

/// Two ports of one driver forward frames in both directions, and restore everything.
pub fn two_ports_forward(huge: HugeMode, driver: Driver, name: &str) {
    let (eal, _turn) = eal(huge);
    namespace(&["tpa", "tpb"]);
    let before = [state("tpa0"), state("tpb0")];
    let pool = pool(eal, 2048);
    // Twice if the driver can: names and interfaces are available again. AF_XDP's, in DPDK
    // 22.11.11, miscounts its references and keeps its socket until the process ends.
    for _ in 0..if driver == Driver::AfXdp { 1 } else { 2 } {
        let mut left = open(eal, &pool, "tpa0", Some(driver));
        let mut right = open(eal, &pool, "tpb0", Some(driver));
        assert_eq!(left.port.driver(), name);
        assert!(left.port.partial_checksums());
        assert_eq!(left.port.mtu(), 1500);
        assert!(left.port.link().up);
        let (west, east) = (Wire::new("tpa1"), Wire::new("tpb1"));
        pass(&west, &mut left.rx, &mut right.tx, &east, 1514);
        pass(&east, &mut right.rx, &mut left.tx, &west, 1514);
        let (input, output) = (left.port.stats(), right.port.stats());
        assert!(input.ipackets >= 300 && output.opackets == 300, "{input:?} {output:?}");
        let during = state("tpa0");
        assert!(during.contains(",UP") && during.ends_with("1\n0\n8\n"), "{during}");
        drop((left, right));
        assert_eq!(pool.leaked(), 0);
        assert_eq!([state("tpa0"), state("tpb0")], before);
    }
}

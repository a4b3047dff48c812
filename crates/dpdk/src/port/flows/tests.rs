//! The programs as the kernel runs them, over frames whose checksums are added up word by word.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::{fs, thread};

use proptest::prelude::*;

use super::super::accelerate::{Lease, Outcome, Prefixes, load};
use super::super::bpf::run;
use super::*;
use crate::testing::eal;

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DROP: u32 = 1;
const PASS: u32 = 2;
const REDIRECT: u32 = 4;
/// The number of `lo`, by which the kernel says that frames of a test are received.
const LOOPBACK: u32 = 1;
const ACK: u8 = 0x10;
/// VLANs of the interface, and the kernel's numbers of their devices.
const VLANS: [(u16, u32); 2] = [(10, 77), (20, 78)];
const DOT1Q: u16 = 0x8100;
const DOT1AD: u16 = 0x88a8;

/// `struct settings`, with room for each packet.
type Settings = [u8; 24];

fn settings(partial: bool, device: u32) -> Settings {
    let (generic, flows) = (0, 1);
    let mut bytes = [0; 24];
    bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[6..8].copy_from_slice(&1500_u16.to_ne_bytes());
    bytes[8..14].copy_from_slice(&[1, 1, generic, 0, flows, partial.into()]);
    bytes[16..20].copy_from_slice(&device.to_ne_bytes());
    bytes
}

/// Puts a tag into a frame.
fn tagged(frame: &[u8], (protocol, tag): (u16, u16)) -> Vec<u8> {
    [&frame[..12], &protocol.to_be_bytes(), &tag.to_be_bytes(), &frame[12..]].concat()
}

/// The loaded programs of an interface.
struct Programs {
    _alone: MutexGuard<'static, ()>,
    receive: OwnedFd,
    returns: OwnedFd,
    settings: Map<u32, Settings>,
    vlans: Map<u32, Settings>,
    outcomes: Map<u32, u64>,
    _socket: OwnedFd,
    _sockets: Map<u32, u32>,
    lease: Lease,
    flows: Arc<Flows>,
    _prefixes: Arc<Prefixes>,
}

impl Programs {
    fn new() -> Self {
        // The maps are the process's.
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        eal();
        let (prefixes, flows) = (Prefixes::shared().unwrap(), Flows::shared().unwrap());
        for (net, bits) in [("10.0.0.0", 8), ("2001:db8::", 32)] {
            prefixes.set(net.parse().unwrap(), bits, true).unwrap();
        }
        prefixes.set("10.9.0.0".parse().unwrap(), 16, false).unwrap();
        let loaded = load(&prefixes, Some(&flows)).unwrap();
        let program = |name| loaded.program(name).unwrap();
        // SAFETY: so `accelerate.bpf.c` declares them.
        let (settings, vlans, outcomes, sockets) = unsafe {
            (
                loaded.map(c"settings").unwrap(),
                loaded.map(c"vlans").unwrap(),
                loaded.map(c"outcomes").unwrap(),
                loaded.map::<u32, u32>(c"xsks_map").unwrap(),
            )
        };
        // SAFETY: a system call without memory, and a descriptor that it has just created.
        let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0)) };
        sockets.put(&0, &(socket.as_raw_fd() as u32)).unwrap();
        let lease = prefixes.lease().clone();
        lease.renew(Duration::from_secs(3600));
        flows.doubt(Duration::ZERO);
        Self {
            _alone: alone,
            receive: program(c"xsk_def_prog"),
            returns: program(c"turnpike_return"),
            settings,
            vlans,
            outcomes,
            _socket: socket,
            _sockets: sockets,
            lease,
            flows,
            _prefixes: prefixes,
        }
    }

    fn set(&self, partial: bool) {
        self.settings.put(&0, &settings(partial, LOOPBACK)).unwrap();
        for (id, device) in VLANS {
            // Checksums are the interface's.
            self.vlans.put(&id.into(), &settings(false, device)).unwrap();
        }
    }

    /// Confirms a direction, as if the kernel had sent one of its packets.
    fn confirm(&self, direction: Tuple, ingress: u32) {
        let key = direction.key();
        let entry = self.flows.map.get(&key).unwrap();
        let confirmed = monotonic().as_nanos() as u64;
        self.flows.map.put(&key, &Entry { ingress, confirmed, ..entry }).unwrap();
    }

    fn receive(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        run(&self.receive, LOOPBACK, frame).unwrap()
    }

    fn give_back(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        run(&self.returns, LOOPBACK, frame).unwrap()
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes.get_all(&(outcome as u32)).unwrap().iter().sum()
    }

    /// Returns the outcome of a frame that is the kernel's, which gets it as it is.
    fn left(&self, frame: &[u8]) -> Outcome {
        let counts = || Outcome::ALL.map(|of| self.count(of));
        let before = counts();
        assert_eq!(self.receive(frame), (PASS, frame.to_vec()));
        let after = counts();
        let changed: Vec<Outcome> = Outcome::ALL
            .into_iter()
            .filter(|of| after[*of as usize] != before[*of as usize])
            .collect();
        assert_eq!(changed.len(), 1);
        changed[0]
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.lease.end();
    }
}

/// A packet of a direction.
#[derive(Clone, Debug)]
struct Packet {
    tuple: Tuple,
    flags: u8,
    payload: Vec<u8>,
    /// Of UDP over IPv4: without a checksum.
    unsummed: bool,
    /// Its checksum is left to the device.
    partial: bool,
    fragment: u16,
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

/// Adds up words one by one.
fn ones(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0_u16, |sum, word| {
        let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

impl Packet {
    fn new(tuple: Tuple) -> Self {
        let (unsummed, partial) = (false, false);
        Self { tuple, flags: ACK, payload: b"payload".to_vec(), unsummed, partial, fragment: 0 }
    }

    fn transport(&self) -> Vec<u8> {
        let Tuple { source, destination, source_port, destination_port, protocol } = self.tuple;
        let mut bytes = [source_port.to_be_bytes(), destination_port.to_be_bytes()].concat();
        let at = if protocol == TCP {
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
            16
        } else {
            bytes.extend((8 + self.payload.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
            6
        };
        bytes.extend(&self.payload);
        let length = (bytes.len() as u16).to_be_bytes();
        let pseudo =
            [octets(source), octets(destination), vec![0, protocol], length.to_vec()].concat();
        let sum = match self.partial {
            true => ones(&pseudo),
            false => match !ones(&[pseudo, bytes.clone()].concat()) {
                0 if protocol == UDP => 0xffff,
                sum => sum,
            },
        };
        if !self.unsummed {
            bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    fn frame(&self) -> Vec<u8> {
        let (transport, tuple) = (self.transport(), self.tuple);
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if tuple.source.is_ipv4() {
            let length = (20 + transport.len() as u16).to_be_bytes();
            let mut header = vec![0x45, 0, length[0], length[1], 0, 7];
            header.extend(self.fragment.to_be_bytes());
            header.extend([64, tuple.protocol, 0, 0]);
            header.extend([octets(tuple.source), octets(tuple.destination)].concat());
            let sum = !ones(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend([0x08, 0x00]);
            frame.extend(header);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 1, 2, 3]);
            frame.extend((transport.len() as u16).to_be_bytes());
            frame.extend([tuple.protocol, 64]);
            frame.extend([octets(tuple.source), octets(tuple.destination)].concat());
        }
        frame.extend(transport);
        frame
    }

    /// Returns it as it is sent.
    fn sent_as(&self, tuple: Tuple) -> Vec<u8> {
        Self { tuple, ..self.clone() }.frame()
    }
}

fn tuple(protocol: u8, source: &str, destination: &str) -> Tuple {
    let end = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
    let (source, destination) = (end(source), end(destination));
    Tuple {
        source: source.ip(),
        destination: destination.ip(),
        source_port: source.port(),
        destination_port: destination.port(),
        protocol,
    }
}

/// The tag of received packets, `None` without one, and the kernel's number of the interface or VLAN device.
fn arrivals() -> impl Iterator<Item = (Option<u16>, u32)> {
    let of_vlans = VLANS.into_iter().map(|(id, device)| (Some(id), device));
    [(None, LOOPBACK)].into_iter().chain(of_vlans)
}

/// Puts the tag of a VLAN into a frame, if there is one, with a priority.
fn arrived(frame: &[u8], id: Option<u16>, priority: u16) -> Vec<u8> {
    id.map_or_else(|| frame.to_vec(), |id| tagged(frame, (DOT1Q, priority << 13 | id)))
}

/// A host behind the router's address 10.9.0.1.
fn masqueraded(protocol: u8) -> (Tuple, Tuple) {
    (
        tuple(protocol, "10.1.0.2:5000", "10.2.0.2:80"),
        tuple(protocol, "10.2.0.2:80", "10.9.0.1:61000"),
    )
}

#[test]
fn packets_of_confirmed_flows_are_translated_and_back() {
    let programs = Programs::new();
    programs.set(false);
    for protocol in [TCP, UDP] {
        let (original, reply) = masqueraded(protocol);
        let (there, back) = (Packet::new(original), Packet::new(reply));
        assert_eq!(programs.left(&there.frame()), Outcome::NoFlow, "unknown");
        programs.flows.put(original, reply).unwrap();
        assert_eq!(programs.left(&there.frame()), Outcome::NoFlow, "not confirmed");
        programs.confirm(original, LOOPBACK);
        let sent = there.sent_as(reply.inverse());
        assert_eq!(programs.receive(&there.frame()), (REDIRECT, sent.clone()));
        assert_eq!(programs.left(&back.frame()), Outcome::NoFlow, "the other direction is not");
        programs.confirm(reply, LOOPBACK);
        assert_eq!(programs.receive(&back.frame()), (REDIRECT, back.sent_as(original.inverse())));
        assert_eq!(programs.give_back(&sent), (PASS, there.frame()));
        assert!(programs.flows.quiet(original, reply).unwrap() < Duration::from_secs(60));

        programs.flows.end(original, reply);
        assert_eq!(programs.left(&there.frame()), Outcome::NoFlow, "ended");
        assert_eq!(programs.give_back(&sent), (PASS, there.frame()), "on its way");
        programs.flows.remove(original, reply);
        let ended = programs.count(Outcome::Ended);
        assert_eq!(programs.give_back(&sent), (DROP, sent), "nobody knows what it was");
        assert_eq!(programs.count(Outcome::Ended), ended + 1);
    }
}

#[test]
fn packets_that_the_kernel_must_see_stay_with_it() {
    let programs = Programs::new();
    programs.set(false);
    let (original, reply) = masqueraded(TCP);
    let confirm = || {
        programs.flows.put(original, reply).unwrap();
        programs.confirm(original, LOOPBACK);
        programs.confirm(reply, LOOPBACK);
    };
    let packet = Packet::new(original);
    // SYN, SYN and ACK, without ACK, URG: the flow stays.
    confirm();
    for flags in [0x02, 0x12, 0x00, 0x08, 0x30] {
        let frame = Packet { flags, ..packet.clone() }.frame();
        assert_eq!(programs.left(&frame), Outcome::NoFlow, "{flags:#x}");
        assert_eq!(programs.receive(&packet.frame()).0, REDIRECT);
    }
    // PSH, ECE, CWR.
    for flags in [0x18, 0x50, 0x90] {
        assert_eq!(programs.receive(&Packet { flags, ..packet.clone() }.frame()).0, REDIRECT);
    }
    // FIN, RST: both directions wait for the kernel.
    for flags in [0x11, 0x14, 0x04] {
        confirm();
        assert_eq!(programs.left(&Packet { flags, ..packet.clone() }.frame()), Outcome::NoFlow);
        assert_eq!(programs.left(&packet.frame()), Outcome::NoFlow, "{flags:#x}");
        assert_eq!(programs.left(&Packet::new(reply).frame()), Outcome::NoFlow, "{flags:#x}");
    }
    confirm();
    for fragment in [0x2000, 0x0001, 0x2007] {
        let frame = Packet { fragment, ..packet.clone() }.frame();
        assert_eq!(programs.left(&frame), Outcome::NoFlow, "{fragment:#x}");
    }
    let unfragmented = Packet { fragment: 0x4000, ..packet.clone() };
    assert_eq!(programs.receive(&unfragmented.frame()).0, REDIRECT, "only DF");
    let mut short = packet.frame();
    short.truncate(ETHERNET + 20 + 12);
    short[ETHERNET + 3] = 20 + 12;
    assert_eq!(programs.left(&short), Outcome::NoFlow, "an incomplete header of TCP");
    programs.confirm(original, LOOPBACK + 1);
    assert_eq!(programs.left(&packet.frame()), Outcome::NoFlow, "by another interface");
    confirm();
    thread::sleep(Duration::from_millis(20));
    programs.flows.doubt(Duration::ZERO);
    assert_eq!(programs.left(&packet.frame()), Outcome::NoFlow, "in doubt");
}

#[test]
fn destinations_are_those_behind_translation_and_sources_those_before() {
    let programs = Programs::new();
    programs.set(false);
    let put = |original: Tuple, reply: Tuple| {
        programs.flows.put(original, reply).unwrap();
        programs.confirm(original, LOOPBACK);
        Packet::new(original).frame()
    };
    // A port that is forwarded: 10.9.0.0/16 is the router's own.
    let frame = put(
        tuple(UDP, "10.2.0.2:9000", "10.9.0.1:80"),
        tuple(UDP, "10.1.0.2:8080", "10.2.0.2:9000"),
    );
    assert_eq!(programs.receive(&frame).0, REDIRECT);
    let frame =
        put(tuple(UDP, "10.2.0.2:9001", "10.1.0.2:80"), tuple(UDP, "10.9.0.1:1", "10.2.0.2:9001"));
    assert_eq!(programs.left(&frame), Outcome::Route);
    let frame =
        put(tuple(UDP, "10.9.0.9:9001", "10.1.0.2:80"), tuple(UDP, "10.1.0.2:80", "10.9.0.9:9001"));
    assert_eq!(programs.left(&frame), Outcome::Source);
}

#[test]
fn tagged_packets_are_of_flows_that_the_kernel_receives_by_their_vlan() {
    let programs = Programs::new();
    programs.set(false);
    let six = (
        tuple(UDP, "[2001:db8::2]:5000", "[2001:db8:1::2]:80"),
        tuple(UDP, "[2001:db8:1::2]:80", "[2001:db8:2::1]:61000"),
    );
    for (original, reply) in [masqueraded(TCP), masqueraded(UDP), six] {
        let packet = Packet::new(original);
        let (frame, sent) = (packet.frame(), packet.sent_as(reply.inverse()));
        programs.flows.put(original, reply).unwrap();
        for (id, device) in arrivals() {
            programs.confirm(original, device);
            for priority in [0, 5] {
                let of = |id| arrived(&frame, id, priority);
                let sent = arrived(&sent, id, priority);
                assert_eq!(programs.receive(&of(id)), (REDIRECT, sent.clone()), "{id:?}");
                assert_eq!(programs.give_back(&sent), (PASS, of(id)), "{id:?}");
                for (other, _) in arrivals().filter(|(other, _)| *other != id) {
                    assert_eq!(programs.left(&of(other)), Outcome::NoFlow, "{id:?} {other:?}");
                }
            }
            for tag in [(DOT1Q, 0), (DOT1Q, 11), (DOT1Q, 0xa00), (DOT1AD, 10)] {
                assert_eq!(programs.left(&tagged(&frame, tag)), Outcome::OtherType, "{tag:x?}");
            }
            for outer in [(DOT1Q, 10), (DOT1AD, 20)] {
                let both = tagged(&tagged(&frame, (DOT1Q, 20)), outer);
                assert_eq!(programs.left(&both), Outcome::OtherType, "{outer:x?}");
            }
        }
        programs.flows.remove(original, reply);
        let sent = tagged(&sent, (DOT1Q, 10));
        assert_eq!(programs.give_back(&sent), (DROP, sent), "nobody knows what it was");
    }
    programs.vlans.remove(&10).unwrap();
    let frame = tagged(&Packet::new(masqueraded(TCP).0).frame(), (DOT1Q, 10));
    assert_eq!(programs.left(&frame), Outcome::OtherType, "a VLAN that is gone");
}

/// Runs a test in a network namespace of its own, whose interfaces a0 and b0 have their other ends there as well: a1 with the
/// MAC that frames are sent to, and b1. More lines of `ip` follow.
fn in_namespace(lines: &'static str, test: impl FnOnce() + Send + 'static) {
    eal();
    let begin = "link add a0 type veth peer name a1 address 02:00:00:00:00:01\n\
                 link add b0 type veth peer name b1\n\
                 link set a0 up\nlink set a1 up\nlink set b0 up\nlink set b1 up\n";
    let all = move || {
        // SAFETY: a system call without memory, for this thread alone.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "the test runs as root");
        let mut ip =
            Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        ip.stdin.take().unwrap().write_all([begin, lines].concat().as_bytes()).unwrap();
        assert!(ip.wait().unwrap().success());
        test();
    };
    thread::spawn(all).join().unwrap();
}

/// Returns the kernel's number of an interface.
fn number(name: &std::ffi::CStr) -> u32 {
    // SAFETY: a C string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Sends a frame by a0.
fn send(sender: &OwnedFd, frame: &[u8]) {
    // SAFETY: zeros are a value of the structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = number(c"a0").cast_signed();
    let (size, of) = (size_of_val(&address) as u32, (&raw const address).cast());
    let (socket, data) = (sender.as_raw_fd(), frame.as_ptr().cast());
    // SAFETY: a frame and an address with their lengths.
    let sent = unsafe { libc::sendto(socket, data, frame.len(), 0, of, size) };
    assert_eq!(sent, frame.len() as isize);
}

#[test]
fn the_kernel_confirms_what_it_sends() {
    let lines = "addr add 10.1.0.1/24 dev a1\naddr add 10.2.0.1/24 dev b0\n\
                 neigh add 10.2.0.2 lladdr 02:00:00:00:00:07 dev b0\n";
    let test = || {
        for (name, value) in
            [("ip_forward", "1"), ("conf/all/rp_filter", "0"), ("conf/a1/rp_filter", "0")]
        {
            fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
        }
        let (flows, vlans) = (Flows::new().unwrap(), Map::<u32, Settings>::hash(1).unwrap());
        let tap = FlowTap::open(number(c"b0"), &flows, vlans.descriptor().as_fd()).unwrap();
        let sender = packet_socket().unwrap();
        let send = |packet: &Packet| {
            send(&sender, &packet.frame());
            thread::sleep(Duration::from_millis(50));
        };
        let original = tuple(TCP, "10.1.0.2:5000", "10.2.0.2:80");
        let reply = original.inverse();
        let packet = Packet::new(original);
        flows.put(original, reply).unwrap();
        let confirmed = || {
            let entry = flows.map.get(&original.key()).unwrap();
            (entry.confirmed != 0).then_some(entry.ingress)
        };
        send(&packet);
        assert_eq!(confirmed(), None, "before anything was in doubt");
        flows.doubt(Duration::ZERO);
        // The programs' clock is some milliseconds late.
        thread::sleep(Duration::from_millis(20));
        for flags in [0x12, 0x11, 0x14] {
            send(&Packet { flags, ..packet.clone() });
            assert_eq!(confirmed(), None, "{flags:#x}");
        }
        send(&Packet::new(tuple(TCP, "10.1.0.2:5001", "10.2.0.2:80")));
        assert_eq!(confirmed(), None, "of another flow");
        fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        send(&packet);
        assert_eq!(confirmed(), None, "not forwarded");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        flows.doubt(Duration::from_secs(60));
        send(&packet);
        assert_eq!(confirmed(), None, "too early");
        flows.doubt(Duration::ZERO);
        thread::sleep(Duration::from_millis(20));
        send(&packet);
        assert_eq!(confirmed(), Some(number(c"a1")));
        assert_eq!(flows.map.get(&reply.key()).unwrap().confirmed, 0, "one direction");
        flows.end(original, reply);
        send(&packet);
        assert_eq!(confirmed(), None, "ended");
        flows.put(original, reply).unwrap();
        drop(tap);
        send(&packet);
        assert_eq!(confirmed(), None, "without a socket");
    };
    in_namespace(lines, test);
}

/// A bridge sends frames with the tags that they have: beside the frame where the device inserts tags, and in it.
#[test]
fn the_kernel_confirms_what_it_sends_by_accelerated_vlans() {
    let lines = "link add br0 type bridge\nlink set a1 master br0\nlink set b0 master br0\nlink set br0 up\n";
    let test = || {
        let (flows, vlans) = (Flows::new().unwrap(), Map::<u32, Settings>::hash(2).unwrap());
        let _tap = FlowTap::open(number(c"b0"), &flows, vlans.descriptor().as_fd()).unwrap();
        vlans.put(&10, &settings(false, 77)).unwrap();
        flows.doubt(Duration::ZERO);
        let sender = packet_socket().unwrap();
        let confirmed = |of: Tuple| {
            let entry = flows.map.get(&of.key()).unwrap();
            (entry.confirmed != 0).then_some(entry.ingress)
        };
        let put = |of: Tuple| flows.put(of, of.inverse()).unwrap();
        // Frames to a1's own MAC would stay there.
        let elsewhere = |of: Tuple| [&[2, 0, 0, 0, 0, 9], &Packet::new(of).frame()[6..]].concat();
        // Frames of another flow follow, which is confirmed when those without effect have been seen.
        let last = tuple(UDP, "10.1.0.2:5000", "10.2.0.2:90");
        let confirms = |of: Tuple, tags: &[(u16, u16)], expected: bool| {
            put(of);
            put(last);
            let frame = tags.iter().rev().fold(elsewhere(of), |frame, tag| tagged(&frame, *tag));
            let end = monotonic() + Duration::from_secs(30);
            while confirmed(if expected { of } else { last }).is_none() {
                assert!(monotonic() < end, "{of:?} {tags:x?}");
                send(&sender, &frame);
                send(&sender, &elsewhere(last));
                thread::sleep(Duration::from_millis(1));
            }
            confirmed(of)
        };
        let four = tuple(TCP, "10.1.0.2:5000", "10.2.0.2:80");
        let six = tuple(UDP, "[2001:db8::2]:5000", "[2001:db8::3]:80");
        for inserts in ["on", "off"] {
            let features = ["tx-vlan-offload", inserts, "tx-vlan-stag-hw-insert", inserts];
            let done = Command::new("ethtool").args(["-K", "b0"]).args(features).status();
            assert!(done.unwrap().success());
            for of in [four, six] {
                for tags in [&[][..], &[(DOT1Q, 10)], &[(DOT1Q, 5 << 13 | 10)]] {
                    assert_eq!(
                        confirms(of, tags, true),
                        Some(number(c"a1")),
                        "{inserts} {tags:x?}"
                    );
                }
                for tags in [
                    &[(DOT1Q, 11)][..],
                    &[(DOT1Q, 0)],
                    &[(DOT1AD, 10)],
                    &[(DOT1Q, 10), (DOT1Q, 10)],
                    &[(DOT1AD, 10), (DOT1Q, 10)],
                    &[(DOT1Q, 11), (DOT1Q, 10)],
                ] {
                    assert_eq!(confirms(of, tags, false), None, "{inserts} {tags:x?}");
                }
            }
        }
        vlans.remove(&10).unwrap();
        assert_eq!(confirms(four, &[(DOT1Q, 10)], false), None, "a VLAN that is gone");
    };
    in_namespace(lines, test);
}

fn address(four: bool) -> BoxedStrategy<IpAddr> {
    match four {
        true => {
            any::<u16>().prop_map(|low| IpAddr::from([10, 1, (low >> 8) as u8, low as u8])).boxed()
        }
        false => any::<u64>()
            .prop_map(|low| IpAddr::from((0x2001_0db8_u128 << 96 | u128::from(low)).to_be_bytes()))
            .boxed(),
    }
}

/// Both directions of a flow with any NAT.
fn directions() -> impl Strategy<Value = (Tuple, Tuple)> {
    let flow = |four| {
        let addresses = [address(four), address(four), address(four), address(four)];
        (addresses, any::<[u16; 4]>(), prop::sample::select(vec![TCP, UDP]))
    };
    any::<bool>().prop_flat_map(flow).prop_map(|(addresses, ports, protocol)| {
        let of = |from: usize, to: usize| Tuple {
            source: addresses[from],
            destination: addresses[to],
            source_port: ports[from],
            destination_port: ports[to],
            protocol,
        };
        (of(0, 1), of(2, 3))
    })
}

proptest! {
    #[test]
    fn translated_packets_have_the_checksums_of_new_ones(
        (original, reply) in directions(),
        payload in prop::collection::vec(any::<u8>(), 0..100),
        partial in any::<bool>(),
        unsummed in any::<bool>(),
        (arrival, priority) in (0_usize..3, 0_u16..8),
    ) {
        prop_assume!(original != reply);
        let programs = Programs::new();
        programs.set(partial);
        programs.flows.put(original, reply).unwrap();
        let (id, device) = arrivals().nth(arrival).unwrap();
        for (received, sent) in [(original, reply.inverse()), (reply, original.inverse())] {
            programs.confirm(received, device);
            let unsummed = unsummed && received.protocol == UDP && received.source.is_ipv4();
            let packet = Packet { payload: payload.clone(), partial, unsummed, ..Packet::new(received) };
            let translated = arrived(&packet.sent_as(sent), id, priority);
            prop_assert_eq!(programs.receive(&arrived(&packet.frame(), id, priority)), (REDIRECT, translated));
            // As the process completes them.
            let whole = Packet { partial: false, ..packet };
            let sent = arrived(&whole.sent_as(sent), id, priority);
            prop_assert_eq!(programs.give_back(&sent), (PASS, arrived(&whole.frame(), id, priority)));
        }
        programs.flows.remove(original, reply);
    }

    #[test]
    fn no_frame_is_anybody_elses(bytes in prop::collection::vec(any::<u8>(), 14..200), kind in 0_usize..5) {
        let programs = Programs::new();
        programs.set(true);
        let mut frame = bytes;
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        let types: [&[u8]; 5] = [
            &[0x08, 0x00, 0x45],
            &[0x86, 0xdd, 0x60],
            &[],
            &[0x81, 0x00, 0, 10, 0x08, 0x00, 0x45],
            &[0x81, 0x00, 0, 10, 0x86, 0xdd, 0x60],
        ];
        let end = (12 + types[kind].len()).min(frame.len());
        frame[12..end].copy_from_slice(&types[kind][..end - 12]);
        prop_assert_eq!(programs.receive(&frame), (PASS, frame.clone()));
        prop_assert_eq!(programs.give_back(&frame), (DROP, frame));
    }
}

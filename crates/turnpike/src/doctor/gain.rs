//! The gain of acceleration, as far as it is known beforehand: the share of the routes that lead over the interfaces and,
//! on request, the share of a sample of received packets. The rate is that of measurements on other machines.
//!
//! The sample is what a packet socket sees for a time: the kernel's stack gets these packets too, and nothing changes.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use machine::Machine;
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use wire::MacAddr;

/// Packets of a sample at most.
const SAMPLE_MOST: u64 = 200_000;

/// The longest wait for a packet of a sample.
const WAIT: Duration = Duration::from_millis(50);

/// Packets that this process sends, or another of the machine (`linux/if_packet.h`).
const OUTGOING: u8 = 4;

/// `linux/route.h`, `linux/ipv6_route.h`.
const RTF_UP: u32 = 1;
const RTF_REJECT: u32 = 0x0200;
const RTF_LOCAL: u32 = 0x8000_0000;
const RTF_ANYCAST: u32 = 0x0010_0000;

/// The treatment of packets by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Over one of the interfaces.
    Accelerated,
    /// To the machine itself.
    Own,
    /// Over another interface, or refused.
    Other,
}

/// The kernel's routes: those of table `main`, and the machine's own addresses.
#[derive(Debug, Default)]
pub struct Routes(BTreeMap<IpNet, Way>);

impl Routes {
    /// Reads them for these interfaces.
    pub fn read(machine: &Machine, interfaces: &[String]) -> Self {
        let mut routes = BTreeMap::new();
        let file = |name: &str| machine.read(&format!("/proc/self/net/{name}")).unwrap_or_default();
        let way = |device: &str, flags: u32| match flags & RTF_REJECT == 0 {
            true if interfaces.iter().any(|name| name == device) => Way::Accelerated,
            _ => Way::Other,
        };
        for (prefix, device, flags) in file("route").lines().skip(1).filter_map(route4) {
            routes.entry(prefix).or_insert(way(device, flags));
        }
        for (prefix, device, flags) in file("ipv6_route").lines().filter_map(route6) {
            let is_own = flags & (RTF_LOCAL | RTF_ANYCAST) != 0;
            routes.entry(prefix).or_insert(if is_own { Way::Own } else { way(device, flags) });
        }
        for address in own4(&file("fib_trie")) {
            routes.insert(IpNet::from(IpAddr::from(address)), Way::Own);
        }
        Self(routes)
    }

    /// Returns the number of prefixes of a family over the interfaces, and of all, own addresses aside.
    fn share(&self, is_ipv6: bool) -> (usize, usize) {
        let of = |(prefix, way): &(&IpNet, &Way)| {
            **way != Way::Own && prefix.addr().is_ipv6() == is_ipv6 && !is_special(prefix.addr())
        };
        let all: Vec<_> = self.0.iter().filter(of).collect();
        (all.iter().filter(|(_, way)| **way == Way::Accelerated).count(), all.len())
    }

    fn way(&self, address: IpAddr) -> Option<Way> {
        let host = IpNet::from(address);
        let shorter = (0..=host.prefix_len()).rev();
        shorter
            .map(|bits| IpNet::new_assert(address, bits).trunc())
            .find_map(|of| self.0.get(&of).copied())
    }
}

/// Returns the prefix, device and flags of a line of `/proc/net/route`.
fn route4(line: &str) -> Option<(IpNet, &str, u32)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    // As the machine has them in memory.
    let address = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok().map(u32::to_ne_bytes);
    let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
    let mask = Ipv4Addr::from(address(7)?);
    let prefix = IpNet::with_netmask(Ipv4Addr::from(address(1)?).into(), mask.into()).ok()?;
    Some((prefix, fields.first()?, flags))
}

/// Returns the prefix, device and flags of a line of `/proc/net/ipv6_route`.
fn route6(line: &str) -> Option<(IpNet, &str, u32)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let address = u128::from_str_radix(fields.first()?, 16).ok()?;
    let bits = u8::from_str_radix(fields.get(1)?, 16).ok()?;
    let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
    // The kernel has a route of its own that refuses, behind all others.
    let is_last = fields.get(5) == Some(&"ffffffff");
    let prefix = IpNet::new(Ipv6Addr::from(address).into(), bits).ok()?;
    (!is_last && flags & (RTF_UP | RTF_REJECT) != 0).then_some((prefix, *fields.get(9)?, flags))
}

/// Returns the machine's own addresses in `/proc/net/fib_trie`.
fn own4(text: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(leaf) = line.strip_prefix("|-- ") {
            last = leaf.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(last);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// True for addresses that routers do not forward.
fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(of) => {
            let [first, ..] = of.octets();
            first == 127 || first >= 224 || (first == 0 && !of.is_unspecified())
        }
        IpAddr::V6(of) => of.is_multicast() || of.is_unicast_link_local() || of.is_loopback(),
    }
}

/// The packets of a sample, by what would become of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sample {
    taken: u64,
    /// To the machine itself.
    own: u64,
    /// By other interfaces, or without a route, or from addresses without one.
    elsewhere: u64,
    /// Broadcasts, multicasts, frames of other stations.
    others: u64,
    /// Neither IPv4 nor IPv6, or with options, or expiring here.
    odd: u64,
}

impl Sample {
    /// Looks at the packets that the interfaces receive for a time.
    ///
    /// # Errors
    /// There is no packet socket for this user.
    pub fn take(
        machine: &Machine,
        interfaces: &[String],
        routes: &Routes,
        time: Duration,
    ) -> io::Result<Self> {
        let number = |name: &String| {
            let index = machine.number::<usize>(&format!("/sys/class/net/{name}/ifindex"))?;
            Some((index, machine.interface(name)?.mac?.parse::<MacAddr>().ok()?))
        };
        let wanted: BTreeMap<usize, MacAddr> = interfaces.iter().filter_map(number).collect();
        let (packet, raw) = (AddressFamily::Packet, SockType::Raw);
        let opened = socket(packet, raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
        setsockopt(
            &opened,
            sockopt::ReceiveTimeout,
            &TimeVal::microseconds(WAIT.as_micros() as i64),
        )?;
        let (mut sample, end) = (Self::default(), Instant::now() + time);
        let mut frame = [0; 128];
        while Instant::now() < end && sample.all() < SAMPLE_MOST {
            let Ok((length, from)) = recvfrom::<LinkAddr>(opened.as_raw_fd(), &mut frame) else {
                continue;
            };
            let Some(from) = from.filter(|from| from.pkttype() != OUTGOING) else { continue };
            if let Some(mac) = wanted.get(&from.ifindex()) {
                sample.count(&frame[..length.min(frame.len())], *mac, routes);
            }
        }
        Ok(sample)
    }

    fn all(&self) -> u64 {
        self.taken + self.own + self.elsewhere + self.others + self.odd
    }

    /// Counts a frame that an interface with this MAC has received.
    fn count(&mut self, frame: &[u8], mac: MacAddr, routes: &Routes) {
        let place = if frame.get(..6) != Some(&mac.0[..]) {
            &mut self.others
        } else {
            match addresses(frame) {
                None => &mut self.odd,
                Some((source, target)) if is_special(source) || is_special(target) => &mut self.odd,
                Some((source, target)) => match (routes.way(target), routes.way(source)) {
                    (Some(Way::Accelerated), Some(Way::Accelerated)) => &mut self.taken,
                    (Some(Way::Own), _) => &mut self.own,
                    _ => &mut self.elsewhere,
                },
            }
        };
        *place += 1;
    }

    /// Describes it.
    fn words(&self, time: Duration) -> String {
        let (all, seconds) = (self.all(), time.as_secs_f32());
        if all == 0 {
            return format!("traffic: none was received in {seconds} s");
        }
        let parts = [
            (self.own, "for the machine itself"),
            (self.elsewhere, "by other interfaces or without a route"),
            (self.others, "broadcasts, multicasts and others' frames"),
            (self.odd, "of other protocols, with options or expiring"),
        ];
        let percent = |part: u64| part as f64 * 100.0 / all as f64;
        let rest = parts.iter().filter(|(count, _)| *count > 0);
        let rest: String =
            rest.map(|(count, what)| format!("; {:.0} % are {what}", percent(*count))).collect();
        format!(
            "traffic: of {all} packets received in {seconds} s, {:.0} % would have been taken{rest}",
            percent(self.taken)
        )
    }
}

/// Returns source and destination of a plain IP packet that may be forwarded.
fn addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (kind, packet) = (frame.get(12..14)?, frame.get(14..)?);
    let four = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    let six =
        |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
    match kind {
        [0x08, 0x00] if packet.first() == Some(&0x45) && *packet.get(8)? > 1 => {
            Some((four(12)?.into(), four(16)?.into()))
        }
        [0x86, 0xdd] if *packet.get(6)? != 0 && *packet.get(7)? > 1 => {
            Some((six(8)?.into(), six(24)?.into()))
        }
        _ => None,
    }
}

/// Returns the report, in lines.
pub fn lines(machine: &Machine, interfaces: &[String], sample: Option<Duration>) -> Vec<String> {
    let routes = Routes::read(machine, interfaces);
    let share = |family: &str, is_ipv6| {
        let (taken, all) = routes.share(is_ipv6);
        format!("{taken} of {all} {family} prefixes")
    };
    let (four, six) = (share("IPv4", false), share("IPv6", true));
    let traffic = match sample {
        None => "traffic: not looked at; --sample 1 does for a second".to_owned(),
        Some(time) => match Sample::take(machine, interfaces, &routes, time) {
            Ok(sample) => sample.words(time),
            Err(error) => format!("traffic: cannot tell: {error}"),
        },
    };
    vec![
        format!("routes: {four} and {six} of table main lead over these interfaces"),
        traffic,
        "rate: 1.25 to 1.9 times the kernel's where it was measured, on veth interfaces, the more the larger the table; \
         zero copy on NICs is not measured yet, and generic XDP may gain nothing"
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use machine::testing::Tree;

    use super::*;

    const ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth1\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        wg0\t0009000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        *\t0008000A\t00000000\t0200\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    const ROUTE6: &str = "\
        20010db8000000000000000000000000 20 00000000000000000000000000000000 00 fd000002000000000000000000000002 00000400 00000001 00000000 00000003 eth1\n\
        fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000002 00000000 00000001 eth0\n\
        fd000001000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001 eth0\n";
    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.1.0\n        /24 link UNICAST\n     |-- 10.0.1.1\n        \
                        /32 host LOCAL\n";

    fn routes() -> Routes {
        let tree = Tree::new(&[
            ("proc/self/net/route", ROUTE),
            ("proc/self/net/ipv6_route", ROUTE6),
            ("proc/self/net/fib_trie", TRIE),
        ]);
        Routes::read(&tree.machine(), &["eth0".to_owned(), "eth1".to_owned()])
    }

    #[test]
    fn routes_have_ways_by_the_longest_prefix() {
        let routes = routes();
        let way = |address: &str| routes.way(address.parse().unwrap());
        assert_eq!(way("192.0.2.1"), Some(Way::Accelerated));
        assert_eq!(way("10.0.1.2"), Some(Way::Accelerated));
        assert_eq!(way("10.0.1.1"), Some(Way::Own));
        assert_eq!(way("10.0.9.1"), Some(Way::Other));
        assert_eq!(way("10.0.8.1"), Some(Way::Other));
        assert_eq!(way("2001:db8::1"), Some(Way::Accelerated));
        assert_eq!(way("fd00:1::1"), Some(Way::Own));
        assert_eq!(way("2a00::1"), None);
        assert_eq!((routes.share(false), routes.share(true)), ((2, 4), (1, 1)));
    }

    #[test]
    fn packets_are_counted_as_the_program_would() {
        let (routes, mut sample) = (routes(), Sample::default());
        let mac = [2, 0, 0, 0, 1, 1];
        let frame = |to: [u8; 6], kind: [u8; 2], ttl: u8, target: [u8; 4]| {
            let addresses = [&to[..], &[2, 0, 0, 0, 1, 2], &kind].concat();
            let header = [0x45, 0, 0, 20, 0, 0, 0, 0, ttl, 17, 0, 0, 10, 0, 1, 2];
            [&addresses[..], &header, &target].concat()
        };
        let ip = [8, 0];
        for frame in [
            frame(mac, ip, 64, [192, 0, 2, 1]),
            frame(mac, ip, 64, [10, 0, 1, 1]),
            frame(mac, ip, 64, [10, 0, 9, 1]),
            frame(mac, ip, 1, [192, 0, 2, 1]),
            frame(mac, [8, 6], 64, [192, 0, 2, 1]),
            frame([0xff; 6], ip, 64, [192, 0, 2, 1]),
            frame(mac, ip, 64, [192, 0, 2, 1])[..20].to_vec(),
        ] {
            sample.count(&frame, MacAddr(mac), &routes);
        }
        let expected = Sample { taken: 1, own: 1, elsewhere: 1, others: 1, odd: 3 };
        assert_eq!(sample, expected);
        let words = sample.words(Duration::from_secs(1));
        assert!(words.starts_with("traffic: of 7 packets received in 1 s, 14 % would"), "{words}");
    }
}

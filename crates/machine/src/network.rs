//! Kernel interfaces: link, MAC, the interfaces above them, and the machine's needs for them:
//! addresses, default routes, remote sessions.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::Machine;

/// `IFF_UP` of `linux/if.h`.
const IFF_UP: u32 = 1;

/// The port of SSH.
const SSH: u16 = 22;

/// A kernel interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC address, if it has one.
    pub mac: Option<String>,
    /// True if it is administratively up.
    pub up: bool,
    /// True if it has carrier; `None` while it is down.
    pub carrier: Option<bool>,
    /// Megabits per second, if the device reports it.
    pub speed_mbps: Option<u32>,
    /// The largest IP packet in bytes.
    pub mtu: Option<u32>,
}

/// The machine's use of its interfaces, in this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Addresses by interface, except automatic ones (fe80::/10).
    pub addresses: BTreeMap<String, Vec<IpNet>>,
    /// Interfaces of default routes.
    pub default_routes: BTreeSet<String>,
    /// Interfaces taken over by routers, with the processes.
    pub routers: BTreeMap<String, String>,
    /// Local addresses of remote sessions, read when an interface with addresses is first looked at: for that the
    /// kernel walks its whole table of connections.
    sessions: OnceCell<BTreeSet<IpAddr>>,
}

impl Network {
    /// Returns the network of the machine that the program runs on.
    pub fn here() -> Self {
        let machine = Machine::here();
        let user = |name: String| dpdk::interface_user(&name).map(|process| (name, process));
        Self {
            addresses: addresses(),
            default_routes: machine.default_routes(),
            routers: machine.interfaces().into_iter().filter_map(user).collect(),
            sessions: OnceCell::new(),
        }
    }

    /// Returns true if a remote session ends at this address.
    pub fn has_session(&self, address: IpAddr) -> bool {
        let here = || {
            let mut sessions = Machine::here().sessions();
            sessions.extend(own_session(env::var("SSH_CONNECTION").ok().as_deref()));
            sessions
        };
        self.sessions.get_or_init(here).contains(&address)
    }

    /// The same network with these sessions.
    #[cfg(test)]
    pub fn with_sessions(self, sessions: impl IntoIterator<Item = IpAddr>) -> Self {
        Self { sessions: OnceCell::from(BTreeSet::from_iter(sessions)), ..self }
    }
}

/// Returns the addresses that the kernel reports to this process.
fn addresses() -> BTreeMap<String, Vec<IpNet>> {
    let mut addresses: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
    for found in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let ip = |storage: Option<nix::sys::socket::SockaddrStorage>| -> Option<IpAddr> {
            let storage = storage?;
            let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        };
        let (Some(address), Some(mask)) = (ip(found.address), ip(found.netmask)) else { continue };
        let of_itself = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let Ok(net) = IpNet::with_netmask(address, mask) else { continue };
        if !of_itself {
            addresses.entry(found.interface_name).or_default().push(net);
        }
    }
    addresses
}

/// Returns the local address of the caller's own session: `CLIENT PORT SERVER PORT`.
fn own_session(connection: Option<&str>) -> Option<IpAddr> {
    connection?.split_whitespace().nth(2)?.parse().ok()
}

impl Machine {
    /// Returns a kernel interface; `None` if there is none of this name.
    pub fn interface(&self, name: &str) -> Option<Interface> {
        let base = format!("/sys/class/net/{name}");
        let flags = self.read(&format!("{base}/flags"))?;
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
        // While it is down, the kernel refuses to read these.
        let carrier = self.number::<u8>(&format!("{base}/carrier")).map(|up| up == 1);
        let speed = self.number::<i64>(&format!("{base}/speed")).filter(|&speed| speed > 0);
        Some(Interface {
            name: name.to_owned(),
            mac: self.read(&format!("{base}/address")).filter(|mac| !mac.is_empty()),
            up: flags & IFF_UP != 0,
            carrier,
            speed_mbps: speed.and_then(|speed| u32::try_from(speed).ok()),
            mtu: self.number(&format!("{base}/mtu")),
        })
    }

    /// Returns the names of the interfaces of this network namespace, except the loopback.
    pub fn interfaces(&self) -> Vec<String> {
        let table = self.read("/proc/self/net/dev").unwrap_or_default();
        let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
        names.filter(|name| *name != "lo").map(str::to_owned).collect()
    }

    /// Returns an interface, and those created over it: VLANs, bridges, bonds.
    pub fn with_uppers(&self, name: &str) -> Vec<String> {
        let mut found = vec![name.to_owned()];
        let mut next = 0;
        while let Some(name) = found.get(next).cloned() {
            let entries = self.names(&format!("/sys/class/net/{name}"));
            for upper in entries.iter().filter_map(|entry| entry.strip_prefix("upper_")) {
                if !found.iter().any(|known| known == upper) {
                    found.push(upper.to_owned());
                }
            }
            next += 1;
        }
        found
    }

    /// Returns the interfaces of default routes.
    fn default_routes(&self) -> BTreeSet<String> {
        let v4 = self.read("/proc/self/net/route").unwrap_or_default();
        let v4 = v4.lines().filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let is_default = words.get(1) == Some(&"00000000") && words.get(7) == Some(&"00000000");
            is_default.then(|| words[0].to_owned())
        });
        let v6 = self.read("/proc/self/net/ipv6_route").unwrap_or_default();
        let v6 = v6.lines().filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let is_default = words.first().is_some_and(|to| to.bytes().all(|digit| digit == b'0'))
                && words.get(1) == Some(&"00");
            // The kernel has a default route over the loopback that refuses packets without another
            // route.
            is_default
                .then(|| words.last().copied().filter(|name| *name != "lo"))?
                .map(str::to_owned)
        });
        v4.chain(v6).collect()
    }

    /// Returns the local addresses of established SSH sessions.
    fn sessions(&self) -> BTreeSet<IpAddr> {
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
        let tables = tables.map(|table| self.read(table).unwrap_or_default());
        tables.iter().flat_map(|table| table.lines().filter_map(session)).collect()
    }
}

/// Returns the local address in a line of `/proc/net/tcp` or `tcp6` about an SSH session.
fn session(line: &str) -> Option<IpAddr> {
    const ESTABLISHED: &str = "01";
    let words: Vec<_> = line.split_whitespace().collect();
    let (address, port) = words.get(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != SSH || words.get(3) != Some(&ESTABLISHED) {
        return None;
    }
    // Each 32-bit word is in the machine's byte order.
    let word =
        |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    if address.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let words = [word(0)?, word(8)?, word(16)?, word(24)?];
    let bytes: [u8; 16] = words.concat().try_into().ok()?;
    Some(Ipv6Addr::from(bytes).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    #[test]
    fn interfaces_are_read_up_and_down() {
        let tree = Tree::new(&[
            ("sys/class/net/eth0/flags", "0x1003\n"),
            ("sys/class/net/eth0/address", "52:54:00:00:00:01\n"),
            ("sys/class/net/eth0/carrier", "1\n"),
            ("sys/class/net/eth0/speed", "10000\n"),
            ("sys/class/net/eth0/mtu", "9000\n"),
            ("sys/class/net/eth1/flags", "0x1002\n"),
            ("sys/class/net/eth1/speed", "-1\n"),
        ]);
        let eth0 = Interface {
            name: "eth0".into(),
            mac: Some("52:54:00:00:00:01".into()),
            up: true,
            carrier: Some(true),
            speed_mbps: Some(10_000),
            mtu: Some(9000),
        };
        let eth1 = Interface { name: "eth1".into(), ..Interface::default() };
        let interface = |name| tree.machine().interface(name);
        assert_eq!((interface("eth0"), interface("eth1")), (Some(eth0), Some(eth1)));
        assert_eq!(interface("eth2"), None);
    }

    #[test]
    fn interfaces_above_are_found_through_others_once() {
        let tree = Tree::new(&[]);
        for (lower, upper) in [("eth0", "bond0"), ("bond0", "vlan5"), ("vlan5", "eth0")] {
            tree.link(&format!("sys/class/net/{lower}/upper_{upper}"), "x");
        }
        assert_eq!(tree.machine().with_uppers("eth0"), ["eth0", "bond0", "vlan5"]);
        assert_eq!(tree.machine().with_uppers("eth1"), ["eth1"]);
    }

    #[test]
    fn default_routes_of_both_families_are_found() {
        let zero = "0".repeat(32);
        let tree = Tree::new(&[(
            "proc/self/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
             eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n\
             eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
             eth4\t00000000\t00000000\t0001\t0\t0\t0\t00000080\n",
        )]);
        let line = |to: &str, length: &str, name: &str| {
            format!("{to} {length} {zero} 00 {zero} 00000400 1 0 3 {name}\n")
        };
        let one = format!("1{}", &zero[1..]);
        let table =
            line(&zero, "00", "eth2") + &line(&zero, "00", "lo") + &line(&one, "40", "eth3");
        tree.write("proc/self/net/ipv6_route", table);
        let expected = ["eth0", "eth2"].map(str::to_owned);
        assert_eq!(tree.machine().default_routes(), BTreeSet::from(expected));
    }

    #[test]
    fn sessions_are_the_established_ones_at_port_22() {
        let table = "  sl  local_address rem_address   st\n   \
                     0: 0500000A:0016 0600000A:C000 01 0\n   \
                     1: 0700000A:0016 0600000A:C000 0A 0\n   \
                     2: 0800000A:0050 0600000A:C000 01 0\n";
        let mapped = "   0: 0000000000000000FFFF00000900000A:0016 0:0 01\n   \
                      1: 000000FD000000000000000001000000:0016 0:0 01\n   \
                      2: 00:0016 0:0 01\n";
        let tree = Tree::new(&[("proc/self/net/tcp", table), ("proc/self/net/tcp6", mapped)]);
        let expected = ["10.0.0.5", "10.0.0.9", "fd00::1"].map(|text| text.parse().unwrap());
        assert_eq!(tree.machine().sessions(), BTreeSet::from(expected));
        let own = own_session(Some("192.0.2.9 50000 192.0.2.1 22"));
        assert_eq!((own, own_session(Some("x"))), (Some("192.0.2.1".parse().unwrap()), None));
    }

    #[test]
    fn this_machine_has_a_loopback_address() {
        let loopback = addresses();
        let net: IpNet = "127.0.0.1/8".parse().unwrap();
        // The loopback may be down in a namespace.
        assert!(loopback.get("lo").is_none_or(|nets| nets.contains(&net)), "{loopback:?}");
    }
}

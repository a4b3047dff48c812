//! Files of `/proc/net`: connections in use, virtual servers, packet sockets.

use std::fs;

use crate::finding::{Action, Finding, Kind, Packets, Place};
use crate::links::Links;

/// Header lines of `/proc/net/ip_vs`.
const IP_VS_HEADER: usize = 3;
/// `ETH_P_ALL`, as the file has it.
const ALL_PROTOCOLS: &str = "0003";

/// Reads the state that only these files have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proc {
    /// True if the kernel tracks any connection.
    pub has_connections: bool,
    /// True if there are virtual servers.
    pub has_virtual_servers: bool,
    /// The interfaces that packet sockets for all protocols listen to; 0: all.
    pub taps: Vec<u32>,
}

/// Reads them, of the calling thread's namespace.
pub fn read() -> Proc {
    let of_net = |name: &str| {
        fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
    };
    let count =
        fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap_or_default();
    Proc {
        has_connections: count.trim().parse().unwrap_or(0_u64) > 0,
        has_virtual_servers: of_net("ip_vs").lines().count() > IP_VS_HEADER,
        taps: taps(&of_net("packet")),
    }
}

/// Reads `/proc/net/packet`.
fn taps(file: &str) -> Vec<u32> {
    let tap = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (protocol, interface) = (words.next()?, words.next()?);
        (protocol == ALL_PROTOCOLS).then(|| interface.parse().ok()).flatten()
    };
    let mut taps: Vec<u32> = file.lines().skip(1).filter_map(tap).collect();
    taps.sort_unstable();
    taps.dedup();
    taps
}

impl Proc {
    /// Returns the findings about virtual servers and packet sockets.
    pub fn findings(&self, links: &Links) -> Vec<Finding> {
        let ipvs = self.has_virtual_servers.then(|| {
            let place = Place::File { path: "/proc/net/ip_vs".into() };
            let message =
                "IPVS has virtual servers, whose packets it changes when they are forwarded";
            Finding::refuse(Kind::Ipvs, place, Packets::All, message, "remove them: ipvsadm -C")
        });
        ipvs.into_iter().chain(self.of_taps(links)).collect()
    }

    fn of_taps(&self, links: &Links) -> Option<Finding> {
        let is_tapped = |index: u32| self.taps.iter().any(|&tap| tap == 0 || tap == index);
        let tapped: Vec<String> = links
            .taken()
            .filter(|link| is_tapped(link.index))
            .map(|link| link.name.clone())
            .collect();
        if tapped.is_empty() {
            return None;
        }
        let names = tapped.join(", ");
        let place = Place::File { path: "/proc/net/packet".into() };
        let message = format!(
            "a packet socket (tcpdump, for example) on {names} does not see accelerated packets"
        );
        Some(Finding::new(Kind::Taps, place, Packets::ReceivedOn(tapped), Action::Note, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_for_all_protocols_are_taps() {
        let file = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                    00000000a 3      3    0003   2     1 0      0      1234\n\
                    00000000b 3      3    88cc   3     1 0      0      1235\n\
                    00000000c 3      3    0003   2     1 0      0      1236\n";
        assert_eq!(taps(file), [2]);
        assert!(taps("short\n1 2\n").is_empty());
    }
}

//! Addresses derived from others: multicast MACs, solicited-node groups, link-local addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::MacAddr;

/// `ff02::1`: all nodes on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// `ff02::2`: all routers on the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// `ff02::16`: all MLDv2-capable routers, the destination of reports (RFC 3810, 5.2.14).
pub const ALL_MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Returns the Ethernet address of an IPv4 group: `01:00:5e` and the low 23 bits (RFC 1112, 6.4).
pub fn multicast_mac_v4(group: Ipv4Addr) -> MacAddr {
    let [_, b, c, d] = group.octets();
    MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
}

/// Returns the Ethernet address of an IPv6 group: `33:33` and the low 32 bits (RFC 2464, 7).
pub fn multicast_mac_v6(group: Ipv6Addr) -> MacAddr {
    let octets = group.octets();
    MacAddr([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
}

/// Returns the group in which a host listens for solicitations of this address:
/// `ff02::1:ff00:0/104` and the low 24 bits (RFC 4291, 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

/// Returns the link-local address of an interface with this MAC: `fe80::/64` and the modified
/// EUI-64 (RFC 4291, 2.5.6 and appendix A).
pub fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let a = a ^ 0x02; // the universal/local bit is inverted
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_macs_of_the_rfcs() {
        let v4 = |text: &str| multicast_mac_v4(text.parse().unwrap()).to_string();
        assert_eq!(v4("224.0.0.1"), "01:00:5e:00:00:01");
        // Only 23 bits are mapped: the top bit of the second byte is lost.
        assert_eq!(v4("239.255.1.2"), "01:00:5e:7f:01:02");
        assert_eq!(multicast_mac_v6(ALL_MLDV2_ROUTERS).to_string(), "33:33:00:00:00:16");
        let group: Ipv6Addr = "ff02::1:ff28:9c5a".parse().unwrap();
        assert_eq!(multicast_mac_v6(group).to_string(), "33:33:ff:28:9c:5a");
    }

    #[test]
    fn the_solicited_node_group_is_the_example_of_rfc_4291() {
        let address: Ipv6Addr = "4037::01:800:200e:8c6c".parse().unwrap();
        assert_eq!(solicited_node(address).to_string(), "ff02::1:ff0e:8c6c");
    }

    #[test]
    fn the_link_local_address_is_the_example_of_rfc_2464() {
        let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(link_local(mac).to_string(), "fe80::3656:78ff:fe9a:bcde");
    }
}

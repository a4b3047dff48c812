//! Requests to the kernel.

use std::net::IpAddr;

use ipnet::IpNet;
use libc::{IFA_ADDRESS, IFA_BROADCAST, IFA_LOCAL, NDA_DST, NTF_USE};

use super::message::{
    AF_INET, AF_INET6, AF_UNSPEC, HEADER, IFLA_MASTER, IFLA_MTU, NLM_F_CREATE, NLM_F_DUMP,
    NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, RTM_DELADDR, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK,
    RTM_NEWNEIGH,
};

const IFLA_CARRIER: u16 = linux_raw_sys::netlink::IFLA_CARRIER as u16;

/// A message under construction.
pub(super) struct Request(Vec<u8>);

impl Request {
    pub(super) fn new(kind: u16, flags: u16, sequence: u32, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(fixed);
        Self(bytes)
    }

    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).expect("values have at most 16 bytes");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("a few attributes");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns a request for all objects of a type.
pub(super) fn dump(kind: u16, family: u8, fixed: usize, sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; fixed];
    bytes[0] = family;
    Request::new(kind, NLM_F_DUMP, sequence, &bytes).finish()
}

/// Builds `struct ndmsg` with `NTF_USE`: the kernel resolves the neighbour, or confirms it if
/// stale.
pub(super) fn resolve(index: u32, address: IpAddr, sequence: u32) -> Vec<u8> {
    let mut fixed = [0; 12];
    fixed[0] = family(address);
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    fixed[10] = NTF_USE;
    Request::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, sequence, &fixed)
        .attribute(NDA_DST, &octets(address))
        .finish()
}

/// Builds `struct ifinfomsg` of an interface.
fn link(kind: u16, index: u32, sequence: u32) -> Request {
    let mut fixed = [0; 16];
    fixed[0] = AF_UNSPEC;
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    Request::new(kind, 0, sequence, &fixed)
}

/// Sets the carrier of a device.
pub(super) fn carrier(index: u32, up: bool, sequence: u32) -> Vec<u8> {
    link(RTM_NEWLINK, index, sequence).attribute(IFLA_CARRIER, &[u8::from(up)]).finish()
}

/// Sets the MTU of an interface.
pub(super) fn mtu(index: u32, mtu: u16, sequence: u32) -> Vec<u8> {
    link(RTM_NEWLINK, index, sequence).attribute(IFLA_MTU, &u32::from(mtu).to_ne_bytes()).finish()
}

/// Puts an interface into a VRF device, or takes it out of the one that it is in.
pub(super) fn master(index: u32, master: Option<u32>, sequence: u32) -> Vec<u8> {
    let master = master.unwrap_or(0).to_ne_bytes();
    link(RTM_NEWLINK, index, sequence).attribute(IFLA_MASTER, &master).finish()
}

/// Requests an interface's state.
pub(super) fn ask_link(index: u32, sequence: u32) -> Vec<u8> {
    link(RTM_GETLINK, index, sequence).finish()
}

/// Builds `struct ifaddrmsg` of an interface's address.
fn address_message(kind: u16, flags: u16, index: u32, address: IpNet, sequence: u32) -> Request {
    let mut fixed = [0; 8];
    fixed[0] = family(address.addr());
    fixed[1] = address.prefix_len();
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let own = octets(address.addr());
    let request = Request::new(kind, flags, sequence, &fixed);
    request.attribute(IFA_LOCAL, &own).attribute(IFA_ADDRESS, &own)
}

/// Removes an address from an interface.
pub(super) fn remove_address(index: u32, address: IpNet, sequence: u32) -> Vec<u8> {
    address_message(RTM_DELADDR, 0, index, address, sequence).finish()
}

/// Adds an address to an interface.
pub(super) fn add_address(index: u32, address: IpNet, sequence: u32) -> Vec<u8> {
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    let request = address_message(RTM_NEWADDR, flags, index, address, sequence);
    match address {
        IpNet::V4(net) if net.prefix_len() < 31 => {
            request.attribute(IFA_BROADCAST, &net.broadcast().octets()).finish()
        }
        _ => request.finish(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{AddressMessage, Message, Messages};
    use super::*;

    /// Requests are understood by the reader of the kernel's messages.
    #[test]
    fn requests_are_read_back() {
        let parse = |bytes: &[u8]| {
            let raw = Messages(bytes).next().unwrap().unwrap();
            (raw.kind, raw.flags, raw.sequence, Message::parse(&raw).unwrap())
        };
        let net: IpNet = "10.0.1.1/24".parse().unwrap();
        let (kind, flags, sequence, message) = parse(&add_address(7, net, 5));
        assert_eq!((kind, flags, sequence), (RTM_NEWADDR, 0x601, 5));
        let expected = AddressMessage { index: 7, address: net, length: 24, refused: false };
        assert_eq!(message, Message::Address(expected));
        let (kind, flags, sequence, message) = parse(&remove_address(7, net, 6));
        assert_eq!((kind, flags, sequence), (RTM_DELADDR, 1, 6));
        assert_eq!(message, Message::Address(expected));
        let (_, _, _, message) = parse(&resolve(9, "2001:db8::1".parse().unwrap(), 6));
        let Message::Neighbour(neighbour) = message else { panic!("{message:?}") };
        assert_eq!((neighbour.index, neighbour.state), (9, 0));
        assert_eq!(neighbour.address, "2001:db8::1".parse::<IpAddr>().unwrap());
        let bytes = ask_link(3, 7);
        assert_eq!(parse(&bytes), (RTM_GETLINK, 1, 7, Message::Other));
        assert_eq!((bytes.len(), &bytes[20..24]), (32, &3_u32.to_ne_bytes()[..]));
        assert_eq!(carrier(3, true, 9)[32..], [5, 0, 33, 0, 1, 0, 0, 0]);
        let bytes = mtu(3, 1300, 9);
        assert_eq!((parse(&bytes).0, &bytes[20..24]), (RTM_NEWLINK, &3_u32.to_ne_bytes()[..]));
        assert_eq!(bytes[32..], [8, 0, 4, 0, 0x14, 5, 0, 0]);
        for (wanted, number) in [(Some(9), 9), (None, 0)] {
            assert_eq!(master(3, wanted, 9)[32..], [8, 0, 10, 0, number, 0, 0, 0]);
        }
    }
}

//! Answers to address resolution: the receiver has every requested address.
//!
//! ARP requests (RFC 826) and neighbour solicitations (RFC 4861, 7.2.4) for any target get the
//! receiver's MAC; announcements (RFC 5227, 3) and probes for a duplicate (RFC 4861, 7.2.3: from
//! the unspecified address) do not.

use std::net::Ipv6Addr;

use wire::MacAddr;
use wire::arp::{ArpMessage, REPLY, REQUEST};
use wire::build::{self, Link};
use wire::nd::{FLAG_OVERRIDE, FLAG_SOLICITED};
use zerocopy::FromBytes;

/// Returns the answer to a frame, if it resolves an address.
pub fn answer(frame: &[u8], mac: MacAddr) -> Option<Vec<u8>> {
    match frame.get(12..14)? {
        [0x08, 0x06] => arp(frame, mac),
        [0x86, 0xdd] => solicitation(frame, mac),
        _ => None,
    }
}

fn arp(frame: &[u8], mac: MacAddr) -> Option<Vec<u8>> {
    let (message, _) = ArpMessage::read_from_prefix(frame.get(14..)?).ok()?;
    let asks = message.is_ethernet_ipv4() && message.operation == REQUEST;
    if !asks || message.sender() == message.target() || message.sender().is_unspecified() {
        return None;
    }
    let asker = (message.sender_mac, message.sender());
    let reply = ArpMessage::new(REPLY, (mac, message.target()), asker);
    Some(build::arp(Link { destination: message.sender_mac, source: mac }, &reply))
}

fn solicitation(frame: &[u8], mac: MacAddr) -> Option<Vec<u8>> {
    let address =
        |at: usize| frame.get(at..)?.first_chunk().map(|bytes: &[u8; 16]| Ipv6Addr::from(*bytes));
    let is_solicitation = *frame.get(20)? == 58 && *frame.get(21)? == 255 && *frame.get(54)? == 135;
    let (source, target) = (address(22)?, address(62)?);
    if !is_solicitation || source.is_unspecified() {
        return None;
    }
    let asker = MacAddr(*frame.get(6..)?.first_chunk()?);
    let link = Link { destination: asker, source: mac };
    let flags = FLAG_SOLICITED | FLAG_OVERRIDE;
    Some(build::neighbour_advertisement(link, target, source, target, flags))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    #[test]
    fn arp_requests_are_answered_and_announcements_not() {
        let (router, host) = (Ipv4Addr::new(10, 0, 2, 1), Ipv4Addr::new(10, 0, 2, 77));
        let ask = |sender, target| {
            let message = ArpMessage::new(REQUEST, (ROUTER, sender), (MacAddr([0; 6]), target));
            build::arp(Link { destination: MacAddr([0xff; 6]), source: ROUTER }, &message)
        };
        let reply = answer(&ask(router, host), OURS).unwrap();
        assert_eq!(reply[..6], ROUTER.0);
        let (message, _) = ArpMessage::read_from_prefix(&reply[14..]).unwrap();
        assert_eq!((message.sender_mac, message.sender(), message.target()), (OURS, host, router));
        assert_eq!(answer(&ask(router, router), OURS), None, "an announcement");
        assert_eq!(answer(&ask(Ipv4Addr::UNSPECIFIED, host), OURS), None, "a probe");
        assert_eq!(answer(&reply, OURS), None, "a reply");
    }

    #[test]
    fn solicitations_are_answered() {
        let router = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let host = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
        let question = build::neighbour_solicitation(ROUTER, router, host, None);
        let reply = answer(&question, OURS).unwrap();
        assert_eq!(reply[..6], ROUTER.0);
        assert_eq!((reply[54], reply[58]), (136, FLAG_SOLICITED | FLAG_OVERRIDE));
        assert_eq!(reply[62..78], host.octets());
        let probe = build::neighbour_solicitation(ROUTER, Ipv6Addr::UNSPECIFIED, host, None);
        assert_eq!(answer(&probe, OURS), None);
        assert_eq!(answer(&question[..70], OURS), None, "cut off");
        assert_eq!(answer(&[0; 5], OURS), None);
    }
}

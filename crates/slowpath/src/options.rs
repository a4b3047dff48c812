//! IPv4 options (RFC 791, 3.1; RFC 1812, 5.3.13) and IPv6 hop-by-hop options (RFC 8200, 4.2, 4.3).
//!
//! IPv4: well-formed options do not hinder forwarding; record route and timestamp are passed on
//! unfilled. Source routes are refused, as RFC 7126, 4.3 and 4.4 recommend, with "source route
//! failed"; malformed options with "parameter problem", pointing at the option.
//!
//! IPv6: an option that is not known is skipped or refused as its two highest bits say. Known are
//! padding and router alert (RFC 2711), which asks for no more than a look.
//!
//! Drops: `ip4-options`, `ip6-extension`.

use dataplane::reason::DropReason;
use wire::ip::{IPV4_MIN_LEN, IPV6_LEN, Ipv6ExtensionHeader, PROTOCOL_HOP_BY_HOP};
use zerocopy::FromBytes;

use crate::frame::IpPacket;
use crate::icmp::Error;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

const PAD1: u8 = 0;
const PADN: u8 = 1;
const ROUTER_ALERT: u8 = 5;

/// Why a packet's options forbid to handle it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What the sender is told, if anything.
    pub error: Option<Error>,
    /// The drop reason.
    pub reason: DropReason,
}

/// Checks the options of a packet.
pub(crate) fn check(ip: &IpPacket<'_>) -> Result<(), Refusal> {
    match ip {
        IpPacket::V4 { header, bytes } => check_v4(&bytes[..header.header_len()])
            .map_err(|error| Refusal { error: Some(error), reason: DropReason::Ip4Options }),
        IpPacket::V6 { header, bytes } if header.next_header == PROTOCOL_HOP_BY_HOP => {
            check_hop_by_hop(bytes)
                .map_err(|error| Refusal { error, reason: DropReason::Ip6Extension })
        }
        IpPacket::V6 { .. } => Ok(()),
    }
}

/// The options in an IPv4 header: offset of each in the header and its bytes; an offset as error
/// if one is malformed.
pub(crate) fn options_v4(header: &[u8]) -> impl Iterator<Item = Result<&[u8], usize>> {
    let mut at = IPV4_MIN_LEN;
    std::iter::from_fn(move || {
        let rest = header.get(at..)?;
        let length = match *rest.first()? {
            END => return None,
            NO_OPERATION => 1,
            _ => rest.get(1).map_or(0, |&length| usize::from(length)),
        };
        let long_enough = length >= 2 || rest[0] == NO_OPERATION;
        let option = rest.get(..length).filter(|_| long_enough).ok_or(at);
        at = if option.is_ok() { at + length } else { header.len() };
        Some(option)
    })
}

fn check_v4(header: &[u8]) -> Result<(), Error> {
    for option in options_v4(header) {
        match option {
            Err(at) => return Err(Error::BadField { pointer: at as u32 }),
            Ok([LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, ..]) => {
                return Err(Error::SourceRouteFailed);
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// The options in the hop-by-hop header of a packet that has one: the type and its offset in the
/// packet; an offset as error if one is malformed.
fn hop_by_hop_options(packet: &[u8]) -> impl Iterator<Item = Result<(u8, usize), usize>> {
    let header = packet.get(IPV6_LEN..).unwrap_or_default();
    let length = Ipv6ExtensionHeader::ref_from_prefix(header)
        .ok()
        .map(|(extension, _)| extension.header_len());
    // The end of the options; `None` if the header itself does not fit.
    let mut end = length.map(|length| IPV6_LEN + length).filter(|&end| end <= packet.len());
    let mut at = IPV6_LEN + 2;
    let mut failed = end.is_none();
    std::iter::from_fn(move || {
        if std::mem::take(&mut failed) {
            return Some(Err(IPV6_LEN + 1));
        }
        let options = packet.get(at..end?)?;
        let kind = *options.first()?;
        let length = match (kind, options.get(1)) {
            (PAD1, _) => 1,
            (_, Some(&length)) => 2 + usize::from(length),
            (_, None) => options.len() + 1,
        };
        let start = at;
        at += length;
        if length > options.len() {
            end = None;
            return Some(Err(start));
        }
        Some(Ok((kind, start)))
    })
}

/// The inner `None`: drop without a word.
fn check_hop_by_hop(packet: &[u8]) -> Result<(), Option<Error>> {
    for option in hop_by_hop_options(packet) {
        match option {
            Err(at) => return Err(Some(Error::BadField { pointer: at as u32 })),
            Ok((PAD1 | PADN | ROUTER_ALERT, _)) => {}
            Ok((kind, at)) => {
                let pointer = at as u32;
                match kind >> 6 {
                    0 => {}
                    1 => return Err(None),
                    2 => return Err(Some(Error::UnknownOption { pointer, also_multicast: true })),
                    _ => return Err(Some(Error::UnknownOption { pointer, also_multicast: false })),
                }
            }
        }
    }
    Ok(())
}

/// True if an IPv6 packet has a router alert option.
pub(crate) fn has_router_alert(next_header: u8, packet: &[u8]) -> bool {
    next_header == PROTOCOL_HOP_BY_HOP
        && hop_by_hop_options(packet).any(|option| matches!(option, Ok((ROUTER_ALERT, _))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(options: &[u8]) -> Result<(), Error> {
        check_v4(&[&[0; 20][..], options].concat())
    }

    fn v6(options: &[u8]) -> Result<(), Option<Error>> {
        let length = ((options.len() + 2) / 8 - 1) as u8;
        check_hop_by_hop(&[&[0; 40][..], &[59, length], options].concat())
    }

    #[test]
    fn well_formed_ipv4_options_pass() {
        assert_eq!(v4(&[]), Ok(()));
        assert_eq!(v4(&[1, 7, 3, 4]), Ok(()));
        assert_eq!(v4(&[148, 4, 0, 0, 1, 1, 0, 99]), Ok(()));
        // Nothing counts behind the end of the list.
        assert_eq!(v4(&[0, 131, 1, 1]), Ok(()));
    }

    #[test]
    fn malformed_ipv4_options_are_pointed_at() {
        assert_eq!(v4(&[7, 5, 4, 0]), Err(Error::BadField { pointer: 20 }));
        assert_eq!(v4(&[1, 7, 1, 0]), Err(Error::BadField { pointer: 21 }));
        assert_eq!(v4(&[1, 1, 1, 7]), Err(Error::BadField { pointer: 23 }));
        assert_eq!(v4(&[7, 0, 0, 0]), Err(Error::BadField { pointer: 20 }));
    }

    #[test]
    fn source_routes_are_refused() {
        assert_eq!(v4(&[131, 3, 4, 0]), Err(Error::SourceRouteFailed));
        assert_eq!(v4(&[1, 137, 3, 4]), Err(Error::SourceRouteFailed));
    }

    #[test]
    fn unknown_hop_by_hop_options_do_what_their_bits_say() {
        assert_eq!(v6(&[1, 4, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v6(&[5, 2, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v6(&[0x3e, 4, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v6(&[0x7e, 4, 0, 0, 0, 0]), Err(None));
        let told = |also_multicast| Err(Some(Error::UnknownOption { pointer: 43, also_multicast }));
        assert_eq!(v6(&[0, 0xbe, 3, 0, 0, 0]), told(true));
        assert_eq!(v6(&[0, 0xfe, 3, 0, 0, 0]), told(false));
    }

    #[test]
    fn malformed_hop_by_hop_headers_are_pointed_at() {
        let bad = |pointer| Err(Some(Error::BadField { pointer }));
        assert_eq!(v6(&[1, 5, 0, 0, 0, 0]), bad(42));
        assert_eq!(v6(&[0, 0, 0, 0, 0, 1]), bad(47));
        assert_eq!(check_hop_by_hop(&[&[0; 40][..], &[59, 1, 1, 4, 0, 0, 0, 0]].concat()), bad(41));
        assert_eq!(check_hop_by_hop(&[0; 40]), bad(41));
    }

    #[test]
    fn the_router_alert_is_found() {
        let packet = [&[0; 40][..], &[58, 0, 1, 0, 5, 2, 0, 0]].concat();
        assert!(has_router_alert(0, &packet));
        assert!(!has_router_alert(58, &packet));
    }
}

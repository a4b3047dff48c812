//! IPv6 extension headers of packets for the router, and hop-by-hop options of all: RFC 8200, 4.
//!
//! | header | treatment |
//! |---|---|
//! | hop-by-hop options | checked in every packet that has them; in any place but the first one it is an unknown next header (4.1) |
//! | destination options | checked in packets for the router (4.6) |
//! | routing | with segments left: "parameter problem", since no type is supported (4.4, RFC 5095) |
//! | authentication | there is no key for it here: refused as an unknown next header (RFC 4302, 3.4.2), and passed over only to find the upper layer for ICMP errors |
//! | fragment | given to [`crate::reassembly`]; one that is the whole packet is passed over (4.5) |
//!
//! An option that is not known is skipped or refused according to its two highest bits (4.2). The known ones are
//! padding and router alert (RFC 2711), which asks only that the packet be examined. The headers are processed in
//! packet order; headers after the first refused one are not read.
//!
//! Drops: `ip6-extension`.

use dataplane::reason::DropReason;
use wire::chain;
use wire::ip::{
    IPV6_LEN, Ipv6ExtensionHeader, Ipv6FragmentHeader, PROTOCOL_DESTINATION_OPTIONS,
    PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP, PROTOCOL_ICMPV6, PROTOCOL_ROUTING, PROTOCOL_TCP,
    PROTOCOL_UDP,
};
use zerocopy::FromBytes;

use crate::icmp::Error;

const PAD1: u8 = 0;
const PADN: u8 = 1;
const ROUTER_ALERT: u8 = 5;

/// Reason for which a packet's headers forbid handling it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The error for the sender, if any.
    pub error: Option<Error>,
    /// The drop reason.
    pub reason: DropReason,
}

impl Refusal {
    fn extension(error: impl Into<Option<Error>>) -> Self {
        Self { error: error.into(), reason: DropReason::Ip6Extension }
    }
}

/// End of the header chain of a packet for the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The upper layer's protocol, or "fragment".
    pub protocol: u8,
    /// Offset of its header in the IP packet.
    pub offset: usize,
    /// Offset of the byte that names the protocol.
    pub named_at: usize,
    /// True if there was a fragment header, though the packet is whole (RFC 6946).
    pub fragmented: bool,
}

/// Walks the extension headers of a packet for the router, in order. Each step advances by 8 bytes or more, so the walk
/// ends. It also ends at a fragment header.
pub(crate) fn take(next_header: u8, packet: &[u8]) -> Result<End, Refusal> {
    let mut end = End { protocol: next_header, offset: IPV6_LEN, named_at: 6, fragmented: false };
    loop {
        let rest = packet.get(end.offset..).ok_or(Refusal::extension(None))?;
        let length = match end.protocol {
            PROTOCOL_HOP_BY_HOP if end.named_at != 6 => {
                let pointer = end.named_at as u32;
                return Err(Refusal::extension(Error::ProtocolUnreachable { pointer }));
            }
            PROTOCOL_HOP_BY_HOP => extension_length(rest)?,
            PROTOCOL_DESTINATION_OPTIONS => {
                check_options(packet, end.offset)?;
                extension_length(rest)?
            }
            PROTOCOL_ROUTING => {
                let segments_left = *rest.get(3).ok_or(Refusal::extension(None))?;
                if segments_left > 0 {
                    // RFC 8200, 4.4: point at the type.
                    let pointer = end.offset as u32 + 2;
                    return Err(Refusal::extension(Error::BadField { pointer }));
                }
                extension_length(rest)?
            }
            PROTOCOL_FRAGMENT => {
                let (fragment, _) = Ipv6FragmentHeader::ref_from_prefix(rest)
                    .map_err(|_| Refusal::extension(None))?;
                if fragment.fragment_offset() != 0 || fragment.more() {
                    return Ok(end);
                }
                end.fragmented = true;
                size_of::<Ipv6FragmentHeader>()
            }
            _ => return Ok(end),
        };
        end.named_at = end.offset;
        end.protocol = rest[0];
        end.offset += length;
    }
}

/// Returns the length of an extension header that is complete.
fn extension_length(header: &[u8]) -> Result<usize, Refusal> {
    let (extension, _) =
        Ipv6ExtensionHeader::ref_from_prefix(header).map_err(|_| Refusal::extension(None))?;
    let length = extension.header_len();
    if length <= header.len() { Ok(length) } else { Err(Refusal::extension(None)) }
}

/// Returns true if a first fragment has all headers, the upper layer's own included (RFC 8200, 4.5; RFC 7112). `data`
/// follows the fragment header, which names `protocol`.
pub(crate) fn is_complete_chain(protocol: u8, data: &[u8]) -> bool {
    let Ok((protocol, data)) = chain::walk(protocol, data, usize::MAX, |_| ()) else {
        return false;
    };
    let least = match protocol {
        PROTOCOL_TCP => 20,
        PROTOCOL_UDP | PROTOCOL_ICMPV6 => 8,
        _ => 0,
    };
    data.len() >= least
}

/// Checks the hop-by-hop options of a packet, if it has any.
pub(crate) fn check_hop_by_hop(next_header: u8, packet: &[u8]) -> Result<(), Refusal> {
    if next_header != PROTOCOL_HOP_BY_HOP {
        return Ok(());
    }
    check_options(packet, IPV6_LEN)
}

/// Iterates over the options in the header at `header_at` of a packet: each option's type and its offset in the packet;
/// an offset as error if one is malformed.
fn options(packet: &[u8], header_at: usize) -> impl Iterator<Item = Result<(u8, usize), usize>> {
    let length = extension_length(packet.get(header_at..).unwrap_or_default());
    // The offset of the options' end; `None` if the header itself does not fit.
    let mut end = length.ok().map(|length| header_at + length);
    let mut at = header_at + 2;
    let mut failed = end.is_none();
    std::iter::from_fn(move || {
        if std::mem::take(&mut failed) {
            return Some(Err(header_at + 1));
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

fn check_options(packet: &[u8], header_at: usize) -> Result<(), Refusal> {
    for option in options(packet, header_at) {
        match option {
            Err(at) => return Err(Refusal::extension(Error::BadField { pointer: at as u32 })),
            Ok((PAD1 | PADN | ROUTER_ALERT, _)) => {}
            Ok((kind, at)) => {
                let pointer = at as u32;
                let told = |also_multicast| {
                    Err(Refusal::extension(Error::UnknownOption { pointer, also_multicast }))
                };
                match kind >> 6 {
                    0 => {}
                    1 => return Err(Refusal::extension(None)),
                    2 => return told(true),
                    _ => return told(false),
                }
            }
        }
    }
    Ok(())
}

/// Returns true if an IPv6 packet has a router alert option.
pub(crate) fn has_router_alert(next_header: u8, packet: &[u8]) -> bool {
    next_header == PROTOCOL_HOP_BY_HOP
        && options(packet, IPV6_LEN).any(|option| matches!(option, Ok((ROUTER_ALERT, _))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(options: &[u8]) -> Result<(), Option<Error>> {
        let length = ((options.len() + 2) / 8 - 1) as u8;
        let packet = [&[0; 40][..], &[59, length], options].concat();
        let hop_by_hop = check_hop_by_hop(0, &packet).map_err(|refusal| refusal.error);
        // Destination options follow the same rules.
        let destination = take(60, &packet).map(|_| ()).map_err(|refusal| refusal.error);
        assert_eq!(hop_by_hop, destination);
        hop_by_hop
    }

    fn walk(next_header: u8, behind: &[u8]) -> Result<End, Option<Error>> {
        take(next_header, &[&[0; 40][..], behind].concat()).map_err(|refusal| {
            assert_eq!(refusal.reason, DropReason::Ip6Extension);
            refusal.error
        })
    }

    #[test]
    fn unknown_options_do_what_their_bits_say() {
        assert_eq!(v6(&[1, 4, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v6(&[5, 2, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v6(&[0x3e, 4, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v6(&[0x7e, 4, 0, 0, 0, 0]), Err(None));
        let told = |also_multicast| Err(Some(Error::UnknownOption { pointer: 43, also_multicast }));
        assert_eq!(v6(&[0, 0xbe, 3, 0, 0, 0]), told(true));
        assert_eq!(v6(&[0, 0xfe, 3, 0, 0, 0]), told(false));
    }

    #[test]
    fn malformed_options_are_pointed_at() {
        let bad = |pointer| Err(Some(Error::BadField { pointer }));
        assert_eq!(v6(&[1, 5, 0, 0, 0, 0]), bad(42));
        assert_eq!(v6(&[0, 0, 0, 0, 0, 1]), bad(47));
        let hop_by_hop = |packet: &[u8]| check_hop_by_hop(0, packet).map_err(|r| r.error);
        assert_eq!(hop_by_hop(&[&[0; 40][..], &[59, 1, 1, 4, 0, 0, 0, 0]].concat()), bad(41));
        assert_eq!(hop_by_hop(&[0; 40]), bad(41));
    }

    #[test]
    fn the_headers_are_taken_in_the_order_in_which_they_stand() {
        let chain = [
            60, 0, 1, 4, 0, 0, 0, 0, // hop-by-hop, destination options follow
            43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // routing follows
            44, 0, 0, 0, 0, 0, 0, 0, // no segments left, fragment follows
            17, 0, 0, 0, 0, 0, 0, 7, // all of the packet; UDP
            1, 2, 3, 4, 5, 6, 7, 8,
        ];
        let end = walk(0, &chain).unwrap();
        assert_eq!(end, End { protocol: 17, offset: 80, named_at: 72, fragmented: true });
        let mut routed = chain;
        routed[27] = 1;
        assert_eq!(walk(0, &routed), Err(Some(Error::BadField { pointer: 66 })));
        // An earlier header is refused first.
        routed[10] = 0xbe;
        let unknown = Error::UnknownOption { pointer: 50, also_multicast: true };
        assert_eq!(walk(0, &routed), Err(Some(unknown)));
    }

    #[test]
    fn a_fragment_ends_the_walk() {
        for offset_more in [1u8, 8] {
            let end = walk(44, &[60, 0, 0, offset_more, 0, 0, 0, 1, 0xff, 0xff]).unwrap();
            assert_eq!(end, End { protocol: 44, offset: 40, named_at: 6, fragmented: false });
        }
    }

    #[test]
    fn hop_by_hop_options_stand_first_or_are_not_known() {
        let inside = [0, 0, 1, 4, 0, 0, 0, 0, 58, 0, 1, 4, 0, 0, 0, 0, 128, 0];
        assert_eq!(walk(60, &inside), Err(Some(Error::ProtocolUnreachable { pointer: 40 })));
        assert_eq!(walk(0, &inside), Err(Some(Error::ProtocolUnreachable { pointer: 40 })));
    }

    #[test]
    fn a_cut_chain_is_refused() {
        assert_eq!(walk(0, &[]), Err(None));
        assert_eq!(walk(0, &[17, 1, 0, 0, 0, 0, 0, 0]), Err(None));
        assert_eq!(walk(43, &[17, 0, 0]), Err(None));
        assert_eq!(walk(44, &[17, 0, 0, 1]), Err(None));
    }

    #[test]
    fn a_first_fragment_has_all_headers_or_not() {
        let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        for (protocol, data, complete) in [
            (17, vec![0; 8], true),
            (17, vec![0; 7], false),
            (58, vec![0; 7], false),
            (6, vec![0; 19], false),
            (6, vec![0; 20], true),
            (47, vec![], true),
            (60, [&options(17)[..], &[0; 8]].concat(), true),
            (60, [&options(17)[..], &[0; 7]].concat(), false),
            (60, options(17)[..7].to_vec(), false),
            (60, vec![], false),
            (44, vec![17, 0, 0, 0, 0, 0, 0], false),
            (51, [&[17, 1, 0, 0][..], &[0; 8], &[0; 8]].concat(), true),
            (51, [&[17, 1, 0, 0][..], &[0; 8], &[0; 7]].concat(), false),
        ] {
            assert_eq!(is_complete_chain(protocol, &data), complete, "{protocol} {data:?}");
        }
    }

    #[test]
    fn the_router_alert_is_found() {
        let packet = [&[0; 40][..], &[58, 0, 1, 0, 5, 2, 0, 0]].concat();
        assert!(has_router_alert(0, &packet));
        assert!(!has_router_alert(58, &packet));
    }
}

//! The chain of IPv6 extension headers in front of the upper layer (RFC 8200, 4.1).

use zerocopy::FromBytes;

use crate::ip::{
    AuthenticationHeader, Ipv6ExtensionHeader, Ipv6FragmentHeader, PROTOCOL_AUTHENTICATION,
    PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP, PROTOCOL_ROUTING,
};

/// The offset of a routing header's type (RFC 8200, 4.4).
const ROUTING_TYPE: usize = 2;

/// An extension header of a chain, and the fields by which callers distinguish headers of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// A fragment header.
    Fragment(&'a Ipv6FragmentHeader),
    /// A routing header of this type (RFC 8200, 4.4).
    Routing(u8),
    /// Another one, of this number.
    Other(u8),
}

/// Walks the extension headers at the start of `bytes`, the first of which has the number `first`, and passes each of
/// them to `seen`, the one at which the walk ends included if its first fields are there.
///
/// Hop-by-hop, routing, destination options, authentication and fragment headers are passed over, at most
/// `most` of them, in any order. Each takes 8 bytes or more, so the walk ends. It stops after the header of a
/// later fragment, which is followed by data only.
///
/// Returns the number of the next header or protocol, and the bytes from there.
///
/// # Errors
/// The number of the header at which the walk ended: it is truncated, or one too many.
#[inline(always)]
pub fn walk(
    first: u8,
    bytes: &[u8],
    most: usize,
    mut seen: impl FnMut(Header<'_>),
) -> Result<(u8, &[u8]), u8> {
    let (mut number, mut rest, mut cut) = (first, bytes, first);
    for _ in 0..=most {
        cut = number;
        let header_len = match number {
            PROTOCOL_HOP_BY_HOP | PROTOCOL_ROUTING | PROTOCOL_DESTINATION_OPTIONS => {
                let (header, _) = Ipv6ExtensionHeader::ref_from_prefix(rest).map_err(|_| cut)?;
                match number {
                    PROTOCOL_ROUTING => seen(Header::Routing(*rest.get(ROUTING_TYPE).ok_or(cut)?)),
                    other => seen(Header::Other(other)),
                }
                number = header.next_header;
                header.header_len()
            }
            PROTOCOL_AUTHENTICATION => {
                let (header, _) = AuthenticationHeader::ref_from_prefix(rest).map_err(|_| cut)?;
                seen(Header::Other(number));
                number = header.next_header;
                header.header_len()
            }
            PROTOCOL_FRAGMENT => {
                let (header, data) = Ipv6FragmentHeader::ref_from_prefix(rest).map_err(|_| cut)?;
                number = header.next_header;
                seen(Header::Fragment(header));
                if header.fragment_offset() != 0 {
                    return Ok((number, data));
                }
                size_of::<Ipv6FragmentHeader>()
            }
            upper => return Ok((upper, rest)),
        };
        rest = rest.get(header_len..).ok_or(cut)?;
    }
    Err(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number and offset of the header or protocol after a chain.
    type End = Result<(u8, usize), u8>;

    /// Returns the end of a chain, and the offsets and flags of its fragment headers.
    fn walked(first: u8, bytes: &[u8]) -> (End, Vec<(usize, bool)>) {
        let mut fragments = Vec::new();
        let end = walk(first, bytes, 8, |header| {
            if let Header::Fragment(header) = header {
                fragments.push((header.fragment_offset(), header.more()));
            }
        });
        (end.map(|(number, rest)| (number, bytes.len() - rest.len())), fragments)
    }

    #[test]
    fn headers_of_all_kinds_are_passed() {
        let chain = [
            &[60, 0, 1, 4, 0, 0, 0, 0][..],                      // hop-by-hop
            &[43, 0, 1, 4, 0, 0, 0, 0],                          // destination options
            &[51, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], // routing
            &[44, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1],              // authentication
            &[17, 0, 0, 1, 0, 0, 0, 7],                          // first fragment
            &[1, 2, 3, 4],
        ]
        .concat();
        assert_eq!(walked(0, &chain), (Ok((17, 52)), vec![(0, true)]));
        assert_eq!(walked(6, &chain), (Ok((6, 0)), vec![]));
    }

    #[test]
    fn each_header_is_shown_the_last_one_too_if_it_is_cut() {
        let seen = |first, bytes: &[u8]| {
            let mut seen = Vec::new();
            let end = walk(first, bytes, 2, |header| {
                seen.push(match header {
                    Header::Fragment(header) => (44, header.next_header),
                    Header::Routing(kind) => (43, kind),
                    Header::Other(number) => (number, 0),
                });
            });
            (end.map(|(number, _)| number), seen)
        };
        let chain = [60, 0, 1, 4, 0, 0, 0, 0, 43, 0, 1, 4, 0, 0, 0, 0, 6, 9, 4, 1];
        assert_eq!(seen(0, &chain), (Err(43), vec![(0, 0), (60, 0), (43, 4)]));
        assert_eq!(seen(0, &chain[..18]), (Err(43), vec![(0, 0), (60, 0)]), "its type is cut");
        let chain = [44, 0, 1, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(seen(51, &chain), (Ok(17), vec![(51, 0), (44, 17)]));
    }

    #[test]
    fn a_later_fragment_ends_the_walk() {
        let chain = [60, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff];
        assert_eq!(walked(44, &chain), (Ok((60, 8)), vec![(8, false)]));
        let atomic = [60, 0, 0, 0, 0, 0, 0, 1, 58, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(walked(44, &atomic), (Ok((58, 16)), vec![(0, false)]));
    }

    #[test]
    fn a_cut_chain_names_the_header_that_is_cut() {
        for first in [0, 43, 44, 51, 60] {
            assert_eq!(walked(first, &[6]).0, Err(first));
        }
        assert_eq!(walked(0, &[43, 0, 1, 4, 0, 0, 0, 0, 6, 9, 1, 4, 0, 0, 0, 0]).0, Err(43));
        assert_eq!(walked(0, &[17, 0, 0, 0, 0, 0, 0, 0]).0, Ok((17, 8)), "nothing behind it");
    }

    #[test]
    fn too_many_headers_end_the_walk() {
        let chain = |headers: usize| {
            let mut bytes = [60, 0, 1, 4, 0, 0, 0, 0].repeat(headers);
            bytes[8 * headers - 8] = 17;
            walked(60, &bytes).0
        };
        assert_eq!(chain(8), Ok((17, 64)));
        assert_eq!(chain(10), Err(60));
    }
}

//! IPv4 options: RFC 791, 3.1; RFC 1812, 4.2.2.1, 4.2.2.2 and 5.3.13.
//!
//! * Record route and timestamp are checked when a packet is received and filled in when it leaves,
//!   with an address of the outgoing interface (RFC 1812, 4.2.2.2); in an echo reply with the
//!   address that was pinged. A full option passes; a full timestamp counts the overflow.
//! * Source routes are refused, as RFC 7126, 4.3 and 4.4 recommend, with "source route failed".
//! * Malformed options are answered by "parameter problem", with the pointer at the option, or at
//!   the byte in it that is wrong.
//! * All other options are passed on unchanged.
//!
//! IPv6 options are in [`crate::extension`]. Drops: `ip4-options`.

use std::net::Ipv4Addr;

use wire::checksum::checksum;
use wire::ip::IPV4_MIN_LEN;

use crate::icmp::Error;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// First valid pointer of a record route and of a timestamp: behind type, length and pointer, and
/// for the timestamp behind overflow and flag.
const ROUTE_FIRST: usize = 4;
const TIMESTAMP_FIRST: usize = 5;

/// Values of the low half of a timestamp's fourth byte: the contents of its entries.
const STAMPS_ONLY: u8 = 0;
const ADDRESSES_AND_STAMPS: u8 = 1;
const ADDRESSES_GIVEN: u8 = 3;

/// Values that the router writes into options.
pub(crate) struct Stamp<F> {
    /// Address of the router.
    pub address: Ipv4Addr,
    /// Milliseconds since midnight, UTC.
    pub time: u32,
    /// Returns true for the router's own addresses.
    pub own: F,
}

/// Iterates over the bytes of each option in an IPv4 header; an offset in the header as error if one
/// is malformed.
pub(crate) fn options_v4(header: &[u8]) -> impl Iterator<Item = Result<&[u8], usize>> {
    places(header).map(|place| place.map(|(at, length)| &header[at..at + length]))
}

/// Iterates over the positions of the options: offset and length.
fn places(header: &[u8]) -> impl Iterator<Item = Result<(usize, usize), usize>> {
    let mut at = IPV4_MIN_LEN;
    std::iter::from_fn(move || {
        let rest = header.get(at..)?;
        let length = match *rest.first()? {
            END => return None,
            NO_OPERATION => 1,
            _ => rest.get(1).map_or(0, |&length| usize::from(length)),
        };
        let fits = length <= rest.len() && (length >= 2 || rest[0] == NO_OPERATION);
        let place = if fits { Ok((at, length)) } else { Err(at) };
        at = if fits { at + length } else { header.len() };
        Some(place)
    })
}

/// Checks an IPv4 header's options; returns the error of options that forbid handling its packet.
pub(crate) fn check(header: &[u8]) -> Result<(), Error> {
    for place in places(header) {
        let (at, length) = place.map_err(bad)?;
        let option = &header[at..at + length];
        match option[0] {
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(Error::SourceRouteFailed),
            RECORD_ROUTE => check_route(option).map_err(|inside| bad(at + inside))?,
            TIMESTAMP => check_timestamp(option).map_err(|inside| bad(at + inside))?,
            _ => {}
        }
    }
    Ok(())
}

fn bad(at: usize) -> Error {
    Error::BadField { pointer: at as u32 }
}

/// Checks a record route; the error is the offset of the wrong byte in the option. RFC 791, 3.1:
/// with some room, but not for a whole address, the packet is in error.
fn check_route(option: &[u8]) -> Result<(), usize> {
    let &[_, _, pointer, ..] = option else { return Err(1) };
    let pointer = usize::from(pointer);
    let full = pointer > option.len();
    if pointer < ROUTE_FIRST || (!full && room(option, pointer) < 4) { Err(2) } else { Ok(()) }
}

/// Like [`check_route`]; a full timestamp whose overflow count is at its maximum is in error too.
fn check_timestamp(option: &[u8]) -> Result<(), usize> {
    let &[_, _, pointer, overflow_flag, ..] = option else { return Err(1) };
    let pointer = usize::from(pointer);
    let Some(entry) = entry_length(overflow_flag) else { return Err(3) };
    if pointer < TIMESTAMP_FIRST {
        return Err(2);
    }
    if pointer > option.len() {
        return if overflow_flag >> 4 == 15 { Err(3) } else { Ok(()) };
    }
    if room(option, pointer) < entry { Err(2) } else { Ok(()) }
}

/// Returns the number of bytes from a pointer (which counts from 1) to the end of the option.
fn room(option: &[u8], pointer: usize) -> usize {
    (option.len() + 1).saturating_sub(pointer)
}

/// Returns the length of one router's entry in a timestamp option; `None` for a flag that does not exist.
fn entry_length(overflow_flag: u8) -> Option<usize> {
    match overflow_flag & 0xf {
        STAMPS_ONLY => Some(4),
        ADDRESSES_AND_STAMPS | ADDRESSES_GIVEN => Some(8),
        _ => None,
    }
}

/// Fills in the record route and the timestamp of an IPv4 header and updates its checksum. Options
/// that [`check`] refuses stay as they are.
pub(crate) fn fill(header: &mut [u8], stamp: &Stamp<impl Fn(Ipv4Addr) -> bool>) {
    if header.len() <= IPV4_MIN_LEN {
        return;
    }
    let found: Vec<_> = places(header).flatten().collect();
    for (at, length) in found {
        let option = &mut header[at..at + length];
        match option[0] {
            RECORD_ROUTE if check_route(option).is_ok() => fill_route(option, stamp.address),
            TIMESTAMP if check_timestamp(option).is_ok() => fill_timestamp(option, stamp),
            _ => {}
        }
    }
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Fills in a record route that [`check_route`] accepts.
fn fill_route(option: &mut [u8], address: Ipv4Addr) {
    let at = usize::from(option[2]) - 1;
    if let Some(place) = option.get_mut(at..at + 4) {
        place.copy_from_slice(&address.octets());
        option[2] += 4;
    }
}

/// Fills in a timestamp that [`check_timestamp`] accepts.
fn fill_timestamp(option: &mut [u8], stamp: &Stamp<impl Fn(Ipv4Addr) -> bool>) {
    let at = usize::from(option[2]) - 1;
    let Some(entry) = entry_length(option[3]).filter(|_| at < option.len()) else {
        option[3] += 0x10;
        return;
    };
    let given = option[3] & 0xf == ADDRESSES_GIVEN;
    let place = &mut option[at..at + entry];
    if given {
        // Only the router with the given address may write here.
        let [a, b, c, d] = [place[0], place[1], place[2], place[3]];
        if !(stamp.own)(Ipv4Addr::new(a, b, c, d)) {
            return;
        }
    } else if entry == 8 {
        place[..4].copy_from_slice(&stamp.address.octets());
    }
    place[entry - 4..].copy_from_slice(&stamp.time.to_be_bytes());
    option[2] += entry as u8;
}

/// Returns the options of an echo request that its reply carries (RFC 1812, 4.3.3.6), padded to
/// whole words.
pub(crate) fn for_reply(header: &[u8]) -> Vec<u8> {
    let kept =
        options_v4(header).flatten().filter(|option| matches!(option[0], RECORD_ROUTE | TIMESTAMP));
    let mut options: Vec<u8> = kept.flatten().copied().collect();
    options.resize(options.len().next_multiple_of(4), END);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(options: &[u8]) -> Vec<u8> {
        let mut header = [&[0; 20][..], options].concat();
        header[0] = 0x40 | (header.len() / 4) as u8;
        header
    }

    fn v4(options: &[u8]) -> Result<(), Error> {
        check(&header(options))
    }

    fn filled(options: &[u8]) -> Vec<u8> {
        let mut header = header(options);
        let own = |address| address == Ipv4Addr::new(10, 0, 2, 1);
        fill(&mut header, &Stamp { address: Ipv4Addr::new(10, 0, 2, 1), time: 0x0102_0304, own });
        assert_eq!(checksum(&header), 0);
        header.split_off(20)
    }

    #[test]
    fn well_formed_ipv4_options_pass() {
        assert_eq!(v4(&[]), Ok(()));
        assert_eq!(v4(&[1, 7, 3, 4]), Ok(()));
        assert_eq!(v4(&[148, 4, 0, 0, 1, 1, 0, 99]), Ok(()));
        // Bytes behind the end of the list do not count.
        assert_eq!(v4(&[0, 131, 1, 1]), Ok(()));
        assert_eq!(filled(&[0, 7, 7, 4]), [0, 7, 7, 4]);
    }

    #[test]
    fn malformed_ipv4_options_are_pointed_at() {
        assert_eq!(v4(&[7, 5, 4, 0]), Err(bad(20)));
        assert_eq!(v4(&[1, 7, 1, 0]), Err(bad(21)));
        assert_eq!(v4(&[1, 1, 1, 7]), Err(bad(23)));
        assert_eq!(v4(&[7, 0, 0, 0]), Err(bad(20)));
    }

    #[test]
    fn source_routes_are_refused() {
        assert_eq!(v4(&[131, 3, 4, 0]), Err(Error::SourceRouteFailed));
        assert_eq!(v4(&[1, 137, 3, 4]), Err(Error::SourceRouteFailed));
    }

    #[test]
    fn nonsense_in_a_record_route_is_pointed_at() {
        assert_eq!(v4(&[7, 7, 4, 0, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v4(&[7, 7, 3, 0, 0, 0, 0, 0]), Err(bad(22)), "a pointer into the head");
        assert_eq!(v4(&[7, 7, 5, 0, 0, 0, 0, 0]), Err(bad(22)), "room for part of an address");
        assert_eq!(v4(&[7, 7, 8, 0, 0, 0, 0, 0]), Ok(()), "full");
        assert_eq!(v4(&[1, 1, 7, 2]), Err(bad(23)), "no pointer");
    }

    #[test]
    fn nonsense_in_a_timestamp_is_pointed_at() {
        assert_eq!(v4(&[68, 8, 5, 0, 0, 0, 0, 0]), Ok(()));
        assert_eq!(v4(&[68, 8, 4, 0, 0, 0, 0, 0]), Err(bad(22)), "a pointer into the head");
        assert_eq!(v4(&[68, 8, 6, 0, 0, 0, 0, 0]), Err(bad(22)), "room for part of a stamp");
        assert_eq!(v4(&[68, 8, 5, 1, 0, 0, 0, 0]), Err(bad(22)), "no room for the address");
        assert_eq!(v4(&[68, 8, 5, 2, 0, 0, 0, 0]), Err(bad(23)), "no such flag");
        assert_eq!(v4(&[68, 8, 9, 0xe0, 0, 0, 0, 0]), Ok(()), "full");
        assert_eq!(v4(&[68, 8, 9, 0xf0, 0, 0, 0, 0]), Err(bad(23)), "the overflow overflows");
        assert_eq!(v4(&[68, 3, 5, 0]), Err(bad(21)), "too short");
    }

    #[test]
    fn a_record_route_gets_the_address_as_long_as_there_is_room() {
        let route = filled(&[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(route, [7, 11, 8, 10, 0, 2, 1, 0, 0, 0, 0, 0]);
        assert_eq!(filled(&route), [7, 11, 12, 10, 0, 2, 1, 10, 0, 2, 1, 0]);
        assert_eq!(filled(&filled(&route)), filled(&route), "full");
    }

    #[test]
    fn a_timestamp_gets_what_its_flag_asks_for() {
        assert_eq!(filled(&[68, 8, 5, 0, 0, 0, 0, 0]), [68, 8, 9, 0, 1, 2, 3, 4]);
        let both = filled(&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(both, [68, 12, 13, 1, 10, 0, 2, 1, 1, 2, 3, 4]);
        assert_eq!(filled(&both)[3], 0x11, "full: the overflow counts");
        let ours = filled(&[68, 12, 5, 3, 10, 0, 2, 1, 0, 0, 0, 0]);
        assert_eq!(ours, [68, 12, 13, 3, 10, 0, 2, 1, 1, 2, 3, 4]);
        let anothers = [68, 12, 5, 3, 10, 0, 9, 9, 0, 0, 0, 0];
        assert_eq!(filled(&anothers), anothers);
    }

    #[test]
    fn a_reply_brings_back_route_and_stamps_only() {
        let options = [148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0, 1, 68, 8, 5, 0, 0, 0, 0, 0];
        let kept = for_reply(&header(&options));
        assert_eq!(kept, [7, 7, 4, 0, 0, 0, 0, 68, 8, 5, 0, 0, 0, 0, 0, 0]);
    }
}

//! Fragments: RFC 791, 3.2, of packets in transit and the router's own; RFC 8200, 4.5, of the router's own IPv6
//! packets.

use wire::checksum::checksum;
use wire::ethernet::ETHERNET_LEN;
use wire::ip::{
    IPV4_MIN_LEN, IPV4_MORE_FRAGMENTS, IPV4_OFFSET_BITS, IPV6_LEN, Ipv4Header, Ipv6FragmentHeader,
    Ipv6Header, PROTOCOL_FRAGMENT,
};
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::frame::IpPacket;
use crate::options::options_v4;

/// Fragments an IPv4 frame into frames whose packets have at most `mtu` bytes (RFC 791, 3.2). `None` if that is
/// not possible: not IPv4, DF set, an MTU without room for 8 bytes of data, or data beyond the largest offset.
pub(crate) fn v4(frame: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let IpPacket::V4 { header, bytes } = IpPacket::parse(frame).ok()? else { return None };
    if header.dont_fragment() {
        return None;
    }
    let ethernet = frame.get(..ETHERNET_LEN)?;
    let first_header = &bytes[..header.header_len()];
    let later_header = copied_header(first_header);
    let data = &bytes[header.header_len()..];
    let mut fragments = Vec::new();
    let mut done = 0;
    while done < data.len() {
        let template = if done == 0 { first_header } else { &later_header };
        let room = mtu.checked_sub(template.len())?;
        let rest = data.len() - done;
        // All but the last carry a multiple of 8 bytes.
        let take = if rest <= room { rest } else { room & !7 };
        if take == 0 {
            return None;
        }
        let mut fragment = [ethernet, template, &data[done..done + take]].concat();
        let more = done + take < data.len();
        finish_fragment(&mut fragment[ETHERNET_LEN..], header, done, more)?;
        fragments.push(fragment);
        done += take;
    }
    (!fragments.is_empty()).then_some(fragments)
}

/// Fragments a frame of the router's own, an IPv6 packet without extension headers, into frames whose packets
/// have at most `mtu` bytes (RFC 8200, 4.5).
pub(crate) fn v6(frame: &[u8], mtu: usize, identification: u32) -> Option<Vec<Vec<u8>>> {
    let IpPacket::V6 { header, bytes } = IpPacket::parse(frame).ok()? else { return None };
    let ethernet = frame.get(..ETHERNET_LEN)?;
    let room = mtu.checked_sub(IPV6_LEN + size_of::<Ipv6FragmentHeader>())? & !7;
    if room == 0 {
        return None;
    }
    let chunks = bytes[IPV6_LEN..].chunks(room);
    let last = chunks.len().checked_sub(1)?;
    let cut = |(number, data): (usize, &[u8])| {
        let part = Ipv6FragmentHeader {
            next_header: header.next_header,
            reserved: 0,
            offset_more: U16::new((number * room) as u16 | u16::from(number < last)),
            identification: U32::new(identification),
        };
        let length = size_of::<Ipv6FragmentHeader>() + data.len();
        let header = Ipv6Header {
            next_header: PROTOCOL_FRAGMENT,
            payload_length: U16::new(length as u16),
            ..*header
        };
        [ethernet, header.as_bytes(), part.as_bytes(), data].concat()
    };
    Some(chunks.enumerate().map(cut).collect())
}

/// Fills in length, offset, flags and checksum of a fragment that begins `done` bytes into the
/// data of the packet with the header `original`, which may be a fragment itself.
fn finish_fragment(
    packet: &mut [u8],
    original: &Ipv4Header,
    done: usize,
    more: bool,
) -> Option<()> {
    let length = u16::try_from(packet.len()).ok()?;
    let offset = u16::try_from((original.fragment_offset() + done) / 8).ok()?;
    if offset > IPV4_OFFSET_BITS {
        return None;
    }
    let mut flags = original.flags_fragment.get() & !IPV4_OFFSET_BITS;
    if more {
        flags |= IPV4_MORE_FRAGMENTS;
    }
    let (header, _) = Ipv4Header::mut_from_prefix(packet).ok()?;
    header.total_length = U16::new(length);
    header.flags_fragment = U16::new(flags | offset);
    header.checksum = U16::new(0);
    let header_len = header.header_len();
    let sum = checksum(packet.get(..header_len)?);
    let (header, _) = Ipv4Header::mut_from_prefix(packet).ok()?;
    header.checksum = U16::new(sum);
    Some(())
}

/// Returns the header of the later fragments: only options with the copy bit (RFC 791, 3.1), padded with "end
/// of list" to whole words.
fn copied_header(header: &[u8]) -> Vec<u8> {
    let mut copy = header[..IPV4_MIN_LEN].to_vec();
    for option in options_v4(header).flatten() {
        if option[0] & 0x80 != 0 {
            copy.extend_from_slice(option);
        }
    }
    copy.resize(copy.len().next_multiple_of(4), 0);
    copy[0] = 0x40 | (copy.len() / 4) as u8;
    copy
}

#[cfg(test)]
mod tests {
    use dataplane::reason::{DropReason, PuntReason};

    use super::v4 as fragment;
    use super::*;
    use crate::testing::{
        Bench, LEFT, Out, TO_B, config, originated, udp, v4, v4_with_options, v6,
    };

    /// Reassembles the payload of fragments, and returns it with their headers.
    fn reassemble(frames: &[&[u8]]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (mut data, mut headers) = (Vec::new(), Vec::new());
        for (index, frame) in frames.iter().enumerate() {
            let header = usize::from(frame[14] & 0xf) * 4;
            let flags = u16::from_be_bytes([frame[20], frame[21]]);
            assert_eq!(usize::from(flags & 0x1fff) * 8, data.len(), "offset");
            assert_eq!(flags & 0x2000 != 0, index + 1 < frames.len(), "more fragments");
            assert_eq!(checksum(&frame[14..14 + header]), 0);
            data.extend_from_slice(&frame[14 + header..]);
            headers.push(frame[14..14 + header].to_vec());
        }
        (data, headers)
    }

    #[test]
    fn a_large_packet_leaves_in_fragments() {
        let mut config = config();
        config.interfaces[1].mtu = 600;
        let mut bench = Bench::with_hosts(config);
        let payload = udp(1400);
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &payload);
        let outs = bench.punt(PuntReason::TooBig, LEFT, TO_B, frame);
        let [Out::Forward(_, first), rest @ ..] = &outs[..] else { panic!("{outs:?}") };
        let mut frames = vec![first.as_slice()];
        frames.extend(originated(rest));
        assert_eq!(frames.iter().map(|f| f.len() - 14).collect::<Vec<_>>(), [596, 596, 276]);
        let (data, headers) = reassemble(&frames);
        assert_eq!(data, payload);
        assert!(headers.iter().all(|h| h[8] == 63 && h[4..6] == [0, 7]));
        bench.assert_nothing_lost();
    }

    #[test]
    fn only_options_with_the_copy_bit_are_in_later_fragments() {
        // Record route (not copied), stream identifier (copied), no operation.
        let options = [7, 3, 4, 136, 4, 0xab, 0xcd, 1];
        let frame = v4_with_options("192.0.2.9", &options);
        let fragments = fragment(&frame, 60).unwrap();
        let frames: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
        let (data, headers) = reassemble(&frames);
        assert_eq!(data, udp(92));
        assert_eq!(headers[0][20..], options);
        assert!(headers[1..].iter().all(|h| h[20..] == [136, 4, 0xab, 0xcd] && h[0] == 0x46));
        assert!(frames.iter().all(|f| f.len() <= 74));
    }

    #[test]
    fn a_fragment_is_cut_into_fragments_of_the_same_datagram() {
        let mut frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(72));
        frame[20..22].copy_from_slice(&(0x2000u16 | 10).to_be_bytes());
        let fragments = fragment(&frame, 60).unwrap();
        let flags: Vec<_> = fragments.iter().map(|f| u16::from_be_bytes([f[20], f[21]])).collect();
        assert_eq!(flags, [0x2000 | 10, 0x2000 | 15]);
    }

    #[test]
    fn what_cannot_be_cut_is_not() {
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(72));
        assert_eq!(fragment(&frame, 27), None);
        assert_eq!(fragment(&frame, 10), None);
        let mut beyond = frame.clone();
        beyond[20..22].copy_from_slice(&0x1fffu16.to_be_bytes());
        assert_eq!(fragment(&beyond, 60), None);
        let mut whole = frame;
        whole[20] = 0x40;
        assert_eq!(fragment(&whole, 60), None);
        assert_eq!(fragment(&v6("fd00:1::2", "fd00:2::2", 17, &udp(72)), 60), None);
        // With an MTU without room for data the packet is dropped.
        let mut config = config();
        config.interfaces[1].mtu = 24;
        let mut bench = Bench::with_hosts(config);
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(72));
        let outs = bench.punt(PuntReason::TooBig, LEFT, TO_B, frame);
        assert_eq!(outs, [Out::Drop(DropReason::TooBig)]);
    }
}

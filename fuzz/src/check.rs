//! What must be true of every frame that leaves the router, and of what it says by ICMP.

use crate::world::{mtu, port_mac};

/// The one's complement sum of some pieces, each of which begins at an even byte (RFC 1071), by the
/// definition. Shares no code with the router.
pub fn ones_sum(pieces: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for piece in pieces {
        for pair in piece.chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A frame of any origin that leaves by this port.
pub fn leaves(port: usize, frame: &[u8]) {
    framed(port, frame);
    let packet = &frame[14..];
    if frame[12..14] == [8, 0] {
        let header = usize::from(packet[0] & 0xf) * 4;
        assert_eq!(ones_sum(&[&packet[..header]]), 0xffff, "checksum: {packet:02x?}");
    }
}

/// The same, but for a checksum that nobody has looked at.
pub fn framed(port: usize, frame: &[u8]) {
    assert!(frame.len() >= 14, "{frame:02x?}");
    assert_eq!(frame[6..12], port_mac(port as u16), "source MAC: {frame:02x?}");
    assert_ne!(frame[..6], [0; 6], "destination MAC: {frame:02x?}");
    let packet = &frame[14..];
    assert!(packet.len() <= usize::from(mtu(port)), "MTU of port {port}: {}", packet.len());
    match frame[12..14] {
        [8, 6] => assert_eq!(packet.len(), 28, "ARP: {frame:02x?}"),
        [8, 0] => {
            let header = usize::from(packet[0] & 0xf) * 4;
            assert!(packet[0] >> 4 == 4 && header >= 20 && header <= packet.len(), "{packet:02x?}");
            assert_eq!(word(packet, 2), packet.len(), "total length: {packet:02x?}");
            assert!(packet[8] > 0, "time to live: {packet:02x?}");
        }
        [0x86, 0xdd] => {
            assert!(packet.len() >= 40 && packet[0] >> 4 == 6, "{packet:02x?}");
            assert_eq!(word(packet, 4), packet.len() - 40, "payload length: {packet:02x?}");
            assert!(packet[7] > 0, "hop limit: {packet:02x?}");
            assert!(mtu(port) >= 1280, "IPv6 on a link that is too small for it: {packet:02x?}");
        }
        [0x88, 9] => assert_eq!(packet.len(), wire::lacp::PDU_LEN, "{frame:02x?}"),
        _ => panic!("ethertype: {frame:02x?}"),
    }
}

/// A frame that somebody else sent and the router passes on: no address that must not be on a wire.
pub fn passes(port: usize, frame: &[u8]) {
    leaves(port, frame);
    let packet = &frame[14..];
    if frame[12..14] == [8, 0] {
        let martian = |first: u8| matches!(first, 0 | 127 | 240..);
        assert!(!martian(packet[12]) && !martian(packet[16]), "addresses: {packet:02x?}");
        assert!(packet[12] < 224, "source: {packet:02x?}");
        assert_eq!(packet[16] >= 224, frame[..3] == [1, 0, 0x5e], "MAC of a group: {frame:02x?}");
    } else {
        let (source, destination) = (&packet[8..24], &packet[24..40]);
        for address in [source, destination] {
            // Those of a link may go on within it (RFC 4007 9).
            let small = address[..15] == [0; 15] && address[15] < 2;
            assert!(!small, "addresses: {packet:02x?}");
        }
        assert!(source[0] != 0xff, "source: {packet:02x?}");
        assert_eq!(
            destination[0] == 0xff,
            frame[..2] == [0x33, 0x33],
            "MAC of a group: {frame:02x?}"
        );
        assert!(destination[0] != 0xff || destination[1] & 0xf > 2, "scope: {packet:02x?}");
    }
}

/// Whether a frame is for a group that routers forward (RFC 5771 4, RFC 4291 2.7).
pub fn is_to_routed_group(frame: &[u8]) -> bool {
    match frame[12..14] {
        [8, 0] => matches!(frame[30], 224..240) && frame[30..33] != [224, 0, 0],
        [0x86, 0xdd] => frame[38] == 0xff && frame[39] & 0xf > 2,
        _ => false,
    }
}

/// A frame that the fast path forwarded is this one as it was received, but for what RFC 1812 5.2
/// and RFC 8200 3 let a router change. `completed`: the port finishes checksums of TCP and UDP.
pub fn is_forwarded(sent: &[u8], received: &[u8], completed: bool) -> bool {
    if received.len() < sent.len() || sent[12..14] != received[12..14] {
        return false;
    }
    let mut expected = received[..sent.len()].to_vec();
    expected[..12].copy_from_slice(&sent[..12]);
    let (ttl, checksum) = if sent[12..14] == [8, 0] { (22, 24..26) } else { (21, 0..0) };
    if expected[ttl] != sent[ttl].wrapping_add(1) {
        return false;
    }
    expected[ttl] = sent[ttl];
    expected[checksum.clone()].copy_from_slice(&sent[checksum]);
    if completed {
        let header = if sent[12..14] == [8, 0] { 34 } else { 54 };
        return expected[..header] == sent[..header];
    }
    expected == sent
}

/// A frame that the router itself made: whole ICMP messages have right checksums, and errors are
/// about nothing that must have none (RFC 1812 4.3.2.7, RFC 4443 2.4 e).
pub fn made(port: usize, frame: &[u8]) {
    leaves(port, frame);
    let packet = &frame[14..];
    match frame[12..14] {
        [8, 0] if packet[9] == 1 && word(packet, 6) & 0x3fff == 0 => {
            let message = &packet[usize::from(packet[0] & 0xf) * 4..];
            assert_eq!(ones_sum(&[message]), 0xffff, "ICMP checksum: {packet:02x?}");
            if matches!(message[0], 3 | 4 | 11 | 12 | 5) {
                assert!(packet.len() <= 576, "an error of {} bytes", packet.len());
                about4(&message[8..]);
            }
        }
        [0x86, 0xdd] if packet[6] == 58 => {
            let message = &packet[40..];
            let length = (message.len() as u32).to_be_bytes();
            let pieces = [&packet[8..40], &length, &[0, 0, 0, 58], message];
            assert_eq!(ones_sum(&pieces), 0xffff, "ICMPv6 checksum: {packet:02x?}");
            if message[0] < 128 {
                assert!(packet.len() <= 1280, "an error of {} bytes", packet.len());
                let to_group = message[0] == 2 || (message[0] == 4 && message[1] == 2);
                about6(&message[8..], to_group);
            }
        }
        _ => {}
    }
}

/// What an ICMP error may quote.
fn about4(quoted: &[u8]) {
    assert!(quoted.len() >= 20, "{quoted:02x?}");
    assert_eq!(word(quoted, 6) & 0x1fff, 0, "an error about a later fragment: {quoted:02x?}");
    let to_many = matches!(quoted[16], 224..240) || quoted[16..20] == [0xff; 4];
    assert!(!to_many, "an error about a multicast or broadcast: {quoted:02x?}");
    assert!(!matches!(quoted[12], 0 | 127 | 224..), "an error to nobody: {quoted:02x?}");
    let header = usize::from(quoted[0] & 0xf) * 4;
    if quoted[9] == 1
        && let Some(kind) = quoted.get(header)
    {
        assert!(!matches!(kind, 3 | 4 | 5 | 11 | 12), "an error about an error: {quoted:02x?}");
    }
}

fn about6(quoted: &[u8], to_group: bool) {
    assert!(quoted.len() >= 40, "{quoted:02x?}");
    assert!(to_group || quoted[24] != 0xff, "an error about a multicast: {quoted:02x?}");
    let nobody = quoted[8..24] == [0; 16] || quoted[8] == 0xff;
    assert!(!nobody, "an error to nobody: {quoted:02x?}");
    if quoted[6] == 58
        && let Some(kind) = quoted.get(40)
    {
        assert!(*kind >= 128 && *kind != 137, "an error about an error: {quoted:02x?}");
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

"""Frames for the scenarios, and the expected results of forwarding.

The expectations are worked out here from the RFCs, byte by byte, and by nobody's library: a
router checked by the arithmetic it uses itself would agree with its own mistakes.
"""

import ipaddress
import struct


def mac_bytes(mac):
    """`02:00:..` as six bytes."""
    return bytes.fromhex(mac.replace(":", ""))


def checksum(data):
    """The Internet checksum (RFC 1071) of some bytes."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def pseudo_header(source, destination, protocol, length):
    """The pseudo-header of RFC 768/793 or RFC 8200 8.1 that transport checksums cover."""
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    if source.version == 4:
        return source.packed + destination.packed + struct.pack("!BBH", 0, protocol, length)
    return source.packed + destination.packed + struct.pack("!IHBB", length, 0, 0, protocol)


def ethernet(destination, source, ethertype, payload):
    """An Ethernet II frame."""
    return mac_bytes(destination) + mac_bytes(source) + struct.pack("!H", ethertype) + payload


def tagged(frame, vlan, protocol=0x8100, priority=0):
    """A frame with a VLAN tag (IEEE 802.1Q 9.3) in front of those that it has; 0x88A8 is a service tag."""
    return frame[:12] + struct.pack("!HH", protocol, priority << 13 | vlan) + frame[12:]


def untagged(frame):
    """The frame without its tags, and the tags: (protocol, priority, VLAN), outer first."""
    tags = []
    while frame[12:14] in (b"\x81\x00", b"\x88\xa8"):
        protocol, control = struct.unpack("!HH", frame[12:16])
        tags.append((protocol, control >> 13, control & 0xFFF))
        frame = frame[:12] + frame[16:]
    return frame, tags


def ipv4(source, destination, payload, protocol=17, ttl=64, ident=0x1234, flags=0, offset=0, tos=0,
         options=b"", total_length=None):
    """An IPv4 packet with a correct checksum; `flags` 2 is DF, 1 is MF; `offset` in units of 8."""
    header_length = 20 + len(options)
    if total_length is None:
        total_length = header_length + len(payload)
    header = struct.pack(
        "!BBHHHBBH4s4s",
        4 << 4 | header_length // 4, tos, total_length, ident, flags << 13 | offset, ttl, protocol, 0,
        ipaddress.IPv4Address(source).packed, ipaddress.IPv4Address(destination).packed,
    ) + options
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload


def ipv6(source, destination, payload, next_header=17, hop_limit=64, traffic_class=0, flow=0,
         payload_length=None):
    """An IPv6 packet."""
    if payload_length is None:
        payload_length = len(payload)
    return struct.pack(
        "!IHBB", 6 << 28 | traffic_class << 20 | flow, payload_length, next_header, hop_limit
    ) + ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(destination).packed + payload


def udp(source, destination, sport, dport, data):
    """A UDP datagram with its checksum for these addresses."""
    length = 8 + len(data)
    head = struct.pack("!HHHH", sport, dport, length, 0)
    total = checksum(pseudo_header(source, destination, 17, length) + head + data) or 0xFFFF
    return head[:6] + struct.pack("!H", total) + data


def tcp(source, destination, sport, dport, sequence, acknowledgment, flags, data=b""):
    """A TCP segment without options, with its checksum for these addresses; `flags` as RFC 9293 3.1
    numbers them: 1 FIN, 2 SYN, 4 RST, 16 ACK."""
    window = 0 if flags & 4 else 8192
    head = struct.pack("!HHIIBBHHH", sport, dport, sequence, acknowledgment, 5 << 4, flags, window, 0, 0)
    total = checksum(pseudo_header(source, destination, 6, 20 + len(data)) + head + data)
    return head[:16] + struct.pack("!H", total) + head[18:] + data


def icmp(kind, code, rest, data=b""):
    """An ICMPv4 message; `rest` are the four bytes after the checksum."""
    body = struct.pack("!BBH4s", kind, code, 0, rest) + data
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


def icmp6(source, destination, kind, code, rest, data=b""):
    """An ICMPv6 message with its checksum for these addresses."""
    body = struct.pack("!BBH4s", kind, code, 0, rest) + data
    total = checksum(pseudo_header(source, destination, 58, len(body)) + body)
    return body[:2] + struct.pack("!H", total) + body[4:]


def pattern(length, seed=0):
    """Bytes in which neighbours differ, so that a shifted or repeated payload is detected."""
    return bytes((seed + 7 * i + (i >> 8)) & 0xFF for i in range(length))


def forwarded(frame, source_mac, destination_mac):
    """The expected result of forwarding `frame`: new MACs, TTL less one, the header checksum computed anew; every other
    byte unchanged."""
    ethertype = struct.unpack_from("!H", frame, 12)[0]
    packet = bytearray(frame[14:])
    if ethertype == 0x0800:
        length = (packet[0] & 15) * 4
        packet[8] -= 1
        packet[10:12] = b"\0\0"
        packet[10:12] = struct.pack("!H", checksum(bytes(packet[:length])))
        packet = packet[: struct.unpack_from("!H", packet, 2)[0]]
    else:
        packet[7] -= 1
        packet = packet[: 40 + struct.unpack_from("!H", packet, 4)[0]]
    return ethernet(destination_mac, source_mac, ethertype, bytes(packet))


def unpadded(frame):
    """The frame without link padding after its IP packet; other frames unchanged."""
    ethertype = struct.unpack_from("!H", frame, 12)[0]
    if ethertype == 0x0800 and len(frame) >= 34:
        return frame[: 14 + struct.unpack_from("!H", frame, 16)[0]]
    if ethertype == 0x86DD and len(frame) >= 54:
        return frame[: 54 + struct.unpack_from("!H", frame, 18)[0]]
    return frame


def is_announcement(frame):
    """Returns true if a host announces its own addresses: by ARP (RFC 5227 2.3), by an unsolicited neighbour
    advertisement (RFC 4861 7.2.6), or by a report of its groups (RFC 3810), with tags or without."""
    while frame[12:14] in (b"\x81\x00", b"\x88\xa8"):
        frame = frame[:12] + frame[16:]
    if frame[12:14] == b"\x08\x06":
        return frame[28:32] == frame[38:42]
    if frame[12:14] != b"\x86\xdd":
        return False
    report = frame[:6] == b"\x33\x33\0\0\0\x16"
    advertised = frame[:6] == b"\x33\x33\0\0\0\x01" and frame[54] == 136 and not frame[58] & 0x40
    return report or advertised


def pcap_file(frames):
    """The frames as a capture file (the classic format, link type Ethernet)."""
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    records = (struct.pack("<IIII", 0, i, len(f), len(f)) + f for i, f in enumerate(frames))
    return head + b"".join(records)

"""Packets of every kind that a router treats specially, by name: the frames that the left host sends."""

import itertools
import struct

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, ICMPv6Unknown, IPv6, IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, fragment6,
)
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from .lab import HOST_A_MAC, LEFT_MAC
from .packets import checksum, ethernet, ipv4, ipv6, pattern
from .twins import A4, A6, B4, B6, FAR4, FAR6, LINK_LOCAL, OTHER_MAC, OWN4, OWN6

LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
BROADCAST = Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff")
DATA = Raw(pattern(40))


def sender():
    """A host behind the left one, another each time: Linux sends no host more than a few errors per second
    (`net.ipv4.route.error_cost`), and has no setting for that in a namespace."""
    number = next(_senders)
    return f"172.20.{number >> 8 & 255}.{number & 255}"


_senders = itertools.count(1)


def group(mac):
    """Sent to a group."""
    return Ether(src=HOST_A_MAC, dst=mac)


def raw4(**fields):
    """An IPv4 packet with exactly these fields and a correct checksum."""
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(sender(), B4, pattern(40), **fields))


def raw6(**fields):
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(A6, B6, pattern(40), **fields))


def with_header(*changes):
    """An IPv4 frame with changed header bytes and a correct checksum."""
    frame = bytearray(raw4())
    for offset, value in changes:
        frame[14 + offset] = value
    frame[24:26] = b"\0\0"
    frame[24:26] = struct.pack("!H", checksum(bytes(frame[14:34])))
    return bytes(frame)


def with_checksum(make):
    """An IPv4 frame whose checksum field is computed from the correct one."""
    frame = raw4()
    right = struct.unpack_from("!H", frame, 24)[0]
    return frame[:24] + struct.pack("!H", make(right) & 0xFFFF) + frame[26:]


def zero_checksum(field):
    """An IPv4 frame whose identification is such that the right checksum is 0, with 0 or 0xffff in
    the field: both are zero in one's complement."""
    rest = checksum(ipv4(A4, B4, pattern(40), ident=0)[:20][:10] + b"\0\0" + ipv4(A4, B4, pattern(40), ident=0)[12:20])
    packet = bytearray(ipv4(A4, B4, pattern(40), ident=rest))
    packet[10:12] = struct.pack("!H", field)
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, bytes(packet))


def ip(*layers, link=LINK, src=None, dst=B4, **fields):
    """An IPv4 packet; without layers, UDP."""
    packet = IP(src=src or sender(), dst=dst, **fields)
    for layer in layers or (UDP(sport=4000, dport=5000), DATA):
        packet = packet / layer
    return link / packet


def ip6(*layers, link=LINK, src=A6, dst=B6, **fields):
    packet = IPv6(src=src, dst=dst, **fields)
    for layer in layers or (UDP(sport=4000, dport=5000), DATA):
        packet = packet / layer
    return link / packet


def options(text, **fields):
    """An IPv4 packet with these option bytes, in hexadecimal; the header is filled with zeros."""
    return ip(options=_padded(text), **fields)


def _padded(text):
    given = bytes.fromhex(text.replace(" ", ""))
    return given + bytes(-len(given) % 4)


def hop_by_hop(text, **fields):
    """An IPv6 packet with a hop-by-hop header of these option bytes."""
    return ip6(extension(text, 17), UDP(sport=4000, dport=5000), DATA, nh=0, **fields)


def destination_options(text, next_header=58, **fields):
    return ip6(extension(text, next_header), ICMPv6EchoRequest(id=3, seq=3, data=b"options"), nh=60, **fields)


def extension(text, next_header):
    """An options header, padded to eight bytes."""
    given = bytes.fromhex(text.replace(" ", ""))
    given += bytes(-(len(given) + 2) % 8)
    return Raw(bytes([next_header, (len(given) + 2) // 8 - 1]) + given)


def echo(**fields):
    return ICMP(id=3, seq=7, **fields) / b"echo"


def echo6(data=b"echo"):
    return ICMPv6EchoRequest(id=3, seq=7, data=data)


QUOTED = bytes(IP(src=B4, dst=A4) / UDP(sport=5000, dport=4000) / b"quoted")
QUOTED6 = bytes(IPv6(src=B6, dst=A6) / UDP(sport=5000, dport=4000) / b"quoted")


def error(kind, code=0):
    return ICMP(type=kind, code=code) / QUOTED


def error6(kind, code=0):
    return ICMPv6Unknown(type=kind, code=code, msgbody=bytes(4) + QUOTED6)


def solicitation(**fields):
    return IPv6(src=A6, dst=OWN6, hlim=255, **fields), ICMPv6ND_NS(tgt=OWN6) / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)


def cases4():
    """IPv4 in transit and general cases."""
    yield "udp", ip()
    yield "tcp", ip(TCP(sport=4000, dport=80, flags="S"))
    yield "echo through", ip(echo())
    yield "unknown protocol", ip(DATA, proto=253)
    yield "header alone", ip(Raw(b""), proto=17)
    yield "padded to 60", bytes(ip(Raw(b"x"), proto=17)).ljust(60, b"\xee")
    yield "padded to 1514", bytes(ip()).ljust(1514, b"\xee")
    for ttl in (0, 1, 2, 255):
        yield f"ttl {ttl}", ip(ttl=ttl)
        yield f"ttl {ttl} to the router", ip(echo(), dst=OWN4, ttl=ttl)
    yield "ttl 1 to nowhere", ip(dst="9.9.9.9", ttl=1)
    yield "ttl 1 to a blackhole", ip(dst="192.0.2.1", ttl=1)
    yield "ttl 1 and too big", ip(Raw(bytes(1400)), ttl=1)
    yield "tos", ip(tos=0xBB)
    yield "checksum wrong", with_checksum(lambda right: right ^ 1)
    yield "checksum swapped", with_checksum(lambda right: right >> 8 | right << 8)
    yield "checksum 0", with_checksum(lambda right: 0)
    yield "checksum 0 and right", zero_checksum(0)
    yield "checksum 0xffff for 0", zero_checksum(0xFFFF)
    for version in (0, 5, 6, 15):
        yield f"version {version}", with_header((0, version << 4 | 5))
    yield "header of 4 words", with_header((0, 0x44))
    yield "header of 15 words in 40 bytes", with_header((0, 0x4F))[:54]
    for length in (0, 19, 20, 21, 59):
        yield f"total length {length} of 60", raw4(total_length=length)
    for length in (61, 1500, 65535):
        yield f"total length {length} of 60", raw4(total_length=length)
    yield "truncated, and about an error", bytes(ip(error(3)))[:-3]
    yield "runt", bytes(ip())[:30]
    for name, flags in (("reserved", 4), ("DF", 2), ("reserved and DF", 6)):
        yield f"flags {name}", raw4(flags=flags)
    yield "first fragment", raw4(flags=1)
    yield "fragment in the middle", raw4(flags=1, offset=5)
    yield "last fragment", raw4(offset=5)
    yield "fragment with DF", raw4(flags=3, offset=5)
    yield "fragment of no multiple of 8", ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(A4, B4, pattern(41), flags=1))
    yield "fragment beyond 65535", raw4(offset=8191)
    yield "too big with DF", ip(Raw(pattern(1400)), flags="DF", proto=17)
    yield "too big without DF", ip(Raw(pattern(1400)), proto=17)
    yield "too big by one", ip(Raw(pattern(1281)), proto=17)
    yield "as big as it may be", ip(Raw(pattern(1280)), proto=17)
    yield "too big, a fragment", ip(Raw(pattern(1400)), proto=17, flags="MF", frag=10)
    yield "too big, reserved flag", ip(Raw(pattern(1400)), proto=17, flags="evil")
    yield "too big with options", ip(Raw(pattern(1400)), proto=17, options=b"\x94\x04\0\0\x1e\x04\xab\xcd")
    yield "too big, DF, later fragment", ip(Raw(pattern(1400)), proto=17, flags="DF+MF", frag=10)
    yield "too big, an error with DF", ip(error(3), Raw(pattern(1400)), flags="DF")
    for name, address in {
        "the far address": FAR4, "the router": OWN4,
    }.items():
        yield f"echo to {name}", ip(echo(), dst=address)
        yield f"echo of 1400 to {name}", ip(ICMP(id=3), Raw(pattern(1400)), dst=address)
    for address in ("10.0.1.255", "10.0.2.255", "10.0.1.0", "10.0.2.0", "255.255.255.255"):
        yield f"echo to {address}", ip(echo(), dst=address)
        yield f"udp to {address}", ip(dst=address)
        yield f"udp to {address} by broadcast", ip(dst=address, link=BROADCAST)
    for address in ("224.0.0.1", "224.0.0.5", "239.1.2.3"):
        yield f"to group {address}", ip(dst=address, link=group("01:00:5e:00:00:01"))
        yield f"echo to group {address}", ip(echo(), dst=address, link=group("01:00:5e:00:00:01"))
        yield f"to group {address} by unicast", ip(dst=address)
    for address in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "240.0.0.1", "255.255.255.254", "169.254.1.1"):
        yield f"to {address}", ip(dst=address)
        yield f"from {address}", ip(src=address)
    for address in ("224.0.0.1", "255.255.255.255", OWN4, FAR4, "10.0.1.255", "10.0.1.0", "10.0.2.255", "10.0.2.77",
                    "172.31.0.1"):
        yield f"from {address}", ip(src=address)
        yield f"from {address}, ttl 1", ip(src=address, ttl=1)
    for address, what in (("9.9.9.9", "nowhere"), ("192.0.2.1", "a blackhole"), ("172.16.1.1", "where it is prohibited"),
                          ("172.16.2.1", "the unreachable"), ("198.51.100.255", "a network behind a router")):
        yield f"to {what}", ip(dst=address)
        yield f"an error to {what}", ip(error(3, 1), dst=address)
    yield "a router solicitation to nowhere", ip(ICMP(type=10), dst="9.9.9.9")
    yield "tos 12, to nowhere", ip(dst="9.9.9.9", tos=12)
    yield "by broadcast", ip(link=BROADCAST)
    yield "by multicast", ip(link=group("01:00:5e:00:00:01"))
    yield "to another MAC", ip(link=Ether(src=HOST_A_MAC, dst=OTHER_MAC))
    yield "unknown ethertype", Ether(src=HOST_A_MAC, dst=LEFT_MAC, type=0x88B5) / DATA
    yield "VLAN tag", Ether(src=HOST_A_MAC, dst=LEFT_MAC) / Dot1Q(vlan=5) / IP(src=A4, dst=B4) / DATA
    yield "priority tag", Ether(src=HOST_A_MAC, dst=LEFT_MAC) / Dot1Q(vlan=0, prio=5) / IP(src=A4, dst=B4) / DATA
    yield "IPv6 in IPv4's ethertype", Ether(src=HOST_A_MAC, dst=LEFT_MAC, type=0x0800) / IPv6(src=A6, dst=B6)
    for kind in (3, 11, 12, 4, 5):
        yield f"an ICMP error {kind} through", ip(error(kind))
        yield f"an ICMP error {kind}, ttl 1", ip(error(kind), ttl=1)
        yield f"an ICMP error {kind} to the router", ip(error(kind), dst=OWN4)
    yield "a later fragment, ttl 1", raw4(offset=5, ttl=1)
    yield "a first fragment, ttl 1", raw4(flags=1, ttl=1)
    yield "echo, ttl 1", ip(echo(), ttl=1)
    yield "unknown ICMP, ttl 1", ip(ICMP(type=99), ttl=1)
    yield "ttl 1 by broadcast", ip(ttl=1, link=BROADCAST)
    yield "a short ICMP message, ttl 1", ip(Raw(b""), proto=1, ttl=1)
    yield "a large packet, ttl 1", ip(Raw(pattern(1400)), proto=17, ttl=1)


def cases4_options():
    """IPv4 options, in transit and for the router."""
    texts = {
        "no operation": "01 01 01 00",
        "end, and anything behind": "00 ff ff ff",
        "unknown": "1e 04 ab cd",
        "unknown, copied": "9e 04 ab cd",
        "stream identifier": "88 04 12 34",
        "security": "82 0b 01 02 03 04 05 06 07 08 09",
        "router alert": "94 04 00 00",
        "router alert 1": "94 04 00 01",
        "record route": "07 0b 04 00 00 00 00 00 00 00 00",
        "record route, one left": "07 0b 08 0a 09 09 09 00 00 00 00",
        "record route, full": "07 07 08 0a 09 09 09",
        "record route, half a place": "07 09 04 00 00 00 00 00 00",
        "record route, half a place left": "07 09 08 00 00 00 00 00 00",
        "record route, pointer 3": "07 07 03 00 00 00 00",
        "record route, pointer 5": "07 0b 05 00 00 00 00 00 00 00 00",
        "record route, pointer beyond": "07 07 ff 00 00 00 00",
        "record route, of 3": "07 03 04",
        "record route, of 2": "07 02",
        "record route, twice": "07 07 04 00 00 00 00 07 07 04 00 00 00 00",
        "timestamp": "44 0c 05 00 00 00 00 00 00 00 00 00",
        "timestamp, full": "44 08 09 00 12 34 56 78",
        "timestamp, overflow 14": "44 08 09 e0 12 34 56 78",
        "timestamp, overflow 15": "44 08 09 f0 12 34 56 78",
        "timestamp and address": "44 0c 05 01 00 00 00 00 00 00 00 00",
        "timestamp, prespecified here": "44 0c 05 03 0a 00 01 01 00 00 00 00",
        "timestamp, prespecified elsewhere": "44 0c 05 03 0a 00 09 01 00 00 00 00",
        "timestamp, flag 2": "44 0c 05 02 00 00 00 00 00 00 00 00",
        "timestamp, pointer 4": "44 0c 04 00 00 00 00 00 00 00 00 00",
        "timestamp, of 3": "44 03 05",
        "timestamp, half a place left": "44 0a 05 01 00 00 00 00 00 00",
        "loose source route": "83 07 04 0a 00 02 02",
        "loose source route, followed": "83 07 08 0a 00 02 02",
        "strict source route": "89 07 04 0a 00 02 02",
        "both source routes": "83 07 08 0a 00 02 02 89 07 08 0a 00 02 02",
        "length 0": "1e 00 00 00",
        "length 1": "1e 01 00 00",
        "beyond the header": "1e 09 00 00",
        "a lone type at the end": "01 01 01 1e",
    }
    for name, text in texts.items():
        yield f"option {name}", options(text)
        yield f"option {name}, to the router", ip(echo(), dst=OWN4, options=_padded(text))
    yield "option no operation, ttl 1", options("01 01 01 00", ttl=1)
    yield "option unknown, no route", options("1e 04 ab cd", dst="9.9.9.9")
    yield "option record route, DF and too big", ip(Raw(pattern(1400)), proto=17, flags="DF", options=_padded(texts["record route"]))
    yield "option wrong in an error", ip(error(3), options=_padded("1e 00 00 00"))
    yield "option wrong in a later fragment", ip(frag=5, options=_padded("1e 00 00 00"))


def cases4_host():
    """IPv4 for the router."""
    yield "an unknown protocol to the router", ip(DATA, dst=OWN4, proto=253)
    yield "udp to the router", ip(dst=OWN4)
    yield "udp to the far address", ip(dst=FAR4)
    yield "udp with a wrong checksum to the router", ip(UDP(sport=4000, dport=5000, chksum=1), DATA, dst=OWN4)
    yield "tcp to the router", ip(TCP(sport=4000, dport=80, flags="S", seq=5), dst=OWN4)
    yield "tcp reset to the router", ip(TCP(sport=4000, dport=80, flags="R", seq=5), dst=OWN4)
    yield "echo with a wrong checksum", ip(ICMP(id=3, chksum=1) / b"echo", dst=OWN4)
    yield "echo reply to the router", ip(ICMP(type=0, id=3), dst=OWN4)
    yield "timestamp request", ip(ICMP(type=13, id=3, ts_ori=1, ts_rx=0, ts_tx=0), dst=OWN4)
    yield "address mask request", ip(ICMP(type=17, id=3), dst=OWN4)
    yield "information request", ip(ICMP(type=15, id=3), dst=OWN4)
    yield "router solicitation", ip(ICMP(type=10), dst=OWN4)
    yield "unknown ICMP to the router", ip(ICMP(type=99), dst=OWN4)
    yield "echo with code 5", ip(ICMP(id=3, code=5) / b"echo", dst=OWN4)
    yield "echo with DF", ip(echo(), dst=OWN4, flags="DF")
    yield "echo with tos", ip(echo(), dst=OWN4, tos=0xBB)
    yield "a short echo", ip(Raw(b"\x08\x00\xf7\xff"), dst=OWN4, proto=1)
    whole = IP(src=A4, dst=OWN4, id=77) / ICMP(id=3) / pattern(1200)
    yield "echo in fragments", [LINK / part for part in whole.fragment(600)]
    yield "echo in fragments, backwards", [LINK / part for part in reversed(whole.fragment(600))]
    first, *_, last = whole.fragment(600)
    yield "echo in fragments, one twice", [LINK / part for part in (first, first, last)]
    yield "udp to the router, by broadcast", ip(dst=OWN4, link=BROADCAST)
    yield "echo to the router, by broadcast", ip(echo(), dst=OWN4, link=BROADCAST)


def cases6():
    """IPv6 in transit."""
    yield "udp 6", ip6()
    yield "tcp 6", ip6(TCP(sport=4000, dport=80, flags="S"))
    yield "echo through 6", ip6(echo6())
    yield "class and flow label 6", ip6(tc=0xBB, fl=0xABCDE)
    yield "padded to 100 6", bytes(ip6()).ljust(110, b"\xee")
    for limit in (0, 1, 2, 255):
        yield f"hop limit {limit}", ip6(hlim=limit)
        yield f"hop limit {limit} to the router", ip6(echo6(), dst=OWN6, hlim=limit)
    yield "hop limit 1 to nowhere", ip6(dst="2001:db9::1", hlim=1)
    for version in (0, 4, 5, 15):
        frame = bytearray(raw6())
        frame[14] = version << 4
        yield f"version {version} 6", bytes(frame)
    for length in (0, 20, 39):
        yield f"payload length {length} of 40", raw6(payload_length=length)
    for length in (41, 65535):
        yield f"payload length {length} of 40", raw6(payload_length=length)
    yield "runt 6", raw6()[:50]
    yield "to another host on the same link 6", ip6(dst="fd00:1::77")
    yield "too big 6", ip6(Raw(pattern(1400)), nh=17)
    yield "too big by one 6", ip6(Raw(pattern(1261)), nh=17)
    yield "as big as it may be 6", ip6(Raw(pattern(1260)), nh=17)
    yield "too big, an error 6", ip6(error6(1), Raw(pattern(1320)))
    yield "too big, a later fragment 6", ip6(IPv6ExtHdrFragment(offset=10, m=1, id=5, nh=17), Raw(pattern(1400)))
    yield "too big and hop limit 1", ip6(Raw(pattern(1400)), nh=17, hlim=1)
    for address in ("::", "::1", "ff02::1", "ff0e::1", "::ffff:10.0.1.2", "fe80::a", OWN6, FAR6, "fd00:1::", "fd00:2::77",
                    "2001:db9::1", "::10.0.1.2", "fec0::1", "2002:a00:102::1"):
        yield f"from {address}", ip6(src=address)
        yield f"from {address}, hop limit 1", ip6(src=address, hlim=1)
    for address in ("::", "::1", "::ffff:10.0.2.2", "::10.0.2.2", "fe80::b", "fec0::1", "2002:a00:202::1"):
        yield f"to {address}", ip6(dst=address)
    yield "from and to link-local", ip6(src="fe80::a", dst="fe80::b")
    yield "from link-local to the router", ip6(echo6(), src="fe80::a", dst=OWN6)
    for address, what in (("2001:db9::1", "nowhere"), ("2001:db8:2::1", "a blackhole"),
                          ("2001:db8:3::1", "where it is prohibited"), ("2001:db8:4::1", "the unreachable"),
                          ("2001:db8:1::1", "a network behind a router")):
        yield f"to {what} 6", ip6(dst=address)
        yield f"an error to {what} 6", ip6(error6(1, 3), dst=address)
    for address, mac in (("ff02::1", "33:33:00:00:00:01"), ("ff02::2", "33:33:00:00:00:02"), ("ff01::1", "33:33:00:00:00:01"),
                         ("ff05::2", "33:33:00:00:00:02"), ("ff0e::1234", "33:33:00:00:12:34"), ("ff02::1234", "33:33:00:00:12:34")):
        yield f"udp to {address}", ip6(dst=address, link=group(mac))
        yield f"echo to {address}", ip6(echo6(), dst=address, link=group(mac))
        yield f"udp to {address}, hop limit 1", ip6(dst=address, link=group(mac), hlim=1)
    yield "by multicast 6", ip6(link=group("33:33:00:00:00:01"))
    yield "by broadcast 6", ip6(link=BROADCAST)
    for kind in (1, 2, 3, 4, 100):
        yield f"an ICMPv6 error {kind} through", ip6(error6(kind))
        yield f"an ICMPv6 error {kind}, hop limit 1", ip6(error6(kind), hlim=1)
        yield f"an ICMPv6 error {kind} to the router", ip6(error6(kind), dst=OWN6)
    yield "a redirect, hop limit 1", ip6(ICMPv6Unknown(type=137, msgbody=bytes(36)), hlim=1)
    yield "echo 6, hop limit 1", ip6(echo6(), hlim=1)
    yield "unknown information, hop limit 1", ip6(ICMPv6Unknown(type=200), hlim=1)
    yield "a short message, hop limit 1", ip6(Raw(b""), nh=58, hlim=1)
    yield "a large packet, hop limit 1", ip6(Raw(pattern(1400)), nh=17, hlim=1)


def cases6_headers():
    """IPv6 extension headers, in transit and for the router."""
    texts = {
        "PadN": "01 04 00 00 00 00", "Pad1": "00 00 00 00 00 00", "router alert": "05 02 00 00 01 00",
        "unknown, skip": "1e 04 00 00 00 00", "unknown, discard": "5e 04 00 00 00 00",
        "unknown, tell": "9e 04 00 00 00 00", "unknown, tell unless multicast": "de 04 00 00 00 00",
        "PadN with data": "01 04 01 02 03 04", "PadN of 10": "01 0c" + "00" * 12, "beyond the header": "1e 09 00 00 00 00",
        "jumbo payload": "c2 04 00 01 00 00", "jumbo payload, too small": "c2 04 00 00 00 10",
        "jumbo payload of a wrong length": "c2 01 00 00 00 10", "a lone type at the end": "00 00 00 00 00 1e",
        "router alert, of 3": "05 03 00 00 00 00",
    }
    for name, text in texts.items():
        yield f"hop-by-hop {name}", hop_by_hop(text)
        yield f"hop-by-hop {name}, to the router", ip6(extension(text, 58), echo6(), nh=0, dst=OWN6)
        yield f"destination options {name}", destination_options(text)
        yield f"destination options {name}, to the router", destination_options(text, dst=OWN6)
    yield "hop-by-hop, longer than the packet", ip6(Raw(bytes([17, 200, 1, 4, 0, 0, 0, 0])), nh=0)
    yield "hop-by-hop, hop limit 1", hop_by_hop("01 04 00 00 00 00", hlim=1)
    yield "hop-by-hop, not there, hop limit 1", ip6(Raw(b""), nh=0, hlim=1)
    yield "hop-by-hop, nowhere", hop_by_hop("01 04 00 00 00 00", dst="2001:db9::1")
    yield "hop-by-hop, too big", ip6(extension("01 04 00 00 00 00", 17), Raw(pattern(1400)), nh=0)
    yield "hop-by-hop behind another", ip6(extension("01 04 00 00 00 00", 0), extension("01 04 00 00 00 00", 58), echo6(), nh=60, dst=OWN6)
    yield "hop-by-hop, two", ip6(extension("01 04 00 00 00 00", 0), extension("01 04 00 00 00 00", 58), echo6(), nh=0, dst=OWN6)
    for kind in (0, 2, 3, 4, 99):
        for left in (0, 1):
            header = IPv6ExtHdrRouting(type=kind, segleft=left, addresses=[B6])
            yield f"routing {kind}, {left} left", ip6(header, UDP(sport=4000, dport=5000), DATA)
            yield f"routing {kind}, {left} left, to the router", ip6(header, echo6(), dst=OWN6)
    whole = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrFragment(id=9) / ICMPv6EchoRequest(id=3, seq=7, data=pattern(1200))
    parts = fragment6(whole, 700)
    yield "echo in fragments 6", [LINK / part for part in parts]
    yield "echo in fragments, backwards 6", [LINK / part for part in reversed(parts)]
    yield "atomic fragment to the router", ip6(IPv6ExtHdrFragment(id=9, nh=58), echo6(), dst=OWN6)
    yield "fragment of no multiple of 8, to the router", ip6(IPv6ExtHdrFragment(id=9, m=1, nh=17), Raw(pattern(41)), dst=OWN6)
    yield "fragment beyond 65535, to the router", ip6(IPv6ExtHdrFragment(id=9, offset=8190, nh=17), Raw(pattern(40)), dst=OWN6)
    yield "first fragment without upper layer, to the router", ip6(IPv6ExtHdrFragment(id=9, m=1, nh=60), Raw(bytes([58, 9, 1, 4, 0, 0, 0, 0])), dst=OWN6)
    yield "fragment on its way", ip6(IPv6ExtHdrFragment(id=9, m=1, nh=17), Raw(pattern(40)))
    yield "later fragment, hop limit 1", ip6(IPv6ExtHdrFragment(id=9, offset=5, nh=17), Raw(pattern(40)), hlim=1)
    for number in (59, 50, 51, 253, 41, 4):
        yield f"next header {number}", ip6(DATA, nh=number)
        yield f"next header {number} to the router", ip6(DATA, nh=number, dst=OWN6)
    yield "unknown next header behind options, to the router", ip6(extension("01 04 00 00 00 00", 253), DATA, nh=60, dst=OWN6)


def cases6_host():
    """IPv6 for the router."""
    for name, address in {"the router": OWN6, "the far address": FAR6, "its anycast address": "fd00:1::",
                          "the far anycast address": "fd00:2::", "its link-local address": LINK_LOCAL}.items():
        yield f"echo to {name} 6", ip6(echo6(), dst=address)
    yield "echo of 1400 to the router 6", ip6(echo6(pattern(1400)), dst=OWN6)
    yield "echo with a wrong checksum 6", ip6(ICMPv6EchoRequest(id=3, cksum=1), dst=OWN6)
    yield "echo with code 5 6", ip6(ICMPv6EchoRequest(id=3, code=5), dst=OWN6)
    yield "echo with class 6", ip6(echo6(), dst=OWN6, tc=0xBB, fl=0x12345)
    yield "udp to the router 6", ip6(dst=OWN6)
    yield "udp with a wrong checksum to the router 6", ip6(UDP(sport=4000, dport=5000, chksum=1), DATA, dst=OWN6)
    yield "routing 2, 1 left, to the anycast address", ip6(IPv6ExtHdrRouting(type=2, segleft=1, addresses=[B6]), echo6(), dst="fd00:1::")
    yield "tcp to the router 6", ip6(TCP(sport=4000, dport=80, flags="S", seq=5), dst=OWN6)
    yield "udp without checksum to the router", ip6(UDP(sport=4000, dport=5000, chksum=0), DATA, dst=OWN6)
    yield "unknown information to the router", ip6(ICMPv6Unknown(type=200), dst=OWN6)
    yield "echo reply to the router 6", ip6(ICMPv6Unknown(type=129, msgbody=bytes(4)), dst=OWN6)
    yield "a short echo 6", ip6(Raw(b"\x80\x00"), nh=58, dst=OWN6)
    ask = ICMPv6ND_NS(tgt=OWN6) / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)
    yield "solicitation", ip6(ask, dst=OWN6, hlim=255)
    yield "solicitation, hop limit 64", ip6(ask, dst=OWN6, hlim=64)
    yield "solicitation of somebody else", ip6(ICMPv6ND_NS(tgt="fd00:1::99"), dst=OWN6, hlim=255)
    yield "solicitation of the far address", ip6(ICMPv6ND_NS(tgt=FAR6), dst=OWN6, hlim=255)
    yield "solicitation with code 1", ip6(ICMPv6ND_NS(tgt=OWN6, code=1), dst=OWN6, hlim=255)
    yield "solicitation of a group", ip6(ICMPv6ND_NS(tgt="ff02::1"), dst=OWN6, hlim=255)


def all_cases():
    """Every case, by name."""
    found = {}
    for source in (cases4, cases4_options, cases4_host, cases6, cases6_headers, cases6_host):
        for name, frames in source():
            assert name not in found, f"{name}: twice"
            frames = frames if isinstance(frames, list) else [frames]
            found[name] = [bytes(frame) for frame in frames]
    return found


def random_frame(chance):
    """Any packet: one of the table with some bytes of its headers changed, its checksum mostly made
    right again, or cut, or with something behind it. Without IPv4 options, about which the two differ
    in so many ways that the table has them one by one."""
    while True:
        frame = _any_frame(chance)
        if frame[12:14] != b"\x08\x00" or frame[14:15] <= b"\x45":
            return frame


def _any_frame(chance):
    names = _random_cases()
    frame = bytearray(chance.choice(names))
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        place = chance.randrange(14, min(len(frame), 14 + 64))
        frame[place] = chance.choice((0, 1, 0xFF, chance.randrange(256), frame[place] ^ 1 << chance.randrange(8)))
    if chance.random() < 0.85:
        _repair(frame)
    if chance.random() < 0.1:
        del frame[chance.randrange(20, len(frame)):]
    if chance.random() < 0.1:
        frame += bytes(chance.randrange(1, 64))
    return bytes(frame)


def _repair(frame):
    header = (frame[14] & 15) * 4 if len(frame) > 14 else 0
    if frame[12:14] == b"\x08\x00" and 20 <= header <= len(frame) - 14:
        frame[24:26] = b"\0\0"
        frame[24:26] = struct.pack("!H", checksum(bytes(frame[14:14 + header])))


_FRAMES = []


def _random_cases():
    """The single frames of the table for the router's MAC, created once."""
    if not _FRAMES:
        mine = bytes.fromhex(LEFT_MAC.replace(":", ""))
        single = (frames[0] for frames in all_cases().values() if len(frames) == 1)
        _FRAMES.extend(frame for frame in single if frame[:6] == mine and frame[12:14] in (b"\x08\x00", b"\x86\xdd"))
    return _FRAMES

"""The slow path: errors to senders, drops with reasons, fragmentation."""

import ipaddress
import struct
import time

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from lib.packets import (
    checksum, ethernet, forwarded, icmp, icmp6, ipv4, ipv6, pattern, pseudo_header, tcp, udp,
)
from lib.router import Change

# The right link takes 1300 bytes, so that packets of the left one can be too big for it.
MTU = 1300

HOST_C_MAC = "02:00:00:00:0c:01"

CONFIG = f"""
turnpike.route "203.0.113.0/24" {{ prohibit = true }}
turnpike.route "2001:db8:bad::/48" {{ prohibit = true }}
turnpike.route "198.51.100.0/24" {{ unreachable = true }}
turnpike.route "2001:db8:f::/48" {{ unreachable = true }}
turnpike.neighbour "fe80::a" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "fe80::c" {{ port = "left", mac = "{HOST_C_MAC}" }}
turnpike.neighbour "fd00:1::c" {{ port = "left", mac = "{HOST_C_MAC}" }}
turnpike.route "198.18.0.0/24" {{ port = "right" }}
turnpike.route "2001:db8:0:18::/64" {{ port = "right" }}
turnpike.neighbour "198.18.0.7" {{ port = "right", mac = "{HOST_C_MAC}" }}
turnpike.neighbour "2001:db8:0:18::7" {{ mac = "{HOST_C_MAC}" }}
"""

A4, B4, R4 = "10.0.1.2", "10.0.2.2", "10.0.1.1"
A6, B6, R6 = "fd00:1::2", "fd00:2::2", "fd00:1::1"
# RFC 4291, appendix A: made from the port's MAC 02:00:00:00:01:01.
LEFT_LINK_LOCAL = "fe80::ff:fe00:101"


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, CONFIG, mtu=(1500, MTU), calm=True)


@pytest.fixture(autouse=True)
def silence(wires):
    wires.drain()


def eth(packet, destination=LEFT_MAC):
    ethertype = 0x0800 if packet[0] >> 4 == 4 else 0x86DD
    return ethernet(destination, HOST_A_MAC, ethertype, packet)


def provoke(wires, packet, originated, dropped, mac=LEFT_MAC):
    """Sends one packet from the left; checks the counters; returns the answers on the left."""
    change = Change(wires.router)
    wires.left.send(eth(packet, mac))
    answers = wires.left.expect(originated)
    expected = {"received": 1}
    if originated:
        expected |= {"originated": originated, "sent": originated}
    if dropped:
        expected["dropped"] = {dropped: 1}
    else:
        expected["to_host"] = 1
    assert change(received=1) == expected
    assert wires.silent()
    return answers


def check_error4(frame, kind, code, rest, original, source=R4, destination=A4):
    """Checks an ICMP error against RFC 792 and RFC 1812 4.3.2, byte by byte."""
    assert frame[:14] == ethernet(HOST_A_MAC, LEFT_MAC, 0x0800, b"")
    packet = frame[14:]
    # As much of the packet as fits into 576 bytes (RFC 1812 4.3.2.3), as it was received.
    message = icmp(kind, code, rest, original[: 576 - 28])
    header = packet[:20]
    assert header[0] == 0x45 and header[9] == 1 and checksum(header) == 0
    assert struct.unpack_from("!H", header, 2)[0] == len(packet) == 20 + len(message)
    assert header[8] >= 64, "the error must live long enough to arrive"
    assert header[12:] == ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    assert packet[20:] == message


def check_error6(frame, kind, code, rest, original, source=R6, destination=A6):
    """Checks an ICMPv6 error against RFC 4443, byte by byte."""
    assert frame[:14] == ethernet(HOST_A_MAC, LEFT_MAC, 0x86DD, b"")
    packet = frame[14:]
    # As much of the packet as fits into 1280 bytes (RFC 4443 3.1).
    message = icmp6(source, destination, kind, code, rest, original[: 1280 - 48])
    assert packet[0] >> 4 == 6 and packet[6] == 58 and packet[7] >= 64
    assert struct.unpack_from("!H", packet, 4)[0] == len(packet) - 40 == len(message)
    assert packet[8:40] == ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    assert packet[40:] == message


def packet4(destination, size=60, source=A4, **fields):
    datagram = udp(source, destination, 1000, 33434, pattern(size - 28))
    return ipv4(source, destination, datagram, **fields)


def packet6(destination, size=80, source=A6, **fields):
    datagram = udp(source, destination, 1000, 33434, pattern(size - 48))
    return ipv6(source, destination, datagram, **fields)


NOTHING = bytes(4)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.provokes("ttl-expired")
@pytest.mark.parametrize("ttl", [0, 1])
@pytest.mark.parametrize("size", [28, 60, 548, 549, 1300])
def test_time_exceeded(wires, ttl, size):
    original = packet4(B4, size, ttl=ttl)
    (answer,) = provoke(wires, original, 1, "ttl-expired")
    check_error4(answer, 11, 0, NOTHING, original)


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("size", [48, 80, 1232, 1233, 1300])
def test_time_exceeded_ipv6(wires, limit, size):
    original = packet6(B6, size, hop_limit=limit)
    (answer,) = provoke(wires, original, 1, "ttl-expired")
    check_error6(answer, 3, 0, NOTHING, original)


@pytest.mark.parametrize("destination, code, reason", [
    ("172.16.0.1", 0, "no-route"),
    ("203.0.113.7", 13, "prohibited"),
    ("198.51.100.7", 1, "unreachable"),
])
def test_destination_unreachable(wires, destination, code, reason):
    original = packet4(destination)
    (answer,) = provoke(wires, original, 1, reason)
    check_error4(answer, 3, code, NOTHING, original)


@pytest.mark.parametrize("destination, code, reason", [
    ("2001:db8:1::1", 0, "no-route"),
    ("2001:db8:bad::1", 1, "prohibited"),
    ("2001:db8:f::1", 3, "unreachable"),
])
def test_destination_unreachable_ipv6(wires, destination, code, reason):
    original = packet6(destination)
    (answer,) = provoke(wires, original, 1, reason)
    check_error6(answer, 1, code, NOTHING, original)


@pytest.mark.provokes("too-big")
@pytest.mark.parametrize("size", [MTU + 1, 1500])
def test_fragmentation_needed(wires, size):
    original = packet4(B4, size, flags=2)
    (answer,) = provoke(wires, original, 1, "too-big")
    # RFC 1191 4: the next link's MTU in the low 16 bits.
    check_error4(answer, 3, 4, struct.pack("!HH", 0, MTU), original)


@pytest.mark.parametrize("size", [MTU + 1, 1500])
def test_packet_too_big(wires, size):
    original = packet6(B6, size)
    (answer,) = provoke(wires, original, 1, "too-big")
    check_error6(answer, 2, 0, struct.pack("!I", MTU), original)


def test_what_just_fits_is_forwarded(wires):
    change = Change(wires.router)
    wires.left.send(eth(packet4(B4, MTU, flags=2)), eth(packet6(B6, MTU)))
    assert [len(frame) for frame in wires.right.expect(2)] == [14 + MTU] * 2
    assert change(received=2) == {"received": 2, "sent": 2}


@pytest.mark.provokes("beyond-scope")
def test_beyond_scope(wires):
    original = packet6(B6, source="fe80::a")
    (answer,) = provoke(wires, original, 1, "beyond-scope")
    # RFC 4443 3.1 code 2. The source is the router's link-local address: the one with the scope
    # of the destination (RFC 6724 5 rule 2).
    check_error6(answer, 1, 2, NOTHING, original, LEFT_LINK_LOCAL, "fe80::a")


@pytest.mark.parametrize("source, destination", [("fe80::a", "fd00:1::c"), ("fe80::a", "fe80::c"), (A6, "fe80::c")])
def test_link_local_addresses_are_served_within_their_link(wires, source, destination):
    """RFC 4007 9: packets that stay in the zone of their addresses are forwarded."""
    frame = eth(packet6(destination, source=source))
    change = Change(wires.router)
    wires.left.send(frame)
    assert wires.left.expect(1) == [forwarded(frame, LEFT_MAC, HOST_C_MAC)]
    assert change(received=1) == {"received": 1, "sent": 1}
    assert wires.right.receive(0.02) == []


def test_the_anycast_address_of_the_link_is_the_router_s(wires):
    """RFC 4291 2.6.1: the subnet-router anycast address of fe80::/64."""
    ping = icmp6("fe80::a", "fe80::", 128, 0, NOTHING, pattern(8))
    change = Change(wires.router)
    wires.left.send(eth(ipv6("fe80::a", "fe80::", ping, next_header=58)))
    (reply,) = wires.left.expect(1)
    assert reply[22:38] == ipaddress.ip_address(LEFT_LINK_LOCAL).packed and reply[54] == 129
    assert change(received=1) == {"received": 1, "to_host": 1, "originated": 1, "sent": 1}


@pytest.mark.parametrize("destination", ["198.18.0.7", "2001:db8:0:18::7"])
def test_a_static_neighbour_may_be_on_a_link_that_a_route_leads_to(wires, destination):
    frame = eth(packet6(destination) if ":" in destination else packet4(destination))
    change = Change(wires.router)
    wires.left.send(frame)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_C_MAC)]
    assert change(received=1) == {"received": 1, "sent": 1}


@pytest.mark.provokes("no-listener")
# Protocol 59, "no next header", means nothing in IPv4.
@pytest.mark.parametrize("protocol, code", [(17, 3), (253, 2), (59, 2)])
def test_no_listener(wires, protocol, code):
    payload = udp(A4, R4, 1000, 33434, pattern(32)) if protocol == 17 else pattern(40)
    original = ipv4(A4, R4, payload, protocol=protocol)
    (answer,) = provoke(wires, original, 1, "no-listener")
    check_error4(answer, 3, code, NOTHING, original)


def test_no_listener_ipv6(wires):
    original = packet6(R6)
    (answer,) = provoke(wires, original, 1, "no-listener")
    check_error6(answer, 1, 4, NOTHING, original)


def with_l4(source, destination, protocol, payload):
    """An IP packet of the family of its addresses."""
    if ":" in source:
        return ipv6(source, destination, payload, next_header=protocol)
    return ipv4(source, destination, payload, protocol=protocol)


# Received segments, and the reply of a host without that connection by RFC 9293 3.10.7.1: sequence number,
# acknowledgment number and control bits.
RESETS = {
    "a SYN": ((7000, 0, 2), b"", (0, 7001, 20)),
    "data without ACK": ((7000, 0, 8), b"four", (0, 7004, 20)),
    "data and FIN with ACK": ((7000, 99, 17), b"four", (99, 0, 4)),
}


@pytest.mark.parametrize("source, destination", [(A4, R4), (A6, R6)])
@pytest.mark.parametrize("name", RESETS)
def test_tcp_is_reset(wires, name, source, destination):
    segment, data, answer = RESETS[name]
    original = with_l4(source, destination, 6, tcp(source, destination, 40000, 179, *segment, data))
    (reset,) = provoke(wires, original, 1, "no-listener")
    wanted = tcp(destination, source, 179, 40000, *answer)
    at = 34 if ":" not in source else 54
    assert reset[:12] == ethernet(HOST_A_MAC, LEFT_MAC, 0, b"")[:12] and reset[at:] == wanted
    addresses = ipaddress.ip_address(destination).packed + ipaddress.ip_address(source).packed
    assert reset[at - len(addresses):at] == addresses


def broken(payload, at=-1):
    """With one changed bit of a byte, so that no checksum is correct."""
    payload = bytearray(payload)
    payload[at] ^= 1
    return bytes(payload)


def malformed(source, destination):
    """Invalid UDP and TCP, each with its drop reason."""
    datagram = udp(source, destination, 1000, 33434, pattern(32))
    segment = tcp(source, destination, 40000, 179, 7000, 0, 2)
    yield "udp-malformed", 17, broken(datagram)
    yield "udp-malformed", 17, datagram[:4] + struct.pack("!H", 7) + datagram[6:]
    yield "udp-malformed", 17, datagram[:4] + struct.pack("!H", len(datagram) + 1) + datagram[6:]
    yield "udp-malformed", 17, datagram[:7]
    if ":" in source:
        yield "udp-malformed", 17, datagram[:6] + b"\0\0" + datagram[8:]
    yield "tcp-malformed", 6, broken(segment)
    yield "tcp-malformed", 6, segment[:12] + b"\x60" + segment[13:]
    yield "tcp-malformed", 6, segment[:19]
    yield "no-listener", 6, tcp(source, destination, 40000, 179, 7000, 99, 4 | 16)


@pytest.mark.provokes("udp-malformed", "tcp-malformed")
@pytest.mark.parametrize("source, destination", [(A4, R4), (A6, R6)])
def test_resets_and_what_is_malformed_have_no_answer(wires, source, destination):
    for reason, protocol, payload in malformed(source, destination):
        assert provoke(wires, with_l4(source, destination, protocol, payload), 0, reason) == []


def test_udp_without_a_checksum_is_udp_over_ipv4(wires):
    datagram = udp(A4, R4, 1000, 33434, pattern(32))
    original = ipv4(A4, R4, datagram[:6] + b"\0\0" + datagram[8:])
    (answer,) = provoke(wires, original, 1, "no-listener")
    check_error4(answer, 3, 3, NOTHING, original)


# --- what must not be answered (RFC 1812 4.3.2.7, RFC 4443 2.4 e) ---------------------------------


def authentication(next_header):
    return struct.pack("!BBHII12s", next_header, 4, 0, 1, 1, pattern(12))


UNANSWERED = {
    "a later fragment": (packet4(B4, ttl=1, offset=10), "ttl-expired"),
    "an ICMP error": (ipv4(A4, B4, icmp(3, 1, NOTHING, packet4(A4)[:28]), protocol=1, ttl=1), "ttl-expired"),
    "an ICMPv6 error": (
        ipv6(A6, B6, icmp6(A6, B6, 1, 0, NOTHING, packet6(A6)), next_header=58, hop_limit=1),
        "ttl-expired",
    ),
    # RFC 4302 2: next header, length in words without two, reserved, SPI, sequence number, ICV.
    "an ICMP error behind an authentication header": (
        ipv4(A4, B4, authentication(1) + icmp(3, 1, NOTHING, packet4(A4)[:28]), protocol=51, ttl=1),
        "ttl-expired",
    ),
    "an ICMPv6 error behind an authentication header": (
        ipv6(
            A6, B6, authentication(58) + icmp6(A6, B6, 1, 0, NOTHING, packet6(A6)),
            next_header=51, hop_limit=1,
        ),
        "ttl-expired",
    ),
    "an unspecified IPv6 source": (packet6("2001:db8:1::1", source="::"), None),
}


@pytest.mark.parametrize("name", UNANSWERED)
def test_not_answered(wires, name):
    packet, reason = UNANSWERED[name]
    change = Change(wires.router)
    wires.left.send(eth(packet))
    changed = change(received=1)
    assert "originated" not in changed and sum(changed["dropped"].values()) == 1
    assert reason is None or changed["dropped"] == {reason: 1}
    assert wires.left.receive(0.05) == []


def test_what_is_no_error_behind_an_authentication_header_is_answered(wires):
    ping = authentication(1) + icmp(8, 0, NOTHING, pattern(8))
    original = ipv4(A4, B4, ping, protocol=51, ttl=1)
    (answer,) = provoke(wires, original, 1, "ttl-expired")
    check_error4(answer, 11, 0, NOTHING, original)


def test_an_icmp_query_whose_ttl_expires_is_answered(wires):
    original = ipv4(A4, B4, icmp(8, 0, NOTHING, pattern(56)), protocol=1, ttl=1)
    (answer,) = provoke(wires, original, 1, "ttl-expired")
    check_error4(answer, 11, 0, NOTHING, original)


def test_errors_are_rate_limited_and_the_drops_all_counted(wires):
    # At most half of the capacity of the queue of errors, so that it refuses none.
    count = 250
    change = Change(wires.router)
    wires.left.send(*(eth(packet4(B4, ttl=1, ident=i)) for i in range(count)))
    changed = change(received=count)
    told = len(wires.left.receive(0.2))
    assert changed["received"] == changed["dropped"]["ttl-expired"] == count
    assert 1 <= told == changed["originated"] < count
    time.sleep(1.2)  # The allowance for the tests that follow.


# --- echo ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 56, 57, 1000, 1472])
@pytest.mark.parametrize("own", ["10.0.1.1", "10.0.2.1"])
def test_echo_reply(wires, own, size):
    data = pattern(size)
    request = ipv4(A4, own, icmp(8, 0, b"\x12\x34\x00\x07", data), protocol=1, ttl=1)
    (answer,) = provoke(wires, request, 1, None)
    packet = answer[14:]
    assert answer[:14] == ethernet(HOST_A_MAC, LEFT_MAC, 0x0800, b"")
    assert checksum(packet[:20]) == 0 and packet[8] >= 64
    assert packet[12:20] == ipaddress.ip_address(own).packed + ipaddress.ip_address(A4).packed
    assert packet[20:] == icmp(0, 0, b"\x12\x34\x00\x07", data)


@pytest.mark.parametrize("size", [0, 1, 56, 57, 1000, 1452])
@pytest.mark.parametrize("own, source", [
    ("fd00:1::1", A6), ("fd00:2::1", A6), (LEFT_LINK_LOCAL, A6), (LEFT_LINK_LOCAL, "fe80::a"),
])
def test_echo_reply_ipv6(wires, own, source, size):
    data = pattern(size)
    request = ipv6(source, own, icmp6(source, own, 128, 0, b"\x12\x34\x00\x07", data), 58, hop_limit=1)
    (answer,) = provoke(wires, request, 1, None)
    packet = answer[14:]
    assert answer[:14] == ethernet(HOST_A_MAC, LEFT_MAC, 0x86DD, b"")
    assert packet[6] == 58 and packet[7] >= 64
    assert packet[8:40] == ipaddress.ip_address(own).packed + ipaddress.ip_address(source).packed
    assert packet[40:] == icmp6(own, source, 129, 0, b"\x12\x34\x00\x07", data)


# --- fragmentation ------------------------------------------------------------------------------


def fragments_of(wires, original, count):
    change = Change(wires.router)
    wires.left.send(eth(original))
    frames = wires.right.expect(count)
    assert wires.right.receive(0.05) == []
    # One packet was received; all of its fragments were sent.
    changed = change(received=1)
    assert changed["sent"] == count and "dropped" not in changed
    return [frame[14:] for frame in frames]


@pytest.mark.parametrize("size", [MTU + 1, MTU + 2, 1400, 1499, 1500])
@pytest.mark.parametrize("flags, offset", [(0, 0), (1, 0), (1, 100), (0, 100)])
def test_fragmentation(wires, size, flags, offset):
    original = packet4(B4, size, ident=0xBEEF, tos=0x20, flags=flags, offset=offset)
    data, at = b"", offset
    fragments = fragments_of(wires, original, 2)
    for number, fragment in enumerate(fragments):
        length, ident, field = struct.unpack_from("!HHH", fragment, 2)
        assert len(fragment) == length <= MTU
        assert fragment[:2] == original[:2] and ident == 0xBEEF
        assert fragment[8:10] == bytes([63, 17]) and checksum(fragment[:20]) == 0
        assert fragment[12:20] == original[12:20]
        last = number == len(fragments) - 1
        # The packet is not the last fragment, or was not before (RFC 791 3.2).
        assert field >> 13 == (flags if last else 1)
        assert field & 0x1FFF == at and (last or (length - 20) % 8 == 0)
        at += (length - 20) // 8
        data += fragment[20:]
    assert data == original[20:]


# --- drops of the slow path -----------------------------------------------------------------------


def ns(target, hop_limit=255, code=0, length=1, source=A6):
    """A neighbour solicitation, malformed by choice."""
    group = ipaddress.ip_address("ff02::1:ff00:0").packed[:13] + ipaddress.ip_address(target).packed[13:]
    destination = str(ipaddress.ip_address(group))
    option = bytes([1, length]) + bytes.fromhex(HOST_A_MAC.replace(":", ""))
    body = icmp6(source, destination, 135, code, NOTHING, ipaddress.ip_address(target).packed + option)
    return ipv6(source, destination, body, 58, hop_limit=hop_limit)


def broken_checksum(packet, at):
    return packet[:at] + bytes([packet[at] ^ 0x55]) + packet[at + 1:]


ECHO4 = ipv4(A4, R4, icmp(8, 0, NOTHING, pattern(8)), protocol=1)
ECHO6 = ipv6(A6, R6, icmp6(A6, R6, 128, 0, NOTHING, pattern(8)), 58)
SOLICITED = "33:33:ff:00:00:01"

def hop_by_hop(options, next_header=17, length=0, destination=B6):
    """A packet with a hop-by-hop header of `length` times 8 bytes more than 8."""
    header = bytes([next_header, length]) + options
    return ipv6(A6, destination, header + udp(A6, destination, 1000, 2000, pattern(20)), 0)


def fragment6(destination, offset, more, size=40):
    return ipv6(A6, destination, struct.pack("!BBHI", 17, 0, offset << 3 | more, 7) + pattern(size), 44)


# RFC 8200 4.2: the two highest bits of an unknown option's type specify its treatment.
SKIP, DISCARD, TELL, TELL_UNICAST = (bytes([bits << 6 | 0x1E, 4]) + NOTHING for bits in range(4))

DROPS = {
    "ip6-extension": {
        "an unknown option: discard": (hop_by_hop(DISCARD), LEFT_MAC),
        "an unknown option: tell": (hop_by_hop(TELL), LEFT_MAC),
        "an unknown option: tell, but not about multicast": (hop_by_hop(TELL_UNICAST), LEFT_MAC),
        "an option longer than its header": (hop_by_hop(b"\x01\x05" + NOTHING), LEFT_MAC),
        "hop-by-hop options longer than the packet": (hop_by_hop(SKIP, length=9), LEFT_MAC),
        "a header longer than the packet": (
            ipv6(A6, R6, b"\x11\x09\x01\x04" + NOTHING, next_header=60), LEFT_MAC),
        "a source route for the router": (
            ipv6(A6, R6, b"\x11\x02\x00\x01" + bytes(20) + pattern(8), next_header=43), LEFT_MAC),
    },
    "local-fragment": {
        "not a multiple of 8 bytes": (packet4(R4, 61, flags=1), LEFT_MAC),
        "without data": (ipv4(A4, R4, b"", offset=10), LEFT_MAC),
        "beyond the largest packet": (packet4(R4, offset=8191), LEFT_MAC),
        "not a multiple of 8 bytes, IPv6": (fragment6(R6, 1, 1, 41), LEFT_MAC),
        "beyond the largest packet, IPv6": (fragment6(R6, 8191, 0, 16), LEFT_MAC),
    },
    "icmp-malformed": {
        "echo, wrong checksum": (broken_checksum(ECHO4, 22), LEFT_MAC),
        "echo6, wrong checksum": (broken_checksum(ECHO6, 42), LEFT_MAC),
        "seven bytes of ICMP": (ipv4(A4, R4, icmp(8, 0, NOTHING)[:7], protocol=1), LEFT_MAC),
        "seven bytes of ICMPv6": (ipv6(A6, R6, icmp6(A6, R6, 128, 0, NOTHING)[:7], 58), LEFT_MAC),
    },
    "nd-malformed": {
        "hop limit 64": (ns(R6, hop_limit=64), SOLICITED),
        "code 1": (ns(R6, code=1), SOLICITED),
        "an option of length 0": (ns(R6, length=0), SOLICITED),
        "an option longer than the message": (ns(R6, length=9), SOLICITED),
        "a multicast target": (ns("ff02::1"), SOLICITED),
    },
    "ip4-options": {
        "loose source route": (packet4(B4, options=b"\x83\x07\x04\x0a\x00\x02\x02\x00"), LEFT_MAC),
        "strict source route": (packet4(B4, options=b"\x89\x07\x04\x0a\x00\x02\x02\x00"), LEFT_MAC),
        "an option of length 0": (packet4(B4, options=b"\x44\x00\x00\x00"), LEFT_MAC),
        "an option beyond the header": (packet4(B4, options=b"\x44\x09\x05\x00"), LEFT_MAC),
    },
    "directed-broadcast": {
        "of the other port's network": (packet4("10.0.2.255"), LEFT_MAC),
    },
    "multicast-not-routed": {
        "IPv4": (packet4("239.1.2.3"), "01:00:5e:01:02:03"),
        "IPv6, a wide scope": (packet6("ff0e::1234"), "33:33:00:00:12:34"),
        "IPv6, this link": (packet6("ff02::1234"), "33:33:00:00:12:34"),
    },
}


@pytest.mark.parametrize(
    "reason, packet, mac",
    [pytest.param(reason, *case, id=f"{reason}: {name}")
     for reason, cases in DROPS.items() for name, case in cases.items()],
)
def test_drop(wires, reason, packet, mac):
    change = Change(wires.router)
    wires.left.send(eth(packet, mac))
    changed = change(received=1)
    # Some of these senders get errors; none of these packets is forwarded.
    assert changed.get("dropped") == {reason: 1}, changed
    assert wires.right.receive(0.02) == []



def arp(operation=1, hardware=1, protocol=0x0800, lengths=(6, 4), sender=A4, target=R4, mac=HOST_A_MAC):
    return (
        struct.pack("!HHBBH", hardware, protocol, *lengths, operation)
        + bytes.fromhex(mac.replace(":", "")) + ipaddress.ip_address(sender).packed
        + bytes(6) + ipaddress.ip_address(target).packed
    )


@pytest.mark.parametrize("reason, message", [
    pytest.param("arp-malformed", arp(hardware=6), id="another hardware"),
    pytest.param("arp-malformed", arp(protocol=0x86DD), id="another protocol"),
    pytest.param("arp-malformed", arp(lengths=(8, 4)), id="hardware addresses of 8 bytes"),
    pytest.param("arp-malformed", arp(lengths=(6, 16)), id="protocol addresses of 16 bytes"),
    pytest.param("arp-malformed", arp(operation=9), id="an operation that does not exist"),
    pytest.param("arp-rejected", arp(target="10.0.1.77"), id="for somebody else"),
    pytest.param("arp-rejected", arp(target="10.0.2.1"), id="for the other port's address"),
    pytest.param("arp-rejected", arp(sender="172.16.0.5"), id="from a foreign network"),
    pytest.param("arp-malformed", arp(mac="01:00:5e:00:00:01"), id="from a multicast MAC"),
])
def test_arp_drop(wires, reason, message):
    change = Change(wires.router)
    wires.left.send(ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x0806, message))
    assert change(received=1) == {"received": 1, "dropped": {reason: 1}}
    assert wires.left.receive(0.02) == []


@pytest.mark.parametrize("options, code, pointer", [
    pytest.param(TELL, 2, 42, id="an unknown option"),
    pytest.param(TELL_UNICAST, 2, 42, id="an unknown option, not about multicast"),
    pytest.param(b"\x01\x05" + NOTHING, 0, 42, id="an option longer than its header"),
])
def test_parameter_problem(wires, options, code, pointer):
    original = hop_by_hop(options)
    (answer,) = provoke(wires, original, 1, "ip6-extension")
    # RFC 4443 3.4: the offset of the unknown field.
    check_error6(answer, 4, code, struct.pack("!I", pointer), original)


def test_options_to_be_skipped_are(wires):
    original = hop_by_hop(SKIP)
    change = Change(wires.router)
    wires.left.send(eth(original))
    assert wires.right.expect(1) == [forwarded(eth(original), RIGHT_MAC, HOST_B_MAC)]
    assert change(received=1) == {"received": 1, "sent": 1}


def test_harmless_options_are_forwarded(wires):
    # A router alert and a no-operation: the packet takes the slow path, and is forwarded.
    original = packet4(B4, options=b"\x94\x04\x00\x00" + b"\x01" * 4)
    change = Change(wires.router)
    wires.left.send(eth(original))
    (frame,) = wires.right.expect(1)
    packet = frame[14:]
    assert frame[:14] == ethernet(HOST_B_MAC, RIGHT_MAC, 0x0800, b"")
    assert checksum(packet[:28]) == 0 and packet[8] == 63
    assert packet[:8] == original[:8] and packet[12:] == original[12:]
    assert change(received=1) == {"received": 1, "sent": 1}


def test_pseudo_header_is_what_the_rfcs_draw():
    # The expectations above rest on this arithmetic: RFC 768, and an example worked by hand.
    assert pseudo_header("1.2.3.4", "5.6.7.8", 17, 10).hex() == "01020304050607080011000a"
    assert pseudo_header("::1", "::2", 58, 8).hex() == "0" * 31 + "1" + "0" * 31 + "2" + "000000080000003a"
    assert checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0x220D  # RFC 1071, 3

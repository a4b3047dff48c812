"""Every drop reason of the default graph, provoked by a suitable frame, counted exactly.

The frames that leave the fast path for the slow path and are dropped there are in
`test_slowpath.py`; the reasons of full rings and queues in `test_overload.py`.
"""

import struct

import pytest

from lib.lab import (
    DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, STATIC_NEIGHBOURS, Wires, ports_by,
)
from lib.packets import checksum, ethernet, forwarded, ipv4, ipv6, mac_bytes, pattern, pcap_file, udp
from lib.router import Change

ROUTES = """
turnpike.route "192.0.2.0/24" { blackhole = true }
turnpike.route "2001:db8:dead::/48" { blackhole = true }
"""


@pytest.fixture(scope="module", params=DRIVERS)
def wires(request, module_lab):
    return Wires(module_lab, ROUTES, ports=ports_by(request.param) + STATIC_NEIGHBOURS, calm=True)


def eth(ethertype, payload, destination=LEFT_MAC):
    return ethernet(destination, HOST_A_MAC, ethertype, payload)


def good4(**fields):
    """A packet that would be forwarded."""
    return ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(40)), **fields)


def good6(**fields):
    return ipv6("fd00:1::2", "fd00:2::2", udp("fd00:1::2", "fd00:2::2", 1, 2, pattern(40)), **fields)


def with_byte(packet, offset, value):
    """The IPv4 packet with one changed header byte and a correct checksum."""
    header = bytearray(packet[:20])
    header[offset] = value
    header[10:12] = b"\0\0"
    header[10:12] = struct.pack("!H", checksum(bytes(header)))
    return bytes(header) + packet[20:]


def from4(source):
    return eth(0x0800, ipv4(source, "10.0.2.2", pattern(40)))


def to4(destination, mac=LEFT_MAC):
    return eth(0x0800, ipv4("10.0.1.2", destination, pattern(40)), mac)


def from6(source):
    return eth(0x86DD, ipv6(source, "fd00:2::2", pattern(40)))


def to6(destination, mac=LEFT_MAC):
    return eth(0x86DD, ipv6("fd00:1::2", destination, pattern(40)), mac)


CASES = {
    "runt": {
        "an Ethernet header alone": eth(0x0800, b""),
        "19 bytes of IPv4": eth(0x0800, good4()[:19]),
        "39 bytes of IPv6": eth(0x86DD, good6()[:39]),
        "27 bytes of ARP": eth(0x0806, bytes(27)),
    },
    "not-for-us": {
        "IPv4 to another station": eth(0x0800, good4(), "02:00:00:00:01:99"),
        "IPv6 to another station": eth(0x86DD, good6(), "02:00:00:00:01:99"),
        "to the other port's MAC": eth(0x0800, good4(), RIGHT_MAC),
        "ARP to another station": eth(0x0806, bytes(28), "02:00:00:00:01:99"),
    },
    # RFC 1812 5.3.7: of the ingress port, of another, and in any packet.
    "own-source": {
        "of the left port": from4("10.0.1.1"),
        "of the right port": from4("10.0.2.1"),
        "to itself": eth(0x0800, ipv4("10.0.1.1", "10.0.1.1", pattern(40))),
        "with options": eth(0x0800, ipv4("10.0.2.1", "10.0.2.2", pattern(40), options=bytes([1, 1, 1, 1]))),
        "IPv6, of the left port": from6("fd00:1::1"),
        "IPv6, of the right port": from6("fd00:2::1"),
    },
    "broadcast-source": {
        "of the network that it came from": from4("10.0.1.255"),
    },
    "unknown-ethertype": {
        "an experiment": eth(0x88B5, bytes(46)),
        "an IEEE 802.3 length": eth(46, bytes(46)),
        "MPLS": eth(0x8847, bytes(46)),
        "spanning tree": eth(0x0026, bytes(38), "01:80:c2:00:00:00"),
    },
    "vlan-unknown": {
        "802.1Q": eth(0x8100, b"\0\x05\x08\0" + good4()),
        "802.1ad": eth(0x88A8, b"\0\x05\x08\0" + good4()),
        "802.1Q behind a priority tag": eth(0x8100, b"\xe0\0\x81\0\0\x05\x08\0" + good4()),
    },
    "ip4-version": {
        "version 6": eth(0x0800, with_byte(good4(), 0, 0x65)),
        "version 0": eth(0x0800, with_byte(good4(), 0, 0x05)),
        "version 15": eth(0x0800, with_byte(good4(), 0, 0xF5)),
    },
    "ip4-header-length": {
        "four words": eth(0x0800, with_byte(good4(), 0, 0x44)),
        "no words": eth(0x0800, with_byte(good4(), 0, 0x40)),
        "longer than the frame": eth(0x0800, with_byte(good4(), 0, 0x4F)[:40]),
    },
    "ip4-total-length": {
        "below the header's": eth(0x0800, good4(total_length=19)),
        "zero": eth(0x0800, good4(total_length=0)),
        # With a correct header its sender gets an error, see test_rfc.py.
        "beyond the frame, and a wrong checksum": eth(0x0800, good4()[:3] + b"\xff" + good4()[4:]),
    },
    "ip4-checksum": {
        "one bit wrong": eth(0x0800, good4()[:10] + bytes([good4()[10] ^ 1]) + good4()[11:]),
        "zero": eth(0x0800, good4()[:10] + b"\0\0" + good4()[12:]),
        "another source": eth(0x0800, good4()[:15] + b"\x03" + good4()[16:]),
        "with options": eth(0x0800, with_byte(good4(), 0, 0x46)),
    },
    "ip4-martian-source": {
        source: from4(source)
        for source in ("0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.255.255.255",
                       "240.0.0.1", "255.255.255.255")
    },
    "martian-destination": {
        **{destination: to4(destination)
           for destination in ("0.0.0.0", "0.1.2.3", "127.0.0.1", "240.0.0.1", "255.255.255.254")},
        **{destination: to6(destination) for destination in ("::", "::1")},
    },
    "l2-broadcast": {
        "IPv4 by broadcast": to4("10.0.2.2", "ff:ff:ff:ff:ff:ff"),
        "IPv4 by multicast": to4("10.0.2.2", "01:00:5e:00:00:01"),
        "IPv6 by multicast": to6("fd00:2::2", "33:33:00:00:00:01"),
        "no route, by broadcast": to4("172.16.0.1", "ff:ff:ff:ff:ff:ff"),
    },
    "ip6-version": {
        "version 4": eth(0x86DD, b"\x40" + good6()[1:]),
        "version 0": eth(0x86DD, b"\x00" + good6()[1:]),
    },
    "ip6-payload-length": {
        "a byte beyond the frame": eth(0x86DD, good6(payload_length=len(good6()) - 39)),
        "65535": eth(0x86DD, good6(payload_length=65535)),
    },
    "ip6-martian-source": {
        source: from6(source) for source in ("::1", "ff02::1", "ff0e::1", "::ffff:10.0.1.2")
    },
    "blackhole": {
        "IPv4": to4("192.0.2.99"),
        "IPv6": to6("2001:db8:dead:beef::1"),
    },
}


@pytest.mark.parametrize(
    "reason, frame",
    [pytest.param(reason, frame, id=f"{reason}: {name}")
     for reason, frames in CASES.items() for name, frame in frames.items()],
)
def test_drop(wires, reason, frame):
    wires.drain()
    change = Change(wires.router)
    wires.left.send(frame)
    # Dropped for this reason, once, and for no other; no error is sent.
    assert change(received=1) == {"received": 1, "dropped": {reason: 1}}
    assert wires.silent()


def test_the_frames_above_are_good_but_for_their_fault(wires):
    wires.drain()
    change = Change(wires.router)
    frames = [eth(0x0800, good4()), eth(0x86DD, good6())]
    wires.left.send(*frames)
    assert wires.right.expect(2) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    assert change(received=2) == {"received": 2, "sent": 2}


def test_a_batch_with_everything_in_it_is_sorted_right(wires):
    wires.drain()
    bad = [(reason, frame) for reason, frames in CASES.items() for frame in frames.values()]
    good = [eth(0x0800, good4(ident=i)) for i in range(len(bad))]
    change = Change(wires.router)
    wires.left.send(*(frame for pair in zip((f for _, f in bad), good) for frame in pair))
    assert wires.right.expect(len(good)) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in good]
    expected = {reason: len(frames) for reason, frames in CASES.items()}
    assert change(received=2 * len(bad)) == {
        "received": 2 * len(bad), "sent": len(good), "dropped": expected,
    }


@pytest.mark.provokes("multi-segment")
def test_multi_segment(lab):
    # A capture file as a device: its driver delivers a frame longer than a buffer in several.
    source_mac = "02:70:63:61:70:00"
    big = ethernet(source_mac, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", pattern(6000)))
    small = ethernet(source_mac, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", pattern(60)))
    wires = Wires(
        lab,
        ports=f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap", address = "10.0.1.1/24" }}
turnpike.port "right" {{ device = "tp-right", address = "10.0.2.1/24" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
""",
        files={"in.pcap": pcap_file([big, small, big])},
    )
    assert wires.right.expect(1) == [forwarded(small, RIGHT_MAC, HOST_B_MAC)]
    dropped = {r: n for r, n in wires.router.counters()["dropped"].items() if n}
    assert dropped == {"multi-segment": 2}
    assert mac_bytes(source_mac) == mac_bytes(wires.router.show("ports")[0]["mac"])
    wires.router.stop()

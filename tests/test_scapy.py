"""A second opinion: what the router makes is read and made again by scapy, which shares no line of
code with the router and none with the arithmetic of the other scenarios; and scapy's own idea of
malformed packets does no harm."""

import random

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_RR, fragment
from scapy.layers.inet6 import (
    ICMPv6EchoRequest, ICMPv6MLQuery2, ICMPv6MLReport2, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RS,
    ICMPv6PacketTooBig, ICMPv6TimeExceeded, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop, RouterAlert,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Padding, Raw, fuzz
from scapy.volatile import RandMAC

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from lib.netns import wait_for
from lib.router import Change

MTU = 1300
A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
# Another host on the right.
OTHER_MAC = "02:00:00:00:02:77"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


@pytest.fixture(scope="module")
def wires(module_lab):
    wires = Wires(module_lab, mtu=(1500, MTU), calm=True)
    yield wires
    # At the end every buffer is returned.
    wires.router.stop()


@pytest.fixture(autouse=True)
def silence(wires):
    wires.drain()


def read(frame):
    """The frame dissected, after a check that scapy builds the same bytes from it: the lengths and checksums that a
    router computes are also scapy's."""
    packet = Ether(frame)
    again = packet.copy()
    for layer in layers_of_the_router(again):
        for field in ("len", "plen", "chksum", "cksum"):
            if field in layer.fields:
                delattr(layer, field)
    assert bytes(again) == frame, again.summary()
    return packet


def layers_of_the_router(packet):
    """The layers from Ethernet to IP, or to ICMP. The packet quoted by an error is its sender's."""
    while packet and not isinstance(packet, (UDP, TCP, Raw)):
        yield packet
        if isinstance(packet, ICMP) or type(packet).__name__.startswith("ICMPv6"):
            return
        packet = packet.payload


def answer(wires, packet, match=None):
    wires.left.send(packet)
    (frame,) = wires.left.expect(1, match)
    return read(frame)


def resolved(wires, request, reply):
    """Sends the reply for which the packet waits; no request is repeated while later tests listen."""
    wires.right.send(Ether(src=OTHER_MAC, dst=request.src) / reply)
    (frame,) = map(read, wires.right.expect(1))
    assert (frame.src, frame.dst) == (RIGHT_MAC, OTHER_MAC) and UDP in frame


def test_arp(wires):
    reply = answer(wires, Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(
        hwsrc=HOST_A_MAC, psrc=A4, pdst="10.0.1.1"))
    assert (reply.src, reply.dst) == (LEFT_MAC, HOST_A_MAC)
    arp = reply[ARP]
    assert arp.op == 2 and (arp.hwsrc, arp.psrc) == (LEFT_MAC, "10.0.1.1")
    wires.left.send(LINK / IP(src=A4, dst="10.0.2.77") / UDP())
    (request,) = map(read, wires.right.expect(1))
    assert request[ARP].op == 1 and request[ARP].pdst == "10.0.2.77" and request.dst == "ff:ff:ff:ff:ff:ff"
    resolved(wires, request, ARP(op=2, hwsrc=OTHER_MAC, psrc="10.0.2.77", hwdst=RIGHT_MAC, pdst="10.0.2.1"))


def test_neighbour_discovery(wires):
    group = Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01")
    reply = answer(wires, group / IPv6(src=A6, dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(
        tgt="fd00:1::1") / b"\x01\x01" / bytes.fromhex(HOST_A_MAC.replace(":", "")))
    advertised = reply[ICMPv6ND_NA]
    assert advertised.tgt == "fd00:1::1" and (advertised.R, advertised.S, advertised.O) == (1, 1, 1)
    assert reply.lladdr == LEFT_MAC and reply[IPv6].hlim == 255
    wires.left.send(LINK / IPv6(src=A6, dst="fd00:2::77") / UDP())
    (request,) = map(read, wires.right.expect(1))
    assert request[ICMPv6ND_NS].tgt == "fd00:2::77" and request.lladdr == RIGHT_MAC
    resolved(wires, request, IPv6(src="fd00:2::77", dst=request[IPv6].src) / ICMPv6ND_NA(
        tgt="fd00:2::77", R=0) / b"\x02\x01" / bytes.fromhex(OTHER_MAC.replace(":", "")))


def test_the_groups_it_reports(wires):
    query = Ether(src=HOST_A_MAC, dst="33:33:00:00:00:01") / IPv6(
        src="fe80::99", dst="ff02::1", hlim=1) / IPv6ExtHdrHopByHop(
        options=[RouterAlert(value=0)]) / ICMPv6MLQuery2(mrd=100)
    report = answer(wires, query, lambda frame: frame[:6] == b"\x33\x33\0\0\0\x16")
    assert report[IPv6].hlim == 1 and report[RouterAlert].value == 0
    # Scapy reads each record as the payload of the one before.
    record, groups = report[ICMPv6MLReport2].records[0], set()
    while record:
        assert record.rtype == 2, "mode is exclude: everything sent to the group is wanted"
        groups.add(record.dst)
        record = record.payload
    # RFC 4291 2.8: all routers of the link and of the site, and a group for each address,
    # the anycast one included.
    assert groups == {"ff02::2", "ff05::2", "ff02::1:ff00:0", "ff02::1:ff00:1", "ff02::1:ff00:101"}


@pytest.mark.parametrize("size", [0, 1, 56, 1000])
def test_echo(wires, size):
    data = bytes(range(256)) * 4
    reply = answer(wires, LINK / IP(src=A4, dst="10.0.2.1") / ICMP(id=7, seq=9) / data[:size])
    assert (reply[ICMP].type, reply[ICMP].id, reply[ICMP].seq) == (0, 7, 9)
    assert bytes(reply[ICMP].payload) == data[:size]
    reply = answer(wires, LINK / IPv6(src=A6, dst="fd00:2::1") / ICMPv6EchoRequest(id=7, seq=9, data=data[:size]))
    assert bytes(reply[IPv6].payload)[8:] == data[:size] and reply[IPv6].nh == 58


@pytest.mark.parametrize("kind, code, packet", [
    pytest.param(11, 0, IP(src=A4, dst=B4, ttl=1) / UDP(), id="time exceeded"),
    pytest.param(11, 0, IP(src=A4, dst=B4, ttl=1) / TCP() / bytes(900), id="time exceeded, long"),
    pytest.param(3, 0, IP(src=A4, dst="172.16.0.1") / UDP(), id="no route"),
    pytest.param(3, 3, IP(src=A4, dst="10.0.1.1") / UDP(dport=9), id="no listener"),
    pytest.param(3, 4, IP(src=A4, dst=B4, flags="DF") / UDP() / bytes(1400), id="too big"),
    pytest.param(3, 5, IP(src=A4, dst=B4, options=b"\x83\x07\x04\x0a\0\x02\x02\0") / UDP(), id="source route"),
])
def test_errors(wires, kind, code, packet):
    error = answer(wires, LINK / packet)
    assert (error[ICMP].type, error[ICMP].code) == (kind, code)
    assert error[IP].dst == A4 and error[IP].src == "10.0.1.1" and error[IP].len <= 576
    quoted = bytes(error[ICMP].payload)
    assert len(quoted) >= 28 and bytes(packet).startswith(quoted)
    if code == 4 and kind == 3:
        assert error[ICMP].nexthopmtu == MTU


@pytest.mark.parametrize("layer, packet", [
    pytest.param(ICMPv6TimeExceeded, IPv6(src=A6, dst=B6, hlim=1) / UDP(), id="time exceeded"),
    pytest.param(ICMPv6PacketTooBig, IPv6(src=A6, dst=B6) / UDP() / bytes(1400), id="too big"),
])
def test_errors_ipv6(wires, layer, packet):
    error = answer(wires, LINK / packet)
    assert error[IPv6].dst == A6 and error[IPv6].src == "fd00:1::1"
    quoted = bytes(error[layer].payload)
    assert bytes(packet).startswith(quoted) and len(quoted) >= 48
    if layer is ICMPv6PacketTooBig:
        assert error[layer].mtu == MTU


def test_fragments(wires):
    whole = IP(src=A4, dst=B4, id=77) / UDP(sport=5, dport=6) / (bytes(range(256)) * 5)
    wires.left.send(LINK / whole)
    first, last = map(read, wires.right.expect(2))
    # Scapy fragments differently; the reassembled packet must be the same.
    assert first[IP].flags.MF and not last[IP].flags.MF
    assert (first[IP].frag, last[IP].frag * 8) == (0, first[IP].len - 20)
    together = bytes(first[IP].payload) + bytes(last[IP].payload)
    assert together == bytes(whole[UDP])


def test_what_is_forwarded_is_what_scapy_makes_of_it(wires):
    for packet in (
        IP(src=A4, dst=B4, ttl=9, tos=4, options=[IPOption_RR()]) / UDP() / b"record route",
        IP(src=A4, dst=B4, ttl=9) / TCP(flags="S", options=[("MSS", 1460)]),
        *fragment(IP(src=A4, dst=B4, ttl=9) / UDP() / bytes(2000), 800),
        IPv6(src=A6, dst=B6, hlim=9) / IPv6ExtHdrDestOpt() / UDP() / b"options",
        IPv6(src=A6, dst=B6, hlim=9) / IPv6ExtHdrFragment(id=3, m=1) / bytes(64),
    ):
        wires.left.send(LINK / packet)
        (frame,) = wires.right.expect(1)
        arrived = read(frame)
        hop = Ether(src=RIGHT_MAC, dst=HOST_B_MAC) / packet
        hop[1].setfieldval("ttl" if IP in hop else "hlim", 8)
        if Padding in arrived:
            arrived[Padding].underlayer.remove_payload()
        assert bytes(arrived) == bytes(hop)


# --- malformed --------------------------------------------------------------------------------------


def fuzzed(dice):
    """A packet with random values in the fields that were not given."""
    random.seed(dice.random())
    link = Ether(src=HOST_A_MAC, dst=dice.choice([LEFT_MAC, "ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01", RandMAC()]))
    ip4 = fuzz(IP(dst=dice.choice([B4, "10.0.1.1", "10.0.2.200"]), version=4))
    ip6 = fuzz(IPv6(dst=dice.choice([B6, "fd00:1::1", "ff02::1:ff00:1"]), version=6))
    return bytes(link / dice.choice([
        fuzz(ARP()), ip4 / fuzz(UDP()), ip4 / fuzz(TCP()), ip4 / fuzz(ICMP()), ip4 / Raw(dice.randbytes(40)),
        ip6 / fuzz(ICMPv6ND_NS()), ip6 / fuzz(ICMPv6ND_NA()), ip6 / fuzz(ICMPv6ND_RS()),
        ip6 / fuzz(ICMPv6EchoRequest()), ip6 / fuzz(IPv6ExtHdrHopByHop()) / fuzz(UDP()),
        ip6 / fuzz(IPv6ExtHdrFragment()) / fuzz(UDP()), ip6 / fuzz(ICMPv6MLReport2()),
    ]))[:1514]


def test_malformed_packets_do_no_harm(wires):
    dice = random.Random(1)
    count = 1000
    change = Change(wires.router)
    for _ in range(count // 50):
        wires.left.send(*(fuzzed(dice) for _ in range(50)))
    assert wait_for(lambda: change(received=count)["received"] == count, 5)
    wires.drain()
    reply = answer(wires, LINK / IP(src=A4, dst="10.0.1.1") / ICMP(id=1, seq=2),
                   lambda f: f[12:14] == b"\x08\0" and f[23] == 1 and f[34] == 0)
    assert reply[ICMP].seq == 2

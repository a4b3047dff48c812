"""Redirects: a host whose packets leave by their ingress port is informed of its better first hop.

RFC 792, RFC 1812 5.2.7.2, RFC 4861 8.2. That a router does not heed them is in test_rfc.py.
"""

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import (
    ICMPv6ND_Redirect, ICMPv6NDOptDstLLAddr, ICMPv6NDOptRedirectedHdr, IPv6,
)
from scapy.layers.l2 import Ether

from lib.lab import HOST_A_MAC, LEFT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import forwarded, unpadded

# Another router on the left link; hosts that use this router for its networks could use that one.
OTHER_MAC = "02:00:00:00:01:03"
CONFIG = f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "tp-left",  address = {{ "10.0.1.1/24", "fd00:1::1/64" }},
                         redirects = true }}
turnpike.port "right" {{ device = "tp-right", address = {{ "10.0.2.1/24", "fd00:2::1/64" }} }}
turnpike.route "198.51.100.0/24" {{ via = "10.0.1.3" }}
turnpike.route "2001:db8::/32"   {{ via = "fe80::3", port = "left" }}
turnpike.neighbour "10.0.1.3" {{ port = "left", mac = "{OTHER_MAC}" }}
turnpike.neighbour "fe80::3"  {{ port = "left", mac = "{OTHER_MAC}" }}
"""
A4, A6 = "10.0.1.2", "fd00:1::2"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, ports=CONFIG + STATIC_NEIGHBOURS, calm=True)


def back_and_told(wires, packet):
    """The packet as the other router gets it, and the redirect to its sender, if any."""
    wires.left.receive(0.1)
    wires.left.send(LINK / packet)
    frames = [Ether(frame) for frame in wires.left.receive(0.2)]
    passed = [frame for frame in frames if frame.dst == OTHER_MAC]
    told = [frame for frame in frames if frame.dst == HOST_A_MAC]
    assert [unpadded(bytes(frame)) for frame in passed] == [
        forwarded(bytes(LINK / packet), LEFT_MAC, OTHER_MAC)]
    assert len(told) < 2
    return told[0] if told else None


def test_a_host_is_told_of_a_better_gateway(wires):
    packet = IP(src=A4, dst="198.51.100.7") / UDP() / b"there is a better way"
    told = back_and_told(wires, packet)
    assert (told[IP].src, told[IP].dst) == ("10.0.1.1", A4)
    assert (told[ICMP].type, told[ICMP].code, told[ICMP].gw) == (5, 1, "10.0.1.3")
    assert bytes(told[ICMP].payload) == bytes(packet)

    packet = IPv6(src=A6, dst="2001:db8::7") / UDP() / b"there is a better way, too"
    told = back_and_told(wires, packet)
    assert (told[IPv6].src, told[IPv6].dst, told[IPv6].hlim) == ("fe80::ff:fe00:101", A6, 255)
    assert (told[ICMPv6ND_Redirect].tgt, told[ICMPv6ND_Redirect].dst) == ("fe80::3", "2001:db8::7")
    assert told[ICMPv6NDOptDstLLAddr].lladdr == OTHER_MAC
    quoted = bytes(told[ICMPv6NDOptRedirectedHdr])[8:]
    assert quoted == bytes(packet)[:len(quoted)] and len(quoted) > len(bytes(packet)) - 8


@pytest.mark.parametrize("packet", [
    pytest.param(IP(src="192.0.2.1", dst="198.51.100.7") / UDP(), id="no neighbour"),
    pytest.param(IP(src=A4, dst="198.51.100.7") / ICMP(type=3) / IP() / UDP(), id="an ICMP error"),
    pytest.param(IPv6(src="2001:db8:9::1", dst="2001:db8::7") / UDP(), id="no neighbour, IPv6"),
])
def test_who_is_not_told(wires, packet):
    assert back_and_told(wires, packet) is None


def test_a_flood_is_forwarded_and_told_of_rarely(wires):
    # Hosts that ignore redirects: the fast path continues to forward, and the slow path gets few packets.
    count = 1000
    flood = [bytes(LINK / IP(src=A4, dst="198.51.100.7", id=n) / UDP()) for n in range(count)]
    wires.left.receive(0.1)
    before = wires.router.counters()
    wires.left.send(*flood)
    assert wait_for(lambda: wires.router.counters()["received"] >= before["received"] + count)
    frames = [Ether(frame) for frame in wires.left.receive(0.3)]
    passed = [frame[IP].id for frame in frames if frame.dst == OTHER_MAC]
    told = [frame for frame in frames if frame.dst == HOST_A_MAC]
    assert sorted(passed) == list(range(count))
    assert 1 <= len(told) < count / 4


def test_a_port_that_does_not_redirect_is_silent(lab):
    wires = Wires(lab, ports=CONFIG.replace("redirects = true", "redirects = false") + STATIC_NEIGHBOURS,
                  calm=True)
    assert back_and_told(wires, IP(src=A4, dst="198.51.100.7") / UDP()) is None

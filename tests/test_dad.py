"""Duplicate address detection of the router's own addresses: RFC 4862 5.4, on ports that enable it."""

import time

import pytest
from scapy.layers.inet6 import (
    ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr, IPv6,
)
from scapy.layers.l2 import Ether

from lib.lab import HOST_A_MAC, LEFT_MAC, Wires
from lib.netns import wait_for
from lib.router import Change

PORTS = f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "tp-left",  address = "fd00:1::1/64", dad = 2 }}
turnpike.port "right" {{ device = "tp-right", address = "fd00:2::1/64" }}
turnpike.neighbour "fd00:1::2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "fe80::a"   {{ port = "left", mac = "{HOST_A_MAC}" }}
"""
OWN, LINK_LOCAL = "fd00:1::1", "fe80::ff:fe00:101"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


def is_question(frame):
    """Returns true for a neighbour solicitation from the unspecified address."""
    return frame[12:14] == b"\x86\xdd" and frame[54:55] == b"\x87" and frame[22:38] == bytes(16)


@pytest.fixture
def wires(lab):
    return Wires(lab, ports=PORTS)


def ping(source, destination):
    return LINK / IPv6(src=source, dst=destination) / ICMPv6EchoRequest(seq=4)


def answers(wires, source, destination):
    """Returns true if the router answers a ping to its own address."""
    wires.left.send(ping(source, destination))
    is_reply = lambda frame: frame[12:14] == b"\x86\xdd" and frame[54:55] == b"\x81"
    replies = wires.left.expect(1, is_reply, 0.1)
    return bool(replies) and Ether(replies[0])[ICMPv6EchoReply].seq == 4


def test_an_address_is_used_when_nobody_has_it(wires):
    # 5.4.2: each address is solicited twice, a second apart, from the unspecified address and without a MAC.
    asked = []
    for frame in wires.left.expect(4, is_question, 4):
        question = Ether(frame)
        assert question[IPv6].hlim == 255 and ICMPv6NDOptSrcLLAddr not in question
        assert question.src == LEFT_MAC
        assert question[IPv6].dst.endswith("1:ff00:" + ("1" if question[ICMPv6ND_NS].tgt == OWN else "101"))
        asked.append(question[ICMPv6ND_NS].tgt)
    assert sorted(asked) == sorted([OWN, LINK_LOCAL] * 2)
    assert wait_for(lambda: answers(wires, "fd00:1::2", OWN), 3)
    assert wait_for(lambda: answers(wires, "fe80::a", LINK_LOCAL), 3)


@pytest.mark.parametrize("sign", ["it is advertised", "somebody wants it, too"])
def test_an_address_that_somebody_has_is_not_used(wires, sign):
    # 5.4.3 to 5.4.5: not used, logged; other addresses are.
    for_own = lambda frame: is_question(frame) and Ether(frame)[ICMPv6ND_NS].tgt == OWN
    assert wires.left.expect(1, for_own, 3)
    if sign == "it is advertised":
        message = IPv6(src=OWN, dst="ff02::1", hlim=255) / ICMPv6ND_NA(
            tgt=OWN, R=0, S=0, O=1) / ICMPv6NDOptDstLLAddr(lladdr=HOST_A_MAC)
        group = "33:33:00:00:00:01"
    else:
        message = IPv6(src="::", dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt=OWN)
        group = "33:33:ff:00:00:01"
    wires.left.send(Ether(src=HOST_A_MAC, dst=group) / message)
    line = f'port "left": {HOST_A_MAC} has our address {OWN}; it is not used'
    assert wait_for(lambda: line in wires.router.log(), 3)
    assert wait_for(lambda: answers(wires, "fe80::a", LINK_LOCAL), 5)
    # Long enough for the second solicitation, and a second for its answer.
    time.sleep(1.5)
    change = Change(wires.router)
    assert not answers(wires, "fd00:1::2", OWN)
    assert change(received=1) == {"received": 1, "dropped": {"not-local": 1}}

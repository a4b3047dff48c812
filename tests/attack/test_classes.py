"""Floods of the packets that the slow path takes first, and their effect on others.

A capture file played in an endless loop is the attacker, far beyond what the classes of its packets may have.
Whatever it sends, others of the same class on another port, and hellos on its own, are dealt with all the
same: each of them, however long that takes on a loaded machine.
"""

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC
from lib.netns import veth, wait_for
from lib.packets import ethernet, icmp6, ipv4, ipv6, mac_bytes, pattern, pcap_file, tcp

pytestmark = pytest.mark.flood

# The address of the first capture-file port, as its driver makes it.
FLOOD_MAC = "02:70:63:61:70:00"
EVERYBODY = "ff:ff:ff:ff:ff:ff"

# Interval of the queries of a host on the other port.
QUESTIONS = 30


class Attacked:
    """A router with a flood of these frames on its port `flood` and a raw wire on its port `left`."""

    def __init__(self, lab, frames, slowpath, host=""):
        self.inside, outside = lab.namespace("router"), lab.namespace("left", quiet=True)
        veth(self.inside, "tp-left", outside, "wire", LEFT_MAC, HOST_A_MAC)
        self.left = lab.raw(outside, "wire")
        self.router = lab.router(self.inside, f"""
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "tp-left", address = {{ "10.0.1.1/24", "fd00:1::1/64" }} }}
turnpike.port "flood" {{
  device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=1", address = {{ "10.9.0.1/16", "fd00:9::1/64" }} }}
turnpike.slowpath {{ {slowpath} }}
""", files={"in.pcap": pcap_file(frames)})

    def row(self, name):
        """A class of `show policing`."""
        return next(row for row in self.router.show("protection")["classes"] if row["name"] == name)

    def is_flooded(self, name):
        row = self.row(name)
        return row["refused_early"] + row["refused_full"] > 10_000


def request(source_mac, source, target, destination=EVERYBODY):
    """An ARP request."""
    message = bytes.fromhex("0001080006040001") + mac_bytes(source_mac) + source + bytes(6) + target
    return ethernet(destination, source_mac, 0x0806, message)


def requests():
    """Requests from ever other neighbours of the port `flood`."""
    for number in range(1, 65):
        yield request(f"02:00:00:00:0f:{number:02x}", bytes([10, 9, 1, number]), bytes([10, 9, 0, 1]))


def solicitation(source, source_mac, target, destination=None):
    """A neighbour solicitation to the target's address."""
    target_bytes = ipv6("::", target, b"")[24:40]
    option = b"\1\1" + mac_bytes(source_mac)
    message = icmp6(source, target, 135, 0, bytes(4), target_bytes + option)
    packet = ipv6(source, target, message, next_header=58, hop_limit=255)
    return ethernet(destination, source_mac, 0x86DD, packet)


def solicitations():
    for number in range(1, 65):
        mac = f"02:00:00:00:0f:{number:02x}"
        yield solicitation(f"fd00:9::{number + 1:x}", mac, "fd00:9::1", FLOOD_MAC)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["requests", "solicitations"])
def test_neighbours_on_other_ports_are_answered_while_one_is_flooded(lab, kind, workers):
    frames = list(requests() if kind == "requests" else solicitations())
    slowpath = f"workers = {workers}, classes = {{ neighbour = {{ rate = 2000, queue = 128 }} }}"
    attacked = Attacked(lab, frames, slowpath)
    assert wait_for(lambda: attacked.is_flooded("neighbour"), 30), "no flood"
    if kind == "requests":
        question = request(HOST_A_MAC, bytes([10, 0, 1, 2]), bytes([10, 0, 1, 1]))
    else:
        question = solicitation("fd00:1::2", HOST_A_MAC, "fd00:1::1", LEFT_MAC)

    def is_answer(frame):
        to_us = frame[:6] == mac_bytes(HOST_A_MAC)
        return to_us and (frame[12:14] == b"\x08\x06" or (frame[12:14] == b"\x86\xdd" and frame[54] == 136))

    for number in range(QUESTIONS):
        attacked.left.send(question)
        assert attacked.left.expect(1, is_answer, timeout=20), f"question {number} has no answer"
    row = attacked.row("neighbour")
    assert row["refused_early"] + row["refused_full"] > 0
    attacked.router.stop()


@pytest.mark.parametrize("family", [4, 6])
def test_remote_packets_of_routing_protocols_leave_hellos_alone(lab, family):
    """Half of the flood claims to be BGP, half OSPF, from far away; one frame in 512 is a hello of the link."""
    if family == 4:
        syn = ipv4("192.0.2.1", "10.9.0.1", tcp("192.0.2.1", "10.9.0.1", 40000, 179, 1, 0, 2), protocol=6, ttl=60)
        far = ipv4("192.0.2.1", "10.9.0.1", pattern(40), protocol=89, ttl=60)
        near = ipv4("10.9.0.2", "224.0.0.5", pattern(40), protocol=89, ttl=1)
        group, ethertype = "01:00:5e:00:00:05", 0x0800
    else:
        syn = ipv6("2001:db8::1", "fd00:9::1", pattern(40), next_header=6, hop_limit=60)
        syn = syn[:40] + tcp("2001:db8::1", "fd00:9::1", 40000, 179, 1, 0, 2)
        syn = syn[:4] + (20).to_bytes(2, "big") + syn[6:]
        far = ipv6("2001:db8::1", "fd00:9::1", pattern(40), next_header=89, hop_limit=60)
        near = ipv6("fe80::2", "ff02::5", pattern(40), next_header=89, hop_limit=1)
        group, ethertype = "33:33:00:00:00:05", 0x86DD
    flood = [ethernet(FLOOD_MAC, HOST_B_MAC, ethertype, packet) for packet in (syn, far)] * 255
    hello = ethernet(group, HOST_B_MAC, ethertype, near)
    slowpath = "classes = { routing = { rate = 1000, queue = 128 } }"
    attacked = Attacked(lab, [*flood, hello, flood[0]], slowpath)
    assert wait_for(lambda: attacked.is_flooded("routing"), 30), "no flood"
    assert wait_for(lambda: attacked.row("link")["passed"] > 500, 60), "no hellos"
    link = attacked.row("link")
    assert (link["refused_early"], link["refused_full"]) == (0, 0)
    attacked.router.stop()

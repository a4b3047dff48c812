"""Optional behaviour and edge cases: 240/4, router discovery, truncated packets, fragments that arrive on several
ports."""

import struct

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import Ether

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires, from_left
from lib.packets import checksum, ethernet, forwarded, pattern
from lib.router import Change

LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
CLASS_E = """
turnpike.forwarding { class_e = true }
turnpike.route "240.0.0.0/4" { via = "10.0.2.2" }
turnpike.route "250.0.0.0/8" { via = "10.0.1.2" }
"""


def test_class_e_is_forwarded_if_it_is_accepted(lab):
    wires = Wires(lab, CLASS_E, calm=True)
    frames = [from_left("10.0.1.2", "240.0.0.1"), from_left("250.1.2.3", "10.0.2.2"), from_left("250.1.2.3", "255.255.255.254")]
    wires.drain()
    change = Change(wires.router)
    wires.left.send(*frames)
    assert wires.right.expect(3) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    assert change(received=3) == {"received": 3, "sent": 3}
    # Hosts there get errors.
    wires.left.send(from_left("250.1.2.3", "10.0.2.2", ttl=1))
    (error,) = wires.left.expect(1)
    assert Ether(error)[IP].dst == "250.1.2.3" and Ether(error)[ICMP].type == 11
    # The broadcast address is unchanged.
    change = Change(wires.router)
    wires.left.send(from_left("255.255.255.255", "10.0.2.2"), from_left("10.0.1.2", "255.255.255.255"))
    assert change(received=2) == {"received": 2, "dropped": {"ip4-martian-source": 1, "no-listener": 1}}


def test_class_e_by_command(lab):
    wires = Wires(lab, CLASS_E)
    wires.router.command("route", "add", "251.0.0.0/8", "via", "10.0.2.2")
    strict = Wires(lab)
    refused = strict.router.command("route", "add", "251.0.0.0/8", "via", "10.0.2.2", check=False)
    assert refused.returncode != 0 and "class_e = true" in refused.stderr


@pytest.mark.parametrize("missing", [1, 20, 40])
def test_a_truncated_packet_is_answered(module_wires, missing):
    # RFC 1812 5.2.2: a parameter problem that points at the total length.
    wires = module_wires
    wires.drain()
    change = Change(wires.router)
    whole = from_left("10.0.1.2", "10.0.2.2")
    wires.left.send(whole[:-missing])
    (error,) = wires.left.expect(1)
    message = Ether(error)[ICMP]
    assert (message.type, message.code, message.ptr) == (12, 0, 2)
    assert bytes(message.payload) == whole[14:-missing]
    counted = change(received=1)
    assert counted == {"received": 1, "originated": 1, "sent": 1, "dropped": {"ip4-total-length": 1}}


@pytest.mark.parametrize("what", ["a later fragment", "to a group", "an ICMP error", "by broadcast"])
def test_about_some_truncated_packets_nobody_is_told(module_wires, what):
    wires = module_wires
    frame = {
        "a later fragment": LINK / IP(src="10.0.1.2", dst="10.0.2.2", frag=5) / UDP() / bytes(40),
        "to a group": LINK / IP(src="10.0.1.2", dst="239.1.2.3") / UDP() / bytes(40),
        "an ICMP error": LINK / IP(src="10.0.1.2", dst="10.0.2.2") / ICMP(type=3) / bytes(40),
        "by broadcast": Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff") / IP(src="10.0.1.2", dst="10.0.2.2") / bytes(40),
    }[what]
    wires.drain()
    change = Change(wires.router)
    wires.left.send(bytes(frame)[:-10])
    assert change(received=1) == {"received": 1, "dropped": {"ip4-total-length": 1}}
    assert wires.left.receive(0.05) == []


@pytest.fixture(scope="module")
def module_wires(module_lab):
    return Wires(module_lab, calm=True)


def test_fragments_that_come_by_several_ports_meet(lab):
    # Each port has a separate worker; the fragments of one datagram have one.
    wires = Wires(lab, "turnpike.slowpath { workers = 2 }", calm=True)
    for number in range(8):
        whole = IP(src=f"10.0.1.{number + 10}", dst="10.0.1.1", id=number) / ICMP(id=9, seq=number) / pattern(64)
        first, second = whole.fragment(40)
        wires.drain()
        change = Change(wires.router)
        wires.left.send(LINK / first)
        wires.right.send(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / second)
        # Both are processed: reassembled, not waiting for each other.
        assert change(received=2)["to_host"] == 2, number


def is_advertisement(frame):
    return frame[12:14] == b"\x08\x00" and frame[34:35] == b"\x09"


def test_router_discovery(lab):
    # RFC 1256: it advertises, answers solicitations, and announces at the end that it ceases to be a router.
    ports = PORTS.replace('device = "tp-left",', 'device = "tp-left", router_discovery = { preference = 7 },')
    wires = Wires(lab, ports=ports + STATIC_NEIGHBOURS)
    body = struct.pack("!BBHBBH", 9, 0, 0, 1, 2, 1800) + bytes([10, 0, 1, 1, 0, 0, 0, 7])
    body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
    (first,) = wires.left.expect(1, is_advertisement)
    assert first[:14] == ethernet("01:00:5e:00:00:01", LEFT_MAC, 0x0800, b"")
    assert first[22] == 1 and first[26:34] == bytes([10, 0, 1, 1, 224, 0, 0, 1]) and first[34:] == body
    # The next periodic one would be sent 16 seconds later.
    group = Ether(src=HOST_A_MAC, dst="01:00:5e:00:00:02")
    elsewhere = group / IP(src="10.0.2.2", dst="224.0.0.2", ttl=1) / ICMP(type=10)
    wires.left.send(elsewhere)
    assert wires.left.expect(1, is_advertisement, timeout=2.2) == []
    wires.left.send(group / IP(src="10.0.1.2", dst="224.0.0.2", ttl=1) / ICMP(type=10))
    assert [frame[34:] for frame in wires.left.expect(1, is_advertisement)] == [body]
    wires.router.stop()
    last = [frame for frame in wires.left.receive() if is_advertisement(frame)]
    assert [frame[40:42] for frame in last] == [b"\0\0"]
    assert not any(map(is_advertisement, wires.right.receive()))

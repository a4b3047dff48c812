"""Reverse path forwarding (RFC 3704): accepted sources, by setting of the port."""

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.packets import ethernet, forwarded, ipv4, ipv6, pattern
from lib.router import Change

ROUTES = """
turnpike.route "198.51.100.0/24" { via = "10.0.1.2" }
turnpike.route "203.0.113.0/24"  { via = { "10.0.1.2", "10.0.2.2" } }
turnpike.route "198.18.0.0/15"   { via = "10.0.2.2" }
turnpike.route "192.0.2.0/24"    { blackhole = true }
turnpike.route "2001:db8:1::/48" { via = "fd00:1::2" }
turnpike.route "2001:db8:2::/48" { via = "fd00:2::2" }
turnpike.route "2001:db8:dead::/48" { blackhole = true }
"""


def asking(left, right):
    """The usual ports, with reverse path checks."""
    ports = PORTS.replace('device = "tp-left",', f'device = "tp-left", reverse_path = "{left}",')
    return ports.replace('device = "tp-right",', f'device = "tp-right", reverse_path = "{right}",')


@pytest.fixture(scope="module")
def wires(module_lab):
    ports = asking("strict", "loose") + STATIC_NEIGHBOURS
    return Wires(module_lab, ROUTES, ports=ports, calm=True)


def packet(source, to_right):
    """From a source, to the host on the other side."""
    side = 2 if to_right else 1
    if ":" in source:
        return 0x86DD, ipv6(source, f"fd00:{side}::2", pattern(40))
    return 0x0800, ipv4(source, f"10.0.{side}.2", pattern(40))


def from_left(source):
    return ethernet(LEFT_MAC, HOST_A_MAC, *packet(source, True))


def from_right(source):
    return ethernet(RIGHT_MAC, HOST_B_MAC, *packet(source, False))


def expect(wires, frame, to_right, passes, reason="reverse-path"):
    wires.drain()
    change = Change(wires.router)
    sender, receiver = (wires.left, wires.right) if to_right else (wires.right, wires.left)
    macs = (RIGHT_MAC, HOST_B_MAC) if to_right else (LEFT_MAC, HOST_A_MAC)
    sender.send(frame)
    if passes:
        assert receiver.expect(1) == [forwarded(frame, *macs)]
        assert change(received=1) == {"received": 1, "sent": 1}
    else:
        assert change(received=1) == {"received": 1, "dropped": {reason: 1}}
        assert wires.silent()


@pytest.mark.provokes("reverse-path")
@pytest.mark.parametrize("source, passes", [
    pytest.param("10.0.1.2", True, id="the neighbour"),
    pytest.param("10.0.1.77", True, id="an unknown neighbour"),
    pytest.param("198.51.100.1", True, id="behind a gateway"),
    pytest.param("203.0.113.1", True, id="one of two paths"),
    pytest.param("10.0.2.2", False, id="the other port's neighbour"),
    pytest.param("198.18.0.1", False, id="behind the other port's gateway"),
    pytest.param("172.16.0.1", False, id="no route"),
    pytest.param("192.0.2.1", False, id="blackhole"),
    pytest.param("10.0.2.255", False, id="the other port's broadcast address"),
    pytest.param("fd00:1::2", True, id="the neighbour, IPv6"),
    pytest.param("2001:db8:1::9", True, id="behind a gateway, IPv6"),
    pytest.param("2001:db8:2::9", False, id="behind the other port's gateway, IPv6"),
    pytest.param("2001:db8:dead::9", False, id="blackhole, IPv6"),
    pytest.param("3fff::9", False, id="no route, IPv6"),
])
def test_strict(wires, source, passes):
    expect(wires, from_left(source), True, passes)


@pytest.mark.parametrize("source, name", [
    ("10.0.1.255", "broadcast-source"), ("10.0.1.1", "own-source"), ("fd00:1::1", "own-source"),
])
def test_what_nobody_may_send_from_has_its_own_reason(wires, source, name):
    expect(wires, from_left(source), True, False, name)


@pytest.mark.provokes("reverse-path")
@pytest.mark.parametrize("source, passes", [
    pytest.param("10.0.2.2", True, id="the neighbour"),
    pytest.param("198.51.100.1", True, id="behind the other port's gateway"),
    pytest.param("203.0.113.1", True, id="one of two paths"),
    pytest.param("172.16.0.1", False, id="no route"),
    pytest.param("192.0.2.1", False, id="blackhole"),
    pytest.param("2001:db8:1::9", True, id="behind the other port's gateway, IPv6"),
    pytest.param("3fff::9", False, id="no route, IPv6"),
    pytest.param("2001:db8:dead::9", False, id="blackhole, IPv6"),
])
def test_loose(wires, source, passes):
    expect(wires, from_right(source), False, passes)


def test_a_default_route_counts(lab):
    default = 'turnpike.route "0.0.0.0/0" { via = "10.0.1.2" }\n'
    wires = Wires(lab, default, ports=asking("strict", "loose") + STATIC_NEIGHBOURS, calm=True)
    expect(wires, from_left("172.16.0.1"), True, True)
    expect(wires, from_right("172.16.0.1"), False, True)


def test_neighbour_discovery_from_the_link_passes(wires):
    # A solicitation by a host that has no address yet, and one from its link-local address.
    from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
    from scapy.layers.l2 import Ether

    wires.drain()
    group = "33:33:ff:00:00:01"
    base = Ether(dst=group, src=HOST_A_MAC)
    ask = ICMPv6ND_NS(tgt="fd00:1::1")
    nobody = base / IPv6(src="::", dst="ff02::1:ff00:1", hlim=255) / ask
    local = base / IPv6(src="fe80::2", dst="ff02::1:ff00:1", hlim=255) / ask
    local /= ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)
    for frame in (nobody, local):
        wires.drain()
        wires.left.send(bytes(frame))
        assert len(wires.left.expect(1, lambda answer: ICMPv6ND_NA in Ether(answer))) == 1

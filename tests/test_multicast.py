"""Multicast routes of the configuration: who gets a packet to a group, and what becomes of others."""

import ipaddress
import time

import pytest

from lib.lab import ANNOUNCING_SECONDS, DRIVERS, HOST_A_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires, ports_by
from lib.netns import veth
from lib.packets import ethernet, forwarded, ipv4, ipv6, pattern, udp
from lib.router import Change

FAR_MAC = "02:00:00:00:03:01"
FAR = """
turnpike.port "far" { device = "tp-far", address = { "10.0.3.1/24", "fd00:3::1/64" }, mtu = 1400 }
"""

ROUTES = """
turnpike.multicast "239.1.1.1" { from = "left", to = { "right", "far" } }
turnpike.multicast "239.1.1.1" { source = "10.0.1.9", from = "left", to = { { "right", ttl = 16 }, "far" } }
turnpike.multicast "239.1.1.2" { from = "right", to = { "far" } }
turnpike.multicast "ff0e::101" { from = "left", to = { "right", "far" } }
turnpike.multicast "ff0e::102" { from = "right", to = "left" }
"""


class Three(Wires):
    """Wires with a third port, `far`."""

    def __init__(self, lab, ports=PORTS, **options):
        super().__init__(lab, start=False)
        outside = lab.namespace("far", quiet=True)
        veth(self.inside, "tp-far", outside, "wire", FAR_MAC, "02:00:00:00:03:02", 1500)
        self.far = lab.raw(outside, "wire", self.left._ignore)
        self.router = lab.router(self.inside, ports + FAR + STATIC_NEIGHBOURS + ROUTES, **options)
        time.sleep(ANNOUNCING_SECONDS)


@pytest.fixture(scope="module", params=DRIVERS)
def wires(request, module_lab):
    return Three(module_lab, ports_by(request.param))


def group_mac(group):
    if ":" in group:
        return "33:33:" + ipaddress.ip_address(group).packed[12:].hex(":")
    _, b, c, d = map(int, group.split("."))
    return f"01:00:5e:{b & 0x7f:02x}:{c:02x}:{d:02x}"


def packet(group, source=None, size=200, **fields):
    """From a host on the left, to a group."""
    four = "." in group
    source = source or ("10.0.1.2" if four else "fd00:1::2")
    datagram = udp(source, group, 1000, 5000, pattern(size))
    payload = (ipv4 if four else ipv6)(source, group, datagram, **fields)
    return ethernet(group_mac(group), HOST_A_MAC, 0x0800 if four else 0x86DD, payload)


def expect(wires, frame, to, dropped=None, **change):
    """Sends a frame from the left; it must arrive by these wires, with the ports' own addresses, and
    nowhere else."""
    for wire in (wires.left, wires.right, wires.far):
        wire.drain()
    changed = Change(wires.router)
    wires.left.send(frame)
    group = frame[:6].hex(":")
    for name, mac in (("right", RIGHT_MAC), ("far", FAR_MAC)):
        wire = getattr(wires, name)
        if name in to:
            assert wire.expect(1) == [forwarded(frame, mac, group)], name
        assert wire.receive(0.05) == [], name
    assert wires.left.receive(0.02) == []
    wanted = {"received": 1, **({"sent": len(to)} if to else {})}
    wanted |= {"replicated": len(to) - 1} if len(to) > 1 else {}
    wanted |= {"dropped": {dropped: 1}} if dropped else {}
    assert changed(received=1) == {**wanted, **change}


@pytest.mark.parametrize("group", ["239.1.1.1", "ff0e::101"])
def test_every_receiver_gets_the_packet_once(wires, group):
    expect(wires, packet(group), ["right", "far"])


@pytest.mark.parametrize("size", [18, 300, 1300])
def test_sizes(wires, size):
    expect(wires, packet("239.1.1.1", size=size), ["right", "far"])


@pytest.mark.provokes("multicast-no-receiver")
def test_a_ttl_must_exceed_the_port_s_threshold(wires):
    expect(wires, packet("239.1.1.1", "10.0.1.9", ttl=17), ["right", "far"])
    expect(wires, packet("239.1.1.1", "10.0.1.9", ttl=16), ["far"])
    expect(wires, packet("239.1.1.1", ttl=2), ["right", "far"])
    # RFC 1812 4.3.2.7: no ICMP error tells of it.
    expect(wires, packet("239.1.1.1", ttl=1), [], "multicast-no-receiver")
    expect(wires, packet("ff0e::101", hop_limit=1), [], "multicast-no-receiver")


@pytest.mark.provokes("multicast-wrong-port")
def test_only_the_right_port_is_listened_to(wires):
    expect(wires, packet("239.1.1.2"), [], "multicast-wrong-port")
    expect(wires, packet("ff0e::102"), [], "multicast-wrong-port")
    shown = {row["group"]: row["wrong_port"] for row in wires.router.show("multicast")}
    assert shown["239.1.1.2"] >= 1 and shown["ff0e::102"] >= 1 and shown["239.1.1.1"] == 0


def test_groups_without_an_entry_are_not_forwarded(wires):
    for group in ("239.9.9.9", "ff0e::999", "224.0.0.9"):
        expect(wires, packet(group), [], "multicast-not-routed")


def test_what_stays_on_its_link_stays(wires):
    frame = packet("ff0e::101", source="fe80::a")
    expect(wires, frame, [], "multicast-not-routed")


def test_too_long_for_one_port_is_for_none(wires):
    """There is no host interface whose kernel could cut it."""
    expect(wires, packet("239.1.1.1", size=1372), ["right", "far"])
    expect(wires, packet("239.1.1.1", size=1373), [], "multicast-not-routed")


def test_many_packets_are_all_replicated_and_shown(wires):
    for wire in (wires.right, wires.far):
        wire.drain()
    before = {row["group"]: row for row in wires.router.show("multicast") if row["source"] is None}
    changed = Change(wires.router)
    frames = [packet("239.1.1.1", "10.0.1.77", size=100 + n, ident=n) for n in range(100)]
    for at in range(0, 100, 20):
        wires.left.send(*frames[at:at + 20])
    group = group_mac("239.1.1.1")
    assert wires.right.expect(100) == [forwarded(frame, RIGHT_MAC, group) for frame in frames]
    assert wires.far.expect(100) == [forwarded(frame, FAR_MAC, group) for frame in frames]
    assert changed(received=100) == {"received": 100, "replicated": 100, "sent": 200}
    after = {row["group"]: row for row in wires.router.show("multicast") if row["source"] is None}
    row, earlier = after["239.1.1.1"], before["239.1.1.1"]
    assert row["packets"] - earlier["packets"] == 100
    assert row["bytes"] - earlier["bytes"] == sum(len(frame) - 14 for frame in frames)
    assert row["origin"] == "configuration" and row["from"] == "left"
    assert row["to"] == [{"port": "right", "ttl": 1}, {"port": "far", "ttl": 1}]
    table = wires.router.command("show", "multicast").stdout.splitlines()
    assert table[0].split()[:5] == ["GROUP", "SOURCE", "ORIGIN", "FROM", "TO"]
    assert "right (TTL above 16), far" in table[1] + table[2]


def test_the_buffers_come_back(lab):
    """References to a packet end with the replicas: the router counts its buffers when it ends."""
    wires = Three(lab)
    wires.left.send(*[packet("239.1.1.1", size=900) for _ in range(50)])
    assert len(wires.far.expect(50)) == 50
    wires.router.counters()
    wires.router.stop()

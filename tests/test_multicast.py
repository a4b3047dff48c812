"""Multicast routes of the configuration: receivers of packets to groups, and the treatment of other packets."""

import ipaddress
import struct
import time

import pytest

from lib.lab import ANNOUNCING_SECONDS, DRIVERS, HOST_A_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Lab, Wires, ports_by
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

    def __init__(self, lab, ports=PORTS, far=FAR, **options):
        super().__init__(lab, start=False)
        outside = lab.namespace("far", quiet=True)
        veth(self.inside, "tp-far", outside, "wire", FAR_MAC, "02:00:00:00:03:02", 1500)
        self.far = lab.raw(outside, "wire", self.left._ignore)
        self.router = lab.router(self.inside, ports + far + STATIC_NEIGHBOURS + ROUTES, **options)
        time.sleep(ANNOUNCING_SECONDS)


@pytest.fixture(scope="module", params=DRIVERS)
def wires(request, module_lab):
    return Three(module_lab, ports_by(request.param))


def group_mac(group):
    if ":" in group:
        return "33:33:" + ipaddress.ip_address(group).packed[12:].hex(":")
    _, b, c, d = map(int, group.split("."))
    return f"01:00:5e:{b & 0x7f:02x}:{c:02x}:{d:02x}"


def packet(group, source=None, size=200, port=5000, **fields):
    """From a host on the left, to a group."""
    four = "." in group
    source = source or ("10.0.1.2" if four else "fd00:1::2")
    datagram = udp(source, group, 1000, port, pattern(size))
    payload = (ipv4 if four else ipv6)(source, group, datagram, **fields)
    return ethernet(group_mac(group), HOST_A_MAC, 0x0800 if four else 0x86DD, payload)


def expect(wires, frame, to, dropped=None, **change):
    """Sends a frame from the left; it must arrive by these wires, with the ports' own addresses, and nowhere else."""
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
    # RFC 1812 4.3.2.7: no ICMP error is sent.
    expect(wires, packet("239.1.1.1", ttl=1), [], "multicast-no-receiver")
    expect(wires, packet("ff0e::101", hop_limit=1), [], "multicast-no-receiver")


@pytest.mark.provokes("multicast-wrong-interface")
def test_only_the_right_port_is_listened_to(wires):
    expect(wires, packet("239.1.1.2"), [], "multicast-wrong-interface")
    expect(wires, packet("ff0e::102"), [], "multicast-wrong-interface")
    shown = {row["group"]: row["wrong_port"] for row in wires.router.show("multicast")}
    assert shown["239.1.1.2"] >= 1 and shown["ff0e::102"] >= 1 and shown["239.1.1.1"] == 0


def test_groups_without_an_entry_are_not_forwarded(wires):
    for group in ("239.9.9.9", "ff0e::999", "224.0.0.9"):
        expect(wires, packet(group), [], "multicast-not-routed")


def test_what_stays_on_its_link_stays(wires):
    frame = packet("ff0e::101", source="fe80::a")
    expect(wires, frame, [], "multicast-not-routed")


# --- what the slow path sends: the port `far` takes 1400 bytes ------------------------------------


def slowly(wires, frame, counters):
    """Sends a frame from the left; returns the frames that arrive at left, right and far."""
    for wire in (wires.left, wires.right, wires.far):
        wire.drain()
    changed = Change(wires.router)
    wires.left.send(frame)
    assert changed(received=1) == counters
    return [wire.receive(0.1) for wire in (wires.left, wires.right, wires.far)]


@pytest.mark.parametrize("group", ["239.1.1.1", "ff0e::101"])
def test_what_fits_every_port_is_replicated_by_the_fast_path(wires, group):
    headers = 28 if "." in group else 48
    expect(wires, packet(group, size=1400 - headers), ["right", "far"])


def test_too_long_for_one_port_is_cut_for_that_port(wires):
    frame = packet("239.1.1.1", size=1373)
    counters = {"received": 1, "originated": 2, "sent": 3}
    left, right, far = slowly(wires, frame, counters)
    assert left == [] and right == [forwarded(frame, RIGHT_MAC, group_mac("239.1.1.1"))]
    assert [len(fragment) - 34 for fragment in far] == [1376, 5]
    assert b"".join(fragment[34:] for fragment in far) == frame[34:]
    assert [fragment[20:22] for fragment in far] == [b"\x20\0", struct.pack("!H", 1376 // 8)]
    assert all(fragment[:12] == forwarded(frame, FAR_MAC, group_mac("239.1.1.1"))[:12] for fragment in far)


def test_too_long_for_one_port_and_not_to_be_cut_leaves_by_the_other(wires):
    """RFC 1812 4.3.2.7: no error about IPv4 groups."""
    frame = packet("239.1.1.1", size=1373, flags=2)
    left, right, far = slowly(wires, frame, {"received": 1, "sent": 1})
    assert (left, far) == ([], []) and right == [forwarded(frame, RIGHT_MAC, group_mac("239.1.1.1"))]


def test_packet_too_big_is_told_about_a_group(wires):
    """RFC 4443 3.2 and 2.4 (e.3)."""
    frame = packet("ff0e::101", size=1353)
    left, right, far = slowly(wires, frame, {"received": 1, "originated": 1, "sent": 2})
    assert far == [] and right == [forwarded(frame, RIGHT_MAC, group_mac("ff0e::101"))]
    (error,) = left
    assert error[20] == 58 and error[54:56] == b"\x02\0" and error[58:62] == struct.pack("!I", 1400)
    assert error[62:] == frame[14:][:len(error) - 62] and len(error) == 14 + 1280


def test_options_are_no_obstacle(wires):
    """RFC 1812 5.3.13.1: each port puts its own address into a record route."""
    route = bytes([7, 7, 4, 0, 0, 0, 0, 0])
    frame = packet("239.1.1.1", options=route)
    left, right, far = slowly(wires, frame, {"received": 1, "originated": 1, "sent": 2})
    assert left == []
    for got, mac, address in ((right, RIGHT_MAC, "10.0.2.1"), (far, FAR_MAC, "10.0.3.1")):
        recorded = bytes([7, 7, 8]) + ipaddress.ip_address(address).packed + b"\0"
        expected = packet("239.1.1.1", options=recorded)
        assert got == [forwarded(expected, mac, group_mac("239.1.1.1"))]


def test_a_hop_by_hop_header_is_no_obstacle(wires):
    """RFC 8200 4.3."""
    datagram = udp("fd00:1::2", "ff0e::101", 1000, 5000, pattern(40))
    payload = ipv6("fd00:1::2", "ff0e::101", bytes([17, 0, 1, 4, 0, 0, 0, 0]) + datagram, next_header=0)
    frame = ethernet(group_mac("ff0e::101"), HOST_A_MAC, 0x86DD, payload)
    left, right, far = slowly(wires, frame, {"received": 1, "originated": 1, "sent": 2})
    assert left == []
    assert right == [forwarded(frame, RIGHT_MAC, group_mac("ff0e::101"))]
    assert far == [forwarded(frame, FAR_MAC, group_mac("ff0e::101"))]


def test_options_do_not_change_who_gets_a_packet(wires):
    options = bytes([1, 1, 1, 1])
    for group, ttl, reason in (
        ("239.1.1.2", 64, "multicast-wrong-interface"), ("239.9.9.9", 64, "multicast-not-routed"),
        ("239.1.1.1", 1, "multicast-not-routed"),
    ):
        frame = packet(group, options=options, ttl=ttl)
        assert slowly(wires, frame, {"received": 1, "dropped": {reason: 1}}) == [[], [], []]
    frame = packet("239.1.1.1", "10.0.1.9", options=options, ttl=16)
    left, right, far = slowly(wires, frame, {"received": 1, "sent": 1})
    assert (left, right) == ([], []) and far == [forwarded(frame, FAR_MAC, group_mac("239.1.1.1"))]


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


# --- Outward filters

OUTWARD = """
turnpike.filter "far-out" {
  { name = "secret", proto = "udp", to_port = 6000, action = "drop" },
  { name = "refused", proto = "udp", to_port = 6001, action = "reject" },
  { name = "few", proto = "udp", to_port = 6002, police = { rate = "1pps", burst = "2" } },
  { name = "gold", proto = "udp", to_port = 6003, mark = { dscp = "ef" } },
}
turnpike.filter "right-out" { { name = "quiet", proto = "udp", to_port = 6004, action = "drop" } }
"""


@pytest.fixture(scope="module", params=DRIVERS)
def filtered(request):
    def outward(ports, device, name):
        return ports.replace(f'device = "{device}",', f'device = "{device}", filter = {{ outward = "{name}" }},')

    lab = Lab()
    try:
        ports = outward(ports_by(request.param), "tp-right", "right-out")
        yield Three(lab, ports, far=OUTWARD + outward(FAR, "tp-far", "far-out"))
    finally:
        lab.close()


def rule_hits(router):
    return {rule["name"]: rule["packets"] for row in router.show("filters") for rule in row["rules"]}


@pytest.mark.provokes("filtered")
@pytest.mark.parametrize("group", ["239.1.1.1", "ff0e::101"])
def test_each_copy_is_judged_by_the_filter_of_its_port(filtered, group):
    before = rule_hits(filtered.router)
    for port, to, rule in [(6000, "right", "secret"), (6001, "right", "refused"), (6004, "far", "quiet")]:
        # A dropped copy counts among the packets that result from the received one.
        expect(filtered, packet(group, port=port), [to], "filtered", replicated=1)
        before[rule] += 1
    expect(filtered, packet(group, port=5000), ["right", "far"])
    assert rule_hits(filtered.router) == before


@pytest.mark.provokes("policed")
def test_copies_have_the_rate_of_their_port_s_filter(filtered):
    for wire in (filtered.right, filtered.far):
        wire.drain()
    changed, start = Change(filtered.router), time.monotonic()
    filtered.left.send(*[packet("239.1.1.1", port=6002)] * 20)
    found = changed(received=20)
    passed = 20 - found["dropped"]["policed"]
    assert found == {"received": 20, "replicated": 20, "sent": 20 + passed, "dropped": {"policed": 20 - passed}}
    assert 2 <= passed <= 3 + time.monotonic() - start
    assert len(filtered.right.expect(20)) == 20 and len(filtered.far.expect(passed)) == passed


@pytest.mark.parametrize("group", ["239.1.1.1", "ff0e::101"])
def test_a_mark_is_written_into_the_copies_of_one_port(filtered, group):
    for wire in (filtered.right, filtered.far):
        wire.drain()
    frame = packet(group, port=6003)
    filtered.left.send(frame)
    mac = group_mac(group)
    assert filtered.right.expect(1) == [forwarded(frame, RIGHT_MAC, mac)]
    (marked,) = filtered.far.expect(1)
    marked_ip = packet(group, port=6003, **({"tos": 46 << 2} if "." in group else {"traffic_class": 46 << 2}))
    assert marked == forwarded(marked_ip, FAR_MAC, mac)


def test_the_slow_path_asks_for_each_copy(filtered):
    """Packets with options (RFC 1812 5.3.13.1) take it."""
    before = rule_hits(filtered.router)
    for wire in (filtered.right, filtered.far):
        wire.drain()
    frame = packet("239.1.1.1", port=6000, options=bytes([148, 4, 0, 0]))
    filtered.left.send(frame)
    assert len(filtered.right.expect(1)) == 1
    assert filtered.far.receive(0.1) == []
    assert rule_hits(filtered.router)["secret"] == before["secret"] + 1


"""Bonds (link aggregation, IEEE 802.1AX) between a router and raw wires, and between two routers."""

import struct
import time

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import HOST_B_MAC, RIGHT_MAC
from lib.lacp import (
    ACTIVITY, AGGREGATION, IN_USE, TIMEOUT, Peer, is_lacp, lacpdu, marker, parse, port,
)
from lib.netns import veth, wait_for
from lib.packets import (
    ethernet, forwarded, ipv4, is_announcement, mac_bytes, pattern, tagged, udp, unpadded, untagged,
)

BOND_MAC, OTHER_MAC, HOST_MAC = "02:00:00:00:0a:01", "02:00:00:00:0a:02", "02:00:00:00:0a:99"

PORTS = """
local turnpike = require "turnpike"
turnpike.port "a"     { device = "tp-a" }
turnpike.port "b"     { device = "tp-b" }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
"""

NEIGHBOURS = f"""
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "10.0.1.2" {{ port = "lag", mac = "{HOST_MAC}" }}
"""


def bond(mode, more=""):
    """The configuration of a bond of both ports."""
    return PORTS + f"""
turnpike.bond "lag" {{ ports = {{ "a", "b" }}, mode = "{mode}", address = {{ "10.0.1.1/24", "fd00:1::1/64" }}, {more} }}
""" + NEIGHBOURS


class Bonded:
    """A router whose ports a and b end in the wires a and b, and whose port right in another."""

    def __init__(self, lab, config, start=True, **options):
        self.inside = lab.namespace("router", quiet=True)
        self.side = lab.namespace("side", quiet=True)
        self.far = lab.namespace("far", quiet=True)
        veth(self.inside, "tp-a", self.side, "wire-a", BOND_MAC, "02:00:00:00:0b:01")
        veth(self.inside, "tp-b", self.side, "wire-b", OTHER_MAC, "02:00:00:00:0b:02")
        veth(self.inside, "tp-right", self.far, "wire", RIGHT_MAC, HOST_B_MAC)
        ignored = lambda frame: is_announcement(frame) or is_lacp(frame)  # noqa: E731
        self.wires = {name: lab.raw(self.side, f"wire-{name}", ignored) for name in "ab"}
        self.right = lab.raw(self.far, "wire", ignored)
        self.router = lab.router(self.inside, config, **options) if start else None

    def down(self, *names):
        """Takes the wires' links."""
        for name in names:
            self.side.run("ip", "link", "set", f"wire-{name}", "down")

    def up(self, *names):
        """Gives the links back."""
        for name in names:
            self.side.run("ip", "link", "set", f"wire-{name}", "up")

    def interface(self, name):
        """The report of an interface."""
        return {of["name"]: of for of in self.router.show("interfaces")}[name]

    def wait_link(self, name, state):
        """Waits for the state of an interface's link."""
        wait_for(lambda: self.interface(name)["link"] == state, timeout=20)

    def bond(self):
        """The report of the bond."""
        (found,) = [of for of in self.router.show("bonds") if of["name"] == "lag"]
        return found

    def wait_active(self, *names):
        """Waits until these ports of the bond, and no others, send."""
        def active():
            return {of["name"] for of in self.bond()["ports"] if of["distributing"]} == set(names)
        wait_for(active, timeout=30)

    def drain(self):
        """Discards what has arrived."""
        for wire in [*self.wires.values(), self.right]:
            wire.drain()


def flow(number, sequence=0):
    """A packet of a flow from behind the right port to the host behind the bond."""
    payload = udp("10.0.2.2", "10.0.1.2", 1000 + number, 2000, struct.pack("!II", number, sequence) + pattern(40))
    return ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, ipv4("10.0.2.2", "10.0.1.2", payload))


def back(number, router=BOND_MAC):
    """A packet of a flow from the host behind the bond."""
    payload = udp("10.0.1.2", "10.0.2.2", 2000, 1000 + number, pattern(40, number))
    return ethernet(router, HOST_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", payload))


def number_of(frame):
    """Flow and sequence number of a frame that the router has forwarded."""
    return struct.unpack("!II", unpadded(untagged(frame)[0])[42:50])


FLOWS = 64


def arrivals(bonded, count, timeout=5):
    """The frames of flows that arrive at each wire, so many together."""
    found = {name: [] for name in bonded.wires}
    deadline = time.monotonic() + timeout
    while sum(map(len, found.values())) < count and time.monotonic() < deadline:
        for name, wire in bonded.wires.items():
            found[name] += [frame for frame in wire.receive(0.02) if frame[12:14] == b"\x08\x00"]
    return found


def spread(bonded):
    """Sends a packet of each flow; returns the wire by which each arrived."""
    bonded.drain()
    frames = [flow(number) for number in range(FLOWS)]
    bonded.right.send(*frames)
    found = arrivals(bonded, FLOWS)
    ways = {}
    for name, arrived in found.items():
        for frame in arrived:
            number, _ = number_of(frame)
            assert unpadded(frame) == forwarded(frames[number], BOND_MAC, HOST_MAC)
            assert ways.setdefault(number, name) == name, "once, and by one wire"
    assert len(ways) == FLOWS, bonded.router.log()
    return ways


def received_by(bonded, name, router=BOND_MAC):
    """True if a packet that comes by this wire is forwarded."""
    bonded.right.drain()
    frame = back(7, router)
    bonded.wires[name].send(frame)
    arrived = bonded.right.expect(1, lambda seen: seen[12:14] == b"\x08\x00", 1)
    if arrived:
        assert unpadded(arrived[0]) == forwarded(frame, RIGHT_MAC, HOST_B_MAC)
    return bool(arrived)


def test_a_static_bond_spreads_flows_over_its_ports_and_receives_by_each(lab):
    bonded = Bonded(lab, bond("static"))
    bonded.wait_active("a", "b")
    ways = spread(bonded)
    shares = [list(ways.values()).count(name) for name in "ab"]
    assert min(shares) > FLOWS // 4, shares
    assert spread(bonded) == ways, "a flow keeps its wire"
    assert received_by(bonded, "a") and received_by(bonded, "b")
    report = bonded.interface("lag")
    assert (report["kind"], report["link"], report["mac"]) == ("bond", "up", BOND_MAC)
    assert bonded.interface("a")["parent"] == "lag"
    assert report["rx_packets"] == 2 and report["tx_packets"] >= 2 * FLOWS
    bonded.router.counters()


def test_a_lost_port_moves_its_flows_and_no_others(lab):
    bonded = Bonded(lab, bond("static"))
    bonded.wait_active("a", "b")
    before = spread(bonded)
    bonded.down("a")
    bonded.wait_active("b")
    assert set(spread(bonded).values()) == {"b"}
    bonded.up("a")
    bonded.wait_active("a", "b")
    assert spread(bonded) == before


def test_while_a_port_is_lost_the_flows_of_the_others_lose_nothing(lab):
    bonded = Bonded(lab, bond("static"))
    bonded.wait_active("a", "b")
    ways = spread(bonded)
    bonded.drain()
    sent, arrived = 0, {number: [] for number in range(FLOWS)}

    def send_and_collect():
        nonlocal sent
        bonded.right.send(*(flow(number, sent) for number in range(FLOWS)))
        sent += 1
        for wire in bonded.wires.values():
            for frame in wire.receive(0.001):
                if frame[12:14] == b"\x08\x00":
                    number, sequence = number_of(frame)
                    arrived[number].append(sequence)

    for _ in range(20):
        send_and_collect()
    bonded.down("a")
    lost_since = sent
    deadline = time.monotonic() + 30
    while {len([s for s in arrived[n] if s >= lost_since]) > 5 for n in arrived} != {True}:
        assert time.monotonic() < deadline, "its flows continue by the other port"
        send_and_collect()
    for wire in bonded.wires.values():
        for frame in wire.receive(0.3):
            if frame[12:14] == b"\x08\x00":
                number, sequence = number_of(frame)
                arrived[number].append(sequence)
    for number, way in ways.items():
        if way == "b":
            assert arrived[number] == list(range(sent)), f"flow {number} lost packets or their order"


def test_a_bond_with_too_few_ports_is_down(lab):
    bonded = Bonded(lab, bond("static", "minimum_links = 2, host = true"))
    bonded.wait_active("a", "b")
    bonded.wait_link("lag", "up")
    bonded.down("b")
    bonded.wait_link("lag", "down")
    assert "LOWER_UP" not in bonded.inside.run("ip", "link", "show", "lag").stdout
    routes = bonded.router.show("counters")
    bonded.right.send(flow(1))
    assert arrivals(bonded, 1, 1) == {"a": [], "b": []}, routes
    bonded.up("b")
    bonded.wait_link("lag", "up")
    wait_for(lambda: "LOWER_UP" in bonded.inside.run("ip", "link", "show", "lag").stdout)
    assert len(spread(bonded)) == FLOWS


def test_the_kernel_speaks_by_a_bond(lab):
    bonded = Bonded(lab, bond("static", "host = true"))
    bonded.wait_active("a", "b")
    bonded.wait_link("lag", "up")
    request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac_bytes(HOST_MAC) + bytes([10, 0, 1, 2]) + bytes(6) \
        + bytes([10, 0, 1, 1])
    for name in "ab":
        bonded.drain()
        bonded.wires[name].send(ethernet("ff:ff:ff:ff:ff:ff", HOST_MAC, 0x0806, request))
        answers = []
        deadline = time.monotonic() + 10
        while not answers and time.monotonic() < deadline:
            for wire in bonded.wires.values():
                answers += [frame for frame in wire.receive(0.05) if frame[12:14] == b"\x08\x06" and frame[21] == 2]
        assert answers and answers[0][22:28] == mac_bytes(BOND_MAC), bonded.router.log()


def test_a_vlan_stands_on_a_bond(lab):
    vlan = f"""
turnpike.vlan "lag.5" {{ parent = "lag", id = 5, mtu = 1400, address = "10.0.5.1/24" }}
turnpike.neighbour "10.0.5.2" {{ port = "lag.5", mac = "{HOST_MAC}" }}
"""
    bonded = Bonded(lab, bond("static") + vlan)
    bonded.wait_active("a", "b")
    frames = {}
    for number in range(FLOWS):
        payload = udp("10.0.2.2", "10.0.5.2", 1000 + number, 2000, struct.pack("!II", number, 0) + pattern(40))
        frames[number] = ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, ipv4("10.0.2.2", "10.0.5.2", payload))
    bonded.drain()
    bonded.right.send(*frames.values())
    seen = {}
    deadline = time.monotonic() + 5
    while len(seen) < FLOWS and time.monotonic() < deadline:
        for name, wire in bonded.wires.items():
            for frame in wire.receive(0.02):
                inner, tags = untagged(frame)
                if inner[12:14] == b"\x08\x00":
                    number, _ = number_of(frame)
                    assert tags == [(0x8100, 0, 5)]
                    assert unpadded(inner) == forwarded(frames[number], BOND_MAC, HOST_MAC)
                    seen[number] = name
    assert len(seen) == FLOWS and set(seen.values()) == {"a", "b"}
    for name in "ab":
        bonded.right.drain()
        payload = udp("10.0.5.2", "10.0.2.2", 1, 2, pattern(20))
        frame = ethernet(BOND_MAC, HOST_MAC, 0x0800, ipv4("10.0.5.2", "10.0.2.2", payload))
        bonded.wires[name].send(tagged(frame, 5))
        assert len(bonded.right.expect(1, lambda seen: seen[12:14] == b"\x08\x00")) == 1, name
    report = bonded.interface("lag.5")
    assert (report["parent"], report["rx_packets"], report["link"]) == ("lag", 2, "up")
    bonded.down("a", "b")
    bonded.wait_link("lag.5", "down")


@pytest.mark.provokes("bond-inactive")
def test_an_active_backup_bond_uses_one_port_and_announces_the_next(lab):
    bonded = Bonded(lab, bond("active-backup"))
    bonded.wait_active("a")
    assert set(spread(bonded).values()) == {"a"}
    assert received_by(bonded, "a") and not received_by(bonded, "b")
    assert bonded.router.counters()["dropped"]["bond-inactive"] >= 1
    bonded.drain()
    bonded.down("a")
    bonded.wait_active("b")
    gratuitous = bonded.wires["b"].expect(1, lambda frame: frame[12:14] == b"\x08\x06", 5)
    assert gratuitous and gratuitous[0][6:12] == mac_bytes(BOND_MAC) and gratuitous[0][28:32] == bytes([10, 0, 1, 1])
    assert set(spread(bonded).values()) == {"b"}
    assert received_by(bonded, "b")
    bonded.up("a")
    bonded.wait_active("a")


@pytest.mark.provokes("bond-down")
def test_multicast_leaves_by_one_port_with_the_bond_s_mac_and_by_none_of_a_bond_that_is_down(lab):
    group = 'turnpike.multicast "239.1.1.1" { from = "right", to = { "lag" } }'
    bonded = Bonded(lab, bond("static") + group)
    bonded.wait_active("a", "b")
    payload = udp("10.0.2.2", "239.1.1.1", 1, 2, pattern(40))
    frame = ethernet("01:00:5e:01:01:01", HOST_B_MAC, 0x0800, ipv4("10.0.2.2", "239.1.1.1", payload))
    bonded.drain()
    bonded.right.send(frame)
    found = arrivals(bonded, 1)
    (copy,) = found["a"] + found["b"]
    assert unpadded(copy) == forwarded(frame, BOND_MAC, "01:00:5e:01:01:01")
    bonded.down("a", "b")
    bonded.wait_link("lag", "down")
    before = bonded.router.counters()["dropped"].get("bond-down", 0)
    bonded.right.send(frame)
    wait_for(lambda: bonded.router.show("counters")["dropped"].get("bond-down", 0) > before)


@pytest.fixture
def peered(lab, request):
    """A router with LACP, and its peer."""
    bonded = Bonded(lab, bond("lacp", getattr(request, "param", "")))
    peer = Peer(bonded.side, ["wire-a", "wire-b"])
    request.addfinalizer(peer.close)
    bonded.peer = peer
    return bonded


def test_lacp_agrees_on_both_links(peered):
    peered.wait_active("a", "b")
    assert set(spread(peered).values()) == {"a", "b"}
    assert received_by(peered, "a") and received_by(peered, "b")
    in_use = ACTIVITY | TIMEOUT | AGGREGATION | IN_USE
    # A port tells its last step at the latest a second later.
    wait_for(lambda: all(actor["state"] == in_use for actor, _ in peered.peer.heard.values()), timeout=10)
    for number, name in enumerate(["wire-a", "wire-b"], 1):
        actor, partner = peered.peer.heard[name]
        assert actor["system"] == mac_bytes(BOND_MAC) and actor["number"] == number
        assert partner["system"] == mac_bytes("02:00:00:00:aa:01") and partner["number"] == number
    report = peered.bond()
    assert report["mode"] == "lacp" and report["partner"] == "02:00:00:00:aa:01"
    for of in report["ports"]:
        assert (of["mux"], of["receive"]) == ("distributing", "current")
        assert of["lacpdus_in"] > 0 and of["lacpdus_out"] > 0
    peered.router.counters()


def test_a_silent_partner_loses_its_link(peered):
    peered.wait_active("a", "b")
    peered.peer.mute.add("wire-a")
    peered.wait_active("b")
    assert set(spread(peered).values()) == {"b"}
    # LACP says that nothing is collected there.
    assert not received_by(peered, "a") and received_by(peered, "b")
    peered.peer.mute.clear()
    peered.wait_active("a", "b")


def test_a_lost_link_comes_back_by_lacp(peered):
    peered.wait_active("a", "b")
    peered.down("b")
    peered.wait_active("a")
    peered.up("b")
    peered.wait_active("a", "b")


def test_a_bond_without_a_partner_uses_one_link(lab):
    bonded = Bonded(lab, bond("lacp"))
    bonded.wait_active("a")
    assert set(spread(bonded).values()) == {"a"}
    bonded.down("a")
    bonded.wait_active("b")
    assert set(spread(bonded).values()) == {"b"}


def test_links_to_two_systems_are_not_one_bond(lab, request):
    bonded = Bonded(lab, bond("lacp"))
    systems = {"wire-a": "02:00:00:00:aa:01", "wire-b": "02:00:00:00:aa:02"}
    peer = Peer(bonded.side, ["wire-a", "wire-b"], systems=systems)
    request.addfinalizer(peer.close)
    wait_for(lambda: len([of for of in bonded.bond()["ports"] if of["distributing"]]) == 1, timeout=30)
    wait_for(lambda: all(of["lacpdus_in"] > 3 for of in bonded.bond()["ports"]), timeout=30)
    assert len([of for of in bonded.bond()["ports"] if of["distributing"]]) == 1


def test_markers_are_answered(peered):
    peered.wait_active("a", "b")
    asked, answer = marker("02:00:00:00:bb:01", 0x01020304)
    peered.wires["a"].send(asked)
    (seen,) = peered.wires["a"].expect(1, lambda frame: frame[12:15] == b"\x88\x09\2")
    assert seen[14:] == answer[14:] and seen[6:12] == mac_bytes(BOND_MAC)


@pytest.mark.provokes("lacp-malformed")
@pytest.mark.parametrize("at, value", [(15, 0), (16, 9), (17, 3), (36, 0), (37, 0xFF), (56, 7), (57, 0)])
def test_malformed_lacpdus_are_counted_and_change_nothing(peered, at, value):
    peered.wait_active("a", "b")
    # A LACPDU that would end the aggregation if it were believed.
    frame = bytearray(lacpdu("02:00:00:00:bb:01", port("02:00:00:00:cc:01", 9, 1)))
    frame[at] = value
    malformed = lambda: peered.router.show("counters")["dropped"].get("lacp-malformed", 0)  # noqa: E731
    peered.wires["a"].send(bytes(frame), bytes(frame[:60]))
    wait_for(lambda: malformed() == 2)
    (of,) = [of for of in peered.bond()["ports"] if of["name"] == "a"]
    assert of["malformed"] == 2 and of["distributing"]


def test_two_routers_agree(lab):
    inside, other = lab.namespace("one", quiet=True), lab.namespace("two", quiet=True)
    for name in "ab":
        veth(inside, f"tp-{name}", other, f"tp-{name}", f"02:00:00:00:0a:0{name}", f"02:00:00:00:0c:0{name}")
    text = PORTS.replace('turnpike.port "right"', "-- ")
    text += 'turnpike.bond "lag" { ports = { "a", "b" }, host = true, address = "10.0.1.%d/24", %s }\n'
    one = lab.router(inside, text % (1, ""))
    two = lab.router(other, text % (2, 'lacp = { passive = true, rate = "slow" }'))
    for router in (one, two):
        wait_for(lambda router=router: all(of["distributing"] for of in router.show("bonds")[0]["ports"]), timeout=40)
    wait_for(lambda: inside.run("ping", "-c", "1", "-W", "1", "10.0.1.2", check=False).returncode == 0, timeout=20)


def test_a_port_beyond_the_maximum_stands_by_and_takes_the_place_of_a_lost_one(lab):
    inside, other = lab.namespace("one", quiet=True), lab.namespace("two", quiet=True)
    for name in "ab":
        veth(inside, f"tp-{name}", other, f"tp-{name}", f"02:00:00:00:0a:0{name}", f"02:00:00:00:0c:0{name}")
    text = PORTS.replace('turnpike.port "right"', "-- ")
    text += 'turnpike.bond "lag" { ports = { "a", "b" }, host = true, address = "10.0.1.%d/24"%s }\n'
    one = lab.router(inside, text % (1, ", maximum_links = 1"))
    two = lab.router(other, text % (2, ""))

    def uses(*active):
        """These ports of both are in use, and the others of the first stand by."""
        ports = {of["name"]: of for of in one.show("bonds")[0]["ports"]}
        far = {of["name"] for of in two.show("bonds")[0]["ports"] if of["distributing"]}
        near = {name for name, of in ports.items() if of["distributing"]}
        standby = {name for name, of in ports.items() if of["standby"]}
        return near == far == set(active) and standby == set("ab") - near

    assert wait_for(lambda: uses("a"), timeout=40), one.show("bonds")
    assert wait_for(lambda: inside.run("ping", "-c", "1", "-W", "1", "10.0.1.2", check=False).returncode == 0, timeout=20)
    other.run("ip", "link", "set", "tp-a", "down")
    assert wait_for(lambda: one.show("bonds")[0]["ports"][1]["distributing"], timeout=40), one.show("bonds")
    assert wait_for(lambda: inside.run("ping", "-c", "1", "-W", "1", "10.0.1.2", check=False).returncode == 0, timeout=20)
    other.run("ip", "link", "set", "tp-a", "up")
    assert wait_for(lambda: uses("a"), timeout=40), one.show("bonds")
    # Without the limit both are used; a setting of a running router.
    apply(one, text % (1, ""))
    assert wait_for(lambda: uses("a", "b"), timeout=40), one.show("bonds")


def test_bonds_are_added_changed_and_removed_live(lab):
    plain = PORTS + NEIGHBOURS.replace('"lag"', '"a"').replace(
        'turnpike.neighbour "10.0.1.2"', 'turnpike.neighbour "10.0.1.2"')
    plain = plain.replace('"a"     { device = "tp-a" }', '"a" { device = "tp-a", address = "10.0.1.1/24" }')
    bonded = Bonded(lab, plain)
    assert bonded.router.show("bonds") == []
    changes, code = plan(bonded.router, bond("static"))
    assert code == 2 and "lag" in str(changes)
    apply(bonded.router, bond("static"))
    bonded.wait_active("a", "b")
    assert set(spread(bonded).values()) == {"a", "b"}
    apply(bonded.router, bond("active-backup", 'hash = "l2"'))
    bonded.wait_active("a")
    assert set(spread(bonded).values()) == {"a"}
    apply(bonded.router, bond("static").replace('{ "a", "b" }', '{ "b" }'))
    bonded.wait_active("b")
    bonded.router.command("rollback")
    bonded.wait_active("a")
    apply(bonded.router, plain)
    assert bonded.router.show("bonds") == []
    wait_for(lambda: bonded.interface("a")["link"] == "up")
    bonded.drain()
    bonded.right.send(flow(3))
    assert len(bonded.wires["a"].expect(1, lambda frame: frame[12:14] == b"\x08\x00")) == 1
    bonded.router.counters()


def test_wrong_bonds_are_refused_and_the_router_keeps_running(lab):
    bonded = Bonded(lab, bond("static"))
    bonded.wait_active("a", "b")
    message = refused(bonded.router, "apply", write(bonded.router, bond("static").replace('"b" }', '"c" }')))
    assert 'bond "lag": ports: port "c" unknown' in message
    assert len(spread(bonded)) == FLOWS


def test_the_packets_of_a_bond_are_mirrored_whichever_port_they_take(lab):
    bonded = Bonded(lab, bond("static"), start=False)
    span = lab.namespace("span", quiet=True)
    veth(bonded.inside, "tp-span", span, "wire", "02:00:00:00:0c:01", "02:00:00:00:0c:02")
    analyser = lab.raw(span, "wire")
    tap = 'turnpike.port "span" { device = "tp-span" }\nturnpike.mirror "tap" { from = "lag", to = "span" }\n'
    bonded.router = lab.router(bonded.inside, bond("static") + tap)
    bonded.wait_active("a", "b")
    ways = spread(bonded)
    assert set(ways.values()) == {"a", "b"}
    flows = lambda frame: frame[12:14] == b"\x08\x00" and frame[23] == 17  # noqa: E731
    copies = {number_of(frame)[0]: unpadded(frame) for frame in analyser.expect(FLOWS, flows)}
    assert copies == {number: unpadded(forwarded(flow(number), BOND_MAC, HOST_MAC)) for number in ways}
    for name in "ab":
        assert received_by(bonded, name)
        assert [unpadded(frame) for frame in analyser.expect(1, flows)] == [unpadded(back(7))]
    wrong = bond("static") + tap.replace('from = "lag"', 'from = "lag.5"') \
        + 'turnpike.vlan "lag.5" { parent = "lag", id = 5 }\n'
    error = refused(bonded.router, "apply", write(bonded.router, wrong))
    assert 'from: "lag.5" is a VLAN of a bond, whose packets are not mirrored alone; name bond "lag"' in error
    bonded.router.stop()

"""VLANs (IEEE 802.1Q, 802.1ad): frames with tags, byte for byte, at the wires of a router with VLANs on both ports."""

import struct

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires, ports_by
from lib.netns import veth, wait_for
from lib.packets import (
    ethernet, forwarded, icmp, icmp6, ipv4, ipv6, is_announcement, mac_bytes, pattern, tagged, udp, unpadded, untagged,
)
from lib.router import Change

SERVICE = 0x88A8

# Every network N has the router at 10.0.N.1 and fd00:N::1, and a host at .2 and ::2.
VLANS = """
turnpike.vlan "left.100"  { parent = "left", id = 100, address = { "10.0.100.1/24", "fd00:100::1/64" } }
turnpike.vlan "right.100" { parent = "right", id = 100, priority = 5, address = { "10.0.101.1/24", "fd00:101::1/64" } }
turnpike.vlan "s"         { parent = "right", id = 300, protocol = "802.1ad", address = { "10.0.30.1/24", "fd00:30::1/64" } }
turnpike.vlan "s.7"       { parent = "s", id = 7, address = { "10.0.37.1/24", "fd00:37::1/64" } }
"""

# Network, wire, and the tags of the frames that the router sends there, outer first.
NETWORKS = {
    1: ("left", []),
    2: ("right", []),
    100: ("left", [(0x8100, 0, 100)]),
    101: ("right", [(0x8100, 5, 100)]),
    30: ("right", [(SERVICE, 0, 300)]),
    37: ("right", [(SERVICE, 0, 300), (0x8100, 0, 7)]),
}

NAMES = {1: "left", 2: "right", 100: "left.100", 101: "right.100", 30: "s", 37: "s.7"}

MACS = {"left": (LEFT_MAC, HOST_A_MAC), "right": (RIGHT_MAC, HOST_B_MAC)}

NEIGHBOURS = "".join(
    f'turnpike.neighbour "{address}" {{ port = "{NAMES[network]}", mac = "{MACS[wire][1]}" }}\n'
    for network, (wire, _) in NETWORKS.items()
    for address in (f"10.0.{network}.2", f"fd00:{network}::2")
)


def with_tags(frame, tags):
    """A frame with these tags, outer first."""
    for protocol, priority, vlan in reversed(tags):
        frame = tagged(frame, vlan, protocol, priority)
    return frame


def frame_between(family, source, destination, length=200, ttl=64):
    """An untagged UDP frame from the host of one network to that of another, addressed to the router."""
    router, host = MACS[NETWORKS[source][0]]
    if family == 4:
        a, b = f"10.0.{source}.2", f"10.0.{destination}.2"
        return ethernet(router, host, 0x0800, ipv4(a, b, udp(a, b, 1000, 2000, pattern(length)), ttl=ttl))
    a, b = f"fd00:{source}::2", f"fd00:{destination}::2"
    return ethernet(router, host, 0x86DD, ipv6(a, b, udp(a, b, 1000, 2000, pattern(length)), hop_limit=ttl))


@pytest.fixture(scope="module", params=DRIVERS)
def wires(request, module_lab):
    # Kernel interfaces take one 802.1Q tag beyond their MTU, no other tags.
    vlans = VLANS.replace("id = ", "mtu = 1500, id = ")
    made = Wires(module_lab, vlans + NEIGHBOURS, ports=ports_by(request.param), mtu=(1508, 1508), calm=True)
    made.driver = request.param
    return made


@pytest.fixture(autouse=True)
def silence(request):
    if "wires" in request.fixturenames:
        request.getfixturevalue("wires").drain()


def interfaces(router):
    return {interface["name"]: interface for interface in router.show("interfaces")}


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("source", NETWORKS)
def test_frames_get_the_tags_of_the_network_that_they_leave_to(wires, source, family):
    in_wire, in_tags = NETWORKS[source]
    for destination, (out_wire, out_tags) in NETWORKS.items():
        if destination == source:
            continue
        before = interfaces(wires.router)
        frames = [frame_between(family, source, destination, length) for length in (18, 200, 1400)]
        # Frames come with any priority.
        sent = [with_tags(frame, [(protocol, 3, vlan) for protocol, _, vlan in in_tags]) for frame in frames]
        getattr(wires, in_wire).send(*sent)
        arrived = [untagged(frame) for frame in getattr(wires, out_wire).expect(len(frames))]
        router, host = MACS[out_wire]
        assert [tags for _, tags in arrived] == [out_tags] * len(frames), destination
        assert [unpadded(frame) for frame, _ in arrived] == [forwarded(frame, router, host) for frame in frames]
        # A port's own interface has all of its frames. They are counted after they were sent.
        of = [(NAMES[source], "rx_packets"), (NAMES[destination], "tx_packets")]

        def counted():
            after = interfaces(wires.router)
            return [after[name][key] - before[name][key] for name, key in of]

        assert wait_for(lambda: counted() == [len(frames)] * 2), counted()
    wires.router.counters()


def answer(wires, network, frame, match):
    """The frame, tagged as of the network, is answered there by a frame that `match` accepts, tagged alike."""
    wire, tags = NETWORKS[network]
    getattr(wires, wire).send(with_tags(frame, tags))
    (found,) = getattr(wires, wire).expect(1, lambda seen: match(untagged(seen)[0])) or [None]
    assert found is not None, wires.router.log()
    frame, seen = untagged(found)
    assert [(protocol, vlan) for protocol, _, vlan in seen] == [(protocol, vlan) for protocol, _, vlan in tags]
    return frame, seen


@pytest.mark.parametrize("network", [100, 101, 30, 37])
def test_the_router_speaks_arp_nd_and_icmp_in_each_vlan(wires, network):
    wire, tags = NETWORKS[network]
    router, host = MACS[wire]
    own, near = f"10.0.{network}.1", f"10.0.{network}.2"
    request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac_bytes(host) + bytes(map(int, near.split("."))) \
        + bytes(6) + bytes(map(int, own.split(".")))
    frame, seen = answer(wires, network, ethernet("ff:ff:ff:ff:ff:ff", host, 0x0806, request),
                         lambda frame: frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\x02")
    assert frame[22:28] == mac_bytes(router) and seen == tags
    own6, near6 = f"fd00:{network}::1", f"fd00:{network}::2"
    echo = ethernet(router, host, 0x0800, ipv4(near, own, icmp(8, 0, b"\0\1\0\2", b"data"), protocol=1))
    frame, seen = answer(wires, network, echo, lambda frame: frame[23] == 1 and frame[34] == 0)
    assert frame[26:30] == bytes(map(int, own.split("."))) and seen == tags
    echo = ethernet(router, host, 0x86DD, ipv6(near6, own6, icmp6(near6, own6, 128, 0, b"\0\1\0\2", b"data"),
                                               next_header=58))
    frame, seen = answer(wires, network, echo, lambda frame: frame[20] == 58 and frame[54] == 129)
    assert seen == tags
    # RFC 1812 5.3.1: an error comes from the VLAN's own address.
    expired = frame_between(4, network, 2, ttl=1)
    frame, seen = answer(wires, network, expired, lambda frame: frame[23] == 1 and frame[34] == 11)
    assert frame[26:30] == bytes(map(int, own.split("."))) and seen == tags


def test_an_address_of_another_vlan_is_not_answered_by_arp(wires):
    request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac_bytes(HOST_A_MAC) + bytes([10, 0, 1, 2]) + bytes(6) \
        + bytes([10, 0, 1, 1])
    wires.left.send(tagged(ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x0806, request), 100))
    assert not wires.left.expect(1, lambda frame: untagged(frame)[0][20:22] == b"\0\x02", 0.5)


@pytest.mark.parametrize("what, tags, reason", [
    ("a VLAN that the port does not have", [(0x8100, 0, 101)], "vlan-unknown"),
    ("a VLAN of the other port", [(SERVICE, 0, 300)], "vlan-unknown"),
    ("the last identifier, which is reserved", [(0x8100, 0, 4095)], "vlan-unknown"),
    ("two tags of which the outer is unknown", [(SERVICE, 0, 5), (0x8100, 0, 100)], "vlan-unknown"),
    ("two tags, the outer of a VLAN without VLANs on it", [(0x8100, 0, 100), (0x8100, 0, 100)], "vlan-unknown"),
    ("three tags", [(0x8100, 0, 100), (0x8100, 0, 100), (0x8100, 0, 100)], "vlan-unknown"),
    ("an outdated tag protocol", [(0x9100, 0, 100)], "unknown-ethertype"),
])
def test_tags_that_mean_nothing_are_dropped_by_name(wires, what, tags, reason):
    change = Change(wires.router)
    wires.left.send(*[with_tags(frame_between(family, 100, 2), tags) for family in (4, 6)])
    assert change(received=2) == {"received": 2, "dropped": {reason: 2}}, what


def test_a_priority_tag_is_no_vlan(wires):
    """IEEE 802.1Q 9.6: VLAN 0 means the port's own network."""
    for frame in (frame_between(4, 1, 2), frame_between(6, 1, 2)):
        wires.left.send(tagged(frame, 0, priority=6))
        (arrived,) = wires.right.expect(1)
        assert unpadded(arrived) == forwarded(frame, RIGHT_MAC, HOST_B_MAC)


def test_frames_cut_within_their_tags_are_dropped(wires):
    frame = tagged(tagged(frame_between(4, 37, 2), 7), 300, SERVICE)
    change = Change(wires.router)
    wires.right.send(*[frame[:length] for length in (16, 17, 18, 20, 21, 22)])
    # The kernel drops frames cut within a tag before a packet socket sees them.
    counted = change(received=6 if wires.driver == "af_xdp" else 3)
    assert set(counted) == {"received", "dropped"}, counted
    assert sum(counted["dropped"].values()) == counted["received"] >= 3, counted


def test_a_full_packet_fits_behind_two_tags(wires):
    frame = frame_between(4, 100, 37, 1472)
    assert len(frame) == 1514
    wires.left.send(tagged(frame, 100))
    (arrived,) = wires.right.expect(1)
    assert untagged(arrived) == (forwarded(frame, RIGHT_MAC, HOST_B_MAC), NETWORKS[37][1])
    wires.right.send(with_tags(frame_between(4, 37, 100, 1472), NETWORKS[37][1]))
    (arrived,) = wires.left.expect(1)
    assert len(arrived) == 1518 and untagged(arrived)[1] == NETWORKS[100][1]


def test_interfaces_are_shown_as_a_tree(wires):
    table = wires.router.command("show", "interfaces").stdout
    lines = [line.split()[0] for line in table.splitlines()[1:]]
    assert lines == ["left", "left.100", "right", "right.100", "s", "s.7"]
    indents = [len(line) - len(line.lstrip()) for line in table.splitlines()[1:]]
    assert [indent - indents[0] for indent in indents] == [0, 2, 0, 2, 2, 4]
    found = interfaces(wires.router)
    assert (found["s.7"]["kind"], found["s.7"]["parent"], found["s.7"]["link"]) == ("vlan", "s", "up")
    assert found["s"]["tag"] == {"protocol": "802.1ad", "id": 300, "priority": 0}
    assert found["right.100"]["addresses"] == ["10.0.101.1/24", "fd00:101::1/64"]
    assert "parent" not in found["left"] and "tag" not in found["left"]


# Changes made while frames pass between the ports' own networks.
CHANGES = {
    "added": (VLANS, VLANS + 'turnpike.vlan "new" { parent = "left", id = 9, address = "10.0.9.1/24" }\n'),
    "removed": (VLANS, VLANS.replace(VLANS.splitlines()[1], "")),
    "another identifier": (VLANS, VLANS.replace('"left", id = 100', '"left", id = 101')),
    "another port": (VLANS, VLANS.replace('parent = "left", id = 100', 'parent = "right", id = 400')),
    "the first": ("", VLANS),
    "the last": (VLANS, ""),
}


def base(vlans):
    """A configuration with these VLANs and static neighbours of the ports' own networks."""
    neighbours = "".join(line + "\n" for line in NEIGHBOURS.splitlines() if 'port = "left"' in line or 'port = "right"' in line)
    return ports_by("af_xdp") + vlans + neighbours


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_vlans_loses_no_frame_of_others(lab, what):
    before, after = CHANGES[what]
    wires = Wires(lab, base(before).removeprefix(ports_by("af_xdp")), ports=ports_by("af_xdp"), calm=True)
    router = wires.router
    wires.drain()
    for text, other in ((after, before), (before, after)):
        frames = [frame_between(4, 1, 2, 100 + number) for number in range(400)]
        running = router.begin("apply", write(router, base(text)))
        for frame in frames:
            wires.left.send(frame)
        assert running.wait(20) == 0, running.communicate()
        for frame in frames:
            wires.left.send(frame)
        arrived = wires.right.expect(800, lambda frame: frame[12:14] == b"\x08\x00")
        assert len(arrived) == 800, (text, router.log())
        assert plan(router, base(text))[1] == 0
        names = set(interfaces(router))
        assert names == {"left", "right"} | {name for name in NAMES.values() if f'"{name}"' in text} | (
            {"new"} if '"new"' in text else set())
        wires.drain()
    router.counters()
    router.stop()


def test_a_vlan_answers_by_its_new_identifier_only(lab):
    wires = Wires(lab, base(VLANS).removeprefix(ports_by("af_xdp")), ports=ports_by("af_xdp"), calm=True)
    echo = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800,
                    ipv4("10.0.100.2", "10.0.100.1", icmp(8, 0, b"\0\1\0\2", b"data"), protocol=1))
    request = ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x0806, struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
                       + mac_bytes(HOST_A_MAC) + bytes([10, 0, 100, 2]) + bytes(6) + bytes([10, 0, 100, 1]))

    def answered(vlan):
        wires.drain()
        wires.left.send(tagged(request, vlan), tagged(echo, vlan))
        seen = wires.left.expect(1, lambda frame: untagged(frame)[0][23] == 1 and untagged(frame)[0][34] == 0, 1.0)
        return [untagged(frame)[1][0][2] for frame in seen]

    assert (answered(100), answered(101)) == ([100], [])
    apply(wires.router, base(CHANGES["another identifier"][1]))
    assert (answered(100), answered(101)) == ([], [101])
    wires.router.stop()


def test_a_change_that_cannot_be_made_leaves_the_vlans_as_they_are(lab):
    wires = Wires(lab, base(VLANS).removeprefix(ports_by("af_xdp")), ports=ports_by("af_xdp"))
    router = wires.router
    for text, words in [
        (VLANS + 'turnpike.vlan "x" { parent = "left", id = 100 }\n', "is taken by vlan \"left.100\""),
        (VLANS + 'turnpike.vlan "x" { parent = "left", id = 5, mtu = 9000 }\n', "is larger than that of port \"left\""),
        (VLANS + 'turnpike.vlan "x" { parent = "lift", id = 5 }\n', 'parent "lift" unknown; did you mean "left"'),
        (VLANS + 'turnpike.vlan "x" { parent = "s.7", id = 5 }\n', "more than two tags"),
        (VLANS + 'turnpike.vlan "left" { parent = "right", id = 5 }\n', "the name is taken"),
        (VLANS + 'turnpike.vlan "x" { parent = "left", id = 4095 }\n', "4095"),
    ]:
        message = refused(router, "apply", write(router, base(text)))
        assert words in message, message
        assert set(interfaces(router)) == set(NAMES.values())
    router.stop()


def test_the_link_of_a_vlan_is_its_port_s(lab):
    wires = Wires(lab, base(VLANS).removeprefix(ports_by("af_xdp")), ports=ports_by("af_xdp"))
    router = wires.router

    def links():
        return {name: found["link"] for name, found in interfaces(router).items()}

    assert wait_for(lambda: set(links().values()) == {"up"}, 20), links()
    wires.ns_right.run("ip", "link", "set", "wire", "down")
    right = {"right", "right.100", "s", "s.7"}
    assert wait_for(lambda: {name for name, link in links().items() if link == "down"} == right, 20), links()
    kinds = {network: router.show("route", f"10.0.{network}.7")["type"] for network in NETWORKS}
    assert {network for network, kind in kinds.items() if kind == "no-route"} == {2, 101, 30, 37}, kinds
    wires.ns_right.run("ip", "link", "set", "wire", "up")
    assert wait_for(lambda: set(links().values()) == {"up"}, 20), links()
    assert router.show("route", "10.0.37.7")["type"] != "no-route"
    router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_vlans_return_with_their_device(lab, driver):
    """A device that is removed takes its VLANs along; the next one of its name may have another MAC."""
    other = "02:00:00:00:02:99"
    vlans = VLANS.replace("id = ", "mtu = 1490, id = ")
    wires = Wires(lab, vlans + NEIGHBOURS, ports=ports_by(driver), calm=True)
    router = wires.router
    right = {"right", "right.100", "s", "s.7"}

    def links():
        return {name: found["link"] for name, found in interfaces(router).items()}

    wires.inside.run("ip", "link", "del", "tp-right")
    assert wait_for(lambda: {name for name, link in links().items() if link == "gone"} == right, 20), links()
    assert router.show("route", "10.0.37.7")["type"] == "no-route"
    wires.left.send(frame_between(4, 1, 37))
    veth(wires.inside, "tp-right", wires.ns_right, "wire", other, HOST_B_MAC)
    wires.right = lab.raw(wires.ns_right, "wire", is_announcement)
    assert wait_for(lambda: set(links().values()) == {"up"}, 20), (links(), router.log())
    assert {found["mac"] for name, found in interfaces(router).items() if name in right} == {other}
    for network in (101, 37):
        frame = frame_between(4, 1, network)
        wires.left.send(frame)
        (arrived,) = wires.right.expect(1, lambda seen: untagged(seen)[0][12:14] == b"\x08\x00", 10)
        assert untagged(arrived) == (forwarded(frame, other, HOST_B_MAC), NETWORKS[network][1])
    router.counters()
    router.stop()

"""Mirror sessions (SPAN, ERSPAN): the analyser has the frames that a port received or sent, or that match a rule, byte
for byte, and what is mirrored is not affected."""

import re
import socket
import time

import pytest
from scapy.contrib.erspan import ERSPAN_II
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, Ether

from lib.apply import apply, plan, refused, write
from lib.lab import (
    ANNOUNCING_SECONDS, DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires, ports_by,
)
from lib.netns import held_thread, veth, wait_for
from lib.packets import checksum, ethernet, forwarded, icmp, ipv4, ipv6, mac_bytes, pattern, tagged, udp
from lib.router import Change

SPAN_MAC, ANALYSER_MAC = "02:00:00:00:03:01", "02:00:00:00:03:02"

TAP = 'turnpike.mirror "tap" { from = "left", direction = "inward", to = "span" }\n'

VLANS = """
turnpike.vlan "left.100" { parent = "left", id = 100, address = "10.0.100.1/24" }
turnpike.vlan "right.200" { parent = "right", id = 200, priority = 3, address = "10.0.200.1/24" }
turnpike.neighbour "10.0.200.2" { port = "right.200", mac = "02:00:00:00:02:02" }
"""


class Tapped(Wires):
    """A router between two raw wires, with a third port whose wire is the analyser's."""

    def __init__(self, lab, config, driver="af_xdp", mtu=1500, left="", **options):
        super().__init__(lab, mtu=(mtu, mtu), start=False)
        self.ns_span = lab.namespace("span", quiet=True)
        veth(self.inside, "tp-span", self.ns_span, "wire", SPAN_MAC, ANALYSER_MAC, mtu)
        self.span = lab.raw(self.ns_span, "wire")
        ports, chosen = (ports_by(driver), f', driver = "{driver}"') if driver else (PORTS, "")
        self.ports = ports.replace('"fd00:1::1/64" }', f'"fd00:1::1/64" }}{left}') + STATIC_NEIGHBOURS
        self.ports += f'turnpike.port "span" {{ device = "tp-span"{chosen} }}\n'
        self.router = lab.router(self.inside, self.ports + config, **options)
        time.sleep(ANNOUNCING_SECONDS)
        self.drain()

    def drain(self):
        super().drain()
        self.span.drain()


def frame_4(length=100, ttl=64, destination="10.0.2.2", source="10.0.1.2", number=0, mac=LEFT_MAC, host=HOST_A_MAC):
    data = udp(source, destination, 1000, 2000, pattern(length, number))
    return ethernet(mac, host, 0x0800, ipv4(source, destination, data, ttl=ttl, ident=number))


def frame_6(length=100, hop_limit=64, destination="fd00:2::2"):
    source = "fd00:1::2"
    data = udp(source, destination, 1000, 2000, pattern(length))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(source, destination, data, hop_limit=hop_limit))


def on_right(frame):
    return forwarded(frame, RIGHT_MAC, HOST_B_MAC)


def session(router, name="tap"):
    (found,) = [mirror for mirror in router.show("mirrors") if mirror["name"] == name]
    return found


FILTER = """
turnpike.filter "no-9" { { proto = "udp", to_port = 9, action = "drop" }, default = "accept" }
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_received_frames_are_copied_as_they_came_whatever_becomes_of_them(lab, driver):
    wires = Tapped(lab, TAP + FILTER, driver, left=', filter = "no-9"')
    router = wires.router
    # Lengths around those from which on bytes are shared, and of full frames.
    lengths = [0, 18, 85, 86, 87, 213, 214, 215, 600, 1472]
    passing = [make(length) for make in (frame_4, frame_6) for length in lengths if length < 1460 or make is frame_4]
    dropped = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", udp(
        "10.0.1.2", "10.0.2.2", 1000, 9, pattern(900))))
    wrong = bytearray(frame_4(700))
    wrong[24] ^= 1
    request = icmp(8, 0, b"\0\1\0\2", pattern(1000))
    others = [
        frame_4(1200, ttl=1),
        frame_6(1200, hop_limit=1),
        frame_4(1200, destination="198.51.100.7"),
        dropped,
        bytes(wrong),
        ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.1.1", request, protocol=1)),
        ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x88B5, pattern(500)),
    ]
    change = Change(router)
    wires.left.send(*passing, *others)
    frames = passing + others
    assert wires.span.expect(len(frames)) == frames
    assert wires.right.expect(len(passing)) == [on_right(frame) for frame in passing]
    # Three ICMP errors and the answer, as without a mirror.
    answers = wires.left.expect(4)
    replies = [frame[34:] for frame in answers if frame[12:14] == b"\x08\0" and frame[34] == 0]
    assert len(answers) == 4 and replies == [icmp(0, 0, b"\0\1\0\2", pattern(1000))]
    changes = change(received=len(frames))
    assert changes["replicated"] == len(frames)
    assert changes["dropped"]["filtered"] == 1 and "mirror-lost" not in changes["dropped"]
    shown = session(router)
    assert (shown["from"], shown["direction"], shown["to"]) == (["left"], "inward", "span")
    assert (shown["packets"], shown["bytes"]) == (len(frames), sum(map(len, frames)))
    assert (shown["sample"], shown["dropped"]) == (1, 0) and "vlan" not in shown
    text = router.command("show", "mirrors").stdout
    assert re.search(rf"^\s*tap\s+left\s+inward\s+span\s+1/1\s+-\s+{len(frames)}\s", text, re.M), text
    router.stop()


def test_a_stream_is_complete_at_both_wires_and_in_order(lab):
    wires = Tapped(lab, TAP)
    frames = [frame_4(40 + n * 13 % 1400, number=n) for n in range(3000)]
    arrived = []
    for begin in range(0, len(frames), 50):
        # In steps: a forwarder without a core for a moment must not miss any.
        wires.left.send(*frames[begin:begin + 50])
        arrived += wires.right.expect(50, timeout=20)
    assert arrived == [on_right(frame) for frame in frames]
    assert wires.span.expect(len(frames), timeout=20) == frames
    # Nothing else leaves by the analyser's port.
    assert wires.span.receive(0.1) == []
    wires.router.counters()
    wires.router.stop()


def test_jumbo_frames_are_copied_whole(lab):
    wires = Tapped(lab, TAP, driver=None, mtu=9000)
    frames = [frame_4(length) for length in (1946 - 28, 2034, 2048, 4096, 8972)]
    wires.left.send(*frames)
    assert wires.span.expect(len(frames)) == frames
    assert wires.right.expect(len(frames)) == [on_right(frame) for frame in frames]
    wires.router.counters()
    wires.router.stop()


def test_one_of_so_many_packets_is_copied(lab):
    wires = Tapped(lab, TAP.replace("to =", "sample = 10, to ="))
    frames = [frame_4(100, number=n) for n in range(300)]
    wires.left.send(*frames)
    assert wires.right.expect(300) == [on_right(frame) for frame in frames]
    assert wires.span.expect(30) == frames[::10]
    assert wires.span.receive(0.1) == []
    assert session(wires.router)["packets"] == 30
    wires.router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_tags_are_mirrored_and_vlans_are_told_apart(lab, driver):
    mirrors = 'turnpike.mirror "tap" { from = "left", direction = "inward", to = "span" }\n'
    wires = Tapped(lab, VLANS + mirrors, driver)
    plain = frame_4(600)
    in_100 = tagged(frame_4(600, source="10.0.100.2"), 100, priority=5)
    unknown = tagged(frame_4(600), 101)
    frames = [plain, in_100, unknown]
    wires.left.send(*frames)
    assert wires.span.expect(3) == frames, "the port with its VLANs"
    only = mirrors.replace('from = "left"', 'from = "left.100"')
    apply(wires.router, wires.ports + VLANS + only)
    wires.drain()
    wires.left.send(*frames)
    assert wires.span.expect(1) == [in_100]
    # RSPAN: copies have a tag of their own in front.
    apply(wires.router, wires.ports + VLANS + mirrors.replace("to =", "vlan = 999, to ="))
    wires.drain()
    wires.left.send(*frames)
    assert wires.span.expect(3) == [tagged(frame, 999) for frame in frames]
    assert wires.span.receive(0.1) == []
    wires.router.counters()
    wires.router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_sent_frames_are_copied_as_they_leave_also_those_of_the_router(lab, driver):
    both = """
turnpike.mirror "out" { from = { "right", "left" }, direction = "outward", to = "span" }
"""
    wires = Tapped(lab, VLANS + both, driver)
    frames = [frame_4(600), frame_6(18), frame_4(300, destination="10.0.200.2")]
    wires.left.send(*frames)
    seen = wires.right.expect(3)
    to_200 = tagged(on_right(frames[2]), 200, priority=3)
    assert seen == [on_right(frames[0]), on_right(frames[1]), to_200]
    assert wires.span.expect(3) == seen
    # An ICMP error and an echo reply.
    echo = icmp(8, 0, b"\0\1\0\2", b"data")
    wires.left.send(frame_4(600, ttl=1), ethernet(LEFT_MAC, HOST_A_MAC, 0x0800,
                                                   ipv4("10.0.1.2", "10.0.1.1", echo, protocol=1)))
    answers = wires.left.expect(2)
    assert len(answers) == 2 and wires.span.expect(2) == answers
    only = both.replace('{ "right", "left" }', '"right.200"')
    apply(wires.router, wires.ports + VLANS + only)
    wires.drain()
    wires.left.send(*frames)
    assert len(wires.right.expect(3)) == 3
    assert wires.span.expect(1) == [to_200]
    assert wires.span.receive(0.1) == []
    wires.router.counters()
    wires.router.stop()


def test_both_directions_of_a_port(lab):
    wires = Tapped(lab, 'turnpike.mirror "tap" { from = "right", to = "span" }\n')
    there, back = frame_4(500), ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, ipv4(
        "10.0.2.2", "10.0.1.2", udp("10.0.2.2", "10.0.1.2", 2000, 1000, pattern(500))))
    before = session(wires.router)["packets"]
    wires.left.send(there)
    assert wires.span.expect(1) == wires.right.expect(1) == [on_right(there)]
    wires.right.send(back)
    assert wires.span.expect(1) == [back]
    assert wires.left.expect(1) == [forwarded(back, LEFT_MAC, HOST_A_MAC)]
    assert session(wires.router)["packets"] == before + 2
    wires.router.stop()


def test_multicast_copies_are_mirrored_once_each(lab):
    group = 'turnpike.multicast "239.1.1.1" { from = "left", to = "right" }\n'
    wires = Tapped(lab, group + 'turnpike.mirror "tap" { from = { "left", "right" }, to = "span" }\n')
    data = udp("10.0.1.2", "239.1.1.1", 1, 2, pattern(700))
    frame = ethernet("01:00:5e:01:01:01", HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "239.1.1.1", data, ttl=9))
    wires.left.send(frame)
    (sent,) = wires.right.expect(1)
    assert sorted(wires.span.expect(2)) == sorted([frame, sent])
    wires.router.counters()
    wires.router.stop()


@pytest.mark.provokes("mirror-destination")
def test_frames_received_from_the_analyser_are_dropped(lab):
    wires = Tapped(lab, TAP)
    change = Change(wires.router)
    frames = [frame_4(100, mac=SPAN_MAC, host=ANALYSER_MAC), ethernet("ff:ff:ff:ff:ff:ff", ANALYSER_MAC, 0x0806, bytes(46))]
    wires.span.send(*frames)
    changes = change(received=2)
    # The router reports the groups of the port, which nobody is to receive.
    own = changes.get("originated", 0)
    assert changes["received"] == 2 and changes["dropped"] == {"mirror-destination": 2 + own}, changes
    assert wires.silent() and wires.span.receive(0.05) == []
    wires.router.stop()


@pytest.mark.provokes("mirror-lost")
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_analyser_that_takes_nothing_costs_the_traffic_nothing(lab, driver):
    wires = Tapped(lab, TAP, driver)
    router, count = wires.router, 0

    def full():
        # A device that is down accepts nothing. The thread that would notice is held meanwhile.
        nonlocal count
        with held_thread(router.process.pid):
            wires.inside.run("ip", "link", "set", "tp-span", "down")
            frames = [frame_4(300, number=n) for n in range(3000)]
            arrived = []
            for begin in range(0, len(frames), 50):
                # In steps: a forwarder without a core for a moment must not miss any.
                wires.left.send(*frames[begin:begin + 50])
                arrived += wires.right.expect(50, timeout=20)
        wires.inside.run("ip", "link", "set", "tp-span", "up")
        assert arrived == [on_right(frame) for frame in frames]
        count += len(frames)
        return router.show("counters")["dropped"]["mirror-lost"] > 0

    assert wait_for(full, 60)
    counters = router.counters()
    shown = session(router)
    assert counters["dropped"]["mirror-lost"] == shown["dropped"] > 0
    assert shown["packets"] == count == counters["replicated"]
    assert counters["dropped"]["tx-full"] == 0
    router.stop()


def test_sessions_come_and_go_while_packets_flow(lab):
    wires = Tapped(lab, "")
    router = wires.router
    assert router.show("mirrors") == [] and "no packets are mirrored" in router.command("show", "mirrors").stdout
    steps = [step["name"] for step in router.show("graph")["steps"]]
    assert "mirror-in" not in steps
    report, code = plan(router, wires.ports + TAP)
    assert code == 2 and [change["live"] for change in report["changes"]] == [True], report
    assert "mirror \"tap\"" in report["changes"][0]["what"]
    frames = [frame_4(700, number=n) for n in range(5)]

    def passes(copies):
        wires.drain()
        wires.left.send(*frames)
        assert wires.right.expect(5) == [on_right(frame) for frame in frames]
        assert wires.span.receive(0.2) == copies

    passes([])
    apply(router, wires.ports + TAP)
    assert [step["name"] for step in router.show("graph")["steps"]][0] == "mirror-in"
    passes(frames)
    apply(router, wires.ports + TAP.replace("to =", "sample = 5, vlan = 7, to ="))
    passes([tagged(frames[0], 7)])
    assert session(router)["packets"] == 6, "the session's counts go on"
    router.command("rollback")
    passes(frames)
    # A session that is refused changes nothing.
    said = refused(router, "apply", write(router, wires.ports + TAP.replace('to = "span"', 'to = "right"')))
    assert 'mirror "tap": to: port "right" has addresses' in said, said
    passes(frames)
    apply(router, wires.ports)
    passes([])
    assert router.show("mirrors") == []
    router.counters()
    router.stop()


def test_packets_for_the_slow_path_and_other_forwarders_are_not_harmed(lab):
    # Two forwarders: packets leave by the port of the other one, in a ring, and so do copies.
    wires = Tapped(lab, TAP + 'turnpike.forwarders { cores = "0,1" }\n', "af_packet")
    frames = [frame_4(900, number=n) for n in range(200)]
    echo = [ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(
        "10.0.1.2", "10.0.1.1", icmp(8, 0, n.to_bytes(4), pattern(1000)), protocol=1)) for n in range(20)]
    change = Change(wires.router)
    wires.left.send(*frames, *echo)
    assert sorted(wires.span.expect(220)) == sorted(frames + echo)
    assert wires.right.expect(200) == [on_right(frame) for frame in frames]
    assert len(wires.left.expect(20)) == 20
    changes = change(received=220)
    assert "dropped" not in changes, changes
    wires.router.stop()


def test_steps_in_lua_that_write_data_do_not_change_copies(lab):
    wires = Tapped(lab, TAP)
    blot = """
local blot = turnpike.step "blot" {
  process = function(batch, mask)
    for i in batch:each(mask) do batch:set_u8(i, 500, 0xee) end
    return mask
  end,
}
turnpike.graph:insert_after("ip4-validate", blot)
"""
    apply(wires.router, wires.ports + TAP + blot)
    wires.drain()
    frame = frame_4(900)
    wires.left.send(frame)
    (sent,) = wires.right.expect(1)
    assert sent[500] == 0xEE and wires.span.expect(1) == [frame]
    wires.router.stop()


ANALYSER_PORT = f"""
turnpike.port "far" {{ device = "tp-far", address = {{ "10.0.3.1/24", "fd00:3::1/64" }} }}
"""


class Far(Wires):
    """A router between two raw wires, with a third port that leads to a Linux host: the analyser, behind a router."""

    def __init__(self, lab, config, mtu=1500, driver=None, **options):
        super().__init__(lab, start=False)
        self.analyser = lab.namespace("analyser")
        veth(self.inside, "tp-far", self.analyser, "eth0", SPAN_MAC, ANALYSER_MAC, mtu)
        for command in (
            "ip address add 10.0.3.2/24 dev eth0", "ip address add fd00:3::2/64 dev eth0 nodad",
            "ip address add 198.51.100.9/32 dev lo", "ip address add 2001:db8:9::9/128 dev lo",
        ):
            self.analyser.run(*command.split())
        self.wire = lab.raw(self.analyser, "eth0", lambda frame: frame[12:14] not in (b"\x08\0", b"\x86\xdd") or
                            frame[23 if frame[12:14] == b"\x08\0" else 20] != 47)
        chosen = f', driver = "{driver}"' if driver else ""
        self.ports = (ports_by(driver) if driver else PORTS) + STATIC_NEIGHBOURS
        self.ports += ANALYSER_PORT.replace(" }\n", f"{chosen} }}\n") + """
turnpike.route "198.51.100.0/24" { via = "10.0.3.2" }
turnpike.route "2001:db8:9::/48" { via = "fd00:3::2" }
"""
        self.router = lab.router(self.inside, self.ports + config, **options)
        time.sleep(ANNOUNCING_SECONDS)
        assert wait_for(lambda: all(of["erspan"]["reachable"] for of in self.router.show("mirrors")))
        self.drain()

    def drain(self):
        super().drain()
        self.wire.drain()

    def copies(self, count, **options):
        """The next copies, as scapy decodes them."""
        return [Ether(frame) for frame in self.wire.expect(count, **options)]


def erspan_to(address="198.51.100.9", source="10.0.3.1", name="remote", start='from = "left", direction = "inward", ', more=""):
    return f'turnpike.mirror "{name}" {{ {start}erspan = {{ to = "{address}", source = "{source}", id = 77{more} }} }}\n'


def decoded(packet, network=IP):
    """The fields of an ERSPAN packet, and the frame in it."""
    gre, erspan = packet[GRE], packet[ERSPAN_II]
    assert (gre.proto, gre.seqnum_present, gre.chksum_present, gre.key_present) == (0x88BE, 1, 0, 0)
    assert (erspan.ver, erspan.session_id) == (1, 77)
    frame = bytes(erspan.payload)
    outer = packet[network]
    assert outer.src in ("10.0.3.1", "fd00:3::1")
    if network is IP:
        assert checksum(bytes(outer)[:20]) == 0 and outer.flags == "DF" and outer.len == len(bytes(outer))
    return {"frame": frame, "sequence": gre.sequence_number, "vlan": erspan.vlan, "cos": erspan.cos, "en": erspan.en,
            "cut": bool(erspan.t), "index": erspan.index, "ttl": outer.ttl if network is IP else outer.hlim,
            "class": outer.tos if network is IP else outer.tc}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("network", [IP, IPv6])
def test_an_analyser_behind_routers_gets_frames_in_erspan(lab, driver, network):
    address, source = {IP: ("198.51.100.9", "10.0.3.1"), IPv6: ("2001:db8:9::9", "fd00:3::1")}[network]
    wires = Far(lab, VLANS.replace("10.0.200", "10.0.201") + erspan_to(address, source, more=', dscp = "cs1", ttl = 9'),
                driver=driver)
    change = Change(wires.router)
    # Lengths around those from which on bytes are shared.
    frames = [frame_4(length) for length in (0, 18, 85, 86, 87, 213, 214, 215, 600, 1300)]
    frames += [tagged(frame_4(600, source="10.0.100.2"), 100, priority=5), frame_4(300, ttl=1)]
    wires.left.send(*frames)
    copies = [decoded(packet, network) for packet in wires.copies(len(frames))]
    assert [copy["frame"] for copy in copies] == frames
    assert [copy["sequence"] for copy in copies] == list(range(len(frames)))
    assert {(copy["ttl"], copy["class"], copy["index"], copy["cut"]) for copy in copies} == {(9, 8 << 2, 0, False)}
    assert [(copy["vlan"], copy["cos"], copy["en"]) for copy in copies] == [(0, 0, 0)] * 10 + [(100, 5, 3), (0, 0, 0)]
    assert wires.right.expect(11)[:10] == [on_right(frame) for frame in frames[:10]]
    changes = change(received=len(frames))
    assert "mirror-lost" not in changes["dropped"]
    shown = session(wires.router, "remote")
    assert (shown["to"], shown["erspan"]["source"], shown["erspan"]["id"]) == (address, source, 77)
    assert shown["packets"] == len(frames) and shown["dropped"] == 0
    text = wires.router.command("show", "mirrors").stdout
    assert re.search(rf"^\s*remote\s+left\s+inward\s+{address} \(erspan 77\)\s+1/1\s", text, re.M), text
    wires.router.stop()


def test_frames_too_long_for_the_way_are_cut_and_the_traffic_is_not(lab):
    wires = Far(lab, erspan_to())
    # MTU 1500, less the headers of IPv4, GRE and ERSPAN.
    room = 1500 - 36
    frames = [frame_4(length) for length in (room - 42, room - 41, 1472)]
    wires.left.send(*frames)
    copies = [decoded(packet) for packet in wires.copies(3)]
    assert [(copy["frame"], copy["cut"]) for copy in copies] == [
        (frame[:room], len(frame) > room) for frame in frames]
    assert wires.right.expect(3) == [on_right(frame) for frame in frames]
    apply(wires.router, wires.ports + erspan_to(more=", length = 128"))
    wires.drain()
    wires.left.send(*frames)
    copies = [decoded(packet) for packet in wires.copies(3)]
    assert [(copy["frame"], copy["cut"]) for copy in copies] == [(frame[:128], True) for frame in frames]
    assert [copy["sequence"] for copy in copies] == [3, 4, 5], "the sequence goes on"
    assert wires.right.expect(3) == [on_right(frame) for frame in frames]
    wires.router.counters()
    wires.router.stop()


def test_copies_that_leave_by_a_mirrored_port_are_not_mirrored(lab):
    # Packets to the analyser's network and copies leave by one port.
    both = erspan_to(start='from = { "far", "left" }, ')
    wires = Far(lab, both + 'turnpike.forwarders { cores = "0,1" }\n')
    frames = [frame_4(900, destination="198.51.100.7", number=n) for n in range(50)]
    # Its kernel has no use for GRE and says so, which is mirrored as well. Destinations in the copies are at 80.
    of_ours = lambda frame: frame[23] == 47 and frame[80:84] == socket.inet_aton("198.51.100.7")  # noqa: E731
    wires.left.send(*frames)
    inner = [decoded(packet) for packet in wires.copies(100, match=of_ours)]
    assert [copy["frame"] for copy in inner if copy["index"] == 0] == frames
    sent = [copy["frame"] for copy in inner if copy["index"] == 2 << 1 | 1]
    assert sent == [forwarded(frame, SPAN_MAC, ANALYSER_MAC) for frame in frames]
    assert wires.wire.expect(1, of_ours, timeout=0.1) == []
    wires.router.counters()
    wires.router.stop()


def test_an_analyser_in_a_vrf_on_a_vlan(lab):
    tagged_port = """
turnpike.vrf "mgmt" {}
turnpike.port "far" { device = "tp-far" }
turnpike.vlan "far.9" { parent = "far", id = 9, address = "10.0.9.1/24", vrf = "mgmt" }
turnpike.neighbour "10.0.9.2" { port = "far.9", mac = "%s" }
""" % ANALYSER_MAC
    wires = Far(lab, "")
    ports = PORTS + STATIC_NEIGHBOURS + tagged_port
    apply(wires.router, ports + erspan_to("10.0.9.2", "10.0.9.1", more=', vrf = "mgmt"'))
    wire = lab.raw(wires.analyser, "eth0", lambda frame: b"\x88\xbe" not in frame[:60])
    frame = frame_4(700)
    wires.left.send(frame)
    (seen,) = wire.expect(1)
    assert seen[:18] == mac_bytes(ANALYSER_MAC) + mac_bytes(SPAN_MAC) + bytes.fromhex("8100 0009 0800")
    assert seen[54:] == frame
    # The same address in another VRF is not reached.
    apply(wires.router, ports + erspan_to("10.0.9.2", "10.0.9.1"))
    assert session(wires.router, "remote")["erspan"]["reachable"] is False
    assert "(erspan 77, unreachable)" in wires.router.command("show", "mirrors").stdout
    wires.left.send(frame)
    assert wait_for(lambda: session(wires.router, "remote")["dropped"] == 1)
    assert wire.receive(0.1) == []
    assert wires.router.counters()["dropped"]["mirror-lost"] == 1
    wires.router.stop()


def test_copies_follow_the_routes_to_the_analyser(lab):
    wires = Far(lab, erspan_to())
    frame = frame_4(500)
    wires.left.send(frame)
    assert [decoded(packet)["frame"] for packet in wires.copies(1)] == [frame]
    # By another port: the raw wire on the right.
    wires.router.command("route", "add", "198.51.100.9/32", "via", "10.0.2.2")
    wires.drain()
    wires.left.send(frame)
    seen = wires.right.expect(2)
    (copy,) = [Ether(seen) for seen in seen if seen[23] == 47]
    assert (copy.dst, copy.src) == (HOST_B_MAC, RIGHT_MAC) and bytes(copy[ERSPAN_II].payload) == frame
    # No route at all: traffic goes on.
    wires.router.command("route", "del", "198.51.100.9/32")
    apply(wires.router, wires.ports.replace('turnpike.route "198.51.100.0/24" { via = "10.0.3.2" }', "") + erspan_to())
    assert session(wires.router, "remote")["erspan"]["reachable"] is False
    wires.drain()
    wires.left.send(frame)
    assert wires.right.expect(1) == [on_right(frame)]
    assert wait_for(lambda: session(wires.router, "remote")["dropped"] == 1)
    wires.router.counters()
    wires.router.stop()


def test_rules_of_filters_mirror_to_sessions(lab):
    rules = """
turnpike.filter "some" {
  { proto = "udp", to_port = 2000, mirror = "remote", action = "continue" },
  { proto = "udp", to_port = 2000, length = "0-500" , mirror = "rare" },
  { proto = "udp", to_port = 9, mirror = "remote", action = "drop" },
}
"""
    mirrors = erspan_to(start="") + erspan_to(name="rare", start="sample = 2, ", more=", length = 100")
    wires = Far(lab, "")
    with_filter = wires.ports.replace('"fd00:1::1/64" }', '"fd00:1::1/64" }, filter = "some"')
    apply(wires.router, with_filter + rules + mirrors)
    wires.drain()
    data = udp("10.0.1.2", "10.0.2.2", 1000, 9, pattern(900))
    dropped = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data))
    data = udp("10.0.1.2", "10.0.2.2", 1000, 53, pattern(900))
    other = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data))
    short, long = [frame_4(200, number=n) for n in range(2)], frame_4(1000)
    change = Change(wires.router)
    wires.left.send(*short, long, dropped, other)
    frames = [decoded(packet)["frame"] for packet in wires.copies(5)]
    assert sorted(frames) == sorted([*short, short[0][:100], long, dropped])
    assert wires.right.expect(4) == [on_right(frame) for frame in (*short, long, other)]
    assert change(received=5)["replicated"] == 5
    assert session(wires.router, "remote")["packets"] == 4 and session(wires.router, "rare")["packets"] == 1
    assert re.search(r"^\s*remote\s+rules\s", wires.router.command("show", "mirrors").stdout, re.M)
    said = refused(wires.router, "apply", write(wires.router, with_filter + rules + erspan_to(start="")))
    assert 'mirror: "rare" unknown' in said, said
    wires.router.stop()


@pytest.mark.parametrize("text, message", [
    ('from = "wan", to = "span"', 'from: "wan" unknown'),
    ('from = "left", to = "spam"', 'to: "spam" unknown'),
    ('from = "left"', "to missing"),
    ('to = "span"', "from missing"),
    ('from = "left", to = "right"', 'port "right" has addresses'),
    ('from = { "left", "span" }, to = "span"', 'port "span" is mirrored itself'),
    ('from = "left", to = "span", direction = "sideways"', 'direction "sideways" unknown'),
    ('from = "left", to = "span", sample = 0', "sample"),
    ('from = "left", to = "span", vlan = 0', "vlan"),
    ('from = "left", to = "span", erspan = { to = "192.0.2.1" }', "to and erspan: copies have one destination"),
    ('from = "left", erspan = { to = "239.1.1.1", source = "10.0.1.1", id = 1 }', "239.1.1.1 is no address of a host"),
    ('from = "left", erspan = { to = "192.0.2.1", source = "10.0.1.1" }', "id missing"),
    ('from = "left", vlan = 5, erspan = { to = "192.0.2.1", source = "10.0.1.1", id = 1 }', "vlan: copies by the routes"),
])
def test_bad_sessions_are_refused(wires, text, message):
    config = f'turnpike.port "span" {{ device = "tp-span" }}\nturnpike.mirror "tap" {{ {text} }}\n'
    said = refused(wires.router, "apply", write(wires.router, PORTS + config))
    assert message in said, said


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab)

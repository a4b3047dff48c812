"""Rules of filters that select a forwarder, on a port whose device has several receive queues: the device brings their
packets to a queue of that forwarder, and software hands over those that the device brings elsewhere.

The device is `flow_device/flow_device.c`, whose table leads to its first queue alone.
"""

import re

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, PadN
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply, plan, refused, write
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from lib.netns import wait_for
from lib.packets import forwarded
from lib.router import Change
from test_control_queue import ports
from test_hardware_filters import A4, A6, B4, B6, LIBRARY, Device, where

CORES = 'turnpike.forwarders { cores = "0,1", rebalance = false }\n'
FILTER = """
turnpike.filter "edge-in" {
  { name = "first", proto = "udp", to_port = 5, from = "10.0.1.0/24" },
  { name = "tunnel", proto = "udp", to_port = 4789, forwarder = 1, police = "1000kpps" },
  { name = "zero", proto = "udp", to_port = 7, forwarder = 0, action = "continue" },
  { name = "behind", proto = "udp", to_port = "4-5", forwarder = 1 },
  { name = "gone", proto = "udp", to_port = 9, action = "drop" },
  { name = "length", proto = "udp", to_port = 11, length = "1000-1500", forwarder = 1 },
  { name = "frames", ethertype = 0x9000, forwarder = 1 },
  { name = "no-frames", ethertype = 0x9001, action = "drop" },
  { name = "some-frames", ethertype = 0x9002, from_mac = "02:00:00:00:01:02", forwarder = 1 },
}
"""
STEERED = ', filter = { inward = "edge-in", hardware = true }, rx_queues = 2'
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


def start(lab, directory, settings=STEERED, config=FILTER + CORES, **options):
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is missing: run make {LIBRARY}")
    device = Device(directory)
    env = device.env(port="net_af_packet0", queues="1", **options)
    wires = Wires(lab, config, ports=ports(settings), calm=True, env=env)
    wires.device = device
    assert [one["rx"] for one in wires.router.show("forwarders")["forwarders"]] == [["left:0", "right:0"], ["left:1"]]
    # The device has been given all its rules.
    assert wait_for(lambda: "select forwarders are in hardware" in wires.router.log(), 10)
    return wires


def came(wires, frames, passing=None):
    """Packets processed by each forwarder, and those that the first one handed over, of these frames."""
    passing = len(frames) if passing is None else passing
    shown = lambda: wires.router.show("forwarders")["forwarders"]  # noqa: E731
    before = shown()
    wires.left.send(*frames)
    # Flows may overtake each other on the device's two queues.
    assert sorted(wires.right.expect(passing)) == sorted(
        forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in frames[:passing])
    after = shown()
    more = lambda what: [new[what] - old[what] for old, new in zip(before, after)]  # noqa: E731
    return more("packets"), more("spread_out")[0]


def to(port, count=10, length=40):
    packets = (IP(src=A4, dst=B4, id=number) / UDP(sport=1000 + number, dport=port) / Raw(b"x" * length)
               for number in range(count))
    return [bytes(LINK / packet) for packet in packets]


@pytest.mark.provokes("filtered")
def test_the_device_brings_packets_to_the_forwarder_that_a_rule_selects(lab, tmp_path):
    wires = start(lab, tmp_path)
    router = wires.router
    assert where(router, "tunnel") == (2, 2, "") and where(router, "zero") == (2, 2, "")
    assert came(wires, to(4789)) == ([0, 10], 0), "no ring"
    assert came(wires, to(7)) == ([10, 0], 0)
    assert came(wires, to(1)) == ([10, 0], 0), "as the table says"
    assert len(wires.device.lines("brought")) == 20
    # Behind an extension header the device does not look, nor at lengths: software hands over.
    hidden = IPv6(src=A6, dst=B6) / IPv6ExtHdrDestOpt(options=[PadN(optdata=b"1234")]) / UDP(dport=4789) / Raw(b"x" * 40)
    assert came(wires, [bytes(LINK / hidden)]) == ([0, 1], 1)
    assert where(router, "length") == (0, 0, "devices do not look at lengths")
    assert came(wires, to(11, length=1000)) == ([0, 10], 10)
    assert came(wires, to(11)) == ([10, 0], 0)
    # Packets of an earlier rule would go to the wrong forwarder; those of no earlier rule are handed over.
    held, wanted, why = where(router, "behind")
    assert held == wanted > 0 and why == 'IPv4: rule 1 "first" comes first and may fit the same packets'
    assert came(wires, to(5)) == ([10, 0], 0) and came(wires, to(4)) == ([0, 10], 10)
    # A rule that drops is in the device beside them.
    drops = wires.device.drops()
    wires.left.send(*to(9))
    assert wait_for(lambda: wires.device.drops() == drops + 10)
    (shown,) = [row for row in router.show("filters") if row["name"] == "edge-in"]
    counts = {rule["name"]: (rule["packets"], rule["device_packets"]) for rule in shown["rules"] if rule["packets"]}
    # Software counts what the device brings.
    assert counts == {"first": (10, 0), "tunnel": (11, 10), "zero": (10, 10), "behind": (10, 0), "gone": (10, 10),
                      "length": (10, 0)}, counts
    text = router.command("show", "filters", "edge-in").stdout
    assert re.search(r"^ *2 +tunnel .* accept on forwarder 1 .* hardware +10$", text, re.M), text
    assert "rule 6 \"length\" in software on left: devices do not look at lengths" in text
    router.counters()
    router.stop()
    wires.device.lines()


@pytest.mark.provokes("unknown-ethertype")
def test_frames_other_than_ip_go_to_their_forwarder_too(lab, tmp_path):
    wires = start(lab, tmp_path)
    router = wires.router
    shown = lambda: router.show("forwarders")["forwarders"]  # noqa: E731

    def handled(ethertype):
        """Frames by forwarder, those handed over, and drops by reason, of ten frames."""
        before, change = shown(), Change(router)
        wires.left.send(*[bytes(LINK / Raw(bytes(50)))[:12] + ethertype.to_bytes(2) + bytes(50)] * 10)
        dropped = change(received=10).get("dropped") if ethertype != 0x9001 else {}
        after = shown()
        return ([new["packets"] - old["packets"] for old, new in zip(before, after)],
                after[0]["spread_out"] - before[0]["spread_out"], dropped)

    assert where(router, "frames") == (1, 1, "") and where(router, "no-frames") == (1, 1, "")
    assert handled(0x9000) == ([0, 10], 0, {"unknown-ethertype": 10})
    assert handled(0x9003) == ([10, 0], 0, {"unknown-ethertype": 10})
    assert where(router, "some-frames") == (1, 1, "")
    assert handled(0x9002) == ([0, 10], 0, {"unknown-ethertype": 10})
    drops = wires.device.drops()
    assert handled(0x9001)[0] == [0, 0] and wait_for(lambda: wires.device.drops() == drops + 10)
    (filter,) = [row for row in router.show("filters") if row["name"] == "edge-in"]
    counts = {rule["name"]: (rule["packets"], rule["device_packets"]) for rule in filter["rules"] if rule["packets"]}
    assert counts == {"frames": (10, 10), "no-frames": (10, 10), "some-frames": (10, 10)}, counts
    router.stop()
    wires.device.lines()


SPREAD = """
turnpike.filter "edge-in" {
  { name = "tunnel", proto = "udp", to_port = 4789, forwarder = { 0, 1 } },
  { name = "one", proto = "udp", to_port = 7, forwarder = 0 },
}
"""


def flows(port, count=40, copies=3):
    """Frames of some flows, one of each at a time, numbered at their ends."""
    ways = [IP(src=A4, dst=B4) / UDP(sport=1000 + flow, dport=port) for flow in range(count)]
    return [[bytes(LINK / way / Raw(b"x" * 40 + number.to_bytes(4))) for number in range(copies)] for way in ways]


def kept_order(wires, of):
    """Sends the frames of some flows, and checks that each flow's arrive in their order. Returns packets by forwarder and
    those handed over."""
    shown = lambda: wires.router.show("forwarders")["forwarders"]  # noqa: E731
    before = shown()
    wires.left.send(*(flow[number] for number in range(len(of[0])) for flow in of))
    arrived = wires.right.expect(sum(map(len, of)))
    for flow in of:
        sport = Ether(flow[0])[UDP].sport
        assert [frame for frame in arrived if Ether(frame)[UDP].sport == sport] == [
            forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in flow]
    after = shown()
    more = lambda what: [new[what] - old[what] for old, new in zip(before, after)]  # noqa: E731
    return more("packets"), sum(more("spread_out"))


def shares(wires, port):
    """The forwarder of each flow: all packets of a flow are on one."""
    found = []
    for flow in flows(port):
        packets, handed = kept_order(wires, [flow])
        assert sorted(packets) == [0, len(flow)], "one forwarder"
        found.append((packets.index(len(flow)), handed // len(flow)))
    return found


def test_a_rule_spreads_its_flows_over_several_forwarders(lab, tmp_path):
    wires = start(lab, tmp_path, config=SPREAD + CORES)
    router = wires.router
    assert where(router, "tunnel") == (2, 2, "")
    packets, handed = kept_order(wires, flows(4789))
    assert sum(packets) == 120 and min(packets) >= 30 and handed == 0, "by the device"
    of = shares(wires, 4789)
    assert len(set(of)) == 2 and of == shares(wires, 4789), "a flow stays"
    assert kept_order(wires, flows(7)) == ([120, 0], 0)
    text = router.command("show", "filters", "edge-in").stdout
    assert re.search(r"^ *1 +tunnel .* accept on forwarders 0,1 .* hardware +\d+$", text, re.M), text
    # One of them has no queue: software spreads.
    config = router.config.read_text()
    apply(router, config.replace("rx_queues = 2", "rx_queues = 2, rx_cores = { 0 }"))
    assert where(router, "tunnel") == (0, 0, "forwarder 1 has no receive queue of the port")
    router.command("rollback")
    assert wait_for(lambda: where(router, "tunnel") == (2, 2, ""))
    # The device is opened again.
    apply(router, config.replace('"left"  {', '"left"  { mtu = 1400,'))
    assert wait_for(lambda: where(router, "tunnel") == (2, 2, ""))
    assert shares(wires, 4789) == of
    planned = str(plan(router, config.replace("forwarder = { 0, 1 }", "forwarder = { 1 }"))[0])
    assert "forwarders 0,1" in planned and "forwarder 1" in planned, planned
    router.stop()
    wires.device.lines()


def test_software_spreads_what_the_device_does_not(lab, tmp_path):
    wires = start(lab, tmp_path, config=SPREAD + CORES, refuse="rss")
    why = "the device says: packets are not spread by rules (EOPNOTSUPP: Operation not supported on transport endpoint)"
    assert where(wires.router, "tunnel") == (0, 2, why)
    assert where(wires.router, "one") == (2, 2, "")
    # All arrive at the first forwarder, which is one of theirs, and stay: the device spreads as it can.
    assert kept_order(wires, flows(4789)) == ([120, 0], 0)
    wires.router.stop()


def test_one_queue_is_spread_over_the_forwarders_of_a_rule(lab, tmp_path):
    text = ports(', filter = "edge-in", spread = "software"', device="tp-left")
    wires = Wires(lab, SPREAD + CORES, ports=text, calm=True)
    packets, _ = kept_order(wires, flows(4789))
    assert sum(packets) == 120 and min(packets) >= 30, "by the hash of software"
    of = shares(wires, 4789)
    assert {forwarder for forwarder, _ in of} == {0, 1} and of == shares(wires, 4789)
    assert kept_order(wires, flows(7))[0] == [120, 0]
    wires.router.stop()


def test_rules_follow_the_queues_of_forwarders(lab, tmp_path):
    wires = start(lab, tmp_path)
    router = wires.router
    assert came(wires, to(4789)) == ([0, 10], 0)
    text = router.config.read_text()
    # Queue 0 goes to forwarder 1, and queue 1 to forwarder 0.
    swapped = text.replace("rx_queues = 2", "rx_queues = 2, rx_cores = { 1, 0 }")
    report, _ = plan(router, swapped)
    assert all(change["live"] and not change["reopens"] for change in report["changes"]), report
    apply(router, swapped)
    assert [one["rx"] for one in router.show("forwarders")["forwarders"]] == [["left:1", "right:0"], ["left:0"]]
    assert wait_for(lambda: where(router, "tunnel") == (2, 2, ""))
    assert came(wires, to(4789)) == ([0, 10], 0)
    assert came(wires, to(7)) == ([10, 0], 0)
    # One forwarder has both queues: the other one gets its packets by a ring.
    alone = text.replace("rx_queues = 2", "rx_queues = 2, rx_cores = { 0 }")
    apply(router, alone)
    assert where(router, "tunnel") == (0, 0, "forwarder 1 has no receive queue of the port")
    assert came(wires, to(4789)) == ([0, 10], 10)
    router.command("rollback")
    assert came(wires, to(4789)) == ([0, 10], 0)
    # Without such rules there are no rings; with them again there are.
    apply(router, re.sub(r"forwarder = \d, ", "", re.sub(r", forwarder = \d", "", swapped)))
    assert came(wires, to(4789)) == ([0, 10], 0), "queue 0 is forwarder 1's"
    apply(router, text)
    assert came(wires, to(4789)) == ([0, 10], 0) and came(wires, to(1)) == ([10, 0], 0)
    router.counters()
    router.stop()
    wires.device.lines()


def test_software_hands_over_what_the_device_does_not_take(lab, tmp_path):
    wires = start(lab, tmp_path, refuse="all")
    router = wires.router
    assert where(router, "tunnel") == (0, 2, "the device says: no rule (EOPNOTSUPP: Operation not supported on transport endpoint)")
    assert came(wires, to(4789)) == ([0, 10], 10)
    assert came(wires, to(7)) == ([10, 0], 0)
    numbers = [frame[:-4] + number.to_bytes(4, "big") for number, frame in enumerate(to(4789, 1) * 100)]
    wires.left.send(*numbers)
    assert [frame[-4:] for frame in wires.right.expect(100)] == [frame[-4:] for frame in numbers], "in order"
    router.counters()
    # Without the device's part such rules need software that spreads.
    said = refused(router, "apply", write(router, router.config.read_text().replace(", hardware = true", "")))
    assert 'its rules with forwarder need spread = "software", or hardware = true' in said, said
    router.stop()
    wires.device.lines()

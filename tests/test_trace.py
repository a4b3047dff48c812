"""`turnpike trace`: the way of packets through the graph, of received ones and of one made by hand, which is not sent."""

import json
import signal

import pytest

from lib.apply import apply
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, is_announcement, tagged, udp, untagged
from lib.router import Change

FILTER = """
turnpike.filter "edge" {
  { name = "telnet", proto = "tcp", to_port = 23, action = "drop" },
  { proto = "udp", to_port = 5060, mark = { dscp = "ef" }, category = "voice" },
  default = "accept",
}
"""
VLAN = 'turnpike.vlan "left.100" { parent = "left", id = 100, address = "10.0.100.1/24" }\n'
BOTH = PORTS.replace('"tp-left",', '"tp-left", filter = "edge",') + STATIC_NEIGHBOURS + FILTER + VLAN
MORE = 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n'
THROUGH = ["vlan-input", "classify", "ip4-prefetch"]


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, ports=BOTH, calm=True)


def packets(done):
    """The packets of a completed trace in JSON."""
    report = json.loads(done.stdout)
    assert report["lost"] == 0
    return report["packets"]


def made(wires, words):
    """The way of a packet made by hand."""
    (packet,) = packets(wires.router.command("trace", *words.split(), "--json"))
    return packet


def notes(packet):
    """The notes of each step that has some."""
    return {step["step"]: step["notes"] for step in packet["steps"] if step["notes"]}


def assert_nothing_is_sent(wires, seconds):
    """The router's own announcements aside."""
    frames = wires.left.receive(seconds) + wires.right.receive(0)
    assert not [frame for frame in frames if not is_announcement(untagged(frame)[0])]


def datagram(port, ttl=64, source="10.0.1.2"):
    data = udp(source, "10.0.2.2", 4000, port, b"data")
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(source, "10.0.2.2", data, ttl=ttl))


def tracing(wires, *words):
    """A trace of received packets that has begun."""
    process = wires.router.begin("trace", *words, "--for", "60s", "--json")

    def has_begun():
        return "another trace" in wires.router.command("trace", "--count", "0", check=False).stderr

    assert wait_for(has_begun, 20)
    return process


def finished(process):
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    report = json.loads(output)
    assert report["lost"] == 0
    return report["packets"]


@pytest.mark.provokes("tried-out")
def test_a_packet_made_by_hand_shows_each_decision_and_is_not_sent(wires):
    change = Change(wires.router)
    packet = made(wires, "udp 10.0.1.2:4000 > 10.0.2.2:53 in left")
    steps = [step["step"] for step in packet["steps"]]
    assert steps[:len(THROUGH)] == THROUGH
    found = notes(packet)
    assert found["ip4-filter-in"] == ['filter "edge": default: accept']
    assert found["ip4-lookup"] == [
        "route 10.0.2.2/32 (neighbour)", f"next hop {HOST_B_MAC} on right"]
    assert "ttl 64 → 63" in sum(found.values(), [])
    assert f"from {RIGHT_MAC} to {HOST_B_MAC}" in found["ip4-rewrite"]
    assert packet["end"] == "sent on right"
    assert packet["packet"].startswith("udp 10.0.1.2:4000 > 10.0.2.2:53 in left")
    assert change(received=0) == {"replicated": 1, "dropped": {"tried-out": 1}}
    assert_nothing_is_sent(wires, 0.2)


@pytest.mark.parametrize("words, end, said", [
    ("udp 10.0.1.2:1 > 10.0.2.2:2 in left ttl 1", "to the slow path: ttl", None),
    ("udp 10.0.1.2:1 > 203.0.113.9:2 in left", "to the slow path: no-route", "no route to 203.0.113.9"),
    ("udp 10.0.1.2:1 > 10.0.1.1:2 in left", "to the slow path: local", "for the router itself"),
    ("udp 10.0.1.2:1 > 10.0.2.9:2 in left", "to the slow path: glean", "on the network of right, MAC unknown"),
    ("tcp 10.0.1.2:1 > 10.0.2.2:23 in left", "dropped: filtered", 'filter "edge": rule "telnet": drop'),
    ("udp 10.0.1.2:1 > 10.0.2.2:5060 in left", "sent on right", "category voice"),
    ("udp 10.0.1.2:1 > 10.0.2.2:5060 in left", "sent on right", "dscp 0 → 46"),
    ("udp 127.0.0.1:1 > 10.0.2.2:2 in left", "dropped: ip4-martian-source", None),
    ("udp 10.0.1.2:1 > 10.0.2.2:2 in left to_mac 02:00:00:00:00:77", "dropped: not-for-us", None),
    ("udp [fd00:1::2]:1 > [fd00:2::2]:2 in left", "sent on right", "route fd00:2::2/128 (neighbour)"),
    ("icmp6 fd00:1::2 > fd00:2::2 in left icmp echo-request ttl 2", "sent on right", "ttl 2 → 1"),
    ("udp 10.0.2.2:1 > 10.0.1.2:23 in right", "sent on left", f"next hop {HOST_A_MAC} on left"),
])
def test_a_packet_made_by_hand_ends_as_a_real_one(wires, words, end, said):
    packet = made(wires, words)
    assert packet["end"] == end, packet
    assert said is None or said in sum(notes(packet).values(), []), packet
    assert_nothing_is_sent(wires, 0.05)


def test_a_packet_of_a_vlan_comes_by_its_port_with_the_tag(wires):
    packet = made(wires, "udp 10.0.100.2:1 > 10.0.2.2:2 in left.100")
    assert packet["end"] == "sent on right"
    found = notes(packet)["vlan-input"]
    assert "received on left.100" in found
    assert [note for note in found if note.startswith("length")]


def test_received_packets_are_selected_by_a_rule_and_go_on(wires):
    wires.drain()
    process = tracing(wires, "proto=udp", "to_port=77,78", "from=10.0.1.0/24", "--count", "2")
    frames = [datagram(port) for port in (76, 77, 5060, 78, 77)]
    wires.left.send(*frames)
    found = finished(process)
    assert [packet["packet"].split(" in ")[0] for packet in found] == [
        "udp 10.0.1.2:4000 > 10.0.2.2:77", "udp 10.0.1.2:4000 > 10.0.2.2:78"]
    assert {packet["end"] for packet in found} == {"sent on right"}
    assert all(notes(packet)["ip4-lookup"][0] == "route 10.0.2.2/32 (neighbour)" for packet in found)
    arrived = wires.right.expect(5)
    # The marked one's DSCP is another.
    assert sorted(arrived)[0] in [forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in frames]
    assert len(arrived) == 5


def test_frames_of_a_vlan_are_selected_behind_their_tag(wires):
    wires.drain()
    process = tracing(wires, "interface=left.100", "dscp=0")
    frame = datagram(9, source="10.0.100.2")
    wires.left.send(datagram(9), tagged(frame, 100))
    (packet,) = finished(process)
    assert packet["interface"] == "left.100" and packet["end"] == "sent on right", packet


def test_all_frames_are_traced_without_a_rule(wires):
    wires.drain()
    process = tracing(wires, "--count", "2")
    wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x88B5, b"x" * 46), datagram(5))
    first, second = finished(process)
    assert (first["packet"], first["end"]) == (
        f"ethertype 0x88b5 {HOST_A_MAC} > {LEFT_MAC} in left", "dropped: unknown-ethertype")
    assert second["end"] == "sent on right"


def test_frames_are_selected_by_ethertype(wires):
    wires.drain()
    process = tracing(wires, "ethertype=0x88b5")
    wires.left.send(datagram(5), ethernet(LEFT_MAC, HOST_A_MAC, 0x88B5, b"x" * 46))
    (packet,) = finished(process)
    assert packet["packet"].startswith("ethertype 0x88b5")


def test_a_trace_outlives_an_apply(wires):
    wires.drain()
    process = tracing(wires, "to=198.51.100.0/24")
    apply(wires.router, BOTH.replace("5060", "5061") + MORE)
    frame = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "198.51.100.1", udp(
        "10.0.1.2", "198.51.100.1", 1, 2, b"data")))
    wires.left.send(frame)
    (packet,) = finished(process)
    assert notes(packet)["ip4-lookup"][0] == "route 198.51.100.0/24 (static)"
    apply(wires.router, BOTH)


def test_a_client_that_goes_ends_its_trace(wires):
    process = tracing(wires)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    def is_free():
        return wires.router.command("trace", "--for", "1s", check=False).returncode == 0

    assert wait_for(is_free, 20)


def test_time_ends_a_trace_without_packets(wires):
    done = wires.router.command("trace", "to_port=9999", "proto=udp", "--for", "1s")
    assert done.stdout == "no such packet came\n"


def test_the_text_has_a_line_for_each_step(wires):
    done = wires.router.command("trace", "udp 10.0.1.2:4000 > 10.0.2.2:53 in left")
    lines = done.stdout.splitlines()
    assert lines[0] == "udp 10.0.1.2:4000 > 10.0.2.2:53 in left ttl 64 length 40: 54 bytes, forwarder 0"
    assert lines[-1] == "  sent on right"
    (lookup,) = [line.split() for line in lines if line.startswith("  ip4-lookup")]
    assert lookup[:3] == ["ip4-lookup", "forward", "route"]


@pytest.mark.parametrize("words, error", [
    (["port=53"], 'key "port" unknown'),
    (["udp"], '"udp": expected KEY=VALUE, as proto=udp'),
    (["to=10.0.0.1", "to=10.0.0.2"], '"to": given twice; write to=ONE,OTHER'),
    (["to=10.0.0.1/8"], 'write "10.0.0.0/8"'),
    (["interface=lft"], 'port "lft" unknown; did you mean "left"?'),
    (["state=new"], 'key "state" unknown'),
    (["from=10.0.0.1", "to=fd00::1"], "no packet is both"),
    (["--count", "0"], "0 packets: 1 to 1000"),
    (["--count", "1001"], "1001 packets: 1 to 1000"),
    (["--for", "2h"], "7200 seconds: 1 to 3600"),
    (["udp 10.0.0.1 > 10.0.0.2"], "add in INTERFACE"),
    (["udp 10.0.0.1 > 10.0.0.2 in lft"], 'interface "lft": unknown'),
    (["udp 10.0.0.1 > fd00::1 in left"], "are of two families"),
])
def test_wrong_words_are_named(wires, words, error):
    done = wires.router.command("trace", *words, check=False)
    assert done.returncode == 1 and error in done.stderr, done.stderr


def test_a_packet_made_by_hand_does_not_enter_a_graph_that_keeps_packets(lab):
    config = """
turnpike.graph:insert_before("classify", { "queue", capacity = 10 })
"""
    wires = Wires(lab, config)
    done = wires.router.command("trace", "udp 10.0.1.2:1 > 10.0.2.2:2 in left", check=False)
    assert done.returncode == 1 and "steps that keep packets" in done.stderr, done.stderr
    # It has left no watch behind.
    assert wires.router.command("trace", "--for", "1s").stdout == "no such packet came\n"

"""sFlow and IPFIX: collectors have what the router received, and a collector that is not there disturbs nothing."""

import collections
import math
import os
import re
import signal
import socket
import subprocess

import pytest
from lib.apply import apply, plan, refused, write
from lib.collectors import Nfdump, Sink, sflow
from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires, from_left
from lib.metrics import scrape, tcp
from lib.netns import held_thread, wait_for
from lib.packets import ethernet, ipv4, ipv6, pattern, tagged, udp

LEFT, RIGHT = 1, 2
RATE = 10

SFLOW = 'turnpike.sflow { collector = "127.0.0.1:%d", sample = %d, interfaces = "left", agent = "10.0.1.1", %s }\n'
IPFIX = 'turnpike.ipfix { collector = "127.0.0.1:%d", sample = %d, inactive_s = 1, active_s = 2, domain = 7, %s }\n'


def frame(flow, family=4, destination=None):
    """A packet of one of the flows, 128 bytes long with its IP header."""
    if family == 4:
        source, destination = "10.0.1.2", destination or "10.0.2.2"
        data = udp(source, destination, 1000 + flow, 2000, pattern(100))
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(source, destination, data, tos=0xB8))
    source, destination = "fd00:1::2", destination or "fd00:2::2"
    data = udp(source, destination, 1000 + flow, 2000, pattern(80))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(source, destination, data))


def send(wires, frames):
    """Sends in steps, each of which arrives: a forwarder without a core for a moment must not miss any."""
    for begin in range(0, len(frames), 50):
        some = frames[begin:begin + 50]
        wires.left.send(*some)
        assert len(wires.right.expect(len(some), timeout=20)) == len(some)


def exporter(router, name):
    (found,) = [of for of in router.show("exporters")["exporters"] if of["name"] == name]
    return found


def is_idle(router, name):
    """Everything sampled has been sent."""
    of = exporter(router, name)
    done = of["exported"] + of["ignored"] if name == "sflow" else of["flows"] == 0
    return done == of["sampled"] if name == "sflow" else done


def assert_sampled(count, packets, rate=RATE):
    """Each of the packets was sampled with probability 1/rate: within six standard deviations."""
    expected, deviation = packets / rate, math.sqrt(packets * (1 / rate) * (1 - 1 / rate))
    assert abs(count - expected) <= 6 * deviation, (count, expected, deviation)


def check_records(records, sampled, flows, octets):
    """What the collector has of each flow, scaled by the rate, is what was sent within the bound."""
    packets, seen = collections.Counter(), collections.Counter()
    for of in records:
        key = (of.get("src4_addr") or of["src6_addr"], of.get("dst4_addr") or of["dst6_addr"], of["src_port"], of["dst_port"])
        assert (of["proto"], of["input_snmp"], of["output_snmp"]) == (17, LEFT, RIGHT), of
        packets[key] += of["in_packets"]
        seen[key] += of["in_bytes"]
    assert set(packets) == set(flows)
    assert sum(packets.values()) == sampled * RATE
    for key, count in flows.items():
        assert packets[key] % RATE == 0
        assert_sampled(packets[key] // RATE, count)
        assert seen[key] == packets[key] * octets, (key, seen[key], packets[key])


def both_families(count):
    """Frames of four flows in each family, mixed, and the number of packets of each flow."""
    frames = [frame(n % 4, 4 if n % 8 < 4 else 6) for n in range(count)]
    flows = {("10.0.1.2", "10.0.2.2", 1000 + flow, 2000): count // 8 for flow in range(4)}
    flows |= {("fd00:1::2", "fd00:2::2", 1000 + flow, 2000): count // 8 for flow in range(4)}
    return frames, flows


@pytest.fixture
def collect(lab, request):
    """Starts collectors that are ended with the test."""
    def start(kind, *arguments):
        made = kind(*arguments)
        request.addfinalizer(made.close)
        return made
    return start


def test_sfcapd_has_the_flows(lab, collect):
    wires = Wires(lab, SFLOW % (9001, RATE, "counters_s = 0"), calm=True)
    collector = collect(Nfdump, wires.inside, "sfcapd", 9001)
    before = exporter(wires.router, "sflow")["sampled"]
    assert before == 0
    frames, flows = both_families(8000)
    send(wires, frames)
    wait_for(lambda: is_idle(wires.router, "sflow"), 20)
    of = exporter(wires.router, "sflow")
    assert_sampled(of["sampled"], len(frames))
    assert (of["lost"], of["unrouted"], of["sample"]) == (0, 0, RATE)
    (sent,) = of["collectors"]
    assert (sent["address"], sent["errors"], sent["dropped"]) == ("127.0.0.1:9001", 0, 0)
    assert sent["datagrams"] > 0 and sent["bytes"] > 200 * of["exported"]
    # Bytes of sFlow are those of frames, with FCS.
    check_records(collector.records(), of["sampled"], flows, len(frames[0]) + 4)
    text = wires.router.command("show", "exporters").stdout
    assert re.search(rf"^\s*sflow\s+1/{RATE}\s+{of['sampled']}\s", text, re.M), text
    wires.router.stop()


def test_nfcapd_has_the_flows(lab, collect):
    wires = Wires(lab, start=False)
    collector = collect(Nfdump, wires.inside, "nfcapd", 9002)
    wires.router = lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS + IPFIX % (9002, RATE, "templates_s = 1"))
    frames, flows = both_families(8000)
    send(wires, frames)
    wait_for(lambda: exporter(wires.router, "ipfix")["sampled"] > 0 and is_idle(wires.router, "ipfix"), 20)
    of = exporter(wires.router, "ipfix")
    assert (of["lost"], of["unrouted"]) == (0, 0)
    records = [record for record in collector.records() if record["proto"] == 17]
    check_records(records, of["sampled"] - of["ignored"], flows, 128)
    wires.router.stop()

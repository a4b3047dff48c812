"""sFlow and IPFIX: collectors have what the router received, and a collector that is not there disturbs nothing."""

import collections
import math
import re

import pytest
from lib.apply import apply, plan, refused, write
from lib.collectors import Nfdump, Sink, sflow
from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, STATIC_NEIGHBOURS, Wires, from_left
from lib.metrics import scrape, tcp
from lib.netns import held_thread, wait_for
from lib.packets import ethernet, ipv4, ipv6, pattern, udp

LEFT, RIGHT = 1, 2
RATE = 20

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
    return of["exported"] == of["sampled"]


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
    frames, flows = both_families(8000)
    send(wires, frames)
    assert wait_for(lambda: is_idle(wires.router, "sflow"), 20)
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
    assert wait_for(lambda: exporter(wires.router, "ipfix")["flows"] > 0, 20)
    assert wait_for(lambda: exporter(wires.router, "ipfix")["flows"] == 0, 20)
    of = exporter(wires.router, "ipfix")
    assert (of["lost"], of["unrouted"]) == (0, 0)
    records = [record for record in collector.records() if record["proto"] == 17]
    check_records(records, of["sampled"] - of["ignored"], flows, 128)
    wires.router.stop()


def read(sink, samples):
    """Datagrams until there are so many samples; heads and samples."""
    heads, found = [], []
    while len(found) < samples:
        head, more = sflow(sink.receive())
        heads.append(head)
        found += more
    return heads, found


def test_datagrams_have_packets_and_routes(lab, collect):
    wires = Wires(lab, SFLOW % (9003, 1, "counters_s = 0, header = 64"), calm=True)
    sink = collect(Sink, wires.inside, 9003)
    frames = [frame(1), frame(2, 6), from_left("10.0.1.2", "10.0.1.1"), from_left("10.0.1.2", "203.0.113.9")]
    for sent in frames:
        wires.left.send(sent)
        assert wait_for(lambda: is_idle(wires.router, "sflow"), 20)
    heads, samples = read(sink, 4)
    assert [head["sequence"] for head in heads] == list(range(1, len(heads) + 1))
    assert {head["agent"] for head in heads} == {"10.0.1.1"}
    assert [sample["header"] for sample in samples] == [sent[:64] for sent in frames]
    assert [sample["length"] for sample in samples] == [len(sent) + 4 for sent in frames]
    assert [sample["sequence"] for sample in samples] == [1, 2, 3, 4]
    assert [(sample["source"], sample["input"], sample["rate"]) for sample in samples] == [(LEFT, LEFT, 1)] * 4
    # By the right port, for the router itself, and without a route.
    assert [sample["output"] for sample in samples] == [RIGHT, RIGHT, 0x3FFFFFFF, 0x40000100]
    assert [sample["next_hop"] for sample in samples[:2]] == ["10.0.2.2", "fd00:2::2"]
    assert samples[-1]["pool"] == 4 and samples[-1]["drops"] == 0
    wires.router.stop()


def test_counter_samples_are_those_of_show_interfaces(lab, collect):
    wires = Wires(lab, SFLOW % (9004, 1000000, "counters_s = 1"), calm=True)
    sink = collect(Sink, wires.inside, 9004)
    frames, _ = both_families(100)
    send(wires, frames)
    shown = wires.router.show("interfaces")
    sink.drain()
    _, samples = read(sink, 4)
    assert {sample["index"] for sample in samples} == {LEFT, RIGHT}
    for sample in samples:
        of = shown[sample["index"] - 1]
        assert sample["kind"] == "counters" and sample["source"] == sample["index"]
        assert (sample["type"], sample["status"]) == (6, 3)
        names = ("in_octets", "in_packets", "out_octets", "out_packets")
        assert [sample[name] for name in names] == [of[name] for name in ("rx_bytes", "rx_packets", "tx_bytes", "tx_packets")]
    assert exporter(wires.router, "sflow")["counters"] > 0
    wires.router.stop()


def test_a_collector_that_is_not_there_is_counted(lab, collect):
    away = 'turnpike.sflow { collector = { "127.0.0.1:9005", "127.0.0.1:9006", "203.0.113.9" }, sample = 1, counters_s = 0 }\n'
    wires = Wires(lab, away + 'turnpike.metrics { listen = "127.0.0.1:9477" }\n', calm=True)
    sink = collect(Sink, wires.inside, 9006)
    frames, _ = both_families(200)
    for begin in range(0, 200, 20):
        send(wires, frames[begin:begin + 20])
        assert wait_for(lambda: is_idle(wires.router, "sflow"), 20)
    refused_, there, unreachable = exporter(wires.router, "sflow")["collectors"]
    assert refused_["errors"] > 0 and "refused" in refused_["last_error"]
    assert unreachable["errors"] > 0 and unreachable["datagrams"] == 0 and "nreachable" in unreachable["last_error"]
    assert (there["errors"], there["dropped"]) == (0, 0)
    assert sum(len(sflow(datagram)[1]) for datagram in sink.drain()) == 200
    log = wires.router.log()
    assert log.count("collector 203.0.113.9:6343") == 1 and "datagrams for it are lost" in log
    assert wait_for(lambda: scrape(tcp(wires.inside)).of("turnpike_export_records_total", exporter="sflow") == 200, 20)
    samples = scrape(tcp(wires.inside))
    assert samples.of("turnpike_export_errors_total", exporter="sflow", collector="203.0.113.9:6343") > 0
    wires.router.stop()


def test_exporters_come_change_and_go(lab, collect):
    wires = Wires(lab, calm=True)
    one, two = collect(Sink, wires.inside, 9007), collect(Sink, wires.inside, 9008)
    base = PORTS + STATIC_NEIGHBOURS
    assert wires.router.show("exporters")["exporters"] == []
    assert "nothing is exported" in wires.router.command("show", "exporters").stdout
    assert "sample-in" not in wires.router.command("show", "graph").stdout
    first = base + SFLOW % (9007, 1, "counters_s = 0")
    apply(wires.router, first)
    assert "sample-in" in wires.router.command("show", "graph").stdout
    send(wires, [frame(1)] * 10)
    assert len(read(one, 10)[1]) == 10
    # Another collector: no graph is made anew.
    second = base + SFLOW % (9008, 1, "counters_s = 0")
    planned, _ = plan(wires.router, second)
    assert [change["what"] for change in planned["changes"]] == ["sflow: collector"]
    apply(wires.router, second)
    send(wires, [frame(1)] * 10)
    assert len(read(two, 10)[1]) == 10 and one.drain() == []
    # Of no port that receives.
    apply(wires.router, second.replace('interfaces = "left"', 'interfaces = "right"'))
    send(wires, [frame(1)] * 10)
    wires.router.command("rollback")
    send(wires, [frame(1)] * 5)
    assert len(read(two, 5)[1]) == 5
    apply(wires.router, base)
    assert wires.router.show("exporters")["exporters"] == []
    send(wires, [frame(1)] * 10)
    assert one.drain() == two.drain() == []
    path = write(wires.router, base + SFLOW.replace('"left"', '"lest"') % (9008, 1, "counters_s = 0"))
    assert 'interfaces: "lest" unknown; did you mean "left"?' in refused(wires.router, "apply", path)
    wires.router.stop()


def test_a_hanging_exporter_holds_nothing_up(lab, collect):
    wires = Wires(lab, SFLOW % (9009, 1, "counters_s = 0"), calm=True)
    sink = collect(Sink, wires.inside, 9009)
    with held_thread(wires.router.thread("export")):
        for _ in range(100):
            send(wires, [frame(1)] * 50)
    assert wait_for(lambda: exporter(wires.router, "sflow")["exported"] == 4096, 20)
    of = exporter(wires.router, "sflow")
    assert (of["sampled"], of["lost"]) == (5000, 5000 - 4096)
    sink.drain()
    wires.left.send(frame(1))
    _, (sample,) = read(sink, 1)
    assert sample["drops"] == 5000 - 4096
    wires.router.stop()

"""Queues, the map of queues to cores, and the spreading of packets over forwarders."""

import re

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import HOST_A_MAC, LEFT_MAC, STATIC_NEIGHBOURS, Hosts, Wires
from lib.packets import ethernet, ipv4, pattern, udp
from lib.soak import repeated
from lib.traffic import Sink, Stream

FORWARDERS = 'turnpike.forwarders { cores = "0,1" }\n'


def ports(left="", right="", driver="af_packet"):
    return (
        'local turnpike = require "turnpike"\n'
        f'turnpike.port "left" {{ device = "tp-left", driver = "{driver}", '
        f'address = {{ "10.0.1.1/24", "fd00:1::1/64" }} {left} }}\n'
        f'turnpike.port "right" {{ device = "tp-right", driver = "{driver}", '
        f'address = {{ "10.0.2.1/24", "fd00:2::1/64" }} {right} }}\n'
    )


def served(router):
    """The receive queues of each forwarder."""
    return [one["rx"] for one in router.show("forwarders")["forwarders"]]


def flows(count):
    """Packets of so many flows from host A to host B, one of each."""
    def one(number):
        datagram = udp("10.0.1.2", "10.0.2.2", 1000 + number, 2000, pattern(60, number))
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", datagram))
    return [one(number) for number in range(count)]


# A forwarder of AF_PACKET without a core for a quarter of a second loses packets meanwhile.
@pytest.mark.alone
def test_single_queues_are_dealt_out_evenly_and_a_map_moves_them_without_loss(lab):
    base = ports(", rx_queues = 1", ", rx_queues = 1")
    hosts = Hosts(lab, FORWARDERS, base)
    router = hosts.router
    assert served(router) == [["left:0"], ["right:0"]]
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    sink, stream = Sink(hosts.right), Stream(hosts.left, ["10.0.2.2"], rate=2000)
    assert sink.wait(1)
    maps = [(", rx_cores = { 1 }", [[], ["left:0", "right:0"]]), (", rx_cores = { 0 }", [["left:0"], ["right:0"]])]
    for settings, expected in maps * 3:
        text = ports(f", rx_queues = 1{settings}", ", rx_queues = 1, rx_cores = { 1 }") + FORWARDERS
        report, _ = plan(router, text)
        assert all(change["live"] and not change["reopens"] for change in report["changes"])
        assert apply(router, text)["pause_us"] > 0
        assert served(router) == expected
        assert sink.wait(20)
    sent = stream.stop()
    shown = {one["name"]: one for one in router.show("ports")}
    assert [number for number, _ in sink.arrived()] == list(range(sent)), (router.counters(), shown)
    router.counters()
    router.stop()


def test_forwarders_are_shown_with_what_they_do(lab):
    router = Wires(lab, FORWARDERS, ports=ports(", rx_queues = 1", ", rx_queues = 1") + STATIC_NEIGHBOURS).router
    shown = router.show("forwarders")["forwarders"]
    assert [one["core"] for one in shown] == [0, 1]
    assert all(one["idle_cycles"] > 0 for one in shown)
    text = router.command("show", "forwarders").stdout
    assert re.search(r"^\s*0\s+0\s+-\s+\d+ %\s+\d+\s+\d+\s+\S+\s+0\s+0\s+left:0\s+", text, re.M), text
    assert "1 receive queue, no hash of the router's" in router.command("show", "rss").stdout
    router.stop()


def test_software_spreads_flows_over_forwarders(lab):
    settings = ', spread = "software", rss = { symmetric = true }'
    wires = Wires(lab, FORWARDERS, ports=ports(settings, ", rx_queues = 1") + STATIC_NEIGHBOURS, calm=True)
    router = wires.router
    [left] = [one for one in router.show("rss") if one["port"] == "left"]
    assert (left["spread"], left["function"], left["queues"]) == ("software", "toeplitz", 1)
    assert left["key"] == ":".join(["6d:5a"] * 20) and left["table"] == [0, 1] * 64
    assert "forwarder 0: 50.0 %, forwarder 1: 50.0 %" in router.command("show", "rss").stdout
    wires.left.send(*flows(400))
    assert len(wires.right.expect(400)) == 400
    zero, one = router.show("forwarders")["forwarders"]
    assert zero["spread_out"] == one["spread_in"] and 100 < one["spread_in"] < 300
    assert router.show("ports")[0]["rx_packets"] >= 400
    # Live: all to forwarder 1, and then to none but the receiver.
    other = settings.replace("symmetric = true", "symmetric = true, skip = { 0 }")
    apply(router, ports(other, ", rx_queues = 1") + STATIC_NEIGHBOURS + FORWARDERS)
    wires.left.send(*flows(100))
    assert len(wires.right.expect(100)) == 100
    after = router.show("forwarders")["forwarders"][1]
    assert after["spread_in"] == one["spread_in"] + 100
    apply(router, ports(", rx_queues = 1", ", rx_queues = 1") + STATIC_NEIGHBOURS + FORWARDERS)
    wires.left.send(*flows(100))
    assert len(wires.right.expect(100)) == 100
    assert router.show("forwarders")["forwarders"][1]["spread_in"] == after["spread_in"]
    router.counters()
    router.stop()


STEERED = '''
turnpike.filter "steer" {
  { name = "one", proto = "udp", from_port = "1000-1069", forwarder = %d, action = "continue" },
  { name = "zero", proto = "udp", from_port = "1070-1099", forwarder = 0 },
  { name = "gone", proto = "udp", from_port = 1069, action = "drop" },
}
'''


@pytest.mark.provokes("filtered")
def test_rules_choose_the_forwarder(lab):
    settings = ', spread = "software", filter = "steer"'
    base = ports(settings, ", rx_queues = 1") + STATIC_NEIGHBOURS
    wires = Wires(lab, FORWARDERS + STEERED % 1, ports=base, calm=True)
    router = wires.router

    def through(packets, passing):
        before = [one["spread_in"] for one in router.show("forwarders")["forwarders"]]
        wires.left.send(*packets)
        frames = wires.right.expect(passing)
        assert len(frames) == passing
        after = router.show("forwarders")["forwarders"]
        return frames, [one["spread_in"] - old for one, old in zip(after, before)]

    frames, came = through(flows(100), 99)
    assert came == [0, 70] and router.show("forwarders")["forwarders"][0]["spread_out"] == 70
    # Each rule matched its packets once, regardless of their destination.
    (shown,) = router.show("filters")[:1]
    assert [rule["packets"] for rule in shown["rules"]] == [70, 30, 1]
    assert "on forwarder 1" in shown["rules"][0]["action"]
    # A flow keeps its order.
    numbers = [flows(1)[0][:-4] + number.to_bytes(4, "big") for number in range(200)]
    frames, came = through(numbers, 200)
    assert came == [0, 200]
    assert [frame[-4:] for frame in frames] == [frame[-4:] for frame in numbers]
    # Fewer forwarders than a rule's number are refused; another number is live.
    fewer = base + STEERED % 1 + 'turnpike.forwarders { cores = "0" }\n'
    said = refused(router, "apply", write(router, fewer))
    assert 'rule 1 "one": forwarder 1: there is one, number 0' in said, said
    report, _ = plan(router, base + STEERED % 0 + FORWARDERS)
    assert all(change["live"] for change in report["changes"])
    apply(router, base + STEERED % 0 + 'turnpike.forwarders { cores = "0" }\n')
    assert len(router.show("forwarders")["forwarders"]) == 1
    assert through(flows(100), 99)[1] == [0]
    apply(router, base + STEERED % 1 + FORWARDERS)
    assert through(flows(100), 99)[1] == [0, 70]
    apply(router, base + STEERED % 0 + FORWARDERS)
    assert through(flows(100), 99)[1] == [0, 0]
    router.counters()
    router.stop()


# A forwarder of AF_PACKET without a core for a quarter of a second loses packets meanwhile.
@pytest.mark.alone
def test_software_keeps_a_flow_in_order_while_forwarders_change(lab):
    settings = ', spread = "software"'
    base = ports(settings, settings)
    hosts = Hosts(lab, FORWARDERS, base)
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    ways = [(hosts.left, "10.0.2.2", hosts.right), (hosts.right, "10.0.1.2", hosts.left)]
    running = [(Sink(target), Stream(source, [address], rate=2000)) for source, address, target in ways]
    assert all(sink.wait(1) for sink, _ in running)
    for cores in ["1", "0,1", "0", "0,1"] * repeated(1):
        apply(hosts.router, base + f'turnpike.forwarders {{ cores = "{cores}" }}\n')
        assert all(sink.wait(20) for sink, _ in running)
    for sink, stream in running:
        sent = stream.stop()
        assert [number for number, _ in sink.arrived()] == list(range(sent))
    hosts.router.counters()
    hosts.router.stop()


def test_what_a_device_does_not_have_is_refused_before_anything_changes(lab):
    router = Wires(lab, FORWARDERS, ports=ports() + STATIC_NEIGHBOURS).router
    before = served(router)
    for driver, settings, words in [
        ("af_xdp", ", rx_queues = 4", "device tp-left: rx_queues 4: it has 1 at most; lower rx_queues, or leave it out"),
        ("af_packet", ", rx_queues = 2, rss = { symmetric = true }", "device tp-left: its hash is the kernel's"),
        ("af_packet", ", rx_queues = 2, tx_queues = 1", "its driver has them in pairs; leave one out"),
        ("af_xdp", ", rx_descriptors = 1000", "AF_XDP takes a power of two from 64 to 2048"),
        ("af_packet", ", rx_cores = { 2 }", "rx_cores: core 2 has no forwarder; the forwarders' cores are 0, 1"),
        ("af_packet", ', spread = "software", rss = { table = { 7 } }', "queue 7 is not there; the last one is 1"),
    ]:
        text = ports(settings, driver=driver) + STATIC_NEIGHBOURS + FORWARDERS
        error = refused(router, "apply", write(router, text))
        assert words in error, error
        assert served(router) == before
    router.counters()
    router.stop()

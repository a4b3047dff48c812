"""Forwarders around an event device: one receives and sends, the others get packets from the device, in software here."""

import json
import os
import signal
import socket
import struct
import time

import pytest

from lib.apply import apply, plan, refused, write
from lib.kernel import pings, reaches
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Hosts, Wires
from lib.netns import stop_process, veth, wait_for
from lib.packets import ethernet, forwarded, ipv4, pattern, tagged, udp
from lib.router import Change
from lib.traffic import Sink, Stream, late, lost

# Modes of the devices in software.
MODES = [
    ("event_sw0", "ordered"), ("event_sw0", "atomic"), ("event_sw0", "parallel"),
    ("event_dsw0", "atomic"), ("event_dsw0", "parallel"),
]
IDS = ["-".join(mode) for mode in MODES]

# Packets of a numbered stream; `make test-long` sends many more.
STREAM = int(os.environ.get("EVENT_PACKETS", 10_000))

# Host B with a MAC of its own, and nothing else.
SINK = "10.0.2.2"


def events(device="event_sw0", order="ordered", more=""):
    """Two workers and a receiver on two cores."""
    return (
        f'turnpike.forwarders {{ mode = "events", device = "{device}", order = "{order}", cores = "0,1", '
        f"receive_core = 0, {more} }}\n"
    )


def device(router):
    """The report of `show forwarders` about the event device."""
    return router.show("forwarders")["events"]


def state(hosts):
    """The report of a test that fails, as a text: it is printed whole."""
    shown = [hosts.router.show(what) for what in ("neighbours", "forwarders", "ports")]
    return "\n".join([str(hosts.router.dropped()), *map(json.dumps, shown), hosts.router.log()])


class Flow:
    """A numbered flow from left to right."""

    def __init__(self, hosts, rate, address=SINK):
        assert reaches(hosts.left, address)
        self.sink, self.address = Sink(hosts.right), address
        self.stream = Stream(hosts.left, [address], rate=rate)
        assert self.sink.wait(1)

    def stop(self):
        """The numbers in the order of their arrival, once it is certain that none is missing."""
        sent = self.stream.stop()
        assert lost(sent, self.sink) == []
        numbers = [number for number, _ in self.sink.arrived()]
        self.sink.close()
        return numbers


@pytest.fixture(scope="module", params=MODES, ids=IDS)
def running(request, module_lab):
    name, order = request.param
    made = Hosts(module_lab, events(name, order))
    made.mode = request.param
    yield made
    made.router.stop()


@pytest.fixture
def hosts(running):
    """After each test the sum closes, and the device is empty."""
    yield running
    running.router.counters()
    assert device(running.router)["in_flight"] == 0


def test_it_is_shown(hosts):
    name, order = hosts.mode
    shown = device(hosts.router)
    driver = name.rstrip("0")
    assert (shown["device"], shown["driver"], shown["order"]) == (name, driver, order)
    assert (shown["queues"], shown["scheduler"]) == ((6, True) if driver == "event_sw" else (1, False))
    first, *workers = hosts.router.show("forwarders")["forwarders"]
    assert (first["core"], [one["core"] for one in workers]) == (0, [0, 1])
    assert first["rx"] == ["left:0", "right:0"] and first["tx"] == ["left:0", "right:0"]
    assert all(one["rx"] == one["tx"] == [] for one in workers)
    text = hosts.router.command("show", "forwarders").stdout
    assert f"events: {name} ({driver}," in text, text


@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2", "10.0.1.1", "fd00:1::1"])
def test_ping(hosts, target):
    assert pings(hosts.left, target, 5, 5), state(hosts)


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
def test_tcp(hosts, reverse):
    server = hosts.right.spawn("iperf3", "-s", "-1", stdout=-3, stderr=-3)
    try:
        assert wait_for(lambda: ":5201" in hosts.right.run("ss", "-Hltn").stdout)
        options = ["-R"] if reverse else []
        said = hosts.left.run("iperf3", "-c", SINK, "-n", "20M", "-P", 4, "-J", *options, timeout=60)
        report = json.loads(said.stdout)
        assert "error" not in report, (report["error"], state(hosts))
        assert report["end"]["sum_received"]["bytes"] > 5_000_000
    finally:
        stop_process(server)


def test_the_slow_path_answers(hosts):
    said = hosts.left.run("ping", "-c", 1, "-W", 5, "-t", 1, SINK, check=False).stdout
    assert "From 10.0.1.1" in said and "Time to live exceeded" in said, said


def test_a_numbered_stream_is_complete_and_in_the_order_that_was_asked_for(hosts):
    before = device(hosts.router)
    flow = Flow(hosts, 5000)
    # Packets leave the stream at its rate at best: the machine may be slower by far.
    assert flow.sink.wait(STREAM, 60 + STREAM / 500)
    numbers, after = flow.stop(), device(hosts.router)
    worked = [one["packets"] for one in hosts.router.show("forwarders")["forwarders"][1:]]
    reordered = after["reordered"] - before["reordered"]
    assert after["returned"] - before["returned"] >= len(numbers)
    if hosts.mode[1] == "parallel":
        assert reordered == late(numbers)
    else:
        assert (numbers, reordered) == (sorted(numbers), 0)
    if hosts.mode != ("event_dsw0", "atomic"):
        # One flow, and more than one worker: only there it stays with one of them.
        assert hosts.mode[1] == "atomic" or min(worked) > 0, worked


def test_nothing_is_lost_over_changes_of_everything(lab):
    hosts = Hosts(lab, events())
    router = hosts.router
    flow = Flow(hosts, 2000)
    step = """
local counted = turnpike.counter "seen"
local pass = turnpike.step "pass" {
  process = function(batch, mask)
    for i in batch:each(mask) do counted:add(1) end
    return mask
  end,
}
turnpike.graph:insert_before("ip4-lookup", pass)
"""
    for text in [
        events(more="budget = 100"), events(order="atomic"), events(order="parallel"), events("event_dsw0", "atomic"),
        'turnpike.forwarders { cores = "0,1" }\n', 'turnpike.forwarders { cores = "1" }\n', events(),
        events().replace('cores = "0,1"', 'cores = "1"'), events(more="scheduler_core = 1"), events() + step, events(),
    ]:
        report, status = plan(router, PORTS + text)
        assert status == 2 and not report["restart"], report
        apply(router, PORTS + text)
        is_on = "events" in text
        assert ("events" in router.show("forwarders")) == is_on
        assert flow.sink.wait(200)
    numbers = flow.stop()
    assert len(numbers) > 1000
    router.counters()
    router.stop()


EACH_ITS_OWN = f"""
local turnpike = require "turnpike"
turnpike.filter "no-53" {{ {{ proto = "udp", to_port = 53, action = "drop" }}, default = "accept" }}
turnpike.filter "no-54" {{ {{ proto = "udp", to_port = 54, action = "drop" }}, default = "accept" }}
turnpike.port "left"  {{ device = "tp-left",  address = "10.0.1.1/24", filter = {{ inward = "no-53" }} }}
turnpike.port "right" {{ device = "tp-right", address = "10.0.2.1/24", filter = {{ inward = "no-54" }} }}
turnpike.vlan "left.7" {{ parent = "left", id = 7, address = "10.0.7.1/24" }}
turnpike.neighbour "10.0.1.2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "10.0.7.2" {{ port = "left.7", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
"""


def test_each_port_keeps_its_settings_where_a_worker_has_packets_of_all(lab):
    wires = Wires(lab, events(), ports=EACH_ITS_OWN, calm=True)
    router = wires.router

    def frame(source, to, port, number, macs):
        data = udp(source, to, 1, port, struct.pack("!I", number) + pattern(40))
        return ethernet(*macs, 0x0800, ipv4(source, to, data, ident=number))

    left, right = (LEFT_MAC, HOST_A_MAC), (RIGHT_MAC, HOST_B_MAC)
    change = Change(router)
    for number in range(100):
        port = 53 + number % 3
        wires.left.send(
            frame("10.0.1.2", "10.0.2.2", port, number, left),
            tagged(frame("10.0.7.2", "10.0.2.2", port, number, left), 7),
        )
        wires.right.send(
            frame("10.0.2.2", "10.0.1.2", port, number, right), frame("10.0.2.2", "10.0.7.2", port, number, right)
        )
    numbers = range(100)
    expected = [
        forwarded(frame(source, "10.0.2.2", 53 + n % 3, n, left), RIGHT_MAC, HOST_B_MAC)
        for source in ("10.0.1.2", "10.0.7.2") for n in numbers if source != "10.0.1.2" or n % 3 != 0
    ]
    assert sorted(wires.right.expect(len(expected))) == sorted(expected)
    plain, inside = [
        [
            forwarded(frame("10.0.2.2", to, 53 + n % 3, n, right), LEFT_MAC, HOST_A_MAC)
            for n in numbers if n % 3 != 1
        ]
        for to in ("10.0.1.2", "10.0.7.2")
    ]
    got = wires.left.expect(len(plain) + len(inside), lambda frame: socket.inet_aton("10.0.2.2") in frame)
    # Each flow in its order.
    assert [one for one in got if one in plain] == plain
    assert [one for one in got if one not in plain] == [tagged(one, 7) for one in inside]
    assert change(received=400)["dropped"]["filtered"] == 34 + 2 * 33
    assert all(one["packets"] > 0 for one in router.show("forwarders")["forwarders"][1:])
    router.stop()


def test_a_flow_stays_in_order_while_ports_come_and_go(lab):
    hosts = Hosts(lab, events())
    third = lab.namespace("third")
    veth(hosts.inside, "tp-third", third, "eth0", "02:00:00:00:03:01", "02:00:00:00:03:02")
    third.run("ip", "address", "add", "10.0.3.2/24", "dev", "eth0")
    third.run("ip", "route", "add", "default", "via", "10.0.3.1")
    more = 'turnpike.port "third" { device = "tp-third", address = "10.0.3.1/24" }\n'
    flow = Flow(hosts, 2000)
    for _ in range(2):
        apply(hosts.router, PORTS + events() + more)
        assert reaches(third, SINK) and reaches(hosts.left, "10.0.3.2")
        apply(hosts.router, PORTS + events() + more.replace("third\" {", "third\" { mtu = 1400,"))
        assert reaches(third, SINK)
        apply(hosts.router, PORTS + events())
    numbers = flow.stop()
    assert numbers == sorted(numbers) and device(hosts.router)["reordered"] == 0
    hosts.router.counters()
    hosts.router.stop()


@pytest.mark.parametrize("name, order", MODES, ids=IDS)
def test_it_stops_with_packets_inside_and_returns_every_buffer(lab, name, order):
    hosts = Hosts(lab, events(name, order))
    # The receive ring holds the packets of a second, however busy the machine is.
    flow = Flow(hosts, 2000)
    assert flow.sink.wait(500, 30)
    # It finds packets of some time when it goes on, and the signal.
    hosts.router.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    hosts.router.process.send_signal(signal.SIGTERM)
    hosts.router.stop(signal.SIGCONT)
    flow.stream.stop()
    arrived = [number for number, _ in flow.sink.arrived()]
    # All those that were received left: what is missing is the end.
    assert sorted(arrived) == list(range(len(arrived)))
    flow.sink.close()


def test_what_cannot_be_is_refused_and_changes_nothing(lab):
    hosts = Hosts(lab, events())
    for text, expected in [
        (events("event_dsw0", "ordered"), 'does not schedule "ordered"; use order = "atomic", or event_sw0'),
        (events("event_nic0"), "event device event_nic0: not found; name a device that DPDK has found"),
        (events("event_opdl0", "atomic"), "use event_sw0 or event_dsw0"),
        (events(order="any"), 'order "any" unknown; known: ordered, atomic, parallel'),
        (events(more="scheduler_core = 4000"), "scheduler_core: core 4000 does not exist"),
        ('turnpike.forwarders { order = "atomic" }', 'order belongs to mode = "events"; add that, or leave order out'),
        ('turnpike.forwarders { mode = "event" }', 'mode "event" unknown; known: run-to-completion, events'),
        ('turnpike.forwarders { mode = "events", cores = "0" }', "needs a core to receive and at least one to forward"),
    ]:
        said = refused(hosts.router, "apply", write(hosts.router, PORTS + text))
        assert expected in " ".join(said.split()), said
        assert device(hosts.router)["order"] == "ordered"
        assert reaches(hosts.left, SINK)
    hosts.router.counters()
    hosts.router.stop()


def test_a_wrong_device_is_told_at_the_start(lab):
    inside = lab.namespace("router")
    veth(inside, "tp-left", lab.namespace("left"), "eth0")
    ports = 'local turnpike = require "turnpike"\nturnpike.port "left" { device = "tp-left", address = "10.0.1.1/24" }\n'
    router = lab.router(inside, ports + events("event_dsw0", "ordered"), wait=False)
    assert router.process.wait(30) == 1
    assert 'event device event_dsw0: its driver does not schedule "ordered"' in router.log()

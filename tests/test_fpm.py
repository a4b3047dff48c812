"""FRR by its FPM module `dplane_fpm_nl`: zebra sends routes to Turnpike over TCP, the kernel does not forward; and
arbitrary other input on that port."""

import os
import random
import socket
import struct
import time

import pytest

from lib import netlink, tables
from lib.apply import apply
from lib.bird import Bird, announcer
from lib.frr import Frr, bgp
from lib.kernel import Machine, forwarder, host, pings
from lib.netns import wait_for
from lib.speaker import Speaker, announcements, table, table6, withdrawals
from lib.traffic import Sink, Stream, gets_through, lost

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="FPM is between zebra and Turnpike")

ROUTES = int(os.environ.get("SCENARIO_ROUTES", 10_000))
PORT = 2620


def edge(lab, frr=True, sources='"fpm"', config=""):
    """A source, a router that listens for zebra, and a gateway that accepts everything."""
    machine = Machine(lab, "router")
    machine.left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    machine.right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1", gateway=True)
    machine.start(sources, config)
    if frr:
        peers = {"10.0.2.2": (65002,), "fd00:2::2": (65002,)}
        machine.frr = Frr(
            machine.space, {"zebra": f"fpm address 127.0.0.1 port {PORT}\n", "bgpd": bgp(65001, "10.0.2.1", peers)},
            zebra_options=["-M", "dplane_fpm_nl", "-r", "-K", "60"],
        )
        lab._made.callback(machine.frr.close)
    return machine


def source(machine):
    """The router's report on FPM as a source."""
    return tables.source(machine.router, "fpm")


def test_zebra_by_fpm(lab):
    machine = edge(lab)
    four, six = table(ROUTES), table6(ROUTES // 10)
    speakers = [Speaker(machine.right, peer, 65002, "10.0.2.2") for peer in ("10.0.2.1", "fd00:2::1")]
    for speaker, routes, next_hop in zip(speakers, (four, six), ("10.0.2.2", "fd00:2::2")):
        lab._made.callback(speaker.close)
        speaker.send(announcements(routes, 65002, next_hop))
    agree = lambda count: tables.assert_agree(machine, machine.frr, source="fpm", count=count, seconds=60)  # noqa: E731
    before = agree(ROUTES + ROUTES // 10)

    sink = Sink(machine.right)
    addresses = [p.split("/")[0] for p, _ in four[::50]] + [p.split("/")[0] + "1" for p, _ in six[::20]]
    stream = Stream(machine.left, addresses, rate=1500)
    assert sink.wait(500)
    # zebra is killed. Its routes stay in use; after its restart it announces all of them again.
    machine.frr.stop("zebra", kill=True)
    assert wait_for(lambda: source(machine)["state"] == "disconnected", 10, 0.1)
    assert sink.wait(500)
    resyncs = source(machine)["resyncs"]
    machine.frr.start("zebra")
    assert wait_for(lambda: source(machine)["resyncs"] > resyncs, 60, 0.2), source(machine)
    assert machine.frr.reconnected()
    assert agree(len(before)) == before
    assert lost(stream.stop(), sink) == []
    # Half of them are withdrawn.
    for speaker, routes in zip(speakers, (four, six)):
        speaker.send(withdrawals([prefix for prefix, _ in routes[::2]]))
    left = len(before) - len(four[::2]) - len(six[::2])
    assert wait_for(lambda: len(tables.zebra(machine.frr)) == left, 60, 0.2)
    assert len(agree(left)) == left
    sink.close()
    machine.finish()


def test_the_router_restarts_under_zebra(lab):
    machine = edge(lab)
    four = table(2000)
    # A BIRD, because the session breaks with the link and has to be re-established.
    config, files = announcer(65002, "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1", {"four": [p for p, _ in four]})
    lab._made.callback(Bird(machine.right, config, files).close)
    tables.assert_agree(machine, machine.frr, source="fpm", count=2000, seconds=60)
    machine.router.process.kill()
    machine.router.process.wait()
    machine.start('"fpm"')
    # zebra connects again by itself.
    tables.assert_agree(machine, machine.frr, source="fpm", count=2000, seconds=60)
    assert gets_through(machine.left, machine.right, four[0][0].split("/")[0])
    machine.finish()


def test_an_apply_leaves_the_routes_of_zebra(lab):
    machine = edge(lab)
    routes, come_and_go = table(4000)[:2000], table(4000)[2000:]
    speaker = Speaker(machine.right, "10.0.2.1", 65002, "10.0.2.2")
    lab._made.callback(speaker.close)
    speaker.send(announcements(routes, 65002, "10.0.2.2"))
    before = tables.assert_agree(machine, machine.frr, source="fpm", count=2000, seconds=60)
    ports = machine.config('"fpm"')
    inserted = 'turnpike.graph:insert_after("ip4-lookup.forward", { "ip4-ttl", as = "second-ttl" })\n'
    # The same prefix as one of zebra's, which zebra must get back; none is longer.
    prefix = max((prefix for prefix, _ in routes[1:]), key=lambda prefix: int(prefix.split("/")[1]))
    contested, address = f'turnpike.route "{prefix}" {{ blackhole = true }}\n', prefix.split("/")[0]
    sink = Sink(machine.right)
    stream = Stream(machine.left, [routes[0][0].split("/")[0]], rate=2000)
    assert sink.wait()
    change = announcements(come_and_go, 65002, "10.0.2.2"), withdrawals([prefix for prefix, _ in come_and_go])
    for turn in range(6):
        speaker.send(change[turn % 2])
        apply(machine.router, ports if turn % 2 else ports + inserted + contested)
        if turn % 2 == 0:
            assert machine.router.show("route", address)["type"] == "blackhole"
        else:
            after = tables.assert_agree(machine, machine.frr, source="fpm", count=2000, seconds=60)
            assert after == before and machine.router.show("route", address)["source"] == "fpm"
    assert lost(stream.stop(), sink) == []
    machine.finish()


# --- bad input -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listener(module_lab):
    machine = edge(module_lab, frr=False, config="turnpike.fpm { keep_s = 1 }\n")
    machine.right_index = machine.index("right")
    yield machine
    machine.finish()


def bad_inputs():
    """Input on the port: a name, the bytes."""
    route, frame = netlink.route, netlink.fpm
    good = route("192.0.2.0/24", netlink.gateway("10.0.2.2"), netlink.oif(1))
    dice = random.Random(2620)
    multipath = struct.pack("=HBBi", 200, 0, 0, 1)
    return {
        "noise": dice.randbytes(5000),
        "another protocol": b"GET / HTTP/1.1\r\nHost: router\r\n\r\n",
        "another version": frame(good, version=7),
        "another encoding": frame(good, kind=2),
        "a frame shorter than its head": frame(b"", length=3),
        "a message longer than its frame": frame(netlink.message(24, good[16:], length=5000)),
        "a message shorter than its head": frame(netlink.message(24, good[16:], length=7)),
        "a message without a body": frame(netlink.message(24, b"")),
        "an attribute of no length": frame(route("192.0.2.0/24", struct.pack("=HH", 0, 5))),
        "an attribute longer than its message": frame(route("192.0.2.0/24", struct.pack("=HH", 900, 5))),
        "a gateway of three bytes": frame(route("192.0.2.0/24", netlink.attribute(5, b"abc"))),
        "a path longer than its attribute": frame(route("192.0.2.0/24", netlink.attribute(9, multipath))),
        "a prefix length of 200": frame(route("192.0.2.0/24", netlink.gateway("10.0.2.2"), length=200)),
        "a family nobody knows": frame(route("192.0.2.0/24", netlink.gateway("10.0.2.2"), family=99)),
    }


def complaints(machine):
    """Malformed messages, messages without effect here, and refused changes."""
    now = source(machine)
    return now["errors"] + now["ignored"] + now["refused"]


@pytest.mark.parametrize("name", bad_inputs())
def test_bad_input_does_no_harm(listener, name):
    before = complaints(listener)
    with connect(listener) as connection:
        # The peer may close it at once.
        try:
            connection.sendall(bad_inputs()[name])
            time.sleep(0.05)
        except OSError:
            pass
    # Then a peer connects that uses the protocol correctly, with an unknown attribute in addition.
    good = netlink.route("198.51.100.0/24", netlink.gateway("10.0.2.2"), netlink.oif(listener.right_index),
                         netlink.attribute(200, b"unheard of"))
    with connect(listener) as connection:
        connection.sendall(netlink.fpm(good))
        assert wait_for(lambda: listener.router.show("route", "198.51.100.9")["prefix"] == "198.51.100.0/24", 10)
        assert gets_through(listener.left, listener.right, "198.51.100.9")
    assert wait_for(lambda: complaints(listener) > before, 10), f"{name} is not counted"
    assert listener.router.show("route", "192.0.2.1")["type"] in ("no-route", "unreachable")
    assert "panicked" not in listener.router.log()


def test_a_route_whose_next_hop_is_behind_itself(listener):
    with connect(listener) as connection:
        loops = [
            netlink.route("198.18.0.0/24", netlink.gateway("198.18.0.1")),
            # Each behind the other.
            netlink.route("198.18.1.0/24", netlink.gateway("198.18.2.1")),
            netlink.route("198.18.2.0/24", netlink.gateway("198.18.1.1")),
        ]
        good = netlink.route("198.51.100.0/24", netlink.gateway("10.0.2.2"), netlink.oif(listener.right_index))
        connection.sendall(b"".join(map(netlink.fpm, [*loops, good])))
        assert gets_through(listener.left, listener.right, "198.51.100.9")
        for address in ("198.18.0.9", "198.18.1.9", "198.18.2.9"):
            assert not pings(listener.left, address)
    assert "panicked" not in listener.router.log()


def connect(machine):
    """A connection to the router's FPM port."""
    with machine.space.entered():
        connection = socket.socket()
    connection.settimeout(5)
    connection.connect(("127.0.0.1", PORT))
    return connection

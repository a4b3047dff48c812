"""The network namespace of host interfaces changed while the router runs: host interfaces, the kernel's routes,
addresses and neighbours, zebra's listener."""

import socket
import subprocess

import pytest

from lib.apply import apply, plan, refused, write
from lib.kernel import pings, reaches
from lib.lab import Hosts
from lib.netns import held_thread, wait_for
from lib.traffic import Sink, Stream, gets_through, lost

SOURCES = 'turnpike.routes_from { "kernel" }\n'


def text(space, more=SOURCES):
    """Two ports with host interfaces in a namespace."""
    host = f'{{ netns = "{space if isinstance(space, str) else space.name}" }}'
    return f"""
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "tp-left", host = {host}, address = {{ "10.0.1.1/24", "fd00:1::1/64" }} }}
turnpike.port "right" {{ device = "tp-right", host = {host}, address = {{ "10.0.2.1/24", "fd00:2::1/64" }} }}
{more}"""


class Spaces:
    """A router between two hosts, with two namespaces for its host interfaces, of which `one` has them."""

    def __init__(self, lab, more=SOURCES):
        self.one, self.two = (lab.namespace(name) for name in ("one", "two"))
        for space in (self.one, self.two):
            space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        hosts = Hosts(lab, ports=text(self.one, more))
        self.left, self.right, self.inside, self.router = hosts.left, hosts.right, hosts.inside, hosts.router
        assert reaches(self.left, "10.0.2.2")

    def links(self, space):
        """The names of host interfaces in a namespace."""
        shown = space.run("ip", "-o", "link").stdout
        return {name for name in ("left", "right") if f": {name}:" in shown}

    def places(self):
        """The namespaces of the host interfaces, as `show ports` has them."""
        return {port["host"]["netns"] for port in self.router.show("ports")}


def of_kernel(router):
    return {route["prefix"] for route in router.show("routes", "--source", "kernel") if route["active"]}


def test_host_interfaces_move_and_forwarded_packets_do_not_notice(lab):
    spaces = Spaces(lab)
    router = spaces.router
    spaces.one.run("ip", "route", "add", "198.51.100.0/24", "via", "10.0.2.2")
    spaces.one.run("ip", "route", "add", "203.0.113.0/24", "via", "10.0.2.2")
    assert wait_for(lambda: of_kernel(router) >= {"198.51.100.0/24", "203.0.113.0/24"})
    spaces.right.run("ip", "address", "add", "203.0.113.1/32", "dev", "lo")
    spaces.right.run("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    report, status = plan(router, text(spaces.two))
    changes = {change["what"]: change for change in report["changes"]}
    assert status == 2 and not report["restart"] and set(changes) == {'port "left": host', 'port "right": host'}
    assert all(change["live"] and not change["reopens"] for change in changes.values()), changes
    assert changes['port "left": host']["to"] == f"in namespace {spaces.two.name}"
    sink = Sink(spaces.right)
    stream = Stream(spaces.left, ["10.0.2.2"], rate=1000)
    assert sink.wait(1)
    here, there = spaces.one, spaces.two
    for turn in range(4):
        if turn % 2 == 0:
            apply(router, text(there))
        else:
            router.command("rollback")
        assert wait_for(lambda: spaces.links(there) == {"left", "right"} and spaces.links(here) == set())
        assert spaces.places() == {f"/run/netns/{there.name}"}
        # The configuration's addresses are on them, and the kernel there answers and asks.
        assert wait_for(lambda: "10.0.2.1/24" in there.run("ip", "address", "show", "dev", "right").stdout)
        assert reaches(spaces.left, "10.0.1.1") and reaches(there, "10.0.2.2") and reaches(there, "fd00:2::2")
        assert router.show("ports")[1]["addresses"] == ["10.0.2.1/24", "fd00:2::1/64"]
        # Routes of this kernel, and no others.
        there.run("ip", "route", "replace", "192.0.2.0/24", "via", "10.0.2.2")
        assert wait_for(lambda: "192.0.2.0/24" in of_kernel(router))
        assert wait_for(lambda: "198.51.100.0/24" not in of_kernel(router)), of_kernel(router)
        assert gets_through(spaces.left, spaces.right, "192.0.2.1", port=40001)
        there.run("ip", "route", "del", "192.0.2.0/24")
        assert wait_for(lambda: "192.0.2.0/24" not in of_kernel(router))
        here, there = there, here
    assert lost(stream.stop(), sink) == []
    sink.close()
    router.counters()
    router.stop()


def test_a_rollback_waits_until_the_former_host_interfaces_are_removed(lab):
    spaces = Spaces(lab)
    router = spaces.router
    # They are removed once the kernel's listener has moved.
    with held_thread(router.thread("netlink")):
        apply(router, text(spaces.two))
        assert spaces.links(spaces.one) == {"left", "right"}
        rollback = router.begin("rollback")
        with pytest.raises(subprocess.TimeoutExpired):
            rollback.wait(1)
    out, error = rollback.communicate(timeout=20)
    assert rollback.returncode == 0, out + error
    assert wait_for(lambda: spaces.links(spaces.two) == set())
    assert spaces.links(spaces.one) == {"left", "right"} and reaches(spaces.left, "10.0.1.1")
    router.stop()


def test_routes_that_both_kernels_have_stay(lab):
    spaces = Spaces(lab)
    router = spaces.router
    for space in (spaces.one, spaces.two):
        space.run("ip", "link", "set", "lo", "up")
    spaces.one.run("ip", "route", "add", "203.0.113.0/24", "via", "10.0.2.2")
    spaces.one.run("ip", "route", "add", "blackhole", "198.51.100.0/24")
    spaces.two.run("ip", "route", "add", "blackhole", "192.0.2.0/24")
    assert wait_for(lambda: of_kernel(router) >= {"198.51.100.0/24", "203.0.113.0/24"})
    apply(router, text(spaces.two))
    assert wait_for(lambda: "192.0.2.0/24" in of_kernel(router) and not of_kernel(router) & {"198.51.100.0/24", "203.0.113.0/24"})
    router.command("rollback")
    # The first host interfaces were removed, and the kernel's routes over them.
    assert wait_for(lambda: "198.51.100.0/24" in of_kernel(router) and "192.0.2.0/24" not in of_kernel(router))
    assert "203.0.113.0/24" not in of_kernel(router)
    router.stop()


def test_an_unknown_namespace_is_refused_and_nothing_moves(lab):
    spaces = Spaces(lab)
    router = spaces.router
    sink = Sink(spaces.right)
    stream = Stream(spaces.left, ["10.0.2.2"], rate=1000)
    assert sink.wait(1)
    error = refused(router, "apply", write(router, text("turnpike-none")))
    assert "turnpike-none" in error and "ip netns add" in error, error
    # A change that fails later leaves no host interface behind.
    broken = text(spaces.two) + 'turnpike.telnet { listen = "127.0.0.1:2324" }\n'
    with spaces.inside.entered(), socket.create_server(("127.0.0.1", 2324)):
        assert "nothing was changed" in refused(router, "apply", write(router, broken))
    assert wait_for(lambda: spaces.links(spaces.two) == set())
    assert spaces.links(spaces.one) == {"left", "right"} and reaches(spaces.left, "10.0.1.1")
    assert lost(stream.stop(), sink) == []
    sink.close()
    # It can still move.
    apply(router, text(spaces.two))
    assert wait_for(lambda: spaces.links(spaces.one) == set()) and reaches(spaces.left, "10.0.1.1")
    router.stop()


def test_without_routes_from_the_addresses_beside_are_those_of_the_namespace(lab):
    spaces = Spaces(lab, "")
    router = spaces.router
    for space, address in ((spaces.one, "192.0.2.1"), (spaces.two, "192.0.2.2")):
        space.run("ip", "link", "set", "lo", "up")
        space.run("ip", "address", "add", f"{address}/32", "dev", "lo")
    assert reaches(spaces.left, "192.0.2.1") and not pings(spaces.left, "192.0.2.2")
    apply(router, text(spaces.two, ""))
    assert reaches(spaces.left, "192.0.2.2")
    assert wait_for(lambda: not pings(spaces.left, "192.0.2.1"))
    router.command("rollback")
    assert reaches(spaces.left, "192.0.2.1")
    router.stop()


def test_zebra_is_listened_for_in_the_new_namespace(lab):
    fpm = 'turnpike.routes_from { "fpm" }\nturnpike.fpm { listen = "127.0.0.1:2620" }\n'
    spaces = Spaces(lab, fpm)
    router = spaces.router
    for space in (spaces.one, spaces.two):
        space.run("ip", "link", "set", "lo", "up")

    def listens(space):
        with space.entered(), socket.socket() as client:
            client.settimeout(1)
            return client.connect_ex(("127.0.0.1", 2620)) == 0

    assert wait_for(lambda: listens(spaces.one)) and not listens(spaces.two)
    apply(router, text(spaces.two, fpm))
    assert wait_for(lambda: listens(spaces.two)) and wait_for(lambda: not listens(spaces.one))
    router.command("rollback")
    assert wait_for(lambda: listens(spaces.one)) and wait_for(lambda: not listens(spaces.two))
    router.stop()

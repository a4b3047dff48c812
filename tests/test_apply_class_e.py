"""240.0.0.0/4 accepted and refused by a running router: routes of the configuration, of commands and of the kernel,
addresses, sources, errors."""

import socket

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from lib.apply import apply, plan, refused, write
from lib.kernel import Machine, forwarder, host
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires, from_left
from lib.netns import wait_for
from lib.packets import forwarded
from lib.router import Change
from lib.traffic import Sink, Stream, gets_through, lost

BASE = PORTS + STATIC_NEIGHBOURS
ACCEPTED = "turnpike.forwarding { class_e = true }\n"
ROUTES = """
turnpike.route "240.0.0.0/4" { via = "10.0.2.2" }
turnpike.route "250.0.0.0/8" { via = "10.0.1.2" }
"""


def test_class_e_is_forwarded_after_an_apply_and_dropped_after_the_rollback(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    frames = [from_left("10.0.1.2", "240.0.0.1"), from_left("250.1.2.3", "10.0.2.2"), from_left("10.0.1.2", "10.0.2.2")]
    report, status = plan(router, BASE + ACCEPTED + ROUTES)
    change = next(change for change in report["changes"] if change["what"] == "forwarding: class_e")
    assert status == 2 and change["live"] and (change["from"], change["to"]) == ("false", "true"), report
    for _ in range(3):
        wires.drain()
        change = Change(router)
        wires.left.send(*frames)
        assert wires.right.expect(1) == [forwarded(frames[2], RIGHT_MAC, HOST_B_MAC)]
        dropped = {"martian-destination": 1, "ip4-martian-source": 1}
        assert change(received=3) == {"received": 3, "sent": 1, "dropped": dropped}
        assert router.show("route", "240.0.0.1")["type"] == "martian"
        applied = apply(router, BASE + ACCEPTED + ROUTES)
        assert applied["pause_us"] is None, "forwarders exchange nothing"
        change = Change(router)
        wires.left.send(*frames)
        assert wires.right.expect(3) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in frames]
        assert change(received=3) == {"received": 3, "sent": 3}
        # The slow path has followed as well: hosts there get errors.
        wires.left.send(from_left("250.1.2.3", "10.0.2.2", ttl=1))
        (error,) = wires.left.expect(1)
        assert Ether(error)[IP].dst == "250.1.2.3" and Ether(error)[ICMP].type == 11
        router.command("rollback")
    router.counters()
    router.stop()


def test_a_refused_change_leaves_class_e_as_it_was(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    broken = BASE + ACCEPTED + ROUTES + 'turnpike.telnet { listen = "127.0.0.1:2324" }\n'
    with wires.inside.entered(), socket.create_server(("127.0.0.1", 2324)):
        assert "nothing was changed" in refused(router, "apply", write(router, broken))
    wires.left.send(from_left("10.0.1.2", "240.0.0.1"))
    assert wires.silent(0.1)
    error = refused(router, "route", "add", "251.0.0.0/8", "via", "10.0.2.2")
    assert "class_e = true" in error
    router.stop()


def test_commands_and_addresses_there_and_other_traffic_loses_nothing(lab):
    hosts = Hosts(lab)
    router = hosts.router
    hosts.left.run("ip", "address", "add", "250.0.0.2/24", "dev", "eth0")
    hosts.right.run("ip", "address", "add", "240.9.0.1/32", "dev", "lo")
    more = PORTS.replace('"10.0.1.1/24",', '"10.0.1.1/24", "250.0.0.1/24",') + ACCEPTED
    pings = lambda address: hosts.left.run(  # noqa: E731
        "ping", "-c", 1, "-W", 1, "-I", "250.0.0.2", address, check=False).returncode == 0
    # Resolved, so that the stream has no packet that waits.
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    sink = Sink(hosts.right)
    stream = Stream(hosts.left, ["10.0.2.2"], rate=1000)
    assert sink.wait(1)
    apply(router, more)
    router.command("route", "add", "240.9.0.0/16", "via", "10.0.2.2")
    assert wait_for(lambda: pings("250.0.0.1")) and wait_for(lambda: pings("10.0.2.2"))
    assert gets_through(hosts.left, hosts.right, "240.9.0.1", port=40001)
    shown = lambda: router.show("routes", "--prefix", "240.9.0.0/16")[0]  # noqa: E731
    for _ in range(2):
        assert shown()["active"]
        router.command("rollback")
        assert not shown()["active"] and shown()["inactive"] == "not-accepted"
        # Not those at rest: the stream goes on.
        before = router.show("counters")["dropped"]
        assert not pings("250.0.0.1") and not gets_through(hosts.left, hosts.right, "240.9.0.1", 0.5, port=40001)
        for reason in ("ip4-martian-source", "martian-destination"):
            assert wait_for(lambda reason=reason: router.show("counters")["dropped"][reason] > before[reason]), reason
        apply(router, more)
        assert wait_for(lambda: pings("250.0.0.1"))
        assert gets_through(hosts.left, hosts.right, "240.9.0.1", port=40001)
    router.command("rollback")
    # A command removes its route also while it is held.
    router.command("route", "del", "240.9.0.0/16")
    assert router.show("routes", "--prefix", "240.9.0.0/16") == []
    assert lost(stream.stop(), sink) == []
    sink.close()
    router.stop()


@pytest.mark.skipif(forwarder() != "turnpike", reason="the kernel has no configuration to apply")
def test_routes_of_the_kernel_that_were_refused_come_in(lab):
    machine = Machine(lab, "router")
    machine.left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    machine.right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1", gateway=True)
    machine.ip("route", "add", "99.0.0.0/8", "dev", "lo", "metric", 9)
    machine.start()
    router = machine.router
    accepted = machine.config() + ACCEPTED
    wanted = {f"240.{n}.0.0/16" for n in range(50)}
    machine.batch([f"route add {prefix} via 10.0.2.2" for prefix in sorted(wanted)])
    machine.ip("route", "add", "198.51.100.0/24", "via", "10.0.2.2")
    active = lambda: {  # noqa: E731
        route["prefix"] for route in router.show("routes", "--source", "kernel") if route["active"]}
    assert wait_for(lambda: "198.51.100.0/24" in active())
    sink = Sink(machine.right)
    stream = Stream(machine.left, ["198.51.100.1"], rate=1000)
    assert sink.wait(1)
    for turn in range(2):
        assert not active() & wanted
        apply(router, accepted)
        assert active() >= wanted, wanted - active()
        assert gets_through(machine.left, machine.right, "240.7.0.1", port=40001)
        # Routes of the time between, in either state.
        machine.ip("route", "add", f"241.{turn}.0.0/16", "via", "10.0.2.2")
        assert wait_for(lambda: f"241.{turn}.0.0/16" in active())
        router.command("rollback")
        assert "198.51.100.0/24" in active()
        machine.ip("route", "del", f"241.{turn}.0.0/16")
        assert wait_for(lambda: router.show("routes", "--prefix", f"241.{turn}.0.0/16") == [])
    assert router.show("route", "240.7.0.1")["type"] == "martian"
    assert lost(stream.stop(), sink) == []
    sink.close()
    machine.finish()

"""Sources of routes of a running router changed by another configuration: the kernel's routes, zebra's listener."""

import socket

import pytest

from lib import netlink, tables
from lib.apply import apply, plan, refused, write
from lib.kernel import Machine, forwarder, host, reaches
from lib.netns import wait_for
from lib.traffic import Sink, Stream, gets_through, lost

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="the kernel has no configuration to apply")

KERNEL = "198.51.100.0/24"
STATIC = 'turnpike.route "203.0.113.0/24" { via = "10.0.2.2" }\n'


def edge(lab):
    """A router without sources between a host and a gateway that accepts everything, with its kernel beside it."""
    machine = Machine(lab, "router")
    machine.left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    machine.right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1", gateway=True)
    machine.start(config=STATIC)
    apply(machine.router, text(machine))
    return machine


def text(machine, sources=None, config=""):
    """The configuration with these sources, or none."""
    whole = machine.config(sources or "")
    if sources is None:
        whole = whole.replace("turnpike.routes_from {  }\n", "")
    return whole + STATIC + config


def planned(machine, *how):
    """The planned changes, after a check that none needs a restart or closes a port."""
    report, status = plan(machine.router, text(machine, *how))
    assert status == 2 and not report["restart"] and not any(change["reopens"] for change in report["changes"])
    return {change["what"]: (change["from"], change["to"]) for change in report["changes"]}


def of_kernel(machine):
    return [route["prefix"] for route in machine.router.show("routes", "--source", "kernel")]


def names(machine):
    """The sources outside the router."""
    return {source["name"] for source in machine.router.show("sources")} & {"kernel", "fpm"}


def test_routes_of_the_kernel_come_and_go_and_other_packets_pass_all_the_time(lab):
    machine = edge(lab)
    router = machine.router
    assert names(machine) == set() and of_kernel(machine) == []
    machine.ip("route", "add", KERNEL, "via", "10.0.2.2")
    machine.ip("route", "add", "203.0.113.0/24", "via", "10.0.2.2")
    assert reaches(machine.left, "10.0.2.2"), "neighbours are known"
    sink = Sink(machine.right)
    stream = Stream(machine.left, ["10.0.2.2", "203.0.113.1"], rate=1000)
    assert sink.wait(1)
    assert planned(machine, '"kernel"')["routes_from: kernel"] == ("false", "true")
    for turn in range(3):
        apply(router, text(machine, '"kernel"'))
        assert wait_for(lambda: KERNEL in of_kernel(machine), 10), router.show("sources")
        assert wait_for(lambda: tables.source(router, "kernel")["state"] == "synchronised")
        assert gets_through(machine.left, machine.right, "198.51.100.1", port=40001)
        # A change behind the reading is followed as well.
        machine.ip("route", "add", f"192.0.2.{turn}/32", "via", "10.0.2.2")
        assert wait_for(lambda: f"192.0.2.{turn}/32" in of_kernel(machine))
        if turn == 1:
            router.command("rollback")
        else:
            apply(router, text(machine))
        assert wait_for(lambda: of_kernel(machine) == []) and names(machine) == set()
        assert router.show("route", "198.51.100.1")["type"] == "no-route"
        # Addresses and neighbours of host interfaces stay the kernel's.
        assert "10.0.2.1/24" in router.show("ports")[1]["addresses"]
    assert lost(stream.stop(), sink) == []
    sink.close()
    machine.finish()


def test_audits_and_the_receive_buffer(lab):
    machine = edge(lab)
    router = machine.router
    apply(router, text(machine, '"kernel"'))
    machine.ip("route", "add", KERNEL, "via", "10.0.2.2")
    assert wait_for(lambda: of_kernel(machine) == [KERNEL])
    often = '"kernel", audit_s = 1, receive_buffer_mib = 8'
    assert planned(machine, often).keys() == {"routes_from: audit_s", "routes_from: receive_buffer_mib"}
    audits = lambda: tables.source(router, "kernel")["audits"]  # noqa: E731
    before = audits()
    apply(router, text(machine, often))
    assert wait_for(lambda: audits() > before + 1, 20)
    assert of_kernel(machine) == [KERNEL] and tables.source(router, "kernel")["audits_failed"] == 0
    machine.finish()


def connect(machine, port):
    with machine.space.entered():
        connection = socket.socket()
        connection.settimeout(5)
        connection.connect(("127.0.0.1", port))
    return connection


def refuses(machine, port):
    try:
        connect(machine, port).close()
        return False
    except OSError:
        return True


def by_zebra(machine):
    return [route["prefix"] for route in machine.router.show("routes", "--source", "fpm")]


def listening(port, rest=""):
    return ['"fpm"', f'turnpike.fpm {{ listen = "127.0.0.1:{port}", {rest} }}\n']


def test_zebra_s_way_in_comes_moves_and_goes(lab):
    machine = edge(lab)
    router = machine.router
    assert refuses(machine, 2620)
    assert reaches(machine.left, "10.0.2.2"), "neighbours are known"
    sink = Sink(machine.right)
    stream = Stream(machine.left, ["10.0.2.2", "203.0.113.1"], rate=1000)
    assert sink.wait(1)
    assert planned(machine, *listening(2620))["routes_from: fpm"] == ("false", "true")
    apply(router, text(machine, *listening(2620)))
    assert names(machine) == {"fpm"}
    index = machine.index("right")
    route = lambda net: netlink.fpm(netlink.route(net, netlink.gateway("10.0.2.2"), netlink.oif(index)))  # noqa: E731
    zebra = connect(machine, 2620)
    zebra.sendall(route(KERNEL))
    assert wait_for(lambda: by_zebra(machine) == [KERNEL])
    assert gets_through(machine.left, machine.right, "198.51.100.1", port=40001)

    # An address in use, and an unknown user: the router keeps its settings.
    with machine.space.entered():
        taken = socket.create_server(("127.0.0.1", 2621))
    error = refused(router, "apply", write(router, text(machine, *listening(2621))))
    assert "cannot listen on 127.0.0.1:2621" in error and "nothing was changed" in error
    taken.close()
    error = refused(router, "apply", write(router, text(machine, *listening(2620, 'users = { "nobody-of-that-name" }'))))
    assert "nobody-of-that-name" in error
    assert by_zebra(machine) == [KERNEL] and not refuses(machine, 2620)

    # Another address and another time: a zebra that is connected stays, and its routes with it.
    assert planned(machine, *listening(2622, "keep_s = 1")).keys() == {"fpm: listen", "fpm: keep_s"}
    apply(router, text(machine, *listening(2622, "keep_s = 1")))
    assert wait_for(lambda: refuses(machine, 2620))
    zebra.sendall(route("192.0.2.0/24"))
    assert wait_for(lambda: sorted(by_zebra(machine)) == ["192.0.2.0/24", KERNEL])
    zebra.close()
    assert wait_for(lambda: by_zebra(machine) == [], 20), "kept for a second"

    # On the same address: the connection and the routes stay.
    zebra = connect(machine, 2622)
    zebra.sendall(route(KERNEL))
    assert wait_for(lambda: by_zebra(machine) == [KERNEL])
    apply(router, text(machine, *listening(2622, 'keep_s = 100, users = { "daemon" }')))
    zebra.sendall(route("192.0.2.0/24"))
    assert wait_for(lambda: sorted(by_zebra(machine)) == ["192.0.2.0/24", KERNEL])
    # Both sources, then neither: zebra's routes are removed, whether it is connected or not.
    both = ['"kernel", "fpm"', listening(2622)[1]]
    apply(router, text(machine, *both))
    assert names(machine) == {"kernel", "fpm"}
    apply(router, text(machine))
    assert wait_for(lambda: by_zebra(machine) == []) and names(machine) == set()
    assert wait_for(lambda: refuses(machine, 2622))
    assert router.show("route", "198.51.100.1")["type"] == "no-route"
    # Back to both, from the history.
    router.command("rollback")
    assert names(machine) == {"kernel", "fpm"} and not refuses(machine, 2622)
    assert lost(stream.stop(), sink) == []
    sink.close()
    machine.finish()


def test_sources_that_are_not_confirmed_go(lab):
    machine = edge(lab)
    router = machine.router
    machine.ip("route", "add", KERNEL, "via", "10.0.2.2")
    apply(router, text(machine, '"kernel", "fpm"'), "--confirm", "2s")
    assert wait_for(lambda: of_kernel(machine) == [KERNEL]) and not refuses(machine, 2620)
    assert wait_for(lambda: names(machine) == set() and of_kernel(machine) == [], 20)
    assert wait_for(lambda: refuses(machine, 2620))
    machine.finish()

"""The router ends, cleanly or not, and starts again on a kernel that has kept its routes.

RESTART_ROUTES=1000000 makes it the table that the router promises to be back with within 2 s.
"""

import os
import time
from pathlib import Path

import pytest

from lib import netlink, tables
from lib.bgp import announced
from lib.kernel import Machine, forwarder, host
from lib.manager import Manager
from lib.netns import wait_for
from lib.traffic import Sink, Stream, gets_through

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="the kernel does not restart")

ROUTES = int(os.environ.get("RESTART_ROUTES", 50_000))


def seconds_used(pid):
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_it_forwards_again_soon(lab, kill):
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", gateway=True)
    machine.start()
    index = machine.index("right")
    prefixes = [f"{20 + (n >> 16)}.{(n >> 8) & 255}.{n & 255}.0/24" for n in range(ROUTES)]
    netlink.write(machine.space, netlink.ipv4_routes(prefixes, ["10.0.2.2"], [index]))
    assert wait_for(lambda: tables.turnpike_count(machine.router, "kernel") == ROUTES, 60, 0.1)
    kernel = machine.route_count()
    sink = Sink(right)
    stream = Stream(left, [p.replace("0/24", "9") for p in prefixes[:: ROUTES // 500]], rate=1000)
    assert sink.wait(500)

    machine.router.kill() if kill else machine.router.stop()
    time.sleep(0.3)
    # The kernel has kept them: it and its daemons do not notice.
    assert machine.route_count() == kernel
    sink.arrived()
    start = time.time()
    machine.start()
    assert sink.wait(300, 30)
    first = min(when for _, when in sink.arrived(0) if when > start) - start
    assert wait_for(lambda: tables.turnpike_count(machine.router, "kernel") == ROUTES, 60, 0.05)
    complete = time.time() - start
    print(f"{ROUTES} routes: first packet after {first:.2f} s, all routes after {complete:.2f} s")
    # Of the processor: others may have it meanwhile.
    assert seconds_used(machine.router.process.pid) < 10
    # Every address is reachable again, by any route.
    time.sleep(0.2)
    mark = len(sink.arrived(0))
    assert sink.wait(500)
    numbers = [number for number, _ in sink.arrived(0)[mark:]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "some are lost still"
    stream.stop()
    if ROUTES <= 100_000:
        tables.assert_agree(machine, families=[4], count=ROUTES)
    machine.finish()
    sink.close()


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_with_a_service_manager_frr_does_not_notice(lab, kill):
    """Zebra's routes are over nexthop objects, which the kernel drops with the carrier; and a BGP session ends with it.
    The carrier stays as long as a process holds the descriptor."""
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", gateway=True)
    manager = Manager()
    lab._made.callback(manager.close)
    machine.start(manager=manager)
    _, speaker, routes = announced(lab, machine, right)
    objects = machine.run("ip", "nexthop").stdout
    kernel = machine.route_count()
    assert "via 10.0.2.2" in objects
    index = machine.index("right")

    # One keeper is enough.
    assert machine.router.holder() is None
    machine.router.kill() if kill else machine.router.stop()
    manager.receive()
    assert sorted(name.split("-")[2] for name in manager.kept) == ["left", "right"]
    # The kernel reports a lost carrier after a second at most.
    time.sleep(1.5)
    assert machine.run("ip", "nexthop").stdout == objects
    machine.start(manager=manager)
    assert tables.turnpike_count(machine.router, "kernel") == len(routes)
    assert (machine.run("ip", "nexthop").stdout, machine.route_count()) == (objects, kernel)
    assert machine.index("right") == index and not speaker.error
    assert gets_through(left, right, routes[0][0].split("/")[0])
    # The descriptor of a removed port is not kept any more.
    machine.router.stop()
    gone = machine.ports.pop("left")
    machine.start(manager=manager)
    assert gone and wait_for(lambda: manager.receive() or len(manager.kept) == 1, 5)
    machine.finish()

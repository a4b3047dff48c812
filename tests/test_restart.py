"""The router ends, well or badly, and starts again on a kernel that has had its routes all along.

RESTART_ROUTES=1000000 makes it the table that the router promises to be back with within 2 s.
"""

import os
import time

import pytest

from lib import netlink, tables
from lib.kernel import Machine, forwarder, host
from lib.netns import wait_for
from lib.traffic import Sink, Stream

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="the kernel does not restart")

ROUTES = int(os.environ.get("RESTART_ROUTES", 50_000))


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

    if kill:
        machine.router.process.kill()
        machine.router.process.wait()
    else:
        machine.router.stop()
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
    assert first < 10
    # Every address gets through again, whichever route it takes.
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

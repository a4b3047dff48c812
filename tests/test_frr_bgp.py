"""FRR's bgpd and zebra on the router, real BIRDs as its neighbours: large tables, changes under
traffic, a restart of zebra, a burst that overruns the router's netlink socket.

SCENARIO_ROUTES=N chooses how large the tables are together.
"""

import os
import random
import signal
import time

import pytest

from lib import netlink, tables
from lib.bird import Bird, announcer
from lib.frr import Frr, bgp, version
from lib.kernel import Machine, forwarder, host
from lib.netns import wait_for
from lib.speaker import table, table6
from lib.traffic import Sink, Stream, lost

ROUTES = int(os.environ.get("SCENARIO_ROUTES", 10_000))
CHANGES = 5 * ROUTES

turnpike_only = pytest.mark.skipif(forwarder() != "turnpike", reason="there is no Turnpike to look at")


class Edge:
    """A source, a router with FRR, and two neighbours behind it that announce by BIRD.

    ```
    left 10.0.1.2 --- router AS 65001 --- right 10.0.2.2 AS 65002: `stay4`, `stay6`
                                     +--- other 10.0.3.2 AS 65003: `come4`, `come6`
    ```

    The two tables are shuffled parts of one, so that prefixes of one lie within prefixes of the
    other. Both neighbours take every packet for their own.
    """

    def __init__(self, lab):
        self.machine = Machine(lab, "router")
        self.left = host(self.machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
        self.right = self._gateway("right", 2)
        self.other = self._gateway("other", 3)
        config = "" if not self.machine.turnpike else 'turnpike.log { level = "info" }\n'
        self.machine.start('"kernel", receive_buffer_mib = 8', config=config)
        neighbours = {}
        for n in (2, 3):
            neighbours[f"10.0.{n}.2"] = neighbours[f"fd00:{n}::2"] = (65000 + n,)
        daemons = {"bgpd": bgp(65001, "10.0.2.1", neighbours)}
        self.frr = Frr(self.machine.space, daemons, zebra_options=["-r", "-K", "60", "--v6-rr-semantics"])
        lab._made.callback(self.frr.close)
        self.tables = _tables()
        for n, space, names in ((2, self.right, ("stay4", "stay6")), (3, self.other, ("come4", "come6"))):
            config, files = announcer(
                65000 + n, f"10.0.{n}.2", f"10.0.{n}.1", f"fd00:{n}::2", f"fd00:{n}::1",
                {name: self.tables[name] for name in names},
            )
            setattr(self, f"bird{n}", Bird(space, config, files))
            lab._made.callback(getattr(self, f"bird{n}").close)
        self.sinks = [Sink(self.right), Sink(self.other)]

    def _gateway(self, name, n):
        return host(self.machine, name, name, f"10.0.{n}.2", f"10.0.{n}.1", f"fd00:{n}::2", f"fd00:{n}::1",
                    gateway=True)

    def announce(self, yes):
        """Announces or withdraws the tables that change; returns the number of prefixes."""
        for name in ("come4", "come6"):
            self.bird3.control("enable" if yes else "disable", name)
        return len(self.tables["come4"]) + len(self.tables["come6"])

    def settled(self, seconds=60):
        """Waits until all announced routes are in all tables."""
        return tables.assert_agree(self.machine, self.frr, count=sum(map(len, self.tables.values())), seconds=seconds)

    def fresh_sinks(self):
        """New sinks, without packets so far."""
        for sink in self.sinks:
            sink.close()
        self.sinks = [Sink(self.right), Sink(self.other)]
        return self.sinks


def _tables():
    four = [prefix for prefix, _ in table(ROUTES)]
    six = [prefix for prefix, _ in table6(max(ROUTES // 10, 100))]
    dice = random.Random(4)
    dice.shuffle(four)
    dice.shuffle(six)
    return {
        "stay4": four[: len(four) // 2], "come4": four[len(four) // 2:],
        "stay6": six[: len(six) // 2], "come6": six[len(six) // 2:],
    }


def some_addresses(prefixes, count):
    """An address in each of `count` of the prefixes, the first after the network's own."""
    step = max(len(prefixes) // count, 1)
    return [first(prefix) for prefix in prefixes[::step][:count]]


def first(prefix):
    """The first host address of a prefix."""
    address, length = prefix.split("/")
    if ":" in address:
        return f"{address}1" if address.endswith("::") else address
    head, last = address.rsplit(".", 1)
    return f"{head}.{int(last) | (int(length) < 32)}"


@pytest.fixture(scope="module")
def edge(module_lab):
    edge = Edge(module_lab)
    edge.settled()
    yield edge
    for sink in edge.sinks:
        sink.close()
    edge.machine.finish()


def test_a_large_table_is_in_every_table_and_forwards(edge):
    addresses = [a for prefixes in edge.tables.values() for a in some_addresses(prefixes, 250)]
    # The next hops are resolved with the first packets, of which few can wait.
    for _ in range(2):
        sinks = edge.fresh_sinks()
        stream = Stream(edge.left, addresses, rate=2000)
        for sink in sinks:
            assert sink.wait(400)
        gone = lost(stream.stop(), *sinks)
    assert gone == []
    edge.settled()


def test_changes_lose_no_packet_of_other_routes(edge):
    edge.settled()
    sinks = edge.fresh_sinks()
    addresses = some_addresses(edge.tables["stay4"], 400) + some_addresses(edge.tables["stay6"], 100)
    stream = Stream(edge.left, addresses, rate=1500)
    assert sinks[0].wait(100)
    changes, stay = 0, len(edge.tables["stay4"]) + len(edge.tables["stay6"])
    while changes < CHANGES:
        changes += edge.announce(False)
        assert wait_for(lambda: edge.machine.route_count() < stay + 20, 60, 0.1)
        changes += edge.announce(True)
        assert wait_for(lambda: edge.machine.route_count() > ROUTES, 60, 0.1)
    sent = stream.stop()
    missing = lost(sent, *sinks)
    assert missing == [], f"{len(missing)} of {sent} lost over {changes} changes, the first at {missing[:20]}"
    edge.settled()


def test_a_table_that_comes_and_goes_is_taken_out(edge):
    edge.settled()
    edge.announce(False)
    stay = len(edge.tables["stay4"]) + len(edge.tables["stay6"])
    gone = wait_for(lambda: len(tables.kernel(edge.machine)) == stay, 60, 0.2)
    assert gone
    assert len(tables.assert_agree(edge.machine, edge.frr)) == stay
    edge.announce(True)
    edge.settled()


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_zebra_is_restarted_and_its_routes_stay(edge, kill):
    if not kill and version() >= (10,):
        pytest.skip("a zebra of FRR 10 that ends takes routes out of the kernel, in spite of --retain")
    edge.settled()
    before = tables.kernel(edge.machine)
    sinks = edge.fresh_sinks()
    stream = Stream(edge.left, some_addresses(edge.tables["stay4"], 300) + some_addresses(edge.tables["come6"], 100), rate=1500)
    assert sinks[0].wait(100)
    edge.frr.stop("zebra", kill=kill)
    assert len(tables.kernel(edge.machine)) == len(before)
    time.sleep(0.5)
    edge.frr.start("zebra")
    # It takes over the kernel's routes, and bgpd announces everything again.
    assert edge.frr.reconnected()
    assert tables.assert_agree(edge.machine, edge.frr, count=len(before), seconds=60) == before
    assert lost(stream.stop(), *sinks) == []


@turnpike_only
def test_an_overrun_of_the_netlink_socket_converges(edge):
    edge.settled()
    routes = [f"198.18.{n >> 8}.{n & 255}/32" for n in range(20_000)]
    index = edge.machine.index("right")

    def write(prefixes, via, **how):
        netlink.write(edge.machine.space, netlink.ipv4_routes(prefixes, [via], [index], **how))

    write(routes, "10.0.2.2")
    have = len(tables.assert_agree(edge.machine, seconds=30, count=20_000))
    before = kernel_source(edge)
    process = edge.machine.router.process
    # The kernel's messages while the router does not read exceed the socket's buffer: routes that are added, removed
    # and changed.
    process.send_signal(signal.SIGSTOP)
    try:
        write(routes[::2], "10.0.2.2", kind=netlink.DELROUTE)
        write(routes[1::2], "10.0.2.3")
        write([prefix.replace("198.18", "198.19") for prefix in routes], "10.0.2.2")
    finally:
        process.send_signal(signal.SIGCONT)
    assert wait_for(lambda: kernel_source(edge)["overruns"] > before["overruns"], 20, 0.2)
    assert len(tables.assert_agree(edge.machine, seconds=30, count=have + 10_000)) == have + 10_000
    assert kernel_source(edge)["resyncs"] > before["resyncs"]
    assert "everything again" in edge.machine.router.log()
    write(routes[1::2], "10.0.2.3", kind=netlink.DELROUTE)
    write([prefix.replace("198.18", "198.19") for prefix in routes], "10.0.2.2", kind=netlink.DELROUTE)
    edge.settled()


def kernel_source(edge):
    """The router's report on the kernel as a source."""
    return tables.source(edge.machine.router, "kernel")

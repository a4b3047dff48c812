"""BIRD as the router's daemon: its kernel protocol writes the kernel's table, and Turnpike follows."""

import os

import pytest

from lib import tables
from lib.bird import Bird, announcer
from lib.kernel import Machine, host
from lib.netns import wait_for
from lib.speaker import table, table6
from lib.traffic import Sink, Stream, lost

ROUTES = int(os.environ.get("SCENARIO_ROUTES", 10_000))

ROUTER = """
router id 10.0.2.1;
protocol device { scan time 1; }
protocol kernel k4 { ipv4 { import none; export where source ~ [RTS_BGP, RTS_STATIC]; }; merge paths yes; }
protocol kernel k6 { ipv6 { import none; export where source ~ [RTS_BGP, RTS_STATIC]; }; merge paths yes; }
protocol bgp one4 { local 10.0.2.1 as 65001; neighbor 10.0.2.2 as 65002; %s ipv4 { import all; export none; }; }
protocol bgp one6 { local fd00:2::1 as 65001; neighbor fd00:2::2 as 65002; %s ipv6 { import all; export none; }; }
protocol bgp two4 { local 10.0.3.1 as 65001; neighbor 10.0.3.2 as 65003; %s ipv4 { import all; export none; }; }
protocol bgp two6 { local fd00:3::1 as 65001; neighbor fd00:3::2 as 65003; %s ipv6 { import all; export none; }; }
""" % (("connect delay time 1; connect retry time 1; error wait time 1, 2;",) * 4)


@pytest.fixture(scope="module")
def net(module_lab):
    return Net(module_lab)


class Net:
    """A source, a router with BIRD, and two neighbours that announce the same tables by BIRD."""

    def __init__(self, lab):
        # Host interfaces in a namespace of their own, away from the wires.
        self.machine = machine = Machine(lab, "router", apart=True)
        self.left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
        self.gateways = {
            n: host(machine, name, name, f"10.0.{n}.2", f"10.0.{n}.1", f"fd00:{n}::2", f"fd00:{n}::1", gateway=True)
            for n, name in ((2, "one"), (3, "two"))
        }
        machine.start()
        self.four = [prefix for prefix, _ in table(ROUTES)]
        self.six = [prefix for prefix, _ in table6(ROUTES // 10)]
        self.bird = Bird(machine.space, ROUTER)
        lab._made.callback(self.bird.close)
        self.birds = {}
        for n, space in self.gateways.items():
            config, files = announcer(65000 + n, f"10.0.{n}.2", f"10.0.{n}.1", f"fd00:{n}::2", f"fd00:{n}::1",
                                      {"table4": self.four, "table6": self.six})
            self.birds[n] = Bird(space, config, files)
            lab._made.callback(self.birds[n].close)

    def settled(self, paths, seconds=60):
        """Waits until every prefix has so many paths, in the kernel and in Turnpike."""
        count = len(self.four) + len(self.six)

        def complete():
            lines = tables.kernel(self.machine)
            return len(lines) == count and all(line.count("@") == paths for line in lines)

        assert wait_for(complete, seconds, 0.2)
        return tables.assert_agree(self.machine, count=count)


def test_a_large_table_by_two_ways_and_then_one(net):
    net.settled(paths=2)
    addresses = [prefix.split("/")[0] for prefix in net.four[::40] + net.six[::10]]
    addresses = [a + "1" if a.endswith("::") else a for a in addresses]
    sinks = [Sink(space) for space in net.gateways.values()]
    stream = Stream(net.left, addresses, rate=1500)
    assert all(sink.wait(500) for sink in sinks), "the flows do not use both ways"
    # One of the paths is withdrawn in good order, and its gateway continues to forward: nothing is lost.
    for table in ("table4", "table6"):
        net.birds[3].control("disable", table)
    lines = net.settled(paths=1)
    assert all("@one*1" in line for line in lines)
    for table in ("table4", "table6"):
        net.birds[3].control("enable", table)
    net.settled(paths=2)
    assert lost(stream.stop(), *sinks) == []
    for sink in sinks:
        sink.close()
    # BIRD ends, and removes its routes from the kernel.
    net.bird.stop()
    assert wait_for(lambda: not tables.kernel(net.machine), 30, 0.2)
    assert tables.assert_agree(net.machine) == []
    net.machine.finish()

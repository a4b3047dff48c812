"""FRR with two paths to everything: BFD detects a neighbour that dies silently; a flapping link under next-hop groups
leaves no traces."""

import time

import pytest

from lib import tables
from lib.frr import Frr, bgp
from lib.kernel import Machine, host
from lib.netns import veth, wait_for
from lib.speaker import table
from lib.traffic import Sink, Stream, longest_gap, lost

ROUTES = 2000


class TwoWays:
    """A source, a router, and two gateways that announce the same prefixes by FRR.

    ```
    left 10.0.1.2 --- router AS 65001 --- switch --- one 10.0.2.2 AS 65002
                                     +-------------- two 10.0.3.2 AS 65003
    ```

    Behind the switch a neighbour can vanish without the router's link going down.
    """

    def __init__(self, lab, bfd=False):
        self.machine = Machine(lab, "router")
        self.left = host(self.machine, "left", "left", "10.0.1.2", "10.0.1.1")
        self.switch = lab.namespace("switch")
        self.machine.port("one", self.switch, "near", "10.0.2.1/24")
        self.one = lab.namespace("one")
        veth(self.switch, "far", self.one, "eth0")
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        for end in ("near", "far"):
            self.switch.run("ip", "link", "set", end, "master", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        self.one.run("ip", "address", "add", "10.0.2.2/24", "dev", "eth0")
        self.two = host(self.machine, "two", "two", "10.0.3.2", "10.0.3.1")
        self.machine.start()
        self.prefixes = [prefix for prefix, _ in table(ROUTES)]
        session = ["bfd profile quick"] * bfd
        peers = {f"10.0.{n}.2": (65000 + n, *session) for n in (2, 3)}
        self.frr = self._frr(lab, self.machine.space, bgp(65001, "10.0.2.1", peers, ["ipv4"]), bfd)
        for n, space in ((2, self.one), (3, self.two)):
            # The networks behind a gateway end in it.
            space.run("ip", "-batch", "-", input="".join(f"route add local {p} dev lo\n" for p in self.prefixes))
            networks = [" address-family ipv4 unicast", *(f"  network {p}" for p in self.prefixes), " exit-address-family"]
            peer = {f"10.0.{n}.1": (65001, *session)}
            config = bgp(65000 + n, f"10.0.{n}.2", peer, ["ipv4"], "\n".join([" no bgp network import-check", *networks]))
            self._frr(lab, space, config, bfd)
        self.sinks = [Sink(self.one), Sink(self.two)]

    def _frr(self, lab, space, config, bfd):
        daemons = {"bgpd": config}
        if bfd:
            timers = " detect-multiplier 4\n receive-interval 150\n transmit-interval 150\n"
            daemons["bfdd"] = f"bfd\n profile quick\n{timers} exit\nexit\n"
        frr = Frr(space, daemons)
        lab._made.callback(frr.close)
        return frr

    def ways(self, address="10.0.1.2"):
        """The number of prefixes by the number of their paths in the kernel."""
        lines = tables.kernel(self.machine, [4])
        return {n: sum(line.count("@") == n for line in lines) for n in (1, 2)}

    def both_ways(self, seconds=60):
        """Waits until every prefix has two paths."""
        assert wait_for(lambda: self.ways()[2] == ROUTES, seconds, 0.2), self.ways()

    def addresses(self):
        """Some of the addresses that both gateways answer for."""
        return [prefix.split("/")[0] for prefix in self.prefixes[::10]]


@pytest.mark.alone
def test_bfd_notices_a_neighbour_that_is_silent(lab):
    net = TwoWays(lab, bfd=True)
    net.both_ways()
    sessions = lambda: [peer["status"] for peer in net.frr.json("show bfd peers", daemon="bfdd")]  # noqa: E731
    assert wait_for(lambda: sessions() == ["up", "up"], 20, 0.2), sessions()
    tables.assert_agree(net.machine, net.frr, [4])
    stream = Stream(net.left, net.addresses(), rate=1000)
    assert all(sink.wait(200) for sink in net.sinks), "the flows do not use both ways"
    net.switch.run("ip", "link", "set", "far", "down")
    broken = time.time()
    # BGP alone would wait for 180 s.
    assert wait_for(lambda: net.ways()[1] == ROUTES, 20, 0.1), net.ways()
    time.sleep(0.5)
    sent = stream.stop()
    missing = lost(sent, *net.sinks)
    assert missing, "half of the flows went to a gateway that was gone"
    # The last lost packet was sent at this time; all later ones arrive.
    tail = max(when for sink in net.sinks for number, when in sink.arrived() if number < missing[-1]) - broken
    print(f"after {tail:.2f} s no packet more is lost; {len(missing)} of {sent} were")
    assert tail < 10
    lines = tables.assert_agree(net.machine, net.frr, [4])
    assert all("10.0.3.2@two" in line for line in lines) and len(lines) == ROUTES
    # And back again.
    net.switch.run("ip", "link", "set", "far", "up")
    net.both_ways()
    tables.assert_agree(net.machine, net.frr, [4])
    net.machine.finish()


@pytest.mark.parametrize("end", ["far", "admin"])
def test_a_link_flaps_under_nexthop_groups(lab, end):
    net = TwoWays(lab)
    net.both_ways()
    assert "group" in net.machine.run("ip", "nexthop").stdout, "zebra uses no nexthop groups"
    tables.assert_agree(net.machine, net.frr, [4])

    def link(state):
        # Either the other end of the wire, which removes the carrier, or the interface itself.
        if end == "far":
            net.two.run("ip", "link", "set", "eth0", state)
        else:
            net.machine.ip("link", "set", "two", state)

    stream = Stream(net.left, net.addresses(), rate=1000)
    assert all(sink.wait(200) for sink in net.sinks), "the flows do not use both ways"
    for _ in range(3):
        link("down")
        assert wait_for(lambda: net.ways()[1] == ROUTES, 20, 0.05), net.ways()
        assert net.sinks[0].wait(300)
        lines = tables.assert_agree(net.machine, net.frr, [4], flapped=True)
        assert len(lines) == ROUTES and all("10.0.2.2@one" in line for line in lines)
        link("up")
        assert wait_for(lambda: len(tables.zebra(net.frr, [4])) == ROUTES
                        and all(line.count("@") == 2 for line in tables.zebra(net.frr, [4])), 60, 0.2)
    tables.assert_agree(net.machine, net.frr, [4], flapped=True)
    sent = stream.stop()
    missing = lost(sent, *net.sinks)
    print(f"{len(missing)} of {sent} lost over 3 flaps, longest gap {longest_gap(*net.sinks):.3f} s")
    assert len(missing) < sent / 10
    net.machine.finish()

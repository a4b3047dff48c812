"""`turnpike accelerate` with a full table in the kernel, with a default route and without: the same packets are taken as
the table says, from the start on, and no packet is lost meanwhile.

RESTART_ROUTES=1000000 is a table of today's size; `bench/accelerate.py --start` tells how long the start takes.
"""

import ipaddress
import os
import random

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lib import netlink
from lib.accelerate import Box, Counted, packets, status, takes_packets
from lib.netns import wait_for
from lib.raw import RawPort
from lib.speaker import table
from lib.traffic import Sink, Stream, lost

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = pytest.mark.xdist_group("accelerate")

ROUTES = int(os.environ.get("RESTART_ROUTES", 50_000))
NEAR = ["198.51.1.1", "2001:db8:1::1"]
ROUTER_MAC, A_MAC = "02:00:00:00:01:01", "02:00:00:00:01:02"
ASKED = 1000


class Full:
    """A box with a full table over host b, and the answers that it has for addresses."""

    def __init__(self, lab):
        self.box = Box(lab)
        self.box.settle()
        prefixes = [prefix for prefix, _ in table(ROUTES)]
        index = int(self.box.space.run("cat", "/sys/class/net/eth1/ifindex").stdout)
        netlink.write(self.box.space, netlink.ipv4_routes(prefixes, ["10.0.2.2"], [index]))
        self.index, self.prefixes = index, prefixes
        self.set = {(int(net.network_address), net.prefixlen) for net in map(ipaddress.ip_network, prefixes)}
        chance = random.Random(7)
        inside = [int(ipaddress.ip_network(prefix)[-1]) for prefix in chance.sample(prefixes, ASKED // 2)]
        anywhere = [chance.randrange(11 << 24, 126 << 24) for _ in range(ASKED // 2)]
        self.asked = [ipaddress.ip_address(address) for address in inside + anywhere]
        self.port = RawPort(self.box.a, "eth0")

    def is_routed(self, address):
        """True if a prefix of the table has the address."""
        return any((int(address) >> (32 - bits) << (32 - bits), bits) in self.set for bits in range(33))

    def agrees(self, router, expected):
        """Sends a packet to each address: as many as expected are taken, and the kernel has the others."""
        counted = Counted(router, "eth0")
        self.port.send(*[Ether(src=A_MAC, dst=ROUTER_MAC) / IP(src="198.51.1.1", dst=str(address)) / UDP(sport=9, dport=9)
                         for address in self.asked])
        every = lambda: counted["accelerated"] + counted["route"] >= ASKED  # noqa: E731
        return wait_for(every, 20) and (counted["accelerated"], counted["route"]) == (expected, ASKED - expected)


@pytest.mark.alone
@pytest.mark.parametrize("default", [True, False], ids=["default-route", "no-default-route"])
def test_a_full_table(lab, default):
    full = Full(lab)
    box, routed = full.box, sum(map(full.is_routed, full.asked))
    assert ASKED // 2 <= routed < ASKED - 20, "there are addresses without a route"
    if default:
        box.ip("route", "add", "default", "via", "10.0.2.2")
    # The other way than the packets that are counted.
    sink = Sink(box.a)
    stream = Stream(box.b, NEAR)
    router = box.accelerate("eth0", "eth1", wait=False)
    router.wait_ready()
    takes_packets(router, seconds=60)
    boundaries = router.show("acceleration")["boundaries"]
    assert boundaries < 100 if default else boundaries > ROUTES // 10, boundaries
    assert wait_for(lambda: packets(router, "eth1", "accelerated") > 500, 20)
    # Replies of host b to packets for others stay away: it forwards nothing.
    assert full.agrees(router, ASKED if default else routed), status(router)["eth0"]
    # The other way, beside the table: each prefix becomes a boundary, or none does any more.
    if default:
        box.ip("route", "del", "default")
    else:
        box.ip("route", "add", "default", "via", "10.0.2.2")
    assert wait_for(lambda: full.agrees(router, routed if default else ASKED), 60, 0.2), status(router)["eth0"]
    # Over an interface that is not accelerated, it is like none.
    box.ip("route", "replace", "default", "via", "10.0.3.2")
    assert wait_for(lambda: full.agrees(router, routed), 60, 0.2), status(router)["eth0"]
    # The table goes, under the eyes of the router.
    netlink.write(box.space, netlink.ipv4_routes(full.prefixes, ["10.0.2.2"], [full.index], kind=netlink.DELROUTE))
    assert wait_for(lambda: full.agrees(router, 0), 60, 0.2), status(router)["eth0"]
    assert wait_for(lambda: router.show("acceleration")["boundaries"] < 100, 20)
    full.port.close()
    sent = stream.stop()
    assert lost(sent, sink) == []
    sink.close()
    router.stop()

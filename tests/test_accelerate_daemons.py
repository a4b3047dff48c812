"""`turnpike accelerate` beside what else changes on a router: FRR, keepalived, routes without end, another accelerated
router, its own upgrade. Numbered streams of both families pass meanwhile.

CHURN_SECONDS=3600 is the length of the changes of routes.
"""

import ipaddress
import os
import random
import re
import time

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from lib.accelerate import MODES, Box, Counted, assert_fib_is_the_kernel_s, packets, status, takes_packets
from lib.frr import Frr, bgp
from lib.keepalived import Keepalived, ends, instance
from lib.kernel import pings, takes_everything
from lib.netns import veth, wait_for
from lib.raw import RawPort
from lib.router import binary
from lib.speaker import Speaker, announcements, table, table6
from lib.traffic import Sink, Stream, late, longest_gap, lost

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = pytest.mark.xdist_group("accelerate")

FAR, NEAR = (["198.51.{0}.1".format(host), "2001:db8:{0}::1".format(host)] for host in (2, 1))
# Packets in a ring whose forwarder waits for a processor are overtaken by the kernel's, at a start and a stop.
OVERTAKEN = 50
# That ring.
RING = 2048


def whole(stream, sink, overtaken=0):
    """Ends a stream of which every packet must have arrived, once; no more than so many later than their successors."""
    sent = stream.stop()
    missing = lost(sent, sink)
    order = late([number for number, _ in sink.arrived()])
    sink.close()
    assert missing == [] and order <= overtaken, (len(missing), missing[:10], order, sent)


def grows(router, interface, outcome="accelerated", count=200, seconds=30):
    """Waits until an interface has had more packets of an outcome."""
    counted = Counted(router, interface)
    assert wait_for(lambda: counted[outcome] >= count, seconds), (counted.all(), router.log())


# --- FRR ------------------------------------------------------------------------------------------


class Edge:
    """A box with FRR, and host b as its BGP peer of both families, which takes all packets for its own."""

    def __init__(self, lab, count=2000):
        self.box = Box(lab)
        takes_everything(self.box.b)
        self.box.settle()
        peers = {"10.0.2.2": (65002,), "fd00:2::2": (65002,)}
        # Routes are kept at its end, and until the peers have announced theirs again.
        self.frr = Frr(self.box.space, {"bgpd": bgp(65001, "10.0.2.1", peers)}, ["-r", "-K", "60", "--v6-rr-semantics"])
        lab._made.callback(self.frr.close)
        self.lab, self.speakers = lab, []
        self.routes = {"10.0.2.2": table(count), "fd00:2::2": table6(count)}
        self.announce()

    def announce(self):
        """New sessions, by which all routes are announced."""
        for address, routes in self.routes.items():
            peer = address[:-1] + "1"
            speaker = Speaker(self.box.b, peer, 65002, "10.0.2.2")
            self.lab._made.callback(speaker.close)
            speaker.send(announcements(routes, 65002, address))
            self.speakers.append(speaker)

    def addresses(self):
        """Some of the addresses announced."""
        return [str(ipaddress.ip_network(prefix)[1]) for routes in self.routes.values() for prefix, _ in routes[::100]]


def test_frr_ends_and_starts_again(lab):
    edge = Edge(lab)
    router = edge.box.accelerate("eth0", "eth1", "eth2")
    count = sum(map(len, edge.routes.values()))
    before = assert_fib_is_the_kernel_s(edge.box.space, router, frr=edge.frr, count=count, seconds=60)
    sink = Sink(edge.box.b)
    stream = Stream(edge.box.a, edge.addresses())
    grows(router, "eth0")
    for kill in (False, True):
        for speaker in edge.speakers:
            speaker.close()
        edge.speakers.clear()
        for name in ("zebra", "bgpd"):
            edge.frr.stop(name, kill=kill)
        assert sink.wait(500)
        assert assert_fib_is_the_kernel_s(edge.box.space, router) == before, "the kernel keeps zebra's routes"
        for name in ("zebra", "bgpd"):
            edge.frr.start(name)
        edge.announce()
        assert assert_fib_is_the_kernel_s(edge.box.space, router, frr=edge.frr, count=count, seconds=90) == before
        grows(router, "eth0")
    counted = Counted(router, "eth0")
    assert sink.wait(500)
    assert counted["route"] == 0, counted.all()
    whole(stream, sink)
    router.stop()


# --- two routers ----------------------------------------------------------------------------------


class Row:
    """Two boxes in a row: `a -- one -- two -- b`. The hosts have 198.51.N.1 and 2001:db8:N::1 behind them."""

    def __init__(self, lab):
        self.lab = lab
        roles = ("a", "one", "two", "b")
        self.spaces = [lab.namespace(role) for role in roles]
        self.a, self.one, self.two, self.b = self.spaces
        for space in self.spaces:
            space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        for space in (self.one, self.two):
            space.sysctl("net.ipv4.ip_forward", 1)
            space.sysctl("net.ipv6.conf.all.forwarding", 1)
        for link, (left, right) in enumerate(zip(self.spaces, self.spaces[1:]), 1):
            names = "eth1" if left is not self.a else "eth0", "eth0"
            veth(left, names[0], right, names[1])
            for end, (space, name) in enumerate(((left, names[0]), (right, names[1])), 1):
                space.run("ip", "address", "add", f"10.0.{link}.{end}/24", "dev", name)
                space.run("ip", "address", "add", f"fd00:{link}::{end}/64", "dev", name, "nodad")
        for space, number in ((self.a, 1), (self.b, 2)):
            for address in (f"198.51.{number}.1/32", f"2001:db8:{number}::1/128"):
                space.run("ip", "address", "add", address, "dev", "lo")
        # To the right over the next one, and to the left.
        for space, right, left in ((self.a, 1, None), (self.one, 2, 1), (self.two, 3, 2), (self.b, None, 3)):
            for link, end, host in ((right, 2, 2), (left, 1, 1)):
                if link:
                    space.run("ip", "route", "add", f"198.51.{host}.0/24", "via", f"10.0.{link}.{end}")
                    space.run("ip", "-6", "route", "add", f"2001:db8:{host}::/48", "via", f"fd00:{link}::{end}")
        self.a.run("ip", "route", "add", "default", "via", "10.0.1.2")
        self.a.run("ip", "-6", "route", "add", "default", "via", "fd00:1::2")
        self.b.run("ip", "route", "add", "default", "via", "10.0.3.1")
        self.b.run("ip", "-6", "route", "add", "default", "via", "fd00:3::1")
        self.two.run("ip", "route", "add", "10.0.1.0/24", "via", "10.0.2.1")
        self.two.run("ip", "-6", "route", "add", "fd00:1::/64", "via", "fd00:2::1")
        self.one.run("ip", "route", "add", "10.0.3.0/24", "via", "10.0.2.2")
        self.one.run("ip", "-6", "route", "add", "fd00:3::/64", "via", "fd00:2::2")

    def accelerate(self, space):
        """Starts Turnpike on one of them."""
        router = self.lab.router(space, "", command=["accelerate", "eth0", "eth1"])
        takes_packets(router)
        return router


@pytest.mark.alone
def test_two_accelerated_routers_in_a_row(lab):
    row = Row(lab)
    for space, addresses in ((row.a, FAR), (row.b, NEAR)):
        for address in addresses:
            assert wait_for(lambda: pings(space, address), 20), address  # noqa: B023
    sinks = [Sink(row.b), Sink(row.a)]
    streams = [Stream(row.a, FAR, rate=500), Stream(row.b, NEAR, rate=500)]
    one = row.accelerate(row.one)
    grows(one, "eth0"), grows(one, "eth1")
    two = row.accelerate(row.two)
    for router in (one, two):
        grows(router, "eth0"), grows(router, "eth1")
    # Each ends and begins beside the other.
    one.stop()
    grows(two, "eth0"), grows(two, "eth1")
    one.start()
    takes_packets(one)
    grows(one, "eth0"), grows(one, "eth1")
    two.stop()
    grows(one, "eth0")
    one.stop()
    assert all(sink.wait(500) for sink in sinks)
    for stream, sink in zip(streams, sinks):
        whole(stream, sink, overtaken=3 * OVERTAKEN)


# --- VRRP -----------------------------------------------------------------------------------------


class VirtualRouter:
    """Two accelerated routers, of which one has the address of a host's gateway, by keepalived.

    ```
    host 10.0.1.10 --- switch +--- one 10.0.1.2, 10.0.2.2 ---+ server 10.0.2.10  10.9.9.9
                              +--- two 10.0.1.3, 10.0.3.2 ---+        10.0.3.10  fd00:9::9
          virtual router 10.0.1.1, fd00:1::1
    ```
    """

    def __init__(self, lab, vmac):
        self.lab, self.vmac = lab, vmac
        self.switch, self.host, self.server = (lab.namespace(role) for role in ("switch", "host", "server"))
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        for space in (self.host, self.server):
            space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.spaces, self.routers = [], []
        for number, role in ((2, "one"), (3, "two")):
            space = lab.namespace(role)
            self.spaces.append(space)
            space.sysctl("net.ipv6.conf.default.accept_dad", 0)
            space.sysctl("net.ipv4.ip_forward", 1)
            space.sysctl("net.ipv6.conf.all.forwarding", 1)
            # The kernel asks and answers for addresses of the interface itself only, or hosts learn its MAC.
            space.sysctl("net.ipv4.conf.all.arp_ignore", 1)
            space.sysctl("net.ipv4.conf.all.arp_announce", 2)
            veth(space, "lan", self.switch, role)
            veth(space, "wan", self.server, f"to-{role}")
            for name, network, end in (("lan", 1, number), ("wan", number, 2)):
                space.run("ip", "address", "add", f"10.0.{network}.{end}/24", "dev", name)
                space.run("ip", "address", "add", f"fd00:{network}::{end}/64", "dev", name, "nodad")
            self.server.run("ip", "address", "add", f"10.0.{number}.10/24", "dev", f"to-{role}")
            self.server.run("ip", "address", "add", f"fd00:{number}::10/64", "dev", f"to-{role}", "nodad")
            # Answers take the way by the first, whoever is the master.
            self.server.run("ip", "route", "append", "10.0.1.0/24", "via", f"10.0.{number}.2", "metric", number)
            self.server.run("ip", "-6", "route", "append", "fd00:1::/64", "via", f"fd00:{number}::2", "metric", number)
            space.run("ip", "route", "add", "10.9.9.9/32", "via", f"10.0.{number}.10")
            space.run("ip", "-6", "route", "add", "fd00:9::9/128", "via", f"fd00:{number}::10")
        ends(self.switch, self.host, self.server)
        for space in self.spaces:
            router = lab.router(space, "", command=["accelerate", "lan", "wan"])
            takes_packets(router)
            self.routers.append(router)
        self.daemons = [self.start(0), self.start(1)]

    def start(self, number):
        """Starts keepalived on a router."""
        priority = (200, 100)[number]
        config = instance("51", "lan", 0x33, priority, ["10.0.1.1/24"], vmac=self.vmac)
        config += instance("52", "lan", 0x34, priority, ["fe80::51", "fd00:1::1/64"], vmac=self.vmac)
        daemon = Keepalived(self.spaces[number], config)
        self.lab._made.callback(daemon.close)
        return daemon

    def is_master(self, number):
        """True if this router has the virtual addresses, and the other one does not."""
        shown = [space.run("ip", "-o", "address").stdout for space in self.spaces]
        has = [all(address in text for address in ("10.0.1.1/24", "fd00:1::1/64")) for text in shown]
        return has[number] and not has[1 - number]


@pytest.mark.parametrize("vmac", [False, True], ids=["own-mac", "virtual-mac"])
def test_the_gateway_of_hosts_moves_to_another_accelerated_router(lab, vmac):
    net = VirtualRouter(lab, vmac)
    assert wait_for(lambda: net.is_master(0), 60), [daemon.log() for daemon in net.daemons]
    for address in ("10.9.9.9", "fd00:9::9"):
        assert wait_for(lambda: pings(net.host, address), 20), address  # noqa: B023
    # A MACVLAN device has the virtual MAC, and packets to it stay with the kernel.
    outcome = "other-mac" if vmac else "accelerated"
    sink = Sink(net.server)
    stream = Stream(net.host, ["10.9.9.9", "fd00:9::9"], rate=500)
    grows(net.routers[0], "lan", outcome)
    net.daemons[0].stop()
    assert wait_for(lambda: net.is_master(1), 30), net.daemons[1].log()
    grows(net.routers[1], "lan", outcome)
    # And back to the first, which has the higher priority.
    net.daemons[0] = net.start(0)
    assert wait_for(lambda: net.is_master(0), 60), [daemon.log() for daemon in net.daemons]
    grows(net.routers[0], "lan", outcome)
    for address in ("10.0.1.1", "fd00:1::1", "10.9.9.9", "fd00:9::9"):
        assert wait_for(lambda: pings(net.host, address), 20), address  # noqa: B023
    sent = stream.stop()
    missing = lost(sent, sink)
    # At each move, three intervals of a second.
    assert longest_gap(sink) < 3.0 and len(missing) < 2 * 3 * 500, (longest_gap(sink), len(missing))
    sink.close()
    for router in net.routers:
        router.stop()


# --- changes without end --------------------------------------------------------------------------

CHANGES_A_SECOND = 500
ROUTER_MAC, A_MAC = "02:00:00:00:01:01", "02:00:00:00:01:02"
# Treatments of a prefix: over an accelerated interface, over another one, refused.
WAYS = {4: ["via 10.0.2.2", "via 10.0.3.2", "unreachable"], 6: ["via fd00:2::2", "via fd00:3::2", "unreachable"]}


class Churn:
    """Routes of both families that come, go and change; prefixes of a few networks, one within the other."""

    def __init__(self, box, seed=500):
        self.box, self.chance = box, random.Random(seed)
        self.table = {}
        self.pool = [prefix for family in (4, 6) for prefix in self._pool(family, 600)]
        self.frames = [self._frame(prefix[-1]) for prefix in self.pool]

    def _pool(self, family, count):
        base, lengths = (("172.16.0.0", (14, 18, 22, 24, 28, 32)) if family == 4 else ("2001:db8:4000::", (36, 44, 48, 56, 64, 128)))
        bits = 32 if family == 4 else 128
        found = {}
        while len(found) < count:
            host = int(ipaddress.ip_address(base)) | self.chance.getrandbits(bits - (12 if family == 4 else 34))
            length = self.chance.choice(lengths)
            found[ipaddress.ip_network((host >> (bits - length) << (bits - length), length))] = None
        return list(found)

    def _frame(self, address):
        """A packet of host a to an address."""
        ip = IP(src="10.0.1.2", dst=str(address)) if address.version == 4 else IPv6(src="fd00:1::2", dst=str(address))
        return bytes(Ether(src=A_MAC, dst=ROUTER_MAC) / ip / UDP(sport=9, dport=9))

    def second(self):
        """Makes the changes of a second, and returns when it is over."""
        begun = time.monotonic()
        lines = []
        for prefix in self.chance.sample(self.pool, CHANGES_A_SECOND):
            if prefix in self.table and self.chance.random() < 0.4:
                way = self.table.pop(prefix)
                lines.append(f"route del {'unreachable' if way == 'unreachable' else ''} {prefix} proto 77")
                continue
            old, way = self.table.get(prefix), self.chance.choice(WAYS[prefix.version])
            if old and prefix.version == 6 and "unreachable" in (old, way) and old != way:
                # IPv6 has both then.
                lines.append(f"route del {'unreachable' if old == 'unreachable' else ''} {prefix} proto 77")
            kind, hop = (way, "") if way == "unreachable" else ("", way)
            lines.append(f"route replace {kind} {prefix} {hop} proto 77")
            self.table[prefix] = way
        self.box.batch(lines)
        time.sleep(max(0.0, begun + 1 - time.monotonic()))

    def is_taken(self, address):
        """True if the longest prefix with this address leads over the accelerated interface."""
        within = [prefix for prefix in self.table if prefix.version == address.version and address in prefix]
        return bool(within) and self.table[max(within, key=lambda prefix: prefix.prefixlen)] == WAYS[address.version][0]

    def check(self, router, port):
        """A packet to an address of each prefix: those by the accelerated interface are taken, and no others."""
        assert_fib_holds(self, router)
        addresses = [prefix[-1] for prefix in self.pool]
        taken = sum(map(self.is_taken, addresses))
        assert 100 < taken < len(addresses) - 100, taken

        def agrees():
            counted = Counted(router, "eth0")
            port.send(*self.frames)
            # The routes decide before the lease, which a busy machine lets end.
            decided = lambda: (counted["accelerated"] + counted["stalled"], counted["route"])  # noqa: E731
            assert wait_for(lambda: sum(decided()) >= len(addresses), 60), (decided(), status(router)["eth0"]["packets"])
            return decided() == (taken, len(addresses) - taken)

        # The changes of the last moment are a tenth of a second behind on a busy machine.
        assert wait_for(agrees, 60, 0.5), (taken, status(router)["eth0"]["packets"])


def assert_fib_holds(churn, router):
    """The router has exactly the routes that are there now, of those that come and go."""
    def routes():
        shown = [route for route in router.show("routes", "--source", "kernel") if route["active"]]
        return {route["prefix"]: route for route in shown}

    wanted = {str(prefix) for prefix in churn.table}
    known = {str(prefix) for prefix in churn.pool}
    assert wait_for(lambda: set(routes()) & known == wanted, 30, 0.5), sorted(set(routes()) & known ^ wanted)[:10]


CHURN_SECONDS = float(os.environ.get("CHURN_SECONDS", 20))


@pytest.mark.timeout(CHURN_SECONDS + 600)
@pytest.mark.parametrize("mode", MODES)
def test_routes_change_all_the_time(lab, mode):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    # The other way than the packets that are counted.
    churn, sink = Churn(box), Sink(box.a)
    stream, port = Stream(box.b, NEAR, rate=500), RawPort(box.a, "eth0")
    grows(router, "eth1")
    end = time.monotonic() + CHURN_SECONDS
    while time.monotonic() < end:
        for _ in range(10):
            churn.second()
        churn.check(router, port)
        sink.read()
    port.close()
    # A busy machine lets the lease end, and the kernel overtakes.
    whole(stream, sink, overtaken=RING if packets(router, "eth1", "stalled") else 0)
    router.stop()


# --- upgrade --------------------------------------------------------------------------------------


@pytest.mark.alone
def test_the_next_process_takes_over_as_the_last_one_ends(lab):
    box = Box(lab)
    box.settle()
    sink = Sink(box.b)
    stream = Stream(box.a, FAR)
    router = box.accelerate("eth0", "eth1")
    for _ in range(3):
        grows(router, "eth0")
        # As systemd restarts a service.
        router.stop()
        router.start()
        takes_packets(router)
    grows(router, "eth0")
    router.stop()
    assert sink.wait(500)
    whole(stream, sink, overtaken=4 * OVERTAKEN)


def test_a_second_process_for_the_same_interfaces_is_refused_and_harms_nothing(lab):
    box = Box(lab)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    sink = Sink(box.b)
    stream = Stream(box.a, FAR)
    grows(router, "eth0")
    for socket in (router.socket, router.directory / "other.sock"):
        done = box.space.run(binary(), "accelerate", "eth0", "eth1", "--socket", socket, check=False)
        said = re.sub(r"\x1b\[[0-9;]*m|\s+", " ", done.stdout)
        assert done.returncode == 1 and "eth0 has an XDP program already" in said and "turnpike accelerate --stop" in said, said
    grows(router, "eth0")
    whole(stream, sink)
    assert packets(router, "eth0", "stalled", "no-socket") == 0
    router.stop()

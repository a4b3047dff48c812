"""Topologies: a router between two raw wires, or between two real Linux hosts."""

import contextlib
import time

from .netns import Namespace, veth
from .packets import ethernet, ipv4, is_announcement, pattern, udp
from .raw import RawPort
from .router import Router

# The router's MACs and those of the hosts behind the raw wires.
LEFT_MAC, RIGHT_MAC = "02:00:00:00:01:01", "02:00:00:00:02:01"
HOST_A_MAC, HOST_B_MAC = "02:00:00:00:01:02", "02:00:00:00:02:02"

# Two announcements, two seconds apart (RFC 5227 1.1), and a little.
ANNOUNCING_SECONDS = 2.3

PLAIN_PORTS = """
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = { "10.0.1.1/24", "fd00:1::1/64" } }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
"""


def with_memory(mbufs):
    """These ports with so many packet buffers. A router has more unless it is told how many, which takes longer."""
    return PLAIN_PORTS.replace('"turnpike"\n', f'"turnpike"; turnpike.memory {{ mbufs = {mbufs} }}\n')


PORTS = with_memory(16384)

# The drivers for a kernel interface.
DRIVERS = ["af_xdp", "af_packet"]


def ports_by(driver):
    """The same ports, with a chosen driver."""
    return PORTS.replace("address =", f'driver = "{driver}", address =')


STATIC_NEIGHBOURS = f"""
turnpike.neighbour "10.0.1.2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "fd00:1::2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "fd00:2::2" {{ port = "right", mac = "{HOST_B_MAC}" }}
"""


def from_left(source, destination, ttl=64):
    """A UDP datagram as the host behind the left wire sends it."""
    data = udp(source, destination, 1, 2, pattern(40))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(source, destination, data, ttl=ttl))


class Lab:
    """All objects of one test (or one module of tests); `close` removes them in reverse order."""

    def __init__(self):
        self._made = contextlib.ExitStack()

    def namespace(self, role, quiet=False):
        """A new namespace."""
        namespace = Namespace(role, quiet)
        self._made.callback(namespace.delete)
        return namespace

    def router(self, namespace, config, **options):
        """A router, ready for packets unless `wait=False`."""
        # Registered before its start is awaited, so that a router that fails to start is removed as well.
        wait = options.pop("wait", True)
        router = Router(namespace, config, wait=False, **options)
        self._made.callback(router.close)
        if wait:
            router.wait_ready()
        return router

    def raw(self, namespace, interface, ignore=None):
        """A raw port on an interface."""
        port = RawPort(namespace, interface, ignore)
        self._made.callback(port.close)
        return port

    def close(self):
        """Removes all objects."""
        self._made.close()


class Wires:
    """A router whose ports end in raw wires: the test is both hosts, and nothing else talks.

    `left` and `right` are the wires, `router` the router, `inside` its namespace. A router
    announces its addresses when it starts and once more after two seconds; the wires do not show
    that unless asked. `calm` waits until it is over, for tests that count packets.
    """

    def __init__(self, lab, config="", ports=PORTS + STATIC_NEIGHBOURS, mtu=(1500, 1500), calm=False,
                 start=True, **options):
        self.inside = lab.namespace("router", quiet=True)
        self.ns_left = lab.namespace("left", quiet=True)
        self.ns_right = lab.namespace("right", quiet=True)
        veth(self.inside, "tp-left", self.ns_left, "wire", LEFT_MAC, HOST_A_MAC, mtu[0])
        veth(self.inside, "tp-right", self.ns_right, "wire", RIGHT_MAC, HOST_B_MAC, mtu[1])
        self.left = lab.raw(self.ns_left, "wire", is_announcement)
        self.right = lab.raw(self.ns_right, "wire", is_announcement)
        self.router = lab.router(self.inside, ports + config, **options) if start else None
        if calm:
            time.sleep(ANNOUNCING_SECONDS)

    def drain(self):
        """Discards frames that have arrived on both wires, and those of the next 50 ms."""
        self.left.receive(0.05)
        self.right.drain()

    def silent(self, seconds=0.02):
        """Returns true if no frame arrives on either wire in this time."""
        return self.left.receive(seconds) == [] and self.right.receive(0) == []


class Hosts:
    """A router between two ordinary Linux hosts, with the kernel's defaults everywhere."""

    def __init__(self, lab, config="", ports=PORTS, start=True, mtu=1500, **options):
        self.inside = lab.namespace("router")
        self.left = lab.namespace("left")
        self.right = lab.namespace("right")
        veth(self.inside, "tp-left", self.left, "eth0", LEFT_MAC, HOST_A_MAC, mtu)
        veth(self.inside, "tp-right", self.right, "eth0", RIGHT_MAC, HOST_B_MAC, mtu)
        for side, host in ((1, self.left), (2, self.right)):
            host.run("ip", "address", "add", f"10.0.{side}.2/24", "dev", "eth0")
            # No duplicate address detection: the address can be used at once.
            host.run("ip", "address", "add", f"fd00:{side}::2/64", "dev", "eth0", "nodad")
            host.run("ip", "route", "add", "default", "via", f"10.0.{side}.1")
            host.run("ip", "-6", "route", "add", "default", "via", f"fd00:{side}::1")
        self.router = lab.router(self.inside, ports + config, **options) if start else None

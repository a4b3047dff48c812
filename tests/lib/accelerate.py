"""A Linux router as it is: addresses, routes and forwarding of the kernel's, between Linux hosts; and its acceleration.

```
box = Box(lab)                       # hosts a, b and c behind eth0, eth1 and eth2
router = box.accelerate("eth0", "eth1")
```
"""

import json
import subprocess
from types import SimpleNamespace

from . import tables
from .netns import veth, wait_for

HOSTS = "abc"
# Of `turnpike accelerate`: by AF_XDP sockets, or by the XDP programs alone.
SOCKETS, IN_KERNEL = "sockets", "in-kernel"
MODES = [SOCKETS, IN_KERNEL]


def receives_frames(host, interface="eth0"):
    """Has a host on veth take frames of XDP programs, and complete its own checksums, as one on a wire does."""
    host.run("ethtool", "-K", interface, "gro", "on", "tx", "off")


class Box:
    """The router's namespace `space`, and hosts by their names, each the gateway of 198.51.N.0/24 and 2001:db8:N::/48
    behind it."""

    def __init__(self, lab, mode=SOCKETS, quiet=False):
        self.lab, self.mode = lab, mode
        self.space = lab.namespace("box", quiet)
        if quiet:
            for scope in ("all", "default"):
                self.space.sysctl(f"net.ipv6.conf.{scope}.disable_ipv6", 0)
        self.space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.space.sysctl("net.ipv4.ip_forward", 1)
        self.space.sysctl("net.ipv6.conf.all.forwarding", 1)
        # Errors without limit, so that tests that share a box are independent.
        self.space.sysctl("net.ipv4.icmp_ratemask", 0)
        self.space.sysctl("net.ipv6.icmp.ratelimit", 0)
        self.hosts = {}
        for number, name in enumerate(HOSTS, 1):
            host = self.hosts[name] = lab.namespace(name)
            host.sysctl("net.ipv6.conf.default.accept_dad", 0)
            veth(self.space, f"eth{number - 1}", host, "eth0",
                 f"02:00:00:00:0{number}:01", f"02:00:00:00:0{number}:02")
            if mode == IN_KERNEL:
                receives_frames(host)
            self.ip("address", "add", f"10.0.{number}.1/24", "brd", "+", "dev", f"eth{number - 1}")
            self.ip("address", "add", f"fd00:{number}::1/64", "dev", f"eth{number - 1}", "nodad")
            host.run("ip", "address", "add", f"10.0.{number}.2/24", "dev", "eth0")
            host.run("ip", "address", "add", f"fd00:{number}::2/64", "dev", "eth0", "nodad")
            for address in (f"198.51.{number}.1/32", f"2001:db8:{number}::1/128"):
                host.run("ip", "address", "add", address, "dev", "lo")
            host.run("ip", "route", "add", "default", "via", f"10.0.{number}.1")
            host.run("ip", "-6", "route", "add", "default", "via", f"fd00:{number}::1")
            self.ip("route", "add", f"198.51.{number}.0/24", "via", f"10.0.{number}.2")
            self.ip("-6", "route", "add", f"2001:db8:{number}::/48", "via", f"fd00:{number}::2")

    def __getattr__(self, name):
        """A host."""
        try:
            return self.__dict__["hosts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def ip(self, *words, check=True):
        """Runs `ip` on the router."""
        return self.space.run("ip", *words, check=check)

    def routes(self, family=4, table="main"):
        """The kernel's routes, as `ip -j route` shows them."""
        return kernel_routes(self.space, family, table)

    def batch(self, lines):
        """Runs many `ip` commands at once."""
        self.space.run("ip", "-batch", "-", input="\n".join(lines) + "\n", timeout=300)

    def accelerate(self, *interfaces, wait=True, **options):
        """Starts `turnpike accelerate`; unless `wait=False` packets are taken when this returns."""
        mode = ["--in-kernel"] if self.mode == IN_KERNEL else []
        router = self.lab.router(self.space, "", command=["accelerate", *mode, *interfaces], wait=wait, **options)
        if wait:
            takes_packets(router)
        return router

    def settle(self):
        """Returns when the router knows the hosts as neighbours."""
        for host, number in zip("abc", (1, 2, 3)):
            for address in (f"10.0.{number}.2", f"fd00:{number}::2"):
                self.space.run("ping", "-n", "-c", "1", "-W", "5", address)


def kernel_routes(space, family=4, table="main"):
    """The kernel's routes in a namespace, as `ip -j route` shows them."""
    argv = space.command("ip", "-j", f"-{family}", "route", "show", "table", table)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout or "[]")


def assert_fib_is_the_kernel_s(space, router, **options):
    """Waits until the router has the kernel's routes, all of whose interfaces are accelerated; returns the lines."""
    routes = lambda family, table: kernel_routes(space, family, table)  # noqa: E731
    return tables.assert_agree(SimpleNamespace(routes=routes, router=router, turnpike=True), **options)


def takes_packets(router, families=("ip4", "ip6"), seconds=20):
    """Waits until all accelerated interfaces of a router take packets of these families."""
    def taken():
        interfaces = status(router)
        return interfaces and all(of[family]["accelerated"] for of in interfaces.values() for family in families)

    assert wait_for(taken, seconds), f"{status(router)}\n{router.log()}"


def status(router):
    """The accelerated interfaces by name."""
    return {interface["name"]: interface for interface in router.show("acceleration")["interfaces"]}


def packets(router, interface, *outcomes):
    """The packets of an interface with these outcomes, together; 0 while it is not open."""
    counts = status(router).get(interface, {"packets": {}})["packets"]
    return sum(counts.get(outcome, 0) for outcome in outcomes)


class Counted:
    """The packets of each outcome on an interface since the beginning of this."""

    def __init__(self, router, interface):
        self.router, self.interface = router, interface
        self.before = status(router)[interface]["packets"]

    def __getitem__(self, outcome):
        return status(self.router)[self.interface]["packets"][outcome] - self.before[outcome]

    def all(self):
        """Those with a change."""
        now = status(self.router)[self.interface]["packets"]
        return {outcome: now[outcome] - self.before[outcome] for outcome in now if now[outcome] != self.before[outcome]}

"""A Linux machine that routes: its interfaces, its kernel's routes, and its forwarder.

The daemons of a scenario see the same machine whether its packets are forwarded by Turnpike, behind
host interfaces, or by the kernel itself. `FORWARDER=kernel` runs the scenarios of routing daemons
with the kernel in Turnpike's place, which shows that it is not the scenario that is wrong; the
benchmarks compare the two.
"""

import json
import os
import re
import subprocess

from .netns import veth, wait_for


def forwarder():
    """The forwarder of the scenarios: `turnpike`, or `kernel` for comparison."""
    return os.environ.get("FORWARDER", "turnpike")


class Machine:
    """A router with named interfaces, addressed and wired before it is started.

    ```
    machine = Machine(lab, "router")
    machine.port("left", host, "eth0", "10.0.1.1/24", "fd00:1::1/64")
    machine.start()
    ```

    `space` is the namespace where interfaces of these names and the daemons live. With Turnpike
    they are host interfaces, and the wires end in interfaces `tp-NAME`, in `wires`: the same
    namespace, or one of its own with `apart=True`.
    """

    def __init__(self, lab, role, apart=False, by=None):
        self.lab = lab
        self.by = by or forwarder()
        self.space = lab.namespace(role)
        # No duplicate address detection: daemons would wait for link-local addresses.
        self.space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.wires = lab.namespace(f"{role}-wires") if apart and self.turnpike else self.space
        self.apart = self.wires is not self.space
        self.ports = {}
        self.router = None
        # Unless the kernel is the forwarder, it must not forward: a packet that arrives passed through Turnpike.
        self._kernel_forwards(not self.turnpike)

    @property
    def turnpike(self):
        """True if Turnpike forwards."""
        return self.by == "turnpike"

    def port(self, name, peer, peer_interface, *addresses, peer_mac=None, mtu=1500):
        """Wires the interface `name` to another namespace's."""
        self.ports[name] = addresses
        veth(self.wires, self.wire(name), peer, peer_interface, mac_b=peer_mac, mtu=mtu)
        if not self.turnpike:
            self._address(name, addresses)

    def join(self, name, other, other_name, addresses, other_addresses):
        """Wires two machines together."""
        self.ports[name], other.ports[other_name] = addresses, other_addresses
        veth(self.wires, self.wire(name), other.wires, other.wire(other_name))
        for machine, port in ((self, name), (other, other_name)):
            if not machine.turnpike:
                machine._address(port, machine.ports[port])

    def wire(self, name):
        """The name of the interface where the wire ends."""
        return f"tp-{name}" if self.turnpike else name

    def start(self, sources='"kernel"', config="", wait=True, **options):
        """Starts the forwarder."""
        if self.turnpike:
            text = self.config(sources) + config
            if self.router:
                # As a later start does: its holder is found by its socket.
                options.setdefault("socket", self.router.socket)
            self.router = self.lab.router(self.wires, text, wait=wait, **options)
        return self

    def config(self, sources='"kernel"'):
        """Turnpike's configuration: the ports with their addresses, and the sources of routes."""
        host = f'{{ netns = "{self.space.name}" }}' if self.apart else "true"
        lines = ['local turnpike = require "turnpike"']
        for name, addresses in self.ports.items():
            quoted = ", ".join(f'"{address}"' for address in addresses)
            lines.append(
                f'turnpike.port "{name}" {{ device = "tp-{name}", host = {host}, address = {{ {quoted} }} }}'
            )
        lines.append(f"turnpike.routes_from {{ {sources} }}")
        return "\n".join(lines) + "\n"

    def run(self, *argv, **options):
        """Runs a command in the daemons' namespace."""
        return self.space.run(*argv, **options)

    def ip(self, *words, family=4, check=True):
        """Runs `ip` there."""
        return self.run("ip", f"-{family}", *words, check=check)

    def batch(self, lines, check=True):
        """Runs many `ip` commands at once, of the family of their addresses; with `check=False` those that fail are
        ignored."""
        argv = ["ip", *([] if check else ["-force"]), "-batch", "-"]
        return self.run(*argv, input="\n".join(lines) + "\n", check=check, timeout=300)

    def routes(self, family=4, table="main"):
        """The kernel's routes, as `ip -j route` shows them."""
        # Without the shell between: the output is large.
        argv = self.space.command("ip", "-j", f"-{family}", "route", "show", "table", table)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout or "[]")

    def route_count(self):
        """The number of the kernel's IPv4 prefixes, by a query that is fast with a million."""
        with self.space.entered(), open("/proc/self/net/fib_triestat") as file:
            # Tables `main` and `local` are one, and listed twice, unless there are rules.
            return int(re.search(r"Main:.*?Prefixes:\s+(\d+)", file.read(), re.S)[1])

    def index(self, interface):
        """The kernel's index of an interface."""
        return int(self.run("cat", f"/sys/class/net/{interface}/ifindex").stdout)

    def neighbour(self, address, interface, mac):
        """A permanent neighbour in the kernel's table."""
        self.ip("neighbour", "replace", address, "lladdr", mac, "dev", interface,
                family=6 if ":" in address else 4)

    def finish(self):
        """Ends Turnpike and checks that it ended cleanly."""
        if self.router:
            self.router.counters()
            self.router.stop()

    def _address(self, name, addresses):
        for address in addresses:
            nodad = ["nodad"] if ":" in address else []
            self.space.run("ip", "address", "add", address, "dev", name, *nodad)

    def _kernel_forwards(self, yes):
        self.space.sysctl("net.ipv4.ip_forward", int(yes))
        self.space.sysctl("net.ipv6.conf.all.forwarding", int(yes))


def host(machine, port, role, address4, gateway4, address6=None, gateway6=None, gateway=False):
    """A Linux host behind a port, the machine as its default gateway."""
    space = machine.lab.namespace(role)
    space.sysctl("net.ipv6.conf.default.accept_dad", 0)
    machine.port(port, space, "eth0", *_networks(gateway4, gateway6))
    space.run("ip", "address", "add", f"{address4}/24", "dev", "eth0")
    space.run("ip", "route", "add", "default", "via", gateway4)
    if address6:
        space.run("ip", "address", "add", f"{address6}/64", "dev", "eth0", "nodad")
        space.run("ip", "-6", "route", "add", "default", "via", gateway6)
    if gateway:
        takes_everything(space)
    return space


def _networks(gateway4, gateway6):
    return [f"{gateway4}/24"] + ([f"{gateway6}/64"] if gateway6 else [])


def takes_everything(space, interface="eth0"):
    """Makes the host accept every packet received on the interface as its own: it stands for all the networks that are
    announced behind it."""
    for family in ("-4", "-6"):
        space.run("ip", family, "route", "add", "local", "default", "dev", "lo", "table", 7)
        # After `local`, before `main`.
        space.run("ip", family, "rule", "add", "iif", interface, "lookup", 7, "priority", 100)


def pings(space, address, count=1, timeout=1, size=56, source=None):
    """Returns true if all of some echo requests, from `source` if it is given, are answered, each within `timeout`
    seconds."""
    # A process for each: for its last answer ping waits no longer than two of the round trips before.
    ping = ["ping", "-n", "-c", 1, "-W", timeout, "-s", size, *(["-I", source] if source else []), address]
    return all(space.run(*ping, check=False).returncode == 0 for _ in range(count))


def reaches(space, address, seconds=10, source=None):
    """Waits until the address answers an echo request, from `source` if it is given."""
    return wait_for(lambda: pings(space, address, source=source), seconds, 0.1)

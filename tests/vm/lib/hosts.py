"""Hosts of a router in the machine: outside, at a NIC, or inside, in a namespace of the machine."""


class Outside:
    """The host at a NIC, joined to network `side` of a router: it has 10.0.SIDE.2 and fd00:SIDE::2, and its
    gateway is the router, at .1 and ::1."""

    def __init__(self, machine, nic, side, driver="vfio-pci"):
        machine.bind(nic, driver)
        self.nic, self.side, self.namespace = nic, side, nic.host
        self.device, self.settings = nic.pci, ""
        _join(self, "eth0")

    def run(self, *argv, **options):
        """Runs a command on the host."""
        return self.namespace.run(*argv, **options)


class Inside:
    """The same in a namespace of the machine, at a kernel interface that the router takes over by a driver:
    af_xdp or af_packet."""

    def __init__(self, machine, side, driver):
        self._machine, self.side, self.nic = machine, side, None
        self.device, self._name = f"veth{side}", f"host{side}"
        self.settings = f', driver = "{driver}"'
        machine.run("ip", "netns", "add", self._name)
        machine.run("ip", "link", "add", self.device, "type", "veth", "peer", "eth0", "netns", self._name)
        machine.run("ip", "link", "set", self.device, "up")
        _join(self, "eth0")

    def run(self, *argv, **options):
        """Runs a command on the host."""
        return self._machine.run("ip", "netns", "exec", self._name, *argv, **options)

    def close(self):
        """Removes the namespace and the interfaces."""
        # At once: the kernel removes the interfaces of a namespace some time after it. A test may have removed them.
        self._machine.run("ip", "link", "del", self.device, check=False)
        self._machine.run("ip", "netns", "del", self._name)


def _join(host, interface):
    """Sets a host's addresses and routes; removes the earlier ones."""
    host.run("ip", "address", "flush", "dev", interface)
    host.run("ip", "link", "set", interface, "down")
    host.run("ip", "link", "set", interface, "up")
    host.run("ip", "address", "add", f"10.0.{host.side}.2/24", "dev", interface)
    # No duplicate address detection: the address can be used at once.
    host.run("ip", "address", "add", f"fd00:{host.side}::2/64", "dev", interface, "nodad")
    host.run("ip", "route", "add", "default", "via", f"10.0.{host.side}.1")
    host.run("ip", "-6", "route", "add", "default", "via", f"fd00:{host.side}::1")


def ports(*hosts, settings=""):
    """The configuration of a router with a port for each host, called `port` and the host's number; with more
    `settings` (`, mtu = 9000`) on each."""
    lines = (
        f'turnpike.port "port{host.side}" {{ device = "{host.device}", '
        f'address = {{ "10.0.{host.side}.1/24", "fd00:{host.side}::1/64" }}{host.settings}{settings} }}\n'
        for host in hosts
    )
    return 'local turnpike = require "turnpike"\n' + "".join(lines)


def address(host, family):
    """The host's address in a family, 4 or 6."""
    return f"10.0.{host.side}.2" if family == 4 else f"fd00:{host.side}::2"


def ping(source, target, family, size=56, count=1, seconds=10):
    """Pings one host from another; raises with ping's output if an answer is missing or has other data."""
    to = address(target, family)
    source.run("ping", f"-{family}", "-c", count, "-i", "0.2", "-W", seconds, "-s", size, "-M", "do", to)

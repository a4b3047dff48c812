"""The kernel's VRF devices beside Turnpike's VRFs: host interfaces are in them, and their tables' routes are followed."""

import json

import pytest

from lib.netns import wait_for

# Two customers with the same networks. Blue's table is that of the device of its name.
CONFIG = """
local turnpike = require "turnpike"
turnpike.vrf "blue" {}
turnpike.vrf "red" { table = 200 }
turnpike.port "b1" { device = "tp-b1", host = true, vrf = "blue", address = { "10.0.1.1/24", "fd00:1::1/64" } }
turnpike.port "b2" { device = "tp-b2", host = true, vrf = "blue", address = { "10.0.2.1/24", "fd00:2::1/64" } }
turnpike.port "r1" { device = "tp-r1", host = true, vrf = "red", address = { "10.0.1.1/24", "fd00:1::1/64" } }
turnpike.port "r2" { device = "tp-r2", host = true, vrf = "red", address = { "10.0.2.1/24", "fd00:2::1/64" } }
turnpike.loopback "lb" { vrf = "blue", address = "192.0.2.1/32" }
turnpike.loopback "lr" { vrf = "red", address = "192.0.2.1/32" }
turnpike.routes_from { "kernel" }
turnpike.forwarders { cores = "1" }
"""

SIDES = {"b1": 1, "b2": 2, "r1": 1, "r2": 2}


@pytest.fixture
def hosts(machine):
    """A namespace of the machine for each port's host, which answers to addresses of its own on `lo` as well."""
    machine.modprobe("vrf")
    run = machine.run
    # The kernel must not forward: a packet that arrives passed through Turnpike.
    for name, side in SIDES.items():
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"tp-{name}", "type", "veth", "peer", "eth0", "netns", name)
        run("ip", "link", "set", f"tp-{name}", "up")
        inside = ("ip", "-n", name)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "address", "add", f"10.0.{side}.2/24", "dev", "eth0")
        run(*inside, "address", "add", f"fd00:{side}::2/64", "dev", "eth0", "nodad")
        run(*inside, "route", "add", "default", "via", f"10.0.{side}.1")
        run(*inside, "-6", "route", "add", "default", "via", f"fd00:{side}::1")
    for name in ("b2", "r2"):
        run("ip", "-n", name, "address", "add", "198.51.100.1/32", "dev", "lo")
    yield
    for device in ("blue", "red"):
        run("ip", "link", "del", device, check=False)
    for name in SIDES:
        run("ip", "netns", "del", name)


def device(machine, name, table):
    machine.run("ip", "link", "add", name, "type", "vrf", "table", str(table))
    machine.run("ip", "link", "set", name, "up")


def master(machine, name):
    """The VRF device that a host interface is in."""
    (link,) = json.loads(machine.run("ip", "-j", "link", "show", name).stdout)
    return link.get("master")


def addresses(machine, name):
    (link,) = json.loads(machine.run("ip", "-j", "address", "show", name).stdout)
    return {a["local"] for a in link["addr_info"] if a["scope"] == "global"}


def pings(machine, host, target):
    """A host reaches an address."""
    ping = ("ping", "-n", "-c", "1", "-W", "5", target)
    return machine.run("ip", "netns", "exec", host, *ping, check=False).returncode == 0


def reaches(machine, host, target):
    return wait_for(lambda: pings(machine, host, target), 30)


def prefixes(router, vrf):
    return {route["prefix"] for route in router.show("routes", "--vrf", vrf, "--source", "kernel")}


def test_host_interfaces_are_in_the_vrf_devices_whose_routes_are_followed(machine, hosts):
    device(machine, "blue", 100)
    router = machine.router(CONFIG)
    try:
        assert wait_for(lambda: [master(machine, name) for name in ("b1", "b2")] == ["blue", "blue"], 30), router.log()
        assert master(machine, "r1") is None
        # One that comes later is used as well, and no address is lost.
        device(machine, "red", 200)
        assert wait_for(lambda: [master(machine, name) for name in ("r1", "r2")] == ["red", "red"], 30), router.log()
        for name, side in SIDES.items():
            assert addresses(machine, name) == {f"10.0.{side}.1", f"fd00:{side}::1"}, name
        for first in ("b1", "r1"):
            assert reaches(machine, first, "10.0.2.2") and reaches(machine, first, "fd00:2::2"), router.log()
        # So are those of loopbacks, whose addresses are of their VRFs.
        assert [master(machine, name) for name in ("lb", "lr")] == ["blue", "red"]
        for first in ("b1", "b2", "r1"):
            assert reaches(machine, first, "192.0.2.1"), router.log()
        # The kernel's own sockets in each, by ARP of each: both customers' hosts have these addresses.
        for vrf in ("blue", "red"):
            for target in ("10.0.1.2", "10.0.2.2", "fd00:1::2"):
                assert wait_for(lambda: machine.run(
                    "ping", "-n", "-c", "1", "-W", "5", "-I", vrf, target, check=False).returncode == 0, 30), (vrf, target)
        machine.run("ip", "route", "add", "198.51.100.0/24", "via", "10.0.2.2", "vrf", "blue")
        machine.run("ip", "route", "add", "203.0.113.0/24", "via", "10.0.2.2", "dev", "r2", "table", "200")
        assert wait_for(lambda: prefixes(router, "blue") == {"198.51.100.0/24"}, 30), router.show("routes", "--vrf", "blue")
        assert wait_for(lambda: prefixes(router, "red") == {"203.0.113.0/24"}, 30)
        assert reaches(machine, "b1", "198.51.100.1") and not pings(machine, "r1", "198.51.100.1")
        # A port that leaves its VRF takes its host interface along.
        machine.write("/run/next.lua", CONFIG.replace('"tp-r2", host = true, vrf = "red"', '"tp-r2", host = true'))
        router.command("apply", "/run/next.lua")
        assert wait_for(lambda: master(machine, "r2") is None, 30), router.log()
        assert master(machine, "r1") == "red" and addresses(machine, "r2") == {"10.0.2.1", "fd00:2::1"}
        router.command("rollback")
        assert wait_for(lambda: master(machine, "r2") == "red", 30), router.log()
        assert reaches(machine, "r1", "10.0.2.2")
        # Without the device there is no table any more; packets between the VRF's networks flow on.
        machine.run("ip", "link", "del", "blue")
        assert wait_for(lambda: prefixes(router, "blue") == set(), 30)
        assert reaches(machine, "b1", "10.0.2.2") and not pings(machine, "b1", "198.51.100.1")
        router.counters()
        router.stop()
    finally:
        router.close()


FOUND = """
local turnpike = require "turnpike"
turnpike.vrf "blue" {}
turnpike.port "b1" { device = "tp-b1", driver = "af_packet", host = { vlans = "kernel" }, address = "10.0.1.1/24" }
turnpike.routes_from { "kernel" }
turnpike.forwarders { cores = "1" }
"""


def test_a_found_vlan_is_in_the_vrf_that_the_operator_puts_its_device_into(machine, hosts):
    machine.modprobe("8021q")
    device(machine, "blue", 100)
    inside = ("ip", "-n", "b1")
    machine.run(*inside, "link", "add", "link", "eth0", "name", "eth0.10", "type", "vlan", "id", "10")
    machine.run(*inside, "link", "set", "eth0.10", "up")
    machine.run(*inside, "address", "add", "10.0.10.2/24", "dev", "eth0.10")
    router = machine.router(FOUND)

    def state():
        """Master of the device, and VRF and addresses of the VLAN."""
        vlan = next((of for of in router.show("interfaces") if of["name"] == "b1.10"), None)
        return vlan and (master(machine, "b1.10"), vlan.get("vrf"), vlan["addresses"])

    try:
        machine.run("ip", "link", "add", "link", "b1", "name", "b1.10", "type", "vlan", "id", "10")
        machine.run("ip", "link", "set", "b1.10", "master", "blue")
        machine.run("ip", "link", "set", "b1.10", "up")
        machine.run("ip", "address", "add", "10.0.10.1/24", "dev", "b1.10")
        in_blue, outside = ("blue", "blue", ["10.0.10.1/24"]), (None, None, ["10.0.10.1/24"])
        for words, expected, ping in (
            (None, in_blue, ["-I", "blue"]),
            (["nomaster"], outside, []),
            (["master", "blue"], in_blue, ["-I", "blue"]),
        ):
            if words:
                machine.run("ip", "link", "set", "b1.10", *words)
            assert wait_for(lambda: state() == expected, 60), (state(), router.log())
            ping = ["ping", "-n", "-c", "1", "-W", "5", *ping, "10.0.10.2"]
            assert wait_for(lambda: machine.run(*ping, check=False).returncode == 0, 30), (state(), router.log())
            # Nor has the router moved it since then.
            assert state() == expected, router.log()
        router.counters()
        router.stop()
    finally:
        router.close()
        machine.run("ip", "link", "del", "b1", check=False)


IN_NAMESPACE = """
local turnpike = require "turnpike"
turnpike.vrf "blue" { namespace = "blue" }
turnpike.port "b1" { device = "tp-b1", driver = "af_packet", vrf = "blue", host = { vlans = "kernel" },
                     address = "10.0.1.1/24" }
turnpike.port "r1" { device = "tp-r1", driver = "af_packet", host = { vlans = "kernel" }, address = "10.0.1.1/24" }
turnpike.routes_from { "kernel" }
turnpike.forwarders { cores = "1" }
"""


def test_a_vlan_device_in_the_network_namespace_of_a_vrf_is_found_there(machine, hosts):
    """Both VRFs have a device of the same name, tag and addresses, each in the namespace of its port's host interface."""
    machine.modprobe("8021q")
    machine.run("ip", "netns", "add", "blue")
    for name in ("b1", "r1"):
        inside = ("ip", "-n", name)
        machine.run(*inside, "link", "add", "link", "eth0", "name", "eth0.10", "type", "vlan", "id", "10")
        machine.run(*inside, "link", "set", "eth0.10", "up")
        machine.run(*inside, "address", "add", "10.0.10.2/24", "dev", "eth0.10")
        machine.run(*inside, "address", "add", "198.51.100.7/32", "dev", "lo")
    router = machine.router(IN_NAMESPACE)

    def found():
        return {of["name"]: (of["parent"], of.get("vrf"), of["addresses"], of["host"]["state"])
                for of in router.show("interfaces") if of["found"]}

    def add(space, parent, name):
        machine.run(*space, "link", "add", "link", parent, "name", name, "type", "vlan", "id", "10")
        machine.run(*space, "link", "set", name, "up")
        machine.run(*space, "address", "add", "10.0.10.1/24", "dev", name)

    blue, plain = ("ip", "-n", "blue"), ("ip",)
    expected = {"b1.10": ("b1", "blue", ["10.0.10.1/24"], "up"), "r1.10": ("r1", None, ["10.0.10.1/24"], "up")}
    try:
        add(blue, "b1", "b1.10")
        assert wait_for(lambda: found() == {"b1.10": expected["b1.10"]}, 60), (found(), router.log())
        add(plain, "r1", "r1.10")
        assert wait_for(lambda: found() == expected, 60), (found(), router.log())
        ping = ("ping", "-n", "-c", "1", "-W", "5", "10.0.10.2")
        for space in ((), ("ip", "netns", "exec", "blue")):
            assert wait_for(lambda space=space: machine.run(*space, *ping, check=False).returncode == 0, 30), router.log()
        # Forwarded from the untagged network to the tagged one, by a route of that kernel; the other VRF has none.
        machine.run(*blue, "route", "add", "198.51.100.0/24", "via", "10.0.10.2", "dev", "b1.10")
        assert wait_for(lambda: prefixes(router, "blue") == {"198.51.100.0/24"}, 30), router.show("routes", "--vrf", "blue")
        assert reaches(machine, "b1", "10.0.10.1") and reaches(machine, "r1", "10.0.10.1")
        machine.run(*blue, "link", "del", "b1.10")
        assert wait_for(lambda: found() == {"r1.10": expected["r1.10"]}, 60), found()
        assert prefixes(router, "blue") == set()
        router.counters()
        router.stop()
    finally:
        router.close()
        machine.run("ip", "link", "del", "r1", check=False)
        machine.run("ip", "netns", "del", "blue")

"""Bonds of the router beside those of a Linux kernel (the bonding driver, mode 802.3ad)."""

import time

import pytest

NAME = "peer"

LINUX_BOND = ["type", "bond", "mode", "802.3ad", "miimon", "100", "xmit_hash_policy", "layer3+4"]


def wait_for(condition, timeout=90):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.5)


@pytest.fixture
def peer(machine, request):
    """A namespace of the machine with a bond of two links, whose other ends are way0 and way1 of the machine."""
    machine.modprobe("bonding")
    machine.run("ip", "netns", "add", NAME)
    request.addfinalizer(lambda: machine.run("ip", "netns", "del", NAME))

    def inside(*argv, **options):
        return machine.run("ip", "netns", "exec", NAME, *argv, **options)

    inside("ip", "link", "add", "lag", *LINUX_BOND, "lacp_rate", getattr(request, "param", "fast"))
    for number in (0, 1):
        machine.run("ip", "link", "add", f"way{number}", "type", "veth", "peer", f"eth{number}", "netns", NAME)
        machine.run("ip", "link", "set", f"way{number}", "up")
        inside("ip", "link", "set", f"eth{number}", "master", "lag")
    inside("ip", "address", "add", "10.0.1.2/24", "dev", "lag")
    inside("ip", "link", "set", "lag", "up")
    return inside


def config(driver):
    return f"""
local turnpike = require "turnpike"
turnpike.port "a" {{ device = "way0", driver = "{driver}" }}
turnpike.port "b" {{ device = "way1", driver = "{driver}" }}
turnpike.bond "lag" {{ ports = {{ "a", "b" }}, address = "10.0.1.1/24" }}
turnpike.forwarders {{ cores = "1" }}
"""


FOUND = """
local turnpike = require "turnpike"
turnpike.port "a" { device = "way0", driver = "af_packet" }
turnpike.port "b" { device = "way1", driver = "af_packet" }
turnpike.bond "lag" { ports = { "a", "b" }, host = { vlans = "kernel" }, address = "10.0.1.1/24" }
turnpike.routes_from { "kernel" }
turnpike.forwarders { cores = "1" }
"""


def active(router):
    return {port["name"] for port in router.show("bonds")[0]["ports"] if port["distributing"]}


@pytest.mark.parametrize("peer", ["fast", "slow"], indirect=True)
@pytest.mark.parametrize("driver", ["af_xdp", "af_packet"])
def test_lacp_agrees_with_linux_and_a_lost_link_costs_no_connection(machine, peer, driver):
    router = machine.router(config(driver))
    try:
        wait_for(lambda: active(router) == {"a", "b"})
        state = peer("cat", "/proc/net/bonding/lag").stdout
        assert "Number of ports: 2" in state, state
        ping = ["ping", "-c", "3", "-i", "0.2", "-W", "10", "10.0.1.1"]
        peer(*ping)
        peer("ip", "link", "set", "eth0", "down")
        wait_for(lambda: active(router) == {"b"})
        wait_for(lambda: peer(*ping, check=False).returncode == 0)
        peer("ip", "link", "set", "eth0", "up")
        wait_for(lambda: active(router) == {"a", "b"})
        peer(*ping)
        router.counters()
        router.stop()
    finally:
        router.close()


@pytest.mark.parametrize("peer", ["fast"], indirect=True)
def test_vlan_devices_on_the_host_interface_of_a_bond_are_found(machine, peer):
    """A device of one tag and one behind it, of two; both leave by either link of the bond."""
    machine.modprobe("8021q")
    for parent, name, words, address in (
        ("lag", "lag.10", ("id", "10"), "10.0.10.2/24"),
        ("lag", "lag.s", ("proto", "802.1ad", "id", "300"), None),
        ("lag.s", "lag.s.7", ("id", "7"), "10.0.13.2/24"),
    ):
        peer("ip", "link", "add", "link", parent, "name", name, "type", "vlan", *words)
        peer("ip", "link", "set", name, "up")
        if address:
            peer("ip", "address", "add", address, "dev", name)
    router = machine.router(FOUND)

    def found():
        return {of["name"]: (of["parent"], of["link"], of["addresses"])
                for of in router.show("interfaces") if of["found"]}

    def pings(address):
        return machine.run("ping", "-n", "-c", "1", "-W", "5", address, check=False).returncode == 0

    up = {"lag.10": ("lag", "up", ["10.0.10.1/24"]), "lag.s": ("lag", "up", []),
          "lag.s.7": ("lag.s", "up", ["10.0.13.1/24"])}
    try:
        wait_for(lambda: active(router) == {"a", "b"})
        for parent, name, words, address in (
            ("lag", "lag.10", ("id", "10"), "10.0.10.1/24"),
            ("lag", "lag.s", ("proto", "802.1ad", "id", "300"), None),
            ("lag.s", "lag.s.7", ("id", "7"), "10.0.13.1/24"),
        ):
            machine.run("ip", "link", "add", "link", parent, "name", name, "type", "vlan", *words)
            machine.run("ip", "link", "set", name, "up")
            if address:
                machine.run("ip", "address", "add", address, "dev", name)
        wait_for(lambda: found() == up)
        for address in ("10.0.10.2", "10.0.13.2"):
            wait_for(lambda address=address: pings(address))
        # Forwarded between two of them; and a link less, which the VLANs outlive.
        forwarded = ("ping", "-n", "-c", "1", "-W", "5", "-I", "lag.10", "10.0.13.1")
        wait_for(lambda: peer(*forwarded, check=False).returncode == 0)
        peer("ip", "link", "set", "eth0", "down")
        wait_for(lambda: active(router) == {"b"})
        assert found() == up
        for address in ("10.0.10.2", "10.0.13.2"):
            wait_for(lambda address=address: pings(address))
        peer("ip", "link", "set", "eth1", "down")
        wait_for(lambda: {link for _, link, _ in found().values()} == {"down"})
        peer("ip", "link", "set", "eth1", "up")
        wait_for(lambda: found() == up)
        machine.run("ip", "link", "del", "lag.s")
        wait_for(lambda: found() == {"lag.10": up["lag.10"]})
        router.counters()
        router.stop()
    finally:
        router.close()
        machine.run("ip", "link", "del", "lag", check=False)

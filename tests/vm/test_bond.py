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

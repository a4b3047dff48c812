"""Proxy ARP (RFC 1027) and proxy neighbour discovery (RFC 4861, 7.2.8): Linux hosts that take all addresses for ones
of their own link reach those behind the router."""

import pytest

from lib import kernel
from lib.apply import apply, write
from lib.lab import LEFT_MAC, PORTS, Hosts
from lib.netns import wait_for

# The left host has no route but to its link, on which it expects all of these.
ON_LINK = ["10.0.0.0/16", "192.0.2.0/24", "fd00:2::/64", "2001:db8::/64"]
PROXY = '"10.0.2.0/24", "192.0.2.0/24", "fd00:2::/64", "2001:db8::/64"'
ROUTES = """
turnpike.route "192.0.2.0/25" { via = "10.0.2.2" }
turnpike.route "2001:db8::/65" { via = "fd00:2::2" }
"""


def with_proxy(prefixes):
    return PORTS.replace('device = "tp-left",', f'device = "tp-left", proxy = {{ {prefixes} }},') + ROUTES


@pytest.fixture
def hosts(lab):
    hosts = Hosts(lab, ports=with_proxy(PROXY))
    for net in ON_LINK:
        family = "-6" if ":" in net else "-4"
        hosts.left.run("ip", family, "route", "add", net, "dev", "eth0")
    for family in ("-4", "-6"):
        hosts.left.run("ip", family, "route", "del", "default")
    for address in ("192.0.2.1/32", "2001:db8::1/128"):
        hosts.right.run("ip", "address", "add", address, "dev", "lo", "nodad")
    return hosts


def pings(host, address):
    """Returns true if the address answers, without an entry for it from before."""
    host.run("ip", "neigh", "flush", "dev", "eth0")
    return kernel.pings(host, address, timeout=2)


def mac_of(host, address):
    """The MAC that a host has for an address, None without one."""
    words = host.run("ip", "neigh", "show", address, "dev", "eth0").stdout.split()
    return words[words.index("lladdr") + 1] if "lladdr" in words else None


@pytest.mark.parametrize("address", ["10.0.2.2", "192.0.2.1", "fd00:2::2", "2001:db8::1"])
def test_hosts_behind_the_router_are_reached_as_neighbours(hosts, address):
    assert wait_for(lambda: pings(hosts.left, address), 10)
    assert mac_of(hosts.left, address) == LEFT_MAC


@pytest.mark.parametrize("address", [
    "10.0.1.77",          # on the same link
    "192.0.2.200",        # without a route
    "10.0.3.1",           # outside the prefixes
    "2001:db8::8000:0:0:1",
])
def test_nothing_else_is_answered_for(hosts, address):
    assert wait_for(lambda: pings(hosts.left, "10.0.2.2"), 10)
    assert not pings(hosts.left, address)
    assert mac_of(hosts.left, address) is None


def test_a_host_may_not_take_an_address_that_is_behind_the_router(hosts):
    assert wait_for(lambda: pings(hosts.left, "fd00:2::2"), 10)
    hosts.left.run("ip", "address", "add", "2001:db8::1/64", "dev", "eth0")
    failed = lambda: "dadfailed" in hosts.left.run("ip", "-6", "address", "show", "dev", "eth0").stdout
    assert wait_for(failed, 10)


def test_the_prefixes_change_while_it_runs(hosts):
    assert wait_for(lambda: pings(hosts.left, "10.0.2.2"), 10)
    changed = with_proxy('"192.0.2.0/24"')
    planned = hosts.router.command("plan", write(hosts.router, changed), check=False).stdout
    assert 'port "left": proxy: 10.0.2.0/24, 192.0.2.0/24, fd00:2::/64, 2001:db8::/64 -> 192.0.2.0/24' in planned, planned
    assert apply(hosts.router, changed)["summary"] == "1 setting"
    assert pings(hosts.left, "192.0.2.1") and not pings(hosts.left, "10.0.2.2") and not pings(hosts.left, "fd00:2::2")
    hosts.router.command("rollback")
    assert pings(hosts.left, "10.0.2.2") and pings(hosts.left, "fd00:2::2")


def test_a_kernel_that_is_the_host_answers_by_itself(lab):
    hosts = Hosts(lab, start=False)
    text = with_proxy(PROXY).replace('device = "tp-left",', 'device = "tp-left", host = true,')
    router = lab.router(hosts.inside, text, wait=False)
    assert router.process.wait(20) != 0
    assert "proxy: on a port with a host interface the kernel answers ARP" in router.log()

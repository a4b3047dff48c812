"""Several addresses on a port: of several networks on one link, and several of one network."""

import re

import pytest

from lib.apply import apply
from lib.kernel import Machine, pings, reaches
from lib.lab import Hosts
from lib.netns import wait_for

SEVERAL = '{ "10.0.1.1/24", "10.0.1.9/24", "10.9.1.1/24", "fd00:1::1/64", "fd00:1::9/64", "fd00:9::1/64" }'
PORTS = """
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = %s }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
""" % SEVERAL


def on_the_second_network(space):
    """A host of the link is on its second network only."""
    space.run("ip", "address", "flush", "dev", "eth0", "scope", "global")
    space.run("ip", "address", "add", "10.9.1.2/24", "dev", "eth0")
    space.run("ip", "address", "add", "fd00:9::2/64", "dev", "eth0", "nodad")
    space.run("ip", "route", "replace", "default", "via", "10.9.1.1")
    space.run("ip", "-6", "route", "replace", "default", "via", "fd00:9::1")


def test_hosts_of_both_networks_of_a_link_are_served(lab):
    net = Hosts(lab, ports=PORTS)
    for address in ("10.0.1.1", "10.0.1.9", "fd00:1::1", "fd00:1::9"):
        assert reaches(net.left, address), net.router.log()
    on_the_second_network(net.left)
    for address in ("10.9.1.1", "10.0.2.2", "fd00:9::1", "fd00:2::2", "10.0.1.9", "fd00:1::9"):
        assert reaches(net.left, address), address
    # The router asks for the host by its address of the host's network, and errors come from that address.
    net.left.run("ip", "neighbour", "flush", "all")
    net.router.command("neighbour", "del", "10.9.1.2", check=False)
    assert pings(net.right, "10.9.1.2", timeout=5)
    for option, address, expected in (("-4", "10.0.2.2", "10.9.1.1"), ("-6", "fd00:2::2", "fd00:9::1")):
        said = net.left.run("ping", option, "-n", "-c", 1, "-W", 2, "-t", 1, address, check=False).stdout
        assert re.search(rf"From {expected}\b", said), said
    net.router.stop()


@pytest.mark.parametrize("promote", [0, 1])
def test_the_kernel_keeps_the_other_addresses_of_a_network_when_the_first_goes(lab, promote):
    """Linux removes the secondary addresses of a network with its primary one unless `promote_secondaries` is on."""
    machine = Machine(lab, "router")
    machine.space.sysctl("net.ipv4.conf.default.promote_secondaries", promote)
    machine.space.sysctl("net.ipv4.conf.all.promote_secondaries", promote)
    left = lab.namespace("left")
    machine.port("left", left, "eth0", "10.0.1.1/24", "10.0.1.9/24", "10.0.1.10/24", "10.9.1.1/24")
    left.run("ip", "address", "add", "10.0.1.2/24", "dev", "eth0")
    machine.start()
    router = machine.router
    for address in ("10.0.1.1", "10.0.1.9", "10.0.1.10"):
        assert reaches(left, address), router.log()

    def addresses():
        (left,) = [of for of in router.show("interfaces") if of["name"] == "left"]
        return {net for net in left["addresses"] if "." in net}

    base = router.config.read_text()
    apply(router, base.replace('"10.0.1.1/24", ', ""))
    rest = {"10.0.1.9/24", "10.0.1.10/24", "10.9.1.1/24"}
    assert wait_for(lambda: addresses() == rest, 10), addresses()
    assert reaches(left, "10.0.1.9") and reaches(left, "10.0.1.10") and not pings(left, "10.0.1.1")
    router.command("rollback")
    assert wait_for(lambda: addresses() == rest | {"10.0.1.1/24"}, 10), addresses()
    assert reaches(left, "10.0.1.1") and pings(left, "10.0.1.9")
    machine.finish()

"""Multicast filters of a port's device: the router's own groups and the groups that the kernel has joined on the host
interface, or all.

A veth filters nothing, so the scenarios read what is asked of the kernel interface. That NICs leave other
frames on the wire is seen in the VM lab.
"""

import contextlib
import signal
import socket

import pytest

from lib.apply import apply, plan
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC
from lib.netns import veth, wait_for

GROUP, GROUP_MAC = "239.1.2.3", "01:00:5e:01:02:03"
# All routers of both families, and the solicited-node groups of fd00:1::1 and the link-local address.
OWN = {
    "01:00:5e:00:00:02", "33:33:00:00:00:01", "33:33:00:00:00:02", "33:33:ff:00:00:01", "33:33:ff:00:01:01",
}  # fmt: skip


class Ports:
    """A router with a port that has a host interface in a namespace, and one without."""

    def __init__(self, lab, driver):
        self.inside, self.space = lab.namespace("router", quiet=True), lab.namespace("space")
        outside = lab.namespace("outside", quiet=True)
        veth(self.inside, "tp-left", outside, "left", LEFT_MAC, HOST_A_MAC, 1500)
        veth(self.inside, "tp-right", outside, "right", RIGHT_MAC, HOST_B_MAC, 1500)
        self.driver = driver
        self.router = lab.router(self.inside, self.config())

    def config(self, left="", more=""):
        return f"""
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "tp-left", driver = "{self.driver}", {left}
  address = {{ "10.0.1.1/24", "fd00:1::1/64" }}, host = {{ netns = "{self.space.name}" }} }}
turnpike.port "right" {{ device = "tp-right", driver = "{self.driver}", address = "10.0.2.1/24" }}
{more}
"""

    def groups(self, interface="tp-left"):
        """The groups joined on a kernel interface."""
        words = [line.split() for line in self.inside.run("cat", "/proc/net/dev_mcast").stdout.splitlines()]
        macs = [word[4] for word in words if word[1] == interface]
        return {":".join(mac[at : at + 2] for at in range(0, 12, 2)) for mac in macs}

    def hears_all(self, interface="tp-left"):
        """Returns true if a kernel interface was set to receive all multicasts."""
        return "allmulti 0" not in self.inside.run("ip", "-d", "link", "show", interface).stdout

    def details(self, port=0):
        return self.router.show("ports")[port]["link_details"]

    @contextlib.contextmanager
    def member(self):
        """A program on the router's machine that is in the group."""
        with self.space.entered():
            program = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with program:
            membership = socket.inet_aton(GROUP) + socket.inet_aton("10.0.1.1")
            program.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            yield


@pytest.fixture(scope="module", params=["af_xdp", "af_packet"])
def ports(request, module_lab):
    ports = Ports(module_lab, request.param)
    assert wait_for(lambda: not ports.hears_all(), 5), ports.details()
    return ports


def test_the_router_s_own_groups_are_asked_for(ports):
    assert wait_for(lambda: OWN <= ports.groups(), 5), ports.groups()
    details = ports.details()
    assert OWN <= set(details["groups"]) <= ports.groups() and not details["all_multicast"]
    assert "33:33:00:00:00:02" in ports.groups("tp-right") and not ports.hears_all("tp-right")
    shown = ports.router.command("show", "ports", "--link").stdout
    assert f"its address, {len(details['groups'])} groups" in shown, shown


def test_a_group_is_asked_for_as_long_as_the_kernel_is_in_it(ports):
    assert GROUP_MAC not in ports.groups()
    with ports.member():
        assert wait_for(lambda: GROUP_MAC in ports.groups(), 5)
        assert GROUP_MAC in ports.details()["groups"] and GROUP_MAC not in ports.groups("tp-right")
    assert wait_for(lambda: GROUP_MAC not in ports.groups(), 5)


def test_an_address_brings_its_group(ports):
    ports.space.run("ip", "address", "add", "fd00:1::77:1234/64", "dev", "left", "nodad")
    assert wait_for(lambda: "33:33:ff:77:12:34" in ports.groups(), 5)
    ports.space.run("ip", "address", "del", "fd00:1::77:1234/64", "dev", "left")
    assert wait_for(lambda: "33:33:ff:77:12:34" not in ports.groups(), 5)


def test_all_multicasts_when_the_host_interface_takes_all(ports):
    ports.space.run("ip", "link", "set", "left", "allmulticast", "on")
    assert wait_for(ports.hears_all, 5)
    assert ports.details()["all_multicast_because"] == "its host interface takes all"
    assert not ports.hears_all("tp-right")
    ports.space.run("ip", "link", "set", "left", "allmulticast", "off")
    assert wait_for(lambda: not ports.hears_all(), 5)


def test_all_multicasts_where_they_are_forwarded_from(ports):
    route = 'turnpike.multicast "239.1.1.1" { from = "right", to = { "left" } }'
    apply(ports.router, ports.config(more=route))
    assert wait_for(lambda: ports.hears_all("tp-right"), 5)
    assert ports.details(1)["all_multicast_because"] == "multicasts from it are forwarded"
    assert not ports.hears_all()
    apply(ports.router, ports.config())
    assert wait_for(lambda: not ports.hears_all("tp-right"), 5)


def test_all_multicasts_when_the_configuration_says_so(ports):
    wanted = ports.config("all_multicast = true,")
    ports.router.config.write_text(wanted)
    planned = ports.router.command("plan", ports.router.config, check=False).stdout
    assert "all_multicast" in planned and "closes the port" not in planned, planned
    assert plan(ports.router, wanted)[1] == 2
    apply(ports.router, wanted)
    assert wait_for(ports.hears_all, 5)
    details = ports.details()
    assert details["all_multicast"] and "groups" not in details
    shown = ports.router.command("show", "ports", "--link").stdout
    assert "its address, all multicasts: the configuration asks for them" in shown, shown
    apply(ports.router, ports.config())
    assert wait_for(lambda: not ports.hears_all(), 5)


def test_a_killed_router_leaves_no_group_behind(lab):
    ports = Ports(lab, "af_packet")
    assert wait_for(lambda: OWN <= ports.groups(), 5)
    with ports.member():
        assert wait_for(lambda: GROUP_MAC in ports.groups(), 5)
        ports.router.process.send_signal(signal.SIGKILL)
        ports.router.process.wait(10)
        # The kernel itself is in the group of all nodes.
        gone = OWN - {"33:33:00:00:00:01"} | {GROUP_MAC}
        assert wait_for(lambda: not ports.groups() & gone, 5), ports.groups()
    assert not ports.hears_all()

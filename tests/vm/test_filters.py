"""Multicast filters of NICs: frames to groups without members stay on the wire."""

import pytest

from lib.lab import Lab
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, pattern, udp

from .lib.hosts import Outside, ping, ports

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'
# NICs that take a list of groups.
LISTING = ["e1000e", "igb", "virtio"]
COUNT = 20
OSPF, OSPF_MAC = "224.0.0.5", "01:00:5e:00:00:05"


class Groups:
    """A router with one NIC, and the wire of the host at it."""

    def __init__(self, machine, kind, settings=""):
        self.machine, self.outside = machine, Outside(machine, machine.nic(kind), 1)
        self._lab = Lab()
        self.wire = self._lab.raw(self.outside.namespace, "eth0")
        self.router = machine.router(ports(self.outside, settings=settings) + FORWARDERS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._lab.close()
        self.router.close()
        # A host interface stays when its router ends.
        self.machine.run("ip", "link", "del", "port1", check=False)

    def port(self):
        return self.router.show("ports")[0]

    def details(self):
        return self.port()["link_details"]

    def send(self, group, mac, protocol=17):
        """Sends frames to a group, and one to the router, which is received after them."""
        data = pattern(64) if protocol != 17 else udp("10.0.1.2", group, 5000, 5000, pattern(64))
        packet = ipv4("10.0.1.2", group, data, protocol=protocol, ttl=1)
        self.wire.send(*[ethernet(mac, self.outside.nic.host_mac, 0x0800, packet)] * COUNT)
        self.outside.run("ping", "-c", 1, "-W", 10, "10.0.1.1")

    def received(self, *frames):
        """Number of packets that the router received meanwhile."""
        before = self.port()["rx_packets"]
        self.send(*frames)
        return self.port()["rx_packets"] - before


def has_list(router):
    return not router.details()["all_multicast"]


@pytest.mark.parametrize("kind", LISTING)
def test_a_group_that_nobody_joined_stays_on_the_wire(machine, kind):
    with Groups(machine, kind) as router:
        assert wait_for(lambda: has_list(router), 10), router.details()
        router.send("239.77.77.77", "01:00:5e:4d:4d:4d")
        assert router.received("239.77.77.77", "01:00:5e:4d:4d:4d") < COUNT / 2
        # A host may send to other groups meanwhile.
        assert router.router.show("counters")["dropped"]["multicast-not-routed"] < COUNT / 2
        router.router.stop()


@pytest.mark.long
@pytest.mark.parametrize("kind", [*LISTING, "vmxnet3"])
def test_all_multicasts_come_in_when_they_are_asked_for(machine, kind):
    with Groups(machine, kind, ", all_multicast = true") as router:
        assert wait_for(lambda: "configuration" in router.details()["all_multicast_because"], 10)
        router.send("239.77.77.77", "01:00:5e:4d:4d:4d")
        assert router.received("239.77.77.77", "01:00:5e:4d:4d:4d") >= COUNT


def test_a_nic_that_takes_no_list_passes_on_all_and_says_so(machine):
    with Groups(machine, "vmxnet3") as router:
        said = lambda: router.details().get("all_multicast_because", "")  # noqa: E731
        assert wait_for(lambda: "takes no list of" in said(), 10), router.details()
        assert "takes no list of" in router.router.command("show", "ports", "--link").stdout
        assert router.received("239.77.77.77", "01:00:5e:4d:4d:4d") >= COUNT


@pytest.mark.parametrize("kind", LISTING)
def test_a_group_comes_in_while_a_routing_daemon_is_in_it(machine, kind):
    with Groups(machine, kind, ", host = true") as router:
        up = lambda: router.port()["host"]["up_packets"]  # noqa: E731
        assert wait_for(lambda: has_list(router), 10), router.details()
        router.send(OSPF, OSPF_MAC, 89)
        before = up()
        router.send(OSPF, OSPF_MAC, 89)
        assert up() - before < COUNT / 2, "before the join"
        machine.run("ip", "maddress", "add", OSPF_MAC, "dev", "port1")
        assert wait_for(lambda: OSPF_MAC in router.details()["groups"], 10), router.details()
        before = up()
        router.send(OSPF, OSPF_MAC, 89)
        assert wait_for(lambda: up() - before >= COUNT, 10)
        machine.run("ip", "maddress", "del", OSPF_MAC, "dev", "port1")
        assert wait_for(lambda: OSPF_MAC not in router.details()["groups"], 10)


@pytest.mark.long
@pytest.mark.parametrize("kind", LISTING)
@pytest.mark.parametrize("host", ["false", "true"], ids=["alone", "with a host interface"])
def test_neighbour_discovery_finds_the_router(machine, kind, host):
    hosts = [Outside(machine, machine.nic(kind, index), index + 1) for index in (0, 1)]
    router = machine.router(ports(*hosts, settings=f", host = {host}") + FORWARDERS)
    listed = lambda: not any(port["link_details"]["all_multicast"] for port in router.show("ports"))  # noqa: E731
    assert wait_for(listed, 10), router.show("ports")
    for side in hosts:
        side.run("ip", "neigh", "flush", "dev", "eth0")
    ping(*hosts, 6)
    for number, side in enumerate(hosts, 1):
        side.run("ping", "-6", "-c", 1, "-W", 10, f"fd00:{number}::1")
    router.stop()
    for number in (1, 2):
        machine.run("ip", "link", "del", f"port{number}", check=False)

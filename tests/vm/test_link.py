"""Requested, shown and refused settings of links and addresses of NICs."""

import pytest

from lib.netns import wait_for

from .lib.hosts import Outside, ping, ports

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'


def refusal(machine, config):
    """Output of a router that does not start."""
    router = machine.router(config, wait=False)
    assert router.process.wait(120) == 1, router.log()
    return router.log()


def test_a_link_is_what_is_wished_for_and_shown(machine):
    hosts = [Outside(machine, machine.nic("e1000e", index), index + 1) for index in (0, 1)]
    router = machine.router(ports(*hosts, settings=', link = { speed = "1G", pause = "rx" }') + FORWARDERS)
    ping(*hosts, 4)
    for port in router.show("ports"):
        details = port["link_details"]
        assert (details["speed_mbps"], details["duplex"], details["pause"]) == (1000, "full", "rx"), details
        assert not details["promiscuous"]
    assert "1000 Mb/s" in router.command("show", "ports", "--link").stdout
    router.stop()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ('speed = "10G"', "cannot do 10 Gb/s; it can: 10 Mb/s, 100 Mb/s, 1 Gb/s, 10 Mb/s half duplex"),
        ('fec = "rs"', 'has no error correction "rs"; it does not say what it can; or leave link.fec out'),
    ],
)
def test_what_a_nic_cannot_is_refused_before_a_packet_moves(machine, wish, words):
    host = Outside(machine, machine.nic("e1000e"), 1)
    log = refusal(machine, ports(host, settings=f", link = {{ {wish} }}") + FORWARDERS)
    assert f"device {host.device} {words}" in log, log


@pytest.mark.parametrize("kind", ["e1000e", "virtio"])
def test_a_mac_of_our_choice_is_the_nic_s_and_nothing_else_comes_in(machine, kind):
    hosts = [Outside(machine, machine.nic(kind, index), index + 1) for index in (0, 1)]
    config = ports(hosts[0]) + ports(hosts[1], settings=', mac = "02:00:00:00:77:01"') + FORWARDERS
    router = machine.router(config)
    ping(*hosts, 4)
    ping(hosts[1], hosts[0], 6)
    left, right = router.show("ports")
    assert right["mac"] == "02:00:00:00:77:01" and not right["link_details"]["promiscuous"], right
    # To an address without a host: the NIC leaves it on the wire.
    before = right["rx_packets"]
    hosts[1].run("ip", "neigh", "replace", "10.0.2.77", "lladdr", "02:00:00:00:77:77", "dev", "eth0")
    hosts[1].run("ping", "-c", 20, "-i", 0.05, "-W", 1, "10.0.2.77", check=False)
    ping(hosts[1], hosts[0], 4)
    received = router.show("ports")[1]["rx_packets"] - before
    assert received < 15 and router.show("counters")["dropped"]["not-for-us"] == 0, received
    router.stop()


def test_a_promiscuous_port_receives_what_is_for_others(machine):
    hosts = [Outside(machine, machine.nic("e1000e", index), index + 1) for index in (0, 1)]
    router = machine.router(ports(*hosts, settings=", promiscuous = true") + FORWARDERS)
    assert router.show("ports")[1]["link_details"]["promiscuous"]
    hosts[1].run("ip", "neigh", "replace", "10.0.2.77", "lladdr", "02:00:00:00:77:77", "dev", "eth0")
    hosts[1].run("ping", "-c", 5, "-i", 0.05, "-W", 1, "10.0.2.77", check=False)
    assert wait_for(lambda: router.show("counters")["dropped"]["not-for-us"] >= 5, 10)
    hosts[1].run("ip", "neigh", "del", "10.0.2.77", "dev", "eth0")
    router.stop()

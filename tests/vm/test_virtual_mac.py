"""VRRP's virtual MAC on emulated NICs: a device receives frames to it, as well as to its own, while the router is master.

QEMU's Intel NICs pass frames to any MAC once multicast groups are hashed; its vmxnet3 and virtio filter exactly.
"""

import pytest

from lib.netns import wait_for

from .lib.hosts import Outside, address, ports
from .lib.nic import KINDS

MAC = "00:00:5e:00:01:33"


def macs(router):
    """The virtual MACs of the first host's port."""
    return next(port["virtual_macs"] for port in router.show("interfaces") if port["name"] == "port1")


def pings(source, target, count=1):
    """Returns true if a host has an answer of the other."""
    argv = ("ping", "-n", "-c", count, "-i", "0.2", "-W", 2, target)
    return source.run(*argv, check=False).returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_takes_frames_to_a_virtual_mac_and_its_own(machine, kind):
    machine.modprobe("macvlan")
    host, other = [Outside(machine, machine.nic(kind, side), side + 1) for side in (0, 1)]
    router = machine.router(ports(host, other, settings=", host = true"))
    try:
        # As keepalived makes it, for a virtual router that this one is the master of.
        machine.run("ip", "link", "add", "vrrp.51", "link", "port1", "address", MAC, "type", "macvlan", "mode", "private")
        machine.run("ip", "link", "set", "vrrp.51", "up")
        machine.run("ip", "address", "add", "10.0.1.254/24", "dev", "vrrp.51")
        assert wait_for(lambda: macs(router) == [MAC], 30)
        # The host's gateway has the virtual MAC, as it would have from the answers of the kernel's MACVLAN device.
        host.run("ip", "neigh", "replace", "10.0.1.254", "lladdr", MAC, "dev", "eth0", "nud", "permanent")
        host.run("ip", "route", "replace", "default", "via", "10.0.1.254")
        assert wait_for(lambda: pings(host, address(other, 4)), 30), router.counters()
        # The device's own MAC is still received.
        assert pings(host, address(other, 6), 3)

        machine.run("ip", "link", "del", "vrrp.51")
        assert wait_for(lambda: macs(router) == [], 30)
        assert not pings(host, address(other, 4)), "a backup does not forward"
        assert pings(host, address(other, 6))
        router.stop()
    finally:
        router.close()
        machine.run("ip", "link", "del", "vrrp.51", check=False)
        host.run("ip", "neigh", "del", "10.0.1.254", "dev", "eth0", check=False)

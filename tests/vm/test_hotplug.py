"""NICs whose cable is unplugged, or that are unplugged under load and plugged in again."""

import re
import time
from datetime import datetime

import pytest

from lib.netns import wait_for
from lib.traffic import Stream

from .lib.hosts import Outside, ping, ports

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'

# Time from the device's notification to the last route over it; the machine's cores are emulated.
DOWN_SECONDS = 0.05


def link(router, side):
    return {port["name"]: port for port in router.show("ports")}[f"port{side}"]["link"]


def when(router, words):
    """The times at which the router wrote a line with these words, in seconds."""
    found = re.findall(rf"(\d{{4}}-\S+Z) .*{re.escape(words)}", router.log())
    return [datetime.fromisoformat(text).timestamp() for text in found]


@pytest.fixture
def between(request, machine):
    """A router between the hosts at two NICs of a kind, and the hosts."""
    nics = [machine.nic(request.param, index) for index in (0, 1)]
    left, right = (Outside(machine, nic, side) for side, nic in enumerate(nics, 1))
    # The kernel's own driver would be faster when a NIC is plugged in again.
    router = machine.router(ports(left, right, settings=', driver = "vfio-pci"') + FORWARDERS)
    yield router, left, right
    router.close()


@pytest.mark.parametrize("between", ["e1000e", "virtio"], indirect=True)
def test_a_link_is_told_by_an_interrupt(machine, between):
    router, left, right = between
    ping(left, right, 4)
    assert router.show("ports")[1]["link_by"] == "interrupt"
    for turn in range(1, 4):
        machine.set_link(right.nic, False)
        assert wait_for(lambda: link(router, 2) == "down", 10), router.log()
        assert router.show("route", "10.0.2.2")["type"] == "no-route"
        machine.set_link(right.nic, True)
        assert wait_for(lambda: link(router, 2) == "up", 10), router.log()
        # A new link may be lost once more while both ends negotiate.
        assert len(when(router, 'port "port2": down, its device has no link')) >= turn
    ping(left, right, 4)
    router.stop()


@pytest.mark.parametrize("between", ["e1000e", "virtio"], indirect=True)
def test_a_nic_that_is_unplugged_under_load_works_again_when_it_is_back(machine, between):
    router, left, right = between
    faults = len(machine.dma_faults())
    for _ in range(2):
        ping(left, right, 4)
        stream = Stream(left.namespace, ["10.0.2.2"] + [f"10.0.2.{n}" for n in range(100, 120)], rate=200)
        time.sleep(1)
        machine.unplug(right.nic)
        assert wait_for(lambda: link(router, 2) == "gone", 10), router.log()
        assert router.show("route", "10.0.2.2")["type"] == "no-route"
        # The other one continues.
        left.run("ping", "-c", 1, "-W", 10, "10.0.1.1")
        machine.plug(right.nic)
        assert wait_for(lambda: link(router, 2) == "up", 30, 0.2), router.log()
        stream.stop()
        # Its host did not notice the removal of the NIC, and still has its address.
        ping(left, right, 4)
        ping(right, left, 6)
    assert machine.dma_faults()[faults:] == []
    router.counters()
    log = router.stop()
    assert log.count('port "port2": its device is back') == 2


# The base address of an e1000e's receive ring (RDBAL, 82574 datasheet 10.2.5.6).
RECEIVE_RING = 0x2800


def test_the_router_counts_the_iommu_s_refusals(machine):
    nics = [machine.nic("e1000e", index) for index in (0, 1)]
    hosts = [Outside(machine, nic, side) for side, nic in enumerate(nics, 1)]
    router = machine.router(ports(*hosts) + FORWARDERS)
    ping(*hosts, 4)
    before = len(machine.dma_faults())
    # Its receive ring is at an address where the router has no memory.
    machine.write_register(nics[0], RECEIVE_RING, 0x5A5A0000)
    hosts[0].run("ping", "-c", 3, "-i", 0.2, "-W", 1, "10.0.1.1", check=False)
    shown = lambda: router.show("ports")[0]  # noqa: E731
    assert wait_for(lambda: shown()["dma_faults"] > 0, 10), machine.dmesg()[-5:]
    assert machine.dma_faults()[before:]
    assert wait_for(lambda: "dma_faults" in shown().get("troubles", []), 10)
    assert 'port "port1": dma_faults +' in router.log()
    assert router.show("ports")[1]["dma_faults"] == 0
    router.stop()

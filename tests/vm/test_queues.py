"""Several queues of a NIC: flows are spread by its hash and table, near to its NUMA node."""

import re
import time

import pytest
from lib.netns import wait_for

from .lib.hosts import Outside, address, ping, ports

FORWARDERS = 'turnpike.forwarders { cores = "1-3" }\n'
FLOWS = 60
QUEUES = ", rx_queues = 2, tx_queues = 2, rx_cores = { 1, 2 }, rss = { symmetric = true%s }"
# A queue of each port for each of as many forwarders as there are cores.
EIGHT = 'turnpike.forwarders { cores = "0-7" }\n'
EIGHT_QUEUES = ", rx_queues = 8, tx_queues = 8"
# Sends a datagram of each flow; ports that differ in few bits would reach few of the hash's values.
SENDER = """
import socket, sys
target, flows, swapped = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(flows):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        one = 1000 + 257 * number
        here, there = (2000, one) if swapped else (one, 2000)
        made.bind(("0.0.0.0", here))
        made.sendto(b"x", (target, there))
"""


def share(router):
    """Packets processed by the graph of each forwarder, by core."""
    return {one["core"]: one["packets"] for one in router.show("forwarders")["forwarders"]}


class Spread:
    """A router between two hosts, each at a NIC with two queues that cores 1 and 2 serve."""

    def __init__(self, machine, kind, table=""):
        self.hosts = [Outside(machine, machine.nic(kind, index), index + 1) for index in (0, 1)]
        self.router = machine.router(ports(*self.hosts, settings=QUEUES % table) + FORWARDERS)

    def send(self, source, target, swapped=False):
        """Sends a datagram of each flow; returns the number of these packets by core."""
        before = share(self.router)
        source.run("python3", "-c", SENDER, address(target, 4), FLOWS, int(swapped))
        time.sleep(1)
        after = share(self.router)
        return {core: after[core] - before[core] for core in after}


@pytest.fixture
def spread(request, machine):
    made = Spread(machine, *request.param)
    for source, target in (made.hosts, made.hosts[::-1]):
        ping(source, target, 4)
    yield made
    made.router.close()


@pytest.mark.parametrize("spread", [("igb",)], indirect=True)
def test_flows_are_spread_and_both_directions_meet_on_a_core(spread):
    left, right = spread.hosts
    shown = {one["port"]: one for one in spread.router.show("rss")}
    assert shown["port1"]["spread"] == "hardware" and shown["port1"]["key"].startswith("6d:5a:6d:5a")
    assert set(shown["port1"]["table"]) == {0, 1} and "ipv4-udp" in shown["port1"]["fields"]
    there = spread.send(left, right)
    assert there[1] > FLOWS / 6 and there[2] > FLOWS / 6, there
    back = spread.send(right, left, swapped=True)
    # Neighbour discovery and similar packets may be between.
    assert all(abs(there[core] - back[core]) <= 4 for core in (1, 2)), (there, back)
    spread.router.stop()


@pytest.mark.parametrize("spread", [("igb", ", skip = { 0 }")], indirect=True)
def test_a_table_skips_a_queue(spread):
    left, right = spread.hosts
    assert all(set(one["table"]) == {1} for one in spread.router.show("rss"))
    had = spread.send(left, right)
    assert had[2] >= FLOWS and had[1] <= 4, had
    spread.router.stop()


def datagrams(host):
    """Datagrams that a host has received and that no program reads."""
    names, values = [line.split() for line in host.run("cat", "/proc/net/snmp").stdout.splitlines() if line.startswith("Udp:")]
    return int(values[names.index("NoPorts")])


def test_eight_forwarders_share_two_ports(machine):
    hosts = [Outside(machine, machine.nic("igb", index), index + 1) for index in (0, 1)]
    router = machine.router(ports(*hosts, settings=EIGHT_QUEUES) + EIGHT)
    try:
        served = {one["core"]: one["rx"] for one in router.show("forwarders")["forwarders"]}
        assert sorted(served) == list(range(8)), served
        assert sorted(sum(served.values(), [])) == [f"port{port}:{queue}" for port in (1, 2) for queue in range(8)], served
        # Each port's queues are served near to it, so it takes both directions to reach all forwarders.
        assert {core for core, queues in served.items() if "port1" in queues[0]} == {0, 1, 4, 5}, served
        for source, target in (hosts, hosts[::-1]):
            ping(source, target, 4)
        shares = share(router)
        for source, target in (hosts, hosts[::-1]):
            before = datagrams(target)
            source.run("python3", "-c", SENDER, address(target, 4), FLOWS, 0)
            assert wait_for(lambda: datagrams(target) == before + FLOWS, 20, 0.2), (datagrams(target) - before, router.log())  # noqa: B023
        had = {core: packets - shares[core] for core, packets in share(router).items()}
        assert all(had.values()), (had, served)
        router.stop()
    finally:
        router.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["igb", "vmxnet3", "virtio"])
def test_queues_are_served_near_to_their_nic(machine, kind):
    hosts = [Outside(machine, machine.nic(kind, index), index + 1) for index in (0, 1)]
    one_each = ", rx_queues = 1, tx_queues = 1"
    router = machine.router(ports(*hosts, settings=one_each) + 'turnpike.forwarders { cores = "1,2" }\n')
    try:
        ping(*hosts, 4)
        near = router.show("forwarders")
        assert [(one["core"], one["node"], one["rx"]) for one in near["forwarders"]] == [
            (1, 0, ["port1:0"]), (2, 1, ["port2:0"]),
        ]
        assert near["advice"] == []
        router.stop()
    finally:
        router.close()
    far = 'turnpike.forwarders { cores = "2,3" }\n'
    router = machine.router(ports(*hosts, settings=one_each) + far)
    try:
        ping(*hosts, 4)
        [advice] = [line for line in router.show("forwarders")["advice"] if "NUMA" in line]
        # Either core will do.
        assert re.match(r'port "port1" is on NUMA node 0, and its receive queues 0 \(core [23]\)', advice), advice
        assert advice in router.log()
        router.stop()
    finally:
        router.close()


def placed(machine, router):
    """Pages of the router's tables on each node, by the node that they should be on."""
    pages = {}
    for line in machine.read(f"/proc/{router.process.pid}/numa_maps").splitlines():
        wanted = re.search(r" prefer(?:=relative)?:(\d+) ", line)
        for node, count in re.findall(r" N(\d+)=(\d+)", line) if wanted else ():
            here = pages.setdefault(int(wanted[1]), {})
            here[int(node)] = here.get(int(node), 0) + int(count)
    return pages


def test_each_node_has_its_copy_of_the_tables(machine):
    hosts = [Outside(machine, machine.nic("virtio", index), index + 1) for index in (0, 1)]
    one_each = ", rx_queues = 1, tx_queues = 1"
    router = machine.router(ports(*hosts, settings=one_each) + 'turnpike.forwarders { cores = "1,2" }\n')
    try:
        # Each direction is looked up by another forwarder, so in another copy.
        for family in (4, 6):
            ping(*hosts, family)
        assert "route tables: a copy on each of 2 NUMA nodes" in router.log()
        pages = placed(machine, router)
        assert pages.keys() == {0, 1} and all(list(pages[node]) == [node] for node in pages), pages
        router.stop()
    finally:
        router.close()

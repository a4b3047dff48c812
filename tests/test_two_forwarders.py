"""Two forwarders, two hosts: with AF_XDP each port of a veth pair has one queue each way, so that
every packet is received by one forwarder and handed over to the other; with AF_PACKET each
forwarder has queues of its own at every port."""

import json
import re
from pathlib import Path

import pytest

from lib.kernel import pings
from lib.lab import DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, STATIC_NEIGHBOURS
from lib.lab import Hosts, Wires, ports_by
from lib.netns import stop_process, wait_for
from lib.packets import ethernet, forwarded, ipv4, ipv6, pattern, udp
from lib.router import Change

CONFIG = 'turnpike.forwarders { cores = "0,1" }\n'
QUEUES = {"af_xdp": 1, "af_packet": 2}


@pytest.fixture(scope="module", params=DRIVERS)
def running(request, module_lab):
    made = Hosts(module_lab, CONFIG, ports_by(request.param))
    made.queues = QUEUES[request.param]
    yield made
    made.router.stop()


@pytest.fixture
def hosts(running):
    """After each test the sum closes."""
    yield running
    running.router.counters()


def test_each_has_its_core_and_the_queues_there_are(hosts):
    tasks = Path(f"/proc/{hosts.router.process.pid}/task").iterdir()
    status = [(task / "status").read_text() for task in tasks]
    cores = [
        re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.M)[1]
        for text in status if "forwarder" in text.splitlines()[0]
    ]
    assert sorted(cores) == ["0", "1"]
    for port in hosts.router.show("ports"):
        assert port["rx_queues"] == port["tx_queues"] == hosts.queues


@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2", "10.0.1.1", "10.0.2.1", "fd00:2::1"])
def test_ping(hosts, target):
    for host, aim in ((hosts.left, target), (hosts.right, target.replace("2::", "1::").replace("0.2.", "0.1."))):
        assert pings(host, aim, 5, 5), hosts.router.show("counters")["dropped"]


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2"], ids=["ipv4", "ipv6"])
def test_tcp(hosts, target, reverse):
    server = hosts.right.spawn("iperf3", "-s", "-1", stdout=-3, stderr=-3)
    try:
        assert wait_for(lambda: ":5201" in hosts.right.run("ss", "-Hltn").stdout)
        options = ["-R"] if reverse else []
        # Counted after all were sent: some are still in buffers.
        said = hosts.left.run("iperf3", "-c", target, "-n", "40M", "-P", 4, "-J", *options, timeout=60)
        assert json.loads(said.stdout)["end"]["sum_received"]["bytes"] > 10_000_000
    finally:
        stop_process(server)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_flow_stays_in_order(lab, driver):
    wires = Wires(lab, CONFIG, ports=ports_by(driver) + STATIC_NEIGHBOURS, calm=True)
    for family in (4, 6):
        frames = [flow(family, i) for i in range(500)]
        change = Change(wires.router)
        wires.left.send(*frames)
        assert wires.right.expect(500) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
        assert change(received=500) == {"received": 500, "sent": 500}
    wires.router.stop()


def flow(family, number):
    """A packet of one flow."""
    a, b = ("10.0.1.2", "10.0.2.2") if family == 4 else ("fd00:1::2", "fd00:2::2")
    datagram = udp(a, b, 1000, 2000, pattern(60, number))
    if family == 4:
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(a, b, datagram, ident=number))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(a, b, datagram))


@pytest.mark.parametrize("driver", DRIVERS)
def test_fragments_of_a_datagram_stay_in_order(lab, driver):
    # With AF_PACKET the kernel selects the queue, for each fragment by its addresses: none is received twice.
    wires = Wires(lab, CONFIG, ports=ports_by(driver) + STATIC_NEIGHBOURS, calm=True)
    frames = [frame for number in range(40) for frame in fragments(f"10.0.1.{10 + number}", number)]
    change = Change(wires.router)
    wires.left.send(*frames)
    arrived = wires.right.expect(len(frames))
    expected = [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    by_source = lambda frame: frame[26:30]  # noqa: E731
    assert sorted(arrived, key=by_source) == sorted(expected, key=by_source)
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}
    if driver == "af_packet":
        forwarders = wires.router.show("forwarders")["forwarders"]
        assert all(one["packets"] > 0 for one in forwarders), forwarders
    wires.router.stop()


def fragments(source, ident):
    """The fragments, on a link of 1,500, of a datagram of 4,000 bytes from this address."""
    whole = udp(source, "10.0.2.2", 1000, 2000, pattern(3972, ident))
    parts = [whole[at:at + 1480] for at in range(0, len(whole), 1480)]
    return [
        ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(
            source, "10.0.2.2", part, ident=ident, flags=int(part is not parts[-1]), offset=185 * n))
        for n, part in enumerate(parts)
    ]

"""Two ordinary Linux hosts talk through the router: nothing switched off, nothing prepared."""

import json
import re
import socket
import threading

import pytest

from lib.kernel import pings
from lib.lab import DRIVERS, Hosts, ports_by
from lib.netns import stop_process, wait_for

@pytest.fixture(scope="module", params=DRIVERS)
def hosts(request, module_lab):
    made = Hosts(module_lab, ports=ports_by(request.param))
    made.driver = request.param
    drivers = [port["driver"] for port in made.router.show("ports")]
    assert all(request.param in driver.lower().replace("-", "_") for driver in drivers), drivers
    return made


@pytest.fixture(autouse=True)
def sum_closes(hosts):
    """Checks after each of these tests that the counters add up, and that no partial checksum or super-frame was
    dropped."""
    before = hosts.router.counters()["dropped"]
    yield
    dropped = hosts.router.counters()["dropped"]
    for reason in ("multi-segment", "ip4-checksum", "ip4-total-length", "step-lost", "port-down"):
        assert dropped[reason] == before[reason], dropped


@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2"])
def test_ping(hosts, target):
    # The first one waits for address resolution on both sides and must not be lost.
    assert pings(hosts.left, target, 5, 5)


@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2"])
@pytest.mark.parametrize("size", [0, 56, 1400, 1472, 4000, 8000, 20000])
def test_ping_of_many_sizes(hosts, target, size):
    # Above the MTU the sender fragments and the receiver reassembles.
    assert pings(hosts.left, target, 3, 5, size)


@pytest.mark.parametrize("target", ["10.0.1.1", "10.0.2.1", "fd00:1::1", "fd00:2::1"])
def test_ping_the_router(hosts, target):
    assert pings(hosts.left, target, 3, 5)


def test_ping_the_router_by_its_link_local_address(hosts):
    for address in link_locals(hosts):
        assert pings(hosts.left, f"{address}%eth0", 3, 5)


def link_locals(hosts):
    """The router's link-local address on the left port, made from its MAC (RFC 4291 A)."""
    return ["fe80::ff:fe00:101"]


@pytest.mark.parametrize("options", [[], ["-I"], ["-T"]], ids=["udp", "icmp", "tcp"])
@pytest.mark.parametrize(
    "target, hop", [("10.0.2.2", "10.0.1.1"), ("fd00:2::2", "fd00:1::1")], ids=["ipv4", "ipv6"]
)
def test_traceroute_shows_the_router_as_the_hop(hosts, target, hop, options):
    said = hosts.left.run("traceroute", "-n", "-w", 2, "-q", 2, "-m", 5, *options, target).stdout
    hops = [re.match(r"\s*\d+\s+(\S+)", line) for line in said.splitlines()[1:]]
    assert [match and match[1] for match in hops] == [hop, target], said
    assert "*" not in said, said


def test_an_unreachable_network_is_reported_to_the_sender(hosts):
    said = hosts.left.run("ping", "-n", "-c", 1, "-W", 2, "192.0.2.1", check=False)
    assert said.returncode != 0 and "Destination Net Unreachable" in said.stdout
    said = hosts.left.run("ping", "-n", "-c", 1, "-W", 2, "2001:db8::1", check=False)
    assert said.returncode != 0 and "No route" in said.stdout


def test_an_absent_neighbour_is_reported_to_the_sender(hosts):
    said = hosts.left.run("ping", "-n", "-c", 1, "-W", 6, "10.0.2.99", check=False)
    assert said.returncode != 0 and "Destination Host Unreachable" in said.stdout
    said = hosts.left.run("ping", "-n", "-c", 1, "-W", 6, "fd00:2::99", check=False)
    assert said.returncode != 0 and "Address unreachable" in said.stdout


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2"], ids=["ipv4", "ipv6"])
def test_iperf3_tcp(hosts, target, reverse):
    # As many bytes in whatever time; the last ones are counted before they arrive.
    result = iperf3(hosts, target, "-n", "20M", *(["-R"] if reverse else []))
    assert result["end"]["sum_received"]["bytes"] > 10_000_000, result["end"]


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2"], ids=["ipv4", "ipv6"])
def test_iperf3_udp(hosts, target, reverse):
    before = hosts.router.counters()
    missed = sum(port["rx_missed"] for port in hosts.router.show("ports"))
    result = iperf3(hosts, target, "-t", 1, "-u", "-b", "20M", *(["-R"] if reverse else []))
    packets = result["end"]["sum"]["packets"]
    # The router loses none. The receiving host may, while it waits for a processor.
    after = hosts.router.counters()
    assert packets > 1000 and after["received"] - before["received"] >= packets
    # The hosts' kernels send multicasts of their own, some seconds long.
    dropped = [{**counters["dropped"], "multicast-not-routed": 0} for counters in (before, after)]
    assert dropped[0] == dropped[1]
    assert sum(port["rx_missed"] for port in hosts.router.show("ports")) == missed


def iperf3(hosts, target, *options):
    """iperf3 from left to right; the client's report."""
    server = hosts.right.spawn("iperf3", "-s", "-1", "-p", "5201", stdout=-3, stderr=-3)
    try:
        assert wait_for(lambda: ":5201" in hosts.right.run("ss", "-Hltn").stdout)
        said = hosts.left.run("iperf3", "-c", target, "-J", *options, check=False, timeout=60)
        result = json.loads(said.stdout)
        assert "error" not in result, result["error"]
        return result
    finally:
        stop_process(server)


@pytest.mark.parametrize("family, target", [(socket.AF_INET, "10.0.2.2"), (socket.AF_INET6, "fd00:2::2")],
                         ids=["ipv4", "ipv6"])
def test_a_tcp_stream_arrives_unchanged(hosts, family, target):
    # 8 MB in super-frames of up to 64 kB with partial checksums, as ordinary hosts send them.
    data = bytes((i * 31 + (i >> 10)) & 0xFF for i in range(1 << 20)) * 8
    with hosts.right.entered():
        listener = socket.socket(family)
        listener.bind((target, 0))
        listener.listen()
    got = bytearray()

    def receive():
        connection, _ = listener.accept()
        with connection:
            while part := connection.recv(1 << 16):
                got.extend(part)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    with hosts.left.entered():
        sender = socket.socket(family)
    with sender:
        sender.settimeout(20)
        sender.connect((target, listener.getsockname()[1]))
        sender.sendall(data)
    thread.join(20)
    listener.close()
    assert bytes(got) == data


@pytest.mark.parametrize("family, target", [(socket.AF_INET, "10.0.2.2"), (socket.AF_INET6, "fd00:2::2")],
                         ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("size", [0, 1, 1000, 1472])
def test_a_udp_datagram_arrives_unchanged(hosts, family, target, size):
    data = bytes(i & 0xFF for i in range(size if family == socket.AF_INET else min(size, 1452)))
    with hosts.right.entered():
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    with hosts.left.entered():
        sender = socket.socket(family, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind((target, 0))
        receiver.settimeout(3)
        sender.sendto(data, receiver.getsockname())
        got, _ = receiver.recvfrom(65536)
    assert got == data

"""The number of slow path workers, and the lengths of the rings to them, changed while the router runs."""

import contextlib
import os
import re
import socket
import struct
import subprocess
from pathlib import Path

from lib.apply import apply, plan, refused, write
from lib.kernel import reaches
from lib.lab import HOST_A_MAC, LEFT_MAC, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires, with_memory
from lib.lacp import Peer
from lib.netns import held_thread, wait_for
from lib.packets import ethernet, forwarded, icmp, ipv4, mac_bytes, pattern, udp, unpadded
from lib.traffic import Sink, Stream, lost
from test_bond import Bonded, bond


# Rings of eight workers have to fit in.
MEMORY = "turnpike.memory { mbufs = 131072 }\n"
PORTS = with_memory(131072)


def slow_path(workers, more=""):
    return f"turnpike.slowpath {{ workers = {workers}, {more} }}\n"


def tasks(router):
    """The numbers of the router's threads, as text."""
    return set(os.listdir(f"/proc/{router.process.pid}/task"))


def threads(router, known=frozenset()):
    """The names of the workers' threads that are not known."""
    names = []
    for task in tasks(router) - known:
        # It may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append(Path(f"/proc/{router.process.pid}/task/{task}/comm").read_text().strip())
    return sorted(name for name in names if name.startswith("slow-path-"))


def has_workers(router, count):
    expected = [f"slow-path-{number}" for number in range(count)]
    return wait_for(lambda: threads(router) == expected) and router.show("policing")["workers"] == count


def neighbours(router):
    return [(one["port"], one["address"], one["mac"]) for one in router.show("neighbours")]


def test_pings_and_forwarded_packets_do_not_notice(lab):
    hosts = Hosts(lab, ports=PORTS)
    router = hosts.router
    assert reaches(hosts.left, "10.0.2.2") and reaches(hosts.left, "fd00:1::1")
    known = neighbours(router)
    sink = Sink(hosts.right)
    stream = Stream(hosts.left, ["10.0.2.2"], rate=1000)
    assert sink.wait(1)
    # The slow path answers.
    pings = [
        hosts.left.spawn("ping", "-n", "-q", "-i", "0.002", address, stdout=subprocess.PIPE, text=True)
        for address in ("10.0.1.1", "10.0.2.1", "fd00:1::1")
    ]
    long = "classes = { host = { queue = 2048 }, errors = { queue = 1024 } }"
    for workers, more in [(2, ""), (3, long), (3, ""), (1, long), (8, ""), (1, "")]:
        report, status = plan(router, PORTS + slow_path(workers, more))
        assert status == 2 and not report["restart"], report
        apply(router, PORTS + slow_path(workers, more))
        assert has_workers(router, workers)
        if more:
            queues = {one["name"]: one["queue"] for one in router.show("policing")["classes"]}
            assert (queues["host"], queues["errors"]) == (2048, 1024), queues
        assert set(neighbours(router)) >= set(known)
    for ping in pings:
        ping.send_signal(2)
        said = ping.communicate(timeout=10)[0]
        sent, got = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", said).groups())
        assert got >= sent - 1 and sent > 1, said  # The last one may be under way.
    assert lost(stream.stop(), sink) == []
    sink.close()
    router.counters()
    router.stop()


def test_what_waits_goes_on_waiting(lab):
    wires = Wires(lab, ports=PORTS + STATIC_NEIGHBOURS, calm=True)
    router = wires.router
    unknown = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.9", udp("10.0.1.2", "10.0.2.9", 1, 2, pattern(40))))
    ping = icmp(8, 0, struct.pack("!HH", 7, 1), pattern(40))
    parts = [
        ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.1", part, protocol=1, flags=flags, offset=offset))
        for part, flags, offset in ((ping[:24], 1, 0), (ping[24:], 0, 3))
    ]
    wires.left.send(unknown, parts[0])
    (request,) = wires.right.expect(1)
    assert request[12:14] == b"\x08\x06" and request[38:42] == socket.inet_aton("10.0.2.9")
    assert wait_for(lambda: router.show("counters")["in_flight"] == 2)
    apply(router, PORTS + STATIC_NEIGHBOURS + slow_path(3))
    assert has_workers(router, 3)
    wires.left.send(parts[1])
    (answer,) = wires.left.expect(1)
    assert unpadded(answer)[34] == 0 and unpadded(answer)[38:] == ping[4:]
    mac = "02:00:00:00:02:09"
    reply = mac_bytes(RIGHT_MAC) + mac_bytes(mac) + b"\x08\x06" + struct.pack(
        "!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 2, mac_bytes(mac), socket.inet_aton("10.0.2.9"),
        mac_bytes(RIGHT_MAC), socket.inet_aton("10.0.2.1"),
    )
    wires.right.send(reply)
    (sent,) = wires.right.expect(1, lambda frame: frame[12:14] == b"\x08\x00")
    assert unpadded(sent) == forwarded(unknown, RIGHT_MAC, mac)
    router.counters()
    router.stop()


ECHO = """
import socket, sys
with socket.create_server(("10.0.1.1", 7)) as listening:
    print("ready", flush=True)
    connection, _ = listening.accept()
    while data := connection.recv(100):
        connection.sendall(data)
"""


def test_host_interfaces_and_their_connections_stay(lab):
    ports = PORTS.replace("address =", 'host = { netns = "%s" }, address =')
    kernel = lab.namespace("kernel")
    text = ports % (kernel.name, kernel.name)
    hosts = Hosts(lab, ports=text)
    router = hosts.router
    one_port = "\n".join(line for line in text.splitlines() if '"right"' not in line) + "\n"
    server = kernel.spawn("python3", "-c", ECHO, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    with hosts.left.entered():
        connection = socket.create_connection(("10.0.1.1", 7), 5)
    for before, workers in ((1, 2), (2, 5), (5, 1)):
        apply(router, text + slow_path(workers))
        assert has_workers(router, workers)
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        assert reaches(hosts.left, "10.0.2.2") and reaches(kernel, "fd00:2::2")
        router.command("rollback")
        assert has_workers(router, before)
        # Ports that come and go find their worker.
        apply(router, text + slow_path(workers))
        apply(router, one_port + slow_path(workers))
        assert reaches(hosts.left, "10.0.1.1")
        apply(router, text + slow_path(workers))
        assert reaches(hosts.left, "10.0.2.2")
    connection.close()
    router.counters()
    router.stop()


def test_lacp_goes_on(lab):
    text = bond("lacp", 'lacp = { rate = "fast" }') + MEMORY
    bonded = Bonded(lab, text)
    peer = Peer(bonded.side, ["wire-a", "wire-b"])
    try:
        bonded.wait_active("a", "b")
        heard = {port["name"]: port["lacpdus_in"] for port in bonded.bond()["ports"]}
        for workers in (2, 3, 1):
            apply(bonded.router, text + slow_path(workers))
            assert has_workers(bonded.router, workers)
            now = {port["name"]: port["lacpdus_in"] for port in bonded.bond()["ports"]}
            assert all(now[name] >= heard[name] > 0 for name in heard), (heard, now)
            heard = now
            bonded.wait_active("a", "b")
            assert wait_for(lambda: all(port["lacpdus_in"] > heard[port["name"]] for port in bonded.bond()["ports"]))
        changes = re.findall(r"active ports: .*", bonded.router.log())
        assert changes[-1] == "active ports: a, b" and "none" not in changes[-2:], changes
    finally:
        peer.close()


def test_more_than_there_is_memory_for_is_refused(lab):
    hosts = Hosts(lab, ports=PORTS)
    huge = "classes = { host = { queue = 65536 } }"
    error = refused(hosts.router, "apply", write(hosts.router, PORTS + slow_path(8, huge)))
    assert "rings to slow path workers" in error and "turnpike.memory" in error and "nothing was changed" in error, error
    assert has_workers(hosts.router, 1) and reaches(hosts.left, "10.0.1.1")
    hosts.router.stop()


def test_a_forwarder_that_takes_nothing_leaves_the_workers_as_they_are(lab):
    hosts = Hosts(lab, ports=PORTS)
    router = hosts.router
    assert reaches(hosts.left, "10.0.1.1")
    before = sum(one["offered"] for one in router.show("policing")["classes"])
    with held_thread(router.thread("forwarder-0")):
        error = refused(router, "apply", write(router, PORTS + slow_path(2)))
    assert "forwarder 0" in error, error
    assert has_workers(router, 1) and reaches(hosts.left, "10.0.1.1")
    assert sum(one["offered"] for one in router.show("policing")["classes"]) > before
    apply(router, PORTS + slow_path(2))
    assert has_workers(router, 2) and reaches(hosts.left, "10.0.2.1")
    router.counters()
    router.stop()


def test_a_forwarder_that_stops_during_the_exchange_leaves_the_workers_as_they_are(lab):
    """The other forwarder has punted into the new rings by then, and the former workers answer what is in them."""
    two = 'turnpike.forwarders { cores = "0-1" }\n'
    hosts = Hosts(lab, two, PORTS)
    router = hosts.router
    # Some of these flows are the other forwarder's.
    addresses = ["10.0.1.1", "10.0.2.1", "fd00:1::1", "fd00:2::1"]
    assert all(reaches(host, address) for host in (hosts.left, hosts.right) for address in addresses)
    held = router.thread("forwarder-1")
    # The moment is between the first thread of a new worker and the exchange, and may be missed.
    for _ in range(60):
        known = tasks(router)
        change = router.begin("apply", write(router, PORTS + two + slow_path(4)))
        while change.poll() is None and not threads(router, known):
            pass
        with held_thread(held):
            pings = [
                host.spawn("ping", "-n", "-q", "-c", "20", "-i", "0.01", "-W", "10", address, stdout=subprocess.PIPE, text=True)
                for host in (hosts.left, hosts.right)
                for address in addresses
            ]
            error = change.communicate(timeout=60)[1]
        said = [ping.communicate(timeout=60)[0] for ping in pings]
        if change.returncode:
            break
        apply(router, PORTS + two + slow_path(1))
        assert has_workers(router, 1)
    assert "forwarder 1" in error and "panicked" not in error, error
    print(error, router.log()[-3000:])
    assert all("20 packets transmitted, 20 received" in one for one in said), (said, router.dropped())
    assert has_workers(router, 1)
    apply(router, PORTS + two + slow_path(2))
    assert has_workers(router, 2) and reaches(hosts.left, "10.0.2.1")
    router.counters()
    router.stop()


def test_forwarders_and_workers_change_together(lab):
    hosts = Hosts(lab, 'turnpike.forwarders { cores = "0" }\n', PORTS)
    router = hosts.router
    sink = Sink(hosts.right)
    stream = Stream(hosts.left, ["10.0.2.2"], rate=1000)
    assert sink.wait(1)
    for cores, workers in (("0-1", 2), ("0", 1), ("0-1", 3)):
        apply(router, PORTS + f'turnpike.forwarders {{ cores = "{cores}" }}\n' + slow_path(workers))
        assert has_workers(router, workers) and reaches(hosts.left, "10.0.2.1")
    assert lost(stream.stop(), sink) == []
    sink.close()
    router.counters()
    router.stop()

#!/usr/bin/env python3
"""The experiment of control and forwarding separation (Uppsala, KTH): how many TCP transactions a second
a program on the router answers, one at a time (a byte there, a byte back, as netperf's TCP_RR does).

    client --- peer  [ router ]  host interface --- server
               flood [        ]                               as fast as the forwarder takes it

idle       nothing is forwarded
load       the forwarder is flooded, and shares its cores with everything else
separated  the same, with the forwarder on the last core and all other threads kept off it

`separated` is what processor affinity gives today; NIC queues of their own for control traffic and cores
that the kernel leaves alone are a later matter.
"""

import os
import socket
import statistics
import threading
import time
from pathlib import Path

import common
from lib.lab import Lab
from lib.netns import veth

ROWS = ["idle", "load", "separated"]
PUBLISHED = "with a core for control the transaction rate does not change under forwarding load; numbers were not at hand."

CONFIG = """
local turnpike = require "turnpike"
turnpike.port "peer"  { device = "tp-peer", address = "10.1.0.1/24", host = { netns = "%(space)s" } }
turnpike.port "out"   { device = "net_null0", address = "10.3.0.1/24", host = false }
turnpike.port "flood" { device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=%(flood)d", address = "10.2.0.1/24", host = false }
turnpike.neighbour "10.3.0.2" { port = "out", mac = "02:00:00:00:03:02" }
turnpike.forwarders { cores = "%(core)d" }
"""


def serve(space):
    """A server in a namespace that answers every byte with a byte."""
    with space.entered():
        listening = socket.create_server(("10.1.0.1", 7777))

    def answer():
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(1):
            connection.sendall(data)
        connection.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return listening


def transactions(space, seconds):
    """Transactions a second, and the slowest in milliseconds."""
    with space.entered():
        connection = socket.socket()
    connection.settimeout(10)
    connection.connect(("10.1.0.1", 7777))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times, end = [], time.monotonic() + seconds
    while (start := time.monotonic()) < end:
        connection.sendall(b"x")
        if not connection.recv(1):
            raise RuntimeError("the server is gone")
        times.append(time.monotonic() - start)
    connection.close()
    return len(times) / seconds, max(times) * 1000


def keep_off(core, pid):
    """Keeps every thread of the router but the forwarders off a core, and ourselves."""
    others = set(common.cores()) - {core} or {core}
    os.sched_setaffinity(0, others)
    for task in Path(f"/proc/{pid}/task").iterdir():
        if not (task / "comm").read_text().startswith("forwarder"):
            os.sched_setaffinity(int(task.name), others)


def measure(row, seconds):
    lab, allowed = Lab(), os.sched_getaffinity(0)
    core = common.cores()[-1]
    try:
        inside, space, client = lab.namespace("router", quiet=True), lab.namespace("space"), lab.namespace("client")
        veth(inside, "tp-peer", client, "eth0", "02:00:00:00:01:01", "02:00:00:00:01:02")
        client.run("ip", "address", "add", "10.1.0.2/24", "dev", "eth0")
        from lib.packets import pcap_file

        frames = pcap_file([common.frame_to(common.pcap_mac(0), "10.3.0.2", 64)] * 64)
        config = CONFIG % {"space": space.name, "flood": row != "idle", "core": core}
        router = lab.router(inside, config, files={"in.pcap": frames})
        space.run("ip", "address", "replace", "10.1.0.1/24", "dev", "peer")
        if row == "separated":
            keep_off(core, router.process.pid)
        listening = serve(space)
        before, start = router.show("counters")["sent"], time.monotonic()
        rate, slowest = transactions(client, seconds)
        forwarded = (router.show("counters")["sent"] - before) / (time.monotonic() - start) / 1e6
        listening.close()
        return {"per_s": rate, "slowest_ms": slowest, "forwarded_mpps": forwarded}
    finally:
        os.sched_setaffinity(0, allowed)
        lab.close()


def part(given):
    runs = common.rounds(given.runs, ROWS, lambda row: measure(row, given.seconds))
    middle = {row: {key: statistics.median(run[key] for run in done) for key in done[0]} for row, done in runs.items()}
    drawn = common.figure(
        "TCP transactions answered by the router's host", "", "transactions/s",
        {"Turnpike": [(n, middle[row]["per_s"]) for n, row in enumerate(ROWS)]}, words=ROWS,
    )
    said = "Transactions a second, and Mpps forwarded meanwhile: " + ", ".join(
        f"{row} {m['per_s']:.0f} ({m['forwarded_mpps']:.1f})" for row, m in middle.items()
    ) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, {"transactions": part}))

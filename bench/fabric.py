#!/usr/bin/env python3
"""What the fabric of examples/fabric loses while its routers fail and are upgraded, and how soon all of them have a table.

    host1 --- leaf1 --- spine1, spine2 --- leaf3 --- host3        3 leaves and 2 spines, each Turnpike and FRR
    server1 --- leaf1, leaf2 … leaf2, leaf3 --- server2

Numbered datagrams of both families, 32 flows, go from host1 to host3 and from server1 to server2:

    kill      a spine is killed (kill -9) and stays dead; BFD has to notice
    cut       a leaf's link to a spine loses its carrier
    spine     a spine is drained, its Turnpike restarted, and returned
    rolling   so are all routers, one after the other; between the servers alone

The marks are the detection time of BFD and 50 ms for `kill` and `cut`, and no loss for the others. Rows `routes` and
`routes-kernel` announce a table to one leaf by BGP and take the time until the FIBs of all routers have it: those of
Turnpike, or with the kernel as forwarder on the same topology its own.
"""

import re
import statistics
import time
from pathlib import Path

import common
from lib.fabric import Fabric, Stream, prefix, wait_for
from lib.netns import Namespace
from lib.router import binary
from lib.speaker import Speaker, announcements, table

ROWS = ["kill", "cut", "spine", "rolling", "routes", "routes-kernel"]
SLACK_MS = 50


def fabric_of(by, size):
    """A running fabric of so many leaves and spines."""
    fabric = Fabric(*size, prefix=prefix(), turnpike=binary() if by == "turnpike" else None)
    try:
        fabric.start()
        fabric.converged()
    except BaseException:
        fabric.close()
        raise
    return fabric


def detection_ms(fabric):
    """The time after which BFD takes a silent neighbour for dead."""
    bfd = fabric.inventory["all"]["vars"]["fabric_bfd"]
    return bfd["interval_ms"] * bfd["multiplier"]


def kill(fabric):
    """A spine dies silently."""
    fabric.nodes[fabric.groups["spines"][-1]].kill()
    time.sleep(3 * detection_ms(fabric) / 1000)


def cut(fabric):
    """A cable is pulled."""
    fabric.nodes["leaf1"].space.ip("link", "set", "w-spine1", "down")
    time.sleep(2)


def upgrade(fabric, name):
    """A router is drained, restarted and returned."""
    router = fabric.nodes[name]
    router.drain()
    router.restart()
    router.undrain()
    fabric.converged()


def spine(fabric):
    """One spine."""
    upgrade(fabric, "spine1")


def rolling(fabric):
    """All routers."""
    for router in fabric.routers():
        upgrade(fabric, router.name)


EVENTS = {"kill": kill, "cut": cut, "spine": spine, "rolling": rolling}


def lost(row, rate, size):
    """One event: what its streams lost."""
    fabric = fabric_of("turnpike", size)
    try:
        pairs = [("server1", "server2")] + [("host1", f"host{size[0]}")] * (row != "rolling")
        streams = [Stream(fabric, *pair, rate=rate) for pair in pairs]
        time.sleep(1)
        EVENTS[row](fabric)
        time.sleep(1)
        accounts = [stream.stop() for stream in streams]
        return {
            "sent": sum(account.sent for account in accounts),
            "lost": sum(len(account.lost) for account in accounts),
            "ms": max(account.outage_ms() for account in accounts),
            "flows": max(account.flows_hit() / account.flows for account in accounts),
            "limit_ms": detection_ms(fabric) + SLACK_MS if row in ("kill", "cut") else 0,
        }
    finally:
        fabric.close()


def routes(by, count, size):
    """Seconds until all routers have a table that one leaf has learned; growth of each router's programs, in KiB."""
    fabric = fabric_of(by, size)
    try:
        leaf, peer = fabric.nodes["leaf1"], fabric.addresses("host1")[0]
        gateway = fabric.variables["leaf1"]["fabric_networks"][0]["addresses"][0].split("/")[0]
        asn = fabric.variables["leaf1"]["fabric_asn"]
        leaf.vtysh("configure terminal", f"router bgp {asn}", f"neighbor {peer} remote-as 65530")
        memory = {router.name: resident(router) for router in fabric.routers()}
        before = {router.name: has(fabric, router) for router in fabric.routers()}
        speaker = Speaker(Namespace.existing(fabric.space("host1").name), gateway, 65530, peer)
        messages = announcements(table(count), 65530, peer)
        start, done = time.monotonic(), {}
        speaker.send(messages)
        limit = 120 + count / 1000

        def complete():
            for name, base in before.items():
                if name not in done and has(fabric, fabric.nodes[name]) >= base + count:
                    done[name] = time.monotonic() - start
            if speaker.error:
                raise RuntimeError(f"the BGP session broke: {speaker.error}")
            return len(done) == len(before)

        if not wait_for(complete, limit, 0.1):
            raise RuntimeError(f"not complete after {limit} s, only {done}")
        speaker.close()
        grown = {
            router.name: {program: kib - memory[router.name][program] for program, kib in resident(router).items()}
            for router in fabric.routers()
        }
        return {"s": max(done.values()), "each": done, "grown_kib": grown}
    finally:
        fabric.close()


def resident(router):
    """Memory of the router's programs, in KiB."""
    processes = router.daemons | ({"turnpike": router.process} if router.process else {})
    texts = {name: Path(f"/proc/{process.pid}/status").read_text() for name, process in processes.items()}
    return {name: int(re.search(r"VmRSS:\s+(\d+)", text)[1]) for name, text in texts.items()}


def has(fabric, router):
    """The number of IPv4 prefixes in the router's FIB."""
    if fabric.turnpike:
        return next(source["ipv4"] for source in router.show("sources") if source["name"] == "kernel")
    with Namespace.existing(router.space.name).entered(), open("/proc/self/net/fib_triestat") as file:
        return int(re.search(r"Main:.*?Prefixes:\s+(\d+)", file.read(), re.S)[1])


def main():
    parser = common.options(__doc__, 5, ROWS)
    parser.add_argument("--rate", type=int, default=2000, help="datagrams a second of each stream (2000)")
    parser.add_argument("--routes", type=int, default=500_000, help="of the table (500000)")
    parser.add_argument("--leaves", type=int, default=3, help="of the fabric (3)")
    parser.add_argument("--spines", type=int, default=2, help="of the fabric (2)")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    size = options.leaves, options.spines

    def measure(row):
        if row.startswith("routes"):
            return routes("kernel" if row == "routes-kernel" else "turnpike", options.routes, size)
        return lost(row, options.rate, size)

    about = common.machine()
    runs = common.rounds(options.runs, options.rows.split(","), measure)
    common.write(options.json, about, routes=options.routes, rate=options.rate, size=size, results=runs)
    text = report(runs, options, size)
    print(f"{common.named(about)}\n{text}")
    if options.docs:
        common.record(common.ROOT / "docs/benchmarks.md", "fabric", text)


def report(runs, options, size):
    """The tables."""
    lines = []
    if events := [row for row in runs if row in EVENTS]:
        lines += [
            f"{size[0]} leaves, {size[1]} spines; {options.rate} datagrams a second of each stream; runs: {options.runs}.", "",
            "| event | lost, median | lost, maximum | for, ms: median | maximum | mark, ms | of flows |",
            "|---|---|---|---|---|---|---|", *(line(row, runs[row]) for row in events)]
    if tables := [row for row in runs if row not in EVENTS]:
        lines += ["", f"| {options.routes:,} routes, learned at a leaf: all FIBs have them after, s | median | minimum | maximum |",
                  "|---|---|---|---|"]
        for row in tables:
            times = [run["s"] for run in runs[row]]
            name = "Turnpike" if row == "routes" else "kernel"
            lines.append(f"| {name} | {statistics.median(times):.1f} | {min(times):.1f} | {max(times):.1f} |")
    return "\n".join(lines) + "\n"


def line(row, done):
    """A row of the table."""
    counts, times = [run["lost"] for run in done], [run["ms"] for run in done]
    limit = done[0]["limit_ms"]
    kept = max(times) <= limit if limit else max(counts) == 0
    mark = f"{limit}" if limit else "0 lost"
    share = max(run["flows"] for run in done)
    return (f"| {row} | {statistics.median(counts):.0f} | {max(counts)} | {statistics.median(times):.0f} | "
            f"{max(times):.0f} | {mark}: {'kept' if kept else 'MISSED'} | {share:.2f} |")


if __name__ == "__main__":
    common.run(main)

#!/usr/bin/env python3
"""Duration of packet loss after the loss of a link, with half a million routes behind an ECMP group.

    source --- router --- one        500,000 routes over a nexthop group of two, or, with
                     +--- two        --plain, each with two next hops of its own

A stream of numbered packets goes to 1000 of the routes, half of the flows by either way. Then the
link to `one` loses its carrier. The time in which packets were sent that arrived nowhere is the
reroute time; the resolution is the distance of two packets. The kernel takes turns with Turnpike.
"""

import statistics
import time

import common
from lib import netlink, tables
from lib.kernel import Machine, host
from lib.lab import Lab
from lib.netns import wait_for
from lib.traffic import Sink, Stream, lost, outage


def measure(kind, count, rate, plain):
    """One reroute: milliseconds, and the number of lost packets."""
    lab = Lab()
    try:
        machine = Machine(lab, "router", by=kind)
        source = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
        ways = [host(machine, name, name, f"10.0.{n}.2", f"10.0.{n}.1", gateway=True) for n, name in ((2, "one"), (3, "two"))]
        machine.start()
        # Hashed by ports and addresses, as in Turnpike, so that the flows use both paths.
        machine.space.sysctl("net.ipv4.fib_multipath_hash_policy", 1)
        prefixes = [f"{20 + (n >> 16)}.{(n >> 8) & 255}.{n & 255}.0/24" for n in range(count)]
        for n, name in ((2, "one"), (3, "two")):
            machine.run("ip", "nexthop", "add", "id", n, "via", f"10.0.{n}.2", "dev", name)
        machine.run("ip", "nexthop", "add", "id", 10, "group", "2/3")
        netlink.write(machine.space, netlink.grouped_routes(prefixes, None if plain else 10, paths(machine)))
        if machine.router and not wait_for(lambda: tables.turnpike_count(machine.router, "kernel") >= count, 120, 0.2):
            raise RuntimeError("Turnpike has not got all routes")
        for n, space in enumerate(ways):
            reached = wait_for(lambda: " 1 received" in machine.run("ping", "-n", "-c", 1, f"10.0.{n + 2}.2", check=False).stdout, 10)
            if not reached:
                raise RuntimeError(f"way {n} is not reached")
        sinks = [Sink(space) for space in ways]
        stream = Stream(source, [p.replace("0/24", "9") for p in prefixes[:: count // 1000][:1000]], rate)
        if not all(sink.wait(rate // 2) for sink in sinks):
            raise RuntimeError("the flows do not use both ways")
        ways[0].run("ip", "link", "set", "eth0", "down")
        time.sleep(2)
        sent = stream.stop()
        missing = lost(sent, *sinks)
        gone = outage(sent, *sinks) * 1000
        for sink in sinks:
            sink.close()
        # Later losses would not be caused by the reroute.
        return {"ms": gone, "lost": len(missing), "sent": sent}
    finally:
        lab.close()


def paths(machine):
    """The two paths, as next hops of each route."""
    index = {name: machine.index(name) for name in ("one", "two")}
    return [("10.0.2.2", index["one"]), ("10.0.3.2", index["two"])]


def main():
    parser = common.options(__doc__, 5, ["turnpike", "kernel"])
    parser.add_argument("--routes", type=int, default=500_000, help="behind the group (500000)")
    parser.add_argument("--rate", type=int, default=4000, help="packets a second (4000)")
    parser.add_argument("--plain", action="store_true", help="routes with two next hops each, no group")
    options = parser.parse_args()

    about = common.machine()
    one = lambda kind: measure(kind, options.routes, options.rate, options.plain)  # noqa: E731
    runs = common.rounds(options.runs, options.rows.split(","), one)
    common.write(options.json, about, results=runs)
    print(f"{options.routes} routes, {'two next hops each' if options.plain else 'one nexthop group'}, "
          f"{options.rate} packets/s; packets were lost for, in ms")
    for kind, done in runs.items():
        times = [run["ms"] for run in done]
        print(f"{kind:<10} median {statistics.median(times):8.1f}  minimum {min(times):8.1f}  maximum {max(times):8.1f}")


if __name__ == "__main__":
    common.run(main)

#!/usr/bin/env python3
"""Time until packets are forwarded again, when the router ends and starts on a kernel that has kept its routes.

    source --- router --- sink        a million kernel routes; a packet each millisecond to 500 of them

`term` ends it by SIGTERM, `kill` by kill -9. `first` is the time from the start of the new process to
the first packet that arrives, `all` to the moment from which none is lost, whichever of the 500 routes
it takes. The mark is 2 s.
"""

import statistics
import time

import common
from lib import netlink, tables
from lib.kernel import Machine, host
from lib.lab import Lab
from lib.netns import wait_for
from lib.traffic import Sink, Stream

ROWS = ["term", "kill"]
RATE = 1000
MARK = 2.0


def measure(how, count):
    """One restart, in seconds."""
    lab = Lab()
    try:
        machine = Machine(lab, "router", by="turnpike")
        left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
        right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", gateway=True)
        machine.start()
        prefixes = [f"{20 + (n >> 16)}.{(n >> 8) & 255}.{n & 255}.0/24" for n in range(count)]
        netlink.write(machine.space, netlink.ipv4_routes(prefixes, ["10.0.2.2"], [machine.index("right")]))
        if not wait_for(lambda: tables.turnpike_count(machine.router, "kernel") == count, 120, 0.2):
            raise RuntimeError("Turnpike has not got all routes")
        sink = Sink(right)
        stream = Stream(left, [p.replace("0/24", "9") for p in prefixes[:: max(1, count // 500)]], rate=RATE)
        if not sink.wait(500):
            raise RuntimeError("nothing arrives before")
        if how == "kill":
            machine.router.process.kill()
            machine.router.process.wait()
        else:
            machine.router.stop()
        time.sleep(0.3)
        start = time.time()
        machine.start()
        ready = time.time() - start
        if not sink.wait(3 * RATE, 30):
            raise RuntimeError(f"ready after {ready:.2f} s, and nothing arrives")
        stream.stop()
        arrived = sorted((when, number) for number, when in sink.arrived() if when > start)
        sink.close()
        return {"first_s": arrived[0][0] - start, "all_s": unbroken(arrived) - start, "ready_s": ready}
    finally:
        lab.close()


def unbroken(arrived):
    """The moment from which every packet arrived; pairs of moment and number."""
    since = arrived[0][0]
    for (_, before), (when, number) in zip(arrived, arrived[1:]):
        if number != before + 1:
            since = when
    return since


def main():
    parser = common.options(__doc__, 3, ROWS)
    parser.add_argument("--routes", type=int, default=1_000_000, help="in the kernel (1000000)")
    options = parser.parse_args()

    about = common.machine()
    runs = common.rounds(options.runs, options.rows.split(","), lambda how: measure(how, options.routes))
    common.write(options.json, about, routes=options.routes, results=runs)
    print(f"{options.routes} kernel routes; forwarding again, in s from the start")
    for how, done in runs.items():
        for what in ("first_s", "all_s"):
            times = [run[what] for run in done]
            print(f"{how:<6}{what:<9}median {statistics.median(times):6.2f}  minimum {min(times):6.2f}  "
                  f"maximum {max(times):6.2f}  {'within' if max(times) <= MARK else 'BEYOND'} {MARK} s")


if __name__ == "__main__":
    common.run(main)

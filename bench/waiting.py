#!/usr/bin/env python3
"""Cost of waiting: the processor use of an idle router with two ports, and the round-trip time of single pings through
it, by the three settings of `wait`, compared with the kernel's forwarding.

    left --- veth --- router or kernel --- veth --- right

A ping leaves every 50 ms, long after the forwarder has gone to sleep. The processor use is that of all threads
of the router from /proc/PID/task/*/stat.
"""

import os
import re
import statistics
import time
from pathlib import Path

import common
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Hosts, Lab, ports_by
from lib.netns import veth, wait_for

MODES = ["poll", "adaptive", "interrupt", "moderated"]
DRIVERS = ["af_xdp", "af_packet"]
ROWS = [f"{driver}-{mode}" for driver in DRIVERS for mode in MODES] + ["kernel"]
TICKS = os.sysconf("SC_CLK_TCK")


def spent(pid):
    """Seconds of processor time by thread name."""
    threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, fields = re.fullmatch(r"\d+ \((.*)\) (.*)\n", (task / "stat").read_text()).groups()
        user, system = fields.split()[11:13]
        threads[name] = threads.get(name, 0.0) + (int(user) + int(system)) / TICKS
    return threads


def idle_percent(pid, seconds):
    """Processor use in percent of a core, of all threads and by thread."""
    before, begin = spent(pid), time.monotonic()
    time.sleep(seconds)
    after, time_passed = spent(pid), time.monotonic() - begin
    threads = {name: 100 * (value - before.get(name, 0)) / time_passed for name, value in after.items()}
    return sum(threads.values()), threads


def round_trips(host, address, count, interval=0.05):
    """Microseconds of each ping."""
    said = host.run("ping", "-n", "-i", interval, "-c", count, "-W", "2", address, timeout=300).stdout
    return [1000 * float(time) for time in re.findall(r"time=([\d.]+) ms", said)]


class Kernel:
    """The same topology with the kernel as the router."""

    def __init__(self, lab):
        self.inside, self.left, self.right = (lab.namespace(name) for name in ("router", "left", "right"))
        self.inside.sysctl("net.ipv4.ip_forward", 1)
        sides = [(1, "left", self.left, LEFT_MAC, HOST_A_MAC), (2, "right", self.right, RIGHT_MAC, HOST_B_MAC)]
        for side, name, host, own, other in sides:
            veth(self.inside, f"tp-{name}", host, "eth0", own, other)
            self.inside.run("ip", "address", "add", f"10.0.{side}.1/24", "dev", f"tp-{name}")
            host.run("ip", "address", "add", f"10.0.{side}.2/24", "dev", "eth0")
            host.run("ip", "route", "add", "default", "via", f"10.0.{side}.1")


def measure(row, seconds, pings):
    """One row of one run."""
    lab = Lab()
    try:
        percent, threads = None, None
        if row == "kernel":
            hosts = Kernel(lab)
        else:
            driver, mode = row.split("-")
            hosts = Hosts(lab, f'turnpike.forwarders {{ wait = "{mode}" }}\n', ports_by(driver))
        reached = lambda: hosts.left.run("ping", "-c", 1, "-W", 1, "10.0.2.2", check=False).returncode == 0  # noqa: E731
        if not wait_for(reached, 20):
            raise RuntimeError("no ping gets through")
        if row != "kernel":
            # Initial messages of the hosts and the router.
            time.sleep(3)
            percent, threads = idle_percent(hosts.router.process.pid, seconds)
        times = round_trips(hosts.left, "10.0.2.2", pings)
        return {"idle_percent": percent, "threads": threads, "us": times}
    finally:
        lab.close()


def quantile(times, part):
    """The time that this part of the pings does not exceed."""
    times = sorted(times)
    return times[min(len(times) - 1, int(part * len(times)))]


def words(result):
    """A result in short."""
    idle = "" if result["idle_percent"] is None else f"idle {result['idle_percent']:.2f} %, "
    return f"{idle}ping median {quantile(result['us'], 0.5):.0f} us, 99 % {quantile(result['us'], 0.99):.0f} us"


def main():
    parser = common.options(__doc__, 5, ROWS)
    parser.add_argument("--seconds", type=float, default=20, help="for which the idle router is watched (20)")
    parser.add_argument("--pings", type=int, default=200, help="of each row and run (200)")
    options = parser.parse_args()
    about = common.machine()
    rows = options.rows.split(",")
    runs = common.rounds(options.runs, rows, lambda row: measure(row, options.seconds, options.pings), words)
    common.write(options.json, about, results=runs)
    print(f"{common.named(about)}; medians of {options.runs} runs, the least beside them")
    print("| forwarding by | idle, % of a core | ping, median in us | ping, 99 % in us |\n|---|---|---|---|")
    for row, done in runs.items():
        idle = [result["idle_percent"] for result in done]
        cells = ["-" if None in idle else f"{statistics.median(idle):.2f} ({min(idle):.2f})"]
        for part in (0.5, 0.99):
            values = [quantile(result["us"], part) for result in done]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f})")
        print(f"| {row.replace('-', ', ')} | {' | '.join(cells)} |")


if __name__ == "__main__":
    common.run(main)

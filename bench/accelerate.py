#!/usr/bin/env python3
"""`turnpike accelerate` and the kernel alone between veth interfaces: the same namespaces, by turns.

A generator on one core sends frames of one size to random addresses of the table as fast as the first interface takes
them, one frame at a time as a wire does; what leaves the second interface counts. Router, kernel and generator share the
machine's cores, so cycles are those of all cores: the time that the machine was busy, by packet forwarded.

kernel        the kernel's forwarding
accelerate    the same, and `turnpike accelerate` on both interfaces
in-kernel     the same with `--in-kernel`
xdp-forward   xdp-forward of xdp-tools 1.5 on both interfaces, by the kernel's own table; left out if it is not installed

host          frames are socket buffers, as a program of another namespace sends them; the receiver is the kernel's stack
wire          frames are as a NIC's driver has them (wire.py); the receiver drops them in its driver

XDP programs send to a veth host only if it has GRO, so it has in the rows of in-kernel and xdp-forward. The delay is that
of single pings through the router, when nothing else passes.

--start measures instead the time from the command to the first accelerated packet of a stream: with a full table in the
kernel, with a default route and without, and with as many networks none of which is beside another.
"""

import contextlib
import gzip
import ipaddress
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import waiting
import wire

ROWS = ["kernel", "accelerate", "in-kernel", "xdp-forward"]
SIZES = [64, 1500]
ROUTES = [4, 500_000]
FULL_TABLE = 1_000_000
TO_MAC = "02:00:00:00:01:01"
PINGS = 300


def busy():
    """Seconds for which the cores have been busy, together."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    idle = int(first[3]) + int(first[4])
    return (sum(map(int, first[:8])) - idle) / 100


def made_up_table(directory, count):
    """A made-up table as a file, and its prefixes."""
    from lib.router import binary

    file = Path(directory) / "table.gz"
    subprocess.run([binary(), "generate-table", str(count), file], check=True, capture_output=True)
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return file, [line.split("\t")[0] for line in lines if line[:1].isdigit()]


class Destinations:
    """Addresses that the table has, for both generators: as `turnpike generate` takes them, and as a file of `wire.py`."""

    def __init__(self, directory, pattern, prefixes):
        self.pattern, self.file = pattern, Path(directory) / "destinations"
        parsed = [ipaddress.ip_network(prefix) for prefix in prefixes if ":" not in prefix]
        nets = [(int(net.network_address), int(net.hostmask)) for net in parsed]
        drawn = random.Random(1)
        with self.file.open("wb") as out:
            for start, mask in drawn.choices(nets, k=wire.DESTINATIONS):
                out.write((start | drawn.getrandbits(32) & mask).to_bytes(4, "big"))


def routes(box, count, directory):
    """Fills the kernel's table with routes over host b; returns the destinations."""
    box.ip("route", "add", "default", "via", "10.0.2.2")
    if count == 4:
        for network in ("11.0.0.0/10", "11.64.0.0/10", "11.128.0.0/10", "11.192.0.0/10"):
            box.ip("route", "add", network, "via", "10.0.2.2")
        return Destinations(directory, "random:24@11.0.0.0", ["11.0.0.0/8"])
    file, prefixes = made_up_table(directory, count)
    batch = "".join(f"route add {prefix} via 10.0.2.2\n" for prefix in prefixes)
    subprocess.run(box.space.command("ip", "-force", "-batch", "-"), input=batch, text=True, capture_output=True)
    return Destinations(directory, f"table:{file}", prefixes)


def xdp_forward(box, word, *options):
    """Loads or unloads xdp-forward on both interfaces."""
    box.space.run("xdp-forward", word, *options, "eth0", "eth1")


@contextlib.contextmanager
def forwarding(box, row):
    """The router of a row at work; gives its counters of packets, if it has them."""
    from lib.accelerate import status

    if row in ("in-kernel", "xdp-forward"):
        for host in (box.a, box.b):
            host.run("ethtool", "-K", "eth0", "gro", "on")
    if row == "xdp-forward":
        xdp_forward(box, "load", "-m", "native")
    router = box.accelerate("eth0", "eth1") if row in ("accelerate", "in-kernel") else None
    try:
        yield (lambda: status(router)["eth0"]["packets"]["accelerated"]) if router else None
    finally:
        if row == "xdp-forward":
            xdp_forward(box, "unload")


def sent_by_host(box, destinations, size, given):
    """A command that sends socket buffers."""
    from lib.router import binary

    return box.a.command(
        binary(), "generate", "--device", "eth0", "--to-mac", TO_MAC, "--from", "10.0.1.2", "--to", destinations.pattern,
        "--size", size, "--rate", "max", "--full", "lose", "--seconds", given.seconds + 5, "--cores", common.cores()[0],
        "--no-huge", "--json",
    )


def sent_by_wire(box, destinations, size, given):
    """A command that sends frames of a driver."""
    return box.a.command(
        "taskset", "--cpu-list", common.cores()[0], "timeout", given.seconds + 10, sys.executable, wire.__file__, "eth0",
        "--to-mac", TO_MAC, "--sender", "10.0.1.2", "--destinations", destinations.file, "--size", size,
    )


@contextlib.contextmanager
def by_wire(box, row):
    """The interfaces between hosts and router as those of NICs."""
    from lib.bpf import XDP_DROP, attached

    if row == "kernel":
        # Frames without a program are socket buffers then.
        box.space.run("ethtool", "-K", "eth0", "gro", "on")
    with attached(box.b, "eth0", "xdp", XDP_DROP):
        yield


def rate(box, command, taken, given):
    """Million packets per second, and microseconds of all cores for each."""
    sent = lambda: int(box.b.run("cat", "/sys/class/net/eth0/statistics/rx_packets").stdout)  # noqa: E731
    first, accelerated = sent(), taken() if taken else 0
    generator = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while sent() < first + 1000:
            if generator.poll() is not None:
                raise RuntimeError(generator.stderr.read())
            time.sleep(0.05)
        time.sleep(0.3)
        packets_before, busy_before, begun = sent(), busy(), time.monotonic()
        time.sleep(given.seconds)
        forwarded, used, lasted = sent() - packets_before, busy() - busy_before, time.monotonic() - begun
    finally:
        generator.terminate()
        generator.communicate()
    if taken:
        assert taken() - accelerated > forwarded / 2, f"the kernel forwarded them: {forwarded}, {taken()}"
    return {"mpps": forwarded / lasted / 1e6, "us": used * 1e6 / max(forwarded, 1)}


def delay(box):
    """Microseconds of single pings through the router: the median, and what one in a hundred exceeds."""
    times = waiting.round_trips(box.a, "198.51.2.1", PINGS, 0.01)
    assert len(times) == PINGS, times
    return {"median": waiting.quantile(times, 0.5), "most": waiting.quantile(times, 0.99)}


def measure(row, count, given):
    """What `rate` says, by source and size, and `delay`."""
    from lib.accelerate import IN_KERNEL, SOCKETS, Box
    from lib.lab import Lab

    lab, directory = Lab(), tempfile.TemporaryDirectory()
    try:
        box = Box(lab, quiet=True)
        box.mode = IN_KERNEL if row == "in-kernel" else SOCKETS
        # The machine's setting is that of new namespaces; a host that forwards sends the packets back.
        for host in box.hosts.values():
            host.sysctl("net.ipv4.ip_forward", 0)
        box.settle()
        # The receiver on a wire answers nothing.
        box.ip("neighbour", "replace", "10.0.2.2", "lladdr", "02:00:00:00:02:02", "dev", "eth1", "nud", "permanent")
        destinations = routes(box, count, directory.name)
        rates = {}
        with forwarding(box, row) as taken:
            waited = delay(box)
            for size in sizes(given):
                rates["host", size] = rate(box, sent_by_host(box, destinations, size, given), taken, given)
            with by_wire(box, row):
                for size in sizes(given):
                    rates["wire", size] = rate(box, sent_by_wire(box, destinations, size, given), taken, given)
        return rates, waited
    finally:
        lab.close()
        directory.cleanup()


def sizes(given):
    return list(map(int, given.sizes.split(",")))


def table_of(results):
    """A row for each way of forwarding: million packets per second with the least, as a multiple of the kernel's, and the time
    of all cores for a packet."""
    lines = ["| routes | frames | bytes | forwarding | Mpps | of the kernel | busy, µs a packet |", "|---|---|---|---|---|---|---|"]
    for (count, source, size), rows in results.items():
        middle = {row: {what: statistics.median(one[what] for one in runs) for what in ("mpps", "us")} for row, runs in rows.items()}
        for row, runs in rows.items():
            least, now = min(one["mpps"] for one in runs), middle[row]
            lines.append(
                f"| {count:,} | {source} | {size} | {row} | {now['mpps']:.3f} ({least:.3f}) "
                f"| {now['mpps'] / middle['kernel']['mpps']:.2f} | {now['us']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def table_of_delays(delays):
    """A row for each way of forwarding: microseconds of a ping."""
    lines = ["| routes | forwarding | ping, µs: median | 99 % |", "|---|---|---|---|"]
    for count, rows in delays.items():
        for row, runs in rows.items():
            one, most = (statistics.median(run[what] for run in runs) for what in ("median", "most"))
            lines.append(f"| {count:,} | {row} | {one:.0f} | {most:.0f} |")
    return "\n".join(lines) + "\n"


def in_words(run):
    """What a run has measured."""
    return ", ".join(f"{source} {size}: {of['mpps']:.3f} Mpps" for (source, size), of in run[0].items())


def apart(count):
    """Networks of which each is a boundary without a default route."""
    return [f"{16 + n // 32768}.{n // 128 % 256}.{n % 128 * 2}.0/24" for n in range(count)]


def start(count, kind):
    """Seconds from the command to the first accelerated packet, those from it to readiness, and the number of boundaries."""
    from lib import netlink
    from lib.accelerate import Box, packets
    from lib.lab import Lab
    from lib.netns import wait_for
    from lib.traffic import Stream

    lab, directory = Lab(), tempfile.TemporaryDirectory()
    try:
        box = Box(lab)
        box.settle()
        prefixes = apart(count) if kind == "apart" else made_up_table(directory.name, count)[1]
        index = int(box.space.run("cat", "/sys/class/net/eth1/ifindex").stdout)
        netlink.write(box.space, netlink.ipv4_routes(prefixes, ["10.0.2.2"], [index]))
        if kind == "default route":
            box.ip("route", "add", "default", "via", "10.0.2.2")
        stream = Stream(box.a, ["198.51.2.1", "2001:db8:2::1"])
        begun = time.monotonic()
        router = box.accelerate("eth0", "eth1", wait=False)
        assert wait_for(lambda: router.is_ready(), 60, 0.005), router.log()
        ready = time.monotonic() - begun
        assert wait_for(lambda: packets(router, "eth0", "accelerated"), 60, 0.005), router.log()
        first = time.monotonic() - begun
        stream.stop()
        return {"ready": ready, "first": first, "boundaries": router.show("acceleration")["boundaries"]}
    finally:
        lab.close()
        directory.cleanup()


def table_of_starts(results):
    lines = ["| routes | table | boundaries | ready, s | first accelerated packet, s |", "|---|---|---|---|---|"]
    for (count, kind), runs in results.items():
        middle = {what: statistics.median(run[what] for run in runs) for what in runs[0]}
        most = max(run["first"] for run in runs)
        lines.append(
            f"| {count:,} | {kind} | {middle['boundaries']:,.0f} | {middle['ready']:.2f} | "
            f"{middle['first']:.2f} ({most:.2f}) |"
        )
    return "\n".join(lines) + "\n"


def starts(given):
    """The table of starts."""
    about, results = common.machine(), {}
    for _ in range(given.runs):
        for kind in ("default route", "no default route", "apart"):
            results.setdefault((FULL_TABLE, kind), []).append(start(FULL_TABLE, kind))
    drawn = table_of_starts(results)
    print(common.named(about))
    print(drawn)
    if not given.no_docs:
        common.record(common.ROOT / "docs/benchmarks.md", "accelerate-start", drawn)
    common.write(given.json, about, runs=[{"routes": c, "table": k, "runs": r} for (c, k), r in results.items()])


def main():
    parser = common.options(__doc__, 5, ROWS)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes of frames")
    parser.add_argument("--routes", default=",".join(map(str, ROUTES)), help="numbers of routes")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (1)")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ as it is")
    parser.add_argument("--start", action="store_true", help="the time until packets are accelerated, with a full table")
    given = parser.parse_args()
    if given.start:
        return starts(given)
    about, results, delays = common.machine(), {}, {}
    rows = common.chosen(given, ROWS)
    if "xdp-forward" in rows and not shutil.which("xdp-forward"):
        print("xdp-forward is left out: it is not installed (xdp-tools 1.5)", file=sys.stderr)
        rows.remove("xdp-forward")
    for count in map(int, given.routes.split(",")):
        runs = common.rounds(given.runs, rows, lambda row: measure(row, count, given), say=in_words)  # noqa: B023
        for source, size in runs[rows[0]][0][0]:
            results[count, source, size] = {row: [rates[source, size] for rates, _ in runs[row]] for row in rows}
        delays[count] = {row: [delay for _, delay in runs[row]] for row in rows}
    drawn, waited = table_of(results), table_of_delays(delays)
    print(common.named(about))
    print(drawn)
    print(waited)
    if not given.no_docs:
        common.record(common.ROOT / "docs/benchmarks.md", "accelerate", drawn)
        common.record(common.ROOT / "docs/benchmarks.md", "accelerate-delay", waited)
    runs = [{"routes": c, "frames": f, "size": s, "rows": r} for (c, f, s), r in results.items()]
    common.write(given.json, about, runs=runs, delays=delays)


if __name__ == "__main__":
    common.run(main)

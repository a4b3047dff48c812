#!/usr/bin/env python3
"""The experiments of Click on OCTEON (VTT).

lossfree   the highest rate without loss, and with 0.5 % of it, by frame size, over memif links
cores      forwarding rate by cores and frame size: flooded, so an upper bound of the loss-free one
line-rate  the smallest frame at which one core fills a link of 1, 10, 25, 40 and 100 Gbit/s
modes      forwarding rate with event devices in software, by order, beside run to completion, on all cores
idle       the share of its time that a forwarder's core is idle, by offered rate, over veth pairs
"""

import time

import common
import moonroute
from lib.lab import Lab

SIZES = [64, 128, 256, 512, 1024, 1518]
PUBLISHED = "numbers were not at hand (Click's own paper of 2000 has 333,000 packets/s of 64 bytes without loss, on a PC of then)."
# Preamble, start delimiter and gap of Ethernet.
GAP = 20


def lossfree(given):
    found = common.turnpike(
        "bench", "rfc2544", "--seconds", given.seconds, "--repeats", given.runs, "--test", "throughput",
        "--size", ",".join(map(str, SIZES)), "--resolution", 3,
    )
    of = lambda key: [(one["size"], one[key] / 1e6) for one in found]  # noqa: E731
    series = {"without loss": of("ndr_pps"), "0.5 % lost": of("pdr_pps"), "the tester's": of("highest_pps")}
    drawn = common.figure("Loss-free rate by frame size, memif", "frame, bytes", "million packets/s", series)
    said = "Without loss and with 0.5 %: " + ", ".join(
        f"{size} B {none:.2f} and {few:.2f} Mpps" for (size, none), (_, few) in zip(series["without loss"], series["0.5 % lost"])
    ) + "."
    return common.Part(drawn, found, said, PUBLISHED)


def cores(given):
    have = common.cores()
    series, runs = {}, {}
    for count in range(1, len(have) + 1):
        measure = lambda size: moonroute.two_ports(given, size=size, queues=count, cores_used=have[-count:])  # noqa: B023, E731
        middle, runs[count] = common.sweep(given.runs, [64, 256, 1024, 1518], measure)
        series[f"{count} cores"] = middle.items()
    drawn = common.figure("Forwarding rate by cores and frame size", "frame, bytes", "million packets/s", series)
    said = "; ".join(f"{name}: " + ", ".join(f"{size} B {rate:.1f}" for size, rate in points) for name, points in series.items()) + " Mpps."
    return common.Part(drawn, runs, said, PUBLISHED)


def smallest_at(gbit, rates):
    """The smallest frame whose rate fills a link; rates by size. None if none does."""
    fits = [size for size, pps in sorted(rates.items()) if pps * (size + GAP) * 8 >= gbit * 1e9]
    return fits[0] if fits else None


def line_rate(given):
    middle, runs = common.sweep(given.runs, SIZES, lambda size: moonroute.two_ports(given, size=size))
    rates = {size: mpps * 1e6 for size, mpps in middle.items()}
    links = [1, 10, 25, 40, 100]
    found = {gbit: smallest_at(gbit, rates) for gbit in links}
    points = [(gbit, size) for gbit, size in found.items() if size]
    drawn = common.figure("Smallest frame at line rate, one core", "link, Gbit/s", "frame, bytes", {"Turnpike": points}, log_x=True)
    said = "One core fills " + ", ".join(f"{gbit} Gbit/s from {size} bytes" if size else f"no {gbit} Gbit/s" for gbit, size in found.items()) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


def modes(given):
    have = common.cores()
    shared = f"receive_core = {have[0]}, scheduler_core = {have[-1]}"
    of = {"run to completion": dict(queues=len(have))}
    for device, orders in (("event_sw0", ("ordered", "atomic", "parallel")), ("event_dsw0", ("atomic", "parallel"))):
        for order in orders:
            settings = f'mode = "events", device = "{device}", order = "{order}", {shared}'
            of[f"{device}, {order}"] = dict(forwarders=settings)
    measure = lambda mode: moonroute.two_ports(given, cores_used=have, **of[mode])  # noqa: E731
    middle, runs = common.sweep(given.runs, of, measure)
    points = {mode: [(64, rate)] for mode, rate in middle.items()}
    drawn = common.figure("Forwarding rate by mode", "frame, bytes", "million packets/s", points)
    said = f"Of 64 bytes on {len(have)} cores: " + ", ".join(f"{mode} {rate:.2f}" for mode, rate in middle.items()) + " Mpps."
    return common.Part(drawn, runs, said, PUBLISHED)


def idle(given):
    def measure(kpps):
        lab = Lab()
        try:
            wires = common.Veths(lab, "turnpike")
            pid = wires.router.process.pid
            generator = wires.generate(1, 2, f"{kpps}kpps", given.seconds + 1)
            time.sleep(0.5)
            start, before = time.monotonic(), common.cpu_seconds(pid, "forwarder-0")
            time.sleep(given.seconds)
            used, elapsed = common.cpu_seconds(pid, "forwarder-0") - before, time.monotonic() - start
            common.report(generator)
            return 100 * (1 - used / elapsed)
        finally:
            lab.close()

    middle, runs = common.sweep(given.runs, [1, 10, 50, 100, 200], measure)
    drawn = common.figure("Idle time of the forwarder's core, veth", "thousand packets/s", "idle, %", {"Turnpike": middle.items()}, log_x=True)
    said = "Idle at " + ", ".join(f"{kpps} thousand packets/s: {share:.0f} %" for kpps, share in middle.items()) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


PARTS = {"lossfree": lossfree, "cores": cores, "line-rate": line_rate, "modes": modes, "idle": idle}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS))

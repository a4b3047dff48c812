#!/usr/bin/env python3
"""The experiments of the PC router on Linux (Politecnico di Torino), beside the kernel of today.

overload        forwarding rate over offered rate, in the same veth topology: beyond its limit a router
                should go on at its best, not collapse (livelock)
directions      the same, one way and both ways at once
ports           throughput of 2 to 14 ports, each to one other (one-to-one) or to all others (uniform)
sizes           throughput by frame size
"""

import common
import moonroute
from lib.lab import Lab

PUBLISHED = "the Linux of its time forwarded less the more was offered until interrupts gave way to polling (NAPI); numbers were not at hand."
OFFERED = [25, 50, 100, 200, 400, 800]


def forwarded(by, kpps, seconds, both=False):
    """Thousand packets per second that arrive of so many that are offered, each way."""
    lab = Lab()
    try:
        # A device belongs to one generator, so that both ways are two pairs of ports.
        wires = common.Veths(lab, by, count=4 if both else 2)
        ways = [(1, 2), (4, 3)] if both else [(1, 2)]
        running = [wires.generate(source, sink, f"{kpps}kpps", seconds) for source, sink in ways]
        done = [common.report(generator) for generator in running]
        return sum(one["received"]["packets"] for one in done) / seconds / 1000
    finally:
        lab.close()


def overload(given):
    series, runs, best = {}, {}, {}
    for by in ("turnpike", "kernel"):
        middle, runs[by] = common.sweep(given.runs, OFFERED, lambda kpps: forwarded(by, kpps, given.seconds))
        series[by] = middle.items()
        best[by] = (max(middle.values()), middle[OFFERED[-1]])
    drawn = common.figure("Forwarding rate over offered rate, veth", "thousand packets/s offered", "thousand packets/s forwarded", series)
    said = " ".join(f"{by.capitalize()}: {most:.0f} thousand packets/s at best, {last:.0f} when {OFFERED[-1]} are offered." for by, (most, last) in best.items())
    return common.Part(drawn, runs, said, PUBLISHED)


def directions(given):
    words, points, runs = [], {"one way": [], "both ways": []}, {}
    for index, by in enumerate(("turnpike", "kernel")):
        words.append(by)
        for name, both in (("one way", False), ("both ways", True)):
            middle, runs[f"{by} {name}"] = common.sweep(given.runs, [OFFERED[-1]], lambda kpps: forwarded(by, kpps, given.seconds, both))
            points[name].append((index, middle[OFFERED[-1]]))
    drawn = common.figure(f"Forwarding rate at {OFFERED[-1]},000 packets/s offered each way", "", "thousand packets/s", points, words=words)
    said = " ".join(
        f"{by.capitalize()}: {points['one way'][n][1]:.0f} thousand packets/s one way, {points['both ways'][n][1]:.0f} both ways together."
        for n, by in enumerate(words)
    )
    return common.Part(drawn, runs, said, PUBLISHED)


def matrix(ports, uniform):
    """What is sent into each port: to its partner, or to all others by turns."""
    to = lambda port: f"10.{port}.0.2"  # noqa: E731
    if uniform:
        return [[to(p) for p in range(1, ports + 1) if p != port] * 16 for port in range(1, ports + 1)]
    return [[to((port - 1 ^ 1) + 1)] * 64 for port in range(1, ports + 1)]


def ports(given):
    series, runs = {}, {}
    for name, uniform in (("one-to-one", False), ("uniform", True)):
        measure = lambda count: common.flood_rate(given.seconds, destinations=matrix(count, uniform))  # noqa: B023, E731
        middle, runs[name] = common.sweep(given.runs, [2, 4, 8, 14], measure)
        series[name] = middle.items()
    drawn = common.figure("Throughput by ports, one core", "ports", "million packets/s", series)
    said = "On one core " + "; ".join(f"{name}: " + ", ".join(f"{count} ports {rate:.1f} Mpps" for count, rate in points) for name, points in series.items()) + "."
    return common.Part(drawn, runs, said, "numbers were not at hand.")


def sizes(given):
    middle, runs = common.sweep(given.runs, [64, 128, 256, 512, 1024, 1518], lambda size: moonroute.two_ports(given, size=size))
    drawn = common.figure("Throughput by frame size", "frame, bytes", "million packets/s", {"1 core": middle.items()})
    said = "On one core " + ", ".join(f"{size} B: {rate:.1f} Mpps" for size, rate in middle.items()) + "."
    return common.Part(drawn, runs, said, "numbers were not at hand.")


PARTS = {"overload": overload, "directions": directions, "ports": ports, "sizes": sizes}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS))

#!/usr/bin/env python3
"""Kamuee Zero's experiments (Ohara and Yamagishi, Kamuee Zero: the Design and Implementation of Route Table for
High-Performance Software Router).

routes     throughput without routes, with 4, and with a full table
sizes      throughput by frame size, 64 to 1518 bytes
loss       loss by offered rate, over memif links
latency    delay and jitter by frame size, over memif links
sync       forwarding rate by the way routes are published, and the time until all forwarders have them
queues     throughput by queues (and forwarders) for each port
"""

import random
import tempfile

import common
import moonroute

# Figures of the paper (15 cores of two Xeon E5-2687W v3, four ports of 40 Gbit/s).
ROUTES = (
    "of 160 Gbit/s offered in frames of 128 bytes, 145 pass with 518,231 routes; with 4 routes 2.1 % are lost, without "
    "0.02 %; a part of it by unequal load of the ports (figure 9, table 3)."
)
SIZES = "one queue fills 40 Gbit/s with no size; three fill 80 Gbit/s from 128 bytes on (figures 2 and 3)."
LOSS = (
    "packets are lost even below 400 Mbit/s, as many of 64 as of 128 bytes; with a full table at 160 Gbit/s 44.2 % "
    "of 64 bytes, 9.0 % of 128, 7.0 % of 1518 (figure 7, table 3)."
)
LATENCY = (
    "least at 128 bytes; the maximum is above 1 ms from another NUMA node, and almost always with several queues "
    "(figures 5 and 6)."
)
SYNC = (
    "RCU by QSBR has the highest rate with 64 bytes, with signals the same from 128 on; from 512 bytes on all but the "
    "global mutex are equal. A new table is in use soonest by signals, then global mutex, mutex by thread, QSBR, "
    "memory barriers (figure 8)."
)
QUEUES = "three queues a port fill 80 Gbit/s from 128 bytes on, 15 in all 160 Gbit/s (figures 3 and 4)."
FRAMES = 4096


def anywhere(count=FRAMES):
    chance = random.Random(2)
    return [f"{chance.randrange(11, 120)}.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(1, 255)}" for _ in range(count)]


def routes(given):
    with tempfile.TemporaryDirectory() as directory:
        table, _ = moonroute.full_table(directory)
        via = [f"10.{port}.0.2" for port in range(1, 5)]
        four = "".join(f'turnpike.route "{n * 64}.0.0.0/2" {{ via = "{hop}" }}\n' for n, hop in enumerate(via))
        hops = ", ".join(f'"{hop}"' for hop in via)
        settings = {
            "connected": ([via * 64] * 4, ""),
            "4 routes": ([anywhere()] * 4, four),
            "500,000": ([anywhere()] * 4, f'turnpike.import {{ file = "{table}", via = {{ {hops} }} }}\n{four}'),
        }

        def measure(name):
            sent, config = settings[name]
            return common.flood_rate(given.seconds, destinations=sent, config=config)

        middle, runs = common.sweep(given.runs, list(settings), measure)
    drawn = common.figure("Throughput by routes", "", "million packets/s", {"1 core": list(enumerate(middle.values()))}, words=middle)
    said = "On one core " + ", ".join(f"{name}: {rate:.1f} Mpps" for name, rate in middle.items()) + "."
    return common.Part(drawn, runs, said, ROUTES)


def sizes(given):
    middle, runs = common.sweep(given.runs, [64, 128, 256, 512, 1024, 1280, 1518], lambda size: moonroute.two_ports(given, size=size))
    gbit = {size: rate * size * 8 / 1000 for size, rate in middle.items()}
    drawn = common.figure("Throughput by frame size", "frame, bytes", "Gbit/s", {"1 core": gbit.items()})
    said = "On one core " + ", ".join(f"{size} B: {middle[size]:.1f} Mpps, {gbit[size]:.0f} Gbit/s" for size in (64, 512, 1518)) + "."
    return common.Part(drawn, runs, said, SIZES)


def rfc2544(given, *argv):
    return common.turnpike("bench", "rfc2544", "--seconds", given.seconds, "--repeats", 1, *argv)


def loss(given):
    found = rfc2544(given, "--test", "loss", "--size", 64)[0]
    points = [(at["rate_pps"] / 1e6, at["share"] * 100) for at in found["loss"]]
    drawn = common.figure("Loss by offered rate, memif", "million packets/s offered", "lost, %", {"64 bytes": points})
    said = "Lost at " + ", ".join(f"{rate:.1f} Mpps: {share:.2f} %" for rate, share in points[:: max(1, len(points) // 4)]) + "."
    return common.Part(drawn, found, said, LOSS)


def latency(given):
    found = rfc2544(given, "--test", "throughput,latency", "--size", "64,512,1518", "--resolution", 5)
    of = lambda what, value: [(f["size"], f["latency"][what][value] / 1000) for f in found if f["latency"]]  # noqa: E731
    series = {"delay, median": of("delay_ns", "p50"), "delay, 99 %": of("delay_ns", "p99"), "jitter, 99 %": of("jitter_ns", "p99")}
    drawn = common.figure("Delay and jitter at the throughput rate, memif", "frame, bytes", "microseconds", series, log_y=True)
    said = "Median and 99 % of the delay: " + ", ".join(
        f"{size} B: {median:.0f} and {high:.0f} us" for (size, median), (_, high) in zip(series["delay, median"], series["delay, 99 %"])
    ) + "."
    return common.Part(drawn, found, said, LATENCY)


def sync(given):
    found = common.turnpike("bench", "sync", "--rounds", given.runs, "--seconds", given.seconds)
    words = [one["method"] for one in found]
    rates = lambda key: [(n, one["median"][key]) for n, one in enumerate(found)]  # noqa: E731
    drawn = common.figure(
        "Forwarding rate by publication of routes", "", "million packets/s",
        {"nothing changes": rates("mpps_quiet"), "routes change": rates("mpps_changing")}, words=words,
    )
    said = "Mpps while routes change, and median time until all forwarders have one: " + ", ".join(
        f"{one['method']} {one['median']['mpps_changing']:.1f} and {one['median']['sync_us']['p50']:.1f} us" for one in found
    ) + "."
    return common.Part(drawn, found, said, SYNC)


def queues(given):
    have = common.cores()
    measure = lambda count: moonroute.two_ports(given, queues=count, cores_used=have[-count:])  # noqa: E731
    middle, runs = common.sweep(given.runs, given.cores, measure)
    drawn = common.figure("Throughput by queues per port", "queues, and forwarders", "million packets/s", {"Turnpike": middle.items()})
    said = ", ".join(f"{count} queues: {rate:.1f} Mpps" for count, rate in middle.items()) + "."
    return common.Part(drawn, runs, said, QUEUES)


PARTS = {"routes": routes, "sizes": sizes, "loss": loss, "latency": latency, "sync": sync, "queues": queues}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS))

#!/usr/bin/env python3
"""Kamuee Zero's experiments.

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

# Slides of NTT Communications about kamuee (speakerdeck.com/lfj).
PUBLISHED = "more than 300 Mpps and 200 Gbit/s on two sockets of many cores, with up to two million routes."
MISSING = "the figure of this experiment was not at hand."
FRAMES = 4096


def anywhere(count=FRAMES):
    chance = random.Random(2)
    return [f"{chance.randrange(11, 120)}.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(1, 255)}" for _ in range(count)]


def routes(given):
    with tempfile.TemporaryDirectory() as directory:
        table, _ = moonroute.full_table(directory)
        via = '{ via = "10.2.0.2" }'
        default = f'turnpike.route "0.0.0.0/0" {via}\n'
        settings = {
            "connected": (["10.2.0.2"] * 256, ""),
            "4 routes": (anywhere(), "".join(f'turnpike.route "{n * 64}.0.0.0/2" {via}\n' for n in range(4))),
            "500,000": (anywhere(), f'turnpike.import {{ file = "{table}", via = {{ "10.1.0.2", "10.2.0.2" }} }}\n{default}'),
        }

        def measure(name):
            sent, config = settings[name]
            return common.flood_rate(given.seconds, destinations=[sent, sent], config=config)

        middle, runs = common.sweep(given.runs, list(settings), measure)
    drawn = common.figure("Throughput by routes", "", "million packets/s", {"1 core": list(enumerate(middle.values()))}, words=middle)
    said = "On one core " + ", ".join(f"{name}: {rate:.1f} Mpps" for name, rate in middle.items()) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


def sizes(given):
    middle, runs = common.sweep(given.runs, [64, 128, 256, 512, 1024, 1280, 1518], lambda size: moonroute.two_ports(given, size=size))
    gbit = {size: rate * size * 8 / 1000 for size, rate in middle.items()}
    drawn = common.figure("Throughput by frame size", "frame, bytes", "Gbit/s", {"1 core": gbit.items()})
    said = "On one core " + ", ".join(f"{size} B: {middle[size]:.1f} Mpps, {gbit[size]:.0f} Gbit/s" for size in (64, 512, 1518)) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


def rfc2544(given, *argv):
    return common.turnpike("bench", "rfc2544", "--seconds", given.seconds, "--repeats", 1, *argv)


def loss(given):
    found = rfc2544(given, "--test", "loss", "--size", 64)[0]
    points = [(at["rate_pps"] / 1e6, at["share"] * 100) for at in found["loss"]]
    drawn = common.figure("Loss by offered rate, memif", "million packets/s offered", "lost, %", {"64 bytes": points})
    said = "Lost at " + ", ".join(f"{rate:.1f} Mpps: {share:.2f} %" for rate, share in points[:: max(1, len(points) // 4)]) + "."
    return common.Part(drawn, found, said, MISSING)


def latency(given):
    found = rfc2544(given, "--test", "throughput,latency", "--size", "64,512,1518", "--resolution", 5)
    of = lambda what, value: [(f["size"], f["latency"][what][value] / 1000) for f in found if f["latency"]]  # noqa: E731
    series = {"delay, median": of("delay_ns", "p50"), "delay, 99 %": of("delay_ns", "p99"), "jitter, 99 %": of("jitter_ns", "p99")}
    drawn = common.figure("Delay and jitter at the throughput rate, memif", "frame, bytes", "microseconds", series, log_y=True)
    said = "Median and 99 % of the delay: " + ", ".join(
        f"{size} B: {median:.0f} and {high:.0f} us" for (size, median), (_, high) in zip(series["delay, median"], series["delay, 99 %"])
    ) + "."
    return common.Part(drawn, found, said, MISSING)


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
    return common.Part(drawn, found, said, "RCU by QSBR is chosen as the fastest for forwarders; figure 8's numbers were not at hand.")


def queues(given):
    have = common.cores()
    measure = lambda count: moonroute.two_ports(given, queues=count, cores_used=have[-count:])  # noqa: E731
    middle, runs = common.sweep(given.runs, given.cores, measure)
    drawn = common.figure("Throughput by queues per port", "queues, and forwarders", "million packets/s", {"Turnpike": middle.items()})
    said = ", ".join(f"{count} queues: {rate:.1f} Mpps" for count, rate in middle.items()) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


PARTS = {"routes": routes, "sizes": sizes, "loss": loss, "latency": latency, "sync": sync, "queues": queues}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS))

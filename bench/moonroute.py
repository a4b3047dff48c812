#!/usr/bin/env python3
"""MoonRoute's experiments (Gallenmüller et al., Building Fast but Flexible Software Routers, ANCS 2017).

patterns   throughput by traffic pattern, full table
sizes      throughput by frame size, 64 to 544 bytes: packets per second should not depend on it
cores      throughput by cores: should be linear
subnets    cycles per packet above io by the number of /24 networks, 2^0 to 2^24
rx-burst   cycles per packet by packets received at once
tx-burst   the same by packets sent at once
cache      cache misses per packet by the number of networks, of a simulated processor
branches   mispredicted branches and cache misses by packets received at once, likewise
steps      where the instructions go, step by step
latency    delay at a gentle rate by the size of transmit bursts

Routers are flooded from capture files (see `common.Flood`), or are those of `turnpike bench forward`.
"""

import random
import re
import subprocess
import tempfile
from pathlib import Path

import common
from lib.lab import Lab
from lib.router import binary

FRAMES = 4096
# Figures of the thesis at TUM in which the prototype is described.
PATTERNS = (
    "14.6 Mpps on one core of 3.2 GHz to one destination, 11.5 to random ones; published rates of others, scaled to "
    "this core: 6.27 (batching Click), 1.71 (RouteBricks), 1.62 (Linux 3.7), 1.60 (Click) (table 6.2, section 6.5)."
)
SIZES = "the packet rate is constant up to 544 bytes, until two ports of 10 Gbit/s are full (figure 6.2)."
CORES = (
    "the rate grows linearly with the cores: two ports of 10 Gbit/s (29.8 Mpps) are full by three cores of 2.0 GHz, "
    "with random destinations by four; at 1.2 GHz by five and six (figures 6.3 and 6.4)."
)
SUBNETS = (
    "the rate is constant up to 2^21 networks and falls beyond, as the cache of 8 MB no longer holds the table; to "
    "random destinations 11.5 Mpps by one core of 3.2 GHz, 12.8 by two of 1.6 GHz (figure 6.5)."
)
RX_BURST = "at least twice the rate above 16 packets than with 2, most with 128 (figure 6.7)."
TX_BURST = "up to 28 % more, most between 32 and 128; nothing with receive bursts below 16 (figure 6.8)."
CACHE = (
    "with more networks first the misses of the second cache grow, then those of the third (L2 of 256 KiB, L3 of 8 MiB), "
    "and the rate falls with the latter (figure 6.6)."
)
BRANCHES = (
    "the share of mispredicted branches falls with the batch and is very low above 8 packets; misses of the third cache "
    "stay the same (figure 6.9)."
)
STEPS = (
    "of the time in Lua's functions the lookup takes 24 %, applying the route 9 %, checksum offload 4 %, all other "
    "modules less each; in LuaJIT's code are 44 % of the whole (figure 6.10)."
)
LATENCY = "not measured."


def full_table(lab_dir, count=500_000):
    """A made-up table to import, and addresses in it."""
    file = Path(lab_dir) / "table.gz"
    subprocess.run([binary(), "generate-table", str(count), str(file)], check=True, capture_output=True)
    import gzip

    prefixes = [line.split("\t")[0] for line in gzip.open(file, "rt") if line[0].isdigit()]
    return file, prefixes


def inside(prefix, chance):
    """A random address of a prefix."""
    import ipaddress

    network = ipaddress.ip_network(prefix)
    return str(network[chance.randrange(network.num_addresses)])


def patterns_of(prefixes):
    """Destinations by pattern."""
    chance = random.Random(1)
    quad = lambda bits, base: ".".join(str((base | chance.getrandbits(bits)) >> s & 255) for s in (24, 16, 8, 0))  # noqa: E731
    zipf = [inside(chance.choice(prefixes), chance) for _ in range(FRAMES)]
    weights = [1 / (rank + 1) for rank in range(FRAMES)]
    return {
        "one": ["11.1.1.1"] * 64,
        "64 flows": [f"11.1.1.{n}" for n in range(64)],
        "2^16": [quad(16, 0x0B000000) for _ in range(FRAMES)],
        "2^24": [quad(24, 0x0B000000) for _ in range(FRAMES)],
        "in table": [inside(chance.choice(prefixes), chance) for _ in range(FRAMES)],
        "Zipf": chance.choices(zipf, weights, k=FRAMES),
    }


def patterns(given):
    with tempfile.TemporaryDirectory() as directory:
        table, prefixes = full_table(directory)
        config = (
            f'turnpike.import {{ file = "{table}", via = {{ "10.1.0.2", "10.2.0.2", "10.3.0.2", "10.4.0.2" }} }}\n'
            'turnpike.route "0.0.0.0/0" { via = "10.2.0.2" }\n'
        )
        sent = patterns_of(prefixes)
        # All four ports send the pattern.
        measure = lambda name: common.flood_rate(given.seconds, destinations=[sent[name]] * 4, config=config)  # noqa: E731
        middle, runs = common.sweep(given.runs, list(sent), measure)
    drawn = common.figure(
        "Throughput by traffic pattern, 500,000 routes", "", "million packets/s",
        {"Turnpike, 1 core": list(enumerate(middle.values()))}, words=middle,
    )
    said = "With a full table " + ", ".join(f"{name}: {rate:.1f}" for name, rate in middle.items()) + " Mpps on one core."
    return common.Part(drawn, runs, said, PATTERNS)


def two_ports(given, **settings):
    """A router that forwards from each of two ports to the other."""
    return common.flood_rate(given.seconds, destinations=[["10.2.0.2"] * 256, ["10.1.0.2"] * 256], **settings)


def sizes(given):
    middle, runs = common.sweep(given.runs, range(64, 545, 96), lambda size: two_ports(given, size=size))
    drawn = common.figure("Throughput by frame size", "frame, bytes", "million packets/s", {"1 core": middle.items()})
    least, most = min(middle.values()), max(middle.values())
    said = f"From 64 to 544 bytes {most:.1f} to {least:.1f} Mpps on one core, {least / most:.2f} of the highest; the source copies every byte, which a NIC would not."
    return common.Part(drawn, runs, said, SIZES)


def cores(given):
    have = common.cores()
    measure = lambda count: two_ports(given, cores_used=have[-count:], queues=count)  # noqa: E731
    middle, runs = common.sweep(given.runs, given.cores, measure)
    drawn = common.figure("Throughput by cores", "cores", "million packets/s", {"Turnpike": middle.items()})
    least = middle[given.cores[0]] / given.cores[0]
    said = ", ".join(f"{count} cores: {rate:.1f} Mpps ({rate / least:.2f})" for count, rate in middle.items()) + "."
    return common.Part(drawn, runs, said, CORES)


def forward(*argv):
    """One case of `turnpike bench forward`: median cycles above io."""
    return common.turnpike("bench", "forward", "--rounds", 3, "--packets", 500_000, *argv)[0]["cycles_above_io_median"]


def subnets(given):
    measure = lambda n: forward("--case", "full4", "--in-table", "--table", f"subnets:{1 << n}")  # noqa: E731
    middle, runs = common.sweep(given.runs, range(0, 25, 4), measure)
    drawn = common.figure(
        "Cost by number of /24 networks", "networks", "cycles per packet above io",
        {"Turnpike": [(1 << n, cycles) for n, cycles in middle.items()]}, log_x=True,
    )
    said = "Cycles above io: " + ", ".join(f"2^{n}: {cycles:.0f}" for n, cycles in middle.items()) + "."
    return common.Part(drawn, runs, said, SUBNETS)


def bursts(given, option, values, title, published):
    measure = lambda count: forward("--case", "4r1e", option, count)  # noqa: E731
    middle, runs = common.sweep(given.runs, values, measure)
    drawn = common.figure(title, "packets", "cycles per packet above io", {"Turnpike": middle.items()}, log_x=True)
    said = "Cycles above io: " + ", ".join(f"{count}: {cycles:.0f}" for count, cycles in middle.items()) + "."
    return common.Part(drawn, runs, said, published)


# Bytes of the second and the third cache of the processor that the authors measured.
SECOND, THIRD = 256 << 10, 8 << 20


def above_io(last_level, *argv):
    """Misses per packet above the bare loop, from callgrind, which always gives the same result."""
    import instructions

    io, router = (instructions.simulated(instructions.FUNCTIONS[one], last_level, *argv) for one in ("io", "router"))
    return {event: router[event] - io[event] for event in io} | {"whole": router}


def cache(given):
    found = {}
    for n in (0, 8, 12, 16, 18, 20):
        # Each packet has another destination.
        argv = ("--case", "full4", "--in-table", "--table", f"subnets:{1 << n}", "--destinations", 1 << 17)
        found[n] = above_io(SECOND, *argv)["last"], above_io(THIRD, *argv)["last"]
        print(f"2^{n}: {found[n]}")
    series = {
        f"{words}, {size >> 10} KiB": [(1 << n, pair[index]) for n, pair in found.items()]
        for index, (words, size) in enumerate([("second cache", SECOND), ("third cache", THIRD)])
    }
    drawn = common.figure("Cache misses by number of /24 networks", "networks", "misses per packet above io", series, log_x=True)
    said = "Misses per packet above io, of a second cache of 256 KiB and a third of 8 MiB, simulated: " + ", ".join(
        f"2^{n}: {max(second, 0):.2f} and {max(third, 0):.2f}" for n, (second, third) in found.items()
    ) + "."
    return common.Part(drawn, found, said, CACHE)


def branches(given):
    found = {}
    for count in (1, 2, 4, 8, 16, 32, 64):
        found[count] = above_io(THIRD, "--case", "full4", "--table", "synthetic:100000", "--destinations", 1 << 17, "--rx-burst", count)
        print(f"{count}: {found[count]}")
    series = {
        "mispredicted branches": [(count, one["branches"]) for count, one in found.items()],
        "misses of the third cache": [(count, one["last"]) for count, one in found.items()],
    }
    drawn = common.figure("Mispredicted branches by receive burst", "packets received at once", "per packet above io", series, log_x=True)
    said = "Mispredicted branches per packet above io, and their share of all branches, simulated: " + ", ".join(
        f"{count}: {one['branches']:.2f} ({one['whole']['branches'] / one['whole']['taken']:.1%})" for count, one in found.items()
    ) + "; misses of the third cache " + " to ".join(
        f"{edge(one['last'] for one in found.values()):.2f}" for edge in (min, max)
    ) + "."
    return common.Part(drawn, found, said, BRANCHES)


def steps(given):
    """Instructions of each step, from callgrind: one run, which always gives the same result."""
    import instructions

    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out"
        subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=*Router*turn*",
             binary(), "bench", "forward", "--rounds", "1", "--packets", str(instructions.PACKETS),
             "--destinations", "4096", "--no-huge", "--case", "full4", "--table", "synthetic:100000"],
            check=True, capture_output=True,
        )
        said = subprocess.run(
            ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)], check=True, capture_output=True, text=True
        ).stdout
    found = {}
    for count, step in re.findall(r"^\s*([\d,]+) .*?steps::(\w+)::.*Step>?.*::process", said, re.M):
        found.setdefault(step, int(count.replace(",", "")) / instructions.COUNTED)
    if not found:
        raise RuntimeError("callgrind names no step")
    drawn = common.figure(
        "Instructions by step, full table", "", "instructions per packet", {"Turnpike": list(enumerate(found.values()))}, words=found
    )
    line = "Instructions per packet: " + ", ".join(f"{step} {count:.0f}" for step, count in found.items()) + "."
    return common.Part(drawn, found, line, STEPS)


def latency(given):
    def measure(burst):
        lab = Lab()
        try:
            wires = common.Veths(lab, "turnpike", config=f"turnpike.tx {{ burst = {burst} }}\n")
            done = common.report(wires.generate(1, 2, "20kpps", given.seconds))
            return done["received"]["delay_ns"]["p50"] / 1000
        finally:
            lab.close()

    middle, runs = common.sweep(given.runs, [1, 8, 32, 64], measure)
    drawn = common.figure("Delay by transmit burst, 20,000 packets/s", "packets", "microseconds, median", {"veth": middle.items()}, log_x=True)
    said = "Median delay over veth pairs at 20,000 packets/s: " + ", ".join(f"{b}: {us:.0f} us" for b, us in middle.items()) + "."
    return common.Part(drawn, runs, said, LATENCY)


PARTS = {
    "patterns": patterns,
    "sizes": sizes,
    "cores": cores,
    "subnets": subnets,
    "rx-burst": lambda given: bursts(given, "--rx-burst", [1, 2, 4, 8, 16, 32, 64], "Cost by receive burst", RX_BURST),
    "tx-burst": lambda given: bursts(given, "--tx-burst", [1, 4, 16, 32, 64, 128], "Cost by transmit burst", TX_BURST),
    "cache": cache,
    "branches": branches,
    "steps": steps,
    "latency": latency,
}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS))

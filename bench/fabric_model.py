#!/usr/bin/env python3
"""A model of leaf and spine fabrics from 5 to 1,024 routers, for docs/scale.md.

It assumes:

1. A table of N routes is learned at one leaf. Each spine gets it from that leaf, every other leaf from each spine, and the
   servers from their leaves. Leaves send spines no routes of spines (the filter of the role's template).
2. Processor time of a router, bgpd, zebra, kernel and Turnpike together, is proportional to routes. It is fitted to
   measurements in which all routers share the cores of one machine. Fabrics of 3 to 5 routers cannot tell the cost of a route
   from that of each of its paths, so there are two models: all for the route (`by routes`), all for paths (`by paths`). The
   truth is between them, and so is the range that the table gives.
3. Routers of a real fabric have machines of their own. bgpd, zebra and the kernel then work side by side on PARALLEL cores
   each, and the table flows through the tiers like through a pipe: the slowest router decides, a leaf with a path from each
   spine, and each tier adds a delay. What it costs a spine to write the table to its leaves is not in it: FRR formats an
   update once for all of them.
4. A spine's loss is noticed by BFD. Each leaf then takes one path from each route, and installs the route anew.
5. Memory is proportional to routes and to paths. Forwarding on C cores is C times that of one core.

The inputs are figures of docs/benchmarks.md and of `bench/fabric.py --rows routes --json FILE`; `--points FILE…` fits the
model to them and compares it with the one that is left out, the largest.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

# docs/benchmarks.md: Mpps of one core with 500,000 routes (kamuee-routes), Gbit/s of one core with 512 bytes (kamuee-sizes).
MPPS, GBIT_512 = 38.4, 119
PARALLEL = 2
# Hold of an announcement in each tier, in seconds: FRR's datacenter profile has none, its work queues some milliseconds.
TIER = 0.05
# Processor seconds of a route, or of a path, by --points on the machine that docs/scale.md names; --points uses its own.
FITTED = {"by routes": 41.5e-6, "by paths": 28.2e-6}
# Bytes of a route, and of each path, by the growth of resident memory in the largest of these measurements.
BYTES = {"bgpd": (460, 350), "zebra": (540, 0), "turnpike": (195, 0)}
BFD_S = 0.6
SIZES = [(3, 2), (12, 4), (48, 8), (240, 16), (992, 32)]
SERVERS = 2


def installs(leaves, spines):
    """Routers of a machine that install each route: with the two servers of the example."""
    return leaves + spines + SERVERS


def paths(leaves, spines):
    """Paths that all of them receive for each route."""
    return 1 + spines + (leaves - 1) * spines + 2 * SERVERS


def cost(model, leaves, spines):
    """Unit costs of all routers of one machine for a route."""
    return installs(leaves, spines) if model == "by routes" else paths(leaves, spines)


def together(model, unit, size, routes, cores):
    """Seconds until all routers of one machine with so many cores have the table."""
    return routes * unit * cost(model, *size) / cores


def apart(model, unit, spines, routes):
    """Seconds until all routers, each on a machine of its own, have the table."""
    return 3 * TIER + routes * unit * (1 if model == "by routes" else spines) / PARALLEL


def convergence(unit, routes):
    """Seconds until no flow takes a lost spine."""
    return BFD_S + routes * unit / PARALLEL


def memory(routes, received):
    """Mebibytes of a router with so many routes, each by so many paths."""
    return sum(routes * (each + received * path) for each, path in BYTES.values()) / 2**20


def fitted(model, points, cores):
    """The unit cost with the least squares of errors; each point is (leaves, spines, routes, seconds)."""
    pairs = [(routes * cost(model, leaves, spines) / cores, seconds) for leaves, spines, routes, seconds in points]
    return sum(units * seconds for units, seconds in pairs) / sum(units * units for units, _ in pairs)


def read(files):
    """The points of result files of `bench/fabric.py`."""
    points = []
    for file in files:
        document = json.loads(Path(file).read_text())
        seconds = statistics.median(run["s"] for run in document["results"]["routes"])
        points.append((*document["size"], document["routes"], seconds))
    return sorted(points, key=lambda point: (point[0] + point[1], point[2]))


def compared(points, cores):
    """The models, fitted without the largest point, and lines that compare them with all points."""
    models = {model: fitted(model, points[:-1], cores) for model in FITTED}
    lines = [f"| routers | routes | measured, s | {' | '.join(f'{model}, s | error' for model in models)} |",
             "|---|---|---|" + "---|---|" * len(models)]
    for leaves, spines, routes, seconds in points:
        left_out = ", left out of the fit" if (leaves, spines, routes, seconds) == points[-1] else ""
        cells = [f"{leaves + spines}{left_out}", f"{routes:,}", f"{seconds:.1f}"]
        for model, unit in models.items():
            said = together(model, unit, (leaves, spines), routes, cores)
            cells += [f"{said:.1f}", f"{said / seconds - 1:+.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return models, lines


def table(models, routes):
    """Lines: fabrics of all sizes."""
    lines = [
        "| routers | leaves, spines | sessions | all have the table, s | spine lost: until no flow takes it, s | "
        "MiB of a leaf | MiB of a spine | Tbit/s between leaves, links of 100 Gbit/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lost = sorted(convergence(unit, routes) for unit in models.values())
    for leaves, spines in SIZES:
        low, high = sorted(apart(model, unit, spines, routes) for model, unit in models.items())
        lines.append(
            f"| {leaves + spines:,} | {leaves}, {spines} | {leaves * spines:,} | {low:.0f} to {high:.0f} | "
            f"{lost[0]:.0f} to {lost[1]:.0f} | {memory(routes, spines):,.0f} | {memory(routes, 1):,.0f} | "
            f"{leaves * spines / 10:,.1f} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", nargs="+", metavar="FILE", help="results of bench/fabric.py --rows routes --json")
    parser.add_argument("--cores", type=int, default=2, help="of the machine of these (2)")
    parser.add_argument("--routes", type=int, default=500_000, help="of the table (500000)")
    options = parser.parse_args()
    models = FITTED
    if options.points:
        models, lines = compared(read(options.points), options.cores)
        print("\n".join(lines), end="\n\n")
        print("microseconds of a processor: " + ", ".join(f"{model} {unit * 1e6:.1f}" for model, unit in models.items()), end="\n\n")
    print("\n".join(table(models, options.routes)))
    print(f"\na core forwards up to {MPPS} Mpps, {GBIT_512} Gbit/s of 512 bytes: a leaf with {SIZES[2][1]} links of 100 Gbit/s "
          f"needs {math.ceil(SIZES[2][1] * 100 / GBIT_512)} cores or more")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A model of leaf and spine fabrics from 5 to 1,024 routers, for docs/scale.md.

It assumes:

1. A table of N routes is learned at one leaf. Each spine gets it from that leaf, every other leaf from each spine, and the
   servers from their leaves. Leaves send spines no routes of spines (the filter of the role's template).
2. Processor time of a router is N x (installs x INSTALL + paths x PATH): bgpd, zebra, kernel and Turnpike together. INSTALL
   and PATH are fitted to measurements in which all routers share the cores of one machine, and START is what a run takes
   without routes.
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
import statistics
from pathlib import Path

import common

# docs/benchmarks.md: Mpps of one core with 500,000 routes (kamuee-routes), Gbit/s of one core with 512 bytes (kamuee-sizes).
MPPS, GBIT_512 = 38.4, 119
PARALLEL = 2
# Hold of an announcement in each tier, in seconds: FRR's datacenter profile has none, its work queues some milliseconds.
TIER = 0.05
# Measured processor seconds and bytes, by --points on the machine that docs/scale.md names.
FITTED = {"start": 0.0, "install": 0.0, "path": 0.0}
BYTES = {"bgpd": (0, 0), "zebra": (0, 0), "turnpike": (0, 0)}
BFD_S = 0.6
SIZES = [(3, 2), (12, 4), (48, 8), (240, 16), (992, 32)]
SERVERS = 2


def installs(leaves, spines):
    """Routers of a machine that install each route: with the two servers of the example."""
    return leaves + spines + SERVERS


def paths(leaves, spines):
    """Paths that all of them receive for each route."""
    return 1 + spines + (leaves - 1) * spines + 2 * SERVERS


def together(fit, leaves, spines, routes, cores):
    """Seconds until all routers of one machine with so many cores have the table."""
    work = installs(leaves, spines) * fit["install"] + paths(leaves, spines) * fit["path"]
    return fit["start"] + routes * work / cores


def apart(fit, spines, routes):
    """Seconds until all routers, each on a machine of its own, have the table."""
    slowest = fit["install"] + spines * fit["path"]
    return 3 * TIER + routes * slowest / PARALLEL


def convergence(fit, routes):
    """Seconds until no flow takes a lost spine."""
    return BFD_S + routes * (fit["install"] + fit["path"]) / PARALLEL


def memory(routes, received):
    """Mebibytes of a router with so many routes, each by so many paths."""
    return sum(routes * (each + received * path) for each, path in BYTES.values()) / 2**20


def fitted(points, cores):
    """Least squares of the three unknowns, none of them negative; each point is (leaves, spines, routes, seconds)."""
    rows = [
        ([1.0, routes * installs(leaves, spines) / cores, routes * paths(leaves, spines) / cores], seconds)
        for leaves, spines, routes, seconds in points
    ]
    best = None
    for used in ([0, 1, 2], [0, 1], [0, 2], [1, 2], [1], [2]):
        values = _solve([[row[i] for i in used] for row, _ in rows], [seconds for _, seconds in rows])
        if values is None or min(values) < 0:
            continue
        whole = [0.0] * 3
        for i, value in zip(used, values):
            whole[i] = value
        error = sum((sum(a * b for a, b in zip(row, whole)) - seconds) ** 2 for row, seconds in rows)
        if best is None or error < best[0]:
            best = error, whole
    return dict(zip(("start", "install", "path"), best[1]))


def _solve(rows, right):
    """The least squares of a few unknowns, by the normal equations; `None` if they have no single solution."""
    n = len(rows[0])
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(n)] + [sum(row[i] * b for row, b in zip(rows, right))]
              for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-18:
            return None
        for k in range(n):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i])]
    return [matrix[i][n] / matrix[i][i] for i in range(n)]


def read(files):
    """The points of result files of `bench/fabric.py`."""
    points = []
    for file in files:
        document = json.loads(Path(file).read_text())
        seconds = statistics.median(run["s"] for run in document["results"]["routes"])
        points.append((*document["size"], document["routes"], seconds))
    return sorted(points, key=lambda point: (point[0] + point[1], point[2]))


def compared(points, cores):
    """Lines: the model, fitted without the largest point, beside all points."""
    fit = fitted(points[:-1], cores)
    lines = ["| routers | routes | measured, s | model, s | error |", "|---|---|---|---|---|"]
    for leaves, spines, routes, seconds in points:
        said = together(fit, leaves, spines, routes, cores)
        left_out = ", left out of the fit" if (leaves, spines, routes, seconds) == points[-1] else ""
        lines.append(f"| {leaves + spines}{left_out} | {routes:,} | {seconds:.1f} | {said:.1f} | {said / seconds - 1:+.0%} |")
    return fit, lines


def table(fit, routes):
    """Lines: fabrics of all sizes."""
    lines = [
        "| routers | leaves, spines | sessions | all have the table, s | spine lost: until none is lost, s | MiB of a leaf | "
        "MiB of a spine | Gbit/s between leaves, 100G links |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for leaves, spines in SIZES:
        lines.append(
            f"| {leaves + spines:,} | {leaves}, {spines} | {leaves * spines:,} | {apart(fit, spines, routes):.0f} | "
            f"{convergence(fit, routes):.1f} | {memory(routes, spines):,.0f} | {memory(routes, 1):,.0f} | "
            f"{leaves * spines * 100:,} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", nargs="+", metavar="FILE", help="results of bench/fabric.py --rows routes --json")
    parser.add_argument("--cores", type=int, default=2, help="of the machine of these (2)")
    parser.add_argument("--routes", type=int, default=500_000, help="of the table (500000)")
    options = parser.parse_args()
    fit = FITTED
    if options.points:
        fit, lines = compared(read(options.points), options.cores)
        print("\n".join(lines), end="\n\n")
        print(f"start {fit['start']:.2f} s; a route costs {fit['install'] * 1e6:.1f} us to install and "
              f"{fit['path'] * 1e6:.1f} us for each path\n")
    print("\n".join(table(fit, options.routes)))
    print(f"\na core forwards up to {MPPS} Mpps, {GBIT_512} Gbit/s of 512 bytes: a leaf with {SIZES[2][1]} links of 100 Gbit/s "
          f"needs {SIZES[2][1] * 100 / GBIT_512:.0f} cores or more")


if __name__ == "__main__":
    main()

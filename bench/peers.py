#!/usr/bin/env python3
"""Turnpike beside other routers, by turns on one core: one table.

l3fwd      DPDK's example, with `--lookup=fib`, as it is and with transmit bursts of 32 (`scripts/build-l3fwd.sh`)
vpp        VPP, whose worker fills vectors of up to 256 packets (`scripts/build-vpp.sh`)
grout      grout, on DPDK's graph library (`scripts/build-grout.sh`)
af_xdp     Turnpike on veth interfaces
linux      the kernel's forwarding on the same

Cycles per packet are those of `turnpike bench forward`: all receive the same packets from the same source by DPDK's null
driver, and drop what they send. The rate is the highest with at most 0.5 % loss of 64-byte frames, found by `turnpike
bench rfc2544` (RFC 9971), over memif or veth links to a generator on another core; grout refuses memif devices. A router
that cannot be built is named and left out.
"""

import statistics
import subprocess
import sys

import common
import latency

PEERS = ["l3fwd", "vpp", "grout"]
CASES = ["4r1e", "4r4e", "full4"]
# In the order of the table.
NAMES = {
    "turnpike": "Turnpike", "l3fwd": "l3fwd", "l3fwd-tx32": "l3fwd, bursts of 32", "vpp": "VPP", "grout": "grout",
    "af_xdp": "Turnpike, AF_XDP", "linux": "Linux",
}


ROWS = [name for name in NAMES if name != "l3fwd-tx32"]


def available(names, built=common.built, say=print):
    """The programs of those that can be built, by name; names the others."""
    programs = {}
    for name in names:
        try:
            programs[name] = built(name)
        except subprocess.CalledProcessError:
            say(f"{name} cannot be built: left out", file=sys.stderr)
    return programs


def forward(programs, given):
    """The outcomes of `turnpike bench forward` by router and case."""
    paths = [word for name, files in programs.items() for file in files for word in (f"--{name}", file)]
    options = ["--rounds", given.rounds, "--packets", given.packets, "--table", given.table, "--case", ",".join(given.case)]
    outcomes = {}
    for one in common.turnpike("bench", "forward", *options, *paths, *(["--no-huge"] if given.no_huge else [])):
        # NAME-CASE, and CASE for Turnpike.
        router, _, case = one["case"].rpartition("-")
        outcomes.setdefault(router or "turnpike", {})[case] = one
    return outcomes


def rates(rows, given):
    """The highest rates of all rounds by row, in million packets per second."""
    measure = lambda row: latency.with_router(row, lambda wires, core: latency.highest(wires, given.seconds, core)) / 1e6  # noqa: E731
    return common.rounds(given.runs, rows, measure)


def line(cells):
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def table(outcomes, found, cases):
    """One line a router: cycles per packet, those above io with their minimum, and the rate with its minimum."""
    head = ["router", *(f"`{case}`, above io" for case in cases), *(["at most 0.5 % lost, Mpps"] if found else [])]
    lines = [line(head), "|" + "---|" * len(head)]
    for name in NAMES:
        if name not in outcomes and name not in found:
            continue
        cells = [NAMES[name]]
        for case in cases:
            one = outcomes.get(name, {}).get(case)
            cells.append("" if one is None else f"{one['cycles_median']:.1f}, {one['cycles_above_io_median']:.1f} ({one['cycles_above_io_min']:.1f})")
        if found:
            rounds = found.get(name)
            cells.append("" if rounds is None else f"{statistics.median(rounds):.2f} ({min(rounds):.2f})")
        lines.append(line(cells))
    return "\n".join(lines) + "\n"


def main():
    parser = common.options(__doc__, 5, ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each rate (1)")
    parser.add_argument("--rounds", type=int, default=21, help="rounds of cycles (21)")
    parser.add_argument("--packets", type=int, default=1_000_000, help="of one turn of a round (1000000)")
    parser.add_argument("--table", default="synthetic:100000", help="the full table, as `turnpike bench forward` takes it")
    parser.add_argument("--case", type=lambda text: text.split(","), default=CASES, help=f"of cycles ({','.join(CASES)})")
    parser.add_argument("--cycles-only", action="store_true", help="no rates, which take most of the time")
    parser.add_argument("--no-huge", action="store_true", help="ordinary memory even where there are hugepages")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ as it is")
    given = parser.parse_args()
    rows = common.chosen(given, ROWS)
    common.need_two_cores("routers")
    about, programs = common.machine(), available([name for name in PEERS if name in rows])
    missing = set(PEERS) - set(programs)
    outcomes = forward(programs, given)
    forwarding = [row for row in latency.ROWS if row in rows and row not in missing]
    found = {} if given.cycles_only else rates(forwarding, given)
    drawn = table(outcomes, found, given.case)
    print(common.named(about))
    print(drawn)
    if not given.no_docs:
        common.record(common.ROOT / "docs/benchmarks.md", "peers", drawn)
    common.write(given.json, about, forward=outcomes, rates=found)


if __name__ == "__main__":
    common.run(main)

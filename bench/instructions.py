#!/usr/bin/env python3
"""Instructions per packet of the forwarding path, above the bare receive-transmit loop.

    bench/instructions.py             counts and prints
    bench/instructions.py --check     compares with bench/instructions.json (make bench-check)
    bench/instructions.py --record    writes bench/instructions.json (make bench-record)

Counts with valgrind's callgrind, so it works on machines whose processor counters are not
available, and the same binary always gives the same numbers. `turnpike bench forward` runs under
it once for each case, with only the router counted, and once for each source, with only the bare
loop. DPDK's own drivers are part of both. Valgrind does not know AVX-512, so code that would use it
takes its AVX2 path here.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench/instructions.json"
# A multiple of 4 batches, so that the warm-up, a quarter of it, ends with a whole batch too.
PACKETS = 64 * 4 * 400
COUNTED = PACKETS + PACKETS // 4
FUNCTIONS = {"io": "*BareLoop*turn*", "router": "*Router*turn*"}
# The cases by their source: the bare loop is the same for all of one.
SOURCES = {"4r1e": "ip4", "noop": "ip4", "4r4e": "ip4", "full4": "ip4", "vrf4": "ip4", "bond4": "ip4", "vlan4": "vlan", "qinq4": "qinq",
           "vlan4-device": "stripped",
           "filter-first": "ip4", "filter-10": "ip4", "filter-1000": "ip4", "filter-10000": "ip4", "filter-state": "ip4",
           "filter-police": "ip4", "filter-sources": "ip4", "filter-set": "ip4", "full6": "ip6", "mixed": "both"}
# Cases with a step in Lua, whose machine code is generated at run time and differs between runs, and the one in Rust
# that they are compared with.
UNCOUNTED = {"lua-empty", "lua-flushed", "lua-voip", "rust-voip",
             "queue-fifo", "queue-red", "queue-codel", "queue-drr", "queue-shape", "vlan4-queues"}
# A larger change of a case, as a share of the recorded count, must be explained.
LIMIT = 0.03

EXPLAIN = """
The fast path takes more than {limit:.0%} more or fewer instructions than bench/instructions.json says.
If that was not meant, find out where they come from:

    valgrind --tool=callgrind --toggle-collect='*Router*turn*' target/release/turnpike bench forward \\
      --rounds 1 --packets {packets} --destinations 4096 --no-huge --case CASE
    callgrind_annotate callgrind.out.*

If it was, record the new counts, commit them with the change, and say in the commit what they buy
(fewer cycles, a check that was missing):

    make bench-record
"""


def binary():
    """The release build."""
    import os

    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "turnpike"


def count(case, function):
    """Instructions per packet inside the function."""
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
        f"--toggle-collect={function}",
        binary(), "bench", "forward", "--rounds", "1", "--packets", str(PACKETS),
        "--destinations", "4096", "--no-huge", "--case", case,
        "--table", "synthetic:100000", "--table6", "synthetic:30000",
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not collected or collected[1] == "0":
        sys.exit(f"case {case}: valgrind or the benchmark failed:\n{run.stdout}{run.stderr}")
    return int(collected[1]) / COUNTED


def simulated(function, last_level, *argv):
    """Misses per packet inside the function: of the caches of a simulated processor, with 32 KiB of first and so many
    bytes of last level, and of its branch predictor."""
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={function}",
        "--cache-sim=yes", "--branch-sim=yes", "--D1=32768,8,64", f"--LL={last_level},16,64",
        binary(), "bench", "forward", "--rounds", "1", "--packets", str(PACKETS), "--no-huge", *map(str, argv),
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    names, values = (re.search(rf"{word} *: (.*)", run.stderr) for word in ("Events", "Collected"))
    if run.returncode != 0 or not names or not values:
        raise RuntimeError(f"valgrind or the benchmark failed:\n{run.stdout}{run.stderr}")
    counts = dict(zip(names[1].split(), (int(value) / COUNTED for value in values[1].split())))
    of = lambda *events: sum(counts[event] for event in events)  # noqa: E731
    return {"first": of("D1mr", "D1mw"), "last": of("DLmr", "DLmw"), "branches": of("Bcm", "Bim"), "taken": of("Bc", "Bi")}


def measure(cases):
    """The counts of the cases, printed as they are measured."""
    io, results = {}, {}
    print(f"{'case':14}{'io':>10}{'router':>10}{'above io':>10}   instructions per packet")
    for case in cases:
        source = SOURCES[case]
        if source not in io:
            io[source] = count(case, FUNCTIONS["io"])
        router = count(case, FUNCTIONS["router"])
        results[case] = {"io": round(io[source], 1), "router": round(router, 1), "above_io": round(router - io[source], 1)}
        print(f"{case:14}{io[source]:10.1f}{router:10.1f}{router - io[source]:10.1f}", flush=True)
    return results


def changes(recorded, counted, limit=LIMIT):
    """Differences beyond the limit, as lines for the reader. A case without a record counts as one."""
    lines = []
    for case, now in counted.items():
        before = recorded.get(case)
        if before is None:
            lines.append(f"{case}: {now['above_io']:.1f} instructions, and nothing is recorded")
            continue
        change = (now["above_io"] - before["above_io"]) / before["above_io"]
        if abs(change) > limit:
            lines.append(f"{case}: {now['above_io']:.1f} instructions, {before['above_io']:.1f} recorded: {change:+.1%}")
    return lines


def conditions():
    """Further conditions that determine the counts."""
    said = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip()  # noqa: E731
    return {
        "rustc": said("rustc", "--version"),
        "dpdk": said("pkg-config", "--modversion", "libdpdk"),
        "packages": said("dpkg-query", "-W", "-f", "${Version}", "libdpdk-dev"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--case", default=",".join(SOURCES), help="cases, separated by commas")
    parser.add_argument("--check", action="store_true", help=f"compare with {RECORD.name}, fail beyond {100 * LIMIT:.0f} %%")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    cases = args.case.split(",")
    if unknown := [case for case in cases if case not in SOURCES]:
        sys.exit(f"--case {unknown[0]}: not found; known: {', '.join(SOURCES)}")
    if not shutil.which("valgrind"):
        sys.exit("valgrind not found: apt-get install valgrind")
    if not binary().exists():
        sys.exit(f"{binary()} not found: make build")
    now = conditions()
    results = measure(cases)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    if args.record:
        RECORD.write_text(json.dumps({"conditions": now, "instructions_per_packet": results}, indent=2) + "\n")
        print(f"recorded in {RECORD.relative_to(ROOT)}")
    if args.check:
        if not RECORD.exists():
            sys.exit(f"{RECORD.relative_to(ROOT)} not found: make bench-record")
        recorded = json.loads(RECORD.read_text())
        for key, value in now.items():
            if recorded["conditions"].get(key) != value:
                print(f"note: recorded with {key} {recorded['conditions'].get(key)}, here it is {value}")
        if found := changes(recorded["instructions_per_packet"], results):
            print("\n".join(found))
            sys.exit(EXPLAIN.format(limit=LIMIT, packets=PACKETS))
        print(f"no case differs by more than {LIMIT:.0%} from what is recorded")


if __name__ == "__main__":
    main()

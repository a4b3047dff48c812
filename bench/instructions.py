#!/usr/bin/env python3
"""Instructions per packet of the forwarding path, above the bare receive-transmit loop.

    bench/instructions.py [--case 4r1e,4r4e,full4] [--table FILE] [--json FILE]

Counts with valgrind's callgrind, so it works on machines whose processor counters are not
available, and the same binary always gives the same numbers. `turnpike bench forward` runs under
it twice a case: once only the bare loop is counted, once only the router. DPDK's own drivers are
part of both. Valgrind does not know AVX-512, so code that would use it takes its AVX2 path here.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = ROOT / "target/release/turnpike"
# A multiple of 4 batches, so that the warm-up, a quarter of it, ends with a whole batch too.
PACKETS = 64 * 4 * 400
COUNTED = PACKETS + PACKETS // 4
FUNCTIONS = {"io": "*BareLoop*turn*", "router": "*Router*turn*"}


def count(case, table, function):
    """Instructions per packet inside the function."""
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
        f"--toggle-collect={function}",
        BINARY, "bench", "forward", "--rounds", "1", "--packets", str(PACKETS),
        "--destinations", "4096", "--no-huge", "--case", case, "--table", table,
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not collected or collected[1] == "0":
        sys.exit(f"case {case}: valgrind or the benchmark failed:\n{run.stderr}")
    return int(collected[1]) / COUNTED


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--case", default="4r1e,4r4e,full4", help="cases, separated by commas")
    parser.add_argument("--table", default="synthetic:100000", help="the full table")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    args = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind not found: apt-get install valgrind")
    if not BINARY.exists():
        sys.exit(f"{BINARY.relative_to(ROOT)} not found: make build")
    results = []
    print(f"{'case':8}{'io':>10}{'router':>10}{'above io':>10}   instructions per packet")
    for case in args.case.split(","):
        numbers = {name: count(case, args.table, f) for name, f in FUNCTIONS.items()}
        above = numbers["router"] - numbers["io"]
        print(f"{case:8}{numbers['io']:10.1f}{numbers['router']:10.1f}{above:10.1f}", flush=True)
        results.append({"case": case, **numbers, "above_io": above})
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

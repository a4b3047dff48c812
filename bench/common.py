"""What the benchmarks share: their options, the rounds in which rows take turns, and their files.

Importing it makes the scenarios' library, `tests/lib`, importable.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))


def machine():
    """What the numbers were measured on."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def named(about):
    """The machine in words."""
    return f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}"


def options(documentation, runs, rows=None):
    """A parser with the options that all have: `--runs`, `--json` and, for a benchmark of several
    `rows`, `--rows`."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=runs, help=f"rounds; each measures every row ({runs})")
    if rows:
        parser.add_argument("--rows", default=",".join(rows), help=f"which ({','.join(rows)})")
    parser.add_argument("--json", metavar="FILE", help="write all runs there")
    return parser


def rounds(runs, rows, measure, say=json.dumps):
    """Measures every row in each round, so that whatever else the machine does hits all of them alike;
    says what each came to. The results by row."""
    results = {row: [] for row in rows}
    for number in range(runs):
        for row, done in results.items():
            done.append(measure(row))
            print(f"run {number + 1}/{runs} {row}: {say(done[-1])}", file=sys.stderr)
    return results


def write(file, about, **document):
    """Writes the runs, if a file was given."""
    if file:
        document = {"machine": about, "command": sys.argv[1:], **document}
        Path(file).write_text(json.dumps(document, indent=2) + "\n")


def run(main):
    """Runs a benchmark as root; the error of a command that failed is its last word."""
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run it as root")
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}: {error.stderr}")

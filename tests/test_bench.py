"""The logic of the benchmarks: what can be wrong without a measurement."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import instructions  # noqa: E402

from lib.router import binary  # noqa: E402


def counts(**cases):
    return {case: {"above_io": count} for case, count in cases.items()}


def test_a_change_within_the_limit_is_none():
    assert instructions.changes(counts(full4=300.0), counts(full4=308.9)) == []
    assert instructions.changes(counts(full4=300.0), counts(full4=291.1)) == []


def test_more_and_fewer_instructions_are_told():
    more = instructions.changes(counts(full4=300.0, noop=100.0), counts(full4=309.1, noop=100.0))
    assert more == ["full4: 309.1 instructions, 300.0 recorded: +3.0%"]
    fewer = instructions.changes(counts(full4=300.0), counts(full4=150.0))
    assert fewer == ["full4: 150.0 instructions, 300.0 recorded: -50.0%"]


def test_a_case_that_is_not_recorded_is_told():
    assert instructions.changes({}, counts(full6=300.0)) == ["full6: 300.0 instructions, and nothing is recorded"]


def test_every_case_of_the_binary_is_counted():
    source = (Path(__file__).resolve().parents[1] / "crates/turnpike/src/bench/forward/cases.rs").read_text()
    names = {line.split('"')[1] for line in source.splitlines() if line.strip().startswith("Case { name:")}
    assert names == set(instructions.SOURCES)


def bench(*options):
    """A benchmark's JSON."""
    done = subprocess.run(
        [binary(), "bench", *map(str, options), "--json", "--no-huge"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_forward_has_all_cases_and_keys():
    small = ("--rounds", 1, "--packets", 10_000, "--destinations", 4096, "--table", "synthetic:50000", "--table6", "synthetic:1000")
    outcomes = bench("forward", *small)
    assert {outcome["case"] for outcome in outcomes} == {"4r1e", "4r4e", "full4", "full6", "mixed", "noop"}
    for outcome in outcomes:
        assert set(outcome) == {
            "case", "cycles_io_median", "cycles_above_io_median", "cycles_above_io_min", "instructions",
            "branch_misses", "mpps",
        }
        assert outcome["mpps"] > 0


@pytest.mark.parametrize("family", [(), ("--ipv6",)], ids=["IPv4", "IPv6"])
def test_rfc2544_finds_what_the_router_can(family, tmp_path):
    plot = tmp_path / "throughput.svg"
    found = bench(
        "rfc2544", *family, "--size", 128, "--seconds", 0.1, "--repeats", 1, "--resolution", 10, "--pdr", 50,
        "--test", "throughput,loss,latency", "--plot", plot,
    )
    assert [one["size"] for one in found] == [128]
    # With half of the packets to lose, something passes on any machine.
    assert 0 < found[0]["pdr_pps"] <= found[0]["highest_pps"]
    assert found[0]["ndr_pps"] <= found[0]["pdr_pps"]
    assert found[0]["latency"]["delay_ns"]["min"] > 0
    assert len(found[0]["loss"]) >= 2
    assert plot.read_text().startswith("<svg")

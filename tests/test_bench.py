"""The logic of the benchmarks: errors that can be detected without a measurement."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import common  # noqa: E402
import instructions  # noqa: E402
import octeon  # noqa: E402
import pc_router  # noqa: E402
import peers  # noqa: E402

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
    source = (Path(__file__).resolve().parents[1] / "crates/bench/src/forward/cases.rs").read_text()
    names = set(re.findall(r'\bCase \{\s*name: "([^"]+)"', source))
    assert names == set(instructions.SOURCES) | instructions.UNCOUNTED


def test_a_result_replaces_the_one_before(tmp_path):
    document = tmp_path / "doc.md"
    document.write_text("a\n<!-- bench: x -->\nold\n<!-- end -->\nb\n<!-- bench: y -->\nstays\n<!-- end -->\n")
    common.record(document, "x", common.wrapped("new " * 40))
    lines = document.read_text().splitlines()
    assert lines[:2] == ["a", "<!-- bench: x -->"] and "old" not in lines
    assert max(map(len, lines)) <= 110
    assert lines[-5:] == ["<!-- end -->", "b", "<!-- bench: y -->", "stays", "<!-- end -->"]
    common.record(document, "z", "nowhere")
    assert document.read_text().splitlines() == lines


def test_every_part_of_every_experiment_has_its_place():
    import filters
    import kamuee
    import moonroute

    text = (Path(__file__).resolve().parents[1] / "docs/benchmarks.md").read_text()
    for module in (filters, moonroute, kamuee, pc_router, octeon):
        for part in module.PARTS:
            assert f"<!-- bench: {module.__name__}-{part} -->" in text


def test_a_router_that_cannot_be_built_is_named_and_left_out(tmp_path, monkeypatch, capsys):
    """By the scripts themselves, whose sources are not there."""
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    monkeypatch.setenv("VPP_SOURCE", "/nowhere/vpp")
    monkeypatch.setenv("GROUT_SOURCE", "/nowhere/grout")
    assert peers.available(["vpp", "grout"]) == {}
    assert capsys.readouterr().err.splitlines() == ["vpp cannot be built: left out", "grout cannot be built: left out"]
    # Nothing stays that a later call would take for a program.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_table_of_routers_has_a_line_for_each():
    def one(whole, above, least):
        return {"cycles_median": whole, "cycles_above_io_median": above, "cycles_above_io_min": least}

    outcomes = {"turnpike": {"4r1e": one(74.74, 46.9, 45.5)}, "vpp": {"4r1e": one(120.0, 99.9, 98.0)}}
    lines = peers.table(outcomes, {"turnpike": [10.0, 12.0, 11.0], "linux": [0.39]}, ["4r1e"]).splitlines()
    assert lines == [
        "| router | `4r1e`, above io | at most 0.5 % lost, Mpps |",
        "|---|---|---|",
        "| Turnpike | 74.7, 46.9 (45.5) | 11.00 (10.00) |",
        "| VPP | 120.0, 99.9 (98.0) | |",
        "| Linux | | 0.39 (0.39) |",
    ]


def test_the_smallest_frame_that_fills_a_link():
    # 14.88 million smallest frames fill 10 Gbit/s, gaps included.
    rates = {64: 14_880_953, 128: 14_000_000, 1518: 5_000_000}
    assert octeon.smallest_at(10, rates) == 64
    assert octeon.smallest_at(16, rates) == 128
    assert octeon.smallest_at(60, rates) == 1518
    assert octeon.smallest_at(100, rates) is None


def test_traffic_matrices_send_nothing_back():
    one = pc_router.matrix(4, uniform=False)
    assert [set(to) for to in one] == [{"10.2.0.2"}, {"10.1.0.2"}, {"10.4.0.2"}, {"10.3.0.2"}]
    for port, to in enumerate(pc_router.matrix(4, uniform=True), start=1):
        assert len(set(to)) == 3 and f"10.{port}.0.2" not in to


def test_a_sweep_takes_the_median_of_interleaved_runs():
    said = iter([1, 10, 9, 90, 2, 20])
    order = []

    def measure(value):
        order.append(value)
        return next(said)

    middle, runs = common.sweep(3, ["a", "b"], measure)
    assert order == ["a", "b"] * 3
    assert middle == {"a": 2, "b": 20} and runs["a"] == [1, 9, 2]


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
    assert {outcome["case"] for outcome in outcomes} == {
        "4r1e", "4r4e", "filter-10", "filter-1000", "filter-10000", "filter-state", "full4", "full6", "lua-empty",
        "lua-flushed", "lua-voip", "mixed", "noop", "rust-voip",
    }
    apart = ["filter-first", "filter-police", "filter-set", "filter-sources", "qinq4", "queue-codel", "queue-drr", "queue-fifo", "queue-red", "queue-shape", "vlan4", "vlan4-queues", "vrf4"]
    named = bench("forward", *small[:8], *(word for name in apart for word in ("--case", name)))
    assert sorted(outcome["case"] for outcome in named) == apart
    for outcome in outcomes + named:
        assert set(outcome) == {
            "case", "cycles_io_median", "cycles_median", "cycles_above_io_median", "cycles_above_io_min",
            "busy_above_io_median", "spread", "instructions", "branch_misses", "mpps",
        }
        assert outcome["mpps"] > 0


@pytest.mark.parametrize("option", [("--size", "imix"), ("--size", "1518,64"), ("--verified",), ("--in-table",)])
def test_forward_has_other_packets(option):
    few = ("--rounds", 1, "--packets", 10_000, "--destinations", 4096, "--table", "synthetic:5000", "--table6", "synthetic:1000")
    outcomes = bench("forward", *few, "--case", "full4", "--case", "mixed", *option)
    assert [outcome["case"] for outcome in outcomes] == ["full4", "mixed"]


@pytest.mark.parametrize("options, message", [
    (("--size", "63"), "size 63: 64 to"),
    (("--size", "64,1519"), "--size 1519: at most 1518, by the ports' MTU"),
    (("--l3fwd", "/nowhere/l3fwd", "--verified"), "--verified: DPDK's null driver cannot tell other programs of it"),
    (("--l3fwd", "/nowhere/l3fwd"), "/nowhere/l3fwd"),
    (("--vpp", "/nowhere/bin/vpp"), "/nowhere/bin/vpp"),
    (("--grout", "/nowhere/grout"), "/nowhere/grout"),
])
def test_forward_refuses_what_it_cannot_do(options, message, tmp_path):
    few = ("--rounds", "1", "--packets", "10000", "--case", "4r1e", "--no-huge", "--destinations", "4096")
    done = subprocess.run(
        [binary(), "bench", "forward", *few, *options], capture_output=True, text=True, timeout=110,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode != 0 and message in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == [], "files are left behind"


def test_sync_measures_every_method(tmp_path):
    plot = tmp_path / "rates.svg"
    found = bench("sync", "--table", "synthetic:20000", "--rounds", 1, "--seconds", 0.05, "--plot", plot)
    names = ["global-mutex", "thread-mutex", "rwlock", "rcu-mb", "rcu-membarrier", "rcu-qsbr", "double-buffer"]
    assert [one["method"] for one in found] == names
    for one in found:
        assert one["median"]["mpps_quiet"] > 0 and one["median"]["changes_per_s"] > 0, one
        assert 0 < one["median"]["sync_us"]["min"] <= one["median"]["sync_us"]["max"], one
    assert "rcu-qsbr" in plot.read_text()
    assert (tmp_path / "rates-time.svg").exists()


@pytest.mark.parametrize("family", [(), ("--ipv6",)], ids=["IPv4", "IPv6"])
def test_rfc2544_finds_what_the_router_can(family, tmp_path):
    plot = tmp_path / "throughput.svg"
    found = bench(
        "rfc2544", *family, "--size", 128, "--seconds", 0.1, "--repeats", 1, "--resolution", 10, "--pdr", 100,
        "--test", "throughput,loss,latency", "--plot", plot,
    )
    assert [one["size"] for one in found] == [128]
    # The throughput depends on the other load of the machine; the results must be consistent.
    assert 0 <= found[0]["ndr_pps"] <= found[0]["pdr_pps"] <= found[0]["highest_pps"]
    assert all(0 <= at["share"] <= 1 for at in found[0]["loss"])
    assert min(at["share"] for at in found[0]["loss"]) < 1
    if found[0]["pdr_pps"] > 0:
        assert found[0]["latency"]["delay_ns"]["min"] > 0
    assert len(found[0]["loss"]) >= 2
    assert plot.read_text().startswith("<svg")

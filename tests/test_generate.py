"""`turnpike generate` through a router: the tester has a port on either side."""

import json
import subprocess
from pathlib import Path

import pytest

from lib.lab import LEFT_MAC, PORTS, RIGHT_MAC
from lib.netns import veth
from lib.router import binary


class Bench:
    """A namespace with an interface to each of the router's ports."""

    def __init__(self, lab):
        self.inside, self.router_side = lab.namespace("tester", quiet=True), lab.namespace("router", quiet=True)
        for name, mac in (("left", LEFT_MAC), ("right", RIGHT_MAC)):
            veth(self.router_side, f"tp-{name}", self.inside, f"g-{name}", mac_a=mac)
        self.router = lab.router(self.router_side, PORTS)

    def generate(self, *options, check=True):
        """Runs it from left to right and returns its report."""
        command = [
            binary(), "generate", "--device", "g-left", "--receive", "g-right",
            "--to-mac", LEFT_MAC, "--json", "--cores", "0,0", "--no-huge", *map(str, options),
        ]
        done = subprocess.run(
            self.inside.command(*command), capture_output=True, text=True, timeout=60
        )
        if not check:
            return done
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def tester(module_lab):
    made = Bench(module_lab)
    yield made
    made.router.stop()


@pytest.mark.alone
def test_nothing_is_lost_at_a_gentle_rate(tester):
    # The first packet triggers the neighbour's resolution; more may wait for it than the queue holds.
    tester.generate("--to", "10.0.2.2", "--from", "10.0.1.2", "--count", 5, "--rate", "5pps")
    report = tester.generate(
        "--to", "10.0.2.2", "--from", "10.0.1.2", "--rate", "5kpps", "--count", 10_000
    )
    assert report["sent"] == 10_000
    # Time that a busy machine did not give to the sender is reported separately.
    seconds = report["sent"] / report["sent_pps"] - report["behind_s"]
    assert abs(report["sent"] / seconds - 5000) < 10
    received = report["received"]
    assert (received["packets"], received["lost"]) == (10_000, 0)
    assert (received["duplicates"], received["reordered"]) == (0, 0)
    assert 0 < received["delay_ns"]["min"] <= received["delay_ns"]["p50"] < 1_000_000_000
    assert sum(bin["packets"] for bin in received["histogram"]) == 10_000
    counters = tester.router.counters()
    assert counters["sent"] >= 10_000


@pytest.mark.alone
def test_ipv6_and_mixed_sizes(tester):
    options = ("--to", "fd00:2::2", "--from", "fd00:1::2", "--size", "84,512,1518")
    tester.generate(*options, "--count", 5, "--rate", "5pps")
    report = tester.generate(*options, "--rate", "3kpps", "--count", 3000)
    assert report["received"]["packets"] == 3000
    # Three sizes in turn: the mean frame has 704.67 bytes.
    bits = report["sent_bps"] / report["sent_pps"] / 8
    assert abs(bits - (84 + 512 + 1518) / 3) < 1


@pytest.mark.alone
def test_many_flows_find_every_host(tester):
    options = ("--to", "flows:20@10.0.2.16/28", "--from", "10.0.1.2")
    refused = tester.generate(*options, check=False)
    assert refused.returncode == 1
    assert "has fewer than 20 addresses" in json.loads(refused.stdout)["error"]
    options = ("--to", "flows:16@10.0.2.16/28", "--from", "10.0.1.2")
    tester.generate(*options, "--count", 64, "--rate", "50pps")
    report = tester.generate(*options, "--count", 1600, "--rate", "2kpps")
    assert report["received"]["lost"] == 0
    found = {n["address"] for n in tester.router.show("neighbours")}
    assert {f"10.0.2.{host}" for host in range(16, 32)} <= found


def test_what_the_router_drops_is_lost(tester):
    report = tester.generate(
        "--to", "203.0.113.9", "--from", "10.0.1.2", "--count", 200, "--rate", "1kpps",
        "--wait-ms", 100,
    )
    assert report["sent"] == 200
    assert report["received"]["lost"] == 200
    assert report["received"]["loss"] == 1.0


def script(tester, file, *arguments):
    command = [binary(), "generate", "--script", file, "--cores", "0,0", "--no-huge", "--", *map(str, arguments)]
    return subprocess.run(tester.inside.command(*command), capture_output=True, text=True, timeout=120)


def test_flows_of_a_script_run_together_and_one_that_goes_astray_is_named(tester, tmp_path):
    file = tmp_path / "both.lua"
    file.write_text("""
        local tester = require "tester"
        local ports = tester.open { devices = { "g-left", "g-right" } }
        local right = { from = 1, mac = tester.arguments[1], source = "10.0.1.2", destination = "10.0.2.2" }
        local function flow(fields)
            local made = { count = 500, rate = "2kpps", to = 2, full = "wait" }
            for name, value in pairs(right) do made[name] = value end
            for name, value in pairs(fields) do made[name] = value end
            return made
        end
        local back = { from = 2, to = 1, mac = tester.arguments[2], source = "10.0.2.2", destination = "10.0.1.2" }
        tester.trial { flow { count = 5, rate = "5pps" }, flow(back) }
        print(tester.json(tester.trial { flow {}, flow(back), flow { to = 1, count = 100 }, flow { dscp = { 0, 48 } } }))
    """)
    done = script(tester, file, LEFT_MAC, RIGHT_MAC)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [one["sent"] for one in results] == [500, 500, 100, 500]
    received = [one["received"] for one in results]
    assert [(one["packets"], one["lost"], one["astray"]) for one in received] == [
        (500, 0, 0), (500, 0, 0), (0, 100, 100), (500, 0, 0)
    ]


def test_the_example_of_a_mesh_finds_rates_in_both_directions(tester):
    ends = [f"g-left={LEFT_MAC}=10.0.1.2", f"g-right={RIGHT_MAC}=10.0.2.2"]
    example = Path(__file__).parent.parent / "examples/tester/mesh.lua"
    done = script(tester, example, *ends, "highest=2000", "seconds=0.2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The rates depend on the other load of the machine; the results must be consistent.
    assert found["ndr"].get("lower", 0) <= found["pdr"].get("lower", 0) <= 2000
    assert [one["received"]["astray"] for one in found["flows"]] == [0, 0]
    absent = script(tester, example, "nosuch0=02:00:00:00:00:01=10.0.1.2", ends[1])
    assert absent.returncode == 1 and "device nosuch0 not found; known: " in absent.stderr, absent
    wrong = script(tester, example, ends[0], "speed=9")
    assert wrong.returncode == 1 and "speed=9: write DEVICE=MAC=ADDRESS" in wrong.stderr, wrong


def test_the_example_of_delays_measures_at_shares_of_the_rate(tester):
    ends = [f"g-left={LEFT_MAC}=fd00:1::2", f"g-right={RIGHT_MAC}=fd00:2::2"]
    example = Path(__file__).parent.parent / "examples/tester/delay.lua"
    done = script(tester, example, *ends, "highest=1000", "seconds=0.2", "shares=10,100")
    # A machine under load may lose packets at every rate: that is named.
    if done.returncode != 0:
        assert "lost at every rate" in done.stderr, done
        return
    delays = json.loads(done.stdout)["delays"]
    assert [one["share"] for one in delays] == [10, 100]
    for one in delays:
        assert 0 < one["typical_us"] <= one["worst_case_us"] <= one["longest_us"]
        assert one["variation_us"] < one["worst_case_us"]


@pytest.mark.parametrize("options,message", [
    (("--to", "10.0.2"), "destination 10.0.2: write an address"),
    (("--to", "10.0.2.2", "--size", 63), "size 63: 64 to 9218 bytes"),
    (("--to", "fd00::1", "--size", 64), "at least 84 bytes"),
    (("--to", "10.0.2.2", "--rate", "fast"), "rate fast"),
    (("--to", "10.0.2.2", "--from", "fd00::1"), "of the other family"),
    (("--to", "table:/no/such/file",), "/no/such/file"),
])
def test_bad_requests_are_named(tester, options, message):
    done = tester.generate(*options, check=False)
    assert done.returncode == 1
    assert message in json.loads(done.stdout)["error"], done


def by_itself(*options):
    """A generator that needs no router; returns its report."""
    command = [binary(), "generate", "--to-mac", LEFT_MAC, "--to", "10.0.0.1", "--json", "--no-huge", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("cores", [("--cores", 0), ()], ids=["by turns", "two threads"])
def test_frames_of_all_sizes_come_back_over_a_ring(cores):
    report = by_itself(
        "--device", "net_ring0", "--receive", "same", "--size", "64,1518,9218", "--count", 3000,
        "--rate", "20kpps", *cores,
    )
    assert (report["sent"], report["received"]["packets"]) == (3000, 3000)
    assert abs(report["sent_bps"] / report["sent_pps"] / 8 - (64 + 1518 + 9218) / 3) < 1


def test_a_full_device_loses_packets_only_if_that_is_wanted():
    # The ring has no reader; it has 1,023 places.
    report = by_itself("--device", "net_ring0", "--count", 3000, "--full", "lose")
    assert (report["sent"], report["refused"]) == (3000, 3000 - 1023)
    waiting = by_itself("--device", "net_ring0", "--count", 3000, "--seconds", 0.2, "--full", "wait", "--rate", "max")
    assert (waiting["sent"], waiting["refused"]) == (1023, 0)


def test_memif_joins_two_ends(tmp_path):
    link = f"socket={tmp_path}/link.sock,socket-abstract=no"
    report = by_itself(
        "--device", f"net_memif0,role=server,{link}", "--receive", f"net_memif1,role=client,{link}",
        "--count", 3000, "--rate", "20kpps", "--cores", 0,
    )
    assert report["received"]["packets"] == 3000


def test_a_tap_carries_to_the_kernel_and_back(lab):
    # Two TAP devices, joined by a bridge of the kernel's.
    space = lab.namespace("taps", quiet=True)
    for name in ("tap-a", "tap-b"):
        space.run("ip", "tuntap", "add", "dev", name, "mode", "tap", "multi_queue")
    space.run("ip", "link", "add", "bridge", "type", "bridge")
    for name in ("tap-a", "tap-b"):
        space.run("ip", "link", "set", name, "master", "bridge", "up")
    space.run("ip", "link", "set", "bridge", "up")
    command = space.command(
        binary(), "generate", "--to-mac", "ff:ff:ff:ff:ff:ff", "--to", "10.0.0.1", "--json", "--no-huge",
        "--device", "net_tap0,iface=tap-a,persist", "--receive", "net_tap1,iface=tap-b,persist",
        "--count", 2000, "--rate", "5kpps", "--cores", 0, "--wait-ms", 1000,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["received"]["packets"] >= 1900

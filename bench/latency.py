#!/usr/bin/env python3
"""The delay of 64-byte frames by load, the routers by turns on one core.

turnpike   memif links to the generator, which has another core
l3fwd      DPDK's example on the same links (`scripts/build-l3fwd.sh`), with `--lookup=fib`
af_xdp     Turnpike on veth interfaces
linux      the kernel's forwarding on the same

Loads are shares of the highest rate with at most 0.5 % loss, found by `turnpike bench rfc2544` (RFC 9971) beforehand: of
the slower of the two routers on a kind of link, so that both have the same rates. (The rate without any loss is one of
the machine where cores are taken away at times.) Delays are from the generator's stamp to the receiver's, in
microseconds: the links are part of them.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common

SHARES = [1, 10, 50, 90]
ROWS = ["turnpike", "l3fwd", "af_xdp", "linux"]
WHAT = ["min", "p50", "p999", "max"]


class L3fwd(common.Veths):
    """l3fwd with memif links to a generator, with the addresses of `Memifs`."""

    link, end = common.Memifs.link, common.Memifs.end

    def __init__(self, lab, core):
        self.tester = lab.namespace("tester", quiet=True)
        self.directory = tempfile.TemporaryDirectory()
        self.macs = {port: f"02:00:00:00:{port:02x}:01" for port in (1, 2)}
        place = Path(self.directory.name)
        (place / "routes4").write_text("R10.1.0.0/16 0\nR10.2.0.0/16 1\n")
        (place / "routes6").write_text("R2000::/3 1\n")
        built = subprocess.run([common.ROOT / "scripts/build-l3fwd.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout
        program = next(path for path in built.split() if Path(path).name == "l3fwd")
        links = [f"--vdev={self.link('server', port, mac)}" for port, mac in self.macs.items()]
        self.log = open(place / "log", "w+")
        self.process = subprocess.Popen(
            self.tester.command(
                program, "-l", core, "--no-pci", "--no-huge", "-m", 1280, "--no-shconf", *links, "--", "-p", 3, "--lookup=fib", "--parse-ptype",
                "-P", f"--config=(0,0,{core}),(1,0,{core})", f"--rule_ipv4={place}/routes4", f"--rule_ipv6={place}/routes6",
                *(f"--eth-dest={port - 1},{mac[:-1]}2" for port, mac in self.macs.items()),
            ),
            stdout=self.log, stderr=self.log,
        )
        deadline = time.monotonic() + 60
        while "Checking link status" not in (said := (place / "log").read_text()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"l3fwd does not start: {said}")
            time.sleep(0.1)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def routers(lab, row, core):
    """The router of a row, on its links."""
    # As l3fwd does: a forwarder that sleeps when there is little to do adds the time to wake up.
    forward = common.forwarders_on([core], 'wait = "poll"')
    if row == "turnpike":
        return common.Memifs(lab, config=forward)
    if row == "l3fwd":
        return L3fwd(lab, core)
    return common.Veths(lab, "kernel" if row == "linux" else "turnpike", config=forward)


# Opens the links once: a router takes a tenth of a second to see that a link is up.
TRIALS = """
local tester = require "tester"
local left, right, mac, seconds = unpack(tester.arguments)
tester.open { devices = { left, right } }
local function send(rate, time)
    return tester.trial({ {
        from = 1, to = 2, mac = mac, source = "10.1.0.2", destination = "10.2.0.2", rate = rate, seconds = time, wait_ms = 200,
    } })[1].received
end
for _ = 1, 20 do
    if send(1000, 0.5).lost == 0 then break end
end
local found = {}
for number = 5, #tester.arguments do
    found[#found + 1] = send(tester.arguments[number] + 0, seconds + 0)
end
print(tester.json(found))
"""

LINKS = {"turnpike": "memif", "l3fwd": "memif", "af_xdp": "veth", "linux": "veth"}


def highest(wires, seconds, core):
    """The highest rate with at most 0.5 % loss, in packets per second."""
    from lib.router import binary

    found = subprocess.run(
        wires.tester.command(
            binary(), "bench", "rfc2544", "--device", wires.end(1), "--receive", wires.end(2), "--to-mac", wires.macs[1],
            "--from", "10.1.0.2", "--to", "10.2.0.2", "--size", 64, "--test", "throughput", "--seconds", seconds / 2,
            "--resolution", 5, "--cores", core, "--no-huge", "--json",
        ),
        capture_output=True, text=True,
    )
    if found.returncode != 0:
        raise RuntimeError(found.stderr)
    return json.loads(found.stdout)[0]["pdr_pps"]


def with_router(row, work):
    """Calls `work` with the links of a row's router, and the generator's core."""
    from lib.lab import Lab

    generator, core = common.cores()[0], common.cores()[-1]
    lab = Lab()
    try:
        wires = routers(lab, row, core)
        try:
            return work(wires, generator)
        finally:
            if isinstance(wires, L3fwd):
                wires.close()
    finally:
        lab.close()


def measure(row, rates, given):
    """Delays of a row by share of its link's rate, in microseconds."""
    most = min(rate for other, rate in rates.items() if LINKS[other] == LINKS[row])

    rates = [max(most * share / 100, 1000) for share in SHARES]

    def work(wires, core):
        from lib.router import binary

        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(TRIALS)
            script.flush()
            done = subprocess.run(
                wires.tester.command(
                    binary(), "generate", "--script", script.name, "--cores", core, "--no-huge", "--",
                    wires.end(1), wires.end(2), wires.macs[1], given.seconds, *rates,
                ),
                capture_output=True, text=True,
            )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        received = zip(SHARES, json.loads(done.stdout), strict=True)
        return {share: {what: one["delay_ns"][what] / 1000 for what in WHAT} | {"lost": one["lost"]} for share, one in received}

    return with_router(row, work)


def table(rates, results):
    """The medians of all rounds; of the largest delays the largest too."""
    lines = [
        "| router | at most 0.5 % lost, Mpps | " + " | ".join(f"{share} %" for share in SHARES) + " |",
        "|---|---|" + "---|" * len(SHARES),
    ]
    for row, rounds in results.items():
        cells = []
        for share in SHARES:
            middle = {what: statistics.median(one[share][what] for one in rounds) for what in WHAT}
            worst = max(one[share]["max"] for one in rounds)
            cells.append(f"{middle['p50']:.1f} / {middle['p999']:.0f} / {middle['max']:.0f} ({worst:.0f})")
        lines.append(f"| {row} | {rates[row] / 1e6:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = common.options(__doc__, 5, ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (1)")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ as it is")
    given = parser.parse_args()
    if len(common.cores()) < 2:
        sys.exit("the router and the generator need a core each: this machine has one")
    about, rows = common.machine(), given.rows.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        sys.exit(f"--rows {unknown[0]}: not found; known: {', '.join(ROWS)}")
    rates = {row: with_router(row, lambda wires, core: highest(wires, given.seconds, core)) for row in rows}
    print(f"rates: {rates}", file=sys.stderr)
    results = common.rounds(given.runs, rows, lambda row: measure(row, rates, given))
    drawn = table(rates, results)
    print(common.named(about))
    print(drawn)
    if not given.no_docs:
        common.record(common.ROOT / "docs/benchmarks.md", "latency", drawn)
    common.write(given.json, about, rates=rates, runs=results)


if __name__ == "__main__":
    common.run(main)

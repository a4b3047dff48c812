#!/usr/bin/env python3
"""The delay of 64-byte frames by load, the routers by turns on one core.

turnpike   memif links to the generator, which has another core
l3fwd      DPDK's example on the same links (`scripts/build-l3fwd.sh`), with `--lookup=fib`
vpp        VPP on the same links by its own driver (`scripts/build-vpp.sh`), a worker on the core
af_xdp     Turnpike on veth interfaces
linux      the kernel's forwarding on the same

Loads are shares of the highest rate with at most 0.5 % loss, found by `turnpike bench rfc2544` (RFC 9971) beforehand: of
the slowest router on a kind of link, so that all of them have the same rates. (The rate without any loss is one of
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
ROWS = ["turnpike", "l3fwd", "vpp", "af_xdp", "linux"]
WHAT = ["min", "p50", "p999", "max"]


class Other(common.Veths):
    """Another router with memif links to a generator, with the addresses of `Memifs`."""

    link, end = common.Memifs.link, common.Memifs.end

    def __init__(self, lab):
        self.tester = lab.namespace("tester", quiet=True)
        self.directory = tempfile.TemporaryDirectory()
        self.place = Path(self.directory.name)
        self.macs = {port: f"02:00:00:00:{port:02x}:01" for port in (1, 2)}
        self.log = open(self.place / "log", "w+")

    def start(self, command, is_ready):
        """Starts it and waits until it is ready."""
        self.process = subprocess.Popen(self.tester.command(*command), stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while not is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{Path(command[0]).name} does not start: {self.said()}")
            time.sleep(0.1)

    def said(self):
        return (self.place / "log").read_text()

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


class L3fwd(Other):
    def __init__(self, lab, core):
        super().__init__(lab)
        (self.place / "routes4").write_text("R10.1.0.0/16 0\nR10.2.0.0/16 1\n")
        (self.place / "routes6").write_text("R2000::/3 1\n")
        program = next(path for path in common.built("l3fwd") if Path(path).name == "l3fwd")
        links = [f"--vdev={self.link('server', port, mac)}" for port, mac in self.macs.items()]
        command = [
            program, "-l", core, "--no-pci", "--no-huge", "-m", 1280, "--no-shconf", *links, "--", "-p", 3, "--lookup=fib", "--parse-ptype",
            "-P", f"--config=(0,0,{core}),(1,0,{core})", f"--rule_ipv4={self.place}/routes4", f"--rule_ipv6={self.place}/routes6",
            *(f"--eth-dest={port - 1},{mac[:-1]}2" for port, mac in self.macs.items()),
        ]
        self.start(command, lambda: "Checking link status" in self.said())


class Vpp(Other):
    """Its main thread has the generator's core, and sleeps."""

    def __init__(self, lab, core):
        super().__init__(lab)
        program = Path(common.built("vpp")[0])
        commands = [line for port, mac in self.macs.items() for line in (
            f"create memif socket id {port} filename {self.place}/{port}.sock",
            f"create interface memif id 0 socket-id {port} master hw-addr {mac}",
            f"set interface ip address memif{port}/0 10.{port}.0.1/24",
            f"set ip neighbor memif{port}/0 10.{port}.0.2 {mac[:-1]}2 static",
            f"set interface state memif{port}/0 up",
        )]
        (self.place / "commands").write_text("\n".join(commands) + "\n")
        (self.place / "startup.conf").write_text(f"""
unix {{ nodaemon nosyslog log {self.place}/vpp.log runtime-dir {self.place} cli-listen {self.place}/cli.sock startup-config {self.place}/commands }}
api-segment {{ prefix {self.place.name} }}
cpu {{ main-core {common.cores()[0]} corelist-workers {core} }}
memory {{ main-heap-page-size default }}
buffers {{ page-size default }}
plugins {{ path {program.parents[1]}/lib/vpp_plugins plugin default {{ disable }} plugin memif_plugin.so {{ enable }} }}
""")
        self.start([program, "-c", self.place / "startup.conf"], lambda: (self.place / "2.sock").exists())


OTHERS = {"l3fwd": L3fwd, "vpp": Vpp}


def routers(lab, row, core):
    """The router of a row, on its links."""
    # As l3fwd does: a forwarder that sleeps when there is little to do adds the time to wake up.
    forward = common.forwarders_on([core], 'wait = "poll"')
    if row == "turnpike":
        return common.Memifs(lab, config=forward)
    if row in OTHERS:
        return OTHERS[row](lab, core)
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

LINKS = {row: "veth" if row in ("af_xdp", "linux") else "memif" for row in ROWS}


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
            if isinstance(wires, Other):
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
    # The others are built for it, by name.
    parser.set_defaults(rows="turnpike,l3fwd,af_xdp,linux")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (1)")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ as it is")
    given = parser.parse_args()
    common.need_two_cores()
    about, rows = common.machine(), common.chosen(given, ROWS)
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

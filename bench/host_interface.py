#!/usr/bin/env python3
"""iperf3 TCP between a host and the router itself, by a host interface, beside a plain TAP.

    host -- veth -- [ router ] -- TAP -- iperf3 of the router's machine

What is compared, in turn, with the namespaces made anew each time:

turnpike      a port with a host interface: the frames pass a forwarder and the slow path
plain-tap     DPDK's TAP and AF_PACKET drivers, joined by testpmd, which does nothing but carry
              frames between them: what the way through user space costs at least
kernel        the address on the veth itself, one frame at a time as on a wire

`up` is towards the router, `down` away from it. The round-trip time is that of an idle machine.
Hosts, router and iperf3 share the machine's cores: the rows compare, they are no NIC's throughput.
"""

import json
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import common
from lib.lab import HOST_A_MAC, LEFT_MAC, Lab
from lib.netns import stop_process, veth, wait_for

KINDS = ["turnpike", "plain-tap", "kernel"]
ROUTER = "10.0.1.1"
CONFIG = """
local turnpike = require "turnpike"
turnpike.port "left" { device = "tp-left", address = "10.0.1.1/24", host = { netns = "%s" } }
"""

# DPDK's own TAP driver, joined to the veth by DPDK's own forwarding loop.
TESTPMD = [
    "stdbuf", "-o0", "dpdk-testpmd", "--no-huge", "-m", "256", "--no-pci", "-l", "0,1",
    "--file-prefix", f"turnpike-bench-{os.getpid()}",
    "--vdev", "net_af_packet0,iface=tp-left", "--vdev", f"net_tap0,iface=left,mac={LEFT_MAC}",
    "--", "--forward-mode=io", "--total-num-mbufs=8192", "--auto-start",
]  # fmt: skip


def carry(namespace, space):
    """The process that joins a TAP in `space` and the interface `tp-left` in `namespace`."""
    with tempfile.NamedTemporaryFile("w") as log:
        process = namespace.spawn(*TESTPMD, stdin=subprocess.PIPE, stdout=log, stderr=log)
        if not wait_for(lambda: "Press enter to exit" in Path(log.name).read_text(), 30):
            raise RuntimeError(f"testpmd does not start: {Path(log.name).read_text()[-2000:]}")
    namespace.run("ip", "link", "set", "left", "netns", space.name)
    return process


class Setup:
    """A host and the router's machine, joined by one of the methods."""

    def __init__(self, lab, kind):
        self.host, self.inside = lab.namespace("host"), lab.namespace("router")
        veth(self.inside, "tp-left", self.host, "eth0", LEFT_MAC, HOST_A_MAC)
        self.host.run("ip", "address", "add", "10.0.1.2/24", "dev", "eth0")
        self.space, self.router, self.process = self.inside, None, None
        interface = "tp-left"
        if kind != "kernel":
            self.space, interface = lab.namespace("space"), "left"
        if kind == "turnpike":
            self.router = lab.router(self.inside, CONFIG % self.space.name)
        else:
            # Like the host with the XDP program of a port.
            self.host.run("ethtool", "-K", "eth0", "tso", "off", "gso", "off", "tx", "off")
        if kind == "plain-tap":
            self.process = carry(self.inside, self.space)
            self.space.run("ip", "link", "set", "left", "up")
        if kind == "kernel":
            self.space.run("ethtool", "-K", "tp-left", "tso", "off", "gso", "off")
        self.space.run("ip", "address", "replace", f"{ROUTER}/24", "dev", interface)

    def close(self):
        """Ends the processes that the lab does not end."""
        if self.process:
            stop_process(self.process)
        if self.router:
            self.router.counters()
            self.router.stop()


def measure(kind, seconds):
    """One measurement: Mbit/s both ways and the round-trip time."""
    lab = Lab()
    try:
        setup = Setup(lab, kind)
        try:
            result = {"rtt_us": round_trip(setup.host)}
            for way, options in (("up", []), ("down", ["-R"])):
                result[way] = iperf3(setup, seconds, options)
            return result
        finally:
            setup.close()
    finally:
        lab.close()


def round_trip(host):
    """The median round-trip time of 100 pings, in microseconds."""
    if not wait_for(lambda: "1 received" in host.run("ping", "-c", 1, "-W", 1, ROUTER, check=False).stdout, 20):
        raise RuntimeError("the router's machine does not answer")
    said = host.run("ping", "-n", "-c", 100, "-i", 0.005, ROUTER).stdout
    return statistics.median(float(t) * 1000 for t in re.findall(r"time=([\d.]+) ms", said))


def iperf3(setup, seconds, options):
    """One TCP stream between the host and the router's machine: Mbit/s."""
    server = setup.space.spawn("iperf3", "-s", "-1", stdout=-3, stderr=-3)
    try:
        if not wait_for(lambda: ":5201" in setup.space.run("ss", "-Hltn").stdout):
            raise RuntimeError("iperf3 does not listen")
        said = setup.host.run(
            "iperf3", "-c", ROUTER, "-t", seconds, "-J", *options, timeout=seconds + 30
        )
        return json.loads(said.stdout)["end"]["sum_received"]["bits_per_second"] / 1e6
    finally:
        stop_process(server)


def summary(rounds):
    """The runs of one method, and their medians."""
    figures = {"runs": rounds, "rtt_us_median": statistics.median(r["rtt_us"] for r in rounds)}
    for way in ("up", "down"):
        speeds = [r[way] for r in rounds]
        figures[way] = {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds)}
    return figures


def table(results):
    """The summary as text."""
    lines = [f"{'':<12}{'up Mbit/s':>10}{'min':>8}{'max':>8}{'down':>9}{'min':>8}{'max':>8}{'RTT us':>9}"]
    for kind, result in results.items():
        ways = "".join(
            f"{result[way]['median']:>{width}.0f}{result[way]['min']:>8.0f}{result[way]['max']:>8.0f}"
            for way, width in (("up", 10), ("down", 9))
        )
        lines.append(f"{kind:<12}{ways}{result['rtt_us_median']:>9.0f}")
    return "\n".join(lines)


def main():
    parser = common.options(__doc__, 5, KINDS)
    parser.add_argument("--seconds", type=int, default=3, help="of iperf3 each way (3)")
    options = parser.parse_args()

    about = common.machine()
    say = lambda run: f"up {run['up']:.0f}, down {run['down']:.0f} Mbit/s"  # noqa: E731
    runs = common.rounds(options.runs, options.rows.split(","), lambda kind: measure(kind, options.seconds), say)
    results = {kind: summary(done) for kind, done in runs.items()}
    common.write(options.json, about, seconds=options.seconds, results=results)
    print(f"{common.named(about)}; TCP, 1 stream, {options.runs} runs of {options.seconds} s")
    print(table(results))


if __name__ == "__main__":
    common.run(main)

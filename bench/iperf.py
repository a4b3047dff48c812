#!/usr/bin/env python3
"""iperf3 TCP through Turnpike and through the Linux kernel, over the same topology, in one run.

    host left -- veth -- router -- veth -- host right          (three network namespaces)

For each round and each router the namespaces are made anew, the hosts ping and run iperf3, and
everything is removed. The routers take turns, so that whatever else the machine does hits all of
them alike. The three rows:

turnpike      the hosts as they are; the router's veth ends carry an XDP program, for which the
              kernel makes the hosts cut their data into single frames themselves
kernel        the hosts as they are; the kernel forwards super-frames of up to 64 kB, uncut
kernel-frames the kernel again, the hosts' segmentation offloads off: one frame at a time, which is
              what a router sees on a real wire, and what Turnpike handles in the first row

Of each stream also what RFC 6349 asks for: TCP efficiency (4.2), the share of sent segments that were not sent again,
and the buffer delay (4.3), by how much the round-trip time grows under load. Its transfer time ratio (4.1) needs a
link whose rate is known.

Medians are the result; the minimum and the spread say what they are worth. Hosts, router and
iperf3 share the machine's cores: these numbers compare, they are not a NIC's throughput.
"""

import json
import re
import statistics

import common
from lib.lab import Hosts, Lab
from lib.netns import stop_process, wait_for

ROUTERS = ["turnpike", "kernel", "kernel-frames"]


def kernel_router(hosts):
    """Enables the kernel's forwarding in the router's namespace, with Turnpike's addresses."""
    for side, port in ((1, "tp-left"), (2, "tp-right")):
        hosts.inside.run("ip", "address", "add", f"10.0.{side}.1/24", "dev", port)
        hosts.inside.run("ip", "address", "add", f"fd00:{side}::1/64", "dev", port, "nodad")
    hosts.inside.sysctl("net.ipv4.ip_forward", 1)
    hosts.inside.sysctl("net.ipv6.conf.all.forwarding", 1)


def one_frame_at_a_time(hosts):
    """Disables the hosts' segmentation offloads, as the XDP program on the router's side does."""
    for host in (hosts.left, hosts.right):
        host.run("ethtool", "-K", "eth0", "tso", "off", "gso", "off")


def measure(kind, seconds):
    """One measurement: Mbit/s, retransmissions, and the round-trip times of the idle network and under load."""
    lab = Lab()
    try:
        hosts = Hosts(lab, start=kind == "turnpike")
        if kind != "turnpike":
            kernel_router(hosts)
        if kind == "kernel-frames":
            one_frame_at_a_time(hosts)
        idle = round_trip(hosts)
        result = {"rtt_us": idle, **iperf3(hosts, seconds)}
        result["buffer_delay"] = (result["loaded_rtt_us"] - idle) / idle
        if hosts.router:
            hosts.router.counters()
            hosts.router.stop()
        return result
    finally:
        lab.close()


def round_trip(hosts):
    """The median round-trip time of 100 pings, in microseconds."""
    hosts.left.run("ping", "-n", "-c", 3, "-i", 0.1, "10.0.2.2")
    said = hosts.left.run("ping", "-n", "-c", 100, "-i", 0.005, "10.0.2.2").stdout
    return statistics.median(float(t) * 1000 for t in re.findall(r"time=([\d.]+) ms", said))


def iperf3(hosts, seconds):
    """One TCP stream from left to right."""
    server = hosts.right.spawn("iperf3", "-s", "-1", stdout=-3, stderr=-3)
    try:
        if not wait_for(lambda: ":5201" in hosts.right.run("ss", "-Hltn").stdout):
            raise RuntimeError("iperf3 does not listen")
        said = hosts.left.run("iperf3", "-c", "10.0.2.2", "-t", seconds, "-J", timeout=seconds + 30)
        said = json.loads(said.stdout)
        end, again = said["end"], said["end"]["sum_sent"]["retransmits"]
        segments = end["sum_sent"]["bytes"] / said["start"]["tcp_mss_default"]
        return {
            "mbit_per_s": end["sum_received"]["bits_per_second"] / 1e6,
            "retransmits": again,
            "efficiency": segments / (segments + again),
            "loaded_rtt_us": end["streams"][0]["sender"]["mean_rtt"],
        }
    finally:
        stop_process(server)


def summary(rounds):
    """The runs of one router, and their medians."""
    speeds = [r["mbit_per_s"] for r in rounds]
    return {
        "runs": rounds,
        "mbit_per_s": {
            "median": statistics.median(speeds), "min": min(speeds), "max": max(speeds),
        },
        "rtt_us_median": statistics.median(r["rtt_us"] for r in rounds),
        "retransmits_median": statistics.median(r["retransmits"] for r in rounds),
        "efficiency_median": statistics.median(r["efficiency"] for r in rounds),
        "buffer_delay_median": statistics.median(r["buffer_delay"] for r in rounds),
    }


def table(results):
    """The summary as text."""
    base = results.get("kernel", next(iter(results.values())))["mbit_per_s"]["median"]
    lines = [f"{'router':<14}{'median':>9}{'min':>9}{'max':>9}  Mbit/s {'of kernel':>10}{'RTT us':>9}{'retr.':>7}{'efficiency':>12}{'buffer delay':>14}"]
    for kind, result in results.items():
        speed = result["mbit_per_s"]
        lines.append(
            f"{kind:<14}{speed['median']:>9.0f}{speed['min']:>9.0f}{speed['max']:>9.0f}         "
            f"{speed['median'] / base:>10.2f}{result['rtt_us_median']:>9.0f}{result['retransmits_median']:>7.0f}"
            f"{result['efficiency_median']:>12.3%}{result['buffer_delay_median']:>14.0%}"
        )
    return "\n".join(lines)


def main():
    parser = common.options(__doc__, 5, ROUTERS)
    parser.add_argument("--seconds", type=int, default=4, help="of iperf3 in each run (4)")
    options = parser.parse_args()

    about = common.machine()
    say = lambda run: f"{run['mbit_per_s']:.0f} Mbit/s"  # noqa: E731
    runs = common.rounds(options.runs, options.rows.split(","), lambda kind: measure(kind, options.seconds), say)
    results = {kind: summary(done) for kind, done in runs.items()}
    common.write(options.json, about, seconds=options.seconds, streams=1, results=results)
    print(f"{common.named(about)}; TCP, 1 stream, {options.runs} runs of {options.seconds} s")
    print(table(results))


if __name__ == "__main__":
    common.run(main)

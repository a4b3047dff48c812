#!/usr/bin/env python3
"""The experiment of control and forwarding separation (Uppsala, KTH): how many TCP transactions a second a
program on the router answers, one at a time (a byte there, a byte back, as netperf's TCP_RR does), while the
router forwards as much as its forwarders can.

    client --- veth ------------------------- server          on the control core, whose only other work is control
               flood --> [ forwarders ] --> nowhere           capture files that forwarders play without end

idle           forwarders are there, on every core but control's, and have nothing to do
shared         forwarders on every core, the server's as well, each with as much load as it takes
separated      forwarders, with the same load, on every core but control's
control queue  the same, and the port has a queue for control traffic, which a forwarder on the control core serves

The flood has frames of 64, 512 and 1,518 bytes in turn, to random destinations of a table of 500,000 routes.

Part `own-interface` is the original's: the control traffic has an interface of its own, which the kernel keeps. In
`in-band` it comes by a port, through a forwarder and the slow path, to the port's host interface: the experiment
that the original's authors wished for.

Part `protocols` runs FRR's BGP, OSPF and BFD over the port instead, for `--seconds` minutes a row, and counts the sessions
that are lost.

Part `loading` gives the kernel 500,000 routes, as a routing daemon would, and waits until they are in Turnpike's FIB.

Client and server run on the control core in all rows: they work in turns, and there is no third machine.
"""

import functools
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import common
import moonroute
from lib.lab import Lab
from lib.netns import on_core, veth

ROWS = ["idle", "shared", "separated"]
# In-band; over an interface of its own, control traffic does not pass the port.
IN_BAND_ROWS = [*ROWS, "control queue"]
PUBLISHED = (
    "30,000 transactions a second idle, drastically fewer with forwarding on all eight cores, very close to idle with "
    "forwarding on seven."
)
# BGP's, which control queues select.
PORT = 179

# One end of the transactions, in a separate process: Python's threads would share one lock.
SERVER = """
import socket, sys
listening = socket.create_server((sys.argv[1], %d))
print("ready", flush=True)
connection, _ = listening.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := connection.recv(1):
    connection.sendall(data)
""" % PORT
CLIENT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], %d), 10)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times, end = [], time.monotonic() + float(sys.argv[2])
while (start := time.monotonic()) < end:
    connection.sendall(b"x")
    if not connection.recv(1):
        sys.exit("the server is gone")
    times.append(time.monotonic() - start)
times.sort()
print(len(times) / float(sys.argv[2]), times[len(times) * 99 // 100] * 1e6, times[-1] * 1e6)
""" % PORT

FORWARDING = """
local turnpike = require "turnpike"
turnpike.port "out"   { device = "net_null0,no-rx=1", address = "10.3.0.1/24", host = false, control_queue = false }
turnpike.port "flood" { device = "net_pcap0,%(play)s,infinite_rx=%(flood)d", address = "10.2.0.1/24", host = false,
                        control_queue = false }
turnpike.neighbour "10.3.0.2" { port = "out", mac = "02:00:00:00:03:02" }
turnpike.cores { %(cores)s }
turnpike.forwarders { shed = false, control_queue = %(control_queue)s }
turnpike.import { file = "table.gz", via = "10.3.0.2" }
"""
# A daemon's routes arrive through the kernel.
FOLLOWING = 'turnpike.routes_from { "kernel" }\n'
ROUTES = 500_000
IN_BAND = 'turnpike.port "peer"  { device = "tp-peer", address = "10.1.0.1/24", host = { netns = "%s" } }\n'


def placed(row):
    """The configuration's cores, the control core, and the number of forwarders."""
    control, *others = common.cores()
    if not others:
        sys.exit("one core: nothing can be separated")
    listed = ",".join(map(str, others))
    if row == "shared":
        return f'forward = "{control},{listed}"', control, 1 + len(others)
    return f'control = "{control}", forward = "{listed}"', control, len(others)


def transactions(server_side, client_side, core, seconds):
    """Transactions a second, and the 99th percentile and the slowest in microseconds."""
    with on_core(core):
        server = server_side.spawn(sys.executable, "-c", SERVER, "10.1.0.1", stdout=subprocess.PIPE, text=True)
        assert server.stdout.readline() == "ready\n"
        done = client_side.run(sys.executable, "-c", CLIENT, "10.1.0.1", seconds)
    server.wait(10)
    return [float(word) for word in done.stdout.split()]


class Daemons:
    """FRR at both ends of the link: BFD at 50 ms x 3, OSPF with hellos each second and a dead interval of 4, BGP with
    keepalives each second and a hold time of 3 s."""

    def __init__(self, lab, router_space, client):
        from lib.frr import Frr, bgp
        from lib.netns import wait_for

        self.sides = []
        for number, (space, port, other) in enumerate(((router_space, "peer", 2), (client, "eth0", 1)), start=1):
            bfd = "bfd\n profile fast\n  receive-interval 50\n  transmit-interval 50\n  detect-multiplier 3\n exit\nexit\n"
            ospf = (
                f"interface {port}\n ip ospf hello-interval 1\n ip ospf dead-interval 4\n ip ospf network point-to-point\nexit\n"
                f"router ospf\n ospf router-id 10.1.0.{number}\n network 10.1.0.0/24 area 0\n"
            )
            peer = {f"10.1.0.{other}": (65000 + other, "timers 1 3", "timers connect 1", "bfd profile fast")}
            text = bgp(65000 + number, f"10.1.0.{number}", peer, ["ipv4"])
            self.sides.append(Frr(space, {"bgpd": text, "ospfd": ospf, "bfdd": bfd}))
            lab._made.callback(self.sides[-1].close)
        if not wait_for(self.are_up, 60, 0.5):
            raise RuntimeError(f"the sessions do not come up: {self.states()}")

    def states(self):
        """States of BFD, BGP and OSPF at each side."""
        found = []
        for number, frr in enumerate(self.sides, start=1):
            other = f"10.1.0.{3 - number}"
            peers = frr.json("show bfd peers", daemon="bfdd")
            found.append([peer["status"] for peer in peers])
            found.append([frr.json("show bgp summary", daemon="bgpd").get("ipv4Unicast", {})["peers"][other]["state"]])
            neighbours = frr.json("show ip ospf neighbor", daemon="ospfd")["neighbors"]
            found.append([one.get("nbrState", one.get("state", "")).split("/")[0] for many in neighbours.values() for one in many])
        return found

    def are_up(self):
        try:
            return self.states() == [["up"], ["Established"], ["Full"]] * 2
        except KeyError:
            return False

    def losses(self):
        """Sessions of BFD, BGP and OSPF lost so far."""
        frr = self.sides[1]
        bfd = sum(peer["session-down"] for peer in frr.json("show bfd peers counters", daemon="bfdd"))
        bgp = sum(peer["connectionsDropped"] for peer in frr.json("show bgp neighbors", daemon="bgpd").values())
        return {"bfd": bfd, "bgp": bgp, "ospf": frr.log("ospfd").count("Full -> ")}


# With FCS.
SIZES = [64, 512, 1518]
FRAMES = 3 * 512


@functools.cache
def flood():
    """A full table, and destinations in it."""
    chance = random.Random(4)
    with tempfile.TemporaryDirectory() as directory:
        file, prefixes = moonroute.full_table(directory)
        return file.read_bytes(), [moonroute.inside(chance.choice(prefixes), chance) for _ in range(FRAMES)]


def start(lab, row, in_band, more=""):
    """The router of a row, under its load; the namespace of its host interface, the client's, and the control core."""
    from lib.packets import pcap_file

    cores, control, forwarders = placed(row)
    inside, space, client = lab.namespace("router", quiet=True), lab.namespace("space"), lab.namespace("client")
    client_end = ("eth0", "02:00:00:00:01:01", "02:00:00:00:01:02")
    veth(inside if in_band else space, "tp-peer", client, *client_end)
    client.run("ip", "address", "add", "10.1.0.2/24", "dev", "eth0")
    table, destinations = flood()
    to = [common.frame_to(common.pcap_mac(0), address, size) for address, size in zip(destinations, itertools.cycle(SIZES))]
    play = ",".join(["rx_pcap=in.pcap"] * forwarders)
    settings = {"play": play, "flood": row != "idle", "cores": cores, "control_queue": str(row == "control queue").lower()}
    config = FORWARDING % settings + (IN_BAND % space.name if in_band else "") + more
    return lab.router(inside, config, files={"in.pcap": pcap_file(to), "table.gz": table}), space, client, control


def keep_sessions(row, minutes):
    """Sessions lost in so many minutes."""
    lab = Lab()
    try:
        router, space, client, control = start(lab, row, True)
        with on_core(control):
            daemons = Daemons(lab, space, client)
        before, sent, begun = daemons.losses(), router.show("counters")["sent"], time.monotonic()
        time.sleep(60 * minutes)
        after, took = daemons.losses(), time.monotonic() - begun
        lost = {name: after[name] - before[name] for name in before}
        return lost | {"forwarded_mpps": (router.show("counters")["sent"] - sent) / took / 1e6}
    finally:
        lab.close()


def protocols(given):
    runs = common.rounds(given.runs, ROWS, lambda row: keep_sessions(row, given.seconds))
    total = {row: {name: sum(run[name] for run in done) for name in ("bfd", "bgp", "ospf")} for row, done in runs.items()}
    lines = ["| row | BFD | BGP | OSPF | Mpps forwarded |", "|---|---|---|---|---|"] + [
        f"| {row} | {lost['bfd']} | {lost['bgp']} | {lost['ospf']} "
        f"| {statistics.median(run['forwarded_mpps'] for run in runs[row]):.1f} |"
        for row, lost in total.items()
    ]
    drawn = common.figure(
        "Sessions lost", "", "sessions",
        {name: [(at, lost[name]) for at, lost in enumerate(total.values())] for name in ("bfd", "bgp", "ospf")}, words=ROWS,
    )
    minutes = given.runs * given.seconds
    said = f"In {minutes:g} minutes of each row {sum(total['separated'].values())} sessions were lost with control by itself."
    return common.Part(drawn, runs, said, "nothing: the original counts transactions only.", "\n".join(lines) + "\n")


def switches(router):
    """Times that the scheduler took the core from a forwarder that has one to itself, in total."""
    all_of = router.show("forwarders")["forwarders"]
    return sum(one["interference"]["involuntary_switches"] for one in all_of if "interference" in one)


def measure(row, in_band, seconds):
    lab = Lab()
    try:
        router, space, client, control = start(lab, row, in_band)
        space.run("ip", "address", "replace", "10.1.0.1/24", "dev", "peer" if in_band else "tp-peer")
        before, preempted, begun = router.show("counters")["sent"], switches(router), time.monotonic()
        rate, late, slowest = transactions(space, client, control, seconds)
        took = time.monotonic() - begun
        preempted = (switches(router) - preempted) / took
        forwarded = (router.show("counters")["sent"] - before) / took / 1e6
        return {
            "per_s": rate, "p99_us": late, "slowest_us": slowest, "forwarded_mpps": forwarded, "preempted_per_s": preempted,
        }
    finally:
        lab.close()


def load(row):
    """Seconds until all routes that a daemon adds to the kernel are in Turnpike's FIB."""
    from lib import netlink
    from lib.netns import wait_for

    lab = Lab()
    try:
        router, space, _, control = start(lab, row, True, FOLLOWING)
        index = int(space.run("cat", "/sys/class/net/peer/ifindex").stdout)
        prefixes = [f"{20 + (n >> 16)}.{(n >> 8) & 255}.{n & 255}.0/24" for n in range(ROUTES)]
        messages = list(netlink.ipv4_routes(prefixes, ["10.1.0.2"], [index]))
        last, sent = prefixes[-1].removesuffix("0/24") + "1", router.show("counters")["sent"]
        with on_core(control):
            begun = time.monotonic()
            netlink.write(space, messages)
            written = time.monotonic() - begun
            done = wait_for(lambda: router.show("route", last).get("prefix") == prefixes[-1], 600, 0.02)
            took = time.monotonic() - begun
        if not done:
            raise RuntimeError("the router does not follow the kernel's table")
        forwarded = (router.show("counters")["sent"] - sent) / took / 1e6
        return {"seconds": took, "kernel_seconds": written, "forwarded_mpps": forwarded}
    finally:
        lab.close()


def loading(given):
    runs = common.rounds(given.runs, ROWS, load)
    middle = {row: {key: statistics.median(run[key] for run in done) for key in done[0]} for row, done in runs.items()}
    lines = ["| row | in the FIB after, s (least) | in the kernel after, s | Mpps forwarded |", "|---|---|---|---|"] + [
        f"| {row} | {one['seconds']:.2f} ({min(run['seconds'] for run in runs[row]):.2f}) | {one['kernel_seconds']:.2f} "
        f"| {one['forwarded_mpps']:.1f} |"
        for row, one in middle.items()
    ]
    drawn = common.figure(
        f"Loading {ROUTES:,} routes", "", "seconds", {"Turnpike": [(at, one["seconds"]) for at, one in enumerate(middle.values())]},
        words=ROWS,
    )
    more = {row: one["seconds"] / middle["idle"]["seconds"] for row, one in middle.items()}
    said = f"Loading takes {more['shared']:.2f} times as long as idle where control shares its core with a forwarder, and " \
           f"{more['separated']:.2f} times where it has one to itself."
    return common.Part(drawn, runs, said, "nothing: the original counts transactions only.", "\n".join(lines) + "\n")


def table(runs):
    """A line for each row: medians, the least beside the rate."""
    lines = [
        "| row | transactions/s (least) | 99th percentile, us | slowest, us | Mpps forwarded | forwarders preempted, /s |",
        "|---|---|---|---|---|---|",
    ]
    for row, done in runs.items():
        middle = {key: statistics.median(run[key] for run in done) for key in done[0]}
        least = min(run["per_s"] for run in done)
        lines.append(
            f"| {row} | {middle['per_s']:,.0f} ({least:,.0f}) | {middle['p99_us']:,.0f} | {middle['slowest_us']:,.0f} "
            f"| {middle['forwarded_mpps']:.1f} | {middle['preempted_per_s']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def part(in_band):
    def run(given):
        rows = IN_BAND_ROWS if in_band else ROWS
        runs = common.rounds(given.runs, rows, lambda row: measure(row, in_band, given.seconds))
        rates = {row: statistics.median(run["per_s"] for run in done) for row, done in runs.items()}
        drawn = common.figure(
            "TCP transactions answered on the router", "", "transactions/s",
            {"Turnpike": list(enumerate(rates.values()))}, words=rows,
        )
        of_idle = {row: rate / rates["idle"] for row, rate in rates.items()}
        said = f"Of the idle rate {of_idle['shared']:.0%} are left where control shares its core with a forwarder, and " \
               f"{of_idle['separated']:.0%} where it has one to itself."
        if in_band:
            said += f" With a control queue {of_idle['control queue']:.0%} are left."
        return common.Part(drawn, runs, said, PUBLISHED, table(runs))

    return run


PARTS = {"own-interface": part(False), "in-band": part(True), "protocols": protocols, "loading": loading}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS, runs=5))

#!/usr/bin/env python3
"""Share of good traffic that is forwarded during an attack, and the attack's effect on the control plane.

    generate --- left  [ router ] right --- generate      good traffic, at a rate below what is lost
    attack   --- flood [        ]                         as fast as the forwarder takes it
    probe    --- peer  [        ] peer's host interface   ARP requests and OSPF hellos, some a second

The attack is a capture file that the forwarder's own core plays without end (DPDK's pcap driver), so
it costs the forwarder as much as it ever can. Each round starts a router for each row anew; rows take
turns. `share` is the good traffic received, relative to that of the row `none` in the same round.
A row's probes are lost if they did not pass their class to the slow path.
"""

import json
import random
import statistics
import struct
import subprocess
import time

import common
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Lab
from lib.netns import veth, wait_for
from lib.packets import ethernet, ipv4, ipv6, pattern, pcap_file
from lib.router import binary

# The address of the first capture-file port, as its driver makes it.
FLOOD_MAC = "02:70:63:61:70:00"
PEER_MAC, PROBE_MAC = "02:00:00:00:03:01", "02:00:00:00:03:02"

CONFIG = """
local turnpike = require "turnpike"
turnpike.port "left"   { device = "tp-left",   address = "10.0.1.1/24" }
turnpike.port "right"  { device = "tp-right",  address = "10.0.2.1/24" }
turnpike.port "peer"   { device = "tp-peer",   address = "10.0.3.1/24", host = { netns = "%(space)s" } }
turnpike.port "narrow" { device = "tp-narrow", address = "10.0.4.1/24" }
turnpike.port "flood"  { device = "net_pcap0,rx_pcap=in.pcap,%(infinite)s", address = "10.9.0.1/16" }
turnpike.neighbour "10.0.2.2" { port = "right",  mac = "%(right)s" }
turnpike.neighbour "10.0.4.2" { port = "narrow", mac = "02:00:00:00:04:02" }
turnpike.neighbour "10.9.0.2" { port = "flood",  mac = "%(right)s" }
"""


def flood(packet, ethertype=0x0800):
    return ethernet(FLOOD_MAC, HOST_B_MAC, ethertype, packet)


def garbage(number):
    """Random bytes: for the router, of any type and with any content."""
    chance = random.Random(number)
    ethertype = chance.choice([0x0800, 0x0800, 0x86DD, 0x86DD, 0x0806, chance.randrange(0x600, 0x10000)])
    content = bytearray(chance.randbytes(chance.randrange(1, 200)))
    if ethertype in (0x0800, 0x86DD):
        content[0] = (0x40 if ethertype == 0x0800 else 0x60) | content[0] & 0xF
    return flood(bytes(content), ethertype)


# The frames of each attack, and true if the fast path alone drops them.
ATTACKS = {
    "none": ([flood(ipv4("10.9.0.2", "10.0.2.2", pattern(18)))], None),
    "expired": ([flood(ipv4("10.9.0.2", "10.0.2.2", pattern(18), ttl=1, ident=n)) for n in range(256)], False),
    "scan": ([flood(ipv4("10.9.0.2", f"10.9.{n // 250}.{n % 250 + 3}", pattern(18))) for n in range(4096)], False),
    "options": ([flood(ipv4("10.9.0.2", "10.0.2.2", pattern(18), options=b"\x07\x07\x04\0\0\0\0\0"))] * 64, False),
    "too-big": ([flood(ipv4("10.9.0.2", "10.0.4.2", pattern(1000), flags=2))] * 64, False),
    "martians": ([flood(ipv4(f"127.0.0.{n}", "10.0.2.2", pattern(18))) for n in range(64)]
                 + [flood(ipv6("::1", "fd00:2::2", pattern(18)), 0x86DD)] * 64, True),
    "garbage": ([garbage(n) for n in range(4096)], True),
}


class Setup:
    """A router under one of the attacks."""

    def __init__(self, lab, attack):
        self.inside, self.space = lab.namespace("router", quiet=True), lab.namespace("space")
        self.tester, self.probe = lab.namespace("tester", quiet=True), lab.namespace("probe", quiet=True)
        veth(self.inside, "tp-left", self.tester, "g-left", LEFT_MAC, HOST_A_MAC)
        veth(self.inside, "tp-right", self.tester, "g-right", RIGHT_MAC, HOST_B_MAC)
        veth(self.inside, "tp-peer", self.probe, "probe", PEER_MAC, PROBE_MAC)
        veth(self.inside, "tp-narrow", lab.namespace("narrow", quiet=True), "n-narrow", mtu=600)
        self.raw = lab.raw(self.probe, "probe")
        frames, _ = ATTACKS[attack]
        config = CONFIG % {
            "space": self.space.name, "right": HOST_B_MAC,
            "infinite": "infinite_rx=" + ("0" if attack == "none" else "1"),
        }
        self.router = lab.router(self.inside, config, files={"in.pcap": pcap_file(frames)})
        self.space.run("ip", "address", "replace", "10.0.3.1/24", "dev", "peer")

    def classes(self):
        """Packets accepted so far, by class."""
        return {row["name"]: row["passed"] for row in self.router.show("protection")["classes"]}

    def generate(self, rate, seconds):
        """The good traffic: a process that sends it and reports."""
        command = [
            binary(), "generate", "--device", "g-left", "--receive", "g-right", "--to-mac", LEFT_MAC,
            "--from", "10.0.1.2", "--to", "10.0.2.2", "--rate", rate, "--seconds", seconds,
            "--cores", "0,0", "--no-huge", "--json",
        ]
        return subprocess.Popen(self.tester.command(*command), stdout=subprocess.PIPE, text=True)


def probes():
    """An ARP request and an OSPF hello to the router."""
    mac = bytes.fromhex(PROBE_MAC.replace(":", ""))
    arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + bytes([10, 0, 3, 2]) + bytes(6) + bytes([10, 0, 3, 1])
    hello = ipv4("10.0.3.2", "224.0.0.5", pattern(44), protocol=89, ttl=1)
    return ethernet("ff:ff:ff:ff:ff:ff", PROBE_MAC, 0x0806, arp), ethernet("01:00:5e:00:00:05", PROBE_MAC, 0x0800, hello)


def measure(attack, rate, seconds):
    """One row of one round."""
    lab = Lab()
    try:
        setup = Setup(lab, attack)
        if attack != "none":
            wait_for(lambda: setup.router.show("counters")["received"] > 100_000, 10)
        before, received = setup.classes(), setup.router.show("counters")["received"]
        began = time.monotonic()
        good = setup.generate(rate, seconds)
        sent = 0
        while good.poll() is None:
            setup.raw.send(*probes())
            sent += 1
            time.sleep(0.02)
        elapsed = time.monotonic() - began
        report = json.loads(good.stdout.read())
        wait_for(lambda: setup.classes()["routing"] >= before["routing"] + sent, 2)
        after, counters = setup.classes(), setup.router.show("counters")
        refused = {k: n for k, n in counters["dropped"].items() if n and k.startswith("refused-")}
        result = {
            "sent": report["sent"], "received": report["received"]["packets"],
            "share_of_sent": report["received"]["packets"] / report["sent"],
            "behind_s": report["behind_s"],
            "attack_pps": (counters["received"] - received - report["sent"] - 2 * sent) / elapsed,
            "probes": sent,
            "arp_lost": max(0, sent - (after["neighbour"] - before["neighbour"])),
            "hello_lost": max(0, sent - (after["routing"] - before["routing"])),
            "refused": refused,
        }
        setup.router.stop()
        return result
    finally:
        lab.close()


def main():
    parser = common.options(__doc__, 5, list(ATTACKS))
    parser.add_argument("--rate", default="100kpps", help="of the good traffic (100kpps)")
    parser.add_argument("--seconds", type=float, default=3, help="for each measurement (3)")
    options = parser.parse_args()
    rows = ["none"] + [row for row in options.rows.split(",") if row != "none"]

    about = common.machine()
    runs = common.rounds(options.runs, rows, lambda row: measure(row, options.rate, options.seconds))
    for done in runs.values():
        for run, quiet in zip(done, runs["none"]):
            run["share"] = run["share_of_sent"] / quiet["share_of_sent"]
    common.write(options.json, about, results=runs)
    print(f"{common.named(about)}; {options.rate} of good traffic, {options.seconds:g} s, {options.runs} rounds")
    print(f"{'':<10}{'attack Mpps':>12}{'received':>10}{'share':>8}{'min':>8}{'ARP lost':>12}{'hello lost':>12}")
    for row, done in runs.items():
        middle = {key: statistics.median(run[key] for run in done) for key in ("attack_pps", "share_of_sent", "share")}
        least = min(run["share"] for run in done)
        arp, hello, sent = (sum(run[key] for run in done) for key in ("arp_lost", "hello_lost", "probes"))
        print(f"{row:<10}{max(0, middle['attack_pps']) / 1e6:>12.2f}{middle['share_of_sent']:>10.4f}"
              f"{middle['share']:>8.3f}{least:>8.3f}{f'{arp}/{sent}':>12}{f'{hello}/{sent}':>12}")


if __name__ == "__main__":
    common.run(main)

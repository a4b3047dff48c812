#!/usr/bin/env python3
"""Packet filters compared with nftables: forwarding rate by the number of rules that a packet does not match.

rules      Turnpike with the rules that `turnpike convert` makes of nftables', nftables with the same rules one by one,
           and nftables with one set of concatenated intervals, which only rules of one form can become
"""

import random
import statistics
import subprocess
import sys
import tempfile

import common
from lib.lab import Lab
from lib.router import binary

# Thousand packets per second: more than either forwards.
OFFERED = 800
RULES = [0, 10, 100, 1000, 10000]
ROWS = ["turnpike", "nftables", "nftables, a set"]


def rules(count):
    """Source network, destination network, protocol and ports; none matches the generator's packets."""
    chance = random.Random(count)
    byte = lambda: chance.randrange(256)  # noqa: E731

    made = {}
    while len(made) < count:
        # Of each two rules, one has the generator's networks, and differs from its packets only by the port; intervals
        # of a set must not overlap, so these have no ranges.
        first, near = chance.randrange(10, 60000), chance.random() < 0.5
        source = f"10.1.0.{byte() & 0xf8}/29" if near else f"192.{byte()}.{byte()}.0/24"
        destination = f"10.2.0.{byte() & 0xfc}/30" if near else f"203.0.{byte()}.{byte()}"
        ports = str(first) if near or chance.random() < 0.5 else f"{first}-{first + chance.randrange(1, 100)}"
        made[source, destination, chance.choice(["tcp", "udp"]), ports] = None
    return list(made)


def chain(body, sets=""):
    head = "type filter hook forward priority filter; policy accept;"
    return f"table ip peer {{\n{sets}\nchain forward {{\n{head}\n{body}\n}}\n}}\n"


def one_by_one(count):
    rule = "ip saddr {} ip daddr {} {} dport {} drop"
    return chain("\n".join(rule.format(*one) for one in rules(count)))


def as_set(count):
    elements = [f"{source} . {destination} . {protocol} . {ports}" for source, destination, protocol, ports in rules(count)]
    inside = f"elements = {{ {', '.join(elements)} }}" if elements else ""
    sets = f"set rules {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags interval\n{inside}\n}}"
    return chain("ip saddr . ip daddr . meta l4proto . th dport @rules drop", sets)


def converted(lab, count):
    """Turnpike's configuration of the same rules."""
    beside = lab.namespace("rules", quiet=True)
    beside.run("nft", "-f", "-", input=one_by_one(count))
    listed = subprocess.run(beside.command("nft", "list", "ruleset"), capture_output=True, text=True, check=True).stdout
    with tempfile.NamedTemporaryFile("w", suffix=".nft") as file:
        file.write(listed)
        file.flush()
        return subprocess.run([binary(), "convert", "nftables", file.name], capture_output=True, text=True, check=True).stdout


def wires(lab, row, count):
    core = common.cores()[-1]
    if row == "turnpike":
        config = f'turnpike.forwarders {{ cores = "{core}" }}\n'
        if count == 0:
            return common.Veths(lab, "turnpike", config=config)
        text = converted(lab, count)
        return common.Veths(lab, "turnpike", config=config, before=text, settings={1: ', filter = "forward"'})
    made = common.Veths(lab, "kernel")
    # Otherwise the kernel would forward on the generator's core, at the generator's expense.
    made.router_side.run("sh", "-c", f"echo {1 << core:x} > /sys/class/net/tp-1/queues/rx-0/rps_cpus")
    if count:
        made.router_side.run("nft", "-f", "-", input=(one_by_one if row == "nftables" else as_set)(count))
    return made


def rate(given, row, count):
    """Thousand packets per second that arrive."""
    lab = Lab()
    try:
        running = wires(lab, row, count).generate(1, 2, f"{OFFERED}kpps", given.seconds)
        return common.report(running)["received"]["packets"] / given.seconds / 1000
    finally:
        lab.close()


def by_rules(given):
    runs = {row: {count: [] for count in RULES} for row in ROWS}
    for number in range(given.runs):
        for count in RULES:
            for row in ROWS:
                runs[row][count].append(rate(given, row, count))
            print(f"run {number + 1}/{given.runs} {count}: {[round(runs[row][count][-1]) for row in ROWS]}", file=sys.stderr)
    middle = {row: [statistics.median(done) for done in by_count.values()] for row, by_count in runs.items()}
    head = "| thousand packets/s | " + " | ".join(f"{count:,} rules" for count in RULES) + " |"
    rows = [f"| {row} | " + " | ".join(f"{rate:.0f} ({min(done):.0f})" for rate, done in zip(rates, runs[row].values())) + " |" for row, rates in middle.items()]
    def more(row):
        return " | ".join(f"{1e6 / rate - 1e6 / middle[row][0]:.0f}" for rate in middle[row][1:])

    rows += [f"| {row}: ns more than without | | {more(row)} |" for row in ROWS]
    table = "\n".join([head, "|" + "---|" * (len(RULES) + 1), *rows]) + "\n"
    series = {row: [(max(1, count), rate) for count, rate in zip(RULES, rates)] for row, rates in middle.items()}
    drawn = common.figure("Forwarding rate by rules", "rules", "thousand packets/s", series, log_x=True)
    at = RULES.index(1000)
    ratio = ", ".join(f"{middle['turnpike'][at] / middle[row][at]:.1f} times {row}" for row in ROWS[1:])
    return common.Part(drawn, runs, f"With 1,000 rules Turnpike forwards {ratio}.", "nothing: no paper of the five has this.", table)


PARTS = {"rules": by_rules}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS, runs=5))

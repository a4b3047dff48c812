#!/usr/bin/env python3
"""A tour of a fabric of routers: its ways, its load, an anycast service; then routers are killed, drained and upgraded
under numbered traffic.

    tour.py [LEAVES] [SPINES]     as root; default: 3 and 2
    QUICK=1 tour.py               without the upgrade of all routers
    tour.py --inventory 3 2       prints the description of the fabric, for Ansible
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import fabric as parts
from fabric import Failed, Fabric, Stream, wait_for

DETECTION_MS = parts.DEFAULTS["fabric_bfd"]["interval_ms"] * parts.DEFAULTS["fabric_bfd"]["multiplier"]


def say(text):
    """A headline."""
    print(f"\n\033[1m== {text}\033[0m", flush=True)


def show(text):
    """Lines of a program, indented."""
    print("\n".join(f"   {line}" for line in text.strip("\n").splitlines()), flush=True)


def picture(fabric):
    """The topology."""
    leaves, spines = fabric.groups["leaves"], fabric.groups["spines"]
    lines = ["  ".join(f"[{name}]" for name in spines), "every spine has a link to every leaf",
             "  ".join(f"[{name}]" for name in leaves)]
    for name in leaves:
        servers = [server for server in fabric.groups["servers"] if server in fabric.neighbours(name)]
        service = ["the anycast service"] if fabric.variables[name].get("fabric_anycast") else []
        lines.append(f"{name}: {', '.join([host_of(name), *servers, *service])}")
    show("\n".join(lines))


def routes(fabric):
    """The routes of a leaf to another, as FRR, the kernel and Turnpike have them."""
    leaf, address = fabric.nodes["leaf1"], fabric.addresses(last_host(fabric))[0]
    show(leaf.vtysh(f"show bgp ipv4 unicast {address.rsplit('.', 1)[0]}.0/24"))
    print()
    show(leaf.space.ip("route", "show", "match", address))
    print()
    show(leaf.command("show", "route", address))


def host_of(leaf):
    """The host behind a leaf."""
    return f"host{leaf.removeprefix('leaf')}"


def last_host(fabric):
    """The host behind the last leaf."""
    return host_of(fabric.groups["leaves"][-1])


def ways(fabric):
    """Packets of one host to another, and the routers on all of their ways."""
    host = fabric.space("host1")
    for address in fabric.addresses(last_host(fabric)):
        show(host.run("ping", "-n", "-c", 3, "-i", 0.2, address))
        show(host.run("traceroute", "-n", "-q", 8, "-w", 2, address))


def load(fabric):
    """TCP over all spines: the packets that each forwarded."""
    target = last_host(fabric)
    server = fabric.space(target).spawn("iperf3", "-s", "-1", stdout=subprocess.DEVNULL)
    address = fabric.addresses(target)[0]
    listens = lambda: ":5201" in fabric.space(target).run("ss", "-Hltn")  # noqa: E731
    wait_for(listens, 20)
    before = {name: fabric.nodes[name].show("counters")["sent"] for name in fabric.groups["spines"]}
    said = fabric.space("host1").run("iperf3", "-c", address, "-P", 16, "-t", 3)
    server.wait(30)
    show("\n".join(line for line in said.splitlines() if "SUM" in line and ("sender" in line or "receiver" in line)))
    for name, count in before.items():
        sent = fabric.nodes[name].show("counters")["sent"] - count
        show(f"{name} forwarded {sent} packets")
        if sent < 1000:
            raise Failed(f"{name} has no part of the load")


def anycast(fabric):
    """The service that two leaves announce: another leaf's flows reach both."""
    leaves = [name for name in fabric.groups["leaves"] if fabric.variables[name].get("fabric_anycast")]
    plain = [text.split("/")[0] for text in parts.ANYCAST]
    for name in leaves:
        serving = fabric.space(name).spawn(sys.executable, parts.TRAFFIC, "serve", name, *plain,
                                           stdout=subprocess.PIPE, text=True)
        serving.stdout.readline()
    middle = next((name for name in fabric.groups["leaves"] if name not in leaves), leaves[0])
    for address in plain:
        answers = fabric.space(host_of(middle)).run(
            sys.executable, parts.TRAFFIC, "ask", 64, address)
        show(f"64 flows from behind {middle} to {address} were answered by {answers.strip()}")


class Loss:
    """Streams of both families during an event, and what they lost."""

    def __init__(self, fabric, what, pairs, bound=None):
        self.what, self.bound = what, bound
        say(what)
        self.streams = [Stream(fabric, *pair) for pair in pairs]
        time.sleep(1)

    def end(self, seconds=1):
        """Stops the streams; returns and prints a line of the account for each; raises if more was lost than must."""
        time.sleep(seconds)
        lines = []
        for account in (stream.stop() for stream in self.streams):
            four, six = account.by_family()
            lines.append(f"{account.name}: {account.sent} sent, lost {four} of IPv4 and {six} of IPv6, "
                         f"on {account.flows_hit()} of {account.flows} flows, for {account.outage_ms():.0f} ms")
            show(lines[-1])
            if self.bound is not None and len(account.lost) > self.bound:
                raise Failed(f"{self.what}: {len(account.lost)} lost")
        return [f"{self.what}: {line}" for line in lines]


def events(fabric):
    """Everything that happens to routers; returns the accounts."""
    hosts, servers = ("host1", last_host(fabric)), ("server1", "server2")
    spines, accounts = [fabric.nodes[name] for name in fabric.groups["spines"]], []
    if len(spines) > 1:
        loss = Loss(fabric, f"{spines[-1].name} is killed (kill -9); BFD notices after {DETECTION_MS} ms", [hosts])
        spines[-1].kill()
        accounts += loss.end(4 * DETECTION_MS / 1000 + 1)
        spines[-1].start()
        fabric.converged()
        loss = Loss(fabric, f"{spines[0].name} is drained, upgraded and returned", [hosts, servers], bound=0)
        upgrade(spines[0])
        accounts += loss.end()
        fabric.converged()
    if os.environ.get("QUICK"):
        return accounts
    loss = Loss(fabric, "All routers are upgraded, one after the other", [servers], bound=0)
    for router in fabric.routers():
        if len(spines) > 1 or router not in spines:
            upgrade(router)
            fabric.converged()
    accounts += loss.end()
    return accounts


def upgrade(router):
    """Another process takes the place of a drained router's."""
    print(f"   {router.name}:", flush=True)
    show(router.drain())
    router.restart()
    show(f"restarted: {router.show('status')['version']}")
    show(router.undrain())


def hints(fabric):
    """Commands to try on a fabric that is left running."""
    leaf, directory = fabric.nodes["leaf1"], fabric.directory
    space = leaf.space.name
    all_spaces = [*fabric.spaces.values(), *(node.space for node in fabric.nodes.values())]
    processes = [process.pid for space in all_spaces for process in space.processes if process.poll() is None]
    spaces = [space.name for space in all_spaces]
    nodes = [node.space.name for node in fabric.nodes.values()]
    show(f"""ip netns exec {fabric.space('host1').name} ping {fabric.addresses(last_host(fabric))[0]}
vtysh -N {space} -c 'show bgp summary'
{fabric.turnpike} show routes --socket {leaf.socket}
{fabric.turnpike} drain --pathspace {space} --socket {leaf.socket}
{fabric.turnpike} undrain --pathspace {space} --socket {leaf.socket}

And when you have seen enough:
kill {' '.join(map(str, processes))}
for n in {' '.join(spaces)}; do ip netns del $n; done
for n in {' '.join(nodes)}; do rm -r /etc/frr/$n /var/run/frr/$n; done; rm -r {directory}""")


def tour(fabric):
    """The tour."""
    say("Routers, servers and hosts")
    picture(fabric)
    say("Turnpike and FRR start in each")
    fabric.start()
    show("\n".join(re.search(r"ready: .*", router.log("turnpike"))[0].replace("ready", router.name)
                   for router in fabric.routers()))
    say("BGP finds the neighbours on links without addresses")
    fabric.converged()
    show(fabric.nodes["leaf1"].vtysh("show bgp ipv4 unicast summary"))
    show(fabric.nodes["leaf1"].vtysh("show bfd peers brief"))
    say("The first leaf's route to the network of the last: FRR's, the kernel's, Turnpike's")
    routes(fabric)
    say("From the host at the first leaf to the host at the last, over all ways")
    ways(fabric)
    say("Sixteen connections of TCP over all spines")
    load(fabric)
    say("One address, two leaves")
    anycast(fabric)
    accounts = events(fabric)
    if accounts:
        say("Packets lost")
        show("\n".join(accounts))


def main():
    """Runs the tour, or prints the inventory."""
    words = [word for word in sys.argv[1:] if word != "--inventory"]
    try:
        leaves, spines = (int(words[0]) if words else 3), (int(words[1]) if len(words) > 1 else 2)
    except ValueError:
        sys.exit(f"{' '.join(words)}: expected two numbers: run.sh [LEAVES] [SPINES]")
    if "--inventory" in sys.argv:
        print(json.dumps(parts.inventory(leaves, spines), indent=2))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    fabric = None
    try:
        parts.preconditions()
        fabric = Fabric(leaves, spines, prefix=os.environ.get("PREFIX", "fabric"), turnpike=parts.binary())
        tour(fabric)
        if os.environ.get("KEEP"):
            say("It is left running (KEEP). Try:")
            hints(fabric)
            fabric = None
        else:
            say("All of it worked; now it is removed")
    except Failed as error:
        for router in fabric.routers() if fabric else ():
            show(f"the log of {router.name}:\n{router.log('turnpike')[-2000:]}")
        sys.exit(f"\n\033[31mFAILED: {error}\033[0m")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if fabric:
            fabric.close()


if __name__ == "__main__":
    main()

"""VRRP by keepalived on host interfaces: hosts send to the virtual MAC, and the master alone forwards it (RFC 5798)."""

import json

import pytest

from lib.keepalived import Keepalived, ends, instance
from lib.kernel import Machine
from lib.netns import wait_for
from lib.traffic import Sink, Stream, longest_gap

VIRTUAL = ("00:00:5e:00:01:33", "00:00:5e:00:02:34")


class Pair:
    """Two routers, one of which is the gateway of a host.

    ```
    host 10.0.1.10 --- switch +--- one 10.0.1.2, 10.0.2.2 ---+ server 10.0.2.10
                              +--- two 10.0.1.3, 10.0.3.2 ---+        10.0.3.10
          virtual router 10.0.1.1, fd00:1::1
    ```
    """

    def __init__(self, lab):
        self.switch, self.host, self.server = (lab.namespace(role) for role in ("switch", "host", "server"))
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.machines, self.daemons = [], []
        for number, role in ((2, "one"), (3, "two")):
            machine = Machine(lab, role)
            machine.port("lan", self.switch, role, f"10.0.1.{number}/24", f"fd00:1::{number}/64")
            machine.port("wan", self.server, f"to-{role}", f"10.0.{number}.2/24", f"fd00:{number}::2/64")
            self.server.run("ip", "address", "add", f"10.0.{number}.10/24", "dev", f"to-{role}")
            self.server.run("ip", "address", "add", f"fd00:{number}::10/64", "dev", f"to-{role}", "nodad")
            # The kernel asks and answers for addresses of the interface itself only, or hosts learn its MAC.
            machine.space.sysctl("net.ipv4.conf.all.arp_ignore", 1)
            machine.space.sysctl("net.ipv4.conf.all.arp_announce", 2)
            self.machines.append(machine)
        ends(self.switch, self.host, self.server)
        for number, machine in zip((2, 3), self.machines):
            to_server = f'turnpike.route "10.9.9.9/32" {{ via = "10.0.{number}.10" }}\n'
            to_server += f'turnpike.route "fd00:9::9/128" {{ via = "fd00:{number}::10" }}\n'
            # Answers take the way by the master, whoever that is.
            self.server.run("ip", "route", "append", "10.0.1.0/24", "via", f"10.0.{number}.2", "metric", number)
            machine.start(config=to_server)
        for priority, machine in zip((200, 100), self.machines):
            self.start_daemon(machine, priority)

    def start_daemon(self, machine, priority):
        config = instance("51", "lan", 0x33, priority, ["10.0.1.1/24"])
        config += instance("52", "lan", 0x34, priority, ["fe80::51", "fd00:1::1/64"])
        daemon = Keepalived(machine.space, config)
        machine.lab._made.callback(daemon.close)
        self.daemons.append(daemon)

    def macs(self, machine):
        """The virtual MACs that a router's forwarders accept now."""
        ports = machine.router.show("interfaces")
        return [mac for port in ports if port["name"] == "lan" for mac in port["virtual_macs"]]

    def is_master(self, number):
        """Returns true if both virtual routers are this one's, and the other router's no more."""
        macs = [sorted(self.macs(machine)) for machine in self.machines]
        return macs[number] == sorted(VIRTUAL) and macs[1 - number] == []

    def gateway(self, family):
        """The MAC to which the host sends."""
        address = {4: "10.0.1.1", 6: "fd00:1::1"}[family]
        said = json.loads(self.host.run("ip", "-j", "neigh", "show", address).stdout or "[]")
        return said[0].get("lladdr") if said else None


def pings(pair, address):
    return pair.host.run("ping", "-n", "-c", 1, "-W", 2, address, check=False).returncode == 0


@pytest.mark.parametrize("destination", ["10.9.9.9", "fd00:9::9"])
def test_the_other_router_takes_over_with_the_virtual_mac(lab, destination):
    pair = Pair(lab)
    family = 6 if ":" in destination else 4
    gateway, mac = {4: ("10.0.1.1", VIRTUAL[0]), 6: ("fd00:1::1", VIRTUAL[1])}[family]
    assert wait_for(lambda: pair.is_master(0), 30), [daemon.log() for daemon in pair.daemons]
    assert wait_for(lambda: pings(pair, gateway), 10), "the virtual address answers"
    assert pair.gateway(family) == mac
    sink = Sink(pair.server)
    stream = Stream(pair.host, [destination], rate=500)
    assert sink.wait(100)
    # The master ends, and says so.
    pair.daemons[0].stop()
    assert wait_for(lambda: pair.is_master(1), 30), pair.daemons[1].log()
    assert sink.wait(500)
    assert pair.gateway(family) == mac, "the host has learned nothing new"
    sent = stream.stop()
    arrived = [number for number, _ in sink.arrived()]
    assert len(arrived) == len(set(arrived)), "none arrives twice"
    # Three intervals of a second.
    assert longest_gap(sink) < 3.0
    assert len(arrived) > sent - 3 * 500
    forwarded = [machine.router.show("counters")["sent"] for machine in pair.machines]
    assert min(forwarded) > 100, forwarded
    for machine in pair.machines:
        machine.router.stop()


def test_a_router_that_dies_is_replaced_and_a_backup_drops_what_is_flooded(lab):
    pair = Pair(lab)
    assert wait_for(lambda: pair.is_master(0), 30), [daemon.log() for daemon in pair.daemons]
    assert wait_for(lambda: pings(pair, "10.0.1.1"), 10)
    sink = Sink(pair.server)
    stream = Stream(pair.host, ["10.9.9.9"], rate=500)
    assert sink.wait(100)
    # The switch forgets where the MAC is, and floods: only the master forwards.
    before = pair.machines[1].router.show("counters")["dropped"].get("not-for-us", 0)
    pair.switch.run("ip", "link", "set", "bridge", "type", "bridge", "ageing_time", 0)

    def flooded():
        return pair.machines[1].router.show("counters")["dropped"].get("not-for-us", 0) > before + 100

    assert wait_for(flooded, 20)
    pair.machines[0].router.process.kill()
    assert wait_for(lambda: pair.macs(pair.machines[1]), 30), pair.daemons[1].log()
    assert sink.wait(500)
    stream.stop()
    arrived = [number for number, _ in sink.arrived()]
    assert len(arrived) == len(set(arrived)), "none arrives twice"
    assert pings(pair, "10.0.1.1")
    pair.machines[1].router.stop()

"""VRFs: ports with separate tables, whose networks may be equal, and routes between VRFs."""

import json
import re

import pytest

from lib.apply import apply, plan, refused, write
from lib.kernel import Machine, host, pings, reaches
from lib.netns import veth, wait_for

# Two customers with the same networks, and a network that belongs to neither.
PORTS = """
local turnpike = require "turnpike"
turnpike.vrf "blue" {}
turnpike.vrf "red" {}
turnpike.port "b1" { device = "tp-b1", address = { "10.0.1.1/24", "fd00:1::1/64" }, vrf = "blue" }
turnpike.port "b2" { device = "tp-b2", address = { "10.0.2.1/24", "fd00:2::1/64" }, vrf = "blue" }
turnpike.port "r1" { device = "tp-r1", address = { "10.0.1.1/24", "fd00:1::1/64" }, vrf = "red" }
turnpike.port "r2" { device = "tp-r2", address = { "10.0.2.1/24", "fd00:2::1/64" }, vrf = "red" }
turnpike.port "plain" { device = "tp-plain", address = { "10.0.3.1/24", "fd00:3::1/64" } }
"""

# The network that each port is on.
SIDES = {"b1": 1, "b2": 2, "r1": 1, "r2": 2, "plain": 3}


class Net:
    """A router with a Linux host behind each port; hosts of blue and red have the same addresses."""

    def __init__(self, lab, config="", ports=PORTS):
        self.inside = lab.namespace("router")
        self.hosts, self.wires = {}, {}
        for name, side in SIDES.items():
            space = self.hosts[name] = lab.namespace(name)
            veth(self.inside, f"tp-{name}", space, "eth0")
            space.run("ip", "address", "add", f"10.0.{side}.2/24", "dev", "eth0")
            space.run("ip", "address", "add", f"fd00:{side}::2/64", "dev", "eth0", "nodad")
            space.run("ip", "route", "add", "default", "via", f"10.0.{side}.1")
            space.run("ip", "-6", "route", "add", "default", "via", f"fd00:{side}::1")
            # No limit of the errors by which the scenarios observe the fate of packets.
            space.sysctl("net.ipv4.icmp_ratelimit", 0)
            self.wires[name] = lab.raw(space, "eth0")
        self.router = lab.router(self.inside, ports + config)

    def marked(self, name, address, mark):
        """Pings from a host with a mark in the data; returns true if it is answered."""
        return " 1 received" in self.answer(name, "-s", 48, "-p", mark, address)

    def also(self, name, *addresses):
        """Adds further addresses to a host, as destinations of routes."""
        owns(self.hosts[name], *addresses)

    def seen(self, mark):
        """The hosts at which frames with the mark were seen since the last call."""
        data = bytes.fromhex(mark) * 2
        # For a limited time, as other senders may never be silent.
        found = {name: wire.expect(100, lambda frame: data in frame, 0.2) for name, wire in self.wires.items()}
        return {name for name, frames in found.items() if frames}

    def answer(self, name, *words):
        """Output of `ping` on a host."""
        return self.hosts[name].run("ping", "-n", "-c", 1, "-W", 5, *words, check=False).stdout

    def finish(self):
        self.router.counters()
        self.router.stop()


def owns(space, *addresses):
    for address in addresses:
        space.run("ip", "address", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))


def kinds(router, address, *options):
    return router.show("route", address, *options)["type"]


def routes(router, vrf, source):
    return {route["prefix"]: route for route in router.show("routes", "--vrf", vrf, "--source", source)}


@pytest.mark.parametrize("family", [4, 6])
def test_the_same_networks_in_two_vrfs_do_not_meet(lab, family):
    net = Net(lab)
    near, own, far = ("10.0.1.2", "10.0.1.1", "10.0.2.2") if family == 4 else ("fd00:1::2", "fd00:1::1", "fd00:2::2")
    for first, second, mark in (("b1", "b2", "b1b2b1b2"), ("r1", "r2", "0e0d0e0d")):
        assert reaches(net.hosts[first], far), net.router.log()
        net.seen(mark)
        assert net.marked(first, far, mark)
        assert net.seen(mark) == {first, second}, "to the host of its own VRF and back, and to nobody else"
        # The router answers for itself, by ARP, ND and ICMP, on each port in its VRF.
        assert net.marked(first, own, mark) and net.marked(second, near, mark)
        assert net.seen(mark) == {first, second}
    # Hosts in no VRF reach none of them.
    for address in (near, far):
        assert "nreachable" in net.answer("plain", address), address
        assert kinds(net.router, address) == "no-route"
    # Nor is an own address of a VRF one of the default VRF's.
    assert not net.marked("plain", own, "abababab")
    assert net.seen("abababab") == {"plain"}
    # The same source is a host's in one VRF and the router's own in another: it is not forged.
    assert net.router.counters()["dropped"].get("ip4-source-own", 0) == 0
    neighbours = {(n["port"], n["address"]) for n in net.router.show("neighbours")}
    assert {("b1", near), ("r1", near), ("b2", far), ("r2", far)} <= neighbours
    net.finish()


def test_errors_are_sent_from_the_vrf_of_the_packet_they_are_about(lab):
    """RFC 1812 4.3.2.4: from an address of the interface by which the packet came."""
    net = Net(lab, 'turnpike.route "198.51.100.0/24" { prohibit = true, vrf = "red" }\n')
    for name in ("b1", "r1"):
        assert reaches(net.hosts[name], "10.0.2.2")
        assert "From 10.0.1.1 icmp_seq=1 Time to live exceeded" in net.answer(name, "-t", 1, "10.0.2.2")
        assert "From fd00:1::1 icmp_seq=1 Time exceeded" in net.answer(name, "-t", 1, "fd00:2::2")
    assert "From 10.0.1.1 icmp_seq=1 Destination Net Unreachable" in net.answer("b1", "198.51.100.1")
    assert "From 10.0.1.1 icmp_seq=1 Packet filtered" in net.answer("r1", "198.51.100.1")
    # A datagram in fragments for the router, from the same address in two VRFs at once.
    for name in ("b1", "r1"):
        assert " 1 received" in net.answer(name, "-s", 4000, "10.0.1.1")
    net.finish()


ROUTES = """
turnpike.route "198.51.100.0/24" { via = "10.0.2.2", vrf = "blue" }
turnpike.route "198.51.100.0/24" { via = { "10.0.2.2", "10.0.1.2" }, vrf = "red", metric = 5 }
turnpike.route "2001:db8::/32"   { via = "fd00:2::2", vrf = "blue" }
turnpike.route "203.0.113.0/24"  { via = "198.51.100.7", vrf = "blue" }
"""


def test_one_prefix_leads_elsewhere_in_each_vrf(lab):
    net = Net(lab, ROUTES)
    router = net.router
    net.also("b2", "198.51.100.1", "203.0.113.1", "2001:db8::1")
    net.also("r2", "198.51.100.1", "203.0.113.1", "2001:db8::1", "192.0.2.1")
    for address in ("198.51.100.1", "203.0.113.1", "2001:db8::1"):
        assert reaches(net.hosts["b1"], address), address
        net.seen("b1b2b1b2")
        assert net.marked("b1", address, "b1b2b1b2") and net.seen("b1b2b1b2") == {"b1", "b2"}
    assert "nreachable" in net.answer("r1", "203.0.113.1") and "nreachable" in net.answer("r1", "2001:db8::1")
    assert set(routes(router, "blue", "static")) == {"198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"}
    (route,) = routes(router, "red", "static").values()
    assert (route["vrf"], route["metric"], len(route["paths"])) == ("red", 5, 2)
    assert router.show("routes", "--source", "static") == [], "none is in the default VRF"
    assert kinds(router, "198.51.100.1") == "no-route"
    path = router.show("route", "203.0.113.1", "--vrf", "blue")["paths"][0]
    assert (path["port"], path["via"]) == ("b2", "198.51.100.7") or path["via"] == "10.0.2.2"
    # Those of commands are added to a VRF and removed from it alike.
    router.command("route", "add", "192.0.2.0/24", "via", "10.0.2.2", "--vrf", "red")
    assert reaches(net.hosts["r1"], "192.0.2.1")
    net.seen("0e0d0e0d")
    assert net.marked("r1", "192.0.2.1", "0e0d0e0d") and net.seen("0e0d0e0d") == {"r1", "r2"}
    assert kinds(router, "192.0.2.1", "--vrf", "blue") == "no-route"
    assert "there is none" in refused(router, "route", "del", "192.0.2.0/24")
    router.command("route", "del", "192.0.2.0/24", "--vrf", "red")
    assert kinds(router, "192.0.2.1", "--vrf", "red") == "no-route"
    net.finish()


# Blue's first host may speak with the plain network, and by a gateway there with what is behind it.
LEAKS = """
turnpike.route "10.0.3.0/24" { port = "plain", vrf = "blue" }
turnpike.route "fd00:3::/64" { port = "plain", vrf = "blue" }
turnpike.route "10.0.1.0/24" { port = "b1" }
turnpike.route "fd00:1::/64" { port = "b1" }
turnpike.route "172.16.0.0/12" { via = "10.0.3.2" }
turnpike.route "192.0.2.0/24" { via = "172.16.0.1", vrf = "blue", next_hop_vrf = "default" }
"""


def test_a_route_leads_from_one_vrf_into_another(lab):
    net = Net(lab, LEAKS)
    net.also("plain", "192.0.2.1", "172.16.0.1")
    for address in ("10.0.3.2", "fd00:3::2", "192.0.2.1"):
        assert reaches(net.hosts["b1"], address), net.router.log()
        net.seen("b1b2b1b2")
        assert net.marked("b1", address, "b1b2b1b2") and net.seen("b1b2b1b2") == {"b1", "plain"}
        assert "nreachable" in net.answer("r1", address), "red has no such route"
    # Its hosts are reached like those of blue's own network: by their own routes, not by the slow path.
    assert kinds(net.router, "10.0.3.2", "--vrf", "blue") == "unicast"
    (route,) = net.router.show("routes", "--vrf", "blue", "--prefix", "192.0.2.0/24")
    assert route["paths"] == [{"via": "172.16.0.1", "vrf": "default"}]
    punted = net.router.show("counters")
    for _ in range(5):
        assert net.marked("b1", "10.0.3.2", "b1b2b1b2")
    assert net.router.show("counters")["dropped_total"] == punted["dropped_total"]
    net.finish()


def machine(lab, sources='"kernel"', table="table = 100"):
    """A machine whose kernel has routes for two VRFs and for none, with a host behind each port."""
    here = Machine(lab, "router")
    hosts = {
        name: host(here, name, name, f"10.0.{n}.2", f"10.0.{n}.1", f"fd00:{n}::2", f"fd00:{n}::1")
        for n, name in enumerate(("b1", "b2", "plain"), 1)
    }
    text = here.config(sources)
    for name in ("b1", "b2"):
        text = text.replace(f'"{name}" {{', f'"{name}" {{ vrf = "blue",')
    text = text.replace("\n", f'\nturnpike.vrf "blue" {{ {table} }}\n', 1)
    owns(hosts["b2"], "198.51.100.1", "192.0.2.1", "203.0.113.1", "2001:db8::1")
    here.router = lab.router(here.wires, text)
    return here, hosts, text


def test_the_routes_of_the_kernel_s_table_are_the_vrf_s(lab):
    here, hosts, text = machine(lab)
    router = here.router
    # The setup for VRFs without VRF devices.
    here.ip("rule", "add", "iif", "b1", "lookup", 100)
    for words in ("198.51.100.0/24 via 10.0.2.2 table 100", "192.0.2.0/24 via 10.0.3.2", "blackhole 192.0.2.0/24 table 100"):
        here.ip("route", "add", *words.split())
    here.ip("route", "add", "2001:db8::/32", "via", "fd00:2::2", "table", 100, family=6)
    blue = {"198.51.100.0/24", "192.0.2.0/24", "2001:db8::/32"}
    assert wait_for(lambda: set(routes(router, "blue", "kernel")) == blue), router.log()
    assert "192.0.2.0/24" in routes(router, "default", "kernel")
    assert not blue - {"192.0.2.0/24"} & set(routes(router, "default", "kernel"))
    assert reaches(hosts["b1"], "198.51.100.1") and reaches(hosts["b1"], "2001:db8::1")
    assert kinds(router, "192.0.2.1") == "unicast"
    assert not pings(hosts["b1"], "192.0.2.1"), "blue's is a blackhole"
    assert kinds(router, "198.51.100.1") == "no-route"
    here.ip("route", "replace", "192.0.2.0/24", "via", "10.0.2.2", "table", 100)
    assert reaches(hosts["b1"], "192.0.2.1")
    here.ip("route", "del", "198.51.100.0/24", "table", 100)
    assert wait_for(lambda: kinds(router, "198.51.100.1", "--vrf", "blue") == "no-route")
    # Another table is its from now on, with what it has, and then none.
    here.ip("route", "add", "203.0.113.0/24", "via", "10.0.2.2", "table", 200)
    apply(router, text.replace("table = 100", "table = 200"))
    assert wait_for(lambda: set(routes(router, "blue", "kernel")) == {"203.0.113.0/24"})
    assert reaches(hosts["b1"], "203.0.113.1")
    apply(router, text.replace("table = 100", ""))
    assert wait_for(lambda: routes(router, "blue", "kernel") == {})
    here.finish()


def test_vrfs_come_and_go_while_packets_flow(lab):
    """Ports move by `apply`, others are not affected; a VRF in use is not removed."""
    before = PORTS.replace('turnpike.vrf "red" {}\n', "").replace(', vrf = "red"', "")
    before = before.replace("10.0.1.1/24\", \"fd00:1::1/64\" } }", "10.0.4.1/24\" } }")
    before = before.replace("10.0.2.1/24\", \"fd00:2::1/64\" } }", "10.0.5.1/24\" } }")
    net = Net(lab, ports=before)
    router, blue = net.router, net.hosts["b1"]
    assert reaches(blue, "10.0.2.2")
    assert [vrf["name"] for vrf in router.show("vrfs")] == ["default", "blue"]
    report, status = plan(router, PORTS)
    changes = {(c["what"], c["from"], c["to"], c["live"]) for c in report["changes"]}
    assert ('vrf "red"', None, "no table", True) in changes and status == 2
    assert ('port "r1": vrf', "default", "red", True) in changes
    flow = blue.spawn("ping", "-n", "-i", "0.005", "10.0.2.2", stdout=-1, text=True)
    apply(router, PORTS)
    assert reaches(net.hosts["r1"], "10.0.2.2"), router.log()
    net.seen("0e0d0e0d")
    assert net.marked("r1", "10.0.2.2", "0e0d0e0d") and net.seen("0e0d0e0d") == {"r1", "r2"}
    vrfs = {vrf["name"]: vrf for vrf in router.show("vrfs")}
    assert {name: vrf["ports"] for name, vrf in vrfs.items()} == {
        "default": ["plain"], "blue": ["b1", "b2"], "red": ["r1", "r2"]}
    ports = {port["name"]: port.get("vrf") for port in router.show("ports")}
    assert ports == {"b1": "blue", "b2": "blue", "r1": "red", "r2": "red", "plain": None}
    # A VRF that commands have routes in, or routes by, stays.
    router.command("route", "add", "192.0.2.0/24", "via", "10.0.2.2", "--vrf", "red")
    error = refused(router, "apply", write(router, before))
    assert 'vrf "red" cannot go: 1 route of commands is in it or by it' in error and "nothing was changed" in error
    router.command("route", "del", "192.0.2.0/24", "--vrf", "red")
    router.command("route", "add", "192.0.2.0/24", "via", "172.16.0.1", "--next-hop-vrf", "red")
    assert "1 route of commands is in it or by it" in refused(router, "rollback")
    router.command("route", "del", "192.0.2.0/24")
    # A port takes along what commands have over it, in whatever VRF.
    router.command("route", "add", "192.0.2.0/24", "via", "10.0.2.2", "--vrf", "red")
    apply(router, "\n".join(line for line in PORTS.splitlines() if '"r2"' not in line))
    assert routes(router, "red", "command") == {}
    router.command("rollback")
    assert reaches(net.hosts["r1"], "10.0.2.2")
    # Nor is one removed that the configuration itself still uses: with the line.
    error = refused(router, "apply", write(router, PORTS.replace('turnpike.vrf "red" {}\n', "\n")))
    assert 'new.lua:7: port "r1": vrf "red" unknown; VRFs: default, blue' in error
    assert net.marked("r1", "10.0.2.2", "0e0d0e0d")
    router.command("rollback", 1)
    assert [vrf["name"] for vrf in router.show("vrfs")] == ["default", "blue"]
    assert not net.marked("r1", "10.0.2.2", "0e0d0e0d")
    assert kinds(router, "10.0.4.9") == "connected"
    # The tables of the removed one are used for the next, without its contents.
    apply(router, PORTS.replace('"red"', '"green"'))
    assert reaches(net.hosts["r1"], "10.0.2.2")
    assert {route["source"] for route in router.show("routes", "--vrf", "green", "--all")} <= {
        "reserved", "local", "connected", "neighbour"}
    flow.send_signal(2)
    said = flow.communicate(timeout=10)[0]
    answered = [int(number) for number in re.findall(r"icmp_seq=(\d+) ", said)]
    # The last one may have been on its way when ping ended.
    (sent,) = re.findall(r"(\d+) packets transmitted", said)
    assert answered == [*range(1, len(answered) + 1)] and int(sent) <= len(answered) + 1, said[-300:]
    net.finish()


def test_what_is_asked_wrongly_is_answered_with_a_way_out(lab):
    net = Net(lab)
    router = net.router
    for words, expected in (
        (("route", "add", "192.0.2.0/24", "via", "10.0.2.2", "--vrf", "bleu"),
         'vrf "bleu" unknown; did you mean "blue"? VRFs: default, blue, red'),
        (("route", "add", "192.0.2.0/24", "via", "10.0.2.2", "--next-hop-vrf", "x"), 'vrf "x" unknown'),
        (("route", "add", "192.0.2.0/24", "via", "10.0.1.1", "--vrf", "red"),
         'via 10.0.1.1: is the router\'s own address (port "r1")'),
        (("route", "del", "192.0.2.0/24", "--vrf", "rde"), 'vrf "rde" unknown; did you mean "red"?'),
        (("show", "route", "192.0.2.1", "--vrf", "gren"), 'vrf "gren" unknown'),
        (("show", "routes", "--vrf", "gren"), 'vrf "gren" unknown'),
    ):
        assert expected in refused(router, *words), words
    # As tables in text.
    text = router.command("show", "vrfs").stdout
    assert "blue" in text and "b1, b2" in text
    assert "recursive in blue" not in router.command("show", "routes", "--vrf", "red").stdout
    router.command("route", "add", "192.0.2.0/24", "via", "172.16.0.1", "--vrf", "red", "--next-hop-vrf", "blue")
    assert "172.16.0.1 (recursive in blue)" in router.command("show", "routes", "--vrf", "red", "--all").stdout
    assert json.loads(router.command("show", "vrfs", "--json").stdout)[0]["name"] == "default"
    net.finish()

"""Loopbacks: addresses of the router that do not depend on a link, with and without the kernel as host, and ports that
borrow them. Addresses of the kernel's own loopback are in `test_loopback.py`."""

import json
import socket
import threading
import time

import pytest
from lib import tables
from lib.apply import apply, plan, refused, write
from lib.bird import Bird
from lib.frr import Frr
from lib.kernel import Machine, host, pings, reaches
from lib.lab import ANNOUNCING_SECONDS, HOST_A_MAC, PORTS, Hosts
from lib.metrics import scrape, tcp
from lib.netns import wait_for
from lib.traffic import Sink, Stream, lost

LO0 = 'turnpike.loopback "lo0" { address = { "192.0.2.255/32", "2001:db8::255/128" } }\n'


def ttl_of(space, address):
    """The sender of the error about an echo request that may pass no router, as ping shows it."""
    option = "-6" if ":" in address else "-4"
    return space.run("ping", option, "-n", "-c", 1, "-W", 2, "-t", 1, address, check=False).stdout


def interface(router, name):
    found = [of for of in router.show("interfaces") if of["name"] == name]
    return found[0] if found else None


def test_a_loopback_without_a_kernel_answers_on_every_port_while_its_statement_is_there(lab):
    more = 'turnpike.loopback "net" { address = "198.51.100.1/24" }\n'
    net = Hosts(lab, config=LO0 + more)
    for space in (net.left, net.right):
        for address in ("192.0.2.255", "2001:db8::255", "198.51.100.1"):
            assert reaches(space, address), net.router.log()
    # No host is on its network, and no default route leads further.
    said = net.left.run("ping", "-n", "-c", 1, "-W", 2, "198.51.100.7", check=False).stdout
    assert "From 10.0.1.1" in said and "Host Unreachable" in said, said
    lo0 = interface(net.router, "lo0")
    assert (lo0["kind"], lo0["link"], lo0["rx_packets"]) == ("loopback", "up", 0)
    assert lo0["addresses"] == ["192.0.2.255/32", "2001:db8::255/128"] and "parent" not in lo0
    assert [of["name"] for of in net.router.show("interfaces")] == ["left", "right", "lo0", "net"]
    assert "lo0" in net.router.command("show", "interfaces").stdout
    # A link that is lost takes none of it away.
    net.left.run("ip", "link", "set", "eth0", "down")
    assert wait_for(lambda: interface(net.router, "left")["link"] == "down", 10)
    assert pings(net.right, "192.0.2.255") and interface(net.router, "lo0")["link"] == "up"
    # No route leads over it, and no packet comes by it.
    assert 'port "lo0": unknown' in refused(net.router, "route", "add", "203.0.113.0/24", "dev", "lo0")
    assert "no port receives for the interface" in refused(
        net.router, "trace", "udp 10.0.1.2:4000 > 10.0.2.2:53 in lo0")
    net.router.stop()


def test_loopbacks_come_change_and_go_while_the_router_runs(lab):
    net = Hosts(lab, config='turnpike.metrics { listen = "127.0.0.1:9477" }\n')
    base = net.router.config.read_text()
    assert reaches(net.left, "10.0.2.2")
    sink = Sink(net.right)
    stream = Stream(net.left, ["10.0.2.2"], 500)
    assert sink.wait(50)
    planned, status = plan(net.router, base + LO0)
    assert status == 2 and "lo0" in json.dumps(planned)
    apply(net.router, base + LO0)
    assert pings(net.left, "192.0.2.255") and pings(net.right, "2001:db8::255")
    assert scrape(tcp(net.inside)).of("turnpike_interface_up", interface="lo0") == 1
    other = 'turnpike.loopback "lo0" { address = "192.0.2.254/32" }\n'
    apply(net.router, base + other)
    assert pings(net.left, "192.0.2.254") and not pings(net.left, "192.0.2.255")
    assert interface(net.router, "lo0")["addresses"] == ["192.0.2.254/32"]
    # An address that a port has, which is found after the others: nothing is half made.
    wrong = write(net.router, base + 'turnpike.loopback "lo1" { address = "10.0.1.1/32" }\n')
    assert 'overlaps "10.0.1.1/24" of port "left"' in refused(net.router, "apply", wrong)
    assert interface(net.router, "lo1") is None
    net.router.command("rollback")
    assert wait_for(lambda: pings(net.left, "192.0.2.255"), 10)
    apply(net.router, base)
    assert not pings(net.left, "192.0.2.255") and interface(net.router, "lo0") is None
    assert pings(net.left, "10.0.1.1")
    sent = stream.stop()
    assert lost(sent, sink) == []
    sink.close()
    net.router.stop()


def test_loopbacks_of_a_vrf_are_of_that_vrf(lab):
    config = """
turnpike.vrf "blue" {}
turnpike.loopback "lo0" { address = "192.0.2.1/32" }
turnpike.loopback "b0"  { address = "192.0.2.1/32", vrf = "blue" }
turnpike.loopback "b1"  { address = "192.0.2.2/32", vrf = "blue" }
"""
    ports = PORTS.replace('device = "tp-right",', 'device = "tp-right", vrf = "blue",')
    net = Hosts(lab, config=config, ports=ports)
    assert reaches(net.left, "192.0.2.1") and reaches(net.right, "192.0.2.1") and reaches(net.right, "192.0.2.2")
    assert not pings(net.left, "192.0.2.2")
    # A route from the default VRF leads to a port of the other one; the router's own addresses there are not reached.
    base = net.router.config.read_text()
    apply(net.router, base + 'turnpike.route "192.0.2.2/32" { via = "10.0.2.2", port = "right" }\n')
    assert not pings(net.left, "192.0.2.2")
    # It moves.
    apply(net.router, base.replace('address = "192.0.2.2/32", vrf = "blue"', 'address = "192.0.2.2/32"'))
    assert pings(net.left, "192.0.2.2") and not pings(net.right, "192.0.2.2")
    assert interface(net.router, "b1").get("vrf") is None and interface(net.router, "b0")["vrf"] == "blue"
    net.router.stop()


def test_errors_on_a_port_without_address_come_from_the_loopback(lab):
    # The port is reached by a route of the host's; it has no IPv4 address and no global IPv6 one.
    ports = """
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left" }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
turnpike.neighbour "10.0.1.2" { port = "left", mac = "%s" }
turnpike.route "10.0.1.2/32" { port = "left" }
turnpike.route "fd00:1::2/128" { port = "left" }
""" % HOST_A_MAC
    net = Hosts(lab, config=LO0, ports=ports)
    mac = interface(net.router, "left")["mac"]
    for gateway in ("10.0.1.1", "fd00:1::1"):
        net.left.run("ip", "neighbour", "replace", gateway, "lladdr", mac, "dev", "eth0")
    assert reaches(net.left, "10.0.2.2"), net.router.log()
    assert wait_for(lambda: "From 192.0.2.255" in ttl_of(net.left, "10.0.2.2"), 10), ttl_of(net.left, "10.0.2.2")
    assert wait_for(lambda: "From 2001:db8::255" in ttl_of(net.left, "fd00:2::2"), 10), ttl_of(net.left, "fd00:2::2")
    net.router.stop()


class Kernel:
    """A router whose kernel is its host, and Linux hosts at two ports."""

    def __init__(self, lab, config=LO0):
        self.machine = Machine(lab, "router")
        self.left = host(self.machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
        self.right = host(self.machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
        self.machine.start(config=config)
        self.router = self.machine.router


def talk(space, address, server):
    """A TCP connection from `space` to an address of `server`; returns the peer's name as the client sees it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with server.entered():
        listener = socket.create_server((address, 0), family=family)
    received = []

    def serve():
        connection = listener.accept()[0]
        received.append(connection.recv(100))
        connection.sendall(b"heard")
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with space.entered():
        client = socket.create_connection(listener.getsockname()[:2], 10)
    client.sendall(b"hello")
    answer, peer = client.recv(100), client.getpeername()[0]
    client.close()
    thread.join(10)
    listener.close()
    assert (received, answer) == ([b"hello"], b"heard")
    return peer


@pytest.mark.provokes("loopback-sent")
def test_programs_of_the_host_are_reached_at_a_loopback_by_every_port(lab):
    net = Kernel(lab)
    link = net.machine.run("ip", "link", "show", "lo0").stdout
    assert "NOARP" in link and ",UP,LOWER_UP" in link, link
    for space in (net.left, net.right):
        for address in ("192.0.2.255", "2001:db8::255"):
            assert reaches(space, address), net.router.log()
            assert talk(space, address, net.machine.space) == address
    # What the kernel sends by it goes nowhere, and is counted.
    net.machine.run("ping", "-n", "-c", 1, "-W", 1, "-I", "lo0", "203.0.113.9", check=False)
    assert wait_for(lambda: net.router.dropped().get("loopback-sent", 0) >= 1, 10)
    report = interface(net.router, "lo0")["host"]
    assert report["state"] == "up" and report["down_packets"] >= 1
    # The operator's addresses on it count like any other interface's, and so does its state.
    net.machine.ip("address", "add", "192.0.2.9/32", "dev", "lo0")
    assert reaches(net.left, "192.0.2.9")
    assert "192.0.2.9/32" in interface(net.router, "lo0")["addresses"]
    net.machine.run("ip", "link", "set", "lo0", "down")
    assert wait_for(lambda: interface(net.router, "lo0")["link"] == "down", 10)
    net.machine.run("ip", "link", "set", "lo0", "up")
    assert wait_for(lambda: interface(net.router, "lo0")["link"] == "up", 10)
    assert reaches(net.left, "192.0.2.255")
    net.machine.finish()


def test_the_router_answers_for_a_loopback_on_a_port_without_a_host_interface(lab):
    machine = Machine(lab, "router")
    plain = host(machine, "plain", "plain", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    apart = host(machine, "apart", "apart", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
    text = machine.config().replace('device = "tp-apart", host = true', 'device = "tp-apart", host = false') + LO0
    machine.config = lambda sources: text
    machine.start()
    for space in (plain, apart):
        for address in ("192.0.2.255", "2001:db8::255"):
            assert reaches(space, address), machine.router.log()
    assert talk(plain, "192.0.2.255", machine.space) == "192.0.2.255"
    with apart.entered(), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("192.0.2.255", 80), 10)
    machine.finish()


def test_a_host_interface_of_a_loopback_comes_changes_and_goes(lab):
    net = Kernel(lab, config="")
    base = net.router.config.read_text()
    apply(net.router, base + LO0)
    assert reaches(net.left, "192.0.2.255") and reaches(net.right, "2001:db8::255")
    apply(net.router, base + 'turnpike.loopback "lo0" { address = "192.0.2.254/32" }\n')
    assert reaches(net.left, "192.0.2.254") and wait_for(lambda: not pings(net.left, "192.0.2.255"), 10)
    # Without a host interface the kernel has nothing of it; the router answers for it on no port with one.
    apply(net.router, base + 'turnpike.loopback "lo0" { address = "192.0.2.254/32", host = false }\n')
    assert wait_for(lambda: "lo0" not in net.machine.space.link_settings(), 10)
    apply(net.router, base + LO0)
    assert reaches(net.left, "192.0.2.255")
    apply(net.router, base)
    assert wait_for(lambda: "lo0" not in net.machine.space.link_settings(), 10)
    assert wait_for(lambda: not pings(net.left, "192.0.2.255"), 10)
    # It is there again after a restart.
    apply(net.router, base + LO0)
    net.router.command("save")
    net.machine.finish()
    net.router.start()
    assert reaches(net.left, "192.0.2.255"), net.router.log()
    net.machine.finish()


def test_loopbacks_in_the_network_namespace_of_a_vrf(lab):
    """The loopback's host interface is in the namespace of its VRF; addresses of the kernel's own loopback there are
    the VRF's too."""
    blue = lab.namespace("blue")
    blue.sysctl("net.ipv6.conf.default.accept_dad", 0)
    machine = Machine(lab, "router")
    plain = host(machine, "plain", "plain", "10.0.1.2", "10.0.1.1")
    shop = host(machine, "shop", "shop", "10.0.1.2", "10.0.1.1")
    text = machine.config().replace('port "shop" {', 'port "shop" { vrf = "blue",')
    machine.config = lambda sources: text + f"""
turnpike.vrf "blue" {{ namespace = "{blue.name}" }}
turnpike.loopback "lo0" {{ address = "192.0.2.1/32" }}
turnpike.loopback "b0"  {{ address = "192.0.2.1/32", vrf = "blue" }}
turnpike.loopback "b1"  {{ address = "192.0.2.2/32", vrf = "blue" }}
"""
    machine.start()
    router = machine.router
    assert {"lo0", "plain"} <= set(machine.space.link_settings()) and {"b0", "b1", "shop"} <= set(blue.link_settings())
    assert reaches(plain, "192.0.2.1") and reaches(shop, "192.0.2.1") and reaches(shop, "192.0.2.2"), router.log()
    assert talk(shop, "192.0.2.2", blue) == "192.0.2.2"
    assert not pings(plain, "192.0.2.2")
    blue.run("ip", "link", "set", "lo", "up")
    blue.run("ip", "address", "add", "192.0.2.3/32", "dev", "lo")
    assert reaches(shop, "192.0.2.3") and not pings(plain, "192.0.2.3")
    blue.run("ip", "address", "del", "192.0.2.3/32", "dev", "lo")
    assert wait_for(lambda: not pings(shop, "192.0.2.3"), 10)
    # It moves to the other kernel.
    apply(router, router.config.read_text().replace('address = "192.0.2.2/32", vrf = "blue"', 'address = "192.0.2.2/32"'))
    assert wait_for(lambda: "b1" in machine.space.link_settings() and "b1" not in blue.link_settings(), 10)
    assert reaches(plain, "192.0.2.2") and wait_for(lambda: not pings(shop, "192.0.2.2"), 10)
    machine.finish()


class Two:
    """Two routers with loopbacks, joined by two wires, and a host behind each.

    ```
    a 10.1.0.2 --- r1 lo0 ==== lo0 r2 --- c 10.3.0.2
    ```
    """

    def __init__(self, lab, addresses=True, more=""):
        self.machines = {n: Machine(lab, f"r{n}") for n in (1, 2)}
        one, two = self.machines.values()
        self.a = host(one, "hosts", "a", "10.1.0.2", "10.1.0.1")
        self.c = host(two, "hosts", "c", "10.3.0.2", "10.3.0.1")
        for wire in ("x", "y"):
            net = 12 if wire == "x" else 13
            pair = [[f"10.{net}.0.{n}/24"] if addresses else [] for n in (1, 2)]
            one.join(wire, two, wire, *pair)
        for n, machine in self.machines.items():
            lo0 = f'turnpike.loopback "lo0" {{ address = "192.0.2.{n}/32" }}\n'
            text = machine.config()
            if not addresses:
                text = text.replace('host = true, address = {  }', 'host = true, unnumbered = "lo0"')
            machine.config = lambda sources, text=text, lo0=lo0: text + lo0 + more
            machine.start(config="turnpike.memory { mbufs = 8192 }\n")

    def cut(self, wire, up=False):
        one = self.machines[1]
        one.wires.run("ip", "link", "set", one.wire(wire), "up" if up else "down")


def ospf(n):
    """OSPF on both wires and on the loopback, with timers for a test."""
    text = ""
    for name in ("x", "y"):
        text += (f"interface {name}\n ip ospf area 0\n ip ospf network point-to-point\n ip ospf hello-interval 1\n"
                 " ip ospf dead-interval 5\nexit\n")
    for name in ("lo0", "hosts"):
        text += f"interface {name}\n ip ospf area 0\n ip ospf passive\nexit\n"
    return text + f"router ospf\n ospf router-id 192.0.2.{n}\n timers throttle spf 10 100 1000\nexit\n"


# Hold time in seconds. OSPF may announce a second change five seconds after the first (RFC 2328's MinLSInterval).
HOLD = 12


def bgp(n):
    """A session between the loopbacks, by which the network behind each router is announced."""
    other = 3 - n
    return f"""
router bgp 64500
 bgp router-id 192.0.2.{n}
 neighbor 192.0.2.{other} remote-as 64500
 neighbor 192.0.2.{other} update-source lo0
 neighbor 192.0.2.{other} timers 3 {HOLD}
 neighbor 192.0.2.{other} timers connect 1
 address-family ipv4 unicast
  network 198.51.{n}.0/24
 exit-address-family
"""


def test_a_session_between_loopbacks_outlives_the_link_that_it_ran_over(lab):
    net = Two(lab)
    frr = {}
    for n, machine in net.machines.items():
        machine.run("ip", "route", "add", "blackhole", f"198.51.{n}.0/24")
        frr[n] = Frr(machine.space, {"ospfd": ospf(n), "bgpd": bgp(n)})
        lab._made.callback(frr[n].close)

    def peer():
        return frr[1].json("show bgp ipv4 unicast summary")["peers"]["192.0.2.2"]

    assert wait_for(lambda: peer()["state"] == "Established" and peer()["pfxRcd"] == 1, 60, 0.2), (
        frr[1].vtysh("show ip ospf neighbor"), frr[1].vtysh("show ip route"))
    assert wait_for(lambda: frr[1].vtysh("show ip ospf neighbor").count("Full") == 2, 30, 0.2)
    assert reaches(net.a, "10.3.0.2", 30)
    router = net.machines[1].router

    def ports():
        return {path["port"] for path in router.show("route", "192.0.2.2")["paths"]}

    # Its routes are recursive: by the loopback's, over both wires.
    assert wait_for(lambda: ports() == {"x", "y"}, 20), router.show("route", "192.0.2.2")
    since = peer()["connectionsEstablished"]
    for wire, other in (("x", "y"), ("y", "x")):
        net.cut(wire)
        assert wait_for(lambda other=other: ports() == {other}, 20)
        assert reaches(net.a, "10.3.0.2", 20)
        # The kernel's route follows zebra's, not the router's.
        assert reaches(net.machines[1].space, "192.0.2.2", 20, source="192.0.2.1")
        broken = wait_for(lambda: (peer()["connectionsEstablished"], peer()["state"]) != (since, "Established"), HOLD + 1, 0.5)
        assert not broken, frr[1].log("bgpd")
        tables.assert_agree(net.machines[1], frr[1], flapped=True)
        # The adjacency returns; so does the path, if zebra restores its next hop.
        net.cut(wire, up=True)
        assert wait_for(lambda: frr[1].vtysh("show ip ospf neighbor").count("Full") == 2, 30, 0.2)
    for machine in net.machines.values():
        machine.finish()


def test_ospf_over_unnumbered_ports(lab):
    """Both wires have the loopback's address (RFC 2328 8.1, RFC 5309)."""
    net = Two(lab, addresses=False)
    assert interface(net.machines[1].router, "x")["addresses"] == ["192.0.2.1/32"]
    frr = {}
    for n, machine in net.machines.items():
        frr[n] = Frr(machine.space, {"ospfd": ospf(n)})
        lab._made.callback(frr[n].close)
    assert wait_for(lambda: frr[1].vtysh("show ip ospf neighbor").count("Full") == 2, 40, 0.2), (
        frr[1].vtysh("show ip ospf neighbor"), frr[1].vtysh("show ip ospf interface"))
    assert reaches(net.a, "10.3.0.2", 30), (net.machines[1].ip("route").stdout, net.machines[1].router.show("routes"))
    assert reaches(net.a, "192.0.2.2", 10)
    router = net.machines[1].router

    def ports():
        return {path["port"] for path in router.show("route", "10.3.0.2")["paths"]}

    assert wait_for(lambda: ports() == {"x", "y"}, 20), router.show("route", "10.3.0.2")
    net.cut("x")
    assert wait_for(lambda: ports() == {"y"}, 20) and reaches(net.a, "10.3.0.2", 10)
    for machine in net.machines.values():
        machine.finish()


BIRD = """
router id 192.0.2.{n};
protocol device {{ scan time 1; }}
protocol direct {{ ipv4; interface "lo0", "hosts"; }}
protocol kernel {{ ipv4 {{ import none; export where source ~ [RTS_OSPF, RTS_OSPF_EXT2, RTS_BGP]; }}; merge paths yes; }}
protocol ospf v2 {{
  ecmp yes;
  ipv4 {{ import all; export none; }};
  area 0 {{
    interface "x", "y" {{ type ptp; hello 1; dead 5; }};
    interface "lo0", "hosts" {{ stub; }};
  }};
}}
protocol bgp peer {{
  local 192.0.2.{n} as 64500; neighbor 192.0.2.{other} as 64500; multihop;
  connect delay time 1; connect retry time 1; hold time 12;
  ipv4 {{ import all; export none; }};
}}
"""


@pytest.mark.parametrize("addresses", [True, False], ids=["numbered", "unnumbered"])
def test_bird_speaks_from_a_loopback(lab, addresses):
    net = Two(lab, addresses=addresses)
    birds = {}
    for n, machine in net.machines.items():
        birds[n] = Bird(machine.space, BIRD.format(n=n, other=3 - n))
        lab._made.callback(birds[n].close)
    assert wait_for(lambda: birds[1].is_up("peer"), 60, 0.2), birds[1].control("show", "protocols", "all")
    assert "dev lo0" in birds[1].control("show", "route", "192.0.2.1/32", "all") or "lo0" in birds[1].control(
        "show", "route", "192.0.2.1/32")
    assert reaches(net.a, "10.3.0.2", 30) and reaches(net.a, "192.0.2.2", 10)
    router = net.machines[1].router
    assert wait_for(lambda: len(router.show("route", "192.0.2.2")["paths"]) == 2, 30), router.show("route", "192.0.2.2")
    net.cut("x")
    assert reaches(net.a, "10.3.0.2", 20) and not wait_for(lambda: not birds[1].is_up("peer"), HOLD + 1, 0.5)
    for machine in net.machines.values():
        machine.finish()


def test_unnumbered_ports_without_a_kernel_resolve_each_other(lab):
    """A host that has an address without a network asks for the router's, which is on no network either."""
    ports = """
local turnpike = require "turnpike"
turnpike.loopback "lo0" { address = "192.0.2.255/32" }
turnpike.port "left"  { device = "tp-left", unnumbered = "lo0" }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
turnpike.route "192.0.2.0/28" { port = "left" }
"""
    net = Hosts(lab, ports=ports)
    # A host that asks would be content with an announcement.
    time.sleep(ANNOUNCING_SECONDS)
    net.left.run("ip", "address", "flush", "dev", "eth0", "scope", "global")
    net.left.run("ip", "address", "add", "192.0.2.7/32", "dev", "eth0")
    net.left.run("ip", "route", "add", "default", "via", "192.0.2.255", "dev", "eth0", "onlink")
    assert reaches(net.left, "192.0.2.255"), net.router.log()
    assert reaches(net.left, "10.0.2.2") and pings(net.right, "192.0.2.7")
    # And the other way: the router asks first.
    net.left.run("ip", "neighbour", "flush", "all")
    net.router.command("neighbour", "del", "192.0.2.7", check=False)
    assert reaches(net.right, "192.0.2.7")
    # An address that no route leads to by the port is not believed.
    net.left.run("ip", "address", "add", "192.0.2.77/32", "dev", "eth0")
    assert not pings(net.left, "10.0.2.2", source="192.0.2.77")
    assert net.router.neighbour("192.0.2.77") is None
    net.router.stop()

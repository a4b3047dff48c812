"""Network namespaces as VRFs: host interfaces, the kernel's routes, and FRR's VRFs with `vrf-backend netns`."""

import pytest

from lib.apply import apply, plan, refused, write
from lib.frr import Frr, bgp
from lib.kernel import pings
from lib.netns import veth, wait_for
from lib.traffic import Sink, Stream, lost

# The network that each port is on; those of the two VRFs are the same.
SIDES = {"b1": 1, "b2": 2, "r1": 1, "r2": 2, "plain": 3}
VRFS = {"b": "blue", "r": "red"}


class Net:
    """A router with a Linux host behind each port, whose host interfaces are in the namespaces of their VRFs."""

    def __init__(self, lab, start=True):
        self.wires = lab.namespace("router")
        self.spaces = {name: lab.namespace(name) for name in VRFS.values()}
        self.hosts = {}
        for name, side in SIDES.items():
            space = self.hosts[name] = lab.namespace(name)
            veth(self.wires, f"tp-{name}", space, "eth0")
            space.run("ip", "address", "add", f"10.0.{side}.2/24", "dev", "eth0")
            space.run("ip", "address", "add", f"fd00:{side}::2/64", "dev", "eth0", "nodad")
            space.run("ip", "route", "add", "default", "via", f"10.0.{side}.1")
            space.run("ip", "-6", "route", "add", "default", "via", f"fd00:{side}::1")
        for space in (self.wires, *self.spaces.values()):
            # A packet that arrives passed through Turnpike.
            space.sysctl("net.ipv4.ip_forward", 0)
            space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.router = lab.router(self.wires, self.config()) if start else None

    def config(self, vrfs=("blue", "red"), ports=tuple(SIDES)):
        lines = ['local turnpike = require "turnpike"', 'turnpike.routes_from { "kernel" }']
        lines += [f'turnpike.vrf "{name}" {{ namespace = "{self.spaces[name].name}" }}' for name in vrfs]
        for name in ports:
            vrf = VRFS.get(name[0])
            vrf = f'vrf = "{vrf}", ' if vrf in vrfs else ""
            lines.append(
                f'turnpike.port "{name}" {{ device = "tp-{name}", {vrf}'
                f'address = {{ "10.0.{SIDES[name]}.1/24", "fd00:{SIDES[name]}::1/64" }} }}')
        return "\n".join(lines) + "\n"

    def owns(self, name, *addresses):
        for address in addresses:
            self.hosts[name].run("ip", "address", "add", address, "dev", "lo")

    def pings(self, name, target):
        return self.hosts[name].run("ping", "-n", "-c", "1", "-W", "2", target, check=False).returncode == 0

    def reaches(self, name, target):
        return wait_for(lambda: self.pings(name, target), 20)

    def link(self, name):
        (port,) = [port for port in self.router.show("ports") if port["name"] == name]
        return port["link"], port["host"]["state"]

    def routes(self, vrf, source="kernel"):
        routes = self.router.show("routes", "--vrf", vrf, "--source", source)
        return {route["prefix"]: route["paths"][0].get("port") for route in routes if route.get("paths")}

    def finish(self):
        self.router.counters()
        self.router.stop()


def test_the_kernel_s_routes_of_a_namespace_are_the_vrf_s(lab):
    net = Net(lab)
    for name in SIDES:
        space = net.spaces.get(VRFS.get(name[0]), net.wires)
        assert f"10.0.{SIDES[name]}.1/24" in space.run("ip", "address", "show", name).stdout
    for first, second in (("b1", "10.0.2.2"), ("r1", "10.0.2.2"), ("b1", "fd00:2::2"), ("r1", "fd00:2::2")):
        assert net.reaches(first, second), net.router.log()
    # The kernel's own sockets: each has its ARP.
    for space in net.spaces.values():
        space.run("ping", "-n", "-c", "1", "-W", "5", "10.0.1.2")
    net.owns("b2", "198.51.100.1")
    net.owns("r2", "198.51.100.1")
    blue, red = net.spaces["blue"], net.spaces["red"]
    blue.run("ip", "route", "add", "198.51.100.0/24", "via", "10.0.2.2")
    # Both kernels number nexthop objects by themselves.
    for space, gateway in ((blue, "10.0.2.2"), (red, "10.0.1.2")):
        device = "b2" if space is blue else "r1"
        space.run("ip", "nexthop", "add", "id", 7, "via", gateway, "dev", device)
        space.run("ip", "route", "add", "203.0.113.0/24", "nhid", 7)
    net.wires.run("ip", "route", "add", "192.0.2.0/24", "via", "10.0.3.2")
    blue_routes = {"198.51.100.0/24", "203.0.113.0/24"}
    assert wait_for(lambda: {r["prefix"] for r in net.router.show("routes", "--vrf", "blue", "--source", "kernel")} == blue_routes)
    assert wait_for(lambda: net.router.show("route", "203.0.113.1", "--vrf", "blue")["paths"][0]["port"] == "b2")
    assert wait_for(lambda: net.router.show("route", "203.0.113.1", "--vrf", "red")["paths"][0]["port"] == "r1")
    assert wait_for(lambda: set(net.routes("default")) == {"192.0.2.0/24"})
    assert net.reaches("b1", "198.51.100.1") and not net.pings("r1", "198.51.100.1")
    # One kernel's removal is not another's.
    red.run("ip", "route", "del", "203.0.113.0/24")
    assert wait_for(lambda: net.router.show("route", "203.0.113.1", "--vrf", "red")["type"] == "no-route")
    assert net.router.show("route", "203.0.113.1", "--vrf", "blue")["paths"][0]["port"] == "b2"
    assert {vrf["name"]: vrf.get("namespace") for vrf in net.router.show("vrfs")} == {
        "default": None, "blue": blue.name, "red": red.name}
    net.finish()


def test_a_namespace_comes_and_goes_with_its_vrf(lab):
    net = Net(lab, start=False)
    some = ("b1", "b2", "plain")
    net.router = lab.router(net.wires, net.config(("blue",), some))
    assert net.reaches("b1", "10.0.2.2")
    blue, red = net.spaces["blue"], net.spaces["red"]
    for space, name in ((blue, "b2"), (red, "r2")):
        if space is blue:
            space.run("ip", "route", "add", "198.51.100.0/24", "via", "10.0.2.2")
        net.owns(name, "198.51.100.1")
    assert net.reaches("b1", "198.51.100.1")
    apply(net.router, net.config())
    red.run("ip", "route", "add", "198.51.100.0/24", "via", "10.0.2.2")
    assert net.reaches("r1", "10.0.2.2") and net.reaches("r1", "198.51.100.1"), net.router.log()
    assert net.pings("b1", "198.51.100.1")
    net.router.command("rollback")
    assert [vrf["name"] for vrf in net.router.show("vrfs")] == ["default", "blue"]
    assert "r1" not in red.run("ip", "link").stdout
    assert net.pings("b1", "198.51.100.1")
    # The number of the removed VRF, without anything of its namespace.
    apply(net.router, net.config(("blue",), some) + 'turnpike.vrf "green" {}\n')
    assert net.routes("green") == {}
    net.finish()


def links(space):
    return {line.split(": ")[1] for line in space.run("ip", "-o", "link").stdout.splitlines()}


def test_a_host_interface_moves_between_namespaces_of_vrfs(lab):
    net = Net(lab)
    # Among them is the router's own namespace.
    places = {"default": net.wires, **net.spaces}
    text = {vrf: net.config().replace('"tp-plain", ', f'"tp-plain", vrf = "{vrf}", ') for vrf in net.spaces}
    text["default"] = net.config()
    net.owns("plain", "198.51.100.1")
    # A neighbour that is used before the first move.
    assert net.reaches("r1", "10.0.2.2") and wait_for(lambda: pings(net.wires, "10.0.3.2"))
    report, status = plan(net.router, text["blue"])
    changes = {change["what"]: change for change in report["changes"]}
    assert status == 2 and not report["restart"], report
    assert set(changes) == {'port "plain": host', 'port "plain": vrf'}
    assert not any(change["reopens"] for change in changes.values()), changes
    # Neighbours are found before packets are counted.
    assert net.reaches("r1", "10.0.2.2") and net.reaches("r1", "fd00:2::2")
    sink = Sink(net.hosts["r2"])
    stream = Stream(net.hosts["r1"], ["10.0.2.2", "fd00:2::2"], rate=1000)
    assert sink.wait(1)
    for vrf in ("blue", "red", "default", "red", "default", "blue"):
        apply(net.router, text[vrf])
        space = places[vrf]
        assert wait_for(lambda: "10.0.3.1/24" in space.run("ip", "address", "show", "plain", check=False).stdout), vrf
        others = [other for other in places.values() if other is not space]
        assert wait_for(lambda: not any("plain" in links(other) for other in others)), vrf
        assert wait_for(lambda: net.link("plain") == ("up", "up")), net.router.log()
        # The kernel there asks and answers; its routes over the port are the VRF's.
        assert wait_for(lambda: pings(space, "10.0.3.2") and pings(space, "fd00:3::2")), net.router.log()
        space.run("ip", "route", "add", "198.51.100.0/24", "via", "10.0.3.2")
        assert wait_for(lambda: net.routes(vrf).get("198.51.100.0/24") == "plain"), (vrf, net.router.log())
        for other in set(places) - {vrf}:
            assert wait_for(lambda: "198.51.100.0/24" not in net.routes(other)), other
        for name, of in (("b1", "blue"), ("r1", "red")):
            for target in ("10.0.3.2", "198.51.100.1", "fd00:3::2"):
                assert (net.reaches if of == vrf else net.pings)(name, target) == (of == vrf), (vrf, name, target)
    # A namespace that is not there: nothing is changed.
    error = refused(net.router, "apply", write(net.router, text["red"].replace(net.spaces["red"].name, "turnpike-none")))
    assert "turnpike-none" in error, error
    assert net.link("plain") == ("up", "up") and net.reaches("b1", "198.51.100.1")
    net.router.command("rollback")
    assert wait_for(lambda: "plain" in links(net.wires) and "plain" not in links(net.spaces["blue"]))
    assert wait_for(lambda: pings(net.wires, "10.0.3.2")), net.router.log()
    assert lost(stream.stop(), sink) == []
    sink.close()
    net.finish()


class Spaces:
    """A namespace as `Frr` needs it, whose daemons find the VRFs' namespaces under these names in /run/netns, and no
    others: zebra makes a VRF of each."""

    def __init__(self, space, directory, names):
        self.space, self.name = space, space.name
        binds = " && ".join(
            f"touch {directory}/{name} && mount --bind /run/netns/{other.name} {directory}/{name}"
            for name, other in names.items())
        self._before = f"mount -t tmpfs none {directory} && {binds} && mount --rbind {directory} /run/netns && exec \"$@\""

    def spawn(self, *argv, **options):
        return self.space.spawn("unshare", "--mount", "sh", "-c", self._before, "sh", *argv, **options)


BGPD = """
router bgp 65000 vrf {vrf}
 bgp router-id 10.0.1.1
 no bgp ebgp-requires-policy
 neighbor 10.0.1.2 remote-as {peer}
 neighbor 10.0.1.2 timers connect 1
"""


def peer(lab, space, number, prefixes):
    """A BGP speaker at the host of a port, which owns and announces these networks."""
    config = bgp(number, "10.0.1.2", {"10.0.1.1": (65000,)})
    networks = "".join(f" network {prefix}\n" for prefix in prefixes)
    frr = Frr(space, {"bgpd": config.replace(" address-family ipv4 unicast\n", f" address-family ipv4 unicast\n{networks}")})
    lab._made.callback(frr.close)
    for prefix in prefixes:
        space.run("ip", "address", "add", prefix.replace(".0/24", ".1/24"), "dev", "lo")
    return frr


def test_frr_has_two_bgp_instances_with_the_same_prefixes(lab, tmp_path):
    net = Net(lab)
    prefixes = {"b1": ["198.51.100.0/24", "203.0.113.0/24"], "r1": ["198.51.100.0/24", "192.0.2.0/24"]}
    peers = {name: peer(lab, net.hosts[name], 65001 + n, prefixes[name]) for n, name in enumerate(prefixes)}
    inside = Spaces(net.wires, tmp_path, net.spaces)
    zebra = "".join(f"vrf {vrf}\n netns /run/netns/{vrf}\nexit-vrf\n" for vrf in net.spaces)
    bgpd = "".join(BGPD.format(vrf=vrf, peer=65001 + n) for n, vrf in enumerate(net.spaces))
    frr = Frr(inside, {"zebra": zebra, "bgpd": bgpd}, zebra_options=["-n"])
    lab._made.callback(frr.close)
    for vrf, name in (("blue", "b1"), ("red", "r1")):
        expected = dict.fromkeys(prefixes[name], name)
        assert wait_for(lambda: net.routes(vrf) == expected, 60, 0.2), (
            net.routes(vrf), frr.vtysh(f"show bgp vrf {vrf} summary"), frr.log("zebra"), frr.log("bgpd"))
    assert net.routes("default") == {}
    # Each VRF's hosts reach what their own peer announces.
    assert net.reaches("b2", "203.0.113.1") and net.reaches("b2", "198.51.100.1")
    assert net.reaches("r2", "192.0.2.1") and net.reaches("r2", "198.51.100.1")
    assert not net.pings("b2", "192.0.2.1") and not net.pings("r2", "203.0.113.1")
    # One peer withdraws: the other VRF's route to the same prefix stays.
    peers["b1"].configure("router bgp 65001", "address-family ipv4 unicast", "no network 198.51.100.0/24")
    assert wait_for(lambda: net.routes("blue") == {"203.0.113.0/24": "b1"}, 30, 0.2)
    assert set(net.routes("red")) == {"198.51.100.0/24", "192.0.2.0/24"}
    assert net.pings("r2", "198.51.100.1") and not net.pings("b2", "198.51.100.1")
    net.finish()

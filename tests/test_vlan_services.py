"""Services of interfaces on VLANs: a host interface, kernel routes, a VRF, filters, multicast, advertisements."""

import socket
import struct
import threading

import pytest

from lib.apply import apply
from lib.kernel import pings, reaches
from lib.lab import ANNOUNCING_SECONDS, DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Wires
from lib.netns import veth, wait_for
from lib.packets import ethernet, forwarded, icmp, ipv4, ipv6, pattern, tagged, udp, unpadded, untagged
from lib.router import Change

SERVICE = 0x88A8


class Pair:
    """Two routers joined by a wire. Each has host interfaces of its port, of a VLAN on it, and of one behind a
    service tag, in a namespace, where the kernel is the router's host. Network N: 10.0.N.1 and .2, fd00:N::1, ::2."""

    NETWORKS = {1: "p", 5: "p.5", 7: "s.7"}

    def __init__(self, lab, driver):
        self.spaces, self.routers = [], []
        insides = [lab.namespace("one"), lab.namespace("two")]
        veth(insides[0], "eth0", insides[1], "eth0", mtu=1508)
        for number, inside in enumerate(insides, start=1):
            space = lab.namespace(f"space{number}")
            space.sysctl("net.ipv6.conf.default.accept_dad", 0)
            address = {n: f'address = {{ "10.0.{n}.{number}/24", "fd00:{n}::{number}/64" }}' for n in self.NETWORKS}
            config = f"""
local turnpike = require "turnpike"
turnpike.port "p"   {{ device = "eth0", driver = "{driver}", {address[1]}, host = {{ netns = "{space.name}" }} }}
turnpike.vlan "p.5" {{ parent = "p", id = 5, mtu = 1500, {address[5]} }}
turnpike.vlan "s"   {{ parent = "p", id = 300, protocol = "802.1ad", host = false }}
turnpike.vlan "s.7" {{ parent = "s", id = 7, mtu = 1500, {address[7]}, host = {{ netns = "{space.name}" }} }}
turnpike.routes_from {{ "kernel" }}
"""
            self.spaces.append(space)
            self.routers.append(lab.router(inside, config))

    def config_of(self, number):
        return self.routers[number].config.read_text()


@pytest.fixture(scope="module", params=DRIVERS)
def pair(request, module_lab):
    return Pair(module_lab, request.param)


@pytest.mark.parametrize("network", Pair.NETWORKS)
def test_the_kernel_speaks_on_a_vlan_by_its_host_interface(pair, network):
    one, two = pair.spaces
    name = Pair.NETWORKS[network]
    links = one.link_settings()
    assert set(Pair.NETWORKS.values()) <= set(links) and "s" not in links
    assert links[name]["mtu"] == (1508 if network == 1 else 1500) and "UP" in links[name]["flags"]
    assert reaches(one, f"10.0.{network}.2"), pair.routers[0].log()
    assert reaches(one, f"fd00:{network}::2"), pair.routers[0].log()
    # A packet as large as the MTU, and one that is cut into fragments.
    assert pings(two, f"10.0.{network}.1", size=1472, timeout=5) and pings(two, f"10.0.{network}.1", size=4000, timeout=5)
    assert pings(two, f"fd00:{network}::1", size=1452, timeout=5)


@pytest.mark.parametrize("network", Pair.NETWORKS)
def test_a_stream_of_the_kernel_arrives_whole_behind_tags(pair, network):
    """TCP leaves checksums and segmentation to the host interface, in front of the tags."""
    one, two = pair.spaces
    assert reaches(one, f"10.0.{network}.2")
    data = pattern(2_000_000)
    with two.entered():
        server = socket.create_server((f"10.0.{network}.2", 0))
    received = bytearray()

    def serve():
        connection = server.accept()[0]
        while chunk := connection.recv(65536):
            received.extend(chunk)
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with one.entered():
        client = socket.create_connection(server.getsockname(), 20)
    client.sendall(data)
    client.close()
    thread.join(60)
    server.close()
    assert bytes(received) == data
    for router in pair.routers:
        assert router.counters()["dropped"].get("bad-checksum", 0) == 0


def test_a_route_of_the_kernel_leads_over_a_vlan(pair):
    one, two = pair.spaces
    two.run("ip", "address", "replace", "198.51.100.1/32", "dev", "lo")
    one.run("ip", "route", "replace", "198.51.100.0/24", "via", "10.0.5.2", "dev", "p.5")
    router = pair.routers[0]

    def leads():
        route = router.show("route", "198.51.100.1")
        return route["type"] == "unicast" and [path["port"] for path in route["paths"]] == ["p.5"]

    assert wait_for(leads, 10), router.show("route", "198.51.100.1")
    assert reaches(one, "198.51.100.1")
    one.run("ip", "link", "set", "p.5", "down")
    assert wait_for(lambda: router.show("route", "198.51.100.1")["type"] == "no-route", 10)
    found = {interface["name"]: interface for interface in router.show("interfaces")}
    assert found["p.5"]["host"]["state"] == "down" and found["s.7"]["host"]["state"] == "up", found
    one.run("ip", "link", "set", "p.5", "up")
    assert wait_for(lambda: found_up(router, "p.5"), 10)
    assert reaches(one, "10.0.5.2") and reaches(one, "fd00:7::2")


def found_up(router, name):
    return any(i["name"] == name and i["host"]["state"] == "up" for i in router.show("interfaces"))


def test_a_host_interface_lives_through_changes_of_other_vlans(pair):
    """The kernel interface is the same one after changes, and a removed VLAN's is gone."""
    one, router = pair.spaces[0], pair.routers[0]

    def numbers():
        return {name: link["ifindex"] for name, link in one.link_settings().items()}

    before = numbers()
    more = 'turnpike.vlan "p.9" { parent = "p", id = 9, address = "10.0.9.1/24" }\n'
    apply(router, pair.config_of(0) + more)
    after = numbers()
    assert after.pop("p.9") and after == before
    assert wait_for(lambda: "10.0.9.1" in one.run("ip", "address", "show", "p.9").stdout, 10)
    apply(router, pair.config_of(0))
    assert wait_for(lambda: numbers() == before, 10), numbers()
    assert pings(one, "10.0.5.2", timeout=5) and pings(one, "10.0.7.2", timeout=5)


VRFS = PORTS + f"""
turnpike.vrf "blue" {{}}
turnpike.vlan "left.b"  {{ parent = "left",  id = 20, address = {{ "10.0.1.1/24", "fd00:1::1/64" }}, vrf = "blue" }}
turnpike.vlan "right.b" {{ parent = "right", id = 20, address = {{ "10.0.2.1/24", "fd00:2::1/64" }}, vrf = "blue" }}
"""


def neighbours(*names):
    """Static neighbours of these interfaces, by pairs of network and name."""
    macs = {1: HOST_A_MAC, 2: HOST_B_MAC}
    return "".join(
        f'turnpike.neighbour "{address}" {{ port = "{name}", mac = "{macs[network]}" }}\n'
        for network, name in names for address in (f"10.0.{network}.2", f"fd00:{network}::2")
    )


def frame(family, source="10.0.1.2", destination="10.0.2.2", length=100, port=2000):
    """From the left host to the right one."""
    if family == 4:
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800,
                        ipv4(source, destination, udp(source, destination, 1000, port, pattern(length))))
    a, b = "fd00:1::2", "fd00:2::2"
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(a, b, udp(a, b, 1000, port, pattern(length))))


@pytest.mark.parametrize("family", [4, 6])
def test_vlans_in_vrfs_may_have_the_ports_own_networks(lab, family):
    static = neighbours((1, "left"), (2, "right"), (1, "left.b"), (2, "right.b"))
    wires = Wires(lab, static, ports=VRFS, calm=True)
    wires.drain()
    sent = frame(family)
    for tags in ([], [(0x8100, 0, 20)]):
        wires.left.send(tagged(sent, 20) if tags else sent)
        (arrived,) = wires.right.expect(1)
        seen, found = untagged(arrived)
        assert (unpadded(seen), found) == (forwarded(sent, RIGHT_MAC, HOST_B_MAC), tags)
    wires.router.counters()
    wires.router.stop()


def bare(sent):
    """A frame without its tags."""
    return untagged(sent)[0]


def test_a_filter_of_a_vlan_judges_its_packets_only(lab):
    config = """
turnpike.filter "no-dns" { { proto = "udp", to_port = 53, action = "drop", name = "dns" }, default = "accept" }
turnpike.vlan "left.5"  { parent = "left", id = 5, address = "10.0.5.1/24", filter = { inward = "no-dns" } }
turnpike.vlan "right.6" { parent = "right", id = 6, address = "10.0.6.1/24", filter = { outward = "no-dns" } }
""" + f'turnpike.neighbour "10.0.6.2" {{ port = "right.6", mac = "{HOST_B_MAC}" }}\n'
    wires = Wires(lab, config, calm=True)
    wires.drain()

    passing = [
        frame(4, port=53),
        tagged(frame(4, source="10.0.5.2", port=54), 5),
        frame(4, destination="10.0.6.2", port=54),
    ]
    dropped = [tagged(frame(4, source="10.0.5.2", port=53), 5), frame(4, destination="10.0.6.2", port=53)]
    # Those of the port's own network pass whatever the VLANs' filter says; a dropped one would arrive before the next.
    for sent in (passing[0], dropped[0], passing[1], dropped[1], passing[2]):
        wires.left.send(sent)
    arrived = [untagged(one)[0] for one in wires.right.expect(3)]
    assert [(one[26:34], one[36:38]) for one in arrived] == [(sent[26:34], sent[36:38]) for sent in map(bare, passing)]
    (shown,) = [row for row in wires.router.show("filters") if row["name"] == "no-dns"]
    assert [rule["packets"] for rule in shown["rules"] if rule["name"] == "dns"] == [2]
    wires.router.stop()


def test_a_packet_to_a_group_gets_the_tags_of_each_interface(lab):
    config = """
turnpike.vlan "right.6" { parent = "right", id = 6, address = "10.0.6.1/24" }
turnpike.vlan "s"       { parent = "right", id = 300, protocol = "802.1ad" }
turnpike.vlan "s.7"     { parent = "s", id = 7, address = "10.0.7.1/24" }
turnpike.vlan "left.5"  { parent = "left", id = 5, address = "10.0.5.1/24" }
turnpike.multicast "239.1.1.1" { from = "left.5", to = { "right", "right.6", "s.7", "left" } }
"""
    wires = Wires(lab, config, calm=True)
    wires.drain()
    packet = ipv4("10.0.5.2", "239.1.1.1", udp("10.0.5.2", "239.1.1.1", 1000, 5000, pattern(300)), ttl=9)
    sent = ethernet("01:00:5e:01:01:01", HOST_A_MAC, 0x0800, packet)
    change = Change(wires.router)
    wires.left.send(tagged(sent, 5), sent)
    arrived = [untagged(found) for found in wires.right.expect(3)] + [untagged(found) for found in wires.left.expect(1)]
    expected = forwarded(sent, "00:00:00:00:00:00", "01:00:5e:01:01:01")[12:]
    assert all(found[12:] == expected and found[:6] == sent[:6] for found, _ in arrived)
    tags = [[(protocol, vlan) for protocol, _, vlan in tags] for _, tags in arrived]
    assert sorted(tags) == sorted([[], [(0x8100, 6)], [(SERVICE, 300), (0x8100, 7)], []])
    counted = change(received=2)
    assert counted["replicated"] == 3 and counted["sent"] == 4, counted
    assert sum(counted["dropped"].values()) == 1, "the untagged one is from another interface"
    wires.router.stop()


def test_a_vlan_advertises_itself(lab):
    config = """
turnpike.vlan "left.5" { parent = "left", id = 5, priority = 6, address = "fd00:5::1/64",
  advertise = { interval_s = 4, prefixes = { "fd00:5::/64" } } }
"""
    wires = Wires(lab, config)
    advertisements = wires.left.expect(1, lambda seen: untagged(seen)[0][12:14] == b"\x86\xdd" and untagged(seen)[0][54] == 134, 20)
    assert advertisements, wires.router.log()
    seen, tags = untagged(advertisements[0])
    assert tags == [(0x8100, 6, 5)] and bytes.fromhex("fd000005") in seen
    wires.router.stop()


def test_a_packet_too_large_for_a_vlan_is_reported(lab):
    """RFC 1191 4: the MTU of the VLAN counts, not the port's."""
    config = 'turnpike.vlan "right.6" { parent = "right", id = 6, mtu = 1280, address = "10.0.6.1/24" }\n' \
        f'turnpike.neighbour "10.0.6.2" {{ port = "right.6", mac = "{HOST_B_MAC}" }}\n'
    wires = Wires(lab, config, calm=True)
    wires.drain()
    datagram = udp("10.0.1.2", "10.0.6.2", 1000, 2000, pattern(1300))
    wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.6.2", datagram, flags=2)))
    (error,) = wires.left.expect(1, lambda seen: seen[23] == 1)
    assert (error[34], error[35]) == (3, 4) and struct.unpack("!H", error[40:42]) == (1280,)
    wires.router.stop()


def test_every_identifier_of_a_port_can_be_a_vlan(lab):
    """4,094 VLANs on a port: each of some of them answers, and the router starts and stops as usual."""
    vlans = """
for id = 1, 4094 do
  local network = ("100.%d.%d"):format(64 + math.floor(id / 256), id % 256)
  turnpike.vlan("v" .. id)({ parent = "left", id = id, address = network .. ".1/24" })
end
"""
    wires = Wires(lab, vlans, calm=True)
    wires.drain()
    for vlan in (1, 2, 255, 256, 2048, 4093, 4094):
        network = f"100.{64 + vlan // 256}.{vlan % 256}"
        echo = ipv4(f"{network}.2", f"{network}.1", icmp(8, 0, struct.pack("!HH", 1, vlan), b"data"), protocol=1)
        request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + bytes.fromhex(HOST_A_MAC.replace(":", "")) \
            + bytes(map(int, f"{network}.2".split("."))) + bytes(6) + bytes(map(int, f"{network}.1".split(".")))
        arp = ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x0806, request)
        wires.left.send(tagged(arp, vlan), tagged(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, echo), vlan))

        def is_reply(seen, vlan=vlan):
            inner, tags = untagged(seen)
            return tags == [(0x8100, 0, vlan)] and inner[23] == 1 and inner[34] == 0

        assert wires.left.expect(1, is_reply, 5), vlan
    assert len(wires.router.show("interfaces")) == 4096
    wires.router.counters()
    wires.router.stop()

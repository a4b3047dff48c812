"""Host interfaces: the machine's own kernel is the router's host on a port.

The router's devices are in one namespace, its host interfaces in another (`space`), where the
programs of the tests run as routing daemons would. Real Linux hosts or raw wires are on the ports.
"""

import json
import re
import signal
import socket
import statistics
import struct
import threading
import time

import pytest

from lib.kernel import pings
from lib.lab import DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, Hosts, Lab, Wires
from lib.netns import veth, wait_for
from lib.packets import ethernet, icmp, ipv4, mac_bytes, pattern, pcap_file, udp
from lib.router import Change

ISIS_GROUP = "01:80:c2:00:00:14"
LLDP_GROUP = "01:80:c2:00:00:0e"
SOL_PACKET, PACKET_ADD_MEMBERSHIP = 263, 1


def ports(space, driver=None, left="", right=""):
    """Two ports with host interfaces in a namespace; `left` and `right` are further fields."""
    by = f'driver = "{driver}", ' if driver else ""
    return f"""
local turnpike = require "turnpike"
local host = {{ netns = "{space.name}" }}
turnpike.port "left" {{ device = "tp-left", {by}{left} host = host,
  address = {{ "10.0.1.1/24", "fd00:1::1/64" }} }}
turnpike.port "right" {{ device = "tp-right", {by}{right} host = host,
  address = {{ "10.0.2.1/24", "fd00:2::1/64" }} }}
"""


def give_addresses(space):
    """The addresses of the configuration, on the host interfaces."""
    for side, name in ((1, "left"), (2, "right")):
        space.run("ip", "address", "replace", f"10.0.{side}.1/24", "dev", name)
        space.run("ip", "address", "replace", f"fd00:{side}::1/64", "dev", name, "nodad")


class Machine:
    """A router between two Linux hosts, its host interfaces in `space`."""

    def __init__(self, lab, driver=None, mtu=1500):
        self.space = lab.namespace("space")
        self.space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        hosts = Hosts(lab, ports=ports(self.space, driver), mtu=mtu)
        self.left, self.right, self.inside, self.router = hosts.left, hosts.right, hosts.inside, hosts.router
        give_addresses(self.space)


@pytest.fixture(scope="module", params=DRIVERS)
def machine(request):
    """One machine for all tests that leave it unchanged."""
    lab = Lab()
    try:
        yield Machine(lab, request.param)
    finally:
        lab.close()


class WiredMachine:
    """A router between raw wires, its host interfaces in `space`, which sends nothing by itself."""

    def __init__(self, lab, config="", **options):
        self.space = lab.namespace("space", quiet=True)
        self.wires = Wires(lab, ports=ports(self.space, **options), config=config)
        self.left, self.router = self.wires.left, self.wires.router
        self.space.run("ip", "address", "replace", "10.0.1.1/24", "dev", "left")
        self.space.run("ip", "address", "replace", "10.0.2.1/24", "dev", "right")
        self.wires.drain()


@pytest.fixture(scope="module")
def wired():
    """One machine for all tests that leave it unchanged."""
    lab = Lab()
    try:
        yield WiredMachine(lab)
    finally:
        lab.close()


def packet_socket(namespace, interface, ethertype=3):
    """A packet socket on an interface, for all frames unless specified otherwise."""
    with namespace.entered():
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype))
    opened.bind((interface, ethertype))
    opened.settimeout(3)
    return opened


def arrivals(change, received):
    """The number of frames that arrived, up to so many; the kernel may send others meanwhile, for example probes of a
    neighbour."""
    return {key: value for key, value in change(received=received).items() if key not in ("originated", "sent")}


def received(listener, wanted, seconds=3.0):
    """Returns true if this frame arrives; other frames are ignored."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        listener.settimeout(max(end - time.monotonic(), 0.01))
        try:
            frame = listener.recv(65536)
        except TimeoutError:
            return False
        if frame[: len(wanted)] == wanted:
            return True
    return False


# --- The interface


def link(namespace, name):
    """An interface as `ip` shows it, None if there is none."""
    said = namespace.run("ip", "-j", "-d", "link", "show", name, check=False)
    return json.loads(said.stdout)[0] if said.returncode == 0 else None


def test_it_has_the_ports_name_mac_and_mtu_and_is_in_its_namespace(lab):
    machine = Machine(lab, mtu=1400)
    for name, mac in (("left", LEFT_MAC), ("right", "02:00:00:00:02:01")):
        found = link(machine.space, name)
        assert found["address"] == mac and found["mtu"] == 1400
        assert "UP" in found["flags"] and found["linkinfo"]["info_data"]["type"] == "tap"
        assert link(machine.inside, name) is None
    shown = machine.router.show("ports")[0]["host"]
    assert shown["netns"] == f"/run/netns/{machine.space.name}"
    assert shown["index"] == link(machine.space, "left")["ifindex"]
    machine.router.stop()
    # It stays, with its addresses and the kernel's routes, for the next start.
    assert "NO-CARRIER" in link(machine.space, "left")["flags"]


def test_without_a_namespace_it_is_in_the_routers_own(lab):
    wires = Wires(lab, ports="""
local turnpike = require "turnpike"
turnpike.port "left" { device = "tp-left", address = "10.0.1.1/24", host = true }
turnpike.port "right" { device = "tp-right", address = "10.0.2.1/24" }
""")
    assert link(wires.inside, "left")["address"] == LEFT_MAC
    assert link(wires.inside, "right") is None
    assert "netns" not in wires.router.show("ports")[0]["host"] or \
        wires.router.show("ports")[0]["host"]["netns"] is None
    assert "host" not in wires.router.show("ports")[1]
    wires.router.stop()


def test_a_name_that_is_taken_is_an_error(lab):
    wires = Wires(lab, start=False)
    wires.inside.run("ip", "link", "add", "lan", "type", "veth", "peer", "name", "other")
    router = lab.router(wires.inside, """
local turnpike = require "turnpike"
turnpike.port "lan" { device = "tp-left", address = "10.0.1.1/24", host = true }
""", wait=False)
    router.process.wait(20)
    assert router.process.returncode != 0
    assert 'port "lan": host interface lan: exists already; ' in router.log()
    assert link(wires.inside, "lan")["linkinfo"]["info_kind"] == "veth", "left alone"


def test_a_namespace_that_is_missing_is_an_error(lab):
    wires = Wires(lab, start=False)
    router = lab.router(wires.inside, """
local turnpike = require "turnpike"
turnpike.port "left" { device = "tp-left", address = "10.0.1.1/24", host = { netns = "tp-none" } }
""", wait=False)
    router.process.wait(20)
    assert router.process.returncode != 0
    assert re.search(r"network namespace .*tp-none.*ip netns add", router.log()), router.log()


def test_after_a_kill_the_next_start_goes_on_with_the_same_interface(lab):
    machine = Machine(lab)
    machine.space.run("ip", "route", "add", "192.0.2.0/24", "via", "10.0.1.2")
    before = link(machine.space, "left")
    machine.router.process.send_signal(signal.SIGKILL)
    machine.router.process.wait()
    router = lab.router(machine.inside, ports(machine.space), socket=machine.router.socket)
    after = link(machine.space, "left")
    assert after["ifindex"] == before["ifindex"] and "LOWER_UP" in after["flags"]
    assert "192.0.2.0/24 via 10.0.1.2" in machine.space.run("ip", "route").stdout
    assert pings(machine.left, "10.0.1.1", 2, 5)
    router.stop()


def test_two_routers_have_interfaces_of_the_same_names(lab):
    first, second = Machine(lab), Machine(lab)
    for machine in (first, second):
        said = machine.left.run("ping", "-n", "-c", 1, "-W", 5, "10.0.1.1").stdout
        assert "1 received" in said
        machine.router.stop()


# --- Traffic of the router itself


@pytest.mark.parametrize("target", ["10.0.1.1", "10.0.2.1", "fd00:1::1", "fe80::ff:fe00:101%eth0"])
def test_the_kernel_answers_arp_nd_and_ping(machine, target):
    machine.left.run("ip", "neighbour", "flush", "dev", "eth0")
    before = machine.router.show("ports")[0]["host"]
    assert pings(machine.left, target, 3, 5)
    after = machine.router.show("ports")[0]["host"]
    for way in ("up", "down"):
        packets = after[f"{way}_packets"] - before[f"{way}_packets"]
        # The echoes, and a neighbour's request or answer.
        assert packets >= 3, (way, before, after)
        assert after[f"{way}_bytes"] - before[f"{way}_bytes"] >= 3 * 98
    neighbours = machine.left.run("ip", "neighbour", "show", "dev", "eth0").stdout
    assert LEFT_MAC in neighbours
    machine.router.counters()


@pytest.mark.parametrize("target", ["10.0.1.2", "fd00:1::2"])
def test_programs_of_the_machine_reach_hosts(machine, target):
    machine.space.run("ip", "neighbour", "flush", "dev", "left")
    assert pings(machine.space, target, 3, 5)


def test_the_kernel_puts_fragments_together(machine):
    for target, size in (("10.0.1.1", 1800), ("fd00:1::1", 4000)):
        assert pings(machine.left, target, 2, 5, size)
    assert machine.router.counters()["dropped"]["local-fragment"] == 0


@pytest.mark.parametrize("family, target, client_in", [
    (socket.AF_INET, "10.0.1.1", "left"), (socket.AF_INET6, "fd00:1::1", "left"),
    (socket.AF_INET, "10.0.1.2", "space"), (socket.AF_INET6, "fd00:1::2", "space"),
])
def test_tcp_both_ways_with_the_router_as_server_and_as_client(machine, family, target, client_in):
    # Like ssh and BGP: a request of one side, a long answer of the other.
    server_in = {"left": machine.space, "space": machine.left}[client_in]
    data = bytes((i * 31 + (i >> 10)) & 0xFF for i in range(1 << 20))
    with server_in.entered():
        listener = socket.socket(family)
    listener.bind((target, 0))
    listener.listen()

    def serve():
        connection, _ = listener.accept()
        with connection:
            got = bytearray()
            while len(got) < len(data) and (part := connection.recv(1 << 16)):
                got.extend(part)
            connection.sendall(bytes(got)[::-1])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with getattr(machine, client_in).entered():
        client = socket.socket(family)
    with client, listener:
        client.settimeout(20)
        client.connect((target, listener.getsockname()[1]))
        client.sendall(data)
        answer = bytearray()
        while part := client.recv(1 << 16):
            answer.extend(part)
    assert bytes(answer) == data[::-1]


# --- Neighbours and addresses, which are the kernel's


@pytest.mark.parametrize("target", ["10.0.2.2", "fd00:2::2"])
def test_neighbours_of_forwarded_packets_are_found_by_the_kernel(machine, target):
    machine.space.run("ip", "neighbour", "flush", "dev", "right")
    assert wait_for(lambda: not machine.router.neighbour(target))
    assert pings(machine.left, target, 3, 5)
    found = machine.router.neighbour(target)
    assert found["mac"] == HOST_B_MAC and found["state"] == "kernel"
    assert HOST_B_MAC in machine.space.run("ip", "neighbour", "show", target).stdout


def test_an_absent_neighbour_is_reported_to_the_sender(machine):
    said = machine.left.run("ping", "-n", "-c", 1, "-W", 8, "10.0.2.99", check=False)
    assert said.returncode != 0 and "Destination Host Unreachable" in said.stdout


def test_an_address_given_to_the_interface_is_the_routers(machine):
    machine.space.run("ip", "address", "add", "10.0.3.1/24", "dev", "left")
    machine.left.run("ip", "address", "add", "10.0.3.2/24", "dev", "eth0")
    try:
        # The router learns of it behind the command that adds it.
        answers = lambda host, to: "1 received" in host.run("ping", "-n", "-c", 1, "-W", 5, to, check=False).stdout
        assert wait_for(lambda: answers(machine.left, "10.0.3.1"), 30), machine.router.log()
        # Forwarded to a network of the added address.
        assert wait_for(lambda: answers(machine.right, "10.0.3.2"), 30), machine.router.log()
    finally:
        machine.left.run("ip", "address", "del", "10.0.3.2/24", "dev", "eth0")
        machine.space.run("ip", "address", "del", "10.0.3.1/24", "dev", "left")
    assert wait_for(lambda: "10.0.3.1/32" not in str(machine.router.show("routes")))


# --- Link and MTU, in step both ways


def test_a_device_without_link_takes_the_carrier_and_gives_it_back(lab):
    machine = Machine(lab)
    machine.right.run("ip", "link", "set", "eth0", "down")
    assert wait_for(lambda: "NO-CARRIER" in link(machine.space, "right")["flags"])
    machine.right.run("ip", "link", "set", "eth0", "up")
    assert wait_for(lambda: "LOWER_UP" in link(machine.space, "right")["flags"])
    machine.router.stop()


def test_show_says_how_the_interface_is_and_why(lab):
    machine = Machine(lab)
    elsewhere = lab.namespace("elsewhere")

    def says(state, reason):
        def seen():
            host = machine.router.show("ports")[1]["host"]
            return (host["state"], host.get("reason")) == (state, reason)

        assert wait_for(seen, 10), machine.router.show("ports")[1]["host"]
        words = f"{state}: {reason}" if reason else state
        for table in (["ports"], ["ports", "--link"]):
            lines = machine.router.command("show", *table).stdout.splitlines()
            place = lines[0].index(" HOST ")
            assert lines[2][place:].strip().startswith(words), lines

    says("up", None)
    machine.space.run("ip", "link", "set", "right", "down")
    says("down", "set down in the kernel")
    machine.space.run("ip", "link", "set", "right", "up")
    says("up", None)
    machine.right.run("ip", "link", "set", "eth0", "down")
    says("no carrier", "the port's device has no link")
    machine.right.run("ip", "link", "set", "eth0", "up")
    says("up", None)
    machine.space.run("ip", "link", "set", "right", "carrier", "off")
    says("no carrier", "taken away in the kernel")
    machine.space.run("ip", "link", "set", "right", "carrier", "on")
    says("up", None)
    machine.inside.run("ip", "link", "set", "tp-right", "name", "tp-away")
    says("no carrier", "the port's device is gone")
    machine.inside.run("ip", "link", "set", "tp-away", "name", "tp-right")
    machine.inside.run("ip", "link", "set", "tp-right", "up")
    says("up", None)
    machine.space.run("ip", "link", "set", "right", "name", "wrong")
    says("gone", "renamed in the kernel")
    machine.space.run("ip", "link", "set", "wrong", "name", "right")
    says("up", None)
    machine.space.run("ip", "link", "set", "right", "netns", elsewhere.name)
    says("gone", "moved to another network namespace")
    elsewhere.run("ip", "link", "del", "right")
    machine.space.run("ip", "link", "del", "left")
    assert wait_for(lambda: machine.router.show("ports")[0]["host"]["state"] == "gone", 10)
    assert machine.router.show("ports")[0]["host"]["reason"] == "removed in the kernel"


def test_the_mtu_of_the_interface_is_the_ports(lab):
    machine = Machine(lab)
    ping = ["ping", "-n", "-c", 1, "-W", 5, "-M", "do", "-s", 1300, "10.0.2.2"]
    assert "1 received" in machine.left.run(*ping).stdout
    machine.space.run("ip", "link", "set", "right", "mtu", "1200")
    assert wait_for(lambda: machine.router.show("ports")[1]["mtu"] == 1200)
    said = machine.left.run(*ping, check=False)
    assert "Frag needed and DF set (mtu = 1200)" in said.stdout, said.stdout
    machine.router.stop()


# --- Multicast and what is not IP


def ospf_hello(group="224.0.0.5", group_mac="01:00:5e:00:00:05"):
    return ethernet(group_mac, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", group, pattern(44), protocol=89, ttl=1))


def test_groups_of_the_link_go_up_though_nobody_joined_them(wired):
    listener = packet_socket(wired.space, "left")
    change = Change(wired.router)
    wired.left.send(ospf_hello())
    assert received(listener, ospf_hello())
    assert arrivals(change, 1) == {"received": 1, "to_host": 1}
    listener.close()


def test_other_groups_go_up_when_a_program_joins_them(wired):
    datagram = udp("10.0.1.2", "239.1.2.3", 4000, 5000, b"to the group")
    frame = ethernet("01:00:5e:01:02:03", HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "239.1.2.3", datagram, ttl=4))
    change = Change(wired.router)
    wired.left.send(frame)
    assert arrivals(change, 1) == {"received": 1, "dropped": {"multicast-not-routed": 1}}
    with wired.space.entered():
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind(("", 5000))
        join = socket.inet_aton("239.1.2.3") + socket.inet_aton("10.0.1.1")
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
    listener.settimeout(3)
    time.sleep(0.2)
    wired.left.send(frame)
    assert listener.recv(100) == b"to the group"
    listener.close()


def isis_hello():
    """IEEE 802.3 with a length, LLC fe-fe-03, an IS-IS hello; 1,497 bytes as daemons pad it."""
    body = b"\xfe\xfe\x03\x83" + pattern(1479)
    return mac_bytes(ISIS_GROUP) + mac_bytes(HOST_A_MAC) + struct.pack("!H", len(body)) + body


def test_isis_goes_both_ways(wired):
    daemon = packet_socket(wired.space, "left")
    with wired.space.entered():
        index = socket.if_nametoindex("left")
    membership = struct.pack("iHH8s", index, 0, 6, mac_bytes(ISIS_GROUP))
    daemon.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)
    change = Change(wired.router)
    wired.left.send(isis_hello())
    assert received(daemon, isis_hello())
    assert arrivals(change, 1) == {"received": 1, "to_host": 1}
    wired.wires.drain()
    own = mac_bytes(ISIS_GROUP) + mac_bytes(LEFT_MAC) + isis_hello()[12:]
    daemon.send(own)
    assert own in wired.left.receive(1.0)
    daemon.close()


def test_lldp_goes_up_and_other_link_protocols_do_not(wired):
    daemon = packet_socket(wired.space, "left")
    lldp = ethernet(LLDP_GROUP, HOST_A_MAC, 0x88CC, pattern(60))
    other = ethernet("01:80:c2:00:00:40", HOST_A_MAC, 0x88CC, pattern(60))
    to_us = ethernet(LEFT_MAC, HOST_A_MAC, 0x88CC, pattern(60))
    change = Change(wired.router)
    wired.left.send(lldp, other, to_us)
    assert received(daemon, lldp)
    assert arrivals(change, 3) == {"received": 3, "to_host": 1, "dropped": {"unknown-ethertype": 2}}
    daemon.close()


FRAMES = """
turnpike.filter "frames" {
  { name = "lldp", ethertype = "lldp", action = "to-host" },
  { name = "pppoe", ethertype = "pppoe-discovery", action = "to-host" },
}
"""


def test_a_filter_gives_frames_to_the_host(lab):
    """Those to any address: a device with a host interface receives the frames that its rules accept, and drops the
    others."""
    space = lab.namespace("space")
    wires = Wires(lab, FRAMES, ports=ports(space, left='filter = "frames",'), calm=True)
    daemon = packet_socket(space, "left")
    to_us = ethernet(LEFT_MAC, HOST_A_MAC, 0x88CC, pattern(60))
    pppoe = ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x8863, pattern(60))
    other = ethernet(LEFT_MAC, HOST_A_MAC, 0x88F7, pattern(60))
    change = Change(wires.router)
    wires.left.send(to_us, pppoe, other)
    assert received(daemon, to_us) and received(daemon, pppoe)
    assert arrivals(change, 3) == {"received": 3, "to_host": 2, "dropped": {"unknown-ethertype": 1}}
    rules = wires.router.show("filters")[0]["rules"]
    assert [rule["packets"] for rule in rules] == [1, 1]
    daemon.close()


# --- A host interface that is down


@pytest.mark.provokes("host-down")
def test_packets_for_an_interface_that_is_down_are_dropped_by_name(lab):
    wired = WiredMachine(lab)
    wired.space.run("ip", "link", "set", "left", "down")
    wired.wires.drain()
    change = Change(wired.router)
    wired.left.send(ospf_hello())
    assert change(received=1)["dropped"] == {"host-down": 1}
    assert wired.router.show("ports")[0]["host"]["up_refused"] == 1
    wired.space.run("ip", "link", "set", "left", "up")
    listener = packet_socket(wired.space, "left")
    wired.left.send(ospf_hello())
    assert received(listener, ospf_hello())
    listener.close()
    wired.router.stop()


# --- Floods

# The address of the first capture-file port, as its driver makes it.
FLOOD_MAC = "02:70:63:61:70:00"


class Flooded:
    """A router whose port "flood" receives these frames without end, as fast as it can take them,
    and whose port "left" leads to a Linux host."""

    def __init__(self, lab, frames):
        self.space = lab.namespace("space")
        self.space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.inside, self.left = lab.namespace("router"), lab.namespace("left")
        veth(self.inside, "tp-left", self.left, "eth0", LEFT_MAC, HOST_A_MAC)
        self.left.run("ip", "address", "add", "10.0.1.2/24", "dev", "eth0")
        self.router = lab.router(self.inside, f"""
local turnpike = require "turnpike"
local host = {{ netns = "{self.space.name}" }}
turnpike.port "left" {{ device = "tp-left", address = "10.0.1.1/24", host = host }}
turnpike.port "flood" {{
  device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=1", address = "10.9.0.1/16", host = host }}
""", files={"in.pcap": pcap_file(frames)})
        self.space.run("ip", "address", "replace", "10.0.1.1/24", "dev", "left")
        self.space.run("ip", "address", "replace", "10.9.0.1/16", "dev", "flood")

    def reasons(self):
        """Drop reasons so far."""
        return set(self.router.dropped())


def flood_frame(packet):
    return ethernet(FLOOD_MAC, HOST_B_MAC, 0x0800, packet)


EXPIRED = [flood_frame(ipv4("10.9.0.2", "10.0.1.2", pattern(40), ttl=1))] * 64
SCAN = [flood_frame(ipv4("10.9.0.2", f"10.9.{i // 250}.{i % 250 + 3}", pattern(40))) for i in range(512)]


@pytest.mark.flood
@pytest.mark.parametrize("frames, refused", [(EXPIRED, "refused-errors"), (SCAN, "refused-resolve")], ids=["expired", "scan"])
def test_a_flood_of_exceptions_neither_delays_nor_drops_the_routers_own_traffic(lab, frames, refused):
    flooded = Flooded(lab, frames)
    assert wait_for(lambda: refused in flooded.reasons(), 20)
    said = flooded.left.run(
        "ping", "-n", "-c", 60, "-i", "0.01", "-W", 5, "10.0.1.1", timeout=60
    ).stdout
    times = [float(time) for time in re.findall(r"time=([\d.]+) ms", said)]
    assert "60 received, 0% packet loss" in said, said[-300:]
    # In one ring with the flood most would have been dropped: it is always full.
    assert statistics.median(times) < 100, times
    flooded.left.run("ip", "neighbour", "flush", "dev", "eth0")
    said = flooded.left.run("ping", "-n", "-c", 1, "-W", 5, "10.0.1.1").stdout
    assert "1 received" in said, "ARP"
    assert not flooded.reasons() & {"refused-neighbour", "refused-routing", "refused-host"}
    flooded.router.stop()


@pytest.mark.flood
@pytest.mark.provokes("refused-host")
def test_more_for_the_host_than_the_slow_path_takes(lab):
    echo = icmp(8, 0, b"\0\1\0\1", pattern(1000))
    flooded = Flooded(lab, [flood_frame(ipv4("10.9.0.2", "10.9.0.1", echo, protocol=1))] * 64)
    assert wait_for(lambda: "refused-host" in flooded.reasons(), 20)
    assert flooded.router.show("ports")
    flooded.router.stop()

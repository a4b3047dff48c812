"""VLANs on emulated NICs, byte for byte, and beside the VLAN devices of a Linux kernel."""

import json
import time
from contextlib import contextmanager

import pytest

from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, pattern, tagged, udp, unpadded, untagged
from lib.raw import RawPort

from .lib.hosts import Inside, Outside
from .lib.nic import KINDS

SERVICE = 0x88A8
HOST_MACS = ["02:00:00:00:01:02", "02:00:00:00:02:02"]

# Networks of the NIC at each side, and their tags.
NETWORKS = {"1": [], "10": [(0x8100, 10)], "13": [(SERVICE, 300), (0x8100, 7)]}


def vlans(side):
    return f"""
turnpike.vlan "port{side}.10" {{ parent = "port{side}", id = 10, address = "10.{side}.10.1/24" }}
turnpike.vlan "s{side}"       {{ parent = "port{side}", id = 300, protocol = "802.1ad" }}
turnpike.vlan "port{side}.7"  {{ parent = "s{side}", id = 7, mtu = 1492, address = "10.{side}.13.1/24" }}
"""


def config(*devices, settings=""):
    lines = ['local turnpike = require "turnpike"']
    for side, device in enumerate(devices):
        lines.append(f'turnpike.port "port{side}" {{ device = "{device}", address = "10.{side}.1.1/24"{settings} }}')
        lines.append(vlans(side))
        for network, name in (("1", f"port{side}"), ("10", f"port{side}.10"), ("13", f"port{side}.7")):
            lines.append(f'turnpike.neighbour "10.{side}.{network}.2" {{ port = "{name}", mac = "{HOST_MACS[side]}" }}')
    return "\n".join(lines) + '\nturnpike.forwarders { cores = "1" }\n'


def with_tags(frame, tags):
    for protocol, vlan in reversed(tags):
        frame = tagged(frame, vlan, protocol)
    return frame


# Kinds whose driver leaves the insertion of tags to the device.
INSERTING = ["e1000e", "e1000", "vmxnet3", "igb"]


@contextmanager
def wired(machine, kind, by_device, change=lambda text: text):
    """A router on two NICs of a kind, whose tags these insert or not, with a changed configuration; and their wires."""
    nics = [machine.nic(kind, index) for index in (0, 1)]
    outside = [Outside(machine, nic, side + 1) for side, nic in enumerate(nics)]
    settings = ", offloads = { vlan = true }" if by_device else ""
    router = machine.router(change(config(*(host.device for host in outside), settings=settings)))
    wires = [RawPort(nic.host, "eth0") for nic in nics]
    try:
        yield router, wires
        router.counters()
        router.stop()
    finally:
        router.close()
        for wire in wires:
            wire.close()


@pytest.mark.parametrize("kind, by_device", [(kind, False) for kind in KINDS] + [(kind, True) for kind in INSERTING])
def test_tagged_frames_go_both_ways_by_every_nic(machine, kind, by_device):
    with wired(machine, kind, by_device) as (router, wires):
        offloads = [one for port in router.show("ports") for one in port["offloads"] if one["offload"] == "vlan"]
        assert [one["on"] for one in offloads] == [by_device] * 2
        macs = [port["mac"] for port in router.show("ports")]
        for side in (0, 1):
            other = 1 - side
            for source, in_tags in NETWORKS.items():
                for destination, out_tags in NETWORKS.items():
                    a, b = f"10.{side}.{source}.2", f"10.{other}.{destination}.2"
                    frames = [ethernet(macs[side], HOST_MACS[side], 0x0800, ipv4(a, b, udp(a, b, 1, 2, pattern(length))))
                              for length in (18, 700, 1472 if len(in_tags + out_tags) < 2 else 1464)]
                    wires[other].drain()
                    wires[side].send(*(with_tags(frame, in_tags) for frame in frames))
                    arrived = wires[other].expect(
                        len(frames), lambda frame: untagged(frame)[0][12:14] == b"\x08\x00", 20)
                    seen = [untagged(frame) for frame in arrived]
                    expected = [forwarded(frame, macs[other], HOST_MACS[other]) for frame in frames]
                    assert [unpadded(frame) for frame, _ in seen] == expected, (kind, source, destination)
                    tags = [[(protocol, vlan) for protocol, _, vlan in tags] for _, tags in seen]
                    assert tags == [out_tags] * len(frames), (kind, source, destination)


@pytest.mark.parametrize("kind, by_device", [("e1000e", True), ("e1000e", False), ("virtio", False)])
def test_a_vlan_has_its_rate_whoever_inserts_its_tag(machine, kind, by_device):
    shaped = 'parent = "port1", id = 10'
    slow = lambda text: text.replace(shaped, f'{shaped}, shape = "64kbit"')  # noqa: E731
    with wired(machine, kind, by_device, slow) as (router, wires):
        mac = next(port["mac"] for port in router.show("ports") if port["name"] == "port0")
        count, length, begin = 30, 972, time.monotonic()
        for number in range(count):
            for network in NETWORKS:
                a, b = "10.0.1.2", f"10.1.{network}.2"
                data = number.to_bytes(2, "big").ljust(length, b"\0")
                wires[0].send(ethernet(mac, HOST_MACS[0], 0x0800, ipv4(a, b, udp(a, b, 1, 2, data))))
        arrived = wires[1].expect(3 * count, lambda frame: untagged(frame)[0][12:14] == b"\x08\x00", 60)
        seen = [(network, int.from_bytes(plain[42:44], "big")) for plain, tags in map(untagged, arrived)
                for network, expected in NETWORKS.items() if [(of, vlan) for of, _, vlan in tags] == expected]
        for network in NETWORKS:
            assert [number for of, number in seen if of == network] == list(range(count)), (network, seen)
        taken = time.monotonic() - begin
        # A burst, a quantum and a frame pass at once. A slow machine takes longer, never less.
        assert taken >= 0.98 * (count * 1014 - 3036 - 1522 - 1014) * 8 / 64_000, taken
        rows = {row["interface"]: {one["name"]: one["sent"] for one in row["classes"]} for row in router.show("queues")}
        assert {name: of["others"] for name, of in rows.items()} == {"port1": 2 * count, "port1.10": count}, rows


# A Linux host's networks on one interface: name, parent, how it is made, network.
LINUX_VLANS = [
    ("eth0.10", "eth0", ["type", "vlan", "id", 10], "10"),
    ("eth0.s", "eth0", ["type", "vlan", "proto", "802.1ad", "id", 300], None),
    # Beyond its MTU a kernel interface takes one 802.1Q tag, and none by a packet socket if the outer is a service tag.
    ("eth0.7", "eth0.s", ["mtu", 1492, "type", "vlan", "id", 7], "13"),
]


def add_vlans(host, side):
    """Gives a host the VLAN devices of `LINUX_VLANS`."""
    for name, parent, words, network in LINUX_VLANS:
        host.run("ip", "link", "add", name, "link", parent, *map(str, words))
        host.run("ip", "link", "set", name, "up")
        if network:
            host.run("ip", "address", "add", f"10.{side}.{network}.2/24", "dev", name)


def networks_beyond(machine, lan, wan):
    """Gives the host of port "lan" VLAN devices, and each of both hosts an address that is reached by a route."""
    add_vlans(lan, 0)
    lan.run("ip", "route", "add", "192.0.2.0/24", "via", "10.0.10.1")
    lan.run("ip", "address", "add", "203.0.113.1/32", "dev", "lo")
    wan.run("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    machine.run("ip", "route", "add", "192.0.2.0/24", "via", "10.0.2.2", "dev", "wan")


@pytest.mark.parametrize("driver", ["af_xdp", "af_packet"])
def test_hosts_with_vlan_devices_speak_through_the_router(machine, driver):
    """Ping of every size that fits, and a TCP stream, whose frames have partial checksums and are super-frames."""
    machine.modprobe("8021q")
    hosts = [Inside(machine, side + 1, driver) for side in (0, 1)]
    try:
        for side, host in enumerate(hosts):
            # veth hands the tags of its peer's VLAN devices over beside the frames, where XDP does not see them.
            host.run("ethtool", "-K", "eth0", "tx-vlan-hw-insert", "off", "tx-vlan-stag-hw-insert", "off")
            add_vlans(host, side)
            for network in ("10", "13"):
                # Replies take the way of the requests.
                device = "eth0.10" if network == "10" else "eth0.7"
                host.run("ip", "route", "add", f"10.{1 - side}.{network}.0/24", "via", f"10.{side}.{network}.1", "dev", device)
        lines = ['local turnpike = require "turnpike"']
        for side, host in enumerate(hosts):
            lines += [f'turnpike.port "port{side}" {{ device = "{host.device}", driver = "{driver}" }}', vlans(side)]
        router = machine.router("\n".join(lines) + '\nturnpike.forwarders { cores = "1" }\n')
        try:
            for network, size in (("10", 1472), ("13", 1464)):
                target = f"10.1.{network}.2"
                for data in (56, size):
                    hosts[0].run("ping", "-c", "2", "-i", "0.2", "-W", "10", "-M", "do", "-s", str(data), target)
                hosts[1].run("sh", "-c", f"timeout 60 python3 -c '{SERVER}' {target} >/dev/null 2>&1 &")
                done = hosts[0].run("timeout", "60", "python3", "-c", CLIENT, target)
                assert done.stdout.strip() == str(BYTES), done
            router.counters()
            router.stop()
        finally:
            router.close()
    finally:
        for host in hosts:
            host.close()


HOST_VLANS = """
local turnpike = require "turnpike"
turnpike.port "lan" { device = "veth1", driver = "af_packet", host = true, address = "10.0.1.1/24" }
turnpike.port "wan" { device = "veth2", driver = "af_packet", host = true, address = "10.0.2.1/24" }
turnpike.filter "tracked" {
  { state = "established", action = "accept" },
  { proto = "icmp", action = "accept" },
  default = "drop",
}
turnpike.vlan "lan.10"   { parent = "lan", id = 10, host = "kernel" }
turnpike.vlan "lan.s"    { parent = "lan", id = 300, protocol = "802.1ad", host = "kernel" }
turnpike.vlan "lan.s.7"  { parent = "lan.s", id = 7, mtu = 1492, host = "kernel" }
turnpike.routes_from { "kernel" }
turnpike.forwarders { cores = "1" }
"""


def test_vlan_devices_that_the_kernel_has_on_a_host_interface_are_the_router_s(machine):
    machine.modprobe("8021q")
    hosts = [Inside(machine, side, "af_packet") for side in (1, 2)]
    lan, wan = hosts
    router = machine.router(HOST_VLANS)

    def state(name):
        (found,) = [i for i in router.show("interfaces") if i["name"] == name]
        return found["link"], found["host"]["state"], found["addresses"]

    def add(name, parent, words, address=None):
        machine.run("ip", "link", "add", "link", parent, "name", name, "type", "vlan", *words)
        machine.run("ip", "link", "set", name, "up")
        if address:
            machine.run("ip", "address", "add", address, "dev", name)

    try:
        for name in ("lan.10", "lan.s", "lan.s.7"):
            assert state(name) == ("down", "gone", []), name
        networks_beyond(machine, lan, wan)
        add("lan.10", "lan", ["id", "10"], "10.0.10.1/24")
        assert wait_for(lambda: state("lan.10") == ("up", "up", ["10.0.10.1/24"]), 30), router.log()
        # The kernel's neighbours and its own packets; forwarded ones in both directions, over its route.
        assert wait_for(lambda: machine.run("ping", "-c", "1", "-W", "5", "10.0.10.2", check=False).returncode == 0, 30)
        forwarded = ("ping", "-c", "1", "-W", "5", "-I", "10.0.10.2", "192.0.2.1")
        assert wait_for(lambda: lan.run(*forwarded, check=False).returncode == 0, 30), told(machine, router)
        machine.run("ip", "route", "add", "203.0.113.0/24", "via", "10.0.10.2", "dev", "lan.10")
        assert wait_for(lambda: wan.run("ping", "-c", "1", "-W", "5", "203.0.113.1", check=False).returncode == 0, 30)
        (shown,) = [i for i in router.show("interfaces") if i["name"] == "lan.10"]
        assert shown["rx_packets"] > 2 and shown["tx_packets"] > 1 and shown["host"]["index"] > 0, shown
        # Two tags, each of a device of the kernel.
        add("lan.s", "lan", ["proto", "802.1ad", "id", "300"])
        add("lan.s.7", "lan.s", ["id", "7"], "10.0.13.1/24")
        assert wait_for(lambda: state("lan.s.7") == ("up", "up", ["10.0.13.1/24"]), 30), router.log()
        assert wait_for(lambda: machine.run("ping", "-c", "1", "-W", "5", "10.0.13.2", check=False).returncode == 0, 30)
        # TCP of the kernel, whose large frames carry a tag both ways. Answers need the state of its connections.
        with_filter = HOST_VLANS.replace('id = 10, host', 'id = 10, filter = "tracked", host')
        machine.write("/run/next.lua", with_filter)
        router.command("apply", "/run/next.lua")
        lan.run("sh", "-c", f"timeout 60 python3 -c '{SERVER}' 10.0.10.2 >/dev/null 2>&1 &")
        done = machine.run("timeout", "60", "python3", "-c", CLIENT, "10.0.10.2")
        assert done.stdout.strip() == str(BYTES), done
        # Another tag under the name is not the VLAN's; without its device there is neither address nor route.
        machine.run("ip", "link", "del", "lan.10")
        assert wait_for(lambda: state("lan.10") == ("down", "gone", []), 30), router.log()
        assert "203.0.113.0/24" not in {route["prefix"] for route in router.show("routes", "--source", "kernel")}
        add("lan.10", "lan", ["id", "11"], "10.0.10.1/24")
        assert wait_for(lambda: "VLAN device lan.10 on host interface lan gets no frames" in router.log(), 30), router.log()
        assert state("lan.10")[:2] == ("down", "gone")
        machine.run("ip", "link", "del", "lan.10")
        add("lan.10", "lan", ["id", "10"], "10.0.10.1/24")
        assert wait_for(lambda: state("lan.10") == ("up", "up", ["10.0.10.1/24"]), 30), router.log()
        router.command("rollback")
        lan.run("ping", "-c", "1", "-W", "10", "-I", "10.0.10.2", "192.0.2.1")
        router.counters()
        router.stop()
    finally:
        router.close()
        for name in ("lan", "wan"):
            machine.run("ip", "link", "del", name, check=False)
        for host in hosts:
            host.close()


FOUND_VLANS = """
local turnpike = require "turnpike"
turnpike.port "lan" { device = "veth1", driver = "af_packet", host = { vlans = "kernel" }, address = "10.0.1.1/24" }
turnpike.port "wan" { device = "veth2", driver = "af_packet", host = true, address = "10.0.2.1/24" }
turnpike.vlan "mine" { parent = "lan", id = 20, host = false, address = "10.0.20.1/24" }
turnpike.routes_from { "kernel" }
turnpike.forwarders { cores = "1" }
"""

# Devices made in a row, as by ifupdown.
MANY = 200


def test_vlan_devices_of_the_kernel_are_found_without_statements(machine):
    machine.modprobe("8021q")
    hosts = [Inside(machine, side, "af_packet") for side in (1, 2)]
    lan, wan = hosts
    router = machine.router(FOUND_VLANS)

    def vlans():
        return {of["name"]: of for of in router.show("interfaces") if of["kind"] == "vlan"}

    def states():
        return {name: (of["link"], of["addresses"]) for name, of in vlans().items() if of["found"]}

    def expect(expected):
        assert wait_for(lambda: states() == expected, 120), (states(), told(machine, router))

    def batch(lines):
        machine.write("/run/batch", "\n".join(lines) + "\n")
        machine.run("ip", "-batch", "/run/batch")

    up = {"lan.10": ("up", ["10.0.10.1/24"]), "lan.s": ("up", []), "lan.s.7": ("up", ["10.0.13.1/24"])}
    try:
        assert states() == {} and not vlans()["mine"]["found"]
        networks_beyond(machine, lan, wan)
        batch([
            "link add link lan name lan.10 type vlan id 10", "link set lan.10 up", "address add 10.0.10.1/24 dev lan.10",
            "link add link lan name lan.s type vlan proto 802.1ad id 300", "link set lan.s up",
            "link add link lan.s name lan.s.7 type vlan id 7", "link set lan.s.7 mtu 1400 up",
            "address add 10.0.13.1/24 dev lan.s.7",
            # A third tag, the tag of a statement, and a port whose devices are not found.
            "link add link lan.s.7 name lan.deep type vlan id 1", "link add link lan name other type vlan id 20",
            "link add link wan name wan.10 type vlan id 10",
        ])
        expect(up)
        assert (vlans()["lan.s.7"]["mtu"], vlans()["lan.s.7"]["tag"]["id"], vlans()["lan.s.7"]["parent"]) == (1400, 7, "lan.s")
        # Neighbours and packets of the kernel, forwarded packets in both directions, and its routes.
        assert wait_for(lambda: machine.run("ping", "-c", "1", "-W", "5", "10.0.13.2", check=False).returncode == 0, 30)
        outward = ("ping", "-c", "1", "-W", "5", "-I", "10.0.10.2", "192.0.2.1")
        assert wait_for(lambda: lan.run(*outward, check=False).returncode == 0, 30), told(machine, router)
        machine.run("ip", "route", "add", "203.0.113.0/24", "via", "10.0.10.2", "dev", "lan.10")
        inward = ("ping", "-c", "1", "-W", "5", "203.0.113.1")
        assert wait_for(lambda: wan.run(*inward, check=False).returncode == 0, 30), told(machine, router)
        shown = vlans()["lan.10"]
        assert shown["rx_packets"] >= 2 and shown["tx_packets"] >= 2 and shown["host"]["index"] > 0, shown
        log = router.log()
        assert "VLAN 20 there is vlan \"mine\"" in log and "VLAN device wan.10 on host interface wan" in log, log
        assert "VLAN device lan.deep on host interface lan.s.7 gets no frames: they would have three tags" in log, log
        assert "VLAN device lan.10 on host interface" not in log, log
        # An apply keeps them, and the history has none of this.
        before = vlans()["lan.10"]["host"]["index"]
        loose = FOUND_VLANS.replace(', address = "10.0.1', ', reverse_path = "loose", address = "10.0.1')
        machine.write("/run/next.lua", loose.replace('host = true', 'host = true, reverse_path = "loose"'))
        plan = router.command("plan", "/run/next.lua", check=False).stdout
        assert plan.count("reverse_path") == 2 and "vlan" not in plan, plan
        applied = router.command("apply", "/run/next.lua").stdout
        assert "2 settings" in applied, applied
        assert (states(), vlans()["lan.10"]["host"]["index"]) == (up, before)
        assert lan.run(*outward, check=False).returncode == 0, told(machine, router)
        assert len(json.loads(router.command("history", "--json").stdout)) == 2
        # A statement takes one over, and gives it back.
        machine.write("/run/next.lua", FOUND_VLANS + 'turnpike.vlan "lan.10" { parent = "lan", id = 10, host = "kernel" }\n')
        router.command("apply", "/run/next.lua")
        assert not vlans()["lan.10"]["found"] and vlans()["lan.10"]["addresses"] == ["10.0.10.1/24"]
        router.command("rollback")
        expect(up)
        # Devices that go, and many that come.
        machine.run("ip", "link", "del", "lan.s")
        expect({"lan.10": up["lan.10"]})
        assert machine.run("ip", "link", "show", "lan").returncode == 0
        batch(f"link add link lan name v{number} type vlan id {1000 + number}" for number in range(MANY))
        assert wait_for(lambda: len(states()) == MANY + 1, 180), (len(states()), router.log())
        assert router.log().count("VLAN devices found") + router.log().count("VLAN device found") < 20, router.log()
        assert wait_for(lambda: lan.run(*outward, check=False).returncode == 0, 30), told(machine, router)
        batch(f"link del v{number}" for number in range(MANY))
        expect({"lan.10": up["lan.10"]})
        # Without the setting none is found, and with it they are again.
        machine.write("/run/next.lua", FOUND_VLANS.replace('{ vlans = "kernel" }', "true"))
        router.command("apply", "/run/next.lua")
        expect({})
        router.command("rollback")
        expect({"lan.10": up["lan.10"]})
        router.counters()
        router.stop()
        # The host interface outlives the router, and with it the devices on it.
        router.close()
        router = machine.router(FOUND_VLANS)
        expect({"lan.10": up["lan.10"]})
        assert wait_for(lambda: lan.run(*outward, check=False).returncode == 0, 30), told(machine, router)
        router.counters()
        router.stop()
    finally:
        router.close()
        for name in ("lan", "wan"):
            machine.run("ip", "link", "del", name, check=False)
        for host in hosts:
            host.close()


def told(machine, router):
    """The report of a failed wait: routes and addresses of the kernel, routes, neighbours, drops and log of the router."""
    kernel = [machine.run("ip", "route").stdout, machine.run("ip", "-br", "address").stdout]
    routes = [route for route in router.show("routes") if route["source"] == "kernel"]
    return "\n".join(map(str, [*kernel, router.dropped(), router.show("interfaces"), router.show("neighbours"), routes, router.log()]))


BYTES = 300_000
SERVER = (
    "import socket, sys; s = socket.create_server((sys.argv[1], 5001)); c = s.accept()[0]; n = 0\n"
    "while data := c.recv(65536): n += len(data)\n"
    "c.send(str(n).encode())"
)
CLIENT = f"""
import socket, sys, time
for _ in range(50):
    try:
        c = socket.create_connection((sys.argv[1], 5001), 5)
        break
    except OSError:
        time.sleep(0.2)
c.settimeout(50)
c.sendall(bytes({BYTES}))
c.shutdown(socket.SHUT_WR)
print(c.recv(100).decode())
"""

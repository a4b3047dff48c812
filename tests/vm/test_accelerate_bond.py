"""Bonds of the kernel with `turnpike accelerate --in-kernel`: frames of their ports are forwarded by their ports."""

import time

import pytest

from lib.accelerate import IN_KERNEL, receives_frames
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, ipv6, pattern, tagged, udp, unpadded, untagged
from lib.raw import RawPort

from .lib.hosts import Inside
from .test_accelerate import Kernel
from .test_accelerate_vlan import HOST_MACS, Counts, configuration, forwarding, interface, mark, takes  # noqa: F401

PEER = "peer"
MODES = {"active-backup": [], "balance-xor": ["xmit_hash_policy", "layer3+4"], "802.3ad": ["lacp_rate", "fast"]}


@pytest.fixture(autouse=True)
def kernel(machine):
    """Skips these scenarios on a kernel that lacks the programs."""
    if machine.linux() < (6, 3):
        pytest.skip("in_kernel takes Linux 6.3: make test-vm VM_KERNEL=backports")
    machine.modprobe("bonding", "8021q")


class Wires:
    """Bond `lag` of the machine, of way0 and way1, with the network 10.0.1.0/24 and VLAN 10; at its other end a bond of a
    host. Another host is at veth2."""

    def __init__(self, machine, mode):
        self.machine, self.mode = machine, mode
        self.far = Inside(machine, 2, "af_xdp")
        receives_frames(self.far)
        machine.run("ip", "netns", "add", PEER)
        bond = ["type", "bond", "mode", mode, "miimon", "50", *MODES[mode]]
        machine.run("ip", "link", "add", "lag", *bond)
        self.peer("ip", "link", "add", "lag", *bond)
        for number in (0, 1):
            self.wire(number)
            machine.run("ip", "link", "set", f"way{number}", "master", "lag")
        machine.run("ip", "link", "set", "lag", "up")
        self.peer("ip", "link", "set", "lag", "up")
        for where, end in ((machine.run, 1), (self.peer, 2)):
            where("ip", "link", "add", "link", "lag", "name", "lag.10", "type", "vlan", "id", "10")
            where("ip", "link", "set", "lag.10", "up")
            for device, net in (("lag", 0), ("lag.10", 10)):
                where("ip", "address", "add", f"10.{net}.1.{end}/24", "dev", device)
                where("ip", "address", "add", f"fd{net:02}:1::{end}/64", "dev", device, "nodad")
        machine.run("ip", "address", "add", "10.0.2.1/24", "dev", "veth2")
        machine.run("ip", "address", "add", "fd00:2::1/64", "dev", "veth2", "nodad")
        self.by("lag")

    def wire(self, number):
        """Makes way0, way1 or another, whose other end is a port of the peer's bond."""
        self.machine.run("ip", "link", "add", f"way{number}", "type", "veth", "peer", f"eth{number}", "netns", PEER)
        self.peer("ip", "link", "set", f"eth{number}", "master", "lag")
        features = "tx-vlan-hw-insert", "off", "tx-vlan-stag-hw-insert", "off", "gro", "on", "tx", "off"
        self.peer("ethtool", "-K", f"eth{number}", *features)

    def by(self, device):
        """The peer's packets leave by this device, and answers come by its network."""
        net = 10 if "." in device else 0
        self.peer("ip", "route", "replace", "default", "via", f"10.{net}.1.1", "dev", device)
        self.peer("ip", "-6", "route", "replace", "default", "via", f"fd{net:02}:1::1", "dev", device)

    def peer(self, *argv, **options):
        """Runs a command at the other end of the bond."""
        return self.machine.run("ip", "netns", "exec", PEER, *argv, **options)

    def pings(self, address="10.0.2.2", seconds=5):
        """True if the host answers the peer."""
        return self.peer("ping", "-n", "-c", "1", "-W", seconds, address, check=False).returncode == 0

    def close(self):
        """Removes everything."""
        self.machine.run("ip", "netns", "del", PEER)
        self.machine.run("ip", "link", "del", "lag")
        self.far.close()


@pytest.fixture
def wires(request, machine, forwarding):  # noqa: F811
    made = Wires(machine, request.param)
    yield made
    made.close()


def ports(router):
    """The ports of the bond whose frames are accelerated."""
    return {port["name"] for port in interface(router, "lag")["bond_ports"] if port["accelerated"]}


def is_accelerated(router, wires, address="10.0.2.2"):
    """Waits until a ping and its answer are forwarded by the programs."""
    def is_done():
        counts = Counts(router, "lag", "veth2")
        return wires.pings(address) and counts() == [1, 1]

    assert wait_for(is_done, 60, 0.2), (router.show("acceleration"), router.log())


def start(machine, wires):
    """The router, when it has taken packets."""
    assert wait_for(wires.pings, 60, 0.5), "the kernel alone"
    router = machine.router(configuration(IN_KERNEL, "lag", "veth2"))
    takes(router, "lag", "lag.10", "veth2")
    assert interface(router, "lag")["mode"] == "native"
    return router


@pytest.mark.parametrize("wires", MODES, indirect=True)
def test_packets_by_a_bond(machine, wires):
    router = start(machine, wires)
    both = {"way0", "way1"}
    assert wait_for(lambda: ports(router) == ({"way0"} if wires.mode == "active-backup" else both), 60, 0.2), router.log()
    for device in ("lag", "lag.10"):
        wires.by(device)
        for address in ("10.0.2.2", "fd00:2::2"):
            is_accelerated(router, wires, address)
    # A link that is lost, and comes back. The kernel's bond has a port that is down for a spare in two modes.
    left = both if wires.mode == "balance-xor" else {"way1"}
    wires.peer("ip", "link", "set", "eth0", "down")
    assert wait_for(lambda: ports(router) == left, 60, 0.2), router.show("acceleration")
    is_accelerated(router, wires)
    wires.peer("ip", "link", "set", "eth0", "up")
    if wires.mode != "active-backup":
        assert wait_for(lambda: ports(router) == both, 60, 0.2), router.show("acceleration")
    is_accelerated(router, wires)
    router.stop()
    assert wait_for(wires.pings, 60, 0.5), "the kernel alone"


@pytest.mark.parametrize("wires", ["active-backup"], indirect=True)
def test_frames_by_a_spare_are_not_forwarded(machine, wires):
    """A switch that has not learned a MAC sends its frames by both ports; the bond takes one of each."""
    router = start(machine, wires)
    is_accelerated(router, wires)
    mac = machine.read("/sys/class/net/lag/address").strip()
    frame = ethernet(mac, HOST_MACS[0], 0x0800, ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 2, b"the mark")))
    send = "import socket, sys; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((sys.argv[1], 0)); s.send(bytes.fromhex(sys.argv[2]))"
    before = interface(router, "lag")["packets"]
    for port in ("eth0", "eth1"):
        wires.peer("python3", "-c", send, port, frame.hex())
    counted = lambda name: interface(router, "lag")["packets"][name] - before[name]  # noqa: E731
    assert wait_for(lambda: counted("bond-port") >= 1, 30, 0.2), interface(router, "lag")
    assert counted("accelerated") == 1, interface(router, "lag")
    router.stop()


@pytest.mark.parametrize("wires", ["balance-xor"], indirect=True)
def test_ports_come_and_go_and_have_rules(machine, wires):
    router = start(machine, wires)
    is_accelerated(router, wires)
    removes = lambda port: "rx-vlan-offload: on" in machine.run("ethtool", "-k", port).stdout  # noqa: E731
    assert wait_for(lambda: not removes("way0"), 30, 0.2), "tags stay in frames"
    wires.wire(2)
    assert removes("way2")
    machine.run("ip", "link", "set", "way2", "master", "lag")
    assert wait_for(lambda: ports(router) == {"way0", "way1", "way2"}, 60, 0.2), router.log()
    assert not removes("way2")
    for port in ("way0", "way1"):
        machine.run("ip", "link", "set", port, "nomaster")
    assert wait_for(lambda: ports(router) == {"way2"}, 60, 0.2), router.log()
    assert wait_for(lambda: removes("way0"), 30, 0.2), "a port is as it was"
    for port in ("eth0", "eth1"):
        wires.peer("ip", "link", "set", port, "nomaster")
    is_accelerated(router, wires)
    # A rule of a port means the bond's packets.
    machine.modprobe("sch_ingress", "cls_flower", "act_gact")
    machine.run("tc", "qdisc", "add", "dev", "way2", "clsact")
    machine.run("tc", "filter", "add", "dev", "way2", "ingress", "protocol", "ip", "flower", "ip_proto", "icmp", "action", "drop")
    assert wait_for(lambda: "way2" in (interface(router, "lag")["ip4"]["reason"] or ""), 30, 0.2), router.log()
    assert not wires.pings(seconds=2)
    machine.run("tc", "qdisc", "del", "dev", "way2", "clsact")
    takes(router, "lag", "veth2")
    is_accelerated(router, wires)
    router.stop()
    assert removes("way2")


@pytest.fixture
def nics(request, machine, forwarding):  # noqa: F811
    """Two NICs of a kind in bond `lag`, the kernel's, with VLAN 10."""
    made = [Kernel(machine, machine.nic(request.param, number), number + 1) for number in (0, 1)]
    # Other policies look for addresses and ports in frames without tags only.
    machine.run("ip", "link", "add", "lag", "type", "bond", "mode", "balance-xor", "xmit_hash_policy", "encap3+4")
    for nic in made:
        machine.run("ip", "address", "flush", "dev", nic.device)
        machine.run("ip", "link", "set", nic.device, "down")
        machine.run("ip", "link", "set", nic.device, "master", "lag")
    machine.run("ip", "link", "set", "lag", "up")
    machine.run("ip", "link", "add", "link", "lag", "name", "lag.10", "type", "vlan", "id", "10")
    machine.run("ip", "link", "set", "lag.10", "up")
    for device, net in (("lag", 0), ("lag.10", 10)):
        for family, own, other in ((4, f"10.{net}.1.1/24", f"10.{net}.1.2"), (6, f"fd{net:02}:1::1/64", f"fd{net:02}:1::2")):
            machine.run("ip", "address", "add", own, "dev", device, *(["nodad"] if family == 6 else []))
            machine.run("ip", "neighbour", "replace", other, "lladdr", HOST_MACS[1], "dev", device, "nud", "permanent")
    yield made
    machine.run("ip", "link", "del", "lag")
    for nic in made:
        machine.bind(nic.nic, None)


def test_a_bond_without_programs_is_refused(machine, request, forwarding):  # noqa: F811
    machine.run("ip", "link", "add", "lag", "type", "bond", "mode", "balance-alb")
    request.addfinalizer(lambda: machine.run("ip", "link", "del", "lag"))
    machine.run("ip", "link", "set", "lag", "up")
    router = machine.router(configuration(IN_KERNEL, "lag"), wait=False)
    assert wait_for(lambda: "lag is a bond, whose mode and all ports' drivers must take XDP programs" in router.log(), 60, 0.2), router.log()


@pytest.mark.parametrize("nics", ["virtio"], indirect=True)
def test_frames_of_nics_byte_for_byte(machine, nics):
    router = machine.router(configuration(IN_KERNEL, "lag"))
    wires = [RawPort(nic.namespace, "eth0") for nic in nics]
    try:
        takes(router, "lag", "lag.10")
        assert wait_for(lambda: ports(router) == {nic.device for nic in nics}, 30, 0.2), router.log()
        mac = machine.read("/sys/class/net/lag/address").strip()
        # The kernel's own packets at the beginning.
        time.sleep(1)
        for family in (4, 6):
            for source in (False, True):
                networks = [10 if source else 0, 0 if source else 10]
                a, b = ((f"10.{net}.1.2" if family == 4 else f"fd{net:02}:1::2") for net in networks)
                build, kind = (ipv4, 0x0800) if family == 4 else (ipv6, 0x86DD)
                frames = [ethernet(mac, HOST_MACS[0], kind, build(a, b, udp(a, b, port, 2, b"the mark" + pattern(700))))
                          for port in range(1, 17)]
                counts = Counts(router, "lag")
                for wire in wires:
                    wire.drain()
                for number, frame in enumerate(frames):
                    wires[number % 2].send(tagged(frame, 10, priority=3) if source else frame)
                seen = [[], []]

                def receive():
                    for wire, frames_seen in zip(wires, seen):  # noqa: B023
                        frames_seen += [untagged(frame) for frame in wire.receive(0.2) if mark(frame)]
                    return sum(map(len, seen)) >= len(frames)  # noqa: B023

                assert wait_for(receive, 30, 0.1), (family, source, list(map(len, seen)), interface(router, "lag"))
                # Flows are spread over both.
                assert all(seen), (family, source)
                expected = [forwarded(frame, mac, HOST_MACS[1]) for frame in frames]
                assert sorted(unpadded(frame) for frame, _ in seen[0] + seen[1]) == sorted(expected), (family, source)
                tags = {tuple(vlan for _, _, vlan in found) for _, found in seen[0] + seen[1]}
                assert tags == ({()} if source else {(10,)}), (family, source, tags)
                assert counts() == [len(frames)], (family, source, interface(router, "lag"))
        router.stop()
    finally:
        router.close()
        for wire in wires:
            wire.close()

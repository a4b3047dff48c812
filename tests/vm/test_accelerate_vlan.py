"""VLAN devices of the kernel on interfaces that `turnpike accelerate` makes faster: they are accelerated as well."""

import ipaddress
import json
import time
from pathlib import Path

import pytest

from lib import conntrack, echo
from lib.accelerate import IN_KERNEL, MODES, receives_frames
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, icmp, ipv4, ipv6, pattern, tagged, tcp, udp, unpadded, untagged
from lib.raw import RawPort

from .lib.hosts import Inside
from .test_accelerate import FORWARDING, PORT, Kernel
from .test_vlan import BYTES, CLIENT, SERVER

HOST_MACS = ["02:00:00:00:01:02", "02:00:00:00:02:02"]


@pytest.fixture
def forwarding(machine):
    """The machine's kernel forwards."""
    before = {name: machine.read(name).strip() for name in FORWARDING}
    for name in FORWARDING:
        machine.write_setting(name, 1)
    machine.modprobe("8021q")
    yield
    for name, value in before.items():
        machine.write_setting(name, value)


@pytest.fixture(params=MODES)
def mode(request, machine):
    """The way of forwarding; skips those that the machine's kernel lacks."""
    if request.param == IN_KERNEL and machine.linux() < (6, 3):
        pytest.skip("in_kernel takes Linux 6.3: make test-vm VM_KERNEL=backports")
    return request.param


def configuration(mode, *names):
    """The configuration that accelerates these interfaces."""
    listed = ", ".join(f'"{name}"' for name in names)
    return f'require "turnpike".accelerate {{ {listed}, in_kernel = {str(mode == IN_KERNEL).lower()} }}\n'


def interface(router, name):
    """An accelerated interface's state."""
    return {of["name"]: of for of in router.show("acceleration")["interfaces"]}[name]


def vlans(router, name):
    """The accelerated VLANs of an interface, by name."""
    return {of["name"]: of for of in interface(router, name)["vlans"]}


def takes(router, *names):
    """Waits until both families of interfaces and VLANs are taken."""
    def taken():
        all_of = [of for one in router.show("acceleration")["interfaces"] for of in (one, *one["vlans"])]
        found = {of["name"] for of in all_of if of["ip4"]["accelerated"] and of["ip6"]["accelerated"]}
        return set(names) <= found

    assert wait_for(taken, 60, 0.2), (router.show("acceleration"), router.log())


class Counts:
    """Accelerated packets of interfaces since its beginning."""

    def __init__(self, router, *names):
        self.router, self.names = router, names
        self.before = self._now()

    def _now(self):
        return [interface(self.router, name)["packets"]["accelerated"] for name in self.names]

    def __call__(self):
        return [now - before for now, before in zip(self._now(), self.before)]


class Sides:
    """Hosts in the machine at veth1 and veth2, each with its own network and VLANs 10 and 20 of both families. The tags
    of the hosts are in their frames, where XDP sees them."""

    def __init__(self, machine):
        self.machine = machine
        self.hosts = [Inside(machine, side, "af_xdp") for side in (1, 2)]
        for side, host in enumerate(self.hosts, 1):
            host.run("ethtool", "-K", "eth0", "tx-vlan-hw-insert", "off", "tx-vlan-stag-hw-insert", "off")
            receives_frames(host)
            self.address(f"veth{side}", f"10.0.{side}.1/24", f"fd00:{side}::1/64")
            for vlan in (10, 20):
                self.add(side, vlan)
            self.route(side, "eth0")

    def address(self, device, *addresses):
        """Gives an interface of the machine addresses."""
        for address in addresses:
            self.machine.run("ip", "address", "add", address, "dev", device, *(["nodad"] if ":" in address else []))

    def add(self, side, vlan, words=()):
        """Makes a VLAN on a wire, with addresses at both ends."""
        host = self.hosts[side - 1]
        device = f"veth{side}.{vlan}"
        self.machine.run("ip", "link", "add", "link", f"veth{side}", "name", device, "type", "vlan", "id", vlan, *words)
        self.machine.run("ip", "link", "set", device, "up")
        self.address(device, f"10.{vlan}.{side}.1/24", f"fd{vlan}:{side}::1/64")
        host.run("ip", "link", "add", "link", "eth0", "name", f"eth0.{vlan}", "type", "vlan", "id", vlan)
        host.run("ip", "link", "set", f"eth0.{vlan}", "up")
        host.run("ip", "address", "add", f"10.{vlan}.{side}.2/24", "dev", f"eth0.{vlan}")
        host.run("ip", "address", "add", f"fd{vlan}:{side}::2/64", "dev", f"eth0.{vlan}", "nodad")

    def route(self, side, device):
        """Packets of a host leave, and come, by this device of its."""
        vlan = "0" if device == "eth0" else device.partition(".")[2]
        gateways = f"10.{vlan}.{side}.1", f"fd{vlan if vlan != '0' else '00'}:{side}::1"
        for family, gateway in zip(("-4", "-6"), gateways):
            self.hosts[side - 1].run("ip", family, "route", "replace", "default", "via", gateway, "dev", device)

    def pings(self, side, address, *options, seconds=10):
        """The output of a ping; `None` without an answer."""
        done = self.hosts[side - 1].run("ping", "-c", "1", "-W", seconds, *options, address, check=False)
        return done.stdout if done.returncode == 0 else None

    def close(self):
        """Removes everything."""
        for host in self.hosts:
            host.close()


def reaches(sides, side, addresses):
    for address in addresses:
        assert wait_for(lambda: sides.pings(side, address), 60, 0.2), address  # noqa: B023


def test_hosts_behind_vlan_devices(machine, forwarding, mode):
    sides = Sides(machine)
    router = None
    try:
        far = ["10.0.2.2", "fd00:2::2", "10.20.2.2", "fd20:2::2"]
        sides.route(1, "eth0.10")
        for host in (2,):
            # Answers come by the network that was asked.
            sides.hosts[host - 1].run("ip", "route", "add", "10.10.1.0/24", "via", "10.0.2.1")
        reaches(sides, 1, far)
        router = machine.router(configuration(mode, "veth1", "veth2"))
        every = [f"veth{side}{tag}" for side in (1, 2) for tag in ("", ".10", ".20")]
        takes(router, *every)
        reaches(sides, 1, far)
        # Tagged to untagged, tagged to tagged, and back.
        for address in far:
            counts = Counts(router, "veth1", "veth2")
            assert sides.pings(1, address)
            assert counts() == [1, 1], (address, interface(router, "veth1"))
            assert sides.pings(1, address, "-M", "do", "-s", "1472" if "." in address else "1452"), address
        # The router's own addresses, and what ends in it, are the kernel's.
        counts = Counts(router, "veth1")
        for address in ("10.10.1.1", "fd10:1::1", "10.20.2.1", "10.0.2.1"):
            assert sides.pings(1, address), address
        assert counts() == [0]
        expired = sides.hosts[0].run("ping", "-c", "1", "-W", "10", "-t", "1", "10.20.2.2", check=False).stdout
        assert "10.10.1.1" in expired and "Time to live exceeded" in expired, expired
        # A neighbour that has to be resolved: the packet returns to the kernel with its tag.
        machine.run("ip", "neighbour", "flush", "dev", "veth2.20")
        machine.run("ip", "neighbour", "flush", "dev", "veth1.10")
        assert sides.pings(1, "10.20.2.2") and interface(router, "veth1")["packets"]["returned"] >= 1
        # A stream of TCP.
        sides.hosts[1].run("sh", "-c", f"timeout 60 python3 -c '{SERVER}' 10.20.2.2 >/dev/null 2>&1 &")
        done = sides.hosts[0].run("timeout", "60", "python3", "-c", CLIENT, "10.20.2.2")
        assert done.stdout.strip() == str(BYTES), done
        router.stop()
        reaches(sides, 1, far)
    finally:
        if router:
            router.close()
        sides.close()


def test_vlan_devices_change_while_they_are_accelerated(machine, forwarding, mode):
    sides = Sides(machine)
    router = None
    try:
        sides.hosts[1].run("ip", "route", "add", "10.0.0.0/8", "via", "10.0.2.1")
        sides.route(1, "eth0.10")
        router = machine.router(configuration(mode, "veth1", "veth2"))
        takes(router, "veth1", "veth1.10", "veth2")
        reaches(sides, 1, ["10.0.2.2"])

        def is_accelerated(address="10.0.2.2"):
            counts = Counts(router, "veth1")
            return bool(sides.pings(1, address)) and counts() == [1]

        assert wait_for(is_accelerated, 30, 0.2)
        # MTU: the least one counts, or that of the way out, and the kernel answers for what is longer.
        machine.run("ip", "link", "set", "veth1.20", "mtu", "1300")
        least = lambda mtu: mode == IN_KERNEL or wait_for(lambda: interface(router, "veth1")["longest"] == mtu, 30, 0.2)  # noqa: E731
        assert least(1300), router.log()
        sides.route(1, "eth0.20")
        said = sides.hosts[1].run("ping", "-c", "1", "-W", "10", "-M", "do", "-s", "1400", "10.20.1.2", check=False).stdout
        assert "mtu = 1300" in said or "mtu=1300" in said, said
        sides.route(1, "eth0.10")
        # Forwarding of one device.
        machine.run("sysctl", "-w", "net/ipv4/conf/veth1.10/forwarding=0")
        assert wait_for(lambda: not vlans(router, "veth1")["veth1.10"]["ip4"]["accelerated"], 30, 0.2)
        assert not sides.pings(1, "10.0.2.2", seconds=2)
        machine.run("sysctl", "-w", "net/ipv4/conf/veth1.10/forwarding=1")
        assert wait_for(is_accelerated, 30, 0.2), router.log()
        # A device that goes, and one that comes.
        machine.run("ip", "link", "set", "veth1.10", "down")
        assert wait_for(lambda: "veth1.10" not in vlans(router, "veth1"), 30, 0.2)
        machine.run("ip", "link", "set", "veth1.10", "up")
        takes(router, "veth1.10")
        machine.run("ip", "link", "del", "veth1.20")
        assert wait_for(lambda: "veth1.20" not in vlans(router, "veth1"), 30, 0.2)
        assert least(1500), router.log()
        assert wait_for(is_accelerated, 30, 0.2), router.log()
        sides.add(1, 30)
        takes(router, "veth1.30")
        sides.route(1, "eth0.30")
        reaches(sides, 1, ["10.0.2.2"])
        assert wait_for(is_accelerated, 30, 0.2), (router.show("acceleration"), router.log())
        # Priorities of its own are the kernel's to give.
        machine.run("ip", "link", "set", "veth1.30", "type", "vlan", "egress-qos-map", "0:5")
        assert wait_for(lambda: "veth1.30" not in vlans(router, "veth1"), 30, 0.2), router.log()
        assert wait_for(lambda: "VLAN device veth1.30 on veth1 stays with the kernel" in router.log(), 10), router.log()
        counts = Counts(router, "veth1")
        assert sides.pings(1, "10.0.2.2") and counts() == [0]
        # Rules of the kernel for a device mean its packets.
        sides.route(1, "eth0.10")
        reaches(sides, 1, ["10.0.2.2"])
        machine.run("tc", "qdisc", "add", "dev", "veth1.10", "root", "tbf", "rate", "8mbit", "burst", "32k", "latency", "50ms")
        assert wait_for(lambda: "veth1.10" in (interface(router, "veth1")["ip4"]["reason"] or ""), 30, 0.2), router.log()
        machine.run("tc", "qdisc", "del", "dev", "veth1.10", "root")
        takes(router, "veth1", "veth1.10")
        assert wait_for(is_accelerated, 30, 0.2)
        router.stop()
        assert sides.pings(1, "10.0.2.2")
    finally:
        if router:
            router.close()
        sides.close()


@pytest.fixture(params=["virtio", "e1000e"])
def nics(request, machine, forwarding):
    """Two NICs of a kind, the kernel's, each with VLAN device 10."""
    made = []
    for side in (1, 2):
        nic = machine.nic(request.param, side - 1)
        kernel = Kernel(machine, nic, side)
        device = f"{kernel.device}.10"
        for command in (
            ["ip", "link", "add", "link", kernel.device, "name", device, "type", "vlan", "id", "10"],
            ["ip", "link", "set", device, "up"],
            ["ip", "address", "add", f"10.10.{side}.1/24", "dev", device],
            ["ip", "address", "add", f"fd10:{side}::1/64", "dev", device, "nodad"],
        ):
            machine.run(*command)
        for name, addresses in ((kernel.device, (f"10.0.{side}.2", f"fd00:{side}::2")), (device, (f"10.10.{side}.2", f"fd10:{side}::2"))):
            for address in addresses:
                machine.run("ip", "neighbour", "replace", address, "lladdr", HOST_MACS[side - 1], "dev", name, "nud", "permanent")
        made.append(kernel)
    yield made
    for kernel in made:
        machine.bind(kernel.nic, None)


def mark(frame):
    return b"the mark" in frame


def test_frames_of_nics_byte_for_byte(machine, nics, mode):
    queues = lambda nic: len(machine.glob(f"/sys/class/net/{nic.device}/queues/rx-*"))  # noqa: E731
    ports = "".join(PORT.format(nic.device, queues(nic)) for nic in nics)
    statements = f'local turnpike = require "turnpike"\n{ports}'
    router = machine.router(configuration(mode, *(nic.device for nic in nics)) if mode == IN_KERNEL else statements)
    wires = [RawPort(nic.namespace, "eth0") for nic in nics]
    try:
        takes(router, *(name for nic in nics for name in (nic.device, f"{nic.device}.10")))
        macs = [machine.read(f"/sys/class/net/{nic.device}/address").strip() for nic in nics]
        # The kernel's own packets at the beginning.
        time.sleep(1)
        for family in (4, 6):
            for source in (False, True):
                for destination in (False, True):
                    networks = ["10.10" if tag else "10.0" for tag in (source, destination)]
                    a, b = f"{networks[0]}.1.2", f"{networks[1]}.2.2"
                    if family == 6:
                        a, b = (f"fd{'10' if tag else '00'}:{side}::2" for tag, side in ((source, 1), (destination, 2)))
                    build, kind = (ipv4, 0x0800) if family == 4 else (ipv6, 0x86DD)
                    frames = [ethernet(macs[0], HOST_MACS[0], kind, build(a, b, udp(a, b, 1, 2, b"the mark" + pattern(length))))
                              for length in (18, 700, 1444)]
                    counts = Counts(router, nics[0].device)
                    wires[1].drain()
                    wires[0].send(*(tagged(frame, 10, priority=3) if source else frame for frame in frames))
                    seen = [untagged(frame) for frame in wires[1].expect(len(frames), mark, 30)]
                    expected = [forwarded(frame, macs[1], HOST_MACS[1]) for frame in frames]
                    # virtio changes the queue of a flow to that by which the guest has sent last.
                    assert sorted(unpadded(frame) for frame, _ in seen) == sorted(expected), (family, source, destination)
                    tags = [[vlan for _, _, vlan in found] for _, found in seen]
                    assert tags == [[10] if destination else []] * len(frames), (family, source, destination, tags)
                    assert counts() == [len(frames)], (family, source, destination, interface(router, nics[0].device))
        # What ends here is answered by the kernel, once, with the tag.
        a, b = "10.10.1.2", "10.10.2.2"
        last = ethernet(macs[0], HOST_MACS[0], 0x0800, ipv4(a, b, udp(a, b, 1, 2, b"the mark"), ttl=1))
        echo = ethernet(macs[0], HOST_MACS[0], 0x0800, ipv4(a, "10.10.1.1", icmp(8, 0, bytes(4), b"the mark"), protocol=1))
        unknown = ethernet(macs[0], HOST_MACS[0], 0x0800, ipv4(a, b, udp(a, b, 1, 2, b"the mark")))
        counts = Counts(router, nics[0].device)
        wires[0].drain(), wires[1].drain()
        wires[0].send(tagged(last, 10), tagged(echo, 10), tagged(unknown, 77))
        answers = [untagged(frame) for frame in wires[0].expect(2, mark, 30)]
        answers += [untagged(frame) for frame in wires[0].receive(1) if mark(frame)]
        assert sorted((frame[34], tags[0][2]) for frame, tags in answers) == [(0, 10), (11, 10)], answers
        assert not any(mark(frame) for frame in wires[1].receive(1)) and counts() == [0]
        router.stop()
    finally:
        router.close()
        for wire in wires:
            wire.close()


# Hosts behind the first interface are masqueraded, and ports of the second lead to them. VLAN 20 has no way.
FLOW_RULES = """
table inet fw {{
    chain forward {{
        type filter hook forward priority 0; policy drop;
        iifname {{ "{0}.20", "{1}.20" }} drop
        ct state established,related accept
        iifname {{ "{0}", "{0}.10" }} accept
        ct status dnat accept
    }}
}}
table ip nat {{
    chain prerouting {{
        type nat hook prerouting priority -100;
        iifname {{ "{1}", "{1}.10" }} meta l4proto {{ tcp, udp }} th dport 8080 dnat to 10.0.1.2:7007
        iifname {{ "{1}", "{1}.10" }} meta l4proto {{ tcp, udp }} th dport 8081 dnat to 10.10.1.2:7007
    }}
    chain postrouting {{ type nat hook postrouting priority 100; oifname {{ "{1}", "{1}.10" }} masquerade; }}
}}
table ip6 nat {{
    chain prerouting {{
        type nat hook prerouting priority -100;
        iifname {{ "{1}", "{1}.10" }} meta l4proto {{ tcp, udp }} th dport 8080 dnat to [fd00:1::2]:7007
        iifname {{ "{1}", "{1}.10" }} meta l4proto {{ tcp, udp }} th dport 8081 dnat to [fd10:1::2]:7007
    }}
    chain postrouting {{ type nat hook postrouting priority 100; oifname {{ "{1}", "{1}.10" }} masquerade; }}
}}
"""


@pytest.fixture
def nat(machine, forwarding):
    """Loads rules for two interfaces of the machine, which has no connections then."""
    machine.modprobe("nf_conntrack_netlink", "nft_masq", "nft_nat", "nft_chain_nat", "nft_ct")
    # Emulated cores are slow, and a segment that is sent again is no new one.
    for name in ("udp_timeout", "udp_timeout_stream"):
        machine.write_setting(f"/proc/sys/net/netfilter/nf_conntrack_{name}", 600)

    def load(*names):
        machine.run("nft", "-f", "-", input=FLOW_RULES.format(*names))
        machine.run("python3", conntrack.__file__, "flush")

    yield load
    machine.run("nft", "flush", "ruleset")


def end(side, tag, family, number=2):
    """The address of a host at a side, of its untagged network or VLAN 10; of the router with number 1."""
    vlan = tag or "00"
    return f"10.{int(vlan)}.{side}.{number}" if family == 4 else f"fd{vlan}:{side}::{number}"


# Families, protocols, tags inside and outside, and whether they begin outside.
KINDS_OF_FLOWS = [
    (4, "udp", (10, None), False), (6, "tcp", (10, None), True),
    (4, "tcp", (10, 10), False), (6, "udp", (10, 10), True), (4, "udp", (10, 10), True), (6, "tcp", (10, 10), False),
    (4, "tcp", (None, 10), True), (6, "udp", (None, 10), False),
]  # fmt: skip


class Flow:
    """A flow by raw frames: from a host inside to one outside, masqueraded, or from outside to a port that leads inside."""

    numbers = iter(range(20000, 30000))

    def __init__(self, wires, macs, family, protocol, tags, is_inward):
        self.wires, self.macs, self.family, self.protocol, self.tags = wires, macs, family, protocol, tags
        # Sides: that which begins, and the other one.
        self.sides = (2, 1) if is_inward else (1, 2)
        begins, answers = (end(side, tags[side - 1], family) for side in self.sides)
        to = (end(2, tags[1], family, 1), 8081 if tags[0] else 8080) if is_inward else (answers, 7007)
        # Source and destination by the side that sends; the answers' destination is known later.
        self.ends = {self.sides[0]: ((begins, next(self.numbers)), to), self.sides[1]: ((answers, 7007), None)}

    def __repr__(self):
        return f"IPv{self.family} {self.protocol} tags {self.tags} from side {self.sides[0]}"

    def frame(self, side, flags, data, tag=None):
        """A frame of a side, with its tag or another."""
        (source, port), (destination, to) = self.ends[side]
        # Initial sequence numbers are 1000 at the side that begins, and 5000 at the other.
        sent, seen = (1000, 5000) if side == self.sides[0] else (5000, 1000)
        sent += 0 if flags & 2 else 1
        seen = seen + 1 if flags & 16 else 0
        of_tcp = lambda: tcp(source, destination, port, to, sent, seen, flags, data)  # noqa: E731
        inner = of_tcp() if self.protocol == "tcp" else udp(source, destination, port, to, data or b"begins")
        number = 6 if self.protocol == "tcp" else 17
        packet = ipv4(source, destination, inner, number) if self.family == 4 else ipv6(source, destination, inner, number)
        whole = ethernet(self.macs[side - 1], HOST_MACS[side - 1], 0x0800 if self.family == 4 else 0x86DD, packet)
        tag = self.tags[side - 1] if tag is None else tag
        return tagged(whole, tag, priority=3) if tag else whole

    def probes(self, side, tag=None):
        """Frames of a side amid the flow."""
        return [self.frame(side, 24, b"the mark" + pattern(length), tag) for length in (18, 301, 1400)]

    def is_own(self, frame):
        """Returns true for a packet with the port of the side that begins."""
        frame, _ = untagged(frame)
        kind, at = (b"\x08\x00", 34) if self.family == 4 else (b"\x86\xdd", 54)
        port = self.ends[self.sides[0]][0][1].to_bytes(2, "big")
        return frame[12:14] == kind and port in (frame[at:at + 2], frame[at + 2:at + 4])

    def passes(self, side, frames, match, seconds=30):
        """Sends frames of a side; returns what arrives at the other one, with its tags, sorted."""
        here, there = self.wires[side - 1], self.wires[2 - side]
        there.drain()
        here.send(*frames)
        seen = [untagged(frame) for frame in there.expect(len(frames), match, seconds)]
        return sorted((unpadded(frame), tags) for frame, tags in seen)

    def begin(self):
        """Opens the connection, by the kernel."""
        first, other = self.sides
        [(frame, _)] = self.passes(first, [self.frame(first, 2, b"")], self.is_own)
        at, length, transport = (26, 4, 34) if self.family == 4 else (22, 16, 54)
        source = str(ipaddress.ip_address(frame[at:at + length]))
        self.ends[other] = (self.ends[other][0], (source, int.from_bytes(frame[transport:transport + 2], "big")))
        self.passes(other, [self.frame(other, 18, b"")], self.is_own)
        self.passes(first, [self.frame(first, 16, b"")], self.is_own)

    def probe(self, side, seconds=30):
        """What becomes of a side's packets."""
        return self.passes(side, self.probes(side), mark, seconds)


def test_flows_with_tags_byte_for_byte_as_the_kernel_translates_them(machine, nics, nat):
    names = [nic.device for nic in nics]
    nat(*names)
    for side, name in enumerate(names, 1):
        machine.run("ip", "link", "add", "link", name, "name", f"{name}.20", "type", "vlan", "id", "20")
        machine.run("ip", "link", "set", f"{name}.20", "up")
        machine.run("ip", "address", "add", f"10.20.{side}.1/24", "dev", f"{name}.20")
    queues = lambda nic: len(machine.glob(f"/sys/class/net/{nic.device}/queues/rx-*"))  # noqa: E731
    wires = [RawPort(nic.namespace, "eth0") for nic in nics]
    macs = [machine.read(f"/sys/class/net/{name}/address").strip() for name in names]
    router = None
    try:
        time.sleep(1)
        flows = [Flow(wires, macs, *of) for of in KINDS_OF_FLOWS]
        expected = {}
        for flow in flows:
            flow.begin()
            for side in (1, 2):
                expected[flow, side] = flow.probe(side)
                assert len(expected[flow, side]) == 3, (flow, side)
                tags = [[vlan for *_, vlan in found] for _, found in expected[flow, side]]
                assert tags == [[flow.tags[2 - side]] if flow.tags[2 - side] else []] * 3, (flow, side)
        ports = "".join(PORT.format(nic.device, queues(nic)) for nic in nics)
        router = machine.router(f'local turnpike = require "turnpike"\nturnpike.accelerate {{ flows = true }}\n{ports}')
        takes(router, *(f"{name}{tag}" for name in names for tag in ("", ".10", ".20")))

        def are_taken(*some):
            """Returns true if all packets of these flows were taken; each that passes is as the kernel would send it."""
            counts, whole = Counts(router, *names), True
            for flow in some:
                for side in (1, 2):
                    # Emulated NICs of a busy machine lose frames.
                    seen = flow.probe(side, 5)
                    assert all(one in expected[flow, side] for one in seen), (flow, side, seen)
                    whole = whole and seen == expected[flow, side]
            return whole and counts() == [3 * len(some)] * 2

        assert wait_for(lambda: are_taken(*flows), 120, 0.2), (router.show("acceleration"), router.log())
        # The packets of a flow with other tags are none of it, and the kernel's rules drop them.
        flow = flows[0]
        for tag in (20, 77):
            counts = Counts(router, names[0])
            before = interface(router, names[0])["packets"]
            wires[1].drain()
            wires[0].send(*flow.probes(1, tag))
            assert not any(mark(frame) for frame in wires[1].receive(1)) and counts() == [0], tag
            kind = "no-flow" if tag == 20 else "other-type"
            assert interface(router, names[0])["packets"][kind] >= before[kind] + 3, tag
        wires[0].send(*(tagged(frame, 10, protocol=0x88A8) for frame in flow.probes(1, 0)))
        wires[0].send(*(tagged(frame, 10) for frame in flow.probes(1, 20)))
        assert not any(mark(frame) for frame in wires[1].receive(1)) and wait_for(lambda: are_taken(flow), 30, 0.2)
        # A device that goes while flows use it, and comes again with another number.
        machine.run("ip", "link", "del", f"{names[0]}.10")
        assert wait_for(lambda: f"{names[0]}.10" not in vlans(router, names[0]), 30, 0.2)
        counts = Counts(router, names[0])
        wires[0].send(*flow.probes(1))
        assert not any(mark(frame) for frame in wires[1].receive(1)) and counts() == [0]
        others = [of for of in flows if of.tags == (None, 10)]
        assert wait_for(lambda: are_taken(*others), 60, 0.2), router.log()
        device = f"{names[0]}.10"
        machine.run("ip", "link", "add", "link", names[0], "name", device, "type", "vlan", "id", "10")
        machine.run("ip", "link", "set", device, "up")
        machine.run("ip", "address", "add", "10.10.1.1/24", "dev", device)
        machine.run("ip", "neighbour", "replace", "10.10.1.2", "lladdr", HOST_MACS[0], "dev", device, "nud", "permanent")
        takes(router, device)
        assert wait_for(lambda: are_taken(flow), 60, 0.2), router.log()
        router.stop()
        # A NIC that is reset loses frames.
        assert wait_for(lambda: flow.probe(1, 5) == expected[flow, 1], 60, 0.2), "the kernel alone"
    finally:
        if router:
            router.close()
        for wire in wires:
            wire.close()


def test_conversations_of_masqueraded_hosts_behind_vlan_devices(machine, forwarding, nat):
    sides = Sides(machine)
    router = None
    try:
        nat("veth1", "veth2")
        for host in sides.hosts:
            # Checksums are left to the device, so translated packets are completed.
            host.run("ethtool", "-K", "eth0", "tx", "on", "tx-vlan-hw-insert", "off", "tx-vlan-stag-hw-insert", "off")
        sides.route(1, "eth0.10")
        for family in ("-4", "-6"):
            sides.hosts[1].run("ip", family, "route", "del", "default")
        script = Path(echo.__file__).resolve()
        sides.hosts[1].run("sh", "-c", f"timeout 300 python3 {script} serve 7007 >/dev/null 2>&1 &")
        reaches(sides, 1, ["10.0.2.2"])
        router = machine.router('require "turnpike".accelerate { "veth1", "veth2", flows = true }\n')
        takes(router, *(f"veth{side}{tag}" for side in (1, 2) for tag in ("", ".10", ".20")))
        for kind, address in (("tcp", "10.10.2.2"), ("udp", "fd10:2::2"), ("tcp", "fd00:2::2"), ("udp", "10.0.2.2")):
            counts = Counts(router, "veth1", "veth2")
            talk = ["timeout", "12", "python3", script, "talk", kind, address, "7007", "40"]
            report = json.loads(sides.hosts[0].run(*talk, check=False).stdout.splitlines()[-1])
            assert report["back"] == report["sent"] > 100 and report["doubled"] == 0, (kind, address, report, router.log())
            assert all(taken > report["sent"] / 3 for taken in counts()), (kind, address, counts(), interface(router, "veth1"))
        router.stop()
    finally:
        if router:
            router.close()
        sides.close()

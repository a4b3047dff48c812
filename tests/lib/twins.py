"""Twin topologies: the same addresses, MACs, MTUs, routes and neighbours, and the same packets through
both. In one the router is Turnpike, in the other the Linux kernel with its defaults."""

import ipaddress
import itertools
import struct
import time

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from .lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from .netns import veth
from .packets import checksum, is_announcement, pseudo_header, unpadded

LEFT_MTU, RIGHT_MTU = 1500, 1300
A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
OWN4, FAR4, OWN6, FAR6 = "10.0.1.1", "10.0.2.1", "fd00:1::1", "fd00:2::1"
LINK_LOCAL = "fe80::ff:fe00:101"
OTHER_MAC = "02:00:00:00:01:99"

# Errors without limit, so that the cases are independent. All other settings are the defaults.
CONFIG = f"""
turnpike.slowpath {{ icmp_rate = 1000000, icmp_burst = 1000000,
                     icmp_prefix_rate = 1000000, icmp_prefix_burst = 1000000, timeout_s = 3600 }}
turnpike.route "198.51.100.0/24" {{ via = "{B4}" }}
turnpike.route "172.20.0.0/16"   {{ via = "{A4}" }}
turnpike.route "192.0.2.0/24"    {{ blackhole = true }}
turnpike.route "172.16.1.0/24"   {{ prohibit = true }}
turnpike.route "172.16.2.0/24"   {{ unreachable = true }}
turnpike.route "2001:db8:1::/48" {{ via = "{B6}" }}
turnpike.route "2001:db8:2::/48" {{ blackhole = true }}
turnpike.route "2001:db8:3::/48" {{ prohibit = true }}
turnpike.route "2001:db8:4::/48" {{ unreachable = true }}
turnpike.neighbour "fe80::a" {{ port = "left", mac = "{HOST_A_MAC}" }}
"""
KERNEL_ROUTES = [
    f"198.51.100.0/24 via {B4}", f"172.20.0.0/16 via {A4}", "blackhole 192.0.2.0/24", "prohibit 172.16.1.0/24", "unreachable 172.16.2.0/24",
    f"2001:db8:1::/48 via {B6}", "blackhole 2001:db8:2::/48", "prohibit 2001:db8:3::/48",
    "unreachable 2001:db8:4::/48",
]


class KernelWires:
    """The twin: the same wires, with the kernel between them."""

    def __init__(self, lab):
        self.inside = lab.namespace("kernel")
        ends = self.ends = [lab.namespace("kleft", quiet=True), lab.namespace("kright", quiet=True)]
        inside = self.inside
        inside.sysctl("net.ipv6.conf.default.accept_dad", 0)
        inside.sysctl("net.ipv4.conf.default.rp_filter", 0)
        inside.sysctl("net.ipv4.conf.all.rp_filter", 0)
        veth(inside, "tp-left", ends[0], "wire", LEFT_MAC, HOST_A_MAC, LEFT_MTU)
        veth(inside, "tp-right", ends[1], "wire", RIGHT_MAC, HOST_B_MAC, RIGHT_MTU)
        self.left = lab.raw(ends[0], "wire", is_announcement)
        self.right = lab.raw(ends[1], "wire", is_announcement)
        for key, value in {
            "net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1,
            # No limit of errors. No redirects, which are an option of Turnpike's.
            "net.ipv4.icmp_ratemask": 0, "net.ipv6.icmp.ratelimit": 0, "net.ipv4.conf.all.send_redirects": 0,
            "net.ipv4.conf.tp-left.send_redirects": 0, "net.ipv4.conf.tp-right.send_redirects": 0,
        }.items():
            inside.sysctl(key, value)
        for side, mac in ((1, HOST_A_MAC), (2, HOST_B_MAC)):
            name = ("tp-left", "tp-right")[side - 1]
            inside.run("ip", "address", "add", f"10.0.{side}.1/24", "brd", "+", "dev", name)
            inside.run("ip", "address", "add", f"fd00:{side}::1/64", "dev", name, "nodad")
            for host in (f"10.0.{side}.2", f"fd00:{side}::2"):
                inside.run("ip", "neighbour", "add", host, "lladdr", mac, "dev", name, "nud", "permanent")
        inside.run("ip", "neighbour", "add", "fe80::a", "lladdr", HOST_A_MAC, "dev", "tp-left", "nud", "permanent")
        for route in KERNEL_ROUTES:
            inside.run("ip", "-6" if ":" in route else "-4", "route", "add", *route.split())


class Twins:
    """Both topologies."""

    def __init__(self, lab):
        self.turnpike = Wires(lab, CONFIG, mtu=(LEFT_MTU, RIGHT_MTU), calm=True)
        self.kernel = KernelWires(lab)
        # Reports and other messages of its kernel when an interface comes up.
        time.sleep(1)
        for wires in (self.turnpike, self.kernel):
            wires.left.drain(), wires.right.drain()

    def through(self, frames):
        """The frames that arrive at the left and the right hosts, for Turnpike and for the kernel."""
        return [outcome(wires, frames) for wires in (self.turnpike, self.kernel)]


_marks = itertools.count(1)


def outcome(wires, frames):
    """Sends the frames from the left, then one to be forwarded and one to be answered, and returns the frames that have
    arrived when both have."""
    mark = b"mark" + struct.pack("!I", next(_marks))
    wires.left.send(*frames)
    through = Ether(src=HOST_A_MAC, dst=LEFT_MAC) / IP(src=A4, dst=B4, ttl=9) / UDP(sport=9, dport=9) / mark
    expired = Ether(src=HOST_A_MAC, dst=LEFT_MAC) / IP(src=A4, dst=B4, ttl=1) / UDP(sport=9, dport=9) / mark
    # The slow path is another thread: its results for the frames are in progress when this is sent.
    time.sleep(0.004)
    wires.left.send(through, expired)
    arrived = []
    for side, wire in (("left", wires.left), ("right", wires.right)):
        deadline = time.monotonic() + 3
        while True:
            frame = wire.expect(1, timeout=max(0.01, deadline - time.monotonic()))
            assert frame, f"{side}: the mark did not arrive"
            if mark in frame[0]:
                break
            arrived.append((side, frame[0]))
    # The mark may have overtaken an answer of another class.
    for side, wire in (("left", wires.left), ("right", wires.right)):
        arrived += [(side, frame) for frame in wire.receive(0.002)]
    return [(side, frame) for side, frame in arrived if not is_question(frame) and not is_late(frame, frames)]


def is_question(frame):
    """Returns true if the router resolves a neighbour. The times and number of its repetitions are its own choice."""
    if frame[12:14] == b"\x08\x06":
        return frame[20:22] == b"\0\x01"
    return frame[12:14] == b"\x86\xdd" and frame[20] == 58 and frame[54:55] == b"\x87" and frame[6:12] != HOST_A_MAC


CONNECTED = [ipaddress.ip_network(net) for net in ("10.0.1.0/24", "10.0.2.0/24", "fd00:1::/64", "fd00:2::/64", "fe80::/10")]


def is_late(frame, sent):
    """Returns true for an error about an earlier packet, or about a neighbour that could not be resolved: the duration
    of that, and the time for which it is remembered, are up to each router. The same holds for an error about a packet
    whose fragments did not arrive within half a minute."""
    if frame[12:14] == b"\x08\x00" and frame[23] == 1 and frame[34:36] == b"\x0b\x01":
        return True
    if frame[12:14] == b"\x86\xdd" and frame[20] == 58 and frame[54:56] == b"\x03\x01":
        return True
    if frame[12:14] == b"\x08\x00" and frame[23] == 1 and frame[34:36] == b"\x03\x01":
        addresses, destination, sent = frame[54:62], frame[58:62], [one[26:34] for one in sent]
    elif frame[12:14] == b"\x86\xdd" and frame[20] == 58 and frame[54:56] == b"\x01\x03":
        addresses, destination, sent = frame[70:102], frame[86:102], [one[22:54] for one in sent]
    else:
        return False
    near = any(ipaddress.ip_address(destination) in net for net in CONNECTED)
    return near or addresses not in sent


# --- comparison -----------------------------------------------------------------------------------


def fields(frame):
    """The fields of a frame by name; lengths and checksums only as correct or wrong if they depend on fields that may
    differ."""
    frame = unpadded(frame)
    found = {"link": frame[:14]}
    packet = frame[14:]
    if frame[12:14] == b"\x08\x00" and len(packet) >= 20:
        header = (packet[0] & 15) * 4
        flags = struct.unpack_from("!H", packet, 6)[0]
        found |= {
            "tos": packet[1], "length": struct.unpack_from("!H", packet, 2)[0], "id": packet[4:6],
            "flags": flags >> 13, "offset": flags & 0x1FFF, "ttl": packet[8], "protocol": packet[9],
            "checksum": checksum(packet[:header]) == 0, "source": packet[12:16],
            "destination": packet[16:20], "options": packet[20:header],
        }
        icmp, data = packet[9] == 1 and not flags & 0x1FFF, packet[header:]
        right = checksum(data) == 0
    elif frame[12:14] == b"\x86\xdd" and len(packet) >= 40:
        source, destination = packet[8:24], packet[24:40]
        found |= {
            "class and flow": packet[:4], "length": struct.unpack_from("!H", packet, 4)[0],
            "next header": packet[6], "hop limit": packet[7], "source": source, "destination": destination,
        }
        icmp, data = packet[6] == 58, packet[40:]
        pseudo = pseudo_header(str(ipaddress.ip_address(source)), str(ipaddress.ip_address(destination)), 58, len(data))
        right = checksum(pseudo + data) == 0
    else:
        return found | {"data": packet}
    if icmp and len(data) >= 8:
        return found | {
            "icmp type": data[0], "icmp code": data[1], "icmp checksum": right, "icmp word": data[4:8],
            "icmp data": data[8:],
        }
    return found | {"data": data}


def differences(ours, theirs):
    """The differences between two outcomes: names, each with both values."""
    found = {}
    for side in ("left", "right"):
        a, b = ([fields(frame) for where, frame in frames if where == side] for frames in (ours, theirs))
        if len(a) != len(b):
            found[f"{side} frames"] = (a, b)
            continue
        for one, other in zip(a, b):
            # Originated or forwarded by the router.
            whose = "own" if one.get("source") in ROUTER and other.get("source") in ROUTER else "passed"
            for name in sorted(one.keys() | other.keys()):
                if one.get(name) != other.get(name):
                    found[f"{side} {whose} {name}"] = (one.get(name), other.get(name))
    return found


ROUTER = {ipaddress.ip_address(address).packed for address in (OWN4, FAR4, OWN6, FAR6, LINK_LOCAL, "fe80::ff:fe00:201")}


def show(found):
    """The differences as lines."""
    return "\n".join(f"  {name}: Turnpike {ours!r}, Linux {theirs!r}" for name, (ours, theirs) in found.items())

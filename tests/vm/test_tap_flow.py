"""Rules of packet filters in DPDK's TAP device, whose rules the kernel's flower classifier executes: another device
than that of `tests/test_hardware_filters.py`, made and checked by others."""

import sys

from lib.lab import Lab
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, ipv6, pattern, udp

from .lib.hosts import Outside, ports

TAP_MAC, SENDER_MAC = "02:00:00:00:07:01", "02:00:00:00:07:02"
MODULES = ["cls_flower", "sch_ingress", "sch_multiq", "act_gact"]
PORT = f"""
turnpike.port "tap" {{ device = "net_tap0,iface=flow0,mac={TAP_MAC}", address = {{ "10.0.7.1/24", "fd00:7::1/64" }},
  filter = {{ inward = "edge", hardware = true }} }}
turnpike.forwarders {{ cores = "1" }}
"""
BOGON = '{ name = "bogon", from = "10.0.7.128/25", action = "drop" }'
WEB6 = '{ name = "web6", proto = "udp", from = "fd00:7::/64", to_port = 80, action = "drop" }'
# The device has no match for fragments, but reads no ports of any.
WEB = '{ name = "web", proto = "udp", from = "10.0.7.0/25", to_port = 80, action = "drop" }'
# Nor has it one for the time to live.
NEAR = '{ name = "near", proto = "udp", to_port = 81, ttl = 1, action = "drop" }'
# Sends frames by the kernel's end of the device.
SEND = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("flow0", 0))
for line in sys.stdin:
    wire.send(bytes.fromhex(line))
"""


def rules(*those):
    return f'turnpike.filter "edge" {{ {", ".join(those)} }}\n'


class Tap:
    """A router with a TAP device and a NIC; the wire is behind the NIC."""

    def __init__(self, machine):
        machine.modprobe(*MODULES)
        self.machine, self.lab = machine, Lab()
        self.outside = Outside(machine, machine.nic("e1000e"), 1)
        self.wire = self.lab.raw(self.outside.namespace, "eth0")
        self.router = machine.router(self.config(BOGON, WEB6, WEB, NEAR))

    def config(self, *those):
        return ports(self.outside) + PORT + rules(*those)

    def send(self, *packets):
        """Sends packets to the host at the NIC, and one that no rule is for; returns the destination ports of those
        that have arrived when that has."""
        last = udp("10.0.7.2", "10.0.1.2", 1, 7777, pattern(40))
        all = [*packets, ipv4("10.0.7.2", "10.0.1.2", last)]
        frames = [ethernet(TAP_MAC, SENDER_MAC, 0x86DD if packet[0] >> 4 == 6 else 0x0800, packet) for packet in all]
        lines = "\n".join(frame.hex() for frame in frames)
        self.machine.run(sys.executable, "-c", SEND, input=lines)
        arrived = []
        assert wait_for(lambda: arrived.extend(map(port_of, self.wire.receive(0.1))) or 7777 in arrived, 20)
        return [port for port in arrived if port not in (None, 7777)]

    def rule(self, name):
        (edge,) = [one for one in self.router.show("filters") if one["name"] == "edge"]
        (rule,) = [one for one in edge["rules"] if one["name"] == name]
        return rule

    def held(self, name):
        (hardware,) = self.rule(name)["hardware"]
        return hardware["held"], hardware["wanted"]


def port_of(frame):
    """The destination port of a packet from the sender; None for others."""
    if frame[26:29] == bytes([10, 0, 7]):
        return int.from_bytes(frame[36:38], "big")
    return int.from_bytes(frame[56:58], "big") if frame[22:26] == bytes([0xfd, 0, 0, 7]) else None


def to(port, source="10.0.7.2", **header):
    if ":" in source:
        return ipv6(source, "fd00:1::2", udp(source, "fd00:1::2", 5000, port, pattern(40)))
    return ipv4(source, "10.0.1.2", udp(source, "10.0.1.2", 5000, port, pattern(40)), **header)


def test_the_kernel_executes_rules_of_a_tap_device(machine):
    tap = Tap(machine)
    router = tap.router
    try:
        in_device = lambda: [tap.held(name) for name in ("bogon", "web6", "web")] == [(1, 1)] * 3  # noqa: E731
        assert wait_for(in_device, 10), repr(router.show("filters"))
        assert "item not supported" in tap.rule("near")["hardware"][0]["why"][0]
        # The device drops the packets of its rules, and the software receives none of them.
        assert tap.send(*[to(80, "10.0.7.200")] * 5, *[to(80, "fd00:7::2")] * 3, *[to(80)] * 4) == []
        assert [tap.rule(name)["packets"] for name in ("bogon", "web6", "web")] == [0, 0, 0]
        # The software drops those of the rule that the device refused, and fragments.
        assert tap.send(to(81, ttl=1)) == [] and tap.rule("near")["packets"] == 1
        assert tap.send(to(80, flags=1), to(80, offset=100)) == [] and tap.rule("web")["packets"] == 2
        # Other ports, and another source.
        assert tap.send(to(81), to(81, "fd00:7::2"), to(80, "fd00:8::2")) == [81, 81]
        machine.write("/run/next.lua", tap.config(WEB6, WEB))
        router.command("apply", "/run/next.lua")
        assert tap.held("web6") == tap.held("web") == (1, 1)
        assert tap.send(to(80, "10.0.7.200"), to(80, "fd00:7::2"), to(80)) == [80]
        shown = machine.run("tc", "filter", "show", "dev", "flow0", "parent", "1:").stdout
        assert "src_ip fd00:7::/64" in shown and "10.0.7.128" not in shown, shown
        router.stop()
    finally:
        tap.lab.close()
        router.close()

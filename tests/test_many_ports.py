"""As many ports as the PC router's authors had, 14, each to one other and each to all others, while the number of
forwarders changes."""

from collections import Counter

import pytest

from lib.apply import apply
from lib.lab import is_announcement
from lib.netns import veth
from lib.packets import ethernet, ipv4, udp

PORTS = 14
PACKETS = 8


def mac(port, last=1):
    return f"02:00:00:00:{port:02x}:{last:02x}"


def configuration(cores):
    lines = ['local turnpike = require "turnpike"', f'turnpike.forwarders {{ cores = "{cores}", rebalance = false }}']
    for port in range(1, PORTS + 1):
        lines.append(f'turnpike.port "p{port}" {{ device = "tp-{port}", address = "10.{port}.0.1/24" }}')
        lines.append(f'turnpike.neighbour "10.{port}.0.2" {{ port = "p{port}", mac = "{mac(port, 2)}" }}')
    return "\n".join(lines) + "\n"


class Many:
    """A router of many ports, whose other ends are raw."""

    def __init__(self, lab, cores):
        inside, outside = lab.namespace("router", quiet=True), lab.namespace("outside", quiet=True)
        for port in range(1, PORTS + 1):
            veth(inside, f"tp-{port}", outside, f"wire-{port}", mac(port), mac(port, 2))
        self.wires = {port: lab.raw(outside, f"wire-{port}", is_announcement) for port in range(1, PORTS + 1)}
        self.router = lab.router(inside, configuration(cores))

    def send(self, pairs):
        """Sends packets on every path at once, and returns those that must arrive: by port, the numbers from each
        source."""
        expected = {}
        for number in range(PACKETS):
            for source, sink in pairs:
                addresses = f"10.{source}.0.2", f"10.{sink}.0.2"
                packet = ipv4(*addresses, udp(*addresses, 1000, 2000, bytes([source, number])))
                self.wires[source].send(ethernet(mac(source), mac(source, 2), 0x0800, packet))
                expected.setdefault(sink, {}).setdefault(source, []).append(number)
        return expected

    def arrived(self, expected):
        """The packets that arrive within some seconds, or at once more than expected."""
        found = {}
        for port, wire in self.wires.items():
            wanted = sum(map(len, expected.get(port, {}).values()))
            for frame in wire.expect(wanted, timeout=20) + wire.receive(0.02):
                assert frame[:6] == bytes.fromhex(mac(port, 2).replace(":", "")) and frame[22] == 63, frame
                found.setdefault(port, {}).setdefault(frame[42], []).append(frame[43])
        return found


PATTERNS = {
    "one-to-one": [(port, (port - 1 ^ 1) + 1) for port in range(1, PORTS + 1)],
    "uniform": [(source, sink) for source in range(1, PORTS + 1) for sink in range(1, PORTS + 1) if source != sink],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_packet_takes_its_way_with_any_number_of_forwarders(lab, pattern):
    many = Many(lab, "0")
    for cores in ("0", "0,1", "1"):
        apply(many.router, configuration(cores))
        shown = many.router.show("forwarders")["forwarders"]
        served = Counter({one["core"]: len(one["rx"]) for one in shown})
        # All ports are served, and the forwarders have as many as the others.
        assert sum(served.values()) == PORTS and max(served.values()) - min(served.values()) <= 1, served
        expected = many.send(PATTERNS[pattern])
        assert many.arrived(expected) == expected, "each once, in the order of its source"
    many.router.stop()

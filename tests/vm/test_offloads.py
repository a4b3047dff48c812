"""What NICs do in place of the router: checking header checksums, frames in several buffers."""

import pytest

from lib.lab import Lab
from lib.packets import ethernet, forwarded, ipv4, pattern, udp
from lib.router import Change

from .lib.hosts import Outside, ports

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'
# NICs whose driver tells whether the header's checksum is right.
CHECKING = ["e1000e", "e1000", "igb"]
# NICs that take jumbo frames, and whether they put them into several buffers when they are asked to.
JUMBO = {"e1000e": True, "igb": True, "virtio": True, "vmxnet3": False}


class Between:
    """A router between the hosts at two NICs of a kind, and raw sockets on the hosts' interfaces."""

    def __init__(self, machine, kind, settings="", mtu=1500):
        nics = [machine.nic(kind, index) for index in (0, 1)]
        self.left, self.right = (Outside(machine, nic, side) for side, nic in enumerate(nics, 1))
        for host in (self.left, self.right):
            host.run("ip", "link", "set", "eth0", "mtu", mtu)
        neighbour = f'turnpike.neighbour "10.0.2.2" {{ port = "port2", mac = "{self.right.nic.host_mac}" }}\n'
        self.router = machine.router(ports(self.left, self.right, settings=settings) + FORWARDERS + neighbour)
        self._lab = Lab()
        self.sender = self._lab.raw(self.left.namespace, "eth0")
        self.receiver = self._lab.raw(self.right.namespace, "eth0", lambda frame: frame[23:24] != b"\x11")

    def close(self):
        self._lab.close()
        self.router.close()
        for host in (self.left, self.right):
            host.run("ip", "link", "set", "eth0", "mtu", 1500)

    def used(self):
        """The offloads in use on the first port."""
        report = self.router.show("ports")[0]["offloads"]
        return {offload["offload"] for offload in report if offload["on"]}

    def frame(self, length, **options):
        """A UDP packet of this length, IP header included."""
        packet = ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(length - 28)), **options)
        return ethernet(self.left.nic.mac, self.left.nic.host_mac, 0x0800, packet)

    def expect(self, *frames):
        """These frames are forwarded, byte for byte."""
        expected = [forwarded(f, self.right.nic.mac, self.right.nic.host_mac) for f in frames]
        assert self.receiver.expect(len(frames), timeout=20) == expected


@pytest.mark.parametrize("kind", CHECKING)
@pytest.mark.parametrize("used", [True, False], ids=["by the NIC", "by the router"])
def test_header_checksums_count_the_same_whoever_checks_them(machine, kind, used):
    settings = "" if used else ", offloads = { rx_checksum = false }"
    between = Between(machine, kind, settings)
    try:
        assert ("rx_checksum" in between.used()) == used
        options = [{}, {"flags": 1}, {"offset": 3}, {"options": b"\1\1\1\0"}]
        good = [between.frame(100, **option) for option in options]
        bad = [frame[:24] + bytes([frame[24] ^ 0x40]) + frame[25:] for frame in good]
        change = Change(between.router)
        between.sender.send(*(frame for pair in zip(bad, good) for frame in pair))
        # Packets with options take the slow path.
        between.expect(*good)
        assert change(received=8, timeout=20)["dropped"] == {"ip4-checksum": 4}
    finally:
        between.close()


@pytest.mark.parametrize("kind", JUMBO)
def test_jumbo_frames_arrive_whole(machine, kind):
    settings = ", mtu = 9000" + (", offloads = { scatter = true }" if JUMBO[kind] else "")
    between = Between(machine, kind, settings, mtu=9000)
    try:
        assert ("scatter" in between.used()) == JUMBO[kind]
        frames = [between.frame(size, flags=2) for size in (100, 1500, 2034, 2035, 4096, 9000)]
        between.sender.send(*frames)
        between.expect(*frames)
        between.left.run("ping", "-c", 2, "-W", 10, "-s", 8972, "-M", "do", "10.0.2.2")
        between.router.stop()
    finally:
        between.close()

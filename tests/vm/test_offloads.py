"""Work of NICs in place of the router: verification of header checksums, frames in several buffers."""

import hashlib
import socket

import pytest

from lib.lab import Lab
from lib.packets import ethernet, forwarded, ipv4, pattern, udp
from lib.router import Change

from .lib.hosts import Outside, address, ports

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'
# NICs whose driver reports the result of the header's checksum.
CHECKING = ["e1000e", "e1000", "igb"]
# NICs that accept jumbo frames, and true if they put them into several buffers on request.
JUMBO = {"e1000e": True, "igb": True, "virtio": True, "vmxnet3": False}
# Offloads of NICs for packets that the kernel sends by a host interface.
SENDING = {
    "virtio": {"tx_checksum", "segmentation"},
    "vmxnet3": {"tx_checksum", "segmentation"},
    "igb": {"tx_checksum", "segmentation"},
    "e1000e": {"tx_checksum"},
}
BULK = 3_000_000
# A TCP client in the machine, and the data by which both ends know each other.
CLIENT = f"""
import socket, sys
data = b"".join(number.to_bytes(8, "big") for number in range({BULK} // 8))
with socket.create_connection((sys.argv[1], 5001), 60) as connection:
    connection.sendall(data)
"""


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


@pytest.mark.long
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
        dropped = change(received=8, timeout=20)["dropped"]
        # The hosts' kernels report their groups at any time.
        dropped.pop("multicast-not-routed", None)
        assert dropped == {"ip4-checksum": 4}
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


def send_bulk(machine, host, family):
    """A TCP connection from the router's machine to a host: the digest and the length of what arrives."""
    with host.namespace.entered():
        listener = socket.create_server(
            (address(host, family), 5001), family=socket.AF_INET6 if family == 6 else socket.AF_INET
        )
    digest, length = hashlib.sha256(), 0
    with listener:
        listener.settimeout(60)
        client = machine.spawn("python3", "-c", CLIENT, address(host, family))
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(60)
            while piece := connection.recv(1 << 20):
                digest.update(piece)
                length += len(piece)
    assert client.wait(60) == 0
    return digest.hexdigest(), length


@pytest.mark.long
@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.parametrize("used", [True, False], ids=["by the NIC", "by the router"])
def test_what_the_kernel_sends_is_finished_and_segmented(machine, kind, used):
    host = Outside(machine, machine.nic(kind), 1)
    settings = "" if used else ", offloads = { tx_checksum = false, segmentation = false }"
    router = machine.router(ports(host, settings=f", host = true{settings}") + FORWARDERS)
    try:
        shown = router.show("ports")[0]["offloads"]
        on = {offload["offload"] for offload in shown if offload["on"]} & {"tx_checksum", "segmentation"}
        assert on == (SENDING[kind] if used else set()), shown
        data = b"".join(number.to_bytes(8, "big") for number in range(BULK // 8))
        for family in (4, 6):
            host.run("ping", f"-{family}", "-c", 1, "-W", 10, address(host, family)[:-1] + "1")
            before = router.show("ports")[0]["host"]["down_packets"]
            assert send_bulk(machine, host, family) == (hashlib.sha256(data).hexdigest(), BULK)
            packets = router.show("ports")[0]["host"]["down_packets"] - before
            # Segments of 1,448 or 1,428 bytes each, or several in a packet that the NIC cuts.
            segmented = "segmentation" in on
            assert packets < BULK / 3000 if segmented else packets >= BULK / 1460, packets
        router.stop()
    finally:
        router.close()
        machine.run("ip", "link", "del", "port1", check=False)

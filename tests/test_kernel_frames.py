"""Frames that only some programs use, and their delivery to the kernel."""

import contextlib
import socket
import struct

import pytest

from lib.kernel import Machine, forwarder
from lib.lab import HOST_A_MAC
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, udp
from lib.router import Change

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="about host interfaces")

_SOL_PACKET, _ADD_MEMBERSHIP, _ALL_MULTICASTS = 263, 1, 2


@pytest.fixture(scope="module")
def wired(module_lab):
    """A machine, the wire of its port `left`, and the port's host interface as a wire."""
    machine = Machine(module_lab, "router")
    space = module_lab.namespace("left", quiet=True)
    machine.port("left", space, "wire", "10.0.1.1/24")
    machine.start()
    yield machine, module_lab.raw(space, "wire"), module_lab.raw(machine.space, "left")
    machine.finish()


def datagram(source, destination, mac, port, data=b"hello"):
    return ethernet(mac, HOST_A_MAC, 0x0800, ipv4(source, destination, udp(source, destination, 68, port, data)))


def test_a_dhcp_server_hears_hosts_without_address(wired):
    machine, wire, _ = wired
    with machine.space.entered():
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        # Like dhcpd: by the interface, since the client has no address to answer to.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"left")
        server.bind(("0.0.0.0", 67))
        server.settimeout(3)
        wire.send(datagram("0.0.0.0", "255.255.255.255", "ff:ff:ff:ff:ff:ff", 67, b"discover"))
        assert server.recvfrom(100) == (b"discover", ("0.0.0.0", 68))
        server.sendto(b"offer", ("255.255.255.255", 68))
        offer = wire.expect(1, lambda frame: frame[12:14] == b"\x08\x00" and frame[42:47] == b"offer")
        assert offer and offer[0][:6] == b"\xff" * 6
    # With a unicast destination the unspecified source is a martian.
    change = Change(machine.router)
    wire.send(datagram("0.0.0.0", "10.0.1.1", "ff:ff:ff:ff:ff:ff", 67))
    assert change(received=1)["dropped"] == {"ip4-martian-source": 1}


@contextlib.contextmanager
def by_a_daemon(machine):
    """Joins all groups, like a multicast routing daemon or pimd."""
    with machine.space.entered():
        daemon = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    with daemon:
        request = struct.pack("=iHH8s", machine.index("left"), _ALL_MULTICASTS, 0, b"")
        daemon.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
        yield


@contextlib.contextmanager
def by_a_command(machine):
    machine.run("ip", "link", "set", "left", "allmulticast", "on")
    yield
    machine.run("ip", "link", "set", "left", "allmulticast", "off")


@pytest.mark.parametrize("asks", [by_a_command, by_a_daemon])
def test_all_multicasts_go_up_when_somebody_asks(wired, asks):
    machine, wire, host = wired
    frame = datagram("10.0.1.2", "239.1.2.3", "01:00:5e:01:02:03", 5000)

    def goes_up():
        host.drain()
        wire.send(frame)
        return bool(host.expect(1, lambda other: other == frame, timeout=0.1))

    assert not goes_up()
    with asks(machine):
        assert wait_for(goes_up, 5, 0.01)
    assert wait_for(lambda: not goes_up(), 5, 0.01)
    change = Change(machine.router)
    wire.send(frame)
    assert change(received=1)["dropped"] == {"multicast-not-routed": 1}

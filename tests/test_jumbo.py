"""Jumbo frames: packets larger than the usual packet buffer are received, forwarded, fragmented and refused like any
other."""

import re
import socket
import threading

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6PacketTooBig, IPv6
from scapy.layers.l2 import Ether

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Hosts, Wires
from lib.packets import ethernet, forwarded, ipv4, ipv6, pattern, udp
from lib.router import Change

# The largest frame: 9,200 bytes with its Ethernet header.
LARGEST = 9200 - 14
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


@pytest.fixture(scope="module")
def wires(module_lab):
    """Two jumbo ports."""
    return Wires(module_lab, mtu=(LARGEST, LARGEST), calm=True)


@pytest.fixture(scope="module", params=[1500, 4000])
def narrow(request, module_lab):
    """Packets from a jumbo port to a smaller one, and its MTU."""
    return Wires(module_lab, mtu=(9000, request.param), calm=True), request.param


def packet(family, length, flags=0):
    """A UDP packet of this length, IP header included."""
    if family == 4:
        data = udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(length - 28))
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data, flags=flags))
    data = udp("fd00:1::2", "fd00:2::2", 1, 2, pattern(length - 48))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6("fd00:1::2", "fd00:2::2", data))


@pytest.mark.parametrize("family", [4, 6])
def test_every_size_up_to_the_largest_is_forwarded(wires, family):
    # Around the ends of usual buffers, of pages and of the ring's frames, and the largest.
    sizes = [64, 1500, 1946, 1947, 2034, 2035, 2048, 4096, 8192, 9000, LARGEST - 1, LARGEST]
    frames = [packet(family, size, flags=2) for size in sizes]
    wires.drain()
    change = Change(wires.router)
    wires.left.send(*frames)
    assert wires.right.expect(len(frames)) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}


def test_a_large_echo_to_the_router_is_answered_whole(wires):
    wires.drain()
    data = pattern(9000)
    wires.left.send(LINK / IP(src="10.0.1.2", dst="10.0.1.1", flags="DF") / ICMP(id=1) / data)
    (reply,) = wires.left.expect(1)
    assert bytes(Ether(reply)[ICMP].payload) == data
    wires.left.send(LINK / IPv6(src="fd00:1::2", dst="fd00:1::1") / ICMPv6EchoRequest(data=data))
    (reply,) = wires.left.expect(1)
    assert Ether(reply)[ICMPv6EchoReply].data == data


@pytest.mark.parametrize("length", [4000, 8000, 20_000])
def test_fragments_are_not_reassembled(wires, length):
    # Some are larger than a usual buffer; the datagram would fit a jumbo port's, or none.
    whole = udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(length - 28))
    parts = [whole[at:at + 2400] for at in range(0, len(whole), 2400)]
    frames = [
        ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(
            "10.0.1.2", "10.0.2.2", part, ident=length, flags=int(part is not parts[-1]), offset=300 * n))
        for n, part in enumerate(parts)
    ]
    wires.drain()
    change = Change(wires.router)
    wires.left.send(*frames)
    assert wires.right.expect(len(frames)) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}


def test_a_small_port_cuts_what_may_be_cut(narrow):
    wires, mtu = narrow
    wires.drain()
    sent = packet(4, 9000)
    wires.left.send(sent)
    per_fragment = (mtu - 20) // 8 * 8
    count = -(-8980 // per_fragment)
    fragments = [Ether(frame)[IP] for frame in wires.right.expect(count)]
    assert [f.frag * 8 for f in fragments] == [n * per_fragment for n in range(count)]
    assert b"".join(bytes(f.payload)[: f.len - 20] for f in fragments) == sent[34:]
    assert max(f.len for f in fragments) <= mtu and fragments[-1].flags == 0


def test_a_small_port_says_what_it_takes(narrow):
    wires, mtu = narrow
    wires.drain()
    wires.left.send(packet(4, 9000, flags=2))
    (error,) = wires.left.expect(1)
    error = Ether(error)[ICMP]
    assert (error.type, error.code, error.nexthopmtu) == (3, 4, mtu)
    wires.left.send(packet(6, 9000))
    (error,) = wires.left.expect(1)
    assert Ether(error)[ICMPv6PacketTooBig].mtu == mtu
    # Packets up to the port's MTU pass.
    frames = [packet(4, mtu, flags=2), packet(6, mtu)]
    wires.left.send(*frames)
    assert wires.right.expect(2) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]


def test_a_usual_port_beside_a_jumbo_port_keeps_its_driver(narrow):
    wires, mtu = narrow
    by = dict(re.findall(r'port "(\w+)": \S+ by (\w+)', wires.router.log()))
    assert by == {"left": "net_af_packet", "right": "net_af_xdp" if mtu == 1500 else "net_af_packet"}


@pytest.mark.parametrize("address", ["10.0.2.2", "fd00:2::2"])
def test_tcp_with_segments_of_nine_thousand_bytes(lab, address):
    hosts = Hosts(lab, mtu=9000)
    wire = lab.raw(hosts.right, "eth0")
    hosts.left.run("ping", "-c", 1, "-W", 5, address)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with hosts.right.entered():
        server = socket.create_server((address, 5000), family=family)
    received = []

    def take():
        peer, _ = server.accept()
        while data := peer.recv(1 << 16):
            received.append(data)

    taker = threading.Thread(target=take)
    taker.start()
    with hosts.left.entered():
        client = socket.socket(family)
    client.settimeout(30)
    client.connect((address, 5000))
    mss = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    data = pattern(20_000_000)
    client.sendall(data)
    client.close()
    taker.join(60)
    server.close()
    assert b"".join(received) == data
    assert mss > 8900
    lengths = {len(frame) for frame in wire.receive(0.05)}
    assert max(lengths) == 9014

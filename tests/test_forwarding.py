"""Forwarding, byte for byte: the packets that arrive at the far wire are those that the RFCs require, and no others."""

import struct

import pytest
from scapy.layers.l2 import ARP, Dot1Q

from lib.lab import (
    DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, STATIC_NEIGHBOURS, Wires, ports_by,
)
from lib.packets import ethernet, forwarded, ipv4, ipv6, pattern, udp, unpadded
from lib.router import Change

# Frame lengths without the frame check sequence: 60 is a 64-byte frame on a wire.
SIZES = [60, 61, 63, 64, 65, 127, 128, 129, 255, 256, 512, 777, 1000, 1024, 1280, 1500, 1513, 1514]

ROUTES = """
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.route "2001:db8:100::/48" { via = "fd00:2::2" }
"""


@pytest.fixture(scope="module", params=DRIVERS)
def wires(request, module_lab):
    made = Wires(module_lab, ROUTES, ports=ports_by(request.param) + STATIC_NEIGHBOURS, calm=True)
    made.driver = request.param
    return made


@pytest.fixture(autouse=True)
def silence(wires):
    wires.drain()


# Properties of each direction: wire in, wire out, the MACs on both, and the addresses.
RIGHTWARD = ("left", "right", (LEFT_MAC, HOST_A_MAC), (RIGHT_MAC, HOST_B_MAC), 1, 2)
LEFTWARD = ("right", "left", (RIGHT_MAC, HOST_B_MAC), (LEFT_MAC, HOST_A_MAC), 2, 1)


def frame_of(size, family, macs, source, destination, seed=0, **fields):
    """A UDP frame of `size` bytes from one side's host to the other's."""
    router, host = macs
    if family == 4:
        a, b = f"10.0.{source}.2", f"10.0.{destination}.2"
        data = pattern(size - 42, seed)
        return ethernet(router, host, 0x0800, ipv4(a, b, udp(a, b, 1000 + seed, 2000, data), **fields))
    a, b = f"fd00:{source}::2", f"fd00:{destination}::2"
    data = pattern(size - 62, seed)
    return ethernet(router, host, 0x86DD, ipv6(a, b, udp(a, b, 1000 + seed, 2000, data), **fields))


def check(wires, direction, frames):
    """Sends the frames in a direction; the far wire gets exactly the forwarded ones."""
    in_name, out_name, _, out_macs, _, _ = direction
    change = Change(wires.router)
    getattr(wires, in_name).send(*frames)
    arrived = getattr(wires, out_name).expect(len(frames))
    expected = [forwarded(frame, *out_macs) for frame in frames]
    assert [unpadded(frame) for frame in arrived] == expected
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}
    assert wires.silent(0.05)


@pytest.mark.parametrize("direction", [RIGHTWARD, LEFTWARD], ids=["rightward", "leftward"])
@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_every_size_arrives_as_it_should(wires, family, direction):
    sizes = [size for size in SIZES if family == 4 or size >= 62]
    frames = [
        frame_of(size, family, direction[2], direction[4], direction[5], seed=i)
        for i, size in enumerate(sizes)
    ]
    check(wires, direction, frames)


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_a_priority_tag_is_taken_out(wires, family):
    """VLAN 0 is no VLAN (IEEE 802.1Q 6.9): such a frame counts as untagged."""
    plain = [frame_of(100 + i, family, RIGHTWARD[2], 1, 2, seed=i) for i in range(40)]
    tagged = []
    for number, frame in enumerate(plain):
        tag = Dot1Q(vlan=0, prio=number % 8, type=int.from_bytes(frame[12:14]))
        tagged.append(frame[:12] + b"\x81\0" + bytes(tag) + frame[14:])
    assert tagged[5][12:18] == b"\x81\0\xa0\0" + plain[5][12:14]
    change = Change(wires.router)
    # Untagged ones between them, in one batch.
    wires.left.send(*[frame for pair in zip(tagged, plain) for frame in pair])
    arrived = [unpadded(frame) for frame in wires.right.expect(80)]
    assert arrived == [forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in plain for _ in range(2)]
    assert change(received=80) == {"received": 80, "sent": 80}


def test_the_router_answers_behind_a_priority_tag(wires):
    question = bytes(ARP(hwsrc=HOST_A_MAC, psrc="10.0.1.2", pdst="10.0.1.1"))
    wires.left.send(ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x8100, b"\xe0\0\x08\x06" + question))
    (answer,) = wires.left.expect(1)
    assert answer[:14] == ethernet(HOST_A_MAC, LEFT_MAC, 0x0806, b"") and answer[28:32] == bytes([10, 0, 1, 1])


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_a_burst_arrives_whole_and_in_order(wires, family):
    frames = [frame_of(100 + i, family, RIGHTWARD[2], 1, 2, seed=i) for i in range(300)]
    check(wires, RIGHTWARD, frames)


def test_a_mixed_batch_of_both_families_keeps_its_order(wires):
    frames = [frame_of(200, 4 + 2 * (i * i // 3 % 2), RIGHTWARD[2], 1, 2, seed=i) for i in range(200)]
    check(wires, RIGHTWARD, frames)


@pytest.mark.parametrize("ttl", [2, 3, 64, 128, 255])
def test_ttl_and_checksum_change_and_nothing_else(wires, ttl):
    # The identification runs through values for which the incremental checksum update of
    # RFC 1624 meets its corner cases (0x0000 and 0xffff).
    frames = [
        frame_of(80, 4, RIGHTWARD[2], 1, 2, seed=i, ttl=ttl, ident=ident)
        for i, ident in enumerate([*range(0, 65536, 1021), 65535])
    ]
    check(wires, RIGHTWARD, frames)


def header_with_checksum(target, ttl):
    """A frame whose header checksum is `target`, by choice of the identification."""
    for ident in range(65536):
        frame = frame_of(80, 4, RIGHTWARD[2], 1, 2, ttl=ttl, ident=ident)
        if struct.unpack_from("!H", frame, 24)[0] == target:
            return frame
    raise AssertionError(f"no identification gives {target:#06x}")


@pytest.mark.parametrize("target", [0x0000, 0x00FF, 0x0100, 0xFEFE, 0xFEFF, 0xFF00, 0xFFFE])
def test_checksum_corner_cases(wires, target):
    check(wires, RIGHTWARD, [header_with_checksum(target, ttl=64)])


def test_tos_flow_label_and_fragment_fields_survive(wires):
    router, host = RIGHTWARD[2]
    data = pattern(64)
    frames = [
        ethernet(router, host, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data, tos=0xB9)),
        ethernet(router, host, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data, flags=2)),
        ethernet(router, host, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data, flags=1)),
        ethernet(router, host, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data, offset=0x1FF)),
        ethernet(router, host, 0x86DD, ipv6("fd00:1::2", "fd00:2::2", data, traffic_class=0xB9, flow=0xFEDCB)),
        ethernet(router, host, 0x86DD, ipv6(
            "fd00:1::2", "fd00:2::2", b"\x11\0\0\x01\0\0\0\x07" + data, next_header=44)),
    ]
    check(wires, RIGHTWARD, frames)


def fragments(length, ident):
    """A datagram of `length` bytes and its frames, with 800 bytes of it in each."""
    a, b = "10.0.1.2", "10.0.2.2"
    datagram = udp(a, b, 1000, 2000, pattern(length - 28))
    parts = [datagram[at:at + 800] for at in range(0, len(datagram), 800)]
    return datagram, [
        ethernet(*RIGHTWARD[2], 0x0800, ipv4(
            a, b, part, ident=ident, flags=int(part is not parts[-1]), offset=100 * i))
        for i, part in enumerate(parts)
    ]


@pytest.mark.parametrize("length", [1500, 1900, 4000, 8000])
@pytest.mark.parametrize("order", ["as sent", "reversed"])
def test_fragments(wires, length, order):
    # RFC 1812 5.2.6: they are forwarded unchanged, without reassembly.
    _, frames = fragments(length, length)
    check(wires, RIGHTWARD, frames if order == "as sent" else frames[::-1])


@pytest.mark.parametrize("protocol", [0xFD, 6, 17, 41, 47, 50, 89, 132])
def test_the_payload_is_not_touched_whatever_it_claims_to_be(wires, protocol):
    # Random bytes after the header are no valid TCP, UDP or SCTP, and no concern of a router.
    router, host = RIGHTWARD[2]
    frames = [
        ethernet(router, host, 0x0800, ipv4("10.0.1.2", "10.0.2.2", pattern(n, n), protocol=protocol))
        for n in (1, 2, 7, 8, 19, 20, 40, 200)
    ] + [
        ethernet(router, host, 0x86DD, ipv6("fd00:1::2", "fd00:2::2", pattern(n, n), next_header=protocol))
        for n in (1, 2, 7, 8, 19, 20, 40, 200)
    ]
    check(wires, RIGHTWARD, frames)


def test_wrong_and_absent_transport_checksums_are_left_alone(wires):
    router, host = RIGHTWARD[2]
    datagram = udp("10.0.1.2", "10.0.2.2", 7, 9, pattern(50))
    right = struct.unpack_from("!H", datagram, 6)[0]
    frames = [
        ethernet(router, host, 0x0800, ipv4(
            "10.0.1.2", "10.0.2.2", datagram[:6] + struct.pack("!H", value) + datagram[8:]))
        for value in (0, right ^ 0x0001, right ^ 0x8000, 0xFFFF)
    ]
    check(wires, RIGHTWARD, frames)


@pytest.mark.parametrize("padding", [b"\0" * 18, b"\xff" * 18])
def test_link_padding_is_not_taken_for_payload(wires, padding):
    frame = frame_of(43, 4, RIGHTWARD[2], 1, 2)
    change = Change(wires.router)
    wires.left.send(frame + padding)
    (arrived,) = wires.right.expect(1)
    expected = forwarded(frame, RIGHT_MAC, HOST_B_MAC)
    # The padding may be removed, or stay padding; it must not change the packet.
    assert unpadded(arrived) == expected and arrived[len(expected):] in (b"", padding)
    assert change(received=1) == {"received": 1, "sent": 1}


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_a_route_leads_to_its_gateway(wires, family):
    router, host = RIGHTWARD[2]
    if family == 4:
        frame = ethernet(router, host, 0x0800, ipv4("10.0.1.2", "198.51.100.77", pattern(30)))
    else:
        frame = ethernet(router, host, 0x86DD, ipv6("fd00:1::2", "2001:db8:100:1::77", pattern(30)))
    check(wires, RIGHTWARD, [frame])


def test_a_packet_may_leave_by_the_port_it_came_in(wires):
    router, host = LEFTWARD[2]
    frame = ethernet(router, host, 0x0800, ipv4("10.0.2.3", "198.51.100.1", pattern(30)))
    change = Change(wires.router)
    wires.right.send(frame)
    arrived = wires.right.expect(1)
    assert [unpadded(f) for f in arrived] == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    assert change(received=1) == {"received": 1, "sent": 1}


def test_port_counters_count_frames_and_bytes(wires):
    def port(name):
        return next(p for p in wires.router.show("ports") if p["name"] == name)

    left, right = port("left"), port("right")
    frames = [frame_of(size, 4, RIGHTWARD[2], 1, 2) for size in (60, 500, 1514)]
    check(wires, RIGHTWARD, frames)
    assert port("left")["rx_packets"] - left["rx_packets"] == 3
    assert port("right")["tx_packets"] - right["tx_packets"] == 3
    assert port("left")["rx_bytes"] - left["rx_bytes"] == 60 + 500 + 1514
    assert port("right")["tx_bytes"] - right["tx_bytes"] == 60 + 500 + 1514
    assert (left["mac"], left["mtu"], left["device"]) == (LEFT_MAC, 1500, "tp-left")
    assert "10.0.1.1/24" in left["addresses"] and "fd00:1::1/64" in left["addresses"]

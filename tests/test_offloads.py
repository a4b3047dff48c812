"""Work of a port's device in place of the router: verification of checksums, and frames in several buffers.

A TAP device of DPDK's has these offloads in its driver, so that the scenarios run where no NIC is. What
NICs do is seen in the VM lab.
"""

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC
from lib.netns import veth
from lib.packets import checksum, ethernet, forwarded, ipv4, ipv6, pattern, pseudo_header, udp
from lib.router import Change

JUMBO = 9000
SMALL_MAC, HOST_C_MAC = "02:00:00:00:03:01", "02:00:00:00:03:02"
# A device has the same address whenever it is opened.
TAP = f"net_tap0,iface=tp-left,mac={LEFT_MAC}"


class Tap:
    """A router with a TAP device, whose other end the test has, and behind it two veth pairs: one for
    jumbo frames, taken over by AF_PACKET, and one for usual ones."""

    def __init__(self, lab, offloads="", right=""):
        self.inside, outside = lab.namespace("router", quiet=True), lab.namespace("outside", quiet=True)
        veth(self.inside, "tp-right", outside, "right", RIGHT_MAC, HOST_B_MAC, JUMBO)
        veth(self.inside, "tp-small", outside, "small", SMALL_MAC, HOST_C_MAC, 1500)
        self.router = lab.router(self.inside, f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "{TAP}", {offloads} address = {{ "10.0.1.1/24", "fd00:1::1/64" }} }}
turnpike.port "right" {{ device = "tp-right", {right} address = {{ "10.0.2.1/24", "fd00:2::1/64" }} }}
turnpike.port "small" {{ device = "tp-small", address = "10.0.3.1/24" }}
turnpike.neighbour "10.0.1.2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "10.0.3.2" {{ port = "small", mac = "{HOST_C_MAC}" }}
turnpike.neighbour "fd00:2::2" {{ port = "right", mac = "{HOST_B_MAC}" }}
""")
        # More than the router's setting: its driver accepts any length.
        self.inside.run("ip", "link", "set", "tp-left", "mtu", JUMBO)
        self.left = lab.raw(self.inside, "tp-left", self.is_other)
        self.right = lab.raw(outside, "right", self.is_other)
        self.small = lab.raw(outside, "small", self.is_other)

    @staticmethod
    def is_other(frame):
        """Returns true for frames other than unicast IP packets."""
        return frame[12:14] not in (b"\x08\x00", b"\x86\xdd") or frame[0] & 1

    def drain(self):
        for wire in (self.left, self.right, self.small):
            wire.receive(0.05)

    @staticmethod
    def frame(length, to="10.0.2.2", **options):
        """A UDP packet of this length, IP header included, from left."""
        data = udp("10.0.1.2", to, 1, 2, pattern(length - 28 - len(options.get("options", b""))))
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", to, data, **options))

    @staticmethod
    def frame6(length):
        data = udp("fd00:1::2", "fd00:2::2", 1, 2, pattern(length - 48))
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6("fd00:1::2", "fd00:2::2", data))

    def arrives(self, *frames):
        """Checks that these frames are forwarded unchanged, except for the fields that a router changes."""
        self.left.send(*frames)
        assert self.right.expect(len(frames)) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]

    def offloads(self):
        """The offloads in use on the TAP, by name."""
        report = self.router.show("ports")[0]["offloads"]
        return {offload["offload"] for offload in report if offload["on"]}


@pytest.fixture(scope="module", params=["rx_checksum = true", "rx_checksum = false"])
def checked(request, module_lab):
    """Header checksums are checked by the device, and by the router."""
    tap = Tap(module_lab, f"offloads = {{ {request.param} }},")
    assert ("rx_checksum" in tap.offloads()) == ("true" in request.param)
    return tap


def broken(frame):
    """The frame with another header checksum."""
    return frame[:24] + bytes([frame[24] ^ 0x40]) + frame[25:]


def test_header_checksums_count_the_same_whoever_checks_them(checked):
    checked.drain()
    options = [{}, {"flags": 1}, {"offset": 3}, {"options": b"\1\1\1\0"}]
    good = [checked.frame(100, **option) for option in options]
    bad = [broken(frame) for frame in good]
    change = Change(checked.router)
    checked.left.send(*(frame for pair in zip(bad, good) for frame in pair))
    assert checked.right.expect(4) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in good]
    assert change(received=8) == {"received": 8, "sent": 4, "dropped": {"ip4-checksum": 4}}


@pytest.fixture(scope="module")
def scattering(module_lab):
    """Frames that are longer than their buffers of 2 kB."""
    tap = Tap(module_lab, "offloads = { scatter = true },")
    assert tap.offloads() == {"scatter", "multi_segment"}
    return tap


def test_frames_in_several_buffers_are_forwarded_whole(scattering):
    scattering.drain()
    # Around the ends of the buffers: 2,048 bytes with the Ethernet header, and headroom in each.
    sizes = [60, 1500, 2033, 2034, 2035, 2098, 4081, 4082, 4083, 8999, JUMBO]
    frames = [scattering.frame(size, flags=2) for size in sizes]
    frames += [scattering.frame6(size) for size in sizes]
    change = Change(scattering.router)
    scattering.arrives(*frames)
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}


def test_padding_behind_a_packet_in_several_buffers_is_cut_off(scattering):
    scattering.drain()
    scattering.arrives(scattering.frame(2030) + bytes(50), scattering.frame(4000) + bytes(3000))


def test_a_truncated_packet_in_several_buffers_is_dropped(scattering):
    scattering.drain()
    change = Change(scattering.router)
    scattering.left.send(scattering.frame6(6000)[:-1])
    assert change(received=1) == {"received": 1, "dropped": {"ip6-payload-length": 1}}


def test_an_unfinished_checksum_over_several_buffers_is_finished(scattering):
    scattering.drain()
    frame = scattering.frame(7777)
    partial = checksum(pseudo_header("10.0.1.2", "10.0.2.2", 17, 7757)) ^ 0xFFFF
    scattering.left.send(frame[:40] + partial.to_bytes(2, "big") + frame[42:])
    assert scattering.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]


def test_the_slow_path_reads_packets_in_several_buffers(scattering):
    scattering.drain()
    # An echo over the whole packet, options, which the slow path forwards, and what it cuts.
    echo = Ether(src=HOST_A_MAC, dst=LEFT_MAC) / IP(src="10.0.1.2", dst="10.0.1.1") / ICMP(id=1)
    scattering.left.send(echo / pattern(8000))
    replies = [Ether(frame)[IP] for frame in scattering.left.expect(6)]
    assert b"".join(bytes(part.payload)[: part.len - 20] for part in replies)[8:] == pattern(8000)
    scattering.arrives(scattering.frame(6000, options=b"\1\1\1\0"))
    sent = scattering.frame(JUMBO, to="10.0.3.2")
    scattering.left.send(sent)
    fragments = [Ether(frame)[IP] for frame in scattering.small.expect(7)]
    assert b"".join(bytes(f.payload)[: f.len - 20] for f in fragments) == sent[34:]


def test_a_device_that_takes_one_buffer_gets_one(lab):
    tap = Tap(lab, "offloads = { scatter = true },", right="offloads = { multi_segment = false },")
    frames = [tap.frame(size, flags=2) for size in (100, 3000, JUMBO, 200, 2035)]
    change = Change(tap.router)
    tap.arrives(*frames)
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}


def test_offloads_are_shown_with_the_reason(scattering):
    by_name = {o["offload"]: o for o in scattering.router.show("ports")[0]["offloads"]}
    assert list(by_name) == [
        "rx_checksum", "tx_checksum", "segmentation", "vlan", "scatter", "multi_segment", "fast_free",
    ]
    assert by_name["rx_checksum"]["device"] and not by_name["rx_checksum"]["on"]
    assert "router is faster" in by_name["rx_checksum"]["reason"]
    assert by_name["scatter"]["reason"] == "the configuration asks for it"
    assert not by_name["vlan"]["device"] and by_name["vlan"]["reason"] == "the device lacks it"
    lines = scattering.router.command("show", "ports", "--offloads").stdout.splitlines()
    assert lines[0].split() == ["PORT", "OFFLOAD", "DEVICE", "USED", "WHY"]
    assert len(lines) == 1 + 3 * len(by_name)
    assert ["left", "scatter", "yes", "yes"] in [line.split()[:4] for line in lines]
    assert 'port "left": offloads: scatter, multi_segment' in scattering.router.log()


@pytest.mark.parametrize("port, expected", [
    ('device = "net_null0", offloads = { rx_checksum = true }',
     'offload rx_checksum = true: device net_null0 (net_null) lacks it; leave it out, or write '
     'rx_checksum = false'),
    (f'device = "{TAP}", offloads = {{ vlan = true }}',
     f'offload vlan = true: device {TAP} (net_tap) lacks it; leave it out, or write vlan = false'),
    (f'device = "{TAP}", offloads = {{ fast_free = true }}',
     'port "left": offloads: fast_free cannot be had: a transmit queue sends packets of several pools'),
    (f'device = "{TAP}", offloads = {{ lro = true }}',
     'port "left": offloads: key "lro" unknown; known: rx_checksum, tx_checksum, segmentation, vlan'),
], ids=["by net_null", "by a TAP", "by the router", "by nobody"])
def test_what_cannot_be_had_ends_the_start(lab, port, expected):
    inside = lab.namespace("router", quiet=True)
    config = f'local turnpike = require "turnpike"\nturnpike.port "left" {{ {port}, address = "10.0.1.1/24" }}\n'
    router = lab.router(inside, config, wait=False)
    assert router.process.wait(timeout=30) != 0
    assert expected in router.log()


def test_other_offloads_open_the_port_again(lab):
    tap = Tap(lab)
    config = tap.router.config
    config.write_text(config.read_text().replace(f'"{TAP}",', f'"{TAP}", offloads = {{ rx_checksum = true }},'))
    plan = tap.router.command("plan", config, check=False).stdout
    assert "rx_checksum true" in plan and "closes the port and opens it again" in plan, plan
    tap.router.command("apply", config)
    assert "rx_checksum" in tap.offloads()

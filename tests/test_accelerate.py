"""`turnpike accelerate`: a Linux router that is its own before, meanwhile and after, only faster.

Hosts a and b are behind accelerated interfaces, and c behind another one. Counters of the XDP programs show which
packets Turnpike had. All holds in both modes: by AF_XDP sockets, and by the programs alone (`--in-kernel`).
"""

import json
import os
import re
import signal
import socket
import threading
import time

import pytest
from scapy.layers.inet import ICMP, IP, UDP, IPOption
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Ether

from lib.accelerate import IN_KERNEL, MODES, SOCKETS, Box, Counted, packets, receives_frames, status, takes_packets
from lib.kernel import pings, reaches
from lib.netns import held_thread, veth, wait_for
from lib.raw import RawPort
from lib.router import binary
from lib.traffic import Sink, Stream, late, lost

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = pytest.mark.xdist_group("accelerate")

B4, B6 = "198.51.2.1", "2001:db8:2::1"
FAR = [B4, B6]
# Of the process, without renewal.
LEASE_SECONDS = 0.1
# MACs of the router's eth0 and of host a.
ROUTER_MAC, A_MAC = "02:00:00:00:01:01", "02:00:00:00:01:02"


@pytest.fixture(scope="module", params=MODES, autouse=True)
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def box(module_lab, mode):
    box = Box(module_lab, mode)
    box.settle()
    box.router = box.accelerate("eth0", "eth1")
    return box


def pinged(box, host, address, **options):
    return reaches(box.hosts[host], address, **options)


class Talk:
    """Frames of host a, byte for byte, and those that arrive there and at b."""

    def __init__(self, box, match):
        self.a, self.b = RawPort(box.a, "eth0"), RawPort(box.b, "eth0")
        self.match = match

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.a.close(), self.b.close()

    def say(self, *packets):
        self.a.send(*[Ether(src=A_MAC, dst=ROUTER_MAC) / packet for packet in packets])

    def heard(self, side, count=1):
        """The IP packets with the mark that have arrived, `count` at least, and those of the next moment."""
        first = side.expect(count, lambda frame: self.match in frame and frame[:6] != bytes.fromhex(ROUTER_MAC.replace(":", "")))
        more = [frame for frame in side.receive(0.3) if self.match in frame]
        return [Ether(frame).payload for frame in first + more]


# --- start, stop and death ------------------------------------------------------------------------


def streams(box, rate=1000):
    sink = Sink(box.b)
    stream = Stream(box.a, FAR, rate=rate)
    assert sink.wait(rate // 2)
    return stream, sink


def end(stream, sink):
    sent = stream.stop()
    missing = lost(sent, sink)
    order = late([number for number, _ in sink.arrived()])
    sink.close()
    return missing, order


@pytest.mark.alone
def test_no_packet_is_lost_or_doubled_at_start_and_stop(lab, mode):
    box = Box(lab, mode)
    box.settle()
    before = box.space.link_settings()
    sysctls = box.space.settings()
    stream, sink = streams(box)
    router = box.accelerate("eth0", "eth1")
    assert wait_for(lambda: packets(router, "eth0", "accelerated") > 1000, 30), status(router)
    assert sink.wait(500)
    router.command("accelerate", "--stop")
    assert router.process.wait(20) == 0, router.log()
    assert re.search(r"mbufs: all \d+ returned", router.log())
    assert sink.wait(500), "the kernel forwards on"
    missing, order = end(stream, sink)
    assert not missing
    # Packets in a ring whose forwarder waits for a processor are overtaken by the kernel's.
    assert order <= 50, order
    assert box.space.link_settings() == before
    assert box.space.settings() == sysctls


def test_a_kill_leaves_nothing_behind_and_the_kernel_forwards_on(lab, mode):
    box = Box(lab, mode)
    box.settle()
    stream, sink = streams(box)
    router = box.accelerate("eth0", "eth1")
    assert wait_for(lambda: packets(router, "eth0", "accelerated") > 500, 30)
    router.kill()
    assert sink.wait(1000)
    missing, order = end(stream, sink)
    # No more than the socket's ring holds; the lease ends before it is full. Programs go on until then.
    assert len(missing) <= (2048 if mode == SOCKETS else 0), len(missing)
    assert wait_for(lambda: "xdp" not in box.space.links(), 20), box.space.links()
    # The next one starts, and finds nothing to put back but what is no one's harm.
    router = box.accelerate("eth0", "eth1")
    assert pinged(box, "a", B4)
    router.stop()


def test_packets_stay_with_the_kernel_while_the_process_is_stopped(lab, mode):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    assert pinged(box, "a", B4)
    router.process.send_signal(signal.SIGSTOP)
    try:
        # Programs forward on as long as the lease lasts.
        time.sleep(LEASE_SECONDS)
        for address in FAR:
            assert pinged(box, "a", address, seconds=20), "the program takes packets for two seconds at most"
    finally:
        router.process.send_signal(signal.SIGCONT)
    assert wait_for(lambda: packets(router, "eth0", "stalled") >= 2, 20)
    count = Counted(router, "eth0")
    assert wait_for(lambda: pings(box.a, B4) and count["accelerated"], 20), "and it goes on"
    router.stop()


def test_the_kernel_forwards_while_a_forwarder_gets_no_processor(lab, mode):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    stream, sink = streams(box, rate=500)
    assert wait_for(lambda: packets(router, "eth0", "accelerated") > 500, 30)
    count = Counted(router, "eth0")
    with held_thread(router.thread("forwarder-0")):
        # More than its ring holds, with those that pass.
        assert sink.wait(3000, 60), "its packets wait in its ring, and are lost when that is full"
        # Programs that forward themselves need none.
        assert (count["stalled"] > 2000) == (mode == SOCKETS), count.all()
    assert wait_for(lambda: count["accelerated"] > 500, 30), "and it goes on"
    missing, order = end(stream, sink)
    assert not missing
    # Those in its ring meanwhile.
    assert order < 1000, order
    router.stop()


def in_kernel_as_configuration(lab, box):
    router = lab.router(box.space, 'require "turnpike".accelerate { "eth0", "eth1", in_kernel = true }\n')
    takes_packets(router)
    count = Counted(router, "eth0")
    assert pinged(box, "a", B4) and pinged(box, "a", B6)
    assert count["accelerated"] >= 2
    assert "nothing would change" in router.command("plan", router.config).stdout
    other = router.directory / "other.lua"
    other.write_text('require "turnpike".accelerate { "eth0", "eth1" }\n')
    refused = router.command("apply", other, check=False)
    assert refused.returncode == 1 and "in_kernel" in refused.stderr, refused.stderr
    router.stop()


def test_the_same_as_configuration(lab, mode):
    box = Box(lab, mode)
    box.settle()
    if mode == IN_KERNEL:
        return in_kernel_as_configuration(lab, box)
    router = lab.router(box.space, 'require "turnpike".accelerate { "eth0", "eth1" }\n')
    takes_packets(router)
    count = Counted(router, "eth0")
    assert pinged(box, "a", B4) and pinged(box, "a", B6)
    assert count["accelerated"] >= 2
    assert "nothing would change" in router.command("plan", router.config).stdout
    # The port is opened again, with another program.
    other = router.directory / "other.lua"
    other.write_text('local turnpike = require "turnpike"\nturnpike.accelerate { "eth0" }\n'
                     'turnpike.port "eth1" { device = "eth1", accelerate = true, rx_descriptors = 512 }\n')
    router.command("apply", other)
    count = Counted(router, "eth1")
    assert wait_for(lambda: pings(box.b, "198.51.1.1") and count["accelerated"], 20), count.all()
    more = router.directory / "more.lua"
    more.write_text('require "turnpike".accelerate { "eth0", "eth1", "eth2" }\n')
    refused = router.command("apply", more, check=False)
    assert refused.returncode == 1 and "accelerated interfaces are those of the start" in refused.stderr
    router.stop()


def test_all_interfaces(lab, mode):
    box = Box(lab, mode)
    box.settle()
    box.ip("link", "add", "br0", "type", "bridge")
    box.ip("link", "add", "down0", "type", "veth", "peer", "name", "down1")
    router = box.accelerate("--all")
    assert set(status(router)) == {"eth0", "eth1", "eth2"}
    log = router.log()
    assert "br0: not accelerated: it is a bridge device" in log and "down0: not accelerated: it is down" in log
    count = Counted(router, "eth0")
    assert pinged(box, "a", "198.51.3.1") and count["accelerated"]
    router.stop()


# --- forwarding ----------------------------------------------------------------------------------


def test_packets_between_accelerated_interfaces_are_turnpike_s(box):
    for address in (B4, B6, "10.0.2.2", "fd00:2::2"):
        assert pinged(box, "a", address)
        count, back = Counted(box.router, "eth0"), Counted(box.router, "eth1")
        assert pings(box.a, address, count=5)
        assert count["accelerated"] == 5 and back["accelerated"] == 5, address


def test_the_router_s_own_addresses_stay_the_kernel_s(box):
    for address in ("10.0.1.1", "10.0.2.1", "10.0.3.1", "fd00:1::1", "fd00:2::1", "fd00:3::1"):
        count = Counted(box.router, "eth0")
        assert pings(box.a, address, count=2)
        assert count["accelerated"] == 0 and count["route"] >= 2, address


def test_packets_by_another_interface_stay_with_the_kernel(box):
    for address in ("198.51.3.1", "10.0.3.2", "2001:db8:3::1", "fd00:3::2"):
        count = Counted(box.router, "eth0")
        assert pings(box.a, address, count=3)
        assert count["accelerated"] == 0 and count["route"] >= 3, address
        # And from there: that interface has no program.
        count = Counted(box.router, "eth0")
        assert pings(box.c, B4) and pings(box.c, "198.51.1.1")
        assert count["accelerated"] == 0


def transfer(source, target, address, data):
    """Sends by TCP, and compares what arrives."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with target.entered():
        listener = socket.create_server((address, 0), family=family)
    got = []

    def receive():
        stream, _ = listener.accept()
        with stream, stream.makefile("rb") as file:
            got.append(file.read())

    receiver = threading.Thread(target=receive)
    receiver.start()
    with source.entered():
        sender = socket.create_connection(listener.getsockname()[:2], 20)
    with sender:
        sender.sendall(data)
    receiver.join(60)
    listener.close()
    assert got == [data]


@pytest.mark.parametrize("address", FAR)
def test_tcp_with_its_large_frames_arrives_whole(box, address):
    assert pinged(box, "a", address)
    count = Counted(box.router, "eth0")
    # Hosts on veth leave checksums and segmentation to their device.
    transfer(box.a, box.b, address, os.urandom(1 << 16) * 64)
    assert count["accelerated"] > 2000, count.all()
    assert box.router.dropped() == {}


@pytest.mark.parametrize("address", ["10.0.1.1", "fd00:2::1"])
def test_tcp_to_the_router_itself(box, address):
    transfer(box.a, box.space, address, os.urandom(1 << 16) * 16)


def test_arp_and_neighbour_discovery_are_the_kernel_s(box):
    count = Counted(box.router, "eth0")
    box.a.run("ip", "neighbour", "flush", "dev", "eth0")
    assert pinged(box, "a", B4) and pinged(box, "a", B6)
    # Questions of both protocols, to all and to a group.
    assert wait_for(lambda: count["other-mac"] >= 2, 10)


# --- left to the kernel --------------------------------------------------------------------------


MARK = b"the mark of these packets"


def test_packets_that_are_not_plain_pass_to_the_kernel_once(box):
    plain4 = IP(src="10.0.1.2", dst=B4) / UDP(sport=9, dport=9) / MARK
    plain6 = IPv6(src="fd00:1::2", dst=B6) / UDP(sport=9, dport=9) / MARK
    router_alert = IP(src="10.0.1.2", dst=B4, options=[IPOption(b"\x94\x04\0\0")]) / UDP(sport=9, dport=9) / MARK
    hop_by_hop = IPv6(src="fd00:1::2", dst=B6) / IPv6ExtHdrHopByHop() / UDP(sport=9, dport=9) / MARK
    assert pinged(box, "a", B4) and pinged(box, "a", B6)
    with Talk(box, MARK) as talk:
        for packet, outcome in ((plain4, "accelerated"), (plain6, "accelerated"), (router_alert, "options"),
                                (hop_by_hop, "options")):
            count = Counted(box.router, "eth0")
            talk.say(packet)
            (arrived,) = talk.heard(talk.b)
            assert (arrived.ttl if packet is plain4 or packet is router_alert else arrived.hlim) == 63
            assert count[outcome] == 1, (outcome, count.all())


def test_fragments_are_forwarded_like_other_packets(box):
    from scapy.layers.inet import fragment

    whole = IP(src="10.0.1.2", dst=B4, id=77) / UDP(sport=9, dport=9) / (MARK + bytes(900))
    pieces = fragment(whole, 400)
    assert pinged(box, "a", B4)
    count = Counted(box.router, "eth0")
    arrived = RawPort(box.b, "eth0")
    with Talk(box, MARK) as talk:
        talk.say(*pieces)
        frames = arrived.expect(len(pieces), lambda frame: frame[12:14] == b"\x08\x00" and frame[18:20] == b"\0\x4d")
    arrived.close()
    assert len(frames) == len(pieces) and count["accelerated"] == len(pieces)
    # To the router they are the kernel's, which reassembles them.
    assert pings(box.a, "10.0.1.1", size=4000) and pings(box.a, "fd00:1::1", size=4000)


@pytest.mark.parametrize("version", [4, 6])
def test_an_expired_packet_has_one_answer_from_the_kernel(box, version):
    if version == 4:
        packet, error = IP(src="10.0.1.2", dst=B4, ttl=1) / UDP(sport=9, dport=9) / MARK, (11, 0)
    else:
        packet, error = IPv6(src="fd00:1::2", dst=B6, hlim=1) / UDP(sport=9, dport=9) / (MARK * 2), (3, 0)
    with Talk(box, MARK) as talk:
        count = Counted(box.router, "eth0")
        talk.say(packet)
        (answer,) = talk.heard(talk.a)
        assert (answer.src, answer.payload.type, answer.payload.code) == (
            "10.0.1.1" if version == 4 else "fd00:1::1", *error)
        assert count["ttl"] == 1


def test_multicasts_and_broadcasts_stay_with_the_kernel(box):
    before = Counted(box.router, "eth0")
    port = RawPort(box.a, "eth0")
    for destination, mac in (("224.0.0.5", "01:00:5e:00:00:05"), ("239.1.2.3", "01:00:5e:01:02:03"),
                             ("255.255.255.255", "ff:ff:ff:ff:ff:ff"), ("10.0.1.255", "ff:ff:ff:ff:ff:ff")):
        port.send(Ether(src=A_MAC, dst=mac) / IP(src="10.0.1.2", dst=destination) / UDP() / MARK)
    # To a group in a unicast frame, and to another station.
    port.send(Ether(src=A_MAC, dst=ROUTER_MAC) / IP(src="10.0.1.2", dst="239.1.2.3") / UDP() / MARK)
    port.send(Ether(src=A_MAC, dst="02:00:00:00:00:99") / IP(src="10.0.1.2", dst=B4) / UDP() / MARK)
    port.close()
    assert wait_for(lambda: before["other-mac"] >= 5 and before["addresses"] >= 1, 10), before.all()
    assert before["accelerated"] == 0


def question(frame):
    return frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\x01"


def test_an_unknown_neighbour_is_resolved_by_the_kernel_and_no_packet_is_lost(box):
    for address, family in (("10.0.2.2", "-4"), ("fd00:2::2", "-6")):
        box.ip(family, "neighbour", "flush", "dev", "eth1")
        count = Counted(box.router, "eth0")
        assert pings(box.a, address, timeout=5), "the first packet waits in the kernel"
        assert wait_for(lambda: pings(box.a, address) and count["accelerated"] > count["returned"], 10), count.all()


def test_a_neighbour_that_is_not_there_is_reported_by_the_kernel(box):
    with Talk(box, MARK) as talk:
        talk.say(IP(src="10.0.1.2", dst="10.0.2.77") / UDP(sport=9, dport=9) / MARK)
        (answer,) = talk.heard(talk.a)
        assert (answer.src, answer[ICMP].type, answer[ICMP].code) == ("10.0.1.1", 3, 1)


@pytest.mark.parametrize("kind, code", [("unreachable", 1), ("prohibit", 13), ("blackhole", None)])
def test_routes_that_refuse_are_the_kernel_s(box, kind, code):
    box.ip("route", "add", kind, "192.0.2.0/24")
    try:
        count = Counted(box.router, "eth0")
        with Talk(box, MARK) as talk:
            talk.say(IP(src="10.0.1.2", dst="192.0.2.1") / UDP(sport=9, dport=9) / MARK)
            if code is None:
                assert talk.a.receive(0.3) == [] or all(MARK not in frame for frame in talk.a.receive(0.3))
            else:
                (answer,) = talk.heard(talk.a)
                assert (answer.src, answer[ICMP].type, answer[ICMP].code) == ("10.0.1.1", 3, code)
        assert wait_for(lambda: count["route"] == 1, 10) and count["accelerated"] == 0
    finally:
        box.ip("route", "del", kind, "192.0.2.0/24")


def test_a_packet_without_a_route_is_answered_once(box):
    with Talk(box, MARK) as talk:
        count = Counted(box.router, "eth0")
        talk.say(IP(src="10.0.1.2", dst="203.0.113.9") / UDP(sport=9, dport=9) / MARK)
        (answer,) = talk.heard(talk.a)
        assert (answer.src, answer[ICMP].type, answer[ICMP].code) == ("10.0.1.1", 3, 0)
        assert count["route"] == 1


def test_a_better_first_hop_is_told_by_the_kernel(lab, mode):
    box = Box(lab, mode)
    box.settle()
    # Another gateway on the hosts' network, which is a itself.
    box.ip("route", "add", "192.0.2.0/24", "via", "10.0.1.3")
    box.ip("neighbour", "add", "10.0.1.3", "lladdr", "02:00:00:00:01:03", "dev", "eth0", "nud", "permanent")
    router = box.accelerate("eth0", "eth1")
    with Talk(box, MARK) as talk:
        talk.say(IP(src="10.0.1.2", dst="192.0.2.1") / UDP(sport=9, dport=9) / MARK)
        heard = talk.heard(talk.a, 2)
        assert sorted(packet[ICMP].type if ICMP in packet else 0 for packet in heard) == [0, 5], heard
    assert packets(router, "eth0", "returned") == 1
    router.stop()


# --- changes -------------------------------------------------------------------------------------


def test_addresses_come_and_go(box):
    count = Counted(box.router, "eth0")
    box.ip("address", "add", "10.0.2.200/24", "dev", "eth1")
    box.ip("address", "add", "192.0.2.7/32", "dev", "lo")
    try:
        for address in ("10.0.2.200", "192.0.2.7"):
            assert pinged(box, "a", address)
        assert wait_for(lambda: count["route"] >= 2, 10)
    finally:
        box.ip("address", "del", "10.0.2.200/24", "dev", "eth1")
        box.ip("address", "del", "192.0.2.7/32", "dev", "lo")
    # A host may have the address now.
    box.b.run("ip", "address", "add", "10.0.2.200/24", "dev", "eth0")
    try:
        assert wait_for(lambda: pings(box.a, "10.0.2.200") and count["accelerated"], 20), count.all()
    finally:
        box.b.run("ip", "address", "del", "10.0.2.200/24", "dev", "eth0")


@pytest.mark.parametrize("prefix, address, family", [
    ("203.0.113.0/24", "203.0.113.1", "-4"), ("2001:db8:99::/48", "2001:db8:99::1", "-6"), ("default", "192.0.2.99", "-4"),
])
def test_a_route_moves_between_interfaces_of_both_kinds(box, prefix, address, family):
    via = {"b": {"-4": "10.0.2.2", "-6": "fd00:2::2"}, "c": {"-4": "10.0.3.2", "-6": "fd00:3::2"}}
    length = "32" if family == "-4" else "128"
    for host in "bc":
        box.hosts[host].run("ip", "address", "add", f"{address}/{length}", "dev", "lo")
    try:
        for host in "bcbc":
            box.ip(family, "route", "replace", prefix, "via", via[host][family])
            taken = host == "b"

            def is_followed():
                count = Counted(box.router, "eth0")
                return pings(box.a, address) and bool(count["accelerated"]) == taken

            assert wait_for(is_followed, 20), status(box.router)
            settled = Counted(box.router, "eth0")
            assert pings(box.a, address, count=3)
            assert settled["accelerated"] == (3 if taken else 0), settled.all()
        # A longer route within it by an accelerated interface.
        box.ip(family, "route", "add", f"{address}/{length}", "via", via["b"][family])
        count = Counted(box.router, "eth0")
        assert wait_for(lambda: pings(box.a, address) and count["accelerated"], 20)
    finally:
        box.ip(family, "route", "del", f"{address}/{length}", check=False)
        box.ip(family, "route", "del", prefix)
        for host in "bc":
            box.hosts[host].run("ip", "address", "del", f"{address}/{length}", "dev", "lo")
    assert not pings(box.a, address)


def test_paths_over_interfaces_of_both_kinds_stay_with_the_kernel(box):
    box.ip("route", "add", "203.0.113.0/24", "nexthop", "via", "10.0.2.2", "nexthop", "via", "10.0.3.2")
    try:
        for host in "bc":
            box.hosts[host].run("ip", "address", "add", "203.0.113.1/32", "dev", "lo")
        count = Counted(box.router, "eth0")
        assert pinged(box, "a", "203.0.113.1")
        assert count["accelerated"] == 0 and count["route"] >= 1
    finally:
        box.ip("route", "del", "203.0.113.0/24")
        for host in "bc":
            box.hosts[host].run("ip", "address", "del", "203.0.113.1/32", "dev", "lo")


ENCAP = ["encap", "ip", "id", "1", "dst", "10.0.2.2"]


@pytest.mark.parametrize("special", [["mtu", "1300"], ["mtu", "lock", "1300"], ["tos", "0x10"], ENCAP, ["nhid", "7"]], ids="-".join)
def test_routes_for_some_packets_only_are_the_kernel_s(box, special):
    """And those that encapsulate, also by nexthop objects."""
    tos = special if special[0] == "tos" else []
    path = special if special[0] == "nhid" else [*([] if tos else special), "via", "10.0.2.2", "dev", "eth1"]
    box.b.run("ip", "address", "add", "203.0.113.1/32", "dev", "lo")
    box.ip("route", "add", "203.0.113.0/24", "via", "10.0.2.2")
    try:
        count = Counted(box.router, "eth0")
        assert wait_for(lambda: pings(box.a, "203.0.113.1") and count["accelerated"], 20)
        if not tos:
            box.ip("route", "del", "203.0.113.0/24")
        if special[0] == "nhid":
            box.ip("nexthop", "add", "id", "7", *ENCAP, "via", "10.0.2.2", "dev", "eth1")
        box.ip("route", "add", "203.0.113.0/24", *tos, *path)

        def kernel_s():
            count = Counted(box.router, "eth0")
            return pings(box.a, "203.0.113.1") and count["accelerated"] == 0

        assert wait_for(kernel_s, 20)
        box.ip("route", "del", "203.0.113.0/24", *tos)
        if tos:
            count = Counted(box.router, "eth0")
            assert wait_for(lambda: pings(box.a, "203.0.113.1") and count["accelerated"], 20)
    finally:
        box.ip("route", "flush", "203.0.113.0/24", check=False)
        box.ip("nexthop", "flush", check=False)
        box.b.run("ip", "address", "del", "203.0.113.1/32", "dev", "lo")


def test_an_interface_goes_down_and_up(lab, mode):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    assert pinged(box, "a", "10.0.2.2")
    for space, name in ((box.space, "eth1"), (box.b, "eth0")):
        space.run("ip", "link", "set", name, "down")
        assert wait_for(lambda: not pings(box.a, "10.0.2.2"), 20)
        assert pings(box.a, "10.0.1.1")
        space.run("ip", "link", "set", name, "up")
        # The host has lost it, as the router its routes by this interface.
        box.b.run("ip", "route", "replace", "default", "via", "10.0.2.1")
        count = Counted(router, "eth0")
        assert wait_for(lambda: pings(box.a, "10.0.2.2") and count["accelerated"], 30), count.all()
    router.stop()


@pytest.mark.parametrize("version", [4, 6])
def test_a_packet_that_is_too_big_is_answered_once_by_the_kernel(lab, mode, version):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    box.ip("link", "set", "eth1", "mtu", "1300")
    assert wait_for(lambda: status(router)["eth0"]["longest"] == 1300, 20)
    length = 1350
    if version == 4:
        packet = IP(src="10.0.1.2", dst="10.0.2.2", flags="DF") / UDP(sport=9, dport=9) / (MARK + bytes(length))
    else:
        packet = IPv6(src="fd00:1::2", dst="fd00:2::2") / UDP(sport=9, dport=9) / (MARK + bytes(length))
    with Talk(box, MARK) as talk:
        count = Counted(router, "eth0")
        talk.say(packet)
        (answer,) = talk.heard(talk.a)
        kind, code, mtu = ((3, 4, answer[ICMP].nexthopmtu) if version == 4 else (2, 0, answer.payload.mtu))
        assert (answer.payload.type, answer.payload.code, mtu) == (kind, code, 1300)
        assert answer.src == ("10.0.1.1" if version == 4 else "fd00:1::1")
        assert count["too-long"] == 1
    # As long as it may be, and accelerated.
    count = Counted(router, "eth0")
    assert pings(box.a, "10.0.2.2", size=1300 - 28) and count["accelerated"] == 1
    box.ip("link", "set", "eth1", "mtu", "1500")
    assert wait_for(lambda: status(router)["eth0"]["longest"] == 1500, 20)
    count = Counted(router, "eth0")
    assert wait_for(lambda: pings(box.a, "10.0.2.2", size=1472) and count["accelerated"], 20)
    router.stop()


def test_a_mac_changes(lab, mode):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    box.ip("link", "set", "eth0", "address", "02:00:00:00:01:77")
    box.a.run("ip", "neighbour", "flush", "dev", "eth0")
    # The port is opened again, and counts from zero.
    assert wait_for(lambda: pings(box.a, "10.0.2.2") and packets(router, "eth0", "accelerated"), 30), router.log()
    router.stop()


@pytest.mark.parametrize("family, sysctl", [("ip4", "net.ipv4.ip_forward"), ("ip6", "net.ipv6.conf.all.forwarding"),
                                           ("ip4", "net.ipv4.conf.eth0.forwarding")])
def test_what_the_kernel_does_not_forward_is_not_forwarded(lab, mode, family, sysctl):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    address, other = ("10.0.2.2", "fd00:2::2") if family == "ip4" else ("fd00:2::2", "10.0.2.2")
    assert pinged(box, "a", address)
    box.space.sysctl(sysctl, 0)
    assert wait_for(lambda: not status(router)["eth0"][family]["accelerated"], 20)
    assert "forwarding is 0" in status(router)["eth0"][family]["reason"]
    assert not pings(box.a, address)
    assert pings(box.a, other)
    # The kernel forgets the hosts' IPv6 default routes for nothing of that.
    box.space.sysctl(sysctl, 1)
    takes_packets(router)
    count = Counted(router, "eth0")
    assert wait_for(lambda: pings(box.a, address) and count["accelerated"], 20)
    router.stop()


def test_reverse_paths_are_checked_as_the_kernel_does(lab, mode):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    from_nowhere = IP(src="203.0.113.5", dst=B4) / UDP(sport=9, dport=9) / MARK
    from_route = IP(src="198.51.2.77", dst=B4) / UDP(sport=9, dport=9) / MARK
    with Talk(box, MARK) as talk:
        def passes(packet):
            talk.b.drain()
            talk.say(packet)
            return bool(talk.b.expect(1, lambda frame: MARK in frame, timeout=1))

        for packet in (from_nowhere, from_route):
            assert passes(packet)
        box.space.sysctl("net.ipv4.conf.all.rp_filter", 2)
        # There is no other sign of it.
        assert wait_for(lambda: not passes(from_nowhere), 20)
        assert passes(from_route) and status(router)["eth0"]["ip4"]["accelerated"]
        assert packets(router, "eth0", "source") >= 1
        box.space.sysctl("net.ipv4.conf.eth0.rp_filter", 1)
        box.space.sysctl("net.ipv4.conf.all.rp_filter", 0)
        assert wait_for(lambda: not status(router)["eth0"]["ip4"]["accelerated"], 20)
        assert "rp_filter" in status(router)["eth0"]["ip4"]["reason"]
        assert not passes(from_nowhere) and not passes(from_route)
        assert status(router)["eth1"]["ip4"]["accelerated"]
    router.stop()


def test_an_interface_vanishes_and_returns(lab, mode):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    box.ip("link", "del", "eth1")
    assert wait_for(lambda: "eth1" not in status(router), 20)
    assert not pings(box.a, "10.0.2.2") and pings(box.a, "10.0.3.2")
    veth(box.space, "eth1", box.b, "eth0")
    if mode == IN_KERNEL:
        receives_frames(box.b)
    box.ip("address", "add", "10.0.2.1/24", "dev", "eth1")
    box.b.run("ip", "address", "add", "10.0.2.2/24", "dev", "eth0")
    box.b.run("ip", "route", "add", "default", "via", "10.0.2.1")
    count = Counted(router, "eth0")
    assert wait_for(lambda: pings(box.a, "10.0.2.2") and count["accelerated"], 60), router.log()
    router.stop()


def test_the_kernel_s_stack_runs_the_program_where_a_driver_does_not(lab, mode):
    """A MACVLAN device has no driver for XDP."""
    box = Box(lab, mode)
    inner = lab.namespace("inner")
    for number, parent in ((1, "eth0"), (2, "eth1")):
        box.ip("link", "add", "link", parent, "name", f"mv{number}", "netns", inner.name, "type", "macvlan", "mode", "bridge")
        inner.run("ip", "link", "set", f"mv{number}", "up")
        inner.run("ip", "address", "add", f"10.0.{number}.9/24", "dev", f"mv{number}")
        inner.run("ip", "address", "add", f"fd00:{number}::9/64", "dev", f"mv{number}", "nodad")
    inner.sysctl("net.ipv4.ip_forward", 1)
    inner.sysctl("net.ipv6.conf.all.forwarding", 1)
    for host, number in ((box.a, 1), (box.b, 2)):
        host.run("ip", "route", "replace", "default", "via", f"10.0.{number}.9")
        host.run("ip", "-6", "route", "replace", "default", "via", f"fd00:{number}::9")
    options = ["--in-kernel"] if mode == IN_KERNEL else []
    router = lab.router(inner, "", command=["accelerate", *options, "mv1", "mv2"])
    takes_packets(router)
    assert {of["mode"] for of in status(router).values()} == {"generic"}
    assert "the kernel's stack runs the XDP program" in router.log()
    for address in ("10.0.2.2", "fd00:2::2"):
        # The first packets are returned, which the program sees once more.
        assert pings(box.a, address, timeout=5)
        count = Counted(router, "mv1")
        assert wait_for(lambda: pings(box.a, address) and count["accelerated"], 20), count.all()
    assert packets(router, "mv1", "returned") >= 1
    transfer(box.a, box.b, "10.0.2.2", os.urandom(1 << 16) * 16)
    router.stop()


def test_the_gain_is_told_beforehand(lab):
    box = Box(lab)
    box.settle()
    stream = Stream(box.a, FAR, rate=500)
    stray = Stream(box.a, ["10.0.1.1"], rate=100, port=9)

    def gain(*interfaces):
        done = box.space.run(binary(), "doctor", "accelerate", *interfaces, "--sample", 1, "--json", check=False)
        report = json.loads(done.stdout)
        assert report["verdict"] == "accelerated", report["verdict"]
        routes, traffic, rate = report["gain"]
        assert rate.startswith("rate: "), rate
        return routes, traffic

    routes, traffic = gain("eth0", "eth1")
    # Connected networks and those behind the hosts, of three interfaces.
    assert "4 of 6 IPv4 prefixes and 4 of 6 IPv6 prefixes" in routes, routes
    taken, own = (re.search(pattern, traffic) for pattern in (r" (\d+) % would have been taken", r"; (\d+) % are for the machine"))
    assert 60 <= int(taken[1]) <= 95 and 5 <= int(own[1]) <= 35, traffic
    assert "1.25 to 1.9" in box.space.run(binary(), "doctor", "accelerate", "eth0", "eth1", check=False).stdout
    # Over the other interface nothing would be.
    routes, traffic = gain("eth0", "eth2")
    assert re.search(r" 0 % would have been taken", traffic) and "without a route" in traffic, traffic
    stream.stop(), stray.stop()

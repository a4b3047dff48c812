"""Large frames through host interfaces: the kernel's 64 KiB on one side, frames of the MTU on the wire.

Every transfer is compared byte for byte at its end, and what left by the port is captured at the far
host: no frame is longer than the MTU, and every checksum is right.
"""

import re
import socket
import struct
import threading

import pytest

from lib.apply import apply
from lib.lab import HOST_A_MAC, LEFT_MAC, Lab
from lib.netns import veth, wait_for
from lib.packets import checksum, ethernet, ipv4, ipv6, pattern, pseudo_header
from lib.raw import RawPort

IPV4, IPV6 = ("10.0.1.1", "10.0.1.2"), ("fd00:1::1", "fd00:1::2")
ETHERNET = 14
RST, PSH, ACK, CWR = 4, 8, 16, 128
UDP_SEGMENT, SO_NO_CHECK = 103, 11
BULK = 6_000_000


class Machine:
    """A router with one port to a Linux host, and its host interface in a namespace of its own."""

    def __init__(self, lab, mtu=1500, host="", driver="af_xdp", before=None):
        self.space = lab.namespace("space")
        self.space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.inside, self.host = lab.namespace("router"), lab.namespace("host")
        veth(self.inside, "tp-left", self.host, "eth0", LEFT_MAC, HOST_A_MAC, mtu)
        self.host.run("ip", "address", "add", "10.0.1.2/24", "dev", "eth0")
        self.host.run("ip", "address", "add", "fd00:1::2/64", "dev", "eth0", "nodad")
        if before:
            before(self)
        self.driver = driver
        self.router = lab.router(self.inside, self.config(host))
        self.space.run("ip", "address", "replace", "10.0.1.1/24", "dev", "left")
        self.space.run("ip", "address", "replace", "fd00:1::1/64", "dev", "left", "nodad")

    def config(self, host=""):
        """The configuration, with further keys of the host interface."""
        return f"""
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "tp-left", driver = "{self.driver}",
  address = {{ "10.0.1.1/24", "fd00:1::1/64" }}, host = {{ netns = "{self.space.name}"{host} }} }}
"""

    def up(self, addresses, data=None):
        """Sends from the host to the router."""
        transfer(self.host, self.space, addresses[0], data or bulk())

    def down(self, addresses, data=None):
        """Sends from the router to the host."""
        transfer(self.space, self.host, addresses[1], data or bulk())


@pytest.fixture(scope="module", params=["af_xdp", "af_packet"])
def machine(request):
    """One machine for all tests that leave it unchanged."""
    lab = Lab()
    try:
        yield Machine(lab, driver=request.param)
    finally:
        lab.close()


def bulk(length=BULK):
    """Bytes in which every segment differs from every other."""
    return b"".join(struct.pack("!Q", number) for number in range(length // 8))


def transfer(sender, receiver, address, data):
    """A TCP connection from one namespace to another carries exactly these bytes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with receiver.entered():
        listener = socket.create_server((address, 5001), family=family)
    arrived = []

    def serve():
        connection, _ = listener.accept()
        connection.settimeout(30)
        with connection:
            while piece := connection.recv(1 << 20):
                arrived.append(piece)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    with sender.entered():
        client = socket.socket(family, socket.SOCK_STREAM)
    with client, listener:
        client.settimeout(30)
        client.connect((address, 5001))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        server.join(40)
    assert not server.is_alive(), f"{sum(map(len, arrived))} of {len(data)} bytes after 40 s"
    assert b"".join(arrived) == data


class Packet:
    """A captured IP packet with a transport header."""

    def __init__(self, frame):
        self.frame, self.v6 = frame, frame[12:14] == b"\x86\xdd"
        ip = frame[ETHERNET:]
        if self.v6:
            length, self.protocol = 40 + struct.unpack_from("!H", ip, 4)[0], ip[6]
            self.transport, ends = ip[40:length], (ip[8:24], ip[24:40])
        else:
            length, self.ident = struct.unpack_from("!HH", ip, 2)
            self.protocol, self.header = ip[9], ip[:20]
            self.transport, ends = ip[20:length], (ip[12:16], ip[16:20])
        convert = socket.AF_INET6 if self.v6 else socket.AF_INET
        self.source, self.destination = (socket.inet_ntop(convert, end) for end in ends)

    def has_right_checksums(self):
        pseudo = pseudo_header(self.source, self.destination, self.protocol, len(self.transport))
        return checksum(pseudo + self.transport) == 0 and (self.v6 or checksum(self.header) == 0)

    def sequence(self):
        return struct.unpack_from("!I", self.transport, 4)[0]

    def flags(self):
        return self.transport[13]

    def data(self):
        return self.transport[self.transport[12] >> 4 << 2 :]


def packets(frames, protocol=6):
    """The captured packets of a protocol."""
    read = [Packet(frame) for frame in frames if frame[12:14] in (b"\x08\x00", b"\x86\xdd")]
    return [packet for packet in read if packet.protocol == protocol]


def capture(namespace, interface):
    """Captures the frames that arrive on an interface from now on."""
    return RawPort(namespace, interface)


def sizes(namespace, interface, action):
    """The length of the longest frame that arrived on an interface during an action."""
    wire = capture(namespace, interface)
    action()
    longest = max(map(len, wire.receive()), default=0)
    wire.close()
    return longest


# --- Data, both ways


@pytest.mark.parametrize("addresses", [IPV4, IPV6], ids=["ipv4", "ipv6"])
def test_data_from_the_kernel_leave_in_frames_of_the_mtu_with_right_checksums(machine, addresses):
    wire = capture(machine.host, "eth0")
    before = machine.router.show("ports")[0]["host"]["down_packets"]
    machine.down(addresses)
    sent = packets(wire.receive())
    wire.close()
    full = [packet for packet in sent if packet.data()]
    assert max(len(packet.frame) for packet in sent) == 1514
    assert all(packet.has_right_checksums() for packet in sent)
    # Each byte at least once, and PSH or FIN not on every segment, as in a frame of 64 KiB.
    assert sum(len(packet.data()) for packet in full) >= BULK
    assert len([packet for packet in full if packet.flags() & PSH]) < len(full) / 4
    if addresses is IPV4:
        idents = [(b.ident - a.ident) % 0x10000 for a, b in zip(full, full[1:])]
        assert idents.count(1) > len(idents) * 0.9
    # Counts are of frames on the wire.
    counted = machine.router.show("ports")[0]["host"]["down_packets"] - before
    assert len(sent) <= counted <= len(sent) + 20


def sent_again(space):
    """Segments retransmitted by the namespace's TCP: one that is not scheduled for a while answers late."""
    names, values = [line.split() for line in space.run("cat", "/proc/net/snmp").stdout.splitlines() if line.startswith("Tcp:")]
    return int(dict(zip(names, values))["RetransSegs"])


@pytest.mark.alone
@pytest.mark.parametrize("addresses", [IPV4, IPV6], ids=["ipv4", "ipv6"])
def test_data_for_the_kernel_arrive_in_large_frames(machine, addresses):
    tap, again = capture(machine.space, "left"), sent_again(machine.host)
    machine.up(addresses)
    got = [packet for packet in packets(tap.receive()) if packet.data()]
    tap.close()
    assert max(len(packet.frame) for packet in got) > 5000
    stream, first = bytearray(BULK), got[0].sequence()
    missing = bytearray(b"?" * BULK)
    for packet in got:
        start = (packet.sequence() - first) % 2**32
        end = start + len(packet.data())
        known = bytes(new for new, old in zip(packet.data(), missing[start:end]) if old == 0)
        assert known == bytes(new for new, old in zip(stream[start:end], missing[start:end]) if old == 0)
        stream[start:end], missing[start:end] = packet.data(), bytes(end - start)
    assert not any(missing) and len(stream) == BULK
    twice = sum(len(packet.data()) for packet in got) - BULK
    assert twice == 0 or sent_again(machine.host) > again, "no byte twice that was sent once"


def test_both_ways_at_the_same_time(machine):
    ways = [threading.Thread(target=machine.up, args=(IPV4,)), threading.Thread(target=machine.down, args=(IPV6,))]
    failed = []
    threading.excepthook, before = lambda said: failed.append(said), threading.excepthook
    try:
        for way in ways:
            way.start()
        for way in ways:
            way.join(90)
    finally:
        threading.excepthook = before
    assert not failed and not any(way.is_alive() for way in ways)


def test_the_interface_says_what_it_takes(machine):
    said = machine.space.run("ethtool", "-k", "left").stdout
    for feature in ("tx-checksumming", "tcp-segmentation-offload", "tx-udp-segmentation"):
        assert f"{feature}: on" in said, said


def test_ecn_is_negotiated_and_used(machine):
    for namespace in (machine.space, machine.host):
        namespace.sysctl("net.ipv4.tcp_ecn", 1)
    try:
        machine.down(IPV4)
        machine.up(IPV6)
    finally:
        for namespace in (machine.space, machine.host):
            namespace.sysctl("net.ipv4.tcp_ecn", 2)


def test_a_host_without_segmentation_of_its_own(machine):
    machine.host.run("ethtool", "-K", "eth0", "tso", "off", "gso", "off")
    machine.up(IPV4)
    machine.down(IPV4)


def test_nothing_was_lost(machine):
    """At the end the sum closes, and the kernel accepted everything."""
    assert machine.router.counters()["dropped"].get("host-malformed", 0) == 0
    assert machine.router.show("ports")[0]["host"]["up_refused"] == 0


# --- UDP


def test_datagrams_that_the_kernel_sends_whole_leave_one_by_one(machine):
    for own, far, family in ((*IPV4, socket.AF_INET), (*IPV6, socket.AF_INET6)):
        with machine.host.entered():
            receiver = socket.socket(family, socket.SOCK_DGRAM)
        receiver.bind((far, 5002))
        receiver.settimeout(5)
        with machine.space.entered():
            sender = socket.socket(family, socket.SOCK_DGRAM)
        sender.bind((own, 0))
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 700)
        wire = capture(machine.host, "eth0")
        data = bulk(10_000)
        sender.sendto(data, (far, 5002))
        got = [receiver.recv(65536) for _ in range(15)]
        assert got == [data[at : at + 700] for at in range(0, len(data), 700)]
        sent = packets(wire.receive(), 17)
        assert len(sent) == 15 and all(packet.has_right_checksums() for packet in sent)
        for one in (receiver, sender, wire):
            one.close()


def test_a_datagram_without_checksum_stays_without(machine):
    with machine.host.entered():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("10.0.1.2", 5003))
    receiver.settimeout(5)
    with machine.space.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    wire = capture(machine.host, "eth0")
    sender.sendto(b"no checksum", ("10.0.1.2", 5003))
    assert receiver.recv(100) == b"no checksum"
    sent = packets(wire.receive(), 17)
    assert [packet.transport[6:8] for packet in sent] == [b"\0\0"]
    for one in (receiver, sender, wire):
        one.close()


# --- Other interfaces


def test_the_mtu_of_the_port_is_that_of_the_segments(lab):
    machine = Machine(lab, mtu=1280)
    assert sizes(machine.host, "eth0", lambda: machine.down(IPV4)) == 1294
    assert sizes(machine.space, "left", lambda: machine.up(IPV6)) > 5000
    machine.router.stop()


def test_without_segmentation_frames_go_one_by_one_and_it_changes_while_running(lab):
    machine = Machine(lab, host=", segmentation = false")
    assert "tcp-segmentation-offload: off" in machine.space.run("ethtool", "-k", "left").stdout
    assert sizes(machine.space, "left", lambda: machine.up(IPV4)) <= 1514
    assert sizes(machine.host, "eth0", lambda: machine.down(IPV4)) == 1514
    apply(machine.router, machine.config())
    assert wait_for(lambda: "tcp-segmentation-offload: on" in machine.space.run("ethtool", "-k", "left").stdout)
    assert sizes(machine.space, "left", lambda: machine.up(IPV4)) > 5000
    assert sizes(machine.host, "eth0", lambda: machine.down(IPV4)) == 1514
    apply(machine.router, machine.config(", segmentation = false"))
    assert sizes(machine.space, "left", lambda: machine.up(IPV4)) <= 1514
    machine.router.stop()


def test_segmentation_of_a_vlan_changes_while_running(lab):
    machine = Machine(lab)

    def vlan(more=""):
        host = f'host = {{ netns = "{machine.space.name}"{more} }}'
        return machine.config() + f'turnpike.vlan "left.10" {{ parent = "left", id = 10, {host} }}\n'

    def offload():
        return re.search("tcp-segmentation-offload: (on|off)", machine.space.run("ethtool", "-k", "left.10").stdout)[1]

    for more, expected in [(", segmentation = false", "off"), ("", "on"), (", segmentation = false", "off")]:
        apply(machine.router, vlan(more))
        assert wait_for(lambda: offload() == expected), more
        (shown,) = [one for one in machine.router.show("interfaces") if one["name"] == "left.10"]
        assert shown["host"]["state"] == "up" and shown["link"] == "up", shown
    machine.router.stop()


@pytest.mark.parametrize("headers", [[], ["vnet_hdr"]], ids=["older", "with-headers"])
def test_an_interface_that_is_there_is_taken_over(lab, headers):
    def before(machine):
        machine.space.run("ip", "tuntap", "add", "dev", "left", "mode", "tap", *headers)

    machine = Machine(lab, before=before)
    assert sizes(machine.space, "left", lambda: machine.up(IPV4)) > 5000
    assert sizes(machine.host, "eth0", lambda: machine.down(IPV4)) == 1514
    machine.router.stop()


@pytest.mark.parametrize("used", [True, False], ids=["by the device", "by the router"])
def test_a_device_that_segments_does_it_for_the_kernel(lab, used):
    """DPDK's driver for TAP devices segments TCP over IPv4; NICs are tested in the VM."""
    space, inside = lab.namespace("space"), lab.namespace("router")
    word = str(used).lower()
    router = lab.router(inside, f"""
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "net_tap0,iface=tp-left,mac={LEFT_MAC}", address = "10.0.1.1/24",
  offloads = {{ tx_checksum = {word}, segmentation = {word} }}, host = {{ netns = "{space.name}" }} }}
""")
    on = {offload["offload"] for offload in router.show("ports")[0]["offloads"] if offload["on"]}
    assert ({"tx_checksum", "segmentation"} <= on) == used, on
    inside.run("ip", "link", "set", "tp-left", "address", HOST_A_MAC, "up")
    inside.run("ip", "address", "add", "10.0.1.2/24", "dev", "tp-left")
    # The driver counts the Ethernet header towards the MTU.
    space.run("ip", "link", "set", "left", "mtu", 1486)
    wire = capture(inside, "tp-left")
    transfer(space, inside, "10.0.1.2", bulk())
    sent = [packet for packet in packets(wire.receive()) if packet.source == "10.0.1.1"]
    wire.close()
    assert max(len(packet.frame) for packet in sent) == 1500
    assert all(packet.has_right_checksums() for packet in sent)
    down = router.show("ports")[0]["host"]["down_packets"]
    assert down < BULK / 3000 if used else down >= BULK / 1460, down
    router.stop()


# --- What is coalesced, byte for byte


class Segments:
    """Frames of a TCP connection that does not exist, from a raw wire."""

    def __init__(self, v6=False):
        self.own, self.far = IPV6 if v6 else IPV4
        self.v6 = v6

    def frame(self, number, flags=ACK, data=None, damage=False):
        data = pattern(1000)[number % 7 :] + pattern(number % 7) if data is None else data
        head = struct.pack("!HHIIBBHHH", 40000, 5009, number * 1000, 1, 0x50, flags, 100, 0, 0)
        sum_ = checksum(pseudo_header(self.far, self.own, 6, len(head) + len(data)) + head + data)
        segment = head[:16] + struct.pack("!H", sum_ ^ damage) + head[18:] + data
        packet = (
            ipv6(self.far, self.own, segment, next_header=6)
            if self.v6
            else ipv4(self.far, self.own, segment, protocol=6, ident=number, flags=2)
        )
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD if self.v6 else 0x0800, packet)


@pytest.fixture(scope="module")
def raw():
    """A router between a raw wire and a kernel without listeners, which does not answer."""
    lab = Lab()
    try:
        machine = Machine(lab)
        machine.space.run("ip", "route", "add", "blackhole", "10.0.1.2/32")
        machine.space.run("ip", "-6", "route", "add", "blackhole", "fd00:1::2/128")
        machine.wire, machine.tap = capture(machine.host, "eth0"), capture(machine.space, "left")
        yield machine
    finally:
        lab.close()


def arrived(machine, frames):
    """Result of these frames at the kernel: packets with data, in order."""
    machine.tap.receive(0.05)
    machine.wire.send(*frames)
    ours = lambda frame: [packet for packet in packets([frame]) if packet.source in (IPV4[1], IPV6[1])]  # noqa: E731
    # The first may take long to arrive, the following may not.
    came = machine.tap.expect(1, ours, 5) + machine.tap.receive(0.3)
    return [packet for frame in came for packet in ours(frame)]


@pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
def test_segments_become_one_frame_with_all_their_bytes(raw, v6):
    segments = Segments(v6)
    frames = [segments.frame(number, ACK | (PSH if number == 19 else 0)) for number in range(20)]
    alone = [Packet(frame) for frame in frames]
    grouped = []
    for _ in range(20):
        got = arrived(raw, frames)
        assert b"".join(packet.data() for packet in got) == b"".join(packet.data() for packet in alone)
        assert [packet.sequence() for packet in got] == sorted(packet.sequence() for packet in got)
        assert [packet.flags() & PSH for packet in got][:-1] == [0] * (len(got) - 1)
        assert got[-1].flags() == ACK | PSH
        for packet in got:
            first = alone[packet.sequence() // 1000]
            assert packet.frame[:ETHERNET] == first.frame[:ETHERNET]
            assert packet.transport[4:13] == first.transport[4:13]
        grouped.append(len(got))
    assert min(grouped) < 10, grouped


def test_what_must_stay_alone_stays_alone(raw):
    segments = Segments()
    for change in (
        {"flags": ACK | RST},
        {"flags": ACK | CWR},
        {"flags": ACK, "damage": True},
        {"flags": ACK, "data": b""},
    ):
        frames = [segments.frame(0), segments.frame(1), segments.frame(2, **change), segments.frame(3)]
        got = arrived(raw, frames)
        # Unchanged, regardless of the packets before and after it.
        assert frames[2] in [packet.frame[: len(frames[2])] for packet in got], change
        assert [packet.sequence() for packet in got] == sorted(packet.sequence() for packet in got)
        assert sum(len(packet.data()) for packet in got) == sum(len(Packet(frame).data()) for frame in frames)


def test_frames_to_other_hosts_of_the_kernel_keep_their_source(raw):
    """Two simultaneous connections do not mix."""
    one, other = Segments(), Segments(v6=True)
    frames = [frame for number in range(10) for frame in (one.frame(number), other.frame(number))]
    got = arrived(raw, frames)
    for segments in (one, other):
        mine = b"".join(packet.data() for packet in got if packet.v6 == segments.v6)
        assert mine == b"".join(Packet(segments.frame(number)).data() for number in range(10))

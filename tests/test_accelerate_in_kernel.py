"""`turnpike accelerate --in-kernel`: XDP programs forward by the router's own tables. The rest is in `test_accelerate.py`, which
runs in both modes."""

import os
import random
import time

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from lib.accelerate import IN_KERNEL, SOCKETS, Box, Counted, packets, receives_frames, status, takes_packets
from lib.kernel import pings, reaches
from lib.netns import wait_for
from lib.raw import RawPort
from lib.traffic import Sink, Stream, lost
from test_privileges import assert_as_written

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = pytest.mark.xdist_group("accelerate")

B4, B6 = "198.51.2.1", "2001:db8:2::1"
ROUTER_MAC, A_MAC = "02:00:00:00:01:01", "02:00:00:00:01:02"
MARK = b"the mark of these packets"


@pytest.fixture(scope="module")
def box(module_lab):
    box = Box(module_lab, IN_KERNEL)
    box.settle()
    box.router = box.accelerate("eth0", "eth1")
    return box


def raw_mac(text):
    return bytes.fromhex(text.replace(":", ""))


def is_marked(frame):
    return MARK in frame and frame[6:12] != raw_mac(A_MAC)


class Wire:
    """Frames of host a, and the marked ones that arrive at b."""

    def __init__(self, box):
        self.a, self.b = RawPort(box.a, "eth0"), RawPort(box.b, "eth0")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.a.close(), self.b.close()

    def say(self, *packets):
        self.a.send(*[Ether(src=A_MAC, dst=ROUTER_MAC) / packet for packet in packets])

    def heard(self, count):
        return self.b.expect(count, is_marked)


def packet(address, number=0, size=0):
    """A packet of flow `number` to an address."""
    header = IPv6(src="fd00:1::2", dst=address, hlim=9) if ":" in address else IP(src="10.0.1.2", dst=address, ttl=9, id=number)
    return header / UDP(sport=1000 + number, dport=9) / (MARK + bytes(size))


def xdp_sockets(box):
    """The AF_XDP sockets of the router's namespace."""
    rows = box.space.run("cat", "/proc/net/protocols").stdout.splitlines()
    (row,) = [row.split() for row in rows if row.startswith("XDP ")]
    return int(row[2])


@pytest.mark.parametrize("mode, has_sockets", [(SOCKETS, True), (IN_KERNEL, False)])
def test_there_are_no_sockets_and_forwarders_do_nothing(lab, mode, has_sockets):
    box = Box(lab, mode)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    assert (xdp_sockets(box) > 0) == has_sockets
    before = received(router)
    stream = Stream(box.a, [B4, B6], rate=500)
    assert wait_for(lambda: packets(router, "eth0", "accelerated") > 500, 30), status(router)
    stream.stop()
    assert (received(router) > before) == has_sockets
    assert router.show("acceleration")["in_kernel"] == (not has_sockets)
    seen = assert_as_written(router)
    assert "lease" in seen and ("bpf-grace" in seen) == (not has_sockets), seen
    assert ("XDP programs themselves" in router.command("accelerate", "--status").stdout) == (not has_sockets)
    router.stop()


def received(router):
    """Packets that the ports have received."""
    return sum(port["rx_packets"] for port in router.show("ports"))


@pytest.mark.parametrize("address", [B4, B6])
def test_a_packet_is_the_kernel_s_but_for_the_interface_it_came_by(box, address):
    """Byte for byte, with all sizes around those of words."""
    assert reaches(box.a, address)
    with Wire(box) as wire:
        for size in (0, 1, 2, 3, 17, 900):
            count = Counted(box.router, "eth0")
            wire.say(packet(address, size, size))
            (frame,) = wire.heard(1)
            assert count["accelerated"] == 1, count.all()
            sent = packet(address, size, size)
            if ":" in address:
                sent.hlim -= 1
            else:
                sent.ttl -= 1
            # With checksums of scapy's.
            assert frame == bytes(Ether(dst="02:00:00:00:02:02", src="02:00:00:00:02:01") / sent), frame.hex()


def test_every_ttl_has_its_checksum(box):
    assert reaches(box.a, B4)
    with Wire(box) as wire:
        # The sums of these headers go through all carries of the upper byte.
        wire.say(*[IP(src="10.0.1.2", dst=B4, ttl=ttl, id=number) / UDP(sport=9, dport=9) / MARK
                   for ttl in (2, 3, 64, 128, 255) for number in range(0, 0x10000, 0x137)])
        frames = wire.heard(5 * len(range(0, 0x10000, 0x137)))
        for frame in frames:
            got = IP(frame[14:])
            told, got.chksum = got.chksum, None
            assert IP(bytes(got)).chksum == told


def test_a_packet_with_a_wrong_checksum_is_not_forwarded(box):
    assert reaches(box.a, B4)
    wrong = packet(B4)
    wrong.chksum = 0x1234
    count = Counted(box.router, "eth0")
    with Wire(box) as wire:
        wire.say(wrong, packet(B4, 7))
        (frame,) = wire.heard(1)
        assert IP(frame[14:]).id == 7
    assert count["malformed"] == 1 and count["accelerated"] == 1


def test_checksums_that_hosts_leave_to_their_device_stay_with_the_kernel(box):
    """A frame between programs has no word of it, and would arrive with a wrong one."""
    box.a.run("ethtool", "-K", "eth0", "tx", "on")
    try:
        count = Counted(box.router, "eth0")
        sink = Sink(box.b)
        stream = Stream(box.a, [B4, B6], rate=500)
        assert sink.wait(500)
        sent = stream.stop()
        assert not lost(sent, sink)
        sink.close()
        assert count["checksum"] >= 500 and count["accelerated"] < 20, count.all()
    finally:
        box.a.run("ethtool", "-K", "eth0", "tx", "off")


# --- ways out -------------------------------------------------------------------------------------


def test_a_host_that_takes_no_frames_of_programs_is_left_to_the_kernel(lab):
    box = Box(lab, IN_KERNEL)
    box.settle()
    box.b.run("ethtool", "-K", "eth0", "gro", "off")
    router = box.accelerate("eth0", "eth1")
    assert reaches(box.a, B4)
    count = Counted(router, "eth0")
    assert pings(box.a, B4, count=3)
    assert count["accelerated"] == 0 and count["no-way"] >= 3, count.all()
    (why,) = [of["closed"] for of in router.show("acceleration")["interfaces"] if of["name"] == "eth1"]
    assert "gro on" in why and "gro on" in router.log()
    assert "no packet leaves by it" in router.command("accelerate", "--status").stdout
    receives_frames(box.b)
    assert wait_for(lambda: status(router)["eth1"]["closed"] is None, 20)
    count = Counted(router, "eth0")
    assert pings(box.a, B4) and count["accelerated"] == 1
    router.stop()


def test_packets_that_nobody_sends_are_counted(lab):
    box = Box(lab, IN_KERNEL)
    box.settle()
    router = box.accelerate("eth0", "eth1")
    sink = Sink(box.b)
    stream = Stream(box.a, [B4, B6], rate=2000)
    assert wait_for(lambda: packets(router, "eth0", "accelerated") > 1000, 30)
    # The other end takes no frames of programs any more, and the router is told within a moment.
    box.b.run("ethtool", "-K", "eth0", "gro", "off")
    assert wait_for(lambda: packets(router, "eth0", "no-way") > 1000, 30), status(router)
    sent = stream.stop()
    missing = len(lost(sent, sink))
    sink.close()
    assert missing == packets(router, "eth0", "unsent"), (missing, status(router))
    router.stop()


# --- routes and neighbours ---------------------------------------------------------------------------


@pytest.fixture
def gateways(box):
    """MACs of made-up gateways on b's network, by address, all of them permanent neighbours; frames to them arrive at b."""
    made = {}
    for number in range(1, 41):
        mac = f"02:00:00:00:99:{number:02x}"
        for address in (f"10.0.2.{100 + number}", f"fd00:2::{100 + number:x}"):
            box.ip("neighbour", "replace", address, "lladdr", mac, "dev", "eth1", "nud", "permanent")
            made[address] = mac
    yield made
    for address in made:
        box.ip("neighbour", "del", address, "dev", "eth1")


def batch(box, family, lines):
    box.space.run("ip", family, "-force", "-batch", "-", input="\n".join(lines) + "\n")


def arrivals(wire, addresses):
    """The MACs to which packets to these addresses leave, in their order."""
    got = {}
    for number, address in enumerate(addresses):
        wire.say(packet(address, number))
        if number % 64 == 63 or number == len(addresses) - 1:
            for frame in wire.heard(number % 64 + 1):
                got[int.from_bytes(frame[34 + (20 if frame[12] == 0x86 else 0):][:2], "big") - 1000] = frame[:6].hex(":")
    return [got[number] for number in range(len(addresses))]


@pytest.mark.parametrize("version", [4, 6])
def test_random_tables_lead_where_the_longest_prefix_says(box, gateways, version):
    """The oracle is a search of all prefixes. Prefixes of all lengths are nested, added, replaced and removed."""
    seed = int(os.environ.get("TABLES_SEED", 7))
    chance = random.Random(seed)
    family, width, base = ("-4", 32, 0x64400000) if version == 4 else ("-6", 128, 0x2A00 << 112)
    fixed = 10 if version == 4 else 16
    vias = [address for address in gateways if (":" in address) == (version == 6)]
    text = to_text4 if version == 4 else to_text6

    def prefix():
        length = chance.choice([fixed, *range(fixed, width + 1), *([24] * 6 if version == 4 else [48] * 6)])
        # Few bits differ, so that prefixes contain each other.
        value = base | chance.getrandbits(width - fixed) & chance.getrandbits(width - fixed) & chance.getrandbits(width - fixed)
        return value >> (width - length) << (width - length), length

    table, lines = {}, []
    with Wire(box) as wire:
        try:
            for _ in range(4):
                changes = []
                for _ in range(600):
                    known = list(table)
                    if known and chance.random() < 0.25:
                        gone = chance.choice(known)
                        del table[gone]
                        changes.append(f"route del {text(gone[0])}/{gone[1]}")
                    else:
                        of, via = prefix(), chance.choice(vias)
                        table[of] = via
                        changes.append(f"route replace {text(of[0])}/{of[1]} via {via}")
                batch(box, family, changes)
                lines += changes
                last = text(next(reversed(table))[0])
                expected_last = gateways[search(table, next(reversed(table))[0], width)]
                assert wait_for(lambda: arrivals(wire, [last]) == [expected_last], 20)  # noqa: B023
                addresses = []
                while len(addresses) < 400:
                    of, length = chance.choice(list(table))
                    inside = of | chance.getrandbits(width - length) if length < width else of
                    if search(table, inside, width):
                        addresses.append(inside)
                expected = [gateways[search(table, address, width)] for address in addresses]
                # The kernel's changes arrive in order, so the last one is not enough: of a prefix that was replaced twice.
                count = Counted(box.router, "eth0")
                got = arrivals(wire, [text(address) for address in addresses])
                # The kernel would be right as well.
                assert count["accelerated"] + count["stalled"] == len(addresses), count.all()
                wrong = [(text(a), g, e) for a, g, e in zip(addresses, got, expected) if g != e]
                assert not wrong, f"TABLES_SEED={seed}: {wrong[:5]}"
        finally:
            batch(box, family, [f"route del {text(of)}/{length}" for of, length in table])


def search(table, address, width):
    """The gateway of the longest prefix."""
    found = [(length, via) for (of, length), via in table.items() if address >> (width - length) == of >> (width - length)]
    return max(found)[1] if found else None


def to_text4(value):
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def to_text6(value):
    return ":".join(f"{value >> shift & 0xffff:x}" for shift in range(112, -16, -16))


@pytest.mark.parametrize("version", [4, 6])
def test_while_routes_change_each_packet_has_the_old_or_the_new_way(box, gateways, tmp_path, version):
    family, outer, inner, address = (
        ("-4", "100.64.0.0/10", "100.64.7.0/28", "100.64.7.1") if version == 4
        else ("-6", "2a00::/16", "2a00:7::/52", "2a00:7::1"))
    one, two, three = [of for of in gateways if (":" in of) == (version == 6)][:3]
    box.ip(family, "route", "replace", outer, "via", one)
    try:
        with Wire(box) as wire:
            assert wait_for(lambda: arrivals(wire, [address]) == [gateways[one]], 20)
            count = Counted(box.router, "eth0")
            changes = []
            for _ in range(300):
                changes += [f"route add {inner} via {two}", f"route replace {inner} via {three}", f"route del {inner}"]
            file = tmp_path / "changes"
            file.write_text("\n".join(changes) + "\n")
            feed = box.space.spawn("ip", family, "-force", "-batch", file)
            said = 0
            while feed.poll() is None or said < 500:
                wire.say(*[packet(address, said + number) for number in range(20)])
                said += 20
                time.sleep(0.002)
            heard = wire.heard(said)
            ways = {frame[:6].hex(":") for frame in heard}
            # The prefixes around have no other ways, and no packet has waited.
            assert len(heard) == said
            assert ways <= {gateways[of] for of in (one, two, three)}, ways
            # A process without a processor on a busy machine has no lease for moments.
            assert count["accelerated"] + count["stalled"] == said, count.all()
            assert wait_for(lambda: arrivals(wire, [address]) == [gateways[one]], 20)
    finally:
        box.ip(family, "route", "del", outer)


def test_a_neighbour_s_mac_is_followed_at_once_and_its_loss_too(box, gateways):
    via = "10.0.2.101"
    box.ip("route", "replace", "203.0.113.0/24", "via", via)
    try:
        with Wire(box) as wire:
            assert wait_for(lambda: arrivals(wire, ["203.0.113.1"]) == [gateways[via]], 20)
            box.ip("neighbour", "replace", via, "lladdr", "02:00:00:00:98:01", "dev", "eth1", "nud", "permanent")
            assert wait_for(lambda: arrivals(wire, ["203.0.113.1"]) == ["02:00:00:00:98:01"], 2, 0.01)
            box.ip("neighbour", "del", via, "dev", "eth1")

            def is_kernel_s():
                count = Counted(box.router, "eth0")
                wire.say(packet("203.0.113.1"))
                return wait_for(lambda: count["returned"] == 1, 1) and count["accelerated"] == 0

            assert wait_for(is_kernel_s, 2, 0.01)
            box.ip("neighbour", "replace", via, "lladdr", gateways[via], "dev", "eth1", "nud", "permanent")
            assert wait_for(lambda: arrivals(wire, ["203.0.113.1"]) == [gateways[via]], 2, 0.01)
    finally:
        box.ip("route", "del", "203.0.113.0/24")


def undisturbed(box, act):
    """The result of an act whose packets were all accelerated: on a busy machine the process has no lease for moments."""
    for _ in range(10):
        count = Counted(box.router, "eth0")
        result = act()
        if not count["stalled"]:
            return result
    raise AssertionError(count.all())


@pytest.mark.parametrize("version", [4, 6])
def test_flows_are_spread_over_paths_and_keep_theirs(box, gateways, version):
    family, prefix, address = ("-4", "203.0.113.0/24", "203.0.113.1") if version == 4 else ("-6", "2001:db8:99::/48", "2001:db8:99::1")
    vias = [of for of in gateways if (":" in of) == (version == 6)][:4]
    hops = [word for via in vias for word in ("nexthop", "via", via, "dev", "eth1")]
    box.ip(family, "route", "replace", prefix, *hops)
    try:
        with Wire(box) as wire:
            assert wait_for(lambda: arrivals(wire, [address])[0] in gateways.values(), 20)
            first, again = undisturbed(box, lambda: [arrivals(wire, [address] * 400) for _ in range(2)])
            assert first == again, "a flow keeps its path"
            shares = {gateways[via]: first.count(gateways[via]) for via in vias}
            assert sum(shares.values()) == 400 and min(shares.values()) > 50, shares
            # A lost path moves flows to the others.
            box.ip(family, "route", "replace", prefix, *hops[:-5])
            assert wait_for(lambda: gateways[vias[3]] not in arrivals(wire, [address] * 100), 20)
    finally:
        box.ip(family, "route", "del", prefix)


def test_the_mtu_is_that_of_the_way_out(lab):
    """Not that of the least of all interfaces."""
    box = Box(lab, IN_KERNEL)
    box.settle()
    router = box.accelerate("eth0", "eth1", "eth2")
    box.ip("link", "set", "eth1", "mtu", "1300")
    assert wait_for(lambda: status(router)["eth0"]["longest"] == 1300, 20)
    assert reaches(box.a, "10.0.3.2")
    count = Counted(router, "eth0")
    assert pings(box.a, "10.0.3.2", size=1472) and count["accelerated"] == 1, count.all()
    assert not pings(box.a, "10.0.2.2", size=1400) and count["too-long"] >= 1
    router.stop()


def test_forward_chains_are_refused_unless_bypassed(lab):
    from test_accelerate_rules import FORWARD, nft, refused

    box = Box(lab, IN_KERNEL)
    box.settle()
    nft(box, FORWARD)
    said = refused(box, "--in-kernel")
    assert "chain forward" in said and "--bypass nftables" in said and "leave in_kernel out" in said, said
    router = box.accelerate("eth0", "eth1", "--bypass", "nftables")
    assert reaches(box.a, B4)
    count = Counted(router, "eth0")
    assert pings(box.a, B4) and count["accelerated"] == 1
    # One that may not be bypassed appears, and goes.
    nft(box, "table inet nat { chain post { type nat hook postrouting priority 100; masquerade; }; }")
    assert wait_for(lambda: not status(router)["eth0"]["ip4"]["accelerated"], 20)
    nft(box, "delete table inet nat")
    takes_packets(router)
    router.stop()


def test_packets_to_prefixes_of_rules_stay_with_the_kernel(box):
    assert reaches(box.a, B4)
    box.ip("rule", "add", "to", "198.51.2.0/30", "lookup", "main", "priority", "99")
    try:
        def stays():
            count = Counted(box.router, "eth0")
            return pings(box.a, B4) and count["route"] == 1 and count["accelerated"] == 0

        assert wait_for(stays, 20)
        count = Counted(box.router, "eth0")
        assert pings(box.a, "10.0.2.2") and count["accelerated"] == 1, "all others do not"
    finally:
        box.ip("rule", "del", "priority", "99")
    count = Counted(box.router, "eth0")
    assert wait_for(lambda: pings(box.a, B4) and count["accelerated"], 20)

"""Floods against the slow path: unaffected traffic, and the reasons of refused packets.

A capture file played in an endless loop is the attacker: nothing on a test machine sends faster. What
is asserted are events and counts, never how long something took.
"""

import re
import signal
import stat
import struct
import subprocess

import pytest
from scapy.utils import rdpcap

from lib.apply import apply, plan, write
from lib.apply import refused as refuses
from lib.frr import Frr, bgp
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import veth, wait_for
from lib.packets import ethernet, forwarded, icmp, ipv4, ipv6, pattern, pcap_file, tcp, udp
from lib.router import Change
from test_overload import SLOW as SLOW_STEP

# The address of the first capture-file port, as its driver makes it.
FLOOD_MAC = "02:70:63:61:70:00"

EXPIRED = [
    ethernet(FLOOD_MAC, HOST_B_MAC, 0x0800, ipv4("10.9.0.2", "10.9.0.9", pattern(40), ttl=1, ident=n))
    for n in range(64)
]


class Attacked:
    """A router that communicates with a host on one port while another port is flooded.

    The host interfaces are in `space`; `left` is the host at 10.0.1.2."""

    def __init__(self, lab, frames, config=""):
        self.space = lab.namespace("space")
        self.space.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.inside, self.left = lab.namespace("router"), lab.namespace("left")
        veth(self.inside, "tp-left", self.left, "eth0", LEFT_MAC, HOST_A_MAC)
        self.left.run("ip", "address", "add", "10.0.1.2/24", "dev", "eth0")
        self.router = lab.router(self.inside, f"""
local turnpike = require "turnpike"
local host = {{ netns = "{self.space.name}" }}
turnpike.port "left" {{ device = "tp-left", address = "10.0.1.1/24", host = host }}
turnpike.port "flood" {{
  device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=1", address = "10.9.0.1/16", host = host }}
turnpike.neighbour "10.9.0.9" {{ port = "flood", mac = "{HOST_B_MAC}" }}
{config}""", files={"in.pcap": pcap_file(frames)})
        self.space.run("ip", "address", "replace", "10.0.1.1/24", "dev", "left")
        self.space.run("ip", "address", "replace", "10.9.0.1/16", "dev", "flood")

    def refused(self):
        """Packets refused by the classes so far, by class, without zeros."""
        return refused(self.router)


def classes(router):
    """The classes of `show policing` by name."""
    return {row["name"]: row for row in router.show("policing")["classes"]}


def refused(router):
    dropped = router.show("counters")["dropped"].items()
    return {reason.removeprefix("refused-"): n for reason, n in dropped if n and reason.startswith("refused-")}


@pytest.mark.alone
@pytest.mark.parametrize("workers", [1, 2])
def test_bgp_arp_and_ping_survive_a_flood_of_expiring_packets(lab, workers):
    attacked = Attacked(lab, EXPIRED, f"turnpike.slowpath {{ workers = {workers} }}\n")
    peers = []
    for space, own, other in ((attacked.space, 1, 2), (attacked.left, 2, 1)):
        neighbours = {f"10.0.1.{other}": (65000 + other, "timers 1 6")}
        daemons = {"bgpd": bgp(65000 + own, f"10.0.1.{own}", neighbours)}
        peers.append(Frr(space, daemons))
        lab._made.callback(peers[-1].close)
    assert wait_for(lambda: established(peers[0]), 60, 0.2), "no session comes up under the flood"
    flaps = dropped_sessions(peers[0])
    before = attacked.refused()["errors"]
    # A neighbour that has to be resolved again, and one in continuous use.
    for _ in range(10):
        attacked.left.run("ip", "neighbour", "flush", "dev", "eth0")
        attacked.space.run("ip", "neighbour", "flush", "dev", "left")
        said = attacked.left.run("ping", "-n", "-c", 20, "-i", "0.01", "-w", 30, "10.0.1.1", timeout=60).stdout
        # In order and without a gap; the duration depends on the machine.
        assert [int(n) for n in re.findall(r"icmp_seq=(\d+)", said)][:20] == list(range(1, 21)), said[-300:]
    # A session depends on keepalives, one a second, and ends after six seconds without: seven more prove that it
    # continues.
    heard = session(peers[0])["msgRcvd"]
    assert wait_for(lambda: session(peers[0])["msgRcvd"] >= heard + 7, 60, 0.5)
    assert established(peers[0]) and dropped_sessions(peers[0]) == flaps
    assert attacked.refused().keys() == {"errors"}
    assert attacked.refused()["errors"] > before
    rows = classes(attacked.router)
    assert rows["neighbour"]["passed"] > 0 and rows["routing"]["passed"] > 0
    errors = rows["errors"]
    assert errors["refused_early"] > 0
    left = errors["passed"] + errors["refused_early"] + errors["refused_full"] + errors["waiting"]
    assert left == errors["offered"]
    attacked.router.stop()


PINGS = [
    ethernet(FLOOD_MAC, HOST_B_MAC, 0x0800,
             ipv4("10.9.0.2", "10.9.0.1", icmp(8, 0, struct.pack("!HH", 1, n), pattern(56)), protocol=1, ident=n))
    for n in range(64)
]

# Sends OSPF hellos and BFD control packets with their numbers, so many of each, and waits for the answer to each one;
# or answers.
DAEMON = """
import select, socket, sys
own, group = sys.argv[1], socket.inet_aton("224.0.0.5")
ospf = socket.socket(socket.AF_INET, socket.SOCK_RAW, 89)
ospf.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + socket.inet_aton(own))
ospf.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
ospf.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
bfd = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
bfd.bind((own, 3784))
for one in (ospf, bfd):
    one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0xc0)
ways = {ospf: ("224.0.0.5", 0), bfd: (sys.argv[2], 3784)}
def number(one):
    packet = one.recv(2048)
    return int.from_bytes(packet[20:24] if one is ospf else packet[:4], "big")
print("ready", flush=True)
if len(sys.argv) == 3:
    while True:
        for one in select.select(list(ways), [], [])[0]:
            one.sendto(number(one).to_bytes(4, "big"), ways[one])
answered = 0
for n in range(int(sys.argv[3])):
    for one, way in ways.items():
        one.sendto(n.to_bytes(4, "big"), way)
    for one in ways:
        if not select.select([one], [], [], 10)[0]:
            sys.exit(f"no answer to {n} by {ways[one]}")
        assert number(one) == n
        answered += 1
print(answered, flush=True)
"""


@pytest.mark.alone
@pytest.mark.parametrize("frames", [PINGS, PINGS + EXPIRED], ids=["pings", "pings and errors"])
def test_no_hello_and_no_bfd_packet_is_lost_between_wire_and_daemon(lab, frames):
    """Each is answered before the next is sent, so that one that is lost in either direction is noticed."""
    attacked = Attacked(lab, frames)
    attacked.left.run("ip", "route", "add", "10.9.0.0/16", "via", "10.0.1.1")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    daemon = attacked.space.spawn("python3", "-c", DAEMON, "10.0.1.1", "10.0.1.2", **options)
    assert daemon.stdout.readline() == "ready\n"
    assert wait_for(lambda: "host" in attacked.refused(), 30), attacked.refused()
    before = attacked.refused()
    peer = attacked.left.spawn("python3", "-c", DAEMON, "10.0.1.2", "10.0.1.1", "500", **options)
    said, _ = peer.communicate(timeout=240)
    assert said == "ready\n1000\n", said
    after = attacked.refused()
    assert after["host"] > before["host"], "the flood went on meanwhile"
    assert after.keys() <= {"host", "errors"}
    rows = classes(attacked.router)
    assert rows["link"]["passed"] >= 500 and rows["routing"]["passed"] >= 500
    attacked.router.stop()


# Bursts of fewer than the 256 frames that a veth holds, which drops the rest before any program sees it.
SENDER = """
import socket, sys, time
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
wire.bind(("eth0", 0))
frame = bytes.fromhex(sys.argv[1])
while True:
    for _ in range(20):
        wire.send(frame)
    time.sleep(0.0005)
"""


@pytest.mark.alone
def test_no_hello_is_lost_behind_a_flood_of_its_own_port(lab):
    """The control queue and the classes together: neither the receive ring nor a ring of the slow path is shared."""
    config = "turnpike.forwarders { control_queue = true, shed = false }\n" + SLOW_STEP
    attacked = Attacked(lab, PINGS[:1], config)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    daemon = attacked.space.spawn("python3", "-c", DAEMON, "10.0.1.1", "10.0.1.2", **options)
    assert daemon.stdout.readline() == "ready\n"
    # Not a request, so that the kernel has nothing to answer.
    reply = ipv4("10.0.1.2", "10.0.1.1", icmp(0, 0, bytes(4), pattern(56)), protocol=1)
    attacked.left.spawn("python3", "-c", SENDER, ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, reply).hex())
    missed = lambda: {port["name"]: port["rx_missed"] for port in attacked.router.show("ports")}["left"]  # noqa: E731
    assert wait_for(lambda: missed() > 0, 60), attacked.router.show("ports")
    before = missed()
    peer = attacked.left.spawn("python3", "-c", DAEMON, "10.0.1.2", "10.0.1.1", "200", **options)
    said, _ = peer.communicate(timeout=240)
    assert said == "ready\n400\n", said
    assert missed() > before, "the flood went on meanwhile"
    attacked.router.stop()


def session(frr):
    """bgpd's report of its only IPv4 session."""
    return next(iter(frr.json("show bgp summary")["ipv4Unicast"]["peers"].values()))


def established(frr):
    return session(frr)["state"] == "Established"


def dropped_sessions(frr):
    return session(frr)["connectionsDropped"]


def from_left(packet):
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet)


def test_packets_are_sorted_into_classes_and_counted(lab):
    wires = Wires(lab, 'turnpike.route "10.0.2.9/32" { via = "10.0.2.2" }\n', mtu=(1500, 600), calm=True)
    packets = {
        "errors": ipv4("10.0.1.2", "10.0.2.2", pattern(40), ttl=1),
        "fragment": ipv4("10.0.1.2", "10.0.2.2", pattern(1000)),
        "resolve": ipv4("10.0.1.2", "10.0.2.77", pattern(40)),
        "options": ipv4("10.0.1.2", "10.0.2.2", pattern(40), options=b"\x07\x07\x04\0\0\0\0\0"),
        "host": ipv4("10.0.1.2", "10.0.1.1", icmp(8, 0, b"\0\1\0\1", pattern(40)), protocol=1),
        "routing": ipv4("10.0.1.2", "10.0.1.1", udp("10.0.1.2", "10.0.1.1", 49152, 3784, pattern(24))),
        # Packets with TTL 255 were sent on the link (RFC 5082).
        "link": ipv4("10.0.1.2", "10.0.1.1", udp("10.0.1.2", "10.0.1.1", 49152, 3784, pattern(24)), ttl=255),
    }
    for name, packet in packets.items():
        before = classes(wires.router)
        wires.left.send(from_left(packet))
        assert wait_for(lambda: classes(wires.router)[name]["passed"] > before[name]["passed"]), name
        after = classes(wires.router)
        moved = {other for other in after if after[other]["offered"] != before[other]["offered"]}
        assert moved - {"neighbour"} == {name}
    wires.router.stop()


def test_the_rate_of_errors_is_configured(lab):
    config = "turnpike.slowpath { icmp_rate = 0, icmp_prefix_rate = 0 }\n"
    wires = Wires(lab, config, calm=True)
    expired = [from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ttl=1, ident=n)) for n in range(5)]
    wires.drain()
    wires.left.send(*expired)
    assert wait_for(lambda: wires.router.counters()["dropped"]["ttl-expired"] == 5)
    assert wires.left.receive(0.05) == []
    errors = wires.router.show("policing")["icmp_errors"]
    assert (errors["rate"], errors["prefix_rate"], errors["suppressed_by_prefix"]) == (0, 0, 5)
    wires.router.stop()


def test_one_prefix_does_not_take_the_errors_of_another(lab):
    config = "turnpike.slowpath { icmp_rate = 1000, icmp_burst = 100, icmp_prefix_rate = 1, icmp_prefix_burst = 2 }\n"
    routes = 'turnpike.route "192.0.2.0/24" { via = "10.0.1.2" }\n'
    wires = Wires(lab, config + routes, calm=True)
    greedy = [from_left(ipv4(f"192.0.2.{n}", "10.0.2.2", pattern(40), ttl=1)) for n in range(1, 21)]
    modest = [from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ttl=1))]
    wires.drain()
    wires.left.send(*greedy, *modest)
    told = [frame[30:34] for frame in wires.left.receive(0.3)]
    assert told.count(bytes([10, 0, 1, 2])) == 1
    assert 2 <= len(told) - 1 <= 4, "two at once, and what comes meanwhile"
    assert wires.router.show("policing")["icmp_errors"]["suppressed"] == 0
    wires.router.stop()


@pytest.mark.flood
@pytest.mark.provokes(
    "refused-neighbour", "refused-link", "refused-routing", "refused-resolve", "refused-fragment", "refused-options",
)
@pytest.mark.parametrize("name", ["neighbour", "link", "routing", "resolve", "fragment", "options"])
def test_every_class_refuses_by_its_name(lab, name):
    def frame(packet, ethertype=0x0800):
        return ethernet(FLOOD_MAC, HOST_B_MAC, ethertype, packet)

    arp = bytes.fromhex("0001080006040001") + bytes.fromhex("0200000002020a090002") + bytes(6) + bytes([10, 9, 0, 1])
    frames = {
        "neighbour": frame(arp, 0x0806),
        "link": frame(ipv4("10.9.0.2", "224.0.0.5", pattern(40), protocol=89, ttl=1)),
        "routing": frame(ipv4("10.9.0.2", "10.9.0.1", pattern(40), protocol=89)),
        "resolve": frame(ipv4("10.9.0.2", "10.0.1.77", pattern(40))),
        "fragment": frame(ipv4("10.9.0.2", "10.0.1.2", pattern(1400))),
        "options": frame(ipv4("10.9.0.2", "10.0.1.2", pattern(40), options=b"\x07\x07\x04\0\0\0\0\0")),
    }
    inside, left = lab.namespace("router"), lab.namespace("left")
    veth(inside, "tp-left", left, "eth0", LEFT_MAC, HOST_A_MAC, 600)
    router = lab.router(inside, f"""
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "tp-left", address = "10.0.1.1/24" }}
turnpike.port "flood" {{
  device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=1", address = "10.9.0.1/16" }}
turnpike.neighbour "10.0.1.2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.slowpath {{ classes = {{ {name} = {{ rate = 1000, queue = 64 }} }} }}
""", files={"in.pcap": pcap_file([frames[name]] * 64)})
    assert wait_for(lambda: refused(router).get(name), 20)
    assert refused(router).keys() == {name}
    router.stop()


def near(text, hops):
    """The configuration with TTL security on the left port."""
    return text.replace('"tp-left", ', f'"tp-left", ttl_security = {hops}, ')


@pytest.mark.provokes("ttl-security")
def test_peers_from_farther_away_than_the_port_accepts_are_dropped(lab):
    """RFC 5082 3: BGP with TTL 255 is answered, with less it is dropped before it enters a queue."""
    base = PORTS + STATIC_NEIGHBOURS
    wires = Wires(lab, ports=near(base, 1), calm=True)

    def syn(ttl, source="10.0.1.2", destination="10.0.1.1", port=179):
        segment = tcp(source, destination, 40000, port, 7000, 0, 2)
        if ":" in source:
            return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(source, destination, segment, next_header=6, hop_limit=ttl))
        return from_left(ipv4(source, destination, segment, protocol=6, ttl=ttl))

    def sent(frame):
        wires.left.drain()
        change = Change(wires.router)
        wires.left.send(frame)
        return change(received=1)

    reset = {"received": 1, "originated": 1, "sent": 1, "dropped": {"no-listener": 1}}
    refused = {"received": 1, "dropped": {"ttl-security": 1}}
    six = ("fd00:1::2", "fd00:1::1")
    assert [sent(syn(ttl)) for ttl in (255, 254, 1)] == [reset, refused, refused]
    assert [sent(syn(ttl, *six)) for ttl in (255, 254, 1)] == [reset, refused, refused]
    assert sent(syn(64, port=22)) == reset, "ssh has no peers that are near"
    # One hop more, and none at all, without a restart.
    apply(wires.router, near(base, 2))
    assert [sent(syn(ttl)) for ttl in (254, 253)] == [reset, refused]
    apply(wires.router, base)
    assert sent(syn(1)) == reset
    wires.router.stop()


def test_two_workers_resolve_forward_and_answer_between_their_ports(lab):
    # Each port has a separate worker. The error leaves by the port of the other one, to a neighbour that has to be
    # resolved first.
    ports = PORTS + f'turnpike.neighbour "10.0.1.2" {{ port = "left", mac = "{HOST_A_MAC}" }}\n'
    wires = Wires(lab, "turnpike.slowpath { workers = 2 }\n", ports=ports, calm=True)
    wires.drain()
    wires.left.send(from_left(ipv4("10.0.2.2", "172.16.0.1", pattern(40))))
    asked = wires.right.expect(1)[0]
    assert asked[12:14] == b"\x08\x06" and asked[38:42] == bytes([10, 0, 2, 2])
    answer = bytes.fromhex("0001080006040002") + bytes.fromhex(HOST_B_MAC.replace(":", ""))
    answer += bytes([10, 0, 2, 2]) + asked[6:12] + bytes([10, 0, 2, 1])
    wires.right.send(ethernet(asked[6:12].hex(":"), HOST_B_MAC, 0x0806, answer))
    error = wires.right.expect(1)[0]
    assert (error[23], error[34], error[35]) == (1, 3, 0), "net unreachable"
    # And a packet that waits for the neighbour on the other worker's port.
    wires.left.send(from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40))))
    assert wires.right.expect(1)[0][30:34] == bytes([10, 0, 2, 2])
    assert {n["address"] for n in wires.router.show("neighbours")} == {"10.0.1.2", "10.0.2.2"}
    assert wires.router.show("policing")["workers"] == 2
    wires.router.stop()


# --- A defect: the router built with the feature `faulty-step`, as `make scenarios` does.

# The IPv4 identification that makes the step `faulty` panic, and the end of a packet that makes the slow path panic.
FAST, SLOW = 0xDEAD, b"panic over this"

# The one that ends a forwarder's thread.
FATAL = 0xDEA2


def test_a_panic_costs_the_packet_that_provokes_it_and_is_written_down(lab, tmp_path):
    directory = tmp_path / "kept"
    defect = f'turnpike.graph:insert_after("ip4-mtu", "faulty")\nturnpike.quarantine {{ directory = "{directory}", packets = 5 }}\n'
    wires = Wires(lab, defect, calm=True)
    wires.drain()
    good = [from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ident=n)) for n in range(40)]
    fast = from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ident=FAST))
    slow = from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40) + SLOW, ttl=1))
    wires.left.send(*good[:20], fast, slow, *good[20:])
    assert wires.right.expect(40) == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in good]
    assert wires.router.counters()["dropped"]["quarantined"] == 2
    # The file, as other programs read it: frames, ports and panic messages.
    assert wait_for(lambda: list(directory.glob("quarantine-*.pcapng")))
    file = next(iter(directory.glob("quarantine-*.pcapng")))
    assert wait_for(lambda: sorted(map(bytes, rdpcap(str(file)))) == sorted([fast, slow]))
    # Packets may be confidential.
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(directory.stat().st_mode)) == (0o600, 0o700)
    text = file.read_bytes()
    assert b"the faulty step met identification 0xdead" in text and b"the faulty engine met its packet" in text
    assert b"left" in text and b"steps/faulty.rs" in text
    # More than are stored; the router continues nevertheless.
    for _ in range(3):
        wires.left.send(*[fast] * 10, *[slow] * 10, good[0])
        assert wires.right.expect(1) == [forwarded(good[0], RIGHT_MAC, HOST_B_MAC)]
    assert wait_for(lambda: wires.router.counters()["dropped"]["quarantined"] == 62)
    assert len(rdpcap(str(file))) == 5
    wires.router.process.send_signal(signal.SIGTERM)
    assert wires.router.process.wait(15) == 0
    log = wires.router.log()
    assert 'a panic over a packet of port "left"' in log and str(file) in log
    assert log.count("a panic over") < 10 and "RUST_BACKTRACE" not in log
    assert re.search(r"mbufs: all \d+ returned", log)


def test_the_quarantine_follows_another_configuration(lab, tmp_path):
    def kept_in(name, packets):
        return f'turnpike.quarantine {{ directory = "{tmp_path}/{name}", packets = {packets} }}\n'

    def kept(name):
        return [bytes(p) for file in (tmp_path / name).glob("*.pcapng") for p in rdpcap(str(file))]

    faulty = 'turnpike.graph:insert_after("ip4-mtu", "faulty")\n'
    wires = Wires(lab, faulty + kept_in("one", 1), calm=True)
    router, base = wires.router, (wires.router.directory / "router.lua").read_text()
    wires.drain()
    fast = [from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40 + n), ident=FAST)) for n in range(4)]
    wires.left.send(*fast[:2])
    assert wait_for(lambda: router.counters()["dropped"]["quarantined"] == 2 and kept("one") == fast[:1])
    more = base.replace(kept_in("one", 1), kept_in("one", 2))
    report, _ = plan(router, more)
    assert not report["restart"] and report["changes"][0]["what"] == "quarantine: packets"
    apply(router, more)
    wires.left.send(fast[2])
    assert wait_for(lambda: kept("one") == [fast[0], fast[2]])
    apply(router, base.replace(kept_in("one", 1), kept_in("two", 3)))
    wires.left.send(fast[3])
    assert wait_for(lambda: kept("two") == fast[3:]) and len(kept("one")) == 2
    # A directory that does not belong to it has no effect.
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    error = refuses(router, "apply", write(router, base.replace(kept_in("one", 1), kept_in("open", 9))))
    assert "other users may write to it; chmod 700 it" in error
    wires.router.process.send_signal(signal.SIGTERM)
    assert wires.router.process.wait(15) == 0


def test_a_router_without_one_of_its_forwarders_ends(lab):
    wires = Wires(lab, 'turnpike.graph:insert_after("ip4-mtu", "faulty")\n')
    wires.left.send(from_left(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ident=FATAL)))
    # Its supervisor starts another one.
    code = wires.router.process.wait(60)
    log = wires.router.log()
    assert 0 < code < 100, f"exit {code}:\n{log}"
    assert "forwarder 0 has ended by itself" in log and "the faulty step ends the thread" in log
    # A router's traces on devices are removed.
    assert "xdp" not in wires.inside.links() and not wires.router.socket.exists()

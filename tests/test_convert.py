"""`turnpike convert`: rules of nftables and iptables, and a check that the converted rules accept the same packets.

Each ruleset is loaded into a router that is the Linux kernel, listed there, converted, and applied to a Turnpike
with the same wires. The same packets go through both. Rulesets are random as well, the same in each run unless
another seed is given, to look for more:

    CONVERT_SEED=$RANDOM CONVERT_RULESETS=100 .venv/bin/python -m pytest tests/test_convert.py -k random
"""

import os
import random
import struct
import subprocess

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, UDPerror
from scapy.layers.inet6 import (
    ICMPv6DestUnreach, ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6Unknown, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrRouting, PadN,
)
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from lib.router import binary
from lib.twins import KernelWires

SEED = int(os.environ.get("CONVERT_SEED", 2544))
RULESETS = int(os.environ.get("CONVERT_RULESETS", 12))
PACKETS = 120

PORTS = """
local turnpike = require "turnpike"
turnpike.port "tp-left"  { device = "tp-left",  address = { "10.0.1.1/24", "fd00:1::1/64" }%s }
turnpike.port "tp-right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" }%s }
"""
REST = f"""
turnpike.neighbour "10.0.1.2" {{ port = "tp-left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "10.0.2.2" {{ port = "tp-right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "fd00:1::2" {{ port = "tp-left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "fd00:2::2" {{ port = "tp-right", mac = "{HOST_B_MAC}" }}
turnpike.slowpath {{ icmp_rate = 1000000, icmp_burst = 1000000,
                     icmp_prefix_rate = 1000000, icmp_prefix_burst = 1000000 }}
turnpike.route "198.51.100.0/24" {{ via = "10.0.2.2" }}
turnpike.route "172.20.0.0/16"   {{ via = "10.0.1.2" }}
turnpike.route "2001:db8:1::/48" {{ via = "fd00:2::2" }}
"""


def convert(kind, text):
    return subprocess.run([binary(), "convert", kind, "-"], input=text, capture_output=True, text=True, timeout=60)


def configured(lua):
    """A configuration with these filters on their ports."""
    def place(port):
        names = [name for name in (f"forward-{port}", "forward") if f'turnpike.filter "{name}"' in lua]
        return f', filter = {{ outward = "{names[0]}" }}' if names else ""
    return PORTS % (place("tp-left"), place("tp-right")) + REST + lua


def check(tmp_path, lua):
    """`turnpike check` of a configuration with these filters."""
    file = tmp_path / "router.lua"
    file.write_text(configured(lua))
    return subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)


def without_comments(lua):
    return [line for line in lua.splitlines() if not line.strip().startswith("--")]


# --- both routers -----------------------------------------------------------------------------------


class Pair:
    """Turnpike and the kernel between the same wires."""

    def __init__(self, lab):
        self.turnpike = Wires(lab, ports=PORTS % ("", "") + REST, mtu=(1500, 1500), calm=True)
        self.kernel = KernelWires(lab)
        self.marks = 0

    def load(self, kind, text):
        """Loads rules into the kernel, and the conversion of its listing into Turnpike; returns the conversion."""
        inside = self.kernel.inside
        inside.run("nft", "flush", "ruleset")
        if kind == "nftables":
            inside.run("nft", "-f", "-", input=text)
            listing = inside.run("nft", "list", "ruleset").stdout
            in_json = convert(kind, inside.run("nft", "-j", "list", "ruleset").stdout)
            converted = convert(kind, listing)
            assert without_comments(converted.stdout) == without_comments(in_json.stdout), listing
        else:
            listing = ""
            for family, rules in zip(("iptables", "ip6tables"), text):
                inside.run(f"{family}-restore", input=rules)
                listing += inside.run(f"{family}-save").stdout
            converted = convert(kind, listing)
        router = self.turnpike.router
        router.config.write_text(configured(converted.stdout))
        router.command("apply", router.config)
        return converted, listing

    def passed(self, packets):
        """Returns, for each of the packets, sent from its side, whether Turnpike and the kernel forward it."""
        ours, theirs = (self.through(wires, packets) for wires in (self.turnpike, self.kernel))
        # On a loaded machine one may be lost or late. It is sent again, alone.
        for number, packet in enumerate(packets):
            if ours[number] != theirs[number]:
                (ours[number],), (theirs[number],) = (
                    self.through(wires, [packet], quiet=1.0) for wires in (self.turnpike, self.kernel))
        return ours, theirs

    def through(self, wires, packets, quiet=0.15):
        """Returns, for each of the packets, sent from its side, whether a router forwards it."""
        return [frame is not None for frame in self.forwarded(wires, packets, quiet)]

    def classes(self, wires, packets):
        """Returns the DSCP with which each of the packets leaves a router, `None` if it does not."""
        frames = self.forwarded(wires, packets, 0.5)
        shown = lambda frame: Ether(frame)[IP].tos if frame[12:14] == b"\x08\0" else Ether(frame)[IPv6].tc  # noqa: E731
        return [frame and shown(frame) >> 2 for frame in frames]

    def forwarded(self, wires, packets, quiet):
        """Returns the frame as which each of the packets, sent from its side, leaves a router, or `None`."""
        self.marks += 1
        for wire in (wires.left, wires.right):
            wire.drain()
        for number, (side, packet) in enumerate(packets):
            mark = b"mark" + struct.pack("!II", self.marks, number)
            frame = LINKS[side] / packet / Raw(mark)
            getattr(wires, side).send(bytes(frame))
        arrived = wires.left.receive(quiet) + wires.right.receive(quiet / 3)
        # An ICMP error quotes the packet, and returns to its sender.
        seen = {struct.unpack("!II", frame[-8:]): frame for frame in arrived
                if frame[-12:-8] == b"mark" and not is_error(frame)}
        return [seen.get((self.marks, number)) for number in range(len(packets))]


LINKS = {"left": Ether(src=HOST_A_MAC, dst=LEFT_MAC), "right": Ether(src=HOST_B_MAC, dst=RIGHT_MAC)}


def is_error(frame):
    if frame[12:14] == b"\x08\x00":
        return frame[23] == 1 and frame[34] in (3, 11)
    return frame[20] == 58 and frame[54] < 128 and frame[22:38] in ROUTER6


ROUTER6 = [bytes.fromhex("fd00000100000000" + "0" * 15 + "1"), bytes.fromhex("fd00000200000000" + "0" * 15 + "1")]


@pytest.fixture(scope="module")
def pair(module_lab):
    return Pair(module_lab)


# --- packets ----------------------------------------------------------------------------------------

SOURCES4 = {"left": ["10.0.1.2", "10.0.1.9", "172.20.0.5", "172.20.3.1"], "right": ["10.0.2.2", "198.51.100.7", "10.0.2.200"]}
TARGETS4 = {"left": ["10.0.2.2", "198.51.100.7", "198.51.100.200"], "right": ["10.0.1.2", "172.20.0.5", "172.20.3.1"]}
SOURCES6 = {"left": ["fd00:1::2", "fd00:1::9", "2001:db8:7::1"], "right": ["fd00:2::2", "2001:db8:1::7"]}
TARGETS6 = {"left": ["fd00:2::2", "2001:db8:1::7", "2001:db8:1:2::"], "right": ["fd00:1::2"]}
FLAGS = ["S", "SA", "A", "F", "R", "FA", "PA", "", "SF", "U"]


def random_packet(chance):
    side = chance.choice(["left", "left", "right"])
    ttl = chance.choice([3, 5, 6, 7, 64, 255])
    dscp = chance.choice([0, 0, 8, 46])
    kind = chance.choice(["tcp", "tcp", "udp", "udp", "icmp", "gre", "fragment"])
    if chance.random() < 0.6:
        packet = IP(src=chance.choice(SOURCES4[side]), dst=chance.choice(TARGETS4[side]), ttl=ttl, tos=dscp << 2)
        icmp = ICMP(type=chance.choice([0, 8, 13]), code=0)
    else:
        packet = IPv6(src=chance.choice(SOURCES6[side]), dst=chance.choice(TARGETS6[side]), hlim=ttl, tc=dscp << 2)
        if chance.random() < 0.2:
            packet /= IPv6ExtHdrDestOpt(options=[PadN(optdata=b"1234")])
        if chance.random() < 0.2:
            packet /= IPv6ExtHdrRouting(type=chance.choice([0, 2, 4]), segleft=1, addresses=["fd00:1::9"])
        icmp = chance.choice([ICMPv6EchoRequest(), ICMPv6Unknown(type=129), ICMPv6Unknown(type=200)])
        kind = "udp" if kind == "fragment" else kind
    ports = {"sport": chance.randint(1, 6), "dport": chance.randint(1, 6)}
    if kind == "tcp":
        packet /= TCP(flags=chance.choice(FLAGS), **ports)
    elif kind == "udp":
        packet /= UDP(**ports)
    elif kind == "icmp":
        packet /= icmp
    elif kind == "gre":
        packet = with_protocol(packet, 47) / Raw(b"\0" * 8)
    else:
        # No later fragments: nftables without connection tracking takes their first bytes for ports.
        packet.flags = "MF"
        packet /= UDP(len=300, **ports)
    return side, packet / Raw(b"x" * chance.choice([4, 12, 60, 200]))


def with_protocol(packet, number):
    last = packet.lastlayer()
    if isinstance(last, IP):
        last.proto = number
    else:
        last.nh = number
    return packet


# --- rulesets ---------------------------------------------------------------------------------------

# Rules that are common on routers, and some of everything.
NFT = """
table inet filter {
  set bad { type ipv4_addr; flags interval; elements = { 10.0.1.9, 172.20.3.0/24, 198.51.100.100-198.51.100.250 } }
  set pairs { type ipv4_addr . inet_service; elements = { 10.0.1.2 . 1, 10.0.1.9 . 2 } }
  map ends { type inet_service : verdict; elements = { 5 : drop, 6 : accept } }
  chain dns { udp dport 3 accept; meta l4proto != udp return; ip6 daddr 2001:db8:1::/48 drop; }
  chain last { tcp flags & (fin|syn|rst|ack) == syn reject with tcp reset; goto dns; }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ip saddr @bad ip ttl < 6 drop
    ip saddr . tcp dport @pairs accept
    iifname "tp-left" oifname "tp-right" ip6 saddr != fd00:1::/64 drop
    meta l4proto { tcp, udp } th dport 4 accept
    icmp type { echo-request, echo-reply } accept
    icmpv6 type != echo-request ip6 dscp cs1 drop
    icmpv6 type 128-200 accept
    iifname != "tp-left" jump dns
    tcp dport vmap @ends
    meta length 100-200 counter accept comment "middle"
    tcp flags ! syn accept
    ip dscp { cs0, ef } ip frag-off & 0x3fff != 0 accept
    jump last
    rt type { 0, 3 } drop
    rt type 4 ip6 daddr 2001:db8:1::/48 accept
    meta l4proto 47 log prefix "gre: " accept
    tcp sport != { 1-2, 6 } accept
  }
}
table ip early { chain forward { type filter hook forward priority -10; policy accept; ip daddr 172.20.3.1 udp dport 6 drop; }
}
"""

IPTABLES = [
    """*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:LOGDROP - [0:0]
:WEB - [0:0]
-A FORWARD ! -s 10.0.1.0/24 ! -i tp-left -p udp -m multiport --ports 1,2:3 -j ACCEPT
-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -m multiport ! --dports 5,6 -j WEB
-A FORWARD -p icmp -m icmp ! --icmp-type 13 -j ACCEPT
-A FORWARD -p tcp ! --syn -m tcp ! --sport 2:4 -j ACCEPT
-A FORWARD -m iprange --src-range 10.0.1.3-10.0.1.200 -g LOGDROP
-A FORWARD -o tp-right -p 47 -m ttl --ttl-gt 5 -m comment --comment "gre \\"old\\"" -j ACCEPT
-A FORWARD -m dscp --dscp 0x2e -m length --length 60:120 -j REJECT --reject-with icmp-admin-prohibited
-A FORWARD ! -p tcp -j ACCEPT
-A WEB -d 198.51.100.0/24 -j RETURN
-A WEB -p tcp -m tcp --dport 1:3 -j ACCEPT
-A WEB -j LOGDROP
-A LOGDROP -m limit --limit 5/min -j LOG --log-prefix "dropped: "
-A LOGDROP -j DROP
COMMIT
""",
    """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m rt --rt-type 0 -j DROP
-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type 128 -m hl --hl-lt 10 -j DROP
-A FORWARD -d 2001:db8:1::/48 ! -p udp -j DROP
-A FORWARD -i tp-right -p udp -m udp --sport :3 -j DROP
COMMIT
""",
]


def of(chance, *choices):
    return chance.choice(choices)


def number(chance, low, high):
    """One number, a range, a set, or the complement of one of these."""
    one, other = sorted((chance.randint(low, high), chance.randint(low, high)))
    return of(chance, "", "!= ") + of(chance, f"{one}", f"{one}-{other + 1}", f"{{ {one}, {other + 1} }}")


def nft_condition(chance):
    kind = of(chance, "ip saddr", "ip daddr", "ip6 saddr", "tcp", "udp", "th", "flags", "proto", "icmp", "icmp6", "in",
              "out", "dscp", "ttl", "length", "family", "pair", "routing")
    side = of(chance, "left", "right")
    no = of(chance, "", "", "!= ")
    if kind in ("ip saddr", "ip daddr"):
        nets = ["10.0.1.0/24", "10.0.1.2", "172.20.0.0/16", "198.51.100.7", "10.0.0.0/8", "10.0.1.3-10.0.1.100"]
        return f"{kind} {no}" + of(chance, chance.choice(nets), f"{{ {', '.join(chance.sample(nets[1:4], 2))} }}")
    if kind == "ip6 saddr":
        return of(chance, "ip6 saddr", "ip6 daddr") + f" {no}" + of(chance, "fd00:1::2", "fd00::/16", "2001:db8:1::/48")
    if kind in ("tcp", "udp"):
        return f"{kind} {of(chance, 'sport', 'dport')} {number(chance, 1, 6)}"
    if kind == "th":
        return f"meta l4proto {{ tcp, udp }} th dport {number(chance, 1, 6)}"
    if kind == "flags":
        return of(chance, "tcp flags syn", "tcp flags & (syn | ack) == syn", "tcp flags { syn, ack }", "tcp flags ! fin",
                  "tcp flags != syn", "tcp flags & (syn | rst) != syn", "tcp flags syn,fin")
    if kind == "proto":
        return f"meta l4proto {no}" + of(chance, "tcp", "udp", "47", "{ tcp, icmp }", "ipv6-icmp")
    if kind == "icmp":
        return f"icmp type {no}" + of(chance, "echo-request", "{ echo-reply, timestamp-request }")
    if kind == "icmp6":
        return f"icmpv6 type {no}" + of(chance, "echo-request", "{ echo-reply, 200 }")
    if kind == "in":
        return f'iifname {no}"tp-{side}"'
    if kind == "out":
        return f'oifname {no}"tp-{side}"'
    if kind == "dscp":
        return of(chance, "ip", "ip6") + f" dscp {no}" + of(chance, "cs1", "{ cs0, ef }")
    if kind == "ttl":
        return of(chance, "ip ttl", "ip6 hoplimit") + of(chance, " < 5", " 4-6", " != 5", " >= 6", " > 254", " 255")
    if kind == "length":
        return of(chance, "meta length", "ip length") + of(chance, " 50-120", " > 100", " <= 90")
    if kind == "routing":
        return "rt type " + of(chance, "0", "4", "{ 0, 4 }", "0-3")
    if kind == "family":
        return "meta nfproto " + of(chance, "ipv4", "ipv6")
    return "ip saddr . udp dport { 10.0.1.2 . 1-3, 10.0.2.2 . 4 }"


def nft_rule(chance, targets):
    conditions = " ".join(nft_condition(chance) for _ in range(chance.choice([0, 1, 1, 2, 2, 3])))
    verdicts = ["accept", "drop", "accept", "drop", "return", "reject"] + targets
    verdict = chance.choice(verdicts)
    if chance.random() < 0.1:
        verdict = "tcp dport vmap { 1 : accept, 2-3 : drop, 4 : return }"
    if not conditions and chance.random() < 0.8:
        conditions = nft_condition(chance)
    log = of(chance, "", "", "", "counter ", 'log prefix "x" ')
    return f"    {conditions} {log}{verdict}"


def loads(inside, text):
    """Rules that contradict each other are refused by nft."""
    return inside.run("nft", "-c", "-f", "-", input=text, check=False).returncode == 0


def random_nft(chance, inside):
    def chain(count, targets):
        rules = []
        while len(rules) < count:
            rule = nft_rule(chance, targets)
            heads = "chain c1 { }\n chain c2 { }\n"
            if loads(inside, f"table inet t {{ {heads} chain x {{\n{rule}\n}}\n}}\n"):
                rules.append(rule)
        return "\n".join(rules)

    def base(name, priority):
        policy = of(chance, "accept", "drop")
        hook = f"    type filter hook forward priority {priority}; policy {policy};"
        return f"  chain {name} {{\n{hook}\n{chain(chance.randint(2, 7), ['jump c1', 'jump c2', 'goto c1'])}\n  }}\n"

    second = f"table inet u {{ chain c1 {{ }}\n chain c2 {{ }}\n{base('f', 10)}}}\n" if chance.random() < 0.3 else ""
    return (f"table inet t {{\n  chain c2 {{\n{chain(chance.randint(1, 3), [])}\n  }}\n"
            f"  chain c1 {{\n{chain(chance.randint(1, 4), ['jump c2', 'goto c2'])}\n  }}\n{base('forward', 0)}}}\n{second}")


def compare(pair, kind, rules, chance, packets):
    converted, listing = pair.load(kind, rules)
    sent = [random_packet(chance) for _ in range(packets)]
    ours, theirs = pair.passed(sent)
    for (side, packet), our, their in zip(sent, ours, theirs):
        said = "passes" if our else "is dropped"
        assert our == their, f"CONVERT_SEED={SEED}: {said} here only:\n{side}: {packet!r}\n{listing}\n{converted.stdout}"
    # Neither everything nor nothing; otherwise the rules had no effect.
    return converted, sum(ours)


@pytest.mark.parametrize("kind, rules", [("nftables", NFT), ("iptables-save", IPTABLES)], ids=["nftables", "iptables"])
def test_rulesets_let_the_same_pass(pair, kind, rules):
    converted, passed = compare(pair, kind, rules, random.Random(SEED), 600)
    assert converted.returncode == 0, converted.stderr
    assert 100 < passed < 500


MARKS = """
table inet f {
  chain early {
    type filter hook forward priority mangle; policy accept;
    udp dport 1-2 ip dscp set cs1
    ip daddr 198.51.100.0/24 ip dscp set af11
    udp dport 2 ip6 dscp set ef
    tcp dport 4 ip dscp set cs3 accept
  }
  chain forward { type filter hook forward priority filter; policy accept; udp dport 3 drop; ip frag-off & 0x1fff != 0 drop; }
}
"""


def test_marks_are_the_same(pair):
    converted, _ = pair.load("nftables", MARKS)
    assert converted.returncode == 0, converted.stderr
    chance = random.Random(SEED)
    packets = [random_packet(chance) for _ in range(300)]
    # The kernel takes a later fragment's first bytes for ports, so these fit no other rule.
    packets += [("left", IP(src="10.0.1.2", dst="10.0.2.2", frag=9, flags=flags, proto=17) / Raw(b"\0" * 60))
                for flags in ("", "MF")]
    ours, theirs = (pair.classes(wires, packets) for wires in (pair.turnpike, pair.kernel))
    for (side, packet), our, their in zip(packets, ours, theirs):
        assert our == their, f"DSCP {our} here, {their} in the kernel:\n{side}: {packet!r}\n{converted.stdout}"
    assert {None, 8, 10, 46, 24} <= set(ours) and ours[-2:] == [None, None]


def test_random_rulesets_let_the_same_pass(pair):
    chance = random.Random(SEED)
    mixed = 0
    for _ in range(RULESETS):
        rules = random_nft(chance, pair.kernel.inside)
        converted, passed = compare(pair, "nftables", rules, chance, PACKETS)
        assert "NOT CONVERTED" not in converted.stderr, (rules, converted.stderr)
        mixed += 0 < passed < PACKETS
    assert mixed > RULESETS / 3


# --- for the router ---------------------------------------------------------------------------------

INPUT = """
table inet f {
  chain near { tcp dport 5 reject with tcp reset; udp dport 5-6 drop; return; }
  chain input {
    type filter hook input priority filter; policy drop;
    ip saddr 172.20.0.0/16 tcp dport 1-3 accept
    icmp type echo-request ip ttl >= 6 accept
    icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
    ip6 hoplimit != 5 icmpv6 type echo-request accept
    ip saddr 10.0.1.0/24 jump near
    udp dport != { 2, 4 } meta length < 100 accept
    iifname != "tp-left" accept
    tcp flags syn / fin,syn,rst,ack tcp dport 4 accept
  }
}
"""


def request(chance, number):
    """A packet for the router that is answered in any case: an echo, or a port without listener."""
    ttl = chance.choice([5, 6, 64])
    if chance.random() < 0.7:
        packet = IP(src=chance.choice(["10.0.1.2", "172.20.0.5"]), dst=chance.choice(["10.0.1.1", "10.0.2.1"]), ttl=ttl)
        echo = ICMP(id=number)
    else:
        packet = IPv6(src="fd00:1::2", dst=chance.choice(["fd00:1::1", "fd00:2::1"]), hlim=ttl)
        echo = ICMPv6EchoRequest(id=number)
    ports = {"sport": number, "dport": chance.randint(1, 6)}
    payload = Raw(b"x" * chance.choice([8, 90]))
    return packet / chance.choice([TCP(flags=chance.choice(["S", "S", "SU"]), **ports), UDP(**ports) / payload, echo / payload])


def answered(wires, packets):
    """The numbers of the requests that are answered."""
    wires.left.receive(0.05)
    for packet in packets:
        wires.left.send(bytes(LINKS["left"] / packet))
    found = set()
    for frame in map(Ether, wires.left.receive(0.5)):
        for layer in (TCP, ICMPv6EchoReply, ICMPv6DestUnreach, ICMP):
            if layer in frame:
                inner = frame[layer]
                if layer is TCP:
                    found.add(inner.dport)
                elif layer is ICMPv6DestUnreach or (layer is ICMP and inner.type == 3):
                    found.add(inner[UDPerror].sport)
                else:
                    found.add(inner.id)
                break
    return found


def test_input_chains_let_the_same_reach_the_router(pair):
    converted, listing = pair.load("nftables", INPUT)
    assert converted.returncode == 0, converted.stderr
    chance = random.Random(SEED)
    packets = {number: request(chance, number) for number in range(20000, 20200)}
    ours, theirs = (answered(wires, packets.values()) for wires in (pair.turnpike, pair.kernel))
    for number in ours ^ theirs:
        # Lost or late on a loaded machine?
        one, other = (answered(wires, [packets[number]]) for wires in (pair.turnpike, pair.kernel))
        assert one == other, f"{packets[number]!r}\n{one} {other}\n{converted.stdout}"
    assert 50 < len(ours) < 150


STATES = """table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state established,related accept
		iifname "lo" accept
		tcp dport 22 ct state new accept
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state vmap { established : accept, related : accept }
		iifname "tp-left" accept
	}
}
"""


def test_states_of_connections_are_those_of_filters(tmp_path):
    converted = convert("nftables", STATES)
    assert (converted.returncode, converted.stderr) == (0, "")
    assert '{ state = { "established", "related" }, action = "accept" },' in converted.stdout
    result = check(tmp_path, converted.stdout)
    assert result.returncode == 0, result.stderr


# --- what is left out ---------------------------------------------------------------------------------


LEFT = """table inet filter {
	chain forward {
		type filter hook forward priority filter; policy drop;
		meta mark 0x1 accept
		icmp type echo-request limit rate 10/second burst 20 packets accept
		udp dport 53 limit rate over 100/second accept
		counter
	}
	chain output {
		type filter hook output priority filter; policy accept;
		ip daddr 192.0.2.1 drop
	}
}
table ip nat {
	chain post {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "wan" masquerade
	}
}
"""


def test_what_is_left_out_is_named(tmp_path):
    converted = convert("nftables", LEFT)
    assert converted.returncode == 1
    said = converted.stderr.splitlines()
    assert [line.split(": ")[1] for line in said] == ["line 11", "line 17", "line 4", "line 6"]
    assert all("NOT CONVERTED" in line and line.startswith("standard input: ") for line in said)
    assert "meta mark 0x1 accept" in said[2] and "its packets meet later rules" in said[2]
    # In its place, too.
    lines = converted.stdout.splitlines()
    place = lines.index("  -- !! NOT CONVERTED: line 4: meta mark 0x1 accept")
    assert "police = { rate = \"10pps\", burst = \"20\" }" in "".join(lines[place:])
    assert "3 LET PASS" not in converted.stdout and "4 LET PASS, DROP OR CHANGE" in lines[1]
    assert check(tmp_path, converted.stdout).returncode == 0


def test_everything_converted_is_said_by_the_exit_status(tmp_path):
    rules = LEFT.split("\tchain output")[0].replace("\t\tmeta mark 0x1 accept\n", "").replace("over ", "") + "}\n"
    converted = convert("nftables", rules)
    assert (converted.returncode, converted.stderr) == (0, "")
    file = tmp_path / "rules.nft"
    file.write_text(rules)
    named = subprocess.run([binary(), "convert", "nftables", file], capture_output=True, text=True, timeout=60)
    assert named.stdout == converted.stdout.replace("standard input", str(file))


@pytest.mark.parametrize("kind, text, said", [
    ("nftables", "add rule inet filter forward drop\n", "line 1: not what `nft list ruleset` prints"),
    ("nftables", "table ip t {\n chain c {\n", "line 3"),
    ("nftables", '{ "nftables": 1 }', "there is no list"),
    ("nftables", '{ "nftables": [', "EOF"),
    ("iptables-save", "hello\n", "line 1: \"hello\" is no rule"),
    ("iptables-save", "", "no table in it"),
])
def test_what_cannot_be_read_is_an_error_of_its_own(kind, text, said):
    converted = convert(kind, text)
    assert converted.returncode == 2 and said in converted.stderr and converted.stdout == ""


def test_a_file_that_is_not_there_is_named():
    done = subprocess.run([binary(), "convert", "nftables", "/nowhere/x"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "/nowhere/x" in done.stderr and "No such file" in done.stderr

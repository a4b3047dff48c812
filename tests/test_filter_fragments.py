"""Fragments and filters without connections: later fragments follow the first, and no fragment gets around a rule
(RFC 1858, RFC 3128, RFC 6946, RFC 7112)."""

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, PadN
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.packets import forwarded
from lib.router import Change

FILTERS = """
turnpike.filter "in" {
  { name = "web", proto = { "tcp", "udp" }, to_port = 80 },
  { name = "marked", proto = "udp", to_port = 81, mark = { dscp = "ef" } },
  { name = "syn", proto = "tcp", to_port = 22, flags = "syn,!ack", action = "drop" },
  { name = "ssh", proto = "tcp", to_port = 22 },
  { name = "ping", icmp = "echo-request" },
  { name = "ping6", icmp6 = "echo-request" },
  { name = "refused", proto = "udp", to_port = 9, action = "drop" },
  default = "drop",
}
"""
CONFIG = PORTS.replace('"tp-left",', '"tp-left", filter = "in",') + STATIC_NEIGHBOURS + FILTERS
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, ports=CONFIG, calm=True)


def sent(wires, *packets):
    """For each packet the rule that matched, with an exclamation mark if the packet did not arrive."""
    found = []
    for packet in packets:
        wires.drain()
        (before,) = [row for row in wires.router.show("filters") if row["name"] == "in"]
        frame, change = bytes(LINK / packet), Change(wires.router)
        wires.left.send(frame)
        what = change(received=1)
        (after,) = [row for row in wires.router.show("filters") if row["name"] == "in"]
        matched = [new["name"] for old, new in zip(before["rules"], after["rules"]) if new["packets"] != old["packets"]]
        if after["default_packets"] != before["default_packets"]:
            matched.append("default")
        (name,) = matched or ["hidden"]
        if what.get("sent"):
            (arrived,) = wires.right.expect(1)
            if name != "marked":
                assert arrived == forwarded(frame, RIGHT_MAC, HOST_B_MAC)
            found.append(name)
        else:
            assert what["dropped"] == {"filtered": 1}
            found.append(name + "!")
    return found


def four(payload, offset, more, id, proto=17, src=A4):
    return IP(src=src, dst=B4, proto=proto, id=id, frag=offset // 8, flags="MF" if more else 0) / Raw(payload)


def six(payload, offset, more, id, next=17, src=A6):
    return IPv6(src=src, dst=B6) / IPv6ExtHdrFragment(nh=next, offset=offset // 8, m=int(more), id=id) / Raw(payload)


def udp(port, length=56):
    return bytes(UDP(sport=1000, dport=port, len=8 + length + 64, chksum=1) / Raw(b"x" * length))


def tcp(port, flags):
    return bytes(TCP(sport=1000, dport=port, flags=flags, chksum=1) / Raw(b"x" * 44))


REST = b"y" * 40


@pytest.mark.parametrize("of", [four, six], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("port, first, rest", [(80, "web", "web"), (9, "refused!", "refused!"), (7, "default!", "default!")])
def test_later_fragments_follow_the_first(wires, of, port, first, rest):
    number = 100 + port
    assert sent(wires, of(udp(port), 0, True, number), of(REST, 64, True, number), of(REST, 104, False, number)) \
        == [first, rest, rest]


@pytest.mark.parametrize("of", [four, six], ids=["IPv4", "IPv6"])
def test_a_rule_s_mark_is_that_of_all_fragments(wires, of):
    wires.drain()
    for frame in (of(udp(81), 0, True, 7), of(REST, 64, False, 7)):
        assert sent(wires, frame) == ["marked"]
        wires.left.send(bytes(LINK / frame))
        whole = Ether(wires.right.expect(1)[0])
        assert (whole[IPv6].tc if IPv6 in whole else whole[IP].tos) == 46 << 2


@pytest.mark.parametrize("of", [four, six], ids=["IPv4", "IPv6"])
def test_fragments_of_other_packets_do_not_follow(wires, of):
    """Another identification or source; IPv4: another protocol; and one that overtakes the first."""
    other = "10.0.1.3" if of is four else "fd00:1::3"
    early = of(REST, 64, False, 9)
    assert sent(wires, early, of(udp(80), 0, True, 9), early) == ["default!", "web", "web"]
    assert sent(wires, of(REST, 64, False, 10), of(REST, 64, False, 9, src=other)) == ["default!"] * 2
    if of is four:
        assert sent(wires, of(REST, 64, False, 9, proto=6)) == ["default!"]
    # The next packet of the same identification.
    assert sent(wires, of(udp(9), 0, True, 9), early) == ["refused!", "refused!"]


def test_flags_and_types_of_the_first_are_matched(wires):
    assert sent(wires, four(tcp(22, "S"), 0, True, 20, proto=6), four(REST, 64, False, 20, proto=6)) == ["syn!", "syn!"]
    assert sent(wires, four(tcp(22, "A"), 0, True, 21, proto=6), four(REST, 64, False, 21, proto=6)) == ["ssh", "ssh"]
    echo = bytes(ICMP(type=8, chksum=1) / Raw(b"x" * 56))
    assert sent(wires, four(echo, 0, True, 22, proto=1), four(REST, 64, False, 22, proto=1)) == ["ping", "ping"]
    echo = bytes(ICMPv6EchoRequest(cksum=1) / Raw(b"x" * 56))
    assert sent(wires, six(echo, 0, True, 23, next=58), six(REST, 64, False, 23, next=58)) == ["ping6", "ping6"]
    # Behind a destination options header, of which later fragments show the number only.
    options = bytes(IPv6ExtHdrDestOpt(nh=17, options=PadN(optdata=b"\0" * 4))) + udp(80, 48)
    assert sent(wires, six(options, 0, True, 24, next=60), six(REST, 64, False, 24, next=60)) == ["web", "web"]


def test_tiny_fragments_are_dropped_and_nothing_follows_them(wires):
    """RFC 1858 3: the ports are in the first fragment, the flags in the second. RFC 7112 5: a chain that is cut."""
    assert sent(wires, four(tcp(80, "A")[:8], 0, True, 30, proto=6), four(tcp(80, "A")[8:], 8, False, 30, proto=6)) \
        == ["hidden!", "hidden!"]
    assert sent(wires, four(tcp(80, "A")[:16], 0, True, 31, proto=6), four(REST, 16, False, 31, proto=6)) \
        == ["hidden!", "default!"]
    cut = bytes(IPv6ExtHdrDestOpt(nh=17, options=PadN(optdata=b"\0" * 4)))
    assert sent(wires, six(cut, 0, True, 32, next=60), six(udp(80), 8, False, 32, next=60)) == ["hidden!", "default!"]


def test_overlapping_fragments_do_not_change_the_flags(wires):
    """RFC 3128: a fragment at offset 8 would overwrite the flags of the first; RFC 1858 4."""
    assert sent(wires, four(tcp(22, "A"), 0, True, 40, proto=6), four(tcp(22, "S")[8:], 8, True, 40, proto=6)) \
        == ["ssh", "hidden!"]
    assert sent(wires, six(tcp(22, "A"), 0, True, 41, next=6), six(tcp(22, "S")[8:], 8, True, 41, next=6)) \
        == ["ssh", "hidden!"]
    # A second first fragment with other ports is matched by its own, and later ones follow the last.
    assert sent(wires, four(udp(80), 0, True, 42), four(udp(9), 0, True, 42), four(REST, 64, False, 42)) \
        == ["web", "refused!", "refused!"]


def test_atomic_fragments_are_whole_packets(wires):
    """RFC 6946 4: they are matched by their own headers, and have nothing to do with fragments of the same identity."""
    atomic = [six(udp(port), 0, False, 50) for port in (80, 9, 7)]
    assert sent(wires, *atomic) == ["web", "refused!", "default!"]
    rest = six(REST, 64, False, 50)
    assert sent(wires, atomic[0], rest) == ["web", "default!"], "no fragment follows an atomic one"
    assert sent(wires, six(udp(80), 0, True, 50), atomic[1], rest) == ["web", "refused!", "web"]
    # Shorter than its header: whole, so that no rule with ports matches, and not a tiny fragment.
    assert sent(wires, six(udp(80)[:4], 0, False, 51)) == ["default!"]


# Rules for later fragments in front of rules with ports and behind them.
CHOSEN = """
turnpike.filter "in" {
  { name = "no-pieces", proto = "tcp", to_port = 22, fragment = true, action = "drop" },
  { name = "ssh", proto = "tcp", to_port = 22 },
  { name = "opening", proto = "udp", to_port = 82, fragment = "first" },
  { name = "alone", proto = "udp", to = { "10.0.2.9", "fd00:2::9" }, fragment = "later", action = "drop" },
  { name = "web", proto = "udp", to_port = 80 },
  { name = "rest", proto = "udp", fragment = "later" },
  default = "drop",
}
"""


@pytest.mark.parametrize("of", [four, six], ids=["IPv4", "IPv6"])
def test_rules_choose_what_becomes_of_later_fragments(wires, of):
    text = CONFIG.replace(FILTERS, CHOSEN) + """
turnpike.neighbour "10.0.2.9" { port = "right", mac = "%s" }
turnpike.neighbour "fd00:2::9" { port = "right", mac = "%s" }
""" % (HOST_B_MAC, HOST_B_MAC)
    apply(wires.router, text)
    early = of(REST, 64, False, 70)
    # Without its first fragment, and with it.
    assert sent(wires, early, of(udp(80), 0, True, 70), early) == ["rest", "web", "web"]
    protocol = {"proto" if of is four else "next": 6}
    assert sent(wires, of(tcp(22, "A"), 0, True, 71, **protocol), of(REST, 64, False, 71, **protocol)) == ["no-pieces!"] * 2
    assert sent(wires, of(udp(82), 0, True, 72), of(REST, 64, False, 72)) == ["opening", "rest"]
    # In front of a rule with ports it takes also those that would follow.
    first, later = of(udp(80), 0, True, 73), of(REST, 64, False, 73)
    first.getlayer(0).dst = later.getlayer(0).dst = "10.0.2.9" if of is four else "fd00:2::9"
    assert sent(wires, first, later) == ["web", "alone!"]
    # Whole packets are neither.
    whole = (IP(src=A4, dst=B4) if of is four else IPv6(src=A6, dst=B6)) / UDP(dport=82) / Raw(REST)
    assert sent(wires, whole) == ["default!"]
    text = wires.router.command("show", "filters", "in").stdout
    assert "proto 17 to_port 82 first fragment" in text and "proto 17 later fragment" in text, text
    apply(wires.router, CONFIG)


def test_fragments_are_followed_over_a_change_of_rules(wires):
    assert sent(wires, four(udp(80), 0, True, 60)) == ["web"]
    apply(wires.router, CONFIG.replace('{ name = "marked"', '{ proto = "udp", to_port = 5 },\n  { name = "marked"'))
    assert sent(wires, four(REST, 64, False, 60)) == ["web"]
    apply(wires.router, CONFIG)

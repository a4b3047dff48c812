"""Packet filters: the packets that pass on an interface, and the counts of each rule."""

import subprocess
import time

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, PadN
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import forwarded
from lib.router import Change, binary

FILTERS = """
local bogons = { "198.18.0.0/15", "2001:db8:dead::/48" }
turnpike.filter "edge-in" {
  { name = "bogon", from = bogons, action = "drop" },
  { name = "ssh", proto = "tcp", to_port = { 22, "179" }, from = "10.0.1.0/24", action = "accept" },
  { name = "no-syn", proto = "tcp", flags = "syn,!ack", action = "reject", log = true },
  { name = "dns", proto = "udp", to_port = 53, police = { rate = "10pps", burst = "5" } },
  { name = "each", proto = "udp", to_port = 9, police = { rate = "1pps per source", burst = "3" } },
  { name = "ping", icmp = "echo-request", action = "drop" },
  { name = "ping6", icmp6 = "echo-request", action = "drop" },
  { name = "own", to = { "10.0.1.1", "fd00:1::1" }, action = "drop" },
  { name = "gold", proto = "udp", to_port = 5060, mark = { dscp = "af41" } },
  { name = "web", proto = "udp", to_port = "8000-8100", action = "drop" },
  { name = "seen", proto = "udp", to_port = 4444, mirror = "left", mark = { dscp = "cs5" } },
  { name = "kept", proto = "udp", to_port = 4445, mirror = "right", action = "drop" },
  { name = "stranger", from_mac = { "02:00:00:00:99:01", "02:00:00:00:99:02" }, action = "drop" },
  { name = "group", to_mac = "ff:ff:ff:ff:ff:ff", proto = "udp", to_port = 1900, action = "drop" },
  { name = "single", proto = "udp", to_port = 6000,
    police = { rate = "1pps", burst = "4", excess = "6", yellow = { dscp = "af12" } } },
  { name = "two", proto = "udp", to_port = 6001, mark = { dscp = "af11" },
    police = { rate = "1pps", burst = "4", peak = "2pps", peak_burst = "10", red = { dscp = "af13" } } },
  { name = "type-0", routing = 0, action = "drop" },
  { name = "long", extension = "too-many", action = "drop" },
  { name = "atomic", extension = "fragment", proto = "udp", to_port = 8200, action = "drop" },
  { name = "lldp", ethertype = "lldp", from_mac = "02:00:00:00:99:01", action = "drop" },
  { name = "mpls", ethertype = 0x8847, police = { rate = "1pps", burst = "2" } },
  { name = "arp", ethertype = "arp", from_mac = "02:00:00:00:99:02", action = "drop" },
  default = "accept",
}
turnpike.filter "edge-out" {
  { name = "quiet", proto = "udp", from_port = 7, action = "drop" },
  { name = "marked", dscp = "ef", action = "reject" },
  { name = "experiment", routing = { 253, 254 }, action = "drop" },
  default = "accept",
}
"""
A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


def check(file):
    return subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)


def with_filters(inward="edge-in", outward="edge-out"):
    ports = PORTS.replace('device = "tp-left",', f'device = "tp-left", filter = {{ inward = "{inward}" }},')
    return ports.replace('device = "tp-right",', f'device = "tp-right", filter = {{ outward = "{outward}" }},')


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, FILTERS, ports=with_filters() + STATIC_NEIGHBOURS, calm=True)


def hits(router, name):
    """Packets by the names of the filter's rules, and of its default."""
    (shown,) = [row for row in router.show("filters") if row["name"] == name]
    return {rule["name"]: rule["packets"] for rule in shown["rules"]} | {"default": shown["default_packets"]}


def fitted(before, after):
    return {name: count - before[name] for name, count in after.items() if count != before[name]}


def passes(wires, packet, rule="default"):
    """Checks that the packet passes, and that the rule of the inward filter matched it."""
    wires.drain()
    before = hits(wires.router, "edge-in")
    frame = bytes(LINK / packet)
    wires.left.send(frame)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    assert fitted(before, hits(wires.router, "edge-in")) == {rule: 1}


def dropped(wires, packet, rule, reason="filtered", filter="edge-in"):
    wires.drain()
    before, change = hits(wires.router, filter), Change(wires.router)
    wires.left.send(bytes(LINK / packet))
    assert change(received=1) == {"received": 1, "dropped": {reason: 1}}
    assert fitted(before, hits(wires.router, filter)) == ({rule: 1} if rule else {})
    assert wires.silent()


@pytest.mark.parametrize("packet, rule", [
    pytest.param(IP(src=A4, dst=B4) / TCP(dport=22), "ssh", id="in a list of ports"),
    pytest.param(IP(src=A4, dst=B4) / TCP(dport=179, flags="S"), "ssh", id="the first rule decides"),
    pytest.param(IP(src=A4, dst=B4) / TCP(dport=80, flags="SA"), "default", id="a flag that must be off"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=7999), "default", id="below a range"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=8101), "default", id="above a range"),
    pytest.param(IP(src=A4, dst=B4) / ICMP(type=0), "default", id="another ICMP type"),
    pytest.param(IPv6(src=A6, dst=B6) / TCP(dport=443, flags="A"), "default", id="IPv6"),
])
def test_packets_pass(wires, packet, rule):
    passes(wires, packet / Raw(b"payload of some bytes"), rule)


@pytest.mark.provokes("filtered")
@pytest.mark.parametrize("packet, rule", [
    pytest.param(IP(src="198.19.255.1", dst=B4) / UDP(), "bogon", id="in a set of prefixes"),
    pytest.param(IPv6(src="2001:db8:dead::1", dst=B6) / UDP(), "bogon", id="in the same set, IPv6"),
    pytest.param(IP(src=A4, dst=B4) / ICMP(type=8), "ping", id="ICMP type"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=8000), "web", id="first of a range"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=8100), "web", id="last of a range"),
    pytest.param(IP(src=A4, dst="10.0.1.1") / UDP(dport=10), "own", id="for the router itself"),
    pytest.param(IPv6(src=A6, dst=B6) / IPv6ExtHdrDestOpt(options=[PadN(optdata=b"1234")]) / UDP(dport=8050), "web",
                 id="behind an extension header"),
])
def test_packets_are_dropped(wires, packet, rule):
    dropped(wires, packet / Raw(b"payload of some bytes"), rule)


@pytest.mark.provokes("filtered")
@pytest.mark.parametrize("link, port, rule", [
    pytest.param({"src": "02:00:00:00:99:02"}, 7777, "stranger", id="from"),
    pytest.param({"dst": "ff:ff:ff:ff:ff:ff"}, 1900, "group", id="to"),
])
def test_frames_are_known_by_their_macs(wires, link, port, rule):
    wires.drain()
    for packet in (IP(src=A4, dst=B4) / UDP(dport=port), IPv6(src=A6, dst=B6) / UDP(dport=port)):
        before, change = hits(wires.router, "edge-in"), Change(wires.router)
        wires.left.send(bytes(Ether(**({"src": HOST_A_MAC, "dst": LEFT_MAC} | link)) / packet / Raw(b"payload")))
        assert change(received=1) == {"received": 1, "dropped": {"filtered": 1}}
        assert fitted(before, hits(wires.router, "edge-in")) == {rule: 1}
    passes(wires, IP(src=A4, dst=B4) / UDP(dport=port) / Raw(b"payload"))


def routing(kind):
    return IPv6ExtHdrRouting(type=kind, segleft=1, addresses=["fd00:1::9"])


def padding(headers):
    chain = IPv6ExtHdrDestOpt(options=[PadN(optdata=b"1234")])
    for _ in range(headers - 1):
        chain /= IPv6ExtHdrDestOpt(options=[PadN(optdata=b"1234")])
    return chain


@pytest.mark.provokes("filtered")
@pytest.mark.parametrize("chain, rule", [
    pytest.param(routing(0), "type-0", id="alone"),
    pytest.param(routing(4) / routing(0), "type-0", id="behind another type"),
    pytest.param(padding(7) / routing(0), "type-0", id="the eighth header"),
    pytest.param(padding(8) / routing(0), "type-0", id="the ninth header"),
    pytest.param(padding(9) / routing(0), "long", id="beyond what is read"),
    pytest.param(IPv6ExtHdrFragment(offset=0, m=0, id=7), "atomic", id="an atomic fragment"),
])
def test_extension_headers_are_dropped_by_kind(wires, chain, rule):
    # RFC 5095 4.2: routing headers of type 0 alone.
    dropped(wires, IPv6(src=A6, dst=B6) / chain / UDP(dport=8200) / Raw(b"payload"), rule)


@pytest.mark.parametrize("chain", [
    pytest.param(routing(2), id="type 2"),
    pytest.param(routing(4), id="type 4"),
    pytest.param(padding(8), id="eight headers"),
])
def test_other_extension_headers_pass(wires, chain):
    # RFC 5095 4.2: a filter does not drop other types because it drops type 0.
    passes(wires, IPv6(src=A6, dst=B6) / chain / UDP(dport=8200) / Raw(b"payload"))


@pytest.mark.provokes("filtered")
@pytest.mark.parametrize("front", [
    pytest.param(IPv6(src=A6, dst=B6), id="by the fast path"),
    pytest.param(IPv6(src=A6, dst=B6) / IPv6ExtHdrHopByHop(options=[PadN(optdata=b"1234")]), id="by the slow path"),
])
def test_extension_headers_are_known_outward(wires, front):
    dropped(wires, front / routing(254) / UDP(dport=1) / Raw(b"payload"), "experiment", filter="edge-out")


def frame(ethertype, source):
    return bytes(Ether(src=source, dst=LEFT_MAC, type=ethertype) / Raw(bytes(50)))


@pytest.mark.provokes("filtered")
@pytest.mark.parametrize("ethertype, rule", [(0x88CC, "lldp"), (0x0806, "arp")])
def test_frames_are_known_by_their_ethertypes(wires, ethertype, rule):
    wires.drain()
    of_rule = "02:00:00:00:99:01" if rule == "lldp" else "02:00:00:00:99:02"
    before, change = hits(wires.router, "edge-in"), Change(wires.router)
    wires.left.send(frame(ethertype, of_rule), frame(ethertype, HOST_A_MAC))
    otherwise = {0x88CC: "unknown-ethertype", 0x0806: "arp-malformed"}[ethertype]
    assert change(received=2) == {"received": 2, "dropped": {"filtered": 1, otherwise: 1}}
    assert fitted(before, hits(wires.router, "edge-in")) == {rule: 1}


@pytest.mark.provokes("policed")
def test_frames_of_an_ethertype_have_a_rate(wires):
    wires.drain()
    before, change, start = hits(wires.router, "edge-in"), Change(wires.router), time.monotonic()
    wires.left.send(*[frame(0x8847, HOST_A_MAC)] * 20)
    dropped = change(received=20)["dropped"]
    assert sum(dropped.values()) == 20 and set(dropped) == {"policed", "unknown-ethertype"}
    assert 2 <= dropped["unknown-ethertype"] <= 3 + time.monotonic() - start
    assert fitted(before, hits(wires.router, "edge-in")) == {"mpls": 20}


def test_a_refused_connection_is_reset(wires):
    wires.drain()
    wires.left.send(bytes(LINK / IP(src=A4, dst=B4) / TCP(sport=4000, dport=80, flags="S", seq=77)))
    (answer,) = [Ether(frame) for frame in wires.left.receive(0.3)]
    assert (answer[IP].src, answer[IP].dst) == (B4, A4)
    assert answer[TCP].flags == "RA" and answer[TCP].ack == 78
    assert wires.right.receive(0.02) == []


def test_some_packets_of_a_rule_are_logged(wires):
    """A flood results in ten log lines per second, and the time of the last packet is reported."""
    wires.drain()
    before, lines = hits(wires.router, "edge-in"), wires.router.log().count('rule "no-syn"')
    time.sleep(1.1)
    start = time.monotonic()
    for port in range(200):
        wires.left.send(bytes(LINK / IP(src=A4, dst=B4, ttl=9) / TCP(sport=4000 + port, dport=81, flags="S")))
    assert wait_for(lambda: fitted(before, hits(wires.router, "edge-in")).get("no-syn") == 200, 5)
    (shown,) = [rule for rule in wires.router.show("filters")[0]["rules"] if rule["name"] == "no-syn"]
    assert shown["last_s"] <= time.monotonic() - start
    line = 'filter "edge-in": rule "no-syn": reject: tcp 10.0.1.2:4000 > 10.0.2.2:81 in left flags syn ttl 9 length 40'
    assert wait_for(lambda: line in wires.router.log(), 5)
    logged = wires.router.log().count('rule "no-syn"') - lines
    assert 10 <= logged <= 11 + 10 * (time.monotonic() - start)


def test_a_command_logs_a_rule_for_a_time(wires):
    """Ten packets a second of the watched rule, of no other, until the time is over or a command ends it."""
    def fits(line, *words):
        wires.router.command("filter", *words)
        before = wires.router.log().count(line)
        for port in range(40):
            wires.left.send(bytes(LINK / IP(src=A4, dst=B4, ttl=9) / UDP(sport=4000 + port, dport=8000)))
        wires.left.send(bytes(LINK / IP(src=A4, dst=B4) / UDP(sport=9, dport=4445)))
        return lambda: wires.router.log().count(line) - before

    def left(name):
        (shown,) = [row for row in wires.router.show("filters") if row["name"] == "edge-in"]
        return {rule["name"]: rule.get("logged_s") for rule in shown["rules"]}[name]

    wires.drain()
    line = 'filter "edge-in": rule "web": drop: udp 10.0.1.2:'
    time.sleep(1.1)
    start = time.monotonic()
    logged = fits(line, "log", "edge-in", "web")
    assert wait_for(lambda: logged() >= 10, 5)
    assert 590 <= left("web") <= 600 and left("kept") is None
    assert 'rule "kept"' not in wires.router.log()
    wires.router.command("filter", "unlog", "edge-in", "web")
    assert logged() <= 11 + 10 * (time.monotonic() - start) and left("web") is None
    before = hits(wires.router, "edge-in")
    logged = fits(line, "unlog", "edge-in", "web")
    assert wait_for(lambda: fitted(before, hits(wires.router, "edge-in")).get("web") == 40, 5)
    # By number, and the default; both end by themselves.
    wires.router.command("filter", "log", "edge-in", "default", "--for", "2s")
    wires.router.command("filter", "log", "edge-in", "10", "--for", "2s")
    wires.left.send(bytes(LINK / IP(src=A4, dst=B4) / UDP(sport=9, dport=7777)))
    assert wait_for(lambda: 'filter "edge-in": default: accept: udp 10.0.1.2:9 > 10.0.2.2:7777' in wires.router.log(), 5)
    assert logged() == 0 and left("web") <= 2
    assert wait_for(lambda: left("web") is None, 10)
    wires.left.send(bytes(LINK / IP(src=A4, dst=B4) / UDP(sport=4000, dport=8000)))
    assert wait_for(lambda: fitted(before, hits(wires.router, "edge-in")).get("web") == 41, 5)
    assert logged() == 0
    for words, said in [(("edge-on", "web"), 'filter "edge-on": unknown'), (("edge-in", "wep"), 'rule "wep" unknown'),
                        (("edge-in", "99"), "a number from 1 to"), (("edge-in", "mpls"), "ethertype are not logged")]:
        refused = wires.router.command("filter", "log", *words, check=False)
        assert refused.returncode == 1 and said in refused.stderr, refused


@pytest.mark.provokes("policed")
def test_a_rate_is_kept(wires):
    """Of 60 packets at once the burst passes, and few more: the bucket gets a token each 100 ms."""
    time.sleep(0.6)
    wires.drain()
    before, start = hits(wires.router, "edge-in"), time.monotonic()
    query = bytes(LINK / IP(src=A4, dst=B4) / UDP(dport=53) / Raw(b"query of some bytes"))
    for _ in range(60):
        wires.left.send(query)
    assert wait_for(lambda: fitted(before, hits(wires.router, "edge-in")).get("dns") == 60, 5)
    took = time.monotonic() - start
    passed = len(wires.right.receive(0.3))
    assert 5 <= passed <= 5 + 10 * took + 1, took


@pytest.mark.provokes("policed")
@pytest.mark.parametrize("packets", [
    pytest.param([IP(src=f"10.0.1.{host}", dst=B4) for host in (30, 31, 32)], id="IPv4 hosts"),
    pytest.param([IPv6(src=f"2001:db8:{net}::1", dst=B6) for net in (1, 2, 3)], id="IPv6 networks"),
])
def test_each_source_has_the_rate(wires, packets):
    wires.drain()
    before, start = hits(wires.router, "edge-in"), time.monotonic()
    for _ in range(10):
        for packet in packets:
            wires.left.send(bytes(LINK / packet / UDP(dport=9) / Raw(b"payload of some bytes")))
    assert wait_for(lambda: fitted(before, hits(wires.router, "edge-in")).get("each") == 30, 5)
    took = time.monotonic() - start
    passed = [Ether(frame).payload.src for frame in wires.right.receive(0.3)]
    assert len(passed) == sum(passed.count(packet.src) for packet in packets)
    assert all(3 <= passed.count(packet.src) <= 3 + took + 1 for packet in packets), (passed, took)


def colours(router, name):
    (shown,) = [rule for rule in router.show("filters")[0]["rules"] if rule["name"] == name]
    return shown["colours"]


@pytest.mark.provokes("policed")
@pytest.mark.parametrize("name, port, most, marks", [
    # Green and yellow packets; the DSCP that each colour leaves with, if it does.
    pytest.param("single", 6000, (4, 6), {"green": 0, "yellow": 12, "red": None}, id="RFC 2697"),
    pytest.param("two", 6001, (4, 6), {"green": 10, "yellow": 10, "red": 14}, id="RFC 2698"),
])
def test_packets_have_colours(wires, name, port, most, marks):
    """Of 30 packets at once the first burst is green, the second yellow, the rest red; each second brings one or two
    more."""
    before, start = colours(wires.router, name), time.monotonic()
    wires.drain()
    for _ in range(30):
        wires.left.send(bytes(LINK / IP(src=A4, dst=B4) / UDP(dport=port) / Raw(b"payload of some bytes")))
    counted = lambda: {of: count - before[of] for of, count in colours(wires.router, name).items()}
    assert wait_for(lambda: sum(counted().values()) == 30, 5)
    took, found = time.monotonic() - start, counted()
    assert most[0] <= found["green"] <= most[0] + took + 1, (found, took)
    assert most[1] <= found["yellow"] <= most[1] + 2 * took + 2, (found, took)
    wanted = {}
    for colour, mark in marks.items():
        if mark is not None:
            wanted[mark] = wanted.get(mark, 0) + found[colour]
    frames = wires.right.expect(sum(wanted.values()))
    dscps = [Ether(frame)[IP].tos >> 2 for frame in frames]
    assert {dscp: dscps.count(dscp) for dscp in set(dscps)} == wanted
    text = wires.router.command("show", "filters", "edge-in").stdout
    assert f"green {colours(wires.router, name)['green']}" in text


@pytest.mark.parametrize("packet", [
    pytest.param(IP(src=A4, dst=B4, tos=1) / UDP(dport=5060) / Raw(b"x" * 30), id="IPv4"),
    pytest.param(IPv6(src=A6, dst=B6, tc=1, fl=0x12345) / UDP(dport=5060) / Raw(b"x" * 30), id="IPv6"),
])
def test_a_mark_is_written(wires, packet):
    wires.drain()
    wires.left.send(bytes(LINK / packet))
    (frame,) = wires.right.expect(1)
    marked = packet.copy()
    # ECN is unchanged.
    if IP in packet:
        marked.tos = 34 << 2 | 1
    else:
        marked.tc = 34 << 2 | 1
    assert frame == forwarded(bytes(LINK / marked), RIGHT_MAC, HOST_B_MAC)


def test_copies_leave_by_another_port(wires):
    """Copies of packets as received, regardless of their treatment."""
    wires.drain()
    before, change = hits(wires.router, "edge-in"), Change(wires.router)
    frame = bytes(LINK / IP(src=A4, dst=B4) / UDP(dport=4444) / Raw(b"x" * 1000))
    wires.left.send(frame)
    (sent,) = [Ether(arrived) for arrived in wires.right.expect(1)]
    assert sent[IP].tos == 40 << 2 and sent[IP].ttl == 63
    assert wires.left.expect(1) == [frame]
    assert change(received=1) == {"received": 1, "replicated": 1, "sent": 2}
    dropped = bytes(LINK / IPv6(src=A6, dst=B6) / UDP(dport=4445) / Raw(b"x" * 20))
    wires.left.send(dropped)
    assert wires.right.expect(1) == [dropped]
    assert fitted(before, hits(wires.router, "edge-in")) == {"seen": 1, "kept": 1}


@pytest.mark.parametrize("packet, said", [
    ("tcp 10.0.1.9:4000 > 10.0.2.2:22 in left flags syn", 'accept: rule 2 "ssh"'),
    ("tcp 10.0.9.9:4000 > 10.0.2.2:22 in left flags syn", 'reject: rule 3 "no-syn"'),
    ("udp 10.0.1.9 > 10.0.2.2:53", 'accept, up to 10 pps, burst 5: rule 4 "dns"'),
    ("icmp6 2001:db8::1 > 2001:db8::2 icmp echo-request", 'drop: rule 7 "ping6"'),
    ("udp [2001:db8:dead::1]:53 > 2001:db8::2", 'drop: rule 1 "bogon"'),
    ("tcp 10.0.9.9 > 10.0.2.2:80", "accept: no rule fits"),
])
def test_which_rule_a_packet_would_fit(wires, packet, said):
    shown = wires.router.command("show", "filters", "edge-in", "--packet", packet).stdout
    assert shown.startswith(said), shown


def test_what_cannot_be_asked_is_named(wires):
    for packet, said in [("tcp 10.0.1.9", "> missing"), ("udp 10.0.1.9 > 10.0.2.2 in nowhere", "left, right")]:
        refused = wires.router.command("show", "filters", "edge-in", "--packet", packet, check=False)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr


def test_what_leaves_is_filtered_too(wires):
    dropped(wires, IP(src=A4, dst=B4) / UDP(sport=7, dport=9) / Raw(b"x" * 30), "quiet", filter="edge-out")
    wires.drain()
    wires.left.send(bytes(LINK / IP(src=A4, dst=B4, tos=46 << 2) / UDP(sport=9, dport=9) / Raw(b"x" * 30)))
    (answer,) = [Ether(frame) for frame in wires.left.receive(0.3)]
    # RFC 1812 5.2.7.1: administratively prohibited.
    assert (answer[ICMP].type, answer[ICMP].code) == (3, 13)
    # In the other direction there is no filter.
    wires.drain()
    back = bytes(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / IP(src=B4, dst=A4) / UDP(sport=7, dport=8050) / Raw(b"x" * 30))
    wires.right.send(back)
    assert wires.left.expect(1) == [forwarded(back, LEFT_MAC, HOST_A_MAC)]


def test_fragments_do_not_get_around_a_rule(wires):
    """RFC 1858, RFC 3128, RFC 7112: short ones are dropped, later ones follow the first, or match no rule with ports."""
    payload = bytes(UDP(sport=9, dport=8050) / Raw(b"x" * 56))
    tiny = IP(src=A4, dst=B4, flags="MF", proto=6) / Raw(b"\0\x16\0\x50\0\0\0\0")
    dropped(wires, tiny, None)
    # A segment whose second fragment would overwrite the flags of the first.
    dropped(wires, IP(src=A4, dst=B4, frag=1, proto=6) / Raw(b"x" * 40), None)
    dropped(wires, IP(src=A4, dst=B4, flags="MF", proto=17) / Raw(payload), "web")
    dropped(wires, IP(src=A4, dst=B4, frag=8, proto=17) / Raw(b"x" * 40), "web")
    passes(wires, IP(src=A4, dst=B4, frag=8, proto=17, id=99) / Raw(b"x" * 40))
    cut = IPv6(src=A6, dst=B6) / IPv6ExtHdrFragment(nh=60, m=1) / Raw(b"\x11\x05" + b"\0" * 6)
    dropped(wires, cut, None)


AS_STEPS = '''
turnpike.filter "kinds" {
  { name = "voice", proto = "udp", to_port = 5060, category = "voice" },
  { name = "both", proto = "udp", to_port = { 5061, 5062 }, category = "voice", action = "continue" },
  { name = "bulk", proto = "udp", to_port = { 5062, 5063 }, category = "bulk" },
  { name = "no", proto = "udp", to_port = 5064, action = "drop" },
}
for _, family in ipairs { "ip4", "ip6" } do
  turnpike.graph:insert_after(family .. "-validate.ok", {
    family .. "-filter", as = family .. "-kinds", filter = "kinds", categories = { "bulk", "voice" } })
  turnpike.graph:path(family .. "-kinds.voice", "drop")
  turnpike.graph:path(family .. "-kinds.bulk", family .. "-lookup")
end
'''


@pytest.mark.provokes("filtered", "by-step")
def test_a_filter_is_a_step_with_categories_as_outputs(lab):
    wires = Wires(lab, AS_STEPS, ports=PORTS + STATIC_NEIGHBOURS, calm=True)

    def sent(packet):
        wires.drain()
        before, change = hits(wires.router, "kinds"), Change(wires.router)
        frame = bytes(LINK / packet / Raw(b"x" * 30))
        wires.left.send(frame)
        what = change(received=1)
        if what.get("sent"):
            assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
        return what.get("dropped", {}), fitted(before, hits(wires.router, "kinds"))

    for ends in (IP(src=A4, dst=B4), IPv6(src=A6, dst=B6)):
        assert sent(ends / UDP(dport=5059)) == ({}, {"default": 1})
        assert sent(ends / UDP(dport=5060)) == ({"by-step": 1}, {"voice": 1})
        assert sent(ends / UDP(dport=5061)) == ({"by-step": 1}, {"both": 1, "default": 1})
        assert sent(ends / UDP(dport=5062)) == ({}, {"both": 1, "bulk": 1}), "the first category with an output"
        assert sent(ends / UDP(dport=5063)) == ({}, {"bulk": 1})
        assert sent(ends / UDP(dport=5064)) == ({"filtered": 1}, {"no": 1})
    assert {"ip4-kinds", "ip6-kinds"} <= {step["name"] for step in wires.router.show("steps")["steps"]}
    # Live, like all changes of a graph.
    changed = wires.router.config.read_text().replace("to_port = 5060", "to_port = 6060")
    wires.router.config.write_text(changed)
    wires.router.command("apply", wires.router.config)
    assert sent(IP(src=A4, dst=B4) / UDP(dport=5060)) == ({}, {"default": 1})
    assert sent(IP(src=A4, dst=B4) / UDP(dport=6060)) == ({"by-step": 1}, {"voice": 1})
    wires.router.counters()


@pytest.mark.parametrize("arguments, said", [
    ('filter = "kindes"', 'filter: "kindes" unknown; did you mean "kinds"?'),
    ('filter = "kinds", categories = { "voce" }', 'categories: "voce" unknown'),
    ('filter = "kinds", categories = { "filtered" }', 'an output "filtered" is there already'),
    ('categories = { "voice" }', "filter: missing"),
    ('filter = "stateful"', "has rules with state, which only filters of ports have"),
])
def test_a_step_names_a_filter_and_categories_that_are_there(tmp_path, arguments, said):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + f"""
turnpike.filter "kinds" {{ {{ proto = "udp", category = "voice" }} }}
turnpike.filter "stateful" {{ {{ state = "new" }} }}
turnpike.graph:insert_after("ip4-validate.ok", {{ "ip4-filter", as = "sort", {arguments} }})
turnpike.graph:path("sort.voice", "ip4-lookup")
""")
    result = check(file)
    assert result.returncode == 1 and said in result.stderr, result.stderr


def test_neighbours_are_found_whatever_the_filter_says(lab):
    closed = 'turnpike.filter "closed" { default = "drop" }\n'
    ports = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "closed",')
    wires = Wires(lab, closed, ports=ports, calm=True)
    from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr

    ask = IPv6(src=A6, dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt="fd00:1::1") / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)
    wires.drain()
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01") / ask))
    told = [Ether(frame) for frame in wires.left.receive(0.3)]
    assert any(ICMPv6ND_NA in frame for frame in told)
    # From farther away it is an ordinary packet.
    change = Change(wires.router)
    ask.hlim = 254
    del ask[ICMPv6ND_NS].cksum
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01") / ask))
    assert change(received=1) == {"received": 1, "dropped": {"filtered": 1}}


def test_rules_change_while_packets_flow(lab):
    wires = Wires(lab, FILTERS, ports=with_filters() + STATIC_NEIGHBOURS, calm=True)
    dropped(wires, IP(src=A4, dst=B4) / UDP(dport=8050) / Raw(b"x" * 30), "web")
    changed = wires.router.config.read_text().replace('to_port = "8000-8100", action = "drop"', 'to_port = "9000", action = "drop"')
    wires.router.config.write_text(changed)
    plan = wires.router.command("plan", wires.router.config, check=False).stdout
    assert 'filter "edge-in": rule 10 "web"' in plan and "9000" in plan, plan
    wires.router.command("apply", wires.router.config)
    passes(wires, IP(src=A4, dst=B4) / UDP(dport=8050) / Raw(b"x" * 30))
    assert hits(wires.router, "edge-in")["web"] == 1, "what a rule of this name has counted stays"
    dropped(wires, IP(src=A4, dst=B4) / UDP(dport=9000) / Raw(b"x" * 30), "web")
    # Without filters there are no steps for them.
    bare = changed.replace('filter = { inward = "edge-in" },', "").replace('filter = { outward = "edge-out" },', "")
    wires.router.config.write_text(bare)
    wires.router.command("apply", wires.router.config)
    assert not any("filter" in step["name"] for step in wires.router.show("steps")["steps"])
    passed = bytes(LINK / IP(src=A4, dst=B4) / UDP(dport=9000) / Raw(b"x" * 30))
    wires.drain()
    wires.left.send(passed)
    assert wires.right.expect(1) == [forwarded(passed, RIGHT_MAC, HOST_B_MAC)]


def test_show_filters_as_a_table(wires):
    text = wires.router.command("show", "filters", "edge-in").stdout
    assert text.startswith("filter edge-in: inward on left, outward on no port\n")
    assert "ssh" in text and "10 pps, burst 5" in text and "anything else" in text and "edge-out" not in text
    refused = wires.router.command("show", "filters", "edge", check=False)
    assert refused.returncode != 0 and 'filter "edge": unknown' in refused.stderr and "edge-in" in refused.stderr


@pytest.mark.parametrize("rules, said", [
    ('{ proto = "tpc" }', 'rule 1: proto: '),
    ('{ to_port = 22 }', "proto"),
    ('{ from = "10.0.0.1/8" }', 'has host bits; write "10.0.0.0/8"'),
    ('{ from = "10.0.0.0/8", to = "fd00::/8" }', "no packet is both"),
    ('{ proto = "udp", to_port = "9-5" }', "to_port"),
    ('{ action = "discard" }', 'action "discard" unknown'),
    ('{ prot = "udp" }', 'key "prot" unknown'),
    ('{ from = {} }', "from: the list is empty and would match every packet"),
    ('{ proto = "udp", to_port = { nil } }', "to_port: the list is empty"),
    ('{ state = {} }', "state: the list is empty"),
    ('{ interface = {}, action = "drop" }', "interface: the list is empty"),
    ('{ police = "10" }', "write it as 100kpps"),
    ('{ police = "10pps per host" }', 'write "per source"'),
    ('{ police = { rate = "10pps", sources = 2000 } }', 'sources: the rate is no "… per source"'),
    ('{ police = { rate = "10pps per source", sources = 5 } }', "sources"),
    ('{ police = { rate = "10pps", excess = "1kbit" } }', 'excess "1kbit" is not in the unit of the rate'),
    ('{ police = { rate = "10pps", peak = "9pps" } }', "is below the rate (RFC 2698 1)"),
    ('{ police = { rate = "10pps", peak = "20pps", excess = "5" } }', "has excess already (RFC 2697)"),
    ('{ police = { rate = "10pps", yellow = "pass" } }', "yellow needs a second bucket"),
    ('{ police = { rate = "10pps", excess = "5", red = "pass" } }', 'red: expected "drop"'),
    ('{ ethertype = "ipv4" }', "known: arp"),
    ('{ ethertype = 0x0800 }', "rules for IP packets have family"),
    ('{ ethertype = "lldp", proto = "udp" }', "neither IPv4 nor IPv6"),
    ('{ ethertype = "lldp", action = "reject" }', "has accept, drop or to-host"),
    ('{ ethertype = "lldp", log = true }', "only decides, polices and chooses a forwarder"),
    ('{ routing = "source" }', 'routing "source": unknown; known: source-route'),
    ('{ routing = 0, from = "10.0.0.0/8" }', "no packet is both"),
    ('{ extension = "esp" }', "write proto"),
    ('{ routing = { 1, 2, 3, 4, 5, 6, 7, 8, 9 } }', "9 different types of routing headers for IPv6, at most 8"),
    ('{ mark = {} }', "dscp or class missing"),
    ('{ mark = { class = "voce" } }', 'class "voce" unknown; did you mean "voice"?'),
    ('{ forwarder = 0 }', "the router chooses how many there are"),
    ('{ forwarder = 2 }, } turnpike.cores { forward = "0,1"', "rule 1: forwarder 2: there are 2, numbers 0 to 1"),
    ('{ forwarder = 0, action = "drop" }', "the rule lets nothing pass"),
    ('{ forwarder = 0 }, { state = "new" }', "behind the choice of a forwarder"),
    ('{ interface = "lefft" }', 'port "lefft" unknown'),
    ('{ mirror = "rigth" }', 'mirror: "rigth" unknown; did you mean "right"?'),
    ('{ fragment = "last" }', 'fragment: expected true, false, "first" or "later", got string "last"'),
    ('"x"', "expected a table"),
    ('{ icmp = "echo-request", icmp6 = "echo-request" }', "make two rules"),
])
def test_mistakes_are_named(tmp_path, rules, said):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + f'turnpike.filter "f" {{ {rules} }}\n')
    result = check(file)
    assert result.returncode == 1 and 'filter "f"' in result.stderr and said in result.stderr, result.stderr


def test_the_tables_of_sources_of_all_rules_are_bounded(tmp_path):
    file = tmp_path / "router.lua"
    most = '{ police = { rate = "10pps per source", sources = 16777216 } }'
    for more, wrong in (("", False), (', { police = "1pps per source" }', True)):
        file.write_text(PORTS + f'turnpike.filter "f" {{ {most}{more} }}\n')
        result = check(file)
        said = "2 rules with a rate per source take 260 MiB, of at most 256" in result.stderr
        assert (result.returncode, said) == (int(wrong), wrong), result.stderr


def test_a_rule_that_can_never_match_is_told(tmp_path):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + """
turnpike.filter "f" { { from = "10.0.0.0/8", action = "drop" }, { from = "10.1.0.0/16", proto = "tcp" } }
""")
    result = check(file)
    assert result.returncode == 0 and "rule 2" in result.stderr + result.stdout and "never" in result.stderr + result.stdout


def test_a_port_names_a_filter_that_is_there(tmp_path):
    file = tmp_path / "router.lua"
    ports = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "egde",')
    file.write_text(ports + 'turnpike.filter "edge" { default = "drop" }\n')
    result = check(file)
    assert result.returncode == 1 and 'filter "egde" unknown' in result.stderr and "edge" in result.stderr

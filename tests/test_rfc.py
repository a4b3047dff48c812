"""What the RFCs ask of a router and no other scenario proves: one scapy case for each.

`docs/rfc.md` names, for every requirement, the test that proves it; these are the ones it needed
besides the unit tests and the scenarios of the other files.
"""

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA, ICMPv6ND_Redirect,
    ICMPv6ND_RS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptPrefixInfo, ICMPv6NDOptSrcLLAddr,
    ICMPv6NDOptUnknown, ICMPv6ParamProblem, ICMPv6Unknown, HBHOptUnknown, IPv6, IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment, IPv6ExtHdrRouting,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from lib.packets import forwarded, unpadded
from lib.router import Change

MTU = 1300
A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
OWN4, OWN6 = "10.0.1.1", "fd00:1::1"
LINK_LOCAL = "fe80::ff:fe00:101"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
# The group in which the router's left port listens for solicitations of fd00:1::1.
GROUP, GROUP_LINK = "ff02::1:ff00:1", Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01")

# The hosts by configuration, so that the router asks for nobody while packets are counted; the
# left one's link-local address too, for errors and replies to it.
CONFIG = f"""
turnpike.route "198.51.100.0/24" {{ via = "{B4}" }}
turnpike.neighbour "fe80::a" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.slowpath {{ timeout_s = 3600 }}
"""


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, CONFIG, mtu=(1500, MTU), calm=True)


@pytest.fixture(autouse=True)
def silence(wires):
    wires.drain()


def passes(wires, *packets):
    """The packets arrive at the right host as they were, but for MACs, TTL and its checksum."""
    frames = [bytes(LINK / packet) for packet in packets]
    change = Change(wires.router)
    wires.left.send(*frames)
    arrived = wires.right.expect(len(frames))
    assert [unpadded(f) for f in arrived] == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}


def answer(wires, packet, link=LINK):
    """The one frame that comes back."""
    wires.left.send(link / packet)
    (frame,) = wires.left.expect(1)
    return Ether(frame)


def silent(wires, packet, link=LINK):
    """What the counters say of a packet about which the router says nothing."""
    change = Change(wires.router)
    wires.left.send(link / packet)
    changed = change(received=1)
    assert wires.left.receive(0.05) == [] and wires.right.receive(0.02) == []
    return changed


TAKEN = {"received": 1, "to_host": 1}


def dropped(reason):
    return {"received": 1, "dropped": {reason: 1}}


# --- the IPv4 header ----------------------------------------------------------------------------


def test_the_reserved_flag_is_neither_checked_nor_changed(wires):
    # RFC 1812 4.2.2.3 and 5.2.5.
    passes(wires, IP(src=A4, dst=B4, flags="evil") / UDP() / b"reserved",
           IP(src=A4, dst=B4, flags="evil+DF") / UDP() / b"reserved")


def test_fragments_inherit_the_reserved_flag_and_the_whole_tos_byte(wires):
    # RFC 1812 5.2.5; RFC 3168 5.3: "congestion experienced" is in every fragment.
    wires.left.send(LINK / IP(src=A4, dst=B4, flags="evil", tos=0xBB) / UDP() / bytes(1400))
    fragments = [Ether(frame)[IP] for frame in wires.right.expect(2)]
    assert [int(fragment.flags) for fragment in fragments] == [4 | 1, 4]
    assert [fragment.tos for fragment in fragments] == [0xBB, 0xBB]


OPTIONS = pytest.mark.parametrize("options", [
    pytest.param(b"\x9e\x04\xab\xcd", id="unknown, to be copied"),
    pytest.param(b"\x1e\x06\xab\xcd\xef\x01\x01\x00", id="unknown, not to be copied"),
    pytest.param(b"\x88\x04\x12\x34", id="stream identifier"),
    pytest.param(b"\x82\x0b" + bytes(range(1, 10)) + b"\x00", id="security"),
    pytest.param(b"\x01\x01\x01\x00", id="no operation and end of list"),
    pytest.param(b"\x00\xff\xff\xff", id="anything behind the end of the list"),
])


@OPTIONS
def test_options_that_ask_for_nothing_pass_unchanged(wires, options):
    # RFC 1812 4.2.2.6 and 5.3.13.1 to 5.3.13.3.
    passes(wires, IP(src=A4, dst=B4, options=options) / UDP() / b"options")


@OPTIONS
def test_options_of_packets_for_the_router_are_passed_over(wires, options):
    # RFC 1122 3.2.1.8, RFC 1812 4.2.2.1 b.
    assert answer(wires, IP(src=A4, dst=OWN4, options=options) / ICMP(seq=5))[ICMP].seq == 5


def test_a_broadcast_of_a_remote_network_is_like_any_packet(wires):
    # RFC 1812 5.3.5.2: which networks there are behind a route is not for a router to guess.
    passes(wires, IP(src=A4, dst="198.51.100.255") / UDP(), IP(src=A4, dst="198.51.100.0") / UDP())


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_every_codepoint_and_every_ecn_field_survives(wires, family):
    # RFC 2474 3: an unknown codepoint is forwarded like the default one, and unchanged. RFC 3168 5:
    # nothing but congestion sets "congestion experienced", and nothing clears it.
    if family == 4:
        passes(wires, *(IP(src=A4, dst=B4, tos=value) / UDP() / b"tos" for value in range(256)))
    else:
        passes(wires, *(IPv6(src=A6, dst=B6, tc=value) / UDP() / b"tc" for value in range(256)))


def test_identifications_of_own_packets_differ(wires):
    # RFC 6864 4.3: they may be fragmented, so their numbers must not repeat soon.
    seen = [answer(wires, IP(src=A4, dst=OWN4) / ICMP(seq=n))[IP].id for n in range(50)]
    assert len(set(seen)) == len(seen)


# --- ICMP for the router ------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0, 1])
def test_a_packet_for_the_router_may_have_no_hops_left(wires, ttl):
    # RFC 1812 4.2.2.9, RFC 8200 3.
    assert answer(wires, IP(src=A4, dst=OWN4, ttl=ttl) / ICMP())[ICMP].type == 0
    assert ICMPv6EchoReply in answer(wires, IPv6(src=A6, dst=OWN6, hlim=ttl) / ICMPv6EchoRequest())


@pytest.mark.parametrize("tos", [0x00, 0x10, 0xB8, 0xE0])
def test_an_echo_reply_has_the_tos_of_its_request(wires, tos):
    # RFC 1812 4.3.2.5.
    assert answer(wires, IP(src=A4, dst=OWN4, tos=tos) / ICMP())[IP].tos == tos


@pytest.mark.parametrize("message", [
    pytest.param(ICMP(type=4) / IP(src=OWN4, dst=B4) / UDP(), id="source quench"),
    pytest.param(ICMP(type=13), id="timestamp"),
    pytest.param(ICMP(type=15), id="information request"),
    pytest.param(ICMP(type=16), id="information reply"),
    pytest.param(ICMP(type=18, addr_mask="255.0.0.0"), id="address mask reply"),
    pytest.param(ICMP(type=0), id="echo reply nobody asked for"),
    pytest.param(ICMP(type=3, code=3) / IP(src=OWN4, dst=B4) / UDP(), id="port unreachable"),
    pytest.param(ICMP(type=11) / IP(src=OWN4, dst=B4) / UDP(), id="time exceeded"),
    pytest.param(ICMP(type=77) / b"rest", id="unknown"),
    pytest.param(ICMP(type=253) / b"rest", id="an experiment"),
])
def test_icmp_that_needs_no_answer_has_none(wires, message):
    # RFC 1812 4.3.2.1 and 4.3.3.7, RFC 6633 3 and 4.
    assert silent(wires, IP(src=A4, dst=OWN4) / message) == TAKEN


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 100, 101, 126, 129, 139, 200, 254])
def test_icmpv6_that_needs_no_answer_has_none(wires, kind):
    # RFC 4443 2.4 (a), (b) and (d).
    message = ICMPv6Unknown(type=kind, code=0, msgbody=bytes(4) + bytes(IPv6(src=OWN6, dst=B6) / UDP()))
    assert silent(wires, IPv6(src=A6, dst=OWN6) / message) == TAKEN


def test_redirects_change_no_route(wires):
    # RFC 1812 5.2.7.2, RFC 4861 8.2.
    redirect = ICMP(type=5, code=1, gw=A4) / IP(src=OWN4, dst=B4) / UDP()
    assert silent(wires, IP(src=A4, dst=OWN4) / redirect) == TAKEN
    redirect = ICMPv6ND_Redirect(tgt="fe80::a", dst=B6) / ICMPv6NDOptDstLLAddr(lladdr=HOST_A_MAC)
    assert silent(wires, IPv6(src="fe80::a", dst=LINK_LOCAL, hlim=255) / redirect) == TAKEN
    passes(wires, IP(src=A4, dst=B4) / UDP(), IPv6(src=A6, dst=B6) / UDP())


def test_router_advertisements_change_no_route(wires):
    # RFC 4861 6.2.7: a router reads them, at most.
    advertisement = IPv6(src="fe80::a", dst="ff02::1", hlim=255) / ICMPv6ND_RA(
        routerlifetime=1800) / ICMPv6NDOptPrefixInfo(prefix="2001:db8:77::", prefixlen=64)
    before = wires.router.show("routes")
    assert silent(wires, advertisement, Ether(src=HOST_A_MAC, dst="33:33:00:00:00:01")) == TAKEN
    assert wires.router.show("routes") == before


# --- neighbour discovery ------------------------------------------------------------------------


def solicitation(mac=HOST_A_MAC, source=A6, hop_limit=255, **fields):
    """A good solicitation for the router, but for what is given."""
    return IPv6(src=source, dst=GROUP, hlim=hop_limit) / ICMPv6ND_NS(
        tgt=OWN6, **fields) / ICMPv6NDOptSrcLLAddr(lladdr=mac)


def test_unknown_options_and_reserved_fields_are_ignored(wires):
    # RFC 4861 4.3 and 4.6, 7.1.1: an unknown option before the one that counts, a reserved field.
    unknown = ICMPv6NDOptUnknown(type=200, len=2, data=bytes(14))
    question = IPv6(src=A6, dst=GROUP, hlim=255) / ICMPv6ND_NS(tgt=OWN6, res=0xFFFFFFFF)
    reply = answer(wires, question / unknown / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC), GROUP_LINK)
    assert reply[ICMPv6ND_NA].tgt == OWN6 and reply.dst == HOST_A_MAC


def test_a_solicitation_moves_a_neighbour(wires):
    # RFC 4861 7.2.3: another link-layer address replaces the one that is known, as stale.
    for mac in ("02:00:00:00:01:31", "02:00:00:00:01:32"):
        reply = answer(wires, solicitation(mac, "fd00:1::31"), GROUP_LINK)
        assert reply.dst == mac
        entry = wires.router.neighbour("fd00:1::31")
        assert (entry["mac"], entry["state"]) == (mac, "stale")


def test_a_solicitation_in_a_fragment_is_ignored(wires):
    # RFC 6980 5.
    question = solicitation()
    hidden = IPv6(src=A6, dst=GROUP, hlim=255, nh=44) / IPv6ExtHdrFragment(nh=58, m=1, id=7) / Raw(
        bytes(question[ICMPv6ND_NS]))
    assert silent(wires, hidden, GROUP_LINK) == dropped("local-fragment")


@pytest.mark.parametrize("solicit", [
    pytest.param(IPv6(src="fe80::a", dst="ff02::2", hlim=254) / ICMPv6ND_RS(), id="hop limit"),
    pytest.param(IPv6(src="fe80::a", dst="ff02::2", hlim=255) / ICMPv6ND_RS(code=1), id="code"),
    pytest.param(IPv6(src="fe80::a", dst="ff02::2", hlim=255) / ICMPv6ND_RS(cksum=1), id="checksum"),
    pytest.param(IPv6(src="fe80::a", dst="ff02::2", hlim=255) / ICMPv6ND_RS() / bytes(8),
                 id="an option of length 0"),
    pytest.param(IPv6(src="fe80::a", dst="ff02::2", hlim=255, nh=58) / Raw(b"\x85\0\0\0"),
                 id="too short"),
    pytest.param(IPv6(src="::", dst="ff02::2", hlim=255) / ICMPv6ND_RS() / ICMPv6NDOptSrcLLAddr(
        lladdr=HOST_A_MAC), id="no address, but a link-layer address"),
])
def test_invalid_router_solicitations_are_dropped(wires, solicit):
    # RFC 4861 6.1.1.
    link = Ether(src=HOST_A_MAC, dst="33:33:00:00:00:02")
    assert silent(wires, solicit, link) == dropped("nd-malformed")


@pytest.mark.parametrize("source", ["::", "fe80::b"])
def test_router_solicitations_without_an_address_teach_nothing(wires, source):
    # RFC 4861 6.2.6.
    def known():
        return {(entry["address"], entry["mac"], entry["state"]) for entry in wires.router.show("neighbours")}

    before = known()
    link = Ether(src=HOST_A_MAC, dst="33:33:00:00:00:02")
    assert silent(wires, IPv6(src=source, dst="ff02::2", hlim=255) / ICMPv6ND_RS(), link) == TAKEN
    assert known() == before


# --- IPv6 extension headers -----------------------------------------------------------------------


def test_extension_headers_are_no_business_of_a_router_on_the_way(wires):
    # RFC 8200 4 and 4.7, RFC 5095 3 and 4.2: whatever is behind the IPv6 header but hop-by-hop
    # options is for the destination, even what it will have to refuse.
    tell = HBHOptUnknown(otype=0xBE, optlen=4, optdata=bytes(4))
    passes(
        wires,
        IPv6(src=A6, dst=B6) / IPv6ExtHdrDestOpt(options=[tell]) / UDP() / b"unknown option",
        IPv6(src=A6, dst=B6, nh=43) / Raw(b"\x11\xff\x00\x01" + bytes(20)),
        IPv6(src=A6, dst=B6) / IPv6ExtHdrRouting(type=0, segleft=1, addresses=[A6]) / UDP() / b"type 0",
        IPv6(src=A6, dst=B6) / IPv6ExtHdrRouting(type=4, segleft=1, addresses=[A6]) / UDP() / b"type 4",
        IPv6(src=A6, dst=B6) / IPv6ExtHdrFragment(offset=8, m=1, id=9) / bytes(64),
        IPv6(src=A6, dst=B6) / IPv6ExtHdrDestOpt(nh=0) / bytes(8),
        IPv6(src=A6, dst=B6, nh=59) / Raw(b"behind the last header"),
        IPv6(src=A6, dst=B6, nh=254) / Raw(b"nobody knows"),
    )


@pytest.mark.parametrize("kind", [0, 2, 4, 253])
def test_a_routing_header_to_be_followed_is_refused(wires, kind):
    # RFC 8200 4.4, RFC 5095 3: discarded, and the pointer is on the type.
    asked = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrRouting(
        type=kind, segleft=1, addresses=[B6]) / ICMPv6EchoRequest()
    problem = answer(wires, asked)[ICMPv6ParamProblem]
    assert (problem.code, problem.ptr) == (0, 42)


def test_a_routing_header_that_was_followed_is_ignored(wires):
    # RFC 5095 3, RFC 8200 8.4: no segments left. The reply has no routing header.
    asked = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrRouting(
        type=0, segleft=0, addresses=[B6]) / ICMPv6EchoRequest(seq=3)
    reply = answer(wires, asked)
    assert reply[IPv6].nh == 58 and reply[ICMPv6EchoReply].seq == 3


def test_an_atomic_fragment_is_a_whole_packet(wires):
    # RFC 8200 4.5.
    asked = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrFragment(id=5) / ICMPv6EchoRequest(seq=4)
    assert answer(wires, asked)[ICMPv6EchoReply].seq == 4


# --- links of two ---------------------------------------------------------------------------------


def test_links_of_two_addresses(lab):
    # RFC 3021 2, RFC 6164 6: on a /31 and a /127 both addresses are hosts', also the first one.
    wires = Wires(lab, calm=True, ports="""
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = { "10.0.1.1/31", "fd00:1::1/127" } }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.0/31", "fd00:2::/127" } }
""")
    there = {"10.0.2.1": "10.0.1.0", "fd00:2::1": "fd00:1::"}
    for destination, source in there.items():
        header = IP if "." in destination else IPv6
        packet = bytes(LINK / header(src=source, dst=destination) / UDP() / b"to the other one")
        wires.left.send(packet)
        (question,) = map(Ether, wires.right.expect(1))
        if header is IP:
            assert (question[ARP].pdst, question[ARP].psrc) == ("10.0.2.1", "10.0.2.0")
            wires.right.send(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / ARP(
                op=2, hwsrc=HOST_B_MAC, psrc=destination, hwdst=RIGHT_MAC, pdst="10.0.2.0"))
        else:
            assert (question[ICMPv6ND_NS].tgt, question[IPv6].src) == ("fd00:2::1", "fd00:2::")
            wires.right.send(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / IPv6(
                src=destination, dst="fd00:2::", hlim=255) / ICMPv6ND_NA(
                tgt=destination, R=0, S=1, O=1) / ICMPv6NDOptDstLLAddr(lladdr=HOST_B_MAC))
        arrived = wires.right.expect(1)
        assert [unpadded(f) for f in arrived] == [forwarded(packet, RIGHT_MAC, HOST_B_MAC)]
    # The router's own all-zero addresses answer.
    for own, asker in (("10.0.2.0", "10.0.1.0"), ("fd00:2::", "fd00:1::")):
        echo = IP(src=asker, dst=own) / ICMP() if "." in own else IPv6(src=asker, dst=own) / ICMPv6EchoRequest()
        wires.left.send(LINK / echo)
        reply = wires.left.expect(1, lambda f: f[12:14] == b"\x08\x06" or f[54:55] == b"\x87")
        assert reply, f"{own} does not want to answer {asker}"

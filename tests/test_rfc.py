"""Requirements of the RFCs that no other scenario covers: one scapy case for each.

`docs/rfc.md` names, for every requirement, the test that proves it; these are the ones it needed
besides the unit tests and the scenarios of the other files.
"""

import ipaddress
import random
import time

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA, ICMPv6ND_Redirect,
    ICMPv6ND_RS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptPrefixInfo, ICMPv6NDOptSrcLLAddr,
    ICMPv6NDOptUnknown, ICMPv6ParamProblem, ICMPv6Unknown, HBHOptUnknown, IPv6, IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, fragment6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from lib.lab import (
    HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires,
)
from lib.packets import checksum, forwarded, pattern, unpadded
from lib.router import Change

MTU = 1300
A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
OWN4, OWN6 = "10.0.1.1", "fd00:1::1"
LINK_LOCAL = "fe80::ff:fe00:101"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
# The group in which the router's left port listens for solicitations of fd00:1::1.
GROUP, GROUP_LINK = "ff02::1:ff00:1", Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01")

# The hosts by configuration, so that the router resolves no neighbour while packets are counted; the left one's
# link-local address too, for errors and replies to it.
CONFIG = f"""
turnpike.route "198.51.100.0/24" {{ via = "{B4}" }}
turnpike.route "2001:db8:5::/48" {{ via = "{A6}" }}
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
    """Checks that the packets arrive at the right host unchanged, except for MACs, TTL and its checksum."""
    frames = [bytes(LINK / packet) for packet in packets]
    change = Change(wires.router)
    wires.left.send(*frames)
    arrived = wires.right.expect(len(frames))
    assert [unpadded(f) for f in arrived] == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}


def answer(wires, packet, link=LINK):
    """The one frame that is returned."""
    wires.left.send(link / packet)
    (frame,) = wires.left.expect(1)
    return Ether(frame)


def silent(wires, packet, link=LINK):
    """The counters' changes for a packet that the router does not answer."""
    change = Change(wires.router)
    wires.left.send(link / packet)
    changed = change(received=1)
    assert wires.silent(0.05)
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


BROADCASTS = pytest.mark.parametrize("destination, mac", [
    ("255.255.255.255", "ff:ff:ff:ff:ff:ff"), ("10.0.1.255", "ff:ff:ff:ff:ff:ff"), ("224.0.0.1", "01:00:5e:00:00:01"),
])


@BROADCASTS
def test_broadcasts_and_all_systems_are_received(wires, destination, mac):
    # RFC 1812 4.2.2.11: processed like others. RFC 1122 3.2.2.6: but a ping need not be answered.
    link = Ether(src=HOST_A_MAC, dst=mac)
    assert silent(wires, IP(src=A4, dst=destination) / ICMP() / b"anybody?", link) == TAKEN
    wrong = IP(src=A4, dst=destination) / ICMP(chksum=1) / b"anybody?"
    assert silent(wires, wrong, link) == dropped("icmp-malformed")
    # RFC 1812 4.3.2.7: there is no listener, and no error is sent.
    assert silent(wires, IP(src=A4, dst=destination) / UDP(dport=9) / b"?", link) == dropped("no-listener")


def test_the_source_of_an_error_is_selected_by_the_destination(lab):
    # RFC 6724 5 rule 6: a unique local address is for others of its kind.
    ports = PORTS.replace('"fd00:1::1/64"', '"fd00:1::1/64", "2001:db8:1::1/64"')
    hosts = f'''turnpike.neighbour "fd00:1::2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "2001:db8:1::2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.route "2001:db8:5::/48" {{ via = "2001:db8:1::2" }}
turnpike.route "fd05::/48" {{ via = "2001:db8:1::2" }}
'''
    wires = Wires(lab, ports=ports + hosts, calm=True)
    for source, own in (("2001:db8:5::9", "2001:db8:1::1"), ("fd05::9", "fd00:1::1")):
        wires.drain()
        error = answer(wires, IPv6(src=source, dst="2003::1", hlim=1) / UDP() / b"expires")
        assert (error[IPv6].src, error[IPv6].dst) == (own, source)
    wires.router.stop()


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
    # RFC 1812 5.3.5.2: a router cannot know the networks behind a route.
    passes(wires, IP(src=A4, dst="198.51.100.255") / UDP(), IP(src=A4, dst="198.51.100.0") / UDP())


def test_the_all_zeros_address_of_a_connected_network_is_no_hosts(wires):
    # RFC 1812 4.2.3.1 (2): discarded, without a request or an error.
    assert silent(wires, IP(src=A4, dst="10.0.2.0") / UDP()) == dropped("martian-destination")


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_every_codepoint_and_every_ecn_field_survives(wires, family):
    # RFC 2474 3: an unknown codepoint is forwarded like the default one, and unchanged. RFC 3168 5:
    # nothing but congestion sets "congestion experienced", and nothing clears it.
    if family == 4:
        passes(wires, *(IP(src=A4, dst=B4, tos=value) / UDP() / b"tos" for value in range(256)))
    else:
        passes(wires, *(IPv6(src=A6, dst=B6, tc=value) / UDP() / b"tc" for value in range(256)))


def test_identifications_of_own_packets_differ(wires):
    # RFC 6864 4.3: packets that may be fragmented have identifications that do not repeat soon; the others have DF, and
    # need none.
    large = [answer(wires, IP(src=A4, dst=OWN4) / ICMP(seq=n) / bytes(900))[IP] for n in range(50)]
    assert {int(reply.flags) for reply in large} == {0}
    assert len({reply.id for reply in large}) == len(large)
    small = answer(wires, IP(src=A4, dst=OWN4) / ICMP())[IP]
    path_mtu = answer(wires, IP(src=A4, dst=OWN4, flags="DF") / ICMP() / bytes(900))[IP]
    error = answer(wires, IP(src=A4, dst=B4, ttl=1) / UDP() / bytes(900))[IP]
    assert [packet.flags for packet in (small, path_mtu, error)] == ["DF"] * 3


# --- record route and timestamp -----------------------------------------------------------------


ROUTE = b"\x07\x0b\x04" + bytes(8)
STAMPS = b"\x44\x08\x05\x00" + bytes(4)
BOTH = b"\x44\x0c\x05\x01" + bytes(8)


def given(address):
    return b"\x44\x0c\x05\x03" + ipaddress.ip_address(address).packed + bytes(4)


def options_of(packet, length):
    """The options' bytes."""
    return bytes(packet[IP])[20:20 + length]


def is_now(stamp):
    """Returns true for a recent time since midnight, UTC."""
    now = int(time.time() * 1000) % 86_400_000
    return (now - int.from_bytes(stamp, "big")) % 86_400_000 < 5000


def through(wires, options):
    """The options as they arrive at the right host, with a correct checksum."""
    packet = IP(src=A4, dst=B4, options=options + bytes(-len(options) % 4)) / UDP() / b"recorded"
    wires.left.send(LINK / packet)
    (frame,) = wires.right.expect(1)
    arrived = Ether(frame)
    assert checksum(bytes(arrived[IP])[:arrived[IP].ihl * 4]) == 0 and arrived[Raw].load == b"recorded"
    return options_of(arrived, len(options))


def test_a_record_route_is_filled_in(wires):
    # RFC 791 3.1, RFC 1812 5.3.13.5 and 4.2.2.2: by the address of the port it leaves by.
    own = ipaddress.ip_address("10.0.2.1").packed
    first = through(wires, ROUTE)
    assert first == b"\x07\x0b\x08" + own + bytes(4)
    full = through(wires, first)
    assert full == b"\x07\x0b\x0c" + own * 2
    assert through(wires, full) == full


def test_a_timestamp_is_filled_in(wires):
    # RFC 791 3.1, RFC 1812 5.3.13.6.
    own = ipaddress.ip_address("10.0.2.1").packed
    filled = through(wires, STAMPS)
    assert filled[:4] == b"\x44\x08\x09\x00" and is_now(filled[4:])
    assert through(wires, filled) == b"\x44\x08\x09\x10" + filled[4:], "full: the overflow counts"
    filled = through(wires, BOTH)
    assert filled[:8] == b"\x44\x0c\x0d\x01" + own and is_now(filled[8:])
    filled = through(wires, given(OWN4))
    assert filled[2] == 13 and is_now(filled[8:])
    assert through(wires, given(B4)) == given(B4), "not meant for this router"


@pytest.mark.parametrize("options, pointer", [
    pytest.param(b"\x07\x07\x05" + bytes(5), 22, id="route, room for part of an address"),
    pytest.param(b"\x07\x07\x03" + bytes(5), 22, id="route, a pointer into the head"),
    pytest.param(b"\x44\x08\x06\x00" + bytes(4), 22, id="timestamp, room for part of a stamp"),
    pytest.param(b"\x44\x08\x09\xf0" + bytes(4), 23, id="timestamp, the overflow overflows"),
    pytest.param(b"\x44\x08\x05\x07" + bytes(4), 23, id="timestamp, no such flag"),
])
def test_nonsense_in_options_is_pointed_at(wires, options, pointer):
    # RFC 791 3.1: discarded; RFC 1812 4.3.3.5: with an error.
    problem = answer(wires, IP(src=A4, dst=B4, options=options) / UDP())
    assert (problem[ICMP].type, problem[ICMP].code, problem[ICMP].ptr) == (12, 0, pointer)


def test_an_echo_reply_brings_route_and_stamps_back(wires):
    # RFC 1812 4.3.3.6, RFC 1122 3.2.2.6.
    options = ROUTE + BOTH + b"\0"
    reply = answer(wires, IP(src=A4, dst="10.0.2.1", options=options) / ICMP(seq=8))
    own = ipaddress.ip_address("10.0.2.1").packed
    back = options_of(reply, 24)
    assert back[:19] == b"\x07\x0b\x08" + own + bytes(4) + b"\x44\x0c\x0d\x01" + own
    assert is_now(back[19:23]) and reply[ICMP].seq == 8
    assert checksum(bytes(reply[IP])[:44]) == 0


# --- fragments for the router ---------------------------------------------------------------------


def cut(packet, size):
    """The packet's fragments, as its sender would make them."""
    if IP in packet:
        return packet.fragment(size)
    header = IPv6(src=packet[IPv6].src, dst=packet[IPv6].dst) / IPv6ExtHdrFragment(id=random.getrandbits(32))
    return fragment6(header / packet[IPv6].payload, size + 62)


def rejoin(frames):
    """The packet reassembled from fragments, without a library: headers of the first, data of all."""
    packets = [unpadded(frame)[14:] for frame in frames]
    if packets[0][0] >> 4 == 4:
        offsets = [(p[6] << 8 | p[7]) & 0x1FFF for p in packets]
        assert [p[6] >> 5 & 1 for p in packets] == [1] * (len(packets) - 1) + [0]
        assert len({p[4:6] for p in packets}) == 1
        data = [p[20:] for p in packets]
    else:
        assert all(p[6] == 44 for p in packets) and len({p[44:48] for p in packets}) == 1
        offsets = [(p[42] << 8 | p[43]) >> 3 for p in packets]
        assert [p[43] & 1 for p in packets] == [1] * (len(packets) - 1) + [0]
        data = [p[48:] for p in packets]
    assert offsets == [sum(map(len, data[:n])) // 8 for n in range(len(data))]
    return b"".join(data)


@pytest.mark.parametrize("order", ["forwards", "backwards", "with a repetition"])
@pytest.mark.parametrize("packet", [
    pytest.param(IP(src=A4, dst=OWN4) / ICMP(id=7, seq=9) / pattern(4000), id="ipv4"),
    pytest.param(IPv6(src=A6, dst=OWN6) / ICMPv6EchoRequest(id=7, seq=9, data=pattern(4000)), id="ipv6"),
])
def test_a_fragmented_ping_is_answered(wires, packet, order):
    # RFC 1812 4.2.2.8 and 4.3.3.6, RFC 8200 4.5 and 5; the reply is larger than the link, too.
    if IP in packet:
        packet[IP].id = random.getrandbits(16)
    fragments = cut(packet, 1000)
    pieces = len(fragments)
    assert pieces > 3
    if order == "backwards":
        fragments.reverse()
    elif order == "with a repetition":
        fragments.insert(2, fragments[0])
    change = Change(wires.router)
    wires.left.send(*(LINK / fragment for fragment in fragments))
    frames = wires.left.expect(3)
    data = rejoin(frames)
    assert data[8:] == pattern(4000) and data[4:8] == bytes([0, 7, 0, 9])
    assert data[0] == (0 if IP in packet else 129)
    count = len(fragments)
    expected = {"received": count, "originated": 3, "sent": 3, "to_host": pieces}
    if count > pieces:
        expected["dropped"] = {"local-fragment": 1}
    assert change(received=count) == expected


def test_fragments_that_overlap_are_dropped_in_silence(wires):
    # RFC 5722 4, RFC 8200 4.5: all of them, and those that come later.
    first = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrFragment(nh=58, m=1, id=77) / bytes(64)
    second = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrFragment(nh=58, offset=7, m=0, id=77) / bytes(64)
    change = Change(wires.router)
    wires.left.send(LINK / first, LINK / second, LINK / first)
    assert change(received=3) == {"received": 3, "dropped": {"local-fragment": 3}}
    assert wires.left.receive(0.05) == []


@pytest.mark.parametrize("header, data, code, pointer", [
    pytest.param(IPv6ExtHdrFragment(nh=17, m=1, id=1), bytes(20), 0, 4, id="not a multiple of 8"),
    pytest.param(IPv6ExtHdrFragment(nh=17, m=0, offset=8191, id=2), bytes(16), 0, 42, id="beyond 65535"),
    pytest.param(IPv6ExtHdrFragment(nh=60, m=1, id=3), b"\x11\x01" + bytes(14), 3, 0,
                 id="the first without all headers"),
    pytest.param(IPv6ExtHdrFragment(nh=17, m=1, id=4), b"", 3, 0, id="the first without any data"),
])
def test_impossible_fragments_are_told(wires, header, data, code, pointer):
    # RFC 8200 4.5.
    problem = answer(wires, IPv6(src=A6, dst=OWN6) / header / data)[ICMPv6ParamProblem]
    assert (problem.code, problem.ptr) == (code, pointer)


@pytest.mark.provokes("reassembly-timeout")
def test_who_sent_too_few_fragments_is_told(lab):
    # RFC 792, RFC 1122 3.3.2, RFC 8200 4.5: code 1, if the first fragment is present.
    wires = Wires(lab, "turnpike.slowpath { reassembly_s = 1 }", calm=True)
    first = IP(src=A4, dst=OWN4, flags="MF", id=5) / ICMP() / bytes(16)
    later = IP(src=A4, dst=OWN4, frag=3, id=6) / bytes(16)
    first6 = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrFragment(nh=17, m=1, id=5) / bytes(24)
    change = Change(wires.router)
    wires.left.send(LINK / first, LINK / later, LINK / first6)
    errors = [Ether(frame) for frame in wires.left.expect(2)]
    assert (errors[0][ICMP].type, errors[0][ICMP].code) == (11, 1)
    assert (errors[1][IPv6].payload.type, errors[1][IPv6].payload.code) == (3, 1)
    assert change(received=3) == {
        "received": 3, "originated": 2, "sent": 2, "dropped": {"reassembly-timeout": 3}}


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
    # The router would ask it soon, in the middle of another test.
    wires.router.command("neighbour", "del", "fd00:1::31", "dev", "left")


def test_a_solicitation_in_a_fragment_is_ignored(wires):
    # RFC 6980 5.
    question = solicitation()
    hidden = IPv6(src=A6, dst=GROUP, hlim=255, nh=44) / IPv6ExtHdrFragment(nh=58, m=1, id=7) / Raw(
        bytes(question[ICMPv6ND_NS]))
    wires.left.send(GROUP_LINK / hidden)
    rest = IPv6(src=A6, dst=GROUP, hlim=255, nh=44) / IPv6ExtHdrFragment(
        nh=58, offset=len(bytes(question[ICMPv6ND_NS])) // 8, id=7) / Raw(bytes(8))
    change = Change(wires.router)
    wires.left.send(GROUP_LINK / rest)
    assert change(received=1) == {"received": 1, "dropped": {"nd-malformed": 2}}
    atomic = IPv6(src=A6, dst=GROUP, hlim=255, nh=44) / IPv6ExtHdrFragment(nh=58, id=8) / Raw(
        bytes(question[ICMPv6ND_NS]))
    assert silent(wires, atomic, GROUP_LINK) == dropped("nd-malformed")


def test_the_subnet_router_anycast_address(wires):
    # RFC 4291 2.6.1, RFC 4861 7.2.4 and 7.2.7, RFC 4443 4.2: answered for, within a second and
    # without override; its packets are answered from an address of the port.
    question = IPv6(src=A6, dst="ff02::1:ff00:0", hlim=255) / ICMPv6ND_NS(
        tgt="fd00:1::") / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)
    reply = answer(wires, question, Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:00"))
    assert (reply[ICMPv6ND_NA].tgt, reply[ICMPv6NDOptDstLLAddr].lladdr) == ("fd00:1::", LEFT_MAC)
    assert (reply[ICMPv6ND_NA].R, reply[ICMPv6ND_NA].S, reply[ICMPv6ND_NA].O) == (1, 1, 0)
    pong = answer(wires, IPv6(src=A6, dst="fd00:1::") / ICMPv6EchoRequest(seq=6))
    assert (pong[IPv6].src, pong[ICMPv6EchoReply].seq) == (OWN6, 6)


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
    # RFC 8200 4 and 4.7, RFC 5095 3 and 4.2: all headers except hop-by-hop options are for the destination, even those
    # that it has to refuse.
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


@pytest.mark.parametrize("option, code", [(0x1E, None), (0x7E, 0), (0xBE, 2), (0xFE, 2)])
def test_destination_options_are_obeyed(wires, option, code):
    # RFC 8200 4.2 and 4.6: skipped, discarded, discarded with an error.
    asked = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrDestOpt(options=[
        HBHOptUnknown(otype=option, optlen=4, optdata=bytes(4))]) / ICMPv6EchoRequest(seq=2)
    if code == 0:
        assert silent(wires, asked) == dropped("ip6-extension")
    elif code is None:
        assert answer(wires, asked)[ICMPv6EchoReply].seq == 2
    else:
        problem = answer(wires, asked)[ICMPv6ParamProblem]
        assert (problem.code, problem.ptr) == (code, 42)


def test_hop_by_hop_options_stand_first_or_are_not_known(wires):
    # RFC 8200 4 and 4.1: the pointer indicates the byte with value 0.
    asked = IPv6(src=A6, dst=OWN6) / IPv6ExtHdrDestOpt(nh=0) / IPv6ExtHdrHopByHop() / ICMPv6EchoRequest()
    problem = answer(wires, asked)[ICMPv6ParamProblem]
    assert (problem.code, problem.ptr) == (1, 40)


@pytest.mark.parametrize("source, largest", [(A6, 1500), ("2001:db8:5::1", 1280)])
def test_no_more_is_sent_than_every_path_takes(wires, source, largest):
    # RFC 8200 5, RFC 8201 4: the router does not discover path MTUs; it knows those of its own links.
    asked = IPv6(src=source, dst=OWN6) / ICMPv6EchoRequest(data=pattern(1400))
    wires.left.send(LINK / asked)
    frames = wires.left.expect(1 if largest == 1500 else 2)
    assert max(len(frame) for frame in frames) - 14 <= largest
    data = frames[0][54:] if largest == 1500 else rejoin(frames)
    assert data[8:] == pattern(1400)


# --- what can be switched -------------------------------------------------------------------------


def test_the_routers_own_icmp_is_configurable(lab):
    # RFC 1812 4.2.2.9 and 4.3.3.6: TTL, echo. RFC 4443 3.1: unreachables, by port.
    wires = Wires(lab, "turnpike.icmp { ttl = 99, echo = false }", calm=True, ports=(
        PORTS + STATIC_NEIGHBOURS).replace('device = "tp-left"', 'device = "tp-left", unreachables = false'))
    for echo in (IP(src=A4, dst=OWN4) / ICMP(), IPv6(src=A6, dst=OWN6) / ICMPv6EchoRequest()):
        assert silent(wires, echo) == TAKEN
    for lost in (IP(src=A4, dst="172.16.0.1") / UDP(), IPv6(src=A6, dst="2001:db8:1::1") / UDP()):
        assert silent(wires, lost) == dropped("no-route")
    assert answer(wires, IP(src=A4, dst=B4, ttl=1) / UDP())[IP].ttl == 99
    assert answer(wires, IPv6(src=A6, dst=B6, hlim=1) / UDP())[IPv6].hlim == 99


@pytest.mark.provokes("not-local")
def test_a_link_too_small_for_ipv6_has_none(lab):
    # RFC 8200 5, RFC 8201 4: no "packet too big" with less than 1280, and no address there.
    wires = Wires(lab, calm=True, mtu=(1500, 1200), ports="""
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = { "10.0.1.1/24", "fd00:1::1/64" } }
turnpike.port "right" { device = "tp-right", address = "10.0.2.1/24" }
turnpike.route "2001:db8::/32" { via = "fe80::b", port = "right" }
turnpike.neighbour "fe80::b" { port = "right", mac = "02:00:00:00:02:02" }
turnpike.neighbour "fd00:1::2" { port = "left", mac = "02:00:00:00:01:02" }
""")
    error = answer(wires, IPv6(src=A6, dst="2001:db8::1") / UDP() / bytes(1300))
    assert (error[IPv6].payload.type, error[IPv6].payload.code) == (1, 3)
    link = Ether(src=HOST_B_MAC, dst=RIGHT_MAC)
    change = Change(wires.router)
    wires.right.send(link / IPv6(src="fe80::b", dst="fe80::ff:fe00:201") / ICMPv6EchoRequest())
    assert change(received=1) == {"received": 1, "dropped": {"not-local": 1}}
    assert wires.right.receive(0.05) == []


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

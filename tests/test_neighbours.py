"""ARP (RFC 826) and neighbour discovery (RFC 4861): requests received and sent, waiting packets, failures."""

import ipaddress
import struct

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Wires
from lib.netns import wait_for
from lib.packets import (
    checksum, ethernet, forwarded, icmp6, ipv4, ipv6, is_announcement, mac_bytes, pattern,
    pseudo_header, udp, unpadded,
)
from lib.router import Change

BROADCAST = "ff:ff:ff:ff:ff:ff"
A4, A6 = "10.0.1.2", "fd00:1::2"
STATIC = f"""
turnpike.neighbour "{A4}" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "{A6}" {{ port = "left", mac = "{HOST_A_MAC}" }}
-- No entry grows old while the tests run: whatever the router asks, a test has made it ask.
turnpike.slowpath {{ queue = 4, retries = 2, timeout_s = 3600 }}
"""
RETRIES = 2
QUEUE = 4


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, ports=PORTS + STATIC, calm=True)


@pytest.fixture(autouse=True)
def silence(wires):
    wires.drain()


def packed(address):
    return ipaddress.ip_address(address).packed


def to(destination, ident=0):
    """A frame from the left host to an address; `ident` distinguishes several."""
    if ":" in destination:
        datagram = udp(A6, destination, 1000 + ident, 2000, pattern(40, ident))
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(A6, destination, datagram))
    datagram = udp(A4, destination, 1000 + ident, 2000, pattern(40, ident))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(A4, destination, datagram, ident=ident))


# --- ARP as the RFC draws it -------------------------------------------------------------------


def arp(operation, sender_mac, sender, target_mac, target, destination=None):
    """An ARP message in its frame."""
    message = (
        struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        + mac_bytes(sender_mac) + packed(sender) + mac_bytes(target_mac) + packed(target)
    )
    return ethernet(destination or target_mac, sender_mac, 0x0806, message)


def arp_request(sender_mac, sender, target):
    message = arp(1, sender_mac, sender, "00:00:00:00:00:00", target)
    return mac_bytes(BROADCAST) + message[6:]


# --- neighbour discovery as the RFC draws it -----------------------------------------------------


def solicited(address):
    """The solicited-node group of an address, and its MAC."""
    group = packed("ff02::1:ff00:0")[:13] + packed(address)[13:]
    return str(ipaddress.ip_address(group)), "33:33:ff:" + ":".join(f"{b:02x}" for b in group[13:])


def solicitation(mac, source, target, destination=None):
    """A neighbour solicitation to the target's group, or to `destination` = (address, MAC)."""
    group, group_mac = destination or solicited(target)
    option = b"" if source == "::" else b"\x01\x01" + mac_bytes(mac)
    body = icmp6(source, group, 135, 0, bytes(4), packed(target) + option)
    return ethernet(group_mac, mac, 0x86DD, ipv6(source, group, body, 58, hop_limit=255))


def advertisement(mac, target, destination, destination_mac, flags, source=None):
    """A neighbour advertisement; flags: 0x80 router, 0x40 solicited, 0x20 override."""
    source = source or target
    body = icmp6(source, destination, 136, 0, bytes([flags, 0, 0, 0]),
                 packed(target) + b"\x02\x01" + mac_bytes(mac))
    return ethernet(destination_mac, mac, 0x86DD, ipv6(source, destination, body, 58, hop_limit=255))


def is_request_for(target):
    """Returns true if a frame requests this address, by ARP or ND."""
    if ":" in target:
        return lambda frame: frame[12:14] == b"\x86\xdd" and frame[54:55] == b"\x87" and frame[62:78] == packed(target)
    return lambda frame: frame[12:14] == b"\x08\x06" and frame[21] == 1 and frame[38:42] == packed(target)


def is_datagram_for(target):
    """Returns true if a frame is a UDP datagram to this address."""
    if ":" in target:
        return lambda frame: frame[20:21] == b"\x11" and frame[38:54] == packed(target)
    return lambda frame: frame[23:24] == b"\x11" and frame[30:34] == packed(target)


def answer(target, mac=HOST_B_MAC):
    """The right host's answer to the router's request for `target`."""
    if ":" in target:
        return advertisement(mac, target, "fd00:2::1", RIGHT_MAC, 0x60)
    return arp(2, mac, target, RIGHT_MAC, "10.0.2.1")


# --- the router announces itself ---------------------------------------------------------------


def test_the_router_announces_its_addresses(lab):
    wires = Wires(lab, calm=True)
    heard = []
    while frames := wires.left.expect(1, is_announcement, timeout=0.1):
        heard += frames
    link_local, group = "fe80::ff:fe00:101", "33:33:00:00:00:01"
    gratuitous = arp_request(LEFT_MAC, "10.0.1.1", "10.0.1.1")
    # RFC 5227 2.3: twice; RFC 4861 7.2.6: an advertisement to all nodes for each address.
    assert [f[:42] for f in heard].count(gratuitous) == 2
    assert heard.count(advertisement(LEFT_MAC, "fd00:1::1", "ff02::1", group, 0xA0)) == 2
    assert heard.count(advertisement(LEFT_MAC, link_local, "ff02::1", group, 0xA0)) == 2
    # RFC 3810 5.2: a report of the groups that neighbour discovery needs, with a router alert,
    # so that switches let solicitations through.
    reports = [f for f in heard if f[:6] == mac_bytes("33:33:00:00:00:16")]
    assert reports
    for report in reports:
        assert report[21] == 1 and report[22:38] == packed(link_local)
        assert report[54:62] == bytes.fromhex("3a00050200000100") and report[62] == 143
        for address in ("fd00:1::1", link_local):
            assert packed(solicited(address)[0]) in report[62:]
        payload = report[62:]
        assert checksum(pseudo_header(link_local, "ff02::16", 58, len(payload)) + payload) == 0


# --- the router is asked -------------------------------------------------------------------------


def test_arp_reply(wires):
    change = Change(wires.router)
    wires.left.send(arp_request(HOST_A_MAC, A4, "10.0.1.1"))
    (reply,) = wires.left.expect(1)
    assert reply[:42] == arp(2, LEFT_MAC, "10.0.1.1", HOST_A_MAC, A4) and not any(reply[42:])
    assert change(received=1) == {"received": 1, "originated": 1, "sent": 1, "to_host": 1}


def test_arp_reply_to_an_address_probe(wires):
    # Duplicate address detection (RFC 5227): the sender has no address yet.
    wires.left.send(arp_request("02:00:00:00:01:77", "0.0.0.0", "10.0.1.1"))
    (reply,) = wires.left.expect(1)
    assert reply[:42] == arp(2, LEFT_MAC, "10.0.1.1", "02:00:00:00:01:77", "0.0.0.0")
    assert wires.router.neighbour("0.0.0.0") is None


def test_neighbour_advertisement(wires):
    for own in ("fd00:1::1", "fe80::ff:fe00:101"):
        change = Change(wires.router)
        wires.left.send(solicitation(HOST_A_MAC, A6, own))
        (reply,) = wires.left.expect(1)
        # RFC 4861 7.2.4: a router, solicited, override, with its MAC.
        assert reply == advertisement(LEFT_MAC, own, A6, HOST_A_MAC, 0xE0)
        assert change(received=1) == {"received": 1, "originated": 1, "sent": 1, "to_host": 1}


def test_neighbour_advertisement_to_a_unicast_solicitation(wires):
    wires.left.send(solicitation(HOST_A_MAC, A6, "fd00:1::1", ("fd00:1::1", LEFT_MAC)))
    (reply,) = wires.left.expect(1)
    assert reply == advertisement(LEFT_MAC, "fd00:1::1", A6, HOST_A_MAC, 0xE0)


def test_duplicate_address_detection_is_answered_to_all_nodes(wires):
    wires.left.send(solicitation(HOST_A_MAC, "::", "fd00:1::1"))
    (reply,) = wires.left.expect(1, is_announcement)
    # RFC 4861 7.2.4: to all nodes, not solicited.
    assert reply == advertisement(LEFT_MAC, "fd00:1::1", "ff02::1", "33:33:00:00:00:01", 0xA0)


def test_a_solicitation_for_somebody_else_is_not_answered(wires):
    wires.left.send(solicitation(HOST_A_MAC, A6, "fd00:1::1:1"))
    wires.left.send(solicitation(HOST_A_MAC, A6, "fd00:2::1"))
    assert wires.left.receive(0.2) == []


# --- the router asks -----------------------------------------------------------------------------


def check_request(frame, target):
    if ":" in target:
        # RFC 4861 4.3; a global address of the port as source, so that the answer has a route.
        assert frame == solicitation(RIGHT_MAC, "fd00:2::1", target)
    else:
        assert frame[:42] == arp_request(RIGHT_MAC, "10.0.2.1", target) and not any(frame[42:])


@pytest.mark.parametrize("target", ["10.0.2.40", "fd00:2::40"])
def test_resolution_keeps_the_first_packets_in_order(wires, target):
    frames = [to(target, i) for i in range(QUEUE)]
    change = Change(wires.router)
    wires.left.send(*frames)
    (request,) = wires.right.expect(1)
    check_request(request, target)
    # The queue is full before the answer arrives.
    assert wait_for(lambda: wires.router.neighbour(target)["queued"] == QUEUE)
    wires.right.send(answer(target))
    arrived = wires.right.expect(QUEUE, is_datagram_for(target))
    assert [unpadded(f) for f in arrived] == [forwarded(f, RIGHT_MAC, HOST_B_MAC) for f in frames]
    entry = wires.router.neighbour(target)
    assert (entry["mac"], entry["state"], entry["queued"]) == (HOST_B_MAC, "reachable", 0)
    changed = change(received=QUEUE + 1)
    asked = changed["originated"]
    assert changed == {"received": QUEUE + 1, "originated": asked, "sent": QUEUE + asked, "to_host": 1}
    # From now on the fast path forwards.
    frame = to(target, 99)
    change = Change(wires.router)
    wires.left.send(frame)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    assert change(received=1) == {"received": 1, "sent": 1}


@pytest.mark.provokes("neighbour-failed")
@pytest.mark.parametrize("target", ["10.0.2.50", "fd00:2::50"])
def test_a_neighbour_that_does_not_answer(wires, target):
    frames = [to(target, i) for i in range(2)]
    change = Change(wires.router)
    wires.left.send(*frames)
    errors = wires.left.expect(2, timeout=RETRIES * 1.5 + 2)
    assert len(errors) == 2
    for error, frame in zip(errors, frames):
        packet = error[14:]
        if ":" in target:
            # RFC 4443 3.1 code 3: address unreachable.
            message = icmp6("fd00:1::1", A6, 1, 3, bytes(4), frame[14:])
            assert packet[40:] == message and packet[8:40] == packed("fd00:1::1") + packed(A6)
        else:
            # RFC 1812 5.2.7.1 code 1: host unreachable.
            assert packet[20:22] == b"\x03\x01" and checksum(packet[20:]) == 0
            assert packet[28:] == frame[14:] and packet[12:20] == packed("10.0.1.1") + packed(A4)
    requests = wires.right.receive(0.1)
    assert len(requests) == RETRIES
    for request in requests:
        check_request(request, target)
    assert change(received=2) == {
        "received": 2, "originated": RETRIES + 2, "sent": RETRIES + 2,
        "dropped": {"neighbour-failed": 2},
    }


@pytest.mark.provokes("neighbour-queue-full")
def test_too_many_packets_for_one_neighbour(wires):
    target, more = "10.0.2.60", 5
    change = Change(wires.router)
    wires.left.send(*(to(target, i) for i in range(QUEUE + more)))
    # The queue is full, and stays so for the second that an answer may take.
    assert wait_for(lambda: wires.router.show("counters")["in_flight"] == QUEUE)
    wires.right.send(answer(target))
    arrived = wires.right.expect(QUEUE, is_datagram_for(target))
    # The waiting packets are sent, in order; the choice of those among the nine is the router's.
    idents = [struct.unpack_from("!H", frame, 18)[0] for frame in arrived]
    assert len(idents) == QUEUE and idents == sorted(idents)
    changed = change(received=QUEUE + more + 1)
    assert changed["dropped"] == {"neighbour-queue-full": more}
    assert changed["sent"] == QUEUE + changed["originated"]


def test_an_answer_nobody_asked_for_makes_no_entry(wires):
    # RFC 4861 7.2.5: an advertisement does not create an entry. ARP replies likewise.
    wires.right.send(answer("10.0.2.70"), answer("fd00:2::70"))
    wires.right.receive(0.1)
    assert wires.router.neighbour("10.0.2.70") is None
    assert wires.router.neighbour("fd00:2::70") is None


@pytest.mark.parametrize("target", ["10.0.2.80", "fd00:2::80"])
def test_a_neighbour_that_changes_its_mac(wires, target):
    moved = "02:00:00:00:02:99"
    wires.left.send(to(target))
    assert wires.right.expect(1, is_request_for(target))
    wires.right.send(answer(target))
    assert wires.right.expect(1, is_datagram_for(target))
    if ":" in target:
        wires.right.send(advertisement(moved, target, "ff02::1", "33:33:00:00:00:01", 0x20))
    else:
        wires.right.send(arp_request(moved, target, target))  # gratuitous
    assert wait_for(lambda: wires.router.neighbour(target)["mac"] == moved)
    frame = to(target)
    wires.left.send(frame)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, moved)]


def test_a_static_neighbour_is_neither_asked_nor_believed_otherwise(wires):
    assert wires.router.neighbour(A4)["static"] and wires.router.neighbour(A6)["static"]
    wires.left.send(arp_request("02:00:00:00:01:66", A4, "10.0.1.1"))
    wires.left.send(advertisement("02:00:00:00:01:66", A6, "ff02::1", "33:33:00:00:00:01", 0x20))
    wires.left.receive(0.1)
    for own, source in ((A4, "10.0.2.2"), (A6, "fd00:2::2")):
        assert wires.router.neighbour(own)["mac"] == HOST_A_MAC
        make, ethertype = (ipv6, 0x86DD) if ":" in own else (ipv4, 0x0800)
        frame = ethernet(RIGHT_MAC, HOST_B_MAC, ethertype, make(source, own, pattern(40)))
        wires.right.send(frame)
        assert wires.left.expect(1) == [forwarded(frame, LEFT_MAC, HOST_A_MAC)]


def test_a_stranger_does_not_become_the_neighbour_of_another_network(wires):
    # On the left wire a host claims an address of the right network.
    wires.left.send(arp_request("02:00:00:00:01:66", "10.0.2.90", "10.0.1.1"))
    wires.left.receive(0.1)
    assert wires.router.neighbour("10.0.2.90") is None


def test_who_asks_is_known_from_then_on(wires):
    # RFC 826: the sender's addresses are learned from its request. RFC 4861 7.2.3 likewise.
    # The last test with these wires: five seconds after use the router probes its neighbours (RFC 4861 7.3.3), which
    # would disturb the counts of other tests.
    wires.right.send(arp_request(HOST_B_MAC, "10.0.2.30", "10.0.2.1"))
    wires.right.send(solicitation(HOST_B_MAC, "fd00:2::30", "fd00:2::1"))
    assert len(wires.right.expect(2)) == 2
    for address in ("10.0.2.30", "fd00:2::30"):
        entry = wires.router.neighbour(address)
        assert (entry["port"], entry["mac"], entry["static"]) == ("right", HOST_B_MAC, False)
        frame = to(address)
        wires.left.send(frame)
        assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]


@pytest.mark.provokes("neighbour-table-full")
def test_the_table_is_bounded(lab):
    limit = 20
    wires = Wires(lab, f"turnpike.slowpath {{ neighbours = {limit}, retries = 1 }}")
    fixed = len(wires.router.show("neighbours"))
    change = Change(wires.router)
    count = 100
    wires.left.send(*(to(f"10.0.2.{100 + i}", i) for i in range(count)))
    room = limit - fixed
    assert wait_for(lambda: wires.router.show("counters")["in_flight"] == room)
    assert len(wires.router.show("neighbours")) == limit
    # A waiting packet is dropped after its time.
    assert change(received=count)["dropped"] == {
        "neighbour-table-full": count - room, "neighbour-failed": room}

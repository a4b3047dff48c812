"""Equal-cost paths: a flow stays on one, many flows use all."""

import collections

import pytest

from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Wires
from lib.packets import ethernet, icmp, icmp6, ipv4, ipv6, mac_bytes, pattern, udp
from lib.router import Change

# Four gateways on the right, distinguished by their MACs.
GATEWAYS = {n: f"02:00:00:00:02:1{n}" for n in range(4)}

CONFIG = "".join(
    f"""
turnpike.neighbour "10.0.2.1{n}" {{ port = "right", mac = "{mac}" }}
turnpike.neighbour "fd00:2::1{n}" {{ port = "right", mac = "{mac}" }}
"""
    for n, mac in GATEWAYS.items()
) + """
turnpike.route "203.0.113.0/24" { via = { "10.0.2.10", "10.0.2.11", "10.0.2.12", "10.0.2.13" } }
turnpike.route "2001:db8::/32" { via = { "fd00:2::10", "fd00:2::11", "fd00:2::12", "fd00:2::13" } }
turnpike.route "198.51.100.0/24" { via = { { "10.0.2.10", weight = 3 }, "10.0.2.11" } }
"""


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, CONFIG, ports=PORTS, calm=True)


@pytest.fixture(autouse=True)
def silence(wires):
    wires.drain()


def frame(family, sport, destination=None, source=2, size=30, **fields):
    if family == 4:
        a, b = f"10.0.1.{source}", destination or "203.0.113.5"
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(a, b, udp(a, b, sport, 53, pattern(size)), **fields))
    a, b = f"fd00:1::{source}", destination or "2001:db8:1::5"
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(a, b, udp(a, b, sport, 53, pattern(size)), **fields))


def paths(wires, frames):
    """For each frame, the gateway that received it, in the order of sending."""
    number = {mac_bytes(mac): n for n, mac in GATEWAYS.items()}
    change = Change(wires.router)
    wires.left.send(*frames)
    arrived = wires.right.expect(len(frames))
    assert change(received=len(frames)) == {"received": len(frames), "sent": len(frames)}
    assert all(f[6:12] == mac_bytes(RIGHT_MAC) for f in arrived)
    return [number[f[:6]] for f in arrived]


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_a_flow_keeps_its_path(wires, family):
    for sport in (1000, 1001, 1002, 40000):
        # Length, TTL, identification and payload are no part of a flow.
        flow = [frame(family, sport, size=20 + i) for i in range(40)]
        assert len(set(paths(wires, flow))) == 1


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_flows_that_differ_in_their_port_use_all_paths(wires, family):
    check_even(paths(wires, [frame(family, 1024 + i) for i in range(800)]))


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_flows_that_differ_in_their_destination_use_all_paths(wires, family):
    many = [f"203.0.113.{i}" if family == 4 else f"2001:db8:{i:x}::1" for i in range(200)]
    check_even(paths(wires, [frame(family, 1000, to) for to in many]), 0.12)


def check_even(chosen, least=0.17):
    """Every path has its quarter, approximately; 0.17 of 800 is five standard deviations off."""
    share = {n: count / len(chosen) for n, count in collections.Counter(chosen).items()}
    assert set(share) == set(GATEWAYS) and min(share.values()) > least, share


def test_weights_are_kept(wires):
    chosen = paths(wires, [frame(4, 1024 + i, "198.51.100.7") for i in range(1000)])
    share = collections.Counter(chosen)
    assert set(share) == {0, 1} and 680 < share[0] < 820, share


def test_fragments_of_a_datagram_stay_together(wires):
    # Only the first fragment has the ports, so none may use them (RFC 6438, RFC 2992).
    a, b = "10.0.1.2", "203.0.113.9"
    for ident in range(8):
        whole = udp(a, b, 1000 + ident, 53, pattern(2000))
        parts = [(1, 0, whole[:800]), (1, 100, whole[800:1600]), (0, 200, whole[1600:])]
        frames = [
            ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(a, b, data, ident=ident, flags=f, offset=o))
            for f, o, data in parts
        ]
        assert len(set(paths(wires, frames))) == 1


def test_echo_requests_of_one_ping_stay_together(wires):
    a, b = "10.0.1.2", "203.0.113.9"
    v4 = [ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(
        a, b, icmp(8, 0, bytes([0, 9, 0, i]), pattern(56)), protocol=1)) for i in range(20)]
    assert len(set(paths(wires, v4))) == 1
    a, b = "fd00:1::2", "2001:db8::9"
    v6 = [ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(
        a, b, icmp6(a, b, 128, 0, bytes([0, 9, 0, i]), pattern(56)), 58)) for i in range(20)]
    assert len(set(paths(wires, v6))) == 1


def test_show_route_names_all_paths(wires):
    route = wires.router.show("route", "203.0.113.77")
    assert route["prefix"] == "203.0.113.0/24" and route["address"] == "203.0.113.77"
    assert {(p["via"], p["port"], p["mac"]) for p in route["paths"]} == {
        (f"10.0.2.1{n}", "right", mac) for n, mac in GATEWAYS.items()
    }


def tunnelled(sport):
    """A packet of UDP in IP in IP, between two ends of a tunnel."""
    a, b = "192.0.2.1", "192.0.2.2"
    inner = ipv4(a, b, udp(a, b, sport, 53, pattern(30)))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "203.0.113.5", inner, protocol=4))


def test_packets_of_a_tunnel_take_one_path(wires):
    assert len(set(paths(wires, [tunnelled(1024 + i) for i in range(100)]))) == 1


def test_flows_in_a_tunnel_use_all_paths_if_that_is_configured(lab):
    inner = Wires(lab, CONFIG + "turnpike.forwarding { hash = { inner = true } }\n", ports=PORTS, calm=True)
    check_even(paths(inner, [tunnelled(1024 + i) for i in range(800)]))
    assert len(set(paths(inner, [tunnelled(1024)] * 20))) == 1


def test_routers_with_one_seed_choose_alike_in_both_directions(lab):
    config = CONFIG + "turnpike.forwarding { hash = { symmetric = true, seed = 7 } }\n"
    one, two = (Wires(lab, config, ports=PORTS, calm=True) for _ in range(2))
    there = [frame(4, 1024 + i) for i in range(100)]
    a, b = "203.0.113.5", "10.0.1.2"
    back = [
        ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("203.0.113.5", "203.0.113.9", udp(a, b, 53, 1024 + i, pattern(30))))
        for i in range(100)
    ]
    pairs = [
        ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("203.0.113.9", "203.0.113.5", udp(a, b, 1024 + i, 53, pattern(30))))
        for i in range(100)
    ]
    assert paths(one, there) == paths(two, there)
    assert paths(one, pairs) == paths(two, back)


def test_another_group_keeps_the_flows_of_remaining_paths_if_that_is_configured(lab):
    wires = Wires(lab, CONFIG + "turnpike.forwarding { resilient = true }\n", ports=PORTS, calm=True)
    for family, prefix, gateway in ((4, "203.0.113.0/24", "10.0.2.1"), (6, "2001:db8::/32", "fd00:2::1")):
        flows = [frame(family, 1024 + i) for i in range(400)]
        before = paths(wires, flows)
        check_even(before, 0.15)
        # As zebra does it: another group, of three.
        words = [word for n in range(3) for word in ("via", f"{gateway}{n}")]
        wires.router.command("route", "add", prefix, *words)
        after = paths(wires, flows)
        assert [n for n in before if n != 3] == [then for now, then in zip(before, after) if now != 3]
        moved = collections.Counter(then for now, then in zip(before, after) if now == 3)
        assert set(moved) == {0, 1, 2}, moved

"""Routes and neighbours that commands add and remove, and how they are shown."""

import json
import socket

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from lib.packets import ethernet, ipv4, mac_bytes, pattern, udp
from lib.router import Change

CONFIG = """
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.route "10.9.0.0/16" { via = "10.0.2.2" }
"""


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, CONFIG)


def frame(destination, sport=1000):
    packet = ipv4("10.0.1.2", destination, udp("10.0.1.2", destination, sport, 53, pattern(20)))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet)


def arrives(wire, sent):
    """The forwarded copy of a frame, which the wire is to carry next; errors to senders aside."""
    found = wire.expect(1, lambda got: got[30:34] == sent[30:34])
    return found[0] if found else None


def refused(router, *words):
    """The message of a command that must fail."""
    done = router.command(*words, check=False)
    assert done.returncode != 0 and "panicked" not in done.stderr, done
    return done.stderr


def test_a_route_is_used_at_once_and_gone_at_once(wires, router):
    change = Change(router)
    wires.left.send(frame("203.0.113.1"))
    assert change(received=1)["dropped"] == {"no-route": 1}
    added = router.command("route", "add", "203.0.113.0/24", "via", "10.0.2.2").stdout
    assert added == "route 203.0.113.0/24: added\n"
    wires.left.send(frame("203.0.113.1"))
    sent = arrives(wires.right, frame("203.0.113.1"))
    assert sent[:12] == mac_bytes(HOST_B_MAC) + mac_bytes(RIGHT_MAC)
    (route,) = router.show("routes", "--source", "command")
    assert route["prefix"] == "203.0.113.0/24" and route["active"] and route["metric"] == 0
    assert router.command("route", "del", "203.0.113.0/24").stdout.strip().endswith("removed")
    change = Change(router)
    wires.left.send(frame("203.0.113.1"))
    assert change(received=1)["dropped"] == {"no-route": 1}


def test_a_command_goes_before_the_configuration(wires, router):
    router.command("route", "add", "198.51.100.0/24", "blackhole")
    change = Change(router)
    wires.left.send(frame("198.51.100.1"))
    assert change(received=1)["dropped"] == {"blackhole": 1}
    answer = router.show("route", "198.51.100.1")
    assert (answer["source"], answer["type"]) == ("command", "blackhole")
    sources = [(r["source"], r["active"], r.get("inactive")) for r in answer["candidates"]]
    assert sources == [("command", True, None), ("static", False, "shadowed")]
    assert "not used: 198.51.100.0/24" in router.command("show", "route", "198.51.100.1").stdout
    router.command("route", "del", "198.51.100.0/24")
    wires.left.send(frame("198.51.100.1"))
    assert arrives(wires.right, frame("198.51.100.1"))


def test_metrics_and_replacement(router):
    add = ("route", "add", "203.0.113.0/24", "via")
    assert router.command(*add, "10.0.2.2", "metric", 5).stdout.strip().endswith(": added")
    assert router.command(*add, "10.0.1.2", "metric", 3).stdout.strip().endswith(": added")
    replaced = router.command(*add, "10.0.2.9", "metric", 5).stdout.strip()
    assert replaced.endswith(": replaced; not used: another route to the prefix is preferred (shadowed)")
    routes = router.show("routes", "--prefix", "203.0.113.0/24")
    told = [(r["metric"], r["paths"][0]["via"], r["active"]) for r in routes]
    assert told == [(3, "10.0.1.2", True), (5, "10.0.2.9", False)]
    router.command("route", "del", "203.0.113.0/24", "metric", 3)
    assert router.show("route", "203.0.113.1")["paths"][0]["via"] == "10.0.2.9"


def test_every_flow_takes_the_path_that_is_told(wires, router):
    router.command("route", "add", "203.0.113.0/24", "via", "10.0.1.2", "weight", 3, "via", "10.0.2.2")
    (route,) = router.show("routes", "--prefix", "203.0.113.0/24")
    assert [path.get("weight", 1) for path in route["paths"]] == [3, 1]
    ways = set()
    for sport in range(1000, 1040):
        flow = ("--from", "10.0.1.2", "--protocol", "udp", "--sport", sport, "--dport", 53)
        paths = router.show("route", "203.0.113.1", *flow)["paths"]
        (taken,) = [path["port"] for path in paths if path.get("taken")]
        wires.left.send(frame("203.0.113.1", sport))
        wire = wires.left if taken == "left" else wires.right
        assert arrives(wire, frame("203.0.113.1")), f"port {sport} did not leave by {taken}"
        ways.add(taken)
    assert ways == {"left", "right"}
    text = router.command("show", "route", "203.0.113.1", "--from", "10.0.1.2").stdout
    assert text.count("<- this flow") == 1


def test_a_recursive_gateway_follows_the_route_to_it(wires, router):
    router.command("route", "add", "203.0.113.0/24", "via", "10.9.0.1")
    packet = frame("203.0.113.1")
    wires.left.send(packet)
    assert arrives(wires.right, packet)
    router.command("route", "add", "10.9.0.0/24", "via", "10.0.1.2")
    wires.left.send(packet)
    assert arrives(wires.left, packet)
    router.command("route", "del", "10.9.0.0/24")
    wires.left.send(packet)
    assert arrives(wires.right, packet)


def test_a_neighbours_mac_is_given_and_taken(wires, router):
    other = "02:00:00:00:02:77"
    router.command("neighbour", "add", "10.0.2.77", "lladdr", other, "dev", "right")
    assert router.neighbour("10.0.2.77")["static"] is True
    wires.left.send(frame("10.0.2.77"))
    assert arrives(wires.right, frame("10.0.2.77"))[:6] == mac_bytes(other)
    router.command("neighbour", "del", "10.0.2.77", "dev", "right")
    assert router.neighbour("10.0.2.77") is None
    assert "not known on port" in refused(router, "neighbour", "del", "10.0.2.77", "dev", "right")


@pytest.mark.parametrize("words, expected", [
    ("route add 203.0.113.7/24 via 10.0.2.2", "host bits are set; the prefix is 203.0.113.0/24"),
    ("route add 224.0.0.0/8 via 10.0.2.2", "never forwarded"),
    ("route add 203.0.113.0/24 via 10.0.2.1", "the router's own address (port \"right\")"),
    ("route add 203.0.113.0/24 via 224.0.0.9", "a multicast address"),
    ("route add 203.0.113.0/24 via 10.0.2.255", "is the network's broadcast address of 10.0.2.0/24, not a host's"),
    ("route add 203.0.113.0/24 via 10.0.2.2 dev left", "is on port \"right\" (10.0.2.0/24); correct dev, or leave it out"),
    ("route add 203.0.113.0/24 via 10.0.2.2 dev lfet", "port \"lfet\": unknown; ports: left, right"),
    ("route add 203.0.113.0/24 via fe80::1", "link-local, every port has that network; add dev PORT"),
    ("route add 203.0.113.0/24 via 10.0.2.2 weight 0", "weight 0 of path 10.0.2.2; a weight is 1 to 256"),
    ("route add 203.0.113.0/24", "no next hop"),
    ("route del 203.0.113.0/24", "there is none"),
    ("route del 198.51.100.0/24", "no command added it; there is one from static"),
    ("route del 198.51.100.0/24 metric x", "metric \"x\""),
    ("neighbour add 10.0.2.9 lladdr 01:00:00:00:00:01 dev right", "use a unicast address"),
    ("neighbour add 10.0.2.9 lladdr 02:00 dev right", "lladdr \"02:00\""),
    ("neighbour add 10.0.2.9 lladdr 02:00:00:00:00:01 dev nowhere", "ports: left, right"),
    ("show routes --source kernal", "source \"kernal\": unknown; known: "),
    ("show routes --longer", "--prefix"),
    ("show route 10.0.2.2 --from fd00::1", "a flow's addresses are of one family"),
    ("show route 10.0.2.2 --from 10.0.1.2 --protocol tpc", "known: icmp, igmp"),
])
def test_errors_name_the_value_and_the_way_out(router, words, expected):
    assert expected in refused(router, *words.split())
    assert router.show("routes", "--source", "command") == []


def test_routes_by_prefix(router):
    router.command("route", "add", "198.51.100.64/26", "via", "10.0.1.2")
    show = lambda *how: [r["prefix"] for r in router.show("routes", "--prefix", *how)]  # noqa: E731
    assert show("198.51.100.0/24") == ["198.51.100.0/24"]
    assert show("198.51.100.0/24", "--longer") == ["198.51.100.0/24", "198.51.100.64/26"]
    assert show("198.51.0.0/16") == []
    assert show("192.0.0.0/2", "--longer")[-1] == "255.255.255.255/32"
    assert router.command("show", "routes", "--prefix", "198.51.0.0/16").stdout.startswith("PREFIX")


def test_more_routes_than_a_page_holds(router):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(router.socket))
        lines = client.makefile("rw")
        for n in range(2500):
            prefix = f"100.{64 + n // 256}.{n % 256}.0/24"
            add = {"prefix": prefix, "paths": [{"via": "10.0.2.2"}]}
            lines.write(json.dumps({"route": {"add": add}}) + "\n")
            lines.flush()
            assert json.loads(lines.readline()) == {"ok": {"change": "added"}}
        try:
            routes = router.show("routes", "--source", "command")
            assert len(routes) == len({r["prefix"] for r in routes}) == 2500
            assert router.show("routes", "--summary")["sources"]["command"] == {"ipv4": 2500, "ipv6": 0}
            text = router.command("show", "routes", "--all").stdout.splitlines()
            assert sum(" command " in line for line in text) == 2500
        finally:
            for route in router.show("routes", "--source", "command"):
                lines.write(json.dumps({"route": {"del": {"prefix": route["prefix"]}}}) + "\n")
                lines.flush()
                assert json.loads(lines.readline()) == {"ok": {"change": "removed"}}


def test_sources(router):
    sources = {s["name"]: s for s in router.show("sources")}
    assert sources["static"]["ipv4"] == 2 and sources["static"]["state"] == "ready"
    assert "kernel" not in sources and "remote" not in sources["connected"]
    assert "static" in router.command("show", "sources").stdout

"""Sets of prefixes that follow routes: by source, by origin AS of an import, and known neighbours."""

import subprocess

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from lib.apply import apply, plan
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Wires
from lib.netns import wait_for
from lib.packets import forwarded
from lib.router import Change, binary

LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
NEIGHBOURS = f"""
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "fd00:2::2" {{ port = "right", mac = "{HOST_B_MAC}" }}
"""
CONFIG = PORTS.replace('"tp-left",', '"tp-left", filter = "in",') + NEIGHBOURS + """
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.route "2001:db8:51::/48" { via = "fd00:2::2" }
turnpike.route "0.0.0.0/0" { via = "10.0.2.2" }
turnpike.import { file = "table.dat", via = "10.0.2.2" }
turnpike.prefix_set "static" { routes = "static" }
turnpike.prefix_set "as" { "192.0.2.0/24", origin_as = { 64500, 64502 } }
turnpike.prefix_set "known" { routes = "neighbour" }
turnpike.prefix_set "either" { routes = { "command", "import" } }
turnpike.filter "in" {
  { name = "static", from_set = "static" },
  { name = "as", from_set = "as" },
  { name = "known", from_set = "known" },
  { name = "either", from_set = "either" },
  default = "drop",
}
"""
TABLE = b"20.0.0.0/16\t64500\n20.1.0.0/16\t64501\n20.2.0.0/16\t64502\n"


@pytest.fixture
def wires(lab):
    made = Wires(lab, ports=CONFIG, calm=True, files={"table.dat": TABLE})
    assert wait_for(lambda: elements(made, "either") == ["20.0.0.0/16", "20.1.0.0/16", "20.2.0.0/16"], 10)
    return made


def elements(wires, name, by="routes"):
    (found,) = [row for row in wires.router.show("sets") if row["name"] == name]
    return [element["prefix"] for element in found["elements"] if element["by"] == by]


def rule(wires, source):
    """The rule that a packet from this source matches; `None`: none, and it is dropped."""
    wires.drain()
    (before,) = [row for row in wires.router.show("filters") if row["name"] == "in"]
    family, to = (IPv6, "fd00:2::2") if ":" in source else (IP, "10.0.2.2")
    frame, change = bytes(LINK / family(src=source, dst=to) / UDP(dport=9) / Raw(b"some bytes of data")), Change(wires.router)
    wires.left.send(frame)
    dropped = change(received=1).get("dropped", {})
    (after,) = [row for row in wires.router.show("filters") if row["name"] == "in"]
    matched = [new["name"] for old, new in zip(before["rules"], after["rules"]) if new["packets"] != old["packets"]]
    if not matched:
        assert dropped == {"filtered": 1}
        return None
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    return matched[0]


def test_sets_follow_routes_by_source(wires):
    assert elements(wires, "static") == ["198.51.100.0/24", "2001:db8:51::/48"], "no default route"
    assert (rule(wires, "198.51.100.9"), rule(wires, "2001:db8:51::9")) == ("static", "static")
    assert rule(wires, "203.0.113.9") is None
    wires.router.command("route", "add", "203.0.113.0/24", "via", "10.0.2.2")
    assert wait_for(lambda: "203.0.113.0/24" in elements(wires, "either"), 5)
    assert rule(wires, "203.0.113.9") == "either"
    wires.router.command("route", "del", "203.0.113.0/24")
    assert wait_for(lambda: "203.0.113.0/24" not in elements(wires, "either"), 5)
    assert rule(wires, "203.0.113.9") is None
    # An element of a command stays when the route goes.
    wires.router.command("set", "add", "static", "198.51.100.0/24")
    apply(wires.router, CONFIG.replace('turnpike.route "198.51.100.0/24"', 'turnpike.route "198.51.0.0/16"'))
    assert wait_for(lambda: elements(wires, "static") == ["198.51.0.0/16", "2001:db8:51::/48"], 5)
    assert elements(wires, "static", "command") == ["198.51.100.0/24"]


def test_sets_follow_the_origin_as_of_imports(wires):
    assert elements(wires, "as") == ["20.0.0.0/16", "20.2.0.0/16"]
    assert elements(wires, "as", "configuration") == ["192.0.2.0/24"]
    assert [rule(wires, f"20.{n}.0.1") for n in range(3)] == ["as", "either", "as"]
    routes = {route["prefix"]: route for route in wires.router.show("routes") if route["source"] == "import"}
    assert routes["20.1.0.0/16"]["origin_as"] == 64501 and routes["20.1.0.0/16"]["metric"] == 0
    # The same prefixes of other ASes.
    (wires.router.directory / "table.dat").write_bytes(TABLE.replace(b"64501", b"64509").replace(b"64500", b"64501").replace(
        b"64509", b"64500"))
    apply(wires.router, CONFIG)
    assert wait_for(lambda: elements(wires, "as") == ["20.1.0.0/16", "20.2.0.0/16"], 10), elements(wires, "as")
    assert [rule(wires, f"20.{n}.0.1") for n in range(3)] == ["either", "as", "as"]
    assert len([route for route in wires.router.show("routes") if route["source"] == "import"]) == 3


def test_sets_follow_known_neighbours(wires):
    assert elements(wires, "known") == ["10.0.2.2/32", "fd00:2::2/128"]
    assert rule(wires, "10.0.1.7") is None
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff")
                          / ARP(op=1, hwsrc=HOST_A_MAC, psrc="10.0.1.7", hwdst="00:00:00:00:00:00", pdst="10.0.1.1")))
    assert wait_for(lambda: "10.0.1.7/32" in elements(wires, "known"), 10)
    assert (rule(wires, "10.0.1.7"), rule(wires, "10.0.1.8")) == ("known", None)


def test_other_routes_are_planned_and_applied(wires):
    changed = CONFIG.replace('routes = "static"', 'routes = { "import", "connected" }').replace("64500, 64502", "64501")
    planned = str(plan(wires.router, changed)[0])
    assert "static in VRF default" in planned and "import of AS 64501" in planned.replace(" in VRF default of", " of"), planned
    apply(wires.router, changed)
    wanted = ["10.0.1.0/24", "10.0.2.0/24", "20.0.0.0/16", "20.1.0.0/16", "20.2.0.0/16", "fd00:1::/64", "fd00:2::/64"]
    assert wait_for(lambda: elements(wires, "static") == wanted, 5), elements(wires, "static")
    assert wait_for(lambda: elements(wires, "as") == ["20.1.0.0/16"], 5)
    assert (rule(wires, "198.51.100.9"), rule(wires, "10.0.1.8")) == (None, "static")


@pytest.mark.parametrize("settings, said", [
    ('routes = "bgp"', 'routes: "bgp" unknown'),
    ('routes = "kernel", origin_as = 64500', "only routes of turnpike.import have one"),
    ('origin_as = "x"', "expected the number of an AS"),
    ('vrf = "default"', "the set follows no routes"),
    ('"10.0.0.0/8", source = "static"', 'key "source" unknown'),
])
def test_mistakes_are_named(tmp_path, settings, said):
    file = tmp_path / "f.lua"
    file.write_text(f'local turnpike = require "turnpike"\nturnpike.prefix_set "s" {{ {settings} }}\n'
                    'turnpike.port "a" { device = "eth0" }\n')
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and said in done.stdout + done.stderr, done

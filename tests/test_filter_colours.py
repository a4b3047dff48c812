"""Three-colour meters that take account of the colours with which packets arrive (RFC 2697 and RFC 2698, colour-aware)."""

import subprocess

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply, plan
from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.router import binary

MARKS = 'yellow = { dscp = "af12" }, red = { dscp = "af13" }'
FILTER = f"""
turnpike.filter "edge-in" {{
  {{ name = "single", proto = "udp", to_port = 1, mark = {{ dscp = "af11" }},
    police = {{ rate = "1pps", burst = "20", excess = "30", aware = true, {MARKS} }} }},
  {{ name = "two", proto = "udp", to_port = 2, mark = {{ dscp = "af11" }},
    police = {{ rate = "1pps", burst = "20", peak = "1pps", peak_burst = "50", aware = true, {MARKS} }} }},
  {{ name = "own", proto = "udp", to_port = 3,
    police = {{ rate = "1000pps", burst = "1000", excess = "1000", aware = {{ yellow = {{ "cs1", 20 }}, red = "cs2" }} }} }},
}}
"""
CONFIG = PORTS.replace('"tp-left",', '"tp-left", filter = "edge-in",') + STATIC_NEIGHBOURS + FILTER
GREEN, YELLOW, RED = 10, 12, 14


@pytest.fixture
def wires(lab):
    return Wires(lab, ports=CONFIG, calm=True)


def colours(wires, name):
    (shown,) = [rule for rule in wires.router.show("filters")[0]["rules"] if rule["name"] == name]
    return shown["colours"]


def sent(wires, name, port, dscp, count, family=IP):
    """Sends packets with this DSCP. Returns their numbers of green, yellow and red ones, and the DSCPs of those that
    arrive."""
    before = colours(wires, name)
    ip = IP(src="10.0.1.2", dst="10.0.2.2", tos=dscp << 2) if family is IP else IPv6(src="fd00:1::2", dst="fd00:2::2", tc=dscp << 2)
    frame = bytes(Ether(src=HOST_A_MAC, dst=LEFT_MAC) / ip / UDP(dport=port) / Raw(b"payload of some bytes"))
    wires.right.drain()
    wires.left.send(*[frame] * count)
    counted = lambda: {of: number - before[of] for of, number in colours(wires, name).items()}  # noqa: E731
    assert wait_for(lambda: sum(counted().values()) == count, 5)
    found = counted()
    passing = count - (found["red"] if name == "own" else 0)
    arrived = [Ether(of) for of in wires.right.expect(passing)]
    assert len(arrived) == passing
    tos = [(of[IPv6].tc if IPv6 in of else of[IP].tos) >> 2 for of in arrived]
    return [found[of] for of in ("green", "yellow", "red")], {dscp: tos.count(dscp) for dscp in set(tos)}


@pytest.mark.parametrize("family", [IP, IPv6])
@pytest.mark.parametrize("name, port", [("single", 1), ("two", 2)])
def test_a_colour_becomes_no_better(wires, name, port, family):
    # Red ones take nothing, though both bursts are full.
    assert sent(wires, name, port, RED, 10, family) == ([0, 0, 10], {RED: 10})
    # Yellow ones take from the second bucket alone.
    assert sent(wires, name, port, YELLOW, 25, family) == ([0, 25, 0], {YELLOW: 25})
    # The first burst is left for green ones, which become yellow and red after it.
    (green, yellow, red), arrived = sent(wires, name, port, GREEN, 60, family)
    # A packet a second comes back.
    assert 20 <= green <= 30 and 5 <= yellow <= 15 + green and yellow + red == 60 - green and red >= 20
    assert arrived == {GREEN: green, YELLOW: yellow, RED: red}
    if name == "two":
        assert green + yellow <= 35, "the peak's burst, of which yellow ones took 25"


@pytest.mark.provokes("policed")
def test_dscps_have_the_colours_that_a_rule_says(wires):
    assert sent(wires, "own", 3, 8, 5) == ([0, 5, 0], {8: 5})
    assert sent(wires, "own", 3, 20, 5) == ([0, 5, 0], {20: 5})
    assert sent(wires, "own", 3, 16, 5) == ([0, 0, 5], {}), "red is drop"
    for dscp in (0, 10, 12, 14):
        assert sent(wires, "own", 3, dscp, 5) == ([5, 0, 0], {dscp: 5})


def test_a_change_is_planned_and_applied(wires):
    text = wires.router.command("show", "filters", "edge-in").stdout
    assert "yellow pass, red drop, aware yellow 8,20 red 16" in text and "red dscp 14, aware" in text, text
    changed = CONFIG.replace(', aware = { yellow = { "cs1", 20 }, red = "cs2" }', "")
    planned = str(plan(wires.router, changed)[0])
    assert "aware yellow 8,20 red 16" in planned, planned
    apply(wires.router, changed)
    assert sent(wires, "own", 3, 16, 5) == ([5, 0, 0], {16: 5}), "colour-blind"


@pytest.mark.parametrize("police, said", [
    ('{ rate = "1pps", aware = true }', "aware needs a second bucket"),
    ('{ rate = "1pps", excess = "5", aware = { yellow = "af12", red = { "af13", "af12" } } }',
     "aware: a DSCP is both yellow and red"),
    ('{ rate = "1pps", excess = "5", aware = {} }', "aware: no DSCP is yellow or red"),
    ('{ rate = "1pps", excess = "5", aware = { yellow = 64 } }', 'yellow: dscp "64"'),
    ('{ rate = "1pps", excess = "5", aware = "af12" }', "aware: expected true or false"),
])
def test_mistakes_are_named(tmp_path, police, said):
    file = tmp_path / "f.lua"
    file.write_text('local turnpike = require "turnpike"\n'
                    f'turnpike.filter "f" {{ {{ police = {police} }} }}\n'
                    'turnpike.port "a" { device = "eth0", filter = "f" }\n')
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert said in done.stdout + done.stderr, done

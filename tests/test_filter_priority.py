"""Filters match the priority of VLAN tags: of tagged frames, of priority-tagged ones, and of frames that are no IP packets."""

import re
import subprocess

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply, plan
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import forwarded, tagged
from lib.router import Change, binary

FILTERS = """
turnpike.filter "by-priority" {
  { name = "network", priority = { 6, 7 }, action = "drop", log = true },
  { name = "voice", priority = 5, proto = "udp", to_port = 5060, mark = { dscp = "ef" } },
  { name = "lldp", ethertype = "lldp", priority = 7, action = "drop" },
  { name = "any-lldp", ethertype = "lldp", action = "drop" },
  { name = "plain", priority = 0 },
  default = "drop",
}
"""
VLANS = """
turnpike.vlan "left.100" { parent = "left", id = 100, filter = "by-priority", address = { "10.0.100.1/24", "fd00:100::1/64" } }
turnpike.vlan "outer" { parent = "left", id = 200, protocol = "802.1ad", filter = "by-priority" }
turnpike.vlan "inner" { parent = "outer", id = 7, filter = "by-priority", address = "10.0.7.1/24", mtu = 1496 }
"""
CONFIG = PORTS.replace('"tp-left",', '"tp-left", filter = "by-priority",') + STATIC_NEIGHBOURS + FILTERS + VLANS
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
PAYLOAD = Raw(b"payload of some bytes")


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, ports=CONFIG, mtu=(1508, 1508), calm=True)


def rules(wires):
    (shown,) = [row for row in wires.router.show("filters") if row["name"] == "by-priority"]
    return shown["rules"]


def hits(wires):
    return {rule["name"]: rule["packets"] for rule in rules(wires)}


def sent(wires, frame, *tags):
    """The rules that have matched the frame, sent with these tags, outer first; the frames that arrive; and drops."""
    wires.drain()
    before, change = hits(wires), Change(wires.router)
    for protocol, priority, vlan in reversed(tags):
        frame = tagged(frame, vlan, protocol, priority)
    wires.left.send(frame)
    what = change(received=1)
    arrived = wires.right.expect(1) if what.get("sent") else []
    matched = [name for name, count in hits(wires).items() if count != before[name]]
    return matched, arrived, what.get("dropped", {})


def packet(source, port=9):
    family = IPv6 if ":" in source else IP
    return bytes(LINK / family(src=source, dst="fd00:2::2" if family is IPv6 else "10.0.2.2") / UDP(dport=port) / PAYLOAD)


@pytest.mark.parametrize("tags, source", [
    ([(0x8100, None, 100)], "10.0.100.2"),
    ([(0x8100, None, 100)], "fd00:100::2"),
    ([(0x88A8, None, 200), (0x8100, 0, 7)], "10.0.7.2"),
    ([(0x8100, None, 0)], "10.0.1.2"),
], ids=["a VLAN", "IPv6 on a VLAN", "the outer of two tags", "a priority tag"])
def test_the_priority_of_a_tag_is_matched(wires, tags, source):
    def of(priority, port=9):
        own = [(protocol, priority if given is None else given, vlan) for protocol, given, vlan in tags]
        return sent(wires, packet(source, port), *own)

    for priority in (6, 7):
        assert of(priority) == (["network"], [], {"filtered": 1})
    assert of(5, port=9) == ([], [], {"filtered": 1})
    matched, (arrived,), _ = of(5, port=5060)
    whole = Ether(arrived)
    assert matched == ["voice"] and (whole[IPv6].tc if IPv6 in whole else whole[IP].tos) == 46 << 2
    frame = packet(source)
    assert of(0) == (["plain"], [forwarded(frame, RIGHT_MAC, HOST_B_MAC)], {})


def test_a_frame_without_a_tag_has_priority_0(wires):
    frame = packet("10.0.1.2")
    for _ in range(2):
        assert sent(wires, packet("10.0.1.2"), (0x8100, 7, 0))[0] == ["network"]
        # Not that of the frame before.
        assert sent(wires, frame) == (["plain"], [forwarded(frame, RIGHT_MAC, HOST_B_MAC)], {})


def test_other_frames_have_priorities_too(wires):
    lldp = bytes(Ether(src=HOST_A_MAC, dst=LEFT_MAC, type=0x88CC) / Raw(b"x" * 50))
    assert sent(wires, lldp, (0x8100, 7, 100)) == (["lldp"], [], {"filtered": 1})
    assert sent(wires, lldp, (0x8100, 6, 100)) == (["any-lldp"], [], {"filtered": 1})
    assert sent(wires, lldp) == (["any-lldp"], [], {"filtered": 1})


def test_a_verdict_and_the_log_name_the_priority(wires):
    for words, said in [("priority 6", 'drop: rule 1 "network"'), ("", 'accept: rule 5 "plain"')]:
        asked = f"udp 10.0.100.2:1 > 10.0.2.2:2 in left.100 {words}"
        shown = wires.router.command("show", "filters", "by-priority", "--packet", asked).stdout
        assert shown.startswith(said), shown
    sent(wires, packet("10.0.100.2"), (0x8100, 6, 100))
    assert wait_for(lambda: "10.0.2.2:9 in left.100 ttl 64 length 49 priority 6" in wires.router.log(), 5)
    (shown,) = [row for row in wires.router.show("filters") if row["name"] == "by-priority"]
    assert shown["inward"] == ["left", "left.100", "outer", "inner"]
    assert rules(wires)[0]["matches"] == "priority 6,7"


def test_a_change_is_planned_and_applied(wires):
    changed = CONFIG.replace("priority = { 6, 7 }", "priority = 6")
    planned = str(plan(wires.router, changed)[0])
    assert "priority 6,7" in planned and re.search("priority 6[^,]", planned), planned
    apply(wires.router, changed)
    assert sent(wires, packet("10.0.100.2"), (0x8100, 7, 100)) == ([], [], {"filtered": 1})
    assert sent(wires, packet("10.0.100.2"), (0x8100, 6, 100)) == (["network"], [], {"filtered": 1})


@pytest.mark.parametrize("rules, port, said", [
    ('{ priority = 8 }', 'filter = "f"', 'priority "8": not a priority: write a number from 0 to 7'),
    ('{ priority = 5, action = "drop" }, { priority = { 5 } }', 'filter = "f"', "rule 2, line 2, can never match"),
    ('{ priority = 5 }', 'filter = { outward = "f" }', "priority come too late for packets that leave"),
])
def test_mistakes_are_named(tmp_path, rules, port, said):
    file = tmp_path / "f.lua"
    file.write_text(f'local turnpike = require "turnpike"\nturnpike.filter "f" {{ {rules} }}\n'
                    f'turnpike.port "a" {{ device = "eth0", {port} }}\n')
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert said in done.stdout + done.stderr, done

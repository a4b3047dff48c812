"""Sets of prefixes used by filters: elements are added and removed by commands and configurations while packets
flow."""

import json
import socket
import subprocess

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply, plan, refused, write
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import forwarded
from lib.router import Change, binary

A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
DATA = Raw(b"some bytes of data")
GUARDED = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "in",')
SETS = """
turnpike.prefix_set "blocked" { "198.51.100.0/24", "2001:db8:bad::/48" }
turnpike.prefix_set "served" { "10.0.2.0/24", "fd00:2::/64" }
"""
FILTER = """
turnpike.filter "in" {
  { name = "blocked", from_set = "blocked", action = "drop" },
  { name = "served", to_set = { "served", "blocked" } },
  default = "drop",
}
"""


def configuration(sets=SETS, filter=FILTER):
    return GUARDED + STATIC_NEIGHBOURS + sets + filter


@pytest.fixture
def wires(lab):
    return Wires(lab, SETS + FILTER, ports=GUARDED + STATIC_NEIGHBOURS, calm=True)


def passes(wires, source, to=B4):
    """Returns true if a packet passes, false if it is dropped as filtered."""
    wires.drain()
    packet = (IPv6(src=source, dst=to) if ":" in source else IP(src=source, dst=to)) / UDP(dport=9) / DATA
    frame, change = bytes(LINK / packet), Change(wires.router)
    wires.left.send(frame)
    if "filtered" in change(received=1).get("dropped", {}):
        return False
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    return True


def hits(router):
    (shown,) = [row for row in router.show("filters") if row["name"] == "in"]
    return {rule["name"]: rule["packets"] for rule in shown["rules"]}


def elements(router, name):
    (found,) = [row for row in router.show("sets") if row["name"] == name]
    return {element["prefix"]: element["by"] for element in found["elements"]}


@pytest.mark.provokes("filtered")
def test_commands_change_sets_and_no_filter_is_made_anew(wires):
    router = wires.router
    assert passes(wires, A4) and passes(wires, A6, B6)
    assert not passes(wires, "198.51.100.9") and not passes(wires, "2001:db8:bad::1", B6)
    said = router.command("set", "add", "blocked", A4, "fd00:1::/64", "198.51.100.0/24").stdout
    assert "2 elements added" in said
    assert not passes(wires, A4) and not passes(wires, A6, B6)
    assert passes(wires, "10.0.1.3")
    assert elements(router, "blocked") == {
        "10.0.1.2/32": "command", "198.51.100.0/24": "configuration",
        "2001:db8:bad::/48": "configuration", "fd00:1::/64": "command",
    }  # fmt: skip
    said = router.command("set", "del", "blocked", A4, "fd00:1::/64", "10.9.9.9").stdout
    assert "2 elements removed" in said
    assert passes(wires, A4) and passes(wires, A6, B6)
    # The counts are those of one filter throughout.
    assert hits(router) == {"blocked": 4, "served": 5}
    assert "PREFIX" in router.command("show", "sets", "blocked").stdout


@pytest.mark.provokes("filtered")
def test_elements_with_a_time_go_by_themselves(wires):
    wires.router.command("set", "add", "blocked", A4, "--for", "1s")
    assert wait_for(lambda: passes(wires, A4), 10)
    assert set(elements(wires.router, "blocked").values()) == {"configuration"}


def test_a_configuration_changes_elements_without_another_graph(wires):
    router = wires.router
    router.command("set", "add", "blocked", A4)
    other = configuration(SETS.replace('"198.51.100.0/24"', '"203.0.113.0/24", "198.51.100.128/25"'))
    changes, _ = plan(router, other)
    assert {change["what"]: (change["from"], change["to"]) for change in changes["changes"]} == {
        'prefix_set "blocked": 198.51.100.0/24': ("in it", None),
        'prefix_set "blocked": 198.51.100.128/25': (None, "in it"),
        'prefix_set "blocked": 203.0.113.0/24': (None, "in it"),
    }
    assert apply(router, other)["pause_us"] is None, "forwarders had something to exchange"
    assert passes(wires, "198.51.100.9") and not passes(wires, "198.51.100.129")
    assert not passes(wires, "203.0.113.1") and not passes(wires, A4), "the command's element stays"


def test_sets_come_with_their_filters_and_go_with_them(wires):
    router = wires.router
    more = SETS + 'turnpike.prefix_set "hosts" { "10.0.1.2" }\n'
    apply(router, configuration(more, FILTER.replace('from_set = "blocked"', 'from_set = { "blocked", "hosts" }')))
    assert not passes(wires, A4) and not passes(wires, "198.51.100.9")
    apply(router, configuration())
    assert passes(wires, A4) and not passes(wires, "198.51.100.9")
    assert {row["name"] for row in router.show("sets")} == {"blocked", "served"}
    apply(router, GUARDED.replace('filter = "in",', "") + STATIC_NEIGHBOURS)
    assert router.show("sets") == [] and passes(wires, "198.51.100.9")


def test_what_fails_changes_no_set(wires):
    """A refused change leaves the elements unchanged."""
    other = configuration(SETS.replace('"198.51.100.0/24"', '"10.0.1.0/24"'))
    other += 'turnpike.route "192.0.2.0/24" { via = "10.0.2.9" }\nturnpike.port "gone" { device = "tp-gone" }\n'
    assert "tp-gone" in refused(wires.router, "apply", write(wires.router, other))
    assert passes(wires, A4) and not passes(wires, "198.51.100.9")


def test_a_hundred_thousand_hosts_are_blocked_and_planned_as_a_number(wires):
    hosts = ", ".join(f'"11.{n >> 16}.{n >> 8 & 255}.{n & 255}"' for n in range(0, 300_000, 3))
    big = configuration(SETS.replace('"198.51.100.0/24"', hosts))
    changes, _ = plan(wires.router, big)
    assert {change["what"]: (change["from"], change["to"]) for change in changes["changes"]} == {
        'prefix_set "blocked": elements': ("1 removed", "100000 added")
    }
    apply(wires.router, big)
    assert not passes(wires, "11.4.147.221") and passes(wires, "11.4.147.222")
    wires.router.command("set", "add", "blocked", "11.4.147.222")
    assert not passes(wires, "11.4.147.222")


def test_a_verdict_asks_the_sets(wires):
    def verdict(packet):
        return wires.router.command("show", "filters", "in", "--packet", packet).stdout

    assert verdict("udp 198.51.100.7:4000 > 10.0.2.2:53 in left").startswith("drop: rule 1")
    assert verdict("udp 10.0.1.2:4000 > 10.0.2.2:53 in left").startswith("accept: rule 2")
    wires.router.command("set", "add", "blocked", "10.0.1.2")
    assert verdict("udp 10.0.1.2:4000 > 10.0.2.2:53 in left").startswith("drop: rule 1")


def test_wrong_changes_are_named(wires):
    router = wires.router
    assert 'prefix_set "blokced": unknown; did you mean "blocked"' in refused(router, "set", "add", "blokced", A4)
    assert "is in the configuration; take it away there" in refused(router, "set", "del", "blocked", "198.51.100.0/24")
    for words in (["10.0.0.1/8"], ["example.org"], [A4, "--for", "soon"], []):
        done = router.command("set", "add", "blocked", *words, check=False)
        assert done.returncode == 2 and "panicked" not in done.stderr, done
    assert elements(router, "blocked").keys() == {"198.51.100.0/24", "2001:db8:bad::/48"}


WRONG = {
    'turnpike.prefix_set "a" { "10.0.0.1/8" }': 'prefix_set "a": element 1: "10.0.0.1/8" has host bits',
    'turnpike.prefix_set "a" { "10.0.0.0/8", 7 }': "element 2: expected a prefix",
    'turnpike.prefix_set "a" { name = "x" }': "name",
    'turnpike.prefix_set "a" {}\nturnpike.prefix_set "a" {}': "given on line",
    'turnpike.prefix_set "a b" {}': "not a name",
    'turnpike.filter "x" { { from_set = "nobody" } }': 'from_set: prefix_set "nobody" unknown',
    "\n".join(f'turnpike.prefix_set "s{n}" {{}}' for n in range(65)): "there may be 64 sets",
    "\n".join(f'turnpike.prefix_set "s{n}" {{}}' for n in range(9))
    + '\nturnpike.filter "x" {' + ", ".join(f'{{ from_set = "s{n}" }}' for n in range(9)) + "}":
        "9 different lists in from_set",
}  # fmt: skip


@pytest.mark.parametrize("text, said", WRONG.items())
def test_wrong_sets_are_named(tmp_path, text, said):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + text)
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_the_api_refuses_what_is_no_change_of_a_set(wires):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(wires.router.socket))
        lines = client.makefile("rw")
        for change in ({"add": {"set": "blocked"}}, {"add": {"set": "blocked", "elements": ["x"]}}, {"clear": "blocked"},
                       {"add": {"set": "blocked", "elements": ["10.0.1.2/32"], "for": 5}}):
            lines.write(json.dumps({"set": change}) + "\n")
            lines.flush()
            assert "cannot be read" in json.loads(lines.readline())["error"]
    assert elements(wires.router, "blocked").keys() == {"198.51.100.0/24", "2001:db8:bad::/48"}

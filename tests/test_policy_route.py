"""Rules that put packets into categories, let them continue to the next rule, or override their route."""

import subprocess
import time

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply, plan
from lib.lab import ANNOUNCING_SECONDS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import veth, wait_for
from lib.packets import forwarded
from lib.router import Change, binary

A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
OTHER_MAC, BLUE_MAC = "02:00:00:00:02:77", "02:00:00:00:02:78"
DATA = Raw(b"some bytes of data")

CONFIG = f"""
turnpike.vrf "blue" {{}}
turnpike.neighbour "10.0.2.77" {{ port = "right", mac = "{OTHER_MAC}" }}
turnpike.neighbour "fd00:2::77" {{ port = "right", mac = "{OTHER_MAC}" }}
turnpike.neighbour "10.0.2.78" {{ port = "right", mac = "{BLUE_MAC}" }}
turnpike.next_hop "other" {{ via = "10.0.2.77" }}
turnpike.next_hop "other6" {{ via = "fd00:2::77" }}
turnpike.port "third" {{ device = "tp-third", address = "192.0.2.254/24" }}
turnpike.next_hop "nowhere" {{ via = "192.0.2.1" }}
turnpike.route "10.0.2.0/24" {{ via = "10.0.2.78", port = "right", vrf = "blue" }}
turnpike.route "203.0.113.0/24" {{ via = "10.0.2.78", port = "right", vrf = "blue" }}
turnpike.filter "steer" {{
  {{ name = "voice", proto = "udp", to_port = "5000-5999", action = "continue", category = "voice" }},
  {{ name = "new", proto = "tcp", flags = "syn,!ack", action = "continue", category = "new", mark = {{ dscp = "cs1" }} }},
  {{ name = "other", proto = "udp", to_port = 5060, next_hop = "other" }},
  {{ name = "other6", proto = "udp", to_port = 5060, next_hop = "other6" }},
  {{ name = "nowhere", proto = "udp", to_port = 5061, next_hop = "nowhere" }},
  {{ name = "blue", proto = "udp", to_port = 5062, vrf = "blue" }},
  {{ name = "closed", proto = "tcp", to_port = 23, action = "drop" }},
  {{ name = "slow", proto = "udp", to_port = 5063, police = {{ rate = "1pps", burst = "2" }}, action = "continue" }},
  default = "accept",
}}
local voice, new = turnpike.counter "voice", turnpike.counter "new"
local count = turnpike.step "count-categories" {{ outputs = {{ "next" }}, process = function(batch, packets)
  voice:add(batch:category("voice"):count())
  new:add(batch:category("new"):count())
  return packets
end }}
turnpike.graph:insert_after("ip4-filter-in", count)
"""
STEERED = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "steer",')


def steered(lab):
    """A router whose third port has no link."""
    wires = Wires(lab, start=False)
    veth(wires.inside, "tp-third", wires.ns_right, "third")
    wires.ns_right.run("ip", "link", "set", "third", "down")
    wires.router = lab.router(wires.inside, STEERED + STATIC_NEIGHBOURS + CONFIG)
    time.sleep(ANNOUNCING_SECONDS)
    return wires


@pytest.fixture(scope="module")
def wires(module_lab):
    return steered(module_lab)


def hits(router, name="steer"):
    (shown,) = [row for row in router.show("filters") if row["name"] == name]
    return {rule["name"]: rule["packets"] for rule in shown["rules"]} | {"default": shown["default_packets"]}


def sent(wires, packet):
    """The frame, and the rules that it matched."""
    wires.drain()
    before, frame = hits(wires.router), bytes(LINK / packet)
    wires.left.send(frame)
    return frame, lambda: {name for name, count in hits(wires.router).items() if count != before[name]}


def udp(port, to=B4):
    return (IPv6(src=A6, dst=to) if ":" in to else IP(src=A4, dst=to)) / UDP(sport=4000, dport=port) / DATA


@pytest.mark.parametrize("packet, mac, rules", [
    pytest.param(udp(4999), HOST_B_MAC, {"default"}, id="no rule"),
    pytest.param(udp(5000), HOST_B_MAC, {"voice", "default"}, id="one that goes on, then the default"),
    pytest.param(udp(5060), OTHER_MAC, {"voice", "other"}, id="a next hop"),
    pytest.param(udp(5060, "203.0.113.9"), OTHER_MAC, {"voice", "other"}, id="without a route of its own"),
    pytest.param(udp(5060, B6), OTHER_MAC, {"voice", "other6"}, id="a next hop of IPv6"),
    pytest.param(udp(5061), HOST_B_MAC, {"voice", "nowhere"}, id="a next hop without a path"),
    pytest.param(udp(5062), BLUE_MAC, {"voice", "blue"}, id="another VRF"),
    pytest.param(udp(5062, "203.0.113.9"), BLUE_MAC, {"voice", "blue"}, id="a route that only the VRF has"),
])
def test_packets_go_where_their_rule_says(wires, packet, mac, rules):
    frame, fitted = sent(wires, packet)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, mac)]
    assert fitted() == rules


def test_packets_for_the_router_stay(wires):
    """A rule for all packets to a port does not keep them from the router's own address."""
    frame, fitted = sent(wires, udp(5060, "10.0.1.1"))
    (answer,) = [Ether(frame) for frame in wires.left.receive(0.5)]
    assert answer[ICMP].type == 3 and answer[ICMP].code == 3
    assert fitted() == {"voice", "other"} and wires.right.receive(0.02) == []


def test_a_vrf_without_a_route_tells_the_sender(wires):
    sent(wires, udp(5062, "198.51.100.1"))
    (answer,) = [Ether(frame) for frame in wires.left.receive(0.5)]
    assert (answer[ICMP].type, answer[ICMP].code) == (3, 0)


def test_packets_with_options_take_the_route_of_their_destination(wires):
    frame, fitted = sent(wires, IP(src=A4, dst=B4, options=[IPOption_NOP()] * 4) / UDP(dport=5060) / DATA)
    (passed,) = [Ether(frame) for frame in wires.right.expect(1)]
    assert passed.dst == HOST_B_MAC and fitted() == {"voice", "other"}


def test_a_rule_that_goes_on_marks_what_a_later_one_lets_pass(wires):
    packet = IP(src=A4, dst=B4) / TCP(sport=4000, dport=80, flags="S")
    frame, fitted = sent(wires, packet)
    marked = bytes(LINK / IP(src=A4, dst=B4, tos=8 << 2) / packet[TCP])
    assert wires.right.expect(1) == [forwarded(marked, RIGHT_MAC, HOST_B_MAC)]
    assert fitted() == {"new", "default"}


@pytest.mark.provokes("filtered")
def test_a_rule_that_goes_on_does_not_open_what_a_later_one_closes(wires):
    change = Change(wires.router)
    _, fitted = sent(wires, IP(src=A4, dst=B4) / TCP(sport=4000, dport=23, flags="S"))
    assert change(received=1) == {"received": 1, "dropped": {"filtered": 1}}
    assert fitted() == {"new", "closed"} and wires.right.receive(0.02) == []


@pytest.mark.provokes("policed")
def test_what_is_above_the_rate_of_a_rule_that_goes_on_is_dropped(wires):
    change = Change(wires.router)
    for _ in range(5):
        wires.left.send(bytes(LINK / udp(5063)))
    change = change(received=5)
    assert change["dropped"] == {"policed": change["received"] - change["sent"]}
    assert change["sent"] in (2, 3)


def test_steps_in_lua_read_categories(wires):
    def counted():
        return wires.router.counters()["steps"]

    before = counted()
    wires.left.send(bytes(LINK / udp(5000)))
    wires.left.send(bytes(LINK / udp(80)))
    wires.left.send(bytes(LINK / IP(src=A4, dst=B4) / TCP(dport=80, flags="S")))
    wires.left.send(bytes(LINK / IP(src=A4, dst=B4) / TCP(dport=80, flags="A")))
    want = {"voice": before["voice"] + 1, "new": before["new"] + 1}
    assert wait_for(lambda: {name: counted()[name] for name in want} == want, 5)


def verdict(router, packet):
    return router.command("show", "filters", "steer", "--packet", packet).stdout.strip().splitlines()


def test_a_verdict_names_each_rule_on_the_way(wires):
    said = verdict(wires.router, "udp 10.0.1.2:4000 > 10.0.2.2:5060 in left")
    assert said == ["continue in voice: rule 1 \"voice\": proto 17 to_port 5000-5999",
                    "accept to other: rule 3 \"other\": IPv4 proto 17 to_port 5060"]
    said = verdict(wires.router, "tcp 10.0.1.2:4000 > 10.0.2.2:80 in left flags syn")
    assert said[0].startswith("continue in new with dscp 8: rule 2") and said[1:] == ["accept: no other rule fits"]


def test_where_packets_go_is_planned_and_changed_while_they_flow(lab):
    wires = steered(lab)
    moved = CONFIG.replace('next_hop = "other" ', 'vrf = "blue" ').replace('category = "voice"', 'category = "loud"')
    moved = moved.replace('batch:category("voice")', 'batch:category("loud")')
    moved = moved.replace('turnpike.vrf "blue"', 'turnpike.vrf "zoo" {}\nturnpike.vrf "blue"')
    moved = STEERED + STATIC_NEIGHBOURS + moved
    planned = {change["what"]: (change["from"], change["to"]) for change in plan(wires.router, moved)[0]["changes"]}
    before, after = planned['filter "steer": rule 3 "other"']
    assert before.endswith("accept, next_hop other") and after.endswith("accept, vrf blue")
    before, after = planned['filter "steer": rule 1 "voice"']
    assert before.endswith("continue, category voice") and after.endswith("continue, category loud")
    frame, _ = sent(wires, udp(5060))
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, OTHER_MAC)]
    apply(wires.router, moved)
    frame, _ = sent(wires, udp(5060))
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, BLUE_MAC)]
    frame, _ = sent(wires, udp(5062))
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, BLUE_MAC)]
    apply(wires.router, PORTS + STATIC_NEIGHBOURS)
    frame = bytes(LINK / udp(5060))
    wires.drain()
    wires.left.send(frame)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]


WRONG = {
    '{ next_hop = "othre" }': 'next_hop "othre" unknown; did you mean "other"',
    '{ vrf = "bleu" }': 'vrf "bleu" unknown',
    '{ next_hop = "other", vrf = "blue" }': "the rule has a next_hop already",
    '{ next_hop = "other", action = "drop" }': "for packets that go on",
    '{ family = "ip6", next_hop = "other" }': "IPv6 packets cannot go to the gateway 10.0.2.77",
    '{ category = "" }': "expected a name",
    '{ action = "continue" }, default = "continue"': "there is nothing behind it",
    ", ".join(['{ action = "continue" }'] * 65): "65 rules with action",
    ", ".join(f'{{ category = "c{number}" }}' for number in range(17)): "there may be 16",
}


@pytest.mark.parametrize("rules, said", WRONG.items())
def test_wrong_rules_are_named(tmp_path, rules, said):
    file = tmp_path / "router.lua"
    head, _, _ = CONFIG.partition('turnpike.filter "steer"')
    file.write_text(STEERED + head + f'turnpike.filter "steer" {{ {rules} }}')
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and said in done.stderr, done.stderr


@pytest.mark.parametrize("rule", ['vrf = "blue"', 'from_mac = "02:00:00:00:00:01"'])
def test_outward_filters_do_not_do_what_is_too_late(tmp_path, rule):
    file = tmp_path / "router.lua"
    ports = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = { outward = "steer" },')
    file.write_text(ports + f'turnpike.vrf "blue" {{}}\nturnpike.filter "steer" {{ {{ {rule} }} }}')
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "come too late" in done.stderr, done.stderr

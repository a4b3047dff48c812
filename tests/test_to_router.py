"""The filter "to-router": packets for the router itself, before they are sorted into classes."""

import subprocess

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import wait_for
from lib.packets import forwarded
from lib.router import Change, binary

FILTER = """
turnpike.filter "to-router" {
  { name = "ssh", proto = "tcp", to_port = 22, from = { "10.0.1.0/25", "fd00:1::/64" } },
  { name = "no-ssh", proto = "tcp", to_port = 22, action = "drop", log = true },
  { name = "bgp", proto = "tcp", to_port = 179, from = "10.0.1.2", class = "link" },
  { name = "bulk", proto = "udp", to_port = 179, class = "options" },
  { name = "ping", icmp = "echo-request", police = { rate = "1pps", burst = "3" } },
  { name = "refused", proto = "udp", to_port = 9, action = "reject" },
  { name = "left only", proto = "udp", to_port = 10, interface = "right", action = "drop" },
}
"""
OWN, OWN6 = "10.0.1.1", "fd00:1::1"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, FILTER, calm=True)


def shown(router, name="to-router"):
    (found,) = [row for row in router.show("filters") if row["name"] == name]
    return found


def hits(router):
    found = shown(router)
    return {rule["name"]: rule["packets"] for rule in found["rules"]} | {"default": found["default_packets"]}


def fitted(before, after):
    return {name: count - before[name] for name, count in after.items() if count != before[name]}


def offered(router):
    return {row["name"]: row["offered"] for row in shown(router)["classes"]}


def sent(wires, packet, rule):
    """Sends a packet that matches the rule; returns the answer."""
    wires.drain()
    before = hits(wires.router)
    wires.left.send(bytes(LINK / packet))
    answers = [Ether(frame) for frame in wires.left.receive(0.3)]
    answers = [answer for answer in answers if not any(kind in answer for kind in (ARP, ICMPv6ND_NS))]
    assert fitted(before, hits(wires.router)) == ({rule: 1} if rule else {})
    return answers


def dropped(wires, packet, rule):
    change = Change(wires.router)
    assert sent(wires, packet, rule) == []
    assert change(received=1) == {"received": 1, "dropped": {"filtered": 1}}


def test_tcp_is_refused_from_elsewhere(wires):
    (reset,) = sent(wires, IP(src="10.0.1.2", dst=OWN) / TCP(dport=22, flags="S"), "ssh")
    assert reset[TCP].flags == "RA"
    dropped(wires, IP(src="10.0.1.130", dst=OWN) / TCP(dport=22, flags="S"), "no-ssh")
    dropped(wires, IPv6(src="fd00:9::2", dst=OWN6) / TCP(dport=22, flags="S"), "no-ssh")
    # By the router's other address, too.
    dropped(wires, IP(src="10.0.1.130", dst="10.0.2.1") / TCP(dport=22, flags="S"), "no-ssh")
    line = 'filter "to-router": rule "no-ssh": drop: tcp 10.0.1.130:20 > 10.0.1.1:22 in left flags syn ttl 64 length 40'
    assert wait_for(lambda: line in wires.router.log(), 5)


@pytest.mark.provokes("filtered")
def test_options_do_not_get_around_it(wires):
    packet = IP(src="10.0.1.130", dst=OWN, options=[IPOption_NOP()] * 4) / TCP(dport=22, flags="S")
    dropped(wires, packet, "no-ssh")
    # In transit they are not for the router.
    wires.drain()
    before = hits(wires.router)
    packet = IP(src="10.0.1.130", dst="10.0.2.2", options=[IPOption_NOP()] * 4) / TCP(dport=22, flags="S")
    wires.left.send(bytes(LINK / packet))
    assert len(wires.right.expect(1)) == 1
    assert fitted(before, hits(wires.router)) == {}
    tiny = IP(src="10.0.1.130", dst=OWN, flags="MF", proto=6) / Raw(b"\0\x16\0\x16\0\0\0\0")
    dropped(wires, tiny, None)


def test_what_goes_elsewhere_is_not_looked_at(wires):
    wires.drain()
    before = hits(wires.router)
    frame = bytes(LINK / IP(src="10.0.1.130", dst="10.0.2.2") / TCP(dport=22, flags="S") / Raw(b"x" * 30))
    wires.left.send(frame)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    assert fitted(before, hits(wires.router)) == {}


def test_a_rule_gives_its_packets_a_class(wires):
    before = offered(wires.router)
    sent(wires, IP(src="10.0.1.2", dst=OWN, ttl=3) / TCP(dport=179, flags="S"), "bgp")
    assert wait_for(lambda: fitted(before, offered(wires.router)).get("link") == 1, 5)
    before = offered(wires.router)
    sent(wires, IP(src="10.0.1.7", dst=OWN, ttl=3) / TCP(dport=179, flags="S"), "default")
    assert wait_for(lambda: fitted(before, offered(wires.router)).get("routing") == 1, 5)
    before = offered(wires.router)
    sent(wires, IP(src="10.0.1.7", dst=OWN) / UDP(dport=179), "bulk")
    assert wait_for(lambda: fitted(before, offered(wires.router)).get("options") == 1, 5)


@pytest.mark.provokes("policed")
def test_ping_is_policed(wires):
    wires.drain()
    before, change = hits(wires.router), Change(wires.router)
    for number in range(20):
        wires.left.send(bytes(LINK / IP(src="10.0.1.2", dst=OWN) / ICMP(seq=number) / Raw(b"x" * 20)))
    assert wait_for(lambda: fitted(before, hits(wires.router)).get("ping") == 20, 5)
    answers = sum(ICMP in Ether(frame) for frame in wires.left.receive(0.3))
    assert 3 <= answers <= 6
    counted = change(received=20)
    assert counted["dropped"]["policed"] == 20 - answers
    # Other pings do not match this rule.
    (answer,) = sent(wires, IPv6(src="fd00:1::2", dst=OWN6) / ICMPv6EchoRequest(), "default")
    assert answer[IPv6].src == OWN6


def test_what_is_refused_is_told(wires):
    (answer,) = sent(wires, IP(src="10.0.1.2", dst=OWN) / UDP(dport=9) / Raw(b"x" * 20), "refused")
    # RFC 1812 5.2.7.1: administratively prohibited.
    assert (answer[ICMP].type, answer[ICMP].code) == (3, 13)


def test_a_rule_may_be_for_some_ports(wires):
    (answer,) = sent(wires, IP(src="10.0.1.2", dst=OWN) / UDP(dport=10), "default")
    assert answer[ICMP].code == 3
    wires.drain()
    before = hits(wires.router)
    wires.right.send(bytes(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / IP(src="10.0.2.2", dst=OWN) / UDP(dport=10)))
    assert wires.right.receive(0.2) == []
    assert fitted(before, hits(wires.router)) == {"left only": 1}


def test_one_place_shows_what_bounds_packets_for_the_router(wires):
    text = wires.router.command("show", "filters", "to-router").stdout
    assert text.startswith("filter to-router: for the router itself\n")
    for word in ("no-ssh", "accept as link", "1 pps, burst 3", "what is accepted, by class:", "routing", "200000"):
        assert word in text, (word, text)
    assert [row["name"] for row in shown(wires.router)["classes"]][:2] == ["neighbour", "link"]
    said = wires.router.command("show", "filters", "to-router", "--packet", "tcp 10.0.1.130 > 10.0.1.1:22").stdout
    assert said.startswith('drop: rule 2 "no-ssh"')


def test_neighbours_are_found_and_rules_change_while_packets_flow(lab):
    wires = Wires(lab, 'turnpike.filter "to-router" { default = "drop" }\n', calm=True)
    dropped(wires, IP(src="10.0.1.2", dst=OWN) / ICMP(), "default")
    wires.drain()
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(psrc="10.0.1.2", pdst=OWN, hwsrc=HOST_A_MAC)))
    ask = IPv6(src="fd00:1::2", dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt=OWN6) / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01") / ask))
    told = [Ether(frame) for frame in wires.left.receive(0.3)]
    assert any(ARP in frame for frame in told) and any(ICMPv6ND_NA in frame for frame in told)
    router = wires.router
    router.config.write_text(PORTS + STATIC_NEIGHBOURS + 'turnpike.filter "to-router" { { name = "ping", icmp = 8, class = "link" }, default = "drop" }')
    plan = router.command("plan", router.config, check=False).stdout
    assert 'filter "to-router": rule 1 "ping"' in plan and "accept as link" in plan, plan
    router.command("apply", router.config)
    (answer,) = sent(wires, IP(src="10.0.1.2", dst=OWN) / ICMP(), "ping")
    assert answer[ICMP].type == 0
    assert hits(router)["default"] >= 1, "what the default has counted stays"
    router.config.write_text(PORTS + STATIC_NEIGHBOURS)
    router.command("apply", router.config)
    (answer,) = sent(wires, IPv6(src="fd00:1::2", dst=OWN6) / ICMPv6EchoRequest(), None)
    assert answer[IPv6].src == OWN6
    assert shown(router)["rules"] == [] and len(shown(router)["classes"]) == 8


def test_answers_to_the_router_are_known(lab):
    """Unsolicited packets do not reach the kernel behind the router; replies to its own do."""
    space = lab.namespace("space")
    rules = 'turnpike.filter "to-router" { { state = { "established", "related" } }, default = "drop" }\n'
    ports = PORTS.replace(
        'turnpike.port "right" { device = "tp-right",',
        f'turnpike.port "right" {{ device = "tp-right", host = {{ netns = "{space.name}" }},')
    hosts = Hosts(lab, rules, ports=ports)
    for address in ("10.0.2.2", "fd00:2::2"):
        assert wait_for(lambda: space.run("ping", "-c1", "-W1", address, check=False).returncode == 0, 10), address
    for address in ("10.0.2.1", "fd00:2::1"):
        assert hosts.right.run("ping", "-c1", "-W1", address, check=False).returncode == 1, address


@pytest.mark.parametrize("rules, said", [
    ('turnpike.filter "to-router" { { class = "rooting" } }', 'class "rooting" unknown'),
    ('turnpike.filter "other" { { class = "routing" } }', 'only rules of the filter "to-router"'),
    ('turnpike.filter "to-router" { { mark = { dscp = "cs1" } } }', "go no further"),
    ('turnpike.filter "to-router" { { action = "to-host" } }', 'write "accept"'),
    ('turnpike.filter "to-router" { { action = "drop", class = "host" } }', "lets nothing pass"),
])
def test_mistakes_are_named(tmp_path, rules, said):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + rules)
    result = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and said in result.stderr, result.stderr


def test_no_port_names_it(tmp_path):
    file = tmp_path / "router.lua"
    file.write_text(PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "to-router",') + FILTER)
    result = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "for the router itself, whatever their port" in result.stderr, result.stderr

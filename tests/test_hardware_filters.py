"""Rules of packet filters in a device: dropped packets, rules left to software, and the reasons.

The device is `flow_device/flow_device.c`, put in front of DPDK: it drops frames before the router receives them.
"""

import re
import subprocess
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, PadN
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply, plan
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import veth, wait_for
from lib.packets import forwarded, tagged
from lib.router import Change, binary

LIBRARY = Path(binary()).resolve().parents[1] / "flow_device.so"

FILTER = """
turnpike.filter "edge-in" {
  { name = "ssh", proto = "tcp", to_port = 22, from = "10.0.1.0/24" },
  { name = "bogon", from = { "198.18.0.0/15", "2001:db8:dead::/48" }, proto = "udp", action = "drop",
    to = { "10.0.2.0/24", "fd00:2::/64" } },
  { name = "telnet", proto = "tcp", to_port = 23, flags = "syn,!ack", action = "drop" },
  { name = "low", proto = "tcp", to_port = "20-22", action = "drop" },
  { name = "web", proto = "udp", to_port = "8000-8100", action = "drop" },
  { name = "ping6", icmp6 = "echo-request", action = "drop" },
  { name = "pieces", fragment = true, proto = "gre", action = "drop" },
  { name = "slow", proto = "udp", to_port = 9, police = "1kpps", action = "drop" },
  { name = "gold", proto = "udp", to_port = 7, dscp = "ef", ttl = "1-64", action = "drop" },
  default = "accept",
}
"""
A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
PAYLOAD = Raw(b"payload of some bytes")


def ports(filter='{ inward = "edge-in", hardware = true }'):
    return PORTS.replace('device = "tp-left",', f'device = "tp-left", filter = {filter},') + STATIC_NEIGHBOURS


class Device:
    """Status reported by the device."""

    def __init__(self, directory):
        self.file = directory / "device"
        self.file.touch()

    def env(self, **options):
        options = {f"FLOW_DEVICE_{name.upper()}": value for name, value in options.items()}
        return {"LD_PRELOAD": LIBRARY, "FLOW_DEVICE_LOG": self.file, "FLOW_DEVICE_PORT": "tp-left", **options}

    def lines(self, *words):
        text = self.file.read_text()
        assert "defect" not in text, text
        return [line for line in text.splitlines() if line.split()[0] in words]

    def drops(self):
        return len(self.lines("drop"))


def start(lab, directory, config=FILTER, calm=True, text=None, mtu=(1500, 1500), **options):
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is missing: run make {LIBRARY}")
    device = Device(directory)
    wires = Wires(lab, config, ports=text or ports(), calm=calm, mtu=mtu, env=device.env(**options))
    wires.device = device
    # The device has been given all its rules.
    assert wait_for(lambda: "hardware" in wires.router.log() or "runs in software" in wires.router.log(), 10)
    return wires


@pytest.fixture(scope="module")
def wires(module_lab, tmp_path_factory):
    wires = start(module_lab, tmp_path_factory.mktemp("device"))
    yield wires
    wires.router.stop()
    wires.device.lines()


def rules(router):
    (shown,) = [row for row in router.show("filters") if row["name"] == "edge-in"]
    return {rule["name"]: rule for rule in shown["rules"]}


def where(router, name):
    """Rules held by the device and rules required in it, and the reasons for a difference."""
    (of,) = rules(router)[name]["hardware"]
    assert of["port"] == "left"
    return of["held"], of["wanted"], "; ".join(of["why"])


def hits(router, name):
    rule = rules(router)[name]
    return rule["packets"], rule["bytes"], rule["device_packets"]


def dropped_by_device(wires, packet, rule):
    """Checks that the device drops the packet, that no later unit receives it, and that the rule counts it."""
    frame, passed = bytes(LINK / packet), bytes(LINK / IP(src=A4, dst=B4) / UDP(dport=1) / PAYLOAD)
    wires.drain()
    (packets, size, device), drops, change = hits(wires.router, rule), wires.device.drops(), Change(wires.router)
    wires.left.send(frame)
    wires.left.send(passed)
    # A router that opened a port announces its addresses twice.
    came = change(received=1)
    assert came["received"] == 1 and came["sent"] - came.get("originated", 0) == 1, came
    assert wires.right.expect(1) == [forwarded(passed, RIGHT_MAC, HOST_B_MAC)]
    assert wires.device.drops() == drops + 1
    assert hits(wires.router, rule) == (packets + 1, size + len(frame) - 14, device + 1)


def dropped_by_software(wires, packet, rule, reason="filtered"):
    wires.drain()
    before, drops, change = rule and hits(wires.router, rule), wires.device.drops(), Change(wires.router)
    wires.left.send(bytes(LINK / packet))
    assert change(received=1) == {"received": 1, "dropped": {reason: 1}}
    assert wires.device.drops() == drops
    if rule:
        packets, _, device = before
        after = hits(wires.router, rule)
        assert (after[0], after[2]) == (packets + 1, device)


def passes(wires, packet):
    wires.drain()
    drops, frame = wires.device.drops(), bytes(LINK / packet)
    wires.left.send(frame)
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    assert wires.device.drops() == drops


@pytest.mark.parametrize("packet, rule", [
    pytest.param(IP(src="198.19.255.1", dst=B4) / UDP(), "bogon", id="prefixes"),
    pytest.param(IP(src="198.19.255.1", dst=B4, frag=8, proto=17) / PAYLOAD, "bogon", id="a later fragment, no ports asked for"),
    pytest.param(IPv6(src="2001:db8:dead::1", dst=B6) / UDP(), "bogon", id="prefixes of IPv6"),
    pytest.param(IP(src=A4, dst=B4) / TCP(dport=23, flags="S"), "telnet", id="flags"),
    pytest.param(IPv6(src=A6, dst=B6) / TCP(dport=23, flags="S"), "telnet", id="flags, IPv6"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=8000), "web", id="first of a range"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=8100), "web", id="last of a range"),
    pytest.param(IPv6(src=A6, dst=B6) / ICMPv6EchoRequest(), "ping6", id="ICMP type"),
    pytest.param(IP(src=A4, dst=B4, tos=46 << 2 | 1, ttl=64) / UDP(dport=7), "gold", id="DSCP and TTL"),
    pytest.param(IPv6(src=A6, dst=B6, tc=46 << 2, hlim=1) / UDP(dport=7), "gold", id="traffic class and hop limit"),
])
def test_what_the_device_drops_never_reaches_software(wires, packet, rule):
    dropped_by_device(wires, packet / PAYLOAD, rule)


@pytest.mark.parametrize("packet", [
    pytest.param(IP(src="198.20.0.1", dst=B4) / UDP(), id="beside a prefix"),
    pytest.param(IP(src=A4, dst=B4) / TCP(dport=22, flags="S"), id="what the first rule accepts"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=7999), id="below a range"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=8101), id="above a range"),
    pytest.param(IP(src=A4, dst=B4, tos=46 << 2, ttl=65) / UDP(dport=7), id="another TTL"),
    # Its first bytes are the ports of a packet that the device would drop.
    pytest.param(IP(src=A4, dst=B4, frag=8, proto=17) / Raw(bytes(UDP(sport=9, dport=8050)) + b"x" * 30), id="a later fragment"),
])
def test_what_the_device_must_not_drop_passes(wires, packet):
    passes(wires, packet / PAYLOAD)


@pytest.mark.parametrize("packet, rule, reason", [
    pytest.param(IP(src="172.16.0.1", dst=B4) / TCP(dport=22), "low", "filtered", id="behind a rule that may fit first"),
    pytest.param(IP(src=A4, dst=B4, flags="MF", proto=17) / Raw(bytes(UDP(dport=8050)) + b"x" * 56), "web", "filtered",
                 id="a first fragment"),
    pytest.param(IPv6(src=A6, dst=B6) / IPv6ExtHdrDestOpt(options=[PadN(optdata=b"1234")]) / UDP(dport=8050), "web", "filtered",
                 id="behind an extension header"),
    pytest.param(IPv6(src=A6, dst=B6) / IPv6ExtHdrFragment(m=1) / UDP(dport=8050) / Raw(b"x" * 32), "web", "filtered",
                 id="a first fragment, IPv6"),
    pytest.param(IP(src=A4, dst=B4, frag=8, proto=47), "pieces", "filtered", id="a rule of fragments"),
    pytest.param(IP(src=A4, dst=B4) / UDP(dport=9), "slow", "filtered", id="a rule with a rate"),
])
def test_what_the_device_cannot_do_software_does(wires, packet, rule, reason):
    dropped_by_software(wires, packet / PAYLOAD, rule, reason)


def test_each_rule_says_where_it_is(wires):
    assert where(wires.router, "bogon") == (2, 2, "")
    held, wanted, why = where(wires.router, "web")
    assert held == wanted == 8 and why == ""
    assert where(wires.router, "low")[0] == where(wires.router, "low")[1] > 0, "IPv6 is held"
    assert where(wires.router, "low")[2] == 'IPv4: rule 1 "ssh" comes first and may fit the same packets'
    assert where(wires.router, "pieces") == (0, 0, "devices do not look at fragments")
    assert where(wires.router, "slow") == (0, 0, "police is software's")
    text = wires.router.command("show", "filters", "edge-in").stdout
    head, *rows = [line for line in text.splitlines() if line]
    assert head == "filter edge-in: inward on left, outward on no port"
    place = {row.split()[1]: re.search(r"(software|hardware|in part) +(\d+|-|unknown)$", row) for row in rows[1:10]}
    assert {name: of and of[1] for name, of in place.items()} == {
        "ssh": "software", "bogon": "hardware", "telnet": "hardware", "low": "in part", "web": "hardware",
        "ping6": "hardware", "pieces": "software", "slow": "software", "gold": "hardware",
    }, text
    assert 'rule 4 "low" in part in software on left: IPv4: rule 1 "ssh" comes first' in text
    assert 'rule 7 "pieces" in software on left: devices do not look at fragments' in text
    assert 'rule 1 "ssh"' not in text.replace('IPv4: rule 1 "ssh"', ""), "what accepts needs no reason"


def test_the_link_s_own_questions_are_answered(lab, tmp_path):
    """ARP and neighbour discovery are never filtered by the device."""
    closed = """
turnpike.filter "edge-in" {
  { name = "all6", family = "ip6", action = "drop" }, { name = "icmp6", proto = "icmp6", action = "drop" },
  { name = "all4", family = "ip4", action = "drop" },
}
"""
    wires = start(lab, tmp_path, closed)
    assert where(wires.router, "all4") == (1, 1, "") and where(wires.router, "icmp6")[0] > 0
    ask = IPv6(src=A6, dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt="fd00:1::1") / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)
    wires.drain()
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01") / ask))
    assert any(ICMPv6ND_NA in Ether(frame) for frame in wires.left.receive(0.3))
    # From farther away it is an ordinary packet.
    drops, ask.hlim = wires.device.drops(), 254
    del ask[ICMPv6ND_NS].cksum
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="33:33:ff:00:00:01") / ask))
    assert wait_for(lambda: wires.device.drops() == drops + 1)
    wires.drain()
    wires.left.send(bytes(Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff", type=0x806)
                          / Raw(bytes.fromhex("0001080006040001020000000102" "0a000102" "000000000000" "0a000101"))))
    assert any(Ether(frame).type == 0x806 for frame in wires.left.receive(0.3))


def test_a_device_that_refuses_ipv6(lab, tmp_path):
    wires = start(lab, tmp_path, refuse="ipv6")
    assert where(wires.router, "bogon") == (1, 2, "the device says: IPv6 is not supported (EOPNOTSUPP: Operation not supported on transport endpoint)")
    dropped_by_device(wires, IP(src="198.19.255.1", dst=B4) / UDP() / PAYLOAD, "bogon")
    dropped_by_software(wires, IPv6(src="2001:db8:dead::1", dst=B6) / UDP() / PAYLOAD, "bogon")
    wires.router.stop()


def test_a_device_that_cannot_tell_fragments_gets_no_rules_with_ports(lab, tmp_path):
    wires = start(lab, tmp_path, refuse="fragment")
    assert where(wires.router, "telnet")[:2] == (1, 2) and "fragments" in where(wires.router, "telnet")[2]
    dropped_by_software(wires, IP(src=A4, dst=B4) / TCP(dport=23, flags="S") / PAYLOAD, "telnet")
    passes(wires, IP(src=A4, dst=B4, frag=8, proto=17) / Raw(bytes(UDP(sport=9, dport=8050)) + b"x" * 30))


def test_a_device_that_does_not_count(lab, tmp_path):
    wires = start(lab, tmp_path, refuse="count")
    assert where(wires.router, "bogon") == (2, 2, "")
    wires.left.send(bytes(LINK / IP(src="198.19.255.1", dst=B4) / UDP() / PAYLOAD))
    assert wait_for(lambda: wires.device.drops() == 1)
    text = wires.router.command("show", "filters", "edge-in").stdout
    assert re.search(r"bogon .* 0 +0 +- +hardware +unknown$", text, re.M), text


def test_a_table_that_is_full(lab, tmp_path):
    """The first rules are held, the rest runs in software; a rule that gets room is held."""
    wires = start(lab, tmp_path, entries=4)
    assert where(wires.router, "telnet") == (2, 2, "")
    assert where(wires.router, "ping6") == (0, 1, "the device says: the table is full (ENOSPC: No space left on device)")
    dropped_by_software(wires, IPv6(src=A6, dst=B6) / ICMPv6EchoRequest() / PAYLOAD, "ping6")
    without = re.sub(r".*name = \"(telnet|low|web)\".*\n", "", wires.router.config.read_text())
    apply(wires.router, without)
    assert wait_for(lambda: where(wires.router, "ping6") == (1, 1, ""))
    dropped_by_device(wires, IPv6(src=A6, dst=B6) / ICMPv6EchoRequest() / PAYLOAD, "ping6")
    assert hits(wires.router, "ping6")[::2] == (2, 1)


def test_rules_change_while_the_device_holds_them(lab, tmp_path):
    wires = start(lab, tmp_path)
    dropped_by_device(wires, IPv6(src=A6, dst=B6) / ICMPv6EchoRequest() / PAYLOAD, "ping6")
    dropped_by_device(wires, IP(src=A4, dst=B4) / UDP(dport=8000) / PAYLOAD, "web")
    text, before = wires.router.config.read_text(), wires.device.lines("create", "destroy")
    # A rule is added, one is removed, and positions change.
    ping6 = re.search(r".*\"ping6\".*\n", text)[0]
    other = text.replace(ping6, "").replace('{ name = "ssh"', ping6 + '  { name = "ssh"').replace('"8000-8100"', "9000")
    assert plan(wires.router, other)[1] == 2
    apply(wires.router, other)
    done = wires.device.lines("create", "destroy")[len(before):]
    assert [line.split()[0] for line in done] == ["create"] * 2 + ["destroy"] * 8, "what stays is not touched"
    dropped_by_device(wires, IPv6(src=A6, dst=B6) / ICMPv6EchoRequest() / PAYLOAD, "ping6")
    dropped_by_device(wires, IP(src=A4, dst=B4) / UDP(dport=9000) / PAYLOAD, "web")
    passes(wires, IP(src=A4, dst=B4) / UDP(dport=8000) / PAYLOAD)
    assert (hits(wires.router, "ping6")[0], hits(wires.router, "web")[0]) == (2, 2), "counts stay with their rules"
    # A rule that accepts now is in no device any more when the change is answered.
    apply(wires.router, other.replace('to_port = 9000, action = "drop"', "to_port = 9000"))
    passes(wires, IP(src=A4, dst=B4) / UDP(dport=9000) / PAYLOAD)
    wires.router.command("rollback")
    dropped_by_device(wires, IP(src=A4, dst=B4) / UDP(dport=9000) / PAYLOAD, "web")


def test_the_device_lets_go_when_it_is_to_hold_none_and_gets_them_back(lab, tmp_path):
    wires = start(lab, tmp_path)
    packet = IP(src="198.19.255.1", dst=B4) / UDP() / PAYLOAD
    dropped_by_device(wires, packet, "bogon")
    with_hardware, held = wires.router.config.read_text(), len(wires.device.lines("create"))
    without = with_hardware.replace(", hardware = true", "")
    (change,) = plan(wires.router, without)[0]["changes"]
    assert (change["what"], change["live"]) == ('port "left": filter hardware', True), change
    apply(wires.router, without)
    assert len(wires.device.lines("destroy")) == held
    dropped_by_software(wires, packet, "bogon")
    assert hits(wires.router, "bogon")[::2] == (2, 1)
    apply(wires.router, with_hardware)
    dropped_by_device(wires, packet, "bogon")
    # A port that is closed and reopened, for another MTU.
    apply(wires.router, with_hardware.replace('device = "tp-left",', 'device = "tp-left", mtu = 1400,'))
    assert wait_for(lambda: where(wires.router, "bogon") == (2, 2, ""))
    dropped_by_device(wires, packet, "bogon")
    # And one without a filter.
    bare = with_hardware.replace('filter = { inward = "edge-in", hardware = true },', "")
    apply(wires.router, bare)
    assert len(wires.device.lines("destroy")) == len(wires.device.lines("create"))
    passes(wires, packet)
    wires.router.stop()
    wires.device.lines()


def test_a_device_that_is_plugged_in_again_gets_its_rules(lab, tmp_path):
    wires = start(lab, tmp_path)
    packet = IP(src="198.19.255.1", dst=B4) / UDP() / PAYLOAD
    dropped_by_device(wires, packet, "bogon")
    wires.left.close()
    wires.inside.run("ip", "link", "delete", "tp-left")
    gone = lambda: wires.router.show("filters")[0]["hardware"]  # noqa: E731
    assert wait_for(lambda: gone() == [{"port": "left", "why": "its device is not there"}])
    veth(wires.inside, "tp-left", wires.ns_left, "wire", LEFT_MAC, HOST_A_MAC)
    wires.left = lab.raw(wires.ns_left, "wire")
    assert wait_for(lambda: rules(wires.router)["bogon"]["hardware"] and where(wires.router, "bogon") == (2, 2, ""), 15)
    assert wait_for(lambda: [port["link"] for port in wires.router.show("ports")] == ["up", "up"], 15)
    wires.router.counters()
    dropped_by_device(wires, packet, "bogon")
    assert hits(wires.router, "bogon")[::2] == (2, 2)


def test_a_driver_without_rules_leaves_all_to_software(lab, tmp_path):
    wires = start(lab, tmp_path, port="nowhere")
    log = wires.router.log()
    assert log.count('port "left": filter "edge-in" runs in software: its driver has no rte_flow') == 1, log
    dropped_by_software(wires, IP(src="198.19.255.1", dst=B4) / UDP() / PAYLOAD, "bogon")
    text = wires.router.command("show", "filters", "edge-in").stdout
    assert "\nin software on left: its driver has no rte_flow\n" in text, text


def test_a_device_that_does_not_let_go_is_told_of(lab, tmp_path):
    wires = start(lab, tmp_path)
    refuse = tmp_path / "device.refuse"
    refuse.write_text("destroy")
    apply(wires.router, wires.router.config.read_text().replace(", hardware = true", ""))
    assert wait_for(lambda: "does not let go of rules" in wires.router.log())
    refuse.unlink()
    assert wait_for(lambda: len(wires.device.lines("destroy")) == len(wires.device.lines("create")))
    assert wires.router.log().count("does not let go of rules") == 1


def test_steps_in_front_of_the_filter_see_all_packets(lab, tmp_path):
    step = """
local seen = turnpike.step "seen" { outputs = { "next" }, process = function(batch) end }
turnpike.graph:insert_after("ip4-validate", seen)
"""
    wires = start(lab, tmp_path, FILTER + step)
    assert "runs in software: the graph has steps in front of the filter" in wires.router.log()
    assert wires.device.lines("create") == []


def test_rules_are_for_frames_without_tags_while_the_port_has_vlans(lab, tmp_path):
    """A device may take the header behind a tag for the port's own, unless a rule says otherwise."""
    wires = start(lab, tmp_path)
    held = len(wires.device.lines("create"))
    assert held > 0
    config, packet = wires.router.config.read_text(), IP(src="198.19.255.1", dst=B4) / UDP() / PAYLOAD
    apply(wires.router, config + 'turnpike.vlan "left.5" { parent = "left", id = 5, address = "10.0.5.1/24" }\n')
    assert wait_for(lambda: len(wires.device.lines("destroy")) == held)
    assert len(wires.device.lines("create")) == 2 * held and where(wires.router, "bogon") == (2, 2, "")
    dropped_by_device(wires, packet, "bogon")
    # The VLAN has no filter.
    frame, drops = bytes(LINK / packet), wires.device.drops()
    wires.left.send(tagged(frame, 5))
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)] and wires.device.drops() == drops
    apply(wires.router, config)
    assert wait_for(lambda: len(wires.device.lines("create")) == 3 * held)


def test_a_port_with_a_host_interface_keeps_dhcp(lab, tmp_path):
    """Requests for an address go to the host before any filter."""
    config = 'turnpike.filter "edge-in" { { name = "udp", proto = "udp", action = "drop" } }\n'
    wires = start(lab, tmp_path, config, calm=False)
    assert where(wires.router, "udp") == (2, 2, "")
    apply(wires.router, wires.router.config.read_text().replace('device = "tp-left",', 'device = "tp-left", host = true,'))
    why = "IPv4: it may fit DHCP of hosts without an address, which is not filtered"
    assert wait_for(lambda: where(wires.router, "udp") == (1, 1, why))


def test_hardware_needs_an_inward_filter(tmp_path):
    file = tmp_path / "router.lua"
    file.write_text(ports('{ outward = "edge-in", hardware = true }') + FILTER)
    result = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    said = 'router.lua:3: port "left": filter: hardware: a device holds rules of an inward filter, and the port has none'
    assert result.returncode == 1 and said in result.stderr, result.stderr

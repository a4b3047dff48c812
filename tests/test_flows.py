"""Connection tracking: replies pass a filter that accepts no new connections."""

import random
import subprocess

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6PacketTooBig, IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, tcp
from lib.router import Change, binary

A4, B4, A6, B6 = "10.0.1.2", "10.0.2.2", "fd00:1::2", "fd00:2::2"
OUTSIDE = """
turnpike.filter "from-outside" {
  { name = "answers", state = { "established", "related" } },
  { name = "https", proto = "tcp", to_port = 443 },
  default = "drop",
}
"""
GUARDED = PORTS.replace('device = "tp-right",', 'device = "tp-right", filter = "from-outside",')
DATA = Raw(b"some bytes of data")


def outward(packet):
    return bytes(Ether(src=HOST_A_MAC, dst=LEFT_MAC) / packet)


def inward(packet):
    return bytes(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / packet)


class Guarded:
    """A router whose right port accepts replies only; the test is the hosts."""

    def __init__(self, lab, config="", ports=GUARDED + STATIC_NEIGHBOURS, **options):
        self.wires = Wires(lab, OUTSIDE + config, ports=ports, calm=True, **options)
        self.router = self.wires.router

    def goes_out(self, packet):
        self.wires.drain()
        frame = outward(packet)
        self.wires.left.send(frame)
        assert self.wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]

    def comes_in(self, packet):
        """Returns true if the filter accepts it: it arrives as expected, or is dropped as filtered."""
        self.wires.drain()
        frame, change = inward(packet), Change(self.router)
        self.wires.right.send(frame)
        if "filtered" in change(received=1).get("dropped", {}):
            assert self.wires.left.receive(0.02) == []
            return False
        assert self.wires.left.expect(1) == [forwarded(frame, LEFT_MAC, HOST_A_MAC)]
        return True

    def flows(self, *words):
        return self.router.show("flows", *words)["flows"]

    def forget(self):
        self.router.command("flow", "del", "--all")


@pytest.fixture(scope="module")
def guarded(module_lab):
    return Guarded(module_lab)


@pytest.fixture(autouse=True)
def anew(request):
    if "guarded" in request.fixturenames:
        request.getfixturevalue("guarded").forget()


PAIRS = {
    "UDP": (IP(src=A4, dst=B4) / UDP(sport=4000, dport=53) / DATA, IP(src=B4, dst=A4) / UDP(sport=53, dport=4000) / DATA),
    "UDP over IPv6": (IPv6(src=A6, dst=B6) / UDP(sport=4000, dport=53) / DATA,
                      IPv6(src=B6, dst=A6) / UDP(sport=53, dport=4000) / DATA),
    "TCP": (IP(src=A4, dst=B4) / TCP(sport=4000, dport=80, flags="S"), IP(src=B4, dst=A4) / TCP(sport=80, dport=4000, flags="SA")),
    "TCP in its middle": (IPv6(src=A6, dst=B6) / TCP(sport=4000, dport=80, flags="A") / DATA,
                          IPv6(src=B6, dst=A6) / TCP(sport=80, dport=4000, flags="PA") / DATA),
    "ICMP echo": (IP(src=A4, dst=B4) / ICMP(type=8, id=7) / DATA, IP(src=B4, dst=A4) / ICMP(type=0, id=7) / DATA),
    "ICMPv6 echo": (IPv6(src=A6, dst=B6) / ICMPv6EchoRequest(id=7), IPv6(src=B6, dst=A6) / ICMPv6EchoReply(id=7)),
    "GRE": (IP(src=A4, dst=B4, proto=47) / DATA, IP(src=B4, dst=A4, proto=47) / DATA),
}  # fmt: skip


@pytest.mark.parametrize("kind", PAIRS)
def test_an_answer_passes_once_it_was_asked_for(guarded, kind):
    question, answer = PAIRS[kind]
    assert not guarded.comes_in(answer)
    guarded.goes_out(question)
    assert guarded.comes_in(answer)
    (flow,) = guarded.flows()
    assert (flow["packets_there"], flow["packets_back"]) == (1, 1)
    assert flow["state"] == ("opening" if "TCP" == kind else "assured")


OTHERS = {
    "another port": IP(src=B4, dst=A4) / UDP(sport=53, dport=4001) / DATA,
    "from another port": IP(src=B4, dst=A4) / UDP(sport=54, dport=4000) / DATA,
    "another host": IP(src="10.0.2.3", dst=A4) / UDP(sport=53, dport=4000) / DATA,
    "another protocol": IP(src=B4, dst=A4) / TCP(sport=53, dport=4000, flags="A") / DATA,
    "another ICMP identifier": IP(src=B4, dst=A4) / ICMP(type=0, id=8) / DATA,
    "a question the other way": IP(src=B4, dst=A4) / ICMP(type=8, id=7) / DATA,
    "a redirect": IP(src=B4, dst=A4) / ICMP(type=5, id=7) / IP(src=A4, dst=B4) / UDP(sport=4000, dport=53),
    "an attempt, in a flow": IP(src=B4, dst=A4) / TCP(sport=80, dport=4000, flags="S"),
    "of IPv6": IPv6(src=B6, dst=A6) / UDP(sport=53, dport=4000) / DATA,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_answer_does_not_pass(guarded, kind):
    for question in ("UDP", "TCP", "ICMP echo"):
        guarded.goes_out(PAIRS[question][0])
    assert not guarded.comes_in(OTHERS[kind])


def test_errors_pass_that_are_about_what_was_let_pass(guarded):
    """RFC 792, RFC 4443: path MTU discovery continues to work."""
    sent = IP(src=A4, dst=B4, ttl=63) / UDP(sport=4000, dport=53) / DATA
    router = "203.0.113.9"
    too_big = IP(src="10.0.2.9", dst=A4) / ICMP(type=3, code=4, nexthopmtu=1300) / Raw(bytes(sent)[:28])
    assert not guarded.comes_in(too_big)
    guarded.goes_out(IP(src=A4, dst=B4) / UDP(sport=4000, dport=53) / DATA)
    assert guarded.comes_in(too_big)
    of_other = IP(src=A4, dst=B4, ttl=63) / UDP(sport=4001, dport=53) / DATA
    assert not guarded.comes_in(IP(src="10.0.2.9", dst=A4) / ICMP(type=3, code=4) / Raw(bytes(of_other)[:28]))
    # For a host that did not send the quoted packet.
    assert not guarded.comes_in(IP(src="10.0.2.9", dst="10.0.1.3") / ICMP(type=3, code=4) / Raw(bytes(sent)[:28]))
    # The quoted packet was sent in the other direction.
    back = IP(src=B4, dst=A4, ttl=63) / UDP(sport=53, dport=4000) / DATA
    assert not guarded.comes_in(IP(src=router, dst=A4) / ICMP(type=11) / Raw(bytes(back)[:28]))
    six = IPv6(src=A6, dst=B6, hlim=63) / UDP(sport=4000, dport=53) / DATA
    big6 = IPv6(src="fd00:2::9", dst=A6) / ICMPv6PacketTooBig(mtu=1280) / Raw(bytes(six))
    assert not guarded.comes_in(big6)
    guarded.goes_out(IPv6(src=A6, dst=B6) / UDP(sport=4000, dport=53) / DATA)
    assert guarded.comes_in(big6)


def test_fragments_follow_the_first(guarded):
    guarded.goes_out(PAIRS["UDP"][0])
    whole = bytes(UDP(sport=53, dport=4000, len=72) / Raw(b"x" * 64))
    first = IP(src=B4, dst=A4, flags="MF", id=9, proto=17) / Raw(whole[:40])
    later = IP(src=B4, dst=A4, frag=5, id=9, proto=17) / Raw(whole[40:])
    assert not guarded.comes_in(later), "before the first"
    assert guarded.comes_in(first)
    assert guarded.comes_in(later)
    other = IP(src=B4, dst=A4, frag=5, id=10, proto=17) / Raw(whole[40:])
    assert not guarded.comes_in(other), "of another packet"
    guarded.goes_out(PAIRS["UDP over IPv6"][0])
    first6 = IPv6(src=B6, dst=A6) / IPv6ExtHdrFragment(nh=17, m=1, id=5) / Raw(whole[:40])
    later6 = IPv6(src=B6, dst=A6) / IPv6ExtHdrFragment(nh=17, offset=5, id=5) / Raw(whole[40:])
    assert not guarded.comes_in(later6)
    assert guarded.comes_in(first6) and guarded.comes_in(later6)


def test_a_connection_from_its_beginning_to_its_end(guarded):
    def segment(flags, data=b""):
        return IP(src=A4, dst=B4) / TCP(sport=4000, dport=80, flags=flags) / Raw(data)

    def answer(flags, data=b""):
        return IP(src=B4, dst=A4) / TCP(sport=80, dport=4000, flags=flags) / Raw(data)

    def state():
        (flow,) = guarded.flows("--port", "80")
        return flow["state"]

    guarded.goes_out(segment("S"))
    assert state() == "unanswered"
    assert guarded.comes_in(answer("SA"))
    guarded.goes_out(segment("A"))
    assert state() == "opening"
    assert guarded.comes_in(answer("PA", b"data"))
    assert state() == "assured"
    # A third host's reset ends nothing as long as the connection continues.
    assert guarded.comes_in(answer("R"))
    assert state() == "closing"
    guarded.goes_out(segment("A"))
    assert state() == "assured"
    guarded.goes_out(segment("FA"))
    assert state() == "assured" and guarded.comes_in(answer("FA"))
    assert state() == "closing"
    guarded.goes_out(segment("A"))
    assert guarded.comes_in(answer("A")), "the last segments may be repeated"
    # The same ports once more.
    guarded.goes_out(segment("S"))
    assert state() == "unanswered"
    assert guarded.comes_in(answer("SA"))


def test_what_is_let_in_is_answered_and_known(guarded):
    assert guarded.comes_in(IP(src=B4, dst=A4) / TCP(sport=5000, dport=443, flags="S"))
    assert guarded.flows() == [], "an attempt from outside takes no room"
    guarded.goes_out(IP(src=A4, dst=B4) / TCP(sport=443, dport=5000, flags="SA"))
    (flow,) = guarded.flows()
    assert (flow["from"], flow["to"], flow["protocol"]) == (f"{A4}:443", f"{B4}:5000", "tcp")


def test_what_takes_the_slow_path_is_filtered_and_known(lab):
    """Packets with options, and the first one to a neighbour whose MAC is not known."""
    out = 'turnpike.filter "to-right" { { proto = "udp", to_port = 99, action = "drop" }, { proto = "udp", to_port = 98, action = "reject" } }\n'
    neighbours = f'turnpike.neighbour "{A4}" {{ port = "left", mac = "{HOST_A_MAC}" }}\n'
    ports = PORTS.replace('device = "tp-right",', 'device = "tp-right", filter = { inward = "from-outside", outward = "to-right" },')
    guarded = Guarded(lab, out, ports=ports + neighbours)
    wires = guarded.wires

    def asked(port):
        """Returns true if the router resolves the destination of such a packet."""
        wires.drain()
        wires.left.send(outward(IP(src=A4, dst="10.0.2.77") / UDP(sport=4000, dport=port) / DATA))
        return any(Ether(frame).type == 0x0806 for frame in wires.right.receive(0.3))

    assert not asked(99), "the filter comes first"
    assert guarded.router.counters()["dropped"]["filtered"] == 1
    assert not asked(98)
    assert asked(53)
    # The packet leaves by the slow path, and its reply is known.
    wires.drain()
    arp = ARP(op=2, hwsrc=HOST_B_MAC, psrc="10.0.2.77", hwdst=RIGHT_MAC, pdst="10.0.2.1")
    wires.right.send(bytes(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / arp))
    assert wait_for(lambda: [flow["to"] for flow in guarded.flows()] == ["10.0.2.77:53"], 3)
    assert guarded.comes_in(IP(src="10.0.2.77", dst=A4) / UDP(sport=53, dport=4000) / DATA)
    # Options do not bypass a filter, inward or outward.
    nop = [b"\x01", b"\x01", b"\x01", b"\x00"]
    assert not guarded.comes_in(IP(src="10.0.2.77", dst=A4, options=nop) / UDP(sport=9, dport=9) / DATA)
    assert guarded.comes_in(IP(src="10.0.2.77", dst=A4, options=nop) / UDP(sport=53, dport=4000) / DATA)
    jumbo = IPv6ExtHdrHopByHop(options=[])
    assert not guarded.comes_in(IPv6(src="fd00:2::77", dst=A6) / jumbo / UDP(sport=9, dport=9) / DATA)
    before = guarded.router.counters()["dropped"]["filtered"]
    wires.drain()
    wires.left.send(outward(IP(src=A4, dst="10.0.2.77", options=nop) / UDP(sport=4000, dport=99) / DATA))
    assert wait_for(lambda: guarded.router.counters()["dropped"]["filtered"] == before + 1, 3)
    assert wires.right.receive(0.1) == []


def test_the_router_s_own_connections_are_known(lab):
    """Packets that the kernel sends by a host interface are answered through a closed filter."""
    space = lab.namespace("space")
    closed = 'turnpike.filter "closed" { { state = { "established", "related" } }, default = "drop" }\n'
    ports = PORTS.replace(
        'turnpike.port "right" { device = "tp-right",',
        f'turnpike.port "right" {{ device = "tp-right", filter = "closed", host = {{ netns = "{space.name}" }},')
    hosts = Hosts(lab, closed, ports=ports)
    assert wait_for(lambda: space.run("ping", "-c1", "-W1", B4, check=False).returncode == 0, 10)
    assert hosts.right.run("ping", "-c1", "-W1", "10.0.2.1", check=False).returncode == 1
    server = subprocess.Popen(
        [*hosts.right.command(), "python3", "-c",
         "import socket; s = socket.create_server(('', 7)); c, _ = s.accept(); c.sendall(b'hello' * 1000)"])
    try:
        fetch = "import socket\nc = socket.create_connection(('10.0.2.2', 7), 3)\nn = 0\nwhile (d := c.recv(9999)): n += len(d)\nprint(n)"
        assert wait_for(lambda: (done := space.run("python3", "-c", fetch, check=False)).returncode == 0
                        and done.stdout.strip() == "5000", 10)
    finally:
        server.kill()
        server.wait()


def test_flows_end(lab):
    guarded = Guarded(lab, "turnpike.flows { unanswered_s = 1, icmp_s = 60 }\n")
    for kind in ("UDP", "ICMP echo"):
        guarded.goes_out(PAIRS[kind][0])
    assert len(guarded.flows()) == 2
    assert wait_for(lambda: [flow["protocol"] for flow in guarded.flows()] == ["icmp"], 5)
    assert not guarded.comes_in(PAIRS["UDP"][1])
    guarded.goes_out(PAIRS["UDP"][0])
    assert guarded.comes_in(PAIRS["UDP"][1])


@pytest.mark.parametrize("sources", [1, 5000])
def test_a_flood_pushes_out_no_connection(lab, sources):
    """Ten times as many attempts as there is room for, from one host or from many."""
    guarded = Guarded(lab, "turnpike.flows { most = 1024 }\n")
    connections = [(4000 + port, 80) for port in range(50)]
    for sport, dport in connections:
        segment = IP(src=A4, dst=B4) / TCP(sport=sport, dport=dport, flags="A") / DATA
        guarded.wires.left.send(outward(segment))
        assert guarded.wires.right.expect(1)
        guarded.wires.right.send(inward(IP(src=B4, dst=A4) / TCP(sport=dport, dport=sport, flags="A") / DATA))
        assert guarded.wires.left.expect(1)
    choice = random.Random(7)
    attempts = []
    for number in range(10_000):
        source = f"10.7.{number % sources >> 8}.{number % sources & 255}"
        segment = tcp(source, B4, choice.randrange(1024, 65536), 80, 0, 0, 2)
        attempts.append(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(source, B4, segment, protocol=6)))
    received = lambda: guarded.router.show("counters")["received"]
    before = received()
    for first in range(0, len(attempts), 500):
        guarded.wires.left.send(*attempts[first:first + 500])
        assert wait_for(lambda goal=before + first + 500: received() >= goal, 10)
    told = guarded.router.show("flows")
    assert told["room"] == 1024 and told["pushed_out"] > 8000
    for sport, dport in connections:
        assert guarded.comes_in(IP(src=B4, dst=A4) / TCP(sport=dport, dport=sport, flags="A") / DATA), sport
    # A new one gets a slot, too.
    guarded.goes_out(PAIRS["UDP"][0])
    assert guarded.comes_in(PAIRS["UDP"][1])


def test_flows_stay_when_rules_or_settings_change(lab):
    guarded = Guarded(lab)
    guarded.goes_out(PAIRS["UDP"][0])
    assert guarded.comes_in(PAIRS["UDP"][1])
    text = guarded.router.config.read_text()

    def apply(text):
        guarded.router.config.write_text(text)
        guarded.router.command("apply", guarded.router.config)

    apply(text.replace("to_port = 443", "to_port = 444"))
    assert guarded.comes_in(PAIRS["UDP"][1])
    apply(text + "turnpike.flows { most = 2048, udp_s = 100 }\n")
    (flow,) = guarded.flows()
    assert flow["packets_back"] == 2 and guarded.router.show("flows")["room"] == 2048
    assert guarded.comes_in(PAIRS["UDP"][1])
    guarded.router.config.write_text(text + "turnpike.flows { most = 4096 }\n")
    plan = guarded.router.command("plan", guarded.router.config, check=False).stdout
    assert "flows: most" in plan and "4096" in plan, plan
    # Without a filter that matches states no flows are kept.
    apply(text.replace('{ name = "answers", state = { "established", "related" } },', ""))
    assert guarded.router.show("flows")["room"] == 0
    assert "no filter asks" in guarded.router.command("show", "flows").stdout
    assert not guarded.comes_in(PAIRS["UDP"][1])


def test_outward_filters_ask_for_state_too(lab):
    """Only hosts with a known connection may send to the left."""
    rules = 'turnpike.filter "answers" { { state = "established" }, default = "drop" }\n'
    ports = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = { outward = "answers" },')
    guarded = Guarded(lab, rules, ports=ports + STATIC_NEIGHBOURS)
    question, answer = PAIRS["UDP"]
    assert not guarded.comes_in(answer)
    guarded.goes_out(question)
    assert guarded.comes_in(answer)


def test_flows_are_shown_and_forgotten(guarded):
    guarded.goes_out(IP(src=A4, dst=B4) / UDP(sport=4000, dport=53) / Raw(b"x" * 1000))
    for port in range(5):
        guarded.goes_out(IP(src=A4, dst=B4) / TCP(sport=5000 + port, dport=80, flags="S"))
    guarded.goes_out(PAIRS["ICMPv6 echo"][0])
    assert guarded.flows()[0]["to"] == f"{B4}:53", "the largest first"
    assert len(guarded.flows("--top", "3")) == 3
    assert len(guarded.flows("--protocol", "tcp")) == 5
    assert len(guarded.flows("--prefix", "fd00::/16")) == 1
    assert len(guarded.flows("--prefix", "10.0.0.0/8", "--port", "53")) == 1
    text = guarded.router.command("show", "flows", "--top", "2").stdout
    assert text.startswith("2 of 7 flows; room for 262144 of each family;"), text
    refused = guarded.router.command("flow", "del", check=False)
    assert refused.returncode == 1 and "--all" in refused.stderr
    assert "5 flows forgotten" in guarded.router.command("flow", "del", "--protocol", "tcp").stdout
    assert len(guarded.flows()) == 2
    assert not guarded.comes_in(PAIRS["TCP"][1])
    verdict = guarded.router.command(
        "show", "filters", "from-outside", "--packet", "udp 10.0.2.2:53 > 10.0.1.2:9 in right state established")
    assert "rule 1" in verdict.stdout


@pytest.mark.parametrize("text, said", [
    ('turnpike.filter "f" { { state = "known" } }', 'known: new, established, related'),
    ('turnpike.flows { most = 5 }', "most"),
    ('turnpike.flows { tcp = 5 }', "tcp_s"),
])
def test_mistakes_are_named(tmp_path, text, said):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + text + "\n")
    result = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and said in result.stderr, result.stderr


def test_two_forwarders_know_the_same_flows(lab):
    guarded = Guarded(lab, 'turnpike.forwarders { cores = "0,1" }\n')
    for port in range(40):
        sport = 4000 + port
        guarded.goes_out(IP(src=A4, dst=B4) / UDP(sport=sport, dport=53) / DATA)
        assert guarded.comes_in(IP(src=B4, dst=A4) / UDP(sport=53, dport=sport) / DATA)
    assert {flow["packets_back"] for flow in guarded.flows("--top", "0")} == {1}

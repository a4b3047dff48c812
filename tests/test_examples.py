"""The examples of docs/steps.md, as printed there."""

import re

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.utils import rdpcap

from lib.apply import apply
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, tcp, udp
from lib.router import ROOT, Change

INSIDE, OUTSIDE, RIGHT = "10.0.1.2", "198.51.100.2", "10.0.2.2"


def example(opening, directory=None):
    """The Lua code after the paragraph that begins like this, with its file in a directory of the test's."""
    text = (ROOT / "docs/steps.md").read_text()
    section = text[text.index("## Examples"):text.index("## Steps in Rust")]
    code = re.search(rf"^{re.escape(opening)}.*?```lua\n(.*?)```", section, re.S | re.M)[1]
    return re.sub(r"tx_pcap=", f"tx_pcap={directory}/", code)


def from_left(payload, source=INSIDE, **header):
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(source, RIGHT, payload, **header))


def sent_on(frame):
    return forwarded(frame, RIGHT_MAC, HOST_B_MAC)


def datagram(port, data=b"payload", source=INSIDE, destination=RIGHT):
    return udp(source, destination, 1000, port, data)


def saved(file):
    """The IPv4 frames of a capture file; the router announces itself there like on any port."""
    return [frame for frame in map(bytes, rdpcap(str(file))) if frame[12:14] == b"\x08\x00"]


def test_all_are_here():
    text = (ROOT / "docs/steps.md").read_text()
    section = text[text.index("## Examples"):text.index("## Steps in Rust")]
    assert section.count("```lua") == 9


def test_count_by_dscp(lab):
    wires = Wires(lab, example("Count packets"), calm=True)
    for dscp in (0, 46, 46, 10):
        wires.left.send(from_left(datagram(7), tos=dscp << 2))
    assert len(wires.right.expect(4)) == 4
    counted = {k: v for k, v in wires.router.counters()["steps"].items() if k.startswith("dscp")}
    assert counted == {"dscp[0]": 1, "dscp[46]": 2, "dscp[10]": 1}


def test_mark(lab):
    wires = Wires(lab, example("Mark what a customer"), calm=True)
    sip, other = datagram(5060), datagram(5061)
    foreign = udp("192.0.2.7", RIGHT, 1000, 5060, b"payload")
    frames = [from_left(sip, tos=0), from_left(other, tos=46 << 2), from_left(foreign, source="192.0.2.7", tos=10 << 2)]
    expected = [from_left(sip, tos=46 << 2), from_left(other, tos=0), frames[2]]
    for frame in frames:
        wires.left.send(frame)
    assert sorted(wires.right.expect(3)) == sorted(sent_on(frame) for frame in expected)


def test_mirror(lab, tmp_path):
    wires = Wires(lab, example("Mirror a flow", tmp_path), calm=True)
    change = Change(wires.router)
    frames = [from_left(datagram(53 if n % 2 else 54, data=bytes([n]) * 20)) for n in range(40)]
    # A packet that is dropped is seen as well.
    frames.append(from_left(datagram(53), ttl=1))
    for frame in frames:
        wires.left.send(frame)
    assert sorted(wires.right.expect(40)) == sorted(sent_on(frame) for frame in frames[:40])
    wires.left.expect(1)
    assert change(received=41)["replicated"] == 21
    wires.router.stop()
    assert saved(tmp_path / "mirror.pcap") == frames[1:40:2] + frames[40:]


@pytest.mark.parametrize("layer", [UDP, TCP])
def test_nat(lab, layer):
    wires = Wires(lab, example("A 1:1 NAT"), calm=True)

    def packet(source, destination):
        return bytes(IP(src=source, dst=destination, ttl=64) / layer(sport=1000, dport=2000) / b"a payload")

    out = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet(INSIDE, RIGHT))
    wires.left.send(out)
    translated = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet(OUTSIDE, RIGHT))
    assert wires.right.expect(1) == [sent_on(translated)]
    back = ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, packet(RIGHT, OUTSIDE))
    wires.right.send(back)
    translated = ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, packet(RIGHT, INSIDE))
    assert wires.left.expect(1) == [forwarded(translated, LEFT_MAC, HOST_A_MAC)]


def test_sample(lab, tmp_path):
    wires = Wires(lab, example("Sample one packet", tmp_path), calm=True)
    change = Change(wires.router)
    frames = [from_left(datagram(7, data=n.to_bytes(4, "big"))) for n in range(3500)]
    before = wires.router.counters()["received"]
    for at in range(0, 3500, 50):
        wires.left.send(*frames[at:at + 50])
        wires.right.expect(50)
    assert change(received=3500)["replicated"] == 3
    wires.router.stop()
    # Other earlier packets count as well: announcements of the wires' namespaces.
    first = 999 - before
    assert saved(tmp_path / "samples.pcap") == [frames[first + 1000 * n] for n in range(3)]


def test_limit(lab):
    # So slow that no token is added before the test is over.
    limit = example("Limit what each source").replace("rate = 1000", "rate = 0.0001")
    wires = Wires(lab, limit, calm=True)

    def send(source, count):
        wires.left.send(*[from_left(datagram(7, data=bytes([n]) * 20, source=source), source=source) for n in range(count)])

    send(INSIDE, 150)
    assert len(wires.right.expect(100)) == 100
    assert wait_for(lambda: wires.router.counters()["steps"]["limit.over-limit"] == 50)
    # Another source has a separate bucket, and the first one's is still empty after an apply.
    send("10.0.1.3", 30)
    assert len(wires.right.expect(30)) == 30
    apply(wires.router, PORTS + STATIC_NEIGHBOURS + limit + 'turnpike.route "198.51.100.0/24" { blackhole = true }\n')
    send(INSIDE, 20)
    assert wait_for(lambda: wires.router.counters()["steps"]["limit.over-limit"] == 70)
    send("10.0.1.3", 80)
    assert len(wires.right.expect(70)) == 70
    counters = wires.router.counters()
    assert counters["steps"]["limit.over-limit"] == counters["dropped"]["by-step"] == 80


def test_firewall(lab):
    wires = Wires(lab, example("Refuse UDP and TCP"), calm=True)
    web, other = from_left(datagram(443)), from_left(datagram(7))
    wires.left.send(web, other)
    assert wires.right.expect(1) == [sent_on(web)]
    # The sender gets an error: destination unreachable, communication administratively prohibited.
    error = wires.left.expect(1)[0]
    assert (error[23], error[34], error[35]) == (1, 3, 13) and error[42 + 20:42 + 28] == datagram(7)[:8]
    # A reply to a request of the other side passes.
    asked = ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, ipv4(RIGHT, INSIDE, udp(RIGHT, INSIDE, 7, 1000, b"question")))
    wires.right.send(asked)
    assert wires.left.expect(1) == [forwarded(asked, LEFT_MAC, HOST_A_MAC)]
    wires.left.send(other)
    assert wires.right.expect(1) == [sent_on(other)]
    assert wires.router.counters()["dropped"]["prohibited"] == 1


def syn(port, source=INSIDE, flags=2, data=b"", **header):
    return from_left(tcp(source, RIGHT, 1000, port, 7, 0, flags, data), source=source, protocol=6, **header)


GATEWAY_MAC = "02:00:00:00:00:c3"


def test_another_gateway(lab):
    neighbour = f'turnpike.neighbour "10.0.2.3" {{ mac = "{GATEWAY_MAC}" }}\n'
    text = PORTS + STATIC_NEIGHBOURS + neighbour + example("Send what one host asks")
    wires = Wires(lab, ports=text, calm=True)

    def by_gateway(frame):
        return forwarded(frame, RIGHT_MAC, GATEWAY_MAC)

    web, mail, foreign = syn(443), syn(25), syn(443, source="10.0.1.9")
    wires.left.send(web, mail, foreign)
    assert sorted(wires.right.expect(3)) == sorted([by_gateway(web), sent_on(mail), sent_on(foreign)])
    # Another gateway by apply; while its network has no port the packets take the ordinary path.
    apply(wires.router, text.replace('"10.0.2.3" {', '"10.0.2.4" {').replace('via = "10.0.2.3"', 'via = "10.0.2.4"'))
    wires.left.send(web)
    assert wires.right.expect(1) == [by_gateway(web)]
    wires.ns_right.run("ip", "link", "set", "wire", "down")
    assert wait_for(lambda: wires.router.show("ports")[1]["link"] == "down")
    wires.left.send(web)

    def took(output):
        graph = wires.router.show("graph")["steps"]
        edges = next(step["outputs"] for step in graph if step["name"] == "other-gateway")
        return next(edge["packets"] for edge in edges if edge["name"] == output)

    assert wait_for(lambda: took("down") == 1)
    assert wait_for(lambda: wires.router.counters()["dropped"]["no-route"] == 1)
    wires.ns_right.run("ip", "link", "set", "wire", "up")
    assert wait_for(lambda: wires.router.show("ports")[1]["link"] == "up")
    wires.right.drain()
    wires.left.send(web)
    assert wires.right.expect(1) == [by_gateway(web)]


def test_refuse_by_reset(lab):
    wires = Wires(lab, example("Refuse connections to Telnet"), calm=True)
    web, telnet = syn(80), syn(23)
    wires.left.send(web)
    assert wires.right.expect(1) == [sent_on(web)]
    wires.left.send(telnet)
    answer = wires.left.expect(1)[0]
    assert answer[:12] == telnet[6:12] + telnet[:6], "back the way it came"
    assert answer[23] == 6 and answer[26:34] == telnet[30:34] + telnet[26:30], "in the name of its destination"
    assert answer[34:] == tcp(RIGHT, INSIDE, 23, 1000, 0, 8, 0x14), "RFC 9293 3.10.7.1"
    # Neither a reset nor part of a segment is answered, and UDP is not TCP.
    wires.left.send(syn(23, flags=4), from_left(datagram(23)))
    assert wires.right.expect(1) == [sent_on(from_left(datagram(23)))]
    assert wait_for(lambda: wires.router.counters()["dropped"]["prohibited"] == 2)
    assert not wires.left.receive(0.2)
    # All forwarders share their counts.
    wires.left.send(*[syn(23)] * 998)
    assert wait_for(lambda: wires.router.counters()["steps"]["telnet-tried"] == 1000)
    wires.left.send(web)
    assert wait_for(lambda: wires.router.counters()["dropped"]["prohibited"] + wires.router.counters()["dropped"]["refused-errors"] == 1001)

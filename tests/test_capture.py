"""Captures: `turnpike capture` has the packets that hosts sent and received, and says what became of the others."""

import json
import socket
import subprocess

import pytest
from scapy.utils import PcapNgReader

from lib.capture import Capturing, comment_of
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, pattern, tagged, udp, unpadded
from lib.router import ROOT, binary, drop_reasons
from test_host_interface import WiredMachine, ospf_hello
from test_overload import SLOW, Mixture, flood
from test_overload import frame as flooding
from test_overload import stop

RIGHT = "10.0.2.2"


def other(number, destination=RIGHT, source="10.0.1.2", **header):
    """A frame of the host at the left that differs from those of other numbers."""
    data = udp(source, destination, 1000, 2000 + number, pattern(60))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(source, destination, data, **header))


def data_of(frames):
    """Those of `other`, without padding."""
    return [unpadded(frame) for frame in frames if frame[12:14] == b"\x08\x00" and frame[23] == 17]


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, ports=PORTS + STATIC_NEIGHBOURS, calm=True)


def test_received_and_sent_packets_are_those_of_the_hosts(wires):
    sent = [other(number) for number in range(20)]
    capture = Capturing(wires.router)
    for frame in sent:
        wires.left.send(frame)
    arrived = wires.right.expect(20)
    said = capture.end()
    packets = capture.packets()
    received = [frame for interface, direction, said, frame in packets if (interface, said) == ("left", "received")]
    assert data_of(received) == sent
    leaving = [(said, frame) for interface, direction, said, frame in packets if interface == "right" and "sent" in said]
    assert data_of(frame for _, frame in leaving) == [unpadded(frame) for frame in arrived]
    assert all(said == "sent behind ip4-rewrite" for said, _ in leaving)
    assert f"{len(packets)} packets captured, 0 lost" in said
    counters = wires.router.counters()
    assert counters["unaccounted"] == 0


def test_an_interface_a_length_and_a_number(wires):
    capture = Capturing(wires.router, "-i", "right", "-c", 3, "-s", 40)
    sent = [other(number) for number in range(9)]
    for frame in sent:
        wires.left.send(frame)
    wires.right.expect(9)
    said = capture.end(None)
    packets = capture.packets()
    assert [frame for *_, frame in packets] == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)[:40] for frame in sent[:3]]
    assert "3 packets captured" in said


def test_dropped_packets_with_their_reason(wires):
    one = Capturing(wires.router, "dropped", "ip4-checksum", file="one.pcapng")
    every = Capturing(wires.router, "dropped", file="every.pcapng")
    steps = Capturing(wires.router, "at", "ip4-ttl", file="steps.pcapng")
    strange = [other(number, "127.0.0.1") for number in range(3)]
    broken = other(7)[:24] + b"\x00\x00" + other(7)[26:]
    fine = other(8)
    for frame in (*strange, broken, fine):
        wires.left.send(frame)
    wires.right.expect(1)
    dropped = lambda: wires.router.show("counters")["dropped_by_step"]
    wait_for(lambda: dropped()["ip4-validate"]["ip4-checksum"] >= 1, 10)
    for capture in (one, every, steps):
        assert "0 lost" in capture.end()
    assert [(said, frame) for *_, said, frame in steps.packets()] == [("enters ip4-ttl", fine)]
    found = [(said, frame) for *_, said, frame in every.packets()]
    assert [frame for said, frame in found if "martian" in said] == strange, found
    assert [said for said, _ in found if "ip4-checksum" in said] == ["dropped by ip4-validate: ip4-checksum"]
    assert [(said, frame) for *_, said, frame in one.packets()] == [("dropped by ip4-validate: ip4-checksum", broken)]


def test_packets_that_the_slow_path_drops(wires):
    every = Capturing(wires.router, "dropped", "any", file="any.pcapng")
    expired = Capturing(wires.router, "dropped", "ttl-expired", "to_port=2001", "proto=udp", file="expired.pcapng")
    elsewhere = Capturing(wires.router, "dropped", "-i", "right", file="elsewhere.pcapng")
    expiring = [other(number, ttl=1) for number in range(3)]
    stray = other(7, "10.0.1.255", source="10.0.1.3")
    asked = ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x0806, bytes.fromhex("0001080006040009") + bytes(20))
    wires.left.send(*expiring, stray, asked)
    dropped = lambda: wires.router.show("counters")["dropped_by_step"].get("slow-path", {})
    assert wait_for(lambda: sum(dropped().get(reason, 0) for reason in ("ttl-expired", "arp-malformed")) >= 4, 10)
    for capture in (every, expired, elsewhere):
        assert "0 lost" in capture.end()
    found = every.packets()
    of = lambda reason: [(name, direction, unpadded(frame)) for name, direction, said, frame in found
                         if said == f"dropped by slow-path: {reason}"]
    assert of("ttl-expired") == [("left", 1, unpadded(frame)) for frame in expiring]
    assert [frame[:42] for *_, frame in of("arp-malformed")] == [asked]
    assert of("no-listener") == [("left", 1, unpadded(stray))], found
    assert [frame for *_, frame in expired.packets()] == expiring[1:2]
    assert elsewhere.packets() == []


def test_packets_that_a_full_queue_drops(lab):
    """A packet either arrives or is captured, as it was to be sent."""
    queue = 'device = "tp-right", queue = { length = 5 }, shape = "1mbit",'
    wires = Wires(lab, ports=PORTS.replace('device = "tp-right",', queue) + STATIC_NEIGHBOURS, calm=True)
    capture = Capturing(wires.router, "dropped", "queue-full")
    sent = [other(number) for number in range(60)]
    wires.left.send(*sent)
    counters = lambda: wires.router.show("counters")
    assert wait_for(lambda: (now := counters())["dropped"]["queue-full"] > 0 and now["in_flight"] == 0
                    and now["received"] >= 60, 20), counters()
    arrived = data_of(wires.right.expect(60 - counters()["dropped"]["queue-full"]))
    assert "0 lost" in capture.end()
    found = capture.packets()
    assert {(name, direction, said) for name, direction, said, _ in found} == {
        ("right", 2, "dropped by transmit: queue-full")}
    lost = [frame for *_, frame in found]
    assert lost and sorted(arrived + lost) == sorted(forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in sent)
    wires.router.stop()


@pytest.mark.flood
def test_packets_that_the_ring_to_another_forwarder_drops(lab):
    datagram = udp("10.0.1.2", RIGHT, 1, 2, pattern(1000))
    frames = [flooding(ipv4("10.0.1.2", f"10.0.{to}.2", datagram)) for to in (2, 3)] * 32
    router = flood(lab, frames, 'turnpike.forwarders { cores = "0,1", shed = false }\n').router
    capture = Capturing(router, "dropped", "handover-full", "-c", 50)
    capture.end(None)
    found = capture.packets()
    assert {(direction, said) for _, direction, said, _ in found} == {(2, "dropped by transmit: handover-full")}
    # To the host behind the port, with its address in place of the router's.
    macs = {"left": HOST_A_MAC, "right": HOST_B_MAC}
    assert all(frame[:6] == bytes.fromhex(macs[name].replace(":", "")) for name, *_, frame in found)
    stop(router)


def test_packets_that_are_shed(lab):
    wires = Wires(lab, SLOW, calm=True)
    capture = Capturing(wires.router, "dropped", "shed", "-c", 10)
    mixture = Mixture(wires.left)
    mixture.start()
    try:
        capture.process.wait(120)
    finally:
        mixture.stop()
    capture.end(None)
    found = capture.packets()
    assert {(name, direction, said) for name, direction, said, _ in found} == {("left", 1, "dropped by receive: shed")}
    # As received; those that are kept are not among them.
    assert {unpadded(frame) for *_, frame in found} == {unpadded(frame) for frame in mixture.frames[1:]}
    wires.router.stop()


def test_packets_that_the_kernel_does_not_take(lab):
    wired = WiredMachine(lab)
    wired.space.run("ip", "link", "set", "left", "down")
    wired.wires.drain()
    capture = Capturing(wired.router, "dropped", "host-down", "-c", 1)
    wired.left.send(ospf_hello())
    capture.end(None)
    found = [packet[:3] + (unpadded(packet[3]),) for packet in capture.packets()]
    assert found == [("left", 1, "dropped by slow-path: host-down", unpadded(ospf_hello()))]
    wired.router.stop()


def test_packets_that_a_change_of_the_graph_drops(lab):
    """Those that a queue of the graph holds when it goes."""
    step = "turnpike.graph:insert_before('classify', { 'queue', delay = '30s' })\n"
    wires = Wires(lab, step, calm=True)
    sent = [other(number) for number in range(9)]
    wires.left.send(*sent)
    assert wait_for(lambda: wires.router.show("counters")["in_flight"] >= 5, 10)
    capture = Capturing(wires.router, "dropped", "shutdown")
    changed = wires.router.directory / "changed.lua"
    changed.write_text(PORTS + STATIC_NEIGHBOURS)
    wires.router.command("apply", changed)
    capture.end()
    found = [(name, said, unpadded(frame)) for name, _, said, frame in capture.packets()]
    lost = wires.router.dropped()["shutdown"]
    assert lost >= 4 and found == [("left", "dropped by graph: shutdown", unpadded(frame)) for frame in sent[-lost:]]
    wires.router.stop()


def test_every_reason_can_be_asked_for(wires):
    for reason in drop_reasons():
        asked = Capturing(wires.router, "dropped", reason, file="asked.pcapng")
        assert "0 packets captured, 0 lost" in asked.end(), reason


def test_no_packet_is_counted_as_dropped_without_being_shown():
    """Counts are raised where packets are freed and captured; other units cannot raise them. Only copies that could not
    be made have no bytes."""
    sources = {file: file.read_text() for file in (ROOT / "crates").rglob("*.rs")}
    unmade = {file.name: text.count("add_unmade(") for file, text in sources.items() if "add_unmade(" in text}
    assert unmade == {"counters.rs": 1, "distribution.rs": 1, "replicate.rs": 1}
    counters = sources[ROOT / "crates/dataplane/src/counters.rs"]
    assert "\n    fn add(&self, reason: DropReason" in counters, "private, as the counts are"
    seen = {file.name: text.count("drops.count(") for file, text in sources.items() if "drops.count(" in text}
    assert seen == {"batch.rs": 1, "queue.rs": 1}, "each behind a call of see()"


def test_punted_packets(wires):
    capture = Capturing(wires.router, "punted", "-i", "left")
    expiring = [other(number, ttl=1) for number in range(4)]
    for frame in (*expiring, other(9)):
        wires.left.send(frame)
    wires.right.expect(1)
    wires.left.expect(4, lambda frame: frame[23] == 1)
    capture.end()
    assert [(said, frame) for *_, said, frame in capture.packets()] == [("punted by ip4-ttl: ttl", frame) for frame in expiring]


def test_a_rule_selects_among_them(wires):
    captures = [
        Capturing(wires.router, "proto=udp", "to_port=2001,2003", file="rule.pcapng"),
        Capturing(wires.router, "dropped", "proto=tcp", file="none.pcapng"),
        Capturing(wires.router, "at", "ip4-ttl", "ttl=9", file="step.pcapng"),
    ]
    for number in range(4):
        wires.left.send(other(number, ttl=9 if number == 2 else 64), other(number, "127.0.0.1"))
    wires.right.expect(4)
    for capture in captures:
        assert "0 lost" in capture.end()
    rule, none, step = (capture.packets() for capture in captures)
    assert [frame for *_, said, frame in rule if said == "received"] == [
        other(1), other(1, "127.0.0.1"), other(3), other(3, "127.0.0.1")]
    assert [said for *_, said, _ in rule if said.startswith("sent")] == ["sent behind ip4-rewrite"] * 2
    assert none == [] and [frame for *_, frame in step] == [other(2, ttl=9)]


def test_a_pipe_into_tcpdump(wires):
    tcpdump = subprocess.Popen(["tcpdump", "-n", "-r", "-", "udp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    capture = Capturing(wires.router, "-i", "left", "-c", 5, output=tcpdump.stdin)
    tcpdump.stdin.close()
    tcpdump.stdin = None
    for number in range(5):
        wires.left.send(other(number))
    wires.right.expect(5)
    capture.end(None)
    out, err = tcpdump.communicate(timeout=20)
    assert out.count("10.0.1.2.1000 > 10.0.2.2.") == 5, out + err


def test_a_killed_client_ends_its_capture(wires):
    # More than may run at a time, one after the other.
    for number in range(12):
        capture = Capturing(wires.router, file=f"killed-{number}.pcapng")
        capture.process.kill()
        capture.process.communicate()
    last = Capturing(wires.router, "-c", 1, file="last.pcapng")
    wires.left.send(other(1))
    wires.right.expect(1)
    last.end(None)


def test_captures_are_bounded(wires):
    captures = [Capturing(wires.router, file=f"many-{number}.pcapng") for number in range(8)]
    more = subprocess.run([binary(), "capture", "-w", "-", "--socket", wires.router.socket], capture_output=True)
    assert more.returncode == 1 and b"8 captures run already; end one of them" in more.stderr
    wires.left.send(other(1))
    wires.right.expect(1)
    for capture in captures:
        capture.end()
        assert data_of(frame for *_, frame in capture.packets())[0] == other(1)


def test_a_client_that_does_not_read_holds_up_nobody(wires):
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(str(wires.router.socket))
        stuck.sendall(b'{"capture":{"snap":16384}}\n')
        stuck.settimeout(20)
        assert b"begun" in stuck.recv(100)
        sent = [other(number) for number in range(2000)]
        for begin in range(0, 2000, 100):
            for frame in sent[begin:begin + 100]:
                wires.left.send(frame)
            assert len(wires.right.expect(100)) == 100, "forwarding goes on"
        assert len(wires.router.show("ports")) == 2
        # It says what it has missed.
        stuck.shutdown(socket.SHUT_WR)
        with stuck.makefile("rb") as lines:
            answers = [json.loads(line) for line in lines]
    totals = answers[-1]["ok"]
    packets = [answer for answer in answers if "packet" in answer]
    assert totals["packets"] == len(packets) and totals["lost"] > 0
    assert totals["packets"] + totals["lost"] >= 4000


def test_rotation(wires):
    capture = Capturing(wires.router, "-i", "left", "-s", 1600, "--rotate", 1, "--files", 2, file="turn.pcapng")
    big = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", RIGHT, udp("10.0.1.2", RIGHT, 1, 2, pattern(1400))))
    for _ in range(30):
        for _ in range(100):
            wires.left.send(big)
        assert len(wires.right.expect(100)) == 100
    capture.end()
    kept = sorted(file.name for file in wires.router.directory.glob("turn.pcapng*"))
    assert kept[-1].startswith("turn.pcapng.") and len(kept) == 2, kept
    for name in kept:
        with PcapNgReader(str(wires.router.directory / name)) as file:
            assert bytes(next(iter(file))) == big


@pytest.mark.parametrize("words, error", [
    (["at", "ip4-tll"], 'step "ip4-tll": unknown; did you mean "ip4-ttl"?'),
    (["dropped", "no-rout"], 'reason "no-rout": unknown; did you mean "no-route"?'),
    (["-i", "lift"], 'interface "lift": unknown; did you mean "left"?'),
    (["-s", "0"], "snap 0: expected a number of bytes from 1 to 16384"),
    (["port=53"], 'key "port" unknown'),
    (["sideways"], "sideways: expected at STEP, dropped, dropped REASON, dropped any or punted"),
])
def test_what_cannot_be_captured_is_said(wires, words, error):
    done = subprocess.run([binary(), "capture", *words, "-w", "-", "--socket", wires.router.socket],
                          capture_output=True, text=True)
    assert done.returncode == 1 and error in done.stderr, done.stderr
    assert done.stdout == ""


def test_a_capture_of_an_interface_that_is_removed_ends(lab):
    """Its number may be another interface's, at once."""
    vlan = lambda name, tag: f'turnpike.vlan "{name}" {{ parent = "left", id = {tag}, address = "10.{tag}.0.1/24" }}\n'
    wires = Wires(lab, STATIC_NEIGHBOURS + vlan("left.7", 7), ports=PORTS)
    capture, all_of = Capturing(wires.router, "-i", "left.7", file="one.pcapng"), Capturing(wires.router, "at", "ip4-validate", file="all.pcapng")
    changed = wires.router.directory / "changed.lua"
    changed.write_text(PORTS + STATIC_NEIGHBOURS + vlan("left.8", 8))
    wires.router.command("apply", changed)
    _, said = capture.process.communicate(timeout=30)
    assert capture.process.returncode == 1 and 'interface "left.7" was removed' in said, said
    # The other one has the new name.
    sent = tagged(other(1, source="10.8.0.2"), 8)
    wires.left.send(sent)
    wires.right.expect(1)
    all_of.end()
    assert {name for name, *_, frame in all_of.packets() if b"\x0a\x08\x00\x02" in frame} == {"left.8"}
    wires.router.stop()


def test_a_capture_goes_on_over_an_apply(wires):
    capture = Capturing(wires.router, "-i", "left", file="apply.pcapng")
    wires.left.send(other(1))
    wires.right.expect(1)
    step = "local s = turnpike.step 'mine' { process = function(batch, mask) return mask end }\n"
    step += "turnpike.graph:insert_after('ip4-validate', s)\n"
    changed = wires.router.directory / "changed.lua"
    changed.write_text(PORTS + STATIC_NEIGHBOURS + step)
    wires.router.command("apply", changed)
    wires.left.send(other(2))
    wires.right.expect(1)
    capture.end()
    received = [frame for *_, said, frame in capture.packets() if said == "received"]
    assert data_of(received) == [other(1), other(2)]

"""Configurations of Click: converted, checked, and run between raw wires and real hosts."""

import json
import subprocess
import time

import pytest
from scapy.utils import RawPcapReader

from lib.click import ControlSocket
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Hosts, Wires
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, ipv6, pattern, pcap_file, tagged, udp
from lib.router import ROOT, Change, binary

BRIDGE = """
// Frames from each wire to the other.
FromDevice(tp-left, PROMISC true) -> Queue(1000) -> ToDevice(tp-right);
FromDevice(tp-right, PROMISC true) -> Queue(1000) -> ToDevice(tp-left);
"""

ROUTER = (ROOT / "examples/click/ip-router.click").read_text()


def click(text):
    """Options of a router in a lab that runs a Click configuration."""
    return {"config": text, "ports": "", "options": ["--click"]}


def frame(destination="10.0.2.2", source="10.0.1.2", sport=1000, ttl=64, to=LEFT_MAC, by=HOST_A_MAC):
    datagram = udp(source, destination, sport, 2000, pattern(40))
    return ethernet(to, by, 0x0800, ipv4(source, destination, datagram, ttl=ttl))


def test_frames_pass_unchanged_both_ways(lab):
    wires = Wires(lab, **click(BRIDGE))
    frames = [frame(), tagged(frame(), 7), ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x88b5, pattern(60))]
    for one in frames:
        wires.left.send(one)
        assert wires.right.expect(1) == [one]
        wires.right.send(one)
        assert wires.left.expect(1) == [one]
    wires.router.stop()


def test_real_hosts_meet_through_a_bridge_of_click(lab):
    hosts = Hosts(lab, **click(BRIDGE))
    for number, host in ((1, hosts.left), (2, hosts.right)):
        host.run("ip", "address", "add", f"10.9.0.{number}/24", "dev", "eth0")
    hosts.left.run("ping", "-c", "3", "-W", "2", "10.9.0.2")
    server = hosts.right.spawn("iperf3", "-s", "-1", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: "5201" in hosts.right.run("ss", "-tln").stdout)
    report = json.loads(hosts.left.run("iperf3", "-c", "10.9.0.2", "-t", "1", "-J").stdout)
    server.wait(20)
    assert report["end"]["sum_received"]["bytes"] > 1_000_000
    hosts.router.stop()


def test_elements_of_many_classes_sort_and_change_frames(lab):
    text = """
    FromDevice(tp-left) -> c :: Classifier(12/0800, 12/0806, -);
    out :: Queue -> ToDevice(tp-right);
    c[0] -> Strip(14) -> check :: CheckIPHeader -> Paint(3) -> ttl :: DecIPTTL -> dscp :: SetIPDSCP(46)
         -> route :: StaticIPLookup(10.0.2.0/24 0, 10.0.3.0/24 1);
    route[0] -> EtherEncap(0x0800, %s, %s) -> paint :: CheckPaint(3) -> out;
    route[1] -> Unstrip(14) -> EtherMirror -> out;
    c[1] -> arps :: Counter -> Discard;
    c[2] -> Discard;
    ControlSocket(TCP, 7777);
    """ % (RIGHT_MAC, HOST_B_MAC)
    wires = Wires(lab, **click(text), calm=True)
    client = ControlSocket(wires.inside)
    wires.left.send(frame())
    expected = ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1000, 2000, pattern(40)), ttl=63, tos=46 << 2)
    assert wires.right.expect(1) == [ethernet(HOST_B_MAC, RIGHT_MAC, 0x0800, expected)]
    wires.left.send(frame("10.0.3.7"))
    (mirrored,) = wires.right.expect(1)
    assert mirrored[:14] == ethernet(HOST_A_MAC, LEFT_MAC, 0x0800, b"")
    wires.left.send(frame("10.0.4.7"), frame(ttl=1), ethernet(LEFT_MAC, HOST_A_MAC, 0x0806, pattern(28)))

    assert wait_for(lambda: int(client.read("arps.count")) > 0)
    assert client.read("arps.count") == "1"
    assert wires.right.receive(0.1) == []
    wires.router.stop()


def test_real_hosts_use_an_ip_router_of_click(lab):
    text = ROUTER.replace("eth1", "tp-left").replace("eth2", "tp-right")
    hosts = Hosts(lab, **click(text))
    hosts.right.run("ip", "address", "add", "198.51.100.1/32", "dev", "eth0")
    for target in ("10.0.1.1", "10.0.2.1", "10.0.2.2", "198.51.100.1"):
        hosts.left.run("ping", "-c", "2", "-W", "2", target)
    trace = hosts.left.run("traceroute", "-n", "-w", "2", "-q", "1", "10.0.2.2").stdout.splitlines()
    assert "10.0.1.1" in trace[1] and "10.0.2.2" in trace[2], trace
    server = hosts.right.spawn("iperf3", "-s", "-1", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: "5201" in hosts.right.run("ss", "-tln").stdout)
    report = json.loads(hosts.left.run("iperf3", "-c", "10.0.2.2", "-t", "1", "-J").stdout)
    server.wait(20)
    assert report["end"]["sum_received"]["bytes"] > 1_000_000
    # Nothing is in the graph that the default graph has not.
    steps = [step["name"] for step in hosts.router.show("graph")["steps"]]
    assert steps[0] == "classify" and "ip4-rewrite" in steps
    hosts.router.stop()


def router(*changes):
    """The example's router between the wires, with changes; each must have an effect."""
    text = ROUTER.replace("eth1", "tp-left").replace("eth2", "tp-right")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def test_a_firewall_of_click_is_in_front_of_the_table(lab):
    """Packets that wait for a neighbour's MAC, and those for the router, pass it as well."""
    text = router(
        ("    -> table;\nleft", "    -> f :: IPFilter(1 udp dst port 7, deny icmp type echo-reply, deny dst host 10.0.2.1 && tcp,"
                               " allow all)\n -> passed :: Counter -> table;\n"
                               "f[1] -> ICMPError(10.0.1.1, unreachable, filterprohibited) -> table;\nleft"),
    ) + "ControlSocket(TCP, 7777);"
    hosts = Hosts(lab, **click(text))
    client = ControlSocket(hosts.inside)
    trace = hosts.left.run("traceroute", "-n", "-w", "2", "-q", "1", "10.0.2.2").stdout.splitlines()
    assert "10.0.1.1" in trace[1] and "10.0.2.2" in trace[2], trace
    before = int(client.read("passed.count"))
    # The answer is refused, whoever asked first.
    assert hosts.left.run("ping", "-c", "2", "-W", "1", "10.0.2.2", check=False).returncode == 1
    assert int(client.read("passed.count")) >= before + 2
    hosts.left.run("ping", "-c", "2", "-W", "2", "10.0.1.1")
    script = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('10.0.2.2', 7)); s.send(b'x'); s.settimeout(5)\n" \
             "try: s.recv(9)\nexcept OSError as error: print(error)"
    assert "No route to host" in hosts.left.run("python3", "-c", script).stdout
    config = hosts.router.show("graph")["steps"]
    assert {"click-in", "f", "passed", "prohibit"} <= {step["name"] for step in config}
    hosts.router.stop()


def test_the_first_packet_to_a_host_passes_the_filter_behind_the_table(lab):
    text = router(
        ("table[2] -> right", "table[2] -> f :: IPFilter(deny udp dst port 2000, allow all) -> sent :: Counter -> right"),
        ("table[0] -> Ether", "table[0] -> own :: IPFilter(deny icmp, allow all) -> Ether"),
    ) + "ControlSocket(TCP, 7777);"
    hosts = Hosts(lab, **click(text))
    client = ControlSocket(hosts.inside)
    script = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.sendto(b'x', ('10.0.2.2', int(sys.argv[1])))"
    receive = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', %d)); s.settimeout(%d)\n" \
              "print('ready', flush=True)\ntry: print(s.recv(9))\nexcept OSError: print('nothing')"
    refused = hosts.right.spawn("python3", "-c", receive % (2000, 5), stdout=subprocess.PIPE, text=True)
    passed = hosts.right.spawn("python3", "-c", receive % (2001, 20), stdout=subprocess.PIPE, text=True)
    assert refused.stdout.readline() == passed.stdout.readline() == "ready\n"
    # The router does not know the host's MAC yet, at least for the first one.
    hosts.left.run("python3", "-c", script, "2000")
    hosts.left.run("python3", "-c", script, "2001")
    assert passed.communicate(timeout=30)[0] == "b'x'\n"
    assert refused.communicate(timeout=30)[0] == "nothing\n"
    assert int(client.read("sent.count")) >= 1
    # Packets to the router itself are on another output of the table.
    assert hosts.left.run("ping", "-c", "1", "-W", "1", "10.0.2.1", check=False).returncode == 1
    hosts.left.run("ping", "-c", "2", "-W", "2", "10.0.2.2")
    hosts.right.run("ping", "-c", "2", "-W", "2", "10.0.1.2")
    trace = hosts.left.run("traceroute", "-n", "-w", "2", "-q", "1", "-I", "10.0.2.2").stdout.splitlines()
    assert "10.0.1.1" in trace[1] and "10.0.2.2" in trace[2], trace
    hosts.router.stop()


def test_a_shaped_router_of_click_sends_at_its_rate(lab):
    text = router(("Queue(200) -> ToDevice", "Queue(200) -> rate :: Shaper(50) -> ToDevice")) + "ControlSocket(TCP, 7777);"
    hosts = Hosts(lab, **click(text))
    client = ControlSocket(hosts.inside)
    hosts.left.run("ping", "-c", "3", "-W", "2", "10.0.2.2")
    names = [step["name"] for step in hosts.router.show("graph")["steps"]]
    assert {"click-out", "left/queue", "right/queue"} <= set(names), names
    # So many answers take two seconds at least, however fast the requests are.
    begin = time.monotonic()
    hosts.left.run("ping", "-c", "120", "-i", "0.002", "-w", "30", "10.0.2.2")
    assert time.monotonic() - begin >= 2
    assert client.read("right/rate.rate") == "50"
    client.write("right/rate.rate", "100000")
    client.write("left/rate.rate", "100000")
    hosts.left.run("ping", "-c", "3", "-W", "2", "10.0.2.2")
    hosts.router.stop()


def test_elements_of_octeon_forward_as_devices(lab):
    text = """
    FromOcteon(tp-left, PROMISC true) -> in :: Counter -> ToOcteon(tp-right);
    FromOcteon(tp-right, PROMISC true) -> ToOcteon(tp-left, LOCK true);
    ControlSocket(TCP, 7777);
    """
    wires = Wires(lab, **click(text))
    client = ControlSocket(wires.inside)
    wires.left.send(frame())
    assert wires.right.expect(1) == [frame()]
    wires.right.send(frame(sport=7))
    assert wires.left.expect(1) == [frame(sport=7)]
    assert int(client.read("in.count")) >= 1
    wires.router.stop()


def test_copies_loops_and_queues_keep_every_packet(lab):
    text = """
    FromDevice(tp-left) -> in :: Counter -> tee :: Tee(2);
    tee[0] -> Queue -> ToDevice(tp-right);
    // Copies pass three times.
    tee[1] -> Paint(0) -> again :: Null -> turn :: RoundRobinSwitch;
    turn[0] -> loop :: Counter -> again;
    turn[1] -> held :: Queue(100) -> BandwidthShaper(1MBps) -> Unqueue -> EtherMirror -> Queue -> ToDevice(tp-left);
    """
    wires = Wires(lab, **click(text), calm=True)
    change = Change(wires.router)
    frames = [frame(sport=1000 + n) for n in range(20)]
    wires.left.send(*frames)
    assert wires.right.expect(20) == frames
    mirrored = [ethernet(HOST_A_MAC, LEFT_MAC, 0x0800, one[14:]) for one in frames]
    assert sorted(wires.left.expect(20)) == sorted(mirrored)
    # The sum stays exact: a copy is a replicated packet, in the loop as well.
    assert change(received=20) == {"received": 20, "replicated": 20, "sent": 40}
    wires.router.stop()


def test_an_endless_loop_ends_and_holds_no_forwarder(lab):
    text = """
    FromDevice(tp-left) -> c :: Classifier(12/88b5, -);
    c[0] -> around :: Counter -> back :: Null -> around;
    c[1] -> Queue -> ToDevice(tp-right);
    """
    wires = Wires(lab, **click(text), calm=True)
    change = Change(wires.router)
    for _ in range(10):
        wires.left.send(ethernet(RIGHT_MAC, HOST_A_MAC, 0x88B5, pattern(60)))
    wires.left.send(frame())
    assert wires.right.expect(1) == [frame()]
    assert wait_for(lambda: wires.router.counters()["dropped"]["by-step"] == 10)
    assert change(received=11) == {"received": 11, "sent": 1, "dropped": {"by-step": 10}}
    wires.router.stop()


def test_a_source_makes_packets_at_its_rate(lab):
    data = ethernet(HOST_B_MAC, RIGHT_MAC, 0x88B5, pattern(46))
    text = """
    RatedSource(\\<%s>, 50, 20) -> Queue -> ToDevice(tp-right);
    FromDevice(tp-left) -> IPFilterIn :: MarkIPHeader(14) -> f :: IPFilter(deny udp dst port 2000, 1 ttl 7, allow all);
    f[0] -> Queue -> ToDevice(tp-right);
    f[1] -> Print(seven) -> Discard;
    """ % data.hex()
    wires = Wires(lab, **click(text))
    assert wires.right.expect(20) == [data] * 20
    other = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 7, b"x"), ttl=7))
    third = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 7, b"x")))
    wires.left.send(frame(), other, third)
    assert wires.right.expect(1) == [third]
    assert wait_for(lambda: "seven: " in wires.router.log())
    wires.router.stop()


def test_a_router_changes_to_a_click_configuration(lab, tmp_path):
    wires = Wires(lab, **click(BRIDGE))
    file = tmp_path / "other.click"
    file.write_text(BRIDGE.replace("-> Queue(1000) -> ToDevice(tp-right)", "-> EtherMirror -> Queue -> ToDevice(tp-left)"))
    assert wires.router.command("plan", "--click", file, check=False).returncode == 2
    wires.router.command("apply", "--click", file)
    wires.left.send(frame())
    assert wires.left.expect(1) == [ethernet(HOST_A_MAC, LEFT_MAC, 0x0800, frame()[14:])]
    wires.router.command("rollback")
    wires.left.send(frame())
    assert wires.right.expect(1) == [frame()]


def test_files_are_checked_and_converted(tmp_path):
    file = tmp_path / "x.click"

    def run(*argv, text):
        file.write_text(text)
        return subprocess.run([binary(), *argv, file], capture_output=True, text=True)

    done = run("check", "--offline", "--click", text=ROUTER)
    assert done.returncode == 0 and f"{file}: OK: 2 ports, 1 route" in done.stdout, done
    assert "warning: " in done.stdout and "answered by Turnpike itself" in done.stdout
    done = run("check", "--offline", "--click", text="FromDevice(eth0) ->\n  x :: Paintt(1) -> Discard;")
    assert done.returncode == 1 and done.stderr.startswith(f"{file}:2:3: ") and "Paint" in done.stderr, done
    done = run("check", "--offline", "--click", text="FromDevice(eth0) -> Discard -> Queue;")
    assert done.returncode == 1 and f"{file}:1:" in done.stderr, done
    # Errors of the converted statements have the lines of the file.
    done = run("check", "--offline", "--click", text="\n\nFromDevice(a-name-that-is-too-long) -> Discard;\nFromDevice(lo9?)->Discard;")
    assert done.returncode == 1 and f'{file}:3: port "port0": device "a-name-that-is-too-long"' in done.stderr, done
    lua = run("convert", "click", text=BRIDGE)
    assert lua.returncode == 0 and 'turnpike.port "tp-left"' in lua.stdout, lua
    again = tmp_path / "again.lua"
    again.write_text(lua.stdout)
    done = subprocess.run([binary(), "check", "--offline", again], capture_output=True, text=True)
    assert done.returncode == 0, done
    done = run("convert", "click", text="a -> ;")
    assert done.returncode == 2 and f"{file}:1:" in done.stderr, done


def made(kind, length):
    """A frame of a class, by its UDP port, as sources in the tests below make it."""
    datagram = udp("10.0.1.2", "10.0.2.2", 1000, kind, pattern(length - 42))
    return ethernet(HOST_B_MAC, RIGHT_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", datagram))


def shares(frames):
    """The numbers of frames of each class of `made`."""
    kinds = [int.from_bytes(frame[36:38]) for frame in frames]
    return [kinds.count(kind) for kind in (1, 2)]


@pytest.mark.parametrize(
    "scheduler, lengths, expected",
    [
        ("PrioSched", (200, 200), (300, 0)),
        ("RoundRobinSched", (200, 900), (150, 150)),
        ("DRRSched(500)", (100, 900), (270, 30)),
        ("StrideSched(5, 1)", (200, 200), (250, 50)),
        ("PullSwitch(1)", (200, 200), (0, 300)),
    ],
)
def test_classes_share_a_narrow_output_as_their_scheduler_says(lab, scheduler, lengths, expected):
    first, second = (made(kind, length).hex() for kind, length in zip((1, 2), lengths))
    text = f"""
    RatedSource(\\<{first}>, 10000, 10000) -> Queue(50) -> [0] s :: {scheduler};
    RatedSource(\\<{second}>, 10000, 10000) -> Queue(50) -> Null -> [1] s;
    s -> out :: Counter -> Shaper(1000) -> Unqueue -> Queue -> ToDevice(tp-right);
    """
    wires = Wires(lab, **click(text))
    # At first, one queue may have packets before the other.
    wires.right.expect(200)
    found = shares(wires.right.expect(300))
    assert all(abs(one - other) <= 12 for one, other in zip(found, expected)), found
    assert wires.router.counters()["dropped"]["queue-full"] > 0
    wires.router.stop()


def test_pings_pass_a_flood_by_their_priority(lab):
    text = """
    FromDevice(tp-left, PROMISC true) -> c :: Classifier(12/0800 23/11, -);
    c[0] -> low :: Queue(100) -> [1] s :: PrioSched -> BandwidthShaper(1Mbps) -> ToDevice(tp-right);
    c[1] -> high :: Queue(100) -> [0] s;
    FromDevice(tp-right, PROMISC true) -> Queue -> ToDevice(tp-left);
    """
    hosts = Hosts(lab, **click(text))
    for number, host in ((1, hosts.left), (2, hosts.right)):
        host.run("ip", "address", "add", f"10.9.0.{number}/24", "dev", "eth0")
    hosts.left.run("ping", "-c", "1", "-W", "5", "10.9.0.2")
    server = hosts.right.spawn("iperf3", "-s", "-1", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: "5201" in hosts.right.run("ss", "-tln").stdout)
    flood = hosts.left.spawn("iperf3", "-c", "10.9.0.2", "-u", "-b", "20M", "-t", "4", "-l", "1000",
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: hosts.router.counters()["dropped"].get("queue-full", 0) > 100)
    # Behind the flood's queue one in twenty would get through.
    hosts.left.run("ping", "-c", "10", "-i", "0.1", "-W", "5", "10.9.0.2")
    pings = hosts.left.run("ping", "-c", "10", "-i", "0.1", "-W", "5", "10.9.0.2").stdout
    assert " 0% packet loss" in pings, pings
    flood.wait(30)
    server.wait(30)
    hosts.router.stop()


def test_queues_of_a_scheduler_keep_their_packets_through_a_change(lab, tmp_path):
    text = """
    FromDevice(tp-left) -> c :: Classifier(36/0001, -);
    c[0] -> a :: Queue(100) -> [0] s :: PrioSched -> BandwidthShaper(1) -> Unqueue -> Queue -> ToDevice(tp-right);
    c[1] -> b :: Queue(100) -> [1] s;
    """
    wires = Wires(lab, **click(text), calm=True)
    change = Change(wires.router)
    wires.left.send(*[made(2, 100)] * 30, *[made(1, 100)] * 30)
    # Sixteen and one leave at once.
    early = wires.right.expect(17)
    assert wait_for(lambda: change(received=60))
    file = tmp_path / "other.click"
    file.write_text(text.replace("PrioSched", "RoundRobinSched").replace("Shaper(1)", "Shaper(1MBps)"))
    wires.router.command("apply", "--click", file)
    rest = wires.right.expect(43)
    assert shares(early + rest) == [30, 30]
    # They take turns as long as both are there.
    least = min(shares(rest))
    assert shares(rest[:2 * least]) == [least, least]
    assert change(received=60) == {"received": 60, "sent": 60}
    wires.router.stop()


def test_early_drops_and_meters_limit_a_source(lab):
    data = made(1, 100).hex()
    text = f"""
    RatedSource(\\<{data}>, 5000, 10000) -> m :: Meter(500, 50000);
    m[0] -> Discard;
    m[1] -> RED(5, 20, 0.5, STABILITY 2, GENTLE false) -> Queue(1000) -> Shaper(100) -> Unqueue -> Queue -> ToDevice(tp-right);
    m[2] -> Discard;
    """
    wires = Wires(lab, **click(text))
    assert shares(wires.right.expect(50)) == [50, 0]
    dropped = wires.router.counters()["dropped"]
    assert dropped["queue-red"] > 100 and dropped.get("queue-full", 0) == 0, dropped
    wires.router.stop()


def test_packets_that_red_selects_take_its_second_output(lab):
    data = made(1, 100).hex()
    # They come back to a queue of the same scheduler, so none is dropped early.
    text = f"""
    RatedSource(\\<{data}>, 5000, 10000) -> r :: RED(5, 20, 0.5, STABILITY 2, GENTLE false) -> first :: Queue(1000);
    r[1] -> selected :: Counter -> EtherMirror -> second :: Queue(5);
    first -> [0] s :: RoundRobinSched -> Shaper(200) -> Unqueue -> Queue -> ToDevice(tp-right);
    second -> [1] s;
    ControlSocket(TCP, 7777);
    """
    wires = Wires(lab, **click(text))
    client = ControlSocket(wires.inside)
    frames = wires.right.expect(60)
    mirrored = [one for one in frames if one[:6] == made(1, 100)[6:12]]
    assert mirrored and len(mirrored) < len(frames)
    dropped = wires.router.counters()["dropped"]
    assert int(client.read("selected.count")) > 100 and dropped["queue-full"] > 0, dropped
    assert dropped["queue-red"] == 0, dropped
    wires.router.stop()


def test_the_kernel_has_the_other_end_of_a_tap_device(lab):
    text = """
    FromHost(fake0, ETHER 02:00:00:00:00:99) -> up :: Counter -> Queue -> ToDevice(tp-right);
    FromDevice(tp-right, PROMISC true) -> ToHost(fake0);
    ControlSocket(TCP, 7777);
    """
    hosts = Hosts(lab, **click(text))
    hosts.right.run("ip", "address", "add", "10.9.0.2/24", "dev", "eth0")
    hosts.inside.run("ip", "address", "add", "10.9.0.1/24", "dev", "fake0")
    hosts.inside.run("ip", "link", "set", "fake0", "up")
    assert "02:00:00:00:00:99" in hosts.inside.run("ip", "link", "show", "fake0").stdout
    hosts.inside.run("ping", "-c", "3", "-W", "2", "10.9.0.2")
    hosts.right.run("ping", "-c", "3", "-W", "2", "10.9.0.1")
    assert int(ControlSocket(hosts.inside).read("up.count")) >= 6
    hosts.router.stop()
    assert hosts.inside.run("ip", "link", "show", "fake0", check=False).returncode != 0


def test_real_hosts_that_ask_for_macs_are_answered(lab):
    mac = "02:00:00:00:00:99"
    text = f"""
    FromDevice(tp-right, PROMISC true) -> c :: Classifier(12/0806 20/0001, 12/86dd 54/87, -);
    c[0] -> a :: ARPResponder(10.9.0.0/24 {mac}) -> out :: Queue -> ToDevice(tp-right);
    c[1] -> n :: IP6NDAdvertiser(fd09::9/128 {mac}) -> out;
    c[2] -> Discard;
    """
    hosts = Hosts(lab, **click(text))
    host = hosts.right
    for address in ("10.9.0.2/24", "fd09::2/64"):
        host.run("ip", "address", "add", address, "dev", "eth0", *["nodad"] * (":" in address))
    for address in ("10.9.0.9", "fd09::9"):
        # Nobody answers the ping itself.
        host.run("ping", "-c", "1", "-W", "1", address, check=False)
        assert f"lladdr {mac}" in host.run("ip", "neighbour", "show", address).stdout
    host.run("ping", "-c", "1", "-W", "1", "fd09::8", check=False)
    assert mac not in host.run("ip", "neighbour", "show", "fd09::8").stdout
    # A second owner of the address is refused.
    host.run("ip", "address", "add", "fd09::9/64", "dev", "eth0")
    assert wait_for(lambda: "dadfailed" in host.run("ip", "address", "show", "dev", "eth0").stdout)
    hosts.router.stop()


def test_packets_are_delayed(lab):
    # Packets of both paths leave together, those without delay first whatever the machine does meanwhile.
    text = """
    FromDevice(tp-left) -> c :: Classifier(36/0001, -);
    c[0] -> held :: Queue(100) -> d :: DelayUnqueue(3) -> out :: Queue -> ToDevice(tp-right);
    c[1] -> out;
    ControlSocket(TCP, 7777);
    """
    wires = Wires(lab, **click(text))
    client = ControlSocket(wires.inside)
    late, early = made(1, 100), made(2, 100)
    begin = time.monotonic()
    wires.left.send(late, early)
    assert wires.right.expect(1, timeout=20) == [early]
    assert wires.right.expect(1, timeout=20) == [late]
    assert time.monotonic() - begin >= 3
    assert client.read("d.delay") == "3"
    client.write("d.delay", "50")
    wires.left.send(late)
    assert wait_for(lambda: client.read("held.length") == "1")
    # The packet is there still, under the new delay, and can be given up.
    client.write("held.reset")
    assert wait_for(lambda: client.read("held.length") == "0")
    counters = wires.router.counters()
    assert (counters["dropped"]["by-step"], counters["in_flight"]) == (1, 0), counters
    wires.router.stop()


def test_switches_share_by_tickets_and_tables_look_up_one_address(lab):
    text = """
    FromDevice(tp-left) -> sw :: StrideSwitch(3, 1);
    sw[0] -> SetIPAddress(10.0.2.2) -> rt :: StaticIPLookup(10.0.2.0/24 0, 10.0.1.0/24 1);
    sw[1] -> other :: Discard;
    rt[0] -> Queue -> ToDevice(tp-right);
    rt[1] -> wrong :: Discard;
    ControlSocket(TCP, 7777);
    """
    wires = Wires(lab, **click(text), calm=True)
    client = ControlSocket(wires.inside)
    # Frames without any IP header: their annotation decides.
    wires.left.send(*[made(1, 100)] * 40)
    assert shares(wires.right.expect(30)) == [30, 0]
    assert wait_for(lambda: client.read("other.count") == "10")
    assert (client.read("sw.tickets0"), client.read("sw.tickets1"), client.read("wrong.count")) == ("3", "1", "0")
    client.write("sw.tickets0", "0")
    wires.left.send(*[made(1, 100)] * 5)
    assert wait_for(lambda: client.read("other.count") == "15")
    assert client.ask("READ sw.tickets2")[0] == 511
    # Without tickets nothing passes.
    client.write("sw.tickets1", "0")
    wires.left.send(*[made(1, 100)] * 5)
    assert wait_for(lambda: wires.router.counters()["dropped_total"] == 20)
    client.write("rt.set", "10.0.2.0/24 1")
    client.write("sw.tickets0", "1")
    wires.left.send(*[made(1, 100)] * 5)
    assert wait_for(lambda: client.read("wrong.count") == "5")
    wires.router.stop()


def test_ip6_packets_are_checked_and_routed(lab):
    text = """
    FromDevice(tp-left) -> Strip(14) -> check :: CheckIP6Header(2001:db8::bad) -> GetIP6Address(24)
        -> table :: LookupIP6Route(2001:db8:1::/48 0, 2001:db8::/32 1);
    table[0] -> hops :: DecIP6HLIM -> EtherEncap(0x86dd, %s, %s) -> Queue -> ToDevice(tp-right);
    table[1] -> IP6Print(elsewhere) -> Discard;
    """ % (RIGHT_MAC, HOST_B_MAC)
    wires = Wires(lab, **click(text))

    def packet(destination, source="2001:db8::1", hops=64):
        return ipv6(source, destination, udp(source, destination, 1, 2, b"data"), hop_limit=hops)

    def sent(ip):
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ip)

    wires.left.send(sent(packet("2001:db8:1::9", "2001:db8::bad")), sent(packet("2001:db8:1::9", hops=1)),
                    sent(packet("2001:db8:2::9")), sent(packet("2001:db8:1::9")))
    assert wires.right.expect(1) == [ethernet(HOST_B_MAC, RIGHT_MAC, 0x86DD, packet("2001:db8:1::9", hops=63))]
    assert wait_for(lambda: "elsewhere: " in wires.router.log())
    wires.router.stop()


def test_packets_of_colour_255_leave_by_all_outputs(lab):
    text = """
    FromDevice(tp-left) -> c :: Classifier(36/0001, -);
    c[0] -> Paint(255) -> s :: PaintSwitch;
    c[1] -> Paint(1) -> s;
    s[0] -> EtherMirror -> Queue -> ToDevice(tp-left);
    s[1] -> Queue -> ToDevice(tp-right);
    """
    wires = Wires(lab, **click(text))
    wires.left.send(made(1, 100), made(2, 100))
    assert sorted(wires.right.expect(2)) == sorted([made(1, 100), made(2, 100)])
    assert wires.left.expect(1) == [ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, made(1, 100)[14:])]
    wires.router.stop()


def test_a_udp_source_makes_datagrams(lab):
    text = f"""
    FastUDPSource(200, 10, 100, {RIGHT_MAC}, 10.0.1.2, 1000, {HOST_B_MAC}, 10.0.2.2, 2000)
        -> Unqueue -> Queue -> ToDevice(tp-right);
    """
    wires = Wires(lab, **click(text))
    datagram = udp("10.0.1.2", "10.0.2.2", 1000, 2000, bytes(58))
    packet = ipv4("10.0.1.2", "10.0.2.2", datagram, ttl=250, ident=0)
    assert wires.right.expect(10) == [ethernet(HOST_B_MAC, RIGHT_MAC, 0x0800, packet)] * 10
    wires.router.stop()


def test_packets_come_from_a_file_and_go_to_one(lab, tmp_path):
    frames = [made(1, 60 + number) for number in range(50)]
    (tmp_path / "in.pcap").write_bytes(pcap_file(frames))
    out = tmp_path / "out.pcap"
    text = f"""
    FromDump({tmp_path}/in.pcap) -> Queue -> ToDevice(tp-right);
    FromDevice(tp-left) -> keep :: ToDump({out}, SNAPLEN 40) -> EtherMirror -> Queue -> ToDevice(tp-left);
    """
    wires = Wires(lab, **click(text))
    assert wires.right.expect(50) == frames
    wires.left.send(*frames[:5])
    assert len(wires.left.expect(5)) == 5
    # A copy of the file's own while it is written, and the whole when the router has ended.
    assert wait_for(lambda: out.exists() and len(read_pcap(out)) == 5)
    wires.left.send(frames[5])
    assert len(wires.left.expect(1)) == 1
    wires.router.stop()
    assert read_pcap(out) == [(one[:40], len(one)) for one in frames[:6]]
    assert out.stat().st_mode & 0o777 == 0o600


def read_pcap(path):
    """The bytes and the whole lengths of a file's packets."""
    with RawPcapReader(str(path)) as reader:
        return [(data, info.wirelen) for data, info in reader]

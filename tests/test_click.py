"""Configurations of Click: converted, checked, and run between raw wires and real hosts."""

import json
import subprocess

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Hosts, Wires
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, pattern, tagged, udp
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
    wait_for(lambda: "5201" in hosts.right.run("ss", "-tln").stdout)
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
    """ % (RIGHT_MAC, HOST_B_MAC)
    wires = Wires(lab, **click(text))
    wires.left.send(frame())
    expected = ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1000, 2000, pattern(40)), ttl=63, tos=46 << 2)
    assert wires.right.expect(1) == [ethernet(HOST_B_MAC, RIGHT_MAC, 0x0800, expected)]
    wires.left.send(frame("10.0.3.7"))
    (mirrored,) = wires.right.expect(1)
    assert mirrored[:14] == ethernet(HOST_A_MAC, LEFT_MAC, 0x0800, b"")
    wires.left.send(frame("10.0.4.7"), frame(ttl=1), ethernet(LEFT_MAC, HOST_A_MAC, 0x0806, pattern(28)))

    def arps():
        steps = {step["name"]: step for step in wires.router.show("graph")["steps"]}
        return json.dumps(steps["arps"])

    wait_for(lambda: '"packets": 1' in arps() or '"packets":1' in arps())
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
    wait_for(lambda: "5201" in hosts.right.run("ss", "-tln").stdout)
    report = json.loads(hosts.left.run("iperf3", "-c", "10.0.2.2", "-t", "1", "-J").stdout)
    server.wait(20)
    assert report["end"]["sum_received"]["bytes"] > 1_000_000
    # Nothing is in the graph that the default graph has not.
    steps = [step["name"] for step in hosts.router.show("graph")["steps"]]
    assert steps[0] == "classify" and "ip4-rewrite" in steps
    hosts.router.stop()


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
    wait_for(lambda: wires.router.counters()["dropped"]["by-step"] == 10)
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
    wait_for(lambda: "seven: " in wires.router.log())
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
    assert done.returncode == 1, done
    lua = run("convert", "click", text=BRIDGE)
    assert lua.returncode == 0 and 'turnpike.port "tp-left"' in lua.stdout, lua
    again = tmp_path / "again.lua"
    again.write_text(lua.stdout)
    done = subprocess.run([binary(), "check", "--offline", again], capture_output=True, text=True)
    assert done.returncode == 0, done
    done = run("convert", "click", text="a -> ;")
    assert done.returncode == 2 and f"{file}:1:" in done.stderr, done

"""Start, stop, and disturbances in between."""

import os
import random
import re
import shutil
import signal
import stat
import threading
from pathlib import Path

import pytest

from lib.lab import DRIVERS, HOST_A_MAC, LEFT_MAC, PORTS, STATIC_NEIGHBOURS, Hosts, Wires, ports_by
from lib.netns import stop_process, wait_for
from lib.packets import ethernet, icmp, icmp6, ipv4, ipv6, mac_bytes, pattern, udp
from lib.router import Change, binary, check_sum
from lib.terminal import Terminal


def test_its_code_stays_in_memory(lab):
    router = Wires(lab).router
    maps = Path(f"/proc/{router.process.pid}/smaps").read_text()
    program = str(Path(f"/proc/{router.process.pid}/exe").readlink())
    code = [
        text for text in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", maps)
        if " r-xp " in text.splitlines()[0] and program in text
    ]
    assert code and all(re.search(r"^VmFlags:.* lo\b", text, re.M) for text in code)
    size, resident = (
        [int(re.search(rf"^{what}:\s+(\d+) kB$", text, re.M)[1]) for text in code] for what in ("Size", "Rss")
    )
    assert resident == size
    assert "cannot be kept in memory" not in router.log()
    router.stop()


@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU, signal.SIGUSR2])
def test_a_signal_ends_it_cleanly(lab, signum):
    wires = Wires(lab)
    assert "xdp" in wires.inside.links()
    wires.router.stop(signum)
    assert not wires.router.socket.exists()
    assert "xdp" not in wires.inside.links(), "the program is still on the device"


def test_other_signals_are_ignored(lab):
    wires = Wires(lab)
    ignored = [signal.SIGUSR1, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO]
    for signum in [*ignored, signal.SIGRTMIN + 1, signal.SIGPIPE, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH]:
        wires.router.process.send_signal(signum)
    names = [f"{signum.name}: ignored" for signum in ignored]
    assert wait_for(lambda: all(name in wires.router.log() for name in names), 10), wires.router.log()
    assert wires.router.log().count("ignored") == len(names), "of DPDK's own and the usual nothing is said"
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40))))
    assert wires.right.expect(1)
    wires.router.stop()


def test_a_terminal_that_is_closed_does_not_end_it(lab):
    wires = Wires(lab)
    config, socket = wires.router.config, wires.router.socket
    wires.router.stop()
    terminal = Terminal(
        shutil.which("ip"), *wires.inside.command(binary(), "run", config, "--socket", socket)[1:])
    terminal.wait_for(r"ready: \d+ ports", 30)
    os.close(terminal._fd)
    for _ in range(10):
        assert len(wires.router.show("ports")) == 2
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40))))
    assert wires.right.expect(1)
    # Its log has no reader.
    config.write_text(config.read_text() + 'turnpike.route "203.0.113.0/24" { blackhole = true }\n')
    os.kill(terminal.pid, signal.SIGHUP)
    assert wait_for(lambda: wires.router.show("route", "203.0.113.1")["type"] == "blackhole", 10)
    os.kill(terminal.pid, signal.SIGTERM)
    ended = []
    assert wait_for(lambda: ended.append(os.waitpid(terminal.pid, os.WNOHANG)) or ended[-1][0], 15, 0.1), "it runs still"
    assert os.waitstatus_to_exitcode(ended[-1][1]) == 0
    assert "xdp" not in wires.inside.links() and not socket.exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_at_any_moment_of_the_start_leaves_no_trace(lab, signum):
    wires = Wires(lab, start=False)
    before = Traces(wires.inside)
    dice = random.Random(signum)
    for _ in range(6):
        router = lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS, wait=False)
        # The socket is bound when signals are handled.
        assert wait_for(router.socket.exists, 30, 0.002)
        threading.Event().wait(dice.uniform(0, 0.3))
        router.process.send_signal(signum)
        if signum != signal.SIGTERM:
            router.wait_ready()
            router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(30) == 0, router.log()
        assert "defect" not in router.log()
        assert vars(Traces(wires.inside)) == vars(before)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_signal_under_traffic_loses_no_mbuf(lab, driver):
    wires = Wires(lab, ports=ports_by(driver) + STATIC_NEIGHBOURS)
    # Forwarded, waiting for a neighbour, refused, answered: some of each is in flight.
    frames = [
        eth(ipv4("10.0.1.2", "10.0.2.2", pattern(200))),
        eth(ipv4("10.0.1.2", "10.0.2.77", pattern(200))),
        eth(ipv4("10.0.1.2", "10.0.2.2", pattern(200), ttl=1)),
        eth(ipv6("fd00:1::2", "fd00:2::77", pattern(200))),
        eth(ipv4("10.0.1.2", "10.0.1.1", icmp(8, 0, bytes(4), pattern(80)), protocol=1)),
    ]
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            wires.left.send(*frames)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        assert len(wires.right.expect(500, timeout=10)) == 500
        wires.router.stop()
    finally:
        stop.set()
        thread.join()


def test_the_last_counters_are_logged(lab):
    wires = Wires(lab)
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40))))
    assert wires.right.expect(1)
    log = wires.router.stop()
    assert "mbufs: all" in log.strip().splitlines()[-1] or "mbufs: all" in log


def test_it_can_be_started_again_and_again_on_the_same_devices(lab):
    wires = Wires(lab)
    config = wires.router.config.read_text()
    for _ in range(3):
        wires.router.stop()
        wires.router = lab.router(wires.inside, config)
        frame = eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40)))
        wires.drain()
        wires.left.send(frame)
        assert len(wires.right.expect(1)) == 1
    wires.router.stop()


# --- nothing left behind ---------------------------------------------------------------------------


class Traces:
    """Possible traces of a router on a machine."""

    def __init__(self, namespace):
        self.links = namespace.link_settings()
        self.settings = namespace.settings()
        self.sockets = namespace.run("ss", "-aHxn", "--packet").stdout
        # The records of this namespace's interfaces; there may be other routers on the machine.
        self.records = [f.name for f in Path("/run/turnpike").glob(f"{namespace.cookie():x}-*")]

    def __eq__(self, other):
        return vars(self) == vars(other)


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_end_leaves_no_trace(lab, driver):
    wires = Wires(lab, start=False)
    before = Traces(wires.inside)
    config = ports_by(driver) + STATIC_NEIGHBOURS
    router = lab.router(wires.inside, config)
    assert Traces(wires.inside) != before
    router.stop()
    assert vars(Traces(wires.inside)) == vars(before)


# --- an end that does not come to its end -----------------------------------------------------------

# The exit status of a process that was ended by force.
BY_FORCE = 3

# A step of the scenarios' binary does not return for this packet while a file "stuck" exists.
STUCK = 'turnpike.graph:insert_after("ip4-mtu", "faulty")\n'

# A script that is ready at once where it is checked, and never on a forwarder, where functions of the configuration do
# nothing.
ENDLESS = """
turnpike.step("mine") { outputs = { "next" }, process = function(batch) return batch.all end }
turnpike.graph:insert_after("ip4-mtu", "mine")
if tostring(turnpike.route) == "" then while true do end end
"""


def stick(wires):
    """Sends a packet for which a step of the only forwarder does not return."""
    (wires.router.directory / "stuck").touch()
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ident=0xDEA1)))
    assert wait_for(lambda: wires.router.show("counters")["unaccounted"] == 1, 60)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("again", [False, True])
def test_a_forwarder_that_never_returns_does_not_keep_it_from_ending(lab, driver, again):
    wires = Wires(lab, start=False)
    before = Traces(wires.inside)
    wires.router = lab.router(wires.inside, ports_by(driver) + STATIC_NEIGHBOURS + STUCK)
    stick(wires)
    wires.router.process.send_signal(signal.SIGTERM)
    if again:
        # Until it has ended: a signal within a second of the first counts as the same request.
        def gone():
            wires.router.process.send_signal(signal.SIGTERM)
            return wires.router.process.poll() is not None

        assert wait_for(gone, 60, 0.5), "it runs still"
    assert wires.router.process.wait(60) == BY_FORCE, wires.router.log()
    why = r"asked a second time, while forwarder 0" if again else r"forwarder 0 has not come to its end for \d+ s"
    assert re.search(why + r".*threads that run still: forwarder-0 \(\w\)", wires.router.log()), wires.router.log()
    assert not wires.router.socket.exists()
    assert vars(Traces(wires.inside)) == vars(before)
    # And the next one can start.
    following = lab.router(wires.inside, ports_by(driver) + STATIC_NEIGHBOURS)
    assert "a router that was killed" not in following.log()
    following.stop()


def test_an_owner_that_is_held_does_not_keep_it_from_ending(lab):
    # The reader of its log has stopped reading.
    wires = Wires(lab, start=False)
    before = Traces(wires.inside)
    router = wires.router = lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS)
    config, socket = router.config, router.directory / "held.sock"
    router.stop()
    read, write = os.pipe()
    held = wires.inside.spawn(binary(), "run", config, "--socket", socket, stdout=write, stderr=write)
    os.close(write)
    try:
        said = b""
        while b"ready: " not in said:
            said += os.read(read, 65536)
        owner = Path(f"/proc/{held.pid}/task/{held.pid}/wchan")

        def is_held():
            held.send_signal(signal.SIGUSR1)
            return "pipe_write" in owner.read_text()

        assert wait_for(is_held, 60, 0.001), owner.read_text()
        held.send_signal(signal.SIGTERM)
        assert held.wait(60) == BY_FORCE
        assert not socket.exists()
        assert vars(Traces(wires.inside)) == vars(before)
    finally:
        stop_process(held)
        os.close(read)


def test_a_script_that_is_being_loaded_does_not_keep_it_from_ending(lab):
    wires = Wires(lab, start=False)
    before = Traces(wires.inside)
    router = lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS + ENDLESS, wait=False)
    process = Path(f"/proc/{router.process.pid}")
    names = lambda: [name.read_text().strip() for name in process.glob("task/*/comm")]  # noqa: E731
    assert wait_for(lambda: "lua-watchdog" in names(), 60, 0.005), router.log()
    ticks = lambda: sum(map(int, (process / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))  # noqa: E731
    before_signal = used = ticks()
    router.process.send_signal(signal.SIGTERM)
    while router.process.poll() is None:
        used = ticks() or used
    assert router.process.returncode == 0, router.log()
    assert "ended while it started" in router.log() and "budget" not in router.log()
    # Of processor time: the script may have 5 s of it.
    assert (used - before_signal) / os.sysconf("SC_CLK_TCK") < 3
    assert vars(Traces(wires.inside)) == vars(before)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_kill_leaves_no_trace_once_the_router_has_run_again(lab, driver):
    wires = Wires(lab, start=False)
    before = Traces(wires.inside)
    config = ports_by(driver) + STATIC_NEIGHBOURS
    killed = lab.router(wires.inside, config)
    killed.process.kill()
    killed.process.wait()
    # On the same interfaces, at the same socket, by the same driver.
    again = lab.router(wires.inside, config, socket=killed.socket)
    assert "as it was before a router that was killed" in again.log()
    frame = eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40)))
    wires.left.send(frame)
    assert wires.right.expect(1, lambda f: f[34:] == pattern(40))
    again.stop()
    assert vars(Traces(wires.inside)) == vars(before)


def test_a_kill_at_any_moment_can_be_followed_by_a_start(lab):
    wires = Wires(lab, start=False)
    before = Traces(wires.inside)
    config = PORTS + STATIC_NEIGHBOURS
    dice = random.Random(7)
    for _ in range(8):
        router = lab.router(wires.inside, config, wait=False)
        threading.Event().wait(dice.uniform(0, 0.4))
        router.process.kill()
        router.process.wait()
    router = lab.router(wires.inside, config)
    assert {port["driver"] for port in router.show("ports")} == {"net_af_xdp"}
    router.stop()
    assert vars(Traces(wires.inside)) == vars(before)


def test_without_hugepages(lab):
    wires = Wires(lab, options=["--no-huge"])
    assert "huge" in wires.router.log()
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40))))
    assert wires.right.expect(1)
    wires.router.stop()


def test_changes_are_in_the_log_with_who_made_or_tried_them(lab):
    # RFC 1812 10.4.1.
    router = Wires(lab).router
    router.command("route", "add", "192.0.2.0/24", "blackhole")
    router.command("route", "del", "192.0.2.0/24")
    assert router.command("route", "del", "192.0.2.0/24", check=False).returncode != 0
    router.show("counters")
    lines = re.findall(r"audit: uid (\d+), pid \d+: (.*): (done|refused: .*)", router.log())
    assert [(uid, result.split(":")[0]) for uid, _, result in lines] == [("0", "done"), ("0", "done"), ("0", "refused")]
    assert all("192.0.2.0/24" in request for _, request, _ in lines)
    assert "there is none" in lines[2][2]
    router.stop()


def test_the_socket_is_for_its_owner_alone(lab):
    wires = Wires(lab)
    mode = wires.router.socket.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    wires.router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interface_that_goes_down_and_up(lab, driver):
    wires = Wires(lab, ports=ports_by(driver) + STATIC_NEIGHBOURS)
    frame = eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40)))
    wires.ns_right.run("ip", "link", "set", "wire", "down")
    for _ in range(20):
        wires.left.send(frame)
    check_sum(wires.router.counters())
    wires.ns_right.run("ip", "link", "set", "wire", "up")
    wires.right.drain()

    def arrives():
        wires.left.send(frame)
        return wires.right.expect(1, timeout=0.3)

    assert any(arrives() for _ in range(20))
    wires.router.counters()
    wires.router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interface_that_vanishes(lab, driver):
    wires = Wires(lab, ports=ports_by(driver) + STATIC_NEIGHBOURS)
    wires.ns_right.run("ip", "link", "del", "wire")
    for _ in range(50):
        wires.left.send(eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40))))
    # The other port continues, the sum closes, the end is clean.
    wires.left.drain()
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.1.1", icmp(8, 0, bytes(4), pattern(8)), protocol=1)))
    assert wires.left.expect(1)
    wires.router.counters()
    wires.router.stop()


@pytest.mark.alone
def test_idle_it_leaves_the_processor_alone(lab):
    wires = Wires(lab)

    def ticks():
        fields = open(f"/proc/{wires.router.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    wires.router.counters()
    threading.Event().wait(0.5)
    before = ticks()
    threading.Event().wait(2)
    # A polling forwarder would use 200 ticks of 10 ms.
    assert ticks() - before < 100
    wires.router.stop()


# --- malformed frames ------------------------------------------------------------------------------


def eth(packet, destination=LEFT_MAC):
    return ethernet(destination, HOST_A_MAC, 0x0800 if packet[0] >> 4 == 4 else 0x86DD, packet)


def templates():
    """Valid frames of every kind that the router parses, to be damaged."""
    a4, b4, r4 = "10.0.1.2", "10.0.2.2", "10.0.1.1"
    a6, b6, r6 = "fd00:1::2", "fd00:2::2", "fd00:1::1"
    arp = bytes.fromhex("0001080006040001") + mac_bytes(HOST_A_MAC) + bytes([10, 0, 1, 2]) + bytes(6) + bytes([10, 0, 1, 1])
    target = bytes.fromhex("fd000001000000000000000000000001")
    option = b"\x01\x01" + mac_bytes(HOST_A_MAC)
    quote = ipv4(r4, b4, udp(r4, b4, 1, 2, b"data"))
    hop_by_hop = b"\x3a\x00\x05\x02\x00\x00\x01\x00"
    return [
        ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x0806, arp),
        eth(ipv4(a4, b4, udp(a4, b4, 1, 2, pattern(50)))),
        eth(ipv4(a4, b4, pattern(50), protocol=6)),
        eth(ipv4(a4, b4, pattern(50), options=b"\x07\x07\x04\x00\x00\x00\x00\x00")),
        eth(ipv4(a4, b4, pattern(1400), ttl=1)),
        eth(ipv4(a4, "10.0.2.200", pattern(100))),
        eth(ipv4(a4, r4, icmp(8, 0, bytes(4), pattern(56)), protocol=1)),
        eth(ipv4(a4, r4, icmp(3, 4, b"\0\0\x05\0", quote), protocol=1)),
        eth(ipv4(a4, r4, pattern(50), flags=1)),
        eth(ipv4(a4, "224.0.0.1", b"\x11\x64\xee\x9b\0\0\0\0", protocol=2), "01:00:5e:00:00:01"),
        eth(ipv6(a6, b6, udp(a6, b6, 1, 2, pattern(50)))),
        eth(ipv6(a6, b6, b"\x11\x00\x00\x01\0\0\0\x09" + pattern(50), 44)),
        eth(ipv6(a6, r6, b"\x3a\x00\x00\x01\0\0\0\x09" + pattern(50), 44)),
        eth(ipv6(a6, r6, icmp6(a6, r6, 128, 0, bytes(4), pattern(56)), 58)),
        eth(ipv6(a6, r6, icmp6(a6, r6, 135, 0, bytes(4), target + option), 58, hop_limit=255)),
        eth(ipv6(a6, r6, icmp6(a6, r6, 136, 0, b"\x60\0\0\0", target + option), 58, hop_limit=255)),
        eth(ipv6(a6, "ff02::1", icmp6(a6, "ff02::1", 133, 0, bytes(4), option), 58, hop_limit=255), "33:33:00:00:00:01"),
        eth(ipv6(a6, "ff02::1", icmp6(a6, "ff02::1", 134, 0, bytes(12), option), 58, hop_limit=255), "33:33:00:00:00:01"),
        eth(ipv6("fe80::2", "ff02::16", hop_by_hop + icmp6("fe80::2", "ff02::16", 143, 0, bytes(4)), 0, hop_limit=1), "33:33:00:00:00:16"),
        eth(ipv6(a6, r6, b"\x00\x00" + bytes(6) + b"\x3b\x00" + bytes(6), 60)),
    ]


def spoil(frame, dice):
    """The frame with a few bytes changed, cut, lengthened, or replaced completely."""
    while (spoiled := disfigure(frame, dice)) == frame:
        pass
    return spoiled


def disfigure(frame, dice):
    """Like `spoil`, but a byte may by chance keep its value."""
    data = bytearray(frame)
    for _ in range(dice.choice([1, 1, 2, 3, 8])):
        data[dice.randrange(12, len(data))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
    kind = dice.random()
    if kind < 0.25:
        del data[dice.randrange(14, len(data)):]
    elif kind < 0.35:
        data += dice.randbytes(dice.randrange(1, 200))
    elif kind < 0.45:
        data[14:] = dice.randbytes(dice.randrange(0, 1486))
    return bytes(data[:1514])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_malformed_frames_do_no_harm(module_lab, seed, malformed_wires):
    wires = malformed_wires
    dice = random.Random(seed)
    kinds = templates()
    count = 2000
    wires.drain()
    change = Change(wires.router)
    for _ in range(count // 50):
        wires.left.send(*(spoil(dice.choice(kinds), dice) for _ in range(50)))
    changed = change(received=count, timeout=10)
    assert changed["received"] == count
    # A valid packet still passes, and the router still answers.
    wires.drain()
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.2.2", pattern(40))))
    assert wires.right.expect(1, lambda f: f[26:30] == bytes([10, 0, 1, 2]) and f[34:] == pattern(40))
    wires.left.send(eth(ipv4("10.0.1.2", "10.0.1.1", icmp(8, 0, bytes(4), pattern(8)), protocol=1)))
    assert wires.left.expect(1, lambda f: f[34:35] == b"\0" and f[42:] == pattern(8))


@pytest.fixture(scope="module")
def malformed_wires(module_lab):
    wires = Wires(module_lab)
    yield wires
    # After all of it: every buffer is back.
    wires.router.stop()


def test_malformed_frames_are_mostly_malformed():
    # The generator must produce neither the same few frames nor valid ones.
    dice = random.Random(1)
    kinds = templates()
    spoiled = {spoil(dice.choice(kinds), dice) for _ in range(1000)}
    assert len(spoiled) > 950 and not spoiled & set(kinds)


@pytest.mark.flood
def test_the_sum_closes_under_load_between_hosts(lab):
    hosts = Hosts(lab)
    server = hosts.right.spawn("iperf3", "-s", "-1", stdout=-3, stderr=-3)
    client = None
    try:
        assert wait_for(lambda: ":5201" in hosts.right.run("ss", "-Hltn").stdout)
        client = hosts.left.spawn("iperf3", "-c", "10.0.2.2", "-t", "3", stdout=-3, stderr=-3)
        for _ in range(20):
            # The counters are read while packets flow: the sum must close with the packets in flight.
            check_live(hosts.router.show("counters"))
        assert client.wait(20) == 0
    finally:
        for process in (client, server):
            if process:
                stop_process(process)
    hosts.router.counters()
    hosts.router.stop()


def check_live(counters):
    assert counters["dropped_total"] == sum(counters["dropped"].values())
    assert set(counters) >= {"received", "originated", "replicated", "sent", "to_host", "in_flight", "unaccounted"}

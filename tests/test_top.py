"""`turnpike top`: a real terminal shows what hosts send and what the router drops."""

import contextlib
import re
import signal
import subprocess
import time

import pytest
from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, STATIC_NEIGHBOURS, Hosts, Wires, from_left
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, pattern, udp
from lib.router import binary
from lib.screen import Screen
from lib.traffic import Stream

DELAY = "0.2"


@pytest.fixture
def top():
    """Starts `turnpike top` for a router, on a screen."""
    with contextlib.ExitStack() as made:
        def start(socket, *options, size=(80, 24), env=None):
            argv = [binary(), "top", "--delay", DELAY, "--socket", socket, *options]
            screen = Screen(*argv, size=size, env=env)
            made.callback(screen.close)
            return screen
        yield start


@pytest.fixture(scope="module")
def hosts(module_lab):
    """Two hosts; a filter tracks their flows."""
    ports = PORTS.replace("address =", 'filter = "guard", address =')
    guard = 'turnpike.filter "guard" { { state = { "new", "established" } }, default = "accept" }\n'
    return Hosts(module_lab, guard, ports=ports)


def number(text):
    """A number as the screen shows it: 12.3k."""
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    return float(text.rstrip("kMG")) * units.get(text[-1], 1)


def row(lines, name):
    """The words of the row that begins with this name."""
    found = [line.split() for line in lines if line.split()[:1] == [name]]
    return found[0] if found else None


def rates(lines, name):
    """Packets a second that an interface receives and sends, once they are known."""
    words = row(lines, name)
    # Name, link, packets, bits and share received, then the same sent.
    if not words or "-" in (words[2], words[5]):
        return None
    return number(words[2]), number(words[5])


def colours(screen):
    """The sequences that chose a colour; 39 and 49 are the terminal's own."""
    chosen = re.findall(rb"\x1b\[([0-9;]*)m", screen.written)
    return [one for one in chosen if re.search(rb"(^|;)([34][0-8]|9[0-7]|10[0-7])(;|$)", one)]


def bad_checksum():
    packet = bytearray(ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(40))))
    packet[10] ^= 0xFF
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, bytes(packet))


def test_a_flood_is_seen_on_its_interfaces_and_as_a_flow(hosts, top):
    screen = top(hosts.router.socket)
    screen.shows("turnpike 0")
    stream = Stream(hosts.left, ["10.0.2.2"], rate=2000)
    try:
        def flooded(lines):
            left, right = rates(lines, "left"), rates(lines, "right")
            return left and right and left[0] > 200 and right[1] > 200 and (left, right)

        left, right = screen.wait_for(flooded)
        # The hosts reply that nobody listens, as often as Linux lets them.
        assert left[0] > 2 * left[1] and right[1] > 2 * right[0], screen.text
        assert re.search(r"in [\d.]+k? pps [\d.]+[kM] bps", screen.text), screen.text
        screen.type("4")
        screen.wait_for(lambda lines: any(
            re.search(r"^ *[\d.]+[kM] +[\d.]+k? +udp +10\.0\.1\.2:\d+ +10\.0\.2\.2:40000 ", line) for line in lines
        ))
        screen.type("2")
        busy = screen.wait_for(lambda lines: (words := row(lines, "0")) and number(words[3]) > 200 and words)
        assert number(busy[2]) <= 100 and busy[-2:] == ["left:0", "right:0"], busy
        # A view that is frozen stays, whatever comes.
        screen.type("1")
        screen.wait_for(flooded)
        screen.type(" ")
        screen.shows("frozen")
        frozen = screen.wait_for(lambda lines: row(lines, "left"))
    finally:
        stream.stop()
    # Nothing happens for several samples.
    end = time.monotonic() + 5 * float(DELAY)
    while time.monotonic() < end:
        screen.read(float(DELAY))
    assert row(screen.lines, "left") == frozen
    screen.type(" ")
    screen.wait_for(lambda lines: rates(lines, "left") == (0, 0))
    screen.type("q")
    assert screen.ends() == 0 and screen.is_sane()


def test_drops_appear_by_step_and_reason_as_they_happen(lab, top):
    wires = Wires(lab, calm=True)
    screen = top(wires.router.socket, "--panel", "drops")
    screen.shows("no packet was dropped")
    wires.left.send(bad_checksum())
    bad = screen.wait_for(lambda lines: [line.split() for line in lines if "ip4-checksum" in line])
    assert bad[0][2:] == ["1", "ip4-validate", "ip4-checksum"], screen.text
    for _ in range(3):
        wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "203.0.113.9", pattern(40))))

    def first(lines):
        table = [line.split() for line in lines if re.search(r" (ip4-checksum|no-route)$", line)]
        return table and table[0]

    # The last is the first, and after a while no more are dropped.
    last = screen.wait_for(lambda lines: (words := first(lines)) and words[2:5:2] == ["3", "no-route"] and words)
    screen.wait_for(lambda lines: first(lines)[0] == "0")
    # Sorted by the total, smallest first: the columns are DROP/S, LAST and TOTAL.
    screen.type(">I")
    screen.wait_for(lambda lines: first(lines)[4] == "ip4-checksum")
    screen.type("/NO-ROUTE\r")
    screen.wait_for(lambda lines: not any("ip4-checksum" in line for line in lines))
    assert first(screen.lines)[4] == "no-route" and "filter: NO-ROUTE" in screen.text, (last, screen.text)


def test_a_terminal_of_any_size(hosts, top):
    screen = top(hosts.router.socket)
    screen.wait_for(lambda lines: row(lines, "right"))
    assert all(len(line) <= 80 for line in screen.lines)
    assert re.search(r"INTERFACE .* ERR/S", screen.text), screen.text
    screen.resize(40, 10)
    screen.wait_for(lambda lines: row(lines, "left") and "RX PPS" in screen.text and "ERR/S" not in screen.text)
    screen.resize(30, 6)
    screen.shows("30x6: too small")
    screen.resize(120, 40)
    screen.wait_for(lambda lines: row(lines, "left") and "ERR/S" in screen.text)
    for key, words in [("\t", "PREEMPT/S"), ("\t", "REASON"), ("\x1b[Z", "PREEMPT/S"), ("5", "CHANGE/S"), ("?", "Any key")]:
        screen.type(key)
        screen.shows(words)
    screen.type("x")
    screen.wait_for(lambda lines: "Any key" not in screen.text)
    screen.wait_for(lambda lines: any(re.match(r"default +ipv4 +in use +\d+ +\d", line) for line in lines))
    screen.type("\x1b[21~")
    assert screen.ends() == 0 and screen.is_sane() and colours(screen)


def test_ascii_without_colours_where_asked_for(hosts, top):
    screen = top(hosts.router.socket, env={"LANG": "C", "LC_ALL": "C", "NO_COLOR": "1"})
    screen.wait_for(lambda lines: row(lines, "right"))
    screen.type(">")
    screen.shows("INTERFACE^")
    screen.type("\x03")
    assert screen.ends() == 0 and screen.is_sane()
    assert screen.written.isascii()
    assert not colours(screen)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(hosts, top, end):
    screen = top(hosts.router.socket)
    screen.wait_for(lambda lines: row(lines, "right"))
    assert not screen.is_sane()
    screen.process.send_signal(end)
    assert screen.ends() == 128 + end and screen.is_sane()


def test_a_stopped_view_gives_the_terminal_back_and_continues(hosts, top):
    screen = top(hosts.router.socket)
    screen.wait_for(lambda lines: row(lines, "right"))
    screen.type("\x1a")
    state = lambda: open(f"/proc/{screen.process.pid}/stat").read().rsplit(") ", 1)[1][0]
    assert wait_for(lambda: screen.read(0.01) or state() == "T", 20)
    assert wait_for(lambda: state() == "T", 20) and (screen.lines, screen.is_sane())[1]
    screen.process.send_signal(signal.SIGCONT)
    screen.wait_for(lambda lines: row(lines, "right") and not screen.is_sane())
    screen.type("q")
    assert screen.ends() == 0 and screen.is_sane()


def test_a_router_that_goes_is_waited_for(lab, top):
    wires = Wires(lab)
    socket = wires.router.directory.with_suffix(".top")
    wires.router.stop()
    config = PORTS + STATIC_NEIGHBOURS
    first = lab.router(wires.inside, config, socket=socket)
    screen = top(socket)
    screen.wait_for(lambda lines: rates(lines, "left") is not None)
    first.kill()
    screen.shows("router gone, waiting")
    # Its last values stay, with the reason below.
    screen.shows("cannot reach a router")
    assert row(screen.lines, "left"), screen.text
    second = lab.router(wires.inside, config, socket=socket)
    screen.wait_for(lambda lines: "router gone" not in screen.text and rates(lines, "left") is not None)
    before = second.show("counters")["received"]
    for _ in range(5):
        wires.left.send(from_left("10.0.1.2", "10.0.2.2"))
    assert wait_for(lambda: second.show("counters")["received"] >= before + 5, 20)
    screen.type("q")
    assert screen.ends() == 0 and screen.is_sane()


def test_a_batch_is_text_for_scripts(hosts):
    done = hosts.router.command("top", "--batch", "-n", "3", "--delay", DELAY)
    frames = re.findall(r"^turnpike .*configuration 1$", done.stdout, re.M)
    assert len(frames) == 3 and done.stdout.isprintable() is False and "\x1b" not in done.stdout, done.stdout
    # Every frame has rates, the first as well.
    left = [line.split() for line in done.stdout.splitlines() if line.startswith("left ")]
    assert len(left) == 3 and all(words[1] == "up" and "-" not in words[2:4] for words in left), done.stdout
    assert "in use" in done.stdout and "Forwarders\nFWD" in done.stdout, done.stdout
    drops = hosts.router.command("top", "-b", "-n", "1", "-d", DELAY, "--panel", "drops").stdout
    assert "Drops" in drops and "Interfaces" not in drops, drops


def test_wrong_uses_are_told_from_each_other(hosts, tmp_path):
    run = lambda *words: subprocess.run([binary(), "top", *words], capture_output=True, text=True, timeout=20)
    away = run("--socket", str(tmp_path / "none.sock"))
    assert away.returncode == 1 and "cannot reach a router" in away.stderr, away
    piped = run("--socket", str(hosts.router.socket))
    assert piped.returncode == 1 and "turnpike top --batch" in piped.stderr, piped
    assert piped.stdout == "", piped
    dull = Screen(binary(), "top", "--socket", hosts.router.socket, env={"TERM": "dumb"})
    try:
        assert dull.ends() == 1 and "cannot move its cursor" in dull.text, dull.text
    finally:
        dull.close()
    assert run("--delay", "0").returncode == 2
    panel = run("--panel", "ports")
    assert panel.returncode == 2 and "interfaces, forwarders, drops, flows, routes" in panel.stderr, panel

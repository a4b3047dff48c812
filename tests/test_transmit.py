"""Queues of ports in software: lengths, rates, RED, CoDel, DRR, and their change while packets wait."""

import socket
import threading
import time

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import (
    DRIVERS, HOST_A_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires, ports_by, with_memory,
)
from lib.netns import bridge_tap, wait_for
from lib.packets import checksum, ethernet, ipv4, ipv6, udp
from lib.router import check_sum

# Frames of 1,000 bytes.
PAYLOAD = {4: 1000 - 14 - 20 - 8, 6: 1000 - 14 - 40 - 8}
BITS = 8000

ECT, CE = 2, 3
EF, AF41, CS6, LE = 46, 34, 48, 1


def packet(number, dscp=0, ecn=0, family=4, sport=7):
    """A frame of 1,000 bytes from the left host to the right one, with its number."""
    data = number.to_bytes(4, "big").ljust(PAYLOAD[family], b"\0")
    if family == 4:
        payload = ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", sport, 9, data), tos=dscp << 2 | ecn)
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, payload)
    content = udp("fd00:1::2", "fd00:2::2", sport, 9, data)
    payload = ipv6("fd00:1::2", "fd00:2::2", content, traffic_class=dscp << 2 | ecn)
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, payload)


def is_numbered(frame):
    return len(frame) == 1000


def number(frame):
    at = 42 if frame[12:14] == b"\x08\x00" else 62
    return int.from_bytes(frame[at:at + 4], "big")


def tos(frame):
    return frame[15] if frame[12:14] == b"\x08\x00" else (frame[14] << 4 | frame[15] >> 4) & 0xFF


def is_sound(frame):
    """The IPv4 header's checksum is right."""
    return checksum(frame[14:34]) == 0


def queued(ports, what, port="right"):
    """The ports, one with `queue` and `shape` beside its device."""
    before = f'turnpike.port "{port}"'
    head, tail = ports.split(before, 1)
    return head + before + tail.replace("{ device", f"{{ {what}, device", 1)


def queue(router, name="others", port="right"):
    """A class of a port's queue."""
    found = [row for row in router.show("queues") if row["interface"] == port]
    return next(row for row in found[0]["classes"] if row["name"] == name)


def drops(row):
    return row["full"] + row["red"] + row["codel"]


def offered(router, count, *names):
    """Waits until so many packets have arrived in the classes of the port's queue; returns their rows."""
    def all_came():
        rows = [queue(router, name) for name in names]
        return rows if sum(r["sent"] + drops(r) + r["waiting"] for r in rows) == count else None

    rows = wait_for(all_came, 20)
    assert rows, router.show("queues")
    return rows


def arrivals(wire, count, timeout=30):
    """Numbered frames with their arrival times."""
    came = []
    for _ in range(count):
        frame = wire.expect(1, is_numbered, timeout)
        if not frame:
            break
        came.append((time.monotonic(), frame[0]))
    return came


@pytest.mark.provokes("queue-full")
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_fifo_holds_its_length_and_drops_the_rest(lab, driver, family):
    ports = queued(ports_by(driver), 'queue = { length = 10 }, shape = "16kbit"')
    wires = Wires(lab, ports=ports + STATIC_NEIGHBOURS)
    router = wires.router
    wires.left.send(*(packet(n, family=family) for n in range(100)))
    (row,) = offered(router, 100, "others")
    # 3,036 bytes at once and two kilobytes per second: the rest is queued or dropped.
    assert row["most"] == 10 and row["full"] == 100 - row["sent"] - row["waiting"], row
    assert router.show("counters")["dropped"]["queue-full"] == row["full"]
    assert router.show("counters")["in_flight"] >= row["waiting"]
    # The first ones pass, in order; packets that arrived at a full queue do not.
    came = [number(frame) for _, frame in arrivals(wires.right, 8)]
    assert came == list(range(8))
    report = router.show("queues")
    assert [r["interface"] for r in report] == ["right"]
    assert report[0]["queue"] == "fifo, length 10"
    assert report[0]["shape"] == "16000 bit, burst 3036 bytes, overhead 0"
    text = router.command("show", "queues").stdout
    assert text.startswith("right: fifo, length 10; shape 16000 bit") and "control" in text
    router.stop()


def rate_holds(wires, rate, count, family=4):
    """Checks that so many packets pass, not faster than the rate and the burst; the queue has delayed them."""
    begin = time.monotonic()
    wires.left.send(*(packet(n, family=family) for n in range(count)))
    came = arrivals(wires.right, count)
    assert [number(frame) for _, frame in came] == list(range(count))
    taken = came[-1][0] - begin
    # The amount of a burst, a quantum and a frame passes at once and is not waited for.
    least = (count * BITS - 8 * (10_000 + 1522 + 1000)) / rate
    assert taken >= least * 0.98, (taken, least)
    # Ten times as long would be another rate; a loaded machine delays packets, but not for seconds.
    assert taken < least * 2 + 5, (taken, least)


RATE = 'shape = { rate = "2mbit", burst = "10kb" }'


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_shaped_port_keeps_its_rate(lab, driver, family):
    wires = Wires(lab, ports=queued(ports_by(driver), RATE) + STATIC_NEIGHBOURS)
    rate_holds(wires, 2_000_000, 500, family)
    (row,) = offered(wires.router, 500, "others")
    assert (row["sent"], drops(row), row["marked"]) == (500, 0, 0)
    assert row["sent_bytes"] == 500 * 1000 and row["delay_most_us"] > 1_000_000
    assert wires.router.counters()["sent"] >= 500
    # It blocks while packets wait for their time.
    (forwarder,) = wires.router.show("forwarders")["forwarders"]
    assert forwarder["waiting"]["blocks"] > 20, forwarder
    wires.router.stop()


def test_a_rate_is_one_for_all_forwarders(lab):
    """Both forwarders forward; the one without a transmit queue hands its packets over."""
    ports = queued(queued(PORTS, RATE), 'spread = "software"', "left")
    wires = Wires(lab, 'turnpike.forwarders { cores = "0,1" }\n', ports + STATIC_NEIGHBOURS)
    count, begin = 400, time.monotonic()
    wires.left.send(*(packet(n, sport=n % 16 + 1) for n in range(count)))
    came = arrivals(wires.right, count)
    taken = came[-1][0] - begin
    assert sorted(number(frame) for _, frame in came) == list(range(count))
    assert taken >= (count * BITS - 8 * (10_000 + 2 * (1522 + 1000))) / 2_000_000 * 0.98, taken
    for flow in range(16):
        numbers = [number(frame) for _, frame in came if number(frame) % 16 == flow]
        assert numbers == sorted(numbers)
    (row,) = offered(wires.router, count, "others")
    assert (row["sent"], drops(row)) == (count, 0)
    forwarders = wires.router.show("forwarders")["forwarders"]
    assert all(one["packets"] > 50 for one in forwarders), forwarders
    wires.router.counters()
    wires.router.stop()


def test_a_shaped_tap_keeps_its_rate(lab):
    """TAP devices, which bridges of the kernel join with raw wires."""
    inside = lab.namespace("router", quiet=True)
    ports = f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "net_tap0,iface=tp-left,mac={LEFT_MAC}", address = "10.0.1.1/24" }}
turnpike.port "right" {{ device = "net_tap1,iface=tp-right,mac={RIGHT_MAC}", address = "10.0.2.1/24" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "02:00:00:00:02:02" }}
"""
    router = lab.router(inside, queued(ports, RATE))
    sides = {}
    for side, name in ((1, "left"), (2, "right")):
        outside = lab.namespace(name, quiet=True)
        bridge_tap(inside, name, side, outside, "wire")
        sides[name] = lab.raw(outside, "wire")

    class Sides:
        left, right = sides["left"], sides["right"]

    # The bridges have begun to forward.
    assert wait_for(lambda: (Sides.left.send(packet(10**6)), Sides.right.expect(1, is_numbered, 0.5))[1], 20)
    Sides.right.receive(0.5)
    rate_holds(Sides, 2_000_000, 300)
    router.stop()


SORTED = '''
turnpike.filter "sort" {
  { proto = "udp", from_port = 100, mark = { class = "voice" }, action = "continue" },
  { proto = "udp", from_port = 101, mark = { class = "background" } },
  { proto = "udp", from_port = 102, mark = { class = "control" } },
  { proto = "udp", from_port = 103, mark = { class = "data", dscp = "ef" } },
  { dscp = "af11", mark = { class = "video" } },
}
turnpike.filter "sort-out" { { extension = "hop-by-hop", mark = { class = "video" } } }
'''
CLASSES = ["voice", "video", "data", "default", "background"]


def sorting(ports):
    """The ports, with filters that mark classes, and a queue with classes."""
    ports = queued(ports, 'queue = { discipline = "drr" }, filter = { outward = "sort-out" }')
    return queued(ports, 'filter = "sort"', "left") + STATIC_NEIGHBOURS


def sent_by_class(router, count):
    """Waits until so many packets have left in all classes but control, which includes the router's own."""
    rows = offered(router, count, *CLASSES)
    return {row["name"]: row["sent"] for row in rows if row["sent"]}


@pytest.mark.parametrize("family", [4, 6])
def test_a_filter_s_mark_chooses_the_class(lab, family):
    wires = Wires(lab, SORTED, ports=sorting(PORTS), calm=True)
    ports = {99: 1, 100: 2, 101: 3, 102: 4, 103: 5}
    for sport, count in ports.items():
        wires.left.send(*(packet(sport, family=family, sport=sport) for _ in range(count)))
    # RFC 2474 3: another class for a codepoint.
    wires.left.send(*(packet(104, dscp=10, family=family) for _ in range(6)))
    ports[104] = 6
    came = [frame for _, frame in arrivals(wires.right, 21)]
    assert sorted(number(frame) for frame in came) == sorted(n for n, count in ports.items() for _ in range(count))
    # A class is no DSCP.
    assert all(tos(frame) == {103: EF << 2, 104: 10 << 2}.get(number(frame), 0) for frame in came)
    # Four are control.
    sent = {"default": 1, "voice": 2, "background": 3, "data": 5, "video": 6}
    assert sent_by_class(wires.router, 17) == sent
    assert queue(wires.router, "control")["sent"] >= 4
    text = wires.router.command("show", "filters", "sort").stdout
    assert "continue with queue class voice" in text and "accept with dscp 46, queue class data" in text, text
    changed = wires.router.config.read_text().replace('"voice"', '"video"')
    wires.router.config.write_text(changed)
    told = wires.router.command("plan", wires.router.config, check=False).stdout
    assert "queue class voice" in told and "queue class video" in told, told
    wires.router.command("apply", wires.router.config)
    wires.left.send(packet(1, family=family, sport=100))
    assert sent_by_class(wires.router, 18) == sent | {"video": 7}


def test_a_class_stays_with_a_packet_by_the_slow_path(lab):
    wires = Wires(lab, SORTED, ports=sorting(PORTS), calm=True)

    def with_options(sport):
        data = number_of(sport)
        content = b"\x11\0\x01\x04\0\0\0\0" + udp("fd00:1::2", "fd00:2::2", sport, 9, data)
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6("fd00:1::2", "fd00:2::2", content, next_header=0))

    def number_of(sport):
        return sport.to_bytes(4, "big").ljust(PAYLOAD[6] - 8, b"\0")

    # By the outward filter, which is applied after the inward one.
    wires.left.send(with_options(101))
    assert wires.right.expect(1, is_numbered)
    assert sent_by_class(wires.router, 1) == {"video": 1}
    # By the inward one alone.
    wires.router.config.write_text(wires.router.config.read_text().replace(', filter = { outward = "sort-out" }', ""))
    wires.router.command("apply", wires.router.config)
    wires.left.send(with_options(101))
    assert wires.right.expect(1, is_numbered)
    assert sent_by_class(wires.router, 2) == {"video": 1, "background": 1}


def test_a_class_stays_with_a_packet_that_another_forwarder_sends(lab):
    ports = queued(sorting(with_memory(32768)), 'spread = "software"', "left")
    wires = Wires(lab, 'turnpike.forwarders { cores = "0,1" }\n' + SORTED, ports, calm=True)
    wires.left.send(*(packet(n, sport=101) for n in range(8)), *(packet(n, sport=100) for n in range(8)))
    assert len(arrivals(wires.right, 16)) == 16
    assert sent_by_class(wires.router, 16) == {"background": 8, "voice": 8}


def test_drr_divides_a_rate_by_weight_and_control_goes_first(lab):
    what = ('queue = { discipline = "drr", length = 500, weights = { voice = 6, video = 3, default = 2, background = 1 } },'
            'shape = { rate = "1mbit", burst = "10kb" }')
    wires = Wires(lab, ports=queued(PORTS, what) + STATIC_NEIGHBOURS)
    router = wires.router
    classes = {EF: ("voice", 6), AF41: ("video", 3), 0: ("default", 2), LE: ("background", 1)}
    wires.left.send(*(packet(n, dscp) for n in range(250) for dscp in classes))
    offered(router, 1000, *(name for name, _ in classes.values()))
    before = queue(router, "control")["sent"]
    wires.left.send(packet(0, CS6))
    came = [frame for _, frame in arrivals(wires.right, 400)]
    # The first ones left while others had not arrived yet; no later queue was empty.
    shared = [tos(frame) >> 2 for frame in came[50:350]]
    for dscp, (name, weight) in classes.items():
        share = shared.count(dscp) / len(shared)
        assert abs(share - weight / 12) < 0.04, (name, share)
    for dscp in classes:
        numbers = [number(frame) for frame in came if tos(frame) >> 2 == dscp]
        assert numbers == sorted(numbers)
    # A keepalive after eight seconds of others: it has left while they waited.
    assert wait_for(lambda: queue(router, "control")["sent"] > before, 20)
    assert queue(router, "control")["delay_most_us"] < 2_000_000, router.show("queues")
    assert CS6 in [tos(frame) >> 2 for frame in came]
    check_sum(router.show("counters"))
    router.stop()


def overload(wires, count, pause, ecn=0, family=4):
    """Packets at their own pace, on a thread."""
    def send():
        for n in range(count):
            wires.left.send(packet(n, ecn=ecn, family=family))
            time.sleep(pause)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


CODEL = 'queue = { discipline = "codel", target_us = 5000, interval_us = 50000 }, shape = { rate = "1mbit", burst = "5kb" }'


@pytest.mark.provokes("queue-codel")
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("ecn", [0, ECT])
def test_codel_drops_or_marks_when_packets_wait_too_long(lab, ecn, family):
    wires = Wires(lab, ports=queued(PORTS, CODEL) + STATIC_NEIGHBOURS)
    router = wires.router
    # 2 Mbit/s at most arrive for 1 Mbit/s.
    overload(wires, 600, 0.003, ecn, family).join()
    offered(router, 600, "others")
    assert wait_for(lambda: queue(router)["waiting"] == 0, 60), queue(router)
    row, counters = queue(router), router.counters()
    came = wires.right.receive(0.5)
    came = [frame for frame in came if is_numbered(frame)]
    assert len(came) == row["sent"] == 600 - row["codel"], row
    marks = [frame for frame in came if tos(frame) & 3 == CE]
    if ecn:
        assert row["marked"] == len(marks) > 5 and row["codel"] == 0, row
    else:
        assert row["codel"] > 5 and row["marked"] == len(marks) == 0, row
    assert counters["dropped"]["queue-codel"] == row["codel"] and row["full"] == row["red"] == 0
    assert {tos(frame) & 3 for frame in came} <= {ecn, CE if ecn else 0}
    if family == 4:
        assert all(map(is_sound, came))
    router.stop()


@pytest.mark.provokes("queue-red")
@pytest.mark.parametrize("ecn", [0, ECT])
def test_red_drops_or_marks_before_the_queue_is_full(lab, ecn):
    what = ('queue = { discipline = "red", length = 2000, min = 5, max = 1500, percent = 100 }, '
            'shape = { rate = "1mbit", burst = "5kb" }')
    wires = Wires(lab, ports=queued(PORTS, what) + STATIC_NEIGHBOURS)
    router = wires.router
    wires.left.send(*(packet(n, ecn=ecn) for n in range(800)))
    (row,) = offered(router, 800, "others")
    chosen, other = ("marked", "red") if ecn else ("red", "marked")
    # The average approaches the length by 1/500 a packet: it is above 5 from 70 packets on, and some hundred
    # at the end, so that of the last packets about a fifth is chosen.
    wait_for(lambda: queue(router)[chosen] > 10, 30)
    assert 10 < queue(router)[chosen] < 400, queue(router)
    assert queue(router)[other] == 0 and row["full"] == 0
    if not ecn:
        assert router.show("counters")["dropped"]["queue-red"] == row["red"]
    router.stop()


# --- beside a stream of TCP ---------------------------------------------------------------------------


class Stream:
    """A TCP connection from the left host to the right one that sends as much as it can."""

    def __init__(self, hosts):
        with hosts.right.entered():
            self._listener = socket.create_server(("10.0.2.2", 5001))
        with hosts.left.entered():
            self._out = socket.socket()
        # Cubic's slow start ends when the queue begins to fill; this one's when it overflows.
        self._out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        self._out.settimeout(10)
        self._out.connect(("10.0.2.2", 5001))
        self._in, _ = self._listener.accept()
        self.received, self._stop = 0, False
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        [thread.start() for thread in self._threads]

    def _send(self):
        self._out.settimeout(1)
        while not self._stop:
            try:
                self._out.send(bytes(16_384))
            except TimeoutError:
                pass

    def _receive(self):
        self._in.settimeout(1)
        while not self._stop:
            try:
                self.received += len(self._in.recv(65_536))
            except TimeoutError:
                pass

    def close(self):
        self._stop = True
        [thread.join() for thread in self._threads]
        [one.close() for one in (self._out, self._in, self._listener)]


def delays(host, address, count):
    """Milliseconds there and back of pings that were answered."""
    done = host.run("ping", "-n", "-i", "0.1", "-c", count, "-W", 20, address, check=False, timeout=120)
    return sorted(float(line.split("time=")[1].split()[0]) for line in done.stdout.splitlines() if "time=" in line)


def ping_beside_a_stream(lab, what):
    """The median of pings beside a stream that has filled the queue, and the queue's row."""
    hosts = Hosts(lab, ports=queued(PORTS, what))
    assert wait_for(lambda: hosts.left.run("ping", "-n", "-c", 1, "-W", 2, "10.0.2.2", check=False).returncode == 0, 20)
    stream = Stream(hosts)
    try:
        assert wait_for(lambda: stream.received > 1_000_000, 60)
        times = []
        # A full fifo drops pings like the stream's packets, most of them while the stream repeats what it lost.
        assert wait_for(lambda: times.extend(delays(hosts.left, "10.0.2.2", 20)) or len(times) >= 5, 120), times
        row = queue(hosts.router)
    finally:
        stream.close()
    hosts.router.stop()
    return sorted(times)[len(times) // 2], row


@pytest.mark.alone
def test_a_ping_waits_less_beside_a_stream_with_codel_than_with_a_long_fifo(lab):
    """The queue is what makes a stream's packets, and everything else's, wait: bufferbloat."""
    shape = 'shape = { rate = "8mbit", burst = "10kb" }'
    long, fifo = ping_beside_a_stream(lab, f'queue = {{ length = 300 }}, {shape}')
    short, codel = ping_beside_a_stream(lab, f'queue = {{ discipline = "codel" }}, {shape}')
    assert codel["codel"] + codel["marked"] > 0 and fifo["codel"] == 0
    # 300 full frames at 8 Mbit/s are 450 ms; CoDel keeps to a few frames.
    assert long > 100 and short < long / 3, (long, short)


@pytest.mark.alone
def test_what_the_kernel_sends_as_network_control_waits_for_nobody(lab):
    """A host interface's packets enter the queue of the port by their class."""
    ports = queued(PORTS, 'queue = { length = 1000 }, shape = { rate = "1mbit", burst = "5kb" }')
    ports = ports.replace("device =", "host = true, device =")
    hosts = Hosts(lab, ports=ports)
    address = "10.0.2.2"
    assert wait_for(lambda: hosts.inside.run("ping", "-n", "-c", 1, "-W", 2, address, check=False).returncode == 0, 20)
    wire = lab.raw(hosts.left, "eth0")
    hosts.left.run("ping", "-n", "-c", 1, address)
    wire.send(*(packet(n) for n in range(700)))
    assert wait_for(lambda: queue(hosts.router)["waiting"] > 500, 20), queue(hosts.router)
    done = hosts.inside.run("ping", "-n", "-Q", CS6 << 2, "-c", 3, "-i", "0.2", "-W", 10, address)
    times = [float(line.split("time=")[1].split()[0]) for line in done.stdout.splitlines() if "time=" in line]
    assert queue(hosts.router)["waiting"] > 50, "the others still wait"
    # At least 400 ms of others waited before each.
    assert min(times) < 200, times
    assert queue(hosts.router, "control")["sent"] >= 3
    hosts.router.stop()


# --- changes while packets wait -----------------------------------------------------------------------


def test_queue_and_shape_change_live(lab):
    wires = Wires(lab, ports=queued(PORTS, 'shape = "16kbit"') + STATIC_NEIGHBOURS)
    router = wires.router
    wires.left.send(*(packet(n) for n in range(200)))
    (row,) = offered(router, 200, "others")
    assert row["waiting"] > 150
    # Into a shorter queue of another discipline, with the same rate: the excess is dropped.
    text = queued(PORTS, 'queue = { discipline = "codel", length = 50 }, shape = "16kbit"') + STATIC_NEIGHBOURS
    report, status = plan(router, text)
    changes = {(c["what"], c["from"], c["to"], c["live"]) for c in report["changes"]}
    assert changes == {('port "right": queue', "the device's",
                        "codel, length 50, target_us 5000, interval_us 100000, ecn true", True)} and status == 2
    apply(router, text)
    row = queue(router)
    assert 40 <= row["waiting"] <= 50 and row["full"] > 90, row
    # At a rate at which it is empty at once.
    apply(router, queued(PORTS, 'queue = { discipline = "codel", length = 50 }, shape = "100mbit"') + STATIC_NEIGHBOURS)
    assert wait_for(lambda: queue(router)["waiting"] == 0, 20)
    counters = router.counters()
    row = queue(router)
    assert counters["in_flight"] == 0 and row["sent"] + drops(row) == 200
    # And without any, with packets in it.
    apply(router, queued(PORTS, 'queue = { length = 300 }, shape = "16kbit"') + STATIC_NEIGHBOURS)
    wires.left.send(*(packet(n) for n in range(200)))
    assert wait_for(lambda: queue(router)["waiting"] > 150, 20)
    waiting = queue(router)["waiting"]
    sent = router.show("counters")["sent"]
    apply(router, PORTS + STATIC_NEIGHBOURS)
    counters = router.counters()
    assert counters["in_flight"] == 0 and counters["sent"] >= sent + waiting - 5
    assert router.show("queues") == []
    assert router.command("show", "queues").stdout.startswith("no interface has a queue in software")
    numbers = [number(frame) for frame in wires.right.receive(0.3) if is_numbered(frame)]
    second = numbers[len(numbers) - 190:]
    assert second == sorted(second)
    router.stop()


@pytest.mark.parametrize("end", ["stop", "remove", "unplug"])
def test_nothing_leaks_when_a_port_with_waiting_packets_goes(lab, end):
    wires = Wires(lab, ports=queued(PORTS, 'queue = { discipline = "drr" }, shape = "16kbit"') + STATIC_NEIGHBOURS)
    router = wires.router
    wires.left.send(*(packet(n, dscp) for n in range(100) for dscp in (0, EF)))
    offered(router, 200, "default", "voice")
    waiting = router.show("counters")["in_flight"]
    assert waiting > 150
    if end == "remove":
        left = PORTS.replace('turnpike.port "right"', '-- turnpike.port "right"')
        apply(router, left + f'turnpike.neighbour "10.0.1.2" {{ port = "left", mac = "{HOST_A_MAC}" }}')
    if end == "unplug":
        wires.inside.run("ip", "link", "delete", "tp-right")
        assert wait_for(lambda: router.show("counters")["in_flight"] == 0, 20), router.show("counters")
    if end != "stop":
        counters = router.counters()
        assert counters["in_flight"] == 0
        assert counters["dropped"]["tx-full"] + counters["sent"] >= 195, counters
    # Every buffer is back, and the sum closes.
    router.stop()


def test_a_queue_beyond_the_memory_is_refused(lab):
    wires = Wires(lab, ports=PORTS + STATIC_NEIGHBOURS)
    text = queued(PORTS, "queue = { length = 60000 }") + STATIC_NEIGHBOURS
    said = refused(wires.router, "apply", write(wires.router, text))
    assert "queues in software could hold" in said and "lower queue" in said, said
    assert wires.router.show("queues") == []
    wires.router.stop()

"""Full queues: when more packets arrive than can leave, the rest is dropped with its reason, and every packet is
counted.

A capture file played in an endless loop is the source: nothing on a test machine sends faster.
Under such a flood the counters never rest; that they count every packet is seen by the sum with
which the router ends.
"""

import re
import threading
import time

import pytest

from lib.apply import apply
from lib.capture import Capturing
from lib.lab import DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import held_thread, wait_for
from lib.packets import ethernet, icmp, ipv4, pattern, pcap_file, udp

pytestmark = pytest.mark.flood

# The address of the first capture-file port, as its driver makes it.
SOURCE_MAC = "02:70:63:61:70:00"


def flood(lab, frames, config="", mtu=1500, driver="af_xdp", settings=""):
    """A router whose first port receives these frames without end; it sheds none unless configured."""
    if "turnpike.forwarders" not in config:
        config += "turnpike.forwarders { shed = false }\n"
    return Wires(lab, mtu=(1500, mtu), ports=f"""
local turnpike = require "turnpike"
turnpike.port "flood" {{
  device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=1", address = "10.0.1.1/24"{settings} }}
turnpike.port "left"  {{ device = "tp-left",  address = "10.0.3.1/24" }}
turnpike.port "right" {{ device = "tp-right", driver = "{driver}", address = "10.0.2.1/24" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "10.0.3.2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.neighbour "10.0.1.2" {{ port = "flood", mac = "{HOST_A_MAC}" }}
""" + config, files={"in.pcap": pcap_file(frames)})


def frame(packet):
    return ethernet(SOURCE_MAC, HOST_A_MAC, 0x0800, packet)


EXPIRED = frame(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ttl=1))


def reasons(router):
    """Drop reasons so far."""
    return set(router.dropped())


def stop(router):
    """Ends the router; its final report is a sum that closes, regardless of packets in progress."""
    said = re.search(
        r"received (\d+) \+ originated (\d+) \+ replicated (\d+) = sent (\d+) \+ to host (\d+) \+ dropped (\d+)",
        router.stop(),
    )
    received, originated, replicated, sent, to_host, dropped = map(int, said.groups())
    assert received + originated + replicated == sent + to_host + dropped


@pytest.mark.provokes("refused-errors")
def test_more_errors_than_the_slow_path_takes(lab):
    router = flood(lab, [EXPIRED] * 64).router
    assert wait_for(lambda: "refused-errors" in reasons(router), 10)
    assert reasons(router) == {"refused-errors", "ttl-expired"}
    # The flood fills the ring; an operator's queries must still be answered.
    for _ in range(5):
        assert router.show("ports") and router.show("neighbours")
    stop(router)


@pytest.mark.provokes("inject-full")
def test_inject_full(lab):
    # Each packet is cut into 31 fragments for a link with an MTU of 68 bytes.
    big = [frame(ipv4("10.0.1.2", "10.0.2.2", pattern(1480), ident=i)) for i in range(64)]
    router = flood(lab, big, mtu=68).router
    assert wait_for(lambda: "inject-full" in reasons(router), 10)
    assert reasons(router) <= {"inject-full", "refused-fragment"}
    stop(router)


@pytest.mark.provokes("handover-full")
def test_handover_full(lab):
    # Two forwarders: the flood is received by one, half of it leaves by the other's port.
    datagram = udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(1000))
    frames = [frame(ipv4("10.0.1.2", f"10.0.{to}.2", datagram)) for to in (2, 3)] * 32
    router = flood(lab, frames, 'turnpike.forwarders { cores = "0,1", shed = false }\n').router
    assert wait_for(lambda: "handover-full" in reasons(router), 10)
    assert reasons(router) == {"handover-full"}
    stop(router)


@pytest.mark.provokes("spread-full")
def test_spread_full(lab):
    # One forwarder only receives and hashes, the other forwards all of it: the first is faster.
    datagram = udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(1000))
    settings = ', spread = "software", rss = { skip = 0 }'
    frames = [frame(ipv4("10.0.1.2", "10.0.2.2", datagram))] * 64
    router = flood(lab, frames, 'turnpike.forwarders { cores = "0,1", shed = false }\n', settings=settings).router
    assert wait_for(lambda: "spread-full" in reasons(router), 10)
    assert reasons(router) <= {"spread-full", "handover-full", "tx-full"}
    stop(router)


@pytest.mark.provokes("event-device-full")
@pytest.mark.parametrize("device, order", [("event_sw0", "ordered"), ("event_dsw0", "atomic")])
def test_event_device_full(lab, device, order):
    # The receiver only hashes, and the worker's step takes its time.
    datagram = udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(1000))
    config = f"""
turnpike.forwarders {{ mode = "events", device = "{device}", order = "{order}", cores = "0,1", shed = false }}
local slow = turnpike.step "slow" {{
  budget_us = 1000000,
  process = function(batch, mask)
    local sum = 0
    for i in batch:each(mask) do for k = 1, 2000 do sum = sum + batch:len(i) * k % 7 end end
    return mask
  end,
}}
turnpike.graph:insert_before("ip4-lookup", slow)
"""
    router = flood(lab, [frame(ipv4("10.0.1.2", "10.0.2.2", datagram))] * 64, config).router
    assert wait_for(lambda: "event-device-full" in reasons(router), 10)
    assert reasons(router) <= {"event-device-full", "tx-full"}
    assert router.show("forwarders")["events"]["full"] > 0
    stop(router)


@pytest.mark.provokes("tx-full")
@pytest.mark.parametrize("driver", DRIVERS)
def test_tx_full(lab, driver):
    # A device that is down accepts nothing. The router would notice, and use another path, before its queue is full:
    # the thread that receives link notifications is held for that time.
    wires = flood(lab, [frame(ipv4("10.0.1.2", "10.0.2.2", pattern(40)))] * 64, driver=driver)

    def full():
        with held_thread(wires.router.process.pid):
            wires.inside.run("ip", "link", "set", "tp-right", "down")
            time.sleep(0.2)
        wires.inside.run("ip", "link", "set", "tp-right", "up")
        return "tx-full" in reasons(wires.router)

    assert wait_for(full, 20)
    # Noticed: the network of the port has no route.
    assert reasons(wires.router) <= {
        "tx-full", "no-route", "unreachable", "neighbour-failed", "refused-errors", "refused-resolve"
    }
    stop(wires.router)


@pytest.mark.provokes("shutdown")
def test_shutdown(lab):
    # Packets that wait for a neighbour at the end are dropped with a reason, not leaked.
    wires = Wires(lab, ports=PORTS, calm=True)
    waiting = 5
    before = wires.router.counters()
    for i in range(waiting):
        packet = ipv4("10.0.1.2", "10.0.2.77", pattern(40), ident=i)
        wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet))
    assert wait_for(lambda: wires.router.show("counters")["in_flight"] == waiting)
    log = wires.router.stop()
    assert f"+ dropped {before['dropped_total'] + waiting}\n" in log


@pytest.mark.parametrize("cores", ["0", "0,1"])
@pytest.mark.parametrize("kind", ["echo", "no-route", "glean", "forward"])
def test_a_flood_of_any_kind_leaves_the_router_working(lab, kind, cores):
    packet = {
        "echo": ipv4("10.0.1.2", "10.0.1.1", icmp(8, 0, bytes(4), pattern(56)), protocol=1),
        "no-route": ipv4("10.0.1.2", "172.16.0.1", pattern(40)),
        "glean": ipv4("10.0.1.2", "10.0.2.99", pattern(40)),
        "forward": ipv4("10.0.1.2", "10.0.2.2", pattern(40)),
    }[kind]
    config = f'turnpike.forwarders {{ cores = "{cores}", shed = false }}\n'
    router = flood(lab, [frame(packet)] * 64, config).router
    assert wait_for(lambda: router.show("counters")["received"] > 100_000, 10)
    stop(router)


# Some hundred microseconds for each packet, so that any sender is faster.
SLOW = """
local sink = 0
turnpike.graph:insert_after("ip4-validate", turnpike.step "slow" {
  budget_us = 1000000,
  process = function(batch, mask)
    for i in batch:each(mask) do
      local x = i
      for n = 1, 60000 do x = (x * 5 + n) % 1000003 end
      sink = sink + x
    end
    return mask
  end,
})
"""


USUAL = ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(20)))
CONTROL = ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(20)), tos=0xC0)
OTHER = ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 7, 9, pattern(20)))
ANSWERED = ipv4("10.0.2.2", "10.0.1.2", udp("10.0.2.2", "10.0.1.2", 9, 7, pattern(20)))

CATEGORY = """
turnpike.filter "in" { { proto = "udp", to_port = 9, category = "nine" } }
turnpike.forwarders { shed = { categories = { "nine" } } }
"""
STATE = """
turnpike.filter "in" { { state = "established", action = "accept" } }
turnpike.forwarders { shed = { keep = { "established" } } }
"""


class Mixture(threading.Thread):
    """Sends as fast as it can until it is stopped: packets of which one is to be kept, then some others, and so on."""

    def __init__(self, wire, kept=CONTROL, others=7):
        super().__init__()
        self.wire, self.stopping, self.sent = wire, threading.Event(), 0
        self.frames = [ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet) for packet in [kept] + [USUAL] * others]

    def run(self):
        while not self.stopping.is_set():
            for frame in self.frames:
                self.wire.send(frame)
            self.sent += len(self.frames)

    def stop(self):
        self.stopping.set()
        self.join()
        return self.sent


@pytest.mark.provokes("shed")
@pytest.mark.parametrize(
    "kept, config",
    [(CONTROL, ""), (OTHER, CATEGORY), (OTHER, STATE)],
    ids=["class", "category", "established"],
)
def test_packets_to_be_kept_survive_what_is_too_much(lab, kept, config):
    filtered = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = { inward = "in" },', 1)
    wires = Wires(lab, SLOW + config, ports=(filtered if config else PORTS) + STATIC_NEIGHBOURS)
    router = wires.router
    wires.right.send(ethernet(RIGHT_MAC, HOST_B_MAC, 0x0800, ANSWERED))
    assert wait_for(lambda: any(ANSWERED[12:20] in frame for frame in wires.left.receive(0.05)))
    capture = Capturing(router, "dropped", "shed", "-c", 1500)
    # So few that no burst has more of them than are kept for their connection or category.
    mixture = Mixture(wires.left, kept, others=127)
    is_kept = lambda frame: (frame[15], frame[34:38]) == (kept[1], kept[20:24])
    mixture.start()
    try:
        capture.process.wait(120)
        wires.right.drain()
        assert wait_for(lambda: any(map(is_kept, wires.right.receive(0.05, longest=1))), 60)
    finally:
        mixture.stop()
    capture.end(None)
    found = [frame for *_, frame in capture.packets()]
    assert len(found) == 1500 and not any(map(is_kept, found))
    router.stop()


def test_shedding_is_switched_while_packets_flow(lab):
    """A device that always has packets: without shedding none is shed, with it some are, and the rate stays."""
    wires = flood(lab, [frame(ipv4("10.0.1.2", "10.0.2.2", pattern(40)))],
                  "turnpike.forwarders { shed = false }")
    router = wires.router
    received = lambda: router.show("counters")["received"]
    begin = received()
    assert wait_for(lambda: received() > begin + 100_000, 30)
    assert "shed" not in reasons(router)
    apply(router, router.config.read_text().replace("shed = false", "shed = { percent = 1 }"))
    assert wait_for(lambda: "shed" in reasons(router), 30)
    stop(router)

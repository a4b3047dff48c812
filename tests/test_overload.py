"""Full queues: more comes than can go, the rest is dropped under its name, the sum closes.

A capture file played in an endless loop is the source: nothing on a test machine sends faster.
"""

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, Wires
from lib.netns import wait_for
from lib.packets import ethernet, icmp, ipv4, pattern, pcap_file, udp

# The address of the first capture-file port, as its driver makes it.
SOURCE_MAC = "02:70:63:61:70:00"


def flood(lab, frames, config=""):
    """A router whose left port receives these frames without end."""
    return Wires(lab, ports=f"""
local turnpike = require "turnpike"
turnpike.port "flood" {{ device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=1", address = "10.0.1.1/24" }}
turnpike.port "left"  {{ device = "tp-left",  address = "10.0.3.1/24" }}
turnpike.port "right" {{ device = "tp-right", address = "10.0.2.1/24" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "10.0.1.2" {{ port = "flood", mac = "{HOST_A_MAC}" }}
""" + config, files={"in.pcap": pcap_file(frames)})


def frame(packet):
    return ethernet(SOURCE_MAC, HOST_A_MAC, 0x0800, packet)


def dropped(router, reason):
    return router.show("counters")["dropped"][reason]


def test_slowpath_full(lab):
    router = flood(lab, [frame(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ttl=1))] * 64).router
    assert wait_for(lambda: dropped(router, "slowpath-full") > 1000, 10)
    assert dropped(router, "ttl-expired") > 0
    router.stop()


def test_the_slow_path_answers_others_while_it_is_flooded(lab):
    wires = flood(lab, [frame(ipv4("10.0.1.2", "10.0.2.2", pattern(40), ttl=1))] * 64)
    # The flood fills the ring; an operator's command must still be answered.
    assert wait_for(lambda: dropped(wires.router, "slowpath-full") > 1000, 10)
    for _ in range(5):
        assert wires.router.show("ports")
    wires.router.stop()


def test_tx_full(lab):
    datagram = udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(1000))
    router = flood(lab, [frame(ipv4("10.0.1.2", "10.0.2.2", datagram))] * 64).router
    assert wait_for(lambda: dropped(router, "tx-full") > 1000, 10)
    router.stop()


def test_handover_full(lab):
    # Two forwarders: the flood is received by one, the port it leaves by belongs to the other.
    datagram = udp("10.0.1.2", "10.0.2.2", 1, 2, pattern(1000))
    frames = [frame(ipv4("10.0.1.2", f"10.0.{to}.2", datagram)) for to in (2, 3)] * 32
    router = flood(lab, frames, f"""
turnpike.neighbour "10.0.3.2" {{ port = "left", mac = "{HOST_A_MAC}" }}
turnpike.forwarders {{ cores = "0,1" }}
""").router
    assert wait_for(lambda: dropped(router, "handover-full") > 1000, 15)
    router.stop()


def test_shutdown_counts_what_was_held(lab):
    # Packets that wait for a neighbour when the end comes are dropped by name, not leaked.
    wires = Wires(lab, ports=PORTS + f"""
turnpike.neighbour "10.0.1.2" {{ port = "left", mac = "{HOST_A_MAC}" }}
""")
    for i in range(5):
        wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.77", pattern(40), ident=i)))
    assert wait_for(lambda: wires.router.neighbour("10.0.2.77"))
    log = wires.router.stop()
    assert "leak" not in log


@pytest.mark.parametrize("kind", ["echo", "no-route", "glean"])
def test_a_flood_of_any_kind_leaves_the_router_working(lab, kind):
    packet = {
        "echo": ipv4("10.0.1.2", "10.0.1.1", icmp(8, 0, bytes(4), pattern(56)), protocol=1),
        "no-route": ipv4("10.0.1.2", "172.16.0.1", pattern(40)),
        "glean": ipv4("10.0.1.2", "10.0.2.99", pattern(40)),
    }[kind]
    wires = flood(lab, [frame(packet)] * 64)
    wait_for(lambda: wires.router.show("counters")["received"] > 100_000, 10)
    assert wires.router.show("counters")["received"] > 100_000
    wires.router.stop()

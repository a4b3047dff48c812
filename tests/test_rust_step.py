"""A router with a step from a crate of its own: examples/rust-step."""

from pathlib import Path

import pytest

from lib.lab import HOST_A_MAC, LEFT_MAC, Wires
from lib.packets import ethernet, ipv4, udp
from lib.router import Change, binary

CONFIG = """
turnpike.graph:insert_after("ip4-validate", "ttl-floor")
turnpike.graph:path("ttl-floor.low", "drop")
"""


def packet(ttl):
    datagram = udp("10.0.1.2", "10.0.2.2", 1000, 2000, b"payload")
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", datagram, ttl=ttl))


@pytest.fixture
def custom(monkeypatch):
    """The tests' router is the example's."""
    monkeypatch.setenv("TURNPIKE", str(Path(binary()).parent / "turnpike-ttl-floor"))


def test_the_step_sorts_packets(lab, custom):
    wires = Wires(lab, CONFIG, calm=True)
    change = Change(wires.router)
    for ttl in (4, 5, 64):
        wires.left.send(packet(ttl))
    assert change(received=3) == {"received": 3, "sent": 2, "dropped": {"by-step": 1}}
    steps = {step["name"]: step["packets"] for step in wires.router.show("steps")["steps"]}
    assert steps["ttl-floor"] == 3

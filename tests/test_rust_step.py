"""A router with a step from a crate of its own: examples/rust-step."""

import subprocess
from pathlib import Path

import pytest

from lib.apply import apply
from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, Wires
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


TWO = """
turnpike.graph:insert_after("ip4-validate", { "ttl-floor", as = "lax", floor = 3 })
turnpike.graph:path("lax.low", "drop")
turnpike.graph:insert_after("lax.ok", { "ttl-floor", as = "strict", floor = FLOOR })
turnpike.graph:path("strict.low", "drop")
"""


def test_instances_have_arguments_and_keep_what_they_know_over_an_apply(lab, custom):
    wires = Wires(lab, TWO.replace("FLOOR", "10"), calm=True)

    def records():
        steps = {step["name"]: step for step in wires.router.show("steps")["steps"]}
        return [steps[name]["counters"]["records"] for name in ("lax", "strict")]

    change = Change(wires.router)
    for ttl in (64, 7, 2):
        wires.left.send(packet(ttl))
    assert change(received=3) == {"received": 3, "sent": 1, "dropped": {"by-step": 2}}
    assert records() == [3, 2]
    assert "lax: records 3\nstrict: records 2" in wires.router.command("show", "steps").stdout
    # Another graph: the step continues in place of the old one, with its state.
    apply(wires.router, wires.router.config.read_text().replace("floor = 10", "floor = 5"))
    assert records() == [3, 2]
    for ttl in (7, 6):
        wires.left.send(packet(ttl))
    assert change(received=5)["sent"] == 3
    assert records() == [3, 3]


def test_an_argument_that_does_not_fit_is_named_with_its_line(tmp_path, custom):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + 'turnpike.graph:insert_after("ip4-validate", { "ttl-floor", flor = 3 })\n')
    line = len(file.read_text().splitlines())
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.strip() == (
        f'{file}:{line}: graph: step "ttl-floor": flor: unknown; did you mean "floor"? known: floor'
    )

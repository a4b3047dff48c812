"""Graphs of the configuration: packets take the configured paths."""

import subprocess

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.packets import ethernet, ipv4, udp
from lib.router import Change, binary


def packet(ttl=64):
    return frame(LEFT_MAC, HOST_A_MAC, "10.0.1.2", "10.0.2.2", ttl)


def frame(to, sender, source, destination, ttl=64):
    datagram = udp(source, destination, 1000, 2000, b"payload")
    return ethernet(to, sender, 0x0800, ipv4(source, destination, datagram, ttl=ttl))


def test_the_default_graph_is_shown_as_lua_and_runs_as_a_configuration(lab, tmp_path):
    shown = subprocess.run([binary(), "show", "graph", "--lua"], capture_output=True, text=True, check=True)
    # Removing its last use proves that this text is in use.
    text = shown.stdout.replace('"ip4-checksum-offload",', "")
    wires = Wires(lab, text.replace('local turnpike = require "turnpike"', ""), calm=True)
    steps = [step["name"] for step in wires.router.show("graph")["steps"]]
    assert "ip4-lookup" in steps and "ip4-checksum-offload" not in steps
    wires.left.send(packet())
    assert wires.right.receive(1.0)


@pytest.mark.provokes("by-step")
def test_an_output_leads_to_drop(lab):
    wires = Wires(lab, 'turnpike.graph:path("ip4-rewrite", "drop")', calm=True)
    change = Change(wires.router)
    wires.left.send(packet())
    assert change(received=1) == {"received": 1, "dropped": {"by-step": 1}}


def test_a_port_has_a_graph_of_its_own(lab):
    config = """
local left = turnpike.graph:on_port "left"
left:path("ip4-rewrite", "drop")
"""
    wires = Wires(lab, config, calm=True)
    change = Change(wires.router)
    wires.left.send(packet())
    assert change(received=1) == {"received": 1, "dropped": {"by-step": 1}}
    wires.right.send(frame(RIGHT_MAC, HOST_B_MAC, "10.0.2.2", "10.0.1.2"))
    assert change(received=2)["sent"] == 1
    steps = [step["name"] for step in wires.router.show("graph")["steps"]]
    assert steps[0] == "by-port" and "left:ip4-lookup" in steps and "ip4-lookup" in steps


def test_a_graph_that_cannot_work_is_refused_with_its_line(tmp_path):
    file = tmp_path / "router.lua"
    file.write_text(PORTS + STATIC_NEIGHBOURS + '\nturnpike.graph:remove("ip4-multicast")\n'
                    'turnpike.graph:remove("ip4-lookup")\n')
    line = file.read_text().splitlines().index('turnpike.graph:remove("ip4-lookup")') + 1
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.strip() == (
        f'{file}:{line}: graph: "ip4-mtu" requires routed valid IPv4 packets, '
        'but "ip4-ttl.ok" provides valid IPv4 packets'
    )

"""Bad input: a clear error before any packet moves, and nothing left behind."""

import gzip
import re
import subprocess
import time
from pathlib import Path

import pytest

from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Wires
from lib.netns import veth
from lib.packets import ethernet, icmp, ipv4
from lib.router import binary

# Name: (configuration, line of the error or None, text of the error). The first line of PORTS is empty, so that
# `require` is on line 2, the ports on 3 and 4, and the rest on 5.
BAD = {
    "an unknown device": (
        'local turnpike = require "turnpike"\n'
        'turnpike.port "lan" { device = "eth9", address = "10.0.9.1/24" }\n',
        2, ['port "lan"', "eth9", "not found", "tp-left, tp-right"],
    ),
    "a device that is nearly there": (
        'local turnpike = require "turnpike"\n'
        'turnpike.port "lan" { device = "tp-lef", address = "10.0.9.1/24" }\n',
        2, ["tp-lef", "not found", 'did you mean "tp-left"'],
    ),
    "overlapping addresses": (
        'local turnpike = require "turnpike"\n'
        'turnpike.port "left" { device = "tp-left", address = "10.0.1.1/24" }\n'
        'turnpike.port "right" { device = "tp-right", address = "10.0.1.129/25" }\n',
        3, ["10.0.1.129/25", "overlaps", "10.0.1.1/24", 'port "left"', "line 2"],
    ),
    "overlapping IPv6 addresses": (
        'local turnpike = require "turnpike"\n'
        'turnpike.port "left" { device = "tp-left", address = "fd00:1::1/48" }\n'
        'turnpike.port "right" { device = "tp-right", address = "fd00:1:0:2::1/64" }\n',
        3, ["overlaps", 'port "left"'],
    ),
    "one device twice": (
        'local turnpike = require "turnpike"\n'
        'turnpike.port "left" { device = "tp-left", address = "10.0.1.1/24" }\n'
        'turnpike.port "right" { device = "tp-left", address = "10.0.2.1/24" }\n',
        3, ["tp-left", "taken", 'port "left"'],
    ),
    "an unreachable next hop": (
        PORTS + 'turnpike.route "198.51.100.0/24" { via = "10.9.9.9" }\n',
        5, ["198.51.100.0/24", "10.9.9.9"],
    ),
    "a next hop that is the router itself": (
        PORTS + 'turnpike.route "198.51.100.0/24" { via = "10.0.2.1" }\n',
        5, ["198.51.100.0/24", "10.0.2.1"],
    ),
    "gateways in a circle": (
        PORTS + 'turnpike.route "10.8.0.0/16" { via = "10.9.0.1" }\n'
        'turnpike.route "10.9.0.0/16" { via = "10.8.0.1" }\n',
        5, ["10.8.0.0/16", "10.9.0.1", "circle"],
    ),
    "host bits in a prefix": (
        PORTS + 'turnpike.route "198.51.100.7/24" { via = "10.0.2.2" }\n',
        5, ["198.51.100.7/24", "198.51.100.0/24"],
    ),
    "a core that does not exist": (
        PORTS + 'turnpike.forwarders { cores = "999" }\n', 5, ["core 999", "does not exist", "0"],
    ),
    "an unknown key": (
        PORTS + 'turnpike.route "198.51.100.0/24" { vai = "10.0.2.2" }\n',
        5, ["vai", "unknown", 'did you mean "via"'],
    ),
    "an unknown statement": (
        PORTS + 'turnpike.rout "198.51.100.0/24" { via = "10.0.2.2" }\n',
        5, ["turnpike.rout", "unknown", 'did you mean "route"'],
    ),
    "a value of the wrong type": (
        PORTS + 'turnpike.slowpath { queue = "many" }\n', 5, ["queue", "number", "many"],
    ),
    "a neighbour on no network": (
        PORTS + 'turnpike.neighbour "10.9.9.9" { port = "right", mac = "02:00:00:00:00:09" }\n',
        5, ["10.9.9.9"],
    ),
    "a multicast MAC": (
        PORTS + 'turnpike.neighbour "10.0.2.9" { port = "right", mac = "03:00:00:00:00:09" }\n',
        5, ["03:00:00:00:00:09"],
    ),
    "a port that was not named": (
        PORTS + 'turnpike.neighbour "10.0.2.9" { port = "rihgt", mac = "02:00:00:00:00:09" }\n',
        5, ["rihgt", "right"],
    ),
    "a Lua syntax error": (
        PORTS + 'turnpike.route "198.51.100.0/24" { via = \n', None, ["unexpected symbol"],
    ),
    "a Lua error": (PORTS + "error('stop here')\n", 5, ["stop here"]),
    "a script that wants to run commands": (
        PORTS + 'os.execute("touch /tmp/turnpike-was-here")\n', 5, ["os"],
    ),
    "a script that wants to read files": (PORTS + 'io.open("/etc/passwd")\n', 5, ["io"]),
    "no ports": ('local turnpike = require "turnpike"\n', None, ["no port", "turnpike.port"]),
    "a table that is not there": (
        PORTS + 'turnpike.import { file = "nothing.gz", via = "10.0.2.2" }\n',
        5, ["nothing.gz", "No such file"],
    ),
    "a broken gzip file": (
        PORTS + 'turnpike.import { file = "broken.gz", via = "10.0.2.2" }\n', 5, ["broken.gz"],
    ),
    "a table that is none": (
        PORTS + 'turnpike.import { file = "noise.dat", via = "10.0.2.2" }\n', 5, ["noise.dat"],
    ),
}

FILES = {
    # A gzip header, and then invalid data.
    "broken.gz": bytes.fromhex("1f8b0800000000000003") + b"this is no deflate stream" * 10,
    "noise.dat": bytes((i * 89 + i // 7) & 0xFF for i in range(5000)),
}


class Bench:
    """A namespace with the two devices, and no router yet."""

    def __init__(self, lab):
        self.inside = lab.namespace("router", quiet=True)
        self.ns_left = lab.namespace("left", quiet=True)
        self.ns_right = lab.namespace("right", quiet=True)
        veth(self.inside, "tp-left", self.ns_left, "wire", LEFT_MAC, HOST_A_MAC)
        veth(self.inside, "tp-right", self.ns_right, "wire", RIGHT_MAC)
        self.left = lab.raw(self.ns_left, "wire")
        self.right = lab.raw(self.ns_right, "wire")
        self.links = self.inside.link_settings()

    def assert_untouched(self):
        """Checks that no program and no socket is left on the devices, and that their settings are unchanged."""
        assert self.inside.link_settings() == self.links


@pytest.fixture(scope="module")
def bench(module_lab):
    return Bench(module_lab)


def refusal(router, seconds=20):
    """Waits for a router that must end by itself, with an error and without a crash; returns its log."""
    try:
        code = router.process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    log = router.log()
    assert code is not None and 0 < code < 100, f"exit {code}:\n{log}"
    assert "panicked" not in log and not router.is_ready(), log
    return log


def check(bench, directory, config):
    """Runs `turnpike check` on a configuration."""
    file = directory / "router.lua"
    file.write_text(config)
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    return bench.inside.run(binary(), "check", file, check=False)


@pytest.mark.parametrize("name", BAD)
def test_bad_configuration(bench, lab, name):
    config, line, says = BAD[name]
    bench.left.drain()
    bench.right.drain()
    router = lab.router(bench.inside, config, files=FILES, wait=False)
    log = refusal(router)
    place = "router.lua:" + (f"{line}:" if line else "")
    assert any(place in text for text in log.splitlines()), f"no {place} in:\n{log}"
    for word in says:
        assert word in log, f"no {word!r} in:\n{log}"
    # No packet moved, and nothing is left.
    assert bench.left.receive(0.05) == [] and bench.right.receive(0.05) == []
    assert not router.socket.exists()
    bench.assert_untouched()


@pytest.mark.parametrize("name", BAD)
def test_check_finds_it_too(bench, tmp_path, name):
    config, _, says = BAD[name]
    done = check(bench, tmp_path, config)
    assert 0 < done.returncode < 100, done.stdout
    for word in says:
        assert word in done.stdout, f"no {word!r} in:\n{done.stdout}"


def test_all_mistakes_are_reported_at_once(bench, lab):
    router = lab.router(bench.inside, PORTS + (
        'turnpike.route "198.51.100.0/24" { vai = "10.0.2.2" }\n'
        'turnpike.neighbour "10.0.2.9" { port = "rihgt", mac = "02:00:00:00:00:09" }\n'
        'turnpike.forwarders { cores = "x" }\n'
    ), wait=False)
    log = refusal(router)
    for line in (5, 6, 7):
        assert f"router.lua:{line}:" in log, log


def test_check_says_that_a_good_configuration_is_good(bench, tmp_path):
    done = check(bench, tmp_path, PORTS)
    assert done.returncode == 0, done.stdout
    bench.assert_untouched()


def test_a_missing_configuration_file(bench):
    for command in ("run", "check"):
        done = bench.inside.run(binary(), command, "/nonexistent/router.lua", check=False)
        assert done.returncode != 0 and "/nonexistent/router.lua" in done.stdout


def test_a_second_instance_on_the_same_socket(lab):
    wires = Wires(lab)
    first = wires.router
    # Other devices, so that the socket is the only conflict.
    inside, outside = lab.namespace("second", quiet=True), lab.namespace("wire", quiet=True)
    veth(inside, "tp-left", outside, "wire")
    second = lab.router(inside, (
        'local turnpike = require "turnpike"\n'
        'turnpike.port "left" { device = "tp-left", address = "10.0.1.1/24" }\n'
    ), socket=first.socket, wait=False)
    assert str(first.socket) in refusal(second)
    assert "xdp" not in inside.links()
    # The first one was not affected.
    ping(wires)
    first.stop()


def test_a_second_instance_on_the_same_devices(lab):
    wires = Wires(lab)
    second = lab.router(wires.inside, PORTS, wait=False)
    assert "tp-left" in refusal(second)
    # The first one continues.
    ping(wires)
    wires.router.stop()


def test_a_socket_that_was_left_behind_is_replaced(lab):
    wires = Wires(lab)
    wires.router.process.kill()
    wires.router.process.wait()
    assert wires.router.socket.exists()
    again = lab.router(wires.inside, PORTS, socket=wires.router.socket)
    assert again.show("ports")
    again.stop()


def test_a_socket_in_a_directory_that_is_not_there(bench, lab):
    router = lab.router(bench.inside, PORTS, socket="/nonexistent/router.sock", wait=False)
    assert "/nonexistent/router.sock" in refusal(router)
    bench.assert_untouched()


def test_a_file_in_the_socket_s_place_is_not_removed(bench, lab, tmp_path):
    place = tmp_path / "precious"
    place.write_text("do not delete")
    router = lab.router(bench.inside, PORTS, socket=place, wait=False)
    assert str(place) in refusal(router) and place.read_text() == "do not delete"


def ping(wires):
    """The router answers an echo request on the left wire."""
    wires.left.drain()
    wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(
        "10.0.1.2", "10.0.1.1", icmp(8, 0, b"abcd", b"hello"), protocol=1)))
    assert wires.left.expect(1, lambda f: f[34:35] == b"\0")


# --- good ones -------------------------------------------------------------------------------------


def test_the_documented_configuration_works_as_it_stands(lab):
    table = gzip.compress(b"8.8.8.0/24\t15169\n1.1.1.0/24\t13335\n")
    wires = Wires(lab, ports='''
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = { "10.0.1.1/24", "fd00:1::1/64" } }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.route "203.0.113.0/24" { via = { "10.0.1.2", "10.0.2.2" } }   -- equal-cost paths
turnpike.neighbour "10.0.2.9" { port = "right", mac = "02:00:00:00:00:09" }
turnpike.import { file = "table.dat.gz", via = { "10.0.1.2", "10.0.2.2" } }  -- a whole table, spread by origin AS
turnpike.forwarders { cores = "1" }
''', files={"table.dat.gz": table})
    ping(wires)
    assert wires.router.show("route", "8.8.8.8")["prefix"] == "8.8.8.0/24"
    assert len(wires.router.show("route", "203.0.113.1")["paths"]) == 2
    wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.9", b"x" * 30)))
    assert wires.right.expect(1, lambda f: f[:6] == bytes.fromhex("020000000009"))
    wires.router.stop()


def test_a_script_may_compute(lab):
    wires = Wires(lab, '''
for i = 0, 99 do
  turnpike.route(string.format("198.18.%d.0/24", i)) { via = "10.0.2." .. (2 + i % 2) }
end
''')
    routes = {r["prefix"] for r in wires.router.show("routes")}
    assert {f"198.18.{i}.0/24" for i in range(100)} <= routes
    assert wires.router.show("route", "198.18.7.1")["paths"][0]["via"] == "10.0.2.3"
    wires.router.stop()


def test_the_chosen_core_is_used(lab):
    wires = Wires(lab, 'turnpike.forwarders { cores = "0" }\n')
    pid = wires.router.process.pid
    pinned = {
        (task / "comm").read_text().strip()
        for task in Path(f"/proc/{pid}/task").iterdir()
        if re.search(r"^Cpus_allowed_list:\s*0$", (task / "status").read_text(), re.M)
    }
    assert pinned == {"forwarder-0"}
    wires.router.stop()


def test_start_is_quick(lab):
    began = time.monotonic()
    Wires(lab).router.stop()
    assert time.monotonic() - began < 15

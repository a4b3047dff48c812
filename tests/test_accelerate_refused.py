"""Bad input to `turnpike accelerate`: a message that names the way out, and the interfaces as before."""

import re
import subprocess
import tempfile

import pytest

from lib.accelerate import Box
from lib.netns import veth
from lib.router import binary

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = pytest.mark.xdist_group("accelerate")


def refused(box, *argv, prefix=()):
    """The message of a start that is refused, the interfaces as before."""
    before, sysctls = box.space.link_settings(), box.space.settings()
    with tempfile.TemporaryDirectory(prefix="turnpike-test-") as directory:
        done = box.space.run(
            *prefix, binary(), "accelerate", *argv, "--socket", f"{directory}/router.sock", check=False)
    assert done.returncode == 1 or (done.returncode == 2 and "usage" in done.stdout.lower()), done.stdout
    assert box.space.link_settings() == before and box.space.settings() == sysctls
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@pytest.fixture(scope="module")
def idle(module_lab):
    return Box(module_lab)


def test_an_unknown_interface(idle):
    message = refused(idle, "eth0", "eth9")
    assert 'device eth9 not found' in message and "eth0, eth1, eth2, lo" in message


def test_the_loopback_and_other_interfaces_without_ethernet(idle):
    assert "lo cannot be accelerated: it has no Ethernet frames" in refused(idle, "eth0", "lo")


def test_a_bridge_and_its_port(idle):
    idle.ip("link", "add", "br7", "type", "bridge")
    idle.ip("link", "add", "bp7", "type", "veth", "peer", "name", "bq7")
    idle.ip("link", "set", "bp7", "master", "br7", "up")
    message = refused(idle, "eth0", "br7", "bp7")
    assert "br7 cannot be accelerated: it is a bridge device" in message
    assert "bp7 cannot be accelerated: it belongs to bridge br7" in message


def test_an_interface_that_is_down(idle):
    idle.ip("link", "add", "dn7", "type", "veth", "peer", "name", "dn8")
    assert "it is down; set it up: ip link set dn7 up" in refused(idle, "eth0", "dn7")


def test_an_interface_of_another_namespace(idle):
    message = refused(idle, "eth0", "eth1@if2")
    assert "eth1@if2" in message


def test_no_interface_or_one_twice(idle):
    assert "INTERFACE" in refused(idle)
    assert '"eth0" is given twice' in refused(idle, "eth0", "eth0")
    assert "cannot be used with" in refused(idle, "--all", "eth0")


def test_an_xdp_program_of_somebody_else(lab, tmp_path):
    box = Box(lab)
    source, program = tmp_path / "pass.c", tmp_path / "pass.o"
    source.write_text('__attribute__((section("xdp"), used)) int pass(void *context) { return 2; }\n'
                      'char licence[] __attribute__((section("license"), used)) = "GPL";\n')
    subprocess.run(["clang", "-target", "bpf", "-O2", "-c", source, "-o", program], check=True)
    box.ip("link", "set", "eth1", "xdpdrv", "obj", program, "sec", "xdp")
    message = refused(box, "eth0", "eth1")
    assert re.search(r'eth1 has an XDP program already: number \d+ "pass", native', message), message
    assert "ip link set dev eth1 xdp off" in message
    assert "xdp" in box.ip("link", "show", "eth1").stdout and "xdp" not in box.ip("link", "show", "eth0").stdout


def test_an_mtu_above_what_xdp_takes(lab):
    box = Box(lab)
    for space, name in ((box.space, "eth1"), (box.b, "eth0")):
        space.run("ip", "link", "set", name, "mtu", "9000")
    message = refused(box, "eth0", "eth1")
    assert 'port "eth1"' in message and "MTU 9000" in message


def test_a_user_without_the_capabilities(idle):
    message = refused(idle, "eth0", "eth1", prefix=["setpriv", "--bounding-set", "-bpf,-sys_admin,-net_admin", "--inh-caps",
                                                   "-bpf,-sys_admin,-net_admin"])
    assert "CAP_BPF" in message or "permitted" in message.lower(), message


def test_status_and_stop_where_nothing_is_accelerated(lab):
    space = lab.namespace("other")
    veth(space, "tp-left", lab.namespace("left"), "eth0")
    router = lab.router(space, 'require "turnpike".port "left" { device = "tp-left", address = "10.0.1.1/24" }\n')
    assert "no interface is accelerated" in router.command("accelerate", "--status").stdout
    stopped = router.command("accelerate", "--stop", check=False)
    assert stopped.returncode == 1 and "accelerates no interface" in stopped.stderr
    assert router.process.poll() is None
    router.stop()
    absent = router.command("accelerate", "--status", check=False)
    assert absent.returncode == 1 and str(router.socket) in absent.stderr


@pytest.mark.parametrize("settings, words", [
    ('turnpike.accelerate { }', "names no interface"),
    ('turnpike.accelerate { 7 }', "expected an interface's name"),
    ('turnpike.accelerate { "a" } turnpike.accelerate { "b" }', "accelerate"),
    ('turnpike.port "x" { device = "eth0", accelerate = true }', 'turnpike.port "eth0"'),
    ('turnpike.port "x" { device = "net_null0", accelerate = true }', "no kernel interface"),
    ('turnpike.port "eth0" { device = "eth0", accelerate = true, address = "10.0.1.1/24" }', "leave it out"),
    ('turnpike.accelerate { "a" } turnpike.slowpath { workers = 2 }', "workers 2"),
    ('turnpike.accelerate { "a" } turnpike.vlan "v" { parent = "a", id = 7 }', "VLAN devices that the kernel has on it"),
    ('turnpike.accelerate { "a", "b" } turnpike.bond "l" { ports = { "a", "b" } }', "stay with the kernel"),
])
def test_settings_that_contradict_acceleration(tmp_path, settings, words):
    file = tmp_path / "router.lua"
    file.write_text(f'local turnpike = require "turnpike"\n{settings}\n')
    done = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True)
    assert done.returncode == 1 and words in done.stderr, done.stderr

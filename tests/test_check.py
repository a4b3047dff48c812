"""`check` detects the errors that `run` would meet, and both report them in the same words."""

import os
import re

import pytest

from lib.lab import PLAIN_PORTS, PORTS, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import wait_for
from lib.router import binary

PORT = 'local turnpike = require "turnpike"\nturnpike.port "left" { device = "tp-left", %s }\n'


def check(namespace, file, *options):
    """`turnpike check`: its exit status and its output."""
    done = namespace.run(binary(), "check", file, *options, check=False)
    return done.returncode, done.stdout


def both(lab, namespace, text, expected):
    """`check` and `run` refuse a configuration with these words."""
    router = lab.router(namespace, text, wait=False)
    assert router.process.wait(30) == 1, router.log()
    status, said = check(namespace, router.config)
    assert status == 1 and re.search(expected, said), said
    assert re.search(expected, router.log()), router.log()
    assert "panicked" not in said + router.log()


@pytest.fixture(scope="module")
def inside(module_lab):
    """A namespace with the interfaces of a router, which does not run."""
    return Wires(module_lab, start=False).inside


@pytest.mark.parametrize("settings, expected", [
    ('host = { netns = "tp-nowhere" }', 'port "left": host: network namespace "tp-nowhere" not found; known: .*make it'),
    ('}\nturnpike.port "x" { device = "net_tup0,iface=a"', r'port "x": device net_tup0: DPDK has no driver net_tup; .*net_tap'),
    ('}\nturnpike.port "x" { device = "0000:ff:1f.7"', r'port "x": PCI device 0000:ff:1f.7 not found'),
    ('}\nturnpike.telnet { users = "no-one"', 'telnet: users: user "no-one" unknown'),
    ('}\nturnpike.memory { mbufs = 16777216, no_huge = true', r"packet memory: 4\d{4} MB are needed for turnpike.memory { mbufs = 16777216 }"),
])
def test_what_is_not_there(lab, inside, settings, expected):
    both(lab, inside, PORT % settings, expected)


def test_a_quarantine_directory_of_others(lab, inside, tmp_path):
    text = PORT % f'}}\nturnpike.quarantine {{ directory = "{tmp_path}/q"'
    (tmp_path / "q").mkdir(mode=0o700)
    os.chown(tmp_path / "q", 65534, 65534)
    both(lab, inside, text, r"quarantine directory .*/q: belongs to uid 65534; remove it, or choose another")
    os.chown(tmp_path / "q", 0, 0)
    (tmp_path / "q").chmod(0o1777)
    both(lab, inside, text, r"quarantine directory .*/q: other users may write to it; chmod 700 it")
    (tmp_path / "q").rmdir()
    (tmp_path / "q").write_text("")
    both(lab, inside, text, r"quarantine directory .*/q: no directory")
    (tmp_path / "q").unlink()
    (tmp_path / "router.lua").write_text(text)
    assert check(inside, tmp_path / "router.lua")[0] == 0
    assert not (tmp_path / "q").exists(), "check makes nothing"


# --- interfaces that the machine itself needs ------------------------------------------------------


def test_an_interface_in_use_is_not_taken_over_by_mistake(lab, tmp_path):
    hosts = Hosts(lab, start=False)
    inside = hosts.inside
    # The kernel's own link-local address exists already, and does not count.
    assert wait_for(lambda: "inet6 fe80" in inside.run("ip", "address", "show", "dev", "tp-left").stdout, 10)
    status, said = check(inside, write(tmp_path, PORTS))
    assert status == 0 and "warning" not in said, said
    inside.run("ip", "address", "add", "10.0.1.77/24", "dev", "tp-left")
    inside.run("ip", "route", "add", "default", "via", "10.0.1.2")
    expected = (
        r'port "left": device tp-left carries the default route over tp-left, 10\.0\.1\.77/24 on tp-left: lost to the '
        r"machine until the router ends; take it away \(ip address flush dev tp-left, ip route\), or write take_over = true")
    both(lab, inside, PORTS, expected)
    # Nothing has been changed.
    assert answers(hosts)

    text = PORTS.replace('device = "tp-left",', 'device = "tp-left", take_over = true,')
    status, said = check(inside, write(tmp_path, text))
    assert status == 0 and 'warning: port "left": device tp-left carries the default route' in said, said
    router = lab.router(inside, text)
    assert 'port "left": device tp-left carries the default route' in router.log()
    router.stop()
    # All of it is restored.
    assert wait_for(lambda: answers(hosts), 10)
    assert "default via 10.0.1.2" in inside.run("ip", "route").stdout


def test_a_port_that_is_added_does_not_take_over_by_mistake(lab):
    wires = Wires(lab, ports=PORT % 'address = "10.0.1.1/24"')
    wires.inside.run("ip", "address", "add", "10.0.2.77/24", "dev", "tp-right")
    file = wires.router.directory / "new.lua"
    file.write_text(PLAIN_PORTS)
    done = wires.router.command("apply", file, check=False)
    assert done.returncode == 1 and 'port "right": device tp-right carries 10.0.2.77/24 on tp-right' in done.stderr
    file.write_text(PLAIN_PORTS.replace('device = "tp-right",', 'device = "tp-right", take_over = true,'))
    wires.router.command("apply", file)
    assert [port["name"] for port in wires.router.show("ports")] == ["left", "right"]
    wires.router.stop()


def write(directory, text):
    """A configuration in a file, for `check`."""
    file = directory / "router.lua"
    file.write_text(text)
    return file


def answers(hosts):
    """Returns true if the router's kernel answers the left host."""
    return hosts.left.run("ping", "-c", "1", "-W", "1", "10.0.1.77", check=False).returncode == 0


# --- gateways behind the default route -------------------------------------------------------------

DEFAULT = 'turnpike.route "0.0.0.0/0" { via = "10.0.2.2" }\n'
DOUBTED = 'turnpike.route "198.51.100.0/24" { via = "172.16.0.1" }\n'
DOUBT = 'route "198.51.100.0/24": via "172.16.0.1" is on no port\'s network, and only the default route leads there'


def test_a_gateway_behind_the_default_route_is_said_at_once(lab):
    wires = Wires(lab, DEFAULT + DOUBTED)
    assert DOUBT in wires.router.log()
    status, said = check(wires.inside, wires.router.config)
    assert f"warning: {wires.router.config}:" in said and DOUBT in said
    add = wires.router.command("route", "add", "203.0.113.0/24", "via", "172.16.9.9").stdout
    assert add == "route 203.0.113.0/24: added; reached by the default route only: gateway 172.16.9.9\n"
    add = wires.router.command("route", "add", "192.0.2.0/24", "via", "10.0.2.2").stdout
    assert add == "route 192.0.2.0/24: added\n"
    wires.router.stop()


def test_a_gateway_that_cannot_be_reached_is_said_at_once(lab):
    wires = Wires(lab)
    add = wires.router.command("route", "add", "203.0.113.0/24", "via", "172.16.9.9").stdout
    assert add == "route 203.0.113.0/24: added; not used: no route leads to its gateway (gateway-unreachable)\n"
    wires.router.command("route", "add", "172.16.0.0/12", "via", "10.0.2.2")
    assert wires.router.show("route", "203.0.113.1")["prefix"] == "203.0.113.0/24"
    wires.router.stop()


def test_default_routes_lead_to_no_gateway_if_the_configuration_says_so(lab):
    strict = "turnpike.forwarding { resolve_via_default = false }\n"
    wires = Wires(lab, DEFAULT + strict)
    add = wires.router.command("route", "add", "203.0.113.0/24", "via", "172.16.9.9").stdout
    assert add.endswith("added; not used: no route leads to its gateway (gateway-unreachable)\n")
    assert wires.router.show("route", "203.0.113.1")["prefix"] == "0.0.0.0/0"
    wires.router.stop()
    both(lab, wires.inside, PORTS + STATIC_NEIGHBOURS + DEFAULT + DOUBTED + strict, 'via "172.16.0.1" is unreachable')


# --- policies --------------------------------------------------------------------------------------


def test_the_failure_policy_of_each_step_is_in_the_log(lab):
    steps = """
local function pass(batch, mask) return mask end
for name, policy in pairs { open = "bypass", closed = "drop" } do
  turnpike.graph:insert_after("ip4-validate", turnpike.step(name) { process = pass, on_failure = policy, limit = 7 })
end
"""
    router = Wires(lab, steps).router
    assert re.search(r'step "open": .*disabled after 7 failures, and fails open: all pass it by "', router.log())
    assert re.search(r'step "closed": .*disabled after 7 failures, and fails closed: all are dropped', router.log())
    router.stop()

"""`turnpike drain` and `undrain`: a router leaves its network without loss, and returns."""

import json
import subprocess
import time

import pytest

from lib.fabric import Stream, running, wait_for
from lib.frr import Frr
from lib.kernel import forwarder
from lib.router import binary

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = [pytest.mark.skipif(forwarder() != "turnpike", reason="it is a command of Turnpike"), pytest.mark.xdist_group("fabric")]

QUICK = ("--quiet", "1s", "--timeout", "40s")


@pytest.fixture(scope="module")
def fabric():
    """Two leaves and two spines; the servers have a link to both leaves, the hosts to one."""
    fabric = running(2, 2)
    yield fabric
    fabric.close()


def turnpike(*words, timeout=120):
    """Runs a command of Turnpike; returns it completed."""
    return subprocess.run([binary(), *map(str, words)], capture_output=True, text=True, timeout=timeout)


def of(router, *words):
    """Runs a command for a router of the fabric."""
    return turnpike(*words, "--socket", router.socket, "--pathspace", router.space.name)


def drained_without_loss(fabric, name, pairs):
    """Drains a router, restarts its Turnpike and returns it, under traffic; returns what the streams lost."""
    router = fabric.nodes[name]
    streams = [Stream(fabric, *pair, rate=500) for pair in pairs]
    time.sleep(0.5)
    done = of(router, "drain", *QUICK, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["state"] == "drained"
    at_rest = router.show("counters")["received"], router.show("counters")["to_host"]
    router.restart()
    done = of(router, "undrain", *QUICK)
    assert done.returncode == 0 and "undrained" in done.stdout, done.stdout + done.stderr
    fabric.converged()
    time.sleep(0.5)
    accounts = [stream.stop() for stream in streams]
    assert all(account.sent > 1000 and account.twice == 0 for account in accounts), vars(accounts[0])
    assert at_rest[0] > 0
    return [account.lost for account in accounts]


def test_a_spine_is_drained_restarted_and_returned_without_loss(fabric):
    pairs = [("host1", "host2"), ("server1", "server2")]
    before = fabric.nodes["spine1"].show("counters")["sent"]
    assert drained_without_loss(fabric, "spine1", pairs) == [[], []]
    # It had, and has again, a part of the traffic.
    assert before > 0
    stream = Stream(fabric, "host1", "host2", rate=500)
    restarted = fabric.nodes["spine1"].show("counters")["sent"]
    assert wait_for(lambda: fabric.nodes["spine1"].show("counters")["sent"] > restarted + 300, 20)
    assert stream.stop().lost == []


def test_a_leaf_is_drained_restarted_and_returned_without_loss_of_dual_homed_servers(fabric):
    assert drained_without_loss(fabric, "leaf1", [("server1", "server2")]) == [[]]


def test_traffic_that_has_no_other_way_is_not_cut_off(fabric):
    leaf = fabric.nodes["leaf1"]
    stream = Stream(fabric, "host1", "host2", rate=500)
    done = of(leaf, "drain", "--quiet", "1s", "--timeout", "4s")
    assert done.returncode == 1
    assert "traffic has not left: " in done.stderr and "--below is 10" in done.stderr, done.stderr
    assert "undrain takes that back" in done.stderr
    # It is announced as a last resort, and still there.
    assert "bgp graceful-shutdown" in leaf.vtysh("show running-config")
    assert "bgp shutdown" not in leaf.vtysh("show running-config")
    done = of(leaf, "undrain", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "graceful-shutdown" not in leaf.vtysh("show running-config")
    assert stream.stop().lost == []


def test_undrain_names_the_sessions_that_are_down(fabric):
    spine, leaf = fabric.nodes["spine2"], fabric.nodes["leaf2"]
    leaf.vtysh("configure terminal", "router bgp 64602", "neighbor spine2 shutdown")
    try:
        assert wait_for(lambda: spine.sessions()[0] == 1, 20)
        done = of(spine, "undrain", "--quiet", "1s", "--timeout", "2s")
        assert done.returncode == 1
        assert "sessions are down after 2 s: leaf2 (" in done.stderr and "--force" in done.stderr, done.stderr
        assert of(spine, "undrain", "--quiet", "1s", "--timeout", "2s", "--force").returncode == 0
    finally:
        leaf.vtysh("configure terminal", "router bgp 64602", "no neighbor spine2 shutdown")
        fabric.converged()


def test_errors_name_the_thing_and_the_way_out(fabric):
    spine = fabric.nodes["spine1"]

    def error(*words, socket=spine.socket):
        done = turnpike("drain", *words, "--socket", socket)
        assert done.returncode in (1, 2), done
        return done.stderr

    assert "/nonexistent.sock" in error(socket="/nonexistent.sock")
    said = error("--vtysh", "/nonexistent/vtysh")
    assert "/nonexistent/vtysh cannot be run" in said and "--with PROGRAM" in said, said
    said = error("--pathspace", "no-such-space")
    assert "vtysh -N no-such-space" in said, said
    assert "expected letters" in error("--pathspace", "../etc")
    assert "expected a time from 1s" in error("--timeout", "0")
    assert "--quiet 5s: must be shorter than --timeout 5s" in error("--timeout", "5s", "--quiet", "5s")
    assert "cannot be used with" in error("--with", "/bin/true", "--pathspace", "x")
    said = error("--with", "/bin/false")
    assert "/bin/false announce: exit status: 1" in said, said
    # None of this has touched the routes.
    assert "graceful-shutdown" not in spine.vtysh("show running-config")


def test_an_frr_without_bgp_is_no_success(fabric, lab, tmp_path):
    frr = Frr(lab.namespace("alone"), {})
    lab._made.callback(frr.close)
    vtysh = tmp_path / "vtysh"
    vtysh.write_text(f'#!/bin/sh\nexec vtysh --vty_socket {frr.directory} "$@"\n')
    vtysh.chmod(0o755)
    done = turnpike("drain", "--vtysh", vtysh, "--socket", fabric.nodes["spine1"].socket)
    assert done.returncode == 1 and "FRR has no BGP" in done.stderr and "--with" in done.stderr, done.stderr


def test_another_daemon_is_drained_by_a_program(fabric, tmp_path):
    calls, program = tmp_path / "calls", tmp_path / "a program; touch x"
    program.write_text(f'#!/bin/sh\necho "$#:$*" >> {calls}\n')
    program.chmod(0o755)
    spine = fabric.nodes["spine1"]
    for command in ("drain", "undrain"):
        done = turnpike(command, "--with", program, *QUICK, "--socket", spine.socket)
        assert done.returncode == 0, done.stderr
    assert calls.read_text().split() == ["1:announce", "1:withdraw", "1:restore", "1:finish"]
    assert "graceful-shutdown" not in spine.vtysh("show running-config")

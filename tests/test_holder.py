"""Host interfaces keep their carrier while a router is killed and started again, without a service manager: a process
of the router's holds them (`turnpike hold`)."""

import os
import re
import signal
import subprocess

import pytest

from lib import tables
from lib.bgp import announced
from lib.kernel import Machine, forwarder, host
from lib.netns import wait_for
from lib.router import binary
from lib.traffic import gets_through

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="the kernel does not restart")


def two_hosts(lab, **options):
    """A machine between two hosts, not started."""
    machine = Machine(lab, "router", **options)
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", gateway=True)
    return machine, left, right


def has_carrier(machine, interface="right"):
    return "LOWER_UP" in machine.run("ip", "link", "show", interface).stdout


def is_gone(process):
    """Returns true if it has ended, whether or not its parent has waited for it."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def changes_of(machine):
    """The kernel's notifications about links, routes and nexthop objects from now on."""
    return machine.space.spawn(
        "ip", "monitor", "link", "route", "nexthop", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_frr_does_not_notice(lab, how):
    # Separate namespaces, so that the kernel sends only the notifications that daemons see.
    machine, left, right = two_hosts(lab, apart=True)
    machine.start()
    frr, speaker, routes = announced(lab, machine, right)

    def session():
        peer = frr.json("show bgp ipv4 unicast summary", daemon="bgpd")["peers"]["10.0.2.2"]
        return peer["state"], peer["connectionsDropped"], peer["pfxRcd"]

    objects, kernel, index = machine.run("ip", "nexthop").stdout, machine.route_count(), machine.index("right")
    assert "via 10.0.2.2" in objects and session() == ("Established", 0, len(routes))
    watch = changes_of(machine)

    if how == "killed":
        machine.router.kill()
    else:
        machine.router.stop(signal.SIGUSR2)
    # Other workers and queues: an interface has one queue, regardless of its reader.
    machine.start(config="turnpike.slowpath { workers = 2 }\n")
    assert tables.turnpike_count(machine.router, "kernel") == len(routes)
    assert (machine.run("ip", "nexthop").stdout, machine.route_count()) == (objects, kernel)
    assert machine.index("right") == index and not speaker.error
    assert gets_through(left, right, routes[0][0].split("/")[0])
    assert session() == ("Established", 0, len(routes))
    watch.send_signal(signal.SIGTERM)
    said = watch.communicate(timeout=20)[0]
    assert "NO-CARRIER" not in said and "Deleted" not in said, said[:2000]
    machine.finish()


def test_host_interfaces_of_vlans_are_held_as_well(lab):
    machine, *_ = two_hosts(lab)
    vlan = 'turnpike.vlan "right.5" { parent = "right", id = 5, address = "10.0.5.1/24" }\n'
    machine.start(config=vlan)
    assert wait_for(lambda: has_carrier(machine, "right.5"), 10)
    index = machine.index("right.5")
    machine.router.kill()
    assert has_carrier(machine, "right.5")
    machine.start(config=vlan)
    assert machine.index("right.5") == index
    assert wait_for(lambda: has_carrier(machine, "right.5"), 10)
    # A router that starts without the VLAN lets go of its interface, as of a port's.
    machine.router.kill()
    machine.start()
    assert wait_for(lambda: not has_carrier(machine, "right.5"), 10)
    machine.finish()


def test_pings_get_through_as_soon_as_it_says_that_it_is_ready(lab):
    machine, left, _ = two_hosts(lab)
    machine.start()
    targets = ("10.0.1.1", "10.0.2.2")
    for target in targets:
        left.run("ping", "-n", "-c", 1, "-W", 5, target)
    machine.router.kill()
    machine.start()
    for target in targets:
        said = left.run("ping", "-n", "-c", 100, "-i", "0.01", "-W", 5, target, check=False).stdout
        assert int(re.search(r"(\d+) received", said)[1]) >= 95, said
    machine.finish()


def test_a_router_that_ends_in_order_lets_go(lab):
    machine, *_ = two_hosts(lab)
    machine.start()
    holder = machine.router.holder()
    assert has_carrier(machine) and holder not in (None, machine.router.process.pid)
    machine.router.stop()
    assert not has_carrier(machine)
    assert wait_for(lambda: is_gone(holder), 10)
    assert not os.path.exists(f"{machine.router.socket}.hold")


def test_a_holder_that_is_killed_is_replaced(lab):
    machine, *_ = two_hosts(lab)
    machine.start()
    first = machine.router.holder()
    os.kill(first, signal.SIGKILL)
    others = (None, first, machine.router.process.pid)
    second = wait_for(lambda: (pid := machine.router.holder()) not in others and pid, 20, 0.1)
    assert second and is_gone(first), machine.router.log()
    machine.router.kill()
    assert has_carrier(machine)
    index = machine.index("right")
    machine.start()
    assert machine.index("right") == index and machine.router.holder() == second
    machine.finish()


def test_nobody_comes_and_it_lets_go(lab):
    machine, *_ = two_hosts(lab)
    machine.start(options=["--hold", "1"])
    holder = machine.router.holder()
    machine.router.kill()
    assert wait_for(lambda: not has_carrier(machine) and is_gone(holder), 30, 0.1)
    # As usual: the interface stays, and the next router finds it.
    machine.start()
    assert has_carrier(machine) and machine.router.holder() not in (None, holder)
    machine.finish()


def test_starts_that_fail(lab):
    machine, *_ = two_hosts(lab)
    # The last port's name is taken: the earlier ones are open by then.
    machine.run("ip", "link", "add", "third", "type", "veth", "peer", "name", "other")
    failing = 'turnpike.port "third" { device = "net_null0", host = true }\n'

    def fail():
        machine.start(config=failing, wait=False)
        assert machine.router.process.wait(30) == 1 and "host interface third: exists" in machine.router.log()

    # The first one: nothing can be missing.
    fail()
    assert machine.router.holder() is None
    assert not has_carrier(machine)
    machine.start()
    index, holder = machine.index("right"), machine.router.holder()
    machine.router.kill()
    for _ in range(2):
        fail()
        assert has_carrier(machine)
    machine.start()
    assert (machine.index("right"), machine.router.holder()) == (index, holder)
    machine.finish()


def test_it_may_be_left_out(lab):
    machine, *_ = two_hosts(lab)
    machine.start(options=["--hold", "0"])
    assert machine.router.holder() is None
    machine.router.kill()
    assert wait_for(lambda: not has_carrier(machine), 10)
    machine.start()
    machine.router.kill()
    # A router without a holder takes over the interfaces of one.
    machine.start(options=["--hold", "0"])
    assert has_carrier(machine) and wait_for(lambda: machine.router.holder() is None, 10)
    machine.finish()


def test_what_the_next_router_does_not_want_is_let_go(lab):
    machine, *_ = two_hosts(lab)
    machine.start()
    machine.router.kill()
    assert has_carrier(machine, "left")
    machine.ports.pop("left")
    machine.start()
    assert has_carrier(machine) and wait_for(lambda: not has_carrier(machine, "left"), 10)
    machine.finish()


def test_what_apply_takes_away_is_not_held(lab):
    machine, *_ = two_hosts(lab)
    machine.start()
    everything = machine.config()
    machine.ports.pop("left")
    less = machine.router.directory / "less.lua"
    less.write_text(machine.config())
    machine.router.command("apply", less)
    assert machine.run("ip", "link", "show", "left", check=False).returncode != 0
    less.write_text(everything)
    machine.router.command("apply", less)
    machine.router.kill()
    assert has_carrier(machine, "left") and has_carrier(machine)


def test_interfaces_in_a_namespace_and_a_second_router(lab):
    first, *_ = two_hosts(lab, apart=True)
    second, *_ = two_hosts(lab, apart=True)
    for machine in (first, second):
        machine.start()
    index = first.index("right")
    assert first.router.holder() != second.router.holder()
    first.router.kill()
    second.router.stop()
    assert has_carrier(first) and not has_carrier(second)
    first.start()
    assert first.index("right") == index
    first.finish()


def test_a_link_that_changed_meanwhile(lab):
    machine, _, right = two_hosts(lab)
    machine.start()
    for change, carrier in (("down", False), ("up", True)):
        machine.router.kill()
        right.run("ip", "link", "set", "eth0", change)
        # The last known state.
        assert has_carrier(machine) != carrier
        machine.start()
        assert wait_for(lambda: has_carrier(machine) == carrier, 10), change
    machine.finish()


def test_another_socket_is_another_router(lab):
    machine, *_ = two_hosts(lab)
    machine.start()
    machine.router.kill()
    other = machine.router.directory / "other.sock"
    machine.start(socket=other, wait=False)
    machine.router.process.wait(30)
    assert "who holds it for one that was killed" in machine.router.log()
    assert has_carrier(machine)


def test_one_that_is_started_by_hand_stays(lab, tmp_path):
    machine, *_ = two_hosts(lab)
    socket = tmp_path / "router.sock"
    argv = [binary(), "hold", "--socket", socket]
    holder = subprocess.Popen(argv)
    try:
        assert wait_for(lambda: os.path.exists(f"{socket}.hold"), 20)
        again = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        assert again.returncode == 1 and "another one holds there already" in again.stderr
        machine.start(socket=socket)
        assert machine.router.holder() == holder.pid
        machine.router.kill()
        assert has_carrier(machine)
        machine.start()
        machine.router.stop()
        assert not has_carrier(machine) and holder.poll() is None
    finally:
        holder.kill()
        holder.wait()

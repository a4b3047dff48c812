"""Devices that are removed while the router forwards, and added again."""

import re
import signal
import time
from pathlib import Path

import pytest

from lib.apply import apply, plan
from lib.lab import DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Hosts, Wires
from lib.netns import veth, wait_for
from lib.packets import ethernet, ipv4, udp
from lib.soak import repeated
from lib.traffic import Sink, Stream, outage

# Time from the notification of a removed device to the last route over it.
DOWN_SECONDS = 0.05

OTHER_MAC = "02:00:00:00:02:99"

THIRD = 'turnpike.port "third" { device = "tp-third", address = "10.0.3.1/24" }\n'


def ports(router):
    """The ports by name."""
    return {port["name"]: port for port in router.show("ports")}


def link(router, name):
    return ports(router)[name]["link"]


def pings(host, address, seconds=10):
    """Returns true if the address answers within some time."""
    return wait_for(lambda: host.run("ping", "-c", 1, "-W", 1, address, check=False).returncode == 0, seconds)


def plug(hosts, mac=RIGHT_MAC):
    """Adds the right port's device again, with the right host at its other end."""
    veth(hosts.inside, "tp-right", hosts.right, "eth0", mac, HOST_B_MAC)
    hosts.right.run("ip", "address", "add", "10.0.2.2/24", "dev", "eth0")
    hosts.right.run("ip", "route", "replace", "default", "via", "10.0.2.1")


def by(driver, ports=PORTS):
    return ports.replace("device =", f'driver = "{driver}", device =')


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_device_that_is_deleted_while_it_forwards_comes_back(lab, driver):
    hosts = Hosts(lab, ports=by(driver))
    router = hosts.router
    descriptors = lambda: len(list(Path(f"/proc/{router.process.pid}/fd").iterdir()))  # noqa: E731
    before = None
    for turn in range(5):
        assert pings(hosts.left, "10.0.2.2"), turn
        assert ports(router)["right"]["link_by"] == "netlink"
        # To an existing host, and to many that do not exist: their packets wait for neighbours.
        stream = Stream(hosts.left, ["10.0.2.2"] + [f"10.0.2.{n}" for n in range(100, 150)], rate=4000)
        time.sleep(0.3)
        hosts.inside.run("ip", "link", "delete", "tp-right")
        assert wait_for(lambda: link(router, "right") == "gone")
        assert router.show("route", "10.0.2.2")["type"] == "no-route"
        # The router continues without it, and the other port is not affected.
        assert pings(hosts.left, "10.0.1.1")
        # Another device of the same name: its MAC is the router's from now on.
        mac = OTHER_MAC if turn % 2 == 0 else RIGHT_MAC
        plug(hosts, mac)
        assert wait_for(lambda: link(router, "right") == "up", 10), router.log()
        assert ports(router)["right"]["mac"] == mac
        stream.stop()
        assert pings(hosts.left, "10.0.2.2") and pings(hosts.right, "10.0.1.2"), turn
        neighbour = hosts.right.run("ip", "neigh", "show", "10.0.2.1").stdout
        assert mac in neighbour, neighbour
        # Nothing of it is left open.
        before = before or descriptors()
        assert descriptors() <= before + 2
    report, status = plan(router, by(driver))
    assert status == 0 and report["changes"] == []
    router.counters()
    log = router.stop()
    assert len(re.findall('port "right": its device is back', log)) == 5
    assert log.count('port "right": down, its device tp-right is gone') == 5, log


@pytest.mark.alone
def test_routes_give_way_within_50_ms(lab):
    # Two paths to the same addresses; the loss shows for how long a dead one was used.
    hosts = Hosts(lab, start=False)
    far = lab.namespace("far")
    veth(hosts.inside, "tp-third", far, "eth0", "02:00:00:00:03:01", "02:00:00:00:03:02")
    far.run("ip", "address", "add", "10.0.3.2/24", "dev", "eth0")
    for host, way in [(hosts.right, "10.0.2.1"), (far, "10.0.3.1")]:
        host.run("ip", "address", "add", "198.51.100.1/32", "dev", "lo")
        host.run("ip", "route", "replace", "default", "via", way)
    static = """
    turnpike.neighbour "10.0.2.2" { port = "right", mac = "%s" }
    turnpike.neighbour "10.0.3.2" { port = "third", mac = "02:00:00:00:03:02" }
    turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
    turnpike.route "198.51.100.0/24" { via = "10.0.3.2", metric = 10 }
    """ % HOST_B_MAC
    router = lab.router(hosts.inside, PORTS + THIRD + static)
    sinks = [Sink(hosts.right), Sink(far)]
    outages = []
    for _ in range(5):
        stream = Stream(hosts.left, ["198.51.100.1"], rate=2000)
        assert sinks[0].wait(100)
        hosts.inside.run("ip", "link", "delete", "tp-right")
        assert sinks[1].wait(100)
        outages.append(outage(stream.stop(), *sinks))
        [sink.close() for sink in sinks]
        sinks = [Sink(hosts.right), Sink(far)]
        plug(hosts)
        assert wait_for(lambda: link(router, "right") == "up", 10)
    router.stop()
    assert sorted(outages)[2] < DOWN_SECONDS, outages


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_device_that_goes_up_and_down_many_times(lab, driver):
    hosts = Hosts(lab, ports=by(driver))
    router = hosts.router
    assert pings(hosts.left, "10.0.2.2")
    stream, times = Stream(hosts.left, ["10.0.2.2"], rate=1000), repeated(12)
    for _ in range(times):
        for state in ("down", "up"):
            hosts.inside.run("ip", "link", "set", "tp-right", state)
            assert wait_for(lambda: link(router, "right") == state)  # noqa: B023
    stream.stop()
    assert pings(hosts.left, "10.0.2.2")
    assert router.log().count('port "right": down, its device has no link') >= times
    assert "gone" not in router.log()
    router.stop()


def test_a_port_is_made_of_the_interface_that_has_its_name(lab):
    hosts = Hosts(lab)
    router = hosts.router
    assert pings(hosts.left, "10.0.2.2")
    before = hosts.inside.run("cat", "/proc/sys/net/ipv4/conf/tp-right/arp_ignore").stdout
    hosts.inside.run("ip", "link", "set", "tp-right", "down")
    hosts.inside.run("ip", "link", "set", "tp-right", "name", "tp-other")
    assert wait_for(lambda: link(router, "right") == "gone")
    assert "its device tp-right is called tp-other now" in router.log()
    # The host has it again, unchanged.
    settings = lambda: hosts.inside.run("cat", "/proc/sys/net/ipv4/conf/tp-other/arp_ignore").stdout  # noqa: E731
    assert before == "8\n" and wait_for(lambda: settings() == "0\n"), settings()
    hosts.inside.run("ip", "link", "set", "tp-other", "name", "tp-right")
    assert wait_for(lambda: link(router, "right") == "up", 10), router.log()
    assert pings(hosts.left, "10.0.2.2")
    # Moved to another network namespace: removed, too.
    hosts.inside.run("ip", "link", "set", "tp-right", "netns", hosts.left.name)
    assert wait_for(lambda: link(router, "right") == "gone")
    hosts.left.run("ip", "link", "set", "tp-right", "netns", hosts.inside.name)
    assert wait_for(lambda: link(router, "right") == "up", 10), router.log()
    assert pings(hosts.left, "10.0.2.2")
    router.stop()


def test_what_waits_on_other_ports_outlives_the_port_it_came_by(lab):
    # Issue 14.2: packets of a port added by apply wait for neighbours; its device vanishes, the port is removed.
    hosts = Hosts(lab)
    router = hosts.router
    third = lab.namespace("third")
    for turn in range(3):
        veth(hosts.inside, "tp-third", third, "eth0", "02:00:00:00:03:01", "02:00:00:00:03:02")
        apply(router, PORTS + THIRD)
        third.run("ip", "address", "add", "10.0.3.2/24", "dev", "eth0")
        third.run("ip", "route", "add", "default", "via", "10.0.3.1")
        # For the stream, which continues after its interface was removed.
        third.run("ip", "route", "replace", "default", "dev", "lo", "metric", 9999)
        assert pings(third, "10.0.2.2"), turn
        stream = Stream(third, [f"10.0.2.{n}" for n in range(10, 200)], rate=4000)
        time.sleep(0.3)
        hosts.inside.run("ip", "link", "delete", "tp-third")
        apply(router, PORTS)
        assert list(ports(router)) == ["left", "right"]
        stream.stop()
        # The neighbours are not resolved, and the waiting packets are dropped.
        assert wait_for(lambda: router.show("counters")["in_flight"] == 0, 20)
        assert pings(hosts.left, "10.0.2.2"), turn
    router.counters()
    router.stop()


def test_a_port_without_its_device_keeps_its_host_interface(lab):
    config = PORTS.replace('"tp-right",', '"tp-right", host = true,')
    hosts = Hosts(lab, ports=config)
    router = hosts.router
    inside = hosts.inside
    assert pings(hosts.left, "10.0.2.2")
    inside.run("ip", "link", "delete", "tp-right")
    assert wait_for(lambda: "NO-CARRIER" in inside.run("ip", "link", "show", "right").stdout)
    shown = inside.run("ip", "address", "show", "right").stdout
    assert "10.0.2.1/24" in shown, shown
    # Another configuration meanwhile: one more address, which the port has when it returns.
    apply(router, config.replace('"10.0.2.1/24",', '"10.0.2.1/24", "10.0.22.1/24",'))
    assert wait_for(lambda: "10.0.22.1/24" in inside.run("ip", "address", "show", "right").stdout)
    assert link(router, "right") == "gone"
    plug(hosts, OTHER_MAC)
    assert wait_for(lambda: link(router, "right") == "up", 10), router.log()
    assert wait_for(lambda: "NO-CARRIER" not in inside.run("ip", "link", "show", "right").stdout)
    assert OTHER_MAC in inside.run("ip", "link", "show", "right").stdout
    assert pings(hosts.left, "10.0.2.2") and pings(inside, "10.0.2.2")
    assert {"10.0.2.1/24", "10.0.22.1/24"} <= set(ports(router)["right"]["addresses"])
    # And a configuration without it, while it is absent.
    inside.run("ip", "link", "delete", "tp-right")
    assert wait_for(lambda: link(router, "right") == "gone")
    left = "".join(line for line in config.splitlines(True) if '"right"' not in line)
    assert apply(router, left)["summary"].startswith("1 port removed")
    assert list(ports(router)) == ["left"]
    assert not re.search(r"\bright:", inside.run("ip", "link").stdout)
    router.stop()


def test_a_device_that_is_there_and_cannot_be_opened_is_said_once_and_tried_again(lab):
    hosts = Hosts(lab, ports=by("af_xdp"))
    router = hosts.router
    hosts.inside.run("ip", "link", "delete", "tp-right")
    assert wait_for(lambda: link(router, "right") == "gone")
    # AF_XDP does not accept a veth with such an MTU.
    veth(hosts.inside, "tp-right", hosts.right, "eth0", RIGHT_MAC, HOST_B_MAC, mtu=9000)
    words = 'port "right": its device is there and cannot be opened; tried again: '
    assert wait_for(lambda: words in router.log())
    time.sleep(1.5)
    assert router.log().count(words) == 1, router.log()
    hosts.right.run("ip", "link", "set", "eth0", "mtu", 1500)
    hosts.inside.run("ip", "link", "set", "tp-right", "mtu", 1500)
    assert wait_for(lambda: link(router, "right") == "up", 20), router.log()
    router.stop()


def test_a_link_whose_change_a_driver_notes_and_does_not_tell(lab):
    # DPDK's TAP driver claims to have interrupts, and only those of NICs are trusted (vm/test_hotplug.py).
    inside = lab.namespace("router", quiet=True)
    config = """
    local turnpike = require "turnpike"
    turnpike.port "tap" { device = "net_tap0,iface=tp-tap", address = "10.0.4.1/24" }
    """
    router = lab.router(inside, config)
    assert ports(router)["tap"]["link_by"] == "polled"
    inside.run("ip", "link", "set", "tp-tap", "up")
    assert wait_for(lambda: link(router, "tap") == "up")
    for _ in range(5):
        for state in ("down", "up"):
            words = f'port "tap": {state}'
            count = router.log().count(words)
            inside.run("ip", "link", "set", "tp-tap", state)
            assert wait_for(lambda: router.log().count(words) == count + 1, 10), router.log()  # noqa: B023
    router.stop()


def test_a_port_that_loses_packets_says_so_once_and_when_it_has_ended(lab):
    wires = Wires(lab, ports=by("af_xdp"), calm=True)
    router = wires.router
    frame = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", udp("10.0.1.2", "10.0.2.2", 1, 2, b"")))
    for _ in range(2):
        # The rings of the socket have no reader and fill.
        router.process.send_signal(signal.SIGSTOP)
        for _ in range(60):
            wires.left.send(*[frame] * 100)
        router.process.send_signal(signal.SIGCONT)
        assert wait_for(lambda: ports(router)["left"].get("troubles") == ["rx_missed"], 10), router.show("ports")
    assert "rx_missed " in router.command("show", "ports").stdout
    assert len(re.findall(r'WARN port "left": rx_missed \+\d+', router.log())) == 1, router.log()
    ended = r'INFO port "left": rx_missed \+(\d+) in \d+ s; none for 10 s'
    assert wait_for(lambda: re.search(ended, router.log()), 20), router.log()
    assert int(re.search(ended, router.log())[1]) == ports(router)["left"]["rx_missed"]
    assert "troubles" not in ports(router)["left"]
    router.stop()


# --- a forwarder that is in a step for long ---------------------------------------------------------

BUSY = "another change is being made"


def test_a_device_that_goes_while_a_forwarder_is_stuck_holds_nobody_up(lab):
    # A step of the scenarios' binary does not return for this packet while a file "stuck" exists.
    faulty = 'turnpike.graph:insert_after("ip4-mtu", "faulty")\n'
    wires = Wires(lab, faulty, calm=True)
    router, stuck = wires.router, wires.router.directory / "stuck"
    stuck.touch()
    wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", bytes(40), ident=0xDEA1)))
    assert wait_for(lambda: router.show("counters")["unaccounted"] == 1, 60)
    wires.inside.run("ip", "link", "delete", "tp-right")
    assert wait_for(lambda: router.show("route", "10.0.2.2")["type"] == "no-route", 60)

    def busy():
        return BUSY in router.command("rollback", check=False).stderr

    # The router waits for the forwarder, which has packets of the port, and answers.
    assert wait_for(busy, 60), router.log()
    router.command("route", "add", "203.0.113.0/24", "blackhole")
    assert router.show("route", "203.0.113.1")["type"] == "blackhole"
    wires.ns_left.run("ip", "link", "set", "wire", "down")
    assert wait_for(lambda: router.show("route", "10.0.1.2")["type"] == "no-route", 60)
    # Queries that need the forwarders are answered after the change.
    assert len(router.show("forwarders")["forwarders"]) == 1
    assert wait_for(lambda: "tried again" in router.log(), 60)
    stuck.unlink()
    assert wait_for(lambda: link(router, "right") == "gone", 60), router.log()
    wires.ns_left.run("ip", "link", "set", "wire", "up")
    assert wait_for(lambda: link(router, "left") == "up", 60), router.log()
    router.stop()


def test_a_router_ends_while_it_waits_for_a_forwarder(lab):
    wires = Wires(lab, 'turnpike.graph:insert_after("ip4-mtu", "faulty")\n', calm=True)
    router, stuck = wires.router, wires.router.directory / "stuck"
    stuck.touch()
    wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", bytes(40), ident=0xDEA1)))
    assert wait_for(lambda: router.show("counters")["unaccounted"] == 1, 60)
    wires.inside.run("ip", "link", "delete", "tp-right")
    assert wait_for(lambda: BUSY in router.command("rollback", check=False).stderr, 60), router.log()
    router.process.send_signal(signal.SIGTERM)
    assert wait_for(lambda: "SIGTERM: stopping" in router.log(), 60), router.log()
    # The parts exchanged so far are reverted, and nothing is lost.
    stuck.unlink()
    router.stop(timeout=60)

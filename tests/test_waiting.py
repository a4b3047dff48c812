"""Waiting of forwarders: three settings, each kind of port, and all events that wake a blocking one."""

import re
import signal
import time
from pathlib import Path

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import DRIVERS, HOST_A_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires, ports_by
from lib.netns import bridge_tap, veth, wait_for
from lib.packets import ethernet, ipv4, udp

MODES = ["poll", "adaptive", "interrupt", "moderated"]


def waits(mode, more=""):
    return f'turnpike.forwarders {{ cores = "0", wait = "{mode}"{more} }}\n'


def waiting(router):
    """Behaviour of the only forwarder without packets."""
    (forwarder,) = router.show("forwarders")["forwarders"]
    return forwarder["waiting"]


def blocks(router):
    """Waits until the forwarder blocks; its counters then."""
    assert wait_for(lambda: waiting(router)["blocking"], 20), waiting(router)
    return waiting(router)


def ports_up(router):
    return [port["name"] for port in router.show("ports") if port["link"] == "up"]


def reaches(host, address):
    """One packet there and one back."""
    return host.run("ping", "-n", "-c", 1, "-W", 5, address, check=False).returncode == 0


def resolve(hosts):
    """The hosts and the router know each other's MACs afterwards."""
    for address in ("10.0.2.2", "fd00:2::2"):
        assert wait_for(lambda: reaches(hosts.left, address), 20)  # noqa: B023


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_first_packet_after_an_idle_time_passes_each_way(lab, driver, mode):
    hosts = Hosts(lab, waits(mode), ports_by(driver))
    router = hosts.router
    resolve(hosts)
    for host, address in [(hosts.left, "10.0.2.2"), (hosts.right, "10.0.1.2"), (hosts.left, "fd00:2::2"),
                          (hosts.right, "fd00:1::2")] * 3:
        before = waiting(router) if mode == "poll" else blocks(router)
        assert reaches(host, address)
        after = waiting(router)
        if mode != "poll":
            assert after["woken_by_receive"] > before["woken_by_receive"]
    assert after["wait"] == mode and after["without_interrupts"] == []
    assert (after["sleeps"] > 0) == (mode == "moderated")
    if mode == "poll":
        assert after["blocks"] == 0 and not after["blocking"]
    router.stop()


TAPS = f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "net_tap0,iface=tp-left,mac={LEFT_MAC}", address = {{ "10.0.1.1/24", "fd00:1::1/64" }} }}
turnpike.port "right" {{ device = "net_tap1,iface=tp-right,mac={RIGHT_MAC}", address = {{ "10.0.2.1/24", "fd00:2::1/64" }} }}
"""


class Taps:
    """A router whose ports are TAP devices, which bridges of the kernel join with its hosts."""

    def __init__(self, lab, config):
        inside = lab.namespace("router", quiet=True)
        self.router = lab.router(inside, TAPS + config)
        self.left, self.right = lab.namespace("left"), lab.namespace("right")
        for side, host, name in ((1, self.left, "left"), (2, self.right, "right")):
            bridge_tap(inside, name, side, host, "eth0")
            host.run("ip", "address", "add", f"10.0.{side}.2/24", "dev", "eth0")
            host.run("ip", "address", "add", f"fd00:{side}::2/64", "dev", "eth0", "nodad")
            host.run("ip", "route", "add", "default", "via", f"10.0.{side}.1")
            host.run("ip", "-6", "route", "add", "default", "via", f"fd00:{side}::1")


@pytest.mark.parametrize("mode", MODES)
def test_a_tap_wakes_the_forwarder(lab, mode):
    hosts = Taps(lab, waits(mode))
    router = hosts.router
    resolve(hosts)
    for host, address in [(hosts.left, "10.0.2.2"), (hosts.right, "fd00:1::2")] * 3:
        before = waiting(router) if mode == "poll" else blocks(router)
        assert reaches(host, address)
        if mode != "poll":
            assert waiting(router)["woken_by_receive"] > before["woken_by_receive"]
    assert waiting(router)["without_interrupts"] == []
    router.stop()


@pytest.mark.parametrize("mode", MODES)
def test_a_port_without_interrupts_makes_its_forwarder_sleep_shortly_and_is_named(lab, tmp_path, mode):
    """Two routers, joined by memif, whose driver tells its peer to send no interrupts."""
    link = f"socket={tmp_path}/link.sock,socket-abstract=no"
    sides = []
    for side, other, role in ((1, 2, "server"), (2, 1, "client")):
        inside, host = lab.namespace(f"router{side}"), lab.namespace(f"host{side}")
        veth(inside, "tp-lan", host, "eth0", f"02:00:00:00:0{side}:01", f"02:00:00:00:0{side}:02")
        host.run("ip", "address", "add", f"10.0.{side}.2/24", "dev", "eth0")
        host.run("ip", "route", "add", "default", "via", f"10.0.{side}.1")
        router = lab.router(inside, f"""
            local turnpike = require "turnpike"
            turnpike.port "lan" {{ device = "tp-lan", address = "10.0.{side}.1/24" }}
            turnpike.port "link" {{ device = "net_memif0,role={role},{link},mac=02:00:00:00:09:0{side}",
                                    address = "10.9.0.{side}/24" }}
            turnpike.route "10.0.{other}.0/24" {{ via = "10.9.0.{other}" }}
            """ + waits(mode))
        sides.append((router, host))
    (router, host), (other, _) = sides
    assert wait_for(lambda: reaches(host, "10.0.2.2"), 20), router.log()
    last = waiting(router)
    if mode == "poll":
        assert (last["sleeps"], last["blocks"], last["without_interrupts"]) == (0, 0, [])
    else:
        assert last["without_interrupts"] == ["link"]
        assert wait_for(lambda: waiting(router)["sleeps"] > last["sleeps"] + 10, 20)
        assert waiting(router)["blocks"] == 0
        said = router.command("show", "forwarders").stdout
        assert 'port "link" (net_memif) has no receive interrupts' in said
        assert router.log().count('port "link" (net_memif) has no receive interrupts') == 1, router.log()
    router.stop()
    other.stop()


# --- what wakes a forwarder that blocks ---------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_mode_and_quotas_change_live(lab, driver):
    ports = ports_by(driver)
    hosts = Hosts(lab, waits("interrupt"), ports)
    router = hosts.router
    resolve(hosts)
    blocks(router)
    report, status = plan(router, ports + waits("poll"))
    lines = {(c["what"], c["from"], c["to"], c["live"]) for c in report["changes"]}
    assert lines == {("forwarders: wait", "interrupt", "poll", True)} and status == 2
    for mode in ["poll", "moderated", "adaptive", "interrupt", "poll", "interrupt"]:
        answer = apply(router, ports + waits(mode))
        assert answer["pause_us"] is not None
        assert waiting(router)["wait"] == mode
        before = waiting(router) if mode == "poll" else blocks(router)
        assert reaches(hosts.left, "10.0.2.2") and reaches(hosts.right, "fd00:1::2")
        if mode == "poll":
            assert waiting(router)["blocks"] == before["blocks"]
    one = ports.replace('device = "tp-left"', 'device = "tp-left", wait = "poll", quota = 1000')
    report, _ = plan(router, one + waits("interrupt", ", budget = 100"))
    lines = {(c["what"], c["from"], c["to"], c["live"]) for c in report["changes"]}
    assert lines == {
        ("forwarders: budget", "512", "100", True),
        ('port "left": wait', "as forwarders", "poll", True),
        ('port "left": quota', "64", "1000", True),
    }
    apply(router, one + waits("interrupt", ", budget = 100"))
    assert waiting(router)["wait"] == "poll", "the least patient port decides"
    assert reaches(hosts.left, "10.0.2.2")
    router.command("rollback")
    blocks(router)
    assert reaches(hosts.left, "10.0.2.2")
    router.stop()


def test_what_is_wrong_is_named(lab):
    router = Wires(lab).router
    for text, words in [
        ('turnpike.forwarders { wait = "sleep" }', 'forwarders: wait "sleep" unknown; known: poll, adaptive, interrupt, moderated'),
        ("turnpike.forwarders { moderation_us = 1001 }",
         "forwarders: moderation_us: expected a whole number from 1 to 1000, got number 1001"),
        ("turnpike.forwarders { budget = 0 }", "forwarders: budget: expected a whole number from 1 to 65535, got number 0"),
        ('turnpike.port "x" { device = "y", quota = 5000 }', "quota: expected a whole number from 1 to 4096"),
    ]:
        assert words in refused(router, "apply", write(router, PORTS + STATIC_NEIGHBOURS + text))
    router.stop()


def frame(number, to="10.0.2.2"):
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", to, udp("10.0.1.2", to, 1, number, b"")))


def test_ports_come_and_go_while_it_blocks(lab):
    hosts = Hosts(lab, waits("interrupt"))
    router, third = hosts.router, lab.namespace("third")
    resolve(hosts)
    veth(hosts.inside, "tp-third", third, "eth0", "02:00:00:00:03:01", "02:00:00:00:03:02")
    third.run("ip", "address", "add", "10.0.3.2/24", "dev", "eth0")
    third.run("ip", "route", "add", "default", "via", "10.0.3.1")
    more = 'turnpike.port "third" { device = "tp-third", address = "10.0.3.1/24" }\n'
    for _ in range(3):
        blocks(router)
        apply(router, PORTS + more + waits("interrupt"))
        assert wait_for(lambda: reaches(third, "10.0.2.2"), 20), router.log()
        blocks(router)
        apply(router, PORTS + waits("interrupt"))
        assert reaches(hosts.left, "10.0.2.2")
    router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interface_is_deleted_and_comes_back_while_it_blocks(lab, driver):
    hosts = Hosts(lab, waits("interrupt"), ports_by(driver))
    router = hosts.router
    resolve(hosts)
    blocks(router)
    hosts.inside.run("ip", "link", "delete", "tp-right")
    assert wait_for(lambda: ports_up(router) == ["left"], 20)
    blocks(router)
    assert reaches(hosts.left, "10.0.1.1")
    veth(hosts.inside, "tp-right", hosts.right, "eth0", RIGHT_MAC, "02:00:00:00:02:02")
    hosts.right.run("ip", "address", "add", "10.0.2.2/24", "dev", "eth0")
    hosts.right.run("ip", "route", "add", "default", "via", "10.0.2.1")
    assert wait_for(lambda: reaches(hosts.left, "10.0.2.2"), 30), router.log()
    blocks(router)
    assert reaches(hosts.right, "10.0.1.2")
    router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interface_that_is_down_for_a_while_wakes_it_again(lab, driver):
    hosts = Hosts(lab, waits("interrupt"), ports_by(driver))
    router = hosts.router
    resolve(hosts)
    for _ in range(3):
        blocks(router)
        hosts.inside.run("ip", "link", "set", "tp-right", "down")
        assert wait_for(lambda: ports_up(router) == ["left"], 20)
        hosts.inside.run("ip", "link", "set", "tp-right", "up")
        assert wait_for(lambda: reaches(hosts.left, "10.0.2.2"), 20), router.log()
        blocks(router)
        assert reaches(hosts.right, "10.0.1.2")
    router.stop()


@pytest.mark.parametrize("mode", MODES)
def test_it_ends_at_once(lab, mode):
    hosts = Hosts(lab, waits(mode))
    resolve(hosts)
    if mode != "poll":
        blocks(hosts.router)
    begin = time.monotonic()
    log = hosts.router.stop()
    assert time.monotonic() - begin < 10, log
    # Of pages that a machine lacks DPDK warns at the start.
    warnings = [line for line in log.splitlines() if "WARN" in line and "hugepages reported" not in line]
    assert "does not end" not in log and not warnings, log


def test_a_process_that_stands_still_for_a_while_goes_on(lab):
    hosts = Hosts(lab, waits("interrupt"))
    router = hosts.router
    resolve(hosts)
    threads = Path(f"/proc/{router.process.pid}/task")
    states = lambda: {re.search(r"^State:\s+(\S)", (one / "status").read_text(), re.M)[1] for one in threads.iterdir()}  # noqa: E731
    packets = lambda host: host.run("cat", "/proc/net/snmp").stdout  # noqa: E731
    for _ in range(3):
        blocks(router)
        router.process.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: states() == {"T"}, 20)
        left, right = packets(hosts.left), packets(hosts.right)
        pings = hosts.left.spawn("ping", "-n", "-c", "3", "-i", "0.2", "-W", "10", "10.0.2.2", stdout=-1, text=True)
        assert wait_for(lambda: packets(hosts.left) != left, 20)  # noqa: B023
        assert packets(hosts.right) == right
        router.process.send_signal(signal.SIGCONT)
        assert "3 received, 0% packet loss" in pings.communicate(timeout=30)[0]
    router.stop()


@pytest.mark.parametrize("mode", MODES)
def test_what_the_kernel_sends_by_a_host_interface_wakes_it(lab, mode):
    hosts = Hosts(lab, waits(mode) + 'turnpike.routes_from { "kernel" }\n')
    router = hosts.router
    assert wait_for(lambda: reaches(hosts.inside, "10.0.2.2"), 20), router.log()
    assert wait_for(lambda: reaches(hosts.inside, "fd00:1::2"), 20), router.log()
    for address in ["10.0.2.2", "fd00:1::2", "10.0.1.2"] * 2:
        before = waiting(router) if mode == "poll" else blocks(router)
        assert reaches(hosts.inside, address)
        if mode != "poll":
            assert waiting(router)["woken_by_ring"] > before["woken_by_ring"]
    router.stop()


def test_other_forwarders_wake_it(lab):
    """One forwarder has the only queues of both devices and hands packets for the other over by software."""
    spread = PORTS.replace("address =", 'rx_queues = 1, rx_cores = 0, spread = "software", address =')
    hosts = Hosts(lab, 'turnpike.forwarders { cores = "0,1", wait = "interrupt" }\n', spread)
    router = hosts.router

    def woken():
        return [one["waiting"]["woken_by_ring"] for one in router.show("forwarders")["forwarders"]]

    assert wait_for(lambda: reaches(hosts.left, "10.0.2.2"), 20)
    before = woken()
    # Flows of many ports: some are the other's.
    for port in range(5000, 5032):
        hosts.left.run("bash", "-c", f"echo x > /dev/udp/10.0.2.2/{port}")
    assert wait_for(lambda: woken()[1] > before[1], 20), (before, woken())
    counters = router.counters()
    assert counters["received"] > 0 and not counters["dropped"].get("spread-full")
    router.stop()


def test_changes_are_made_while_it_blocks_and_nobody_calls_it_stuck(lab):
    """A change of the graph is refused where a forwarder makes no round for five seconds."""
    hosts = Hosts(lab, waits("interrupt"))
    router = hosts.router
    resolve(hosts)
    step = """
    local seen = turnpike.counter "seen"
    local step = turnpike.step "count" { process = function(batch, mask) seen:add(mask:count()) return mask end }
    turnpike.graph:insert_after("ip4-validate", step)
    """
    for more in [step, "", step, ""]:
        blocks(router)
        apply(router, PORTS + waits("interrupt") + more)
        blocks(router)
        router.command("route", "add", "203.0.113.0/24", "blackhole")
        router.command("route", "del", "203.0.113.0/24")
        assert reaches(hosts.left, "10.0.2.2")
    assert "stuck" not in router.log() and "has not come to the end" not in router.log()
    router.stop()


@pytest.mark.flood
@pytest.mark.parametrize("driver", DRIVERS)
def test_under_a_flood_it_polls(lab, driver):
    wires = Wires(lab, waits("adaptive"), ports_by(driver) + STATIC_NEIGHBOURS, calm=True)
    router = wires.router
    before = blocks(router)
    # No sender here is as fast as a router, so packets accumulate while that is stopped.
    for number in range(1, 11):
        router.process.send_signal(signal.SIGSTOP)
        wires.left.send(*[frame(9)] * 1000)
        router.process.send_signal(signal.SIGCONT)
        assert wait_for(lambda: router.show("counters")["received"] >= number * 900, 20)  # noqa: B023
    after = blocks(router)
    received = router.counters()["received"]
    # Far fewer than bursts of 64.
    assert after["blocks"] - before["blocks"] < received / 100, (before, after, received)
    router.stop()

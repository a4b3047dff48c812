"""Other cores, and more or fewer forwarders, for a running router."""

import contextlib
import re
from pathlib import Path

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import DRIVERS, PORTS, STATIC_NEIGHBOURS, Hosts, Wires, ports_by
from lib.netns import veth, wait_for
from lib.traffic import Sink, Stream

# Counts and passes on.
COUNTING = """
local seen = turnpike.counter "seen"
local step = turnpike.step "count" {
  process = function(batch, mask) seen:add(mask:count()) return mask end,
}
turnpike.graph:insert_after("ip4-validate", step)
"""


def on(cores):
    return f'turnpike.forwarders {{ cores = "{cores}" }}\n'


def run_on(router, *cores):
    """Are there forwarders on these cores, by their numbers, and no others? One that has just ended may
    be seen for a moment."""
    def threads():
        found = {}
        for task in Path(f"/proc/{router.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                text = (task / "status").read_text()
                if number := re.match(r"Name:\s*forwarder-(\d+)", text):
                    found[int(number[1])] = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.M)[1]
        return [found[number] for number in sorted(found)]

    return wait_for(lambda: threads() == list(cores), 20)


# A forwarder of AF_PACKET that has no core for a quarter of a second loses what comes meanwhile.
@pytest.mark.alone
@pytest.mark.parametrize("first", ["0", "0,1"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_no_packet_is_lost_doubled_or_overtaken(lab, driver, first):
    ports = ports_by(driver)
    hosts = Hosts(lab, on(first) + COUNTING, ports)
    router = hosts.router
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    ways = [(hosts.left, "10.0.2.2", hosts.right), (hosts.right, "10.0.1.2", hosts.left)]
    flows = [(Sink(target), Stream(source, [address], rate=2000)) for source, address, target in ways]
    assert all(sink.wait(1) for sink, _ in flows)
    last = router.show("counters")
    for cores in ["1", "0,1", "1", "0", "0,1", "0"] * 4:
        apply(router, ports + on(cores) + COUNTING)
        assert run_on(router, *cores.split(","))
        assert all(sink.wait(20) for sink, _ in flows)
        now = router.show("counters")
        assert now["received"] >= last["received"] + 40 and now["steps"]["seen"] >= last["steps"]["seen"] + 40
        assert all(now["dropped"][reason] >= count for reason, count in last["dropped"].items())
        last = now
    total = 0
    for sink, stream in flows:
        sent = stream.stop()
        arrived = [number for number, _ in sink.arrived()]
        assert arrived == list(range(sent)), f"{sent} sent, {len(arrived)} arrived"
        total += sent
    counters = router.counters()
    defects = {"port-down", "tx-full", "handover-full", "inject-full", "shutdown", "step-lost"}
    assert not any(counters["dropped"].get(reason) for reason in defects), counters["dropped"]
    assert counters["steps"]["seen"] >= total
    router.stop()


def test_what_the_kernel_and_the_slow_path_send_is_not_lost(lab):
    settings = PORTS + 'turnpike.routes_from { "kernel" }\nturnpike.slowpath { workers = 2 }\n'
    hosts = Hosts(lab, on("0") + 'turnpike.routes_from { "kernel" }\nturnpike.slowpath { workers = 2 }\n')
    ping = ["ping", "-n", "-i", "0.005", "-c", 600, "-W", 3]
    assert wait_for(lambda: hosts.inside.run("ping", "-c", 1, "-W", 1, "10.0.2.2").returncode == 0)
    assert wait_for(lambda: hosts.inside.run("ping", "-c", 1, "-W", 1, "10.0.1.2").returncode == 0)
    pings = [hosts.inside.spawn(*map(str, ping), address, stdout=-1, text=True) for address in ["10.0.1.2", "10.0.2.2"]]
    pings += [hosts.left.spawn(*map(str, ping), "10.0.1.1", stdout=-1, text=True)]
    for cores in ["0,1", "1", "0,1", "0"] * 3:
        apply(hosts.router, settings + on(cores))
    for one in pings:
        said = one.communicate(timeout=30)[0]
        assert "600 received, 0% packet loss" in said, said[-300:]
    hosts.router.stop()


def test_a_plan_says_that_it_is_live_and_a_rollback_goes_back(lab):
    router = Wires(lab, on("0")).router
    base = PORTS + STATIC_NEIGHBOURS
    report, status = plan(router, base + on("0,1"))
    lines = {(c["what"], c["from"], c["to"], c["live"]) for c in report["changes"]}
    assert lines == {("forwarders: cores", "0", "0, 1", True)} and status == 2 and not report["restart"]
    assert apply(router, base + on("0,1"))["pause_us"] > 0
    assert run_on(router, "0", "1")
    assert apply(router, base + on("1"))["pause_us"] > 0
    assert run_on(router, "1")
    assert apply(router, base + on("0"))["pause_us"] is None, "the thread moves, the queues do not"
    assert run_on(router, "0")
    router.command("rollback")
    assert run_on(router, "1")
    apply(router, base + on("0,1"), "--confirm", "5s")
    assert run_on(router, "0", "1")
    assert run_on(router, "1")
    error = refused(router, "apply", write(router, base + on("0,4000")))
    assert "core 4000" in error and run_on(router, "1")
    router.stop()


def test_ports_and_forwarders_change_together(lab):
    hosts = Hosts(lab, on("0"))
    router, third = hosts.router, lab.namespace("third")
    veth(hosts.inside, "tp-third", third, "eth0", "02:00:00:00:03:01", "02:00:00:00:03:02")
    third.run("ip", "address", "add", "10.0.3.2/24", "dev", "eth0")
    third.run("ip", "route", "add", "default", "via", "10.0.3.1")
    port = 'turnpike.port "third" { device = "tp-third", address = "10.0.3.1/24" }\n'
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    sink, stream = Sink(hosts.right), Stream(hosts.left, ["10.0.2.2"], rate=2000)
    assert sink.wait(1)
    for _ in range(3):
        apply(router, PORTS + port + on("0,1"))
        assert run_on(router, "0", "1")
        assert third.run("ping", "-c", 3, "-i", "0.05", "-W", 3, "10.0.2.2").returncode == 0
        shown = {one["name"]: one["rx_queues"] for one in router.show("ports")}
        assert shown.keys() == {"left", "right", "third"}
        apply(router, PORTS + port + on("1"))
        assert third.run("ping", "-c", 3, "-i", "0.05", "-W", 3, "10.0.1.2").returncode == 0
        router.command("rollback", 1)
        assert run_on(router, "0") and len(router.show("ports")) == 2
    sent = stream.stop()
    assert [number for number, _ in sink.arrived()] == list(range(sent))
    router.counters()
    router.stop()

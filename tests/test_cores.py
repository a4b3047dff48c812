"""Other cores, and more or fewer forwarders, for a running router; cores for control alone."""

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import DRIVERS, HOST_A_MAC, LEFT_MAC, PORTS, STATIC_NEIGHBOURS, Hosts, Wires, ports_by
from lib.netns import on_core, veth, wait_for
from lib.packets import ethernet, ipv4, pattern, pcap_file
from lib.router import binary
from lib.soak import repeated
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
    """Returns true if exactly these cores have forwarders, by number. One that has just ended may be seen for a
    moment."""
    def threads():
        found = {}
        for task in Path(f"/proc/{router.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                text = (task / "status").read_text()
                if number := re.match(r"Name:\s*forwarder-(\d+)", text):
                    found[int(number[1])] = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.M)[1]
        return [found[number] for number in sorted(found)]

    return wait_for(lambda: threads() == list(cores), 20)


# A forwarder of AF_PACKET without a core for a quarter of a second loses packets meanwhile.
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
    for cores in ["1", "0,1", "1", "0", "0,1", "0"] * repeated(1):
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
    assert lines == {("cores: forward", "0", "0, 1", True)} and status == 2 and not report["restart"]
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


# Everything with separate threads: the API, telnet, kernel and zebra listeners, the quarantine's writer, several slow
# path workers, host interfaces, steps in Lua with their watchdog.
MANY_THREADS = COUNTING + """
turnpike.routes_from { "kernel", "fpm" }
turnpike.fpm { listen = "127.0.0.1:2620" }
turnpike.telnet {}
turnpike.slowpath { workers = %d }
"""


def split(control, forward):
    return f'turnpike.cores {{ control = "{control}", forward = "{forward}" }}\n'


def places(router):
    """The cores that the kernel allows each thread, by the thread's number: name and list."""
    found = {}
    for task in Path(f"/proc/{router.process.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            text = (task / "status").read_text()
            name = re.match(r"Name:\s*(\S+)", text)[1]
            found[int(task.name)] = (name, re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.M)[1])
    return found


def assert_apart(router, control, *forward):
    """Checks that forwarders are on their cores, and every other thread on control's."""
    assert run_on(router, *forward)
    threads = places(router).values()
    assert {cores for name, cores in threads if not name.startswith("forwarder-")} == {control}, threads
    shown = router.show("forwarders")
    assert [one["interference"]["allowed"] for one in shown["forwarders"]] == [[int(core)] for core in forward]
    assert ",".join(map(str, shown["control"])) == control.replace("-", ",")
    return {name for name, _ in threads}


def test_nothing_but_forwarders_runs_on_their_cores(lab):
    wires = Wires(lab, MANY_THREADS % 2)
    router = wires.router
    # The default on this machine: the last core for the forwarder, every other for the rest.
    names = assert_apart(router, "0", "1")
    expected = {"turnpike", "signals", "api", "api-aside", "owner-aside", "quarantine", "slow-path-0", "slow-path-1",
                "lua-watchdog", "forwarder-0"}
    assert expected <= names and len(places(router)) > len(expected), names
    veth(wires.inside, "tp-third", lab.namespace("third"), "eth0", "02:00:00:00:03:01", "02:00:00:00:03:02")
    more = 'turnpike.port "third" { device = "tp-third", address = "10.0.3.1/24", host = true }\n'
    base = PORTS + STATIC_NEIGHBOURS
    apply(router, base + more + MANY_THREADS % 2)
    assert_apart(router, "0", "1")
    # Control and forwarder swap cores, with every existing thread.
    report, status = plan(router, base + more + MANY_THREADS % 2 + split(1, 0))
    lines = {(c["what"], c["to"], c["live"]) for c in report["changes"]}
    assert {("cores: control", "1", True), ("cores: forward", "0", True)} <= lines and status == 2
    apply(router, base + more + MANY_THREADS % 2 + split(1, 0))
    assert_apart(router, "1", "0")
    router.command("rollback")
    assert_apart(router, "0", "1")
    router.stop()


def test_where_no_core_is_left_control_shares_and_says_so(lab):
    wires = Wires(lab, on("1"))
    router, sentence = wires.router, "control shares core 0-1 with forwarders"
    assert "cores: forwarders on 1, control on 0" in router.log()
    assert not any("shares" in line for line in router.show("forwarders")["advice"])
    apply(router, PORTS + STATIC_NEIGHBOURS + on("0,1"))
    assert_apart(router, "0-1", "0", "1")
    assert sentence in router.log() and any(sentence in line for line in router.show("forwarders")["advice"])
    assert sentence in router.command("show", "forwarders").stdout
    apply(router, PORTS + STATIC_NEIGHBOURS + split(0, 1))
    assert_apart(router, "0", "1")
    router.stop()


def test_on_one_core_both_share_it(lab):
    with on_core(1):
        router = Wires(lab).router
        assert_apart(router, "1", "1")
        assert "control shares core 1 with forwarders" in router.log()
        router.stop()


@pytest.mark.parametrize(("cores", "message"), [
    (split(0, 4000), "forwarders: core 4000 does not exist; this machine has 0, 1"),
    (split(4000, 1), "control: core 4000 does not exist; this machine has 0, 1"),
    (split("0-1", 1), "core 1 is for forwarders and for control (line 10); name it once"),
    (split("", 1), 'cores: control "": "" is not a core or a range; write "1,3-5"'),
    ('turnpike.cores { control = "0-1" }\n', "control has every core that this process may use (0, 1)"),
    (split(0, 1) + on("1"), "forwarders: cores given on line 10 already, as forward in turnpike.cores"),
])
def test_wrong_cores_are_refused_by_a_running_router(lab, cores, message):
    router = Wires(lab).router
    error = refused(router, "apply", write(router, PORTS + STATIC_NEIGHBOURS + cores))
    assert re.search(r"new\.lua:\d+: ", error) and message in error, error
    assert_apart(router, "0", "1")
    router.stop()


def test_cores_outside_the_cpuset_are_refused(tmp_path):
    file = tmp_path / "router.lua"
    file.write_text('local turnpike = require "turnpike"\nturnpike.port "a" { device = "net_null0" }\n' + split(0, 1))
    with on_core(0):
        done = subprocess.run([binary(), "check", file], capture_output=True, text=True, timeout=60)
    message = "router.lua:3: forwarders: core 1 is not allowed to this process (cpuset or taskset); allowed: 0"
    assert done.returncode == 1 and message in done.stderr, done


class Hog:
    """A process that uses all available time of one core; `real_time`: in turns with others of that priority."""

    def __init__(self, core, real_time=False):
        loop = ["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]
        self._process = subprocess.Popen(["chrt", "--rr", "1", *loop] if real_time else loop)

    def ran(self):
        """Seconds for which it has run."""
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e9

    def __enter__(self):
        assert wait_for(lambda: self.ran() > 0.01)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()


def forwarder(router):
    """The number of the only forwarder's thread."""
    (thread,) = [thread for thread, (name, _) in places(router).items() if name == "forwarder-0"]
    return thread


def waiting(router, hog, seconds):
    """The share of the time in which the forwarder was ready to run and others had its core, while the hog runs for so
    long."""
    schedule = Path(f"/proc/{router.process.pid}/task/{forwarder(router)}/schedstat")
    times = lambda: [int(word) for word in schedule.read_text().split()[:2]]
    (ran, waited), begun = times(), hog.ran()
    assert wait_for(lambda: hog.ran() > begun + seconds, 60)
    ran, waited = (after - before for after, before in zip(times(), (ran, waited)))
    return waited / (ran + waited)


@pytest.mark.alone
def test_a_busy_program_on_the_control_core_leaves_forwarders_alone(lab):
    packet = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", pattern(40)))
    ports = """
local turnpike = require "turnpike"
turnpike.port "left"  { device = "net_pcap0,rx_pcap=in.pcap,infinite_rx=1", address = "10.0.1.1/24", host = false,
                        mac = "02:00:00:00:01:01" }
turnpike.port "right" { device = "net_null0", address = "10.0.2.1/24", host = false }
turnpike.neighbour "10.0.2.2" { port = "right", mac = "02:00:00:00:02:02" }
"""
    router = lab.router(lab.namespace("router", quiet=True), ports + split(0, 1),
                        files={"in.pcap": pcap_file([packet] * 64)})
    assert wait_for(lambda: router.show("counters")["sent"] > 100_000, 20)
    # So that only the hog counts, and no other load of the machine.
    os.sched_setscheduler(forwarder(router), os.SCHED_RR, os.sched_param(1))
    with Hog(0, real_time=True) as hog:
        assert waiting(router, hog, 0.5) < 0.2
    with Hog(1, real_time=True) as hog:
        assert waiting(router, hog, 0.5) > 0.3
    os.sched_setscheduler(forwarder(router), os.SCHED_OTHER, os.sched_param(0))
    before = router.show("forwarders")["forwarders"][0]["interference"]
    with Hog(1) as hog:
        waiting(router, hog, 0.5)
        assert wait_for(lambda: "other threads took the core from forwarder 0 (core 1)" in router.log(), 20)
        after = router.show("forwarders")["forwarders"][0]["interference"]
    assert after["involuntary_switches"] - before["involuntary_switches"] >= 10
    assert after["waited_us"] - before["waited_us"] > 300_000 and after["major_faults"] == 0
    router.stop()


@pytest.mark.flood
def test_a_queue_of_a_busy_forwarder_goes_to_an_idle_one(lab):
    # Two sources that never rest are on one forwarder, since ports are distributed in turn.
    packets = [ethernet(f"02:70:63:61:70:{number:02x}", HOST_A_MAC, 0x0800,
                        ipv4(f"10.0.{number}.2", "10.0.4.2", pattern(40))) for number in (1, 2)]
    text = """
local turnpike = require "turnpike"
local function source(name, net, device)
  turnpike.port(name, { device = device, address = "10.0." .. net .. ".1/24", host = false,
                        mac = "02:70:63:61:70:0" .. net, rx_queues = 1 })
end
source("one", 1, "net_pcap0,rx_pcap=1.pcap,infinite_rx=1")
source("quiet", 3, "net_null0,no-rx=1")
source("two", 2, "net_pcap1,rx_pcap=2.pcap,infinite_rx=1")
source("out", 4, "net_null1,no-rx=1")
turnpike.neighbour "10.0.4.2" { port = "out", mac = "02:00:00:00:04:02" }
turnpike.forwarders { cores = "0,1", rebalance = %s }
"""
    files = {f"{number}.pcap": pcap_file([packet] * 64) for number, packet in enumerate(packets, 1)}
    router = lab.router(lab.namespace("router", quiet=True), text % "false", files=files)
    shown = lambda: router.show("forwarders")  # noqa: E731
    served = lambda: [one["rx"] for one in shown()["forwarders"]]  # noqa: E731
    assert wait_for(lambda: shown()["forwarders"][0]["busy_percent"] > 90, 20), shown()
    assert served() == [["one:0", "two:0"], ["quiet:0", "out:0"]] and shown()["moved"] == 0
    apply(router, text % "true")
    assert wait_for(lambda: shown()["moved"] == 1, 30), shown()
    # The one that still has its queue, and the other: both work.
    assert sorted(len([queue for queue in rx if queue in ("one:0", "two:0")]) for rx in served()) == [1, 1]
    assert wait_for(lambda: all(one["busy_percent"] > 60 for one in shown()["forwarders"]), 20), shown()
    assert re.search(r"port \"(one|two)\": receive queue 0 goes from forwarder 0 \(busy \d+ %\) to forwarder 1", router.log())
    assert "1 receive queue went to a less busy forwarder" in router.command("show", "forwarders").stdout
    # Another apply does not move it.
    apply(router, text % "true" + 'turnpike.route "10.9.0.0/16" { via = "10.0.4.2" }\n')
    assert sorted(len([queue for queue in rx if queue in ("one:0", "two:0")]) for rx in served()) == [1, 1]
    router.stop()


@pytest.mark.parametrize("cores", ["0", "0,1"], ids=["one", "two"])
def test_a_forwarder_uses_the_buffers_that_it_frees_and_goes_to_the_pool_for_many_at_once(lab, cores):
    ports = ports_by("af_packet")
    if cores == "0,1":
        ports = ports.replace('"tp-left",', '"tp-left", rx_cores = { 0 },').replace('"tp-right",', '"tp-right", tx_cores = { 1 },')
    wires = Wires(lab, on(cores), ports + STATIC_NEIGHBOURS, calm=True)
    one = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", pattern(40)))

    def sent():
        wires.left.send(*[one] * 50)
        wires.right.receive(0, longest=0.01)
        return wires.router.show("counters")["sent"]

    # Twice as many as a cache has, and so many that fall to one forwarder; a busy machine loses some before.
    assert wait_for(lambda: sent() > 5_000, 60, 0), wires.router.show("counters")
    packets = wires.router.show("counters")["sent"]
    forwarders = wires.router.show("forwarders")["forwarders"]
    takes, gives = ([one[key] for one in forwarders] for key in ("pool_takes", "pool_gives"))
    if cores == "0":
        assert takes[0] + gives[0] < packets / 200, forwarders
    else:
        # One receives all, and the other one sends and frees them.
        assert packets / 600 < max(takes) < packets / 50 and packets / 600 < max(gives) < packets / 50, forwarders
        assert takes.index(max(takes)) != gives.index(max(gives)), forwarders
    text = wires.router.command("show", "forwarders").stdout
    assert "POOL/PACKET" in text.splitlines()[0], text
    wires.router.stop()

"""Another configuration for a running router: plan, apply, confirm, rollback, history."""

import json
import re
import signal
import time

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, pattern, udp
from lib.router import Change
from lib.soak import repeated
from lib.traffic import Sink, Stream, lost

BASE = PORTS + STATIC_NEIGHBOURS

ROUTES = """
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.route "203.0.113.0/24"  { via = "10.0.2.2" }
"""

# Counts and passes on; `NAME` is another step for each apply.
COUNTING = """
local seen = turnpike.counter "seen"
local step = turnpike.step "NAME" {
  process = function(batch, mask) seen:add(mask:count()) return mask end,
}
turnpike.graph:insert_after("ip4-validate", step)
"""

NATIVE = 'turnpike.graph:insert_after("ip4-lookup.forward", { "ip4-ttl", as = "second-ttl" })\n'


def history(router):
    return json.loads(router.command("history", "--json").stdout)


def static_routes(router):
    routes = router.show("routes", "--source", "static")
    return {route["prefix"]: route["type"] for route in routes}


def steps(router):
    return [step["name"] for step in router.show("steps")["steps"]]


def state(router):
    """All state that a change could affect, as far as it can be observed."""
    return static_routes(router), steps(router), router.show("neighbours"), [
        {key: port[key] for key in ("name", "mtu", "addresses")} for port in router.show("ports")
    ]


def packet(destination, ttl=64):
    datagram = udp("10.0.1.2", destination, 1000, 53, b"payload")
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", destination, datagram, ttl=ttl))


# A frame that `ip4-validate` drops: the header's checksum is wrong.
CORRUPT = packet("10.0.2.2")[:24] + b"\0\0" + packet("10.0.2.2")[26:]


def arrives(wires, frame):
    return wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]


def test_a_plan_names_every_change_and_changes_nothing(lab):
    wires = Wires(lab, ROUTES, calm=True)
    router = wires.router
    before = state(router)
    same, status = plan(router, BASE + "-- a comment\n" + ROUTES)
    assert (same["changes"], status) == ([], 0)
    assert router.command("plan", router.config).stdout == "nothing would change\n"
    other = BASE.replace('"tp-right",', '"tp-right", mtu = 1400,').replace("16384", "20000") + NATIVE + """
    turnpike.route "198.51.100.0/24" { via = { "10.0.2.2", "10.0.1.2" } }
    turnpike.route "192.0.2.0/24" { blackhole = true }
    """
    report, status = plan(router, other)
    assert status == 2 and report["restart"]
    lines = {(c["what"], c["from"], c["to"], c["live"]) for c in report["changes"]}
    assert lines == {
        ('port "right": mtu', "the device's", "1400", True),
        ("memory: mbufs", "16384", "20000", False),
        ("graph: ip4-lookup.forward", '"ip4-ttl"', '"second-ttl"', True),
        ('graph: step "second-ttl"', None, '{ "ip4-ttl", as = "second-ttl" }', True),
        ("graph: second-ttl.ok", None, '"ip4-ttl"', True),
        ("route 203.0.113.0/24", "via 10.0.2.2 (right)", None, True),
        ("route 198.51.100.0/24", "via 10.0.2.2 (right)", "via 10.0.2.2 (right), 10.0.1.2 (left)", True),
        ("route 192.0.2.0/24", None, "blackhole", True),
    }
    text = router.command("plan", write(router, other), check=False).stdout
    assert '~ port "right": mtu: the device\'s -> 1400  [closes the port and opens it again]' in text
    assert "~ memory: mbufs: 16384 -> 20000  [needs a restart: packet memory is reserved when the router starts]" in text
    assert "8 changes, of which 1 needs a restart: apply refuses them all" in text
    error = refused(router, "apply", write(router, other))
    assert 'port "right": mtu' not in error and "memory: mbufs" in error and "nothing was changed" in error
    assert state(router) == before and len(history(router)) == 1


def test_many_routes_are_counted_and_shown_when_asked_for(lab):
    router = Wires(lab).router
    many = BASE + 'for i = 0, 255 do turnpike.route("10.50." .. i .. ".0/24") { via = "10.0.2.2" } end\n'
    report, _ = plan(router, many)
    assert report["routes"] == {"added": 256, "removed": 0, "changed": 0} and len(report["changes"]) == 10
    assert "… and 246 more routes" in router.command("plan", write(router, many), check=False).stdout
    report, _ = plan(router, many, "--all")
    assert len(report["changes"]) == 256
    assert apply(router, many)["summary"] == "256 routes added"
    assert len(static_routes(router)) == 256
    assert apply(router, BASE)["summary"] == "256 routes removed"
    assert static_routes(router) == {}


@pytest.mark.alone
def test_a_large_table_changes_and_its_other_half_forwards(lab):
    hosts = Hosts(lab)
    network = 'for i = 0, 199 do for k = 0, 255 do turnpike.route("20." .. i .. "." .. k .. ".0/24") { via = VIA } end end\n'
    kept = network.replace("VIA", '"10.0.2.2"')
    changing = network.replace('"20."', '"21."')
    hosts.right.run("ip", "address", "add", "20.3.4.5/32", "dev", "lo")
    assert apply(hosts.router, PORTS + kept)["summary"] == "51200 routes added"
    sink, stream = Sink(hosts.right), Stream(hosts.left, ["20.3.4.5"], rate=2000)
    assert sink.wait()
    for via, summary in (
        ('"10.0.2.2"', "51200 routes added"),
        ('"10.0.1.2"', "51200 routes changed"),
        (None, "51200 routes removed"),
    ):
        text = PORTS + kept + (changing.replace("VIA", via) if via else "")
        assert apply(hosts.router, text)["summary"] == summary
    assert lost(stream.stop(), sink) == []
    assert len(static_routes(hosts.router)) == 51200
    hosts.router.stop()


def test_what_is_wrong_is_said_and_nothing_changes(lab):
    router = Wires(lab, ROUTES).router
    before = state(router)
    for text, expected in [
        ("turnpike.port", "new.lua:1: "),
        (BASE + 'turnpike.rout "10.0.0.0/8" { }', "rout"),
        (BASE + 'turnpike.route "10.9.0.0/16" { via = "172.16.0.1" }', "is unreachable"),
        (BASE + 'turnpike.graph:remove "nothing"', 'step "nothing" not found'),
        (BASE.replace("tp-right", "tp-wrong"), "device tp-wrong not found"),
        (BASE + 'turnpike.import { file = "missing", via = "10.0.2.2" }', "cannot be read"),
        # A forwarder's script has less memory than the configuration's.
        (BASE + COUNTING + 'local much = {} for i = 1, 36 do much[i] = ("x"):rep(2^23) .. i end', "on a forwarder"),
    ]:
        file = write(router, text)
        for command in ["plan", "apply"]:
            if command == "apply" or "on a forwarder" not in expected:
                assert expected in refused(router, command, file), (command, text)
    assert "cannot be read" in refused(router, "apply", "/nonexistent/file.lua")
    assert state(router) == before and [entry["number"] for entry in history(router)] == [1]


def test_routes_change_and_the_others_are_not_touched(lab):
    wires = Wires(lab, ROUTES, calm=True)
    router = wires.router
    router.command("route", "add", "192.0.2.0/24", "via", "10.0.2.2")
    answer = apply(router, BASE + ROUTES.replace("203.0.113.0/24", "203.0.112.0/24")
                   + 'turnpike.route "100.64.0.0/10" { via = { "10.0.2.2", "10.0.1.2" }, resilient = true }')
    assert (answer["number"], answer["summary"]) == (2, "2 routes added, 1 route removed")
    assert answer["pause_us"] is None, "no forwarder has to do with it"
    assert static_routes(router).keys() == {"198.51.100.0/24", "203.0.112.0/24", "100.64.0.0/10"}
    for address in ["198.51.100.1", "203.0.112.1", "192.0.2.1"]:
        wires.left.send(packet(address))
        assert arrives(wires, packet(address)), address
    change = Change(router)
    wires.left.send(packet("203.0.113.1"))
    assert change(received=1)["dropped"] == {"no-route": 1}
    apply(router, BASE + 'turnpike.route "198.51.100.0/24" { blackhole = true }')
    assert static_routes(router) == {"198.51.100.0/24": "blackhole"}
    wires.left.send(packet("198.51.100.1"))
    assert wait_for(lambda: router.counters()["dropped"]["blackhole"] == 1)
    router.stop()


@pytest.mark.alone
@pytest.mark.parametrize("cores", ["0", "0,1"])
def test_graphs_change_under_way_and_no_packet_is_lost_doubled_or_overtaken(lab, cores):
    settings = f'turnpike.forwarders {{ cores = "{cores}" }}\n'
    hosts = Hosts(lab, settings)
    router = hosts.router
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    sink = Sink(hosts.right)
    stream = Stream(hosts.left, ["10.0.2.2"], rate=2000)
    assert sink.wait(1)
    kinds = [NATIVE, "", COUNTING, COUNTING + "-- other text\n", NATIVE + COUNTING]
    last = router.show("counters")
    # The history keeps 50.
    rounds = repeated(15) if cores == "0" else 50
    for n in range(rounds):
        answer = apply(router, PORTS + settings + kinds[n % len(kinds)].replace("NAME", f"count-{n % 7}"))
        assert answer["number"] == n + 2
        counters = router.show("counters")
        assert all(counters["dropped"][reason] >= count for reason, count in last["dropped"].items())
        assert counters["received"] >= last["received"]
        last = counters
    sent = stream.stop()
    arrived = [number for number, _ in sink.arrived()]
    assert arrived == list(range(sent)), f"{sent} sent, {len(arrived)} arrived"
    # The counts of the Lua steps of all graphs are kept.
    assert 0 < router.counters()["steps"]["seen"] < sent
    assert len(history(router)) == min(rounds + 1, 50) and history(router)[-1]["number"] == rounds + 1
    router.stop()


def test_what_graphs_dropped_stays_counted(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    change = Change(router)
    for n, extra in enumerate([NATIVE, COUNTING.replace("NAME", "a"), COUNTING.replace("NAME", "b"), ""]):
        wires.left.send(packet("10.0.2.2"), CORRUPT)
        assert wires.right.expect(1)
        assert wait_for(lambda: router.show("counters")["dropped"]["ip4-checksum"] == n + 1)
        apply(router, BASE + extra)
        shown = {step["name"]: step["packets"] for step in router.show("graph")["steps"]}
        assert shown["classify"] == 0, "a new graph has counted nothing"
    assert change(received=8)["dropped"] == {"ip4-checksum": 4}
    # One packet each in the third and the fourth graph, which were removed.
    apply(router, BASE + COUNTING.replace("NAME", "a"))
    assert router.counters()["steps"]["seen"] == 2
    router.stop()


def test_an_apply_that_is_not_confirmed_is_taken_back(lab):
    wires = Wires(lab, ROUTES)
    router = wires.router
    before = state(router)
    other = BASE + NATIVE + 'turnpike.route "192.0.2.0/24" { blackhole = true }'
    answer = apply(router, other, "--confirm", "5s")
    assert answer["confirm_s"] == 5 and state(router) != before
    assert [entry["state"] for entry in history(router)] == [None, "waiting"]
    error = refused(router, "apply", write(router, BASE))
    assert "configuration 2 is to be confirmed within" in error and "turnpike confirm keeps it" in error
    assert wait_for(lambda: len(history(router)) == 3, 20)
    assert state(router) == before
    assert "configuration 2: not confirmed in time" in router.log()
    assert [(e["origin"], e["state"]) for e in history(router)][1:] == [("apply", None), ("2 was not confirmed", "current")]
    assert "no configuration awaits confirmation" in refused(router, "confirm")
    router.stop()


def test_an_apply_that_is_confirmed_stays(lab):
    router = Wires(lab, ROUTES).router
    apply(router, BASE + NATIVE, "--confirm", "4s")
    text = router.command("history").stdout
    assert "waiting, " in text.splitlines()[1]
    assert router.command("confirm").stdout == "configuration 2 confirmed\n"
    time.sleep(4.5)
    assert "second-ttl" in steps(router) and static_routes(router) == {} and len(history(router)) == 2
    # Rolled back by hand before the timeout.
    apply(router, BASE, "--confirm", "1h")
    assert "second-ttl" not in steps(router)
    assert json.loads(router.command("rollback", "--json").stdout)["number"] == 4
    assert "second-ttl" in steps(router)
    assert "no configuration awaits confirmation" in refused(router, "confirm")


def test_history_and_rollback(lab):
    router = Wires(lab, ROUTES).router
    assert "there is none before it" in refused(router, "rollback")
    texts = [BASE + ROUTES, BASE + NATIVE, BASE + ROUTES + NATIVE, BASE]
    for text in texts[1:]:
        apply(router, text)
    assert [(e["number"], e["origin"]) for e in history(router)] == [
        (1, "start"), (2, "apply"), (3, "apply"), (4, "apply"),
    ]
    for number, text in enumerate(texts, 1):
        assert router.command("history", number).stdout == text.rstrip() + "\n"
    assert "+ route 198.51.100.0/24" in router.command("history", 3, "--diff").stdout
    assert json.loads(router.command("rollback", 3, "--json").stdout)["summary"] == "2 routes added, graph"
    assert "second-ttl" in steps(router) and len(static_routes(router)) == 2
    router.command("rollback")
    assert "second-ttl" not in steps(router) and static_routes(router) == {}
    assert [e["origin"] for e in history(router)][4:] == ["rollback to 3", "rollback to 4"]
    assert "configuration 9: not in the history; there are 1 to 6" in refused(router, "rollback", 9)
    # The same configuration again is no change, and makes no entry.
    assert apply(router, BASE)["summary"] == "no change" and len(history(router)) == 7 - 1
    router.stop()


def test_what_fails_half_way_is_undone(lab):
    # One network with room for more gateways than the next-hop table: some routes are added, then it is full.
    wide = BASE.replace("10.0.2.1/24", "10.64.0.1/10")
    wide = wide.replace('"10.0.2.2"', '"10.64.0.2"')
    wires = Wires(lab, 'turnpike.route "192.0.2.0/24" { via = "10.64.0.2" }', ports=wide)
    router = wires.router
    numbers = ("next_hops", "fib_structure", "fib")

    def now():
        summary = router.show("routes", "--summary")
        return state(router), [summary[key] for key in numbers]

    before = now()
    # Route tables of another structure are filled, used, and left again.
    wide_other = wide + 'turnpike.fib { ipv4 = "poptrie", ipv6 = "reference" }\n'
    many = wide_other + NATIVE + 'turnpike.route "192.0.2.0/24" { blackhole = true }\n' + """
    for i = 1, 33000 do
      local gateway = string.format("10.65.%d.%d", math.floor(i / 250), i % 250 + 1)
      turnpike.route(string.format("100.64.%d.%d", math.floor(i / 250), i % 250)) { via = gateway }
    end
    """
    error = refused(router, "apply", write(router, many))
    assert "nothing was changed: line 16: route 100.64." in error and "next hops are in use" in error, error
    # Numbers are free again after a grace period.
    assert wait_for(lambda: now() == before, 10)
    assert len(history(router)) == 1
    apply(router, wide_other + NATIVE)
    assert router.show("routes", "--summary")["fib_structure"] == {"ipv4": "poptrie", "ipv6": "reference"}
    apply(router, wide + NATIVE)
    assert "second-ttl" in steps(router)
    router.stop()


def test_a_forwarder_that_is_in_a_step_for_long_keeps_its_graph(lab):
    # A step of the scenarios' binary does not return for this packet while a file of this name exists.
    faulty = 'turnpike.graph:insert_after("ip4-mtu", "faulty")\n'
    wires = Wires(lab, faulty, calm=True)
    router, stuck = wires.router, wires.router.directory / "stuck"
    before = state(router)
    stuck.touch()
    frame = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", pattern(40), ident=0xDEA1))
    wires.left.send(frame)
    assert wait_for(lambda: router.show("counters")["unaccounted"] == 1, 60)
    file = write(router, BASE + ROUTES + faulty)

    def right_is(state):
        return wait_for(lambda: router.show("ports")[1]["link"] == state, 60)

    def goes_on_while_it_waits():
        """Checks that the router handles and logs a link event before it has refused the change."""
        applying = router.begin("apply", file)
        wires.ns_right.run("ip", "link", "set", "wire", "down")
        assert right_is("down")
        waited = applying.poll() is None
        _, error = applying.communicate(timeout=120)
        assert applying.returncode == 1 and "panicked" not in error
        assert "forwarder 0 has not come to the end of a batch" in error
        wires.ns_right.run("ip", "link", "set", "wire", "up")
        assert right_is("up")
        return waited

    # It waits for some seconds; the machine may have been busy with something else for as long, once.
    assert any(goes_on_while_it_waits() for _ in range(5))
    assert state(router) == before and len(history(router)) == 1
    stuck.unlink()
    assert wires.right.expect(1) == [forwarded(frame, RIGHT_MAC, HOST_B_MAC)]
    assert apply(router, BASE + NATIVE)["number"] == 2
    wires.left.send(packet("10.0.2.2"))
    assert wires.right.expect(1)
    router.stop()


def test_routes_of_the_kernel_stay(lab):
    hosts = Hosts(lab, 'turnpike.routes_from { "kernel" }\n')
    router = hosts.router
    route = ("ip", "route", "add", "198.18.0.0/15", "via", "10.0.2.2")
    # The kernel gets the addresses of the ports a moment after the start.
    assert wait_for(lambda: hosts.inside.run(*route, check=False).returncode == 0)
    assert wait_for(lambda: router.show("routes", "--source", "kernel"))
    kernel = router.show("routes", "--source", "kernel")
    settings = PORTS + 'turnpike.routes_from { "kernel" }\n'
    apply(router, settings + NATIVE + 'turnpike.route "198.18.0.0/15" { blackhole = true }')
    assert router.show("route", "198.18.0.1")["type"] == "blackhole"
    apply(router, settings)
    assert router.show("route", "198.18.0.1")["source"] == "kernel"
    assert router.show("routes", "--source", "kernel") == kernel
    router.stop()


# --- SIGHUP: the file of the start, as it is now ---------------------------------------------------


def hang_up(router, text, word):
    """Writes the router's own file, sends SIGHUP, and waits for a message in the log."""
    router.config.write_text(text)
    before = len(router.log())
    router.process.send_signal(signal.SIGHUP)
    assert wait_for(lambda: re.search(word, router.log()[before:]), 20), router.log()[before:]


def test_sighup_applies_the_file(lab):
    router = Wires(lab, ROUTES, ports=BASE).router
    hang_up(router, BASE + ROUTES, r"SIGHUP: no change")
    assert [entry["origin"] for entry in history(router)] == ["start"]
    hang_up(router, BASE + 'turnpike.route "192.0.2.0/24" { via = "10.0.2.2" }\n', r"configuration 2 \(SIGHUP, .*router\.lua\)")
    assert set(static_routes(router)) == {"192.0.2.0/24"}
    assert [entry["origin"] for entry in history(router)] == ["start", "SIGHUP"]
    before = state(router)
    for text, why in [
        ("turnpike.port", "SIGHUP: refused, the router goes on as it is: .*router.lua:1"),
        (BASE.replace("mbufs = 16384", "mbufs = 16384, no_huge = true"), "SIGHUP: refused, .*only a restart can change: memory: no_huge"),
        (BASE + "turnpike.port 'x' { device = 'nowhere' }\n", "SIGHUP: refused, .*device nowhere not found"),
    ]:
        hang_up(router, text, why)
        assert state(router) == before
    router.config.unlink()
    router.process.send_signal(signal.SIGHUP)
    assert wait_for(lambda: "router.lua: cannot be read" in router.log(), 20)
    assert state(router) == before
    # A change that waits for confirmation is not overtaken.
    apply(router, BASE, "--confirm", "60s")
    hang_up(router, BASE + ROUTES, "SIGHUP: refused, .*is to be confirmed within")
    assert static_routes(router) == {}
    router.stop()


def test_a_print_of_its_own_in_a_configuration_costs_nobody_anything(lab):
    router = Wires(lab, ROUTES, ports=BASE).router
    mine = "function print(t) turnpike.graph:insert_after('ip4-ttl', { 'ip4-ttl', as = 'again' }) end\nturnpike.graph:print()\n"
    apply(router, BASE + mine)
    assert "panicked" not in router.log()
    apply(router, BASE + ROUTES)
    router.stop()


def test_the_level_of_the_log_changes(lab):
    router = Wires(lab, ROUTES, ports=BASE).router

    def lines():
        return router.log().count(" INFO ")

    quiet = BASE + 'turnpike.log { level = "error" }\n'
    report, _ = plan(router, quiet + ROUTES)
    assert ("log: level", "default", "error", True) in {
        (c["what"], c["from"], c["to"], c["live"]) for c in report["changes"]
    }
    apply(router, quiet + ROUTES)
    before = lines()
    apply(router, quiet)
    apply(router, quiet + ROUTES)
    assert lines() == before
    apply(router, BASE + ROUTES)
    apply(router, BASE)
    assert wait_for(lambda: lines() > before, 5)
    router.stop()

"""Reports of the router."""

import json
import re
import subprocess

import pytest

from lib.apply import apply
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.packets import ethernet, ipv4, ipv6, pattern, udp
from lib.router import Change, binary, drop_reasons

CONFIG = """
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.route "198.51.100.128/25" { via = "10.0.1.2" }
turnpike.route "192.0.2.0/24" { blackhole = true }
turnpike.route "2001:db8::/32" { via = "fd00:2::2" }
turnpike.route "0.0.0.0/0" { via = "10.0.2.2" }
"""


@pytest.fixture(scope="module")
def wires(module_lab):
    wires = Wires(module_lab, CONFIG)
    frames = [ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", pattern(40)))] * 7
    frames += [ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6("fd00:1::2", "fd00:2::2", pattern(40)))] * 5
    frames += [ethernet(LEFT_MAC, HOST_A_MAC, 0x88B5, bytes(46))] * 3
    frames += [ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "192.0.2.1", pattern(40)))] * 2
    wires.left.send(*frames)
    assert len(wires.right.expect(12)) == 12
    wires.router.counters()
    return wires


def test_ports(wires):
    left, right = wires.router.show("ports")
    assert left["name"] == "left" and right["name"] == "right"
    assert left["device"] == "tp-left" and left["mac"] == LEFT_MAC and right["mac"] == RIGHT_MAC
    assert left["mtu"] == 1500 and left["link"] == "up" and left["rx_packets"] == 17
    assert {"10.0.1.1/24", "fd00:1::1/64"} <= set(left["addresses"])
    text = wires.router.command("show", "ports").stdout
    assert "tp-left" in text and LEFT_MAC in text and "10.0.1.1/24" in text


def test_routes(wires):
    routes = {r["prefix"]: r for r in wires.router.show("routes")}
    assert routes["198.51.100.0/24"]["paths"] == [{"port": "right", "via": "10.0.2.2"}]
    assert routes["10.0.1.0/24"]["source"] == "connected"
    assert routes["2001:db8::/32"]["source"] == "static"
    assert routes["192.0.2.0/24"]["type"] == "blackhole"
    text = wires.router.command("show", "routes").stdout
    assert re.search(r"198\.51\.100\.128/25.*10\.0\.1\.2", text)


@pytest.mark.parametrize("address, prefix, via", [
    ("198.51.100.1", "198.51.100.0/24", "10.0.2.2"),
    ("198.51.100.127", "198.51.100.0/24", "10.0.2.2"),
    ("198.51.100.128", "198.51.100.128/25", "10.0.1.2"),
    ("198.51.101.1", "0.0.0.0/0", "10.0.2.2"),
    ("2001:db8:ffff::1", "2001:db8::/32", "fd00:2::2"),
])
def test_route(wires, address, prefix, via):
    route = wires.router.show("route", address)
    assert (route["address"], route["prefix"], route["source"]) == (address, prefix, "static")
    (path,) = route["paths"]
    mac = HOST_A_MAC if via == "10.0.1.2" else HOST_B_MAC
    assert (path["via"], path["mac"]) == (via, mac)
    assert path["port"] == ("left" if via == "10.0.1.2" else "right")
    assert prefix in wires.router.command("show", "route", address).stdout


def test_route_to_the_router_itself_to_a_neighbour_and_to_nowhere(wires):
    assert wires.router.show("route", "10.0.1.1")["type"] == "local"
    neighbour = wires.router.show("route", "10.0.2.2")
    assert neighbour["paths"][0]["mac"] == HOST_B_MAC
    assert wires.router.show("route", "192.0.2.77")["type"] == "blackhole"
    nowhere = wires.router.show("route", "2002::1")
    assert (nowhere["prefix"], nowhere["type"], nowhere["paths"]) == (None, "no-route", [])


def test_route_of_something_that_is_no_address(wires):
    done = wires.router.command("show", "route", "hello", check=False)
    assert done.returncode != 0 and "hello" in done.stderr


def test_neighbours(wires):
    entry = wires.router.neighbour("10.0.2.2")
    assert entry["port"] == "right" and entry["mac"] == HOST_B_MAC and entry["static"] is True
    text = wires.router.command("show", "neighbours").stdout
    assert re.search(rf"10\.0\.2\.2\b.*{HOST_B_MAC}", text)


def test_counters_list_every_reason_and_prove_the_sum(wires):
    counters = wires.router.counters()
    assert set(counters["dropped"]) == set(drop_reasons())
    assert counters["dropped"]["unknown-ethertype"] == 3 and counters["dropped"]["blackhole"] == 2
    short = drop_rows(wires.router.command("show", "counters").stdout)
    assert short[:2] == [("classify", "unknown-ethertype", 3), ("ip4-lookup", "blackhole", 2)], short
    text = wires.router.command("show", "counters", "--all").stdout
    assert {reason for _, reason, _ in drop_rows(text)} == set(drop_reasons())
    for value in (counters["received"], counters["sent"], counters["dropped_total"]):
        assert str(value) in text


def drop_rows(text):
    """Step, reason and packets of each drop in the table of `show counters`."""
    rows = re.findall(r"^ *(\S+) +([a-z0-9-]+) +(\d+)  \w", text, re.M)
    return [(step, reason, int(packets)) for step, reason, packets in rows]


def test_drops_for_one_reason_are_told_apart_by_step(lab):
    filters = "".join(
        f'turnpike.filter "{name}" {{ {{ proto = "udp", to_port = {port}, action = "drop" }}, default = "accept" }}\n'
        for name, port in (("in", 1), ("out", 2), ("to-router", 3))
    )
    ports = PORTS.replace('"tp-left",', '"tp-left", filter = { inward = "in" },')
    ports = ports.replace('"tp-right",', '"tp-right", filter = { outward = "out" },')
    wires = Wires(lab, filters, ports=ports + STATIC_NEIGHBOURS, calm=True)
    router, change = wires.router, Change(wires.router)
    for to, port, packets in (("10.0.2.2", 1, 2), ("10.0.2.2", 2, 4), ("10.0.1.1", 3, 3)):
        datagram = ipv4("10.0.1.2", to, udp("10.0.1.2", to, 9, port, pattern(20)))
        wires.left.send(*[ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, datagram)] * packets)
    assert change(received=9) == {"received": 9, "dropped": {"filtered": 9}}
    counts = {"ip4-filter-in": 2, "ip4-filter-out": 4, "to-router": 3}
    filtered = lambda text: [(step, n) for step, reason, n in drop_rows(text) if reason == "filtered"]
    largest_first = [("ip4-filter-out", 4), ("to-router", 3), ("ip4-filter-in", 2)]
    short = router.command("show", "counters").stdout
    assert filtered(short) == largest_first, short
    assert all(packets > 0 for _, _, packets in drop_rows(short)), short
    everything = router.command("show", "counters", "--all").stdout
    idle = {("ip6-filter-in", 0), ("ip6-filter-out", 0)}
    assert filtered(everything)[:3] == largest_first and idle <= set(filtered(everything)[3:]), everything
    # The next graph has none of these steps, and the counts stay.
    apply(router, PORTS + STATIC_NEIGHBOURS)
    assert not {step["name"] for step in router.show("steps")["steps"]} & set(counts)
    counters = router.counters()
    of_steps = counters["dropped_by_step"]
    assert {step: n["filtered"] for step, n in of_steps.items() if n.get("filtered")} == counts
    sums = {reason: sum(n.get(reason, 0) for n in of_steps.values()) for reason in drop_reasons()}
    assert sums == counters["dropped"]
    assert filtered(router.command("show", "counters").stdout) == largest_first
    router.stop()


def test_graph_json_conserves_packets(wires):
    steps = {s["name"]: s for s in wires.router.show("graph")["steps"]}
    assert steps["classify"]["packets"] >= 17
    for step in steps.values():
        assert step["packets"] == sum(o["packets"] for o in step["outputs"]), step
    incoming = dict.fromkeys(steps, 0)
    for step in steps.values():
        for output in step["outputs"]:
            if output["to"] in incoming:
                incoming[output["to"]] += output["packets"]
    for name, step in steps.items():
        if name != "classify":
            assert step["packets"] == incoming[name], name
    assert steps["ip4-rewrite"]["packets"] == 7 and steps["ip6-rewrite"]["packets"] == 5
    blackhole = [o for o in steps["ip4-lookup"]["outputs"] if o["name"] == "blackhole"]
    assert blackhole[0]["packets"] == 2


def test_graph_text(wires):
    text = wires.router.command("show", "graph").stdout
    assert text == wires.router.command("show", "graph", "--format", "text").stdout
    drawn, step = set(), None
    for line in text.splitlines():
        if head := re.match(r"([\w-]+)  (\d+) packets$", line):
            step = head[1]
        else:
            name, to, packets = re.match(r"  [|`]- ([\w-]+) +-> ([\w-]+) +(\d+)$", line).groups()
            drawn.add((step, to, name, int(packets)))
    assert drawn == edges(wires)


def edges(wires):
    """Every edge of the graph: from, to, name, packets."""
    return {
        (step["name"], output["to"], output["name"], output["packets"])
        for step in wires.router.show("graph")["steps"] for output in step["outputs"]
    }


def test_graph_dot(wires):
    dot = wires.router.command("show", "graph", "--format", "dot").stdout
    assert dot.startswith("digraph ") and dot.rstrip().endswith("}") and dot.count("{") == dot.count("}")
    drawn = re.findall(r'"([\w-]+)" -> "([\w-]+)" \[label="([\w-]+) (\d+)"', dot)
    assert {(a, b, name, int(n)) for a, b, name, n in drawn} == edges(wires)


def test_graph_mermaid(wires):
    mermaid = wires.router.command("show", "graph", "--format", "mermaid").stdout
    assert mermaid.startswith("flowchart ")
    drawn = re.findall(r'([\w-]+) (?:-->|==>)\|"([\w-]+) (\d+)"\| ([\w-]+)', mermaid)
    assert {(a, b, name, int(n)) for a, name, n, b in drawn} == edges(wires)


@pytest.mark.parametrize("what", ["ports", "routes", "neighbours", "counters", "graph"])
def test_without_a_router(what, tmp_path):
    socket = tmp_path / "nobody.sock"
    done = subprocess.run([binary(), "show", what, "--socket", socket], capture_output=True, text=True)
    assert done.returncode != 0 and str(socket) in done.stderr and "panicked" not in done.stderr


def test_an_unknown_command_is_refused(wires):
    done = wires.router.command("show", "everything", check=False)
    assert done.returncode != 0 and "everything" in done.stderr


def test_many_commands_at_once(wires):
    running = [
        subprocess.Popen([binary(), "show", "counters", "--json", "--socket", wires.router.socket],
                         stdout=subprocess.PIPE, text=True)
        for _ in range(20)
    ]
    for process in running:
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 0 and json.loads(out)["unaccounted"] == 0


def test_garbage_on_the_socket_does_no_harm(wires):
    import socket
    for junk in (b"", b"\n", b"hello\n", b"\xff" * 100000, b"{" * 10000 + b"\n", b'{"show":1}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(wires.router.socket))
            try:
                client.sendall(junk)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
    wires.router.counters()


# Required arguments of some names.
WORDS = {"route": ["10.0.2.2"]}


def declared():
    """Every `show` by its name, as the help lists them."""
    text = subprocess.run([binary(), "show", "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  ([a-z-]+) ", text.split("Commands:")[1].split("Options:")[0], re.M)


def test_every_show_answers_as_a_table_and_as_json(wires):
    names = [name for name in declared() if name != "help"]
    assert {"ports", "vrfs", "policing", "graph"} <= set(names) and len(names) > 15
    for name in names:
        words = WORDS.get(name, [])
        table = wires.router.command("show", name, *words).stdout
        answer = json.loads(wires.router.command("show", name, *words, "--json").stdout)
        assert isinstance(answer, (list, dict)) and table.strip() and not table.startswith(("{", "[")), (name, table)


def test_an_overview_counts_routes_by_source_and_changes_of_the_fib(lab):
    router = Wires(lab, CONFIG + 'turnpike.vrf "blue" {}\n').router
    ask = lambda: router._ask({"show": {"overview": {"interfaces": True, "vrfs": True}}})
    before = ask()
    assert before["status"]["configuration"] == 1 and not before["status"]["unconfirmed"], before["status"]
    assert {of["name"] for of in before["interfaces"]} == {"left", "right"} == {of["name"] for of in before["ports"]}
    default, blue = before["vrfs"]
    assert default["sources"]["static"] == {"ipv4": 4, "ipv6": 1} and "static" not in blue["sources"]
    for family in ("ipv4", "ipv6"):
        assert sum(of[family] for of in default["sources"].values()) == default["routes"][family], default
    router.command("route", "add", "203.0.113.0/24", "via", "10.0.2.2")
    # The best route to the prefix stays.
    router.command("route", "add", "203.0.113.0/24", "via", "10.0.1.2", "metric", "9")
    router.command("route", "del", "203.0.113.0/24")
    after = ask()
    changes = lambda overview, number: overview["vrfs"][number]["changes"]
    assert changes(after, 0)["ipv4"] == changes(before, 0)["ipv4"] + 2, (before, after)
    assert changes(after, 0)["ipv6"] == changes(before, 0)["ipv6"] and changes(after, 1) == changes(before, 1)
    assert after["at_us"] > before["at_us"]
    assert "interfaces" not in router._ask({"show": {"overview": {}}})
    assert re.search(r"^version +0\.\d+\.\d+, .+\nuptime +0 d 00:\d\d:\d\d\nconfiguration +1$",
                     router.command("show", "status").stdout.strip())

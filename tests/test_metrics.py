"""Metrics: what a scrape says is what hosts sent, whoever else is connected."""

import json
import os
import re
import socket
import subprocess
import urllib.parse

import pytest
from lib.apply import apply, plan, refused, write
from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, STATIC_NEIGHBOURS, Wires, from_left
from lib.metrics import get, parse, scrape, tcp, unix
from lib.netns import held_thread, wait_for
from lib.packets import ethernet, ipv4, udp
from lib.router import ROOT

MONITORING = ROOT / "examples/monitoring"

TCP = 'turnpike.metrics { listen = "127.0.0.1:9477" }\n'

# Everything that has metrics of its own.
FULL = """
turnpike.filter "guard" {
  { name = "web", proto = "udp", to_port = 80, action = "drop" },
  { proto = "udp", to_port = 81, state = { "new" } },
  default = "accept",
}
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.routes_from { "kernel" }
turnpike.sflow { collector = "127.0.0.1", sample = 1000 }
turnpike.ipfix { collector = "127.0.0.1", sample = 1000 }
turnpike.snmp {}
turnpike.vrf "blue" {}
local seen = turnpike.counter "seen"
local look = turnpike.step "look" { process = function(batch, mask) seen:add(1) return mask end }
turnpike.graph:insert_after("ip4-validate", look)
turnpike.vlan "left.7" { parent = "left", id = 7, vrf = "blue", address = "10.7.0.1/24" }
"""
# A filter follows the connections of packets that leave by its port.
FULL_PORTS = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "guard",').replace(
    'device = "tp-right",', 'device = "tp-right", filter = "guard", queue = { discipline = "codel" },')

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def socket_of(router):
    return router.directory / "metrics.sock"


def wires_with(lab, config=FULL, ports=FULL_PORTS, **options):
    """Wires whose router has its metrics by TCP."""
    return Wires(lab, TCP + config, ports=ports + STATIC_NEIGHBOURS, **options)


def read(wires):
    return scrape(tcp(wires.inside))


def to_port(port):
    data = udp("10.0.1.2", "10.0.2.2", 1000, port, b"payload")
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data))


def send(wires, frames, goal):
    """Sends frames and returns the scrape that has counted them, as received in all."""
    for frame in frames:
        wires.left.send(frame)
    received = lambda: read(wires).of("turnpike_received_packets_total")
    assert wait_for(lambda: received() >= goal, 10), received()
    wires.router.counters()
    return settled(wires)


def settled(wires):
    """A scrape made after those that were asked for before: one is served again for a moment."""
    first = read(wires)
    wait_for(lambda: read(wires) != first, 10)
    return read(wires)


def test_counts_are_those_of_the_wires(lab):
    wires = wires_with(lab, calm=True)
    before = settled(wires)
    frames = [from_left("10.0.1.2", "10.0.2.2")] * 5 + [from_left("10.0.1.2", "10.0.2.2", ttl=1)] * 3
    frames += [to_port(80)] * 4 + [to_port(81)]
    now = send(wires, frames, before.of("turnpike_received_packets_total") + len(frames))

    def change(name, **labels):
        # Drops outside the graph are there from the first one on.
        return now.of(name, **labels) - sum(before.all(name, **labels))

    assert len(wires.right.expect(6)) == 6
    left, right = {"interface": "left", "vrf": "default"}, {"interface": "right", "vrf": "default"}
    assert change("turnpike_interface_receive_packets_total", **left) == len(frames)
    assert change("turnpike_interface_receive_bytes_total", **left) == sum(map(len, frames))
    assert change("turnpike_interface_transmit_packets_total", **right) == 6
    assert change("turnpike_drops_total", step="slow-path", reason="ttl-expired") == 3
    assert change("turnpike_step_packets_total", step="ip4-ttl", output="ok") == 6
    assert change("turnpike_rule_hits_total", filter="guard", rule="web") == 4
    assert change("turnpike_rule_hits_total", filter="guard", rule="2") == 1
    assert change("turnpike_rule_hits_total", filter="guard", rule="default") == 8
    flows = wires.router.show("flows")
    assert now.of("turnpike_flows", family="ipv4") == flows["total"] == 2
    assert now.of("turnpike_flows", family="ipv6") == 0
    assert now.of("turnpike_script_events_total", counter="seen") > 0
    assert now.of("turnpike_slow_path_offered_packets_total", **{"class": "errors"}) == 3
    assert now.of("turnpike_neighbours", interface="right") == 2
    assert now.of("turnpike_routes", vrf="default", family="ipv4", origin="static") == 1
    assert now.of("turnpike_routes", vrf="blue", family="ipv4", origin="connected") == 1
    assert now.of("turnpike_interface_up", interface="left.7", vrf="blue") == 1
    summary = wires.router.show("summary")
    fib = now.of("turnpike_fib_routes", vrf="default", family="ipv6")
    assert fib + now.of("turnpike_fib_routes", vrf="blue", family="ipv6") == summary["fib"]["ipv6"]
    # All that is shown elsewhere.
    counters = wires.router.counters()
    for name in ("received", "originated", "sent", "to_host"):
        assert settled(wires).of(f"turnpike_{name}_packets_total") == counters[name], name
    drops = {(step, reason): count for step, of in counters["dropped_by_step"].items() for reason, count in of.items()}
    found = {(dict(labels)["step"], dict(labels)["reason"]): value
             for (name, labels), value in settled(wires).items() if name == "turnpike_drops_total"}
    assert found == drops
    wires.router.stop()


def test_names_and_texts_are_as_prometheus_asks(lab):
    wires = wires_with(lab)
    status, head, text = get(tcp(wires.inside))
    assert status == "HTTP/1.1 200 OK" and "content-type: text/plain; version=0.0.4" in head
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, ""), checked
    _, head, open_text = get(tcp(wires.inside), OPENMETRICS)
    assert "content-type: application/openmetrics-text; version=1.0.0" in head
    assert open_text.endswith("# EOF\n")
    assert set(parse(open_text)) ^ set(parse(text)) == set()
    assert get(tcp(wires.inside), path="/other")[0] == "HTTP/1.1 404 Not Found"


def test_batches_are_counted_by_their_packets(lab):
    wires = wires_with(lab, calm=True)
    before = read(wires)
    after = send(wires, [from_left("10.0.1.2", "10.0.2.2")] * 7, before.of("turnpike_received_packets_total") + 7)
    name = "turnpike_forwarder_batch_size_packets"
    grown = lambda what, **labels: after.of(name + what, **labels) - before.of(name + what, **labels)
    assert 1 <= grown("_count") <= grown("_sum") and grown("_sum") >= 7
    buckets = [grown("_bucket", le=str(float(most))) for most in (1, 2, 4, 8, 16, 32, 64, "inf")]
    assert buckets == sorted(buckets) and buckets[-1] == grown("_count")
    assert after.of("turnpike_source_ready", source="kernel") == 1
    wires.router.stop()


def test_counters_survive_an_apply_and_a_removed_interface_vanishes(lab):
    wires = wires_with(lab, calm=True)
    before = send(wires, [from_left("10.0.1.2", "10.0.2.2")] * 7, read(wires).of("turnpike_received_packets_total") + 7)
    # Another graph, and so another filter with the same rules.
    step = "local s = turnpike.step 'mine' { process = function(batch, mask) return mask end }\n"
    step += "turnpike.graph:insert_after('ip4-validate', s)\n"
    text = FULL_PORTS + STATIC_NEIGHBOURS + TCP + FULL
    apply(wires.router, text + step)
    after = settled(wires)
    assert after.of("turnpike_configuration_number") == before.of("turnpike_configuration_number") + 1
    lost = {key for key, value in before.items() if key[0].endswith("_total") and after.get(key, 0) < value}
    assert not lost, lost
    assert after.of("turnpike_step_packets_total", step="ip4-ttl", output="ok") >= 7
    # Its number and name are free, and no series of it is left, at once.
    right = re.compile(r'^turnpike.(port|neighbour).*"right".*\n', re.M)
    less = right.sub("", text).replace('turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }', "")
    apply(wires.router, less)
    again = settled(wires)
    assert "right" not in again.values("turnpike_interface_up", "interface")
    assert not [key for key in again if ("interface", "right") in key[1]]
    assert "left" in again.values("turnpike_interface_up", "interface")
    wires.router.stop()


def test_listeners_are_changed_while_the_router_runs(lab):
    wires = Wires(lab)
    path, other = socket_of(wires.router), wires.router.directory / "other.sock"
    text = PORTS + STATIC_NEIGHBOURS
    with_socket = text + f'turnpike.metrics {{ socket = "{path}" }}\n'
    plans, _ = plan(wires.router, with_socket)
    assert any("metrics: socket" in json.dumps(change) for change in plans.values()), plans
    apply(wires.router, with_socket)
    assert scrape(unix(path)).of("turnpike_configuration_number") == 2
    assert path.stat().st_mode & 0o777 == 0o600
    # An address that is taken, and the socket that is open goes on.
    with wires.inside.entered(), socket.socket() as taken:
        taken.bind(("127.0.0.1", 9477))
        taken.listen()
        error = refused(wires.router, "apply", write(wires.router, with_socket.replace(
            "socket =", 'listen = "127.0.0.1:9477", socket =')))
    assert "metrics 127.0.0.1:9477: cannot listen; choose another turnpike.metrics { listen }" in error, error
    assert scrape(unix(path)).of("turnpike_configuration_number") == 2
    # A file that is no socket, a directory that is not there, the API's socket.
    plain = wires.router.directory / "plain"
    plain.write_text("kept")
    for wrong, expected in [
        (plain, "a file that is not a socket; remove it or choose another turnpike.metrics { socket }"),
        (wires.router.directory / "no" / "where", "choose a path for turnpike.metrics { socket } in a directory"),
        (wires.router.socket, "a router is running there already"),
    ]:
        settings = text + f'turnpike.metrics {{ socket = "{wrong}" }}\n'
        error = refused(wires.router, "apply", write(wires.router, settings))
        assert expected in error and "nothing was changed" in error, error
    assert plain.read_text() == "kept"
    # A group; then another place.
    apply(wires.router, text + f'turnpike.metrics {{ socket = "{path}", group = "{os.getgid()}" }}\n')
    assert path.stat().st_mode & 0o777 == 0o660
    assert scrape(unix(path)).of("turnpike_configuration_number") == 3
    apply(wires.router, text + f'turnpike.metrics {{ socket = "{other}", listen = "127.0.0.1:9477" }}\n')
    assert not path.exists()
    assert scrape(unix(other)).keys() == scrape(tcp(wires.inside)).keys()
    wires.router.command("rollback")
    assert path.exists() and not other.exists()
    with pytest.raises(OSError):
        tcp(wires.inside)
    apply(wires.router, text)
    assert not path.exists()
    wires.router.stop()


def test_a_router_that_cannot_listen_does_not_start(lab):
    wires = Wires(lab, start=False)
    with wires.inside.entered(), socket.socket() as taken:
        taken.bind(("127.0.0.1", 9477))
        taken.listen()
        router = lab.router(wires.inside, PORTS + TCP, wait=False)
        assert router.process.wait(30) == 1
    assert "metrics 127.0.0.1:9477: cannot listen" in router.log()


def test_a_scrape_needs_no_turn_of_the_owner(lab):
    wires = wires_with(lab, calm=True)
    before = read(wires)
    with held_thread(wires.router.process.pid):
        for _ in range(3):
            wires.left.send(from_left("10.0.1.2", "10.0.2.2"))
        goal = before.of("turnpike_received_packets_total") + 3
        assert wait_for(lambda: read(wires).of("turnpike_received_packets_total") >= goal, 10)
        silent = read(wires).of("turnpike_owner_silent_seconds")
        assert wait_for(lambda: read(wires).of("turnpike_owner_silent_seconds") > max(silent, 1.5), 10)
    assert wait_for(lambda: read(wires).of("turnpike_owner_silent_seconds") < 1.5, 10)
    wires.router.stop()


def test_a_thousand_interfaces(lab):
    vlans = [f'turnpike.vlan "v{number}" {{ parent = "left", id = {number}, address = "10.{100 + number // 250}.'
             f'{number % 250}.1/24" }}' for number in range(1, 1001)]
    wires = wires_with(lab, "\n".join(vlans) + "\n", PORTS)
    samples = read(wires)
    names = {"left", "right", *(f"v{number}" for number in range(1, 1001))}
    for direction in ("receive", "transmit"):
        for unit in ("packets", "bytes"):
            assert samples.values(f"turnpike_interface_{direction}_{unit}_total", "interface") == names
    wires.router.stop()


class Prometheus:
    """A real one, in the namespace of the router that it scrapes each second."""

    def __init__(self, wires, directory):
        config = (MONITORING / "prometheus.yml").read_text().replace("15s", "1s")
        (directory / "prometheus.yml").write_text(config)
        (directory / "turnpike.rules.yml").write_text((MONITORING / "turnpike.rules.yml").read_text())
        self.inside, self.log = wires.inside, directory / "prometheus.log"
        self._log = open(self.log, "wb")
        self.process = wires.inside.spawn(
            "prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
            "--web.listen-address=127.0.0.1:9090", stdout=self._log, stderr=self._log)

    def ask(self, path, **query):
        """The data of an answer; None while it does not answer."""
        try:
            status, _, body = get(tcp(self.inside, 9090), path=f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        except OSError:
            return None
        if status != "HTTP/1.1 200 OK":
            assert "503" in status, (path, query, body)
            return None
        # Its answers may come in pieces.
        return json.loads(body[body.index("{"):body.rindex("}") + 1].replace("\r\n", ""))["data"]

    def query(self, expression):
        """The values of an instant query."""
        answer = self.ask("query", query=expression)
        return None if answer is None else [float(one["value"][1]) for one in answer["result"]]


def named(text):
    """The names of metrics in an expression or a file."""
    return set(re.findall(r"\b((?:turnpike|process)_[a-z0-9_]+)", text))


def test_prometheus_scrapes_and_every_name_in_the_examples_is_there(lab, tmp_path):
    wires = wires_with(lab, calm=True)
    before = read(wires).of("turnpike_interface_receive_packets_total", interface="left")
    now = send(wires, [from_left("10.0.1.2", "10.0.2.2")] * 9, read(wires).of("turnpike_received_packets_total") + 9)
    assert now.of("turnpike_interface_receive_packets_total", interface="left") == before + 9
    prometheus = Prometheus(wires, tmp_path)
    expression = 'turnpike_interface_receive_packets_total{interface="left",vrf="default",job="turnpike"}'
    assert wait_for(lambda: prometheus.query(expression) == [before + 9], 60), prometheus.log.read_text()
    assert prometheus.query('up{job="turnpike"}') == [1]
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert target["health"] == "up" and target["lastError"] == ""
    # Every rule is evaluated without an error.
    rules = lambda: prometheus.ask("rules")["groups"][0]["rules"]
    assert wait_for(lambda: all(rule["health"] == "ok" for rule in rules()), 30), rules()
    # Metrics that examples name are there, and each of their expressions means something to Prometheus.
    dashboards = [json.loads((MONITORING / f"{name}.dashboard.json").read_text()) for name in ("turnpike", "fabric")]
    panels = [panel for dashboard in dashboards for panel in dashboard["panels"]]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    queries += [one["expr"] for dashboard in dashboards for one in dashboard["annotations"]["list"]]
    assert len(queries) > 40
    for query in queries:
        query = query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$interface", ".*").replace("$router", ".*")
        assert prometheus.ask("query", query=query) is not None, query
    texts = [*queries, *((MONITORING / f"{name}.rules.yml").read_text() for name in ("turnpike", "fabric"))]
    # Some come with the first look at the devices.
    now = read(wires)
    assert named(" ".join(texts)) <= now.names(), named(" ".join(texts)) - now.names()
    # Names in the guide as well.
    guide = (ROOT / "docs/guide.md").read_text()
    section = guide[guide.index("## Metrics"):]
    section = section[:section.index("\n## ", 5)]
    assert named(section) <= now.names(), named(section) - now.names()
    wires.router.stop()


def test_the_rules_of_the_examples():
    for words in (["check", "rules", "turnpike.rules.yml"], ["test", "rules", "turnpike.rules.test.yml"],
                  ["check", "config", "prometheus.yml"]):
        done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = (MONITORING / "turnpike.rules.test.yml").read_text()
    for alert in re.findall(r"alert: (\w+)", (MONITORING / "turnpike.rules.yml").read_text()):
        assert f"alertname: {alert}\n" in tested, alert

"""Filters change under traffic: ten thousand rules at once, single elements of sets, and a rule that cuts the
operator off."""

import re
import socket
import sys

import pytest

from lib.apply import apply, write
from lib.lab import DRIVERS, PORTS, Hosts
from lib.netns import wait_for
from lib.traffic import Sink, Stream

RULES = 10_000
# Rules that match other packets, then one that matches the streams; `SHIFT` makes other rules of the same shape.
FILTER = """
local rules = { { name = "blocked", to_set = "blocked", action = "drop" } }
for n = 1, %d do
  local net = n + SHIFT
  rules[#rules + 1] = {
    from = string.format("172.%%d.%%d.0/24", 16 + math.floor(net / 256) %% 16, net %% 256), proto = "udp",
    to_port = 1024 + net, action = n %% 2 == 0 and "drop" or "reject" }
end
rules[#rules + 1] = { name = "stream", proto = { "udp", "tcp" }, to_port = "40000-40009" }
rules.default = "drop"
turnpike.prefix_set "blocked" { "198.51.100.0/24" }
turnpike.filter "in" (rules)
""" % (RULES - 2)
CONFIG = PORTS.replace('"tp-left",', '"tp-left", filter = "in",') + FILTER


def rule(router, name):
    (shown,) = [row for row in router.show("filters") if row["name"] == "in"]
    assert len(shown["rules"]) == RULES
    (found,) = [row for row in shown["rules"] if row["name"] == name]
    return found["packets"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_ten_thousand_rules_are_exchanged_without_loss(lab, driver):
    """Every packet of a numbered stream arrives once and in order, and counts for its rule of either filter."""
    hosts = Hosts(lab, ports=CONFIG.replace("SHIFT", "0").replace("address =", f'driver = "{driver}", address ='))
    hosts.left.run("ping", "-c1", "-W1", "10.0.1.1", check=False)
    sink = Sink(hosts.right)
    # Neighbours are resolved before the first number counts.
    first = Stream(hosts.left, ["10.0.2.2"], rate=20, port=40001)
    assert wait_for(lambda: rule(hosts.router, "stream") >= 5, 20)
    first.stop()
    hosts.router.counters()
    before = rule(hosts.router, "stream")
    stream = Stream(hosts.left, ["10.0.2.2"], rate=400)
    assert sink.wait(50, 20)
    config = hosts.router.config.read_text()
    for shift in (5_000, 10_000):
        file = write(hosts.router, re.sub(r"local net = n \+ \d+", f"local net = n + {shift}", config))
        changing = hosts.router.begin("apply", file)
        # A loaded machine takes its time for ten thousand rules.
        assert "configuration" in changing.communicate(timeout=180)[0]
        assert sink.wait(50, 20)
    for change in ("add", "del", "add", "del"):
        hosts.router.command("set", change, "blocked", "10.0.3.0/24")
        assert sink.wait(20, 20)
    sent = stream.stop()
    numbers = [number for number, _ in sink.arrived()]
    assert len(numbers) == len(set(numbers)) == sent, "none lost, none doubled"
    assert numbers == sorted(numbers)
    assert rule(hosts.router, "stream") == before + sent and rule(hosts.router, "blocked") == 0
    sink.close()


def test_an_element_of_a_set_changes_for_its_packets_only(lab):
    """While ten thousand rules are in use, one of two streams is blocked and freed again; the other loses nothing."""
    hosts = Hosts(lab, ports=CONFIG.replace("SHIFT", "0"))
    hosts.right.run("ip", "address", "add", "10.0.2.3/24", "dev", "eth0")
    blocked, free = Sink(hosts.right, 40002), Sink(hosts.right, 40003)
    # Both neighbours are resolved first.
    for address, sink in (("10.0.2.3", blocked), ("10.0.2.2", free)):
        warm = Stream(hosts.left, [address], rate=20, port=40002 if sink is blocked else 40003)
        assert sink.wait(3, 20)
        warm.stop()
        sink.arrived()
        sink.close()
    blocked, free = Sink(hosts.right, 40002), Sink(hosts.right, 40003)
    streams = [Stream(hosts.left, ["10.0.2.3"], rate=200, port=40002), Stream(hosts.left, ["10.0.2.2"], rate=200, port=40003)]
    assert blocked.wait(20, 20) and free.wait(20, 20)
    hosts.router.command("set", "add", "blocked", "10.0.2.3")
    assert wait_for(lambda: rule(hosts.router, "blocked") >= 20, 20)
    assert free.wait(20, 20)
    hosts.router.command("set", "del", "blocked", "10.0.2.3")
    assert blocked.wait(20, 20)
    sent = [stream.stop() for stream in streams]
    assert [number for number, _ in free.arrived()] == list(range(sent[1]))
    numbers = [number for number, _ in blocked.arrived()]
    assert numbers == sorted(set(numbers)) and len(numbers) + rule(hosts.router, "blocked") == sent[0]
    blocked.close()
    free.close()


ECHO = "import socket; s = socket.create_server(('', 40005)); c, _ = s.accept()\nwhile (d := c.recv(99)): c.sendall(d)"


def test_a_filter_that_cuts_the_operator_off_is_taken_back(lab):
    """The operator's TCP session, to the kernel behind a host interface, lives on after an unconfirmed change."""
    space = lab.namespace("space")
    ports = PORTS.replace('"tp-left",', f'"tp-left", filter = "in", host = {{ netns = "{space.name}" }},')
    config = ports + FILTER.replace("SHIFT", "0")
    hosts = Hosts(lab, ports=config)
    space.spawn(sys.executable, "-c", ECHO)

    def connected():
        with hosts.left.entered():
            try:
                return socket.create_connection(("10.0.1.1", 40005), 2)
            except OSError:
                return None

    session = None

    def opened():
        nonlocal session
        session = session or connected()
        return session is not None

    assert wait_for(opened, 20)

    def echoed(text, seconds):
        session.settimeout(seconds)
        try:
            return session.recv(99) == text
        except TimeoutError:
            return False

    session.sendall(b"one")
    assert echoed(b"one", 10)
    closed = config.replace('proto = { "udp", "tcp" }, to_port', 'proto = "udp", to_port')
    assert apply(hosts.router, closed, "--confirm", "6s")["confirm_s"] == 6
    session.sendall(b"two")
    assert not echoed(b"two", 2), "the session is cut"
    # The former rules return, and what was sent arrives at the next retransmission.
    assert wait_for(lambda: "not confirmed in time" in hosts.router.log(), 30)
    assert echoed(b"two", 60)
    session.sendall(b"three")
    assert echoed(b"three", 10)
    (shown,) = [row for row in hosts.router.show("filters") if row["name"] == "in"]
    assert shown["rules"][-1]["matches"] == "proto 17,6 to_port 40000-40009"
    session.close()

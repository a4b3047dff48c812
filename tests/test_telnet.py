"""The telnet interface: the shell's commands and MoonRoute's."""

import contextlib
import json
import random

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, Wires
from lib.packets import ethernet, ipv4, mac_bytes, pattern, udp
from lib.telnet import Telnet

IAC, DONT, DO, WONT, WILL, SB, SE = 255, 254, 253, 252, 251, 250, 240

CONFIG = """
turnpike.telnet { listen = "127.0.0.1:2323", sessions = 3, idle_s = 60 }
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
"""


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, CONFIG)


@pytest.fixture
def connect(wires):
    """Connects, and reads the greeting; closes all connections after the test."""
    with contextlib.ExitStack() as made:
        def connect(greeted=True, **options):
            client = Telnet(wires.inside, **options)
            made.callback(client.close)
            if greeted:
                client.read_until(rb"Turnpike [\d.]+; help lists the commands, quit leaves\r\n% $")
            return client

        yield connect


def test_the_shells_commands(wires, connect):
    client = connect()
    assert client.ask("show routes") == wires.router.command("show", "routes").stdout.rstrip("\n")
    assert client.ask("sh routes | grep ^198 | count") == "1"
    assert json.loads(client.ask("show routes | json")) == wires.router.show("routes")
    assert "addRoute" in client.ask("help") and "ports" in client.ask("show ?")
    assert client.ask("show p") == '"p": may mean ports, policing; write more of it'
    assert client.ask("") == ""
    client.send("quit")
    assert client.read_all() == b""


def test_options_are_refused(connect):
    client = connect()
    client.send(bytes([IAC, DO, 1, IAC, WILL, 31, IAC, DONT, 3, IAC, WONT, 3]))
    client.send(bytes([IAC, SB, 31, 0, 80, IAC, IAC, 24, IAC, SE, IAC, 246]))
    assert client.read_until(rb"\r\n\[yes\]\r\n") == bytes([IAC, WONT, 1, IAC, DONT, 31])
    assert client.ask("sh ports | grep left | count") == "1"


def test_a_line_can_be_edited_and_dropped(connect):
    client = connect()
    client.send(b"nonsense\x03")
    client.read_until(rb"\r\n% $")
    assert client.ask("showq\x08 portt\x7fs | count") == client.ask("show ports | count")
    assert client.ask("x" * 5000) == "a line has at most 4096 bytes"


def test_lines_may_come_together_and_before_their_end(connect):
    client = connect()
    client.send(b"sh ports | grep left | count\nsh ports | gr")
    client.read_until(rb"^1\r\n% ")
    client.send(b"ep nowhere | count\n")
    client.read_until(rb"^0\r\n% ")
    # Like `printf … | nc -N`.
    client.send(b"show graph\nshow ports | grep right | count\n")
    client.socket.shutdown(1)
    assert client.read_all().endswith(b"\r\n% 1\r\n% ")


def test_moonroutes_commands(wires, connect):
    client, other = connect(), connect()
    via = "02:00:00:00:02:77"
    assert "updateRoutes adds it" in client.ask(f"addRoute 203.0.113.0 24 right {via}")
    assert "updateRoutes adds it" in other.ask("ar 192.0.2.0 25 right 10.0.2.2")
    listed = client.ask("sr")
    assert wires.router.show("routes", "--source", "command") == []
    assert f"203.0.113.0/24 via {via} (right)" in listed and "192.0.2.0/25 via 10.0.2.2" in listed
    assert "198.51.100.0/24" in listed.partition("Dynamic routes:")[0]
    assert client.ask("ur") == "routes added: 2"
    for target, mac in (("203.0.113.9", via), ("192.0.2.1", HOST_B_MAC)):
        packet = ipv4("10.0.1.2", target, udp("10.0.1.2", target, 1000, 53, pattern(20)))
        # The second's MAC is not known yet: the test answers for it.
        wires.router.command("neighbour", "add", "10.0.2.2", "lladdr", HOST_B_MAC, "dev", "right")
        wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet))
        (sent,) = wires.right.expect(1, lambda frame: frame[30:34] == packet[16:20])
        assert sent[:6] == mac_bytes(mac)
    shown = json.loads(other.ask("showRoutes | json"))
    assert [route["prefix"] for route in shown["dynamic"]] == ["192.0.2.0/25", "203.0.113.0/24"]
    assert shown["written_down"] == []


@pytest.mark.parametrize("line, error", [
    ("ar 203.0.113.0 33 right 10.0.2.2", "networkPrefix 33: longer than the address 203.0.113.0"),
    ("ar 203.0.113.1 24 right 10.0.2.2", "networkIP 203.0.113.1: has host bits; the network is 203.0.113.0/24"),
    ("ar 203.0.113.0 24 wrong 10.0.2.2", 'nextHopPort "wrong": unknown; ports: left, right'),
    ("ar 203.0.113.0 24 right here", 'next hop "here": not an IP address, and no MAC'),
])
def test_what_cannot_be_added_is_said_at_once(connect, line, error):
    assert connect().ask(line).startswith(error)


def test_what_the_router_refuses_is_named(connect):
    client = connect()
    client.ask("ar 203.0.113.0 24 right 10.0.1.2")
    answer = client.ask("ur")
    assert answer.startswith("routes added: 0\nrefused: 1\n203.0.113.0/24 via 10.0.1.2 (right): ")
    assert 'is on port "left"' in answer
    assert client.ask("ur") == "routes added: 0"


def test_there_is_room_for_so_many(connect):
    clients = [connect() for _ in range(3)]
    assert connect(greeted=False).read_all() == b"3 sessions are open; try later\r\n"
    clients[0].send("quit")
    clients[0].read_all()
    # Its slot is free when its task has ended.
    connect(greeted=False).read_until(rb"^Turnpike")


def test_a_client_that_does_not_read_holds_up_nobody(wires, connect):
    stuck = connect(receive_buffer=4096)
    stuck.send(b"show graph --lua\n" * 3000)
    other = connect()
    assert other.ask("sh ports | grep left | count") == "1"
    assert len(wires.router.show("ports")) == 2


def test_any_bytes_are_survived(wires, connect):
    generator = random.Random(7)
    for _ in range(20):
        client = connect()
        length = generator.randrange(1, 4000)
        some = bytes(generator.choice((IAC, 10, 13, generator.randrange(256))) for _ in range(length))
        # A line "t" is a trace, which waits for packets.
        client.send(some.replace(b"\x04", b"").replace(b"t", b""))
        client.send(b"\r\n")
        client.socket.shutdown(1)
        client.read_all()
        client.close()
    assert connect().ask("sh ports | grep left | count") == "1"
    assert "panicked" not in wires.router.log()


def test_who_says_nothing_is_let_go_of(lab):
    wires = Wires(lab, "turnpike.telnet { idle_s = 1 }")
    client = Telnet(wires.inside)
    assert client.read_all().endswith(b"% \r\nidle for too long\r\n")
    client.close()
    # A router ends while a client is connected and another does not read.
    waiting, stuck = Telnet(wires.inside), Telnet(wires.inside, receive_buffer=4096)
    stuck.send(b"show graph --lua\n" * 3000)
    assert "was idle for too long" in wires.router.stop()
    waiting.close()
    stuck.close()


def test_off_by_default_and_a_warning_when_public(lab):
    wires = Wires(lab)
    with pytest.raises(ConnectionRefusedError):
        Telnet(wires.inside)
    wires.router.stop()
    config = 'turnpike.telnet { listen = "0.0.0.0:2323", public = true }'
    public = lab.router(wires.inside, wires.router.config.read_text() + config)
    assert "telnet 0.0.0.0:2323: anybody who reaches this address can change the router" in public.log()
    public.stop()

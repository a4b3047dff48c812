"""SNMP: net-snmp's agent has the router's interfaces and routes, whenever it starts, and cannot change them."""

import contextlib
import ipaddress
import socket

import pytest
from lib.apply import apply
from lib.lab import PORTS, STATIC_NEIGHBOURS, Wires, from_left
from lib.netns import wait_for
from lib.snmpd import Snmpd

IF, IF_X, IF_STACK = "1.3.6.1.2.1.2.2.1", "1.3.6.1.2.1.31.1.1.1", "1.3.6.1.2.1.31.1.2.1.3"
IF_NUMBER = "1.3.6.1.2.1.2.1.0"
ROUTES, ROUTE_NUMBER = "1.3.6.1.2.1.4.24.7.1", "1.3.6.1.2.1.4.24.6.0"

MORE = """
turnpike.vlan "left.7" { parent = "left", id = 7, address = "10.0.7.1/24" }
turnpike.loopback "lo0" { address = "192.0.2.1/32" }
turnpike.route "198.51.100.0/24" { via = { "10.0.2.2", "10.0.1.2" } }
turnpike.route "203.0.113.0/24" { blackhole = true }
"""


def config(snmpd):
    return PORTS + STATIC_NEIGHBOURS + MORE + f'turnpike.snmp {{ agentx = "{snmpd.socket}" }}\n'


def state(router):
    return router.show("exporters")["snmp"]


def is_ready(router):
    return state(router)["state"] == "ready"


@pytest.fixture
def net(lab, request):
    wires = Wires(lab, start=False)
    snmpd = Snmpd(wires.inside)
    request.addfinalizer(snmpd.close)
    wires.router = lab.router(wires.inside, config(snmpd))
    assert wait_for(lambda: is_ready(wires.router), 20)
    return wires, snmpd


def hexadecimal(text):
    return " ".join(f"{byte:02X}" for byte in text.encode())


def test_interfaces_are_those_of_show_interfaces(net):
    wires, snmpd = net
    wires.left.send(*[from_left("10.0.1.2", "10.0.2.2")] * 30)
    assert len(wires.right.expect(30)) == 30

    def agrees():
        """Announcements of addresses may go on meanwhile."""
        shown = wires.router.show("interfaces")
        numbers = dict(zip(("left", "right", "left.7", "lo0"), ("1", "2", "65", "66")))
        columns = {column: snmpd.walk(f"{IF_X}.{column}", bulk=True) for column in (1, 6, 7, 10, 11)}
        columns |= {f"narrow {column}": snmpd.walk(f"{IF}.{column}") for column in (4, 8, 10, 16)}
        if wires.router.show("interfaces") != shown:
            return False
        assert {name: hexadecimal(of) for of, name in numbers.items()} == columns[1]
        for of in shown:
            number = numbers[of["name"]]
            names = ("rx_bytes", "rx_packets", "tx_bytes", "tx_packets")
            found = [columns[column][number] for column in (6, 7, 10, 11)]
            if found != [str(of[name]) for name in names]:
                return False
            assert columns["narrow 4"][number] == str(of["mtu"])
            assert columns["narrow 8"][number] == "1" == {"up": "1", "down": "2"}[of["link"]]
            assert columns["narrow 10"][number] == str(of["rx_bytes"])
            assert columns["narrow 16"][number] == str(of["tx_bytes"])
        return True

    assert wait_for(agrees, 30, 1.2)
    assert snmpd.run("snmpget", IF_NUMBER) == [(IF_NUMBER, "INTEGER", "4")]
    assert snmpd.walk(f"{IF}.6")["1"] == "02 00 00 00 01 01"
    assert list(snmpd.walk(IF_STACK)) == ["0.2", "0.65", "0.66", "1.0", "2.0", "65.1", "66.0"]
    wires.router.stop()


def rows(router):
    """The indexes of the routes in use, as IP-FORWARD-MIB has them."""
    found = set()

    def typed(text):
        address = ipaddress.ip_address(text)
        return [1 if address.version == 4 else 2, len(address.packed), *address.packed]

    for route in router.show("routes"):
        prefix = ipaddress.ip_network(route["prefix"])
        for path in route["paths"] or [{"via": None}]:
            hop = typed(path["via"]) if path.get("via") else [0, 0]
            index = [*typed(prefix.network_address), prefix.prefixlen, 2, 0, 0, *hop]
            found.add(".".join(map(str, index)))
    return found


def test_routes_are_those_of_show_routes(net):
    wires, snmpd = net
    expected = rows(wires.router)
    assert "1.4.198.51.100.0.24.2.0.0.1.4.10.0.2.2" in expected
    for bulk in (False, True):
        found = snmpd.walk(f"{ROUTES}.7", bulk)
        assert set(found) == expected and len(found) == len(expected)
    assert found["1.4.198.51.100.0.24.2.0.0.1.4.10.0.1.2"] == "1"
    types = snmpd.walk(f"{ROUTES}.8")
    assert types["1.4.198.51.100.0.24.2.0.0.1.4.10.0.1.2"] == "4"
    assert types["1.4.203.0.113.0.24.2.0.0.0.0"] == "5" and types["1.4.10.0.1.0.24.2.0.0.0.0"] == "3"
    prefixes = {route["prefix"] for route in wires.router.show("routes")}
    assert snmpd.run("snmpget", ROUTE_NUMBER) == [(ROUTE_NUMBER, "Gauge32", str(len(prefixes)))]
    # More than a page.
    apply(wires.router, config(snmpd) + 'for n = 0, 999 do turnpike.route(string.format("100.%d.%d.0/24", 64 + n / 256, n % 256)) '
          '{ via = "10.0.2.2" } end\n')
    # Rows are up to a second old.
    assert wait_for(lambda: set(snmpd.walk(f"{ROUTES}.7", bulk=True)) == rows(wires.router), 20)
    assert len(rows(wires.router)) > 1000
    wires.router.stop()


def test_an_agent_that_starts_again_has_them_again(net):
    wires, snmpd = net
    snmpd.kill()
    assert wait_for(lambda: state(wires.router)["state"] == "connecting", 20)
    assert state(wires.router)["last_error"]
    snmpd.start()
    assert wait_for(lambda: is_ready(wires.router), 60)
    assert state(wires.router)["sessions"] == 2
    assert len(snmpd.walk(f"{IF_X}.1")) == 4
    wires.router.stop()


def test_nothing_can_be_set(net):
    wires, snmpd = net
    said = snmpd.run("snmpset", f"{IF_X}.18.1", "s", "mine", community="private", check=False)
    assert "notWritable" in said, said
    assert snmpd.walk(f"{IF_X}.18")["1"] == '""'
    wires.router.stop()


def test_garbage_of_an_agent_ends_the_session_only(lab, tmp_path):
    path = tmp_path / "agentx"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)
        wires = Wires(lab, f'turnpike.snmp {{ agentx = "{path}" }}\n')
        for garbage in (b"\xff" * 100, b"\x01\x12\x10\x00" + b"\xff" * 16, b"\x01\x06\x10\x00" + b"\0" * 15 + b"\x08" + b"\xff" * 8):
            stream, _ = listener.accept()
            with stream:
                assert stream.recv(20)[:2] == b"\x01\x01", "it opens a session"
                stream.sendall(garbage)
                # It may end before it has read all.
                with contextlib.suppress(ConnectionResetError):
                    while stream.recv(4096):
                        pass
    wires.left.send(from_left("10.0.1.2", "10.0.2.2"))
    assert len(wires.right.expect(1)) == 1
    assert state(wires.router)["last_error"]
    wires.router.stop()

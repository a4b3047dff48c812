"""Imported tables are exchanged, removed and read again while the router runs."""

import os
import signal

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, udp
from lib.router import Change
from lib.traffic import Sink, Stream, lost

BASE = PORTS + STATIC_NEIGHBOURS
IMPORT = 'turnpike.import { file = "NAME", via = "10.0.2.2" }\n'


def table(*firsts, second=range(200)):
    """PREFIX<TAB>AS of 200 networks for each first number."""
    return b"".join(f"{first}.{n}.0.0/16\t{64500 + n}\n".encode() for first in firsts for n in second)


def imports(*names):
    return "".join(IMPORT.replace("NAME", name) for name in names)


def start(lab, *names, **files):
    files = {f"{name}.dat": content for name, content in files.items()}
    return Wires(lab, imports(*names), calm=True, files=files)


def routes(router):
    """Prefixes of imported routes in use, once no exchange of tables is in progress."""
    def ready():
        return all(source["state"] == "ready" for source in router.show("sources") if source["name"] == "import")

    assert wait_for(ready, 30), router.show("sources")
    return {route["prefix"]: route["paths"][0]["via"] for route in router.show("routes") if route["source"] == "import"}


def prefixes(*firsts):
    return {f"{first}.{n}.0.0/16" for first in firsts for n in range(200)}


def packet(destination):
    datagram = udp("10.0.1.2", destination, 1000, 53, b"payload")
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", destination, datagram))


def arrives(wires, destination):
    wires.left.send(packet(destination))
    return wires.right.expect(1) == [forwarded(packet(destination), RIGHT_MAC, HOST_B_MAC)]


def has_no_route(wires, destination):
    change = Change(wires.router)
    wires.left.send(packet(destination))
    return change(received=1)["dropped"] == {"no-route": 1}


def test_a_table_gives_way_to_another(lab):
    wires = start(lab, "old.dat", old=table(20, 21), new=table(21, 22))
    router = wires.router
    assert routes(router).keys() == prefixes(20, 21)
    changes = plan(router, BASE + imports("new.dat"))[0]["changes"]
    assert {(change["what"], change["live"]) for change in changes} == {("import 1: file", True), ("import 1: modified", True)}
    answer = apply(router, BASE + imports("new.dat"))
    assert answer["pause_us"] is None, "no forwarder has to do with it"
    assert routes(router).keys() == prefixes(21, 22)
    assert arrives(wires, "21.7.0.1") and arrives(wires, "22.7.0.1") and has_no_route(wires, "20.7.0.1")
    assert "200 routes of the former table removed" in router.log()
    router.stop()


def test_a_table_over_other_gateways(lab):
    wires = start(lab, "t.dat", t=table(20))
    apply(wires.router, BASE + imports("t.dat").replace("10.0.2.2", "10.0.1.2"))
    assert set(routes(wires.router).values()) == {"10.0.1.2"}
    apply(wires.router, BASE + imports("t.dat").replace('"10.0.2.2"', '{ "10.0.1.2", "10.0.2.2" }'))
    assert set(routes(wires.router).values()) == {"10.0.1.2", "10.0.2.2"}
    wires.router.stop()


def test_imports_come_and_go_and_come_back(lab):
    wires = start(lab, one=table(20, 21), two=table(21, 22))
    router = wires.router
    apply(router, BASE + imports("one.dat", "two.dat"))
    assert routes(router).keys() == prefixes(20, 21, 22)
    # The second then has the first's rank.
    apply(router, BASE + imports("two.dat"))
    assert routes(router).keys() == prefixes(21, 22)
    apply(router, BASE)
    assert routes(router) == {} and has_no_route(wires, "21.7.0.1")
    router.command("rollback", "2")
    assert routes(router).keys() == prefixes(20, 21, 22) and arrives(wires, "20.7.0.1")
    # Each while the previous one is in progress.
    for names in (["one.dat"], [], ["two.dat", "one.dat"], ["two.dat"]):
        apply(router, BASE + imports(*names))
    assert routes(router).keys() == prefixes(21, 22)
    router.stop()


def test_a_file_that_changes_is_read_again(lab):
    wires = start(lab, "t.dat", t=table(20))
    router = wires.router
    assert plan(router, BASE + imports("t.dat"))[1] == 0
    (router.directory / "t.dat").write_bytes(table(23))
    changes = plan(router, BASE + imports("t.dat"))[0]["changes"]
    assert [change["what"] for change in changes] == ["import 1: modified"]
    router.process.send_signal(signal.SIGHUP)
    assert wait_for(lambda: routes(router).keys() == prefixes(23), 20)
    assert arrives(wires, "23.7.0.1")
    router.stop()


@pytest.mark.parametrize("content, expected", [
    (b"nonsense\n", "no route in it"),
    (b"\x1f\x8b\x08\x00 broken", "truncated or corrupt"),
    (None, "cannot be"),
])
def test_a_file_that_is_wrong_changes_nothing(lab, content, expected):
    wires = start(lab, "t.dat", t=table(20))
    router = wires.router
    if content is not None:
        (router.directory / "wrong.dat").write_bytes(content)
    file = write(router, BASE + imports("wrong.dat") + 'turnpike.route "203.0.113.0/24" { blackhole = true }\n')
    for command in ("plan", "apply"):
        assert expected in refused(router, command, file)
    assert routes(router).keys() == prefixes(20) and arrives(wires, "20.7.0.1")
    assert not router.show("routes", "--source", "static")
    router.stop()


def test_the_way_back_does_not_need_the_file(lab):
    wires = start(lab, "t.dat", t=table(20))
    router = wires.router
    kept = 'turnpike.route "203.0.113.0/24" { via = "10.0.2.2" }\n'
    apply(router, BASE + imports("t.dat").replace("10.0.2.2", "10.0.1.2") + kept, "--confirm", "1")
    assert set(routes(router).values()) == {"10.0.1.2"}
    os.unlink(router.directory / "t.dat")
    assert wait_for(lambda: not router.show("routes", "--source", "static"), 20)
    assert "this import keeps the routes it has now" in router.log()
    assert routes(router).keys() == prefixes(20)
    router.stop()


def test_no_packet_is_lost_to_a_prefix_of_both_tables(lab):
    second = range(256)
    files = {"a.dat": table(*range(20, 120), second=second), "b.dat": table(*range(80, 126), second=second)}
    hosts = Hosts(lab, imports("a.dat"), files=files)
    router = hosts.router
    for first in (80, 119):
        hosts.right.run("ip", "address", "add", f"{first}.1.0.1/32", "dev", "lo")
    sink = Sink(hosts.right)
    stream = Stream(hosts.left, ["80.1.0.1", "119.1.0.1"])
    assert sink.wait()
    for name in ("b.dat", "a.dat", "b.dat"):
        apply(router, PORTS + imports(name))
        assert len(routes(router)) == 256 * {"a.dat": 100, "b.dat": 46}[name]
    assert lost(stream.stop(), sink) == []
    router.stop()

"""Settings of a running router changed by another configuration: addresses, neighbours, ports, rates, telnet."""

import socket

from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6ND_RA
from scapy.layers.l2 import Ether

from lib.apply import apply, plan, refused, write
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, pattern
from lib.router import Change
from lib.telnet import Telnet
from lib.traffic import Sink, Stream

BASE = PORTS + STATIC_NEIGHBOURS
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)


def with_left(setting, text=BASE):
    return text.replace('"tp-left", ', f'"tp-left", {setting}, ')


def frame(source="10.0.1.2", destination="10.0.2.2"):
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(source, destination, pattern(40)))


def is_live(router, text):
    """Checks that the plan has changes, none of which needs a restart."""
    report, status = plan(router, text)
    return status == 2 and not report["restart"]


def answers(wires, address, timeout=3.0):
    """Returns true if the router answers a ping to its own address."""
    wires.left.drain()
    wires.left.send(LINK / IP(src="10.0.1.2", dst=address) / ICMP() / b"there?")
    return bool(wires.left.expect(1, lambda got: got[12:14] == b"\x08\0" and got[34:35] == b"\0", timeout=timeout))


def test_addresses_come_and_go_and_packets_pass_all_the_time(lab):
    hosts = Hosts(lab)
    router = hosts.router
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    sink = Sink(hosts.right)
    stream = Stream(hosts.left, ["10.0.2.2"], rate=1000)
    assert sink.wait(1)
    more = PORTS.replace('"10.0.2.1/24", "fd00:2::1/64"', '"10.0.2.1/24", "10.0.5.1/24", "fd00:2::1/64", "fd00:5::1/64"')
    more += 'turnpike.route "198.51.100.0/24" { via = "10.0.5.2" }\n'
    assert is_live(router, more)
    hosts.right.run("ip", "address", "add", "10.0.5.2/24", "dev", "eth0")
    for _ in range(5):
        apply(router, more)
        right = router.show("ports")[1]
        assert right["addresses"] == ["10.0.2.1/24", "10.0.5.1/24", "fd00:2::1/64", "fd00:5::1/64"]
        assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.5.1").returncode == 0
        assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.5.2").returncode == 0
        apply(router, PORTS)
        assert router.show("ports")[1]["addresses"] == ["10.0.2.1/24", "fd00:2::1/64"]
        assert router.show("route", "10.0.5.2")["type"] == "no-route"
    sent = stream.stop()
    assert [number for number, _ in sink.arrived()] == list(range(sent))
    router.stop()


def test_addresses_of_host_interfaces_are_the_kernel_s(lab):
    settings = 'turnpike.routes_from { "kernel" }\n'
    hosts = Hosts(lab, settings)
    router = hosts.router
    more = PORTS.replace('"10.0.2.1/24",', '"10.0.2.1/24", "10.0.5.1/24",') + settings
    shown = lambda: hosts.inside.run("ip", "address", "show", "dev", "right").stdout  # noqa: E731
    apply(router, more)
    assert wait_for(lambda: "10.0.5.1/24" in shown() and "10.0.5.1/24" in router.show("ports")[1]["addresses"])
    apply(router, PORTS + settings)
    assert wait_for(lambda: "10.0.5.1/24" not in shown() and "10.0.5.1/24" not in router.show("ports")[1]["addresses"])
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    router.stop()


def test_neighbours(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    other = "02:00:00:00:02:77"
    moved = BASE.replace(HOST_B_MAC, other)
    assert is_live(router, moved)
    apply(router, moved)
    wires.left.send(frame())
    assert wires.right.expect(1) == [forwarded(frame(), RIGHT_MAC, other)]
    apply(router, PORTS)
    assert router.show("neighbours") == []
    apply(router, BASE)
    wires.right.drain()
    wires.left.send(frame())
    assert wires.right.expect(1) == [forwarded(frame(), RIGHT_MAC, HOST_B_MAC)]
    router.stop()


def test_which_sources_pass(lab):
    wires = Wires(lab, 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }', calm=True)
    router = wires.router
    base = BASE + 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }'
    # From a network on the other side.
    strange = frame("198.51.100.9")
    # With a graph that has the step, and then only a change of its mode.
    for setting, passes in [("strict", False), ("loose", True), ("strict", False), (None, True)]:
        text = with_left(f'reverse_path = "{setting}"', base) if setting else base
        assert is_live(router, text)
        apply(router, text)
        change = Change(router)
        wires.left.send(strange)
        if passes:
            assert wires.right.expect(1) == [forwarded(strange, RIGHT_MAC, HOST_B_MAC)]
        else:
            assert change(received=1)["dropped"] == {"reverse-path": 1}
    router.stop()


def test_redirects(lab):
    route = 'turnpike.route "198.51.100.0/24" { via = "10.0.1.3" }\n' \
            'turnpike.neighbour "10.0.1.3" { port = "left", mac = "02:00:00:00:01:03" }\n'
    wires = Wires(lab, route, calm=True)
    router = wires.router
    back = frame(destination="198.51.100.7")

    def told():
        wires.left.drain()
        wires.left.send(back)
        return any(got[:6] == bytes.fromhex(HOST_A_MAC.replace(":", "")) for got in wires.left.receive(0.3))

    assert not told()
    text = with_left("redirects = true") + route
    assert is_live(router, text)
    apply(router, text)
    assert told()
    apply(router, BASE + route)
    assert not told()
    router.stop()


def test_router_advertisements(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    text = with_left("advertise = { lifetime_s = 1234 }")
    assert is_live(router, text)
    is_advertisement = lambda got: got[12:14] == b"\x86\xdd" and got[54:55] == b"\x86"  # noqa: E731
    apply(router, text)
    (got,) = wires.left.expect(1, is_advertisement)
    assert Ether(got)[ICMPv6ND_RA].routerlifetime == 1234
    apply(router, BASE)
    (got,) = wires.left.expect(1, is_advertisement)
    assert Ether(got)[ICMPv6ND_RA].routerlifetime == 0, "a goodbye"
    router.stop()


def test_icmp_unreachables_and_rates(lab):
    wires = Wires(lab, calm=True)
    router = wires.router

    def errors(count):
        wires.left.drain()
        for n in range(count):
            wires.left.send(LINK / IP(src="10.0.1.2", dst=f"9.9.9.{n}") / b"lost")
        return [Ether(got) for got in wires.left.receive(0.3) if got[12:14] == b"\x08\0" and got[34:35] == b"\x03"]

    assert answers(wires, "10.0.1.1") and len(errors(3)) == 3
    text = with_left("unreachables = false") + "turnpike.icmp { echo = false }"
    assert is_live(router, text)
    apply(router, text)
    assert not answers(wires, "10.0.1.1", 0.5) and errors(3) == []
    text = BASE + "turnpike.icmp { ttl = 77 } turnpike.slowpath { icmp_rate = 1, icmp_burst = 2 }"
    assert is_live(router, text)
    apply(router, text)
    assert answers(wires, "10.0.1.1")
    got = errors(10)
    assert 2 <= len(got) <= 3 and got[0][IP].ttl == 77
    shown = router.show("policing")["icmp_errors"]
    assert (shown["rate"], shown["burst"]) == (1, 2)
    apply(router, BASE + "turnpike.slowpath { classes = { errors = { rate = 1, weight = 1 } } }")
    # No turn for more than some tens of them at once.
    assert 2 <= len(errors(100)) <= 60
    assert router.show("policing")["classes"][-1]["rate"] == 1
    router.stop()


def test_multicast_routes(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    group = ethernet("01:00:5e:01:01:01", HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "239.1.1.1", pattern(40)))
    text = BASE + 'turnpike.multicast "239.1.1.1" { from = "left", to = "right" }'
    assert is_live(router, text)
    for n in range(1, 3):
        apply(router, text)
        change = Change(router)
        wires.left.send(group)
        assert len(wires.right.expect(1)) == 1 and change(received=1) == {"received": 1, "sent": 1}
        (shown,) = router.show("multicast")
        assert shown["group"] == "239.1.1.1"
        apply(router, BASE)
        assert router.show("multicast") == []
        wires.left.send(group)
        assert change(received=2)["dropped"] == {"multicast-not-routed": 1}
    router.stop()


def test_transmit_bursts(lab):
    # A single packet waits for others for the configured time; an idle forwarder does not wait.
    wires = Wires(lab, calm=True)
    router = wires.router
    for settings in ["burst = 1, flush_us = 0", "burst = 64, flush_us = 1000", "burst = 32, flush_us = 50"]:
        text = BASE + f"turnpike.tx {{ {settings} }}"
        answer = apply(router, text)
        assert answer["summary"] in ("1 setting", "2 settings")
        frames = [frame(destination="10.0.2.2") for _ in range(200)]
        wires.left.send(*frames)
        assert len(wires.right.expect(200)) == 200
    router.stop()


def test_what_waits_for_its_confirmation_is_taken_back_with_all_settings(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    text = with_left("redirects = true") + "turnpike.icmp { echo = false }" \
        + 'turnpike.neighbour "10.0.2.9" { port = "right", mac = "02:00:00:00:02:09" }'
    text = text.replace('"10.0.1.1/24",', '"10.0.1.1/24", "10.0.9.1/24",')
    before = router.show("neighbours"), router.show("ports")[0]["addresses"]
    apply(router, text, "--confirm", "5s")
    assert not answers(wires, "10.0.9.1", 0.5) and router.neighbour("10.0.2.9")
    assert wait_for(lambda: "going back to the one before" in router.log(), 20)
    assert wait_for(lambda: (router.show("neighbours"), router.show("ports")[0]["addresses"]) == before)
    assert answers(wires, "10.0.1.1")
    router.stop()


def with_telnet(port, settings=""):
    return BASE + f'turnpike.telnet {{ listen = "127.0.0.1:{port}", {settings} }}\n'


def greeted(client):
    """The client, which may type commands now."""
    client.read_until(rb"quit leaves\r\n% $")
    return client


def refuses_telnet(wires, port):
    """Returns true if there is no listener; an existing one may be about to stop."""
    try:
        Telnet(wires.inside, port=port).close()
    except ConnectionRefusedError:
        return True
    return False


def test_telnet_comes_changes_and_goes(lab):
    wires = Wires(lab, calm=True)
    router = wires.router
    assert refuses_telnet(wires, 2323)
    one = with_telnet(2323, "sessions = 1")
    assert is_live(router, one)
    apply(router, one)
    first = greeted(Telnet(wires.inside))
    assert b"1 sessions are open" in Telnet(wires.inside).read_all()
    # Other settings on the same address: the listener stays, and so do clients.
    apply(router, with_telnet(2323, "sessions = 2"))
    second, third = greeted(Telnet(wires.inside)), greeted(Telnet(wires.inside))
    assert b"2 sessions are open" in Telnet(wires.inside).read_all()
    assert {client.ask("show ports | count") for client in (first, second, third)} == {"3"}
    # An address in use: the router keeps its settings.
    with wires.inside.entered(), socket.create_server(("127.0.0.1", 2324)):
        error = refused(router, "apply", write(router, with_telnet(2324)))
        assert "telnet 127.0.0.1:2324: cannot listen; choose another" in error and "nothing was changed" in error
        error = refused(router, "apply", write(router, with_telnet(2325, 'users = { "nobody-of-that-name" }')))
        assert "nobody-of-that-name" in error and refuses_telnet(wires, 2325)
    # Another address.
    apply(router, with_telnet(2324))
    assert wait_for(lambda: refuses_telnet(wires, 2323))
    moved = greeted(Telnet(wires.inside, port=2324))
    apply(router, BASE)
    assert wait_for(lambda: refuses_telnet(wires, 2324))
    assert {client.ask("show ports | count") for client in (first, second, moved)} == {"3"}
    router.stop()


def test_default_routes_lead_to_gateways_or_not(lab):
    wires = Wires(lab, 'turnpike.route "0.0.0.0/0" { via = "10.0.2.2" }', calm=True)
    router = wires.router
    base = BASE + 'turnpike.route "0.0.0.0/0" { via = "10.0.2.2" }\n'
    strict = base + "turnpike.forwarding { resolve_via_default = false }\n"
    router.command("route", "add", "198.51.100.0/24", "via", "172.16.0.1")
    shown = lambda: router.show("routes", "--prefix", "198.51.100.0/24")[0]  # noqa: E731
    assert shown()["active"]
    assert is_live(router, strict)
    for _ in range(2):
        apply(router, strict)
        assert wait_for(lambda: not shown()["active"]), shown()
        assert shown()["inactive"] == "gateway-unreachable"
        router.command("rollback")
        assert wait_for(lambda: shown()["active"]), shown()
        wires.left.send(frame(destination="198.51.100.7"))
        assert wires.right.expect(1) == [forwarded(frame(destination="198.51.100.7"), RIGHT_MAC, HOST_B_MAC)]
    router.stop()


STRUCTURES = [("poptrie", "reference"), ("dir-24-8", "runmap"), ("reference", "runmap"), ("runmap", "runmap")]


def with_structure(ipv4, ipv6, text=PORTS):
    return text + f'turnpike.fib {{ ipv4 = "{ipv4}", ipv6 = "{ipv6}" }}\n'


def structure(router):
    return router.show("routes", "--summary")["fib_structure"]


def test_route_tables_of_other_structures_lose_no_packet_and_no_route(lab):
    hosts = Hosts(lab)
    router = hosts.router
    assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
    router.command("route", "add", "203.0.113.0/24", "via", "10.0.2.2")
    sink = Sink(hosts.right)
    stream = Stream(hosts.left, ["10.0.2.2"], rate=1000)
    assert sink.wait(1)
    for number, (ipv4, ipv6) in enumerate(STRUCTURES):
        # Another route and a VRF come with the tables.
        text = with_structure(ipv4, ipv6) + f'turnpike.route "198.51.{number}.0/24" {{ via = "10.0.2.2" }}\n'
        text += f'turnpike.vrf "v{number}" {{}}\n'
        assert is_live(router, text)
        apply(router, text)
        assert structure(router) == {"ipv4": ipv4, "ipv6": ipv6}
        for destination in ("203.0.113.7", f"198.51.{number}.7", "10.0.2.2", "fd00:2::2"):
            assert router.show("route", destination)["type"] != "no-route", destination
        assert hosts.left.run("ping", "-c", 1, "-W", 3, "10.0.2.2").returncode == 0
        assert hosts.left.run("ping", "-c", 1, "-W", 3, "fd00:2::2").returncode == 0
        # The slow path's answers follow the same tables: no route, and so an error.
        lost = hosts.left.run("ping", "-c", 1, "-W", 3, "198.18.0.1", check=False)
        assert "Unreachable" in lost.stdout, lost.stdout
    router.command("rollback")
    assert structure(router) == {"ipv4": "reference", "ipv6": "runmap"}
    assert router.show("route", "198.51.2.7")["type"] != "no-route"
    assert router.show("route", "198.51.3.7")["type"] == "no-route"
    sent = stream.stop()
    assert [number for number, _ in sink.arrived()] == list(range(sent))
    router.stop()

"""Ports of a running router that are added, removed and changed, while others forward without loss."""

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import PLAIN_PORTS, PORTS, Hosts
from lib.netns import veth, wait_for
from lib.soak import repeated
from lib.traffic import Sink, Stream

THIRD_MAC, HOST_C_MAC = "02:00:00:00:03:01", "02:00:00:00:03:02"
# Its MAC is selected by the router for another device.
OTHER_MAC = "02:00:00:00:03:99"

THIRD = 'turnpike.port "third" { device = "tp-third", address = { "10.0.3.1/24", "fd00:3::1/64" } }\n'
ROUTE = 'turnpike.route "198.51.100.0/24" { via = "10.0.3.2" }\n'


class ThreeHosts(Hosts):
    """Two hosts at the router's ports, and a third at an interface that is no port yet."""

    def __init__(self, lab, *args, **options):
        super().__init__(lab, *args, **options)
        self.third = lab.namespace("third")
        self.connect("tp-third", "eth0", THIRD_MAC, HOST_C_MAC)
        for address in ["10.0.3.2/24", "198.51.100.1/32"]:
            self.third.run("ip", "address", "add", address, "dev", "eth0")
        self.third.run("ip", "address", "add", "fd00:3::2/64", "dev", "eth0", "nodad")
        self.third.run("ip", "route", "add", "default", "via", "10.0.3.1")
        self.third.run("ip", "-6", "route", "add", "default", "via", "fd00:3::1")

    def connect(self, device, name, mac, host_mac):
        """A device of the router with the third host at its other end."""
        veth(self.inside, device, self.third, name, mac, host_mac)


class Steady:
    """A numbered stream from left to right, with a check that all of it arrived, once and in order."""

    def __init__(self, hosts, rate=2000):
        assert pings(hosts.left, "10.0.2.2")
        self.sink = Sink(hosts.right)
        self.stream = Stream(hosts.left, ["10.0.2.2"], rate=rate)
        assert self.sink.wait(1)

    def stop(self):
        sent = self.stream.stop()
        arrived = [number for number, _ in self.sink.arrived()]
        assert arrived == list(range(sent)), f"{sent} sent, {len(arrived)} arrived"
        return sent


def pings(host, address, count=1):
    """Returns true if the address answers."""
    return wait_for(lambda: host.run("ping", "-c", count, "-W", 1, address, check=False).returncode == 0, 10)


def ports(router):
    """The ports by name."""
    return {port["name"]: port for port in router.show("ports")}


@pytest.mark.alone
@pytest.mark.parametrize("cores", ["0", "0,1"])
def test_a_port_comes_carries_changes_and_goes_and_the_others_lose_nothing(lab, cores):
    settings = f'turnpike.forwarders {{ cores = "{cores}" }}\n'
    hosts = ThreeHosts(lab, settings)
    router = hosts.router
    base = PORTS + settings
    steady = Steady(hosts)
    totals = router.show("counters")
    for turn in range(repeated(2)):
        report, status = plan(router, base + THIRD + ROUTE)
        assert status == 2 and not report["restart"]
        summary = apply(router, base + THIRD + ROUTE)["summary"]
        assert summary.startswith("1 port added, 1 route added"), summary
        assert list(ports(router)) == ["left", "right", "third"]
        for source, address in [
            (hosts.left, "10.0.3.2"), (hosts.left, "fd00:3::2"), (hosts.left, "198.51.100.1"), (hosts.third, "10.0.2.2"),
        ]:
            assert pings(source, address), (turn, address)
        # Another MTU: closed and opened again, with its addresses and routes.
        smaller = THIRD.replace('"tp-third",', '"tp-third", mtu = 1400,')
        assert apply(router, base + smaller + ROUTE)["summary"].startswith("1 port changed")
        third = ports(router)["third"]
        assert (third["mtu"], third["driver"]) == (1400, "net_af_xdp")
        assert pings(hosts.left, "198.51.100.1") and pings(hosts.third, "10.0.2.2")
        ping = hosts.left.run("ping", "-c", 1, "-W", 1, "-M", "do", "-s", 1400, "10.0.3.2", check=False)
        assert "Frag needed" in ping.stdout or "too long" in ping.stdout, ping.stdout
        # And another driver, and a configured MAC.
        by_packet = THIRD.replace('"tp-third",', f'"tp-third", driver = "af_packet", mac = "{OTHER_MAC}",')
        apply(router, base + by_packet + ROUTE)
        third = ports(router)["third"]
        assert (third["driver"], third["mac"], third["mtu"]) == ("net_af_packet", OTHER_MAC, 1500)
        assert pings(hosts.left, "198.51.100.1") and pings(hosts.third, "10.0.2.2")
        assert apply(router, base)["summary"].startswith("1 port removed, 1 route removed")
        assert list(ports(router)) == ["left", "right"]
        assert router.show("route", "10.0.3.2")["type"] == "no-route"
        # Linux has its interface again.
        assert "tp-third" in hosts.inside.run("ip", "link").stdout
        counters = router.show("counters")
        assert counters["received"] >= totals["received"] and counters["sent"] >= totals["sent"]
        totals = counters
    assert steady.stop() > 0
    router.counters()
    router.stop()


def test_what_fails_half_way_leaves_everything_as_it_was(lab):
    hosts = ThreeHosts(lab)
    router = hosts.router
    # A device of DPDK's own, which is reopened after it was closed.
    nothing = 'turnpike.port "nothing" { device = "net_null0", mac = "02:00:00:00:09:01", address = "10.0.9.1/24" }\n'
    apply(router, PORTS + THIRD + nothing + ROUTE)
    assert pings(hosts.left, "198.51.100.1")
    steady = Steady(hosts)
    before = [{key: port[key] for key in ("name", "device", "mac", "mtu", "addresses", "driver")} for port in router.show("ports")]
    fourth = 'turnpike.port "fourth" { device = "DEVICE", address = "10.0.4.1/24" }\n'
    full = """
    for i = 1, 33000 do
      local gateway = string.format("10.65.%d.%d", math.floor(i / 250), i % 250 + 1)
      turnpike.route(string.format("100.64.%d.%d", math.floor(i / 250), i % 250)) { via = gateway }
    end
    """
    hosts.connect("tp-fourth", "eth1", "02:00:00:00:04:01", "02:00:00:00:04:02")
    too_small = THIRD.replace('"tp-third",', '"tp-third", mtu = 9000,')
    wide = THIRD.replace("10.0.3.1/24", "10.0.3.1/24\", \"10.64.0.1/10")
    for text, expected in [
        (PORTS + THIRD + nothing + ROUTE + fourth.replace("DEVICE", "tp-none"), "device tp-none not found"),
        # Another interface has its name in the kernel.
        (PORTS + THIRD.replace('"third"', '"tp-fourth"').replace("tp-third\",", 'tp-third", host = true,'), "tp-fourth: exists already"),
        (PORTS + too_small + nothing + ROUTE, "MTU 9000 needs packet buffers of"),
        # Another port has changed when this fails.
        (PORTS + THIRD.replace('"tp-third",', '"tp-third", mtu = 1400,') + nothing.replace("null0", "null0,wrong=1"),
         "DPDK does not take device net_null0"),
        # All ports are changed, and then the next-hop table is full.
        (PORTS + wide.replace('"tp-third",', '"tp-third", mtu = 1300,') + fourth.replace("DEVICE", "tp-fourth") + full,
         "next hops are in use"),
    ]:
        error = refused(router, "apply", write(router, text))
        assert expected in error, (expected, error)
        after = [{key: port[key] for key in before[0]} for port in router.show("ports")]
        assert after == before, (expected, router.log())
        assert pings(hosts.left, "198.51.100.1") and pings(hosts.third, "10.0.2.2"), expected
    assert "tp-fourth" in hosts.inside.run("ip", "link").stdout
    steady.stop()
    # A refused change succeeds after its obstacle is removed.
    apply(router, PORTS + THIRD + ROUTE + fourth.replace("DEVICE", "tp-fourth"))
    assert list(ports(router)) == ["left", "right", "third", "fourth"]
    router.stop()


def test_a_port_that_is_not_confirmed_goes_and_rollback_brings_it_back(lab):
    hosts = ThreeHosts(lab)
    router = hosts.router
    steady = Steady(hosts)
    apply(router, PORTS + THIRD + ROUTE, "--confirm", "5s")
    assert pings(hosts.left, "198.51.100.1")
    assert wait_for(lambda: "third" not in ports(router), 20)
    assert router.show("route", "198.51.100.1")["type"] == "no-route"
    apply(router, PORTS + THIRD + ROUTE)
    assert pings(hosts.left, "198.51.100.1")
    apply(router, PORTS)
    router.command("rollback")
    assert pings(hosts.left, "198.51.100.1")
    # The number of a removed port is free for another, whose counters begin anew.
    hosts.left.run("ping", "-c", 50, "-i", "0.01", "198.51.100.1")
    assert ports(router)["third"]["rx_packets"] > 50
    apply(router, PORTS)
    apply(router, PORTS + THIRD.replace('"third"', '"again"'))
    assert ports(router)["again"]["rx_packets"] < 20
    assert pings(hosts.left, "10.0.3.2")
    steady.stop()
    router.stop()


def test_names_and_devices_change_places(lab):
    hosts = ThreeHosts(lab)
    router = hosts.router
    apply(router, PORTS + THIRD + ROUTE)
    assert pings(hosts.left, "198.51.100.1")
    steady = Steady(hosts)
    # Another name for the same device.
    apply(router, PORTS + THIRD.replace('"third"', '"renamed"') + ROUTE)
    assert list(ports(router)) == ["left", "right", "renamed"]
    assert pings(hosts.left, "198.51.100.1")
    # Another device for the same name.
    hosts.connect("tp-spare", "eth1", "02:00:00:00:03:11", "02:00:00:00:03:12")
    hosts.third.run("ip", "link", "set", "eth0", "down")
    hosts.third.run("ip", "address", "add", "10.0.3.2/24", "dev", "eth1")
    hosts.third.run("ip", "route", "replace", "default", "via", "10.0.3.1")
    apply(router, PORTS + THIRD.replace('"third"', '"renamed"').replace("tp-third", "tp-spare") + ROUTE)
    renamed = ports(router)["renamed"]
    assert (renamed["device"], renamed["mac"]) == ("tp-spare", "02:00:00:00:03:11")
    hosts.third.run("ip", "address", "add", "198.51.100.1/32", "dev", "eth1", check=False)
    assert pings(hosts.left, "10.0.3.2") and pings(hosts.left, "198.51.100.1")
    # A route added by a command is removed with its port.
    router.command("route", "add", "192.0.2.0/24", "via", "10.0.3.2")
    steady.stop()
    apply(router, PORTS)
    assert router.show("routes", "--source", "command") == []
    router.stop()


def test_host_interfaces_come_and_go_with_their_ports(lab):
    settings = 'turnpike.routes_from { "kernel" }\n'
    hosts = ThreeHosts(lab, settings)
    router = hosts.router
    links = lambda: hosts.inside.run("ip", "-br", "link").stdout.split()  # noqa: E731
    steady = Steady(hosts)
    for _ in range(3):
        apply(router, PORTS + settings + THIRD)
        assert "third" in links()
        assert pings(hosts.left, "10.0.3.2") and pings(hosts.inside, "10.0.3.2")
        # A daemon's kernel routes lead over it.
        hosts.inside.run("ip", "route", "add", "198.51.100.0/24", "via", "10.0.3.2")
        assert wait_for(lambda: router.show("route", "198.51.100.1")["source"] == "kernel")
        assert pings(hosts.left, "198.51.100.1")
        # It stays when the port changes, and its routes with it.
        apply(router, PORTS + settings + THIRD.replace('"tp-third",', f'"tp-third", mtu = 1400, mac = "{OTHER_MAC}",'))
        assert "198.51.100.0/24 via 10.0.3.2" in hosts.inside.run("ip", "route").stdout
        shown = hosts.inside.run("ip", "link", "show", "third").stdout
        assert OTHER_MAC in shown and "mtu 1400" in shown, shown
        assert pings(hosts.left, "198.51.100.1") and pings(hosts.inside, "10.0.3.2")
        # Without a host interface the router itself answers, with the same addresses.
        apply(router, PORTS + settings + THIRD.replace('"tp-third",', '"tp-third", host = false,'))
        assert "third" not in links()
        assert pings(hosts.third, "10.0.3.1") and pings(hosts.left, "10.0.3.2")
        assert wait_for(lambda: router.show("route", "198.51.100.1")["type"] == "no-route")
        apply(router, PORTS + settings + THIRD)
        assert "third" in links() and pings(hosts.inside, "10.0.3.2")
        apply(router, PORTS + settings)
        assert "third" not in links()
    steady.stop()
    router.stop()


def test_the_first_host_interface_of_a_router(lab):
    hosts = ThreeHosts(lab)
    router = hosts.router
    hosts.inside.run("ip", "netns", "list", check=False)
    apply(router, PORTS + THIRD.replace('"tp-third",', '"tp-third", host = true,'))
    assert wait_for(lambda: "10.0.3.1/24" in hosts.inside.run("ip", "address", "show", "third").stdout)
    assert pings(hosts.left, "10.0.3.2") and pings(hosts.inside, "10.0.3.2")
    # Addresses added in the kernel are the router's.
    hosts.inside.run("ip", "address", "add", "10.0.33.1/24", "dev", "third")
    assert wait_for(lambda: "10.0.33.1/24" in ports(router)["third"]["addresses"])
    apply(router, PORTS)
    assert pings(hosts.left, "10.0.2.2")
    router.stop()


def test_memory_of_ports_that_are_gone_is_used_again(lab):
    # Many more ports, one after the other, than fit into ordinary memory at a time.
    base = PLAIN_PORTS + "turnpike.memory { no_huge = true }\n"
    hosts = ThreeHosts(lab, ports=base)
    router = hosts.router
    nulls = "".join(f'turnpike.port "null{n}" {{ device = "net_null{n}" }}\n' for n in range(24))
    error = refused(router, "apply", write(router, base + nulls))
    assert "no packet memory is left beside that of the other ports; free or reserve hugepages" in error
    assert list(ports(router)) == ["left", "right"]
    # A resource is free again after its last packet, which may wait for a neighbour.
    for turn in range(24):
        file = write(router, base + THIRD.replace('"third"', f'"third-{turn}"'))
        assert wait_for(lambda: router.command("apply", file, check=False).returncode == 0, 10), turn  # noqa: B023
        if turn % 8 == 0:
            assert pings(hosts.left, "10.0.3.2"), turn
    assert pings(hosts.left, "10.0.2.2")
    router.stop()

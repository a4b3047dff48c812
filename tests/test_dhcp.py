"""DHCP on host interfaces, by the system's own programs: an uplink whose address a server assigns, and a relay; and the
router's own relay agent on ports without host interface."""

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import (
    DHCP6_Advertise, DHCP6_RelayForward, DHCP6_Solicit, DHCP6OptClientId, DHCP6OptIA_NA, DHCP6OptRelayMsg, DUID_LL,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from lib.apply import apply
from lib.kernel import Machine, host, pings
from lib.lab import HOST_A_MAC, LEFT_MAC, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import veth, wait_for
from lib.router import Change


def serve(space, directory, *options):
    """dnsmasq, for the networks of these options."""
    return space.spawn(
        "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--log-facility=-",
        f"--pid-file={directory}/pid", f"--dhcp-leasefile={directory}/leases", *options,
    )


def client_script(directory, metric=0):
    """The script that udhcpc runs: it sets the address and the default route."""
    script = directory / "script"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = bound ] || [ "$1" = renew ] || exit 0\n'
        f"ip address replace $ip/$mask dev $interface\n"
        f"ip route replace default via $router dev $interface metric {metric}\n"
    )
    script.chmod(0o755)
    return script


def addresses(machine, interface):
    lines = machine.run("ip", "-4", "-o", "address", "show", "dev", interface).stdout.splitlines()
    return [line.split()[3] for line in lines]


def addresses_in(space):
    return addresses(space, "eth0")


@pytest.mark.parametrize("how", ["unicast", "broadcast"])
def test_an_uplink_gets_its_address_and_default_route_from_a_server(lab, tmp_path, how):
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    provider = lab.namespace("provider")
    machine.port("wan", provider, "eth0")
    provider.run("ip", "address", "add", "203.0.113.1/24", "dev", "eth0")
    provider.run("ip", "address", "add", "198.51.100.1/32", "dev", "lo")
    provider.run("ip", "route", "add", "10.0.1.0/24", "via", "203.0.113.77")
    machine.start()
    serve(provider, tmp_path, "--interface=eth0", "--dhcp-range=203.0.113.77,203.0.113.77,120",
          "--dhcp-option=option:router,203.0.113.1")
    client = machine.space.spawn(
        "busybox", "udhcpc", "-i", "wan", "-f", "-R", "-t", "10", "-T", "1", "-s", client_script(tmp_path),
        *(["-B"] if how == "broadcast" else []),
    )
    assert wait_for(lambda: addresses(machine, "wan") == ["203.0.113.77/24"], 20), addresses(machine, "wan")
    assert client.poll() is None
    assert wait_for(lambda: pings(left, "198.51.100.1"), 10)
    machine.finish()


def test_a_second_uplink_gets_its_address_by_a_rule(lab, tmp_path):
    # A default route leads to every address: the offer of another provider would be forwarded by it.
    machine = Machine(lab, "router")
    host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    provider = lab.namespace("provider")
    machine.port("wan", provider, "eth0")
    provider.run("ip", "address", "add", "203.0.113.1/24", "dev", "eth0")
    rule = 'turnpike.filter "offers" {{ {{ proto = "udp", from_port = 67, to_port = 68, action = "{}" }}, default = "accept" }}\n'

    def config(action):
        text = machine.config('"kernel"').replace('device = "tp-wan",', 'device = "tp-wan", filter = "offers",')
        return text + rule.format(action)

    machine.router = lab.router(machine.wires, config("accept"))
    machine.ip("route", "add", "default", "via", "10.0.1.2")
    serve(provider, tmp_path, "--interface=eth0", "--dhcp-range=203.0.113.77,203.0.113.77,120",
          "--dhcp-option=option:router,203.0.113.1")
    machine.space.spawn("busybox", "udhcpc", "-i", "wan", "-f", "-R", "-t", "10", "-T", "1", "-s", client_script(tmp_path, 100))
    assert not wait_for(lambda: addresses(machine, "wan"), 3)
    apply(machine.router, config("to-host"))
    assert wait_for(lambda: addresses(machine, "wan") == ["203.0.113.77/24"], 20), machine.router.log()
    machine.finish()


def test_a_relay_on_host_interfaces(lab, tmp_path):
    machine = Machine(lab, "router")
    left = lab.namespace("left")
    machine.port("left", left, "eth0", "10.0.1.1/24")
    server = host(machine, "right", "right", "10.0.2.2", "10.0.2.1")
    machine.start()
    serve(server, tmp_path, "--interface=eth0", "--dhcp-range=10.0.1.50,10.0.1.50,255.255.255.0,120",
          "--dhcp-option=option:router,10.0.1.1")
    relay = tmp_path / "relay"
    relay.mkdir()
    serve(machine.space, relay, "--dhcp-relay=10.0.1.1,10.0.2.2")
    left.spawn("busybox", "udhcpc", "-i", "eth0", "-f", "-R", "-t", "10", "-T", "1", "-s", client_script(tmp_path))
    assert wait_for(lambda: pings(left, "10.0.2.2"), 20)
    assert "10.0.1.50/24" in left.run("ip", "-4", "-o", "address", "show", "dev", "eth0").stdout
    machine.finish()


@pytest.mark.parametrize("family", [4, 6])
def test_the_server_is_behind_a_host_interface(lab, tmp_path, family):
    machine = Machine(lab, "router")
    left = lab.namespace("left")
    veth(machine.space, "tp-left", left, "eth0")
    server = host(machine, "wan", "server", "10.0.2.2", "10.0.2.1")
    server.run("ip", "address", "add", "fd00:2::2/64", "dev", "eth0", "nodad")
    for net, gateway in (("10.0.1.0/24", "10.0.2.1"), ("fd00:1::/64", "fd00:2::1")):
        server.run("ip", "route", "replace", net, "via", gateway)
    machine.ports["wan"] = ("10.0.2.1/24", "fd00:2::1/64")
    lan = """turnpike.port "left" { device = "tp-left", host = false, address = { "10.0.1.1/24", "fd00:1::1/64" },
                                   dhcp_relay = { "10.0.2.2", "fd00:2::2" } }"""
    machine.start(config=lan + "\n")
    if family == 4:
        serve(server, tmp_path, "--interface=eth0", "--dhcp-range=10.0.1.50,10.0.1.50,255.255.255.0,120",
              "--dhcp-option=option:router,10.0.1.1")
        left.spawn("busybox", "udhcpc", "-i", "eth0", "-f", "-R", "-t", "10", "-T", "1", "-s", client_script(tmp_path))
        assert wait_for(lambda: addresses_in(left) == ["10.0.1.50/24"], 30), machine.router.log()
    else:
        serve(server, tmp_path, "--interface=eth0", "--dhcp-range=fd00:1::50,fd00:1::50,64,120")
        assert wait_for(lambda: advertised(lab, left)[1], 30), machine.router.log()
    machine.finish()


RELAYING = """
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left", address = { "10.0.1.1/24", "fd00:1::1/64" },
                        dhcp_relay = { "10.0.2.2", "fd00:2::2" } }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
"""


@pytest.mark.parametrize("how", ["unicast", "broadcast"])
def test_a_client_gets_its_address_by_the_router_s_relay_agent(lab, tmp_path, how):
    hosts = Hosts(lab, ports=RELAYING)
    left, server = hosts.left, hosts.right
    left.run("ip", "address", "flush", "dev", "eth0")
    serve(server, tmp_path, "--interface=eth0", "--dhcp-range=10.0.1.50,10.0.1.50,255.255.255.0,120",
          "--dhcp-option=option:router,10.0.1.1")
    left.spawn("busybox", "udhcpc", "-i", "eth0", "-f", "-R", "-t", "10", "-T", "1", "-s", client_script(tmp_path),
               *(["-B"] if how == "broadcast" else []))
    assert wait_for(lambda: pings(left, "10.0.2.2"), 30), hosts.router.log()
    assert "10.0.1.50/24" in left.run("ip", "-4", "-o", "address", "show", "dev", "eth0").stdout
    # Live: without servers nobody hears the next client.
    apply(hosts.router, RELAYING.replace('dhcp_relay = { "10.0.2.2", "fd00:2::2" }', ""))
    left.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-t", "1", "-T", "1", "-s", "/bin/true", check=False)
    assert wait_for(lambda: hosts.router.counters()["dropped"]["ip4-martian-source"] > 0)
    hosts.router.counters()
    hosts.router.stop()


def solicit(source):
    client = DHCP6OptClientId(duid=DUID_LL(lladdr=HOST_A_MAC))
    return (
        Ether(src=HOST_A_MAC, dst="33:33:00:01:00:02") / IPv6(src=source, dst="ff02::1:2") / UDP(sport=546, dport=547)
        / DHCP6_Solicit(trid=7) / client / DHCP6OptIA_NA(iaid=1)
    )


def advertised(lab, space):
    """The client's address, and the answers to its solicitation."""
    shown = space.run("ip", "-6", "-o", "address", "show", "dev", "eth0", "scope", "link").stdout
    source = shown.split()[3].split("/")[0]
    wire = lab.raw(space, "eth0")
    wire.send(bytes(solicit(source)))
    return source, [frame for frame in wire.receive(1) if DHCP6_Advertise in Ether(frame)]


def test_a_client_solicits_by_the_router_s_relay_agent_over_ipv6(lab, tmp_path):
    hosts = Hosts(lab, ports=RELAYING)
    left, server = hosts.left, hosts.right
    serve(server, tmp_path, "--interface=eth0", "--dhcp-range=fd00:1::50,fd00:1::50,64,120")
    assert wait_for(lambda: advertised(lab, left)[1], 30), hosts.router.log()
    source, (frame, *_) = advertised(lab, left)
    packet = Ether(frame)
    assert (packet[IPv6].dst, packet[UDP].sport, packet[UDP].dport) == (source, 547, 546)
    assert packet[DHCP6_Advertise].trid == 7 and b"\xfd\x00\x00\x01" in frame
    hosts.router.counters()
    hosts.router.stop()


def discover(**fields):
    message = BOOTP(**{"chaddr": bytes.fromhex(HOST_A_MAC.replace(":", "")), "xid": 7, **fields})
    return message / DHCP(options=[("message-type", "discover"), "end"])


def asks(message):
    """A client's message, as it is broadcast."""
    ip = IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67)
    return bytes(Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff") / ip / message)


@pytest.fixture(scope="module")
def relaying(module_lab):
    return Wires(module_lab, ports=RELAYING + STATIC_NEIGHBOURS, calm=True)


FORGED = {
    "dhcp-malformed": [asks(b"\x01" * 300), asks(discover(op=9)), asks(bytes(BOOTP(chaddr=b"\2")))],
    "dhcp-untrusted": [
        asks(discover(giaddr="10.0.1.7")),
        asks(BOOTP() / DHCP(options=[("message-type", "discover"), (82, b"\1\1x"), "end"])),
        # A server's answer that the interface does not have.
        bytes(Ether(src=HOST_A_MAC, dst=LEFT_MAC) / IP(src="10.0.1.2", dst="10.0.1.1") / UDP(sport=67, dport=67)
              / discover(op=2, giaddr="10.0.1.1")),
        # A client's, with the server's address.
        bytes(Ether(src=HOST_A_MAC, dst=LEFT_MAC) / IP(src="10.0.2.2", dst="10.0.1.1") / UDP(sport=67, dport=67)
              / discover(op=2, giaddr="10.0.1.1")),
    ],
    "dhcp-hops": [asks(discover(hops=16))],
}


@pytest.mark.parametrize("reason", [pytest.param(reason) for reason in FORGED])
def test_messages_that_are_not_relayed(relaying, reason):
    relaying.drain()
    change = Change(relaying.router)
    relaying.left.send(*FORGED[reason])
    count = len(FORGED[reason])
    assert change(received=count) == {"received": count, "dropped": {reason: count}}
    assert relaying.silent()


@pytest.mark.provokes("dhcp-hops")
def test_a_message_of_the_ninth_agent_is_not_relayed(relaying):
    inner = DHCP6OptRelayMsg(message=DHCP6_Solicit(trid=7))
    message = DHCP6_RelayForward(hopcount=8, linkaddr="fd00:9::1", peeraddr="fe80::9") / inner
    frame = Ether(src=HOST_A_MAC, dst="33:33:00:01:00:02") / IPv6(src="fe80::a", dst="ff02::1:2") / UDP(sport=547, dport=547)
    relaying.drain()
    change = Change(relaying.router)
    relaying.left.send(bytes(frame / message))
    assert change(received=1) == {"received": 1, "dropped": {"dhcp-hops": 1}}


@pytest.mark.provokes("dhcp-rate")
def test_a_flood_of_clients_is_bounded(relaying):
    relaying.drain()
    change = Change(relaying.router)
    for _ in range(20):
        relaying.left.send(*[asks(discover())] * 50)
    counts = change(received=1000)
    assert 200 <= counts["originated"] < counts["received"] and counts["dropped"]["dhcp-rate"] > 0, counts

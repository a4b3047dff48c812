"""DHCP on host interfaces, by the system's own programs: an uplink whose address a server assigns, and a relay."""

import pytest

from lib.apply import apply
from lib.kernel import Machine, host, pings
from lib.netns import wait_for


def serve(space, directory, *options):
    """dnsmasq, for the networks of these options."""
    return space.spawn(
        "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--log-facility=-",
        f"--pid-file={directory}/pid", f"--dhcp-leasefile={directory}/leases", *options,
    )


def client_script(directory, metric=0):
    """What udhcpc runs: it sets the address and the default route."""
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

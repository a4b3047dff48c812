"""Router identifiers on the kernel's loopback, and interfaces without addresses of their own (BGP unnumbered): as data
centres build their networks."""

from lib import tables
from lib.frr import Frr
from lib.kernel import Machine, host, pings
from lib.netns import wait_for

# A neighbour is found by its router advertisements; its routes have its link-local address as gateway (RFC 8950).
UNNUMBERED = """
router bgp {number}
 bgp router-id {identifier}
 no bgp ebgp-requires-policy
 neighbor {interface} interface remote-as external
 neighbor {interface} timers connect 1
 neighbor {interface} capability extended-nexthop
 address-family ipv4 unicast
  redistribute connected
 exit-address-family
 address-family ipv6 unicast
  redistribute connected
  neighbor {interface} activate
 exit-address-family
"""


def test_addresses_of_the_kernel_s_loopback_are_the_host_s(lab):
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    right = host(machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
    machine.start()
    for address, length in (("192.0.2.1", 32), ("2001:db8::1", 128)):
        assert not pings(left, address)
        machine.run("ip", "address", "add", f"{address}/{length}", "dev", "lo")
        for space in (left, right):
            assert wait_for(lambda space=space: pings(space, address), 10)
        machine.run("ip", "address", "del", f"{address}/{length}", "dev", "lo")
        assert wait_for(lambda: not pings(left, address), 10)
    machine.finish()


def test_bgp_between_interfaces_without_addresses(lab):
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    peer = lab.namespace("peer")
    for setting in ("ipv4.ip_forward", "ipv6.conf.all.forwarding"):
        peer.sysctl(f"net.{setting}", 1)
    machine.port("right", peer, "eth0")
    peer.run("ip", "address", "add", "198.51.100.1/32", "dev", "lo")
    peer.run("ip", "address", "add", "2001:db8:5::1/128", "dev", "lo")
    machine.start()
    machine.run("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    sets = {}
    for number, space, interface, identifier in (
        (65001, machine.space, "right", "192.0.2.1"), (65002, peer, "eth0", "198.51.100.1"),
    ):
        config = UNNUMBERED.format(number=number, interface=interface, identifier=identifier)
        sets[number] = Frr(space, {"bgpd": config})
        lab._made.callback(sets[number].close)
    for address in ("198.51.100.1", "2001:db8:5::1"):
        assert wait_for(lambda address=address: pings(left, address), 60), sets[65001].vtysh("show bgp summary")
    tables.assert_agree(machine, sets[65001])
    # The packets of a session between loopbacks, both ways.
    assert wait_for(lambda: pings(peer, "192.0.2.1", source="198.51.100.1"), 10)
    # The neighbour goes; its routes with it.
    peer.run("ip", "link", "set", "eth0", "down")
    assert wait_for(lambda: not pings(left, "198.51.100.1"), 20)
    peer.run("ip", "link", "set", "eth0", "up")
    assert wait_for(lambda: pings(left, "198.51.100.1"), 60)
    machine.finish()

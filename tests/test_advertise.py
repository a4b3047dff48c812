"""Router advertisements: a Linux host configures itself from them, and scapy reads each field.

RFC 4861 6.2; RFC 4862 5.5 is what the host does with them.
"""

import json
import time

import pytest
from scapy.layers.inet6 import (
    ICMPv6ND_RA, ICMPv6ND_RS, ICMPv6NDOptMTU, ICMPv6NDOptPrefixInfo, ICMPv6NDOptRDNSS,
    ICMPv6NDOptSrcLLAddr, IPv6,
)
from scapy.layers.l2 import Ether

from lib.lab import HOST_A_MAC, LEFT_MAC, Hosts, Wires
from lib.netns import wait_for

LINK_LOCAL = "fe80::ff:fe00:101"
PORTS = """
local turnpike = require "turnpike"
turnpike.port "left" {
  device = "tp-left", address = { "10.0.1.1/24", "fd00:1::1/64" },
  advertise = { %s },
}
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }
"""


def is_advertisement(frame):
    return frame[12:14] == b"\x86\xdd" and frame[54:55] == b"\x86"


def advertisement(wire, timeout=3.0):
    """The next router advertisement on a wire."""
    (frame,) = wire.expect(1, is_advertisement, timeout)
    return Ether(frame)


def address_in(host, prefix):
    """The host's address in a network, once it may be used."""
    shown = json.loads(host.run("ip", "-j", "-6", "address", "show", "dev", "eth0").stdout)
    for entry in shown[0]["addr_info"]:
        if entry["local"].startswith(prefix) and not entry.get("tentative"):
            return entry
    return None


def default_route(host):
    routes = json.loads(host.run("ip", "-j", "-6", "route", "show", "default").stdout)
    found = [route for route in routes if route.get("protocol") == "ra"]
    return found[0] if found else None


def test_a_linux_host_configures_itself(lab):
    hosts = Hosts(lab, ports=PORTS % "valid_s = 1000, preferred_s = 900, mtu = 1400", start=False)
    host = hosts.left
    # A host with the defaults: no address but its link-local one, no route, and it solicits.
    host.run("ip", "link", "set", "eth0", "down")
    host.run("ip", "-6", "address", "flush", "dev", "eth0")
    host.run("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=1")
    host.run("ip", "link", "set", "eth0", "up")
    router = lab.router(hosts.inside, PORTS % "valid_s = 1000, preferred_s = 900, mtu = 1400")
    entry = wait_for(lambda: address_in(host, "fd00:1:"), 10)
    assert entry and entry["dynamic"] and entry["prefixlen"] == 64
    assert 900 < entry["valid_life_time"] <= 1000 and 800 < entry["preferred_life_time"] <= 900
    route = wait_for(lambda: default_route(host), 5)
    assert route["gateway"] == LINK_LOCAL and route["dev"] == "eth0"
    assert host.run("cat", "/proc/sys/net/ipv6/conf/eth0/mtu").stdout.strip() == "1400"
    # The learned settings work: the other side is reached.
    host.run("ping", "-6", "-c", "2", "-W", "2", "fd00:2::2")
    # The router announces its end, and the host removes its default route at once.
    router.stop()
    assert wait_for(lambda: default_route(host) is None, 5)


def test_every_field_is_as_configured(lab):
    wires = Wires(lab, ports=PORTS % """
        interval_s = 4, lifetime_s = 9000, managed = true, other = true, preference = "high",
        hop_limit = 32, reachable_ms = 5000, retransmit_ms = 1500, mtu = 1480,
        prefixes = { "fd00:1::/64", { "2001:db8::/48", valid_s = 60, preferred_s = 30,
                                      on_link = false, autonomous = false } },
        dns = { "fd00:1::53", "fd00:1::54" }""")
    frame = advertisement(wires.left, 6)
    assert (frame.src, frame.dst) == (LEFT_MAC, "33:33:00:00:00:01")
    assert (frame[IPv6].src, frame[IPv6].dst, frame[IPv6].hlim) == (LINK_LOCAL, "ff02::1", 255)
    said = frame[ICMPv6ND_RA]
    assert (said.chlim, said.M, said.O, said.prf, said.routerlifetime) == (32, 1, 1, 1, 9000)
    assert (said.reachabletime, said.retranstimer, said.code) == (5000, 1500, 0)
    assert frame[ICMPv6NDOptSrcLLAddr].lladdr == LEFT_MAC and frame[ICMPv6NDOptMTU].mtu == 1480
    first = frame[ICMPv6NDOptPrefixInfo]
    second = first.payload[ICMPv6NDOptPrefixInfo]
    assert (first.prefix, first.prefixlen, first.L, first.A) == ("fd00:1::", 64, 1, 1)
    assert (first.validlifetime, first.preferredlifetime) == (2592000, 604800)
    assert (second.prefix, second.prefixlen, second.L, second.A) == ("2001:db8::", 48, 0, 0)
    assert (second.validlifetime, second.preferredlifetime) == (60, 30)
    assert frame[ICMPv6NDOptRDNSS].dns == ["fd00:1::53", "fd00:1::54"]
    sent = bytes(frame)
    del frame[ICMPv6ND_RA].cksum
    assert bytes(Ether(bytes(frame))) == sent, "the checksum is the one scapy makes"
    # Again within its interval, and nothing on the port that does not advertise.
    advertisement(wires.left, 5)
    assert wires.right.expect(1, is_advertisement, 0.2) == []


@pytest.fixture
def quiet(lab):
    """A router that has sent its first advertisement; the next one is far off."""
    wires = Wires(lab, ports=PORTS % "interval_s = 1800")
    wires.left.expect(1, is_advertisement, 1)
    return wires


def solicit(wire, source="fe80::a"):
    wire.send(Ether(src=HOST_A_MAC, dst="33:33:00:00:00:02") / IPv6(
        src=source, dst="ff02::2", hlim=255) / ICMPv6ND_RS())


def test_a_solicitation_is_answered(quiet):
    # RFC 4861 6.2.6: to all nodes, within half a second, but three seconds apart.
    for source in ("fe80::a", "::"):
        start = time.monotonic()
        for _ in range(3):
            solicit(quiet.left, source)
        assert advertisement(quiet.left, 5)[IPv6].dst == "ff02::1"
        assert time.monotonic() - start < 4
        assert quiet.left.expect(1, is_advertisement, 0.5) == [], "one for all"


def test_other_routers_that_disagree_are_logged(quiet):
    # RFC 4861 6.2.7.
    other = Ether(src=HOST_A_MAC, dst="33:33:00:00:00:01") / IPv6(
        src="fe80::a", dst="ff02::1", hlim=255) / ICMPv6ND_RA(chlim=64, M=1)
    quiet.left.send(other)
    line = 'port "left": router fe80::a advertises another managed or other flag'
    assert wait_for(lambda: line in quiet.router.log(), 3)

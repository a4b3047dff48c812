"""Rules of packet filters with MACs, priorities of VLAN tags and Ethertypes in a device, on a port and on its VLANs: the
tags of an interface are part of the rules.

The device is `flow_device/flow_device.c`, put in front of DPDK, which finds packets behind tags unless a rule rules them
out.
"""

import re

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC
from lib.netns import wait_for
from lib.packets import forwarded, tagged, untagged
from lib.router import Change
import test_hardware_filters
from test_hardware_filters import PAYLOAD, ports

STRANGER = "02:00:00:00:09:09"
FILTERS = f"""
turnpike.filter "edge-in" {{
  {{ name = "high", priority = {{ 6, 7 }}, action = "drop" }},
  {{ name = "host", from_mac = "{HOST_A_MAC}", proto = "udp", to_port = 1 }},
  {{ name = "stranger", from_mac = "{STRANGER}", action = "drop" }},
  {{ name = "own", to_mac = "{LEFT_MAC}", proto = "udp", to_port = 2, action = "drop" }},
  {{ name = "low", priority = 0, proto = "udp", to_port = 3, action = "drop" }},
  {{ name = "any", proto = "udp", to_port = 4, action = "drop" }},
  {{ name = "frames", ethertype = 0x9000, from_mac = "{STRANGER}", action = "drop" }},
  {{ name = "high-frames", ethertype = 0x9001, priority = 6, action = "drop" }},
  {{ name = "first", from_mac = "{HOST_A_MAC}", proto = "udp", to_port = 5 }},
  {{ name = "behind", proto = "udp", to_port = 5, action = "drop" }},
}}
turnpike.filter "other" {{ {{ name = "one", proto = "udp", to_port = 1, action = "drop" }} }}
"""
HARDWARE = 'filter = { inward = "edge-in", hardware = true }'
VLANS = f"""
turnpike.vlan "left.100" {{ parent = "left", id = 100, {HARDWARE}, address = {{ "10.0.100.1/24", "fd00:100::1/64" }} }}
turnpike.vlan "left.101" {{ parent = "left", id = 101, address = "10.0.101.1/24",
  filter = {{ inward = "other", hardware = true }} }}
turnpike.vlan "left.102" {{ parent = "left", id = 102, address = "10.0.102.1/24" }}
turnpike.vlan "outer" {{ parent = "left", id = 200, {HARDWARE} }}
turnpike.vlan "inner" {{ parent = "outer", id = 7, {HARDWARE}, address = "10.0.7.1/24", mtu = 1496 }}
"""
# Interface, and the tags of its frames, outer first, as VLAN identifiers.
INTERFACES = {"left": [], "left.100": [100], "inner": [200, 7]}
NETWORK = {"left": 1, "left.100": 100, "left.101": 101, "left.102": 102, "inner": 7}


def start(lab, directory, config=FILTERS + VLANS, port=HARDWARE, calm=True, **options):
    text = ports(port.removeprefix("filter = "))
    return test_hardware_filters.start(lab, directory, config, calm, text, (1508, 1508), **options)


@pytest.fixture(scope="module")
def wires(module_lab, tmp_path_factory):
    wires = start(module_lab, tmp_path_factory.mktemp("device"))
    yield wires
    wires.router.stop()
    wires.device.lines()


def frame(interface, port, priority=0, source=HOST_A_MAC, ethertype=None, family=IP, tags=None):
    """A frame of an interface; one of its own without a priority has no tag."""
    network = NETWORK[interface]
    if ethertype:
        whole = Ether(src=source, dst=LEFT_MAC, type=ethertype) / Raw(bytes(50))
    else:
        ip = IP(src=f"10.0.{network}.2", dst="10.0.2.2") if family is IP else IPv6(src=f"fd00:{network}::2", dst="fd00:2::2")
        whole = Ether(src=source, dst=LEFT_MAC) / ip / UDP(sport=9, dport=port) / PAYLOAD
    whole = bytes(whole)
    tags = INTERFACES.get(interface) if tags is None else tags
    if not tags and priority:
        tags = [0]
    for place, vlan in reversed(list(enumerate(tags))):
        whole = tagged(whole, vlan, 0x8100, priority if place == 0 else 0)
    return whole


def rules(router, filter="edge-in"):
    (shown,) = [row for row in router.show("filters") if row["name"] == filter]
    return {rule["name"]: rule for rule in shown["rules"]}


def where(router, name, interface, filter="edge-in"):
    """Rules held by the device for an interface and rules required in it, and the reasons for a difference."""
    (of,) = [of for of in rules(router, filter)[name]["hardware"] if of["port"] == interface]
    return of["held"], of["wanted"], "; ".join(of["why"])


def fate(wires, whole, filter="edge-in"):
    """The place where a frame is dropped, or `passes`, and the rule that has counted it."""
    wires.drain()
    before, drops, change = rules(wires.router, filter), wires.device.drops(), Change(wires.router)
    passed = frame("left", 8)
    wires.left.send(whole)
    wires.left.send(passed)
    last = forwarded(passed, RIGHT_MAC, HOST_B_MAC)
    arrived = wires.right.expect(1)
    if arrived != [last]:
        arrived += wires.right.expect(1)
        assert arrived == [forwarded(untagged(whole)[0], RIGHT_MAC, HOST_B_MAC), last]
    is_device = wires.device.drops() > drops
    dropped = change(received=1 if is_device else 2).get("dropped")
    assert not (is_device and dropped)
    after = rules(wires.router, filter)
    by = [name for name in after if after[name]["packets"] > before[name]["packets"]]
    in_device = [name for name in after if after[name]["device_packets"] > before[name]["device_packets"]]
    assert in_device == (by if is_device else []), (by, in_device)
    size = sum(after[name]["bytes"] - before[name]["bytes"] for name in by)
    assert size == len(by) * (len(untagged(whole)[0]) - 14), "of IP packets, without tags"
    assert is_device or (len(arrived) == 1) == bool(dropped)
    return "device" if is_device else "software" if dropped else "passes", by


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("port, options, expected", [
    (1, {}, ("passes", ["host"])),
    (1, {"source": STRANGER}, ("device", ["stranger"])),
    (2, {}, ("device", ["own"])),
    (9, {"priority": 7}, ("device", ["high"])),
    (9, {"priority": 5}, ("passes", [])),
    (3, {}, ("device", ["low"])),
    (3, {"priority": 5}, ("passes", [])),
    (4, {}, ("device", ["any"])),
    (4, {"priority": 5}, ("device", ["any"])),
    (9, {"ethertype": 0x9000, "source": STRANGER}, ("device", ["frames"])),
    (9, {"ethertype": 0x9001, "priority": 6}, ("device", ["high-frames"])),
    (5, {}, ("passes", ["first"])),
    (5, {"source": "02:00:00:00:09:08"}, ("software", ["behind"])),
], ids=str)
def test_rules_hold_for_their_interfaces(wires, interface, port, options, expected):
    # The device is told of untagged frames of a port with VLANs; software has its priority-tagged ones, unless a rule has
    # priorities.
    if interface == "left" and (port, options.get("priority")) == (4, 5):
        expected = ("software", ["any"])
    assert fate(wires, frame(interface, port, **options)) == expected


def test_ipv6_behind_a_tag(wires):
    assert fate(wires, frame("left.100", 4, family=IPv6)) == ("device", ["any"])


@pytest.mark.provokes("vlan-unknown")
def test_other_interfaces_have_other_rules(wires):
    assert fate(wires, frame("left.101", 1, tags=[101]), "other") == ("device", ["one"])
    assert fate(wires, frame("left.101", 4, tags=[101]), "other") == ("passes", [])
    # One without a filter.
    assert fate(wires, frame("left.102", 4, tags=[102])) == ("passes", [])
    # Frames of no VLAN fit no rule.
    for tags in ([103], [100, 7], [200, 8], [200, 7, 7]):
        change, drops = Change(wires.router), wires.device.drops()
        wires.left.send(frame("left", 4, tags=tags))
        change(received=1)
        assert wires.device.drops() == drops, tags


def test_each_interface_says_where_a_rule_is(wires):
    router = wires.router
    for interface in INTERFACES:
        assert where(router, "stranger", interface) == (3, 3, ""), "IPv4, TCP and UDP of IPv6"
        why = 'rule 9 "first" comes first and may fit the same packets'
        assert where(router, "behind", interface) == (0, 0, why)
        assert where(router, "high", interface)[2] == ""
    text = router.command("show", "filters", "edge-in").stdout
    assert re.search(r"^ *3 +stranger .* hardware +\d+$", text, re.M), text
    assert 'rule 10 "behind" in software on left.100: rule 9 "first" comes first' in text
    log = router.log()
    assert 'vlan "left.100": filter "edge-in":' in log and 'port "left": filter "edge-in":' in log
    assert 'vlan "left.101": filter "other": 1 of 1 rules' in log


@pytest.mark.parametrize("refused, kept, expected", [
    ("macs", ["any", "high"], {"stranger": "addresses are not compared", "own": "addresses are not compared"}),
    ("vlan", [], {"stranger": "tags are not told apart", "high": "tags are not compared"}),
])
def test_software_takes_what_a_device_refuses(lab, tmp_path, refused, kept, expected):
    wires = start(lab, tmp_path, refuse=refused)
    for name, why in expected.items():
        held, wanted, said = where(wires.router, name, "left")
        assert held == 0 < wanted and f"the device says: {why}" in said
    for name in kept:
        held, wanted, said = where(wires.router, name, "left.100")
        assert held == wanted > 0 and said == ""
    place = "device" if kept else "software"
    assert fate(wires, frame("left.100", 4)) == (place, ["any"])
    for options, rule in (({"source": STRANGER}, "stranger"), ({"priority": 6}, "high")):
        of = place if rule in kept else "software"
        assert fate(wires, frame("inner", 9, **options)) == (of, [rule])
    wires.router.stop()
    wires.device.lines()


def test_rules_of_vlans_come_and_go_with_them(lab, tmp_path):
    wires = start(lab, tmp_path)
    text, router = wires.router.config.read_text(), wires.router
    assert fate(wires, frame("left.100", 4)) == ("device", ["any"])
    # A VLAN that goes; the rules of the others are not touched.
    held = len(wires.device.lines("create")) - len(wires.device.lines("destroy"))
    without = re.sub(r'turnpike.vlan "left.101".*\n.*\n', "", text)
    apply(router, without)
    assert len(wires.device.lines("destroy")) == 2 and len(wires.device.lines("create")) == held, "of IPv4 and IPv6"
    # One that has its filter in software.
    apply(router, text.replace(f'id = 100, {HARDWARE}', 'id = 100, filter = "edge-in"'))
    assert fate(wires, frame("left.100", 4)) == ("software", ["any"])
    assert fate(wires, frame("inner", 4)) == ("device", ["any"])
    router.command("rollback")
    assert fate(wires, frame("left.100", 4)) == ("device", ["any"])
    apply(router, text)
    assert fate(wires, frame("left.100", 4)) == ("device", ["any"])
    # Another identifier.
    apply(router, text.replace("id = 100,", "id = 110,"))
    assert fate(wires, frame("left.100", 4, tags=[110])) == ("device", ["any"])
    # A port that is closed and reopened.
    apply(router, text.replace('device = "tp-left",', 'device = "tp-left", mtu = 1504,'))
    assert wait_for(lambda: where(router, "any", "left.100") == (2, 2, ""))
    assert fate(wires, frame("left.100", 4)) == ("device", ["any"])
    # Without VLANs, the port's own rules say nothing of tags.
    apply(router, text.replace(VLANS, ""))
    drops = wires.device.drops()
    wires.left.send(frame("left", 4, priority=5))
    assert wait_for(lambda: wires.device.drops() == drops + 1)
    assert wires.device.lines("defect:") == []
    router.stop()
    wires.device.lines()

"""Random filters on a port and its VLANs, with MACs, priorities, ports, sets and Ethertypes: a device with the rules that it
can hold and software together decide each packet as software alone.

The device is `flow_device/flow_device.c`, put in front of DPDK.
"""

import random

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, PadN
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lib.apply import apply
from lib.lab import HOST_A_MAC, LEFT_MAC
from lib.netns import wait_for
from lib.packets import tagged
from test_hardware_tags import start

MACS = [HOST_A_MAC, "02:00:00:00:09:01", "02:00:00:00:09:02"]
# Interface, and the identifiers of the tags of its frames, outer first.
INTERFACES = {"left": [], "left.100": [100], "inner": [200, 7]}
NETWORKS = {"left": 1, "left.100": 100, "inner": 7}
SET = 'turnpike.prefix_set "some" { "10.0.1.128/25", "10.0.100.0/25", "fd00:100::/64" }\n'
RULES, FILTERS, PACKETS = 14, 4, 150


def lua(value):
    return "{ " + ", ".join(map(lua, value)) + " }" if isinstance(value, list) else f'"{value}"'


def rule(dice, number):
    """A rule of a few conditions; half of them drop."""
    keys = {"name": f"r{number}", "action": dice.choice(["drop", "drop", "drop", "accept", "accept", "continue"])}
    some = lambda values: dice.sample(values, dice.randint(1, 2))  # noqa: E731
    conditions = {
        # Of both families: a rule may be for one alone.
        "from": lambda: some(["10.0.1.0/24", "10.0.1.64/26", "10.0.100.2", "10.0.7.0/24"]) + some(["fd00:1::/64", "fd00:100::2"]),
        "to": lambda: dice.choice([["10.0.2.2", "fd00:2::2"], ["10.0.2.0/25", "fd00:3::/64"], ["10.0.3.0/24", "fd00:2::/64"]]),
        "from_mac": lambda: some(MACS),
        "to_mac": lambda: LEFT_MAC,
        "priority": lambda: some([0, 3, 5, 7]),
        "from_set": lambda: "some",
        "interface": lambda: some(list(INTERFACES)),
        "dscp": lambda: some([0, 10, 46]),
        "ttl": lambda: dice.choice(["1-64", "64", "65-255"]),
        "length": lambda: "0-60",
        "fragment": lambda: dice.choice([True, False]),
    }
    upper = dice.randint(0, 5)
    if upper in (0, 1):
        keys["proto"] = some(["tcp", "udp"])
        keys[dice.choice(["to_port", "from_port"])] = some([1, 2, "1-3", "2-9", "1024-65535"])
    elif upper == 2:
        keys |= {"proto": "tcp", "flags": dice.choice(["syn,!ack", "ack"])}
    elif upper == 3:
        keys |= dice.choice([{"icmp": "echo-request"}, {"icmp6": "echo-request"}])
    if dice.random() < 0.12:
        keys = {of: keys[of] for of in ("name", "action")} | {"ethertype": some([0x9000, 0x9001])}
        keys["action"] = "drop" if keys["action"] == "continue" else keys["action"]
        conditions = {of: conditions[of] for of in ("from_mac", "to_mac", "priority", "interface")}
    for key in dice.sample(sorted(conditions), dice.randint(0, 2)):
        keys[key] = conditions[key]()
    if dice.random() < 0.1 and "ethertype" not in keys:
        keys["police"] = "1000kpps"
    words = {True: "true", False: "false"}
    return "  { " + ", ".join(f"{key} = {words[of] if isinstance(of, bool) else lua(of)}" for key, of in keys.items()) + " },"


def filter_of(dice):
    rules = "\n".join(rule(dice, number) for number in range(RULES))
    return f'turnpike.filter "edge-in" {{\n{rules}\n  default = "{dice.choice(["accept", "accept", "drop"])}",\n}}\n'


def config(filter, hardware):
    of = f'filter = {{ inward = "edge-in", hardware = {"true" if hardware else "false"} }}'
    return f"""{filter}
turnpike.vlan "left.100" {{ parent = "left", id = 100, {of}, address = {{ "10.0.100.1/24", "fd00:100::1/64" }} }}
turnpike.vlan "outer" {{ parent = "left", id = 200 }}
turnpike.vlan "inner" {{ parent = "outer", id = 7, {of}, address = {{ "10.0.7.1/24", "fd00:7::1/64" }}, mtu = 1496 }}
"""


def packet(dice, number):
    """A frame of one of the interfaces, numbered at its end. Fragments are of different packets, so that none follows a first
    one."""
    interface = dice.choice(list(INTERFACES))
    network, mac = NETWORKS[interface], dice.choice(MACS)
    link = Ether(src=mac, dst=LEFT_MAC)
    mark = Raw(b"number " + number.to_bytes(4))
    if dice.random() < 0.1:
        whole = bytes(link)[:12] + dice.choice([0x9000, 0x9001, 0x9002]).to_bytes(2) + bytes(46)
    else:
        dscp, ttl = dice.choice([0, 10, 46]) << 2, dice.choice([2, 64, 65, 200])
        host = dice.choice([2, 70, 200])
        ip = dice.choice([
            IP(src=f"10.0.{network}.{host}", dst="10.0.2.2", tos=dscp, ttl=ttl, id=number + 1),
            IPv6(src=f"fd00:{network}::{host:x}", dst="fd00:2::2", tc=dscp, hlim=ttl),
        ])
        sport, dport = dice.choice([1, 5, 2000]), dice.choice([1, 2, 3, 9, 4000])
        echo = ICMP() if IP in ip else ICMPv6EchoRequest()
        upper = dice.choice([UDP(sport=sport, dport=dport), TCP(sport=sport, dport=dport, flags=dice.choice(["S", "A", "SA"])), echo])
        if IPv6 in ip and dice.random() < 0.1:
            ip = ip / IPv6ExtHdrDestOpt(options=[PadN(optdata=b"1234")])
        if IP in ip and dice.random() < 0.15:
            ip.flags, ip.frag = dice.choice([("MF", 0), (0, 100)])
        whole = bytes(link / ip / upper / mark)
    priority = dice.choice([0, 0, 3, 5, 7])
    tags = INTERFACES[interface] or ([0] if priority else [])
    for place, vlan in reversed(list(enumerate(tags))):
        whole = tagged(whole, vlan, 0x8100, priority if place == 0 else 0)
    return whole


def decisions(wires, frames):
    """The frames that pass, the packets of each rule, and those that the device dropped. A packet that several of the
    device's rules match counts for one of them, so rules that drop are one here."""
    def count():
        shown, counts = wires.router.show("filters")[0]["rules"], {}
        for rule in shown:
            name = "drop" if rule["action"] == "drop" else rule["name"]
            counts[name] = counts.get(name, 0) + rule["packets"]
        return counts

    wires.drain()
    before, drops, received = count(), wires.device.drops(), wires.router.counters()["received"]
    wires.left.send(*frames)
    came = lambda: wires.router.show("counters")["received"] - received + wires.device.drops() - drops  # noqa: E731
    assert wait_for(lambda: came() >= len(frames), 10)
    wires.router.counters()
    after = count()
    passed = sorted(frame for frame in wires.right.receive(0.3) if b"number " in frame)
    return passed, {name: after[name] - before[name] for name in after}, wires.device.drops() - drops


@pytest.mark.provokes("filtered")
@pytest.mark.parametrize("seed", range(4))
def test_a_device_and_software_decide_as_software_alone(lab, tmp_path, seed):
    dice = random.Random(seed)
    wires = start(lab, tmp_path, config=SET + config('turnpike.filter "edge-in" {}\n', True))
    text = wires.router.config.read_text()
    by_device = held = 0
    for number in range(FILTERS):
        filter = filter_of(dice)
        frames = [packet(dice, place) for place in range(PACKETS)]
        found = {}
        for hardware in (False, True):
            of = text[:text.index("turnpike.prefix_set")] + SET + config(filter, hardware)
            apply(wires.router, of if hardware else of.replace("hardware = true", "hardware = false"))
            # Packets ahead of the rules are none: apply returns when the device has them, or soon gets them.
            rules = lambda: wires.router.show("filters")[0]["rules"]  # noqa: E731
            assert wait_for(lambda: not any("to be given" in str(rule["hardware"]) for rule in rules()), 10)
            *same, drops = decisions(wires, frames)
            found[hardware] = same
            assert hardware or drops == 0
            by_device += drops
            held += sum(of["held"] for rule in rules() for of in rule["hardware"])
        for alone, together in zip(found[False], found[True]):
            assert together == alone, f"seed {seed}, filter {number}:\n{filter}"
    assert by_device > 20 and held > 20, (by_device, held)
    wires.router.stop()
    wires.device.lines()

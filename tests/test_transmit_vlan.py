"""Queues and rates of VLANs and bonds in software: each by itself, one within the other, and their change."""

import time

import pytest

from lib.apply import apply, plan, refused, write
from lib.lab import DRIVERS, HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Wires, ports_by
from lib.netns import veth, wait_for
from lib.packets import ethernet, ipv4, ipv6, is_announcement, udp, untagged

# Frames of 1,000 bytes without their tags.
PAYLOAD = {4: 1000 - 14 - 20 - 8, 6: 1000 - 14 - 40 - 8}

SERVICE = 0x88A8

# The networks of the hosts behind the right port, their tags, and the VLANs with their further settings.
NETWORKS = {
    2: ("right", []),
    100: ("right.100", [(0x8100, 100)]),
    101: ("right.101", [(0x8100, 101)]),
    30: ("s", [(SERVICE, 300)]),
    37: ("s.7", [(SERVICE, 300), (0x8100, 7)]),
    38: ("s.8", [(SERVICE, 300), (0x8100, 8)]),
}
BY_TAGS = {tuple(tags): network for network, (_, tags) in NETWORKS.items()}


def vlans(**settings):
    """The VLANs, with settings by name: `right_100='shape = "1mbit"'`."""
    parents = {"right.100": 'parent = "right", id = 100', "right.101": 'parent = "right", id = 101',
               "s": 'parent = "right", id = 300, protocol = "802.1ad"', "s.7": 'parent = "s", id = 7',
               "s.8": 'parent = "s", id = 8'}
    lines = []
    for network, (name, _) in NETWORKS.items():
        if name in parents:
            more = settings.get(name.replace(".", "_"))
            lines.append(f'turnpike.vlan "{name}" {{ {parents[name]}, mtu = 1500, address = {{ "10.0.{network}.1/24", '
                         f'"fd00:{network}::1/64" }}{", " + more if more else ""} }}')
        for address in (f"10.0.{network}.2", f"fd00:{network}::2"):
            lines.append(f'turnpike.neighbour "{address}" {{ port = "{name}", mac = "{HOST_B_MAC}" }}')
    return "\n".join(lines) + "\n"


def config(ports=PORTS, of_port="", **settings):
    """The whole configuration."""
    ports = ports.replace('turnpike.port "right" {', f'turnpike.port "right" {{ {of_port}' + ("," if of_port else ""))
    return ports + vlans(**settings)


def start(lab, ports=PORTS, **settings):
    return Wires(lab, ports=config(ports, **settings), mtu=(1508, 1508))


def packet(network, number, family=4, dscp=0):
    """A frame from the left host to that of a network, with its number."""
    data = number.to_bytes(4, "big").ljust(PAYLOAD[family], b"\0")
    if family == 4:
        a, b = "10.0.1.2", f"10.0.{network}.2"
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4(a, b, udp(a, b, 7, 9, data), tos=dscp << 2))
    a, b = "fd00:1::2", f"fd00:{network}::2"
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x86DD, ipv6(a, b, udp(a, b, 7, 9, data), traffic_class=dscp << 2))


def parsed(frame):
    """The network and the number of one of the frames of these tests; None of others."""
    plain, tags = untagged(frame)
    if len(plain) != 1000:
        return None
    at = 42 if plain[12:14] == b"\x08\x00" else 62
    return BY_TAGS[tuple((protocol, vlan) for protocol, _, vlan in tags)], int.from_bytes(plain[at:at + 4], "big")


def arrivals(wire, count, timeout=30):
    """So many frames: arrival time, network, number."""
    came = []
    while len(came) < count:
        frame = wire.expect(1, lambda frame: parsed(frame) is not None, timeout)
        if not frame:
            break
        came.append((time.monotonic(), *parsed(frame[0])))
    return came


def numbers(came, network):
    return [number for _, of, number in came if of == network]


def queues(router):
    return {row["interface"]: {one["name"]: one for one in row["classes"]} for row in router.show("queues")}


def others(router, name):
    return queues(router)[name]["others"]


def offered(router, name, count):
    """Waits until so many packets have arrived in an interface's queue."""
    def all_came():
        row = others(router, name)
        return row["sent"] + row["full"] + row["waiting"] == count

    assert wait_for(all_came, 20), router.show("queues")


def least(count, rate, frame=1004, senders=1):
    """Seconds for so many frames at a rate, less what passes at once: the burst, and for each sender a quantum and a
    frame. A loaded machine delays, but never hastens."""
    return 0.98 * (count * frame - max(2 * 1518, rate // 8 // 250) - senders * (1522 + frame)) * 8 / rate


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_vlan_keeps_its_rate_and_holds_nobody_else_up(lab, driver, family):
    wires = start(lab, ports_by(driver), right_100='shape = "1mbit"')
    begin = time.monotonic()
    wires.left.send(*(packet(network, n, family) for n in range(150) for network in (100, 101, 2)))
    came = arrivals(wires.right, 450)
    assert [numbers(came, network) for network in (100, 101, 2)] == [list(range(150))] * 3
    taken = came[-1][0] - begin
    assert taken >= least(150, 1_000_000), taken
    # The others do not wait for it: all have arrived before half of its packets.
    places = [place for place, (_, network, _) in enumerate(came) if network != 100]
    assert places[-1] < 300 + 75, places[-1]
    rows = queues(wires.router)
    assert set(rows) == {"right", "right.100"}
    assert (rows["right.100"]["others"]["sent"], rows["right"]["others"]["sent"]) == (150, 300)
    assert rows["right.100"]["others"]["delay_most_us"] > 500_000
    text = wires.router.command("show", "queues").stdout
    assert "right.100: fifo, length 1000; shape 1000000 bit" in text, text
    wires.router.counters()
    wires.router.stop()


@pytest.mark.parametrize("family", [4, 6])
def test_vlans_share_the_rate_of_that_around_them(lab, family):
    wires = start(lab, s='shape = "1mbit"', s_7="queue = { length = 500 }", s_8="queue = { length = 500 }")
    begin = time.monotonic()
    # Those of the outer tag alone have its queue.
    wires.left.send(*(packet(network, n, family) for n in range(100) for network in (37, 38)))
    wires.left.send(*(packet(30, n, family) for n in range(100)))
    came = arrivals(wires.right, 300)
    assert [numbers(came, network) for network in (37, 38, 30)] == [list(range(100))] * 3
    assert came[-1][0] - begin >= least(300, 1_000_000)
    # While all have packets, each has its turn.
    shared = [network for _, network, _ in came[60:240]]
    for network in (37, 38, 30):
        assert abs(shared.count(network) - 60) <= 10, {of: shared.count(of) for of in (37, 38, 30)}
    wires.router.stop()


def test_the_rate_of_a_port_includes_its_vlans_and_they_have_equal_parts(lab):
    wires = start(lab, of_port='shape = "1mbit", queue = { length = 500 }', right_100="queue = {}",
                  right_101='shape = "200kbit"')
    begin = time.monotonic()
    wires.left.send(*(packet(network, n) for n in range(100) for network in (2, 100, 101)))
    came = arrivals(wires.right, 300)
    assert [numbers(came, network) for network in (2, 100, 101)] == [list(range(100))] * 3
    of = {network: [when - begin for when, of, _ in came if of == network] for network in (2, 100, 101)}
    # 800 kbit/s are left to the two that have no rate of their own.
    assert max(of[2][-1], of[100][-1]) >= least(200, 800_000), of
    assert of[101][-1] >= least(100, 200_000), of
    shared = [network for _, network, _ in came[20:160]]
    assert abs(shared.count(2) - shared.count(100)) <= 8, shared
    assert 0.1 < shared.count(101) / len(shared) < 0.3, shared
    wires.router.stop()


def test_network_control_and_the_kernels_packets_wait_in_the_queue_of_their_vlan(lab):
    """A keepalive in a VLAN is ahead of that VLAN's other packets, and of its rate only."""
    wires = start(lab, right_100='shape = "100kbit"')
    wires.left.send(*(packet(100, n) for n in range(100)))
    offered(wires.router, "right.100", 100)
    before = others(wires.router, "right.100")["sent"]
    wires.left.send(packet(100, 1000, dscp=48))
    came = arrivals(wires.right, 101)
    place = numbers(came, 100).index(1000)
    assert place < before + 60, (place, before)
    assert queues(wires.router)["right.100"]["control"]["sent"] >= 1
    wires.router.stop()


def test_a_rate_of_a_vlan_is_one_for_all_forwarders(lab):
    """Each forwarder has a transmit queue of the port, and so a queue of the VLAN."""
    ports = PORTS.replace('turnpike.port "left" {', 'turnpike.port "left" { spread = "software",')
    text = 'turnpike.forwarders { cores = "0,1" }\n' + config(ports, right_100='shape = "1mbit"')
    text = text.replace('local turnpike = require "turnpike"\n', "")
    wires = Wires(lab, ports='local turnpike = require "turnpike"\n' + text, mtu=(1508, 1508))
    begin = time.monotonic()
    flows = [packet(100, n)[:34] + (n % 16 + 1).to_bytes(2, "big") + packet(100, n)[36:40] + b"\0\0" + packet(100, n)[42:]
             for n in range(150)]
    wires.left.send(*flows)
    came = arrivals(wires.right, 150)
    assert sorted(numbers(came, 100)) == list(range(150))
    assert came[-1][0] - begin >= least(150, 1_000_000, senders=2)
    wires.router.stop()


def test_the_ports_of_a_bond_share_its_rate_and_those_of_its_vlans(lab):
    inside, side, far = (lab.namespace(name, quiet=True) for name in ("router", "side", "far"))
    veth(inside, "tp-left", far, "wire", LEFT_MAC, HOST_A_MAC, 1508)
    for port, mac in (("a", RIGHT_MAC), ("b", "02:00:00:00:0a:02")):
        veth(inside, f"tp-{port}", side, f"wire-{port}", mac, f"02:00:00:00:0b:0{1 if port == 'a' else 2}", 1508)
    left = lab.raw(far, "wire", is_announcement)
    wires = [lab.raw(side, f"wire-{port}", is_announcement) for port in "ab"]
    text = f"""
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "tp-left", address = "10.0.1.1/24" }}
turnpike.port "a" {{ device = "tp-a", mtu = 1500 }}
turnpike.port "b" {{ device = "tp-b", mtu = 1500 }}
turnpike.bond "right" {{ ports = {{ "a", "b" }}, mode = "static", address = "10.0.2.1/24", shape = "2mbit" }}
turnpike.vlan "right.100" {{ parent = "right", id = 100, address = "10.0.100.1/24", shape = "1mbit" }}
turnpike.neighbour "10.0.2.2" {{ port = "right", mac = "{HOST_B_MAC}" }}
turnpike.neighbour "10.0.100.2" {{ port = "right.100", mac = "{HOST_B_MAC}" }}
"""
    router = lab.router(inside, text)

    def flows(network, count):
        for n in range(count):
            frame = bytearray(packet(network, n))
            frame[34:36], frame[40:42] = (n % 32 + 1).to_bytes(2, "big"), b"\0\0"
            yield bytes(frame)

    begin = time.monotonic()
    left.send(*flows(100, 150), *flows(2, 150))
    offered(router, "right", 150)
    assert wait_for(lambda: [queues(router)[of]["others"]["sent"] for of in ("right", "right.100")] == [150, 150], 30)
    taken = time.monotonic() - begin
    came = [[parsed(frame) for frame in wire.receive(0.3)] for wire in wires]
    assert sorted(filter(None, came[0] + came[1])) == sorted((of, n) for of in (2, 100) for n in range(150))
    assert all(len(of) > 60 for of in came), "both ports send"
    assert taken >= max(least(150, 1_000_000, senders=2), least(300, 2_000_000, senders=2)), taken
    assert [row["interface"] for row in router.show("queues")] == ["right", "right.100"]
    router.stop()


def test_queues_of_vlans_change_while_packets_wait(lab):
    wires = start(lab, right_100='shape = "16kbit"')
    router = wires.router
    wires.left.send(*(packet(100, n) for n in range(200)))
    offered(router, "right.100", 200)
    assert others(router, "right.100")["waiting"] > 150
    # Into a shorter one, beside a new one.
    text = config(right_100='shape = "16kbit", queue = { length = 50 }', right_101='shape = "1mbit"')
    report, status = plan(router, text)
    assert status == 2 and {(c["what"], c["to"], c["live"]) for c in report["changes"]} == {
        ('vlan "right.100": queue', "fifo, length 50", True),
        ('vlan "right.101": shape', "1000000 bit, burst 3036 bytes, overhead 0", True)}
    apply(router, text)
    row = others(router, "right.100")
    assert 40 <= row["waiting"] <= 50 and row["full"] > 90, row
    # Without one: they leave by the queue that the port has for the other VLAN's sake.
    apply(router, config(right_101='shape = "1mbit"'))
    assert set(queues(router)) == {"right", "right.101"}
    came = arrivals(wires.right, row["sent"] + row["waiting"])
    assert numbers(came, 100) == sorted(numbers(came, 100)) and len(came) >= 40
    # Another VLAN of that number has counted nothing.
    apply(router, config(right_100='shape = "1mbit"', right_101='shape = "1mbit"'))
    assert others(router, "right.100")["sent"] == 0
    # And no queues at all.
    apply(router, config())
    assert router.show("queues") == []
    wires.left.send(packet(100, 7))
    assert numbers(arrivals(wires.right, 1), 100) == [7]
    assert router.counters()["in_flight"] == 0
    router.stop()


@pytest.mark.parametrize("end", ["stop", "vlan", "port", "unplug"])
def test_nothing_leaks_when_a_vlan_with_waiting_packets_goes(lab, end):
    wires = start(lab, right_100='shape = "16kbit"', s_7='shape = "16kbit"')
    router = wires.router
    wires.left.send(*(packet(network, n) for n in range(100) for network in (100, 37)))
    for name in ("right.100", "s.7"):
        offered(router, name, 100)
    assert router.show("counters")["in_flight"] > 150
    if end == "vlan":
        text = config(right_100='shape = "16kbit"').splitlines(keepends=True)
        apply(router, "".join(line for line in text if '"s.7"' not in line))
        assert "s.7" not in queues(router)
    if end == "port":
        apply(router, PORTS[:PORTS.index('turnpike.port "right"')])
    if end == "unplug":
        wires.inside.run("ip", "link", "delete", "tp-right")
    if end != "stop":
        # Beside the VLAN that goes, the other's packets may wait on.
        most = 100 if end == "vlan" else 0
        assert wait_for(lambda: router.show("counters")["in_flight"] <= most, 20), router.show("counters")
    # Every buffer is back, and the sum closes.
    router.stop()


def test_queues_of_too_many_vlans_are_refused(lab):
    wires = start(lab)
    said = refused(wires.router, "apply", write(wires.router, config(right_100="queue = { length = 60000 }")))
    assert "queues in software could hold" in said and "lower queue" in said, said
    assert wires.router.show("queues") == []
    wires.router.stop()

"""The kernel's routes, in all forms of ip-route(8), ip-nexthop(8) and ip-rule(8), are Turnpike's: in its table and in
the packets that leave."""

import collections
import random

import pytest

from lib import netlink, tables
from lib.kernel import Machine, forwarder
from lib.lab import HOST_A_MAC
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, ipv6, mac_bytes, pattern, udp

# Gateways on the wires `right` and `far`, distinguished by their MACs; the kernel has them as permanent neighbours, of
# either family.
GATEWAYS = {
    f"{wire}{n}": (wire, f"10.0.{net}.1{n}", f"fd00:{net}::1{n}", f"02:00:00:00:0{net}:1{n}")
    for wire, net in (("right", 2), ("far", 3)) for n in range(4)
}


class Net:
    """A router whose three wires end in the test: `left` for the packets, `right` and `far` with
    four gateways each."""

    def __init__(self, lab):
        self.machine = Machine(lab, "router")
        self.wires = {}
        for n, name in enumerate(("left", "right", "far"), 1):
            space = lab.namespace(name, quiet=True)
            self.machine.port(name, space, "wire", f"10.0.{n}.1/24", f"fd00:{n}::1/64")
            self.wires[name] = lab.raw(space, "wire", lambda frame: frame[12:14] not in (b"\x08\x00", b"\x86\xdd"))
        # Compared with the kernel every second, in any state produced by the tests.
        self.machine.start('"kernel", audit_s = 1')
        for wire, four, six, mac in GATEWAYS.values():
            for address in (four, six):
                self.machine.neighbour(address, wire, mac)
        for address in ("10.0.1.2", "fd00:1::2"):
            self.machine.neighbour(address, "left", HOST_A_MAC)
        # The port's, and so the host interface's.
        self.mac = self.machine.run("cat", "/sys/class/net/left/address").stdout.strip()
        # The kernel's own forwarding, for comparison, by the same flows, and without limits of errors.
        self.machine.space.sysctl("net.ipv4.fib_multipath_hash_policy", 1)
        self.machine.space.sysctl("net.ipv6.fib_multipath_hash_policy", 1)
        self.machine.space.sysctl("net.ipv4.icmp_ratelimit", 0)
        self.machine.space.sysctl("net.ipv6.icmp.ratelimit", 0)

    def ip(self, *words):
        """An `ip -4` or `ip -6` command, by the family of its subject."""
        text = " ".join(map(str, words))
        self.machine.ip(*text.split(), family=6 if ":" in text.replace("inet6 fd", "") else 4)

    def agree(self, **how):
        """Waits until the tables are equal."""
        return tables.assert_agree(self.machine, seconds=5, **how)

    def frame(self, destination, sport=1000):
        """A datagram from the left."""
        four = "." in destination
        source = "10.0.1.2" if four else "fd00:1::2"
        datagram = udp(source, destination, sport, 53, pattern(20))
        packet = (ipv4 if four else ipv6)(source, destination, datagram)
        return ethernet(self.mac, HOST_A_MAC, 0x0800 if four else 0x86DD, packet)

    def ways(self, destination, flows=1):
        """Sends so many flows and counts them by the gateway that received them; `refused` are those answered by an
        ICMP error."""
        for wire in self.wires.values():
            wire.drain()
        frames = [self.frame(destination, 1000 + n) for n in range(flows)]
        self.wires["left"].send(*frames)
        by_mac = {mac_bytes(mac): name for name, (*_, mac) in GATEWAYS.items()}
        seen = collections.Counter()
        deadline = 3.0
        for name in ("right", "far"):
            wanted = lambda f: _destination(f) == _destination(frames[0])  # noqa: E731
            while arrived := self.wires[name].expect(flows, wanted, timeout=0.15 if seen else deadline / 10):
                seen.update(by_mac.get(frame[:6], frame[:6].hex(":")) for frame in arrived)
        errors = self.wires["left"].expect(flows, _is_error, timeout=0.05)
        seen.update({f"refused {kind}/{code}": n for (kind, code), n in collections.Counter(map(_error, errors)).items()})
        return dict(seen)

    def goes(self, destination, way, seconds=3):
        """Waits until packets to the address take this path."""
        return wait_for(lambda: self.ways(destination) == ({way: 1} if way else {}), seconds, 0.05)

    def has_no_route(self, destination, seconds=3):
        """Waits until there is no route to the address."""
        def none():
            if self.machine.router:
                return self.machine.router.show("route", destination)["type"] == "no-route"
            return self.machine.ip("route", "get", destination, check=False).returncode != 0

        return wait_for(none, seconds, 0.05)


def _destination(frame):
    return frame[30:34] if frame[12:14] == b"\x08\x00" else frame[38:54]


def _is_error(frame):
    return (frame[12:14] == b"\x08\x00" and frame[23] == 1 and frame[34] == 3) or (
        frame[12:14] == b"\x86\xdd" and frame[20] == 58 and frame[54] == 1)


def _error(frame):
    return (frame[34], frame[35]) if frame[12:14] == b"\x08\x00" else (frame[54], frame[55])


@pytest.fixture(scope="module")
def net(module_lab):
    net = Net(module_lab)
    yield net
    net.machine.finish()


@pytest.fixture(autouse=True)
def clean(net):
    """Each test begins and ends without its own routes, groups or rules."""
    yield
    # First, as routes over them cannot all be flushed otherwise.
    net.machine.run("ip", "nexthop", "flush", check=False)
    for family in (4, 6):
        # A flush deletes only the routes of one reading, which may lack some of several IPv6 routes to a prefix.
        assert wait_for(lambda: flushed(net, family), 5, 0.01)
        for rule in net.machine.ip("rule", family=family).stdout.splitlines():
            priority = rule.split(":")[0]
            if priority not in ("0", "32766", "32767"):
                net.machine.ip("rule", "del", "priority", priority, family=family)
    assert net.agree() == []


def flushed(net, family):
    """Deletes the objects added by commands; returns true if none was left."""
    left = 0
    for proto in ("static", "boot"):
        selected = ("table", "all", "proto", proto)
        left += len(net.machine.ip("route", "show", *selected, family=family).stdout)
        net.machine.ip("route", "flush", *selected, family=family, check=False)
    return not left


FAMILIES = pytest.mark.parametrize("prefix, to, gw", [
    ("198.51.100.0/24", "198.51.100.9", 1), ("2001:db8:7::/48", "2001:db8:7::9", 2),
], ids=["ipv4", "ipv6"])


@FAMILIES
def test_a_gateway_comes_changes_and_goes(net, prefix, to, gw):
    net.ip("route add", prefix, "via", GATEWAYS["right1"][gw])
    assert net.goes(to, "right1")
    net.agree(count=1)
    net.ip("route replace", prefix, "via", GATEWAYS["far2"][gw])
    assert net.goes(to, "far2")
    net.ip("route del", prefix)
    assert net.has_no_route(to)
    assert any("refused" in way for way in net.ways(to))


@FAMILIES
@pytest.mark.parametrize("kind, way4, way6", [
    ("blackhole", None, None),
    # Linux itself reports "no route" for IPv6.
    ("unreachable", "refused 3/1", "refused 1/3" if forwarder() == "turnpike" else "refused 1/0"),
    ("prohibit", "refused 3/13", "refused 1/1"),
])
def test_types(net, prefix, to, gw, kind, way4, way6):
    net.ip("route add", kind, prefix)
    net.agree(count=1)
    assert net.goes(to, way4 if gw == 1 else way6)
    # A longer prefix within it is not refused.
    net.ip("route add", to, "via", GATEWAYS["right0"][gw])
    assert net.goes(to, "right0")


@FAMILIES
def test_the_smallest_metric_wins(net, prefix, to, gw):
    for metric, name in ((300, "right3"), (100, "right1"), (200, "right2")):
        net.ip("route add", prefix, "via", GATEWAYS[name][gw], "metric", metric)
    assert net.goes(to, "right1")
    net.agree(count=1)
    net.ip("route del", prefix, "metric", 100)
    assert net.goes(to, "right2")
    net.ip("route add", prefix, "via", GATEWAYS["far0"][gw], "metric", 50)
    assert net.goes(to, "far0")
    net.agree(count=1)


def test_of_several_routes_with_one_metric_the_kernels_first_is_used(net):
    """By `ip route get`, the kernel's own decision on the packet."""
    def follows(*commands):
        net.machine.batch([f"route {command.format(p='198.51.100.0/24')}" for command in commands])
        said = net.machine.ip("route", "get", "198.51.100.9").stdout.split()
        by = next(name for name, (_, four, *_) in GATEWAYS.items() if four == said[said.index("via") + 1])
        assert net.goes("198.51.100.9", by), (commands, by, net.ways("198.51.100.9"))
        net.agree(count=1)
        return by

    via = {name: f"via {four} dev {wire}" for name, (wire, four, *_) in GATEWAYS.items()}
    assert follows(f"add {{p}} {via['right0']}") == "right0"
    assert follows(f"append {{p}} {via['right1']}", f"append {{p}} {via['far1']}") == "right0"
    assert follows(f"prepend {{p}} {via['far2']}") == "far2"
    # A worse metric, which has its own order.
    assert follows(f"append {{p}} {via['far3']} metric 9", f"prepend {{p}} {via['right3']} metric 9") == "far2"
    # It replaces the first, the others stay after it.
    assert follows(f"replace {{p}} {via['right2']}") == "right2"
    # One in the middle, then the first, then the first again by its metric alone.
    assert follows(f"del {{p}} {via['right1']}") == "right2"
    assert follows(f"del {{p}} {via['right2']}") == "right0"
    assert follows("del {p} metric 0") == "far1"
    assert follows(f"del {{p}} {via['far1']}") == "right3"
    assert follows(f"del {{p}} {via['right3']} metric 9") == "far3"


@FAMILIES
def test_paths_and_their_weights(net, prefix, to, gw):
    hops = [f"nexthop via {GATEWAYS[name][gw]} weight {weight}" for name, weight in (("right0", 1), ("right1", 2), ("far3", 5))]
    net.ip("route add", prefix, *hops)
    net.agree(count=1)
    assert wait_for(lambda: len(net.ways(to, 60)) == 3, 3)
    shares = net.ways(to, 800)
    assert sum(shares.values()) == 800
    for name, weight in (("right0", 1), ("right1", 2), ("far3", 5)):
        assert abs(shares[name] - 100 * weight) < 70, shares


@FAMILIES
def test_a_default_route(net, prefix, to, gw):
    net.ip("route add", "default" if gw == 1 else "::/0", "via", GATEWAYS["far1"][gw])
    assert net.goes(to, "far1")
    net.agree(count=1)


def test_a_gateway_of_the_other_family(net):
    # RFC 8950, by link-local addresses as BGP unnumbered has them, and by global ones.
    net.machine.neighbour("fe80::77", "far", GATEWAYS["far3"][3])
    net.machine.ip("route", "add", "198.51.100.0/24", "via", "inet6", "fe80::77", "dev", "far")
    assert net.goes("198.51.100.9", "far3")
    net.machine.ip("route", "replace", "198.51.100.0/24", "via", "inet6", GATEWAYS["right2"][2], "dev", "right")
    assert net.goes("198.51.100.9", "right2")
    net.agree(count=1)


def test_a_gateway_that_no_address_covers(net):
    net.machine.neighbour("172.31.255.1", "right", GATEWAYS["right3"][3])
    net.ip("route add 198.51.100.0/24 via 172.31.255.1 dev right onlink")
    assert net.goes("198.51.100.9", "right3")
    net.agree(count=1)


@FAMILIES
def test_a_network_on_a_link(net, prefix, to, gw):
    net.machine.neighbour(to, "far", GATEWAYS["far2"][3])
    net.ip("route add", prefix, "dev far")
    assert net.goes(to, "far2")
    net.agree(count=1)
    net.ip("neighbour del", to, "dev far")


# --- nexthop objects -------------------------------------------------------------------------------


def objects(net, gw, *names):
    """Nexthop objects 1, 2, … to these gateways."""
    family = "-4" if gw == 1 else "-6"
    for n, name in enumerate(names, 1):
        net.machine.run("ip", family, "nexthop", "replace", "id", n, "via", GATEWAYS[name][gw], "dev", GATEWAYS[name][0])


@FAMILIES
def test_a_nexthop_object_is_replaced_under_its_routes(net, prefix, to, gw):
    objects(net, gw, "right0")
    net.ip("route add", prefix, "nhid 1")
    assert net.goes(to, "right0")
    net.agree(count=1)
    # The route itself is not reported again.
    objects(net, gw, "far1")
    assert net.goes(to, "far1")
    net.agree(count=1)
    # The removal of the object removes its routes, without a message of the kernel.
    net.machine.run("ip", "nexthop", "del", "id", 1)
    assert net.has_no_route(to)
    net.agree()


@FAMILIES
def test_a_group_and_its_members(net, prefix, to, gw):
    objects(net, gw, "right0", "right1", "far0")
    net.machine.run("ip", "nexthop", "add", "id", 10, "group", "1,3/2/3,3")
    net.ip("route add", prefix, "nhid 10")
    net.agree(count=1)
    shares = wait_for(lambda: (ways := net.ways(to, 210)) if len(net.ways(to, 60)) == 3 else None, 3)
    assert sum(shares.values()) == 210 and 2 * shares["right1"] < min(shares["right0"], shares["far0"])
    # The kernel itself removes a deleted member from the group.
    net.machine.run("ip", "nexthop", "del", "id", 2)
    assert wait_for(lambda: set(net.ways(to, 60)) == {"right0", "far0"}, 3)
    net.agree(count=1)
    net.machine.run("ip", "nexthop", "replace", "id", 10, "group", "3")
    assert wait_for(lambda: set(net.ways(to, 60)) == {"far0"}, 3)
    net.agree(count=1)
    net.machine.run("ip", "nexthop", "del", "id", 3)
    assert net.has_no_route(to)
    net.agree()


def test_a_resilient_group_moves_only_the_flows_of_a_lost_path(net):
    objects(net, 1, "right0", "right1", "right2", "far0")
    net.machine.run("ip", "nexthop", "add", "id", 10, "group", "1/2/3/4", "type", "resilient", "buckets", 128)
    net.ip("route add 198.51.100.0/24 nhid 10")
    net.agree(count=1)
    assert wait_for(lambda: len(net.ways("198.51.100.9", 60)) == 4, 3)

    def flows():
        # Each flow separately: the gateway that it uses.
        return {n: next(iter(one_flow(net, "198.51.100.9", n))) for n in range(8)}

    before = flows()
    assert len(set(before.values())) == 4
    net.machine.run("ip", "nexthop", "del", "id", 2)
    assert wait_for(lambda: "right1" not in net.ways("198.51.100.9", 60), 3)
    after = flows()
    moved = {n for n in before if before[n] != after[n]}
    assert moved == {n for n in before if before[n] == "right1"}
    net.agree(count=1)


def one_flow(net, destination, number):
    """The gateway of one flow."""
    by_mac = {mac_bytes(mac): name for name, (*_, mac) in GATEWAYS.items()}
    for wire in net.wires.values():
        wire.drain()
    frame = net.frame(destination, 1000 + number)
    net.wires["left"].send(frame)
    wanted = lambda f: _destination(f) == _destination(frame)  # noqa: E731
    # Either wire: one is empty when the other has the packet.
    for _ in range(200):
        for name in ("right", "far"):
            if arrived := net.wires[name].expect(1, wanted, timeout=0.005):
                return [by_mac[arrived[0][:6]]]
    raise AssertionError(f"flow {number} arrived nowhere")


# --- what the kernel takes away --------------------------------------------------------------------


@FAMILIES
def test_routes_of_an_interface_that_is_set_down(net, prefix, to, gw):
    net.ip("route add", prefix, "via", GATEWAYS["far1"][gw], "metric", 10)
    net.ip("route add", prefix, "via", GATEWAYS["right1"][gw], "metric", 20)
    assert net.goes(to, "far1")
    try:
        net.machine.run("ip", "link", "set", "far", "down")
        # The kernel deletes the route without a message; the other one is used.
        assert net.goes(to, "right1")
        net.agree(count=1)
    finally:
        restore(net)
    # The interface is back, the route is not, neither in the kernel nor here.
    net.agree(count=1)
    assert net.goes(to, "right1")


def restore(net):
    """Sets `far` up again and restores the settings that an interface loses by going down."""
    net.machine.run("ip", "link", "set", "far", "up")
    net.machine.run("ip", "address", "replace", "fd00:3::1/64", "dev", "far", "nodad")
    for wire, four, six, mac in GATEWAYS.values():
        if wire == "far":
            net.machine.neighbour(four, wire, mac)
            net.machine.neighbour(six, wire, mac)


def test_an_address_comes_and_goes(net):
    net.machine.run("ip", "address", "add", "192.0.2.1/24", "dev", "far")
    net.machine.neighbour("192.0.2.55", "far", GATEWAYS["far3"][3])
    net.ip("route add 198.51.100.0/24 via 192.0.2.55")
    assert net.goes("198.51.100.9", "far3")
    assert net.goes("192.0.2.55", "far3")
    net.agree(count=1)
    net.machine.run("ip", "address", "del", "192.0.2.1/24", "dev", "far")
    assert net.has_no_route("192.0.2.55")
    net.agree()


def test_a_neighbour_changes_its_mac(net):
    net.ip("route add 198.51.100.0/24 via", GATEWAYS["right0"][1])
    assert net.goes("198.51.100.9", "right0")
    try:
        net.machine.neighbour(GATEWAYS["right0"][1], "right", GATEWAYS["right3"][3])
        assert net.goes("198.51.100.9", "right3")
    finally:
        net.machine.neighbour(GATEWAYS["right0"][1], "right", GATEWAYS["right0"][3])
    assert net.goes("198.51.100.9", "right0")


# --- tables ----------------------------------------------------------------------------------------


@FAMILIES
def test_tables_count_when_a_rule_names_them(net, prefix, to, gw):
    net.ip("route add", prefix, "via", GATEWAYS["right1"][gw], "table 77")
    net.ip("route add", prefix, "via", GATEWAYS["right2"][gw])
    assert net.goes(to, "right2")
    net.machine.ip("rule", "add", "priority", 100, "lookup", 77, family=4 if gw == 1 else 6)
    # Before `main`, so its route is used.
    assert net.goes(to, "right1")
    net.machine.ip("rule", "del", "priority", 100, family=4 if gw == 1 else 6)
    assert net.goes(to, "right2")


# --- anything at all -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_the_tables_agree(net, seed):
    dice = random.Random(seed)
    for _ in range(6):
        # Some are refused, as the object to be deleted does not exist.
        net.machine.batch([random_command(dice, dice.choice((4, 6))) for _ in range(250)], check=False)
        if dice.random() < 0.5:
            net.machine.run("ip", "link", "set", "far", "down")
            if dice.random() < 0.5:
                net.machine.batch([random_command(dice, 4) for _ in range(50)], check=False)
            restore(net)
        assert net.agree()
    if net.machine.router:
        audited(net.machine.router)


def audited(router):
    """Waits until a comparison of kernel, RIB and FIB that began from now on is complete."""
    before = tables.source(router, "kernel")["audits"]
    assert wait_for(lambda: tables.source(router, "kernel")["audits"] >= before + 2, 10, 0.05)
    source = tables.source(router, "kernel")
    assert not source["audits_failed"], (source, router.log())


def random_command(dice, family):
    """A random change of the kernel's routes, on a few prefixes, so that changes meet."""
    gw = 1 if family == 4 else 2
    prefix = f"198.51.{dice.randrange(4)}.0/{dice.choice((22, 24))}" if family == 4 else f"2001:db8:{dice.randrange(4)}::/48"
    if prefix.endswith("/22"):
        prefix = "198.51.0.0/22"
    name = dice.choice(list(GATEWAYS))
    via = f"via {GATEWAYS[name][gw]} dev {GATEWAYS[name][0]}"
    hops = " ".join(
        f"nexthop via {GATEWAYS[n][gw]} dev {GATEWAYS[n][0]} weight {dice.randrange(1, 5)}"
        for n in dice.sample(list(GATEWAYS), dice.randrange(2, 5))
    )
    metric = dice.choice(["", "", "metric 10", "metric 2000"])
    number = dice.randrange(1, 6)
    return dice.choice([
        f"route add {prefix} {via} {metric}",
        f"route replace {prefix} {via} {metric}",
        f"route append {prefix} {via} {metric}",
        f"route prepend {prefix} {via} {metric}",
        f"route change {prefix} {via} {metric}",
        f"route replace {prefix} {metric} {hops}",
        f"route replace {dice.choice(('blackhole', 'unreachable', 'prohibit'))} {prefix} {metric}",
        f"route del {prefix} {metric}",
        f"route del {prefix} {via} {metric}",
        f"nexthop replace id {family}{number} {via}",
        f"nexthop del id {family}{number}",
        f"nexthop replace id {family}0 group {family}{number}/{family}{dice.randrange(1, 6)},{dice.randrange(1, 9)}",
        f"nexthop del id {family}0",
        f"route replace {prefix} nhid {family}{dice.randrange(6)} {metric}",
    ])


@pytest.mark.skipif(forwarder() != "turnpike", reason="the kernel has room")
def test_more_next_hops_than_there_is_room_for(net):
    count = 70_000
    index = net.machine.index("far")
    net.ip("route add 198.51.100.0/24 via", GATEWAYS["right1"][1])
    net.machine.run("ip", "address", "add", "10.64.0.1/10", "dev", "far")
    gateways = [f"10.{64 + (n >> 16)}.{(n >> 8) & 255}.{n & 255}" for n in range(2, count + 2)]
    prefixes = [f"20.{n >> 16}.{(n >> 8) & 255}.{n & 255}/32" for n in range(count)]
    # The kernel searches for an equal next hop among all of one metric and interface, which takes minutes.
    options = {"protocol": 4, "metric": range(1, count + 1)}
    netlink.write(net.machine.space, netlink.ipv4_routes(prefixes, gateways, [index] * count, **options))
    try:
        assert wait_for(lambda: tables.turnpike_count(net.machine.router, "kernel") == count + 1, 10, 0.1)
        # The existing routes continue, and the router reports the refused ones.
        assert net.goes("198.51.100.9", "right1")
        assert "all 32768 next hops are in use, it waits for one" in net.machine.router.log()
        waiting = tables.source(net.machine.router, "kernel")["refused"]
        assert count - 32_768 <= waiting < count - 32_000, waiting
        # Routes that wait are in the correct state.
        audited(net.machine.router)
    finally:
        gone = netlink.ipv4_routes(prefixes, gateways, [index] * count, kind=netlink.DELROUTE, **options)
        netlink.write(net.machine.space, gone)
        net.machine.run("ip", "address", "del", "10.64.0.1/10", "dev", "far")
    # And later routes find room again.
    assert wait_for(lambda: tables.turnpike_count(net.machine.router, "kernel") == 1, 60, 0.1)
    net.ip("route add 203.0.113.0/24 via", GATEWAYS["far2"][1])
    assert net.goes("203.0.113.9", "far2")
    net.agree(count=2)

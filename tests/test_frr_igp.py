"""FRR's OSPF, OSPFv3 and IS-IS over host interfaces: packets that are not for the router's own addresses, or not IP,
must reach the daemons, and the daemons' packets must leave."""

import re

from lib import tables
from lib.frr import Frr
from lib.kernel import Machine, host, reaches
from lib.netns import wait_for
from lib.traffic import Sink, Stream, longest_gap, lost

# Many routers on one machine: little memory for each.
SMALL = "turnpike.memory { mbufs = 8192 }\n"


class Triangle:
    """Three routers, each joined to both others, and a host behind the first and the third.

    ```
    a 10.1.0.2 --- r1 ---10--- r3 --- c 10.3.0.2
                    \\          /
                    10        10
                      \\      /
                         r2
    ```
    """

    def __init__(self, lab):
        self.routers = {n: Machine(lab, f"r{n}") for n in (1, 2, 3)}
        self.a = host(self.routers[1], "hosts", "a", "10.1.0.2", "10.1.0.1", "fd01::2", "fd01::1")
        self.c = host(self.routers[3], "hosts", "c", "10.3.0.2", "10.3.0.1", "fd03::2", "fd03::1")
        for one, other in ((1, 2), (2, 3), (1, 3)):
            net = f"{one}{other}"
            self.routers[one].join(
                f"to{other}", self.routers[other], f"to{one}",
                [f"10.{net}.0.{one}/24", f"fd{net}::{one}/64"], [f"10.{net}.0.{other}/24", f"fd{net}::{other}/64"],
            )
        for router in self.routers.values():
            router.start(config=SMALL)
        self.frr = {}
        for n, router in self.routers.items():
            self.frr[n] = Frr(router.space, ospf(n, router))
            lab._made.callback(self.frr[n].close)

    def agree(self, **how):
        """Waits until each router's tables are equal; returns their routes."""
        return {n: tables.assert_agree(self.routers[n], self.frr[n], **how) for n in self.routers}


def ospf(n, machine):
    """ospfd and ospf6d on all interfaces, with timers for a test."""
    four, six = [], []
    for name in machine.ports:
        passive = name == "hosts"
        four += [f"interface {name}", " ip ospf area 0", " ip ospf network point-to-point",
                 " ip ospf hello-interval 1", " ip ospf dead-interval 5", *[" ip ospf passive"] * passive, "exit"]
        six += [f"interface {name}", " ipv6 ospf6 area 0", " ipv6 ospf6 network point-to-point",
                " ipv6 ospf6 hello-interval 1", " ipv6 ospf6 dead-interval 5", *[" ipv6 ospf6 passive"] * passive, "exit"]
    throttle = " timers throttle spf 10 100 1000"
    four += ["router ospf", f" ospf router-id 1.1.1.{n}", throttle, "exit"]
    six += ["router ospf6", f" ospf6 router-id 1.1.1.{n}", throttle, "exit"]
    return {"ospfd": "\n".join(four) + "\n", "ospf6d": "\n".join(six) + "\n"}


def hops(source, address):
    """The number of routers between, by the TTL of an answer."""
    said = source.run("ping", "-n", "-c", 1, "-W", 1, address, check=False).stdout
    ttl = re.search(r"ttl=(\d+)", said)
    return ttl and 64 - int(ttl[1])


def test_ospf_and_ospfv3_across_three_routers(lab):
    net = Triangle(lab)
    for address in ("10.3.0.2", "fd03::2"):
        assert reaches(net.a, address, 40)
    # Adjacencies come up one by one: until the direct way is used.
    for address in ("10.3.0.2", "fd03::2"):
        assert wait_for(lambda: hops(net.a, address) == 2, 20, 0.2)
    # The third wants a neighbouring router's link-local address; and the link between the others has two paths of equal
    # cost.
    for line in (r"10.3.0.0/24 unicast 10.13.0.3@to3", r"fd03::/64 unicast fe80::[\w:]+@to3", r"10.23.0.0/24 .*@.*@"):
        assert wait_for(lambda: any(re.match(line, other) for other in net.agree()[1]), 20, 0.2), line

    # The direct path is lost: its carrier is removed at both ends.
    sink = Sink(net.c)
    rate = 500
    stream = Stream(net.a, ["10.3.0.2", "fd03::2"], rate)
    assert sink.wait(100)
    one = net.routers[1]
    one.wires.run("ip", "link", "set", one.wire("to3"), "down")
    for address in ("10.3.0.2", "fd03::2"):
        assert wait_for(lambda: hops(net.a, address) == 3, 20, 0.2)
    line = "10.3.0.0/24 unicast 10.12.0.2@to2"
    assert wait_for(lambda: any(other.startswith(line) for other in net.agree(flapped=True)[1]), 20, 0.2)
    # The link returns; the direct path does, if zebra restores its next hop.
    one.wires.run("ip", "link", "set", one.wire("to3"), "up")
    assert wait_for(lambda: net.frr[1].vtysh("show ip ospf neighbor").count("Full") == 2, 30, 0.2)
    for address in ("10.3.0.2", "fd03::2"):
        assert reaches(net.a, address, 30)
    net.agree(flapped=True)
    sent = stream.stop()
    missing = len(lost(sent, sink))
    # The return path loses no packets. The forward path does until OSPF has noticed and announced the change: some tens
    # of milliseconds, or seconds if it has announced another a moment before (RFC 2328's MinLSInterval, 5 s, of each
    # router on the path), which is the same for any forwarder. Not until the neighbour is declared dead, after 40.
    print(f"lost {missing} of {sent}, longest gap {longest_gap(sink):.3f} s")
    assert missing < 15 * rate
    sink.close()
    for router in net.routers.values():
        router.finish()


ISIS = """
interface {interface}
 ip router isis lab
 ipv6 router isis lab
 isis network point-to-point
 isis hello-interval 1
 isis circuit-type level-2-only
exit
interface lo
 ip router isis lab
 ipv6 router isis lab
 isis passive
exit
router isis lab
 is-type level-2-only
 net 49.0001.0000.0000.000{n}.00
 spf-interval 1
 lsp-gen-interval 1
exit
"""


def test_isis_which_is_not_ip(lab):
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    peer = host(machine, "right", "peer", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
    peer.run("ip", "address", "add", "198.51.100.1/24", "dev", "lo")
    peer.run("ip", "address", "add", "2001:db8:5::1/64", "dev", "lo")
    machine.start()
    sets = {}
    for n, (space, interface) in enumerate(((machine.space, "right"), (peer, "eth0")), 1):
        sets[n] = Frr(space, {"isisd": ISIS.format(interface=interface, n=n)})
        lab._made.callback(sets[n].close)
    assert wait_for(lambda: "Up" in sets[1].vtysh("show isis neighbor"), 30, 0.2)
    for address in ("198.51.100.1", "2001:db8:5::1"):
        assert reaches(left, address, 30)
    lines = tables.assert_agree(machine, sets[1])
    assert "198.51.100.0/24 unicast 10.0.2.2@right*1" in lines
    machine.finish()

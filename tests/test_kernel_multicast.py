"""Multicast routes of the kernel's cache: Turnpike forwards by them, regardless of their writer."""

import socket
import struct
import time

import pytest

from lib.frr import Frr
from lib.kernel import Machine, host
from lib.mroute import Mroute
from lib.netns import wait_for

PORT = 5000


class Receiver:
    """A host's socket that has joined a group, and counts packets."""

    def __init__(self, space, group, index):
        with space.entered():
            family = socket.AF_INET6 if ":" in group else socket.AF_INET
            self.socket = socket.socket(family, socket.SOCK_DGRAM)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((group, PORT))
            if family == socket.AF_INET6:
                membership = socket.inet_pton(family, group) + struct.pack("=I", index)
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)
            else:
                membership = struct.pack("=4s4si", socket.inet_aton(group), bytes(4), index)
                self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        self.socket.setblocking(False)

    def got(self, quiet=0.3):
        """The payloads received, until none arrived for a while."""
        payloads, last = [], time.monotonic()
        while time.monotonic() - last < quiet:
            try:
                payloads.append(self.socket.recv(2000))
                last = time.monotonic()
            except BlockingIOError:
                time.sleep(0.005)
        return payloads

    def close(self):
        self.socket.close()


class Net:
    """A router with a source on the left and receivers on the right and far away."""

    def __init__(self, lab):
        self.machine = Machine(lab, "router")
        self.left = host(self.machine, "left", "source", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
        self.right = host(self.machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
        self.far = host(self.machine, "far", "far", "10.0.3.2", "10.0.3.1", "fd00:3::2", "fd00:3::1")
        self.machine.start()
        self.numbers = {name: self.machine.index(name) for name in ("left", "right", "far")}

    def receiver(self, space, group):
        return Receiver(space, group, int(space.run("cat", "/sys/class/net/eth0/ifindex").stdout))

    def send(self, group, count=20, ttl=16, size=100, gap=0.002):
        """Datagrams from the host on the left, each with a payload of its own."""
        payloads = [bytes([n]) * size for n in range(count)]
        with self.left.entered():
            family = socket.AF_INET6 if ":" in group else socket.AF_INET
            sender = socket.socket(family, socket.SOCK_DGRAM)
            if family == socket.AF_INET6:
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, ttl)
            else:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        for payload in payloads:
            sender.sendto(payload, (group, PORT))
            time.sleep(gap)
        sender.close()
        return payloads

    def entries(self):
        """Turnpike's entries, by group."""
        return {row["group"]: row for row in self.machine.router.show("multicast")}

    def followed(self, group, to):
        """Waits until Turnpike has the entry with these ports."""
        def has():
            row = self.entries().get(group)
            return row is not None and {port["port"] for port in row["to"]} == set(to)

        assert wait_for(has, 6), (self.entries(), self.machine.router.log())


@pytest.fixture
def net(lab):
    return Net(lab)


@pytest.mark.parametrize("group, source", [("239.1.1.1", "10.0.1.2"), ("ff0e::101", "fd00:1::2")])
def test_entries_come_change_and_go(net, group, source):
    mroute = Mroute(net.machine.space, net.numbers)
    right, far = net.receiver(net.right, group), net.receiver(net.far, group)
    mroute.add(source, group, "left", ["right"])
    net.followed(group, ["right"])
    sent = net.send(group)
    assert right.got() == sent and far.got() == []
    row = net.entries()[group]
    assert (row["origin"], row["source"], row["from"]) == ("kernel", source, "left")
    # A packet may have been forwarded by the kernel.
    assert 19 <= row["packets"] <= 20

    mroute.add(source, group, "left", ["right", "far"])
    net.followed(group, ["right", "far"])
    sent = net.send(group)
    assert (right.got(), far.got()) == (sent, sent)

    mroute.delete(source, group, "left")
    assert wait_for(lambda: group not in net.entries(), 3)
    net.send(group)
    assert (right.got(), far.got()) == ([], [])
    mroute.close()
    right.close()
    far.close()
    net.machine.finish()


def test_the_kernel_sees_that_the_source_sends(net):
    """One packet in ten seconds is forwarded and counted by the kernel: a routing daemon that reads the counter keeps
    the entry. No receiver misses it, or gets it twice."""
    group, source = "239.1.1.3", "10.0.1.2"
    mroute = Mroute(net.machine.space, net.numbers)
    right, far = net.receiver(net.right, group), net.receiver(net.far, group)
    mroute.add(source, group, "left", ["right", "far"])
    net.followed(group, ["right", "far"])
    sent = net.send(group, count=250, gap=0.05)
    counted = mroute.counted(source, group)
    assert 1 <= counted <= 3
    assert sorted(right.got()) == sorted(sent) and sorted(far.got()) == sorted(sent)
    assert net.entries()[group]["packets"] == 250 - counted
    mroute.close()
    right.close()
    far.close()
    net.machine.finish()


def test_what_the_router_has_joined_is_left_to_the_kernel(net):
    """A process on the router gets the group's packets too, and the kernel continues to forward them."""
    group, source = "239.1.1.4", "10.0.1.2"
    mroute = Mroute(net.machine.space, net.numbers)
    right = net.receiver(net.right, group)
    mroute.add(source, group, "left", ["right"])
    net.followed(group, ["right"])
    own = Receiver(net.machine.space, group, net.numbers["left"])
    assert wait_for(lambda: group not in net.entries(), 6)
    sent = net.send(group)
    assert (own.got(), right.got()) == (sent, sent)
    own.close()
    net.followed(group, ["right"])
    mroute.close()
    right.close()
    net.machine.finish()


def test_frr_s_pimd(net):
    """Receivers join by IGMP, the source sends: pimd learns both and the packets flow."""
    group = "239.5.5.5"
    interfaces = "".join(
        f"interface {name}\n ip pim\n ip pim hello 1\n ip igmp\n!\n" for name in ("left", "right", "far"))
    frr = Frr(net.machine.space, {"pimd": f"ip pim rp 10.0.1.1 239.0.0.0/8\n{interfaces}"})
    try:
        right, far = net.receiver(net.right, group), net.receiver(net.far, group)

        def complete():
            net.send(group, count=5)
            row = net.entries().get(group)
            return row is not None and {port["port"] for port in row["to"]} == {"right", "far"}

        assert wait_for(complete, 40, 0.5), (net.entries(), frr.vtysh("show ip mroute", daemon="pimd"))
        right.got(), far.got()
        before = net.entries()[group]["packets"]
        sent = net.send(group, count=50)
        assert sorted(right.got()) == sorted(sent) and sorted(far.got()) == sorted(sent)
        assert net.entries()[group]["packets"] - before >= 48
        far.close()
        net.followed(group, ["right"])
        right.close()
    finally:
        frr.close()
    net.machine.finish()

"""`turnpike.accelerate { …, flows = true }` beside a distribution's kernel with connection tracking and NAT: hosts behind a
router that masquerades them, on NICs of the kernel's driver."""

import re
import time

import pytest

from lib import conntrack
from lib.echo import Client, Server
from lib.netns import wait_for
from lib.router import binary

from .lib.hosts import address
from .test_accelerate import FORWARDING, Kernel

PORT, FORWARDED = 7007, 8080

# What a small router has: masquerading, a port that leads inside, and nothing else from outside.
RULES = """
table inet fw {{
    chain forward {{
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        ct state invalid drop
        iifname "{0}" oifname "{1}" accept
        ct status dnat accept
    }}
}}
table ip nat {{
    chain prerouting {{
        type nat hook prerouting priority -100;
        iifname "{1}" tcp dport {3} dnat to 10.0.1.2:{2}
        iifname "{1}" udp dport {3} dnat to 10.0.1.2:{2}
    }}
    chain postrouting {{ type nat hook postrouting priority 100; oifname "{1}" masquerade; }}
}}
"""

CONFIG = """local turnpike = require "turnpike"
turnpike.accelerate {{ flows = true }}
turnpike.port "{0}" {{ device = "{0}", accelerate = true, rx_queues = {2}, tx_queues = {2} }}
turnpike.port "{1}" {{ device = "{1}", accelerate = true, rx_queues = {2}, tx_queues = {2} }}
"""

class Net:
    """A host inside, one outside, the machine between them, and its router."""

    def __init__(self, machine, inside, outside):
        self.machine, self.inside, self.outside = machine, inside, outside
        self.names = [host.device for host in (inside, outside)]
        self.server = Server(outside.namespace, PORT)
        self.inner = Server(inside.namespace, PORT)
        self.router = None

    def nft(self, *words):
        """Runs `nft` in the machine."""
        return self.machine.run("nft", *words)

    def accelerate(self):
        """Starts the router; packets of flows are taken when this returns."""
        queues = min(len(self.machine.glob(f"/sys/class/net/{name}/queues/rx-*")) for name in self.names)
        self.router = self.machine.router(CONFIG.format(*self.names, queues))
        takes = lambda: all(of[family]["accelerated"] for of in self.acceleration()["interfaces"] for family in ("ip4", "ip6"))  # noqa: E731
        assert wait_for(takes, 60, 0.2), (self.acceleration(), self.router.log())

    def acceleration(self):
        """What `show acceleration` answers."""
        return self.router.show("acceleration")

    def flows(self):
        """Numbers of flows."""
        return self.acceleration()["flows"]

    def taken(self):
        """Packets taken, by interface: inside, outside."""
        packets = {of["name"]: of["packets"]["accelerated"] for of in self.acceleration()["interfaces"]}
        return [packets[name] for name in self.names]

    def are_taken(self, seconds=30, more=20):
        """Waits until more packets are taken on both interfaces."""
        before = self.taken()
        return wait_for(lambda: all(now >= then + more for now, then in zip(self.taken(), before)), seconds, 0.2)

    def sent(self):
        """Packets that the host outside has received."""
        return int(self.outside.run("cat", "/sys/class/net/eth0/statistics/rx_packets").stdout)

    def connections(self, port=PORT):
        """The kernel's connections of this port: a line each."""
        lines = self.machine.read("/proc/net/nf_conntrack").splitlines()
        return [line for line in lines if re.search(rf"port={port}\b", line)]

    def close(self):
        """Ends the servers and removes the rules."""
        self.server.close()
        self.inner.close()
        self.nft("flush", "ruleset")


@pytest.fixture
def net(machine):
    """Hosts at two NICs; the machine forwards, and masquerades the one inside."""
    machine.modprobe("nf_conntrack_netlink", "nft_masq", "nft_chain_nat", "nft_ct")
    nics = [machine.nic("virtio", index) for index in (0, 1)]
    hosts = [Kernel(machine, nic, side) for side, nic in enumerate(nics, 1)]
    for name in FORWARDING:
        machine.write_setting(name, 1)
    machine.run("nft", "-f", "-", input=RULES.format(*(host.device for host in hosts), PORT, FORWARDED))
    machine.run("python3", conntrack.__file__, "flush")
    # The host outside knows nothing of the network inside.
    hosts[1].run("ip", "route", "del", "default")
    made = Net(machine, *hosts)
    assert wait_for(lambda: hosts[0].run("ping", "-c1", "-W1", "10.0.2.2", check=False).returncode == 0, 60)
    yield made
    made.close()
    for nic in nics:
        machine.bind(nic, None)


def whole(report, most=0):
    """Checks that all messages of a conversation came back, but this many of UDP."""
    assert report["sent"] - report["back"] <= most and report["doubled"] == 0, report
    return True


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_masqueraded_flows_are_accelerated_closed_and_survive_the_end(net, kind):
    client = Client(net.inside.namespace, kind, "10.0.2.2", PORT)
    assert client.is_begun()
    # An established flow is taken up as it is.
    net.accelerate()
    assert net.are_taken(), (net.acceleration(), net.connections(), net.router.log())
    assert net.flows()["known"] >= 1
    # And begins anew with the next start.
    net.router.stop()
    net.accelerate()
    assert net.are_taken(), net.acceleration()
    net.router.process.kill()
    net.router.process.wait()
    time.sleep(1)
    net.accelerate()
    assert net.are_taken(), net.acceleration()
    report = client.stop()
    # The tenth of a second until the lease of the killed process ends.
    assert whole(report, most=0 if kind == "tcp" else 20)
    if kind == "tcp":
        assert report["closed"]
        assert wait_for(lambda: all("TIME_WAIT" in line for line in net.connections()), 10, 0.2), net.connections()
        assert wait_for(lambda: net.flows()["known"] == 0, 10, 0.2), net.flows()
    peers = net.server.close()
    net.server = Server(net.outside.namespace, PORT)
    assert {(of, peer.removeprefix("::ffff:")) for of, peer, _ in peers} == {(kind, "10.0.2.1")}, "masqueraded"


def test_forwarded_ports_and_ipv6_are_flows_as_well(net):
    net.accelerate()
    clients = [Client(net.outside.namespace, kind, "10.0.2.1", FORWARDED) for kind in ("tcp", "udp")]
    clients += [Client(net.inside.namespace, kind, address(net.outside, 6), PORT) for kind in ("tcp", "udp")]
    assert all(client.is_begun() for client in clients), net.connections()
    assert wait_for(lambda: net.flows()["known"] == 4, 20, 0.2), (net.flows(), net.connections())
    assert net.are_taken(more=100), net.acceleration()
    assert all(whole(client.stop()) for client in clients)


def test_what_the_rules_refuse_stays_refused(net):
    net.accelerate()
    client = Client(net.inside.namespace, "udp", "10.0.2.2", PORT)
    assert client.is_begun() and net.are_taken(), net.acceleration()
    # From outside nothing begins, not to the address that is masqueraded and not to the host inside.
    net.outside.run("ip", "route", "add", "10.0.1.0/24", "via", "10.0.2.1")
    for to in ("10.0.1.2", address(net.inside, 6)):
        stranger = Client(net.outside.namespace, "udp", to, PORT)
        assert not stranger.is_begun(3)
        stranger.kill()
    # A rule that is added stops an established flow, and both packets and flow are the kernel's.
    net.nft("insert", "rule", "inet", "fw", "forward", "udp", "dport", PORT, "drop")
    time.sleep(1)
    taken, sent = net.taken(), net.sent()
    time.sleep(2)
    assert net.taken()[0] == taken[0] and net.sent() <= sent + 5, "no packet passes the rule"
    # Without it the flow goes on.
    net.nft("flush", "chain", "inet", "fw", "forward")
    net.nft("add", "rule", "inet", "fw", "forward", "accept")
    assert net.are_taken(), (net.acceleration(), net.connections())
    client.stop()


def test_connections_that_are_deleted_or_expire_end_and_used_ones_do_not_expire(net):
    net.machine.write_setting("/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream", 6)
    net.accelerate()
    client = Client(net.inside.namespace, "udp", "10.0.2.2", PORT)
    assert client.is_begun() and net.are_taken(), net.acceleration()
    before = net.flows()["ended"]
    # Three times the time after which an unused one expires.
    time.sleep(18)
    assert net.flows()["ended"] == before and net.flows()["renewed"] >= 3, net.flows()
    assert net.connections() and net.are_taken(), net.connections()
    # Deleted by an administrator: it begins anew, by the kernel.
    assert net.machine.run("python3", conntrack.__file__, "delete", PORT).stdout == "1\n"
    assert wait_for(lambda: net.flows()["ended"] == before + 1, 3, 0.1), net.flows()
    assert net.are_taken(), (net.acceleration(), net.connections())
    assert whole(client.stop(), most=5)
    assert wait_for(lambda: net.flows()["known"] == 0 and not net.connections(), 20, 0.2), (net.flows(), net.connections())


def test_rules_for_each_packet_are_refused_and_flows_alone_are_the_way_out(net):
    net.nft("insert", "rule", "inet", "fw", "forward", "limit", "rate", "5/second", "accept")
    with pytest.raises(AssertionError, match=r"not for the flow \(limit\)"):
        net.accelerate()
    doctor = lambda *more: net.machine.run(binary(), "doctor", "accelerate", *net.names, *more, check=False).stdout  # noqa: E731
    assert "limit rate 5/second" in doctor("--flows")
    net.nft("flush", "chain", "inet", "fw", "forward")
    net.nft("add", "rule", "inet", "fw", "forward", "ct", "state", "established", "accept")
    net.nft("add", "rule", "inet", "fw", "forward", "limit", "rate", "5/second", "accept")
    assert "verdict: accelerated" in doctor("--flows"), doctor("--flows")
    plain = " ".join(doctor().split())
    assert "verdict: refused, because of: nat, nftables" in plain and "(--flows)" in plain, plain


def test_a_bulk_transfer_is_taken(net):
    net.accelerate()
    server = net.outside.namespace.spawn("iperf3", "-s", "-1")
    try:
        time.sleep(0.5)
        done = net.inside.run("iperf3", "-c", "10.0.2.2", "-n", "8M", timeout=120)
        assert done.returncode == 0, done.stdout
    finally:
        server.kill()
        server.wait()
    packets = {of["name"]: of["packets"] for of in net.acceleration()["interfaces"]}
    inside = packets[net.names[0]]
    print(inside)
    assert inside["accelerated"] > 3 * inside["no-flow"], packets

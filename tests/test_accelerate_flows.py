"""`turnpike accelerate --flows` on a machine with connection tracking and NAT: the kernel decides about each flow, and the rest of
it is accelerated."""

import subprocess
import time

import pytest

from lib import conntrack
from lib.accelerate import Box, Counted, packets
from lib.echo import Client, Server
from lib.netns import wait_for
from lib.router import binary

pytestmark = pytest.mark.xdist_group("accelerate")

PORT, FORWARDED = 7007, 8080

# What a small router has: host a is masqueraded, a port leads to it, and nothing else comes in. Host c is behind an
# interface that is not accelerated.
RULES = f"""
table inet fw {{
    set blocked {{ type inet_service; }}
    chain forward {{
        type filter hook forward priority 0; policy drop;
        tcp flags syn tcp option maxseg size set rt mtu
        udp dport @blocked drop
        ct state established,related accept
        ct state new limit rate 1000/second jump new
    }}
    chain new {{
        iifname "eth0" oifname {{ "eth1", "eth2" }} accept
        ct status dnat accept
    }}
}}
table ip nat {{
    chain prerouting {{
        type nat hook prerouting priority -100;
        iifname "eth1" meta l4proto {{ tcp, udp }} th dport {FORWARDED} dnat to 10.0.1.2:{PORT}
    }}
    chain postrouting {{ type nat hook postrouting priority 100; oifname "eth1" masquerade; }}
}}
"""


class Net:
    """The machine with its rules, servers on hosts a and b, and the router that accelerates between these."""

    def __init__(self, lab):
        self.box = Box(lab)
        self.box.settle()
        self.nft(RULES)
        self.servers = {name: Server(self.box.hosts[name], PORT) for name in "abc"}
        # What is masqueraded comes to b from the machine alone.
        self.box.b.run("ip", "route", "del", "default")
        self.router = None

    def nft(self, rules):
        """Changes the machine's rules."""
        subprocess.run(self.box.space.command("nft", "-f", "-"), input=rules, text=True, check=True)

    def accelerate(self):
        """Starts the router."""
        self.router = self.box.accelerate("--flows", "eth0", "eth1")

    def flows(self):
        """Numbers of flows."""
        return self.router.show("acceleration")["flows"]

    def connections(self, port=PORT):
        """The kernel's connections with a port."""
        with self.box.space.entered():
            return conntrack.connections(port)

    def are_taken(self, more=20, seconds=15):
        """Returns true when more packets are taken in both directions."""
        before = [packets(self.router, name, "accelerated") for name in ("eth0", "eth1")]
        taken = lambda: [packets(self.router, name, "accelerated") for name in ("eth0", "eth1")]  # noqa: E731
        return wait_for(lambda: all(now >= then + more for now, then in zip(taken(), before)), seconds, 0.1)

    def about(self):
        """What to know of a failure."""
        return self.router.show("acceleration"), self.connections(), self.router.log()[-3000:]

    def is_quiet(self, seconds=1.0):
        """Returns true if nothing is taken from host a for a time."""
        before = packets(self.router, "eth0", "accelerated")
        time.sleep(seconds)
        return packets(self.router, "eth0", "accelerated") == before


@pytest.fixture
def net(lab):
    return Net(lab)


def whole(report, most=0):
    """Checks that all messages of a conversation came back, but this many of UDP."""
    assert report["sent"] - report["back"] <= most and report["doubled"] == 0, report
    return True


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_flows_are_taken_as_they_are_and_survive_the_end(net, kind):
    client = Client(net.box.a, kind, "10.0.2.2", PORT, rate=100)
    assert client.is_begun()
    net.accelerate()
    assert net.are_taken(100), net.about()
    net.router.stop()
    time.sleep(0.5)
    net.accelerate()
    assert net.are_taken(100), net.about()
    net.router.process.kill()
    net.router.process.wait()
    time.sleep(1)
    net.accelerate()
    assert net.are_taken(100), net.about()
    report = client.stop()
    # Those of the tenth of a second until the lease of the killed process ends.
    assert whole(report, most=0 if kind == "tcp" else 25)
    if kind == "tcp":
        assert report["closed"] and report["ordered"]
        assert wait_for(lambda: [of.state for of in net.connections()] == ["TIME_WAIT"], 5), net.connections()
        assert wait_for(lambda: net.flows()["known"] == 0, 5), net.flows()
    seen = {(of, peer.removeprefix("::ffff:")) for of, peer, _ in net.servers["b"].close()}
    assert seen == {(kind, "10.0.2.1")}, "masqueraded"


def test_every_kind_of_flow_is_taken_without_loss(net):
    net.accelerate()
    clients = [Client(net.box.b, kind, "10.0.2.1", FORWARDED) for kind in ("tcp", "udp")]
    clients += [Client(net.box.a, kind, to, PORT) for kind in ("tcp", "udp") for to in ("10.0.2.2", "fd00:2::2")]
    assert all(client.is_begun() for client in clients), net.about()
    assert wait_for(lambda: net.flows()["known"] == 6, 10), net.about()
    counted = Counted(net.router, "eth0")
    assert net.are_taken(500, 30), net.about()
    assert counted["no-flow"] < counted["accelerated"] / 10, counted.all()
    assert counted["source"] == counted["flow-ended"] == 0, counted.all()
    reports = [client.stop() for client in clients]
    assert all(whole(report) for report in reports)
    # Those of TCP, and of UDP, which the kernel keeps for a while.
    assert wait_for(lambda: net.flows()["known"] == 3, 5), net.about()


def test_packets_that_are_given_back_are_as_they_were_received(net):
    net.accelerate()
    clients = [Client(net.box.a, kind, "10.0.2.2", PORT, rate=100) for kind in ("tcp", "udp")]
    assert all(client.is_begun() for client in clients) and net.are_taken(), net.about()
    for _ in range(5):
        # Without a neighbour the kernel gets the packets, resolves it, and lets them pass as those of their flow.
        for name in ("eth0", "eth1"):
            net.box.ip("neigh", "flush", "dev", name)
        time.sleep(0.4)
    returned = sum(packets(net.router, name, "returned") for name in ("eth0", "eth1"))
    assert returned > 0 and packets(net.router, "eth0", "flow-ended") == 0
    assert len(net.connections()) == 2, "no packet was one of another flow"
    assert all(whole(client.stop()) for client in clients)


def test_flows_from_and_to_other_interfaces_are_the_kernels(net):
    net.accelerate()
    client = Client(net.box.a, "udp", "10.0.3.2", PORT)
    assert client.is_begun()
    time.sleep(3)
    assert net.connections()[0].is_assured
    assert packets(net.router, "eth0", "accelerated") == 0 and net.flows()["known"] == 0
    # The same addresses from elsewhere are no packets of a flow, if the kernel lets them not pass.
    client.stop()
    net.nft('insert rule inet fw forward iifname "eth1" ip6 saddr fd00:1::/64 drop')
    client = Client(net.box.a, "udp", "fd00:2::2", PORT)
    assert client.is_begun() and net.are_taken(), net.about()
    (connection,) = [of for of in net.connections() if of.family == 10]
    source, port, destination, _ = connection.original
    script = f"""
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
payload = bytes.fromhex("{port:04x}{PORT:04x}000c0000") + b"fake"
header = b"\\x60\\0\\0\\0" + len(payload).to_bytes(2, "big") + bytes([17, 64])
packet = header + socket.inet_pton(socket.AF_INET6, "{source}") + socket.inet_pton(socket.AF_INET6, "{destination}") + payload
l2 = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
l2.bind(("eth0", 0x86dd))
for _ in range(5):
    l2.send(bytes.fromhex("020000000201" "020000000202" "86dd") + packet)
"""
    counted = Counted(net.router, "eth1")
    net.box.b.run("python3", "-c", script)
    assert wait_for(lambda: counted["no-flow"] >= 5, 5), counted.all()
    # And those of the flow are taken as before.
    assert net.are_taken(), net.about()
    assert whole(client.stop())


def test_rules_that_change_stop_flows_and_let_them_go_on(net):
    net.accelerate()
    client = Client(net.box.a, "udp", "10.0.2.2", PORT, rate=200)
    assert client.is_begun() and net.are_taken(), net.about()
    # An element of a set, a rule, and its removal.
    changes = [
        (f"add element inet fw blocked {{ {PORT} }}", f"delete element inet fw blocked {{ {PORT} }}"),
        ("add chain inet fw early { type filter hook prerouting priority -300; udp dport 7007 drop; }", "delete chain inet fw early"),
    ]
    for block, allow in changes:
        net.nft(block)
        assert wait_for(lambda: net.is_quiet(0.3), 5), net.about()
        assert net.is_quiet(1), block
        net.nft(allow)
        assert net.are_taken(), net.about()
    # One that lets it pass costs some packets by the kernel, and none is lost.
    client.stop()
    client = Client(net.box.a, "udp", "10.0.2.2", PORT, rate=200)
    assert client.is_begun() and net.are_taken(), net.about()
    counted = Counted(net.router, "eth0")
    net.nft("add counter inet fw harmless")
    assert wait_for(lambda: counted["no-flow"] > 10, 5) and net.are_taken(), net.about()
    assert whole(client.stop())


def test_new_flows_are_the_rules_business(net):
    net.accelerate()
    client = Client(net.box.a, "udp", "10.0.2.2", PORT)
    assert client.is_begun() and net.are_taken(), net.about()
    net.box.b.run("ip", "route", "add", "10.0.1.0/24", "via", "10.0.2.1")
    for to in ("10.0.1.2", "fd00:1::2"):
        stranger = Client(net.box.b, "udp", to, PORT)
        assert not stranger.is_begun(2), to
        stranger.kill()
    assert whole(client.stop())


def test_used_connections_do_not_expire_and_deleted_ones_end(net):
    net.box.space.sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", 4)
    # Of a connection that begins anew by one packet at the end.
    net.box.space.sysctl("net.netfilter.nf_conntrack_udp_timeout", 4)
    net.accelerate()
    client = Client(net.box.a, "udp", "10.0.2.2", PORT, rate=100)
    assert client.is_begun() and net.are_taken(), net.about()
    ended = net.flows()["ended"]
    # Three times the time after which an unused one expires.
    counted = Counted(net.router, "eth0")
    time.sleep(12)
    assert net.flows()["ended"] == ended and net.flows()["renewed"] >= 3, net.about()
    assert counted["no-flow"] == 0, "the kernel sees none of its packets"
    with net.box.space.entered():
        assert conntrack.delete(PORT) == 1
    assert wait_for(lambda: net.flows()["ended"] == ended + 1, 0.5, 0.02), net.about()
    assert net.are_taken(), net.about()
    client.stop()
    assert wait_for(lambda: not net.connections() and net.flows()["known"] == 0, 30), net.about()


def test_a_reset_ends_a_connection_at_once(net):
    net.accelerate()
    client = Client(net.box.a, "tcp", "10.0.2.2", PORT)
    assert client.is_begun() and net.are_taken(), net.about()
    # The kernel has an old acknowledgement, by which it would not believe the reset.
    assert net.are_taken(100), net.about()
    client.reset()
    assert wait_for(lambda: net.flows()["known"] == 0, 3), net.about()
    assert [of.state for of in net.connections()] == ["CLOSE"], net.connections()


def refused(box, *options):
    """What the command says when it refuses."""
    command = box.space.command(binary(), "accelerate", "eth0", "eth1", "--no-huge", "--socket", "/run/turnpike-refused.sock", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2), done
    return done.stderr


def test_flows_are_the_way_out_and_rules_for_each_packet_are_refused(net):
    said = refused(net.box)
    assert "accelerate established flows only (--flows)" in said and "nat chain postrouting" in said, said
    net.nft("insert rule inet fw forward limit rate 5/second accept")
    said = refused(net.box, "--flows")
    assert "not for the flow (limit)" in said and 'rule 1 "limit rate 5/second' in said, said
    assert "nat chain" not in said, said
    # While it runs: all packets are the kernel's.
    net.nft("flush ruleset\n" + RULES)
    net.accelerate()
    client = Client(net.box.a, "udp", "10.0.2.2", PORT)
    assert client.is_begun() and net.are_taken(), net.about()
    net.nft("insert rule inet fw forward meta length 1400 drop")
    assert wait_for(lambda: not net.router.show("acceleration")["interfaces"][0]["ip4"]["accelerated"], 5), net.about()
    assert net.is_quiet()
    assert whole(client.stop())


def test_legacy_tables_of_nat_are_followed(lab):
    box = Box(lab)
    box.settle()
    if box.space.run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-o", "eth1", "-j", "MASQUERADE", check=False).returncode:
        pytest.skip("no legacy iptables in this kernel")
    box.space.run("iptables-legacy", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
    done = box.space.run(binary(), "doctor", "accelerate", "--flows", "eth0", "eth1", check=False)
    assert "verdict: accelerated" in done.stdout, done.stdout

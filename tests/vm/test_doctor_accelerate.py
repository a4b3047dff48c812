"""`turnpike doctor accelerate` beside a distribution's kernel: devices, qdiscs and tables that a kernel of containers lacks."""

import json

import pytest

from lib.router import binary

NAME = "accel"


class Host:
    """A router of the kernel in a namespace of the machine, with two interfaces."""

    def __init__(self, machine):
        self._machine = machine
        machine.run("ip", "netns", "add", NAME)
        for number in (0, 1):
            machine.run("ip", "link", "add", f"far{number}", "type", "veth", "peer", f"eth{number}", "netns", NAME)
            machine.run("ip", "link", "set", f"far{number}", "up")
            self.run(f"ip link set eth{number} up")
        self.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")

    def run(self, command, **options):
        """Runs a command line in the namespace."""
        return self._machine.run("ip", "netns", "exec", NAME, *command.split(), **options)

    def doctor(self, *argv):
        """The report as JSON."""
        done = self.run(f"{binary()} doctor accelerate eth0 eth1 {' '.join(argv)} --json", check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def rules(self, kind, *argv):
        """Action and message of the kernel's rules of a kind."""
        return [(rule["action"], rule["message"]) for rule in self.doctor(*argv)["rules"] if rule["kind"] == kind]

    def close(self):
        self._machine.run("ip", "netns", "del", NAME)
        for number in (0, 1):
            self._machine.run("ip", "link", "del", f"far{number}", check=False)


@pytest.fixture
def host(machine):
    host = Host(machine)
    yield host
    host.close()


def test_nothing_is_unseen_where_the_kernel_has_nothing(host):
    """A kernel without tcx has no such programs, and one without a list of hooks is believed its tables."""
    told = host.doctor()
    assert told["unseen"] == [] and told["rules"] == [] and told["verdict"] == "accelerated", told


def test_devices_that_have_others_in_them_or_above(machine, host):
    machine.modprobe("bonding", "ipvlan", "vrf")
    host.run("ip link add blue type vrf table 100")
    host.run("ip link set eth1 master blue")
    host.run("ip link add iv0 link eth0 type ipvlan mode l2")
    assert host.rules("macvlan")[0] == ("refuse", "ipvlan iv0 takes packets for its addresses from eth0, with the MAC of eth0")
    assert host.rules("vrf") == [("refuse", "eth1 is in VRF blue, whose table the programs do not have")]
    # The kernel adds the rule of VRFs by itself.
    assert [action for action, _ in host.rules("rules")] == ["follow", "follow"]
    host.run("ip link del iv0")
    host.run("ip link set eth0 down")
    host.run("ip link add lag type bond mode active-backup")
    host.run("ip link set eth0 master lag")
    assert host.rules("bond") == [("refuse", "eth0 is a member of bond lag, whose packets it carries")]


def test_qdiscs_and_filters(machine, host):
    machine.modprobe("sch_cake", "sch_netem", "sch_fq", "sch_fq_codel", "sch_htb", "sch_ingress", "cls_flower", "act_police")
    for harmless in ("fq", "fq_codel", "prio", "sfq"):
        host.run(f"tc qdisc replace dev eth0 root {harmless}")
        assert host.rules("tc") == [], harmless
    for shaping in ("htb", "fq maxrate 10mbit", "cake bandwidth 10mbit", "netem delay 1ms", "tbf rate 1mbit burst 32k latency 10ms"):
        host.run(f"tc qdisc replace dev eth0 root handle 1: {shaping}")
        text = f"qdisc {shaping.split()[0]} 1: of eth0 would not see accelerated packets, which leave behind it"
        assert host.rules("tc") == [("refuse", text)]
        host.run("tc qdisc del dev eth0 root")
    host.run("tc qdisc add dev eth1 ingress")
    assert host.rules("tc") == []
    host.run("tc filter add dev eth1 ingress pref 3 protocol ip flower dst_ip 10.0.0.0/8 action drop")
    host.run("tc qdisc add dev eth0 clsact")
    host.run("tc filter add dev eth0 egress pref 4 matchall action drop")
    assert host.rules("tc") == [
        ("refuse", "tc filter matchall, preference 4 at egress of eth0 would not see accelerated packets"),
        ("refuse", "tc filter flower, preference 3 at ingress of eth1 would not see accelerated packets"),
    ]
    assert {action for action, _ in host.rules("tc", "--bypass", "tc")} == {"bypass"}


def test_mpls(machine, host):
    machine.modprobe("mpls_router", "mpls_iptunnel")
    host.run("sysctl -qw net.mpls.platform_labels=100 net.mpls.conf.eth0.input=1")
    host.run("ip addr add 10.9.0.1/24 dev eth1")
    host.run("ip route add 10.6.0.0/16 encap mpls 100 via inet 10.9.0.3 dev eth1")
    assert host.rules("mpls") == [("stay", "MPLS packets received on eth0 stay with the kernel")]
    assert host.rules("encapsulation")[0][1].startswith("IPv4 routes that encapsulate: 1 (10.6.0.0/16 encap mpls)")


def test_legacy_iptables(host):
    host.run("iptables-legacy -t nat -A POSTROUTING -o eth1 -j MASQUERADE")
    assert [action for action, _ in host.rules("nat")] == ["refuse"] and host.rules("iptables") == []
    host.run("ip6tables-legacy -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu")
    ((action, message),) = host.rules("iptables")
    assert action == "refuse" and message.startswith("legacy ip6tables table mangle chain FORWARD has 1 rule that accelerated")
    assert host.doctor("--bypass", "nat,iptables")["verdict"] == "accelerated; bypassed as requested: iptables, nat"


def test_iptables_of_today_are_nftables(host):
    host.run("iptables-nft -A FORWARD -s 10.0.0.0/8 -j ACCEPT")
    assert host.rules("nftables") == []
    host.run("iptables-nft -A FORWARD -p tcp -m conntrack --ctstate INVALID -j DROP")
    host.run("iptables-nft -t nat -A POSTROUTING -o eth1 -j MASQUERADE")
    ((action, message),) = host.rules("nftables")
    assert action == "refuse" and "table ip filter chain FORWARD" in message, message
    assert [action for action, _ in host.rules("nat")] == ["refuse"]


def test_connections_are_tracked_where_anything_uses_them(host):
    assert host.rules("conntrack") == []
    host.run("nft add table ip f")
    host.run("nft add chain ip f input { type filter hook input priority 0 ; }")
    host.run("nft add rule ip f input ct state established accept")
    message = "the kernel tracks connections (rules of nftables use it); those of accelerated packets are not in its table"
    assert host.rules("conntrack") == [("note", message)]
    assert host.doctor()["verdict"] == "accelerated"


# A service of IPVS, by setsockopt(IP_VS_SO_SET_ADD) of `struct ip_vs_service_user`.
SERVICE = """
import socket, struct
service = struct.pack("=HxxIHxxI16sIII", 6, int.from_bytes(socket.inet_aton("10.0.0.1"), "little"), socket.htons(80), 0, b"rr", 0, 0, 0xFFFFFFFF)
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).setsockopt(socket.SOL_IP, 64 + 1024 + 64 + 2, service)
"""


def test_virtual_servers(machine, host):
    machine.modprobe("ip_vs", "ip_vs_rr")
    assert host.rules("ipvs") == []
    machine.write("/run/service.py", SERVICE)
    host.run("python3 /run/service.py")
    assert host.rules("ipvs") == [("refuse", "IPVS has virtual servers, whose packets it changes when they are forwarded")]


def test_a_nic_has_its_driver(machine):
    nic = machine.nic("e1000e")
    machine.bind(nic, "e1000e")
    (interface,) = machine.glob(f"/sys/bus/pci/devices/{nic.pci}/net/*")
    name = interface.rsplit("/", 1)[1]
    done = machine.run(binary(), "doctor", "accelerate", name, "--json", check=False)
    found = [one["found"] for one in json.loads(done.stdout)["findings"] if one["check"] == "interface"]
    assert any(text.startswith(f"{name}: driver e1000e, queues: ") for text in found), found

"""`turnpike doctor accelerate`: what the kernel applies to forwarded packets, in namespaces with rules of its own.

What this kernel may lack (bonds, IPVLAN, VRF devices, other qdiscs, MPLS) has scenarios in `tests/vm`.
"""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from lib.bpf import attached
from lib.netns import veth
from lib.router import binary

FORWARD = "add chain inet f forward { type filter hook forward priority 0; policy %s; }"


class Host:
    """A router of the kernel with two interfaces."""

    def __init__(self, lab):
        self.inside, outside = lab.namespace("host"), lab.namespace("out")
        for number in (0, 1):
            veth(self.inside, f"eth{number}", outside, f"far{number}")
        self.inside.sysctl("net.ipv4.ip_forward", 1)
        self.inside.sysctl("net.ipv6.conf.all.forwarding", 1)

    def run(self, command):
        """Runs a command line."""
        return self.inside.run(*command.split())

    def nft(self, *lines):
        """Adds rules of nftables."""
        self.inside.run("nft", "-f", "-", input="\n".join(lines))

    def command(self, *argv, wrap=()):
        """The command line of the doctor, in the namespace."""
        return self.inside.command(*wrap, binary(), "doctor", "accelerate", *argv)

    def doctor(self, *argv, wrap=(), interfaces=("eth0", "eth1")):
        """The report as JSON, after a check of its form and the exit status."""
        command = self.command(*interfaces, *argv, "--json", wrap=wrap)
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
        assert "panicked" not in done.stderr, done.stderr
        told = json.loads(done.stdout)
        assert done.returncode == {"ok": 0, "note": 0, "warning": 1, "error": 2}[told["worst"]]
        for finding in told["findings"]:
            assert finding.get("cost") or finding["severity"] in ("ok", "note"), finding
        return told

    def rules(self, kind, *argv, **options):
        """Action and message of the kernel's rules of a kind."""
        told = self.doctor(*argv, **options)
        return [(rule["action"], rule["message"]) for rule in told["rules"] if rule["kind"] == kind]


@pytest.fixture
def host(lab):
    return Host(lab)


def test_a_plain_router_is_accelerated(host):
    told = host.doctor()
    assert told["verdict"] == "accelerated" and told["worst"] in ("ok", "note")
    both = "received on eth0, eth1 and routed to an accelerated interface"
    assert told["taken"] == [f"IPv4 {both}", f"IPv6 {both}"]
    assert [rule["action"] for rule in told["rules"]] == [], told["rules"]
    assert told["unseen"] == [] and "filters" not in told
    text = subprocess.run(host.command("eth0", "eth1"), capture_output=True, text=True, timeout=60)
    assert text.stdout.rstrip().endswith("verdict: accelerated") and text.returncode == 0
    assert "eth0: veth, queues: 1 rx, 1 tx, MTU 1500" in text.stdout


def test_interfaces_that_cannot_be_accelerated(host):
    host.run("ip link add br0 type bridge")
    host.run("ip link set eth1 master br0")
    told = host.doctor(interfaces=("eth0", "eth1", "lo", "eth7"))
    refused = {rule["message"].split(";")[0]: rule.get("way_out") for rule in told["rules"] if rule["action"] == "refuse"}
    assert refused.keys() == {
        "eth1 is a port of bridge br0, which decides about its frames",
        "interface lo has no Ethernet frames",
        "interface eth7 not found in this network namespace",
    }
    assert told["verdict"] == "refused, because of: bridge, interface"
    host.run("ip link set eth1 nomaster down")
    assert host.doctor()["worst"] == "warning"


def test_the_doctor_looks_at_its_own_namespace(host):
    """The interfaces are in the namespace, and not here."""
    command = [binary(), "doctor", "accelerate", "eth0-of-no-machine", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (absent,) = [rule for rule in json.loads(done.stdout)["rules"] if rule["action"] == "refuse" and rule["kind"] == "interface"]
    assert absent["message"].startswith("interface eth0-of-no-machine not found in this network namespace; known: ")


def test_nothing_is_accelerated_where_nothing_is_forwarded(host):
    host.inside.sysctl("net.ipv4.conf.eth1.forwarding", 0)
    host.inside.sysctl("net.ipv6.conf.eth0.disable_ipv6", 1)
    told = host.doctor()
    one = "received on {} and routed to an accelerated interface"
    assert told["taken"] == ["IPv4 " + one.format("eth0"), "IPv6 " + one.format("eth1")]
    assert told["worst"] in ("ok", "note")
    host.inside.sysctl("net.ipv6.conf.all.forwarding", 0)
    assert host.doctor()["taken"][1] == "IPv6: none"
    if (Path("/proc/sys/net/ipv6/conf/lo") / "force_forwarding").exists():
        host.inside.sysctl("net.ipv6.conf.eth1.force_forwarding", 1)
        assert host.doctor()["taken"][1] == "IPv6 " + one.format("eth1")
        host.inside.sysctl("net.ipv6.conf.eth1.force_forwarding", 0)
    host.inside.sysctl("net.ipv4.ip_forward", 0)
    host.inside.sysctl("net.ipv6.conf.all.forwarding", 0)
    told = host.doctor("--bypass", "nftables")
    assert told["taken"] == ["IPv4: none", "IPv6: none"] and told["verdict"] == "refused, because of: forwarding"


def test_settings_are_followed(host):
    host.inside.sysctl("net.ipv4.conf.eth0.rp_filter", 1)
    host.inside.sysctl("net.ipv4.conf.eth1.rp_filter", 2)
    for scope in ("all", "eth1"):
        host.inside.sysctl(f"net.ipv4.conf.{scope}.send_redirects", 0)
    host.inside.sysctl("net.ipv4.conf.eth0.accept_local", 1)
    told = host.doctor()
    found = [(rule["kind"], rule["action"], rule["message"].split(":")[0]) for rule in told["rules"]]
    assert found == [
        ("reverse-path", "follow", "IPv4 sources received on eth0 pass a strict reverse-path test (rp_filter = 1)"),
        (
            "reverse-path",
            "stay",
            "IPv4 packets received on eth0 from own addresses of this machine stay with the kernel (accept_local = 1)",
        ),
        ("reverse-path", "follow", "IPv4 sources received on eth1 pass a loose reverse-path test (rp_filter = 2)"),
        ("redirects", "follow", "no ICMP redirects are sent to hosts at eth1"),
    ]
    # The larger one of both values counts.
    host.inside.sysctl("net.ipv4.conf.all.rp_filter", 2)
    modes = [message for _, message in host.rules("reverse-path") if "loose" in message]
    assert len(modes) == 2


def test_chains_without_effect_are_nothing(host):
    host.nft(
        "add table inet f",
        FORWARD % "accept",
        "add rule inet f forward counter log accept",
        "add chain inet f input { type filter hook input priority 0; policy drop; }",
        "add rule inet f input tcp dport 22 accept",
        "add table inet off { flags dormant; }",
        "add chain inet off forward { type filter hook forward priority 0; policy drop; }",
        "add table ip raw",
        "add chain ip raw prerouting { type filter hook prerouting priority -300; }",
        "add rule ip raw prerouting notrack",
        "add table netdev n",
        "add chain netdev n i { type filter hook ingress device lo priority 0; }",
        "add rule netdev n i drop",
        "add table arp a",
        "add chain arp a input { type filter hook input priority 0; policy drop; }",
    )
    assert host.doctor()["rules"] == []


def check(directory, lua):
    """Checks that filters are ones that a configuration may have."""
    ports = "".join(f'turnpike.port "eth{number}" {{ device = "net_null{number}", filter = {{ outward = "forward" }} }}\n' for number in (0, 1))
    file = directory / "router.lua"
    file.write_text(f'local turnpike = require "turnpike"\n{lua}{ports}')
    done = subprocess.run([binary(), "check", "--offline", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_simple_forward_chains_become_filters(host, tmp_path):
    host.nft(
        "add table inet f",
        FORWARD % "drop",
        "add set inet f web { type inet_service; elements = { 80, 443 }; }",
        'add rule inet f forward iifname "eth0" oifname "eth1" tcp dport @web accept',
        "add rule inet f forward ip saddr 10.0.0.0/8 udp dport 53 accept",
        "add rule inet f forward ip6 daddr 2001:db8::/32 accept",
        "add chain inet f lan",
        "add rule inet f lan icmp type echo-request accept",
        "add rule inet f forward jump lan",
        "add chain inet f input { type filter hook input priority 0; policy drop; }",
        "add rule inet f input ct state established accept",
    )
    told = host.doctor()
    assert told["verdict"] == "accelerated"
    assert [action for action, _ in host.rules("nftables")] == ["follow"]
    (finding,) = [one for one in told["findings"] if one["check"] == "filters"]
    assert finding["found"] == "5 rules of forward chains would be followed as filters:"
    lua = told["filters"]["lua"]
    assert '{ proto = "tcp", to_port = { 80, 443 }, interface = "eth0", action = "accept" },' in lua
    assert '{ from = "10.0.0.0/8", proto = "udp", to_port = 53, action = "accept" },' in lua
    assert "to-router" not in lua and "established" not in lua
    places = [(place["filter"], place["outward"]) for place in told["filters"]["places"]]
    assert places == [("forward-eth1", "eth1"), ("forward", None)]
    check(tmp_path, lua)
    assert [action for action, _ in host.rules("nftables", "--bypass", "nftables")] == ["bypass"]
    # Connections of the machine's own are tracked, which nothing that is forwarded depends on.
    assert host.rules("conntrack")[0][0] == "note"


@pytest.mark.parametrize(
    ("rule", "named", "because"),
    [
        ("ct state established accept", 2, "it depends on connections"),
        ("limit rate 5/second burst 7 packets drop", 2, "it depends on numbers of packets"),
        ("meta mark set 0x00000001", 2, "it changes packets or sets"),
        ("meta mark 0x00000001 drop", 1, '"meta mark" has no counterpart'),
    ],
)
def test_other_forward_chains_are_refused_and_bypassed(host, rule, named, because):
    host.nft("add table inet f", FORWARD % "drop", "add rule inet f forward ip daddr 10.0.0.1 accept", f"add rule inet f forward {rule}")
    told = host.doctor()
    (refused,) = [one for one in told["rules"] if one["action"] == "refuse"]
    has = "nftables table inet f chain forward (hook forward, priority 0, policy drop) has 2 rules"
    assert refused["message"].startswith(f"{has} that accelerated packets would bypass: rule {named} ")
    flows = "accelerate established flows only (--flows), " if rule.startswith("ct") else ""
    assert refused["way_out"] == f"{flows}remove them, or say --bypass nftables"
    texts = [each["text"] for each in refused["place"]["chain"]["rules"]]
    assert texts == ["ip daddr 10.0.0.1 accept", rule]
    assert because in told["why_not"][0]["reason"], told["why_not"]
    assert told["verdict"] == "refused, because of: nftables"
    told = host.doctor("--bypass", "nftables")
    assert told["verdict"] == "accelerated; bypassed as requested: nftables" and told["worst"] == "warning"


def test_rules_are_found_without_the_program(host):
    """The kernel is asked, not the program; only the texts are missing without it."""
    host.nft("add table ip f", "add chain ip f c { type filter hook prerouting priority -150; }", "add rule ip f c ip daddr 10.0.0.1 drop")
    hidden = ["unshare", "-m", "sh", "-c", 'for nft in /usr/sbin/nft /sbin/nft; do mount --bind /dev/null $nft; done; exec "$0" "$@"']
    (message,) = [message for action, message in host.rules("nftables", wrap=hidden) if action == "refuse"]
    assert 'rule 1 "payload cmp immediate"' in message, message
    (message,) = [message for action, message in host.rules("nftables") if action == "refuse"]
    assert 'rule 1 "ip daddr 10.0.0.1 drop"' in message, message


def test_chains_of_interfaces_and_nat(host):
    host.nft(
        "add table netdev n",
        "add chain netdev n i { type filter hook ingress device eth0 priority 0; }",
        "add rule netdev n i drop",
        "add table ip nat",
        "add chain ip nat postrouting { type nat hook postrouting priority 100; }",
        'add rule ip nat postrouting oifname "eth1" masquerade',
    )
    told = host.doctor()
    refused = {one["kind"]: one["packets"] for one in told["rules"] if one["action"] == "refuse"}
    assert refused == {"nftables": {"received-on": ["eth0"]}, "nat": {"family": "ip4"}}
    assert host.doctor("--bypass", "nat,nftables")["verdict"] == "accelerated; bypassed as requested: nat, nftables"


def legacy(host, rule):
    done = host.inside.run("iptables-legacy", *rule.split(), check=False)
    if done.returncode != 0:
        pytest.skip(f"this kernel has no legacy iptables: {done.stdout}")


def test_legacy_iptables(host):
    legacy(host, "-A FORWARD -s 10.0.0.0/8 -p tcp --dport 25 -j DROP")
    told = host.doctor()
    assert told["verdict"] == "accelerated"
    assert '{ from = "10.0.0.0/8", proto = "tcp", to_port = 25, action = "drop" },' in told["filters"]["lua"]
    legacy(host, "-t nat -A POSTROUTING -o eth1 -j MASQUERADE")
    assert [host.rules(kind)[0][0] for kind in ("iptables", "nat")] == ["refuse", "refuse"]
    assert [host.rules(kind, "--bypass", "nat")[0][0] for kind in ("iptables", "nat")] == ["follow", "bypass"]
    assert host.doctor("--bypass", "nat")["filters"]["rules"] == 1
    assert [host.rules(kind, "--bypass", "nat,iptables")[0][0] for kind in ("iptables", "nat")] == ["bypass", "bypass"]
    # One is bypassed, and the other still translated.
    host.nft("add table ip f", "add chain ip f forward { type filter hook forward priority 0; }", "add rule ip f forward meta mark 1 drop")
    words = "--bypass", "nat,nftables"
    assert [host.rules(kind, *words)[0][0] for kind in ("iptables", "nftables")] == ["follow", "bypass"]
    host.nft("delete table ip f")
    legacy(host, "-t nat -F")
    legacy(host, "-A FORWARD -m conntrack --ctstate INVALID -j DROP")
    ((action, message),) = host.rules("iptables")
    assert action == "refuse" and message == (
        "legacy iptables table filter chain FORWARD has 2 rules that accelerated packets would bypass: rule 2 "
        '"-A FORWARD -m conntrack --ctstate INVALID -j DROP"'
    )
    hidden = ["unshare", "-m", "sh", "-c", 'mount --bind /dev/null /usr/sbin/iptables-legacy-save; exec "$0" "$@"']
    assert host.rules("iptables", wrap=hidden)[0][0] == "refuse"


def test_routing_rules(host):
    for rule in (
        "ip rule add from 10.0.0.0/8 lookup 100 pref 100",
        "ip rule add to 10.1.0.0/16 lookup 100 pref 101",
        "ip -6 rule add fwmark 1 lookup 100 pref 102",
        "ip rule add iif lo lookup 100 pref 103",
        "ip rule add iif eth0 lookup 100 pref 104",
        "ip rule add lookup 100 pref 105",
        "ip rule add not iif lo lookup 100 pref 106",
    ):
        host.run(rule)
    actions = [(message.split()[2], action) for action, message in host.rules("rules")]
    expected = [("100", "refuse"), ("101", "stay"), ("103", "note"), ("104", "refuse"), ("105", "follow"), ("106", "refuse"), ("102", "refuse")]
    assert actions == expected
    host.run("ip rule del pref 32766")
    assert any("no rule that leads to table main" in message for _, message in host.rules("rules"))


def test_routes_for_a_part_of_the_packets(host):
    host.run("ip addr add 10.9.0.1/24 dev eth1")
    host.run("ip route add 10.5.0.0/16 dev eth1 tos 8")
    host.run("ip route add 10.6.0.0/16 encap ip id 1 dst 10.9.0.3 dev eth1")
    # Routes by nexthop objects, where the kernel describes them by the object's number alone.
    host.inside.sysctl("net.ipv4.nexthop_compat_mode", 0)
    host.run("ip nexthop add id 7 encap ip id 3 dst 10.9.0.3 dev eth1")
    host.run("ip nexthop add id 8 group 7")
    host.run("ip route add 10.7.0.0/16 nhid 8")
    told = host.doctor()
    found = [(rule["kind"], rule["action"], rule["packets"]) for rule in told["rules"]]
    assert found == [("routes", "stay", {"to": ["10.5.0.0/16"]}), ("encapsulation", "stay", {"to": ["10.6.0.0/16", "10.7.0.0/16"]})]


def test_traffic_control(host):
    host.run("tc qdisc add dev eth0 root handle 1: tbf rate 1mbit burst 32k latency 10ms")
    host.run("tc qdisc add dev eth1 root pfifo_fast")
    host.run("tc qdisc add dev eth1 clsact")
    found = host.rules("tc")
    assert found == [("refuse", "qdisc tbf 1: of eth0 would not see accelerated packets, which leave behind it")]
    host.run("tc filter add dev eth1 ingress pref 5 u32 match u32 0 0 action mirred egress redirect dev eth0")
    message = "tc filter u32, preference 5 at ingress of eth1 would not see accelerated packets"
    assert ("refuse", message) in host.rules("tc")


@pytest.mark.parametrize("place", ["xdp", "tcx ingress", "tcx egress"])
def test_programs_of_somebody_else(host, place):
    try:
        with attached(host.inside, "eth1", place):
            ((action, message),) = host.rules(place.split()[0].replace("tcx", "tc"))
    except OSError as error:
        pytest.skip(f"this kernel has no such links: {error}")
    assert action == "refuse"
    expected = "eth1 has an XDP program already: number " if place == "xdp" else 'tc tcx program '
    assert message.startswith(expected), message
    if place != "xdp":
        assert f'"somebody" at {place.split()[1]} of eth1' in message
    assert host.rules("xdp") == host.rules("tc") == []


def test_ipsec_policies(host):
    template = "tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel"
    host.run(f"ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir out {template}")
    host.run(f"ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir in {template}")
    ((action, message),) = host.rules("xfrm")
    assert action == "stay" and "dir out" in message
    host.run("ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd action block priority 7")
    assert [action for action, _ in host.rules("xfrm")] == ["stay", "refuse"]
    assert [action for action, _ in host.rules("xfrm", "--bypass", "xfrm")] == ["stay", "bypass"]


def test_devices_above_and_packet_sockets(host):
    host.run("ip link add m0 link eth0 type macvlan")
    host.run("ip link add p0 link eth1 type macvlan mode passthru")
    assert [action for action, _ in host.rules("macvlan")] == ["stay", "refuse"]
    assert host.rules("taps") == []
    with host.inside.entered():
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    with tap:
        tap.bind(("eth0", 3))
        ((action, message),) = host.rules("taps")
    assert action == "note" and "tcpdump" in message and "on eth0 does" in message


def test_an_unprivileged_user_learns_what_is_not_seen(host):
    host.nft("add table inet f", FORWARD % "drop")
    host.run("ip rule add from 10.0.0.0/8 lookup 100")
    wrap = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    told = host.doctor(wrap=wrap)
    unseen = {one["kind"]: one["why"] for one in told["unseen"]}
    assert unseen["nftables"] == unseen["xfrm"] == "needs CAP_NET_ADMIN"
    assert told["verdict"] == "refused, because of: rules"
    host.run("ip rule del from 10.0.0.0/8 lookup 100")
    told = host.doctor(wrap=wrap)
    assert told["verdict"].startswith("unknown: this user cannot examine: ") and "nftables" in told["verdict"]


def test_bad_words(host):
    def said(*argv):
        done = subprocess.run(host.command(*argv), capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        return done.stderr

    assert 'bypass "xdp": no kind of rule that can be bypassed; known: bridge, ' in said("eth0", "--bypass", "xdp")
    assert "required" in said()

#!/usr/bin/env python3
"""Records the dumps that the unit tests read, in a network namespace of its own: `unshare -n ./record.py`, as root.

Each file has the messages of one dump without those that end it, as the kernel sent them.
"""

import socket
import struct
import subprocess
from pathlib import Path

SETUP = """
ip link set lo up
ip link add v0 type veth peer name v1
ip link add w0 type veth peer name w1
ip link add br0 type bridge
ip link set v1 master br0
ip link add m0 link v0 type macvlan
ip link set v0 up
ip link set w0 up
ip link set w1 up
ip addr add 10.9.0.1/24 dev w1
tc qdisc add dev v0 root handle 1: htb default 1
tc qdisc add dev w0 clsact
tc filter add dev w0 egress pref 7 u32 match u32 0 0 action mirred egress redirect dev v1
ip rule add from 10.0.0.0/8 to 10.7.0.0/16 table 100 pref 100
ip rule add not from 10.1.0.0/16 iif v0 fwmark 1/0xf dsfield 8 ipproto tcp dport 22-23 uidrange 0-9 table 300 suppress_prefixlength 0 pref 200
ip rule add oif v0 blackhole pref 300
ip rule add from all lookup 50 pref 400
ip rule add from all goto 32766 pref 500
ip rule add l3mdev pref 1000
ip -6 rule add to 2001:db8::/32 prohibit pref 600
ip route add 10.4.0.0/16 dev w1
ip route add 10.5.0.0/16 dev w1 tos 8
ip route add 10.6.0.0/16 encap ip id 1 dst 10.9.0.3 dev w1
ip route add 10.8.0.0/16 nexthop via 10.9.0.4 nexthop via 10.9.0.5 encap ip id 2 dst 10.9.0.3
ip -6 route add 2001:db8::/32 encap seg6 mode encap segs fc00::1 dev w1
ip -6 route add 2001:db8:1::/48 from 2001:db8:2::/48 dev w1
ip nexthop add id 7 encap ip id 3 dst 10.9.0.3 dev w1
ip nexthop add id 8 group 7
ip route add 10.10.0.0/16 nhid 8
ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir fwd tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel
ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir out action block priority 9
ip xfrm policy add src 2001:db8::/32 dst ::/0 proto udp dir out tmpl proto esp mode transport
ip xfrm policy add src 10.0.0.0/8 dst 10.2.0.0/16 dir in tmpl proto esp mode transport
ip xfrm policy add src 10.0.0.0/8 dst 10.3.0.0/16 dir out if_id 5 tmpl proto esp mode transport
"""

RULES = """
table inet filter {
    set bad { type ipv4_addr; flags dynamic; }
    chain lan { tcp dport 25 reject; ct state established accept; }
    chain forward {
        type filter hook forward priority 0; policy drop;
        ip daddr 10.0.0.0/8 tcp dport 22 accept
        iifname "v0" jump lan
        tcp dport vmap { 80 : accept, 81 : drop }
        limit rate 5/second counter accept
        meta mark set 1
        tcp flags syn tcp option maxseg size set 1400
        add @bad { ip saddr }
    }
    chain input { type filter hook input priority 0; policy drop; ct state established accept; }
    chain harmless { type filter hook forward priority 10; counter log accept; }
}
table ip nat {
    chain postrouting { type nat hook postrouting priority 100; oifname "w0" masquerade; }
}
table netdev n {
    chain ingress { type filter hook ingress devices = { v0, w0 } priority 0; ip saddr 10.0.0.1 drop; }
    chain other { type filter hook ingress device w1 priority 5; drop; }
}
table bridge b {
    chain forward { type filter hook forward priority 0; drop; }
}
"""

ROUTE, XFRM, NETFILTER = 0, 6, 12
DONE = 3


def dump(name, protocol, kind, fixed):
    """Writes the messages of a dump."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as connection:
        connection.bind((0, 0))
        connection.send(struct.pack("=IHHII", 16 + len(fixed), kind, 0x301, 1, 0) + fixed)
        messages = b""
        while True:
            datagram = connection.recv(1 << 16)
            while datagram:
                length, received = struct.unpack_from("=IH", datagram)
                if received <= DONE:
                    (Path(__file__).parent / f"{name}.bin").write_bytes(messages)
                    return
                messages += datagram[: (length + 3) & ~3]
                datagram = datagram[(length + 3) & ~3 :]


for line in SETUP.strip().splitlines():
    subprocess.run(line.split(), check=True)
subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
index = socket.if_nametoindex("w0")
dump("links", ROUTE, 18, bytes(16))
for family, number in (("4", 2), ("6", 10)):
    dump(f"rules{family}", ROUTE, 34, bytes([number]) + bytes(11))
    dump(f"routes{family}", ROUTE, 26, bytes([number]) + bytes(11))
dump("nexthops", ROUTE, 106, bytes(8))
dump("qdiscs", ROUTE, 38, bytes(20))
dump("filters", ROUTE, 46, struct.pack("=IiIII", 0, index, 0, 0xFFFFFFF3, 0))
dump("policies", XFRM, 0x15, bytes(64))
dump("chains", NETFILTER, 10 << 8 | 4, bytes(4))
dump("nftables", NETFILTER, 10 << 8 | 7, bytes(4))

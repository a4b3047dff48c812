#!/usr/bin/env python3
"""Records messages of connection tracking that the unit tests read, as root on a kernel that has it (that of Debian 12), in
network namespaces of its own: `./record_connections.py DIRECTORY`.

`connections.bin` has all connections, `connection_events.bin` announcements of changes and ends.
"""

import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

SETUP = """
modprobe -a nf_conntrack_netlink nft_masq nft_chain_nat nft_ct nft_redir
ip netns add recorda
ip netns add recordb
ip link add a0 type veth peer name eth0 netns recorda
ip link add b0 type veth peer name eth0 netns recordb
ip addr add 10.0.1.1/24 dev a0
ip addr add 10.0.2.1/24 dev b0
ip addr add fd00:1::1/64 dev a0 nodad
ip addr add fd00:2::1/64 dev b0 nodad
ip link set a0 up
ip link set b0 up
ip -n recorda addr add 10.0.1.2/24 dev eth0
ip -n recorda addr add fd00:1::2/64 dev eth0 nodad
ip -n recorda link set eth0 up
ip -n recorda route add default via 10.0.1.1
ip -n recorda route add default via fd00:1::1
ip -n recordb addr add 10.0.2.2/24 dev eth0
ip -n recordb addr add fd00:2::2/64 dev eth0 nodad
ip -n recordb link set eth0 up
ip -n recordb route add default via fd00:2::1
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
"""

RULES = """
table ip nat {
    chain prerouting {
        type nat hook prerouting priority -100
        iifname "a0" tcp dport 81 dnat to 10.0.2.2:80
    }
    chain postrouting {
        type nat hook postrouting priority 100
        oifname "b0" masquerade random
    }
}
table inet other {
    chain prerouting {
        type filter hook prerouting priority -300
        udp dport 99 ct zone set 7
    }
    chain forward {
        type filter hook forward priority 0
        tcp dport 9 drop
    }
}
"""

# Connections from host a to host b, that stay open until a line comes.
CLIENT = """
import socket, sys
connections = []
for address, port in [("10.0.2.2", 80), ("10.0.1.1", 81), ("fd00:2::2", 80)]:
    connections.append(socket.create_connection((address, port)))
    connections[-1].send(b"x")
lost = socket.socket()
lost.setblocking(False)
lost.connect_ex(("10.0.2.2", 9))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
single = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
single.sendto(b"x", ("10.0.2.2", 54))
for _ in range(40):
    for port in (53, 99):
        datagrams.sendto(b"x", ("10.0.2.2", port))
    import time; time.sleep(0.1)
print("open", flush=True)
sys.stdin.readline()
connections[0].close()
time.sleep(1)
"""

SERVER = """
import socket, threading
def tcp(family, address):
    listener = socket.create_server((address, 80), family=family)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=lambda c=connection: (c.recv(9), c.recv(9), c.close())).start()
def udp(port):
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("10.0.2.2", port))
    while True:
        data, peer = datagrams.recvfrom(9)
        datagrams.sendto(data, peer)
for target, words in ((tcp, (socket.AF_INET, "10.0.2.2")), (tcp, (socket.AF_INET6, "fd00:2::2")), (udp, (53,)), (udp, (99,))):
    threading.Thread(target=target, args=words).start()
"""


def messages(datagram):
    """Yields messages of a datagram: their kinds and bytes."""
    while datagram:
        length, kind = struct.unpack_from("=IH", datagram)
        yield kind, datagram[: (length + 3) & ~3]
        datagram = datagram[(length + 3) & ~3 :]


def dump():
    """The messages of all connections."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as connection:
        connection.send(struct.pack("=IHHIIBBH", 20, 0x101, 0x301, 1, 0, 0, 0, 0))
        all = b""
        while True:
            for kind, message in messages(connection.recv(1 << 16)):
                if kind == 3:
                    return all
                all += message


def main():
    for line in SETUP.strip().splitlines():
        subprocess.run(line.split(), check=True)
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    events.bind((0, 6))
    inside = ["ip", "netns", "exec"]
    server = subprocess.Popen([*inside, "recordb", sys.executable, "-c", SERVER])
    time.sleep(1)
    client = subprocess.Popen([*inside, "recorda", sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "open\n"
    directory = Path(sys.argv[1])
    (directory / "connections.bin").write_bytes(dump())
    client.communicate("\n")
    # An end, of all connections of UDP.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as connection:
        connection.send(struct.pack("=IHHIIBBH", 20, 0x102, 5, 1, 0, 0, 0, 0))
        connection.recv(1 << 16)
    events.setblocking(False)
    heard = b""
    try:
        while True:
            heard += events.recv(1 << 16)
    except BlockingIOError:
        (directory / "connection_events.bin").write_bytes(heard)
    server.kill()


main()

"""VLANs on emulated NICs, byte for byte, and beside the VLAN devices of a Linux kernel."""

import pytest

from lib.packets import ethernet, forwarded, ipv4, pattern, tagged, udp, unpadded, untagged
from lib.raw import RawPort

from .lib.hosts import Inside, Outside
from .lib.nic import KINDS

SERVICE = 0x88A8
HOST_MACS = ["02:00:00:00:01:02", "02:00:00:00:02:02"]

# Networks of the NIC at each side, and their tags.
NETWORKS = {"1": [], "10": [(0x8100, 10)], "13": [(SERVICE, 300), (0x8100, 7)]}


def vlans(side):
    return f"""
turnpike.vlan "port{side}.10" {{ parent = "port{side}", id = 10, address = "10.{side}.10.1/24" }}
turnpike.vlan "s{side}"       {{ parent = "port{side}", id = 300, protocol = "802.1ad" }}
turnpike.vlan "port{side}.7"  {{ parent = "s{side}", id = 7, mtu = 1492, address = "10.{side}.13.1/24" }}
"""


def config(*devices):
    lines = ['local turnpike = require "turnpike"']
    for side, device in enumerate(devices):
        lines.append(f'turnpike.port "port{side}" {{ device = "{device}", address = "10.{side}.1.1/24" }}')
        lines.append(vlans(side))
        for network, name in (("1", f"port{side}"), ("10", f"port{side}.10"), ("13", f"port{side}.7")):
            lines.append(f'turnpike.neighbour "10.{side}.{network}.2" {{ port = "{name}", mac = "{HOST_MACS[side]}" }}')
    return "\n".join(lines) + '\nturnpike.forwarders { cores = "1" }\n'


def with_tags(frame, tags):
    for protocol, vlan in reversed(tags):
        frame = tagged(frame, vlan, protocol)
    return frame


@pytest.mark.parametrize("kind", KINDS)
def test_tagged_frames_go_both_ways_by_every_nic(machine, kind):
    nics = [machine.nic(kind, index) for index in (0, 1)]
    outside = [Outside(machine, nic, side + 1) for side, nic in enumerate(nics)]
    router = machine.router(config(*(host.device for host in outside)))
    wires = [RawPort(nic.host, "eth0") for nic in nics]
    try:
        macs = [port["mac"] for port in router.show("ports")]
        for side in (0, 1):
            other = 1 - side
            for source, in_tags in NETWORKS.items():
                for destination, out_tags in NETWORKS.items():
                    a, b = f"10.{side}.{source}.2", f"10.{other}.{destination}.2"
                    frames = [ethernet(macs[side], HOST_MACS[side], 0x0800, ipv4(a, b, udp(a, b, 1, 2, pattern(length))))
                              for length in (18, 700, 1472 if len(in_tags + out_tags) < 2 else 1464)]
                    wires[other].drain()
                    wires[side].send(*(with_tags(frame, in_tags) for frame in frames))
                    arrived = wires[other].expect(
                        len(frames), lambda frame: untagged(frame)[0][12:14] == b"\x08\x00", 20)
                    seen = [untagged(frame) for frame in arrived]
                    expected = [forwarded(frame, macs[other], HOST_MACS[other]) for frame in frames]
                    assert [unpadded(frame) for frame, _ in seen] == expected, (kind, source, destination)
                    tags = [[(protocol, vlan) for protocol, _, vlan in tags] for _, tags in seen]
                    assert tags == [out_tags] * len(frames), (kind, source, destination)
        router.counters()
        router.stop()
    finally:
        router.close()
        for wire in wires:
            wire.close()


# A Linux host's networks on one interface: name, parent, how it is made, network.
LINUX_VLANS = [
    ("eth0.10", "eth0", ["type", "vlan", "id", 10], "10"),
    ("eth0.s", "eth0", ["type", "vlan", "proto", "802.1ad", "id", 300], None),
    # Beyond its MTU a kernel interface takes one 802.1Q tag, and none by a packet socket if the outer is a service tag.
    ("eth0.7", "eth0.s", ["mtu", 1492, "type", "vlan", "id", 7], "13"),
]


@pytest.mark.parametrize("driver", ["af_xdp", "af_packet"])
def test_hosts_with_vlan_devices_speak_through_the_router(machine, driver):
    """Ping of every size that fits, and a TCP stream, whose frames have partial checksums and are super-frames."""
    machine.modprobe("8021q")
    hosts = [Inside(machine, side + 1, driver) for side in (0, 1)]
    try:
        for side, host in enumerate(hosts):
            # veth hands the tags of its peer's VLAN devices over beside the frames, where XDP does not see them.
            host.run("ethtool", "-K", "eth0", "tx-vlan-hw-insert", "off", "tx-vlan-stag-hw-insert", "off")
            for name, parent, words, network in LINUX_VLANS:
                host.run("ip", "link", "add", name, "link", parent, *map(str, words))
                host.run("ip", "link", "set", name, "up")
                if network:
                    host.run("ip", "address", "add", f"10.{side}.{network}.2/24", "dev", name)
            for network in ("10", "13"):
                # Replies take the way of the requests.
                device = "eth0.10" if network == "10" else "eth0.7"
                host.run("ip", "route", "add", f"10.{1 - side}.{network}.0/24", "via", f"10.{side}.{network}.1", "dev", device)
        lines = ['local turnpike = require "turnpike"']
        for side, host in enumerate(hosts):
            lines += [f'turnpike.port "port{side}" {{ device = "{host.device}", driver = "{driver}" }}', vlans(side)]
        router = machine.router("\n".join(lines) + '\nturnpike.forwarders { cores = "1" }\n')
        try:
            for network, size in (("10", 1472), ("13", 1464)):
                target = f"10.1.{network}.2"
                for data in (56, size):
                    hosts[0].run("ping", "-c", "2", "-i", "0.2", "-W", "10", "-M", "do", "-s", str(data), target)
                hosts[1].run("sh", "-c", f"timeout 60 python3 -c '{SERVER}' {target} >/dev/null 2>&1 &")
                done = hosts[0].run("timeout", "60", "python3", "-c", CLIENT, target)
                assert done.stdout.strip() == str(BYTES), done
            router.counters()
            router.stop()
        finally:
            router.close()
    finally:
        for host in hosts:
            host.close()


BYTES = 300_000
SERVER = (
    "import socket, sys; s = socket.create_server((sys.argv[1], 5001)); c = s.accept()[0]; n = 0\n"
    "while data := c.recv(65536): n += len(data)\n"
    "c.send(str(n).encode())"
)
CLIENT = f"""
import socket, sys, time
for _ in range(50):
    try:
        c = socket.create_connection((sys.argv[1], 5001), 5)
        break
    except OSError:
        time.sleep(0.2)
c.settimeout(50)
c.sendall(bytes({BYTES}))
c.shutdown(socket.SHUT_WR)
print(c.recv(100).decode())
"""

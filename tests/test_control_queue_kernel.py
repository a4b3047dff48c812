"""A control queue of a kernel interface: an XDP program takes control traffic before it reaches the ring of an AF_XDP
socket, so that it arrives while a forwarder is kept from its queues and that ring overflows.
"""

import contextlib
import json
import os

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from lib.apply import apply, plan
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import held_thread, veth, wait_for
from lib.packets import forwarded, is_announcement, tagged, untagged
from lib.router import Change
from test_control_queue import (
    LEFT, LINK, ON, A, B, arp_request, arrive, connecting, control, flows, held_forwarder, is_reply, packets, reasons,
    tcp_of,
)
from test_overload import SLOW, Mixture

# More than an AF_XDP socket and its buffers hold.
TOO_MANY = 8000

OSPF = bytes(Ether(src=HOST_A_MAC, dst="01:00:5e:00:00:05") / IP(src=A, dst="224.0.0.5", proto=89, ttl=1)
             / Raw(b"\x02\x01" + bytes(42)))
TRANSIT = bytes(LINK / IP(src=A, dst=B) / UDP(sport=5, dport=9) / Raw(b"a flow"))


def ports(settings="", right="control_queue = false"):
    return f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "tp-left", address = {{ "{LEFT}/24", "fd00:1::1/64" }} {settings} }}
turnpike.port "right" {{ device = "tp-right", address = {{ "10.0.2.1/24", "fd00:2::1/64" }}, {right} }}
{STATIC_NEIGHBOURS}"""


def start(lab, config=ON, settings="", host=False, **options):
    """A router by AF_XDP; with `host`, the kernel of another namespace has its addresses."""
    kernel = lab.namespace("kernel", quiet=True) if host else None
    if host:
        settings += f', host = {{ netns = "{kernel.name}" }}'
    wires = Wires(lab, config, ports=ports(settings), calm=True, **options)
    wires.kernel = kernel
    if host:
        kernel.run("ip", "neigh", "replace", A, "lladdr", HOST_A_MAC, "dev", "left", "nud", "permanent")
    if host and config:
        assert wait_for(lambda: f"BGP to {LEFT}" in {rule["what"] for rule in control(wires.router)["rules"]}, 10)
    if config:
        assert wait_for(lambda: control(wires.router)["rules"] and not reasons(wires.router), 10), reasons(wires.router)
    return wires


def xdp_of(namespace, interface="tp-left"):
    """The kernel's report of the interface's XDP program, if it has one."""
    (link,) = json.loads(namespace.run("ip", "-j", "-d", "link", "show", interface).stdout)
    return link.get("xdp")


def test_the_router_answers_while_its_forwarder_is_held(lab):
    wires = start(lab)
    shown = control(wires.router)
    assert (shown["rx"], shown["tx"], shown["sender"]) == (1, 1, 1)
    assert [port.get("control_queue") for port in wires.router.show("ports")] == [1, None]
    assert "CONTROL QUEUE" in wires.router.command("show", "ports").stdout
    (data, own) = wires.router.show("forwarders")["forwarders"]
    assert (data["rx"], own["rx"], own["tx"]) == (["left:0", "right:0"], ["left:1"], ["left:1"])
    wires.drain()
    # BGP of other routers, an address other than an own one, and echo requests do not use its queue.
    transit = [bytes(LINK / IP(src=A, dst=B) / TCP(sport=40000, dport=179) / Raw(b"for another router")),
               bytes(LINK / IP(src=A, dst=B) / TCP(sport=179, dport=40000) / Raw(b"and its answer")), TRANSIT]
    with held_forwarder(wires.router):
        wires.left.send(*transit)
        for _ in range(5):
            wires.left.send(arp_request())
            arrive(wires.left, 1, is_reply)
        assert packets(wires.router) == {"ARP": 5}
    expected = [forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in transit]
    assert wires.right.expect(len(transit)) == expected
    (_, own) = wires.router.show("forwarders")["forwarders"]
    assert (packets(wires.router), own["packets"]) == ({"ARP": 5}, 5)
    wires.router.stop()
    assert xdp_of(wires.inside) is None


VLANS = """
turnpike.vrf "blue" {}
turnpike.vlan "left.5" { parent = "left", id = 5, address = "10.0.5.1/24", vrf = "blue" }
turnpike.vlan "s"      { parent = "left", id = 300, protocol = "802.1ad" }
turnpike.vlan "s.7"    { parent = "s", id = 7, address = "10.0.7.1/24" }
"""


def test_control_traffic_of_vlans_arrives_while_the_forwarder_is_held(lab):
    """Rules are for the packets behind one tag or two; the control forwarder removes the tags as the others do."""
    wires = start(lab, ON + VLANS)
    router = wires.router
    for own in ("10.0.5.1", "10.0.7.1"):
        assert wait_for(lambda own=own: f"BGP to {own}" in {rule["what"] for rule in control(router)["rules"]}, 10)
    wires.drain()
    request = lambda network: bytes(  # noqa: E731
        Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff")
        / ARP(hwsrc=HOST_A_MAC, psrc=f"10.0.{network}.2", pdst=f"10.0.{network}.1"))
    bgp = lambda network: bytes(  # noqa: E731
        LINK / IP(src=f"10.0.{network}.2", dst=f"10.0.{network}.1") / TCP(sport=40000, dport=179, flags="S"))
    tags = {5: lambda frame: tagged(frame, 5), 7: lambda frame: tagged(tagged(frame, 7), 300, 0x88A8)}
    with held_forwarder(router):
        for network, with_tags in tags.items():
            wires.left.send(with_tags(request(network)), with_tags(bgp(network)))
            (reply,) = wires.left.expect(1, lambda frame: is_reply(untagged(frame)[0]), 10)
            assert with_tags(untagged(reply)[0]) == reply, "with the tags of the request"
        wanted = {"ARP": 2, "BGP to 10.0.5.1": 1, "BGP to 10.0.7.1": 1}
        assert wait_for(lambda: packets(router) == wanted, 10), packets(router)
    router.counters()
    router.stop()


def test_what_its_own_ring_has_no_room_for_is_counted(lab):
    wires = start(lab)
    router = wires.router
    before = router.show("ports")[0]
    with held_thread(router.thread("forwarder-1")):
        wires.left.send(*[OSPF] * 3000)
        assert wait_for(lambda: packets(router).get("OSPF to 224.0.0.0/24") == 3000, 10), packets(router)
    ended = lambda: router.show("ports")[0]  # noqa: E731
    gone = lambda port: port["rx_packets"] + port["rx_missed"] - before["rx_packets"]  # noqa: E731
    assert wait_for(lambda: gone(ended()) == 3000, 10), ended()
    assert ended()["rx_missed"] >= 1000
    router.stop()


def test_every_form_of_rule_finds_its_packets_and_no_others(lab):
    wires = start(lab)
    router = wires.router
    own6, link6 = "fd00:1::1", "fe80::99"
    six = lambda to, layer: bytes(LINK / IPv6(src="fd00:1::2", dst=to, hlim=255) / layer)
    solicit = ICMPv6ND_NS(tgt=own6) / ICMPv6NDOptSrcLLAddr(lladdr=HOST_A_MAC)
    tcp = lambda to, **fields: bytes(LINK / IP(src=A, dst=to) / TCP(flags="A", **fields))
    with_options = bytes(LINK / IP(src=A, dst=LEFT, options=[b"\x01\x01\x01\x00"]) / TCP(flags="A", dport=22))
    frames = {
        f"BGP to {LEFT}": [tcp(LEFT, dport=179)],
        f"BGP replies to {LEFT}": [tcp(LEFT, sport=179, dport=40000)],
        f"ssh to {LEFT}": [tcp(LEFT, dport=22), with_options],
        f"BFD (UDP 3784) to {LEFT}": [bytes(LINK / IP(src=A, dst=LEFT, ttl=255) / UDP(dport=3784) / Raw(bytes(24)))],
        "OSPF to 224.0.0.0/24": [OSPF, bytes(LINK / IP(src=A, dst="224.0.0.6", proto=89, frag=1) / Raw(bytes(8)))],
        f"OSPF to {LEFT}": [bytes(LINK / IP(src=A, dst=LEFT, proto=89) / Raw(bytes(44)))],
        "VRRP to 224.0.0.0/24": [bytes(LINK / IP(src=A, dst="224.0.0.18", proto=112) / Raw(bytes(20)))],
        f"BGP to {own6}": [six(own6, TCP(flags="A", dport=179))],
        "ssh to fe80::/10": [six(link6, TCP(flags="A", dport=22))],
        f"neighbour solicitations to {own6}": [six(own6, solicit)],
        "neighbour solicitations to ff02::/16": [six("ff02::1:ff00:1", solicit)],
        "LLDP": [bytes(Ether(src=HOST_A_MAC, dst="01:80:c2:00:00:0e", type=0x88CC) / Raw(bytes(50)))],
    }
    others = [
        tcp("10.0.1.3", dport=179), tcp(B, dport=22), six("fd00:1::3", TCP(flags="A", dport=179)),
        bytes(LINK / IP(src=A, dst="224.0.1.5", proto=89) / Raw(bytes(44))),
        bytes(LINK / IP(src=A, dst=LEFT, frag=3) / UDP(dport=3784) / Raw(bytes(24))),
        bytes(LINK / IP(src=A, dst=LEFT) / UDP(dport=3785 + 256) / Raw(bytes(24))),
        six(own6, ICMPv6EchoRequest()),
        OSPF[:33],
    ]
    change = Change(router)
    wires.left.send(*(frame for kind in frames.values() for frame in kind), *others)
    wanted = {what: len(kind) for what, kind in frames.items()}
    assert wait_for(lambda: packets(router) == wanted, 10), (packets(router), wanted)
    # All of them have been received, each on one queue.
    total = sum(wanted.values()) + len(others)
    assert change(received=total)["received"] == total
    assert packets(router) == wanted
    router.stop()


def to_host(router):
    return router.show("counters")["to_host"]


def flood(wires):
    """More than the socket holds."""
    for _ in range(TOO_MANY // 50):
        wires.left.send(*[TRANSIT] * 50)


def arrives_again(wires):
    """Waits until there is room for frames again: all earlier ones were forwarded or lost."""
    last = bytes(LINK / IP(src=A, dst=B) / UDP(sport=6, dport=9) / Raw(b"the last"))
    wanted = forwarded(last, RIGHT_MAC, HOST_B_MAC)

    def once():
        wires.left.send(last)
        return wanted in wires.right.receive(0.05)

    return wait_for(once, 10)


def test_control_traffic_is_not_lost_behind_a_flood(lab):
    wires = start(lab, host=True)
    heard = to_host(wires.router)
    with held_forwarder(wires.router):
        flood(wires)
        wires.left.send(*[OSPF] * 20)
        assert wait_for(lambda: packets(wires.router).get("OSPF to 224.0.0.0/24") == 20, 10), packets(wires.router)
        assert wait_for(lambda: to_host(wires.router) == heard + 20, 10), wires.router.counters()
    wires.router.stop()


def test_without_its_queue_it_is_lost(lab):
    wires = start(lab, config="", host=True)
    heard = to_host(wires.router)
    with held_forwarder(wires.router):
        flood(wires)
        wires.left.send(*[OSPF] * 20)
    assert arrives_again(wires)
    assert to_host(wires.router) == heard
    wires.router.stop()


def test_a_slow_step_loses_transit_and_no_control_traffic(lab):
    wires = start(lab, ON.replace("{", "{ shed = false,") + SLOW, host=True)
    router = wires.router
    heard = to_host(router)
    missed = lambda: sum(port["rx_missed"] for port in router.show("ports"))
    mixture = Mixture(wires.left)
    mixture.start()
    try:
        assert wait_for(lambda: missed() > 0, 60), router.show("ports")
        sent = 0
        while sent < 200:
            wires.left.send(*[OSPF] * 10)
            sent += 10
            assert wait_for(lambda: packets(router).get("OSPF to 224.0.0.0/24") == sent, 10)
        assert wait_for(lambda: to_host(router) == heard + sent, 20), router.counters()
        before = missed()
        assert wait_for(lambda: missed() > before, 60)
    finally:
        mixture.stop()
    router.stop()


def test_replies_to_the_host_are_learned(lab):
    wires = start(lab, "turnpike.forwarders { control_queue = true, learned_flows = 2 }\n", host=True)
    router, kernel = wires.router, wires.kernel
    wires.drain()
    with connecting(kernel, 40001):
        assert wait_for(lambda: flows(router) == {f"tcp {LEFT}:40001 > {A}:443"}, 10)
        arrive(wires.left, 1, lambda frame: tcp_of(frame) is not None)
        with held_forwarder(router):
            wires.left.send(bytes(LINK / IP(src=A, dst=LEFT) / TCP(sport=443, dport=40001, flags="SA", ack=1)))
            arrive(wires.left, 1, lambda frame: tcp_of(frame) is not None and "R" in tcp_of(frame).flags)
    router.stop()


def test_it_is_turned_on_and_off_while_the_router_runs(lab):
    wires = start(lab, config="")
    router, text = wires.router, wires.router.config.read_text()
    assert "control_queue = true } is not set" in control(router)["why"]
    own = xdp_of(wires.inside)
    for _ in range(2):
        planned, _ = plan(router, text + ON)
        assert "forwarders: control_queue" in json.dumps(planned)
        apply(router, text + ON)
        assert wait_for(lambda: control(router)["rules"] and not reasons(router), 10)
        assert (control(router)["rx"], control(router)["sender"]) == (1, 1)
        assert xdp_of(wires.inside)["prog"]["name"].startswith("turnpike_contr")
        wires.left.send(arp_request())
        arrive(wires.left, 1, is_reply)
        assert packets(router)["ARP"] == 1
        apply(router, text)
        assert ("rx" in control(router), control(router)["rules"]) == (False, [])
        assert xdp_of(wires.inside)["prog"]["name"] == own["prog"]["name"]
    router.stop()


def test_an_end_by_force_is_undone_by_the_next_router(lab):
    wires = start(lab)
    wires.router.kill()
    with contextlib.suppress(KeyError):
        assert xdp_of(wires.inside)["prog"]["name"].startswith("turnpike_contr")
    again = lab.router(wires.inside, ports())
    assert "was put back as it was before a router that was killed" in again.log()
    again.stop()
    assert xdp_of(wires.inside) is None


def test_packet_sockets_have_no_control_queue(lab):
    wires = Wires(lab, ON, ports=ports(', driver = "af_packet"', right="mtu = 1500"))
    left, right = control(wires.router), control(wires.router, "right")
    assert ("rx" in left, "rx" in right) == (False, True)
    assert "AF_XDP has a control queue" in left["why"]
    wires.router.stop()


def test_the_host_sees_control_traffic_once(lab):
    """The addresses are those of the router's own kernel, which would accept them from the port's interface as well."""
    wires = Wires(lab, ON, ports=ports(", host = true"), calm=True)
    assert wait_for(lambda: f"BGP to {LEFT}" in {rule["what"] for rule in control(wires.router)["rules"]}, 10)
    assert wait_for(lambda: not reasons(wires.router), 10)
    wires.inside.run("ip", "neigh", "replace", A, "lladdr", HOST_A_MAC, "dev", "left", "nud", "permanent")
    wires.drain()
    wires.left.send(bytes(LINK / IP(src=A, dst=LEFT) / TCP(sport=40000, dport=179, flags="S")))
    arrive(wires.left, 1, lambda frame: tcp_of(frame) is not None)
    # An answer of the other stack would leave before this one.
    wires.left.send(bytes(LINK / IP(src=A, dst=LEFT) / TCP(sport=40001, dport=179, flags="S")))
    answers = [tcp_of(frame).dport for frame in wires.left.receive(0.3) if tcp_of(frame) is not None]
    assert answers == [40001]
    wires.router.stop()


def test_an_interface_that_goes_and_comes_back_has_its_queue_again(lab):
    wires = start(lab, settings=', mac = "02:00:00:00:01:01"')
    router = wires.router
    link = lambda: {port["name"]: port["link"] for port in router.show("ports")}["left"]  # noqa: E731
    descriptors = lambda: len(os.listdir(f"/proc/{router.process.pid}/fd"))  # noqa: E731
    counts = []
    for _ in range(3):
        wires.inside.run("ip", "link", "delete", "tp-left")
        assert wait_for(lambda: link() == "gone", 10), router.log()
        assert xdp_of(wires.inside, "tp-right") is not None
        veth(wires.inside, "tp-left", wires.ns_left, "wire", LEFT_MAC, HOST_A_MAC, 1500)
        left = lab.raw(wires.ns_left, "wire", is_announcement)
        assert wait_for(lambda: link() == "up", 20), router.log()
        assert wait_for(lambda: control(router)["rules"] and not reasons(router), 10), control(router)
        left.send(arp_request())
        arrive(left, 1, is_reply)
        assert packets(router).get("ARP") == 1
        counts.append(descriptors())
    # The first time DPDK may take more pages, each of which has one.
    assert counts[2] <= counts[0] + 2, counts
    router.stop()

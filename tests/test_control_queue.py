"""A receive queue for control traffic: rules lead packets to it, a separate forwarder serves it, and packets of the
router itself leave by a separate transmit queue, regardless of the other forwarders.

The device is `flow_device/flow_device.c`, put in front of DPDK: it has an RSS table and rules that lead to queues.
"""

import contextlib
import json
import subprocess
import threading
import time

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from lib.apply import apply, plan
from lib.flood import Flood
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, STATIC_NEIGHBOURS, Wires
from lib.netns import held_thread, wait_for
from lib.packets import forwarded
from lib.router import Change
from test_hardware_filters import LIBRARY, Device

A, B, LEFT = "10.0.1.2", "10.0.2.2", "10.0.1.1"
LINK = Ether(src=HOST_A_MAC, dst=LEFT_MAC)
DEVICE = "net_af_packet0,iface=tp-left,qpairs=2"
ON = "turnpike.forwarders { control_queue = true }\n"
SERVED = ", rx_queues = 2"


def ports(settings="", device=DEVICE):
    return f"""
local turnpike = require "turnpike"
turnpike.port "left"  {{ device = "{device}", address = {{ "{LEFT}/24", "fd00:1::1/64" }} {settings} }}
turnpike.port "right" {{ device = "tp-right", control_queue = false, address = {{ "10.0.2.1/24", "fd00:2::1/64" }} }}
{STATIC_NEIGHBOURS}"""


def start(lab, directory, config=ON, settings="", calm=True, host=False, **options):
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is missing: run make {LIBRARY}")
    device = Device(directory)
    env = device.env(port="net_af_packet0", queues="1", **options)
    # The kernel behind this device is not kept quiet: it has no addresses where the router's host has them.
    kernel = lab.namespace("kernel", quiet=True) if host else None
    if host:
        settings += f', host = {{ netns = "{kernel.name}" }}'
    wires = Wires(lab, config, ports=ports(settings), calm=calm, env=env)
    wires.device, wires.kernel = device, kernel
    if host:
        # The kernel knows the neighbour, so that only the tested packets are on the wire.
        kernel.run("ip", "neigh", "replace", A, "lladdr", HOST_A_MAC, "dev", "left", "nud", "permanent")
        assert wait_for(lambda: f"BGP to {LEFT}" in {rule["what"] for rule in control(wires.router)["rules"]}, 10)
    return wires


@pytest.fixture
def wires(lab, tmp_path):
    wires = start(lab, tmp_path)
    yield wires
    wires.router.stop()
    wires.device.lines()


def control(router, port="left"):
    (shown,) = [one for one in router.show("control-queues") if one["port"] == port]
    return shown


def reasons(router):
    """Rules that the device does not hold, with the reasons."""
    return {rule["what"]: rule["why"] for rule in control(router)["rules"] if "why" in rule}


def packets(router):
    """Packets by rule, of the rules with any."""
    return {rule["what"]: rule["packets"] for rule in control(router)["rules"] if rule.get("packets")}


@contextlib.contextmanager
def held_forwarder(router):
    """Stops the forwarder of packets to be forwarded."""
    with held_thread(router.thread("forwarder-0")):
        yield


def arp_request():
    return bytes(Ether(src=HOST_A_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=HOST_A_MAC, psrc=A, pdst=LEFT))


def is_reply(frame):
    return frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\2"


def arrive(wire, count, match):
    """Waits until so many matching frames have arrived, and returns them."""
    frames = wire.expect(count, match)
    assert len(frames) == count
    return frames


def tcp_of(frame):
    packet = Ether(frame)
    return packet[TCP] if TCP in packet else None


def test_the_router_answers_while_its_forwarder_is_held(wires):
    shown = control(wires.router)
    assert (shown["rx"], shown["tx"], shown["sender"]) == (1, 1, 1)
    assert wait_for(lambda: not reasons(wires.router), 10), reasons(wires.router)
    (data, own) = wires.router.show("forwarders")["forwarders"]
    assert (data["rx"], own["rx"], own["control"]) == (["left:0", "right:0"], ["left:1"], True)
    assert own["tx"] == ["left:1"] and own["waiting"]["wait"] == "interrupt"
    wires.drain()
    # BGP of other routers, and flows enough that each queue in the table has some.
    transit = [bytes(LINK / IP(src=A, dst=B) / TCP(sport=40000, dport=179) / Raw(b"for another router")),
               bytes(LINK / IP(src=A, dst=B) / TCP(sport=179, dport=40000) / Raw(b"and its answer"))]
    transit += [bytes(LINK / IP(src=A, dst=B) / UDP(sport=port, dport=9) / Raw(b"a flow")) for port in range(64)]
    with held_forwarder(wires.router):
        # Packets to be forwarded wait for their forwarder, and do not use the other queue.
        wires.left.send(*transit)
        for _ in range(5):
            wires.left.send(arp_request())
            arrive(wires.left, 1, is_reply)
        assert packets(wires.router) == {"ARP": 5}
    expected = [forwarded(frame, RIGHT_MAC, HOST_B_MAC) for frame in transit]
    assert sorted(wires.right.expect(len(transit))) == sorted(expected)
    (_, own) = wires.router.show("forwarders")["forwarders"]
    assert (packets(wires.router), own["packets"]) == ({"ARP": 5}, 5)


def test_protocols_reach_the_kernel_and_it_answers_while_the_forwarder_is_held(lab, tmp_path):
    wires = start(lab, tmp_path, host=True)
    change = Change(wires.router)
    wires.drain()
    with held_forwarder(wires.router):
        for dport in (179, 22):
            wires.left.send(bytes(LINK / IP(src=A, dst=LEFT) / TCP(sport=40000, dport=dport, flags="S")))
            # There is no listener: the kernel refuses.
            (frame,) = arrive(wires.left, 1, lambda frame: tcp_of(frame) is not None)
            assert (tcp_of(frame).sport, "R" in tcp_of(frame).flags) == (dport, True)
        bfd = bytes(LINK / IP(src=A, dst=LEFT, ttl=255) / UDP(sport=49152, dport=3784) / Raw(b"\x20" * 24))
        ospf = bytes(Ether(src=HOST_A_MAC, dst="01:00:5e:00:00:05") / IP(src=A, dst="224.0.0.5", proto=89, ttl=1)
                     / Raw(b"\x02\x01" + bytes(42)))
        wires.left.send(bfd, ospf)
        wanted = {f"BGP to {LEFT}": 1, f"ssh to {LEFT}": 1, f"BFD (UDP 3784) to {LEFT}": 1, "OSPF to 224.0.0.0/24": 1}
        assert wait_for(lambda: packets(wires.router) == wanted, 10), packets(wires.router)
    assert change(received=4)["received"] >= 4
    wires.router.stop()
    wires.device.lines()


CONNECT = """
import socket, sys
s = socket.socket()
s.bind((sys.argv[1], int(sys.argv[3])))
s.setblocking(False)
s.connect_ex((sys.argv[2], 443))
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def connecting(namespace, port):
    """A connection that the host opens from a port of its own."""
    client = namespace.spawn("python3", "-c", CONNECT, LEFT, A, port, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        client.stdout.readline()
        yield
    finally:
        client.kill()
        client.communicate()


def flows(router):
    return {flow["flow"] for flow in control(router)["flows"]}


def test_replies_to_the_host_are_learned(lab, tmp_path):
    limit = "turnpike.forwarders { control_queue = true, learned_flows = 2 }\n"
    wires = start(lab, tmp_path, limit, host=True)
    router, kernel = wires.router, wires.kernel
    wires.drain()

    def flow(port):
        return f"tcp {LEFT}:{port} > {A}:443"

    with connecting(kernel, 40001):
        assert wait_for(lambda: flows(router) == {flow(40001)}, 10)
        arrive(wires.left, 1, lambda frame: tcp_of(frame) is not None)
        with held_forwarder(router):
            # A reply to a segment that was never sent, which the kernel refuses: it arrived, and so did the reset.
            wires.left.send(bytes(LINK / IP(src=A, dst=LEFT) / TCP(sport=443, dport=40001, flags="SA", ack=1)))
            arrive(wires.left, 1, lambda frame: tcp_of(frame) is not None and "R" in tcp_of(frame).flags)
    # A forwarded flow is not one of the host's, regardless of its initiator.
    syn = bytes(LINK / IP(src=A, dst=B) / TCP(sport=40000, dport=443, flags="S"))
    wires.left.send(syn)
    assert wires.right.expect(1) == [forwarded(syn, RIGHT_MAC, HOST_B_MAC)]
    assert flows(router) == {flow(40001)}
    with connecting(kernel, 40002):
        assert wait_for(lambda: flows(router) == {flow(40001), flow(40002)}, 10)
    with connecting(kernel, 40003):
        assert wait_for(lambda: flow(40003) in flows(router), 10)
    shown = control(router)
    assert (len(shown["flows"]), shown["learned"], shown["displaced"]) == (2, 3, 1)
    held = len(wires.device.lines("lead")) - len(wires.device.lines("destroy"))
    apply(router, router.config.read_text().replace("learned_flows = 2", "learned_flows = 0"))
    assert wait_for(lambda: not control(router)["flows"], 10)
    assert len(wires.device.lines("lead")) - len(wires.device.lines("destroy")) == held - 2
    router.stop()
    wires.device.lines()


def test_it_is_turned_on_and_off_while_the_router_runs(lab, tmp_path):
    # The kernel distributes the interface's packets over two queues, regardless of the router's request: it serves
    # both.
    wires = start(lab, tmp_path, config="", settings=SERVED)
    router, text = wires.router, wires.router.config.read_text()
    with_queue = text.replace(SERVED, "") + ON
    there = bytes(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / IP(src=B, dst=A) / UDP(dport=9) / Raw(b"there and back"))

    def forwards():
        """Checks both directions, for any service of the ports."""
        back = bytes(LINK / IP(src=A, dst=B) / UDP(dport=9) / Raw(b"there and back"))
        wires.drain()
        wires.left.send(back)
        assert wires.right.expect(1) == [forwarded(back, RIGHT_MAC, HOST_B_MAC)]
        wires.right.send(there)
        assert wires.left.expect(1) == [forwarded(there, LEFT_MAC, HOST_A_MAC)]

    assert "control_queue = true } is not set" in control(router)["why"]
    for _ in range(2):
        forwards()
        planned, _ = plan(router, with_queue)
        assert "forwarders: control_queue" in json.dumps(planned)
        apply(router, with_queue)
        shown = control(router)
        assert (shown["rx"], shown["sender"], "why" in shown) == (1, 1, False)
        assert len(router.show("forwarders")["forwarders"]) == 2
        forwards()
        wires.left.send(arp_request())
        arrive(wires.left, 1, is_reply)
        assert packets(router) == {"ARP": 1}
        apply(router, text)
        shown = control(router)
        assert ("rx" in shown, shown["sender"], shown["rules"]) == (False, 0, [])
        assert len(router.show("forwarders")["forwarders"]) == 1
    forwards()
    assert router.counters()["dropped_total"] == 0
    # With the port, the device removed its rules.
    assert len(wires.device.lines("lead")) == len(wires.device.lines("destroy")) > 0
    router.stop()


def test_another_port_forwards_without_loss_meanwhile(lab, tmp_path):
    # The port on the right is not reopened, and forwarders are distributed anew: none of its packets is lost.
    wires = start(lab, tmp_path, config="")
    router, text = wires.router, wires.router.config.read_text()
    wires.drain()
    request = bytes(Ether(src=HOST_B_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=HOST_B_MAC, psrc=B, pdst="10.0.2.1"))
    for configuration in (text + ON, text):
        sent, stop = [0], threading.Event()

        def send():
            while not stop.is_set():
                wires.right.send(request)
                sent[0] += 1
                time.sleep(0.0005)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            apply(router, configuration)
        finally:
            stop.set()
            sender.join()
        arrive(wires.right, sent[0], is_reply)
    router.stop()
    wires.device.lines()


def test_a_port_that_is_opened_again_gets_its_rules(wires):
    router = wires.router
    before = len(wires.device.lines("lead"))
    apply(router, router.config.read_text().replace('"left"  {', '"left"  { mtu = 1400,'))
    assert wait_for(lambda: len(wires.device.lines("lead")) == 2 * before, 10)
    wires.left.send(arp_request())
    arrive(wires.left, 1, is_reply)
    assert packets(router) == {"ARP": 1}


@pytest.mark.parametrize("refused", ["ethertype", "ipv6", "all"])
def test_rules_that_the_device_refuses_are_shown_and_their_packets_come_by_the_others(lab, tmp_path, refused):
    wires = start(lab, tmp_path, refuse=refused)
    assert wait_for(lambda: not any("to be given" in why for why in reasons(wires.router).values()), 10)
    why = reasons(wires.router)
    said = {"ethertype": "Ethertypes are not supported", "ipv6": "IPv6 is not supported", "all": "no rule"}[refused]
    assert why and all(said in reason for reason in why.values())
    assert ("ARP" in why) == (refused != "ipv6") and ("BGP to fd00:1::1" in why) == (refused != "ethertype")
    wires.left.send(arp_request())
    arrive(wires.left, 1, is_reply)
    wires.router.stop()
    wires.device.lines()


def test_without_a_table_or_a_driver_forwarders_receive_control_traffic(lab, tmp_path):
    polling = 'turnpike.forwarders { control_queue = true, wait = "poll" }\n'
    wires = start(lab, tmp_path, polling, refuse="table")
    router = wires.router
    left, right = control(router), control(router, "right")
    assert "keeps its RSS table" in left["why"] and "control_queue = false" in right["why"]
    assert 'port "left": no receive queue for control traffic: the device keeps its RSS table' in router.log()
    # Its second receive queue is one of the forwarder's; what the router sends has a transmit queue of its own.
    (data, own) = router.show("forwarders")["forwarders"]
    assert (data["rx"], own["rx"], own["tx"]) == (["left:0", "left:1", "right:0"], [], ["left:1"])
    assert (left["sender"], right["sender"]) == (1, 0)
    # It has no core of its own for polling.
    assert own["waiting"]["blocks"] > 0 and data["waiting"]["blocks"] == 0
    for _ in range(5):
        wires.left.send(arp_request())
        arrive(wires.left, 1, is_reply)
    router.stop()


MANY = 2000
OPEN_MANY = """
import socket, sys, time
for port in range(20000, 20000 + int(sys.argv[3])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((sys.argv[1], port))
    s.sendto(b"first", (sys.argv[2], 9))
    s.close()
    time.sleep(0.0002)
"""


def test_a_local_user_who_opens_many_flows_fills_neither_device_nor_router(lab, tmp_path):
    wires = start(lab, tmp_path, host=True)
    before = len(wires.device.lines("lead"))
    began = time.monotonic()
    user = wires.kernel.spawn("python3", "-c", OPEN_MANY, LEFT, A, MANY)
    while user.poll() is None:
        assert len(flows(wires.router)) <= 256
    assert user.returncode == 0
    # Most were not reported, and the others at their rate, with one second's worth at the beginning.
    assert wait_for(lambda: control(wires.router)["unlearned"] > MANY / 2, 10), control(wires.router)
    took = len(wires.device.lines("lead")) - before
    assert 64 <= took <= 64 * (time.monotonic() - began + 2)
    wires.router.stop()
    wires.device.lines()


@pytest.mark.flood
def test_a_flood_of_control_traffic_keeps_nobody_from_questions_and_other_ports(wires):
    request = bytes(Ether(src=HOST_B_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=HOST_B_MAC, psrc=B, pdst="10.0.2.1"))
    datagram = bytes(Ether(src=HOST_B_MAC, dst=RIGHT_MAC) / IP(src=B, dst=A) / UDP(dport=9) / Raw(b"through a flood"))
    wires.drain()
    flood = Flood(wires.ns_left, "wire", "requests", 200_000, 40_000, LEFT_MAC)
    try:
        assert wait_for(lambda: packets(wires.router).get("ARP", 0) > 1000, 10)
        for _ in range(10):
            assert wires.router.show("ports")
            wires.right.send(request, datagram)
            arrive(wires.right, 1, is_reply)
        assert flood.is_running(), "the questions were asked behind the flood"
        arrive(wires.left, 10, lambda frame: frame == forwarded(datagram, LEFT_MAC, HOST_A_MAC))
    finally:
        flood.stop()

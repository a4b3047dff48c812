"""An attacker on the link: frames of one kind from ever new senders, at any rate.

`Flood` runs this file as a program of its own in the attacker's namespace, so that it shares neither
interpreter nor namespace with the test:

    python flood.py INTERFACE KIND COUNT RATE ROUTER_MAC SEED

It prints `begun` when its socket is open, and the number of frames that were sent when it has ended.
"""

import errno
import random
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

# Longest time in seconds of a query under a flood, on a machine that does three other things.
PATIENCE = 3.0

# The networks that the senders pretend to be in: those of a port with 10.9.0.1/16 and fd00:9::1/64.
ROUTER_V4, ROUTER_V6 = "10.9.0.1", "fd00:9::1"
NETWORK_V6 = socket.inet_pton(socket.AF_INET6, "fd00:9::")[:8]


def _sum(data):
    """The ones' complement sum of 16-bit words."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _icmp6(mac_to, mac_from, source, destination, message, hop_limit=255):
    """A frame with an ICMPv6 message, its checksum right."""
    pseudo = source + destination + struct.pack("!IHH", len(message), 0, 58)
    checksum = 0xFFFF ^ _sum(pseudo + message)
    message = message[:2] + struct.pack("!H", checksum) + message[4:]
    header = struct.pack("!IHBB", 6 << 28, len(message), 58, hop_limit)
    return mac_to + mac_from + b"\x86\xdd" + header + source + destination + message


def _sender(chance):
    """The MAC of an unknown host."""
    return b"\x02" + chance.randbytes(5)


def solicitations(chance, router_mac):
    """Valid neighbour solicitations for the router, each from another on-link address and MAC."""
    target = socket.inet_pton(socket.AF_INET6, ROUTER_V6)
    group = bytes.fromhex("ff0200000000000000000001ff") + target[13:]
    while True:
        mac = _sender(chance)
        message = bytes([135, 0, 0, 0, 0, 0, 0, 0]) + target + b"\x01\x01" + mac
        source = NETWORK_V6 + chance.randbytes(8)
        yield _icmp6(b"\x33\x33" + group[12:], mac, source, group, message)


def requests(chance, router_mac):
    """ARP requests for the router's address, each from another on-link address and MAC."""
    target = socket.inet_aton(ROUTER_V4)
    while True:
        mac = _sender(chance)
        source = bytes([10, 9]) + struct.pack("!H", chance.randrange(0x0100, 0xFF00))
        yield (b"\xff" * 6 + mac + b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01"
               + mac + source + bytes(6) + target)


def sweeps(chance, router_mac):
    """Datagrams from one host to ever new hosts of the attacker's own network: the router has to resolve each."""
    source = NETWORK_V6 + bytes(7) + b"\x02"
    while True:
        destination = NETWORK_V6 + chance.randbytes(8)
        payload = struct.pack("!HHHH", 1000, 2000, 8, 0)
        checksum = 0xFFFF ^ _sum(source + destination + struct.pack("!IHH", 8, 0, 17) + payload)
        payload = payload[:6] + struct.pack("!H", checksum or 0xFFFF)
        header = struct.pack("!IHBB", 6 << 28, len(payload), 17, 64)
        yield router_mac + _sender(chance) + b"\x86\xdd" + header + source + destination + payload


def joins(chance, router_mac):
    """Multicast listener reports (RFC 2710), each for another group."""
    while True:
        mac = _sender(chance)
        source = bytes.fromhex("fe80000000000000") + chance.randbytes(8)
        group = bytes.fromhex("ff050000000000000000") + chance.randbytes(6)
        message = bytes([131, 0, 0, 0, 0, 0, 0, 0]) + group
        yield _icmp6(b"\x33\x33" + group[12:], mac, source, group, message, hop_limit=1)


KINDS = {kind.__name__: kind for kind in (solicitations, requests, sweeps, joins)}


class Flood:
    """A running flood; ends by itself after `count` frames, or by `stop`."""

    def __init__(self, namespace, interface, kind, count, rate, router_mac="02:00:00:00:09:01", seed=1):
        assert kind in KINDS, kind
        self.process = namespace.spawn(
            sys.executable, Path(__file__), interface, kind, count, rate, router_mac, seed,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "begun\n"

    def is_running(self):
        """Returns true while frames are still to be sent."""
        return self.process.poll() is None

    def finish(self, timeout=300):
        """Waits for its end; returns the number of frames sent."""
        return int(self.process.communicate(timeout=timeout)[0])

    def stop(self):
        """Ends it immediately."""
        self.process.kill()
        self.process.communicate()


def _send(wire, frame):
    while True:
        try:
            return wire.send(frame)
        except OSError as error:
            # The interface's queue is full.
            if error.errno != errno.ENOBUFS:
                raise
            time.sleep(0.0005)


def main(interface, kind, count, rate, router_mac, seed):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    wire.bind((interface, 0))
    frames = KINDS[kind](random.Random(int(seed)), bytes.fromhex(router_mac.replace(":", "")))
    print("begun", flush=True)
    begin = time.monotonic()
    for sent in range(int(count)):
        # In pieces of 32, so that a slow machine sleeps rarely.
        ahead = sent / float(rate) - (time.monotonic() - begin) if sent % 32 == 0 else 0
        if ahead > 0:
            time.sleep(ahead)
        _send(wire, next(frames))
    print(int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])

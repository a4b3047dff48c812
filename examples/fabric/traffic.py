#!/usr/bin/env python3
"""Numbered UDP datagrams, and an anycast service; each is a process of its own, so that nothing else slows it.

    traffic.py send RATE FLOWS ADDRESS…   sends until SIGTERM: FLOWS source ports to each address in turn, RATE a second
                                          together; prints {"sent": …, "flows": …}
    traffic.py receive                    receives until SIGTERM; prints {"ranges": [[first, last], …], "twice": …}
    traffic.py serve NAME ADDRESS…        answers every datagram to the addresses with its name
    traffic.py ask COUNT ADDRESS          asks by COUNT flows; prints the number of answers by name
"""

import collections
import json
import select
import signal
import socket
import struct
import sys
import time

PORT, SERVICE = 40000, 5353
_RCVBUFFORCE = 33


def _family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _running():
    """True until SIGTERM."""
    state = [True]
    signal.signal(signal.SIGTERM, lambda *_: state.clear())
    return state


def send(rate, flows, *addresses):
    """The sender. The flow of a number is its remainder by the number of flows; flows of the addresses take turns."""
    rate, targets = float(rate), []
    for _ in range(int(flows)):
        for address in addresses:
            opened = socket.socket(_family(address), socket.SOCK_DGRAM)
            opened.connect((address, PORT))
            targets.append(opened)
    running = _running()
    print("begun", flush=True)
    number, start = 0, time.monotonic()
    while running:
        # Datagrams that are due, so that a sender that was not scheduled catches up.
        due = int((time.monotonic() - start) * rate) + 1
        while number < due and running:
            try:
                targets[number % len(targets)].send(struct.pack("!Q", number).ljust(64, b"."))
            except ConnectionRefusedError:
                continue
            except OSError:
                # The host has no route: the datagram is lost.
                pass
            number += 1
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
    print(json.dumps({"sent": number, "flows": len(targets)}))


def receive():
    """The receiver. It ends once half a second has passed without a datagram."""
    opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 256 << 20)
    opened.bind(("::", PORT))
    running, numbers, twice = _running(), set(), 0
    print("begun", flush=True)
    while select.select([opened], [], [], 0.5)[0] or running:
        opened.setblocking(False)
        try:
            while True:
                number = struct.unpack("!Q", opened.recv(64)[:8])[0]
                twice += number in numbers
                numbers.add(number)
        except BlockingIOError:
            pass
    print(json.dumps({"ranges": _ranges(sorted(numbers)), "twice": twice}))


def _ranges(numbers):
    ranges = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def serve(name, *addresses):
    """The service. Its sockets have its addresses, which answers have as their source."""
    listening = [socket.socket(_family(address), socket.SOCK_DGRAM) for address in addresses]
    for opened, address in zip(listening, addresses):
        opened.bind((address, SERVICE))
    print("begun", flush=True)
    while True:
        for ready in select.select(listening, [], [])[0]:
            ready.sendto(name.encode(), ready.recvfrom(64)[1])


def ask(count, address):
    """Clients of the service."""
    names = collections.Counter()
    for _ in range(int(count)):
        with socket.socket(_family(address), socket.SOCK_DGRAM) as opened:
            opened.settimeout(2)
            opened.sendto(b"?", (address, SERVICE))
            try:
                names[opened.recv(64).decode()] += 1
            except TimeoutError:
                names["no answer"] += 1
    print(json.dumps(names))


if __name__ == "__main__":
    {"send": send, "receive": receive, "serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])

#!/usr/bin/env python3
"""Loss of flows when a port of a static bond loses its link: a numbered stream through a router in network namespaces.

    TURNPIKE=target/release/turnpike sudo -E .venv/bin/python bench/bond_failover.py

Prints the loss of the flows of the lost port as time, and that of all others, which must be none.
"""

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lib.lab import Lab  # noqa: E402
from test_bond import FLOWS, Bonded, bond, flow, number_of, spread  # noqa: E402

ROUNDS = 5
# Rounds of a packet of each flow in a second.
RATE = 100


def measure():
    """The packets that the worst flow of the lost port lost, and those that all flows of the other lost."""
    lab = Lab()
    try:
        bonded = Bonded(lab, bond("static"))
        bonded.wait_active("a", "b")
        ways = spread(bonded)
        bonded.drain()
        seen = {number: set() for number in range(FLOWS)}
        ended = threading.Event()

        def collect(wire):
            while not ended.is_set():
                frame = wire._next(0.05)
                if frame is not None and frame[12:14] == b"\x08\x00":
                    number, sequence = number_of(frame)
                    seen[number].add(sequence)

        threads = [threading.Thread(target=collect, args=(wire,)) for wire in bonded.wires.values()]
        for thread in threads:
            thread.start()
        begin, sent = time.monotonic(), 0
        while sent < 3 * RATE:
            if sent == RATE:
                threading.Thread(target=bonded.down, args=("a",)).start()
            bonded.right.send(*(flow(number, sent) for number in range(FLOWS)))
            sent += 1
            time.sleep(max(0, begin + sent / RATE - time.monotonic()))
        time.sleep(0.5)
        ended.set()
        for thread in threads:
            thread.join()
        lost = {number: sent - len(seen[number]) for number in range(FLOWS)}
        moved = [number for number, way in ways.items() if way == "a"]
        others = sum(count for number, count in lost.items() if number not in moved)
        return max(lost[number] for number in moved), others
    finally:
        lab.close()


def main():
    """Measures and prints."""
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    for _ in range(ROUNDS):
        lost, others = measure()
        print(f"flows of the lost port: {1000 * lost / RATE:.0f} ms ({lost} packets); others: {others} packets")


if __name__ == "__main__":
    main()

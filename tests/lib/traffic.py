"""A stream of numbered packets through a router, and the packets that arrive, with times.

The sender is a process of its own, so that whatever the test does meanwhile does not slow it:

    python traffic.py PORT RATE ADDRESS…        (addresses from stdin with `-`)
"""

import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

_SO_TIMESTAMPNS = 35
_SO_RCVBUFFORCE = 33
_PORT = 40000


class Stream:
    """Sends UDP datagrams to the addresses in turn, `rate` a second together, until stopped."""

    def __init__(self, namespace, addresses, rate=1000, port=_PORT):
        self._process = namespace.spawn(
            sys.executable, Path(__file__).resolve(), port, rate, "-",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self._process.stdin.write("\n".join(addresses) + "\n")
        self._process.stdin.close()
        self._process.stdin = None
        # A stream that is stopped earlier has no number to report.
        assert self._process.stdout.readline() == "begun\n"

    def stop(self):
        """Ends it and returns the number of datagrams sent."""
        self._process.terminate()
        said = self._process.communicate(timeout=10)[0]
        return int(said)


class Sink:
    """Receives the packets that arrive in a namespace at the streams' port, of either family."""

    def __init__(self, namespace, port=_PORT):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 512 << 20)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.bind(("::", port))
        self._socket.setblocking(False)
        self._arrived = []
        # Sending times of the packets that have arrived, in seconds, by number.
        self.sent = {}

    def arrived(self, settle=0.3):
        """The packets that have arrived once no more arrive for `settle` seconds: a list of (number, time of reception
        in seconds). To be called after the stream has been stopped."""
        quiet = time.monotonic() + settle
        while time.monotonic() < quiet:
            if self.read():
                quiet = time.monotonic() + settle
            else:
                time.sleep(0.01)
        return self._arrived

    def wait(self, count=1, seconds=10):
        """Waits until at least `count` more have arrived, while the stream continues."""
        goal = len(self._arrived) + count
        deadline = time.monotonic() + seconds
        while len(self._arrived) < goal and time.monotonic() < deadline:
            self.read() or time.sleep(0.01)
        return len(self._arrived) >= goal

    def read(self):
        """Reads all waiting packets, of which the socket has room for a million; returns their number."""
        before = len(self._arrived)
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(64, 128)
            except BlockingIOError:
                return len(self._arrived) - before
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
            number, sent = struct.unpack("!QQ", data[:16])
            self._arrived.append((number, seconds + nanoseconds / 1e9))
            self.sent[number] = sent / 1e9

    def close(self):
        """Closes the socket."""
        self._socket.close()


def gets_through(source, target, address, seconds=10, port=_PORT):
    """Returns true if a packet from one namespace to the address arrives in the other."""
    sink = Sink(target, port)
    try:
        stream = Stream(source, [address], rate=50, port=port)
        arrived = sink.wait(1, seconds)
        stream.stop()
        return arrived
    finally:
        sink.close()


def lost(sent, *sinks):
    """The numbers that arrived at no sink, in order; raises if one arrived twice."""
    numbers = [number for sink in sinks for number, _ in sink.arrived()]
    assert len(numbers) == len(set(numbers)), "packets arrived twice"
    return sorted(set(range(sent)) - set(numbers))


def longest_gap(*sinks):
    """The longest time, in seconds, in which no packet arrived at any sink."""
    times = sorted(when for sink in sinks for _, when in sink.arrived())
    return max(b - a for a, b in zip(times, times[1:]))


def outage(sent, *sinks):
    """The time, in seconds, in which packets were sent that arrived nowhere: from the last sent before the first lost
    one to the first sent after the last lost one; 0 without loss."""
    missing = lost(sent, *sinks)
    if not missing:
        return 0.0
    when = {number: at for sink in sinks for number, at in sink.sent.items()}
    before = max((n for n in when if n < missing[0]), default=missing[0])
    after = min((n for n in when if n > missing[-1]), default=missing[-1])
    return when[after] - when[before]


def main():
    """The sender."""
    import signal

    port, rate = int(sys.argv[1]), float(sys.argv[2])
    addresses = sys.argv[3:] if sys.argv[3] != "-" else sys.stdin.read().split()
    sockets = {
        ":": socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        ".": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    }
    targets = [(sockets[":" if ":" in address else "."], (address, port)) for address in addresses]
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    print("begun", flush=True)
    number, start = 0, time.monotonic()
    while running:
        # Packets due by now, so that a sender that was not scheduled catches up.
        due = int((time.monotonic() - start) * rate) + 1
        while number < due and running:
            target_socket, target = targets[number % len(targets)]
            try:
                target_socket.sendto(struct.pack("!QQ", number, time.time_ns()).ljust(26, b"."), target)
            except (BlockingIOError, ConnectionRefusedError):
                continue
            number += 1
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
    print(number)


if __name__ == "__main__":
    main()


def late(numbers):
    """The number of reordered packets by RFC 4737 3.3: those below the highest that has arrived."""
    expected, count = 0, 0
    for number in numbers:
        count += number < expected
        expected = max(expected, number + 1)
    return count

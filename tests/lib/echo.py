"""Conversations through a router: a server that sends everything back, and clients that count what comes back.

    python echo.py serve PORT
    python echo.py talk tcp|udp ADDRESS PORT RATE

The client sends numbered messages, `rate` a second, until it is stopped, closes its connection, and reports.
"""

import json
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

_LENGTH = 64
# For which an end waits for the other's last messages.
_PATIENCE = 10


class Server:
    """Sends back what it receives by TCP and UDP at a port, of both families."""

    def __init__(self, namespace, port):
        self._process = _start(namespace, "serve", port)
        assert self._process.stdout.readline() == "begun\n"

    def close(self):
        """Ends it; returns the addresses of its clients, as it saw them, in order."""
        self._process.terminate()
        return [tuple(json.loads(line)) for line in self._process.communicate(timeout=30)[0].splitlines()]


class Client:
    """A conversation with a server."""

    def __init__(self, namespace, kind, address, port, rate=50):
        self._process = _start(namespace, "talk", kind, address, port, rate)

    def is_begun(self, seconds=20):
        """Returns true when the first message has come back, false after the time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(seconds)) and self._process.stdout.readline() == "begun\n"

    def stop(self):
        """Ends it: the numbers of messages `sent` and that came `back`, and, of TCP, whether both ends have `closed`."""
        self._process.terminate()
        return json.loads(self._process.communicate(timeout=2 * _PATIENCE + 10)[0].splitlines()[-1])

    def kill(self):
        """Ends it at once, without a report."""
        self._process.kill()
        self._process.communicate()

    def reset(self):
        """Ends it at once by a reset of its connection."""
        self._process.send_signal(signal.SIGUSR1)
        self._process.communicate(timeout=10)


def _start(namespace, *words):
    return namespace.spawn(sys.executable, Path(__file__).resolve(), *words, stdout=subprocess.PIPE, text=True)


def _serve(port):
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    # Answers come from the address that was asked.
    datagrams.bind(("::", port))
    for one in (listener, datagrams):
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
    print("begun", flush=True)
    peers = set()
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                one, peer = listener.accept()
                selector.register(one, selectors.EVENT_READ)
                print(json.dumps(["tcp", *peer[:2]]), flush=True)
            elif key.fileobj is datagrams:
                data, peer = datagrams.recvfrom(2048)
                datagrams.sendto(data, peer)
                if peer not in peers:
                    peers.add(peer)
                    print(json.dumps(["udp", *peer[:2]]), flush=True)
            else:
                _give_back(selector, key.fileobj)


def _give_back(selector, connection):
    try:
        data = connection.recv(65536)
        if data:
            connection.sendall(data)
            return
    except OSError:
        pass
    selector.unregister(connection)
    connection.close()


def _talk(kind, address, port, rate):
    running, resets = [True], []
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    signal.signal(signal.SIGUSR1, lambda *_: resets.append(True))
    is_tcp = kind == "tcp"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    talk = socket.socket(family, socket.SOCK_STREAM if is_tcp else socket.SOCK_DGRAM)
    # A connection that is not answered is tried until the client is stopped.
    talk.settimeout(_PATIENCE)
    talk.connect((address, port))
    talk.setblocking(False)
    sent, back, said, start, rest = 0, [], False, time.monotonic(), b""
    while running or (time.monotonic() < end and len(back) < sent):
        if resets:
            talk.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            talk.close()
            return
        while running and sent < (time.monotonic() - start) * rate:
            try:
                talk.send(struct.pack("!Q", sent).ljust(_LENGTH, b"."))
            except (BlockingIOError, ConnectionRefusedError):
                break
            except OSError:
                # The network is being removed.
                return
            sent += 1
        try:
            while data := talk.recv(65536):
                rest += data
                while len(rest) >= _LENGTH:
                    back.append(struct.unpack("!Q", rest[:8])[0])
                    rest = rest[_LENGTH:]
        except (BlockingIOError, ConnectionRefusedError):
            pass
        if back and not said:
            print("begun", flush=True)
            said = True
        time.sleep(0.002)
        if running:
            end = time.monotonic() + (_PATIENCE if is_tcp else 2)
    closed = False
    if is_tcp:
        talk.settimeout(_PATIENCE)
        talk.shutdown(socket.SHUT_WR)
        try:
            closed = talk.recv(1) == b""
        except OSError:
            pass
    doubled = len(back) - len(set(back))
    report = {"sent": sent, "back": len(set(back)), "doubled": doubled, "ordered": back == sorted(back), "closed": closed}
    missing = sorted(set(range(sent)) - set(back))
    print(json.dumps(report | {"missing": missing}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(int(sys.argv[2]))
    _talk(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))

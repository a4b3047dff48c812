"""A BGP speaker that announces whole tables as fast as the peer accepts them.

It speaks BGP-4 (RFC 4271) with multiprotocol extensions (RFC 4760) and four-octet AS numbers
(RFC 6793), and no more: it opens a session, sends messages that were made before, answers
keepalives, and ignores all other messages. Routes of one origin AS share their attributes, and so
UPDATE messages, as in a real table.
"""

import ipaddress
import itertools
import random
import socket
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

from .router import binary

_MARKER = b"\xff" * 16
_OPEN, _UPDATE, _NOTIFICATION, _KEEPALIVE = 1, 2, 3, 4
_MAX_MESSAGE = 4096


def table(count):
    """A generated IPv4 table, always the same: a list of (prefix, origin AS)."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "table.dat"
        subprocess.run([binary(), "generate-table", str(count), file], check=True, capture_output=True)
        lines = file.read_text().splitlines()
    return [(prefix, int(origin)) for prefix, origin in (line.split("\t") for line in lines)]


def table6(count, seed=6):
    """The same for IPv6: /48s and /32s under 2a00::/12."""
    dice = random.Random(seed)
    prefixes = {}
    while len(prefixes) < count:
        bits = 0x2A0 << 36 | dice.getrandbits(36)
        length = 32 if dice.random() < 0.2 else 48
        value = bits >> (48 - length) << (128 - length)
        prefixes[f"{ipaddress.IPv6Address(value)}/{length}"] = dice.randrange(1, 65000)
    return list(prefixes.items())


def announcements(routes, local_as, next_hop):
    """The UPDATE messages that announce (prefix, origin AS) by a next hop, as one byte string."""
    by_origin = {}
    for prefix, origin in routes:
        by_origin.setdefault(origin, []).append(_nlri(prefix))
    messages = []
    for origin, nlri in by_origin.items():
        path = struct.pack("!BBII", 2, 2, local_as, origin)
        attributes = _attribute(0x40, 1, b"\0") + _attribute(0x40, 2, path)
        for group in _groups(nlri, _MAX_MESSAGE - 200):
            messages.append(_update(attributes, next_hop, group))
    return b"".join(messages)


def withdrawals(prefixes):
    """The UPDATE messages that withdraw prefixes of one family."""
    six = bool(prefixes) and ":" in prefixes[0]
    messages = []
    for group in _groups(map(_nlri, prefixes), _MAX_MESSAGE - 100):
        if six:
            attribute = _attribute(0x80, 15, b"\0\2\1" + group)
            body = struct.pack("!HH", 0, len(attribute)) + attribute
        else:
            body = struct.pack("!H", len(group)) + group + b"\0\0"
        messages.append(_message(_UPDATE, body))
    return b"".join(messages)


def _update(attributes, next_hop, nlri):
    hop = ipaddress.ip_address(next_hop)
    if hop.version == 4:
        attributes += _attribute(0x40, 3, hop.packed)
        return _message(_UPDATE, struct.pack("!HH", 0, len(attributes)) + attributes + nlri)
    reach = struct.pack("!HBB", 2, 1, 16) + hop.packed + b"\0" + nlri
    attributes += _attribute(0x80, 14, reach)
    return _message(_UPDATE, struct.pack("!HH", 0, len(attributes)) + attributes)


def _attribute(flags, kind, value):
    if len(value) > 255:
        return struct.pack("!BBH", flags | 0x10, kind, len(value)) + value
    return struct.pack("!BBB", flags, kind, len(value)) + value


def _nlri(prefix):
    address, length = prefix.split("/")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return bytes([int(length)]) + socket.inet_pton(family, address)[: (int(length) + 7) // 8]


def _groups(items, size):
    """Joins items to byte strings of at most `size`."""
    group, length = [], 0
    for item in items:
        if length + len(item) > size:
            yield b"".join(group)
            group, length = [], 0
        group.append(item)
        length += len(item)
    if group:
        yield b"".join(group)


def _message(kind, body=b""):
    return _MARKER + struct.pack("!HB", 19 + len(body), kind) + body


class Speaker:
    """A session from a namespace to a router's BGP daemon, established when this returns."""

    def __init__(self, namespace, peer, local_as, router_id):
        with namespace.entered():
            family = socket.AF_INET6 if ":" in peer else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.settimeout(60)
            self._socket.connect((peer, 179))
        capabilities = b"".join(
            struct.pack("!BBB", 2, 2 + len(value), kind) + bytes([len(value)]) + value
            for kind, value in ((1, b"\0\1\0\1"), (1, b"\0\2\0\1"), (65, struct.pack("!I", local_as)))
        )
        head = struct.pack("!BHH4sB", 4, local_as, 180, ipaddress.IPv4Address(router_id).packed, len(capabilities))
        self._socket.sendall(_message(_OPEN, head + capabilities))
        self._sending = threading.Lock()
        self._up = threading.Event()
        self._closed = threading.Event()
        self.error = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._up.wait(30):
            self.close()
            raise RuntimeError(f"no BGP session with {peer}: {self.error or 'no answer'}")
        self._socket.settimeout(None)

    def send(self, messages):
        """Sends prepared messages; returns when the peer's TCP has room for the last."""
        with self._sending:
            self._socket.sendall(messages)

    def close(self):
        """Ends the session."""
        self._closed.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
        self._reader.join(5)

    def _read(self):
        file = self._socket.makefile("rb")
        try:
            for _ in itertools.count():
                head = file.read(19)
                if len(head) < 19:
                    raise ConnectionError("the session was closed")
                length, kind = struct.unpack("!HB", head[16:])
                body = file.read(length - 19)
                if kind == _NOTIFICATION:
                    raise ConnectionError(f"notification {body[0]}/{body[1]}")
                if kind == _OPEN:
                    self._answer()
                if kind == _KEEPALIVE:
                    # One answer for each: the peer's timer is ours as well.
                    if self._up.is_set():
                        threading.Thread(target=self._answer, daemon=True).start()
                    self._up.set()
        except (OSError, ValueError) as error:
            if not self._closed.is_set():
                self.error = error

    def _answer(self):
        try:
            with self._sending:
                self._socket.sendall(_message(_KEEPALIVE))
        except OSError:
            pass

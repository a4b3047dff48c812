"""Collectors of sFlow and IPFIX: those of Debian's nfdump, and a socket whose datagrams are read by the specification."""

import contextlib
import ipaddress
import json
import shutil
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

from .netns import stop_process, wait_for


class Nfdump:
    """`nfcapd` (IPFIX) or `sfcapd` (sFlow) in a namespace, on a port of the loopback."""

    def __init__(self, namespace, program, port):
        self.directory = Path(tempfile.mkdtemp(prefix="turnpike-collector-"))
        self.log = open(self.directory / "log", "wb")
        (self.directory / "flows").mkdir()
        self.process = namespace.spawn(
            program, "-w", self.directory / "flows", "-b", "127.0.0.1", "-p", port, "-t", "3600",
            stdout=self.log, stderr=self.log)
        self.namespace, self.port = namespace, port
        assert wait_for(lambda: self.waiting() is not None, 10)

    def waiting(self):
        """Bytes that its socket holds; None without a socket."""
        lines = self.namespace.run("ss", "-Hnlu", f"sport = :{self.port}").stdout.split()
        return int(lines[1]) if lines else None

    def records(self):
        """Ends it, once it has read what has come, and returns its records."""
        assert wait_for(lambda: self.waiting() == 0, 20)
        stop_process(self.process, 20)
        self.log.flush()
        files = sorted(file for file in (self.directory / "flows").glob("nfcapd.2*"))
        assert files, (self.directory / "log").read_text()
        argv = ["nfdump", "-R", self.directory / "flows", "-o", "json"]
        return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    def close(self):
        """Removes what it has left."""
        stop_process(self.process)
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Sink:
    """A UDP socket in a namespace, on a port of the loopback."""

    def __init__(self, namespace, port, address="127.0.0.1"):
        with namespace.entered():
            self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, port))
        self.socket.settimeout(20)

    def receive(self):
        """The next datagram."""
        return self.socket.recv(65536)

    def drain(self):
        """All datagrams that are there."""
        found = []
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.socket.recv(65536))
        self.socket.settimeout(20)
        return found

    def close(self):
        """Closes the socket."""
        self.socket.close()


class _Words:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        found = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(">" + form)
        return found if len(found) > 1 else found[0]

    def opaque(self):
        length = self.take("I")
        found = self.data[self.at:self.at + length]
        self.at += (length + 3) // 4 * 4
        return found

    def address(self):
        kind = self.take("I")
        length = {0: 0, 1: 4, 2: 16}[kind]
        found = self.data[self.at:self.at + length]
        self.at += length
        return str(ipaddress.ip_address(found)) if length else None


def sflow(datagram):
    """The head of an sFlow datagram and its samples, by "sFlow Version 5"."""
    words = _Words(datagram)
    assert words.take("I") == 5
    head = {"agent": words.address(), "sub_agent": words.take("I"), "sequence": words.take("I"), "uptime": words.take("I")}
    samples = [_sample(words) for _ in range(words.take("I"))]
    assert words.at == len(datagram)
    return head, samples


def _sample(words):
    kind, data = words.take("I"), _Words(words.opaque())
    if kind == 1:
        names = ("sequence", "source", "rate", "pool", "drops", "input", "output")
    else:
        assert kind == 2, kind
        names = ("sequence", "source")
    found = {"kind": "flow" if kind == 1 else "counters", **dict(zip(names, data.take("I" * len(names))))}
    for _ in range(data.take("I")):
        record, of = data.take("I"), _Words(data.opaque())
        if record == 1 and kind == 1:
            protocol, length, stripped = of.take("III")
            assert (protocol, stripped) == (1, 4)
            found |= {"length": length, "header": of.opaque()}
        elif record == 1001:
            found |= dict(zip(("vlan", "priority", "out_vlan", "out_priority"), of.take("IIII")))
        elif record == 1002:
            found |= {"next_hop": of.address()} | dict(zip(("source_len", "destination_len"), of.take("II")))
        elif record == 1:
            names = ("index", "type", "speed", "direction", "status", "in_octets", "in_packets", "in_multicast", "in_broadcast",
                     "in_discards", "in_errors", "in_unknown", "out_octets", "out_packets", "out_multicast", "out_broadcast",
                     "out_discards", "out_errors", "promiscuous")
            found |= dict(zip(names, of.take("IIQIIQIIIIIIQIIIIII")))
        assert of.at == len(of.data), record
    assert data.at == len(data.data)
    return found

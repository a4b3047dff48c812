"""Scrapes of a router's metrics."""

import re
import socket

SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def get(connected, accept="", path="/metrics"):
    """Asks by a connected socket; returns the status line, the head and the body."""
    connected.settimeout(30)
    connected.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode())
    text = b""
    while data := connected.recv(1 << 16):
        text += data
    head, _, body = text.partition(b"\r\n\r\n")
    status, _, head = head.decode().partition("\r\n")
    return status, head.lower(), body.decode()


def unix(path):
    """A connection to a Unix socket."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(path))
    return stream


def tcp(namespace, port=9477):
    """A connection within a namespace."""
    with namespace.entered():
        stream = socket.socket()
    stream.connect(("127.0.0.1", port))
    return stream


class Samples(dict):
    """The samples of a scrape: values by name and labels."""

    def of(self, name, **labels):
        """The only sample with this name and these labels, among others."""
        (value,) = self.all(name, **labels)
        return value

    def all(self, name, **labels):
        """The values of all of them."""
        wanted = set(labels.items())
        return [value for (found, with_labels), value in self.items() if found == name and wanted <= with_labels]

    def values(self, name, label):
        """The values of a label."""
        return {dict(labels)[label] for found, labels in self if found == name and label in dict(labels)}

    def names(self):
        """The names of all samples."""
        return {name for name, _ in self}


def parse(text):
    """The samples of a text in either form; each may be there once only."""
    samples = Samples()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, text_value = SAMPLE.match(line).groups()
        # The forms write a bucket's bound as 1 and as 1.0.
        found = LABEL.findall(labels or "")
        key = name, frozenset((of, str(float(value)) if of == "le" else value) for of, value in found)
        assert key not in samples, line
        samples[key] = float(text_value)
    return samples


def scrape(connected, accept=""):
    """The samples of a scrape."""
    status, _, body = get(connected, accept)
    assert status == "HTTP/1.1 200 OK", status
    return parse(body)

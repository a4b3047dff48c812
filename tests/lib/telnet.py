"""A telnet client that does nothing by itself."""

import re
import socket
import time


class Telnet:
    """A connection to a router's telnet interface, from within its namespace."""

    def __init__(self, namespace, port=2323, receive_buffer=None):
        with namespace.entered():
            self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.text = b""

    def send(self, data):
        """Sends bytes, or a line."""
        self.socket.sendall(data if isinstance(data, bytes) else data.encode() + b"\r\n")

    def read_until(self, pattern, seconds=10):
        """Reads until the pattern is found; returns the text before it. The rest is kept."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text, re.S)):
            self.socket.settimeout(max(end - time.monotonic(), 0.01))
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                data = b""
            if not data:
                raise AssertionError(f"{pattern!r} does not come, but {self.text[-2000:]!r}")
            self.text += data
        before, self.text = self.text[:found.start()], self.text[found.end():]
        return before

    def ask(self, line):
        """The answer to a line, with the line ends of Unix."""
        self.send(line)
        answer = self.read_until(rb"(^|\n)% $")
        return answer.replace(b"\r\n", b"\n").decode().rstrip("\r\n")

    def read_all(self, seconds=10):
        """Returns all input until the router closes the connection."""
        self.socket.settimeout(seconds)
        while data := self.socket.recv(65536):
            self.text += data
        return self.text

    def close(self):
        """Closes it."""
        self.socket.close()

"""A client of Click's ControlSocket, as the protocol's description has it."""

import contextlib
import socket


class ControlSocket:
    """A connection to a control socket: by TCP from within a namespace, or by the path of a Unix socket."""

    def __init__(self, namespace=None, port=7777, path=None, greeted=True, receive_buffer=None):
        with namespace.entered() if namespace else contextlib.nullcontext():
            self.socket = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        self.socket.connect(str(path) if path else ("127.0.0.1", port))
        self.file = self.socket.makefile("rb")
        if greeted:
            assert self.line() == "Click::ControlSocket/1.3"

    def line(self):
        """The next line without its end; an empty one at the end of the connection."""
        line = self.file.readline()
        assert not line or line.endswith(b"\r\n"), line
        return line.decode().removesuffix("\r\n")

    def status(self):
        """The status and the messages of an answer."""
        messages = []
        while True:
            line = self.line()
            assert line[:3].isdigit() and line[3] in " -", line
            messages.append(line[4:])
            if line[3] == " ":
                return int(line[:3]), messages

    def send(self, text):
        """Sends a line, or bytes as they are."""
        self.socket.sendall(text if isinstance(text, bytes) else text.encode() + b"\r\n")

    def ask(self, line):
        """The status and the messages of the answer to a command without data."""
        self.send(line)
        return self.status()

    def read(self, handler, argument=""):
        """The value of a handler."""
        status, messages = self.ask(f"READ {handler} {argument}".rstrip())
        assert (status, messages) == (200, [f"Read handler '{handler}' OK"]), messages
        return self.data()

    def data(self):
        """The data that follow a status."""
        word, length = self.line().split()
        assert word == "DATA"
        return self.file.read(int(length)).decode()

    def write(self, handler, value=""):
        """Writes a handler."""
        assert self.ask(f"WRITE {handler} {value}".rstrip()) == (200, [f"Write handler '{handler}' OK"])

    def is_over(self):
        """Returns true if the router closes the connection without another word, also while it has not read all."""
        try:
            return self.file.read() == b""
        except ConnectionResetError:
            return True

    def close(self):
        """Closes it."""
        self.file.close()
        self.socket.close()

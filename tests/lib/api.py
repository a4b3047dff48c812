"""A client of the API over HTTP, which checks each answer against the OpenAPI document."""

import contextlib
import http.client
import json
import socket
import subprocess
from functools import cache

from jsonschema import Draft202012Validator

from .router import binary

JSON = "application/json"
LUA = "application/x-lua"
LINES = "application/x-ndjson"


@cache
def document():
    """The document as the binary prints it."""
    return json.loads(subprocess.run([binary(), "api", "--openapi"], capture_output=True, check=True).stdout)


def operations():
    """Method, path and description of each operation."""
    return [(method.upper(), path, operation) for path, of in document()["paths"].items()
            for method, operation in of.items()]


def described(method, path):
    """The description of the operation for a path with its values."""
    parts = path.split("?")[0].split("/")

    def fits(pattern):
        wanted = pattern.split("/")
        return len(wanted) == len(parts) and all(w == p or w.startswith("{") for w, p in zip(wanted, parts))

    fitting = sorted((p for p in document()["paths"] if fits(p)), key=lambda pattern: pattern.count("{"))
    return document()["paths"][fitting[0]][method.lower()]


def check(schema, value):
    """Raises an error if the value is not what the schema says."""
    Draft202012Validator({"allOf": [schema], "components": document()["components"]}).validate(value)


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path, timeout=30):
        super().__init__("localhost", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Api:
    """The API of a router by its Unix socket."""

    def __init__(self, path, connect=None):
        self.path = path
        self.connect = connect or (lambda: Connection(path))

    def ask(self, method, path, body=None, kind=None, **headers):
        """The status, the headers and the answer, which the document describes."""
        connection = self.connect()
        if body is not None and kind is None:
            body, kind = json.dumps(body), JSON
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        # A router that refuses a request may close before it is sent.
        with contextlib.suppress(BrokenPipeError):
            connection.request(method, path, body, {**headers, **({"Content-Type": kind} if kind else {})})
        response = connection.getresponse()
        text, kind = response.read(), response.headers["Content-Type"]
        connection.close()
        if kind == LINES:
            return response.status, response.headers, [json.loads(line) for line in text.splitlines()]
        answer = json.loads(text)
        if response.status == 200 and path != "/v1/openapi.json":
            check(described(method, path)["responses"]["200"]["content"][JSON]["schema"], answer)
        elif response.status != 200:
            assert kind == "application/problem+json", kind
            check({"$ref": "#/components/schemas/Problem"}, answer)
            assert answer["status"] == response.status
        return response.status, response.headers, answer

    def get(self, path, **headers):
        """The answer of a request that succeeds."""
        status, _, answer = self.ask("GET", path, **headers)
        assert status == 200, answer
        return answer

    def do(self, method, path, body=None, kind=None):
        """The answer of a change that succeeds."""
        status, _, answer = self.ask(method, path, body, kind)
        assert status == 200, answer
        return answer

    def refused(self, method, path, body=None, kind=None, status=422, **headers):
        """The text of an error."""
        found, _, answer = self.ask(method, path, body, kind, **headers)
        assert found == status, answer
        return answer["detail"]

    def raw(self, data):
        """The bytes that come back for these, until the router closes the connection or says no more."""
        connection = self.connect()
        connection.connect()
        text = b""
        with contextlib.suppress(BrokenPipeError):
            connection.sock.sendall(data)
        with contextlib.suppress(OSError):
            while piece := connection.sock.recv(1 << 16):
                text += piece
        connection.close()
        return text

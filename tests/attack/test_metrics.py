"""Clients of the metrics that hold connections, send too much or are not allowed, while a scraper goes on."""

import contextlib
import os
import socket

import pytest

from lib.kernel import forwarder
from lib.lab import PORTS, STATIC_NEIGHBOURS, Wires
from lib.metrics import get, scrape, tcp, unix

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="it is Turnpike that is attacked")

NOBODY = 65534


@pytest.fixture(scope="module")
def wires(module_lab):
    wires = Wires(module_lab, start=False)
    directory = wires.inside.run("mktemp", "-d", "-t", "turnpike-test-XXXXXX").stdout.strip()
    wires.path = f"{directory}/metrics.sock"
    config = f'turnpike.metrics {{ socket = "{wires.path}", listen = "127.0.0.1:9477" }}\n'
    wires.router = module_lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS + config)
    yield wires
    wires.router.stop()
    assert not os.path.exists(wires.path)
    os.rmdir(directory)


def works(wires):
    """Both listeners and the API answer."""
    assert scrape(tcp(wires.inside)).of("turnpike_interface_up", interface="left") == 1
    assert scrape(unix(wires.path)).of("turnpike_interface_up", interface="left") == 1
    assert len(wires.router.show("ports")) == 2


@pytest.mark.parametrize("begun", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"],
                         ids=["silent", "head", "whole"])
def test_held_connections_keep_nobody_out(wires, begun):
    descriptors = len(os.listdir(f"/proc/{wires.router.process.pid}/fd"))
    with contextlib.ExitStack() as held:
        for number in range(10_000):
            stream = held.enter_context(tcp(wires.inside))
            # Those that have been closed for a newer one refuse it.
            with contextlib.suppress(ConnectionError):
                stream.sendall(begun)
            if number % 2000 == 1999:
                works(wires)
            # This process may have fewer descriptors than connections.
            if number >= 500:
                held.enter_context(contextlib.closing(stream))
                stream.close()
        assert len(os.listdir(f"/proc/{wires.router.process.pid}/fd")) < descriptors + 200
        works(wires)


def test_five_hundred_that_stay_open_keep_nobody_out(wires):
    with contextlib.ExitStack() as held:
        for _ in range(500):
            stream = held.enter_context(tcp(wires.inside))
            with contextlib.suppress(ConnectionError):
                stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-")
        works(wires)


def test_clients_that_do_not_read_keep_nobody_out(wires):
    with contextlib.ExitStack() as held:
        for _ in range(100):
            with wires.inside.entered():
                stream = held.enter_context(socket.socket())
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.connect(("127.0.0.1", 9477))
            with contextlib.suppress(ConnectionError):
                stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        works(wires)


@pytest.mark.parametrize("request_text, status", [
    (b"GET /metrics HTTP/1.1\r\nHost: " + b"x" * 1_000_000 + b"\r\n\r\n", (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")),
    (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 100_000 + b"\r\n", (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")),
    (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n", (b"HTTP/1.1 405",)),
    (b"\x00\xff" * 5000, (b"HTTP/1.1 400", b"")),
    (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", (b"HTTP/1.1 200",)),
], ids=["long", "many", "body", "garbage", "half-closed"])
def test_requests_of_any_kind_are_survived(wires, request_text, status):
    stream = tcp(wires.inside)
    stream.settimeout(30)
    answer = b""
    # A refused one may be reset before it is read to its end.
    with contextlib.suppress(OSError):
        stream.sendall(request_text)
        stream.shutdown(socket.SHUT_WR)
        while data := stream.recv(1 << 16):
            answer += data
    assert answer[:12] in status, answer[:200]
    works(wires)


def test_another_user_does_not_get_at_the_socket(wires):
    user = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    os.chmod(os.path.dirname(wires.path), 0o755)
    asked = ["curl", "-s", "--unix-socket", wires.path, "http://x/metrics"]
    assert wires.inside.run(*user, *asked, check=False).returncode == 7
    assert "turnpike_build_info" in wires.inside.run(*asked).stdout
    assert get(unix(wires.path))[0] == "HTTP/1.1 200 OK"

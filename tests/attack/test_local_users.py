"""Unprivileged users of the router's machine at the ports without a password: telnet's and zebra's."""

import json
import os
import shutil
import socket
import subprocess
import tempfile

import pytest

from lib import netlink, tables
from lib.kernel import Machine, forwarder, host
from lib.lab import Wires
from lib.netns import wait_for
from lib.router import Router
from lib.telnet import Telnet

pytestmark = pytest.mark.skipif(forwarder() != "turnpike", reason="it is Turnpike that is attacked")

NOBODY = 65534
ROUTE = "route add 203.0.113.0/24 via 10.0.2.2"

# Connects, sends its argument, reads to the end and prints the input.
CLIENT = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
try:
    client.sendall(bytes.fromhex(sys.argv[2]))
    while data := client.recv(65536):
        sys.stdout.buffer.write(data)
except ConnectionError:
    pass
"""

# Connects again and again, sends the same and closes, or resets, the connection before its user can be determined.
HASTY = """
import socket, struct, sys
for turn in range(200):
    client = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
    if turn % 2:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        client.sendall(bytes.fromhex(sys.argv[2]))
    except ConnectionError:
        pass
    client.close()
"""


def as_nobody(namespace, program, port, data=b""):
    """Output of a program in Python that an unprivileged user runs in the namespace."""
    user = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    python = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
    return namespace.run(*user, python, "-c", program, port, data.hex()).stdout


def dynamic(router):
    """Routes added by commands."""
    return [route["prefix"] for route in router.show("routes", "--source", "command")]


# --- telnet ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, "turnpike.telnet { sessions = 3 }\n")


def test_another_user_has_no_session(wires):
    said = as_nobody(wires.inside, CLIENT, 2323)
    assert said.startswith("user nobody (uid 65534) is not allowed here; allowed: root (uid 0);"), said
    assert "turnpike.telnet { users" in said and "Turnpike" not in said and "% " not in said
    as_nobody(wires.inside, CLIENT, 2323, f"{ROUTE}\r\n".encode())
    assert dynamic(wires.router) == []
    assert "refused: user nobody (uid 65534) is not allowed" in wires.router.log()


def test_one_that_is_gone_before_it_is_asked_is_nobody(wires):
    before = wires.router.log().count(" connected\n")
    as_nobody(wires.inside, HASTY, 2323, f"{ROUTE}\r\n".encode())
    client = Telnet(wires.inside)
    client.read_until(rb"% $")
    # All earlier connections have been processed: connections are accepted in order, and a session ends before the
    # router's next answer.
    assert wait_for(lambda: client.ask("show ports | count") != "", 5)
    assert dynamic(wires.router) == []
    client.close()
    assert wires.router.log().count(" connected\n") == before + 1, "only ours"
    assert wires.router.log().count("refused") < 50, "a flood of connections is no flood of lines"


def test_those_refused_take_no_place(wires):
    clients = [Telnet(wires.inside) for _ in range(3)]
    for client in clients:
        client.read_until(rb"% $")
    clients.pop().close()
    assert "not allowed" in as_nobody(wires.inside, CLIENT, 2323)
    # The slot of the client that has left is free when its task has ended.
    def enters():
        client = Telnet(wires.inside)
        greeted = b"Turnpike" in client.socket.recv(100)
        client.close()
        return greeted
    assert wait_for(enters, 10, 0.1)
    for client in clients:
        client.close()


def test_no_file_is_read(wires):
    client = Telnet(wires.inside)
    client.read_until(rb"% $")
    for line in ("apply /etc/shadow", "plan --all /etc/shadow", "apply --confirm 1m /etc/shadow | json"):
        answer = client.ask(line)
        text = json.loads(answer)["error"] if answer.startswith("{") else answer
        assert text.startswith("not over telnet: it reads a file") and "root:" not in answer, answer
    assert "\n  apply " not in client.ask("help")
    client.close()


@pytest.mark.parametrize("request_line", ["POST / HTTP/1.1", "GET /show HTTP/1.0", "\r\nPUT / HTTP/2"])
def test_a_browser_is_not_obeyed(wires, request_line):
    client = Telnet(wires.inside)
    body = f"{ROUTE}\r\nshow ports\r\n"
    client.send(f"{request_line}\r\nHost: 127.0.0.1:2323\r\nContent-Type: text/plain\r\n\r\n{body}".encode())
    said = client.read_all()
    assert b"this is telnet, not HTTP" in said and b"left" not in said
    assert dynamic(wires.router) == []
    client.close()


def test_the_configuration_can_allow_others(lab):
    wires = Wires(lab, 'turnpike.telnet { users = { "nobody" } }\n')
    said = as_nobody(wires.inside, CLIENT, 2323, f"{ROUTE}\r\nquit\r\n".encode())
    assert "203.0.113.0/24" in said and dynamic(wires.router) == ["203.0.113.0/24"]
    wires.router.stop()


def test_a_user_that_does_not_exist_is_an_error(lab):
    inside = lab.namespace("inside")
    text = 'local turnpike = require "turnpike"\nturnpike.port "a" { device = "lo" }\nturnpike.telnet { users = "no-one" }\n'
    router = lab.router(inside, text, wait=False)
    assert router.process.wait(20) == 1
    assert 'telnet: users: user "no-one" unknown' in router.log()


# --- zebra's ---------------------------------------------------------------------------------------


@pytest.fixture
def machine(lab):
    """A router that listens for zebra, and a connection in zebra's place that has announced one route."""
    made = Machine(lab, "router")
    made.left = host(made, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    made.right = host(made, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1", gateway=True)
    made.start('"fpm"', "turnpike.fpm { keep_s = 1 }\n")
    made.zebra = zebra(made)
    made.zebra.sendall(frame(made, "198.51.100.0/24"))
    assert wait_for(lambda: fpm_routes(made) == ["198.51.100.0/24"], 10)
    yield made
    made.zebra.close()
    made.finish()


def zebra(machine):
    """A connection to the FPM port."""
    with machine.space.entered():
        connection = socket.socket()
    connection.settimeout(10)
    connection.connect(("127.0.0.1", 2620))
    return connection


def frame(machine, prefix):
    """The frame by which zebra adds a route."""
    via = netlink.gateway("10.0.2.2"), netlink.oif(machine.index("right"))
    return netlink.fpm(netlink.route(prefix, *via))


def fpm_routes(machine):
    """Prefixes that the router has from zebra."""
    return [route["prefix"] for route in machine.router.show("routes", "--source", "fpm")]


def test_another_user_is_not_zebra(machine):
    theirs = frame(machine, "203.0.113.0/24")
    as_nobody(machine.space, CLIENT, 2620, theirs)
    as_nobody(machine.space, HASTY, 2620, theirs)
    # A later route of zebra's arrives, so the earlier input was refused.
    machine.zebra.sendall(frame(machine, "192.0.2.0/24"))
    assert wait_for(lambda: "192.0.2.0/24" in fpm_routes(machine), 10)
    assert fpm_routes(machine) == ["192.0.2.0/24", "198.51.100.0/24"]
    assert tables.source(machine.router, "fpm")["errors"] > 0
    log = machine.router.log()
    assert log.count("zebra connected") == 1 and "refused: user nobody (uid 65534) is not allowed" in log
    # Nor while zebra is disconnected.
    machine.zebra.close()
    assert wait_for(lambda: tables.source(machine.router, "fpm")["state"] == "disconnected", 10)
    as_nobody(machine.space, CLIENT, 2620, theirs)
    assert machine.router.log().count("zebra connected") == 1


def test_zebra_is_not_replaced_while_it_is_there(machine):
    second = zebra(machine)
    assert second.recv(1) == b""
    second.close()
    assert "zebra has one connection" in machine.router.log()
    machine.zebra.sendall(frame(machine, "192.0.2.0/24"))
    assert wait_for(lambda: len(fpm_routes(machine)) == 2, 10)
    machine.zebra.close()
    machine.zebra = zebra(machine)
    machine.zebra.sendall(frame(machine, "203.0.113.0/24"))
    assert wait_for(lambda: "203.0.113.0/24" in fpm_routes(machine), 10)


# --- the holder of host interfaces -----------------------------------------------------------------

# Connects to a holder and prints its answer, with the number of descriptors.
TAKER = """
import array, socket, sys
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.settimeout(5)
try:
    client.connect(sys.argv[1])
    while True:
        text, rights, *_ = client.recvmsg(256, 1024)
        if not text:
            break
        print(text, len(rights))
except OSError as error:
    print(type(error).__name__)
"""

# Claims to be a holder, and prints the input from routers.
FAKE = """
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
while True:
    router, _ = listener.accept()
    router.settimeout(1)
    try:
        router.send(b"all 1")
        while given := router.recvmsg(256, 1024)[0]:
            print(given, flush=True)
    except OSError:
        pass
"""

UNPRIVILEGED = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]


def hosts_machine(lab):
    """A machine between two hosts, which is not started."""
    machine = Machine(lab, "router")
    host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    host(machine, "right", "right", "10.0.2.2", "10.0.2.1")
    return machine


def test_another_user_gets_no_interface_of_the_holder(lab):
    machine = hosts_machine(lab)
    machine.start()
    path = f"{machine.router.socket}.hold"
    # Even if the path to it is accessible.
    machine.router.kill()
    for mode in (0o600, 0o666):
        machine.router.directory.chmod(0o755)
        os.chmod(path, mode)
        python = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
        said = machine.run(*UNPRIVILEGED, python, "-c", TAKER, path).stdout
        assert said in ("PermissionError\n", "", "ConnectionResetError\n"), said
    # It holds them nevertheless.
    machine.start()
    assert "held 2" in machine.router.log(), machine.router.log()
    machine.finish()


def test_a_holder_of_another_user_gets_no_interface(lab):
    machine = hosts_machine(lab)
    directory = tempfile.mkdtemp(prefix="turnpike-test-")
    lab._made.callback(shutil.rmtree, directory, True)
    os.chmod(directory, 0o1777)
    socket_path = os.path.join(directory, "router.sock")
    python = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
    fake = machine.space.spawn(
        *UNPRIVILEGED, python, "-c", FAKE, f"{socket_path}.hold", stdout=subprocess.PIPE, text=True
    )
    assert fake.stdout.readline() == "listens\n"
    machine.start(socket=socket_path)
    assert "belongs to process" in machine.router.log() and "of another user" in machine.router.log()
    # The router has one of its own.
    assert machine.router.holder() not in (None, fake.pid)
    machine.finish()
    fake.terminate()
    said = fake.communicate(timeout=20)[0]
    assert said == "", said

"""All other sources of events send them without pause: the kernel, a client at the FPM port, clients of the API, a
flapping link, hosts that join groups.

As in `test_neighbours.py`: questions are answered meanwhile, and the router ends when it is asked to.
"""

import socket
import subprocess
import sys
import threading
import time

import pytest

from lib import netlink
from lib.flood import PATIENCE
from lib.kernel import Machine, forwarder, host
from lib.netns import wait_for
from lib.soak import repeated

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(forwarder() != "turnpike", reason="it is Turnpike that is attacked"),
]

# Duration of a flood in seconds.
SECONDS = repeated(2)


# Joins groups on the interface with this number, then ends and so leaves them.
JOIN = """
import socket, sys
member = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
for number in range(100):
    group = socket.inet_pton(socket.AF_INET6, f"ff05::{number + 1:x}")
    member.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + int(sys.argv[1]).to_bytes(4, "little"))
"""


class Endless:
    """Repeats an action on separate threads, until the end of the `with` block."""

    def __init__(self, *actions):
        self.rounds, self._stop = 0, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(action,)) for action in actions]

    def _run(self, action):
        while not self._stop.is_set():
            try:
                action()
            except OSError:
                # The router has ended, or has no room now.
                time.sleep(0.01)
                continue
            self.rounds += 1

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def machine(lab, sources):
    """A router with host interfaces and two hosts."""
    made = Machine(lab, "router")
    made.left = host(made, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
    made.right = host(made, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
    return made.start(sources)


def prefixes(count):
    """So many networks."""
    return [f"100.{64 + n // 65536}.{n // 256 % 256}.{n % 256}/32" for n in range(count)]


def kernel_routes(made):
    """Adds ten thousand routes to the kernel and removes them again."""
    index, routes = made.index("right"), prefixes(10_000)
    messages = [
        list(netlink.ipv4_routes(routes, ["10.0.2.2"], [index], kind)) for kind in (netlink.NEWROUTE, netlink.DELROUTE)
    ]
    return [lambda: [netlink.write(made.space, part) for part in messages]]


def kernel_neighbours(made):
    """Adds nearly as many neighbours as the kernel accepts, and removes them again."""
    hosts = [f"fd00:2::1:{n:x}" for n in range(900)]
    batches = [
        [f"neighbour {verb} {at} lladdr 02:00:00:01:{n // 256:02x}:{n % 256:02x} dev right nud {state}"
         for n, at in enumerate(hosts)]
        for verb, state in (("replace", "reachable"), ("replace", "stale"))
    ]
    batches.append([f"neighbour del {at} dev right" for at in hosts])
    return [lambda: [made.batch(batch, check=False) for batch in batches]]


def fpm(made):
    """A client in zebra's place announces ten thousand routes and withdraws them."""
    index, routes = made.index("right"), prefixes(10_000)
    parts = [
        b"".join(map(netlink.fpm, netlink.ipv4_routes(routes, ["10.0.2.2"], [index], kind)))
        for kind in (netlink.NEWROUTE, netlink.DELROUTE)
    ]
    with made.space.entered():
        connection = socket.socket()
    connection.settimeout(10)
    connection.connect(("127.0.0.1", 2620))
    made.lab._made.callback(connection.close)
    return [lambda: [connection.sendall(part) for part in parts]]


# Asks the router at this socket, as fast as it answers, and says so. In processes of their own: threads of the test's
# would keep its own question waiting for Python's lock.
ASK = """
import json, socket, sys
lines = [json.dumps({"show": what}).encode() + b"\\n" for what in ("ports", "counters", "neighbours", "graph")]
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(10)
    client.connect(sys.argv[1])
    answers = client.makefile("rb")
    for line in lines * 100:
        client.sendall(line)
        if not answers.readline():
            sys.exit("the router has ended")
"""


def questions(made):
    """Eight clients send all queries, as fast as they are answered."""
    def ask():
        asked = subprocess.run([sys.executable, "-c", ASK, made.router.socket], stderr=subprocess.PIPE)
        if asked.returncode != 0:
            raise ConnectionResetError(asked.stderr)

    return [ask] * 8


def flaps(made):
    """Unplugs a port's cable and plugs it in again."""
    return [lambda: [made.right.run("ip", "link", "set", "eth0", state) for state in ("down", "up")]]


def settings(made):
    """Lowers and raises the MTU of a port's interface, and changes the MAC address of another."""
    def change(name, what, values):
        return lambda: [made.wires.run("ip", "link", "set", name, what, value) for value in values]
    return [
        change("tp-left", "mtu", [1300, 1500]),
        change("tp-right", "address", ["02:00:00:00:02:98", "02:00:00:00:02:99"]),
    ]


def groups(made):
    """A program joins a hundred groups on a port and leaves them."""
    return [lambda: made.run(sys.executable, "-c", JOIN, made.index("right"))]


@pytest.mark.parametrize(
    "flood", [kernel_routes, kernel_neighbours, fpm, questions, flaps, settings, groups], ids=lambda flood: flood.__name__)
def test_news_without_pause_leave_the_control_plane_working(lab, flood):
    made = machine(lab, '"fpm"' if flood is fpm else '"kernel"')
    times = []
    with Endless(*flood(made)) as endless:
        assert wait_for(lambda: endless.rounds > 0, 60)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            begin = time.monotonic()
            made.router.command("show", "ports", "--json")
            times.append(time.monotonic() - begin)
        # It continues while the router ends.
        begin = time.monotonic()
        made.router.stop(timeout=30)
        ended = time.monotonic() - begin
    print(f"{flood.__name__}: {endless.rounds} rounds, worst answer {max(times):.3f} s, ended in {ended:.3f} s")
    assert max(times) < PATIENCE
    assert ended < 2 * PATIENCE

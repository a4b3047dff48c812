"""Wireshark's extcap: `turnpike extcap` lists a router's interfaces, describes their options and fills a pipe, as extcap(4)
asks for. With tshark, if there is one, as its user does it."""

import itertools
import os
import re
import select
import shutil
import subprocess
import threading

import pytest
from scapy.utils import PcapNgReader

from lib.capture import comment_of
from lib.lab import PORTS, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.packets import unpadded
from lib.router import ROOT, binary, drop_reasons
from test_capture import other


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, ports=PORTS + STATIC_NEIGHBOURS, calm=True)


@pytest.fixture(scope="module")
def extcap(wires, tmp_path_factory):
    """The package's program, which finds this router and this binary."""
    home = tmp_path_factory.mktemp("home")
    # Before Wireshark 4.2, and since.
    for directory in (home / ".config/wireshark/extcap", home / ".local/lib/wireshark/extcap"):
        directory.mkdir(parents=True)
        shutil.copy(ROOT / "debian/extcap/turnpike", directory)
    path = f"{os.path.dirname(binary())}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "HOME": str(home), "TURNPIKE_SOCKET": str(wires.router.socket)}
    return Extcap([home / ".config/wireshark/extcap/turnpike"], env)


class Extcap:
    def __init__(self, program, env):
        self.program, self.env = program, env

    def ask(self, *words, error=""):
        """The answer: sentences of a kind and of values by key."""
        done = subprocess.run([*self.program, *words], env=self.env, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0 and error in done.stderr and (error or not done.stderr), done.stderr
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        return [(kind, dict(re.findall(r"\{(\w+)=([^}]*)\}", rest))) for kind, rest in lines]

    def of(self, interface, *words):
        return self.ask("--extcap-interface", interface, *words)

    def capture(self, interface, fifo, *words):
        """A capture into this pipe that has begun, and the pipe's end to be read from."""
        os.mkfifo(fifo)
        argv = [*self.program, "--extcap-interface", interface, "--capture", "--fifo", fifo, *words]
        process = subprocess.Popen(argv, env=self.env, stderr=subprocess.PIPE, text=True)
        pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        # The head of the file comes when the capture has begun.
        begun = lambda: dict(poll.poll(0)).get(pipe, 0) & select.POLLIN or process.poll() is not None
        assert wait_for(begun, 20) and process.poll() is None, process.communicate()
        os.set_blocking(pipe, True)
        # A test that waits for packets in vain sees the file's end.
        timer = threading.Timer(60, process.kill)
        timer.daemon = True
        timer.start()
        return process, open(pipe, "rb")


def listed(answer, kind):
    return [sentence for name, sentence in answer if name == kind]


def test_the_list_has_each_interface(extcap):
    answer = extcap.ask("--extcap-interfaces", "--extcap-version=4.0")
    assert [sentence["display"] for sentence in listed(answer, "extcap")] == ["Turnpike"]
    assert [sentence["value"] for sentence in listed(answer, "interface")] == [
        "turnpike-dropped", "turnpike-punted", "turnpike-left", "turnpike-right"]
    assert all(extcap.of(sentence["value"], "--extcap-dlts") == [("dlt", {"number": "1", "name": "EN10MB", "display": "Ethernet"})]
               for sentence in listed(answer, "interface"))


def test_without_a_router_the_list_is_empty(tmp_path):
    extcap = Extcap([binary(), "extcap", "--socket", tmp_path / "none.sock"], os.environ)
    answer = extcap.ask("--extcap-interfaces", error="none.sock")
    assert [kind for kind, _ in answer] == ["extcap"]
    assert listed(extcap.ask("--extcap-interface", "turnpike-left", "--extcap-config", error="none.sock"), "arg")


def test_options_are_described(extcap, wires):
    dropped = extcap.of("turnpike-dropped", "--extcap-config")
    assert [(arg["call"], arg["type"]) for arg in listed(dropped, "arg")] == [("--reason", "selector"), ("--snap", "unsigned")]
    assert [value["value"] for value in listed(dropped, "value")] == ["any", *drop_reasons()]
    left = extcap.of("turnpike-left", "--extcap-config")
    assert [arg["call"] for arg in listed(left, "arg")] == ["--step", "--snap"]
    steps = ["any", *(step["name"] for step in wires.router.show("graph")["steps"])]
    assert [value["value"] for value in listed(left, "value")] == steps
    assert [value["value"] for _, value in extcap.of("turnpike-left", "--extcap-reload-option", "step")] == steps
    assert [arg["call"] for arg in listed(extcap.of("turnpike-punted", "--extcap-config"), "arg")] == ["--snap"]


@pytest.mark.parametrize("filter, fault", [("proto=udp to_port=53", ""), ("port=53", 'key "port" unknown')])
def test_a_capture_filter_is_checked(extcap, filter, fault):
    done = subprocess.run([*extcap.program, "--extcap-interface", "turnpike-left", f"--extcap-capture-filter={filter}"],
                          env=extcap.env, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and (fault in done.stdout if fault else not done.stdout), done


def read_packets(pipe, count):
    """So many packets: comment and frame."""
    reader = PcapNgReader(pipe)
    return [(comment_of(packet), bytes(packet)) for packet in itertools.islice(reader, count)]


@pytest.mark.parametrize("interface, words, sent, said", [
    ("turnpike-left", ["--extcap-capture-filter", "to_port=2001 proto=udp"], [other(0), other(1)], "received"),
    ("turnpike-left", ["--step", "ip4-ttl", "--snap", "40"], [other(1)], "enters ip4-ttl"),
    ("turnpike-dropped", ["--reason", "martian-destination"], [other(0, ttl=1), other(1, "127.0.0.1")],
     "dropped by ip4-lookup: martian-destination"),
    ("turnpike-dropped", ["--reason", "any", "--extcap-capture-filter", "ttl=1"], [other(1, ttl=1)],
     "dropped by slow-path: ttl-expired"),
    ("turnpike-punted", [], [other(1, ttl=1)], "punted by ip4-ttl: ttl"),
], ids=["filter", "step", "reason", "any", "punted"])
def test_a_pipe_is_filled_until_its_reader_closes_it(extcap, wires, tmp_path, interface, words, sent, said):
    process, pipe = extcap.capture(interface, tmp_path / "fifo", *words)
    with pipe:
        wires.left.send(*sent)
        snap = 40 if "--snap" in words else None
        assert [(comment, unpadded(frame) if not snap else frame) for comment, frame in read_packets(pipe, 1)] == [
            (said, unpadded(sent[-1])[:snap])]
    # No further packet tells it.
    assert process.wait(20) == 0, process.stderr.read()
    process.stderr.close()
    wires.drain()


def test_what_cannot_be_captured_is_said(extcap, tmp_path):
    process = subprocess.run([*extcap.program, "--extcap-interface", "turnpike-lift", "--capture", "--fifo", tmp_path / "none"],
                             env=extcap.env, capture_output=True, text=True, timeout=20)
    assert process.returncode == 1 and 'interface "lift": unknown; did you mean "left"?' in process.stderr
    process = subprocess.run([*extcap.program, "--extcap-interface", "eth0", "--extcap-dlts"],
                             env=extcap.env, capture_output=True, text=True, timeout=20)
    assert process.returncode == 1 and 'interface "eth0": expected one of' in process.stderr


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
def test_tshark_captures(extcap, wires):
    names = subprocess.run(["tshark", "-D"], env=extcap.env, capture_output=True, text=True, timeout=60).stdout
    assert "turnpike-left (Turnpike: left)" in names, names
    argv = ["tshark", "-i", "turnpike-left", "-c", "3", "-f", "proto=udp", "-T", "fields", "-e", "udp.dstport"]
    process = subprocess.Popen(argv, env=extcap.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begun = wires.router.log().count('"capture":')
    assert wait_for(lambda: wires.router.log().count('"capture":') > begun or process.poll() is not None, 60)
    for number in range(3):
        wires.left.send(other(number))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out.split() == ["2000", "2001", "2002"], out + err

"""`turnpike shell`: at a terminal, from a pipe, and by `-c`."""

import json
import subprocess

import pytest

from lib.lab import Wires
from lib.router import binary
from lib.terminal import Terminal

CONFIG = """
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
turnpike.route "192.0.2.0/24" { blackhole = true }
"""


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, CONFIG)


def shell(router, *lines, stdin=None):
    """Output of `turnpike shell` for these lines, or for input from a pipe."""
    argv = [binary(), "shell", "--socket", str(router.socket)]
    for line in lines:
        argv += ["-c", line]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=20)


@pytest.fixture
def terminal(router, tmp_path):
    """A shell at a terminal, with a history of its own."""
    env = {"XDG_STATE_HOME": str(tmp_path)}
    terminal = Terminal(binary(), "shell", "--socket", router.socket, env=env)
    terminal.wait_for(r"turnpike> $")
    yield terminal
    terminal.close()


def test_a_line_says_what_the_command_says(router):
    for words in (["show", "ports"], ["show", "routes"], ["show", "graph"], ["show", "routes", "--json"]):
        assert shell(router, " ".join(words)).stdout == router.command(*words).stdout
    assert shell(router, "sh ports").stdout == router.command("show", "ports").stdout
    refused = shell(router, "show p")
    assert refused.returncode == 1 and "may mean ports, policing" in refused.stderr


def test_output_goes_through_pipes(router):
    (left,) = [line for line in router.command("show", "ports").stdout.splitlines() if "tp-left" in line]
    assert shell(router, "show ports | grep '^ *left '").stdout == left + "\n"
    assert shell(router, "show ports | grep -i LEFT").stdout == left + "\n"
    assert "tp-left" not in shell(router, "show ports | grep -v left").stdout
    assert json.loads(shell(router, "show routes | json").stdout) == router.show("routes")
    assert shell(router, "show ports | json | grep '\"name\"' | count").stdout == "2\n"


def test_a_pipe_of_lines_changes_the_router(router):
    lines = "# a comment\n\nroute add 203.0.113.0/24 via 10.0.2.2 | json\nshow routes | grep ^203\n"
    done = shell(router, stdin=lines)
    change, end, route = done.stdout.partition("}\n")
    assert json.loads(change + end) == {"change": "added"} and "10.0.2.2 (right)" in route
    assert done.returncode == 0
    assert [r["prefix"] for r in router.show("routes", "--source", "command")] == ["203.0.113.0/24"]


def test_the_first_line_that_fails_is_the_last(router):
    done = shell(router, stdin="show ports | count\nroute del 203.0.113.0/24\nshow routes\n")
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1
    assert done.stderr.startswith("line 2: route del 203.0.113.0/24: route 203.0.113.0/24: there is none")
    assert shell(router, "quit", "nonsense").returncode == 0


def test_nobody_has_to_read_everything(router):
    command = f"{binary()} shell --socket {router.socket} -c 'show graph' -c 'show counters' | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_question_mark_lists_what_can_come_next(terminal):
    terminal.type("show rou")
    terminal.wait_for("show rou")
    terminal.type("?")
    listed = terminal.wait_for(r"turnpike> show rou\?\n(.*)turnpike> show rou$").group(1)
    assert [line.split()[0] for line in listed.splitlines()] == ["routes", "route"]
    # The line is still there; in an expression `?` is an ordinary character.
    terminal.type("tes | grep 'blackholes?' | count\n")
    assert terminal.wait_for(r"\n(\d+)\nturnpike> $").group(1) == "1"


def test_tab_completes_words_and_what_the_router_knows(terminal):
    terminal.type("sho\tcoun\t")
    terminal.wait_for("show counters ")
    terminal.type("\x15route add 203.0.113.0/24 via 10.0.2.2 d\tri\t")
    terminal.wait_for(r"dev right ")
    terminal.type("\n")
    terminal.wait_for(r"route 203\.0\.113\.0/24: added\nturnpike> $")
    terminal.type("show p\t\t")
    terminal.wait_for(r"ports\s+policing")


def test_lines_that_are_pasted_are_run_one_by_one(terminal):
    terminal.type("\x1b[200~show ports | count\nshow nothing\x1b[201~\n")
    terminal.wait_for(r"\n\d+\n.nothing.: unknown.*turnpike> $")


def test_the_end_and_the_history(terminal, router, tmp_path):
    terminal.type("show policing | count\n")
    terminal.wait_for(r"\n\d+\nturnpike> $")
    terminal.type("nonsense\n")
    terminal.wait_for(r".nonsense.: unknown.*turnpike> $")
    terminal.type("\x04")
    assert terminal.ends() == 0
    assert "show policing | count" in (tmp_path / "turnpike/history").read_text()
    again = Terminal(binary(), "shell", "--socket", router.socket, env={"XDG_STATE_HOME": str(tmp_path)})
    try:
        again.wait_for(r"turnpike> $")
        again.type("\x1b[A\x1b[A")
        again.wait_for(r"show policing \| count")
        again.type("\x03")
        again.wait_for(r"\nturnpike> $")
        again.type("quit\n")
        assert again.ends() == 0
    finally:
        again.close()


def test_the_router_may_go_and_come_back(lab, tmp_path):
    first = Wires(lab, CONFIG).router
    terminal = Terminal(binary(), "shell", "--socket", first.socket, env={"XDG_STATE_HOME": str(tmp_path)})
    try:
        terminal.wait_for(r"turnpike> $")
        terminal.type("show ports | count\n")
        terminal.wait_for(r"\n\d+\nturnpike> $")
        first.stop()
        terminal.type("show ports | count\n")
        terminal.wait_for(r"cannot reach a router; is `turnpike run` up.*turnpike> $")
        lab.router(first.namespace, first.config.read_text(), socket=first.socket)
        terminal.type("show ports | count\n")
        terminal.wait_for(r"\n\d+\nturnpike> $")
    finally:
        terminal.close()

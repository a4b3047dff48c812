"""Error messages for wrong input: the object, the value and the remedy."""

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from lib.lab import PORTS, Wires
from lib.netns import wait_for
from lib.packets import ethernet
from lib.router import binary

PORT = 'local turnpike = require "turnpike"\nturnpike.port "left" { device = "net_null0", address = "10.0.1.1/24" }\n'
NOBODY = ["setpriv", "--reuid", "65534", "--clear-groups"]


def turnpike(*arguments, prefix=()):
    return subprocess.run([*prefix, binary(), *map(str, arguments)], capture_output=True, text=True, timeout=60)


def check(directory, text):
    """`turnpike check --offline` of a text: its exit status and its output."""
    file = directory / "r.lua"
    file.write_text(PORT + text)
    done = turnpike("check", "--offline", file)
    return done.returncode, (done.stdout + done.stderr).replace(f"{directory}/", "")


@pytest.mark.parametrize("text, expected", [
    ('os.execute("id")', "r.lua:3: attempt to index global 'os' (a nil value); a configuration has no files, commands"),
    ('local f = io.open("x")', "r.lua:3: attempt to index global 'io' (a nil value); a configuration has no files"),
    ('dofile("x")', "r.lua:3: attempt to call global 'dofile' (a nil value); a configuration is one file"),
    ("table.isnert({}, 1)", "r.lua:3: attempt to call field 'isnert' (a nil value); did you mean \"insert\"?"),
    ('turnpike.graph:instert_after("a", "b")', "did you mean \"insert_after\"?"),
    ('turnpike.graph:remove("ip4-tt")', 'r.lua:3: graph: step "ip4-tt" not found in the graph; did you mean "ip4-ttl"? known: mirror-in, sample-in, bond-input, vlan-input, classify'),
    ('turnpike.graph:path("ip4-validate.okk", "drop")', 'output "okk" not found; did you mean "ok"? known: ok'),
    ('turnpike.stepp "x" {}', 'r.lua:3: turnpike.stepp unknown; did you mean "step"? known: port, accelerate, bond, vlan, loopback, route'),
    ("while true do end", "r.lua:3: the script ran longer than 5 s and was stopped"),
    ('turnpike.next_hop "b" { via = "192.0.2.1" }', 'r.lua:3: next_hop "b": via "192.0.2.1" is unreachable'),
    ('turnpike.next_hop "b" { via = { "10.0.1.2", "fd00::1" } }', "gateways of both families"),
    ('turnpike.graph:path("classify.ip4", turnpike.next_hop "b" { via = "10.0.1.2" })', 'step "b": output "down" leads nowhere'),
    ('turnpike.graph:insert_after("classify.ip4", turnpike.next_hop "b" { via = "10.0.1.2" })\n'
     'turnpike.graph:path("b.down", "drop")', '"b" requires valid IPv4 packets, but "classify.ip4" provides IPv4 packets'),
])
def test_a_mistake_in_a_configuration_has_a_line_and_a_way_out(tmp_path, text, expected):
    status, said = check(tmp_path, text)
    assert status == 1 and expected in said, said


def test_counts_have_their_plural(tmp_path):
    status, said = check(tmp_path, 'turnpike.route "10.9.0.0/16" { via = "10.0.1.2" }')
    assert (status, said) == (0, "r.lua: OK: 1 port, 1 route, 0 neighbours\n")


def test_refused_lines_of_a_table_have_numbers_and_an_exit_status(tmp_path):
    table = tmp_path / "t.txt"
    table.write_text("8.8.8.0/24\t1\n8.8.8.0/99\t1\nfoo\n")
    text = f'turnpike.import {{ file = "{table}", via = "10.0.1.2" }}'
    status, said = check(tmp_path, text)
    assert status == 1, said
    assert 'import t.txt: 1 prefix, 2 lines refused\nt.txt:2: "8.8.8.0/99" is not a prefix\nt.txt:3: "foo": ' in said
    table.write_text("foo\n")
    status, said = check(tmp_path, text)
    assert status == 1 and "r.lua:3: import t.txt: no route in it: 1 line refused" in said, said
    table.write_text("8.8.8.0/24\t1\n")
    assert check(tmp_path, text)[0] == 0


@pytest.mark.parametrize("arguments, expected", [
    (["show", "prots"], '"prots": unknown; did you mean "ports"? known: ports, interfaces, bonds, routes, '),
    (["sho", "ports"], '"sho": unknown; did you mean "show"? known: run, accelerate, hold, check, '),
    (["show", "ports", "--ofloads"], '"--ofloads": unknown; did you mean "--offloads"? known: --offloads, --link, '),
    (["route", "add", "10.0.0.0/8", "vai", "10.0.1.2"], '"vai": not expected here; did you mean "via"? known: via ADDRESS'),
    (["neighbour", "add", "10.0.1.7", "lladr", "x", "dev", "y"], 'did you mean "lladdr"? known: lladdr, dev'),
    (["shell", "-c", "sh ro"], '"ro": may mean routes, route; write more of it'),
    (["shell", "-c", "show prots"], 'did you mean "ports"? known: ports, interfaces, bonds, routes'),
])
def test_a_word_that_is_not_known_is_named_with_those_that_are(arguments, expected):
    done = turnpike(*arguments)
    assert done.returncode != 0 and expected in done.stderr, done.stderr
    if arguments[0] != "shell":
        done = turnpike(*arguments, "--json")
        assert expected in json.loads(done.stdout)["error"] and done.returncode != 0


@pytest.mark.parametrize("line", ["show ports --json", "show ports | json", "show prots | json"])
def test_an_error_is_json_where_json_was_asked_for(tmp_path, line):
    done = turnpike("shell", "--socket", tmp_path / "none", "-c", line)
    assert done.returncode == 1 and "error" in json.loads(done.stdout) and not done.stderr


SPIN = """
local spin = turnpike.step "spin" {
  process = function(batch, mask)
    while true do
    end
  end,
}
turnpike.graph:insert_before("classify", spin)
"""


def test_a_running_router(lab):
    wires = Wires(lab, SPIN)
    router = wires.router
    line = next(n for n, text in enumerate(router.config.read_text().splitlines(), 1) if "while true" in text)
    wires.left.send(ethernet("ff:ff:ff:ff:ff:ff", "02:00:00:00:00:99", 0x88B5, b"x" * 60))
    assert wait_for(lambda: "ran longer than its budget" in router.log()), router.log()
    said = next(text for text in router.log().splitlines() if "ran longer" in text)
    assert any(f"{router.config.name}:{at}: ran longer" in said for at in (line, line + 1)), router.log()
    assert "spin:" not in router.log().split("ran longer", 1)[1].split("\n\n")[0], router.log()
    # Numbers have names and units.
    summary = router.show("routes", "--summary")
    assert set(summary["fib"]) == {"ipv4", "ipv6"} and set(summary["next_hops"]) == {"used", "most"}
    assert json.loads(router.command("history", "--json").stdout)[0]["time_s"] > 1_600_000_000
    # Another user is told the allowed ones.
    done = turnpike("show", "ports", "--socket", router.socket, prefix=NOBODY)
    assert done.returncode == 1 and "run as root (sudo)" in done.stderr and "Permission denied" in done.stderr


def test_who_may_not_run_it_is_told(lab):
    wires = Wires(lab, start=False)
    # A directory accessible to all users, unlike those of tests.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        file = Path(directory) / "r.lua"
        file.write_text(PORTS)
        done = wires.inside.run(*NOBODY, binary(), "run", file, "--socket", f"{directory}/socket", check=False)
    assert done.returncode == 1
    said = done.stdout + (done.stderr or "")
    assert "run it as root (sudo)" in said and said.count('port "left"') == 1, said
    assert not any(text.startswith("EAL:") for text in said.splitlines()), said

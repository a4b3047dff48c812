"""Commands defined by a configuration, in Lua."""

import json
import subprocess
import time

import pytest

from lib.lab import Wires
from lib.netns import wait_for
from lib.router import binary
from lib.telnet import Telnet

CONFIG = """
turnpike.telnet {}
turnpike.command "hello" {
  help = "Greet somebody",
  run = function(args) return "hello " .. table.concat(args, " ") end,
}
turnpike.command "busy-ports" {
  help = "Ports and what they received",
  run = function(args)
    local rows = {}
    for _, port in ipairs(turnpike.show("ports")) do
      if #args == 0 or port.name == args[1] then
        rows[#rows + 1] = { port = port.name, received = port.rx_packets }
      end
    end
    return rows
  end,
}
turnpike.command "way" {
  run = function(args) return turnpike.show("route", { address = args[1] }).prefix end,
}
turnpike.command "endless" { run = function() while true do end end }
turnpike.command "broken" { run = function() local t = nil; return t.x end }
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
"""


@pytest.fixture(scope="module")
def wires(module_lab):
    return Wires(module_lab, CONFIG)


def shell(wires, line):
    argv = [binary(), "shell", "--socket", str(wires.router.socket), "-c", line]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20)


def test_they_run_from_everywhere(wires):
    assert wires.router.command("do", "hello", "a b", "c").stdout == "hello a b c\n"
    assert shell(wires, "hello 'a b' c").stdout == "hello a b c\n"
    assert shell(wires, "hel").stderr.startswith('line 1: hel: "hel": may mean help, hello')
    client = Telnet(wires.inside)
    client.read_until(rb"% $")
    assert client.ask("hello you") == "hello you"
    assert client.ask("do hello you") == "hello you"
    client.close()


def test_a_table_is_rows_or_json(wires):
    rows = shell(wires, "busy-ports").stdout.splitlines()
    assert rows[0].split() == ["PORT", "RECEIVED"] and [row.split()[0] for row in rows[1:]] == ["left", "right"]
    received = {port["name"]: port["rx_packets"] for port in wires.router.show("ports")}
    (left,) = json.loads(shell(wires, "busy-ports left | json").stdout)
    assert left["port"] == "left" and left["received"] <= received["left"] + 10
    assert isinstance(left["received"], int)
    assert wires.router.command("do", "way", "198.51.100.7").stdout == "198.51.100.0/24\n"
    refused = wires.router.command("do", "way", "nowhere", check=False)
    assert refused.returncode == 1 and "turnpike.show: " in refused.stderr


def test_they_are_listed(wires):
    listed = shell(wires, "help").stdout
    assert "hello" in listed and "Greet somebody" in listed
    assert "busy-ports  Ports and what they received" in shell(wires, "bus?").stdout
    assert "hello" in shell(wires, "do ?").stdout
    unknown = wires.router.command("do", "nothing", check=False)
    assert 'command "nothing": not in the configuration; known: hello, busy-ports' in unknown.stderr


def test_errors_say_where(wires):
    broken = wires.router.command("do", "broken", check=False)
    line = 1 + wires.router.config.read_text().splitlines().index(
        'turnpike.command "broken" { run = function() local t = nil; return t.x end }')
    assert broken.returncode == 1
    assert broken.stderr.startswith(f'command "broken": router.lua:{line}: attempt to index')
    assert "stack traceback:" in broken.stderr and 'command "broken"' in wires.router.log()


def test_one_that_does_not_end_holds_up_nobody(wires):
    argv = [binary(), "do", "endless", "--socket", str(wires.router.socket)]
    endless = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        asked = []
        while any(process.poll() is None for process in endless):
            before = time.monotonic()
            wires.router.show("ports")
            asked.append(time.monotonic() - before)
        assert len(asked) > 4
        for process in endless:
            assert "ran longer than 5 s and was stopped" in process.stderr.read()
    finally:
        for process in endless:
            process.kill()
            process.wait()
            process.stderr.close()
    assert wires.router.command("do", "hello").stdout == "hello \n"


def test_another_configuration_has_others(wires, tmp_path):
    file = tmp_path / "next.lua"
    text = wires.router.config.read_text()
    file.write_text(text.replace('return "hello "', 'return "goodbye "') + 'turnpike.command "new" { run = print }')
    wires.router.command("apply", file)
    assert shell(wires, "hello you").stdout == "goodbye you\n"
    wires.router.command("rollback")
    assert shell(wires, "hello you").stdout == "hello you\n"
    assert shell(wires, "new").returncode == 1
    file.write_text(text + 'turnpike.command "show" { run = print }')
    refused = wires.router.command("apply", file, check=False)
    line = len(text.splitlines()) + 1
    assert f'{line}: command "show": the name is taken by a command of the binary' in refused.stderr
    checked = subprocess.run([binary(), "check", "--offline", file], capture_output=True, text=True)
    assert checked.returncode == 1 and 'command "show": the name is taken' in checked.stderr


def test_there_is_room_for_four_and_a_router_ends_while_they_run(lab):
    router = Wires(lab, CONFIG).router
    argv = [binary(), "do", "endless", "--socket", str(router.socket)]
    begin = lambda: subprocess.Popen(argv, stderr=subprocess.DEVNULL)  # noqa: E731
    endless = [begin() for _ in range(4)]

    def is_full():
        # A request that found no slot, because the query had it, tries again.
        endless[:] = [process if process.poll() is None else begin() for process in endless]
        return "4 commands run already; try later" in router.command("do", "hello", check=False).stderr

    try:
        assert wait_for(is_full)
        router.stop()
        assert [process.wait(10) for process in endless] == [1] * 4
    finally:
        for process in endless:
            process.kill()
            process.wait()

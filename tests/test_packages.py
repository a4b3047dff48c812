"""Contents of a package: the unit, manual pages, completions, licences; and the router's messages to systemd.

`make deb-test` tests the package itself.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from lib.kernel import Machine, forwarder, host, pings, reaches
from lib.manager import Manager
from lib.netns import stop_process, wait_for
from lib.router import ROOT, binary

UNIT = ROOT / "debian/turnpike.service"
DROP_INS = ROOT / "examples/systemd/turnpike.service.d"
AF_XDP, NAMESPACES = DROP_INS / "af-xdp.conf", DROP_INS / "namespaces.conf"
COMPLETIONS = {"bash": "turnpike.bash", "zsh": "_turnpike", "fish": "turnpike.fish"}

with_turnpike = pytest.mark.skipif(forwarder() != "turnpike", reason="the kernel has no service manager")


def run(*argv, **options):
    return subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=120, **options)


def setting(file, name):
    """The values of a setting of a unit, or of a drop-in, which empties the unit's first."""
    *_, line = re.findall(rf"^{name}=(.*)$", file.read_text(), re.M)
    return line.split()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The directory of manual pages and completions."""
    directory = tmp_path_factory.mktemp("pages")
    done = run(binary(), "pages", directory)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def unit(tmp_path):
    """The unit, beside its slice, for the binary under test."""
    shutil.copy(ROOT / "debian/turnpike.slice", tmp_path)
    copy = tmp_path / "turnpike.service"
    copy.write_text(UNIT.read_text().replace("/usr/bin/turnpike", binary()))
    return copy


# The unit

def test_systemd_accepts_the_unit(unit):
    done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=one", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_accepts_a_drain_at_each_stop(unit):
    more = (DROP_INS / "drain.conf").read_text().replace("/usr/bin/turnpike", binary())
    unit.write_text(unit.read_text().replace("[Install]", f"{more}\n[Install]"))
    done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=one", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # The words are those of the commands.
    for words in re.findall(rf"{re.escape(binary())} ((?:un)?drain .*)", more):
        done = run(binary(), *words.split(), "--socket", "/nonexistent.sock")
        assert done.returncode == 1 and "/nonexistent.sock" in done.stderr, done.stderr


@pytest.mark.parametrize("drop_ins, most", [([], 27), ([AF_XDP], 32), ([NAMESPACES], 30), ([AF_XDP, NAMESPACES], 33)],
                         ids=["usual", "af-xdp", "namespaces", "both"])
def test_the_units_exposure_does_not_grow(unit, drop_ins, most):
    """Devices and routes need the host's network and root, AF_XDP and namespaces CAP_SYS_ADMIN: docs/install.md."""
    # Without a manager, systemd-analyze reads no drop-ins.
    more = "\n".join(file.read_text() for file in drop_ins)
    unit.write_text(unit.read_text().replace("[Install]", f"{more}\n[Install]"))
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={most}", unit)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@with_turnpike
@pytest.mark.parametrize("files, driver, apart", [
    ([UNIT], "net_af_packet", False), ([UNIT, AF_XDP], "net_af_xdp", False), ([UNIT, NAMESPACES], "net_af_xdp", True),
], ids=["usual", "af-xdp", "namespaces"])
def test_it_forwards_with_the_units_capabilities(lab, tmp_path, monkeypatch, files, driver, apart):
    kept = [name for file in files for name in setting(file, "CapabilityBoundingSet")]
    capabilities = [name.removeprefix("CAP_").lower() for name in kept]
    bounding = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    bounded = tmp_path / "turnpike"
    bounded.write_text(
        f'#!/bin/sh\nexec setpriv --no-new-privs --inh-caps=-all --bounding-set={bounding} {binary()} "$@"\n'
    )
    bounded.chmod(0o755)
    monkeypatch.setenv("TURNPIKE", str(bounded))
    # With that drop-in, the host interfaces are in another namespace.
    machine = Machine(lab, "router", apart=apart)
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    host(machine, "right", "right", "10.0.2.2", "10.0.2.1")
    machine.start()
    status = status_of(machine.router.process.pid)
    assert int(re.search(r"^CapEff:\s*(\w+)$", status, re.M)[1], 16).bit_count() == len(capabilities)
    assert reaches(left, "10.0.2.2")
    assert {port["driver"] for port in machine.router.show("ports")} == {driver}
    machine.finish()


# Messages to the service manager

def managed(lab, routes=0, **options):
    """A router between two hosts, with so many routes in the kernel, and its manager."""
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    host(machine, "right", "right", "10.0.2.2", "10.0.2.1")
    manager = Manager(**options)
    lab._made.callback(manager.close)
    machine.batch([f"route add blackhole 20.{n >> 8}.{n & 255}.0/24" for n in range(routes)])
    machine.start(manager=manager, wait=False)
    assert wait_for(lambda: manager.told("READY"), 30)
    return machine, manager, left


@with_turnpike
def test_ready_is_told_when_packets_are_forwarded_and_stopping_at_the_end(lab):
    machine, manager, left = managed(lab, routes=5000)
    # With all routes of the kernel.
    assert machine.router.is_ready(), machine.router.log()
    # The neighbours are all that it does not know yet.
    assert pings(left, "10.0.2.2", timeout=5)
    assert {port["link"] for port in machine.router.show("ports")} == {"up"}
    (ready,) = manager.messages
    status = re.fullmatch(r"2 ports, (\d+) IPv4 and \d+ IPv6 routes; configuration 1", ready["STATUS"])
    assert status and int(status[1]) > 5000, ready
    machine.finish()
    manager.receive()
    assert manager.messages[-1] == {"STOPPING": "1", "STATUS": "stopping"}


@with_turnpike
def test_signs_of_life_stop_with_the_owner(lab):
    """The reader of its log has stopped reading: the owner waits for it, and all other threads go on."""
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    host(machine, "right", "right", "10.0.2.2", "10.0.2.1")
    # One that has ended: for its files.
    router = machine.start().router
    assert reaches(left, "10.0.2.2")
    machine.finish()
    manager = Manager(watchdog=1)
    lab._made.callback(manager.close)
    argv, options = manager.wrap([binary(), "run", router.config, "--socket", router.directory / "held.sock"])
    read, write = os.pipe()
    held = machine.wires.spawn(*argv, stdout=write, stderr=write, **options)
    os.close(write)
    os.set_blocking(read, False)

    def drained():
        """Reads what there is of its log; returns true at its end."""
        with contextlib.suppress(BlockingIOError):
            while os.read(read, 65536):
                pass
            return True
        return False

    try:
        assert wait_for(lambda: drained() or manager.told("WATCHDOG") > 1, 30)
        assert reaches(left, "10.0.2.2")
        owner = Path(f"/proc/{held.pid}/task/{held.pid}/wchan")

        def is_held():
            held.send_signal(signal.SIGUSR1)
            return "pipe_write" in owner.read_text()

        assert wait_for(is_held, 60, 0.001), owner.read_text()
        count = manager.told("WATCHDOG")
        time.sleep(1.5)
        assert manager.told("WATCHDOG") == count, "its owner is held, and it gives signs of life"
        assert pings(left, "10.0.2.2", timeout=5)
        assert wait_for(lambda: drained() or manager.told("WATCHDOG") > count, 10)
        held.terminate()
        assert wait_for(drained, 60)
        assert held.wait(60) == 0
    finally:
        stop_process(held)
        os.close(read)


@with_turnpike
def test_a_stopped_router_gives_no_signs_of_life(lab):
    machine, manager, _ = managed(lab, watchdog=1)
    for count in (1, 2, 3):
        assert wait_for(lambda: manager.told("WATCHDOG") > count, 10)
    machine.router.process.send_signal(signal.SIGSTOP)
    # Messages that were under way.
    assert wait_for(lambda: "State:\tT" in status_of(machine.router.process.pid), 10)
    manager.receive()
    count = len(manager.messages)
    time.sleep(1.5)
    manager.receive()
    assert len(manager.messages) == count, "a stopped router gives signs of life"
    machine.router.process.send_signal(signal.SIGCONT)
    assert wait_for(lambda: len(manager.messages) > count or manager.receive(), 10)
    machine.finish()


@with_turnpike
def test_changes_of_the_configuration_are_told_from_begin_to_end(lab):
    machine, manager, _ = managed(lab)
    config = machine.router.config
    good = config.read_text()
    config.write_text(good + 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n')
    machine.router.command("apply", config)
    assert wait_for(lambda: manager.told("READY") == 2, 10)
    config.write_text(good + "nonsense\n")
    machine.router.process.send_signal(signal.SIGHUP)
    assert wait_for(lambda: manager.told("READY") == 3, 10)
    kinds = [next(iter(message)) for message in manager.messages]
    assert kinds == ["READY", "RELOADING", "READY", "RELOADING", "READY"]
    assert all(int(message["MONOTONIC_USEC"]) > 0 for message in manager.messages if "RELOADING" in message)
    assert all(message["STATUS"].endswith("; configuration 2") for message in manager.messages[2::2])
    # Plans change nothing.
    config.write_text(good)
    machine.router.command("plan", config, check=False)
    assert manager.told("RELOADING") == 2
    machine.finish()


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return file.read()


# Manual pages, completions, licences

def commands(*above):
    """The commands that `--help` lists, with those below them."""
    text = run(binary(), *above, "--help").stdout
    section = re.search(r"^Commands:\n(.*?)(\n\n|\Z)", text, re.S | re.M)
    names = re.findall(r"^  ([\w-]+)", section[1], re.M) if section else []
    for name in names:
        if name != "help":
            yield (*above, name)
            yield from commands(*above, name)


def test_each_command_has_a_manual_page(pages):
    expected = {"turnpike.1", *(f"turnpike-{'-'.join(words)}.1" for words in commands())}
    assert {file.name for file in (pages / "man").iterdir()} == expected
    assert len(expected) > 60


def test_manual_pages_render_without_warnings(pages):
    files = sorted((pages / "man").iterdir())
    environment = {**os.environ, "MANROFFSEQ": "", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    done = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", *files, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    text = run("man", "-E", "UTF-8", "-l", pages / "man/turnpike-run.1", env=environment).stdout
    assert "turnpike-run - Run the router that a configuration describes" in " ".join(text.split()), text


@pytest.mark.parametrize("shell, script", [
    pytest.param("bash", """
        source $FILE
        COMP_WORDS=(turnpike show cou) COMP_CWORD=2
        _turnpike turnpike cou show
        echo "${COMPREPLY[@]}"
    """),
    pytest.param("fish", 'source $FILE; complete --do-complete "turnpike show cou"'),
    pytest.param("zsh", """
        fpath=(${FILE:h} $fpath)
        autoload -Uz compinit
        compinit -u -D
        autoload +X _turnpike
        [[ $_comps[turnpike] == _turnpike ]] && whence -f _turnpike | grep -o '^.counters'
        whence -f _turnpike | grep -o 'counters:[A-Z]' | head -n 1
    """),
])
def test_completions_load(pages, tmp_path, shell, script):
    options = {"bash": ["--norc"], "fish": ["--no-config"], "zsh": ["-f"]}[shell]
    environment = {**os.environ, "FILE": str(pages / "completions" / COMPLETIONS[shell]), "HOME": str(tmp_path)}
    done = run(shell, *options, "-c", script, env=environment)
    assert "counters" in done.stdout and not done.stderr, done


def test_licences_are_allowed_and_listed(tmp_path):
    done = run("python3", ROOT / "scripts/licences.py", "--write", tmp_path)
    assert done.returncode == 0, done.stderr
    bom = json.loads((tmp_path / "sbom.cdx.json").read_text())
    names = {component["name"] for component in bom["components"]}
    # One of the workspace, one of others, and C source that a crate compiles.
    assert {"router", "tokio", "luajit-src"} <= names and "proptest" not in names
    (tokio,) = [component for component in bom["components"] if component["name"] == "tokio"]
    assert tokio["licenses"] == [{"expression": "MIT"}] and len(tokio["hashes"][0]["content"]) == 64
    text = (tmp_path / "third-party.txt").read_text()
    assert "Copyright (C) 2005-" in text and "Mike Pall" in text, "LuaJIT's licence"
    assert re.search(r"^  tokio [\d.]+: MIT ", text, re.M)


def test_a_licence_that_is_not_allowed_is_refused(tmp_path):
    tree = tmp_path / "scripts"
    tree.mkdir()
    shutil.copy(ROOT / "scripts/licences.py", tree)
    for name in ("Cargo.toml", "Cargo.lock", "crates", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "deny.toml").write_text((ROOT / "deny.toml").read_text().replace('    "MIT",\n', ""))
    done = run("python3", tree / "licences.py")
    assert done.returncode == 1
    assert re.search(r"^tokio [\d.]+: licence MIT is not allowed by deny.toml; allowed: ", done.stderr, re.M), done


def test_the_packages_version_is_the_programs():
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert (ROOT / "debian/changelog").read_text().startswith(f"turnpike ({version}) ")


def test_the_packages_configuration_is_good():
    done = run(binary(), "check", ROOT / "debian/turnpike.lua")
    assert (done.returncode, done.stdout) == (0, f"{ROOT}/debian/turnpike.lua: OK: 1 port, 0 routes, 0 neighbours\n")

"""Configurations that survive a restart: `save`, `--save`, the history of a state directory, the last good one."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from lib.apply import apply, refused, write
from lib.kernel import Machine, host, pings
from lib.lab import PORTS, Hosts
from lib.manager import Manager
from lib.netns import wait_for

ROUTE = 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n'
OTHER = 'turnpike.route "203.0.113.0/24" { via = "10.0.2.2" }\n'

# Refused when it is read, or when it is compared with the machine.
BROKEN = {
    "syntax": 'turnpike.port "left" {\n',
    "unknown": PORTS + 'turnpike.router "left" {}\n',
    "no device": PORTS.replace("tp-right", "tp-gone"),
}
# Refused when DPDK has begun.
LATER = {
    "device": PORTS + 'turnpike.port "third" { device = "net_tap7,iface=a/b", address = "10.9.0.1/24" }\n',
    "service": PORTS + 'turnpike.metrics { listen = "10.77.0.1:9477", public = true }\n',
}


def hosts_with_state(lab, config=ROUTE, **options):
    return Hosts(lab, config, options=("--state", "state"), **options)


def prefixes(router):
    return [route["prefix"] for route in router.show("routes", "--source", "static")]


def history(router):
    return [(entry["number"], entry["origin"]) for entry in json.loads(router.command("history", "--json").stdout)]


def index(router):
    return json.loads((router.directory / "state/index.json").read_text())


def last_good(router, number):
    """Waits until this configuration is kept as the last good one: a thread writes it."""
    assert wait_for(lambda: (router.directory / "state/index.json").exists() and
                    index(router)["last_good"] == number, 10), index(router)


def test_an_applied_configuration_is_saved_in_the_file_of_the_start(lab):
    router = Hosts(lab, ROUTE).router
    os.chmod(router.config, 0o640)
    assert router.command("save").stdout == f"configuration 1 saved already in {router.config}\n"
    done = router.command("apply", write(router, PORTS + OTHER), "--save")
    assert done.stdout.splitlines()[-1] == f"configuration 2 saved in {router.config}"
    assert router.config.read_text() == PORTS + OTHER
    assert os.stat(router.config).st_mode & 0o777 == 0o640
    # A change on condition is not saved before its confirmation.
    apply(router, PORTS + ROUTE, "--confirm", "60s")
    assert "to be confirmed" in refused(router, "save")
    assert router.config.read_text() == PORTS + OTHER
    router.command("confirm", "--save")
    assert router.config.read_text() == PORTS + ROUTE
    router.command("rollback", "--save")
    assert router.config.read_text() == PORTS + OTHER
    both = router.command("apply", router.config, "--confirm", "60s", "--save", check=False)
    assert both.returncode == 2 and "cannot be used with" in both.stderr
    assert [name for name in os.listdir(router.directory) if name.startswith(".")] == []


def test_a_save_loses_nothing_and_makes_no_other_router(lab):
    hosts = Hosts(lab, ROUTE)
    router = hosts.router
    # Edited by hand since, also by one whose text is of another encoding, and put back to what was applied once.
    apply(router, PORTS + "-- once\n")
    apply(router, PORTS + ROUTE)
    for edited in (b"-- \xe4\n", (PORTS + "-- once\n").encode()):
        router.config.write_bytes(edited)
        assert "edited since the router read it" in refused(router, "save")
        assert router.config.read_bytes() == edited
    edited = PORTS + ROUTE + "-- by hand\n"
    router.config.write_text(edited)
    error = refused(router, "apply", write(router, PORTS + OTHER), "--save")
    assert "configuration 4 is in use, but not saved" in error and "edited since the router read it" in error
    assert prefixes(router) == ["203.0.113.0/24"] and router.config.read_text() == edited
    router.command("save", "--force")
    assert router.config.read_text() == PORTS + OTHER
    # Files beside it are others there.
    away = router.directory / "away"
    away.mkdir()
    (away / "table.txt").write_text("192.0.2.0/24\t64500\n")
    imported = PORTS + 'turnpike.import { file = "table.txt", via = "10.0.2.2" }\n'
    (away / "new.lua").write_text(imported)
    error = refused(router, "apply", away / "new.lua", "--save")
    assert "not saved" in error and "table.txt" in error and router.config.read_text() == PORTS + OTHER
    # A link stays one.
    real = router.directory / "real.lua"
    router.config.rename(real)
    router.config.symlink_to(real)
    router.command("rollback", "--save")
    assert router.config.is_symlink() and real.read_text() == PORTS + OTHER
    # One that leads nowhere, too.
    real.unlink()
    assert "router.lua: No such file" in refused(router, "save")
    assert router.config.is_symlink()


@pytest.fixture
def small_disk():
    """A disk of 16 KiB, mounted before the router gets mounts of its own."""
    place = Path(tempfile.mkdtemp(prefix="turnpike-test-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "none", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)
    place.rmdir()


BIG = PORTS + OTHER + "-- " + "x" * 30_000 + "\n"


def test_a_full_disk_leaves_the_file_before(lab, small_disk):
    router = Hosts(lab, ROUTE).router
    (small_disk / "old.lua").write_text(PORTS + ROUTE)
    router.config.unlink()
    router.config.symlink_to(small_disk / "old.lua")
    error = refused(router, "apply", write(router, BIG), "--save")
    assert "configuration 2 is in use, but not saved" in error and "No space left" in error, error
    assert (small_disk / "old.lua").read_text() == PORTS + ROUTE
    assert os.listdir(small_disk) == ["old.lua"]


def test_the_history_survives_a_restart(lab):
    hosts = hosts_with_state(lab)
    router = hosts.router
    apply(router, PORTS + OTHER)
    last_good(router, 2)
    state = router.directory / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "configuration-2.lua").stat().st_mode & 0o777 == 0o600
    router.kill()
    router.start()
    # The file is still the one of the start.
    assert history(router) == [(1, "start"), (2, "apply"), (3, "start")]
    assert prefixes(router) == ["198.51.100.0/24"]
    router.command("rollback", "2", "--save")
    assert prefixes(router) == ["203.0.113.0/24"]
    router.stop()
    router.start()
    # It begins with what it ended with.
    assert history(router)[-1] == (4, "rollback to 2")
    assert "no change" in router.command("apply", router.config).stdout
    assert pings(hosts.left, "10.0.2.2", 3)


@pytest.mark.parametrize("broken", [*BROKEN, *LATER], ids=lambda name: name.replace(" ", "-"))
def test_a_file_that_is_refused_is_replaced_by_the_last_good_configuration(lab, broken):
    hosts = hosts_with_state(lab)
    router = hosts.router
    apply(router, PORTS + OTHER)
    last_good(router, 2)
    router.stop()
    router.config.write_text({**BROKEN, **LATER}[broken])
    if broken in LATER:
        router.start(wait=False)
        assert router.process.wait(60) == 1, router.log()
        assert "the next start takes the last good configuration" in router.log()
    router.start()
    assert "the last good configuration, number 2, is used in place of" in router.log()
    assert prefixes(router) == ["203.0.113.0/24"]
    number, origin = history(router)[-1]
    assert origin == "start with the last good one"
    assert pings(hosts.left, "10.0.2.2", 3)
    # SIGHUP reads the file, which is still refused.
    router.process.send_signal(signal.SIGHUP)
    assert wait_for(lambda: "SIGHUP: refused, the router goes on as it is" in router.log(), 20)
    assert "edited since" in refused(router, "save")
    # The next one is a file again.
    router.command("save", "--force")
    router.stop()
    router.start()
    assert "last good" not in router.log() and prefixes(router) == ["203.0.113.0/24"]
    assert history(router)[-1] == (number, origin)


def test_a_start_that_failed_counts_for_the_file_as_it_was(lab):
    router = hosts_with_state(lab).router
    last_good(router, 1)
    router.stop()
    for _ in range(2):
        router.config.write_text(LATER["service"])
        router.start(wait=False)
        assert router.process.wait(60) == 1
        # Mended before the next start.
        router.config.write_text(PORTS + OTHER)
        router.start()
        assert "last good" not in router.log() and prefixes(router) == ["203.0.113.0/24"]
        router.stop()


def test_a_service_manager_starts_the_last_good_configuration_over_its_host_interfaces(lab):
    machine = Machine(lab, "router")
    left = host(machine, "left", "left", "10.0.1.2", "10.0.1.1")
    host(machine, "right", "right", "10.0.2.2", "10.0.2.1", gateway=True)
    manager = Manager()
    lab._made.callback(manager.close)
    machine.start(manager=manager, options=("--state", "state"))
    router = machine.router
    last_good(router, 1)
    good = router.config.read_text()
    router.kill()
    router.config.write_text(good + 'turnpike.port "third" { device = "net_tap7,iface=a/b" }\n')
    router.start(wait=False)
    assert router.process.wait(60) == 1 and "next start takes" in router.log(), router.log()
    router.start()
    assert "number 1, is used in place of" in router.log()
    assert pings(left, "10.0.2.2", 3)
    machine.finish()


def test_a_refused_file_does_not_wear_out_the_history(lab):
    """Each start with the last good configuration is the same one again, and it is never the one that goes."""
    router = hosts_with_state(lab).router
    last_good(router, 1)
    router.kill()
    router.config.write_text(BROKEN["syntax"])
    for _ in range(3):
        router.start()
        router.kill()
    router.start()
    assert history(router) == [(1, "start with the last good one")]


def test_an_unconfirmed_configuration_is_not_good(lab):
    router = hosts_with_state(lab).router
    last_good(router, 1)
    apply(router, PORTS + OTHER, "--confirm", "300s")
    assert wait_for(lambda: len(index(router)["configurations"]) == 2, 10)
    assert index(router)["last_good"] == 1
    router.kill()
    router.config.write_text(BROKEN["syntax"])
    router.start()
    assert "number 1, is used" in router.log() and prefixes(router) == ["198.51.100.0/24"]
    # Confirmed, one is.
    apply(router, PORTS + OTHER, "--confirm", "300s")
    router.command("confirm")
    last_good(router, history(router)[-1][0])


def test_nothing_to_fall_back_to_is_an_error(lab):
    inside = Hosts(lab, start=False).inside
    router = lab.router(inside, BROKEN["syntax"], options=("--state", "state"), wait=False)
    assert router.process.wait(30) == 1 and "router.lua:" in router.log() and "last good" not in router.log()
    # The machine has changed, and the last good one fails with the file.
    router.config.write_text(PORTS + ROUTE)
    router.start()
    router.stop()
    router.config.write_text(BROKEN["syntax"])
    inside.run("ip", "link", "del", "tp-right")
    router.start(wait=False)
    assert router.process.wait(30) == 1
    log = router.log()
    assert "last good configuration, number 1, is refused, too" in log and "tp-right" in log and "router.lua:" in log, log
    # The same text has failed: not tried twice.
    router.config.write_text(PORTS + ROUTE)
    router.start(wait=False)
    assert router.process.wait(30) == 1
    assert "last good" not in router.log() and "tp-right" in router.log()


def test_a_state_directory_is_the_routers_alone(lab):
    hosts = hosts_with_state(lab)
    router = hosts.router
    last_good(router, 1)
    port = PORTS.splitlines()[1] + '\nturnpike.port "only" { device = "eth0", address = "10.0.2.9/24" }\n'
    other = lab.router(hosts.right, port, options=("--state", router.directory / "state"), wait=False)
    assert other.process.wait(30) == 1 and "another router has it" in other.log()
    router.stop()
    # A file that others could have written is code that runs as root.
    os.chmod(router.directory / "state", 0o777)
    router.start(wait=False)
    assert router.process.wait(30) == 1 and "other users may write to it; chmod 700" in router.log()
    os.chmod(router.directory / "state", 0o700)
    os.chown(router.directory / "state", 65534, 65534)
    router.start(wait=False)
    assert router.process.wait(30) == 1 and "belongs to uid 65534" in router.log()


UNKNOWN = '{"last_good":7,"configurations":[]}'


@pytest.mark.parametrize("damage", ["", "{", "\0" * 100, UNKNOWN, "gone"],
                         ids=["empty", "cut", "zeros", "unknown", "gone"])
def test_a_damaged_directory_costs_the_history_only(lab, damage):
    router = hosts_with_state(lab).router
    last_good(router, 1)
    router.stop()
    path = router.directory / "state/index.json"
    path.write_text(damage) if damage != "gone" else shutil.rmtree(path.parent)
    # Another text, under a number that the directory had already.
    router.config.write_text(PORTS + OTHER)
    router.start()
    assert prefixes(router) == ["203.0.113.0/24"] and history(router)[-1][1] == "start"
    assert "the history begins anew" in router.log() or damage in ("gone", UNKNOWN)
    number = history(router)[-1][0]
    last_good(router, number)
    assert (router.directory / f"state/configuration-{number}.lua").read_text() == PORTS + OTHER


def test_a_full_disk_is_logged_and_costs_no_change(lab, small_disk):
    router = Hosts(lab, ROUTE, options=("--state", small_disk)).router
    apply(router, BIG)
    assert wait_for(lambda: "No space left" in router.log() and "do not survive a restart" in router.log(), 10)
    assert prefixes(router) == ["203.0.113.0/24"]
    kept = json.loads((small_disk / "index.json").read_text())
    assert [line["number"] for line in kept["configurations"]] == [1]
    assert not [name for name in os.listdir(small_disk) if name.startswith(".turnpike-")]
    router.stop()


def test_a_state_directory_that_cannot_be_made_is_named(lab):
    inside = Hosts(lab, start=False).inside
    router = lab.router(inside, PORTS, options=("--state", "/proc/none"), wait=False)
    assert router.process.wait(30) == 1 and "state directory /proc/none" in router.log()

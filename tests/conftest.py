"""Fixtures for the scenarios.

Run `make test`, or one of them with

    .venv/bin/python -m pytest tests/test_drops.py -k runt

as root. They ask the router TURNPIKE=FILE (`make` takes target/debug/turnpike), else target/release/turnpike.
"""

import gc
import os
import subprocess
import zlib
from pathlib import Path

import pytest

from lib.lab import Lab
from lib.router import binary


def pytest_sessionstart(session):
    if os.geteuid() != 0:
        pytest.exit("the scenarios make network namespaces: run them as root", returncode=2)
    if not os.access(binary(), os.X_OK):
        pytest.exit(f"{binary()} is missing: run `make build`", returncode=2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Determines the scenarios that run one after the other, with pytest-xdist's `--dist loadgroup`: those of a file
    that share a module's fixture, floods, and those with a mark. Every other one runs whenever there is a worker for it."""
    groups = [_group(item) for item in items]
    for item, group in zip(items, groups):
        if group and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Files beside each other are alike: some only wait, others need the processor. Mixed, they leave neither idle.
        places = {item: zlib.crc32((group or item.nodeid).encode()) for item, group in zip(items, groups)}
        items.sort(key=places.get)


def pytest_collection_finish():
    # The scenarios collected stay to the end. The garbage collector no longer looks at them, which was a seventh of the
    # processor time of these tests.
    gc.freeze()


def _group(item):
    if marked := item.get_closest_marker("xdist_group"):
        return marked.args[0]
    if item.get_closest_marker("flood"):
        return "flood"
    fixtures = item._fixtureinfo.name2fixturedefs
    shared = [name for name, found in fixtures.items() if found[-1].scope == "module"]
    if not shared:
        return None
    # One for each value of a fixture's parameter.
    chosen = getattr(getattr(item, "callspec", None), "indices", {})
    return "-".join([item.path.stem, *(f"{name}{chosen[name]}" for name in sorted(shared) if name in chosen)])


@pytest.fixture
def lab():
    """Makes namespaces, wires and routers for one test and removes them after it."""
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def module_lab():
    """The same for all tests of a file, where starting a router for each would only cost time."""
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def router(wires):
    """The router of a file that has `wires`; removes additions of a test after it."""
    yield wires.router
    for route in wires.router.show("routes", "--source", "command"):
        wires.router.command("route", "del", route["prefix"])


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    """Checks that no namespace and no process of ours is left when the last test has ended."""
    yield
    assert not _ours()


def _ours():
    """The namespaces with this process's prefix, and the processes it started."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    namespaces = {line.split()[0] for line in listed.splitlines() if line}
    ours = {name for name in namespaces if name.startswith(f"tp{os.getpid()}-")}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return ours | {f"process {pid}: {Path(f'/proc/{pid}/comm').read_text()}" for pid in children}

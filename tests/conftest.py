"""Fixtures for the scenarios.

Run `make test`, or one of them with

    .venv/bin/python -m pytest tests/test_drops.py -k runt

as root. They ask the router TURNPIKE=FILE (`make` takes target/debug/turnpike), else target/release/turnpike.
"""

import os
import subprocess
from pathlib import Path

import pytest

from lib.lab import Lab
from lib.router import binary


def pytest_sessionstart(session):
    if os.geteuid() != 0:
        pytest.exit("the scenarios make network namespaces: run them as root", returncode=2)
    if not os.access(binary(), os.X_OK):
        pytest.exit(f"{binary()} is missing: run `make build`", returncode=2)


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
    """The router of a file that has `wires`; what a test added is gone after it."""
    yield wires.router
    for route in wires.router.show("routes", "--source", "command"):
        wires.router.command("route", "del", route["prefix"])


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    """No namespace and no process of ours is left when the last test has ended."""
    yield
    assert not _ours()


def _ours():
    """The namespaces with this process's prefix, and the processes it started."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    namespaces = {line.split()[0] for line in listed.splitlines() if line}
    ours = {name for name in namespaces if name.startswith(f"tp{os.getpid()}-")}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return ours | {f"process {pid}: {Path(f'/proc/{pid}/comm').read_text()}" for pid in children}

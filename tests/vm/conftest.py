"""The virtual machine of this folder's scenarios: one boot for all of them, and another one if it is lost.

`make test-vm`, or one of them, as root, with

    .venv/bin/python -m pytest tests/vm/test_nics.py -k e1000e
"""

import pytest

from .lib.machine import Machine


_MACHINE = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Boots a machine that the scenario before has lost, before fixtures of any scope use it."""
    if machine := item.config.stash.get(_MACHINE, None):
        machine.boot()


@pytest.fixture(scope="session")
def machine(pytestconfig):
    """The machine, booted when the first test asks for it."""
    made = pytestconfig.stash[_MACHINE] = Machine()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def routers_end(request):
    """Ensures that a failed test leaves no router that holds the NICs of the next one."""
    if "machine" not in request.fixturenames:
        yield
        return
    with request.getfixturevalue("machine").routers_end():
        yield

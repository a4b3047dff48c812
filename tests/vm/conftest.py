"""The virtual machine of this folder's scenarios: one boot for all of them.

`make test-vm`, or one of them, as root, with

    .venv/bin/python -m pytest tests/vm/test_nics.py -k e1000e
"""

import pytest

from .lib.machine import Machine


@pytest.fixture(scope="session")
def machine():
    """The machine, booted when the first test asks for it."""
    made = Machine()
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

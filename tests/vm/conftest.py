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

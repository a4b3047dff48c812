"""Every drop reason has its scenario, or a reason not to have one."""

import importlib
import re
from pathlib import Path

from lib.router import ROOT, drop_reasons

# Reasons that nothing outside the router can provoke, with the unit tests that do.
ONLY_FROM_INSIDE = {
    # No driver for a test machine delivers a packet in a buffer that others use, or near its end.
    "unusable-buffer": "crates/dataplane/src/forwarder/tests.rs",
    # The pool has room for what every queue and ring can hold.
    "no-buffer": "crates/dataplane/src/forwarder/tests.rs",
    # The configuration refuses a route to a port that does not exist.
    "port-down": "crates/dataplane/src/forwarder/tests.rs",
    # The kernel has no such bound; it drops after the interface.
    "host-full": "crates/router/src/slow_worker/tests.rs",
    # The kernel sends no such header.
    "host-malformed": "crates/router/src/slow_worker/tests.rs",
    # It requires defective code.
    "quarantined": "crates/dataplane/src/forwarder/tests.rs",
    "step-lost": "crates/dataplane/src/forwarder/tests.rs",
}


def provoked():
    """The reasons covered by tests: by the mark `provokes`, or as their parameter `reason`."""
    names = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        for test in vars(importlib.import_module(file.stem)).values():
            for mark in getattr(test, "pytestmark", []):
                names |= named_by(mark)
    return names


def named_by(mark):
    if mark.name == "provokes":
        return set(mark.args)
    if mark.name != "parametrize":
        return set()
    named = mark.args[0]
    arguments = [word.strip() for word in (named.split(",") if isinstance(named, str) else named)]
    if "reason" not in arguments:
        return set()
    place = arguments.index("reason")
    return {getattr(row, "values", row)[place] for row in mark.args[1]}


def test_every_drop_reason_is_provoked():
    missing = set(drop_reasons()) - provoked() - set(ONLY_FROM_INSIDE)
    assert not missing, f"no scenario provokes {sorted(missing)}"


def test_the_scenarios_provoke_reasons_that_exist():
    assert provoked() <= set(drop_reasons())
    assert not provoked() & set(ONLY_FROM_INSIDE), "these can be provoked after all"


def test_what_cannot_be_provoked_has_unit_tests():
    for reason, file in ONLY_FROM_INSIDE.items():
        variant = "".join(word.capitalize() for word in reason.split("-"))
        asserted = rf"assert_eq!\(lab\.drops\(DropReason::{variant}\), [1-9]"
        assert re.search(asserted, (ROOT / file).read_text()), f"{file}: {variant}"

"""Length of tests that repeat something: `make test-long` repeats it `SOAK` times as often."""

import os


def repeated(count):
    """The number of repetitions, `count` without SOAK."""
    return count * int(os.environ.get("SOAK", 1))

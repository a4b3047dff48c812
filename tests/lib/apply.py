"""Applies other configurations to a running router."""

import json


def write(router, text, name="new.lua"):
    """Writes a configuration beside the router's own; returns its file."""
    file = router.directory / name
    file.write_text(text)
    return file


def apply(router, text, *options):
    """Applies a configuration and returns the answer."""
    done = router.command("apply", write(router, text), "--json", *options)
    return json.loads(done.stdout)


def plan(router, text, *options):
    """Returns the plan, after a check of the exit status, which indicates changes."""
    done = router.command("plan", write(router, text), "--json", *options, check=False)
    assert done.returncode in (0, 2), done
    return json.loads(done.stdout), done.returncode


def refused(router, *words):
    """The message of a command that must fail."""
    done = router.command(*words, check=False)
    assert done.returncode == 1 and "panicked" not in done.stderr, done
    return done.stderr

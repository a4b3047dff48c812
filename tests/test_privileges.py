"""Privileges of the router's threads: those of the table in SECURITY.md, whatever has been applied since the start."""

import os
import re
from pathlib import Path

from lib.apply import apply
from lib.lab import PORTS, STATIC_NEIGHBOURS, Wires
from lib.netns import wait_for
from lib.router import ROOT

# Bits of linux/capability.h.
BITS = {"NET_ADMIN": 12, "IPC_LOCK": 14, "SYS_ADMIN": 21}
EVERYTHING = """
turnpike.routes_from { "kernel", "fpm" }
turnpike.fpm { listen = "127.0.0.1:2620" }
turnpike.telnet { listen = "127.0.0.1:2323" }
turnpike.metrics { listen = "127.0.0.1:9477" }
turnpike.slowpath { workers = 2 }
turnpike.command "hello" { run = function() return "hello" end }
turnpike.graph:insert_before("classify", turnpike.step "seen" { process = function(batch, mask) return mask end })
"""


def table():
    """Capabilities kept and filtering, by the names of threads, of the table in SECURITY.md; `None`: all of them."""
    text = (ROOT / "SECURITY.md").read_text().split("## Threads", 1)[1]
    found = {}
    for names, kept, refused in re.findall(r"^\| (`.*?`) +\| (.*?) +\| (.*?) +\|$", text, re.M):
        mask = None if kept == "all" else sum(1 << BITS[name] for name in re.findall(r"`CAP_(\w+)`", kept))
        for name in re.findall(r"`(.*?)`", names):
            found[name] = (mask, not refused.startswith("none"))
    return found


def threads(router):
    """Status of each thread, by name; numbers at the end are `N`."""
    pid = router.process.pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = "owner" if task.name == str(pid) else (task / "comm").read_text().strip()
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        yield re.sub(r"\d+$", "N", name), {key: value.strip() for key, value in status.items()}


def assert_as_written(router):
    """Each thread has the privileges of the table; returns the names of the threads."""
    own = int(Path("/proc/self/status").read_text().split("CapPrm:")[1].split()[0], 16)
    written, seen = table(), set()
    for name, status in threads(router):
        assert name in written, f"{name} has no line in SECURITY.md"
        mask, filtered = written[name]
        effective = int(status["CapEff"], 16)
        assert effective == int(status["CapPrm"], 16) == (own if mask is None else mask & own), name
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2" if filtered else "0"), name
        seen.add(name)
    return seen


def everything(router, workers=2):
    hosts = PORTS.replace('device = "tp-left",', 'device = "tp-left", host = true,').replace(
        'device = "tp-right",', 'device = "tp-right", host = true,')
    api = f'turnpike.api {{ socket = "{router.directory}/api.sock", dashboard = true }}\n'
    return hosts + STATIC_NEIGHBOURS + EVERYTHING.replace("workers = 2", f"workers = {workers}") + api


def test_threads_have_the_privileges_that_are_written_down(lab):
    wires = Wires(lab, start=False)
    # Rings for all workers that there will be.
    wires.router = lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS + "turnpike.slowpath { workers = 3 }\n")
    assert assert_as_written(wires.router) >= {"owner", "api", "forwarder-N", "slow-path-N", "signals"}
    # Threads of an apply are no others.
    apply(wires.router, everything(wires.router))
    settled = lambda: "fpm" in {name for name, _ in threads(wires.router)}
    assert wait_for(settled, timeout=20)
    seen = assert_as_written(wires.router)
    assert seen >= {"web", "fpm", "netlink", "multicast", "api-aside", "quarantine"}, seen
    apply(wires.router, everything(wires.router, workers=3))
    assert assert_as_written(wires.router) == seen
    wires.router.stop()
    assert "privileges cannot be given up" not in wires.router.log()

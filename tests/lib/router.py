"""The router under test: started with a configuration, queried over its socket, stopped and checked."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket as socketlib
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from .netns import stop_process, wait_for

ROOT = Path(__file__).resolve().parents[2]


def binary():
    """The router's binary: `$TURNPIKE`, else the release build."""
    if chosen := os.environ.get("TURNPIKE"):
        return chosen
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "release" / "turnpike")


def drop_reasons():
    """The drop reasons as the source declares them: name and sentence."""
    source = (ROOT / "crates/dataplane/src/reason.rs").read_text()
    block = source[source.index("DropReason {"):source.index("PuntReason {")]
    return dict(re.findall(r'= "([\w-]+)", "([^"]+)"', block))


class Router:
    """A `turnpike run` in a namespace.

    The configuration, the log and the socket live in a directory of its own, which goes with it. `env` has
    environment variables of its own. `command` takes the place of `run` and the configuration's file. A
    `manager` (`lib/manager.py`) keeps its host interfaces' descriptors for the next one.
    """

    READY_SECONDS = 30

    # Packets that have not moved for so long wait for something: no busy machine keeps a thread from running longer.
    STILL_SECONDS = 1.0

    def __init__(self, namespace, config, files=None, options=(), socket=None, wait=True, manager=None, env=None,
                 command=None):
        self.namespace = namespace
        self.directory = Path(tempfile.mkdtemp(prefix="turnpike-test-"))
        self.config = self.directory / "router.lua"
        self.config.write_text(config)
        for name, content in (files or {}).items():
            (self.directory / name).write_bytes(content)
        self.socket = Path(socket) if socket else self.directory / "router.sock"
        argv = [binary(), *(command or ["run", self.config]), "--socket", self.socket, *options]
        self._argv, self._manager, self._env, self._log = argv, manager, env, None
        self.start(wait)

    def start(self, wait=True):
        """Starts it; also again after its end, with its file and its directory as they are now, and a new log."""
        if self._log:
            self._log.close()
        self._log = open(self.directory / "log", "wb")
        argv, managed = self._manager.wrap(self._argv) if self._manager else (self._argv, {})
        if self._env:
            # For the router alone, and not for the command that starts it in its namespace.
            argv = ["env", *(f"{name}={value}" for name, value in self._env.items()), *argv]
        self.process = self.namespace.spawn(
            *argv, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, **managed
        )
        if wait:
            self.wait_ready()

    def log(self):
        """Returns the router's output so far, without colours."""
        self._log.flush()
        text = (self.directory / "log").read_text(errors="replace")
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def is_ready(self):
        """Returns true if it has reported that packets flow."""
        return re.search(r"\bready: \d+ ports?", self.log()) is not None

    def wait_ready(self):
        """Returns once packets flow; raises with the log if the router ended or took too long."""
        wait_for(
            lambda: self.is_ready() or self.process.poll() is not None, self.READY_SECONDS
        )
        if self.process.poll() is not None or not self.is_ready():
            raise AssertionError(f"the router is not ready:\n{self.log()}")

    def command(self, *argv, check=True, timeout=20):
        """Runs a `turnpike` command against this router and returns it completed."""
        done = subprocess.run(
            [binary(), *map(str, argv), "--socket", str(self.socket)],
            capture_output=True, text=True, timeout=timeout,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"turnpike {' '.join(map(str, argv))}: exit {done.returncode}\n"
                f"{done.stdout}{done.stderr}\nthe router's log:\n{self.log()}"
            )
        return done

    def dropped(self):
        """The packets dropped so far, by reason."""
        return {reason: count for reason, count in self.show("counters")["dropped"].items() if count}

    def begin(self, *argv):
        """Starts a `turnpike` command against this router, without waiting for its end."""
        argv = [binary(), *map(str, argv), "--socket", str(self.socket)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def thread(self, name):
        """The number of its thread of this name."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        (found,) = [int(task.name) for task in tasks if (task / "comm").read_text().strip() == name]
        return found

    def show(self, *what):
        """The answer of `turnpike show WHAT --json`. A question without options is put to the socket: starting a
        process takes twenty times as long."""
        if len(what) == 1 and (report := self._ask({"show": what[0]})) is not None:
            return report
        return json.loads(self.command("show", *what, "--json").stdout)

    def _ask(self, request):
        """The router's report; None if it has none."""
        with socketlib.socket(socketlib.AF_UNIX) as stream, contextlib.suppress(OSError, ValueError):
            stream.settimeout(20)
            stream.connect(str(self.socket))
            stream.sendall(json.dumps(request).encode() + b"\n")
            with stream.makefile("rb") as answer:
                return json.loads(answer.readline()).get("ok")

    def counters(self):
        """The counters once nothing moves, the sum checked. Packets that are still in flight then wait for something:
        for a neighbour, or for other fragments."""
        last, since = self.show("counters"), time.monotonic()

        def settled():
            nonlocal last, since
            now = self.show("counters")
            # Counters are read one after the other while forwarders count.
            if now != last or now["unaccounted"] != 0:
                last, since = now, time.monotonic()
                return False
            return now["in_flight"] == 0 or time.monotonic() - since > self.STILL_SECONDS

        wait_for(settled, 20.0)
        check_sum(last)
        return last

    def neighbour(self, address):
        """The neighbour's entry in `show neighbours`, None if there is none."""
        found = [n for n in self.show("neighbours") if n["address"] == address]
        return found[0] if found else None

    def stop(self, signum=signal.SIGTERM, timeout=60):
        """Ends the router and checks that it ended cleanly: exit status 0, every mbuf returned."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"runs {timeout} s after {signum!r}:\n{self.log()}") from None
        log = self.log()
        assert self.process.returncode == 0, f"exit {self.process.returncode}:\n{log}"
        assert re.search(r"mbufs: all \d+ returned", log), f"no word on the mbufs:\n{log}"
        assert "defect" not in log, log
        return log

    def holder(self):
        """The process id of the holder of its host interfaces; None if there is none."""
        # The router listens for a holder that it has just started.
        wait_for(lambda: self._holder() != self.process.pid, 20)
        return self._holder()

    def _holder(self):
        with socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_SEQPACKET) as channel:
            try:
                channel.connect(f"{self.socket}.hold")
            except OSError:
                return None
            pid, *_ = struct.unpack("3i", channel.getsockopt(socketlib.SOL_SOCKET, socketlib.SO_PEERCRED, 12))
            return pid

    def kill(self):
        """Ends it by SIGKILL."""
        self.process.kill()
        self.process.wait()

    def close(self):
        """Removes all of its remains, regardless of its state."""
        stop_process(self.process)
        if holder := self.holder():
            # It is the router's child or was orphaned by it: this process cannot wait for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def check_sum(counters):
    """Checks that received + originated + replicated = sent + to host + dropped, also by the router's own report."""
    came = counters["received"] + counters["originated"] + counters["replicated"]
    went = counters["sent"] + counters["to_host"] + counters["dropped_total"]
    assert counters["dropped_total"] == sum(counters["dropped"].values()), counters
    assert counters["unaccounted"] == 0, counters
    assert came == went + counters["in_flight"], counters


class Change:
    """Changes of the counters between its creation and a call.

    ```
    change = Change(router)
    wire.send(frame)
    assert change(received=1) == {"received": 1, "dropped": {"runt": 1}}
    ```
    """

    def __init__(self, router):
        self.router = router
        self.before = router.counters()

    def __call__(self, received, timeout=3.0):
        """Waits until `received` more frames have been received and settled; returns the changes, without zeros."""
        goal = self.before["received"] + received
        wait_for(lambda: self.router.show("counters")["received"] >= goal, timeout)
        # A packet is counted as received when its batch starts: let the batch end.
        time.sleep(0.02)
        after = self.router.counters()
        changes = {}
        for key in ("received", "originated", "replicated", "sent", "to_host"):
            if after[key] != self.before[key]:
                changes[key] = after[key] - self.before[key]
        dropped = {
            reason: count - self.before["dropped"][reason]
            for reason, count in after["dropped"].items()
            if count != self.before["dropped"][reason]
        }
        return {**changes, "dropped": dropped} if dropped else changes

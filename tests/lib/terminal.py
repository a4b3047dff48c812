"""A user at a terminal: a program in a pseudo-terminal, with its input and output."""

import os
import pty
import re
import select
import time


class Terminal:
    """A program with its own terminal, 100 columns wide."""

    def __init__(self, *argv, env=None):
        self.screen = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "COLUMNS": "100", "LINES": "50", **(env or {})})
            try:
                os.execv(argv[0], list(map(str, argv)))
            finally:
                os._exit(127)
        self.status = None

    def type(self, keys):
        """Types these keys; the previous output is discarded."""
        self.screen = ""
        os.write(self._fd, keys.encode())

    def wait_for(self, pattern, seconds=10):
        """Reads until the pattern is on the screen, and returns the match."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.screen, re.S)):
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"{pattern!r} is not on the screen:\n{self.screen}")
        return found

    def ends(self, seconds=10):
        """Reads to the end and returns the exit status."""
        end = time.monotonic() + seconds
        while self._read(end - time.monotonic()):
            pass
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise AssertionError(f"it runs still:\n{self.screen}")
            else:
                time.sleep(0.01)
        return self.status

    def _read(self, seconds):
        """Reads the output that arrives within this time; returns false at the end."""
        if not select.select([self._fd], [], [], max(seconds, 0))[0]:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # The program has ended.
            return False
        text = data.decode(errors="replace")
        # Without colours and movements of the cursor.
        self.screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", text)
        return bool(data)

    def close(self):
        """Ends it, regardless of its state."""
        if self.status is None:
            try:
                os.kill(self.pid, 9)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self._fd)

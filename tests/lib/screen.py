"""A user before a screen: a program in a pseudo-terminal of any size, and what its screen shows."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pyte


class Screen:
    """A program with its own terminal, which shows what an xterm of this size would."""

    def __init__(self, *argv, size=(80, 24), env=None):
        self._master, self._slave = pty.openpty()
        self._resize(size)
        self.modes = termios.tcgetattr(self._slave)
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        # Everything that was written to the terminal.
        self.written = b""
        self.process = subprocess.Popen(
            list(map(str, argv)), stdin=self._slave, stdout=self._slave, stderr=self._slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})},
        )

    def _resize(self, size):
        width, height = size
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def resize(self, *size):
        """Gives the terminal another size, as somebody who pulls at its window."""
        self._screen.resize(size[1], size[0])
        self._resize(size)

    def type(self, keys):
        """Types these keys."""
        os.write(self._master, keys.encode())

    def read(self, seconds=0.0):
        """Takes the output that arrives within this time; returns false if there was none."""
        if not select.select([self._master], [], [], max(seconds, 0))[0]:
            return False
        data = os.read(self._master, 1 << 16)
        self.written += data
        self._stream.feed(data)
        return True

    @property
    def lines(self):
        """The lines of the screen."""
        while self.read():
            pass
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self):
        """The screen."""
        return "\n".join(self.lines)

    def wait_for(self, condition, seconds=20):
        """Returns once the condition on the screen's lines holds, what it returned."""
        end = time.monotonic() + seconds
        while not (found := condition(self.lines)):
            left = end - time.monotonic()
            assert left > 0, f"the screen does not show it:\n{self.text}"
            self.read(min(left, 0.5))
        return found

    def shows(self, text, seconds=20):
        """Returns once the text is on the screen."""
        self.wait_for(lambda lines: any(text in line for line in lines), seconds)

    def ends(self, seconds=20):
        """Reads to the end of the program and returns its exit status."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it runs still:\n{self.text}"
            self.read(0.05)
        while self.read():
            pass
        return self.process.returncode

    def is_sane(self):
        """True if the terminal is as before: its modes, the cursor shown, the other screen left."""
        modes = termios.tcgetattr(self._slave) == self.modes
        entered, left = self.written.count(b"\x1b[?1049h"), self.written.count(b"\x1b[?1049l")
        shown = self.written.rfind(b"\x1b[?25h") > self.written.rfind(b"\x1b[?25l")
        return modes and 0 < entered <= left and shown

    def close(self):
        """Ends the program, regardless of its state."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

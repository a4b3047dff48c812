"""QEMU: its command line, its process, and its control socket (QMP)."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path

_BINARY = "qemu-system-x86_64"
_PR_SET_PDEATHSIG = 1
# Seconds within which a virtual machine that only writes to a port must have done so.
_PROBE_SECONDS = 5
_libc = ctypes.CDLL(None)


def emulates(device):
    """Returns true if this QEMU emulates the device."""
    listed = subprocess.run([_BINARY, "-device", "help"], capture_output=True, text=True, check=True).stdout
    return f'name "{device}"' in listed


# QEMU's arguments for each accelerator.
ACCELERATORS = {
    "kvm": ["-accel", "kvm", "-cpu", "host"],
    "tcg": ["-accel", "tcg,thread=multi", "-cpu", "max"],
}


def accelerators():
    """The usable accelerators, the fastest first. `TURNPIKE_VM_ACCEL` (kvm or tcg) selects the only one."""
    chosen = os.environ.get("TURNPIKE_VM_ACCEL")
    return [chosen] if chosen else ["kvm", "tcg"] if _kvm_works() else ["tcg"]


def _kvm_works():
    """Returns true if a virtual machine executes its first instructions with KVM. Nested, it may hang or be refused
    although `/dev/kvm` exists."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    # mov dx, 0xf4; mov al, 0x10; out dx, al; hlt: QEMU then exits with 2 * 0x10 + 1.
    boot_sector = bytes.fromhex("baf400 b010 ee f4").ljust(510, b"\0") + b"\x55\xaa"
    with tempfile.NamedTemporaryFile() as disk:
        disk.write(boot_sector)
        disk.flush()
        argv = [
            _BINARY, "-accel", "kvm", "-cpu", "host", "-machine", "pc", "-m", "64", "-nodefaults",
            "-display", "none", "-drive", f"file={disk.name},format=raw,if=floppy", "-boot", "a",
            "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
        ]
        try:
            done = subprocess.run(argv, timeout=_PROBE_SECONDS, capture_output=True)
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 2 * 0x10 + 1


def start(arguments, descriptors, output):
    """Starts QEMU, which ends with this process at the latest; `descriptors` stay open in it."""
    return subprocess.Popen(
        [_BINARY, *arguments], pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )


def connect(path, process, seconds=20):
    """Connects to a socket that QEMU is about to make."""
    deadline = time.monotonic() + seconds
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(path))
            return made
        except (FileNotFoundError, ConnectionRefusedError):
            made.close()
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"QEMU makes no {Path(path).name}; exit status {process.poll()}") from None
            time.sleep(0.02)


class Qmp:
    """QEMU's control socket.

    `execute` returns a command's answer; `event` waits for an event that came after the last command or
    comes now.
    """

    def __init__(self, connected):
        self._socket = connected
        self._buffer = b""
        self._events = deque(maxlen=1000)
        self._message(time.monotonic() + 20)  # The greeting.
        self.execute("qmp_capabilities")

    def execute(self, command, **arguments):
        """Runs a command; raises with QEMU's message if it refuses."""
        names = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._events.clear()
        self._socket.sendall(json.dumps({"execute": command, "arguments": names}).encode() + b"\n")
        deadline = time.monotonic() + 30
        while True:
            message = self._message(deadline)
            if "error" in message:
                raise RuntimeError(f"QMP {command} {names}: {message['error']['desc']}")
            if "return" in message:
                return message["return"]
            self._events.append(message)

    def event(self, name, seconds=30, **data):
        """Waits for an event with this data; returns it."""
        deadline = time.monotonic() + seconds
        while True:
            while self._events:
                event = self._events.popleft()
                if event["event"] == name and data.items() <= event.get("data", {}).items():
                    return event
            self._events.append(self._message(deadline))

    def _message(self, deadline):
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            data = self._socket.recv(65536)
            if not data:
                raise RuntimeError("QEMU has closed its control socket")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def close(self):
        """Closes the socket."""
        self._socket.close()

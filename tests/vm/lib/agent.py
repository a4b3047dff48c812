"""Runs in the VM: does what `machine.py` asks by lines of JSON on a virtio serial port, in any order.

A request has a number and names a method of `Agent`; the answer has the number and a result or an error.
The program imports nothing of the tests, and starts without site packages: it is read over 9p.
"""

import base64
import glob
import json
import os
import signal
import subprocess
import threading

_NAME = "turnpike-lab"


def _port():
    """The device of the serial port with our name."""
    for name in glob.glob("/sys/class/virtio-ports/*/name"):
        if open(name).read().strip() == _NAME:
            return "/dev/" + name.split("/")[-2]
    raise SystemExit(f"no virtio port is called {_NAME}")


class Agent:
    """The methods for requests."""

    def __init__(self):
        self._processes = {}

    def run(self, argv, input=None, timeout=None, cwd=None):
        """Runs a command to its end."""
        try:
            done = subprocess.run(
                argv, input=input, timeout=timeout, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                stdin=None if input is not None else subprocess.DEVNULL, text=True, errors="replace",
            )
        except subprocess.TimeoutExpired:
            return {"timeout": True}
        return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

    def spawn(self, argv, output="/dev/null", cwd=None):
        """Starts a command whose output goes to a file; returns its process id."""
        with open(output, "ab") as file:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=cwd, start_new_session=True
            )
        self._processes[process.pid] = process
        return process.pid

    def poll(self, pid, timeout=0):
        """The exit status of a process, None if it still runs after the time."""
        try:
            return self._processes[pid].wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self, pid, signum):
        """Sends a process a signal; nothing if it has ended."""
        self._processes[pid].send_signal(signum)

    def write(self, path, data):
        """Writes a file, and the folders it is in."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def read(self, path, offset=0):
        """The bytes of a file from an offset on."""
        with open(path, "rb") as file:
            file.seek(offset)
            return base64.b64encode(file.read()).decode()

    def glob(self, pattern):
        """The paths that match."""
        return sorted(glob.glob(pattern))

    def link(self, path):
        """The last part of a symbolic link's target, None if there is no link."""
        try:
            return os.path.basename(os.readlink(path))
        except FileNotFoundError:
            return None


def main():
    """Serves until the other end closes."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    agent, lock = Agent(), threading.Lock()
    port = open(_port(), "r+b", buffering=0)
    buffer = b""

    def say(answer):
        line = json.dumps(answer).encode() + b"\n"
        with lock:
            while line:
                line = line[port.write(line) :]

    def answer(request):
        number = request["number"]
        try:
            say({"number": number, "result": getattr(agent, request["do"])(**request["with"])})
        except Exception as error:
            say({"number": number, "error": f"{type(error).__name__}: {error}"})

    # Unsolicited: reports that the machine is up.
    say({"number": 0, "result": None})
    while data := port.read(65536):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in filter(None, lines):
            threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


main()

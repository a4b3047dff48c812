"""Network namespaces and the hosts in them.

Everything a test makes lives in namespaces that this module named and that it removes by that
name, so a test machine's own interfaces never see a packet. Deleting a namespace deletes the
interfaces in it, and with them the veth pairs.
"""

import contextlib
import ctypes
import itertools
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_SO_NETNS_COOKIE = 71
# Of linux/ptrace.h and linux/wait.h.
_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 17, 0x4206, 0x4207
_WALL = 0x40000000
_numbers = itertools.count()


def _setns(fd):
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


class Namespace:
    """A network namespace with a name that no other test process uses.

    `quiet` switches the kernel's own IPv6 off in it, so that an interface carries nothing but
    what a test sends: no router solicitations, no multicast reports.
    """

    def __init__(self, role, quiet=False):
        self.name = f"tp{os.getpid()}-{next(_numbers)}-{role}"
        self._processes = []
        _ip("netns", "add", self.name)
        try:
            if quiet:
                for scope in ("all", "default"):
                    self.sysctl(f"net.ipv6.conf.{scope}.disable_ipv6", 1)
            self.run("ip", "link", "set", "lo", "up")
        except BaseException:
            self.delete()
            raise

    @classmethod
    def existing(cls, name):
        """A namespace that another program has made, and removes."""
        namespace = cls.__new__(cls)
        namespace.name, namespace._processes = name, []
        return namespace

    def command(self, *argv):
        """The argument list that runs `argv` inside; `ip` replaces itself, so the pid is argv's."""
        argv = [str(part) for part in argv]
        if argv[:1] == ["ip"]:
            # It enters by itself: one program less, and no mounts of its own.
            return ["ip", "-netns", self.name, *argv[1:]]
        return ["ip", "netns", "exec", self.name, *argv]

    def run(self, *argv, check=True, timeout=60, **kwargs):
        """Runs a command inside and returns it completed, with its output as text."""
        done = subprocess.run(
            self.command(*argv),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            **kwargs,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stdout}")
        return done

    def spawn(self, *argv, **kwargs):
        """Starts a command inside; it is stopped at the latest when the namespace is removed."""
        process = subprocess.Popen(self.command(*argv), **kwargs)
        self._processes.append(process)
        return process

    def sysctl(self, key, value):
        """Sets a kernel parameter of this namespace."""
        with self.entered(), open("/proc/sys/" + key.replace(".", "/"), "w") as file:
            file.write(str(value))

    @contextlib.contextmanager
    def entered(self):
        """Context in which sockets created by this thread and /proc/sys/net belong to the namespace."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            away = os.open(f"/run/netns/{self.name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _setns(away)
            finally:
                os.close(away)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)

    def links(self):
        """The namespace's interfaces and their `ip -d` lines, to check the traces of a router."""
        return self.run("ip", "-d", "link", "show").stdout

    def link_settings(self):
        """All settings of the namespace's interfaces, by name: without the state of their links, which settles by
        itself some time after their creation, and the lengths of their queues."""
        links = json.loads(self.run("ip", "-d", "-j", "link", "show").stdout)
        for link in links:
            link["flags"] = sorted(set(link["flags"]) - {"LOWER_UP", "NO-CARRIER", "DORMANT"})
            for name in ("operstate", "txqlen"):
                link.pop(name, None)
        return {link["ifname"]: link for link in links}

    def settings(self):
        """The kernel parameters of each interface: path and value."""
        values = {}
        with self.entered():
            for file in Path("/proc/sys/net").glob("ipv[46]/conf/*/*"):
                # Some cannot be read, or not before they are written.
                with contextlib.suppress(OSError):
                    values[str(file)] = file.read_text()
        return values

    def cookie(self):
        """The number by which the kernel identifies the namespace."""
        with self.entered(), socket.socket() as any_socket:
            return int.from_bytes(any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")

    def delete(self):
        """Ends the processes started here and removes the namespace with all it holds."""
        for process in self._processes:
            stop_process(process)
        self._processes.clear()
        _ip("netns", "del", self.name)


def stop_process(process, timeout=5):
    """Ends a process by SIGTERM, then by SIGKILL; returns its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdout, process.stderr, process.stdin):
        if stream is not None:
            stream.close()
    return process.returncode


@contextlib.contextmanager
def on_core(core):
    """Confines this process and its children to one core, like taskset."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def held_thread(thread):
    """Stops one thread of a process, by its number, while its others run on. The main thread has the process's."""
    _ptrace(_PTRACE_SEIZE, thread)
    try:
        _ptrace(_PTRACE_INTERRUPT, thread)
        os.waitpid(thread, _WALL)
        yield
    finally:
        _ptrace(_PTRACE_DETACH, thread)


def _ptrace(request, thread):
    if _libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of thread {thread}")


def wait_for(condition, timeout=5.0, interval=0.02):
    """Waits until `condition()` is true and returns its value, or the last value at the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value or time.monotonic() >= deadline:
            return value
        time.sleep(interval)


def veth(ns_a, name_a, ns_b, name_b, mac_a=None, mac_b=None, mtu=1500):
    """Joins two namespaces by a veth pair, both ends up."""
    # The MACs are given at creation: a later change would make the kernel announce it.
    end_a = ["name", name_a, "netns", ns_a.name] + (["address", mac_a] if mac_a else [])
    end_b = ["name", name_b, "netns", ns_b.name] + (["address", mac_b] if mac_b else [])
    _ip("link", "add", *end_a, "mtu", str(mtu), "type", "veth", "peer", *end_b, "mtu", str(mtu))
    ns_a.run("ip", "link", "set", name_a, "up")
    ns_b.run("ip", "link", "set", name_b, "up")


def bridge_tap(inside, name, side, host, interface):
    """Joins a TAP device `tp-NAME` of a router's namespace with an interface of a host's, by a bridge and a veth pair.
    `side` is part of the MACs."""
    veth(inside, f"veth-{name}", host, interface, f"02:00:00:00:0{side}:08", f"02:00:00:00:0{side}:02")
    inside.run("ip", "link", "add", f"br-{name}", "type", "bridge", "mcast_snooping", 0)
    inside.run("ip", "link", "set", f"tp-{name}", "address", f"02:00:00:00:0{side}:09")
    for part in (f"tp-{name}", f"veth-{name}"):
        inside.run("ip", "link", "set", part, "master", f"br-{name}", "up")
    inside.run("ip", "link", "set", f"br-{name}", "up")


def _ip(*argv):
    done = subprocess.run(["ip", *argv], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(argv)}: {done.stderr.strip()}")

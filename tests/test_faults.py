"""Failures around the router and inside of it: threads that stand still, no descriptors, full disks, system calls that
fail. The table is docs/faults.md.

In each case packets flow on, what cannot be done is refused by a sentence, and once the fault is over everything works
again and ends orderly.
"""

import contextlib
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lib import tables
from lib.apply import apply, refused, write
from lib.kernel import Machine, host, pings, reaches
from lib.netns import held_thread, wait_for
from lib.router import binary
from lib.soak import repeated
from lib.traffic import Sink, Stream, lost

# With SOAK=4, of `make test-long`, threads stand still for six seconds.
HELD_SECONDS = 1.5

# The process's first thread, which has its binary's name.
OWNER = "owner"

# Names of the router's threads, and whether packets wait for them. A new thread needs a line.
THREADS = {
    "forwarder-0": True, "slow-path-0": False, "netlink": False, "fpm": False, "api": False, "signals": False,
    "owner-aside": False, "api-aside": False, "quarantine": False, "multicast": False, "holder-watch": False, "web": False, "export": False, "eal-intr-thread": False, OWNER: False,
}  # fmt: skip


class Net:
    """A router whose routes are the kernel's, between two hosts, and a numbered stream from one to the other."""

    def __init__(self, lab, config=""):
        self.machine = Machine(lab, "router")
        self.left = host(self.machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
        self.right = host(self.machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
        self.machine.start('"kernel", "fpm"', 'turnpike.api { listen = "127.0.0.1:8181" } turnpike.sflow { collector = "127.0.0.1", sample = 9 }\n' + config)
        self.router = self.machine.router
        for address in ("10.0.2.2", "fd00:2::2"):
            assert reaches(self.left, address)

    @contextlib.contextmanager
    def stream(self):
        """A stream; at its end, all of it has arrived, but for packets that the port's device counted as missed."""
        sink = Sink(self.right)
        sending = Stream(self.left, ["10.0.2.2", "fd00:2::2"], rate=500)
        assert sink.wait(20)
        yield
        sent = sending.stop()
        missed = sum(port["rx_missed"] for port in self.router.show("ports"))
        assert len(lost(sent, sink)) <= missed
        sink.close()

    def is_well(self):
        """Checks everything that works in a router without faults."""
        for source, target in ((self.left, "10.0.2.2"), (self.right, "fd00:1::2"), (self.left, "10.0.1.1")):
            assert reaches(source, target), target
        self.machine.ip("route", "replace", "198.51.100.0/24", "via", "10.0.2.2")
        tables.assert_agree(self.machine)
        apply(self.router, self.machine.config('"kernel", "fpm"') + 'turnpike.route "203.0.113.0/24" { via = "10.0.2.2" }\n')
        assert self.router.show("route", "203.0.113.1")["type"] != "no-route"
        self.machine.finish()


def threads(router):
    """Its threads: numbers by name."""
    pid = router.process.pid
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {OWNER if task.name == str(pid) else (task / "comm").read_text().strip(): int(task.name) for task in tasks}


def test_all_threads_have_a_line(lab):
    assert set(threads(Net(lab).router)) == set(THREADS)


@pytest.mark.parametrize("name", THREADS)
def test_a_thread_stands_still(lab, name):
    net = Net(lab)
    carries = THREADS[name]
    with net.stream() if not carries else contextlib.nullcontext(), held_thread(threads(net.router)[name]):
        time.sleep(repeated(HELD_SECONDS))
        assert pings(net.left, "10.0.2.2", timeout=2) != carries
    net.is_well()


def test_the_holder_of_host_interfaces_stands_still(lab):
    net = Net(lab)
    holder = net.router.holder()
    os.kill(holder, signal.SIGSTOP)
    try:
        with net.stream():
            time.sleep(repeated(HELD_SECONDS))
            assert pings(net.left, "10.0.1.1", timeout=2)
    finally:
        os.kill(holder, signal.SIGCONT)
    net.is_well()


def processor_seconds(pid):
    """Time of processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_no_descriptors_are_left(lab):
    net = Net(lab)
    pid = net.router.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with net.stream():
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
        # New descriptors have the lowest free number: none below the limit is free.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(numbers), hard))
        used = processor_seconds(pid)
        begin = time.monotonic()
        # Its question waits, or is refused, but nothing spins meanwhile.
        waiting = net.router.begin("show", "counters")
        time.sleep(repeated(HELD_SECONDS))
        share = (processor_seconds(pid) - used) / (time.monotonic() - begin)
        assert share < 0.8, f"{share:.2f} of a processor without descriptors"
        assert pings(net.left, "10.0.2.2")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        waiting.communicate(timeout=20)
    net.is_well()


@pytest.fixture
def full_disk(tmp_path):
    """A disk without a free byte."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path], check=True)
    with contextlib.suppress(OSError), open(tmp_path / "filler", "wb") as file:
        while True:
            os.write(file.fileno(), bytes(4096))
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_capture_to_a_full_disk_says_so(lab, full_disk):
    net = Net(lab)
    with net.stream():
        said = refused(net.router, "capture", "--count", 100, "-w", full_disk / "out.pcapng")
        assert "No space left on device" in said and "out.pcapng" in said, said
    net.is_well()


def test_a_log_on_a_full_disk_is_done_without(lab, full_disk):
    net = Net(lab)
    descriptor = os.open(full_disk / "log", os.O_WRONLY | os.O_CREAT)
    net.machine.router.stop()
    # The same again, with the log there.
    router = net.machine.router
    argv = ["sh", "-c", f'exec "$@" >> {full_disk}/log 2>&1', "sh", *map(str, router._argv)]
    process = net.machine.wires.spawn(*argv, cwd=router.directory, stdin=subprocess.DEVNULL)
    router.process = process
    assert reaches(net.left, "10.0.2.2", 30)
    assert os.fstat(descriptor).st_size == 0
    apply(router, net.machine.config())
    assert reaches(net.left, "10.0.2.2")
    process.terminate()
    assert process.wait(30) == 0
    os.close(descriptor)


# System calls and their errors. Those of write are ones of an eventfd, too, which wakes threads.
CALLS = [
    ("sendto", "ENOBUFS"), ("recvmsg", "ENOBUFS"), ("recvfrom", "EINTR"), ("read", "EIO"),
    ("read", "EINTR"), ("readv", "EIO"), ("write", "EAGAIN"), ("writev", "EAGAIN"), ("writev", "EIO"),
    ("openat", "EMFILE"), ("openat", "ENOMEM"), ("accept4", "EMFILE"), ("accept4", "ECONNABORTED"), ("socket", "ENFILE"),
    ("epoll_wait", "EINTR"), ("ioctl", "EIO"), ("fcntl", "EMFILE"),
    ("getsockopt", "ENOBUFS"),
]  # fmt: skip


def state(pid, task=""):
    """As in proc(5): R runs, S sleeps, t is stopped by its tracer, …"""
    return Path(f"/proc/{pid}{task}/stat").read_text().rpartition(")")[2].split()[0]


def all_stopped(pid):
    return {state(pid, f"/task/{task}") for task in os.listdir(f"/proc/{pid}/task")} <= {"t", "T"}


@contextlib.contextmanager
def failing(router, call, error):
    """Every third system call of this name fails with the error, in each of the router's threads; some must be made."""
    made = router.directory / "strace"
    inject = f"inject={call}:error={error}:when=1+3"
    argv = ["strace", "-f", "-q", "-p", str(router.process.pid), "-e", f"trace={call}", "-e", inject, "-o", made]
    tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{router.process.pid}/task/{router.thread('signals')}/status")
    assert wait_for(lambda: f"TracerPid:\t{tracer.pid}\n" in status.read_text(), 20)
    try:
        yield
    finally:
        # Stopped, no thread is between the entry that strace has replaced and the exit at which it puts the error:
        # detached there, the call would fail with ENOSYS.
        router.process.send_signal(signal.SIGSTOP)
        try:
            assert wait_for(lambda: all_stopped(router.process.pid) and state(tracer.pid) == "S", 20)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(20)
        finally:
            router.process.send_signal(signal.SIGCONT)
    assert "(INJECTED)" in made.read_text(errors="replace"), f"no {call} was made"


@pytest.mark.parametrize(("call", "error"), CALLS)
def test_system_calls_fail(lab, call, error):
    net = Net(lab)
    other = write(net.router, net.machine.config('"kernel", "fpm"') + 'turnpike.route "192.0.2.0/24" { via = "10.0.2.2" }\n')
    with failing(net.router, call, error):
        for number in range(3):
            net.machine.ip("route", "replace", f"198.18.{number}.0/24", "via", "10.0.2.2")
            net.router.command("show", "counters", check=False)
            net.router.command("apply" if number % 2 else "plan", other, check=False)
            pings(net.left, "10.0.1.1")
            pings(net.left, "10.0.2.2")
        net.machine.ip("route", "del", "198.18.1.0/24")
        assert net.router.process.poll() is None, net.router.log()
    net.is_well()


def test_no_memory_is_left(lab):
    """The router ends, as the kernel would end it, and its next start has the same host interfaces."""
    net = Net(lab)
    router, before = net.router, net.machine.index("left")
    file = router.directory / "table.dat"
    subprocess.run([binary(), "generate-table", "500000", file], check=True, capture_output=True)
    large = net.machine.config() + f'turnpike.import {{ file = "{file}", via = "10.0.2.2" }}\n'
    pages = int(Path(f"/proc/{router.process.pid}/statm").read_text().split()[0])
    # Some megabytes more than it has.
    limit = pages * resource.getpagesize() + (5 << 20)
    resource.prlimit(router.process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    said = refused(router, "apply", write(router, large))
    assert "closed the connection without an answer" in said, said
    assert router.process.wait(20) == -signal.SIGABRT
    assert "memory allocation of" in router.log()
    router.start()
    assert net.machine.index("left") == before
    net.is_well()

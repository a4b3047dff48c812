"""The virtual machine: boots, runs commands and routers, moves its NICs between drivers, unplugs them."""

import base64
import contextlib
import itertools
import json
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from lib.netns import wait_for
from lib.router import Router, binary

from . import qemu
from .kernel import Kernel
from .nic import KINDS, SHARED, Nic, bridge

_HERE = Path(__file__).resolve().parent
# NICs of each kind.
_EACH = 2
# Under TCG a boot takes 15 to 40 seconds on a quiet machine.
_BOOT_SECONDS = 240
# By a processor's own virtualisation it takes seconds, or fails.
_FAST_BOOT_SECONDS = 30
_MEMORY_OF_NODE = "2G"
_HUGEPAGES_OF_NODE = 400
# Memory that is cleared when allocated, and work around faults that emulated cores do not have, cost much of
# the time. Emulated cores have one TSC in step, and the kernel's doubt about that would leave it the HPET, each
# read of which takes QEMU's lock. A test may write to a device that a driver has.
_KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet panic=-1 no_timer_check intel_iommu=on init_on_alloc=0 mitigations=off tsc=reliable iomem=relaxed "
    # A machine that does not answer says where each of its cores is; see `Machine._last_words`.
    "unknown_nmi_panic panic_print=0x40"
)
_CORES = 8
# Of one test run.
_MAX_BOOTS = 4
# It remaps interrupts, without which the kernel would reach each core's interrupt controller as memory and not by
# registers of the core (x2APIC). As memory, in a third of the boots a core of QEMU 10.0's had its timer interrupt
# in service for ever, from when PCI devices were looked for, and heard of no device and no timer any more.
_IOMMU = "intel-iommu,intremap=on,eim=on"


# Stores the value as one word, as a device wants it.
_WRITE_REGISTER = """
import ctypes, mmap, sys
with open(sys.argv[1], "r+b") as file:
    region = mmap.mmap(file.fileno(), 0)
    ctypes.c_uint32.from_buffer(region, int(sys.argv[2])).value = int(sys.argv[3])
"""


class NotBootedError(RuntimeError):
    """The machine's agent has not started in time."""


class Machine:
    """One virtual machine with eight cores on two NUMA nodes, an IOMMU, hugepages on each node, and two NICs
    of each kind, the first on node 0 and the second on node 1. It sees this machine's files, read-only; what
    it writes is its own and goes with it."""

    def __init__(self):
        self._routers = []
        self._boots = 0
        self.boot()

    def boot(self):
        """Boots it, unless it runs. One that does not answer any more fails the scenario that noticed it, and not all that
        follow; if that happens again and again, the run ends."""
        if self._boots and not self._agent.lost:
            return
        if self._boots == _MAX_BOOTS:
            pytest.exit(f"the virtual machine was lost {_MAX_BOOTS} times", returncode=1)
        if self._boots:
            print(f"the virtual machine is lost and booted anew; its console:\n{self.console()[-8000:]}")
            self.close()
        self._boots += 1
        *preferred, last = qemu.accelerators()
        # A nested KVM that runs a boot sector may still fail at an instruction of the kernel's.
        for accelerator in preferred:
            try:
                self._boot(accelerator, _FAST_BOOT_SECONDS)
                return
            except NotBootedError as error:
                print(f"{accelerator}: {error}")
        self._boot(last, _BOOT_SECONDS)

    def _boot(self, accelerator, seconds):
        self._made = contextlib.ExitStack()
        try:
            self._start(accelerator, seconds)
        except BaseException as error:
            error.add_note(f"QEMU and the machine's console:\n{self.console()[-8000:]}")
            self._made.close()
            raise

    def _start(self, accelerator, seconds):
        self._directory = Path(tempfile.mkdtemp(prefix="turnpike-vm-"))
        self._made.callback(shutil.rmtree, self._directory, ignore_errors=True)
        self.nics = {}
        kinds = [*(kind for kind in KINDS if qemu.emulates(KINDS[kind]["device"])), SHARED]
        for number, (kind, index) in enumerate(itertools.product(kinds, range(_EACH)), 1):
            nic = Nic(kind, index, number)
            self._made.callback(nic.close)
            self.nics[nic.name] = nic
        self._process = self._start_qemu(Kernel.of_debian(), accelerator)
        self._made.callback(self._end_qemu)
        self.qmp = qemu.Qmp(qemu.connect(self._directory / "qmp", self._process))
        self._made.callback(self.qmp.close)
        self._agent = _Agent(qemu.connect(self._directory / "agent", self._process), self._last_words)
        self._made.callback(self._agent.close)
        self._agent.wait_up(self._process, seconds)
        self._read_addresses()

    def _start_qemu(self, kernel, accelerator):
        initramfs = self._directory / "initramfs"
        kernel.initramfs(initramfs, _HERE / "init")
        descriptors = [descriptor for nic in self.nics.values() for descriptor in nic.open()]
        environment = {
            "LAB_SETUP": _HERE / "setup.sh",
            "LAB_AGENT": _HERE / "agent.py",
            # Without the virtual environment's wrapper.
            "LAB_PYTHON": Path(sys.executable).resolve(),
            "LAB_MODULES": kernel.modules,
            "LAB_HUGEPAGES": _HUGEPAGES_OF_NODE,
        }
        settings = " ".join(f"{name}={value}" for name, value in environment.items())
        arguments = [
            *qemu.ACCELERATORS[accelerator],
            "-machine", "q35,kernel-irqchip=split", "-device", _IOMMU,
            *_cores_and_memory(),
            "-nodefaults", "-display", "none", "-no-reboot",
            "-chardev", f"file,id=console,path={self._directory / 'console'}", "-serial", "chardev:console",
            "-qmp", f"unix:{self._directory / 'qmp'},server=on,wait=off",
            # QEMU may lose the interrupt of a queue whose driver says from which element on it wants one; see `_Agent._answer`.
            "-device", "virtio-serial-pci,bus=pcie.0,event_idx=off",
            "-chardev", f"socket,id=agent,path={self._directory / 'agent'},server=on,wait=off",
            "-device", "virtserialport,chardev=agent,name=turnpike-lab",
            "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,bus=pcie.0,fsdev=root,mount_tag=host",
            "-kernel", str(kernel.image), "-initrd", str(initramfs),
            "-append", f"{_KERNEL_ARGUMENTS} {settings}",
            *bridge(), *(argument for nic in self.nics.values() for argument in nic.arguments()),
        ]  # fmt: skip
        with open(self._directory / "qemu", "wb") as output:
            process = qemu.start(arguments, descriptors, output)
        for nic in self.nics.values():
            nic.opened()
        return process

    def _end_qemu(self):
        """Ends QEMU. Nothing in the machine needs an orderly shutdown: its files are in memory."""
        self._process.kill()
        self._process.wait()

    def close(self):
        """Ends it and removes the hosts at its NICs."""
        self._made.close()

    def console(self):
        """Output of the kernel and of QEMU, for messages."""
        files = [self._directory / "qemu", self._directory / "console"]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def _last_words(self):
        """The console of a machine that does not answer, after its kernel has been made to say where its cores are."""
        with contextlib.suppress(Exception):
            self.qmp.execute("inject-nmi")
            self._process.wait(20)
        return self.console()

    # Commands and files

    def run(self, *argv, check=True, timeout=60, input=None):
        """Runs a command in the machine and returns it completed, with `stdout` and `stderr` as text."""
        argv = [*map(str, argv)]
        done = self._agent.ask(timeout + 30, "run", argv=argv, timeout=timeout, input=input)
        if "timeout" in done:
            raise subprocess.TimeoutExpired(argv, timeout)
        if check and done["status"] != 0:
            said = done["stdout"] + done["stderr"]
            raise RuntimeError(f"in the machine: {' '.join(argv)}: exit {done['status']}\n{said}")
        return subprocess.CompletedProcess(argv, done["status"], done["stdout"], done["stderr"])

    def spawn(self, *argv, output="/dev/null", cwd=None):
        """Starts a command in the machine; returns it as a `GuestProcess`."""
        argv = [*map(str, argv)]
        pid = self._agent.ask(30, "spawn", argv=argv, output=str(output), cwd=cwd and str(cwd))
        return GuestProcess(self._agent, argv, pid)

    def write(self, path, content):
        """Writes a file in the machine: text or bytes."""
        data = content.encode() if isinstance(content, str) else content
        self._agent.ask(30, "write", path=str(path), data=base64.b64encode(data).decode())

    def read(self, path, offset=0):
        """The text of a file in the machine, from an offset in bytes on."""
        data = self._agent.ask(30, "read", path=str(path), offset=offset)
        return base64.b64decode(data).decode(errors="replace")

    def exists(self, path):
        """Returns true if such a file exists in the machine."""
        return bool(self._agent.ask(30, "glob", pattern=str(path)))

    def glob(self, pattern):
        """The paths in the machine that match."""
        return self._agent.ask(30, "glob", pattern=str(pattern))

    def linux(self):
        """The version of the machine's kernel, two numbers."""
        return tuple(map(int, self.run("uname", "-r").stdout.split("-")[0].split(".")[:2]))

    def modprobe(self, *modules):
        """Loads modules of the machine's kernel."""
        self.run("modprobe", "-a", *modules)

    def dmesg(self):
        """The kernel's messages so far, a list of lines."""
        return self.run("dmesg", "--notime").stdout.splitlines()

    def dma_faults(self):
        """The accesses refused by the IOMMU, as reported by the kernel."""
        return [line for line in self.dmesg() if "DMAR:" in line and "fault addr" in line]

    # NICs

    def nic(self, kind, index=0):
        """A NIC, by kind and number; skips the test if this QEMU does not emulate the kind."""
        if f"{kind}-{index}" not in self.nics:
            pytest.skip(f"this QEMU has no {kind}: scripts/install-vm-deps.sh installs one that has, if it can")
        return self.nics[f"{kind}-{index}"]

    def driver(self, nic):
        """The name of the driver a NIC is bound to, None if to none."""
        return self._agent.ask(30, "link", path=f"/sys/bus/pci/devices/{nic.pci}/driver")

    def bind(self, nic, driver):
        """Binds a NIC to a kernel driver (`vfio-pci`, `uio_pci_generic`, `e1000e`, …), None: to none."""
        device = f"/sys/bus/pci/devices/{nic.pci}"
        if self.driver(nic) == driver:
            return
        if self.driver(nic):
            self.write_setting(f"{device}/driver/unbind", nic.pci)
        self.write_setting(f"{device}/driver_override", driver or "\n")
        # A driver that programs no IOMMU needs one that does not translate.
        domain = f"{device}/iommu_group/type"
        wanted = "identity" if driver == "uio_pci_generic" else "DMA-FQ"
        if self.read(domain).strip() != wanted:
            self.write_setting(domain, wanted)
        if driver:
            self.modprobe(driver)
            self.write_setting("/sys/bus/pci/drivers_probe", nic.pci)
            if self.driver(nic) != driver:
                raise RuntimeError(f"{nic.name} ({nic.pci}) is not bound to {driver}:\n{self.dmesg()[-5:]}")

    def write_setting(self, path, value):
        """Writes a file of sysfs or procfs."""
        self._agent.ask(60, "write", path=path, data=base64.b64encode(str(value).encode()).decode())

    def iommu_group(self, nic):
        """The number of a NIC's IOMMU group, None without."""
        return self._agent.ask(30, "link", path=f"/sys/bus/pci/devices/{nic.pci}/iommu_group")

    def set_link(self, nic, up):
        """Plugs or unplugs a NIC's cable."""
        self.qmp.execute("set_link", name=nic.name, up=up)

    def unplug(self, nic, wait=True):
        """Requests the release of a NIC by the machine; waits for it unless specified otherwise."""
        self.qmp.execute("device_del", id=nic.name)
        if wait:
            self.wait_unplugged(nic)

    def wait_unplugged(self, nic, seconds=60):
        """Waits until the NIC is removed."""
        self.qmp.event("DEVICE_DELETED", seconds, device=nic.name)

    def plug(self, nic):
        """Puts an unplugged NIC back, in the same place; returns when the kernel has found it, bound to no
        driver."""
        # The same command of QMP wants each property with its type.
        if said := self.qmp.execute("human-monitor-command", command_line=f"device_add {nic.properties()}"):
            raise RuntimeError(f"device_add {nic.name}: {said}")
        if not wait_for(lambda: self.exists(f"/sys/bus/pci/devices/{nic.pci}"), 60, 0.1):
            raise RuntimeError(f"{nic.name} is plugged in, but there is no {nic.pci}:\n{self.dmesg()[-9:]}")

    def write_register(self, nic, offset, value):
        """Writes a register of 32 bits in a NIC's first memory region, regardless of its driver."""
        self.run(
            "python3", "-c", _WRITE_REGISTER, f"/sys/bus/pci/devices/{nic.pci}/resource0", offset, value
        )

    def _read_addresses(self):
        """Asks QEMU which addresses the firmware gave to the NICs."""
        def devices(bus):
            for device in bus["devices"]:
                yield device
                yield from devices(device.get("pci_bridge", {"devices": []}))

        buses = self.qmp.execute("query-pci")
        placed = {device["qdev_id"]: device for bus in buses for device in devices(bus)}
        for nic in self.nics.values():
            place = placed[nic.name]
            nic.pci = f"0000:{place['bus']:02x}:{place['slot']:02x}.{place['function']}"

    # Routers

    def router(self, config, **options):
        """Starts a router in the machine: a `GuestRouter`, ready unless `wait=False`."""
        router = GuestRouter(self, config, **options)
        self._routers.append(router)
        return router

    @contextlib.contextmanager
    def routers_end(self):
        """Ends the routers started meanwhile, regardless of their state: no NIC stays busy."""
        before = len(self._routers)
        try:
            yield
        finally:
            for router in self._routers[before:]:
                router.close()
            del self._routers[before:]


def _cores_and_memory():
    """Sockets of two cores, which are of two NUMA nodes in turns (0, 1, 4 and 5 are of node 0), each with half of the
    memory."""
    arguments = ["-smp", f"{_CORES},sockets={_CORES // 2},cores=2", "-m", "4G"]
    for node in (0, 1):
        arguments += [
            "-object", f"memory-backend-ram,id=memory{node},size={_MEMORY_OF_NODE}",
            "-numa", ",".join([f"node,nodeid={node},memdev=memory{node}", *_cpus_of(node)]),
            "-device", f"pxb-pcie,id=node{node},bus=pcie.0,bus_nr={0x40 * (node + 1)},numa_node={node}",
        ]  # fmt: skip
    return arguments


def _cpus_of(node):
    """QEMU's options for the cores of a node, a socket each."""
    return [f"cpus={first}-{first + 1}" for first in range(2 * node, _CORES, 4)]


class GuestProcess:
    """A process in the machine, with the methods of `subprocess.Popen` that tests use."""

    stdin = stdout = stderr = None

    def __init__(self, agent, argv, pid):
        self._agent = agent
        self.args, self.pid, self.returncode = argv, pid, None

    def is_lost(self):
        """Returns true if the machine was lost in which it ran."""
        return self._agent.lost

    def poll(self):
        """The exit status, None while it runs."""
        return self._ended(0)

    def wait(self, timeout=60):
        """Waits until it has ended; raises after the time."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _ended(self, timeout):
        if self.returncode is None:
            self.returncode = self._agent.ask(timeout + 30, "poll", pid=self.pid, timeout=timeout)
        return self.returncode

    def send_signal(self, signum):
        """Sends a signal."""
        self._agent.ask(30, "kill", pid=self.pid, signum=int(signum))

    def terminate(self):
        """Ends it by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """Ends it by SIGKILL."""
        self.send_signal(signal.SIGKILL)


class GuestRouter(Router):
    """A `turnpike run` in the machine."""

    READY_SECONDS = 300
    _numbers = itertools.count()

    def __init__(self, machine, config, files=None, options=(), wait=True):
        self._machine = machine
        self.directory = Path(f"/run/turnpike-{next(self._numbers)}")
        self.config = self.directory / "router.lua"
        self.socket = self.directory / "router.sock"
        self._log = self.directory / "log"
        for name, content in {"router.lua": config, **(files or {})}.items():
            machine.write(self.directory / name, content)
        argv = [binary(), "run", self.config, "--socket", self.socket, *options]
        self.process = machine.spawn(*argv, output=self._log, cwd=self.directory)
        if wait:
            try:
                self.wait_ready()
                self._wait_links()
            except BaseException:
                self.close()
                raise

    def _wait_links(self):
        """Waits for links: a NIC takes seconds to negotiate with its peer, and the router does not wait for that."""
        if not wait_for(lambda: all(port["link"] == "up" for port in self.show("ports")), 30, 0.1):
            raise RuntimeError(f"not all links are up: {self.show('ports')}\n{self.log()}")

    def log(self):
        """Returns the router's output so far, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self._machine.read(self._log))

    def command(self, *argv, check=True):
        """Runs a `turnpike` command against this router and returns it completed."""
        done = self._machine.run(binary(), *argv, "--socket", self.socket, check=False)
        if check and done.returncode != 0:
            raise AssertionError(
                f"turnpike {' '.join(map(str, argv))}: exit {done.returncode}\n"
                f"{done.stdout}{done.stderr}\nthe router's log:\n{self.log()}"
            )
        return done

    def stop(self, signum=signal.SIGTERM, timeout=60):
        """As `Router.stop`, in the time that emulated cores take."""
        return super().stop(signum, timeout)

    def close(self):
        """Ends it, regardless of its state."""
        # A lost machine took it with it.
        if self.process.is_lost():
            return
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        # The one that holds a killed router's host interfaces, which later tests need.
        self._machine.run("pkill", "-KILL", "-f", f"hold .*--holder-socket {self.directory}/", check=False)


class _Agent:
    """The test's end of the serial port: sends requests, and passes each answer to its requester."""

    def __init__(self, connected, last_words):
        self._socket, self._last_words = connected, last_words
        # Set when a request got no answer: then none is sent any more.
        self.lost = False
        self._answers = {0: queue.Queue()}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        threading.Thread(target=self._receive, daemon=True).start()

    def wait_up(self, process, seconds):
        """Returns when the program in the machine runs."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(queue.Empty):
                if self._answers[0].get(timeout=0.2) is not None:
                    return
        raise NotBootedError(f"the virtual machine has not booted in {seconds} s; QEMU's exit status: {process.poll()}")

    def ask(self, seconds, what, **arguments):
        """Sends a request to the agent and returns the result."""
        if self.lost:
            raise RuntimeError(f"the machine is lost: {what} {arguments} is not asked for")
        number = next(self._numbers)
        answers = self._answers[number] = queue.Queue()
        answer = None
        with contextlib.suppress(OSError):
            self._send(json.dumps({"number": number, "do": what, "with": arguments}))
            answer = self._answer(answers, seconds)
        del self._answers[number]
        if answer is None:
            self.lost = True
            raise RuntimeError(f"the machine does not answer: {what} {arguments}\n{self._last_words()[-12000:]}")
        if "error" in answer:
            raise RuntimeError(f"in the machine: {what} {arguments}: {answer['error']}")
        return answer["result"]

    def _answer(self, answers, seconds):
        """The answer to a request; `None` at the timeout. An interrupt of the serial port that got lost is made up for by the
        next one: every five seconds an empty line, which the agent ignores."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=min(left, 5))
            self._send("")
        return None

    def _send(self, line):
        with self._lock:
            self._socket.sendall(line.encode() + b"\n")

    def _receive(self):
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                answer = json.loads(line)
                if answers := self._answers.get(answer["number"]):
                    answers.put(answer)
        for answers in list(self._answers.values()):
            answers.put(None)

    def close(self):
        """Closes the socket."""
        self._socket.close()

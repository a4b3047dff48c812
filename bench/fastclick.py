#!/usr/bin/env python3
"""Click configurations in Turnpike and in FastClick, by turns: the same file, the same frames, one core.

router    FastClick's conf/router/router.click, an IP router between four ports, which becomes Turnpike's own graph
forward   frames from each of two ports to the other, without a change
elements  a chain of elements that are steps of their own in Turnpike

scripts/build-fastclick.sh builds FastClick.
"""

import os
import random
import re
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import common

FRAMES = 1024
MACS = ["90:e2:ba:46:f2:d4", "90:e2:ba:46:f2:d5", "90:e2:ba:46:f2:e0", "90:e2:ba:46:f2:e1"]
FORWARD = """
teth2 :: ToDPDKDevice(eth2, BURST 64, BLOCKING true);
teth3 :: ToDPDKDevice(eth3, BURST 64, BLOCKING true);
FromDPDKDevice(eth2, BURST 64) -> teth3;
FromDPDKDevice(eth3, BURST 64) -> teth2;
"""
ELEMENTS = """
elementclass Chain { $source, $destination |
  input -> CheckLength(1514) -> Strip(14) -> CheckIPHeader -> filter :: IPFilter(deny dst port 23, deny src 192.0.2.0/24, allow all)
    -> Counter -> Paint(1) -> ttl :: DecIPTTL -> EtherEncap(0x0800, $source, $destination) -> output;
  ttl[1] -> Discard;
}
teth2 :: ToDPDKDevice(eth2, BURST 64, BLOCKING true);
teth3 :: ToDPDKDevice(eth3, BURST 64, BLOCKING true);
FromDPDKDevice(eth2, BURST 64) -> Chain(90:e2:ba:46:f2:d5, 00:00:00:22:22:22) -> teth3;
FromDPDKDevice(eth3, BURST 64) -> Chain(90:e2:ba:46:f2:d4, 00:00:00:11:11:11) -> teth2;
"""


def fastclick():
    """The program, and the router's configuration for four DPDK devices."""
    [program] = common.built("fastclick")
    text = (Path(program).parent / "router.click").read_text()
    text = re.sub(r"netmap:(eth\d)", r"\1", text).replace("NetmapDevice", "DPDKDevice")
    return program, text


def captures(directory, ports):
    """Capture files with the frames that each port receives: from its network to random hosts of the others'."""
    from lib.packets import ethernet, ipv4, pcap_file, udp

    chance, files = random.Random(1), []
    for port in range(ports):
        others = [other for other in range(ports) if other != port]
        frames = []
        for number in range(FRAMES):
            source = f"10.{port + 1}.{chance.randrange(256)}.{chance.randrange(2, 255)}"
            to = f"10.{chance.choice(others) + 1}.{chance.randrange(256)}.{chance.randrange(2, 255)}"
            packet = ipv4(source, to, udp(source, to, 1024 + number, 9, bytes(18)))
            frames.append(ethernet(MACS[port], "02:00:00:00:00:99", 0x0800, packet))
        file = Path(directory, f"in{port}.pcap")
        file.write_bytes(pcap_file(frames))
        files.append(file)
    return files


def devices(files):
    """Devices that receive the frames without end and drop what is sent."""
    return [f"net_pcap{number},rx_pcap={file},infinite_rx=1" for number, file in enumerate(files)]


def seconds_of(pid):
    """Processor time of the busiest thread."""
    times = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        times.append(int(fields[11]) + int(fields[12]))
    return max(times) / os.sysconf("SC_CLK_TCK")


def measured(pid, sent, seconds):
    """Packets that leave for each second of the forwarding thread's processor time."""
    time.sleep(0.5)
    before = sent(), seconds_of(pid)
    time.sleep(seconds)
    after = sent(), seconds_of(pid)
    if after[0] == before[0]:
        raise RuntimeError("nothing leaves")
    return (after[0] - before[0]) / (after[1] - before[1])


@contextmanager
def running(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def by_fastclick(program, text, files, given):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "control")
        senders = re.findall(r"^(\w+) *:: ToDPDKDevice", text, re.MULTILINE)
        for number in range(len(files)):
            text = re.sub(rf"\beth{number + 2}\b", str(number), text)
        config = Path(directory, "router.click")
        config.write_text(text + f"\nControlSocket(UNIX, {path});\n")
        eal = ["-l", str(common.cores()[-1]), "-m", "512", "--no-huge", "--no-pci", "--file-prefix", f"fc{os.getpid()}"]
        vdevs = [word for device in devices(files) for word in ("--vdev", device)]
        with running([program, "--dpdk", *eal, *vdevs, "--", str(config)]) as process:
            client = connected(path, process)
            return measured(process.pid, lambda: sum(count(client, name) for name in senders), given.seconds)


def connected(path, process):
    for _ in range(100):
        if process.poll() is not None:
            raise RuntimeError(f"FastClick ends: {process.stdout.read()}")
        try:
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(path))
            stream = client.makefile("rw")
            stream.readline()
            return stream
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("FastClick does not listen")


def count(client, name):
    """Packets that an element has sent."""
    client.write(f"READ {name}.count\n")
    client.flush()
    status = client.readline()
    if not status.startswith("200"):
        raise RuntimeError(f"{name}.count: {status}")
    size = int(client.readline().split()[1])
    return int(client.read(size))


def by_turnpike(text, files, given):
    from lib.lab import Lab
    from lib.router import binary

    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "router.click")
        config.write_text(text)
        lua = subprocess.run([binary(), "convert", "click", config], capture_output=True, text=True, check=True).stdout
    for number, device in enumerate(devices(files)):
        lua = lua.replace(f'device = "eth{number + 2}"', f'device = "{device}"')
    lab = Lab()
    try:
        core = common.cores()[-1]
        router = lab.router(lab.namespace("router", quiet=True), lua + common.forwarders_on([core], 'wait = "poll"') + "\n")
        return measured(router.process.pid, lambda: router.show("counters")["sent"], given.seconds)
    finally:
        lab.close()


def compared(text, ports, given):
    program, router = fastclick()
    with tempfile.TemporaryDirectory() as directory:
        files = captures(directory, ports)
        by = {
            "Turnpike": lambda: by_turnpike(text or router, files, given),
            "FastClick": lambda: by_fastclick(program, text or router, files, given),
        }
        runs = common.rounds(given.runs, list(by), lambda name: by[name]())
    million = {name: [rate / 1e6 for rate in done] for name, done in runs.items()}
    middle = {name: statistics.median(rates) for name, rates in million.items()}
    ratios = [ours / theirs for ours, theirs in zip(million["Turnpike"], million["FastClick"])]
    lines = [f"| {name} | {middle[name]:.1f} ({min(rates):.1f}) | {1000 / middle[name]:.1f} |" for name, rates in million.items()]
    head = "| | million packets for a second of the core (minimum) | ns a packet |\n|---|---|---|"
    said = f"Turnpike forwards {statistics.median(ratios):.1f} times as many packets as FastClick (at least {min(ratios):.1f})."
    drawn = common.figure("The same Click configuration", "", "million packets/s", {"1 core": list(enumerate(middle.values()))}, words=middle)
    published = "for this file nothing; FastClick's authors compare it with Click on other machines."
    return common.Part(drawn, million, said, published, "\n".join([head, *lines]) + "\n")


def router(given):
    return compared(None, 4, given)


def forward(given):
    return compared(FORWARD, 2, given)


def elements(given):
    return compared(ELEMENTS, 2, given)


PARTS = {"router": router, "forward": forward, "elements": elements}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS, runs=5))

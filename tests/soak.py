"""Hours of everything at once, and the proof that nothing was lost, leaked or forgotten: `make soak HOURS=3`.

```
  left --numbered streams of both families--> router --> right (FRR, BGP)
  wild --malformed frames-------------------> router     1,000 changes of kernel routes a second
  flap <--link down and up------------------> router     other configurations, rollbacks, traces, captures, scrapes
                                                         FRR of the router killed and started again
```

Each activity is a thread. Every `--check` seconds those that change routes stop for a moment, and zebra, the kernel and
the router must have the same routes, and forward by them. At the end: numbered packets in order, none twice, none
missing beyond those that a counter explains; the sum of the counters; every packet buffer returned; memory flat.

    .venv/bin/python tests/soak.py --hours 3 --out tests/results/soak.json
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib import tables
from lib.frr import Frr, bgp
from lib.kernel import Machine, host, reaches, takes_everything
from lib.lab import Lab
from lib.metrics import get, parse, unix
from lib.netns import veth, wait_for
from lib.packets import ethernet, ipv4, ipv6, pattern, udp
from lib.speaker import table
from lib.traffic import Sink, Stream

# Prefixes that are added and removed, and those that BGP announces.
POOL, ANNOUNCED = 10_000, 500
CHANGES_A_SECOND = 1000
STREAM_RATE = 500
# Growth of memory in bytes an hour that is too much; the part of the time in which tables and caches reach their
# sizes; seconds from which the rest says something.
MOST_GROWTH = 1 << 20
WARM_UP = 0.5
LONG_ENOUGH = 1800
# While the machine gives a forwarder no time, a change waits for it, and another is refused.
BUSY = "another change is being made"

MORE = 'turnpike.port "span" { device = "tp-span", host = false }\nturnpike.route "203.0.113.0/24" { via = "10.0.2.2" }\n'
FILTER = """
turnpike.filter "guard" {
  { name = "new", proto = "udp", to_port = 7, action = "drop" },
  { proto = "tcp", police = "1mpps" },
  default = "accept",
}
"""
STEP = """
local seen = turnpike.counter "seen"
local look = turnpike.step "look" { process = function(batch, mask) seen:add(1) return mask end }
turnpike.graph:insert_after("ip4-validate", look)
"""


class Numbered(Sink):
    """A sink that keeps no packet: what arrived, what came too late, what came twice."""

    def __init__(self, namespace, port, flows):
        super().__init__(namespace, port)
        self._flows = flows
        self._newest = [-1] * flows
        self._missing = set()
        self.count = self.reordered = self.twice = 0

    def read(self):
        """Reads waiting packets."""
        super().read()
        arrived, self._arrived = self._arrived, []
        self.sent.clear()
        for number, _ in arrived:
            self._take(number)

    def _take(self, number):
        flow = number % self._flows
        newest = self._newest[flow]
        if number > newest:
            first = newest + self._flows if newest >= 0 else flow
            self._missing.update(range(first, number, self._flows))
            self._newest[flow] = number
            self.count += 1
        elif number in self._missing:
            self._missing.discard(number)
            self.reordered += 1
            self.count += 1
        else:
            self.twice += 1


class Soak:
    """A router, its neighbours, and the activities around it."""

    def __init__(self, lab, seed=1):
        self.lab = lab
        self.chance = random.Random(seed)
        self.stopped = threading.Event()
        # Held by whatever changes routes, and by the comparison of tables.
        self.routes = threading.Lock()
        self.failures, self.done, self.samples = [], {}, []
        self._build(lab)

    def _build(self, lab):
        self.machine = Machine(lab, "router")
        self.left = host(self.machine, "left", "left", "10.0.1.2", "10.0.1.1", "fd00:1::2", "fd00:1::1")
        self.right = host(self.machine, "right", "right", "10.0.2.2", "10.0.2.1", "fd00:2::2", "fd00:2::1")
        takes_everything(self.right)
        self.flap = host(self.machine, "flap", "flap", "10.0.3.2", "10.0.3.1", "fd00:3::2", "fd00:3::1")
        wild = lab.namespace("wild", quiet=True)
        self.machine.port("wild", wild, "wire", "10.0.4.1/24", "fd00:4::1/64")
        self.wild = lab.raw(wild, "wire", lambda _: True)
        directory = lab._made.enter_context(tempfile.TemporaryDirectory())
        self.metrics = Path(directory) / "metrics.sock"
        self.more = MORE + f'turnpike.metrics {{ socket = "{self.metrics}" }}\n'
        veth(self.machine.wires, "tp-span", lab.namespace("span", quiet=True), "wire")
        self.machine.start(config=self.more)
        self.router = self.machine.router
        self.wild_mac = self.machine.run("cat", "/sys/class/net/wild/address").stdout.strip()
        self.announced = [prefix for prefix, _ in table(ANNOUNCED)]
        networks = [" address-family ipv4 unicast", *(f"  network {p}" for p in self.announced), " exit-address-family"]
        far = bgp(65002, "10.0.2.2", {"10.0.2.1": (65001,)}, ["ipv4"], "\n".join([" no bgp network import-check", *networks]))
        self._frr(self.right, far)
        self.frr = self._frr(self.machine.space, bgp(65001, "10.0.2.1", {"10.0.2.2": (65002,)}, ["ipv4"]))
        assert wait_for(lambda: tables.turnpike_count(self.router, "kernel") >= ANNOUNCED, 60, 0.2)

    def _frr(self, space, config):
        frr = Frr(space, {"bgpd": config})
        self.lab._made.callback(frr.close)
        return frr

    # Activities

    def changes(self):
        """A thousand changes of the kernel's routes a second."""
        pool = [f"172.{16 + n // 4096}.{n // 16 % 256}.{n % 16 * 16}/28" for n in range(POOL // 2)]
        pool += [f"2001:db8:{n:x}::/48" for n in range(POOL // 2)]
        there = set()
        while not self.stopped.is_set():
            begin = time.monotonic()
            batches = {4: [], 6: []}
            for prefix in self.chance.sample(pool, CHANGES_A_SECOND):
                family = 6 if ":" in prefix else 4
                gateway = ("fd00:2::2", "fd00:1::2") if family == 6 else ("10.0.2.2", "10.0.1.2")
                if prefix in there and self.chance.random() < 0.5:
                    there.discard(prefix)
                    batches[family].append(f"route del {prefix} proto static")
                else:
                    there.add(prefix)
                    batches[family].append(f"route replace {prefix} via {self.chance.choice(gateway)} proto static")
            with self.routes:
                for family, lines in batches.items():
                    self.machine.run("ip", f"-{family}", "-batch", "-", input="\n".join(lines) + "\n")
            self._count("route changes", CHANGES_A_SECOND)
            self.stopped.wait(max(0.0, begin + 1 - time.monotonic()))

    def flaps(self):
        """A link that goes and comes, with routes over it."""
        while not self.stopped.wait(2):
            with self.routes:
                self.flap.run("ip", "link", "set", "eth0", "down")
                self.stopped.wait(0.3)
                self.flap.run("ip", "link", "set", "eth0", "up")
                self.machine.run("ip", "route", "replace", "198.18.0.0/15", "via", "10.0.3.2", check=False)
            self._count("link flaps")

    def restarts(self):
        """The router's FRR, killed and started."""
        while not self.stopped.wait(30):
            with self.routes:
                for name in ("bgpd", "zebra"):
                    self.frr.stop(name, kill=True)
                for name in ("zebra", "bgpd"):
                    self.frr.start(name)
                routes = lambda: len(tables.zebra(self.frr, [4])) >= ANNOUNCED  # noqa: E731
                assert wait_for(routes, 120, 0.5), "BGP does not come back"
            self._count("FRR restarts")

    def configurations(self):
        """Other configurations, and the way back."""
        base = self.machine.config() + self.more
        guarded = base.replace('"tp-left",', '"tp-left", filter = "guard",') + FILTER
        mirrored = base + 'turnpike.mirror "tap" { from = "left", direction = "inward", to = "span", sample = 100 }\n'
        texts = [guarded, base + STEP, base, mirrored, guarded + STEP, base]
        while True:
            for number, text in enumerate(texts):
                if self.stopped.wait(3):
                    return
                file = self.router.directory / f"soak-{number}.lua"
                file.write_text(text)
                self._change("applies", "apply", file)
                if self.chance.random() < 0.3:
                    self._change("rollbacks", "rollback")

    def _change(self, what, *words):
        """Changes the configuration; while a forwarder is not scheduled, another change may still be under way."""
        def done():
            return (said := self.router.command(*words, check=False)).returncode == 0 or BUSY not in said.stderr and said

        said = wait_for(done, 120, 0.5)
        assert said is True, said or f"{words}: another change is under way for two minutes"
        self._count(what)

    def watchers(self):
        """Traces and captures, on and off, and scrapes."""
        with tempfile.TemporaryDirectory() as directory:
            while not self.stopped.wait(1):
                self.router.command("trace", "--count", 20, "--for", "2s", "proto=udp", check=False)
                self._count("traces")
                out = Path(directory) / "soak.pcapng"
                self._capture(out)
                self._count("captures")
                _, _, body = get(unix(self.metrics))
                assert parse(body), "an empty scrape"
                self._count("scrapes")

    def _capture(self, out):
        """Until there are fifty packets, or the streams end."""
        capture = self.router.begin("capture", "--count", 50, "-w", out, "proto=udp")
        while capture.poll() is None and not self.stopped.wait(0.05):
            pass
        if capture.poll() is None:
            capture.send_signal(signal.SIGINT)
        assert capture.wait(60) == 0

    def malformed(self):
        """Frames with any error, from a host of the link."""
        to = bytes.fromhex(self.wild_mac.replace(":", ""))
        while not self.stopped.is_set():
            for _ in range(20):
                self.wild.send(to + self._frame()[6:])
            self._count("malformed frames", 20)
            self.stopped.wait(0.1)

    def _frame(self):
        payload = udp("10.0.4.9", "10.0.2.2", 1, 9, pattern(40))
        six = udp("fd00:4::9", "fd00:2::2", 1, 9, pattern(40))
        mac = "02:00:00:00:04:09"
        frame = bytearray(self.chance.choice([
            ethernet(mac, mac, 0x0800, ipv4("10.0.4.9", "10.0.2.2", payload)),
            ethernet(mac, mac, 0x86DD, ipv6("fd00:4::9", "fd00:2::2", six)),
        ]))  # fmt: skip
        for _ in range(self.chance.randrange(1, 6)):
            frame[self.chance.randrange(12, len(frame))] = self.chance.randrange(256)
        return bytes(frame[: self.chance.randrange(14, len(frame) + 1)])

    def reads(self):
        """Empties the sockets of the sinks."""
        while not self.stopped.wait(0.02):
            for sink in self.sinks:
                sink.read()

    def _count(self, what, more=1):
        self.done[what] = self.done.get(what, 0) + more

    # Measurements

    def sample(self):
        """Memory, descriptors and threads of the router now."""
        status = Path(f"/proc/{self.router.process.pid}/status").read_text()
        field = lambda name: int(status.split(f"{name}:")[1].split()[0])  # noqa: E731
        files = len(os.listdir(f"/proc/{self.router.process.pid}/fd"))
        now = {"rss": field("RssAnon") << 10, "threads": field("Threads"), "files": files}
        self.samples.append({"at": time.monotonic() - self.begin, **now})
        return now

    def compare(self):
        """Stops changes for a moment: the same routes everywhere, and packets take them."""
        with self.routes:
            # zebra has the kernel's static routes, too, but not those of a lost link as the kernel has them.
            lines = tables.assert_agree(self.machine, self.frr, seconds=60, flapped=True)
            for line in self.chance.sample(lines, min(20, len(lines))):
                self._is_used(line)
        self._count("comparisons")

    def _is_used(self, line):
        prefix, kind, *paths = line.split()
        report = self.router.show("route", prefix.split("/")[0])
        if kind == "unicast":
            gateways = {path.split("@")[0] for path in paths}
            assert any(gateway in json.dumps(report) for gateway in gateways), (line, report)

    def slope(self):
        """Growth of memory in bytes an hour after the warm-up, and its standard error."""
        end = self.samples[-1]["at"]
        points = [(s["at"] / 3600, s["rss"]) for s in self.samples if s["at"] >= end * WARM_UP]
        if len(points) < 3:
            return 0.0, float("inf")
        hours, sizes = zip(*points)
        line = statistics.linear_regression(hours, sizes)
        rest = sum((size - line.intercept - line.slope * hour) ** 2 for hour, size in points) / (len(points) - 2)
        spread = sum((hour - statistics.fmean(hours)) ** 2 for hour in hours)
        return line.slope, (rest / spread) ** 0.5

    # The whole

    def run(self, seconds, check):
        """Runs all activities for so long; returns the report."""
        self.begin = time.monotonic()
        addresses = {4: ["10.0.2.2", "203.0.113.5"], 6: ["fd00:2::2", "fd00:2::2"]}
        self.sinks = [Numbered(self.right, 40000 + family, len(a)) for family, a in addresses.items()]
        # The neighbours are resolved: packets that wait for that may be overtaken.
        for address, *_ in addresses.values():
            assert reaches(self.left, address), f"{address} does not answer"
        streams = [Stream(self.left, a, rate=STREAM_RATE, port=40000 + family) for family, a in addresses.items()]
        work = (self.changes, self.flaps, self.restarts, self.configurations, self.watchers, self.malformed, self.reads)
        threads = [threading.Thread(target=self._guarded, args=(each,), name=each.__name__) for each in work]
        for thread in threads:
            thread.start()
        self._watch(seconds, check)
        sent = [stream.stop() for stream in streams]
        self.stopped.set()
        for thread in threads:
            thread.join(180)
        time.sleep(0.5)
        for sink in self.sinks:
            sink.read()
        return self._report(sent)

    def _watch(self, seconds, check):
        last = self.begin
        while (now := time.monotonic()) < self.begin + seconds and not self.failures:
            sample = self.sample()
            if now - last >= check:
                last = now
                self._guarded(self.compare)
                print(f"{now - self.begin:7.0f} s  {sample['rss'] / 2**20:7.1f} MiB  {json.dumps(self.done)}", flush=True)
            time.sleep(min(10.0, seconds / 20))

    def _guarded(self, activity):
        try:
            activity()
        except Exception:
            self.failures.append(f"{activity.__name__}:\n{traceback.format_exc()}")
            self.stopped.set()

    def _report(self, sent):
        slope, error = self.slope()
        counters = self.router.counters()
        ports = self.router.show("ports")
        return {
            "seconds": round(time.monotonic() - self.begin), "done": self.done, "failures": self.failures,
            "sent": sum(sent), "arrived": sum(sink.count for sink in self.sinks),
            "reordered": sum(sink.reordered for sink in self.sinks), "twice": sum(sink.twice for sink in self.sinks),
            "rss_first": self.samples[0]["rss"], "rss_last": self.samples[-1]["rss"],
            "rss_slope_per_hour": round(slope), "rss_slope_error": round(error) if error < float("inf") else None,
            "files": [self.samples[0]["files"], self.samples[-1]["files"]],
            "threads": [self.samples[0]["threads"], self.samples[-1]["threads"]],
            "counters": counters, "missed": {port["name"]: missed(port) for port in ports},
        }  # fmt: skip


def missed(port):
    """Packets that a port's device could not give to the router."""
    return sum(value for name, value in port.items() if name in ("rx_missed", "rx_nombuf"))


def faults(report):
    """Sentences about what is wrong; none is the aim."""
    yield from report["failures"]
    if report["twice"] or report["reordered"]:
        yield f"{report['twice']} packets arrived twice, {report['reordered']} out of order"
    lost = report["sent"] - report["arrived"]
    if lost > report["missed"]["left"]:
        yield f"{lost} packets lost, and the ports missed {report['missed']}"
    if report["counters"]["unaccounted"]:
        yield f"the sum of the counters is wrong: {report['counters']}"
    first, last = report["files"]
    if last > first + 8:
        yield f"{first} descriptors were open, and now {last}"
    first, last = report["threads"]
    if last > first + 8:
        yield f"there were {first} threads, and now {last}"
    error = report["rss_slope_error"]
    if report["seconds"] >= LONG_ENOUGH and error is not None and report["rss_slope_per_hour"] - 2 * error > MOST_GROWTH:
        yield f"memory grows by {report['rss_slope_per_hour'] / 2**20:.1f} MiB an hour"


def soak(seconds, check):
    """Runs it; returns the report and what is wrong."""
    lab = Lab()
    try:
        soaked = Soak(lab)
        report = soaked.run(seconds, check)
        wrong = list(faults(report))
        try:
            # Exit status and packet buffers.
            soaked.router.stop()
        except AssertionError as error:
            wrong.append(str(error))
        return report, wrong
    finally:
        lab.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--check", type=float, default=60.0, metavar="SECONDS", help="between comparisons of the tables")
    parser.add_argument("--out", type=Path, help="the report, as JSON")
    chosen = parser.parse_args()
    report, wrong = soak(chosen.hours * 3600, chosen.check)
    text = json.dumps({**report, "faults": wrong}, indent=1)
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(text + "\n")
    print(text)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Time for a whole BGP table from the first UPDATE to the complete FIB, and changes per second, with stock FRR on the
router.

    speaker --- BGP --- bgpd -> zebra -> kernel                     row "kernel"
    speaker --- BGP --- bgpd -> zebra -> kernel -> Turnpike         row "turnpike"
    speaker --- BGP --- bgpd -> zebra -> FPM -> Turnpike            row "fpm"

The speaker's messages are made before and sent as fast as bgpd takes them; routes of one origin AS
share an UPDATE. The rows take turns, so that whatever else the machine does hits all of them alike.
`complete` is when the last of them has every prefix: the kernel in the first row, Turnpike's FIB (and,
in the second, the kernel) in the others. Then every route is announced again by another next hop, in
another order; `changes` are those a second until everybody has all of them, and what the first
differs from the kernel alone is what Turnpike costs. Peak memory is the processes' VmHWM, without
huge pages; `huge` is what Turnpike has of those.

With --direct, one row more: a million replaced routes straight into the kernel, without a daemon.
"""

import json
import random
import re
import statistics
import time
from collections import Counter
from pathlib import Path

import common
from lib import netlink, tables
from lib.frr import Frr, bgp
from lib.kernel import Machine, host
from lib.lab import Lab
from lib.netns import wait_for
from lib.speaker import Speaker, announcements, table
from lib.traffic import gets_through

KINDS = ["kernel", "turnpike", "fpm"]
AS, FIRST, SECOND = 65002, "10.0.2.2", "10.0.2.3"


def read_table(file, count):
    """(prefix, origin AS) of a file of PREFIX<TAB>AS, or made up."""
    if file is None:
        return table(count)
    import gzip

    opened = gzip.open(file, "rt") if str(file).endswith(".gz") else open(file)
    with opened as lines:
        routes = [line.split("\t") for line in lines if line.strip() and not line.startswith(";")]
    return [(prefix, int(origin.split(",")[0].strip("{} \n"))) for prefix, origin in routes][:count]


class Run:
    """One router with a daemon and a speaker."""

    def __init__(self, kind, lab, routes):
        self.kind, self.routes = kind, routes
        self.machine = Machine(lab, "router", by="kernel" if kind == "kernel" else "turnpike")
        self.left = host(self.machine, "left", "left", "10.0.1.2", "10.0.1.1")
        self.right = host(self.machine, "right", "right", FIRST, "10.0.2.1", gateway=True)
        self.right.run("ip", "address", "add", f"{SECOND}/24", "dev", "eth0")
        self.machine.start('"fpm"' if kind == "fpm" else '"kernel"')
        self.source = "fpm" if kind == "fpm" else "kernel"
        zebra = "fpm address 127.0.0.1 port 2620\n" if kind == "fpm" else ""
        options = ["-M", "dplane_fpm_nl"] if kind == "fpm" else []
        config = {"zebra": zebra, "bgpd": bgp(65001, "10.0.2.1", {FIRST: (AS,)}, ["ipv4"])}
        self.frr = Frr(self.machine.space, config, zebra_options=options)
        lab._made.callback(self.frr.close)
        self.speaker = Speaker(self.right, "10.0.2.1", AS, FIRST)
        lab._made.callback(self.speaker.close)
        # Zebra's module connects 3 s after zebra has started, regardless of the listener.
        if kind == "fpm" and not wait_for(lambda: tables.source(self.machine.router, "fpm").get("peer"), 20, 0.05):
            raise RuntimeError("zebra does not connect")
        self.before = self.machine.route_count()

    def send(self, messages, last, via, limit):
        """Sends messages and waits until all tables have them; returns the times of the kernel and of Turnpike, in
        seconds from the first message."""
        done = {}
        start = time.monotonic()
        self.speaker.send(messages)
        while time.monotonic() - start < limit:
            if "kernel" not in done and self.kind != "fpm" and self._kernel_has(last, via):
                done["kernel"] = time.monotonic() - start
            if "turnpike" not in done and self.kind != "kernel" and self._turnpike_has(last, via):
                done["turnpike"] = time.monotonic() - start
            if len(done) == 1 + (self.kind == "turnpike"):
                return done
            if self.speaker.error:
                raise RuntimeError(f"the BGP session broke: {self.speaker.error}")
            time.sleep(0.1)
        raise RuntimeError(f"{self.kind}: not complete after {limit} s, only {done}")

    def _kernel_has(self, last, via):
        # The fast query first: some of the last prefixes, then their number.
        for prefix in last:
            said = self.machine.ip("route", "get", "fibmatch", prefix.split("/")[0], check=False).stdout
            if not said.startswith(f"{prefix} ") or f"via {via} " not in said:
                return False
        return self.machine.route_count() >= self.before + len(self.routes)

    def _turnpike_has(self, last, via):
        for prefix in last:
            answer = self.machine.router.show("route", prefix.split("/")[0])
            if answer["prefix"] != prefix or [path["via"] for path in answer["paths"]] != [via]:
                return False
        return tables.turnpike_count(self.machine.router, self.source) >= len(self.routes)

    def memory(self):
        """Peak memory of the processes, in MiB."""
        pids = {"bgpd": self.frr.pid("bgpd"), "zebra": self.frr.pid("zebra")}
        if self.machine.router:
            pids["turnpike"] = self.machine.router.process.pid
        peaks = {name: _status(pid, "VmHWM") for name, pid in pids.items()}
        if self.machine.router:
            peaks["huge"] = _status(pids["turnpike"], "HugetlbPages")
        return peaks

    def source_status(self):
        """Turnpike's status of its source."""
        if not self.machine.router:
            return None
        return tables.source(self.machine.router, self.source)


def _status(pid, key):
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return round(int(found[1]) / 1024) if found else 0


def measure(kind, routes, loads):
    """One run of one row."""
    lab = Lab()
    try:
        run = Run(kind, lab, routes)
        limit = 60 + len(routes) / 1500
        (first, first_last), (second, second_last) = loads
        complete = run.send(first, first_last, FIRST, limit)
        memory = run.memory()
        changed = run.send(second, second_last, SECOND, limit)
        result = {
            "complete_s": max(complete.values()), "when": complete,
            "changes_per_s": len(routes) / max(changed.values()), "memory_mib": memory,
        }
        if status := run.source_status():
            result["source"] = {key: status[key] for key in ("messages", "errors", "overruns", "resyncs")}
        if run.machine.router:
            result["forwards"] = gets_through(run.left, run.right, first_last[0].split("/")[0])
        return result
    finally:
        lab.close()


def loads(routes):
    """The messages of a run: the table by one next hop, then by the other in another order; with each some of the
    prefixes announced last."""
    dice = random.Random(1)
    shuffled = list(routes)
    dice.shuffle(shuffled)
    return [
        (announcements(routes, AS, FIRST), _last_sent(routes)),
        (announcements(shuffled, AS, SECOND), _last_sent(shuffled)),
    ]


def _last_sent(routes):
    """Some prefixes of the origin ASs that are announced last, each alone with its first address."""
    order = list(dict.fromkeys(origin for _, origin in routes))
    late = set(order[-50:])
    first_addresses = Counter(prefix.split("/")[0] for prefix, _ in routes)
    return [prefix for prefix, origin in routes
            if origin in late and prefix.endswith("/24") and first_addresses[prefix.split("/")[0]] == 1][-12:]


def direct(count):
    """Replaces routes directly in the kernel; returns the routes per second that Turnpike follows."""
    lab = Lab()
    try:
        machine = Machine(lab, "router", by="turnpike")
        host(machine, "right", "right", FIRST, "10.0.2.1", gateway=True)
        machine.start()
        index = machine.index("right")
        prefixes = [f"{20 + (n >> 16)}.{(n >> 8) & 255}.{n & 255}.0/24" for n in range(count)]
        rates = []
        for via in (FIRST, SECOND):
            messages = list(netlink.ipv4_routes(prefixes, [via], [index]))
            start = time.monotonic()
            netlink.write(machine.space, messages)
            written = time.monotonic() - start
            last = prefixes[-1].replace("0/24", "1")
            done = wait_for(lambda: [p["via"] for p in machine.router.show("route", last)["paths"]] == [via], 120, 0.02)
            if not done:
                raise RuntimeError("Turnpike did not follow")
            rates.append({"written_per_s": count / written, "followed_per_s": count / (time.monotonic() - start)})
        status = tables.source(machine.router, "kernel")
        return {"add": rates[0], "replace": rates[1], "overruns": status["overruns"], "errors": status["errors"]}
    finally:
        lab.close()


def summary(runs):
    """The runs of one row, and their medians."""
    seconds = [run["complete_s"] for run in runs]
    changes = [run["changes_per_s"] for run in runs]
    memory = {name: max(run["memory_mib"][name] for run in runs) for name in runs[0]["memory_mib"]}
    return {
        "runs": runs, "complete_s": statistics.median(seconds), "complete_min_s": min(seconds),
        "changes_per_s": statistics.median(changes), "changes_max_per_s": max(changes), "memory_mib": memory,
    }


def text(count, results):
    """A table of one size."""
    base = results.get("kernel", next(iter(results.values())))
    lines = [f"{count} routes", f"{'row':<10}{'complete, s':>12}{'min':>8}{'of kernel':>11}{'changes/s':>11}  peak MiB"]
    for kind, result in results.items():
        memory = ", ".join(f"{name} {value}" for name, value in result["memory_mib"].items())
        lines.append(
            f"{kind:<10}{result['complete_s']:>12.2f}{result['complete_min_s']:>8.2f}"
            f"{result['complete_s'] / base['complete_s']:>11.2f}{result['changes_per_s']:>11.0f}  {memory}"
        )
    return "\n".join(lines)


def main():
    parser = common.options(__doc__, 3, KINDS)
    parser.add_argument("--routes", default="512621,1000000", help="sizes (512621,1000000)")
    parser.add_argument("--table", metavar="FILE", help="PREFIX<TAB>AS to take the routes from (made up)")
    parser.add_argument("--direct", action="store_true", help="and a million routes straight into the kernel")
    options = parser.parse_args()

    about, document = common.machine(), {"sizes": {}}
    for size in map(int, options.routes.split(",")):
        routes = read_table(options.table, size)
        messages = loads(routes)
        runs = common.rounds(options.runs, options.rows.split(","), lambda kind: measure(kind, routes, messages))
        document["sizes"][len(routes)] = results = {kind: summary(done) for kind, done in runs.items()}
        print(text(len(routes), results))
    if options.direct:
        document["direct"] = [direct(1_000_000) for _ in range(options.runs)]
        print(json.dumps(document["direct"], indent=1))
    common.write(options.json, about, **document)


if __name__ == "__main__":
    common.run(main)

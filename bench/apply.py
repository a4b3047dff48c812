#!/usr/bin/env python3
"""Effect of an apply on packets under full load.

    pcap file, replayed for ever --> port in --> forwarder, default graph --> port out (null device)

The forwarder has more to do than it can, as DPDK's pcap driver has always another batch for it. Meanwhile
configurations are applied whose graphs differ: with one more native step and without it, with a step in
Lua and without it, or with another Lua text. For each apply the forwarder says the longest of its rounds,
of that in which it exchanged the graph and of 1,023 behind it (65,536 packets), in which what is new gets
warm and LuaJIT compiles: no packet was held up for longer. `nothing` exchanges settings of transmit
bursts, which cost nothing: it shows what else there is on this machine. Everything but the forwarder is
kept off its core. Nothing may be lost: what was
received was sent, and the sum of the counters closes.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import common
from lib.lab import Lab
from lib.packets import ethernet, ipv4, pattern, udp

MAC, NEXT = "02:00:00:00:00:01", "02:00:00:00:00:99"

BASE = """
local turnpike = require "turnpike"
turnpike.port "in"  {{ device = "net_pcap0,rx_pcap={pcap},infinite_rx=1", mac = "{mac}", address = "10.0.1.1/24" }}
turnpike.port "out" {{ device = "net_null0,no-rx=1", address = "10.0.2.1/24" }}
turnpike.neighbour "10.0.2.2" {{ port = "out", mac = "{next}" }}
turnpike.route "0.0.0.0/0" {{ via = "10.0.2.2" }}
turnpike.memory {{ mbufs = 16384 }}
turnpike.forwarders {{ shed = false }}
"""

LUA = """
local seen = turnpike.counter "seen"
local voip = turnpike.step "mark-voip" {
  process = function(batch, mask)
    for i in batch:each(mask) do
      local ip = batch:ip4(i)
      if ip.protocol == 17 and batch:udp(i).dst == 5060 then ip:set_dscp(46) end
    end
    seen:add(mask:count())
    return mask
  end,
}
turnpike.graph:insert_after("ip4-validate", voip)
"""

# The two texts used in turn, after the base.
ROWS = {
    "nothing": ("turnpike.tx { burst = 32 }", "turnpike.tx { burst = 33 }"),
    "native": ("", 'turnpike.graph:insert_after("ip4-validate", { "ip4-ttl", as = "second-ttl" })'),
    "lua": ("", LUA),
    "lua-text": (LUA, LUA + "-- another text\n"),
}


def pcap(file, count=1024):
    """A capture file of frames to many destinations."""
    def record(n):
        to = f"{20 + n % 100}.{n % 251}.{n % 241}.{n % 239 + 1}"
        frame = ethernet(MAC, NEXT, 0x0800, ipv4("10.0.1.2", to, udp("10.0.1.2", to, 1000 + n % 60000, 53, pattern(18))))
        words = [0, 0, len(frame), len(frame)]
        return b"".join(word.to_bytes(4, "little") for word in words) + frame

    words = [0xA1B2C3D4, 0x00040002, 0, 0, 65535, 1]
    file.write_bytes(b"".join(word.to_bytes(4, "little") for word in words) + b"".join(map(record, range(count))))


def leave_alone(router):
    """Keeps all other processes off the forwarders' core, the last one, as an operator does by `isolcpus`, so that they
    do not affect the measurement."""
    others = set(range(os.cpu_count() - 1))
    for task in Path(f"/proc/{router.process.pid}/task").iterdir():
        if not (task / "comm").read_text().startswith("forwarder"):
            os.sched_setaffinity(int(task.name), others)
    os.sched_setaffinity(0, others)


def measure(row, applies, scratch):
    """Pauses in microseconds, one for each apply, and the losses according to the counters."""
    lab = Lab()
    try:
        space = lab.namespace("router", quiet=True)
        source = scratch / "source.pcap"
        pcap(source)
        base = BASE.format(pcap=source, mac=MAC, next=NEXT)
        texts = [base + text for text in ROWS[row]]
        os.sched_setaffinity(0, range(os.cpu_count()))
        router = lab.router(space, texts[1])
        files = []
        for n, text in enumerate(texts):
            files.append(router.directory / f"{n}.lua")
            files[-1].write_text(text)
        leave_alone(router)
        time.sleep(0.5)
        before, begin = router.show("counters"), time.monotonic()
        pauses, took = [], []
        for n in range(applies):
            start = time.monotonic()
            answer = json.loads(router.command("apply", files[n % 2], "--json").stdout)
            took.append((time.monotonic() - start) * 1000)
            pauses.append(answer["pause_us"])
        after, seconds = router.show("counters"), time.monotonic() - begin
        router.stop()
        log = router.log()
        received = after["received"] - before["received"]
        return {
            "pauses_us": [round(pause, 1) for pause in pauses],
            "apply_ms": round(statistics.median(took), 1),
            "mpps": round(received / seconds / 1e6, 2),
            "dropped": after["dropped_total"] - before["dropped_total"],
            "closes": "unaccounted" not in log and "all" in log,
        }
    finally:
        lab.close()


def main():
    parser = common.options(__doc__, 3, list(ROWS))
    parser.add_argument("--applies", type=int, default=100, help="of one run (100)")
    options = parser.parse_args()

    about = common.machine()
    with tempfile.TemporaryDirectory() as scratch:
        one = lambda row: measure(row, options.applies, Path(scratch))  # noqa: E731
        said = lambda run: f"longest {max(run['pauses_us'])} us, {run['mpps']} Mpps, {run['dropped']} dropped"  # noqa: E731
        runs = common.rounds(options.runs, options.rows.split(","), one, said)
    common.write(options.json, about, results=runs)
    print(f"{options.applies} applies a run; the longest that a packet was held up, in us; packets dropped")
    for row, done in runs.items():
        pauses = sorted(pause for run in done for pause in run["pauses_us"])
        dropped = sum(run["dropped"] for run in done)
        rate = statistics.median(run["mpps"] for run in done)
        took = statistics.median(run["apply_ms"] for run in done)
        print(f"{row:<10} median {statistics.median(pauses):8.1f}  99 % {pauses[int(len(pauses) * 0.99)]:8.1f}  "
              f"maximum {pauses[-1]:8.1f}  at {rate:5.2f} Mpps, {dropped} dropped; an apply takes {took:.0f} ms")


if __name__ == "__main__":
    common.run(main)

#!/usr/bin/env python3
"""Time and memory of configurations with many VRFs.

    null devices --> port, a VLAN for each VRF --> 1,000 VRFs with so many static routes each

A router with one VRF gets all of them by an apply, then one VRF more, and one less. Times are those of the whole
command, which reads and checks the configuration; `pause_us` is the longest round of the forwarder meanwhile. Memory
is the resident one of the router's process, of a VRF with its VLAN and routes. `turnpike check` reads the
configuration alone.
"""

import json
import statistics
import subprocess
import time
from pathlib import Path

import common
from lib.lab import Lab
from lib.router import binary

CONFIG = """
local turnpike = require "turnpike"
turnpike.port "left" {{ device = "net_null0,no-rx=1", mac = "02:00:00:00:00:01" }}
turnpike.memory {{ mbufs = 16384 }}
for v = 1, {vrfs} do
  turnpike.vrf("v" .. v) {{}}
  turnpike.vlan("l" .. v) {{ parent = "left", id = v, vrf = "v" .. v, address = "10.0.0.1/24" }}
  for r = 0, {routes} - 1 do
    turnpike.route("16." .. math.floor(r / 256) .. "." .. r % 256 .. ".0/24") {{ via = "10.0.0.2", vrf = "v" .. v }}
  end
end
"""


def resident(router):
    """Resident memory of its process with its page tables, in KiB."""
    status = Path(f"/proc/{router.process.pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in status if line.startswith(("VmRSS:", "VmPTE:")))


def measure(routes, vrfs):
    lab = Lab()
    try:
        router = lab.router(lab.namespace("router", quiet=True), CONFIG.format(vrfs=1, routes=routes))
        times, pauses = {}, []
        before = resident(router)
        for name, count in (("all", vrfs), ("one more", vrfs + 1), ("one less", vrfs)):
            file = router.directory / "next.lua"
            file.write_text(CONFIG.format(vrfs=count, routes=routes))
            start = time.monotonic()
            answer = json.loads(router.command("apply", file, "--json", timeout=600).stdout)
            times[name] = round(time.monotonic() - start, 2)
            pauses.append(answer["pause_us"])
            if name == "all":
                each = (resident(router) - before) / (vrfs - 1)
        start = time.monotonic()
        subprocess.run([binary(), "check", file], check=True, capture_output=True)
        times["check"] = round(time.monotonic() - start, 2)
        assert len(router.show("vrfs")) == 1 + vrfs
        router.stop()
        return {"seconds": times, "kib_a_vrf": round(each, 1), "pause_us": round(max(pauses), 1)}
    finally:
        lab.close()


def main():
    parser = common.options(__doc__, 3, ["0", "100", "300"])
    parser.add_argument("--vrfs", type=int, default=1000, help="VRFs besides the default one (1000)")
    options = parser.parse_args()
    about = common.machine()
    results = common.rounds(options.runs, options.rows.split(","), lambda row: measure(int(row), options.vrfs))
    print(f"{options.vrfs} VRFs, {common.named(about)}; medians of {options.runs}")
    for row, done in results.items():
        times = {name: statistics.median(one["seconds"][name] for one in done) for name in done[0]["seconds"]}
        kib, pause = (statistics.median(one[key] for one in done) for key in ("kib_a_vrf", "pause_us"))
        print(f"{row:>5} routes a VRF: {times} s, {kib} KiB a VRF, pause {pause} us")
    common.write(options.json, about, results=results)


if __name__ == "__main__":
    common.run(main)

"""The machine's clock jumps under a running router."""

import time

from .lib.hosts import Outside, ping, ports

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'
YEAR = 365 * 24 * 3600


def test_the_clock_jumps_by_a_year(machine):
    left, right = (Outside(machine, machine.nic("e1000e", index), index + 1) for index in (0, 1))
    text = ports(left, right) + FORWARDERS
    router = machine.router(text)
    try:
        ping(left, right, 4)
        machine.write("/run/next.lua", text + 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n')
        router.command("apply", "/run/next.lua", "--confirm", "10m")
        for jump in (YEAR, -2 * YEAR, YEAR):
            now = int(machine.run("date", "+%s").stdout)
            machine.run("date", "-s", f"@{now + jump}")
            for family in (4, 6):
                ping(left, right, family)
                ping(right, left, family)
            # The neighbours' entries and the confirmation that is waited for are none older.
            assert router.show("status")["uptime_s"] < 3600
            assert all(one["state"] != "failed" for one in router.show("neighbours"))
            assert router.show("route", "198.51.100.1")["type"] != "no-route"
        router.command("confirm")
        router.stop()
    finally:
        router.close()
        machine.run("date", "-s", f"@{int(time.time())}")

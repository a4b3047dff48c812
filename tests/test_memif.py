"""Ports that are memif links: shared memory with another program, here the generator."""

import json
import subprocess

from lib.router import binary


def test_no_packet_comes_twice_and_none_is_lost_to_a_queue_that_the_other_end_lacks(lab, tmp_path):
    """Two forwarders would have a queue each, and the generator connects one."""
    link = lambda role, number, host: (
        f"net_memif{number},role={role},socket-abstract=no,socket={tmp_path}/{number}.sock,mac=02:00:00:00:0{number}:0{host}"
    )
    ports = "".join(
        f'turnpike.port "p{number}" {{ device = "{link("server", number, 1)}", address = "10.{number}.0.1/24" }}\n'
        f'turnpike.neighbour "10.{number}.0.2" {{ port = "p{number}", mac = "02:00:00:00:0{number}:02" }}\n'
        for number in (1, 2)
    )
    space = lab.namespace("router", quiet=True)
    router = lab.router(space, f"""
local turnpike = require "turnpike"; turnpike.memory {{ mbufs = 16384 }}
{ports}
turnpike.forwarders {{ cores = "0,1" }}
""")
    count = 5_000
    done = subprocess.run(
        [binary(), "generate", "--device", link("client", 1, 2), "--receive", link("client", 2, 2),
         "--to-mac", "02:00:00:00:01:01", "--from", "10.1.0.2", "--to", "10.2.0.2", "--count", str(count),
         "--rate", "5kpps", "--wait-ms", "2000", "--cores", "0", "--no-huge", "--json"],
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["received"]
    first, second = router.show("ports")
    assert first["rx_packets"] == count
    # The first ones have no route until the link to the other end is noticed.
    assert set(router.dropped()) <= {"no-route", "refused-errors"}, router.dropped()
    # Those of the router itself are sent too.
    assert count / 2 < report["packets"] <= second["tx_packets"]
    assert (report["duplicates"], report["reordered"]) == (0, 0)
    assert (first["rx_queues"], first["tx_queues"]) == (1, 1)
    router.stop()

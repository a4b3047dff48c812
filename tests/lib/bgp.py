"""A BGP session between FRR on a router's machine and a host that announces a table."""

from . import tables
from .frr import Frr, bgp
from .netns import wait_for
from .speaker import Speaker, announcements, table


def announced(lab, machine, host, count=2000):
    """Starts FRR on the machine and a speaker on the host at 10.0.2.2; returns both and the table's routes, once
    the router has all of them."""
    frr = Frr(machine.space, {"zebra": "", "bgpd": bgp(65001, "10.0.2.1", {"10.0.2.2": (65002,)}, ["ipv4"])})
    lab._made.callback(frr.close)
    speaker = Speaker(host, "10.0.2.1", 65002, "10.0.2.2")
    lab._made.callback(speaker.close)
    routes = table(count)
    speaker.send(announcements(routes, 65002, "10.0.2.2"))
    assert wait_for(lambda: tables.turnpike_count(machine.router, "kernel") == len(routes), 60, 0.1)
    return frr, speaker, routes

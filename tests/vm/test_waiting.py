"""Forwarders that block are woken by the interrupts of NICs."""

import pytest

from lib.netns import wait_for
from lib.soak import repeated

from .lib.hosts import Outside, ping, ports
from .lib.nic import KINDS

FORWARDERS = 'turnpike.forwarders { cores = "1", wait = "interrupt" }\n'

# Kinds whose driver or device has no reliable receive interrupts.
WITHOUT = {"e1000e", "e1000"}


def waiting(router):
    """Behaviour of the only forwarder without packets."""
    (forwarder,) = router.show("forwarders")["forwarders"]
    return forwarder["waiting"]


def woken(router, source, target, silent):
    """Sends a packet to a forwarder that blocks. Returns true if the packet woke it: a question or a frame of
    the machine's own may have done so a moment earlier."""
    counter = "sleeps" if silent else "woken_by_receive"
    if not silent:
        assert wait_for(lambda: waiting(router)["blocking"], 20)
    before = waiting(router)[counter]
    ping(source, target, 4)
    return waiting(router)[counter] > before


@pytest.mark.parametrize("kind", KINDS)
def test_a_packet_wakes_a_forwarder_that_blocks(machine, kind):
    left, right = (Outside(machine, machine.nic(kind, index), index + 1) for index in (0, 1))
    router = machine.router(ports(left, right) + FORWARDERS)
    try:
        ping(left, right, 4)
        silent = waiting(router)["without_interrupts"]
        assert silent == (["port1", "port2"] if kind in WITHOUT else []), waiting(router)
        for source, target in [(left, right), (right, left)] * repeated(3):
            assert wait_for(lambda: woken(router, source, target, silent), 60)
        router.stop()
    finally:
        router.close()

"""Forwarders that block are woken by the interrupts of NICs."""

import pytest

from lib.netns import wait_for

from .lib.hosts import Outside, ping, ports
from .lib.nic import KINDS

FORWARDERS = 'turnpike.forwarders { cores = "1", wait = "interrupt" }\n'

# Kinds whose driver or device has no reliable receive interrupts.
WITHOUT = {"e1000e", "e1000"}


def waiting(router):
    """Behaviour of the only forwarder without packets."""
    (forwarder,) = router.show("forwarders")["forwarders"]
    return forwarder["waiting"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_packet_wakes_a_forwarder_that_blocks(machine, kind):
    left, right = (Outside(machine, machine.nic(kind, index), index + 1) for index in (0, 1))
    router = machine.router(ports(left, right) + FORWARDERS)
    try:
        ping(left, right, 4)
        silent = waiting(router)["without_interrupts"]
        assert silent == (["port1", "port2"] if kind in WITHOUT else []), waiting(router)
        for source, target in [(left, right), (right, left)] * 10:
            if not silent:
                assert wait_for(lambda: waiting(router)["blocking"], 20)
            before = waiting(router)
            ping(source, target, 4)
            after = waiting(router)
            assert (after["sleeps"] if silent else after["woken_by_receive"]) > (
                before["sleeps"] if silent else before["woken_by_receive"]
            )
        router.stop()
    finally:
        router.close()

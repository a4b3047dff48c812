"""The fabric of routers of examples/fabric, with names of its own for these scenarios."""

import itertools
import os
import sys

from .router import ROOT, binary

EXAMPLE = ROOT / "examples/fabric"
sys.path.insert(0, str(EXAMPLE))

from fabric import Account, Failed, Fabric, Stream, inventory, run, turnpike_fabric, wait_for  # noqa: E402

__all__ = ["Account", "Failed", "Fabric", "Stream", "inventory", "run", "turnpike_fabric", "wait_for", "running"]

_numbers = itertools.count()


def prefix():
    """The beginning of its namespaces' names, by which the scenarios' end finds those that were left."""
    return f"tp{os.getpid()}-fabric{next(_numbers)}"


def running(leaves=2, spines=2, frr=True, change=None):
    """A running fabric. A neighbour is silent for longer than usual before BFD believes it: other scenarios run at the
    same time."""

    def changed(inventory):
        inventory["all"]["vars"]["fabric_bfd"] = {"interval_ms": 300, "multiplier": 10}
        if change:
            change(inventory)

    fabric = Fabric(leaves, spines, prefix=prefix(), turnpike=binary(), change=changed)
    try:
        fabric.start(frr)
        if frr:
            fabric.converged()
    except BaseException:
        fabric.close()
        raise
    return fabric

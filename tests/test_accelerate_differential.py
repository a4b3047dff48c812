"""The same packets through the kernel alone and through the accelerated kernel: they arrive alike, field by field, and so
do the ICMP errors about them.

The identification of packets that the router makes is random, and times are those of two moments. Nothing else may
differ. The cases are those of the
comparison of Turnpike with Linux, and random packets; more of them with

    TWINS_SEED=$RANDOM TWINS_PACKETS=5000 .venv/bin/python -m pytest tests/test_accelerate_differential.py -k random
"""

import os
import random

import pytest

from lib.accelerate import IN_KERNEL, MODES, packets, receives_frames, takes_packets
from lib.cases import all_cases, random_frame
from lib.twins import KernelWires, differences, outcome, show

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = pytest.mark.xdist_group("accelerate")

CASES = all_cases()

# The kernel draws them at random, for the sender's address or for each packet.
RANDOM = {"left own id", "right own id"}


@pytest.fixture(scope="module", params=MODES)
def twins(module_lab, request):
    plain, faster = KernelWires(module_lab), KernelWires(module_lab)
    options = ["--in-kernel"] if request.param == IN_KERNEL else []
    if options:
        for end in faster.ends:
            receives_frames(end, "wire")
    faster.router = module_lab.router(faster.inside, "", command=["accelerate", *options, "tp-left", "tp-right"])
    takes_packets(faster.router)
    for wires in (plain, faster):
        wires.left.receive(1), wires.right.drain()
    return faster, plain


def are_times(name, ours, theirs):
    """True for IPv4's timestamp option and answers to ICMP timestamp requests that are alike but for times."""
    if name.endswith(" options"):
        return len(ours) == len(theirs) and b"\x44" in ours and ours[:4] == theirs[:4]
    return name.endswith(" icmp data") and len(ours) == len(theirs) == 12 and ours[:4] == theirs[:4]


def compare(twins, frames, what):
    found = differences(*[outcome(wires, frames) for wires in twins])
    unexplained = {name: values for name, values in found.items() if name not in RANDOM and not are_times(name, *values)}
    assert not unexplained, f"{what}:\n{show(unexplained)}\n{frames[0].hex()}"


@pytest.mark.parametrize("name", CASES)
def test_case(twins, name):
    compare(twins, CASES[name], name)


def test_random_packets(twins):
    seed = int(os.environ.get("TWINS_SEED", 1812))
    chance = random.Random(seed)
    before = packets(twins[0].router, "tp-left", "accelerated")
    for number in range(int(os.environ.get("TWINS_PACKETS", 300))):
        compare(twins, [random_frame(chance)], f"TWINS_SEED={seed}, packet {number}")
    # The marks alone are as many; a comparison of two kernels would say nothing.
    assert packets(twins[0].router, "tp-left", "accelerated") - before > 300


def test_nothing_was_dropped_that_the_kernel_would_have_answered(twins):
    dropped = twins[0].router.dropped()
    # The kernel drops these as well, without a word.
    assert set(dropped) <= {"ip4-checksum"}, dropped

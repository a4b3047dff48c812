"""AF_XDP queues that another process still holds."""

import subprocess
import sys

from lib.lab import PORTS, Wires
from lib.netns import wait_for

# Takes a receive queue of an interface by AF_XDP until its standard input ends.
HOLDER = """
import ctypes, mmap, socket, struct, sys
AF_XDP, SOL_XDP, XDP_RX_RING, XDP_UMEM_REG, FILL, COMPLETION, XDP_COPY = 44, 283, 2, 4, 5, 6, 2
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result < 0:
        sys.exit(f"errno {ctypes.get_errno()}")
    return result

held = check(libc.socket(AF_XDP, socket.SOCK_RAW, 0))
memory = mmap.mmap(-1, 64 * 4096)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for option, value in (
    (XDP_UMEM_REG, struct.pack("=QQII", start, len(memory), 4096, 0)),
    *((ring, struct.pack("=I", 64)) for ring in (FILL, COMPLETION, XDP_RX_RING)),
):
    check(libc.setsockopt(held, SOL_XDP, option, value, len(value)))
index = socket.if_nametoindex(sys.argv[1])
address = struct.pack("=HHIII", AF_XDP, XDP_COPY, index, 0, 0)
check(libc.bind(held, address, len(address)))
print("bound", flush=True)
sys.stdin.read()
"""


def hold(wires):
    """A process that holds the receive queue of port `right`, until it ends."""
    holder = wires.inside.spawn(
        sys.executable, "-c", HOLDER, "tp-right", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "bound\n"
    return holder


def test_a_queue_that_the_router_before_has_not_given_back_yet_is_waited_for(lab):
    wires = Wires(lab, start=False)
    holder = hold(wires)
    try:
        router = lab.router(wires.inside, PORTS, wait=False)
        assert wait_for(lambda: "Failed to create xsk socket" in router.log(), 30, 0.005), router.log()
    finally:
        holder.kill()
        holder.wait()
    router.wait_ready()
    assert [port["driver"] for port in router.show("ports")] == ["net_af_xdp", "net_af_xdp"], router.log()
    router.stop()


def test_a_queue_that_somebody_keeps_is_done_without(lab):
    wires = Wires(lab, start=False)
    holder = hold(wires)
    try:
        router = lab.router(wires.inside, PORTS)
        assert [port["driver"] for port in router.show("ports")] == ["net_af_xdp", "net_af_packet"]
        assert 'port "right": AF_PACKET, because AF_XDP failed' in router.log()
        # The failure does not delay the end.
        router.stop()
    finally:
        holder.kill()
        holder.wait()

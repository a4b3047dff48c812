"""Entries of a device's RSS table move from a queue that overloads its forwarder to one of another, while packets flow:
none is lost, and those of a flow stay in order.

The device is `flow_device/flow_device.c`, whose table leads to its first queue alone at the beginning.
"""

import struct

import pytest

from lib.apply import apply
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, Wires
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, udp
from test_control_queue import ports
from test_hardware_filters import LIBRARY, Device

FLOWS = 64
# Packets under way at a time: enough to keep a forwarder busy, fewer than a queue holds.
WINDOW = 1024

# Some ten microseconds for each packet, so that one forwarder is busy and many packets wait for it.
STEP = """
turnpike.forwarders { cores = "0,1", rebalance = %s, shed = false }
local sink = 0
turnpike.graph:insert_after("ip4-validate", turnpike.step "slow" {
  budget_us = 1000000,
  process = function(batch, mask)
    for i in batch:each(mask) do
      local x = i
      for n = 1, 20000 do x = (x * 5 + n) %% 1000003 end
      sink = sink + x
    end
    return mask
  end,
})
"""


class Stream:
    """Flows through the router, with at most `WINDOW` packets under way."""

    def __init__(self, wires):
        self.wires, self.sent, self.arrived = wires, 0, 0
        self.next = [0] * FLOWS
        self.seen = [-1] * FLOWS
        self.disorder = []

    def frame(self, flow):
        number, self.next[flow] = self.next[flow], self.next[flow] + 1
        payload = udp("10.0.1.2", "10.0.2.2", 1000 + flow, 9, b"rank" + struct.pack("!I", number))
        return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", payload))

    def take(self, seconds):
        for frame in self.wires.right.receive(seconds):
            if frame[42:46] != b"rank":
                continue
            flow = struct.unpack("!H", frame[34:36])[0] - 1000
            (number,) = struct.unpack("!I", frame[46:50])
            if number != self.seen[flow] + 1:
                self.disorder.append((flow, self.seen[flow], number))
            self.seen[flow] = number
            self.arrived += 1

    def step(self):
        """Fills the window, and receives the packets that have arrived."""
        while self.sent - self.arrived < WINDOW:
            self.wires.left.send(*(self.frame(flow) for flow in range(FLOWS)))
            self.sent += FLOWS
        self.take(0.01)

    def run_until(self, condition, most=4000):
        for _ in range(most):
            self.step()
            if condition():
                return True
        return False


def start(lab, directory):
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is missing: run make {LIBRARY}")
    device = Device(directory)
    wires = Wires(lab, STEP % "false", ports=ports(), calm=True, env=device.env(port="net_af_packet0", queues="1"))
    wires.device = device
    return wires


@pytest.mark.alone
def test_entries_of_a_busy_queue_move_without_loss_or_disorder(lab, tmp_path):
    wires = start(lab, tmp_path)
    router = wires.router
    shown = lambda: router.show("forwarders")  # noqa: E731
    came = lambda: [one["packets"] for one in shown()["forwarders"]]  # noqa: E731
    stream = Stream(wires)
    assert [one["rx"] for one in shown()["forwarders"]] == [["left:0", "right:0"], ["left:1"]]
    assert stream.run_until(lambda: shown()["forwarders"][0]["busy_percent"] > 90), shown()
    other = came()[1]
    assert shown()["moved_entries"] == 0
    apply(router, router.config.read_text().replace("rebalance = false", "rebalance = true"))
    assert stream.run_until(lambda: shown()["moved_entries"] > 0), shown()
    # About half of the flows have another queue now.
    assert stream.run_until(lambda: came()[1] > other + 5000), shown()
    assert wait_for(lambda: stream.take(0.05) or stream.arrived == stream.sent, 20), (stream.arrived, stream.sent)
    assert stream.disorder == []
    assert shown()["moved"] == 0 and 32 <= shown()["moved_entries"] <= 96
    assert "entries of its RSS table go from receive queue 0" in router.log()
    assert "RSS table entries that went to a less busy forwarder" in router.command("show", "forwarders").stdout
    router.stop()
    wires.device.lines()

"""Steps in Lua: their effect on packets, and their failures."""

import re
import time

import pytest

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Wires
from lib.netns import wait_for
from lib.packets import ethernet, forwarded, ipv4, udp
from lib.router import Change


def packet(dport, data=b"payload", tos=0):
    datagram = udp("10.0.1.2", "10.0.2.2", 1000, dport, data)
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", datagram, tos=tos))


def sent_on(frame):
    return forwarded(frame, RIGHT_MAC, HOST_B_MAC)


# With time enough: a batch that is stopped is passed to the function once more, and counted twice.
MARK = """
local marked = turnpike.counter "marked"
local ports = turnpike.counters("dport", 65536 - 100)
local voip = turnpike.step "mark-voip" {
  outputs = { "next" },
  budget_us = 1000000,
  process = function(batch, mask)
    for i in batch:each(mask) do
      local ip = batch:ip4(i)
      if ip.protocol == 17 and batch:udp(i).dst == 5060 then
        ip:set_dscp(46)
        marked:add(1)
      end
      if batch:udp(i).dst < 100 then ports:add(batch:udp(i).dst) end
    end
    return mask
  end,
}
turnpike.graph:insert_after("ip4-validate", voip)
"""


def test_a_step_marks_and_counts(lab):
    wires = Wires(lab, MARK, calm=True)
    frames = [packet(5060 if n % 3 == 0 else n % 50) for n in range(300)]
    expected = [packet(5060, tos=46 << 2) if n % 3 == 0 else frames[n] for n in range(300)]
    for frame in frames:
        wires.left.send(frame)
    got = wires.right.expect(300)
    assert sorted(got) == sorted(sent_on(frame) for frame in expected)
    counters = wires.router.counters()
    assert counters["steps"]["marked"] == 100, wires.router.log()
    assert counters["steps"]["dport[1]"] == sum(1 for n in range(300) if n % 3 and n % 50 == 1)
    assert "dport[99]" not in counters["steps"]
    steps = {step["name"]: step for step in wires.router.show("steps")["steps"]}
    assert steps["mark-voip"]["packets"] == 300
    assert steps["mark-voip"]["lua"]["failures"] == 0
    assert steps["ip4-ttl"]["lua"] is None
    shown = wires.router.command("show", "steps").stdout
    assert "LuaJIT on forwarder 0" in shown and re.search(r"mark-voip .* lua", shown)


FAIL = """
local bad = turnpike.step "bad" {
  limit = 10, on_failure = "POLICY", budget_us = 20000,
  process = function(batch, mask)
    for i in batch:each(mask) do
      local port = batch:udp(i).dst
      if port == 666 then error("the number of the beast") end
      if port == 667 then while true do end end
      if port == 668 then local _ = batch:u8(i, 1000) end
    end
    return mask
  end,
}
turnpike.graph:insert_after("ip4-validate", bad)
"""


@pytest.mark.provokes("step-failed")
@pytest.mark.parametrize("policy, sent", [("bypass", 1), ("drop", 0)])
def test_what_a_step_fails_over_is_dropped_and_a_step_that_fails_often_is_disabled(lab, policy, sent):
    wires = Wires(lab, FAIL.replace("POLICY", policy), calm=True)
    change = Change(wires.router)
    # An error and a read past the end: one packet each, the packets between continue.
    for port in (1, 666, 2, 668, 3):
        wires.left.send(packet(port))
    assert change(received=5) == {"received": 5, "sent": 3, "dropped": {"step-failed": 2}}

    def told():
        return "reach past the packet" in wires.router.log() and "traceback" in wires.router.log()

    assert wait_for(told, 3.0), wires.router.log()
    assert "router.lua:" in wires.router.log()
    # An endless loop counts as ten failures.
    wires.left.send(packet(667))
    # Until it is stopped the packet is in the graph, which has not counted it yet.
    assert wait_for(lambda: wires.router.show("counters")["dropped"]["step-failed"] == 3, 5.0)
    assert change(received=6) == {"received": 6, "sent": 3, "dropped": {"step-failed": 3}}
    [bad] = [step for step in wires.router.show("steps")["steps"] if step["name"] == "bad"]
    assert bad["lua"]["overruns"] >= 1 and bad["lua"]["disabled"] == 1 and bad["lua"]["dropped"] == 3
    assert wait_for(lambda: "disabled after" in wires.router.log(), 3.0)
    change = Change(wires.router)
    wires.left.send(packet(666))
    result = change(received=1)
    assert result.get("sent", 0) == sent
    if policy == "drop":
        assert result["dropped"] == {"step-failed": 1}


def test_failures_are_told_once_a_second_at_most(lab):
    config = """
    local bad = turnpike.step "bad" { limit = 0, process = function() error("over and over") end }
    turnpike.graph:insert_after("ip4-validate", bad)
    """
    wires = Wires(lab, config, calm=True)
    begin = time.monotonic()
    for _ in range(40):
        wires.left.send(packet(1))
        time.sleep(0.05)
    wait_for(lambda: "over and over" in wires.router.log(), 3.0)
    seconds = time.monotonic() - begin
    assert 1 <= wires.router.log().count("over and over") <= seconds + 1


def test_a_script_s_own_functions_and_variables_are_there_on_a_forwarder(lab):
    config = """
    local wanted = {}
    for _, address in ipairs { "10.0.2.2", "10.0.2.3" } do wanted[turnpike.ip4(address)] = true end
    local function is_wanted(ip) return wanted[ip.dst] end
    local step = turnpike.step "only-wanted" {
      outputs = { "next", "others" },
      process = function(batch, mask, out)
        for i in batch:each(mask) do
          if is_wanted(batch:ip4(i)) then out.next:add(i) else out.others:add(i) end
        end
      end,
    }
    turnpike.graph:insert_after("ip4-validate", step)
    turnpike.graph:path("only-wanted.others", "drop")
    """
    wires = Wires(lab, config, calm=True)
    wires.left.send(packet(1))
    assert wires.right.expect(1) == [sent_on(packet(1))]


def test_each_output_leads_its_own_way(lab):
    config = """
    local sort = turnpike.step "sort" {
      outputs = { "next", "refused" },
      process = function(batch, mask, out)
        for i in batch:each(mask) do
          local where = batch:udp(i).dst == 23 and out.refused or out.next
          where:add(i)
        end
      end,
    }
    turnpike.graph:insert_after("ip4-lookup.forward", sort)
    turnpike.graph:path("sort.refused", "drop")
    """
    wires = Wires(lab, config, calm=True)
    change = Change(wires.router)
    for port in (22, 23, 24):
        wires.left.send(packet(port))
    assert change(received=3) == {"received": 3, "sent": 2, "dropped": {"by-step": 1}}
    edges = {
        edge["name"]: edge["packets"]
        for step in wires.router.show("graph")["steps"] if step["name"] == "sort"
        for edge in step["outputs"]
    }
    assert edges == {"next": 2, "refused": 1, "step-failed": 0}

-- Delay and its variation at shares of the loss-free rate between two devices (RFC 8219, 7.2 and 7.3.1; RFC 2544, 26.2).
--
--   turnpike generate --script delay.lua -- eth1=02:00:00:00:00:01=2001:db8:1::2 eth2=02:00:00:00:00:02=2001:db8:2::2
--
-- Each argument is a device, the MAC of the router there, and an address for which the device stands there; of both
-- families, as the router forwards or translates. Further arguments: size=84, highest=1000000 (packets a second),
-- seconds=1 (RFC 8219: 60), shares=1,10,50,90 (percent).
--
-- RFC 8219's terms: the typical latency is the median, the worst case latency the 99.9th percentile; the packet delay
-- variation is the worst case less the smallest.

local tester = require "tester"

local ends, names = {}, {}
local given = { size = "84", highest = "1000000", seconds = "1", shares = "1,10,50,90" }
for _, argument in ipairs(tester.arguments) do
    local name, value = argument:match("^(%w+)=([^=]+)$")
    local device, mac, address = argument:match("^(.+)=([%x:]+)=([%x:.]+)$")
    if name and given[name] then
        given[name] = value
    elseif device then
        table.insert(names, device)
        table.insert(ends, { mac = mac, address = address })
    else
        error(("%s: write DEVICE=MAC=ADDRESS, size=84, highest=1000000, seconds=1 or shares=1,10"):format(argument), 0)
    end
end
assert(#ends == 2, "two devices, as DEVICE=MAC=ADDRESS")
tester.open { devices = names, largest = 1518 }

local seconds = assert(tonumber(given.seconds), "seconds: write a number")
local function send(rate, time)
    return tester.trial({ {
        from = 1, to = 2, mac = ends[1].mac, source = ends[1].address, destination = ends[2].address,
        size = given.size, rate = rate, seconds = time, wait_ms = 200,
    } })[1].received
end

-- The first packets resolve the neighbour.
local resolved = false
for _ = 1, 10 do
    resolved = resolved or send(100, 0.5).lost == 0
end
assert(resolved, "not all packets arrive even at 100 a second; see the addresses and the routes")

local found = tester.search {
    highest = tonumber(given.highest), seconds = seconds, goals = { { loss = 0 } },
    trial = function(rate, time) return send(rate, time).loss end,
}
local rate = assert(found[1].lower, "packets are lost at every rate")
local results = {}
for share in given.shares:gmatch("[%d.]+") do
    local received = send(rate * share / 100, seconds)
    local delay = received.delay_ns
    table.insert(results, {
        share = tonumber(share), rate = rate * share / 100, lost = received.lost,
        typical_us = delay.p50 / 1000, worst_case_us = delay.p999 / 1000, longest_us = delay.max / 1000,
        variation_us = (delay.p999 - delay.min) / 1000,
    })
end
print(tester.json { ndr = found[1], delays = results })

-- A full mesh (RFC 2889, 5.1): every device sends to every other at the same time. Finds the highest rate without loss
-- and with at most 0.5 % by MLRsearch (RFC 9971).
--
--   turnpike generate --script mesh.lua -- eth1=02:00:00:00:00:01=10.0.1.2 eth2=02:00:00:00:00:02=10.0.2.2 …
--
-- Each argument is a device, the MAC of the router there, and an address for which the device stands there. Further
-- arguments: size=64 (or imix), highest=1000000 (packets a second by all devices together), seconds=1.

local tester = require "tester"

local ends, names = {}, {}
local given = { size = "64", highest = "1000000", seconds = "1" }
for _, argument in ipairs(tester.arguments) do
    local name, value = argument:match("^(%w+)=([^=]+)$")
    local device, mac, address = argument:match("^(.+)=([%x:]+)=([%x:.]+)$")
    if name and given[name] then
        given[name] = value
    elseif device then
        table.insert(names, device)
        table.insert(ends, { mac = mac, address = address })
    else
        error(("%s: write DEVICE=MAC=ADDRESS, size=64, highest=1000000 or seconds=1"):format(argument), 0)
    end
end
assert(#ends >= 2, "two devices at least, as DEVICE=MAC=ADDRESS")
tester.open { devices = names, largest = 1518 }

-- All flows of the mesh, which together have this rate; an end's rate is the same to all others.
local function mesh(rate, seconds)
    local flows = {}
    for from, sender in ipairs(ends) do
        for to, receiver in ipairs(ends) do
            if from ~= to then
                table.insert(flows, {
                    from = from, to = to, mac = sender.mac, source = sender.address, destination = receiver.address,
                    size = given.size, rate = rate / (#ends * (#ends - 1)), seconds = seconds, wait_ms = 200,
                })
            end
        end
    end
    return flows
end

-- The share of all packets that did not arrive where they were expected.
local function lost(results)
    local sent, arrived = 0, 0
    for _, result in ipairs(results) do
        sent, arrived = sent + result.sent, arrived + result.received.packets
    end
    return sent > 0 and 1 - arrived / sent or 1
end

-- The first packets resolve the neighbours.
local resolved = false
for _ = 1, 10 do
    resolved = resolved or lost(tester.trial(mesh(#ends * 100, 0.5))) == 0
end
assert(resolved, "not all packets arrive even at 100 a second from each device; see the addresses and the routes")

local found = tester.search {
    highest = tonumber(given.highest), seconds = tonumber(given.seconds), goals = { { loss = 0 }, { loss = 0.005 } },
    trial = function(rate, seconds) return lost(tester.trial(mesh(rate, seconds))) end,
}
local at = tester.trial(mesh(found[1].lower or found[2].lower or 1000, tonumber(given.seconds)))
print(tester.json { ndr = found[1], pdr = found[2], flows = at })

-- What a script has both when it is read as a configuration and on every forwarder: addresses as
-- numbers, and back. IPv4 addresses are numbers of the bit library: 32 bits, with sign.

local turnpike = ...
local band, bor, lshift, rshift, tobit = bit.band, bit.bor, bit.lshift, bit.rshift, bit.tobit
local floor = math.floor

-- turnpike.ip4 "192.0.2.1" -> number
function turnpike.ip4(text)
    local a, b, c, d = tostring(text):match "^(%d+)%.(%d+)%.(%d+)%.(%d+)$"
    a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
    if not a or a > 255 or b > 255 or c > 255 or d > 255 then
        error(('turnpike.ip4: "%s" is no IPv4 address; write it as "192.0.2.1"'):format(text), 2)
    end
    return bor(lshift(a, 24), lshift(b, 16), lshift(c, 8), d)
end

-- turnpike.ip4_text(number) -> "192.0.2.1"
function turnpike.ip4_text(address)
    return ("%d.%d.%d.%d"):format(rshift(address, 24), band(rshift(address, 16), 255),
        band(rshift(address, 8), 255), band(address, 255))
end

-- turnpike.prefix "10.0.0.0/8" -> object with has(address)
function turnpike.prefix(text)
    local address, length = tostring(text):match "^([%d.]+)/(%d+)$"
    length = tonumber(length)
    if not length or length > 32 then
        error(('turnpike.prefix: "%s" is no IPv4 prefix; write it as "10.0.0.0/8"'):format(text), 2)
    end
    local mask = length == 0 and 0 or tobit(lshift(-1, 32 - length))
    local net = band(turnpike.ip4(address), mask)
    local prefix = { length = length, net = net, mask = mask }
    function prefix:has(a) return band(a, mask) == net end
    return prefix
end

-- turnpike.ip6 "2001:db8::1" -> four numbers of 32 bits, first the highest
function turnpike.ip6(text)
    local function refuse()
        error(('turnpike.ip6: "%s" is no IPv6 address; write it as "2001:db8::1"'):format(tostring(text)), 3)
    end
    local function groups(part)
        local list = {}
        for group in part:gmatch "[^:]+" do
            if not group:match "^%x%x?%x?%x?$" then refuse() end
            list[#list + 1] = tonumber(group, 16)
        end
        return list
    end
    text = tostring(text)
    local head, tail = text:match "^(.-)::(.*)$"
    local left, right = groups(head or text), groups(tail or "")
    local missing = 8 - #left - #right
    if head and (missing < 1 or tail:find("::", 1, true)) or not head and missing ~= 0 then refuse() end
    for _ = 1, missing do left[#left + 1] = 0 end
    for _, group in ipairs(right) do left[#left + 1] = group end
    local words = {}
    for k = 1, 4 do words[k] = bor(lshift(left[2 * k - 1], 16), left[2 * k]) end
    return words[1], words[2], words[3], words[4]
end

-- turnpike.mac "02:00:00:00:00:01" -> number of 48 bits
function turnpike.mac(text)
    local bytes = { tostring(text):match "^(%x%x):(%x%x):(%x%x):(%x%x):(%x%x):(%x%x)$" }
    if #bytes ~= 6 then
        error(('turnpike.mac: "%s" is no MAC address; write it as "02:00:00:00:00:01"'):format(text), 2)
    end
    local number = 0
    for _, byte in ipairs(bytes) do number = number * 256 + tonumber(byte, 16) end
    return number
end

-- turnpike.mac_text(number) -> "02:00:00:00:00:01"
function turnpike.mac_text(number)
    local bytes = {}
    for k = 6, 1, -1 do
        bytes[k] = ("%02x"):format(number % 256)
        number = floor(number / 256)
    end
    return table.concat(bytes, ":")
end

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

-- Numbers from `low` to `high` of 32 bits without sign, in ascending order and apart from each other.
local function unsigned(number)
    if number < 0 then return number + 4294967296 end
    return number
end

local function within(ranges, number)
    local low, high, first, last = ranges.low, ranges.high, 1, ranges.count
    while first <= last do
        local middle = floor((first + last) / 2)
        if number < low[middle] then
            last = middle - 1
        elseif number > high[middle] then
            first = middle + 1
        else
            return true
        end
    end
    return false
end

-- Sorts ranges and joins those that touch.
local function join(list)
    table.sort(list, function(a, b) return a[1] < b[1] end)
    local ranges = { low = {}, high = {}, count = 0 }
    for _, range in ipairs(list) do
        local n = ranges.count
        if n > 0 and range[1] <= ranges.high[n] + 1 then
            if range[2] > ranges.high[n] then ranges.high[n] = range[2] end
        else
            ranges.low[n + 1], ranges.high[n + 1], ranges.count = range[1], range[2], n + 1
        end
    end
    return ranges
end

-- A set of prefixes is a tree of their 32-bit words: the ranges that are in it whole, and below the words
-- that are in it in part a tree of the next words.
local function new_node() return { list = {}, below = {} } end

local function put(node, words, length)
    local at = 1
    while length > 32 do
        local word = unsigned(words[at])
        node.below[word] = node.below[word] or new_node()
        node, at, length = node.below[word], at + 1, length - 32
    end
    local size = 2 ^ (32 - length)
    local first = floor(unsigned(words[at]) / size) * size
    node.list[#node.list + 1] = { first, first + size - 1 }
end

local function finish(node)
    node.ranges, node.list = join(node.list), nil
    for _, below in pairs(node.below) do finish(below) end
end

local function in_tree(node, a, b, c, d)
    local word = unsigned(a)
    if within(node.ranges, word) then return true end
    node = node.below[word]
    if not node then return false end
    return in_tree(node, b, c, d, 0)
end

-- turnpike.set { "10.0.0.0/8", "2001:db8::/32", "192.0.2.1" } -> object with has(address), for IPv6
-- has(a, b, c, d)
function turnpike.set(list)
    if type(list) ~= "table" then
        error(('turnpike.set: expected a list of prefixes, got a %s; write turnpike.set { "10.0.0.0/8" }')
            :format(type(list)), 2)
    end
    local four, six = new_node(), new_node()
    for _, text in ipairs(list) do
        local address, length = tostring(text):match "^([^/]+)/?(%d*)$"
        local is_six = address ~= nil and address:find(":", 1, true) ~= nil
        local longest = is_six and 128 or 32
        length = length == "" and longest or tonumber(length)
        if not address or not length or length > longest then
            error(('turnpike.set: "%s" is no prefix; write it as "10.0.0.0/8", "2001:db8::/32" or "192.0.2.1"')
                :format(tostring(text)), 2)
        end
        put(is_six and six or four, { (is_six and turnpike.ip6 or turnpike.ip4)(address) }, length)
    end
    finish(four)
    finish(six)
    local set = {}
    function set:has(a, b, c, d)
        if b then return in_tree(six, a, b, c, d) end
        return a ~= nil and within(four.ranges, unsigned(a))
    end
    return set
end

-- turnpike.ports { 22, 179, "1024-65535" } -> object with has(port)
function turnpike.ports(list)
    local function refuse(what)
        error(('turnpike.ports: %s is no port; write it as 22 or "1024-65535"'):format(tostring(what)), 3)
    end
    if type(list) ~= "table" then refuse(list) end
    local ranges = {}
    for _, entry in ipairs(list) do
        local low, high = tostring(entry):match "^(%d+)%-(%d+)$"
        low, high = tonumber(low or entry), tonumber(high or entry)
        if not low or not high or low % 1 ~= 0 or low > high or low < 0 or high > 65535 then refuse(entry) end
        ranges[#ranges + 1] = { low, high }
    end
    ranges = join(ranges)
    local ports = {}
    function ports:has(port) return port ~= nil and within(ranges, port) end
    return ports
end

-- The low 32 bits of a product.
local function times(a, b)
    local low, high = band(a, 0xffff), band(rshift(a, 16), 0xffff)
    return tobit(low * band(b, 0xffff) + lshift(tobit(high * band(b, 0xffff) + low * band(rshift(b, 16), 0xffff)), 16))
end

local function mix(h, word)
    h = bit.bxor(h, tobit(word))
    h = times(bit.bxor(h, rshift(h, 16)), 0x7feb352d)
    h = times(bit.bxor(h, rshift(h, 15)), 0x846ca68b)
    return bit.bxor(h, rshift(h, 16))
end

-- turnpike.hash(a, b, c, d) -> a number from 0 to 4294967295 for up to four numbers; the same on each
-- forwarder and at each start. It spreads, and keeps nothing secret.
function turnpike.hash(a, b, c, d)
    return unsigned(mix(mix(mix(mix(0x9e3779b9, a or 0), b or 0), c or 0), d or 0))
end

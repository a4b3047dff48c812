-- What a forwarder's Lua state begins with: views of packets, masks, counters, and the environment in
-- which the configuration runs a second time to find its steps.
--
-- Steps get no pointer and no array: a view knows its slot, the place of its header and nothing else,
-- every read and write of a packet goes through functions here, and these look at the packet's length
-- first. The first 64 bytes of a slot can always be read and written, whatever is in it; offsets beyond
-- are checked against the length at each access, as a view may be of an earlier batch.
--
-- Written for the compiler: integers come from the bit library (`a + b` of them would be checked for
-- overflow, `a * b` is done in floating point), and a view is made anew for each header instead of kept
-- in a table, since an object that does not leave the trace is not made at all.

local ffi, jit, debug, host, port_names, text, chunk = ...

ffi.cdef [[
typedef struct { uint64_t bits; } tp_mask;
typedef struct { uint64_t marked; uint32_t values[64]; } tp_marks;
typedef struct { uint64_t masks[16]; uint64_t used; } tp_categories;
typedef struct {
    uint8_t **heads;
    const uint16_t *lens;
    const uint16_t *whole;
    tp_mask input;
    uint64_t mirrors;
    tp_marks *marks;
    uint32_t port;
    uint64_t now;
    tp_mask out[15];
    uint64_t *counters;
    uint64_t *traces;
    uint64_t mirrored[64];
    const tp_categories *categories;
} tp_context;
typedef struct { int32_t unused; } tp_batch;
typedef struct { const int32_t slot; } tp_ethernet;
typedef struct { const int32_t slot; } tp_vlan;
typedef struct { const int32_t slot; } tp_arp;
typedef struct { const int32_t slot, at; } tp_ip4;
typedef struct { const int32_t slot, at; } tp_ip6;
typedef struct { const int32_t slot, at; } tp_udp;
typedef struct { const int32_t slot, at; } tp_tcp;
typedef struct { const int32_t slot, at; } tp_icmp;
typedef struct { const int32_t unused; } tp_absent;
typedef struct { const int32_t at; } tp_counter;
typedef struct { const int32_t at, size; } tp_counters;
typedef struct { const int32_t at; } tp_buckets;
typedef struct { const int32_t at; } tp_table;
]]

local band, bor, bxor, bnot = bit.band, bit.bor, bit.bxor, bit.bnot
local lshift, rshift, bswap, tobit = bit.lshift, bit.rshift, bit.bswap, bit.tobit
local error, type, tostring = error, type, tostring
-- Methods of strings are the script's to replace; what is written here must not call them.
local format, find, sub, gsub = string.format, string.find, string.sub, string.gsub

local ctx = ffi.cast("tp_context *", host.context)
local next_set = ffi.cast("int32_t (*)(uint64_t, int32_t)", host.next_set)
local count_set = ffi.cast("int32_t (*)(uint64_t)", host.count_set)
local words16, words32 = ffi.typeof "uint16_t *", ffi.typeof "int32_t *"
local cast = ffi.cast

----------------------------------------------------------------------------------------------- masks

local mask_type

local function next_slot(mask, i)
    i = tobit(i + 1)
    if i < 64 and band(rshift(mask.bits, i), 1ULL) ~= 0ULL then return i end
    i = next_set(mask.bits, i)
    if i < 64 then return i end
end

local masks = {}
-- The mask has slot i.
function masks.has(mask, i) return band(rshift(mask.bits, i), 1ULL) ~= 0ULL end
function masks.add(mask, i) mask.bits = bor(mask.bits, lshift(1ULL, i)) end
function masks.remove(mask, i) mask.bits = band(mask.bits, bnot(lshift(1ULL, i))) end
function masks.count(mask) return count_set(mask.bits) end
function masks.empty(mask) return mask.bits == 0ULL end
function masks.equals(a, b) return a.bits == b.bits end
function masks.copy(mask) return mask_type(mask.bits) end

mask_type = ffi.metatype("tp_mask", {
    __index = masks,
    __add = function(a, b) return mask_type(bor(a.bits, b.bits)) end,
    __sub = function(a, b) return mask_type(band(a.bits, bnot(b.bits))) end,
    __mul = function(a, b) return mask_type(band(a.bits, b.bits)) end,
    __tostring = function(mask)
        local slots = {}
        for i = 0, 63 do if mask:has(i) then slots[#slots + 1] = i end end
        return "{" .. table.concat(slots, ", ") .. "}"
    end,
})

------------------------------------------------------------------------------------------- checksums

local function get16(p, at) return bor(lshift(p[at], 8), p[at + 1]) end

-- RFC 1624: the checksum at `p[at]` after a 16-bit word behind it has changed from old to new.
local function adjust(p, at, old, new)
    local sum = bxor(get16(p, at), 0xffff) + bxor(old, 0xffff) + new
    sum = band(sum, 0xffff) + rshift(sum, 16)
    sum = band(sum, 0xffff) + rshift(sum, 16)
    sum = bxor(sum, 0xffff)
    p[at], p[at + 1] = rshift(sum, 8), band(sum, 255)
end

-- The same for UDP, where 0 means that there is none (RFC 768), and for a word of 32 bits.
local function adjust_udp(p, at, old, new)
    if p[at] == 0 and p[at + 1] == 0 then return end
    adjust(p, at, old, new)
    if p[at] == 0 and p[at + 1] == 0 then p[at], p[at + 1] = 255, 255 end
end

local function get32(p, at) return bswap(cast(words32, p + at)[0]) end
local function get48(p, at)
    return (p[at] * 256 + p[at + 1]) * 4294967296 + p[at + 2] * 16777216
        + (p[at + 3] * 65536 + p[at + 4] * 256 + p[at + 5])
end
local function set16(p, at, value) p[at], p[at + 1] = band(rshift(value, 8), 255), band(value, 255) end
local function set32(p, at, value) cast(words32, p + at)[0] = bswap(value) end
local function set48(p, at, value)
    local high = math.floor(value / 4294967296)
    local low = value - high * 4294967296
    set16(p, at, high)
    set16(p, at + 2, math.floor(low / 65536))
    set16(p, at + 4, low % 65536)
end

-------------------------------------------------------------------------------------------- packets

-- A method can be called with anything in place of its view, and the numbers in a view are believed:
-- every method looks first whether it is one.
local istype = ffi.istype
local ethernet_view, vlan_view = ffi.typeof "tp_ethernet", ffi.typeof "tp_vlan"
local ip4_view, ip6_view = ffi.typeof "tp_ip4", ffi.typeof "tp_ip6"
local udp_view, tcp_view = ffi.typeof "tp_udp", ffi.typeof "tp_tcp"
local function no_view(what)
    error(format("%s: the method was called without its object; write it with a colon", what), 3)
end

local function short(what, i)
    error(format("slot %d: %s reaches past the packet's %d bytes", i, what, ctx.lens[band(i, 63)]), 3)
end
local function no_slot(i) error(format("slot %s: a batch has slots 0 to 63", tostring(i)), 3) end
local function no_field(view, key) error(format("%s: no field or method \"%s\"", view, tostring(key)), 3) end

-- A header that a packet does not have: its fields are nil.
local absent = ffi.metatype("tp_absent", {
    __index = function(_, key)
        if type(key) == "string" and sub(key, 1, 4) == "set_" then
            error(format("%s: the packet has no such header", key), 2)
        end
        return nil
    end,
    __newindex = function(_, key) error(format("%s: fields are set by set_%s", key, key), 2) end,
})()

local function read_only(_, key)
    error(format("%s cannot be assigned; setters are methods: set_%s(VALUE)", tostring(key), tostring(key)), 2)
end

-- The slot, if it is one.
local function slot_of(i)
    if type(i) ~= "number" or not (i >= 0 and i < 64) then no_slot(i) end
    return i
end

-- Where the transport header of an IP header at `at` begins if it is of this protocol; 0 if not.
local function transport4(p, at, protocol)
    if p[at + 9] ~= protocol or band(p[at + 6], 0x1f) ~= 0 or p[at + 7] ~= 0 then return 0 end
    return tobit(at + lshift(band(p[at], 15), 2))
end

-- The transport header of a packet with an IPv6 header at `at`, behind extension headers that any router may
-- skip (RFC 8200 4): hop-by-hop options, routing, fragment, authentication (RFC 4302), destination options.
-- Its protocol and where it begins; 0 if it is in another fragment or behind the bytes that can be read.
local function transport6(p, at, len)
    local protocol, start = p[at + 6], tobit(at + 40)
    for _ = 1, 8 do
        if protocol ~= 0 and protocol ~= 43 and protocol ~= 44 and protocol ~= 51 and protocol ~= 60 then
            return protocol, start
        end
        if tobit(start + 8) > len then return 0, 0 end
        local size
        if protocol == 44 then
            if band(get16(p, start + 2), 0xfff8) ~= 0 then return 0, 0 end
            size = 8
        elseif protocol == 51 then
            size = lshift(p[start + 1] + 2, 2)
        else
            size = lshift(p[start + 1] + 1, 3)
        end
        protocol, start = p[start], tobit(start + size)
    end
    return 0, 0
end

-- The checksum of the transport header that covers the addresses: its place, and whether 0 means none.
local function covering(i, at, version)
    local p = ctx.heads[i]
    local protocol, start
    if version == 4 then
        protocol = p[at + 9]
        start = transport4(p, at, protocol)
    else
        protocol, start = transport6(p, at, ctx.lens[i])
    end
    local place = protocol == 6 and 16 or protocol == 17 and 6 or protocol == 58 and version == 6 and 2
    if not place or start == 0 then return 0, false end
    if start + place + 2 > ctx.lens[i] then short("the checksum", i) end
    return start + place, protocol == 17
end

local function change32(i, at, place, udp, value)
    local p = ctx.heads[i]
    local old = get32(p, at)
    set32(p, at, value)
    if place == 0 then return end
    local change = udp and adjust_udp or adjust
    change(p, place, band(rshift(old, 16), 0xffff), band(rshift(value, 16), 0xffff))
    change(p, place, band(old, 0xffff), band(value, 0xffff))
end

-- Ethernet -----------------------------------------------------------------------------------------

local ethernet = {}
function ethernet.set_dst(v, mac)
    if not istype(ethernet_view, v) then no_view "ethernet" end
    set48(ctx.heads[v.slot], 0, mac)
end
function ethernet.set_src(v, mac)
    if not istype(ethernet_view, v) then no_view "ethernet" end
    set48(ctx.heads[v.slot], 6, mac)
end
function ethernet.set_type(v, number)
    if not istype(ethernet_view, v) then no_view "ethernet" end
    set16(ctx.heads[v.slot], 12, number)
end
local ethernet_type = ffi.metatype("tp_ethernet", {
    __index = function(v, k)
        local p = ctx.heads[v.slot]
        if k == "type" then return get16(p, 12)
        elseif k == "dst" then return get48(p, 0)
        elseif k == "src" then return get48(p, 6)
        end
        return ethernet[k] or no_field("ethernet", k)
    end,
    __newindex = read_only,
})

-- VLAN tag -----------------------------------------------------------------------------------------

local vlan = {}
function vlan.set_id(v, id)
    if not istype(vlan_view, v) then no_view "vlan" end
    local p = ctx.heads[v.slot]
    set16(p, 14, bor(band(get16(p, 14), 0xf000), band(id, 0xfff)))
end
function vlan.set_pcp(v, pcp)
    if not istype(vlan_view, v) then no_view "vlan" end
    local p = ctx.heads[v.slot]
    p[14] = bor(band(p[14], 0x1f), lshift(band(pcp, 7), 5))
end
local vlan_type = ffi.metatype("tp_vlan", {
    __index = function(v, k)
        local p = ctx.heads[v.slot]
        if k == "id" then return band(get16(p, 14), 0xfff)
        elseif k == "pcp" then return rshift(p[14], 5)
        elseif k == "type" then return get16(p, 16)
        end
        return vlan[k] or no_field("vlan", k)
    end,
    __newindex = read_only,
})

-- ARP ----------------------------------------------------------------------------------------------

local arp_type = ffi.metatype("tp_arp", {
    __index = function(v, k)
        local p = ctx.heads[v.slot]
        if k == "operation" then return get16(p, 20)
        elseif k == "sender_mac" then return get48(p, 22)
        elseif k == "sender_ip" then return get32(p, 28)
        elseif k == "target_mac" then return get48(p, 32)
        elseif k == "target_ip" then return get32(p, 38)
        end
        return no_field("arp", k)
    end,
    __newindex = read_only,
})

-- IPv4 ---------------------------------------------------------------------------------------------

local ip4 = {}
-- Changes one byte of the header and the header's checksum.
local function change_byte(v, k, value)
    local p = ctx.heads[v.slot] + v.at
    local word = k - k % 2
    local old = get16(p, word)
    p[k] = value
    adjust(p, 10, old, get16(p, word))
end
function ip4.set_dscp(v, dscp)
    if not istype(ip4_view, v) then no_view "ip4" end
    local tos = ctx.heads[v.slot][v.at + 1]
    change_byte(v, 1, bor(lshift(band(dscp, 63), 2), band(tos, 3)))
end
function ip4.set_ecn(v, ecn)
    if not istype(ip4_view, v) then no_view "ip4" end
    local tos = ctx.heads[v.slot][v.at + 1]
    change_byte(v, 1, bor(band(tos, 252), band(ecn, 3)))
end
function ip4.set_ttl(v, ttl)
    if not istype(ip4_view, v) then no_view "ip4" end
    change_byte(v, 8, band(ttl, 255))
end
local function set_address4(v, at, address)
    local p = ctx.heads[v.slot] + v.at
    local place, udp = covering(v.slot, v.at, 4)
    local old = get32(p, at)
    change32(v.slot, v.at + at, place, udp, address)
    adjust(p, 10, band(rshift(old, 16), 0xffff), band(rshift(address, 16), 0xffff))
    adjust(p, 10, band(old, 0xffff), band(address, 0xffff))
end
function ip4.set_src(v, address)
    if not istype(ip4_view, v) then no_view "ip4" end
    set_address4(v, 12, address)
end
function ip4.set_dst(v, address)
    if not istype(ip4_view, v) then no_view "ip4" end
    set_address4(v, 16, address)
end
local ip4_type = ffi.metatype("tp_ip4", {
    __index = function(v, k)
        local p = ctx.heads[v.slot] + v.at
        if k == "protocol" then return p[9]
        elseif k == "src" then return get32(p, 12)
        elseif k == "dst" then return get32(p, 16)
        elseif k == "dscp" then return rshift(p[1], 2)
        elseif k == "ecn" then return band(p[1], 3)
        elseif k == "ttl" then return p[8]
        elseif k == "total_length" then return get16(p, 2)
        elseif k == "id" then return get16(p, 4)
        elseif k == "version" then return rshift(p[0], 4)
        elseif k == "header_length" then return lshift(band(p[0], 15), 2)
        elseif k == "df" then return band(p[6], 0x40) ~= 0
        elseif k == "mf" then return band(p[6], 0x20) ~= 0
        elseif k == "fragment_offset" then return lshift(band(get16(p, 6), 0x1fff), 3)
        elseif k == "checksum" then return get16(p, 10)
        end
        return ip4[k] or no_field("ip4", k)
    end,
    __newindex = read_only,
})

-- IPv6 ---------------------------------------------------------------------------------------------

local ip6 = {}
local function set_class(v, class)
    local p = ctx.heads[v.slot] + v.at
    p[0] = bor(0x60, rshift(class, 4))
    p[1] = bor(band(p[1], 15), lshift(band(class, 15), 4))
end
local function class_of(p) return bor(lshift(band(p[0], 15), 4), rshift(p[1], 4)) end
function ip6.set_dscp(v, dscp)
    if not istype(ip6_view, v) then no_view "ip6" end
    set_class(v, bor(lshift(band(dscp, 63), 2), band(class_of(ctx.heads[v.slot] + v.at), 3)))
end
function ip6.set_ecn(v, ecn)
    if not istype(ip6_view, v) then no_view "ip6" end
    set_class(v, bor(band(class_of(ctx.heads[v.slot] + v.at), 252), band(ecn, 3)))
end
function ip6.set_hop_limit(v, hops)
    if not istype(ip6_view, v) then no_view "ip6" end
    ctx.heads[v.slot][v.at + 7] = hops
end
local function set_address6(v, at, a, b, c, d)
    local place, udp = covering(v.slot, v.at, 6)
    at = v.at + at
    change32(v.slot, at, place, udp, a)
    change32(v.slot, at + 4, place, udp, b)
    change32(v.slot, at + 8, place, udp, c)
    change32(v.slot, at + 12, place, udp, d)
end
function ip6.set_src(v, a, b, c, d)
    if not istype(ip6_view, v) then no_view "ip6" end
    set_address6(v, 8, a, b, c, d)
end
function ip6.set_dst(v, a, b, c, d)
    if not istype(ip6_view, v) then no_view "ip6" end
    set_address6(v, 24, a, b, c, d)
end
function ip6.src(v)
    if not istype(ip6_view, v) then no_view "ip6" end
    local p = ctx.heads[v.slot] + v.at
    return get32(p, 8), get32(p, 12), get32(p, 16), get32(p, 20)
end
function ip6.dst(v)
    if not istype(ip6_view, v) then no_view "ip6" end
    local p = ctx.heads[v.slot] + v.at
    return get32(p, 24), get32(p, 28), get32(p, 32), get32(p, 36)
end
local ip6_type = ffi.metatype("tp_ip6", {
    __index = function(v, k)
        local p = ctx.heads[v.slot] + v.at
        if k == "next_header" then return p[6]
        elseif k == "dscp" then return rshift(class_of(p), 2)
        elseif k == "ecn" then return band(class_of(p), 3)
        elseif k == "hop_limit" then return p[7]
        elseif k == "payload_length" then return get16(p, 4)
        elseif k == "flow" then return band(p[1], 15) * 65536 + get16(p, 2)
        elseif k == "version" then return rshift(p[0], 4)
        end
        return ip6[k] or no_field("ip6", k)
    end,
    __newindex = read_only,
})

-- UDP, TCP, ICMP -----------------------------------------------------------------------------------

-- The header of a view, if the packet still has so many bytes there.
local function reach_header(v, size)
    local i, at = v.slot, v.at
    if tobit(at + size) > ctx.lens[i] then short("the header", i) end
    return ctx.heads[i] + at
end
local function set_port(v, at, checksum, change, port)
    local p = reach_header(v, checksum + 2)
    local old = get16(p, at)
    set16(p, at, port)
    change(p, checksum, old, band(port, 0xffff))
end
local udp = {}
function udp.set_src(v, port)
    if not istype(udp_view, v) then no_view "udp" end
    set_port(v, 0, 6, adjust_udp, port)
end
function udp.set_dst(v, port)
    if not istype(udp_view, v) then no_view "udp" end
    set_port(v, 2, 6, adjust_udp, port)
end
local udp_type = ffi.metatype("tp_udp", {
    __index = function(v, k)
        local p = reach_header(v, 8)
        if k == "dst" then return get16(p, 2)
        elseif k == "src" then return get16(p, 0)
        elseif k == "length" then return get16(p, 4)
        elseif k == "checksum" then return get16(p, 6)
        end
        return udp[k] or no_field("udp", k)
    end,
    __newindex = read_only,
})
local tcp = {}
function tcp.set_src(v, port)
    if not istype(tcp_view, v) then no_view "tcp" end
    set_port(v, 0, 16, adjust, port)
end
function tcp.set_dst(v, port)
    if not istype(tcp_view, v) then no_view "tcp" end
    set_port(v, 2, 16, adjust, port)
end
local tcp_type = ffi.metatype("tp_tcp", {
    __index = function(v, k)
        local p = reach_header(v, 20)
        if k == "dst" then return get16(p, 2)
        elseif k == "src" then return get16(p, 0)
        elseif k == "flags" then return p[13]
        elseif k == "syn" then return band(p[13], 2) ~= 0
        elseif k == "ack" then return band(p[13], 16) ~= 0
        elseif k == "fin" then return band(p[13], 1) ~= 0
        elseif k == "rst" then return band(p[13], 4) ~= 0
        elseif k == "sequence" then return get32(p, 4)
        elseif k == "acknowledgement" then return get32(p, 8)
        elseif k == "window" then return get16(p, 14)
        elseif k == "checksum" then return get16(p, 16)
        end
        return tcp[k] or no_field("tcp", k)
    end,
    __newindex = read_only,
})
local icmp_type = ffi.metatype("tp_icmp", {
    __index = function(v, k)
        local p = reach_header(v, 8)
        if k == "type" then return p[0]
        elseif k == "code" then return p[1]
        elseif k == "id" then return get16(p, 4)
        elseif k == "sequence" then return get16(p, 6)
        elseif k == "checksum" then return get16(p, 2)
        end
        return no_field("icmp", k)
    end,
    __newindex = read_only,
})

-- Batches ------------------------------------------------------------------------------------------

local batches = {}

local port_numbers = {}
for number, name in pairs(port_names) do port_numbers[name] = number end
local categories = {}
for number, name in pairs(host.categories) do categories[name] = number end

-- The fault of a step that names nothing of `all`.
local function unknown(what, name, fault, all)
    local known = {}
    for other in pairs(all) do known[#known + 1] = other end
    table.sort(known)
    error(format("%s %q: %s; known: %s", what, tostring(name), fault, table.concat(known, ", ")), 3)
end

-- for i in batch:each(mask): the mask's slots in ascending order.
function batches.each(_, mask) return next_slot, mask, -1 end
function batches.len(_, i) return ctx.whole[band(i, 63)] end
function batches.port() return port_names[ctx.port] end

-- A copy of the packet, as it is when the step has returned, leaves by this port.
function batches.mirror(_, i, name)
    local port = port_numbers[name] or unknown("port", name, "not found", port_numbers)
    i = slot_of(i)
    ctx.mirrored[port] = bor(ctx.mirrored[port], lshift(1ULL, i))
    ctx.mirrors = bor(ctx.mirrors, lshift(1ULL, port))
end

-- The type in the Ethernet header as it lies in memory; the word after it if that is a VLAN tag.
local function kind_of(i) return cast(words16, ctx.heads[i])[6] end
local function is_tag(kind) return kind == 0x0081 or kind == 0xa888 end

function batches.ethernet(_, i)
    i = slot_of(i)
    if ctx.lens[i] < 14 then short("the Ethernet header", i) end
    return ethernet_type(i)
end

function batches.vlan(_, i)
    i = slot_of(i)
    if not is_tag(kind_of(i)) or ctx.lens[i] < 14 then return absent end
    if ctx.lens[i] < 18 then short("the VLAN tag", i) end
    return vlan_type(i)
end

function batches.arp(_, i)
    i = slot_of(i)
    if ctx.lens[i] < 14 or kind_of(i) ~= 0x0608 then return absent end
    if ctx.lens[i] < 42 then short("the ARP message", i) end
    return arp_type(i)
end

-- The view of an IP header of this kind, with a VLAN tag or without.
local function ip_header(i, kind, least, view, what)
    local found, at = kind_of(i), 14
    if is_tag(found) then found, at = cast(words16, ctx.heads[i])[8], 18 end
    if found ~= kind then return absent end
    if ctx.lens[i] < at + least then
        if ctx.lens[i] < at then return absent end
        short(what, i)
    end
    return view(i, at)
end
function batches.ip4(_, i) return ip_header(slot_of(i), 0x0008, 20, ip4_type, "the IPv4 header") end
function batches.ip6(_, i) return ip_header(slot_of(i), 0xdd86, 40, ip6_type, "the IPv6 header") end

-- The view of the header of a transport protocol.
local function transport(i, protocol4, protocol6, size, view, what)
    local p, len, kind, at = ctx.heads[i], ctx.lens[i], kind_of(i), 14
    if is_tag(kind) then kind, at = cast(words16, p)[8], 18 end
    local start = 0
    if kind == 0x0008 and len >= at + 20 then
        start = transport4(p, at, protocol4)
    elseif kind == 0xdd86 and len >= at + 40 then
        local protocol, place = transport6(p, at, len)
        if protocol == protocol6 then start = place end
    end
    if start == 0 then return absent end
    if tobit(start + size) > len then short(what, i) end
    return view(i, start)
end
function batches.udp(_, i) return transport(slot_of(i), 17, 17, 8, udp_type, "the UDP header") end
function batches.tcp(_, i) return transport(slot_of(i), 6, 6, 20, tcp_type, "the TCP header") end
function batches.icmp(_, i) return transport(slot_of(i), 1, 58, 8, icmp_type, "the ICMP header") end

-- Bytes at an offset of the frame; setters here keep no checksum.
local function reach(i, at, size)
    i = slot_of(i)
    if type(at) ~= "number" or at < 0 or at % 1 ~= 0 or at + size > ctx.lens[i] then
        error(format("slot %d: %d bytes at %s reach past the packet's %d bytes", i, size, tostring(at),
            ctx.lens[i]), 3)
    end
    return ctx.heads[i]
end
function batches.u8(_, i, at) return reach(i, at, 1)[at] end
function batches.u16(_, i, at) return get16(reach(i, at, 2), at) end
function batches.u32(_, i, at) return get32(reach(i, at, 4), at) end
function batches.set_u8(_, i, at, value) reach(i, at, 1)[at] = band(value, 255) end
function batches.set_u16(_, i, at, value) set16(reach(i, at, 2), at, value) end
function batches.set_u32(_, i, at, value) set32(reach(i, at, 4), at, value) end

-- A number for a step behind this one, 0 unless one was given.
function batches.mark(_, i)
    i = slot_of(i)
    if band(rshift(ctx.marks.marked, i), 1ULL) == 0ULL then return 0 end
    return ctx.marks.values[i]
end
function batches.set_mark(_, i, value)
    i = slot_of(i)
    if type(value) ~= "number" or not (value >= 0 and value <= 4294967295) then
        error(format("mark %s: a number from 0 to 4294967295", tostring(value)), 2)
    end
    ctx.marks.marked = bor(ctx.marks.marked, lshift(1ULL, i))
    ctx.marks.values[i] = value
end

-- The packets that a filter's rules have put into the category, of those that the step takes.
function batches.category(_, name)
    local number = categories[name] or unknown("category", name, "no rule names it", categories)
    return mask_type(band(ctx.categories.masks[number], ctx.input.bits))
end

local batch = ffi.metatype("tp_batch", { __index = batches })()

------------------------------------------------------------------------------------------- counters

local counter_sum = cast("double (*)(void *, int32_t)", host.counter_sum)
local peers = cast("void *", host.peers)
local counter_view, counters_view = ffi.typeof "tp_counter", ffi.typeof "tp_counters"
local counter_type = ffi.metatype("tp_counter", {
    __index = {
        add = function(v, n)
            if not istype(counter_view, v) then no_view "counter" end
            local at = v.at
            ctx.counters[at] = ctx.counters[at] + (n or 1)
        end,
        -- Over all forwarders.
        sum = function(v)
            if not istype(counter_view, v) then no_view "counter" end
            return counter_sum(peers, v.at)
        end,
    },
})
local counters_type = ffi.metatype("tp_counters", {
    __index = {
        add = function(v, k, n)
            if not istype(counters_view, v) then no_view "counters" end
            -- The sum, too: of the largest fraction below 1 and a large number it is the next number.
            if type(k) ~= "number" or not (k >= 0 and k < v.size and v.at + k < v.at + v.size) then
                error(format("counter %s: there are 0 to %d", tostring(k), v.size - 1), 2)
            end
            local at = v.at + k
            ctx.counters[at] = ctx.counters[at] + (n or 1)
        end,
        sum = function(v, k)
            if not istype(counters_view, v) then no_view "counters" end
            if type(k) ~= "number" or not (k >= 0 and k < v.size) then
                error(format("counter %s: there are 0 to %d", tostring(k), v.size - 1), 2)
            end
            return counter_sum(peers, v.at + k)
        end,
    },
})

----------------------------------------------------------------------- what all forwarders have together

-- Where the objects are, by the numbers in their views.
local places, placed = ffi.new("void *[?]", host.shared_max), 0
local bucket_take = cast("bool (*)(void *, double, uint64_t, double, double, double, double)", host.bucket_take)
local table_get = cast("double (*)(void *, uint64_t, double, double, double, double)", host.table_get)
local table_set = cast("void (*)(void *, double, uint64_t, double, double, double, double)", host.table_set)
local table_add = cast("double (*)(void *, double, uint64_t, double, double, double, double)", host.table_add)
local table_remove = cast("void (*)(void *, double, double, double, double)", host.table_remove)

-- The script has run: steps use what there is.
local made = false

local function place(object)
    for at = 0, placed - 1 do if places[at] == object then return at end end
    places[placed] = object
    placed = placed + 1
    return placed - 1
end

local buckets_view, table_view = ffi.typeof "tp_buckets", ffi.typeof "tp_table"
local buckets_type = ffi.metatype("tp_buckets", {
    __index = {
        take = function(v, amount, a, b, c, d)
            if not istype(buckets_view, v) then no_view "buckets" end
            return bucket_take(places[v.at], amount or 1, ctx.now, a or 0, b or 0, c or 0, d or 0)
        end,
    },
})
local table_type = ffi.metatype("tp_table", {
    __index = {
        get = function(v, a, b, c, d)
            if not istype(table_view, v) then no_view "table" end
            local value = table_get(places[v.at], ctx.now, a or 0, b or 0, c or 0, d or 0)
            if value == value then return value end
        end,
        set = function(v, value, a, b, c, d)
            if not istype(table_view, v) then no_view "table" end
            if type(value) ~= "number" or value ~= value then
                error(format("a table holds numbers, not %s", tostring(value)), 2)
            end
            table_set(places[v.at], value, ctx.now, a or 0, b or 0, c or 0, d or 0)
        end,
        add = function(v, amount, a, b, c, d)
            if not istype(table_view, v) then no_view "table" end
            return table_add(places[v.at], amount or 1, ctx.now, a or 0, b or 0, c or 0, d or 0)
        end,
        remove = function(v, a, b, c, d)
            if not istype(table_view, v) then no_view "table" end
            table_remove(places[v.at], a or 0, b or 0, c or 0, d or 0)
        end,
    },
})

--------------------------------------------------------------------------------------- what JIT does

-- ctx.traces: compiled, aborted, flushed. The words for the most frequent reasons of an abort.
local reasons = host.abort_reasons
jit.attach(function(what, _, func, _, code, info)
    if what == "stop" then
        ctx.traces[0] = ctx.traces[0] + 1
    elseif what == "flush" then
        ctx.traces[2] = ctx.traces[2] + 1
    elseif what == "abort" then
        ctx.traces[1] = ctx.traces[1] + 1
        local place = debug.getinfo(func, "S")
        local reason = reasons[code] or ("reason " .. tostring(code))
        if find(reason, "%%") and type(info) ~= "function" then
            reason = gsub(reason, "%%[sd]", (gsub(tostring(info), "%%", "%%%%")))
        end
        host.aborted(format("%s at %s:%d", reason, place.short_src, place.linedefined))
    end
end, "trace")

----------------------------------------------------------------------------------------- the script

-- Answers everything with itself: on a forwarder, statements other than steps do nothing.
local sink = {}
local function again() return sink end
setmetatable(sink, { __index = again, __call = again, __concat = function() return "" end,
    __newindex = function() end, __tostring = function() return "" end, __metatable = false })

local found = {}
local module = {}
function module.step(name)
    return function(settings)
        found[name] = settings.process
        return sink
    end
end
function module.counter(name) return counter_type(host.counter(name, 1)) end
function module.counters(name, size)
    if type(size) ~= "number" then error(format("counters: expected a number, got a %s", type(size)), 2) end
    return counters_type(host.counter(name, size), size)
end
function module.mask() return mask_type(0) end
local function while_loading(what)
    if made then error(format("turnpike.%s: not within a step's function; make it once, before the step", what), 3) end
end
function module.buckets(name)
    return function(settings)
        while_loading "buckets"
        local rate = settings.rate
        local burst, size = settings.burst or math.max(1, rate / 10), settings.size or host.shared_size
        return buckets_type(place(host.buckets(name, rate, burst, size)))
    end
end
function module.table(name)
    return function(settings)
        while_loading "table"
        return table_type(place(host.table(name, settings.size or host.shared_size, settings.seconds)))
    end
end
-- Nanoseconds since some moment, the same for all forwarders, when the batch was received.
local start, ns = host.start, host.ns
function module.now() return (tonumber(ctx.now) - start) * ns end
host.helpers(module)
setmetatable(module, { __index = again, __newindex = function() end })

local environment = {}
for _, name in ipairs { "assert", "error", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget",
    "rawset", "select", "setmetatable", "tonumber", "tostring", "type", "unpack", "xpcall", "_VERSION" } do
    environment[name] = _G[name]
end
local function copy(library, without)
    local list = {}
    for name, value in pairs(library) do if name ~= without then list[name] = value end end
    return list
end
environment.table, environment.math, environment.bit = copy(table), copy(math), copy(bit)
environment.string = copy(string, "dump")
host.bound(environment.string, environment.table)
getmetatable("").__index = environment.string
environment._G = environment
-- A line for each packet, or for each forwarder, is not what anybody wants.
environment.print = function() end
environment.require = function(name)
    if name == "turnpike" then return module end
    error(format("require: no module %q; known: \"turnpike\"", tostring(name)), 2)
end

local script = assert(loadstring(text, chunk))
setfenv(script, environment)()
made = true

local function nothing(input)
    if input.bits == 0ULL then return end
    error("the step returned no mask for any output, and filled none; a mask that may be empty: turnpike.mask()", 0)
end

-- A function for each step that takes the context's input and fills its outputs.
local function runner(name, outputs)
    local process = found[name]
    if type(process) ~= "function" then
        error(format("step %q: the script does not make it on a forwarder; it must not depend on chance", name), 0)
    end
    local out = {}
    for k, output in ipairs(outputs) do out[output] = ctx.out[k - 1] end
    local input = ctx.input
    -- Written for as many outputs as there are: fixed numbers of values are compiled well.
    local values, clear, read, write, keep, filled = {}, {}, {}, {}, {}, {}
    for k = 1, #outputs do
        values[k] = "m" .. k
        clear[k] = format("out%d.bits = 0ULL", k)
        -- The masks that were returned may be those of `out`: all are read before one is written.
        read[k] = format("local b%d = 0ULL if m%d then b%d = m%d.bits end", k, k, k, k)
        write[k] = format("out%d.bits = b%d", k, k)
        keep[k] = format("local out%d = ctx.out[%d]", k, k - 1)
        filled[k] = format("out%d.bits == 0ULL", k)
    end
    local function lines(list) return table.concat(list, "\n") end
    local all = table.concat(values, ", ")
    local code = lines {
        "local process, batch, input, out, ctx, nothing = ...",
        lines(keep),
        "return function()",
        #outputs > 1 and lines(clear) or "",
        format("local %s = process(batch, input, out)", all),
        format("if %s then", table.concat(values, " or ")),
        lines(read), lines(write),
        "else",
        -- One output can only be returned; of several, some may have been filled.
        format("if %s then nothing(input) end", #outputs == 1 and "true" or table.concat(filled, " and ")),
        #outputs == 1 and "out1.bits = 0ULL" or "",
        "end end",
    }
    return assert(loadstring(code, "=" .. name))(process, batch, input, out, ctx, nothing)
end

return runner

-- What becomes of an error of a step: the line of the configuration that led to it, in front of the message,
-- and the calls that led there behind it.

local debug, file = ...
local getinfo, traceback = debug.getinfo, debug.traceback
local find, gsub, sub, tostring = string.find, string.gsub, string.sub, tostring
local source = "=" .. file

-- FILE:LINE of the innermost function of the configuration.
local function place()
    for level = 3, 50 do
        local info = getinfo(level, "Sl")
        if not info then return nil end
        if info.source == source then return file .. ":" .. info.currentline end
    end
end

return function(message)
    local text = tostring(message)
    local at = place()
    -- What is raised within the prelude or a library has their place, or none.
    if at and sub(text, 1, #file + 1) ~= file .. ":" then
        text = at .. ": " .. gsub(text, "^[^%s:]+:%d+: ", "")
    end
    local trace = traceback(text, 2)
    -- The outermost call is the one that made the step's outputs ready.
    return at and gsub(trace, "\n[^\n]*$", "") or trace
end

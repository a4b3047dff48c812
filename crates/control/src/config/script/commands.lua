-- What a command in Lua runs in: the configuration runs once more, and only its commands count.

local wanted, helpers, show, write = ...

-- Answers everything with itself: statements other than commands do nothing here.
local sink = {}
local function again() return sink end
setmetatable(sink, { __index = again, __call = again, __concat = function() return "" end,
    __newindex = function() end, __tostring = function() return "" end })

local turnpike = {}
helpers(turnpike)

local found
function turnpike.command(name)
    return function(settings)
        if name == wanted then found = settings.run end
    end
end

-- turnpike.show("ports"), turnpike.show("route", { address = "192.0.2.1" }): what the API answers
function turnpike.show(what, settings)
    if type(what) ~= "string" then
        error(("turnpike.show: expected a name such as \"ports\", got a %s"):format(type(what)), 2)
    end
    local report, message = show(settings == nil and what or { [what] = settings })
    if message then error("turnpike.show: " .. message, 2) end
    return report
end

setmetatable(turnpike, { __index = again, __newindex = function() end })

function print(...)
    local words = {}
    for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
    write(table.concat(words, "\t") .. "\n")
end

function require(name)
    if name == "turnpike" then return turnpike end
    error(("require: no module %q; known: \"turnpike\""):format(tostring(name)), 2)
end

return function(args)
    if not found then error("the configuration makes no command " .. wanted, 0) end
    return found(args)
end

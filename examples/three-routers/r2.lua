-- The second of three routers; run.sh starts them, README.md shows how they are wired.

local turnpike = require "turnpike"

turnpike.routes_from { "kernel" }

turnpike.port "to1"   { device = "wire-to1",   address = { "10.12.0.2/24", "fd12::2/64" } }
turnpike.port "to3"   { device = "wire-to3",   address = { "10.23.0.2/24", "fd23::2/64" } }

-- Three routers share this machine: little memory for each.
turnpike.memory { mbufs = 8192 }

-- The third of three routers; run.sh starts them, README.md shows how they are wired.

local turnpike = require "turnpike"

turnpike.routes_from { "kernel" }

turnpike.port "to1"   { device = "wire-to1",   address = { "10.13.0.3/24", "fd13::3/64" } }
turnpike.port "to2"   { device = "wire-to2",   address = { "10.23.0.3/24", "fd23::3/64" } }
turnpike.port "hosts" { device = "wire-hosts", address = { "10.3.0.1/24", "fd03::1/64" } }

-- Three routers share this machine: little memory for each.
turnpike.memory { mbufs = 8192 }

-- The first of three routers; run.sh starts them, README.md shows how they are wired.

local turnpike = require "turnpike"

-- `routes_from` gives every port a host interface: a kernel interface with the port's name, over
-- which FRR speaks OSPF. What FRR gives to the kernel, the router forwards by.
turnpike.routes_from { "kernel" }

turnpike.port "to2"   { device = "wire-to2",   address = { "10.12.0.1/24", "fd12::1/64" } }
turnpike.port "to3"   { device = "wire-to3",   address = { "10.13.0.1/24", "fd13::1/64" } }
turnpike.port "hosts" { device = "wire-hosts", address = { "10.1.0.1/24", "fd01::1/64" } }

-- Three routers share this machine: little memory for each.
turnpike.memory { mbufs = 8192 }

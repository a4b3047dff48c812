-- A router between two hosts, the configuration that `make demo` runs.
--
-- Two networks, one behind each port. On the left lives the host 10.0.1.2 (fd00:1::2), on the
-- right 10.0.2.2 (fd00:2::2); each has this router as its default gateway.

local turnpike = require "turnpike"

-- A port is made of a kernel interface ("tp-left"), a PCI function ("0000:03:00.0") or a DPDK
-- device ("net_tap0,iface=tap0"). Its addresses determine its networks; the router answers
-- ARP, neighbour discovery and ping for them.
turnpike.port "left"  { device = "tp-left",  address = { "10.0.1.1/24", "fd00:1::1/64" } }
turnpike.port "right" { device = "tp-right", address = { "10.0.2.1/24", "fd00:2::1/64" } }

-- A route over one gateway, whose network determines the port.
turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }

-- Equal-cost paths: every flow keeps to one of them.
turnpike.route "203.0.113.0/24" { via = { "10.0.1.2", "10.0.2.2" } }

-- A neighbour with a configured MAC.
turnpike.neighbour "10.0.2.9" { port = "right", mac = "02:00:00:00:00:09" }

-- A whole table, MRT or PREFIX<TAB>AS, spread over gateways by origin AS. The file is sought
-- beside this one; `turnpike generate-table 500000 table.dat.gz` makes one to try.
-- turnpike.import { file = "table.dat.gz", via = { "10.0.1.2", "10.0.2.2" } }

-- One forwarder, on core 1; core 0 stays with the slow path and the rest of the machine.
turnpike.cores { control = "0", forward = "1" }

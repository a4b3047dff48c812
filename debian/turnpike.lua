-- The configuration of turnpike.service. After a change:
--
--   turnpike check /etc/turnpike/turnpike.lua     reports errors, and changes nothing
--   turnpike plan /etc/turnpike/turnpike.lua      lists the changes to the running router
--   systemctl reload turnpike                     makes them, all or none
--
-- /usr/share/doc/turnpike/docs/guide.md describes all settings; `turnpike devices` lists the NICs of this machine.

local turnpike = require "turnpike"

-- A port without a NIC, with which the router starts and forwards nothing. Replace it by ports of your own.
turnpike.port "none" { device = "net_null0,no-rx=1" }

-- A device is a kernel interface ("eth1"), a PCI address ("0000:03:00.0"), or a DPDK virtual device. A NIC is faster
-- with DPDK's driver: `driver = "vfio-pci"` binds it while the router runs.
--
-- turnpike.port "wan" { device = "eth1", address = { "192.0.2.1/24", "2001:db8:1::1/64" } }
-- turnpike.port "lan" { device = "0000:03:00.0", address = "10.0.1.1/24" }

-- Routes: of this file, of the kernel (`ip route`, BIRD, FRR), or of FRR's FPM module.
--
-- turnpike.route "0.0.0.0/0" { via = "192.0.2.254" }
-- turnpike.routes_from { "kernel" }

-- Cores: one for the control plane, the others forward.
--
-- turnpike.cores { control = "0", forward = "1-3" }

-- Metrics for Prometheus, see /usr/share/doc/turnpike/examples/monitoring.
--
-- turnpike.metrics { socket = "/run/turnpike-metrics.sock", group = "turnpike" }

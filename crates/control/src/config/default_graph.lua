-- The default graph: where a packet goes, top to bottom.
--
-- A path begins at an output, "STEP.OUTPUT", and goes on by the main output of each step that it names.
-- Packets for the slow path (ARP, expired, unknown neighbours, …) and dropped ones do not appear here:
-- each step says those outputs itself, `turnpike show graph` draws them all. A step with `when` is there
-- only if a port has that setting.

local turnpike = require "turnpike"

local graph = turnpike.new_graph "classify"

graph:path("classify.ip4",
    "ip4-prefetch",
    "ip4-checksum-offload",
    "ip4-validate",
    { "ip4-reverse-path", when = "reverse_path" },
    "ip4-lookup",
    "ip4-ttl",
    { "ip4-redirect", when = "redirects" },
    "ip4-mtu",
    "ip4-rewrite",
    "transmit")

graph:path("classify.ip6",
    "ip6-checksum-offload",
    "ip6-validate",
    { "ip6-reverse-path", when = "reverse_path" },
    "ip6-lookup",
    "ip6-hop-limit",
    { "ip6-redirect", when = "redirects" },
    "ip6-mtu",
    "ip6-rewrite",
    "transmit")

graph:path("ip4-lookup.multicast", "ip4-multicast", "replicate")
graph:path("ip6-lookup.multicast", "ip6-multicast", "replicate")

return graph

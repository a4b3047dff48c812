-- Filters from nftables.txt.
-- Left out: 8, of which 8 LET PASS, DROP OR CHANGE PACKETS: look for "!!".
-- turnpike.port "wan" { …, filter = { outward = "forward-wan" } }
-- every other port: filter = { outward = "forward" }
-- "to-router" is for packets for the router, by its name: no port names it
-- Packets to groups are filtered inward only: those that are forwarded pass these filters by.
turnpike.filter "forward-wan" {
  -- !! NOT CONVERTED: line 34: ct state vmap { invalid : drop, established : accept, related : accept }
  --    no state invalid here: such packets are "new", or belong to the connection that they seem to; its packets meet later rules instead
  -- line 34: ct state vmap { invalid : drop, established : accept, related : accept }
  { state = "established", action = "accept" },
  { state = "related", action = "accept" },
  -- line 35: ip saddr @bad counter packets 0 bytes 0 drop comment "bad sources"
  { name = "bad sources", from = { "192.0.2.1", "198.18.0.0/15", "203.0.113.5", "203.0.113.6/31", "203.0.113.8/31" }, action = "drop" },
  -- line 36: ip saddr . tcp dport @pairs accept
  { from = "10.0.0.1", proto = "tcp", to_port = 22, action = "accept" },
  { from = "10.0.0.2", proto = "tcp", to_port = 80, action = "accept" },
  -- line 37: iifname "lan" oifname "wan" ct state new accept
  { interface = "lan", state = "new", action = "accept" },
  -- line 38: tcp dport vmap @ends
  { proto = "tcp", to_port = 25, action = "drop" },
  -- line 39: tcp flags syn / fin,syn,rst,ack tcp dport != { 1-5, 9 } accept
  { proto = "tcp", to_port = { 0, "6-8", "10-65535" }, flags = "!fin,syn,!rst,!ack", action = "accept" },
  -- !! NOT CONVERTED: line 40: icmp type echo-request limit rate 10/second burst 20 packets accept
  --    what exceeds its rate goes on to rules that may accept it; police drops it; its packets meet later rules instead
  -- line 41: icmpv6 type { packet-too-big, echo-request } accept
  { icmp6 = { 2, 128 }, action = "accept" },
  -- !! NOT CONVERTED: line 42: meta l4proto { tcp, udp } th dport 53 limit rate 100 kbytes/second accept
  --    what exceeds its rate goes on to rules that may accept it; police drops it; its packets meet later rules instead
  -- !! NOT CONVERTED: line 43: ip saddr @guests accept
  --    set guests changes by itself; its packets meet later rules instead
  -- !! NOT CONVERTED: line 44: ip6 nexthdr tcp accept
  --    "ip6 nexthdr" sees the first header only; filters see the upper layer: write meta l4proto; its packets meet later rules instead
  -- !! NOT CONVERTED: line 45: meta mark 0x00000001 accept
  --    "meta mark" has no counterpart; its packets meet later rules instead
  -- line 46: ip ttl < 5 ip dscp { cs1, ef } accept
  { family = "ip4", dscp = { 8, 46 }, ttl = "1-5", action = "accept" },
  -- line 47: meta length > 1000 accept
  { length = "1001-65535", action = "accept" },
  -- !! NOT CONVERTED: line 48: update @guests { ip saddr limit rate over 10/second } drop
  --    what is within its rate goes on to rules that may drop it; police accepts it; its packets meet later rules instead
  -- line 49: iifname "dmz" log prefix "dmz: " reject with icmpx admin-prohibited
  --   the answer differs: TCP is reset, else administratively prohibited, not admin-prohibited
  { name = "dmz", interface = "dmz", action = "reject", log = true },
  -- line 50: log prefix "rest: "
  { name = "rest", action = "drop", log = true },
  default = "drop",
}
turnpike.filter "forward" {
  -- !! NOT CONVERTED: line 34: ct state vmap { invalid : drop, established : accept, related : accept }
  --    no state invalid here: such packets are "new", or belong to the connection that they seem to; its packets meet later rules instead
  -- line 34: ct state vmap { invalid : drop, established : accept, related : accept }
  { state = "established", action = "accept" },
  { state = "related", action = "accept" },
  -- line 35: ip saddr @bad counter packets 0 bytes 0 drop comment "bad sources"
  { name = "bad sources", from = { "192.0.2.1", "198.18.0.0/15", "203.0.113.5", "203.0.113.6/31", "203.0.113.8/31" }, action = "drop" },
  -- line 36: ip saddr . tcp dport @pairs accept
  { from = "10.0.0.1", proto = "tcp", to_port = 22, action = "accept" },
  { from = "10.0.0.2", proto = "tcp", to_port = 80, action = "accept" },
  -- line 38: tcp dport vmap @ends
  { proto = "tcp", to_port = 25, action = "drop" },
  -- line 39: tcp flags syn / fin,syn,rst,ack tcp dport != { 1-5, 9 } accept
  { proto = "tcp", to_port = { 0, "6-8", "10-65535" }, flags = "!fin,syn,!rst,!ack", action = "accept" },
  -- !! NOT CONVERTED: line 40: icmp type echo-request limit rate 10/second burst 20 packets accept
  --    what exceeds its rate goes on to rules that may accept it; police drops it; its packets meet later rules instead
  -- line 41: icmpv6 type { packet-too-big, echo-request } accept
  { icmp6 = { 2, 128 }, action = "accept" },
  -- !! NOT CONVERTED: line 42: meta l4proto { tcp, udp } th dport 53 limit rate 100 kbytes/second accept
  --    what exceeds its rate goes on to rules that may accept it; police drops it; its packets meet later rules instead
  -- !! NOT CONVERTED: line 43: ip saddr @guests accept
  --    set guests changes by itself; its packets meet later rules instead
  -- !! NOT CONVERTED: line 44: ip6 nexthdr tcp accept
  --    "ip6 nexthdr" sees the first header only; filters see the upper layer: write meta l4proto; its packets meet later rules instead
  -- !! NOT CONVERTED: line 45: meta mark 0x00000001 accept
  --    "meta mark" has no counterpart; its packets meet later rules instead
  -- line 46: ip ttl < 5 ip dscp { cs1, ef } accept
  { family = "ip4", dscp = { 8, 46 }, ttl = "1-5", action = "accept" },
  -- line 47: meta length > 1000 accept
  { length = "1001-65535", action = "accept" },
  -- !! NOT CONVERTED: line 48: update @guests { ip saddr limit rate over 10/second } drop
  --    what is within its rate goes on to rules that may drop it; police accepts it; its packets meet later rules instead
  -- line 49: iifname "dmz" log prefix "dmz: " reject with icmpx admin-prohibited
  --   the answer differs: TCP is reset, else administratively prohibited, not admin-prohibited
  { name = "dmz", interface = "dmz", action = "reject", log = true },
  -- line 50: log prefix "rest: "
  { name = "rest", action = "drop", log = true },
  default = "drop",
}
turnpike.filter "to-router" {
  -- line 55: iifname "lo" accept
  --   nothing to convert: no packet that comes by a port fits it
  -- line 56: udp dport 161 ip saddr != 10.0.0.0/8 drop
  { from = { "0.0.0.0/5", "8.0.0.0/7", "11.0.0.0/8", "12.0.0.0/6", "16.0.0.0/4", "32.0.0.0/3", "64.0.0.0/2", "128.0.0.0/1" }, proto = "udp", to_port = 161, action = "drop" },
  -- line 57: rt type { 0, 3 } drop
  { family = "ip6", routing = { 0, 3 }, action = "drop" },
  -- line 58: rt type 0-255 drop
  { family = "ip6", extension = "routing", action = "drop" },
  -- !! NOT CONVERTED: line 59: rt type != 4 drop
  --    255 types of routing headers; at most 8
  -- line 60: tcp dport 22 limit rate over 5/second burst 10 packets drop
  { proto = "tcp", to_port = 22, police = { rate = "5pps", burst = "10" }, action = "accept" },
  default = "accept",
}

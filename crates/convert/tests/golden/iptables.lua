-- Filters from iptables.txt.
-- Left out: 10, of which 10 LET PASS, DROP OR CHANGE PACKETS: look for "!!".
-- every port: turnpike.port "…" { …, filter = { outward = "forward" } }
-- Packets to groups are filtered inward only: those that are forwarded pass these filters by.
-- !! NOT CONVERTED: line 49: -A POSTROUTING -o eth0 -j MASQUERADE
--    there is no NAT
turnpike.filter "forward" {
  -- !! NOT CONVERTED: line 8: -A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
  --    target TCPMSS has no counterpart; --clamp-mss-to-pmtu has no counterpart; its packets meet later rules instead
  -- line 17: -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  { family = "ip4", state = { "established", "related" }, action = "accept" },
  -- line 18: -A FORWARD -p tcp -m state --state NEW -m tcp --dport 22 -m comment --comment "ssh in" -j ACCEPT
  { name = "ssh in", family = "ip4", proto = "tcp", to_port = 22, state = "new", action = "accept" },
  -- line 19: -A FORWARD -p tcp -m tcp --sport 1024:65535 ! --dport 80 --tcp-flags SYN,RST SYN -j ACCEPT
  { family = "ip4", proto = "tcp", from_port = "1024-65535", to_port = { "0-79", "81-65535" }, flags = "syn,!rst", action = "accept" },
  -- line 20: -A FORWARD -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT
  { family = "ip4", proto = "tcp", flags = "!fin,syn,!rst,!ack", action = "accept" },
  -- line 21: -A FORWARD -p udp -m multiport --dports 53,67:68,123 -j ACCEPT
  { family = "ip4", proto = "udp", to_port = { 53, "67-68", 123 }, action = "accept" },
  -- line 22: -A FORWARD -p udp -m multiport ! --sports 53,67:68,123 -j ACCEPT
  { family = "ip4", proto = "udp", from_port = { "0-52", "54-66", "69-122", "124-65535" }, action = "accept" },
  -- line 23: -A FORWARD -p udp -m multiport --ports 53 -j ACCEPT
  { family = "ip4", proto = "udp", from_port = 53, action = "accept" },
  { family = "ip4", proto = "udp", to_port = 53, action = "accept" },
  -- !! NOT CONVERTED: line 24: -A FORWARD -p icmp -m icmp --icmp-type 8 -m limit --limit 10/sec --limit-burst 20 -j ACCEPT
  --    what exceeds its rate goes on to rules that may accept it; police drops it; its packets meet later rules instead
  -- !! NOT CONVERTED: line 25: -A FORWARD -p udp -m udp --dport 53 -m hashlimit --hashlimit-above 10/sec --hashlimit-burst 5 --hashlimit-mode srcip --hashlimit-name dns -j DROP
  --    what is within its rate goes on to rules that may drop it; police accepts it; its packets meet later rules instead
  -- !! NOT CONVERTED: line 26: -A FORWARD -p udp -m udp --dport 54 -m hashlimit --hashlimit-upto 10/sec --hashlimit-burst 5 --hashlimit-mode srcip --hashlimit-name dns2 --hashlimit-srcmask 24 -j ACCEPT
  --    what exceeds its rate goes on to rules that may accept it; police drops it; its packets meet later rules instead
  -- !! NOT CONVERTED: line 27: -A FORWARD -p udp -m udp --dport 55 -m hashlimit --hashlimit-above 1mb/s --hashlimit-mode srcip --hashlimit-name dns3 -j DROP
  --    a rate of 1mb/s has no counterpart; its packets meet later rules instead
  -- !! NOT CONVERTED: line 28: -A FORWARD -m set --match-set blk src -j DROP
  --    match set has no counterpart; --match-set has no counterpart; its packets meet later rules instead
  -- line 29: -A FORWARD -p tcp -j REJECT --reject-with tcp-reset
  { family = "ip4", proto = "tcp", action = "reject" },
  -- line 30: -A FORWARD -m length --length 100:200 -m ttl --ttl-lt 5 -m dscp --dscp 0x0a -j ACCEPT
  { family = "ip4", dscp = 10, ttl = "1-5", length = "100-200", action = "accept" },
  -- line 31: -A FORWARD -m ttl --ttl-gt 5 -m dscp ! --dscp 0x2e -j ACCEPT
  { family = "ip4", dscp = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63 }, ttl = "7-255", action = "accept" },
  -- !! NOT CONVERTED: line 32: -A FORWARD -m mark --mark 0x1 -j ACCEPT
  --    match mark has no counterpart; --mark has no counterpart; its packets meet later rules instead
  -- !! NOT CONVERTED: line 33: -A FORWARD -m mac --mac-source 00:11:22:33:44:55 -j ACCEPT
  --    match mac has no counterpart; --mac-source has no counterpart; its packets meet later rules instead
  -- line 34: -A FORWARD -f -j DROP
  { family = "ip4", fragment = "later", action = "drop" },
  -- line 39: -A LOGDROP -m limit --limit 5/min -j LOG --log-prefix "dropped: " --log-level 7
  { name = "dropped", family = "ip4", proto = "gre", action = "drop", log = true },
  -- !! NOT CONVERTED: line 36: -A FORWARD -s 10.0.0.0/255.0.255.0 -j RETURN
  --    the mask of 10.0.0.0/255.0.255.0 is no prefix; its packets meet later rules instead
  -- line 37: -A FORWARD
  --   nothing to convert: it only counts, as every rule does here
  -- line 38: -A FORWARD -j LOG --log-prefix "a \"b"
  { name = "a \"b", family = "ip4", action = "drop", log = true },
  -- the policy of a base chain
  { family = "ip6", action = "accept" },
  default = "drop",
}

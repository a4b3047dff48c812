---@meta turnpike

-- The language of Turnpike's configurations, for lua-language-server: editors complete statements, keys and words by
-- this file, and show their meaning. `turnpike annotations --directory DIR` writes it beside a configuration.
-- A class marked `(exact)` is a table of settings; its keys are compared with the router's by a test.

----------------------------------------------------------------------------------------------------------- words

---@alias turnpike.Action
---| "accept"    # the packet continues
---| "continue"  # the rule counts, polices, marks, …, and the next rule is tried
---| "drop"      # dropped as `filtered`
---| "reject"    # dropped and answered, TCP with a reset
---| "to-host"   # sent to the port's host interface

---@alias turnpike.AdvertisedPreference "high"|"medium"|"low"

---@alias turnpike.BondHash
---| "l2"     # MACs
---| "l2+l3"  # MACs and IP addresses
---| "l3+l4"  # IP addresses, protocol and ports

---@alias turnpike.BondMode
---| "lacp"           # ports on which LACP has agreed with the other side
---| "static"         # all ports with a link
---| "active-backup"  # the first port with a link

---@alias turnpike.Direction "inward"|"outward"|"both"

---@alias turnpike.Discipline
---| "fifo"   # first in, first out
---| "red"    # early drops at random, by the average length (RFC 7567)
---| "codel"  # drops by the time in the queue (RFC 8289)
---| "drr"    # deficit round robin of classes, by weight

---@alias turnpike.Driver
---| "af_xdp"           # of a kernel interface
---| "af_packet"        # of a kernel interface
---| "vfio-pci"         # of a NIC behind an IOMMU
---| "uio_pci_generic"  # of a NIC without an IOMMU

---@alias turnpike.Dscp
---| "cs0"
---| "le"
---| "cs1"
---| "af11"
---| "af12"
---| "af13"
---| "cs2"
---| "af21"
---| "af22"
---| "af23"
---| "cs3"
---| "af31"
---| "af32"
---| "af33"
---| "cs4"
---| "af41"
---| "af42"
---| "af43"
---| "cs5"
---| "ef"
---| "cs6"
---| "cs7"

---@alias turnpike.Duplex "full"|"half"

---@alias turnpike.ElementPort "push"|"pull"|"push~"|"pull~"

---@alias turnpike.Ethertype
---| "arp"
---| "slow"  # LACP and other slow protocols
---| "mpls"
---| "pppoe-discovery"
---| "pppoe"
---| "eapol"
---| "lldp"
---| "macsec"
---| "ptp"

---@alias turnpike.EventOrder "ordered"|"atomic"|"parallel"

---@alias turnpike.Extension
---| "hop-by-hop"
---| "routing"
---| "fragment"
---| "ah"
---| "destination-options"
---| "too-many"  # more than eight extension headers

---@alias turnpike.Family "ip4"|"ip6"

---@alias turnpike.Fec "none"|"auto"|"base-r"|"rs"

---@alias turnpike.ForwardersMode
---| "run-to-completion"  # each forwarder forwards what it receives
---| "events"             # an event device schedules packets to forwarders

---@alias turnpike.Icmp4
---| "echo-reply"
---| "destination-unreachable"
---| "source-quench"
---| "redirect"
---| "echo-request"
---| "router-advertisement"
---| "router-solicitation"
---| "time-exceeded"
---| "parameter-problem"
---| "timestamp-request"
---| "timestamp-reply"
---| "info-request"
---| "info-reply"
---| "address-mask-request"
---| "address-mask-reply"

---@alias turnpike.Icmp6
---| "destination-unreachable"
---| "packet-too-big"
---| "time-exceeded"
---| "parameter-problem"
---| "echo-request"
---| "echo-reply"
---| "mld-query"
---| "mld-report"
---| "mld-done"
---| "router-solicitation"
---| "router-advertisement"
---| "neighbour-solicitation"
---| "neighbor-solicitation"
---| "neighbour-advertisement"
---| "neighbor-advertisement"
---| "redirect"
---| "mld2-report"

---@alias turnpike.Kept
---| "control"
---| "voice"
---| "video"
---| "data"
---| "default"
---| "background"
---| "established"  # packets of connections that answer; needs a filter with `state`

---@alias turnpike.LacpRate "fast"|"slow"

---@alias turnpike.LogLevel "error"|"warn"|"info"|"debug"|"trace"

---@alias turnpike.PathHashFields
---| "l3"     # IP addresses and protocol
---| "l3+l4"  # IP addresses, protocol and ports

---@alias turnpike.Packets
---| "frame"
---| "ip4"
---| "ip6"
---| "valid-ip4"   # behind `ip4-validate`
---| "valid-ip6"   # behind `ip6-validate`
---| "routed-ip4"  # behind `ip4-lookup`
---| "routed-ip6"  # behind `ip6-lookup`

---@alias turnpike.Pause
---| "none"
---| "rx"    # the peer may pause the router
---| "tx"    # the router may pause the peer
---| "full"

---@alias turnpike.Protocol
---| "icmp"
---| "igmp"
---| "ipip"
---| "tcp"
---| "egp"
---| "udp"
---| "dccp"
---| "ip6ip"
---| "rsvp"
---| "gre"
---| "esp"
---| "ah"
---| "icmp6"
---| "icmpv6"
---| "ipv6-icmp"
---| "eigrp"
---| "ospf"
---| "etherip"
---| "pim"
---| "ipcomp"
---| "vrrp"
---| "l2tp"
---| "sctp"
---| "mobility"
---| "udplite"
---| "mpls"
---| "hip"

---@alias turnpike.PuntClass
---| "neighbour"  # ARP and neighbour discovery
---| "link"       # routing and link protocols of the link
---| "routing"    # other packets of routing protocols for the router
---| "host"       # everything else for the router
---| "resolve"    # in transit: the neighbour's MAC is unknown
---| "fragment"   # in transit: larger than the next MTU
---| "options"    # in transit: with IP options or a hop-by-hop header
---| "errors"     # answered with an ICMP error

---@alias turnpike.QueueClass
---| "control"     # network control: cs6, cs7, link-local
---| "voice"       # ef, cs5
---| "video"       # af4x, cs4, af3x, cs3
---| "data"        # af2x, cs2, af1x
---| "default"     # everything else
---| "background"  # le, cs1

---@alias turnpike.ReversePath
---| "loose"   # a route leads to the source by any port
---| "strict"  # the best route to the source, or one of equal cost, leaves by this port

---@alias turnpike.RouteSource
---| "reserved"
---| "local"
---| "connected"
---| "command"
---| "static"
---| "kernel"
---| "fpm"
---| "import"
---| "neighbour"

---@alias turnpike.RouteTable
---| "runmap"     # the default, of both families
---| "poptrie"
---| "dir-24-8"   # IPv4 only
---| "reference"  # slow, for tests

---@alias turnpike.RoutingHeader "source-route"|"mobile"|"rpl"|"srh"

---@alias turnpike.RssFields
---| "l3"     # addresses
---| "l3+l4"  # addresses, and ports of TCP and UDP

---@alias turnpike.Source
---| "kernel"  # the kernel's routes, by netlink
---| "fpm"     # routes of FRR's zebra, by FPM

---@alias turnpike.Speed
---| "10M"
---| "100M"
---| "1G"
---| "2.5G"
---| "5G"
---| "10G"
---| "20G"
---| "25G"
---| "40G"
---| "50G"
---| "56G"
---| "100G"
---| "200G"
---| "400G"

---@alias turnpike.Spread
---| "hardware"  # by the device, over its receive queues
---| "software"  # by the receiving forwarder, with a hash

---@alias turnpike.State
---| "new"          # any other packet; a TCP segment that opens a connection
---| "established"  # packets of the other direction have been accepted
---| "related"      # an ICMP error about an accepted packet

---@alias turnpike.TagProtocol "802.1q"|"802.1ad"

---@alias turnpike.Wait
---| "poll"       # polls and never sleeps
---| "adaptive"   # polls for a window that follows the traffic, then blocks
---| "interrupt"  # blocks at once
---| "moderated"  # sleeps for `moderation_us`, then blocks

-------------------------------------------------------------------------------------------- ports, bonds, VLANs

---Settings that ports, bonds and VLANs have in common.
---@class (exact) turnpike.InterfaceSettings
---Address with prefix length, such as "10.0.1.1/24", or a list of them. Link-local ones are made by the router.
---@field address? string|string[]
---A `turnpike.loopback` of its VRF, whose IPv4 address it has as well, without a network. Default: none.
---@field unnumbered? string
---MTU in bytes, 68 to 9216; with IPv6 at least 1280. Default: the device's, or the parent's.
---@field mtu? integer
---A `turnpike.vrf`. Default: "default".
---@field vrf? string
---A kernel interface of the same name, or its settings. Default: true with `turnpike.routes_from`, else false.
---@field host? boolean|turnpike.HostSettings
---Transmit queue in software. Default: none, the device's.
---@field queue? turnpike.QueueSettings
---Rate of transmission, a port's with its VLANs, "95mbit", or with burst and overhead. Default: the link's.
---@field shape? string|turnpike.ShapeSettings
---Packet filters: the name of an inward one, or both directions. Default: none.
---@field filter? string|turnpike.InterfaceFilters
---Reverse path filter (RFC 3704). Default: none.
---@field reverse_path? turnpike.ReversePath
---ICMP "destination unreachable" to senders on this interface. Default: true.
---@field unreachables? boolean
---ICMP redirects to hosts on this interface. Default: false.
---@field redirects? boolean
---Largest distance of BGP, LDP, MSDP and BFD peers in hops, 1 to 254 (RFC 5082). Default: any.
---@field ttl_security? integer
---Duplicate address detection: the number of probes, 0 to 10. Default: 0.
---@field dad? integer
---Prefixes for whose addresses ARP and neighbour solicitations are answered, at most 64; without a host interface.
---@field proxy? string|string[]
---DHCP servers, at most 8, to which messages of clients are relayed; without a host interface. Default: none.
---@field dhcp_relay? string|string[]
---Router advertisements (RFC 4861), without a host interface. Default: false.
---@field advertise? boolean|turnpike.AdvertiseSettings
---ICMP router discovery (RFC 1256), without a host interface. Default: false.
---@field router_discovery? boolean|turnpike.DiscoverySettings

---Settings of `turnpike.port`: a device and its queues, with its own interface.
---@class (exact) turnpike.PortSettings: turnpike.InterfaceSettings
---A kernel interface "eth1", a PCI address "0000:03:00.0", or a DPDK device "net_tap0,iface=tap0".
---@field device string
---The driver; that of a NIC is bound while the router runs. Default: the best that works.
---@field driver? turnpike.Driver
---Acceleration of a kernel interface, which stays the kernel's. Default: false.
---@field accelerate? boolean
---Use of an interface that the machine needs itself: addresses, default route, session. Default: false.
---@field take_over? boolean
---The MAC, "02:00:00:00:00:01". Default: the device's.
---@field mac? string
---Speed, duplex, negotiation, flow control and error correction. Default: the device's.
---@field link? turnpike.LinkSettings
---Reception of frames for other MACs, which are dropped and counted. Default: false.
---@field promiscuous? boolean
---Reception of all multicasts. Default: false, those that are needed.
---@field all_multicast? boolean
---Number of receive queues, 1 to 64. Default: one for each forwarder, as far as the device has them.
---@field rx_queues? integer
---Number of transmit queues, 1 to 64. Default: one for each forwarder, as far as the device has them.
---@field tx_queues? integer
---Length of a receive queue in packets, 1 to 32768. Default: the driver's.
---@field rx_descriptors? integer
---Length of a transmit queue in packets, 1 to 32768. Default: the driver's.
---@field tx_descriptors? integer
---Packets of a receive burst, 1 to 64. Default: the driver's, else 64.
---@field rx_burst? integer
---Packets of a turn, 1 to 4096: the port's share of an overloaded forwarder. Default: 64.
---@field quota? integer
---Wait mode of forwarders that receive from the port. Default: that of `turnpike.forwarders`.
---@field wait? turnpike.Wait
---Thresholds of receive queues, as in `rte_eth_rxconf`. Default: the driver's.
---@field rx_thresholds? turnpike.RxThresholds
---Thresholds of transmit queues, as in `rte_eth_txconf`. Default: the driver's.
---@field tx_thresholds? turnpike.TxThresholds
---The cores that serve the receive queues, from queue 0 on: { 2, 3, 4 } or "2-4". Default: near and even.
---@field rx_cores? string|integer|integer[]
---The cores with a transmit queue: { 2, 3 } or "2-3"; others hand packets over. Default: near and even.
---@field tx_cores? string|integer|integer[]
---Hash by which the device selects a receive queue. Default: the device's.
---@field rss? turnpike.RssSettings
---Distribution of received packets over forwarders. Default: "hardware".
---@field spread? turnpike.Spread
---A queue of its own for control traffic, with `control_queue` of `turnpike.forwarders`. Default: true.
---@field control_queue? boolean
---Work that the device must (true) or must not (false) do. Default: the work that helps.
---@field offloads? turnpike.OffloadSettings

---Settings of `turnpike.bond`: one interface of several ports (IEEE 802.1AX).
---@class (exact) turnpike.BondSettings: turnpike.InterfaceSettings
---Names of its ports, at least one; a port belongs to one bond.
---@field ports string|string[]
---Selection of active ports. Default: "lacp".
---@field mode? turnpike.BondMode
---Fields that select the port of a sent frame. Default: "l3+l4".
---@field hash? turnpike.BondHash
---With fewer active ports the bond is down; 1 to the number of its ports. Default: 1.
---@field minimum_links? integer
---Most ports that LACP uses at the same time, 1 to 64; others stand by. Default: all.
---@field maximum_links? integer
---Settings of LACP, with mode = "lacp".
---@field lacp? turnpike.LacpSettings
---The MAC, "02:00:00:00:00:01". Default: that of the first port's device.
---@field mac? string

---Settings of `turnpike.vlan`: frames of a port or a bond with a tag (IEEE 802.1Q).
---@class (exact) turnpike.VlanSettings: turnpike.InterfaceSettings
---The port, the bond, or the VLAN on one of them, whose frames carry it.
---@field parent string
---VLAN identifier, 1 to 4094.
---@field id integer
---Tag protocol. Default: "802.1q".
---@field protocol? turnpike.TagProtocol
---Priority code point of sent frames, 0 to 7. Default: 0.
---@field priority? integer
---As of a port, or "kernel": the VLAN device of its name and tag that the operator makes on the parent's host interface.
---@field host? boolean|"kernel"|turnpike.HostSettings

---Settings of `turnpike.loopback`: addresses of the router that do not depend on a link.
---@class (exact) turnpike.LoopbackSettings
---Address with prefix length, such as "192.0.2.255/32", or a list of them. Default: none.
---@field address? string|string[]
---A `turnpike.vrf`. Default: "default".
---@field vrf? string
---A kernel interface of the same name, or its settings. Default: true if any other interface has one.
---@field host? boolean|turnpike.HostSettings

---@class (exact) turnpike.HostSettings
---Network namespace of the interface, made by `ip netns add`. Default: the router's own.
---@field netns? string
---Large TCP and UDP frames between the kernel and the router. Default: true.
---@field segmentation? boolean
---"kernel": each VLAN device that the kernel has on it is a VLAN of the router. Default: false.
---@field vlans? false|"kernel"

---@class (exact) turnpike.InterfaceFilters
---Filter of received packets, before the route lookup.
---@field inward? string
---Filter of packets that leave, after the route lookup.
---@field outward? string
---Rules of the inward filter in the device, as far as it holds them; ports and VLANs of ports. Default: false.
---@field hardware? boolean

---@class (exact) turnpike.LinkSettings
---The only speed negotiated, or the number of Mb/s.
---@field speed? turnpike.Speed|integer
---"half" at 10M and 100M only. Default: "full".
---@field duplex? turnpike.Duplex
---Negotiation; false requires `speed`. Default: true.
---@field autoneg? boolean
---Flow control. Default: the device's.
---@field pause? turnpike.Pause
---Forward error correction. Default: the device's.
---@field fec? turnpike.Fec

---@class (exact) turnpike.RxThresholds
---`pthresh`, 0 to 255.
---@field prefetch? integer
---`hthresh`, 0 to 255.
---@field host? integer
---`wthresh`, 0 to 255.
---@field write_back? integer
---`rx_free_thresh`, 0 to 32768.
---@field free? integer

---@class (exact) turnpike.TxThresholds
---`pthresh`, 0 to 255.
---@field prefetch? integer
---`hthresh`, 0 to 255.
---@field host? integer
---`wthresh`, 0 to 255.
---@field write_back? integer
---`tx_free_thresh`, 0 to 32768.
---@field free? integer
---`tx_rs_thresh`, 1 to 32768.
---@field report? integer

---@class (exact) turnpike.RssSettings
---Hashed fields. Default: "l3+l4".
---@field fields? turnpike.RssFields
---Equal hashes for both directions of a flow. Default: false.
---@field symmetric? boolean
---The key in bytes, "6d:5a:…", 40 to 128, as many as the device has. Default: the device's.
---@field key? string
---The sequence of queues, 0 to 63, repeated over the device's table. Default: even.
---@field table? integer|integer[]
---Queues, 0 to 63, that receive nothing by the hash; not with `table`.
---@field skip? integer|integer[]

---@class (exact) turnpike.QueueSettings
---Packets that it holds, 1 to 65536; with "drr" each class. Default: 1000.
---@field length? integer
---Order and drops. Default: "fifo".
---@field discipline? turnpike.Discipline
---RED: average length in packets from which it drops. Default: a third of `max`.
---@field min? integer
---RED: average length in packets from which it drops all, 2 or more. Default: half of `length`.
---@field max? integer
---RED: probability of a drop at `max`, 1 to 100. Default: 10.
---@field percent? integer
---RED and CoDel: marks in place of drops where the transport can (RFC 3168). Default: true.
---@field ecn? boolean
---CoDel: acceptable time in the queue in microseconds, 1 to 10000000. Default: 5000.
---@field target_us? integer
---CoDel: time in microseconds for which packets may wait longer than that, 1 to 10000000. Default: 100000.
---@field interval_us? integer
---DRR: weights of classes.
---@field weights? turnpike.QueueWeights

---Weights of classes, 1 to 255. The class `control` leaves first.
---@class (exact) turnpike.QueueWeights
---Default: 8.
---@field voice? integer
---Default: 6.
---@field video? integer
---Default: 4.
---@field data? integer
---Default: 4.
---@field default? integer
---Default: 1.
---@field background? integer

---@class (exact) turnpike.ShapeSettings
---Bits per second of Ethernet frames without FCS: "500kbit", "95mbit", "1gbit".
---@field rate string
---Bytes "64kb" or bits "512kbit" that may leave at once, a frame at least. Default: 4 ms at the rate.
---@field burst? string
---Bytes added to each frame, 0 to 256; 24 count preamble, FCS and gap. Default: 0.
---@field overhead? integer

---@class (exact) turnpike.OffloadSettings
---Check of IPv4 header checksums of received packets.
---@field rx_checksum? boolean
---TCP and UDP checksums of packets that the kernel sends by the host interface.
---@field tx_checksum? boolean
---Segmentation of large TCP frames that the kernel sends by the host interface (TSO).
---@field segmentation? boolean
---Removal and insertion of VLAN tags. Default: false.
---@field vlan? boolean
---Reception of a long frame into several packet buffers.
---@field scatter? boolean
---Transmission of packets of several buffers.
---@field multi_segment? boolean
---Never possible: true is refused.
---@field fast_free? boolean

---@class (exact) turnpike.LacpSettings
---The rate that is asked of the other side: each second, or each 30. Default: "fast".
---@field rate? turnpike.LacpRate
---LACPDUs only to an active partner. Default: false.
---@field passive? boolean
---Priority of the system, 0 to 65535. Default: 32768.
---@field priority? integer

---Contents of router advertisements (RFC 4861 6.2.1).
---@class (exact) turnpike.AdvertiseSettings
---Longest time between two, in seconds, 4 to 1800. Default: 600.
---@field interval_s? integer
---Shortest time, in seconds, 3 to three quarters of the longest. Default: a third of it.
---@field least_interval_s? integer
---Lifetime as a default router in seconds, up to 9000; 0: none. Default: three intervals.
---@field lifetime_s? integer
---Addresses by DHCPv6. Default: false.
---@field managed? boolean
---Other settings by DHCPv6. Default: false.
---@field other? boolean
---Preference among default routers (RFC 4191). Default: "medium".
---@field preference? turnpike.AdvertisedPreference
---Hop limit of hosts' packets, 0 to 255; 0: unspecified. Default: 64.
---@field hop_limit? integer
---Time for which a neighbour counts as reachable, in milliseconds, up to 3600000; 0: unspecified. Default: 0.
---@field reachable_ms? integer
---Time between solicitations in milliseconds, up to 3600000; 0: unspecified. Default: 0.
---@field retransmit_ms? integer
---MTU of the link, 1280 to that of the port. Default: unspecified.
---@field mtu? integer
---Prefixes, at most 32. Default: the networks of the port's addresses.
---@field prefixes? string|(string|turnpike.AdvertisedPrefix)[]
---Lifetime of all prefixes in seconds; 4294967295: infinite. Default: 2592000.
---@field valid_s? integer
---Preferred lifetime of all prefixes in seconds, at most `valid_s`. Default: 604800.
---@field preferred_s? integer
---IPv6 addresses of name servers, at most 8 (RFC 8106).
---@field dns? string|string[]

---@class (exact) turnpike.AdvertisedPrefix
---The prefix, "fd00:1::/64".
---@field [1] string
---Lifetime in seconds; 4294967295: infinite. Default: that of all prefixes.
---@field valid_s? integer
---Preferred lifetime in seconds, at most `valid_s`. Default: that of all prefixes.
---@field preferred_s? integer
---Addresses in it are on the link. Default: true.
---@field on_link? boolean
---Hosts make addresses in it by themselves. Default: true.
---@field autonomous? boolean

---Contents of ICMP router discovery (RFC 1256).
---@class (exact) turnpike.DiscoverySettings
---Longest time between two, in seconds, 4 to 1800. Default: 600.
---@field interval_s? integer
---Shortest time, in seconds, 3 to the longest. Default: three quarters of it.
---@field least_interval_s? integer
---Lifetime in seconds, the interval to 9000. Default: three intervals.
---@field lifetime_s? integer
---Preference among routers, 0 to 2147483647; "never" excludes this one. Default: 0.
---@field preference? integer|"never"
---Broadcasts in place of multicasts. Default: false.
---@field broadcast? boolean

----------------------------------------------------------------------------------------------------------- routes

---@class (exact) turnpike.VrfSettings
---The kernel's table, with `turnpike.routes_from`; not 253 to 255. Default: that of the VRF device of its name.
---@field table? integer
---In place of a table: the network namespace of its host interfaces, whose routes are its own.
---@field namespace? string

---@class (exact) turnpike.RouteSettings
---A gateway, or a list of gateways of equal cost, at most 128.
---@field via? string|(string|turnpike.Path)[]
---The port of gateways; without `via` the destinations are on its network.
---@field port? string
---Packets are dropped. Default: false.
---@field blackhole? boolean
---Packets are answered with "administratively prohibited". Default: false.
---@field prohibit? boolean
---Packets are answered with "destination unreachable". Default: false.
---@field unreachable? boolean
---Among static routes to one prefix the smallest wins, 0 to 4294967295. Default: 0.
---@field metric? integer
---The loss of a path moves only the flows of that path. Default: false.
---@field resilient? boolean|turnpike.ResilientSettings
---The VRF of the route. Default: "default".
---@field vrf? string
---The VRF in which gateways without a port are resolved. Default: the route's own.
---@field next_hop_vrf? string

---@class (exact) turnpike.Path
---The gateway's address.
---@field [1] string
---Share of flows, 1 to 256. Default: 1.
---@field weight? integer
---The gateway's port. Default: that of the statement.
---@field port? string

---@class (exact) turnpike.ResilientSettings
---Number of buckets, 1 to 4096. Default: 1024.
---@field buckets? integer

---@class (exact) turnpike.NeighbourSettings
---The port that it is on. Default: that on whose network it is.
---@field port? string
---Its MAC, "02:00:00:00:00:09".
---@field mac string

---@class (exact) turnpike.NextHopSettings
---A gateway, or a list of gateways of one family, at most 128.
---@field via? string|(string|turnpike.Path)[]
---The port of gateways; without `via` the destinations are on its network.
---@field port? string
---The VRF in which gateways without a port are resolved. Default: "default".
---@field vrf? string

---@class (exact) turnpike.ImportSettings
---The file: MRT TABLE_DUMP_V2 (also gz, bz2), or lines of PREFIX<TAB>AS (also gz); relative to the configuration.
---@field file string
---Gateways over which the table is spread by origin AS.
---@field via string|(string|turnpike.Path)[]

---@class (exact) turnpike.MulticastSettings
---The source of the packets. Default: any.
---@field source? string
---The port where they come in.
---@field from string
---The ports where they leave.
---@field to string|(string|turnpike.MulticastPort)[]

---@class (exact) turnpike.MulticastPort
---The port's name.
---@field [1] string
---Packets leave with a TTL above this on arrival, 1 to 255. Default: 1.
---@field ttl? integer

---Names of sources, with settings of "kernel".
---@class (exact) turnpike.RoutesFromSettings
---@field [integer] turnpike.Source
---Seconds between two comparisons with the kernel's routes, up to 86400; 0: never. Default: 60.
---@field audit_s? integer
---MiB of messages that the kernel stores for the router, 1 to 1024. Default: 64.
---@field receive_buffer_mib? integer

---@class (exact) turnpike.FpmSettings
---Address and port, equal to zebra's `fpm address`. Default: "127.0.0.1:2620".
---@field listen? string
---Seconds for which routes stay after the connection is lost, up to 86400. Default: 120.
---@field keep_s? integer
---Users that may connect besides root, the router's and frr: names or numbers as text.
---@field users? string|string[]

---------------------------------------------------------------------------------------------------------- filters

---Prefixes and addresses of hosts, with settings.
---@class (exact) turnpike.PrefixSetSettings
---@field [integer] string
---Sources of routes that the set follows.
---@field routes? turnpike.RouteSource|turnpike.RouteSource[]
---Origin ASes of imported routes that the set follows; not with `routes` or `vrf`.
---@field origin_as? integer|integer[]
---The VRF of the routes. Default: "default".
---@field vrf? string

---Rules in their order; the first that matches decides.
---@class (exact) turnpike.FilterSettings
---@field [integer] turnpike.Rule
---Action without a matching rule; not "continue". Default: "accept".
---@field default? turnpike.Action

---A rule matches if all of its keys do; a list matches if one of its elements does.
---@class (exact) turnpike.Rule
---Name in counters and messages.
---@field name? string
---@field family? turnpike.Family
---Ethertype of a frame that is not IP, by name or number from 0x0600; inward only.
---@field ethertype? turnpike.Ethertype|string|integer|(turnpike.Ethertype|string|integer)[]
---Source: prefixes, or addresses of hosts.
---@field from? string|string[]
---Destination: prefixes, or addresses of hosts.
---@field to? string|string[]
---Source: names of `turnpike.prefix_set`.
---@field from_set? string|string[]
---Destination: names of `turnpike.prefix_set`.
---@field to_set? string|string[]
---Source MAC of the frame; inward only.
---@field from_mac? string|string[]
---Destination MAC of the frame; inward only.
---@field to_mac? string|string[]
---Priority of the frame's VLAN tag, 0 to 7; inward only.
---@field priority? string|integer|(string|integer)[]
---Protocol by name or number, of IPv6 that after extension headers.
---@field proto? turnpike.Protocol|string|integer|(turnpike.Protocol|string|integer)[]
---Source port, or a range "1024-65535"; needs a `proto` with ports.
---@field from_port? string|integer|(string|integer)[]
---Destination port, or a range "1024-65535"; needs a `proto` with ports.
---@field to_port? string|integer|(string|integer)[]
---TCP flags: "syn,!ack" is SYN set and ACK clear. Known: fin, syn, rst, psh, ack, urg, ece, cwr.
---@field flags? string
---ICMP type by name or number.
---@field icmp? turnpike.Icmp4|string|integer|(turnpike.Icmp4|string|integer)[]
---ICMPv6 type by name or number.
---@field icmp6? turnpike.Icmp6|string|integer|(turnpike.Icmp6|string|integer)[]
---A fragment, the first or a later one; false: a whole packet.
---@field fragment? boolean|"first"|"later"
---Type of an IPv6 routing header, by name or number.
---@field routing? turnpike.RoutingHeader|string|integer|(turnpike.RoutingHeader|string|integer)[]
---IPv6 extension header, by name or number.
---@field extension? turnpike.Extension|string|integer|(turnpike.Extension|string|integer)[]
---DSCP by name or number, 0 to 63.
---@field dscp? turnpike.Dscp|string|integer|(turnpike.Dscp|string|integer)[]
---TTL or hop limit, or a range "254-255".
---@field ttl? string|integer
---Length of the IP packet in bytes, or a range "0-576".
---@field length? string|integer
---Ingress port, bond or VLAN.
---@field interface? string|string[]
---State of the connection.
---@field state? turnpike.State|turnpike.State[]
---Rate: "100kpps", "50mbit", "1kpps per source/24", or with bursts and colours. More is dropped as `policed`.
---@field police? string|turnpike.PoliceSettings
---DSCP or queue class of accepted packets.
---@field mark? turnpike.Mark
---The port or the `turnpike.mirror` for a copy of each packet.
---@field mirror? string
---Log of packets, at most ten a second for each filter. Default: false.
---@field log? boolean
---Class in the slow path; in the filter "to-router" only.
---@field class? turnpike.PuntClass
---Category for later steps; at most 16 in a configuration.
---@field category? string
---A `turnpike.next_hop` for the packets; inward only.
---@field next_hop? string
---The VRF that routes the packets; inward only.
---@field vrf? string
---Number of the forwarder, from 0; of several, each flow has one. On ports with software spreading or hardware filters.
---@field forwarder? integer|integer[]
---Default: "accept".
---@field action? turnpike.Action

---Token buckets (RFC 2697, RFC 2698).
---@class (exact) turnpike.PoliceSettings
---Packets or bits a second: "100kpps", "50mbit", also "… per source", "… per source/24/56".
---@field rate string
---Packets "1000" or bits "1mbit" at once. Default: a tenth of a second's worth.
---@field burst? string
---With a rate per source: the sources that are tracked, 1,024 to 16,777,216. Default: 262,144.
---@field sources? integer
---A second burst, filled by the overflow of the first (RFC 2697); not with `peak`.
---@field excess? string
---A second rate, not below the first (RFC 2698).
---@field peak? string
---Burst of `peak`. Default: a tenth of a second's worth.
---@field peak_burst? string
---Packets above the rate and within the second bucket. Default: "pass".
---@field yellow? "pass"|turnpike.Mark
---Packets above both. Default: "drop".
---@field red? "drop"|turnpike.Mark
---Colours of arriving packets, which only become worse; true: afx2 is yellow, afx3 red, all others green. Default: false.
---@field aware? boolean|turnpike.Precolours

---DSCPs of arriving packets.
---@class (exact) turnpike.Precolours
---By names or numbers. Default: none.
---@field yellow? turnpike.Dscp|string|integer|(turnpike.Dscp|string|integer)[]
---By names or numbers. Default: none.
---@field red? turnpike.Dscp|string|integer|(turnpike.Dscp|string|integer)[]

---At least one of both.
---@class (exact) turnpike.Mark
---DSCP by name or number, 0 to 63.
---@field dscp? turnpike.Dscp|string|integer
---Class of transmit queues, whatever the DSCP.
---@field class? turnpike.QueueClass

---@class (exact) turnpike.MirrorSettings
---The mirrored ports, bonds or VLANs. Default: none, packets of filters' rules.
---@field from? string|string[]
---Default: "both".
---@field direction? turnpike.Direction
---The analyser's port, which has no other use.
---@field to? string
---In place of `to`: an analyser behind routers.
---@field erspan? turnpike.ErspanSettings
---One of so many packets is copied, 1 to 1000000. Default: 1.
---@field sample? integer
---Identifier of an 802.1Q tag in front of each copy, 1 to 4094; with `to`. Default: none.
---@field vlan? integer

---Copies in ERSPAN type II.
---@class (exact) turnpike.ErspanSettings
---The analyser's address.
---@field to string
---Source of the copies, an address of the router.
---@field source string
---Number of the session at the analyser, 0 to 1023.
---@field id integer
---The VRF whose routes lead to the analyser. Default: "default".
---@field vrf? string
---DSCP of the copies by name or number. Default: 0.
---@field dscp? turnpike.Dscp|string|integer
---TTL or hop limit of the copies, 1 to 255. Default: 64.
---@field ttl? integer
---Most bytes of a frame, 62 to 65535. Default: what the MTU allows.
---@field length? integer

------------------------------------------------------------------------------------------ processor and slow path

---@class (exact) turnpike.CoresSettings
---Cores of everything but forwarders: "0,2-3". Default: all others.
---@field control? string|integer
---One forwarder for each of these cores: "1,3-5". Default: isolated cores, else the last core.
---@field forward? string|integer

---@class (exact) turnpike.ForwardersSettings
---As `forward` of `turnpike.cores`; one of both.
---@field cores? string|integer
---Behaviour without packets. Default: "adaptive".
---@field wait? turnpike.Wait
---Sleep of wait = "moderated" in microseconds, 1 to 1000. Default: 50.
---@field moderation_us? integer
---Packets of a round over all sources, 1 to 65535. Default: 512.
---@field budget? integer
---Receive queues move from busy forwarders to idle ones. Default: true.
---@field rebalance? boolean
---One more forwarder, on the control cores, serves queues for control traffic. Default: false.
---@field control_queue? boolean
---Flows of the host whose replies each port's device directs to its control queue, 0 to 4096. Default: 256.
---@field learned_flows? integer
---Drops under overload; false: none. Default: true.
---@field shed? boolean|turnpike.ShedSettings
---Default: "run-to-completion".
---@field mode? turnpike.ForwardersMode
---The event device, with mode = "events". Default: "event_sw0".
---@field device? string
---Scheduling of packets, with mode = "events". Default: "ordered".
---@field order? turnpike.EventOrder
---Core of the forwarder that receives and sends, with mode = "events". Default: the first of the forwarders'.
---@field receive_core? integer
---Core of the scheduler, with mode = "events". Default: the control cores.
---@field scheduler_core? integer

---@class (exact) turnpike.ShedSettings
---Part of a forwarder's time for it, 1 to 50. Default: 3.
---@field percent? integer
---Classes that are not shed. Default: "control".
---@field keep? turnpike.Kept|turnpike.Kept[]
---Categories of filters that are not shed. Default: none.
---@field categories? string|string[]

---@class (exact) turnpike.ForwardingSettings
---240.0.0.0/4 is ordinary unicast. Default: false.
---@field class_e? boolean
---The default route resolves gateways. Default: true.
---@field resolve_via_default? boolean
---Selection among equal-cost paths.
---@field hash? turnpike.PathHashSettings
---All groups of equal-cost paths have buckets: a lost path moves its own flows only. Default: false.
---@field resilient? boolean|turnpike.ResilientSettings

---@class (exact) turnpike.PathHashSettings
---Fields that count: addresses and protocol, or ports as well. Default: "l3+l4".
---@field fields? turnpike.PathHashFields
---IPv6 flow labels count, too. Default: false.
---@field flow_label? boolean
---Headers in tunnels (IP in IP, GRE, VXLAN, Geneve, GTP-U) count in place of the tunnel's. Default: false.
---@field inner? boolean
---Both directions of a flow have one hash. Default: false.
---@field symmetric? boolean
---Seed, 0 to 4294967295; routers with the same one select alike. Default: another one at each start.
---@field seed? integer

---@class (exact) turnpike.TxSettings
---Packets of a transmit burst, 1 to 64. Default: 32.
---@field burst? integer
---Longest wait of a packet for others, in microseconds, up to 100000. Default: 50.
---@field flush_us? integer

---@class (exact) turnpike.SlowpathSettings
---Size of the neighbour table, 1 to 1048576. Default: 16384.
---@field neighbours? integer
---Packets that wait for a neighbour's MAC, 1 to 1024. Default: 16.
---@field queue? integer
---Requests for a MAC, 1 to 100. Default: 3.
---@field retries? integer
---Seconds for which a neighbour counts as reachable, 1 to 86400. Default: 30.
---@field timeout_s? integer
---Seconds for which fragments to the router wait for each other, 1 to 120. Default: 60.
---@field reassembly_s? integer
---Threads, 1 to 8; each owns a part of the ports. Default: 1.
---@field workers? integer
---ICMP errors sent a second, up to 1000000; 0: none. Default: 1000.
---@field icmp_rate? integer
---ICMP errors sent at once, 1 to 1000000. Default: 100.
---@field icmp_burst? integer
---ICMP errors a second to one IPv4 /24 or IPv6 /64, up to 1000000; 0: none. Default: 100.
---@field icmp_prefix_rate? integer
---ICMP errors at once to one IPv4 /24 or IPv6 /64, 1 to 1000000. Default: 50.
---@field icmp_prefix_burst? integer
---Limits of the classes of packets.
---@field classes? turnpike.SlowpathClasses

---@class (exact) turnpike.SlowpathClasses
---ARP and neighbour discovery. Default: rate 20000, weight 15, queue 512.
---@field neighbour? turnpike.ClassLimits
---Routing and link protocols of the link. Default: rate 200000, weight 25, queue 1024.
---@field link? turnpike.ClassLimits
---Other packets of routing protocols for the router. Default: rate 200000, weight 25, queue 1024.
---@field routing? turnpike.ClassLimits
---Everything else for the router. Default: rate 1000000, weight 25, queue 4096.
---@field host? turnpike.ClassLimits
---In transit: the neighbour's MAC is unknown. Default: rate 50000, weight 10, queue 512.
---@field resolve? turnpike.ClassLimits
---In transit: larger than the next MTU. Default: rate 500000, weight 10, queue 512.
---@field fragment? turnpike.ClassLimits
---In transit: with IP options or a hop-by-hop header. Default: rate 20000, weight 5, queue 256.
---@field options? turnpike.ClassLimits
---Answered with an ICMP error. Default: rate 50000, weight 10, queue 512.
---@field errors? turnpike.ClassLimits

---@class (exact) turnpike.ClassLimits
---Packets accepted a second, by all workers together, 1 to 100000000.
---@field rate? integer
---Part of a worker's turns under overload, 1 to 1000.
---@field weight? integer
---The former name of `weight`.
---@field share? integer
---Waiting packets, for each forwarder and worker, 16 to 65536.
---@field queue? integer

---Connection tracking of filters with `state`. Times are in seconds, 1 to 604800.
---@class (exact) turnpike.FlowsSettings
---Size of the table of each family, 1024 to 16777216. Default: 262144.
---@field most? integer
---TCP connections. Default: 7440.
---@field tcp_s? integer
---TCP before and after the connection. Default: 240.
---@field opening_s? integer
---UDP with answers. Default: 300.
---@field udp_s? integer
---Flows without an answer. Default: 120.
---@field unanswered_s? integer
---ICMP. Default: 60.
---@field icmp_s? integer
---First fragments. Default: 30.
---@field fragments_s? integer
---Other protocols. Default: 600.
---@field other_s? integer

---@class (exact) turnpike.IcmpSettings
---TTL and hop limit of the router's own packets, 1 to 255. Default: 64.
---@field ttl? integer
---Answers to ping. Default: true.
---@field echo? boolean

---Changed by a restart only.
---@class (exact) turnpike.MemorySettings
---Packet buffers, 512 to 16777216. Default: as many as are needed.
---@field mbufs? integer
---Ordinary pages even if there are hugepages. Default: false.
---@field no_huge? boolean

---@class (exact) turnpike.FibSettings
---Route table of IPv4. Default: "runmap".
---@field ipv4? turnpike.RouteTable
---Route table of IPv6; not "dir-24-8". Default: "runmap".
---@field ipv6? turnpike.RouteTable

--------------------------------------------------------------------------------------------------------- services

---@class (exact) turnpike.LogSettings
---@field level? turnpike.LogLevel

---Storage of packets that caused a panic.
---@class (exact) turnpike.QuarantineSettings
---An absolute path. Default: "/var/lib/turnpike/quarantine".
---@field directory? string
---Packets that one run stores, 1 to 1000000. Default: 1000.
---@field packets? integer
---MiB of all files together, 1 to 4096. Default: 16.
---@field mib? integer

---@class (exact) turnpike.TelnetSettings
---Address and port. Default: "127.0.0.1:2323".
---@field listen? string
---An address that others than this machine reach is meant. Default: false.
---@field public public? boolean
---Clients at a time, 1 to 1000. Default: 8.
---@field sessions? integer
---Seconds after which an idle client is disconnected, 1 to 86400. Default: 600.
---@field idle_s? integer
---Users that may connect besides root and the router's: names or numbers as text.
---@field users? string|string[]

---Metrics over HTTP, for Prometheus.
---@class (exact) turnpike.MetricsSettings
---Absolute path of a Unix socket. Default: "/run/turnpike-metrics.sock", unless `listen` is given.
---@field socket? string
---Group whose members may connect to the socket, by name or number as text. Default: none.
---@field group? string
---Address and port for TCP, such as "127.0.0.1:9477". Default: none.
---@field listen? string
---Absolute path of the server's certificate in PEM, for TLS by TCP; behind it those of its authority. Default: no TLS.
---@field certificate? string
---Absolute path of its key in PEM, which only root or the router's user may read.
---@field key? string
---Absolute path of authorities in PEM: a client needs a certificate of one of them. Default: none is asked for.
---@field client_ca? string
---An address that others than this machine reach is meant. Default: false.
---@field public public? boolean

---Sampled packets and counters in sFlow version 5.
---@class (exact) turnpike.SflowSettings
---Address of each collector, with or without a UDP port, as "192.0.2.9:6343" or "[2001:db8::9]". Default port: 6343.
---@field collector string|string[]
---Source address of datagrams. Default: the kernel's choice.
---@field source? string
---The ports whose received packets are sampled; a bond means its ports. Default: all.
---@field interfaces? string|string[]
---One of so many packets is sampled, at random, 1 to 16777216.
---@field sample integer
---The router's address in datagrams, by which collectors know it. Default: an interface's.
---@field agent? string
---Bytes of each sampled frame, 64 to 256. Default: 128.
---@field header? integer
---Seconds between two samples of an interface's counters, 0 to 86400; 0: none. Default: 20.
---@field counters_s? integer

---Flows of sampled packets in IPFIX.
---@class (exact) turnpike.IpfixSettings
---Address of each collector, with or without a UDP port, as "192.0.2.9:4739" or "[2001:db8::9]". Default port: 4739.
---@field collector string|string[]
---Source address of messages. Default: the kernel's choice.
---@field source? string
---The ports whose received packets are sampled; a bond means its ports. Default: all.
---@field interfaces? string|string[]
---One of so many packets is sampled, at random, 1 to 16777216.
---@field sample integer
---Longest time in seconds before a flow with packets is exported, 1 to 86400. Default: 60.
---@field active_s? integer
---Seconds without a packet after which a flow is exported, 1 to 86400, at most `active_s`. Default: 15.
---@field inactive_s? integer
---Number of the observation domain, 0 to 4294967295. Default: 1.
---@field domain? integer
---Most flows at a time, 64 to 1048576; a further one ends the one that would have ended first. Default: 65536.
---@field flows? integer
---Seconds between two transmissions of the templates, 1 to 86400. Default: 60.
---@field templates_s? integer

---Objects for an SNMP agent, by AgentX.
---@class (exact) turnpike.SnmpSettings
---Absolute path of the agent's socket. Default: "/var/agentx/master".
---@field agentx? string

---The API over HTTP.
---@class (exact) turnpike.ApiSettings
---Absolute path of a Unix socket. Default: "/run/turnpike-api.sock", unless `listen` is given.
---@field socket? string
---Group whose members may connect to the socket, by name or number as text. Default: none.
---@field group? string
---Address and port for TCP, such as "127.0.0.1:8479"; of others than this machine with TLS only. Default: none.
---@field listen? string
---Absolute path of the server's certificate in PEM, for TLS by TCP; behind it those of its authority. Default: no TLS.
---@field certificate? string
---Absolute path of its key in PEM, which only root or the router's user may read.
---@field key? string
---Absolute path of authorities in PEM: a client needs a certificate of one of them. Default: none is asked for.
---@field client_ca? string
---Absolute path of a file with a role and a token on each line, for clients by TCP. Default: the user's role.
---@field token_file? string
---The dashboard, for browsers. Default: false.
---@field dashboard? boolean

---Roles of users and groups, on the control socket and the API's; root has all.
---@class (exact) turnpike.AccessSettings
---Group whose members may connect to the control socket, by name or number as text. Default: none.
---@field group? string
---Who may query the state: users, by name or number as text, groups such as "group:netops", names of certificates such as
---"cert:alice".
---@field read? string|string[]
---Who may also trace, capture, run commands and remove flows.
---@field operate? string|string[]
---Who may also change routes, neighbours, sets and the configuration.
---@field configure? string|string[]

---An element of a Click configuration, for its handlers.
---@class (exact) turnpike.ElementSettings
---Its class, such as "Counter".
---@field class string
---Its configuration string. Default: "".
---@field config? string
---Processing of each input.
---@field inputs? turnpike.ElementPort|turnpike.ElementPort[]
---Processing of each output.
---@field outputs? turnpike.ElementPort|turnpike.ElementPort[]
---Connections "OUTPUT INPUT NAME" to other elements.
---@field to? string|string[]
---The step of the graph that does its work.
---@field step? string
---Outputs of steps, "STEP.OUTPUT", whose packets are the element's.
---@field counts? string|string[]
---The port of its device.
---@field port? string
---Of a routing table: the port of each output, "local" or "drop".
---@field ways? string|string[]

---A socket by which handlers of elements are called; `listen` or `unix`.
---@class (exact) turnpike.ControlSocketSettings
---Address and port, such as "127.0.0.1:7777".
---@field listen? string
---Absolute path of a Unix socket, at most 92 bytes.
---@field unix? string
---An address that others than this machine reach is meant; with `listen`. Default: false.
---@field public public? boolean
---No handler can be written. Default: false.
---@field read_only? boolean
---Connections are logged. Default: false.
---@field verbose? boolean
---Clients at a time, 1 to 1000. Default: 16.
---@field clients? integer
---Seconds after which an idle client is disconnected, 1 to 86400. Default: 600.
---@field idle_s? integer
---Users that may connect besides root and the router's, with `listen`: names or numbers as text.
---@field users? string|string[]

---@class (exact) turnpike.CommandSettings
---Its summary, in one line.
---@field help? string
---Its function: it gets the arguments as strings, and returns a text or a table.
---@field run fun(args: string[]): any

-------------------------------------------------------------------------------------------------- graph and steps

---A step that `turnpike.step` or `turnpike.next_hop` has made, for graphs.
---@class turnpike.Step

---A step with another name, a condition or arguments: { "ip4-ttl", as = "early-ttl" }.
---@class turnpike.StepUse
---The step.
---@field [1] string|turnpike.Step
---Its name in the graph. Default: that of the step.
---@field as? string
---The setting of a port without which the step is absent.
---@field when? "redirects"|"reverse_path"|string
---Arguments of the step.
---@field [string] any

---@alias turnpike.AnyStep string|turnpike.Step|turnpike.StepUse

---A graph of steps. A place is "STEP" or "STEP.OUTPUT".
---@class turnpike.Graph
local Graph = {}

---Connects a place to the first step, that to the next, …, in place of their earlier connections.
---@param from string|turnpike.Step
---@param ... turnpike.AnyStep
function Graph:path(from, ...) end

---Adds a step without a predecessor, which makes packets.
---@param step turnpike.AnyStep
function Graph:add(step) end

---Inserts a step after another one, or after one of its outputs.
---@param at string|turnpike.Step
---@param step turnpike.AnyStep
function Graph:insert_after(at, step) end

---Inserts a step before another one, on all edges to it; also before "transmit" and "drop".
---@param at string|turnpike.Step
---@param step turnpike.AnyStep
function Graph:insert_before(at, step) end

---Removes a step: its predecessors lead to the successor of its main output.
---@param step string|turnpike.Step
function Graph:remove(step) end

---Returns an independent copy.
---@return turnpike.Graph
function Graph:copy() end

---Returns a copy, for the packets received on these ports.
---@param ... string Names of ports.
---@return turnpike.Graph
function Graph:on_port(...) end

---Prints the graph as the Lua that makes it.
function Graph:print() end

---@class (exact) turnpike.StepSettings
---The function, called for each batch. It returns a mask for each output in their order, or fills those of `out`.
---@field process fun(batch: turnpike.Batch, mask: turnpike.Mask, out: table<string, turnpike.Mask>): turnpike.Mask?
---Names of its outputs, 1 to 15 with those of `drops`. Default: { "next" }.
---@field outputs? string[]
---Names of further outputs, whose packets are dropped. Default: none.
---@field drops? string[]
---The packets that it needs, checked as for other steps. Default: "frame".
---@field requires? turnpike.Packets
---Failures after which it is disabled; 0: never. Default: 100.
---@field limit? integer
---Effect of a disabled step: its first output, or a drop. Default: "drop" if it can drop packets, else "bypass".
---@field on_failure? "bypass"|"drop"
---The longest call in microseconds of processor time, 1000 or more. Default: 5000.
---@field budget_us? integer

---@class (exact) turnpike.BucketsSettings
---Tokens that a bucket gains in a second.
---@field rate number
---Tokens that it holds. Default: a tenth of `rate`, at least 1.
---@field burst? number
---Number of buckets; 4194304 of a script together. Default: 65536.
---@field size? integer

---@class (exact) turnpike.TableSettings
---Lifetime of an entry after its last write, in seconds.
---@field seconds number
---Number of entries; 4194304 of a script together. Default: 65536.
---@field size? integer

---A set of the slots of a batch. `a + b`, `a - b` and `a * b` are union, difference and intersection.
---@class turnpike.Mask
---@operator add(turnpike.Mask): turnpike.Mask
---@operator sub(turnpike.Mask): turnpike.Mask
---@operator mul(turnpike.Mask): turnpike.Mask
local Mask = {}

---@param i integer
---@return boolean
function Mask:has(i) end

---@param i integer
function Mask:add(i) end

---@param i integer
function Mask:remove(i) end

---@return integer
function Mask:count() end

---@return boolean
function Mask:empty() end

---@param other turnpike.Mask
---@return boolean
function Mask:equals(other) end

---@return turnpike.Mask
function Mask:copy() end

---Up to 64 packets, in slots 0 to 63; valid only during the call. A view of a header that a packet does not have has
---no field: all are nil.
---@class turnpike.Batch
local Batch = {}

---Iterates over the slots of a mask.
---@param mask turnpike.Mask
---@return fun(mask: turnpike.Mask, i: integer): integer
---@return turnpike.Mask
---@return integer
function Batch:each(mask) end

---Length of the frame in bytes without FCS.
---@param i integer
---@return integer
function Batch:len(i) end

---Name of the ingress port.
---@return string
function Batch:port() end

---Sends a copy of the packet by another port, as the packet is when the step returns.
---@param i integer
---@param port string
function Batch:mirror(i, port) end

---@param i integer
---@return turnpike.Ethernet
function Batch:ethernet(i) end

---@param i integer
---@return turnpike.VlanTag
function Batch:vlan(i) end

---@param i integer
---@return turnpike.Arp
function Batch:arp(i) end

---@param i integer
---@return turnpike.Ip4
function Batch:ip4(i) end

---@param i integer
---@return turnpike.Ip6
function Batch:ip6(i) end

---@param i integer
---@return turnpike.Udp
function Batch:udp(i) end

---@param i integer
---@return turnpike.Tcp
function Batch:tcp(i) end

---@param i integer
---@return turnpike.Icmp
function Batch:icmp(i) end

---The byte at an offset of the frame.
---@param i integer
---@param at integer
---@return integer
function Batch:u8(i, at) end

---Two bytes at an offset of the frame.
---@param i integer
---@param at integer
---@return integer
function Batch:u16(i, at) end

---Four bytes at an offset of the frame, as a number of the bit library.
---@param i integer
---@param at integer
---@return integer
function Batch:u32(i, at) end

---Writes a byte, and no checksum.
---@param i integer
---@param at integer
---@param value integer
function Batch:set_u8(i, at, value) end

---Writes two bytes, and no checksum.
---@param i integer
---@param at integer
---@param value integer
function Batch:set_u16(i, at, value) end

---Writes four bytes, and no checksum.
---@param i integer
---@param at integer
---@param value integer
function Batch:set_u32(i, at, value) end

---The number that an earlier step has attached to the packet; 0 without one.
---@param i integer
---@return integer
function Batch:mark(i) end

---Attaches a number to the packet for later steps, 0 to 4294967295.
---@param i integer
---@param value integer
function Batch:set_mark(i, value) end

---The packets that a filter has put into this category.
---@param name string
---@return turnpike.Mask
function Batch:category(name) end

---MACs are numbers of 48 bits.
---@class turnpike.Ethernet
---@field dst integer
---@field src integer
---@field type integer
local Ethernet = {}

---@param mac integer
function Ethernet:set_dst(mac) end

---@param mac integer
function Ethernet:set_src(mac) end

---@param number integer
function Ethernet:set_type(number) end

---@class turnpike.VlanTag
---@field id integer?
---@field pcp integer?
---Ethertype behind the tag.
---@field type integer?
local VlanTag = {}

---@param id integer
function VlanTag:set_id(id) end

---@param pcp integer
function VlanTag:set_pcp(pcp) end

---@class turnpike.Arp
---@field operation integer?
---@field sender_mac integer?
---@field sender_ip integer?
---@field target_mac integer?
---@field target_ip integer?

---Addresses are numbers of the bit library. Setters update all checksums.
---@class turnpike.Ip4
---@field src integer
---@field dst integer
---@field protocol integer
---@field ttl integer
---@field dscp integer
---@field ecn integer
---@field total_length integer
---@field id integer
---@field df boolean
---@field mf boolean
---In bytes.
---@field fragment_offset integer
---In bytes.
---@field header_length integer
---@field version integer
---@field checksum integer
local Ip4 = {}

---@param address integer
function Ip4:set_src(address) end

---@param address integer
function Ip4:set_dst(address) end

---@param dscp integer
function Ip4:set_dscp(dscp) end

---@param ecn integer
function Ip4:set_ecn(ecn) end

---@param ttl integer
function Ip4:set_ttl(ttl) end

---Addresses are four numbers of 32 bits, the first the highest. Setters update all checksums.
---@class turnpike.Ip6
---@field next_header integer
---@field hop_limit integer
---@field dscp integer
---@field ecn integer
---@field flow integer
---@field payload_length integer
---@field version integer
local Ip6 = {}

---@return integer
---@return integer
---@return integer
---@return integer
function Ip6:src() end

---@return integer
---@return integer
---@return integer
---@return integer
function Ip6:dst() end

---@param a integer
---@param b integer
---@param c integer
---@param d integer
function Ip6:set_src(a, b, c, d) end

---@param a integer
---@param b integer
---@param c integer
---@param d integer
function Ip6:set_dst(a, b, c, d) end

---@param dscp integer
function Ip6:set_dscp(dscp) end

---@param ecn integer
function Ip6:set_ecn(ecn) end

---@param hops integer
function Ip6:set_hop_limit(hops) end

---@class turnpike.Udp
---@field src integer?
---@field dst integer?
---@field length integer?
---@field checksum integer?
local Udp = {}

---@param port integer
function Udp:set_src(port) end

---@param port integer
function Udp:set_dst(port) end

---@class turnpike.Tcp
---@field src integer?
---@field dst integer?
---@field flags integer?
---@field syn boolean?
---@field ack boolean?
---@field fin boolean?
---@field rst boolean?
---@field sequence integer?
---@field acknowledgement integer?
---@field window integer?
---@field checksum integer?
local Tcp = {}

---@param port integer
function Tcp:set_src(port) end

---@param port integer
function Tcp:set_dst(port) end

---@class turnpike.Icmp
---@field type integer?
---@field code integer?
---@field id integer?
---@field sequence integer?
---@field checksum integer?

---@class turnpike.Counter
local Counter = {}

---@param n? integer Default: 1.
function Counter:add(n) end

---The total over all forwarders, microseconds old; for a call once a batch.
---@return number
function Counter:sum() end

---@class turnpike.Counters
local Counters = {}

---@param k integer The element, from 0.
---@param n? integer Default: 1.
function Counters:add(k, n) end

---The total of an element over all forwarders, microseconds old; for a call once a batch.
---@param k integer
---@return number
function Counters:sum(k) end

---Token buckets that all forwarders share; a key is up to four numbers.
---@class turnpike.Buckets
local Buckets = {}

---Takes tokens from the key's bucket and returns true, or takes none and returns false.
---@param amount? number Default: 1.
---@param ... number?
---@return boolean
function Buckets:take(amount, ...) end

---Numbers by keys that all forwarders share; a key is up to four numbers.
---@class turnpike.Table
local Table = {}

---@param ... number?
---@return number?
function Table:get(...) end

---@param value number
---@param ... number?
function Table:set(value, ...) end

---Adds to the key's number and returns the sum.
---@param amount? number Default: 1.
---@param ... number?
---@return number
function Table:add(amount, ...) end

---@param ... number?
function Table:remove(...) end

---@class turnpike.Prefix
---@field length integer
---@field net integer
---@field mask integer
local Prefix = {}

---@param address integer
---@return boolean
function Prefix:has(address) end

---@class turnpike.Set
local Set = {}

---Returns true for an address in the set: one number, for IPv6 four.
---@param a integer?
---@param b? integer
---@param c? integer
---@param d? integer
---@return boolean
function Set:has(a, b, c, d) end

---@class turnpike.Ports
local Ports = {}

---@param port integer?
---@return boolean
function Ports:has(port) end

------------------------------------------------------------------------------------------------------- statements

---@class turnpike
---The graph for the packets of all ports: the default graph, or the one assigned.
---@field graph turnpike.Graph
local turnpike = {}

---Declares a port: turnpike.port "wan" { device = "eth1", address = "192.0.2.1/24" }
---@param name string At most 15 characters, unique among all interfaces.
---@return fun(settings: turnpike.PortSettings)
function turnpike.port(name) end

---Declares a bond: turnpike.bond "lag" { ports = { "one", "two" }, address = "192.0.2.1/24" }
---@param name string At most 15 characters, unique among all interfaces.
---@return fun(settings: turnpike.BondSettings)
function turnpike.bond(name) end

---Declares a VLAN: turnpike.vlan "wan.100" { parent = "wan", id = 100, address = "192.0.2.1/24" }
---@param name string At most 15 characters, unique among all interfaces.
---@return fun(settings: turnpike.VlanSettings)
function turnpike.vlan(name) end

---Declares a loopback: turnpike.loopback "lo0" { address = "192.0.2.255/32" }
---@param name string At most 15 characters, unique among all interfaces.
---@return fun(settings: turnpike.LoopbackSettings)
function turnpike.loopback(name) end

---Adds a static route: turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
---@param prefix string A prefix, or an address of one host.
---@return fun(settings: turnpike.RouteSettings)
function turnpike.route(prefix) end

---Adds a static neighbour: turnpike.neighbour "10.0.2.9" { port = "lan", mac = "02:00:00:00:00:09" }
---@param address string
---@return fun(settings: turnpike.NeighbourSettings)
function turnpike.neighbour(address) end

---Declares a next hop for rules of filters, which is also a step: turnpike.next_hop "cheap" { via = "192.0.2.1" }
---@param name string
---@return fun(settings: turnpike.NextHopSettings): turnpike.Step
function turnpike.next_hop(name) end

---Declares a set of prefixes for filters: turnpike.prefix_set "blocked" { "198.51.100.0/24" }
---@param name string
---@return fun(settings: turnpike.PrefixSetSettings)
function turnpike.prefix_set(name) end

---Declares a packet filter: turnpike.filter "in" { { proto = "tcp", to_port = 22 }, default = "drop" }
---@param name string "to-router" is the filter of packets for the router itself.
---@return fun(settings: turnpike.FilterSettings)
function turnpike.filter(name) end

---Loads a route table: turnpike.import { file = "table.dat.gz", via = "10.0.1.2" }
---@param settings turnpike.ImportSettings
function turnpike.import(settings) end

---Adds a multicast route: turnpike.multicast "239.1.1.1" { from = "wan", to = { "lan", { "dmz", ttl = 16 } } }
---@param group string
---@return fun(settings: turnpike.MulticastSettings)
function turnpike.multicast(group) end

---Copies packets for an analyser: turnpike.mirror "tap" { from = "wan", to = "span" }
---@param name string
---@return fun(settings: turnpike.MirrorSettings)
function turnpike.mirror(name) end

---Declares a VRF: turnpike.vrf "blue" { table = 100 }
---@param name string At most 15 characters; "default" is always there.
---@return fun(settings: turnpike.VrfSettings)
function turnpike.vrf(name) end

---@class (exact) turnpike.AccelerateSettings
---@field [integer] string Interfaces.
---@field bypass? string[] Kinds of the kernel's rules that accelerated packets may bypass: "nftables", "tc", …
---@field filters? "kernel" | "configuration" "kernel": the outward filters of accelerated ports are the kernel's forward chains.
---@field vlans? boolean Default true; false: VLAN devices on the interfaces stay with the kernel.
---@field in_kernel? boolean The interfaces' XDP programs forward themselves, without sockets and forwarders. Default: false.
---@field flows? boolean Accelerate only flows that the kernel tracks (conntrack) and its rules let pass, with their NAT. Default: false.

---Accelerates kernel interfaces, which stay the kernel's: turnpike.accelerate { "eth0", "eth1" }
---@param settings turnpike.AccelerateSettings
function turnpike.accelerate(settings) end

---Sets other sources of routes: turnpike.routes_from { "kernel", "fpm" }
---@param settings turnpike.RoutesFromSettings
function turnpike.routes_from(settings) end

---Sets the listener for FRR's zebra, with turnpike.routes_from { "fpm" }.
---@param settings turnpike.FpmSettings
function turnpike.fpm(settings) end

---Sets the cores: turnpike.cores { control = "0", forward = "1,3-5" }
---@param settings turnpike.CoresSettings
function turnpike.cores(settings) end

---Sets waiting, overload and scheduling of forwarders: turnpike.forwarders { wait = "adaptive", budget = 512 }
---@param settings turnpike.ForwardersSettings
function turnpike.forwarders(settings) end

---Sets options of forwarding: turnpike.forwarding { resolve_via_default = false }
---@param settings turnpike.ForwardingSettings
function turnpike.forwarding(settings) end

---Sets transmit bursts: turnpike.tx { burst = 32, flush_us = 50 }
---@param settings turnpike.TxSettings
function turnpike.tx(settings) end

---Sets limits of the slow path: turnpike.slowpath { workers = 2, icmp_rate = 1000 }
---@param settings turnpike.SlowpathSettings
function turnpike.slowpath(settings) end

---Sets limits of connection tracking: turnpike.flows { most = 262144 }
---@param settings turnpike.FlowsSettings
function turnpike.flows(settings) end

---Sets the router's own ICMP: turnpike.icmp { echo = false }
---@param settings turnpike.IcmpSettings
function turnpike.icmp(settings) end

---Sets packet memory: turnpike.memory { mbufs = 65536 }
---@param settings turnpike.MemorySettings
function turnpike.memory(settings) end

---Sets the structures of route tables: turnpike.fib { ipv4 = "runmap" }
---@param settings turnpike.FibSettings
function turnpike.fib(settings) end

---Sets the log: turnpike.log { level = "info" }
---@param settings turnpike.LogSettings
function turnpike.log(settings) end

---Sets the storage of packets that caused a panic.
---@param settings turnpike.QuarantineSettings
function turnpike.quarantine(settings) end

---Serves telnet clients: turnpike.telnet { users = { "ops" } }
---@param settings turnpike.TelnetSettings
function turnpike.telnet(settings) end

---Serves metrics: turnpike.metrics { listen = "127.0.0.1:9477" }
---@param settings turnpike.MetricsSettings
function turnpike.metrics(settings) end

---Samples packets for sFlow collectors: turnpike.sflow { collector = "192.0.2.9", sample = 1000 }
---@param settings turnpike.SflowSettings
function turnpike.sflow(settings) end

---Samples packets for IPFIX collectors: turnpike.ipfix { collector = "192.0.2.9", sample = 1000 }
---@param settings turnpike.IpfixSettings
function turnpike.ipfix(settings) end

---Serves an SNMP agent: turnpike.snmp { agentx = "/var/agentx/master" }
---@param settings turnpike.SnmpSettings
function turnpike.snmp(settings) end

---Serves the API over HTTP: turnpike.api { listen = "127.0.0.1:8479" }
---@param settings turnpike.ApiSettings
function turnpike.api(settings) end

---Gives users roles: turnpike.access { group = "netops", read = "group:netops", configure = "alice" }
---@param settings turnpike.AccessSettings
function turnpike.access(settings) end

---Declares an element of a Click configuration: turnpike.element "c" { class = "Counter", step = "c" }
---@param name string
---@return fun(settings: turnpike.ElementSettings)
function turnpike.element(name) end

---Opens a socket for handlers: turnpike.control_socket "cs" { listen = "127.0.0.1:7777" }
---@param name string
---@return fun(settings: turnpike.ControlSocketSettings)
function turnpike.control_socket(name) end

---Defines a command: turnpike.command "hello" { help = "Greets", run = function(args) return "hello" end }
---@param name string A letter, then letters, digits, "-" and "_"; at most 32.
---@return fun(settings: turnpike.CommandSettings)
function turnpike.command(name) end

---Defines a step: turnpike.step "count" { process = function(batch, mask) … return mask end }
---@param name string
---@return fun(settings: turnpike.StepSettings): turnpike.Step
function turnpike.step(name) end

---Returns an empty graph with this first step: turnpike.new_graph "classify"
---@param first turnpike.AnyStep
---@return turnpike.Graph
function turnpike.new_graph(first) end

---Makes a counter, which `show counters` lists.
---@param name string
---@return turnpike.Counter
function turnpike.counter(name) end

---Makes counters, numbered from 0; 65536 of a script together.
---@param name string
---@param size integer
---@return turnpike.Counters
function turnpike.counters(name, size) end

---Makes token buckets: turnpike.buckets "limit" { rate = 1000, burst = 100 }
---@param name string
---@return fun(settings: turnpike.BucketsSettings): turnpike.Buckets
function turnpike.buckets(name) end

---Makes a table whose entries expire: turnpike.table "seen" { seconds = 300 }
---@param name string
---@return fun(settings: turnpike.TableSettings): turnpike.Table
function turnpike.table(name) end

---Returns an empty mask; within a step.
---@return turnpike.Mask
function turnpike.mask() end

---Returns a monotonic time in nanoseconds, read when the batch was received.
---@return number
function turnpike.now() end

---Returns the router's answer to a question of `turnpike show`; within a command.
---@param what string Such as "ports", "counters", "route".
---@param settings? table Such as { address = "192.0.2.1" }.
---@return any
function turnpike.show(what, settings) end

---Returns an IPv4 address as a number of the bit library.
---@param text string
---@return integer
function turnpike.ip4(text) end

---Returns the text of an IPv4 address.
---@param address integer
---@return string
function turnpike.ip4_text(address) end

---Returns an IPv6 address as four numbers of 32 bits, the first the highest.
---@param text string
---@return integer
---@return integer
---@return integer
---@return integer
function turnpike.ip6(text) end

---Returns an IPv4 prefix: turnpike.prefix("10.0.0.0/8"):has(ip.src)
---@param text string
---@return turnpike.Prefix
function turnpike.prefix(text) end

---Returns a set of prefixes and addresses of both families.
---@param list string[]
---@return turnpike.Set
function turnpike.set(list) end

---Returns a set of ports: turnpike.ports { 22, "1024-65535" }
---@param list (integer|string)[]
---@return turnpike.Ports
function turnpike.ports(list) end

---Returns a MAC as a number of 48 bits.
---@param text string
---@return integer
function turnpike.mac(text) end

---Returns the text of a MAC.
---@param number integer
---@return string
function turnpike.mac_text(number) end

---Returns a number from 0 to 4294967295 for up to four numbers, the same on all forwarders.
---@param a? number
---@param b? number
---@param c? number
---@param d? number
---@return number
function turnpike.hash(a, b, c, d) end

return turnpike

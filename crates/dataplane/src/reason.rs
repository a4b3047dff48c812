//! Reasons for which a packet leaves the fast path: punted to the slow path, or dropped.
//!
//! Every drop in the router has one of these reasons and one counter; `show counters` lists them
//! all, and with them the sum closes: received + originated + replicated = sent + to host + dropped.

use crate::interface::InterfaceId;
use crate::port::PortId;

/// Declares the reasons once: the variant, its name in commands and JSON, and its meaning.
macro_rules! reasons {
    ($(#[$meta:meta])* $enum:ident { $($variant:ident = $name:literal, $help:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $enum {
            $(#[doc = $help] $variant,)*
        }

        impl $enum {
            /// Every reason, in the order of declaration, which is the order of [`Self::index`].
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The names of all, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Position in [`Self::ALL`].
            pub fn index(self) -> usize {
                self as usize
            }

            /// The reason with this index, `None` past the last one.
            pub fn from_index(index: usize) -> Option<Self> {
                Self::ALL.get(index).copied()
            }

            /// The name that commands, JSON and documentation use.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One sentence for an operator.
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

reasons! {
    /// Why a packet was dropped.
    DropReason {
        // receive, classify
        Runt = "runt", "The frame is shorter than the headers it must have.";
        UnusableBuffer = "unusable-buffer", "The device delivered the frame in a buffer that others use, or that is too small to be read safely.";
        MultiSegment = "multi-segment", "The frame lies in several buffers and must be in one, and none is large enough or free.";
        NotForUs = "not-for-us", "The destination MAC is neither the port's nor a multicast.";
        BondInactive = "bond-inactive", "It came by a port of a bond that receives nothing now: LACP has not agreed on the port with the other side, or another port is the active one (show bonds).";
        UnknownEthertype = "unknown-ethertype", "Neither IPv4, IPv6 nor ARP.";
        VlanUnknown = "vlan-unknown", "A VLAN tag, and the port has no such VLAN.";
        // ip4-validate, RFC 1812 5.2.2
        Ip4Version = "ip4-version", "Ethertype IPv4, but the version field is not 4.";
        Ip4HeaderLength = "ip4-header-length", "The IHL field is below 5, or the header does not fit the packet.";
        Ip4TotalLength = "ip4-total-length", "The total length is shorter than the header or longer than the frame.";
        Ip4Checksum = "ip4-checksum", "The header checksum is wrong.";
        Ip4MartianSource = "ip4-martian-source", "The source is 0/8, 127/8, multicast, broadcast or, unless the configuration accepts it, 240/4.";
        OwnSource = "own-source", "The source is an address of this router: forged, or looped (RFC 1812 5.3.7).";
        BroadcastSource = "broadcast-source", "The source is the broadcast address of the network that it came from (RFC 1812 5.3.7).";
        MartianDestination = "martian-destination", "The destination must not appear on a wire (0/8, 127/8, ::, ::1 and, unless the configuration accepts it, 240/4), or is the all-zeros address of a connected network.";
        L2Broadcast = "l2-broadcast", "A unicast packet to be forwarded came as a link-layer broadcast or multicast (RFC 1812 5.3.4).";
        // ip6-validate
        Ip6Version = "ip6-version", "Ethertype IPv6, but the version field is not 6.";
        Ip6PayloadLength = "ip6-payload-length", "The payload length is longer than the frame.";
        Ip6MartianSource = "ip6-martian-source", "The source is a multicast, loopback or IPv4-mapped address.";
        // ip4-reverse-path, ip6-reverse-path
        ReversePath = "reverse-path", "Its source is not to be reached by the port it came from, or not at all (RFC 3704); the port asks for that.";
        // steps of the configuration
        Filtered = "filtered", "Dropped by a rule or the default of the interface's filter or of the filter to-router (show filters); or a fragment too short to classify (RFC 1858, RFC 3128).";
        Policed = "policed", "More than the rate of a filter's rule (show filters).";
        ByStep = "by-step", "A step that the configuration put into the graph said: drop.";
        StepFailed = "step-failed", "A step in Lua met an error over the packet, or did not end in time (show steps).";
        // mirror-in
        MirrorDestination = "mirror-destination", "Received on the port of an analyser, or to leave by it: the port carries copies of a mirror session only (show mirrors).";
        // lookup
        Blackhole = "blackhole", "The route says: drop in silence.";
        // ip4-multicast, ip6-multicast, replication
        MulticastWrongInterface = "multicast-wrong-interface", "To a group whose entry for this source names another interface (reverse path check).";
        MulticastNoReceiver = "multicast-no-receiver", "To a group whose entry has no port for it: no receivers, or the TTL does not exceed their thresholds.";
        NoBuffer = "no-buffer", "There was no free buffer for a replica (raise turnpike.memory { mbufs }).";
        MirrorLost = "mirror-lost", "A copy of a mirror session: there was no free buffer, the analyser's port was full or down, or the analyser could not be reached (show mirrors). The packet itself is not affected.";
        // transmit and rings
        PortDown = "port-down", "The route leads to a port that this router does not have.";
        LoopbackSent = "loopback-sent", "The kernel sent it by the host interface of a loopback, which has no link.";
        BondDown = "bond-down", "No port of the bond sends now: none has a link, or LACP has agreed on none (show bonds).";
        TxFull = "tx-full", "The port's transmit queue was full.";
        QueueFull = "queue-full", "The port's queue in software (show queues), or a queue of the graph (show graph), had no room.";
        QueueRed = "queue-red", "RED chose it: the port's queue (show queues), or a queue of the graph (show graph), is long on average.";
        QueueCodel = "queue-codel", "CoDel chose it: packets have waited too long for the port (show queues).";
        TxTooLong = "tx-too-long", "The frame is longer than the port's interface sends: its MTU has been lowered in the kernel (show ports), or a copy of a longer frame was to leave by it.";
        RefusedNeighbour = "refused-neighbour", "More ARP and neighbour discovery than its rate or queue admits (show policing).";
        RefusedLink = "refused-link", "More packets of the links' own protocols than their rate or queue admits (show policing).";
        RefusedRouting = "refused-routing", "More packets of routing protocols than their rate or queue admits (show policing).";
        RefusedHost = "refused-host", "More other packets for the router than their rate or queue admits (show policing).";
        RefusedResolve = "refused-resolve", "More packets to unknown neighbours than their rate or queue admits (show policing).";
        RefusedFragment = "refused-fragment", "More packets larger than the next link's MTU than their rate or queue admits (show policing).";
        RefusedOptions = "refused-options", "More packets with options than their rate or queue admits (show policing).";
        RefusedErrors = "refused-errors", "More packets that call for an ICMP error than their rate or queue admits (show policing).";
        TtlSecurity = "ttl-security", "Of a routing protocol, from farther away than the port accepts (ttl_security, RFC 5082).";
        InjectFull = "inject-full", "The ring from the slow path to a forwarder was full.";
        Shed = "shed", "More came than the forwarder can forward, and the packet is of no class to be kept (turnpike.forwarders { shed }).";
        EventDeviceFull = "event-device-full", "The event device took no more packets: its workers forward less than is received (show forwarders).";
        SpreadFull = "spread-full", "The ring to the forwarder that the hash in software chose was full.";
        HandoverFull = "handover-full", "The ring to the forwarder that owns the transmit queue was full.";
        Quarantined = "quarantined", "The router's code panicked over the packet: a defect. A copy is in the quarantine file, see the log.";
        StepLost = "step-lost", "A step gave the packet to none of its outputs: a defect in the step.";
        HostFull = "host-full", "The kernel did not take the packet from the port's host interface now.";
        HostDown = "host-down", "The port's host interface is down, or was removed.";
        HostMalformed = "host-malformed", "The kernel sent a frame by the port's host interface whose virtio header does not fit it: a defect of the kernel.";
        TriedOut = "tried-out", "Made by hand by turnpike trace, and not sent.";
        Shutdown = "shutdown", "The router was stopped while it held the packet.";
        // slow path
        TtlExpired = "ttl-expired", "TTL or hop limit ran out; answered with an ICMP error, within the rate limit.";
        NoRoute = "no-route", "No route to the destination; answered with an ICMP error, within the rate limit.";
        Prohibited = "prohibited", "A route or a step refuses the packet; answered with an ICMP error, within the rate limit.";
        Unreachable = "unreachable", "A route says that the destination is unreachable; answered with an ICMP error, within the rate limit.";
        TooBig = "too-big", "Larger than the next link takes and not to be fragmented; answered with an ICMP error.";
        BeyondScope = "beyond-scope", "An IPv6 link-local source cannot be forwarded (RFC 4443 3.1 code 2).";
        NeighbourFailed = "neighbour-failed", "The neighbour did not answer ARP or ND.";
        NeighbourQueueFull = "neighbour-queue-full", "Too many packets waited for this neighbour.";
        NeighbourTableFull = "neighbour-table-full", "The neighbour table is full.";
        LacpMalformed = "lacp-malformed", "A frame of the slow protocols that is neither a valid LACPDU nor a valid marker (show bonds).";
        ArpMalformed = "arp-malformed", "Not a valid Ethernet/IPv4 ARP message.";
        ArpRejected = "arp-rejected", "ARP for an address that is not ours, or from a sender that is not on the port's network.";
        NdMalformed = "nd-malformed", "A neighbour discovery message fails RFC 4861's validity checks, or came in a fragment (RFC 6980).";
        IcmpMalformed = "icmp-malformed", "An ICMP message for the router has a wrong checksum or length.";
        DhcpMalformed = "dhcp-malformed", "To the DHCP relay agent, and not a DHCP message that it relays, or one whose options lead out of it.";
        DhcpUntrusted = "dhcp-untrusted", "A DHCP message of a client that says it has passed a relay agent, or an answer of a server that the interface does not have (dhcp_relay).";
        DhcpHops = "dhcp-hops", "A DHCP message that has passed too many relay agents.";
        DhcpRate = "dhcp-rate", "More DHCP messages than the relay agent passes on for an interface: 200 a second.";
        UdpMalformed = "udp-malformed", "A UDP packet for the router has a wrong checksum or length, or over IPv6 no checksum.";
        TcpMalformed = "tcp-malformed", "A TCP segment for the router has a wrong checksum or length.";
        Ip4Options = "ip4-options", "An IP option is malformed or refused (source route).";
        Ip6Extension = "ip6-extension", "An IPv6 extension header is malformed, or holds an option that must not be skipped.";
        LocalFragment = "local-fragment", "A fragment for the router itself that is malformed, overlaps another, or came when too many waited.";
        ReassemblyTimeout = "reassembly-timeout", "A fragment for the router itself whose others did not come in time.";
        DirectedBroadcast = "directed-broadcast", "To a network's broadcast address (RFC 2644: not forwarded).";
        MulticastNotRouted = "multicast-not-routed", "A multicast group that the router has not joined, and has no entry for.";
        NotLocal = "not-local", "A link-local or local destination that is not an address of this port.";
        NoListener = "no-listener", "For the router itself, but nothing here speaks this protocol or port; answered with an ICMP error.";
    }
}

reasons! {
    /// Reason for which a forwarder punted a packet. The packet is as received: its TTL is not
    /// decremented, its Ethernet header is in place, only link-layer padding is trimmed.
    PuntReason {
        Arp = "arp", "An ARP message.";
        Local = "local", "For the router itself: its own address, a broadcast, or a multicast that it does not replicate.";
        NonIp = "non-ip", "Not IP, to a link-layer group of a routing or link protocol, on a port with a host interface.";
        SlowProtocol = "slow-protocol", "LACP or another of the slow protocols (IEEE 802.3, Annex 57A), on a port of a bond.";
        FrameToHost = "frame-to-host", "Neither IPv4 nor IPv6, and a filter's rule gives it to the port's host interface.";
        Ip4Options = "ip4-options", "An IPv4 header with options.";
        HopByHop = "hop-by-hop", "An IPv6 packet with a hop-by-hop options header.";
        Ttl = "ttl", "TTL or hop limit is 0 or 1, the packet is not for the router.";
        NoRoute = "no-route", "The FIB has no route.";
        Prohibited = "prohibited", "The route or a step says: refuse, administratively.";
        Unreachable = "unreachable", "The route says: refuse, unreachable.";
        Glean = "glean", "The destination is on a connected network, its MAC is unknown.";
        Unresolved = "unresolved", "The gateway's MAC is unknown.";
        TooBig = "too-big", "Larger than the MTU of the port it should leave by; to a group: of one of its ports.";
        Scope = "scope", "The source is link-local, the destination is not.";
        Reset = "reset", "A step of the configuration refuses the packet, TCP by a reset.";
        Truncated = "truncated", "The total length is beyond the frame, the header is right: dropped, and answered with an ICMP error.";
        Redirect = "redirect", "It leaves by the port it came by: forwarded, and a redirect may name the sender a better first hop.";
    }
}

reasons! {
    /// Classes of punted packets, each bounded by itself; see [`crate::class`].
    PuntClass {
        Neighbour = "neighbour", "ARP and neighbour discovery.";
        Link = "link", "Routing and link protocols of the link, which nobody farther away can send.";
        Routing = "routing", "Other packets of routing protocols for the router.";
        Host = "host", "Everything else for the router itself.";
        Resolve = "resolve", "Packets that wait for a neighbour's MAC.";
        Fragment = "fragment", "Packets that the next link does not take whole.";
        Options = "options", "Packets with IP options, on their way elsewhere.";
        Errors = "errors", "Packets that cannot be forwarded, answered with ICMP errors.";
    }
}

reasons! {
    /// The part of the router, outside the graph's steps, that dropped a packet. No step has such a name.
    DropOrigin {
        Receive = "receive", "A receive queue: taken from a device, dropped before the graph.";
        Spread = "spread", "The rings to the forwarders that software spreading chooses.";
        Graph = "graph", "The graph itself: a step panicked, or lost the packet.";
        Replicate = "replicate", "Copies of multicast packets, and of steps.";
        ToRouter = "to-router", "The filter to-router.";
        Policing = "policing", "The limits in front of the slow path (show policing).";
        Transmit = "transmit", "Transmit bursts, queues and rings of ports.";
        SlowPath = "slow-path", "The slow path: its engine, host interfaces and rings.";
    }
}

/// Returns true if frames that are not IP, sent to this group, are for the hosts of the link: the
/// groups that no bridge forwards and those of IS-IS (IEEE 802.1Q, 8.6.3: `01:80:c2:00:00:0x`, used
/// by LLDP, LACP, 802.1X and spanning tree; ISO 10589, 8.4.8 and ISO 9542: `01:80:c2:00:00:14`,
/// `15`, `09:00:2b:00:00:04`, `05`).
pub fn is_link_group(mac: [u8; 6]) -> bool {
    match mac {
        [0x01, 0x80, 0xc2, 0, 0, last] => matches!(last, 0x00..=0x0f | 0x14 | 0x15),
        [0x09, 0x00, 0x2b, 0, 0, last] => matches!(last, 0x04 | 0x05),
        _ => false,
    }
}

/// The tag of a punted packet: its reason, its origin, and the next hop that the FIB chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Punt {
    /// The reason for the punt.
    pub reason: PuntReason,
    /// The port it was received on.
    pub port: PortId,
    /// The interface it was received on.
    pub interface: InterfaceId,
    /// The next hop's number, after the selection among equal-cost paths;
    /// [`crate::next_hop::NO_ROUTE`] if the packet was punted before the lookup.
    pub next_hop: u16,
    /// The generation of the number ([`crate::next_hop::NextHopTable::generation`]): a packet may wait longer
    /// than the number keeps its meaning.
    pub generation: u16,
}

impl Punt {
    /// Packs into the 64-bit tag that a packet buffer carries.
    pub fn to_tag(self) -> u64 {
        self.reason.index() as u64
            | (self.port.index() as u64) << 8
            | (self.interface.index() as u64) << 16
            | u64::from(self.next_hop) << 32
            | u64::from(self.generation) << 48
    }

    /// Unpacks a tag from [`Self::to_tag`]; `None` for any other.
    pub fn from_tag(tag: u64) -> Option<Self> {
        Some(Self {
            reason: PuntReason::from_index(usize::from(tag as u8))?,
            port: PortId::new((tag >> 8) as u16 & 0xff)?,
            interface: InterfaceId::new((tag >> 16) as u16)?,
            next_hop: (tag >> 32) as u16,
            generation: (tag >> 48) as u16,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_indexes_match() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::COUNT);
        for (index, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert_eq!(DropReason::from_index(index), Some(reason));
        }
    }

    #[test]
    fn link_groups_are_those_of_the_standards() {
        for last in [0x00, 0x02, 0x03, 0x0e, 0x14, 0x15] {
            assert!(is_link_group([0x01, 0x80, 0xc2, 0, 0, last]), "{last:02x}");
        }
        assert!(is_link_group([0x09, 0x00, 0x2b, 0, 0, 5]));
        for other in [[0x01, 0x80, 0xc2, 0, 0, 0x20], [0xff; 6], [0x01, 0x80, 0xc2, 0, 1, 0x0e]] {
            assert!(!is_link_group(other), "{other:02x?}");
        }
    }

    #[test]
    fn a_punt_survives_its_tag() {
        for &reason in PuntReason::ALL {
            let punt = Punt {
                reason,
                port: PortId::new(63).unwrap(),
                interface: InterfaceId::new(8191).unwrap(),
                next_hop: 0x7fff,
                generation: 0xfffe,
            };
            assert_eq!(Punt::from_tag(punt.to_tag()), Some(punt));
        }
        assert_eq!(Punt::from_tag(u64::MAX), None);
    }
}

//! Classes of punted packets, which share the slow path so that no kind of traffic starves another.
//!
//! A forwarder sorts punted packets by reason and by the first 64 bytes. Each class has its own ring to each
//! slow path worker, a rate and a weight, by which it has a part of the worker's turns (see [`crate::punts`] for
//! the forwarder's side): a flood fills the ring of its own class and no other.
//!
//! | class | packets |
//! |---|---|
//! | `neighbour` | ARP; ICMPv6 133 to 137 with hop limit 255 (RFC 4861) |
//! | `link` | packets that only hosts of the link can send: routing protocols to link-local groups or addresses, or with TTL 255 (RFC 5082); others to link-local groups with TTL 1 or 255; frames to link protocols' groups (IS-IS, LLDP, LACP) |
//! | `routing` | for the router: other packets of OSPF, EIGRP, PIM, VRRP, RSVP; BGP, LDP, MSDP, BFD, RIP, HSRP by port; IGMP, MLD |
//! | `host` | everything else for the router: ping, ssh, DNS, later fragments |
//! | `resolve` | to be forwarded: the neighbour's MAC is unknown, or a redirect may be due |
//! | `fragment` | longer than the next link's MTU: fragmented, or reported to the sender |
//! | `options` | IPv4 options and hop-by-hop headers, not for the router |
//! | `errors` | cannot be forwarded, reported to the sender: TTL, no route, refused |
//!
//! A unicast packet that arrives with TTL 1 proves nothing: a sender that knows the distance can choose the
//! initial TTL to match.
//!
//! A punted packet to a link-layer group is for the router regardless of the reason: a multicast
//! listener query has a hop-by-hop header, an IGMP report an IPv4 option. Other packets with
//! options to groups that routers forward are `options`.

use wire::ip::{IPV6_LEN, Ipv4Header};

use crate::features::Feature;
use crate::head::{ETHERNET, HEAD, ip4, ip6};
use crate::reason::{DropReason, PuntClass, PuntReason};

/// The smallest TTL or hop limit of accepted packets of near peers' protocols (RFC 5082); 0: any.
pub const LEAST_TTL: Feature = Feature::number("least_ttl", 6);

/// One value for each class, by [`PuntClass::index`].
pub type ByClass<T> = [T; PuntClass::COUNT];

/// Limits of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLimits {
    /// Packets per second that all slow path workers accept together.
    pub rate: u32,
    /// The class's part of a worker's capacity under overload, relative to the other classes'
    /// weights.
    pub weight: u32,
    /// Capacity of the queue to a worker in packets, for each forwarder; beyond it packets are
    /// dropped, and from half of it on some are, at random.
    pub queue: usize,
}

/// The default limits of all classes.
pub fn default_limits() -> ByClass<ClassLimits> {
    std::array::from_fn(|class| PuntClass::ALL[class].default_limits())
}

const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const RSVP: u8 = 46;
const ICMPV6: u8 = 58;
const ESP: u8 = 50;
const AUTHENTICATION: u8 = 51;
const EIGRP: u8 = 88;
const OSPF: u8 = 89;
const PIM: u8 = 103;
const VRRP: u8 = 112;
/// Hop-by-hop options.
const HOP_BY_HOP: u8 = 0;

/// MSDP, BGP, LDP.
const ROUTING_TCP: [u16; 3] = [639, 179, 646];
/// Those of them whose peers are verified by TTL security: BFD (single hop, echo).
const NEAR_UDP: [u16; 2] = [3784, 3785];
/// RIP, RIPng, LDP, HSRP, BFD (single hop, echo, multihop, LAG).
const ROUTING_UDP: [u16; 8] = [520, 521, 646, 1985, 3784, 3785, 4784, 6784];

impl PuntClass {
    /// The default limits of the class. The rates are far above what the protocols need and below what a core
    /// can do, except for the host's traffic, which may use nearly all of it if nothing else does. Its queue
    /// holds the data that a TCP connection of the kernel has in flight on a fast link (some megabytes), so
    /// that nothing is lost while a worker is not running.
    pub fn default_limits(self) -> ClassLimits {
        let (rate, weight, queue) = match self {
            Self::Neighbour => (20_000, 15, 512),
            Self::Link | Self::Routing => (200_000, 25, 1024),
            Self::Host => (1_000_000, 25, 4096),
            Self::Resolve => (50_000, 10, 512),
            Self::Fragment => (500_000, 10, 512),
            Self::Options => (20_000, 5, 256),
            Self::Errors => (50_000, 10, 512),
        };
        ClassLimits { rate, weight, queue }
    }

    /// The drop reason for packets for which the class has no room.
    pub fn refusal(self) -> DropReason {
        match self {
            Self::Neighbour => DropReason::RefusedNeighbour,
            Self::Link => DropReason::RefusedLink,
            Self::Routing => DropReason::RefusedRouting,
            Self::Host => DropReason::RefusedHost,
            Self::Resolve => DropReason::RefusedResolve,
            Self::Fragment => DropReason::RefusedFragment,
            Self::Options => DropReason::RefusedOptions,
            Self::Errors => DropReason::RefusedErrors,
        }
    }

    /// The class of a packet that was punted for `reason`; `to_group`: its frame was sent to a
    /// multicast or broadcast MAC. Bytes past the packet's end only decide the class.
    pub fn of(reason: PuntReason, to_group: bool, head: &[u8; HEAD]) -> Self {
        match reason {
            PuntReason::Arp => Self::Neighbour,
            PuntReason::NonIp | PuntReason::SlowProtocol | PuntReason::FrameToHost => Self::Link,
            PuntReason::Local => Self::of_local(head),
            PuntReason::Ip4Options | PuntReason::HopByHop if to_group => match Self::of_local(head)
            {
                Self::Host if is_routed_group(head) => Self::Options,
                class => class,
            },
            PuntReason::Ip4Options | PuntReason::HopByHop => Self::Options,
            // They do not need the neighbour.
            PuntReason::Glean | PuntReason::Unresolved if is_expired(head) => Self::Errors,
            PuntReason::Glean | PuntReason::Unresolved | PuntReason::Redirect => Self::Resolve,
            PuntReason::TooBig => Self::Fragment,
            PuntReason::Ttl
            | PuntReason::Truncated
            | PuntReason::NoRoute
            | PuntReason::Prohibited
            | PuntReason::Reset
            | PuntReason::Unreachable
            | PuntReason::Scope => Self::Errors,
        }
    }

    /// The class of a packet for the router itself.
    fn of_local(head: &[u8; HEAD]) -> Self {
        match ip4(head).version() {
            4 => of_ip4(head),
            6 => of_ip6(head),
            _ => Self::Host,
        }
    }
}

/// Returns true if a packet to be forwarded would be refused for its TTL or hop limit.
fn is_expired(head: &[u8; HEAD]) -> bool {
    match ip4(head).version() {
        4 => ip4(head).ttl <= 1,
        _ => ip6(head).hop_limit <= 1,
    }
}

/// Returns true if the packet is for a group that routers forward (RFC 5771, 4; RFC 4291, 2.7).
fn is_routed_group(head: &[u8; HEAD]) -> bool {
    match ip4(head).version() {
        4 => ip4(head).destination().is_multicast() && !is_link_local4(ip4(head)),
        _ => {
            let [first, second, ..] = ip6(head).destination_address;
            first == 0xff && second & 0xf > 2
        }
    }
}

/// Returns true if a packet is for a group of 224.0.0.0/24, which no router forwards (RFC 5771, 4).
fn is_link_local4(ip: &Ipv4Header) -> bool {
    ip.destination_address[..3] == [224, 0, 0]
}

fn of_ip4(head: &[u8; HEAD]) -> PuntClass {
    let ip = ip4(head);
    let (ttl, link_local, later_fragment) = (ip.ttl, is_link_local4(ip), ip.fragment_offset() != 0);
    let payload = ETHERNET + ip.header_len();
    let class = match ip.protocol {
        IGMP => return PuntClass::Routing,
        RSVP | EIGRP | OSPF | PIM | VRRP => PuntClass::Routing,
        _ if link_local && matches!(ttl, 1 | 255) => PuntClass::Link,
        _ if later_fragment => PuntClass::Host,
        protocol => by_ports(protocol, payload, head),
    };
    nearer(class, link_local || ttl == 255)
}

fn of_ip6(head: &[u8; HEAD]) -> PuntClass {
    let (hop_limit, destination) = (ip6(head).hop_limit, ip6(head).destination());
    let (protocol, payload) = upper_ip6(head);
    // ff02::/16 and fe80::/10.
    let group = destination.segments()[0] == 0xff02;
    let link_local = group || destination.is_unicast_link_local();
    let class = match (protocol, head.get(payload)) {
        (ICMPV6, Some(133..=137)) if hop_limit == 255 => return PuntClass::Neighbour,
        (ICMPV6, Some(130..=132 | 143)) => return PuntClass::Routing,
        (ICMPV6, _) => PuntClass::Host,
        (RSVP | EIGRP | OSPF | PIM | VRRP, _) => PuntClass::Routing,
        // OSPFv3 is authenticated so (RFC 4552).
        (ESP | AUTHENTICATION, _) if link_local => PuntClass::Link,
        _ if group && matches!(hop_limit, 1 | 255) => PuntClass::Link,
        _ => by_ports(protocol, payload, head),
    };
    nearer(class, link_local || hop_limit == 255)
}

/// Returns the upper-layer protocol after any hop-by-hop options, and its offset.
fn upper_ip6(head: &[u8; HEAD]) -> (u8, usize) {
    let (protocol, payload) = (ip6(head).next_header, ETHERNET + IPV6_LEN);
    if protocol != HOP_BY_HOP {
        return (protocol, payload);
    }
    // Its length is in units of eight bytes, the first not counted (RFC 8200, 4.3).
    (head[payload], payload + 8 + usize::from(head[payload + 1]) * 8)
}

/// Returns `Link` for a routing packet that certainly comes from the link, else the class.
fn nearer(class: PuntClass, sure: bool) -> PuntClass {
    if sure && class == PuntClass::Routing { PuntClass::Link } else { class }
}

/// Returns source and destination port; 0 if they are beyond the visible bytes.
fn ports(payload: usize, head: &[u8; HEAD]) -> (u16, u16) {
    let port = |at: usize| match head.get(at..at + 2) {
        Some(bytes) => u16::from_be_bytes([bytes[0], bytes[1]]),
        None => 0,
    };
    (port(payload), port(payload + 2))
}

fn by_ports(protocol: u8, payload: usize, head: &[u8; HEAD]) -> PuntClass {
    let (source, destination) = ports(payload, head);
    let routing = match protocol {
        TCP => is_routing_tcp(source, destination),
        UDP => ROUTING_UDP.contains(&destination),
        _ => false,
    };
    if routing { PuntClass::Routing } else { PuntClass::Host }
}

/// Either end may have opened the connection.
fn is_routing_tcp(source: u16, destination: u16) -> bool {
    ROUTING_TCP.contains(&source) || ROUTING_TCP.contains(&destination)
}

/// Returns true if a packet for the router is of a protocol between adjacent peers (BGP, LDP, MSDP or BFD) and
/// has a TTL or hop limit below `least`: its sender is too far away (RFC 5082, 3).
pub(crate) fn is_from_afar(least: u8, head: &[u8; HEAD]) -> bool {
    let (ttl, protocol, payload) = match ip4(head).version() {
        4 => (ip4(head).ttl, ip4(head).protocol, ETHERNET + ip4(head).header_len()),
        _ => {
            let (protocol, payload) = upper_ip6(head);
            (ip6(head).hop_limit, protocol, payload)
        }
    };
    let (source, destination) = ports(payload, head);
    let near = match protocol {
        TCP => is_routing_tcp(source, destination),
        UDP => NEAR_UDP.contains(&destination),
        _ => false,
    };
    near && ttl < least
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FrameBuilder;

    fn head(frame: &FrameBuilder) -> [u8; HEAD] {
        let mut frame = frame.clone().build();
        frame.resize(HEAD, 0);
        frame.try_into().unwrap()
    }

    fn local(frame: FrameBuilder) -> PuntClass {
        PuntClass::of(PuntReason::Local, false, &head(&frame))
    }

    #[test]
    fn routing_protocols_are_known_by_number() {
        for (protocol, class) in [
            (2, PuntClass::Routing),
            (46, PuntClass::Routing),
            (88, PuntClass::Routing),
            (89, PuntClass::Routing),
            (103, PuntClass::Routing),
            (112, PuntClass::Routing),
            (1, PuntClass::Host),
            (47, PuntClass::Host),
        ] {
            assert_eq!(local(FrameBuilder::ip4().protocol(protocol)), class, "IPv4 {protocol}");
            if protocol > 2 {
                assert_eq!(local(FrameBuilder::ip6().protocol(protocol)), class, "{protocol}");
            }
        }
    }

    #[test]
    fn routing_protocols_are_known_by_port() {
        let ports = |protocol, source: u16, destination: u16| {
            let ports = [source.to_be_bytes(), destination.to_be_bytes(), [0; 2], [0; 2]].concat();
            let all = [
                FrameBuilder::ip4().protocol(protocol).payload(&ports),
                FrameBuilder::ip4().protocol(protocol).options(&[1; 4]).payload(&ports),
                FrameBuilder::ip6().protocol(protocol).payload(&ports),
            ]
            .map(local);
            assert!(all.iter().all(|class| *class == all[0]), "{all:?}");
            all[0]
        };
        for port in [179, 639, 646] {
            assert_eq!(ports(6, 40_000, port), PuntClass::Routing, "{port}");
            assert_eq!(ports(6, port, 40_000), PuntClass::Routing, "{port}");
        }
        for port in [520, 521, 646, 1985, 3784, 3785, 4784, 6784] {
            assert_eq!(ports(17, 49_152, port), PuntClass::Routing, "{port}");
        }
        assert_eq!(ports(6, 40_000, 22), PuntClass::Host);
        assert_eq!(ports(17, 179, 53), PuntClass::Host);
        assert_eq!(ports(17, 3784, 40_000), PuntClass::Host, "BFD is known by where it goes");
    }

    #[test]
    fn a_later_fragment_has_no_ports() {
        let bgp = [0, 179, 0, 179, 0, 0, 0, 0];
        let mut head = head(&FrameBuilder::ip4().protocol(6).payload(&bgp));
        head[21] = 1;
        assert_eq!(PuntClass::of(PuntReason::Local, false, &head), PuntClass::Host);
    }

    #[test]
    fn neighbour_discovery_is_what_no_router_has_forwarded() {
        let message = |kind: u8, hop_limit| {
            let frame = FrameBuilder::ip6().protocol(58).payload(&[kind, 0, 0, 0]).ttl(hop_limit);
            local(frame)
        };
        for kind in 133..=137 {
            assert_eq!(message(kind, 255), PuntClass::Neighbour);
            assert_eq!(message(kind, 254), PuntClass::Host, "it will be refused");
        }
        assert_eq!(message(128, 255), PuntClass::Host);
        assert_eq!(message(130, 1), PuntClass::Routing, "MLD");
        let frame = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 46]);
        assert_eq!(PuntClass::of(PuntReason::Arp, true, &head(&frame)), PuntClass::Neighbour);
    }

    #[test]
    fn link_local_groups_are_for_protocols() {
        let group = |ttl| local(FrameBuilder::ip4().destination4("224.0.0.18").ttl(ttl));
        assert_eq!(
            [group(1), group(255), group(64)].map(PuntClass::name),
            ["link", "link", "host"]
        );
        let group = |ttl| local(FrameBuilder::ip6().destination6("ff02::5").ttl(ttl));
        assert_eq!(
            [group(1), group(255), group(64)].map(PuntClass::name),
            ["link", "link", "host"]
        );
        let wider = local(FrameBuilder::ip4().destination4("239.0.0.1").ttl(1));
        assert_eq!(wider, PuntClass::Host);
    }

    #[test]
    fn what_can_only_come_from_the_link_is_apart_from_what_anybody_sends() {
        let bgp = [0xc3, 0x50, 0, 179, 0, 0, 0, 0];
        let cases4 = [
            ("224.0.0.5", 89, 1, PuntClass::Link),
            ("224.0.0.5", 89, 64, PuntClass::Link),
            ("10.0.1.1", 89, 255, PuntClass::Link),
            ("10.0.1.1", 89, 64, PuntClass::Routing),
            ("10.0.1.1", 89, 1, PuntClass::Routing),
            ("10.0.1.1", 6, 255, PuntClass::Link),
            ("10.0.1.1", 6, 254, PuntClass::Routing),
            ("10.0.1.1", 6, 1, PuntClass::Routing),
            ("224.0.0.22", 2, 1, PuntClass::Routing),
        ];
        for (to, protocol, ttl, class) in cases4 {
            let frame = FrameBuilder::ip4().destination4(to).protocol(protocol).ttl(ttl);
            assert_eq!(local(frame.payload(&bgp)), class, "{to} {protocol} {ttl}");
        }
        let cases6 = [
            ("ff02::5", 89, 1, PuntClass::Link),
            ("fe80::1", 89, 1, PuntClass::Link),
            ("2001:db8::1", 89, 64, PuntClass::Routing),
            ("2001:db8::1", 6, 255, PuntClass::Link),
            ("2001:db8::1", 6, 64, PuntClass::Routing),
            ("fe80::1", 6, 64, PuntClass::Link),
            ("fe80::1", 51, 1, PuntClass::Link),
            ("2001:db8::1", 51, 255, PuntClass::Host),
        ];
        for (to, protocol, ttl, class) in cases6 {
            let frame = FrameBuilder::ip6().destination6(to).protocol(protocol).ttl(ttl);
            assert_eq!(local(frame.payload(&bgp)), class, "{to} {protocol} {ttl}");
        }
        let lldp = FrameBuilder::ethernet([1, 0x80, 0xc2, 0, 0, 14], 0x88cc).payload(&[0; 46]);
        assert_eq!(PuntClass::of(PuntReason::NonIp, true, &head(&lldp)), PuntClass::Link);
    }

    #[test]
    fn peers_from_afar_are_known_by_their_ttl() {
        let ports =
            |destination: u16| [[0xc3, 0x50], destination.to_be_bytes(), [0; 2], [0; 2]].concat();
        for (protocol, destination, ttl, least, afar) in [
            (6, 179, 255, 255, false),
            (6, 179, 254, 255, true),
            (6, 179, 254, 254, false),
            (6, 646, 1, 255, true),
            (6, 22, 1, 255, false),
            (17, 3784, 254, 255, true),
            (17, 4784, 254, 255, false),
            (17, 520, 1, 255, false),
            (89, 179, 1, 255, false),
        ] {
            for frame in [FrameBuilder::ip4(), FrameBuilder::ip6()] {
                let head = head(&frame.protocol(protocol).ttl(ttl).payload(&ports(destination)));
                assert_eq!(is_from_afar(least, &head), afar, "{protocol} {destination} {ttl}");
            }
        }
        // The other end's port counts too, and options do not hide it.
        let answer = [0, 179, 0xc3, 0x50, 0, 0, 0, 0];
        let frame = FrameBuilder::ip4().protocol(6).ttl(9).options(&[1; 4]).payload(&answer);
        assert!(is_from_afar(255, &head(&frame)));
    }

    #[test]
    fn options_to_a_group_are_a_protocol_s_and_others_are_not() {
        let report = FrameBuilder::ip4().protocol(2).options(&[0x94, 4, 0, 0]);
        let class = |to_group| PuntClass::of(PuntReason::Ip4Options, to_group, &head(&report));
        assert_eq!((class(true), class(false)), (PuntClass::Routing, PuntClass::Options));
        let query = FrameBuilder::ip6().protocol(0).payload(&[58, 0, 5, 2, 0, 0, 1, 0, 130, 0]);
        let class = |to_group| PuntClass::of(PuntReason::HopByHop, to_group, &head(&query));
        assert_eq!((class(true), class(false)), (PuntClass::Routing, PuntClass::Options));
        let routed = [
            (FrameBuilder::ip4().destination4("239.1.1.1"), PuntClass::Options),
            (FrameBuilder::ip4().destination4("224.0.0.99"), PuntClass::Host),
            (FrameBuilder::ip4().destination4("10.0.1.255"), PuntClass::Host),
            (FrameBuilder::ip4().destination4("239.1.1.1").protocol(2), PuntClass::Routing),
        ];
        for (frame, class) in routed {
            let head = head(&frame.options(&[1; 4]));
            assert_eq!(PuntClass::of(PuntReason::Ip4Options, true, &head), class);
        }
        for (group, class) in [("ff05::9", PuntClass::Options), ("ff02::9", PuntClass::Host)] {
            let frame = FrameBuilder::ip6().destination6(group).protocol(0).payload(&[17, 0, 1, 4]);
            assert_eq!(PuntClass::of(PuntReason::HopByHop, true, &head(&frame)), class, "{group}");
        }
        // A header that extends beyond the visible bytes.
        let long = FrameBuilder::ip6().protocol(0).payload(&[58, 255, 5, 2]);
        let class = PuntClass::of(PuntReason::HopByHop, true, &head(&long));
        assert_eq!(class, PuntClass::Host);
    }

    #[test]
    fn what_expires_here_does_not_wait_for_a_neighbour() {
        for frame in [FrameBuilder::ip4(), FrameBuilder::ip6()] {
            for reason in [PuntReason::Glean, PuntReason::Unresolved] {
                let class = |ttl| PuntClass::of(reason, false, &head(&frame.clone().ttl(ttl)));
                let classes = [0, 1, 2].map(class);
                assert_eq!(classes, [PuntClass::Errors, PuntClass::Errors, PuntClass::Resolve]);
            }
        }
    }

    #[test]
    fn what_is_too_big_is_apart_from_other_errors() {
        let mut head = head(&FrameBuilder::ip4());
        let class = |head: &_| PuntClass::of(PuntReason::TooBig, false, head);
        assert_eq!(class(&head), PuntClass::Fragment);
        head[20] = 0x40;
        assert_eq!(class(&head), PuntClass::Fragment);
        let mut ip6 = [0; HEAD];
        ip6[14] = 0x60;
        assert_eq!(class(&ip6), PuntClass::Fragment);
    }

    #[test]
    fn every_class_has_limits_and_a_name_for_its_refusals() {
        for &class in PuntClass::ALL {
            let limits = class.default_limits();
            assert!(limits.rate > 0 && limits.weight > 0 && limits.queue > 0);
            assert_eq!(class.refusal().name(), format!("refused-{}", class.name()));
        }
    }

    #[test]
    fn any_bytes_have_a_class() {
        let mut random = 1u64;
        for _ in 0..20_000 {
            let head: [u8; HEAD] = std::array::from_fn(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 56) as u8
            });
            for &reason in PuntReason::ALL {
                PuntClass::of(reason, head[0] & 1 != 0, &head);
            }
        }
    }
}

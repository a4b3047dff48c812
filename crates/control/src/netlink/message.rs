//! Reads route netlink messages: RFC 3549 and the kernel's `include/uapi/linux/{netlink,rtnetlink,
//! nexthop,neighbour,if_addr,if_link,fib_rules}.h`; the constants have the names used there.
//!
//! ```text
//!   bytes -> Messages -> Raw { kind, flags, payload } -> Message::parse -> Message::Route(…)
//! ```
//!
//! No length is trusted. A malformed message is an error of its own, and the next one is read; an
//! unknown attribute is skipped; a malformed known attribute makes its message malformed. A message
//! whose length leads out of the buffer ends the buffer, since the start of the next one is
//! unknown.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use linux_raw_sys::netlink;
use netlink_packet_core::{NlaBuffer, NlasIterator};
use smallvec::SmallVec;
use wire::MacAddr;
use wire::ethernet::ETHERTYPE_VLAN;

// Constants in the types of the fields that they are for: those of libc have them already, those of
// `linux-raw-sys` are converted, and those that both lack are numbers.
use libc::{
    IFA_ADDRESS, IFA_F_DADFAILED, IFA_F_NOPREFIXROUTE, IFA_FLAGS, IFA_LOCAL, NDA_DST, NDA_LLADDR,
    NTF_PROXY, RTA_DST, RTA_ENCAP, RTA_GATEWAY, RTA_IIF, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC,
    RTA_PRIORITY, RTA_SRC, RTA_TABLE, RTA_VIA, RTM_F_CLONED,
};
pub(crate) use libc::{
    RT_SCOPE_HOST, RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_DELRULE, RTM_GETADDR,
    RTM_GETLINK, RTM_GETNEIGH, RTM_GETROUTE, RTM_GETRULE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH,
    RTM_NEWROUTE, RTM_NEWRULE, RTN_ANYCAST, RTN_BLACKHOLE, RTN_BROADCAST, RTN_LOCAL, RTN_MULTICAST,
    RTN_PROHIBIT, RTN_THROW, RTN_UNICAST, RTN_UNREACHABLE, RTPROT_KERNEL,
};

pub(crate) const NLM_F_REQUEST: u16 = netlink::NLM_F_REQUEST as u16;
pub(crate) const NLM_F_DUMP_INTR: u16 = netlink::NLM_F_DUMP_INTR as u16;
/// Flag of a request for all objects.
pub(crate) const NLM_F_DUMP: u16 = netlink::NLM_F_DUMP as u16;
/// Flags of `RTM_NEW…`.
pub(crate) const NLM_F_REPLACE: u16 = netlink::NLM_F_REPLACE as u16;
pub(crate) const NLM_F_EXCL: u16 = netlink::NLM_F_EXCL as u16;
pub(crate) const NLM_F_CREATE: u16 = netlink::NLM_F_CREATE as u16;
pub(crate) const NLM_F_APPEND: u16 = netlink::NLM_F_APPEND as u16;

pub(crate) const NLMSG_NOOP: u16 = netlink::NLMSG_NOOP as u16;
pub(crate) const NLMSG_ERROR: u16 = netlink::NLMSG_ERROR as u16;
pub(crate) const NLMSG_DONE: u16 = netlink::NLMSG_DONE as u16;
pub(crate) const NLMSG_OVERRUN: u16 = netlink::NLMSG_OVERRUN as u16;

pub(crate) const RTM_NEWNETCONF: u16 = netlink::RTM_NEWNETCONF as u16;
pub(crate) const RTM_NEWNEXTHOP: u16 = netlink::RTM_NEWNEXTHOP as u16;
pub(crate) const RTM_DELNEXTHOP: u16 = netlink::RTM_DELNEXTHOP as u16;
pub(crate) const RTM_GETNEXTHOP: u16 = netlink::RTM_GETNEXTHOP as u16;

const RTA_METRICS: u16 = libc::RTA_METRICS;
const RTAX_MTU: u16 = netlink::RTAX_MTU as u16;

pub(crate) const AF_UNSPEC: u8 = libc::AF_UNSPEC as u8;
pub(crate) const AF_INET: u8 = libc::AF_INET as u8;
pub(crate) const AF_INET6: u8 = libc::AF_INET6 as u8;
/// Families of the multicast routing caches.
pub(crate) const RTNL_FAMILY_IPMR: u8 = netlink::RTNL_FAMILY_IPMR as u8;
pub(crate) const RTNL_FAMILY_IP6MR: u8 = netlink::RTNL_FAMILY_IP6MR as u8;

pub(crate) const IFF_UP: u32 = libc::IFF_UP as u32;
pub(crate) const IFF_RUNNING: u32 = libc::IFF_RUNNING as u32;
const IFF_ALLMULTI: u32 = libc::IFF_ALLMULTI as u32;
pub(crate) const IFF_LOWER_UP: u32 = libc::IFF_LOWER_UP as u32;

pub(crate) const RT_TABLE_DEFAULT: u32 = netlink::rt_class_t::RT_TABLE_DEFAULT as u32;
pub(crate) const RT_TABLE_MAIN: u32 = netlink::rt_class_t::RT_TABLE_MAIN as u32;
pub(crate) const RT_TABLE_LOCAL: u32 = netlink::rt_class_t::RT_TABLE_LOCAL as u32;

const RTNH_F_DEAD: u8 = netlink::RTNH_F_DEAD as u8;
const RTNH_F_ONLINK: u8 = netlink::RTNH_F_ONLINK as u8;

const RTA_NH_ID: u16 = netlink::rtattr_type_t::RTA_NH_ID as u16;

// `linux/nexthop.h`.
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_GROUP_TYPE: u16 = 3;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP: u16 = 8;
const NHA_FDB: u16 = 11;
const NHA_RES_GROUP: u16 = 12;
const NHA_RES_GROUP_BUCKETS: u16 = 1;
const NEXTHOP_GRP_TYPE_RES: u16 = 1;

const IFLA_IFNAME: u16 = netlink::IFLA_IFNAME as u16;
const IFLA_ADDRESS: u16 = netlink::IFLA_ADDRESS as u16;
const IFLA_LINK: u16 = netlink::IFLA_LINK as u16;
pub(super) const IFLA_MASTER: u16 = netlink::IFLA_MASTER as u16;
pub(super) const IFLA_MTU: u16 = netlink::IFLA_MTU as u16;
/// In `RTM_DELLINK`: the namespace that the interface moved to.
const IFLA_NEW_NETNSID: u16 = netlink::IFLA_NEW_NETNSID as u16;
/// Kind of device, with its own attributes.
const IFLA_LINKINFO: u16 = netlink::IFLA_LINKINFO as u16;
const IFLA_INFO_KIND: u16 = netlink::IFLA_INFO_KIND as u16;
const IFLA_INFO_DATA: u16 = netlink::IFLA_INFO_DATA as u16;
const IFLA_VRF_TABLE: u16 = netlink::IFLA_VRF_TABLE as u16;
const IFLA_VLAN_ID: u16 = netlink::IFLA_VLAN_ID as u16;
const IFLA_VLAN_PROTOCOL: u16 = netlink::IFLA_VLAN_PROTOCOL as u16;
const IFLA_VLAN_EGRESS_QOS: u16 = netlink::IFLA_VLAN_EGRESS_QOS as u16;
/// Present if [`IFLA_LINK`] is an interface of another namespace.
const IFLA_LINK_NETNSID: u16 = netlink::IFLA_LINK_NETNSID as u16;
const IFLA_ALLMULTI: u16 = netlink::IFLA_ALLMULTI as u16;

const FRA_IIFNAME: u16 = netlink::FRA_IIFNAME as u16;
const FRA_GOTO: u16 = netlink::FRA_GOTO as u16;
const FRA_PRIORITY: u16 = netlink::FRA_PRIORITY as u16;
const FRA_FWMARK: u16 = netlink::FRA_FWMARK as u16;
const FRA_FLOW: u16 = netlink::FRA_FLOW as u16;
const FRA_TUN_ID: u16 = netlink::FRA_TUN_ID as u16;
const FRA_SUPPRESS_IFGROUP: u16 = netlink::FRA_SUPPRESS_IFGROUP as u16;
const FRA_SUPPRESS_PREFIXLEN: u16 = netlink::FRA_SUPPRESS_PREFIXLEN as u16;
const FRA_TABLE: u16 = netlink::FRA_TABLE as u16;
const FRA_FWMASK: u16 = netlink::FRA_FWMASK as u16;
const FRA_OIFNAME: u16 = netlink::FRA_OIFNAME as u16;
const FRA_L3MDEV: u16 = netlink::FRA_L3MDEV as u16;
const FRA_UID_RANGE: u16 = netlink::FRA_UID_RANGE as u16;
const FRA_PROTOCOL: u16 = netlink::FRA_PROTOCOL as u16;
/// `-1` in [`FRA_SUPPRESS_PREFIXLEN`] and [`FRA_SUPPRESS_IFGROUP`]: nothing is suppressed.
const SUPPRESS_NOTHING: u32 = u32::MAX;
const FIB_RULE_INVERT: u32 = netlink::FIB_RULE_INVERT;
const FR_ACT_TO_TBL: u8 = netlink::FR_ACT_TO_TBL as u8;
const FR_ACT_NOP: u8 = netlink::FR_ACT_NOP as u8;

/// Reason why a message was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Its length leads out of the buffer, or is less than a header.
    #[error("a message of {length} bytes where {left} are left")]
    Length {
        /// Length in the message.
        length: usize,
        /// Bytes left in the buffer.
        left: usize,
    },
    /// It ends before its fixed part does.
    #[error("message type {kind}: {length} bytes, its fixed part has {expected}")]
    Short {
        /// `nlmsg_type`.
        kind: u16,
        /// Bytes present.
        length: usize,
        /// Bytes required.
        expected: usize,
    },
    /// An attribute leads out of the message, or its length does not fit its type.
    #[error("message type {kind}: attribute {attribute} malformed")]
    Attribute {
        /// `nlmsg_type`.
        kind: u16,
        /// `nla_type`, 0 if the attribute's own header is malformed.
        attribute: u16,
    },
    /// An impossible value: a prefix longer than an address, a group without members.
    #[error("message type {kind}: {what}")]
    Value {
        /// `nlmsg_type`.
        kind: u16,
        /// Description of the value.
        what: &'static str,
    },
}

/// A message with its payload still to be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`.
    pub sequence: u32,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;

/// The messages of a buffer, one after the other.
#[derive(Clone, Debug)]
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Raw<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let buffer = self.0;
        if buffer.is_empty() {
            return None;
        }
        let length = u32_at(buffer, 0).map_or(0, |length| length as usize);
        if length < HEADER || length > buffer.len() {
            self.0 = &[];
            return Some(Err(Malformed::Length { length, left: buffer.len() }));
        }
        self.0 = buffer.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok(Raw {
            kind: u16_at(buffer, 4).unwrap_or_default(),
            flags: u16_at(buffer, 6).unwrap_or_default(),
            sequence: u32_at(buffer, 8).unwrap_or_default(),
            payload: &buffer[HEADER..length],
        }))
    }
}

/// A next hop, as messages describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The interface's index; 0: not given.
    pub interface: u32,
    /// The gateway.
    pub via: Option<IpAddr>,
    /// 1 to 65536; the kernel sends one less.
    pub weight: u32,
    /// `RTNH_F_ONLINK`.
    pub on_link: bool,
    /// True if packets have to be encapsulated first: MPLS, SRv6.
    pub encap: bool,
}

/// The next hops of one route. Nearly every route has one.
pub type Hops = SmallVec<[Hop; 1]>;

/// `RTM_NEWROUTE`, `RTM_DELROUTE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMessage {
    /// The destination; host bits are clear.
    pub prefix: IpNet,
    /// The routing table.
    pub table: u32,
    /// The TOS or DSCP that packets must have; 0: any.
    pub tos: u8,
    /// Origin of the route, `RTPROT_*`.
    pub protocol: u8,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `RTN_*`.
    pub kind: u8,
    /// `RTA_PRIORITY`: the smallest wins.
    pub metric: u32,
    /// Preferred source address of the machine's own packets.
    pub source: Option<IpAddr>,
    /// True if it is only for packets from certain sources.
    pub from: bool,
    /// Its nexthop object; `hops` is empty then.
    pub nexthop: Option<u32>,
    /// Its next hops.
    pub hops: Hops,
    /// A bit for each of the first 64 hops that the kernel marks as dead.
    pub dead: u64,
    /// True for a cache entry, which is not a route.
    pub cloned: bool,
    /// True if it limits the length of packets.
    pub has_mtu: bool,
}

impl RouteMessage {
    /// Makes a route that holds for some packets only, or limits their length, one of the kernel: its packets are the
    /// host's, and so are those of others to its prefix. So are packets to broadcast addresses, which otherwise follow
    /// from an interface's addresses.
    pub(super) fn leave_to_kernel(&mut self) {
        if self.kind == RTN_BROADCAST {
            self.protocol = libc::RTPROT_UNSPEC;
        }
        let is_partial = self.tos != 0 || self.from;
        if self.kind != RTN_UNICAST || !(is_partial || self.has_mtu) {
            return;
        }
        if is_partial {
            // Before the prefix's routes for all packets.
            (self.tos, self.from, self.metric) = (0, false, 0);
        }
        let by_kernel = Hop { interface: 0, via: None, weight: 1, on_link: false, encap: true };
        (self.nexthop, self.dead) = (None, 0);
        self.hops = Hops::from_iter([by_kernel]);
    }
}

/// An entry of a multicast routing cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastMessage {
    /// The sender; the unspecified address: any.
    pub source: IpAddr,
    /// The group.
    pub group: IpAddr,
    /// The index of the incoming interface; `None`: not resolved yet.
    pub from: Option<u32>,
    /// The indexes of the outgoing interfaces, each with the TTL that a packet must exceed.
    pub to: Vec<(u32, u8)>,
}

/// A nexthop object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nexthop {
    /// A single next hop.
    Single(Hop),
    /// Packets are dropped silently.
    Blackhole,
    /// Several objects by number and weight.
    Group {
        /// The members and their weights, 1 to 65536.
        members: Vec<(u32, u32)>,
        /// The number of buckets of a resilient group.
        buckets: Option<u16>,
    },
    /// An object of a bridge, not for routes.
    Bridge,
}

/// `RTM_NEWNEXTHOP`, `RTM_DELNEXTHOP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NexthopMessage {
    /// Its number.
    pub id: u32,
    /// The object; without meaning in a deletion.
    pub nexthop: Nexthop,
}

/// `RTM_NEWLINK`, `RTM_DELLINK`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkMessage {
    /// The interface's index.
    pub index: u32,
    /// Its name.
    pub name: Option<String>,
    /// `IFF_*`.
    pub flags: u32,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// True if it receives all multicasts, requested for example by a multicast routing daemon.
    pub all_multicast: bool,
    /// The routing table of a VRF device.
    pub table: Option<u32>,
    /// The index of the bridge, bond or VRF device that it is in.
    pub master: Option<u32>,
    /// Of a MACVLAN device: the index of the interface that it is on, and its MAC.
    pub macvlan: Option<(u32, MacAddr)>,
    /// Properties of a VLAN device.
    pub vlan: Option<VlanDevice>,
    /// Its MAC.
    pub mac: Option<MacAddr>,
    /// True if it was removed here because it has moved to another network namespace.
    pub moved: bool,
}

/// A VLAN device of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanDevice {
    /// The index of the interface that it is on; `None`: one of another namespace.
    pub parent: Option<u32>,
    /// The Ethertype of its tag.
    pub protocol: u16,
    /// Its VLAN identifier.
    pub id: u16,
    /// True if it gives frames priorities (`egress-qos-map`).
    pub marks: bool,
}

/// `RTM_NEWADDR`, `RTM_DELADDR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressMessage {
    /// The interface's index.
    pub index: u32,
    /// The address with the length of its network; with the full length if it is one end of a
    /// point-to-point link or has no network of its own.
    pub address: IpNet,
    /// The prefix length by which the kernel distinguishes addresses.
    pub length: u8,
    /// True if duplicate address detection failed: not to be used.
    pub refused: bool,
}

/// `RTM_NEWNEIGH`, `RTM_DELNEIGH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourMessage {
    /// The interface's index.
    pub index: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC.
    pub mac: Option<MacAddr>,
    /// `NUD_*`.
    pub state: u16,
    /// True for an address that the machine answers for, which is not a neighbour.
    pub proxy: bool,
}

/// `RTM_NEWRULE`, `RTM_DELRULE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleMessage {
    /// True for IPv6, false for IPv4.
    pub ipv6: bool,
    /// Rules are tried in ascending order.
    pub priority: u32,
    /// The table to look up; `None`: the rule does nothing.
    pub table: Option<u32>,
    /// Reason why it cannot be followed: it does not apply to all packets, or does not lead to a
    /// table.
    pub unsupported: Option<&'static str>,
}

/// A parsed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Link(LinkMessage),
    Address(AddressMessage),
    Neighbour(NeighbourMessage),
    Rule(RuleMessage),
    Route(RouteMessage),
    Nexthop(NexthopMessage),
    /// A message of a type or family that is not used.
    Other,
}

impl Message {
    /// Parses a message, if its type is known.
    pub fn parse(raw: &Raw<'_>) -> Result<Self, Malformed> {
        match raw.kind {
            RTM_NEWROUTE | RTM_DELROUTE => parse_route(raw),
            RTM_NEWNEXTHOP | RTM_DELNEXTHOP => parse_nexthop(raw),
            RTM_NEWLINK | RTM_DELLINK => parse_link(raw),
            RTM_NEWADDR | RTM_DELADDR => parse_address(raw),
            RTM_NEWNEIGH | RTM_DELNEIGH => parse_neighbour(raw),
            RTM_NEWRULE | RTM_DELRULE => parse_rule(raw),
            _ => Ok(Self::Other),
        }
    }

    /// Returns true for a type of message that reports a removal.
    pub fn is_delete(kind: u16) -> bool {
        matches!(
            kind,
            RTM_DELLINK | RTM_DELADDR | RTM_DELROUTE | RTM_DELNEIGH | RTM_DELRULE | RTM_DELNEXTHOP
        )
    }
}

/// Returns the error number of an [`NLMSG_ERROR`], 0 for an acknowledgement.
pub(crate) fn error_number(raw: &Raw<'_>) -> Result<i32, Malformed> {
    let number = raw.payload.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
    let short = Malformed::Short { kind: raw.kind, length: raw.payload.len(), expected: 4 };
    number.map(i32::saturating_neg).ok_or(short)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A known attribute, with readers for its value that return a uniform error.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'a> {
    message: u16,
    pub(super) kind: u16,
    pub(super) value: &'a [u8],
}

impl Attribute<'_> {
    fn bad(&self) -> Malformed {
        Malformed::Attribute { kind: self.message, attribute: self.kind }
    }

    pub(super) fn u16(&self) -> Result<u16, Malformed> {
        self.value.try_into().map(u16::from_ne_bytes).map_err(|_| self.bad())
    }

    pub(super) fn u32(&self) -> Result<u32, Malformed> {
        self.value.try_into().map(u32::from_ne_bytes).map_err(|_| self.bad())
    }

    pub(super) fn u64(&self) -> Result<u64, Malformed> {
        self.value.try_into().map(u64::from_ne_bytes).map_err(|_| self.bad())
    }

    /// Returns the address, of the family implied by the length.
    fn address(&self) -> Result<IpAddr, Malformed> {
        address(self.value).ok_or_else(|| self.bad())
    }

    /// `struct rtvia`: a family and an address of that family.
    fn via(&self) -> Result<IpAddr, Malformed> {
        let family = u16_at(self.value, 0).ok_or_else(|| self.bad())?;
        let address = address(&self.value[2..]).ok_or_else(|| self.bad())?;
        let fits = family == u16::from(if address.is_ipv4() { AF_INET } else { AF_INET6 });
        fits.then_some(address).ok_or_else(|| self.bad())
    }

    fn mac(&self) -> Option<MacAddr> {
        self.value.try_into().ok().map(MacAddr)
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        16 => bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}

/// Calls `each` for every attribute.
pub(super) fn attributes<'a>(
    message: u16,
    bytes: &'a [u8],
    mut each: impl FnMut(Attribute<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    for attribute in NlasIterator::new(bytes) {
        let attribute: NlaBuffer<&[u8]> =
            attribute.map_err(|_| Malformed::Attribute { kind: message, attribute: 0 })?;
        let length = usize::from(attribute.length());
        let kind = attribute.kind();
        let value = attribute.into_inner().get(4..length).unwrap_or(&[]);
        each(Attribute { message, kind, value })?;
    }
    Ok(())
}

/// Splits a message into its fixed part and its attributes.
fn split<'a>(raw: &Raw<'a>, fixed: usize) -> Result<(&'a [u8], &'a [u8]), Malformed> {
    let length = raw.payload.len();
    raw.payload.split_at_checked(fixed).ok_or(Malformed::Short {
        kind: raw.kind,
        length,
        expected: fixed,
    })
}

impl MulticastMessage {
    /// Parses `RTM_NEWROUTE` of a multicast routing cache; `None` for anything else.
    pub(crate) fn parse(raw: &Raw<'_>) -> Result<Option<Self>, Malformed> {
        let (fixed, rest) = split(raw, 12)?;
        let unspecified: IpAddr = match fixed[0] {
            RTNL_FAMILY_IPMR => Ipv4Addr::UNSPECIFIED.into(),
            RTNL_FAMILY_IP6MR => Ipv6Addr::UNSPECIFIED.into(),
            _ => return Ok(None),
        };
        if raw.kind != RTM_NEWROUTE {
            return Ok(None);
        }
        let (mut source, mut group, mut from, mut to) =
            (unspecified, unspecified, None, Vec::new());
        attributes(raw.kind, rest, |attribute| {
            match attribute.kind {
                RTA_SRC => source = attribute.address()?,
                RTA_DST => group = attribute.address()?,
                RTA_IIF => from = Some(attribute.u32()?),
                RTA_MULTIPATH => to = interfaces(&attribute)?,
                _ => {}
            }
            Ok(())
        })?;
        let families = [source, group].map(|address| address.is_ipv4());
        if families != [unspecified.is_ipv4(); 2] {
            return Err(Malformed::Value {
                kind: raw.kind,
                what: "an address of the other family",
            });
        }
        if !group.is_multicast() {
            return Err(Malformed::Value { kind: raw.kind, what: "a group that is none" });
        }
        Ok(Some(Self { source, group, from, to }))
    }
}

/// Calls `each` for every `struct rtnexthop` of [`RTA_MULTIPATH`]: its flags, its `rtnh_hops`, its
/// interface, and the bytes of its own attributes.
fn rtnexthops<'a>(
    attribute: &Attribute<'a>,
    mut each: impl FnMut(u8, u8, u32, &'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut bytes = attribute.value;
    while !bytes.is_empty() {
        let length = usize::from(u16_at(bytes, 0).ok_or_else(|| attribute.bad())?);
        if length < 8 || length > bytes.len() {
            return Err(attribute.bad());
        }
        each(bytes[2], bytes[3], u32_at(bytes, 4).unwrap_or_default(), &bytes[8..length])?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(())
}

/// [`RTA_MULTIPATH`] of a multicast route, with the TTL in place of the weight.
fn interfaces(attribute: &Attribute<'_>) -> Result<Vec<(u32, u8)>, Malformed> {
    let mut interfaces = Vec::new();
    rtnexthops(attribute, |_, ttl, interface, _| {
        interfaces.push((interface, ttl));
        Ok(())
    })?;
    Ok(interfaces)
}

/// `struct rtmsg` and its attributes.
fn parse_route(raw: &Raw<'_>) -> Result<Message, Malformed> {
    let (fixed, rest) = split(raw, 12)?;
    let family = fixed[0];
    if family != AF_INET && family != AF_INET6 {
        return Ok(Message::Other);
    }
    let flags = u32_at(fixed, 8).unwrap_or_default();
    let mut destination = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let mut route = RouteMessage {
        prefix: IpNet::V4(Ipv4Net::default()),
        table: u32::from(fixed[4]),
        tos: fixed[3],
        protocol: fixed[5],
        scope: fixed[6],
        kind: fixed[7],
        metric: 0,
        source: None,
        from: fixed[2] != 0,
        nexthop: None,
        hops: Hops::new(),
        dead: 0,
        cloned: flags & RTM_F_CLONED != 0,
        has_mtu: false,
    };
    // `rtm_flags` has the flags of the hop in its low byte when there is only one.
    let mut single = Hop {
        interface: 0,
        via: None,
        weight: 1,
        on_link: flags as u8 & RTNH_F_ONLINK != 0,
        encap: false,
    };
    let mut several = None;
    attributes(raw.kind, rest, |attribute| {
        match attribute.kind {
            RTA_DST => destination = attribute.address()?,
            RTA_OIF => single.interface = attribute.u32()?,
            RTA_PRIORITY => route.metric = attribute.u32()?,
            RTA_TABLE => route.table = attribute.u32()?,
            RTA_GATEWAY => single.via = Some(attribute.address()?),
            RTA_VIA => single.via = Some(attribute.via()?),
            RTA_PREFSRC => route.source = Some(attribute.address()?),
            RTA_MULTIPATH => several = Some(attribute),
            RTA_NH_ID => route.nexthop = Some(attribute.u32()?),
            RTA_ENCAP => single.encap = true,
            RTA_SRC => route.from = true,
            RTA_METRICS => attributes(raw.kind, attribute.value, |metric| {
                route.has_mtu |= metric.kind == RTAX_MTU;
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    route.prefix = prefix(raw.kind, family, destination, fixed[1])?;
    if route.nexthop.is_some() {
        // The kernel sends the object's hops too; they follow from the object.
    } else if let Some(several) = several {
        multipath(&several, &mut route)?;
    } else if single.interface != 0 || single.via.is_some() {
        route.dead = u64::from(flags as u8 & RTNH_F_DEAD);
        route.hops.push(single);
    }
    Ok(Message::Route(route))
}

/// Returns the prefix of an address and a length; bits after the length must be clear.
fn prefix(kind: u16, family: u8, address: IpAddr, length: u8) -> Result<IpNet, Malformed> {
    if address.is_ipv4() != (family == AF_INET) {
        return Err(Malformed::Value { kind, what: "a destination of the other family" });
    }
    let net = IpNet::new(address, length)
        .map_err(|_| Malformed::Value { kind, what: "a prefix longer than an address" })?;
    if net.trunc() != net {
        return Err(Malformed::Value { kind, what: "a prefix with host bits" });
    }
    Ok(net)
}

/// [`RTA_MULTIPATH`]: the hops, each with its own attributes.
fn multipath(attribute: &Attribute<'_>, route: &mut RouteMessage) -> Result<(), Malformed> {
    rtnexthops(attribute, |flags, hops, interface, own| {
        let mut hop = Hop {
            interface,
            via: None,
            weight: u32::from(hops) + 1,
            on_link: flags & RTNH_F_ONLINK != 0,
            encap: false,
        };
        attributes(attribute.message, own, |attribute| {
            match attribute.kind {
                RTA_GATEWAY => hop.via = Some(attribute.address()?),
                RTA_VIA => hop.via = Some(attribute.via()?),
                RTA_ENCAP => hop.encap = true,
                _ => {}
            }
            Ok(())
        })?;
        if flags & RTNH_F_DEAD != 0 && route.hops.len() < 64 {
            route.dead |= 1 << route.hops.len();
        }
        route.hops.push(hop);
        Ok(())
    })?;
    if route.hops.is_empty() {
        return Err(attribute.bad());
    }
    Ok(())
}

/// `struct nhmsg` and its attributes.
fn parse_nexthop(raw: &Raw<'_>) -> Result<Message, Malformed> {
    let (fixed, rest) = split(raw, 8)?;
    let flags = u32_at(fixed, 4).unwrap_or_default();
    let on_link = flags as u8 & RTNH_F_ONLINK != 0;
    let mut hop = Hop { interface: 0, via: None, weight: 1, on_link, encap: false };
    let (mut id, mut members, mut buckets) = (None, None, None);
    let (mut resilient, mut blackhole, mut bridge) = (false, false, false);
    attributes(raw.kind, rest, |attribute| {
        match attribute.kind {
            NHA_ID => id = Some(attribute.u32()?),
            NHA_GROUP => members = Some(group_members(&attribute)?),
            NHA_GROUP_TYPE => resilient = attribute.u16()? == NEXTHOP_GRP_TYPE_RES,
            NHA_RES_GROUP => buckets = resilient_buckets(&attribute)?,
            NHA_BLACKHOLE => blackhole = true,
            NHA_OIF => hop.interface = attribute.u32()?,
            NHA_GATEWAY => hop.via = Some(attribute.address()?),
            NHA_ENCAP => hop.encap = true,
            NHA_FDB => bridge = true,
            _ => {}
        }
        Ok(())
    })?;
    let value = |what| Malformed::Value { kind: raw.kind, what };
    let id = id.filter(|&id| id != 0).ok_or_else(|| value("a nexthop object without a number"))?;
    let nexthop = match members {
        _ if bridge => Nexthop::Bridge,
        Some(members) => Nexthop::Group { members, buckets: buckets.filter(|_| resilient) },
        None if blackhole => Nexthop::Blackhole,
        None if hop.interface == 0 && hop.via.is_none() && raw.kind == RTM_NEWNEXTHOP => {
            return Err(value("a nexthop object that leads nowhere"));
        }
        None => Nexthop::Single(hop),
    };
    Ok(Message::Nexthop(NexthopMessage { id, nexthop }))
}

/// `struct nexthop_grp` for each member; `weight_high` exists since Linux 6.12 and was zero before.
fn group_members(attribute: &Attribute<'_>) -> Result<Vec<(u32, u32)>, Malformed> {
    let (members, rest) = attribute.value.as_chunks::<8>();
    if members.is_empty() || !rest.is_empty() {
        return Err(attribute.bad());
    }
    let member = |bytes: &[u8; 8]| {
        let [a, b, c, d, low, high, _, _] = *bytes;
        (u32::from_ne_bytes([a, b, c, d]), u32::from(u16::from_le_bytes([low, high])) + 1)
    };
    Ok(members.iter().map(member).collect())
}

fn resilient_buckets(attribute: &Attribute<'_>) -> Result<Option<u16>, Malformed> {
    let mut buckets = None;
    attributes(attribute.message, attribute.value, |attribute| {
        if attribute.kind == NHA_RES_GROUP_BUCKETS {
            buckets = Some(attribute.u16()?);
        }
        Ok(())
    })?;
    Ok(buckets)
}

/// `struct ifinfomsg` and its attributes.
fn parse_link(raw: &Raw<'_>) -> Result<Message, Malformed> {
    let (fixed, rest) = split(raw, 16)?;
    // Bridges report their ports by messages of family AF_BRIDGE.
    if fixed[0] != AF_UNSPEC {
        return Ok(Message::Other);
    }
    let mut link = LinkMessage {
        index: u32_at(fixed, 4).unwrap_or_default(),
        name: None,
        flags: u32_at(fixed, 8).unwrap_or_default(),
        mtu: None,
        all_multicast: u32_at(fixed, 8).is_some_and(|flags| flags & IFF_ALLMULTI != 0),
        table: None,
        master: None,
        macvlan: None,
        vlan: None,
        mac: None,
        moved: false,
    };
    let (mut kind, mut parent, mut elsewhere) = (LinkKind::Other, None, false);
    attributes(raw.kind, rest, |attribute| {
        match attribute.kind {
            IFLA_IFNAME => {
                let name = attribute.value.strip_suffix(b"\0").unwrap_or(attribute.value);
                link.name = Some(String::from_utf8_lossy(name).into_owned());
            }
            IFLA_MTU => link.mtu = Some(attribute.u32()?),
            // The flag covers only requests by commands; `IFLA_ALLMULTI` counts those of daemons too.
            IFLA_NEW_NETNSID => link.moved = true,
            IFLA_LINKINFO => kind = link_kind(raw.kind, attribute.value)?,
            IFLA_LINK => parent = Some(attribute.u32()?),
            IFLA_LINK_NETNSID => elsewhere = true,
            IFLA_MASTER => link.master = Some(attribute.u32()?).filter(|master| *master != 0),
            IFLA_ADDRESS => link.mac = attribute.value.try_into().ok().map(MacAddr),
            IFLA_ALLMULTI => link.all_multicast |= attribute.u32()? > 0,
            _ => {}
        }
        Ok(())
    })?;
    match kind {
        LinkKind::Vrf { table } => link.table = table,
        LinkKind::Macvlan => link.macvlan = parent.zip(link.mac),
        LinkKind::Vlan { protocol, id, marks } => {
            let parent = parent.filter(|_| !elsewhere);
            link.vlan = id.map(|id| VlanDevice { parent, protocol, id, marks });
        }
        LinkKind::Other => {}
    }
    Ok(Message::Link(link))
}

/// Kind of an interface.
enum LinkKind {
    /// A VRF device, with its routing table.
    Vrf { table: Option<u32> },
    /// A MACVLAN device.
    Macvlan,
    /// A VLAN device, with its tag.
    Vlan { protocol: u16, id: Option<u16>, marks: bool },
    /// Any other.
    Other,
}

/// The kind in `IFLA_LINKINFO`.
fn link_kind(message: u16, info: &[u8]) -> Result<LinkKind, Malformed> {
    let mut kind = LinkKind::Other;
    attributes(message, info, |attribute| {
        match (attribute.kind, &mut kind) {
            (IFLA_INFO_KIND, kind) => {
                *kind = match attribute.value.strip_suffix(b"\0").unwrap_or(attribute.value) {
                    b"vrf" => LinkKind::Vrf { table: None },
                    b"macvlan" => LinkKind::Macvlan,
                    b"vlan" => LinkKind::Vlan { protocol: ETHERTYPE_VLAN, id: None, marks: false },
                    _ => LinkKind::Other,
                };
            }
            // Other devices use the same numbers with other meanings.
            (IFLA_INFO_DATA, LinkKind::Vrf { table }) => {
                attributes(message, attribute.value, |data| {
                    if data.kind == IFLA_VRF_TABLE {
                        *table = Some(data.u32()?);
                    }
                    Ok(())
                })?;
            }
            (IFLA_INFO_DATA, LinkKind::Vlan { protocol, id, marks }) => {
                attributes(message, attribute.value, |data| {
                    match data.kind {
                        IFLA_VLAN_ID => *id = Some(data.u16()?),
                        // In network byte order.
                        IFLA_VLAN_PROTOCOL => *protocol = u16::from_be(data.u16()?),
                        IFLA_VLAN_EGRESS_QOS => *marks = !data.value.is_empty(),
                        _ => {}
                    }
                    Ok(())
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(kind)
}

/// `struct ifaddrmsg` and its attributes.
fn parse_address(raw: &Raw<'_>) -> Result<Message, Malformed> {
    let (fixed, rest) = split(raw, 8)?;
    let (family, length) = (fixed[0], fixed[1]);
    if family != AF_INET && family != AF_INET6 {
        return Ok(Message::Other);
    }
    let index = u32_at(fixed, 4).unwrap_or_default();
    let mut flags = u32::from(fixed[2]);
    let (mut local, mut peer) = (None, None);
    attributes(raw.kind, rest, |attribute| {
        match attribute.kind {
            IFA_LOCAL => local = Some(attribute.address()?),
            IFA_ADDRESS => peer = Some(attribute.address()?),
            IFA_FLAGS => flags = attribute.u32()?,
            _ => {}
        }
        Ok(())
    })?;
    let value = |what| Malformed::Value { kind: raw.kind, what };
    let own = local.or(peer).ok_or_else(|| value("an address message without an address"))?;
    if own.is_ipv4() != (family == AF_INET) {
        return Err(value("an address of the other family"));
    }
    let full = if own.is_ipv4() { 32 } else { 128 };
    let peer_differs = peer.is_some_and(|peer| peer != own);
    let used = if peer_differs || flags & IFA_F_NOPREFIXROUTE != 0 { full } else { length };
    let address = IpNet::new(own, used).map_err(|_| value("a prefix longer than an address"))?;
    let refused = flags & IFA_F_DADFAILED != 0;
    Ok(Message::Address(AddressMessage { index, address, length, refused }))
}

/// `struct ndmsg` and its attributes.
fn parse_neighbour(raw: &Raw<'_>) -> Result<Message, Malformed> {
    let (fixed, rest) = split(raw, 12)?;
    if fixed[0] != AF_INET && fixed[0] != AF_INET6 {
        return Ok(Message::Other);
    }
    let (mut address, mut mac) = (None, None);
    attributes(raw.kind, rest, |attribute| {
        match attribute.kind {
            NDA_DST => address = Some(attribute.address()?),
            // Links other than Ethernet have addresses of other lengths.
            NDA_LLADDR => mac = attribute.mac(),
            _ => {}
        }
        Ok(())
    })?;
    let Some(address) = address else {
        return Err(Malformed::Value { kind: raw.kind, what: "a neighbour without an address" });
    };
    Ok(Message::Neighbour(NeighbourMessage {
        index: u32_at(fixed, 4).unwrap_or_default(),
        address,
        mac,
        state: u16_at(fixed, 8).unwrap_or_default(),
        proxy: fixed[10] & NTF_PROXY != 0,
    }))
}

/// `struct fib_rule_hdr` and its attributes.
fn parse_rule(raw: &Raw<'_>) -> Result<Message, Malformed> {
    let (fixed, rest) = split(raw, 12)?;
    if fixed[0] != AF_INET && fixed[0] != AF_INET6 {
        return Ok(Message::Other);
    }
    let (action, flags) = (fixed[7], u32_at(fixed, 8).unwrap_or_default());
    let mut table = u32::from(fixed[4]);
    let (mut priority, mut of_vrfs) = (0, false);
    let mut unsupported = match (fixed[1], fixed[2], fixed[3]) {
        _ if flags & FIB_RULE_INVERT != 0 => Some("not"),
        (1.., _, _) => Some("to"),
        (_, 1.., _) => Some("from"),
        (_, _, 1..) => Some("tos"),
        _ if action != FR_ACT_TO_TBL && action != FR_ACT_NOP => Some("an action other than lookup"),
        _ => None,
    };
    attributes(raw.kind, rest, |attribute| {
        let refused = match attribute.kind {
            FRA_PRIORITY => {
                priority = attribute.u32()?;
                None
            }
            FRA_TABLE => {
                table = attribute.u32()?;
                None
            }
            FRA_SUPPRESS_PREFIXLEN | FRA_SUPPRESS_IFGROUP => {
                (attribute.u32()? != SUPPRESS_NOTHING).then_some("suppress")
            }
            // It concerns packets of VRFs, whose tables are looked up without rules.
            FRA_L3MDEV => {
                of_vrfs |= attribute.value.iter().any(|&byte| byte != 0);
                None
            }
            FRA_FWMARK | FRA_FWMASK => {
                attribute.value.iter().any(|&byte| byte != 0).then_some("fwmark")
            }
            FRA_IIFNAME => Some("iif"),
            FRA_OIFNAME => Some("oif"),
            FRA_GOTO => Some("goto"),
            FRA_UID_RANGE => Some("uidrange"),
            FRA_TUN_ID => Some("tun_id"),
            // Realms; protocol that installed the rule; padding.
            FRA_FLOW | FRA_PROTOCOL | 18 => None,
            // Destination and source, which the header contains; any attribute after FRA_PROTOCOL
            // restricts the rule to some packets.
            1 | 2 => None,
            22.. => Some("a selector of ports, protocols or newer kernels"),
            _ => None,
        };
        unsupported = unsupported.or(refused);
        Ok(())
    })?;
    let table = (action == FR_ACT_TO_TBL && !of_vrfs).then_some(table);
    let ipv6 = fixed[0] == AF_INET6;
    Ok(Message::Rule(RuleMessage { ipv6, priority, table, unsupported }))
}

#[cfg(test)]
pub(crate) mod tests;

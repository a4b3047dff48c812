//! Rules that a port's device holds (`rte_flow`): packets that it drops by itself, brings to one receive queue, or
//! spreads over several (the action RSS), and their counts.
//!
//! The rules of an AF_XDP port for control traffic are those of its XDP program ([`super::control`]). Such a port has
//! no others: its driver has no rte_flow.
//!
//! A rule belongs to its port, which removes all of its rules from the device before it stops. A [`FlowRule`]
//! identifies one: it cannot be copied, and a port without this rule returns an error.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;
use wire::MacAddr;
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, VlanTag};
use wire::icmp::IcmpHeader;
use wire::ip::{
    IPV4_MORE_FRAGMENTS, IPV4_OFFSET_BITS, Ipv4Header, Ipv6Header, PROTOCOL_TCP, PROTOCOL_UDP,
};
use wire::l4::{TcpHeader, UdpHeader};
use wire::pattern::{Addresses, Frames, Link, Masked, Pattern, Tag, Tags, Traffic, Upper};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::{OpenPort, Port};
use crate::Errno;
use crate::error::dpdk_errno;

/// RFC 9260.
const PROTOCOL_SCTP: u8 = 132;

/// Drivers whose devices refuse to match fragment bits of the IPv4 header, and find headers behind it in packets that
/// are no fragments only: the kernel's flower classifier reads none of a fragment, and the devices of the others have
/// a packet type for fragments.
const ONLY_WHOLE: [&str; 4] = ["net_tap", "net_i40e", "net_ice", "net_iavf"];

/// Drivers that refuse the bits of tags ([`Bits::tags`]), whose devices find no further tag where an Ethertype is
/// compared: the kernel's classifier compares the Ethertype behind the tags that it is given.
const EXACT_ETHERTYPES: [&str; 1] = ["net_tap"];

/// A rule in the device of its port.
#[derive(Debug, PartialEq, Eq)]
pub struct FlowRule {
    number: u64,
    /// True if the device counts its packets.
    is_counted: bool,
}

/// Counters of the packets that matched a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Number of packets.
    pub packets: u64,
    /// Their bytes, in frames as the device counts them; `None`: it does not count bytes.
    pub bytes: Option<u64>,
}

/// Error of a device that refuses a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRefusal {
    errno: Errno,
    message: Option<String>,
}

impl FlowRefusal {
    /// Returns true if the driver supports no rules at all.
    pub fn is_for_good(&self) -> bool {
        self.errno == Errno::ENOSYS
    }
}

impl fmt::Display for FlowRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, message } = self;
        match message {
            _ if self.is_for_good() => write!(f, "its driver has no rte_flow"),
            Some(message) => write!(f, "{message} ({errno})"),
            None => write!(f, "{errno}"),
        }
    }
}

impl FlowRule {
    /// Returns true if the device counts the packets that match this rule.
    pub fn is_counted(&self) -> bool {
        self.is_counted
    }
}

/// DPDK's handle of a rule.
#[derive(Clone, Copy, Debug)]
struct Handle(NonNull<sys::rte_flow>);

// SAFETY: a handle of a rule, which DPDK accepts on any thread; only one thread at a time has it, by the lock
// of `Rules`.
unsafe impl Send for Handle {}

/// The rules of an open port, by number.
#[derive(Debug, Default)]
pub(super) struct Rules(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    handles: BTreeMap<u64, Handle>,
    next: u64,
}

impl Rules {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all rules from the device of this port, which may have been removed itself.
    pub(super) fn clear(&self, port: u16) {
        for (_, handle) in std::mem::take(&mut self.lock().handles) {
            // A rule that stays in the device is removed when the device is stopped.
            let _ = destroy(port, handle);
        }
    }
}

impl OpenPort {
    fn flow_rules(&self) -> &Rules {
        &self.started.flow_rules
    }
}

impl Port {
    /// Makes the device drop these frames, and count them if it can.
    ///
    /// # Errors
    /// The device's error, if it refuses the rule.
    pub fn add_drop_rule(&self, frames: &Frames) -> Result<FlowRule, FlowRefusal> {
        self.add_rule(frames, Fate::Drop)
    }

    /// Makes the device bring these frames to receive queues, and count them if it can. Of several queues, the device
    /// chooses one by the hash of the flow.
    ///
    /// # Errors
    /// The device's error, if it refuses the rule.
    pub fn add_queue_rule(&self, frames: &Frames, queues: &[u16]) -> Result<FlowRule, FlowRefusal> {
        match queues {
            [queue] => self.add_rule(frames, Fate::Queue(*queue)),
            _ => self.add_rule(frames, Fate::Spread(queues, self.rss_fields())),
        }
    }

    /// Makes the device bring matching packets to its receive queue for control traffic, and count them if it can.
    ///
    /// # Errors
    /// The device's error, if it refuses the rule; or the port has no such queue.
    pub fn add_control_rule(&self, traffic: &Traffic) -> Result<FlowRule, FlowRefusal> {
        if !self.control_queues().rx {
            let message = Some("the port has no receive queue for control traffic".to_owned());
            return Err(FlowRefusal { errno: Errno::ENOENT, message });
        }
        if let Some(program) = self.open.control_program() {
            let refused = |(errno, why)| FlowRefusal { errno, message: Some(why) };
            let number = program.add(traffic).map_err(refused)?;
            return Ok(FlowRule { number, is_counted: true });
        }
        let frames = Frames { link: Link::default(), traffic: *traffic };
        self.add_rule(&frames, Fate::Queue(self.rx_queues() - 1))
    }

    fn add_rule(&self, frames: &Frames, fate: Fate<'_>) -> Result<FlowRule, FlowRefusal> {
        let refused = match self.add_items(&Items::of(frames, Bits::ALL)?, fate) {
            Err(refusal) if !refusal.is_for_good() => refusal,
            outcome => return outcome,
        };
        match Bits::without_change(frames, self.driver()) {
            Some(bits) => self.add_items(&Items::of(frames, bits)?, fate),
            None => Err(refused),
        }
    }

    fn add_items(&self, items: &Items, fate: Fate<'_>) -> Result<FlowRule, FlowRefusal> {
        let mut held = self.open.flow_rules().lock();
        let counted = create(self.id(), items, fate, true);
        let (handle, is_counted) = match counted {
            Ok(handle) => (handle, true),
            Err(refusal) if refusal.is_for_good() => return Err(refusal),
            // Most often the device refuses the pattern; then this is refused as well.
            Err(_) => (create(self.id(), items, fate, false)?, false),
        };
        let number = held.next;
        held.next += 1;
        held.handles.insert(number, handle);
        Ok(FlowRule { number, is_counted })
    }

    /// Removes a rule from the device. The rule stays with this port if the device refuses.
    ///
    /// # Errors
    /// The device's error, with the rule.
    pub fn remove_rule(&self, rule: FlowRule) -> Result<(), (FlowRule, FlowRefusal)> {
        if let Some(program) = self.open.control_program() {
            return match program.remove(rule.number) {
                Some(Ok(())) => Ok(()),
                Some(Err(errno)) => Err((rule, FlowRefusal { errno, message: None })),
                None => Err((rule, unknown())),
            };
        }
        let mut held = self.open.flow_rules().lock();
        let Some(&handle) = held.handles.get(&rule.number) else {
            return Err((rule, unknown()));
        };
        if let Err(refusal) = destroy(self.id(), handle) {
            return Err((rule, refusal));
        }
        held.handles.remove(&rule.number);
        Ok(())
    }

    /// Returns the packets that matched a rule since it was added.
    ///
    /// # Errors
    /// The device does not count them, or the query fails.
    pub fn rule_count(&self, rule: &FlowRule) -> Result<FlowCount, FlowRefusal> {
        if let Some(program) = self.open.control_program() {
            let count = program.count(rule.number).ok_or_else(unknown)?;
            let count = count.map_err(|errno| FlowRefusal { errno, message: None })?;
            return Ok(FlowCount { packets: count.packets, bytes: Some(count.bytes) });
        }
        let held = self.open.flow_rules().lock();
        let Some(&handle) = held.handles.get(&rule.number) else { return Err(unknown()) };
        let actions = [count_action(), end_action()];
        let mut error = sys::rte_flow_error::default();
        let mut count = MaybeUninit::<sys::rte_flow_query_count>::zeroed();
        // SAFETY: the port is open; the rule is one of its rules, as it is among the held ones; the actions
        // end with END, and DPDK writes a count of the action's kind, for which zeros are a value.
        let (result, count) = unsafe {
            let data = count.as_mut_ptr().cast();
            let result = sys::rte_flow_query(
                self.id(),
                handle.0.as_ptr(),
                actions.as_ptr(),
                data,
                &mut error,
            );
            (result, count.assume_init())
        };
        check(result, &error)?;
        if count.hits_set() == 0 {
            return Err(FlowRefusal { errno: Errno::ENOTSUP, message: None });
        }
        let bytes = (count.bytes_set() != 0).then_some(count.bytes);
        Ok(FlowCount { packets: count.hits, bytes })
    }
}

/// Bits that a pattern compares only to rule out what some devices never match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bits {
    /// Those of IPv4 that tell fragments.
    fragments: bool,
    /// Those of rte_flow that tell whether a tag follows.
    tags: bool,
}

impl Bits {
    const ALL: Self = Self { fragments: true, tags: true };

    /// Returns the bits to compare in devices of this driver, if it matches the same packets with fewer of them.
    fn without_change(frames: &Frames, driver: &str) -> Option<Self> {
        let fragments = match &frames.traffic {
            Traffic::Ip(pattern) => !is_same_without_bits(pattern, driver),
            Traffic::EtherType(_) => true,
        };
        let tags = frames.link.tags == Tags::Any || !EXACT_ETHERTYPES.contains(&driver);
        let bits = Self { fragments, tags };
        (bits != Self::ALL).then_some(bits)
    }
}

/// Returns true if devices of this driver match the same packets without the bits that tell fragments.
fn is_same_without_bits(pattern: &Pattern, driver: &str) -> bool {
    // Where a header is not read, its fields are 0 to the kernel's classifier.
    let is_told = match pattern.upper {
        Upper::Any => false,
        Upper::Ports { from, to, .. } => from.value != 0 || to.value != 0,
        Upper::Icmp(kind) => kind != 0,
    };
    pattern.whole && is_told && ONLY_WHOLE.contains(&driver)
}

fn unknown() -> FlowRefusal {
    let message = Some("the port has no such rule".to_owned());
    FlowRefusal { errno: Errno::ENOENT, message }
}

/// Action for the packets of a rule.
#[derive(Clone, Copy, Debug)]
enum Fate<'q> {
    Drop,
    /// They arrive on this receive queue.
    Queue(u16),
    /// They arrive on one of these receive queues, by the hash of these fields in DPDK's bits.
    Spread(&'q [u16], u64),
}

fn count_action() -> sys::rte_flow_action {
    static COUNT: sys::rte_flow_action_count = sys::rte_flow_action_count { id: 0 };
    sys::rte_flow_action { type_: sys::RTE_FLOW_ACTION_TYPE_COUNT, conf: (&raw const COUNT).cast() }
}

fn end_action() -> sys::rte_flow_action {
    sys::rte_flow_action { type_: sys::RTE_FLOW_ACTION_TYPE_END, conf: std::ptr::null() }
}

fn create(port: u16, items: &Items, fate: Fate<'_>, counted: bool) -> Result<Handle, FlowRefusal> {
    let (mut queue, mut rss) =
        (sys::rte_flow_action_queue::default(), sys::rte_flow_action_rss::default());
    let (type_, conf) = match fate {
        Fate::Drop => (sys::RTE_FLOW_ACTION_TYPE_DROP, std::ptr::null()),
        Fate::Queue(index) => {
            queue.index = index;
            (sys::RTE_FLOW_ACTION_TYPE_QUEUE, (&raw const queue).cast())
        }
        Fate::Spread(queues, fields) => {
            // Without a key, the device's own.
            (rss.types, rss.queue) = (fields, queues.as_ptr());
            rss.queue_num = queues.len() as u32;
            (sys::RTE_FLOW_ACTION_TYPE_RSS, (&raw const rss).cast())
        }
    };
    let mut actions = vec![sys::rte_flow_action { type_, conf }, end_action()];
    if counted {
        actions.insert(0, count_action());
    }
    let list = items.list();
    let mut attributes = sys::rte_flow_attr::default();
    attributes.set_ingress(1);
    let mut error = sys::rte_flow_error::default();
    // SAFETY: the port is open; items and actions end with END, and the structures they point to live for the
    // call and have the items' types, see `Spec`, and the actions'; so do the queues of RSS.
    let flow = unsafe {
        sys::rte_flow_create(port, &attributes, list.as_ptr(), actions.as_ptr(), &mut error)
    };
    NonNull::new(flow).map(Handle).ok_or_else(|| refusal(dpdk_errno(), &error))
}

fn destroy(port: u16, handle: Handle) -> Result<(), FlowRefusal> {
    let mut error = sys::rte_flow_error::default();
    // SAFETY: the port is open, and the rule is one of its rules that has not been destroyed: the caller has
    // removed it from the held ones, or does so when this returns, under their lock.
    let result = unsafe { sys::rte_flow_destroy(port, handle.0.as_ptr(), &mut error) };
    check(result, &error)
}

fn check(result: i32, error: &sys::rte_flow_error) -> Result<(), FlowRefusal> {
    if result < 0 { Err(refusal(Errno::from_raw(-result), error)) } else { Ok(()) }
}

fn refusal(errno: Errno, error: &sys::rte_flow_error) -> FlowRefusal {
    let message = NonNull::new(error.message.cast_mut()).map(|text| {
        // SAFETY: drivers return constant C strings.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    });
    FlowRefusal { errno, message }
}

/// A structure of an item: it begins with a header in wire format, and the rest, bits about further headers,
/// is zero. Larger than each of them, and with the strictest alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Spec([u8; 64]);

const _: () = {
    assert!(std::mem::offset_of!(sys::rte_flow_item_ipv4, hdr) == 0);
    assert!(std::mem::offset_of!(sys::rte_flow_item_ipv6, hdr) == 0);
    assert!(std::mem::offset_of!(sys::rte_flow_item_tcp, hdr) == 0);
    assert!(std::mem::offset_of!(sys::rte_flow_item_udp, hdr) == 0);
    assert!(std::mem::offset_of!(sys::rte_flow_item_sctp, hdr) == 0);
    assert!(std::mem::offset_of!(sys::rte_flow_item_icmp, hdr) == 0);
    // A union whose first member is the header.
    assert!(std::mem::offset_of!(sys::rte_flow_item_eth, __bindgen_anon_1) == 0);
    assert!(std::mem::offset_of!(sys::rte_flow_item_vlan, __bindgen_anon_1) == 0);
    assert!(size_of::<sys::rte_flow_item_eth>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_vlan>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_ipv4>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_ipv6>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_tcp>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_udp>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_sctp>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_icmp>() <= size_of::<Spec>());
    assert!(size_of::<sys::rte_flow_item_icmp6>() <= size_of::<Spec>());
};

impl Spec {
    fn of(header: &(impl IntoBytes + Immutable)) -> Self {
        let mut spec = Self([0; 64]);
        let bytes = header.as_bytes();
        spec.0[..bytes.len()].copy_from_slice(bytes);
        spec
    }
}

/// The items of a pattern: Ethernet's, which may be any header, and those after it.
#[derive(Debug)]
struct Items {
    ethernet: Option<(Spec, Spec)>,
    behind: Vec<Item>,
}

impl Items {
    fn of(frames: &Frames, bits: Bits) -> Result<Self, FlowRefusal> {
        let Frames { link, traffic } = frames;
        let (ethertype, above) = match traffic {
            Traffic::Ip(pattern) => (ethertype_of(pattern), packet(pattern, bits)?),
            Traffic::EtherType(ethertype) => (*ethertype, Vec::new()),
        };
        if *link == Link::default() && !above.is_empty() {
            return Ok(Self { ethernet: None, behind: above });
        }
        let (first, mut behind) = match link.tags {
            // The items of the packet behind tell its Ethertype, if there are any.
            Tags::Any => (above.is_empty().then_some(ethertype), Vec::new()),
            Tags::None => (Some(ethertype), Vec::new()),
            Tags::One(tag) => (Some(tag.protocol), vec![vlan(tag, ethertype, false, bits)]),
            Tags::Two(outer, inner) => {
                let tags = vec![
                    vlan(outer, inner.protocol, true, bits),
                    vlan(inner, ethertype, false, bits),
                ];
                (Some(outer.protocol), tags)
            }
        };
        behind.extend(above);
        Ok(Self { ethernet: Some(ethernet(link, first, bits)), behind })
    }

    /// Returns the items in DPDK's form; points into `self`.
    fn list(&self) -> Vec<sys::rte_flow_item> {
        let none = std::ptr::null();
        let bare = |type_| sys::rte_flow_item { type_, spec: none, last: none, mask: none };
        let full = |type_, spec: &Spec, mask: &Spec| sys::rte_flow_item {
            spec: (&raw const *spec).cast(),
            mask: (&raw const *mask).cast(),
            ..bare(type_)
        };
        let ethernet = sys::RTE_FLOW_ITEM_TYPE_ETH;
        let mut list = match &self.ethernet {
            None => vec![bare(ethernet)],
            Some((spec, mask)) => vec![full(ethernet, spec, mask)],
        };
        list.extend(self.behind.iter().map(|(type_, spec, mask)| full(*type_, spec, mask)));
        list.push(bare(sys::RTE_FLOW_ITEM_TYPE_END));
        list
    }
}

/// Returns the Ethernet header of frames, with this Ethertype or any; without tags if their pattern says so.
fn ethernet(link: &Link, ethertype: Option<u16>, bits: Bits) -> (Spec, Spec) {
    let Link { source, destination, tags } = link;
    let any = MacAddr([0; 6]);
    let header = |source, destination, ethertype: u16| {
        Spec::of(&EthernetHeader { source, destination, ethertype: ethertype.into() })
    };
    let whole = |mac: &Option<MacAddr>| MacAddr(if mac.is_some() { [0xff; 6] } else { [0; 6] });
    let spec = header(source.unwrap_or(any), destination.unwrap_or(any), ethertype.unwrap_or(0));
    let type_mask = if ethertype.is_some() { u16::MAX } else { 0 };
    let mut mask = header(whole(source), whole(destination), type_mask);
    if *tags == Tags::None && bits.tags {
        // SAFETY: a mask of Ethernet's item, which is larger than the item and aligned for it, all its bytes set.
        unsafe { sys::shim_flow_eth_tagged(mask.0.as_mut_ptr().cast(), true) };
    }
    (spec, mask)
}

/// Returns the item of a tag, with the Ethertype after it, and another tag or none.
fn vlan(tag: Tag, ethertype: u16, has_more: bool, bits: Bits) -> Item {
    let header = |control: u16, ethertype: u16| {
        Spec::of(&VlanTag { control: control.into(), ethertype: ethertype.into() })
    };
    let Masked { value, mask } = tag.control;
    let (mut spec, mut mask) = (header(value, ethertype), header(mask, u16::MAX));
    if bits.tags {
        // SAFETY: as for Ethernet's item.
        unsafe {
            sys::shim_flow_vlan_more(spec.0.as_mut_ptr().cast(), has_more);
            sys::shim_flow_vlan_more(mask.0.as_mut_ptr().cast(), true);
        }
    }
    (sys::RTE_FLOW_ITEM_TYPE_VLAN, spec, mask)
}

fn ethertype_of(pattern: &Pattern) -> u16 {
    match pattern.addresses {
        Addresses::Ip4 { .. } => ETHERTYPE_IPV4,
        Addresses::Ip6 { .. } => ETHERTYPE_IPV6,
    }
}

/// Returns the items of an IP packet.
fn packet(pattern: &Pattern, bits: Bits) -> Result<Vec<Item>, FlowRefusal> {
    let pattern = Pattern { whole: pattern.whole && bits.fragments, ..*pattern };
    let mut items = vec![network(&pattern)];
    items.extend(upper(&pattern)?);
    Ok(items)
}

/// Kind, value and mask.
type Item = (sys::rte_flow_item_type, Spec, Spec);

fn network(pattern: &Pattern) -> Item {
    let protocol = pattern.protocol.map_or((0, 0), |protocol| (protocol, u8::MAX));
    match pattern.addresses {
        Addresses::Ip4 { source, destination } => {
            let header = |tos, ttl, protocol, fragment: u16, source: u32, destination: u32| {
                let mut header = Ipv4Header::new_zeroed();
                (header.tos, header.ttl, header.protocol) = (tos, ttl, protocol);
                header.flags_fragment = fragment.into();
                header.source_address = source.to_be_bytes();
                header.destination_address = destination.to_be_bytes();
                Spec::of(&header)
            };
            let Pattern { class, ttl, .. } = pattern;
            let whole = if pattern.whole { IPV4_MORE_FRAGMENTS | IPV4_OFFSET_BITS } else { 0 };
            let spec =
                header(class.value, ttl.value, protocol.0, 0, source.value, destination.value);
            let mask =
                header(class.mask, ttl.mask, protocol.1, whole, source.mask, destination.mask);
            (sys::RTE_FLOW_ITEM_TYPE_IPV4, spec, mask)
        }
        Addresses::Ip6 { source, destination } => {
            let header = |class: u8, limit, next_header, source: u128, destination: u128| {
                let mut header = Ipv6Header::new_zeroed();
                header.version_class_flow = (u32::from(class) << 20).into();
                (header.hop_limit, header.next_header) = (limit, next_header);
                header.source_address = source.to_be_bytes();
                header.destination_address = destination.to_be_bytes();
                Spec::of(&header)
            };
            let Pattern { class, ttl, .. } = pattern;
            let spec = header(class.value, ttl.value, protocol.0, source.value, destination.value);
            let mask = header(class.mask, ttl.mask, protocol.1, source.mask, destination.mask);
            (sys::RTE_FLOW_ITEM_TYPE_IPV6, spec, mask)
        }
    }
}

fn upper(pattern: &Pattern) -> Result<Option<Item>, FlowRefusal> {
    let item = match (pattern.upper, pattern.protocol) {
        (Upper::Any, _) => return Ok(None),
        (Upper::Ports { from, to, flags }, Some(PROTOCOL_TCP)) => {
            let header = |from: u16, to: u16, flags: u8| {
                let mut header = TcpHeader::new_zeroed();
                (header.source_port, header.destination_port) = (from.into(), to.into());
                header.offset_flags = u16::from(flags).into();
                Spec::of(&header)
            };
            let spec = header(from.value, to.value, flags.value);
            (sys::RTE_FLOW_ITEM_TYPE_TCP, spec, header(from.mask, to.mask, flags.mask))
        }
        (Upper::Ports { from, to, .. }, protocol) => {
            // SCTP's header begins with the same ports.
            let header = |from: u16, to: u16| {
                let mut header = UdpHeader::new_zeroed();
                (header.source_port, header.destination_port) = (from.into(), to.into());
                Spec::of(&header)
            };
            let kind = match protocol {
                Some(PROTOCOL_UDP) => sys::RTE_FLOW_ITEM_TYPE_UDP,
                Some(PROTOCOL_SCTP) => sys::RTE_FLOW_ITEM_TYPE_SCTP,
                _ => {
                    let message = Some("rte_flow has no ports of this protocol".to_owned());
                    return Err(FlowRefusal { errno: Errno::EINVAL, message });
                }
            };
            (kind, header(from.value, to.value), header(from.mask, to.mask))
        }
        (Upper::Icmp(kind), _) => {
            let header = |kind| {
                let mut header = IcmpHeader::new_zeroed();
                header.kind = kind;
                Spec::of(&header)
            };
            let item = match pattern.addresses {
                Addresses::Ip4 { .. } => sys::RTE_FLOW_ITEM_TYPE_ICMP,
                Addresses::Ip6 { .. } => sys::RTE_FLOW_ITEM_TYPE_ICMP6,
            };
            (item, header(kind), header(u8::MAX))
        }
    };
    Ok(Some(item))
}

#[cfg(test)]
mod tests {
    use wire::pattern::Masked;

    use super::*;
    use crate::testing::{eal, pool};
    use crate::{Device, PortConfig};

    fn pattern(protocol: u8, upper: Upper) -> Pattern {
        Pattern {
            addresses: Addresses::Ip4 {
                source: Masked { value: 0xc000_0200, mask: 0xffff_ff00 },
                destination: Masked::default(),
            },
            class: Masked { value: 0xb8, mask: 0xfc },
            ttl: Masked { value: 3, mask: 0xff },
            protocol: Some(protocol),
            whole: true,
            upper,
        }
    }

    fn any_link(traffic: Traffic) -> Frames {
        Frames { link: Link::default(), traffic }
    }

    fn ports(to: u16) -> Upper {
        let flags = Masked { value: 2, mask: 0x12 };
        Upper::Ports { from: Masked::default(), to: Masked::exactly(to), flags }
    }

    #[test]
    fn items_are_headers_as_they_are_on_the_wire() {
        let items = Items::of(&any_link(Traffic::Ip(pattern(6, ports(22)))), Bits::ALL).unwrap();
        let [(ip, spec, mask), (tcp, tcp_spec, tcp_mask)] = items.behind[..] else { panic!() };
        assert_eq!((ip, tcp), (sys::RTE_FLOW_ITEM_TYPE_IPV4, sys::RTE_FLOW_ITEM_TYPE_TCP));
        assert_eq!(spec.0[..20], [0, 0xb8, 0, 0, 0, 0, 0, 0, 3, 6, 0, 0, 192, 0, 2, 0, 0, 0, 0, 0]);
        let wanted = [0, 0xfc, 0, 0, 0, 0, 0x3f, 255, 255, 255, 0, 0, 255, 255, 255, 0, 0, 0, 0, 0];
        assert_eq!(mask.0[..20], wanted);
        assert!(spec.0[20..].iter().chain(&mask.0[20..]).all(|byte| *byte == 0));
        assert_eq!((&tcp_spec.0[..4], tcp_spec.0[13]), (&[0, 0, 0, 22][..], 2));
        assert_eq!((&tcp_mask.0[..4], tcp_mask.0[13]), (&[0, 0, 255, 255][..], 0x12));
        let list = items.list();
        assert_eq!((list.len(), list[0].type_), (4, sys::RTE_FLOW_ITEM_TYPE_ETH));
        assert_eq!(list[3].type_, sys::RTE_FLOW_ITEM_TYPE_END);
    }

    #[test]
    fn ipv6_has_its_class_beside_the_version() {
        let any = Masked::default();
        let destination = Masked { value: 7, mask: u128::MAX };
        let addresses = Addresses::Ip6 { source: any, destination };
        let pattern = Pattern { addresses, whole: false, ..pattern(58, Upper::Icmp(128)) };
        let items = Items::of(&any_link(Traffic::Ip(pattern)), Bits::ALL).unwrap();
        let [(ip, spec, mask), (icmp, icmp_spec, icmp_mask)] = items.behind[..] else { panic!() };
        assert_eq!((ip, icmp), (sys::RTE_FLOW_ITEM_TYPE_IPV6, sys::RTE_FLOW_ITEM_TYPE_ICMP6));
        assert_eq!(spec.0[..8], [0x0b, 0x80, 0, 0, 0, 0, 58, 3]);
        assert_eq!(mask.0[..8], [0x0f, 0xc0, 0, 0, 0, 0, 255, 255]);
        assert_eq!((spec.0[39], &mask.0[24..40], mask.0[40]), (7, &[255; 16][..], 0));
        assert_eq!((icmp_spec.0[0], icmp_mask.0[0]), (128, 255));
    }

    #[test]
    fn an_ethertype_is_compared_and_no_address() {
        let items = Items::of(&any_link(Traffic::EtherType(0x8809)), Bits::ALL).unwrap();
        let (spec, mask) = items.ethernet.unwrap();
        assert_eq!((&spec.0[..12], &spec.0[12..16]), (&[0; 12][..], &[0x88, 0x09, 0, 0][..]));
        assert_eq!((&mask.0[..12], &mask.0[12..16]), (&[0; 12][..], &[0xff, 0xff, 0, 0][..]));
        assert_eq!(items.list().len(), 2);
    }

    #[test]
    fn addresses_and_tags_are_items_in_front_of_the_packet() {
        let control = Masked { value: 0xa007, mask: 0xefff };
        let tag = Tag { protocol: 0x8100, control };
        let outer = Tag { protocol: 0x88a8, control: Masked { value: 5, mask: 0x0fff } };
        let (from, none) = (MacAddr([2, 0, 0, 0, 0, 1]), None);
        let items = |source, tags, bits| {
            let link = Link { source, destination: None, tags };
            Items::of(&Frames { link, traffic: Traffic::Ip(pattern(6, ports(22))) }, bits).unwrap()
        };
        let kinds = |items: &Items| items.behind.iter().map(|item| item.0).collect::<Vec<_>>();
        let (vlan, ip, tcp) = (
            sys::RTE_FLOW_ITEM_TYPE_VLAN,
            sys::RTE_FLOW_ITEM_TYPE_IPV4,
            sys::RTE_FLOW_ITEM_TYPE_TCP,
        );
        // An address alone says nothing of the Ethertype.
        let alone = items(Some(from), Tags::Any, Bits::ALL);
        let (spec, mask) = alone.ethernet.unwrap();
        assert_eq!((&spec.0[6..14], &mask.0[..6]), (&[2, 0, 0, 0, 0, 1, 0, 0][..], &[0; 6][..]));
        assert_eq!(&mask.0[6..20], &[255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(kinds(&alone), [ip, tcp]);
        // Without tags: the Ethertype, and the bit behind the header.
        let (spec, mask) = items(none, Tags::None, Bits::ALL).ethernet.unwrap();
        assert_eq!((&spec.0[12..15], &mask.0[12..15]), (&[8, 0, 0][..], &[255, 255, 1][..]));
        let fewer = Bits { tags: false, ..Bits::ALL };
        assert_eq!(items(none, Tags::None, fewer).ethernet.unwrap().1.0[12..15], [255, 255, 0]);
        let one = items(none, Tags::One(tag), Bits::ALL);
        assert_eq!(one.ethernet.unwrap().0.0[12..14], [0x81, 0]);
        assert_eq!(kinds(&one), [vlan, ip, tcp]);
        let (_, spec, mask) = one.behind[0];
        assert_eq!(spec.0[..5], [0xa0, 7, 8, 0, 0]);
        assert_eq!(mask.0[..5], [0xef, 255, 255, 255, 1]);
        let two = items(none, Tags::Two(outer, tag), Bits::ALL);
        assert_eq!(two.ethernet.unwrap().0.0[12..14], [0x88, 0xa8]);
        assert_eq!(kinds(&two), [vlan, vlan, ip, tcp]);
        let tags: Vec<_> = two.behind[..2].iter().map(|(_, spec, _)| &spec.0[..5]).collect();
        assert_eq!(tags, [[0, 5, 0x81, 0, 1], [0xa0, 7, 8, 0, 0]]);
    }

    #[test]
    fn bits_of_tags_are_left_out_for_drivers_that_compare_ethertypes_exactly() {
        let of = |tags, driver| {
            let link = Link { tags, ..Link::default() };
            Bits::without_change(&Frames { link, traffic: Traffic::EtherType(7) }, driver)
        };
        assert_eq!(of(Tags::None, "net_tap"), Some(Bits { tags: false, fragments: true }));
        assert_eq!((of(Tags::Any, "net_tap"), of(Tags::None, "mlx5_pci")), (None, None));
    }

    #[test]
    fn bits_of_fragments_are_left_out_for_drivers_that_find_ports_in_whole_packets_only() {
        let same = |upper, driver| is_same_without_bits(&pattern(6, upper), driver);
        assert!(same(ports(22), "net_i40e") && same(Upper::Icmp(8), "net_tap"));
        assert!(!same(ports(22), "net_ixgbe") && !same(Upper::Any, "net_i40e"));
        assert!(!same(ports(0), "net_tap") && !same(Upper::Icmp(0), "net_tap"));
        let any = Pattern { whole: false, ..pattern(6, ports(22)) };
        assert!(!is_same_without_bits(&any, "net_i40e"));
    }

    #[test]
    fn a_driver_without_rules_says_so() {
        let config = PortConfig::new("p", Device::parse("net_null77").unwrap());
        let (port, _rx, _tx) = Port::open(eal(), &config, &pool(4096)).unwrap();
        let refusal =
            port.add_drop_rule(&any_link(Traffic::Ip(pattern(6, ports(22))))).unwrap_err();
        assert!(refusal.is_for_good(), "{refusal:?}");
        assert_eq!(refusal.to_string(), "its driver has no rte_flow");
        let refusal = port.add_control_rule(&Traffic::EtherType(0x0806)).unwrap_err();
        assert!(refusal.to_string().contains("no receive queue for control"), "{refusal}");
        let refusal =
            port.add_drop_rule(&any_link(Traffic::Ip(pattern(136, ports(22))))).unwrap_err();
        assert!(refusal.to_string().starts_with("rte_flow has no ports"), "{refusal}");
        let (rule, refusal) =
            port.remove_rule(FlowRule { number: 3, is_counted: true }).unwrap_err();
        assert!(refusal.to_string().starts_with("the port has no such rule"), "{refusal}");
        assert_eq!(port.rule_count(&rule), Err(refusal));
    }
}

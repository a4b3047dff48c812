//! Rules that a port's device holds (`rte_flow`): packets that it drops by itself or brings to one receive
//! queue, and their counts.
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
use wire::ethernet::EthernetHeader;
use wire::icmp::IcmpHeader;
use wire::ip::{
    IPV4_MORE_FRAGMENTS, IPV4_OFFSET_BITS, Ipv4Header, Ipv6Header, PROTOCOL_TCP, PROTOCOL_UDP,
};
use wire::l4::{TcpHeader, UdpHeader};
use wire::pattern::{Addresses, Pattern, Traffic, Upper};
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
    /// Makes the device drop matching packets, and count them if it can.
    ///
    /// # Errors
    /// The device's error, if it refuses the rule.
    pub fn add_drop_rule(&self, traffic: &Traffic) -> Result<FlowRule, FlowRefusal> {
        self.add_rule(traffic, Fate::Drop)
    }

    /// Makes the device bring matching packets to a receive queue, and count them if it can.
    ///
    /// # Errors
    /// The device's error, if it refuses the rule.
    pub fn add_queue_rule(&self, traffic: &Traffic, queue: u16) -> Result<FlowRule, FlowRefusal> {
        self.add_rule(traffic, Fate::Queue(queue))
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
        self.add_rule(traffic, Fate::Queue(self.rx_queues() - 1))
    }

    fn add_rule(&self, traffic: &Traffic, fate: Fate) -> Result<FlowRule, FlowRefusal> {
        let refused = match self.add_items(&Items::of_traffic(traffic)?, fate) {
            Err(refusal) if !refusal.is_for_good() => refusal,
            outcome => return outcome,
        };
        match traffic {
            Traffic::Ip(pattern) if is_same_without_bits(pattern, self.driver()) => {
                self.add_items(&Items::of(&Pattern { whole: false, ..*pattern })?, fate)
            }
            _ => Err(refused),
        }
    }

    fn add_items(&self, items: &Items, fate: Fate) -> Result<FlowRule, FlowRefusal> {
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
enum Fate {
    Drop,
    /// They arrive on this receive queue.
    Queue(u16),
}

fn count_action() -> sys::rte_flow_action {
    static COUNT: sys::rte_flow_action_count = sys::rte_flow_action_count { id: 0 };
    sys::rte_flow_action { type_: sys::RTE_FLOW_ACTION_TYPE_COUNT, conf: (&raw const COUNT).cast() }
}

fn end_action() -> sys::rte_flow_action {
    sys::rte_flow_action { type_: sys::RTE_FLOW_ACTION_TYPE_END, conf: std::ptr::null() }
}

fn create(port: u16, items: &Items, fate: Fate, counted: bool) -> Result<Handle, FlowRefusal> {
    let queue = match fate {
        Fate::Queue(index) => sys::rte_flow_action_queue { index },
        Fate::Drop => sys::rte_flow_action_queue { index: 0 },
    };
    let (type_, conf) = match fate {
        Fate::Drop => (sys::RTE_FLOW_ACTION_TYPE_DROP, std::ptr::null()),
        Fate::Queue(_) => (sys::RTE_FLOW_ACTION_TYPE_QUEUE, (&raw const queue).cast()),
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
    // call and have the items' types, see `Spec`.
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
    assert!(size_of::<sys::rte_flow_item_eth>() <= size_of::<Spec>());
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
    fn of(pattern: &Pattern) -> Result<Self, FlowRefusal> {
        let mut behind = vec![network(pattern)];
        behind.extend(upper(pattern)?);
        Ok(Self { ethernet: None, behind })
    }

    fn of_traffic(traffic: &Traffic) -> Result<Self, FlowRefusal> {
        let header = |ethertype: u16| {
            let mut header = EthernetHeader::new_zeroed();
            header.ethertype = ethertype.into();
            Spec::of(&header)
        };
        match traffic {
            Traffic::Ip(pattern) => Self::of(pattern),
            &Traffic::EtherType(ethertype) => {
                let ethernet = Some((header(ethertype), header(u16::MAX)));
                Ok(Self { ethernet, behind: Vec::new() })
            }
        }
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

    fn ports(to: u16) -> Upper {
        let flags = Masked { value: 2, mask: 0x12 };
        Upper::Ports { from: Masked::default(), to: Masked::exactly(to), flags }
    }

    #[test]
    fn items_are_headers_as_they_are_on_the_wire() {
        let items = Items::of(&pattern(6, ports(22))).unwrap();
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
        let items = Items::of(&pattern).unwrap();
        let [(ip, spec, mask), (icmp, icmp_spec, icmp_mask)] = items.behind[..] else { panic!() };
        assert_eq!((ip, icmp), (sys::RTE_FLOW_ITEM_TYPE_IPV6, sys::RTE_FLOW_ITEM_TYPE_ICMP6));
        assert_eq!(spec.0[..8], [0x0b, 0x80, 0, 0, 0, 0, 58, 3]);
        assert_eq!(mask.0[..8], [0x0f, 0xc0, 0, 0, 0, 0, 255, 255]);
        assert_eq!((spec.0[39], &mask.0[24..40], mask.0[40]), (7, &[255; 16][..], 0));
        assert_eq!((icmp_spec.0[0], icmp_mask.0[0]), (128, 255));
    }

    #[test]
    fn an_ethertype_is_compared_and_no_address() {
        let items = Items::of_traffic(&Traffic::EtherType(0x8809)).unwrap();
        let (spec, mask) = items.ethernet.unwrap();
        assert_eq!((&spec.0[..12], &spec.0[12..16]), (&[0; 12][..], &[0x88, 0x09, 0, 0][..]));
        assert_eq!((&mask.0[..12], &mask.0[12..16]), (&[0; 12][..], &[0xff, 0xff, 0, 0][..]));
        assert_eq!(items.list().len(), 2);
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
        let refusal = port.add_drop_rule(&Traffic::Ip(pattern(6, ports(22)))).unwrap_err();
        assert!(refusal.is_for_good(), "{refusal:?}");
        assert_eq!(refusal.to_string(), "its driver has no rte_flow");
        let refusal = port.add_control_rule(&Traffic::EtherType(0x0806)).unwrap_err();
        assert!(refusal.to_string().contains("no receive queue for control"), "{refusal}");
        let refusal = port.add_drop_rule(&Traffic::Ip(pattern(136, ports(22)))).unwrap_err();
        assert!(refusal.to_string().starts_with("rte_flow has no ports"), "{refusal}");
        let (rule, refusal) =
            port.remove_rule(FlowRule { number: 3, is_counted: true }).unwrap_err();
        assert!(refusal.to_string().starts_with("the port has no such rule"), "{refusal}");
        assert_eq!(port.rule_count(&rule), Err(refusal));
    }
}

//! Rules by which a port's device steers control traffic to a receive queue of its own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dpdk::{FlowCount, FlowRule};
use wire::ethernet::ETHERTYPE_ARP;
use wire::ip::{PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP};
use wire::pattern::{Addresses, Masked, Pattern, Traffic, Upper};

use super::flow_rules::Refused;

/// A learned rule unused for this time is removed.
pub const IDLE: Duration = Duration::from_secs(60);

/// Own addresses for which a device gets rules; each takes up to twelve.
const ADDRESSES_MOST: usize = 32;

/// IEEE 802.3, annex 57A: LACP and other slow protocols.
const ETHERTYPE_SLOW: u16 = 0x8809;

/// IEEE 802.1AB.
const ETHERTYPE_LLDP: u16 = 0x88cc;

const PROTOCOL_OSPF: u8 = 89;
const PROTOCOL_VRRP: u8 = 112;
const BGP: u16 = 179;
const SSH: u16 = 22;

/// RFC 5881 4 and RFC 5883 4: control, echo, several hops.
const BFD: [u16; 3] = [3784, 3785, 4784];

/// RFC 4861 4: router solicitation and advertisement, neighbour solicitation and advertisement.
const DISCOVERY: std::ops::RangeInclusive<u8> = 133..=136;

/// A device that brings traffic to its receive queue for control traffic.
pub trait Steering {
    /// A rule in it.
    type Rule;

    /// Steers this traffic to the queue.
    fn steer(&self, traffic: &Traffic) -> Result<Self::Rule, Refused>;

    /// Removes a rule; on failure, returns it with the reason.
    fn release(&self, rule: Self::Rule) -> Result<(), (Self::Rule, String)>;

    /// Number of packets that matched a rule; `None` if the device does not count them.
    fn packets(&self, rule: &Self::Rule) -> Option<u64>;
}

impl Steering for dpdk::Port {
    type Rule = FlowRule;

    fn steer(&self, traffic: &Traffic) -> Result<FlowRule, Refused> {
        self.add_control_rule(traffic).map_err(|refusal| Refused {
            why: refusal.to_string(),
            is_for_good: refusal.is_for_good(),
        })
    }

    fn release(&self, rule: FlowRule) -> Result<(), (FlowRule, String)> {
        self.remove_rule(rule).map_err(|(rule, refusal)| (rule, refusal.to_string()))
    }

    fn packets(&self, rule: &FlowRule) -> Option<u64> {
        let count = rule.is_counted().then(|| self.rule_count(rule).ok()).flatten();
        count.map(|FlowCount { packets, .. }| packets)
    }
}

/// Traffic of a protocol of the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// In words: `BGP to 10.0.1.1`.
    pub what: String,
    /// The packets.
    pub traffic: Traffic,
}

/// A flow that the host has begun, as its packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostFlow {
    /// TCP or UDP.
    pub protocol: u8,
    /// An own address.
    pub source: IpAddr,
    /// The host's port.
    pub source_port: u16,
    /// The other end.
    pub destination: IpAddr,
    /// The other end's port.
    pub destination_port: u16,
}

impl fmt::Display for HostFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.protocol == PROTOCOL_TCP { "tcp" } else { "udp" };
        let end = |address: IpAddr, port: u16| std::net::SocketAddr::new(address, port);
        let (from, to) =
            (end(self.source, self.source_port), end(self.destination, self.destination_port));
        write!(f, "{protocol} {from} > {to}")
    }
}

impl HostFlow {
    /// Its replies; `None` if its addresses are of two families.
    fn replies(&self) -> Option<Traffic> {
        let addresses = match (self.source, self.destination) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                Addresses::Ip4 { source: exactly4(other.into()), destination: exactly4(own.into()) }
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                Addresses::Ip6 { source: exactly6(other.into()), destination: exactly6(own.into()) }
            }
            _ => return None,
        };
        let upper =
            ports(Masked::exactly(self.destination_port), Masked::exactly(self.source_port));
        Some(Traffic::Ip(pattern(addresses, self.protocol, upper)))
    }
}

fn exactly4(value: u32) -> Masked<u32> {
    Masked { value, mask: u32::MAX }
}

fn exactly6(value: u128) -> Masked<u128> {
    Masked { value, mask: u128::MAX }
}

fn ports(from: Masked<u16>, to: Masked<u16>) -> Upper {
    Upper::Ports { from, to, flags: Masked::default() }
}

fn pattern(addresses: Addresses, protocol: u8, upper: Upper) -> Pattern {
    // Of a later fragment the first bytes are no ports.
    let whole = upper != Upper::Any && matches!(addresses, Addresses::Ip4 { .. });
    let (class, ttl, protocol) = (Masked::default(), Masked::default(), Some(protocol));
    Pattern { addresses, class, ttl, protocol, whole, upper }
}

/// To IPv4 addresses with these leading bits.
fn to4(address: [u8; 4], bits: u32) -> Addresses {
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    let destination = Masked { value: u32::from_be_bytes(address), mask };
    Addresses::Ip4 { source: Masked::default(), destination }
}

/// To IPv6 addresses with these leading bits.
fn to6(first: u16, last: u16, bits: u32) -> Addresses {
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    let destination = Masked { value: u128::from(first) << 112 | u128::from(last), mask };
    Addresses::Ip6 { source: Masked::default(), destination }
}

fn to_own(address: IpAddr) -> Addresses {
    match address {
        IpAddr::V4(address) => {
            let destination = exactly4(address.into());
            Addresses::Ip4 { source: Masked::default(), destination }
        }
        IpAddr::V6(address) => {
            let destination = exactly6(address.into());
            Addresses::Ip6 { source: Masked::default(), destination }
        }
    }
}

/// Returns the control traffic that a device is to steer to the queue of a router with these own addresses.
pub fn wanted(own: &[IpAddr]) -> Vec<Wanted> {
    let mut all = of_links();
    for &address in own.iter().take(ADDRESSES_MOST) {
        of_address(&mut all, &address.to_string(), to_own(address));
    }
    all
}

fn add(all: &mut Vec<Wanted>, what: String, pattern: Pattern) {
    all.push(Wanted { what, traffic: Traffic::Ip(pattern) });
}

/// Traffic that never leaves its link.
fn of_links() -> Vec<Wanted> {
    let frames = [("ARP", ETHERTYPE_ARP), ("LACP", ETHERTYPE_SLOW), ("LLDP", ETHERTYPE_LLDP)];
    let frame = |(what, ethertype): (&str, u16)| Wanted {
        what: what.to_owned(),
        traffic: Traffic::EtherType(ethertype),
    };
    let mut all: Vec<_> = frames.into_iter().map(frame).collect();
    for (what, protocol) in [("OSPF", PROTOCOL_OSPF), ("VRRP", PROTOCOL_VRRP)] {
        let groups4 = pattern(to4([224, 0, 0, 0], 24), protocol, Upper::Any);
        add(&mut all, format!("{what} to 224.0.0.0/24"), groups4);
        let groups6 = pattern(to6(0xff02, 0, 16), protocol, Upper::Any);
        add(&mut all, format!("{what} to ff02::/16"), groups6);
    }
    let groups = to6(0xff02, 0, 16);
    for kind in DISCOVERY {
        let discovery = pattern(groups, PROTOCOL_ICMPV6, Upper::Icmp(kind));
        add(&mut all, format!("{} to ff02::/16", discovery_name(kind)), discovery);
    }
    of_address(&mut all, "fe80::/10", to6(0xfe80, 0, 10));
    all
}

/// To one of the router's addresses, or to such as are no other link's.
fn of_address(all: &mut Vec<Wanted>, name: &str, to: Addresses) {
    let any = Masked::default();
    let tcp = |from, to_port| pattern(to, PROTOCOL_TCP, ports(from, to_port));
    add(all, format!("BGP to {name}"), tcp(any, Masked::exactly(BGP)));
    add(all, format!("BGP replies to {name}"), tcp(Masked::exactly(BGP), any));
    add(all, format!("ssh to {name}"), tcp(any, Masked::exactly(SSH)));
    for port in BFD {
        let upper = ports(any, Masked::exactly(port));
        add(all, format!("BFD (UDP {port}) to {name}"), pattern(to, PROTOCOL_UDP, upper));
    }
    add(all, format!("OSPF to {name}"), pattern(to, PROTOCOL_OSPF, Upper::Any));
    add(all, format!("VRRP to {name}"), pattern(to, PROTOCOL_VRRP, Upper::Any));
    if matches!(to, Addresses::Ip6 { .. }) {
        for kind in DISCOVERY {
            let discovery = pattern(to, PROTOCOL_ICMPV6, Upper::Icmp(kind));
            add(all, format!("{} to {name}", discovery_name(kind)), discovery);
        }
    }
}

fn discovery_name(kind: u8) -> &'static str {
    match kind {
        133 => "router solicitations",
        134 => "router advertisements",
        135 => "neighbour solicitations",
        _ => "neighbour advertisements",
    }
}

/// The rules of a device.
pub struct Steered<R> {
    /// Rules for protocols of the router, in the order in which the device gets them.
    exact: Vec<Entry<R>>,
    learned: HashMap<HostFlow, Learned<R>>,
    /// Rules still to be removed from the device.
    leaving: Vec<R>,
    /// The own addresses that `exact` was made of.
    own: Option<Vec<IpAddr>>,
    /// The reason for which the device takes no rule at all.
    refused: Option<String>,
    /// Counters of learned flows.
    counts: Counts,
    /// True if there are changes not logged yet.
    unreported: bool,
    is_stuck: bool,
}

/// Counters of flows of the host since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The device took a rule for them.
    pub learned: u64,
    /// Their rule was unused for too long.
    pub aged: u64,
    /// Their rule made room for another's.
    pub displaced: u64,
    /// The device took no rule for them.
    pub refused: u64,
}

struct Entry<R> {
    wanted: Wanted,
    place: Place<R>,
}

enum Place<R> {
    Waiting,
    Held(R),
    Refused(String),
}

struct Learned<R> {
    rule: R,
    /// The time at which a packet of it was seen last.
    used: Instant,
    /// The device's packet counter at that time.
    packets: u64,
}

/// A rule of a protocol, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// In words.
    pub what: String,
    /// Number of packets that matched it; `None` if the device does not count them.
    pub packets: Option<u64>,
    /// The reason for which the device does not hold it.
    pub why: Option<String>,
}

impl<R> Default for Steered<R> {
    fn default() -> Self {
        Self {
            exact: Vec::new(),
            learned: HashMap::new(),
            leaving: Vec::new(),
            own: None,
            refused: None,
            counts: Counts::default(),
            unreported: false,
            is_stuck: false,
        }
    }
}

impl<R> Steered<R> {
    /// Sets the own addresses whose control traffic the device is to steer to the queue. Rules that stay wanted are
    /// kept.
    pub fn follow(&mut self, own: &[IpAddr]) {
        if self.own.as_deref() == Some(own) {
            return;
        }
        self.own = Some(own.to_vec());
        self.replace(wanted(own));
    }

    /// Marks all rules for removal from the device.
    pub fn stop(&mut self) {
        self.own = None;
        self.replace(Vec::new());
        self.learned.drain().for_each(|(_, learned)| self.leaving.push(learned.rule));
    }

    fn replace(&mut self, wanted: Vec<Wanted>) {
        let before = std::mem::take(&mut self.exact).into_iter();
        let mut known: HashMap<Traffic, Place<R>> =
            before.map(|entry| (entry.wanted.traffic, entry.place)).collect();
        let entry = |wanted: Wanted| {
            // Rules refused before may find room now.
            let place = match known.remove(&wanted.traffic) {
                Some(Place::Held(rule)) => Place::Held(rule),
                _ => Place::Waiting,
            };
            Entry { wanted, place }
        };
        self.exact = wanted.into_iter().map(entry).collect();
        for place in known.into_values() {
            if let Place::Held(rule) = place {
                self.leaving.push(rule);
            }
        }
        (self.refused, self.unreported) = (None, !self.exact.is_empty());
    }

    /// Returns true if [`Self::go_on`] has work to do.
    pub fn is_busy(&self) -> bool {
        let waits = |entry: &Entry<R>| matches!(entry.place, Place::Waiting);
        !self.leaving.is_empty() || self.refused.is_none() && self.exact.iter().any(waits)
    }

    /// Returns the reason for which the device holds no rules.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Returns the counters of flows of the host.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Removes unwanted rules from the device and adds the waiting ones, as long as there is time. Returns the reason
    /// for which the device keeps a rule, once.
    pub fn go_on(
        &mut self,
        device: &impl Steering<Rule = R>,
        has_time: impl Fn() -> bool,
    ) -> Option<String> {
        let mut stays = None;
        for rule in std::mem::take(&mut self.leaving) {
            if let Err((rule, why)) = device.release(rule) {
                self.leaving.push(rule);
                stays = Some(why);
            }
        }
        for entry in &mut self.exact {
            if self.refused.is_some() || !has_time() {
                break;
            }
            if !matches!(entry.place, Place::Waiting) {
                continue;
            }
            match device.steer(&entry.wanted.traffic) {
                Ok(rule) => entry.place = Place::Held(rule),
                Err(Refused { why, is_for_good: false }) => entry.place = Place::Refused(why),
                Err(Refused { why, .. }) => self.refused = Some(why),
            }
        }
        let was_stuck = std::mem::replace(&mut self.is_stuck, stays.is_some());
        stays.filter(|_| !was_stuck)
    }

    /// The rules that are held and wanted, once, when nothing waits any more.
    pub fn take_report(&mut self) -> Option<(usize, usize)> {
        if self.is_busy() || !std::mem::take(&mut self.unreported) {
            return None;
        }
        let held = self.exact.iter().filter(|entry| matches!(entry.place, Place::Held(_)));
        Some((held.count(), self.exact.len()))
    }

    /// The host sends a packet of a flow: the device is to bring replies to the queue, of so many flows at most.
    pub fn learn(
        &mut self,
        device: &impl Steering<Rule = R>,
        flow: HostFlow,
        most: usize,
        now: Instant,
    ) {
        if let Some(known) = self.learned.get_mut(&flow) {
            known.used = now;
            return;
        }
        let Some(traffic) = flow.replies().filter(|_| self.refused.is_none() && most > 0) else {
            return;
        };
        self.make_room(device, most);
        match device.steer(&traffic) {
            Ok(rule) => {
                self.counts.learned += 1;
                self.learned.insert(flow, Learned { rule, used: now, packets: 0 });
            }
            Err(_) => self.counts.refused += 1,
        }
    }

    /// Lets go of those that were used least recently until there is room for one of so many.
    fn make_room(&mut self, device: &impl Steering<Rule = R>, most: usize) {
        while self.learned.len() >= most {
            let oldest = self.learned.iter().min_by_key(|(_, learned)| learned.used);
            let Some(flow) = oldest.map(|(flow, _)| *flow) else { return };
            self.counts.displaced += 1;
            self.forget(device, flow);
        }
    }

    /// Removes rules that neither the host nor the other end has used for [`IDLE`], and those beyond `most`.
    pub fn age(&mut self, device: &impl Steering<Rule = R>, most: usize, now: Instant) {
        if self.learned.len() > most {
            self.make_room(device, most + 1);
        }
        let mut unused = Vec::new();
        for (flow, learned) in &mut self.learned {
            if now.duration_since(learned.used) < IDLE {
                continue;
            }
            // Read only when the rule is about to be removed, since that needs an access to the device.
            let packets = device.packets(&learned.rule).unwrap_or(learned.packets);
            if packets == learned.packets {
                unused.push(*flow);
            } else {
                (learned.packets, learned.used) = (packets, now);
            }
        }
        for flow in unused {
            self.counts.aged += 1;
            self.forget(device, flow);
        }
    }

    fn forget(&mut self, device: &impl Steering<Rule = R>, flow: HostFlow) {
        let Some(learned) = self.learned.remove(&flow) else { return };
        if let Err((rule, _)) = device.release(learned.rule) {
            self.leaving.push(rule);
        }
    }

    /// Returns the rules of protocols with the device's packet counters.
    pub fn shown(&self, device: &impl Steering<Rule = R>) -> Vec<Shown> {
        let of = |entry: &Entry<R>| {
            let (packets, why) = match &entry.place {
                Place::Held(rule) => (device.packets(rule), None),
                Place::Waiting => (None, Some("to be given to the device".to_owned())),
                Place::Refused(why) => (None, Some(format!("the device says: {why}"))),
            };
            Shown { what: entry.wanted.what.clone(), packets, why }
        };
        let more = self.own.as_ref().map_or(0, Vec::len).saturating_sub(ADDRESSES_MOST);
        let more = (more > 0).then(|| Shown {
            what: format!("further own addresses: {more}"),
            packets: None,
            why: Some(format!("rules are for the first {ADDRESSES_MOST} addresses")),
        });
        self.exact.iter().map(of).chain(more).collect()
    }

    /// Returns the learned flows and the time for which each was unused, the most recently used first.
    pub fn flows(&self, now: Instant) -> Vec<(HostFlow, Duration)> {
        let idle = |learned: &Learned<R>| now.duration_since(learned.used);
        let by_time: BTreeMap<_, _> = self
            .learned
            .iter()
            .map(|(flow, learned)| ((idle(learned), flow.to_string()), *flow))
            .collect();
        by_time.into_iter().map(|((idle, _), flow)| (flow, idle)).collect()
    }
}

#[cfg(test)]
mod tests;

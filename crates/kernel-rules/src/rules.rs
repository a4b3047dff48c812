//! Routing rules: `ip rule`.
//!
//! | rule | treatment |
//! |---|---|
//! | the default ones, in any order; a VRF's `l3mdev`; `lookup TABLE` for all packets | followed |
//! | for packets of the machine itself: `iif lo`, `oif X` | no effect on forwarded packets |
//! | for packets received on an interface that is not accelerated | no effect |
//! | `from`, `to` a prefix, and nothing else | these packets stay with the kernel, where the fast path can except them |
//! | any other selector or action | refused |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::Options;
use crate::finding::{Action, Family, Finding, Kind, Packets, Place};
use crate::links::Links;
use crate::netlink::{Attribute, Attributes, Raw, Request, u32_at};

pub const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;

/// Bytes of `struct fib_rule_hdr`.
const FIXED: usize = 12;

// `linux/fib_rules.h`.
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TUN_ID: u16 = 12;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
const FRA_L3MDEV: u16 = 19;
const FRA_UID_RANGE: u16 = 20;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;

const FR_ACT_TO_TBL: u8 = 1;
const FR_ACT_GOTO: u8 = 2;
const FR_ACT_NOP: u8 = 3;
const FR_ACT_BLACKHOLE: u8 = 6;
const FR_ACT_UNREACHABLE: u8 = 7;
const FR_ACT_PROHIBIT: u8 = 8;

const FIB_RULE_INVERT: u32 = 2;

/// `-1`: nothing is suppressed.
const NOTHING: u32 = u32::MAX;

/// A routing rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingRule {
    pub family: Family,
    pub priority: u32,
    pub inverted: bool,
    pub from: Option<IpNet>,
    pub to: Option<IpNet>,
    pub iif: Option<String>,
    pub oif: Option<String>,
    /// Other selectors, as text.
    pub selectors: Vec<String>,
    pub act: Act,
    /// Changes to the lookup of the table, as text.
    pub modifiers: Vec<String>,
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Lookup(u32),
    /// The table of the packet's VRF.
    L3mdev,
    Nop,
    /// Any other one, as text.
    Other(String),
}

impl RoutingRule {
    /// Reads `RTM_NEWRULE`.
    pub fn read(raw: &Raw<'_>) -> Option<Self> {
        let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == RTM_NEWRULE)?;
        let family = Family::of(fixed[0])?;
        let number = |kind| attributes.get(kind).and_then(Attribute::u32);
        let name = |kind| attributes.get(kind).map(Attribute::text);
        let table = number(FRA_TABLE).unwrap_or(u32::from(fixed[4]));
        let is_l3mdev =
            attributes.get(FRA_L3MDEV).and_then(Attribute::u8).is_some_and(|on| on != 0);
        let act = match fixed[7] {
            FR_ACT_TO_TBL if is_l3mdev => Act::L3mdev,
            FR_ACT_TO_TBL => Act::Lookup(table),
            FR_ACT_NOP => Act::Nop,
            FR_ACT_GOTO => Act::Other(format!("goto {}", number(FRA_GOTO).unwrap_or(0))),
            FR_ACT_BLACKHOLE => Act::Other("blackhole".into()),
            FR_ACT_UNREACHABLE => Act::Other("unreachable".into()),
            FR_ACT_PROHIBIT => Act::Other("prohibit".into()),
            other => Act::Other(format!("action {other}")),
        };
        Some(Self {
            family,
            priority: number(FRA_PRIORITY).unwrap_or(0),
            inverted: u32_at(fixed, 8)? & FIB_RULE_INVERT != 0,
            from: prefix(family, attributes.get(FRA_SRC), fixed[2])?,
            to: prefix(family, attributes.get(FRA_DST), fixed[1])?,
            iif: name(FRA_IIFNAME),
            oif: name(FRA_OIFNAME),
            selectors: selectors(fixed[3], attributes),
            act,
            modifiers: modifiers(attributes),
        })
    }

    /// Returns it in the form of `ip rule`.
    pub fn text(&self) -> String {
        let mut words = Vec::new();
        if self.inverted {
            words.push("not".to_owned());
        }
        words.push(format!("from {}", self.from.map_or("all".to_owned(), |net| net.to_string())));
        words.extend(self.to.map(|net| format!("to {net}")));
        words.extend(self.iif.as_ref().map(|name| format!("iif {name}")));
        words.extend(self.oif.as_ref().map(|name| format!("oif {name}")));
        words.extend(self.selectors.iter().cloned());
        words.push(match &self.act {
            Act::Lookup(table) => format!("lookup {}", table_name(*table)),
            Act::L3mdev => "lookup [l3mdev-table]".to_owned(),
            Act::Nop => "nop".to_owned(),
            Act::Other(text) => text.clone(),
        });
        words.extend(self.modifiers.iter().cloned());
        words.join(" ")
    }

    /// Returns true if it is for all packets.
    fn is_for_all(&self) -> bool {
        let has_name = self.iif.is_some() || self.oif.is_some();
        !self.inverted
            && self.from.is_none()
            && self.to.is_none()
            && !has_name
            && self.selectors.is_empty()
    }

    fn is_default(&self) -> bool {
        let defaults: [(u32, u32); 3] = [(0, 255), (32766, 254), (32767, 253)];
        let is_one = |table| defaults.contains(&(self.priority, table));
        self.is_for_all()
            && self.modifiers.is_empty()
            && matches!(self.act, Act::Lookup(table) if is_one(table))
    }

    /// Returns the finding; `None` for a default rule.
    fn finding(&self, links: &Links, options: &Options) -> Option<Finding> {
        if self.is_default() {
            return None;
        }
        let text = self.text();
        let (family, priority) = (self.family, self.priority);
        let place = Place::RoutingRule { family, priority, text: text.clone() };
        let rule = format!("{} rule {priority} \"{text}\"", family.name());
        let new = |packets, action, message| {
            Some(Finding::new(Kind::Rules, place.clone(), packets, action, message))
        };
        if self.is_for_all()
            && self.modifiers.is_empty()
            && matches!(self.act, Act::L3mdev | Act::Lookup(_))
        {
            return new(
                Packets::Family(family),
                Action::Follow,
                format!("{rule}: the table is looked up in the same order"),
            );
        }
        if let Some(why) = self.idle(links) {
            return new(
                Packets::None,
                Action::Note,
                format!("{rule} has no effect on accelerated packets: {why}"),
            );
        }
        if let Some(packets) = self.exception(options) {
            return new(
                packets,
                Action::Stay,
                format!("{rule}: these packets stay with the kernel"),
            );
        }
        let packets = match &self.iif {
            Some(name) if !self.inverted => Packets::FamilyOn(family, vec![name.clone()]),
            _ => Packets::Family(family),
        };
        let message = format!("{rule} decides about forwarded packets");
        let six = if family == Family::Ip6 { "-6 " } else { "" };
        let way_out = format!("remove it: ip {six}rule del priority {priority}");
        Some(Finding::refuse(Kind::Rules, place, packets, message, &way_out))
    }

    /// Returns the reason why it matches no accelerated packet, if that is certain.
    fn idle(&self, links: &Links) -> Option<&'static str> {
        if self.act == Act::Nop {
            return Some("it does nothing");
        }
        if self.inverted {
            return None;
        }
        if self.iif.as_deref() == Some("lo") || self.oif.is_some() {
            return Some("it is for packets of the machine itself");
        }
        let iif = self.iif.as_deref()?;
        // Rules may name a VRF device, by which packets of its ports count as received.
        let is_master = links
            .taken()
            .filter_map(|link| link.master)
            .any(|master| links.by_index.get(&master).is_some_and(|link| link.name == iif));
        (!links.is_taken(iif) && !is_master).then_some("it is for packets of another interface")
    }

    /// Returns the packets that stay with the kernel, if a prefix describes them and the fast path can except it.
    fn exception(&self, options: &Options) -> Option<Packets> {
        let is_plain = !self.inverted && self.selectors.is_empty() && self.iif.is_none();
        match (self.from, self.to) {
            (Some(from), None) if is_plain && options.exceptions.sources => {
                Some(Packets::From(vec![from]))
            }
            // More selectors make it fewer packets: all those to the prefix stay.
            (_, Some(to)) if !self.inverted && options.exceptions.destinations => {
                Some(Packets::To(vec![to]))
            }
            _ => None,
        }
    }
}

fn prefix(family: Family, attribute: Option<Attribute<'_>>, length: u8) -> Option<Option<IpNet>> {
    let Some(attribute) = attribute else {
        // A length without an address: the unspecified one.
        let unspecified: IpAddr = match family {
            Family::Ip4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::Ip6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        return (length == 0)
            .then_some(None)
            .or_else(|| IpNet::new(unspecified, length).ok().map(Some));
    };
    Some(Some(IpNet::new(address(attribute.value)?, length).ok()?))
}

/// Reads an address, of the family implied by the length.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        16 => bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}

fn selectors(tos: u8, attributes: Attributes<'_>) -> Vec<String> {
    let mut all = Vec::new();
    if tos != 0 {
        all.push(format!("tos {tos:#x}"));
    }
    let mask = attributes.get(FRA_FWMASK).and_then(Attribute::u32);
    let mark = attributes.get(FRA_FWMARK).and_then(Attribute::u32);
    match (mark, mask) {
        (None | Some(0), None | Some(0)) => {}
        (mark, None | Some(u32::MAX)) => all.push(format!("fwmark {:#x}", mark.unwrap_or(0))),
        (mark, Some(mask)) => all.push(format!("fwmark {:#x}/{mask:#x}", mark.unwrap_or(0))),
    }
    for attribute in attributes.iter() {
        let words = |name: &str| {
            let number = |at| crate::netlink::u16_at(attribute.value, at).unwrap_or(0);
            format!("{name} {}-{}", number(0), number(2))
        };
        match attribute.kind {
            FRA_TUN_ID => all.push(format!("tun_id {}", attribute.be64().unwrap_or(0))),
            FRA_UID_RANGE => all.push("uidrange".to_owned()),
            FRA_IP_PROTO => all.push(format!("ipproto {}", attribute.u8().unwrap_or(0))),
            FRA_SPORT_RANGE => all.push(words("sport")),
            FRA_DPORT_RANGE => all.push(words("dport")),
            // Of later kernels: DSCP, flow labels, masks of ports. A selector by all appearances.
            kind if kind > FRA_DPORT_RANGE => all.push(format!("selector {kind}")),
            _ => {}
        }
    }
    all
}

fn modifiers(attributes: Attributes<'_>) -> Vec<String> {
    let mut all = Vec::new();
    let value =
        |kind| attributes.get(kind).and_then(Attribute::u32).filter(|&value| value != NOTHING);
    all.extend(
        value(FRA_SUPPRESS_PREFIXLEN).map(|length| format!("suppress_prefixlength {length}")),
    );
    all.extend(value(FRA_SUPPRESS_IFGROUP).map(|group| format!("suppress_ifgroup {group}")));
    all
}

fn table_name(table: u32) -> String {
    match table {
        253 => "default".to_owned(),
        254 => "main".to_owned(),
        255 => "local".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the request for all rules of a family.
pub fn request(family: Family) -> Request {
    let mut fixed = [0; FIXED];
    fixed[0] = family.number();
    Request::new(RTM_GETRULE, &fixed)
}

/// Returns the findings.
pub fn findings(rules: &[RoutingRule], links: &Links, options: &Options) -> Vec<Finding> {
    let missing = Family::BOTH.into_iter().filter_map(|family| missing_defaults(rules, family));
    rules.iter().filter_map(|rule| rule.finding(links, options)).chain(missing).collect()
}

/// Returns the finding about a default rule that was removed: without that for table `main` the kernel finds no route.
fn missing_defaults(rules: &[RoutingRule], family: Family) -> Option<Finding> {
    let of_family: Vec<&RoutingRule> = rules.iter().filter(|rule| rule.family == family).collect();
    let has = |wanted| {
        let leads = |rule: &&RoutingRule| {
            rule.is_for_all() && matches!(rule.act, Act::Lookup(table) if table == wanted)
        };
        of_family.iter().any(leads)
    };
    if of_family.is_empty() || (has(254) && has(255)) {
        return None;
    }
    let table = if has(254) { "local" } else { "main" };
    let place = Place::RoutingRule { family, priority: 0, text: String::new() };
    let message = format!("{} has no rule that leads to table {table}", family.name());
    let way_out = format!(
        "add it: ip {}rule add lookup {table}",
        if family == Family::Ip6 { "-6 " } else { "" }
    );
    Some(Finding::refuse(Kind::Rules, place, Packets::Family(family), message, &way_out))
}

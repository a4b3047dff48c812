//! nftables: chains attached to hooks that forwarded packets pass, and the rules that they lead to.
//!
//! Netlink alone finds chains and rules; the program `nft` only adds their texts (`texts.rs`), so that nothing is
//! hidden where it is not installed.
//!
//! | chain | treatment |
//! |---|---|
//! | hooks prerouting, forward, postrouting of `ip`, `ip6`, `inet`; ingress, egress of accelerated interfaces | examined |
//! | `arp`; hooks input, output; chains for other interfaces | no effect on forwarded packets |
//! | `bridge` | only ports of bridges, which are refused as such |
//! | policy accept, and rules that only accept, count and log | no effect on packets |
//! | anything else | translated into filters ([`crate::translate`]), or refused |

mod effects;
mod met;
pub mod texts;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::established::{Holds, Met, Obstacle, Walk};
use crate::finding::{Action, Family, Finding, Kind, Packets, Place, Rule};
use crate::links::Links;
use crate::netlink::{Attribute, Attributes, Connection, Raw, Request};
pub use effects::{Effects, tracks as uses_connections};
pub use met::of_match;

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10 << 8;
const NFT_MSG_NEWTABLE: u16 = SUBSYSTEM;
const NFT_MSG_GETTABLE: u16 = SUBSYSTEM | 1;
const NFT_MSG_NEWCHAIN: u16 = SUBSYSTEM | 3;
const NFT_MSG_GETCHAIN: u16 = SUBSYSTEM | 4;
const NFT_MSG_NEWRULE: u16 = SUBSYSTEM | 6;
const NFT_MSG_GETRULE: u16 = SUBSYSTEM | 7;
const NFT_MSG_NEWSET: u16 = SUBSYSTEM | 9;
const NFT_MSG_GETSET: u16 = SUBSYSTEM | 10;
const NFT_MSG_NEWGEN: u16 = SUBSYSTEM | 15;
const NFT_MSG_GETGEN: u16 = SUBSYSTEM | 16;

/// Bytes of `struct nfgenmsg`.
pub const FIXED: usize = 4;

// `linux/netfilter/nf_tables.h`.
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
const NFTA_DEVICE_PREFIX: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_GEN_ID: u16 = 1;

/// `NFT_SET_TIMEOUT` and `NFT_SET_EVAL`: elements come and go without a notification.
const VOLATILE: u32 = 0x30;

/// `NFT_TABLE_F_DORMANT`: the kernel calls none of its chains.
const DORMANT: u32 = 1;

/// `NF_IP_PRI_CONNTRACK`.
const CONNTRACK_PRIORITY: i32 = -200;

/// `NF_DROP`.
const DROP: u32 = 0;

/// Families of nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableFamily {
    Ip,
    Ip6,
    Inet,
    Arp,
    Bridge,
    Netdev,
}

impl TableFamily {
    fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Inet),
            2 => Some(Self::Ip),
            3 => Some(Self::Arp),
            5 => Some(Self::Netdev),
            7 => Some(Self::Bridge),
            10 => Some(Self::Ip6),
            _ => None,
        }
    }

    /// Returns its name in nftables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Arp => "arp",
            Self::Bridge => "bridge",
            Self::Netdev => "netdev",
        }
    }
}

/// Returns the name of a hook.
fn hook_name(family: TableFamily, number: u32) -> &'static str {
    match (family, number) {
        (TableFamily::Netdev, 0) | (TableFamily::Inet, 5) => "ingress",
        (TableFamily::Netdev, 1) => "egress",
        (TableFamily::Netdev | TableFamily::Arp, _) => "unknown",
        (_, 0) => "prerouting",
        (_, 1) => "input",
        (_, 2) => "forward",
        (_, 3) => "output",
        (_, 4) => "postrouting",
        _ => "unknown",
    }
}

/// A table and a chain in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName {
    pub family: TableFamily,
    pub table: String,
    pub chain: String,
}

/// A chain attached to a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub name: ChainName,
    /// `filter`, `nat`, `route`.
    pub kind: String,
    pub hook: &'static str,
    pub priority: i32,
    pub drops: bool,
    /// The interfaces of hooks ingress and egress; a name with `*` at its end stands for all that begin so.
    pub devices: Vec<String>,
}

impl Base {
    /// Reads `NFT_MSG_NEWCHAIN`; `None` for a chain that is attached to no hook.
    pub fn read(raw: &Raw<'_>) -> Option<Self> {
        let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == NFT_MSG_NEWCHAIN)?;
        let family = TableFamily::of(fixed[0])?;
        let hook = attributes.get(NFTA_CHAIN_HOOK)?.nested();
        let number = |kind| hook.get(kind).and_then(Attribute::be32);
        Some(Self {
            name: ChainName {
                family,
                table: attributes.text(NFTA_CHAIN_TABLE),
                chain: attributes.text(NFTA_CHAIN_NAME),
            },
            kind: attributes.text(NFTA_CHAIN_TYPE),
            hook: hook_name(family, number(NFTA_HOOK_HOOKNUM)?),
            priority: number(NFTA_HOOK_PRIORITY)?.cast_signed(),
            drops: attributes.get(NFTA_CHAIN_POLICY).and_then(Attribute::be32) == Some(DROP),
            devices: devices(hook),
        })
    }

    /// Returns true if packets forwarded between accelerated interfaces pass it.
    fn is_on_the_way(&self, links: &Links) -> bool {
        let is_device = |device: &String| match device.strip_suffix('*') {
            Some(start) => links.wanted.iter().any(|name| name.starts_with(start)),
            None => links.is_taken(device),
        };
        match (self.name.family, self.hook) {
            (TableFamily::Arp | TableFamily::Bridge, _) => false,
            (_, "ingress" | "egress") => self.devices.iter().any(is_device),
            (_, hook) => matches!(hook, "prerouting" | "forward" | "postrouting"),
        }
    }

    fn packets(&self, links: &Links) -> Packets {
        match (self.name.family, self.hook) {
            (TableFamily::Ip, _) => Packets::Family(Family::Ip4),
            (TableFamily::Ip6, _) => Packets::Family(Family::Ip6),
            (_, "ingress") => Packets::ReceivedOn(self.taken_devices(links)),
            (_, "egress") => Packets::SentBy(self.taken_devices(links)),
            _ => Packets::All,
        }
    }

    fn taken_devices(&self, links: &Links) -> Vec<String> {
        let has = |name: &&String| {
            let is = |device: &String| match device.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => device == *name,
            };
            self.devices.iter().any(is)
        };
        links.wanted.iter().filter(has).cloned().collect()
    }
}

fn devices(hook: Attributes<'_>) -> Vec<String> {
    let several = hook.nested(NFTA_HOOK_DEVS);
    let name = |device: Attribute<'_>| {
        let end = if device.kind == NFTA_DEVICE_PREFIX { "*" } else { "" };
        format!("{}{end}", device.text())
    };
    let mut all: Vec<String> = several.iter().map(name).collect();
    if all.is_empty() {
        all.extend(hook.get(NFTA_HOOK_DEV).map(Attribute::text));
    }
    all
}

/// Reads `NFT_MSG_NEWTABLE` of a table that is switched off.
pub fn read_dormant(raw: &Raw<'_>) -> Option<(TableFamily, String)> {
    let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == NFT_MSG_NEWTABLE)?;
    let flags = attributes.get(NFTA_TABLE_FLAGS).and_then(Attribute::be32).unwrap_or(0);
    (flags & DORMANT != 0).then_some((TableFamily::of(fixed[0])?, attributes.text(NFTA_TABLE_NAME)))
}

/// A rule, as netlink describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRule {
    pub handle: u64,
    pub effects: Effects,
    /// The rule as packets of established flows meet it, in front of connection tracking and behind it.
    pub met: [Met; 2],
}

/// Reads `NFT_MSG_NEWRULE`.
pub fn read_rule(raw: &Raw<'_>) -> Option<(ChainName, KernelRule)> {
    let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == NFT_MSG_NEWRULE)?;
    let name = ChainName {
        family: TableFamily::of(fixed[0])?,
        table: attributes.text(NFTA_RULE_TABLE),
        chain: attributes.text(NFTA_RULE_CHAIN),
    };
    let handle = attributes.get(NFTA_RULE_HANDLE).and_then(Attribute::be64)?;
    let expressions = attributes.nested(NFTA_RULE_EXPRESSIONS);
    let met = [false, true]
        .map(|tracked| met::read(expressions, met::Where { family: name.family, tracked }));
    Some((name, KernelRule { handle, effects: Effects::of(expressions), met }))
}

/// Reads `NFT_MSG_NEWSET` of a set whose elements come and go by themselves or by packets: its table and name.
pub fn read_volatile(raw: &Raw<'_>) -> Option<(TableFamily, String, String)> {
    let (fixed, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == NFT_MSG_NEWSET)?;
    let flags = attributes.get(NFTA_SET_FLAGS).and_then(Attribute::be32).unwrap_or(0);
    let name = (attributes.text(NFTA_SET_TABLE), attributes.text(NFTA_SET_NAME));
    (flags & VOLATILE != 0).then_some((TableFamily::of(fixed[0])?, name.0, name.1))
}

/// The chains and rules of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    pub bases: Vec<Base>,
    pub rules: BTreeMap<ChainName, Vec<KernelRule>>,
    /// The number of their state: it changes with each change of theirs.
    pub generation: u32,
}

/// Returns the number of the present state; 0 where the kernel has no nftables.
///
/// # Errors
/// The kernel refuses, usually for want of CAP_NET_ADMIN.
pub fn generation(connection: &mut Connection) -> io::Result<u32> {
    let read = |raw: &Raw<'_>| {
        let (_, attributes) = raw.split::<FIXED>().filter(|_| raw.kind == NFT_MSG_NEWGEN)?;
        attributes.get(NFTA_GEN_ID)?.be32()
    };
    match connection.ask(&Request::new(NFT_MSG_GETGEN, &[0; FIXED]), read) {
        Err(error) if is_unsupported(&error) => Ok(0),
        generation => Ok(generation?.unwrap_or(0)),
    }
}

/// Returns true if the kernel has no such part of netfilter.
pub fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput)
}

/// Number of attempts at reading rules that change meanwhile.
const ATTEMPTS: u32 = 8;

/// Reads the chains and rules.
///
/// # Errors
/// The kernel refuses, or they change all the time.
pub fn read(connection: &mut Connection) -> io::Result<Tables> {
    for _ in 0..ATTEMPTS {
        let generation_before = generation(connection)?;
        if generation_before == 0 {
            return Ok(Tables::default());
        }
        let mut tables = Tables { generation: generation_before, ..Tables::default() };
        tables.bases = connection.dump(&Request::new(NFT_MSG_GETCHAIN, &[0; FIXED]), Base::read)?;
        let request = Request::new(NFT_MSG_GETTABLE, &[0; FIXED]);
        let dormant = connection.dump(&request, read_dormant)?;
        let is_dormant = |name: &ChainName| {
            dormant.iter().any(|(family, table)| (*family, table) == (name.family, &name.table))
        };
        tables.bases.retain(|base| !is_dormant(&base.name));
        tables.bases.sort_by(|one, other| {
            (one.hook, one.priority, &one.name).cmp(&(other.hook, other.priority, &other.name))
        });
        for (name, rule) in
            connection.dump(&Request::new(NFT_MSG_GETRULE, &[0; FIXED]), read_rule)?
        {
            tables.rules.entry(name).or_default().push(rule);
        }
        let request = Request::new(NFT_MSG_GETSET, &[0; FIXED]);
        tables.mark_volatile(&connection.dump(&request, read_volatile)?);
        if generation(connection)? == generation_before {
            return Ok(tables);
        }
    }
    Err(io::Error::other("the rules change all the time"))
}

/// The texts of rules, by table, and their handle in it.
pub type Texts = BTreeMap<(TableFamily, String, u64), String>;

/// A base chain with effects on forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective<'t> {
    pub base: &'t Base,
    /// The effects of all its rules together.
    pub effects: Effects,
    /// The rules reached that have an effect; with policy drop all of them.
    pub rules: Vec<Rule>,
    /// The one of these that is named: the first that filters cannot follow, or simply the first.
    pub named: usize,
}

impl Tables {
    /// Returns true if any rule makes the kernel track connections.
    pub fn tracks(&self) -> bool {
        self.rules.values().flatten().any(|rule| rule.effects.tracks || rule.effects.translates)
            || self.bases.iter().any(|base| base.kind == "nat")
    }

    /// Notes the rules that look into these sets.
    pub fn mark_volatile(&mut self, sets: &[(TableFamily, String, String)]) {
        for (chain, rules) in &mut self.rules {
            let is_volatile = |set: &String| {
                let is_it = |(family, table, name): &(TableFamily, String, String)| {
                    (*family, table, name) == (chain.family, &chain.table, set)
                };
                sets.iter().any(is_it)
            };
            for met in rules.iter_mut().flat_map(|rule| &mut rule.met) {
                if met.holds != Holds::Never && met.sets.iter().any(is_volatile) {
                    met.part = met.part.take().or_else(|| Some("a set with timeouts".to_owned()));
                }
            }
        }
    }

    /// Returns the first rule of a base chain that packets of established flows meet and that depends on more than the
    /// flow. Chains of NAT see the first packet of a flow alone.
    pub fn obstacle(&self, base: &Base) -> Option<Obstacle> {
        if base.kind == "nat" {
            return None;
        }
        let tracked = match base.hook {
            "forward" | "postrouting" => true,
            "prerouting" => base.priority > CONNTRACK_PRIORITY,
            _ => false,
        };
        let name = |chain: &str| ChainName { chain: chain.to_owned(), ..base.name.clone() };
        let rules = |chain: &str| -> Vec<&Met> {
            let rules = self.rules.get(&name(chain)).into_iter().flatten();
            rules.map(|rule| &rule.met[usize::from(tracked)]).collect()
        };
        let same = |other: &&ChainName| {
            (other.family, &other.table) == (base.name.family, &base.name.table)
                && !self.bases.iter().any(|base| base.name == **other)
        };
        let all = self.rules.keys().filter(same).map(|name| name.chain.clone()).collect();
        Walk::obstacle(&rules, &base.name.chain, all)
    }

    /// Returns the chains with an effect on packets forwarded between accelerated interfaces.
    pub fn effective<'t>(&'t self, links: &Links, texts: &Texts) -> Vec<Effective<'t>> {
        let bases = self.bases.iter().filter(|base| base.is_on_the_way(links));
        bases.filter_map(|base| self.effective_base(base, texts)).collect()
    }

    fn effective_base<'t>(&'t self, base: &'t Base, texts: &Texts) -> Option<Effective<'t>> {
        let reached = self.reached(&base.name);
        let mut effects = Effects::default();
        let (mut rules, mut named) = (Vec::new(), None);
        for (name, number, rule) in reached {
            effects.add(&rule.effects);
            if !base.drops && !rule.effects.has_any() {
                continue;
            }
            let key = (name.family, name.table.clone(), rule.handle);
            let text =
                texts.get(&key).cloned().unwrap_or_else(|| rule.effects.expressions.join(" "));
            let chain = (name.chain != base.name.chain).then(|| name.chain.clone());
            if rule.effects.has_state() {
                named = named.or(Some(rules.len()));
            }
            rules.push(Rule { chain, number, text });
        }
        let named = named.unwrap_or(0);
        (base.drops || effects.has_any()).then_some(Effective { base, effects, rules, named })
    }

    /// Returns the rules that packets of a chain may meet, each with its chain and its number there.
    fn reached(&self, first: &ChainName) -> Vec<(&ChainName, usize, &KernelRule)> {
        let (mut seen, mut next, mut all) = (BTreeSet::new(), vec![first.clone()], Vec::new());
        while let Some(name) = next.pop() {
            let Some((name, rules)) = self.rules.get_key_value(&name) else { continue };
            if !seen.insert(name) {
                continue;
            }
            for (index, rule) in rules.iter().enumerate() {
                all.push((name, index + 1, rule));
                let jumps = rule.effects.jumps.iter();
                next.extend(jumps.map(|chain| ChainName { chain: chain.clone(), ..name.clone() }));
                if rule.effects.maps {
                    let same = |other: &&ChainName| {
                        other.family == name.family && other.table == name.table
                    };
                    let based =
                        |other: &ChainName| self.bases.iter().any(|base| base.name == *other);
                    // A map may lead to any chain of the table.
                    next.extend(
                        self.rules.keys().filter(same).filter(|&other| !based(other)).cloned(),
                    );
                }
            }
        }
        // The base chain's rules come first.
        all.sort_by_key(|(name, number, _)| ((*name != first), (*name).clone(), *number));
        all
    }
}

impl Effective<'_> {
    /// Returns the finding where flows are followed, which have met the chain in the kernel.
    pub fn finding_of_flows(&self, links: &Links, tables: &Tables) -> Finding {
        let (place, chain) = (self.place(), self.description());
        let packets = self.base.packets(links);
        let kind = if self.base.kind == "nat" { Kind::Nat } else { Kind::Nftables };
        let Some(Obstacle { chain: of, number, part }) = tables.obstacle(self.base) else {
            let message = format!("{chain}: accelerated flows are those that it lets pass");
            return Finding::new(kind, place, packets, Action::Follow, message);
        };
        let is_it = |rule: &&Rule| {
            rule.number == number && rule.chain.as_ref().unwrap_or(&self.base.name.chain) == &of
        };
        let rule = self.rules.iter().find(is_it);
        let rule = rule.map_or_else(|| format!("rule {number} of chain {of}"), Rule::to_string);
        let message = format!(
            "{chain} has a rule for each packet of an established flow, not for the flow ({part}), which accelerated packets \
             would bypass: {rule}"
        );
        let way_out = "accept established connections in front of it, or remove it";
        Finding::refuse(kind, place, packets, message, way_out)
    }

    fn place(&self) -> Place {
        let Base { name, hook, priority, .. } = self.base;
        Place::Chain {
            family: name.family.name().to_owned(),
            table: name.table.clone(),
            chain: name.chain.clone(),
            hook: (*hook).to_owned(),
            priority: *priority,
            rules: self.rules.clone(),
        }
    }

    fn description(&self) -> String {
        let Base { name, hook, priority, drops, .. } = self.base;
        let policy = if *drops { ", policy drop" } else { "" };
        format!(
            "nftables table {} {} chain {} (hook {hook}, priority {priority}{policy})",
            name.family.name(),
            name.table,
            name.chain
        )
    }

    /// Returns the finding; `translated` if forward chains are filters.
    pub fn finding(&self, links: &Links, translated: bool) -> Finding {
        let (place, chain) = (self.place(), self.description());
        let packets = self.base.packets(links);
        if translated && self.is_filter() {
            let rules = plural(self.rules.len(), "rule");
            let message = format!("{chain}: its {rules} can be filters");
            return Finding::new(Kind::Nftables, place, packets, Action::Follow, message);
        }
        let is_nat = self.base.kind == "nat" || self.effects.translates;
        let message = format!("{chain} {}", bypassed(&self.rules, self.named));
        let kind = if is_nat { Kind::Nat } else { Kind::Nftables };
        let way_out = way_out(is_nat || self.effects.tracks);
        Finding::refuse(kind, place, packets, message, way_out)
    }
}

/// Returns the words about rules that would be bypassed, one of which is named.
pub fn bypassed(rules: &[Rule], named: usize) -> String {
    let Some(rule) = rules.get(named) else {
        return "has a policy to drop that accelerated packets would bypass".to_owned();
    };
    format!("has {} that accelerated packets would bypass: {rule}", plural(rules.len(), "rule"))
}

/// Returns the way out for rules that use connections, or not.
pub fn way_out(tracks: bool) -> &'static str {
    match tracks {
        true => "accelerate established flows only (--flows), remove them",
        false => "remove them",
    }
}

/// Returns the number and its noun.
pub fn plural(number: usize, noun: &str) -> String {
    if number == 1 { format!("{number} {noun}") } else { format!("{number} {noun}s") }
}

//! Legacy iptables and ip6tables. Those of today are nftables to the kernel (`iptables-nft`), and found as such.
//!
//! The kernel lists the tables in use in `/proc/net/ip_tables_names`; `iptables-legacy-save` prints their rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use crate::established::{End, Holds, Met, Obstacle, Walk, tcp_flags};
use crate::finding::{Action, Family, Finding, Kind, Packets, Place, Rule};
use crate::nft::{self, Effects, bypassed, plural, way_out};
use crate::programs::{self, Missing};

/// Hooks that forwarded packets pass, and the names of their chains.
const CHAINS: [&str; 3] = ["PREROUTING", "FORWARD", "POSTROUTING"];

/// Tables in use whose rules are known, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    pub family: Family,
    /// Their names, sorted.
    pub names: Vec<String>,
    /// The output of `iptables-legacy-save`.
    pub rules: Result<Vec<Table>, Missing>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub name: String,
    /// Built-in chains and their policies; `None` for chains of users.
    pub chains: BTreeMap<String, Option<String>>,
    /// Rules in order: chain and text.
    pub rules: Vec<(String, String)>,
}

fn file_of(family: Family) -> &'static str {
    match family {
        Family::Ip4 => "/proc/thread-self/net/ip_tables_names",
        Family::Ip6 => "/proc/thread-self/net/ip6_tables_names",
    }
}

fn program_of(family: Family) -> [&'static str; 2] {
    match family {
        Family::Ip4 => ["iptables-legacy-save", "iptables-save"],
        Family::Ip6 => ["ip6tables-legacy-save", "ip6tables-save"],
    }
}

/// Reads the tables of a family; `None` if none is in use.
///
/// # Errors
/// Only root may read their names.
pub fn read(family: Family) -> io::Result<Option<Tables>> {
    let names = match fs::read_to_string(file_of(family)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        names => names?,
    };
    let names: BTreeSet<String> = names.split_whitespace().map(str::to_owned).collect();
    if names.is_empty() {
        return Ok(None);
    }
    Ok(Some(Tables { family, names: names.into_iter().collect(), rules: listing(family) }))
}

/// Returns the rules by the first program that prints legacy ones.
fn listing(family: Family) -> Result<Vec<Table>, Missing> {
    let [legacy, plain] = program_of(family);
    match programs::run(legacy, &[]) {
        Err(Missing::Program(_)) => {}
        listing => return Ok(parse(&listing?)),
    }
    let listing = programs::run(plain, &[])?;
    // That of nftables does not print them.
    match listing.contains("(nf_tables)") || listing.contains("use iptables-legacy-save") {
        true => Err(Missing::Program(legacy.to_owned())),
        false => Ok(parse(&listing)),
    }
}

/// Reads the output of `iptables-save`.
pub fn parse(listing: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for line in listing.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('*') {
            tables.push(Table { name: name.to_owned(), ..Table::default() });
            continue;
        }
        let Some(table) = tables.last_mut() else { continue };
        let mut words = line.split_whitespace();
        match words.next() {
            Some("-A") => {
                let chain = words.next().unwrap_or_default().to_owned();
                table.rules.push((chain, line.to_owned()));
            }
            Some(word) => {
                let Some(chain) = word.strip_prefix(':') else { continue };
                let policy = words.next().filter(|&policy| policy != "-").map(str::to_owned);
                table.chains.insert(chain.to_owned(), policy);
            }
            None => {}
        }
    }
    tables
}

/// Returns the effects of a rule.
fn effects(rule: &str, chains: &BTreeMap<String, Option<String>>) -> Effects {
    let words: Vec<&str> = rule.split_whitespace().collect();
    let mut effects = Effects::default();
    for pair in words.windows(2) {
        match pair {
            ["-m", name] => {
                effects.tracks |= crate::nft::uses_connections(name);
                effects.counts |= matches!(
                    *name,
                    "limit" | "hashlimit" | "quota" | "statistic" | "recent" | "connlimit"
                );
            }
            ["-j" | "-g", target] => of_target(&mut effects, target, chains),
            _ => {}
        }
    }
    effects
}

/// Returns a rule as packets of established flows meet it, behind connection tracking or in front of it.
fn met(rule: &str, chains: &BTreeMap<String, Option<String>>, tracked: bool) -> Met {
    // Comments have any words.
    let plain: String = rule.split('"').step_by(2).collect();
    let words: Vec<&str> = plain.split_whitespace().skip(2).collect();
    let mut met = Met::default();
    for (index, word) in words.iter().enumerate() {
        let next = |number: usize| words.get(index + number).copied().unwrap_or_default();
        let holds = match *word {
            // Its options follow.
            "-m" => nft::of_match(next(1)).map(|of| match of {
                Holds::OfFlow => Holds::Always,
                other => other,
            }),
            "-p" if ["tcp", "udp", "all"].contains(&next(1)) => Some(Holds::OfFlow),
            "-p" => Some(Holds::Never),
            "--ctstate" | "--state" if tracked => {
                Some(Holds::known(next(1).split(',').any(|state| state == "ESTABLISHED")))
            }
            "--comment" => Some(Holds::Always),
            "--ctexpire" | "--tcp-option" => None,
            "--tcp-flags" => tcp_flags(flags(next(1)), flags(next(2))),
            "-j" | "-g" => end(&mut met, word, next(1), chains),
            word if word.starts_with('-') => Some(Holds::OfFlow),
            _ => continue,
        };
        let is_inverted = index > 0 && words[index - 1] == "!";
        match holds {
            Some(holds) if is_inverted => met.holds = met.holds.and(holds.not()),
            Some(holds) => met.holds = met.holds.and(holds),
            None => met.part = Some(format!("{word} {}", next(1))),
        }
        if met.part.is_some() || met.holds == Holds::Never {
            break;
        }
    }
    met
}

/// Reads the end of a rule; `None` if it does more than that.
fn end(
    met: &mut Met,
    word: &str,
    target: &str,
    chains: &BTreeMap<String, Option<String>>,
) -> Option<Holds> {
    met.end = match (word, target) {
        (_, "ACCEPT" | "DROP" | "REJECT") => End::Final,
        (_, "RETURN") => End::Return,
        (_, "LOG" | "NFLOG" | "TRACE" | "NOTRACK") => End::Next,
        ("-g", chain) if chains.contains_key(chain) => End::Goto(chain.to_owned()),
        (_, chain) if chains.contains_key(chain) => End::Jump(chain.to_owned()),
        _ => return None,
    };
    Some(Holds::Always)
}

/// Returns the bits of flags by their names.
fn flags(names: &str) -> u8 {
    const NAMES: [&str; 6] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let bit = |name: &str| match NAMES.iter().position(|known| *known == name) {
        Some(bit) => 1 << bit,
        None if name == "ALL" => 0x3f,
        None => 0,
    };
    names.split(',').fold(0, |flags, name| flags | bit(name))
}

fn of_target(effects: &mut Effects, target: &str, chains: &BTreeMap<String, Option<String>>) {
    match target {
        "ACCEPT" | "RETURN" => {}
        "DROP" => effects.drops = true,
        chain if chains.contains_key(chain) => effects.jumps.push(chain.to_owned()),
        other => effects.target(other),
    }
}

impl Table {
    /// Returns the first rule of a chain that packets of established flows meet and that depends on more than the flow.
    /// The table of NAT sees the first packet of a flow alone.
    fn obstacle(&self, chain: &str) -> Option<Obstacle> {
        if self.name == "nat" {
            return None;
        }
        let tracked = self.name != "raw";
        let mut all: BTreeMap<&str, Vec<Met>> = BTreeMap::new();
        for (of, text) in &self.rules {
            all.entry(of).or_default().push(met(text, &self.chains, tracked));
        }
        let rules = |chain: &str| all.get(chain).into_iter().flatten().collect();
        Walk::obstacle(&rules, chain, Vec::new())
    }

    /// Returns the rules that packets of a chain may meet, each with its chain, its number there, and its effects.
    fn reached(&self, first: &str) -> Vec<(String, usize, &str, Effects)> {
        let (mut seen, mut next, mut all) = (BTreeSet::new(), vec![first.to_owned()], Vec::new());
        while let Some(chain) = next.pop() {
            if !seen.insert(chain.clone()) {
                continue;
            }
            let rules = self.rules.iter().filter(|(of, _)| *of == chain).enumerate();
            for (index, (_, text)) in rules {
                let effects = effects(text, &self.chains);
                next.extend(effects.jumps.iter().cloned());
                all.push((chain.clone(), index + 1, text.as_str(), effects));
            }
        }
        all.sort_by_key(|(chain, number, ..)| (chain != first, chain.clone(), *number));
        all
    }
}

/// A chain with effects on forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    pub table: String,
    pub chain: String,
    pub drops: bool,
    pub effects: Effects,
    pub rules: Vec<Rule>,
    /// The one of these that is named: the first that filters cannot follow, or simply the first.
    pub named: usize,
}

impl Effective {
    /// Returns true for a chain of the kind that filters are made of.
    pub fn is_filter(&self) -> bool {
        self.table == "filter" && self.chain == "FORWARD"
    }

    /// Returns true for one that translates addresses.
    pub fn is_nat(&self) -> bool {
        self.table == "nat" || self.effects.translates
    }
}

impl Tables {
    /// Returns true if any rule makes the kernel track connections.
    pub fn tracks(&self) -> bool {
        let tables = self.rules.iter().flatten();
        let mut rules = tables
            .flat_map(|table| table.rules.iter().map(|(_, text)| effects(text, &table.chains)));
        rules.any(|effects| effects.tracks) || self.names.iter().any(|name| name == "nat")
    }

    /// Returns the chains with an effect on forwarded packets.
    pub fn effective(&self) -> Vec<Effective> {
        let tables = self.rules.iter().flatten();
        let chains =
            tables.flat_map(|table| CHAINS.iter().filter_map(|chain| effective(table, chain)));
        chains.collect()
    }

    /// Returns the findings where flows are followed, which have met the chains in the kernel.
    pub fn findings_of_flows(&self) -> Vec<Finding> {
        match &self.rules {
            Ok(tables) => {
                let effective =
                    |table| CHAINS.iter().filter_map(move |chain| effective(table, chain));
                let of =
                    |table| effective(table).map(move |one| self.finding_of_flows(table, &one));
                tables.iter().flat_map(of).collect()
            }
            Err(missing) => vec![self.unreadable(missing)],
        }
    }

    fn finding_of_flows(&self, table: &Table, one: &Effective) -> Finding {
        let (place, chain) = (self.place(one), self.description(one));
        let packets = Packets::Family(self.family);
        let kind = if table.name == "nat" { Kind::Nat } else { Kind::Iptables };
        let Some(Obstacle { chain: of, number, part }) = table.obstacle(&one.chain) else {
            let message = format!("{chain}: accelerated flows are those that it lets pass");
            return Finding::new(kind, place, packets, Action::Follow, message);
        };
        let text = table.rules.iter().filter(|(chain, _)| *chain == of).nth(number - 1);
        let text = text.map_or("", |(_, text)| text);
        let message = format!(
            "{chain} has a rule for each packet of an established flow, not for the flow ({part}), which accelerated packets \
             would bypass: \"{text}\""
        );
        let way_out = "accept established connections in front of it, or remove it";
        Finding::refuse(kind, place, packets, message, way_out)
    }

    fn place(&self, one: &Effective) -> Place {
        Place::Chain {
            family: self.program().to_owned(),
            table: one.table.clone(),
            chain: one.chain.clone(),
            hook: one.chain.to_lowercase(),
            priority: 0,
            rules: one.rules.clone(),
        }
    }

    fn description(&self, one: &Effective) -> String {
        let policy = if one.drops { " (policy DROP)" } else { "" };
        format!("legacy {} table {} chain {}{policy}", self.program(), one.table, one.chain)
    }

    /// Returns the findings; `translated` if forward chains are filters.
    pub fn findings(&self, translated: bool) -> Vec<Finding> {
        match &self.rules {
            Ok(_) => self.effective().iter().map(|one| self.finding(one, translated)).collect(),
            Err(missing) => vec![self.unreadable(missing)],
        }
    }

    fn program(&self) -> &'static str {
        match self.family {
            Family::Ip4 => "iptables",
            Family::Ip6 => "ip6tables",
        }
    }

    fn unreadable(&self, missing: &Missing) -> Finding {
        let place = Place::File { path: file_of(self.family).replace("thread-self/", "") };
        let message = format!(
            "legacy {} is in use (table{} {}), and its rules cannot be read: {missing}",
            self.program(),
            if self.names.len() == 1 { "" } else { "s" },
            self.names.join(", ")
        );
        let way_out = "install iptables, or unload these tables";
        Finding::refuse(Kind::Iptables, place, Packets::Family(self.family), message, way_out)
    }

    fn finding(&self, one: &Effective, translated: bool) -> Finding {
        let (place, chain) = (self.place(one), self.description(one));
        let packets = Packets::Family(self.family);
        if translated && one.is_filter() {
            let message =
                format!("{chain}: its {} can be filters", plural(one.rules.len(), "rule"));
            return Finding::new(Kind::Iptables, place, packets, Action::Follow, message);
        }
        let kind =
            if one.table == "nat" || one.effects.translates { Kind::Nat } else { Kind::Iptables };
        Finding::refuse(
            kind,
            place,
            packets,
            format!("{chain} {}", bypassed(&one.rules, one.named)),
            way_out(one.is_nat() || one.effects.tracks),
        )
    }

    /// Returns the forward chain and the chains of users, as `iptables-save` prints them.
    pub fn listing(&self) -> String {
        let tables = self.rules.iter().flatten().filter(|table| table.name == "filter");
        let mut text = String::new();
        for table in tables {
            let reached: BTreeSet<String> =
                table.reached("FORWARD").into_iter().map(|(chain, ..)| chain).collect();
            let is_wanted = |chain: &String| chain == "FORWARD" || reached.contains(chain);
            text += &format!("# Generated by {}-save\n*filter\n", self.program());
            for (chain, policy) in table.chains.iter().filter(|(chain, _)| is_wanted(chain)) {
                text += &format!(":{chain} {} [0:0]\n", policy.as_deref().unwrap_or("-"));
            }
            for (_, rule) in table.rules.iter().filter(|(chain, _)| is_wanted(chain)) {
                text += &format!("{rule}\n");
            }
            text += "COMMIT\n";
        }
        text
    }
}

fn effective(table: &Table, chain: &str) -> Option<Effective> {
    let drops = table.chains.get(chain)?.as_deref() == Some("DROP");
    let mut one = Effective {
        table: table.name.clone(),
        chain: chain.to_owned(),
        drops,
        effects: Effects::default(),
        rules: Vec::new(),
        named: 0,
    };
    let mut named = None;
    for (of, number, text, effects) in table.reached(chain) {
        one.effects.add(&effects);
        if drops || effects.has_any() {
            let of = (of != chain).then_some(of);
            if effects.has_state() {
                named = named.or(Some(one.rules.len()));
            }
            one.rules.push(Rule { chain: of, number, text: text.to_owned() });
        }
    }
    one.named = named.unwrap_or(0);
    (drops || one.effects.has_any()).then_some(one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LISTING: &str = "\
# Generated by iptables-save v1.8.9 on Sat Nov 28 21:38:51 2026
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o wan -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:lan - [0:0]
-A INPUT -j DROP
-A FORWARD -i lan -j lan
-A FORWARD -j LOG
-A lan -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A lan -p tcp -m tcp --dport 25 -j REJECT --reject-with icmp-port-unreachable
COMMIT
";

    fn tables(listing: &str) -> Tables {
        Tables {
            family: Family::Ip4,
            names: vec!["filter".into(), "nat".into()],
            rules: Ok(parse(listing)),
        }
    }

    #[test]
    fn only_chains_of_forwarded_packets_count_with_those_that_they_lead_to() {
        let tables = tables(LISTING);
        let findings = tables.findings(false);
        let kinds: Vec<Kind> = findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::Nat, Kind::Iptables]);
        assert_eq!(
            findings[1].to_string(),
            "legacy iptables table filter chain FORWARD has 1 rule that accelerated packets would bypass: rule 2 of chain \
             lan \"-A lan -p tcp -m tcp --dport 25 -j REJECT --reject-with icmp-port-unreachable\"; accelerate established \
             flows only (--flows), remove them, or say --bypass iptables"
        );
        assert!(tables.tracks());
    }

    #[test]
    fn rules_that_only_accept_and_log_are_none() {
        let listing = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -j ACCEPT\n-A FORWARD -j LOG\nCOMMIT\n";
        assert_eq!(tables(listing).findings(false), []);
        let dropping = tables(&listing.replace(":FORWARD ACCEPT", ":FORWARD DROP")).findings(false);
        assert!(
            matches!(&dropping[0].place, Place::Chain { rules, .. } if rules.len() == 2),
            "{dropping:?}"
        );
    }

    #[test]
    fn rules_for_each_packet_are_obstacles_of_flows_unless_established_ones_do_not_meet_them() {
        let obstacle = |rules: &str| {
            let rules: String = rules.lines().map(|rule| format!("-A {rule}\n")).collect();
            let listing = format!("*filter\n:FORWARD DROP [0:0]\n:lan - [0:0]\n{rules}COMMIT\n");
            let table = parse(&listing).remove(0);
            table.obstacle("FORWARD").map(|of| (of.chain, of.number, of.part))
        };
        let limit = "FORWARD -m limit --limit 5/sec -j ACCEPT";
        let at =
            |chain: &str, number, part: &str| Some((chain.to_owned(), number, part.to_owned()));
        assert_eq!(obstacle(limit), at("FORWARD", 1, "-m limit"));
        for established in [
            "FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "FORWARD -m state --state ESTABLISHED -m comment --comment \"-j x -m y\" -j ACCEPT",
            "FORWARD -m conntrack ! --ctstate NEW,INVALID -j ACCEPT",
            "FORWARD -j lan\nlan -m state --state ESTABLISHED -j ACCEPT",
            "FORWARD ! -p icmp -j ACCEPT",
        ] {
            assert_eq!(obstacle(&format!("{established}\n{limit}")), None, "{established}");
        }
        for other in [
            "FORWARD -m conntrack --ctstate NEW -j ACCEPT",
            "FORWARD -m conntrack --ctstate ESTABLISHED -s 10.0.0.0/8 -j ACCEPT",
            "FORWARD -m conntrack --ctstate ESTABLISHED -j LOG",
            "FORWARD -p icmp -j ACCEPT",
            "FORWARD -i lan -j lan\nlan -m state --state ESTABLISHED -j ACCEPT",
        ] {
            assert_eq!(
                obstacle(&format!("{other}\n{limit}")),
                at("FORWARD", 2, "-m limit"),
                "{other}"
            );
        }
        for harmless in [
            "FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
            "FORWARD -p tcp -m conntrack --ctstate NEW -m limit --limit 5/sec -j ACCEPT",
            "FORWARD -p tcp -m tcp --dport 25 -j REJECT --reject-with icmp-port-unreachable",
            "FORWARD -p icmp -m limit --limit 5/sec -j ACCEPT",
        ] {
            assert_eq!(obstacle(harmless), None, "{harmless}");
        }
        assert_eq!(obstacle("FORWARD -j MARK --set-xmark 0x1/0x1"), at("FORWARD", 1, "-j MARK"));
        assert_eq!(
            obstacle("FORWARD -p tcp -m tcp --tcp-flags PSH PSH -j DROP"),
            at("FORWARD", 1, "--tcp-flags PSH")
        );
        let finding = tables(LISTING).findings_of_flows();
        assert!(finding.iter().all(|of| of.action == Action::Follow), "{finding:?}");
    }

    #[test]
    fn the_listing_for_filters_has_no_chains_of_other_hooks() {
        let text = tables(LISTING).listing();
        assert!(text.contains("-A lan -p tcp") && text.contains(":lan - "), "{text}");
        assert!(!text.contains("INPUT") && !text.contains("MASQUERADE"), "{text}");
    }

    proptest! {
        #[test]
        fn no_listing_is_a_crash(text in "(\\*|:|-A |-j |-g |-m |FORWARD|DROP| |\n|.){0,60}") {
            let tables = tables(&text);
            tables.findings(false);
            tables.listing();
        }
    }
}

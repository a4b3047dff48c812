//! Converts statements of nftables to rules.

use crate::matches::{Field, Match, Names};
use crate::nft::syntax::{
    Chain, Listing, Op, Pairs, Rule as Parsed, Set, Statement, Tuple, Values,
};
use crate::ranges::Ranges;
use crate::rules::{Base, ChainName, Hook, Limit, Origin, Outside, Rule, Ruleset, Verdict};
use crate::values::{self, Read};

pub fn lower(listing: &Listing) -> Ruleset {
    let mut rules = Ruleset::default();
    for chain in &listing.chains {
        let name = name_of(chain);
        let of_table = Table { listing, family: &chain.family, table: &chain.table };
        match place(chain) {
            Ok(base) => {
                rules.bases.extend(base);
                let lowered = chain.rules.iter().map(|rule| of_table.rule(rule));
                rules.chains.insert(name, lowered.collect());
            }
            Err(reason) => rules.outside.extend(left_out(chain, &reason)),
        }
    }
    rules
}

fn name_of(chain: &Chain) -> ChainName {
    let table = format!("{} {}", chain.family, chain.table);
    ChainName { table, chain: chain.name.clone() }
}

/// Returns the hook of a chain, if it has one that filters support.
fn place(chain: &Chain) -> Result<Option<Base>, String> {
    let family = match chain.family.as_str() {
        "ip" => Some(4),
        "ip6" => Some(6),
        "inet" => None,
        other => return Err(format!("tables of family {other} have no counterpart")),
    };
    let Some(of) = &chain.hook else { return Ok(None) };
    let hook = match (of.kind.as_str(), of.hook.as_str()) {
        ("filter", "forward") => Hook::Forward,
        ("filter", "input") => Hook::Input,
        ("filter", "output") => {
            return Err("what the router itself sends passes no filter".into());
        }
        ("nat", _) => return Err("there is no NAT".into()),
        (kind, hook) => return Err(format!("there is no counterpart of type {kind}, hook {hook}")),
    };
    let (priority, accepts) = (of.priority, of.accepts);
    Ok(Some(Base { chain: name_of(chain), hook, family, priority, accepts }))
}

/// Reports a chain of another kind, rule by rule.
fn left_out(chain: &Chain, reason: &str) -> Vec<Outside> {
    let rule = |rule: &Parsed| Outside {
        origin: rule.origin.clone(),
        reason: reason.to_owned(),
        matters: rule.statements.iter().any(|statement| !matches!(statement, Statement::Counter)),
    };
    let mut all: Vec<Outside> = chain.rules.iter().map(rule).collect();
    if chain.hook.as_ref().is_some_and(|hook| !hook.accepts) {
        let text = format!("chain {}: policy drop", chain.name);
        let origin = Origin { place: chain.origin.place.clone(), text };
        all.push(Outside { origin, reason: reason.to_owned(), matters: true });
    }
    all
}

struct Table<'l> {
    listing: &'l Listing,
    family: &'l str,
    table: &'l str,
}

/// Packets of a rule while its statements are read.
#[derive(Default)]
struct Reading {
    packets: Vec<Match>,
    arms: Vec<(Match, Verdict)>,
    rule: Rule,
}

impl Reading {
    fn block(&mut self, reason: String) {
        if !self.rule.blocked.contains(&reason) {
            self.rule.blocked.push(reason);
        }
    }

    /// Restricts the packets to those of one of these conditions.
    fn narrow(&mut self, conditions: &[Match]) {
        let both = |packets: &Match| {
            conditions.iter().filter_map(|condition| packets.and(condition)).collect::<Vec<_>>()
        };
        self.packets = self.packets.iter().flat_map(both).collect();
    }

    fn end(&mut self, verdict: &Verdict) {
        self.rule.matters |= *verdict != Verdict::Continue;
        self.arms.extend(self.packets.iter().map(|packets| (packets.clone(), verdict.clone())));
    }

    fn limit(&mut self, limit: Limit) {
        if self.rule.limit.replace(limit).is_some() {
            self.block("it has two rates".into());
        }
    }
}

/// The matching packets, and the parts of the condition that are left out.
type Condition = (Vec<Match>, Vec<String>);

impl Table<'_> {
    fn rule(&self, parsed: &Parsed) -> Rule {
        let mut reading = Reading { packets: vec![Match::default()], ..Reading::default() };
        reading.rule.origin = parsed.origin.clone();
        reading.rule.name = parsed.comment.clone();
        for statement in &parsed.statements {
            self.statement(&mut reading, statement);
        }
        let Reading { packets, mut arms, mut rule } = reading;
        if arms.is_empty() {
            arms = packets.into_iter().map(|packets| (packets, Verdict::Continue)).collect();
        }
        if let Some(reason) = arms.iter().find_map(|(packets, _)| without_protocol(packets)) {
            rule.blocked.push(reason);
        }
        rule.arms = arms;
        rule
    }

    fn statement(&self, reading: &mut Reading, statement: &Statement) {
        match statement {
            Statement::Match { keys, mask, op, values } => {
                if reading.rule.limit.is_some() {
                    reading.block("a condition behind its rate".into());
                }
                if reading.rule.mark.is_some() {
                    reading.block("a condition behind its mark".into());
                }
                match self.condition(keys, mask.as_deref(), *op, values) {
                    Ok((packets, omitted)) => {
                        reading.narrow(&packets);
                        reading.rule.omitted.extend(omitted);
                    }
                    Err(reason) => reading.block(reason),
                }
            }
            Statement::Vmap { keys, pairs } => self.verdicts(reading, keys, pairs),
            Statement::Verdict(verdict) => reading.end(verdict),
            Statement::Counter => {}
            Statement::Log { prefix } => {
                reading.rule.log = true;
                let prefix = prefix.as_deref().map(|prefix| prefix.trim().trim_end_matches(':'));
                let prefix = prefix.filter(|prefix| !prefix.is_empty()).map(str::to_owned);
                reading.rule.name = reading.rule.name.take().or(prefix);
            }
            Statement::Mark { key, value } => {
                reading.narrow(&[Match::family(if key == "ip dscp" { 4 } else { 6 })]);
                reading.rule.matters = true;
                match values::dscp(value).map(|set| set.numbers().next()) {
                    Ok(dscp) => reading.rule.mark = dscp.map(|dscp| dscp as u8),
                    Err(reason) => reading.block(reason),
                }
            }
            Statement::Limit(limit) => reading.limit(limit.clone()),
            Statement::Update { keys, limit } => match (&keys[..], limit) {
                ([key], Some(limit)) if key == "ip saddr" || key == "ip6 saddr" => {
                    let family = if key == "ip saddr" { 4 } else { 6 };
                    reading.narrow(&[Match::family(family)]);
                    reading.limit(Limit { per_source: Some((32, 128)), ..limit.clone() });
                }
                _ => {
                    reading.block("it changes a set".into());
                    reading.rule.matters = true;
                }
            },
            Statement::Other { text, is_condition } => {
                reading.block(format!("\"{text}\" has no counterpart"));
                reading.rule.matters |= !is_condition;
            }
        }
    }

    fn verdicts(&self, reading: &mut Reading, keys: &[String], pairs: &Pairs) {
        let list = match pairs {
            Pairs::List(list) => list,
            Pairs::Named(name) => match self.set(name) {
                Ok(set) => &set.verdicts,
                Err(reason) => return reading.block(reason),
            },
        };
        let before = reading.packets.clone();
        for (tuple, verdict) in list {
            match self.tuple(keys, tuple) {
                Ok((packets, omitted)) => {
                    reading.packets = before.clone();
                    reading.narrow(&packets);
                    reading.end(verdict);
                    reading.rule.omitted.extend(omitted);
                }
                Err(reason) => reading.block(reason),
            }
        }
        reading.packets = before;
    }

    fn set(&self, name: &str) -> Result<&Set, String> {
        let name = name.trim_start_matches('@');
        let key = (self.family.to_owned(), self.table.to_owned(), name.to_owned());
        match self.listing.sets.get(&key) {
            Some(set) if set.is_dynamic => Err(format!("set {name} changes by itself")),
            Some(set) => Ok(set),
            None => Err(format!("there is no set {name}")),
        }
    }

    fn condition(
        &self,
        keys: &[String],
        mask: Option<&[String]>,
        op: Op,
        values: &Values,
    ) -> Result<Condition, String> {
        let elements = match values {
            Values::Named(name) => self.set(name)?.elements.clone(),
            Values::Set(elements) => elements.clone(),
            Values::One(tuple) => vec![tuple.clone()],
            Values::Flags(flags) => vec![flags.clone()],
        };
        if let [key] = keys {
            return match (key.as_str(), mask) {
                ("tcp flags", mask) => tcp_flags(mask, op, values, &elements),
                ("ct state", None) => ct_state(op, values, &elements),
                ("ip frag-off", Some(mask)) => fragment(mask, op, &elements),
                (key, None) => {
                    one_key(key, op, &elements).map(|packets| (vec![packets], Vec::new()))
                }
                (key, Some(_)) => Err(format!("\"{key}\" with a mask has no counterpart")),
            };
        }
        if mask.is_some() || !matches!(op, Op::Implicit | Op::Eq) {
            return Err("a concatenation that must differ has no counterpart".into());
        }
        let (mut all, mut left) = (Vec::new(), Vec::new());
        for element in &elements {
            let (packets, omitted) = self.tuple(keys, element)?;
            all.extend(packets);
            left.extend(omitted);
        }
        Ok((all, left))
    }

    /// Returns the packets whose fields are those of an element.
    fn tuple(&self, keys: &[String], tuple: &Tuple) -> Result<Condition, String> {
        if keys.len() != tuple.len() {
            return Err(format!("element {} has not as many parts as its key", tuple.join(" . ")));
        }
        let mut both = (vec![Match::default()], Vec::new());
        for (key, word) in keys.iter().zip(tuple) {
            let one = Values::Set(vec![vec![word.clone()]]);
            let (packets, omitted) =
                self.condition(std::slice::from_ref(key), None, Op::Eq, &one)?;
            let and = |packet: &Match| {
                packets.iter().filter_map(|other| packet.and(other)).collect::<Vec<_>>()
            };
            both.0 = both.0.iter().flat_map(and).collect();
            both.1.extend(omitted);
        }
        Ok(both)
    }
}

/// Reports a condition on ports without one on the protocol.
fn without_protocol(packets: &Match) -> Option<String> {
    let says =
        [Field::FromPort, Field::ToPort].iter().any(|field| packets.condition(*field).is_some());
    let is_known = values::all_have_ports(&packets.get(Field::Protocol));
    (says && !is_known).then(|| "ports without a protocol that has them; add meta l4proto".into())
}

/// A field, and the condition that its name implies.
struct Key {
    field: Field,
    implied: Match,
    read: fn(&str) -> Read,
}

fn key(name: &str) -> Option<Key> {
    let (layer, field) = name.split_once(' ')?;
    let of = |field, implied, read| Some(Key { field, implied, read });
    let tcp_like = |number| match field {
        "sport" => of(Field::FromPort, Match::protocol(number), values::ports),
        "dport" => of(Field::ToPort, Match::protocol(number), values::ports),
        _ => None,
    };
    let any = Match::default();
    match (layer, field) {
        ("ip", "saddr") => of(Field::From4, Match::family(4), values::addresses4),
        ("ip", "daddr") => of(Field::To4, Match::family(4), values::addresses4),
        ("ip", "protocol") => of(Field::Protocol, Match::family(4), values::protocol),
        ("ip", "dscp") => of(Field::Dscp, Match::family(4), values::dscp),
        ("ip", "ttl") => of(Field::Ttl, Match::family(4), |word| values::numbers(word, '-', 255)),
        ("ip", "length") => of(Field::Length, Match::family(4), values::ports),
        ("ip6", "saddr") => of(Field::From6, Match::family(6), values::addresses6),
        ("ip6", "daddr") => of(Field::To6, Match::family(6), values::addresses6),
        ("ip6", "dscp") => of(Field::Dscp, Match::family(6), values::dscp),
        ("ip6", "hoplimit") => {
            of(Field::Ttl, Match::family(6), |word| values::numbers(word, '-', 255))
        }
        ("rt", "type") => {
            of(Field::Routing, Match::family(6), |word| values::numbers(word, '-', 255))
        }
        ("tcp", _) => tcp_like(6),
        ("udp", _) => tcp_like(17),
        ("dccp", _) => tcp_like(33),
        ("sctp", _) => tcp_like(132),
        ("udplite", _) => tcp_like(136),
        ("th", "sport") => of(Field::FromPort, any, values::ports),
        ("th", "dport") => of(Field::ToPort, any, values::ports),
        ("icmp", "type") => {
            let icmp = Match::protocol(1).and(&Match::family(4))?;
            of(Field::Icmp4, icmp, values::icmp4)
        }
        ("icmpv6", "type") => {
            let icmp = Match::protocol(58).and(&Match::family(6))?;
            of(Field::Icmp6, icmp, values::icmp6)
        }
        ("meta", "l4proto") => of(Field::Protocol, any, values::protocol),
        ("meta", "length") => of(Field::Length, any, values::ports),
        ("meta", "nfproto" | "protocol") => of(Field::Family, any, family),
        _ => None,
    }
}

fn family(word: &str) -> Read {
    match word {
        "ipv4" | "ip" => Ok(Ranges::one(4)),
        "ipv6" | "ip6" => Ok(Ranges::one(6)),
        other => Err(format!("there are no filters for {other}")),
    }
}

/// Compares a field with values of one word each.
fn one_key(name: &str, op: Op, elements: &[Tuple]) -> Result<Match, String> {
    let words: Vec<&str> = elements.iter().flatten().map(String::as_str).collect();
    if let "meta iifname" | "meta iif" | "meta oifname" | "meta oif" = name {
        let names = interfaces(op, &words)?;
        return Ok(match name.contains("iif") {
            true => Match::by(names),
            false => Match::leaving(names),
        });
    }
    let Some(Key { field, implied, read }) = key(name) else { return Err(unknown(name)) };
    let mut set = Ranges::default();
    for word in &words {
        set = set.or(&ranged(read, word)?);
    }
    let most = field.most();
    let bound = set.ranges().first().map_or(0, |(low, _)| *low);
    let set = match op {
        Op::Implicit | Op::Eq => set,
        Op::Ne if field == Field::Family => Ranges::new([(4, 4), (6, 6)]).and(&set.not(most)),
        Op::Ne => set.not(most),
        Op::Lt => Ranges::new(bound.checked_sub(1).map(|high| (0, high))),
        Op::Le => Ranges::new([(0, bound)]),
        Op::Gt => Ranges::new([(bound + 1, most)]),
        Op::Ge => Ranges::new([(bound, most)]),
        Op::None => return Err(format!("\"{name} !\" has no counterpart")),
    };
    Ok(Match::field(field, set).and(&implied).unwrap_or_else(nothing))
}

/// Reads a value, or a range of values.
fn ranged(read: fn(&str) -> Read, word: &str) -> Read {
    let Some((low, high)) = word.split_once("..") else { return read(word) };
    let (low, high) = (read(low)?, read(high)?);
    match (low.ranges(), high.ranges()) {
        ([(low, _)], [(_, high)]) => Ok(Ranges::new([(*low, *high)])),
        _ => Err(format!("\"{word}\" is no range")),
    }
}

/// Matches no packet.
fn nothing() -> Match {
    Match::field(Field::Protocol, Ranges::default())
}

fn unknown(name: &str) -> String {
    match name {
        "ip6 nexthdr" => {
            "\"ip6 nexthdr\" sees the first header only; filters see the upper layer: write \
                          meta l4proto"
                .into()
        }
        "icmp code" | "icmpv6 code" => "filters know no ICMP codes".into(),
        _ => format!("\"{name}\" has no counterpart"),
    }
}

fn interfaces(op: Op, words: &[&str]) -> Result<Names, String> {
    if let Some(pattern) = words.iter().find(|word| word.contains('*')) {
        return Err(format!("\"{pattern}\": ports have no patterns; name each"));
    }
    // No packet of a port is received or sent by lo.
    let names = words.iter().filter(|word| **word != "lo").map(|word| (*word).to_owned()).collect();
    match op {
        Op::Implicit | Op::Eq => Ok(Names::In(names)),
        Op::Ne if names.is_empty() => Ok(Names::Any),
        Op::Ne => Ok(Names::NotIn(names)),
        _ => Err("interfaces have no order".into()),
    }
}

fn tcp_flags(
    mask: Option<&[String]>,
    op: Op,
    values: &Values,
    elements: &[Tuple],
) -> Result<Condition, String> {
    let bits = |words: &[String]| {
        words.iter().try_fold(0, |bits, word| Ok::<u8, String>(bits | values::flag(word)?))
    };
    let mut set = Ranges::default();
    let mask = mask.map(bits).transpose()?;
    let is_list = matches!(values, Values::One(_) | Values::Flags(_));
    for element in elements {
        let value = bits(element)?;
        let some = match (mask, op) {
            // Any of these flags: the bitwise and with them is not zero.
            (None, Op::Implicit) if is_list => values::flags(0, value).not(255),
            (None, Op::None) => values::flags(0, value),
            (mask, _) => values::flags(value, mask.unwrap_or(0xff)),
        };
        set = set.or(&some);
    }
    let set = match op {
        Op::Ne => set.not(255),
        Op::Implicit | Op::Eq | Op::None => set,
        _ => return Err("flags have no order".into()),
    };
    let packets = Match::field(Field::Flags, set).and(&Match::protocol(6));
    Ok((packets.into_iter().collect(), Vec::new()))
}

fn ct_state(op: Op, values: &Values, elements: &[Tuple]) -> Result<Condition, String> {
    let words: Vec<&str> = elements.iter().flatten().map(String::as_str).collect();
    if matches!(values, Values::Flags(_))
        && words.len() > 1
        && !matches!(op, Op::Implicit | Op::None)
    {
        return Err("a list of states that must differ as a whole".into());
    }
    let (known, others) = values::states(words);
    let omitted: Vec<String> =
        if others.is_empty() { vec![] } else { vec![values::no_state(&others)] };
    let set = match op {
        Op::Implicit | Op::Eq => known,
        Op::Ne | Op::None => known.not(2),
        _ => return Err("states have no order".into()),
    };
    let packets = (!set.is_empty()).then(|| Match::field(Field::State, set));
    Ok((packets.into_iter().collect(), omitted))
}

/// Reads `ip frag-off & 0x3fff != 0`, fragments, and `& 0x1fff`, later ones.
fn fragment(mask: &[String], op: Op, elements: &[Tuple]) -> Result<Condition, String> {
    let number = |words: &[String]| words.first().and_then(|word| values::number(word));
    let (mask, value) = (number(mask), elements.first().and_then(|element| number(element)));
    let kinds = match (mask, value, op) {
        (Some(0x3fff), Some(0), Op::Ne) => (1, 2),
        (Some(0x3fff), Some(0), Op::Eq | Op::Implicit) => (0, 0),
        (Some(0x1fff), Some(0), Op::Ne) => (2, 2),
        (Some(0x1fff), Some(0), Op::Eq | Op::Implicit) => (0, 1),
        _ => {
            return Err(
                "of \"ip frag-off\" only & 0x3fff, any fragment, and & 0x1fff, later ones, \
                        have a counterpart"
                    .into(),
            );
        }
    };
    let packets = Match::field(Field::Fragment, Ranges::new([kinds])).and(&Match::family(4));
    Ok((packets.into_iter().collect(), Vec::new()))
}

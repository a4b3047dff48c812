//! Converts chains with jumps into one list of rules, of which the first match decides.
//!
//! A walk goes through the rules of a chain under a *guard*, the conditions of all rules that led there. A rule
//! that ends a packet's way becomes an item: guard and rule together. A jump is a walk of the other chain under
//! a narrower guard; packets that return meet the rest of the first chain, as in the original.
//!
//! If the order of chains differs from that of a list, the following rules are repeated, so that
//! the list stays exact:
//!
//! | of the original | in the list |
//! |---|---|
//! | `return` under a condition | the rest of the calling chain, under that condition |
//! | `goto` under a condition | the chain, then the rules behind the caller of the chain with the `goto`, under it |
//! | `iifname != "a"` | all following rules for packets by `a`, then the rule for the remaining packets |
//! | accepted, and a base chain of another priority follows | that base chain, under the conditions |
//!
//! A rule with a rate ends a packet's way in Turnpike, within the rate and beyond it. So it is converted only if
//! the *fate* of its packets behind it is certain: a second walk, whose items must all agree. The same applies
//! to a rule that only logs.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::matches::{Field, Match, Names};
use crate::rules::{Base, ChainName, Hook, Limit, Rule, Ruleset, Verdict};

/// Most rules of one filter.
const ITEMS_MAX: usize = 20_000;

/// Most rules examined for one filter.
const STEPS_MAX: usize = 4_000_000;

/// Most chains that lead from one to the next; the kernel's limit.
const DEPTH_MAX: usize = 16;

/// An item of the list.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<'r> {
    Rule(Decision<'r>),
    /// A rule that is not converted.
    Left {
        rule: &'r Rule,
        reasons: Vec<String>,
        matters: bool,
    },
    /// A rule that needs no counterpart here.
    Nothing {
        rule: &'r Rule,
        why: &'static str,
    },
}

/// Packets and their verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<'r> {
    /// The rule; `None`: the policy of a base chain.
    pub rule: Option<&'r Rule>,
    pub packets: Match,
    /// The verdict; it ends a packet's way, unless the packet is only marked.
    pub verdict: Verdict,
    pub police: Option<&'r Limit>,
    pub log: bool,
    /// The DSCP for its packets, which then go on.
    pub mark: Option<u8>,
}

/// Error: the list would be too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "with its jumps written out it would have more than {ITEMS_MAX} rules; shorten chains that end by a `return`"
)]
pub struct TooLong;

/// Returns the rules for packets of a hook that leave by one of the ports of `egress`.
pub fn flatten(rules: &Ruleset, hook: Hook, egress: Names) -> Result<Vec<Item<'_>>, TooLong> {
    let mut bases: Vec<&Base> = rules.bases.iter().filter(|base| base.hook == hook).collect();
    bases.sort_by_key(|base| base.priority);
    let mut walker = Walker { rules, hook, bases, items: Vec::new(), fates: None, steps: 0 };
    walker.enter(0, Match::leaving(egress))?;
    Ok(walker.items)
}

/// A chain, and its return point.
struct Frame<'r> {
    rules: &'r [Rule],
    table: &'r str,
    /// The base chain that led here.
    base: usize,
    depth: usize,
    /// The calling chain, and its next rule.
    back: Option<(Rc<Frame<'r>>, usize)>,
}

/// Outcome for the packets of a guard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Decided,
    /// Some packets may have reached the end of the chain.
    Through,
}

struct Walker<'r> {
    rules: &'r Ruleset,
    hook: Hook,
    bases: Vec<&'r Base>,
    items: Vec<Item<'r>>,
    /// If only the fate of packets is needed: the verdicts, `None` for an uncertain one.
    fates: Option<Vec<Option<Verdict>>>,
    steps: usize,
}

type Walk<T = ()> = Result<T, TooLong>;

impl<'r> Walker<'r> {
    /// Passes packets to the base chain of this number; behind the last one they are accepted.
    fn enter(&mut self, base: usize, guard: Match) -> Walk {
        let Some(of) = self.bases.get(base).copied() else {
            return self.decide(None, guard, Verdict::Accept, None, false);
        };
        let Some(own) = of_family(&guard, of.family) else { return self.enter(base + 1, guard) };
        let rules = self.rules.chains.get(&of.chain).map_or(&[][..], Vec::as_slice);
        let table = &of.chain.table;
        let frame = Rc::new(Frame { rules, table, base, depth: 0, back: None });
        match self.walk(&frame, 0, own)? {
            Flow::Through => self.policy(base, guard),
            Flow::Decided => self.others(base, &guard),
        }
    }

    /// Applies the policy at the end of a base chain.
    fn policy(&mut self, base: usize, guard: Match) -> Walk {
        let of = self.bases[base];
        if of.accepts {
            return self.enter(base + 1, guard);
        }
        if let Some(own) = of_family(&guard, of.family) {
            self.decide(None, own, Verdict::Drop, None, false)?;
        }
        self.others(base, &guard)
    }

    /// Passes the packets of the family that a base chain does not see to the next one.
    fn others(&mut self, base: usize, guard: &Match) -> Walk {
        let Some(family) = self.bases[base].family else { return Ok(()) };
        match of_family(guard, Some(10 - family)) {
            Some(others) => self.enter(base + 1, others),
            None => Ok(()),
        }
    }

    fn walk(&mut self, frame: &Rc<Frame<'r>>, from: usize, mut guard: Match) -> Walk<Flow> {
        for (place, rule) in frame.rules.iter().enumerate().skip(from) {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(TooLong);
            }
            if !rule.omitted.is_empty() {
                self.leave(rule, rule.omitted.clone(), rule.matters, None);
            } else if rule.arms.is_empty() {
                self.nothing(rule, "no packet that comes by a port fits it");
            }
            self.without_excluded(frame, place, rule, &mut guard)?;
            for (packets, verdict) in &rule.arms {
                let Some(both) = guard.and(packets) else { continue };
                let is_all = both == guard;
                let flow = self.arm(frame, place, rule, both, verdict, is_all)?;
                match (flow, verdict) {
                    (Flow::Decided, _) if is_all => return Ok(Flow::Decided),
                    // No packet reaches the rules behind it.
                    (_, Verdict::Return | Verdict::Goto(_)) if is_all && rule.is_sure() => {
                        return Ok(Flow::Through);
                    }
                    _ => {}
                }
            }
        }
        Ok(Flow::Through)
    }

    /// Walks the rest of a chain and the chains behind it.
    fn finish(&mut self, frame: &Rc<Frame<'r>>, from: usize, guard: Match) -> Walk {
        match self.walk(frame, from, guard.clone())? {
            Flow::Decided => Ok(()),
            Flow::Through => self.behind(frame, guard),
        }
    }

    /// Walks the chains behind a chain.
    fn behind(&mut self, frame: &Rc<Frame<'r>>, guard: Match) -> Walk {
        match &frame.back {
            Some((chain, place)) => self.finish(&chain.clone(), *place, guard),
            None => self.policy(frame.base, guard),
        }
    }

    /// Converts a rule that excludes interfaces into one for the packets that remain after those of these
    /// interfaces.
    fn without_excluded(
        &mut self,
        frame: &Rc<Frame<'r>>,
        place: usize,
        rule: &Rule,
        guard: &mut Match,
    ) -> Walk {
        for (packets, _) in &rule.arms {
            let Some(both) = guard.and(packets) else { continue };
            let Names::NotIn(excluded) = &both.ingress else { continue };
            let done = match &guard.ingress {
                Names::NotIn(done) => done.clone(),
                _ => BTreeSet::new(),
            };
            let more: BTreeSet<String> = excluded - &done;
            let by_these = Match::by(Names::In(more.clone()));
            if let (false, Some(theirs)) = (more.is_empty(), guard.and(&by_these)) {
                self.finish(frame, place, theirs)?;
                guard.ingress = Names::NotIn(&more | &done);
            }
        }
        Ok(())
    }

    /// Handles the packets of one arm of a rule.
    fn arm(
        &mut self,
        frame: &Rc<Frame<'r>>,
        place: usize,
        rule: &'r Rule,
        packets: Match,
        verdict: &'r Verdict,
        is_all: bool,
    ) -> Walk<Flow> {
        if !rule.blocked.is_empty() {
            let end = verdict.passes().is_some();
            self.leave(rule, rule.blocked.clone(), rule.matters, end.then_some(verdict));
            return Ok(Flow::Through);
        }
        if let Some(dscp) = rule.mark {
            self.marks(rule, &packets, verdict, dscp)?;
        }
        match (verdict, &rule.limit) {
            (Verdict::Continue, _) if rule.mark.is_some() => Ok(Flow::Through),
            (Verdict::Continue, _) if rule.log => self.only_logs(frame, place, rule, packets),
            (Verdict::Continue, _) => {
                self.nothing(rule, "it only counts, as every rule does here");
                Ok(Flow::Through)
            }
            (_, Some(limit)) => self.limited(frame, place, rule, packets, verdict, limit),
            (Verdict::Accept, None) => {
                self.accept(frame.base, rule, packets)?;
                Ok(Flow::Decided)
            }
            (Verdict::Drop | Verdict::Reject(_), None) => {
                self.decide(Some(rule), packets, verdict.clone(), None, rule.log)?;
                Ok(Flow::Decided)
            }
            (Verdict::Return, None) if is_all => Ok(Flow::Through),
            (Verdict::Return, None) => self.skip_rest(frame, place, packets),
            (Verdict::Jump(name), None) => {
                self.jump(frame, rule, &packets, name, Some((frame.clone(), place + 1)))
            }
            (Verdict::Goto(name), None) => {
                let flow = self.jump(frame, rule, &packets, name, frame.back.clone())?;
                match flow {
                    Flow::Through if !is_all => self.skip_rest(frame, place, packets),
                    flow => Ok(flow),
                }
            }
        }
    }

    /// Marks packets, which go on. A filter's rules match the DSCP with which packets come, and mark packets that pass.
    fn marks(&mut self, rule: &'r Rule, packets: &Match, verdict: &Verdict, dscp: u8) -> Walk {
        if self.fates.is_some() || verdict.passes() == Some(false) {
            return Ok(());
        }
        let mut arms = self.rules.chains.values().flatten().flat_map(|rule| &rule.arms);
        let reason = if rule.limit.is_some() {
            "it marks packets within a rate"
        } else if self.hook == Hook::Input {
            "packets for the router are not marked"
        } else if arms.any(|(packets, _)| packets.condition(Field::Dscp).is_some()) {
            "it changes the DSCP, which rules match: here they match that with which packets come"
        } else {
            // One that ends a packet's way logs it there.
            let (log, mark) = (rule.log && *verdict == Verdict::Continue, Some(dscp));
            let (packets, verdict, rule) = (packets.clone(), Verdict::Continue, Some(rule));
            self.items.push(Item::Rule(Decision {
                rule,
                packets,
                verdict,
                police: None,
                log,
                mark,
            }));
            return if self.items.len() > ITEMS_MAX { Err(TooLong) } else { Ok(()) };
        };
        self.leave(rule, vec![reason.to_owned()], true, None);
        Ok(())
    }

    /// Passes packets through another chain, and then to `back`.
    fn jump(
        &mut self,
        frame: &Rc<Frame<'r>>,
        rule: &'r Rule,
        packets: &Match,
        name: &str,
        back: Option<(Rc<Frame<'r>>, usize)>,
    ) -> Walk<Flow> {
        let chain = ChainName { table: frame.table.to_owned(), chain: name.to_owned() };
        let reason = match self.rules.chains.get(&chain) {
            None => format!("there is no chain {name}"),
            Some(_) if frame.depth >= DEPTH_MAX => {
                format!("chain {name} is over {DEPTH_MAX} jumps away")
            }
            Some(rules) => {
                let (table, base, depth) = (frame.table, frame.base, frame.depth + 1);
                let there = Rc::new(Frame { rules, table, base, depth, back });
                return self.walk(&there, 0, packets.clone());
            }
        };
        self.leave(rule, vec![reason], true, None);
        Ok(Flow::Through)
    }

    /// Handles packets that leave a chain before its end.
    fn skip_rest(&mut self, frame: &Rc<Frame<'r>>, place: usize, packets: Match) -> Walk<Flow> {
        let mut arms = frame.rules[place + 1..].iter().flat_map(|rule| &rule.arms);
        let is_end = |verdict: &Verdict| matches!(verdict, Verdict::Return | Verdict::Continue);
        if arms.all(|(other, verdict)| is_end(verdict) || other.and(&packets).is_none()) {
            // There is nothing to skip.
            return Ok(Flow::Through);
        }
        self.behind(frame, packets)?;
        Ok(Flow::Decided)
    }

    /// Passes packets that a base chain accepts to the next one.
    fn accept(&mut self, base: usize, rule: &'r Rule, packets: Match) -> Walk {
        if self.is_last(base, &packets) {
            return self.decide(Some(rule), packets, Verdict::Accept, None, rule.log);
        }
        if rule.log {
            let reason = "it is logged where the next base chain decides only".to_owned();
            self.leave(rule, vec![reason], false, None);
        }
        self.enter(base + 1, packets)
    }

    /// Returns true if no further base chain sees these packets.
    fn is_last(&self, base: usize, packets: &Match) -> bool {
        self.bases[base + 1..].iter().all(|next| of_family(packets, next.family).is_none())
    }

    fn only_logs(
        &mut self,
        frame: &Rc<Frame<'r>>,
        place: usize,
        rule: &'r Rule,
        packets: Match,
    ) -> Walk<Flow> {
        if self.fates.is_some() {
            return Ok(Flow::Through);
        }
        let fates = self.fates_of(frame, place, &packets)?;
        let Some(verdict) = same(&fates) else {
            let reason = "it only logs, and its packets have different ends".to_owned();
            self.leave(rule, vec![reason], false, None);
            return Ok(Flow::Through);
        };
        self.decide(Some(rule), packets, verdict, None, true)?;
        Ok(Flow::Decided)
    }

    fn limited(
        &mut self,
        frame: &Rc<Frame<'r>>,
        place: usize,
        rule: &'r Rule,
        packets: Match,
        verdict: &'r Verdict,
        limit: &'r Limit,
    ) -> Walk<Flow> {
        if let Some(fates) = &mut self.fates {
            fates.push(None);
            return Ok(Flow::Through);
        }
        let fates = self.fates_of(frame, place, &packets)?;
        let behind = fates.iter().map(|fate| fate.as_ref().and_then(Verdict::passes));
        let behind: Vec<Option<bool>> = behind.collect();
        let all = |passes| behind.iter().all(|fate| *fate == Some(passes));
        let last = self.is_last(frame.base, &packets);
        let reason = match (verdict.passes(), limit.is_over) {
            (Some(true), false) if !last => "another base chain sees what it accepts",
            (Some(true), false) if all(false) => {
                self.decide(Some(rule), packets, Verdict::Accept, Some(limit), rule.log)?;
                return Ok(Flow::Decided);
            }
            (Some(true), false) => {
                "what exceeds its rate goes on to rules that may accept it; police drops it"
            }
            (Some(false), true) if all(true) => {
                self.decide(Some(rule), packets, Verdict::Accept, Some(limit), rule.log)?;
                return Ok(Flow::Decided);
            }
            (Some(false), true) => {
                "what is within its rate goes on to rules that may drop it; police accepts it"
            }
            (Some(false), false) if all(false) => {
                self.decide(Some(rule), packets, verdict.clone(), None, rule.log)?;
                return Ok(Flow::Decided);
            }
            _ => "there is no such use of a rate here",
        };
        self.leave(rule, vec![reason.to_owned()], true, None);
        Ok(Flow::Through)
    }

    /// Returns the verdicts of packets behind a rule.
    fn fates_of(
        &mut self,
        frame: &Rc<Frame<'r>>,
        place: usize,
        packets: &Match,
    ) -> Walk<Vec<Option<Verdict>>> {
        self.fates = Some(Vec::new());
        let walked = self.finish(frame, place + 1, packets.clone());
        let fates = self.fates.take().unwrap_or_default();
        walked.map(|()| fates)
    }

    fn decide(
        &mut self,
        rule: Option<&'r Rule>,
        packets: Match,
        verdict: Verdict,
        police: Option<&'r Limit>,
        log: bool,
    ) -> Walk {
        match &mut self.fates {
            Some(fates) => fates.push(Some(verdict)),
            None => {
                let mark = None;
                let decision = Decision { rule, packets, verdict, police, log, mark };
                self.items.push(Item::Rule(decision));
            }
        }
        if self.items.len() > ITEMS_MAX { Err(TooLong) } else { Ok(()) }
    }

    /// Leaves a rule out; `verdict` is its original verdict.
    fn leave(
        &mut self,
        rule: &'r Rule,
        reasons: Vec<String>,
        matters: bool,
        verdict: Option<&Verdict>,
    ) {
        match &mut self.fates {
            Some(fates) if matters => fates.push(verdict.cloned()),
            Some(_) => {}
            None => self.items.push(Item::Left { rule, reasons, matters }),
        }
    }

    fn nothing(&mut self, rule: &'r Rule, why: &'static str) {
        if self.fates.is_none() {
            self.items.push(Item::Nothing { rule, why });
        }
    }
}

impl Rule {
    /// Returns true if the rule's effect is the same for each of its packets.
    fn is_sure(&self) -> bool {
        self.blocked.is_empty() && self.limit.is_none()
    }
}

fn same(fates: &[Option<Verdict>]) -> Option<Verdict> {
    let first = fates.first()?.clone()?;
    fates.iter().all(|fate| fate.as_ref() == Some(&first)).then_some(first)
}

fn of_family(guard: &Match, family: Option<u8>) -> Option<Match> {
    match family {
        Some(family) => guard.and(&Match::family(family)),
        None => Some(guard.clone()),
    }
}

/// Returns the names of the outgoing interfaces in rules.
pub fn egress_names(rules: &Ruleset, hook: Hook) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    if hook == Hook::Forward {
        let arms = rules.chains.values().flatten().flat_map(|rule| &rule.arms);
        names.extend(arms.flat_map(|(packets, _)| packets.egress.said().cloned()));
    }
    names
}

/// Returns true for a decision about every packet.
pub fn is_for_all(packets: &Match) -> bool {
    let ingress = !matches!(packets.ingress, Names::In(_));
    ingress
        && [Field::Family, Field::Protocol, Field::State, Field::Fragment, Field::Dscp, Field::Ttl]
            .into_iter()
            .chain([Field::From4, Field::From6, Field::To4, Field::To6, Field::Length])
            .chain([Field::FromPort, Field::ToPort, Field::Flags, Field::Icmp4, Field::Icmp6])
            .chain([Field::Routing])
            .all(|field| packets.condition(field).is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ranges::Ranges;

    /// The chains of the test: two base chains and three others, which jump downwards only.
    const CHAINS: [&str; 5] = ["base", "next", "a", "b", "c"];

    #[derive(Clone, Debug)]
    struct Packet {
        family: u128,
        protocol: u128,
        port: u128,
        ingress: &'static str,
        egress: &'static str,
    }

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    fn packet() -> impl Strategy<Value = Packet> {
        let port = prop::sample::select(vec!["x", "y", "z"]);
        let fields = (prop::sample::select(vec![4u128, 6]), 0u128..3, 0u128..4, port.clone(), port);
        fields.prop_map(|(family, protocol, port, ingress, egress)| Packet {
            family,
            protocol,
            port,
            ingress,
            egress,
        })
    }

    fn fits(packets: &Match, packet: &Packet) -> bool {
        let name = |names: &Names, name: &str| match names {
            Names::Any => true,
            Names::In(some) => some.contains(name),
            Names::NotIn(some) => !some.contains(name),
        };
        packets.get(Field::Family).has(packet.family)
            && packets.get(Field::Protocol).has(packet.protocol)
            && packets.get(Field::ToPort).has(packet.port)
            && name(&packets.ingress, packet.ingress)
            && name(&packets.egress, packet.egress)
    }

    fn some_names() -> impl Strategy<Value = Names> {
        let some = prop::sample::subsequence(vec!["x", "y"], 1..=2).prop_map(|some| names(&some));
        prop_oneof![
            3 => Just(Names::Any),
            1 => some.clone().prop_map(Names::In),
            1 => some.prop_map(Names::NotIn),
        ]
    }

    fn condition() -> impl Strategy<Value = Match> {
        let set = |most: u128| {
            (0..=most, 0..=most)
                .prop_map(|(one, other)| Ranges::new([(one.min(other), one.max(other))]))
        };
        let family = prop_oneof![2 => Just(None), 1 => Just(Some(4u8)), 1 => Just(Some(6))];
        (family, prop::option::of(set(2)), prop::option::of(set(3)), some_names(), some_names())
            .prop_map(|(family, protocol, port, ingress, egress)| {
                let mut all = Match { ingress, egress, ..Match::default() };
                for (field, set) in [(Field::Protocol, protocol), (Field::ToPort, port)] {
                    all = set.map_or(all.clone(), |set| all.with(field, set));
                }
                family.map_or(all.clone(), |family| {
                    all.with(Field::Family, Ranges::one(family.into()))
                })
            })
    }

    fn verdict(chain: usize) -> impl Strategy<Value = Verdict> {
        let ends = vec![
            Verdict::Accept,
            Verdict::Drop,
            Verdict::Reject(None),
            Verdict::Return,
            Verdict::Continue,
        ];
        let down: Vec<Verdict> = CHAINS
            .iter()
            .enumerate()
            .skip(2.max(chain + 1))
            .flat_map(|(_, name)| {
                [Verdict::Jump((*name).to_owned()), Verdict::Goto((*name).to_owned())]
            })
            .collect();
        let all: Vec<Verdict> = ends.into_iter().chain(down).collect();
        prop::sample::select(all)
    }

    fn rules(chain: usize) -> impl Strategy<Value = Vec<Rule>> {
        let arms = prop::collection::vec((condition(), verdict(chain)), 1..3);
        let rule =
            (arms, any::<bool>()).prop_map(|(arms, log)| Rule { arms, log, ..Rule::default() });
        prop::collection::vec(rule, 0..5)
    }

    fn ruleset() -> impl Strategy<Value = Ruleset> {
        let chains = (rules(0), rules(1), rules(2), rules(3), rules(4));
        let family = prop_oneof![2 => Just(None), 1 => Just(Some(4u8)), 1 => Just(Some(6))];
        let base = (any::<bool>(), family);
        (chains, base.clone(), base).prop_map(|(chains, one, other)| {
            let name = |chain: &str| ChainName { table: "t".into(), chain: chain.into() };
            let all = [chains.0, chains.1, chains.2, chains.3, chains.4];
            let of = |chain, priority, (accepts, family)| Base {
                chain: name(chain),
                hook: Hook::Forward,
                family,
                priority,
                accepts,
            };
            Ruleset {
                chains: CHAINS.iter().zip(all).map(|(chain, rules)| (name(chain), rules)).collect(),
                bases: vec![of("next", 5, other), of("base", 0, one)],
                outside: Vec::new(),
            }
        })
    }

    /// Evaluates the chains by the rules of nft(8); returns true if they accept.
    fn asked(rules: &Ruleset, packet: &Packet) -> bool {
        let mut bases: Vec<&Base> = rules.bases.iter().collect();
        bases.sort_by_key(|base| base.priority);
        let sees =
            |base: &&&Base| base.family.is_none_or(|family| u128::from(family) == packet.family);
        bases
            .iter()
            .filter(sees)
            .all(|base| run(rules, &base.chain, packet).unwrap_or(base.accepts))
    }

    fn run(rules: &Ruleset, chain: &ChainName, packet: &Packet) -> Option<bool> {
        let to = |name: &String| ChainName { table: "t".into(), chain: name.clone() };
        for rule in &rules.chains[chain] {
            let Some((_, verdict)) = rule.arms.iter().find(|(packets, _)| fits(packets, packet))
            else {
                continue;
            };
            match verdict {
                Verdict::Continue => {}
                Verdict::Return => return None,
                Verdict::Goto(name) => return run(rules, &to(name), packet),
                Verdict::Jump(name) => {
                    if let Some(end) = run(rules, &to(name), packet) {
                        return Some(end);
                    }
                }
                end => return end.passes(),
            }
        }
        None
    }

    proptest! {
        #![proptest_config(ProptestConfig {
        cases: 8 * ProptestConfig::default().cases,
        ..ProptestConfig::default()
    })]

        /// Compares with an interpreter of chains.
        #[test]
        fn a_list_says_what_its_chains_say(mut rules in ruleset(), packets in prop::collection::vec(packet(), 20)) {
            // Elements of a map do not overlap.
            for rule in rules.chains.values_mut().flatten() {
                if rule.arms.len() == 2 && rule.arms[0].0.and(&rule.arms[1].0).is_some() {
                    rule.arms.truncate(1);
                }
            }
            for egress in ["x", "y", "z"] {
                let ports = egress_names(&rules, Hook::Forward);
                let leaving = match ports.contains(egress) {
                    true => Names::In(names(&[egress])),
                    false => Names::NotIn(ports),
                };
                let items = flatten(&rules, Hook::Forward, leaving).unwrap();
                for packet in packets.iter().filter(|packet| packet.egress == egress) {
                    let found = items.iter().find_map(|item| match item {
                        Item::Rule(of) => {
                            // Excluded interfaces are not written: earlier rules handle their packets.
                            let ingress = match &of.packets.ingress {
                                Names::NotIn(_) => Names::Any,
                                names => names.clone(),
                            };
                            let packets = Match { ingress, egress: Names::Any, ..of.packets.clone() };
                            fits(&packets, packet).then(|| of.verdict.passes())
                        }
                        _ => None,
                    });
                    prop_assert_eq!(found, Some(Some(asked(&rules, packet))), "{:?}", packet);
                }
            }
        }
    }

    fn base(rules: Vec<Rule>, accepts: bool) -> Ruleset {
        let chain = ChainName { table: "t".into(), chain: "f".into() };
        let of =
            Base { chain: chain.clone(), hook: Hook::Forward, family: None, priority: 0, accepts };
        Ruleset { chains: [(chain, rules)].into(), bases: vec![of], outside: Vec::new() }
    }

    fn limited(
        verdict: Verdict,
        is_over: bool,
        behind: Option<Verdict>,
        accepts: bool,
    ) -> Option<Verdict> {
        let limit =
            Limit { rate: 1, seconds: 1, burst: 1, is_bytes: false, is_over, per_source: None };
        let first = Rule {
            arms: vec![(Match::protocol(1), verdict)],
            limit: Some(limit),
            ..Rule::default()
        };
        let second = behind
            .map(|verdict| Rule { arms: vec![(Match::default(), verdict)], ..Rule::default() });
        let rules = base([first].into_iter().chain(second).collect(), accepts);
        let items = flatten(&rules, Hook::Forward, Names::Any).unwrap();
        match &items[0] {
            Item::Rule(of) => {
                assert_eq!(of.police.is_some(), of.verdict == Verdict::Accept);
                Some(of.verdict.clone())
            }
            _ => None,
        }
    }

    #[test]
    fn a_rate_needs_a_sure_fate_behind_it() {
        use Verdict::{Accept, Drop, Return};
        assert_eq!(limited(Accept, false, None, false), Some(Accept));
        assert_eq!(
            limited(Accept, false, None, true),
            None,
            "beyond the rate it would be accepted"
        );
        assert_eq!(limited(Accept, false, Some(Accept), false), None);
        assert_eq!(limited(Drop, true, None, true), Some(Accept));
        assert_eq!(limited(Drop, true, None, false), None, "within the rate it would be dropped");
        assert_eq!(limited(Drop, true, Some(Accept), false), Some(Accept));
        assert_eq!(limited(Drop, false, None, false), Some(Drop), "dropped either way");
        assert_eq!(limited(Drop, false, None, true), None);
        assert_eq!(limited(Return, false, None, true), None);
    }

    #[test]
    fn a_rule_that_only_logs_takes_the_end_of_its_packets() {
        let log = Rule {
            arms: vec![(Match::protocol(1), Verdict::Continue)],
            log: true,
            ..Rule::default()
        };
        let drop = Rule { arms: vec![(Match::protocol(1), Verdict::Drop)], ..Rule::default() };
        let rules = base(vec![log.clone(), drop.clone()], true);
        let items = flatten(&rules, Hook::Forward, Names::Any).unwrap();
        assert!(
            matches!(&items[0], Item::Rule(of) if of.log && of.verdict == Verdict::Drop),
            "{items:?}"
        );
        let some = Match::field(Field::ToPort, Ranges::one(1));
        let rules = base(vec![log, Rule { arms: vec![(some, Verdict::Drop)], ..drop }], true);
        let items = flatten(&rules, Hook::Forward, Names::Any).unwrap();
        assert!(matches!(&items[0], Item::Left { matters: false, .. }), "{items:?}");
    }

    #[test]
    fn chains_that_lead_back_end() {
        let jump =
            Rule { arms: vec![(Match::protocol(1), Verdict::Jump("f".into()))], ..Rule::default() };
        let again = |number| Rule {
            arms: vec![(Match::protocol(number), Verdict::Jump("f".into()))],
            ..jump.clone()
        };
        let rules = base(vec![jump.clone()], true);
        let items = flatten(&rules, Hook::Forward, Names::Any).unwrap();
        assert!(
            matches!(&items[0], Item::Left { reasons, .. } if reasons[0].contains("16 jumps")),
            "{items:?}"
        );
        let rules = base((0..50).map(|_| again(1)).collect(), true);
        assert_eq!(flatten(&rules, Hook::Forward, Names::Any), Err(TooLong));
    }
}

//! The catalogue of steps that graphs are composed of: the built-in ones, and those of modules from
//! outside.
//!
//! An entry says what a step takes and what is known of a packet behind it, so that a composition can
//! be checked before it runs:
//!
//! | fact | who adds it |
//! |---|---|
//! | IPv4, IPv6 | `classify`: Ethertype, and the least header is there |
//! | valid | `ip4-validate`, `ip6-validate` |
//! | routed | the lookups: next hop and egress port are set |
//! | grouped | `ip4-multicast`, `ip6-multicast`: the ports that a packet to a group leaves by are set |
//! | rewritten | `ip4-rewrite`, `ip6-rewrite`: the Ethernet header is the egress port's |
//!
//! A step may follow any output whose packets have all facts that it takes; where paths join, what is
//! known is what is known on all of them. To transmit, a packet must be routed and rewritten; to replicate, grouped.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::graph::{Output, Step};
use crate::steps::builtin;
use crate::tables::Tables;

/// What is known of the packets on an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts(u8);

impl Facts {
    /// Nothing: any frame.
    pub const FRAME: Self = Self(0);
    /// Ethertype IPv4, and the bytes of the least header.
    pub const IP4: Self = Self(1);
    /// Ethertype IPv6, and the bytes of the header.
    pub const IP6: Self = Self(2);
    /// The IP header is valid, link padding is cut off.
    pub const VALID: Self = Self(4);
    /// Next hop and egress port are set.
    pub const ROUTED: Self = Self(8);
    /// The Ethernet header is the egress port's.
    pub const REWRITTEN: Self = Self(16);
    /// To a group, and the ports it leaves by are set.
    pub const GROUPED: Self = Self(32);
    /// What a packet needs to be sent.
    pub const SENDABLE: Self = Self::ROUTED.with(Self::REWRITTEN);

    /// These facts and those.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in both.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// All of `wanted` are known.
    pub const fn satisfy(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// What configurations call kinds of packets.
    pub const NAMED: [(&str, Self); 7] = [
        ("frame", Self::FRAME),
        ("ip4", Self::IP4),
        ("ip6", Self::IP6),
        ("valid-ip4", Self::IP4.with(Self::VALID)),
        ("valid-ip6", Self::IP6.with(Self::VALID)),
        ("routed-ip4", Self::IP4.with(Self::VALID).with(Self::ROUTED)),
        ("routed-ip6", Self::IP6.with(Self::VALID).with(Self::ROUTED)),
    ];
}

/// As messages say it: `routed valid IPv4 packets`.
impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fact, word) in [
            (Self::GROUPED, "grouped "),
            (Self::REWRITTEN, "rewritten "),
            (Self::ROUTED, "routed "),
            (Self::VALID, "valid "),
        ] {
            if self.satisfy(fact) {
                f.write_str(word)?;
            }
        }
        f.write_str(match (self.satisfy(Self::IP4), self.satisfy(Self::IP6)) {
            (true, _) => "IPv4 packets",
            (_, true) => "IPv6 packets",
            _ => "frames",
        })
    }
}

/// By output: what is known of its packets besides what was known of them before the step.
pub type Adds = &'static [(&'static str, Facts)];

/// Makes a step for one forwarder.
pub type Make = Arc<dyn Fn(&Arc<Tables>) -> Box<dyn Step> + Send + Sync>;

/// A step that graphs can name.
#[derive(Clone)]
pub struct Entry {
    name: String,
    outputs: &'static [Output],
    takes: Facts,
    adds: Adds,
    make: Option<Make>,
}

impl Entry {
    /// A step of this name with these outputs, which takes any frame and adds no facts.
    pub fn new(
        name: &str,
        outputs: &'static [Output],
        make: impl Fn(&Arc<Tables>) -> Box<dyn Step> + Send + Sync + 'static,
    ) -> Self {
        let make: Option<Make> = Some(Arc::new(make));
        Self { name: name.to_owned(), outputs, takes: Facts::FRAME, adds: &[], make }
    }

    /// A step that is made by whoever builds the graph, as those in Lua are.
    pub fn described(name: &str, outputs: &'static [Output]) -> Self {
        Self { name: name.to_owned(), outputs, takes: Facts::FRAME, adds: &[], make: None }
    }

    /// What must be known of the packets that it takes.
    pub fn takes(mut self, facts: Facts) -> Self {
        self.takes = facts;
        self
    }

    /// What is known of the packets of its outputs.
    pub fn adds(mut self, adds: Adds) -> Self {
        self.adds = adds;
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn outputs(&self) -> &'static [Output] {
        self.outputs
    }

    pub(crate) fn wanted(&self) -> Facts {
        self.takes
    }

    /// What is known behind this output of packets of which `before` was known.
    pub(crate) fn behind(&self, output: &str, before: Facts) -> Facts {
        let added = self.adds.iter().find(|(name, _)| *name == output);
        added.map_or(before, |(_, facts)| before.with(*facts))
    }

    /// The step; `None` for one that is only described.
    pub(crate) fn make(&self, tables: &Arc<Tables>) -> Option<Box<dyn Step>> {
        self.make.as_ref().map(|make| make(tables))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.name)
    }
}

/// Every step that a graph can name.
#[derive(Clone, Debug)]
pub struct Catalogue {
    entries: Vec<Entry>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self { entries: builtin::entries() }
    }
}

impl Catalogue {
    /// Adds a step.
    ///
    /// # Errors
    /// There is one of this name.
    pub fn add(&mut self, entry: Entry) -> Result<(), String> {
        if self.find(&entry.name).is_some() {
            return Err(format!("step \"{}\" exists already; choose another name", entry.name));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// The step of this name.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The names of all.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }
}

/// The outputs of a step that is described at run time, as [`Step::outputs`] wants them: one for each
/// name, one that drops for each name of `drops`, then `ends`. Kept for ever, once for each different list.
pub fn intern_outputs(names: &[String], drops: &[String], ends: &[Output]) -> &'static [Output] {
    static KNOWN: Mutex<Vec<&'static [Output]>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |list: &&&'static [Output]| {
        list.len() == names.len() + drops.len() + ends.len()
            && {
                let (next, rest) = list.split_at(names.len());
                let (drop, end) = rest.split_at(drops.len());
                let is_next = |(have, name): (&Output, &String)| matches!(have, Output::Next(next) if next == name);
                let is_drop = |(have, name): (&Output, &String)| matches!(have, Output::DropAs(drop) if drop == name);
                next.iter().zip(names).all(is_next)
                    && drop.iter().zip(drops).all(is_drop)
                    && end == ends
            }
    };
    if let Some(list) = known.iter().find(same) {
        return list;
    }
    let keep = |name: &String| -> &'static str { Box::leak(name.clone().into_boxed_str()) };
    let next = names.iter().map(|name| Output::Next(keep(name)));
    let drop = drops.iter().map(|name| Output::DropAs(keep(name)));
    let list: &'static [Output] = Box::leak(next.chain(drop).chain(ends.iter().copied()).collect());
    known.push(list);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::DropReason;
    use crate::testing::TestTables;

    #[test]
    fn entries_tell_the_outputs_that_their_steps_have() {
        let tables = TestTables::every_kind();
        let catalogue = Catalogue::default();
        for entry in &catalogue.entries {
            assert_eq!(entry.outputs(), entry.make(&tables).unwrap().outputs(), "{}", entry.name());
            for (output, _) in entry.adds {
                assert!(entry.outputs().contains(&Output::Next(output)), "{}", entry.name());
            }
        }
        assert!(catalogue.entries.len() >= 17);
    }

    #[test]
    fn a_name_is_taken_once() {
        let mut catalogue = Catalogue::default();
        let again = catalogue.find("ip4-ttl").unwrap().clone();
        let error = catalogue.add(again).unwrap_err();
        assert_eq!(error, "step \"ip4-ttl\" exists already; choose another name");
    }

    #[test]
    fn facts_have_words() {
        assert_eq!(Facts::FRAME.to_string(), "frames");
        let routed = Facts::IP4.with(Facts::VALID).with(Facts::ROUTED);
        assert_eq!(routed.to_string(), "routed valid IPv4 packets");
        assert!(routed.satisfy(Facts::IP4) && !routed.satisfy(Facts::IP6));
        assert_eq!(routed.common(Facts::IP6.with(Facts::VALID)), Facts::VALID);
    }

    #[test]
    fn described_outputs_are_kept_once() {
        let names = ["next", "voice"].map(str::to_owned);
        let first = intern_outputs(&names, &[], &[]);
        assert!(std::ptr::eq(first, intern_outputs(&names, &[], &[])));
        assert_eq!(first[1], Output::Next("voice"));
        let end = [Output::Drop(DropReason::StepFailed)];
        let longer = intern_outputs(&names, &[], &end);
        assert_eq!(longer, [first, &end].concat());
        assert!(std::ptr::eq(longer, intern_outputs(&names, &[], &end)));
        assert_eq!(intern_outputs(&names[..1], &[], &[]).len(), 1);
        // The same names, of which one drops.
        let drops = intern_outputs(&names[..1], &names[1..], &[]);
        assert_eq!(drops, [first[0], Output::DropAs("voice")]);
        assert!(std::ptr::eq(drops, intern_outputs(&names[..1], &names[1..], &[])));
    }
}

//! Verdicts of rules: a byte for each, so that a command can have a rule's packets logged for a while.

use std::sync::atomic::{AtomicU8, Ordering};

use acl::Action;

/// The verdict of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub action: Action,
    /// True if the rule does more than its action.
    pub is_treated: bool,
    /// True if its packets are logged by a command.
    pub is_watched: bool,
    /// True if the rule does nothing but charge its rate, before its action.
    pub is_only_policed: bool,
}

/// Effects of a rule beside its action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treated {
    No,
    /// It only charges its rate, without colours.
    OnlyPoliced,
    Yes,
}

/// The verdicts of a filter's rules, then the default's. Forwarders read them, one thread changes them.
pub(super) struct Verdicts(Box<[AtomicU8]>);

const ACTION: u8 = 0b0111;
const TREATED: u8 = 0b1000;
const WATCHED: u8 = 0b1_0000;
const ONLY_POLICED: u8 = 0b10_0000;

impl Verdicts {
    /// Makes those of these actions.
    pub fn new(verdicts: impl Iterator<Item = (Action, Treated)>) -> Self {
        let byte = |(action, treated)| {
            let more = match treated {
                Treated::No => 0,
                Treated::OnlyPoliced => TREATED | ONLY_POLICED,
                Treated::Yes => TREATED,
            };
            action as u8 | more
        };
        Self(verdicts.map(|verdict| byte(verdict).into()).collect())
    }

    /// Returns the verdict of this rule; drop if there is none.
    #[inline(always)]
    pub fn get(&self, rule: u32) -> Verdict {
        let byte = self.0.get(rule as usize);
        let byte = byte.map_or(Action::Drop as u8, |byte| byte.load(Ordering::Relaxed));
        let action = match byte & ACTION {
            0 => Action::Accept,
            2 => Action::Reject,
            3 => Action::ToHost,
            4 => Action::Continue,
            _ => Action::Drop,
        };
        let is_watched = byte & WATCHED != 0;
        let is_only_policed = byte & (ONLY_POLICED | WATCHED) == ONLY_POLICED;
        Verdict { action, is_treated: byte & (TREATED | WATCHED) != 0, is_watched, is_only_policed }
    }

    /// Begins or ends the logging of a rule's packets.
    pub fn watch(&self, rule: u32, on: bool) {
        let Some(byte) = self.0.get(rule as usize) else { return };
        if on {
            byte.fetch_or(WATCHED, Ordering::Relaxed);
        } else {
            byte.fetch_and(!WATCHED, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_as_they_were_made() {
        let actions =
            [Action::Accept, Action::Drop, Action::Reject, Action::ToHost, Action::Continue];
        let treated = [Treated::No, Treated::OnlyPoliced, Treated::Yes];
        let all = actions.into_iter().flat_map(|action| treated.map(|treated| (action, treated)));
        let verdicts = Verdicts::new(all.clone());
        for (rule, (action, treated)) in (0..).zip(all) {
            let found = verdicts.get(rule);
            assert_eq!((found.action, found.is_treated), (action, treated != Treated::No));
            assert_eq!(found.is_only_policed, treated == Treated::OnlyPoliced);
            assert!(!found.is_watched);
            verdicts.watch(rule, true);
            let found = verdicts.get(rule);
            assert!(found.action == action && found.is_treated && found.is_watched);
            assert!(!found.is_only_policed, "the packets that it drops are logged");
            verdicts.watch(rule, false);
            assert_eq!(verdicts.get(rule).is_treated, treated != Treated::No);
        }
        assert_eq!(verdicts.get(99).action, Action::Drop);
    }
}

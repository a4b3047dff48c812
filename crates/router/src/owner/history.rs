//! The configurations that a router has had since its start, as far as they are kept.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};

/// Configurations that are kept.
const KEPT: usize = 50;

/// Bytes of their texts that are kept, but always the last two.
const TEXT_KEPT: usize = 256 << 20;

/// The reason for which a configuration became the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The router began with it.
    Start,
    /// A client applied it.
    Apply,
    /// SIGHUP, or a closed terminal: the file of the start.
    Reload,
    /// A client rolled back to the one with this number.
    Rollback(u64),
    /// The one with this number was not confirmed in time.
    NotConfirmed(u64),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Apply => f.write_str("apply"),
            Self::Reload => f.write_str("SIGHUP"),
            Self::Rollback(to) => write!(f, "rollback to {to}"),
            Self::NotConfirmed(number) => write!(f, "{number} was not confirmed"),
        }
    }
}

/// A configuration that was applied.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number, from 1.
    pub number: u64,
    /// The time at which it was applied.
    pub time: SystemTime,
    /// The file it is from.
    pub file: PathBuf,
    /// Its text.
    pub text: Arc<str>,
    /// The reason for which it was applied.
    pub origin: Origin,
    /// Summary of its changes.
    pub summary: String,
}

/// The configurations, the last of which is the current one.
pub struct History {
    entries: VecDeque<Entry>,
    current: u64,
}

impl History {
    /// Begins with the configuration of the start.
    pub fn new(file: PathBuf, text: Arc<str>, summary: String) -> Self {
        let mut history = Self { entries: VecDeque::new(), current: 0 };
        history.add(file, text, Origin::Start, summary);
        history
    }

    /// Another one is the current one from now on; its number.
    pub fn add(&mut self, file: PathBuf, text: Arc<str>, origin: Origin, summary: String) -> u64 {
        self.current += 1;
        let (number, time) = (self.current, SystemTime::now());
        self.entries.push_back(Entry { number, time, file, text, origin, summary });
        let bytes = |entries: &VecDeque<Entry>| -> usize {
            entries.iter().map(|entry| entry.text.len()).sum()
        };
        while self.entries.len() > KEPT
            || (self.entries.len() > 2 && bytes(&self.entries) > TEXT_KEPT)
        {
            self.entries.pop_front();
        }
        number
    }

    /// The number of the current one.
    pub fn current(&self) -> u64 {
        self.current
    }

    /// All that are kept, the oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The one with this number, or which there are.
    pub fn get(&self, number: u64) -> Result<&Entry> {
        self.entries.iter().find(|entry| entry.number == number).with_context(|| {
            let first = self.entries.front().map_or(0, |entry| entry.number);
            format!(
                "configuration {number}: not in the history; there are {first} to {}, see turnpike history",
                self.current
            )
        })
    }

    /// The one before the current.
    pub fn previous(&self) -> Result<&Entry> {
        self.entries.iter().rev().nth(1).context(
            "rollback: the router still has the configuration of its start; there is none before it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(history: &mut History, text: &str) -> u64 {
        history.add("r.lua".into(), text.into(), Origin::Apply, String::new())
    }

    #[test]
    fn numbers_go_on_and_the_oldest_go() {
        let mut history = History::new("r.lua".into(), "0".into(), String::new());
        assert!(history.previous().unwrap_err().to_string().contains("none before it"));
        for n in 2..=KEPT as u64 + 5 {
            assert_eq!(add(&mut history, &n.to_string()), n);
        }
        assert_eq!(history.entries().count(), KEPT);
        let last = KEPT as u64 + 5;
        assert_eq!((history.current(), history.previous().unwrap().number), (last, last - 1));
        assert_eq!(&*history.get(6).unwrap().text, "6");
        let error = history.get(5).unwrap_err().to_string();
        assert!(
            error.starts_with("configuration 5: not in the history; there are 6 to 55"),
            "{error}"
        );
    }

    #[test]
    fn large_texts_go_sooner_but_the_last_two_stay() {
        let large = "x".repeat(TEXT_KEPT / 2 + 1);
        let mut history = History::new("r.lua".into(), large.as_str().into(), String::new());
        add(&mut history, &large);
        add(&mut history, &large);
        assert_eq!(history.entries().map(|entry| entry.number).collect::<Vec<_>>(), [2, 3]);
    }
}

//! The configurations that a router has had, as far as they are kept: since its start, or, with a state directory,
//! since before.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::super::archive::{Archive, Entry, State};

/// Configurations that are kept.
const KEPT: usize = 50;

/// Bytes of their texts that are kept, but always the last three, or the last two and the last good one.
const TEXT_KEPT: usize = 256 << 20;

/// The reason for which a configuration became the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The router began with it.
    Start,
    /// The router began with the last good one, as the file of the start was refused.
    LastGood,
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
            Self::LastGood => f.write_str("start with the last good one"),
            Self::Apply => f.write_str("apply"),
            Self::Reload => f.write_str("SIGHUP"),
            Self::Rollback(to) => write!(f, "rollback to {to}"),
            Self::NotConfirmed(number) => write!(f, "{number} was not confirmed"),
        }
    }
}

/// The configurations, the last of which is the current one.
pub struct History {
    entries: VecDeque<Entry>,
    current: u64,
    archive: Option<Archive>,
    /// The last good one.
    good: Option<u64>,
}

impl History {
    /// Begins with the configuration of the start, after those of earlier runs. The same text as the last of the
    /// earlier run goes on under its number.
    pub fn new(
        archive: Option<(Archive, State)>,
        (file, text): (PathBuf, Arc<str>),
        origin: Origin,
        summary: String,
    ) -> Self {
        let (archive, State { entries, good }) = archive
            .map_or_else(|| (None, State::default()), |(archive, state)| (Some(archive), state));
        let mut entries = VecDeque::from(entries);
        let current = entries.back().map_or(0, |last| last.number);
        let goes_on = |last: &&mut Entry| last.text == text;
        let same = entries.back_mut().filter(goes_on).map(|last| {
            last.file.clone_from(&file);
            if origin == Origin::LastGood {
                last.origin = origin.to_string();
            }
        });
        let mut history = Self { entries, current, archive, good };
        if same.is_none() {
            history.add(file, text, origin, summary);
        }
        history
    }

    /// The router is ready.
    pub fn ready(&self) {
        self.archive.iter().for_each(Archive::ready);
    }

    /// The current one works, and is kept: a later start falls back to it.
    pub fn keep_as_good(&mut self) {
        self.good = Some(self.current);
        self.store();
    }

    /// Writes the history to the state directory, if there is one.
    fn store(&self) {
        if let Some(archive) = &self.archive {
            let entries = self.entries.iter().cloned().collect();
            archive.keep(State { entries, good: self.good });
        }
    }

    /// Another one is the current one from now on; its number.
    pub fn add(&mut self, file: PathBuf, text: Arc<str>, origin: Origin, summary: String) -> u64 {
        self.current += 1;
        let (number, time, origin) = (self.current, SystemTime::now(), origin.to_string());
        self.entries.push_back(Entry { number, time, file, text, origin, summary });
        let bytes = |entries: &VecDeque<Entry>| -> usize {
            entries.iter().map(|entry| entry.text.len()).sum()
        };
        while self.entries.len() > KEPT
            || (self.entries.len() > 3 && bytes(&self.entries) > TEXT_KEPT)
        {
            // All but the last good one.
            let oldest = usize::from(self.entries.front().map(|entry| entry.number) == self.good);
            self.entries.remove(oldest);
        }
        self.store();
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
    use super::super::super::archive::Claim;
    use super::*;

    fn begun(text: &str) -> History {
        History::new(None, ("r.lua".into(), text.into()), Origin::Start, String::new())
    }

    fn add(history: &mut History, text: &str) -> u64 {
        history.add("r.lua".into(), text.into(), Origin::Apply, String::new())
    }

    #[test]
    fn numbers_go_on_and_the_oldest_go() {
        let mut history = begun("0");
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
        let mut history = begun(&large);
        for _ in 0..3 {
            add(&mut history, &large);
        }
        let numbers =
            |history: &History| -> Vec<_> { history.entries().map(|entry| entry.number).collect() };
        assert_eq!(numbers(&history), [2, 3, 4]);
        history.good = Some(2);
        for _ in 0..3 {
            add(&mut history, &large);
        }
        assert_eq!(numbers(&history), [2, 6, 7]);
    }

    #[test]
    fn a_restart_goes_on_where_the_router_was() {
        let place = tempfile::tempdir().unwrap();
        let begin = |text: &str, origin| {
            let archive =
                Archive::start(Claim::new(place.path(), "r.lua".as_ref()).unwrap()).unwrap();
            let file = ("r.lua".into(), text.into());
            History::new(Some(archive), file, origin, String::new())
        };
        let numbers = |history: &History| -> Vec<u64> {
            history.entries().map(|entry| entry.number).collect()
        };
        let mut history = begin("1", Origin::Start);
        history.keep_as_good();
        add(&mut history, "2");
        assert_eq!((numbers(&history), history.good), (vec![1, 2], Some(1)));
        drop(history);
        // As it was.
        let history = begin("2", Origin::Start);
        assert_eq!((numbers(&history), history.current(), history.good), (vec![1, 2], 2, Some(1)));
        drop(history);
        // Another one; the router does not get ready, and goes back.
        let history = begin("3", Origin::Start);
        assert_eq!((numbers(&history), history.good), (vec![1, 2, 3], Some(1)));
        drop(history);
        let mut history = begin("1", Origin::LastGood);
        history.keep_as_good();
        assert_eq!((numbers(&history), history.good), (vec![1, 2, 3, 4], Some(4)));
        assert_eq!(history.entries().last().unwrap().origin, "start with the last good one");
        assert_eq!(&*history.previous().unwrap().text, "3");
    }
}

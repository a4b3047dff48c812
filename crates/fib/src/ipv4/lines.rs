//! The lines of eight words that the directory's entries lead to, and which are in use.
//!
//! A /16 with one answer shares the line of its next hop; any other has a line of its own. Lines
//! are handed out densely, so that those in use share pages and memory follows the table's size.

use std::sync::atomic::Ordering;

use super::lookup::{LINE, LINES, NETS, Shared};
use crate::{NO_ROUTE, NextHopId, words::Leaves};

/// The writer's account of the lines.
pub(super) struct Lines {
    /// Lines that were in use at some time.
    used: usize,
    free: Vec<u32>,
    /// Per next hop the line that all /16s with this answer share; 0 where there is none yet (and
    /// for [`NO_ROUTE`], whose line it is).
    shared: Vec<u32>,
    /// Whether a /16 has a line of its own.
    own: Vec<bool>,
}

impl Lines {
    pub fn new() -> Self {
        Self { used: 1, free: Vec::new(), shared: vec![0; 1 << 15], own: vec![false; NETS] }
    }

    /// A line that no reader sees.
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let line = self.used;
            (line < LINES).then(|| {
                self.used += 1;
                line as u32
            })
        })
    }

    /// Takes back a line whose grace period has passed.
    pub fn release(&mut self, line: u32) {
        self.free.push(line);
    }

    /// Lines that are to be had.
    pub fn room(&self) -> usize {
        LINES - self.used + self.free.len()
    }

    /// Lines that take memory.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Whether a /16 has a line of its own.
    pub fn is_own(&self, net: usize) -> bool {
        self.own[net]
    }

    /// Gives a /16 a line of its own, like the one it shared except for one word; false if there
    /// is none left.
    pub fn separate(&mut self, shared: &Shared, block: usize, word: u64) -> bool {
        let (net, words) = (block / LINE, shared.words.all());
        let Some(line) = self.take() else { return false };
        let first = line as usize * LINE;
        for (to, from) in words[first..first + LINE].iter().zip(shared.line(net)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        words[first + block % LINE].store(word, Ordering::Relaxed);
        shared.directory.all()[net].store(first as u32, Ordering::Release);
        self.own[net] = true;
        true
    }

    /// Makes a /16 share the line of a next hop. Returns the line of its own that it had, which
    /// must be retired; nothing happens if there is no line left.
    pub fn share(&mut self, shared: &Shared, net: usize, next_hop: NextHopId) -> Option<u32> {
        let line = self.line_of(shared, next_hop)?;
        let entry = &shared.directory.all()[net];
        let before = entry.load(Ordering::Relaxed);
        entry.store(line * LINE as u32, Ordering::Release);
        std::mem::replace(&mut self.own[net], false).then_some(before / LINE as u32)
    }

    /// The line whose words all lead to a next hop.
    fn line_of(&mut self, shared: &Shared, next_hop: NextHopId) -> Option<u32> {
        let known = self.shared[usize::from(next_hop)];
        if known != 0 || next_hop == NO_ROUTE {
            return Some(known);
        }
        let line = self.take()?;
        let (first, word) = (line as usize * LINE, Leaves::uniform(&shared.leaves, next_hop));
        for place in &shared.words.all()[first..first + LINE] {
            place.store(word, Ordering::Relaxed);
        }
        self.shared[usize::from(next_hop)] = line;
        Some(line)
    }
}

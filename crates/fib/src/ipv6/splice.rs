//! Changes that build only the parts that differ.
//!
//! The tree of a digit is a B-tree that readers walk meanwhile. A change to some slots makes new
//! nodes on the way to them and shares all others:
//!
//! ```text
//!            [ root ]                 [ root' ]
//!           /   |    \      -->      /    |    \
//!       [ a ] [ b ] [ c ]        [ a ]  [ b' ] [ c ]
//! ```
//!
//! A node that has become full is split, one that has become small is joined with one beside it, and a
//! root with a single run is replaced by that run's answer. So the tree's height follows its number of
//! runs at all times. Runs with the same answer are joined within a node; at the edge of two nodes they
//! may stay apart, which costs only a place.
//!
//! A prefix that ends some digits down is followed digit by digit. If the answer of a slot on the way
//! changes, and is not joined with those beside it, one store into its node is enough (of the node's last
//! answer, with those that repeat it); else its tree is spliced, and the digit above has a changed slot
//! in turn. Pieces taken out of use are noted, and retired when the change is published.

use super::*;

/// A node with fewer runs than this is joined with one beside it when it changes.
const FEW: usize = FAN_OUT / 2;

/// Pieces that a change takes out of use.
#[derive(Default)]
pub(super) struct Replaced {
    /// Nodes without the pieces below them.
    nodes: Vec<u32>,
    /// Answers with all pieces below them.
    answers: Vec<Answer>,
}

impl Replaced {
    /// Keeps all pieces in use after all.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.answers.clear();
    }
}

/// Position of a tree.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The word.
    word: usize,
    /// The slot in the word; `None`: the word has one answer for all slots.
    slot: Option<usize>,
    /// The digit of the tree.
    digit: u8,
}

/// The runs of one node.
struct NodeRuns {
    runs: [(u32, Answer); FAN_OUT],
    len: usize,
}

impl std::ops::Deref for NodeRuns {
    type Target = [(u32, Answer)];

    fn deref(&self) -> &Self::Target {
        &self.runs[..self.len]
    }
}

/// Returns the index of the run that holds a slot.
fn run_at(runs: &[(u32, Answer)], slot: u32) -> usize {
    runs.partition_point(|run| run.0 <= slot).saturating_sub(1)
}

/// Appends a run, unless it continues the last one. Within a node no two consecutive runs have the same
/// answer, which distinguishes the runs in use from unused places.
pub(super) fn append(runs: &mut AnswerRuns, run: (u32, Answer)) {
    if runs.last().is_none_or(|last| last.1 != run.1) {
        runs.push(run);
    }
}

/// Returns runs up to `end` in which those of `slots` are replaced by `new`, where they lie in them.
fn exchange(
    runs: &[(u32, Answer)],
    end: u32,
    slots: &Range<u32>,
    new: &[(u32, Answer)],
) -> AnswerRuns {
    let (first, last) = (slots.start.max(runs[0].0), slots.end.min(end));
    let mut result = AnswerRuns::with_capacity(runs.len() + new.len() + 1);
    runs.iter().take_while(|run| run.0 < first).for_each(|&run| append(&mut result, run));
    for &(at, answer) in new[run_at(new, first)..].iter().take_while(|run| run.0 < last) {
        append(&mut result, (at.max(first), answer));
    }
    if last < end {
        let behind = &runs[run_at(runs, last)..];
        behind.iter().for_each(|&(at, answer)| append(&mut result, (at.max(last), answer)));
    }
    result
}

impl Runmap6 {
    // ---- where ------------------------------------------------------------------------------

    /// Returns the lowest tree in a /16 that hangs at a word and that a prefix longer than /16 may be
    /// spliced into; `None` if the prefix is a slab's slots, or its /32 gives up its slab.
    pub(super) fn place_of(&self, number: usize, bits: u128, len: u8) -> Option<Place> {
        let Some(slab) = self.slab(number) else {
            return Some(Place { word: number, slot: None, digit: 1 });
        };
        let at = |slab: usize, digit: u8| {
            let slot = bits.slice(DIGIT * (digit - 1), DIGIT) as usize;
            Place { word: slab + slot / SLOTS, slot: Some(slot % SLOTS), digit }
        };
        if len <= 2 * DIGIT {
            return None;
        }
        if slab_of(self.slot_answer(slab, bits.slice(DIGIT, DIGIT) as usize)).is_none() {
            return Some(at(slab, 2));
        }
        let below = self.slab_below(slab, bits, len)?;
        (len > 3 * DIGIT).then(|| at(below, 3))
    }

    fn answer_at(&self, place: Place) -> Answer {
        self.answer(self.word(place.word), place.slot.unwrap_or(0))
    }

    fn put_at(&mut self, place: Place, answer: Answer) -> Result<(), NoRoom> {
        self.check_room(SLOTS)?;
        let mut answers = [answer; SLOTS];
        if let Some(slot) = place.slot {
            answers = self.answers(place.word);
            answers[slot] = answer;
        }
        self.put_word(place.word, &answers)?;
        // The new nodes are in use now and must not be given back.
        self.fresh.clear();
        Ok(())
    }

    // ---- what a change does -----------------------------------------------------------------

    /// Updates the tree at a place to the route to a prefix in it, whose next hop is [`MARK`] in the
    /// writer's copy.
    pub(super) fn refresh_place(
        &mut self,
        place: Place,
        bits: u128,
        len: u8,
    ) -> Result<(), NoRoom> {
        let before = self.answer_at(place);
        let after = self.changed(before, place.digit, bits, len)?;
        if after == before {
            // Nothing has changed, or the change was stored further down.
            self.fresh.clear();
            return Ok(());
        }
        self.put_at(place, after)
    }

    /// The same for a /16 with a single word, whose route or a shorter one has changed; `runs` are
    /// its slots with that route's next hop marked.
    pub(super) fn refresh_kept(&mut self, number: usize, runs: &SlotRuns) -> Result<(), NoRoom> {
        let place = Place { word: number, slot: None, digit: 1 };
        let before = self.answer_at(place);
        let all = 0..DIGITS as u32;
        let new = self.answers_in(before, 1, runs, &all)?;
        let after = self.splice(before, 1, &all, &new)?;
        self.put_at(place, after)
    }

    /// Returns the answer that replaces a digit's tree after the change of a prefix in it.
    fn changed(&mut self, tree: Answer, digit: u8, bits: u128, len: u8) -> Result<Answer, NoRoom> {
        let end = DIGIT * (digit + 1);
        let slot = bits.slice(end - DIGIT, DIGIT);
        if len > end {
            let before = self.at_slot(tree, digit, slot);
            let after = self.changed(before, digit + 1, bits, len)?;
            return if after == before {
                Ok(tree)
            } else {
                self.set_slot(tree, digit, slot, after)
            };
        }
        let slots = slot..slot + (1 << (end - len));
        let (_, at) = self.rib.cover(bits, len);
        let mut runs = SlotRuns::new(slots.start, slots.end, MARK);
        self.rib.fill(at, end - DIGIT, DIGIT, MARK, &mut runs);
        let new = self.answers_in(tree, digit, &runs, &slots)?;
        match new[..] {
            [(_, answer)] if slots.len() == 1 => self.set_slot(tree, digit, slot, answer),
            _ => self.splice(tree, digit, &slots, &new),
        }
    }

    /// Returns the new answers of some slots: those that the change affects are built, the others kept.
    /// The other old pieces are noted as replaced.
    fn answers_in(
        &mut self,
        tree: Answer,
        digit: u8,
        runs: &SlotRuns,
        slots: &Range<u32>,
    ) -> Result<AnswerRuns, NoRoom> {
        let mut new = AnswerRuns::with_capacity(runs.runs.len());
        for &(first, slot) in &runs.runs {
            let answer = match slot {
                Slot::Leaf(next_hop) => self.unmarked(next_hop).into(),
                Slot::Below(_, cover) if cover != MARK => self.at_slot(tree, digit, first),
                Slot::Below(at, cover) => self.below(at, digit + 1, cover)?,
            };
            append(&mut new, (first, answer));
        }
        let mut old = AnswerRuns::new();
        self.collect_runs(tree, digit, 0..DIGITS as u32, slots, &mut old);
        let kept = |run: &(u32, Answer)| new[run_at(&new, run.0)].1 == run.1;
        let gone = old.iter().filter(|run| run.1 & IS_NODE != 0 && !kept(run));
        self.replaced.answers.extend(gone.map(|run| run.1));
        Ok(new)
    }

    /// Retires the pieces that the published change has taken out of use.
    pub(super) fn retire_replaced(&mut self) {
        let Replaced { mut nodes, mut answers } = std::mem::take(&mut self.replaced);
        nodes.drain(..).for_each(|number| self.retired.put(Piece::Node { number }));
        answers.drain(..).for_each(|answer| self.retire_nodes(answer));
        // Their memory is kept for the next change.
        self.replaced = Replaced { nodes, answers };
    }

    // ---- trees ------------------------------------------------------------------------------

    fn node_runs(&self, answer: Answer, first: u32) -> NodeRuns {
        let node = &self.shared.nodes.all()[node_number(answer)];
        let cell = |index: usize| node[index].load(Ordering::Relaxed);
        let (mut runs, mut len) = ([(first, cell(KEY_CELLS)); FAN_OUT], 1);
        for index in 1..FAN_OUT {
            let answer = cell(KEY_CELLS + index);
            // Unused places repeat the last answer.
            if answer != runs[len - 1].1 {
                let pair = cell((index - 1) / 2);
                let key = if index % 2 == 1 { pair as u16 } else { (pair >> 16) as u16 };
                runs[len] = (key.into(), answer);
                len += 1;
            }
        }
        NodeRuns { runs, len }
    }

    /// Returns the answer of one slot of a tree.
    fn at_slot(&self, tree: Answer, digit: u8, slot: u32) -> Answer {
        let mut answer = tree;
        while node_digit(answer) == Some(digit) {
            let runs = self.node_runs(answer, 0);
            answer = runs[run_at(&runs, slot)].1;
        }
        answer
    }

    /// Appends the runs of a tree, which covers `range`, that reach into `slots`.
    fn collect_runs(
        &self,
        tree: Answer,
        digit: u8,
        range: Range<u32>,
        slots: &Range<u32>,
        out: &mut AnswerRuns,
    ) {
        if node_digit(tree) != Some(digit) {
            return append(out, (range.start, tree));
        }
        let runs = self.node_runs(tree, range.start);
        for index in run_at(&runs, slots.start)..runs.len() {
            let (first, answer) = runs[index];
            if first >= slots.end {
                break;
            }
            let end = runs.get(index + 1).map_or(range.end, |next| next.0);
            self.collect_runs(answer, digit, first..end, slots, out);
        }
    }

    /// Returns true if a tree has more runs than this.
    fn has_more(&self, tree: Answer, digit: u8, most: usize) -> bool {
        let mut left = most;
        !self.count_down(tree, digit, &mut left)
    }

    /// Subtracts the runs of a tree from `left`; returns false if there are more.
    fn count_down(&self, tree: Answer, digit: u8, left: &mut usize) -> bool {
        if node_digit(tree) == Some(digit) {
            return self.node_runs(tree, 0).iter().all(|run| self.count_down(run.1, digit, left));
        }
        let fits = *left > 0;
        *left = left.saturating_sub(1);
        fits
    }

    /// Returns the tree in which one slot has another answer.
    fn set_slot(
        &mut self,
        tree: Answer,
        digit: u8,
        slot: u32,
        answer: Answer,
    ) -> Result<Answer, NoRoom> {
        if self.at_slot(tree, digit, slot) == answer || self.set_in_place(tree, digit, slot, answer)
        {
            return Ok(tree);
        }
        self.splice(tree, digit, &(slot..slot + 1), &[(slot, answer)])
    }

    /// Stores the answer of a slot that is a run alone and stays one; returns false if it is not, or
    /// would be joined with one beside it.
    fn set_in_place(&mut self, tree: Answer, digit: u8, slot: u32, answer: Answer) -> bool {
        let (mut at, mut range) = (tree, 0..DIGITS as u32);
        while node_digit(at) == Some(digit) {
            let runs = self.node_runs(at, range.start);
            let index = run_at(&runs, slot);
            let end = runs.get(index + 1).map_or(range.end, |next| next.0);
            range = runs[index].0..end;
            if node_digit(runs[index].1) == Some(digit) {
                at = runs[index].1;
                continue;
            }
            let beside = [index.checked_sub(1), Some(index + 1)];
            let mut beside = beside.into_iter().flatten().filter_map(|index| runs.get(index));
            if range != (slot..slot + 1) || beside.any(|run| run.1 == answer) {
                return false;
            }
            let last = if index + 1 == runs.len() { FAN_OUT } else { index + 1 };
            let cells = &self.shared.nodes.all()[node_number(at)];
            for cell in &cells[KEY_CELLS + index..KEY_CELLS + last] {
                // The nodes below the answer were written before.
                cell.store(answer, Ordering::Release);
            }
            self.fresh.clear();
            return true;
        }
        false
    }

    /// Returns the tree in which these slots have these answers; `new` begins with the first slot.
    fn splice(
        &mut self,
        tree: Answer,
        digit: u8,
        slots: &Range<u32>,
        new: &[(u32, Answer)],
    ) -> Result<Answer, NoRoom> {
        let end = DIGITS as u32;
        let level = if node_digit(tree) == Some(digit) {
            self.spliced((tree, 0..end), digit, slots, new)?
        } else {
            exchange(&[(0, tree)], end, slots, new)
        };
        self.tree(level, digit)
    }

    /// Returns the runs that replace a node for a range of slots.
    fn spliced(
        &mut self,
        (node, range): (Answer, Range<u32>),
        digit: u8,
        slots: &Range<u32>,
        new: &[(u32, Answer)],
    ) -> Result<AnswerRuns, NoRoom> {
        let runs = self.node_runs(node, range.start);
        self.replaced.nodes.push(node_number(node) as u32);
        if node_digit(runs[0].1) != Some(digit) {
            return Ok(exchange(&runs, range.end, slots, new));
        }
        let mut from = run_at(&runs, slots.start);
        let mut to = runs.partition_point(|run| run.0 < slots.end);
        let mut level = AnswerRuns::new();
        for index in from..to {
            let end = runs.get(index + 1).map_or(range.end, |next| next.0);
            let child = (runs[index].1, runs[index].0..end);
            let below = self.spliced(child, digit, slots, new)?;
            below.into_iter().for_each(|run| append(&mut level, run));
        }
        if level.len() < FEW && to < runs.len() {
            self.take_over(runs[to]).iter().for_each(|&run| append(&mut level, run));
            to += 1;
        } else if level.len() < FEW && from > 0 {
            from -= 1;
            let mut joined = self.take_over(runs[from]).to_vec();
            level.into_iter().for_each(|run| append(&mut joined, run));
            level = joined;
        }
        let mut result = runs[..from].to_vec();
        result.extend(self.level_above(&level, digit)?);
        result.extend_from_slice(&runs[to..]);
        Ok(result)
    }

    /// Returns the runs of a node that is replaced.
    fn take_over(&mut self, (first, node): (u32, Answer)) -> NodeRuns {
        self.replaced.nodes.push(node_number(node) as u32);
        self.node_runs(node, first)
    }

    // ---- slabs ------------------------------------------------------------------------------

    /// Gives the /16, and the /32 in it that holds an address, slabs if they now have many runs. The
    /// pieces below them stay.
    pub(super) fn widen(&mut self, number: usize, bits: u128) {
        let slot = bits.slice(DIGIT, DIGIT);
        if self.slab(number).is_none() {
            let tree = self.answer_at(Place { word: number, slot: None, digit: 1 });
            let dense = self.has_more(self.at_slot(tree, 1, slot), 2, DENSE_RUNS);
            if dense || self.has_more(tree, 1, SLAB_RUNS) {
                self.widen_16(number, tree);
            }
        }
        let Some(slab) = self.slab(number) else { return };
        let slot = slot as usize;
        let place = Place { word: slab + slot / SLOTS, slot: Some(slot % SLOTS), digit: 2 };
        let tree = self.answer_at(place);
        if self.has_more(tree, 2, DENSE_RUNS)
            && let Some(below) = self.slab_from(tree, 2)
        {
            let done = self.put_at(place, slab_answer(below));
            // Without room the tree is kept as it is.
            let _ = self.settle(done);
        }
    }

    fn widen_16(&mut self, number: usize, tree: Answer) {
        let Some(slab) = self.slab_from(tree, 1) else { return };
        let mask = (SLAB as u64 - 1) << 32;
        self.shared.directory.all()[number].store(mask | (slab - number) as u64, Ordering::Release);
        // The single word keeps its contents for readers that are on their way to it.
        self.retire_leaves(self.word(number));
        let _ = self.settle(Ok(()));
    }

    /// Makes a slab with the answers of a tree, whose nodes are noted as replaced.
    fn slab_from(&mut self, tree: Answer, digit: u8) -> Option<usize> {
        let slab = self.take_slab()?;
        let mut runs = AnswerRuns::new();
        let all = 0..DIGITS as u32;
        self.collect_runs(tree, digit, all.clone(), &all, &mut runs);
        if let Err(NoRoom) = self.store_slots(slab, 0, DIGITS, &runs) {
            let _ = self.settle(Err(NoRoom));
            return None;
        }
        self.note_nodes(tree, digit);
        Some(slab)
    }

    /// Notes the nodes of one digit's tree as replaced, without the pieces below them.
    fn note_nodes(&mut self, tree: Answer, digit: u8) {
        if node_digit(tree) != Some(digit) {
            return;
        }
        self.replaced.nodes.push(node_number(tree) as u32);
        let runs = self.node_runs(tree, 0);
        runs.iter().for_each(|run| self.note_nodes(run.1, digit));
    }
}

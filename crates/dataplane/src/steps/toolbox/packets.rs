//! `packets`: makes packets.
//!
//! Takes none; all forwarders together emit frames with the bytes of `frame`, in hexadecimal, up to `limit` of them. They
//! count as replicated.
//!
//! | output | packets |
//! |---|---|
//! | `next` | at `rate`, if there is one; else as fast as the forwarders are |
//!
//! ```lua
//! graph:add { "packets", frame = "ffffffffffff02000000000188b500", rate = "100pps" }
//! graph:path("packets.next", { "to-port", port = "left" }, "transmit")
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{Pace, rate};
use crate::batch::{Batch, Held};
use crate::bucket;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Origin, Output, Outputs, Step};
use crate::lock::lock;
use crate::mask::Mask;
use crate::params::{Arg, Grammar, Kind, Param};

const OUTPUTS: &[Output] = &[Output::Deferred(std::borrow::Cow::Borrowed("next"))];

/// Bytes in hexadecimal.
static BYTES: Grammar = Grammar {
    expected: "bytes in hexadecimal",
    check: |text| bytes(text).map(drop).ok_or_else(|| format!("\"{text}\" is none, or too long")),
};

/// Most bytes of a frame.
const MOST: usize = 1518;

/// Packets that may leave at once after a pause, if there is a rate.
const BURST: u64 = 16;

fn bytes(text: &str) -> Option<Vec<u8>> {
    let is_whole = text.is_ascii() && text.len().is_multiple_of(2) && text.len() <= 2 * MOST;
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
    if is_whole { (0..text.len() / 2).map(byte).collect() } else { None }
}

pub(super) fn spec() -> StepSpec {
    let frame = Param::new("frame", Kind::Parsed(&BYTES), "the frame's bytes");
    let limit = Param::new("limit", Kind::Integer(-1..=i64::MAX), "their number; -1: no limit");
    let active = Param::new("active", Kind::Flag, "false: it makes none");
    StepSpec::new("packets", OUTPUTS, make)
        .param(frame.or(Arg::Text("00".repeat(60))))
        .param(rate("packets per second").or(Arg::Flag(false)))
        .param(limit.or(Arg::Integer(-1)))
        .param(active.or(Arg::Flag(true)))
}

/// The packets that all forwarders' steps of a name have made.
#[derive(Default)]
pub struct Made {
    count: AtomicU64,
    /// The time at which the bucket of the rate is full, see [`bucket::take`].
    full_at: AtomicU64,
}

/// Packets that the steps of each name and frame have made, as long as there are such steps: those of a configuration that is
/// refused are others than those that run.
#[derive(Default)]
pub struct Sources(Mutex<HashMap<(String, String), Weak<Made>>>);

impl Sources {
    fn of(&self, name: &str, frame: &str) -> Arc<Made> {
        let mut all = lock(&self.0);
        all.retain(|_, made| made.strong_count() > 0);
        let known = all.entry((name.to_owned(), frame.to_owned())).or_default();
        known.upgrade().unwrap_or_else(|| {
            let made = Arc::default();
            *known = Arc::downgrade(&made);
            made
        })
    }

    /// Lets the steps of a name begin anew: as many packets as their limit allows.
    pub fn begin_anew(&self, name: &str) {
        let all = lock(&self.0);
        for (_, made) in all.iter().filter(|((known, _), _)| known == name) {
            if let Some(made) = made.upgrade() {
                made.count.store(0, Ordering::Relaxed);
            }
        }
    }
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let sources = context.tables.shared.get::<Sources>();
    let made = sources.of(context.name, context.args.text("frame"));
    let frame = bytes(context.args.text("frame")).unwrap_or_default();
    let cost = Pace::read(context.args).map_or(0, |pace| pace.cost(frame.len()));
    let limit = u64::try_from(context.args.integer("limit")).unwrap_or(u64::MAX);
    let limit = if context.args.flag("active") { limit } else { 0 };
    Box::new(Packets { frame, cost, limit, made })
}

struct Packets {
    frame: Vec<u8>,
    /// TSC cycles between two packets; 0: none.
    cost: u64,
    limit: u64,
    made: Arc<Made>,
}

impl Packets {
    /// Makes one, if there is a buffer for it, and the rate and the limit permit it.
    fn one(&self, batch: &Batch) -> Option<Held> {
        if !self.is_waiting() {
            return None;
        }
        let depth = self.cost.saturating_mul(BURST);
        if self.cost > 0 && bucket::take(&self.made.full_at, self.cost, depth, batch.now).is_err() {
            return None;
        }
        let packet = batch.copies.as_ref()?.pool().copy_of(&self.frame)?;
        let next = |count: u64| (count < self.limit).then_some(count + 1);
        let counted = self.made.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        counted.is_ok().then(|| Held::new(packet))
    }
}

impl Step for Packets {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, _: &mut Batch, _: Mask, _: &mut Outputs) {}

    fn emit(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> Origin {
        for _ in 0..most {
            let Some(packet) = self.one(batch) else { break };
            if let Ok(slot) = batch.put(packet) {
                out[0] |= Mask::when(true, slot);
            }
        }
        Origin::Made
    }

    fn is_waiting(&self) -> bool {
        self.made.count.load(Ordering::Relaxed) < self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number, text};
    use super::*;
    use crate::graph::MAX_OUTPUTS;
    use crate::mirror::Copies;
    use crate::testing::{batch_of, dpdk};

    fn emit(step: &mut dyn Step, now: u64) -> Vec<Vec<u8>> {
        let mut batch = batch_of(&[]);
        batch.copies = Some(Copies::new(dpdk().1.clone()));
        batch.begin_emitted(now);
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        assert_eq!(step.emit(&mut batch, 64, &mut out), Origin::Made);
        out[0].slots().map(|slot| batch.frame(slot).to_vec()).collect()
    }

    #[test]
    fn frames_are_made_up_to_the_limit() {
        let mut step = make("packets", &[("frame", text("0102ff")), ("limit", number(70))]);
        assert_eq!(emit(&mut *step, 0), vec![vec![1, 2, 255]; 64]);
        assert_eq!((emit(&mut *step, 0).len(), step.is_waiting()), (6, false));
        assert_eq!(emit(&mut *step, 0).len(), 0);
    }

    #[test]
    fn a_source_begins_anew() {
        let tables = crate::testing::TestTables::every_kind();
        let args_of = |frame: &str| [("frame", text(frame)), ("limit", number(7))];
        let args = args_of("0102ff");
        let mut step = super::super::make_with(&tables, "packets", &args);
        let sources = tables.shared.get::<Sources>();
        assert_eq!((emit(&mut *step, 0).len(), emit(&mut *step, 0).len()), (7, 0));
        sources.begin_anew("other");
        assert!(!step.is_waiting());
        sources.begin_anew("s");
        assert_eq!((step.is_waiting(), emit(&mut *step, 0).len()), (true, 7));
        // One of the same name and frame goes on, one with another frame does not.
        let mut same = super::super::make_with(&tables, "packets", &args);
        assert_eq!(emit(&mut *same, 0).len(), 0);
        let args = args_of("03");
        let mut other = super::super::make_with(&tables, "packets", &args);
        assert_eq!(emit(&mut *other, 0).len(), 7);
        // As if a change to it was refused: the first one still goes on, and begins anew.
        drop(other);
        let mut same = super::super::make_with(&tables, "packets", &args_of("0102ff"));
        assert_eq!(emit(&mut *same, 0).len(), 0);
        sources.begin_anew("s");
        assert_eq!(emit(&mut *step, 0).len(), 7);
    }

    #[test]
    fn one_that_is_not_active_makes_none() {
        let inactive = [("active", crate::params::Given::Flag(false)), ("limit", number(70))];
        let mut step = make("packets", &inactive);
        assert_eq!((emit(&mut *step, 0).len(), step.is_waiting()), (0, false));
    }

    #[test]
    fn a_rate_is_kept() {
        let hz = ::dpdk::tsc_hz();
        let mut step = make("packets", &[("rate", text("100pps"))]);
        assert_eq!(emit(&mut *step, hz).len(), 16);
        assert_eq!((emit(&mut *step, hz + hz / 101).len(), step.is_waiting()), (0, true));
        assert_eq!(emit(&mut *step, hz + hz / 10).len(), 10);
    }

    #[test]
    fn bytes_are_pairs_of_digits() {
        assert_eq!(bytes("0aF0"), Some(vec![10, 240]));
        assert_eq!(bytes(""), Some(Vec::new()));
        for wrong in ["0", "0x", "ää", &"00".repeat(1519)] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}

//! `stride-switch`: gives each packet to one of its outputs, in turns by tickets (stride scheduling, Waldspurger 1995).
//!
//! Takes any frame. Packets of a flow may be reordered. Each forwarder has turns of its own; a change of the tickets
//! begins them anew.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | as many, in proportion, as `tickets` has for it; with 0 tickets none |
//! | drop `no-tickets` | all, while no output has tickets |
//!
//! ```lua
//! graph:path("counter.next", { "stride-switch", tickets = "3 1" }, { "to-port", port = "right" }, "transmit")
//! graph:path("stride-switch.1", "drop")
//! ```

use std::any::Any;

use super::stride::Stride;
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Grammar, Kind, Param};

static TICKETS: Grammar = Grammar {
    expected: "the tickets of each output, such as \"3 1\"",
    check: |text| read(text).map(drop),
};

/// Most outputs: one more is a drop.
const MOST: usize = MAX_OUTPUTS - 1;

fn read(text: &str) -> Result<Vec<u64>, String> {
    let word = |word: &str| {
        let tickets = word.parse().ok().filter(|tickets| *tickets <= Stride::TICKETS_MOST);
        let most = Stride::TICKETS_MOST;
        tickets.ok_or_else(|| format!("\"{word}\": expected tickets, from 0 to {most}"))
    };
    let tickets: Vec<u64> = text.split_ascii_whitespace().map(word).collect::<Result<_, _>>()?;
    if tickets.is_empty() || tickets.len() > MOST {
        return Err(format!("tickets of {} outputs; expected 1 to {MOST}", tickets.len()));
    }
    Ok(tickets)
}

pub(super) fn spec() -> StepSpec {
    let tickets = Param::new("tickets", Kind::Parsed(&TICKETS), "the tickets of each output");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let tickets = read(context.args.text("tickets")).unwrap_or_default();
        let turns = Turns { stride: Stride::new(&tickets), tickets };
        Box::new(StrideSwitch { outputs: outputs(context.args), turns })
    };
    StepSpec::new("stride-switch", &[], make)
        .outputs_by(outputs)
        .param(tickets.or(Arg::Text("1 1".to_owned())))
}

fn outputs(args: &Args) -> Vec<Output> {
    let count = read(args.text("tickets")).unwrap_or_default().len();
    let numbered = (0..count).map(|number| Output::Next(number.to_string().into()));
    numbered.chain([Output::DropAs("no-tickets".into())]).collect()
}

/// State that passes to the step's replacement.
struct Turns {
    tickets: Vec<u64>,
    stride: Stride,
}

struct StrideSwitch {
    outputs: Vec<Output>,
    turns: Turns,
}

impl Step for StrideSwitch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        let none = self.outputs.len() - 1;
        for slot in input.slots() {
            let output = self.turns.stride.serve(&|_| true).unwrap_or(none);
            out[output.min(none)] |= Mask::when(true, slot);
        }
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.turns)
    }

    fn take_state(&mut self, old: &mut dyn Any) {
        if let Some(old) = old.downcast_mut::<Turns>()
            && old.tickets == self.turns.tickets
        {
            std::mem::swap(&mut self.turns, old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, text};
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    fn counts(step: &mut dyn Step, packets: usize, outputs: &[&str]) -> Vec<usize> {
        let frames = vec![FrameBuilder::ip4().build(); packets];
        let (result, _) = run_step(step, &frames);
        outputs.iter().map(|output| result[output].len()).collect()
    }

    #[test]
    fn outputs_have_their_shares_over_batches_and_changes() {
        let mut step = make("stride-switch", &[("tickets", text("3 1 0"))]);
        assert_eq!(counts(&mut *step, 40, &["0", "1", "2"]), [30, 10, 0]);
        // Of four, the next is the one that is due: turns go on in the step that replaces this one.
        let frames = vec![FrameBuilder::ip4().build(); 4];
        let mut whole = make("stride-switch", &[("tickets", text("3 1 0"))]);
        let expected = run_step(&mut *whole, &frames).0["1"].clone();
        let mut first = make("stride-switch", &[("tickets", text("3 1 0"))]);
        run_step(&mut *first, &frames[..1]);
        let mut next = make("stride-switch", &[("tickets", text("3 1 0"))]);
        next.take_state(first.state().unwrap());
        let rest = run_step(&mut *next, &frames[1..]).0["1"].clone();
        assert_eq!(rest, expected.iter().map(|slot| slot - 1).collect::<Vec<_>>());
        let mut other = make("stride-switch", &[("tickets", text("1 1"))]);
        other.take_state(next.state().unwrap());
        assert_eq!(counts(&mut *other, 10, &["0", "1"]), [5, 5]);
    }

    #[test]
    fn without_tickets_packets_are_dropped() {
        let mut step = make("stride-switch", &[("tickets", text("0 0"))]);
        assert_eq!(counts(&mut *step, 3, &["0", "1", "no-tickets"]), [0, 0, 3]);
    }

    #[test]
    fn tickets_are_checked() {
        assert_eq!(read("1 32768"), Ok(vec![1, 32768]));
        assert!(read("1 32769").unwrap_err().contains("\"32769\": expected tickets, from 0"));
        assert!(read(&"1 ".repeat(16)).unwrap_err().contains("16 outputs; expected 1 to 15"));
        assert!(read("").is_err() && read("-1").is_err());
    }
}

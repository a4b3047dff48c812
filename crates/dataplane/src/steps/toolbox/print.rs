//! `print`: writes some of the packets to the log.
//!
//! Takes any frame. Ten packets a second of all steps of this kind are written, with the step's `label`, the packet's
//! length and its first bytes from `offset` on, up to `length`; all of them are counted (`turnpike show steps`).
//! The forwarder puts them into a bounded queue, from which the owner writes. With `active = false` none is written nor
//! counted.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crossbeam_queue::ArrayQueue;

use super::{offset, place};
use crate::batch::Batch;
use crate::bucket;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step, StepCounters};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("next")];

/// Most bytes of a packet.
const BYTES: usize = 64;

/// Packets a second, and at once.
const RATE: u64 = 10;

pub(super) fn spec() -> StepSpec {
    let label = Param::new("label", Kind::Text, "the text in front of packets");
    let length = Param::new("length", Kind::Integer(0..=BYTES as i64), "bytes of a packet");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let args = context.args;
        Box::new(Print {
            label: Arc::from(args.text("label")),
            length: args.integer("length") as usize,
            at: place(args),
            cost: dpdk::tsc_hz() / RATE,
            printed: context.tables.shared.get(),
            counters: StepCounters::new(&["packets"]),
            is_active: args.flag("active"),
        })
    };
    StepSpec::new("print", OUTPUTS, make)
        .param(label.or(Arg::Text(String::new())))
        .param(length.or(Arg::Integer(24)))
        .param(offset(0, "the place of the first byte"))
        .param(Param::new("active", Kind::Flag, "false: it writes none").or(Arg::Flag(true)))
}

/// A packet for the log.
pub struct PrintedPacket {
    label: Arc<str>,
    whole: usize,
    len: usize,
    bytes: [u8; BYTES],
}

/// As Click prints packets: label, length, words of four bytes.
impl fmt::Display for PrintedPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:4} |", self.label, self.whole)?;
        for word in self.bytes[..self.len].chunks(4) {
            f.write_str(" ")?;
            word.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Packets for the log, from all forwarders.
pub struct Printed {
    queue: ArrayQueue<PrintedPacket>,
    full_at: AtomicU64,
}

impl Default for Printed {
    fn default() -> Self {
        Self { queue: ArrayQueue::new(2 * RATE as usize), full_at: AtomicU64::new(0) }
    }
}

impl Printed {
    /// The next packet to be written.
    pub fn take(&self) -> Option<PrintedPacket> {
        self.queue.pop()
    }
}

struct Print {
    label: Arc<str>,
    length: usize,
    at: usize,
    /// TSC cycles between two packets.
    cost: u64,
    printed: Arc<Printed>,
    counters: StepCounters,
    is_active: bool,
}

impl Print {
    /// Puts a packet into the queue; a full one has no reader.
    #[cold]
    fn show(&self, batch: &Batch, slot: usize) {
        let data = batch.frame(slot).get(self.at..).unwrap_or(&[]);
        let len = data.len().min(self.length);
        let mut bytes = [0; BYTES];
        bytes[..len].copy_from_slice(&data[..len]);
        let whole = batch.len(slot).saturating_sub(self.at);
        let _ =
            self.printed.queue.push(PrintedPacket { label: self.label.clone(), whole, len, bytes });
    }
}

impl Step for Print {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        if !self.is_active {
            return;
        }
        self.counters.at(0).add(input.count().into());
        let depth = self.cost.saturating_mul(RATE);
        for slot in input.slots() {
            if bucket::take(&self.printed.full_at, self.cost, depth, batch.now).is_err() {
                return;
            }
            self.show(batch, slot);
        }
    }

    fn counters(&self) -> Option<&StepCounters> {
        Some(&self.counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::params::{Args, Given};
    use crate::testing::{TestTables, run_step};

    #[test]
    fn a_few_packets_are_written_and_all_counted() {
        let (catalogue, tables) = (Catalogue::default(), &TestTables::every_kind());
        let spec = catalogue.find("print").unwrap();
        let given = [("label", Given::Text("x".into())), ("offset", Given::Number(2.0))];
        let given = given.map(|(name, value)| (name.to_owned(), value)).into();
        let args = &Args::read(spec.params(), &given).unwrap();
        let context = MakeContext { name: "p", args, tables, ports: &[] };
        let mut step = spec.make(&context).unwrap();
        let frames: Vec<Vec<u8>> = (0..40).map(|n| vec![9, 9, 1, 2, 3, 4, 5, n]).collect();
        assert_eq!(run_step(&mut *step, &frames).0["next"].len(), 40);
        let printed = tables.shared.get::<Printed>();
        let texts: Vec<String> =
            std::iter::from_fn(|| printed.take()).map(|sight| sight.to_string()).collect();
        assert_eq!((texts.len(), &*texts[0]), (10, "x:    6 | 01020304 0500"));
        assert_eq!(step.counters().unwrap().all().next(), Some(("packets", 40)));
    }

    #[test]
    fn one_that_is_not_active_writes_none() {
        let tables = TestTables::every_kind();
        let active = [("active", Given::Flag(false))];
        let mut step = super::super::make_with(&tables, "print", &active);
        assert_eq!(run_step(&mut *step, &[vec![9; 60]]).0["next"], [0]);
        assert!(tables.shared.get::<Printed>().take().is_none());
        assert_eq!(step.counters().unwrap().all().next(), Some(("packets", 0)));
    }
}
